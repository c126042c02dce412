"""Check models and intervals from past runs, written from their formulas with loops and no arrays of more than an axis."""

from __future__ import annotations

import math

import numpy as np


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
