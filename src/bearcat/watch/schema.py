"""The tables of a store, and connections to it. What is only read as a whole is JSON.

>>> tables.create_all(connection)      # a new store
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bearcat.errors import InputError
from bearcat.findings import Finding
from bearcat.settings import from_plain, to_plain
from bearcat.watch.snapshot import PointStatus

try:
    import sqlalchemy as sql
except ImportError as missing:
    raise InputError("watching machines needs an extra; pip install 'bearcat[watch]'") from missing
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

LOCK = 0x62636174  # the key of PostgreSQL's locks: "bcat"
BUSY_SECONDS = 30.0  # for which a writer waits until another's transaction has ended


class DamagedError(Exception):
    """A value in the store is none that bearcat wrote."""


class Plain(sql.TypeDecorator[Any]):
    """A value of this type as JSON."""

    impl = sql.Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, _dialect: Any) -> str | None:
        return None if value is None else json.dumps(to_plain(value), ensure_ascii=False)

    def process_result_value(self, value: Any, _dialect: Any) -> Any:
        try:
            return None if value is None else from_plain(self.kind, json.loads(value))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise DamagedError from error


Column, Table, Text, Double, Integer = sql.Column, sql.Table, sql.Text, sql.Double, sql.Integer
tables = sql.MetaData()
META = Table("meta", tables, Column("name", Text, primary_key=True), Column("value", Text))
POINTS = Table(
    "points", tables, Column("machine", Text, primary_key=True), Column("point", Text, primary_key=True),
    Column("status", Plain(PointStatus), nullable=False),
    Column("memory", sql.LargeBinary, nullable=False),  # a PointState
)  # fmt: skip
RECORDINGS = Table(
    "recordings", tables, Column("id", Integer, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("digest", "part", "path")),
    *(Column(name, sql.BigInteger, nullable=False) for name in ("size", "changed")),  # an unchanged file is known
    Column("refused", Text),
    sql.UniqueConstraint("digest", "part"),
)  # fmt: skip
SNAPSHOTS = Table(
    "snapshots", tables, Column("id", sql.BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("machine", Text, nullable=False), Column("point", Text, nullable=False),
    Column("recording", sql.ForeignKey("recordings.id"), nullable=False, index=True),
    Column("time", Double, nullable=False), Column("channel", Text),
    Column("measured", Plain(Mapping[str, float]), nullable=False),
    Column("status", Plain(PointStatus)),  # without one the recording came late and was not judged
    sql.Index("snapshots_by_point", "machine", "point", "time"),
)  # fmt: skip
EVENTS = Table(
    "events", tables, Column("number", Integer, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("machine", "point", "kind", "note")),
    Column("time", Double, nullable=False),
    Column("findings", Plain(tuple[Finding, ...]), nullable=False),
    Column("fault", Text),
    Column("sent", sql.Boolean, nullable=False),  # false: notifications are still to be made
    sql.Index("events_by_point", "machine", "point", "time"),
    sqlite_autoincrement=True,  # a number is never used again
)  # fmt: skip


def open_engine(address: str, write: bool, create: bool) -> tuple[Engine, str, Path | None]:
    """Connections to a store, how to call it, and its file."""
    scheme, _, _ = address.partition("://")
    if "://" not in address:
        path = Path(address)
        _check_file(path, create)
        return _sqlite_engine(path, write), str(path), path
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise InputError(f"--store: '{scheme}://' is no address of a store; give a file, or postgresql://…")
    try:
        url = sql.engine.make_url(address).set(drivername="postgresql+psycopg")
        engine = sql.create_engine(url, connect_args={"connect_timeout": 10}, pool_pre_ping=True)
    except ImportError as error:
        raise InputError("a store in PostgreSQL needs an extra; pip install 'bearcat[watch]'") from error
    except (SQLAlchemyError, ValueError) as error:
        raise InputError("--store: is no address such as postgresql://user@host/database") from error
    return engine, url.set(drivername="postgresql").render_as_string(hide_password=True), None


def _check_file(path: Path, create: bool) -> None:
    """Refuses what is no SQLite file; a new one is only for its owner to read."""
    try:
        if not path.exists() and create:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        if not path.is_file():
            what = "is no file" if path.exists() else "there is no such store"
            raise InputError(f"{path}: {what}; bearcat watch FOLDER --store FILE makes one")
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({os.strerror(error.errno or 0)}); check the path") from error
    if head != b"SQLite format 3\0" and not (create and head == b""):
        raise InputError(f"{path}: is no store of bearcat watch; choose another file")


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
        # A transaction that writes begins as such, so that nobody changes what it has read.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    engine = sql.create_engine("sqlite://", creator=connect, poolclass=sql.pool.QueuePool)
    sql.event.listen(engine, "begin", begin)
    return engine


@contextmanager
def locked(engine: Engine, path: Path | None) -> Iterator[bool]:
    """Whether this process alone may watch with a store. The system, or PostgreSQL, frees the lock however it ends."""
    free = False
    if path is None:
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            try:
                yield bool(connection.scalar(sql.select(sql.func.pg_try_advisory_lock(LOCK, 0))))
            finally:
                connection.invalidate()
        return
    file = os.open(path.with_name(f"{path.name}-watching"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
    finally:
        os.close(file)
