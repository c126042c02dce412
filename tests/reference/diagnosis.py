"""Physical diagnosis the plain way: a bin, a line and a speed at a time, in float64, from the formulas in docs/diagnose.md."""

from __future__ import annotations

import math

import numpy as np
from scipy import signal


def whitened(window: np.ndarray, taper: float = 0.05) -> np.ndarray:
    """The DFT of the centred window, whose ends rise and fall like a cosine, each bin over its magnitude."""
    centred = np.asarray(window, dtype=np.float64) - np.mean(window, dtype=np.float64)
    lines = np.fft.fft(centred * signal.windows.tukey(len(window), 2 * taper))
    return lines / np.maximum(abs(lines), 1e-6 * abs(lines).max())


def squared_envelope(lines: np.ndarray, start: int, width: int, size: int) -> np.ndarray:
    """|Σ_j X(start + j) exp(2πi·j·t/size) / size|² at `size` times."""
    return abs(np.fft.ifft(lines[start : start + width], size)) ** 2


def power(envelope: np.ndarray, bins: int, taper: float = 0.05) -> tuple[np.ndarray, float]:
    """Power of the Hann-tapered envelope over its mean (of the middle part), less 1; and mean e⁴ over (mean e²)²."""
    size, edge = len(envelope), int(taper * len(envelope))
    middle = envelope[edge : size - edge]
    spectrum = np.fft.fft(signal.get_window("hann", size) * (envelope / middle.mean() - 1))
    return abs(spectrum[:bins]) ** 2 / size, float((middle**2).mean() / middle.mean() ** 2)


def level(power: np.ndarray, bin: int, reach: int, lowest: int) -> float:
    """log of the power over the median of `reach` bins to either side, mirrored at the ends."""
    around = np.pad(power, reach, mode="symmetric")[bin : bin + 2 * reach + 1]
    return math.log(power[bin] / np.median(around)) if bin >= lowest else 0.0


def comb(levels: np.ndarray, order: float, scale: float, turns: float) -> list[float]:
    """The higher of the two bins around 1, 2 and 3 times an order."""
    below = [math.floor(multiple * order * scale * turns) for multiple in (1, 2, 3)]
    return [max(levels[bin], levels[bin + 1]) for bin in below]
