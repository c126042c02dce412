"""Runs the cells of a grid that have no result yet, in this process or on a Ray cluster; the records are the same.

`in_stacks` trains runs of equal shape together in this process; `on_ray` hands them out one by one to workers, which
need bearcat and the recordings at the same path. A run that raises is marked as failed and the rest goes on; a full
disk stops everything.

>>> execute(Execution(store, specs), partial(in_stacks, device=torch.device("cpu")))
"""

from __future__ import annotations

import errno
import math
import os
import socket
import tempfile
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch

from bearcat.adaptation import Library, RunSpec
from bearcat.adaptation.run import Bar, run_stack
from bearcat.bench import RunStore, open_store
from bearcat.cat.algorithm import Run
from bearcat.errors import InputError, library
from bearcat.fast.device import stack_key
from bearcat.findings import count
from bearcat.plugins import error_sentence, traceback_text
from bearcat.record import CHECKPOINT, CURVES, PREDICTIONS, RECORD, SPEC
from bearcat.storage import write_atomically

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LARGEST = {"cpu": 8, "cuda": 60}  # runs in a stack; half as many where the memory is short
FILES = (SPEC, PREDICTIONS, CURVES, RECORD)  # of a finished run; the record last
RETRIES = 3  # of a run whose worker is lost
HANDED_OUT = 500  # runs given to Ray at a time; each holds an open lock


@dataclass(frozen=True, eq=False)
class Execution:
    """What is to be run, where results go, and who shows the progress."""

    store: RunStore
    specs: Sequence[RunSpec]
    message: Callable[[str], None] = lambda _: None
    bar: Bar = lambda *_: nullcontext()
    library: Library = field(default_factory=Library)
    trained: set[str] = field(default_factory=set)  # the runs that this execution has finished

    @property
    def by_identity(self) -> dict[str, RunSpec]:
        """The runs by their identities; several cells of a grid may share one."""
        return {spec.identity: spec for spec in self.specs}

    def fail(self, spec: RunSpec, sentence: str, traceback: str = "") -> None:
        """Marks a run, which must be ours, as failed."""
        self.store.fail(spec.identity, sentence, traceback)
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


Executor = Callable[[Sequence[RunSpec], Execution], None]


def execute(execution: Execution, executor: Executor, retry_failed: bool = False) -> None:
    """Runs what is missing or damaged, with `retry_failed` also what failed, and no other process has."""
    runs, store = execution.by_identity, execution.store
    for run in runs:
        state = store.state(run)
        if state.kind == "damaged":
            execution.message(f"{state.detail}; the run is repeated")
        if state.kind == "damaged" or (retry_failed and state.kind == "failed"):
            store.clear(run)
    while free := [spec for run, spec in runs.items() if not store.settled(run) and store.owner(run) is None]:
        executor(free, execution)


def disk_full(error: BaseException) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in FULL


def complete(specs: Sequence[RunSpec], device: torch.device, execution: Execution) -> None:
    """Trains these runs, which must be ours, together; in halves where that fails, be it for memory or for one run."""
    runs, store = [spec.identity for spec in specs], execution.store
    checkpoint, name = store.stack(runs) / CHECKPOINT, f"{specs[0].cell.method} × {len(specs)}"
    if resumed := checkpoint.exists():
        execution.message(f"{name}: going on from a checkpoint")
    try:
        with execution.bar(name, specs[0].recipe.schedule.epochs) as progress:
            folders = [store.folder(run) for run in runs]
            run_stack(specs, folders, device, progress, checkpoint, library=execution.library)
    except Exception as error:
        if disk_full(error):
            raise
        trouble = error_sentence(error), traceback_text(error)  # without its frames, which keep memory
    else:
        rmtree(checkpoint.parent, ignore_errors=True)
        execution.trained.update(runs)
        return
    if device.type == "cuda":
        torch.cuda.empty_cache()
    rmtree(checkpoint.parent, ignore_errors=True)
    half = len(specs) // 2
    parts = [specs] if resumed else [specs[:half], specs[half:]]  # from the start, if the checkpoint cannot be used
    if half == 0 and not resumed:
        execution.fail(specs[0], *trouble)
        return
    execution.message(f"{count(len(specs), 'run')} could not be trained ({trouble[0]}); trying again")
    for part in parts:
        if not all(store.settled(spec.identity) for spec in part):
            complete(part, device, execution)


def in_stacks(specs: Sequence[RunSpec], execution: Execution, device: torch.device, size: int | None = None) -> None:
    """Trains runs of equal shape together in this process, `size` at once.

    Finished runs have their places in stacks, so that after an interruption the others are in the same stack as before
    and go on from its checkpoint.
    """
    library, groups = execution.library, defaultdict[Hashable, list[RunSpec]](list)
    recipes, pending = {spec.recipe for spec in specs}, {spec.identity for spec in specs}
    for spec in execution.by_identity.values():
        if spec.recipe not in recipes:
            continue
        try:
            groups[stack_key(Run(spec.recipe, library.split(spec).outline(), spec.seed))].append(spec)
        except InputError as error:
            with execution.locked([spec]) as ours:
                for unusable in ours:
                    execution.fail(unusable, str(error), traceback_text(error))
    for group in groups.values():
        stacks = group[0].recipe.encoder.stacks
        largest = (size or LARGEST[device.type]) if stacks else 1
        number = math.ceil(len(group) / math.ceil(len(group) / largest))  # stacks of about equal size
        for start in range(0, len(group), number):
            members = [spec for spec in group[start : start + number] if spec.identity in pending]
            with execution.locked(members) as ours:
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
                        files = error_sentence(error), traceback_text(error)
                    if isinstance(files, tuple):
                        execution.fail(spec, *files)
                        continue
                    for name in FILES:
                        write_atomically(store.folder(spec.identity) / name, files[name])
                    execution.trained.add(spec.identity)
    finally:
        ray.shutdown()  # with what it still trains


def train_remotely(spec: RunSpec, device: str) -> dict[str, bytes] | tuple[str, str]:
    """On a worker: a run's files, or why there are none, in a sentence and with the traceback."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bearcat-") as folder:
        store = open_store(Path(folder) / "store", create=True)
        complete([spec], torch.device(device), Execution(store, [spec]))
        state = store.state(spec.identity)
        if state.record is None:
            return state.detail, state.traceback
        return {name: (store.folder(spec.identity) / name).read_bytes() for name in FILES}
