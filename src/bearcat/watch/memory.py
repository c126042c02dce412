"""What is remembered of a point between recordings: its operating states, what is usual in each, and open alarms.

A `PointState` is data; functions make the next one. `observe` takes a recording in: recordings that are too short to
be read add up to a block of some turns of the shaft, and a block is compared with the baseline of its operating state.
What that means, beside the other points, is said by `assess` (alarm.py).

>>> state = PointState(PointStatus("pump 3", "drive end"))
>>> states, events, _ = judge({"drive end": state}, [snapshot], request)
>>> states["drive end"].status.status
'ok'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bearcat.diagnosis.decision import ALARM, CHECK, OK
from bearcat.diagnosis.lines import FEWEST_TURNS, levels_over_background
from bearcat.diagnosis.physics import Loudness, PhysicsEvidence, loudness, physics_evidence
from bearcat.diagnosis.quality import stopped
from bearcat.diagnosis.recording import Diagnosis, Measured
from bearcat.findings import GROWN, Finding, unique
from bearcat.settings import WatchRequest
from bearcat.watch.snapshot import Event, PointStatus, Snapshot, line_values, status_of, written_time
from bearcat.watch.usual import (
    DAY,
    FEWEST,
    LEVELS,
    NAMES,
    PERSISTENCE,
    RMS,
    STOP,
    Doubles,
    OperatingState,
    row_of,
    threshold,
)

RECENT = 60  # blocks whose times are kept
STARTS = 3  # of a machine whose first recordings are learnt: a spread of fewer says nothing of what a start changes


@dataclass(frozen=True, eq=False)
class OpenAlarm:
    """An alarm that is not forgotten: it is open until it is acknowledged, and remembered until it is over as well."""

    time: float  # when it was raised
    since: float  # when the change began
    change: Doubles  # (name,) of NAMES in dB, then, or at the last event of growth or acknowledgement
    acknowledged: float | None = None
    over: bool = False  # its cause has gone

    @property
    def finding(self) -> Finding:
        """What has become of it."""
        values = {"time": written_time(self.time)}
        if self.acknowledged is None and not self.over:
            return Finding("alarm open", "alarm", values)
        return Finding("alarm over" if self.over else "alarm acknowledged", "check", values)


@dataclass(frozen=True, eq=False)
class PointState:
    """What is remembered of one point."""

    status: PointStatus
    # What is usual.
    states: tuple[OperatingState, ...] = ()
    current: int = 0  # of the states
    accepted: tuple[str, ...] = ()  # kinds of findings that were there while the baseline was learnt
    doubted: int = 0  # recordings of the baseline that were to be checked
    question: Finding | None = None  # what a person should know of the baseline, until it is acknowledged
    # The last recordings.
    orders: Mapping[str, float] | None = None  # of the bearing
    block: tuple[Measured, ...] = ()  # recordings that are read together, with all of their values as levels
    lines: Mapping[str, Loudness] = field(default_factory=dict)
    running: int = 0  # blocks since the machine has started
    starts: int = 1  # of the machine
    faultless_blocks: int = PERSISTENCE  # blocks in a row that show neither a clear line nor impulses
    names: tuple[str, ...] = ()  # the last faults that were named
    times: Doubles = field(default_factory=lambda: np.empty(0))  # (block,)
    changes: Doubles = field(default_factory=lambda: np.empty((0, len(NAMES))))  # (block, name) dB; nan: not compared
    # Evidence for a change, and alarms.
    evidence: float = 0.0
    onset: float | None = None  # when the evidence began to grow
    quiet_blocks: int = 0  # blocks in a row in which nothing speaks for an alarm
    alarm: OpenAlarm | None = None

    @property
    def state(self) -> OperatingState:
        return self.states[self.current]

    @property
    def reference(self) -> OperatingState:
        """The state whose baseline counts: the current one, or the best known while that is learnt."""
        known = [state for state in self.states if state.learnt]
        return self.state if self.state.learnt else max(known, key=lambda state: len(state.rows), default=self.state)

    @property
    def restarted(self) -> bool:
        """Whether the machine has just started, and its baseline knows too few starts to say what a start changes. What
        has grown clearly is no matter of that.
        """
        few = 1 < self.starts <= STARTS and self.running <= FEWEST and self.state.learnt
        return few and not np.any(self.change >= GROWN)

    @property
    def interval(self) -> float:
        """Seconds between blocks."""
        return float(np.median(np.diff(self.times))) if len(self.times) > 1 else DAY

    def limit(self, request: WatchRequest) -> float:
        """Of the evidence, from which on a change is an alarm."""
        return threshold(self.interval, request.false_alarms)

    @property
    def change(self) -> Doubles:
        """(name,) of NAMES: dB above what is usual, of the last block."""
        return self.changes[-1] if len(self.changes) else np.full(len(NAMES), np.nan)

    @property
    def rise(self) -> Doubles:
        """(name,) of NAMES: what levels rose by in the last block, in units of power; 0 for what is no level."""
        usual = self.reference.usual
        return np.nan_to_num(np.where(LEVELS, 10 ** ((usual + self.change) / 10) - 10 ** (usual / 10), 0.0))

    @property
    def level(self) -> Doubles:
        """(name,) changes of the last blocks, by their median; what was not measured counts as 0."""
        lasting = len(self.changes) == PERSISTENCE
        return np.asarray(np.median(np.nan_to_num(self.changes), axis=0)) if lasting else np.zeros(len(NAMES))

    @property
    def open_alarm(self) -> OpenAlarm | None:
        """The alarm that nobody acknowledged."""
        return None if self.alarm is None or self.alarm.acknowledged is not None else self.alarm

    def with_state(self, number: int, state: OperatingState) -> PointState:
        """With this operating state at its place, as the current one."""
        return replace(self, current=number, states=(*self.states[:number], state, *self.states[number + 1 :]))


@dataclass(frozen=True, eq=False)
class Reading:
    """One recording of a point, and what it says beside other points (alarm.py)."""

    snapshot: Snapshot
    silent: Finding | None = None  # why there is no signal
    row: Doubles | None = None  # (name,) of MEASUREMENTS, of the block that the recording completes, if it does
    physics: PhysicsEvidence | None = None  # of that block
    change: Doubles = field(default_factory=lambda: np.full(len(NAMES), np.nan))  # (name,) dB, less what others explain
    common: float = 0.0  # dB by which levels rose at most points at once
    owner: str | None = None  # the neighbour to which lines or levels belong
    borrowed: tuple[Finding, ...] = ()  # lines that it shows louder
    diagnosis: Diagnosis | None = None  # None: the recording is too short alone
    p_value: float | None = None

    @property
    def waits(self) -> bool:
        """Whether the recording is part of a block that is not complete."""
        return self.row is None and self.silent is None and not self.snapshot.refused

    @property
    def alarming(self) -> bool:
        return self.diagnosis is not None and self.diagnosis.decision.action == ALARM

    @property
    def doubts(self) -> list[Finding]:
        """Why the recording is to be checked."""
        findings = () if self.diagnosis is None else self.diagnosis.findings
        return [finding for finding in findings if finding.severity == CHECK]


def observe(state: PointState, snapshot: Snapshot) -> tuple[PointState, Reading]:
    """Takes a recording in that is later than all before."""
    if snapshot.refused:
        return state if state.states else state.with_state(0, OperatingState()), Reading(snapshot)
    state, measured = _enter(state, snapshot), snapshot.measured
    silent = snapshot.observation.no_signal
    if silent is None and "rms" in snapshot.values:
        levels = [learnt.rows[:, RMS] for learnt in state.states if learnt.unit == state.state.unit]
        usual = [level for level in np.concatenate(levels).tolist() if level == level]
        silent = stopped(snapshot.values["rms"], usual)
    if silent is not None:
        return state, Reading(snapshot, silent)
    orders = state.orders if measured.orders is None else dict(measured.orders)
    block = (*state.block, replace(measured, levels=dict(snapshot.values)))
    if measured.spectra is not None and turns_of(block) < FEWEST_TURNS:
        return replace(state, orders=orders, block=block), Reading(snapshot)
    names = sorted(set().union(*(each.levels for each in block)))
    values = {name: float(np.median([each.levels[name] for each in block if name in each.levels])) for name in names}
    physics = snapshot.observation.physics
    if physics is None and (physics := _read_together(block, snapshot, orders)) is not None:
        values |= line_values(physics)
    row, since = row_of(values), snapshot.time - state.times[-1] if len(state.times) else 0.0
    was_stopped = bool(since > STOP * state.interval)
    state = replace(
        state, orders=orders, block=(), running=1 if was_stopped else state.running + 1,
        starts=state.starts + was_stopped, times=np.append(state.times, snapshot.time)[-RECENT:],
        changes=np.vstack([state.changes, _compare(state, row)])[-PERSISTENCE:], lines=loudness(physics),
    )  # fmt: skip
    return state, Reading(snapshot, row=row, physics=physics)


def turns_of(block: Sequence[Measured]) -> float:
    """Of the shaft, in recordings that are read together."""
    return sum(each.turns or 0.0 for each in block)


def _read_together(
    block: Sequence[Measured], last: Snapshot, orders: Mapping[str, float] | None
) -> PhysicsEvidence | None:
    """What fault lines the recordings of a block show together; None where they cannot be read."""
    spectra, rpm = [each.spectra for each in block if each.spectra is not None], last.values.get("rpm")
    if not spectra or orders is None or last.measured.rate is None or rpm is None:
        return None
    same = [each for each in spectra if each.turns == spectra[0].turns]
    power, kurtosis = (np.mean([getattr(each, name) for each in same], axis=0) for name in ("power", "kurtosis"))
    windows = sum(each.windows for each in same)
    mean = replace(same[0], power=power, kurtosis=kurtosis, windows=windows)
    return physics_evidence(mean, levels_over_background(mean), last.measured.rate, rpm, orders)


def _enter(state: PointState, snapshot: Snapshot) -> PointState:
    """The point in the operating state of a recording, a new one where none fits; what is not stated is as before."""
    states, silent = state.states, snapshot.observation.no_signal is not None
    stated: dict[str, Any] = {name: snapshot.values.get(name) for name in ("rpm", "load")}
    stated |= {"rate": snapshot.measured.rate, "unit": snapshot.unit}
    if states:
        stated = {name: getattr(state.state, name) if value is None else value for name, value in stated.items()}
    new = OperatingState(**stated)
    highest = max(abs(known.load or 0.0) for known in (*states, new))
    for number, known in enumerate(states):
        if known.admits(new, highest):
            if not silent:  # which may say less than others
                known = replace(known, rate=known.rate or new.rate, unit=known.unit or new.unit)
            return state.with_state(number, known)
    return state if silent and states else state.with_state(len(states), new)


def _compare(state: PointState, row: Doubles) -> Doubles:
    """The change against the baseline of the operating state, or its first recordings; where another state is learnt
    that of lines and kurtosis, which hardly depend on speed and load, against the best known one.
    """
    if state.state.learnt or not state.reference.learnt:
        return state.state.change(row)
    return np.where(LEVELS, np.nan, state.reference.change(row))


# What people and files do to it.


def unreadable(state: PointState, time: float, problem: str) -> PointState:
    """A file of the point cannot be used: it is to be checked, unless a later recording was judged already."""
    status = state.status
    if status.time is not None and time <= status.time:
        return state
    unusable = Finding("unreadable", "check", {"problem": problem})
    findings = (unusable, *(finding for finding in status.findings if finding.kind != "unreadable"))
    status = replace(status, status=status_of(findings), since=status.since or time, findings=findings)
    return replace(state, status=status)


def acknowledge(state: PointState, time: float, note: str = "") -> tuple[PointState, Event]:
    """A person has seen the alarm: it does not come again until the change grows, or has gone and comes again."""
    alarm, status = state.alarm, state.status
    findings, since = status.findings, time if status.status == ALARM else status.since
    if alarm is not None:
        alarm = replace(alarm, acknowledged=time, change=state.level)
        findings = (alarm.finding, *(finding for finding in findings if finding.severity != "alarm"))
    status = replace(
        status, status=status_of(findings), since=since, alarm=None, acknowledged=time, findings=unique(findings)
    )
    event = Event(status.machine, status.point, time, "acknowledged", note=note)
    return replace(state, alarm=alarm, question=None, status=status), event


def relearn(state: PointState, time: float, note: str = "") -> tuple[PointState, Event]:
    """The baseline is learnt anew from the next recordings on: after a repair, or with another sensor."""
    was = state.status
    status = PointStatus(was.machine, was.point, OK, time, time=was.time, recordings=was.recordings)
    event = Event(was.machine, was.point, time, "baseline", (Finding("baseline restarted", "remark"),), note=note)
    return PointState(status), event
