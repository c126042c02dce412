"""The speed of the shaft from the signal itself: measured where it is unknown, checked where it is stated, followed
where it varies.

A shaft shows as a line at its frequency with lines at the multiples; a damaged bearing shows as lines at multiples of
its own orders. Both are combs, whose teeth are read together at every speed that could be. A comb that is not clear, or
one of several that are as clear, is "not found": a wrong speed makes faults where there are none (docs/diagnose.md).

>>> measure_speed(signal, rate=51_200, stated=600).note
'the shaft line is at 1207 rpm (57 dB), not at the stated 600 rpm; 1207 rpm is used'
>>> if (track := follow_speed(signal, 51_200, near=1200)) is not None:
...     signal, rate = resample_in_angle(signal, 51_200, track)  # the shaft turns evenly, at the mean of the track
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Floats, stretch
from bearcat.diagnosis.spectra import Doubles, Plan
from bearcat.errors import InputError
from bearcat.settings import to_plain

SLOWEST, FASTEST = 5.0, 100.0  # Hz: 300 to 6000 rpm
STEP = 0.002  # relative, of the speeds tried
GRID = np.exp(np.arange(np.log(SLOWEST), np.log(FASTEST), STEP))
SECONDS = 10.0  # of a recording that are used: lines of 0.1 Hz then, and bounded memory; speeds rarely hold for longer
TURNS = 20  # that a recording must hold, for lines of neighbouring multiples not to touch each other
TEETH = np.arange(1.0, 6.0)  # multiples of the shaft that are read
# Where nothing must be: lines there belong to a shaft of half or a third of the speed.
BETWEEN = (np.arange(0.5, 5.0), np.array([1, 2, 4, 5, 7, 8, 10, 11]) / 3)
SUPPLY = (50.0, 60.0)  # Hz of the mains, whose multiples are nobody's shaft
FLOOR, CEILING = 6.0, 36.0  # dB: the highest of a few bins of noise, and where a line does not count more any more
LOOSE = 20.0  # dB below the first line, at which lines between count for nothing: loose parts make half orders
FIRST, FAINT = 14.0, 10.0  # dB that the shaft's first line must have, and one that casts doubt on others
# Scores are means of dB above FLOOR. A comb counts from RIVAL on, and is believed from CLEAR on; with the bearing's
# lines, from CLEAR_BEARING on. Of all combs that have LESSER of the best score the slowest is the shaft: strikes of
# bearings and gears, which have higher lines at times, are faster.
RIVAL, CLEAR, CLEAR_BEARING, LESSER = 9.0, 17.0, 20.0, 0.5
CONSISTENT = 3  # lines at least that give the same speed
OVERWHELMING = 30.0  # dB of a shaft line that overrules a stated speed
AGREES = 0.03  # within which a stated speed is right: the fault lines are searched as widely
FAULT_FLOOR, FAULT_CEILING = 3.0, 17.0  # dB in envelope spectra, whose noise is averaged
FAULT_CLEAR, FAULT_LESSER = 9.0, 0.7  # of the bearing's lines alone, and what the next best speed may have of it
SLIP = 0.02  # by which a cage lags at most, and its lines with it
FOLLOWED = (1, 2, 3, 4)  # lines of the shaft by which its speed is followed
STRIKES = {"BPFI": 1, "BPFO": 1, "BSF": 2}  # orders of the bearing, and how many times in each of their periods
RANGE, STEADY = 0.15, 0.01  # relative half-range of a speed that is followed, and below which it is steady
WINDOW, PACE, MOVES = 8, 0.005, (-2, -1, 0, 1, 2)  # turns of a short spectrum; steps of speed, and a hop's: 1 % in half a turn
FAR = 100.0  # dB for a mean speed e times another: 1 dB a percent
GAIN = 6.0  # dB by which another line must rise when the signal is resampled by the track


@dataclass(frozen=True)
class SpeedEvidence:
    """What a recording says of its speed in rpm. `rpm` is the one to use; None: not found."""

    rpm: float | None
    low: float | None = None  # 95 % interval of what was measured; None: nothing was
    high: float | None = None
    stated: float | None = None
    by: str | None = None  # "shaft line", "fault lines", "stated"; a caller with an rpm channel says "tacho"
    level: float = 0.0  # dB of the shaft line above background
    varies: float = 0.0  # relative half-range within the recording; 0: steady
    corrected: bool = False  # the stated speed was replaced
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(to_plain(self))


@dataclass(frozen=True, eq=False)
class _Lines:
    """Levels (bin,) of a spectrum in dB above background, so many Hz apart, of a recording of so many seconds."""

    levels: Doubles
    spacing: float
    seconds: float

    def at(self, places: Doubles, reach: float = STEP) -> Doubles:
        """The highest level within a bin or `reach` of each place in Hz; NaN at the supply's lines and beyond the end."""
        centre = places / self.spacing
        width = np.maximum(1.0, reach * centre)
        first = np.clip(np.floor(centre - width).astype(np.int64) + 1, 0, self.levels.size - 2)
        last = np.clip(np.floor(centre + width).astype(np.int64) + 1, first + 1, self.levels.size - 1)
        found = np.maximum.reduceat(self.levels, np.stack([first, last], axis=-1).ravel())[::2].reshape(places.shape)
        return np.where(self._supplied(places) | (centre > self.levels.size - 2), np.nan, found)

    def _supplied(self, places: Doubles) -> NDArray[np.bool_]:
        """Whether a multiple of the supply is as near as its frequency wanders or its line is wide."""
        reach = np.maximum(0.003 * places, 2.5 / self.seconds) if self.seconds < np.inf else -1.0  # of no envelope
        near = [abs(places - np.maximum(np.round(places / hertz), 1) * hertz) <= reach for hertz in SUPPLY]
        return np.asarray(np.logical_or(*near))


def measure_speed(
    signal: Floats,
    rate: float,
    orders: Mapping[str, float] | None = None,
    stated: float | None = None,
    trust: bool = False,
) -> SpeedEvidence:
    """The speed of a recording (time,); `orders` are the bearing's kinematic ones, `trust` keeps a stated speed."""
    used = np.asarray(signal[: int(SECONDS * rate)], dtype=np.float32)
    if stated is not None and not 0 < stated < np.inf:
        raise InputError(f"the speed must be a positive number of rpm, not {stated:g}", "rpm")
    if used.size < 2 * TURNS or not np.ptp(used) > 0:
        return SpeedEvidence(stated, stated=stated, by=stated and "stated")
    lines = shaft_lines(used, rate)
    if stated is not None:
        return _check(used, rate, orders, stated, trust, lines)
    scores, first = shaft_scores(lines)
    faults = np.zeros_like(scores) if orders is None else fault_scores(envelope_lines(used, rate), orders)
    total = scores + np.where(scores >= RIVAL, _slipped(faults), 0.0)
    best = _slowest_clear(total, first)
    if best is not None and first[best] >= FIRST and (scores[best] >= CLEAR or total[best] >= CLEAR_BEARING):
        if (found := _measured(lines, float(GRID[best]), float(first[best]))) is not None:
            return found
    return _by_faults(faults, lines)


def slow_part(signal: Floats, rate: float, highest: float) -> tuple[Floats, float]:
    """The signal without its mean and all above a frequency, of unit variance, and its rate, which is lower."""
    from scipy import fft

    size = int(fft.next_fast_len(signal.size, real=True))
    spectrum = fft.rfft(signal - signal.mean(dtype=np.float64).astype(np.float32), size)
    kept = min(int(highest / rate * size) + 1, size // 2)
    samples = min(int(fft.next_fast_len(2 * kept, real=True)), size)
    slow = fft.irfft(spectrum[:kept], samples)[: max(2, int(signal.size / size * samples))]
    return (slow / np.float32(max(slow.std(), 1e-30))).astype(np.float32), rate * samples / size


def shaft_lines(signal: Floats, rate: float) -> _Lines:
    """The spectrum of the signal up to the highest line that is read, over its running median."""
    from scipy import fft
    from scipy.ndimage import median_filter
    from scipy.signal.windows import hann

    highest = min(FASTEST * (TEETH[-1] + 0.6), rate / 2)
    slow, own_rate = slow_part(signal, rate, highest)
    size = 2 * int(fft.next_fast_len(slow.size, real=True))  # twice, so that no line falls between two bins
    spacing, window = own_rate / size, hann(slow.size, sym=False)
    power = np.abs(fft.rfft(slow * window, size)[: int(highest / spacing)]) ** 2
    background = median_filter(power, 2 * max(4, int(4.0 / spacing)) + 1)  # 4 Hz to either side
    levels = 10 * np.log10(np.maximum(power, 1e-30) / np.maximum(background, 1e-30))
    return _Lines(levels, spacing, signal.size / rate)


def shaft_scores(lines: _Lines) -> tuple[Doubles, Doubles]:
    """Of each speed of GRID: the mean of its teeth less that of what lies between, and the level of its first line."""
    teeth = lines.at(GRID * TEETH[:, None])
    first = np.where(np.isnan(teeth[0]) | (GRID < TURNS / lines.seconds), 0.0, teeth[0])
    ground = np.maximum(FLOOR, first - LOOSE)
    between = [_mean(np.clip(lines.at(GRID * places[:, None]) - ground, 0, CEILING - FLOOR)) for places in BETWEEN]
    scores = _mean(np.clip(teeth, FLOOR, CEILING) - FLOOR) - np.maximum(*between)
    return np.where(first >= FAINT, scores, 0.0), first


def _mean(values: Doubles) -> Doubles:
    """Over the first axis, of what is not NaN; 0 where all is."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))


def _slowest_clear(scores: Doubles, first: Doubles) -> int | None:
    """The index of the slowest comb that nearly has the best score, if any has RIVAL."""
    left, peaks = scores.copy(), []
    while left.max() >= max(RIVAL, LESSER * scores.max()):
        peaks.append(int(left.argmax()))
        left[abs(np.log(GRID / GRID[peaks[-1]])) < AGREES] = 0.0
    for peak in sorted(peaks):
        # A comb whose multiple has a far higher first line and as good a score is made of that multiple's half orders.
        above = [other for other in peaks if abs((ratio := GRID[other] / GRID[peak]) - round(ratio)) < 0.01 * ratio]
        if not any(first[other] > first[peak] + 15 and scores[other] > 0.9 * scores[peak] for other in above):
            return peak
    return None


def envelope_lines(signal: Floats, rate: float) -> list[_Lines]:
    """Spectra of squared envelopes over their running medians: of the whole range, its halves and its quarters."""
    from scipy import fft
    from scipy.ndimage import median_filter

    length = int(fft.prev_fast_len(min(signal.size, int(2 * rate)), real=True))
    plan = Plan(length, rate, 60.0, min(1500.0, rate / 16))  # at 60 rpm an order is a Hz
    starts = range(0, signal.size - length + 1, length // 2)
    found = [spectra.power for start in starts if (spectra := plan.measure(signal[start : start + length])) is not None]
    power, spacing = np.mean(found, axis=0)[:7], rate / length
    background = median_filter(power, (1, 2 * max(8, int(15.0 / spacing)) + 1))  # 15 Hz to either side
    levels = 10 * np.log10(np.maximum(power, 1e-30) / np.maximum(background, 1e-30))
    levels[:, : int(4.0 / spacing) + 1] = 0.0  # what the mean leaves
    return [_Lines(row, spacing, np.inf) for row in levels]


def strikes(bands: list[_Lines], places: Doubles) -> Doubles:
    """Mean of the levels at places (place, speed), bounded: (band, speed)."""
    read = (np.nan_to_num(band.at(places), nan=0.0) for band in bands)
    return np.array([np.mean(np.clip(row, FAULT_FLOOR, FAULT_CEILING) - FAULT_FLOOR, axis=0) for row in read])


def fault_scores(bands: list[_Lines], orders: Mapping[str, float]) -> Doubles:
    """Of each speed of GRID, were nothing to slip: how well lines of the likeliest fault stand out of envelopes."""
    inner, outer, ball, cage = orders["BPFI"], orders["BPFO"], 2 * orders["BSF"], orders["FTF"]
    scores = []

    def read(places: list[float]) -> Doubles:
        return strikes(bands, GRID * np.array(places)[:, None])

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


def _slipped(faults: Doubles) -> Doubles:
    """The best score within SLIP below each speed."""
    from scipy.ndimage import maximum_filter1d

    reach = round(SLIP / STEP)
    return np.asarray(maximum_filter1d(faults, reach + 3, origin=reach // 2))


def _by_faults(scores: Doubles, lines: _Lines) -> SpeedEvidence:
    """By the bearing's lines, if one speed alone explains them and a faint line of the shaft is there too."""
    best = int(scores.argmax())
    others = scores[abs(np.log(GRID / GRID[best])) > AGREES]
    shaft = np.nan_to_num(lines.at(GRID[best] * np.linspace(1, 1 + SLIP, 11)), nan=0.0)
    if scores[best] < FAULT_CLEAR or others.max() > FAULT_LESSER * scores[best] or shaft.max() < FAINT:
        return SpeedEvidence(None)
    rpm = 60 * float(GRID[best])
    return SpeedEvidence(rpm, 0.99 * rpm, (1 + SLIP) * rpm, by="fault lines", level=float(shaft.max()))


def _check(
    signal: Floats, rate: float, orders: Mapping[str, float] | None, stated: float, trust: bool, lines: _Lines
) -> SpeedEvidence:
    """A stated speed, the measured one beside it, or the one that overrules it."""
    scores, first = shaft_scores(lines)
    near = np.flatnonzero(abs(np.log(60 * GRID / stated)) <= AGREES)
    kept = SpeedEvidence(stated, stated=stated, by="stated")
    if not near.size:
        return kept
    at = near[scores[near].argmax()]
    if scores[at] >= RIVAL and first[at] >= FIRST:
        found = _measured(lines, float(GRID[at]), float(first[at]))
        return kept if found is None else replace(found, stated=stated)
    if (track := follow_speed(signal, rate, stated, orders)) is not None:
        mean, half = float(track.mean()), float(np.ptp(track) / 2 / track.mean())
        varied = f"the speed varies by ± {100 * half:.0f} % within the recording"
        return SpeedEvidence(mean, 0.99 * mean, 1.01 * mean, stated, "shaft line", float(first[at]), half, note=varied)
    best, own = _slowest_clear(scores, first), lines.at(GRID[near])
    if best is None or min(first[best], 2 * scores[best]) < OVERWHELMING or not own.max() < FIRST:  # NaN: the supply
        return kept
    found = _measured(lines, float(GRID[best]), float(first[best]))
    if found is None or (orders and _slipped(fault_scores(envelope_lines(signal, rate), orders))[near].max() > RIVAL):
        return kept
    says = f"the shaft line is at {found.rpm:.0f} rpm ({found.level:.0f} dB), not at the stated {stated:.0f} rpm"
    if trust:
        return replace(kept, level=found.level, note=f"{says}, which is kept")
    return replace(found, stated=stated, corrected=True, note=f"{says}; {found.rpm:.0f} rpm is used")


def _measured(lines: _Lines, hertz: float, level: float) -> SpeedEvidence | None:
    """The speed by the places of lines near a comb's teeth; None unless CONSISTENT teeth agree on it."""
    places, teeth = [], []
    for tooth in range(1, 9):
        near = np.arange(int(0.994 * tooth * hertz / lines.spacing) - 1, int(1.006 * tooth * hertz / lines.spacing) + 3)
        around = lines.at(near * lines.spacing, reach=0.0)
        peak = int(np.nan_to_num(around, nan=0.0).argmax())
        if 0 < peak < near.size - 1 and around[peak] >= FIRST and not np.isnan(around).any():
            before, top, after = lines.levels[near[peak] - 1 : near[peak] + 2]  # a parabola through the peak
            shift = 0.5 * (before - after) / min(before - 2 * top + after, -1e-9)
            places.append((near[peak] + float(np.clip(shift, -0.5, 0.5))) * lines.spacing / tooth)
            teeth.append(float(tooth))
    if len(places) < CONSISTENT:
        return None
    places, weights = np.array(places), np.array(teeth) ** 2  # higher lines are finer
    order = np.argsort(places)
    middle = places[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]
    kept = abs(places / middle - 1) < np.maximum(0.003, 0.5 / lines.seconds / np.array(teeth) / hertz)
    if kept.sum() < CONSISTENT:
        return None
    places, weights = places[kept], weights[kept]
    mean = float(np.average(places, weights=weights))
    scatter = float(np.sqrt(np.average((places / mean - 1) ** 2, weights=weights)))
    half = 0.001 + 2 * scatter + float(0.3 / lines.seconds / mean / np.sqrt(weights.max()))
    return SpeedEvidence(60 * mean, 60 * mean * (1 - half), 60 * mean * (1 + half), by="shaft line", level=level)


def follow_speed(
    signal: Floats, rate: float, near: float, orders: Mapping[str, float] | None = None
) -> Doubles | None:
    """The speed in rpm over a recording (time,), within RANGE of `near`: from the shaft's lines or, in the envelope,
    from the bearing's, where its orders are given.

    None where it is steady to STEADY, and where it cannot be followed: a line that did not help to follow the speed must
    stand out better once the signal is resampled by it.
    """
    shaft = near / 60
    if signal.size / rate * shaft < TURNS or not np.ptp(signal) > 0:
        return None
    combs = [(False, np.array(FOLLOWED, dtype=np.float64))]
    if orders is not None:
        combs += [(True, times * orders[name] * np.arange(1.0, 4.0)) for name, times in STRIKES.items()]
    still, envelope = _still_parts(signal, rate)
    best, found = -np.inf, None
    for struck, teeth in combs:
        highest = 1.2 * (1 + RANGE) * teeth[-1] * shaft
        if highest < rate / 4:
            slow, own_rate = slow_part(envelope if struck else still, rate, highest)
            track, level, gain = _followed(slow, own_rate, shaft, teeth)
            half = float(np.ptp(track) / 2 / track.mean())
            if half < STEADY and level > FIRST:
                return None  # steady by lines that are clear
            # Lines of one fault are those of another at another speed: a mean far from `near` counts against a comb.
            score = level - FAR * abs(np.log(track.mean() / shaft))
            if gain > GAIN and half > STEADY and score > best:
                best, found = score, 60 * np.interp(np.arange(signal.size) / rate, np.arange(track.size) / own_rate, track)
    return found


def _followed(slow: Floats, rate: float, shaft: float, teeth: Doubles) -> tuple[Doubles, float, float]:
    """The shaft's frequency (time,) by the strongest of some lines; the level of the best of the others, as resampled
    by it, and by how many dB that is higher than at an even speed.
    """
    ridge = stretch(_ridge(slow, rate, shaft, teeth).astype(np.float32), slow.size).astype(np.float64)
    leader = int(_teeth(slow, rate, ridge, teeth).argmax())
    track = ridge
    for width in (0.06, 0.03):  # of the leader's order: what is left of the error turns its phase
        track = np.clip(_by_phase(slow, rate, track, float(teeth[leader]), width), 0.97 * ridge, 1.03 * ridge)
    levels = np.delete(_teeth(slow, rate, track, teeth), leader)
    gains = levels - np.delete(_teeth(slow, rate, np.full_like(track, track.mean()), teeth), leader)
    best = int(levels.argmax())
    return track, float(levels[best]), float(gains[best]) if levels[best] > FIRST else 0.0


def _still_parts(signal: Floats, rate: float) -> tuple[Floats, Floats]:
    """The signal without lines of the supply, which stand still while the shaft's move; its squared envelope, all of
    its spectrum set to magnitude 1.
    """
    from scipy import fft

    size = int(fft.next_fast_len(signal.size, real=True))
    spectrum = fft.rfft(signal - np.float32(signal.mean(dtype=np.float64)), size)
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
    from scipy.signal.windows import hann

    length, hop = int(WINDOW * rate / shaft), max(1, int(rate / shaft / 2))
    padded = np.pad(slow, length // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, length)[::hop] * hann(length, sym=False)
    size = int(fft.next_fast_len(4 * length, real=True))
    power = np.abs(fft.rfft(frames, size)) ** 2
    levels = 10 * np.log10(power / np.median(power, axis=1, keepdims=True) + 1e-3)
    speeds = shaft * np.exp(np.arange(np.log(1 - RANGE), np.log(1 + RANGE), PACE))
    places = np.round(speeds * teeth[:, None] * size / rate).astype(np.int64)
    scores = np.clip(levels[:, places], 0.0, CEILING).mean(axis=1)  # (frame, speed)
    best, came = scores[0], np.zeros(scores.shape, dtype=np.int64)
    for number, row in enumerate(scores[1:], 1):
        moves = np.stack([np.roll(np.pad(best, 2, constant_values=-1e9), move)[2:-2] for move in MOVES])
        came[number] = moves.argmax(axis=0)
        best = moves.max(axis=0) + row
    path = [int(best.argmax())]
    for number in range(len(scores) - 1, 0, -1):
        path.append(path[-1] - MOVES[came[number, path[-1]]])
    return np.asarray(speeds[path[::-1]])


def _teeth(slow: Floats, rate: float, track: Doubles, teeth: Doubles) -> Doubles:
    """Levels in dB above background of lines at orders, once the angle is even by a track (time,) in Hz."""
    from scipy import fft
    from scipy.signal.windows import hann

    even, _ = resample_in_angle(slow, rate, track)
    power = np.abs(fft.rfft(even * hann(even.size, sym=False), 2 * even.size)) ** 2
    bins, levels = 2 * even.size / rate * float(track.mean()), []
    for tooth in teeth:
        near, around = (power[int((tooth - side) * bins) : int((tooth + side) * bins) + 2] for side in (0.02, 0.4))
        levels.append(10 * np.log10(near.max() / max(float(np.median(around)), 1e-30)))
    return np.array(levels)


def _by_phase(slow: Floats, rate: float, track: Doubles, tooth: float, width: float) -> Doubles:
    """The track corrected by the phase that one line has left after resampling (Coats and Randall 2012)."""
    from scipy import fft

    even, _ = resample_in_angle(slow, rate, track)
    mean, spectrum = float(track.mean()), fft.fft(even)
    orders = fft.fftfreq(even.size, mean / rate)
    band = np.abs(orders - tooth) < width * tooth
    left = np.unwrap(np.angle(fft.ifft(np.where(band, spectrum, 0)) * np.exp(-2j * np.pi * tooth * np.arange(even.size) * mean / rate)))
    turns = np.cumsum(track) / rate  # at the samples, against that of the resampled ones
    error = np.interp(turns, np.arange(even.size) * mean / rate, left / (2 * np.pi * tooth))
    return np.asarray(np.clip(np.gradient(turns + error) * rate, 0.5 * mean, 2 * mean))


def resample_in_angle(signal: Floats, rate: float, speed: NDArray[np.floating[Any]]) -> tuple[Floats, float]:
    """The signal as if its shaft had turned evenly at the mean of `speed`, and its rate, which stays.

    `speed` may have any unit and any number of values, which are evenly spread over the recording.
    """
    from scipy.ndimage import map_coordinates

    if speed.size < 2 or not (np.isfinite(speed).all() and speed.min() > 0):
        raise InputError("the speed must be positive numbers, two at least", "rpm")
    each = speed if speed.size == signal.size else stretch(speed.astype(np.float32), signal.size)
    turns = np.concatenate([[0.0], np.cumsum((each[1:] + each[:-1]) / 2, dtype=np.float64)])
    places = np.interp(np.linspace(0, turns[-1], signal.size), turns, np.arange(signal.size, dtype=np.float64))
    return map_coordinates(signal, places[None], order=3, mode="nearest").astype(np.float32), rate
