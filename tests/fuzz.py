"""Mutated recordings of every format, manifests, options and query fields: none may end what reads it, nor be its fault.

The everyday tests (test_hostile.py) do this for some seconds; `make fuzz` sends each format ten thousand mutations
through a server and a thousand through each command, and prints statuses, deaths and memory. A file that breaks something is kept in tests/found, which test_hostile.py
reads from then on.

    python -m tests.fuzz --mutations 10000 --seconds 3600
    python -m tests.fuzz --what commands --mutations 1000 --seed 7
"""

from __future__ import annotations

import argparse
import csv
import http.client
import io
import itertools
import json
import os
import random
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from scipy.io import savemat, wavfile

from tests.test_formats import write_instrument

WORDS = [struct.pack(form, value) for form in ("<i", ">i", "<q") for value in (-1, 2**31 - 1, -(2**31), 0, 1, 2**30)]
FOUND = Path(__file__).with_name("found")
MOST_RESIDENT = 1.5e9  # bytes that a server may take


def honest_files(samples: int = 1024) -> dict[str, bytes]:
    """A small recording of each format and of each way of writing it, by a name whose ending says the format."""
    values = np.random.default_rng(0).standard_normal(samples).astype(np.float32)
    files: dict[str, bytes] = {}

    def keep(name: str, write) -> None:
        file = io.BytesIO()
        write(file)
        files[name] = file.getvalue()

    keep("float.wav", lambda file: wavfile.write(file, 12_000, values))
    keep("stereo.wav", lambda file: wavfile.write(file, 12_000, (values[:, None] * [[9000, 900]]).astype(np.int16)))
    keep("one.npy", lambda file: np.save(file, values))
    keep("packed.npz", lambda file: np.savez_compressed(file, a=values, fs=12_000))
    keep("stored.npz", lambda file: np.savez(file, a=values))
    channels = np.array([("force", values), ("vibration_1", values)], dtype=[("Name", object), ("Data", object)])
    keep("plain.mat", lambda file: savemat(file, {"a": values, "fs": 12_000.0}))
    keep("struct.mat", lambda file: savemat(file, {"N": {"Y": channels, "note": ["a", "b"]}, "a": values}))
    keep("packed.mat", lambda file: savemat(file, {"a": values}, do_compression=True))
    keep("old.mat", lambda file: savemat(file, {"a": values}, format="4"))
    keep("seven.mat", lambda file: _hdf5(file, values))
    for packing in ("none", "snappy", "zstd", "gzip"):
        table = pa.table({"time": np.arange(samples) / 12_000, "a": values})
        keep(f"{packing}.parquet", lambda file, t=table, p=packing: parquet.write_table(t, file, compression=p))
    keep("tree.h5", lambda file: _hdf5(file, values))
    for suffix in (".flac", ".tdms", ".unv"):
        with tempfile.TemporaryDirectory() as folder:
            files[f"one{suffix}"] = write_instrument(Path(folder) / f"x{suffix}", {"a": values}, 12_000).read_bytes()
    rows = [f"{number / 12_000:.6f},{value:.5g}" for number, value in enumerate(values)]
    files["table.csv"] = "\n".join(["time,a", *rows]).encode()
    files["german.txt"] = (
        "\n".join(f"{number};{value:.5f}" for number, value in enumerate(values)).replace(".", ",").encode()
    )
    files["bare.tsv"] = "\n".join(f"{value:.5g}" for value in values).encode()
    return files


def _hdf5(file: io.BytesIO, values: np.ndarray) -> None:
    with h5py.File(file, "w") as tree:
        tree.create_dataset("a", data=values, compression="gzip", chunks=(256,))
        tree["group/text"] = "a note"


def mutated(content: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """The content with one to eight changes; heads and tails, where formats keep their structure, are hit more often."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        size = len(data)
        if size < 2:
            break
        near = min(size, 300)
        place = chance.choice((chance.randrange(size), chance.randrange(near), size - 1 - chance.randrange(near)))
        kind = chance.randrange(8)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == 2:
            word = chance.choice(WORDS)
            data[place : place + len(word)] = word
        elif kind == 3:
            del data[place : place + chance.randrange(1, 64)]
        elif kind == 4:
            data[place:place] = chance.randbytes(chance.randrange(1, 16))
        elif kind == 5:
            data[place:place] = data[place : place + chance.randrange(1, 256)]
        elif kind == 6:
            del data[chance.randrange(1, size) :]
        else:
            other = chance.choice(others)
            start = chance.randrange(len(other))
            part = other[start : start + chance.randrange(1, 64)]
            data[place : place + len(part)] = part
    return bytes(data)


def mutations(seed: int, samples: int = 1024) -> Iterator[tuple[str, bytes]]:
    """Mutated files without end, the formats in turn."""
    files, chance = honest_files(samples), random.Random(seed)
    by_format: dict[str, list[str]] = {}
    for name in files:
        by_format.setdefault(format_of(name), []).append(name)
    for names in itertools.cycle(by_format.values()):
        name = chance.choice(names)
        yield name, mutated(files[name], chance, [files[other] for other in names])


NUMBERS = ("0", "-1", "1", "900", "12000", "1e300", "5e-324", "1e-300", "nan", "inf", "-0.0", "1e9", "3.5", "9" * 400)
TEXTS = (
    "",
    " ",
    "a",
    "1",
    "x" * 300,
    "\x1b[2J",
    "=1+1",
    "../..",
    "%00",
    "\u202e",
    "together",
    "apart",
    "nothing",
    "'",
    '"',
)
BEARINGS = (
    "6205", "balls=9,ball=7.94,pitch=39.04", "balls=1,ball=5e-324,pitch=1", "balls=99999999999,ball=1,pitch=1e9",
    "balls=9,ball=nan,pitch=1", "balls=3,ball=3,pitch=1", "balls=9", "=", "balls=9,ball=7,pitch=39,angle=1e308",
)  # fmt: skip
FIELDS = {
    "rate": NUMBERS, "rpm": NUMBERS, "bearing": BEARINGS, "channel": TEXTS, "by": ("window", "recording", *TEXTS),
    "picture": ("true", "false", *TEXTS), "view": ("kurtogram", "orders", *TEXTS), "filename": ("a.wav", "a.npy", "a.mat", *TEXTS), "other": TEXTS,
}  # fmt: skip
# Of each command: its options, and what they are given; None: an option without a value.
Values = dict[str, tuple[str | None, ...]]
SHARED: Values = {
    "--rate": NUMBERS, "--rpm": NUMBERS, "--bearing": BEARINGS, "--channel": TEXTS, "--format": ("csv", "json", "table", ""),
}  # fmt: skip
OWN: Values = {
    "--channels": TEXTS,
    "--trust-speed": (None,),
    "--override": (None,),
    "--jobs": ("0", "2", "-1", "1e300", "x"),
}
PATHS = ("specimen", "(a)", "(a*)*", "(", "domain", *TEXTS)
OPTIONS: dict[str, Values] = {
    "diagnose": SHARED | OWN | dict.fromkeys(("--bpfo", "--bpfi", "--bsf", "--ftf"), NUMBERS)
    | {"--healthy": TEXTS, "--unit": ("g", "mm/s", "V", *TEXTS), "--group": NUMBERS, "--mounting": ("rigid", *TEXTS)},
    "predict": SHARED | OWN | {"--batch": NUMBERS, "--min-confidence": NUMBERS, "--alarm": TEXTS,
                               "--by": ("window", *TEXTS), "--unfamiliar-alarm": (None,), "--no-unfamiliar-alarm": (None,)},
    "data check": SHARED | {"--window": NUMBERS, "--stride": NUMBERS, "--specimen": PATHS, "--machine": PATHS,
                            "--set": ("channels=apart", "rpm=0", *TEXTS), "--domain": TEXTS, "--root": TEXTS},
    "watch": SHARED | {"--channels": TEXTS, "--trust-speed": (None,), "--jobs": OWN["--jobs"], "--healthy": TEXTS,
                       "--false-alarms": ("1/year", "0/year", f"{'9' * 400}/day", *NUMBERS),
                       "--baseline": ("5", "9", "7d", f"{'9' * 400}d", *NUMBERS), "--speeds": ("990,1480", *NUMBERS),
                       "--loads": NUMBERS, "--timezone": ("Europe/Berlin", *TEXTS)},
}  # fmt: skip
ELSEWHERE = {
    "--png",
    "--once",
    "--store",
    "--notify",
    "--out",
}


def chosen(chance: random.Random, values: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Up to four names, each with one of its values."""
    return {
        name: chance.choice(values[name]) for name in chance.sample(list(values), chance.randrange(min(4, len(values))))
    }


def manifest(chance: random.Random, names: list[str]) -> bytes:
    """A manifest of these files, and mutated in four of five."""
    rows = [["path", "domain", "label", "rate", "channel", "start", "stop", "rpm", "bearing"]]
    for name in names:
        numbers = [chance.choice(("", "", *NUMBERS)) for _ in range(4)]
        rows.append(
            [f"pump/{name}", "pump", chance.choice(TEXTS), numbers[0], "", *numbers[1:], chance.choice(("", *BEARINGS))]
        )
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    content = text.getvalue().encode()
    return content if chance.random() < 0.2 else mutated(content, chance, [content])


def format_of(name: str) -> str:
    """csv, tsv and txt have one reader."""
    return "text" if name.endswith(("csv", "tsv", "txt")) else name.rpartition(".")[2]


def resident(process: int) -> int:
    text = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(text.split("VmRSS:")[1].split()[0])


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def attack(count: int, seed: int, clients: int, seconds: float) -> int:
    """Sends so many mutations of each format; 0 where every one was answered, none by 500, in bounded memory."""
    from bearcat.deploy.model import export_onnx
    from tests.test_artefact import familiar_with, made_model, raw_windows
    from tests.test_serve import BINARY, START, Server

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = made_model(recipe="CAT*-Temperature", task="a → b")
        export_onnx(familiar_with(model, raw_windows(model, 600)), folder / "model.onnx")
        server = Server(folder, folder / "model.onnx", code=START)
        formats = len({format_of(name) for name in honest_files()})
        end = time.monotonic() + seconds
        source, lock, left, chance = mutations(seed), threading.Lock(), [count * formats], random.Random(seed)
        statuses: dict[str, Counter[str]] = {}
        highest, slowest = {"server": 0, "readers": 0}, [0.0, ""]

        def send() -> None:
            connection = http.client.HTTPConnection(server.place.hostname, server.place.port, timeout=90)
            while True:
                with lock:
                    if not left[0] or time.monotonic() > end:
                        break
                    left[0] -= 1
                    name, content = next(source)
                    query = {"filename": name, "rate": "12000"} | ({"channel": "1"} if name.endswith(".wav") else {})
                    query |= chosen(chance, FIELDS) if left[0] % 2 else {}
                start = time.perf_counter()
                try:
                    connection.request("POST", f"/predict?{urlencode(query)}", content, BINARY)
                    answer = connection.getresponse()
                    answer.read()
                    status = str(answer.status)
                except (OSError, http.client.HTTPException) as error:
                    connection.close()
                    status = type(error).__name__
                with lock:
                    statuses.setdefault(format_of(name), Counter())[status] += 1
                    slowest[:] = max(slowest, [time.perf_counter() - start, name])
                    if status not in ("200", "413", "422", "408"):
                        keep_found(f"{status}-{seed}-{left[0]}-{name}", content, str(query))
            connection.close()

        threads = [threading.Thread(target=send) for _ in range(clients)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
            if server.process.poll() is None:
                readers = children(server.process.pid)
                highest["server"] = max(highest["server"], resident(server.process.pid))
                for reader in readers:
                    try:
                        both = [resident(reader), *map(resident, children(reader))]
                        highest["readers"] = max(highest["readers"], *both)
                    except (OSError, IndexError):  # it has just ended
                        pass
        died = server.process.poll() is not None
        took = time.monotonic() - start
        logged = server.logged()
        if not died:
            server.stop()
        total = sum(sum(found.values()) for found in statuses.values())
        print(json.dumps({"statuses": statuses, "seconds": round(took), "requests": total, "died": died}, indent=1))
        print(f"highest resident memory: server {highest['server'] / 2**20:.0f} MiB, one process of a reader "
              f"{highest['readers'] / 2**20:.0f} MiB; slowest answer {slowest[0]:.2f} s ({slowest[1]})")  # fmt: skip
        print(f"log: {len(logged)} characters\n{logged[:2000]}")
        bad = {status for found in statuses.values() for status in found} - {"200", "413", "422", "408"}
        return int(died or bool(bad) or highest["server"] > MOST_RESIDENT)


def keep_found(name: str, content: bytes, how: str) -> None:
    """Keeps a file that broke something, for test_hostile.py."""
    (FOUND / name).parent.mkdir(parents=True, exist_ok=True)
    (FOUND / name).write_bytes(content)
    print(f"kept as {FOUND / name}: {how}", flush=True)


def attack_commands(count: int, seed: int, seconds: float) -> int:
    """Reads so many mutated files with each command, fifty at a time; 0 where all is as docs/security.md promises."""
    from tests.commands import start

    chance, source, end = random.Random(seed), mutations(seed, 16_384), time.monotonic() + seconds
    statuses: dict[str, Counter[str]] = {name: Counter() for name in OPTIONS}
    broken, highest, read = list[str](), 0, 0
    with tempfile.TemporaryDirectory() as place:
        folder, number = Path(place), 0
        while read < count and time.monotonic() < end:
            number += 1
            root = folder / str(number)
            (root / "pump").mkdir(parents=True)
            files = {f"{each}-{name}": content for each, (name, content) in enumerate(itertools.islice(source, 50))}
            for name, content in files.items():
                (root / "pump" / name).write_bytes(content)
            listed = number % 3 == 0
            if listed:
                (root / "manifest.csv").write_bytes(manifest(chance, list(files)))
            for command, options in OPTIONS.items():
                pairs = chosen(chance, options).items() if number % 2 else ()
                words = [word for pair in pairs for word in pair if word is not None]
                model = ["general"] if command == "predict" else []
                store = ["--once", "--store", folder / "store.db"] if command == "watch" else []
                about = ["--format", "csv", "--rpm", "1500", "--bearing", "6205"]
                output, errors = root.with_suffix(".out"), root.with_suffix(".err")
                called = [*command.split(), *model, root, *store, *about, *words]
                process = start(*called, output=output, errors=errors, folder=folder)
                begun = time.monotonic()
                while process.is_alive() and time.monotonic() < begun + 300:
                    highest = max(highest, *family(process.pid), 0)
                    process.join(0.05)
                status, said = process.exitcode, errors.read_text(errors="replace") + output.read_text(errors="replace")
                if status is None:
                    process.kill()
                statuses[command][str(status)] += 1
                problem = command_problem(status, said, output.read_text(), words, [] if listed else list(files))
                if problem:
                    broken.append(f"{command} {words}: {problem}")
                    for name, content in files.items():
                        if name in said.partition("Traceback")[2] or "lost" in problem:
                            keep_found(f"{seed}-{number}-{name}", content, broken[-1])
                    print(broken[-1], said[max(said.find("Traceback") - 200, 0) :][:6000], sep="\n", flush=True)
                for path in (output, errors, *folder.glob("store.db*")):
                    path.unlink()
            read += 0 if number % 2 else len(files)  # an odd option may be refused before any is read
            shutil.rmtree(root)
        left = sorted(path.name for path in folder.iterdir())
    print(json.dumps({"statuses": statuses, "files": read, "broken": len(broken), "left behind": left}, indent=1))
    print(f"highest resident memory of one process: {highest / 2**20:.0f} MiB")
    return int(bool(broken) or bool(left) or highest > MOST_RESIDENT)


def family(process: int) -> list[int]:
    """Resident memory of a process and of all below it."""
    try:
        return [resident(process), *(size for child in children(process) for size in family(child))]
    except (OSError, IndexError):  # it has just ended
        return []


def command_problem(status: int | None, said: str, printed: str, words: list[str], files: list[str]) -> str | None:
    """What of its promises a command has broken; `files` are all that it was asked for."""
    if status not in (0, 1, 2, 3):
        return f"exit status {status}"
    if "Traceback" in said or "\x1b" in said:
        return "a traceback, or a control character"
    if status in (1, 3):
        if "--format" in words or "--by" in words:
            return None
        rows = list(csv.DictReader(printed.splitlines()))
        decisions = {row.get("decision", row.get("status")) for row in rows}
        decisions |= {"check"} if "problem: " in said else set()  # `watch` has no row for a file that it cannot use
        if ("alarm" in decisions) != (status == 1) or not decisions & {"alarm", "check", "no signal"}:
            return f"exit status {status} of {decisions}"
    rows = list(csv.DictReader(printed.splitlines()))
    if words or not rows or "point" in rows[0]:  # `watch` counts points
        return None
    counted = sum(int(row.get("recordings") or 0) for row in rows)  # `data check` names those that it cannot use
    lost = [name for name in files if name not in said]
    return f"lost: {lost}" if len(lost) > counted else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    choices = ("server", "commands", "adapt", "check", "report", "all")
    parser.add_argument("--what", choices=choices, default="all")
    parser.add_argument(
        "--mutations", type=int, default=10_000, help="of each format through a server; a tenth of it by commands"
    )
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no more are sent")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    from tests import fuzz_runs

    others = fuzz_runs.PARTS
    parts = [given.what] if given.what != "all" else ["commands", "server", *others]
    failed, share = 0, given.seconds / len(parts)
    for part in parts:
        if part == "server":
            failed |= attack(given.mutations, given.seed, given.clients, share)
        else:
            attacked = attack_commands if part == "commands" else others[part]
            failed |= attacked(given.mutations // 10, given.seed, share) > 0
    sys.exit(failed)
