"""Runs the cells of a grid that have no result yet, in this process or on a cluster; the records are the same.

`Stack` trains runs of equal shape together in this process; `Cluster` hands them to Ray, which needs bearcat and the
recordings at the same path on all machines, and the store on the driver's alone (docs/benchmark.md). A process that
works on a run holds its lock, so any number of executions can share a store. A run that raises is marked as
failed and the rest goes on; a full disk stops everything, and the store stays as it was.

>>> execute(Execution(store, specs), Stack(torch.device("cpu")))
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from bearcat.adaptation.run import run_stack
from bearcat.adaptation.spec import Library, RunSpec
from bearcat.bench.store import FAILURE, RunStore, open_store
from bearcat.cat import CALIBRATORS
from bearcat.cat.algorithm import Run
from bearcat.cat.evaluate import EpochEnd
from bearcat.cat.networks import ENCODERS, find_encoder, trains_alone
from bearcat.cat.recipes import Recipe
from bearcat.child import connect_ray, lost_workers
from bearcat.data.inputs import INPUTS
from bearcat.data.tasks import TrainingData
from bearcat.errors import InputError
from bearcat.fast.batches import stack_key
from bearcat.plugins import error_sentence, traceback_text
from bearcat.record import CHECKPOINT, CURVES, PREDICTIONS, RECORD, SPEC
from bearcat.report.typeset import count
from bearcat.settings import find_name
from bearcat.storage import write_atomically

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
TABLES: dict[str, dict[str, Any]] = {"input": INPUTS, "encoder": ENCODERS, "calibrator": CALIBRATORS}
# Runs in a stack at most, however much memory there is: their results come when the last is finished.
LARGEST = {"cpu": 8, "cuda": 60}
FILES = (SPEC, PREDICTIONS, CURVES, RECORD)  # of a finished run; the record last
ATTEMPTS = 4  # of a run whose worker is lost each time


class TimeUp(Exception):  # noqa: N818 (it is no error)
    """The time limit was reached; what is unfinished has been checkpointed."""


@dataclass(frozen=True, eq=False)
class Listener:
    """Receives the progress of an execution."""

    settled: Callable[[str, bool], None] = lambda *_: None  # a run, and whether this execution trained it
    epoch: Callable[[Sequence[str], int, int], None] = lambda *_: None  # the runs of a stack, epochs done, of how many
    message: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, eq=False)
class Execution:
    """What is to be run, where results go, who listens, and when to stop."""

    store: RunStore
    specs: Sequence[RunSpec]
    listener: Listener = field(default_factory=Listener)
    limit_seconds: float | None = None  # after which it stops at the next checkpoint
    checkpoint_seconds: float = 20.0  # how much work a killed process loses
    library: Library = field(default_factory=Library)
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

    def fail(self, spec: RunSpec, sentence: str, traceback: str = "") -> None:
        """Marks a run, which must be ours, as failed."""
        self.store.fail(spec.identity, sentence, traceback)
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


def execute(execution: Execution, executor: Stack | Cluster, retry_failed: bool = False) -> bool:
    """Runs what is missing, waits for what other processes are running; False where the time limit came first."""
    store, listener, waiting = execution.store, execution.listener, False
    try:
        _make_ready(execution, retry_failed)
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


def disk_sentence(error: BaseException, store: RunStore) -> str | None:
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
    resumed = (store.stack(runs) / CHECKPOINT).exists()
    if resumed:
        listener.message(f"{count(len(specs), 'run')} of {specs[0].cell.method}: going on from a checkpoint")
    trouble = _train(specs, device, execution)
    if resumed and trouble is not None:
        listener.message(f"the checkpoint cannot be used ({trouble[1]}); training starts again")
        store.drop_stack(runs)
        trouble = _train(specs, device, execution)
    if trouble is None:
        return
    memory_short, *reason = trouble
    store.drop_stack(runs)
    if len(specs) == 1:
        execution.fail(specs[0], *reason)
        return
    parts = [[spec] for spec in specs]
    if memory_short:
        half = len(specs) // 2
        listener.message(f"{len(specs)} runs at once need more memory than there is; going on with {half}")
        parts = [[*specs[:half]], [*specs[half:]]]
    for part in parts:
        if not all(store.settled(spec.identity) for spec in part):
            complete(part, device, execution)


def _train(specs: Sequence[RunSpec], device: torch.device, execution: Execution) -> tuple[bool, str, str] | None:
    """Trains runs as one stack; None where all is well, else whether memory was short, a sentence and the traceback.

    The error itself is dropped, because its frames would keep the memory that was short.
    """
    runs, store, epochs = [spec.identity for spec in specs], execution.store, specs[0].recipe.schedule.epochs
    checkpoint = store.stack(runs) / CHECKPOINT
    written: list[int] = []  # when the checkpoint was, at the first epoch after the deadline

    def progress(end: EpochEnd) -> None:
        execution.listener.epoch(runs, end.epoch + 1, epochs)
        if execution.late and end.epoch + 1 < epochs:
            stamp = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
            if written and stamp != written[0]:
                raise TimeUp  # at a checkpoint, so that nothing computed is lost
            written[:] = [stamp]

    try:
        run_stack(
            specs, [store.folder(run) for run in runs], device, progress, checkpoint, execution.checkpoint_seconds,
            library=execution.library,
        )  # fmt: skip
    except TimeUp:
        raise
    except Exception as error:
        if disk_sentence(error, store) is not None:
            raise
        short = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
        trouble = short, error_sentence(error), traceback_text(error)
    else:
        store.drop_stack(runs)
        for run in runs:
            execution.listener.settled(run, True)
        return None
    if short and device.type == "cuda":
        torch.cuda.empty_cache()
    return trouble


@dataclass(frozen=True)
class Stack:
    """Runs of equal shape, trained together in this process; `size` None: as many as the memory allows."""

    device: torch.device
    size: int | None = None

    def run(self, specs: Sequence[RunSpec], execution: Execution) -> None:
        self._resume(specs, execution)
        library, groups = execution.library, dict[Hashable, deque[RunSpec]]()
        for spec in specs:
            try:
                key = stack_key(Run(spec.recipe, library.split(spec).outline(), spec.seed))
                groups.setdefault(key, deque()).append(spec)
            except InputError as error:
                with execution.locked([spec]) as ours:
                    for unusable in ours:
                        execution.fail(unusable, str(error), traceback_text(error))
        for waiting in groups.values():
            recipe, outline = waiting[0].recipe, library.split(waiting[0]).outline()
            size = self.size or stack_size(recipe, outline, self.device)
            if trains_alone(recipe.encoder, *outline.target_train.values.shape[1:]):
                size = 1  # nothing is gained, and nobody knows how much memory it needs
            while waiting:
                if execution.late:
                    raise TimeUp
                number = math.ceil(len(waiting) / math.ceil(len(waiting) / size))  # stacks of about equal size
                with execution.locked([waiting.popleft() for _ in range(number)]) as ours:
                    if ours:
                        complete(ours, self.device, execution)

    def _resume(self, specs: Sequence[RunSpec], execution: Execution) -> None:
        """Goes on with stacks that were interrupted, where all their members are of this grid."""
        store, known, wanted = execution.store, execution.known, {spec.identity for spec in specs}
        for members in store.stacks():
            left = [run for run in members if not store.finished(run)]
            if not wanted & {*left} or not {*members} <= known.keys():
                continue
            with execution.locked([known[run] for run in left]) as ours:
                if len(ours) == len(left) and (store.stack(members) / CHECKPOINT).exists():
                    complete([known[run] for run in members], self.device, execution)
                elif len(ours) == len(left) or any(store.settled(run) for run in left):
                    store.drop_stack(members)  # nothing was kept, or a member failed meanwhile


def stack_size(recipe: Recipe, data: TrainingData, device: torch.device) -> int:
    """How many such runs fit into six tenths of the memory that is free now, and no more than LARGEST."""
    return max(1, min(LARGEST[device.type], int(0.6 * free_memory(device) / bytes_of_run(recipe, data))))


def bytes_of_run(recipe: Recipe, data: TrainingData) -> int:
    """About what a run needs: its data, its weights with their moments and copies, and a step's activations."""
    weights = 1_700_000  # student and domain classifier; times parameters, gradients, two moments, teacher, SDAT's copy
    windows = sum(part.values.size for part in (data.source_train, data.source_test, data.target_train))
    windows += data.source_test.values.size  # about the target's test windows
    passes = 4 + recipe.doubled if recipe.passes == "separate" else 2
    activations = find_encoder(recipe.encoder).activations(*data.target_train.values.shape[1:])
    return 4 * int(windows + 7 * weights + passes * recipe.schedule.batch * activations)


def free_memory(device: torch.device) -> int:
    """Bytes; of the machine, or of the group of processes we are confined to, or of the graphics card."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        free = min(free, int(limit) - int(used))  # ValueError where the group has no limit
    except (OSError, ValueError, KeyError):
        pass
    return free


@dataclass(frozen=True)
class Cluster:
    """Where Ray is. `device` is "auto", "cpu" or "cuda"; with cuda, or auto where the cluster has them, a GPU a run."""

    device: str = "auto"
    jobs: int | None = None  # processes of a local cluster; None: one a core
    address: str | None = None  # of an existing cluster

    def run(self, specs: Sequence[RunSpec], execution: Execution) -> None:
        ray = connect_ray(self.address, self.jobs)
        try:
            self.drive(ray, specs, execution)
        finally:
            ray.shutdown()

    def drive(self, ray: Any, specs: Sequence[RunSpec], execution: Execution) -> None:
        """Hands out the runs, those of lost workers again, and writes what comes back."""
        store, errors = execution.store, ray.exceptions
        gpus = ray.cluster_resources().get("GPU", 0)
        if self.device == "cuda" and not gpus:
            raise InputError("device 'cuda' was requested, but the Ray cluster has no GPU; use --device cpu")
        device = "cuda" if gpus and self.device != "cpu" else "cpu"
        # Retrying is ours to do and not Ray's, so that it is reported, counted, and starts from the checkpoint.
        remote = ray.remote(num_cpus=1, num_gpus=int(device == "cuda"), max_retries=0)(train_remotely)
        lost = lost_workers(ray)
        place = (str(store.path.resolve()), store.identity())
        waiting, losses = deque(specs), Counter[str]()
        tasks: dict[Any, RunSpec] = {}
        locks: dict[str, FileIO] = {}
        try:
            while waiting or tasks:
                if execution.late:
                    waiting.clear()  # those at work stop at their next checkpoint
                # Twice what can be trained now, so that no worker waits for the driver; a cluster may grow.
                room = 2 * max(1.0, float(ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 1)))
                while waiting and len(tasks) < room:
                    spec = waiting.popleft()
                    lock = locks.get(spec.identity) or store.lock(spec.identity)
                    if lock is not None:
                        locks[spec.identity] = lock
                        if not store.settled(spec.identity):
                            left, every = execution.seconds_left, execution.checkpoint_seconds
                            tasks[remote.remote(spec, rows_of(spec), device, place, left, every)] = spec
                for task in ray.wait(list(tasks), timeout=1.0)[0] if tasks else ():
                    spec = tasks.pop(task)
                    try:
                        found = ray.get(task)
                    except lost as error:
                        loss = type(error).__name__
                        losses[spec.identity] += 1
                        if losses[spec.identity] < ATTEMPTS:
                            execution.listener.message(f"a worker was lost ({loss}); its run is tried again")
                            waiting.appendleft(spec)
                            continue
                        execution.fail(spec, f"its worker was lost {ATTEMPTS} times ({loss})")
                    except errors.RayError as error:
                        execution.fail(spec, error_sentence(error), traceback_text(error))
                    else:
                        _keep(spec, found, execution)
                    locks.pop(spec.identity).close()
        finally:
            for task in tasks:
                with suppress(errors.RayError):
                    ray.cancel(task, force=True)
            for lock in locks.values():
                lock.close()
        if execution.late:
            raise TimeUp


def _keep(spec: RunSpec, found: dict[str, bytes] | tuple[str, str] | None, execution: Execution) -> None:
    """Writes what `train_remotely` returned."""
    if isinstance(found, tuple):
        execution.fail(spec, *found)
    elif found is not None:
        for name in FILES:
            write_atomically(execution.store.folder(spec.identity) / name, found[name])
        execution.listener.settled(spec.identity, True)
    if found is not None:
        execution.store.drop_stack([spec.identity])


def rows_of(spec: RunSpec) -> list[tuple[str, str, Any]]:
    """Table, name and row of what a run names, for workers that have not run the driver's script."""
    recipe = spec.recipe
    texts = [("input", spec.preparation.input), ("encoder", recipe.encoder)]
    texts += [("calibrator", text) for text in (recipe.calibration, recipe.final) if text is not None]
    names = [(table, text.split(":")[0]) for table, text in texts]
    return [(table, name, TABLES[table][find_name(name, TABLES[table], table)]) for table, name in names]


def train_remotely(
    spec: RunSpec,
    rows: list[tuple[str, str, Any]],
    device: str,
    place: tuple[str, str],
    seconds_left: float | None,
    checkpoint_seconds: float,
) -> dict[str, bytes] | tuple[str, str] | None:
    """On a worker: a run's files, or why there are none, in a sentence and with the traceback; None: time was up."""
    torch.set_num_threads(1)
    for table, name, row in rows:
        TABLES[table].setdefault(name, row)
    with tempfile.TemporaryDirectory(prefix="bearcat-") as folder:
        store = RunStore(Path(place[0]))  # the driver's, where it is at the same place here
        if not place[1] or store.identity() != place[1]:
            store = open_store(Path(folder) / "store", create=True)
        execution = Execution(store, [spec], Listener(), seconds_left, checkpoint_seconds)
        with suppress(TimeUp):
            complete([spec], torch.device(device), execution)
        state = store.state(spec.identity, ours=True)
        if state.record is not None:
            return {name: (store.folder(spec.identity) / name).read_bytes() for name in FILES}
        return (state.detail, state.traceback) if state.detail else None
