"""Trust without labels the plain way: one window, class or draw at a time, no arrays of more than an axis."""

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


def pooled(log_probabilities, temperature: float = 1.0) -> tuple[list[float], float]:
    """Probabilities (class,) and the share of windows that agree with the likeliest class."""
    count, classes = len(log_probabilities), len(log_probabilities[0])
    raised = []
    for place in range(classes):
        total = 0.0
        for window in log_probabilities:
            total += float(window[place])
        raised.append(math.exp(total / count / temperature))
    probabilities = [value / sum(raised) for value in raised]
    best = probabilities.index(max(probabilities))
    agreeing = sum(1 for window in log_probabilities if list(window).index(max(window)) == best)
    return probabilities, agreeing / count


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
