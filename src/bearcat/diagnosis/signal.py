"""What a recording's signal says by itself, without a trained model of the machine: quality, physics, general model.

Blocks pass through unchanged, so that a model can read the same stream. What cannot be done is a problem in words,
never an exception: the other witnesses go on.

>>> check, course = QualityCheck(rate=51_200), SpeedCourse(SpeedEvidence(rpm=900))
>>> analysis = SignalAnalysis("monday.wav", check, course, BEARINGS["6205"].orders(), beginning)
>>> for block in analysis.observe(check.observe(stream.blocks)): ...
>>> analysis.finish().physics.state
'outer race'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from bearcat.data.recording import Floats
from bearcat.diagnosis.combs import resample_in_angle
from bearcat.diagnosis.drawing import EvidenceDrawing
from bearcat.diagnosis.fusion import GeneralEvidence, GeneralWitness
from bearcat.diagnosis.lines import LineFamily, find_family, last_family_order
from bearcat.diagnosis.physics import PhysicsEvidence, line_spectra, physics_evidence
from bearcat.diagnosis.quality import Quality, QualityCheck, VibrationSeverity, level_values
from bearcat.diagnosis.spectra import EnvelopeSpectra, Spectra, stacked
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

    @property
    def speed_findings(self) -> tuple[Finding, ...]:
        """What of the speed a person should know before anything is called ok."""
        if self.speed is None:
            return ()
        unknown = self.speed.rpm is None and self.problem is not None and self.problem.field == "rpm"
        return (*self.speed.findings, *[Finding("speed not found", "check")] * unknown)


class SignalAnalysis:
    """Collects what the witnesses need of one channel. `without` names a dataset whose bench must not be known.

    `check` observes the same blocks before. A varying speed is followed in the `beginning` of a recording; the lines
    are then read in that, resampled in angle. `search` looks for lines of a bearing that nobody names; `measured` is
    for a trend, of short recordings too; `doubt` is about the orders.
    """

    def __init__(
        self, recording: str, check: QualityCheck, course: SpeedCourse, orders: Mapping[str, float] | None,
        beginning: Floats, without: str | None = None, measured: bool = False, search: bool = False,
        doubt: Finding | None = None,
    ) -> None:  # fmt: skip
        self.recording, self.check, self.speed = recording, check, course.evidence
        self.measured, self.orders, self.doubt = measured, orders, doubt
        self.lines: EnvelopeSpectra | None = None  # for the lines of this bearing
        self.levels: EnvelopeSpectra | None = None  # of a bearing or a speed that is not known
        self.any_lines: EnvelopeSpectra | None = None  # for those of any bearing
        self.general: GeneralWitness | None = None
        self.error: InputError | None = None
        rate, rpm = check.rate, self.speed.rpm
        try:
            if search and orders is None and rate is not None and rpm is not None:
                self.any_lines = EnvelopeSpectra(rate, rpm, last_family_order(rate, rpm))
            else:
                self.lines = line_spectra(rate, rpm, orders)
        except InputError as error:
            self.error = self._named(error)
        if self.lines is not None and orders is not None:
            with suppress(InputError):  # outside the general model's range is no problem
                self.general = GeneralWitness(self.lines.rate, self.lines.rpm, orders, without)
        if measured and self.lines is None and rate is not None:
            self.levels = EnvelopeSpectra(rate, rpm or UNKNOWN_RPM, UNKNOWN_LAST)
        self._turned = course.track is not None
        if course.track is not None:
            self._add(resample_in_angle(beginning, course.track))

    def _add(self, block: Floats) -> None:
        for collects in (self.lines, self.levels, self.any_lines, self.general):
            if collects is not None:
                collects.add(block)

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged; the witnesses see what passes."""
        for block in blocks:
            if not self._turned:
                self._add(block)
            yield block

    def finish(self, axes: Sequence[SignalAnalysis] = ()) -> SignalEvidence:
        """What all blocks so far say, with those of further axes of the same point if there are any."""
        analyses = [self, *axes]
        qualities = [analysis.check.finish() for analysis in analyses]
        checked = list(zip(analyses, qualities, strict=True))
        alive = [analysis for analysis, quality in checked if quality.no_signal is None]
        if not alive:
            return SignalEvidence(quality=qualities[0], speed=self.speed, drawing=self.draw(None))
        first, *others = alive
        findings = [finding for quality in qualities for finding in quality.findings]
        for analysis, quality in checked:
            if quality.no_signal is not None:
                values = {**quality.no_signal.values, "axis": analysis.axis, "cause": quality.no_signal.kind}
                findings.append(Finding("dead axis", "check", values))
        for other in others:
            if first.lines is not None and not first.joins(other):
                findings.append(Finding("axis apart", "check", {"axis": other.axis, "first": first.axis}))
        quality = Quality(None, unique(findings), median(quality.rms for quality in qualities))
        joined = [analysis for analysis in alive if analysis is first or first.joins(analysis)]
        measured = first.measure(others, joined) if self.measured else None
        physics, general, family, error = None, None, None, first.error
        try:
            quality.check_clipping()
            physics = first.read_lines(joined)
            families = [family for analysis in alive if (family := analysis.family()) is not None]
            if physics is not None:
                general = _mean([analysis.general.finish() for analysis in alive if analysis.general])
            family = max(families, key=lambda lines: lines.level, default=None) if error is None else None
        except InputError as refused:
            physics, family, error = None, None, first._named(refused)
        return SignalEvidence(
            physics, general, quality, self.speed, error and error.with_traceback(None), measured, family,
            drawing=first.draw(physics),
        )  # fmt: skip

    def _named(self, error: InputError) -> InputError:
        """The error with the name of the recording."""
        return InputError(f"{self.recording}: {error}", error.field)

    def read_lines(self, joined: Sequence[SignalAnalysis]) -> PhysicsEvidence | None:
        """What physics reads in the spectra of all axes; None where this one's bearing is not known."""
        if self.lines is None or self.orders is None:
            return None
        self.lines.check_turns()
        physics = physics_evidence(_together(joined), self.lines.rate, self.lines.rpm, self.orders)
        return physics if self.doubt is None else replace(physics, findings=(self.doubt, *physics.findings))

    @property
    def axis(self) -> str:
        """The name of its channel."""
        return self.recording.rpartition("#")[2]

    def draw(self, physics: PhysicsEvidence | None) -> EvidenceDrawing | None:
        """What a picture shows of this signal; None of an empty one, and where levels are measured for a trend."""
        beginning = self.check.beginning
        return EvidenceDrawing.of(beginning, self.check.rate, physics) if beginning.size and not self.measured else None

    def family(self) -> LineFamily | None:
        """The lines that stand out, where they are looked for because the bearing is not known."""
        if (searched := self.any_lines) is None:
            return None
        searched.check_turns()
        return find_family(searched.average(), searched.rpm)

    def measure(self, others: Sequence[SignalAnalysis], joined: Sequence[SignalAnalysis]) -> Measured:
        """Levels, of several axes the median, and spectra."""
        checks = [analysis.check for analysis in (self, *others)]
        by_axis = [level_values(check.beginning.astype(np.float64), check.rate, check.unit) for check in checks]
        levels = {name: float(np.median([axis[name] for axis in by_axis if name in axis])) for name in by_axis[0]}
        collected, spectra = self.lines or self.levels, None
        with suppress(InputError):  # no vibration, which the quality says
            if collected is not None:
                spectra = collected.average() if self.lines is None else _together(joined)
        turned = self.speed.rpm is not None
        if spectra is not None:
            levels["envelope_kurtosis"] = float(spectra.kurtosis.max())
            spectra = spectra if turned else replace(spectra, turns=0.0)
        turns = collected.turns if collected is not None and turned else None
        return Measured(levels, spectra, self.check.rate, self.orders, turns)

    def joins(self, other: SignalAnalysis) -> bool:
        """Whether the spectra of both are on one axis: they are of the same speed and rate."""
        lines, others = self.lines, other.lines
        if lines is None or others is None:
            return False
        return (lines.rate, lines.rpm, lines.length) == (others.rate, others.rpm, others.length)


def _together(axes: Sequence[SignalAnalysis]) -> Spectra:
    """The spectra of several axes as one."""
    return stacked([analysis.lines.average() for analysis in axes if analysis.lines is not None])


def _mean(evidence: Sequence[GeneralEvidence | None]) -> GeneralEvidence | None:
    """The general model's word on a point by that on its axes."""
    axes = [axis for axis in evidence if axis is not None]
    if not axes:
        return None
    states = {state: float(np.mean([axis.probabilities[state] for axis in axes])) for state in axes[0].probabilities}
    agreement = float(np.mean([axis.agreement for axis in axes]))
    return GeneralEvidence(states, agreement, sum(axis.windows for axis in axes))
