"""Preparing the input `physics`, ours and a plain loop over windows with SciPy, side by side in one run; and predict.

    python benchmarks/prepare_speed.py                    # one thread; CPU time, so that neighbours count little
    python benchmarks/prepare_speed.py --seconds 3600     # predict on a recording of an hour, with its memory

The loop is what one would write first: for every window and band, zero the other bins, take SciPy's Hilbert transform,
its spectrum by an FFT, and read that at the orders. Ours also gives these orders exactly, between the FFT's bins.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat

import numpy as np
import scipy
import torch
from scipy import signal

from bearcat.data.inputs import INPUTS, PARTS, Physics
from bearcat.data.prepare import Preparation
from bearcat.data.stream import Stream
from bearcat.deploy.model import Model
from bearcat.deploy.predict import tally_stream
from bearcat.models.networks import build_network, initialise
from bearcat.settings import to_text

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


def predict(length: int, duration: float) -> None:
    """Diagnoses a stream of so many seconds with a dense network, and prints its speed and the memory it took."""
    preparation = Preparation(to_text(Physics(PARTS[:4]), INPUTS), length)
    network = build_network("dense", 1, 1, preparation.points, 7).requires_grad_(False)
    initialise(network, [0], 0)
    model = Model(tuple("abcdefg"), preparation, RATE, {}, network=network, calibration=None, encoder="dense")
    block = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    blocks = repeat(block, max(1, round(duration * RATE / block.size)))
    begin = time.process_time()
    found = tally_stream(model, Stream("made up", RATE, blocks), rpm=RPM)
    spent = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds_of_signal = found.windows * length / RATE
    print(
        f"predict, windows of {length}: {seconds_of_signal:.0f} s of signal in {spent:.1f} s,"
        f" {seconds_of_signal / spent:.0f} times real time; {peak:.0f} MB of memory at most, of this whole process"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--windows", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="of signal, for predict")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, one thread, numpy {np.__version__}, scipy {scipy.__version__}, torch {torch.__version__}"
    )
    chosen = Physics(("log-spectrum", "band-kurtosis", "envelope-orders"))
    for length in options.lengths:
        windows = np.random.default_rng(0).standard_normal((options.windows, 1, length)).astype(np.float32)
        few = windows[: max(1, options.windows // 16), 0]
        alike = np.corrcoef(plain(few)[:, :144].ravel(), chosen.transform(few[:, None], RATE, RPM)[:, 0, :144].ravel())
        slow = seconds(partial(plain, few), options.repeats) / len(few)
        fast = seconds(partial(chosen.transform, windows, RATE, RPM), options.repeats) / len(windows)
        print(
            f"window of {length:6d}: loop {1e3 * slow:7.3f} ms, ours {1e3 * fast:7.3f} ms, ratio {slow / fast:5.1f};"
            f" {length / RATE / fast:6.0f} times real time at {RATE:g} Hz (bands and kurtosis correlate {alike[0, 1]:.4f})"
        )
    predict(4096, options.seconds)


if __name__ == "__main__":
    main()
