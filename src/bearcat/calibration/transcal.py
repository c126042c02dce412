"""TransCal (Wang et al., NeurIPS 2020): the mean target confidence equals an estimate of the target accuracy.

The estimate is that of importance weighting, less biased by a power of the weights between 0 and 1 and of less variance
by two control variates: the mean weight, which should be 1, and the share of right source predictions, which should be
their calibrated confidence.

>>> calibration = TransCal().fit(evidence)               # evidence with features and target logits, see Evidence
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bearcat.calibration.arrays import Sample, read_features
from bearcat.calibration.evidence import Calibration, Evidence
from bearcat.calibration.scaling import (
    Temperature,
    check_bounds,
    check_positive,
    from_temperature,
    matching_temperature,
)
from bearcat.calibration.shift import CPCS

POWERS = 41  # from 0 to 1
START = (2.0, 0.5)  # temperature and power where the published search begins
LARGEST_ODDS = 40.0  # of a weight's logarithm, so that the square of the largest weight is a number


@dataclass(frozen=True)
class TransCal:
    """The temperature of least |mean target confidence − estimated accuracy|.

    Whole curves of temperature and power make that nothing. The published search (SLSQP from T = 2, power ½) stops
    somewhere on it; here it is the point nearest to where that search begins.
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    ridge: float = 1.0  # as in CPCS
    needs: ClassVar[tuple[str, ...]] = (*CPCS.needs, "target_logits")

    def __post_init__(self) -> None:
        check_bounds(self.bounds)
        check_positive("ridge", self.ridge)

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        odds = CPCS(ridge=self.ridge).log_weights(evidence).clamp(-LARGEST_ODDS, LARGEST_ODDS)
        powers = torch.linspace(0, 1, POWERS, dtype=torch.float64, device=odds.device)
        source = Temperature((0.05, 100.0)).fit(evidence).probabilities(sample.scores.double()).amax(dim=-1)
        accuracy = estimated_accuracy(sample, odds, (sample.shares() * source).sum(dim=1), powers)
        logits, weight = read_features(evidence.target_logits, evidence.target_weight, "target_logits")
        target = Sample(logits, torch.zeros_like(weight, dtype=torch.int64), weight, stacked=True)
        temperature, gap = matching_temperature(target, accuracy, self.bounds)
        distance = (temperature - START[0]).square() + (powers - START[1]).square()
        best = torch.where(gap <= gap.amin(dim=1, keepdim=True) + 1e-6, distance, torch.inf).argmin(dim=1)
        found = temperature.gather(1, best[:, None])[:, 0]
        at_bound = (found == self.bounds[0]) | (found == self.bounds[1])
        return from_temperature(1 / found, at_bound, classes=logits.shape[2])


def estimated_accuracy(sample: Sample, odds: Tensor, source_confidence: Tensor, powers: Tensor) -> Tensor:
    """The target accuracy that labelled source windows suggest, (run, power).

    odds (run, window) are logarithms of the importance weights; source_confidence (run,) is the calibrated one.
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
