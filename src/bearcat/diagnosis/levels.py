"""How loud a recording is: root mean squares, of bands and as velocity, and kurtosis.

>>> level_values(signal, rate=20_480, unit="g")["velocity"]        # mm/s, 10 to 1000 Hz, as ISO 20816 has it
1.8
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BANDS = 8  # of equal width below half the rate
WINDOW = 8192  # samples, where a recording has as many
VELOCITY = (10.0, 1000.0)  # Hz
# m/s² in one unit of a signal.
ACCELERATION = {"g": 9.80665, "mg": 9.80665e-3, "m/s²": 1.0, "m/s^2": 1.0, "m/s2": 1.0, "mm/s²": 1e-3, "mm/s2": 1e-3}


def level_values(signal: NDArray[np.float64], rate: float | None, unit: str | None) -> dict[str, float]:
    """Levels of a signal (time,) by name: rms, kurtosis, band_1 to band_8; velocity in mm/s where the unit is one of
    acceleration.
    """
    if signal.size < 2:
        return {}
    centred = signal - signal.mean()
    square = float(np.mean(centred**2))
    found = {"rms": square**0.5, "kurtosis": float(np.mean(centred**4)) / max(square**2, 1e-300)}
    if rate is None:
        return found
    power, hertz = power_spectrum(centred, rate)
    inside = np.minimum((hertz / (rate / 2) * BANDS).astype(np.int64), BANDS - 1)
    sums = np.bincount(inside, weights=power, minlength=BANDS)
    found |= {f"band_{number}": float(value) ** 0.5 for number, value in enumerate(sums, start=1)}
    factor, (low, high) = ACCELERATION.get((unit or "").strip().lower()), VELOCITY
    if factor is not None and rate / 2 > high and hertz[1] <= low:
        kept = (hertz >= low) & (hertz <= high)
        found["velocity"] = 1000 * factor * float(np.sum(power[kept] / (2 * np.pi * hertz[kept]) ** 2)) ** 0.5
    return found


def power_spectrum(signal: NDArray[np.float64], rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean square in each bin (bin,), and its frequency in Hz: windows with a Hann taper, half overlapping."""
    from scipy.signal import welch

    hertz, power = welch(signal, rate, nperseg=min(WINDOW, signal.size), scaling="density")
    return np.asarray(power * (hertz[1] - hertz[0])), np.asarray(hertz)
