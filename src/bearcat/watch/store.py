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

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.diagnosis.decision import ALARM, CHECK
from bearcat.errors import InputError, suggest
from bearcat.settings import from_plain, to_plain
from bearcat.watch.memory import PointState, acknowledge, relearn
from bearcat.watch.schema import (
    EVENTS,
    MEMORIES,
    META,
    NAMES,
    POINTS,
    RECORDINGS,
    SNAPSHOTS,
    file_locked,
    open_engine,
    tables,
)  # fmt: skip
from bearcat.watch.snapshot import MEASUREMENTS, STATUSES, Assessment, Event, PointStatus, Snapshot
from bearcat.watch.status import REASONS, Fleet, written_time
from bearcat.watch.usual import WatchRule

import sqlalchemy as sql  # isort: skip (after the module that says how to install it)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # isort: skip

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine, Row

VERSION = 1  # of the tables
LOCK = 0x62636174  # the key of PostgreSQL's locks: "bcat"
DAMAGED = "is no store of bearcat watch, or is damaged; choose another file, or restore a backup"
SISTERS = 12  # machines with a point of the same name that a point is compared with
PART = 400  # rows or names in one query
MEASURED = np.dtype([("name", "<u2"), ("value", "<f4")])
BAND = np.dtype([("name", "<u2"), ("low", "<f4"), ("high", "<f4")])


@dataclass(frozen=True)
class RecordingFile:
    """A file, or the part of one, that was read for a machine."""

    path: str
    place: str  # machine, point and part of the file: the same content is read once for each
    digest: str
    size: int
    changed: int  # nanoseconds since 1970
    time: float | None = None
    problem: str | None = None
    tried: str | None = None  # of a problem: a digest of the settings; others may read the file


@dataclass(frozen=True)
class TrendRow:
    """A point at one time: measurements, and what was said of them."""

    time: float
    recording: str
    values: Mapping[str, float]
    status: str | None  # None: the recording came late
    state: str | None
    confidence: float | None
    p_value: float | None
    evidence: float | None
    threshold: float | None
    operating_state: str | None
    band: Mapping[str, tuple[float, float]]
    late: bool


# Columns of a snapshot that a row of a trend has as they are.
TREND = ("time", "status", "state", "confidence", "p_value", "evidence", "threshold", "operating_state")


class Store:
    """A store that is open. Close it, or use it in a `with` statement."""

    def __init__(self, engine: Engine, name: str, path: Path | None, write: bool) -> None:
        self.engine, self.name, self.path, self.write = engine, name, path, write
        self._connection: Connection | None = None  # of the transaction at work
        self._names: dict[int, str] = {}  # of measurements, by which number snapshots have them

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
            version = self._version(connection)
        if version is None and not create:
            raise InputError(f"{self.name}: is no store of bearcat watch; check the path")
        if version is None:
            with self.transaction() as connection:
                if self._version(connection) is None:  # another process may have been faster
                    tables.create_all(connection)
                    connection.execute(sql.insert(META).values(name="version", value=str(VERSION)))
        elif version != VERSION:
            other = f"is a store of version {version}, and this bearcat knows version {VERSION}"
            raise InputError(f"{self.name}: {other}; install another bearcat, or use a new store")
        self._names = self._numbered()
        missing = [{"name": name} for name in MEASUREMENTS if name not in self._names.values()]
        if self.write and missing:
            with self.transaction() as connection:
                connection.execute(sql.insert(NAMES), missing)
            self._names = self._numbered()

    def _numbered(self) -> dict[int, str]:
        with self._reading() as connection:
            rows = connection.execute(sql.select(NAMES.c.id, NAMES.c.name).order_by(NAMES.c.id))
            return {row.id: row.name for row in rows}

    def _version(self, connection: Connection) -> int | None:
        """Of the schema; None: there is none. InputError where another program's tables are there."""
        there = sql.inspect(connection).get_table_names()
        if META.name in there and POINTS.name in there:
            text = str(connection.scalar(sql.select(META.c.value).where(META.c.name == "version")))
            if re.fullmatch(r"\d{1,9}", text):
                return int(text)
        if there and self.path is not None:
            raise InputError(f"{self.name}: is no store of bearcat watch; choose another file")
        if there:
            raise InputError(f"{self.name}: holds tables of another program; give bearcat a database of its own")
        return None

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Errors of the database in one sentence."""
        try:
            yield
        except DBAPIError as error:
            reason = (str(error.orig).splitlines() or [""])[0]
            if "full" in reason or "disk I/O" in reason or "No space" in reason:
                what = "the disk is full or broken; free some space and run the same command again, nothing is lost"
            elif "locked" in reason:
                what = "another process keeps it locked; wait until it has ended"
            elif any(word in reason for word in ("not a database", "malformed", "decode to UTF-8")):
                what = DAMAGED
            else:
                what = f"the database says: {reason}"
            raise InputError(f"{self.name}: {what}") from error
        except UnicodeDecodeError as error:  # in what the database says, or in a text that it holds
            raise InputError(f"{self.name}: {DAMAGED}") from error
        except SQLAlchemyError as error:
            raise InputError(f"{self.name}: {(str(error).splitlines() or [''])[0]}") from error

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
        lock = self._connection_locked() if self.path is None else file_locked(self.path)
        with lock as free:
            if not free:
                raise InputError(f"{self.name}: another bearcat watch writes to this store; stop it, or use another")
            yield

    @contextmanager
    def _connection_locked(self) -> Iterator[bool]:
        """Whether this process alone has PostgreSQL's lock; the server frees it with the connection."""
        with self.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            try:
                yield bool(connection.scalar(sql.select(sql.func.pg_try_advisory_lock(LOCK, 0))))
                with suppress(DBAPIError):  # the connection is lost already
                    connection.execute(sql.select(sql.func.pg_advisory_unlock(LOCK, 0)))
            finally:
                connection.invalidate()

    # What is known.

    @property
    def rule(self) -> WatchRule | None:
        """When a change is an alarm; None: none was set yet."""
        with self._reading() as connection:
            text = connection.scalar(sql.select(META.c.value).where(META.c.name == "rule"))
            values = {} if text is None else json.loads(text)
            if any(name in values and values[name] for name in ("speeds", "loads")):  # which v0.3 could be given
                gone = "its operating states were given by --speeds or --loads, which were removed; use a new store"
                raise InputError(f"{self.name}: {gone}")
            try:
                rule: WatchRule = from_plain(WatchRule, values)
            except InputError as error:  # a number outside its range, which nobody has given now
                raise ValueError(str(error)) from error
            return None if text is None else rule

    def set_rule(self, rule: WatchRule) -> None:
        with self.transaction() as connection:
            _put(connection, META, {"name": "rule", "value": json.dumps(to_plain(rule))}, ("name",))

    def fleet(self, machine: str | None = None) -> Fleet:
        """Every point, worst first; an alarm that nobody acknowledged comes before one that somebody did."""
        query = sql.select(*(POINTS.c[name] for name in Fleet.columns))
        if machine is not None:
            query = query.where(POINTS.c.machine == machine)
        with self._reading() as connection:
            points = [_status(row) for row in connection.execute(query)]

        def order(point: PointStatus) -> tuple[Any, ...]:
            rank = STATUSES.index(point.status) if point.alarm is None else 0
            return rank, point.acknowledged is not None, -(point.confidence or 0), point.machine, point.point

        return Fleet(sorted(points, key=order))

    def trend(self, machine: str, point: str, most: int = 2000) -> list[TrendRow]:
        """A point over time, oldest first; of more than `most` rows an even choice, with all at which something was."""
        query = sql.select(SNAPSHOTS, RECORDINGS.c.path).join(RECORDINGS)
        with self._reading() as connection:
            return [self._trend_row(row) for row in self._history(connection, query, machine, point, most)]

    def envelopes(self, machine: str, point: str, most: int = 200) -> list[tuple[float, float | None, bytes]]:
        """Time, rpm and envelope spectrum of a point's recordings, oldest first, thinned as the trend is."""
        query = sql.select(SNAPSHOTS.c.time, SNAPSHOTS.c.rpm, SNAPSHOTS.c.envelope)
        with self._reading() as connection:
            rows = self._history(connection, query, machine, point, most)
            return [(row.time, row.rpm, row.envelope) for row in rows if row.envelope]

    def _history(self, connection: Connection, query: Any, machine: str, point: str, most: int) -> Iterable[Row[Any]]:
        """Rows of a point's snapshots, oldest first."""
        of_point = SNAPSHOTS.c.point == self._point(connection, machine, point)
        numbers = list(connection.scalars(sql.select(SNAPSHOTS.c.id).where(of_point).order_by(SNAPSHOTS.c.time)))
        if len(numbers) > most:
            even = {numbers[place] for place in np.linspace(0, len(numbers) - 1, max(most, 2)).round().astype(int)}
            query = query.where(SNAPSHOTS.c.marked | SNAPSHOTS.c.id.in_(even))
        return connection.execute(query.where(of_point).order_by(SNAPSHOTS.c.time, SNAPSHOTS.c.id))

    def _trend_row(self, row: Row[Any]) -> TrendRow:
        measured, band = np.frombuffer(row.measured, MEASURED).tolist(), np.frombuffer(row.band, BAND).tolist()
        values = {name: getattr(row, name) for name in TREND}
        return TrendRow(
            recording=row.path if row.channel is None else f"{row.path}#{row.channel}",
            values={self._names[number]: value for number, value in measured},
            band={self._names[number]: (low, high) for number, low, high in band}, late=row.status is None, **values,
        )  # fmt: skip

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

    def state(self, machine: str, point: str) -> PointState | None:
        """What is remembered of a point."""
        return next((state for state in self.states(machine) if state.point == point), None)

    def states(self, machine: str) -> list[PointState]:
        """What is remembered of all points of a machine."""
        return self._states(POINTS.c.machine == machine)

    def sisters(self, point: str, except_machine: str) -> list[PointState]:
        """Of the points of this name on other machines, those known longest."""
        return self._states(sql.and_(POINTS.c.point == point, POINTS.c.machine != except_machine), SISTERS)

    def _states(self, where: Any, most: int | None = None) -> list[PointState]:
        columns = POINTS.c.machine, POINTS.c.point, MEMORIES.c.content
        query = sql.select(*columns).select_from(POINTS.join(MEMORIES)).where(where).order_by(POINTS.c.id).limit(most)
        states = list[PointState]()
        with self._reading() as connection:
            for machine, point, content in connection.execute(query):
                try:
                    states.append(PointState.from_bytes(content))
                except ValueError as error:
                    damaged = f"what is kept of '{machine}/{point}' is damaged; restore a backup, or forget the point"
                    raise InputError(f"{self.name}: {damaged}") from error
        return states

    def known(self, paths: Sequence[str]) -> dict[tuple[str, str], RecordingFile]:
        """Those of these files that were read, by path and place."""
        files = [file for part in _parts(paths) for file in self._files(RECORDINGS.c.path.in_(part))]
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
        measured: Sequence[tuple[Snapshot, Assessment | None]] = (),
        states: Sequence[PointState] = (),
        events: Sequence[Event] = (),
        sent: bool = False,
    ) -> list[Event]:
        """Everything of one file, at once: its measurements (late ones without assessment), what is remembered now, and
        what happened; the events with their numbers. `sent`: nobody waits for notifications.
        """
        with self.transaction() as connection:
            number = _put(connection, RECORDINGS, asdict(file), ("digest", "place"))
            for state in states:
                self._keep(connection, state)
            happened = [event for _, each in measured if each is not None for event in each.events]
            for snapshot, assessment in measured:
                row = self._snapshot_row(snapshot, assessment)
                row |= {"point": self._point(connection, snapshot.machine, snapshot.point), "recording": number}
                connection.execute(sql.insert(SNAPSHOTS).values(row))
            return [self._happened(connection, event, sent) for event in (*happened, *events)]

    def _snapshot_row(self, snapshot: Snapshot, judged: Assessment | None) -> dict[str, Any]:
        numbers = {name: number for number, name in self._names.items()}
        values = [(numbers[name], value) for name, value in snapshot.values.items()]
        limits = [] if judged is None else [(numbers[name], low, high) for name, (low, high) in judged.band.items()]
        row = {
            "time": snapshot.time, "channel": snapshot.recording.partition("#")[2] or None, "marked": False,
            "rpm": snapshot.values.get("rpm"), "measured": np.array(values, MEASURED).tobytes(),
            "band": np.array(limits, BAND).tobytes(), "envelope": snapshot.envelope,
        }  # fmt: skip
        if judged is None:
            return row
        own = {name: getattr(judged, name) for name in TREND if name not in ("time", "status")}
        return row | own | {"status": judged.status.status, "marked": bool(judged.events)}

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
        now = time.time()
        with self.transaction() as connection:
            points = {
                status.point for status in self._chosen(machine, point)
                if status.status in (ALARM, CHECK) or status.alarm is not None
            }  # fmt: skip
            for state in self.states(machine) if points else ():
                if state.point in points:
                    self._change(connection, acknowledge(state, now, note))
            self._acknowledge_events(connection, machine, point, now)
        return len(points)

    def relearn(self, machine: str, point: str, note: str = "", when: float | None = None) -> Event:
        """The baseline of a point is learnt anew from the next recordings on."""
        when = time.time() if when is None else when
        if when > time.time():
            raise InputError(f"--from: {written_time(when)} has not come yet; give the time of the repair")
        with self.transaction() as connection:
            self._chosen(machine, point)
            (state,) = [state for state in self.states(machine) if state.point == point]
            self._acknowledge_events(connection, machine, point, when)
            return self._change(connection, relearn(state, when, self.rule or WatchRule(), note))

    def _change(self, connection: Connection, changed: tuple[PointState, Event]) -> Event:
        self._keep(connection, changed[0])
        return self._happened(connection, changed[1])

    def _acknowledge_events(self, connection: Connection, machine: str, point: str | None, when: float) -> None:
        unseen = [*_events_of(machine, point), EVENTS.c.acknowledged.is_(None)]
        connection.execute(sql.update(EVENTS).where(*unseen).values(acknowledged=when))

    def forget(self, machine: str, point: str | None = None) -> int:
        """Removes a machine, or a point of it, with its history; how many points. Files still there are read again."""
        with self.transaction() as connection:
            points = [self._point(connection, each.machine, each.point) for each in self._chosen(machine, point)]
            of_points = SNAPSHOTS.c.point.in_(points)
            files = list(connection.scalars(sql.select(SNAPSHOTS.c.recording).where(of_points).distinct()))
            for table, where in ((SNAPSHOTS, of_points), (MEMORIES, MEMORIES.c.point.in_(points)),
                                 (POINTS, POINTS.c.id.in_(points))):  # fmt: skip
                connection.execute(sql.delete(table).where(where))
            connection.execute(sql.delete(EVENTS).where(*_events_of(machine, point)))
            used = sql.select(SNAPSHOTS.c.id).where(SNAPSHOTS.c.recording == RECORDINGS.c.id).exists()
            for part in _parts(files):
                connection.execute(sql.delete(RECORDINGS).where(RECORDINGS.c.id.in_(part), ~used))
            return len(points)

    def _chosen(self, machine: str, point: str | None) -> list[PointStatus]:
        """The points of a machine, or one of them; InputError, with the nearest name, where there is none."""
        points = self.fleet(machine)
        if not points:
            with self._reading() as connection:
                known = connection.scalars(sql.select(POINTS.c.machine).distinct().limit(1000)).all()
            raise InputError(f"{self.name}: there is no machine '{machine}'{suggest(machine, known)}")
        chosen = [each for each in points if point in (None, each.point)]
        if not chosen:
            names = suggest(str(point), [each.point for each in points])
            raise InputError(f"{self.name}: machine '{machine}' has no point '{point}'{names}")
        return chosen

    def _keep(self, connection: Connection, state: PointState) -> None:
        row = asdict(state.status) | {"reasons": json.dumps(list(state.status.reasons), ensure_ascii=False)}
        point = _put(connection, POINTS, row, ("machine", "point"))
        _put(connection, MEMORIES, {"point": point, "content": state.to_bytes()}, ("point",))

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


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """As many as one query takes."""
    return (values[start : start + PART] for start in range(0, len(values), PART))


def _put(connection: Connection, table: sql.Table, row: dict[str, Any], key: tuple[str, ...]) -> Any:
    """Inserts a row, or replaces the one with this key; its id, where the table has one."""
    from sqlalchemy.dialects import postgresql, sqlite

    insert: Any = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table).values(row)
    others = {name: insert.excluded[name] for name in row if name not in key}
    query = insert.on_conflict_do_update(index_elements=list(key), set_=others)
    return connection.scalar(query.returning(next(iter(table.primary_key))))


def _status(row: Row[Any]) -> PointStatus:
    """Of a row with the columns of a fleet; there may be tens of thousands."""
    values: list[Any] = list(row)
    values[REASONS] = tuple(json.loads(values[REASONS]))
    status = PointStatus(*values)
    if status.status not in STATUSES or not all(isinstance(reason, str) for reason in status.reasons):
        raise ValueError(f"{status!r:.80}")
    return status
