"""Settings for a user's own recordings: chosen from the recordings, with a reason for every choice.

A setting that was requested is not chosen; what cannot work is refused in one sentence. Labels of the target are not
used. docs/own-data.md has the rules in words.

>>> folder, catalogue, settings = choose_settings(folder, folder.catalogue(), task, Requested(input="time"))
>>> [f"{choice.setting}: {choice.value}, because {choice.reason}" for choice in settings.choices]
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
from bearcat.data.clipping import SignalLimits
from bearcat.data.datasets.folder import Folder, FolderEntry, folder_entries, with_channel
from bearcat.data.inputs import INPUTS, PhysicalInput, find_input
from bearcat.data.prepare import Preparation, metadata
from bearcat.data.recording import RecordingInfo, count_windows, rate_ratio
from bearcat.data.splits import choose_scheme
from bearcat.data.survey import ChannelMeasurement, Measurement, measure, odd_rates, odd_recordings
from bearcat.data.tasks import Split, Task, classes_of
from bearcat.errors import InputError
from bearcat.settings import cache_folder, to_text

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
    """One setting that was not requested, and why it is what it is."""

    setting: str
    value: str
    reason: str


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
) -> tuple[Catalogue, Preparation, list[Choice]]:
    """What `data check` looks at: of a user's own recordings, the channel and the rate that `adapt` would choose.

    What `adapt` would refuse or leave out is a problem of the catalogue.
    """
    if not isinstance(dataset, Folder):
        return catalogue, preparation, []

    def choose_of(rest: Measurements, _: Sequence[Problem]) -> tuple[Choice, Choice, str | None, float | None]:
        (chosen, why_channel), (rate, why_rate) = _channel(rest, channel), _rate(rest, preparation.rate)
        return why_channel, why_rate, chosen, rate

    try:
        (*choices, chosen, rate), problems = _without_unusable(catalogue, iter, choose_of)
    except InputError as error:
        refused = Problem(error.field or "channel", str(error))
        return replace(catalogue, problems=(*catalogue.problems, refused)), preparation, []
    left = with_channel(catalogue.leave_out(problems), chosen)
    left = replace(left, problems=(*left.problems, *left.left_out), left_out=())
    return left, replace(preparation, rate=rate), [choice for choice in choices if choice.reason]


def choose(
    measurements: Measurements, task: Task, requested: Requested, problems: Sequence[Problem] = ()
) -> DataSettings:
    """Chooses every setting that is not requested; refuses what cannot be a task, for lack of those with problems."""
    _check_rest(task, measurements, problems)
    source = [recording for recording in measurements if recording.domain in task.sources]
    target = [recording for recording in measurements if recording.domain == task.target]
    classes, recordings = classes_of((recording.origin, recording.label) for recording in source), [*source, *target]
    channel, why_channel = _channel(recordings, requested.channel)
    rate, why_rate = _rate(recordings, requested.rate)
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
    why_input = suited_input(requested.input, [replace(each, rate=rate or each.rate) for each in recordings])
    preparation, why_window = _window(sizes, why_input.value, rate, requested)
    made, length = find_input(preparation.input), preparation.length
    _all_usable(recordings, lambda each: made.check(length, rate or each.rate, each.rpm, each.bearing))
    counts, *_ = sizes.windows(length, preparation.step)
    scheme, why_split = choose_scheme(source, target, counts, -(-length // preparation.step))
    split = Split(requested.split or scheme)
    balance, why_balance = _balance(sizes, preparation)
    given = {name for name, value in vars(requested).items() if value is not None} - {"input"}
    choices = (why_channel, why_rate, why_input, *why_window, Choice("split", scheme, why_split), why_balance)
    warnings = odd_recordings(limits)
    if split.scheme == "window" and preparation.step < preparation.length:
        shared = "test windows share samples with training windows"
        warnings.append(f"windows overlap and are split at random, so {shared}: source scores are too high")
    if single := [name for name, count in Counter(each.label for each in source).items() if count == 1]:
        warnings.append(f"known from a single recording each: {', '.join(map(str, single))}; others may look different")
    if alien := sorted({recording.label for recording in target if recording.label} - set(classes)):
        lacks = f"the source lacks classes of the target: {', '.join(alien)}"
        warnings.append(f"{lacks}; their windows count in no score, and get the name of another class")
    return DataSettings(
        preparation,
        split,
        channel,
        balance if requested.balance is None else requested.balance,
        tuple(choice for choice in choices if choice.reason and choice.setting not in given),
        tuple(warnings),
    )


def suited_input(text: str, recordings: Sequence[RecordingInfo]) -> Choice:
    """The input that these recordings allow, as text, and the reason where there was a choice."""
    chosen, reason = find_input(text).suited(recordings)
    return Choice("input", to_text(chosen, INPUTS) if reason else text, reason)


def _channel(recordings: Measurements, requested: str | None) -> tuple[str | None, Choice]:
    """The channel to read of all files; None where each has but one (or the manifest says which)."""
    if requested is not None:
        return requested, Choice("channel", requested, "")
    if all(len(recording.channels) == 1 for recording in recordings):
        return None, Choice("channel", "the only one", "each recording has one")
    names = Counter(name for recording in recordings for name in recording.channels)
    common = [name for name, count in names.items() if count == len(recordings)]
    if not common:
        usual, count = names.most_common(1)[0]
        lacks = f"has no channel '{usual}', as {count} others have"
        _refuse([recording for recording in recordings if usual not in recording.channels], lacks)
    left, lost = list[str](), ""
    for name in common:
        unlike = [why for recording in recordings if (why := recording.channels[name].unlike)]
        if 2 * len(unlike) > len(recordings):
            lost += f"; '{name}' {unlike[0]}"
        else:
            left.append(name)
    if len(left) != 1:
        which = f"several channels may be the vibration: {', '.join(left)}" if left else "no channel is a vibration"
        raise InputError(f"{which}{lost}; say which with --channel, or list all in a manifest")
    return left[0], Choice("channel", left[0], f"it is the only vibration that all recordings have{lost}")


def _rate(recordings: Measurements, requested: float | None) -> tuple[float | None, Choice]:
    """The rate of the windows: the lowest where recordings differ, for resampling up adds nothing."""
    if requested is not None:
        return requested, Choice("rate", f"{requested:g} Hz", "")
    rates = sorted({recording.rate for recording in recordings if recording.rate is not None})
    if not rates:
        return None, Choice("rate", "as recorded", "no file says its rate; windows are counted in samples")
    odd = list(odd_rates(recordings))  # of which none decides for all
    usual = Counter(recording.rate for recording in recordings).most_common(1)[0][0]
    rate = (odd and usual) or rates[0]
    if silent := [recording for recording in recordings if recording.rate is None]:
        advice = f"give it in a manifest's column 'rate', or for all such files with --rate {rate:g}"
        _refuse(silent, f"does not say its sampling rate, as others do; {advice}")
    if len(rates) == 1:
        return rate, Choice("rate", f"as recorded, {rate:g} Hz", "all recordings have it")
    lost = f"it is the lowest; content above {rate / 2:g} Hz of the faster recordings is lost"
    return rate, Choice("rate", f"{rate:g} Hz", "nearly all recordings have it" if odd else lost)


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


def _wanted(sizes: _Sizes, rate: float | None, physical: PhysicalInput | None) -> tuple[int, str]:
    """The length of a window that suits rate and speeds: of a turn, or, for physical inputs, of some; and why."""
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
    if turn is None:
        return length, "rate or shaft speeds, by which it would be chosen, are not known"
    return length, f"at {slowest:g} rpm this is {length / turn:.1f} turns of the shaft"


def _window(
    sizes: _Sizes, kind: str, rate: float | None, requested: Requested
) -> tuple[Preparation, tuple[Choice, Choice]]:
    """The longest sensible window, and as little overlap as gives enough windows."""
    chosen = find_input(kind)
    physical = chosen if isinstance(chosen, PhysicalInput) else None
    wanted, reason = _wanted(sizes, rate, physical)
    lengths = [requested.window or wanted]
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
    if length != wanted:
        reason = f"the shortest recording has {least} samples, and longer windows would be too few"
    overlap = f"{stride} samples, {100 * (length - stride) // length} % overlap"
    windows = f"it gives {few} windows of the rarest class '{rare}' and {of_target} of the target"
    step = Choice("stride", "no overlap" if stride == length else overlap, windows)
    one_rate = requested.rate is None and len({recording.rate for recording in sizes.both}) == 1
    preparation = Preparation(kind, length, None if stride == length else stride, None if one_rate else rate)
    return preparation, (Choice("window", f"{length} samples", reason), step)


def _balance(sizes: _Sizes, preparation: Preparation) -> tuple[bool, Choice]:
    """Whether to draw each class equally often: where they are very uneven."""
    _, classes, _ = sizes.windows(preparation.length, preparation.step)
    (largest, most), *_, (smallest, least) = classes.most_common()
    reason = f"class '{largest}' has {most / least:.1f} times the windows of '{smallest}'"
    return most / least > UNEVEN, Choice("balance", "on" if most / least > UNEVEN else "off", reason)
