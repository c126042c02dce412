"""The tables of a store, and connections to it.

>>> tables.create_all(connection)      # a new store
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bearcat.errors import InputError

try:
    import sqlalchemy as sql
except ImportError as missing:
    raise InputError("watching machines needs an extra; pip install 'bearcat[watch]'") from missing
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

BUSY_SECONDS = 30.0  # for which a writer waits until another's transaction has ended
SYNCHRONOUS = "FULL"  # in a file, what was committed survives a power cut

Text, Double, Integer, Binary = sql.Text, sql.Double, sql.Integer, sql.LargeBinary


def _key() -> sql.Column[int]:
    return sql.Column("id", Integer, primary_key=True)


def _columns(kind: type[sql.types.TypeEngine[Any]], *names: str, empty: bool = False) -> list[sql.Column[Any]]:
    """Columns of one type, which may be `empty`."""
    return [sql.Column(name, kind, nullable=empty) for name in names]


tables = sql.MetaData()
META = sql.Table("meta", tables, sql.Column("name", Text, primary_key=True), sql.Column("value", Text))
# Names of measurements, which snapshots have by number.
NAMES = sql.Table("names", tables, _key(), sql.Column("name", Text, unique=True))
POINTS = sql.Table(  # a PointStatus each; `reasons` is a list in JSON
    "points",
    tables,
    _key(),
    *_columns(Text, "machine", "point", "status", "reasons", "operating_state"),
    *_columns(Integer, "recordings", "learnt", "wanted"),
    *_columns(Text, "fault", "evidence", empty=True),
    *_columns(Double, "since", "confidence", "time", "alarm", "acknowledged", empty=True),
    sql.UniqueConstraint("machine", "point"),
    sql.Index("points_by_point", "point", "machine"),
)
MEMORIES = sql.Table(  # apart from the points, so that the fleet is read without them
    "memories",
    tables,
    sql.Column("point", sql.ForeignKey("points.id", ondelete="CASCADE"), primary_key=True),
    *_columns(Binary, "content"),
)
RECORDINGS = sql.Table(
    "recordings",
    tables,
    _key(),
    # SHA-256 of the content, which is read once for each place: machine, point and part of the file.
    *_columns(Text, "digest", "place", "path"),
    *_columns(Double, "time", empty=True),
    *_columns(sql.BigInteger, "size", "changed"),  # in ns since 1970: an unchanged file is not read again
    *_columns(Text, "problem", "tried", empty=True),  # why it could not be used, and with which settings
    sql.UniqueConstraint("digest", "place"),
    sql.Index("recordings_by_path", "path"),
)
SNAPSHOTS = sql.Table(
    "snapshots",
    tables,
    sql.Column("id", sql.BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    sql.Column("point", sql.ForeignKey("points.id", ondelete="CASCADE"), nullable=False),
    sql.Column("recording", sql.ForeignKey("recordings.id"), nullable=False),
    *_columns(Double, "time"),
    # `status` is the point's then; without one the recording came late and was not judged.
    *_columns(Text, "channel", "status", "state", "operating_state", empty=True),
    *_columns(Double, "confidence", "p_value", "evidence", "threshold", "rpm", empty=True),
    *_columns(sql.Boolean, "marked"),  # something happened: a trend that is thinned keeps it
    *_columns(Binary, "measured", "band", "envelope"),
    sql.Index("snapshots_by_point", "point", "time", "marked"),
    sql.Index("snapshots_by_recording", "recording"),
)
EVENTS = sql.Table(
    "events",
    tables,
    sql.Column("number", Integer, primary_key=True),
    *_columns(Text, "machine", "point", "kind", "sentence"),
    *_columns(Double, "time"),
    *_columns(Double, "acknowledged", empty=True),
    *_columns(sql.Boolean, "sent"),  # false: notifications are still to be made
    sql.Index("events_by_time", "time"),
    sql.Index("events_by_point", "machine", "point", "time"),
    sql.Index("events_unsent", "number", sqlite_where=sql.text("NOT sent"), postgresql_where=sql.text("NOT sent")),
)


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
        import psycopg  # noqa: F401
        from sqlalchemy.engine import make_url
    except ImportError as error:
        raise InputError("a store in PostgreSQL needs an extra; pip install 'bearcat[watch]'") from error
    try:
        url = make_url(address).set(drivername="postgresql+psycopg")
    except (SQLAlchemyError, ValueError) as error:
        raise InputError("--store: is no address such as postgresql://user@host/database") from error
    name = url.set(drivername="postgresql").render_as_string(hide_password=True)
    engine = sql.create_engine(url, connect_args={"connect_timeout": 10}, pool_pre_ping=True)
    return engine, name, None


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

    mode = "rw" if write else "ro"
    place = f"file:{quote(str(path.absolute()))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        opened = sqlite3.connect(place, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        if path.stat().st_size == 0:
            opened.execute("PRAGMA journal_mode = WAL")  # which the file keeps
        opened.execute("PRAGMA trusted_schema = OFF")
        opened.execute("PRAGMA foreign_keys = ON")
        opened.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        return opened

    def begin(connection: Connection) -> None:
        # A transaction that writes begins as such, so that nobody changes what it has read.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    engine = sql.create_engine("sqlite://", creator=connect, poolclass=sql.pool.QueuePool)
    sql.event.listen(engine, "begin", begin)
    return engine


@contextmanager
def file_locked(path: Path) -> Iterator[bool]:
    """Whether this process alone has the lock beside a store, which the system frees however a process ends."""
    file = os.open(path.with_name(f"{path.name}-watching"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    free = False
    try:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
    finally:
        os.close(file)
