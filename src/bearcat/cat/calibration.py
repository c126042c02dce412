"""What goes into fitting a calibrator, what comes out, and measures of how good it is, one number per run.

Scores have the axes (run, window, class), labels and weight (run, window); the run axis may be left out, and numpy in
gives numpy out. What has no weight may hold anything. Sums are in float64.

>>> calibration = Temperature().fit(Evidence(source_logits=logits, source_labels=labels))
>>> ece(calibration.probabilities(logits), labels)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from bearcat.data.tasks import UNKNOWN
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

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of values (run, window), NaN for a run without weight, (run,)."""
        return (values * self.weight).sum(1) / self.weight.sum(1)

    def accuracy(self) -> Tensor:
        """The share of windows whose largest score is that of their label, (run,)."""
        return self.mean(self.scores.argmax(dim=-1) == self.labels)


def as_tensor(values: AnyArray | None, name: str) -> Tensor:
    """A tensor without history; numpy (and lists) are copied, since torch warns about read-only memory."""
    if values is None:
        raise InputError(f"{name} is missing from the evidence; this calibrator reads it")
    return values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, order="C"))


def like(source: Array, result: Tensor) -> Array:
    """A result (run, …) as numpy if the input (run, window, class) was, and without the run axis if it had none."""
    result = result if np.ndim(source) == 3 else result[0]
    return result if isinstance(source, Tensor) else result.numpy()[()]  # [()] makes a scalar of an array without axes


def with_runs(values: AnyArray | None, name: str, last: str) -> Tensor:
    """Values with the axes (run, window, last); the run axis may be left out."""
    tensor = as_tensor(values, name)
    if tensor.ndim not in (2, 3) or tensor.shape[-1] == 0:
        raise InputError(f"{name} must have the axes (run, window, {last}), not the shape {tuple(tensor.shape)}")
    return tensor if tensor.ndim == 3 else tensor[None]


def beside(other: Tensor, axes: int, values: AnyArray | None, name: str) -> Tensor:
    """One value for each run (1 axis) or window (2) of a tensor, on its device; the run axis may be left out."""
    tensor = as_tensor(values, name).to(other.device)
    tensor = tensor if tensor.ndim == axes else tensor[None]
    if tensor.shape != other.shape[:axes]:
        raise InputError(f"{name} must have the shape {tuple(other.shape[:axes])}, not {tuple(tensor.shape)}")
    return tensor


def read(
    scores: AnyArray, labels: AnyArray, weight: AnyArray | None = None,
    names: tuple[str, str, str] = ("probabilities", "labels", "weight"),
) -> Sample:  # fmt: skip
    """Checks shapes; what has no weight becomes 0. Values are checked on a CPU only: a GPU would have to wait."""
    tensor = with_runs(scores, names[0], "class")
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    ones, classes = torch.ones_like(tensor[..., 0]), tensor.shape[-1]
    present = beside(tensor, 2, ones if weight is None else weight, names[2]).double()
    target = beside(tensor, 2, labels, names[1])
    if target.is_floating_point() and target.numel():
        raise InputError(f"{names[1]} must be whole numbers (class indices), not {target.dtype}")
    target = torch.where(present != 0, target.long(), 0)
    if tensor.device.type == "cpu":
        if not (torch.isfinite(present) & (present >= 0)).all():
            raise InputError(f"{names[2]} must be finite and not negative; give 0 to windows that should not count")
        if not ((target >= 0) & (target < classes)).all():
            known = f"0 … {classes - 1}, the classes of {names[0]}"
            raise InputError(f"{names[1]} must lie in {known}; give weight 0 to unlabelled windows")
    return Sample(torch.where((present != 0)[..., None], tensor, 0.0), target, present)


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
    target_accuracy: AnyArray | None = None  # (run,) to expect on the target, estimated without labels
    head: Callable[[Tensor], Tensor] | None = None  # features → logits
    seeds: AnyArray | None = None  # (run,) int64, for calibrators that draw

    def source(self) -> Sample:
        """The source test split, checked."""
        names = ("source_logits", "source_labels", "source_weight")
        return read(self.source_logits, self.source_labels, self.source_weight, names)

    def target(self) -> Sample:
        """The target's training windows, without labels, checked."""
        logits = with_runs(self.target_logits, "target_logits", "class").double()
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
        if self.matrix is not None:
            return torch.full_like(self.scale[:, 0], torch.nan)
        one = (self.scale == self.scale[:, :1]) & (self.scale > 0) & (self.bias == 0)
        return torch.where(one.all(1), 1 / self.scale[:, 0], torch.nan)

    def apply(self, logits: Array) -> Array:
        """Calibrated logits, shape as given, in at least float32."""
        return like(logits, self._mapped(logits))

    def probabilities(self, logits: Array) -> Array:
        """Softmax of the calibrated logits."""
        return like(logits, self._mapped(logits).softmax(-1))

    def state(self) -> dict[str, Tensor]:
        """Contiguous tensors by name, for saving, of which Calibration(**state) is made again."""
        return {name: tensor.contiguous() for name, tensor in vars(self).items() if tensor is not None}

    def changed(self, change: Callable[[Tensor], Tensor]) -> Calibration:
        """The same with every tensor changed, such as moved to another device."""
        return Calibration(**{name: change(tensor) for name, tensor in self.state().items()})

    def _mapped(self, logits: AnyArray) -> Tensor:
        """Calibrated logits (run, window, class)."""
        values = with_runs(logits, "logits", "class")
        runs, classes = self.scale.shape
        if values.shape[::2] != (runs, classes):
            shapes = f"({runs}, window, {classes}) of this calibration, not {tuple(values.shape)}"
            raise InputError(f"logits must have the shape {shapes}")
        values = values if values.dtype in (torch.float32, torch.float64) else values.float()
        mapped = values * self.scale[:, None].to(values)  # no matrix product: those may be rounded to TF32 on a GPU
        if self.matrix is not None:
            matrix = self.matrix.to(values.device)
            mapped = (mapped.to(matrix.dtype) @ matrix.mT).to(values.dtype)
        return mapped + self.bias[:, None].to(values)


class Calibrator(Protocol):
    """Settings that can be fitted; a row of CALIBRATORS. A field `needs` names what it reads of Evidence beyond the
    source's logits, labels and weight.
    """

    def fit(self, evidence: Evidence) -> Calibration: ...


@dataclass(frozen=True, eq=False)
class ReliabilityBins(Generic[Array]):
    """What a reliability diagram draws, per run and bin; an empty bin has NaN for confidence and accuracy."""

    confidence: Array  # (run, bin) mean confidence
    accuracy: Array  # (run, bin) share of correct predictions
    mass: Array  # (run, bin) share of the windows' weight; sums to one
    edges: Array  # (run, bin + 1) bin m is (edges[m], edges[m + 1]]


def reliability_bins(
    probabilities: Array, labels: AnyArray, weight: AnyArray | None = None, bins: int = 10
) -> ReliabilityBins[Array]:
    """Per bin: mean confidence and accuracy (Eqs. 2, 3), mass; the edges. Σ mass · |accuracy − confidence| is the ECE.

    >>> bins = reliability_bins(np.array([[0.9, 0.1], [0.7, 0.3]]), np.array([0, 1]), bins=2)
    >>> bins.accuracy, bins.mass
    (array([nan, 0.5]), array([0., 1.]))
    """
    binned = _binned(read(probabilities, labels, weight), bins)
    return ReliabilityBins(*(like(probabilities, values) for values in binned))


def ece(probabilities: Array, labels: AnyArray, weight: AnyArray | None = None, bins: int = 10) -> Array:
    """Expected calibration error (Eq. 4) of the predicted class: |accuracy − confidence|, averaged by the mass of bins.

    >>> round(float(ece(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1]))), 3)
    0.4
    """
    confidence, right, mass, _ = _binned(read(probabilities, labels, weight), bins)
    return like(probabilities, torch.where(mass == 0, 0.0, mass * (right - confidence).abs()).sum(-1))


def nll(probabilities: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Mean −log of the label's probability, which is taken no smaller than the least normal number of its type.

    >>> round(float(nll(np.array([[0.5, 0.5]]), np.array([0]))), 3)
    0.693
    """
    sample = read(probabilities, labels, weight)
    of_label = sample.scores.gather(-1, sample.labels[..., None])[..., 0]
    floor = torch.finfo(sample.scores.dtype).tiny
    return like(probabilities, sample.mean(-of_label.double().clamp(min=floor).log()))


def brier(probabilities: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Squared distance to the one-hot label, summed over classes, mean over windows: between 0 and 2.

    >>> float(brier(np.array([[0.5, 0.5]]), np.array([0])))
    0.5
    """
    sample = read(probabilities, labels, weight)
    hit = functional.one_hot(sample.labels, sample.scores.shape[-1])
    return like(probabilities, sample.mean((sample.scores.double() - hit).square().sum(-1)))


def accuracy(scores: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Share of windows whose largest score (logit or probability; the first of equals) is at the label.

    >>> float(accuracy(np.array([[2.0, 0.1], [0.3, 1.0]]), np.array([0, 0])))
    0.5
    """
    return like(scores, read(scores, labels, weight, ("scores", "labels", "weight")).accuracy())


def scores(logits: Tensor, calibration: Calibration | None, labels: Tensor) -> dict[str, Tensor]:
    """Accuracy and calibration of each run (run,), NaN for a run without a known class; other windows do not count.

    Balanced accuracy is the mean of the classes' own; macro-F1 that of 2·hits / (windows of the class + called so),
    without classes that neither are there nor are called.
    """
    known, plain = (labels != UNKNOWN).double(), logits.softmax(dim=-1)
    calibrated = plain if calibration is None else calibration.probabilities(logits)
    found = {"nll": nll(calibrated, labels, known), "brier": brier(calibrated, labels, known)}
    for suffix, likely in {"": calibrated, "_uncalibrated": plain}.items():
        found[f"accuracy{suffix}"] = accuracy(likely, labels, known)
        found |= {f"{name}{suffix}": ece(likely, labels, known, bins) for name, bins in (("ece", 10), ("ece15", 15))}
    classes = torch.arange(logits.shape[-1], device=logits.device)
    member, called = ((codes[..., None] == classes).double() for codes in (labels, calibrated.argmax(dim=-1)))
    confusion = member.mT @ called  # (run, class, called): windows
    hits, windows = confusion.diagonal(dim1=1, dim2=2), confusion.sum(dim=2)
    found["balanced_accuracy"] = (hits / windows).nanmean(dim=1)  # 0/0, a class without windows, is NaN
    found["macro_f1"] = (2 * hits / (windows + confusion.sum(dim=1))).nanmean(dim=1)
    return found


def equal_classes(labels: Tensor, classes: int) -> Tensor:
    """Weights (run, window) under which every class there is counts the same and windows count 1 on average."""
    member = functional.one_hot(labels, classes)
    counts = member.sum(dim=1, keepdim=True).double()
    share = labels.shape[1] / (counts > 0).sum(dim=2, keepdim=True)
    return (member * (share / counts.clamp(min=1))).sum(dim=2)


def _binned(sample: Sample, bins: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Confidence, accuracy and mass of each bin (run, bin), and the edges (run, bin + 1).

    Edges are in the type of the confidence, so that float32's 0.1 lies on the edge 0.1 and not above. A bin's number is
    that of the inner edges below the confidence.
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, not {bins}")
    confidence, predicted = sample.scores.max(-1)
    steps = torch.arange(bins + 1, dtype=torch.float64, device=confidence.device)
    edges = (steps / bins).to(confidence.dtype)
    of_bin = torch.searchsorted(edges[1:-1], confidence.contiguous())
    inside = functional.one_hot(of_bin, bins).double()
    columns = torch.stack([torch.ones_like(sample.weight), confidence.double(), predicted == sample.labels], dim=1)
    mass, sure, right = (columns * sample.weight[:, None] @ inside).unbind(1)
    shares = mass / sample.weight.sum(1, keepdim=True)
    return sure / mass, right / mass, shares, edges.double().expand(len(mass), -1)
