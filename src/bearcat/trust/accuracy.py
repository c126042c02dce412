"""How many predictions on the target are right, estimated without its labels.

Each estimator says of every target window how right its prediction is expected to be; the mean is the accuracy.

>>> expected_accuracy(source, target)["confidence"]
Estimate(value=0.84, low=0.78, high=0.9)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

LEVEL = 0.9  # of intervals
STEADY = ("linear", "neighbours")  # check models that never adapt, by the end of their names
DRAWS = 500  # of the bootstrap
FEWEST_RECORDINGS = 5  # with fewer, windows are drawn instead, and the interval is too narrow


@dataclass(frozen=True)
class Estimate:
    """A share of windows, with the interval it is expected in."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Source:
    """The labelled source test windows: calibrated log-probabilities (window, class) and labels (window,)."""

    log_probabilities: Floats
    labels: Integers

    @property
    def right(self) -> Booleans:
        return np.asarray(self.log_probabilities.argmax(axis=1) == self.labels)


@dataclass(frozen=True, eq=False)
class Target:
    """Target windows without labels: calibrated log-probabilities (window, class), recording (window,)."""

    log_probabilities: Floats
    recording: Integers
    checks: Mapping[str, Integers] = field(default_factory=dict)  # what check models say of the windows (trust/checks)

    @property
    def predicted(self) -> Integers:
        return np.asarray(self.log_probabilities.argmax(axis=1))


def confidence(log_probabilities: Floats) -> Floats:
    """The probability of the predicted class, (window,)."""
    return np.asarray(np.exp(log_probabilities.max(axis=1)))


def atc_threshold(scores: Floats, right: Booleans) -> float:
    """The score that as many of these windows lie below as are wrong."""
    return float(np.append(np.sort(scores), math.inf)[(~right).sum()])


def recording_votes(target: Target) -> Floats:
    """The share of check models that say each class of a window's recording, (window, class), mean over its windows."""
    classes = 1 + max(int(said.max()) for said in (*target.checks.values(), target.predicted))
    votes = np.mean([np.eye(classes)[said] for said in target.checks.values()], axis=0)
    number = np.unique(target.recording, return_inverse=True)[1]
    sums = np.zeros((int(number.max()) + 1, classes))
    np.add.at(sums, number, votes)
    return np.asarray((sums / np.bincount(number)[:, None])[number])


def by_votes(target: Target) -> Floats:
    """The share of check models that say, of a window's recording, the class predicted for the window, (window,)."""
    return np.asarray(recording_votes(target)[np.arange(len(target.predicted)), target.predicted])


def expected_hits(source: Source, target: Target) -> dict[str, Floats]:
    """How right every window's prediction (window,) is expected to be, by all estimators with evidence: by its
    confidence; if that reaches a threshold (ATC; Garg et al., 2022); by how many check models that never adapt agree
    with it, how many check models say its class of the recording, or whether most of them do.
    """
    sure = confidence(target.log_probabilities)
    threshold = atc_threshold(confidence(source.log_probabilities), source.right)
    found = {"confidence": sure, "atc_confidence": (sure >= threshold).astype(np.float64)}
    if target.checks:
        steady = [said for name, said in target.checks.items() if name.endswith(STEADY)]
        found["agreement"] = np.asarray(np.mean([said == target.predicted for said in steady], axis=0))
        found["votes"] = by_votes(target)
        found["consensus"] = (recording_votes(target).argmax(axis=1) == target.predicted).astype(np.float64)
    return found


def expected_accuracy(source: Source, target: Target, seed: int = 0) -> dict[str, Estimate]:
    """The expected share of right predictions on the target by every estimator, with bootstrap intervals."""
    hits = expected_hits(source, target)
    return dict(zip(hits, bootstrap(np.stack(list(hits.values())), target.recording, seed), strict=True))


def bootstrap(expected_hits: Floats, recording: Integers, seed: int = 0, draws: int = DRAWS) -> list[Estimate]:
    """Means of the rows (estimator, window) within 0 … 1, with percentile intervals, over draws of whole recordings.

    Every draw gets the spread of as many coin tosses: a confidence of 0.7 leaves open which windows are right.
    """
    random = np.random.default_rng(seed)
    _, group = np.unique(recording, return_inverse=True)
    if group.max(initial=0) + 1 < FEWEST_RECORDINGS:
        group = np.arange(len(recording))
    groups = int(group.max()) + 1
    windows = np.bincount(group, minlength=groups)
    chance = expected_hits.clip(0, 1)
    sums = np.stack([np.bincount(group, row, groups) for row in expected_hits])
    variances = np.stack([np.bincount(group, row * (1 - row), groups) for row in chance])
    picked = random.integers(groups, size=(draws, groups))
    times = np.bincount((picked + groups * np.arange(draws)[:, None]).ravel(), minlength=draws * groups)
    times = times.reshape(draws, groups).astype(np.float64)
    drawn = (times @ windows)[:, None]
    means = times @ sums.T / drawn
    # Two columns are skipped: they belonged to estimators that are gone, and the others keep the numbers they had.
    noise = random.standard_normal((draws, len(sums) + 2))[:, np.r_[:2, 4 : len(sums) + 2][: len(sums)]]
    means += noise * np.sqrt(times @ variances.T) / drawn
    low, high = np.quantile(means.clip(0, 1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    values = expected_hits.mean(axis=1).clip(0, 1)
    rows = np.stack([values, np.minimum(low, values), np.maximum(high, values)], axis=1)
    return [Estimate(*row) for row in rows.tolist()]


def majority_weight(predicted: Integers, recording: Integers, classes: int, weight: Floats | None = None) -> Floats:
    """For each recording (recording,) the weight, or the number, of its windows that have its commonest class."""
    counts = np.bincount(recording * classes + predicted, weight, minlength=classes * (int(recording.max()) + 1))
    return np.asarray(counts.reshape(-1, classes).max(axis=1))


def window_agreement(target: Target) -> float:
    """The share of windows whose class is that of most windows of their recording: no more can be right."""
    _, number = np.unique(target.recording, return_inverse=True)
    counts = majority_weight(target.predicted, number, int(target.predicted.max()) + 1)
    return float(counts.sum() / len(number))


def agreement(first: Sequence[Any] | NDArray[Any], second: Sequence[Any] | NDArray[Any]) -> float:
    """The share of windows for which two runs predict the same class."""
    return float(np.mean(np.asarray(first) == np.asarray(second))) if len(first) else math.nan


def binomial_interval(count: int, total: int) -> tuple[float, float]:
    """The exact LEVEL interval (Clopper and Pearson) of a share of which `count` of `total` were seen."""
    from scipy.stats import beta

    rest = (1 - LEVEL) / 2
    low = 0.0 if count == 0 else float(beta.ppf(rest, count, total - count + 1))
    high = 1.0 if count == total else float(beta.ppf(1 - rest, count + 1, total - count))
    return low, high
