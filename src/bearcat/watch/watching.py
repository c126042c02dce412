"""Watching: recordings as they arrive → measurements → what each point's state says of them → the store.

Files are measured in this process or in several; results are taken in order of time. All files of a machine with one
time are judged together and added in one transaction. A half-written file waits.

>>> fleet = bearcat.watch("plant", "plant.db", rpm=1480, bearing="6205")
>>> fleet.summary
'12 points: 1 alarm, 2 check, 9 ok.'
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
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

SETTLED = 2.0  # seconds without a change after which a file counts as complete
POLL, IDLE = 5.0, 9.0  # seconds from one look at the folder to the next, or so many times what that took
LATE = "a recording is not later than the one before; it and others like it are kept, but not judged"

Measured = list[Snapshot] | InputError
Key = tuple[str, str]  # machine and point


def given_of(request: WatchRequest) -> Given:
    """How files are read: what a user says of all of them."""
    stated = {field.name: getattr(request, field.name) for field in fields(PointRequest)}
    given = Given.of(DiagnoseRequest(**stated))
    if given.speed is not None:
        raise InputError(f"'{given.speed}' is not a number; a manifest's column rpm may name a channel", "rpm")
    return given


def measure_file(arrival: Arrival, given: Given) -> Measured:
    """The snapshots of a file, or why there are none."""
    first = arrival.rows[0] if arrival.rows else None
    load, temperature = (None, None) if first is None else (first.load, first.temperature)
    try:
        read = measurements_of_file(Path(arrival.path), arrival.rows, given.channel, given.channels, arrival.rpm)
        about = arrival.time, arrival.machine, arrival.point, load, temperature
        return [snapshot for measurement in read for snapshot in measure(measurement, given, *about)]
    except InputError as error:
        return error
    except OSError as error:
        return InputError(f"{arrival.path}: {error.strerror or error}")


def judge(
    store: Store, measured: Sequence[tuple[RecordingFile, Sequence[Snapshot]]], sent: bool = False
) -> tuple[list[PointStatus], list[str]]:
    """Takes files of one machine and time in, in one transaction: points whose status is another, and what is odd in a
    sentence of each point. `sent`: nobody waits for notifications.
    """
    snapshots = [snapshot for _, parts in measured for snapshot in parts]
    with store.transaction():
        rule, notes, readings = store.rule, dict[Key, str](), dict[Key, Reading]()
        machines = sorted({snapshot.machine for snapshot in snapshots})
        states = {(name, point): state for name in machines for point, state in store.states(name).items()}
        before = {key: state.status for key, state in states.items()}
        for snapshot in snapshots:
            key = snapshot.machine, snapshot.point
            last = before[key].time if key in before else None
            if key in readings or (last is not None and snapshot.time <= last):
                notes[key] = LATE
                continue
            states[key], readings[key] = observe(states.get(key) or PointState(PointStatus(*key)), snapshot)
        happened = dict[Key, tuple[Event, ...]]()
        for key, reading in readings.items():
            beside = [state for other, state in states.items() if other != key and other[0] == key[0]]
            states[key], happened[key] = assess(states[key], reading, rule, beside)
        for file, parts in measured:
            new = [key for key, reading in readings.items() if any(reading.snapshot is part for part in parts)]
            judged = {id(readings[key].snapshot): states[key].status for key in new}
            rows = [(part, judged.get(id(part))) for part in parts]
            store.add(file, rows, [states[key] for key in new], [event for key in new for event in happened[key]], sent)
    statuses = {key: states[key].status for key in readings}
    changed = [now for key, now in statuses.items() if key not in before or before[key].status != now.status]
    return changed, [f"{'/'.join(key)}: {sentence}" for key, sentence in notes.items()]


def _silent(*_: object) -> None:
    pass


@dataclass
class Watching:
    """A folder, the store that it is read into, and how."""

    folder: WatchedFolder
    store: Store
    given: Given = field(default_factory=Given)
    jobs: int = 1  # processes that measure
    notifier: Notifier | None = None
    say: Callable[[str, str], None] = _silent  # a sentence, and its kind: "note" or "problem"
    show: Callable[[PointStatus], None] = _silent  # a point whose status has changed
    progress: Callable[[Sequence[Any]], Iterable[Any]] = lambda files: files
    stop: threading.Event = field(default_factory=threading.Event)
    problems: int = 0  # files that could not be used
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.folder.say = self._say_once

    def once(self) -> None:
        """Takes in what is new; files that are still being written are named."""
        with self._begun():
            arrivals = self._new()
            complete = self._complete(arrivals)
            for arrival in arrivals:
                if arrival not in complete:
                    self._say_once(f"{arrival.path}: is still being written; the next run reads it")
            self._take(complete)

    def on(self) -> None:
        """Goes on as files arrive, until `stop` is set."""
        with self._begun():
            while not self.stop.is_set():
                began = time.monotonic()
                arrivals = self._new()
                seconds = time.monotonic() - began
                self._take(self._complete(arrivals))
                self._notify()
                self.stop.wait(max(POLL, IDLE * seconds))

    @contextmanager
    def _begun(self) -> Iterator[None]:
        with self.store.watching():
            if self.notifier is None:  # nobody waits for what happened before
                self.store.mark_sent()
            self._notify()
            yield

    def _notify(self) -> None:
        if self.notifier is not None:
            self.notifier.send(self.store)

    def _new(self) -> list[Arrival]:
        """Files of the folder that the store does not know, in order of time."""
        known, new = self.store.known(), list[Arrival]()
        for arrival in self.folder.scan():
            file = known.get((arrival.path, arrival.part))
            if file is None or (file.size, file.changed) != (arrival.size, arrival.changed) or self._to_try_again(file):
                new.append(arrival)
        return sorted(new, key=lambda arrival: (arrival.time, arrival.machine, arrival.point or "", arrival.path))

    def _complete(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """Those that nobody writes any more: they are old, or do not change for some seconds."""
        recent = {arrival.path for arrival in arrivals if arrival.changed / 1e9 > time.time() - SETTLED}
        if recent:
            self.stop.wait(SETTLED)
        return [arrival for arrival in arrivals if arrival.path not in recent or arrival.unchanged()]

    def _to_try_again(self, file: RecordingFile) -> bool:
        """Whether a file that could not be read is read otherwise now."""
        return file.refused is not None and file.refused != self._settings

    @property
    def _settings(self) -> str:
        return f"{__version__} {self.given!r}"

    def _take(self, arrivals: Sequence[Arrival]) -> None:
        """Measures these files and judges them."""
        if not (new := list(self._unknown(arrivals))):
            return
        results = in_processes(partial(measure_file, given=self.given), [arrival for arrival, _ in new], self.jobs)
        measured = ((*file, result) for file, result in zip(self.progress(new), results, strict=True))
        for _, group in groupby(measured, key=lambda file: (file[0].time, file[0].machine)):
            self._keep(list(group))
            if self.stop.is_set():
                break

    def _unknown(self, arrivals: Sequence[Arrival]) -> Iterator[tuple[Arrival, str]]:
        """Those of these files whose content is new, with its digest."""
        taken = dict[Key, str]()  # paths of contents that are measured, by digest and part
        for arrival in arrivals:
            if arrival.problem is not None:
                self._problem(arrival, f"none for {arrival.path}", InputError(arrival.problem))
                continue
            try:
                digest = digest_file(Path(arrival.path))
            except OSError as error:
                sentence = f"{arrival.path}: cannot be read ({error.strerror}); make it readable"
                self._problem(arrival, "", InputError(sentence))
                continue
            known = self.store.recording(digest, arrival.part)
            if known is not None and not self._to_try_again(known):
                if known.path == arrival.path or not Path(known.path).exists():  # it was touched, or moved
                    self.store.add(replace(known, path=arrival.path, size=arrival.size, changed=arrival.changed))
                    continue
                taken[digest, arrival.part] = known.path
            if (digest, arrival.part) in taken:
                twin = taken[digest, arrival.part]
                self._say_once(f"{arrival.path}: has the content of {twin}, and is left out")
            else:
                taken[digest, arrival.part] = arrival.path
                yield arrival, digest

    def _keep(self, group: Sequence[tuple[Arrival, str, Measured]]) -> None:
        """Takes the results of a group into the store."""
        measured = list[tuple[RecordingFile, list[Snapshot]]]()
        for arrival, digest, result in group:
            if not arrival.unchanged():
                self._say_once(f"{arrival.path}: was changed while it was read; it is read again later")
            elif isinstance(result, InputError):
                self._problem(arrival, digest, result)
            else:
                measured.append((_file(arrival, digest), result))
                observed = [finding for snapshot in result for finding in snapshot.observation.observed]
                for note in sentences(finding for finding in observed if finding.severity == "remark"):
                    self._say_once(f"{arrival.path}: {note}")
        if measured:
            changed, notes = judge(self.store, measured, sent=self.notifier is None)
            for note in notes:
                self._say_once(note)
            for status in changed:
                self.show(status)
            self._notify()

    def _problem(self, arrival: Arrival, digest: str, problem: InputError) -> None:
        """A file that cannot be used is named, its points are to be checked, and it is tried again when it or the
        settings have changed.
        """
        sentence = problem.for_command_line
        self._say_once(sentence, "problem")
        if digest:
            states = self.store.states(arrival.machine)
            points = [arrival.point] if arrival.point else sorted({row.point for row in arrival.rows if row.point})
            marked = [
                unreadable(states.get(point) or PointState(PointStatus(arrival.machine, point)), arrival.time, sentence)
                for point in points or list(states) or ["1"]
            ]
            unusable = Finding("unreadable", "check", {"problem": sentence})
            event = Event(arrival.machine, arrival.point or "", arrival.time, "problem", (unusable,))
            file = replace(_file(arrival, digest), refused=self._settings)
            self.store.add(file, states=marked, events=[event], sent=self.notifier is None)

    def _say_once(self, sentence: str, kind: str = "note") -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self.problems += kind == "problem"
            self.say(shown(sentence), kind)


def _file(arrival: Arrival, digest: str) -> RecordingFile:
    return RecordingFile(arrival.path, arrival.part, digest, arrival.size, arrival.changed)


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
    options = WatchRequest.of(**request)
    watched, given, rule = WatchedFolder(Path(folder), options.timezone), given_of(options), options.rule
    with Store.open(store, create=True) as opened:
        opened.choose_rule(rule)
        watching = Watching(watched, opened, given, options.jobs)
        watching.say = lambda sentence, kind: warnings.warn(sentence, stacklevel=4) if kind == "problem" else None
        watching.once()
        return opened.fleet()


@contextmanager
def ending_cleanly(stop: threading.Event) -> Iterator[None]:
    """While this lasts, Ctrl-C and SIGTERM set `stop`; a second Ctrl-C interrupts at once."""

    def handle(number: int, _: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
