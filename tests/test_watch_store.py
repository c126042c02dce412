"""The store of watched machines, in SQLite; acceptance/test_watch_postgresql.py has the same in PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bearcat.diagnosis.decision import ALARM, OK
from bearcat.diagnosis.recording import Observation
from bearcat.errors import InputError
from bearcat.findings import Finding
from bearcat.report.fleet import fleet_page
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


def add(store: Store, status: PointStatus, events: Sequence[Event] = ()) -> None:
    """A file with one recording of a point, and what is known of the point then."""
    path, names = f"/plant/{status.machine}/{status.recordings}.wav", (status.machine, status.point)
    snapshot = Snapshot(*names, status.time, Observation(f"{path}#DE"), {"rms": status.recordings})
    store.add(Arrival(path, *names, status.time, 10, 1), [(snapshot, status)])
    store.keep([PointState(status)], events)


def filled(store: Store, days: int, machine: str = "pump 3", alarm: int | None = None) -> None:
    """A recording a day, and an alarm from one day on."""
    for day in range(days):
        status = ALARM if alarm is not None and day >= alarm else OK
        events = [replace(ALARMED, machine=machine, time=day * DAY)] if day == alarm else []
        add(store, PointStatus(machine, "DE", status, time=day * DAY, recordings=day), events)


def test_a_store_gives_back_what_was_added(address):
    with Store.open(address, create=True) as store:
        filled(store, 5, "pump 1")
        filled(store, 10, alarm=7)
    with Store.open(address) as store:
        assert [(each.machine, each.status) for each in store.fleet()] == [("pump 3", ALARM), ("pump 1", OK)]
        assert store.fleet().exit_status == 1
        assert store.fleet("pump 1").exit_status == 0
        rows = store.trend("pump 3", "DE")
        assert [(row.time / DAY, row.values["rms"]) for row in rows] == [(day, day) for day in range(10)]
        assert [row.time / DAY for row in store.trend("pump 1", "DE", most=3)] == [0, 2, 4], "an even choice"
        assert rows[0].recording == "/plant/pump 3/0.wav"
        assert store.events("pump 3", "DE") == [ALARMED]
        assert store.states("pump 3")["DE"].status == store.fleet("pump 3")[0] == rows[-1].status
        assert ("/plant/pump 3/2.wav", "pump 3/DE", 10, 1) in store.known("")


def test_people_acknowledge_relearn_and_forget(address, monkeypatch):
    with Store.open(address, create=True) as store:
        filled(store, 4, alarm=2)
        filled(store, 4, "pump 4")
        for number, part in enumerate(("N", "DE2", "", "N#x[0:],D_#y[0:]", "D_")):  # a file names its point, or none
            store.add(Arrival(f"/{number}.wav", "pump 4", part, 0.0, 1, 1), refused="")
            store.keep([PointState(PointStatus("pump 4", "D_"))])
        asked, states = list[str](), Store.states
        monkeypatch.setattr(Store, "states", lambda store, name: asked.append(name) or states(store, name))
        assert (store.relearn("pump 4"), asked) == (2, ["pump 4"]), "a machine is unpacked once"
        assert store.forget("pump 4/D_") == 1
        assert {path for path, *_ in store.known("") if len(path) == 6} == {"/0.wav", "/1.wav"}
        assert store.acknowledge("pump 3", note="bearing ordered") == 1
        assert store.fleet("pump 3")[0].acknowledged is not None
        assert "bearing ordered" in store.events("pump 3", "DE")[-1].sentence
        assert store.relearn("pump 3/DE") == 1
        with pytest.raises(InputError, match="pump 3"):
            store.acknowledge("pump 33")
        assert store.forget("pump 3") == 1
        assert [each.machine for each in store.fleet()] == ["pump 4"]
        parts = {part for _, part, *_ in store.known("")}
        assert parts == {"pump 4/DE", "pump 4/DE2", "pump 4/N"}, "a file that is still there is read again"


def test_a_file_is_added_whole_or_not_at_all(address):
    with Store.open(address, create=True) as store:
        filled(store, 2)
        with suppress(ZeroDivisionError), store.transaction():
            add(store, PointStatus("pump 3", "DE", time=5 * DAY, recordings=5), [ALARMED])
            raise ZeroDivisionError
        assert (len(store.trend("pump 3", "DE")), store.events("pump 3", "DE")) == (2, [])
        assert store.states("pump 3")["DE"].status.recordings == 1


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


def test_a_damaged_store_is_a_sentence_whatever_its_bytes_are(tmp_path):
    with Store.open(tmp_path / "store.db", create=True) as store:
        filled(store, 3)
    content = (tmp_path / "store.db").read_bytes()
    (tmp_path / "store.db").write_bytes(content.replace(b"TABLE points", b"TABLE p\x81ints"))
    with pytest.raises(InputError, match=r"store\.db.*damaged"), Store.open(tmp_path / "store.db") as store:
        store.fleet()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("points", "status", "fine"), ("points", "status", b'{"machine": "a", "point": "b", "status": "fine"}'),
        ("points", "status", b"[" * 100_000), ("snapshots", "'values'", b"odd"), ("points", "memory", "text"),
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
    never = (text, other, tmp_path, tmp_path / "pipe")
    for place, create in [(place, True) for place in never] + [
        (place, False) for place in (*never, empty, tmp_path / "a")
    ]:
        with pytest.raises(InputError, match=place.name), Store.open(place, create=create):
            pass
    assert other.read_bytes() == before
    for address in ("mysql://root:secret@localhost/plant", "postgresql://bearcat:secret@127.0.0.1:1/plant"):
        with pytest.raises(InputError) as refused, Store.open(address):
            pass
        assert "secret" not in str(refused.value)
