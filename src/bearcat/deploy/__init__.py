"""The one way from recordings to diagnoses: read → measure → ask the model, where there is one → decide.

`bearcat diagnose`, `predict`, `adapt`, `watch`, `bearcat.diagnose`, the server and the assistant all come here. A
signal is measured once, a block of samples at a time, and decided once, beside the others of its point.

>>> request = DiagnoseRequest(rpm="1480", bearing="6205")
>>> diagnose([Path("pump")], open_model(Path("out/model")), request=request).summary
'14 recordings: 9 alarm, 5 ok.'
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import chain
from operator import add
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
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.fusion import NetworkEvidence, Witnesses
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.lines import cross_talk
from bearcat.diagnosis.physics import PhysicsEvidence, known_baseline, loudness
from bearcat.diagnosis.pooling import Pooled, Tally, pool
from bearcat.diagnosis.quality import QualityCheck, vibration_severity
from bearcat.diagnosis.recording import Diagnoses, Observation
from bearcat.diagnosis.signal import SignalAnalysis, SignalEvidence
from bearcat.diagnosis.speed import FOLLOWED, SpeedCourse, SpeedEvidence, speed_course, speed_of_channel
from bearcat.errors import InputError
from bearcat.findings import SHOWN_LINE, Finding
from bearcat.settings import DiagnoseRequest

if TYPE_CHECKING:
    from bearcat.deploy.opened import Predictor

MOST_HELD = 1 << 23  # samples of a recording's beginning
History = Mapping[str | None, Sequence[PhysicsEvidence]]  # of recordings known to be healthy, by point


Recorded = str | Path | NDArray[Any]  # a file, a folder, a manifest, or a signal (time,)


def diagnose(
    recordings: Sequence[Recorded | FoundUnit], model: Predictor | None = None, healthy: Sequence[Recorded] = (),
    request: DiagnoseRequest | None = None, given: Given | None = None,
) -> Diagnoses:  # fmt: skip
    """A diagnosis of every point; a recording that cannot be used has one that says why, and stops no other.

    `healthy` are known good recordings: lines that were always there are no alarm. `given` stands in place of what the
    request says of the recordings.
    """
    request = request or DiagnoseRequest()
    given = given or Given.of(request, () if model is None else model.classes)
    history = _usual_lines(healthy, given) if len(healthy) else {}
    units, work = _units(recordings, given, model), partial(examine, model=model, history=history, given=given)
    evidence, notes = list[Observation](), list[str]()
    for observations, channel_notes in in_processes(work, list(units), request.jobs):
        evidence += observations
        notes += channel_notes
    return Diagnoses(decide_together(evidence), notes)


def _units(recordings: Sequence[Recorded | FoundUnit], given: Given, model: Predictor | None) -> Iterator[FoundUnit]:
    """The measurements of files, folders and arrays, not opened yet."""
    for number, recording in enumerate(recordings):
        if isinstance(recording, FoundUnit):
            yield recording
        elif isinstance(recording, np.ndarray):
            if given.speed is not None:
                raise InputError(f"rpm: an array has no channel '{given.speed}'; give a number", "rpm")
            array = array_recording(recording, given.rate, f"array {number}" if len(recordings) > 1 else "array")
            yield FoundUnit(array.name, partial(list, [alone(array)]))
        else:
            yield from find_units([Path(recording)], given, None if model is None else model.channel)


def _usual_lines(healthy: Sequence[Recorded], given: Given) -> History:
    """Fault lines of healthy recordings, by point; InputError where none can be read."""
    usual = defaultdict[str | None, list[PhysicsEvidence]](list)
    for diagnosis in diagnose(healthy, given=given):
        if diagnosis.problem is not None:
            raise diagnosis.problem
        if diagnosis.physics is not None:
            usual[diagnosis.point].append(diagnosis.physics)
    if not usual:
        raise InputError("--healthy: no line can be read in these recordings; name others, with speed and bearing")
    return dict(usual)


Examined = tuple[list[Observation], list[str]]  # of each point, and notes on the channels


def examine(
    unit: FoundUnit, model: Predictor | None, history: History, given: Given,
    before: Callable[[], Sequence[MeasuredPoints]] | None = None,
) -> Examined:  # fmt: skip
    """The evidence of one measurement; a bug of bearcat is printed, and stops this one alone. `before` gives what was
    measured already: then the model is asked, and nothing is measured again.
    """
    try:
        evidence, notes = list[Observation](), list[str]()
        asked = None if model is None or before is None else ask_unit(unit, given, model, before())
        for found, measured in asked or measure_unit(unit, given, model):
            evidence += evidence_of(found, measured, given, model, history)
            notes += [f"{found.name}: {note}" for note in found.notes if len(found.points) > 1]
        return evidence, notes
    except Exception as error:
        traceback.print_exc()
        sentence = f"{unit.name}: {type(error).__name__}; please report this bug with the lines above"
        return [Observation(unit.name, problem=InputError(sentence, readable=True))], []


def in_processes(function: Callable[[Any], Any], values: Sequence[Any], jobs: int) -> Iterator[Any]:
    """The function of each value, in order, by so many processes; 0: one a core."""
    if jobs == 1 or len(values) < 2:
        yield from map(function, values)
        return
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed, parallel_config  # type: ignore[import-untyped]
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]

    try:
        with parallel_config("loky", n_jobs=jobs or -1, inner_max_num_threads=1):
            yield from Parallel(return_as="generator")(delayed(function)(value) for value in values)
    except BrokenProcessPool as error:
        ended = "a process that measured recordings ended, perhaps for want of memory"
        raise InputError(f"{ended}; use fewer --jobs, nothing is lost") from error
    finally:  # a later call may have another current folder or another model
        get_reusable_executor().shutdown(wait=True)


@dataclass(frozen=True, eq=False)
class MeasuredPoint:
    """Evidence of the signals of a point, of a model, and remarks made while reading; or the problem."""

    signal: SignalEvidence = field(default_factory=SignalEvidence)
    network: NetworkEvidence | None = None
    noticed: tuple[Finding, ...] = ()
    problem: InputError | None = None

    @property
    def lacking(self) -> InputError | None:
        """Why nothing can be diagnosed: a missing statement, but no speed that could not be measured; or clipping,
        whatever a model says.
        """
        signal, problem, quality = self.signal, self.signal.problem, self.signal.quality
        silent = quality is not None and quality.no_signal is not None
        clipped = quality is not None and quality.beyond_use
        if problem is None or silent or ((self.network or signal.family) and not clipped):
            return None
        unknown = signal.speed is not None and signal.speed.rpm is None
        return None if unknown and problem.field == "rpm" else InputError(str(problem), problem.field, readable=True)


MeasuredPoints = tuple[FoundMeasurement, list[MeasuredPoint]]


def measure_unit(
    unit: FoundUnit, given: Given, model: Predictor | None = None, search: bool = True
) -> list[MeasuredPoints]:
    """Opens a unit and measures it; its files are closed then. Without `search`, a model will be asked later."""
    try:
        return [(found.closed(), measure_points(found, given, model, search)) for found in unit.open()]
    except (InputError, OSError) as error:
        return [_unreadable(unit, error)]


def _unreadable(unit: FoundUnit, error: InputError | OSError) -> MeasuredPoints:
    problem = error if isinstance(error, InputError) else InputError(f"{unit.name}: {error}")
    return alone(FoundRecording(closed, unit.name)), [MeasuredPoint(problem=problem.with_traceback(None))]


def measure_points(
    found: FoundMeasurement, given: Given, model: Predictor | None = None, search: bool = True
) -> list[MeasuredPoint]:
    """The evidence of each point of a measurement; a point that cannot be used does not stop the others."""
    measured = []
    for point in found.points:
        try:
            measured.append(_measure(point, given, model, found.speed, search))
        except InputError as error:  # frames of the traceback would keep the file open
            measured.append(MeasuredPoint(problem=error.with_traceback(None)))
    return measured


def ask_unit(unit: FoundUnit, given: Given, model: Predictor, before: Sequence[MeasuredPoints]) -> list[MeasuredPoints]:
    """What was measured before, with the model's answer. The samples are read again, and not measured."""
    try:
        opened = [found.points for found in unit.open()]
    except (InputError, OSError) as error:
        return [_unreadable(unit, error)]
    asked = []
    for points, (found, measured) in zip(opened, before, strict=True):
        answers = [_answered(point, each, given, model) for point, each in zip(points, measured, strict=True)]
        asked.append((found, answers))
    return asked


def _answered(point: FoundPoint, measured: MeasuredPoint, given: Given, model: Predictor) -> MeasuredPoint:
    """The same point with the model's answer."""
    from bearcat.deploy.ask import ask

    if measured.problem is not None or measured.signal.speed is None:
        return measured
    tallies, noticed = list[Tally](), list[Finding]()
    try:
        for recording in point.recordings:
            stream = recording.open()
            stream = replace(stream, rate=given.rate_of(stream))
            tallied, about = ask(model, recording, stream, measured.signal.speed, given)
            tallies.append(tallied)
            noticed += about
    except InputError as error:
        return MeasuredPoint(problem=error.with_traceback(None))
    return replace(measured, network=_pooled(model, tallies), noticed=(*measured.noticed, *noticed))


def measure_speeds(unit: FoundUnit, given: Given) -> dict[str, SpeedEvidence]:
    """The speed of each recording of a unit, by its name, and nothing else; none of what cannot be read."""
    speeds = dict[str, SpeedEvidence]()
    with suppress(InputError, OSError):
        for found in unit.open():
            for point in found.points:
                course = _open(point, given, None, found.speed).course
                speeds |= {recording.name: course.evidence for recording in point.recordings}
    return speeds


def evidence_of(
    found: FoundMeasurement, measured: Sequence[MeasuredPoint], given: Given, model: Predictor | None = None,
    history: History | None = None,
) -> list[Observation]:  # fmt: skip
    """An observation of each point. A line that several points show belongs to the loudest; on the others it is
    cross-talk, which is to be checked.
    """
    borrowed, evidence = cross_talk([loudness(each.signal.physics) for each in measured]), list[Observation]()
    for point, each, lines in zip(found.points, measured, borrowed, strict=True):
        if (problem := each.problem or each.lacking) is not None:
            evidence.append(Observation(point.name, problem=problem))
            continue
        signal, network, talk = each.signal, each.network, list[Finding]()
        physics, general = signal.physics, signal.general
        first = point.recordings[0]
        place = first.point or point.name.partition("#")[2] or None
        levels = {} if physics is None else {fault: physics.faults[fault].level for fault in lines}
        for fault in sorted(levels, key=lambda name: -levels[name]):
            if physics is not None and physics.faults[fault].level - physics.reference_level >= SHOWN_LINE:
                owner = found.points[lines[fault].owner].name.rpartition("#")[2]
                values = {"fault": fault, "decibels": lines[fault].decibels, "owner": owner}
                talk.append(Finding("cross-talk", "check", values))
                physics, general = physics.without_lines(fault), None
        doubts = signal.speed_findings
        noticed = [*given.differences(first), *talk, *each.noticed]
        noticed += [doubt.but("remark") if given.trust_speed else doubt for doubt in doubts]
        known = () if history is None else history.get(place) or history.get(None) or ()
        baseline = None if physics is None else known_baseline(known, physics)
        if history and baseline is None and physics is not None:
            noticed.append(Finding("no baseline", "remark"))
        physics = None if physics is None else replace(physics, levels=None)
        file, quality = Path(first.name.partition("#")[0]), signal.quality
        assumed = None if model is None else model.bearing
        bearing = None if physics is None else given.bearing_of(first) or assumed
        evidence.append(Observation(
            point.name, Witnesses(physics, general, network, baseline, given.without),
            first.machine or first.folder or str(file.parent), place,
            (*noticed, *(() if quality is None else quality.findings)), given.rule, bool(talk),
            None if quality is None else quality.rms, signal.speed, signal.family, signal.vibration, signal.drawing,
            None if bearing is None else str(bearing), first.machine is not None or is_time(file.stem),
            None if quality is None else quality.no_signal,
        ))  # fmt: skip
    return evidence


@dataclass(frozen=True, eq=False)
class _Axis:
    """One channel of a point, whose beginning was read."""

    found: FoundRecording
    stream: Stream
    check: QualityCheck
    beginning: Floats
    blocks: Iterator[Floats]  # those of the beginning again


@dataclass(frozen=True, eq=False)
class _OpenedPoint:
    """The axes of a point, whose speed is known, and remarks."""

    axes: list[_Axis]
    course: SpeedCourse
    orders: Mapping[str, float] | None
    doubt: Finding | None  # about the orders
    noticed: list[Finding]


def _open(point: FoundPoint, given: Given, model: Predictor | None, tacho: FoundRecording | None) -> _OpenedPoint:
    """Reads the beginning of the axes of a point, and measures the speed there."""
    noticed, axes, courses, orders, doubt = list[Finding](), list[_Axis](), list[SpeedCourse](), None, None
    for found in point.recordings:
        stream = found.open()
        own_rate, (stated, otherwise), assumed = given.rate_of(stream), given.rpm_of(found, stream), None
        noticed += [otherwise] if otherwise is not None else []
        stream = stream if stream.rate == own_rate else replace(stream, rate=own_rate)
        if model is not None:  # which knows what it was adapted to
            assumed, own_rate, stated = model.bearing, own_rate or model.preparation.rate, stated or model.rpm
        if orders is None:
            bearing = given.bearing_of(found, assumed)
            orders, doubt = (None, None) if bearing is None else (bearing.orders(), bearing.doubt)
        unit = unit_of(found.channel or "") or given.declared_of(found).unit
        check = QualityCheck(own_rate, unit, stream.gaps)
        beginning, blocks = _beginning(check.observe(stream.blocks), own_rate)
        axes.append(_Axis(found, stream, check, beginning, blocks))
        speed = _tacho(tacho, given.rate, stated)
        courses.append(speed_course(beginning, own_rate, orders, stated, given.trust_speed, speed))
    course = max(courses, key=lambda each: each.clarity)  # axes of one bearing have one speed
    return _OpenedPoint(axes, course, orders, doubt, noticed)


def _measure(
    point: FoundPoint, given: Given, model: Predictor | None, tacho: FoundRecording | None, search: bool = True
) -> MeasuredPoint:
    """Reads the axes of a point once: speed, fault lines, levels, and the model's windows."""
    opened = _open(point, given, model, tacho)
    axes, course, asked = opened.axes, opened.course, list[Finding]()
    analyses, tallies = list[SignalAnalysis](), list[Tally]()
    # Lines of any bearing are all that can be read where nobody names one, and no model or history speaks.
    search = given.search or (search and model is None)
    for axis in axes:
        analyses.append(SignalAnalysis(
            axis.stream.origin, axis.check, course, opened.orders, axis.beginning, given.without, given.measured,
            search, opened.doubt,
        ))  # fmt: skip
        blocks = analyses[-1].observe(axis.blocks)
        if model is None:
            for _ in blocks:
                pass
        else:
            from bearcat.deploy.ask import ask  # other commands start without it

            tallied, about = ask(model, axis.found, replace(axis.stream, blocks=blocks), course.evidence, given)
            tallies.append(tallied)
            asked += about
    signal, network, noticed = _united(analyses, axes, course, given), None, opened.noticed
    if model is not None:
        network = _pooled(model, tallies)
        if model.metadata.get("recipe") == "general":
            signal = replace(signal, general=None)  # it would count twice
    if (problem := signal.problem) is not None and problem.field is None:
        noticed.append(Finding("no lines read", "remark", {"problem": problem.beside(analyses[0].recording)}))
    return MeasuredPoint(signal, network, (*noticed, *asked))


def _pooled(model: Predictor, tallies: Sequence[Tally]) -> NetworkEvidence:
    """The model's answer on the windows of all axes."""
    pooled = pool(reduce(add, tallies), model.pooled_temperature, model.familiarity)
    return network_evidence(pooled, model.classes, model.decision, model.shift)


def _united(
    analyses: Sequence[SignalAnalysis], axes: Sequence[_Axis], course: SpeedCourse, given: Given
) -> SignalEvidence:
    """The evidence of all axes of a point together; of their velocities the worst, as ISO 20816 asks."""
    first, *others = analyses
    severities = [
        vibration_severity(axis.check.beginning, axis.check.rate, given.declared_of(axis.found), course.evidence.rpm)
        for axis in axes
    ]
    return replace(first.finish(others), vibration=max(severities, key=lambda each: each.velocity or 0.0))


def network_evidence(pooled: Pooled, classes: Sequence[str], decision: Decision, shift: str | None) -> NetworkEvidence:
    """A model's pooled windows as a witness; `decision` is the model's own, `shift` that to its target."""
    shares, seen = dict(zip(classes, pooled.probabilities.tolist(), strict=True)), (pooled.unfamiliar, pooled.familiar)
    return NetworkEvidence(shares, pooled.agreement, pooled.windows, decision.action, decision.expected, *seen, shift)


def _beginning(blocks: Iterable[Floats], rate: float | None) -> tuple[Floats, Iterator[Floats]]:
    """The first seconds, in which the speed is measured, and all blocks, those of the beginning again."""
    held, rest, most = list[Floats](), iter(blocks), int(min(FOLLOWED * (rate or 0.0), MOST_HELD))
    while sum(map(len, held)) < most and (block := next(rest, None)) is not None:
        held.append(block)
    signal = np.concatenate(held)[:most] if held else np.empty(0, dtype=np.float32)
    return signal, chain(held, rest)


def _tacho(found: FoundRecording | None, rate: float | None, stated: float | None) -> NDArray[np.float64] | None:
    """rpm over time from a channel that holds the speed, or pulses; `rate` is for a file that states none."""
    if found is None:
        return None
    stream, speed = found.open(), None
    own = stream.rate or rate
    samples, _ = _beginning(stream.blocks, own)
    if stream.gaps is not None:
        stream.gaps.check()
    if own is not None and samples.size:
        speed = speed_of_channel(samples, own, stated, unit_of(found.channel or ""))
    if speed is None and found.states_speed and own is not None:
        holds = f"its channel '{found.channel}' holds neither a speed in rpm nor pulses of one"
        raise InputError(f"{stream.origin}: {holds}; give the speed as a number", "rpm")
    return speed
