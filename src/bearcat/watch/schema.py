"""The tables of a store, and how a store of an older version is brought to this one.

A change to a table is made here and, for stores that exist, by a function at the end of MIGRATIONS.

>>> tables.create_all(connection)      # a new store
"""

from __future__ import annotations

from collections.abc import Callable

from bearcat.errors import InputError

try:
    import sqlalchemy as sql
except ImportError as missing:
    raise InputError("watching machines needs an extra; pip install 'bearcat[watch]'") from missing

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


# From version 1 to 2, from 2 to 3, and so on. A new store has the tables above at once.
MIGRATIONS: list[Callable[[sql.Connection], None]] = []
