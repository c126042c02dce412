"""`bearcat watch` in several processes, killed, and on a full disk: its store is the same in the end."""

# ruff: noqa: F811 (fixtures of another module)
from __future__ import annotations

import os
import signal

from tests import commands
from tests.test_watch import LEARNT, content, plant, rows_in, until, watch, watched  # noqa: F401 (fixtures)


def test_processes_find_the_same_in_the_same_order(plant, watched, tmp_path):
    place = tmp_path / "plant.db"
    assert watch(plant, place, "--jobs", 2, fresh=True).returncode == 1
    assert content(place) == content(watched[0])
    assert place.stat().st_mode & 0o777 == 0o600


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
    assert "nothing is lost" in errors.read_text()
    assert watch(plant, place).returncode == 1
    assert content(place) == content(watched[0])
