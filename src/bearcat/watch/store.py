"""The store of `bearcat watch`: points, recordings, measurements, alarms, baselines; in SQLite or PostgreSQL.

Everything of one file is added in one transaction, so a process that is killed neither loses nor repeats a recording.
One process watches a store at a time; any number may read it, and acknowledge alarms, meanwhile. Raw recordings stay
where they are: the store has their path and the digest of their content.

>>> with Store.open("plant.db") as store:
...     for point in store.fleet():                       # worst first
...         print(point.machine, point.point, point.status)
...     rows = store.trend("pump 3", "drive end")         # oldest first
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.diagnosis.decision import ALARM, CHECK
from bearcat.errors import InputError, csv_cell, suggest
from bearcat.settings import from_plain, to_plain
from bearcat.storage import drafted
from bearcat.watch.alarm import acknowledge, relearn
from bearcat.watch.memory import PointState
from bearcat.watch.schema import EVENTS, LOCK, META, POINTS, RECORDINGS, SNAPSHOTS, locked, open_engine, tables
from bearcat.watch.snapshot import (
    MEASUREMENTS,
    STATUSES,
    Event,
    Fleet,
    PointStatus,
    RecordingFile,
    Snapshot,
    TrendRow,
    written_time,
)
from bearcat.watch.usual import WatchRule

import sqlalchemy as sql  # isort: skip (after the module that says how to install it)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # isort: skip

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine, Row

VERSION = "2"  # of the tables
DAMAGED = "is no store of bearcat watch, or is damaged; choose another file, or restore a backup"
OF_DAMAGE = ("not a database", "malformed", "decode to UTF-8")  # in what SQLite says
PART = 400  # names in one query
STATED = ("status", "fault", "confidence", "p_value", "change", "operating_state")  # of a status, in an exported table


class Store:
    """A store that is open. Close it, or use it in a `with` statement."""

    def __init__(self, engine: Engine, name: str, path: Path | None, write: bool) -> None:
        self.engine, self.name, self.path, self.write = engine, name, path, write
        self._connection: Connection | None = None  # of the transaction at work

    @staticmethod
    def open(address: str | Path, write: bool = False, create: bool = False) -> Store:
        """The store in a file or at a PostgreSQL address; `create`: a new one where there is none."""
        engine, name, path = open_engine(str(address), write or create, create)
        store = Store(engine, name, path, write or create)
        try:
            store._prepare(create)
        except BaseException:
            store.close()
            raise
        return store

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.dispose()

    def _prepare(self, create: bool) -> None:
        """Checks that this is a store of our version; makes a new one where there is none."""
        with self._reading() as connection:
            there = sql.inspect(connection).get_table_names()
            ours = META.name in there and POINTS.name in there
            version = str(connection.scalar(sql.select(META.c.value).where(META.c.name == "version"))) if ours else ""
        if (there and not ours) or not (there or create):
            raise InputError(f"{self.name}: is no store of bearcat watch; choose another file, or an empty database")
        if not there:
            with self.transaction() as connection:  # another process may have been faster
                tables.create_all(connection)
                _put(connection, META, {"name": "version", "value": VERSION}, ("name",))
        elif version != VERSION:
            other = f"is a store of version {version:.20}, and this bearcat knows version {VERSION}"
            raise InputError(f"{self.name}: {other}; read the folder into a new store")

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Errors of the database in one sentence."""
        try:
            yield
        except (SQLAlchemyError, UnicodeDecodeError) as error:
            message = (str(error.orig if isinstance(error, DBAPIError) else error).splitlines() or [""])[0]
            if "full" in message or "disk I/O" in message or "No space" in message:
                what = "the disk is full or broken; free some space and run the same command again, nothing is lost"
            elif "locked" in message:
                what = "another process keeps it locked; wait until it has ended"
            elif isinstance(error, UnicodeDecodeError) or any(word in message for word in OF_DAMAGE):
                what = DAMAGED
            else:
                what = f"the database says: {message}"
            raise InputError(f"{self.name}: {what}") from error

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Everything inside is written at once or not at all, after what other processes write; may be nested."""
        if not self.write:
            raise InputError(f"{self.name}: is open for reading only")
        if self._connection is not None:
            yield self._connection
            return
        with self._sentences(), self.engine.execution_options(writes=True).begin() as connection:
            if self.path is None:
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK, 1)))
            self._connection = connection
            try:
                yield connection
            finally:
                self._connection = None

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            if self._connection is not None:
                yield self._connection
                return
            with self._sentences(), self.engine.connect() as connection:
                yield connection
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:  # others wrote it
            raise InputError(f"{self.name}: {DAMAGED}") from error

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keeps others from watching with this store; InputError where one does already."""
        with locked(self.engine, self.path) as free:
            if not free:
                raise InputError(f"{self.name}: another bearcat watch writes to this store; stop it, or use another")
            yield

    # What is known.

    @property
    def rule(self) -> WatchRule | None:
        """When a change is an alarm; None: none was set yet."""
        with self._reading() as connection:
            text = connection.scalar(sql.select(META.c.value).where(META.c.name == "rule"))
            try:
                return None if text is None else from_plain(WatchRule, json.loads(text))
            except InputError as error:  # a number outside its range, which nobody has given now
                raise ValueError(str(error)) from error

    def set_rule(self, rule: WatchRule) -> None:
        with self.transaction() as connection:
            _put(connection, META, {"name": "rule", "value": json.dumps(to_plain(rule))}, ("name",))

    def fleet(self, machine: str | None = None) -> Fleet:
        """Every point, worst first; an alarm that nobody acknowledged comes before one that somebody did."""
        query = sql.select(POINTS.c.status)
        if machine is not None:
            query = query.where(POINTS.c.machine == machine)
        with self._reading() as connection:
            points = [_status(text) for text in connection.scalars(query)]

        def order(point: PointStatus) -> tuple[Any, ...]:
            rank = STATUSES.index(point.status) if point.alarm is None else 0
            return rank, point.acknowledged is not None, -(point.confidence or 0), point.machine, point.point

        return Fleet(sorted(points, key=order))

    def trend(self, machine: str, point: str, most: int = 2000) -> list[TrendRow]:
        """A point over time, oldest first; of more than `most` rows an even choice, with all at which something was."""
        query = sql.select(SNAPSHOTS, RECORDINGS.c.path).join(RECORDINGS)
        with self._reading() as connection:
            return [
                TrendRow(
                    row.time, row.path if row.channel is None else f"{row.path}#{row.channel}",
                    from_plain(Mapping[str, float], json.loads(row.measured)),
                    None if row.status is None else _status(row.status),
                )
                for row in self._history(connection, query, machine, point, most)
            ]  # fmt: skip

    def _history(self, connection: Connection, query: Any, machine: str, point: str, most: int) -> Iterable[Row[Any]]:
        """Rows of a point's snapshots, oldest first."""
        of_point = SNAPSHOTS.c.point == self._point(connection, machine, point)
        numbers = list(connection.scalars(sql.select(SNAPSHOTS.c.id).where(of_point).order_by(SNAPSHOTS.c.time)))
        if len(numbers) > most:
            even = {numbers[place] for place in np.linspace(0, len(numbers) - 1, max(most, 2)).round().astype(int)}
            query = query.where(SNAPSHOTS.c.marked | SNAPSHOTS.c.id.in_(even))
        return connection.execute(query.where(of_point).order_by(SNAPSHOTS.c.time, SNAPSHOTS.c.id))

    def write_table(self, path: Path) -> int:
        """Writes every measurement as a table; how many rows. An earlier file stays until all is written."""
        if path.suffix.lower() != ".csv":
            raise InputError(f"--out: {path}: the name must end in .csv")
        columns, number = ["machine", "point", "time", "recording", "late", *STATED, "reasons", *MEASUREMENTS], 0
        with drafted(path) as draft, draft.open("x", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
            writer.writeheader()
            for point in sorted(self.fleet(), key=lambda each: (each.machine, each.point)):
                for row in self.trend(point.machine, point.point, most=10**9):
                    status = {} if row.status is None else asdict(row.status)
                    named = {"machine": point.machine, "point": point.point, "recording": row.recording}
                    told = {"late": row.status is None, "reasons": "; ".join(status.get("reasons", ()))}
                    cells = status | dict(row.values) | named | told | {"time": written_time(row.time)}
                    writer.writerow({name: csv_cell(value) for name, value in cells.items()})
                    number += 1
        return number

    def events(self, machine: str | None = None, point: str | None = None, most: int = 1000) -> list[Event]:
        """What happened, the latest `most`, oldest first."""
        query = sql.select(EVENTS).order_by(EVENTS.c.time.desc(), EVENTS.c.number.desc()).limit(most)
        return self._events(query.where(*_events_of(machine, point)))[::-1]

    def unsent(self, most: int = 1000) -> list[Event]:
        """Events whose notifications are still to be made, oldest first."""
        return self._events(sql.select(EVENTS).where(~EVENTS.c.sent).order_by(EVENTS.c.number).limit(most))

    def _events(self, query: Any) -> list[Event]:
        with self._reading() as connection:
            rows = connection.execute(query).mappings()
            return [Event(**{name: value for name, value in row.items() if name != "sent"}) for row in rows]

    def states(self, machine: str) -> dict[str, PointState]:
        """What is remembered of the points of a machine, by point."""
        query = sql.select(POINTS.c.point, POINTS.c.memory).where(POINTS.c.machine == machine).order_by(POINTS.c.id)
        states = dict[str, PointState]()
        with self._reading() as connection:
            for point, content in connection.execute(query):
                try:
                    states[point] = PointState.from_bytes(content)
                except ValueError as error:
                    damaged = f"what is kept of '{machine}/{point}' is damaged; restore a backup, or forget the point"
                    raise InputError(f"{self.name}: {damaged}") from error
        return states

    def known(self, paths: Sequence[str]) -> dict[tuple[str, str], RecordingFile]:
        """Those of these files that were read, by path and place."""
        parts = (paths[start : start + PART] for start in range(0, len(paths), PART))
        files = [file for part in parts for file in self._files(RECORDINGS.c.path.in_(part))]
        return {(file.path, file.place): file for file in files}

    def recording(self, digest: str, place: str) -> RecordingFile | None:
        """The recording with this content, if it was read for this place."""
        return next(iter(self._files(RECORDINGS.c.digest == digest, RECORDINGS.c.place == place)), None)

    def _files(self, *where: Any) -> list[RecordingFile]:
        columns = [RECORDINGS.c[field.name] for field in fields(RecordingFile)]
        query = sql.select(*columns).where(*where).order_by(RECORDINGS.c.id)
        with self._reading() as connection:
            return [RecordingFile(**row) for row in connection.execute(query).mappings()]

    # What is written.

    def add(
        self,
        file: RecordingFile,
        measured: Sequence[tuple[Snapshot, PointStatus | None]] = (),
        states: Sequence[PointState] = (),
        events: Sequence[Event] = (),
        sent: bool = False,
    ) -> list[Event]:
        """Everything of one file, at once: its measurements (late ones without a status), what is remembered now, and
        what happened; the events with their numbers. `sent`: nobody waits for notifications.
        """
        with self.transaction() as connection:
            number = _put(connection, RECORDINGS, asdict(file), ("digest", "place"))
            for state in states:
                self._keep(connection, state)
            marked = {(event.machine, event.point) for event in events}
            for snapshot, status in measured:
                values = {name: float(f"{value:.6g}") for name, value in snapshot.values.items()}
                connection.execute(sql.insert(SNAPSHOTS).values(
                    point=self._point(connection, snapshot.machine, snapshot.point), recording=number,
                    time=snapshot.time, channel=snapshot.recording.partition("#")[2] or None,
                    marked=(snapshot.machine, snapshot.point) in marked,
                    measured=_json(values),
                    status=None if status is None else _json(asdict(status)),
                ))  # fmt: skip
            return [self._happened(connection, event, sent) for event in events]

    def _happened(self, connection: Connection, event: Event, sent: bool = False) -> Event:
        """Adds an event, which has its number then."""
        row = {name: value for name, value in asdict(event).items() if name != "number"} | {"sent": sent}
        number = connection.scalar(sql.insert(EVENTS).values(row).returning(EVENTS.c.number))
        return replace(event, number=number)

    def mark_sent(self, numbers: Iterable[int] | None = None) -> None:
        """Says that notifications of these events were made, or of all."""
        which = ~EVENTS.c.sent if numbers is None else EVENTS.c.number.in_(list(numbers))
        with self.transaction() as connection:
            connection.execute(sql.update(EVENTS).where(which).values(sent=True))

    def acknowledge(self, machine: str, point: str | None = None, note: str = "") -> int:
        """A person has taken notice of the alarms of a machine, or of a point of it; how many points had some."""
        with self.transaction() as connection:
            chosen = self._chosen(machine, point)
            points = [each.point for each in chosen if each.status in (ALARM, CHECK) or each.alarm is not None]
            states = self.states(machine) if points else {}
            for name in points:
                self._change(connection, acknowledge(states[name], time.time(), note))
        return len(points)

    def relearn(self, machine: str, point: str, note: str = "", when: float | None = None) -> Event:
        """The baseline of a point is learnt anew from the next recordings on."""
        when = time.time() if when is None else when
        if when > time.time():
            raise InputError(f"--from: {written_time(when)} has not come yet; give the time of the repair")
        with self.transaction() as connection:
            self._chosen(machine, point)
            return self._change(connection, relearn(self.states(machine)[point], when, note))

    def _change(self, connection: Connection, changed: tuple[PointState, Event]) -> Event:
        self._keep(connection, changed[0])
        return self._happened(connection, changed[1])

    def forget(self, machine: str, point: str | None = None) -> int:
        """Removes a machine, or a point of it, with its history; how many points. Files still there are read again."""
        with self.transaction() as connection:
            points = [self._point(connection, each.machine, each.point) for each in self._chosen(machine, point)]
            read = sql.select(SNAPSHOTS.c.recording).where(SNAPSHOTS.c.point.in_(points))
            files = list(connection.scalars(read.distinct()))
            connection.execute(sql.delete(POINTS).where(POINTS.c.id.in_(points)))  # and their snapshots
            connection.execute(sql.delete(EVENTS).where(*_events_of(machine, point)))
            used = sql.select(SNAPSHOTS.c.id).where(SNAPSHOTS.c.recording == RECORDINGS.c.id).exists()
            for start in range(0, len(files), PART):
                gone = RECORDINGS.c.id.in_(files[start : start + PART])
                connection.execute(sql.delete(RECORDINGS).where(gone, ~used))
            return len(points)

    def _chosen(self, machine: str, point: str | None) -> list[PointStatus]:
        """The points of a machine, or one of them; InputError, with the nearest name, where there is none."""
        points = self.fleet(machine)
        if not points:
            known = dict.fromkeys(each.machine for each in self.fleet())
            raise InputError(f"{self.name}: there is no machine '{machine}'{suggest(machine, known)}")
        chosen = [each for each in points if point in (None, each.point)]
        if not chosen:
            names = suggest(str(point), [each.point for each in points])
            raise InputError(f"{self.name}: machine '{machine}' has no point '{point}'{names}")
        return chosen

    def _keep(self, connection: Connection, state: PointState) -> None:
        status = state.status
        row = {"machine": status.machine, "point": status.point, "status": _json(asdict(status))}
        _put(connection, POINTS, row | {"memory": state.to_bytes()}, ("machine", "point"))

    def _point(self, connection: Connection, machine: str, point: str) -> int:
        query = sql.select(POINTS.c.id).where(POINTS.c.machine == machine, POINTS.c.point == point)
        number = connection.scalar(query)
        if number is None:
            raise InputError(f"{self.name}: there is no point '{point}' of machine '{machine}'")
        return int(number)


def _events_of(machine: str | None, point: str | None) -> list[Any]:
    """Conditions on events, of what is given."""
    columns = (EVENTS.c.machine, machine), (EVENTS.c.point, point)
    return [column == value for column, value in columns if value is not None]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _put(connection: Connection, table: sql.Table, row: dict[str, Any], key: tuple[str, ...]) -> Any:
    """Inserts a row, or replaces the one with this key; its id, where the table has one."""
    from sqlalchemy.dialects import postgresql, sqlite

    insert: Any = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table).values(row)
    others = {name: insert.excluded[name] for name in row if name not in key}
    query = insert.on_conflict_do_update(index_elements=list(key), set_=others)
    return connection.scalar(query.returning(next(iter(table.primary_key))))


def _status(text: str) -> PointStatus:
    """Of a row of a fleet or a trend."""
    status: PointStatus = from_plain(PointStatus, json.loads(text))
    if status.status not in STATUSES:
        raise ValueError(f"{status!r:.80}")
    return status
