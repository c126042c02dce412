"""Calibrators that look at the unlabelled target (docs/method.md, docs/trust.md).

TransCal (Wang et al., NeurIPS 2020) makes the mean target confidence an estimate of the target accuracy. The others
need one number for that accuracy (`Evidence.estimates["accuracy"]`, or how far windows of one recording agree), or
make labelled windows out of unlabelled ones.

>>> calibration = TransCal().fit(evidence)                   # evidence with features, see Evidence
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bearcat.cat import scaling
from bearcat.cat.calibration import AnyArray, Calibration, CheckedSettings, Evidence, Sample, as_tensor, read_features
from bearcat.cat.scaling import (
    CPCS,
    Temperature,
    centred,
    from_temperature,
    per_run,
    read_seeds,
    shuffled,
)
from bearcat.diagnosis.accuracy import majority_weight
from bearcat.errors import InputError

SHARE = 0.65  # of a mixture's larger part
POWERS = 41  # of TransCal's weights, from 0 to 1
START, START_POWER = 2.0, 0.5  # temperature and power where TransCal's search begins
LARGEST_ODDS = 40.0  # of a weight's logarithm, so that the square of the largest weight is a number


@dataclass(frozen=True)
class TransCal(CheckedSettings):
    """The temperature of least |mean target confidence − estimated accuracy|.

    Whole curves of temperature and power make that 0. This is the point nearest to where the original's search begins.

    >>> find_calibrator("TransCal").needs[-1]
    'target_logits'
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = (*CPCS.needs, "target_logits")

    def fit(self, evidence: Evidence) -> Calibration:
        sample, target = evidence.source(), evidence.target()
        odds = CPCS().log_weights(evidence).clamp(-LARGEST_ODDS, LARGEST_ODDS)
        powers = torch.linspace(0, 1, POWERS, dtype=torch.float64, device=odds.device)
        alone = Temperature((0.05, 100.0)).fit(evidence)
        source = (sample.shares() * alone.probabilities(sample.scores.double()).amax(dim=-1)).sum(dim=1)
        accuracy = estimated_accuracy(sample, odds, source, powers)
        temperature, gap = matching_temperature(target, accuracy, self.bounds)
        distance = (temperature - START).square() + (powers - START_POWER).square()
        best = torch.where(gap <= gap.amin(dim=1, keepdim=True) + 1e-6, distance, torch.inf).argmin(dim=1)
        found = temperature.gather(1, best[:, None])[:, 0]
        at_bound = (found == self.bounds[0]) | (found == self.bounds[1])
        return from_temperature(1 / found, at_bound, classes=target.scores.shape[2])


@dataclass(frozen=True)
class TargetConfidence(CheckedSettings):
    """The temperature at which mean confidence on the target is the accuracy expected there; at least the source's.

    >>> logits, labels, expected = 9 * np.eye(2), np.arange(2), {"accuracy": 0.8}
    >>> evidence = Evidence(source_logits=logits, source_labels=labels, target_logits=logits, estimates=expected)
    >>> TargetConfidence().fit(evidence).probabilities(logits).max(axis=1).round(2)
    array([0.8, 0.8])
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = ("target_logits", "estimates")

    def fit(self, evidence: Evidence) -> Calibration:
        source, target = Temperature(self.bounds).fit(evidence), evidence.target()
        if evidence.estimates is None or "accuracy" not in evidence.estimates:
            raise InputError("estimates['accuracy'] is missing from the evidence; give the accuracy to expect")
        wanted = per_run(evidence.estimates["accuracy"], "estimates['accuracy']", target.scores).double()
        found = matching_temperature(target, wanted[:, None], self.bounds)[0][:, 0]
        # Of runs without a target window or an estimate nothing is known but the source.
        unknown = wanted.isnan() | scaling.says_nothing(centred(target), target.shares())
        kept = unknown | (found <= source.temperature)
        scale = torch.where(kept, source.scale[:, 0], 1 / found)
        at_bound = torch.where(unknown, source.at_bound, found >= self.bounds[1])  # what is kept is modest enough
        return from_temperature(scale, at_bound, classes=target.scores.shape[2])


@dataclass(frozen=True)
class PseudoCal(CheckedSettings):
    """The temperature of least NLL on mixtures of target windows, whose label is that of the larger part.

    Hu et al. (ICML 2024) mix pairs of inputs with unlike pseudo-labels; here their features are mixed, since a mixture
    of two waveforms is no waveform of a bearing (mixed waveforms had an ECE of 23.5 %, mixed features 6.2).

    >>> PseudoCal().needs
    ('target_logits', 'target_features', 'head', 'seeds')
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_features", "head", "seeds")

    def fit(self, evidence: Evidence) -> Calibration:
        mixed = self.mixtures(evidence)
        return from_temperature(*scaling.least_nll(mixed, *self.bounds), classes=mixed.scores.shape[2])

    def mixtures(self, evidence: Evidence) -> Sample:
        """Logits of mixed features with their labels; pairs that were predicted alike have no weight."""
        target = evidence.target()
        features = read_features(evidence.target_features, "target_features")
        if evidence.head is None:
            raise InputError("head is missing from the evidence; PseudoCal mixes features and classifies them anew")
        other = partners(features.shape[1], read_seeds(evidence, features))
        mixed = SHARE * features + (1 - SHARE) * features.gather(1, other[..., None].expand_as(features))
        labels = target.scores.argmax(dim=-1)
        return Sample(evidence.head(mixed).double(), labels, (labels != labels.gather(1, other)).double())


@dataclass(frozen=True)
class RecordingConfidence(CheckedSettings):
    """The temperature, at least the source's, at which mean confidence on the target is the share of windows that have
    the class of most windows of their recording, since no more can be right. Its geometric mean with PseudoCal's is
    taken, which knows nothing of recordings and errs otherwise.

    >>> RecordingConfidence().needs[-1]
    'target_recording'
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = (*PseudoCal.needs, "target_recording")

    def fit(self, evidence: Evidence) -> Calibration:
        target = evidence.target()
        agreement = {"accuracy": window_agreement(target, evidence.target_recording)}
        fitted = TargetConfidence(self.bounds).fit(replace(evidence, estimates=agreement))
        other = PseudoCal(bounds=self.bounds).fit(evidence).temperature
        least = Temperature(self.bounds).fit(evidence).temperature
        temperature = (fitted.temperature * torch.maximum(other, least)).sqrt()
        return from_temperature(1 / temperature, fitted.at_bound, classes=target.scores.shape[2])


def matching_temperature(target: Sample, accuracy: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Temperatures (run, any) at which the mean confidence is the accuracy, or the nearest bound; and the gap."""
    logits, share = centred(target)[:, None], target.shares()[:, None]  # (run, 1, window, class), (run, 1, window)

    def too_sure(temperature: Tensor) -> Tensor:
        confidence = 1 / (logits / temperature[..., None, None]).exp().sum(dim=-1)
        return (share * confidence).sum(dim=-1) - accuracy

    low, high = (torch.full_like(accuracy, bound) for bound in bounds)
    for _ in range(50):
        middle = (low * high).sqrt()
        falls_short = too_sure(middle) > 0
        low, high = torch.where(falls_short, middle, low), torch.where(falls_short, high, middle)
    # What never moved stands at its bound.
    found = torch.where(low == bounds[0], torch.where(too_sure(low) <= 0, low, high), high)
    return found, too_sure(found).abs()


def updated_temperature(sample: Sample, spread: float) -> Tensor:
    """Temperature (run,) of least Σ weight · NLL + (log T)² / (2 spread²): labels move it away from 1, their number
    and `spread`, a standard deviation of log T before there were any, say how far.
    """
    logits = centred(sample)
    of_label = logits.gather(-1, sample.labels[..., None])[..., 0]
    grid = torch.linspace(math.log(0.05), math.log(100.0), 2000, dtype=torch.float64, device=logits.device)
    losses = [
        (sample.weight * ((logits * (-place).exp()).logsumexp(-1) - of_label * (-place).exp())).sum(1)
        + place.square() / (2 * spread**2)
        for place in grid
    ]
    return grid[torch.stack(losses).argmin(dim=0)].exp()


def window_agreement(target: Sample, recording: AnyArray | None) -> Tensor:
    """The share of windows whose class is that of most windows of their recording, (run,)."""
    if recording is None:
        raise InputError("target_recording is missing from the evidence; give the number of each window's recording")
    shares, classes = target.shares(), target.scores.shape[2]
    number = as_tensor(recording).long().reshape(shares.shape)
    rows = [array.cpu().numpy() for array in (target.scores.argmax(dim=-1), number, shares)]
    found = [majority_weight(said, own, classes, share) for said, own, share in zip(*rows, strict=True)]
    return torch.stack([torch.from_numpy(each).sum() for each in found]).to(shares.device)


def partners(windows: int, seeds: Tensor) -> Tensor:
    """For each window another one, (run, window): the next in a random circle of all."""
    order = shuffled(windows, seeds)
    return order.gather(1, (order.argsort(dim=1) + 1) % windows)


def estimated_accuracy(sample: Sample, odds: Tensor, source_confidence: Tensor, powers: Tensor) -> Tensor:
    """The target accuracy that labelled source windows suggest, (run, power), by importance weighting with two control
    variates: the mean weight, which should be 1, and the share of right predictions, which should be their calibrated
    source_confidence (run,). Powers of the weights reduce bias; odds (run, window) are their logarithms.
    """
    share = sample.shares()[:, None]  # (run, 1, window)
    error = (sample.scores.argmax(dim=-1) != sample.labels).double()[:, None]
    weight = (powers[:, None] * odds[:, None]).exp()  # (run, power, window)

    def mean(values: Tensor) -> Tensor:
        return (share * values).sum(dim=-1, keepdim=True)

    def slope(values: Tensor, control: Tensor) -> Tensor:
        """Minus covariance over variance: how much of the control's deviation is to be taken off."""
        deviation = control - mean(control)
        variance = mean(deviation.square())
        return torch.where(variance > 0, -mean((values - mean(values)) * deviation) / variance, 0.0)

    weighted, right = weight * error, (1 - error).expand_as(weight)
    by_weight = slope(weighted, weight)
    by_right = slope(weighted + by_weight * (weight - 1), right)
    risk = mean(weighted) + by_weight * (mean(weight) - 1) + by_right * (mean(right) - source_confidence[:, None, None])
    return 1 - risk[..., 0]
