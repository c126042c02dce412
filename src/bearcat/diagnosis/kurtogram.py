"""The fast kurtogram: in which band a signal strikes rather than hums (Antoni, Mech. Syst. Signal Process. 21, 2007).

A tree of filters halves the range below half the rate again and again, and cuts each band into thirds too. The kurtosis
of a band's complex envelope is mean |c|⁴ / (mean |c|²)² − 2: 0 for noise, −1 for a tone, large for rare strikes. It
does not know how often something strikes: one knock may have more of it than a damaged bearing.

>>> best = max(kurtogram(signal, rate=12_000.0), key=lambda band: band.kurtosis)
>>> best.low, best.high, best.level
(3000.0, 3500.0, 3.6)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Floats
from bearcat.errors import InputError

Complexes = NDArray[np.complexfloating[Any, Any]]

TAPS = 16  # of a filter, for each band that it makes of one, and one more
SHORTEST = 64  # samples of a band's envelope, of which a kurtosis is taken
NARROWEST = 0.01  # of the rate: 0.32 kHz at 32 kHz
DEEPEST = 6  # halvings


@dataclass(frozen=True)
class KurtogramBand:
    """One band of the tree; `level` is the number of halvings, and so many and .6 where a band was cut into thirds."""

    level: float
    low: float  # Hz
    high: float
    kurtosis: float


def kurtogram(signal: Floats, rate: float, narrowest: float | None = None) -> list[KurtogramBand]:
    """All bands of a signal (time,), the whole range first; none narrower than `narrowest` hertz."""
    if not np.ptp(signal) > 0:
        raise InputError("holds no vibration: all samples are the same; check the sensor and the channel")
    centred = signal.astype(np.float64) - float(signal.mean(dtype=np.float64))
    centred /= np.abs(centred).max()
    least = NARROWEST * rate if narrowest is None else narrowest
    # Antoni takes the kurtosis of the real signal here, which is half as high again as that of its envelope.
    bands = [KurtogramBand(0.0, 0.0, rate / 2, _kurtosis(squared_envelope(centred, rate)))]
    row: list[tuple[NDArray[Any], int]] = [(centred, 0)]
    for halvings in range(DEEPEST):
        for parts, level in ((2, halvings + 1.0), (3, halvings + 1.6)):
            width = rate / 2 / (parts * 2**halvings)
            if width < least:
                return bands
            deeper = [piece for band in row for piece in _divided(*band, parts)]
            if any(samples.size < SHORTEST + 2 * TAPS for samples, _ in deeper):
                return bands
            for samples, place in deeper:
                samples = samples[TAPS:-TAPS]  # past the beginning and the end of the filter
                bands.append(KurtogramBand(level, place * width, (place + 1) * width, _kurtosis(np.abs(samples) ** 2)))
            if parts == 2:
                halved = deeper
        row = list(halved)
    return bands


def _divided(samples: NDArray[Any], place: int, parts: int) -> Iterator[tuple[Complexes, int]]:
    """A signal that fills the lower half of its rate as so many bands of equal width, each at a rate as many times
    lower, where it fills the lower half again; with their numbers from below, of the `place`-th band of its row.
    """
    from scipy.signal import firwin, upfirdn

    low_pass = firwin(TAPS * parts + 1, 1 / (2 * parts))
    times = np.arange(low_pass.size)
    for part in range(parts):
        centre = (part + 0.5) / (2 * parts)  # cycles a sample
        filtered = upfirdn(low_pass * np.exp(2j * np.pi * centre * times), samples, down=parts)
        if part % 2:
            filtered[1::2] *= -1  # from the upper half of the new rate to the lower
        yield filtered, parts * place + part


def _kurtosis(power: NDArray[np.floating[Any]]) -> float:
    """Of a squared envelope (time,); that of a constant one where there is none."""
    mean = float(power.mean())
    return float(np.mean((power / mean) ** 2)) - 2 if mean > 0 else -1.0


def squared_envelope(
    signal: NDArray[np.floating[Any]], rate: float, band: tuple[float, float] | None = None
) -> NDArray[np.float64]:
    """|analytic signal|² (time,) of what lies in a band in Hz; of the whole range where none is given."""
    from scipy import fft

    size = fft.next_fast_len(signal.size)
    lines = fft.fft(signal.astype(np.float64) - float(signal.mean(dtype=np.float64)), size)
    hertz = fft.fftfreq(size, 1 / rate)
    low, high = band or (0.0, rate / 2)
    lines[(hertz <= 0) | (hertz < low) | (hertz > high)] = 0
    return np.asarray(np.abs(2 * fft.ifft(lines)[: signal.size]) ** 2)
