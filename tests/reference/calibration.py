"""Calibration the plain way: one window, one class, one bin at a time, with if and else."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def first_largest(row: Sequence[float]) -> int:
    best = 0
    for number, value in enumerate(row):
        if value > row[best]:
            best = number
    return best


def which_bin(confidence: float, bins: int) -> int:
    """Bin m is (m / bins, (m + 1) / bins]; 0 goes into the first."""
    for number in range(bins):
        lower, upper = number / bins, (number + 1) / bins
        if lower < confidence <= upper or (number == 0 and confidence == 0):
            return number
    return bins - 1


def ece(probabilities: Rows, labels: Sequence[int], weights: Sequence[float], bins: int) -> float:
    total, error = sum(weights), 0.0
    for number in range(bins):
        mass = confidence = correct = 0.0
        for row, label, weight in zip(probabilities, labels, weights, strict=True):
            if which_bin(max(row), bins) == number:
                mass += weight
                confidence += weight * max(row)
                correct += weight * (first_largest(row) == label)
        if mass > 0:
            error += mass / total * abs(correct / mass - confidence / mass)
    return error


def window_agreement(predicted: Sequence[int], recordings: Sequence[int]) -> float:
    """The share of windows that have the class of most windows of their recording."""
    right = 0
    for recording in set(recordings):
        said = [label for label, own in zip(predicted, recordings, strict=True) if own == recording]
        right += max(said.count(label) for label in said)
    return right / len(predicted)
