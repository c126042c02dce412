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
from bearcat.data.inputs import PhysicalInput, Preparation, find_input, suited_input
from bearcat.data.recording import count_windows
from bearcat.data.splits import choose_scheme
from bearcat.data.survey import (
    ChannelMeasurement,
    Measurement,
    Measurements,
    Progress,
    all_usable,
    check_length,
    measured_of,
    odd_recordings,
    usual_channel,
    usual_rate,
    without_unusable,
)
from bearcat.data.tasks import Split, Task, classes_of
from bearcat.data.windows import metadata
from bearcat.errors import InputError
from bearcat.settings import cache_folder

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
        return dataset, catalogue, choose(described, task, replace(requested, channel=None))
    replace(part, problems=tuple(problem for problem in part.problems if problem.domain is None)).check()

    measured, unread = measured_of(part, progress)
    known = [*part.left_out, *(problem for problem in part.problems if problem.domain is not None), *unread]
    settings, unusable = without_unusable(measured, lambda rest, lost: choose(rest, task, requested, [*known, *lost]))
    catalogue = catalogue.leave_out([*known[len(part.left_out) :], *unusable])
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
    measurements: Measurements, task: Task, requested: Requested, problems: Sequence[Problem] = ()
) -> DataSettings:
    """Chooses every setting that is not requested; refuses what cannot be a task, for lack of those with problems."""
    _check_rest(task, measurements, problems)
    source = [recording for recording in measurements if recording.domain in task.sources]
    target = [recording for recording in measurements if recording.domain == task.target]
    classes, recordings = classes_of((recording.origin, recording.label) for recording in source), [*source, *target]
    channel, rate = usual_channel(recordings, requested.channel), usual_rate(recordings, requested.rate)
    samples = dict[str, int]()

    def count(recording: Measurement) -> None:
        samples[recording.origin] = recording.samples(channel, rate)

    all_usable(recordings, count)
    kind = suited_input(requested.input, [replace(each, rate=rate or each.rate) for each in recordings])
    preparation = _window(source, target, samples, kind, rate, requested)
    made, length, step = find_input(kind), preparation.length, preparation.step
    all_usable(recordings, lambda each: made.check(length, rate or each.rate, each.rpm, each.bearing))
    counts, windows = _counts(recordings, samples, length, step), _by_class(source, samples, length, step)
    split = Split(requested.split or choose_scheme(source, target, counts, -(-length // step)))
    uneven = max(windows.values()) / min(windows.values()) > UNEVEN
    balance = uneven if requested.balance is None else requested.balance
    warnings = odd_recordings(recordings, channel)
    if split.scheme == "window" and preparation.step < preparation.length:
        shared = "test windows share samples with training windows"
        warnings.append(f"windows overlap and are split at random, so {shared}: source scores are too high")
    if single := [name for name, count in Counter(each.label for each in source).items() if count == 1]:
        warnings.append(f"known from a single recording each: {', '.join(map(str, single))}; others may look different")
    if alien := sorted({recording.label for recording in target if recording.label} - set(classes)):
        lacks = f"the source lacks classes of the target: {', '.join(alien)}"
        warnings.append(f"{lacks}; their windows count in no score, and get the name of another class")
    values = {
        "channel": channel or "the only one", "rate": f"{rate:g} Hz" if rate else "as recorded", "input": kind,
        "window": f"{length} samples", "stride": f"{step} samples", "split": split.scheme,
        "balance": "on" if balance else "off",
    }  # fmt: skip
    given = {name for name, value in vars(requested).items() if value is not None}
    given -= {"input"} if requested.input != kind else set()
    choices = tuple(Choice(name, value) for name, value in values.items() if name not in given)
    return DataSettings(preparation, split, channel, balance, choices, tuple(warnings))


def _counts(recordings: Measurements, samples: Mapping[str, int], length: int, stride: int) -> list[int]:
    """(recording,) how many windows each gives."""
    return [count_windows(samples[recording.origin], length, stride) for recording in recordings]


def _by_class(source: Measurements, samples: Mapping[str, int], length: int, stride: int) -> Counter[str]:
    """How many windows each class gives."""
    classes: Counter[str] = Counter()
    for recording, count in zip(source, _counts(source, samples, length, stride), strict=True):
        classes[str(recording.label)] += count
    return classes


def _wanted(recordings: Measurements, rate: float | None, physical: PhysicalInput | None) -> int:
    """The length of a window that suits rate and speeds: of a turn, or, for physical inputs, of some."""
    slowest = min((recording.rpm for recording in recordings if recording.rpm), default=None)
    turn = None if slowest is None or rate is None else rate * 60 / slowest
    if physical is None:
        return USUAL if turn is None else min(LONGEST, max(USUAL, 1 << round(math.log2(turn))))
    wanted = LONGEST if rate is None else rate * ENOUGH_SECONDS if turn is None else physical.turns * turn
    length = min(1 << math.ceil(math.log2(wanted)), LONGEST_PHYSICAL)
    return max(length, 1 << math.ceil(math.log2(physical.shortest)))


def _window(
    source: Measurements, target: Measurements, samples: Mapping[str, int], kind: str, rate: float | None,
    requested: Requested,
) -> Preparation:  # fmt: skip
    """The longest sensible window, and as little overlap as gives enough windows."""
    chosen, recordings = find_input(kind), [*source, *target]
    physical = chosen if isinstance(chosen, PhysicalInput) else None
    lengths = [requested.window or _wanted(recordings, rate, physical)]
    while not requested.window and lengths[-1] // 2 >= max(SHORTEST, physical.shortest if physical else 0):
        lengths.append(lengths[-1] // 2)
    all_usable(recordings, lambda each: check_length(each.origin, samples[each.origin], lengths[-1]))
    least = min(samples.values())
    enough = ENOUGH_TARGET if physical is None else ENOUGH_TARGET_PHYSICAL
    for length, part in product([length for length in lengths if length <= least], (1, 2, 4)):
        stride = requested.stride or length // part
        classes = _by_class(source, samples, length, stride)
        if min(classes.values()) >= ENOUGH and sum(_counts(target, samples, length, stride)) >= enough:
            break  # the first length and stride that give enough windows, or else the last
    rare, few = classes.most_common()[-1]
    if few < FEWEST_WINDOWS:
        windows = f"{few} windows ({length} samples every {stride}), too few to learn and to test"
        raise InputError(f"class '{rare}' of the source has {windows}; record more of it, or leave it out")
    one_rate = requested.rate is None and len({recording.rate for recording in recordings}) == 1
    return Preparation(kind, length, None if stride == length else stride, None if one_rate else rate)
