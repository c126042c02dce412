"""Calibrators that look at the unlabelled target (docs/method.md, docs/trust.md).

TransCal (Wang et al., NeurIPS 2020) makes the mean target confidence an estimate of the target accuracy. The others
need one number for that accuracy (`Evidence.target_accuracy`, or how far windows of one recording agree), or make
labelled windows out of unlabelled ones. Their temperatures are within `scaling.BOUNDS`.

>>> calibration = TransCal().fit(evidence)                   # evidence with features, see Evidence
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bearcat.cat import scaling
from bearcat.cat.calibration import Calibration, Evidence, Sample, beside, with_runs
from bearcat.cat.scaling import BOUNDS, CPCS, Temperature, from_temperature
from bearcat.diagnosis.accuracy import Target, window_agreement
from bearcat.errors import InputError

SHARE = 0.65  # of a mixture's larger part
POWERS = 41  # of TransCal's weights, from 0 to 1
START, START_POWER = 2.0, 0.5  # temperature and power where TransCal's search begins
LARGEST_ODDS = 40.0  # of a weight's logarithm, so that the square of the largest weight is a number
WIDE = (0.05, 100.0)  # bounds of temperatures that stay out of self-training


@dataclass(frozen=True)
class TransCal:
    """The temperature of least |mean target confidence − estimated accuracy|.

    Whole curves of temperature and power make that 0. This is the point nearest to where the original's search begins.
    """

    needs: ClassVar[tuple[str, ...]] = (*CPCS.needs, "target_logits")

    def fit(self, evidence: Evidence) -> Calibration:
        sample, target = evidence.source(), evidence.target()
        odds = CPCS().log_weights(evidence).clamp(-LARGEST_ODDS, LARGEST_ODDS)
        powers = torch.linspace(0, 1, POWERS, dtype=torch.float64, device=odds.device)
        calibrated = Temperature(WIDE).fit(evidence).probabilities(sample.scores.double())
        accuracy = estimated_accuracy(sample, odds, sample.mean(calibrated.amax(dim=-1)), powers)
        temperature, gap = matching_temperature(target, accuracy)
        distance = (temperature - START).square() + (powers - START_POWER).square()
        best = torch.where(gap <= gap.amin(dim=1, keepdim=True) + 1e-6, distance, torch.inf).argmin(dim=1)
        nearest = temperature.gather(1, best[:, None])[:, 0]
        return from_temperature(nearest, scaling.at(BOUNDS, nearest), classes=target.scores.shape[2])


@dataclass(frozen=True)
class TargetConfidence:
    """The temperature at which mean confidence on the target is the accuracy expected there; at least the source's.

    >>> logits, labels = 9 * np.eye(2), np.arange(2)
    >>> evidence = Evidence(source_logits=logits, source_labels=labels, target_logits=logits, target_accuracy=[0.8])
    >>> TargetConfidence().fit(evidence).probabilities(logits).max(axis=1).round(2)
    array([0.8, 0.8])
    """

    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_accuracy")

    def fit(self, evidence: Evidence) -> Calibration:
        source, target = Temperature().fit(evidence), evidence.target()
        wanted = beside(target.scores, 1, evidence.target_accuracy, "target_accuracy").double()
        matching = matching_temperature(target, wanted[:, None])[0][:, 0]
        # Of runs without an estimate nothing is known but the source.
        unknown = wanted.isnan()
        temperature = torch.where(unknown, source.temperature, torch.maximum(matching, source.temperature))
        at_bound = torch.where(unknown, source.at_bound, matching >= BOUNDS[1])  # what is kept is modest enough
        return from_temperature(temperature, at_bound, classes=target.scores.shape[2])


@dataclass(frozen=True)
class PseudoCal:
    """The temperature of least NLL on mixtures of target windows, whose label is that of the larger part.

    Hu et al. (ICML 2024) mix pairs of inputs with unlike pseudo-labels; here their features are mixed, since a mixture
    of two waveforms is no waveform of a bearing (mixed waveforms had an ECE of 23.5 %, mixed features 6.2).
    """

    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_features", "head", "seeds")

    def fit(self, evidence: Evidence) -> Calibration:
        labels = evidence.target().scores.argmax(dim=-1)
        features = with_runs(evidence.target_features, "target_features", "feature").double()
        if evidence.head is None:
            raise InputError("head is missing from the evidence; PseudoCal mixes features and classifies them anew")
        other = partners(features.shape[1], scaling.read_seeds(evidence, features))
        mixed = SHARE * features + (1 - SHARE) * features.gather(1, other[..., None].expand_as(features))
        unlike = (labels != labels.gather(1, other)).double()  # pairs that were predicted alike have no weight
        sample = Sample(evidence.head(mixed).double(), labels, unlike)
        return Temperature().of_least(scaling.mean_nll, sample, sample.shares())


@dataclass(frozen=True)
class RecordingConfidence:
    """The temperature, at least the source's, at which mean confidence on the target is the share of windows that have
    the class of most windows of their recording, since no more can be right. Its geometric mean with PseudoCal's is
    taken, which knows nothing of recordings and errs otherwise.
    """

    needs: ClassVar[tuple[str, ...]] = (*PseudoCal.needs, "target_recording")

    def fit(self, evidence: Evidence) -> Calibration:
        scores = evidence.target().scores
        recordings = beside(scores, 2, evidence.target_recording, "target_recording").long()
        runs = zip(scores.cpu().numpy(), recordings.cpu().numpy(), strict=True)
        agreement = np.array([window_agreement(Target(*of_run)) for of_run in runs])
        fitted = TargetConfidence().fit(replace(evidence, target_accuracy=agreement))
        other, least_sure = (kind().fit(evidence).temperature for kind in (PseudoCal, Temperature))
        temperature = (fitted.temperature * torch.maximum(other, least_sure)).sqrt()
        return from_temperature(temperature, fitted.at_bound, classes=fitted.scale.shape[1])


def matching_temperature(target: Sample, accuracy: Tensor) -> tuple[Tensor, Tensor]:
    """Temperatures (run, any) at which the mean confidence is the accuracy, or the nearest bound; and the gap."""
    logits, share = scaling.centred(target)[:, None], target.shares()[:, None]  # (run, 1, window, …)

    def too_low(log_temperature: Tensor) -> Tensor:
        """The accuracy minus the mean confidence."""
        confidence = 1 / (logits * (-log_temperature).exp()[..., None, None]).exp().sum(dim=-1)
        return accuracy - (share * confidence).sum(dim=-1)

    low, high = (torch.full_like(accuracy, math.log(bound)) for bound in BOUNDS)
    temperature = scaling.halved(too_low, low, high, BOUNDS)
    return temperature, too_low(temperature.log()).abs()


def updated_temperature(sample: Sample, spread: float) -> Tensor:
    """Temperature (run,) of least Σ weight · NLL + (log T)² / (2 spread²): labels move it away from 1, their number
    and `spread`, a standard deviation of log T before there were any, say how far.
    """
    logits = scaling.centred(sample)

    def loss(scale: Tensor) -> Tensor:
        prior = scale.log()[:, 0, 0].square() / (2 * spread**2)
        return scaling.mean_nll(scale * logits, sample.labels, sample.weight) + prior

    return scaling.least(loss, logits, WIDE)


def partners(windows: int, seeds: Tensor) -> Tensor:
    """For each window another one, (run, window): the next in a random circle of all."""
    order = scaling.shuffled(windows, seeds)
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
