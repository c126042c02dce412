"""Where files are measured: in this process, or in several.

>>> with processes(jobs=2) as apply:
...     snapshots = list(apply(Reading(rpm=1480).measure, arrivals))
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from bearcat import __version__
from bearcat.data.bearing import Bearing
from bearcat.data.channels import points_of
from bearcat.data.isolated import RISKY
from bearcat.deploy.diagnose import Given
from bearcat.deploy.find import measurements_of_file
from bearcat.errors import InputError, check_range
from bearcat.storage import digest_json
from bearcat.watch.folder import Arrival
from bearcat.watch.snapshot import Snapshot, measure

Measured = list[Snapshot] | InputError


@dataclass(frozen=True)
class Reading:
    """How files are read: what a user says of all of them."""

    rpm: float | None = None
    bearing: Bearing | None = None
    trust_speed: bool = False
    channel: str | None = None
    channels: str | None = None

    def __post_init__(self) -> None:
        check_range("rpm", self.rpm, field="rpm")
        points_of((), self.channels)  # which refuses other words

    @cached_property
    def identity(self) -> str:
        """A file that could not be read is tried again where this has changed."""
        libraries = sorted({name for names in RISKY.values() for name in names})
        there = [find_spec(name.partition(".")[0]) is not None for name in libraries]
        return digest_json([__version__, repr(self), there])

    def measure(self, arrival: Arrival) -> Measured:
        """The snapshots of a file, or why there are none."""
        first = arrival.rows[0] if arrival.rows else None
        load, temperature = (None, None) if first is None else (first.load, first.temperature)
        given = Given(rpm=self.rpm, bearing=self.bearing, trust_speed=self.trust_speed)
        try:
            found = measurements_of_file(Path(arrival.path), arrival.rows, self.channel, self.channels, arrival.rpm)
            return [
                snapshot
                for each in found
                for snapshot in measure(each, given, arrival.time, arrival.machine, arrival.point, load, temperature)
            ]
        except InputError as error:
            return error
        except OSError as error:
            return InputError(f"{arrival.path}: {error.strerror or error}")


@contextmanager
def processes(jobs: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` that uses so many processes."""
    if jobs == 1:
        yield map
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # which is imported once for all
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        yield pool.map
    except BrokenProcessPool as error:
        raise InputError(
            "a process that measures has ended, perhaps for want of memory; use fewer --jobs, nothing is lost"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Leaves Ctrl-C and SIGTERM, which reach both, to the parent, and ends when that does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    def follow() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    threadpool_limits(1)  # there is a process for each core
