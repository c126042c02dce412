"""`bearcat watch` in several processes, killed, and on a full disk: its store is the same in the end."""

# ruff: noqa: F811 (fixtures of another module)
from __future__ import annotations

import os
import signal

import pytest

from bearcat.errors import InputError
from bearcat.watch.store import Store
from tests import commands
from tests.test_watch import LEARNT, content, plant, rows_in, until, watch, watched  # noqa: F401 (fixtures)
from tests.test_watch_store import file_of, filled


def test_processes_find_the_same_in_the_same_order(plant, watched, tmp_path):
    place = tmp_path / "plant.db"
    assert watch(plant, place, "--jobs", 2).returncode == 1
    assert content(place) == content(watched[0])


def test_a_kill_loses_and_repeats_nothing(plant, watched, tmp_path):
    place = tmp_path / "plant.db"
    process = commands.start("watch", plant, "--store", place, "--once", "--rpm", 1500, "--baseline", LEARNT)
    until(lambda: rows_in(place) >= 6, process)
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert 6 <= rows_in(place) < 3 * (LEARNT + 8), "it was killed in the middle"
    assert watch(plant, place).returncode == 1
    assert content(place) == content(watched[0])


def test_a_full_disk_ends_with_one_sentence_and_the_next_run_goes_on(plant, watched, tmp_path):
    place, errors = tmp_path / "plant.db", tmp_path / "err"
    process = commands.start(
        "watch", plant, "--store", place, "--once", "--rpm", 1500, "--baseline", LEARNT, errors=errors, largest_file=400_000,
    )  # fmt: skip
    process.join(60)
    assert process.exitcode == 2
    assert "disk is full" in errors.read_text()
    assert watch(plant, place).returncode == 1
    assert content(place) == content(watched[0])


def test_a_store_is_for_its_owner_and_survives_a_kill(tmp_path):
    """synchronous FULL and WAL: what was committed is there; the file is not readable for others."""
    place = tmp_path / "plant.db"
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
