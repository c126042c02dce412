"""Spectra of the squared envelope of a recording, band by band, on an axis of shaft orders.

A damaged bearing strikes at a multiple of the shaft's speed, and each strike rings resonances of the machine. So the
spectrum of a window is set to magnitude 1 everywhere (cepstral pre-whitening, Borghesani et al. 2013): neither tones of
shaft, gear and supply nor gain, sensor and resonance count, while impacts, which live in the phases, stay. The squared
envelopes of bands are transformed again and averaged over windows of equally many turns (docs/diagnose.md).

>>> envelope_spectra(signal, rate=51_200, rpm=900, last=20.0).power          # (band, order)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Floats, squared_magnitude
from bearcat.errors import InputError

Doubles = NDArray[np.float64]

TURNS = 20  # of the shaft in a window: lines a tenth of an order wide, and seconds at 600 rpm
FEWEST_TURNS = 8  # of a recording that is shorter than a window; its lines touch each other otherwise
OVERLAPPING = 64  # windows that overlap by half; those after them follow each other: there are enough by then
LONGEST = 1 << 21  # samples in a window, which bounds the memory
DEPTH = 3  # the narrowest bands are an eighth of the range, or wide enough for twice the highest order
TAPER = 0.05  # of a window at either end, where it rises from 0 and falls: a jump there would ring in quiet bands
TINIEST = 1e-36  # below which a sample is nothing
FLOOR = 1e-6  # of the highest magnitude, below which a bin holds rounding and is not raised


@dataclass(frozen=True, eq=False)
class Spectra:
    """Mean power (band, bin) of squared envelopes over their squared means; bin k lies at the order k / turns;
    bands are the whole range below half the rate, its halves, quarters and so on (`bands`).
    """

    power: Doubles
    turns: float
    windows: int
    kurtosis: Doubles  # (band,) of the envelope: mean e⁴ / (mean e²)², 2 for noise
    # (band,) mean square of the signal as recorded, in its own units, before it is whitened; 1 where it is not known.
    loudness: Doubles = field(default_factory=lambda: np.ones(1))
    axes: int = 1  # rows are the bands of the first axis, then those of the second (`stacked`)

    def __add__(self, other: Spectra) -> Spectra:
        """Sums over the windows of both."""
        return Spectra(
            self.power + other.power, self.turns, self.windows + other.windows, self.kurtosis + other.kurtosis,
            self.loudness + other.loudness,
        )  # fmt: skip


def envelope_spectra(signal: Floats, rate: float, rpm: float, last: float) -> Spectra:
    """The mean over the windows of a recording, up to the order `last`; of one shorter than a window, what there is."""
    from scipy import fft

    length, total = window_length(rate, rpm), None
    if signal.size < length:
        length = int(fft.prev_fast_len(signal.size, real=True))
    plan, half = Plan(length, rate, rpm, last), length // 2
    starts = chain(range(0, OVERLAPPING * half, half), range(OVERLAPPING * half, signal.size, length))
    for start in starts:
        if start + length <= signal.size and (window := plan.measure(signal[start : start + length])) is not None:
            total = window if total is None else total + window
    if total is None:
        raise InputError("holds no vibration: all samples are the same; check the sensor and the channel")
    many = total.windows
    return Spectra(total.power / many, total.turns, many, total.kurtosis / many, total.loudness / many)


def window_length(rate: float, rpm: float) -> int:
    """Samples in TURNS turns of the shaft; InputError where they are too many."""
    from scipy import fft

    length = int(fft.next_fast_len(max(64, round(TURNS * 60 / rpm * rate)), real=True))
    if length > LONGEST:
        least = f"{60 * TURNS * rate / LONGEST:.3g} rpm is the least"
        raise InputError(f"{TURNS} turns at {rpm:g} rpm are too long at {rate:g} Hz; {least}", "rpm")
    return length


def turns_in(signal: Floats, rate: float, rpm: float) -> float:
    """How often the shaft turns in a recording."""
    return signal.size / rate * rpm / 60


def check_turns(signal: Floats, rate: float, rpm: float) -> None:
    """InputError where a recording holds too few turns of the shaft to be read alone."""
    if (turns := turns_in(signal, rate, rpm)) < FEWEST_TURNS:
        raise InputError(f"holds {turns:.1f} turns of the shaft, and {FEWEST_TURNS} are needed; record longer")


class Plan:
    """How windows of one length become spectra: what is the same for all of them."""

    def __init__(self, length: int, rate: float, rpm: float, last: float) -> None:
        from scipy import fft

        self.length, self.turns = length, length / rate * rpm / 60
        self.bins = int(last * self.turns) + 2
        self.narrow = 1 << min(DEPTH, max(0, int(np.log2((length // 2) / (2 * self.bins)))))  # bands, of `width` bins
        self.width = (length // 2 - 1) // self.narrow
        # An envelope sampled so often has its first bins right: what folds back lies beyond them.
        self.size = int(fft.next_fast_len(self.width + self.bins))
        self.rise, self.weight, self.own = _tapers(length, self.size, self.bins)

    def measure(self, window: Floats) -> Spectra | None:
        """The spectra of one window; None where it holds no vibration."""
        from scipy import fft

        low, high = float(window.min()), float(window.max())
        if low == high:
            return None
        # Scaled before anything is squared, which float32 holds up to 1e19 alone.
        scale = max(high, -low, TINIEST)
        tapered = window - np.float32(window.mean(dtype=np.float64))
        tapered *= np.float32(1 / scale)
        tapered[: self.rise.size] *= self.rise
        tapered[-self.rise.size :] *= self.rise[::-1]
        lines = fft.rfft(tapered)
        magnitude = np.abs(lines)
        highest = magnitude.max()
        if not highest > 0:
            return None
        used = slice(1, 1 + self.width * self.narrow)
        squares = np.square(magnitude[used], dtype=np.float64).reshape(self.narrow, self.width).sum(axis=1)
        loudness = halved(2 * (scale / self.length) ** 2 * squares)
        lines *= 1 / np.maximum(magnitude, np.float32(FLOOR) * highest)
        narrow = lines[used].reshape(self.narrow, self.width)
        envelopes = squared_magnitude(fft.ifft(narrow, self.size))
        edge = int(TAPER * self.size)
        inside = np.concatenate(halved(envelopes[:, edge : self.size - edge]))
        means = inside.mean(axis=1, dtype=np.float64)
        spectra = np.concatenate(halved(fft.rfft(envelopes * self.weight)[:, : self.bins]))
        power = squared_magnitude(spectra / means[:, None] - self.own) / self.size
        kurtosis = np.square(inside, out=inside).mean(axis=1, dtype=np.float64) / means**2
        return Spectra(power, self.turns, 1, kurtosis, np.concatenate(loudness))


@lru_cache(maxsize=8)
def _tapers(length: int, size: int, bins: int) -> tuple[Floats, Floats, NDArray[np.complex64]]:
    """How a window rises at its ends, as a Tukey window does; the weight of envelopes, and what their mean leaves."""
    from scipy import fft

    rise = 0.5 - 0.5 * np.cos(np.pi * np.arange(int(TAPER * (length - 1)) + 1) / (TAPER * (length - 1)))
    weight = hann(size).astype(np.float32)
    return rise.astype(np.float32), weight, fft.rfft(weight)[:bins]


@lru_cache(maxsize=8)
def hann(size: int) -> Doubles:
    """A periodic Hann window, which must not be written to."""
    window = np.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size))
    window.flags.writeable = False
    return window


def halved(rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Rows of the whole range, its halves, quarters …: sums of neighbours; the narrowest last."""
    levels = [rows]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0][::2] + levels[0][1::2])
    return levels


def bands(number: int, axes: int = 1) -> list[tuple[float, float]]:
    """Lower and upper ends of the bands, as shares of the range, of so many rows of power."""
    levels = range((number // axes).bit_length())
    return axes * [(part / 2**level, (part + 1) / 2**level) for level in levels for part in range(2**level)]


def stacked(axes: Sequence[Spectra]) -> Spectra:
    """Several axes of one point as one: each band of each axis is a band. A fault then shows in the axis that tells it
    best, and what lines of no fault reach is searched in as many bands, so a second axis is no second witness.
    """
    first, *others = axes
    if not others and len(first.loudness) == len(first.power):
        return first
    if any(other.power.shape != first.power.shape or other.turns != first.turns for other in others):
        raise InputError("the axes of one point must have one rate and one speed; diagnose them apart", "channels")
    power, kurtosis = (np.concatenate([getattr(axis, name) for axis in axes]) for name in ("power", "kurtosis"))
    loudness = np.concatenate([np.broadcast_to(axis.loudness, len(axis.power)) for axis in axes])
    windows = min(axis.windows for axis in axes)
    return Spectra(power, first.turns, windows, kurtosis, loudness, len(axes))
