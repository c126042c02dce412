"""The store of `bearcat watch`: points, recordings, measurements, events, baselines; in SQLite or PostgreSQL.

Everything of one file is added in one transaction, so a process that is killed neither loses nor repeats a recording.
One process watches a store at a time; any number may read it, and acknowledge alarms, meanwhile. Raw recordings stay
where they are: the store has their paths. What is only read as a whole is compressed JSON, whose checksum finds damage.

>>> with Store.open("plant.db") as store:
...     for point in store.fleet():                       # worst first
...         print(point.machine, point.point, point.status)
...     rows = store.trend("pump 3", "drive end")         # oldest first
"""

from __future__ import annotations

import fcntl
import json
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from bearcat.diagnosis.decision import ALARM, CHECK
from bearcat.errors import InputError, shown, suggest
from bearcat.settings import from_plain, to_plain
from bearcat.storage import digest_file
from bearcat.watch.folder import Arrival
from bearcat.watch.memory import PointState, acknowledge, relearn
from bearcat.watch.snapshot import Event, Fleet, PointStatus, Snapshot

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
except ImportError as missing:
    raise InputError("watching machines needs an extra; pip install 'bearcat[watch]'") from missing

VERSION = "8"  # of the tables
LOCK = 0x62636174  # the key of PostgreSQL's locks: "bcat"
BUSY_SECONDS = 30.0  # for which a writer waits until another's transaction has ended
DAMAGED = "is no store of bearcat watch, or is damaged; choose another file, or restore a backup"
OF_DAMAGE = ("not a database", "malformed", "decode to UTF-8")  # in what SQLite or Packed says


class Packed(sql.TypeDecorator[Any]):
    """A value of this type as compressed JSON."""

    impl = sql.LargeBinary
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, _dialect: Any) -> bytes:
        return zlib.compress(json.dumps(to_plain(value), default=_plain_array).encode(), 1)

    def process_result_value(self, value: Any, _dialect: Any) -> Any:
        try:
            return from_plain(self.kind, json.loads(zlib.decompress(value), object_hook=_array))
        except (zlib.error, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise SQLAlchemyError("malformed: no value that bearcat wrote") from error


def _plain_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"doubles": b64encode(np.asarray(array, np.float64).tobytes()).decode(), "shape": array.shape}


def _array(plain: dict[str, Any]) -> Any:
    return np.frombuffer(b64decode(plain["doubles"])).reshape(plain["shape"]) if "doubles" in plain else plain


Change = Callable[[PointState, float, str], tuple[PointState, Event]]  # by a person, with a note
Column, Table, Text, Double, Integer = sql.Column, sql.Table, sql.Text, sql.Double, sql.Integer
tables = sql.MetaData()
STORE = Table("store", tables, Column("version", Text, primary_key=True))  # one row
POINTS = Table(
    "points", tables, Column("machine", Text, primary_key=True), Column("point", Text, primary_key=True),
    Column("status", Packed(PointStatus), nullable=False), Column("memory", Packed(PointState), nullable=False),
)  # fmt: skip
FILES = Table(
    "files", tables, Column("path", Text, primary_key=True), Column("part", Text, primary_key=True),
    *(Column(name, sql.BigInteger, nullable=False) for name in ("size", "changed")),  # an unchanged file is known
    Column("machine", Text, nullable=False),
    Column("refused", Text),  # the settings with which it could not be used; with others it is tried again
)  # fmt: skip
SNAPSHOTS = Table(
    "snapshots", tables, Column("id", Integer, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("machine", "point", "recording")),
    Column("time", Double, nullable=False), Column("values", Packed(Mapping[str, float]), nullable=False),
    Column("status", Packed(PointStatus), nullable=False), sql.Index("snapshots_by_point", "machine", "point", "time"),
)  # fmt: skip
EVENTS = Table(
    "events", tables, Column("number", Integer, primary_key=True),
    Column("machine", Text, nullable=False), Column("point", Text, nullable=False),
    Column("time", Double, nullable=False), Column("event", Packed(Event), nullable=False),
    Column("sent", sql.Boolean, nullable=False),  # false: notifications are still to be made
    sql.Index("events_by_point", "machine", "point", "time"),
    sqlite_autoincrement=True,  # a number is never used again
)  # fmt: skip


@dataclass(eq=False)
class Store:
    """A store that is open."""

    engine: sql.Engine
    name: str  # without a password
    path: Path | None  # of a file
    write: bool
    _connection: sql.Connection | None = None  # of the transaction at work

    @staticmethod
    @contextmanager
    def open(address: str | Path, write: bool = False, create: bool = False) -> Iterator[Store]:
        """The store in a file or at a PostgreSQL address; `create`: a new one where there is none."""
        store = _opened(str(address), write or create, create)
        try:
            with store.transaction() as connection:
                there = sql.inspect(connection).get_table_names()
                if create and not there:
                    tables.create_all(connection)
                    connection.execute(sql.insert(STORE).values(version=VERSION))
                elif STORE.name not in there or connection.scalar(sql.select(STORE.c.version)) != VERSION:
                    other = "is no store of bearcat watch, or one of another version; read the folder into a new store"
                    raise InputError(f"{store.name}: {other}")
            yield store
        finally:
            store.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sql.Connection]:
        """Everything inside is written at once or not at all, after what other processes write; may be nested."""
        if self._connection is not None:
            yield self._connection
            return
        try:
            with self.engine.begin() as connection:
                if self.path is None and self.write:
                    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK, 1)))
                self._connection = connection
                yield connection
        except (SQLAlchemyError, UnicodeDecodeError) as error:
            raise InputError(f"{self.name}: {_sentence(error)}") from error
        finally:
            self._connection = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keeps others from watching with this store; InputError where one does already. The system, or PostgreSQL,
        frees the lock however this process ends.
        """
        with ExitStack() as held:
            if self.path is None:
                lock = held.enter_context(self.engine.execution_options(isolation_level="AUTOCOMMIT").connect())
                held.callback(lock.invalidate)
                free = lock.scalar(sql.select(sql.func.pg_try_advisory_lock(LOCK, 0)))
            else:
                file, free = held.enter_context(self.path.with_name(f"{self.path.name}-watching").open("ab")), False
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    free = True
            if not free:
                raise InputError(f"{self.name}: another bearcat watch writes to this store; stop it, or use another")
            yield

    # What is known.

    def _rows(self, query: Any) -> Sequence[sql.Row[Any]]:
        with self.transaction() as connection:
            return connection.execute(query).all()

    def fleet(self, name: str | None = None, field: str | None = None) -> Fleet:
        """Every point, worst first, or those of a machine, or the one that is called MACHINE/POINT; InputError, about
        this field, where there is none.
        """
        statuses = [row.status for row in self._rows(sql.select(POINTS.c.status))]
        fleet = Fleet(sorted(statuses, key=lambda point: point.order))
        if name is None:
            return fleet
        whole = [point for point in fleet if point.machine == name]
        points = whole or [point for point in fleet if f"{point.machine}/{point.point}" == name]
        if not points:
            names = dict.fromkeys(point.machine for point in fleet)
            raise InputError(f"{self.name}: there is no machine or point '{shown(name)}'{suggest(name, names)}", field)
        return Fleet(points)

    def states(self, machine: str) -> dict[str, PointState]:
        """What is remembered of the points of a machine, by point."""
        query = sql.select(POINTS.c.point, POINTS.c.memory).where(POINTS.c.machine == machine).order_by(POINTS.c.point)
        return {row.point: row.memory for row in self._rows(query)}

    def trend(self, machine: str, point: str, most: int | None = None) -> Sequence[sql.Row[Any]]:
        """`time`, `recording`, `values` and `status` of a point, oldest first; of more than `most` an even choice."""
        query = sql.select(SNAPSHOTS).where(*_of(SNAPSHOTS, machine, point)).order_by(SNAPSHOTS.c.time, SNAPSHOTS.c.id)
        if most is not None:
            numbers = [row.id for row in self._rows(query.with_only_columns(SNAPSHOTS.c.id))]
            places = np.linspace(0, len(numbers) - 1, min(most, len(numbers))).round().astype(int)
            query = query.where(SNAPSHOTS.c.id.in_([numbers[place] for place in places]))
        return self._rows(query)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All measurements with the status then, as plain values, oldest first, of the worst point first."""
        for point in self.fleet():
            for row in self.trend(point.machine, point.point):
                yield {**Fleet([row.status]).cells()[0], **row.values, "recording": row.recording}

    def events(self, machine: str, point: str, most: int = 1000) -> list[Event]:
        """What happened at a point, the latest `most`, oldest first."""
        latest = sql.select(EVENTS).order_by(EVENTS.c.time.desc(), EVENTS.c.number.desc()).limit(most)
        return [row.event for row in self._rows(latest.where(*_of(EVENTS, machine, point)))][::-1]

    def unsent(self) -> Sequence[sql.Row[Any]]:
        """The `number` and `event` of events whose notifications are still to be made, oldest first, at most 1000."""
        return self._rows(sql.select(EVENTS).where(~EVENTS.c.sent).order_by(EVENTS.c.number).limit(1000))

    def known(self, settings: str) -> set[tuple[str, str, int, int]]:
        """The identities of files that were read, or cannot be used with these settings."""
        tried = FILES.c.refused.is_(None) | (FILES.c.refused == settings)
        query = sql.select(FILES.c.path, FILES.c.part, FILES.c.size, FILES.c.changed).where(tried)
        return {(row.path, row.part, row.size, row.changed) for row in self._rows(query)}

    # What is written.

    def add(
        self, arrival: Arrival, measured: Sequence[tuple[Snapshot, PointStatus]] = (), refused: str | None = None
    ) -> None:
        """A file, with its measurements and what they meant; `refused` are settings with which it cannot be used."""
        with self.transaction() as connection:
            connection.execute(sql.delete(FILES).where(FILES.c.path == arrival.path, FILES.c.part == arrival.part))
            connection.execute(sql.insert(FILES).values((*arrival.identity, arrival.machine, refused)))
            for snapshot, status in measured:
                connection.execute(sql.insert(SNAPSHOTS).values(
                    machine=snapshot.machine, point=snapshot.point, recording=arrival.path, time=snapshot.time,
                    values={name: float(f"{value:.6g}") for name, value in snapshot.values.items()}, status=status,
                ))  # fmt: skip

    def is_copy(self, arrival: Arrival) -> bool:
        """Whether a file with the time of its last change was read before, by its digest, which is kept like a path."""
        with suppress(OSError):  # the file is gone
            if arrival.time == arrival.changed / 1e9:
                content = replace(arrival, path=digest_file(Path(arrival.path)), changed=0)
                known = self._rows(sql.select(FILES).where(FILES.c.path == content.path, FILES.c.part == content.part))
                self.add(content)
                return bool(known)
        return False

    def keep(self, states: Iterable[PointState], events: Iterable[Event] = ()) -> None:
        """What is remembered of points now, and what happened to them."""
        with self.transaction() as connection:
            for state in states:
                names = state.status.machine, state.status.point
                connection.execute(sql.delete(POINTS).where(*_of(POINTS, *names)))
                connection.execute(sql.insert(POINTS).values((*names, state.status, state)))
            for event in events:
                row = {"machine": event.machine, "point": event.point, "time": event.time, "event": event}
                connection.execute(sql.insert(EVENTS).values(**row, sent=False))

    def mark_sent(self, number: int) -> None:
        """Says that notifications were made of the events up to this one."""
        with self.transaction() as connection:
            connection.execute(sql.update(EVENTS).where(EVENTS.c.number <= number).values(sent=True))

    def acknowledge(self, name: str, note: str = "") -> int:
        """A person has taken notice of the alarms of a machine, or of a point of it; how many points had some."""
        points = [point for point in self.fleet(name) if point.status in (ALARM, CHECK) or point.alarm is not None]
        return self._change(points, acknowledge, note)

    def relearn(self, name: str, note: str = "") -> int:
        """The baselines of a machine, or of a point of it, are learnt anew from the next recordings on; how many."""
        return self._change(self.fleet(name), relearn, note)

    def _change(self, points: Sequence[PointStatus], change: Change, note: str) -> int:
        """What a person does to points, now; how many there are."""
        with self.transaction():
            states = {machine: self.states(machine) for machine in {point.machine for point in points}}
            for point in points:
                state, event = change(states[point.machine][point.point], time.time(), note)
                self.keep([state], [event])
        return len(points)

    def forget(self, name: str) -> int:
        """Removes a machine, or a point of it, with its history; how many points. Files still there are read again."""
        with self.transaction() as connection:
            points = self.fleet(name)
            for point in points:
                names = "," + sql.func.substr(FILES.c.part, len(point.machine) + 2, type_=Text) + "#"  # Arrival.part
                named = names.contains(",#") | names.contains(f",{point.point}#", autoescape=True)
                connection.execute(sql.delete(FILES).where(FILES.c.machine == point.machine, named))
                for table in (SNAPSHOTS, EVENTS, POINTS):
                    connection.execute(sql.delete(table).where(*_of(table, point.machine, point.point)))
            return len(points)


def _sentence(error: Exception) -> str:
    """What an error of the database means for the user."""
    message = (str(error.orig if isinstance(error, DBAPIError) else error).splitlines() or [""])[0]
    if isinstance(error, UnicodeDecodeError) or any(word in message for word in OF_DAMAGE):
        return DAMAGED
    return f"the database says: {message}; put that right and run the same command again, nothing is lost"


def _of(table: sql.Table, machine: str, point: str) -> tuple[Any, Any]:
    """Conditions on the rows of a point."""
    return table.c.machine == machine, table.c.point == point


# Connections.


def _opened(address: str, write: bool, create: bool) -> Store:
    """The store in a file, which only its owner may read, or at a PostgreSQL address; nobody has looked into it yet."""
    scheme, sign, _ = address.partition("://")
    if not sign:
        path = Path(address)
        if create and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
        if not path.is_file():
            what = "is no file" if path.exists() else "there is no such store"
            raise InputError(f"{path}: {what}; bearcat watch FOLDER --store FILE makes one")
        return Store(_sqlite_engine(path, write), str(path), path, write)
    try:
        if scheme not in ("postgresql", "postgres"):
            raise ValueError
        url = sql.engine.make_url(address).set(drivername="postgresql+psycopg")
        engine = sql.create_engine(url, connect_args={"connect_timeout": 10}, pool_pre_ping=True)
    except (ImportError, SQLAlchemyError, ValueError) as error:
        right = "write postgresql://user@host/database, and pip install 'bearcat[watch]'"
        raise InputError(f"--store: this is no address of a store in PostgreSQL; {right}") from error
    name = url.set(drivername="postgresql").render_as_string(hide_password=True)
    return Store(engine, name, None, write)


def _sqlite_engine(path: Path, write: bool) -> sql.Engine:
    import sqlite3

    uri = f"file:{quote(str(path.absolute()))}?mode={'rw' if write else 'ro'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        if path.stat().st_size == 0:
            connection.execute("PRAGMA journal_mode = WAL")  # which the file keeps
        connection.executescript("PRAGMA trusted_schema = OFF; PRAGMA synchronous = FULL")  # survives a power cut
        return connection

    begin = "BEGIN IMMEDIATE" if write else "BEGIN"  # that nobody changes what a writer has read
    engine = sql.create_engine("sqlite://", creator=connect, poolclass=sql.pool.QueuePool)
    sql.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine
