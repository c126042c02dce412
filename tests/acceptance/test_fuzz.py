"""Mutated recordings, stores and runs, odd options and fields: none may end what reads it, nor be its fault."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import wavfile

from bearcat.storage import digest
from tests.commands import bearcat
from tests.mutations import honest_files, mutated
from tests.test_serve import RATE, Server, noise

SEEDS = (0, 1, 2)
KNOWN = ("--rpm", "1500", "--bearing", "6205", "--format", "csv")
READING = {  # command → its words before and behind the folder
    "diagnose": ((), KNOWN), "predict": (("general",), KNOWN), "data check": ((), KNOWN),
    "watch": ((), (*KNOWN, "--once", "--store", "store.db")),
}  # fmt: skip
NUMBERS = ("0", "-1", "1e300", "5e-324", "nan", "inf", "9" * 400)
TEXTS = ("", " ", "x" * 300, "\x1b[2J", "=1+1", "../..", "\u202e", '"')
BEARINGS = ("balls=1,ball=5e-324,pitch=1", "balls=9,ball=nan,pitch=1", "balls=3,ball=3,pitch=1", "=", *TEXTS)
ODD = [
    ("--rpm", NUMBERS), ("--rate", NUMBERS), ("--bearing", BEARINGS), ("--channel", TEXTS), ("--channels", TEXTS),
    ("--healthy", TEXTS), ("--unit", TEXTS), ("--group", NUMBERS), ("--mounting", TEXTS),
]  # fmt: skip
MARKUP = "<script>document.title='taken'</script>"
VALUES = (None, -1, 2**62, 1e300, float("nan"), [], {}, [[]] * 5, "", "\x1b[2J", MARKUP, "../..", "9" * 5000, True)


def mutations(count: int, seed: int) -> dict[str, bytes]:
    """Mutated files, the formats in turn, by name."""
    chance, files = random.Random(seed), honest_files()
    names = list(files) * (1 + count // len(files))
    return {
        f"{number}-{name}": mutated(files[name], chance, list(files.values()))
        for number, name in enumerate(names[:count])
    }


def harmless(status: int, said: str, statuses: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    """A decision or a sentence, which a terminal shows and does not obey."""
    assert status in statuses, said
    assert "\x1b" not in said


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("command", READING)
def test_every_mutated_recording_is_answered_or_named(tmp_path, command, seed):
    files = mutations(60, seed)
    (tmp_path / "all" / "pump").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "all" / "pump" / name).write_bytes(content)
    before, behind = READING[command]
    words = (*command.split(), *before, tmp_path / "all", *behind)
    fresh = command == "data check"  # whose warnings of numbers that are none are no errors there
    found = bearcat(*words, folder=tmp_path, fresh=fresh)
    harmless(found.returncode, found.stdout + found.stderr)
    if command in ("diagnose", "predict"):
        assert [name for name in files if name not in found.stdout] == []
    rows = [f"pump/{name},pump,,{number}" for number, name in zip(NUMBERS * 9, files, strict=False)]
    listed = "\n".join(["path,domain,label,rpm", *rows]).encode()
    (tmp_path / "all" / "manifest.csv").write_bytes(mutated(listed, random.Random(seed), [listed]))
    found = bearcat(*words, folder=tmp_path, fresh=fresh)
    harmless(found.returncode, found.stdout + found.stderr)


@pytest.mark.parametrize(("option", "values"), ODD)
def test_odd_options_are_refused_in_a_sentence_or_do_no_harm(tmp_path, option, values):
    wavfile.write(tmp_path / "a.wav", RATE, noise(RATE))
    for value in values:
        found = bearcat("diagnose", "a.wav", "--rpm", "1500", option, value, folder=tmp_path)
        harmless(found.returncode, found.stdout + found.stderr)


def test_the_server_answers_or_refuses_every_mutated_recording_and_goes_on(tmp_path):
    server, chance = Server(tmp_path, "general"), random.Random(0)
    fields = {"rate": NUMBERS, "rpm": NUMBERS, "bearing": BEARINGS, "channel": TEXTS, "picture": ("true", *TEXTS)}
    for number, (name, content) in enumerate(mutations(400, 0).items()):
        odd = {field: chance.choice(fields[field]) for field in chance.sample(list(fields), 2)} if number % 2 else {}
        answer = server.upload(name, content, **{"rate": RATE, "rpm": 1500, "bearing": "6205"} | odd)
        assert answer.status_code in (200, 408, 413, 422), (name, odd, answer.text)
    assert server.stop() == 0
    assert "Traceback" not in server.logged()
    assert list(server.temporary.iterdir()) == []


def changed(value: Any, chance: random.Random) -> Any:
    """Plain values of which one leaf, or one branch, is another value."""
    if isinstance(value, dict | list) and value and chance.random() < 0.9:
        key, copy = chance.choice(list(value) if isinstance(value, dict) else range(len(value))), value.copy()
        copy[key] = changed(value[key], chance)
        return copy
    return chance.choice(VALUES)


def test_a_changed_run_is_refused_or_shown_as_text(tmp_path):
    """By `check` and `report`; its record has other values and the right checksum, or other bytes."""
    small = ("--set", "seconds=1", "--set", "severities=4", "--set", "faults=inner,outer", "--method", "DANN")
    bearcat(
        "adapt",
        "--data",
        "simulated",
        *small,
        "--epochs",
        1,
        "--window",
        256,
        "--device",
        "cpu",
        "--out",
        tmp_path / "run",
    )
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    sums, chance = record.pop("checksums"), random.Random(0)
    (tmp_path / "labels.csv").write_text("recording,label\n")
    for number in range(20):
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "run", copy)
        if number % 2:
            other = changed(record, chance)
            text = json.dumps(other, sort_keys=True).encode()
            whole = other | {"checksums": sums | {"record.json": digest(text)}} if isinstance(other, dict) else other
            (copy / "record.json").write_text(json.dumps(whole))
        else:
            file = chance.choice(sorted(path for path in copy.rglob("*") if path.is_file()))
            file.write_bytes(mutated(file.read_bytes(), chance, [file.read_bytes()]))
        for words in (
            ("check", copy, "--labels", tmp_path / "labels.csv"),
            ("report", copy, "--out", copy / "page.html"),
        ):
            found = bearcat(*words, pictures=False)
            harmless(found.returncode, found.stdout + found.stderr, (0, 2))
        assert not (copy / "page.html").exists() or MARKUP not in (copy / "page.html").read_text()


def test_a_changed_store_is_refused_or_shown_as_text(tmp_path):
    for number in range(4):
        place = tmp_path / "plant" / "pump" / ("drive end", "far end")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).standard_normal(RATE // 2).astype(np.float32)
        wavfile.write(place / f"2024-05-0{number // 2 + 1}T10-30-00.wav", RATE, values)
    watched = ("watch", tmp_path / "plant", "--once", "--rpm", 1500)
    bearcat(*watched, "--store", tmp_path / "whole.db")
    with closing(sqlite3.connect(tmp_path / "whole.db")) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        tables = [name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [(table, row[1]) for table in tables for row in store.execute(f'PRAGMA table_info("{table}")')]
    whole, chance, path = (tmp_path / "whole.db").read_bytes(), random.Random(0), tmp_path / "changed.db"
    for number in range(30):
        path.write_bytes(mutated(whole, chance, [whole]) if number % 2 else whole)
        if not number % 2:
            table, column = chance.choice(columns)
            value = chance.choice([each for each in VALUES if not isinstance(each, list | dict)])
            with closing(sqlite3.connect(path)) as store:
                try:
                    store.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
                    store.commit()
                except (sqlite3.Error, OverflowError):  # a key, or a number that SQLite does not hold
                    continue
        words = ("report", path, "--out", tmp_path / "page.html") if number % 3 else (*watched, "--store", path)
        found = bearcat(*words, pictures=False)
        harmless(found.returncode, found.stdout + found.stderr)
        page = tmp_path / "page.html"
        assert not page.exists() or MARKUP not in page.read_text()
        for left in tmp_path.glob("changed.db*"):
            left.unlink()


def test_files_that_once_broke_something_are_named():
    found = Path(__file__).parents[1] / "found"
    names = [path.name for path in found.iterdir() if path.is_file() and path.suffix != ".db"]
    printed = bearcat("diagnose", found, *KNOWN)
    assert len(names) >= 4
    assert [name for name in names if name not in printed.stdout] == []
