"""Physical diagnosis the plain way: a bin, a line and a speed at a time, in float64, from the formulas in docs/diagnose.md."""

from __future__ import annotations

import cmath
import math

import numpy as np


def whitened(window: np.ndarray, taper: float = 0.05) -> np.ndarray:
    """The DFT of the centred window, whose ends rise and fall like a cosine, each bin over its magnitude."""
    n = len(window)
    x = np.asarray(window, dtype=np.float64) - np.mean(window, dtype=np.float64)
    for i in range(n):
        distance = min(i, n - 1 - i) / (taper * (n - 1))
        x[i] *= 0.5 - 0.5 * math.cos(math.pi * distance) if distance < 1 else 1.0
    lines = np.fft.fft(x)
    return lines / np.maximum(abs(lines), 1e-6 * abs(lines).max())


def squared_envelope(lines: np.ndarray, start: int, width: int, size: int) -> np.ndarray:
    """|Σ_j X(start + j) exp(2πi·j·t/size)|² at `size` times."""
    return np.array([
        abs(sum(lines[start + j] * cmath.exp(2j * math.pi * j * t / size) for j in range(width)) / size) ** 2
        for t in range(size)
    ])  # fmt: skip


def power(envelope: np.ndarray, bins: int, taper: float = 0.05) -> tuple[np.ndarray, float]:
    """Power of the Hann-tapered envelope over its mean (of the middle part), less 1; and mean e⁴ over (mean e²)²."""
    size, edge = len(envelope), int(taper * len(envelope))
    middle = envelope[edge : size - edge]
    found = []
    for k in range(bins):
        total = 0j
        for t in range(size):
            hann = 0.5 - 0.5 * math.cos(2 * math.pi * t / size)
            total += hann * (envelope[t] / middle.mean() - 1) * cmath.exp(-2j * math.pi * k * t / size)
        found.append(abs(total) ** 2 / size)
    return np.array(found), float((middle**2).mean() / middle.mean() ** 2)


def level(power: np.ndarray, bin: int, reach: int, lowest: int) -> float:
    """log of the power over the median of `reach` bins to either side, mirrored at the ends."""
    if bin < lowest:
        return 0.0
    mirrored = []
    for k in range(bin - reach, bin + reach + 1):
        place = -k - 1 if k < 0 else 2 * len(power) - 1 - k if k >= len(power) else k
        mirrored.append(power[place])
    return math.log(power[bin] / np.median(mirrored))


def comb(levels: np.ndarray, order: float, scale: float, turns: float) -> list[float]:
    """The higher of the two bins around 1, 2 and 3 times an order."""
    found = []
    for multiple in (1, 2, 3):
        below = math.floor(multiple * order * scale * turns)
        found.append(max(levels[below], levels[below + 1]))
    return found
