"""Mutated recordings and odd fields of a query: none may end what reads it, nor be its fault."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.commands import bearcat
from tests.mutations import honest_files, mutated
from tests.test_serve import RATE, Server

SEEDS = (0, 1, 2)
KNOWN = ("--rpm", "1500", "--bearing", "6205", "--format", "csv")
READING = {  # command → its words before and behind the folder
    "diagnose": ((), KNOWN), "predict": (("general",), KNOWN), "data check": ((), KNOWN),
    "watch": ((), (*KNOWN, "--once", "--store", "store.db")),
}  # fmt: skip
NUMBERS = ("0", "-1", "1e300", "5e-324", "nan", "inf", "9" * 400)
TEXTS = ("", " ", "x" * 300, "\x1b[2J", "=1+1", "../..", "\u202e", '"')
BEARINGS = ("balls=1,ball=5e-324,pitch=1", "balls=9,ball=nan,pitch=1", "balls=3,ball=3,pitch=1", "=", *TEXTS)


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


def test_the_server_answers_or_refuses_every_mutated_recording_and_goes_on(tmp_path):
    server, chance = Server(tmp_path, "general"), random.Random(0)
    fields = {"rate": NUMBERS, "rpm": NUMBERS, "bearing": BEARINGS, "channel": TEXTS, "picture": ("true", *TEXTS)}
    for number, (name, content) in enumerate(mutations(400, 0).items()):
        odd = {field: chance.choice(fields[field]) for field in chance.sample(list(fields), 2)} if number % 2 else {}
        answer = server.upload(name, content, **{"rate": RATE, "rpm": 1500, "bearing": "6205"} | odd)
        assert answer.status_code in (200, 408, 413, 422), (name, odd, answer.text)
    assert not any("Traceback" in line for line in server.stop())


def test_files_that_once_broke_something_are_named():
    found = Path(__file__).parents[1] / "found"
    names = [path.name for path in found.iterdir() if path.is_file() and path.suffix != ".db"]
    printed = bearcat("diagnose", found, *KNOWN)
    assert len(names) >= 4
    assert [name for name in names if name not in printed.stdout] == []
