"""What is measured of one point at one time, what is known of the point then, and what happened to it.

>>> [found] = measurements_of_file(Path("2024-05-01T10-32-39.wav"), Given())
>>> measure(found, Given(bearing=find_bearing("6205")), time=1714559559.0, machine="pump 3")[0].values["rms"]
0.31
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any

import numpy as np

from bearcat.data.channels import unit_of
from bearcat.deploy import measure_points
from bearcat.deploy.find import FoundMeasurement, Given, split_name
from bearcat.diagnosis.decision import ALARM, CHECK, NO_SIGNAL, OF_RECORDING, OK
from bearcat.diagnosis.lines import FEWEST_TURNS
from bearcat.diagnosis.physics import CLARITIES, PhysicsEvidence
from bearcat.diagnosis.quality import BANDS
from bearcat.diagnosis.recording import STATUS, Measured, Observation
from bearcat.errors import to_json
from bearcat.findings import MOST_REASONS, SILENT, Finding, count, highest, percent, sentence, sentences
from bearcat.settings import to_plain

STATUSES = (ALARM, CHECK, NO_SIGNAL, OK)  # of a point, worst first
# Of each measurement: its title and its unit; None: the unit of the signal.
MEASUREMENTS: dict[str, tuple[str, str | None]] = {
    "rms": ("RMS", None),
    "velocity": ("velocity RMS, 10–1000 Hz", "mm/s"),
    "kurtosis": ("kurtosis", ""),
    "envelope_kurtosis": ("envelope kurtosis", ""),
    "inner_race": ("inner race lines", "dB"),
    "outer_race": ("outer race lines", "dB"),
    "ball": ("ball lines", "dB"),
    "reference": ("reference lines", "dB"),
    **{f"band_{number}": (f"RMS in band {number} of {BANDS}", None) for number in range(1, BANDS + 1)},
    "rpm": ("speed", "rpm"),
    "load": ("load", ""),
    "temperature": ("temperature", "°C"),
}
UNMEASURED = Measured({}, None, None, None, None)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One point of a machine at one time."""

    machine: str
    point: str
    time: float  # seconds since 1970, UTC
    observation: Observation  # as `bearcat diagnose` makes it; its spectra are kept where it is too short alone
    values: Mapping[str, float] = field(default_factory=dict)  # by name of MEASUREMENTS, what is known
    unit: str | None = None

    @property
    def measured(self) -> Measured:
        return self.observation.measured or UNMEASURED

    @property
    def refused(self) -> bool:
        """Whether the recording itself is at fault: its levels say nothing either."""
        no_lines = self.observation.no_lines
        return self.observation.problem is not None or (no_lines is not None and no_lines.field is None)


def measure(
    measurement: FoundMeasurement, given: Given, time: float, machine: str, point: str | None = None
) -> list[Snapshot]:
    """A snapshot of each point of one file; InputError where none of them can be measured.

    `point` is where all channels of the file were recorded; a file of several points without one has a channel each.
    """
    observed = measure_points(measurement, replace(given, measured=True))
    problems = [observation.problem for observation in observed if observation.problem is not None]
    if len(problems) == len(observed):
        raise problems[0]
    snapshots = []
    for (origin, (first, *_)), observation in zip(measurement.points.items(), observed, strict=True):
        measured = observation.measured or UNMEASURED
        named = first.point or split_name(origin, first.path)[2]
        name = f"{point} {named}" if point and named and len(observed) > 1 else point or named or "1"
        rpm = None if observation.speed is None else observation.speed.rpm
        stated = {"rpm": rpm, "load": first.load, "temperature": first.temperature, "rms": observation.rms}
        values = dict(measured.levels) | {key: value for key, value in stated.items() if value is not None}
        values |= {} if observation.physics is None else line_values(observation.physics)
        if measured.turns is not None and measured.turns < FEWEST_TURNS:  # it is read together with others
            observation = replace(observation, no_lines=None)
        else:
            observation = replace(observation, measured=replace(measured, spectra=None))
        unit = unit_of(first.channel or "") or given.declared.completed(first.declared, first.channel or "").unit
        snapshots.append(Snapshot(machine, name, time, observation, values, unit))
    return snapshots


def line_values(physics: PhysicsEvidence) -> dict[str, float]:
    """Levels of fault lines as measurements."""
    levels = {fault.replace(" ", "_"): lines.level for fault, lines in physics.faults.items()}
    return levels | {"reference": physics.reference_level}


@dataclass(frozen=True)
class Event:
    """Something that happened to a point: `kind` is alarm, grown, over, acknowledged, baseline or problem."""

    machine: str
    point: str
    time: float
    kind: str
    findings: tuple[Finding, ...] = ()
    fault: str | None = None  # that is named then
    note: str = ""  # of a person

    @property
    def what(self) -> str:
        """What happened, in words, or the note of the person who did it."""
        begins = {"grown": "the change has grown", "over": "the change has gone"}
        begins |= {"alarm": "alarm", "acknowledged": "acknowledged"}  # the findings of other kinds say what it is
        parts = [begins.get(self.kind), self.fault, *sentences(self.findings)]
        return self.note or "; ".join(filter(None, parts)) or self.kind

    @property
    def sentence(self) -> str:
        """The same with the names of machine and point."""
        return f"{', '.join(filter(None, (self.machine, self.point)))}: {self.what}"


def status_of(findings: Sequence[Finding]) -> str:
    """Of a point: no signal where there is none, else the highest severity; a remark changes nothing."""
    if any(finding.kind in SILENT for finding in findings):
        return NO_SIGNAL
    return OF_RECORDING[highest(findings)]


@dataclass(frozen=True)
class PointStatus:
    """What is known of a point now, or was when it was recorded: a row of the fleet.

    >>> bearcat.PointStatus("pump 3", "drive end").status
    'ok'
    """

    machine: str
    point: str
    status: str = OK  # one of STATUSES
    since: float | None = None  # when the status began; of an alarm, when the change began
    fault: str | None = None  # inner race, outer race, ball, or None where nothing is named
    severity: str | None = None  # how clear the fault's lines are, one of CLARITIES
    confidence: float | None = None
    level: float | None = None  # of the last recording: its velocity, or its root mean square
    unit: str | None = None  # of the level
    findings: tuple[Finding, ...] = ()  # the most important first; the status is the highest severity
    time: float | None = None  # of the last recording
    recordings: int = 0
    alarm: float | None = None  # when the alarm was raised that nobody acknowledged yet
    acknowledged: float | None = None  # when somebody did that with the alarm whose cause is still there
    p_value: float | None = None  # how often a healthy recording is as unusual as the last one
    change: float = 0.0  # evidence of a change, as a share of what is an alarm

    @property
    def order(self) -> tuple[Any, ...]:
        """Worst first: by status, where an open alarm is one, then by severity."""
        rank = STATUSES.index(self.status) if self.alarm is None else 0
        clarity = -1 if self.severity is None else CLARITIES.index(self.severity)
        return rank, -clarity, -(self.confidence or 0), -self.change, self.machine, self.point

    @property
    def written_level(self) -> str:
        """The level with its unit."""
        return "" if self.level is None else f"{self.level:.3g} {self.unit or ''}".strip()

    def __post_init__(self) -> None:
        if self.status not in STATUSES or self.severity not in (None, *CLARITIES):  # it would count as ok
            raise ValueError(f"{self.status!r:.40}, {self.severity!r:.40} is no status")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it has this status, in words."""
        return sentences(finding for finding in self.findings if finding.kind != "baseline incomplete")[:MOST_REASONS]

    @property
    def baseline(self) -> str | None:
        """How much of a baseline that is not complete is there, and what is judged meanwhile, in words."""
        return next((sentence(finding) for finding in self.findings if finding.kind == "baseline incomplete"), None)


class Fleet(list[PointStatus]):
    """Points, worst first.

    >>> bearcat.Fleet([bearcat.PointStatus("pump 3", "drive end")]).summary
    '1 point: 1 ok.'
    """

    columns = (*(field.name for field in fields(PointStatus)), "reasons", "baseline")

    @property
    def counts(self) -> dict[str, int]:
        numbers = Counter(point.status for point in self)
        return {status: numbers[status] for status in STATUSES}

    @property
    def summary(self) -> str:
        """How many points are what, in one line."""
        parts = [f"{number} {status}" for status, number in self.counts.items() if number]
        hidden = sum(point.alarm is not None and point.status != ALARM for point in self)
        more = f" {count(hidden, 'alarm is', 'alarms are')} still open." if hidden else ""
        learning = sum(point.baseline is not None for point in self)
        remark = f" The baseline of {count(learning, 'point')} is still being learnt." if learning else ""
        return f"{count(len(self), 'point')}: {', '.join(parts) or 'none'}.{more}{remark}"

    @property
    def exit_status(self) -> int:
        """0 all are ok, 1 an alarm is open, 3 none but something to check or without signal."""
        if any(point.status == ALARM or point.alarm is not None for point in self):
            return STATUS[ALARM]
        return STATUS[CHECK] if self.counts[CHECK] or self.counts[NO_SIGNAL] else 0

    def table(self) -> list[dict[str, str]]:
        """The rows of a table for people."""
        return [
            {
                "machine": point.machine, "point": point.point, "status": point.status,
                "since": short_time(point.since), "fault": point.fault or "",
                "severity": point.severity or "", "confidence": percent(point.confidence if point.fault else None),
                "level": point.written_level,
                "reason": "; ".join(point.reasons) or point.baseline or "",
            }
            for point in self
        ]  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """Plain values, a row for each point."""
        times = ("since", "time", "alarm", "acknowledged")
        return [
            to_plain(point) | {"reasons": list(point.reasons), "baseline": point.baseline}
            | {name: written_time(getattr(point, name)) or None for name in times}
            for point in self
        ]  # fmt: skip

    def cells(self) -> list[dict[str, Any]]:
        """The same for a csv file: findings as JSON."""
        rows = self.rows()
        return [row | {"reasons": "; ".join(row["reasons"]), "findings": to_json(row["findings"])} for row in rows]

    def __repr__(self) -> str:
        return "\n".join([self.summary, *("  ".join(row.values()).rstrip() for row in self.table())])


def written_time(seconds: float | None) -> str:
    """A time as people and programs read it: 2024-05-01T10:32:39Z; nothing where there is none."""
    if seconds is None or not isfinite(seconds):
        return ""
    return str(np.datetime64(round(seconds), "s")) + "Z"


def short_time(seconds: float | None) -> str:
    """A time to the minute, in tables and pages: 2024-05-01 10:32."""
    return written_time(seconds)[:16].replace("T", " ")
