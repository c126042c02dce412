"""From windows to a task: labelled source, unlabelled target, and what is held back for evaluation.

Target labels cannot leak: nothing reachable from `TrainingData` knows a target label, a target file's name, or an order
that follows either. Where the paper stratifies by class, the target is stratified by recording (docs/protocol.md).

>>> split = split_task(Task("load0", "load3"), source, target, "block", seed=0)
>>> train(split.training)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from bearcat.data.datasets import grouped
from bearcat.data.recording import (
    ONE_BEARING,
    Floats,
    Integers,
    RecordingInfo,
    Windows,
    classes_of,
    healthy_class,
    of_recordings,
)
from bearcat.data.windows import SCHEMES, check_one_rate, keep_apart, parts_by_scheme, parts_by_specimen
from bearcat.errors import InputError
from bearcat.settings import find_name

UNKNOWN = -1  # the code of a target label that is no class of the source
GROUPS = ("specimen", "machine")  # of a shift: what none of is on both sides
SAME_BEARINGS = "recognises these bearings; other bearings are not tested"
UNKNOWN_BEARINGS = "which bearings these are is not known; other bearings are not tested"
SENTENCES = {"condition": SAME_BEARINGS, "unknown": UNKNOWN_BEARINGS}  # by shift


@dataclass(frozen=True)
class Task:
    """Learn from these domains, adapt to that one.

    >>> str(Task(("600rpm", "900rpm"), "1200rpm"))
    '600rpm+900rpm→1200rpm'
    """

    source: str | tuple[str, ...]
    target: str

    def __post_init__(self) -> None:
        if self.target in self.sources:
            raise InputError(f"the target '{self.target}' is a source too; choose two different domains")

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source

    def __str__(self) -> str:
        return f"{'+'.join(self.sources)}→{self.target}"


@dataclass(frozen=True)
class Mix:
    """Which classes a labelled target holds and how many recordings, to try what plants have (docs/protocol.md).

    "healthy" is the class called healthy or normal, "rest" all that are not named. Labels only choose windows here.
    """

    keep: tuple[str, ...] = ()  # the target's classes; none: all
    without: tuple[str, ...] = ()  # classes that the target lacks
    unknown: tuple[str, ...] = ()  # classes that the source lacks
    recordings: tuple[tuple[str, int], ...] = ()  # at most so many of each class, drawn from the seed; "rest" together
    # A class, or the name of a target recording of a healthy machine, known while training and left out of evaluation.
    reference: str = ""

    def __post_init__(self) -> None:
        for name, number in self.recordings:
            if number < 1:
                raise InputError(f"the number of recordings of '{name}' must be at least 1, not {number}")

    def __str__(self) -> str:
        parts = [f"{'+'.join(self.keep)} only"] if self.keep else []
        parts += [f"without {'+'.join(self.without)}"] if self.without else []
        parts += [f"unknown {'+'.join(self.unknown)}"] if self.unknown else []
        parts += [f"{number} {name}" for name, number in self.recordings]
        parts += [f"reference {self.reference}"] if self.reference else []
        return "; ".join(parts)

    def spelled(self, labels: Sequence[str]) -> Mix:
        """With the names that these labels have; a name that none of them has is refused."""

        def spelling(name: str) -> str:
            if name == "rest":
                return name
            return (healthy_class(labels) if name == "healthy" else None) or find_name(name, labels, "class")

        keep, without, unknown = (tuple(map(spelling, names)) for names in (self.keep, self.without, self.unknown))
        numbers = tuple((spelling(name), number) for name, number in self.recordings)
        return replace(self, keep=keep, without=without, unknown=unknown, recordings=numbers)


def _not_known() -> Integers:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Windows with labels; recordings and domains are empty where they are not known."""

    values: Floats  # (window, channel, time)
    labels: Integers  # (window,) codes into the task's classes
    recording: Integers = field(default_factory=_not_known)  # (window,) an index into `SplitTask.source.recordings`
    domain: Integers = field(default_factory=_not_known)  # (window,) the number of the source domain

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Windows in random order; recordings and references are empty where they are not known."""

    values: Floats  # (window, channel, time)
    recording: Integers = field(default_factory=_not_known)  # (window,) an index into `SplitTask.target_order`
    reference: Integers = field(default_factory=_not_known)  # (window,) the class given by `Mix.reference`, or UNKNOWN
    anchor: Integers = field(default_factory=_not_known)  # (window,) the class that physics is certain of, or UNKNOWN

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """All that the training loop is given."""

    classes: tuple[str, ...]
    source_train: Labelled
    source_test: Labelled
    target_train: Unlabelled


@dataclass(frozen=True, eq=False)
class HeldBack:
    """For evaluation only. Codes are UNKNOWN where there is no label or the source lacks its class."""

    target_test: Windows
    target_test_labels: Integers
    target_train_labels: Integers  # in the order of TrainingData.target_train, for the accuracy of pseudo-labels


@dataclass(frozen=True, eq=False)
class SplitTask:
    """Which windows of a task are for training and which for testing: indices into the windows of its two sides."""

    task: Task
    classes: tuple[str, ...]
    source: Windows
    target: Windows
    source_train: Integers
    source_test: Integers
    target_train: Integers
    target_test: Integers
    target_order: Integers  # the target's recordings in the random order in which training knows them
    reference: Integers = field(default_factory=_not_known)  # (window of the target,) as in `Unlabelled`
    notes: tuple[str, ...] = ()  # what the split had to divide or to leave out

    @cached_property
    def shift(self) -> str:
        """What differs between source and target.

        "machine": no machine is on both sides; "specimen": no specimen is, but perhaps the healthy one; "condition":
        the same specimens are, or the target has none of its own; "unknown": some recordings do not say their specimen.
        """
        specimens, machines = (
            [{getattr(info, name) for info in side.recordings} for side in (self.source, self.target)]
            for name in GROUPS
        )
        known = None not in specimens[0] | specimens[1]
        if self._shared_faults or (known and specimens[1] <= specimens[0]):
            return "condition" if known else "unknown"
        if None not in machines[0] | machines[1] and machines[0].isdisjoint(machines[1]):
            return "machine"
        return "specimen" if known else "unknown"

    @property
    def trust_shift(self) -> str:
        """The kind of past runs by which estimates are judged: the shift, or ONE_BEARING of a class in the source."""
        if self.shift not in GROUPS:
            return self.shift
        classes = grouped(self.source.recordings, lambda info: str(info.label))
        healthy = healthy_class(tuple(classes))
        # Where specimens are not said, machines tell bearings apart.
        bearings = {label: {(info.machine, info.specimen) for info in infos} for label, infos in classes.items()}
        several = all(len(names) > 1 for label, names in bearings.items() if label != healthy)
        return self.shift if several else ONE_BEARING

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the split leaves untested."""
        source, target, warnings = self.source.recordings, self.target.recordings, list(self.notes)
        if self.shift in SENTENCES:
            warnings.append(SAME_BEARINGS if self._shared_faults else SENTENCES[self.shift])
        listed = {info.origin for info in target}
        if both := list(dict.fromkeys(info.origin for info in source if info.origin in listed)):
            more = f" and {len(both) - 1} more" if len(both) > 1 else ""
            divides = "the split 'specimen' divides such recordings"
            warnings.append(f"{both[0]}{more}: in the source and in the target; {divides}")
        return tuple(warnings)

    @cached_property
    def _shared_faults(self) -> bool:
        """Whether a specimen of a fault is known to be on both sides."""
        in_target = {info.specimen for info in self.target.recordings if info.specimen}
        shared = {str(info.label) for info in self.source.recordings if info.specimen in in_target}
        return bool(shared - {healthy_class(tuple(shared))})

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of a window and of the parts to train with: runs in which recipe, classes and these agree form a stack."""
        parts = self.source_train, self.source_test, self.target_train
        return *self.source.values.shape[1:], *map(len, parts)

    @cached_property
    def held_back(self) -> HeldBack:
        codes = _codes(self.target, self.classes)
        return HeldBack(self.target[self.target_test], codes[self.target_test], codes[self.target_train])

    @cached_property
    def training(self) -> TrainingData:
        """Arrays that own their memory: there is no way back from them to the array, or the file, they come from."""
        codes, source, number = _codes(self.source, self.classes), self.source.recording, np.argsort(self.target_order)
        domain = np.array([self.task.sources.index(recording.domain) for recording in self.source.recordings])

        def labelled(index: Integers) -> Labelled:
            where = source[index]
            return Labelled(np.take(self.source.values, index, axis=0), codes[index], where, domain[where])

        recording = number[self.target.recording[self.target_train]]
        reference = self.reference[self.target_train] if len(self.reference) else self.reference
        target = Unlabelled(np.take(self.target.values, self.target_train, axis=0), recording, reference)
        return TrainingData(self.classes, labelled(self.source_train), labelled(self.source_test), target)


def split_task(task: Task, source: Windows, target: Windows, scheme: str, seed: int) -> SplitTask:
    """Splits the windows of source and target into train and test by one of SCHEMES; "specimen" also keeps source and
    target apart (docs/protocol.md). Target windows of a class that the source lacks count in no score.

    >>> catalogue = Simulated(seconds=1.0, faults=("outer",)).catalogue()
    >>> source, target = (prepare(load(catalogue, [name]), Preparation()) for name in catalogue.domains[:2])
    >>> split = split_task(Task(*catalogue.domains[:2]), source, target, "window", seed=0)
    >>> len(split.source_train), len(split.source_test), len(split.target_train)
    (48, 12, 48)
    """
    scheme = find_name(scheme, SCHEMES, "split")
    infos = (*source.recordings, *target.recordings)
    check_one_rate(infos)
    if source.values.shape[1:] != target.values.shape[1:]:
        raise InputError(f"source and target of {task} have windows of different shape; prepare them the same way")
    classes = classes_of(source.recordings)
    notes = list[str]()
    if scheme == "specimen":
        *used, divided = keep_apart(source.recordings, target.recordings, np.random.default_rng([seed, 5]))
        source, target = of_recordings(source, used[0]), of_recordings(target, used[1])
        source_train, source_test = parts_by_specimen(source, np.random.default_rng([seed, 0]))
        if divided:
            single = "their recordings are divided, other bearings are not tested"
            notes.append(f"one specimen each: {', '.join(map(repr, divided))}; {single}")
        if lost := {info.origin for info in infos} - {info.origin for info in (*source.recordings, *target.recordings)}:
            notes.append(f"{len(lost)} recordings are left out, so that no specimen is on both sides")
        scheme = "block"  # the target's recordings may be seen before they are diagnosed
    else:
        codes = _codes(source, classes)
        source_train, source_test = parts_by_scheme(source, codes, scheme, np.random.default_rng([seed, 0]))
    parts = source_train, source_test, *parts_by_scheme(target, None, scheme, np.random.default_rng([seed, 1]))
    # Recordings are listed by class, so their own numbers would tell the labels.
    target_order = np.random.default_rng([seed, 2]).permutation(len(target.recordings))
    return SplitTask(task, classes, source, target, *parts, target_order, notes=tuple(notes))


def mixed_task(task: Task, source: Windows, target: Windows, scheme: str, seed: int, mix: Mix) -> SplitTask:
    """The split of a task whose target holds other classes or shares, or some known recordings (`Mix`)."""
    labels = dict.fromkeys(str(info.label) for info in (*source.recordings, *target.recordings) if info.label)
    mix = mix.spelled(tuple(labels))
    in_source = [info.label not in mix.unknown for info in source.recordings]
    labels_left = set(mix.keep or (info.label for info in target.recordings)) - set(mix.without)
    in_target = [info.label in labels_left for info in target.recordings]
    if not any(in_target):
        raise InputError(f"the target '{task.target}' holds nothing of what is to be kept ({mix}); keep other classes")
    source, target = of_recordings(source, in_source), of_recordings(target, in_target)
    full = split_task(task, source, target, scheme, seed)
    if mix.recordings:
        full = _with_fewer(full, mix, np.random.default_rng([seed, 6]))
    target, train, test = full.target, full.target_train, full.target_test  # some recordings may have been left out
    codes = references(mix, target.recordings, full.classes, task.target)
    known, reference = np.isin(target.recording, list(codes)), np.full(len(target), UNKNOWN)
    for number, code in codes.items():
        reference[target.recording == number] = code
    if not known.all():  # or nothing would be left to evaluate with
        train, test = np.union1d(train, np.flatnonzero(known)), test[~known[test]]
    train = np.random.default_rng([seed, 4]).permutation(np.sort(train))
    reference = reference if mix.reference else _not_known()
    return replace(full, target_train=train, target_test=test, reference=reference)


def _with_fewer(split: SplitTask, mix: Mix, random: np.random.Generator) -> SplitTask:
    """The split with so many recordings of the target's classes, drawn at random; the others are in no part."""
    numbers, drawn = dict(mix.recordings), np.ones(len(split.target.recordings), dtype=bool)
    groups = np.array([info.label if info.label in numbers else "rest" for info in split.target.recordings])
    for name, number in numbers.items():
        drawn[random.permutation(np.flatnonzero(groups == name))[number:]] = False
    windows = drawn[split.target.recording]
    window_number, recording_number = np.cumsum(windows) - 1, np.cumsum(drawn) - 1
    train, test = (window_number[part[windows[part]]] for part in (split.target_train, split.target_test))
    order = recording_number[split.target_order[drawn[split.target_order]]]
    target = of_recordings(split.target, drawn.tolist())
    return replace(split, target=target, target_train=train, target_test=test, target_order=order)


def references(mix: Mix, recordings: Sequence[RecordingInfo], classes: tuple[str, ...], domain: str) -> dict[int, int]:
    """The recordings that the reference names, by number, and their classes."""
    if not mix.reference:
        return {}
    name, healthy = mix.reference, healthy_class(classes)
    label = healthy if name == "healthy" and healthy is not None else name
    if numbers := [number for number, info in enumerate(recordings) if info.label == label and label in classes]:
        return dict.fromkeys(numbers, classes.index(label))
    matching = [number for number, info in enumerate(recordings) if f"/{info.origin}".endswith(f"/{name}")]
    if len(matching) != 1 or healthy is None or recordings[matching[0]].label not in (None, healthy):
        meant = f"must be a class, or the name of one healthy recording, of the target '{domain}'"
        raise InputError(f"--reference: '{name}' {meant}; of a name give more of the path")
    return {matching[0]: classes.index(healthy)}


def _codes(windows: Windows, classes: tuple[str, ...]) -> Integers:
    code = {label: number for number, label in enumerate(classes)}
    codes = [code.get(recording.label or "", UNKNOWN) for recording in windows.recordings]
    return np.array(codes, dtype=np.int64)[windows.recording]
