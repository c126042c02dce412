"""What is known of a recording, its diagnosis, and the diagnoses of several. Every table, page and file is made of it.

>>> (diagnosis,) = decide_together([Observation("monday.wav", Witnesses(physics=physics, general=general))])
>>> diagnosis.decision.action, diagnosis.state, diagnosis.confidence
('alarm', 'outer race', 0.98)
>>> Diagnoses([diagnosis]).summary, Diagnoses([diagnosis]).exit_status
('1 recording: 1 alarm.', 1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bearcat.data.recording import HEALTHY_NAMES
from bearcat.diagnosis.decision import (
    ACTIONS,
    ALARM,
    CANNOT_TELL,
    CHECK,
    NO_SIGNAL,
    NOT_DIAGNOSED,
    OK,
    SEVERE,
    UNKNOWN_STATE,
    UNREADABLE,
    Decision,
)
from bearcat.diagnosis.fusion import NetworkEvidence, Witnesses
from bearcat.diagnosis.lines import LineFamily, Spectra
from bearcat.diagnosis.physics import PhysicsEvidence
from bearcat.diagnosis.pooling import softmax
from bearcat.diagnosis.quality import VibrationSeverity
from bearcat.diagnosis.speed import SpeedEvidence
from bearcat.errors import InputError, library, suggest, to_json
from bearcat.findings import DERIVED, Finding, capitalised, highest, percent, reasons, sentences
from bearcat.settings import PRIOR, from_plain, to_plain

STATUS = {OK: 0, ALARM: 1, CHECK: 3}  # exit status of a command, by the worst recording; 2 is bad input
COLUMNS = (
    "recording", "machine", "point", "decision", "reasons", "state", "class", "nearest", "confidence", "severity",
    "agreement", "windows", "unfamiliar", "familiar", "line", "physics", "physics_confidence", "general",
    "general_confidence", "network", "network_confidence", "baseline_change", "fitted_rpm", "speed", "bearing", "rms",
    "velocity", "zone", "findings", "notes",
)  # fmt: skip
UNDECIDED = (UNREADABLE, NOT_DIAGNOSED)  # of files that cannot be read, and that lack or contradict something
CLAIMLESS = (CANNOT_TELL, UNKNOWN_STATE, SEVERE, *UNDECIDED, NO_SIGNAL)  # states that claim nothing of the bearing


@dataclass(frozen=True)
class AlarmRule:
    """What counts as an alarm: these classes of a model, all but the healthy ones where none is named; and the share of
    recordings that are of a faulty bearing.
    """

    named: tuple[str, ...] = ()
    prior: float = PRIOR

    def includes(self, label: str) -> bool:
        return label in self.named if self.named else label.lower() not in HEALTHY_NAMES

    def checked(self, classes: Sequence[str]) -> AlarmRule:
        """The rule itself; InputError if a model of these classes lacks one that is named."""
        for name in self.named:
            if name not in classes:
                raise InputError(f"--alarm: the model has no class '{name}'{suggest(name, classes)}")
        return self


@dataclass(frozen=True, eq=False)
class Measured:
    """What a trend is made of: levels by name (quality.py), and envelope spectra, of recordings too short to be read
    alone too.
    """

    levels: Mapping[str, float]
    spectra: Spectra | None  # None: the rate is not known; turns are 0 where the speed is not
    rate: float | None
    orders: Mapping[str, float] | None
    turns: float | None  # of the shaft


@dataclass(frozen=True)
class EvidenceDrawing:
    """The envelope spectrum of a recording."""

    levels: tuple[float, ...]  # dB over its background, from order 0 to `last`
    last: float


@dataclass(frozen=True, eq=False)
class Observation:
    """What is known of one recording before it is decided (bearcat.diagnosis.judging)."""

    recording: str
    witnesses: Witnesses = field(default_factory=Witnesses)
    machine: str | None = None  # recordings of one point of a machine are compared with each other
    point: str | None = None
    observed: tuple[Finding, ...] = ()  # while it was read and measured
    rule: AlarmRule = field(default_factory=AlarmRule)  # what counts as an alarm
    rms: float | None = None  # in units of the signal
    speed: SpeedEvidence | None = None  # as measured, or as stated and checked
    family: LineFamily | None = None  # of a bearing that nobody named
    vibration: VibrationSeverity | None = None  # velocity and zone of ISO 20816-3, or what is missing for it
    drawing: EvidenceDrawing | None = None  # what a picture of it shows
    bearing: str | None = None  # whose lines were read
    # A manifest says which machine it is, or it lies with others that are called by their times, as those of one point
    # are; else `machine` is a folder of files that may be of several machines.
    machine_stated: bool = False
    no_signal: Finding | None = None  # why neither lines nor a model count
    problem: InputError | None = None  # why the file cannot be used
    # What no record keeps: why no fault lines could be read, the channels of the point, and what a trend is made of.
    no_lines: InputError | None = None
    channels: tuple[str, ...] = ()
    measured: Measured | None = None

    @property
    def physics(self) -> PhysicsEvidence | None:
        return self.witnesses.physics

    @property
    def network(self) -> NetworkEvidence | None:
        return self.witnesses.network

    @property
    def masked(self) -> bool:
        """Whether a louder neighbour may hide a fault."""
        return any(finding.kind == "cross-talk" for finding in self.observed)

    @property
    def nearest(self) -> str | None:
        """The model's likeliest class."""
        return None if self.witnesses.network is None else self.witnesses.network.nearest

    @property
    def where(self) -> tuple[str | None, str | None]:
        """Machine and point: recordings that may be compared with each other."""
        return self.machine, self.point


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnosis(Observation):
    """The diagnosis of a recording. `label` is the model's class, or UNKNOWN_STATE; `state` what it means.

    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> diagnosis = bearcat.diagnose(noise, rate=12_000, rpm=1480, bearing="6205")[0]
    >>> diagnosis.state, diagnosis.decision.action
    ('healthy', 'ok')
    """

    decision: Decision
    # healthy, inner race, outer race, ball, fault of unclear type, or one of CLAIMLESS; else the model's own class
    state: str
    confidence: float = 0.0  # that the state is right
    probabilities: Mapping[str, float] = field(default_factory=dict)  # of the states, by all witnesses
    label: str | None = None  # None without a model

    def tempered(self, factor: float) -> Diagnosis:
        """The same with the windows' temperature multiplied by a factor; it is to be decided again."""
        network = self.witnesses.network
        if factor == 1 or network is None:
            return self
        shares = softmax(np.log(np.maximum(list(network.probabilities.values()), np.finfo(np.float64).tiny)) / factor)
        tempered = replace(network, probabilities=dict(zip(network.probabilities, shares.tolist(), strict=True)))
        return replace(self, witnesses=replace(self.witnesses, network=tempered))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that was noticed; the decision is the highest severity."""
        return self.decision.findings

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know, and what changes no decision."""
        worst = highest(self.findings)
        return sentences(f for f in self.findings if f.severity == "remark" or f.severity not in ("ok", worst))

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.decision.reasons

    @property
    def sentence(self) -> str:
        """Why it was decided so."""
        return capitalised("; ".join(self.reasons) or self.line or "")

    @property
    def rpm(self) -> float | None:
        """The speed at which fault lines were read; None where nobody knows it."""
        return self.physics.rpm if self.physics is not None else None if self.speed is None else self.speed.rpm

    @property
    def line(self) -> str | None:
        """The strongest fault line, in words; None where speed or bearing is not known."""
        return None if self.physics is None else self.physics.line(self.state)

    @property
    def fault_line(self) -> Mapping[str, Any] | None:
        """The strongest line of the fault that is named, as its finding has it; None where there is none."""
        return next((finding.values for finding in self.findings if finding.kind == "fault line"), None)

    @property
    def severity(self) -> str | None:
        """How clear a fault's lines are, in words; None where none could be read."""
        return None if self.fault_line is None else str(self.fault_line["clarity"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what JSON, records and data frames have."""
        network, physics, witnesses = self.witnesses.network, self.physics, self.witnesses
        plain: dict[str, Any] = to_plain({
            "recording": self.recording, "machine": self.machine, "point": self.point, "decision": self.decision.action,
            "reasons": self.reasons, "findings": self.findings, "state": self.state, "class": self.label,
            "nearest": self.nearest, "confidence": self.confidence, "severity": self.severity,
            "agreement": network and network.agreement, "windows": network and network.windows,
            "unfamiliar": network and network.unfamiliar, "familiar": network and network.familiar, "line": self.line,
            "probabilities": self.probabilities, "physics": physics and physics.to_dict(),
            "general": witnesses.general, "network": network, "baseline": witnesses.baseline,
            "without": witnesses.without, "masked": self.masked, "rms": self.rms, "speed": self.speed,
            "notes": self.notes, "family": self.family, "vibration": self.vibration, "drawing": self.drawing,
            "bearing": self.bearing, "machine_stated": self.machine_stated,
        })  # fmt: skip
        return plain

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Diagnosis:
        """Back from `to_dict`; KeyError, TypeError or ValueError where it cannot be one."""
        witnesses = {name: values[name] for name in ("physics", "general", "network", "baseline", "without")}
        findings = from_plain(tuple[Finding, ...], values["findings"], "findings")
        fields = {
            "decision": Decision(values["decision"], reasons=reasons(findings), findings=findings),
            "witnesses": witnesses, "label": values["class"],
            "drawing": None if "waveform" in (values["drawing"] or ()) else values["drawing"],  # of earlier versions
            "observed": tuple(finding for finding in findings if finding.kind not in DERIVED),
            "no_signal": findings[0] if values["state"] == NO_SIGNAL else None,
        }  # fmt: skip
        diagnosis: Diagnosis = from_plain(Diagnosis, {**values, **fields})
        network = diagnosis.network
        if network is not None and not network.probabilities:
            raise ValueError("the network's probabilities are missing")
        if diagnosis.state in UNDECIDED:
            problem = InputError(findings[0].values["problem"], readable=diagnosis.state == NOT_DIAGNOSED)
            diagnosis = replace(diagnosis, problem=problem)
        return diagnosis

    def row(self) -> dict[str, Any]:
        """The COLUMNS, a plain value each: a row of a csv file or a data frame."""
        physics, general, network = self.physics, self.witnesses.general, self.witnesses.network
        baseline = self.witnesses.baseline
        return self.to_dict() | {
            "reasons": "; ".join(self.reasons), "findings": to_json(to_plain(self.findings)),
            "notes": "; ".join(self.notes),
            "physics": physics and physics.state, "physics_confidence": physics and physics.confidence,
            "general": general and general.nearest, "general_confidence": general and general.confidence,
            "network": network and network.nearest, "network_confidence": network and network.confidence,
            "baseline_change": baseline and max(baseline.change.values()),
            "fitted_rpm": physics and physics.fitted_rpm, "speed": self.rpm,
            "velocity": self.vibration and self.vibration.velocity, "zone": self.vibration and self.vibration.zone,
        }  # fmt: skip

    def cells(self) -> dict[str, str]:
        """What a table for people shows, by its heading."""
        network, vibration = self.witnesses.network, self.vibration
        nearest = f" (nearest: {self.nearest})" if self.state == UNKNOWN_STATE and self.nearest else ""
        zone = "" if vibration is None or vibration.zone is None else f"{vibration.velocity:.2f} mm/s, {vibration.zone}"
        return {
            "recording": self.recording, "machine": (self.machine or "") if self.machine_stated else "",
            "point": (self.point or "") if self.machine_stated else "", "decision": self.decision.action,
            "diagnosis": f"{self.label or self.state}{nearest}",
            "confidence": "" if self.state in CLAIMLESS or not self.confidence else percent(self.confidence),
            "fault line": self.line or "", "vibration": zone, "reason": "; ".join(self.decision.reasons),
            "agreement": "" if network is None else percent(network.agreement),
            "unfamiliar": "" if network is None else percent(network.unfamiliar),
        }  # fmt: skip


class Diagnoses(Sequence[Diagnosis]):
    """Diagnoses of several recordings.

    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> found = bearcat.diagnose(noise, rate=12_000, rpm=1480, bearing="6205")
    >>> found.summary, found.exit_status
    ('1 recording: 1 ok.', 0)
    """

    def __init__(self, diagnoses: Iterable[Diagnosis]) -> None:
        self._diagnoses = tuple(diagnoses)

    def __getitem__(self, index: Any) -> Any:
        return Diagnoses(self._diagnoses[index]) if isinstance(index, slice) else self._diagnoses[index]

    def __len__(self) -> int:
        return len(self._diagnoses)

    def usable(self) -> Diagnoses:
        """These; InputError where there is but one, and it cannot be used."""
        if len(self) == 1 and self[0].problem is not None:
            raise self[0].problem
        return self

    @property
    def counts(self) -> dict[str, int]:
        """How many recordings have each decision, all of ACTIONS."""
        counted = Counter(diagnosis.decision.action for diagnosis in self)
        return {action: counted[action] for action in ACTIONS}

    @property
    def outcomes(self) -> dict[str, int]:
        """The same without zeros, the worst first; of those to be checked, undecided ones apart."""
        counted = Counter(row.state if row.state in UNDECIDED else row.decision.action for row in self)
        return {outcome: counted[outcome] for outcome in (ALARM, CHECK, *UNDECIDED, OK) if counted[outcome]}

    @property
    def summary(self) -> str:
        """The same in one line."""
        parts = [f"{number} {outcome}" for outcome, number in self.outcomes.items()]
        return f"{len(self)} recording{'s' * (len(self) != 1)}: {', '.join(parts) or 'none'}."

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with each file that could not be used, by its name."""
        return {row.recording: "; ".join(row.reasons) for row in self if row.state in UNDECIDED}

    @property
    def exit_status(self) -> int:
        """0 all are ok, 1 at least one alarm, 3 no alarm but at least one to check."""
        return next((STATUS[action] for action in (ALARM, CHECK) if self.counts[action]), 0)

    @property
    def worst_first(self) -> Diagnoses:
        """Alarms, then those to check, then the others; the highest lines of a fault first, then the surest."""

        def order(row: Diagnosis) -> tuple[int, float, float]:
            alarm, line = row.decision.action == ALARM, row.fault_line or {"level": 0.0}
            return -ACTIONS.index(row.decision.action), -line["level"], -row.confidence if alarm else row.confidence

        return Diagnoses(sorted(self, key=order))

    def table(self) -> list[dict[str, str]]:
        """The rows of a table for people, without columns that are empty in all of them."""
        rows = [diagnosis.cells() for diagnosis in self]
        filled = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
        return [{name: row[name] for name in filled} for row in rows]

    def __repr__(self) -> str:
        rows = self.table()
        rows = [{name: name for name in row} for row in rows[:1]] + rows
        width = {name: max(len(row[name]) for row in rows) for name in (rows[0] if rows else ())}
        lines = ["  ".join(f"{row[name]:<{width[name]}}" for name in width).rstrip() for row in rows]
        return "\n".join([self.summary, *lines])

    def to_frame(self) -> Any:
        """A pandas data frame, a row for each recording."""
        return library("pandas", "bench").DataFrame([diagnosis.row() for diagnosis in self], columns=list(COLUMNS))
