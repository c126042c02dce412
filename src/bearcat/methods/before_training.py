"""What is done to the windows before training: standardising them, and windows of other benches that join the source.

Levels of a physical input differ between speeds, loads and machines by an offset and a factor in each point. Where the
target holds the source's classes in the source's shares, standardising each domain by itself removes both; where it
does not (a target that is all healthy), it shifts healthy windows to the source's faults, and `by="source"`, which
adapts nothing, is the safe choice.

A source of few bearings teaches their own marks: where one outer race shows no line, "no line" becomes a sign of outer
races. So windows drawn from other benches' states are learnt beside them. states.safetensors holds, for each state of
each bench, the mean of windows, the directions in which they scatter most and the scatter that is left, of the input
`bearing-orders` standardised by that bench; draws are put where the source's mean and scale are. The target is not
used. `python benchmarks/general_model.py DATA --write` makes the file; docs/results.md says what it is worth.

>>> RECIPES["unseen-bearings"].with_settings({"known-states.without": "cwru"})   # as `adapt` and grids do on CWRU
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bearcat.cat.ingredient import BeforeTraining, Prepared, TargetFinding, choice
from bearcat.cat.networks import InputScaling
from bearcat.data import tasks
from bearcat.errors import InputError
from bearcat.settings import find_name

if TYPE_CHECKING:
    from bearcat.cat.recipes import Recipe
    from bearcat.data.inputs import Input

STATES_FILE = Path(__file__).parents[1] / "general" / "states.safetensors"
AXES = 16  # directions of scatter that are kept of a state
MOST_STATES = 48  # of the source; where it has more recordings, those of a class that are alike are one state
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Standardise(BeforeTraining):
    """Shifts and scales the points of prepared windows; the model keeps how.

    >>> Recipe((Standardise("source"),)).adapts
    False
    """

    name = "standardise"
    by: str = choice("source", "domain", default="domain")

    @property
    def adapts(self) -> bool:
        return self.by == "domain"

    def prepare(self, data: tasks.TrainingData) -> Prepared:
        """The model scales by the target's statistics; the source is shifted so that this scales it by its own."""
        parts = data.source_train, data.source_test
        mean, deviation = _statistics(parts[0].values if self.by == "source" else data.target_train.values)
        if self.by == "domain":
            shifted = [part.values.copy() for part in parts]
            domains = [part.domain if len(part.domain) else np.zeros(len(part)) for part in parts]
            for domain in np.unique(domains[0]):
                own_mean, own_deviation = _statistics(parts[0].values[domains[0] == domain])
                for values, of_window in zip(shifted, domains, strict=True):
                    members = of_window == domain
                    values[members] = (values[members] - own_mean) / own_deviation * deviation + mean
            train, test = (replace(part, values=values) for part, values in zip(parts, shifted, strict=True))
            data = replace(data, source_train=train, source_test=test)
        # A point that is zero in every window has been ignored; the network is not to read it later.
        ignored = ~np.any([(part.values != 0).any(axis=0) for part in (parts[0], data.target_train)], axis=0)
        factor = np.where(ignored, 0, 1 / deviation).astype(np.float32)
        scaling = InputScaling(torch.from_numpy(mean)[None], torch.from_numpy(factor)[None])
        return Prepared(data, scaling)


def _statistics(values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and deviation of each point, (channel, point); a point that never changes keeps its scale."""
    mean, deviation = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
    constant = deviation <= 1e-6 * np.abs(mean)
    return mean.astype(np.float32), np.where(constant, 1, deviation).astype(np.float32)


@dataclass(frozen=True, eq=False)
class StateShape:
    """Windows of one state on one bench, standardised by the bench: a mean, directions of scatter, and the rest."""

    mean: Floats  # (point,)
    axes: Floats  # (axis, point), as long as windows scatter along them
    rest: Floats  # (point,) deviation that the axes leave

    @staticmethod
    def of(windows: Floats) -> StateShape:
        """Of standardised windows (window, point)."""
        mean = windows.mean(axis=0)
        _, lengths, axes = np.linalg.svd(windows - mean, full_matrices=False)
        axes = axes[:AXES] * (lengths[:AXES, None] / np.sqrt(len(windows)))
        rest = np.sqrt(np.maximum((windows - mean).var(axis=0) - (axes**2).sum(axis=0), 0))
        return StateShape(mean, axes, rest)

    def draw(self, number: int, random: np.random.Generator) -> Floats:
        """(window, point)"""
        along = random.standard_normal((number, len(self.axes))) @ self.axes
        return np.asarray(self.mean + along + random.standard_normal((number, self.mean.size)) * self.rest)


@cache
def shipped_states() -> tuple[str, dict[str, dict[str, StateShape]]]:
    """The input that the states were measured with, and the states of each bench."""
    from bearcat.storage import load_tensors

    tensors, metadata = load_tensors(STATES_FILE)
    benches: dict[str, dict[str, StateShape]] = {}
    for bench, state in metadata["states"]:
        parts = (tensors[f"{bench}/{state}/{part}"].double().numpy() for part in ("mean", "axes", "rest"))
        benches.setdefault(bench, {})[state] = StateShape(*parts)
    return metadata["input"], benches


@dataclass(frozen=True, kw_only=True)
class JoinedStates(TargetFinding):
    """Which states of which benches joined the source."""

    states: tuple[str, ...]
    benches: tuple[str, ...]

    @property
    def sentence(self) -> str:
        if not self.states:
            return (
                "Not adapted: nothing known of other benches fits the names of two classes, so none joins the source."
            )
        return f"Not adapted: learnt from the source and from {', '.join(self.states)} of {' and '.join(self.benches)}."


@dataclass(frozen=True)
class KnownStates(BeforeTraining):
    """Windows of the states of other benches join the source's, class by class, where names of classes say states.

    >>> RECIPES["unseen-bearings"].find(KnownStates).without
    ()
    """

    name = "known-states"
    adapts = False
    without: tuple[str, ...] = ()  # benches that are left out, so that the recipe can be tested on them

    def __post_init__(self) -> None:
        for name in self.without:
            find_name(name, tuple(shipped_states()[1]), "bench")

    def for_input(self, kind: Input) -> KnownStates:
        from bearcat.data.inputs import find_input

        if kind != find_input(shipped_states()[0]):
            raise InputError(f"known states of other benches are of the input '{shipped_states()[0]}'; use it", "input")
        return self

    def prepare(self, data: tasks.TrainingData) -> Prepared:
        """The same for all runs: draws depend on nothing but the source."""
        shapes, codes = self._shapes(data), state_codes(data.classes)
        finding = JoinedStates(
            adapted=False, states=tuple(dict.fromkeys(state for _, state, _ in shapes)),
            benches=tuple(dict.fromkeys(bench for bench, _, _ in shapes)),
        )  # fmt: skip
        if not shapes:
            return Prepared(data, finding=finding)
        source, random = data.source_train, np.random.default_rng(0)
        mean, scale = source.values.mean(axis=0, dtype=np.float64), source.values.std(axis=0, dtype=np.float64)
        states = [state for _, state, _ in shapes]
        # A class gets as many windows as the source's classes have on average, however many benches know it.
        average = len(source) / len(data.classes)
        numbers = [max(1, round(average / states.count(state))) for state in states]
        drawn = [shape.draw(number, random) for number, (_, _, shape) in zip(numbers, shapes, strict=True)]
        values = np.concatenate(drawn).reshape(-1, *mean.shape) * scale + mean
        labels = np.repeat([codes[state] for state in states], numbers)
        groups = np.repeat(np.arange(len(shapes)), numbers)
        added = joined(source, values.astype(np.float32), labels, groups)
        return Prepared(replace(data, source_train=added), finding=finding)

    def _shapes(self, data: tasks.TrainingData) -> list[tuple[str, str, StateShape]]:
        """Bench, state and shape of what joins: none where fewer than two classes stand for a state."""
        codes, shapes = state_codes(data.classes), list[tuple[str, str, StateShape]]()
        for bench, states in shipped_states()[1].items():
            if bench not in self.without:
                shapes += [(bench, state, shape) for state, shape in states.items() if state in codes]
        return shapes if len({state for _, state, _ in shapes}) > 1 else []


def without_own_benches(recipe: Recipe, dataset: str) -> Recipe:
    """The recipe without what it knows of the benches of a named dataset, on which it would be tested."""
    known = recipe.find(KnownStates)
    if known is None or known.without:
        return recipe
    every = shipped_states()[1]
    own = tuple(name for name in every if name == dataset or name.startswith(f"{dataset}-"))
    return recipe.change(known.name, without=tuple(every) if dataset == "across-machines" else own)


def state_codes(classes: tuple[str, ...]) -> dict[str, int]:
    """The class that stands for each state, where exactly one does."""
    from bearcat.diagnosis.physics import state_of

    states = [state_of(name) for name in classes]
    return {state: code for code, state in enumerate(states) if state is not None and states.count(state) == 1}


def joined(
    source: tasks.Labelled, values: NDArray[np.float32], labels: NDArray[np.int64], groups: NDArray[np.int64]
) -> tasks.Labelled:
    """The source's windows and these; each group of them is as of one more recording and domain."""

    def with_groups(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([numbers, numbers.max() + 1 + groups]) if len(numbers) else numbers

    return replace(
        source, values=np.concatenate([source.values, values]), labels=np.concatenate([source.labels, labels]),
        recording=with_groups(source.recording), domain=with_groups(source.domain),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class States:
    """The source's states, each of one class: its classes or, where one has several recordings in a domain, these."""

    owner: Integers  # (state,) the class of each
    train: Integers  # (window,) the state of each of the source's windows, UNKNOWN of recordings not trained with
    test: Integers

    @property
    def several(self) -> bool:
        """Whether a class has several."""
        return len(np.unique(self.owner)) < len(self.owner)

    @staticmethod
    def of_classes(data: tasks.TrainingData) -> States:
        return States(np.arange(len(data.classes)), data.source_train.labels, data.source_test.labels)


def has_several_states(source: tasks.Labelled) -> bool:
    """Whether a class has several recordings in a domain."""
    if not len(source.recording):
        return False
    domain = source.domain if len(source.domain) else np.zeros_like(source.recording)
    recordings = np.unique(np.stack([source.labels, domain, source.recording]), axis=1)
    return bool(np.unique(recordings[:2], axis=1).shape[1] < recordings.shape[1])


def source_states(data: tasks.TrainingData) -> States:
    """The source's recordings as states; of a class with more than its part of MOST_STATES, alike ones are merged."""
    from scipy.cluster.hierarchy import fcluster, linkage

    source, test, classes = data.source_train, data.source_test, len(data.classes)
    if not has_several_states(source):
        return States.of_classes(data)
    numbers, place = np.unique(source.recording, return_inverse=True)
    flat = source.values.reshape(len(source), -1)
    deviation = flat.std(axis=0)
    means = np.array([flat[place == number].mean(axis=0) for number in range(len(numbers))])
    means = means / np.where(deviation > 0, deviation, 1)
    labels = np.array([source.labels[place == number][0] for number in range(len(numbers))])
    state, owner = np.zeros(len(numbers), dtype=np.int64), list[int]()
    for code in range(classes):
        mine = np.flatnonzero(labels == code)
        merged: NDArray[Any] = np.arange(len(mine))
        if len(mine) > MOST_STATES // classes:
            merged = fcluster(linkage(means[mine], "average"), MOST_STATES // classes, "maxclust") - 1
        state[mine] = len(owner) + merged
        owner += [code] * (int(merged.max()) + 1)
    of_recording = dict(zip(numbers.tolist(), state.tolist(), strict=True))
    of_test = np.array([of_recording.get(number, tasks.UNKNOWN) for number in test.recording.tolist()], dtype=np.int64)
    return States(np.array(owner), state[place], of_test)
