"""Calibration the plain way: one window and one bin at a time."""

from __future__ import annotations

from collections.abc import Sequence


def ece(confidences: Sequence[float], right: Sequence[bool], weights: Sequence[float], bins: int) -> float:
    """Bin m is (m / bins, (m + 1) / bins]."""
    error = 0.0
    for number in range(bins):
        mass = confidence = correct = 0.0
        for sure, hit, weight in zip(confidences, right, weights, strict=True):
            if number / bins < sure <= (number + 1) / bins:
                mass += weight
                confidence += weight * sure
                correct += weight * hit
        error += abs(correct - confidence) / sum(weights)
    return error


def window_agreement(predicted: Sequence[int], recordings: Sequence[int]) -> float:
    """The share of windows that have the class of most windows of their recording."""
    right = 0
    for recording in set(recordings):
        said = [label for label, own in zip(predicted, recordings, strict=True) if own == recording]
        right += max(said.count(label) for label in said)
    return right / len(predicted)
