"""What is done to windows: standardising, windows of other benches that join the source, views of a step.

Levels of a physical input differ between speeds, loads and machines by an offset and a factor in each point. Where the
target holds the source's classes in the source's shares, standardising each domain by itself removes both; where it
does not (a target that is all healthy), it shifts healthy windows to the source's faults, and `by="source"`, which
adapts nothing, is the safe choice.

A source of few bearings teaches their own marks: where one outer race shows no line, "no line" becomes a sign of outer
races. So windows drawn from other benches' states are learnt beside them. states.safetensors holds, for each state of
each bench, the mean of windows, the directions in which they scatter most and the scatter that is left, of the input
`bearing-orders` standardised by that bench; draws are put where the source's mean and scale are. The target is not
used. `python benchmarks/general_model.py DATA --write` makes the file; docs/results.md says what it is worth.

Of views, the teacher labels the weak one of a target window and the student learns the strong one. Their changes are of
windows (batch, channel, point), with random numbers for every window, which `draw` determines; each change has a layer
of its own, so that they are independent.

>>> RECIPES["unseen-bearings"].with_settings({"known-states.without": "cwru"})   # as `adapt` and grids do on CWRU
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bearcat.cat.ingredient import Augmentation, BeforeTraining, Prepared, TargetFinding, choice, within
from bearcat.cat.networks import InputScaling
from bearcat.data.inputs import Input, Waveform, find_input
from bearcat.data.recording import Integers
from bearcat.data.tasks import UNKNOWN, Labelled, TrainingData
from bearcat.errors import InputError
from bearcat.fast.stacked import uniform
from bearcat.settings import find_name
from bearcat.storage import load_tensors

if TYPE_CHECKING:
    from bearcat.cat.recipes import Recipe

STATES_FILE = Path(__file__).parents[1] / "general" / "states.safetensors"
MOST_STATES = 48  # of the source; where it has more recordings, those of a class that are alike are one state
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standardise(BeforeTraining):
    """Shifts and scales the points of prepared windows; the model keeps how."""

    name = "standardise"
    by: str = choice("source", "domain", default="domain")

    @property
    def adapts(self) -> bool:
        return self.by == "domain"

    def prepare(self, data: TrainingData) -> Prepared:
        """The model scales by the target's statistics; the source is shifted so that this scales it by its own."""
        source, target = data.source_train.values, data.target_train.values
        mean, deviation = _statistics(source if self.by == "source" else target)
        if self.by == "domain":
            parts = data.source_train, data.source_test
            shifted = [part.values.copy() for part in parts]
            domains = [part.domain if len(part.domain) else np.zeros(len(part)) for part in parts]
            for domain in np.unique(domains[0]):
                domain_mean, domain_deviation = _statistics(source[domains[0] == domain])
                for values, of_window in zip(shifted, domains, strict=True):
                    members = of_window == domain
                    values[members] = (values[members] - domain_mean) / domain_deviation * deviation + mean
            train, test = (replace(part, values=values) for part, values in zip(parts, shifted, strict=True))
            data = replace(data, source_train=train, source_test=test)
        # A point that is zero in every window has been ignored; the network is not to read it later.
        used = (source != 0).any(axis=0) | (target != 0).any(axis=0)
        factor = np.where(used, 1 / deviation, 0).astype(np.float32)
        return Prepared(data, InputScaling(torch.from_numpy(mean)[None], torch.from_numpy(factor)[None]))


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

    def draw(self, number: int, random: np.random.Generator) -> Floats:
        """(window, point)"""
        along = random.standard_normal((number, len(self.axes))) @ self.axes
        return np.asarray(self.mean + along + random.standard_normal((number, self.mean.size)) * self.rest)


@cache
def shipped_states() -> tuple[str, dict[str, dict[str, StateShape]]]:
    """The input that the states were measured with, and the states of each bench."""
    tensors, metadata = load_tensors(STATES_FILE)
    benches: dict[str, dict[str, StateShape]] = {}
    for bench, state in metadata["states"]:
        parts = (tensors[f"{bench}/{state}/{part}"].double().numpy() for part in ("mean", "axes", "rest"))
        benches.setdefault(bench, {})[state] = StateShape(*parts)
    return metadata["input"], benches


@dataclass(frozen=True)
class KnownStates(BeforeTraining):
    """Windows of the states of other benches join the source's, class by class, where names of classes say states."""

    name = "known-states"
    adapts = False
    without: tuple[str, ...] = ()  # benches that are left out, so that the recipe can be tested on them

    def __post_init__(self) -> None:
        for name in self.without:
            find_name(name, tuple(shipped_states()[1]), "bench")

    def for_input(self, kind: Input) -> KnownStates:
        if kind != find_input(shipped_states()[0]):
            raise InputError(f"known states of other benches are of the input '{shipped_states()[0]}'; use it", "input")
        return self

    def prepare(self, data: TrainingData) -> Prepared:
        """The same for all runs: draws depend on nothing but the source."""
        codes, shapes = state_codes(data.classes), list[tuple[str, str, StateShape]]()
        for bench, states in shipped_states()[1].items():
            if bench not in self.without:
                shapes += [(bench, state, shape) for state, shape in states.items() if state in codes]
        joining = [state for _, state, _ in shapes]
        if len(set(joining)) < 2:  # windows of a single state would make everything that state
            none = "Not adapted: nothing known of other benches fits the names of two classes; none joins the source."
            return Prepared(data, finding=TargetFinding(False, none))
        source, random = data.source_train, np.random.default_rng(0)
        mean, scale = source.values.mean(axis=0, dtype=np.float64), source.values.std(axis=0, dtype=np.float64)
        # A class gets as many windows as the source's classes have on average, however many benches know it.
        average = len(source) / len(data.classes)
        numbers = [max(1, round(average / joining.count(state))) for state in joining]
        drawn = [shape.draw(number, random) for number, (_, _, shape) in zip(numbers, shapes, strict=True)]
        values = (np.concatenate(drawn).reshape(-1, *mean.shape) * scale + mean).astype(np.float32)
        labels = np.repeat([codes[state] for state in joining], numbers)
        shape_numbers = np.repeat(np.arange(len(shapes)), numbers)

        def with_shapes(names: Integers) -> Integers:
            """The windows of a shape are as of one more recording and domain."""
            return np.concatenate([names, names.max() + 1 + shape_numbers]) if len(names) else names

        source = Labelled(
            np.concatenate([source.values, values]), np.concatenate([source.labels, labels]),
            with_shapes(source.recording), with_shapes(source.domain),
        )  # fmt: skip
        named, others = dict.fromkeys(joining), dict.fromkeys(bench for bench, _, _ in shapes)
        sentence = f"Not adapted: learnt from the source and from {', '.join(named)} of {' and '.join(others)}."
        return Prepared(replace(data, source_train=source), finding=TargetFinding(False, sentence))


def without_own_benches(recipe: Recipe, dataset: str) -> Recipe:
    """The recipe without what it knows of the benches of a named dataset, on which it would be tested."""
    known = recipe.find(KnownStates)
    if known is None or known.without:
        return recipe
    benches = tuple(shipped_states()[1])
    of_dataset = tuple(name for name in benches if name == dataset or name.startswith(f"{dataset}-"))
    return recipe.change(known.name, without=benches if dataset == "across-machines" else of_dataset)


def state_codes(classes: tuple[str, ...]) -> dict[str, int]:
    """The class that stands for each state, where exactly one does."""
    from bearcat.diagnosis.physics import state_of

    states = [state_of(name) for name in classes]
    return {state: code for code, state in enumerate(states) if state is not None and states.count(state) == 1}


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
    def of_classes(data: TrainingData) -> States:
        return States(np.arange(len(data.classes)), data.source_train.labels, data.source_test.labels)


def has_several_states(source: Labelled) -> bool:
    """Whether a class has several recordings in a domain."""
    if not len(source.recording):
        return False
    domain = source.domain if len(source.domain) else np.zeros_like(source.recording)
    recordings = set(zip(source.labels.tolist(), domain.tolist(), source.recording.tolist(), strict=True))
    return len({(label, name) for label, name, _ in recordings}) < len(recordings)


def source_states(data: TrainingData) -> States:
    """The source's recordings as states; of a class with more than its part of MOST_STATES, alike ones are merged."""
    from scipy.cluster.hierarchy import fcluster, linkage

    source, test, most = data.source_train, data.source_test, MOST_STATES // len(data.classes)
    if not has_several_states(source):
        return States.of_classes(data)
    numbers, first, recording = np.unique(source.recording, return_index=True, return_inverse=True)
    flat = source.values.reshape(len(source), -1)
    deviation = flat.std(axis=0)
    means = np.array([flat[recording == number].mean(axis=0) for number in range(len(numbers))])
    means = means / np.where(deviation > 0, deviation, 1)
    state, owner = np.zeros(len(numbers), dtype=np.int64), list[int]()
    for code in range(len(data.classes)):
        of_class = np.flatnonzero(source.labels[first] == code)
        merged: NDArray[Any] = np.arange(len(of_class))
        if len(of_class) > most:
            merged = fcluster(linkage(means[of_class], "average"), most, "maxclust") - 1
        state[of_class] = len(owner) + merged
        owner += [code] * (int(merged.max()) + 1)
    of_recording = dict(zip(numbers.tolist(), state.tolist(), strict=True))
    of_test = np.array([of_recording.get(number, UNKNOWN) for number in test.recording.tolist()], dtype=np.int64)
    return States(np.array(owner), state[recording], of_test)


@dataclass(frozen=True)
class StrongView(Augmentation):
    """A composition of changes, each drawn for each window; 0 leaves one out."""

    name = "strong"
    resample: float = within(0.02, 0, 1)  # the speed is drawn within ± this share
    shift: float = within(1.0, 0, 1)  # the start is drawn within this share of the window, which is taken as a circle
    stop: float = within(0.1, 0, 1)  # share of the band that is taken out, at a place that is drawn
    scale: float = within(0.2, 0, 1)  # the amplitude is drawn within ± this share
    snr: float = 15.0  # dB, of the noise that is added
    mask: float = within(0.1, 0, 1)  # share of the window that is set to 0, at a place that is drawn

    def for_input(self, kind: Input) -> StrongView:
        """Shift and band-stop are for samples in time; where points are lines of a spectrum, masking stops bands."""
        return self if isinstance(kind, Waveform) else replace(self, shift=0.0, stop=0.0)

    def change(self, windows: Tensor, draw: Tensor) -> Tensor:
        if self.resample or self.shift:
            windows = resampled(windows, draw, self.resample, self.shift)
        for share, changed in ((self.stop, band_stopped), (self.scale, scaled), (self.snr, noisy), (self.mask, masked)):
            windows = changed(windows, draw, share) if share else windows
        return windows


@dataclass(frozen=True)
class WeakView(Augmentation):
    """A little noise."""

    name = "weak"
    of_teacher = True
    snr: float = 30.0  # dB

    def change(self, windows: Tensor, draw: Tensor) -> Tensor:
        return noisy(windows, draw, self.snr)


def _drawn(draw: Tensor, layer: int, windows: Tensor) -> Tensor:
    """A number between 0 and 1 for each window, (batch, 1, 1)."""
    return uniform(draw, layer, len(windows)).to(windows.dtype)[:, None, None]


def resampled(windows: Tensor, draw: Tensor, resample: float, shift: float) -> Tensor:
    """Read from another start and at another speed, by linear interpolation on the window as a circle."""
    length = windows.shape[-1]
    start = torch.floor(_drawn(draw, 0, windows) * shift * length)
    speed = 1 + resample * (2 * _drawn(draw, 1, windows) - 1)
    position = (start + speed * torch.arange(length, device=windows.device, dtype=windows.dtype)) % length
    before = position.floor()
    part = position - before
    index = before.long().clamp(max=length - 1).expand_as(windows)
    return (1 - part) * windows.gather(2, index) + part * windows.gather(2, (index + 1) % length)


def band_stopped(windows: Tensor, draw: Tensor, share: float) -> Tensor:
    """Without the lines of a band of this share of the spectrum."""
    lines = torch.fft.rfft(windows)
    inside = _interval(_drawn(draw, 2, windows), lines.shape[-1], share)
    stopped: Tensor = torch.fft.irfft(lines * ~inside, n=windows.shape[-1])
    return stopped


def scaled(windows: Tensor, draw: Tensor, share: float) -> Tensor:
    """Louder or quieter."""
    return windows * (1 + share * (2 * _drawn(draw, 3, windows) - 1))


def noisy(windows: Tensor, draw: Tensor, snr: float) -> Tensor:
    """With white Gaussian noise, so many dB below the window's own power (Box and Muller 1958)."""
    first, second = (uniform(draw, layer, windows.numel()).view(windows.shape) for layer in (4, 5))
    normal = (-2 * (1 - first).log()).sqrt() * torch.cos(2 * math.pi * second)
    level = windows.square().mean(dim=(1, 2), keepdim=True).sqrt() * 10 ** (-snr / 20)
    return windows + level * normal.to(windows.dtype)


def masked(windows: Tensor, draw: Tensor, share: float) -> Tensor:
    """With an interval of this share of the window set to 0."""
    return windows * ~_interval(_drawn(draw, 6, windows), windows.shape[-1], share)


def _interval(drawn: Tensor, length: int, share: float) -> Tensor:
    """Whether a point lies in an interval of round(share · length) points, whose start is drawn, bool."""
    width = round(share * length)
    start = torch.floor(drawn * (length - width + 1))
    position = torch.arange(length, device=drawn.device)
    return (position >= start) & (position < start + width)
