"""Combs of lines in spectra, read at every speed that a shaft could have: its own lines, and those of a bearing.

A shaft shows as a line at its frequency with lines at the multiples; a damaged bearing, in the envelope, as lines at
multiples of its orders. The score of a speed is the mean level of its comb less what lies between the teeth.

>>> scores, first = shaft_scores(shaft_lines(signal, rate=51_200))
>>> 60 * GRID[scores.argmax()]      # rpm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Floats, Integers
from bearcat.diagnosis.spectra import Doubles, Plan, hann

SLOWEST, FASTEST = 5.0, 100.0  # Hz: 300 to 6000 rpm
STEP = 0.002  # relative, of the speeds tried
GRID = np.exp(np.arange(np.log(SLOWEST), np.log(FASTEST), STEP))
SECONDS = 10.0  # of a recording that are read: lines of 0.1 Hz then, and bounded memory; few speeds hold for longer
TURNS = 20  # that a recording must hold, for lines of neighbouring multiples not to touch each other
TEETH = np.arange(1.0, 6.0)  # multiples of the shaft that are read
# Where nothing must be: lines there belong to a shaft of half or a third of the speed.
BETWEEN = (np.arange(0.5, 5.0), np.array([1, 2, 4, 5, 7, 8, 10, 11]) / 3)
COMB = np.concatenate([TEETH, *BETWEEN])
SUPPLY = (50.0, 60.0)  # Hz of the mains, whose multiples are nobody's shaft
FLOOR, CEILING = 6.0, 36.0  # dB: the highest of a few bins of noise, and above which a line counts no more
LOOSE = 20.0  # dB below the first line, at which lines between count for nothing: loose parts make half orders
FAINT = 10.0  # dB of a first line, below which there is no comb
FAULT_FLOOR, FAULT_CEILING = 3.0, 17.0  # dB in envelope spectra, whose noise is averaged
Ranges = tuple[Integers, Integers, int, NDArray[np.bool_]]
MOST_APART = 32  # samples, of those that are transformed together
BANDS = 7  # of envelopes: the whole range, its halves and its quarters


@dataclass(frozen=True, eq=False)
class Lines:
    """Levels (bin,) of a spectrum in dB above background, so many Hz apart, of a recording of so many seconds."""

    levels: Doubles
    spacing: float
    seconds: float

    def at(self, places: Doubles) -> Doubles:
        """The highest level within a bin or STEP of places in Hz; NaN at lines of the supply and beyond the end."""
        return self._highest(*self._ranges(places))

    def of_grid(self, multiples: Doubles) -> Doubles:
        """The same at multiples (place,) of every speed of GRID: (place, speed)."""
        return self._highest(*_grid_ranges(self.levels.size, self.spacing, self.seconds, tuple(multiples.tolist())))

    def _ranges(self, places: Doubles) -> Ranges:
        """Where two ranges of 2^k bins begin that cover what is near each place, the largest k, and where to skip."""
        centre, size = places / self.spacing, self.levels.size
        width = np.maximum(1.0, STEP * centre)
        first = np.clip(np.floor(centre - width).astype(np.int64) + 1, 0, size - 2)
        last = np.clip(np.floor(centre + width).astype(np.int64) + 1, first + 1, size - 1)
        depth = np.frexp(last - first)[1].astype(np.int64) - 1
        flat = depth * size + first, depth * size + last - (1 << depth)
        return *flat, int(depth.max(initial=0)), self.supplied(places) | (centre > size - 2)

    def _highest(self, first: Integers, second: Integers, depth: int, nowhere: NDArray[np.bool_]) -> Doubles:
        """Of two ranges of 2^k bins each, which overlap: row k of a table has the highest of as many bins from each."""
        table = np.empty((depth + 1, self.levels.size))
        table[:] = self.levels
        for row in range(depth):
            half = 1 << row
            np.maximum(table[row, :-half], table[row, half:], out=table[row + 1, :-half])
        flat = table.ravel()
        found = np.maximum(flat.take(first), flat.take(second))
        found[nowhere] = np.nan
        return found

    def supplied(self, places: Doubles) -> NDArray[np.bool_]:
        """Whether a multiple of the supply is as near as its frequency wanders or its line is wide."""
        reach = np.maximum(0.003 * places, 2.5 / self.seconds) if self.seconds < np.inf else -1.0  # of no envelope
        near = [abs(places - np.maximum(np.round(places / hertz), 1) * hertz) <= reach for hertz in SUPPLY]
        return np.asarray(np.logical_or(*near))


@lru_cache(maxsize=32)
def _grid_ranges(size: int, spacing: float, seconds: float, multiples: tuple[float, ...]) -> Ranges:
    """The same for all recordings of one rate and length."""
    return Lines(np.empty(size), spacing, seconds)._ranges(GRID * np.array(multiples)[:, None])


def scaled(signal: Floats) -> Floats:
    """Without its mean and with a peak of 1: before anything is squared, which float32 holds up to 1e19 alone."""
    centred = signal - np.float32(signal.mean(dtype=np.float64))
    return np.asarray(centred * np.float32(1 / max(float(centred.max()), -float(centred.min()), 1e-36)))


def slow_part(signal: Floats, rate: float, highest: float) -> tuple[Floats, float]:
    """The signal without its mean and all above a frequency, of unit variance, and its rate, which is lower."""
    from scipy import fft

    size = int(fft.next_fast_len(signal.size, real=True))
    kept = min(int(highest / rate * size) + 1, size // 2)
    samples = min(int(fft.next_fast_len(2 * kept, real=True)), size)
    slow = fft.irfft(lowest_lines(scaled(signal), size, kept), samples)[: max(2, int(signal.size / size * samples))]
    return (slow / np.float32(max(slow.std(), 1e-30))).astype(np.float32), rate * samples / size


def lowest_lines(signal: Floats, size: int, kept: int) -> NDArray[np.complex64]:
    """The first bins of the FFT of a signal that is padded to so many samples, put together from FFTs of every n-th
    sample, which take half of the time (transform decomposition, Sorensen and Burrus 1993).
    """
    from scipy import fft

    apart = 1
    while apart < MOST_APART and size % (2 * apart) == 0 and size // (2 * apart) >= 2 * kept:
        apart *= 2
    padded = signal if signal.size == size else np.concatenate([signal, np.zeros(size - signal.size, signal.dtype)])
    lines = fft.rfft(padded.reshape(-1, apart), axis=0)[:kept]
    return np.asarray(np.vecdot(_delays(size, apart, kept), lines))


@lru_cache(maxsize=8)
def _delays(size: int, apart: int, kept: int) -> NDArray[np.complex64]:
    """(bin, sample) by which the first samples are turned in each bin."""
    turns = np.arange(kept)[:, None] * np.arange(apart) / size
    return np.asarray(np.exp(2j * np.pi * turns), dtype=np.complex64)


def shaft_lines(signal: Floats, rate: float) -> Lines:
    """The spectrum of the signal up to the highest line that is read, over its running median."""
    from scipy import fft
    from scipy.ndimage import median_filter

    highest = min(FASTEST * (TEETH[-1] + 0.6), rate / 2)
    slow, own_rate = slow_part(signal, rate, highest)
    size = 2 * int(fft.next_fast_len(slow.size, real=True))  # twice, so that no line falls between two bins
    spacing, window = own_rate / size, hann(slow.size)
    power = np.abs(fft.rfft(slow * window, size)[: int(highest / spacing)]) ** 2
    background = median_filter(power, 2 * max(4, int(4.0 / spacing)) + 1)  # 4 Hz to either side
    levels = 10 * np.log10(np.maximum(power, 1e-30) / np.maximum(background, 1e-30))
    return Lines(levels, spacing, signal.size / rate)


def shaft_scores(lines: Lines) -> tuple[Doubles, Doubles]:
    """Of each speed of GRID: the mean of its teeth less that of what lies between, and the level of its first line."""
    teeth, *between = np.split(lines.of_grid(COMB), np.cumsum([TEETH.size, BETWEEN[0].size]))
    first = np.where(np.isnan(teeth[0]) | (GRID * lines.seconds < TURNS), 0.0, teeth[0])
    ground = np.maximum(FLOOR, first - LOOSE)
    wrong = [_mean(np.clip(levels - ground, 0, CEILING - FLOOR)) for levels in between]
    scores = _mean(np.clip(teeth, FLOOR, CEILING) - FLOOR) - np.maximum(*wrong)
    return np.where(first >= FAINT, scores, 0.0), first


def _mean(values: Doubles) -> Doubles:
    """Over the first axis, of what is not NaN; 0 where all is."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))


def envelope_lines(signal: Floats, rate: float) -> list[Lines]:
    """Spectra of squared envelopes over their running medians: of the whole range, its halves and its quarters."""
    from scipy import fft
    from scipy.ndimage import median_filter

    length = int(fft.prev_fast_len(min(signal.size, int(2 * rate)), real=True))
    plan = Plan(length, rate, 60.0, min(1500.0, rate / 16))  # at 60 rpm an order is a Hz
    starts = range(0, signal.size - length + 1, length // 2)
    found = [spectra.power for start in starts if (spectra := plan.measure(signal[start : start + length])) is not None]
    power, spacing = np.mean(found or [np.ones((1, plan.bins))], axis=0)[:BANDS], rate / length
    background = median_filter(power, (1, 2 * max(8, int(15.0 / spacing)) + 1))  # 15 Hz to either side
    levels = 10 * np.log10(np.maximum(power, 1e-30) / np.maximum(background, 1e-30))
    levels[:, : int(4.0 / spacing) + 1] = 0.0  # what the mean leaves
    return [Lines(row, spacing, np.inf) for row in levels]


def strikes(bands: Sequence[Lines], orders: Sequence[float]) -> Doubles:
    """Mean of the levels at orders (place,) of every speed of GRID, bounded: (band, speed)."""
    read = (np.nan_to_num(band.of_grid(np.array(orders)), nan=0.0) for band in bands)
    return np.array([np.mean(np.clip(row, FAULT_FLOOR, FAULT_CEILING) - FAULT_FLOOR, axis=0) for row in read])


def fault_scores(bands: Sequence[Lines], orders: Mapping[str, float]) -> Doubles:
    """Of each speed of GRID, were nothing to slip: how well lines of the likeliest fault stand out of envelopes."""
    inner, outer, ball, cage = orders["BPFI"], orders["BPFO"], 2 * orders["BSF"], orders["FTF"]
    scores = []

    def read(places: list[float]) -> Doubles:
        return strikes(bands, places)

    for strike, own, others in (
        (inner, [1.0], []),
        (ball, [cage], []),
        (outer, [], [outer / inner, cage * outer / ball]),  # which an inner race or a ball of another speed would have
    ):
        sides = [number * strike + sign * side for number in (1, 2) for sign in (-1, 1) for side in own]
        score = read([strike, 2 * strike, 3 * strike, *sides])
        score -= 0.5 * read([0.5 * strike, 1.5 * strike, 2.5 * strike])
        for side in others:
            score -= read([number * strike + sign * side for number in (1, 2) for sign in (-1, 1)])
        scores.append(score.max(axis=0))
    best = np.max(scores, axis=0)
    return np.asarray(np.maximum(best - np.median(best), 0.0))
