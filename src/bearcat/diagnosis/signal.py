"""What a recording's signal says by itself, without a trained model of the machine: quality, physics, general model.

Blocks pass through unchanged, so that a model can read the same stream. What cannot be done is a problem in words,
never an exception: the other witnesses go on.

>>> analysis = SignalAnalysis("monday.wav", rate=51_200, rpm=900, orders=BEARINGS["6205"].orders())
>>> for block in analysis.observe(stream.blocks): ...
>>> analysis.finish().physics.state
'outer race'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from bearcat.data.channels import Declared
from bearcat.data.recording import Floats
from bearcat.diagnosis.combs import resample_in_angle
from bearcat.diagnosis.drawing import EvidenceDrawing
from bearcat.diagnosis.fusion import GeneralEvidence, GeneralWitness
from bearcat.diagnosis.lines import LineFamily, find_family, last_family_order
from bearcat.diagnosis.physics import PhysicsEvidence, line_spectra, physics_evidence
from bearcat.diagnosis.quality import Quality, QualityCheck, VibrationSeverity, level_values, vibration_severity
from bearcat.diagnosis.spectra import FEWEST_TURNS, EnvelopeSpectra, Spectra, stacked
from bearcat.diagnosis.speed import SpeedCourse, SpeedEvidence
from bearcat.errors import InputError
from bearcat.findings import Finding, unique

UNKNOWN_RPM, UNKNOWN_LAST = 1500.0, 20.0  # by which spectra are cut where the speed, and the bearing, are not known


@dataclass(frozen=True, eq=False)
class Measured:
    """What a trend is made of: levels by name (levels.py), and envelope spectra, of recordings too short to be read
    alone too.
    """

    levels: Mapping[str, float]
    spectra: Spectra | None  # None: the rate is not known; turns are 0 where the speed is not
    rate: float | None
    orders: Mapping[str, float] | None
    turns: float | None  # of the shaft


@dataclass(frozen=True, eq=False)
class SignalEvidence:
    """Of one recording; a witness is None where it could not look, and `problem` says why."""

    physics: PhysicsEvidence | None = None
    general: GeneralEvidence | None = None
    quality: Quality | None = None
    speed: SpeedEvidence | None = None
    problem: InputError | None = None  # its field is what is missing: rate, rpm or bearing
    measured: Measured | None = None
    family: LineFamily | None = None  # of an unknown bearing
    vibration: VibrationSeverity | None = None
    drawing: EvidenceDrawing | None = None
    doubt: Finding | None = None  # of the bearing's geometry; in the findings of `physics` too

    @property
    def speed_findings(self) -> tuple[Finding, ...]:
        """What of the speed a person should know before anything is called ok."""
        if self.speed is None:
            return ()
        unknown = self.speed.rpm is None and self.problem is not None and self.problem.field == "rpm"
        return (*self.speed.findings, *[Finding("speed not found", "check")] * unknown)


class SignalAnalysis:
    """Collects what the witnesses need of one recording. `without` names a dataset whose bench must not be known.

    A varying speed is followed in the beginning of a recording; the lines are then read in that, resampled in angle.
    """

    def __init__(
        self, recording: str, rate: float | None, rpm: float | None, orders: Mapping[str, float] | None,
        without: str | None = None, unit: str | None = None, course: SpeedCourse | None = None,
        beginning: Floats | None = None, measured: bool = False, search: bool = False, doubt: Finding | None = None,
        quality: QualityCheck | None = None,
    ) -> None:  # fmt: skip
        """`doubt` is about the orders; `quality` a check that observes the same blocks elsewhere."""
        self.recording, self.quality, self.course = recording, quality or QualityCheck(rate, unit), course
        self._checks = quality is None
        self.measured, self.rate, self.orders, self.doubt = measured, rate, orders, doubt
        self.lines: EnvelopeSpectra | None = None  # for the lines of this bearing
        self.levels: EnvelopeSpectra | None = None  # of a bearing or a speed that is not known
        self.any_lines: EnvelopeSpectra | None = None  # for those of any bearing
        self.general: GeneralWitness | None = None
        self.error: InputError | None = None
        turned = None
        if course is not None:
            rpm = course.evidence.rpm
            if course.track is not None and beginning is not None and rate is not None:
                place = np.linspace(0, len(course.track) - 1, len(beginning))
                track = np.interp(place, np.arange(len(course.track)), course.track)
                turned, rate = resample_in_angle(beginning, rate, track)
        try:
            if search and orders is None and rate is not None and rpm is not None:
                self.any_lines = EnvelopeSpectra(rate, rpm, last_family_order(rate, rpm))
            else:
                limits = self.quality.limits if turned is None else None  # the same samples
                self.lines = line_spectra(rate, rpm, orders, 0.0 if measured else FEWEST_TURNS, limits)
        except InputError as error:
            self.error = self._named(error)
        if self.lines is not None and orders is not None:
            with suppress(InputError):  # outside the general model's range is no problem
                self.general = GeneralWitness(self.lines.rate, self.lines.rpm, orders, without)
        if measured and self.lines is None and rate is not None:
            self.levels = EnvelopeSpectra(rate, rpm or UNKNOWN_RPM, UNKNOWN_LAST, fewest=0.0)
        self._turns = rpm is not None
        self._turned = turned is not None
        if turned is not None:
            self._add(turned)

    def _add(self, block: Floats) -> None:
        for collects in (self.lines, self.levels, self.any_lines, self.general):
            if collects is not None:
                collects.add(block)

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged; the witnesses see what passes."""
        for block in self.quality.observe(blocks) if self._checks else blocks:
            if not self._turned:
                self._add(block)
            yield block

    def finish(self, axes: Sequence[SignalAnalysis] = ()) -> SignalEvidence:
        """What all blocks so far say, with those of further axes of the same point if there are any."""
        every = [self, *axes]
        checked = [each.quality.finish() for each in every]
        alive = [each for each, found in zip(every, checked, strict=True) if found.no_signal is None]
        speed = None if self.course is None else self.course.evidence
        if not alive:
            return SignalEvidence(quality=checked[0], speed=speed, drawing=self.draw(None))
        first, *others = alive
        findings = [finding for found in checked for finding in found.findings]
        for each, found in zip(every, checked, strict=True):
            if found.no_signal is not None:
                values = {**found.no_signal.values, "axis": each.axis, "cause": found.no_signal.kind}
                findings.append(Finding("dead axis", "check", values))
        for each in others:
            if first.lines is not None and not first.joins(each):
                findings.append(Finding("axis apart", "check", {"axis": each.axis, "first": first.axis}))
        quality = Quality(None, unique(findings), median(found.rms for found in checked))
        joined = [each.lines for each in alive if each.lines is not None and (each is first or first.joins(each))]
        measured = first.measure(others, joined) if self.measured else None
        try:
            physics = first.read_lines(joined)
            if physics is not None and self.doubt is not None:
                physics = replace(physics, findings=(self.doubt, *physics.findings))
            families = [family for each in alive if (family := each.family()) is not None]
            general = None if physics is None else _mean([each.general.finish() for each in alive if each.general])
            error = first.error
        except InputError as refused:
            physics, general, error = None, None, first._named(refused)
        family = max(families, key=lambda each: each.level, default=None) if error is None else None
        drawing = first.draw(physics)
        return SignalEvidence(
            physics, general, quality, speed, error and error.with_traceback(None), measured, family=family,
            drawing=drawing, doubt=self.doubt,
        )  # fmt: skip

    def _named(self, error: InputError) -> InputError:
        """The error with the name of the recording."""
        return InputError(f"{self.recording}: {error}", error.field)

    def read_lines(self, joined: Sequence[EnvelopeSpectra]) -> PhysicsEvidence | None:
        """What physics reads in the spectra of all axes; None where this one's bearing is not known."""
        if self.lines is None or self.orders is None:
            return None
        if self.lines.turns < FEWEST_TURNS:
            few = f"holds {self.lines.turns:.1f} turns of the shaft, and {FEWEST_TURNS} are needed"
            raise InputError(f"{few}; record longer")
        spectra, clipped = stacked([each.average() for each in joined]), max(each.clipped for each in joined)
        return physics_evidence(spectra, self.lines.rate, self.lines.rpm, self.orders, clipped)

    @property
    def axis(self) -> str:
        """The name of its channel."""
        return self.recording.rpartition("#")[2]

    def draw(self, physics: PhysicsEvidence | None) -> EvidenceDrawing | None:
        """What a picture shows of this signal; None of an empty one, and where levels are measured for a trend."""
        beginning = self.quality.beginning
        return EvidenceDrawing.of(beginning, self.rate, physics) if beginning.size and not self.measured else None

    def severity(self, declared: Declared, rpm: float | None) -> VibrationSeverity:
        """The zone of ISO 20816-3 of what has passed, or what is missing for it."""
        heard = np.empty(0) if declared.absent else self.quality.beginning.astype(np.float64)
        return vibration_severity(heard, self.rate, declared, rpm)

    def family(self) -> LineFamily | None:
        """The lines that stand out, where they are looked for because the bearing is not known."""
        searched = self.any_lines
        return None if searched is None else find_family(searched.average(), searched.rate, searched.rpm)

    def measure(self, others: Sequence[SignalAnalysis], joined: Sequence[EnvelopeSpectra]) -> Measured:
        """Levels, of several axes the median, and spectra."""
        checks = [each.quality for each in (self, *others)]
        every = [level_values(each.beginning.astype(np.float64), each.rate, each.unit) for each in checks]
        levels = {name: float(np.median([each[name] for each in every if name in each])) for name in every[0]}
        spectra = None
        with suppress(InputError):  # no vibration, which the quality says
            if self.lines is not None:
                spectra = stacked([each.average() for each in joined])
            elif self.levels is not None:
                spectra = self.levels.average()
        if spectra is not None:
            levels["envelope_kurtosis"] = float(spectra.kurtosis.max())
            spectra = spectra if self._turns else replace(spectra, turns=0.0)
        cut = self.lines or self.levels
        return Measured(levels, spectra, self.rate, self.orders, cut.turns if cut is not None and self._turns else None)

    def joins(self, other: SignalAnalysis) -> bool:
        """Whether the spectra of both are on one axis: they are of the same speed and rate."""
        own, others = self.lines, other.lines
        if own is None or others is None:
            return False
        return (own.rate, own.rpm, own.length) == (others.rate, others.rpm, others.length)


def _mean(found: Sequence[GeneralEvidence | None]) -> GeneralEvidence | None:
    """The general model's word on a point by that on its axes."""
    known = [each for each in found if each is not None]
    if not known:
        return None
    states = {state: float(np.mean([each.probabilities[state] for each in known])) for state in known[0].probabilities}
    agreement = float(np.mean([each.agreement for each in known]))
    return GeneralEvidence(states, agreement, sum(each.windows for each in known))
