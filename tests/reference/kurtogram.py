"""The kurtogram the plain way: each band is moved to zero, filtered at the full rate by every filter above it in the
tree, one sum a sample, and thinned out at the end."""

from __future__ import annotations

import cmath
import math


def low_pass(taps: int, parts: int) -> list[float]:
    """A sinc of half the width of a band, in a Hamming window, with sum 1."""
    middle, edge = (taps - 1) / 2, 1 / (4 * parts)  # cycles a sample
    values = []
    for n in range(taps):
        at = n - middle
        sinc = 2 * edge if at == 0 else math.sin(2 * math.pi * edge * at) / (math.pi * at)
        values.append(sinc * (0.54 - 0.46 * math.cos(2 * math.pi * n / (taps - 1))))
    return [value / sum(values) for value in values]


def band_kurtosis(samples: list[float], splits: list[tuple[int, int]], taps: int) -> float:
    """Of the band that is reached by `splits`, each (into how many parts, which of them)."""
    mean = sum(samples) / len(samples)
    signal: list[complex] = [sample - mean for sample in samples]
    low, width, step = 0.0, 0.5, 1  # of the band, in cycles a sample; how many samples one of the tree stands for
    for parts, part in splits:
        width, low = width / parts, low + part * width / parts
        prototype = low_pass(taps * parts + 1, parts)
        centre = low + width / 2
        moved = [prototype[n] * cmath.exp(2j * math.pi * centre * n * step) for n in range(len(prototype))]
        filtered = []
        for t in range(len(signal) + (len(moved) - 1) * step):
            total = 0j
            for n in range(len(moved)):
                if 0 <= t - n * step < len(signal):
                    total += moved[n] * signal[t - n * step]
            filtered.append(total)
        signal, step = filtered, step * parts
    # What the tree keeps: the samples at multiples of its steps, up to the end of each of its filters.
    count = len(samples)
    for parts, _ in splits:
        count = (count + taps * parts - 1) // parts + 1
    kept = [signal[number * step] for number in range(count)][taps:-taps]
    power = [abs(value) ** 2 for value in kept]
    mean_power = sum(power) / len(power)
    return sum(value**2 for value in power) / len(power) / mean_power**2 - 2
