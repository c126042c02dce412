"""`bearcat watch` from files to the exit status: once, again, late, half-written, hostile; acceptance/test_watch.py
kills it and fills the disk."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from bearcat.settings import WatchRequest
from bearcat.watch import watching
from bearcat.watch.notify import Notifier
from bearcat.watch.store import Store
from bearcat.watch.watching import Watching, watching_into
from tests import commands

START = datetime(2024, 5, 1, 10, tzinfo=UTC)
RATE, LEARNT = 4000, 8  # Hz; recordings of the baseline


def record(root: Path, machine: str, point: str, day: float, level: float = 0.1, name: str = "") -> Path:
    """One second of noise; what is recorded on a day is the same every time."""
    generator = np.random.default_rng([len(machine), len(point), int(1000 * day)])
    moment = START + timedelta(days=day)
    path = root / machine / point / (name or f"{moment:%Y-%m-%dT%H-%M-%S}.wav")
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, RATE, (level * generator.standard_normal(RATE)).astype(np.float32))
    os.utime(path, (1.7e9, 1.7e9))  # it is complete
    return path


@pytest.fixture(scope="module")
def plant(tmp_path_factory) -> Path:
    """Two machines, one of which becomes louder and louder after its baseline."""
    root = tmp_path_factory.mktemp("plant") / "plant"
    for day in range(LEARNT + 8):
        record(root, "pump 1", "DE", day)
        record(root, "pump 1", "NDE", day)
        record(root, "fan 20", "DE", day, 0.1 * 1.5 ** max(0, day - LEARNT))
    return root


def watch(root: Path, place: Path, *words: object, fresh: bool = False) -> Any:
    known = "--rpm", 1500, "--baseline", LEARNT
    return commands.bearcat("watch", root, "--store", place, "--once", *known, *words, fresh=fresh)


def query(place: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(place)) as connection, connection:
        return connection.execute(statement).fetchall()


def content(place: Path) -> dict[str, list[Any]]:
    """All that a store holds."""
    tables = ("store", "points", "files", "snapshots", "events")
    return {name: query(place, f"SELECT * FROM {name} ORDER BY 1") for name in tables}


@pytest.fixture(scope="module")
def watched(plant, tmp_path_factory) -> tuple[Path, Any]:
    """A store with the whole plant, and what was printed."""
    place = tmp_path_factory.mktemp("store") / "plant.db"
    return place, watch(plant, place)


def test_once_prints_machines_worst_first_and_ends_by_the_worst(plant, watched):
    place, ended = watched
    first, header, worst, *_ = ended.stdout.splitlines()
    assert first.startswith("3 points: 1 alarm")
    assert header.split()[:3] == ["machine", "point", "status"]
    assert (worst.split()[:2], ended.returncode) == (["fan", "20"], 1)
    with Store.open(place) as store:
        assert len(store.trend("pump 1", "DE")) == LEARNT + 8
        assert "alarm" in [event.kind for event in store.events("fan 20", "DE")]
    before = content(place)
    again = watch(plant, place, "--format", "json")
    point = json.loads(again.stdout)["points"][0]
    assert (point["machine"], point["findings"][0]["severity"], len(point["reasons"])) == ("fan 20", "alarm", 1)
    assert content(place) == before, "nothing is read twice"
    rows = list(csv.DictReader(watch(plant, place, "--format", "csv").stdout.splitlines()))
    assert rows[0]["status"] == "alarm"


def rows_in(place: Path) -> int:
    with suppress(sqlite3.OperationalError):  # its tables are not there yet
        return len(query(place, "SELECT id FROM snapshots")) if place.exists() else 0
    return 0


def until(done: Callable[[], bool], process: Any) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        assert process.exitcode is None
        time.sleep(0.01)


@pytest.fixture
def small(tmp_path) -> tuple[Path, Path]:
    """A folder with three recordings, and a store that has them."""
    root, place = tmp_path / "plant", tmp_path / "plant.db"
    for day in range(3):
        record(root, "pump", "DE", day)
    watched_by(root, place)
    return root, place


def trend(place: Path, point: str = "DE") -> Any:
    with Store.open(place) as store:
        return store.trend("pump", point)


def watched_by(root: Path, place: Path) -> tuple[Watching, list[str]]:
    """The folder read into the store in this process, and what was said."""
    said = list[str]()
    with watching_into(place, root, WatchRequest.of(rpm=1500), lambda sentence, _: said.append(sentence)) as looking:
        looking.look()
    return looking, said


def test_late_double_and_touched_recordings_are_left_out(small):
    root, place = small
    record(root, "pump", "DE", 0.5)  # a clock that jumped back
    record(root, "pump", "DE", 2, 0.2, name="2024-05-03T10-00-00-b.wav")  # another of the same time
    os.utime(root / "pump" / "DE" / "2024-05-02T10-00-00.wav", (1.6e9, 1.6e9))
    _, said = watched_by(root, place)
    assert len([sentence for sentence in said if "not later" in sentence]) == 1
    record(root, "pump", "DE", 3)
    watched_by(root, place)
    assert [row.status.recordings for row in trend(place)] == [1, 2, 3, 4]


def test_a_file_without_a_time_is_read_once_though_it_is_touched_or_copied(small):
    root, place = small
    first = record(root, "pump", "FE", 0, name="first.wav")
    for name, when in (("first.wav", 1.7e9), ("first.wav", 1.71e9), ("copy.wav", 1.72e9)):
        first.with_name(name).write_bytes(first.read_bytes())
        os.utime(first.with_name(name), (when, when))
        watched_by(root, place)
    assert len(trend(place, "FE")) == 1


def test_events_are_sent_while_many_files_are_read_and_when_reading_ends_early(small, monkeypatch):
    root, place = small
    sent, judge = list[int](), watching.judge
    monkeypatch.setattr(Notifier, "send", lambda *_: sent.append(judged))
    for day in range(3, 6):
        record(root, "pump", "DE", day)
    judged = 0

    def judging(*about: Any) -> Any:
        nonlocal judged
        if (judged := judged + 1) == 3:
            raise MemoryError
        return judge(*about)

    monkeypatch.setattr(watching, "judge", judging)
    monkeypatch.setattr(watching, "PAUSE", -1.0)
    with pytest.raises(MemoryError):
        watched_by(root, place)
    assert sent == [1, 2, 3]


def test_a_file_that_cannot_be_read_is_named_and_tried_again_when_it_changes(small):
    root, place = small
    broken = record(root, "pump", "DE", 5)
    whole = broken.read_bytes()
    broken.write_bytes(b"RIFF, but no more")
    os.utime(broken, (1.7e9, 1.7e9))
    assert watch(root, place).returncode == 3
    looked, _ = watched_by(root, place)
    assert looked.problems == 0, "it has not changed, and is not read again"
    with Store.open(place) as store:
        (event,) = store.events("pump", "DE")
        assert event.kind == "problem"
        assert str(broken) in event.sentence
    broken.write_bytes(whole)
    os.utime(broken, (1.7e9, 1.7e9))
    watched_by(root, place)
    assert len(trend(place)) == 4


def test_a_bug_met_in_one_file_makes_its_point_a_check_and_the_other_files_go_on(small, monkeypatch, capsys):
    root, place = small
    odd, _ = record(root, "pump", "NDE", 0), record(root, "pump", "DE", 3)
    measure = watching.measure
    monkeypatch.setattr(
        watching, "measure", lambda file, *about: 1 / 0 if str(odd) in file.points else measure(file, *about)
    )
    looked, _ = watched_by(root, place)
    assert (looked.problems, "ZeroDivisionError" in capsys.readouterr().err) == (1, True)
    with Store.open(place) as store:
        (nde,) = store.fleet("pump/NDE")
    assert (nde.status, [finding.kind for finding in nde.findings]) == ("check", ["unreadable"])
    assert len(trend(place)) == 4


def test_in_python_the_fleet_is_a_table_and_a_number_sign_divides_no_folder(tmp_path):
    file = tmp_path / "plant" / "pump #1" / "2024-05-01T10-00-00.npz"
    file.parent.mkdir(parents=True)
    drive, fan = np.random.default_rng(1).standard_normal((2, RATE))
    np.savez(file, drive=drive, fan=fan, fs=float(RATE))
    os.utime(file, (1.7e9, 1.7e9))
    fleet = bearcat.watch(tmp_path / "plant", tmp_path / "plant.db", rpm=1500)
    rows = [(row["machine"], row["point"], row["recordings"]) for row in fleet.rows()]
    assert sorted(rows) == [("pump #1", "drive", 1), ("pump #1", "fan", 1)]
    assert repr(fleet).startswith("2 points: 2 check.")


def test_a_row_whose_file_is_missing_is_a_point_to_be_checked_until_the_file_is_there(tmp_path):
    root, place = tmp_path / "plant", tmp_path / "plant.db"
    paths = [record(root, "pump", "DE", day) for day in range(2)]
    rows = [f"{path.relative_to(root)},pump,{point}" for path, point in zip(paths, ("DE", "NDE"), strict=True)]
    (root / "manifest.csv").write_text("\n".join(["path,machine,point", *rows]))
    missing = paths[1].rename(tmp_path / "elsewhere.wav")
    for problems in (1, 0):  # it is said once
        assert watched_by(root, place)[0].problems == problems
    with Store.open(place) as store:
        (unread,) = store.fleet("pump/NDE")
        assert (unread.status, [finding.kind for finding in unread.findings]) == ("check", ["unreadable"])
        assert len(store.events("pump", "NDE")) == 1
    missing.rename(paths[1])
    watched_by(root, place)
    assert [len(trend(place, point)) for point in ("DE", "NDE")] == [1, 1]


def test_it_goes_on_as_files_arrive_and_half_written_ones_wait(small, tmp_path):
    root, place = small
    out, errors = tmp_path / "out", tmp_path / "err"
    process = commands.start("watch", root, "--store", place, "--rpm", 1500, output=out, errors=errors)
    until(lambda: "1 point" in out.read_text() if out.exists() else False, process)
    path = record(root, "pump", "NDE", 3)
    whole, half = path.read_bytes(), path.stat().st_size // 2
    path.write_bytes(whole[:half])
    time.sleep(1.0)
    with path.open("ab") as file:
        file.write(whole[half:])
    until(lambda: rows_in(place) == 4, process)
    assert commands.bearcat("watch", "acknowledge", place, "pump").returncode == 0
    os.kill(process.pid, signal.SIGINT)
    process.join(30)
    assert process.exitcode == 3, errors.read_text()  # without a bearing nothing is diagnosed yet
    assert "pump/NDE check" in out.read_text()
    (row,) = trend(place, "NDE")
    assert row.values["rms"] == pytest.approx(0.1, rel=0.1), "it was complete when it was read"


def test_bad_input_is_one_sentence_and_status_2(small, tmp_path, command):
    root, place = small
    (tmp_path / "empty").mkdir()
    newer = tmp_path / "newer.db"
    shutil.copy(place, newer)
    query(newer, "UPDATE store SET version = '99'")
    watched = (root, "--store", place, "--once")
    for words, named in (
        ((tmp_path / "empty", "--store", tmp_path / "a.db", "--once"), "no recording"),
        ((tmp_path / "nothing", "--store", tmp_path / "a.db", "--once"), "nothing"),
        ((root, "--store", newer, "--once"), "another version"),
        ((root, "--store", root / "pump/DE/2024-05-01T10-00-00.wav", "--once"), "no store"),
        ((*watched, "--false-alarms", "often"), "false_alarms"),
        ((*watched, "--baseline", "3"), "baseline"),
        ((*watched, "--healthy", "perhaps"), "--healthy"),
        ((root, "--store", tmp_path / "none.db", "--once", "--bearing", "nonsense"), "nonsense"),
        (("acknowledge", place, "fan"), "fan"),
    ):
        status, _, said = command("watch", *words)
        assert (status, said.count("\n"), named in said) == (2, 1, True), (words, said)
    assert not (tmp_path / "none.db").exists()


def test_people_use_the_store(watched, tmp_path):
    place = tmp_path / "plant.db"
    query(watched[0], f"VACUUM INTO '{place}'")
    assert commands.bearcat("watch", "acknowledge", place, "fan 20/DE", "--note", "grease").returncode == 0
    with Store.open(place) as store:
        assert store.fleet().exit_status != 1
        assert "grease" in store.events("fan 20", "DE")[-1].sentence
    rows = list(csv.DictReader(commands.bearcat("watch", "export", place).stdout.splitlines()))
    assert len(rows) == 3 * (LEARNT + 8)
    assert {"machine", "point", "time", "rms", "p_value", "reasons", "recording"} <= set(rows[0])
    alarmed = next(row for row in rows if row["status"] == "alarm")
    assert json.loads(alarmed["findings"])[0]["severity"] == "alarm"
    assert commands.bearcat("watch", "baseline", place, "pump 1").returncode == 0
    assert commands.bearcat("watch", "forget", place, "fan 20", "--yes").returncode == 0
    with Store.open(place) as store:
        points = [(point.machine, point.point, point.baseline is not None) for point in store.fleet()]
        assert points == [("pump 1", "DE", False), ("pump 1", "NDE", False)]
