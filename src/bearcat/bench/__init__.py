"""Grids of runs: the store that keeps them, and how the missing ones are trained (docs/benchmark.md).

A run's record is written last, so an unfinished run never counts as done. The process that works on a run holds its
lock, and the system frees it however that process ends, so any number of processes may work on one store. `in_stacks`
trains runs of equal shape together in this process; `on_ray` hands them out one by one to workers, which need bearcat
and the recordings at the same path. A run that raises is marked as failed and the rest goes on; a full disk stops
everything.

>>> store, library = open_store(Path("bench-store"), create=True), Library()
>>> specs = plan(read_grid(Path("grids/smoke.toml")), library=library)
>>> execute(Execution(store, specs, library), partial(in_stacks, device=torch.device("cpu")))
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from io import FileIO
from pathlib import Path
from shutil import rmtree
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from bearcat.errors import InputError, error_sentence, library
from bearcat.record import CHECKPOINT, CURVES, PREDICTIONS, RECORD, SPEC, Record
from bearcat.report import Cell, Result, RunState
from bearcat.storage import digest_json, read_json, write_atomically, write_json

if TYPE_CHECKING:  # a report needs no torch
    import torch

    from bearcat.adaptation import Library, RunSpec
    from bearcat.adaptation.run import Bar

VERSION = 1  # of the layout
FOLDERS = ("runs", "locks", "stacks")
ABOUT = "store.json"  # its version
FAILURE = "failure.json"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LARGEST = {"cpu": 8, "cuda": 60}  # runs in a stack; half as many where the memory is short
FILES = (SPEC, PREDICTIONS, CURVES, RECORD, FAILURE)  # of a run; the record last, or the failure instead
RETRIES = 3  # of a run whose worker is lost
HANDED_OUT = 500  # runs given to Ray at a time; each holds an open lock


@dataclass(frozen=True)
class RunStore:
    """A folder of runs, each named by its identity."""

    path: Path

    def folder(self, run: str) -> Path:
        return self.path / "runs" / run

    def state(self, run: str) -> RunState:
        folder = self.folder(run)
        try:
            with suppress(FileNotFoundError):
                return RunState("done", record=Record.read(folder))
        except (ValueError, OSError) as error:
            return RunState("damaged", str(error))
        if self.running(run):
            return RunState("running")
        try:
            return RunState("failed", str(read_json(folder / FAILURE)["sentence"]))
        except FileNotFoundError:
            return RunState("missing")
        except (OSError, ValueError, KeyError, TypeError):
            return RunState("failed", f"{folder / FAILURE} is damaged, so the reason is lost")

    def settled(self, run: str) -> bool:
        """Whether nothing is left to do: the run is finished, or it failed."""
        return any((self.folder(run) / name).exists() for name in (RECORD, FAILURE))

    def lock(self, run: str) -> FileIO | None:
        """Makes the run ours until the lock is closed or the process ends; None where another process has it."""
        lock = FileIO(os.open(self.path / "locks" / f"{run}.lock", os.O_RDWR | os.O_CREAT, 0o644), "r+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        return lock

    def running(self, run: str) -> bool:
        """Whether a process has the run's lock."""
        with suppress(OSError), FileIO(self.path / "locks" / f"{run}.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def open_store(path: Path, create: bool = False) -> RunStore:
    """The store in this folder. Without `create`, a folder that does not exist reads as an empty store."""
    about = path / ABOUT
    try:
        if not about.exists() and path.exists() and {part.name for part in path.iterdir()} - set(FOLDERS):
            raise InputError(f"{path}: is not empty and holds no store of bearcat; choose another --store")
        if create:
            for folder in FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
            write_json(about, {"version": VERSION})  # fails now, and not after hours, where it cannot be written
    except OSError as error:
        raise InputError(f"{path}: cannot be used as a store ({error.strerror}); choose another --store") from error
    return RunStore(path)


def results(specs: Sequence[RunSpec], store: RunStore) -> tuple[list[Result], dict[Cell, RunState]]:
    """What a report is made of: the finished runs under the grid's names for them, and the cells without one."""
    finished, missing = list[Result](), dict[Cell, RunState]()
    for spec in specs:
        state = store.state(spec.identity)
        if state.record is not None:
            finished.append(Result(spec.cell, state.record, store.folder(spec.identity)))
        else:
            missing[spec.cell] = state
    return finished, missing


@dataclass(frozen=True, eq=False)
class Execution:
    """What is to be run, where results go, and who shows the progress."""

    store: RunStore
    specs: Sequence[RunSpec]
    library: Library
    message: Callable[[str], None] = lambda _: None
    bar: Bar = lambda *_: nullcontext()
    trained: set[str] = field(default_factory=set)  # the runs that this execution has finished

    def fail(self, spec: RunSpec, sentence: str, traceback: str) -> None:
        """Keeps the reason why a run, which must be ours, has no result."""
        reason = {"sentence": sentence, "traceback": traceback}
        write_json(self.store.folder(spec.identity) / FAILURE, reason)
        self.message(f"{spec.cell}: failed: {sentence}")

    @contextmanager
    def locked(self, specs: Sequence[RunSpec]) -> Iterator[list[RunSpec]]:
        """The runs still to be done that no other process has; ours until the end."""
        with ExitStack() as locks:
            ours = []
            for spec in specs:
                lock = self.store.lock(spec.identity)
                if lock is not None:
                    locks.enter_context(lock)
                    if not self.store.settled(spec.identity):
                        ours.append(spec)
            yield ours


Executor = Callable[["Sequence[RunSpec]", Execution], None]


def execute(execution: Execution, executor: Executor, retry_failed: bool = False) -> None:
    """Runs what is missing or damaged, with `retry_failed` also what failed, and no other process has."""
    store = execution.store
    runs = {spec.identity: spec for spec in execution.specs}  # several cells of a grid may share one
    for run in runs:
        state = store.state(run)
        if state.kind == "damaged":
            execution.message(f"{state.detail}; the run is repeated")
        if state.kind == "damaged" or (retry_failed and state.kind == "failed"):
            for name in (RECORD, FAILURE):
                (store.folder(run) / name).unlink(missing_ok=True)
    while free := [spec for run, spec in runs.items() if not store.settled(run) and not store.running(run)]:
        executor(free, execution)


def complete(specs: Sequence[RunSpec], device: torch.device, execution: Execution) -> None:
    """Trains these runs, which must be ours, together; in halves where that fails, be it for memory or for one run."""
    from bearcat.adaptation.run import run_stack

    runs, store = [spec.identity for spec in specs], execution.store
    checkpoint = store.path / "stacks" / digest_json(runs)[:24] / CHECKPOINT  # of these runs in this order
    name, trouble = f"{specs[0].cell.method} × {len(specs)}", None
    if resumed := checkpoint.exists():
        execution.message(f"{name}: going on from a checkpoint")
    try:
        with execution.bar(name, specs[0].recipe.schedule.epochs) as progress:
            folders = [store.folder(run) for run in runs]
            run_stack(specs, folders, device, progress, checkpoint, library=execution.library)
    except Exception as error:
        if {getattr(each, "errno", None) for each in (error, error.__cause__)} & FULL:
            raise
        trouble = error_sentence(error), "".join(format_exception(error))  # without its frames, which keep memory
    rmtree(checkpoint.parent, ignore_errors=True)
    if trouble is None:
        execution.trained.update(runs)
    elif len(specs) == 1 and not resumed:
        execution.fail(specs[0], *trouble)
    else:
        if device.type == "cuda":
            import torch

            torch.cuda.empty_cache()
        execution.message(f"{name}: could not be trained ({trouble[0]}); trying again")
        half = len(specs) // 2
        # From the start first, as it may be the checkpoint that is damaged.
        for part in [specs] if resumed else [specs[:half], specs[half:]]:
            complete(part, device, execution)


def in_stacks(specs: Sequence[RunSpec], execution: Execution, device: torch.device) -> None:
    """Trains runs of equal shape together in this process."""
    groups: dict[Hashable, list[RunSpec]] = defaultdict(list)
    recipes = {spec.recipe for spec in specs}
    # Finished runs keep their places, so that after an interruption the rest is in the same stacks, with checkpoints.
    for spec in {spec.identity: spec for spec in execution.specs if spec.recipe in recipes}.values():
        try:
            split = execution.library.split(spec)
            groups[spec.recipe, split.classes, split.sizes].append(spec)
        except InputError as error:
            with execution.locked([spec]) as ours:
                for unusable in ours:
                    execution.fail(unusable, str(error), "".join(format_exception(error)))
    for group in groups.values():
        size = LARGEST[device.type] if group[0].recipe.encoder.stacks else 1
        for start in range(0, len(group), size):
            with execution.locked(group[start : start + size]) as ours:
                if ours:
                    complete(ours, device, execution)


def connect_ray(address: str) -> Any:
    """Ray, connected to a cluster, which may be "local"; a sentence where it is missing or cannot be reached."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what will be Ray's default; silences a warning
    ray, quiet = library("ray", "ray"), {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        ray.init(address, num_cpus=os.cpu_count(), include_dashboard=False, **quiet)
        return ray
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise InputError(f"no Ray cluster at '{address}' could be reached ({reason})") from error
    return ray


def on_ray(specs: Sequence[RunSpec], execution: Execution, address: str, device: str = "auto") -> None:
    """Trains runs on a Ray cluster, each on a core, and on a GPU where there are some.

    Ray starts a run again whose worker was lost.
    """
    ray, store = connect_ray(address), execution.store
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        if device == "cuda" and not gpus:
            raise InputError("device 'cuda' was requested, but the Ray cluster has no GPU; use --device cpu")
        device = "cuda" if gpus and device != "cpu" else "cpu"
        remote = ray.remote(num_cpus=1, num_gpus=int(device == "cuda"), max_retries=RETRIES)(train_remotely)
        with execution.locked(specs[:HANDED_OUT]) as ours:
            tasks = {remote.remote(spec, device): spec for spec in ours}
            while tasks:
                for task in ray.wait(list(tasks), timeout=1.0)[0]:
                    spec = tasks.pop(task)
                    try:
                        files = ray.get(task)
                    except ray.exceptions.RayError as error:
                        execution.fail(spec, error_sentence(error), "".join(format_exception(error)))
                        continue
                    folder = store.folder(spec.identity)
                    for name, content in files.items():
                        write_atomically(folder / name, content)
                    if FAILURE in files:
                        execution.message(f"{spec.cell}: failed: {read_json(folder / FAILURE)['sentence']}")
                    else:
                        execution.trained.add(spec.identity)
    finally:
        ray.shutdown()  # with what it still trains


@cache  # a worker is given many runs
def _library_of_worker() -> Library:
    from bearcat.adaptation import Library

    return Library()


def train_remotely(spec: RunSpec, device: str) -> dict[str, bytes]:
    """On a worker: a run's files."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bearcat-") as folder:
        store = open_store(Path(folder) / "store", create=True)
        complete([spec], torch.device(device), Execution(store, [spec], _library_of_worker()))
        files = [store.folder(spec.identity) / name for name in FILES]
        return {file.name: file.read_bytes() for file in files if file.exists()}
