"""Calibrators that look at the unlabelled target: by an estimate of its accuracy, or by mixtures of its own windows.

A temperature from the source cannot know how often the network is right on the target. These need one number for it
(`Evidence.estimates["accuracy"]`) or make labelled windows out of unlabelled ones (docs/method.md).

>>> calibration = TargetConfidence().fit(evidence)       # evidence with target logits and estimates, see Evidence
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bearcat.calibration.arrays import AnyArray, Sample, as_tensor, read_features
from bearcat.calibration.evidence import Calibration, Evidence
from bearcat.calibration.scaling import (
    Bounded,
    Temperature,
    centred,
    confidences,
    from_temperature,
    least_nll,
    matching_temperature,
    says_nothing,
)
from bearcat.calibration.shift import random_integers, read_seeds
from bearcat.errors import InputError

BINS = 15  # of UTDC, as many windows in each
COARSE, FINE = 0.05, 0.0025  # steps of log T in UTDC's search


@dataclass(frozen=True)
class TargetConfidence(Bounded):
    """The temperature at which mean confidence on the target is the accuracy expected there; at least the source's.

    The estimate can make a network more careful than its source asks for, never less.
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_weight", "estimates")

    def fit(self, evidence: Evidence) -> Calibration:
        source, target = Temperature(self.bounds).fit(evidence), evidence.target()
        wanted = expected_accuracy(evidence, target)
        found = matching_temperature(target, wanted[:, None], self.bounds)[0][:, 0]
        # Of runs without a target window or an estimate nothing is known but the source.
        unknown = wanted.isnan() | says_nothing(centred(target), target.shares())
        kept = unknown | (found <= source.temperature)
        scale = torch.where(kept, source.scale[:, 0], 1 / found)
        at_bound = torch.where(unknown, source.at_bound, found >= self.bounds[1])  # what is kept is modest enough
        return from_temperature(scale, at_bound, classes=target.scores.shape[2])


@dataclass(frozen=True)
class PseudoCal(Bounded):
    """The temperature of least NLL on mixtures of target windows, whose label is that of the larger part.

    Hu et al. (ICML 2024) mix pairs of inputs with unlike pseudo-labels; here their features are mixed, since a mixture
    of two waveforms is no waveform of a bearing (mixed waveforms had an ECE of 23.5 %, mixed features 6.2).
    """

    share: float = 0.65  # of the larger part
    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_features", "target_weight", "head", "seeds")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.5 < self.share < 1:
            raise InputError(f"share must be above 0.5 and below 1, not {self.share:g}")

    def fit(self, evidence: Evidence) -> Calibration:
        mixed = self.mixtures(evidence)
        return from_temperature(*least_nll(mixed, *self.bounds), classes=mixed.scores.shape[2])

    def mixtures(self, evidence: Evidence) -> Sample:
        """Logits of mixed features with their labels; pairs that were predicted alike have no weight."""
        target = evidence.target()
        features, weight = read_features(evidence.target_features, evidence.target_weight, "target_features")
        if evidence.head is None:
            raise InputError("head is missing from the evidence; PseudoCal mixes features and classifies them anew")
        other = partners(weight, read_seeds(evidence, len(weight), weight.device))
        mixed = self.share * features + (1 - self.share) * features.gather(1, other[..., None].expand_as(features))
        labels = target.scores.argmax(dim=-1)
        unlike = labels != labels.gather(1, other)
        logits = evidence.head(mixed)
        return Sample(torch.where((weight > 0)[..., None], logits.double(), 0.0), labels, weight * unlike)


@dataclass(frozen=True)
class RecordingConfidence(Bounded):
    """The temperature, at least the source's, at which mean confidence on the target is the share of windows that have
    the class of most windows of their recording.

    A recording has one class, so no more windows can be right. With `mixtures` it is the geometric mean of that
    temperature and PseudoCal's, which knows nothing of recordings and errs otherwise.
    """

    mixtures: bool = True
    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = (*PseudoCal.needs, "target_recording")

    def fit(self, evidence: Evidence) -> Calibration:
        target = evidence.target()
        united = {"accuracy": unity(target, evidence.target_recording)}
        fitted = TargetConfidence(self.bounds).fit(replace(evidence, estimates=united))
        if not self.mixtures:
            return fitted
        other = PseudoCal(bounds=self.bounds).fit(evidence).temperature
        least = Temperature(self.bounds).fit(evidence).temperature
        temperature = (fitted.temperature * torch.maximum(other, least)).sqrt()
        return from_temperature(1 / temperature, fitted.at_bound, classes=target.scores.shape[2])


@dataclass(frozen=True)
class UTDC(Bounded):
    """The temperature whose confidences on the target, bin by bin, are nearest to the accuracies expected there.

    Penso and Goldberger (2024): windows are sorted by confidence into bins of equal size; a bin's accuracy on the
    target is that of the source's bin of the same rank, times the estimated accuracy over the source's.
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_weight", "estimates")

    def fit(self, evidence: Evidence) -> Calibration:
        source, target = evidence.source(), evidence.target()
        logits, weight, labels = centred(source), source.shares(), source.labels
        right = (logits.gather(-1, labels[..., None])[..., 0] == 0).double()
        accuracy = (weight * right).sum(dim=1, keepdim=True)
        factor = expected_accuracy(evidence, target)[:, None] / accuracy
        wanted = (binned(confidences(logits, torch.ones_like(accuracy[:, 0])), right, weight) * factor).clamp(max=1)
        moved, shares = centred(target), target.shares()

        def gap(places: Tensor) -> Tensor:
            """(place, run) for log-temperatures (place, run)."""
            rows = []
            for place in places:
                sure = confidences(moved, place.exp())
                rows.append((binned(sure, sure, shares) - wanted).abs().mean(dim=1))
            return torch.stack(rows)

        low, high = (math.log(bound) for bound in self.bounds)
        steps = max(2, math.ceil((high - low) / COARSE))
        grid = torch.linspace(low, high, steps + 1, dtype=torch.float64, device=moved.device)[:, None]
        place = grid[gap(grid.expand(-1, len(moved))).argmin(dim=0), 0]
        near = torch.arange(-1, 1 + FINE / COARSE, FINE / COARSE, dtype=torch.float64, device=moved.device) * COARSE
        grid = (place + near[:, None]).clamp(low, high)
        place = grid.gather(0, gap(grid).argmin(dim=0, keepdim=True))[0]
        fallback = says_nothing(moved, shares) | factor[:, 0].isnan()
        temperature = torch.where(fallback, max(1.0, self.bounds[0]), place.exp())
        temperature = temperature.clamp(*self.bounds)
        at_bound = (place - low < 1e-12) | (high - place < 1e-12) | fallback
        return from_temperature(1 / temperature, at_bound, classes=moved.shape[2])


def expected_accuracy(evidence: Evidence, target: Sample) -> Tensor:
    """The estimate, (run,)."""
    if evidence.estimates is None or "accuracy" not in evidence.estimates:
        raise InputError("estimates['accuracy'] is missing from the evidence; give the accuracy expected on the target")
    found = as_tensor(evidence.estimates["accuracy"]).to(target.scores.device).double().reshape(-1)
    if len(found) != len(target.scores):
        raise InputError(f"estimates['accuracy'] must hold one number per run, {len(target.scores)}, not {len(found)}")
    return found


def unity(target: Sample, recording: AnyArray | None) -> Tensor:
    """The share of windows whose class is that of most windows of their recording, (run,)."""
    if recording is None:
        raise InputError("target_recording is missing from the evidence; give the number of each window's recording")
    predicted, weight = target.scores.argmax(dim=-1), target.weight
    number = as_tensor(recording).to(weight.device).long().reshape(weight.shape).clamp(min=0)
    runs, classes = len(weight), target.scores.shape[2]
    votes = weight.new_zeros(runs, (int(number.max()) + 1) * classes)
    votes = votes.scatter_add_(1, number * classes + predicted, target.shares()).view(runs, -1, classes)
    return votes.amax(dim=-1).sum(dim=1)


def partners(weight: Tensor, seeds: Tensor) -> Tensor:
    """For each window another one, (run, window): the next in a random circle of all that count.

    The circle depends on the run's seed and the windows' places alone, not on the stack, padding or device.
    """
    keys = random_integers(seeds, weight.shape[1]).masked_fill(weight == 0, torch.iinfo(torch.int64).max)
    order = keys.argsort(stable=True, dim=1)
    rank = order.argsort(dim=1)
    count = (weight > 0).sum(dim=1, keepdim=True).clamp(min=1)
    return order.gather(1, (rank + 1) % count)


def binned(order: Tensor, values: Tensor, shares: Tensor) -> Tensor:
    """Means of values (run, window) in BINS bins of equal mass by `order`, (run, bin).

    A window on the edge of two bins belongs to both in part, so that a window of weight two is the same as two of them.
    """
    place = torch.where(shares > 0, order, torch.inf).argsort(stable=True, dim=1)
    shares, values = shares.gather(1, place), values.gather(1, place)
    mass, total = (torch.nn.functional.pad(each.cumsum(dim=1), (1, 0)) for each in (shares, shares * values))
    edges = torch.arange(BINS + 1, dtype=shares.dtype, device=shares.device) / BINS
    edges = edges.expand(len(shares), -1).contiguous() * mass[:, -1:]
    after = torch.searchsorted(mass.contiguous(), edges).clamp(1, mass.shape[1] - 1)
    width = mass.gather(1, after) - mass.gather(1, after - 1)
    part = torch.where(width > 0, (edges - mass.gather(1, after - 1)) / width, 0.0).clamp(0, 1)
    reached = total.gather(1, after - 1) + part * (total.gather(1, after) - total.gather(1, after - 1))
    return reached.diff(dim=1) * BINS
