"""Combs of lines in spectra, read at every speed that a shaft could have: its own lines, and those of a bearing.

A shaft shows as a line at its frequency with lines at the multiples; a damaged bearing, in the envelope, as lines at
multiples of its orders. The score of a speed is the mean level of its comb less what lies between the teeth.

>>> scores, first = shaft_scores(shaft_lines(signal, rate=51_200))
>>> 60 * GRID[scores.argmax()]      # rpm

A speed that varies within a recording is followed: short spectra show where a comb goes, the best path through them is
the track, and the phase that its strongest line has left corrects the track (Coats and Randall 2014).

>>> if (track := follow_speed(signal, 51_200, near=1200)) is not None:
...     signal = resample_in_angle(signal, track)  # the shaft turns evenly, at the mean of the track
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Floats, Integers, stretch
from bearcat.diagnosis.lines import FAULTS, Doubles, Plan, hann, running_median

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
BANDS = 7  # of envelopes: the whole range, its halves and its quarters
# A speed that varies within a recording.
FOLLOWED = np.arange(1.0, 5.0)  # lines of the shaft by which its speed is followed
RANGE, STEADY = 0.15, 0.02  # relative half-range of a speed that is followed, and below which it is steady
EVEN = 17.0  # score of a comb whose lines are sharp: that shaft turns evenly
WINDOW = 8  # turns in a short spectrum, which follow each other by half a turn
PACE, MOVES = 0.005, (-2, -1, 0, 1, 2)  # relative step of the speeds tried, and how many a speed may change by at once
GAIN = 6.0  # dB by which other lines must rise when the signal is resampled by the track
CLEAR = 14.0  # dB of other lines that show a steady speed
FAR = 100.0  # dB for a mean speed e times another: 1 dB a percent


@dataclass(frozen=True, eq=False)
class Lines:
    """Levels (…, bin) of spectra in dB above background, so many Hz apart, of a recording of so many seconds."""

    levels: Doubles
    spacing: float
    seconds: float

    def at(self, places: Doubles) -> Doubles:
        """The highest level within a bin or STEP of places (…,) in Hz; NaN at lines of the supply and beyond the end:
        (…, place).
        """
        return self._highest(*self.ranges(places))

    def of_grid(self, multiples: Doubles) -> Doubles:
        """The same at multiples (place,) of every speed of GRID: (…, place, speed)."""
        return self._highest(*_grid_ranges(self.levels.shape[-1], self.spacing, self.seconds, tuple(multiples)))

    def ranges(self, places: Doubles) -> tuple[Integers, NDArray[np.bool_]]:
        """The first bin and the end of what is read at each place, in one row, and where nothing is: (…,)."""
        centre, size = places / self.spacing, self.levels.shape[-1]
        width = np.maximum(1.0, STEP * centre)
        first = np.clip(np.floor(centre - width).astype(np.int64) + 1, 0, size - 2)
        end = np.clip(np.floor(centre + width).astype(np.int64) + 1, first + 1, size - 1)
        return np.stack([first, end], axis=-1).ravel(), self.supplied(places) | (centre > size - 2)

    def _highest(self, edges: Integers, nowhere: NDArray[np.bool_]) -> Doubles:
        levels = np.maximum.reduceat(self.levels, edges, axis=-1)[..., ::2]
        levels = levels.reshape(*self.levels.shape[:-1], *nowhere.shape)
        levels[..., nowhere] = np.nan
        return np.asarray(levels)

    def supplied(self, places: Doubles) -> NDArray[np.bool_]:
        """Whether a multiple of the supply is as near as its frequency wanders or its line is wide."""
        reach = np.maximum(0.003 * places, 2.5 / self.seconds) if self.seconds < np.inf else -1.0  # of no envelope
        near = [abs(places - np.maximum(np.round(places / hertz), 1) * hertz) <= reach for hertz in SUPPLY]
        return np.asarray(np.logical_or(*near))


@lru_cache(maxsize=16)
def _grid_ranges(
    size: int, spacing: float, seconds: float, multiples: tuple[float, ...]
) -> tuple[Integers, NDArray[np.bool_]]:
    """What is read of spectra of one kind: recordings of a folder share it, and it takes a quarter of a diagnosis."""
    return Lines(np.empty(size), spacing, seconds).ranges(GRID * np.array(multiples)[:, None])


def scaled(signal: Floats) -> Floats:
    """Without its mean and with a peak of 1: before anything is squared, which float32 holds up to 1e19 alone."""
    centred = signal - np.float32(signal.mean(dtype=np.float64))
    return np.asarray(centred * np.float32(1 / max(float(centred.max()), -float(centred.min()), 1e-36)))


def slow_part(signal: Floats, rate: float, highest: float) -> tuple[Floats, float]:
    """The signal without its mean and all above a frequency, of unit variance, and its rate, which is lower."""
    from scipy import fft

    size = int(fft.next_fast_len(signal.size, real=True))
    bins = min(int(highest / rate * size) + 1, size // 2)
    samples = min(int(fft.next_fast_len(2 * bins, real=True)), size)
    lowest = fft.rfft(scaled(signal), size)[:bins]
    slow = fft.irfft(lowest, samples)[: max(2, int(signal.size / size * samples))]
    return (slow / np.float32(max(slow.std(), 1e-30))).astype(np.float32), rate * samples / size


def shaft_lines(signal: Floats, rate: float) -> Lines:
    """The spectrum of the signal up to the highest line that is read, over its running median."""
    from scipy import fft
    from scipy.ndimage import median_filter

    highest = min(FASTEST * (TEETH[-1] + 0.6), rate / 2)
    slow, slow_rate = slow_part(signal, rate, highest)
    size = 2 * int(fft.next_fast_len(slow.size, real=True))  # twice, so that no line falls between two bins
    spacing, window = slow_rate / size, hann(slow.size)
    power = np.abs(fft.rfft(slow * window, size)[: int(highest / spacing)]) ** 2
    background = median_filter(power, 2 * max(4, int(4.0 / spacing)) + 1)  # 4 Hz to either side
    return Lines(_decibels(power, background), spacing, signal.size / rate)


def _decibels(power: Doubles, background: Doubles) -> Doubles:
    return np.asarray(10 * np.log10(np.maximum(power, 1e-30) / np.maximum(background, 1e-30)))


def shaft_scores(lines: Lines) -> tuple[Doubles, Doubles]:
    """Scores each speed of GRID: the mean of its teeth less what lies between; and the level of its first line."""
    teeth, *between = np.split(lines.of_grid(COMB), np.cumsum([TEETH.size, BETWEEN[0].size]))
    first = np.where(np.isnan(teeth[0]) | (GRID * lines.seconds < TURNS), 0.0, teeth[0])
    ground = np.maximum(FLOOR, first - LOOSE)
    wrong = [_mean(np.clip(levels - ground, 0, CEILING - FLOOR)) for levels in between]
    scores = _mean(np.clip(teeth, FLOOR, CEILING) - FLOOR) - np.maximum(*wrong)
    return np.where(first >= FAINT, scores, 0.0), first


def _mean(values: Doubles) -> Doubles:
    """The mean over the first axis of what is not NaN; 0 where all is."""
    numbers = ~np.isnan(values)
    return np.asarray(np.where(numbers, values, 0.0).sum(axis=0) / np.maximum(numbers.sum(axis=0), 1))


def envelope_lines(signal: Floats, rate: float) -> Lines:
    """Spectra of squared envelopes over their running medians: of the whole range, its halves and its quarters."""
    from scipy import fft

    length = int(fft.prev_fast_len(min(signal.size, int(2 * rate)), real=True))
    plan = Plan(length, rate, 60.0, min(1500.0, rate / 16))  # at 60 rpm an order is a Hz
    starts = range(0, signal.size - length + 1, length // 2)
    spectra = [plan.measure(signal[start : start + length]) for start in starts]
    powers = [window.power for window in spectra if window is not None] or [np.ones((1, plan.bins))]
    power, spacing = np.mean(powers, axis=0)[:BANDS], rate / length
    background = running_median(power, max(8, int(15.0 / spacing)))  # 15 Hz
    levels = _decibels(power, background)
    levels[:, : int(4.0 / spacing) + 1] = 0.0  # what the mean leaves
    return Lines(levels, spacing, np.inf)


def strikes(bands: Lines, orders: Sequence[float]) -> Doubles:
    """Mean of the levels at orders (place,) of every speed of GRID, bounded: (band, speed)."""
    read = np.nan_to_num(bands.of_grid(np.array(orders)), nan=0.0)
    return np.asarray(np.mean(np.clip(read, FAULT_FLOOR, FAULT_CEILING) - FAULT_FLOOR, axis=-2))


def fault_scores(bands: Lines, orders: Mapping[str, float]) -> Doubles:
    """How well lines of the likeliest fault stand out of envelopes at each speed of GRID, were nothing to slip."""
    inner, outer, ball, cage = orders["BPFI"], orders["BPFO"], 2 * orders["BSF"], orders["FTF"]
    scores, read = [], partial(strikes, bands)
    for strike, near, others in (
        (inner, [1.0], []),
        (ball, [cage], []),
        (outer, [], [outer / inner, cage * outer / ball]),  # which an inner race or a ball of another speed would have
    ):
        sides = [number * strike + sign * side for number in (1, 2) for sign in (-1, 1) for side in near]
        score = read([strike, 2 * strike, 3 * strike, *sides])
        score -= 0.5 * read([0.5 * strike, 1.5 * strike, 2.5 * strike])
        for side in others:
            score -= read([number * strike + sign * side for number in (1, 2) for sign in (-1, 1)])
        scores.append(score.max(axis=0))
    best = np.max(scores, axis=0)
    return np.asarray(np.maximum(best - np.median(best), 0.0))


def follow_speed(signal: Floats, rate: float, near: float, orders: Mapping[str, float] | None = None) -> Doubles | None:
    """The speed in rpm over a recording (time,), within RANGE of `near`: from the shaft's lines or, in the envelope,
    from the bearing's, where its orders are given.

    None where it is steady to STEADY, and where it cannot be followed: lines that did not help to follow the speed
    must stand out better once the signal is resampled by it.
    """
    shaft = near / 60
    if signal.size / rate * shaft < 2 * TURNS or not signal.min() < signal.max():
        return None
    if shaft_scores(shaft_lines(signal[: int(SECONDS * rate)], rate))[0].max() >= EVEN:
        return None  # some shaft has sharp lines, so it turns evenly
    combs = [(False, FOLLOWED)]
    if orders is not None:
        combs += [(True, number * orders[name] * np.arange(1.0, 4.0)) for name, number, _ in FAULTS.values()]
    still, envelope = _still_parts(signal, rate)
    best, speed = -np.inf, None
    for struck, teeth in combs:
        highest = 1.2 * (1 + RANGE) * teeth[-1] * shaft
        if highest < rate / 4:
            slow, slow_rate = slow_part(envelope if struck else still, rate, highest)
            track, level, gain = _followed(slow, slow_rate, shaft, teeth)
            half = half_range(track)
            if half < STEADY and level > CLEAR:
                return None  # steady by lines that are clear
            # Lines of one fault are those of another at another speed: a mean far from `near` counts against a comb.
            score = level - FAR * abs(np.log(track.mean() / shaft))
            if min(gain - GAIN, level - FAINT, half - STEADY) > 0 and score > best:
                best, times = score, np.arange(signal.size) / rate
                speed = 60 * np.interp(times, np.arange(track.size) / slow_rate, track)
    return speed


def half_range(track: Doubles) -> float:
    """Relative, without the 2 % of the track at either end of its values."""
    low, high = np.quantile(track, [0.02, 0.98])
    return float((high - low) / 2 / track.mean())


def _followed(slow: Floats, rate: float, shaft: float, teeth: Doubles) -> tuple[Doubles, float, float]:
    """The shaft's frequency (time,) by the strongest of some lines; the level of the second best of the others, as
    resampled by it, and by how many dB that is higher than at an even speed.
    """
    ridge = stretch(_ridge(slow, rate, shaft, teeth).astype(np.float32), slow.size).astype(np.float64)
    leader = int(_teeth(slow, rate, ridge, teeth).argmax())
    track = ridge
    for width in (0.06, 0.03):  # of the leader's order: what is left of the error turns its phase
        track = np.clip(_by_phase(slow, rate, track, float(teeth[leader]), width), 0.97 * ridge, 1.03 * ridge)
    levels = np.delete(_teeth(slow, rate, track, teeth), leader)
    gains = levels - np.delete(_teeth(slow, rate, np.full_like(track, track.mean()), teeth), leader)
    second = int(np.argsort(levels)[-2])  # of the others, so that two lines speak for the track beside the leader
    return track, float(levels[second]), float(gains[second])


def _still_parts(signal: Floats, rate: float) -> tuple[Floats, Floats]:
    """The signal without lines of the supply, which stand still while the shaft's move; its squared envelope, all of
    its spectrum set to magnitude 1.
    """
    from scipy import fft

    size = int(fft.next_fast_len(signal.size, real=True))
    spectrum = fft.rfft(scaled(signal), size)
    analytic = np.zeros(size, dtype=np.complex64)
    analytic[: spectrum.size] = spectrum / np.maximum(np.abs(spectrum), 1e-30)
    for hertz in (multiple * supply for supply in SUPPLY for multiple in range(1, 11) if multiple * supply < rate / 2):
        reach = max(1.5 / signal.size * rate, 0.002 * hertz)
        first, last = (int(edge / rate * size) for edge in (hertz - reach, hertz + reach))
        beside = np.median(np.abs(spectrum[max(0, 2 * first - last - 1) : 2 * last - first + 2]))
        line = spectrum[first : last + 2]
        line *= np.minimum(1, beside / np.maximum(np.abs(line), 1e-30))
    envelope = np.abs(fft.ifft(analytic)[: signal.size]) ** 2
    return fft.irfft(spectrum, size)[: signal.size].astype(np.float32), envelope.astype(np.float32)


def _ridge(slow: Floats, rate: float, shaft: float, teeth: Doubles) -> Doubles:
    """The shaft's frequency in Hz (frame,) along the path of the highest lines through spectra of WINDOW turns."""
    from scipy import fft

    length, hop = int(WINDOW * rate / shaft), max(1, int(rate / shaft / 2))
    padded = np.pad(slow, length // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, length)[::hop] * hann(length)
    size = int(fft.next_fast_len(4 * length, real=True))
    power = np.abs(fft.rfft(frames, size)) ** 2
    levels = 10 * np.log10(power / np.median(power, axis=1, keepdims=True) + 1e-3)
    speeds = shaft * np.exp(np.arange(np.log(1 - RANGE), np.log(1 + RANGE), PACE))
    places = np.round(speeds * teeth[:, None] * size / rate).astype(np.int64)
    scores = np.clip(levels[:, places], 0.0, CEILING).mean(axis=1)  # (frame, speed)
    best, came = scores[0], np.zeros(scores.shape, dtype=np.int64)
    reach = MOVES[-1]
    beside = np.full(speeds.size + 2 * reach, -1e9)
    moves = np.lib.stride_tricks.sliding_window_view(beside, speeds.size)[::-1]  # a row for each of MOVES
    for number, row in enumerate(scores[1:], 1):
        beside[reach:-reach] = best
        came[number] = moves.argmax(axis=0)
        best = moves.max(axis=0) + row
    path = [int(best.argmax())]
    for number in range(len(scores) - 1, 0, -1):
        path.append(path[-1] - MOVES[came[number, path[-1]]])
    return np.asarray(speeds[path[::-1]])


def _teeth(slow: Floats, rate: float, track: Doubles, teeth: Doubles) -> Doubles:
    """Levels in dB above background of lines at orders, once the angle is even by a track (time,) in Hz."""
    from scipy import fft

    even = resample_in_angle(slow, track)
    power = np.abs(fft.rfft(even * hann(even.size), 2 * even.size)) ** 2
    bins, levels = 2 * even.size / rate * float(track.mean()), []
    for tooth in teeth:
        near, around = (power[int((tooth - side) * bins) : int((tooth + side) * bins) + 2] for side in (0.02, 0.4))
        levels.append(10 * np.log10(near.max() / max(float(np.median(around)), 1e-30)))
    return np.array(levels)


def _by_phase(slow: Floats, rate: float, track: Doubles, tooth: float, width: float) -> Doubles:
    """The track corrected by the phase that one line has left after resampling (Coats and Randall 2014)."""
    from scipy import fft

    even = resample_in_angle(slow, track)
    mean, spectrum = float(track.mean()), fft.fft(even)
    orders = fft.fftfreq(even.size, mean / rate)
    band = np.abs(orders - tooth) < width * tooth
    turned = np.arange(even.size) * mean / rate
    left = np.unwrap(np.angle(fft.ifft(np.where(band, spectrum, 0)) * np.exp(-2j * np.pi * tooth * turned)))
    turns = np.cumsum(track) / rate
    error = np.interp(turns, turned, left / (2 * np.pi * tooth))
    return np.asarray(np.clip(np.gradient(turns + error) * rate, 0.5 * mean, 2 * mean))


def resample_in_angle(signal: Floats, speed: NDArray[np.floating[Any]]) -> Floats:
    """The signal at the same rate as if its shaft had turned evenly at the mean of `speed`, which may have any unit and
    any number of values, evenly spread over the recording.
    """
    from scipy.ndimage import map_coordinates

    speeds = speed if speed.size == signal.size else stretch(speed.astype(np.float32), signal.size)
    turns = np.concatenate([[0.0], np.cumsum((speeds[1:] + speeds[:-1]) / 2, dtype=np.float64)])
    places = np.interp(np.linspace(0, turns[-1], signal.size), turns, np.arange(signal.size, dtype=np.float64))
    return map_coordinates(signal, places[None], order=3, mode="nearest").astype(np.float32)
