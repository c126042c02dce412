"""Clipping and loudness of lines the plain way: a sample, a bin and a band at a time."""

from __future__ import annotations

import math


def clipped(samples: list[float]) -> float:
    """Share of samples at the highest and lowest value: 4 or more there, and 3 times as many as within 1 % of the range."""
    if len(set(samples)) <= 16:
        return 0.0
    low, high, found = min(samples), max(samples), 0
    for limit in (low, high):
        at = sum(sample == limit for sample in samples)
        close = sum(0 < abs(sample - limit) < 0.01 * (high - low) for sample in samples)
        found += at if at >= 4 and at > 3 * close else 0
    return found / len(samples)


def amplitude(power: list[list[float]], levels: list[list[float]], loudness: list[float], places: list[float]) -> float:
    """Fourth root of Σ over narrow bands and places of loudness² × what of the power is beyond its background."""
    total = 0.0
    for band in range(len(power) // 2, len(power)):
        for place in places:
            below = math.floor(place)
            excess = [power[band][k] * (1 - math.exp(-max(levels[band][k], 0))) for k in (below, below + 1)]
            total += loudness[band] ** 2 * max(excess)
    return total**0.25
