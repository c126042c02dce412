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
    "not enough evidence", "windows disagree",
    "value outside range", "speed at edge", "estimated geometry",
    "lines of baseline",
]  # fmt: skip
# What is noticed once, while a recording is read and measured.
Observed = Literal[
    "unreadable", "not diagnosed", "dead axis", "axis apart", "clipped", "dropouts", "gaps", "no vibration",
    "band limited", "mains hum", "cross-talk", "speed not found", "varying speed", "wrong speed", "multiple of speed",
    "speed channel differs", "impossible speed", "other rate", "other speed", "own speed counts", "statements differ",
    "no baseline", "no lines read", "measured speed", "usual speed", "model without rate", "rate assumed", "resampled",
    "missing frequencies",
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
    different: list[Finding] = []
    for finding in findings:
        if all((finding.kind, finding.values) != (other.kind, other.values) for other in different):
            different.append(finding)
    return tuple(different)


def most_severe(findings: Iterable[Finding]) -> list[Finding]:
    """The reasons of a decision that asks for a person: at most MOST_REASONS of those that make it what it is."""
    findings = list(findings)
    worst = highest(findings)
    return [finding for finding in findings if finding.severity == worst and worst in ("check", "alarm")][:MOST_REASONS]


# The thresholds of all findings and decisions, with their sources. How lines, speeds and spectra are searched is no
# threshold of a finding, and stands where it is done.

# A model (docs/trust.md). Expected accuracy and its lower end to use it; below POOR it is not to be used.
GOOD, SAFE, POOR = 0.95, 0.75, 0.6
LEARNT = 0.2  # of the way from chance to certainty on the source, below which a model is called useless
FEWEST_WINDOWS = 20  # of the source: fewer, all right, are no sign that nothing was learnt
FEWEST_COMPARED = 2  # recordings that physics can diagnose, from which on it may outvote a model
ENOUGH = 3  # labelled recordings, all of them right, that confirm an estimate
SLACK = 0.02  # a window in fifty, by which check models may agree less with an adapted model

# A diagnosis (docs/trust.md, fitted with its coefficients by benchmarks/fusion.py).
SURE = 0.6  # probability of a fault from which on it is named, which is an alarm
CERTAIN = 0.9  # probability of any fault from which on it is an alarm whose type is unclear
PRIOR = 0.3  # share of recordings that are of a faulty bearing, where nobody says another
SAFE_FAULT = 0.15  # probability of a fault above which a recording is not called healthy: a missed fault costs more
UNITED = 0.7  # share of a recording's windows that must agree before it is called ok

# Lines, in dB (docs/diagnose.md; FAMILY on simulated and public recordings).
CLEAR, VERY_CLEAR = 12.0, 20.0  # of the strongest line, from which on it is clear, and strong
GROWN = 6.0  # above the baseline, from which on lines are said to grow
USUAL_LINE = 12.0  # a line of a baseline that is worth saying
FAMILY = 8.5  # lines of an unknown bearing above other orders, from which on they are an alarm
LOUDER = 3.0  # by which a neighbour must be louder to own a line: sensors and their mounting differ by less
SHOWN_LINE = 3.0  # above what reference lines reach, from which on a neighbour shows a line

# Impulsiveness: the kurtosis of an envelope. Noise has 2, healthy machines up to 2.9 (simulated) and 3.4 (HIT-SM).
IMPULSIVE = 4.0

# A recording (docs/diagnose.md).
CLIPPED, CLIPPED_MUCH = 1e-4, 0.01  # share of samples at the limits that asks for a check, and that is beyond use
STILL, STUCK = 64, 0.001  # samples in a row of one value; the share in such runs, and of gaps, to be checked
HUM = 0.99  # share of the power at multiples of the mains' frequency
EMPTY, EDGE = 1e-4, 0.7  # power density beside the octave below that is nothing; the share of the range usual for that
STEPS, REACH = 3.0, 24  # of the converter: root mean square and range of its own noise are below
# Root mean square of a machine that runs, by unit.
LEAST_RMS = {"g": 0.002, "m/s²": 0.02, "m/s^2": 0.02, "m/s2": 0.02, "mg": 2.0}
STOPPED, FEWEST_BESIDE = 30.0, 3  # dB below the median of so many other recordings of the point

# A speed (docs/diagnose.md).
OVERWHELMING = 30.0  # dB of a shaft line that overrules a stated speed
OTHER_SPEED = 0.03  # by which a speed channel may differ from what is stated or measured

# Velocities in mm/s at which zones B, C and D begin, by group of machines and mounting: ISO 20816-3:2022, as before in
# ISO 10816-3. Group 1: above 300 kW, or motors with a shaft height of 315 mm or more; group 2: from 15 kW on.
ZONES = {
    (1, "rigid"): (2.3, 4.5, 7.1), (1, "flexible"): (3.5, 7.1, 11.0),
    (2, "rigid"): (1.4, 2.8, 4.5), (2, "flexible"): (2.3, 4.5, 7.1),
}  # fmt: skip
