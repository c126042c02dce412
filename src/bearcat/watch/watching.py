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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from bearcat import __version__
from bearcat.deploy import in_processes
from bearcat.deploy.find import Given, measurements_of_file
from bearcat.errors import InputError, shown
from bearcat.findings import Finding, sentences
from bearcat.settings import DiagnoseRequest, PointRequest, WatchRequest
from bearcat.storage import digest_file
from bearcat.watch.alarm import assess, unreadable
from bearcat.watch.folder import Arrival, WatchedFolder
from bearcat.watch.memory import PointState, Reading, observe
from bearcat.watch.notify import Notifier
from bearcat.watch.snapshot import Event, Fleet, PointStatus, RecordingFile, Snapshot, measure
from bearcat.watch.store import Store
from bearcat.watch.usual import WatchRule

SETTLED = 2.0  # seconds without a change after which a file counts as complete
POLL = 10.0  # seconds from one look at the folder to the next
STATED = [field.name for field in fields(PointRequest)]  # how all files are read
LATE = "a recording is not later than the one before; it and others like it are kept, but not judged"

Measured = list[Snapshot] | InputError


def measure_file(arrival: Arrival, given: Given) -> Measured:
    """The snapshots of a file, or why there are none."""
    first = arrival.rows[0] if arrival.rows else None
    load, temperature = (None, None) if first is None else (first.load, first.temperature)
    try:
        read = measurements_of_file(Path(arrival.path), given, arrival.rows, arrival.rpm)
        about = arrival.time, arrival.machine, arrival.point, load, temperature
        return [snapshot for measurement in read for snapshot in measure(measurement, given, *about)]
    except InputError as error:
        return error
    except OSError as error:
        return InputError(f"{arrival.path}: {error.strerror or error}")


@dataclass
class Watching:
    """A folder, the store that it is read into, and how."""

    folder: WatchedFolder
    store: Store
    given: Given
    rule: WatchRule
    jobs: int  # processes that measure
    notifier: Notifier | None
    say: Callable[[str, str], None]  # a sentence, and its kind: "note" or "problem"
    show: Callable[[PointStatus], None] = lambda _: None  # a point whose status has changed
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter
    problems: int = 0  # files that could not be used
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.folder.say = self._say_once
        self._settings = f"{__version__} {self.given!r}"

    def go_on(self) -> None:
        """Takes in files as they arrive, until it is interrupted."""
        while True:
            self.look()
            time.sleep(POLL)

    def look(self) -> None:
        """Takes in files that the store does not know, in order of time, but none that is still being written."""
        files = [file for file in self.store.files() if file.refused in (None, self._settings)]
        unchanged = {(file.path, file.part, file.size, file.changed) for file in files}
        contents = {(file.digest, file.part): file for file in files}
        arrivals = [
            arrival for arrival in self.folder.scan()
            if (arrival.path, arrival.part, arrival.size, arrival.changed) not in unchanged
        ]  # fmt: skip
        arrivals.sort(key=lambda arrival: (arrival.time, arrival.machine, arrival.point or "", arrival.path))
        recent = {arrival.path for arrival in arrivals if arrival.changed / 1e9 > time.time() - SETTLED}
        if recent:
            time.sleep(SETTLED)
        new = list[tuple[Arrival, RecordingFile]]()
        for arrival in arrivals:
            if arrival.path in recent and not arrival.unchanged():
                self._say_once(f"{arrival.path}: is still being written; it is read later")
            elif (file := self._identified(arrival, contents)) is not None:
                contents[file.digest, file.part] = file
                new.append((arrival, file))
        results = in_processes(partial(measure_file, given=self.given), [arrival for arrival, _ in new], self.jobs)
        measured = ((*each, result) for each, result in zip(self.progress(new), results, strict=True))
        for (_, machine), group in groupby(measured, key=lambda each: (each[0].time, each[0].machine)):
            self._keep(machine, list(group))
        self._notify()

    def _identified(self, arrival: Arrival, contents: Mapping[tuple[str, str], RecordingFile]) -> RecordingFile | None:
        """The file by its content; None where that cannot be read, or is known."""
        if arrival.problem is not None:
            self._problem(arrival, arrival.file(f"none for {arrival.path}"), InputError(arrival.problem))
            return None
        try:
            file = arrival.file(digest_file(Path(arrival.path)))
        except OSError as error:
            self._say_once(f"{arrival.path}: cannot be read ({error.strerror}); make it readable", "problem")
            return None
        if (twin := contents.get((file.digest, file.part))) is None:
            return file
        if twin.path == file.path or not Path(twin.path).exists():  # it was touched, or moved
            self.store.add(replace(file, refused=twin.refused))
        else:
            self._say_once(f"{arrival.path}: has the content of {twin.path}, and is left out")
        return None

    def _keep(self, machine: str, group: Sequence[tuple[Arrival, RecordingFile, Measured]]) -> None:
        """Takes the results of files of one time into the store."""
        measured = list[tuple[RecordingFile, list[Snapshot]]]()
        for arrival, file, result in group:
            if not arrival.unchanged():
                self._say_once(f"{arrival.path}: was changed while it was read; it is read again later")
            elif isinstance(result, InputError):
                self._problem(arrival, file, result)
            else:
                measured.append((file, result))
                for snapshot in result:
                    remarks = [finding for finding in snapshot.observation.observed if finding.severity == "remark"]
                    for note in sentences(remarks):
                        self._say_once(f"{machine}/{snapshot.point}: {note}")
        if measured:
            self._judge(machine, measured)
            self._notify()

    def _judge(self, machine: str, measured: Sequence[tuple[RecordingFile, Sequence[Snapshot]]]) -> None:
        """Takes files of a machine and one time in, in one transaction, and shows points whose status is another."""
        late, events, readings = list[str](), list[Event](), dict[str, Reading]()
        with self.store.transaction():
            states = self.store.states(machine)
            before = {point: state.status for point, state in states.items()}
            for snapshot in (snapshot for _, snapshots in measured for snapshot in snapshots):
                point = snapshot.point
                state = states.get(point) or PointState(PointStatus(machine, point))
                if point in readings or (state.status.time is not None and snapshot.time <= state.status.time):
                    late.append(point)
                else:
                    states[point], readings[point] = observe(state, snapshot)
            for point, reading in readings.items():
                beside = [state for other, state in states.items() if other != point]
                states[point], happened = assess(states[point], reading, self.rule, beside)
                events += happened
            judged = {id(reading.snapshot): states[point].status for point, reading in readings.items()}
            for file, snapshots in measured:
                self.store.add(file, [(snapshot, judged.get(id(snapshot))) for snapshot in snapshots])
            self.store.keep([states[point] for point in readings], events, sent=self.notifier is None)
        for point in late:
            self._say_once(f"{machine}/{point}: {LATE}")
        for status in judged.values():
            if status.point not in before or before[status.point].status != status.status:
                self.show(status)

    def _problem(self, arrival: Arrival, file: RecordingFile, problem: InputError) -> None:
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
            self.store.add(replace(file, refused=self._settings))
            self.store.keep(marked, [event], sent=self.notifier is None)

    def _notify(self) -> None:
        if self.notifier is not None:
            self.notifier.send(self.store)

    def _say_once(self, sentence: str, kind: str = "note") -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self.problems += kind == "problem"
            self.say(shown(sentence), kind)


@contextmanager
def watching_into(
    store: str | Path, folder: Path, request: WatchRequest, notifier: Notifier | None, say: Callable[[str, str], None]
) -> Iterator[Watching]:
    """A folder to be read into a store, which no other process reads another one into meanwhile."""
    watched, stated = WatchedFolder(folder, request.timezone), {name: getattr(request, name) for name in STATED}
    given = Given.of(DiagnoseRequest(**stated))
    with Store.open(store, create=True) as opened, opened.watching():
        if notifier is None:  # nobody waits for what happened before
            opened.mark_sent()
        yield Watching(watched, opened, given, WatchRule(**request.rule), request.jobs, notifier, say)


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

    with watching_into(store, Path(folder), WatchRequest.of(**request), None, say) as watching:
        watching.look()
        return watching.store.fleet()
