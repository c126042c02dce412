"""Watching: recordings as they arrive → measurements → what each point's memory says of them → the store.

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
from itertools import groupby, islice, repeat
from pathlib import Path
from typing import Any

from bearcat.data.bearing import Bearing, find_bearing
from bearcat.data.catalogue import checked_root
from bearcat.data.channels import points_of
from bearcat.data.times import time_in
from bearcat.deploy.predict import Given
from bearcat.errors import InputError
from bearcat.names import shown
from bearcat.report.typeset import count
from bearcat.storage import digest_file
from bearcat.watch.alarm import assess
from bearcat.watch.folder import SETTLED, Arrival, WatchedFolder, zone_called
from bearcat.watch.measuring import Measured, Reading, measure_file, processes
from bearcat.watch.memory import Observed, PointState, observe
from bearcat.watch.notify import Notifier
from bearcat.watch.snapshot import Assessment, Event, PointStatus, Snapshot
from bearcat.watch.status import Fleet
from bearcat.watch.store import RecordingFile, Store
from bearcat.watch.usual import WatchRule

PATIENCE = 60.0  # seconds since its last change for which a file that cannot be read may still be written
WAITED = 30.0  # seconds that --once waits for files that still change
MOST_NAMED = 10_000  # sentences that are remembered, so that they are not said again
POLL, IDLE = 5.0, 9.0  # seconds from one look at the folder to the next, or so many times what that took
AHEAD_OF_EACH = 4  # times of machines that each process may be ahead
LATE = "a recording is not later than the one before; it and others like it are kept, but not judged"
SAID = ("sensor", "problem")  # events that are no change of a status, and are said at once


@dataclass(frozen=True)
class Judged:
    """What came of the files of a machine with one time."""

    events: tuple[Event, ...]
    changed: tuple[PointStatus, ...]  # points whose status is another
    notes: tuple[str, ...]  # what is odd, a sentence of each point


def judge(
    store: Store, measured: Sequence[tuple[RecordingFile, Sequence[Snapshot]]], healthy: bool = False,
    sent: bool = False,
) -> Judged:  # fmt: skip
    """Takes files of one machine and time in, in one transaction; `sent`: nobody waits for notifications."""
    with store.transaction():
        rule, changed, events = store.rule or WatchRule(), list[PointStatus](), list[Event]()
        notes = dict[tuple[str, str], str]()
        machines = {snapshot.machine for _, snapshots in measured for snapshot in snapshots}
        states = {(each.machine, each.point): each for name in sorted(machines) for each in store.states(name)}
        before = {key: state.status for key, state in states.items()}
        observed = dict[tuple[str, str], Observed]()
        for snapshot in (snapshot for _, snapshots in measured for snapshot in snapshots):
            key = snapshot.machine, snapshot.point
            state = states.get(key)
            last = None if state is None else state.status.time
            if key in observed or (last is not None and snapshot.time <= last):
                notes[key] = LATE
                continue
            if state is None and any(machine == snapshot.machine for machine, _ in before):
                notes[key] = "is a new point of the machine, or another channel; its baseline is learnt"
            observed[key] = observe(state or PointState.new(*key, rule), snapshot, rule, healthy)
            states[key] = observed[key].state
        assessments = dict[int, Assessment]()  # by the id of the snapshot
        for key, seen in observed.items():
            beside = [state for other, state in states.items() if other != key and other[0] == key[0]]
            states[key], said = assess(seen, rule, beside, store.sisters(seen.state.point, seen.state.machine))
            assessments[id(seen.snapshot)] = said
            if key not in before or before[key].status != said.status.status:
                changed.append(said.status)
        for file, snapshots in measured:
            rows = [(snapshot, assessments.get(id(snapshot))) for snapshot in snapshots]
            own = [states[snapshot.machine, snapshot.point] for snapshot, said in rows if said is not None]
            events += store.add(file, rows, own, sent=sent)
    said_of = tuple(f"{'/'.join(key)}: {sentence}" for key, sentence in notes.items())
    return Judged(tuple(events), tuple(changed), said_of)


def _silent(*_: object) -> None:
    pass


@dataclass
class Watching:
    """A folder, the store that it is read into, and how."""

    folder: WatchedFolder
    store: Store
    reading: Reading = field(default_factory=Reading)
    healthy: Callable[[Arrival], bool] = lambda _: False  # whether a person says so
    jobs: int = 1  # processes that measure
    notifier: Notifier | None = None
    say: Callable[[str, str], None] = _silent  # a sentence, and its kind: "note" or "problem"
    show: Callable[[PointStatus], None] = _silent  # a point whose status has changed
    progress: Callable[[Sequence[Any]], Iterable[Any]] = lambda groups: groups
    stop: threading.Event = field(default_factory=threading.Event)
    problems: int = 0  # files that could not be used
    _said: set[str] = field(default_factory=set)

    def once(self) -> None:
        """Takes in what is new, and waits a little for files that are being written."""
        with self.store.watching(), processes(self.jobs) as apply:
            self._begin()
            until = time.monotonic() + WAITED
            done, fresh = self.folder.complete(self._new(self.folder.scan()))
            while fresh and time.monotonic() < until and not self.stop.wait(SETTLED / 4):
                done, fresh = self.folder.complete(self._new(self.folder.scan()))
            for arrival in fresh:
                self._say_once(f"{arrival.path}: is still being written; the next run reads it", "note")
            self._take(done, apply, patient=False)

    def on(self) -> None:
        """Goes on as files arrive, until `stop` is set."""
        with self.store.watching(), processes(self.jobs) as apply:
            self._begin()
            while not self.stop.is_set():
                began = time.monotonic()
                done, _ = self.folder.complete(self._new(self.folder.scan()))
                seconds = time.monotonic() - began
                self._take(done, apply, patient=True)
                self._notify()
                self.stop.wait(max(POLL, IDLE * seconds))

    def _begin(self) -> None:
        if self.notifier is None:  # nobody waits for what happened before
            self.store.mark_sent()
        self._notify()

    def _notify(self) -> None:
        if self.notifier is not None:
            self.notifier.send(self.store)

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
        for sentence, kind in self.folder.sentences().items():
            self.problems += kind == "problem" and sentence not in self._said
            self._say_once(sentence, kind)
        if failed:
            self.problems += failed
            files = f"{count(failed, 'file')} that could not be read before {'has' if failed == 1 else 'have'}"
            self._say_once(f"{files} not changed; remove or repair what bearcat watch named", "note")
        return sorted(new, key=lambda each: (each.time, each.machine, each.point or "", each.path))

    def _take(self, arrivals: Sequence[Arrival], apply: Callable[..., Iterator[Measured]], patient: bool) -> None:
        """Measures these files, a few ahead where there are several processes, and judges them. `patient`: a new file
        may be unfinished, and is left for the next time.
        """
        groups = [list(same) for _, same in groupby(arrivals, key=lambda each: (each.time, each.machine))]
        rest = iter(self.progress(groups))
        ahead = 1 if self.jobs == 1 else AHEAD_OF_EACH * self.jobs
        while not self.stop.is_set() and (batch := list(islice(rest, ahead))):
            new = [list(self._unknown(group)) for group in batch]
            results = apply(measure_file, [arrival for group in new for arrival, _ in group], repeat(self.reading))
            for group in new:
                if not self.stop.is_set():
                    self._keep([(arrival, digest, next(results)) for arrival, digest in group], patient)

    def _unknown(self, group: Sequence[Arrival]) -> Iterator[tuple[Arrival, str]]:
        """Those of these files whose content is new, with its digest."""
        for arrival in group:
            try:
                digest = digest_file(Path(arrival.path))
            except OSError as error:
                sentence = f"{arrival.path}: cannot be read ({error.strerror}); make it readable"
                self._problem(arrival, "", InputError(sentence))
                continue
            known = self._twin(arrival, digest)
            if known is None:
                yield arrival, digest
            elif known.path == arrival.path or not Path(known.path).exists():  # it was touched, or moved
                self.store.add(replace(known, path=arrival.path, size=arrival.size, changed=arrival.changed))
            else:
                self._say_once(f"{arrival.path}: has the content of {known.path}, and is left out", "note")

    def _keep(self, group: Sequence[tuple[Arrival, str, Measured]], patient: bool) -> None:
        """Takes the results of a group into the store."""
        measured, healthy = list[tuple[RecordingFile, list[Snapshot]]](), True
        places = set[tuple[str, str]]()
        for arrival, digest, found in group:
            path = Path(arrival.path)
            if _state(path) != (arrival.size, arrival.changed):
                self._say_once(f"{path}: was changed while it was read; it is read again later", "note")
            elif isinstance(found, InputError):
                if not patient or time.time() - arrival.changed / 1e9 >= PATIENCE:
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
            judged = judge(self.store, measured, healthy, sent=self.notifier is None)
            for note in judged.notes:
                self._say_once(note, "note")
            for status in judged.changed:
                self.show(status)
            for event in judged.events:
                if event.kind in SAID:
                    self.say(event.sentence, "note")
            self._notify()

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
            self.store.add(file, events=[event], sent=self.notifier is None)

    def _say_once(self, sentence: str, kind: str) -> None:
        if sentence not in self._said:
            if len(self._said) > MOST_NAMED:
                self._said.clear()
            self._said.add(sentence)
            self.say(shown(sentence), kind)


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
    jobs: int = 1,
) -> Watching:
    """A folder that is to be read into a store, with what a user says of its recordings."""
    points_of((), channels)  # which refuses other words
    zone = zone_called(timezone)
    geometry = find_bearing(bearing) if isinstance(bearing, str) else bearing
    reading = Reading(Given(rate, rpm, geometry, trust_speed=trust_speed), channel, channels)
    watched = WatchedFolder(Path(folder), zone)
    watching = Watching(watched, store, reading, jobs=jobs)
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
            trust_speed=trust_speed, healthy=healthy, timezone=timezone, jobs=jobs,
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
