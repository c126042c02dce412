"""Mutated stores and requests of an assistant: `python -m tests.fuzz --what store|mcp`.

Each returns how many broke a promise of docs/security.md; what broke it is printed, and files are kept in tests/found.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
from scipy.io import wavfile

import bearcat
from tests.commands import PYTHON, start
from tests.fuzz import BEARINGS, NUMBERS, TEXTS, keep_found, mutated

RATE = 12_000
MARKUP = "<script>document.title='taken'</script>"
CELLS = (
    None, 0, -1, 2, 2**62, 0.5, -1e300, 1e300, float("inf"), 1e12, b"", b"\xff\0\x1b", bytes(999), "", "nonsense", "ok",
    MARKUP, "\"'><img src=x onerror=alert(1)>", "a\x1b[2J\u202e\0b", "=1+1", "x" * 10_000, "[" * 10_000, '["a", 3]', "{}",
    "9" * 5000, "1e999", "../..", '{"false_alarms": -1, "baseline": 1e9, "period": NaN}',
)  # fmt: skip


def made_plant(folder: Path) -> Path:
    """A folder of recordings of two points, and its store."""
    plant = folder / "plant"
    for number in range(6):
        place = plant / "pump" / ("drive end", "far end")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).standard_normal(RATE // 2).astype(np.float32)
        wavfile.write(place / f"2024-05-0{number // 2 + 1}T10-30-00.wav", RATE, values)
    bearcat.watch(plant, folder / "store.db", rpm=1500)
    return plant


def attack_store(count: int, seed: int, seconds: float) -> int:
    """Reads so many mutated stores with watch, report, export and a server: a sentence, or what is in it, as text."""
    from tests.test_serve import START, Server

    chance, end, broken, statuses = random.Random(seed), time.monotonic() + seconds, 0, Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plant = made_plant(folder)
        whole, mutant, served = (folder / "store.db").read_bytes(), folder / "mutated.db", folder / "served.db"
        served.write_bytes(whole)
        anew = "import bearcat.report.fleet as fleet; fleet.FRESH = 0.0"  # every page is made for its request
        server = Server(folder, "--store", served, code=f"{anew}\n{START}")
        addresses = ["/fleet", "/fleet?machine=pump", "/metrics", "/health", "/openapi.json", "/"]
        commands = (
            ["report", mutant, "--out", folder / "page.html"], ["watch", "export", mutant, "--out", folder / "table.csv"],
            ["watch", plant, "--store", mutant, "--once", "--rpm", 1500, "--format", "json"],
        )  # fmt: skip
        with httpx.Client(base_url=f"http://{server.place.netloc}", timeout=60) as client:
            for number in range(count):
                if time.monotonic() > end:
                    break
                content = mutated(whole, chance, [whole]) if number % 2 else changed_rows(whole, mutant, chance)
                problems = list[str]()
                _put(served, content)
                for address in [*addresses, "/fleet?" + urlencode({"machine": chance.choice(TEXTS)})]:
                    try:
                        answer = client.get(address)
                        status, text = answer.status_code, answer.text
                    except httpx.HTTPError as error:
                        status, text = 0, repr(error)
                    statuses[f"GET {address.partition('=')[0]} {status}"] += 1
                    if status not in (200, 307, 404, 422, 503) or MARKUP in text or "<img src=x" in text or raw(text):
                        problems.append(f"{address} was answered {status}: {text[:300]!r}")
                command = commands[number % len(commands)]
                _put(mutant, content)
                process = start(*command, output=folder / "out", errors=folder / "err", folder=folder)
                process.join(120)
                printed, said = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
                statuses[f"{' '.join(map(str, command[:1]))} {process.exitcode}"] += 1
                if process.exitcode is None:
                    process.kill()
                if process.exitcode not in (0, 1, 2, 3) or "Traceback" in said or raw(printed + said):
                    problems.append(f"{command[:2]} ended with {process.exitcode}: {said[-2000:]}")
                if command[-1] == "json" and process.exitcode in (0, 1, 3):
                    json.loads(printed, parse_constant=problems.append)
                for problem in problems:
                    keep_found(f"store-{seed}-{number}.db", content, problem)
                broken += len(problems)
                for name in ("out", "err"):
                    (folder / name).unlink()
        broken += server.stop() != 0
        if server.logged():
            print(server.logged()[-3000:])
            broken += 1
    print(json.dumps({"stores": statuses["GET /health 200"], "statuses": statuses, "broken": broken}))
    return broken


def raw(text: str) -> bool:
    """Whether a text has characters that a terminal or a browser would act upon."""
    return re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text.replace("\r\n", "\n")) is not None


def changed_rows(whole: bytes, place: Path, chance: random.Random) -> bytes:
    """A store in which some cells hold what bearcat has not written."""
    _put(place, whole)
    with closing(sqlite3.connect(place)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(chance.choice((1, 1, 2, 8))):
            table = chance.choice(tables)
            column = chance.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})")])
            rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
            if rows:
                with suppress(sqlite3.Error):  # an index, or a key, that takes no such value
                    values = chance.choice(CELLS), chance.choice(rows)
                    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", values)
        connection.commit()
    return place.read_bytes()


def _put(place: Path, content: bytes) -> None:
    """A store in the place of another, without what that one has left beside it."""
    for path in place.parent.glob(f"{place.name}-*"):
        path.unlink()
    draft = place.with_suffix(".draft")
    draft.write_bytes(content)
    draft.replace(place)


def attack_assistant(count: int, seed: int, seconds: float) -> int:
    """Sends `bearcat mcp` mutated lines and odd arguments, and mutates its store; it must live, say nothing raw, and
    answer what follows."""
    chance, end, answers = random.Random(seed), time.monotonic() + seconds, Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plant, store = made_plant(folder), folder / "store.db"
        whole = store.read_bytes()
        words = [sys.executable, *PYTHON[1:], "mcp", str(plant), "--store", str(store)]
        with (
            (folder / "err").open("wb") as errors,
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdin is not None and process.stdout is not None  # noqa: PT018

            def send(line: bytes) -> None:
                process.stdin.write(line.replace(b"\n", b" ") + b"\n")
                process.stdin.flush()

            def ask(number: int, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
                send(_request(number, method, parameters))
                while True:
                    line = process.stdout.readline()
                    assert line, "it has ended"
                    assert line.decode().rstrip("\n").isprintable()
                    found = json.loads(line)
                    if found.get("id") == number:
                        return found

            watchdog = threading.Timer(seconds + 300, process.kill)  # should it hang
            watchdog.daemon = True
            watchdog.start()
            client = {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "fuzz", "version": "1"},
            }
            ask(0, "initialize", client)
            send(_request(None, "notifications/initialized", {}))
            files = [str(path.relative_to(plant)) for path in plant.rglob("*.wav")]
            sent = 0
            for sent in range(1, count + 1):
                if time.monotonic() > end:
                    break
                values = {
                    "file": chance.choice((*files, *TEXTS, "../store.db", "/etc/passwd", "x" * 5000)),
                    "rpm": chance.choice((*NUMBERS, 1500, None, -1, 1e300)), "bearing": chance.choice((*BEARINGS, None)),
                    "rate": chance.choice((*NUMBERS, None)), "channel": chance.choice((*TEXTS, None)),
                    "machine": chance.choice(("pump", chance.choice(TEXTS))),
                    "point": chance.choice(("drive end", chance.choice(TEXTS))),
                }  # fmt: skip
                given = {name: values[name] for name in chance.sample(list(values), chance.randrange(5))}
                tool = chance.choice(
                    ("diagnose", "picture", "list_recordings", "machine_status", "machine_history", "no")
                )
                if tool.startswith("machine"):
                    _put(store, mutated(whole, chance, [whole]) if sent % 4 < 2 else changed_rows(whole, store, chance))
                parameters = {"name": tool, "arguments": given}
                if sent % 2:
                    send(mutated(_request(None, "tools/call", parameters), chance, [b"{}"]))
                else:
                    found = ask(sent, "tools/call", parameters)
                    answers["error" if "error" in found or found["result"].get("isError") else "answer"] += 1
            good = {"name": "diagnose", "arguments": {"file": files[0], "rpm": 1500}}
            lives = "result" in ask(10**9, "tools/call", good)
            process.stdin.close()
            status = process.wait(60)
            watchdog.cancel()
        said = (folder / "err").read_text(errors="replace")
        left = sorted(path.name for path in folder.iterdir() if path.name not in ("plant", "store.db", "err"))
    crashes = said.count("bearcat/deploy/assistant.py") if "Traceback" in said else 0
    if crashes:
        print(said[-3000:])
    print(json.dumps({"requests": sent, "answers": answers, "status": status, "crashes": crashes, "left": left}))
    return (not lives) + (status != 0) + crashes + len([name for name in left if not name.startswith("store.db")])


def _request(number: int | None, method: str, parameters: dict[str, Any]) -> bytes:
    named = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", **named, "method": method, "params": parameters}).encode()


PARTS = {"store": attack_store, "mcp": attack_assistant}
