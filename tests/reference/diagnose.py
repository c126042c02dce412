"""Diagnosis of a recording the plain way: window by window, class by class; a temperature by trying many."""

from __future__ import annotations

import math


def pooled(log_probabilities, temperature: float = 1.0) -> tuple[list[float], float]:
    """Probabilities (class,) and the share of windows that agree with the likeliest class."""
    count, classes = len(log_probabilities), len(log_probabilities[0])
    raised = []
    for place in range(classes):
        total = 0.0
        for window in log_probabilities:
            total += float(window[place])
        raised.append(math.exp(total / count / temperature))
    probabilities = [one / sum(raised) for one in raised]
    best = probabilities.index(max(probabilities))
    agreeing = sum(1 for window in log_probabilities if list(window).index(max(window)) == best)
    return probabilities, agreeing / count


def temperature(recordings, labels) -> float:
    """The best of a fine grid, with labels believed to (n + 1)/(n + 2)."""
    count, classes = len(recordings), len(recordings[0][0])

    def loss(one: float) -> float:
        total = 0.0
        for recording, label in zip(recordings, labels, strict=True):
            probabilities, _ = pooled(recording, one)
            for place in range(classes):
                believed = (count + 1) / (count + 2) if place == label else 1 / (count + 2) / (classes - 1)
                total -= believed * math.log(probabilities[place])
        return total

    return min((math.exp(step / 100) for step in range(-230, 231)), key=loss)
