"""What a recording means beside the other points: its diagnosis, evidence for a change, cross-talk, alarms.

Every recording is diagnosed as `bearcat diagnose` does it. While the baseline is still learnt, that decides. Once it is
learnt, lines that were always there no longer count, and change comes on top: a block's change against its baseline,
less what the neighbours on the machine show too, has a p-value that adds to the evidence (usual.py). A line or a level
that rose more at a neighbour belongs to that, whatever the neighbour's status is: it is cross-talk, to be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from bearcat.diagnosis.decision import ALARM, CHECK, NO_SIGNAL, OK, Decision, by_findings
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.lines import FAULTS, Loudness, cross_talk
from bearcat.diagnosis.physics import PhysicsEvidence
from bearcat.diagnosis.recording import AlarmRule, Observation
from bearcat.diagnosis.spectra import FEWEST_TURNS
from bearcat.findings import GROWN, IMPULSIVE, LOUDER, MOST_REASONS, PRIOR, SHOWN_LINE, Finding
from bearcat.sentences import reasons, sentence
from bearcat.watch.memory import KURTOSIS, LEVELS, Observed, OpenAlarm, PointState
from bearcat.watch.snapshot import MEASUREMENTS, Event, PointStatus
from bearcat.watch.usual import (
    BAND_NAMES,
    LEVEL,
    MARGIN_VECTOR,
    NAMES,
    PERSISTENCE,
    Doubles,
    WatchRule,
    add_evidence,
    excesses,
    score,
)

QUIETER = 10.0  # dB below what is usual that are worth a check
ALONE = 10.0  # dB by which a level rose more than at another point, from which on it is this one's
MOST_COMMON = 10.0  # dB that other points can explain
EVEN = 0.5  # probability of a fault where a change is an alarm
FRESH = 1.5  # intervals of a point's recordings that one of another point may be away, to be compared
# Findings that claim nothing of the machine: a baseline in which they are usual raises no question.
CLAIMLESS = ("not diagnosed", "not enough evidence", "low confidence")
IS_LEVEL = np.array([name in BAND_NAMES for name in NAMES])
IS_KURTOSIS = np.array(["kurtosis" in name for name in NAMES])


@dataclass(frozen=True, eq=False)
class Findings:
    """What a complete block says, beside other points."""

    change: Doubles = field(default_factory=lambda: np.full(len(NAMES), np.nan))  # (name,) dB, less what others explain
    common: float = 0.0  # dB by which levels rose at most points at once
    owner: str | None = None  # the neighbour to which lines or levels belong
    borrowed: Sequence[Finding] = ()  # lines that it shows louder
    decision: Decision | None = None  # on the recording; None: it is too short alone
    physics: PhysicsEvidence | None = None
    state: str = ""  # that is diagnosed
    p_value: float | None = None

    @property
    def alarming(self) -> bool:
        return self.decision is not None and self.decision.action == ALARM


def assess(seen: Observed, rule: WatchRule, beside: Sequence[PointState] = ()) -> tuple[PointState, tuple[Event, ...]]:
    """What a recording means, beside the other points of its machine."""
    state, snapshot, happened, found = seen.state, seen.snapshot, list[tuple[str, str]](), Findings()
    if seen.silent is not None:
        if state.status.status != NO_SIGNAL:
            happened.append(("problem", f"no signal; {seen.silent}"))
    elif snapshot.refused:
        found = replace(found, decision=by_findings([_undiagnosed(seen)]))
    elif seen.row is not None:
        found = _find(seen, beside, rule)
        state, found = _weigh(seen, found, rule)
        state = replace(state, plain=0 if _shows(seen, found) else state.plain + 1)
        names = (*state.names, found.state)[-PERSISTENCE:] if found.state in FAULTS else state.names
        state, event = _update_alarm(replace(seen, state=replace(state, names=names)), found, rule)
        happened += [event] if event is not None else []
        state, sentences = _learn(replace(seen, state=state), found, rule)
        happened += [("baseline", "; ".join(sentences))] if sentences else []
    state = replace(state, status=_status(replace(seen, state=state), found, rule))
    machine, point = state.status.machine, state.status.point
    where, events = f"{machine}, {point}", list[Event]()
    for kind, words in happened:
        reasons = state.status.reasons if kind in ("alarm", "grown") else ()
        events.append(Event(machine, point, snapshot.time, kind, "; ".join([f"{where}: {words}", *reasons])))
    return state, tuple(events)


def _undiagnosed(seen: Observed) -> Finding:
    return Finding("not diagnosed", "check", {"problem": seen.snapshot.problem})


def _find(seen: Observed, beside: Sequence[PointState], rule: WatchRule) -> Findings:
    """What the last block says."""
    state, time = seen.state, seen.snapshot.time
    reach = FRESH * max(state.interval, 60.0)
    near = [other for other in beside if len(other.times) and abs(other.times[-1] - time) <= reach]
    lines, physics, borrowed = state.lines, seen.physics, list[Finding]()
    owners = list[PointState]()
    for fault, louder in cross_talk([lines, *(other.lines for other in near)])[0].items():
        if physics is not None and lines[fault].excess >= SHOWN_LINE:
            owners.append(near[louder.owner - 1])
            values = {"fault": fault, "decibels": louder.decibels, "owner": owners[-1].status.point}
            borrowed.append(Finding("cross-talk", "check", values))
    silent = _leaked(lines, borrowed, owners)
    change = state.change.copy()
    change[[NAMES.index(fault.replace(" ", "_")) for fault in silent]] = np.nan
    for fault in silent:
        physics = None if physics is None else physics.without_lines(fault)
    for other in near:
        leaked = IS_LEVEL & (other.rise > 10 ** (LOUDER / 10) * state.rise) & (change > 0)
        leaked |= IS_KURTOSIS & (other.change >= change) & (leaked.any() or other in owners)
        if np.any(leaked & (change > GROWN / 2)):
            owners.append(other)
        change[leaked] = 0.0
    common = _common(state, change, near)
    found = Findings(
        change - common, float(common.max()), owners[0].status.point if owners else None, borrowed, physics=physics
    )
    return found if physics is None and seen.snapshot.spectra is not None else _diagnosed(seen, found, rule)


def _leaked(lines: Mapping[str, Loudness], borrowed: Sequence[Finding], owners: Sequence[PointState]) -> set[str]:
    """Faults whose lines belong to neighbours: those that they show louder, and what is as much louder there. Multiples
    of different faults lie close together, and a strong fault reaches the lines of all others.
    """
    found = {str(finding.values["fault"]) for finding in borrowed}
    for finding, owner in zip(borrowed, owners, strict=True):
        least = max(finding.values["decibels"] - LOUDER, LOUDER)
        louder = 10 ** (least / 20)
        found |= {name for name in lines.keys() & owner.lines.keys()
                  if owner.lines[name].amplitude >= louder * lines[name].amplitude}  # fmt: skip
    return found


def _common(state: PointState, change: Doubles, near: Sequence[PointState]) -> Doubles:
    """(name,) dB by which a level rose at all points of the machine: load, speed, or a bearing without a sensor. It is
    all of the rise where this point's own lines and kurtosis are as usual, else what the others show too.
    """
    near = [other for other in near if np.isfinite(other.change).any()]
    rises = [
        np.where(other.rise >= state.rise / 10 ** (ALONE / 10), np.nan_to_num(other.change), 0.0) for other in near
    ]
    if not rises:
        return np.zeros(len(NAMES))
    shared, usual = np.min(rises, axis=0), state.reference
    spreads = np.array(usual.spreads) if usual.learnt else 1.0
    own = np.any((change > MARGIN_VECTOR + 2 * spreads) & ~LEVELS)
    part = np.where(own, np.minimum(shared, MOST_COMMON), np.maximum(change, 0.0))
    return np.where(IS_LEVEL & (shared >= MARGIN_VECTOR), part, 0.0)


def _diagnosed(seen: Observed, found: Findings, rule: WatchRule) -> Findings:
    """With the decision of `bearcat diagnose`, beside the baseline's lines once they are learnt. Where the point has
    changed for sure, a fault is as likely as not before a line is read.
    """
    snapshot, signal, usual = seen.snapshot, seen.snapshot.signal, seen.state.usual_lines
    if snapshot.problem is not None:
        return replace(found, decision=by_findings([_undiagnosed(seen)]))
    baseline = None if usual is None or found.physics is None else usual.compare(found.physics)
    quality = () if signal.quality is None else signal.quality.findings
    prior = EVEN if seen.state.evidence >= seen.state.limit(rule) else PRIOR
    [diagnosis] = decide_together([Observation(
        snapshot.recording, Witnesses(found.physics, None if found.borrowed else signal.general, None, baseline),
        observed=(*found.borrowed, *signal.speed_findings, *snapshot.noticed, *quality),
        rule=AlarmRule.of((), prior=prior),
        masked=bool(found.borrowed), speed=signal.speed, family=signal.family, vibration=signal.vibration,
    )])  # fmt: skip
    return replace(found, decision=diagnosis.decision, state=diagnosis.state)


def _weigh(seen: Observed, found: Findings, rule: WatchRule) -> tuple[PointState, Findings]:
    """Adds the p-value of the last block to the evidence."""
    state = seen.state
    usual, before = state.reference, state.evidence
    if usual.tail is None:
        return state, found
    p_value = usual.tail.p_value(score(found.change, np.array(usual.spreads)))
    evidence = add_evidence(before, p_value, state.limit(rule), usual.correlated)
    if state.alarm is not None and not state.state.learnt:  # levels, which raised it, cannot be compared there
        evidence = max(evidence, before)
    if seen.stopped or state.restarted:  # it is cold, or was taken apart: what stays changed shows later
        evidence = min(evidence, before)
    onset = None if evidence == 0 else seen.snapshot.time if before == 0 else state.onset
    return replace(state, evidence=evidence, onset=onset), replace(found, p_value=p_value)


def _shows(seen: Observed, found: Findings) -> bool:
    """Whether a recording shows what a fault makes, and not a neighbour's: a clear line, or impulses that are new."""
    physics, change = found.physics, found.change[IS_KURTOSIS]
    if physics is not None and any(
        physics.clarity(fault) != "faint" and lines.level - physics.reference_level >= SHOWN_LINE
        for fault, lines in physics.faults.items()
    ):
        return True
    kurtosis = 0.0 if seen.row is None else seen.row[KURTOSIS]
    return bool(kurtosis > IMPULSIVE and np.any(change > MARGIN_VECTOR[IS_KURTOSIS]))


def _update_alarm(seen: Observed, found: Findings, rule: WatchRule) -> tuple[PointState, tuple[str, str] | None]:
    """Raises an alarm, a second where it has grown, and says when it is over: the kind of event and its sentence."""
    state, time = seen.state, seen.snapshot.time
    alarm, level, limit = state.alarm, state.level, state.limit(rule)
    if alarm is not None and alarm.over and alarm.acknowledged is not None:
        alarm = None
    if state.reference.learnt:
        lasting = state.evidence >= limit / 2
        strong = state.evidence >= limit and (state.plain < PERSISTENCE or _is_high(state, found))
    else:  # what has grown clearly since the first recordings
        strong = lasting = _has_grown(np.array(level))
    strong, lasting = strong or found.alarming, lasting or found.alarming
    state = replace(state, alarm=alarm, calm=0 if strong or lasting else state.calm + 1)
    if strong and (alarm is None or alarm.over):
        if alarm is not None:  # it comes again, and nobody has looked yet
            return replace(state, alarm=replace(alarm, over=False)), None
        return replace(state, alarm=OpenAlarm(time, state.onset or time, level)), ("alarm", "alarm")
    if alarm is None or alarm.over:
        return state, None
    if np.any(np.array(level) >= np.array(alarm.change) + GROWN):
        change = tuple(np.fmax(alarm.change, level).tolist())
        return replace(state, alarm=replace(alarm, change=change, acknowledged=None)), ("grown", "the change has grown")
    if state.calm >= PERSISTENCE:
        event = None if alarm.told else ("over", "the change has gone")
        return replace(state, alarm=replace(alarm, over=True, told=True)), event
    return state, None


def _is_high(state: PointState, found: Findings) -> bool:
    """Whether a change is so large that nothing else need show a fault."""
    return bool(np.any((np.array(state.level) >= GROWN) & (found.change >= GROWN)))


def _has_grown(change: Doubles) -> bool:
    """Whether changes (name,) are a fault's before there is a baseline: a level or line, and something else. One band
    alone is a tone or a mode that moved, and kurtosis alone is knocks.
    """
    grown = (change >= GROWN) & (np.array(NAMES) != LEVEL)
    return bool(grown.sum() > 1 and (grown & ~IS_KURTOSIS).any())


def _learn(seen: Observed, found: Findings, rule: WatchRule) -> tuple[PointState, list[str]]:
    """Learns a block in which nothing speaks for a fault; what is to be said where that completes the baseline."""
    state, row, time = seen.state, seen.row, seen.snapshot.time
    before, suspicious = state.state, _has_grown(state.change)
    if state.restarted:
        known = state.evidence > 0
    else:
        known = before.learnt or state.evidence > 0 if state.reference.learnt else suspicious and state.alarm is None
    if row is None or known or found.alarming or state.open_alarm is not None:
        return state, []
    doubts = [] if found.decision is None else [each for each in found.decision.findings if each.severity == CHECK]
    doubted = any(each.kind not in CLAIMLESS for each in doubts)
    after = before.learn(row, time, rule, state.interval)
    state = state.with_state(state.current, after)
    if before.learnt:
        return state, []
    accepted = tuple(sorted({*state.accepted, *(each.kind for each in doubts)}))
    state = replace(state, accepted=accepted, doubted=state.doubted + doubted)
    if not after.learnt:
        return state, []
    questions, lines = list[str](), None if state.usual_lines is None else state.usual_lines.finding
    if lines is not None:
        questions.append(sentence(replace(lines, values={**lines.values, "of": "its baseline"})))
    if 2 * state.doubted > after.seen and doubts:
        questions.append(f"most recordings of its baseline were to be checked: {sentence(doubts[0])}")
    asked = f"{questions[0]}; look at the machine, then acknowledge" if questions else None
    state = replace(state, question=asked or state.question)
    words = f"what is usual was learnt from {after.seen} recordings at {after.label}"
    return state, [words, *([asked] if asked else [])]


def _status(seen: Observed, found: Findings, rule: WatchRule) -> PointStatus:
    """The status after a recording."""
    state, time = seen.state, seen.snapshot.time
    before, alarm, open_alarm = state.status, state.alarm, state.open_alarm
    evidence, fault, confidence = None, None, None
    if open_alarm is not None or (seen.row is None and seen.silent is None):  # a named cause stays with its alarm
        evidence, fault, confidence = before.evidence, before.fault, before.confidence
    if found.state in FAULTS and found.decision is not None and (fault is None or set(state.names) == {found.state}):
        fault, confidence = found.state, found.decision.expected
    if found.physics is not None:
        faults = found.physics.faults
        evidence = found.physics.line(fault or max(faults, key=lambda name: faults[name].level))
    if seen.silent is not None:
        waiting = [f"the alarm of {day(open_alarm.time)} is open"] if open_alarm is not None else []
        status, why = NO_SIGNAL, [seen.silent, *waiting]
    else:
        status, why = _judge(seen, found, rule, evidence, fault)
    since = before.since if status == before.status and before.since is not None else time
    if status == ALARM and alarm is not None:
        since = alarm.since
    return replace(
        before, status=status, since=since, fault=fault, confidence=confidence, evidence=evidence, time=time,
        reasons=tuple(dict.fromkeys([*why, *seen.notes]))[:MOST_REASONS], recordings=before.recordings + 1,
        operating_state=state.state.label, baseline=state.state.missing(rule, state.interval),
        alarm=None if open_alarm is None else open_alarm.time,
        acknowledged=None if alarm is None else alarm.acknowledged,
        p_value=found.p_value, change=state.evidence / state.limit(rule),
    )  # fmt: skip


def _judge(
    seen: Observed, found: Findings, rule: WatchRule, evidence: str | None, fault: str | None
) -> tuple[str, list[str]]:
    """Alarm, check or ok, and why: the first of these that holds."""
    state, alarm, decision, before = seen.state, seen.state.alarm, found.decision, seen.state.status
    if alarm is not None and state.open_alarm is not None and not alarm.over:
        if seen.row is None:
            return ALARM, list(before.reasons)
        return ALARM, [*_why_alarm(seen, found), *([f"{evidence}: {fault}"] if found.state in FAULTS else [])]
    if seen.row is None and decision is None:
        if before.recordings and before.status != NO_SIGNAL:
            return before.status, list(before.reasons)
        return CHECK, [f"{state.block.turns:.1f} turns of the shaft so far, and {FEWEST_TURNS} are needed"]
    if decision is not None and seen.row is None:
        return CHECK, list(decision.reasons)
    if found.owner is not None:
        lines = [sentence(finding) for finding in found.borrowed]
        return CHECK, [lines[0] if lines else f"cross-talk from {found.owner}: its levels rose more"]
    if alarm is None and state.evidence >= seen.state.limit(rule):
        return CHECK, [*_why_alarm(seen, found), "no clear line and no impulses yet"]
    if alarm is not None:
        end = "is acknowledged, and its cause is still there" if not alarm.over else "is over"
        return CHECK, [f"the alarm of {day(alarm.time)} {end}" + "; acknowledge it" * (alarm.acknowledged is None)]
    known = state.accepted if state.reference.learnt else ()
    doubts = [] if decision is None else [each for each in decision.findings if each.severity == CHECK]
    if new := reasons(finding for finding in doubts if finding.kind not in known):
        return CHECK, list(new)
    if found.common >= GROWN:
        return CHECK, ["other points are louder too: check load, speed and foundation"]
    if state.question is not None:
        return CHECK, [state.question]
    if seen.compared and not np.isfinite(state.change).any():
        return CHECK, ["nothing was measured that can be compared with its baseline"]
    levels = state.changes[-PERSISTENCE:, LEVELS]
    if np.isfinite(levels).any() and np.nanmax(levels) <= -QUIETER:
        return CHECK, [f"{-np.nanmax(levels):.0f} dB below what is usual: check sensor, mounting and load"]
    return OK, []


def _why_alarm(seen: Observed, found: Findings) -> list[str]:
    """What the recording shows, or what has changed."""
    state, alarm, reference = seen.state, seen.state.alarm, seen.state.reference
    change = found.change if reference.learnt else state.change
    spreads = np.array(reference.spreads) if reference.learnt else np.ones(len(NAMES))
    beyond, shown = excesses(change, spreads), [] if found.decision is None else list(found.decision.reasons)
    if not reference.learnt:
        beyond[IS_KURTOSIS] = -1.0
    place = int(beyond.argmax())
    if found.alarming and not reference.learnt:
        return shown
    if beyond[place] <= 0:
        begun = f"something has changed since {day(state.onset)}"
        return shown[:1] if found.alarming else [f"the alarm of {day(alarm.time)} is open" if alarm else begun]
    decibels = np.nanmedian(change[LEVELS]) if NAMES[place] == LEVEL else change[place]
    usual = "what is usual" if reference.learnt else "its first recordings"
    return [f"{_title(NAMES[place], state.state.rate)} {decibels:.0f} dB above {usual}"]


def _title(name: str, rate: float | None) -> str:
    """A measurement in words; bands by their frequencies."""
    if name in BAND_NAMES and rate is not None:
        width, number = rate / 2 / len(BAND_NAMES) / 1000, BAND_NAMES.index(name)
        return f"RMS in {number * width:.3g}–{(number + 1) * width:.3g} kHz"
    return "RMS" if name == LEVEL else MEASUREMENTS[name][0]


def day(time: float | None) -> str:
    """A time for people, in UTC."""
    if time is None:
        return ""
    when = datetime.fromtimestamp(time, UTC)
    return f"{when.day} {when:%b %Y %H:%M}"


def unreadable(state: PointState, time: float, problem: str) -> PointState:
    """A file of the point cannot be used: it is to be checked, unless a later recording was judged already."""
    status = state.status
    if status.time is not None and time <= status.time:
        return state
    worst, since = (ALARM, status.since) if status.status == ALARM else (CHECK, status.since or time)
    return replace(state, status=replace(status, status=worst, since=since, reasons=(problem, *status.reasons[:1])))


def acknowledge(state: PointState, time: float, note: str = "") -> tuple[PointState, Event]:
    """A person has seen the alarm: it does not come again until the change grows, or has gone and comes again."""
    alarm, status = state.alarm, state.status
    if alarm is not None:
        alarm = replace(alarm, acknowledged=time, change=state.level)
    if status.status == ALARM:
        status = replace(status, status=CHECK, since=time)
    status = replace(status, alarm=None, acknowledged=time)
    event = Event(status.machine, status.point, time, "acknowledged", note or "acknowledged")
    return replace(state, alarm=alarm, question=None, status=status), event


def relearn(state: PointState, time: float, note: str = "") -> tuple[PointState, Event]:
    """The baseline is learnt anew from the next recordings on: after a repair, or with another sensor."""
    was = state.status
    status = PointStatus(
        was.machine, was.point, OK, time, time=was.time, recordings=was.recordings, operating_state=was.operating_state,
    )  # fmt: skip
    event = Event(was.machine, was.point, time, "baseline", note or "what is usual is learnt anew")
    return PointState(status), event
