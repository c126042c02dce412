"""Slow twins for targets as plants have them, written from the formulas (docs/protocol.md)."""

from __future__ import annotations

from itertools import permutations

import numpy as np


def best_matching(groups: np.ndarray, centres: np.ndarray) -> tuple[tuple[int, ...], float]:
    """Of all ways to give each group a class of its own, the one that leaves least, each under its best offset."""
    found = []
    for classes in permutations(range(len(centres))):
        moved = np.array([groups[group] - centres[code] for group, code in enumerate(classes)])
        left = sum(np.sum((row - moved.mean(axis=0)) ** 2) for row in moved)
        found.append((left, classes))
    left, classes = min(found)
    scatter = sum(np.sum((centre - centres.mean(axis=0)) ** 2) for centre in centres)
    return classes, 1 - left / scatter


def likelihood_gain(groups, centres, offset, noise, possible, rounds: int = 50) -> float:
    """Twice EM of a mixture of states with free shares and one scatter, with a free offset and with none; the
    difference of the log-likelihoods, less ln(groups) / 2 for each axis of the offset.
    """
    floor, axes = sum(noise) / len(noise), len(groups[0])

    def fitted(shift, free: bool) -> float:
        shares, members, states = [1 / len(centres)] * len(centres), range(len(groups)), range(len(centres))

        def squares() -> np.ndarray:
            return np.array([[np.sum((groups[n] - centres[k] - shift) ** 2) for k in states] for n in members])

        nearest = [min(squares()[n][k] for k in states if possible[n][k]) for n in members]
        variance, earlier = max(np.mean(nearest) / axes, floor), -np.inf
        for _ in range(rounds):
            density = np.exp(-squares() / (2 * variance)) / (2 * np.pi * variance) ** (axes / 2)
            joint = np.array([[shares[k] * density[n][k] * possible[n][k] for k in states] for n in members])
            total = sum(np.log(row.sum()) for row in joint)
            if total - earlier < 1e-9 * abs(total):
                break
            earlier, likely = total, np.array([row / row.sum() for row in joint])
            shares = np.maximum(likely.mean(axis=0), 1e-6)
            shares = shares / shares.sum()
            if free:
                shift = np.mean([groups[n] - sum(likely[n][k] * centres[k] for k in states) for n in members], axis=0)
            variance = max((likely * squares()).sum() / groups.size, floor)
        return total

    return fitted(offset, True) - fitted(np.zeros(axes), False) - axes / 2 * np.log(len(groups))
