"""Recordings → diagnoses: read → measure → ask the model, if there is one → decide.

`bearcat diagnose`, `predict`, `bearcat.diagnose`, the server and the assistant call `diagnose`. It examines recordings
and decides on what was found; `adapt` decides on its model in between, and `watch` compares with a point's past. A
signal is measured once.

>>> request = DiagnoseRequest(rpm="1480", bearing="6205")
>>> diagnose([Path("pump")], open_model(Path("out/model")), request=request).summary
'14 recordings: 9 alarm, 5 ok.'
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.channels import unit_of
from bearcat.data.manifest import is_time
from bearcat.data.recording import Recording, stated_speed
from bearcat.deploy.find import FoundMeasurement, FoundRecording, FoundUnit, Given, find_units, split_name
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.physics import PhysicsEvidence, cross_talk, known_baseline, loudness
from bearcat.diagnosis.quality import Channel, clipped_share
from bearcat.diagnosis.recording import Diagnoses, Observation
from bearcat.diagnosis.signal import observe
from bearcat.diagnosis.speed import SpeedEvidence, beginning_of, speed_course, speed_of_channel
from bearcat.errors import InputError, bug
from bearcat.findings import CLIPPED_MUCH, SHOWN_LINE, Finding
from bearcat.settings import DiagnoseRequest

if TYPE_CHECKING:
    from bearcat.deploy.opened import Predictor

History = Mapping[str | None, Sequence[PhysicsEvidence]]  # of recordings known to be healthy, by point

Recorded = str | Path | NDArray[Any]  # a file, a folder, a manifest, or a signal (time,)
Course = tuple[SpeedEvidence, NDArray[np.float64] | None]  # of a recording's speed, and its track if that varies


def diagnose(
    recordings: Sequence[Recorded | FoundUnit], model: Predictor | None = None, healthy: Sequence[Recorded] = (),
    request: DiagnoseRequest | None = None,
) -> Diagnoses:  # fmt: skip
    """A diagnosis of every point; an unusable recording gets one that says why, and the others go on.

    `healthy` are known good recordings: lines that are already in them raise no alarm.
    """
    request = request or DiagnoseRequest()
    given = Given.of(request, () if model is None else model.classes)
    return decide_together(examine(recordings, given, model, healthy, request.jobs))


def examine(
    recordings: Sequence[Recorded | FoundUnit], given: Given, model: Predictor | None = None,
    healthy: Sequence[Recorded] = (), jobs: int = 1,
) -> list[Observation]:  # fmt: skip
    """The evidence that `diagnose` decides on; `bearcat adapt` first decides with it whether to use its new model.

    Units that were measured are not measured again.
    """
    history = _usual_lines(healthy, given) if len(healthy) else {}
    given = given if model is None else given.with_model(model)
    work = partial(_examine, model=model, history=history, given=given)
    return [point for points in in_processes(work, list(_units(recordings, given)), jobs) for point in points]


def _units(recordings: Sequence[Recorded | FoundUnit], given: Given) -> Iterator[FoundUnit]:
    """Finds the measurements of files, folders and arrays, without opening them."""
    for number, recording in enumerate(recordings):
        if isinstance(recording, FoundUnit):
            yield recording
        elif isinstance(recording, np.ndarray):
            if given.speed is not None:
                raise InputError(f"rpm: an array has no channel '{given.speed}'; give a number", "rpm")
            name = f"array {number}" if len(recordings) > 1 else "array"
            yield FoundUnit.of(Recording(signal=recording, rate=given.rate, domain="", origin=name))
        else:
            yield from find_units(Path(recording), given)


def _usual_lines(healthy: Sequence[Recorded], given: Given) -> History:
    """Fault lines of healthy recordings, by point; InputError if none can be read."""
    usual = defaultdict[str | None, list[PhysicsEvidence]](list)
    for observation in examine(healthy, given):
        if observation.problem is not None:
            raise observation.problem
        if observation.physics is not None:
            usual[observation.point].append(observation.physics)
    if not usual:
        raise InputError("--healthy: no line can be read in these recordings; name others, with speed and bearing")
    return dict(usual)


def _examine(unit: FoundUnit, model: Predictor | None, history: History, given: Given) -> list[Observation]:
    """The evidence of one unit; a bug in bearcat is printed, and the other units go on."""
    try:
        measured = unit if isinstance(unit, MeasuredUnit) else measure_unit(unit, given)
        points = measured.points if model is None else _asked(measured, model, given)
        return [completed(point, history) for point in points]
    except (InputError, OSError) as error:
        return [_unusable(unit.name, error)]
    except Exception as error:
        return [Observation(unit.name, problem=bug(unit.name, error))]


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
class MeasuredUnit(FoundUnit):
    """A unit whose signals were measured, and compared with those of its neighbours."""

    points: list[Observation]


def measure_unit(unit: FoundUnit, given: Given) -> MeasuredUnit:
    """Opens a unit, which stays open, and measures it."""
    try:
        opened = unit.open()
    except (InputError, OSError) as error:
        return MeasuredUnit(unit.name, unit.open, [_unusable(unit.name, error)])
    points = [point for measurement in opened for point in _beside_each_other(measure_points(measurement, given))]
    return MeasuredUnit(unit.name, lambda: opened, points)


def measure_points(measurement: FoundMeasurement, given: Given) -> list[Observation]:
    """What the signals of each point say; a point that cannot be used does not stop the others."""
    observations = []
    for name, axes in measurement.points.items():
        try:
            observations.append(_measure(name, axes, given, measurement.speed))
        except (InputError, OSError) as error:
            observations.append(_unusable(name, error))
    return observations


def _unusable(name: str, error: InputError | OSError) -> Observation:
    problem = error if isinstance(error, InputError) else InputError(f"{name}: {error}")
    return Observation(name, problem=problem.with_traceback(None))  # whose frames would keep the samples


def _measure(name: str, axes: Sequence[FoundRecording], given: Given, speed: FoundRecording | None) -> Observation:
    """Reads the axes of a point: speed, fault lines, levels, and what is stated about it."""
    first, channels, courses = axes[0], list[Channel](), list[Course]()
    noticed = given.differences(first)
    bearing = next(filter(None, map(given.bearing_of, axes)), None)
    orders = None if bearing is None else bearing.orders()
    for found in axes:
        recording, declared = found.read(), given.declared.completed(found.declared, found.channel or "")
        stated, contradiction = stated_speed(recording.origin, recording.own_rpm, found.rpm, given.rpm)
        noticed += [] if contradiction is None else [contradiction]
        rpm, unit = stated or given.assumed_rpm, unit_of(found.channel or "") or declared.unit
        rate = given.rate_of(recording)
        channels.append(Channel(recording.origin, recording.signal, rate, unit, recording.gaps, rpm, declared))
        tacho = _tacho(recording, speed, given, rpm)
        courses.append(speed_course(recording.signal, rate, orders, rpm, given.trust_speed, tacho))
    measured, track = max(courses, key=lambda course: course[0].clarity)  # axes of one bearing have one speed
    observed = observe(channels, measured, bearing, track, given.without, given.measured, given.search is not False)
    doubts, problem = list(measured.findings), observed.no_lines
    if problem is not None and problem.field is None:
        noticed.append(Finding("no lines read", "remark", {"problem": str(problem)}))
    elif problem is not None and problem.field == "rpm" and measured.rpm is None:
        doubts.append(Finding("speed not found", "check"))
    noticed += [doubt.but("remark") if given.trust_speed else doubt for doubt in doubts]
    folder, named = split_name(first.origin, first.path)[0], split_name(name, first.path)[2]
    return replace(
        observed, recording=name, machine=first.machine or first.domain or str(Path(folder)),
        point=first.point or named or None, observed=(*noticed, *observed.observed),
        rule=given.rule, bearing=None if observed.physics is None else str(bearing),
        machine_stated=first.machine is not None or is_time(first.path.stem),
        channels=tuple(found.origin for found in axes),
    )  # fmt: skip


def _tacho(
    recording: Recording, channel: FoundRecording | None, given: Given, stated: float | None
) -> NDArray[np.float64] | None:
    """rpm over time, from a channel that holds the speed or pulses of it."""
    samples, name, said = recording.speed, recording.rpm_channel, True
    if channel is not None:
        recording, name, said = channel.read(), channel.channel, given.speed is not None
        samples = recording.signal
    if samples is None or (rate := recording.rate or given.rate) is None:
        return None
    speed = speed_of_channel(beginning_of(samples, rate), rate, stated, unit_of(name or ""))
    if speed is None and said:
        holds = f"its channel '{name}' holds neither a speed in rpm nor pulses of one"
        raise InputError(f"{recording.origin}: {holds}; give the speed as a number", "rpm")
    return speed


def _asked(unit: MeasuredUnit, model: Predictor, given: Given) -> list[Observation]:
    """The points of the unit with the model's answers."""
    from bearcat.deploy.opened import answered  # other commands start without it

    if all(point.problem is not None for point in unit.points):
        return unit.points
    axes, points = dict[str, Sequence[FoundRecording]](), list[Observation]()
    for measurement in unit.open():
        axes |= measurement.points
    for point in unit.points:
        try:
            points.append(answered(point, axes[point.recording], model, given))
        except (InputError, OSError) as error:
            points.append(_unusable(point.recording, error))
    return points


def _beside_each_other(points: Sequence[Observation]) -> list[Observation]:
    """The points of one measurement. A line at several of them belongs to the loudest; at the others it is cross-talk,
    which makes the decision `check`.
    """
    lines, compared = [loudness(point.physics) for point in points], list[Observation]()
    for point, excesses, louder in zip(points, lines, cross_talk(lines), strict=True):
        for fault in sorted(louder, key=lambda fault: excesses[fault].excess):
            if excesses[fault].excess >= SHOWN_LINE:
                decibels, owner = louder[fault]
                name = points[owner].recording.rpartition("#")[2]
                values = {"fault": fault, "decibels": decibels, "owner": name}
                physics = point.physics and point.physics.without_lines(fault)
                point = replace(
                    point, witnesses=replace(point.witnesses, physics=physics, general=None),
                    observed=(Finding("cross-talk", "check", values), *point.observed),
                )  # fmt: skip
        compared.append(point)
    return compared


def completed(point: Observation, history: History | None = None) -> Observation:
    """The evidence of a point beside known healthy recordings of it, or why it cannot be diagnosed."""
    problem, physics = point.problem or _lacking(point), point.physics
    if problem is not None:
        return Observation(point.recording, problem=problem)
    if physics is None or not history:
        return point
    baseline = known_baseline(history.get(point.point) or history.get(None) or (), physics)
    remarks = () if baseline is not None else (Finding("no baseline", "remark"),)
    witnesses = replace(point.witnesses, baseline=baseline)
    return replace(point, witnesses=witnesses, observed=(*point.observed, *remarks))


def _lacking(point: Observation) -> InputError | None:
    """What prevents a diagnosis: a missing statement, or clipping; a speed that could not be measured does not."""
    answered = point.network is not None and clipped_share(point.observed) <= CLIPPED_MUCH
    unknown = point.speed is not None and point.speed.rpm is None
    if (problem := point.no_lines) is None or answered or (unknown and problem.field == "rpm"):
        return None
    return InputError(f"{point.recording}: {problem}", problem.field, readable=True)
