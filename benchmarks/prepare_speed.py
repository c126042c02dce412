"""Preparing the input `physics`, ours and a plain loop over windows with SciPy, side by side in one run.

    python benchmarks/prepare_speed.py                    # one thread; CPU time, so that neighbours count little

The loop is what one would write first: for every window and band, zero the other bins, take SciPy's Hilbert transform,
its spectrum by an FFT, and read that at the orders. Ours also gives these orders exactly, between the FFT's bins.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import scipy
import torch
from scipy import signal

from bearcat.data.inputs import PARTS, Physics

RATE, RPM = 51_200.0, 900.0


def band_envelope(lines: np.ndarray, band: int, bands: int, length: int) -> np.ndarray:
    width = length // 2 // bands
    alone = np.zeros_like(lines)
    alone[band * width : (band + 1) * width] = lines[band * width : (band + 1) * width]
    envelope: np.ndarray = np.abs(signal.hilbert(np.fft.irfft(alone, length)))
    return envelope


def plain(windows: np.ndarray) -> np.ndarray:
    """(window, time) → (window, point), a window and a band at a time."""
    rows, length = [], windows.shape[1]
    taper = signal.get_window("hann", length)
    orders = np.linspace(0.5, 40, 160)
    for window in windows:
        centred = (window - window.mean()) / window.std()
        power = np.abs(np.fft.rfft(centred * taper)) ** 2
        bands = np.log([part.mean() for part in np.array_split(power[1:-1], 128)])
        lines = np.fft.rfft(centred)
        impulsive, spectra = [], []
        for band in range(16):
            envelope = band_envelope(lines, band, 16, length)
            impulsive.append(np.log((envelope**4).mean() / (envelope**2).mean() ** 2))
        for band in range(4):
            envelope = band_envelope(lines, band, 4, length)
            envelope = (envelope / envelope.mean() - 1) * taper
            level = 2 * np.abs(np.fft.rfft(envelope)) / taper.sum()
            frequencies = np.arange(len(level)) * RATE / length
            spectra.append(np.log(np.interp(orders * RPM / 60, frequencies, level) + 1e-6))
        flat = np.concatenate(spectra)
        rows.append(np.concatenate([bands - bands.mean(), impulsive, (flat - flat.mean()) / flat.std()]))
    return np.array(rows)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The least CPU time of some repeats."""
    measured = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        measured.append(time.process_time() - begin)
    return min(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--windows", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, one thread, numpy {np.__version__}, scipy {scipy.__version__}, torch {torch.__version__}"
    )
    chosen = Physics(PARTS[:3])
    for length in options.lengths:
        windows = np.random.default_rng(0).standard_normal((options.windows, 1, length)).astype(np.float32)
        few = windows[: max(1, options.windows // 16), 0]
        alike = np.corrcoef(
            plain(few[:4])[:, :144].ravel(), chosen.transform(windows[:4], RATE, RPM)[:, 0, :144].ravel()
        )
        slow = seconds(partial(plain, few), options.repeats) / len(few)
        fast = seconds(partial(chosen.transform, windows, RATE, RPM), options.repeats) / len(windows)
        print(
            f"window of {length:6d}: loop {1e3 * slow:7.3f} ms, ours {1e3 * fast:7.3f} ms, ratio {slow / fast:5.1f};"
            f" {length / RATE / fast:6.0f} times real time at {RATE:g} Hz (bands and kurtosis correlate {alike[0, 1]:.4f})"
        )


if __name__ == "__main__":
    main()
