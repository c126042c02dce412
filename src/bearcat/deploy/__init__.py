"""Recordings → diagnoses: read → measure → ask the model, if there is one → decide.

`bearcat diagnose`, `predict`, `bearcat.diagnose`, the server and the assistant call `diagnose`. It examines recordings
and decides on what was found; `adapt` decides on its model in between, and `watch` compares with a point's past. A
signal is measured once, a block of samples at a time.

>>> request = DiagnoseRequest(rpm="1480", bearing="6205")
>>> diagnose([Path("pump")], open_model(Path("out/model")), request=request).summary
'14 recordings: 9 alarm, 5 ok.'
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.channels import unit_of
from bearcat.data.manifest import is_time
from bearcat.data.recording import Floats
from bearcat.data.stream import Stream
from bearcat.deploy.find import (
    FoundMeasurement,
    FoundPoint,
    FoundRecording,
    FoundUnit,
    Given,
    alone,
    array_recording,
    closed,
    find_units,
)
from bearcat.diagnosis.fusion import NetworkEvidence, Witnesses
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.lines import cross_talk
from bearcat.diagnosis.physics import PhysicsEvidence, known_baseline, loudness
from bearcat.diagnosis.quality import QualityCheck, vibration_severity
from bearcat.diagnosis.recording import Diagnoses, Observation
from bearcat.diagnosis.signal import SignalAnalysis, SignalEvidence
from bearcat.diagnosis.speed import FOLLOWED, SpeedCourse, speed_course, speed_of_channel
from bearcat.errors import InputError
from bearcat.findings import SHOWN_LINE, Finding
from bearcat.settings import DiagnoseRequest

if TYPE_CHECKING:
    from bearcat.deploy.opened import Predictor

MOST_HELD = 1 << 23  # samples of a recording's beginning
History = Mapping[str | None, Sequence[PhysicsEvidence]]  # of recordings known to be healthy, by point

Recorded = str | Path | NDArray[Any]  # a file, a folder, a manifest, or a signal (time,)
Examined = tuple[list[Observation], list[str]]  # an observation of each point; notes on the channels


def diagnose(
    recordings: Sequence[Recorded | FoundUnit], model: Predictor | None = None, healthy: Sequence[Recorded] = (),
    request: DiagnoseRequest | None = None,
) -> Diagnoses:  # fmt: skip
    """A diagnosis of every point; an unusable recording gets one that says why, and the others go on.

    `healthy` are known good recordings: lines that are already in them raise no alarm.
    """
    request = request or DiagnoseRequest()
    given = Given.of(request, () if model is None else model.classes)
    evidence, notes = examine(recordings, given, model, healthy, request.jobs)
    return Diagnoses(decide_together(evidence), notes)


def examine(
    recordings: Sequence[Recorded | FoundUnit | MeasuredUnit], given: Given, model: Predictor | None = None,
    healthy: Sequence[Recorded] = (), jobs: int = 1,
) -> Examined:  # fmt: skip
    """The evidence that `diagnose` decides on; `bearcat adapt` first decides with it whether to use its new model.

    Units that were measured are not measured again.
    """
    history = _usual_lines(healthy, given) if len(healthy) else {}
    units, work = _units(recordings, given, model), partial(_examine, model=model, history=history, given=given)
    evidence, notes = list[Observation](), list[str]()
    for observations, channel_notes in in_processes(work, list(units), jobs):
        evidence += observations
        notes += channel_notes
    return evidence, notes


def _units(
    recordings: Sequence[Recorded | FoundUnit | MeasuredUnit], given: Given, model: Predictor | None
) -> Iterator[FoundUnit | MeasuredUnit]:
    """Finds the measurements of files, folders and arrays, without opening them."""
    for number, recording in enumerate(recordings):
        if isinstance(recording, FoundUnit | MeasuredUnit):
            yield recording
        elif isinstance(recording, np.ndarray):
            if given.speed is not None:
                raise InputError(f"rpm: an array has no channel '{given.speed}'; give a number", "rpm")
            array = array_recording(recording, given.rate, f"array {number}" if len(recordings) > 1 else "array")
            yield FoundUnit(array.name, partial(list, [alone(array)]))
        else:
            yield from find_units([Path(recording)], given, None if model is None else model.channel)


def _usual_lines(healthy: Sequence[Recorded], given: Given) -> History:
    """Fault lines of healthy recordings, by point; InputError if none can be read."""
    usual = defaultdict[str | None, list[PhysicsEvidence]](list)
    for observation in examine(healthy, given)[0]:
        if observation.problem is not None:
            raise observation.problem
        if observation.physics is not None:
            usual[observation.point].append(observation.physics)
    if not usual:
        raise InputError("--healthy: no line can be read in these recordings; name others, with speed and bearing")
    return dict(usual)


def _examine(unit: FoundUnit | MeasuredUnit, model: Predictor | None, history: History, given: Given) -> Examined:
    """The evidence of one unit; a bug in bearcat is printed, and the other units go on."""
    try:
        if isinstance(unit, FoundUnit):
            measurements = measure_unit(unit, given, model).measurements
        else:
            measurements = unit.measurements if model is None else _ask_unit(unit, given, model)
        evidence, notes = list[Observation](), list[str]()
        for measurement, points in measurements:
            evidence += evidence_of(measurement, points, given, model, history)
            notes += [f"{measurement.name}: {note}" for note in measurement.notes if len(measurement.points) > 1]
        return evidence, notes
    except Exception as error:
        traceback.print_exc()
        sentence = f"{unit.name}: {type(error).__name__}; please report this bug with the lines above"
        return [Observation(unit.name, problem=InputError(sentence, readable=True))], []


def in_processes(function: Callable[[Any], Any], values: Sequence[Any], jobs: int) -> Iterator[Any]:
    """Maps the function over the values, in order, in this many processes; 0: one for each core."""
    if jobs == 1 or len(values) < 2:
        yield from map(function, values)
        return
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import get_reusable_executor

    try:
        with parallel_config("loky", n_jobs=jobs or -1, inner_max_num_threads=1):
            yield from Parallel(return_as="generator")(delayed(function)(value) for value in values)
    except BrokenProcessPool as error:
        ended = "a process that measured recordings ended, perhaps because memory ran out"
        raise InputError(f"{ended}; use fewer --jobs, nothing is lost") from error
    finally:  # a later call may have another current folder or another model
        get_reusable_executor().shutdown(wait=True)


@dataclass(frozen=True, eq=False)
class MeasuredPoint:
    """Evidence from the signals of a point and from a model, and remarks made while reading; or the problem."""

    signal: SignalEvidence = field(default_factory=SignalEvidence)
    network: NetworkEvidence | None = None
    noticed: tuple[Finding, ...] = ()
    problem: InputError | None = None

    @property
    def lacking(self) -> InputError | None:
        """What prevents a diagnosis: a missing statement, or clipping; a speed that could not be measured does not."""
        signal, problem, quality = self.signal, self.signal.problem, self.signal.quality
        silent = quality is not None and quality.no_signal is not None
        clipped = quality is not None and quality.beyond_use
        if problem is None or silent or ((self.network or signal.family) and not clipped):
            return None
        unknown = signal.speed is not None and signal.speed.rpm is None
        return None if unknown and problem.field == "rpm" else InputError(str(problem), problem.field, readable=True)


MeasuredPoints = tuple[FoundMeasurement, list[MeasuredPoint]]


@dataclass(frozen=True, eq=False)
class MeasuredUnit:
    """A unit whose signals were measured; the samples are read again if a model is asked."""

    unit: FoundUnit
    measurements: list[MeasuredPoints]

    @property
    def name(self) -> str:
        return self.unit.name

    @property
    def points(self) -> Iterator[tuple[FoundPoint, MeasuredPoint]]:
        for measurement, measured in self.measurements:
            yield from zip(measurement.points, measured, strict=True)

    def answered(self, answer: Callable[[FoundPoint, MeasuredPoint], MeasuredPoint]) -> MeasuredUnit:
        """The same with every point replaced by what `answer` makes of it."""
        pairs = self.measurements
        return MeasuredUnit(self.unit, [(found, list(map(answer, found.points, points))) for found, points in pairs])


def measure_unit(unit: FoundUnit, given: Given, model: Predictor | None = None) -> MeasuredUnit:
    """Opens a unit, measures it and closes its files."""
    try:
        opened = unit.open()
        return MeasuredUnit(unit, [(each.closed(), measure_points(each, given, model)) for each in opened])
    except (InputError, OSError) as error:
        return MeasuredUnit(unit, [_unreadable(unit, error)])


def _unreadable(unit: FoundUnit, error: InputError | OSError) -> MeasuredPoints:
    problem = error if isinstance(error, InputError) else InputError(f"{unit.name}: {error}")
    return alone(FoundRecording(closed, unit.name)), [MeasuredPoint(problem=problem.with_traceback(None))]


def measure_points(measurement: FoundMeasurement, given: Given, model: Predictor | None = None) -> list[MeasuredPoint]:
    """The evidence of each point of a measurement; a point that cannot be used does not stop the others."""
    measured = []
    for point in measurement.points:
        try:
            measured.append(_measure(point, given, model, measurement.speed))
        except InputError as error:  # frames of the traceback would keep the file open
            measured.append(MeasuredPoint(problem=error.with_traceback(None)))
    return measured


def _ask_unit(unit: MeasuredUnit, given: Given, model: Predictor) -> list[MeasuredPoints]:
    """The measurements with the model's answers; the samples are read again, but not measured."""
    try:
        opened = [measurement.points for measurement in unit.unit.open()]
    except (InputError, OSError) as error:
        return [_unreadable(unit.unit, error)]
    return [
        (measurement, [_answered(*pair, given, model) for pair in zip(points, measured, strict=True)])
        for points, (measurement, measured) in zip(opened, unit.measurements, strict=True)
    ]


def _answered(point: FoundPoint, measured: MeasuredPoint, given: Given, model: Predictor) -> MeasuredPoint:
    """The measured point with the model's answer."""
    from bearcat.deploy.opened import ask

    if measured.problem is not None or measured.signal.speed is None:
        return measured
    try:
        streams = [(recording, recording.open()) for recording in point.recordings]
        channels = [(recording, replace(stream, rate=given.rate_of(stream))) for recording, stream in streams]
        network, noticed = ask(model, channels, measured.signal.speed, given)
    except InputError as error:
        return MeasuredPoint(problem=error.with_traceback(None))
    return replace(measured, network=network, noticed=(*measured.noticed, *noticed))


def evidence_of(
    measurement: FoundMeasurement, measured: Sequence[MeasuredPoint], given: Given, model: Predictor | None = None,
    history: History | None = None,
) -> list[Observation]:  # fmt: skip
    """An observation of each point.

    A line at several points belongs to the loudest; at the others it is cross-talk, which makes the decision `check`.
    """
    borrowed = cross_talk([loudness(measured_point.signal.physics) for measured_point in measured])
    observations = list[Observation]()
    for point, measured_point, lines in zip(measurement.points, measured, borrowed, strict=True):
        if (problem := measured_point.problem or measured_point.lacking) is not None:
            observations.append(Observation(point.name, problem=problem))
            continue
        signal, network, talk = measured_point.signal, measured_point.network, list[Finding]()
        physics, general = signal.physics, signal.general
        first = point.recordings[0]
        point_name = first.point or point.name.partition("#")[2] or None
        levels = {} if physics is None else {fault: physics.faults[fault].level for fault in lines}
        for fault in sorted(levels, key=lambda name: -levels[name]):
            if physics is not None and physics.faults[fault].level - physics.reference_level >= SHOWN_LINE:
                owner = measurement.points[lines[fault].owner].name.rpartition("#")[2]
                values = {"fault": fault, "decibels": lines[fault].decibels, "owner": owner}
                talk.append(Finding("cross-talk", "check", values))
                physics, general = physics.without_lines(fault), None
        doubts = signal.speed_findings
        noticed = [*given.differences(first), *talk, *measured_point.noticed]
        noticed += [doubt.but("remark") if given.trust_speed else doubt for doubt in doubts]
        healthy = () if history is None else history.get(point_name) or history.get(None) or ()
        baseline = None if physics is None else known_baseline(healthy, physics)
        if history and baseline is None and physics is not None:
            noticed.append(Finding("no baseline", "remark"))
        physics = None if physics is None else replace(physics, levels=None)
        file, quality = Path(first.name.partition("#")[0]), signal.quality
        assumed = None if model is None else model.bearing
        bearing = None if physics is None else given.bearing_of(first) or assumed
        observations.append(Observation(
            point.name, Witnesses(physics, general, network, baseline, given.without),
            first.machine or first.folder or str(file.parent), point_name,
            (*noticed, *(() if quality is None else quality.findings)), given.rule,
            None if quality is None else quality.rms, signal.speed, signal.family, signal.vibration, signal.drawing,
            None if bearing is None else str(bearing), first.machine is not None or is_time(file.stem),
            None if quality is None else quality.no_signal,
        ))  # fmt: skip
    return observations


@dataclass(frozen=True, eq=False)
class _Axis:
    """One channel of a point, after its beginning was read."""

    recording: FoundRecording
    stream: Stream
    check: QualityCheck
    beginning: Floats
    blocks: Iterator[Floats]  # all of them, including the beginning


def _measure(point: FoundPoint, given: Given, model: Predictor | None, tacho: FoundRecording | None) -> MeasuredPoint:
    """Reads the axes of a point once: speed, fault lines, levels, and the model's windows."""
    noticed, axes, courses = list[Finding](), list[_Axis](), list[SpeedCourse]()
    orders, doubt, network = None, None, None
    for recording in point.recordings:
        stream = recording.open()
        rate, (stated, contradiction), assumed = given.rate_of(stream), given.rpm_of(recording, stream), None
        noticed += [contradiction] if contradiction is not None else []
        stream = stream if stream.rate == rate else replace(stream, rate=rate)
        if model is not None:  # its target's bearing, rate and speed
            assumed, rate, stated = model.bearing, rate or model.preparation.rate, stated or model.rpm
        if orders is None and (bearing := given.bearing_of(recording, assumed)) is not None:
            orders, doubt = bearing.orders(), bearing.doubt
        unit = unit_of(recording.channel or "") or given.declared_of(recording).unit
        check = QualityCheck(rate, unit, stream.gaps, stated)
        beginning, blocks = _beginning(check.observe(stream.blocks), rate)
        axes.append(_Axis(recording, stream, check, beginning, blocks))
        speed = _tacho(tacho, given.rate, stated)
        courses.append(speed_course(beginning, rate, orders, stated, given.trust_speed, speed))
    course = max(courses, key=lambda course: course.clarity)  # axes of one bearing have one speed
    search = model is None if given.search is None else given.search
    analyses = [
        SignalAnalysis(
            axis.stream.origin, axis.check, course, orders, axis.beginning, given.without, given.measured, search, doubt
        )
        for axis in axes
    ]
    passing = [analysis.observe(axis.blocks) for analysis, axis in zip(analyses, axes, strict=True)]
    if model is None:
        for _ in chain(*passing):
            pass
    else:
        from bearcat.deploy.opened import ask  # other commands start without it

        read = zip(axes, passing, strict=True)
        channels = ((axis.recording, replace(axis.stream, blocks=blocks)) for axis, blocks in read)
        network, about = ask(model, channels, course.evidence, given)
    signal = _united(analyses, axes, course, given)
    if model is not None and model.metadata.get("recipe") == "general":
        signal = replace(signal, general=None)  # it would count twice
    if (problem := signal.problem) is not None and problem.field is None:
        noticed.append(Finding("no lines read", "remark", {"problem": problem.beside(analyses[0].recording)}))
    return MeasuredPoint(signal, network, (*noticed, *(about if model is not None else ())))


def _united(
    analyses: Sequence[SignalAnalysis], axes: Sequence[_Axis], course: SpeedCourse, given: Given
) -> SignalEvidence:
    """The combined evidence of all axes of a point, with the highest of their velocities, as ISO 20816 requires."""
    first, *others = analyses
    severities = [
        vibration_severity(
            axis.check.beginning, axis.check.rate, given.declared_of(axis.recording), course.evidence.rpm
        )
        for axis in axes
    ]
    return replace(first.finish(others), vibration=max(severities, key=lambda severity: severity.velocity or 0.0))


def _beginning(blocks: Iterable[Floats], rate: float | None) -> tuple[Floats, Iterator[Floats]]:
    """The first seconds, in which the speed is measured, and an iterator over all blocks, including these."""
    first, rest, most = list[Floats](), iter(blocks), int(min(FOLLOWED * (rate or 0.0), MOST_HELD))
    while sum(map(len, first)) < most and (block := next(rest, None)) is not None:
        first.append(block)
    signal = np.concatenate(first)[:most] if first else np.empty(0, dtype=np.float32)
    return signal, chain(first, rest)


def _tacho(channel: FoundRecording | None, rate: float | None, stated: float | None) -> NDArray[np.float64] | None:
    """rpm over time from a channel that holds the speed, or pulses; `rate` is for a file that states none."""
    if channel is None:
        return None
    stream, speed = channel.open(), None
    rate = stream.rate or rate
    samples, _ = _beginning(stream.blocks, rate)
    if stream.gaps is not None:
        stream.gaps.check()
    if rate is not None and samples.size:
        speed = speed_of_channel(samples, rate, stated, unit_of(channel.channel or ""))
    if speed is None and channel.states_speed and rate is not None:
        holds = f"its channel '{channel.channel}' holds neither a speed in rpm nor pulses of one"
        raise InputError(f"{stream.origin}: {holds}; give the speed as a number", "rpm")
    return speed
