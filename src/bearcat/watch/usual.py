"""What is usual for a point in one operating state, how unusual another recording is, and when that is an alarm.

Levels of bands, kurtosis and fault lines are compared in dB. A change counts from a margin on, since machines drift and
their load, temperature and mounting vary without harm; margins and floors were chosen on simulated fleets
(benchmarks/watch.py). The score of a recording is the sum of its changes beyond the margins, in spreads of the
baseline: measurements that change together say more than one of them.

A p-value says how many of the baseline's recordings score as high (conformal prediction; beyond the baseline's range
the tail falls as its own largest values do, with a margin for their small number). It becomes a bet e(p) that is worth
1 on average where nothing has changed, and the bets multiply up from the last time nothing spoke for a change: a CUSUM
of log e. Its mean time between false alarms is at least exp(threshold) recordings (Shin, Ramdas and Rinaldo 2023,
e-detectors), so a rate a year is a threshold.

That holds for independent recordings, and those that follow each other are not: where the baseline's recordings are
correlated over k of them, each bet counts as its k-th root. By Hölder's inequality the product of k dependent bets is
then worth no more than 1 on average, however they depend.

>>> for row in rows: state = state.learn(row, time, WatchRequest(), interval=600.0)
>>> p = state.p_value(state.change(new_row))
>>> evidence = add_evidence(evidence, p, threshold(interval=600.0, rate=1.0), state.correlated)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.lines import FAULTS
from bearcat.diagnosis.physics import KNOWN, Baseline
from bearcat.diagnosis.quality import BANDS
from bearcat.errors import RANGES
from bearcat.findings import Finding
from bearcat.settings import WatchRequest
from bearcat.watch.snapshot import MEASUREMENTS

DAY = 86400.0  # seconds
YEAR = 365.25 * DAY
PERSISTENCE = 3  # recordings that an alarm needs at least: a single one adds a third of the threshold at most
UPPER = 0.2  # share of the baseline that its tail is measured on
CAUTION = 1.5  # standard errors by which the tail is taken to be longer than measured
SHORTEST = 0.3  # of a tail, in robust standard deviations: the baseline of a steady rig must not be more than it is
LEAST_LOG = math.log(20.0)  # the lowest threshold, of recordings that are rare
MOST = 1.5  # times the threshold that evidence can reach, so that it falls again when a cause is gone
SAME_SPEED = 0.05  # by which speeds of one operating state differ at most, relative
SAME_LOAD = 0.2  # by which loads do, relative to the highest
BAND_NAMES = tuple(f"band_{number}" for number in range(1, BANDS + 1))
KURTOSES, LINES = ("kurtosis", "envelope_kurtosis"), ("inner_race", "outer_race", "ball")
LEVEL = "level"  # what all bands changed by
# What is compared, with the dB that it may change by without harm, and its least spread.
COMPARED = {LEVEL: (3.0, 0.3), **dict.fromkeys(BAND_NAMES, (1.5, 0.3)), **dict.fromkeys(KURTOSES, (0.5, 0.3))}
COMPARED |= dict.fromkeys(LINES, (1.0, 1.0))
NAMES = tuple(COMPARED)
IS_BAND = np.array([name in BAND_NAMES for name in NAMES])
IS_KURTOSIS = np.array([name in KURTOSES for name in NAMES])
LEVELS = IS_BAND | (np.array(NAMES) == LEVEL)
MARGINS, FLOORS = np.array(list(COMPARED.values())).T
HIGH, HIGH_DEVIATION = 0.95, 1.645  # a quantile, and where a normal distribution has it
FEWEST, KEPT = int(RANGES["baseline"].lowest), int(RANGES["baseline"].highest)  # recordings of a baseline
USUAL = 30  # of them that are enough at any rate
STOP = 8.0  # intervals without a recording, from which on the machine was stopped
CORRELATED = 0.3  # autocorrelation below which recordings of a baseline count as independent
LONGEST_CORRELATED = 4  # of a baseline: the share, as 1 / this, of its recordings that a correlation is looked for in
SAME_RATE = 0.01  # by which sampling rates may differ, relative

Doubles = NDArray[np.float64]


def tail(scores: Doubles) -> tuple[float, float]:
    """Where the highest fifth of a baseline's scores begins, and the length over which it falls to 1/e beyond."""
    upper = max(2, round(UPPER * scores.size))
    ordered = np.sort(scores)
    begin = float(ordered[-upper - 1]) if ordered.size > upper else float(ordered[0])
    # The median, since one knock in the baseline must not make every fault look usual; knocks alone are no alarm.
    excess = float(np.median(ordered[-upper:] - begin)) / math.log(2)
    return begin, max(SHORTEST, excess * (1 + CAUTION / math.sqrt(upper)))


def p_value(score: float, scores: Doubles) -> float:
    """How often a recording of the baseline with these scores would be as unusual as this one."""
    begin, length = tail(scores)
    if score <= begin:
        return float((np.sum(scores >= score) + 1) / (len(scores) + 1))
    beyond = (np.sum(scores > begin) + 1) / (len(scores) + 1)
    return float(beyond * math.exp(-(score - begin) / length))


def bet(p_value: float) -> float:
    """What a p-value is worth as evidence for a change: ∫ ε p^(ε−1) dε over ε from 0 to 1, whose mean is 1 for a
    uniform p-value (Vovk and Sellke).
    """
    if p_value >= 1:
        return 0.5
    low = max(p_value, 1e-300)
    log = math.log(low)
    return (1 - low + low * log) / (low * log**2)


def threshold(interval: float, rate: float) -> float:
    """Of the evidence: the logarithm of the recordings between two false alarms, `interval` seconds apart, of which
    there may be `rate` a year.
    """
    return max(math.log(YEAR / max(interval, 1e-3) / rate), LEAST_LOG)


def add_evidence(evidence: float, p_value: float, limit: float, correlated: int = 1) -> float:
    """The evidence after one more recording, which knows of so many before it."""
    step = min(math.log(bet(p_value)) / correlated, limit / PERSISTENCE * (1 + 1e-9))
    return min(max(evidence + step, 0.0), MOST * limit)


def recordings_of_baseline(request: WatchRequest, interval: float) -> int:
    """As many as come between two false alarms that are accepted, FEWEST at least and USUAL at most: so few say nothing
    of what is rarer, and beyond USUAL the tail is extrapolated.
    """
    between = YEAR / max(interval, 1e-3) / request.false_alarms
    return request.baseline or round(min(max(between, FEWEST), USUAL))


def row_of(values: Mapping[str, float]) -> Doubles:
    """Measurements as (name,) of MEASUREMENTS; nan where something was not measured."""
    return np.array([values.get(name, math.nan) for name in MEASUREMENTS], dtype=np.float64)


def columns(*names: str) -> list[int]:
    """The places of measurements in a row."""
    return [tuple(MEASUREMENTS).index(name) for name in names]


RMS, KURTOSIS, *LINE_COLUMNS = columns("rms", "envelope_kurtosis", *LINES)


def compared(rows: Doubles) -> Doubles:
    """What is compared of measurements (…, name) of MEASUREMENTS: (…, name) of NAMES in dB, nan where not known."""
    decibels = 10 * np.log10(np.where(rows > 0, rows, np.nan))
    bands, whole = 2 * decibels[..., columns(*BAND_NAMES)], 2 * decibels[..., columns("rms")]
    known = np.isfinite(bands).any(axis=-1, keepdims=True)
    level = np.where(known, np.nanmedian(np.where(known, bands, 0.0), axis=-1, keepdims=True), whole)
    lines = rows[..., columns(*LINES)] - rows[..., columns("reference")]
    return np.concatenate([level, bands, decibels[..., columns(*KURTOSES)], lines], axis=-1)


@dataclass(frozen=True, eq=False)
class OperatingState:
    """Speed, load and rate that belong together, and the baseline that is learnt, or was, of its recordings."""

    rpm: float | None = None
    load: float | None = None
    rate: float | None = None
    unit: str | None = None
    rows: Doubles = field(default_factory=lambda: np.empty((0, len(MEASUREMENTS))))  # (recording, name)
    count: int = 0  # recordings that were learnt from, thinned ones included
    last: float | None = None  # time of the last one
    ran: float = 0.0  # seconds of the machine, without stops, while they were recorded
    usual: Doubles = field(default_factory=lambda: np.full(len(NAMES), np.nan))  # medians (name,) in dB, of FEWEST on
    # Once it is learnt.
    spreads: Doubles = field(default_factory=lambda: np.ones(len(NAMES)))  # robust standard deviations (name,)
    scores: Doubles | None = None  # of the baseline's recordings, each against the others
    correlated: int = 1  # recordings after which they are independent

    @property
    def learnt(self) -> bool:
        return self.scores is not None

    def admits(self, other: OperatingState, most: float) -> bool:
        """Whether a recording in the other state is of this one; `most` is the highest load so far."""
        rate = self.rate is None or _near(self.rate, other.rate, SAME_RATE * (other.rate or 0.0))
        speed = _near(self.rpm, other.rpm, SAME_SPEED * (self.rpm or 0.0))
        load = _near(self.load, other.load, SAME_LOAD * max(most, 1e-9))
        return self.unit in (None, other.unit) and rate and speed and load

    def learn(self, row: Doubles, time: float, request: WatchRequest, interval: float) -> OperatingState:
        """With one more recording in the baseline, which is learnt once it has enough of them, over a time that is long
        enough. Of many recordings every other one is kept.
        """
        rows = np.vstack([self.rows, row])
        rows = rows[::2] if len(rows) > KEPT else rows
        since = 0.0 if self.last is None else time - self.last
        ran = self.ran + (since if since <= STOP * interval else 0.0)
        new = replace(self, rows=rows, count=self.count + 1, last=time, ran=ran)
        matrix = compared(rows)
        if len(rows) >= FEWEST:
            new = replace(new, usual=_quantile(matrix, 0.5))
        wanted = recordings_of_baseline(request, interval)
        if not self.learnt and (new.count < wanted or ran < DAY * request.baseline_days):
            return new
        without = [np.delete(matrix, number, axis=0) for number in range(len(matrix))]
        scores = [
            score(row - _quantile(others, 0.5), _spread(others)) for row, others in zip(matrix, without, strict=True)
        ]
        correlated = max(1, round(_correlation(matrix) * new.count / len(rows)))
        return replace(new, spreads=_spread(matrix), scores=np.array(scores), correlated=correlated)

    def missing(self, request: WatchRequest, interval: float) -> tuple[Finding, ...]:
        """How much of the baseline is there; nothing where it is learnt."""
        if self.learnt:
            return ()
        wanted, days = recordings_of_baseline(request, interval), request.baseline_days
        values = {
            "recordings": min(self.count, wanted), "wanted": wanted, "days": min(self.ran / DAY, days), "of_days": days,
        }  # fmt: skip
        return (Finding("baseline incomplete", "remark", values),)

    @property
    def band(self) -> dict[str, tuple[float, float]]:
        """What all but a tenth of the baseline's measurements lie within, by name."""
        if not len(self.rows):
            return {}
        bands = zip(*(_quantile(self.rows, share).tolist() for share in (1 - HIGH, HIGH)), strict=True)
        return {name: band for name, band in zip(MEASUREMENTS, bands, strict=True) if np.isfinite(band).all()}

    def change(self, row: Doubles) -> Doubles:
        """(name,) of NAMES: dB above what is usual; nan where something was not measured."""
        return np.asarray(compared(row) - self.usual)

    def p_value(self, change: Doubles) -> float | None:
        """How often a recording of the baseline would be as unusual; None while it is learnt."""
        return None if self.scores is None else p_value(score(change, self.spreads), self.scores)

    @property
    def lines(self) -> Baseline | None:
        """What fault lines are usual; None where no lines were learnt."""
        known = self.rows[np.isfinite(self.rows[:, LINE_COLUMNS]).all(axis=1)]
        if not self.learnt or len(known) < PERSISTENCE:
            return None
        levels = dict(zip(FAULTS, np.median(known[:, LINE_COLUMNS], axis=0).tolist(), strict=True))
        return Baseline(levels, float(np.median(known[:, KURTOSIS])), KNOWN)


def _near(first: float | None, second: float | None, tolerance: float) -> bool:
    """Whether both are unknown, or differ by no more."""
    return first is second if first is None or second is None else abs(first - second) <= tolerance


def _correlation(matrix: Doubles) -> int:
    """Recordings of a baseline (recording, name) after which levels are independent: where the autocorrelation, the
    mean of all levels, has fallen below CORRELATED.
    """
    apart = np.nan_to_num(matrix - _quantile(matrix, 0.5))
    apart = apart[:, apart.any(axis=0)] - apart[:, apart.any(axis=0)].mean(axis=0)
    power, longest = np.mean(apart**2, axis=0), len(matrix) // LONGEST_CORRELATED
    for lag in range(1, longest):
        if apart.size == 0 or np.mean(np.mean(apart[lag:] * apart[:-lag], axis=0) / power) < CORRELATED:
            return lag
    return max(1, longest)


def excesses(change: Doubles, spreads: Doubles) -> Doubles:
    """Changes (name,) of NAMES beyond their margins, in spreads; what was not measured is far below."""
    beyond = np.array(change, dtype=np.float64)
    bands = slice(1, 1 + BANDS)
    if np.isfinite(beyond[bands]).any():
        beyond[0] = np.nanmedian(beyond[bands])
        beyond[bands] -= max(beyond[0], 0.0)
    return np.where(np.isfinite(beyond), (beyond - MARGINS) / spreads, -1e3)


def score(change: Doubles, spreads: Doubles) -> float:
    """Of changes (name,) of NAMES: the sum of what exceeds the margins, each rounded off below as log(1 + exp)."""
    return float(np.logaddexp(0.0, excesses(change, spreads)).sum())


def _quantile(matrix: Doubles, share: float) -> Doubles:
    """Of each column, between its values; nan where less than half of them are known."""
    count = np.isfinite(matrix).sum(axis=0)
    ordered = np.sort(matrix, axis=0)  # nan comes last
    position = share * np.maximum(count - 1, 0)
    below, columns = np.floor(position).astype(np.int64), np.arange(matrix.shape[1])
    above = np.minimum(below + 1, np.maximum(count - 1, 0))
    low, high = ordered[below, columns], ordered[above, columns]
    return np.asarray(np.where(count < max(1, len(matrix) // 2), np.nan, low + (position - below) * (high - low)))


def _spread(matrix: Doubles) -> Doubles:
    """Standard deviations (name,) by the median deviation, or by the high values where these are further away."""
    usual = _quantile(matrix, 0.5)
    middle = 1.4826 * _quantile(np.abs(matrix - usual), 0.5)
    high = (_quantile(matrix, HIGH) - usual) / HIGH_DEVIATION
    return np.asarray(np.maximum(np.nan_to_num(np.maximum(middle, high)), FLOORS))
