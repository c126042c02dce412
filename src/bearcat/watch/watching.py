"""Watching: recordings as they arrive → measurements → what each point's state says of them → the store.

Files are measured in this process or in several; results are taken in order of time. All files of a machine with one
time are judged together and added in one transaction. A half-written file waits.

>>> fleet = bearcat.watch("plant", "plant.db", rpm=1480, bearing="6205")
>>> fleet.summary
'12 points: 1 alarm, 2 check, 9 ok.'
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from bearcat import __version__
from bearcat.deploy import in_processes
from bearcat.deploy.find import Given, measurements_of_file
from bearcat.errors import InputError, bug, shown
from bearcat.findings import Finding
from bearcat.settings import DiagnoseRequest, PointRequest, WatchRequest
from bearcat.watch.alarm import judge
from bearcat.watch.folder import Arrival, WatchedFolder
from bearcat.watch.memory import PointState, unreadable
from bearcat.watch.notify import Notifier
from bearcat.watch.snapshot import Event, Fleet, PointStatus, Snapshot, measure
from bearcat.watch.store import Store

SETTLED = 2.0  # seconds without a change after which a file counts as complete
POLL = 10.0  # seconds from one look at the folder to the next
PAUSE = 30.0  # seconds from one notification to the next while many files are read
LATE = "a recording is not later than the one before; it and others like it are left out"

Say = Callable[[str, str], None]  # a sentence, and its kind: "note" or "problem"


def measure_file(arrival: Arrival, given: Given) -> list[Snapshot] | InputError:
    """The snapshots of a file, or why there are none."""
    if arrival.problem is not None:
        return InputError(arrival.problem)
    try:
        read = measurements_of_file(Path(arrival.path), given, arrival.rows, arrival.rpm)
        about = arrival.time, arrival.machine, arrival.point
        return [snapshot for measurement in read for snapshot in measure(measurement, given, *about)]
    except InputError as error:
        return error
    except OSError as error:
        return InputError(f"{arrival.path}: {error.strerror or error}")
    except MemoryError:  # the file is sound, and is read by the next call
        raise
    except Exception as error:
        return bug(arrival.path, error)


@dataclass
class Watching:
    """A folder, the store that it is read into, and how."""

    folder: WatchedFolder
    store: Store
    request: WatchRequest
    notifier: Notifier
    say: Say
    given: Given
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter
    problems: int = 0  # files that could not be used
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.folder.say = self._say_once
        self._settings = f"{__version__} {self.given!r}"

    def look(self) -> list[PointStatus]:
        """Takes in complete files that the store does not know, in order of time; points whose status has changed."""
        unknown = self.folder.scan(self.store.known(self._settings))
        arrivals = sorted(unknown, key=lambda file: (file.time, file.machine, file.point or "", file.path))
        if any(arrival.changed / 1e9 > time.time() - SETTLED for arrival in arrivals):
            time.sleep(SETTLED)
        new, changed = list(filter(self._is_complete, arrivals)), list[PointStatus]()
        results = in_processes(partial(measure_file, given=self.given), new, self.request.jobs)
        measured = zip(self.progress(new), results, strict=True)
        due = time.monotonic() + PAUSE
        try:
            for (_, machine), group in groupby(measured, key=lambda file: (file[0].time, file[0].machine)):
                complete = [(arrival, result) for arrival, result in group if self._is_complete(arrival)]
                for arrival, result in complete:
                    if isinstance(result, InputError):
                        self._refuse(arrival, result)
                changed += self._judge(machine, [file for file in complete if not isinstance(file[1], InputError)])
                if time.monotonic() > due:
                    self.notifier.send(self.store, self._say_once)
                    due = time.monotonic() + PAUSE
        finally:
            self.notifier.send(self.store, self._say_once)
        return changed

    def _is_complete(self, arrival: Arrival) -> bool:
        """Whether a file is as it was found; otherwise says that it is read later."""
        complete = arrival.problem is not None or arrival.unchanged()
        if not complete:
            self._say_once(f"{arrival.path}: is still being written; it is read later")
        return complete

    def _judge(self, machine: str, measured: Sequence[tuple[Arrival, Any]]) -> list[PointStatus]:
        """Takes files of a machine and one time in, in one transaction; the points whose status has changed."""
        with self.store.transaction():
            measured = [(file, [] if self.store.is_copy(file) else result) for file, result in measured]
            snapshots = [snapshot for _, result in measured for snapshot in result]
            before = self.store.states(machine)
            after, events, late = judge(before, snapshots, self.request)
            for arrival, result in measured:
                judged = [snapshot for snapshot in result if snapshot not in late]
                self.store.add(arrival, [(snapshot, after[snapshot.point].status) for snapshot in judged])
            changed = {point: state for point, state in after.items() if state is not before.get(point)}
            self.store.keep(changed.values(), events)
        for snapshot in late:
            self._say_once(f"{machine}/{snapshot.point}: {LATE}")
        same = {point for point, state in before.items() if state.status.status == after[point].status.status}
        return [state.status for point, state in changed.items() if point not in same]

    def _refuse(self, arrival: Arrival, problem: InputError) -> None:
        """A file that cannot be used is named, its points are to be checked, and it is tried again when it or the
        settings have changed.
        """
        sentence = problem.for_command_line
        self._say_once(sentence, "problem")
        states = self.store.states(arrival.machine)
        points = [arrival.point] if arrival.point else sorted({row.point for row in arrival.rows if row.point})
        marked = [
            unreadable(states.get(point) or PointState(PointStatus(arrival.machine, point)), arrival.time, sentence)
            for point in points or list(states) or ["1"]
        ]
        unusable = Finding("unreadable", "check", {"problem": sentence})
        event = Event(arrival.machine, arrival.point or "", arrival.time, "problem", (unusable,))
        with self.store.transaction():
            self.store.add(arrival, refused=self._settings)
            self.store.keep(marked, [event])

    def _say_once(self, sentence: str, kind: str = "note") -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self.problems += kind == "problem"
            self.say(shown(sentence), kind)


@contextmanager
def watching_into(
    store: str | Path, folder: Path, request: WatchRequest, say: Say, addresses: Sequence[str] = ()
) -> Iterator[Watching]:
    """A folder to be read into a store, which no other process reads another one into meanwhile, and the addresses to
    which events are sent.
    """
    watched, notifier = WatchedFolder(folder), Notifier(addresses)
    stated = {field.name: getattr(request, field.name) for field in fields(PointRequest)}
    given = Given.of(DiagnoseRequest(**stated))  # which refuses what cannot be, before there is a store
    with Store.open(store, create=True) as opened, opened.watching():
        yield Watching(watched, opened, request, notifier, say, given)


def watch(folder: str | Path, store: str | Path, **request: Any) -> Fleet:
    """Reads what is new below a folder into a store (a file, or a PostgreSQL address): the points, worst first.

    Recordings lie at MACHINE/POINT/TIME.ext, or a manifest.csv lists them. Keywords are the fields of `WatchRequest`,
    called as the options of `bearcat watch`. Problems are Python warnings. A script that asks for several `jobs` must
    do so under `if __name__ == "__main__":`.

    >>> Path("plant/pump-3/drive-end").mkdir(parents=True, exist_ok=True)
    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> np.savez("plant/pump-3/drive-end/2024-05-01T10-30-00.npz", x=noise, fs=12_000.0)
    >>> fleet = bearcat.watch("plant", "plant.db", rpm=1480, bearing="6205")
    >>> fleet.summary
    '1 point: 1 ok. The baseline of 1 point is still being learnt.'
    """

    def say(sentence: str, kind: str) -> None:
        if kind == "problem":
            warnings.warn(sentence, stacklevel=5)

    with watching_into(store, Path(folder), WatchRequest.of(**request), say) as watching:
        watching.look()
        return watching.store.fleet()
