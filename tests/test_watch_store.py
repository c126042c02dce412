"""The store of watched machines, in SQLite; acceptance/test_watch_postgresql.py has the same in PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import zlib
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sql

from bearcat.diagnosis.decision import ALARM, OK
from bearcat.diagnosis.recording import Observation
from bearcat.errors import InputError
from bearcat.findings import Finding
from bearcat.report.fleet import fleet_page
from bearcat.settings import WatchRequest
from bearcat.watch.alarm import judge
from bearcat.watch.folder import Arrival
from bearcat.watch.memory import PointState
from bearcat.watch.snapshot import Event, PointStatus, Snapshot
from bearcat.watch.store import Store
from bearcat.watch.usual import DAY

LINES = Finding("cross-talk", "alarm", {"fault": "outer race", "decibels": 9.5, "owner": "NDE"})
ALARMED = Event("pump 3", "DE", 7 * DAY, "alarm", (LINES,), "outer race")


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Of a store that is not there yet; acceptance/test_watch_postgresql.py has another."""
    return str(tmp_path / "plant.db")


def snapshot(number: int, machine: str = "pump 3", point: str = "DE", rms: float = 1.0) -> Snapshot:
    return Snapshot(
        machine, point, number * DAY, Observation(f"/plant/{machine}/{number}.wav#{point}"),
        {"rms": rms, "rpm": 1500.0},
    )  # fmt: skip


def add(store: Store, snapshot: Snapshot, status: PointStatus | None, path: str | None = None) -> None:
    """The file of one snapshot; its path is its content."""
    path = path or snapshot.observation.recording.partition("#")[0]
    store.add(Arrival(path, snapshot.machine, snapshot.point, snapshot.time, 10, 1), path, [(snapshot, status)])


def judged(state: PointState, snapshot: Snapshot, status: str = OK) -> PointState:
    """After a snapshot, with another status: when there is an alarm is not this file's affair."""
    state = judge({snapshot.point: state}, [snapshot], WatchRequest())[0][snapshot.point]
    return replace(state, status=replace(state.status, status=status, alarm=None))


def filled(store: Store, days: int, machine: str = "pump 3", alarm: int | None = None) -> None:
    state = PointState(PointStatus(machine, "DE"))
    for number in range(days):
        each = snapshot(number, machine)
        events = [replace(ALARMED, machine=machine, time=each.time)] if number == alarm else []
        state = judged(state, each, ALARM if alarm is not None and number >= alarm else OK)
        add(store, each, state.status)
        store.keep([state], events)


def test_a_store_gives_back_what_was_added(address):
    with Store.open(address, create=True) as store:
        filled(store, 5, "pump 1")
        filled(store, 10, alarm=7)
        add(store, snapshot(3, rms=9.0), None, "/plant/late.wav")
    with Store.open(address) as store:
        assert [(each.machine, each.status) for each in store.fleet()] == [("pump 3", ALARM), ("pump 1", OK)]
        assert store.fleet().exit_status == 1
        assert store.fleet("pump 1").exit_status == 0
        rows = store.trend("pump 3", "DE")
        assert [row.time / DAY for row in rows] == sorted([*range(10), 3])
        assert [row.values["rms"] for row in rows if row.status is None] == [9.0]
        assert [row.time / DAY for row in store.trend("pump 1", "DE", most=3)] == [0, 2, 4], "an even choice"
        assert rows[0].recording == "/plant/pump 3/0.wav#DE"
        assert store.events() == [replace(ALARMED, number=1)]
        assert store.states("pump 3")["DE"].status == store.fleet("pump 3")[0] == rows[-1].status
        assert "/plant/pump 3/2.wav" in [file.path for file in store.files()]


def test_people_acknowledge_relearn_and_forget(address):
    with Store.open(address, create=True) as store:
        filled(store, 4, alarm=2)
        filled(store, 4, "pump 4")
        assert store.acknowledge("pump 3", note="bearing ordered") == 1
        assert store.fleet("pump 3")[0].acknowledged is not None
        assert "bearing ordered" in store.events("pump 3")[-1].sentence
        assert store.relearn("pump 3", "DE").kind == "baseline"
        with pytest.raises(InputError, match="pump 3"):
            store.acknowledge("pump 33")
        assert store.forget("pump 3") == 1
        assert [each.machine for each in store.fleet()] == ["pump 4"]
        assert {file.path.split("/")[2] for file in store.files()} == {"pump 4"}, (
            "a file that is still there is read again"
        )
        assert len(store.trend("pump 4", "DE")) == 4
        with store.transaction() as connection:
            connection.execute(sql.text("UPDATE points SET memory = :nothing"), {"nothing": b"damaged"})
        with pytest.raises(InputError, match="damaged"):
            store.relearn("pump 4", "DE")
        assert store.forget("pump 4") == 1


def test_a_file_is_added_whole_or_not_at_all(address):
    with Store.open(address, create=True) as store:
        filled(store, 2)
        state = judged(store.states("pump 3")["DE"], each := snapshot(5))
        with suppress(ZeroDivisionError), store.transaction():
            add(store, each, state.status)
            store.keep([state], [Event("pump 3", "DE", 5.0, "alarm")])
            raise ZeroDivisionError
        assert len(store.trend("pump 3", "DE")) == 2
        assert store.events() == []
        assert store.states("pump 3")["DE"].status.recordings == 2


def test_one_process_watches_and_others_read_and_acknowledge(address):
    with Store.open(address, create=True) as store, store.watching():
        filled(store, 4, alarm=2)
        with Store.open(address, write=True) as other:
            with pytest.raises(InputError, match="another bearcat watch"), other.watching():
                pass
            assert other.acknowledge("pump 3") == 1
        with Store.open(address) as reader:
            assert len(reader.fleet()) == 1
    with Store.open(address, write=True) as store, store.watching():
        pass


@pytest.mark.parametrize(
    ("written", "instead"),
    [(b"CREATE TABLE points", b"CREATE TABLE p\x81ints\x81"), (b"x\x01", b"x\x02")],
)
def test_a_damaged_store_is_a_sentence_whatever_its_bytes_are(tmp_path, written, instead):
    """What the database says of it, and the texts in it, need not be UTF-8."""
    with Store.open(tmp_path / "store.db", create=True) as store:
        filled(store, 3)
    content = (tmp_path / "store.db").read_bytes()
    assert written in content
    (tmp_path / "store.db").write_bytes(content.replace(written, instead[: len(written)]))
    with pytest.raises(InputError, match=r"store\.db.*damaged"), Store.open(tmp_path / "store.db") as store:
        store.fleet()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("points", "status", "fine"), ("points", "status", b'{"machine": "a", "point": "b", "status": "fine"}'),
        ("points", "status", b"[" * 100_000), ("snapshots", "measured", b"odd"), ("points", "memory", "text"),
        ("points", "status", b"[]"),
    ],
)  # fmt: skip
def test_a_damaged_store_is_never_ok(tmp_path, table, column, value):
    """SQLite keeps any value in any column; an unknown status would count as ok."""
    place = tmp_path / "store.db"
    with Store.open(place, create=True) as store:
        filled(store, 3, alarm=1)
    with closing(sqlite3.connect(place)) as connection, connection:
        content = zlib.compress(value) if isinstance(value, bytes) else value
        connection.execute(f"UPDATE {table} SET {column} = ?", (content,))
    with pytest.raises(InputError, match=r"store\.db.*damaged"), Store.open(place) as store:
        fleet_page(store)


def test_what_is_no_store_is_refused_and_left_alone(tmp_path):
    text, other, empty = tmp_path / "notes.txt", tmp_path / "other.db", tmp_path / "empty.db"
    text.write_text("no store")
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    before = other.read_bytes()
    empty.touch()
    os.mkfifo(tmp_path / "pipe")
    for place in (text, other, tmp_path / "missing.db", tmp_path, tmp_path / "pipe", empty):
        with pytest.raises(InputError, match=place.name), Store.open(place):
            pass
    for place in (text, other, tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match=place.name), Store.open(place, create=True):
            pass
    assert other.read_bytes() == before
    with pytest.raises(InputError, match="mysql"), Store.open("mysql://root:secret@localhost/plant"):
        pass
    with pytest.raises(InputError) as refused, Store.open("postgresql://bearcat:secret@127.0.0.1:1/plant"):
        pass
    assert "secret" not in str(refused.value)
