"""Mutated requests of an assistant: `python -m tests.fuzz --what mcp`. Returns how many broke a promise of docs/security.md."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import wavfile

import bearcat
from tests.commands import PYTHON
from tests.fuzz import BEARINGS, NUMBERS, TEXTS, mutated

RATE = 12_000


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


def attack_assistant(count: int, seed: int, seconds: float) -> int:
    """Sends `bearcat mcp` mutated lines and odd arguments, and asks for machines; it must live, say nothing raw, and
    answer what follows."""
    chance, end, answers = random.Random(seed), time.monotonic() + seconds, Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plant, store = made_plant(folder), folder / "store.db"
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


PARTS = {"mcp": attack_assistant}
