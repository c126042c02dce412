"""Where files are measured: in this process, in several, or on a Ray cluster.

>>> with Measuring(jobs=2).start(Reading()) as (submit, ahead):
...     waiting = [submit(arrival, digest) for arrival, digest in new[:ahead]]
...     snapshots = [result() for result in waiting]
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from bearcat import __version__
from bearcat.child import connect_ray, follow_parent, lost_workers
from bearcat.data.isolated import RISKY
from bearcat.deploy.find import measurements_of_file
from bearcat.deploy.predict import Given
from bearcat.errors import InputError
from bearcat.storage import digest_json
from bearcat.watch.folder import Arrival
from bearcat.watch.incoming import MEASUREMENT, stated_snapshot
from bearcat.watch.snapshot import Snapshot, measure

ATTEMPTS = 3  # workers of a cluster that may be lost over one file
SHIPPED = 2**26  # bytes of a file that are sent to a cluster; longer ones must be at the same place there

Measured = list[Snapshot] | InputError


@dataclass(frozen=True)
class Reading:
    """How files are read: what a user says of all of them."""

    given: Given = field(default_factory=Given)
    channel: str | None = None
    channels: str | None = None

    @cached_property
    def identity(self) -> str:
        """A file that could not be read is tried again where this has changed."""
        libraries = sorted({name for names in RISKY.values() for name in names})
        there = [find_spec(name.partition(".")[0]) is not None for name in libraries]
        said = asdict(replace(self.given, healthy={}, rule=None))
        return digest_json([__version__, {k: str(v) for k, v in said.items()}, self.channel, self.channels, there])


def measure_file(arrival: Arrival, digest: str, reading: Reading, content: bytes | None = None) -> Measured:
    """The snapshots of a file, or why there are none; `content`: of a file that is not on this machine."""
    with ExitStack() as stack:
        path, rows = Path(arrival.path), arrival.rows
        if content is not None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bearcat-"))) / path.name
            path.write_bytes(content)
            rows = tuple(replace(row, path=path) for row in rows)
        first = rows[0] if rows else None
        try:
            if path.name.endswith(MEASUREMENT):
                snapshot = stated_snapshot(path, arrival.machine, arrival.point or "1", arrival.time, digest)
                return [replace(snapshot, recording=arrival.path)]
            found = measurements_of_file(path, rows, reading.channel, reading.channels, arrival.rpm)
            return [
                replace(snapshot, recording=snapshot.recording.replace(str(path), arrival.path))
                for measurement in found
                for snapshot in measure(
                    measurement, reading.given, arrival.time, arrival.machine, arrival.point, digest,
                    None if first is None else first.load, None if first is None else first.temperature,
                )
            ]  # fmt: skip
        except InputError as error:
            return InputError(str(error).replace(str(path), arrival.path), error.field)
        except OSError as error:
            return InputError(f"{arrival.path}: {error.strerror or error}")


Submit = Callable[[Arrival, str], Callable[[], Measured]]  # begins to measure; what it returns waits for the result


@dataclass(frozen=True)
class Measuring:
    """Where files are measured: here, in several processes, or with executor "ray" on a cluster."""

    jobs: int | None = None  # None: 1; of a local cluster, one a core
    executor: str = "processes"
    address: str | None = None  # of an existing cluster

    @contextmanager
    def start(self, reading: Reading) -> Iterator[tuple[Submit, int]]:
        """What measures, and how many files it should be given at once."""
        if self.executor == "ray":
            ray = connect_ray(self.address, self.jobs)
            try:
                yield on_cluster(ray, reading), 2 * int(ray.cluster_resources().get("CPU", 1)) + 1
            finally:
                ray.shutdown()
        elif self.jobs in (None, 1):
            yield lambda arrival, digest: partial(measure_file, arrival, digest, reading), 1
        else:
            with _processes(reading, self.jobs or 1) as submit:
                yield submit, 2 * (self.jobs or 1) + 1


@contextmanager
def _processes(reading: Reading, jobs: int) -> Iterator[Submit]:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # which is imported once for all

    def start() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)

    pool = start()

    def submit(arrival: Arrival, digest: str) -> Callable[[], Measured]:
        nonlocal pool
        try:
            future = pool.submit(measure_file, arrival, digest, reading)
        except BrokenProcessPool:
            pool = start()
            future = pool.submit(measure_file, arrival, digest, reading)

        def result() -> Measured:
            nonlocal pool
            try:
                return future.result()
            except BrokenProcessPool:  # by this file, or by one measured at the same time
                pool.shutdown(cancel_futures=True)
                pool = start()
            try:
                return pool.submit(measure_file, arrival, digest, reading).result()
            except BrokenProcessPool:
                pool = start()
                return InputError(f"{arrival.path}: its process ended while it was measured; cut it shorter")

        return result

    try:
        yield submit
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    follow_parent(signal.SIGINT, signal.SIGTERM)
    threadpool_limits(1)  # there is a process for each core


def on_cluster(ray: Any, reading: Reading) -> Submit:
    """Measures on a Ray cluster that is connected; files are sent there, and again where a worker was lost."""
    remote, lost = ray.remote(num_cpus=1, max_retries=0)(measure_file), lost_workers(ray)

    def submit(arrival: Arrival, digest: str) -> Callable[[], Measured]:
        def begin() -> Any:
            content = Path(arrival.path).read_bytes() if arrival.size <= SHIPPED else None
            return remote.remote(arrival, digest, reading, content)

        def result(task: Any) -> Measured:
            for _ in range(ATTEMPTS):
                try:
                    measured: Measured = ray.get(task)
                    return measured
                except lost:
                    task = begin()
                except ray.exceptions.RayError as error:
                    return InputError(f"{arrival.path}: {(str(error).splitlines() or [''])[0]}")
            return InputError(f"{arrival.path}: the worker that measured it was lost {ATTEMPTS} times")

        return partial(result, begin())

    return submit
