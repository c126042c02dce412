"""Settings for a user's own recordings, chosen from the recordings; and what `bearcat data check` reports.

A setting that was requested is not chosen; what cannot work is refused in one sentence. Labels of the target are not
used. docs/own-data.md has the rules in words.

>>> folder, catalogue, settings = choose_settings(folder, folder.catalogue(), task, Requested(input="time"))
>>> [f"{choice.setting} {choice.value}" for choice in settings.choices]
>>> survey(Folder(Path("my-recordings")).catalogue()).notes
("600rpm/inner/3.csv: does not change (0.5 throughout); check its sensor",)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

from bearcat.data.channels import MEASURED, share_at_limits, vibrations
from bearcat.data.datasets import Catalogue, Dataset, Entry, Problem, grouped, load
from bearcat.data.folder import Folder, FolderEntry, folder_entries
from bearcat.data.inputs import Input, PhysicalInput, Preparation, find_input, suited_input
from bearcat.data.recording import Floats, RecordingInfo, check_length, classes_of, count_windows, rate_ratio
from bearcat.data.tasks import Task
from bearcat.data.windows import SCHEMES, choose_scheme
from bearcat.errors import InputError
from bearcat.findings import CLIPPED
from bearcat.settings import find_name

Result = TypeVar("Result")
Progress = Callable[[Iterable[Any]], Iterable[Any]]
USUAL, SHORTEST, LONGEST = 1024, 256, 4096  # samples a window: the paper's; the least for spectra; the most for speed
LONGEST_PHYSICAL, ENOUGH_SECONDS = 1 << 16, 0.5  # samples, and seconds, for physical inputs
ENOUGH, ENOUGH_TARGET = 50, 200  # windows of the rarest source class, and of the target
ENOUGH_TARGET_PHYSICAL = 100  # long windows are worth more than many
FEWEST_WINDOWS = 10  # of a class of the source, below which a test share of it says nothing
UNEVEN = 3.0  # the largest class over the smallest, beyond which classes are balanced
UNLABELLED = "(unlabelled)"


@dataclass(frozen=True, kw_only=True)
class Measurement(RecordingInfo):
    """What is known of a recording before anything but its channel is chosen."""

    samples: int
    oddity: str | None = None  # what a person should look at: it is constant, or clipped


Measurements = Sequence[Measurement]
Item = TypeVar("Item", FolderEntry, Entry, Measurement)


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
    split: str  # one of SCHEMES
    balance: bool
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()  # what may spoil the result


@dataclass(frozen=True)
class Survey:
    """What is there of each class (or UNLABELLED) in each domain, and what is wrong with it."""

    classes: Mapping[tuple[str, str], list[Measurement]]
    problems: tuple[Problem, ...]  # what stops the benchmark, or is left out
    notes: tuple[str, ...]  # what is good to know


def survey(
    catalogue: Catalogue, rate: float | None = None, channel: str | None = None, progress: Progress = iter
) -> Survey:
    """Reads everything in the catalogue; a file that cannot be used becomes a problem and the others go on.

    Of a user's own folder, the channel and the rate are those that `adapt` would choose.
    """
    measured, problems = list[Measurement](), list[Problem]()
    try:
        measured, channel = measure(catalogue, channel, problems, progress)
    except InputError as error:  # no channel can be chosen
        problems.append(Problem(error.field or "channel", str(error)))
    _, alike = at_one_rate(measured, rate, problems)
    good = [item for item, _ in tried(alike, lambda item: check_length(item.origin, item.samples, SHORTEST), problems)]
    groups = grouped(good, lambda item: (item.domain, item.label or UNLABELLED))
    order = product(catalogue.domains, [*catalogue.classes, UNLABELLED])
    classes = {group: groups[group] for group in order if group in groups}
    labelled = {item.domain for item in good if item.label is not None}
    unlabelled = dict.fromkeys(item.domain for item in good if item.domain not in labelled)
    notes = [f"domain '{domain}' has no labels: it can be a target, not a source" for domain in unlabelled]
    if any(item.rate is None for item in good):
        notes.append("some files do not say their sampling rate; give it in a manifest, or with --rate")
    notes = [*catalogue.notes, *notes, *odd_recordings(measured)]
    return Survey(classes, (*catalogue.problems, *problems), tuple(notes))


def tried(
    items: Iterable[Item], action: Callable[[Item], Result], problems: list[Problem]
) -> Iterator[tuple[Item, Result]]:
    """Each recording and what an action makes of it; those that it refuses become problems."""
    for item in items:
        try:
            result = action(item)
        except InputError as error:
            sentence = f"{item.origin}: {error.beside(item.origin)}"
            problems.append(Problem(item.origin, sentence, item.domain, item.label))
        else:
            yield item, result


def measure(
    catalogue: Catalogue, channel: str | None, problems: list[Problem], progress: Progress = iter
) -> tuple[list[Measurement], str | None]:
    """Measures each recording that can be read, and of a folder's the channel that is requested or that most have."""
    entries = folder_entries(catalogue)
    if entries:
        names = list(tried(progress(entries), FolderEntry.channels, problems))
        channel = usual_channel([listed for _, listed in names], channel)
        read = tried((entry for entry, _ in names), lambda entry: entry.with_channel(channel).read(), problems)
    else:
        read = tried(progress(catalogue.entries), lambda entry: entry.read(), problems)
    measured = [
        Measurement(samples=recording.signal.size, oddity=_oddity(recording.signal), **vars(recording.info()))
        for _, recording in read
    ]
    return measured, channel


def _oddity(samples: Floats) -> str | None:
    """What is odd about the beginning of a recording (time,)."""
    beginning = samples[:MEASURED]
    if beginning.min() == beginning.max():
        return f"does not change ({beginning[0]:g} throughout); check its sensor"
    if (share := share_at_limits(beginning)) > CLIPPED:
        return f"is clipped ({100 * share:.2g} % of its samples); record it again with a lower gain"
    return None


def odd_recordings(recordings: Measurements) -> list[str]:
    """A sentence for each recording that is constant or clipped."""
    return [f"{recording.origin}: {recording.oddity}" for recording in recordings if recording.oddity is not None]


def usual_channel(names: Sequence[Sequence[str]], requested: str | None) -> str | None:
    """The channel to read of all files: the vibration that most of them have; None where each has but one channel."""
    if requested is not None or all(len(channels) == 1 for channels in names):
        return requested
    counts = Counter(name for channels in names for name in channels)
    left = vibrations([name for name, count in counts.items() if count == max(counts.values())])
    if len(left) != 1:
        which = f"several channels may be the vibration: {', '.join(left)}"
        raise InputError(f"{which}; say which with --channel, or list all in a manifest")
    return left[0]


def at_one_rate(
    recordings: Measurements, requested: float | None, problems: list[Problem]
) -> tuple[float | None, list[Measurement]]:
    """The rate of the windows, and the recordings as they are at it: the lowest where recordings differ, for resampling
    up adds nothing.
    """
    rate = requested or min((recording.rate for recording in recordings if recording.rate is not None), default=None)

    def resampled(recording: Measurement) -> Measurement:
        if requested is None and rate is not None and recording.rate is None:
            advice = f"give it in a manifest's column 'rate', or for all such files with --rate {rate:g}"
            raise InputError(f"does not say its sampling rate, as others do; {advice}")
        ratio = rate_ratio(recording.origin, recording.rate, rate) if rate and recording.rate else 1
        return replace(recording, rate=rate, samples=math.ceil(recording.samples * ratio))

    return rate, [result for _, result in tried(recordings, resampled, problems)]


def paper_settings(requested: Requested) -> DataSettings:
    """The paper's settings where no others are requested: for the named datasets."""
    length = requested.window or USUAL
    preparation = Preparation(requested.input, length, requested.stride, requested.rate)
    split = find_name(requested.split or "window", SCHEMES, "split")
    return DataSettings(preparation, split, bool(requested.balance))


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
            Measurement(samples=recording.signal.size, **vars(replace(recording.info(), specimen=None)))
            for recording in load(part)
        ]
        problems = list[Problem]()
        settings = choose(described, task, requested, problems)
        replace(part, problems=tuple(problems)).check()  # of a published dataset nothing is left out
        return dataset, catalogue, settings
    replace(part, problems=tuple(problem for problem in part.problems if problem.domain is None)).check()
    problems = [*part.left_out, *(problem for problem in part.problems if problem.domain is not None)]
    measured, channel = measure(part, requested.channel, problems, progress)
    settings = choose(measured, task, requested, problems, channel)
    catalogue = catalogue.leave_out(problems[len(part.left_out) :])
    entries = tuple(entry.with_channel(channel) for entry in folder_entries(catalogue))
    return replace(dataset, channel=channel), replace(catalogue, entries=entries), settings


def _check_rest(task: Task, rest: Measurements, problems: Sequence[Problem]) -> None:
    """Refuses a task of which a domain, or a class of the source, has lost all recordings to problems."""
    domains = {recording.domain for recording in rest}
    labels = {recording.label for recording in rest if recording.domain in task.sources}
    for problem in reversed(problems):  # what was refused last explains it
        gone = problem.domain in {*task.sources, task.target} - domains
        if gone or (problem.domain in task.sources and problem.label not in labels):
            lost = f"domain '{problem.domain}'" if gone else f"class '{problem.label}' of the source"
            more = f"; {len(problems) - 1} more cannot be used" if len(problems) > 1 else ""
            raise InputError(f"no recording of the {lost} can be used ({problem.sentence}){more}")


def choose(
    measured: Measurements, task: Task, requested: Requested, problems: list[Problem], channel: str | None = None
) -> DataSettings:
    """Chooses every setting that is not requested; refuses what cannot be a task.

    A recording that cannot be used becomes one more of the `problems`. `channel` is that of the measurements.
    """

    def used(recordings: Measurements, check: Callable[[Measurement], object]) -> list[Measurement]:
        rest = [recording for recording, _ in tried(recordings, check, problems)]
        _check_rest(task, rest, problems)
        return rest

    _check_rest(task, measured, problems)
    source = [recording for recording in measured if recording.domain in task.sources]
    classes = classes_of(source)
    recordings = [*source, *(recording for recording in measured if recording.domain == task.target)]
    warnings = odd_recordings(recordings)
    rate, alike = at_one_rate(recordings, requested.rate, problems)
    left = {recording.origin for recording in alike}
    recorded_at = {recording.rate for recording in recordings if recording.origin in left}
    text = suited_input(requested.input, alike)
    kind = find_input(text)
    lengths = _lengths(alike, rate, kind, requested.window)
    alike = used(alike, lambda recording: check_length(recording.origin, recording.samples, lengths[-1]))
    length, stride = _window(task, alike, lengths, kind, requested)
    alike = used(alike, lambda recording: kind.check(length, recording.rate, recording.rpm, recording.bearing))
    source = [recording for recording in alike if recording.domain in task.sources]
    target = [recording for recording in alike if recording.domain == task.target]
    counts = [count_windows(recording.samples, length, stride) for recording in [*source, *target]]
    split = requested.split or choose_scheme(source, target, counts, -(-length // stride))
    windows = _by_class(source, length, stride)
    uneven = max(windows.values()) / min(windows.values()) > UNEVEN
    balance = uneven if requested.balance is None else requested.balance
    if split == "window" and stride < length:
        shared = "test windows share samples with training windows"
        warnings.append(f"windows overlap and are split at random, so {shared}: source scores are too high")
    if rate is None:
        warnings.append("no recording states its sampling rate, so no fault lines are read; give it (--rate)")
    if single := [name for name, count in Counter(recording.label for recording in source).items() if count == 1]:
        warnings.append(f"known from a single recording each: {', '.join(map(str, single))}; others may look different")
    if alien := sorted({recording.label for recording in target if recording.label} - set(classes)):
        lacks = f"the source lacks classes of the target: {', '.join(alien)}"
        warnings.append(f"{lacks}; their windows count in no score, and get the name of another class")
    values = {
        "channel": channel or "the only one", "rate": f"{rate:g} Hz" if rate else "as recorded", "input": text,
        "window": f"{length} samples", "stride": f"{stride} samples", "split": split,
        "balance": "on" if balance else "off",
    }  # fmt: skip
    asked = {name for name, value in vars(requested).items() if value is not None}
    asked -= {"input"} if requested.input != text else set()
    choices = tuple(Choice(name, value) for name, value in values.items() if name not in asked)
    resampled = requested.rate is not None or len(recorded_at) > 1
    preparation = Preparation(text, length, None if stride == length else stride, rate if resampled else None)
    return DataSettings(preparation, split, balance, choices, tuple(warnings))


def _by_class(recordings: Measurements, length: int, stride: int) -> Counter[str]:
    """How many windows the recordings of each class give."""
    classes: Counter[str] = Counter()
    for recording in recordings:
        classes[str(recording.label)] += count_windows(recording.samples, length, stride)
    return classes


def _lengths(recordings: Measurements, rate: float | None, kind: Input, requested: int | None) -> list[int]:
    """The lengths a window may have: the one that suits rate and speeds (a turn, or some for physical inputs), its
    half, and so on.
    """
    if requested is not None:
        return [requested]
    slowest = min((recording.rpm for recording in recordings if recording.rpm), default=None)
    turn = None if slowest is None or rate is None else rate * 60 / slowest
    shortest = max(SHORTEST, kind.shortest)
    if isinstance(kind, PhysicalInput):
        samples = LONGEST if rate is None else rate * ENOUGH_SECONDS if turn is None else kind.turns * turn
        length = max(min(samples, LONGEST_PHYSICAL), kind.shortest)
        longest = 1 << math.ceil(math.log2(length))
    else:
        longest = USUAL if turn is None else min(LONGEST, max(USUAL, 1 << round(math.log2(turn))))
    return [longest, *(longest >> times for times in range(1, 17) if longest >> times >= shortest)]


def _window(
    task: Task, recordings: Measurements, lengths: Sequence[int], kind: Input, requested: Requested
) -> tuple[int, int]:
    """Length and stride: the longest sensible window, and as little overlap as gives enough windows."""
    source = [recording for recording in recordings if recording.domain in task.sources]
    target = [recording for recording in recordings if recording.domain == task.target]
    least = min(recording.samples for recording in recordings)
    enough = ENOUGH_TARGET_PHYSICAL if isinstance(kind, PhysicalInput) else ENOUGH_TARGET
    for length, part in product([length for length in lengths if length <= least], (1, 2, 4)):
        stride = requested.stride or length // part
        classes = _by_class(source, length, stride)
        if min(classes.values()) >= ENOUGH and _by_class(target, length, stride).total() >= enough:
            break  # the first length and stride that give enough windows, or else the last
    rare, few = classes.most_common()[-1]
    if few < FEWEST_WINDOWS:
        windows = f"{few} windows ({length} samples every {stride}), too few to learn and to test"
        raise InputError(f"class '{rare}' of the source has {windows}; record more of it, or leave it out")
    return length, stride
