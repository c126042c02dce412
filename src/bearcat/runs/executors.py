"""Where the runs of a grid are trained. Both executors write the same records for the same cells.

`Stack` trains runs of equal shape together in this process; `Cluster` hands them to Ray, which needs bearcat and the
recordings at the same path on all machines, and the store on the driver's alone (docs/benchmark.md).

>>> execute(Execution(store, specs), Stack(torch.device("cpu")))
"""

from __future__ import annotations

import math
import os
import socket
import tempfile
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from bearcat.calibration import CALIBRATORS
from bearcat.data.inputs import INPUTS
from bearcat.data.tasks import TrainingData
from bearcat.errors import InputError
from bearcat.methods.recipe import Recipe
from bearcat.models.networks import ENCODERS, find_encoder
from bearcat.record import CURVES, PREDICTIONS, RECORD, SPEC
from bearcat.runs.execute import Execution, Listener, TimeUp, complete, error_sentence
from bearcat.runs.spec import RunSpec
from bearcat.runs.store import CHECKPOINT, Store, open_store
from bearcat.settings import find_name
from bearcat.storage import write_atomically
from bearcat.training.loop import Run, stack_key

TABLES: dict[str, dict[str, Any]] = {"input": INPUTS, "encoder": ENCODERS, "calibrator": CALIBRATORS}
# Runs in a stack at most, however much memory there is: their results come when the last is finished.
LARGEST = {"cpu": 8, "cuda": 60}
FILES = (SPEC, PREDICTIONS, CURVES, RECORD)  # of a finished run; the record last
ATTEMPTS = 4  # of a run whose worker is lost each time


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
                key = spec.precision, stack_key(Run(spec.recipe, library.split(spec).outline(), spec.seed))
                groups.setdefault(key, deque()).append(spec)
            except InputError as error:
                with execution.locked([spec]) as ours:
                    for unusable in ours:
                        execution.fail(unusable, str(error))
        for waiting in groups.values():
            size = self.size or stack_size(waiting[0].recipe, library.split(waiting[0]).outline(), self.device)
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
        ray = _connected(self)
        try:
            self.drive(ray, specs, execution)
        finally:
            ray.shutdown()

    def drive(self, ray: Any, specs: Sequence[RunSpec], execution: Execution) -> None:
        """Hands out the runs and writes what comes back.

        A run whose worker is lost is handed out again, and goes on from its checkpoint if the worker sees the store.
        """
        store, errors = execution.store, ray.exceptions
        gpus = ray.cluster_resources().get("GPU", 0)
        if self.device == "cuda" and not gpus:
            raise InputError("device 'cuda' was requested, but the Ray cluster has no GPU; use --device cpu")
        device = "cuda" if gpus and self.device != "cpu" else "cpu"
        # Retrying is ours to do and not Ray's, so that it is reported, counted, and starts from the checkpoint.
        remote = ray.remote(num_cpus=1, num_gpus=int(device == "cuda"), max_retries=0)(train_remotely)
        lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.LocalRayletDiedError,
                errors.ObjectLostError)  # fmt: skip
        place = (str(store.path.resolve()), store.identity())

        def collected(task: Any, spec: RunSpec) -> str | None:
            """Keeps what a worker returned; the reason where the worker was lost."""
            try:
                found = ray.get(task)
                if isinstance(found, str):
                    execution.fail(spec, found)
                elif found is not None:
                    for name in FILES:
                        write_atomically(store.folder(spec.identity) / name, found[name])
                    execution.listener.settled(spec.identity, True)
                if found is not None:
                    store.drop_stack([spec.identity])
            except lost as error:
                return type(error).__name__
            except errors.RayError as error:
                execution.fail(spec, error_sentence(error))
            return None

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
                    loss = collected(task, spec)
                    losses[spec.identity] += loss is not None
                    if loss is not None and losses[spec.identity] < ATTEMPTS:
                        execution.listener.message(f"a worker was lost ({loss}); its run is tried again")
                        waiting.appendleft(spec)
                        continue
                    if loss is not None:
                        execution.fail(spec, f"its worker was lost {ATTEMPTS} times ({loss})")
                    locks.pop(spec.identity).close()
        finally:
            for task in tasks:
                with suppress(errors.RayError):
                    ray.cancel(task, force=True)
            for lock in locks.values():
                lock.close()
        if execution.late:
            raise TimeUp


def rows_of(spec: RunSpec) -> dict[str, tuple[str, Any]]:
    """The rows of tables that a run names, for workers that have not run the driver's script."""
    texts = {"input": spec.preparation.input, "encoder": spec.recipe.encoder, "calibrator": spec.recipe.calibration}
    names = {table: text.split(":")[0] for table, text in texts.items() if text is not None}
    return {table: (name, TABLES[table][find_name(name, TABLES[table], table)]) for table, name in names.items()}


def train_remotely(
    spec: RunSpec,
    rows: dict[str, tuple[str, Any]],
    device: str,
    place: tuple[str, str],
    seconds_left: float | None,
    checkpoint_seconds: float,
) -> dict[str, bytes] | str | None:
    """On a worker: trains one run and returns its folder's files, or why there are none; None: the time was up.

    It works in the driver's store where that is at the same place here, and otherwise in a store of its own.
    """
    torch.set_num_threads(1)
    for table, (name, row) in rows.items():
        TABLES[table].setdefault(name, row)
    with tempfile.TemporaryDirectory(prefix="bearcat-") as folder:
        store = Store(Path(place[0]))
        if not place[1] or store.identity() != place[1]:
            store = open_store(Path(folder) / "store", create=True)
        execution = Execution(store, [spec], Listener(), seconds_left, checkpoint_seconds)
        with suppress(TimeUp):
            complete([spec], torch.device(device), execution)
        state = store.state(spec.identity, ours=True)
        if state.record is not None:
            return {name: (store.folder(spec.identity) / name).read_bytes() for name in FILES}
        return state.detail or None


def _connected(cluster: Cluster) -> Any:
    """Ray, connected to the cluster; a sentence where it is not installed or cannot be reached."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what will be Ray's default; silences a warning
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError("the executor 'ray' needs an extra; pip install 'bearcat[ray]'") from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.address is None:
        options |= {"num_cpus": cluster.jobs or os.cpu_count(), "include_dashboard": False}
    elif cluster.jobs is not None:
        raise InputError("--jobs is for a local Ray cluster; the one at --address decides itself, leave it out")
    try:
        host, _, port = (cluster.address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=cluster.address or "local", **options)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"at '{cluster.address}'" if cluster.address else "on this machine"
        raise InputError(f"no Ray cluster {where} could be reached ({error_sentence(error)})") from error
    return ray
