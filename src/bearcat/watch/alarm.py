"""What a recording means beside the other points: its diagnosis, evidence for a change, cross-talk, alarms.

Every recording is diagnosed as `bearcat diagnose` does it. While the baseline is still learnt, that decides. Once it is
learnt, lines that were always there no longer count, and change comes on top: a block's change against its baseline,
less what the neighbours on the machine show too, has a p-value that adds to the evidence (usual.py). A line or a level
that rose more at a neighbour belongs to that, whatever the neighbour's status is: it is cross-talk, to be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bearcat.deploy import completed
from bearcat.diagnosis.decision import ALARM, CHECK, NO_SIGNAL, UNCLEAR
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.lines import FAULTS, FEWEST_TURNS
from bearcat.diagnosis.physics import PhysicsEvidence, cross_talk, usual_lines
from bearcat.findings import GROWN, IMPULSIVE, LOUDER, SHOWN_LINE, Finding, most_severe, unique
from bearcat.settings import WatchRequest
from bearcat.watch.memory import OpenAlarm, PointState, Reading, observe, turns_of
from bearcat.watch.snapshot import MEASUREMENTS, Event, PointStatus, Snapshot, status_of, written_time
from bearcat.watch.usual import (
    BAND_NAMES,
    IS_BAND,
    IS_KURTOSIS,
    KURTOSIS,
    LEVEL,
    LEVELS,
    MARGINS,
    NAMES,
    PERSISTENCE,
    Doubles,
    add_evidence,
    excesses,
)

ALONE = 10.0  # dB by which a level rose more than at another point, from which on it is this one's
MOST_COMMON = 10.0  # dB that other points can explain
EVEN = 0.5  # probability of a fault where a change is an alarm
FALLEN = 10.0  # dB below the baseline, from which on levels are to be checked
FRESH = 1.5  # intervals of a point's recordings that one of another point may be away, to be compared
# Findings that claim nothing of the machine: a baseline in which they are usual raises no question.
CLAIMLESS = ("not diagnosed", "speed not found", "not enough evidence", "no lines of unknown bearing")


def judge(
    states: Mapping[str, PointState], snapshots: Sequence[Snapshot], request: WatchRequest
) -> tuple[dict[str, PointState], list[Event], list[Snapshot]]:
    """Takes in what was recorded at one time at points of a machine: the states after it by point, what happened, and
    snapshots that are not later than the one before, which are not judged.
    """
    after, readings = dict(states), dict[str, Reading]()
    events, late = list[Event](), list[Snapshot]()
    for snapshot in snapshots:
        point = snapshot.point
        state = after.get(point) or PointState(PointStatus(snapshot.machine, point))
        if point in readings or (state.status.time is not None and snapshot.time <= state.status.time):
            late.append(snapshot)
        else:
            after[point], readings[point] = observe(state, snapshot)
    for point, reading in readings.items():
        beside = [state for other, state in after.items() if other != point]
        after[point], event = assess(after[point], reading, request, beside)
        events += [] if event is None else [event]
    return after, events, late


def assess(
    state: PointState, reading: Reading, request: WatchRequest, beside: Sequence[PointState] = ()
) -> tuple[PointState, Event | None]:
    """What a recording means, beside the other points of its machine, and what happened."""
    snapshot, before, kind = reading.snapshot, state.status.status, None
    if reading.row is not None:
        reading = _without_neighbours(state, reading, beside)
    whole = reading.row is not None and (reading.physics is not None or snapshot.measured.spectra is None)
    if snapshot.refused or whole:
        reading = _diagnosed(state, reading, request)
    if reading.row is not None:
        state, reading = _weigh(state, reading, request)
        state, kind = _update_alarm(state, reading, request)
        state = _learn(state, reading, request)
    status = _status(state, reading, request)
    if reading.silent is not None and before != NO_SIGNAL:
        kind = "problem"
    why = tuple(most_severe(status.findings))
    event = None if kind is None else Event(status.machine, status.point, snapshot.time, kind, why, status.fault)
    return replace(state, status=status), event


# What the recording says.


def _without_neighbours(state: PointState, reading: Reading, beside: Sequence[PointState]) -> Reading:
    """The reading with its change, less what lines and levels of the other points explain."""
    reach = FRESH * max(state.interval, 60.0)
    near = [other for other in beside if len(other.times) and abs(other.times[-1] - reading.snapshot.time) <= reach]
    borrowed, owners, leaked_lines = list[Finding](), list[PointState](), set[str]()
    for fault, (decibels, place) in cross_talk([state.lines, *(other.lines for other in near)])[0].items():
        if state.lines[fault].excess >= SHOWN_LINE:
            owner = near[place - 1]
            owners.append(owner)
            values = {"fault": fault, "decibels": decibels, "owner": owner.status.point}
            borrowed.append(Finding("cross-talk", "check", values))
            # Multiples of different faults lie close together, and a strong fault reaches the lines of all others.
            much = 10 ** (max(decibels - LOUDER, LOUDER) / 20)
            both = [name for name in FAULTS if name in state.lines and name in owner.lines]
            leaked_lines |= {name for name in both if owner.lines[name].amplitude >= much * state.lines[name].amplitude}
            leaked_lines.add(fault)
    change, physics = state.change.copy(), reading.physics
    for fault in leaked_lines:
        change[NAMES.index(fault.replace(" ", "_"))] = np.nan
        physics = None if physics is None else physics.without_lines(fault)
    for other in near:
        leaked = IS_BAND & (other.rise > 10 ** (LOUDER / 10) * state.rise) & (change > 0)
        leaked |= IS_KURTOSIS & (other.change >= change) & (leaked.any() or other in owners)
        if np.any(leaked & (change > GROWN / 2)):
            owners.append(other)
        change[leaked] = 0.0
    common = _common(state, change, near)
    return replace(
        reading, physics=physics, change=change - common, common=float(common.max()), borrowed=tuple(borrowed),
        owner=owners[0].status.point if owners else None,
    )  # fmt: skip


def _common(state: PointState, change: Doubles, near: Sequence[PointState]) -> Doubles:
    """(name,) dB by which a level rose at all points of the machine: load, speed, or a bearing without a sensor. It is
    all of the rise where this point's own lines and kurtosis are as usual, else what the others show too.
    """
    rises = [
        np.where(other.rise >= state.rise / 10 ** (ALONE / 10), np.nan_to_num(other.change), 0.0)
        for other in near if np.isfinite(other.change).any()
    ]  # fmt: skip
    if not rises:
        return np.zeros(len(NAMES))
    shared = np.min(rises, axis=0)
    alone = np.any((change > MARGINS + 2 * state.reference.spreads) & ~LEVELS)
    part = np.where(alone, np.minimum(shared, MOST_COMMON), np.maximum(change, 0.0))
    return np.where(IS_BAND & (shared >= MARGINS), part, 0.0)


def _diagnosed(state: PointState, reading: Reading, request: WatchRequest) -> Reading:
    """With the decision of `bearcat diagnose`, without the neighbours' lines and beside the baseline's once they are
    learnt. Where the point has changed for sure, a fault is as likely as not before a line is read.
    """
    observation = completed(reading.snapshot.observation)
    usual, physics = state.reference.lines, reading.physics
    if observation.problem is None:
        general = None if reading.borrowed else observation.witnesses.general
        baseline = None if usual is None or physics is None else usual.compare(physics)
        rule = observation.rule
        if state.evidence >= state.limit(request):
            rule = replace(rule, prior=max(rule.prior, EVEN))
        witnesses, observed = Witnesses(physics, general, None, baseline), (*reading.borrowed, *observation.observed)
        observation = replace(observation, witnesses=witnesses, observed=observed, rule=rule)
    [diagnosis] = decide_together([observation])
    return replace(reading, diagnosis=diagnosis)


def _shows_fault(reading: Reading) -> bool:
    """Whether a recording shows what a fault makes, and not a neighbour's: a clear line, or impulses that are new."""
    physics, impulsive = reading.physics, reading.row is not None and reading.row[KURTOSIS] > IMPULSIVE
    clear = physics is not None and any(
        physics.clarity(fault) != "faint" and lines.level - physics.reference_level >= SHOWN_LINE
        for fault, lines in physics.faults.items()
    )
    return clear or bool(impulsive and np.any((reading.change > MARGINS)[IS_KURTOSIS]))


# What becomes of the point.


def _weigh(state: PointState, reading: Reading, request: WatchRequest) -> tuple[PointState, Reading]:
    """Adds the p-value of the last block to the evidence, and what it shows to what the last blocks showed."""
    named = "" if reading.diagnosis is None else reading.diagnosis.state
    names = (*state.names, named)[-PERSISTENCE:] if named in FAULTS else state.names
    state = replace(state, names=names, faultless_blocks=0 if _shows_fault(reading) else state.faultless_blocks + 1)
    p_value, before = state.reference.p_value(reading.change), state.evidence
    if p_value is None:
        return state, reading
    evidence = add_evidence(before, p_value, state.limit(request), state.reference.correlated)
    if state.alarm is not None and not state.state.learnt:  # levels, which raised it, cannot be compared there
        evidence = max(evidence, before)
    after_stop = state.running == 1 < state.starts
    if after_stop or state.restarted:  # it is cold, or was taken apart: what stays changed shows later
        evidence = min(evidence, before)
    onset = None if evidence == 0 else reading.snapshot.time if before == 0 else state.onset
    return replace(state, evidence=evidence, onset=onset), replace(reading, p_value=p_value)


def _update_alarm(state: PointState, reading: Reading, request: WatchRequest) -> tuple[PointState, str | None]:
    """Raises an alarm, a second where it has grown, and says when it is over: the kind of event."""
    alarm, level, limit, time = state.alarm, state.level, state.limit(request), reading.snapshot.time
    if state.reference.learnt:
        high = np.any((level >= GROWN) & (reading.change >= GROWN))  # nothing else need show a fault
        lasting = state.evidence >= limit / 2
        strong = state.evidence >= limit and bool(state.faultless_blocks < PERSISTENCE or high)
    else:  # what has grown clearly since the first recordings
        strong = lasting = _has_grown(level)
    strong, lasting = strong or reading.alarming, lasting or reading.alarming
    if alarm is not None and alarm.over and (strong or alarm.acknowledged is not None):  # it has come again, or is done
        alarm = None
    state = replace(state, alarm=alarm, quiet_blocks=0 if strong or lasting else state.quiet_blocks + 1)
    if alarm is None:
        return (replace(state, alarm=OpenAlarm(time, state.onset or time, level)), "alarm") if strong else (state, None)
    if not alarm.over and np.any(level >= alarm.change + GROWN):
        return replace(state, alarm=replace(alarm, change=np.fmax(alarm.change, level), acknowledged=None)), "grown"
    if not alarm.over and state.quiet_blocks >= PERSISTENCE:
        return replace(state, alarm=replace(alarm, over=True)), "over"
    return state, None


def _has_grown(change: Doubles) -> bool:
    """Whether changes (name,) are a fault's before there is a baseline: a level or line, and something else. One band
    alone is a tone or a mode that moved, and kurtosis alone is knocks.
    """
    grown = (change >= GROWN) & (np.array(NAMES) != LEVEL)
    return bool(grown.sum() > 1 and (grown & ~IS_KURTOSIS).any())


def _learn(state: PointState, reading: Reading, request: WatchRequest) -> PointState:
    """Learns a block in which nothing speaks for a fault."""
    before = state.state
    if state.restarted:
        known = state.evidence > 0
    elif state.reference.learnt:
        known = before.learnt or state.evidence > 0
    else:
        known = _has_grown(state.change) and state.alarm is None
    if reading.row is None or known or reading.alarming or state.open_alarm is not None:
        return state
    after = before.learn(reading.row, reading.snapshot.time, request, state.interval)
    state = state.with_state(state.current, after)
    if before.learnt:
        return state
    doubts, question = reading.doubts, state.question
    doubted = state.doubted + any(finding.kind not in CLAIMLESS for finding in doubts)
    accepted = tuple(sorted({*state.accepted, *(finding.kind for finding in doubts)}))
    if after.learnt and state.reference.lines is not None and (lines := usual_lines(state.reference.lines.levels)):
        question = Finding("baseline with lines", "check", {"levels": lines})
    elif after.learnt and 2 * doubted > after.count and doubts:
        question = Finding("doubted baseline", "check", {"doubt": doubts[0].kind, "values": doubts[0].values})
    return replace(state, accepted=accepted, doubted=doubted, question=question)


# What is said of the point.


def _status(state: PointState, reading: Reading, request: WatchRequest) -> PointStatus:
    """The status after a recording."""
    before, alarm, open_alarm, time = state.status, state.alarm, state.open_alarm, reading.snapshot.time
    fault, confidence = _named(state, reading)
    why, line = _judge(state, reading, request), None if fault is None else _line(fault, reading.physics)
    severity = None if fault is None else before.severity if line is None else line.values["clarity"]
    if line is not None and all(finding.kind != line.kind for finding in why):
        why = [line, *why]
    findings = unique([*why, *state.state.missing(request, state.interval)])
    status, values = status_of(findings), reading.snapshot.values
    measure, unit = ("velocity", "mm/s") if "velocity" in values else ("rms", reading.snapshot.unit)
    since = before.since if status == before.status and before.since is not None else time
    if status == ALARM and alarm is not None:
        since = alarm.since
    return replace(
        before, status=status, since=since, fault=fault, severity=severity, confidence=confidence,
        level=values.get(measure), unit=unit, time=time, findings=findings, recordings=before.recordings + 1,
        alarm=None if open_alarm is None else open_alarm.time,
        acknowledged=None if alarm is None else alarm.acknowledged,
        p_value=reading.p_value, change=state.evidence / state.limit(request),
    )  # fmt: skip


def _named(state: PointState, reading: Reading) -> tuple[str | None, float | None]:
    """The fault that is named, and how sure that is; of an open alarm it stays until another was named three times."""
    stays, diagnosis = state.open_alarm is not None or reading.waits, reading.diagnosis
    fault, confidence = (state.status.fault, state.status.confidence) if stays else (None, None)
    if diagnosis is None:
        return fault, confidence
    known = diagnosis.state in FAULTS and (fault in (None, UNCLEAR) or set(state.names) == {diagnosis.state})
    if known or (diagnosis.state == UNCLEAR and fault is None):
        return diagnosis.state, diagnosis.confidence or None
    return fault, confidence


def _line(fault: str, physics: PhysicsEvidence | None) -> Finding | None:
    """The clearest line of the fault, or of the loudest one where its type is unclear."""
    if physics is None:
        return None
    loudest = max(physics.faults, key=lambda name: physics.faults[name].level)
    shown = fault if fault in physics.faults else loudest
    return Finding("fault line", "remark", physics.strongest_line(shown) | {"clarity": physics.clarity(shown)})


def _judge(state: PointState, reading: Reading, request: WatchRequest) -> list[Finding]:
    """Why it is an alarm, or to be checked: the first of these that holds; nothing where all is well."""
    alarm, before = state.alarm, state.status
    if reading.silent is not None:
        return [reading.silent, *([] if state.open_alarm is None else [state.open_alarm.finding])]
    if reading.waits and before.recordings and before.status != NO_SIGNAL:  # as it was
        return [finding for finding in before.findings if finding.severity in (CHECK, ALARM)]
    if reading.waits:
        return [Finding("too few turns", "check", {"turns": turns_of(state.block), "wanted": FEWEST_TURNS})]
    if alarm is not None and alarm.acknowledged is None and not alarm.over:
        return _why_alarm(state, reading)
    if reading.row is None and reading.diagnosis is not None:
        return most_severe(reading.diagnosis.findings)
    if reading.borrowed:
        return [reading.borrowed[0]]
    if reading.owner is not None:
        return [Finding("levels of neighbour", "check", {"owner": reading.owner})]
    if alarm is None and state.evidence >= state.limit(request):
        change = [finding.but("check") for finding in _why_alarm(state, reading)]
        return [*change, Finding("no fault shown", "check")]
    if alarm is not None:
        return [alarm.finding]
    usual = state.accepted if state.reference.learnt else ()
    if doubts := most_severe(finding for finding in reading.doubts if finding.kind not in usual):
        return doubts
    if reading.common >= GROWN:
        return [Finding("all points louder", "check", {"decibels": reading.common})]
    if state.question is not None:
        return [state.question]
    if state.reference.learnt and not np.isfinite(state.change).any():
        return [Finding("not comparable", "check")]
    levels = state.changes[:, LEVELS]
    if np.isfinite(levels).any() and np.nanmax(levels) <= -FALLEN:
        return [Finding("quieter", "check", {"decibels": float(-np.nanmax(levels))})]
    return []


def _why_alarm(state: PointState, reading: Reading) -> list[Finding]:
    """What the recording shows, or what has changed."""
    learnt = state.reference.learnt
    diagnosed = [] if reading.diagnosis is None else most_severe(reading.diagnosis.findings)
    if reading.alarming and not learnt:
        return diagnosed
    change = reading.change if learnt else state.change
    beyond = excesses(change, state.reference.spreads)
    if not learnt:
        beyond[IS_KURTOSIS] = -1.0
    place = int(beyond.argmax())
    if beyond[place] > 0:
        name, rate, band = NAMES[place], state.state.rate, None
        decibels = float(np.nanmedian(change[LEVELS]) if name == LEVEL else change[place])
        if name in BAND_NAMES and rate is not None:
            width, number = rate / 2 / len(BAND_NAMES) / 1000, BAND_NAMES.index(name)
            band = [number * width, (number + 1) * width]  # kHz
        values = {"title": MEASUREMENTS["rms" if name == LEVEL else name][0], "band": band, "decibels": decibels}
        return [Finding("baseline change", "alarm", values | {"measurement": name, "learnt": learnt})]
    if reading.alarming:
        return diagnosed[:1]
    if state.alarm is not None:
        return [state.alarm.finding]
    return [Finding("unexplained change", "alarm", {"since": written_time(state.onset)})]
