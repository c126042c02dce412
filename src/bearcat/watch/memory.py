"""What is remembered of a point between recordings: its operating states, what is usual in each, and open alarms.

A `PointState` is data; functions make the next one. `observe` takes a recording in: short recordings add up to a block
of some turns of the shaft before anything is read, and a block is compared with the baseline of its operating state, or
learnt. What that means, beside the other points, is said by `assess` (alarm.py).

>>> state = PointState.new("pump 3", "drive end", rule)
>>> state, assessment = assess(observe(state, snapshot, rule), rule, beside=[other_points], sisters=[of_other_machines])
>>> assessment.status.status
'learning'
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bearcat.diagnosis.comparison import KNOWN, Baseline, Loudness
from bearcat.diagnosis.decision import ALARM, CHECK
from bearcat.diagnosis.quality import stopped
from bearcat.diagnosis.spectra import FEWEST_TURNS
from bearcat.sentences import sentence
from bearcat.settings import from_plain, to_plain
from bearcat.watch.snapshot import (
    FORGET,
    LEARNING,
    MEASUREMENTS,
    Block,
    Event,
    PointStatus,
    Pool,
    Snapshot,
    line_values,
)
from bearcat.watch.usual import (
    BAND_NAMES,
    LEVEL,
    NAMES,
    PERSISTENCE,
    SAME_SPEED,
    Doubles,
    OperatingState,
    WatchRule,
    row_of,
    threshold,
)

LOUDER = 6.0  # dB of a baseline above that of other states as fast, from which on it is to be checked
RECENT = 60  # blocks whose changes are kept
INTERVALS = 50  # times between blocks that are kept
DAY = 86400.0
LEVELS = np.array([name in (LEVEL, *BAND_NAMES) for name in NAMES])
RMS = tuple(MEASUREMENTS).index("rms")
DAMAGED = "what is kept of a point is damaged"


@dataclass(frozen=True)
class OpenAlarm:
    """An alarm that is not forgotten: it is open until it is acknowledged, and remembered until it is over as well."""

    time: float  # when it was raised
    since: float  # when the change began
    change: tuple[float, ...]  # (name,) of NAMES in dB, then, or at the last event of growth or acknowledgement
    acknowledged: float | None = None
    over: bool = False  # the change has gone


@dataclass(frozen=True, eq=False)
class PointState:
    """What is remembered of one point; the store keeps it as bytes."""

    machine: str
    point: str
    status: PointStatus
    # What is usual.
    states: tuple[OperatingState, ...] = ()
    current: int = 0  # of the states
    usual: Baseline | None = None  # fault lines of the baseline
    accepted: tuple[str, ...] = ()  # kinds of findings that were there while the baseline was learnt
    question: str | None = None  # what a person should know of the baseline, until it is acknowledged
    # The last recordings.
    orders: Mapping[str, float] | None = None  # of the bearing
    block: Block = field(default_factory=Block)
    pool: Pool | None = None
    general: Mapping[str, float] | None = None  # the general model's probabilities, pooled like the spectra
    lines: Mapping[str, Loudness] = field(default_factory=dict)
    times: Doubles = field(default_factory=lambda: np.empty(0))  # (block,) of those that were compared
    changes: Doubles = field(default_factory=lambda: np.empty((0, len(NAMES))))  # (block, name), dB
    intervals: tuple[float, ...] = ()  # seconds between the last blocks
    block_time: float | None = None
    # Evidence for a change, and alarms.
    evidence: float = 0.0
    onset: float | None = None  # when the evidence began to grow
    claims: int = 0  # blocks in a row in which the pooled evidence names a fault
    alarm: OpenAlarm | None = None
    sensor: float | None = None  # since when a sensor seems to be another, or mounted otherwise
    swap: tuple[float, ...] = ()  # changes (name,) then

    @staticmethod
    def new(machine: str, point: str, rule: WatchRule) -> PointState:
        status = PointStatus(machine, point, LEARNING, None, None, None, (), None, None, 0, "any", 0, rule.baseline)
        return PointState(machine, point, status)

    @property
    def state(self) -> OperatingState:
        return self.states[self.current]

    @property
    def reference(self) -> OperatingState:
        """The state whose baseline counts: the current one, or the best known while that is learnt."""
        known = [state for state in self.states if state.learnt]
        return self.state if self.state.learnt else max(known, key=lambda state: len(state.rows), default=self.state)

    @property
    def interval(self) -> float:
        """Seconds between blocks."""
        return float(np.median(self.intervals)) if self.intervals else DAY

    def limit(self, rule: WatchRule) -> float:
        """Of the evidence, from which on a change is an alarm."""
        return threshold(self.interval, rule.false_alarms)

    @property
    def change(self) -> Doubles:
        """(name,) of NAMES: dB above what is usual, of the last block that was compared."""
        return self.changes[-1] if len(self.changes) else np.full(len(NAMES), np.nan)

    @property
    def level(self) -> tuple[float, ...]:
        """Changes (name,) of the last blocks, by their median; what was not measured counts as 0."""
        rows = np.nan_to_num(self.changes[-PERSISTENCE:])
        return tuple(np.median(rows, axis=0).tolist()) if len(rows) else (0.0,) * len(NAMES)

    @property
    def open_alarm(self) -> OpenAlarm | None:
        """The alarm that nobody acknowledged."""
        return None if self.alarm is None or self.alarm.acknowledged is not None else self.alarm

    def with_state(self, number: int, state: OperatingState) -> PointState:
        """With this operating state at its place, as the current one."""
        return replace(self, current=number, states=(*self.states[:number], state, *self.states[number + 1 :]))

    def to_bytes(self) -> bytes:
        """For the store: plain values as JSON, arrays as they are, a checksum, since wrong values are wrong alarms."""
        from safetensors.numpy import save

        plain = to_plain(self)
        arrays = {f"state {number}": state.pop("rows") for number, state in enumerate(plain["states"])}
        arrays |= {name: plain.pop(name) for name in ("times", "changes")}
        del plain["pool"], plain["block"]["pool"]
        for name, pool in (("pool", self.pool), ("block", self.block.pool)):
            arrays |= {} if pool is None else pool.to_arrays(name)
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        content = bytes(save(arrays, metadata={"bearcat": json.dumps(plain)}))
        return content + zlib.crc32(content).to_bytes(4)

    @staticmethod
    def from_bytes(content: bytes) -> PointState:
        """Back from `to_bytes`, also of v0.3; ValueError where it cannot be one."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        content, checksum = content[:-4], content[-4:]
        if zlib.crc32(content).to_bytes(4) != checksum:
            raise ValueError(DAMAGED)
        try:
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            plain, arrays = json.loads(header["__metadata__"]["bearcat"]), load(content)
            states = tuple(_restored(each, arrays[f"state {n}"]) for n, each in enumerate(plain.pop("states")))
            state: PointState = from_plain(PointState, plain)
            block = replace(state.block, pool=Pool.from_arrays("block", arrays))
            return replace(
                state, states=states, times=arrays["times"], changes=arrays["changes"], block=block,
                pool=Pool.from_arrays("pool", arrays),
            )  # fmt: skip
        except (SafetensorError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(DAMAGED) from error


def _restored(plain: dict[str, Any], rows: Doubles) -> OperatingState:
    """An operating state with the rows of its baseline, of which v0.3 kept only the columns that it had."""
    columns = [list(MEASUREMENTS).index(name) for name in plain.get("names", MEASUREMENTS)]
    table = np.full((len(rows), len(MEASUREMENTS)), np.nan)
    table[:, columns] = rows
    settings = {name: value for name, value in plain.items() if name != "rows"}
    state: OperatingState = from_plain(OperatingState, settings)
    return replace(state, rows=table)


@dataclass(frozen=True, eq=False)
class Observed:
    """A point that has taken a recording in, and what is to be judged of that beside other points."""

    state: PointState
    snapshot: Snapshot
    silent: str | None = None  # why there is no signal
    complete: bool = False  # whether the recording completed a block
    learnt: bool = False  # whether it completed a baseline
    notes: tuple[str, ...] = ()  # on the recording

    @property
    def compared(self) -> bool:
        """Whether the recording could be compared with a baseline."""
        times = self.state.times
        return self.complete and len(times) > 0 and times[-1] == self.state.block_time


def observe(state: PointState, snapshot: Snapshot, rule: WatchRule, healthy: bool = False) -> Observed:
    """Takes a recording in that is later than all before; `healthy`: a person says so."""
    state, notes = _enter(state, snapshot)
    silent = snapshot.no_signal
    if silent is None and "rms" in snapshot.values:
        levels = [each.rows[:, RMS] for each in state.states if each.unit == state.state.unit]
        usual = [level for level in np.concatenate(levels).tolist() if level == level]
        still = stopped(snapshot.values["rms"], usual)
        silent = None if still is None else sentence(still)
    if silent is not None:
        return Observed(state, snapshot, silent, notes=notes)
    general = state.general
    if snapshot.general is not None:
        old = general or snapshot.general
        general = {name: FORGET * old.get(name, 0.0) + (1 - FORGET) * new for name, new in snapshot.general.items()}
    orders = state.orders if snapshot.orders is None else dict(snapshot.orders)
    state = replace(state, orders=orders, general=general, block=state.block.add(snapshot))
    if snapshot.turns is not None and snapshot.turns < FEWEST_TURNS and state.block.turns < FEWEST_TURNS:
        return Observed(state, snapshot, notes=notes)
    state, row = _close_block(state, snapshot.time)
    state, learnt = _learn(state, row, snapshot, rule, healthy)
    return Observed(state, snapshot, complete=True, learnt=learnt, notes=notes)


def _enter(state: PointState, snapshot: Snapshot) -> tuple[PointState, tuple[str, ...]]:
    """The point in the operating state of a recording, a new one where it fits none; and what is odd about that."""
    rpm, load, rate, unit = snapshot.rpm, snapshot.values.get("load"), snapshot.rate, snapshot.unit
    states, notes = state.states, list[str]()
    if states:  # what is not said is as it was
        last = state.state
        rpm, load = last.rpm if rpm is None else rpm, last.load if load is None else load
        rate, unit = last.rate if rate is None else rate, last.unit if unit is None else unit
    highest = max([abs(each.load or 0.0) for each in states] + [abs(load or 0.0)])
    if rate is not None and states and not any(each.same_rate(rate) for each in states):
        notes.append(f"the sampling rate is {rate:g} Hz now; what is usual is learnt anew")
    if unit is not None and states and all(each.unit not in (None, unit) for each in states):
        notes.append(f"the unit is {unit} now; what is usual is learnt anew")
    for number, each in enumerate(states):
        if each.admits(rpm, load, rate, highest) and each.unit in (None, unit):
            if snapshot.no_signal is None:  # which may say less than others
                load = load if each.load is None else each.load
                each = replace(each, rpm=each.rpm or rpm, load=load, rate=each.rate or rate, unit=each.unit or unit)
            return state.with_state(number, each), tuple(notes)
    if snapshot.no_signal is None or not states:
        state = state.with_state(len(states), OperatingState(rpm, load, rate, unit))
    return state, tuple(notes)


def _close_block(state: PointState, time: float) -> tuple[PointState, Doubles]:
    """The next block begins; the measurements of this one, with fault lines that are read in its spectra."""
    block, pool, intervals = state.block, state.pool, state.intervals
    values = block.values()
    if block.pool is not None:
        pool = block.pool if pool is None else pool.add(block.pool)
        if state.orders is not None and len(block.rows) > 1:
            physics = block.pool.physics(state.orders)
            levels = {name: lines.level for name, lines in physics.faults.items()}
            values = {**values, **line_values(levels, physics.reference_level)}
    if state.block_time is not None and time > state.block_time:
        intervals = (*intervals, time - state.block_time)[-INTERVALS:]
    return replace(state, block=Block(), pool=pool, intervals=intervals, block_time=time), row_of(values)


def _learn(
    state: PointState, row: Doubles, snapshot: Snapshot, rule: WatchRule, healthy: bool
) -> tuple[PointState, bool]:
    """Compares a block with the baseline or learns it; whether the baseline is complete now."""
    before = state.state
    change = _compare(state, row)
    if change is not None and not healthy:
        times, changes = np.append(state.times, snapshot.time), np.vstack([state.changes, change])
        state = replace(state, times=times[-RECENT:], changes=changes[-RECENT:])
        if before.learnt or state.evidence > 0:  # what may be a fault is not learnt as usual
            return state, False
    if state.open_alarm is not None and not healthy:
        return state, False
    accepted = tuple(sorted({*state.accepted, *(finding.kind for finding in snapshot.quality)}))
    after = before.learn(row, snapshot.time, rule, healthy)
    state = replace(state.with_state(state.current, after), accepted=accepted)
    if before.learnt or not after.learnt:
        return state, False
    usual = state.usual
    if state.pool is not None and state.orders is not None:
        usual = Baseline.of([state.pool.physics(state.orders)], KNOWN)
    lines, questions = None if usual is None else usual.finding, list[str]()
    if lines is not None:
        questions.append(sentence(replace(lines, values={**lines.values, "of": "its baseline"})))
    if after.moved:
        questions.append(f"levels rose by {after.moved:.0f} dB while its baseline was learnt")
    if (louder := _above_known(state)) >= LOUDER:
        questions.append(f"its baseline at {after.label} is {louder:.0f} dB above that of other operating states")
    question = f"{questions[0]}; look at the machine, then acknowledge" if questions and not healthy else state.question
    return replace(state, usual=usual, question=question), True


def _compare(state: PointState, row: Doubles) -> Doubles | None:
    """The change against the baseline of the operating state; where that is not learnt yet, the change of lines and
    kurtosis, which hardly depend on speed and load, against the best known state. None where there is none.
    """
    if state.state.learnt:
        return state.state.change(row)
    return np.where(LEVELS, np.nan, state.reference.change(row)) if state.reference.learnt else None


def _above_known(state: PointState) -> float:
    """dB by which the level of the current state is above that of others at least as fast; 0 where there is none."""
    own = state.state
    others = [
        other.usual[0]
        for other in state.states
        if other.learnt and other is not own and other.unit == own.unit
        and (other.rpm or 0.0) >= (1 - SAME_SPEED) * (own.rpm or 0.0)
    ]  # fmt: skip
    return own.usual[0] - max(others) if others and np.isfinite([own.usual[0], *others]).all() else 0.0


def acknowledge(state: PointState, time: float, note: str = "") -> tuple[PointState, Event]:
    """A person has seen the alarm: it does not come again until the change grows, or has gone and comes again."""
    alarm, status = state.alarm, state.status
    if alarm is not None:
        alarm = replace(alarm, acknowledged=time, change=state.level)
    if status.status == ALARM:
        status = replace(status, status=CHECK, since=time)
    status = replace(status, alarm=None, acknowledged=time)
    event = Event(state.machine, state.point, time, "acknowledged", note or "acknowledged")
    return replace(state, alarm=alarm, question=None, status=status), event


def relearn(state: PointState, time: float, rule: WatchRule, note: str = "") -> tuple[PointState, Event]:
    """The baseline is learnt anew from the next recordings on: after a repair, or with another sensor."""
    was, new = state.status, PointState.new(state.machine, state.point, rule)
    status = replace(
        new.status, time=was.time, since=time, recordings=was.recordings, operating_state=was.operating_state
    )
    event = Event(state.machine, state.point, time, "baseline", note or "what is usual is learnt anew")
    return replace(new, status=status), event
