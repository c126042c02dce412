"""Watching: recordings as they arrive → measurements → what each point's memory says of them → the store.

Files are measured in this process, in several, or on a Ray cluster, a few ahead; results are taken in order of time.
All files of a machine with one time are judged together and added in one transaction. A half-written file waits.

>>> fleet = bearcat.watch("plant", "plant.db", rpm=1480, bearing="6205")
>>> fleet.summary
'12 points: 1 alarm, 2 check, 9 ok.'
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from bearcat.data.bearing import Bearing, find_bearing
from bearcat.data.catalogue import checked_root
from bearcat.data.channels import points_of
from bearcat.data.datasets.folder import MANIFEST
from bearcat.data.times import time_in
from bearcat.deploy.predict import Given
from bearcat.errors import InputError
from bearcat.names import shown
from bearcat.report.typeset import count
from bearcat.storage import digest_file
from bearcat.watch.folder import MOST_NAMED, SETTLED, Arrival, WatchedFolder, zone_called
from bearcat.watch.measuring import Measured, Measuring, Reading, Submit
from bearcat.watch.memory import PointMemory
from bearcat.watch.out import Out
from bearcat.watch.snapshot import Assessment, Event, PointStatus, Snapshot
from bearcat.watch.status import Fleet
from bearcat.watch.store import RecordingFile, Store
from bearcat.watch.usual import WatchRule

PATIENCE = 60.0  # seconds since its last change for which a file that cannot be read may still be written
WAITED = 30.0  # seconds that --once waits for files that still change
TICK, RETRY, RESCAN = 1.0, 5.0, 300.0  # seconds between checks for changes, for files that wait, and of all files
SAME_RATE = 0.01  # by which rates may differ
LATE = "a recording is not later than the one before; it and others like it are kept, but not judged"
SAID = ("sensor", "problem")  # events that are no change of a status, and are said at once


@dataclass(frozen=True)
class Judged:
    """What came of the files of a machine with one time."""

    events: tuple[Event, ...] = ()
    changed: tuple[PointStatus, ...] = ()  # points whose status is another
    notes: tuple[str, ...] = ()  # what is odd, a sentence of each point
    assessments: tuple[Assessment, ...] = ()


def judge(
    store: Store, measured: Sequence[tuple[RecordingFile, Sequence[Snapshot]]], healthy: bool | None = None,
    sent: bool = False,
) -> Judged:  # fmt: skip
    """Takes files of one machine and time in, in one transaction; `sent`: nobody waits for notifications."""
    with store.transaction():
        rule, changed, events = store.rule or WatchRule(), list[PointStatus](), list[Event]()
        notes = dict[tuple[str, str], str]()
        machines = {snapshot.machine for _, snapshots in measured for snapshot in snapshots}
        memories = {(each.machine, each.point): each for name in sorted(machines) for each in store.memories(name)}
        before = {key: memory.status for key, memory in memories.items()}
        latest = {key: status.time for key, status in before.items()}
        observed: dict[int, PointMemory] = {}  # by the id of the snapshot
        for snapshot in (snapshot for _, snapshots in measured for snapshot in snapshots):
            key = snapshot.machine, snapshot.point
            last = latest.get(key)
            if last is not None and snapshot.time <= last:
                notes[key] = LATE
                continue
            if key not in memories and any(machine == key[0] for machine, _ in before):
                notes[key] = "is a new point of the machine, or another channel; its baseline is learnt"
            memory = memories.setdefault(key, PointMemory(*key, rule))
            rate = memory.state.rate if memory.states else None
            if rate and snapshot.rate and abs(snapshot.rate / rate - 1) > SAME_RATE:
                notes[key] = f"the sampling rate was {rate:g} Hz and is {snapshot.rate:g} Hz now"
            memory.observe(snapshot, healthy)
            latest[key], observed[id(snapshot)] = snapshot.time, memory
        said: dict[int, Assessment] = {}
        for number, memory in observed.items():
            beside = [other for other in memories.values() if other is not memory and other.machine == memory.machine]
            said[number] = memory.assess(beside, store.sisters(memory.point, memory.machine))
            former = before.get((memory.machine, memory.point))
            if former is None or former.status != memory.status.status:
                changed.append(memory.status)
        for file, snapshots in measured:
            rows = [(snapshot, said.get(id(snapshot))) for snapshot in snapshots]
            own = [observed[id(snapshot)] for snapshot in snapshots if id(snapshot) in observed]
            events += store.add(file, rows, own, sent=sent)
    said_of = tuple(f"{'/'.join(key)}: {sentence}" for key, sentence in notes.items())
    return Judged(tuple(events), tuple(changed), said_of, tuple(said.values()))


def _silent(*_: object) -> None:
    pass


@dataclass
class Watching:
    """A folder, the store that it is read into, and how."""

    folder: WatchedFolder
    store: Store
    reading: Reading = field(default_factory=Reading)
    healthy: Callable[[Arrival], bool] = lambda _: False  # whether a person says so
    measuring: Measuring = field(default_factory=Measuring)
    out: Out | None = None  # where what happens is sent
    say: Callable[[str, str], None] = _silent  # a sentence, and its kind: "note" or "problem"
    show: Callable[[PointStatus], None] = _silent  # a point whose status has changed
    progress: Callable[[Sequence[Any]], Iterable[Any]] = lambda groups: groups
    stop: threading.Event = field(default_factory=threading.Event)
    problems: int = 0  # files that could not be used
    _said: set[str] = field(default_factory=set)

    def once(self) -> None:
        """Takes in what is new, and waits a little for files that are being written."""
        with self.store.watching(), self.measuring.start(self.reading) as (submit, ahead):
            self._begin()
            until = time.monotonic() + WAITED
            done, fresh = self.folder.complete(self._new(self.folder.scan()))
            while fresh and time.monotonic() < until and not self.stop.wait(SETTLED / 4):
                done, fresh = self.folder.complete(self._new(self.folder.scan()))
            for each in fresh:
                self._say_once(f"{each.path}: is still being written; the next run reads it", "note")
            self._take(done, submit, ahead, patient=False)

    def on(self) -> None:
        """Goes on as files arrive, until `stop` is set."""
        with self.store.watching(), self.measuring.start(self.reading) as (submit, ahead):
            self._begin()
            waiting, scanned, tried = set[str](), -RESCAN, 0.0
            for paths in self._changes():
                now, arrivals = time.monotonic(), list[Arrival]()
                if now - scanned >= RESCAN:
                    scanned, waiting, arrivals = now, set(), list(self.folder.scan())
                else:
                    if now - tried >= RETRY:
                        paths, waiting, tried = paths | waiting, set(), now
                    arrivals = list(self._arrivals(paths))
                done, fresh = self.folder.complete(self._new(arrivals))
                waiting |= {each.path for each in fresh} | self._take(done, submit, ahead, patient=True)

    def _begin(self) -> None:
        if not self._sends:  # nobody waits for what happened before
            self.store.mark_sent([event.number for event in self.store.unsent() if event.number is not None])
        if self.out is not None:
            self.out.begin(self.store.fleet())

    @property
    def _sends(self) -> bool:
        return self.out is not None and self.out.sends

    def _arrivals(self, paths: set[str]) -> Iterator[Arrival]:
        """The recordings of paths that have changed."""
        folders = set[Path]()
        for name in paths:
            path = Path(name)
            if not path.is_relative_to(self.folder.root) or self.folder.hidden(path):
                continue
            manifest = self.folder.manifest_above(path)
            if manifest is not None or path.name == MANIFEST or path.is_dir():
                folders.add(manifest or (path if path.is_dir() else path.parent))
            elif self.folder.is_recording(path) and (arrival := self.folder.arrival(path)) is not None:
                yield arrival
        for folder in folders:
            if folder.is_dir():
                yield from self.folder.scan(folder)

    def _changes(self) -> Iterator[set[str]]:
        """Paths that have changed, every second, and at once; nothing where the system cannot say. What is written
        after the first look at the folder and before the system announces changes is found by a second look.
        """
        yield set()
        try:
            from watchfiles import watch

            changes = watch(
                self.folder.root, watch_filter=None, stop_event=self.stop, rust_timeout=int(1000 * TICK),
                yield_on_timeout=True, raise_interrupt=False, ignore_permission_denied=True,
            )  # fmt: skip
            unannounced = {str(self.folder.root)}
            for found in changes:
                yield {path for _, path in found} | unannounced
                unannounced = set()
        except (ImportError, OSError, RuntimeError) as error:
            self.say(f"changes are not announced here ({error}), so the folder is read every {RETRY:g} s", "note")
            while not self.stop.wait(RETRY):
                yield {str(self.folder.root)}

    def _new(self, arrivals: Iterable[Arrival]) -> list[Arrival]:
        """Those that the store does not know, in order of time."""
        every, tried = list(arrivals), self.reading.identity
        known = self.store.known(sorted({each.path for each in every}))
        new, failed = [], 0
        for each in every:
            file = known.get((each.path, each.place))
            if file is None or (file.size, file.changed) != (each.size, each.changed):
                new.append(each)
            elif file.problem is not None:
                failed += 1
                if file.tried != tried:
                    new.append(each)
        for sentence in self.folder.problems():
            self.problems += 1
            self._say_once(sentence, "problem")
        for sentence in self.folder.notes():
            self._say_once(sentence, "note")
        if failed:
            self.problems += failed
            files = f"{count(failed, 'file')} that could not be read before {'has' if failed == 1 else 'have'}"
            self._say_once(f"{files} not changed; remove or repair what bearcat watch named", "note")
        return sorted(new, key=lambda each: (each.time, each.machine, each.point or "", each.path))

    def _take(self, arrivals: Sequence[Arrival], submit: Submit, ahead: int, patient: bool) -> set[str]:
        """Measures so many of these files `ahead`, and judges them; the paths of those to try again. `patient`: a new
        file may be unfinished.
        """
        groups = [list(same) for _, same in groupby(arrivals, key=lambda each: (each.time, each.machine))]
        again, begun = set[str](), deque[list[tuple[Arrival, str, Callable[[], Measured]]]]()
        rest = iter(groups)
        for _ in self.progress(groups):
            if self.stop.is_set():
                break
            while sum(map(len, begun)) < ahead and (group := next(rest, None)) is not None:
                begun.append(list(self._submitted(group, submit)))
            again |= self._keep(begun.popleft(), patient)
        return again

    def _submitted(
        self, group: Sequence[Arrival], submit: Submit
    ) -> Iterator[tuple[Arrival, str, Callable[[], Measured]]]:
        """Begins to measure those files whose content is new."""
        for arrival in group:
            try:
                digest = digest_file(Path(arrival.path))
            except OSError as error:
                problem = InputError(f"{arrival.path}: cannot be read ({error.strerror}); make it readable")
                yield arrival, "", partial(_same, problem)
                continue
            known = self._twin(arrival, digest)
            if known is None:
                yield arrival, digest, submit(arrival, digest)
            elif known.path == arrival.path or not Path(known.path).exists():  # it was touched, or moved
                self.store.add(replace(known, path=arrival.path, size=arrival.size, changed=arrival.changed))
            else:
                self._say_once(f"{arrival.path}: has the content of {known.path}, and is left out", "note")

    def _keep(self, group: Sequence[tuple[Arrival, str, Callable[[], Measured]]], patient: bool) -> set[str]:
        """Takes the results of a group into the store; the paths of files to try again."""
        measured, again, healthy = list[tuple[RecordingFile, list[Snapshot]]](), set[str](), True
        places = set[tuple[str, str]]()
        began, problems, judged = time.monotonic(), self.problems, Judged()
        for arrival, digest, result in group:
            found, path = result(), Path(arrival.path)
            if _state(path) != (arrival.size, arrival.changed):
                again.add(arrival.path)  # it was written to meanwhile
                self._say_once(f"{path}: was changed while it was read; it is read again later", "note")
            elif isinstance(found, InputError):
                if patient and time.time() - arrival.changed / 1e9 < PATIENCE:
                    again.add(arrival.path)
                else:
                    self._problem(arrival, digest, found)
            elif (digest, arrival.place) in places or self._twin(arrival, digest) is not None:
                self._say_once(f"{path}: has the content of a file beside it, and is left out", "note")
            else:
                places.add((digest, arrival.place))
                file = RecordingFile(arrival.path, arrival.place, digest, arrival.size, arrival.changed, arrival.time)
                measured.append((file, found))
                healthy = healthy and self.healthy(arrival)
                for note in dict.fromkeys(note for snapshot in found for note in snapshot.notes):
                    self._say_once(note if note.startswith(arrival.path) else f"{arrival.path}: {note}", "note")
        if measured:
            judged = judge(self.store, measured, healthy or None, sent=not self._sends)
            for note in judged.notes:
                self._say_once(note, "note")
            for status in judged.changed:
                self.show(status)
            for event in judged.events:
                if event.kind in SAID:
                    self.say(event.sentence, "note")
        if self.out is not None:
            seconds = time.monotonic() - began
            self.out.observe(judged.assessments, len(measured), self.problems - problems, seconds)
        return again

    def _twin(self, arrival: Arrival, digest: str) -> RecordingFile | None:
        """The recording with the same content that was read before; not one that could not be read until now."""
        known = self.store.recording(digest, arrival.place)
        failed = known is not None and known.problem is not None and known.tried != self.reading.identity
        return None if failed else known

    def _problem(self, arrival: Arrival, digest: str, problem: InputError) -> None:
        """A file that cannot be used is named, and is tried again when it or the settings have changed."""
        self.problems += 1
        sentence = problem.for_command_line
        self._say_once(sentence, "problem")
        if digest:
            point = arrival.point or ""
            event = Event(arrival.machine, point, arrival.time, "problem", sentence)
            file = RecordingFile(
                arrival.path, arrival.place, digest, arrival.size, arrival.changed, arrival.time, sentence,
                self.reading.identity,
            )  # fmt: skip
            self.store.add(file, events=[event], sent=not self._sends)

    def _say_once(self, sentence: str, kind: str) -> None:
        if sentence not in self._said:
            if len(self._said) > MOST_NAMED:
                self._said.clear()
            self._said.add(sentence)
            self.say(shown(sentence), kind)


def _same(problem: InputError) -> Measured:
    return problem


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def open_watching(
    folder: str | Path,
    store: Store,
    *,
    rpm: float | None = None,
    bearing: str | Bearing | None = None,
    rate: float | None = None,
    channel: str | None = None,
    channels: str | None = None,
    trust_speed: bool = False,
    healthy: str | Path | None = None,
    timezone: str | None = None,
    measuring: Measuring | None = None,
) -> Watching:
    """A folder that is to be read into a store, with what a user says of its recordings."""
    points_of((), channels)  # which refuses other words
    zone = zone_called(timezone)
    geometry = find_bearing(bearing) if isinstance(bearing, str) else bearing
    reading = Reading(Given(rate, rpm, geometry, trust_speed=trust_speed), channel, channels)
    watched = WatchedFolder(Path(folder), zone)
    watching = Watching(watched, store, reading, measuring=measuring or Measuring())
    if healthy is not None:
        watching.healthy = _healthy(str(healthy), watched)
    return watching


def _healthy(text: str, folder: WatchedFolder) -> Callable[[Arrival], bool]:
    """Whether a recording is below this path, or not later than this time."""
    places = [place.resolve() for place in (Path(text), folder.root / text) if place.exists()]
    if places:
        return lambda arrival: any(Path(arrival.path).is_relative_to(place) for place in places)
    until = time_in(text, folder.zone)
    if until is None:
        raise InputError(f"--healthy: '{text}' is neither a path nor a time; write times as 2024-05-01T10:30")
    return lambda arrival: arrival.time <= until


def choose_rule(store: Store, wished: dict[str, Any]) -> str | None:
    """Sets the store's rule to what is wished; a sentence where that changed it. A baseline that was learnt in another
    way is refused: it would not be the one that was asked for.
    """
    before = store.rule
    rule = replace(before or WatchRule(), **{name: value for name, value in wished.items() if value is not None})
    if rule == before:
        return None
    changed = [each.name for each in fields(WatchRule) if getattr(rule, each.name) != getattr(before, each.name, None)]
    if before is not None and changed != ["false_alarms"] and store.fleet():
        raise InputError(
            f"{store.name}: its baselines were learnt with another rule ({', '.join(changed)}); leave the option out, "
            "or use a new store"
        )
    store.set_rule(rule)
    if before is None or not store.fleet():
        return None
    return (
        f"the rate of false alarms was {before.false_alarms:g} a year of each point, and is {rule.false_alarms:g} now"
    )


def watch(
    folder: str | Path,
    store: str | Path,
    *,
    rpm: float | None = None,
    bearing: str | Bearing | None = None,
    rate: float | None = None,
    channel: str | None = None,
    channels: str | None = None,
    trust_speed: bool = False,
    false_alarms: float | None = None,
    baseline: int | None = None,
    healthy: str | Path | None = None,
    timezone: str | None = None,
    jobs: int = 1,
) -> Fleet:
    """Reads what is new below a folder into a store (a file, or a PostgreSQL address): the points, worst first.

    Recordings lie at MACHINE/POINT/TIME.ext, or a manifest.csv lists them. So many `false_alarms` are accepted in a
    year of each point; a `baseline` is learnt of so many recordings, and of those below the path, or until the time,
    `healthy`. Times without a zone are UTC unless a `timezone` is given. Problems are Python warnings. A script that
    asks for several `jobs` must do so under `if __name__ == "__main__":`.

    >>> Path("plant/pump-3/drive-end").mkdir(parents=True, exist_ok=True)
    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> np.savez("plant/pump-3/drive-end/2024-05-01T10-30-00.npz", x=noise, fs=12_000.0)
    >>> fleet = bearcat.watch("plant", "plant.db", rpm=1480, bearing="6205")
    >>> fleet.summary
    '1 point: 1 learning.'
    """
    checked_root(Path(folder))  # before there is a store
    with Store.open(store, create=True) as opened:
        choose_rule(opened, {"false_alarms": false_alarms, "baseline": baseline})
        watching = open_watching(
            folder, opened, rpm=rpm, bearing=bearing, rate=rate, channel=channel, channels=channels,
            trust_speed=trust_speed, healthy=healthy, timezone=timezone, measuring=Measuring(jobs),
        )  # fmt: skip
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
