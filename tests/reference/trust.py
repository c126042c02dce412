"""Trust without labels the plain way: one window, class or draw at a time."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np


def distance(known: np.ndarray, row: np.ndarray, neighbours: int) -> float:
    """To the neighbours-th nearest, all of length 1."""
    known, row = (values / np.linalg.norm(values, axis=-1, keepdims=True) for values in (known, row))
    return np.sort(np.linalg.norm(known - row, axis=1))[neighbours - 1]


def shape(magnitudes: np.ndarray, bands: int, least: float) -> np.ndarray:
    """Log shares of energy in equal bands, the first bin left out."""
    power = magnitudes[1:] ** 2
    edges = [band * len(power) // bands for band in range(bands)] + [len(power)]
    return np.log([max(power[a:b].sum() / power.sum(), least) for a, b in pairwise(edges)])


def oddness(known: np.ndarray, row: np.ndarray, neighbours: int) -> float:
    """Distance to the neighbours-th nearest over the mean of what those neighbours have among each other."""
    away = np.linalg.norm(known - row, axis=1)
    nearest = away.argsort()[:neighbours]
    reach = [np.sort(np.linalg.norm(known - known[place], axis=1))[neighbours] for place in nearest]  # 0 is itself
    return away[nearest[-1]] / np.mean(reach)


def interval(evidence, past, near, fewest, shares):
    """Quantiles of past truths; a run counts exp(−(d / near)² / 2) / (runs of its group), nothing beyond 3 · near."""
    runs = [(row[-1], math.dist(row[:-1], evidence), 1 / len(rows)) for rows in past.values() for row in rows]
    truth, distance, weight = np.array(sorted(runs)).T
    near = max(near, np.sort(distance)[min(fewest, len(runs)) - 1] / 1.5)
    weight = np.where(distance <= 3 * near, weight * np.exp(-((distance / near) ** 2) / 2), 0.0)
    reached = weight.cumsum() / weight.sum()
    return [truth[np.argmax(reached >= share - 1e-9)] for share in shares]
