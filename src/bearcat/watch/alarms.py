"""When a change is an alarm: p-values of recordings against a baseline, and evidence that adds up at a stated rate.

A p-value says how many of the baseline's recordings are as unusual as a new one (conformal prediction: no distribution
is assumed within the range of the baseline; beyond it the tail falls as the baseline's own largest values do, with a
margin for their small number). A p-value becomes a bet e(p) that is worth 1 on average where nothing has changed, and
the bets multiply up from the last time nothing spoke for a change: a CUSUM of log e. Its mean time between false alarms
is at least exp(threshold) recordings (Shin, Ramdas and Rinaldo 2023, e-detectors), so a rate a year is a threshold.
docs/watch.md says what this assumes, and benchmarks/watch.py measures what it keeps.

>>> p = Tail.of(scores_of_the_baseline).p_value(score)
>>> evidence = add_evidence(evidence, p, threshold(interval=600.0, rate=1.0))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

YEAR = 365.25 * 86400.0  # seconds
PERSISTENCE = 3  # recordings that an alarm needs at least: a single one adds a third of the threshold at most
UPPER = 0.2  # share of the baseline that its tail is measured on
CAUTION = 1.5  # standard errors by which the tail is taken to be longer than measured
SHORTEST = 0.3  # of a tail, in robust standard deviations: the baseline of a steady rig must not be more than it is
LEAST_LOG = math.log(20.0)  # the lowest threshold, of recordings that are rare
MOST = 1.5  # times the threshold that evidence can reach, so that it falls again when a cause is gone


@dataclass(frozen=True)
class Tail:
    """Scores of a baseline, and how they fall off beyond the highest fifth of them."""

    scores: tuple[float, ...]  # in order of size
    begin: float
    length: float  # mean excess beyond `begin`

    @staticmethod
    def of(scores: Sequence[float]) -> Tail:
        ordered = np.sort(np.asarray(scores, dtype=np.float64))
        upper = max(2, round(UPPER * ordered.size))
        begin = float(ordered[-upper - 1]) if ordered.size > upper else float(ordered[0])
        excess = float(np.mean(ordered[-upper:] - begin))
        length = max(SHORTEST, excess * (1 + CAUTION / math.sqrt(upper)))
        return Tail(tuple(ordered.tolist()), begin, length)

    def p_value(self, score: float) -> float:
        """How often a recording of the baseline would be as unusual as this one."""
        count = len(self.scores)
        rank = (sum(own >= score for own in self.scores) + 1) / (count + 1)
        if score <= self.begin:
            return rank
        beyond = (sum(own > self.begin for own in self.scores) + 1) / (count + 1)
        return beyond * math.exp(-(score - self.begin) / self.length)


def bet(p_value: float) -> float:
    """What a p-value is worth as evidence for a change: ∫ ε p^(ε−1) dε over ε from 0 to 1, whose mean is 1 for a
    uniform p-value (Vovk and Sellke).
    """
    if p_value >= 1:
        return 0.5
    low = max(p_value, 1e-300)
    log = math.log(low)
    if log > -1e-4:  # where the formula takes the difference of nearly equal numbers
        return 0.5 - log / 3
    return (1 - low + low * log) / (low * log**2)


def threshold(interval: float, rate: float) -> float:
    """Of the evidence: the logarithm of the recordings between two false alarms, `interval` seconds apart, of which
    there may be `rate` a year.
    """
    return max(math.log(YEAR / max(interval, 1e-3) / rate), LEAST_LOG)


def add_evidence(evidence: float, p_value: float, limit: float) -> float:
    """The evidence after one more recording."""
    step = min(math.log(bet(p_value)), limit / PERSISTENCE * (1 + 1e-9))
    return min(max(evidence + step, 0.0), MOST * limit)
