"""What goes into fitting a calibrator, what comes out, and measures of how good it is, one number per run.

Scores have the axes (run, window, class), labels and weight (run, window); the run axis may be left out, and numpy in
gives numpy out. What has no weight may hold anything. Sums are in float64.

>>> calibration = Temperature().fit(Evidence(source_logits=logits, source_labels=labels))
>>> ece(calibration.probabilities(logits), labels)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bearcat.cat.ingredient import check_choices
from bearcat.errors import InputError

AnyArray = Tensor | NDArray[Any]
Array = TypeVar("Array", Tensor, NDArray[Any])  # what comes in as numpy goes out as numpy, torch as torch


@dataclass(frozen=True, eq=False)
class Sample:
    """Scores (run, window, class), labels and float64 weight (run, window); all are 0 where the weight is."""

    scores: Tensor
    labels: Tensor
    weight: Tensor

    def shares(self) -> Tensor:
        """Weights that sum to one in each run, zeros for a run without any, (run, window)."""
        total = self.weight.sum(1, keepdim=True)
        return torch.where(total > 0, self.weight / total, 0.0)

    def accuracy(self) -> Tensor:
        """The share of windows whose largest score is that of their label, (run,)."""
        return (self.shares() * (self.scores.argmax(dim=-1) == self.labels)).sum(dim=1)


def as_tensor(values: AnyArray) -> Tensor:
    """A tensor without history; numpy (and lists) are copied, since torch warns about read-only memory."""
    return values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, order="C"))


def like(source: Array, result: Tensor) -> Array:
    """A result (run, …) as numpy if the input (run, window, class) was, and without the run axis if it had none."""
    result = result if np.ndim(source) == 3 else result[0]
    return result if isinstance(source, Tensor) else result.numpy()[()]  # [()] makes a scalar of an array without axes


def read(
    scores: AnyArray, labels: AnyArray, weight: AnyArray | None = None,
    names: tuple[str, str, str] = ("probabilities", "labels", "weight"),
) -> Sample:  # fmt: skip
    """Checks shapes; what has no weight becomes 0. Values are checked on a CPU only: a GPU would have to wait."""
    tensor = _stacked(scores, names[0], "class")
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    ones = torch.ones(tensor.shape[:2], dtype=torch.float64, device=tensor.device)
    present = ones if weight is None else _windows(weight, tensor, names[2]).double()
    target = _windows(labels, tensor, names[1])
    if target.is_floating_point() and target.numel():
        raise InputError(f"{names[1]} must be whole numbers (class indices), not {target.dtype}")
    target = torch.where(present != 0, target.long(), 0)
    if tensor.device.type == "cpu":
        if not (torch.isfinite(present) & (present >= 0)).all():
            raise InputError(f"{names[2]} must be finite and not negative; give 0 to windows that should not count")
        if not ((target >= 0) & (target < tensor.shape[-1])).all():
            classes = f"0 … {tensor.shape[-1] - 1}, the classes of {names[0]}"
            raise InputError(f"{names[1]} must lie in {classes}; give weight 0 to unlabelled windows")
    return Sample(torch.where((present != 0)[..., None], tensor, 0.0), target, present)


def read_features(features: AnyArray | None, name: str) -> Tensor:
    """Features (run, window, feature) in float64."""
    if features is None:
        raise InputError(f"{name} is missing from the evidence; this calibrator looks at it")
    return _stacked(features, name, "feature").double()


def _stacked(values: AnyArray, name: str, last: str) -> Tensor:
    """Values with the axes (run, window, last); the run axis may be left out."""
    tensor = as_tensor(values)
    if tensor.ndim not in (2, 3) or tensor.shape[-1] == 0:
        raise InputError(f"{name} must have the axes (run, window, {last}), not the shape {tuple(tensor.shape)}")
    return tensor if tensor.ndim == 3 else tensor[None]


def _windows(values: AnyArray, beside: Tensor, name: str) -> Tensor:
    """One value per window, (run, window), on the device of what it stands beside."""
    tensor = as_tensor(values).to(beside.device)
    tensor = tensor[None] if tensor.ndim == 1 else tensor
    if tensor.shape != beside.shape[:2]:
        shapes = f"{tuple(beside.shape[:2])}, not {tuple(tensor.shape)}"
        raise InputError(f"{name} must hold one value per window, shape {shapes}")
    return tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All that a calibrator may read, features as (run, window, feature); training computes only what it `needs`.

    >>> Evidence(source_logits=np.eye(3), source_labels=np.arange(3)).source().accuracy().item()
    1.0
    """

    source_logits: AnyArray  # the labelled source test split
    source_labels: AnyArray
    source_weight: AnyArray | None = None
    source_features: AnyArray | None = None
    source_train_features: AnyArray | None = None
    target_logits: AnyArray | None = None  # the unlabelled target training split
    target_features: AnyArray | None = None
    target_recording: AnyArray | None = None  # (run, window) int64: which recording each target window is of
    head: Callable[[Tensor], Tensor] | None = None  # features → logits
    estimates: Mapping[str, AnyArray] | None = None  # without labels: "accuracy" (run,)
    seeds: AnyArray | None = None  # (run,) int64, for calibrators that draw; zeros where not given

    def source(self) -> Sample:
        """The source test split, checked."""
        names = ("source_logits", "source_labels", "source_weight")
        return read(self.source_logits, self.source_labels, self.source_weight, names)

    def target(self) -> Sample:
        """The target's training windows, without labels, checked."""
        logits = read_features(self.target_logits, "target_logits")
        weight = torch.ones_like(logits[..., 0])
        return Sample(logits, torch.zeros_like(weight, dtype=torch.int64), weight)


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted map on logits for every run: matrix @ (scale · logits) + bias. Tensors in float64.

    >>> Calibration.identity(runs=1, classes=2).probabilities(np.zeros((1, 2)))
    array([[0.5, 0.5]])
    """

    scale: Tensor  # (run, class)
    bias: Tensor  # (run, class)
    at_bound: Tensor = None  # type: ignore[assignment]  # (run,) bool: the fit ended at a bound of the calibrator's
    matrix: Tensor | None = None  # (run, class, class); None is the identity

    def __post_init__(self) -> None:
        if self.at_bound is None:
            object.__setattr__(self, "at_bound", torch.zeros_like(self.scale[:, 0], dtype=torch.bool))

    @staticmethod
    def identity(runs: int, classes: int) -> Calibration:
        """The map that changes nothing."""
        ones = torch.ones(runs, classes, dtype=torch.float64)
        return Calibration(ones, torch.zeros_like(ones))

    @property
    def temperature(self) -> Tensor:
        """(run,) 1/scale where the map is one positive scale for all classes and nothing else; NaN otherwise."""
        return torch.where(self._one_scale(), 1 / self.scale[:, 0], torch.nan)

    def apply(self, logits: Array) -> Array:
        """Calibrated logits, shape as given, in at least float32; a temperature keeps the set of largest exactly."""
        before, after = self._mapped(logits)
        return like(logits, self._order_kept(before, after))

    def probabilities(self, logits: Array) -> Array:
        """Softmax of the calibrated logits; a temperature keeps the set of most likely classes exactly."""
        before, after = self._mapped(logits)
        return like(logits, self._order_kept(before, after.softmax(-1)))

    def state(self) -> dict[str, Tensor]:
        """Contiguous tensors by name, for saving."""
        return {name: tensor.contiguous() for name, tensor in vars(self).items() if tensor is not None}

    @staticmethod
    def from_state(state: Mapping[str, Tensor]) -> Calibration:
        """Back from `state`."""
        needed = {"scale", "bias", "at_bound"}
        if not needed <= set(state) <= needed | {"matrix"}:
            raise InputError(f"a calibration is made of {', '.join(sorted(needed))}, perhaps matrix, not {set(state)}")
        return Calibration(**state)

    def _one_scale(self) -> Tensor:
        if self.matrix is not None:
            return torch.zeros_like(self.at_bound)
        same = (self.scale == self.scale[:, :1]) & (self.scale > 0) & (self.bias == 0)
        return same.all(1)

    def _mapped(self, logits: AnyArray) -> tuple[Tensor, Tensor]:
        """Logits as (run, window, class), before and after."""
        before = logits if isinstance(logits, Tensor) else as_tensor(logits)  # with its history, unlike as_tensor
        runs, classes = self.scale.shape
        fits = (before.ndim == 3 and len(before) == runs) or (before.ndim == 2 and runs == 1)
        if not fits or before.shape[-1] != classes:
            shapes = f"({runs}, window, {classes}) of this calibration, not {tuple(before.shape)}"
            raise InputError(f"logits must have the shape {shapes}")
        before = before[None] if before.ndim == 2 else before
        before = before if before.dtype in (torch.float32, torch.float64) else before.float()
        after = before * self.scale[:, None].to(before)  # no matrix product: those may be rounded to TF32 on a GPU
        if self.matrix is not None:
            matrix = self.matrix.to(before.device)
            after = (after.to(matrix.dtype) @ matrix.transpose(1, 2)).to(before.dtype)
        return before, after + self.bias[:, None].to(before)

    def _order_kept(self, before: Tensor, after: Tensor) -> Tensor:
        """Where only a temperature is applied, what has become equal to the largest is set one step below it."""
        largest = after.amax(-1, keepdim=True).detach()
        caught_up = (before < before.amax(-1, keepdim=True)) & (after >= largest)
        below = torch.nextafter(largest, torch.full_like(largest, -torch.inf))
        return torch.where(caught_up & self._one_scale()[:, None, None].to(after.device), below, after)


class CheckedSettings:
    """Checks the bounds of a temperature and the settings that are one of a few names."""

    def __post_init__(self) -> None:
        check_choices(self, "")
        bounds = vars(self).get("bounds")
        if bounds is not None and (len(bounds) != 2 or not 0 < bounds[0] < bounds[1] < math.inf):
            raise InputError(f"bounds must be two positive temperatures, the lower first, or none, not {bounds}")


class Calibrator(Protocol):
    """Settings that can be fitted; a row of CALIBRATORS.

    >>> find_calibrator("PseudoCal").needs
    ('target_logits', 'target_features', 'head', 'seeds')
    """

    needs: ClassVar[tuple[str, ...]]  # the fields of Evidence it reads beyond source logits, labels and weight

    def fit(self, evidence: Evidence) -> Calibration: ...


@dataclass(frozen=True, eq=False)
class ReliabilityBins(Generic[Array]):
    """What a reliability diagram draws, per run and bin; an empty bin has NaN for confidence and accuracy."""

    confidence: Array  # (run, bin) mean confidence
    accuracy: Array  # (run, bin) share of correct predictions
    mass: Array  # (run, bin) share of the windows' weight; sums to one
    edges: Array  # (run, bin + 1) bin m is (edges[m], edges[m + 1]]


def ece(probabilities: Array, labels: AnyArray, weight: AnyArray | None = None, bins: int = 10) -> Array:
    """Expected calibration error (Eq. 4) of the predicted class: |accuracy − confidence|, averaged by the mass of bins.

    >>> round(float(ece(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1]))), 3)
    0.4
    """
    sample = read(probabilities, labels, weight)
    confidence, hit, _, of_bin = _binned(sample, bins)
    gap = _per_bin(sample.weight * (confidence.double() - hit), of_bin, bins)  # masses cancel: no bin is divided by
    return like(probabilities, gap.abs().sum(-1) / sample.weight.sum(-1))


def reliability_bins(
    probabilities: Array, labels: AnyArray, weight: AnyArray | None = None, bins: int = 10
) -> ReliabilityBins[Array]:
    """Per bin: mean confidence, accuracy, mass; and the edges. Σ mass · |accuracy − confidence| is the ECE.

    >>> bins = reliability_bins(np.array([[0.9, 0.1], [0.7, 0.3]]), np.array([0, 1]), bins=2)
    >>> bins.accuracy, bins.mass
    (array([nan, 0.5]), array([0., 1.]))
    """
    sample = read(probabilities, labels, weight)
    confidence, hit, edges, of_bin = _binned(sample, bins)
    columns = (torch.ones_like(hit), confidence.double(), hit)
    mass, sure, right = (_per_bin(sample.weight * values, of_bin, bins) for values in columns)
    shares = mass / sample.weight.sum(-1, keepdim=True)
    numbers = sure / mass, right / mass, shares, edges.double()
    return ReliabilityBins(*(like(probabilities, values) for values in numbers))


def nll(probabilities: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Mean −log of the label's probability, which is taken no smaller than the least normal number of its type.

    >>> round(float(nll(np.array([[0.5, 0.5]]), np.array([0]))), 3)
    0.693
    """
    sample = read(probabilities, labels, weight)
    of_label = sample.scores.gather(-1, sample.labels[..., None])[..., 0]
    floor = torch.finfo(sample.scores.dtype).tiny
    return like(probabilities, _mean(-of_label.double().clamp(min=floor).log(), sample))


def brier(probabilities: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Squared distance to the one-hot label, summed over classes, mean over windows: between 0 and 2.

    >>> float(brier(np.array([[0.5, 0.5]]), np.array([0])))
    0.5
    """
    sample = read(probabilities, labels, weight)
    classes = torch.arange(sample.scores.shape[-1], device=sample.scores.device)
    hit = (sample.labels[..., None] == classes).double()
    return like(probabilities, _mean((sample.scores.double() - hit).square().sum(-1), sample))


def accuracy(scores: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Share of windows whose largest score (logit or probability; the first of equals) is at the label.

    >>> float(accuracy(np.array([[2.0, 0.1], [0.3, 1.0]]), np.array([0, 0])))
    0.5
    """
    sample = read(scores, labels, weight, ("scores", "labels", "weight"))
    return like(scores, _mean((sample.scores.argmax(-1) == sample.labels).double(), sample))


def _mean(values: Tensor, sample: Sample) -> Tensor:
    return (values * sample.weight).sum(1) / sample.weight.sum(1)


def _binned(sample: Sample, bins: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Confidence, whether right (0.0 or 1.0), edges (run, bin + 1) and bin of each window; but for edges (run, window).

    Edges are in the type of the confidence, so that float32's 0.1 lies on the edge 0.1 and not above. The bin is how
    many inner edges lie below the confidence.
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, not {bins}")
    predicted = sample.scores.argmax(-1, keepdim=True)  # torch promises the first of equals
    confidence = sample.scores.gather(-1, predicted)[..., 0].contiguous()
    steps = torch.arange(bins + 1, dtype=torch.float64, device=confidence.device)
    edges = (steps / bins).to(confidence.dtype).expand(len(confidence), bins + 1).contiguous()
    of_bin = torch.searchsorted(edges[..., 1:-1].contiguous(), confidence)
    return confidence, (predicted[..., 0] == sample.labels).double(), edges, of_bin


def _per_bin(values: Tensor, of_bin: Tensor, bins: int) -> Tensor:
    """Sums (…, bin) of values (…, window). A loop over bins: scattered additions have no fixed order on a GPU."""
    return torch.stack([torch.where(of_bin == number, values, 0.0).sum(-1) for number in range(bins)], dim=-1)
