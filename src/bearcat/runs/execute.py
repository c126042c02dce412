"""Runs the cells of a grid that have no result yet.

An executor (executors.py) says where: together in this process, or on a cluster. A process that
works on a run holds its lock, so any number of executions can share a store. A run that raises is marked as
failed and the rest goes on; a full disk stops everything, and the store stays as it was.

>>> execute(Execution(store, specs), Stack(torch.device("cpu")))
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch

from bearcat.errors import InputError
from bearcat.report.typeset import count
from bearcat.runs.run import run_stack
from bearcat.runs.spec import Library, RunSpec
from bearcat.runs.store import CHECKPOINT, FAILURE, Store, outdated
from bearcat.training.evaluate import EpochEnd

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


class TimeUp(Exception):  # noqa: N818 (it is no error)
    """The time limit was reached; what is unfinished has been checkpointed."""


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True, eq=False)
class Listener:
    """Receives the progress of an execution."""

    settled: Callable[[str, bool], None] = _ignore  # a run, and whether this execution trained it
    epoch: Callable[[Sequence[str], int, int], None] = _ignore  # the runs of a stack, epochs done, epochs in all
    message: Callable[[str], None] = _ignore


@dataclass(frozen=True, eq=False)
class Execution:
    """What is to be run, where results go, who listens, and when to stop."""

    store: Store
    specs: Sequence[RunSpec]
    listener: Listener = field(default_factory=Listener)
    limit_seconds: float | None = None  # after which it stops at the next checkpoint
    checkpoint_seconds: float = 20.0  # how much work a killed process loses
    library: Library = field(default_factory=Library)
    track: str | None = None  # the tracker of each run (record.py)
    started: float = field(default_factory=time.monotonic)

    @cached_property
    def known(self) -> dict[str, RunSpec]:
        """The runs by their identities; several cells of a grid may share one."""
        return {spec.identity: spec for spec in self.specs}

    @property
    def pending(self) -> list[RunSpec]:
        return [spec for spec in self.known.values() if not self.store.settled(spec.identity)]

    @property
    def seconds_left(self) -> float | None:
        return None if self.limit_seconds is None else self.limit_seconds - (time.monotonic() - self.started)

    @property
    def late(self) -> bool:
        return self.seconds_left is not None and self.seconds_left < 0

    def fail(self, spec: RunSpec, sentence: str) -> None:
        """Marks a run, which must be ours, as failed."""
        self.store.fail(spec.identity, sentence)
        self.listener.message(f"{spec.cell}: failed: {sentence}")
        self.listener.settled(spec.identity, False)

    @contextmanager
    def locked(self, specs: Sequence[RunSpec]) -> Iterator[list[RunSpec]]:
        """Those of the runs that are still to be done and that no other process has; they are ours until the end."""
        with ExitStack() as locks:
            ours = []
            for spec in specs:
                lock = self.store.lock(spec.identity)
                if lock is not None:
                    locks.enter_context(lock)
                    if not self.store.settled(spec.identity):
                        ours.append(spec)
            yield ours


class Executor(Protocol):
    """Settings that say where runs are trained."""

    def run(self, specs: Sequence[RunSpec], execution: Execution) -> None:
        """Settles each of these runs that no other process has."""
        ...


def execute(execution: Execution, executor: Executor, retry_failed: bool = False) -> bool:
    """Runs what is missing, waits for what other processes are running; False where the time limit came first."""
    store, listener, waiting = execution.store, execution.listener, False
    try:
        _make_ready(execution, retry_failed)
        for sentence in outdated(execution.pending, store):
            listener.message(sentence)  # before hours go into it
        while pending := execution.pending:
            if execution.late:
                return False
            free = [spec for spec in pending if store.owner(spec.identity) is None]
            if free:
                executor.run(free, execution)
                continue
            if not waiting:
                waiting = True
                owner = store.owner(pending[0].identity)
                listener.message(f"waiting for {count(len(pending), 'run')} of another process ({owner})")
            time.sleep(0.5)
    except TimeUp:
        return False
    except (OSError, InputError) as error:
        if (trouble := disk_sentence(error, store)) is None:
            raise
        raise InputError(trouble) from error
    for run in execution.known:
        listener.settled(run, False)  # those of other processes too
    for members in store.stacks():  # checkpoints of stacks whose runs were finished in other stacks
        if all(store.finished(run) for run in members):
            store.drop_stack(members)
    return True


def _make_ready(execution: Execution, retry_failed: bool) -> None:
    """Sets damaged records aside, and forgets failures that are to be tried again."""
    store, listener = execution.store, execution.listener
    blocking = ("damaged", "failed") if retry_failed else ("damaged",)
    for run in execution.known:
        while store.state(run).kind in blocking:
            lock = store.lock(run)
            if lock is None:  # another process is repairing or reading it
                time.sleep(0.05)
                continue
            with lock:
                state = store.state(run, ours=True)  # as it is now
                if state.kind == "damaged":
                    names = store.set_aside(run)
                    listener.message(f"{state.detail}; the run's files are set aside as {names} and it is repeated")
                if state.kind in blocking:
                    (store.folder(run) / FAILURE).unlink(missing_ok=True)
        if store.settled(run):
            listener.settled(run, False)


def disk_sentence(error: BaseException, store: Store) -> str | None:
    """The sentence for a store that cannot be written; None where the error is about something else."""
    cause = error if isinstance(error, OSError) else error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number in FULL:
        return f"{store.path}: the disk is full; free some space and run the same command again, finished runs are kept"
    if number in CLOSED and isinstance(error, OSError):
        return f"{store.path}: cannot be written ({os.strerror(number)}); make it writable or choose another --store"
    return None


def complete(specs: Sequence[RunSpec], device: torch.device, execution: Execution) -> None:
    """Trains these runs, which must be ours, together; in halves where memory is short, one by one where that fails."""
    runs, store, listener = [spec.identity for spec in specs], execution.store, execution.listener
    if (store.stack(runs) / CHECKPOINT).exists():
        listener.message(f"{count(len(specs), 'run')} of {specs[0].cell.method}: going on from a checkpoint")
        trouble = _train(specs, device, execution)
        if trouble is None:
            return
        listener.message(f"the checkpoint cannot be used ({trouble[1]}); training starts again")
        store.drop_stack(runs)
    trouble = _train(specs, device, execution)
    if trouble is None:
        return
    memory_short, sentence = trouble
    store.drop_stack(runs)
    if len(specs) == 1:
        execution.fail(specs[0], sentence)
        return
    parts = [[spec] for spec in specs]
    if memory_short:
        half = len(specs) // 2
        listener.message(f"{len(specs)} runs at once need more memory than there is; going on with {half}")
        parts = [[*specs[:half]], [*specs[half:]]]
    for part in parts:
        if not all(store.settled(spec.identity) for spec in part):
            complete(part, device, execution)


def _train(specs: Sequence[RunSpec], device: torch.device, execution: Execution) -> tuple[bool, str] | None:
    """Trains runs as one stack and writes their folders.

    None where all is well, else whether memory was short, and a sentence. The error itself is dropped, because its
    traceback would keep the memory that was short.
    """
    runs, store = [spec.identity for spec in specs], execution.store
    checkpoint = store.stack(runs) / CHECKPOINT
    try:
        run_stack(
            specs, [store.folder(run) for run in runs], device, _progress(specs, checkpoint, execution), checkpoint,
            execution.checkpoint_seconds, library=execution.library, track=execution.track,
        )  # fmt: skip
    except TimeUp:
        raise
    except Exception as error:
        if disk_sentence(error, store) is not None:
            raise
        trouble = out_of_memory(error), error_sentence(error)
    else:
        store.drop_stack(runs)
        for run in runs:
            execution.listener.settled(run, True)
        return None
    if trouble[0] and device.type == "cuda":
        torch.cuda.empty_cache()
    return trouble


def _progress(specs: Sequence[RunSpec], checkpoint: Path, execution: Execution) -> Callable[[EpochEnd], None]:
    """Reports every epoch, and stops at the first checkpoint after the deadline, so that nothing computed is lost."""
    runs, epochs = [spec.identity for spec in specs], specs[0].recipe.schedule.epochs
    written: list[int] = []  # when the checkpoint was, at the first epoch after the deadline

    def progress(end: EpochEnd) -> None:
        execution.listener.epoch(runs, end.epoch + 1, epochs)
        if execution.late and end.epoch + 1 < epochs:
            stamp = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
            if written and stamp != written[0]:
                raise TimeUp
            written[:] = [stamp]

    return progress


def error_sentence(error: BaseException) -> str:
    """An error in one line."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch on a CPU
