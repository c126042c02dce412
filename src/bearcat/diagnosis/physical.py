"""A recording, its speed and its bearing → healthy, inner race, outer race, ball or "cannot tell", with the evidence.

Nothing is trained or adapted for it. The spectra are collected while blocks pass, so that a day needs no more memory
than a minute, and something else may use the same blocks. docs/diagnose.md says how it works and how far to trust it.

The score of a fault is a weighted sum of its own evidence, that of "healthy" is zero, and the probabilities are the
softmax of the scores. Inner race, outer race and ball share the four coefficients, so what is learnt of one fault on
one machine holds for the others. `benchmarks/diagnose.py` makes the coefficients.

>>> analysis = PhysicalAnalysis("monday.wav", rate=51_200, rpm=900, orders=BEARINGS["6205"].orders())
>>> for block in analysis.observe(stream.blocks): ...
>>> print(analysis.diagnosis())
monday.wav: outer race (98 %): 1, 2 and 3 × BPFO (53.8 Hz) stand 24, 21 and 17 dB above the background …
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.recording import Floats
from bearcat.data.stream import Stream
from bearcat.diagnosis.evidence import (
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

STATES = ("healthy", *FAULTS)
COEFFICIENTS = Path(__file__).parent / "coefficients.json"
THRESHOLD = 0.6  # of confidence, below which the answer is that one cannot tell
IMPULSIVE = 4.0  # kurtosis of an envelope; noise has 2, healthy machines up to 2.9 (simulated) and 3.4 (HIT-SM)
CANNOT_TELL = "cannot tell"
WORDS = {"healthy": "healthy", "inner": "inner race", "outer": "outer race", "ball": "ball"}
SHOWN = 4  # times the highest line that half the rate must hold, so that there is something for it to modulate
CLIPPED, CLIPPED_MUCH = 1e-4, 0.01  # share of samples, worth a note and beyond use
DECIBELS = 4.342944819  # of a natural logarithm of power
# How people name the states of a bearing, in words and in lower case; shorter codes may mean anything.
_NAMES = {
    "healthy": r"healthy|normal|ok|good|baseline|undamaged",
    "inner": r"inner.*|ir\d*|bpfi|ki\d+",
    "outer": r"outer.*|or\d*|bpfo|ka\d+",
    "ball": r"ball.*|roller.*|b\d{3}|bsf",
}


def state_of(label: str) -> str | None:
    """The state that a class's name stands for; None where it says nothing of healthy, inner, outer or ball."""
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

    def state(self, evidence: LineEvidence) -> str | None:
        """The likeliest state; None where it is not clear: by the threshold, or as something strikes at no order."""
        found = self.probabilities(evidence)
        return None if found.max() < THRESHOLD or self.aimless(evidence) else STATES[int(found.argmax())]

    def aimless(self, evidence: LineEvidence) -> bool:
        """Whether no fault is likely, and yet something strikes."""
        return bool(self.probabilities(evidence).argmax() == 0 and evidence.kurtosis > IMPULSIVE)


@dataclass(frozen=True, eq=False)
class PhysicalDiagnosis:
    """Of one recording. `state` is one of STATES, or None where it is not clear."""

    recording: str
    state: str | None
    probabilities: dict[str, float]
    reason: str  # the evidence in words
    notes: tuple[str, ...]  # what is unlike all the coefficients were made from, or wrong with the recording
    familiar: bool
    rate: float
    rpm: float  # as stated
    fitted_rpm: float  # at which the lines of the likeliest fault stand out best
    evidence: LineEvidence
    levels: Doubles  # (band, bin) of the envelope spectra over their background; natural logarithms
    turns: float  # bins an order

    @property
    def answer(self) -> str:
        return CANNOT_TELL if self.state is None else WORDS[self.state]

    @property
    def confidence(self) -> float:
        return max(self.probabilities.values())

    @property
    def shown(self) -> str:
        """The fault whose evidence is shown: the likeliest."""
        return max(FAULTS, key=lambda fault: self.probabilities[fault])

    @property
    def band(self) -> tuple[float, float]:
        """The band in Hz that shows it best."""
        low, high = self.evidence.faults[self.shown].band
        return low * self.rate / 2, high * self.rate / 2

    def line(self, label: str) -> str:
        """The strongest line of the fault a class stands for; where it stands for none, of the strongest fault."""
        state, faults = state_of(label), self.evidence.faults
        strongest = self.shown if state is None else max(faults, key=lambda fault: faults[fault].level)
        fault = state if state in FAULTS else strongest
        (name, times, _), found = FAULTS[fault], faults[fault]
        level, number = max(zip(found.lines, MULTIPLES, strict=True))
        hertz = number * found.order * found.scale * self.rpm / 60
        place = f"{name if number * times == 1 else f'{number * times} × {name}'} {hertz:.1f} Hz"
        return f"{'at most ' if state == 'healthy' else ''}{place}, {exp(level):.0f} × background"

    def __str__(self) -> str:
        return f"{self.recording}: {self.answer} ({100 * self.confidence:.0f} %): {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON can keep them; levels in dB."""
        evidence = {
            fault: {
                "hertz": found.order * found.scale * self.rpm / 60,
                "level": DECIBELS * found.level,
                "lines": [DECIBELS * line for line in found.lines],
                "sidebands": DECIBELS * found.sidebands if FAULTS[fault][2] else None,
                "band": [share * self.rate / 2 for share in found.band],
            }
            for fault, found in self.evidence.faults.items()
        }
        return {
            "recording": self.recording, "state": self.answer, "confidence": self.confidence,
            "probabilities": self.probabilities, "reason": self.reason, "familiar": self.familiar,
            "notes": list(self.notes), "rpm": self.rpm, "fitted_rpm": self.fitted_rpm, "rate": self.rate,
            "band_low": self.band[0], "band_high": self.band[1], "windows": self.evidence.windows,
            "kurtosis": self.evidence.kurtosis, "usual_level": DECIBELS * self.evidence.usual, "evidence": evidence,
        }  # fmt: skip


class PhysicalAnalysis:
    """Collects what is needed for the diagnosis of one recording. `orders` are those of bearing.KINEMATIC."""

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
        try:
            self.spectra = EnvelopeSpectra(rate, rpm, last_order(orders), threads)
        except InputError as error:
            raise InputError(f"{recording}: {error}", error.field) from error

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged; the spectra are computed of what passes."""
        for block in blocks:
            self.spectra.add(block)
            yield block

    def diagnosis(self) -> PhysicalDiagnosis:
        """What all blocks so far say."""
        classifier = Classifier.shipped()
        try:
            spectra = self.spectra.average()
        except InputError as error:
            raise InputError(f"{self.recording}: {error}", error.field) from error
        clipped = self.spectra.clipped
        if clipped > CLIPPED_MUCH:
            raise InputError(
                f"{self.recording}: is clipped, {100 * clipped:.1f} % of its samples lie at the limits; record it with"
                " less gain"
            )
        evidence = find_evidence(spectra, self.orders)
        found = dict(zip(STATES, classifier.probabilities(evidence).tolist(), strict=True))
        shown = evidence.faults[max(FAULTS, key=lambda fault: found[fault])]
        state, aimless = classifier.state(evidence), classifier.aimless(evidence)
        notes, speed = list(self._unlike(classifier, evidence)), shown.scale * self.rpm
        familiar = not notes
        if clipped > CLIPPED:
            notes.append(f"is clipped ({100 * clipped:.2f} % of its samples lie at the limits), which makes lines")
        if state in FAULTS and abs(shown.scale - 1) > SEARCH - 1e-9:
            notes.append(f"the lines fit best at the edge of the search, {speed:.0f} rpm; check the speed")
        return PhysicalDiagnosis(
            self.recording, state, found, self._reason(state, found, evidence, aimless), tuple(notes), familiar,
            self.rate, self.rpm, speed, evidence, levels_over_background(spectra), spectra.turns,
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

    def _reason(self, state: str | None, found: Mapping[str, float], evidence: LineEvidence, aimless: bool) -> str:
        """The evidence in one sentence."""
        if state in FAULTS:
            return self._describe(str(state), evidence)
        highest = max(evidence.faults, key=lambda fault: evidence.faults[fault].level)
        reached = DECIBELS * evidence.faults[highest].level
        usual = f"orders of no fault {DECIBELS * evidence.usual:.0f} dB"
        level = f"{WORDS[highest]}, reaches {reached:.0f} dB over its first three multiples, {usual}"
        if state == "healthy":
            return f"no fault of this bearing stands out; the strongest, {level}"
        if aimless:
            return (
                f"something strikes (kurtosis of the envelope {evidence.kurtosis:.1f}, noise has 2), but at no order of"
                f" this bearing; the strongest, {level}"
            )
        first, second = sorted(found, key=lambda name: -found[name])[:2]
        shares = f"{WORDS[first]} {100 * found[first]:.0f} %, {WORDS[second]} {100 * found[second]:.0f} %"
        return f"the evidence is not enough ({shares}); the strongest, {level}"

    def _describe(self, fault: str, evidence: LineEvidence) -> str:
        name, times, modulator = FAULTS[fault]
        found = evidence.faults[fault]
        numbers = [times * number for number in MULTIPLES]
        lines = [f"{DECIBELS * line:.0f}" for line in found.lines]
        low, high = (share * self.rate / 2000 for share in found.band)
        what = "cage" if modulator == "FTF" else "shaft"
        sides = f", sidebands of the {what} {DECIBELS * found.sidebands:.0f} dB" if modulator else ""
        hertz, speed = found.order / times * found.scale * self.rpm / 60, found.scale * self.rpm
        return (
            f"{_listed(numbers)} × {name} ({hertz:.1f} Hz) stand {_listed(lines)} dB above the background of the"
            f" envelope spectrum{sides}, in {low:.3g}–{high:.3g} kHz; orders of no fault reach"
            f" {DECIBELS * evidence.usual:.0f} dB; the speed that fits is {speed:.0f} rpm"
            f" ({100 * (found.scale - 1):+.1f} %)"
        )


def diagnose_physically(
    stream: Stream, rpm: float | None, orders: Mapping[str, float] | None, rate: float | None = None, threads: int = 2
) -> PhysicalDiagnosis:
    """The diagnosis of a stream; `rate` is of files that do not say theirs."""
    analysis = PhysicalAnalysis(stream.origin, stream.rate or rate, rpm, orders, threads)
    for block in stream.blocks:
        analysis.spectra.add(block)
    return analysis.diagnosis()


class SecondOpinion:
    """The physical diagnosis beside a model's, of recordings whose rate, speed and bearing are known.

    What it cannot do is no error: it is a note for the reader.
    """

    def __init__(self, recording: str, rate: float | None, rpm: float | None, bearing: Bearing | None) -> None:
        self.problem: str | None = None
        self._analysis: PhysicalAnalysis | None = None
        if rate is not None and rpm is not None and bearing is not None:
            try:
                self._analysis = PhysicalAnalysis(recording, rate, rpm, bearing.orders())
            except InputError as error:
                self.problem = f"no second opinion from the bearing's orders: {error}"

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged."""
        return iter(blocks) if self._analysis is None else self._analysis.observe(blocks)

    def diagnosis(self) -> PhysicalDiagnosis | None:
        """Of what has passed; None where it is not known or cannot be done."""
        try:
            return None if self._analysis is None else self._analysis.diagnosis()
        except InputError as error:
            self.problem = f"no second opinion from the bearing's orders: {error}"
            return None


def contradiction(physical: PhysicalDiagnosis | None, label: str) -> str | None:
    """A sentence where a model's class and the bearing's orders say different states; else None."""
    state = state_of(label)
    if physical is None or physical.state is None or state in (None, physical.state):
        return None
    # That the orders show nothing is less than a proof of health.
    said = "show no fault" if physical.state == "healthy" else f"say {physical.answer}"
    sure = f"({100 * physical.confidence:.0f} %)"
    return f"the model says '{label}', the bearing's orders {said} {sure}: {physical.reason}"


def _listed(items: Iterable[Any]) -> str:
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}"
