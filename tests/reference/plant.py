"""Slow twins for targets as plants have them, written from the formulas (docs/protocol.md)."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from scipy.spatial.distance import cdist


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
        def squares() -> np.ndarray:
            return cdist(groups, centres + shift, "sqeuclidean")  # (group, state)

        shares, earlier = np.full(len(centres), 1 / len(centres)), -np.inf
        variance = max(np.where(possible, squares(), np.inf).min(axis=1).mean() / axes, floor)
        for _ in range(rounds):
            density = np.exp(-squares() / (2 * variance)) / (2 * np.pi * variance) ** (axes / 2)
            joint = shares * density * possible
            total = np.log(joint.sum(axis=1)).sum()
            if total - earlier < 1e-9 * abs(total):
                break
            earlier, likely = total, joint / joint.sum(axis=1, keepdims=True)
            shares = np.maximum(likely.mean(axis=0), 1e-6)
            shares = shares / shares.sum()
            if free:
                shift = (groups - likely @ centres).mean(axis=0)
            variance = max((likely * squares()).sum() / groups.size, floor)
        return total

    return fitted(offset, True) - fitted(np.zeros(axes), False) - axes / 2 * np.log(len(groups))
