"""Physics as a witness: a recording, its speed and its bearing → healthy, inner race, outer race, ball or cannot tell.

What the lines of each fault say alone is a weighted sum of their evidence, against zero for "healthy"; all faults share
the coefficients, which `benchmarks/fusion.py` makes. Nothing is trained here.

A line that was always there is no fault: bearings swell, and machines have lines of their own. So levels are compared
with those of recordings that are known to be healthy, or, where most recordings of the same machine at the same speed
are quiet, with the median of those.

Impacts of one bearing reach the sensors of its neighbours on the same shaft. The sensor where a line is loudest, in the
signals' own units, is the one next to the bearing that strikes; on the others the line is cross-talk. Levels above
background do not tell this, as they are bounded.

>>> orders = BEARINGS["6205"].orders()
>>> spectra = envelope_spectra(signal, 51_200, 900, last_order(orders))
>>> physics_evidence(spectra, levels_over_background(spectra), 51_200, 900, orders).line("outer race")
'BPFO 53.8 Hz, 24 dB'
>>> Baseline.of(physics_of_healthy_recordings, KNOWN).compare(physics).change["outer race"]       # in dB
11.4
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.diagnosis.decision import CANNOT_TELL, HEALTHY
from bearcat.diagnosis.lines import (
    DECIBELS,
    FAULTS,
    HIGHEST,
    MULTIPLES,
    SEARCH,
    SHOWN,
    SLIP,
    Doubles,
    FaultLines,
    Spectra,
    find_lines,
    last_order,
)
from bearcat.errors import InputError
from bearcat.findings import IMPULSIVE, LOUDER, SHOWN_LINE, SURE, Finding, line_words
from bearcat.settings import PRIOR, to_plain

# What lines say of each fault: by how much their mean level exceeds what orders of no fault reach, the least of them,
# sidebands, and how impulsive the recording is.
FEATURES = ("excess", "least", "sidebands", "impulsive")
ONE = "one"  # of every fault: what the lines of healthy bearings say
EVEN = -math.log(3)  # of each of three faults: the coefficients are made where a fault is as likely as health
LINELESS = 0.2  # share of faults that show no line; test benches have from none to a third (docs/trust.md)
STATES = (HEALTHY, *FAULTS)
CLARITIES = ("faint", "clear", "strong")  # of a fault's strongest line
COEFFICIENTS = Path(__file__).parent / "fusion.json"
RATES, SPEEDS = (12_000.0, 64_000.0), (300.0, 3600.0)  # Hz and rpm, of the recordings the coefficients were made from
KNOWN, QUIET = "healthy recordings", "quiet majority"
FEWEST = 3  # other quiet recordings that make a baseline
MAJORITY = 0.6  # of the other recordings that must be quiet
SAME_SPEED = 0.03  # by which speeds of recordings that are compared may differ
CLEAR, VERY_CLEAR = 12.0, 20.0  # dB of the strongest line, from which on it is clear, and strong
USUAL_LINE = 12.0  # dB of a line that is worth saying of healthy recordings
MOST_CHANGE = 17.4  # dB of change that count: one huge line is not more than a clear one
BOUND = 2.0  # of the change of the logarithm of the kurtosis
# How people name the states of a bearing, in words and in lower case; shorter codes may mean anything.
_NAMES = {
    HEALTHY: r"healthy|normal|ok|good|baseline|undamaged",
    "inner race": r"inner.*|ir\d*|bpfi|ki\d+",
    "outer race": r"outer.*|or\d*|bpfo|ka\d+",
    "ball": r"ball.*|roller.*|b\d{3}|bsf",
}


@lru_cache(maxsize=4096)
def state_of(label: str) -> str | None:
    """The state that a class's name stands for; None where it says nothing of healthy, inner race, outer race, ball."""
    words = re.split(r"[\s_@+&/,.-]+", label.strip().lower())
    states = {state for word in words for state, names in _NAMES.items() if re.fullmatch(names, word)}
    return states.pop() if len(states) == 1 else None


@dataclass(frozen=True, eq=False)
class PhysicsEvidence:
    """What physics reads in one recording, and what its lines say alone. `state` is one of STATES or CANNOT_TELL."""

    findings: tuple[Finding, ...]  # what is unlike all the coefficients were made from, or wrong with the recording
    rate: float
    rpm: float  # as stated
    fitted_rpm: float  # at which the lines of the likeliest fault stand out best
    faults: Mapping[str, FaultLines]
    reference_level: float  # dB that orders of no fault reach
    kurtosis: float
    windows: int

    def features(self, state: str) -> list[float]:
        """What its lines say for a fault against healthy, in the order of FEATURES."""
        impulsive = math.log(max(self.kurtosis, 2.0) / 2.0)
        if (lines := self.faults.get(state)) is None:  # a fault that makes no line of this bearing
            return [0.0, 0.0, 0.0, impulsive]
        levels = [min(max(line / DECIBELS, 0.0), HIGHEST) for line in lines.lines]
        excess = sum(levels) / len(levels) - self.reference_level / DECIBELS
        return [excess, min(levels), (lines.sidebands or 0.0) / DECIBELS, impulsive]

    @cached_property
    def probabilities(self) -> Mapping[str, float]:
        """The probability of each state, by its lines alone."""
        weights = np.array([shipped()["physics"][name] for name in (*FEATURES, ONE)])
        rows = np.array([[*self.features(fault), 1.0] for fault in FAULTS])
        scores = score(rows, weights, len(weights)) + math.log(PRIOR / (1 - PRIOR))
        shares = np.exp(np.concatenate([[0.0], scores]) - np.logaddexp.reduce([0.0, *scores]))
        return dict(zip(STATES, shares.tolist(), strict=True))

    @property
    def confidence(self) -> float:
        return max(self.probabilities.values())

    @property
    def state(self) -> str:
        """The likeliest state; CANNOT_TELL below the threshold, or where something strikes at no order."""
        likeliest = max(STATES, key=lambda state: self.probabilities[state])
        unsure = self.confidence < SURE or (likeliest == HEALTHY and self.strikes)
        return CANNOT_TELL if unsure else likeliest

    @property
    def likeliest_fault(self) -> str:
        return max(FAULTS, key=lambda fault: self.probabilities[fault])

    @property
    def strikes(self) -> bool:
        """Whether something strikes, at a line of this bearing or at none."""
        return self.kurtosis > IMPULSIVE

    def without_lines(self, fault: str) -> PhysicsEvidence:
        """The same as if this fault's lines were not there: they belong to a neighbour."""
        silent = replace(self.faults[fault], level=0.0, lines=(0.0,) * len(MULTIPLES), sidebands=0.0)
        return replace(self, fitted_rpm=self.rpm, faults={**self.faults, fault: silent})

    def clarity(self, fault: str) -> str:
        """How clear the strongest line of a fault is."""
        strongest = round(max(self.faults[fault].lines))  # as it is printed
        return CLARITIES[(strongest >= CLEAR) + (strongest >= VERY_CLEAR)]

    def strongest_line(self, state: str) -> dict[str, Any]:
        """The strongest line of a fault; of the strongest fault where all is healthy, else of the likeliest."""
        strongest = max(self.faults, key=lambda fault: self.faults[fault].level)
        fault = state if state in FAULTS else strongest if state == HEALTHY else self.likeliest_fault
        (name, times, _), lines = FAULTS[fault], self.faults[fault]
        level, number = max(zip(lines.lines, MULTIPLES, strict=True))
        return {"line": name, "multiple": number * times, "hertz": number * lines.hertz, "level": level}

    def line(self, state: str) -> str:
        """The same in words."""
        return f"{'strongest: ' * (state == HEALTHY)}{line_words(self.strongest_line(state))}"

    @property
    def at_edge(self) -> bool:
        """Whether the lines fit best at the edge of the search, as they do where the speed is wrong."""
        return abs(self.fitted_rpm / self.rpm - 1) > SEARCH - 1e-9

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps."""
        plain: dict[str, Any] = to_plain(self)
        return {"state": self.state, "confidence": self.confidence, "probabilities": dict(self.probabilities)} | plain


def required(rate: float | None, rpm: float | None, bearing: Bearing | None) -> tuple[float, float, Bearing]:
    """What reading lines needs; InputError where it is not known, or where no line can be read."""
    if rate is None or rpm is None or bearing is None:
        name = "rate" if rate is None else "rpm" if rpm is None else "bearing"
        what = {"rate": "sampling rate", "rpm": "shaft's speed"}.get(name, name)
        raise InputError(f"its {what} is not known; give it", name)
    fastest = 60 * rate / 2 / SHOWN / last_order(bearing.orders())
    if not 0 < rpm <= fastest:
        read = f"at {rate:g} Hz the lines of this bearing can be read up to {fastest:.0f} rpm, not at {rpm:g}"
        raise InputError(f"{read}; check the speed, or record at a higher rate", "rpm")
    return rate, rpm, bearing


def physics_evidence(
    spectra: Spectra, levels: Doubles, rate: float, rpm: float, orders: Mapping[str, float]
) -> PhysicsEvidence:
    """What physics reads in the envelope spectra of one recording, or of several together, and in their levels over
    background.
    """
    faults, usual = find_lines(levels, spectra, orders, rate, rpm)
    findings = tuple(
        Finding("value outside range", "check", {"value": value, "unit": unit, "low": low, "high": high})
        for value, unit, (low, high) in ((rate, "Hz", RATES), (rpm, "rpm", SPEEDS))
        if not low <= value <= high
    )
    kurtosis = float(spectra.kurtosis.max())
    evidence = PhysicsEvidence(findings, rate, rpm, rpm, faults, usual, kurtosis, spectra.windows)
    evidence = replace(evidence, fitted_rpm=faults[evidence.likeliest_fault].scale * rpm)
    if evidence.state in FAULTS and evidence.at_edge:
        edge = Finding("speed at edge", "check", {"rpm": evidence.fitted_rpm})
        evidence = replace(evidence, findings=(*findings, edge))
    return evidence


def score(features: Doubles, weights: Doubles, lines: int) -> Doubles:
    """Features (…, feature), of which the first `lines` are of lines, and their weights → scores (…,)."""
    others = features[..., lines:] @ weights[lines:] + EVEN
    if not lines:
        return np.asarray(others)
    by_lines = features[..., :lines] @ weights[:lines] + math.log(1 - LINELESS)
    return np.asarray(np.logaddexp(by_lines, math.log(LINELESS)) + others)


@cache
def shipped(without: str | None = None) -> Mapping[str, Mapping[str, float]]:
    """The coefficients by set of witnesses (`physics+general`); `without` names a dataset whose bench is left out."""
    content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    coefficients: Mapping[str, Mapping[str, float]] = content["left_out"].get(str(without), content["coefficients"])
    return coefficients


@dataclass(frozen=True)
class BaselineEvidence:
    """How a recording differs from what is usual: dB by fault, and the logarithm of the kurtosis."""

    change: Mapping[str, float]  # of the mean level of a fault's lines
    usual: Mapping[str, float]  # dB, the level that is usual
    impulsive: float
    by: str  # KNOWN or QUIET


@dataclass(frozen=True)
class Baseline:
    """Medians over recordings."""

    levels: Mapping[str, float]  # dB by fault
    kurtosis: float
    by: str

    @staticmethod
    def of(recordings: Sequence[PhysicsEvidence], by: str) -> Baseline:
        levels = {fault: float(np.median([row.faults[fault].level for row in recordings])) for fault in FAULTS}
        return Baseline(levels, float(np.median([row.kurtosis for row in recordings])), by)

    def compare(self, physics: PhysicsEvidence) -> BaselineEvidence:
        change = {
            fault: min(max(physics.faults[fault].level - self.levels[fault], -MOST_CHANGE), MOST_CHANGE)
            for fault in FAULTS
        }
        impulsive = math.log(max(physics.kurtosis, 2.0) / max(self.kurtosis, 2.0))
        return BaselineEvidence(change, self.levels, min(max(impulsive, -BOUND), BOUND), self.by)


def usual_lines(levels: Mapping[str, float]) -> dict[str, float]:
    """Of the levels that are usual, dB by fault, those of lines that are worth saying."""
    return {fault: level for fault, level in levels.items() if level >= USUAL_LINE}


def known_baseline(healthy: Sequence[PhysicsEvidence], physics: PhysicsEvidence) -> BaselineEvidence | None:
    """A recording against known good ones at its own speed; None where there are none."""
    same = [other for other in healthy if abs(other.rpm / physics.rpm - 1) <= SAME_SPEED]
    return Baseline.of(same, KNOWN).compare(physics) if same else None


def quiet_baselines(
    physics: Sequence[PhysicsEvidence | None], quiet: Sequence[bool], points: Sequence[Hashable]
) -> list[BaselineEvidence | None]:
    """Each recording against the quiet ones among the others of the same point at the same speed; None where they are
    few or no majority.
    """
    baselines: list[BaselineEvidence | None] = [None] * len(physics)
    members = defaultdict[Hashable, dict[int, PhysicsEvidence]](dict)
    for number, (recording, point) in enumerate(zip(physics, points, strict=True)):
        if recording is not None:
            members[point][number] = recording
    for same in members.values():
        for number, recording in same.items():
            near = [other for other, row in same.items() if abs(row.rpm / recording.rpm - 1) <= SAME_SPEED]
            near.remove(number)
            usual = [same[other] for other in near if quiet[other]]
            if len(usual) >= max(FEWEST, MAJORITY * len(near)):
                baselines[number] = Baseline.of(usual, QUIET).compare(recording)
    return baselines


@dataclass(frozen=True)
class Loudness:
    """How loud one fault's lines are."""

    hertz: float
    excess: float  # dB above what reference lines reach
    amplitude: float  # in units of the signal


def cross_talk(channels: Sequence[Mapping[str, Loudness]]) -> list[dict[str, tuple[float, int]]]:
    """The faults of each channel of one measurement whose lines a neighbour owns: it shows a line at the same frequency
    loudest, and louder by LOUDER. By how many dB, and the place of that channel.
    """
    owned = []
    for number, faults in enumerate(channels):
        louder = dict[str, tuple[float, int]]()
        for (fault, line), (owner, others) in product(faults.items(), enumerate(channels)):
            for other in others.values() if owner != number else ():
                if abs(other.hertz / line.hertz - 1) <= SLIP and other.excess >= SHOWN_LINE:
                    decibels = 20 * math.log10(max(other.amplitude / max(line.amplitude, 1e-30), 1e-30))
                    if decibels >= LOUDER:
                        louder[fault] = max(louder.get(fault, (0.0, 0)), (decibels, owner))
        owned.append(louder)
    return owned


def loudness(physics: PhysicsEvidence | None) -> dict[str, Loudness]:
    """The loudness of each fault's lines; nothing where physics could not look."""
    if physics is None:
        return {}
    return {
        fault: Loudness(lines.hertz, lines.level - physics.reference_level, lines.amplitude)
        for fault, lines in physics.faults.items()
    }
