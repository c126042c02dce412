"""The status of a point in words: what it is, since when, and why; at most two reasons, the most important first.

A `Fleet` is the status of several points.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, fields
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.diagnosis.decision import ALARM, CHECK, NO_SIGNAL, OK
from bearcat.diagnosis.physics import FAULTS
from bearcat.diagnosis.recording import STATUS, percent
from bearcat.findings import MOST_REASONS
from bearcat.report.typeset import count
from bearcat.sentences import sentences
from bearcat.watch.memory import DAY, LEVELS, Observed, OpenAlarm, PointState
from bearcat.watch.snapshot import LEARNING, MEASUREMENTS, STATUSES, PointStatus
from bearcat.watch.usual import BAND_NAMES, LEVEL, NAMES, PERSISTENCE, WatchRule, excesses

if TYPE_CHECKING:
    from bearcat.watch.alarm import Findings

CROSS_TALK = "cross-talk"
MANY = 4  # times the recordings of a baseline after which something should be learnt
UNUSUAL = 0.05  # p-value of a recording that is worth a word while a neighbour is in alarm
ALL_LOUDER = 6.0  # dB by which other points rise too that are worth a check
QUIETER = 10.0  # dB below what is usual that are worth a check


def status_of(seen: Observed, findings: Findings, rule: WatchRule) -> PointStatus:
    """The status after a recording."""
    state, time = seen.state, seen.snapshot.time
    before, alarm, open_alarm = state.status, state.alarm, state.open_alarm
    evidence, fault, confidence = before.evidence, findings.fault, findings.confidence
    if findings.physics is not None:
        faults = findings.physics.faults
        evidence = findings.physics.line(fault or max(FAULTS, key=lambda name: faults[name].level))
    if fault is None and (open_alarm is not None or not seen.complete):
        fault = before.fault  # a cause that was named is not taken back while its alarm is open
        confidence = confidence or before.confidence or 0.0
    if seen.silent is not None:
        waiting = [f"the alarm of {day(open_alarm.time)} is open"] if open_alarm is not None else []
        status, reasons = NO_SIGNAL, [seen.silent, *waiting]
    elif not seen.complete and before.status != NO_SIGNAL and before.time is not None:
        status, reasons = before.status, list(before.reasons)
    else:
        status, reasons = _judge(seen, findings, evidence, rule)
    since = before.since if status == before.status and before.since is not None else time
    if status == ALARM and alarm is not None:
        since = alarm.since
    return PointStatus(
        state.machine, state.point, status, since, fault, confidence or None,
        tuple(dict.fromkeys([*reasons, *seen.notes]))[:MOST_REASONS], evidence, time, before.recordings + 1,
        state.state.label, len(state.state.rows), rule.baseline, None if open_alarm is None else open_alarm.time,
        None if alarm is None else alarm.acknowledged,
    )  # fmt: skip


def _judge(seen: Observed, findings: Findings, evidence: str | None, rule: WatchRule) -> tuple[str, list[str]]:
    """Alarm, check, learning or ok, and why: the first of these that holds."""
    state, alarm, borrowed = seen.state, seen.state.alarm, findings.borrowed
    if alarm is not None and state.open_alarm is not None and not alarm.over:
        fault = findings.fault or state.status.fault
        return ALARM, [_why_alarm(seen, alarm, findings), *([f"{evidence}: {fault}"] if fault else [])]
    unusual = findings.p_value is not None and findings.p_value < UNUSUAL
    marked = any(reason.startswith(CROSS_TALK) for reason in state.status.reasons)  # so that it does not come and go
    if findings.owner is not None and (borrowed or unusual or marked):
        louder = [f"{fault} lines are {line.decibels:.0f} dB louder there" for fault, line in borrowed.items()]
        return CHECK, [f"{CROSS_TALK} from {findings.owner}: {louder[0] if louder else 'it is in alarm'}"]
    if findings.fault is not None and state.claims >= PERSISTENCE:
        which = "its recordings together" if state.state.learnt else "its first recordings"
        return CHECK, [f"{which} show {findings.fault}: {evidence}"]
    if alarm is not None:
        end = "is acknowledged, and its cause is still there" if not alarm.over else "is over"
        return CHECK, [f"the alarm of {day(alarm.time)} {end}" + "; acknowledge it" * (alarm.acknowledged is None)]
    if state.sensor is not None:
        when = f"levels changed at once on {day(state.sensor)}, and no fault shows"
        return CHECK, [f"{when}: check sensor and mounting, then set a new baseline"]
    known = state.accepted if state.state.learnt else ()
    if new := [finding for finding in seen.snapshot.quality if finding.kind not in known]:
        return CHECK, list(sentences(new))
    if max(findings.common.values(), default=0.0) >= ALL_LOUDER:
        return CHECK, ["other points are louder too: check load, speed and foundation"]
    if state.question is not None:
        return CHECK, [state.question]
    if seen.compared and not np.isfinite(state.change).any():
        return CHECK, ["nothing was measured that can be compared with its baseline"]
    if (quieter := _quieter(state)) >= QUIETER:
        return CHECK, [f"{quieter:.0f} dB below what is usual: check sensor, mounting and load"]
    return (OK, []) if state.state.learnt else _still_learning(state, rule)


def _still_learning(state: PointState, rule: WatchRule) -> tuple[str, list[str]]:
    """How much is learnt; to be checked where too many operating states keep it from being so."""
    own = state.state
    if state.status.recordings > MANY * rule.baseline and len(state.states) > 1:
        learnt = sum(each.learnt for each in state.states)
        states = f"{len(state.states)} operating states, {learnt} of them learnt"
        return CHECK, [f"{states}: record it at the same speeds and loads"]
    at = f" at {own.label}" if own.rpm is not None or own.load is not None else ""
    wanted = "" if rule.period is not None else f" of {rule.baseline}"
    return LEARNING, [f"{len(own.rows)}{wanted} recordings{at}", *["its levels have not settled"] * (own.passed > 0)]


def _why_alarm(seen: Observed, alarm: OpenAlarm, findings: Findings) -> str:
    """What changed, since when, and how fast it grows."""
    state, what = seen.state, "changed"
    if not state.reference.learnt:
        return "its first recordings already show a fault"
    if seen.compared:
        change = findings.change
        beyond = excesses(change, np.array(state.reference.spreads))
        place = int(beyond.argmax())
        if beyond[place] > 0:
            decibels = np.nanmedian(change[LEVELS]) if NAMES[place] == LEVEL else change[place]
            what = f"{_title(NAMES[place], state.state.rate)} {decibels:.0f} dB above what is usual"
    return f"{what} since {day(alarm.since)}{_growth(state, alarm.since)}"


def _title(name: str, rate: float | None) -> str:
    """A measurement in words; bands by their frequencies."""
    if name in BAND_NAMES and rate is not None:
        width, number = rate / 2 / len(BAND_NAMES) / 1000, BAND_NAMES.index(name)
        return f"RMS in {number * width:.3g}–{(number + 1) * width:.3g} kHz"
    return "RMS" if name == LEVEL else MEASUREMENTS[name][0]


def _growth(state: PointState, since: float) -> str:
    """How fast the largest change grows, in words; nothing where it does not, or not clearly."""
    later = state.times >= since
    if later.sum() < 2 * PERSISTENCE:
        return ""
    days = (state.times[later] - state.times[later][0]) / DAY
    slope = float(np.polyfit(days, np.nanmax(state.changes[later], axis=1), 1)[0])
    speed = f"{slope:.1f} dB a day" if days[-1] >= 1 else f"{slope / 24:.1f} dB an hour"
    return f", growing {speed}" if slope * days[-1] >= 1 else ""


def _quieter(state: PointState) -> float:
    """dB by which the last blocks are below what is usual; 0 where they are not, or fewer than three are known."""
    levels = state.changes[-PERSISTENCE:, LEVELS]
    if len(levels) < PERSISTENCE or not np.isfinite(levels).any(axis=1).all():
        return 0.0
    return max(0.0, -float(np.nanmedian(levels, axis=1).max()))


def day(time: float | None) -> str:
    """A time for people, in UTC."""
    if time is None:
        return ""
    when = datetime.fromtimestamp(time, UTC)
    return f"{when.day} {when:%b %Y %H:%M}"


class Fleet(list[PointStatus]):
    """Points, worst first.

    >>> Path("plant/pump-3/drive-end").mkdir(parents=True, exist_ok=True)
    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> np.savez("plant/pump-3/drive-end/2024-05-01T10-30-00.npz", x=noise, fs=12_000.0)
    >>> fleet = bearcat.watch("plant", "plant.db", rpm=1480, bearing="6205")
    >>> fleet.counts["learning"]
    1
    """

    columns = tuple(field.name for field in fields(PointStatus))

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(each.status for each in self)
        return {status: found[status] for status in STATUSES}

    @property
    def summary(self) -> str:
        """How many points are what, in one line."""
        parts = [f"{number} {status}" for status, number in self.counts.items() if number]
        hidden = sum(each.alarm is not None and each.status != ALARM for each in self)
        more = f" {count(hidden, 'alarm is', 'alarms are')} still open." if hidden else ""
        return f"{count(len(self), 'point')}: {', '.join(parts) or 'none'}.{more}"

    @property
    def exit_status(self) -> int:
        """0 all are ok or learning, 1 an alarm is open, 3 none but something to check or without signal."""
        if any(each.status == ALARM or each.alarm is not None for each in self):
            return STATUS[ALARM]
        return STATUS[CHECK] if self.counts[CHECK] or self.counts[NO_SIGNAL] else 0

    def table(self) -> list[dict[str, str]]:
        """The rows of a table for people."""
        return [
            {
                "machine": each.machine, "point": each.point, "status": each.status, "since": written_time(each.since),
                "fault": each.fault or "", "confidence": percent(each.confidence if each.fault else None),
                "evidence": each.evidence or "",
                "last": written_time(each.time),
                "reason": "; ".join(each.reasons) or f"{each.learnt} of {each.wanted} recordings learnt",
            }
            for each in self
        ]  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """Plain values, a row for each point."""
        return [
            asdict(each) | {"reasons": list(each.reasons), "since": written_time(each.since) or None,
                            "time": written_time(each.time) or None, "alarm": written_time(each.alarm) or None,
                            "acknowledged": written_time(each.acknowledged) or None}
            for each in self
        ]  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join([self.summary, *("  ".join(row.values()).rstrip() for row in self.table())])


REASONS = Fleet.columns.index("reasons")


def written_time(seconds: float | None) -> str:
    """A time as people and programs read it: 2024-05-01T10:32:39Z; nothing where there is none."""
    if seconds is None or not isfinite(seconds):
        return ""
    return str(np.datetime64(round(seconds), "s")) + "Z"
