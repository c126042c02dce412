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
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.diagnosis.decision import ALARM, CHECK
from bearcat.errors import InputError, csv_cell, suggest
from bearcat.storage import drafted
from bearcat.watch import schema
from bearcat.watch.alarm import acknowledge, relearn
from bearcat.watch.memory import PointState
from bearcat.watch.schema import EVENTS, POINTS, RECORDINGS, SNAPSHOTS, STORE, DamagedError
from bearcat.watch.snapshot import (
    MEASUREMENTS,
    Event,
    Fleet,
    PointStatus,
    RecordingFile,
    Snapshot,
    TrendRow,
    written_time,
)

import sqlalchemy as sql  # isort: skip (after the module that says how to install it)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # isort: skip

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

VERSION = "6"  # of the tables
DAMAGED = "is no store of bearcat watch, or is damaged; choose another file, or restore a backup"
OF_DAMAGE = ("not a database", "malformed", "decode to UTF-8")  # in what SQLite says


class Store:
    """A store that is open."""

    def __init__(self, engine: Engine, name: str, path: Path | None, write: bool) -> None:
        self.engine, self.name, self.path, self._write = engine, name, path, write
        self._connection: Connection | None = None  # of the transaction at work

    @staticmethod
    @contextmanager
    def open(address: str | Path, write: bool = False, create: bool = False) -> Iterator[Store]:
        """The store in a file or at a PostgreSQL address; `create`: a new one where there is none."""
        store = Store(*schema.open_engine(str(address), write or create, create), write or create)
        try:
            store._prepare(create)
            yield store
        finally:
            store.engine.dispose()

    def _prepare(self, create: bool) -> None:
        """Checks that this is a store of our version; makes a new one where there is none."""
        with self.transaction() as connection:
            there = sql.inspect(connection).get_table_names()
            if create and not there:
                schema.tables.create_all(connection)
                connection.execute(sql.insert(STORE).values(version=VERSION))
            elif STORE.name not in there or connection.scalar(sql.select(STORE.c.version)) != VERSION:
                other = "is no store of bearcat watch, or one of another version; read the folder into a new store"
                raise InputError(f"{self.name}: {other}")

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Everything inside is written at once or not at all, after what other processes write; may be nested."""
        if self._connection is not None:
            yield self._connection
            return
        try:
            with self.engine.begin() as connection:
                if self.path is None and self._write:
                    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(schema.LOCK, 1)))
                self._connection = connection
                yield connection
        except (SQLAlchemyError, UnicodeDecodeError, DamagedError) as error:
            raise InputError(f"{self.name}: {_sentence(error)}") from error
        finally:
            self._connection = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keeps others from watching with this store; InputError where one does already."""
        with schema.locked(self.engine, self.path) as free:
            if not free:
                raise InputError(f"{self.name}: another bearcat watch writes to this store; stop it, or use another")
            yield

    # What is known.

    def fleet(self, machine: str | None = None) -> Fleet:
        """Every point, worst first; acknowledged ones among the others that are to be checked."""
        with self.transaction() as connection:
            points = list(connection.scalars(sql.select(POINTS.c.status).where(*_of(POINTS, machine))))
        return Fleet(sorted(points, key=lambda point: point.order))

    def states(self, machine: str) -> dict[str, PointState]:
        """What is remembered of the points of a machine, by point."""
        query = sql.select(POINTS.c.point, POINTS.c.memory).where(*_of(POINTS, machine)).order_by(POINTS.c.point)
        with self.transaction() as connection:
            return {row.point: row.memory for row in connection.execute(query)}

    def trend(self, machine: str, point: str, most: int | None = None) -> list[TrendRow]:
        """A point over time, oldest first; of more than `most` rows an even choice."""
        of_point, order = _of(SNAPSHOTS, machine, point), (SNAPSHOTS.c.time, SNAPSHOTS.c.id)
        query = sql.select(SNAPSHOTS, RECORDINGS.c.path).join(RECORDINGS).where(*of_point).order_by(*order)
        with self.transaction() as connection:
            if most is not None:
                numbers = list(connection.scalars(sql.select(SNAPSHOTS.c.id).where(*of_point).order_by(*order)))
                places = np.linspace(0, len(numbers) - 1, min(most, len(numbers))).round().astype(int)
                query = query.where(SNAPSHOTS.c.id.in_([numbers[place] for place in places]))
            return [
                TrendRow(row.time, "#".join(filter(None, (row.path, row.channel))), row.measured, row.status)
                for row in connection.execute(query)
            ]

    def write_table(self, path: Path) -> int:
        """Writes every measurement as a table; how many rows. An earlier file stays until all is written."""
        if path.suffix.lower() != ".csv":
            raise InputError(f"--out: {path}: the name must end in .csv")
        columns, number = dict.fromkeys((*Fleet.columns, "recording", "late", *MEASUREMENTS)), 0
        with drafted(path) as draft, draft.open("x", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            for point in sorted(self.fleet(), key=lambda status: (status.machine, status.point)):
                for row in self.trend(point.machine, point.point):
                    cells: dict[str, Any] = {
                        "machine": point.machine,
                        "point": point.point,
                        "time": written_time(row.time),
                    }
                    cells |= {} if row.status is None else Fleet([row.status]).cells()[0]
                    cells |= {**row.values, "recording": row.recording, "late": row.status is None}
                    writer.writerow({name: csv_cell(value) for name, value in cells.items()})
                    number += 1
        return number

    def events(self, machine: str | None = None, point: str | None = None, most: int = 1000) -> list[Event]:
        """What happened, the latest `most`, oldest first."""
        latest = sql.select(EVENTS).order_by(EVENTS.c.time.desc(), EVENTS.c.number.desc()).limit(most)
        return self._rows(Event, latest.where(*_of(EVENTS, machine, point)))[::-1]

    def unsent(self, most: int = 1000) -> list[Event]:
        """Events whose notifications are still to be made, oldest first."""
        return self._rows(Event, sql.select(EVENTS).where(~EVENTS.c.sent).order_by(EVENTS.c.number).limit(most))

    def files(self) -> list[RecordingFile]:
        """Files that were read, the oldest first."""
        return self._rows(RecordingFile, sql.select(RECORDINGS).order_by(RECORDINGS.c.id))

    def _rows(self, kind: Any, query: Any) -> list[Any]:
        """Rows as values of a dataclass, whose fields are columns."""
        names = [field.name for field in fields(kind)]
        with self.transaction() as connection:
            return [kind(**{name: row[name] for name in names}) for row in connection.execute(query).mappings()]

    # What is written.

    def add(self, file: RecordingFile, measured: Sequence[tuple[Snapshot, PointStatus | None]] = ()) -> None:
        """A file, with its measurements and what they meant; late ones have no status."""
        with self.transaction() as connection:
            number = _put(connection, RECORDINGS, asdict(file), ("digest", "part"))
            for snapshot, status in measured:
                connection.execute(sql.insert(SNAPSHOTS).values(
                    machine=snapshot.machine, point=snapshot.point, recording=number, time=snapshot.time,
                    channel=snapshot.observation.recording.partition("#")[2] or None, status=status,
                    measured={name: float(f"{value:.6g}") for name, value in snapshot.values.items()},
                ))  # fmt: skip

    def keep(self, states: Iterable[PointState], events: Iterable[Event] = (), sent: bool = False) -> list[Event]:
        """What is remembered of points now, and what happened to them: events with their numbers. `sent`: nobody waits
        for notifications.
        """
        with self.transaction() as connection:
            for state in states:
                names = {"machine": state.status.machine, "point": state.status.point}
                _put(connection, POINTS, names | {"status": state.status, "memory": state}, tuple(names))
            kept = list[Event]()
            for event in events:
                row = {name: value for name, value in vars(event).items() if name != "number"} | {"sent": sent}
                number = connection.scalar(sql.insert(EVENTS).values(row).returning(EVENTS.c.number))
                kept.append(replace(event, number=number))
            return kept

    def mark_sent(self, numbers: Iterable[int] | None = None) -> None:
        """Says that notifications of these events were made, or of all."""
        which = ~EVENTS.c.sent if numbers is None else EVENTS.c.number.in_(list(numbers))
        with self.transaction() as connection:
            connection.execute(sql.update(EVENTS).where(which).values(sent=True))

    def acknowledge(self, machine: str, point: str | None = None, note: str = "") -> int:
        """A person has taken notice of the alarms of a machine, or of a point of it; how many points had some."""
        with self.transaction():
            points = self._named(machine, point)
            marked = [status.point for status in points if status.status in (ALARM, CHECK) or status.alarm is not None]
            states = self.states(machine) if marked else {}
            for name in marked:
                state, event = acknowledge(states[name], time.time(), note)
                self.keep([state], [event])
        return len(marked)

    def relearn(self, machine: str, point: str, note: str = "") -> Event:
        """The baseline of a point is learnt anew from the next recordings on."""
        with self.transaction():
            self._named(machine, point)
            state, event = relearn(self.states(machine)[point], time.time(), note)
            [kept] = self.keep([state], [event])
        return kept

    def forget(self, machine: str, point: str | None = None) -> int:
        """Removes a machine, or a point of it, with its history; how many points. Files still there are read again."""
        with self.transaction() as connection:
            points = self._named(machine, point)
            for table in (SNAPSHOTS, EVENTS, POINTS):
                connection.execute(sql.delete(table).where(*_of(table, machine, point)))
            used = sql.select(SNAPSHOTS.c.id).where(SNAPSHOTS.c.recording == RECORDINGS.c.id).exists()
            connection.execute(sql.delete(RECORDINGS).where(~used, RECORDINGS.c.refused.is_(None)))
            return len(points)

    def _named(self, machine: str, point: str | None) -> list[PointStatus]:
        """The points of a machine, or one of them; InputError, with the nearest name, where there is none."""
        points = self.fleet(machine)
        if not points:
            machines = dict.fromkeys(status.machine for status in self.fleet())
            raise InputError(f"{self.name}: there is no machine '{machine}'{suggest(machine, machines)}")
        if point is None or any(status.point == point for status in points):
            return [status for status in points if point in (None, status.point)]
        names = suggest(point, [status.point for status in points])
        raise InputError(f"{self.name}: machine '{machine}' has no point '{point}'{names}")


def _sentence(error: Exception) -> str:
    """What an error of the database means for the user."""
    message = (str(error.orig if isinstance(error, DBAPIError) else error).splitlines() or [""])[0]
    if "full" in message or "disk I/O" in message or "No space" in message:
        return "the disk is full or broken; free some space and run the same command again, nothing is lost"
    if "locked" in message:
        return "another process keeps it locked; wait until it has ended"
    if isinstance(error, UnicodeDecodeError | DamagedError) or any(word in message for word in OF_DAMAGE):
        return DAMAGED
    return f"the database says: {message}"


def _of(table: sql.Table, machine: str | None, point: str | None = None) -> list[Any]:
    """Conditions on the rows of a machine or a point; None: of all."""
    columns = (table.c.machine, machine), (table.c.point, point)
    return [column == value for column, value in columns if value is not None]


def _put(connection: Connection, table: sql.Table, row: dict[str, Any], key: tuple[str, ...]) -> Any:
    """Inserts a row, or replaces the one with this key; its id, where the table has one."""
    from sqlalchemy.dialects import postgresql, sqlite

    insert: Any = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table).values(row)
    others = {name: insert.excluded[name] for name in row if name not in key}
    query = insert.on_conflict_do_update(index_elements=list(key), set_=others)
    return connection.scalar(query.returning(next(iter(table.primary_key))))
