"""What bearings look like elsewhere: windows of healthy, inner, outer and ball on test benches join the source.

A source of few bearings teaches their own marks: where one outer race shows no line, "no line" becomes a sign of outer
races. So windows drawn from other benches' states are learnt beside them. states.safetensors holds, for each state of
each bench, the mean of windows, the directions in which they scatter most and the scatter that is left, of the input
`bearing-orders` standardised by that bench; draws are put where the source's mean and scale are. The target is not
used. `python benchmarks/general_model.py DATA --write` makes the file; docs/results.md says what it is worth.

>>> RECIPES["unseen-bearings"].with_settings({"known-states.without": "cwru"})   # to test it on that bench
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError
from bearcat.methods.ingredient import BeforeTraining, Finding, Prepared

if TYPE_CHECKING:
    from bearcat.data.inputs import Input
    from bearcat.data.tasks import Labelled, TrainingData

STATES_FILE = Path(__file__).parents[1] / "general" / "states.safetensors"
AXES = 16  # directions of scatter that are kept of a state
Floats = NDArray[np.float64]


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
class JoinedStates(Finding):
    """Which states of which benches joined the source."""

    states: tuple[str, ...]
    benches: tuple[str, ...]

    @property
    def sentence(self) -> str:
        if not self.states:
            return "Not adapted: no class name says healthy, inner race, outer race or ball, so no other bench helps."
        return f"Not adapted: learnt from the source and from {', '.join(self.states)} of {' and '.join(self.benches)}."


@dataclass(frozen=True)
class KnownStates(BeforeTraining):
    """Windows of the states of other benches join the source's, class by class, where names of classes say states."""

    name = "known-states"
    share: float = 1.0  # windows drawn, over the source's own
    without: str = ""  # a bench that is left out, so that the recipe can be tested on it

    def __post_init__(self) -> None:
        if not 0 < self.share <= 10:
            raise InputError(f"setting 'known-states.share' must lie above 0 and at most at 10, not at {self.share:g}")

    @property
    def adapts(self) -> bool:
        return False

    def for_input(self, kind: Input) -> KnownStates:
        from bearcat.data.inputs import find_input

        if kind != find_input(shipped_states()[0]):
            raise InputError(f"known states of other benches are of the input '{shipped_states()[0]}'; use it", "input")
        return self

    def prepare(self, data: TrainingData) -> Prepared:
        """The same for all runs: draws depend on nothing but the source."""
        chosen, codes = self._chosen(data), state_codes(data.classes)
        finding = JoinedStates(
            adapted=False, states=tuple(dict.fromkeys(state for _, state, _ in chosen)),
            benches=tuple(dict.fromkeys(bench for bench, _, _ in chosen)),
        )  # fmt: skip
        if not chosen:
            return Prepared(data, finding=finding)
        source, random = data.source_train, np.random.default_rng(0)
        mean, scale = source.values.mean(axis=0, dtype=np.float64), source.values.std(axis=0, dtype=np.float64)
        each = self._each(data, len(chosen))
        drawn = [shape.draw(each, random).reshape(each, *mean.shape) for _, _, shape in chosen]
        values = (np.concatenate(drawn) * scale + mean).astype(np.float32)
        labels = np.repeat([codes[state] for _, state, _ in chosen], each)
        return Prepared(replace(data, source_train=joined(source, values, labels, each)), finding=finding)

    def source_windows(self, data: TrainingData) -> int:
        number = len(self._chosen(data))
        return len(data.source_train) + number * self._each(data, number)

    def _chosen(self, data: TrainingData) -> list[tuple[str, str, StateShape]]:
        """Bench, state and shape of what joins."""
        benches, codes = shipped_states()[1], state_codes(data.classes)
        every = ((bench, state, shape) for bench, states in benches.items() for state, shape in states.items())
        return [(bench, state, shape) for bench, state, shape in every if bench != self.without and state in codes]

    def _each(self, data: TrainingData, number: int) -> int:
        """Windows to draw of each state of each bench."""
        return max(1, round(self.share * len(data.source_train) / max(1, number)))


def state_codes(classes: tuple[str, ...]) -> dict[str, int]:
    """The class that stands for each state, where exactly one does."""
    from bearcat.diagnosis.physics import state_of

    states = [state_of(name) for name in classes]
    return {state: code for code, state in enumerate(states) if state is not None and states.count(state) == 1}


def joined(source: Labelled, values: NDArray[np.float32], labels: NDArray[np.int64], each: int) -> Labelled:
    """The source's windows and these, of which `each` in turn are as of one more recording, specimen and domain."""
    groups = np.arange(len(labels)) // each

    def with_groups(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([numbers, numbers.max() + 1 + groups]) if len(numbers) else numbers

    return replace(
        source, values=np.concatenate([source.values, values]), labels=np.concatenate([source.labels, labels]),
        recording=with_groups(source.recording), domain=with_groups(source.domain),
        specimen=with_groups(source.specimen),
    )  # fmt: skip
