"""Measures one recording of a second at 51.2 kHz on one core, from file to decision, and the start of a command.

    python benchmarks/recording_speed.py                               # a few minutes
    python benchmarks/recording_speed.py --beside ../older/src         # an earlier version, in the same run

Three ways: `diagnose` (physics and general model), `predict` with a model folder and with an ONNX file (network, physics,
general model and decision). Eight recordings with different speeds take turns, so caches from the last one do not help.
Each version is a process pinned to one core with one thread; processes are called in random order. Printed are medians
of wall and processor time (including child processes), multiples of real time and of one float32 FFT of the recording's
length. The model has the default's input and layers, and random weights.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

RATE, RPM, SECONDS, RECORDINGS = 51_200, 1200.0, 1.0, 8
INPUT = "physics:use=log-spectrum,octave-spectrum,band-kurtosis,envelope-orders:last=40.0"
LENGTH, STRIDE, KEPT = 16_384, 4096, 1024
WAYS = {"diagnose": ("diagnose",), "model folder": ("predict", "model"), "ONNX file": ("predict", "model.onnx")}
CALL = "import sys; from bearcat.cli import main; sys.argv[0] = 'bearcat'; main()"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def make_recordings(folder: Path) -> None:
    """Noise, a shaft, and an outer race that rings at 4 kHz, in float32 wav files."""
    from scipy.io import wavfile

    drawn, time_axis = np.random.default_rng(0), np.arange(int(RATE * SECONDS)) / RATE
    folder.mkdir()
    for number in range(RECORDINGS):
        shaft = RPM / 60 * (1 + 0.01 * drawn.uniform(-1, 1))
        # Rollers slip: pulses at exactly equal distances are tones, which whitening takes away.
        pulses = np.cumsum((1 + 0.005 * drawn.standard_normal(int(8 * shaft))) / (3.585 * shaft)) - SECONDS / 2
        since = time_axis - pulses[np.searchsorted(pulses, time_axis, side="right") - 1]
        ringing = np.exp(-900 * since) * np.sin(2 * np.pi * 4000 * since)
        tones = sum(np.sin(2 * np.pi * each * shaft * time_axis) / each for each in (1, 2, 3, 4))
        signal = 0.1 * drawn.standard_normal(time_axis.size) + 0.05 * tones + 0.3 * ringing
        wavfile.write(folder / f"{number}.wav", RATE, signal.astype(np.float32))


def make_models(folder: Path) -> None:
    """A model folder and the ONNX file of it; the time they take does not depend on what they know."""
    import torch

    from bearcat.cat import Calibration
    from bearcat.cat.networks import InputScaling, build_network, initialise
    from bearcat.data.bearing import find_bearing
    from bearcat.data.inputs import Preparation
    from bearcat.data.recording import BANDS
    from bearcat.deploy.model import Model, export_onnx, save_model
    from bearcat.diagnosis.decision import Decision
    from bearcat.diagnosis.pooling import fit_familiarity

    names, encoder = ("Normal", "IR2", "IR5", "IR8", "OR2", "OR5", "OR8"), "dense:widths=256,128"
    preparation = Preparation(input=INPUT, length=LENGTH, stride=STRIDE)
    network = build_network(encoder, 1, 1, preparation.points, len(names))
    initialise(network, [0], 0)
    network.scaling = InputScaling(torch.zeros(1, 1, preparation.points), torch.ones(1, 1, preparation.points))
    drawn = np.random.default_rng(0)
    features, shapes = drawn.standard_normal((KEPT, 128)), drawn.standard_normal((KEPT, BANDS))
    known = np.arange(KEPT) % len(names)
    familiarity = fit_familiarity(features, shapes, known, features[:70], shapes[:70], known[:70])
    model = Model(
        classes=names, channels=1, preparation=preparation, rate=float(RATE), rpm=RPM, channel=None,
        bearing=find_bearing("6205"), pooled_temperature=1.0, decision=Decision("use", 0.9, (0.8, 1.0)), metadata={},
        familiarity=familiarity, network=network.requires_grad_(False),
        calibration=Calibration.identity(1, len(names)), encoder=encoder, calibrator="Temperature",
    )  # fmt: skip
    wanted = {"familiarity": {}, "calibrated": True, "calibration_at_bound": False}  # by v0.3
    save_model(folder / "model", replace(model, metadata=wanted))
    export_onnx(model, folder / "model.onnx")


def words(way: str, folder: Path) -> list[str]:
    """The command line of a way, for one recording."""
    command, *model = WAYS[way]
    bearing = ["--bearing", "6205", "--rpm", f"{RPM:g}"]
    return [command, *(str(folder / each) for each in model), str(folder / "recordings" / "0.wav"), *bearing]


def work(way: str, folder: Path) -> None:
    """Diagnoses one recording for each line it is given, and answers with wall and processor time in seconds."""
    with suppress(ImportError):  # earlier versions have none
        from bearcat.cli import use_one_core

        use_one_core()
    from bearcat.data.bearing import find_bearing

    new = importlib.util.find_spec("bearcat.deploy.predict") is None  # else v0.3
    module: Any = importlib.import_module(f"bearcat.deploy{'' if new else '.predict'}")
    models: Any = importlib.import_module("bearcat.deploy.opened") if new else module

    def run(file: Path, model: Any, given: Any) -> Any:
        if new:
            requests: Any = importlib.import_module("bearcat.settings")
            request = requests.DiagnoseRequest(rpm=str(RPM), bearing="6205")
            return module.diagnose([file], model, request=request)
        find: Any = importlib.import_module("bearcat.deploy.find")
        measured = find.find_measurements([file], model)
        return [each for found in measured for each in module.diagnose_measurement(found, model, given)]

    _, *named = WAYS[way]
    bearing, files = find_bearing("6205"), sorted((folder / "recordings").glob("*.wav"))
    model = models.open_model(folder / named[0]) if named else None
    given = module.Given(rpm=RPM, bearing=bearing)
    for number, _ in enumerate(sys.stdin):
        found: Any = None
        wall, processor = time.perf_counter(), processor_time()
        found = run(files[number % len(files)], model, given)
        took = time.perf_counter() - wall, processor_time() - processor
        print(json.dumps([*took, found[0].decision.action]), flush=True)


def processor_time() -> float:
    """Of this process and those it has started, in seconds."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    mine = children.read_text().split() if children.exists() else []
    ran = [int(Path(f"/proc/{each}/schedstat").read_text().split()[0]) for each in mine]
    return time.process_time() + sum(ran) / 1e9


class Version:
    """A source folder, and a process for each of its ways, which answers with what a recording took."""

    def __init__(self, name: str, source: Path, folder: Path, ways: Sequence[str]) -> None:
        self.name, self.folder, self.environment = name, folder, os.environ | ONE_THREAD | {"PYTHONPATH": str(source)}
        self.workers = {way: self._worker(way) for way in ways}

    def _worker(self, way: str) -> subprocess.Popen[str]:
        call = [sys.executable, __file__, "--worker", way, "--folder", str(self.folder)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        worker = subprocess.Popen(call, env=self.environment, **pipes)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(worker.pid, {min(os.sched_getaffinity(0))})
        return worker

    def ask(self, way: str) -> tuple[float, float]:
        """Wall and processor time of one recording."""
        pipes = self.workers[way]
        assert pipes.stdin
        assert pipes.stdout
        print("one", file=pipes.stdin, flush=True)
        wall, processor, _ = json.loads(pipes.stdout.readline())
        return wall, processor

    def start(self, way: str) -> tuple[float, float]:
        """Wall and processor time of a command for one recording, from its start to its end."""
        before, wall = os.times(), time.perf_counter()
        call = [sys.executable, "-c", CALL, *words(way, self.folder)]
        subprocess.run(call, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return time.perf_counter() - wall, used

    def end(self) -> None:
        for worker in self.workers.values():
            worker.communicate()  # which closes what it reads


def fft_floor(repeats: int) -> tuple[float, float]:
    """Wall and processor time of one float32 FFT of the recording's length, medians."""
    from scipy import fft

    signal, found = np.random.default_rng(0).standard_normal(int(RATE * SECONDS)).astype(np.float32), []
    for _ in range(10 * repeats):
        wall, processor = time.perf_counter(), time.process_time()
        fft.rfft(signal)
        found.append((time.perf_counter() - wall, time.process_time() - processor))
    return statistics.median(each[0] for each in found), statistics.median(each[1] for each in found)


def table(measured: dict[tuple[str, str], list[tuple[float, float]]], versions: Sequence[str], unit: float) -> None:
    """Medians of wall and processor time by version and way, in units of a second, and ratios."""
    for way in dict.fromkeys(way for _, way in measured):
        middle = {}
        for version in (version for version in versions if (version, way) in measured):
            walls, processors = zip(*measured[version, way], strict=True)
            middle[version] = statistics.median(walls), statistics.median(processors)
            spread = f"({unit * min(processors):.3g} to {unit * max(processors):.3g})"
            print(
                f"{way:<13} {version:<7} {unit * middle[version][0]:>9.2f} {unit * middle[version][1]:>9.2f} {spread}"
            )
        if len(middle) > 1:
            now, before = (middle[version] for version in versions)
            print(f"{'':<13} before / now {before[0] / now[0]:>4.1f} {before[1] / now[1]:>9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40, help="Recordings of each way and version.")
    parser.add_argument("--starts", type=int, default=5, help="Commands of each way and version.")
    parser.add_argument("--beside", type=Path, metavar="SRC", help="The source folder of an earlier version.")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_recordings(folder / "recordings")
        make_models(folder)
        sources = {"now": Path(__file__).parents[1] / "src"} | ({"before": options.beside} if options.beside else {})
        ways = {"now": list(WAYS), "before": list(WAYS)[:2]}  # an earlier version reads no graph of this one
        versions = [Version(name, source.resolve(), folder, ways[name]) for name, source in sources.items()]
        steady: dict[tuple[str, str], list[tuple[float, float]]] = {}
        starts: dict[tuple[str, str], list[tuple[float, float]]] = {}
        pairs = [(version, way) for version in versions for way in version.workers]
        for repeat in range(-3, options.repeats):  # the first three warm
            for version, way in random.sample(pairs, len(pairs)):
                took = version.ask(way)
                if repeat >= 0:
                    steady.setdefault((version.name, way), []).append(took)
        floor = fft_floor(options.repeats)
        for version in versions:
            version.end()
        for _ in range(options.starts):
            for version, way in random.sample(pairs, len(pairs)):
                starts.setdefault((version.name, way), []).append(version.start(way))
    print(f"{platform.processor() or platform.machine()}, numpy {np.__version__}; one core, one thread")
    print(f"\none recording of {SECONDS:g} s at {RATE} Hz, {options.repeats} each; ms: wall, processor (least to most)")
    table(steady, list(sources), 1000)
    print(f"one FFT of {int(RATE * SECONDS)} samples: {1000 * floor[0]:.2f} {1000 * floor[1]:.2f}")
    for way in WAYS:
        taken = statistics.median(each[1] for each in steady["now", way])
        multiples = f"{SECONDS / taken:.0f} × real time, {taken / floor[1]:.0f} × the FFT floor"
        print(f"{way}: {multiples} (processor time)")
    print(f"\na command for one recording, {options.starts} each; seconds: wall, processor")
    table(starts, list(sources), 1)


if __name__ == "__main__":
    main()
