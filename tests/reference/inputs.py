"""Inputs the plain way: a window, a band and an order at a time, by SciPy, in float64.

A window x of n samples at a rate, first brought to mean 0 and deviation 1. X is its FFT. Band j of b has the bins from
j·w to (j + 1)·w, w = ⌊⌊n/2⌋/b⌋; its envelope is the magnitude of the analytic signal of x restricted to these bins.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import signal


def unit(window: np.ndarray) -> np.ndarray:
    window = np.asarray(window, dtype=np.float64)
    centred = window - window.mean()
    return centred / centred.std() if window.max() > window.min() else np.zeros_like(window)


def magnitudes(window: np.ndarray) -> np.ndarray:
    return abs(np.fft.fft(window))[: len(window) // 2] / len(window)


def prepared(signal: np.ndarray, length: int, stride: int, kind: str) -> np.ndarray:
    starts = range(0, len(signal) - length + 1, stride)
    windows = [signal[start : start + length] for start in starts]
    return np.array([unit(window if kind == "time" else magnitudes(window)) for window in windows])


def power(window: np.ndarray) -> np.ndarray:
    """|FFT(Hann·x)|²."""
    return abs(np.fft.fft(unit(window) * signal.get_window("hann", len(window)))) ** 2


def log_levels(means: list[float]) -> np.ndarray:
    """Log over the mean of all bands, less the mean."""
    levels = np.log(np.array(means) / np.mean(means) + 1e-12)
    return levels - levels.mean()


def log_spectrum(window: np.ndarray, bands: int) -> np.ndarray:
    """Of the mean power over the bins of each band."""
    spectrum, bins = power(window), range(1, len(window) // 2)
    members: list[list[float]] = [[] for _ in range(bands)]
    for number, k in enumerate(bins):
        members[number * bands // len(bins)].append(spectrum[k])
    return log_levels([np.mean(member) for member in members])


def octave_spectrum(window: np.ndarray, bands: int, octaves: float) -> np.ndarray:
    """The same in bands whose edges are n/2 · 2^(−octaves·(1 − j/bands)) bins; bin k lies from k − ½ to k + ½."""
    n, spectrum, means = len(window), power(window), []
    for band in range(bands):
        low, high = (n / 2 * 2 ** (-octaves * (1 - edge / bands)) for edge in (band, band + 1))
        low, high = max(low, 0.5), min(high, n // 2 - 0.5)
        shares = {k: max(0.0, min(high, k + 0.5) - max(low, k - 0.5)) for k in range(1, n // 2)}
        means.append(sum(share * spectrum[k] for k, share in shares.items()) / (high - low))
    return log_levels(means)


def band_envelopes(window: np.ndarray, bands: int) -> list[np.ndarray]:
    """The envelope (time,) of each band, by SciPy's Hilbert transform at full length."""
    n, lines = len(window), np.fft.rfft(window)
    width = n // 2 // bands
    found = []
    for band in range(bands):
        alone = np.zeros_like(lines)
        alone[band * width : (band + 1) * width] = lines[band * width : (band + 1) * width]
        found.append(abs(signal.hilbert(np.fft.irfft(alone, n))))
    return found


def band_kurtosis(window: np.ndarray, bands: int) -> np.ndarray:
    """Log of mean(e⁴)/mean(e²)²."""
    return np.array([math.log((e**4).mean() / (e**2).mean() ** 2) for e in band_envelopes(unit(window), bands)])


def level(values: np.ndarray, rate: float, rpm: float, order: float) -> float:
    """Twice the magnitude of Σ h·v·e^(−2πi·order·angle) over Σ h, with the angle in turns and h a Hann window."""
    weights = signal.get_window("hann", len(values))
    rotation = np.exp(-2j * np.pi * order * np.arange(len(values)) * rpm / 60 / rate)
    return float(2 * abs((weights * values * rotation).sum()) / weights.sum())


def envelope_orders(
    window: np.ndarray, rate: float, rpm: float, bands: int, first: float, last: float, number: int
) -> np.ndarray:
    """Log of the level of each band's envelope over its mean, less 1, at each order; standardised over all of them."""
    levels = []
    for e in band_envelopes(unit(window), bands):
        for order in np.linspace(first, last, number):
            levels.append(math.log(level(e / e.mean() - 1, rate, rpm, order) + 1e-6))
    return (np.array(levels) - np.mean(levels)) / np.std(levels)


def bearing_orders(
    window: np.ndarray, rate: float, rpm: float, orders: dict[str, float], bands: int, multiples: int
) -> np.ndarray:
    """Log of the highest level of each band's envelope over its mean, less 1, within 0.8 % of each place of the
    bearing (docs/inputs.md lists them); standardised over all of them.
    """
    places = []
    for strike in (orders["BPFO"], orders["BPFI"], 2 * orders["BSF"]):
        for number in range(1, multiples + 1):
            line = number * strike
            places += [line, line - 1, line + 1, line - orders["FTF"], line + orders["FTF"]]
        places += [(number + 0.37) * strike for number in range(multiples)]
    places += [orders["BSF"], 3 * orders["BSF"], *range(1, 9), *(number * orders["FTF"] for number in range(1, 5))]
    levels = []
    for e in band_envelopes(unit(window), bands):
        relative = e / e.mean() - 1
        for place in places:
            near = [level(relative, rate, rpm, place * (1 + share)) for share in (-0.008, -0.004, 0, 0.004, 0.008)]
            levels.append(math.log(max(near) + 1e-6))
    return (np.array(levels) - np.mean(levels)) / np.std(levels)
