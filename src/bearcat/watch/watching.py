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
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from bearcat.data.bearing import Bearing, find_bearing
from bearcat.data.catalogue import checked_root
from bearcat.data.times import time_in
from bearcat.errors import InputError
from bearcat.names import shown
from bearcat.report.typeset import count
from bearcat.storage import digest_file
from bearcat.watch.alarm import assess
from bearcat.watch.folder import SETTLED, Arrival, WatchedFolder, zone_called
from bearcat.watch.measuring import Measured, Reading, processes
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
NEW = "is a new point of the machine, or another channel; its baseline is learnt"
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
        rule, notes = store.rule or WatchRule(), dict[tuple[str, str], str]()
        machines = {snapshot.machine for _, snapshots in measured for snapshot in snapshots}
        states = {(state.machine, state.point): state for name in sorted(machines) for state in store.states(name)}
        before = {key: state.status for key, state in states.items()}
        observed = dict[tuple[str, str], Observed]()
        for snapshot in (snapshot for _, snapshots in measured for snapshot in snapshots):
            key = snapshot.machine, snapshot.point
            last = before[key].time if key in before else None
            if key in observed or (last is not None and snapshot.time <= last):
                notes[key] = LATE
                continue
            if key not in before and any(machine == snapshot.machine for machine, _ in before):
                notes[key] = NEW
            observed[key] = observe(states.get(key) or PointState.new(*key, rule), snapshot, rule, healthy)
            states[key] = observed[key].state
        assessments = dict[int, Assessment]()  # by the id of the snapshot
        for key, seen in observed.items():
            beside = [state for other, state in states.items() if other != key and other[0] == key[0]]
            sisters = store.sisters(seen.state.point, seen.state.machine)
            states[key], assessments[id(seen.snapshot)] = assess(seen, rule, beside, sisters)
        events = list[Event]()
        for file, snapshots in measured:
            rows = [(snapshot, assessments.get(id(snapshot))) for snapshot in snapshots]
            new = [states[snapshot.machine, snapshot.point] for snapshot, said in rows if said is not None]
            events += store.add(file, rows, new, sent=sent)
    statuses = {key: states[key].status for key in observed}
    changed = [now for key, now in statuses.items() if key not in before or before[key].status != now.status]
    sentences = [f"{'/'.join(key)}: {sentence}" for key, sentence in notes.items()]
    return Judged(tuple(events), tuple(changed), tuple(sentences))


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
        with self._begun() as apply:
            until = time.monotonic() + WAITED
            done, fresh = self.folder.complete(self._new())
            while fresh and time.monotonic() < until and not self.stop.wait(SETTLED / 4):
                done, fresh = self.folder.complete(self._new())
            for arrival in fresh:
                self._say_once(f"{arrival.path}: is still being written; the next run reads it")
            self._take(done, apply, patient=False)

    def on(self) -> None:
        """Goes on as files arrive, until `stop` is set."""
        with self._begun() as apply:
            while not self.stop.is_set():
                began = time.monotonic()
                done, _ = self.folder.complete(self._new())
                seconds = time.monotonic() - began
                self._take(done, apply, patient=True)
                self._notify()
                self.stop.wait(max(POLL, IDLE * seconds))

    @contextmanager
    def _begun(self) -> Iterator[Callable[..., Iterator[Any]]]:
        with self.store.watching(), processes(self.jobs) as apply:
            if self.notifier is None:  # nobody waits for what happened before
                self.store.mark_sent()
            self._notify()
            yield apply

    def _notify(self) -> None:
        if self.notifier is not None:
            self.notifier.send(self.store)

    def _new(self) -> list[Arrival]:
        """Files of the folder that the store does not know, in order of time."""
        arrivals, new, failed = list(self.folder.scan()), list[Arrival](), 0
        known = self.store.known(sorted({arrival.path for arrival in arrivals}))
        for arrival in arrivals:
            file = known.get((arrival.path, arrival.place))
            same = file is not None and (file.size, file.changed) == (arrival.size, arrival.changed)
            failed += same and file is not None and file.problem is not None
            if file is None or not same or self._to_try_again(file):
                new.append(arrival)
        for sentence, kind in self.folder.sentences().items():
            self.problems += kind == "problem" and sentence not in self._said
            self._say_once(sentence, kind)
        if failed:
            self.problems += failed
            files = f"{count(failed, 'file')} that could not be read before {'has' if failed == 1 else 'have'}"
            self._say_once(f"{files} not changed; remove or repair what bearcat watch named")
        return sorted(new, key=lambda arrival: (arrival.time, arrival.machine, arrival.point or "", arrival.path))

    def _to_try_again(self, file: RecordingFile) -> bool:
        """Whether a file that could not be read is read otherwise now."""
        return file.problem is not None and file.tried != self.reading.identity

    def _take(self, arrivals: Sequence[Arrival], apply: Callable[..., Iterator[Measured]], patient: bool) -> None:
        """Measures these files, a few ahead where there are several processes, and judges them. `patient`: a new file
        may be unfinished, and is left for the next time.
        """
        groups = [list(same) for _, same in groupby(arrivals, key=lambda arrival: (arrival.time, arrival.machine))]
        rest = iter(self.progress(groups))
        ahead = 1 if self.jobs == 1 else AHEAD_OF_EACH * self.jobs
        while not self.stop.is_set() and (batch := list(islice(rest, ahead))):
            taken = dict[tuple[str, str], str]()
            new = [list(self._unknown(group, taken)) for group in batch]
            results = apply(self.reading.measure, [arrival for group in new for arrival, _ in group])
            for group in new:
                if not self.stop.is_set():
                    self._keep([(arrival, digest, next(results)) for arrival, digest in group], patient)

    def _unknown(
        self, group: Sequence[Arrival], taken: dict[tuple[str, str], str]
    ) -> Iterator[tuple[Arrival, str]]:  # fmt: skip
        """Those of these files whose content is new, with its digest; `taken`: paths of contents that are measured."""
        for arrival in group:
            try:
                digest = digest_file(Path(arrival.path))
            except OSError as error:
                sentence = f"{arrival.path}: cannot be read ({error.strerror}); make it readable"
                self._problem(arrival, "", InputError(sentence))
                continue
            known = self.store.recording(digest, arrival.place)
            if known is not None and not self._to_try_again(known):
                if known.path == arrival.path or not Path(known.path).exists():  # it was touched, or moved
                    self.store.add(replace(known, path=arrival.path, size=arrival.size, changed=arrival.changed))
                    continue
                taken[digest, arrival.place] = known.path
            if (digest, arrival.place) in taken:
                twin = taken[digest, arrival.place]
                self._say_once(f"{arrival.path}: has the content of {twin}, and is left out")
            else:
                taken[digest, arrival.place] = arrival.path
                yield arrival, digest

    def _keep(self, group: Sequence[tuple[Arrival, str, Measured]], patient: bool) -> None:
        """Takes the results of a group into the store."""
        measured, healthy = list[tuple[RecordingFile, list[Snapshot]]](), True
        for arrival, digest, found in group:
            if not arrival.unchanged():
                self._say_once(f"{arrival.path}: was changed while it was read; it is read again later")
            elif isinstance(found, InputError):
                if not patient or time.time() - arrival.changed / 1e9 >= PATIENCE:
                    self._problem(arrival, digest, found)
            else:
                measured.append((_file(arrival, digest), found))
                healthy = healthy and self.healthy(arrival)
                for note in dict.fromkeys(note for snapshot in found for note in snapshot.notes):
                    self._say_once(note if note.startswith(arrival.path) else f"{arrival.path}: {note}")
        if measured:
            judged = judge(self.store, measured, healthy, sent=self.notifier is None)
            for note in judged.notes:
                self._say_once(note)
            for status in judged.changed:
                self.show(status)
            for event in judged.events:
                if event.kind in SAID:
                    self.say(event.sentence, "note")
            self._notify()

    def _problem(self, arrival: Arrival, digest: str, problem: InputError) -> None:
        """A file that cannot be used is named, and is tried again when it or the settings have changed."""
        self.problems += 1
        sentence = problem.for_command_line
        self._say_once(sentence, "problem")
        if digest:
            event = Event(arrival.machine, arrival.point or "", arrival.time, "problem", sentence)
            file = replace(_file(arrival, digest), problem=sentence, tried=self.reading.identity)
            self.store.add(file, events=[event], sent=self.notifier is None)

    def _say_once(self, sentence: str, kind: str = "note") -> None:
        if sentence not in self._said:
            if len(self._said) > MOST_NAMED:
                self._said.clear()
            self._said.add(sentence)
            self.say(shown(sentence), kind)


def _file(arrival: Arrival, digest: str) -> RecordingFile:
    return RecordingFile(arrival.path, arrival.place, digest, arrival.size, arrival.changed, arrival.time)


def known_healthy(text: str | None, folder: WatchedFolder) -> Callable[[Arrival], bool]:
    """Whether a recording is below this path, or not later than this time; none is without either."""
    if text is None:
        return lambda _: False
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
    if before is None or not store.fleet():
        store.set_rule(rule)
        return None
    changed = [each.name for each in fields(WatchRule) if getattr(rule, each.name) != getattr(before, each.name)]
    if changed != ["false_alarms"]:
        raise InputError(
            f"{store.name}: its baselines were learnt with another rule ({', '.join(changed)}); leave the option out, "
            "or use a new store"
        )
    store.set_rule(rule)
    rates = f"{before.false_alarms:g} a year of each point, and is {rule.false_alarms:g} now"
    return f"the rate of false alarms was {rates}"


def watch(
    folder: str | Path,
    store: str | Path,
    *,
    rpm: float | None = None,
    bearing: str | Bearing | None = None,
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
    geometry = find_bearing(bearing) if isinstance(bearing, str) else bearing
    reading = Reading(rpm, geometry, trust_speed, channel, channels)
    with Store.open(store, create=True) as opened:
        choose_rule(opened, {"false_alarms": false_alarms, "baseline": baseline})
        watched = WatchedFolder(Path(folder), zone_called(timezone))
        good = known_healthy(None if healthy is None else str(healthy), watched)
        watching = Watching(watched, opened, reading, good, jobs)
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
