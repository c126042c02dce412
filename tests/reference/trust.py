"""Trust without labels the plain way: one window at a time, one draw at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

Rows = Sequence[Sequence[float]]


def distance(known: Rows, new_row: Sequence[float], neighbours: int) -> float:
    """To the neighbours-th nearest, all of length 1."""

    def unit(row: Sequence[float]) -> list[float]:
        length = math.sqrt(sum(x * x for x in row))
        return [x / length for x in row]

    return sorted(math.dist(unit(new_row), unit(known_row)) for known_row in known)[neighbours - 1]


def shape(magnitudes: Sequence[float], bands: int, least: float) -> list[float]:
    """Log shares of energy in equal bands, the first bin left out."""
    rest = magnitudes[1:]
    power = [magnitude**2 for magnitude in rest]
    edges = [band * len(rest) // bands for band in range(bands)] + [len(rest)]
    return [math.log(max(sum(power[a:b]) / sum(power), least)) for a, b in pairwise(edges)]


def oddness(known: Rows, new_row: Sequence[float], neighbours: int) -> float:
    """Distance to the neighbours-th nearest over the mean of what those neighbours have among each other."""

    def reach(place: int) -> float:
        others = known[:place] + known[place + 1 :]
        return sorted(math.dist(known[place], other) for other in others)[neighbours - 1]

    order = sorted(range(len(known)), key=lambda place: math.dist(new_row, known[place]))[:neighbours]
    return math.dist(new_row, known[order[-1]]) / (sum(map(reach, order)) / neighbours)
