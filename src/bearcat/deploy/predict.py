"""Files of new recordings → diagnoses, a block of samples at a time.

One recording after the other, or by several processes: the same answers, in the same order.

>>> model = open_model(Path("out/model"))
>>> for measurement in find_measurements([Path("pump")], model):
...     print([diagnosis.decision for diagnosis in diagnose_measurement(measurement, model)])
"""

from __future__ import annotations

import os
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from itertools import chain
from operator import add
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing
from bearcat.data.channels import Declared, unit_of
from bearcat.data.isolated import open_stream as open_stream  # so that all one needs to predict comes from here
from bearcat.data.recording import Floats, stated_speed
from bearcat.data.stream import Stream
from bearcat.data.times import is_time
from bearcat.deploy.find import FoundMeasurement, FoundPoint, FoundRecording, FoundUnit
from bearcat.deploy.folder import open_folder
from bearcat.deploy.predictor import Predictor, load_onnx
from bearcat.deploy.windows import WindowPredictions, at_rate_of, tally_stream
from bearcat.diagnosis.comparison import cross_talk, known_baseline, loudness
from bearcat.diagnosis.decision import REFUSE
from bearcat.diagnosis.fusion import NetworkEvidence, Witnesses
from bearcat.diagnosis.physics import PhysicsEvidence
from bearcat.diagnosis.pooling import Tally, pool
from bearcat.diagnosis.quality import QualityCheck
from bearcat.diagnosis.recording import AlarmRule, Diagnosis, network_evidence
from bearcat.diagnosis.signal import (
    FOLLOWED,
    SignalAnalysis,
    SignalEvidence,
    SpeedCourse,
    speed_course,
    speed_of_channel,
)
from bearcat.errors import InputError
from bearcat.findings import SHOWN_LINE, Finding
from bearcat.ranges import check_range

MOST_HELD = 1 << 23  # samples of a recording's beginning
REPLACED = {"other rate": "rate", "other speed": "rpm"}  # findings on what a file says and is replaced
SAME_RATE = 1e-4  # by which two statements of one rate may differ
GENERAL = Path(__file__).parents[1] / "general"  # the model of benchmarks/general_model.py


def open_model(path: Path) -> Predictor:
    """The model in a folder, or in a file that ends in .onnx; `general` is the one that comes with the package."""
    path = GENERAL if str(path) == GENERAL.name and not (Path(path) / "model.json").exists() else Path(path)
    if path.suffix.lower() == ".onnx":
        return load_onnx(path, threads=1)
    try:
        if (found := open_folder(path)) is not None:
            return found
        from bearcat.deploy.model import load_model
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        instead = f"pip install {error.name}, or use the file that bearcat export writes elsewhere"
        raise InputError(f"{path}: this model folder needs {error.name}; {instead}") from error
    return load_model(path)


@dataclass(frozen=True, eq=False)
class Given:
    """What a user says of all recordings, where they do not say it themselves; what is None is the model's.

    With `override`, what the user says replaces what files, manifests and folders say; None: it cannot be asked for.
    """

    rate: float | None = None
    rpm: float | None = None
    bearing: Bearing | None = None
    orders: Mapping[str, float] | None = None  # in place of a bearing
    healthy: Mapping[str | None, Sequence[PhysicsEvidence]] = field(default_factory=dict)  # known good ones, by point
    rule: AlarmRule | None = None
    trust_speed: bool = False  # a stated speed is not checked
    measured: bool = False  # whether levels and spectra are kept, of recordings too that are too short to be diagnosed
    search: bool = False  # look for lines of any bearing where a recording's is not known
    declared: Declared = field(default_factory=Declared)  # unit, group and mounting, for the zone of ISO 20816-3
    override: bool | None = None

    def __post_init__(self) -> None:
        check_range("rate", self.rate, field="rate")
        check_range("rpm", self.rpm, field="rpm")

    def rate_of(self, stream: Stream) -> float | None:
        """The stream's own, else the given one; InputError where they differ and nothing is to be overridden."""
        if self.rate is None or stream.rate is None or self.override or abs(stream.rate / self.rate - 1) < SAME_RATE:
            return (self.rate or stream.rate) if self.override else (stream.rate or self.rate)
        differ = f"says that it is at {stream.rate:g} Hz, and {self.rate:g} Hz is given"
        instead = "leave the rate out" + ("" if self.override is None else ", or add --override")
        raise InputError(f"{stream.origin}: {differ}; {instead}", "rate")

    def rpm_of(self, found: FoundRecording, stream: Stream) -> tuple[float | None, Finding | None]:
        """The stated speed, and what a person should know where the file says otherwise."""
        return stated_speed(stream.origin, stream.rpm, found.rpm, self.rpm, self.override)

    def bearing_of(self, found: FoundRecording, assumed: Bearing | None = None) -> Bearing | None:
        """The recording's or the given one, else the `assumed` one; None where orders are given, or it is said to be
        unknown.
        """
        said = self.search or (self.bearing or self.orders) is not None
        if found.bearing is not None and not (said and self.override):
            return found.bearing
        return self.bearing if said else assumed

    def differences(self, found: FoundRecording) -> list[Finding]:
        """Where a recording says otherwise than the user."""
        said, own = self.orders or _orders(self.bearing), _orders(found.bearing)
        differing = list[dict[str, Any]]()
        if self.rpm is not None and found.rpm is not None and self.rpm != found.rpm:
            differing.append({"about": "rpm", "stated": found.rpm, "given": self.rpm})
        if said is not None and own is not None and any(abs(said[name] / own[name] - 1) > 1e-3 for name in said):
            differing.append({"about": "bearing", "stated": str(found.bearing)})
        if self.search and self.override and own is not None:
            differing.append({"about": "unknown bearing", "stated": str(found.bearing)})
        counts = {"overridden": bool(self.override), "can_override": self.override is not None}
        return [Finding("statements differ", "remark", values | counts) for values in differing]


def _orders(bearing: Bearing | None) -> Mapping[str, float] | None:
    return None if bearing is None else bearing.orders()


Shown = Callable[[Stream, WindowPredictions], None] | None
Heard = tuple[SignalEvidence, NetworkEvidence | None, list[Finding]]  # by signal and model, and while reading


def diagnose_measurement(
    found: FoundMeasurement, model: Predictor | None = None, given: Given | None = None, show: Shown = None
) -> list[Diagnosis]:
    """A diagnosis for each point of what was recorded at once; InputError where a file cannot be used.

    Where a recording says otherwise than the user a finding says which counts, and whether that changed the answer.
    """
    given = given or Given()
    diagnoses = _diagnose(found, model, given, show)
    differing = [given.differences(point.recordings[0]) for point in found.points]
    before: Sequence[Diagnosis | None] = [None] * len(diagnoses)
    kinds = {finding.kind for each in diagnoses for finding in each.findings}
    replaced: dict[str, Any] = {name: None for kind, name in REPLACED.items() if kind in kinds}
    if given.override and (any(differing) or replaced):
        with suppress(InputError):
            before = _diagnose(found, model, replace(given, override=False, **replaced))
    annotated = []
    for each, other, findings in zip(diagnoses, before, differing, strict=True):
        if other is not None and (other.decision.action, other.state) != (each.decision.action, each.state):
            findings.append(Finding("answer changed", "remark", {"before": other.answer, "after": each.answer}))
        annotated.append(each.remarked(findings))
    return annotated


def _diagnose(found: FoundMeasurement, model: Predictor | None, given: Given, show: Shown = None) -> list[Diagnosis]:
    """A diagnosis for each point. A line that several show belongs to the loudest: on the others it is cross-talk,
    which is to be checked.
    """
    diagnoses = list[Diagnosis]()
    heard, problems = listen(found, model, given, show)
    if problems and len(found.points) == 1:
        raise problems[found.points[0].name]
    borrowed = cross_talk([loudness(signal.physics) for signal, _, _ in heard])
    for point, (signal, network, noticed), lines in zip(found.points, heard, borrowed, strict=True):
        if point.name in problems:
            problem = problems[point.name]
            diagnoses.append(Diagnosis.undecided(point.name, problem, command_line=True))
            continue
        physics, general, talk = signal.physics, signal.general, list[Finding]()
        first = point.recordings[0]
        place = first.point or point.name.partition("#")[2] or None
        levels = {} if physics is None else {fault: physics.faults[fault].level for fault in lines}
        for fault in sorted(levels, key=lambda name: -levels[name]):
            if physics is not None and physics.faults[fault].level - physics.reference_level >= SHOWN_LINE:
                owner = found.points[lines[fault].owner].name.rpartition("#")[2]
                values = {"fault": fault, "decibels": lines[fault].decibels, "owner": owner}
                talk.append(Finding("cross-talk", "check", values))
                physics, general = physics.without_lines(fault), None
        doubts = signal.speed_findings(alone=network is None or network.action == REFUSE)
        noticed = [*talk, *(each.but("remark") if given.trust_speed else each for each in doubts), *noticed]
        history = given.healthy.get(place) or given.healthy.get(None) or ()
        baseline = None if physics is None else known_baseline(history, physics)
        if given.healthy and baseline is None and physics is not None:
            noticed.append(Finding("no baseline", "remark"))
        if physics is not None:
            physics = replace(physics, evidence=None, levels=None)
        file = Path(first.name.partition("#")[0])
        machine = first.machine or str(file.parent)
        diagnosis = Diagnosis.of(
            point.name, Witnesses(physics, general, network, baseline), given.rule, machine, noticed,
            point=place, checked=signal.quality, speed=signal.speed, masked=bool(talk),
            family=signal.family, vibration=signal.vibration,
        )  # fmt: skip
        said = given.orders is not None and (given.override or first.bearing is None)
        assumed = None if model is None else model.bearing
        bearing = None if said or signal.physics is None else given.bearing_of(first) or assumed
        diagnoses.append(
            replace(
                diagnosis, drawing=signal.drawing, bearing=None if bearing is None else str(bearing),
                machine_stated=first.machine is not None or is_time(file.stem),
            )
        )  # fmt: skip
    return diagnoses


def listen(
    found: FoundMeasurement, model: Predictor | None, given: Given, show: Shown = None
) -> tuple[list[Heard], dict[str, InputError]]:
    """What each point's signals and the model say, and what is wrong with points that cannot be used, by name."""
    heard, problems = list[Heard](), dict[str, InputError]()
    for point in found.points:
        try:
            heard.append(_listen(point, model, given, show, found.speed))
        except InputError as error:
            # The other points go on; frames of the traceback would keep the file open.
            problems[point.name] = error.with_traceback(None)
            heard.append((SignalEvidence(), None, []))
    return heard, problems


def _listen(
    point: FoundPoint, model: Predictor | None, given: Given, show: Shown, tacho: FoundRecording | None
) -> Heard:
    """What the signals of a point say by themselves, what the model says, and what was noticed while reading."""
    analyses, tallies, noticed = list[SignalAnalysis](), list[Tally](), list[Finding]()
    axes, courses = list[tuple[FoundRecording, Stream, QualityCheck, Floats, Iterator[Floats]]](), list[SpeedCourse]()
    orders: Mapping[str, float] | None = None
    doubt: Finding | None = None
    for found in point.recordings:
        stream = found.open()
        own_rate, (stated, otherwise), assumed = given.rate_of(stream), given.rpm_of(found, stream), None
        if stream.rate not in (None, own_rate):
            noticed.append(Finding("other rate", "remark", {"own": stream.rate, "given": own_rate}))
        noticed += [otherwise] if otherwise is not None else []
        clock = own_rate / stream.rate if own_rate and stream.rate else 1.0
        stream = stream if stream.rate == own_rate else replace(stream, rate=own_rate)
        if model is not None:  # which knows what it was adapted to
            assumed, own_rate, stated = model.bearing, own_rate or model.preparation.rate, stated or model.rpm
        if orders is None:
            bearing = given.bearing_of(found, assumed)
            orders, doubt = (given.orders, None) if bearing is None else (bearing.orders(), bearing.doubt)
        check = QualityCheck(own_rate, unit_of(found.channel or "") or _declared(found, given).unit)
        beginning, blocks = _beginning(check.observe(stream.blocks), own_rate)
        axes.append((found, stream, check, beginning, blocks))
        speed = _tacho(tacho, given.rate, stated, clock)
        courses.append(speed_course(beginning, own_rate, orders, stated, given.trust_speed, speed))
    course = max(courses, key=lambda each: each.clarity)  # axes of one bearing have one speed
    for found, stream, check, beginning, blocks in axes:
        analysis = SignalAnalysis(
            stream.origin, check.rate, None, orders, course=course, beginning=beginning,
            measured=given.measured, search=given.search, doubt=doubt, quality=check,
        )  # fmt: skip
        analyses.append(analysis)
        seen = analysis.observe(blocks)
        if model is None:
            for _ in seen:
                pass
            continue
        (rpm, _), measured = given.rpm_of(found, stream), course.evidence
        unknown = "rpm" in model.needs and rpm is None and model.rpm is None
        if measured.corrected or measured.by == "tacho" or unknown:
            rpm = measured.rpm
        if unknown and rpm is not None:
            noticed.append(Finding("measured speed", "remark", {"rpm": rpm}))
        stream, about_rate = at_rate_of(model, replace(stream, blocks=seen), given.rate)
        shown = None if show is None else partial(show, stream)
        tallies.append(tally_stream(model, stream, shown, rpm, given.bearing_of(found)))
        noticed += about_rate
    first, *others = analyses
    signal, network = first.finish(others), None
    severities = [
        analysis.severity(_declared(found, given), course.evidence.rpm)
        for analysis, (found, *_) in zip(analyses, axes, strict=True)
    ]
    worst = max(severities, key=lambda each: each.velocity or 0.0)  # of the axes, as the standard has it
    signal = replace(signal, vibration=worst)
    if model is not None:
        pooled = pool(reduce(add, tallies), model.pooled_temperature, model.familiarity)
        network = network_evidence(pooled, model.classes, model.decision, model.shift)
        if model.metadata.get("recipe") == GENERAL.name:
            signal = replace(signal, general=None)  # it would be heard twice
    silent = signal.quality is not None and signal.quality.no_signal is not None
    unknown = signal.speed is not None and signal.speed.rpm is None
    needed, problem = model is None and not given.measured and signal.family is None, signal.problem
    if needed and problem is not None and not silent and not (unknown and problem.field == "rpm"):
        raise InputError(str(problem), problem.field, readable=True)
    if problem is not None and problem.field is None:
        noticed.append(Finding("no lines read", "remark", {"problem": problem.beside(first.recording)}))
    return signal, network, noticed


def _declared(found: FoundRecording, given: Given) -> Declared:
    """What a user or a manifest says of the measurement, and the unit that a channel's name says."""
    return given.declared.completed(found.declared, found.channel or "")


def _beginning(blocks: Iterable[Floats], rate: float | None) -> tuple[Floats, Iterator[Floats]]:
    """The first seconds, in which the speed is measured, and all blocks, those of the beginning again."""
    held, rest, most = list[Floats](), iter(blocks), int(min(FOLLOWED * (rate or 0.0), MOST_HELD))
    while sum(map(len, held)) < most and (block := next(rest, None)) is not None:
        held.append(block)
    signal = np.concatenate(held)[:most] if held else np.empty(0, dtype=np.float32)
    return signal, chain(held, rest)


def _tacho(
    found: FoundRecording | None, rate: float | None, stated: float | None, clock: float
) -> NDArray[np.float64] | None:
    """rpm over time from a channel that holds the speed, or pulses; `clock`: the true rate over the stated one."""
    if found is None:
        return None
    stream, speed = found.open(), None
    own = rate if stream.rate is None else clock * stream.rate
    samples, _ = _beginning(stream.blocks, own)
    if own is not None and samples.size:
        speed = speed_of_channel(samples, own, stated, unit_of(found.channel or ""))
    if speed is None and found.said_speed and own is not None:
        holds = f"its channel '{found.channel}' holds neither a speed in rpm nor pulses of one"
        raise InputError(f"{stream.origin}: {holds}; give the speed as a number", "rpm")
    return speed


def healthy_physics(measurements: Iterable[FoundMeasurement], given: Given) -> dict[str | None, list[PhysicsEvidence]]:
    """What physics reads in recordings that are known to be healthy, by point; InputError where it can read none."""
    usual = defaultdict[str | None, list[PhysicsEvidence]](list)
    for found in measurements:
        for each in diagnose_measurement(found, None, given):
            if each.physics is not None:
                usual[each.point].append(each.physics)
    if not usual:
        raise InputError("--healthy: no line can be read in these recordings; name others, with speed and bearing")
    return dict(usual)


Put = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class Job:
    """How recordings are diagnosed: a model, where there is one, and what the user says of them."""

    given: Given = field(default_factory=Given)
    by_window: bool = False
    model: Predictor | None = None
    path: Path | None = None  # of the model, which each process opens for itself
    # Processes are kept for later calls, when the model or the current folder may have changed.
    call: str = field(default_factory=lambda: uuid4().hex)
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, eq=False)
class MeasurementAnswer:
    """Diagnoses of one measurement, or why there are none; `rows` are of windows that nobody was given before."""

    name: str
    diagnoses: list[Diagnosis] = field(default_factory=list)
    problem: InputError | None = None
    notes: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)


def diagnose_units(
    units: Iterable[FoundUnit], job: Job, jobs: int = 1, put: Put | None = None
) -> Iterator[MeasurementAnswer]:
    """An answer for each unit, in order, by so many processes (0: one for each core).

    `put` gets the rows of windows, as they come where there is one process.
    """
    if jobs == 1:
        for unit in units:
            yield _answer(unit, job, put)
        return
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed, parallel_config  # type: ignore[import-untyped]

    several, done, task = list(units), 0, delayed(partial(_in_process, job=replace(job, model=None)))
    try:
        with parallel_config("loky", n_jobs=jobs or -1, inner_max_num_threads=1):
            for answer in Parallel(return_as="generator")(task(unit) for unit in several):
                for row in answer.rows:
                    if put is not None:
                        put(row)
                done += 1
                yield answer
    except BrokenProcessPool:
        for unit in several[done:]:
            ended = "a process that diagnosed recordings ended, for want of memory perhaps"
            yield MeasurementAnswer(
                unit.name, problem=InputError(f"{unit.name}: {ended}; run it again with fewer --jobs")
            )


def _in_process(unit: FoundUnit, job: Job) -> MeasurementAnswer:
    os.chdir(job.folder)
    return _answer(unit, job if job.path is None else replace(job, model=_opened(job.path, job.call)), None)


def _answer(unit: FoundUnit, job: Job, put: Put | None) -> MeasurementAnswer:
    """The answer for one unit; an error of ours is printed, and concerns this unit alone."""
    rows, name, model = list[dict[str, Any]](), unit.name, job.model
    put = put or rows.append

    def show(stream: Stream, windows: WindowPredictions) -> None:
        if model is not None:
            for row in windows.rows(model.classes, stream.rate):
                put({"recording": stream.origin} | row)

    try:
        with closing(unit.measurements()) as measurements:  # its file too, whatever happens
            found = next(measurements)
            name = found.name
            diagnoses = diagnose_measurement(found, model, job.given, show if job.by_window else None)
            return MeasurementAnswer(name, diagnoses, None, found.notes, rows)
    except InputError as error:
        return MeasurementAnswer(name, problem=error.with_traceback(None), rows=rows)
    except Exception as error:
        traceback.print_exc()
        sentence = f"{name}: {type(error).__name__}; please report this bug with the lines above"
        return MeasurementAnswer(name, problem=InputError(sentence, readable=True), rows=rows)


@lru_cache(maxsize=1)
def _opened(path: Path, _: str) -> Predictor:
    return open_model(path)
