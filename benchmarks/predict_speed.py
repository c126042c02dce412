"""Windows per second from raw samples to calibrated probabilities: torch, onnxruntime, and a plain loop, side by side.

    python benchmarks/predict_speed.py                     # time input, 1024 samples, 13 classes

Each way is timed `--repeats` times on the same windows, in an order drawn anew for each repeat; the medians (and the
slowest and fastest) are printed, and the ratios last. "loop" is what one writes first: the same network, one window at a
time, in eager torch. Threads are set for each way, so that one core and two are measured in one process.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from bearcat.calibration import Calibration
from bearcat.data.prepare import Preparation
from bearcat.deploy import model as artefact
from bearcat.deploy import predictor
from bearcat.deploy.model import Model, export_onnx
from bearcat.models.networks import build_network, initialise
from bearcat.trust.decision import Decision

CLASSES = 13
GOAL, GOAL_RATIO = 1500, 5


def made_model(kind: str, length: int) -> Model:
    """An untrained network; the time it takes does not depend on what it knows."""
    preparation = Preparation(input=kind, length=length)
    network = build_network("cnn", 1, 1, preparation.points, CLASSES)
    initialise(network, [0], 0)
    with torch.no_grad():
        network(torch.randn(1, 64, 1, preparation.points), batch_statistics=True)
    network.requires_grad_(False)
    names = tuple(str(number) for number in range(CLASSES))
    return Model(
        names,
        preparation,
        None,
        {"decision": asdict(Decision("check"))},
        network=network,
        calibration=Calibration.identity(1, CLASSES),
    )


def with_threads(count: int, work: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        torch.set_num_threads(count)
        return work()

    return run


def single_windows(model: Model, windows: np.ndarray) -> np.ndarray:
    """One window after the other, each standardised, through the network and calibrated by itself."""
    return np.concatenate([model.log_probabilities(windows[at : at + 1]) for at in range(len(windows))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--input", choices=("time", "frequency"), default="time")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, nargs="+", default=[16], help="Windows a call; try 8 16 32 64 128.")
    options = parser.parse_args()
    model = made_model(options.input, options.length)
    drawn = np.random.default_rng(0)
    windows = drawn.standard_normal((options.windows, 1, options.length)).astype(np.float32)
    few = windows[: max(options.windows // 4, 1)]  # for the slow loop

    ways: dict[str, tuple[int, Callable[[], object]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(model, Path(folder) / "model.onnx")
        graphs = {cores: predictor.load_onnx(path, threads=cores) for cores in (1, 2)}
    gap = np.abs(graphs[1].log_probabilities(few) - model.log_probabilities(few)).max()

    def batched(name: str, size: int, cores: int) -> Callable[[], object]:
        def run() -> object:
            vars(artefact)["BATCH"] = vars(predictor)["BATCH"] = size
            return (graphs[cores] if name == "onnxruntime" else model).log_probabilities(windows)

        return with_threads(cores, run)

    for cores in (1, 2):
        for size in options.batch:
            for name in ("torch", "onnxruntime"):
                ways[f"{name}, batch {size}, {cores} core(s)"] = (len(windows), batched(name, size, cores))
    ways["loop over single windows, torch, 1 core"] = (len(few), with_threads(1, lambda: single_windows(model, few)))

    for _, work in ways.values():  # warm
        work()
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name in random.sample(sorted(ways), len(ways)):
            count, work = ways[name]
            start = time.perf_counter()
            work()
            speeds[name].append(count / (time.perf_counter() - start))

    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    )
    print(f"{options.input} input, {options.length} samples, {options.windows} windows, {options.repeats} repeats")
    print(f"largest difference of log-probabilities: {gap:.1e}")
    middle = {name: statistics.median(found) for name, found in speeds.items()}
    for name, found in speeds.items():
        print(f"{name:<42} {middle[name]:>7.0f} windows/s  ({min(found):.0f} to {max(found):.0f})")
    single = middle["loop over single windows, torch, 1 core"]
    for name in ("torch", "onnxruntime"):
        best = max(
            (way for way in middle if way.startswith(f"{name},") and way.endswith("1 core(s)")), key=middle.__getitem__
        )
        print(
            f"{best}: {middle[best]:.0f} windows/s (goal {GOAL}), {middle[best] / single:.1f} × the loop (goal {GOAL_RATIO})"
        )


if __name__ == "__main__":
    main()
