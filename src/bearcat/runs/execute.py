"""Runs the cells of a grid that have no result yet. Three executors, one interface, the same records.

`Stack` trains runs of equal shape together in this process; `Local` (local.py) trains them one by one in several
processes; `Cluster` (cluster.py) hands them to Ray. Whoever works on a run holds its lock, so any number of such
executions can share a store. A run that raises is noted as failed and the rest goes on; a full disk stops everything,
and the store stays as it was.

>>> execute(jobs, store, Stack(torch.device("cpu")))
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from bearcat.errors import InputError
from bearcat.report.wording import count
from bearcat.runs.run import RECORD, Library, Shape, adapt_all
from bearcat.runs.store import CHECKPOINT, Job, Store, overtaken
from bearcat.training.evaluate import EpochEnd

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
# Runs in a stack at most, however much memory there is: their results come when the last is finished.
LARGEST = {"cpu": 8, "cuda": 60}


class Stopped(Exception):  # noqa: N818 (it is no error)
    """The time is up; what is unfinished has been checkpointed."""


@dataclass(frozen=True, eq=False)
class Talk:
    """Whom an execution tells how it goes on."""

    settled: Callable[[str, bool], None] = lambda run, here: None  # noqa: ARG005 (here: by this execution)
    epoch: Callable[[Sequence[str], int, int], None] = lambda runs, done, epochs: None  # noqa: ARG005
    note: Callable[[str], None] = lambda sentence: None  # noqa: ARG005


@dataclass(frozen=True, eq=False)
class Bench:
    """What an execution works with: where results go, what has been read, who is told, and when to stop."""

    store: Store
    talk: Talk = field(default_factory=Talk)
    deadline: float | None = None  # on the monotonic clock
    checkpoint_seconds: float = 20.0  # how much work a killed process loses
    library: Library = field(default_factory=Library)
    track: str | None = None  # how each run is followed, if it is (track.py)

    @property
    def left(self) -> float | None:
        """Seconds until the deadline, which mean the same on every machine."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    @property
    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline


class Executor(Protocol):
    """Settings that say where runs are trained."""

    def run(self, jobs: Sequence[Job], known: Mapping[str, Job], bench: Bench) -> None:
        """Settles every one of these runs that no other process has; `known` are all of the grid, by run."""
        ...


def execute(
    jobs: Sequence[Job],
    store: Store,
    executor: Executor,
    talk: Talk | None = None,
    retry_failed: bool = False,
    limit_seconds: float | None = None,
    checkpoint_seconds: float = 20.0,
    track: str | None = None,
) -> bool:
    """Runs what is missing, waits for what other processes are running; False where the time limit came first."""
    deadline = None if limit_seconds is None else time.monotonic() + limit_seconds
    bench = Bench(store, talk or Talk(), deadline, checkpoint_seconds, track=track)
    known = {job.run: job for job in jobs}
    waiting = False
    try:
        _make_ready(known, bench, retry_failed)
        for old in overtaken([job for job in known.values() if not store.settled(job.run)], store):
            bench.talk.note(old)  # before hours go into it
        while pending := [job for job in known.values() if not store.settled(job.run)]:
            if bench.late:
                return False
            free = [job for job in pending if store.owner(job.run) is None]
            if free:
                executor.run(free, known, bench)
                continue
            if not waiting:
                waiting = True
                runs = count(len(pending), "run")
                bench.talk.note(f"waiting for {runs} of another process ({store.owner(pending[0].run)})")
            time.sleep(0.5)
    except Stopped:
        return False
    except (OSError, InputError) as error:
        sentence = disk_trouble(error, store)
        if sentence is None:
            raise
        raise InputError(sentence) from error
    for run in known:
        bench.talk.settled(run, False)  # those of other processes too
    _sweep(store)
    return True


def _sweep(store: Store) -> None:
    """Removes checkpoints that nobody needs: of stacks whose runs were finished in another company."""
    for members in store.stacks():
        if all((store.folder(run) / RECORD).exists() for run in members):
            store.drop_stack(members)


def _make_ready(known: Mapping[str, Job], bench: Bench, retry_failed: bool) -> None:
    """Sets damaged records aside, and forgets failures that are to be tried again."""
    store = bench.store

    def in_the_way(kind: str) -> bool:
        return kind == "damaged" or (kind == "failed" and retry_failed)

    for run in known:
        while in_the_way(store.state(run).kind):
            lock = store.lock(run)
            if lock is None:  # somebody mends it, or only looks at it, just now
                time.sleep(0.05)
                continue
            state = store.state(run, ours=True)  # as it is now
            if state.kind == "damaged":
                aside = store.set_aside(run)
                bench.talk.note(f"{state.told}; the run's files are set aside as {aside} and it is repeated")
            if in_the_way(state.kind):
                store.forget_failure(run)
            lock.release()
        if store.settled(run):
            bench.talk.settled(run, False)


@contextmanager
def holding(store: Store, jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Those of the jobs that are still to be done and that no other process has; they are ours until the end."""
    locks, held = [], []
    try:
        for job in jobs:
            lock = store.lock(job.run)
            if lock is None:
                continue
            if store.settled(job.run):
                lock.release()
                continue
            locks.append(lock)
            held.append(job)
        yield held
    finally:
        for lock in locks:
            lock.release()


def disk_trouble(error: BaseException, store: Store) -> str | None:
    """The sentence for a store that cannot be written; None where the error is about something else."""
    cause = error if isinstance(error, OSError) else error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number in FULL:
        return f"{store.path}: the disk is full; free some space and run the same command again, finished runs are kept"
    if number in CLOSED and isinstance(error, OSError):
        return f"{store.path}: cannot be written ({os.strerror(number)}); make it writable or choose another --store"
    return None


def watched(runs: Sequence[str], epochs: int, checkpoint: Path, bench: Bench) -> Callable[[EpochEnd], None]:
    """Tells every epoch, and stops at the first checkpoint behind the deadline, so that nothing computed is lost."""
    last: list[int] = []

    def progress(end: EpochEnd) -> None:
        bench.talk.epoch(runs, end.epoch + 1, epochs)
        if bench.late and end.epoch + 1 < epochs:
            stamp = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
            if last and stamp != last[0]:
                raise Stopped
            last[:] = [stamp]

    return progress


@dataclass(frozen=True)
class Stack:
    """Runs of equal shape, trained together in this process; `size` None: as many as the memory allows."""

    device: torch.device
    size: int | None = None

    def run(self, jobs: Sequence[Job], known: Mapping[str, Job], bench: Bench) -> None:
        self._resume(jobs, known, bench)
        groups: dict[Shape, deque[Job]] = {}
        for job in jobs:
            if bench.store.settled(job.run):
                continue
            try:
                groups.setdefault(bench.library.shape(job.order), deque()).append(job)
            except InputError as error:
                with holding(bench.store, [job]) as held:
                    for one in held:
                        note_failure(one, str(error), bench)
        for shape, waiting in groups.items():
            size = self.size or stack_size(shape, self.device)
            while waiting:
                if bench.late:
                    raise Stopped
                count = math.ceil(len(waiting) / math.ceil(len(waiting) / size))  # stacks of about equal size
                with holding(bench.store, [waiting.popleft() for _ in range(count)]) as held:
                    if held:
                        size = min(size, settle(held, self.device, bench))

    def _resume(self, jobs: Sequence[Job], known: Mapping[str, Job], bench: Bench) -> None:
        """Goes on with stacks that were interrupted, where all their members are of this grid."""
        store, wanted = bench.store, {job.run for job in jobs}
        for members in store.stacks():
            left = [run for run in members if not (store.folder(run) / RECORD).exists()]
            if wanted & {*left} and {*members} <= known.keys():
                with holding(store, [known[run] for run in left]) as held:
                    if len(held) < len(left):
                        if any(store.settled(run) for run in left):  # one failed meanwhile: it will not come together
                            store.drop_stack(members)
                        continue
                    if (store.stack(members) / CHECKPOINT).exists():
                        settle([known[run] for run in members], self.device, bench)
                    else:
                        store.drop_stack(members)


def settle(jobs: Sequence[Job], device: torch.device, bench: Bench) -> int:
    """Trains these runs, which must be ours, together; in halves where memory is short, one by one where that fails.

    Returns how many there can be in a stack.
    """
    runs, store = [job.run for job in jobs], bench.store
    resumed = (store.stack(runs) / CHECKPOINT).exists()
    if resumed:
        many = count(len(jobs), f"run of {jobs[0].cell.method} goes", f"runs of {jobs[0].cell.method} go")
        bench.talk.note(f"{many} on from {'its' if len(jobs) == 1 else 'their'} checkpoint")
    trouble = _train_together(jobs, device, bench)
    if trouble is not None and resumed:  # perhaps it is the checkpoint that cannot be used: from the beginning
        bench.talk.note(f"a stack of {len(jobs)} could not go on from its checkpoint ({trouble[1]}) and starts again")
        store.drop_stack(runs)
        trouble = _train_together(jobs, device, bench)
    store.drop_stack(runs)
    if trouble is None:
        return len(jobs)
    memory_short, sentence = trouble
    if len(jobs) == 1:
        note_failure(jobs[0], sentence, bench)
        return 1
    if memory_short:
        half = len(jobs) // 2
        bench.talk.note(f"{len(jobs)} runs at once need more memory than there is; going on with {half}")
        return min(settle(part, device, bench) for part in (jobs[:half], jobs[half:]))
    for job in jobs:
        if not store.settled(job.run):
            settle([job], device, bench)
    return len(jobs)


def _train_together(jobs: Sequence[Job], device: torch.device, bench: Bench) -> tuple[bool, str] | None:
    """Trains runs of one shape as a stack and writes their folders.

    None where all is well, else whether memory was short, and a sentence. The error itself is let go of: through its
    traceback it holds on to the very memory that was short.
    """
    runs, store = [job.run for job in jobs], bench.store
    checkpoint = store.stack(runs) / CHECKPOINT
    progress = watched(runs, jobs[0].order.recipe.schedule.epochs, checkpoint, bench)
    folders = [store.folder(run) for run in runs]
    try:
        adapt_all(
            [job.order for job in jobs], folders, device, progress, checkpoint, bench.checkpoint_seconds,
            library=bench.library, track=bench.track,
        )  # fmt: skip
    except Stopped:
        raise
    except Exception as error:
        if disk_trouble(error, store) is not None:
            raise
        trouble = out_of_memory(error), sentence_of(error)
    else:
        for run in runs:
            bench.talk.settled(run, True)
        return None
    if trouble[0] and device.type == "cuda":
        torch.cuda.empty_cache()
    return trouble


def note_failure(job: Job, sentence: str, bench: Bench) -> None:
    """Marks a run, which must be ours, as failed."""
    bench.store.fail(job.run, sentence)
    cell = job.cell
    bench.talk.note(f"{cell.method}, {cell.task}, {cell.input}, seed {cell.seed}: failed: {sentence}")
    bench.talk.settled(job.run, False)  # nothing was trained


def sentence_of(error: BaseException) -> str:
    """An error in one line."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch on a CPU


def stack_size(shape: Shape, device: torch.device) -> int:
    """How many runs of this shape fit into six tenths of the memory that is free now, and no more than LARGEST."""
    return max(1, min(LARGEST[device.type], int(0.6 * free_memory(device) / bytes_of_run(shape))))


def bytes_of_run(shape: Shape) -> int:
    """About what a run needs: its data, its weights with their moments and copies, and a step's activations."""
    channels, points = shape.window
    weights = 1_700_000  # student and domain classifier; times parameters, gradients, two moments, teacher, SDAT's copy
    passes = 4 if shape.recipe.passes == "separate" else 2
    kept = 3 * (16 + 32 + 32 + 64) * points  # three tensors for each of the convolutions' outputs, at their lengths
    return 4 * (shape.windows * channels * points + 7 * weights + passes * shape.recipe.schedule.batch * kept)


def free_memory(device: torch.device) -> int:
    """Bytes; of the machine, or of the group of processes we are confined to, or of the graphics card."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
        group = Path("/sys/fs/cgroup")
        free = min(
            free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
        )  # ValueError where the group has no limit
    except (OSError, ValueError, KeyError):
        pass
    return free
