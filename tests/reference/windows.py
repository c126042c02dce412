"""Windows the plain way: one at a time, in float64."""

from __future__ import annotations

import numpy as np


def standardised(window: np.ndarray) -> np.ndarray:
    window = np.asarray(window, dtype=np.float64)
    centred = window - window.mean()
    deviation = np.sqrt((centred**2).mean())
    return centred / deviation if window.max() > window.min() else np.zeros_like(window)


def magnitudes(window: np.ndarray) -> np.ndarray:
    """The discrete Fourier transform by its definition."""
    window = np.asarray(window, dtype=np.float64)
    length = len(window)
    times = np.arange(length)
    return np.array(
        [abs(np.sum(window * np.exp(-2j * np.pi * bin_ * times / length))) / length for bin_ in range(length // 2)]
    )


def prepared(signal: np.ndarray, length: int, stride: int, kind: str) -> np.ndarray:
    rows = []
    start = 0
    while start + length <= len(signal):
        window = signal[start : start + length]
        rows.append(standardised(window if kind == "time" else magnitudes(window)))
        start += stride
    return np.array(rows)
