"""What is usual for a point in one operating state, by its first recordings, and how unusual another recording is.

Levels of bands, kurtosis and fault lines are compared in dB. A change counts from a margin on, since machines drift and
their load, temperature and mounting vary without harm; margins and floors were chosen on simulated fleets
(benchmarks/watch.py). The score of a recording is the sum of its changes beyond the margins, in spreads of the
baseline: measurements that change together say more than one of them.

>>> state = OperatingState(rpm=1480.0)
>>> for row in rows: state.learn(row, time, WatchRule())
>>> state.tail.p_value(score(state.change(new_row), np.array(state.spreads)))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.levels import BANDS
from bearcat.watch.alarms import Tail

BAND_NAMES = tuple(f"band_{number}" for number in range(1, BANDS + 1))
LINES = ("inner_race", "outer_race", "ball")
LEVEL = "level"  # what all bands changed by
# dB that may change without harm, and the least spread, of what is compared.
MARGINS = {LEVEL: 3.0, **dict.fromkeys(BAND_NAMES, 1.5), "kurtosis": 0.5, "envelope_kurtosis": 0.5}
MARGINS |= dict.fromkeys(LINES, 1.0)
FLOORS = {**dict.fromkeys(MARGINS, 0.3), **dict.fromkeys(LINES, 1.0)}
NAMES = tuple(MARGINS)
HIGH, HIGH_DEVIATION = 0.95, 1.645  # a quantile, and where a normal distribution has it
FEWEST = 8  # recordings of a baseline that covers a period
CHANCE = 2.5  # standard errors by which halves of a baseline may differ
LONGEST = 3  # times the recordings of a baseline, after which one that does not settle is taken as it is
OTHER_RATE = 0.01  # relative, from which on a sampling rate is another
KEPT = 200  # recordings of a baseline at most


@dataclass(frozen=True)
class WatchRule:
    """When a change is an alarm. One rule is kept with a store."""

    false_alarms: float = 1.0  # a year, of each point
    baseline: int = 30  # recordings of an operating state from which its baseline is learnt
    period: float | None = None  # seconds from the first recording on, in place of a number
    speed_bin: float = 0.05  # by which speeds of one operating state differ at most, relative
    load_bin: float = 0.2  # by which loads do, relative to the highest
    speeds: tuple[float, ...] = ()  # rpm of operating states, where they are given
    loads: tuple[float, ...] = ()  # their loads


def compared_values(values: Mapping[str, float]) -> dict[str, float]:
    """What is compared of a recording's measurements, in dB."""
    found = {}
    for name in ("rms", "velocity", *BAND_NAMES):
        if values.get(name, 0.0) > 0:
            found[name] = 20 * math.log10(values[name])
    for name in ("kurtosis", "envelope_kurtosis"):
        if values.get(name, 0.0) > 0:
            found[name] = 10 * math.log10(values[name])
    for name in LINES:
        if name in values and "reference" in values:
            found[name] = values[name] - values["reference"]
    return found


@dataclass(eq=False)
class OperatingState:
    """Speed, load and rate that belong together, and the recordings that its baseline is made of."""

    rpm: float | None = None
    load: float | None = None
    rate: float | None = None
    unit: str | None = None
    rows: list[dict[str, float]] = field(default_factory=list)  # measurements of the baseline's recordings
    times: list[float] = field(default_factory=list)
    passed: int = 0  # recordings that were left out because levels had not settled
    seen: int = 0  # recordings that were learnt from, thinned ones included
    first: float | None = None  # time of the first recording
    moved: float = 0.0  # dB by which levels rose while they were learnt and did not settle
    usual: tuple[float, ...] = ()  # (name,) of NAMES in dB, once it is learnt
    spreads: tuple[float, ...] = ()  # robust standard deviations (name,), no less than FLOORS
    band: dict[str, list[float]] = field(default_factory=dict)  # of each measurement, what all but a tenth lie within
    tail: Tail | None = None  # scores of the baseline's own recordings

    @property
    def learnt(self) -> bool:
        return self.tail is not None

    @property
    def label(self) -> str:
        """In words."""
        speed = "" if self.rpm is None else f"{self.rpm:.0f} rpm"
        load = "" if self.load is None else f"load {self.load:g}"
        return ", ".join(filter(None, (speed, load))) or "any"

    def same_rate(self, rate: float) -> bool:
        """Whether recordings at this sampling rate can be compared."""
        return self.rate is None or abs(rate / self.rate - 1) <= OTHER_RATE

    def admits(self, rpm: float | None, load: float | None, rate: float | None, most: float, rule: WatchRule) -> bool:
        """Whether a recording is of this state; `most` is the highest load so far."""
        if (rpm is None) != (self.rpm is None) or (load is None) != (self.load is None):
            return False
        if rate is not None and not self.same_rate(rate):
            return False
        near = rpm is None or self.rpm is None or abs(rpm / self.rpm - 1) <= rule.speed_bin
        alike = load is None or self.load is None or abs(load - self.load) <= rule.load_bin * max(most, 1e-9)
        return near and alike

    def learn(self, row: dict[str, float], time: float, rule: WatchRule, healthy: bool = False) -> None:
        """Takes a recording into the baseline, which is learnt once it has enough and its levels have settled.

        Where `healthy` is said by a person, whether they settle does not matter. Of many recordings every other one is
        kept.
        """
        self.rows.append(row)
        self.times.append(time)
        self.seen += 1
        self.first = time if self.first is None else self.first
        if len(self.rows) > KEPT:
            del self.rows[1::2], self.times[1::2]
        enough = self.seen >= rule.baseline
        if rule.period is not None:
            enough = len(self.rows) >= FEWEST and time - self.first >= rule.period
        if self.learnt or not enough:
            if self.learnt:
                self._fix()
            return
        settled = healthy or self.settled
        if settled or rule.period is not None or self.passed >= (LONGEST - 1) * rule.baseline:
            self.moved = 0.0 if settled else self._rise()
            self._fix()
        else:
            self.passed += 1
            del self.rows[0], self.times[0]

    def _rise(self) -> float:
        """dB by which levels rose from the first half of the baseline to the second."""
        matrix, half = self._matrix, len(self.rows) // 2
        return float(np.nanmax(np.append(_median(matrix[half:]) - _median(matrix[:half]), 0.0)))

    @property
    def settled(self) -> bool:
        """Whether the second half of the baseline is as the first, within margins and chance: a new bearing runs in.

        Chance is measured by what follows each other, since levels that fall have a large spread.
        """
        matrix = self._matrix
        half = len(matrix) // 2
        moved = np.abs(_median(matrix[half:]) - _median(matrix[:half]))
        noise = 1.4826 / math.sqrt(2) * _median(np.abs(np.diff(matrix, axis=0)))
        allowed = np.array([MARGINS[name] for name in NAMES]) + CHANCE * 1.25 * math.sqrt(2 / max(half, 1)) * noise
        return not bool(np.any(moved > allowed))

    @property
    def _matrix(self) -> NDArray[np.float64]:
        """(recording, name) of NAMES; nan where something was not measured."""
        return np.array([_vector(compared_values(row)) for row in self.rows], dtype=np.float64)

    def _fix(self) -> None:
        """Medians, spreads and tail of the baseline as it is; each recording's score is against the others."""
        matrix = self._matrix
        scores = []
        for place in range(len(matrix)):
            others = np.delete(matrix, place, axis=0)
            scores.append(score(matrix[place] - _median(others), _spread(others)))
        self.usual, self.spreads = tuple(_median(matrix).tolist()), tuple(_spread(matrix).tolist())
        self.tail = Tail.of(scores)
        names = sorted(set().union(*self.rows))
        table = np.array([[row.get(name, math.nan) for name in names] for row in self.rows])
        low, high = (_quantile(table, share).tolist() for share in (1 - HIGH, HIGH))
        self.band = {name: ends for name, *ends in zip(names, low, high, strict=True) if ends[0] == ends[0]}

    def change(self, row: Mapping[str, float]) -> NDArray[np.float64]:
        """(name,) of NAMES: dB above what is usual; nan where something was not measured."""
        return np.asarray(_vector(compared_values(row)) - np.array(self.usual))


def excesses(change: NDArray[np.float64], spreads: NDArray[np.float64]) -> NDArray[np.float64]:
    """Changes (name,) of NAMES beyond their margins, in spreads; what was not measured is far below."""
    own = np.array(change, dtype=np.float64)
    bands = slice(1, 1 + BANDS)
    if np.isfinite(own[bands]).any():
        own[0] = np.nanmedian(own[bands])
        own[bands] -= max(own[0], 0.0)
    margins = np.array([MARGINS[name] for name in NAMES])
    return np.asarray(np.where(np.isfinite(own), (own - margins) / spreads, -1e3))


def score(change: NDArray[np.float64], spreads: NDArray[np.float64]) -> float:
    """Of changes (name,) of NAMES: the sum of what exceeds the margins, each rounded off below as log(1 + exp)."""
    return float(np.logaddexp(0.0, excesses(change, spreads)).sum())


def vector_of(change: Mapping[str, float]) -> NDArray[np.float64]:
    """(name,) of NAMES."""
    return np.array([change.get(name, math.nan) for name in NAMES])


def _vector(compared: Mapping[str, float]) -> NDArray[np.float64]:
    whole = compared.get("rms", compared.get("velocity", math.nan))  # of sensors that measure by themselves
    level = [compared[name] for name in BAND_NAMES if name in compared] or [whole]
    return vector_of({**compared, LEVEL: float(np.median(level))})


def _median(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over recordings; nan where less than half of them have a value."""
    return _quantile(matrix, 0.5)


def _quantile(matrix: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Of each column, between its values; nan where less than half of them are known."""
    count = np.isfinite(matrix).sum(axis=0)
    ordered = np.sort(matrix, axis=0)  # nan comes last
    place = share * np.maximum(count - 1, 0)
    below, columns = np.floor(place).astype(np.int64), np.arange(matrix.shape[1])
    above = np.minimum(below + 1, np.maximum(count - 1, 0))
    low, high = ordered[below, columns], ordered[above, columns]
    return np.asarray(np.where(count < max(1, len(matrix) // 2), np.nan, low + (place - below) * (high - low)))


def _spread(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviations (name,) by the median deviation, or by the high values where these are further away."""
    usual = _median(matrix)
    middle = 1.4826 * _median(np.abs(matrix - usual))
    high = (_quantile(matrix, HIGH) - usual) / HIGH_DEVIATION
    found = np.nan_to_num(np.maximum(middle, high))
    return np.asarray(np.maximum(found, [FLOORS[name] for name in NAMES]))
