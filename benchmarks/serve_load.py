"""How long requests wait when many come at once, how many are lost, and what honest ones wait beside impolite clients.

Small WAV files and windows as JSON, from 32 and 128 clients at a time. With --beside, a server of another version
answers in turn with this one, so that both see the same machine:

    python benchmarks/serve_load.py model.onnx --beside ../older/src
    python benchmarks/serve_load.py model.onnx --impolite --seconds 10
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
from collections import Counter
from pathlib import Path

import numpy as np
from impolite import CLIENTS
from scipy.io import wavfile

START = "from bearcat.cli import main; main()"
OWN = Path(__file__).parents[1] / "src"
Body = tuple[str, str, bytes]


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


def asked(
    port: int, bodies: list[Body], seconds: float, at_once: int, source: str = "127.0.0.1", pause: float = 0.0
) -> tuple[list[float], Counter[str]]:
    """Seconds of each request that was answered well, and how many had another status, or none."""
    found, lost, lock = list[float](), Counter[str](), threading.Lock()
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))
        while time.monotonic() < end:
            number += 1
            path, kind, body = bodies[number % len(bodies)]
            start = time.perf_counter()
            try:
                connection.request("POST", path, body, {"Content-Type": kind})
                answer = connection.getresponse()
                answer.read()
                status = str(answer.status)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                status = type(error).__name__
            with lock:
                if status == "200":
                    found.append(time.perf_counter() - start)
                else:
                    lost[status] += 1
            time.sleep(pause)
        connection.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, lost


def described(found: list[float], lost: Counter[str], seconds: float) -> str:
    times = 1000 * np.array(found or [np.nan])
    return (
        f"{len(found):6d} answered ({len(found) / seconds:.0f}/s), median {np.median(times):.0f} ms,"
        f" p99 {np.percentile(times, 99):.0f} ms, longest {times.max():.0f} ms; lost {sum(lost.values())} {dict(lost)}"
    )


def beside(kind: str, port: int, wav: Body, seconds: float, source: str) -> str:
    """What honest requests from 127.0.0.1 wait beside clients of this kind."""
    words = [sys.executable, str(Path(__file__).with_name("impolite.py")), kind, str(port)]
    process = subprocess.Popen(
        [*words, "--source", source, "--seconds", str(seconds + 2)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1)
    found, lost = asked(port, [wav], seconds, 1, pause=0.02)
    process.wait()
    return described(found, lost, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument("--beside", type=Path, help="the src folder of another version")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--at-once", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--rounds", type=int, default=2, help="into which the seconds are cut, the versions in turn")
    parser.add_argument("--impolite", nargs="*", choices=list(CLIENTS), help="beside such clients; none: each kind")
    parser.add_argument("--source", default="127.0.0.2", help="the address that impolite clients come from")
    parser.add_argument("--length", type=int, default=256, help="samples in a window of the model")
    chosen = parser.parse_args()
    samples = np.random.default_rng(0).standard_normal(4 * chosen.length).astype(np.float32)
    file = io.BytesIO()
    wavfile.write(file, 12_000, samples)
    windows = json.dumps({"windows": samples.reshape(4, -1).round(3).tolist()}).encode()
    wav = ("/predict?filename=a.wav", "application/octet-stream", file.getvalue())
    servers = {name: started(chosen.model, source) for name, source in
               (("this", OWN), ("beside", chosen.beside)) if source is not None}  # fmt: skip
    for _, port in servers.values():
        asked(port, [wav], 2.0, 8)  # to warm up
    for kind in () if chosen.impolite is None else chosen.impolite or CLIENTS:
        for name, (_, port) in servers.items():
            print(f"{name} beside {kind}: {beside(kind, port, wav, chosen.seconds, chosen.source)}", flush=True)
    for at_once in (1, *chosen.at_once) if chosen.impolite is None else ():
        found = {name: (list[float](), Counter[str]()) for name in servers}
        for number in range(chosen.rounds):
            for name in list(servers)[:: 1 if number % 2 else -1]:
                bodies = [wav] if at_once == 1 else [wav, ("/predict", "application/json", windows)]
                more, lost = asked(servers[name][1], bodies, chosen.seconds / chosen.rounds, at_once)
                found[name][0].extend(more)
                found[name][1].update(lost)
        for name, (times, lost) in found.items():
            print(f"{name}, {at_once} at a time: {described(times, lost, chosen.seconds)}", flush=True)
    for process, _ in servers.values():
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
