"""Settings for a user's own recordings: chosen from the recordings, with a reason for every choice.

A setting that was requested is not chosen; what cannot work is refused in one sentence. Labels of the target are not
used. docs/add-your-data.md has the rules in words.

>>> folder, catalogue, settings = choose_settings(folder, folder.catalogue(), task, Requested(input="time"))
>>> [f"{choice.setting}: {choice.value}, because {choice.reason}" for choice in settings.choices]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from typing import TypeVar

import numpy as np

from bearcat.data.catalogue import Catalogue, Dataset, Problem, grouped
from bearcat.data.clipping import SignalLimits
from bearcat.data.datasets.folder import Folder, FolderEntry, folder_entries, with_channel
from bearcat.data.inputs import INPUTS, PhysicalInput, find_input
from bearcat.data.prepare import Preparation, metadata
from bearcat.data.recording import RecordingInfo, count_windows, rate_ratio
from bearcat.data.signals import some_names
from bearcat.data.survey import (
    FEWEST,
    MOST_ODD,
    ChannelMeasurement,
    Measurement,
    measure,
    odd_rates,
    odd_recordings,
)
from bearcat.data.tasks import GAP, TEST_SHARE, Split, Task, classes_of
from bearcat.errors import InputError, suggest
from bearcat.settings import cache_folder, to_text

Chosen = TypeVar("Chosen")
USUAL, SHORTEST, LONGEST = 1024, 256, 4096  # samples a window: the paper's; the least for spectra; the most for speed
LONGEST_PHYSICAL, ENOUGH_SECONDS = 1 << 16, 0.5  # samples, and seconds, for physical inputs
ENOUGH, ENOUGH_TARGET = 50, 200  # windows of the rarest source class, and of the target
ENOUGH_TARGET_PHYSICAL = 100  # long windows are worth more than many
LOW_RATE = 8000.0  # Hz; impacts in rolling bearings ring at some kHz
FEWEST_WINDOWS = 10  # of a class of the source, below which a test share of it says nothing
UNEVEN = 3.0  # the largest class over the smallest, beyond which classes are balanced
STANDS_OUT = 1.1  # how much more impulsive than the next a channel must be to be chosen


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
    input: str | None = None
    balance: bool | None = None
    default_input: str = "time"  # the recipe's, where none is given

    @property
    def kind(self) -> str:
        """The input, as it was given or as the recipe has it."""
        return self.input or self.default_input


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
    preparation = Preparation(requested.kind, length, requested.stride, requested.rate)
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
    if not isinstance(dataset, Folder) and not isinstance(find_input(requested.kind), PhysicalInput):
        return dataset, catalogue, paper_settings(requested)
    part = catalogue.only((*task.sources, task.target))
    if not isinstance(dataset, Folder):
        part.check()
        described = [  # without specimens, by which only a user's own recordings are split unless it is requested
            Measurement(channels={"": ChannelMeasurement(samples, 0.0)}, **vars(replace(info, specimen=None)))
            for info, samples in metadata(part, cache_folder())
        ]
        return dataset, catalogue, choose(described, task, replace(requested, channel=None))
    replace(part, problems=tuple(problem for problem in part.problems if problem.domain is None)).check()

    def choose_of(rest: Sequence[Measurement], problems: Sequence[Problem]) -> DataSettings:
        _check_rest(task, rest, [*part.left_out, *problems])
        return choose(rest, task, requested)

    settings, problems = _without_unusable(part, progress, choose_of)
    catalogue, part = catalogue.leave_out(problems), part.leave_out(problems)
    return replace(dataset, channel=settings.channel), with_channel(catalogue, settings.channel), settings


def _without_unusable(
    catalogue: Catalogue,
    progress: Callable[[Iterable[FolderEntry]], Iterable[FolderEntry]],
    choose_of: Callable[[Sequence[Measurement], Sequence[Problem]], Chosen],
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


def _check_rest(task: Task, rest: Sequence[Measurement], problems: Sequence[Problem]) -> None:
    """Refuses a task of which a domain, or a class of the source, has lost all recordings to problems."""
    domains = {recording.domain for recording in rest}
    labels = {recording.label for recording in rest if recording.domain in task.sources}
    for problem in problems:
        if problem.domain in {*task.sources, task.target} - domains:
            lost = f"domain '{problem.domain}'"
        elif problem.domain in task.sources and problem.label not in labels:
            lost = f"class '{problem.label}' of the source"
        else:
            continue
        more = f"; {len(problems) - 1} more cannot be used" if len(problems) > 1 else ""
        raise InputError(f"no recording of the {lost} can be used ({problem.sentence}){more}")


def as_adapt_reads(
    dataset: Dataset, catalogue: Catalogue, preparation: Preparation, channel: str | None
) -> tuple[Catalogue, Preparation, list[Choice]]:
    """What `data check` looks at: of a user's own recordings, the channel and the rate that `adapt` would choose.

    What `adapt` would refuse or leave out is a problem of the catalogue.
    """
    if not isinstance(dataset, Folder):
        return catalogue, preparation, []

    def choose_of(rest: Sequence[Measurement], _: Sequence[Problem]) -> tuple[_Chooser, str | None, float | None]:
        chooser, rate = _Chooser(rest, [], Requested(channel, preparation.rate)), preparation.rate
        chosen = chooser.channel() if rest else None
        if rate is None and len({recording.rate for recording in rest}) > 1:
            rate = chooser.rate()
        return chooser, chosen, rate

    try:
        (chooser, chosen, rate), problems = _without_unusable(catalogue, iter, choose_of)
    except InputError as error:
        refused = Problem(error.field or "channel", str(error))
        return replace(catalogue, problems=(*catalogue.problems, refused)), preparation, []
    left = with_channel(catalogue.leave_out(problems), chosen)
    left = replace(left, problems=(*left.problems, *left.left_out), left_out=())
    choices = [choice for choice in chooser.choices if choice.value != "the only one"]
    return left, replace(preparation, rate=rate), choices


def choose(measurements: Sequence[Measurement], task: Task, requested: Requested) -> DataSettings:
    """Chooses every setting that is not requested; refuses what cannot be a task."""
    for domain in (*task.sources, task.target):
        if not any(recording.domain == domain for recording in measurements):
            raise InputError(f"the domain '{domain}' has no recordings; put some into <{domain}>/ or choose another")
    source = [recording for recording in measurements if recording.domain in task.sources]
    target = [recording for recording in measurements if recording.domain == task.target]
    classes = classes_of((recording.origin, recording.label) for recording in source)
    chooser = _Chooser(source, target, requested)
    channel, rate = chooser.channel(), chooser.rate()
    limits, problems = list[tuple[RecordingInfo, SignalLimits]](), dict[str, str]()
    for recording in chooser.all:
        measured = recording.channels.get(channel or "") or next(iter(recording.channels.values()))
        limits += [(recording, measured.limits)] if measured.limits is not None else []
        try:
            ratio = rate_ratio(recording.origin, recording.rate, rate) if rate and recording.rate else Fraction(1)
            chooser.samples[recording.origin] = math.ceil(measured.samples * ratio)
        except InputError as error:
            problems[recording.origin] = str(error)
        if measured.problem is not None:
            problems[recording.origin] = measured.problem
    if problems:
        raise UnusableError(problems)
    chooser.warnings += odd_recordings(limits)
    preparation = chooser.window(rate, chooser.input(rate))
    wrong = dict[str, InputError]()
    for recording in chooser.all:
        try:
            own = recording.rate if rate is None else rate
            find_input(preparation.input).check(preparation.length, own, recording.rpm, recording.bearing)
        except InputError as error:
            wrong[recording.origin] = error
    if wrong:
        first = next(iter(wrong.values()))
        raise UnusableError({origin: f"{origin}: {error}" for origin, error in wrong.items()}, first.field)
    split, balance = chooser.split(preparation), chooser.balance(preparation)
    recordings = Counter(str(recording.label) for recording in source)
    if single := [name for name, count in recordings.items() if count == 1]:
        names = ", ".join(single)
        chooser.warnings.append(f"known from a single recording each: {names}; others of them may look different")
    if alien := sorted({recording.label for recording in target if recording.label} - set(classes)):
        lacks = f"the source lacks classes of the target: {', '.join(alien)}"
        chooser.warnings.append(f"{lacks}; their windows count in no score, and get the name of another class")
    return DataSettings(preparation, split, channel, balance, tuple(chooser.choices), tuple(chooser.warnings))


def suited_input(text: str, recordings: Sequence[RecordingInfo]) -> tuple[str, Choice]:
    """The input that these recordings allow, as text, and the reason where there was a choice."""
    chosen, reason = find_input(text).suited(recordings)
    text = to_text(chosen, INPUTS) if reason else text
    return text, Choice("input", text, reason)


@dataclass
class _Chooser:
    """Makes one choice after the other, and collects their reasons and warnings."""

    source: Sequence[Measurement]
    target: Sequence[Measurement]
    requested: Requested
    choices: list[Choice] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    samples: dict[str, int] = field(default_factory=dict)  # of each recording at the rate of the windows

    def __post_init__(self) -> None:
        self.all = [*self.source, *self.target]

    def choose(self, setting: str, value: str, reason: str) -> None:
        """Keeps a choice and its reason, unless the setting was requested."""
        if getattr(self.requested, setting) is None:
            self.choices.append(Choice(setting, value, reason))

    def counts(self, length: int, stride: int) -> tuple[list[int], Counter[str], int]:
        """How many windows each recording, each class of the source, and the target give."""
        of = {origin: count_windows(samples, length, stride) for origin, samples in self.samples.items()}
        classes: Counter[str] = Counter()
        for recording in self.source:
            classes[str(recording.label)] += of[recording.origin]
        return list(of.values()), classes, sum(of[recording.origin] for recording in self.target)

    def channel(self) -> str | None:
        """The channel to read of all files; None where each has but one (or the manifest says which)."""
        if self.requested.channel is not None:
            return self.requested.channel
        first, *others = self.all
        if all(len(recording.channels) == 1 for recording in self.all):
            self.choose("channel", "the only one", "each recording has one")
            return None
        common = [name for name in first.channels if all(name in recording.channels for recording in others)]
        if not common:
            names = Counter(name for recording in self.all for name in recording.channels)
            usual, _ = names.most_common(1)[0]
            lacking = [recording for recording in self.all if usual not in recording.channels]
            if self._few(len(lacking)):
                has_none = f"has no channel '{usual}', as {names[usual]} others have"
                raise UnusableError({
                    recording.origin: f"{recording.origin}: {has_none}{suggest(usual, recording.channels)}"
                    for recording in lacking
                })  # fmt: skip
            other = min(others, key=lambda recording: len(recording.channels.keys() & first.channels.keys()))
            lists = "; ".join(f"{each.origin}: {some_names(each.channels)}" for each in (first, other))
            raise InputError(f"no channel is in all recordings ({lists}); name them alike, or list them in a manifest")
        alone = common[0], "it is the only one that all recordings have"
        channel, reason = self._most_impulsive(common) if len(common) > 1 else alone
        self.choose("channel", channel, reason)
        return channel

    def _few(self, odd: int) -> bool:
        """Whether so many recordings are so few beside the others that they decide nothing for all."""
        return 0 < odd <= max(1, MOST_ODD * len(self.all)) and len(self.all) - odd >= FEWEST - 1

    def _most_impulsive(self, common: Sequence[str]) -> tuple[str, str]:
        """The channel that stands out, and why; refuses where none does."""
        impulsive: dict[str, float] = {}
        left_out = ""
        for name in common:
            measured = [recording.channels[name] for recording in self.all if not recording.channels[name].problem]
            unlike = [channel.unlike for channel in measured if channel.unlike]
            if unlike and not self._few(len(unlike)):
                left_out += f"; '{name}' {unlike[0]}"
            elif measured:  # many may be of healthy bearings, so the upper quartile is taken and not the median
                impulsive[name] = float(np.quantile([channel.impulsiveness for channel in measured], 0.75))
        ranked = sorted(impulsive, key=impulsive.__getitem__, reverse=True)
        values = ", ".join(f"{name} {impulsive[name]:.1f}" for name in ranked) or "none is a vibration"
        if len(ranked) == 1:
            return ranked[0], f"it is the only one that looks like a vibration{left_out}"
        if not ranked or impulsive[ranked[0]] < STANDS_OUT * impulsive[ranked[1]]:
            listed = f"no channel of ({', '.join(common)}) stands out (kurtosis: {values}{left_out})"
            raise InputError(f"{listed}; say which with --channel, or take all with --channels together or apart")
        faults = "bearing faults are trains of impacts (kurtosis above an eighth of the rate"
        return ranked[0], f"it is the most impulsive, and {faults}: {values}){left_out}"

    def rate(self) -> float | None:
        """The rate of the windows: the lowest where recordings differ, for resampling up adds nothing."""
        silent = [recording for recording in self.all if recording.rate is None]
        stating = [recording for recording in self.all if recording.rate is not None]
        if self.requested.rate is None and self._few(len(stating)):
            advice = "; give the rate of all in a manifest's column 'rate', or with --rate"
            raise UnusableError({
                each.origin: f"{each.origin}: is at {each.rate:g} Hz, and the others do not say their rate{advice}"
                for each in stating
            })  # fmt: skip
        rates = sorted({recording.rate for recording in self.all if recording.rate is not None})
        listed = ", ".join(f"{rate:g}" for rate in rates)
        odd = list(odd_rates(self.all))  # of which none decides for all
        usual = Counter(recording.rate for recording in self.all).most_common(1)[0][0]
        rate = self.requested.rate or (usual if odd else rates[0] if rates else None)
        if rate is None:
            self.choose("rate", "as recorded", "no file says its rate; windows are counted in samples; --rate sets it")
            return None
        if self.requested.rate is not None and rates and rate > rates[0]:
            self.warnings.append(f"resampling from {rates[0]:g} Hz up to {rate:g} Hz adds no content")
        if silent and self.requested.rate is None:
            advice = f"give it in a manifest's column 'rate', or for all such files with --rate {rate:g}"
            lacks = f"does not say its sampling rate, as others do ({listed} Hz); {advice}"
            if self._few(len(silent)):
                raise UnusableError({recording.origin: f"{recording.origin}: {lacks}" for recording in silent})
            raise InputError(f"{silent[0].origin}: {lacks}")
        elif len(rates) == 1:
            self.choose("rate", f"as recorded, {rate:g} Hz", "all recordings have it")
        elif odd:
            self.choose("rate", f"{rate:g} Hz", f"all but {len(odd)} of {len(self.all)} recordings have it")
        else:
            lowest = " and ".join(sorted({recording.domain for recording in self.all if recording.rate == rate}))
            lost = f"resampling up adds no content; content above {rate / 2:g} Hz of the faster recordings is lost"
            self.choose("rate", f"{rate:g} Hz", f"it is the lowest of {listed} (in {lowest}), and {lost}")
        if rate < LOW_RATE:
            missed = "most resonances of bearing faults lie above 2 kHz; early faults may be missed"
            self.warnings.append(f"at {rate:g} Hz nothing above {rate / 2:g} Hz is recorded, and {missed}")
        return rate

    def input(self, rate: float | None) -> str:
        """The input for recordings at this rate, to which they are brought."""
        recordings = [replace(recording, rate=rate or recording.rate) for recording in self.all]
        chosen, choice = suited_input(self.requested.kind, recordings)
        if self.requested.input is None or choice.reason:
            self.choices.append(replace(choice, reason=choice.reason or "the method is made for it"))
        return chosen

    def _wanted(self, rate: float | None, physical: PhysicalInput | None) -> tuple[int, str]:
        """The length of a window that suits rate and speeds: of a turn, or, for physical inputs, of some; and why."""
        slowest = min((recording.rpm for recording in self.all if recording.rpm), default=None)
        turn = None if slowest is None or rate is None else rate * 60 / slowest
        if physical is None:
            length = USUAL if turn is None else min(LONGEST, max(USUAL, 1 << round(math.log2(turn))))
            reason = "the paper's; shaft speeds, which might ask for more, are not known"
        elif rate is None:
            length, reason = LONGEST, "the rate is not known; longer windows show lower frequencies"
        else:
            wanted = rate * ENOUGH_SECONDS if turn is None else physical.turns * turn
            length = min(1 << math.ceil(math.log2(wanted)), LONGEST_PHYSICAL)
            turns = f"{ENOUGH_SECONDS:g} s hold two turns from {120 / ENOUGH_SECONDS:g} rpm up"
            reason = f"shaft speeds are not known, and {turns}"
        if turn is not None:
            share = f"this is {length / turn:.1f} turns"
            reason = f"at {slowest:g} rpm a turn of the shaft takes {turn:.0f} samples, and {share}"
        if physical is not None and length < physical.shortest:
            length = 1 << math.ceil(math.log2(physical.shortest))
            reason += f"; {physical.shortest} samples are the least for this input"
        return length, reason

    def window(self, rate: float | None, kind: str) -> Preparation:
        """The longest sensible window, and as little overlap as gives enough windows."""
        chosen = find_input(kind)
        physical = chosen if isinstance(chosen, PhysicalInput) else None
        wanted, reason = self._wanted(rate, physical)
        lengths = [self.requested.window or wanted]
        while not self.requested.window and lengths[-1] // 2 >= max(SHORTEST, physical.shortest if physical else 0):
            lengths.append(lengths[-1] // 2)
        shortest = min(self.samples, key=self.samples.__getitem__)
        least = self.samples[shortest]
        if least < lengths[-1]:
            sizes = {origin: size for origin, size in self.samples.items() if size < lengths[-1]}
            advice = f"are fewer than one window of {lengths[-1]}; use a shorter window or leave the recording out"
            raise UnusableError({origin: f"{origin}: {size} samples {advice}" for origin, size in sizes.items()})
        enough = ENOUGH_TARGET if physical is None else ENOUGH_TARGET_PHYSICAL
        for length, part in product([length for length in lengths if length <= least], (1, 2, 4)):
            stride = self.requested.stride or length // part
            _, classes, of_target = self.counts(length, stride)
            if min(classes.values()) >= ENOUGH and of_target >= enough:
                break  # the first length and stride that give enough windows, or else the last
        rare, few = classes.most_common()[-1]
        if few < FEWEST_WINDOWS:
            more = f"record at least {(FEWEST_WINDOWS - 1) * stride + length} samples of it, or leave the class out"
            windows = f"{few} windows ({length} samples every {stride})"
            raise InputError(f"class '{rare}' of the source has {windows}, too few to learn and to test; {more}")
        short = f"recordings are short (the shortest, {shortest}, has {least} samples)"
        reason = reason if length == wanted else f"{short} and longer windows would be too few"
        self.choose("window", f"{length} samples", reason)
        overlap = f"{stride} samples, {100 * (length - stride) // length} % overlap"
        windows = f"{few} windows of the rarest class '{rare}' and {of_target} of the target"
        self.choose("stride", "no overlap" if stride == length else overlap, f"it gives {windows}")
        one_rate = self.requested.rate is None and len({recording.rate for recording in self.all}) == 1
        return Preparation(kind, length, None if stride == length else stride, None if one_rate else rate)

    def split(self, preparation: Preparation) -> Split:
        """Stretches of time where recordings are long enough, whole recordings where there are many short ones."""
        split = Split(self.requested.split or "block")
        if self.requested.split is None:
            counts, *_ = self.counts(preparation.length, preparation.step)
            gap = GAP + math.ceil(preparation.length / preparation.step) - 1
            blocks = all(count >= max(1, round(TEST_SHARE * count)) + 2 * gap + 1 for count in counts)
            fewest = min(Counter(recording.label for recording in self.source).values())
            if blocks and self._other_specimens():
                split, reason = (
                    Split("specimen"),
                    "all recordings say their specimen, so some are kept whole for testing",
                )
            elif blocks and np.median(counts) >= 10 * gap:
                reason = "a stretch of every recording is kept for testing, away from the windows trained on"
            elif fewest >= 5 and len(self.target) >= 10:
                split, reason = Split("recording"), "recordings are short and many, so some are kept whole for testing"
            elif blocks:
                reason = "a stretch of every recording is kept for testing; they are short, so gaps cost many windows"
            else:
                split, reason = Split("window"), "recordings are too short to keep a stretch of each apart"
            self.choose("split", split.scheme, reason)
        if split.scheme == "window" and preparation.step < preparation.length:
            shared = "test windows share samples with training windows"
            self.warnings.append(f"windows overlap and are split at random, so {shared}: source scores are too high")
        return split

    def _other_specimens(self) -> bool:
        """Whether each class of the source has two specimens or more, and the target has others; all must be known."""
        classes = grouped(self.source, lambda recording: recording.label).values()
        names = [{recording.specimen for recording in mine} for mine in (*classes, self.target)]
        known, several = None not in set.union(*names), all(len(mine) > 1 for mine in names[:-1])
        return known and several and set.union(*names[:-1]).isdisjoint(names[-1])

    def balance(self, preparation: Preparation) -> bool:
        """Whether to balance classes: where they are very uneven."""
        if self.requested.balance is not None:
            return self.requested.balance
        _, classes, _ = self.counts(preparation.length, preparation.step)
        (largest, most), *_, (smallest, least) = classes.most_common()
        uneven = most / least > UNEVEN
        reason = f"class '{largest}' has {most / least:.1f} times the windows of '{smallest}'"
        drawn = "; each class is drawn equally often, and counts equally in calibration" if uneven else ""
        self.choose("balance", "on" if uneven else "off", reason + drawn)
        return uneven
