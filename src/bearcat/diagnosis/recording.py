"""The one diagnosis of a recording, by a model, by physics or by both. Every table, page and file is made of it.

>>> found = Diagnosis.by_model("monday.wav", pooled, classes, "use", physics=physics)
>>> found.decision.action, found.state, found.confidence
('alarm', 'outer race', 0.98)
>>> Diagnoses([found]).summary, Diagnoses([found]).exit_status
('1 recording: 1 alarm.', 1)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bearcat.data.recording import HEALTHY_NAMES
from bearcat.diagnosis.physics import FAULTS, PhysicsEvidence, state_of
from bearcat.errors import InputError, suggest
from bearcat.settings import from_plain
from bearcat.trust.decision import (
    ACTIONS,
    ALARM,
    CANNOT_TELL,
    CHECK,
    HEALTHY,
    OK,
    UNKNOWN_STATE,
    UNREADABLE,
    Decision,
    PhysicsCheck,
    RecordingEvidence,
    decide,
)
from bearcat.trust.pooling import Pooled

STATUS = {OK: 0, ALARM: 1, CHECK: 3}  # exit status of a command, by the worst recording; 2 is bad input
COLUMNS = (
    "recording", "decision", "reasons", "state", "class", "nearest", "confidence", "agreement", "windows", "unfamiliar",
    "familiar", "line", "physics", "physics_confidence", "fitted_rpm", "notes",
)  # fmt: skip


@dataclass(frozen=True)
class AlarmRule:
    """What counts as an alarm of a model: these classes, from this confidence on, and unfamiliar recordings or not."""

    classes: frozenset[str]
    min_confidence: float = 0.0
    unfamiliar: bool = True

    @staticmethod
    def of(classes: Sequence[str], named: Collection[str] | None = None, **rest: Any) -> AlarmRule:
        """The classes named, else all but the healthy ones."""
        for name in named or ():
            if name not in classes:
                raise InputError(f"--alarm: the model has no class '{name}'{suggest(name, classes)}")
        faulty = named or [name for name in classes if name.lower() not in HEALTHY_NAMES]
        return AlarmRule(frozenset(faulty), **rest)


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Of one recording. `label` is the model's class, or UNKNOWN_STATE; `state` what it means for the bearing."""

    recording: str
    decision: Decision
    state: str  # healthy, inner race, outer race, ball, unknown, cannot tell; else the model's own class
    confidence: float
    probabilities: Mapping[str, float]  # of the model's classes; of the states, where physics alone was asked
    label: str | None = None  # None without a model
    nearest: str | None = None  # the class it is most like
    agreement: float | None = None  # share of windows with that class
    windows: int | None = None
    unfamiliar: float | None = None  # share of unfamiliar windows
    familiar: bool | None = None  # None: nobody can say
    physics: PhysicsEvidence | None = None
    notes: tuple[str, ...] = field(default=())

    @staticmethod
    def by_physics(recording: str, physics: PhysicsEvidence) -> Diagnosis:
        """From physics alone."""
        state, sure, familiar, notes = physics.state, physics.confidence, physics.familiar, physics.notes
        decision = decide(RecordingEvidence(state, sure, state in FAULTS, familiar=familiar, quality=notes))
        return Diagnosis(
            recording, decision, state, sure, physics.probabilities, familiar=familiar, physics=physics, notes=notes
        )

    @staticmethod
    def by_model(
        recording: str,
        pooled: Pooled,
        classes: Sequence[str],
        action: str,
        rule: AlarmRule | None = None,
        physics: PhysicsEvidence | None = None,
        notes: Sequence[str] = (),
        quality: Sequence[str] = (),
    ) -> Diagnosis:
        """By a model whose own decision is `action`, and by physics where that could look."""
        rule, nearest = rule or AlarmRule.of(classes), classes[pooled.index]
        label = UNKNOWN_STATE if pooled.familiar is False else nearest
        state = state_of(label) or label
        seen = None if physics is None or physics.state == CANNOT_TELL else physics.state
        evidence = RecordingEvidence(
            state, pooled.confidence, nearest in rule.classes, rule.min_confidence, pooled.agreement, pooled.familiar,
            rule.unfamiliar, action, seen, "" if physics is None else physics.line(physics.state), tuple(quality),
        )  # fmt: skip
        return Diagnosis(
            recording, decide(evidence), state,
            pooled.confidence, dict(zip(classes, pooled.probabilities.tolist(), strict=True)), label, nearest,
            pooled.agreement, pooled.windows, pooled.unfamiliar, pooled.familiar, physics, tuple(notes),
        )  # fmt: skip

    @staticmethod
    def unreadable(recording: str, problem: str) -> Diagnosis:
        """Of a file that cannot be used: a person must look at it."""
        reason = problem.removeprefix(f"{recording}: ")
        return Diagnosis(recording, Decision(CHECK, None, None, (reason,)), UNREADABLE, 0.0, {})

    @property
    def contradicted(self) -> bool:
        """Whether physics finds another state than the model."""
        return self.physics is not None and self.nearest is not None and self.physics.contradicts(self.nearest)

    @property
    def line(self) -> str | None:
        """The strongest fault line, in words; None where speed or bearing is not known."""
        return None if self.physics is None else self.physics.line(self.label or self.state)

    def tempered(self, factor: float) -> Diagnosis:
        """The same with the windows' temperature multiplied by a factor; the decision is left to the caller."""
        if factor == 1:
            return self
        likely = np.log(np.maximum(list(self.probabilities.values()), np.finfo(np.float64).tiny)) / factor
        shares = np.exp(likely - np.logaddexp.reduce(likely))
        found = dict(zip(self.probabilities, shares.tolist(), strict=True))
        return replace(self, probabilities=found, confidence=max(found.values()))

    def decided(self, action: str, rule: AlarmRule | None = None) -> Diagnosis:
        """The same by a model whose own decision is now `action`."""
        likely, classes = np.array(list(self.probabilities.values())), list(self.probabilities)
        pooled = Pooled(likely, self.agreement or 0.0, self.windows or 0, self.unfamiliar, self.familiar)
        return Diagnosis.by_model(self.recording, pooled, classes, action, rule, self.physics, self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what JSON, records and data frames have."""
        physics = None if self.physics is None else self.physics.to_dict()
        return {
            "recording": self.recording, "decision": self.decision.action, "reasons": list(self.decision.reasons),
            "state": self.state, "class": self.label, "nearest": self.nearest, "confidence": self.confidence,
            "agreement": self.agreement, "windows": self.windows, "unfamiliar": self.unfamiliar,
            "familiar": self.familiar, "line": self.line, "probabilities": dict(self.probabilities),
            "physics": physics, "notes": list(self.notes),
        }  # fmt: skip

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Diagnosis:
        """Back from `to_dict`; KeyError, TypeError or ValueError where it cannot be one."""
        return Diagnosis(
            str(values["recording"]),
            Decision(values["decision"], values["confidence"], None, tuple(values["reasons"])),
            values["state"], float(values["confidence"]), dict(values["probabilities"]), values["class"],
            values["nearest"], values["agreement"], values["windows"], values["unfamiliar"], values["familiar"],
            from_plain(PhysicsEvidence | None, values["physics"]), tuple(values["notes"]),
        )  # fmt: skip

    def row(self) -> dict[str, Any]:
        """The COLUMNS, a plain value each: a row of a csv file or a data frame."""
        physics = self.physics
        return self.to_dict() | {
            "reasons": "; ".join(self.decision.reasons), "notes": "; ".join(self.notes),
            "physics": physics and physics.state, "physics_confidence": physics and physics.confidence,
            "fitted_rpm": physics and physics.fitted_rpm,
        }  # fmt: skip

    def cells(self) -> dict[str, str]:
        """What a table for people shows, by its heading."""
        evidence = [self.physics.reason] if self.physics is not None and self.label is None else []
        nearest = f" (nearest: {self.nearest})" if self.state == UNKNOWN_STATE and self.nearest else ""
        return {
            "recording": self.recording, "decision": self.decision.action,
            "diagnosis": f"{self.label or self.state}{nearest}",
            "confidence": "" if self.state in (UNREADABLE, UNKNOWN_STATE) else percent(self.confidence),
            "fault line": "" if evidence else self.line or "",
            "reason": "; ".join([*self.decision.reasons, *evidence]),
            "agreement": percent(self.agreement), "unfamiliar": percent(self.unfamiliar),
        }  # fmt: skip


def percent(share: float | None) -> str:
    """A share as people read it; nothing where it is not known."""
    return "" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


class Diagnoses(Sequence[Diagnosis]):
    """Diagnoses of several recordings."""

    def __init__(self, found: Iterable[Diagnosis]) -> None:
        self._found = tuple(found)

    def __getitem__(self, index: Any) -> Any:
        return Diagnoses(self._found[index]) if isinstance(index, slice) else self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    @property
    def counts(self) -> dict[str, int]:
        """How many recordings have each decision, all of ACTIONS."""
        found = Counter(each.decision.action for each in self)
        return {action: found[action] for action in ACTIONS}

    @property
    def summary(self) -> str:
        """How many recordings are what, in one line."""
        parts = [f"{number} {action}" for action, number in reversed(self.counts.items()) if number]
        return f"{len(self)} recording{'s' * (len(self) != 1)}: {', '.join(parts) or 'none'}."

    @property
    def exit_status(self) -> int:
        """0 all are ok, 1 at least one alarm, 3 no alarm but at least one to check."""
        return next((STATUS[action] for action in (ALARM, CHECK) if self.counts[action]), 0)

    @property
    def worst_first(self) -> Diagnoses:
        """Alarms, then those to check, then the others; the surest fault first."""

        def order(each: Diagnosis) -> tuple[int, float]:
            alarm = each.decision.action == ALARM
            return -ACTIONS.index(each.decision.action), -each.confidence if alarm else each.confidence

        return Diagnoses(sorted(self, key=order))

    @property
    def physics_check(self) -> PhysicsCheck | None:
        """Where physics and the model differ; None where no recording could be compared."""
        compared = [
            each for each in self
            if each.physics is not None and each.physics.state != CANNOT_TELL and state_of(str(each.nearest))
        ]  # fmt: skip
        differing = [each for each in compared if each.contradicted]
        missed = tuple(each.recording for each in differing if each.physics and each.physics.state != HEALTHY)
        return PhysicsCheck(len(compared), len(differing), missed) if compared else None

    def table(self) -> list[dict[str, str]]:
        """The rows of a table for people, without columns that are empty in all of them."""
        rows = [each.cells() for each in self]
        kept = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
        return [{name: row[name] for name in kept} for row in rows]

    def __repr__(self) -> str:
        rows = self.table()
        rows = [{name: name for name in row} for row in rows[:1]] + rows
        width = {name: max(len(row[name]) for row in rows) for name in (rows[0] if rows else ())}
        lines = ["  ".join(f"{row[name]:<{width[name]}}" for name in width).rstrip() for row in rows]
        return "\n".join([self.summary, *lines])

    def to_frame(self) -> Any:
        """A pandas data frame, a row for each recording."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("a data frame needs pandas; pip install pandas, or use to_dict of each") from error
        return pandas.DataFrame([each.row() for each in self], columns=list(COLUMNS))
