"""How fast recordings become windows: side by side with the plain way, in one run, ratios last.

1. PU-sized data (52 recordings × 256 000 samples): cut + standardise, and cut + spectrum + standardise, against a
   Python loop over windows, as the published research code does it and tidied.
2. The 40 CWRU files from the warm cache against reading the .mat files; skipped where the files are not at hand.

    python benchmarks/data_speed.py [--root FOLDER_OF_CWRU] [--repeats 5]
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from bearcat.data import CWRU, Preparation, Recording, cached_windows, load, prepare


def plain_loop(signals: list[np.ndarray], kind: str, published: bool) -> list[np.ndarray]:
    """One window after the other, float64 as the readers of .mat files hand it over.

    `published`: half of the bins are taken by a list of their numbers, and the windows kept as columns that are turned
    and standardised one by one afterwards, as in the research code the paper's numbers come from.
    """
    windows = []
    for signal in signals:
        start = 0
        while start + 1024 <= len(signal):
            window = signal[start : start + 1024]
            if kind == "frequency":
                window = np.abs(np.fft.fft(window)) / len(window)
                window = window[list(range(512))] if published else window[:512]
            windows.append(window.reshape(-1, 1) if published else window)
            start += 1024
    rows = (window.transpose() if published else window for window in windows)
    return [((row - row.mean()) / row.std()).astype(np.float32) for row in rows]


def side_by_side(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds a call of each way, in an order shuffled anew for each repeat, after one round to warm up.

    Short calls are timed over several, at least 0.3 s together.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name in random.sample(list(ways), len(ways)):
            start, calls = time.perf_counter(), 0
            while calls == 0 or time.perf_counter() - start < 0.3:
                ways[name]()
                calls += 1
            if repeat:
                times[name].append((time.perf_counter() - start) / calls)
    return times


def report(title: str, times: dict[str, list[float]]) -> float:
    """Prints median and range of each way, and how much slower than the last it is; returns the first one's ratio."""
    print(f"{title} (n = {len(next(iter(times.values())))})")
    fastest = median(list(times.values())[-1])
    for name, seconds in times.items():
        spread = f"({1e3 * min(seconds):.1f}–{1e3 * max(seconds):.1f})"
        print(f"  {name:<34} {1e3 * median(seconds):9.1f} ms  {spread:<17} {median(seconds) / fastest:6.1f}×")
    return median(next(iter(times.values()))) / fastest


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("BEARCAT_DATA") or Path(__file__).parents[2] / "shared" / "data")
    options.add_argument("--root", type=Path, default=data / "cwru", help="the folder of the CWRU files")
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    print(f"{os.cpu_count()} cores, numpy {np.__version__}, float32")

    noise = np.random.default_rng(0)
    recordings = [
        Recording(
            signal=noise.standard_normal(256_000, dtype=np.float32), rate=64_000.0, label="x", domain="d",
            channel="1", origin=str(number),
        )
        for number in range(52)
    ]  # fmt: skip
    signals = [recording.signal.astype(np.float64) for recording in recordings]  # what a .mat file's reader hands over
    both = ("time", "frequency")
    for kind in both:  # the two ways agree before they are compared
        ours = prepare(recordings[:2], Preparation(input=kind)).values[:, 0]
        for published in (True, False):
            theirs = np.stack(plain_loop(signals[:2], kind, published)).reshape(ours.shape)
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
    times = side_by_side(
        {
            "loop over windows, as published": lambda: [plain_loop(signals, kind, True) for kind in both],
            "the same loop, tidied": lambda: [plain_loop(signals, kind, False) for kind in both],
            "bearcat.data.prepare": lambda: [prepare(recordings, Preparation(input=kind)) for kind in both],
        },
        chosen.repeats,
    )
    prepared = report("cut + standardise + spectrum, 52 × 256 000 samples, time and frequency input", times)

    if not chosen.root.is_dir():
        print(f"no CWRU files in {chosen.root}: the cache was not measured")
        print(f"prepare is {prepared:.1f}× the published loop (goal: 20×)")
        return
    catalogue = CWRU(root=chosen.root).catalogue()
    domains = [catalogue.only([domain]) for domain in catalogue.domains]
    with tempfile.TemporaryDirectory() as folder:
        times = side_by_side(
            {
                "reading the .mat files": lambda: load(catalogue),
                "prepared windows, warm cache": lambda: [
                    cached_windows(domain, Preparation(), Path(folder)) for domain in domains
                ],
            },
            chosen.repeats,
        )
    loaded = report(f"{len(catalogue.entries)} CWRU files", times)
    print(f"prepare is {prepared:.1f}× the published loop (goal: 20×)")
    print(f"the cache is {loaded:.1f}× reading the .mat files (goal: 10×)")


if __name__ == "__main__":
    main()
