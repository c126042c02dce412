"""Settings for a user's own recordings, chosen from the recordings.

A setting that was requested is not chosen; what cannot work is refused in one sentence. Labels of the target are not
used. docs/own-data.md has the rules in words.

>>> folder, catalogue, settings = choose_settings(folder, folder.catalogue(), task, Requested(input="time"))
>>> [f"{choice.setting} {choice.value}" for choice in settings.choices]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import NoReturn, TypeVar

from bearcat.data.catalogue import Catalogue, Dataset, Problem
from bearcat.data.folder import Folder, FolderEntry, folder_entries, with_channel
from bearcat.data.inputs import PhysicalInput, find_input, suited_input
from bearcat.data.recording import RecordingInfo, count_windows, rate_ratio
from bearcat.data.signals import SignalLimits
from bearcat.data.splits import choose_scheme
from bearcat.data.survey import ChannelMeasurement, Measurement, measure, odd_rates, odd_recordings
from bearcat.data.tasks import Split, Task, classes_of
from bearcat.data.windows import Preparation, metadata
from bearcat.errors import InputError
from bearcat.settings import cache_folder

Chosen = TypeVar("Chosen")
Measurements = Sequence[Measurement]
USUAL, SHORTEST, LONGEST = 1024, 256, 4096  # samples a window: the paper's; the least for spectra; the most for speed
LONGEST_PHYSICAL, ENOUGH_SECONDS = 1 << 16, 0.5  # samples, and seconds, for physical inputs
ENOUGH, ENOUGH_TARGET = 50, 200  # windows of the rarest source class, and of the target
ENOUGH_TARGET_PHYSICAL = 100  # long windows are worth more than many
FEWEST_WINDOWS = 10  # of a class of the source, below which a test share of it says nothing
UNEVEN = 3.0  # the largest class over the smallest, beyond which classes are balanced


class UnusableError(InputError):
    """Recordings that cannot be used, by name, with a sentence each; without them the others may go on."""

    def __init__(self, problems: Mapping[str, str], field: str | None = None) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(next(iter(problems.values())) + more, field)
        self.problems = problems


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
    dataset: Dataset,
    catalogue: Catalogue,
    task: Task,
    requested: Requested,
    progress: Callable[[Iterable[FolderEntry]], Iterable[FolderEntry]] = iter,
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

    def choose_of(rest: Measurements, problems: Sequence[Problem]) -> DataSettings:
        return choose(rest, task, requested, [*part.left_out, *problems])

    settings, problems = _without_unusable(part, progress, choose_of)
    catalogue = catalogue.leave_out(problems)
    return replace(dataset, channel=settings.channel), with_channel(catalogue, settings.channel), settings


def _without_unusable(
    catalogue: Catalogue,
    progress: Callable[[Iterable[FolderEntry]], Iterable[FolderEntry]],
    choose_of: Callable[[Measurements, Sequence[Problem]], Chosen],
) -> tuple[Chosen, list[Problem]]:
    """What is chosen from the recordings of a folder that can be used, and a problem for each of the others."""
    rest, problems = dict[str, Measurement](), [problem for problem in catalogue.problems if problem.domain is not None]
    for entry in progress(folder_entries(catalogue)):
        try:
            rest[entry.origin] = measure(entry)
        except InputError as error:
            problems.append(Problem(entry.origin, str(error), entry.domain, entry.label))
    while True:
        try:
            return choose_of(list(rest.values()), problems), problems
        except UnusableError as error:
            if len(error.problems) == len(rest):
                raise
            unusable = ((rest.pop(origin), sentence) for origin, sentence in error.problems.items())
            problems += [Problem(info.origin, sentence, info.domain, info.label) for info, sentence in unusable]


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


def as_adapt_reads(
    dataset: Dataset, catalogue: Catalogue, preparation: Preparation, channel: str | None
) -> tuple[Catalogue, Preparation]:
    """What `data check` looks at: of a user's own recordings, the channel and the rate that `adapt` would choose.

    What `adapt` would refuse or leave out is a problem of the catalogue.
    """
    if not isinstance(dataset, Folder):
        return catalogue, preparation

    def choose_of(rest: Measurements, _: Sequence[Problem]) -> tuple[str | None, float | None]:
        return _channel(rest, channel), _rate(rest, preparation.rate)

    try:
        (chosen, rate), problems = _without_unusable(catalogue, iter, choose_of)
    except InputError as error:
        refused = Problem(error.field or "channel", str(error))
        return replace(catalogue, problems=(*catalogue.problems, refused)), preparation
    left = with_channel(catalogue.leave_out(problems), chosen)
    left = replace(left, problems=(*left.problems, *left.left_out), left_out=())
    return left, replace(preparation, rate=rate)


def choose(
    measurements: Measurements, task: Task, requested: Requested, problems: Sequence[Problem] = ()
) -> DataSettings:
    """Chooses every setting that is not requested; refuses what cannot be a task, for lack of those with problems."""
    _check_rest(task, measurements, problems)
    source = [recording for recording in measurements if recording.domain in task.sources]
    target = [recording for recording in measurements if recording.domain == task.target]
    classes, recordings = classes_of((recording.origin, recording.label) for recording in source), [*source, *target]
    channel, rate = _channel(recordings, requested.channel), _rate(recordings, requested.rate)
    samples, limits = dict[str, int](), list[tuple[RecordingInfo, SignalLimits]]()

    def count(recording: Measurement) -> None:
        found = recording.channels.get(channel or "") or next(iter(recording.channels.values()))
        limits.extend([(recording, found.limits)] if found.limits is not None else [])
        if found.problem is not None:
            raise InputError(found.problem)
        ratio = rate_ratio(recording.origin, recording.rate, rate) if rate and recording.rate else Fraction(1)
        samples[recording.origin] = math.ceil(found.samples * ratio)

    _all_usable(recordings, count)
    sizes = _Sizes(source, target, samples)
    kind = suited_input(requested.input, [replace(each, rate=rate or each.rate) for each in recordings])
    preparation = _window(sizes, kind, rate, requested)
    made, length, step = find_input(kind), preparation.length, preparation.step
    _all_usable(recordings, lambda each: made.check(length, rate or each.rate, each.rpm, each.bearing))
    counts, windows, _ = sizes.windows(length, step)
    split = Split(requested.split or choose_scheme(source, target, counts, -(-length // step)))
    uneven = max(windows.values()) / min(windows.values()) > UNEVEN
    balance = uneven if requested.balance is None else requested.balance
    warnings = odd_recordings(limits)
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


def _channel(recordings: Measurements, requested: str | None) -> str | None:
    """The channel to read of all files; None where each has but one (or the manifest says which)."""
    if requested is not None or all(len(recording.channels) == 1 for recording in recordings):
        return requested
    names = Counter(name for recording in recordings for name in recording.channels)
    common = [name for name, count in names.items() if count == len(recordings)]
    if not common:
        usual, count = names.most_common(1)[0]
        lacks = f"has no channel '{usual}', as {count} others have"
        _refuse([recording for recording in recordings if usual not in recording.channels], lacks)
    left = []
    for name in common:
        unlike = sum(recording.channels[name].unlike is not None for recording in recordings)
        left += [name] if 2 * unlike <= len(recordings) else []
    if len(left) != 1:
        which = f"several channels may be the vibration: {', '.join(left)}" if left else "no channel is a vibration"
        raise InputError(f"{which}; say which with --channel, or list all in a manifest")
    return left[0]


def _rate(recordings: Measurements, requested: float | None) -> float | None:
    """The rate of the windows: the lowest where recordings differ, for resampling up adds nothing."""
    rates = sorted({recording.rate for recording in recordings if recording.rate is not None})
    if requested is not None or not rates:
        return requested
    usual = Counter(recording.rate for recording in recordings).most_common(1)[0][0]
    rate = usual if any(odd_rates(recordings)) and usual is not None else rates[0]  # an odd one decides for none
    if silent := [recording for recording in recordings if recording.rate is None]:
        advice = f"give it in a manifest's column 'rate', or for all such files with --rate {rate:g}"
        _refuse(silent, f"does not say its sampling rate, as others do; {advice}")
    return rate


def _refuse(recordings: Measurements, sentence: str) -> NoReturn:
    """Refuses these recordings for one reason."""
    raise UnusableError({recording.origin: f"{recording.origin}: {sentence}" for recording in recordings})


def _all_usable(recordings: Measurements, check: Callable[[Measurement], None]) -> None:
    """Refuses, together, the recordings that a check refuses."""
    wrong = dict[str, InputError]()
    for recording in recordings:
        try:
            check(recording)
        except InputError as error:
            wrong[recording.origin] = error
    if wrong:
        texts = {origin: str(error) for origin, error in wrong.items()}
        named = {origin: text if text.startswith(origin) else f"{origin}: {text}" for origin, text in texts.items()}
        raise UnusableError(named, next(iter(wrong.values())).field)


@dataclass(frozen=True)
class _Sizes:
    """The recordings of both sides, and how many samples they have at the rate of the windows."""

    source: Measurements
    target: Measurements
    samples: Mapping[str, int]

    @property
    def both(self) -> Measurements:
        return [*self.source, *self.target]

    def windows(self, length: int, stride: int) -> tuple[list[int], Counter[str], int]:
        """How many each recording, each class of the source, and the target give."""
        of = {origin: count_windows(samples, length, stride) for origin, samples in self.samples.items()}
        classes: Counter[str] = Counter()
        for recording in self.source:
            classes[str(recording.label)] += of[recording.origin]
        return list(of.values()), classes, sum(of[recording.origin] for recording in self.target)


def _wanted(sizes: _Sizes, rate: float | None, physical: PhysicalInput | None) -> int:
    """The length of a window that suits rate and speeds: of a turn, or, for physical inputs, of some."""
    slowest = min((recording.rpm for recording in sizes.both if recording.rpm), default=None)
    turn = None if slowest is None or rate is None else rate * 60 / slowest
    if physical is None:
        length = USUAL if turn is None else min(LONGEST, max(USUAL, 1 << round(math.log2(turn))))
    elif rate is None:
        length = LONGEST
    else:
        wanted = rate * ENOUGH_SECONDS if turn is None else physical.turns * turn
        length = min(1 << math.ceil(math.log2(wanted)), LONGEST_PHYSICAL)
    if physical is not None and length < physical.shortest:
        length = 1 << math.ceil(math.log2(physical.shortest))
    return length


def _window(sizes: _Sizes, kind: str, rate: float | None, requested: Requested) -> Preparation:
    """The longest sensible window, and as little overlap as gives enough windows."""
    chosen = find_input(kind)
    physical = chosen if isinstance(chosen, PhysicalInput) else None
    lengths = [requested.window or _wanted(sizes, rate, physical)]
    while not requested.window and lengths[-1] // 2 >= max(SHORTEST, physical.shortest if physical else 0):
        lengths.append(lengths[-1] // 2)

    def long_enough(recording: Measurement) -> None:
        if (size := sizes.samples[recording.origin]) < lengths[-1]:
            few = f"{size} samples are fewer than one window of {lengths[-1]}"
            raise InputError(f"{few}; use a shorter window or leave the recording out")

    _all_usable(sizes.both, long_enough)
    least = min(sizes.samples.values())
    enough = ENOUGH_TARGET if physical is None else ENOUGH_TARGET_PHYSICAL
    for length, part in product([length for length in lengths if length <= least], (1, 2, 4)):
        stride = requested.stride or length // part
        _, classes, of_target = sizes.windows(length, stride)
        if min(classes.values()) >= ENOUGH and of_target >= enough:
            break  # the first length and stride that give enough windows, or else the last
    rare, few = classes.most_common()[-1]
    if few < FEWEST_WINDOWS:
        windows = f"{few} windows ({length} samples every {stride}), too few to learn and to test"
        raise InputError(f"class '{rare}' of the source has {windows}; record more of it, or leave it out")
    one_rate = requested.rate is None and len({recording.rate for recording in sizes.both}) == 1
    return Preparation(kind, length, None if stride == length else stride, None if one_rate else rate)
