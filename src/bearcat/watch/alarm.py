"""What a recording means beside the other points: evidence for a change, cross-talk, alarms.

A block's change against its baseline, less what the neighbours on the machine and the same point of sister machines
show too, has a p-value that adds to the evidence for a change (usual.py). The spectra of the last blocks, pooled, say
what the change is. A line that a neighbour shows louder, or a change while a neighbour is in alarm, is cross-talk: to
be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bearcat.diagnosis.comparison import CrossTalk, cross_talk, loudness
from bearcat.diagnosis.decision import CANNOT_TELL, HEALTHY, NO_SIGNAL
from bearcat.diagnosis.fusion import Witnesses, fuse
from bearcat.diagnosis.general import GeneralEvidence
from bearcat.diagnosis.physics import FAULTS, PhysicsEvidence
from bearcat.findings import SAFE_FAULT, SHOWN_LINE, SURE
from bearcat.watch.memory import LEVELS, Observed, OpenAlarm, PointState
from bearcat.watch.snapshot import Assessment, Event
from bearcat.watch.status import status_of
from bearcat.watch.usual import (
    BAND_NAMES,
    MARGIN_VECTOR,
    NAMES,
    PERSISTENCE,
    Doubles,
    WatchRule,
    add_evidence,
    score,
)

GROWN = 6.0  # dB beyond the change at an alarm that are worth a second one
STEP, STEP_BANDS, STEP_GROWTH = 1.0, 7, 2.0  # dB, levels and growth in dB of a change that a sensor makes at once
STEP_MOST = 12.0  # dB of such a change: a larger one is an alarm
STEP_BLOCKS = 10  # blocks within which such a change is found
MOST_COMMON = 10.0  # dB that other points can explain
CERTAIN = 0.9  # probability of a fault that is an alarm before there is a baseline
NEIGHBOURS, SISTERS = 2, 3  # that must show a change before it is taken for load, speed or weather
FRESH = 1.5  # intervals of a point's recordings that one of another point may be away, to be compared
NAMED = 0.5  # probability of a fault that is named where some fault is probable
RAISED = ("alarm", "alarm")


@dataclass(frozen=True, eq=False)
class Findings:
    """What a complete block says: by its pooled spectra, and beside other points."""

    change: Doubles = field(default_factory=lambda: np.full(len(NAMES), np.nan))  # (name,) dB, less what is common
    physics: PhysicsEvidence | None = None
    fault: str | None = None  # that is named
    confidence: float = 0.0  # in the fault, or that there is any
    probable: float = 0.0  # probability of any fault
    common: Mapping[str, float] = field(default_factory=dict)  # dB by which levels rose at most points at once
    borrowed: Mapping[str, CrossTalk] = field(default_factory=dict)  # lines that a neighbour shows louder
    owner: str | None = None  # the neighbour
    p_value: float | None = None


def assess(
    seen: Observed, rule: WatchRule, beside: Sequence[PointState] = (), sisters: Sequence[PointState] = ()
) -> tuple[PointState, Assessment]:
    """What a recording means, beside the other points of its machine and the same point of others."""
    state, time, findings, happened = seen.state, seen.snapshot.time, Findings(), list[tuple[str, str]]()
    if seen.complete:
        state, findings = _find(seen, rule, beside, sisters)
        state, event = _update_alarm(state, findings, seen.compared, time, rule)
        happened += [event] if event is not None else []
    if seen.silent is not None and state.status.status != NO_SIGNAL:
        happened.append(("problem", f"no signal; {seen.silent}"))
    if seen.learnt:
        sentence = f"what is usual was learnt from {state.state.seen} recordings at {state.state.label}"
        happened.append(("baseline", sentence if state.question is None else f"{sentence}; {state.question}"))
    state = replace(state, status=status_of(replace(seen, state=state), findings, rule))
    where, events = f"{state.machine}, {state.point}", list[Event]()
    for kind, sentence in happened:
        reasons = state.status.reasons if kind in ("alarm", "grown", "sensor") else ()
        events.append(Event(state.machine, state.point, time, kind, "; ".join([f"{where}: {sentence}", *reasons])))
    said = NO_SIGNAL if seen.silent is not None else HEALTHY if findings.probable <= SAFE_FAULT else CANNOT_TELL
    return state, Assessment(
        state.status, state.state.label, findings.p_value, state.evidence, state.limit(rule), findings.fault or said,
        findings.confidence, state.state.band, tuple(events),
    )  # fmt: skip


def _find(
    seen: Observed, rule: WatchRule, beside: Sequence[PointState], sisters: Sequence[PointState]
) -> tuple[PointState, Findings]:
    """What the last block says, and the point with the evidence of that."""
    state, time = seen.state, seen.snapshot.time
    reach = FRESH * max(state.interval, 60.0)
    near = [other for other in beside if other.block_time is not None and abs(other.block_time - time) <= reach]
    physics = None if state.pool is None or state.orders is None else state.pool.physics(state.orders)
    lines = loudness(physics)
    louder = cross_talk([lines, *(other.lines for other in near)])[0]
    borrowed = {fault: line for fault, line in louder.items() if lines[fault].excess >= SHOWN_LINE}
    common = {} if state.alarm is not None else _common(near, sisters, time, reach)
    change = state.change - np.array([common.get(name, 0.0) for name in NAMES])
    findings, owner = Findings(change, physics, common=common, borrowed=borrowed), None
    if physics is not None:
        findings = _name(state, findings, physics)
        state = replace(state, claims=0 if findings.fault is None else state.claims + 1)
    if findings.fault is None:  # what its own lines name is its own
        owners = [near[line.owner - 1] for line in borrowed.values()] or _earlier_alarms(state, near)
        owner = owners[0].point if owners else None
    state, p_value = replace(state, lines=lines), None
    if seen.compared:
        state, p_value = _weigh(state, findings, owner is not None, rule)
    return state, replace(findings, owner=owner, p_value=p_value)


def _common(near: Sequence[PointState], sisters: Sequence[PointState], time: float, reach: float) -> dict[str, float]:
    """What neighbours and sisters show too: dB by which levels of bands rose at most points at once."""
    rises: dict[str, float] = {}
    for others, fewest in ((near, NEIGHBOURS), (sisters, SISTERS)):
        fresh = [
            other.change
            for other in others
            if len(other.times)
            and abs(other.times[-1] - time) <= reach
            and other.alarm is None
            and other.sensor is None
        ]
        if len(fresh) >= fewest:
            shared = np.median(np.nan_to_num(fresh), axis=0)
            for name, value in zip(NAMES, shared.tolist(), strict=True):
                if name in BAND_NAMES and value > 0:
                    rises[name] = max(rises.get(name, 0.0), min(value, MOST_COMMON))
    return rises


def _name(state: PointState, findings: Findings, physics: PhysicsEvidence) -> Findings:
    """With the fault that the pooled evidence names, how sure that is, and how probable any fault is."""
    general = None if state.general is None or findings.borrowed else GeneralEvidence(state.general, 1.0, 1)
    for fault in findings.borrowed:
        physics = physics.without_lines(fault)
    baseline = None if state.usual is None else state.usual.compare(physics)
    probabilities = fuse(Witnesses(physics, general, baseline=baseline))
    likeliest, probable = max(FAULTS, key=lambda fault: probabilities[fault]), 1 - probabilities[HEALTHY]
    if probable < SURE or probabilities[likeliest] < NAMED:
        return replace(findings, confidence=probable, probable=probable)
    return replace(findings, fault=likeliest, confidence=probabilities[likeliest], probable=probable)


def _earlier_alarms(state: PointState, near: Sequence[PointState]) -> list[PointState]:
    """Neighbours in alarm whose change began before and is larger, the first one first: it may be theirs."""
    own = state.alarm.since if state.alarm is not None else state.onset
    dated = [
        (other.alarm.since, other)
        for other in near
        if other.alarm is not None and not other.alarm.over and _largest(other.change) >= _largest(state.change)
    ]
    return [other for since, other in sorted(dated, key=lambda pair: pair[0]) if own is None or since <= own]


def _weigh(state: PointState, findings: Findings, owned: bool, rule: WatchRule) -> tuple[PointState, float]:
    """Adds the p-value of the last block to the evidence, which does not grow by what a neighbour owns."""
    change = np.array(findings.change)
    change[[NAMES.index(fault.replace(" ", "_")) for fault in findings.borrowed]] = np.nan
    usual, before = state.reference, state.evidence
    p_value = 1.0 if usual.tail is None else usual.tail.p_value(score(change, np.array(usual.spreads)))
    evidence = add_evidence(before, p_value, state.limit(rule))
    if owned:
        evidence = min(evidence, before)
    elif state.alarm is not None and not state.state.learnt:  # levels, which raised it, cannot be compared there
        evidence = max(evidence, before)
    onset = None if evidence == 0 else state.block_time if before == 0 else state.onset
    return replace(state, evidence=evidence, onset=onset), p_value


def _update_alarm(
    state: PointState, findings: Findings, compared: bool, time: float, rule: WatchRule
) -> tuple[PointState, tuple[str, str] | None]:
    """Raises an alarm, a second where it has grown, and says when it is over: the kind of event and its sentence."""
    alarm, strong, level = state.alarm, state.evidence >= state.limit(rule), state.level
    if alarm is not None and alarm.over and alarm.acknowledged is not None:
        alarm = None
    state = replace(state, alarm=alarm, sensor=None if state.evidence == 0 else state.sensor)
    if alarm is None and not state.reference.learnt:
        if state.claims >= PERSISTENCE and findings.probable >= CERTAIN:  # a fault from the first recording on
            return replace(state, alarm=OpenAlarm(time, time, level)), RAISED
        return state, None
    if alarm is not None and alarm.over and strong:
        alarm = replace(alarm, over=False)  # it comes again, and nobody has looked yet
    elif alarm is None and strong and findings.owner is None:
        if state.sensor is None and _swapped(state):
            return replace(state, sensor=state.onset, swap=level), (
                "sensor",
                "levels changed at once, and no fault shows",
            )
        if state.sensor is not None and not _grows_beyond(state, state.swap):
            return state, None
        return replace(state, sensor=None, alarm=OpenAlarm(time, state.onset or time, level)), RAISED
    state = replace(state, alarm=alarm)
    if alarm is None or alarm.over or not compared:
        return state, None
    if np.any(np.array(level) >= np.array(alarm.change) + GROWN):
        change = tuple(np.fmax(alarm.change, level).tolist())
        return replace(state, alarm=replace(alarm, change=change, acknowledged=None)), ("grown", "the change has grown")
    if state.evidence < state.limit(rule) / 2 and state.reference.learnt:
        return replace(state, alarm=replace(alarm, over=True)), ("over", "the change has gone")
    return state, None


def _swapped(state: PointState) -> bool:
    """Whether levels jumped between two blocks and stayed, without strikes or lines: another sensor or mounting."""
    changes, later = np.nan_to_num(state.changes), state.times >= (state.onset or 0.0)
    since, before = changes[later], changes[~later][-5:]
    if not PERSISTENCE <= len(since) <= STEP_BLOCKS:
        return False
    jump = since[0] - (np.median(before, axis=0) if len(before) else 0.0)
    moved = np.median(since[-PERSISTENCE:], axis=0) - since[0]
    quiet = not np.any((np.median(since, axis=0) > MARGIN_VECTOR + state.reference.spreads) & ~LEVELS)
    many = int(np.sum(np.abs(jump[LEVELS]) > STEP)) >= STEP_BANDS and np.abs(jump[LEVELS]).max() <= STEP_MOST
    return bool(quiet and many and np.abs(moved[LEVELS]).max() <= STEP_GROWTH)


def _grows_beyond(state: PointState, swap: Sequence[float]) -> bool:
    """Whether a change has grown since a sensor was swapped, or lines or strikes have come."""
    now = np.array(state.level)
    shows = (now > MARGIN_VECTOR + 2 * np.array(state.reference.spreads)) & ~LEVELS
    return bool((now - np.array(swap)).max() > GROWN or shows.any())


def _largest(change: Doubles) -> float:
    """The largest of changes in dB, 0 at least."""
    return float(np.nanmax(np.append(change, 0.0)))
