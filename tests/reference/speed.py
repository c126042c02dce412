"""Speed of the shaft the plain way: a speed, a line and a sample at a time, from docs/diagnose.md."""

from __future__ import annotations

import numpy as np


def supplied(hertz: float, seconds: float) -> bool:
    """Whether a frequency is a multiple of the mains, as far as the mains wander and the line is wide."""
    reach = max(0.003 * hertz, 2.5 / seconds)
    return any(abs(hertz - multiple * supply) <= reach for supply in (50, 60) for multiple in range(1, 100))


def highest(levels: np.ndarray, spacing: float, hertz: float, reach: float = 0.002) -> float:
    """The highest level of the bins nearer to a place than one bin, or than its `reach`."""
    centre = hertz / spacing
    width = max(1.0, reach * centre)
    return max(levels[number] for number in range(len(levels)) if centre - width < number <= centre + width)


def score(levels: np.ndarray, spacing: float, seconds: float, hertz: float) -> tuple[float, float]:
    """Of one speed: the mean of its lines above 6 dB, less the lines between them; and the level of the first."""

    def read(multiples: list[float], floor: float, ceiling: float) -> float:
        places = [multiple * hertz for multiple in multiples if not supplied(multiple * hertz, seconds)]
        found = [min(max(highest(levels, spacing, place) - floor, 0.0), ceiling) for place in places]
        return sum(found) / len(found) if found else 0.0

    if supplied(hertz, seconds) or hertz * seconds < 20:
        return 0.0, 0.0
    first = highest(levels, spacing, hertz)
    if first < 10:
        return 0.0, first
    ground = max(6.0, first - 20)
    halves = [0.5, 1.5, 2.5, 3.5, 4.5]
    thirds = [number / 3 for number in range(1, 12) if number % 3]
    between = max(read(halves, ground, 30.0), read(thirds, ground, 30.0))
    return read([1.0, 2.0, 3.0, 4.0, 5.0], 6.0, 30.0) - between, first
