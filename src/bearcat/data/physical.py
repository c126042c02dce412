"""What the physical inputs measure of windows; docs/inputs.md has the formulas, tests/reference/inputs.py slow loops.

One FFT of a window serves every measurement. Levels at shaft orders, which lie between the bins of an FFT, come from
a nonuniform FFT instead of sums of cosines (Kaiser-Bessel kernel, Jackson et al. 1991): 1e-8 of a signal's amplitude.

>>> spectra = WindowSpectra.of(windows)                             # (window, channel, time)
>>> envelope_orders(spectra, turns=6.4, bands=4, last=40, number=160)   # (window, channel, point)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import bearing_lines
from bearcat.data.recording import Floats, squared_magnitude, standardise

Array = NDArray[Any]

FLOOR = 1e-12  # of a share of power, below which float32 recordings hold nothing but rounding
LEVEL_FLOOR = 1e-6  # of a level in an envelope spectrum, in units of the envelope's mean
OVERSAMPLED = 2  # an envelope has kinks, whose overtones would fold back
FEWEST = 256  # times at which an envelope is sampled, so that what is filtered away is far from the orders
BLOCK = 1 << 18  # samples worked on at once, which bounds the memory; measured (docs/design.md)
NEAR, SLIP = 5, 0.008  # places tried around each line of a bearing, and how far they reach
FIRST_ORDER = 0.5  # of the shaft, at which envelopes are read
TAPS = 10  # bins of a grid twice as fine that a place between them is made of


@dataclass(frozen=True, eq=False)
class WindowSpectra:
    """The spectra of windows, each standardised before: (window, channel, bin) complex, of so many samples."""

    lines: NDArray[np.complex64]
    length: int

    @staticmethod
    def of(windows: Array) -> WindowSpectra:
        from scipy import fft

        return WindowSpectra(fft.rfft(standardise(windows)), windows.shape[-1])

    @cached_property
    def tapered_power(self) -> Floats:
        """(window, channel, bin) from bin 1 on, but for the last; 16 times that of a Hann window."""
        # The Hann window in the frequency domain: a bin less half of its neighbours.
        tapered = self.lines[..., 1:-1] * np.float32(2)
        tapered -= self.lines[..., :-2]
        tapered -= self.lines[..., 2:]
        return squared_magnitude(tapered)


def band_signals(lines: Array, bands: int, oversampled: int = 1) -> NDArray[np.complex64]:
    """(…, bin) → (…, band, time) analytic signals of equal bands, sampled at 2 × `oversampled` times their bins."""
    from scipy import fft

    width = (lines.shape[-1] - 1) // bands
    padded = np.empty((*lines.shape[:-1], bands, 2 * oversampled * width), dtype=lines.dtype)
    padded[..., :width] = lines[..., : width * bands].reshape(*lines.shape[:-1], bands, width)
    padded[..., width:] = 0
    return np.asarray(fft.ifft(padded, overwrite_x=True))  # in the same memory


def log_spectrum(spectra: WindowSpectra, bands: int) -> Floats:
    """Logarithms of the mean power in equal bands without their mean: the shape of the spectrum, whatever the gain."""
    return _band_levels(spectra, np.ceil(np.arange(bands + 1) * (spectra.length // 2 - 1) / bands))


def octave_spectrum(spectra: WindowSpectra, bands: int, octaves: float) -> Floats:
    """The same in bands that grow geometrically over so many octaves below half the rate."""
    edges = np.logspace(-octaves, 0, bands + 1, base=2) * (spectra.length / 2) - 0.5
    return _band_levels(spectra, edges)


def _band_levels(spectra: WindowSpectra, edges: NDArray[np.float64]) -> Floats:
    """Levels of bands whose `edges` (band + 1,) are counted from the lower edge of bin 1."""
    power = spectra.tapered_power
    edges = np.clip(edges, 0, power.shape[-1])
    first = np.minimum(edges.astype(np.int64), power.shape[-1] - 1)
    whole = np.add.reduceat(power, first, axis=-1)[..., :-1] * (np.diff(first) > 0)
    cut = power[..., first] * (edges - first)  # a bin that an edge cuts counts by its shares
    mean = (whole + np.diff(cut)) / np.diff(edges)
    level = np.log(_over(mean, mean.mean(axis=-1, keepdims=True)) + FLOOR)
    return np.asarray(level - level.mean(axis=-1, keepdims=True), dtype=np.float32)


def band_kurtosis(spectra: WindowSpectra, bands: int) -> Floats:
    """log(mean e⁴ / (mean e²)²) of the envelope e of equal bands."""
    power = squared_magnitude(band_signals(spectra.lines, bands))
    mean, fourth = power.mean(axis=-1), np.vecdot(power, power) / np.float32(power.shape[-1])
    return np.log(np.maximum(_over(fourth, mean * mean), np.float32(1)))


def envelope_orders(spectra: WindowSpectra, turns: float, bands: int, last: float, number: int) -> Floats:
    """Spectra of the envelopes of equal bands at shaft orders from FIRST_ORDER on, in log, standardised in a window."""
    orders = np.linspace(FIRST_ORDER, last, number)
    return _vector(_envelope_levels(spectra, turns, bands, orders))


def bearing_orders(spectra: WindowSpectra, turns: float, bands: int, multiples: int, orders: Array) -> Floats:
    """The same at the places of `bearing_lines`: the highest level within SLIP of each; `orders` as KINEMATIC."""
    sums = np.array(list(bearing_lines(multiples).values()))  # of these orders and the shaft's
    lines = np.asarray(sums @ np.append(orders, 1.0))
    places = lines[:, None] * (1 + np.linspace(-SLIP, SLIP, NEAR))
    level = _envelope_levels(spectra, turns, bands, places.ravel())
    return _vector(level.reshape(*level.shape[:-1], len(places), NEAR).max(axis=-1))


def _envelope_levels(spectra: WindowSpectra, turns: float, bands: int, orders: NDArray[np.float64]) -> Floats:
    """(window, channel, band, order) logarithms of the amplitudes of relative envelopes."""
    envelopes = np.abs(band_signals(spectra.lines, bands, OVERSAMPLED))
    return np.asarray(np.log(order_amplitudes(envelopes, turns, orders) + np.float32(LEVEL_FLOOR)))


def order_amplitudes(values: Floats, turns: float, orders: NDArray[np.float64]) -> Floats:
    """Amplitudes at orders (order,) of signals (…, time) over so many turns, less their means and in units of them,
    under a Hann window whose sum is 2.
    """
    from scipy import fft

    size = values.shape[-1]
    points = min(size, max(FEWEST, 2 ** math.ceil(math.log2(4 * turns * float(orders.max())))))
    weight, bins, taps = _kernel(points, turns, tuple(orders.tolist()))
    lines = fft.rfft(values)[..., : points // 2 + 1]  # as many as the highest order needs
    mean = lines[..., :1].real / np.float32(points)
    lines[..., 0] = 0
    spectrum = fft.rfft(fft.irfft(lines, points) * weight, 2 * points)
    mirrored = spectrum[..., TAPS:0:-1].conj(), spectrum[..., -2 : -2 - TAPS : -1].conj()
    around = np.concatenate([mirrored[0], spectrum, mirrored[1]], axis=-1)
    return _over(np.abs(np.einsum("...ot,ot->...o", np.take(around, bins, axis=-1), taps)), mean)


@lru_cache(maxsize=16)
def _kernel(points: int, turns: float, orders: tuple[float, ...]) -> tuple[Floats, Array, NDArray[np.complex64]]:
    """Weights (time,), and bins and factors (order, tap) of which each order is made: of a grid twice as fine, whose
    bin −TAPS is the first.
    """
    from scipy.special import i0  # several times as fast as numpy's

    beta = 0.75 * math.pi * TAPS
    time = np.arange(points) - points // 2
    root = np.sqrt(beta**2 - np.square(np.pi * TAPS * time / (2 * points)))
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(points) / points)
    weight = 2 * hann / hann.sum() * root / (TAPS * np.sinh(root))
    position = 2 * turns * np.array(orders)[:, None]
    bins = np.ceil(position - TAPS / 2).astype(np.int64) + np.arange(TAPS)
    taps = i0(beta * np.sqrt(np.maximum(1 - np.square(2 * (position - bins) / TAPS), 0)))
    centred = np.array([1, 1j, -1, -1j])[bins % 4]  # the middle of a window is time 0
    return weight.astype(np.float32), bins + TAPS, (taps * centred).astype(np.complex64)


def _vector(levels: Array) -> Floats:
    """Levels (window, channel, …) as (window, channel, point), by their mean and deviation."""
    level = levels.reshape(*levels.shape[:2], math.prod(levels.shape[2:]))
    level = level - level.mean(axis=-1, keepdims=True, dtype=np.float64).astype(np.float32)
    return _over(level, np.sqrt(np.square(level).mean(axis=-1, keepdims=True)))


def _over(values: Array, scale: Array) -> Array:
    """Values over a scale; where that is 0, as in a window without vibration, as they are."""
    return np.asarray(values / (scale if scale.all() else np.where(scale == 0, np.ones_like(scale), scale)))
