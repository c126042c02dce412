"""Settings for a user's own recordings, chosen from the recordings.

A setting that was requested is not chosen; what cannot work is refused in one sentence. Labels of the target are not
used. docs/own-data.md has the rules in words.

>>> folder, catalogue, settings = choose_settings(folder, folder.catalogue(), task, Requested(input="time"))
>>> [f"{choice.setting} {choice.value}" for choice in settings.choices]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from bearcat.data.catalogue import Catalogue, Dataset, Problem
from bearcat.data.folder import Folder, with_channel
from bearcat.data.inputs import Input, PhysicalInput, Preparation, find_input, suited_input
from bearcat.data.recording import check_length, count_windows
from bearcat.data.splits import choose_scheme
from bearcat.data.survey import (
    ChannelMeasurement,
    Measurement,
    Measurements,
    Progress,
    measured_of,
    odd_recordings,
    read_alike,
    usable,
)
from bearcat.data.tasks import Split, Task, classes_of
from bearcat.data.windows import metadata
from bearcat.errors import InputError
from bearcat.storage import cache_folder

USUAL, SHORTEST, LONGEST = 1024, 256, 4096  # samples a window: the paper's; the least for spectra; the most for speed
LONGEST_PHYSICAL, ENOUGH_SECONDS = 1 << 16, 0.5  # samples, and seconds, for physical inputs
ENOUGH, ENOUGH_TARGET = 50, 200  # windows of the rarest source class, and of the target
ENOUGH_TARGET_PHYSICAL = 100  # long windows are worth more than many
FEWEST_WINDOWS = 10  # of a class of the source, below which a test share of it says nothing
UNEVEN = 3.0  # the largest class over the smallest, beyond which classes are balanced


@dataclass(frozen=True)
class Requested:
    """The settings that a user gave; those that are None are chosen from the recordings."""

    channel: str | None = None
    rate: float | None = None
    window: int | None = None
    stride: int | None = None
    split: str | None = None
    input: str = "time"  # or the recipe's
    balance: bool | None = None


@dataclass(frozen=True)
class Choice:
    """One setting that was not requested."""

    setting: str
    value: str


@dataclass(frozen=True)
class DataSettings:
    """How a task's recordings are prepared, split and balanced."""

    preparation: Preparation
    split: Split
    channel: str | None
    balance: bool
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()  # what may spoil the result


def paper_settings(requested: Requested) -> DataSettings:
    """The paper's settings where no others are requested: for the named datasets."""
    length = requested.window or USUAL
    preparation = Preparation(requested.input, length, requested.stride, requested.rate)
    return DataSettings(preparation, Split(requested.split or "window"), requested.channel, bool(requested.balance))


def choose_settings(
    dataset: Dataset, catalogue: Catalogue, task: Task, requested: Requested, progress: Progress = iter
) -> tuple[Dataset, Catalogue, DataSettings]:
    """Dataset and catalogue of the chosen channel, and settings: the paper's for named datasets and its inputs.

    Of a user's own folder, recordings that cannot be used are left out of the catalogue, which names them.
    """
    if not isinstance(dataset, Folder) and not isinstance(find_input(requested.input), PhysicalInput):
        return dataset, catalogue, paper_settings(requested)
    part = catalogue.only((*task.sources, task.target))
    if not isinstance(dataset, Folder):
        part.check()
        described = [  # without specimens, by which only a user's own recordings are split unless it is requested
            Measurement(channels={"": ChannelMeasurement(samples)}, **vars(replace(info, specimen=None)))
            for info, samples in metadata(part, cache_folder())
        ]
        problems = list[Problem]()
        settings = choose(described, task, replace(requested, channel=None), problems)
        replace(part, problems=tuple(problems)).check()  # of a published dataset nothing is left out
        return dataset, catalogue, settings
    replace(part, problems=tuple(problem for problem in part.problems if problem.domain is None)).check()

    measured, unread = measured_of(part, progress)
    problems = [*part.left_out, *(problem for problem in part.problems if problem.domain is not None), *unread]
    settings = choose(measured, task, requested, problems)
    catalogue = catalogue.leave_out(problems[len(part.left_out) :])
    return replace(dataset, channel=settings.channel), with_channel(catalogue, settings.channel), settings


def _check_rest(task: Task, rest: Measurements, problems: Sequence[Problem]) -> None:
    """Refuses a task of which a domain, or a class of the source, has lost all recordings to problems."""
    domains = {recording.domain for recording in rest}
    labels = {recording.label for recording in rest if recording.domain in task.sources}
    for problem in problems:
        gone = problem.domain in {*task.sources, task.target} - domains
        if gone or (problem.domain in task.sources and problem.label not in labels):
            lost = f"domain '{problem.domain}'" if gone else f"class '{problem.label}' of the source"
            more = f"; {len(problems) - 1} more cannot be used" if len(problems) > 1 else ""
            raise InputError(f"no recording of the {lost} can be used ({problem.sentence}){more}")
    for domain in (*task.sources, task.target):
        if domain not in domains:
            raise InputError(f"the domain '{domain}' has no recordings; put some into <{domain}>/ or choose another")


def choose(
    measurements: Measurements, task: Task, requested: Requested, problems: list[Problem] | None = None
) -> DataSettings:
    """Chooses every setting that is not requested; refuses what cannot be a task.

    A recording that cannot be used becomes one more of the `problems`.
    """
    problems = [] if problems is None else problems
    _check_rest(task, measurements, problems)
    source = [recording for recording in measurements if recording.domain in task.sources]
    classes = classes_of((recording.origin, recording.label) for recording in source)
    recordings = [*source, *(recording for recording in measurements if recording.domain == task.target)]
    channel, rate, samples = read_alike(recordings, requested.channel, requested.rate, problems)
    recordings = [recording for recording in recordings if recording.origin in samples]
    kind = suited_input(requested.input, [replace(recording, rate=rate or recording.rate) for recording in recordings])
    lengths = _lengths(recordings, rate, find_input(kind), requested.window)
    shortest = lengths[-1]
    recordings = usable(recordings, lambda item: check_length(item.origin, samples[item.origin], shortest), problems)
    _check_rest(task, recordings, problems)
    preparation = _window(task, recordings, samples, lengths, kind, rate, requested)
    made, length, step = find_input(kind), preparation.length, preparation.step

    def fits(recording: Measurement) -> None:
        made.check(length, rate or recording.rate, recording.rpm, recording.bearing)

    recordings = usable(recordings, fits, problems)
    _check_rest(task, recordings, problems)
    source = [recording for recording in recordings if recording.domain in task.sources]
    target = [recording for recording in recordings if recording.domain == task.target]
    counts = [count_windows(samples[recording.origin], length, step) for recording in [*source, *target]]
    windows = _by_class(source, samples, length, step)
    split = Split(requested.split or choose_scheme(source, target, counts, -(-length // step)))
    uneven = max(windows.values()) / min(windows.values()) > UNEVEN
    balance = uneven if requested.balance is None else requested.balance
    warnings = odd_recordings(recordings, channel)
    if split.scheme == "window" and preparation.step < preparation.length:
        shared = "test windows share samples with training windows"
        warnings.append(f"windows overlap and are split at random, so {shared}: source scores are too high")
    if single := [name for name, count in Counter(recording.label for recording in source).items() if count == 1]:
        warnings.append(f"known from a single recording each: {', '.join(map(str, single))}; others may look different")
    if alien := sorted({recording.label for recording in target if recording.label} - set(classes)):
        lacks = f"the source lacks classes of the target: {', '.join(alien)}"
        warnings.append(f"{lacks}; their windows count in no score, and get the name of another class")
    values = {
        "channel": channel or "the only one", "rate": f"{rate:g} Hz" if rate else "as recorded", "input": kind,
        "window": f"{length} samples", "stride": f"{step} samples", "split": split.scheme,
        "balance": "on" if balance else "off",
    }  # fmt: skip
    requested_names = {name for name, value in vars(requested).items() if value is not None}
    requested_names -= {"input"} if requested.input != kind else set()
    choices = tuple(Choice(name, value) for name, value in values.items() if name not in requested_names)
    return DataSettings(preparation, split, channel, balance, choices, tuple(warnings))


def _by_class(recordings: Measurements, samples: Mapping[str, int], length: int, stride: int) -> Counter[str]:
    """How many windows the recordings of each class give."""
    classes: Counter[str] = Counter()
    for recording in recordings:
        classes[str(recording.label)] += count_windows(samples[recording.origin], length, stride)
    return classes


def _lengths(recordings: Measurements, rate: float | None, kind: Input, requested: int | None) -> list[int]:
    """The lengths a window may have: the one that suits rate and speeds (a turn, or some for physical inputs), its
    half, and so on.
    """
    if requested is not None:
        return [requested]
    slowest = min((recording.rpm for recording in recordings if recording.rpm), default=None)
    turn = None if slowest is None or rate is None else rate * 60 / slowest
    if isinstance(kind, PhysicalInput):
        samples = LONGEST if rate is None else rate * ENOUGH_SECONDS if turn is None else kind.turns * turn
        length, shortest = min(1 << math.ceil(math.log2(samples)), LONGEST_PHYSICAL), max(SHORTEST, kind.shortest)
        length = max(length, 1 << math.ceil(math.log2(kind.shortest)))
    else:
        length, shortest = USUAL if turn is None else min(LONGEST, max(USUAL, 1 << round(math.log2(turn)))), SHORTEST
    return [length, *(length >> times for times in range(1, 17) if length >> times >= shortest)]


def _window(
    task: Task, recordings: Measurements, samples: Mapping[str, int], lengths: Sequence[int], kind: str,
    rate: float | None, requested: Requested,
) -> Preparation:  # fmt: skip
    """The longest sensible window, and as little overlap as gives enough windows."""
    source = [recording for recording in recordings if recording.domain in task.sources]
    target = [recording for recording in recordings if recording.domain == task.target]
    least = min(samples[recording.origin] for recording in recordings)
    enough = ENOUGH_TARGET_PHYSICAL if isinstance(find_input(kind), PhysicalInput) else ENOUGH_TARGET
    for length, part in product([length for length in lengths if length <= least], (1, 2, 4)):
        stride = requested.stride or length // part
        classes = _by_class(source, samples, length, stride)
        if min(classes.values()) >= ENOUGH and _by_class(target, samples, length, stride).total() >= enough:
            break  # the first length and stride that give enough windows, or else the last
    rare, few = classes.most_common()[-1]
    if few < FEWEST_WINDOWS:
        windows = f"{few} windows ({length} samples every {stride}), too few to learn and to test"
        raise InputError(f"class '{rare}' of the source has {windows}; record more of it, or leave it out")
    one_rate = requested.rate is None and len({recording.rate for recording in recordings}) == 1
    return Preparation(kind, length, None if stride == length else stride, None if one_rate else rate)
