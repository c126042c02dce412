"""The parts of a simulated signal that know no settings: strikes in time, ringing, noise, and their random streams."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import scipy  # its parts are loaded when they are first used, which takes a second
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def random_stream(seed: int, origin: str, part: str) -> np.random.Generator:
    """A generator for one part of one recording, independent of the others: more noise draws move no strike."""
    digest = hashlib.sha256(f"{origin}/{part}".encode()).digest()
    return np.random.default_rng(np.random.SeedSequence([seed, int.from_bytes(digest[:16])]))


def passages(order: float, turns: float, jitter: float, generator: np.random.Generator) -> Doubles:
    """Shaft angles in turns, (event,), at which balls reach a defect; random spacings, so that slip accumulates."""
    expected = order * turns
    count = math.ceil(expected + 6 * jitter * math.sqrt(expected)) + 10
    phase = generator.uniform()
    spacings = np.maximum(1 + jitter * generator.standard_normal(count), 0.1)
    angles = (phase + np.concatenate([[0.0], np.cumsum(spacings)])) / order
    return angles[angles < turns]


def load_zone(angle: Doubles, extent: float) -> Doubles:
    """Stribeck's distribution: load at an angle (radians) from the force, over the greatest load."""
    inside = 1 - (1 - np.cos(angle)) / (2 * extent)
    return np.maximum(inside, 0.0) ** 1.5


def place(positions: Doubles, strengths: Doubles, samples: int, reach: int = 8) -> Doubles:
    """Impulses at fractional sample positions, (event,) → (time,), as Hann-windowed sincs of ±`reach` samples."""
    first = np.floor(positions).astype(np.int64)
    taps = np.arange(1 - reach, reach + 1)
    distance = taps - (positions - first)[:, None]
    kernels = np.sinc(distance) * np.cos(np.pi * distance / (2 * reach)) ** 2
    padded = np.zeros(samples + 2 * reach)
    np.add.at(padded, first[:, None] + taps + reach, strengths[:, None] * kernels)
    return padded[reach : reach + samples]


def ringing(table: Doubles, rate: float) -> Doubles:
    """Acceleration after a unit strike, (mode, 3) → (time,): damped modes, until the slowest is down by 60 dB."""
    frequency, damping, gain = table.T[:, :, None]
    decay = 2 * np.pi * frequency * damping
    seconds = min(np.log(1000) / decay.min(), 1.0)
    time = np.arange(max(2, math.ceil(seconds * rate))) / rate
    waves = np.sin(2 * np.pi * frequency * np.sqrt(1 - damping**2) * time)
    return np.asarray(np.sum(gain * np.exp(-decay * time) * waves, axis=0))


def coloured_noise(samples: int, rate: float, colour: float, corner: float, generator: np.random.Generator) -> Doubles:
    """Gaussian noise, power ~ frequency^-colour above `corner` and flat below, of unit expected variance, (time,)."""
    length = int(scipy.fft.next_fast_len(samples, real=True))
    frequencies = scipy.fft.rfftfreq(length, 1 / rate)
    shape = np.maximum(frequencies, corner) ** (-colour / 2)
    shape[0] = 0.0
    twice = np.full(shape.size, 2.0)  # a bin stands for itself and its mirror image, but the one at half the rate
    if length % 2 == 0:
        twice[-1] = 1.0
    shape *= np.sqrt(length / np.sum(twice * shape**2))
    noise: Doubles = scipy.fft.irfft(scipy.fft.rfft(generator.standard_normal(length)) * shape, n=length)
    return noise[:samples]
