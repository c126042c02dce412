"""Mutated recordings of every format: none may end the process that reads it, nor be its fault.

The everyday test (test_hostile.py) does this for some seconds; `make fuzz` sends each format ten thousand mutations
through a server, and prints statuses, deaths and memory.

    python -m tests.fuzz --mutations 10000
"""

from __future__ import annotations

import argparse
import http.client
import io
import itertools
import json
import os
import random
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from scipy.io import savemat, wavfile

from tests.test_formats import write_instrument

WORDS = [struct.pack(form, value) for form in ("<i", ">i", "<q") for value in (-1, 2**31 - 1, -(2**31), 0, 1, 2**30)]
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


def mutations(seed: int) -> Iterator[tuple[str, bytes]]:
    """Mutated files without end, the formats in turn."""
    files, chance = honest_files(), random.Random(seed)
    by_format: dict[str, list[str]] = {}
    for name in files:
        by_format.setdefault(format_of(name), []).append(name)
    for names in itertools.cycle(by_format.values()):
        name = chance.choice(names)
        yield name, mutated(files[name], chance, [files[other] for other in names])


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
        source, lock, left = mutations(seed), threading.Lock(), [count * formats]
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
                start = time.perf_counter()
                try:
                    channel = "&channel=1" if name.endswith(".wav") else ""
                    connection.request("POST", f"/predict?filename={name}&rate=12000{channel}", content, BINARY)
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
                        kept = Path(tempfile.gettempdir()) / f"fuzz-{status}-{left[0]}-{name}"
                        kept.write_bytes(content)
                        print(f"{status}: kept as {kept}", flush=True)
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10_000, help="of each format")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no more are sent")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    sys.exit(attack(chosen.mutations, chosen.seed, chosen.clients, chosen.seconds))
