"""Recordings diagnosed one after the other or by several processes: the same answers, in the same order.

>>> for answer in diagnose_units(find_units(paths), Job(path=Path("out/model")), jobs=4):
...     print(answer.name, answer.diagnoses)
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from bearcat.data.stream import Stream
from bearcat.data.survey import Portrait
from bearcat.deploy.find import FoundUnit
from bearcat.deploy.predict import Given, WindowPredictions, diagnose_measurement, open_model
from bearcat.deploy.predictor import Predictor
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError

Put = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class Job:
    """How recordings are diagnosed: a model, where there is one, and what the user says of them."""

    given: Given = field(default_factory=Given)
    by_window: bool = False
    model: Predictor | None = None
    path: Path | None = None  # of the model, which each process opens for itself
    # Processes are kept for later calls, by when the model or the current folder may have changed.
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
    portraits: list[Portrait] = field(default_factory=list)


def diagnose_units(
    units: Iterable[FoundUnit], job: Job, jobs: int = 1, put: Put | None = None
) -> Iterator[MeasurementAnswer]:
    """An answer for each unit, in order, by so many processes (0: one for each core).

    `put` gets the rows of windows, as they come where there is one process.
    """
    if jobs == 1:
        for unit in units:
            yield diagnose_unit(unit, job, put)
        return
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed, parallel_config  # type: ignore[import-untyped]

    several, done, task = list(units), 0, delayed(partial(_elsewhere, job=replace(job, model=None)))
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


def _elsewhere(unit: FoundUnit, job: Job) -> MeasurementAnswer:
    """The answer for one unit, in a process of its own."""
    os.chdir(job.folder)
    return diagnose_unit(unit, job)


def diagnose_unit(unit: FoundUnit, job: Job, put: Put | None = None) -> MeasurementAnswer:
    """The answer for one unit; an error of ours is printed, and concerns this unit alone."""
    rows, portraits, name = list[dict[str, Any]](), list[Portrait](), unit.name
    model, put = job.model, put or rows.append
    if model is None and job.path is not None:
        model = _opened(job.path, job.call)

    def show(stream: Stream, windows: WindowPredictions) -> None:
        if model is not None:
            for row in windows.rows(model.classes, stream.rate):
                put({"recording": stream.origin} | row)

    try:
        with closing(unit.measurements()) as measurements:  # its file too, whatever happens
            found = next(measurements)
            name = found.name
            diagnoses = diagnose_measurement(found, model, job.given, portraits, show if job.by_window else None)
            return MeasurementAnswer(name, diagnoses, None, found.notes, rows, portraits)
    except InputError as error:
        return MeasurementAnswer(name, problem=error.with_traceback(None), rows=rows)
    except Exception as error:
        traceback.print_exc()
        sentence = f"{name}: {type(error).__name__}; please report this bug with the lines above"
        return MeasurementAnswer(name, problem=InputError(sentence, readable=True), rows=rows)


@lru_cache(maxsize=1)
def _opened(path: Path, _: str) -> Predictor:
    return open_model(path)
