"""How long requests wait when many come at once, how many are lost, and what the reader processes cost.

Small WAV files and windows as JSON, 32 at a time. With --beside, a server of another version answers in turn with this
one, so that both see the same machine:

    python benchmarks/serve_load.py model.onnx --beside ../older/src
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from scipy.io import wavfile

START = "from bearcat.cli import main; main()"
OWN = Path(__file__).parents[1] / "src"


def started(model: Path, source: Path) -> tuple[subprocess.Popen[str], int]:
    """A server of the package in this folder, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, "serve", str(model), "--port", "0"], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    found = re.search(r":(\d+) ", process.stdout.readline())
    assert found is not None, "the server did not start"
    return process, int(found[1])


def asked(port: int, bodies: list[tuple[str, str, bytes]], count: int, at_once: int) -> tuple[list[float], int]:
    """Seconds of each request, and how many had no good answer."""
    numbers, lock, seconds, lost = iter(range(count)), threading.Lock(), list[float](), [0]

    def ask(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            path, kind, body = bodies[number % len(bodies)]
            start = time.perf_counter()
            try:
                connection.request("POST", path, body, {"Content-Type": kind})
                answer = connection.getresponse()
                answer.read()
                good = answer.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
                good = False
            with lock:
                seconds.append(time.perf_counter() - start)
                lost[0] += not good
        connection.close()

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(ask, range(at_once)))
    return seconds, lost[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument("--beside", type=Path, help="the src folder of another version")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4, help="in which the requests are sent, the versions in turn")
    parser.add_argument("--length", type=int, default=256, help="samples in a window of the model")
    chosen = parser.parse_args()
    samples = np.random.default_rng(0).standard_normal(4 * chosen.length).astype(np.float32)
    file = io.BytesIO()
    wavfile.write(file, 12_000, samples)
    windows = json.dumps({"windows": samples.reshape(4, -1).round(3).tolist()}).encode()
    wav = ("/predict?filename=a.wav", "application/octet-stream", file.getvalue())
    mixed = [wav, ("/predict", "application/json", windows)]
    servers = {name: started(chosen.model, source) for name, source in
               (("this", OWN), ("beside", chosen.beside)) if source is not None}  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in servers}
    alone: dict[str, list[float]] = {name: [] for name in servers}
    lost = dict.fromkeys(servers, 0)
    for number in range(chosen.rounds + 1):
        for name in list(servers)[:: 1 if number % 2 else -1]:
            port = servers[name][1]
            seconds, missing = asked(port, mixed, chosen.requests // chosen.rounds, chosen.at_once)
            single, _ = asked(port, [wav], 100, 1)
            if number:  # the first round warms up
                found[name] += seconds
                alone[name] += single
                lost[name] += missing
    for name, (process, _) in servers.items():
        times, one = 1000 * np.array(found[name]), 1000 * np.array(alone[name])
        print(f"{name}: {len(times)} requests, {chosen.at_once} at a time, {lost[name]} lost;"
              f" median {np.median(times):.1f} ms, p99 {np.percentile(times, 99):.1f} ms;"
              f" a small WAV alone: median {np.median(one):.2f} ms, fastest tenth {np.percentile(one, 10):.2f} ms")  # fmt: skip
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
