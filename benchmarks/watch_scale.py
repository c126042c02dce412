"""How `bearcat watch` scales: measuring with 1 and 2 processes side by side, and a store with ten million rows.

    python benchmarks/watch_scale.py --files 240                # one second at 25.6 kHz each; extrapolated to 10 000 points
    python benchmarks/watch_scale.py --rows 10000000            # fills a store in a temporary folder, some 6 GB, and asks it

Files are measured by the command itself in a process of its own, so that its peak memory is its own; processor time
stands beside the time that passed, since neighbours count less in it. The rows of the big store are copies of a few real
ones; points, recordings and indices are as they would be after a thousand recordings of each of 10 000 points.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import wavfile

from bearcat.watch.store import Store

RATE, RPM, BEARING = 25_600, 1480, "6205"
MACHINES_POINTS = 4  # points of a machine
DAY = 86_400.0
RUN = "from bearcat.cli import main; main()"


def write_recordings(root: Path, points: int, days: int) -> int:
    """Recordings of a second: noise with impacts of an outer race, faint, so that there is something to read."""
    random, time_axis = np.random.default_rng(0), np.arange(RATE) / RATE
    strikes = np.exp(-800 * (time_axis * 88.4 % 1) / 88.4) * np.sin(2 * np.pi * 6000 * time_axis)
    for point in range(points):
        folder = root / f"machine-{point // MACHINES_POINTS:04d}" / f"point-{point % MACHINES_POINTS}"
        folder.mkdir(parents=True)
        for day in range(days):
            moment = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=day)
            signal = random.standard_normal(RATE) + 0.3 * strikes
            path = folder / f"{moment:%Y-%m-%dT%H-%M-%S}.wav"
            wavfile.write(path, RATE, (0.05 * signal).astype(np.float32))
            os.utime(path, (1.7e9, 1.7e9))  # it is complete
    return points * days


def watch(root: Path, store: Path, jobs: int) -> tuple[float, float, float]:
    """Seconds that passed, seconds of processor, and MiB at most of the command's own process."""
    words = [
        "watch",
        root,
        "--store",
        store,
        "--once",
        "--rpm",
        RPM,
        "--bearing",
        BEARING,
        "--baseline",
        8,
        "--jobs",
        jobs,
    ]
    began, before = time.perf_counter(), os.times()
    process = subprocess.Popen([sys.executable, "-c", RUN, *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1, 3), process.returncode
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, processor, usage.ru_maxrss / 1024


def measure(files: int) -> None:
    days, root = 10, Path(tempfile.mkdtemp(prefix="bearcat-scale-"))
    for share in (1, 4):  # the peak must not grow with the number of files
        points = max(MACHINES_POINTS, share * files // (4 * days))
        folder = root / f"plant-{share}"
        number = write_recordings(folder, points, days)
        for jobs in (1, 2):
            store = root / f"{share}-{jobs}.db"
            seconds, processor, peak = watch(folder, store, jobs)
            with Store.open(store) as opened:
                assert sum(each.recordings for each in opened.fleet()) == number
            day = 10_000 * seconds / number / 60
            print(
                f"{number:5d} files, {jobs} process{'es' if jobs > 1 else '  '}: {number / seconds:5.1f} files a second "
                f"({processor / number:.2f} s of processor each, main process and readers), 10 000 in {day:.0f} min, "
                f"peak {peak:.0f} MiB",
                flush=True,
            )


def fill(place: Path, rows: int, points: int) -> None:
    """A store as `bearcat watch` makes it, by bulk: copies of real rows, indices made at the end."""
    with tempfile.TemporaryDirectory() as folder:
        write_recordings(Path(folder), 1, 10)
        watch(Path(folder), place, 1)
    connection = sqlite3.connect(place, isolation_level=None)
    indices = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    ).fetchall()
    columns = [row[1] for row in connection.execute("PRAGMA table_info(points)")]
    (status,) = connection.execute("SELECT * FROM points").fetchall()
    (memory,) = connection.execute("SELECT content FROM memories").fetchone()
    names = [row[1] for row in connection.execute("PRAGMA table_info(snapshots)")][1:]
    real = connection.execute(f"SELECT {', '.join(names)} FROM snapshots").fetchall()
    size = sum(len(value) for row in real for value in row if isinstance(value, bytes)) / len(real)
    fast = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000", "foreign_keys = OFF")
    for statement in (*(f"PRAGMA {each}" for each in fast), "DELETE FROM snapshots", "DELETE FROM recordings"):
        connection.execute(statement)
    for name, _ in indices:
        connection.execute(f"DROP INDEX {name}")
    connection.execute("BEGIN")
    for number in range(2, points + 1):
        named = dict(zip(columns, status, strict=True)) | {"id": number}
        named |= {"machine": f"machine-{number // MACHINES_POINTS:04d}", "point": f"point {number % MACHINES_POINTS}"}
        connection.execute(f"INSERT INTO points VALUES ({', '.join('?' * len(columns))})", tuple(named.values()))
        connection.execute("INSERT INTO memories VALUES (?, ?)", (number, memory))
    insert = f"INSERT INTO snapshots ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    place_of = {name: number for number, name in enumerate(names)}
    for turn in range(rows // points):
        path = f"/plant/{turn}.wav"
        connection.executemany(
            "INSERT INTO recordings VALUES (?, ?, ?, ?, ?, 10, 10, NULL, NULL)",
            (
                (turn * points + point, f"{turn:032x}{point:032x}", str(point), path, turn * DAY)
                for point in range(points)
            ),
        )
        row = list(real[turn % len(real)])

        def of_points(turn: int = turn, row: list[Any] = row) -> Iterator[tuple[Any, ...]]:
            for point in range(points):
                row[place_of["point"]], row[place_of["time"]] = point + 1, turn * DAY
                row[place_of["recording"]] = turn * points + point
                yield tuple(row)

        connection.executemany(insert, of_points())
    connection.execute("COMMIT")
    for _, statement in indices:
        connection.execute(statement)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    print(
        f"{rows} rows, {size:.0f} bytes of arrays each; the store has {place.stat().st_size / 1e9:.1f} GB", flush=True
    )


def ask(place: Path) -> None:
    """How long a fleet, a trend and what is new take; each the first time in a fresh process' store, and again."""
    for turn in ("first", "again"):
        with Store.open(place) as store:
            for name, question in (
                ("fleet", store.fleet),
                ("trend of a point", lambda: store.trend("machine-0100", "point 1")),
                ("its envelope spectra", lambda: store.envelopes("machine-0100", "point 1")),
                ("open events", lambda: store.events(open_only=True)),
                ("10 000 paths that are known", lambda: store.known([f"/plant/new-{number}.wav" for number in range(10_000)])),
            ):  # fmt: skip
                began = time.perf_counter()
                found = question()
                print(f"{name}, {turn}: {1000 * (time.perf_counter() - began):.0f} ms, {len(found)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--points", type=int, default=10_000)
    chosen = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, SQLite {sqlite3.sqlite_version}")
    if chosen.files or not chosen.rows:
        measure(chosen.files or 80)
    if chosen.rows:
        with tempfile.TemporaryDirectory(prefix="bearcat-scale-") as folder:
            fill(Path(folder) / "plant.db", chosen.rows, chosen.points)
            ask(Path(folder) / "plant.db")


if __name__ == "__main__":
    main()
