"""Envelope spectra of a recording in shaft orders, and a bearing's lines in them: those of a known bearing, and the
family that stands out where nobody names it.

A damaged bearing strikes at a multiple of the shaft's speed, and each strike rings resonances of the machine. So the
spectrum of a window is set to magnitude 1 everywhere (cepstral pre-whitening, Borghesani et al. 2013): neither tones of
shaft, gear and supply nor gain, sensor and resonance count, while impacts, which live in the phases, stay. The squared
envelopes of bands are transformed again and averaged over windows of equally many turns (docs/diagnose.md).

For each fault the first multiples of its order are read together, in every band and at every speed within SEARCH of the
stated one, and the best combination counts: its lines move together when the speed is off. Of an unknown bearing every
order is tried, as a damaged race or ball makes lines at the first multiples of one order that is no multiple of the
shaft's; bearings of the table with a fault order close to it explain it.

>>> spectra = envelope_spectra(signal, rate=51_200, rpm=900, last=20.0)
>>> find_lines(levels_over_background(spectra), spectra, orders, 51_200, 900)[0]["outer race"].lines     # in dB
(24.1, 19.8, 15.2)
>>> find_family(spectra, rpm=900).finding.kind
'lines of unknown bearing'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import BEARINGS, ROWS
from bearcat.data.recording import Floats, Integers, squared_magnitude
from bearcat.errors import InputError
from bearcat.findings import Finding

Doubles = NDArray[np.float64]

# Of spectra.
TURNS = 20  # of the shaft in a window: lines a tenth of an order wide, and seconds at 600 rpm
FEWEST_TURNS = 8  # of a recording that is shorter than a window; its lines touch each other otherwise
OVERLAPPING = 64  # windows that overlap by half; those after them follow each other: there are enough by then
LONGEST = 1 << 21  # samples in a window, which bounds the memory
DEPTH = 3  # the narrowest bands are an eighth of the range, or wide enough for twice the highest order
TAPER = 0.05  # of a window at either end, where it rises from 0 and falls: a jump there would ring in quiet bands
TINIEST = 1e-36  # below which a sample is nothing
FLOOR = 1e-6  # of the highest magnitude, below which a bin holds rounding and is not raised
# Of lines.
MULTIPLES = (1, 2, 3)
SEARCH, SLIP = 0.03, 0.01
SCALES = 1 + np.linspace(-SEARCH, SEARCH, 61)
REACH = 1.5  # orders on either side of a bin whose median is its background
LOWEST = 0.25  # order below which nothing is read: what the mean leaves
HIGHEST = 4.0  # that counts of a line's log level over the background: one huge line does not stand for three
TIE = 1e-2  # weight of the levels at the very places
OTHERS = 32  # orders tried that are those of no fault
SHOWN = 4  # times the highest line that half the rate must hold, so that there is something for it to modulate
# A fault's name, the kinematic order it strikes at and how many times in each of its periods, and what modulates it.
FAULTS = {"inner race": ("BPFI", 1, "shaft"), "outer race": ("BPFO", 1, None), "ball": ("BSF", 2, "FTF")}
DECIBELS = 4.342944819  # of a natural logarithm of power
# Of an unknown bearing.
FAMILY = 8.5  # dB of its lines above other orders, from which on they are an alarm: simulated and public recordings
FIRST_ORDER, LAST_ORDER = 1.8, 13.0  # that are tried: BPFO of five balls, BPFI of twenty rollers
STEP = 1.5e-3  # from one order to the next, relative
ROOT = 0.8  # of the level of an order, from which on a half or a third of it is the order of the family
NEAR_SHAFT = 0.015  # relative distance from a whole number, at which a wrong speed makes a family of the shaft's lines
MATCH = 0.01  # relative, by which slip and speed move an order
NAMED, COMMONEST = 2, "deep groove"  # designations of a finding, and the type that comes first in it


@dataclass(frozen=True, eq=False)
class Spectra:
    """Mean power (band, bin) of squared envelopes over their squared means; bin k lies at the order k / turns;
    bands are the whole range below half the rate, its halves, quarters and so on (`bands`).
    """

    power: Doubles
    turns: float
    windows: int
    kurtosis: Doubles  # (band,) of the envelope: mean e⁴ / (mean e²)², 2 for noise
    loudness: Doubles  # (band,) mean square of the signal as recorded, in its own units, before it is whitened
    axes: int = 1  # rows are the bands of the first axis, then those of the second (`stacked`)


def envelope_spectra(signal: Floats, rate: float, rpm: float, last: float) -> Spectra:
    """The mean over the windows of a recording, up to the order `last`; of one shorter than a window, what there is.
    InputError where TURNS turns are too long.
    """
    from scipy import fft

    length = int(fft.next_fast_len(max(64, round(TURNS * 60 / rpm * rate)), real=True))
    if length > LONGEST:
        least = f"{60 * TURNS * rate / LONGEST:.3g} rpm is the least"
        raise InputError(f"{TURNS} turns at {rpm:g} rpm are too long at {rate:g} Hz; {least}", "rpm")
    if signal.size < length:
        length = int(fft.prev_fast_len(signal.size, real=True))
    plan, half = Plan(length, rate, rpm, last), length // 2
    starts = chain(range(0, OVERLAPPING * half, half), range(OVERLAPPING * half, signal.size, length))
    windows, sums = 0, dict[str, Any].fromkeys(("power", "kurtosis", "loudness"), 0.0)
    for start in starts:  # only sums are kept: a recording may be long
        window = plan.measure(signal[start : start + length]) if start + length <= signal.size else None
        if window is not None:
            windows, sums = windows + 1, {name: total + getattr(window, name) for name, total in sums.items()}
    if not windows:
        raise InputError("holds no vibration: all samples are the same; check the sensor and the channel")
    means: dict[str, Any] = {name: total / windows for name, total in sums.items()}
    return Spectra(turns=plan.turns, windows=windows, **means)


def check_turns(signal: Floats, rate: float, rpm: float) -> None:
    """InputError where a recording holds too few turns of the shaft to be read alone."""
    if (turns := signal.size / rate * rpm / 60) < FEWEST_TURNS:
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
        self.rise = (0.5 - 0.5 * np.cos(np.pi * np.arange(0, 1, 1 / (TAPER * (length - 1))))).astype(np.float32)
        self.weight = hann(self.size).astype(np.float32)
        self.residue = fft.rfft(self.weight)[: self.bins]  # what the mean of envelopes leaves

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
        power = squared_magnitude(spectra / means[:, None] - self.residue) / self.size
        kurtosis = np.square(inside, out=inside).mean(axis=1, dtype=np.float64) / means**2
        return Spectra(power, self.turns, 1, kurtosis, np.concatenate(loudness))


@lru_cache(maxsize=8)
def hann(size: int) -> Doubles:
    """A periodic Hann window, which must not be written to."""
    return np.hanning(size + 1)[:-1]


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
    if not others:
        return first
    if any(other.power.shape != first.power.shape or other.turns != first.turns for other in others):
        raise InputError("the axes of one point must have one rate and one speed; diagnose them apart", "channels")
    power, kurtosis, loudness = (
        np.concatenate([getattr(axis, name) for axis in axes]) for name in ("power", "kurtosis", "loudness")
    )
    return Spectra(power, first.turns, min(axis.windows for axis in axes), kurtosis, loudness, len(axes))


@dataclass(frozen=True)
class FaultLines:
    """The lines of one fault in the band that shows them best; levels in dB above the background."""

    hertz: float  # of the fault's order at the speed that fits
    level: float  # mean over the first multiples, not bounded
    lines: tuple[float, ...]
    sidebands: float | None  # mean around the first two multiples, at the order that modulates this fault
    band: tuple[float, float]  # in Hz, that shows it best
    row: int = 0  # of the spectra: the band
    scale: float = 1.0  # the speed that fits, over the stated one
    amplitude: float = 0.0  # of the lines of all bands together, in units of the signal: who owns a line


def last_order(orders: Mapping[str, float]) -> float:
    """The highest order that is read, with its background."""
    highest = max(times * orders[name] for name, times, _ in FAULTS.values())
    return MULTIPLES[-1] * 1.1 * highest * (1 + SEARCH) + REACH


def levels_over_background(spectra: Spectra) -> Doubles:
    """(band, bin) log of the power over the running median around it."""
    background = running_median(spectra.power, round(REACH * spectra.turns))
    levels: Doubles = np.log(np.maximum(spectra.power, 1e-30) / np.maximum(background, 1e-30))
    levels[:, : int(np.ceil(LOWEST * spectra.turns)) + 1] = 0
    return levels


def running_median(power: Doubles, reach: int) -> Doubles:
    """(band, bin) the median of so many bins to either side."""
    from scipy.ndimage import median_filter

    # All rows behind each other, mirrored at their ends: one call, and none of the bands mixes with another.
    mirrored, bins = power[:, ::-1], power.shape[1]
    reach = min(reach, bins)
    rows = np.concatenate([mirrored[:, bins - reach :], power, mirrored[:, :reach]], axis=1)
    return np.asarray(median_filter(rows.ravel(), size=2 * reach + 1).reshape(rows.shape)[:, reach : reach + bins])


def higher(levels: Doubles) -> Doubles:
    """(band, bin) the higher of each bin and the next; 0 in the first and the last, where nothing is read."""
    highest = np.zeros_like(levels)
    np.maximum(levels[:, 1:-1], levels[:, 2:], out=highest[:, 1:-1])
    return highest


def bins_below(levels: Doubles, places: Doubles) -> Integers:
    """The bins of `higher` in which to look for places (…,)."""
    return np.asarray(np.clip(places, 0, levels.shape[1] - 1).astype(np.int64))


def bounded(levels: Doubles) -> Doubles:
    """Levels between 0 and HIGHEST."""
    return np.clip(levels, 0.0, HIGHEST)


def find_lines(
    levels: Doubles, spectra: Spectra, orders: Mapping[str, float], rate: float, rpm: float
) -> tuple[dict[str, FaultLines], float]:
    """The lines of each of FAULTS, and the mean level in dB that orders of no fault reach, searched alike; `orders` are
    the bearing's kinematic ones, `levels` those over background.
    """
    all_orders = {**orders, "shaft": 1.0}
    multiples, strikes = np.array(MULTIPLES)[:, None], [times * all_orders[name] for name, times, _ in FAULTS.values()]
    exact = np.array(strikes)[:, None, None] * multiples * SCALES * spectra.turns
    pairs, rise, below = higher(levels), np.diff(levels, append=levels[:, -1:]), bins_below(levels, exact)
    heights, lines = bounded(pairs), pairs.take(below, axis=1)  # lines: (band, fault, multiple, scale)
    # A line is as high at neighbouring speeds; the one at whose very places the levels are highest is taken.
    between = levels.take(below, axis=1) + rise.take(below, axis=1) * (exact - below)
    combined = (bounded(lines).mean(axis=2) + TIE * between.mean(axis=2)).swapaxes(0, 1)  # (fault, band, scale)
    scale = float(SCALES[combined.argmax() % len(SCALES)])
    near = np.where(abs(SCALES - scale) <= SLIP + 1e-9, combined, -np.inf).reshape(len(FAULTS), -1)
    best = [divmod(int(row.argmax()), len(SCALES)) for row in near]  # band and scale of each fault
    amplitudes = line_amplitudes(spectra, levels, np.stack([exact[n, :, index] for n, (_, index) in enumerate(best)]))
    faults, ends = {}, bands(len(levels), spectra.axes)
    for number, (fault, (_, _, modulator)) in enumerate(FAULTS.items()):
        (band, index), order, sidebands = best[number], strikes[number], None
        decibels, (start, stop) = DECIBELS * lines[band, number, :, index], ends[band]
        if modulator is not None:
            sides = np.array([times * order + side * all_orders[modulator] for times in (1, 2) for side in (-1, 1)])
            beside = heights[band, bins_below(levels, sides * SCALES[index] * spectra.turns)]
            sidebands = DECIBELS * float(beside.mean())
        faults[fault] = FaultLines(
            order * float(SCALES[index]) * rpm / 60, float(np.maximum(decibels, 0.0).mean()), tuple(decibels.tolist()),
            sidebands, (start * rate / 2, stop * rate / 2), band, float(SCALES[index]), amplitudes[number],
        )  # fmt: skip
    tried = multiples[:, None] * other_orders(strikes)[:, None] * SCALES * spectra.turns
    # (multiple, order, scale, band): rows of bands are taken at once.
    reached = np.take(np.ascontiguousarray(heights.T), bins_below(levels, tried), axis=0)
    return faults, DECIBELS * float(reached.sum(axis=0).max(axis=(1, 2)).mean()) / len(MULTIPLES)


def line_amplitudes(spectra: Spectra, levels: Doubles, places: Doubles) -> list[float]:
    """How loud lines at bins (fault, line) are in units of the signal: what of the squared envelopes of the narrowest
    bands exceeds the background, times the mean square that whitening took off, to the fourth root.
    """
    below = bins_below(levels, places)
    beside = np.stack([below, np.minimum(below + 1, levels.shape[1] - 1)])
    beyond = spectra.power[:, beside] * -np.expm1(-np.maximum(levels[:, beside], 0))  # of a power P: P − background
    highest = np.where((below > 0) & (below + 1 < levels.shape[1]), beyond.max(axis=1), 0.0)
    lines = (highest * spectra.loudness[:, None, None] ** 2).reshape(spectra.axes, -1, *places.shape)
    amplitudes: list[float] = (lines[:, lines.shape[1] // 2 :].sum(axis=(0, 1, 3)) ** 0.25).tolist()
    return amplitudes


def other_orders(strikes: Sequence[float]) -> Doubles:
    """Orders between those of faults, further from each than the search reaches: what they show is no evidence."""
    faults = np.array(strikes)
    orders = np.geomspace(0.7 * faults.min(), 1.1 * faults.max(), OTHERS)
    return np.asarray(orders[(abs(orders[:, None] / faults - 1) > 2 * SEARCH + SLIP).all(axis=1)])


@dataclass(frozen=True)
class LineFamily:
    """The family of lines that stands out most. Levels are dB; parts are those of FAULTS."""

    order: float
    hertz: float
    level: float  # mean of the first multiples, each bounded, above what other orders reach
    shaft_multiple: int | None  # of the shaft, which it may be at a speed that is a little off
    bearings: Mapping[str, tuple[str, ...]]  # by part: designations of the table with this order, the likeliest first

    @property
    def finding(self) -> Finding:
        """What strikes, how clearly, and what would explain it. Lines of the shaft at a speed that is a little off are
        to be checked, and no alarm.
        """
        if self.level < FAMILY:
            return Finding("no lines of unknown bearing", "check", {"order": self.order, "level": self.level})
        values = asdict(self) | {"bearings": {part: list(names[:NAMED]) for part, names in self.bearings.items()}}
        return Finding("lines of unknown bearing", "alarm" if self.shaft_multiple is None else "check", values)


def last_family_order(rate: float, rpm: float) -> float:
    """The highest order that is read, with its background; InputError where the rate does not allow any."""
    highest = min(LAST_ORDER, (60 * rate / 2 / SHOWN / rpm - REACH) / MULTIPLES[-1])
    if highest < 2 * FIRST_ORDER:
        raise InputError(f"at {rate:g} Hz and {rpm:g} rpm no lines of a bearing can be read; record at a higher rate")
    return MULTIPLES[-1] * highest + REACH


def find_family(spectra: Spectra, rpm: float) -> LineFamily:
    """The family of lines that stands out most in these envelope spectra."""
    levels, turns = levels_over_background(spectra), spectra.turns
    for number in range(int(levels.shape[1] / turns) + 1):
        levels[:, max(0, round(number * turns) - 1) : round(number * turns) + 2] = 0  # of the shaft
    highest = (levels.shape[1] / turns - REACH) / MULTIPLES[-1]
    orders = np.exp(np.arange(np.log(FIRST_ORDER), np.log(highest), STEP))
    places = np.array(MULTIPLES)[:, None] * orders * turns
    lines = higher(levels)[:, bins_below(levels, places)]  # (band, multiple, order)
    scores = bounded(lines).mean(axis=1) + TIE * lines.mean(axis=1)
    best = scores.max(axis=0)
    index = int(best.argmax())
    for part in (3, 2):
        near = np.flatnonzero(abs(orders * part / orders[index] - 1) < 5 * STEP)
        if near.size and best[near].max() > ROOT * best[index]:
            index = int(near[best[near].argmax()])
            break
    order, strongest = float(orders[index]), lines[int(scores[:, index].argmax()), :, index]
    level, whole = DECIBELS * float(bounded(strongest).mean() - best.mean()), round(order)
    near_shaft = abs(order / whole - 1) < NEAR_SHAFT
    return LineFamily(order, order * rpm / 60, level, whole if near_shaft else None, explained(order))


def explained(order: float) -> dict[str, tuple[str, ...]]:
    """Bearings of the table with lines at this order, by part of FAULTS. The commonest type comes first, then published
    geometry before estimates, then the nearest.
    """
    bearings = {}
    for part, (line, times, _) in FAULTS.items():
        near = []
        for name, bearing in BEARINGS.items():
            distance, rare = abs(order / (times * bearing.orders()[line]) - 1), ROWS[name].get("type") != COMMONEST
            if distance <= MATCH:
                near.append((rare, bearing.estimated, distance, name))
        bearings[part] = tuple(name for *_, name in sorted(near))
    return bearings
