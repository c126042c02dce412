"""The same runs on a Ray cluster: a local one by default, an existing one by its address.

The driver, which alone needs the store, holds the runs' locks, hands runs out and writes what comes back as it comes.
Workers need bearcat installed and the recordings at the same path as the driver (docs/benchmark.md). A run whose worker
or machine is lost is handed out again; where the workers see the store's folder too, it goes on from its checkpoint.

>>> execute(jobs, store, Cluster("cpu", jobs=2))
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bearcat.errors import InputError
from bearcat.runs.execute import Bench, Stopped, Talk, note_failure, sentence_of, watched
from bearcat.runs.run import CURVES, NOTE, PREDICTIONS, RECORD, adapt_all
from bearcat.runs.store import CHECKPOINT, Job, Lock, Store
from bearcat.storage import write_atomically

FILES = (NOTE, PREDICTIONS, CURVES, RECORD)  # of a finished run; the record last
ATTEMPTS = 4  # at a run whose worker is lost
AHEAD = 2  # runs handed out for every one that can be trained now, so that nobody waits for the driver


@dataclass(frozen=True)
class Cluster:
    """Where Ray is. `device` is "auto", "cpu" or "cuda"; with cuda, or auto where the cluster has them, a GPU a run."""

    device: str = "auto"
    jobs: int | None = None  # processes of a local cluster; None: one a core
    address: str | None = None  # of an existing cluster

    def run(self, jobs: Sequence[Job], known: Mapping[str, Job], bench: Bench) -> None:
        del known
        ray = _ray()
        _connect(ray, self)
        try:
            self._run(ray, jobs, bench)
        finally:
            ray.shutdown()

    def _run(self, ray: Any, jobs: Sequence[Job], bench: Bench) -> None:
        store = bench.store
        gpus = ray.cluster_resources().get("GPU", 0)
        if self.device == "cuda" and not gpus:
            raise InputError("device 'cuda' was asked for, but the Ray cluster has no GPU; use --device cpu")
        device = "cuda" if gpus and self.device != "cpu" else "cpu"
        # Retrying is ours to do and not Ray's: so that it is told, counted, and starts from the checkpoint.
        remote = ray.remote(num_cpus=1, num_gpus=1 if device == "cuda" else 0, max_retries=0)(work)
        lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError,
                ray.exceptions.LocalRayletDiedError, ray.exceptions.ObjectLostError)  # fmt: skip
        waiting, losses = deque(jobs), Counter[str]()
        out: dict[Any, tuple[Job, Lock]] = {}

        def hand_out(job: Job, lock: Lock) -> None:
            place = (str(store.path.resolve()), _identity(store))
            out[remote.remote(job, device, place, bench.left, bench.checkpoint_seconds)] = (job, lock)

        try:
            while waiting or out:
                if bench.late:
                    waiting.clear()  # those at work stop at their next checkpoint
                slots = ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 1)  # a cluster may grow
                while waiting and len(out) < max(AHEAD * slots, AHEAD):
                    job = waiting.popleft()
                    lock = store.lock(job.run)
                    if lock is not None and not store.settled(job.run):
                        hand_out(job, lock)
                    elif lock is not None:
                        lock.release()
                for reference in ray.wait(list(out), timeout=1.0)[0] if out else ():
                    job, lock = out.pop(reference)
                    try:
                        _take(ray.get(reference), job, bench)
                    except lost as error:
                        losses[job.run] += 1
                        if losses[job.run] < ATTEMPTS:
                            bench.talk.note(f"a worker was lost ({type(error).__name__}); its run is tried again")
                            hand_out(job, lock)
                            continue
                        note_failure(job, f"its worker was lost {ATTEMPTS} times ({type(error).__name__})", bench)
                    except ray.exceptions.RayError as error:
                        note_failure(job, sentence_of(error), bench)
                    lock.release()
        finally:
            for reference, (_, lock) in out.items():
                with suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)
                lock.release()
        if bench.late:
            raise Stopped


def work(
    job: Job, device: str, store: tuple[str, str], left: float | None, checkpoint_seconds: float
) -> dict[str, bytes] | str | None:
    """On a worker: trains one run and gives back its folder's files, or why there are none; None: the time was up."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bearcat-") as place:
        folder, checkpoint = Path(place) / job.run, Path(place) / CHECKPOINT
        shared = Store(Path(store[0]))
        if store[1] and _identity(shared) == store[1]:  # the very store, and not a folder that happens to be called so
            checkpoint = shared.stack([job.run]) / CHECKPOINT
        bench = Bench(shared, Talk(), None if left is None else time.monotonic() + left)
        progress = watched([job.run], job.order.recipe.schedule.epochs, checkpoint, bench)
        for resumed in (checkpoint.exists(), False):
            try:
                adapt_all([job.order], [folder], torch.device(device), progress, checkpoint, checkpoint_seconds)
                return {name: (folder / name).read_bytes() for name in FILES}
            except Stopped:
                return None
            except Exception as error:
                if not resumed:
                    return sentence_of(error)
                checkpoint.unlink(missing_ok=True)  # perhaps it is what cannot be used: from the beginning
    return None


def _take(found: dict[str, bytes] | str | None, job: Job, bench: Bench) -> None:
    """Writes what a worker gave back."""
    if isinstance(found, str):
        note_failure(job, found, bench)
    elif found is not None:
        folder = bench.store.folder(job.run)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            write_atomically(folder / name, found[name])
        bench.talk.settled(job.run, True)
    if found is not None:
        bench.store.drop_stack([job.run])


def _identity(store: Store) -> str:
    try:
        return str(json.loads((store.path / "store.json").read_text(encoding="utf-8")).get("identity", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what will be Ray's default; silences a warning
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError("the executor 'ray' needs an extra; pip install 'bearcat[ray]'") from error
    return ray


def _connect(ray: Any, settings: Cluster) -> None:
    words: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if settings.address is None:
        words |= {"num_cpus": settings.jobs or os.cpu_count(), "include_dashboard": False}
    elif settings.jobs is not None:
        raise InputError("--jobs is for a local Ray cluster; the one at --address decides itself, leave it out")
    try:
        host, _, port = (settings.address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=settings.address or "local", **words)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"at '{settings.address}'" if settings.address else "on this machine"
        raise InputError(f"no Ray cluster {where} could be reached ({sentence_of(error)})") from error
