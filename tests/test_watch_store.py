"""The store of watched machines: in SQLite, and in a real PostgreSQL server where there is one on this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
import sqlalchemy as sql

from bearcat.errors import InputError
from bearcat.report.fleet import fleet_page
from bearcat.trust.decision import ALARM, OK
from bearcat.watch import schema
from bearcat.watch import store as stores
from bearcat.watch.memory import PointMemory
from bearcat.watch.schema import POINTS
from bearcat.watch.snapshot import Assessment, Event, PointStatus, Snapshot
from bearcat.watch.store import RecordingFile, Store
from bearcat.watch.usual import WatchRule
from tests import commands, preloaded

DAY = 86_400.0


def postgres_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a server of our own, which listens to a socket in its folder only."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL server on this machine (make postgresql installs one)")
    folder = Path(tempfile.mkdtemp(prefix="bearcat-pg-", dir="/tmp"))
    own: dict[str, str] = {}
    if os.geteuid() == 0:  # it refuses to be run by root
        own = {
            "user": next(name for name in ("postgres", "nobody") if name in {each.pw_name for each in pwd.getpwall()})
        }
        shutil.chown(folder, own["user"])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    call = [programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "bearcat", "-E", "UTF8", "--no-sync"]
    subprocess.run(call, check=True, cwd=folder, **quiet, **own)
    settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    server = subprocess.Popen([programs / "postgres", "-D", folder / "data", *settings], cwd=folder, **quiet, **own)
    try:
        address = f"postgresql://bearcat@/postgres?host={folder}"
        deadline = time.monotonic() + 30
        while not (folder / ".s.PGSQL.5432").exists() or not answers(address):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        shutil.rmtree(folder)


def answers(address: str) -> bool:
    engine = sql.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
    try:
        engine.connect().close()
    except sql.exc.OperationalError:
        return False
    finally:
        engine.dispose()
    return True


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store that is not there yet."""
    if request.param == "sqlite":
        return str(tmp_path / "plant.db")
    server: str = request.getfixturevalue("postgres")
    name = f"plant_{time.monotonic_ns()}"
    engine = sql.create_engine(server.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.replace("/postgres?", f"/{name}?")


def snapshot(number: int, machine: str = "pump 3", point: str = "DE", rms: float = 1.0) -> Snapshot:
    return Snapshot(
        machine=machine, point=point, time=number * DAY, recording=f"/plant/{machine}/{number}.wav#{point}", digest=f"{number}",
        rate=1000.0, unit=None, values={"rms": rms, "rpm": 1500.0}, orders=None, rpm=1500.0, envelope=bytes([number % 256, 7]),
    )  # fmt: skip


def file_of(number: int, machine: str = "pump 3") -> RecordingFile:
    return RecordingFile(f"/plant/{machine}/{number}.wav", machine, f"{machine}{number}", 10, number, number * DAY)


def assessed(memory: PointMemory, status: str = OK, events: tuple[Event, ...] = ()) -> Assessment:
    """What a memory says, with another status: when there is an alarm is not this file's affair."""
    found = memory.assess()
    memory.status = PointStatus(**vars(found.status) | {"status": status, "alarm": None})
    return Assessment(memory.status, "1500 rpm", {}, 0.25, 1.5, 6.0, "healthy", 0.75, {"rms": (0.5, 2.0)}, events)


def filled(store: Store, days: int, machine: str = "pump 3", alarm: int | None = None) -> None:
    memory = PointMemory(machine, "DE", store.rule or WatchRule())
    for number in range(days):
        memory.observe(each := snapshot(number, machine))
        events = (Event(machine, "DE", each.time, "alarm", "outer race"),) if number == alarm else ()
        says = assessed(memory, ALARM if alarm is not None and number >= alarm else OK, events)
        store.add(file_of(number, machine), [(each, says)], [memory])


def test_a_store_gives_back_what_was_added(address):
    with Store.open(address, create=True) as store:
        store.set_rule(WatchRule(false_alarms=0.5))
        filled(store, 5, "pump 1")
        filled(store, 10, alarm=7)
        late = snapshot(3, rms=9.0)
        store.add(RecordingFile("/plant/late.wav", "pump 3", "late", 1, 1), [(late, None)])
    with Store.open(address) as store:
        assert store.rule == WatchRule(false_alarms=0.5)
        assert [(each.machine, each.status) for each in store.fleet()] == [("pump 3", ALARM), ("pump 1", OK)]
        assert store.fleet().exit_status == 1
        assert store.fleet("pump 1").exit_status == 0
        rows = store.trend("pump 3", "DE")
        assert [row.time / DAY for row in rows] == sorted([*range(10), 3])
        assert [row.values["rms"] for row in rows if row.late] == [9.0]
        assert rows[0].band == {"rms": (0.5, 2.0)}
        assert rows[0].recording == "/plant/pump 3/0.wav#DE"
        assert store.trend("pump 3", "DE", since=8 * DAY)[0].time == 8 * DAY
        assert store.envelopes("pump 3", "DE")[-1] == (9 * DAY, 1500.0, bytes([9, 7]))
        assert [event.kind for event in store.events(open_only=True)] == ["alarm"]
        assert store.memory("pump 3", "DE").status == store.fleet("pump 3")[0]
        assert [each.machine for each in store.sisters("DE", "pump 3")] == ["pump 1"]
        assert store.known(["/plant/pump 3/2.wav", "/plant/other.wav"]).keys() == {("/plant/pump 3/2.wav", "pump 3")}
        assert store.recording("pump 32", "pump 3").path == "/plant/pump 3/2.wav"
        assert len(list(store.export())) == 16


def test_every_field_of_a_status_has_a_column():
    """A new field needs a migration."""
    assert {field.name for field in fields(PointStatus)} == {column.name for column in POINTS.columns} - {"id"}


def test_a_thinned_trend_is_even_and_keeps_alarms(address):
    with Store.open(address, create=True) as store:
        filled(store, 40, alarm=30)
        rows = store.trend("pump 3", "DE", most=5)
        assert {row.time / DAY for row in rows} >= {0, 39, 30}
        assert len(rows) <= 6


def test_events_wait_until_they_are_sent(address):
    with Store.open(address, create=True) as store:
        filled(store, 4, alarm=2)
        (event,) = store.unsent()
        store.mark_sent([event.number])
        assert store.unsent() == []


def test_people_acknowledge_relearn_and_forget(address):
    with Store.open(address, create=True) as store:
        filled(store, 4, alarm=2)
        filled(store, 4, "pump 4")
        assert store.acknowledge("pump 3", note="bearing ordered") == 1
        assert store.events(open_only=True) == []
        assert "bearing ordered" in store.events("pump 3")[-1].sentence
        assert store.relearn("pump 3", "DE").kind == "baseline"
        with pytest.raises(InputError, match="pump 3"):
            store.acknowledge("pump 33")
        assert store.forget("pump 3") == 1
        assert [each.machine for each in store.fleet()] == ["pump 4"]
        assert store.recording("pump 32", "pump 3") is None, "a file that is still there is read again"
        assert len(list(store.export())) == 4
        with store.transaction() as connection:
            connection.execute(sql.text("UPDATE memories SET content = :nothing"), {"nothing": b"damaged"})
        with pytest.raises(InputError, match="pump 4/DE"):
            store.relearn("pump 4", "DE")
        assert store.forget("pump 4") == 1


def test_a_file_is_added_whole_or_not_at_all(address):
    with Store.open(address, create=True) as store:
        filled(store, 2)
        memory = store.memory("pump 3", "DE")
        memory.observe(each := snapshot(5))
        with suppress(ZeroDivisionError), store.transaction():
            store.add(file_of(5), [(each, assessed(memory))], [memory], [Event("pump 3", "DE", 5.0, "alarm", "x")])
            raise ZeroDivisionError
        assert len(store.trend("pump 3", "DE")) == 2
        assert store.events() == []
        assert store.memory("pump 3", "DE").status.recordings == 2


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


def test_a_memory_that_another_process_changed_is_read_anew(address):
    with Store.open(address, create=True) as store, Store.open(address, write=True) as other:
        filled(store, 4, alarm=2)
        filled(store, 4, "pump 4")
        assert store.sisters("DE", "pump 4")[0].status.acknowledged is None
        other.acknowledge("pump 3")
        assert store.sisters("DE", "pump 4")[0].status.acknowledged is not None


def test_an_older_store_is_migrated_and_a_newer_one_refused(address, monkeypatch):
    def add_a_column(connection: sql.Connection) -> None:
        connection.execute(sql.text("ALTER TABLE points ADD COLUMN owner TEXT"))

    with Store.open(address, create=True) as store:
        filled(store, 3)
    with monkeypatch.context() as later:
        later.setattr(stores, "MIGRATIONS", [*stores.MIGRATIONS, add_a_column])
        with pytest.raises(InputError, match="older version"):
            Store.open(address)
        with Store.open(address, write=True) as store:
            assert len(store.trend("pump 3", "DE")) == 3
            with store.transaction() as connection:
                assert connection.scalar(sql.text("SELECT count(*) FROM points WHERE owner IS NULL")) == 1
        Store.open(address, write=True).close()  # nothing is done twice
    for write in (False, True):
        with pytest.raises(InputError, match="newer bearcat"):
            Store.open(address, write=write)


@pytest.mark.parametrize(
    ("written", "instead"), [(b"CREATE TABLE points", b"CREATE TABLE p\x81ints\x81"), (b'["fine"]', b'[fine"] ')]
)
def test_a_damaged_store_is_a_sentence_whatever_its_bytes_are(tmp_path, written, instead):
    """What the database says of it, and the texts in it, need not be UTF-8."""
    with Store.open(tmp_path / "store.db", write=True, create=True) as store:
        filled(store, 3)
        with store.transaction() as connection:
            connection.execute(sql.text("UPDATE points SET reasons = '[\"fine\"]'"))
    content = (tmp_path / "store.db").read_bytes()
    assert written in content
    (tmp_path / "store.db").write_bytes(content.replace(written, instead[: len(written)]))
    with pytest.raises(InputError, match=r"store\.db.*damaged"), Store.open(tmp_path / "store.db") as store:
        store.fleet()


def read_all(place: Path) -> None:
    with Store.open(place) as store:
        fleet_page(store, "pump 3")
        list(store.export())
        store.known([file_of(0).path])


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("points", "status", "fine"), ("points", "confidence", "high"), ("points", "time", 1e300), ("points", "since", 9e999),
        ("points", "reasons", '["a", 3]'), ("points", "reasons", "[" * 100_000), ("points", "machine", b"\xff"),
        ("points", "recordings", "many"), ("snapshots", "measured", 2**40), ("snapshots", "band", b"odd"),
        ("snapshots", "time", "soon"), ("snapshots", "evidence", b""), ("memories", "content", 2**40),
        ("memories", "content", "text"), ("events", "time", -1e300), ("events", "sentence", b"\xff"), ("names", "name", b"x"),
        ("recordings", "path", b"\xff"), ("meta", "value", b"1"), ("meta", "value", "9" * 5000),
    ],
)  # fmt: skip
def test_a_cell_that_bearcat_has_not_written_is_a_sentence(tmp_path, command, table, column, value):
    """SQLite keeps any value in any column; an unknown status would count as ok."""
    place = tmp_path / "store.db"
    with Store.open(place, write=True, create=True) as store:
        store.set_rule(WatchRule())
        filled(store, 3, alarm=1)
    with sqlite3.connect(place) as connection:
        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
    connection.close()
    with pytest.raises(InputError, match=r"store\.db.*(damaged|no store)"):
        read_all(place)
    status, _, said = command("report", place, "--out", tmp_path / "page.html")
    assert (status, "Traceback" in said) in ((0, False), (2, False))


@pytest.mark.parametrize(
    "rule", ['{"false_alarms": -1}', '{"baseline": 1e99}', '{"period": 1e300}', "[]", "NaN", "[" * 99_999]
)
def test_a_rule_that_nobody_can_have_set_is_a_sentence(tmp_path, rule):
    with Store.open(tmp_path / "store.db", write=True, create=True) as store:
        store.set_rule(WatchRule())
        with store.transaction() as connection:
            connection.execute(sql.text("UPDATE meta SET value = :rule WHERE name = 'rule'"), {"rule": rule})
        with pytest.raises(InputError, match=r"store\.db.*damaged"):
            _ = store.rule
        with pytest.raises(InputError, match="damaged"), store.transaction():
            _ = store.rule


def test_what_is_no_store_is_refused_and_left_alone(tmp_path):
    text, other, empty = tmp_path / "notes.txt", tmp_path / "other.db", tmp_path / "empty.db"
    text.write_text("no store")
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    before = other.read_bytes()
    empty.touch()
    os.mkfifo(tmp_path / "pipe")
    for place in (text, other, tmp_path / "missing.db", tmp_path, tmp_path / "pipe", empty):
        with pytest.raises(InputError, match=place.name):
            Store.open(place)
    for place in (text, other, tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match=place.name):
            Store.open(place, create=True)
    assert other.read_bytes() == before
    with pytest.raises(InputError, match="mysql"):
        Store.open("mysql://root:secret@localhost/plant")
    with pytest.raises(InputError) as refused:
        Store.open("postgresql://bearcat:secret@127.0.0.1:1/plant")
    assert "secret" not in str(refused.value)


def test_a_store_is_for_its_owner_and_survives_a_kill(tmp_path, monkeypatch):
    """synchronous FULL and WAL: what was committed is there; the file is not readable for others."""
    place = tmp_path / "plant.db"
    monkeypatch.setattr(schema, "SYNCHRONOUS", preloaded.SYNCHRONOUS)  # as it is outside of tests
    with Store.open(place, create=True) as store:
        assert place.stat().st_mode & 0o777 == 0o600
        with store.transaction() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    assert commands.ended(fill_and_die, str(place)) == -signal.SIGKILL
    with Store.open(place) as store:
        assert len(store.trend("pump 3", "DE")) == 3


def fill_and_die(place: str) -> None:
    with Store.open(place, create=True) as store:
        filled(store, 3)
        with store.transaction():
            store.add(file_of(9))
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    place = tmp_path / "plant.db"
    with Store.open(place, create=True) as store:
        filled(store, 3)
    assert commands.ended(fill_with_little_room, str(place)) == 0
    with Store.open(place, write=True) as store:
        assert [each.machine for each in store.fleet()][:1] == ["pump 3"]
        assert len(store.trend("pump 3", "DE")) == 3
        filled(store, 2, "pump 5")


def fill_with_little_room(place: str) -> None:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, -1))
    with Store.open(place, write=True) as store, pytest.raises(InputError, match="disk is full"):
        filled(store, 400, "pump 4")


def test_the_fleet_and_a_trend_read_no_more_than_they_need(address):
    """The plan: the fleet is read from the points alone, a trend by its index."""
    with Store.open(address, create=True) as store:
        filled(store, 3)
        asked = list[str]()
        sql.event.listen(store.engine, "before_cursor_execute", lambda *words: asked.append(words[2]))
        store.fleet()
        assert not any("snapshots" in statement for statement in asked)
        asked.clear()
        store.trend("pump 3", "DE")
        if store.path is None:
            return  # with three rows PostgreSQL reads a table whole, whatever its indices
        plans = []
        with store.engine.connect() as connection:
            for statement in [each for each in asked if "snapshots" in each]:
                values = [1] * statement.count("?")
                plans += [
                    row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", tuple(values))
                ]
        assert any("snapshots_by_point" in plan for plan in plans), plans
        assert not any(plan.startswith("SCAN") for plan in plans), plans
