"""Measures one recording of a second at 51.2 kHz on one core, from file to decision, and the start of a command.

    PYTHONPATH=src python benchmarks/recording_speed.py       # a few minutes; another version: PYTHONPATH at its source

Three ways: `diagnose` (physics and general model), `predict` with a model folder and with an ONNX file (network, physics,
general model and decision). Eight recordings with different speeds take turns, so caches from the last one do not help;
the ways are called in random order. Printed are medians of wall and processor time, multiples of real time and of one
float32 FFT of the recording's length. The model has the default's input and layers, and random weights.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bearcat.cli import use_one_core

use_one_core()  # before numpy is loaded
import numpy as np  # noqa: E402

RATE, RPM, SECONDS, RECORDINGS = 51_200, 1200.0, 1.0, 8
INPUT = "physics:use=log-spectrum,octave-spectrum,band-kurtosis,envelope-orders:last=40.0"
LENGTH, STRIDE, KEPT = 16_384, 4096, 1024
WAYS = {"diagnose": ("diagnose",), "model folder": ("predict", "model"), "ONNX file": ("predict", "model.onnx")}
CALL = "from bearcat.cli import main; main()"
Times = dict[str, list[tuple[float, float]]]  # wall and processor time in seconds, by way


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
    save_model(folder / "model", model)
    export_onnx(model, folder / "model.onnx")


def processor_time() -> float:
    """Of this process and of those that it has waited for, in seconds."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor time of a call."""
    wall, processor = time.perf_counter(), processor_time()
    call()
    return time.perf_counter() - wall, processor_time() - processor


def recordings(folder: Path, repeats: int) -> Times:
    """What one recording takes each way."""
    from bearcat.deploy import diagnose
    from bearcat.deploy.opened import open_model
    from bearcat.settings import DiagnoseRequest

    request, taken = DiagnoseRequest(rpm=str(RPM), bearing="6205"), Times()
    models = {way: open_model(folder / model[0]) if model else None for way, (_, *model) in WAYS.items()}
    files = sorted((folder / "recordings").glob("*.wav"))
    for repeat in range(-3, repeats):  # the first three warm
        for way in random.sample(list(WAYS), len(WAYS)):
            file = files[repeat % len(files)]
            took = timed(lambda file=file, way=way: diagnose([file], models[way], request=request))  # type: ignore[misc]
            if repeat >= 0:
                taken.setdefault(way, []).append(took)
    return taken


def starts(folder: Path, repeats: int) -> Times:
    """What a command for one recording takes, from its start to its end."""
    taken = defaultdict[str, list[tuple[float, float]]](list)
    recording = [str(folder / "recordings" / "0.wav"), "--bearing", "6205", "--rpm", f"{RPM:g}"]
    for _ in range(repeats):
        for way, (command, *model) in random.sample(list(WAYS.items()), len(WAYS)):
            call = [sys.executable, "-c", CALL, command, *(str(folder / name) for name in model), *recording]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            taken[way].append(timed(lambda call=call, quiet=quiet: subprocess.run(call, check=False, **quiet)))  # type: ignore[misc]
    return taken


def fft_floor(repeats: int) -> float:
    """Processor time of one float32 FFT of the recording's length."""
    from scipy import fft

    signal = np.random.default_rng(0).standard_normal(int(RATE * SECONDS)).astype(np.float32)
    started = time.process_time()
    for _ in range(10 * repeats):
        fft.rfft(signal)
    return (time.process_time() - started) / (10 * repeats)


def table(taken: Times, unit: float) -> None:
    """Medians of wall and processor time by way, in units of a second."""
    for way, pairs in taken.items():
        walls, processors = zip(*pairs, strict=True)
        spread = f"({unit * min(processors):.3g} to {unit * max(processors):.3g})"
        middle = unit * statistics.median(walls), unit * statistics.median(processors)
        print(f"{way:<13} {middle[0]:>9.2f} {middle[1]:>9.2f} {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40, help="Recordings of each way.")
    parser.add_argument("--starts", type=int, default=5, help="Commands of each way.")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_recordings(folder / "recordings")
        make_models(folder)
        steady, started = recordings(folder, options.repeats), starts(folder, options.starts)
    print(f"{platform.processor() or platform.machine()}, numpy {np.__version__}; one core, one thread")
    print(f"\none recording of {SECONDS:g} s at {RATE} Hz, {options.repeats} each; ms: wall, processor (least to most)")
    table(steady, 1000)
    floor = fft_floor(options.repeats)
    print(f"one FFT of {int(RATE * SECONDS)} samples: {1000 * floor:.2f}")
    for way, pairs in steady.items():
        taken = statistics.median(processor for _, processor in pairs)
        print(f"{way}: {SECONDS / taken:.0f} × real time, {taken / floor:.0f} × the FFT floor (processor time)")
    print(f"\na command for one recording, {options.starts} each; seconds: wall, processor")
    table(started, 1)


if __name__ == "__main__":
    main()
