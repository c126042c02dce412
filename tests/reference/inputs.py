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
        rows.append(unit(window if kind == "time" else magnitudes(window)))
        start += stride
    return np.array(rows)


def power_of(window: np.ndarray) -> np.ndarray:
    """|FFT(Hann·x)|²."""
    return abs(np.fft.fft(unit(window) * signal.get_window("hann", len(window)))) ** 2


def in_log(means: np.ndarray) -> np.ndarray:
    """Log of each band's mean over the mean of all bands, less the mean of these."""
    levels = np.log(means / means.mean() + 1e-12)
    return levels - levels.mean()


def log_spectrum(window: np.ndarray, bands: int) -> np.ndarray:
    """Of the bins in each of equal bands."""
    power, bins = power_of(window), range(1, len(window) // 2)
    members: list[list[float]] = [[] for _ in range(bands)]
    for number, k in enumerate(bins):
        members[number * bands // len(bins)].append(power[k])
    return in_log(np.array([np.mean(member) for member in members]))


def octave_spectrum(window: np.ndarray, bands: int, octaves: float) -> np.ndarray:
    """Of bands whose edges are n/2 · 2^(−octaves·(1 − j/bands)) bins; bin k lies from k − ½ to k + ½."""
    n, power, means = len(window), power_of(window), []
    for band in range(bands):
        low, high = (n / 2 * 2 ** (-octaves * (1 - edge / bands)) for edge in (band, band + 1))
        low, high = max(low, 0.5), min(high, n // 2 - 0.5)
        shares = {k: max(0.0, min(high, k + 0.5) - max(low, k - 0.5)) for k in range(1, n // 2)}
        means.append(sum(share * power[k] for k, share in shares.items()) / (high - low))
    return in_log(np.array(means))


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


def envelope_levels(window: np.ndarray, rate: float, rpm: float, bands: int, places: list[list[float]]) -> np.ndarray:
    """Log of the level of each band's envelope over its mean, less 1, the highest of each place's orders; standardised."""
    levels = []
    for e in band_envelopes(unit(window), bands):
        relative = e / e.mean() - 1
        levels += [math.log(max(level(relative, rate, rpm, order) for order in near) + 1e-6) for near in places]
    return (np.array(levels) - np.mean(levels)) / np.std(levels)


def envelope_orders(
    window: np.ndarray, rate: float, rpm: float, bands: int, first: float, last: float, number: int
) -> np.ndarray:
    return envelope_levels(window, rate, rpm, bands, [[order] for order in np.linspace(first, last, number)])


def bearing_orders(
    window: np.ndarray, rate: float, rpm: float, orders: dict[str, float], bands: int, multiples: int
) -> np.ndarray:
    """Within 0.8 % of each place of the bearing (docs/inputs.md lists them)."""
    places = []
    for strike in (orders["BPFO"], orders["BPFI"], 2 * orders["BSF"]):
        for number in range(1, multiples + 1):
            line = number * strike
            places += [line, line - 1, line + 1, line - orders["FTF"], line + orders["FTF"]]
        places += [(number + 0.37) * strike for number in range(multiples)]
    places += [orders["BSF"], 3 * orders["BSF"], *range(1, 9), *(number * orders["FTF"] for number in range(1, 5))]
    shares = (-0.008, -0.004, 0, 0.004, 0.008)
    return envelope_levels(window, rate, rpm, bands, [[place * (1 + share) for share in shares] for place in places])
