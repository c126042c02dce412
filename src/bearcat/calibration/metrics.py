"""Measures of a classifier's probabilities: pure functions, one number per run.

Probabilities have the axes (run, window, class), labels and weight (run, window); the run axis may be left out, and
numpy in gives numpy out. A weight of 0 marks padding, which may hold anything. A run of no weight scores NaN.
Sums are in float64. docs/method.md: ten equal bins, each without its lower and with its upper edge.

>>> ece(np.array([[0.8, 0.2], [0.6, 0.4]]), np.array([0, 1]))
0.4
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from bearcat.calibration.evidence import AnyArray, Array, Sample, like, read
from bearcat.errors import InputError


@dataclass(frozen=True, eq=False)
class ReliabilityBins(Generic[Array]):
    """What a reliability diagram draws, per run and bin; an empty bin has NaN for confidence and accuracy."""

    confidence: Array  # (run, bin) mean confidence
    accuracy: Array  # (run, bin) share of correct predictions
    mass: Array  # (run, bin) share of the windows' weight; sums to one
    edges: Array  # (run, bin + 1) bin m is (edges[m], edges[m + 1]]


def ece(
    probabilities: Array, labels: AnyArray, weight: AnyArray | None = None, bins: int = 10, edges: str = "upper"
) -> Array:
    """Expected calibration error of the predicted class: |accuracy − confidence| averaged over bins by their mass.

    `edges`: which of its edges a bin holds; "lower" is the published code's min(⌊confidence · bins⌋, bins − 1).
    """
    if edges not in ("upper", "lower"):
        raise InputError(f"edges must be 'upper' or 'lower', not '{edges}'")
    sample = read(probabilities, labels, weight)
    confidence, hit = _predictions(sample)
    place = _place(confidence, _edges(confidence, bins), edges)
    gap = _per_bin(sample.weight * (confidence.double() - hit), place, bins)  # masses cancel: no bin is divided by
    return like(probabilities, gap.abs().sum(-1) / sample.weight.sum(-1))


def reliability_bins(
    probabilities: Array, labels: AnyArray, weight: AnyArray | None = None, bins: int = 10
) -> ReliabilityBins[Array]:
    """Per bin: mean confidence, accuracy, mass; and the edges. Σ mass · |accuracy − confidence| is the ECE."""
    sample = read(probabilities, labels, weight)
    confidence, hit = _predictions(sample)
    edges = _edges(confidence, bins)
    place, columns = _place(confidence, edges), (torch.ones_like(hit), confidence.double(), hit)
    mass, sure, right = (_per_bin(sample.weight * each, place, bins) for each in columns)
    shares = mass / sample.weight.sum(-1, keepdim=True)
    return ReliabilityBins(*(like(probabilities, each) for each in (sure / mass, right / mass, shares, edges.double())))


def nll(probabilities: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Mean −log of the label's probability, which is taken no smaller than the least normal number of its type.

    Where logits are at hand, `nll_from_logits` does not need that floor.
    """
    sample = read(probabilities, labels, weight)
    floor = torch.finfo(sample.scores.dtype).tiny
    return like(probabilities, _mean(-_of_label(sample, sample.scores).double().clamp(min=floor).log(), sample))


def nll_from_logits(logits: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Mean −log softmax(logits) at the label."""
    sample = read(logits, labels, weight, ("logits", "labels", "weight"))
    return like(logits, _mean(-_of_label(sample, sample.scores.double().log_softmax(-1)), sample))


def brier(probabilities: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Squared distance to the one-hot label, summed over classes, mean over windows: between 0 and 2."""
    sample = read(probabilities, labels, weight)
    classes = torch.arange(sample.scores.shape[-1], device=sample.scores.device)
    hit = (sample.labels[..., None] == classes).double()
    return like(probabilities, _mean((sample.scores.double() - hit).square().sum(-1), sample))


def accuracy(scores: Array, labels: AnyArray, weight: AnyArray | None = None) -> Array:
    """Share of windows whose largest score (logit or probability; the first of equals) is at the label."""
    sample = read(scores, labels, weight, ("scores", "labels", "weight"))
    return like(scores, _mean(_predictions(sample)[1], sample))


def _predictions(sample: Sample) -> tuple[Tensor, Tensor]:
    """Confidence and, as 0.0 or 1.0, whether the prediction is right: both (run, window)."""
    predicted = sample.scores.argmax(-1, keepdim=True)  # torch promises the first of equals
    confidence = sample.scores.gather(-1, predicted)[..., 0]
    return confidence, (predicted[..., 0] == sample.labels).double()


def _of_label(sample: Sample, values: Tensor) -> Tensor:
    return values.gather(-1, sample.labels[..., None])[..., 0]


def _mean(values: Tensor, sample: Sample) -> Tensor:
    return (values * sample.weight).sum(1) / sample.weight.sum(1)


def _edges(confidence: Tensor, bins: int) -> Tensor:
    """Edges (run, bin + 1) in the type of the confidence, so that float32's 0.1 lies on the edge 0.1 and not above."""
    if bins < 1:
        raise InputError(f"bins must be at least 1, not {bins}")
    steps = torch.arange(bins + 1, dtype=torch.float64, device=confidence.device)
    return (steps / bins).to(confidence.dtype).expand(*confidence.shape[:-1], bins + 1).contiguous()


def _place(confidence: Tensor, edges: Tensor, held: str = "upper") -> Tensor:
    """The bin (…, window) of each confidence: how many inner edges lie below it, strictly where bins hold the upper."""
    return torch.searchsorted(edges[..., 1:-1].contiguous(), confidence.contiguous(), right=held == "lower")


def _per_bin(values: Tensor, place: Tensor, bins: int) -> Tensor:
    """Sums (…, bin) of values (…, window). A loop over bins: scattered additions have no fixed order on a GPU."""
    return torch.stack([torch.where(place == number, values, 0.0).sum(-1) for number in range(bins)], dim=-1)
