"""The store of `bearcat watch`: points, recordings, measurements, events, baselines; in SQLite or PostgreSQL.

Everything of one file is added in one transaction, so a process that is killed neither loses nor repeats a recording.
One process watches a store at a time; any number may read it, and acknowledge alarms, meanwhile. Raw recordings stay
where they are: the store has their path and the digest of their content. What is only read as a whole is compressed
JSON, whose checksum finds damage.

>>> with Store.open("plant.db") as store:
...     for point in store.fleet():                       # worst first
...         print(point.machine, point.point, point.status)
...     rows = store.trend("pump 3", "drive end")         # oldest first
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from bearcat.deploy.find import split_name
from bearcat.diagnosis.decision import ALARM, CHECK
from bearcat.errors import InputError, suggest
from bearcat.settings import from_plain, to_plain
from bearcat.watch.folder import Arrival
from bearcat.watch.memory import PointState, acknowledge, relearn
from bearcat.watch.snapshot import Event, Fleet, PointStatus, Snapshot, TrendRow, written_time

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
except ImportError as missing:
    raise InputError("watching machines needs an extra; pip install 'bearcat[watch]'") from missing

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine, Row

VERSION = "7"  # of the tables
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

    def process_bind_param(self, value: Any, _dialect: Any) -> bytes | None:
        if value is None:
            return None
        return zlib.compress(json.dumps(to_plain(value), default=_plain_array).encode(), 1)

    def process_result_value(self, value: Any, _dialect: Any) -> Any:
        try:
            if value is None:
                return None
            return from_plain(self.kind, json.loads(zlib.decompress(value), object_hook=_array))
        except (zlib.error, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise SQLAlchemyError("malformed: no value that bearcat wrote") from error


def _plain_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"doubles": b64encode(np.asarray(array, np.float64).tobytes()).decode(), "shape": array.shape}


def _array(plain: dict[str, Any]) -> Any:
    return np.frombuffer(b64decode(plain["doubles"])).reshape(plain["shape"]) if "doubles" in plain else plain


Column, Table, Text, Double, Integer = sql.Column, sql.Table, sql.Text, sql.Double, sql.Integer
tables = sql.MetaData()
STORE = Table("store", tables, Column("version", Text, primary_key=True))  # one row
POINTS = Table(
    "points", tables, Column("machine", Text, primary_key=True), Column("point", Text, primary_key=True),
    Column("status", Packed(PointStatus), nullable=False), Column("memory", Packed(PointState), nullable=False),
)  # fmt: skip
RECORDINGS = Table(
    "recordings", tables, Column("id", Integer, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("digest", "part", "path")),
    *(Column(name, sql.BigInteger, nullable=False) for name in ("size", "changed")),  # an unchanged file is known
    Column("refused", Text),  # the settings with which it could not be used; with others it is tried again
    sql.UniqueConstraint("digest", "part"),
)  # fmt: skip
SNAPSHOTS = Table(
    "snapshots", tables, Column("id", sql.BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("machine", Text, nullable=False), Column("point", Text, nullable=False),
    Column("recording", sql.ForeignKey("recordings.id"), nullable=False, index=True),
    Column("time", Double, nullable=False), Column("channel", Text),
    Column("measured", Packed(Mapping[str, float]), nullable=False),
    Column("status", Packed(PointStatus)),  # without one the recording came late and was not judged
    sql.Index("snapshots_by_point", "machine", "point", "time"),
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

    engine: Engine
    name: str  # without a password
    path: Path | None  # of a file
    write: bool
    _connection: Connection | None = None  # of the transaction at work

    @staticmethod
    @contextmanager
    def open(address: str | Path, write: bool = False, create: bool = False) -> Iterator[Store]:
        """The store in a file or at a PostgreSQL address; `create`: a new one where there is none."""
        store = _opened(str(address), write or create, create)
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
                tables.create_all(connection)
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
                lock = self.engine.execution_options(isolation_level="AUTOCOMMIT").connect()
                held.enter_context(lock)
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

    def fleet(self, machine: str | None = None) -> Fleet:
        """Every point, worst first; acknowledged ones among the others that are to be checked."""
        with self.transaction() as connection:
            points = connection.scalars(sql.select(POINTS.c.status).where(*_of(POINTS, machine)))
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

    def rows(self) -> Iterator[dict[str, Any]]:
        """All measurements with the status then, as plain values, by point and time."""
        for point in sorted(self.fleet(), key=lambda status: (status.machine, status.point)):
            for row in self.trend(point.machine, point.point):
                about = {"machine": point.machine, "point": point.point, "time": written_time(row.time)}
                judged = {} if row.status is None else Fleet([row.status]).cells()[0]
                yield {**about, **judged, **row.values, "recording": row.recording, "late": row.status is None}

    def events(self, machine: str | None = None, point: str | None = None, most: int = 1000) -> list[Event]:
        """What happened, the latest `most`, oldest first."""
        latest = sql.select(EVENTS).order_by(EVENTS.c.time.desc(), EVENTS.c.number.desc()).limit(most)
        return self._events(latest.where(*_of(EVENTS, machine, point)))[::-1]

    def unsent(self, most: int = 1000) -> list[Event]:
        """Events whose notifications are still to be made, oldest first."""
        return self._events(sql.select(EVENTS).where(~EVENTS.c.sent).order_by(EVENTS.c.number).limit(most))

    def _events(self, query: Any) -> list[Event]:
        with self.transaction() as connection:
            return [replace(row.event, number=row.number) for row in connection.execute(query)]

    def files(self) -> Sequence[Row[Any]]:
        """The rows of files that were read, the oldest first."""
        with self.transaction() as connection:
            return connection.execute(sql.select(RECORDINGS).order_by(RECORDINGS.c.id)).all()

    # What is written.

    def add(
        self, arrival: Arrival, digest: str, measured: Sequence[tuple[Snapshot, PointStatus | None]] = (),
        refused: str | None = None,
    ) -> None:  # fmt: skip
        """A file by its content, with its measurements and what they meant; late ones have no status. `refused` are
        settings with which it could not be used.
        """
        file = {name: getattr(arrival, name) for name in ("part", "path", "size", "changed")}
        file |= {"digest": digest, "refused": refused}
        known = RECORDINGS.c.digest == digest, RECORDINGS.c.part == arrival.part
        with self.transaction() as connection:
            number = connection.scalar(sql.update(RECORDINGS).where(*known).values(file).returning(RECORDINGS.c.id))
            if number is None:
                number = connection.scalar(sql.insert(RECORDINGS).values(file).returning(RECORDINGS.c.id))
            for snapshot, status in measured:
                connection.execute(sql.insert(SNAPSHOTS).values(
                    machine=snapshot.machine, point=snapshot.point, recording=number, time=snapshot.time,
                    channel=split_name(snapshot.observation.recording, Path(arrival.path))[2] or None, status=status,
                    measured={name: float(f"{value:.6g}") for name, value in snapshot.values.items()},
                ))  # fmt: skip

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

    def mark_sent(self, numbers: Sequence[int]) -> None:
        """Says that notifications of these events were made."""
        with self.transaction() as connection:
            connection.execute(sql.update(EVENTS).where(EVENTS.c.number.in_(numbers)).values(sent=True))

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
            self.keep([state], [event])
        return event

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
        named = [status for status in points if point in (None, status.point)]
        if not named:
            names = suggest(str(point), [status.point for status in points])
            raise InputError(f"{self.name}: machine '{machine}' has no point '{point}'{names}")
        return named


def _sentence(error: Exception) -> str:
    """What an error of the database means for the user."""
    message = (str(error.orig if isinstance(error, DBAPIError) else error).splitlines() or [""])[0]
    if "full" in message or "disk I/O" in message or "No space" in message:
        return "the disk is full or broken; free some space and run the same command again, nothing is lost"
    if "locked" in message:
        return "another process keeps it locked; wait until it has ended"
    if isinstance(error, UnicodeDecodeError) or any(word in message for word in OF_DAMAGE):
        return DAMAGED
    return f"the database says: {message}"


def _of(table: sql.Table, machine: str | None, point: str | None = None) -> list[Any]:
    """Conditions on the rows of a machine or a point; None: of all."""
    columns = (table.c.machine, machine), (table.c.point, point)
    return [column == value for column, value in columns if value is not None]


# Connections.


def _opened(address: str, write: bool, create: bool) -> Store:
    """The store in a file or at a PostgreSQL address, which nobody has looked into yet."""
    scheme, sign, _ = address.partition("://")
    if not sign:
        path = Path(address)
        _check_file(path, create)
        return Store(_sqlite_engine(path, write), str(path), path, write)
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise InputError(f"--store: '{scheme}://' is no address of a store; give a file, or postgresql://…")
    try:
        url = sql.engine.make_url(address).set(drivername="postgresql+psycopg")
        engine = sql.create_engine(url, connect_args={"connect_timeout": 10}, pool_pre_ping=True)
    except ImportError as error:
        raise InputError("a store in PostgreSQL needs an extra; pip install 'bearcat[watch]'") from error
    except (SQLAlchemyError, ValueError) as error:
        raise InputError("--store: is no address such as postgresql://user@host/database") from error
    name = url.set(drivername="postgresql").render_as_string(hide_password=True)
    return Store(engine, name, None, write)


def _check_file(path: Path, create: bool) -> None:
    """Refuses what is no file; a new one is only for its owner to read."""
    try:
        if create and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
        if not path.is_file():
            what = "is no file" if path.exists() else "there is no such store"
            raise InputError(f"{path}: {what}; bearcat watch FOLDER --store FILE makes one")
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({os.strerror(error.errno or 0)}); check the path") from error


def _sqlite_engine(path: Path, write: bool) -> Engine:
    import sqlite3

    uri = f"file:{quote(str(path.absolute()))}?mode={'rw' if write else 'ro'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        if path.stat().st_size == 0:
            connection.execute("PRAGMA journal_mode = WAL")  # which the file keeps
        connection.executescript("PRAGMA trusted_schema = OFF; PRAGMA synchronous = FULL")  # survives a power cut
        return connection

    def begin(connection: Connection) -> None:
        # Who may write begins so, that nobody changes what was read.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    engine = sql.create_engine("sqlite://", creator=connect, poolclass=sql.pool.QueuePool)
    sql.event.listen(engine, "begin", begin)
    return engine
