"""What is remembered of a point between recordings: its operating states, what is usual in each, and open alarms.

Short recordings add up to a block of TURNS turns of the shaft before anything is read. A block is compared with the
baseline of its operating state, less what the neighbours on the machine and the same point of sister machines show too;
its p-value adds to the evidence for a change (alarms.py). The spectra of the last blocks, pooled, say what the change
is. A line that a neighbour shows louder, or a change while a neighbour is in alarm, is cross-talk: to be checked.

>>> memory = PointMemory("pump 3", "drive end", WatchRule())
>>> memory.observe(snapshot)
>>> memory.assess(beside=[other_points_of_the_machine], sisters=[same_point_of_other_machines]).status.status
'learning'
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.baseline import KNOWN, Baseline
from bearcat.diagnosis.fusion import Witnesses, fuse
from bearcat.diagnosis.general import GeneralEvidence
from bearcat.diagnosis.physics import FAULTS, PhysicsEvidence, physics_evidence
from bearcat.diagnosis.points import SHOWN, CrossTalk, Loudness, cross_talk, loudness
from bearcat.diagnosis.quality import stopped
from bearcat.diagnosis.spectra import FEWEST_TURNS, TURNS, Spectra
from bearcat.settings import from_plain, to_plain
from bearcat.trust.decision import ALARM, CANNOT_TELL, CHECK, HEALTHY, MOST_REASONS, NO_SIGNAL, OK, SAFE_FAULT, SURE
from bearcat.watch.alarms import PERSISTENCE, Tail, add_evidence, threshold
from bearcat.watch.snapshot import LEARNING, MEASUREMENTS, Assessment, Event, PointStatus, Snapshot, line_values
from bearcat.watch.usual import (
    BAND_NAMES,
    LEVEL,
    MARGINS,
    NAMES,
    OperatingState,
    WatchRule,
    excesses,
    vector_of,
)

FORGET = 0.8  # of the pooled spectra that each block leaves
CERTAIN = 0.9  # probability of a fault that is an alarm while the baseline is still learnt
GROWN = 6.0  # dB beyond the change at an alarm that are worth a second one
STEP, STEP_BANDS, STEP_GROWTH = 1.0, 4, 2.0  # dB, bands and growth in dB of a change that a sensor makes at once
RECENT = 60  # blocks whose changes are kept
NEIGHBOURS, SISTERS = 2, 3  # that must show a change before it is taken for load, speed or weather
FRESH = 1.5  # intervals of a point's recordings that one of another point may be away, to be compared
DAY = 86400.0
MARGIN_VECTOR = np.array([MARGINS[name] for name in NAMES])
LEVELS = np.array([name in (LEVEL, *BAND_NAMES) for name in NAMES])


@dataclass
class OpenAlarm:
    """An alarm that is neither acknowledged and gone, nor forgotten."""

    time: float  # when it was raised
    since: float  # when the change began
    change: float  # dB of the largest change then, or at the last event of growth
    acknowledged: float | None = None
    over: bool = False  # the change has gone


@dataclass
class Pool:
    """Spectra of the last blocks, weighted: older ones less."""

    spectra: Spectra
    weight: float
    rate: float
    rpm: float

    def add(self, spectra: Spectra, rate: float, rpm: float) -> Pool:
        """Another block; it begins anew where the bands are other ones."""
        if spectra.power.shape != self.spectra.power.shape or abs(rate / self.rate - 1) > 1e-6:
            return Pool(spectra, 1.0, rate, rpm)
        old, weight = FORGET * self.weight, FORGET * self.weight + 1

        def mean(before: NDArray[np.float64], now: NDArray[np.float64]) -> NDArray[np.float64]:
            return (old * before + now) / weight

        pooled = Spectra(
            mean(self.spectra.power, spectra.power), spectra.turns, self.spectra.windows + spectra.windows,
            mean(self.spectra.kurtosis, spectra.kurtosis), mean(self.spectra.loudness, spectra.loudness), spectra.axes,
        )  # fmt: skip
        return Pool(pooled, weight, rate, rpm)


@dataclass
class Block:
    """Recordings that are read together."""

    rows: list[dict[str, float]] = field(default_factory=list)
    pool: Pool | None = None
    turns: float = 0.0


class PointMemory:
    """Of one point. Kept in the store as bytes; a snapshot changes it, and what it says depends on nothing else."""

    def __init__(self, machine: str, point: str, rule: WatchRule) -> None:
        self.machine, self.point, self.rule = machine, point, rule
        self.states: list[OperatingState] = []
        self.current: int | None = None  # of the states
        self.orders: dict[str, float] | None = None
        self.block, self.pool = Block(), None  # type: Block, Pool | None
        self.usual: Baseline | None = None  # fault lines of the baseline
        self.general: dict[str, float] | None = None  # the general model's word, pooled like the spectra
        self.lines: dict[str, Loudness] = {}
        self.recent: list[tuple[float, dict[str, float]]] = []  # (time, change) of the last blocks
        self.evidence, self.onset = 0.0, None  # type: float, float | None
        self.alarm: OpenAlarm | None = None
        self.sensor: float | None = None  # since when a sensor seems to be another, or mounted otherwise
        self.claims = 0  # blocks in a row in which the pooled evidence names a fault
        self.intervals: list[float] = []
        self.block_time: float | None = None
        self.highest_load = 0.0
        self.status = PointStatus(
            machine, point, LEARNING, None, None, None, (), None, None, 0, "any", 0, rule.baseline
        )  # fmt: skip
        self._snapshot: Snapshot | None = None
        self._complete = False
        self._silent: str | None = None
        self._notes: list[str] = []
        self._change: dict[str, float] = {}
        self._tail: tuple[int, int, Tail, NDArray[np.float64]] | None = None

    # What comes in.

    def observe(self, snapshot: Snapshot, healthy: bool | None = None) -> None:
        """Takes one recording in, which must be later than all before; `healthy`: a person says so."""
        self._snapshot, self._complete, self._notes, self._change = snapshot, False, [], {}
        state = self._state_of(snapshot)
        self._silent = snapshot.no_signal
        usual = [row["rms"] for row in state.rows if "rms" in row]
        if self._silent is None and "rms" in snapshot.values:
            self._silent = stopped(snapshot.values["rms"], usual)
        if self._silent is not None:
            return
        if snapshot.orders is not None:
            self.orders = dict(snapshot.orders)
        self._add(snapshot)
        few = snapshot.turns is not None and snapshot.turns < FEWEST_TURNS and self.block.turns < TURNS
        if few:
            return
        row = self._row()
        if self.block_time is not None and snapshot.time > self.block_time:
            self.intervals = [*self.intervals, snapshot.time - self.block_time][-50:]
        self.block, self.block_time, self._complete = Block(), snapshot.time, True
        if state.learnt and not healthy:
            self._change = state.change(row)
            self.recent = [*self.recent, (snapshot.time, self._change)][-RECENT:]
            return
        before = state.learnt
        state.learn(row, snapshot.time, self.rule, bool(healthy))
        if state.learnt and not before and self.pool is not None and self.orders is not None:
            self.usual = Baseline.of([self._physics(self.pool)], KNOWN)

    def _state_of(self, snapshot: Snapshot) -> OperatingState:
        """The operating state of a recording; a new one where it fits none."""
        rpm, load, rule = snapshot.rpm, snapshot.values.get("load"), self.rule
        if rpm is not None and rule.speeds:
            rpm = min(rule.speeds, key=lambda speed: abs(speed - float(rpm or 0)))
        if load is not None and rule.loads:
            load = min(rule.loads, key=lambda given: abs(given - float(load or 0)))
        self.highest_load = max(self.highest_load, abs(load or 0.0))
        rates = {state.rate for state in self.states if state.rate is not None}
        if snapshot.rate is not None and rates and all(abs(snapshot.rate / rate - 1) > 0.01 for rate in rates):
            self._notes.append(f"the sampling rate is {snapshot.rate:g} Hz now; what is usual is learnt anew")
        for number, state in enumerate(self.states):
            if state.admits(rpm, load, snapshot.rate, self.highest_load, rule):
                self.current = number
                return state
        silent = snapshot.no_signal is not None
        if silent and self.states:
            return self.states[self.current or 0]
        self.states.append(OperatingState(rpm, load, snapshot.rate))
        self.current = len(self.states) - 1
        return self.states[-1]

    def _add(self, snapshot: Snapshot) -> None:
        """Adds a recording to the block and to the pooled spectra."""
        self.block.rows.append(dict(snapshot.values))
        self.block.turns += snapshot.turns or 0.0
        if snapshot.spectra is None or snapshot.rate is None or snapshot.rpm is None:
            return
        more = (snapshot.spectra, snapshot.rate, snapshot.rpm)
        own = self.block.pool
        self.block.pool = Pool(snapshot.spectra, 1.0, snapshot.rate, snapshot.rpm) if own is None else own.add(*more)
        if snapshot.general is not None:
            old = self.general or dict(snapshot.general)
            self.general = {name: FORGET * old.get(name, 0.0) + (1 - FORGET) * share
                            for name, share in snapshot.general.items()}  # fmt: skip

    def _row(self) -> dict[str, float]:
        """The measurements of a complete block; fault lines are read in its spectra."""
        block = self.block
        names = set().union(*block.rows)
        row = {name: float(np.median([each[name] for each in block.rows if name in each])) for name in names}
        if block.pool is not None:
            own = block.pool
            self.pool = own if self.pool is None else self.pool.add(own.spectra, own.rate, own.rpm)
            if self.orders is not None and len(block.rows) > 1:
                found = self._physics(own)
                row |= line_values({name: lines.level for name, lines in found.faults.items()}, found.reference_level)
        return row

    def _physics(self, pool: Pool) -> PhysicsEvidence:
        return physics_evidence(pool.spectra, pool.rate, pool.rpm, self.orders or {})

    # What is said.

    @property
    def state(self) -> OperatingState:
        return self.states[self.current or 0]

    @property
    def interval(self) -> float:
        """Seconds between blocks."""
        return float(np.median(self.intervals)) if self.intervals else DAY

    @property
    def limit(self) -> float:
        """Of the evidence, from which on a change is an alarm."""
        return threshold(self.interval, self.rule.false_alarms)

    def fresh_change(self, time: float, reach: float) -> dict[str, float]:
        """The last change against the baseline, if it is of about this time."""
        if not self.recent or abs(self.recent[-1][0] - time) > reach:
            return {}
        return self.recent[-1][1]

    def assess(self, beside: Sequence[PointMemory] = (), sisters: Sequence[PointMemory] = ()) -> Assessment:
        """What the last recording means, beside the other points of its machine and the same point of others."""
        snapshot, events = self._snapshot, list[Event]()
        if snapshot is None:
            raise ValueError("observe a recording first")
        state, p_value, common = self.state, None, dict[str, float]()
        physics, borrowed, owner = None, dict[str, CrossTalk](), None
        reach = FRESH * max(self.interval, 60.0)
        near = [
            each for each in beside if each.block_time is not None and abs(each.block_time - snapshot.time) <= reach
        ]
        if self._silent is None and self._complete:
            if self.pool is not None and self.orders is not None:
                physics = self._physics(self.pool)
                self.lines = loudness(physics)
                borrowed = cross_talk([self.lines, *(each.lines for each in near)])[0]
                borrowed = {fault: line for fault, line in borrowed.items() if self.lines[fault].excess >= SHOWN}
            if self._change:
                common = self._common(near, sisters, snapshot.time, reach)
                p_value = self._weigh(common, borrowed)
        found = self._named(physics, borrowed)
        fault, confidence, probable = found
        owner = next((near[line.owner - 1] for line in borrowed.values()), None) or self._louder_alarm(near)
        if self._silent is None and self._complete:
            events += self._update_alarm(snapshot.time, owner, common)
        self.status = self._judge(snapshot, fault, confidence, probable, physics, borrowed, owner, common)
        assessed = Assessment(
            self.status, state.label, dict(self._change), p_value, self.evidence, self.limit,
            fault or (NO_SIGNAL if self._silent else HEALTHY if probable <= SAFE_FAULT else CANNOT_TELL),
            confidence, self.band(), tuple(self._described(event) for event in events),
        )  # fmt: skip
        return assessed

    def _common(
        self, near: Sequence[PointMemory], sisters: Sequence[PointMemory], time: float, reach: float
    ) -> dict[str, float]:
        """What neighbours and sisters show too: dB by which levels rose at most points at once."""
        found: dict[str, float] = {}
        for others, fewest in ((near, NEIGHBOURS), (sisters, SISTERS)):
            changes = [change for each in others if (change := each.fresh_change(time, reach))]
            for name in BAND_NAMES if len(changes) >= fewest else ():
                shared = [change[name] for change in changes if name in change]
                if len(shared) >= fewest:
                    found[name] = max(found.get(name, 0.0), float(np.median(shared)))
        return {name: value for name, value in found.items() if value > 0}

    def _weigh(self, common: Mapping[str, float], borrowed: Mapping[str, CrossTalk]) -> float:
        """The p-value of the last block; the evidence takes it in."""
        change = self._change | {name: self._change[name] - common.get(name, 0.0)
                                 for name in BAND_NAMES if name in self._change}  # fmt: skip
        for fault in borrowed:
            change.pop(fault.replace(" ", "_"), None)
        tail, spreads = self._baseline_tail()
        p_value = tail.p_value(float(excesses(vector_of(change), spreads).max()))
        before = self.evidence
        self.evidence = add_evidence(before, p_value, self.limit)
        if before == 0 and self.evidence > 0:
            self.onset = self.block_time
        elif self.evidence == 0:
            self.onset = None
        return p_value

    def _baseline_tail(self) -> tuple[Tail, NDArray[np.float64]]:
        key = (self.current or 0, len(self.state.rows))
        if self._tail is None or self._tail[:2] != key:
            self._tail = (*key, *self.state.tail())
        return self._tail[2], self._tail[3]

    def _named(
        self, physics: PhysicsEvidence | None, borrowed: Mapping[str, CrossTalk]
    ) -> tuple[str | None, float, float]:
        """The fault that the pooled evidence names, how sure that is, and how probable any fault is."""
        if physics is None:
            return self.status.fault, self.status.confidence or 0.0, 0.0
        general = None if self.general is None or borrowed else GeneralEvidence(self.general, 1.0, 1)
        for fault in borrowed:
            physics = physics.without_lines(fault)
        baseline = None if self.usual is None else self.usual.compare(physics)
        found = fuse(Witnesses(physics, general, baseline=baseline))
        likeliest = max(FAULTS, key=lambda fault: found[fault])
        probable = 1 - found[HEALTHY]
        named = probable >= SURE and found[likeliest] >= 0.5
        self.claims = self.claims + 1 if named else 0
        return (likeliest, found[likeliest], probable) if named else (None, probable, probable)

    def _louder_alarm(self, near: Sequence[PointMemory]) -> PointMemory | None:
        """A neighbour in alarm that began before, which may be what this point hears."""
        first = self.alarm.since if self.alarm is not None else self.onset
        open_ones = [each for each in near if each.alarm is not None and not each.alarm.over]
        earlier = [each for each in open_ones if each.alarm and (first is None or each.alarm.since <= first)]
        return min(earlier, key=lambda each: each.alarm.since if each.alarm else math.inf, default=None)

    def _update_alarm(self, time: float, owner: PointMemory | None, common: Mapping[str, float]) -> list[Event]:
        """Raises an alarm, a second where it has grown, and says when it is over."""
        largest = max((self._change.get(name, 0.0) - common.get(name, 0.0) for name in NAMES), default=0.0)
        alarm = self.alarm
        if alarm is not None and alarm.over and alarm.acknowledged is not None:
            self.alarm = alarm = None
        if self.evidence >= self.limit and (alarm is None or alarm.over):
            if owner is not None:
                return []  # a neighbour's: to be checked
            if alarm is None and self._swapped() and self.sensor is None:
                self.sensor = self.onset
                return [self._event(time, "sensor", "levels changed at once, and no fault shows")]
            if self.sensor is not None and not self._grows_beyond(self.sensor):
                return []
            self.sensor = None
            self.alarm = OpenAlarm(time, self.onset or time, largest)
            return [self._event(time, "alarm", "alarm")]
        if alarm is None or alarm.over:
            return []
        if largest >= alarm.change + GROWN:
            alarm.change, alarm.acknowledged = largest, None
            return [self._event(time, "grown", "the change has grown")]
        if self.evidence < self.limit / 2 and self._change:
            alarm.over = True
            return [self._event(time, "over", "the change has gone")]
        return []

    def _swapped(self) -> bool:
        """Whether levels of several bands jumped between two blocks and stayed, while nothing strikes and no line
        rose: another sensor or mounting.
        """
        since = [change for time, change in self.recent if time >= (self.onset or 0.0)]
        before = [change for time, change in self.recent if time < (self.onset or 0.0)][-5:]
        if len(since) < PERSISTENCE:
            return False
        vectors = np.nan_to_num([vector_of(change) for change in since])
        usual = np.median(np.nan_to_num([vector_of(change) for change in before]), axis=0) if before else 0.0
        jump, moved = vectors[0] - usual, np.median(vectors[-PERSISTENCE:], axis=0) - vectors[0]
        quiet = not np.any((np.median(vectors, axis=0) > MARGIN_VECTOR) & ~LEVELS)
        many = int(np.sum(np.abs(jump[LEVELS]) > STEP)) >= STEP_BANDS
        return bool(quiet and many and np.abs(moved[LEVELS]).max() <= STEP_GROWTH)

    def _grows_beyond(self, since: float) -> bool:
        """Whether the change goes on since a sensor was swapped, or lines or strikes have come."""
        vectors = np.nan_to_num([vector_of(change) for time, change in self.recent if time >= since])
        if len(vectors) < 2 * PERSISTENCE:
            return False
        last, first = np.median(vectors[-PERSISTENCE:], axis=0), np.median(vectors[:PERSISTENCE], axis=0)
        return bool((last - first).max() > GROWN or np.any((last > 2 * MARGIN_VECTOR) & ~LEVELS))

    def _judge(
        self, snapshot: Snapshot, fault: str | None, confidence: float, probable: float,
        physics: PhysicsEvidence | None, borrowed: Mapping[str, CrossTalk], owner: PointMemory | None,
        common: Mapping[str, float],
    ) -> PointStatus:  # fmt: skip
        """The status of the point, and why."""
        before, state, alarm, reasons = self.status, self.state, self.alarm, list[str]()
        evidence = before.evidence
        if physics is not None:
            likeliest = fault or max(FAULTS, key=lambda name: physics.faults[name].level)
            evidence = physics.line(likeliest)
        learning = not state.learnt
        certain = fault is not None and self.claims >= PERSISTENCE
        open_alarm = alarm is not None and not alarm.over and alarm.acknowledged is None
        changed = self._what_changed(common)
        if self._silent is not None:
            status = NO_SIGNAL
            reasons.append(self._silent)
            if open_alarm and alarm is not None:
                reasons.append(f"the alarm of {day(alarm.time)} is open")
        elif not self._complete and before.time is not None:
            status, reasons = before.status, list(before.reasons)
            if status == NO_SIGNAL:
                status, reasons = (ALARM if open_alarm else LEARNING if learning else CHECK), []
        elif open_alarm and alarm is not None:
            status = ALARM
            reasons += [f"{changed} since {day(alarm.since)}{self._growth(alarm.since)}"] if changed else []
            reasons += [f"{evidence}: {fault}"] if fault else []
            reasons = reasons or [f"changed since {day(alarm.since)}"]
        elif owner is not None and (borrowed or self.evidence >= self.limit):
            status = CHECK
            where = f"cross-talk from {owner.point}"
            lines = next((f"{name} lines are {line.decibels:.0f} dB louder there" for name, line in borrowed.items()),
                         "which is in alarm")  # fmt: skip
            reasons.append(f"{where}: {lines}")
        elif learning and certain and probable >= CERTAIN:
            status = ALARM
            reasons.append(f"its first recordings already show {fault}: {evidence}")
        elif certain:
            status = CHECK
            reasons.append(f"{'its first recordings' if learning else 'pooled recordings'} show {fault}: {evidence}")
        elif alarm is not None:
            status = CHECK
            seen = f"acknowledged on {day(alarm.acknowledged)}" if alarm.acknowledged is not None else "over"
            reasons.append(
                f"the alarm of {day(alarm.time)} is {seen}" + ("" if alarm.acknowledged else "; acknowledge it")
            )
        elif self.sensor is not None:
            status = CHECK
            reasons.append(
                f"levels changed at once on {day(self.sensor)} and no fault shows: check sensor and mounting, then set a"
                " new baseline"
            )
        elif learning:
            status = LEARNING
            reasons.append(f"{len(state.rows)} of {self.rule.baseline} recordings at {state.label}")
            if state.passed:
                reasons.append("its levels have not settled yet")
        else:
            status = OK
        if status in (OK, LEARNING) and snapshot.quality:
            status, reasons = CHECK, list(snapshot.quality)
        reasons += self._notes
        if self.usual is not None and status == OK:
            reasons += list(self.usual.notes)
        since = before.since if status == before.status and before.since is not None else snapshot.time
        if status == ALARM and alarm is not None:
            since = alarm.since
        return PointStatus(
            self.machine, self.point, status, since, fault, confidence if physics is not None or fault else None,
            tuple(dict.fromkeys(reasons))[:MOST_REASONS], evidence, snapshot.time, before.recordings + 1, state.label,
            len(state.rows), self.rule.baseline, alarm.time if open_alarm and alarm is not None else None,
            None if alarm is None else alarm.acknowledged,
        )  # fmt: skip

    def _what_changed(self, common: Mapping[str, float]) -> str | None:
        """The largest change beyond its margin, in words; of the last block that was compared."""
        if not self._change:
            return None
        change = {name: value - common.get(name, 0.0) for name, value in self._change.items()}
        _, spreads = self._baseline_tail()
        beyond = excesses(vector_of(change), spreads)
        largest = NAMES[int(beyond.argmax())]
        return f"{self.title(largest)} {change[largest]:.0f} dB above what is usual" if beyond.max() > 0 else None

    def title(self, name: str) -> str:
        """A measurement in words; bands by their frequencies."""
        if name in BAND_NAMES and self.state.rate is not None:
            width = self.state.rate / 2 / len(BAND_NAMES) / 1000
            number = BAND_NAMES.index(name)
            return f"RMS in {number * width:.3g}–{(number + 1) * width:.3g} kHz"
        return "RMS" if name == LEVEL else MEASUREMENTS[name][0]

    def _growth(self, since: float) -> str:
        """How fast the largest change grows, in words; nothing where it does not, or not clearly."""
        rows = [(time, max(change.values())) for time, change in self.recent if time >= since and change]
        if len(rows) < 2 * PERSISTENCE:
            return ""
        times, values = np.array(rows).T
        days = (times - times[0]) / DAY
        slope = float(np.polyfit(days, values, 1)[0]) if days[-1] > 0 else 0.0
        unit, per = (slope, "day") if days[-1] >= 1 else (slope / 24, "hour")
        return f", growing {unit:.1g} dB a {per}" if slope * days[-1] >= 1 else ""

    def band(self) -> dict[str, tuple[float, float]]:
        """What is usual for each measurement in this operating state: its fifth and 95th percentiles."""
        rows = self.state.rows
        found = {}
        for name in MEASUREMENTS if len(rows) >= PERSISTENCE else ():
            values = [row[name] for row in rows if name in row]
            if values:
                low, high = np.quantile(values, (0.05, 0.95))
                found[name] = float(low), float(high)
        return found

    # What people do.

    def acknowledge(self, time: float, note: str = "") -> Event:
        """A person has seen the alarm: it does not come again until the change grows, or has gone and comes again."""
        if self.alarm is not None:
            self.alarm.acknowledged = time
            largest = max((change for _, row in self.recent[-1:] for change in row.values()), default=0.0)
            self.alarm.change = max(self.alarm.change, largest)
        self.status = replace(
            self.status, status=CHECK if self.status.status == ALARM else self.status.status, alarm=None,
            acknowledged=time, since=time if self.status.status == ALARM else self.status.since,
        )  # fmt: skip
        return self._event(time, "acknowledged", note or "acknowledged")

    def relearn(self, time: float, note: str = "") -> Event:
        """The baseline is learnt anew from the next recordings on: after a repair, or with another sensor."""
        kept = self.status
        self.__init__(self.machine, self.point, self.rule)  # type: ignore[misc]
        self.status = replace(
            self.status, time=kept.time, since=time, recordings=kept.recordings, operating_state=kept.operating_state
        )
        return self._event(time, "baseline", note or "what is usual is learnt anew")

    def _event(self, time: float, kind: str, sentence: str) -> Event:
        return Event(self.machine, self.point, time, kind, sentence)

    def _described(self, event: Event) -> Event:
        """The event with what the point's status says."""
        if event.kind not in ("alarm", "grown", "sensor"):
            return event
        parts = [f"{self.machine}, {self.point}: {event.sentence}", *self.status.reasons]
        return replace(event, sentence="; ".join(parts))

    # How it is kept.

    def to_bytes(self) -> bytes:
        """For the store."""
        from safetensors.numpy import save

        arrays = dict[str, NDArray[Any]]()
        plain: dict[str, Any] = {
            "version": 1, "machine": self.machine, "point": self.point, "rule": to_plain(self.rule),
            "states": [asdict(state) for state in self.states], "current": self.current, "orders": self.orders,
            "usual": None if self.usual is None else to_plain(self.usual), "general": self.general,
            "lines": {name: to_plain(line) for name, line in self.lines.items()}, "recent": self.recent,
            "evidence": self.evidence, "onset": self.onset, "sensor": self.sensor, "claims": self.claims,
            "alarm": None if self.alarm is None else asdict(self.alarm), "intervals": self.intervals,
            "block_time": self.block_time, "highest_load": self.highest_load, "status": to_plain(self.status),
            "block": {"rows": self.block.rows, "turns": self.block.turns},
        }  # fmt: skip
        for name, pool in (("pool", self.pool), ("block", self.block.pool)):
            if pool is not None:
                own = pool.spectra
                arrays[f"{name}.power"] = own.power.astype(np.float32)
                arrays[f"{name}.bands"] = np.stack([own.kurtosis, np.broadcast_to(own.loudness, own.kurtosis.shape)])
                plain[f"{name}.pool"] = [pool.weight, pool.rate, pool.rpm, own.turns, own.windows, own.axes]
        arrays = arrays or {"empty": np.zeros(1)}
        return bytes(save(arrays, metadata={"bearcat": json.dumps(plain)}))

    @staticmethod
    def from_bytes(content: bytes) -> PointMemory:
        """Back from `to_bytes`; ValueError where it cannot be one."""
        from safetensors.numpy import load

        length = int.from_bytes(content[:8], "little")
        if not 0 < length <= len(content):
            raise ValueError("a point's memory is damaged")
        plain = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["bearcat"])
        arrays = load(content)
        memory = PointMemory(plain["machine"], plain["point"], from_plain(WatchRule, plain["rule"]))
        memory.states = [OperatingState(**state) for state in plain["states"]]
        memory.usual = from_plain(Baseline | None, plain["usual"])
        memory.lines = {name: from_plain(Loudness, line) for name, line in plain["lines"].items()}
        memory.recent = [(time, change) for time, change in plain["recent"]]
        memory.alarm = None if plain["alarm"] is None else OpenAlarm(**plain["alarm"])
        memory.status = from_plain(PointStatus, plain["status"])
        for name in ("current", "orders", "general", "evidence", "onset", "sensor", "claims", "intervals", "block_time",
                     "highest_load"):  # fmt: skip
            setattr(memory, name, plain[name])
        pools = {}
        for name in ("pool", "block"):
            if f"{name}.pool" in plain:
                weight, rate, rpm, turns, windows, axes = plain[f"{name}.pool"]
                power, bands = arrays[f"{name}.power"].astype(np.float64), arrays[f"{name}.bands"]
                pools[name] = Pool(Spectra(power, turns, windows, bands[0], bands[1], axes), weight, rate, rpm)
        memory.pool = pools.get("pool")
        memory.block = Block(plain["block"]["rows"], pools.get("block"), plain["block"]["turns"])
        return memory


def day(time: float | None) -> str:
    """A time for people, in UTC."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%-d %b %Y %H:%M}"
