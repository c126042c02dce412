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
