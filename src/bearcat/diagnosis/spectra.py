"""Spectra of the squared envelope of a recording, band by band, on an axis of shaft orders; a block at a time.

A damaged bearing strikes at a multiple of the shaft's speed, and each strike rings resonances of the machine. So the
spectrum of a window is set to magnitude 1 everywhere (cepstral pre-whitening, Borghesani et al. 2013): neither tones of
shaft, gear and supply nor gain, sensor and resonance count, while impacts, which live in the phases, stay. The squared
envelopes of bands are transformed again and averaged over windows of equally many turns (docs/diagnose.md).

>>> spectra = EnvelopeSpectra(rate=51_200, rpm=900, last=20.0)
>>> for block in stream.blocks: spectra.add(block)
>>> spectra.average().power          # (band, order)
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Floats
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


class EnvelopeSpectra:
    """Collects the spectra of one recording. `last` is the highest order that is wanted."""

    def __init__(self, rate: float, rpm: float, last: float, threads: int = 1) -> None:
        self.rate, self.rpm, self.last = rate, rpm, last
        self.length = window_length(TURNS, rate, rpm)
        if self.length > LONGEST:
            least = f"{60 * TURNS * rate / LONGEST:.3g} rpm is the least"
            raise InputError(f"{TURNS} turns at {rpm:g} rpm are too long at {rate:g} Hz; {least}", "rpm")
        self.samples = 0
        self._limits = {-1: (-np.inf, 0), 1: (-np.inf, 0)}  # lowest (negative) and highest value, and runs at it
        self._held = np.empty(0, dtype=np.float32)
        self._sum: Spectra | None = None
        self._submitted = 0
        self._plan = Plan(self.length, rate, rpm, last)
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._pending: deque[Future[Spectra | None]] = deque()

    def add(self, block: Floats) -> None:
        self.samples += block.size
        self._count_limits(block)
        held = np.concatenate([self._held, block])
        start = 0
        while held.size - start >= self.length:
            self._submit(held[start : start + self.length])
            start += self.length // 2 if self._submitted <= OVERLAPPING else self.length
        self._held = held[start:].copy()

    def average(self) -> Spectra:
        """Of all windows so far; of what there is, where that is shorter than a window."""
        from scipy import fft

        while self._pending:
            self._keep(self._pending.popleft().result())
        if self._sum is None and self.samples < self.length:
            turns = self._held.size / self.rate * self.rpm / 60
            if turns < FEWEST_TURNS:
                raise InputError(f"holds {turns:.1f} turns of the shaft, and {FEWEST_TURNS} are needed; record longer")
            length = int(fft.prev_fast_len(self._held.size, real=True))
            self._keep(Plan(length, self.rate, self.rpm, self.last).measure(self._held[:length]))
        if self._sum is None:
            raise InputError("holds no vibration: all samples are the same; check the sensor and the channel")
        mean = self._sum
        return Spectra(mean.power / mean.windows, mean.turns, mean.windows, mean.kurtosis / mean.windows)

    @property
    def clipped(self) -> float:
        """The share of samples that lie, three in a row or more, at the lowest or the highest value."""
        return sum(count for _, count in self._limits.values()) / max(self.samples, 1)

    def _submit(self, window: Floats) -> None:
        self._submitted += 1
        if self._pool is None:
            self._keep(self._plan.measure(window))
            return
        if len(self._pending) >= 4:
            self._keep(self._pending.popleft().result())
        self._pending.append(self._pool.submit(self._plan.measure, window))

    def _keep(self, found: Spectra | None) -> None:
        if found is not None and (total := self._sum) is not None:
            kurtosis = total.kurtosis + found.kurtosis
            found = Spectra(total.power + found.power, total.turns, total.windows + 1, kurtosis)
        self._sum = found or self._sum

    def _count_limits(self, block: Floats) -> None:
        """Counts runs of neighbours at the lowest and at the highest value so far."""
        for sign in (-1, 1):
            limit, count = self._limits[sign]
            highest = float(block.max()) if sign > 0 else -float(block.min())
            if highest < limit:
                continue
            count = count if highest == limit else 0
            at = block == sign * highest
            runs = at[2:] & at[1:-1] & at[:-2]
            self._limits[sign] = (highest, count + int(runs.sum()))


class Plan:
    """How windows of one length become spectra: what is the same for all of them."""

    def __init__(self, length: int, rate: float, rpm: float, last: float) -> None:
        from scipy import fft
        from scipy.signal import windows

        self.length, self.turns = length, length / rate * rpm / 60
        self.bins = int(last * self.turns) + 2
        self.taper = windows.tukey(length, 2 * TAPER).astype(np.float32)
        self.narrow = 1 << min(DEPTH, max(0, int(np.log2((length // 2) / (2 * self.bins)))))  # bands, of `width` bins
        self.width = (length // 2 - 1) // self.narrow
        # An envelope sampled so often has its first bins right: what folds back lies beyond them.
        self.size = int(fft.next_fast_len(self.width + self.bins))
        self.weight = windows.hann(self.size, sym=False).astype(np.float32)

    def measure(self, window: Floats) -> Spectra | None:
        """The spectra of one window; None where it holds no vibration."""
        from scipy import fft

        low, high = float(window.min()), float(window.max())
        if low == high:
            return None
        # Scaled before anything is squared, which float32 holds up to 1e19 alone.
        centred = (window - np.float32(window.mean(dtype=np.float64))) * np.float32(1 / max(high, -low, TINIEST))
        lines = fft.rfft(centred * self.taper)
        magnitude = np.abs(lines)
        highest = magnitude.max()
        if not highest > 0:
            return None
        lines *= 1 / np.maximum(magnitude, np.float32(FLOOR) * highest)
        narrow = lines[1 : 1 + self.width * self.narrow].reshape(self.narrow, self.width)
        signals = fft.ifft(narrow, self.size).view(np.float32)
        np.square(signals, out=signals)
        envelopes = signals[:, ::2] + signals[:, 1::2]
        edge = int(TAPER * self.size)
        inside = slice(edge, self.size - edge)
        means = halved(envelopes[:, inside].mean(axis=1, dtype=np.float64))
        fourth = [np.square(rows[:, inside]).mean(axis=1, dtype=np.float64) for rows in halved(envelopes)]
        spectra = fft.rfft(envelopes * self.weight)[:, : self.bins]
        own = fft.rfft(self.weight)[: self.bins]  # what the mean leaves
        power = [
            np.abs((rows - level[:, None] * own) / level[:, None]) ** 2 / self.size
            for rows, level in zip(halved(spectra), means, strict=True)
        ]
        kurtosis = np.concatenate(fourth) / np.concatenate(means) ** 2
        return Spectra(np.concatenate(power), self.turns, 1, kurtosis)


def halved(rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Rows of the whole range, its halves, quarters …: sums of neighbours; the narrowest last."""
    levels = [rows]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0][::2] + levels[0][1::2])
    return levels


def bands(number: int) -> list[tuple[float, float]]:
    """Lower and upper ends of the bands, as shares of the range, of so many rows of power."""
    levels = range(number.bit_length())
    return [(part / 2**level, (part + 1) / 2**level) for level in levels for part in range(2**level)]


def window_length(turns: float, rate: float, rpm: float) -> int:
    """Samples in so many turns, rounded up to a number that is fast to transform."""
    from scipy import fft

    return int(fft.next_fast_len(max(64, round(turns * 60 / rpm * rate)), real=True))
