"""The tables of a store, and connections to it. What is only read as a whole is compressed JSON, whose checksum finds
damage.

>>> tables.create_all(connection)      # a new store
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from bearcat.errors import InputError
from bearcat.findings import Finding
from bearcat.settings import from_plain, to_plain
from bearcat.watch.memory import PointState
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
            raise DamagedError from error


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
    Column("refused", Text),
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
    *(Column(name, Text, nullable=False) for name in ("machine", "point", "kind", "note")),
    Column("time", Double, nullable=False),
    Column("findings", Packed(tuple[Finding, ...]), nullable=False),
    Column("fault", Text),
    Column("sent", sql.Boolean, nullable=False),  # false: notifications are still to be made
    sql.Index("events_by_point", "machine", "point", "time"),
    sqlite_autoincrement=True,  # a number is never used again
)  # fmt: skip


def open_engine(address: str, write: bool, create: bool) -> tuple[Engine, str, Path | None]:
    """Connections to a store, how to call it, and its file."""
    scheme, sign, _ = address.partition("://")
    if not sign:
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


@contextmanager
def locked(engine: Engine, path: Path | None) -> Iterator[bool]:
    """Whether this process alone may watch with a store. The system, or PostgreSQL, frees the lock however it ends."""
    if path is None:
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            try:
                yield bool(connection.scalar(sql.select(sql.func.pg_try_advisory_lock(LOCK, 0))))
            finally:
                connection.invalidate()
        return
    with path.with_name(f"{path.name}-watching").open("ab") as file:
        free = False
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
