"""What was noticed of a recording or of a model, as data: a kind, a severity, and the numbers behind it.

The decision is the highest severity; `bearcat.sentences` says each kind in words, for people alone.

>>> findings = [Finding("clipped", "check", {"share": 0.02}), Finding("no baseline", "remark")]
>>> highest(findings), [finding.kind for finding in most_severe(findings)]
('check', ['clipped'])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

# Of a model `ok` and `remark` mean "use", `check` the same as of a recording, `alarm` "do not use".
Severity = Literal["ok", "remark", "check", "alarm"]
SEVERITIES: tuple[str, ...] = get_args(Severity)

NoSignal = Literal["empty", "constant", "few values", "sensor noise", "standing still"]
# What is derived from the witnesses whenever a recording is decided.
Derived = Literal[
    "fault line", "model class", "lines of unknown bearing", "no lines of unknown bearing", "zone", "no zone",
    "unfamiliar", "physics contradicts", "model contradicts", "refused model", "impulsive without line",
    "not enough evidence", "low confidence", "windows disagree",
    "value outside range", "lines by clipping", "speed at edge", "estimated geometry",
]  # fmt: skip
# What is noticed once, while a recording is read and measured.
Observed = Literal[
    "unreadable", "not diagnosed", "dead axis", "axis apart", "clipped", "dropouts", "no vibration", "band limited",
    "mains hum", "cross-talk", "speed not found", "varying speed", "wrong speed", "speed channel differs",
    "impossible speed", "other rate", "other speed", "own speed counts", "statements differ", "answer changed",
    "no baseline", "no lines read", "measured speed", "usual speed", "model without rate", "rate assumed", "resampled",
    "missing frequencies", "no picture", "lines of baseline",
]  # fmt: skip
OfModel = Literal[
    "training broke down", "nothing learnt", "one class", "outvoted", "no confidence", "low accuracy", "labelled",
    "label recordings", "accuracy unknown", "tested on", "physics differs", "no check models", "not calibrated",
    "no fault among recordings",
]  # fmt: skip
Kind = Literal[NoSignal, Derived, Observed, OfModel]
DERIVED = frozenset(get_args(Derived))
MOST_REASONS = 2  # of a recording


@dataclass(frozen=True)
class Finding:
    """One thing that was noticed. `values` are plain: numbers, names, and lists of them."""

    kind: Kind
    severity: Severity
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return SEVERITIES.index(self.severity)

    def but(self, severity: Severity) -> Finding:
        """The same with another severity."""
        return replace(self, severity=severity)


def highest(findings: Iterable[Finding]) -> str:
    """The highest severity; `ok` where nothing was noticed."""
    return SEVERITIES[max((finding.rank for finding in findings), default=0)]


def unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Without repetitions of the same kind and values, the first of which stays."""
    kept: list[Finding] = []
    for finding in findings:
        if all((finding.kind, finding.values) != (other.kind, other.values) for other in kept):
            kept.append(finding)
    return tuple(kept)


def most_severe(findings: Iterable[Finding]) -> list[Finding]:
    """The reasons of a decision: at most MOST_REASONS that ask for a person, the most severe first."""
    asking = [finding for finding in findings if finding.severity in ("check", "alarm")]
    return sorted(asking, key=lambda finding: -finding.rank)[:MOST_REASONS]
