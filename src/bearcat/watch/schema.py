"""The tables of a store, and connections to it.

>>> tables.create_all(connection)      # a new store
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
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

tables = sql.MetaData()
META = sql.Table("meta", tables, sql.Column("name", sql.Text, primary_key=True), sql.Column("value", sql.Text))
NAMES = sql.Table(  # of measurements, which snapshots have by number
    "names", tables, sql.Column("id", sql.Integer, primary_key=True), sql.Column("name", sql.Text, unique=True)
)
POINTS = sql.Table(
    "points",
    tables,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("machine", sql.Text, nullable=False),
    sql.Column("point", sql.Text, nullable=False),
    sql.Column("status", sql.Text, nullable=False),
    sql.Column("since", sql.Double),
    sql.Column("fault", sql.Text),
    sql.Column("confidence", sql.Double),
    sql.Column("reasons", sql.Text, nullable=False),  # a list in JSON
    sql.Column("evidence", sql.Text),
    sql.Column("time", sql.Double),
    sql.Column("recordings", sql.Integer, nullable=False),
    sql.Column("operating_state", sql.Text, nullable=False),
    sql.Column("learnt", sql.Integer, nullable=False),
    sql.Column("wanted", sql.Integer, nullable=False),
    sql.Column("alarm", sql.Double),
    sql.Column("acknowledged", sql.Double),
    sql.UniqueConstraint("machine", "point"),
    sql.Index("points_by_point", "point", "machine"),
)
MEMORIES = sql.Table(  # apart from the points, so that the fleet is read without them
    "memories",
    tables,
    sql.Column("point", sql.ForeignKey("points.id", ondelete="CASCADE"), primary_key=True),
    sql.Column("content", sql.LargeBinary, nullable=False),
)
RECORDINGS = sql.Table(
    "recordings",
    tables,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("digest", sql.Text, nullable=False),  # SHA-256 of the file's content
    sql.Column("place", sql.Text, nullable=False),  # machine, point and part of the file
    sql.Column("path", sql.Text, nullable=False),
    sql.Column("time", sql.Double),
    sql.Column("size", sql.BigInteger, nullable=False),
    sql.Column("changed", sql.BigInteger, nullable=False),  # in ns since 1970: an unchanged file is not read again
    sql.Column("problem", sql.Text),  # why it could not be used
    sql.Column("tried", sql.Text),  # with which settings it could not
    sql.UniqueConstraint("digest", "place"),
    sql.Index("recordings_by_path", "path"),
)
SNAPSHOTS = sql.Table(
    "snapshots",
    tables,
    sql.Column("id", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True),
    sql.Column("point", sql.ForeignKey("points.id", ondelete="CASCADE"), nullable=False),
    sql.Column("time", sql.Double, nullable=False),
    sql.Column("recording", sql.ForeignKey("recordings.id"), nullable=False),
    sql.Column("channel", sql.Text),
    sql.Column("status", sql.Text),  # of the point then; NULL: the recording came late and was not judged
    sql.Column("state", sql.Text),
    sql.Column("confidence", sql.Double),
    sql.Column("p_value", sql.Double),
    sql.Column("evidence", sql.Double),
    sql.Column("threshold", sql.Double),
    sql.Column("operating_state", sql.Text),
    sql.Column("marked", sql.Boolean, nullable=False),  # something happened: a trend that is thinned keeps it
    sql.Column("rpm", sql.Double),
    sql.Column("measured", sql.LargeBinary, nullable=False),
    sql.Column("band", sql.LargeBinary, nullable=False),
    sql.Column("envelope", sql.LargeBinary, nullable=False),
    sql.Index("snapshots_by_point", "point", "time", "marked"),
    sql.Index("snapshots_by_recording", "recording"),
)
EVENTS = sql.Table(
    "events",
    tables,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("machine", sql.Text, nullable=False),
    sql.Column("point", sql.Text, nullable=False),
    sql.Column("time", sql.Double, nullable=False),
    sql.Column("kind", sql.Text, nullable=False),
    sql.Column("sentence", sql.Text, nullable=False),
    sql.Column("acknowledged", sql.Double),
    sql.Column("sent", sql.Boolean, nullable=False),  # false: notifications are still to be made
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
def lock_file(path: Path) -> Iterator[int]:
    """A file beside the store, whose lock the system frees however a process ends."""
    file = os.open(path.with_name(f"{path.name}-watching"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        yield file
    finally:
        os.close(file)
