"""How loud a recording is: root mean squares, of bands and as velocity, kurtosis, and the zone of ISO 20816-3.

>>> level_values(signal, rate=20_480, unit="g")["velocity"]        # mm/s, 10 to 1000 Hz
1.8
>>> vibration_severity(signal, 20_480, Declared("g", group=2, mounting="rigid")).zone
'B'
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bearcat.data.channels import ACCELERATION, SPEEDS, Declared, check_unit
from bearcat.errors import InputError
from bearcat.findings import Finding, Severity
from bearcat.thresholds import ZONES

BANDS = 8  # of equal width below half the rate
WINDOW = 8192  # samples, where a recording has as many
VELOCITY = (10.0, 1000.0)  # Hz
PERIODS, RESOLVED = 5, 10  # of the lowest frequency that a recording must have, and that a window has where it can
SLOW, SLOW_FROM = 600.0, 2.0  # rpm below which the standard asks for velocities from so many Hz on
# C: not for long; D: damaging.
ZONE_SEVERITIES: dict[str, Severity] = {"A": "ok", "B": "ok", "C": "check", "D": "alarm"}


def level_values(signal: NDArray[np.float64], rate: float | None, unit: str | None) -> dict[str, float]:
    """Levels of a signal (time,) by name: rms, kurtosis, band_1 to band_8; velocity in mm/s where it can be."""
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
    with suppress(InputError):  # not known, or not to be had of this recording
        found["velocity"] = velocity_rms(signal, rate, unit)
    return found


def velocity_rms(
    signal: NDArray[np.float64], rate: float | None, unit: str | None, low: float = VELOCITY[0]
) -> float:  # fmt: skip
    """The root mean square of the velocity (mm/s) between `low` and 1000 Hz, of accelerations integrated bin by bin;
    InputError where the recording cannot tell it.
    """
    known, high = check_unit(unit), VELOCITY[1]
    if rate is None or rate < 2 * high:
        said = "is not known" if rate is None else f"is {rate:g} Hz"
        raise InputError(f"velocities up to {high:g} Hz need a rate of {2 * high:g} Hz, and it {said}", "rate")
    if signal.size < PERIODS * rate / low:
        short = f"{signal.size / rate:.2g} s are too short for velocities from {low:g} Hz on"
        raise InputError(f"{short}, {PERIODS / low:g} s are needed; record for longer")
    power, hertz = power_spectrum(signal - signal.mean(), rate, max(WINDOW, int(RESOLVED * rate / low)))
    kept = (hertz >= low) & (hertz <= high)
    if known in SPEEDS:
        return SPEEDS[known] * math.sqrt(power[kept].sum())
    return 1000 * ACCELERATION[known] * math.sqrt(np.sum(power[kept] / (2 * np.pi * hertz[kept]) ** 2))


@dataclass(frozen=True)
class VibrationSeverity:
    """The velocity of a machine's housing and its zone of ISO 20816-3; `missing` says why there is none."""

    velocity: float | None = None  # mm/s, root mean square
    zone: str | None = None  # A to D
    missing: str | None = None
    low: float = VELOCITY[0]  # Hz
    declared: Declared = field(default_factory=Declared)

    @property
    def shown(self) -> str:
        """The velocity, with enough digits to stand on its own side of the ends of zones."""
        if self.velocity is None:
            return ""
        ends = ZONES.get((self.declared.group or 0, self.declared.mounting or ""), ())
        texts = (f"{self.velocity:.{digits}g}" for digits in range(2, 18))
        return next(text for text in texts if float(text) == self.velocity or float(text) not in ends) + " mm/s"

    @property
    def finding(self) -> Finding | None:
        """The zone, or what is missing for it; None where nobody asks for one."""
        if self.zone is None:
            missing = Finding("no zone", "remark", {"missing": self.missing})
            return missing if self.declared.wanted else None
        values = {
            "velocity": self.velocity, "written": self.shown, "low": self.low, "high": VELOCITY[1], "zone": self.zone,
            "group": self.declared.group, "mounting": self.declared.mounting,
        }  # fmt: skip
        return Finding("zone", ZONE_SEVERITIES[self.zone], values)


def vibration_severity(
    signal: NDArray[np.float64], rate: float | None, declared: Declared, rpm: float | None = None
) -> VibrationSeverity:
    """The zone of a signal (time,); what is not declared, or cannot be measured, is named."""
    if absent := declared.absent:
        missing = f"{' and '.join(absent)} not declared ({', '.join(f'--{name}' for name in absent)}, or a manifest)"
        return VibrationSeverity(missing=missing, declared=declared)
    low = SLOW_FROM if rpm is not None and rpm < SLOW else VELOCITY[0]
    try:
        velocity = velocity_rms(signal, rate, declared.unit, low)
    except InputError as error:
        return VibrationSeverity(missing=str(error), low=low, declared=declared)
    ends = ZONES[declared.group or 0, declared.mounting or ""]
    return VibrationSeverity(velocity, "ABCD"[sum(velocity > end for end in ends)], None, low, declared)


def power_spectrum(
    signal: NDArray[np.float64], rate: float, window: int = WINDOW
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean square in each bin (bin,), and its frequency in Hz: windows with a Hann taper, half overlapping."""
    from scipy.signal import welch

    hertz, power = welch(signal, rate, nperseg=min(window, signal.size), scaling="density")
    return np.asarray(power * (hertz[1] - hertz[0])), np.asarray(hertz)
