"""Velocity of a vibration as loops say it: every window and every bin of its Fourier transform by itself."""

from __future__ import annotations

import cmath
import math


def velocity_rms(samples: list[float], rate: float, window: int, low: float, high: float) -> float:
    """mm/s of accelerations in m/s²: each bin's amplitude over its angular frequency, means over windows that overlap
    by half, Hann tapers, each window's mean taken off.
    """
    mean = sum(samples) / len(samples)
    samples, taper = [each - mean for each in samples], []
    for place in range(window):
        taper.append(0.5 - 0.5 * math.cos(2 * math.pi * place / window))
    total, windows = 0.0, 0
    for start in range(0, len(samples) - window + 1, window - window // 2):
        part = samples[start : start + window]
        middle = sum(part) / window
        for number in range(1, window // 2 + 1):
            hertz = number * rate / window
            if not low <= hertz <= high:
                continue
            line = 0j
            for place in range(window):
                turn = cmath.exp(-2j * math.pi * number * place / window)
                line += taper[place] * (part[place] - middle) * turn
            square = 2 * abs(line) ** 2 / (window * sum(each**2 for each in taper))
            total += square / (2 * math.pi * hertz) ** 2
        windows += 1
    return 1000 * math.sqrt(total / windows)
