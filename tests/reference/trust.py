"""Trust without labels the plain way: one window, class or draw at a time, no arrays of more than an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

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


def temperature(recordings, accuracy: float) -> float:
    """Of a fine grid, where recordings expect nearest to this share of windows to be right."""
    windows = sum(len(recording) for recording in recordings)

    def expected(temperature: float) -> float:
        total = 0.0
        for recording in recordings:
            probabilities = pooled(recording, temperature)[0]
            for window in recording:  # right if the recording is of the class that the window was given
                total += probabilities[list(window).index(max(window))]
        return total / windows

    grid = (math.exp(step / 100) for step in range(461))
    return min(grid, key=lambda place: abs(expected(place) - accuracy))


def moved_centres(points, recording, centres, start, own, rounds=30):
    """EM by the book. Likelihood of recording r under class c: exp(−|m_r − (μ_c + o + a_c)|² / 2σ²) π_c."""
    points, centres, classes = list(map(np.array, points)), list(map(np.array, centres)), range(len(centres))
    members = [
        [point for point, number in zip(points, recording, strict=True) if number == name]
        for name in sorted(set(recording))
    ]
    means = [sum(rows) / len(rows) for rows in members]
    squares = [((point - mean) ** 2).mean() for mean, rows in zip(means, members, strict=True) for point in rows]
    variance = max(sum(squares) / len(squares), 1e-6)
    offset, apart, shares = np.array(start), [0 * centre for centre in centres], [1 / len(centres) for _ in classes]
    for _ in range(rounds):
        chances = []
        for mean in means:
            away = [((mean - centres[c] - offset - apart[c]) ** 2).sum() for c in classes]
            likely = [math.log(max(shares[c], 1e-6)) - away[c] / (2 * variance) for c in classes]
            likely = [math.exp(value - max(likely)) for value in likely]
            chances.append([value / sum(likely) for value in likely])
        counts = [sum(chance[c] for chance in chances) for c in classes]
        shares = [(count + 0.1) / (sum(counts) + 0.1 * len(centres)) for count in counts]
        recordings = list(zip(means, chances, strict=True))
        offset = sum(chance[c] * (mean - centres[c] - apart[c]) for mean, chance in recordings for c in classes)
        offset = offset / len(means)
        if own:
            moved = [sum(chance[c] * (mean - centres[c] - offset) for mean, chance in recordings) for c in classes]
            apart = [moved[c] / (counts[c] + 1) for c in classes]
    return [(centres[c] + offset + apart[c]).tolist() for c in classes]


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


def votes(checks, recording, classes):
    """For each window the share of (check model, window of its recording) pairs that say each class."""
    found = []
    for name in recording:
        said = [
            code for predicted in checks.values() for code, of in zip(predicted, recording, strict=True) if of == name
        ]
        found.append([said.count(code) / len(said) for code in range(classes)])
    return found
