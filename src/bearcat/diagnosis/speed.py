"""The speed of the shaft from the signal itself: measured where it is unknown, checked where it is stated.

A comb of lines that is not clear, or one of several that are as clear, is "not found", and a stated speed is replaced
only where the evidence is overwhelming, and never by a multiple or a fraction of itself: a wrong speed makes faults
where there are none. The bearing's lines vote: the speed at which they fit wins over a line of the shaft.

>>> [finding.kind for finding in measure_speed(signal, rate=51_200, stated=600).findings]
['wrong speed']
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bearcat.data.recording import Floats
from bearcat.diagnosis.combs import (
    FAINT,
    FASTEST,
    GRID,
    LOOSE,
    SECONDS,
    STEP,
    TURNS,
    Lines,
    envelope_lines,
    fault_scores,
    follow_speed,
    half_range,
    shaft_lines,
    shaft_scores,
)
from bearcat.diagnosis.lines import FAULTS, Doubles
from bearcat.errors import check_range
from bearcat.findings import Finding, Severity

OVERWHELMING = 30.0  # dB of a shaft line that overrules a stated speed
OTHER_SPEED = 0.03  # by which a speed channel may differ from what is stated or measured
LOGARITHMS = np.log(GRID)
FIRST = 14.0  # dB that the shaft's first line must have
# Scores are means of dB above the floor of noise. A comb counts from RIVAL on, and is believed from CLEAR on; together
# with the bearing's lines, from CLEAR_BEARING on. Of all combs that have LESSER of the best score the slowest is the
# shaft: strikes of bearings and gears, which have higher lines at times, are faster.
RIVAL, CLEAR, CLEAR_BEARING, LESSER = 9.0, 17.0, 20.0, 0.5
CONSISTENT = 3  # lines at least that give the same speed
AGREES = 0.03  # within which a stated speed is right: the fault lines are searched as widely
FAULT_CLEAR, FAULT_LESSER = 9.0, 0.7  # of the bearing's lines alone, and what the next best speed may have of it
# Of the bearing's lines where a line of the shaft is there too, and of a fit that is as good.
FAULT_VOTE, FAULT_TIE = 6.0, 0.9
HIGHEST_MULTIPLE = 6  # of a stated speed, which is never replaced by one
# A speed that varies, and a channel that holds it.
FOLLOWED, MOST_FOLLOWED = 60.0, 1 << 23  # seconds and samples in which a varying speed is followed
FOLLOWED_FROM = 0.05  # relative half-range of a speed, from which on the signal's own track of it is believed
PULSE_SHARE = 0.5  # of the range of a tacho at which its pulses are counted
PLAUSIBLE = (30.0, 60_000.0)  # rpm of a shaft
VARIES = 0.02  # relative half-range of a speed, from which on the signal is resampled in angle
SLIP = 0.02  # by which a cage lags at most, and its lines with it


@dataclass(frozen=True)
class SpeedEvidence:
    """What a recording says of its speed in rpm. `rpm` is the one to use; None: not found."""

    rpm: float | None
    stated: float | None = None
    by: str | None = None  # "shaft line", "fault lines", "followed", "stated"; one with an rpm channel says "tacho"
    level: float = 0.0  # dB of the shaft line above background
    varies: float = 0.0  # relative half-range within the recording; 0: steady
    corrected: bool = False  # the stated speed was replaced
    findings: tuple[Finding, ...] = ()

    @property
    def clarity(self) -> tuple[bool, bool, float]:
        """The key by which the speed by one axis is preferred to that by another."""
        return self.rpm is not None, self.by == "tacho", self.level


def beginning_of(signal: Floats, rate: float | None) -> Floats:
    """The part of a recording in which its speed is measured; none where the rate is not known."""
    return signal[: int(min(FOLLOWED * (rate or 0.0), MOST_FOLLOWED))]


def reading_speed(measured: SpeedEvidence, stated: float | None) -> float | None:
    """The speed in rpm at which a model's windows are prepared: the stated one, unless it was corrected or recorded."""
    return measured.rpm if measured.corrected or measured.by == "tacho" else stated


def speed_course(
    signal: Floats, rate: float | None, orders: Mapping[str, float] | None, stated: float | None,
    trust: bool = False, tacho: Doubles | None = None,
) -> tuple[SpeedEvidence, Doubles | None]:  # fmt: skip
    """The speed of a recording, and its course (time,) over the beginning where that varies: by a channel that holds
    the speed (rpm over time) where that is plausible, else by the signal; what is stated is checked.
    """
    signal = beginning_of(signal, rate)
    if rate is None or not signal.size:
        return _stated(stated), None
    measured = measure_speed(signal, rate, orders, stated, trust)
    if tacho is not None and not (trust and stated is not None):
        middle = float(np.median(tacho))
        if measured.rpm is not None and abs(middle / measured.rpm - 1) > OTHER_SPEED:
            differs = Finding("speed channel differs", "check", {"channel": middle, "rpm": measured.rpm})
            return replace(measured, findings=(*measured.findings, differs)), None
        track = np.interp(np.linspace(0, len(tacho) - 1, len(signal)), np.arange(len(tacho)), tacho)
        half = float(np.ptp(np.quantile(track, (0.02, 0.98)))) / 2 / middle
        varies = half if half > VARIES else 0.0
        return SpeedEvidence(float(track.mean()), stated, "tacho", measured.level, varies), track if varies else None
    if 0 < measured.varies < FOLLOWED_FROM:  # a track may be as wrong, and smear the lines of a steady shaft
        return replace(measured, rpm=stated, varies=0.0, by="stated", findings=()), None
    followed = follow_speed(signal, rate, measured.rpm, orders) if measured.varies and measured.rpm else None
    return measured if followed is None else replace(measured, rpm=float(followed.mean())), followed


def _stated(rpm: float | None) -> SpeedEvidence:
    return SpeedEvidence(rpm, stated=rpm, by=None if rpm is None else "stated")


def speed_of_channel(
    samples: Floats, rate: float, stated: float | None = None, unit: str | None = None
) -> Doubles | None:
    """rpm over time from a channel that holds rpm or hertz, or one pulse or more a turn; None where it holds neither.

    Several pulses a turn are counted as one where the stated speed says how many.
    """
    factor = 60.0 if (unit or "").lower() == "hz" else 1.0
    low, high = factor * float(samples.min()), factor * float(samples.max())
    if PLAUSIBLE[0] <= low and high <= min(PLAUSIBLE[1], 10 * low):
        return np.asarray(factor * samples, dtype=np.float64)
    above = samples > samples.min() + PULSE_SHARE * (samples.max() - samples.min())
    rising = np.flatnonzero(above[1:] & ~above[:-1]) / rate
    if len(rising) < 4:
        return None
    speed = 60 / np.diff(rising)
    pulses = 1 if stated is None else max(1, round(float(np.median(speed)) / stated))
    middle = (rising[1:] + rising[:-1]) / 2
    times = np.arange(0, len(samples), max(1, int(rate / 200))) / rate
    smooth = np.convolve(np.pad(speed, pulses // 2, mode="edge"), np.ones(pulses) / pulses, "same")[: len(speed)]
    rpm = np.asarray(np.interp(times, middle, smooth / pulses))
    return rpm if PLAUSIBLE[0] <= np.median(rpm) <= PLAUSIBLE[1] else None


def measure_speed(
    signal: Floats, rate: float, orders: Mapping[str, float] | None = None, stated: float | None = None,
    trust: bool = False,
) -> SpeedEvidence:  # fmt: skip
    """The speed of a recording (time,); `orders` are the bearing's kinematic ones, `trust` keeps a stated speed."""
    used = np.asarray(signal[: int(SECONDS * rate)], dtype=np.float32)
    check_range("rpm", stated, field="rpm")
    if used.size / rate * FASTEST < TURNS or not used.min() < used.max():
        return _stated(stated)
    lines = shaft_lines(used, rate)
    if stated is not None:
        return _check(used, rate, orders, stated, trust, lines)
    scores, first = shaft_scores(lines)
    exact = np.zeros_like(scores) if orders is None else fault_scores(envelope_lines(used, rate), orders)
    faults = _slipped(exact)
    best, rpm = _slowest_clear(scores + np.where(scores >= RIVAL, faults, 0.0), first), None
    if best is not None and first[best] >= FIRST:
        clear = scores[best] >= CLEAR or scores[best] + faults[best] >= CLEAR_BEARING
        rpm = _exact_speed(lines, float(GRID[best])) if clear else None
    if best is None or rpm is None:
        return SpeedEvidence(None) if orders is None else _by_faults(exact, lines)
    voted, level = rpm if orders is None else _vote(faults, lines, rpm, orders), float(first[best])
    if voted is None:
        return SpeedEvidence(None)
    return SpeedEvidence(voted, by="shaft line" if voted == rpm else "fault lines", level=level)


def _slipped(faults: Doubles) -> Doubles:
    """How well the bearing's lines fit at each speed of GRID: the best score within SLIP below it."""
    from scipy.ndimage import maximum_filter1d

    reach = round(SLIP / STEP)
    return np.asarray(maximum_filter1d(faults, reach + 3, origin=reach // 2))


def _vote(
    faults: Doubles, lines: Lines, measured: float, orders: Mapping[str, float], stated: float | None = None
) -> float | None:
    """The speed in rpm at which the bearing's lines fit best: that of a measured comb, the stated one, or that of a
    slower shaft with a line of its own, whose bearing strikes make the comb. The measured one where they fit nowhere;
    None where they fit a slower shaft that shows no line.
    """
    fits = {measured: _fit(faults, measured)}
    if stated is not None and _fit(faults, stated) >= FAULT_CLEAR:
        fits[stated] = _fit(faults, stated)
    unseen = FAULT_CLEAR
    for name, times, _ in FAULTS.values():
        slower = measured / (times * orders[name])
        around: Doubles = slower / 60 * (1 + SLIP * np.linspace(-1, 1, 21))
        if np.nan_to_num(lines.at(around), nan=0.0).max() < FIRST:
            unseen = max(unseen, _fit(faults, slower))
        elif _fit(faults, slower) >= FAULT_VOTE:
            fits[slower] = _fit(faults, slower)
    equal = [rpm for rpm, fit in fits.items() if fit >= FAULT_TIE * max(fits.values())]
    best = stated if stated in equal else min(equal)
    return best if best != measured or unseen <= max(FAULT_CLEAR, fits[measured]) else None


def _fit(faults: Doubles, rpm: float) -> float:
    """How well the bearing's lines fit at a speed; 0 beyond GRID."""
    return float(np.interp(math.log(rpm / 60), LOGARITHMS, faults, left=0.0, right=0.0))


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


def _by_faults(scores: Doubles, lines: Lines) -> SpeedEvidence:
    """The speed by the bearing's lines, if it alone explains them and a faint line of the shaft is there too."""
    best = int(scores.argmax())
    others = scores[abs(np.log(GRID / GRID[best])) > AGREES]
    around: Doubles = float(GRID[best]) * (1 + SLIP * np.linspace(0, 1, 11))
    shaft = np.nan_to_num(lines.at(around), nan=0.0)
    if scores[best] < FAULT_CLEAR or others.max() > FAULT_LESSER * scores[best] or shaft.max() < FAINT:
        return SpeedEvidence(None)
    return SpeedEvidence(60 * float(around[shaft.argmax()]), by="fault lines", level=float(shaft.max()))


def _check(
    signal: Floats, rate: float, orders: Mapping[str, float] | None, stated: float, trust: bool, lines: Lines
) -> SpeedEvidence:
    """A stated speed, the measured one beside it, or the one that overrules it."""
    scores, first = shaft_scores(lines)
    near = np.flatnonzero(abs(LOGARITHMS - math.log(stated / 60)) <= AGREES)
    as_stated = _stated(stated)
    if not near.size:
        return as_stated
    at = near[scores[near].argmax()]
    # A speed is not confirmed by the second or third line of a slower shaft.
    parts = [np.flatnonzero(abs(LOGARITHMS + math.log(part) - LOGARITHMS[at]) < 0.01) for part in (2, 3)]
    slower = any((scores[part] > scores[at])[first[part] > first[at] - LOOSE].any() for part in parts)
    if scores[at] >= max(RIVAL, LESSER * scores.max()) and first[at] >= FIRST and not slower:
        rpm, level = _exact_speed(lines, float(GRID[at])), float(first[at])
        return as_stated if rpm is None else SpeedEvidence(rpm, stated, "shaft line", level)
    if (track := follow_speed(signal, rate, stated, orders)) is not None:
        half = half_range(track)
        varied = (Finding("varying speed", "check", {"share": half}),)
        return SpeedEvidence(float(track.mean()), stated, "followed", float(first[at]), half, findings=varied)
    best, levels = _slowest_clear(scores, first), lines.at(GRID[near])
    if best is None or min(first[best], 2 * scores[best]) < OVERWHELMING or not levels.max() < FIRST:  # NaN: the supply
        return as_stated
    rpm, level = _exact_speed(lines, float(GRID[best])), float(first[best])
    if rpm is None:
        return as_stated
    measured, voted = {"rpm": rpm, "level": level, "stated": stated}, rpm
    if orders is not None:
        faults = _slipped(fault_scores(envelope_lines(signal, rate), orders))
        voted = _vote(faults, lines, rpm, orders, stated) or rpm
    if (multiple := _multiple(rpm, stated) or _multiple(voted, stated)) is not None:
        severity: Severity = "remark" if voted == stated else "check"
        return replace(as_stated, findings=(Finding("multiple of speed", severity, measured | {"multiple": multiple}),))
    if trust or voted == stated:
        return replace(as_stated, level=level, findings=(Finding("wrong speed", "check", measured),))
    by = "shaft line" if voted == rpm else "fault lines"
    corrected = Finding("wrong speed", "check", measured | {"corrected": voted})
    return SpeedEvidence(voted, stated, by, level, corrected=True, findings=(corrected,))


def _multiple(measured: float, stated: float) -> float | None:
    """The whole number, or one over a whole number, by which a measured speed is a stated one; None where none is."""
    ratio = max(measured, stated) / min(measured, stated)
    whole = round(ratio)
    if not 2 <= whole <= HIGHEST_MULTIPLE or abs(ratio / whole - 1) > AGREES:
        return None
    return float(whole) if measured > stated else 1 / whole


def _exact_speed(lines: Lines, hertz: float) -> float | None:
    """The speed in rpm by the lines near a comb's teeth; None unless CONSISTENT of them agree, the first too."""
    speeds, teeth, spacing = [], [], lines.spacing
    levels = np.where(lines.supplied(np.arange(lines.levels.size) * np.float64(spacing)), -np.inf, lines.levels)
    for tooth in range(1, 9):
        first, end = int(0.994 * tooth * hertz / spacing) - 1, int(1.006 * tooth * hertz / spacing) + 3
        if end > levels.size:
            break
        peak = first + int(levels[first:end].argmax())
        if not (first < peak < end - 1 and levels[peak] >= FIRST):
            continue
        before, top, after = levels[peak - 1 : peak + 2].tolist()  # a parabola through the peak
        if min(before, after) > -np.inf:
            shift = 0.5 * (before - after) / min(before - 2 * top + after, -1e-9)
            speeds.append((peak + min(max(shift, -0.5), 0.5)) * spacing / tooth)
            teeth.append(float(tooth))
    if len(speeds) < CONSISTENT or teeth[0] > 1:
        return None
    by_tooth, weights = np.array(speeds), np.array(teeth) ** 2  # higher lines are finer
    order = np.argsort(by_tooth)
    middle = by_tooth[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]
    agree = abs(by_tooth / middle - 1) < np.maximum(0.003, 0.5 / lines.seconds / np.array(teeth) / hertz)
    if agree.sum() < CONSISTENT or not agree[0]:
        return None
    return 60 * float(by_tooth[agree] @ weights[agree] / weights[agree].sum())
