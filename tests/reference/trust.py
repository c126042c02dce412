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
    runs = [(math.dist(row[:-1], evidence), row[-1], 1 / len(rows)) for rows in past.values() for row in rows]
    distances = sorted(distance for distance, _, _ in runs)
    near = max(near, distances[min(fewest, len(runs)) - 1] / 1.5)
    weighted = sorted(
        (truth, weight * math.exp(-((distance / near) ** 2) / 2) if distance <= 3 * near else 0.0)
        for distance, truth, weight in runs
    )
    total, found = sum(weight for _, weight in weighted), []
    for share in shares:
        reached, places = 0.0, []
        for truth, weight in weighted:
            reached += weight / total
            places += [truth] if reached >= share - 1e-9 else []
        found.append(places[0] if places else weighted[-1][0])
    return found
