"""Recordings diagnosed by several processes, each with one thread: the same answers, in the same order.

Processes are forked, so that each has the model and what was read of manifests; what a graph or a reader of files runs
in is started anew in each. One that dies is a problem of the recordings it had not yet answered for.

>>> for pending in in_processes(list(find_units(paths)), diagnosed, portraits, jobs=4):
...     print(pending.name, pending.result(put))
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bearcat.child import follow_parent
from bearcat.data.survey import Portrait
from bearcat.deploy.find import FoundMeasurement, FoundUnit
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError

Put = Callable[[dict[str, Any]], None]
Diagnose = Callable[[FoundMeasurement, Put], list[Diagnosis]]
Answer = tuple[str, tuple[str, ...], list[Diagnosis], list[dict[str, Any]], list[Portrait]]

CAN_FORK = sys.platform == "linux"  # elsewhere libraries may have threads that a fork loses
_work: list[Any] = []  # of a process: units, how they are diagnosed, and the portraits that are made on the way


@dataclass(eq=False)
class Pending:
    """A measurement that a process diagnoses; its notes come with its result."""

    name: str
    answer: Future[Answer]
    portraits: list[Portrait]
    notes: tuple[str, ...] = ()

    def result(self, put: Put) -> list[Diagnosis]:
        """Waits for the diagnoses; puts the rows and portraits that were made on the way."""
        try:
            self.name, self.notes, diagnoses, rows, portraits = self.answer.result()
        except BrokenProcessPool as error:
            ended = "the process that was to diagnose it ended, for want of memory perhaps"
            raise InputError(f"{self.name}: {ended}; run it again with fewer --jobs") from error
        for row in rows:
            put(row)
        self.portraits += portraits
        return diagnoses


def in_processes(
    units: Sequence[FoundUnit], diagnosed: Diagnose, portraits: list[Portrait], jobs: int
) -> Iterator[Pending]:
    """Every unit in order, before its result is there; `diagnosed` adds to `portraits`. Closing this ends all."""
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(min(jobs, len(units)) or 1, context, _begin, (units, diagnosed, portraits))
    try:
        answers = [pool.submit(_answer, number) for number in range(len(units))]
        yield from (Pending(unit.name, answer, portraits) for unit, answer in zip(units, answers, strict=True))
    except BaseException:  # Ctrl-C, or nobody wants the rest
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def shared(
    units: Iterable[FoundUnit], diagnosed: Diagnose, portraits: list[Portrait], jobs: int
) -> tuple[Iterator[Any], Callable[[Any, Put], list[Diagnosis]]]:
    """What there is to diagnose, and how: one after the other, or by so many processes (0: one for each core)."""
    jobs = jobs or len(os.sched_getaffinity(0) if CAN_FORK else ()) or 1
    if jobs == 1 or not CAN_FORK:
        return (each for unit in units for each in unit.measurements()), diagnosed
    return in_processes(list(units), diagnosed, portraits, jobs), Pending.result


def _begin(*work: Any) -> None:
    _work[:] = work  # as it was forked, and not sent
    follow_parent(signal.SIGINT)


def _answer(number: int) -> Answer:
    units, diagnosed, portraits = _work
    portraits.clear()
    rows = list[dict[str, Any]]()
    with closing(units[number].measurements()) as measurements:  # its file too, whatever happens
        measurement = next(measurements)
        return measurement.name, measurement.notes, diagnosed(measurement, rows.append), rows, portraits
