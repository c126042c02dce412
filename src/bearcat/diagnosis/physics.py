"""Physics as a witness: a recording, its speed and its bearing → healthy, inner race, outer race, ball or cannot tell.

Nothing is trained or adapted for it. The spectra are collected while blocks pass, so that a day needs no more memory
than a minute, and something else may use the same blocks. docs/diagnose.md says how it works and how far to trust it.

The score of a fault is a weighted sum of its own evidence, that of "healthy" is zero, and the probabilities are the
softmax of the scores. Inner race, outer race and ball share the four coefficients, so what is learnt of one fault on
one machine holds for the others. `benchmarks/diagnose.py` makes the coefficients.

>>> analysis = PhysicsAnalysis("monday.wav", rate=51_200, rpm=900, orders=BEARINGS["6205"].orders())
>>> for block in analysis.observe(stream.blocks): ...
>>> found = analysis.finish()
>>> found.state, found.line("outer race")
('outer race', 'BPFO 53.8 Hz, 24 dB')
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.recording import Floats
from bearcat.diagnosis.evidence import (
    DECIBELS,
    FAULTS,
    FEATURES,
    MULTIPLES,
    SEARCH,
    LineEvidence,
    find_evidence,
    last_order,
    levels_over_background,
)
from bearcat.diagnosis.spectra import Doubles, EnvelopeSpectra
from bearcat.errors import InputError
from bearcat.settings import to_plain
from bearcat.trust.decision import CANNOT_TELL, HEALTHY

STATES = (HEALTHY, *FAULTS)
COEFFICIENTS = Path(__file__).parent / "coefficients.json"
THRESHOLD = 0.6  # of confidence, below which the answer is that one cannot tell
IMPULSIVE = 4.0  # kurtosis of an envelope; noise has 2, healthy machines up to 2.9 (simulated) and 3.4 (HIT-SM)
SHOWN = 4  # times the highest line that half the rate must hold, so that there is something for it to modulate
CLIPPED, CLIPPED_MUCH = 1e-4, 0.01  # share of samples, worth a note and beyond use
# How people name the states of a bearing, in words and in lower case; shorter codes may mean anything.
_NAMES = {
    HEALTHY: r"healthy|normal|ok|good|baseline|undamaged",
    "inner race": r"inner.*|ir\d*|bpfi|ki\d+",
    "outer race": r"outer.*|or\d*|bpfo|ka\d+",
    "ball": r"ball.*|roller.*|b\d{3}|bsf",
}


def state_of(label: str) -> str | None:
    """The state that a class's name stands for; None where it says nothing of healthy, inner race, outer race, ball."""
    words = re.split(r"[\s_@+&/,.-]+", label.strip().lower())
    found = {state for word in words for state, names in _NAMES.items() if re.fullmatch(names, word)}
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True, eq=False)
class Classifier:
    """The coefficients (feature,) and between which values of what they were made."""

    coefficients: Doubles
    ranges: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    @cache
    def shipped() -> Classifier:
        """The one that comes with the package."""
        content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
        return Classifier(np.array([content["coefficients"][name] for name in FEATURES]), content["ranges"])

    def probabilities(self, evidence: LineEvidence) -> Doubles:
        """(state,) of STATES."""
        scores = evidence.features() @ self.coefficients
        exponentials = np.exp(scores - scores.max())
        return np.asarray(exponentials / exponentials.sum())

    def state(self, evidence: LineEvidence) -> str:
        """The likeliest state; CANNOT_TELL below the threshold, or where something strikes at no order."""
        found = self.probabilities(evidence)
        return CANNOT_TELL if found.max() < THRESHOLD or self.aimless(evidence) else STATES[int(found.argmax())]

    def aimless(self, evidence: LineEvidence) -> bool:
        """Whether no fault is likely, and yet something strikes."""
        return bool(self.probabilities(evidence).argmax() == 0 and evidence.kurtosis > IMPULSIVE)


@dataclass(frozen=True)
class FaultLines:
    """The lines of one fault in the envelope spectrum; levels in dB above the background."""

    hertz: float  # of the fault's order at the speed that fits
    level: float  # mean over the first multiples
    lines: tuple[float, ...]
    sidebands: float | None
    band: tuple[float, float]  # in Hz, that shows it best


@dataclass(frozen=True, eq=False)
class PhysicsEvidence:
    """What physics says of one recording. `state` is one of STATES or CANNOT_TELL."""

    state: str
    confidence: float
    probabilities: Mapping[str, float]
    reason: str  # the evidence in words
    notes: tuple[str, ...]  # what is unlike all the coefficients were made from, or wrong with the recording
    familiar: bool
    rate: float
    rpm: float  # as stated
    fitted_rpm: float  # at which the lines of the likeliest fault stand out best
    faults: Mapping[str, FaultLines]
    reference_level: float  # dB that orders of no fault reach
    kurtosis: float
    windows: int
    evidence: LineEvidence | None = None  # for drawing, with the levels (band, bin) over background, in natural
    levels: Doubles | None = None  # logarithms, and how many bins an order has; none of them is kept in a record
    turns: float = 0.0

    @property
    def likeliest_fault(self) -> str:
        return max(FAULTS, key=lambda fault: self.probabilities[fault])

    @property
    def band(self) -> tuple[float, float]:
        """The band in Hz that shows the likeliest fault best."""
        return self.faults[self.likeliest_fault].band

    def line(self, label: str) -> str:
        """The strongest line of the fault a class stands for; where it stands for none, of the strongest fault."""
        state = state_of(label)
        strongest = max(self.faults, key=lambda fault: self.faults[fault].level)
        fault = state if state in FAULTS else self.likeliest_fault if state is None else strongest
        (name, times, _), found = FAULTS[str(fault)], self.faults[str(fault)]
        level, number = max(zip(found.lines, MULTIPLES, strict=True))
        place = f"{name if number * times == 1 else f'{number * times} × {name}'} {number * found.hertz:.1f} Hz"
        return f"{'strongest: ' if state == HEALTHY else ''}{place}, {level:.0f} dB"

    def contradicts(self, label: str) -> bool:
        """Whether a model's class stands for another state than the one found here."""
        return self.state != CANNOT_TELL and state_of(label) not in (None, self.state)

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps: all but what a drawing needs."""
        kept = replace(self, evidence=None, levels=None)
        return {name: value for name, value in to_plain(kept).items() if name not in ("evidence", "levels", "turns")}


class PhysicsAnalysis:
    """Collects what physics needs of one recording. `orders` are those of bearing.KINEMATIC."""

    def __init__(
        self, recording: str, rate: float | None, rpm: float | None, orders: Mapping[str, float] | None,
        threads: int = 1,
    ) -> None:  # fmt: skip
        needed = {"rate": ("sampling rate", rate), "rpm": ("shaft's speed", rpm), "bearing": ("bearing", orders)}
        for name, (what, value) in needed.items():
            if value is None:
                raise InputError(f"{recording}: its {what} is not known, and faults show only with it; give it", name)
        assert rate is not None and rpm is not None and orders is not None  # noqa: S101, PT018
        fastest = 60 * rate / 2 / SHOWN / last_order(orders)
        if not 0 < rpm <= fastest:
            raise InputError(
                f"{recording}: at {rate:g} Hz the lines of this bearing can be read up to {fastest:.0f} rpm, not at"
                f" {rpm:g}; check the speed, or record at a higher rate", "rpm"
            )  # fmt: skip
        self.recording, self.rate, self.rpm, self.orders = recording, rate, rpm, orders
        with self._named():
            self.spectra = EnvelopeSpectra(rate, rpm, last_order(orders), threads)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Names the recording in an error."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self.recording}: {error}", error.field) from error

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged; the spectra are computed of what passes."""
        for block in blocks:
            self.spectra.add(block)
            yield block

    def finish(self) -> PhysicsEvidence:
        """What all blocks so far say."""
        classifier = Classifier.shipped()
        with self._named():
            spectra = self.spectra.average()
        clipped = self.spectra.clipped
        if clipped > CLIPPED_MUCH:
            raise InputError(
                f"{self.recording}: is clipped, {100 * clipped:.1f} % of its samples lie at the limits; record it with"
                " less gain"
            )
        evidence = find_evidence(spectra, self.orders)
        found = dict(zip(STATES, classifier.probabilities(evidence).tolist(), strict=True))
        best = evidence.faults[max(FAULTS, key=lambda fault: found[fault])]
        state = classifier.state(evidence)
        notes, speed = list(self._unlike(classifier, evidence)), best.scale * self.rpm
        familiar = not notes
        if clipped > CLIPPED:
            notes.append(f"is clipped ({100 * clipped:.2f} % of its samples lie at the limits), which makes lines")
        if state in FAULTS and abs(best.scale - 1) > SEARCH - 1e-9:
            notes.append(f"the lines fit best at the edge of the search, {speed:.0f} rpm; check the speed")
        lines = {
            fault: FaultLines(
                own.order * own.scale * self.rpm / 60, DECIBELS * own.level,
                tuple(DECIBELS * line for line in own.lines),
                DECIBELS * own.sidebands if FAULTS[fault][2] else None,
                (own.band[0] * self.rate / 2, own.band[1] * self.rate / 2),
            )
            for fault, own in evidence.faults.items()
        }  # fmt: skip
        reason = self._reason(state, found, lines, evidence, classifier.aimless(evidence))
        return PhysicsEvidence(
            state, max(found.values()), found, reason, tuple(notes), familiar, self.rate, self.rpm, speed, lines,
            DECIBELS * evidence.usual, evidence.kurtosis, evidence.windows, evidence,
            levels_over_background(spectra), spectra.turns,
        )  # fmt: skip

    def _unlike(self, classifier: Classifier, evidence: LineEvidence) -> Iterator[str]:
        """How the recording differs from all that the coefficients were made from."""
        ranges = classifier.ranges
        for name, value, unit in (("rate", self.rate, "Hz"), ("rpm", self.rpm, "rpm")):
            low, high = ranges.get(name, (0, float("inf")))
            if not low <= value <= high:
                yield f"{value:g} {unit} is outside the {low:g} to {high:g} {unit} of the recordings this was made from"
        if evidence.clutter > ranges.get("clutter", 1.0):
            yield (
                f"{100 * evidence.clutter:.0f} % of the envelope spectrum are lines that neither shaft nor bearing"
                " explain: another kind of machine, or a wrong speed or bearing"
            )
        if evidence.kurtosis > ranges.get("kurtosis", float("inf")):
            yield f"is more impulsive (kurtosis {evidence.kurtosis:.0f}) than all recordings this was made from"

    def _reason(
        self, state: str, found: Mapping[str, float], lines: Mapping[str, FaultLines], evidence: LineEvidence,
        aimless: bool,
    ) -> str:  # fmt: skip
        """The evidence in one sentence."""
        reference = f"reference lines {DECIBELS * evidence.usual:.0f} dB"
        if state in FAULTS:
            (name, times, modulator), own = FAULTS[state], lines[state]
            numbers = ", ".join(f"{times * number}" for number in MULTIPLES)
            levels = ", ".join(f"{line:.0f}" for line in own.lines)
            sides = f"; sidebands {own.sidebands:.0f} dB" if modulator else ""
            low, high = (edge / 1000 for edge in own.band)
            scale = evidence.faults[state].scale
            return (
                f"{numbers} × {name} ({own.hertz / times:.1f} Hz): {levels} dB above background{sides}; {reference};"
                f" {low:.3g}–{high:.3g} kHz; speed {scale * self.rpm:.0f} rpm ({100 * (scale - 1):+.1f} %)"
            )
        highest = max(lines, key=lambda fault: lines[fault].level)
        strongest = f"strongest: {highest} {lines[highest].level:.0f} dB, {reference}"
        if state == HEALTHY:
            return f"no fault line of this bearing stands out; {strongest}"
        if aimless:
            strikes = f"something strikes (envelope kurtosis {evidence.kurtosis:.1f}, noise has 2)"
            return f"{strikes} at no fault line; {strongest}"
        first, second = sorted(found, key=lambda name: -found[name])[:2]
        return f"{first} {100 * found[first]:.0f} %, {second} {100 * found[second]:.0f} %; {strongest}"


class PhysicsWitness:
    """Physics beside a model, of recordings whose rate, speed and bearing are known. What it cannot do is a note."""

    def __init__(self, recording: str, rate: float | None, rpm: float | None, bearing: Bearing | None) -> None:
        self.problem: str | None = None
        self._analysis: PhysicsAnalysis | None = None
        if rate is not None and rpm is not None and bearing is not None:
            try:
                self._analysis = PhysicsAnalysis(recording, rate, rpm, bearing.orders())
            except InputError as error:
                self.problem = f"no physics check: {error}"

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged."""
        return iter(blocks) if self._analysis is None else self._analysis.observe(blocks)

    def finish(self) -> PhysicsEvidence | None:
        """Of what has passed; None where it is not known or cannot be done."""
        try:
            return None if self._analysis is None else self._analysis.finish()
        except InputError as error:
            self.problem = f"no physics check: {error}"
            return None
