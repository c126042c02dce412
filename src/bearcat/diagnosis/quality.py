"""Whether a recording can be diagnosed at all, and how loud it is: dead sensors, stopped machines, clipping, dropouts,
odd rates; root mean squares, of bands and as velocity, kurtosis, and the zone of ISO 20816-3.

`no_signal` says why there is nothing to diagnose, and then neither lines nor a model count; `findings` are what is
wrong with a recording that can be diagnosed. Both ask for a person to check.

>>> check_quality(Channel("monday.wav", signal, rate=20_480)).no_signal
Finding(kind='few values', severity='check', values={'values': 4})
>>> level_values(signal, rate=20_480, unit="g")["velocity"]        # mm/s, 10 to 1000 Hz
1.8
>>> vibration_severity(signal, 20_480, Declared("g", group=2, mounting="rigid")).zone
'B'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.channels import (
    ACCELERATION,
    MEASURED,
    SPEEDS,
    Declared,
    check_unit,
    few_values,
    share_at_limits,
    unlike_vibration,
)
from bearcat.data.recording import SEGMENT, Floats, power_density
from bearcat.errors import InputError
from bearcat.findings import CLIPPED, Finding, Severity

# docs/diagnose.md.
STILL, STUCK = 64, 0.001  # samples in a row of one value; the share in such runs, and of gaps, to be checked
HUM = 0.99  # share of the power at multiples of the mains' frequency
EMPTY, EDGE = 1e-4, 0.7  # power density beside the octave below that is nothing; the share of the range usual for that
STEPS, REACH = 3.0, 24  # of the converter: root mean square and range of its own noise are below
# Root mean square of a machine that runs, by unit.
LEAST_RMS = {"g": 0.002, "m/s²": 0.02, "m/s^2": 0.02, "m/s2": 0.02, "mg": 2.0}
STOPPED, FEWEST_BESIDE = 30.0, 3  # dB below the median of so many other recordings of the point
MAINS = (50.0, 60.0)  # Hz
BANDS = 8  # of equal width below half the rate
BLOCK = 2**18  # samples worked on at once
WINDOW = 8192  # samples, where a recording has as many
VELOCITY = (10.0, 1000.0)  # Hz
PERIODS, RESOLVED = 5, 10  # of the lowest frequency that a recording must have, and that a window has where it can
SLOW, SLOW_FROM = 600.0, 2.0  # rpm below which the standard asks for velocities from so many Hz on
# Velocities in mm/s at which zones B, C and D begin, by group of machines and mounting: ISO 20816-3:2022, as before in
# ISO 10816-3. Group 1: above 300 kW, or motors with a shaft height of 315 mm or more; group 2: from 15 kW on.
ZONES = {
    (1, "rigid"): (2.3, 4.5, 7.1), (1, "flexible"): (3.5, 7.1, 11.0),
    (2, "rigid"): (1.4, 2.8, 4.5), (2, "flexible"): (2.3, 4.5, 7.1),
}  # fmt: skip
# C: not for long; D: damaging.
ZONE_SEVERITIES: dict[str, Severity] = {"A": "ok", "B": "ok", "C": "check", "D": "alarm"}


@dataclass(frozen=True, eq=False)
class Channel:
    """One channel of a point as it was recorded, and what is stated about it."""

    name: str
    signal: Floats  # (time,)
    rate: float | None = None
    unit: str | None = None  # of its samples
    gaps: int = 0  # samples that were filled
    rpm: float | None = None
    declared: Declared = field(default_factory=Declared)

    @property
    def beginning(self) -> Floats:
        """(time,) of MEASURED samples at most."""
        return self.signal[:MEASURED]

    @property
    def axis(self) -> str:
        """Its name in the file."""
        return self.name.rpartition("#")[2]


@dataclass(frozen=True)
class Quality:
    """The quality of one channel."""

    no_signal: Finding | None  # why nothing can be diagnosed; None where something can
    findings: tuple[Finding, ...]
    rms: float  # about the mean, in units of the signal


def check_quality(channel: Channel) -> Quality:
    """What is wrong with a channel."""
    signal = channel.signal
    sums, still = np.zeros(2), 0
    offset = float(signal[:BLOCK].mean(dtype=np.float64))  # a large offset would hide small deviations
    for first in range(0, signal.size, BLOCK):  # which bounds the memory
        block = signal[first : first + BLOCK]
        off = block.astype(np.float64) - offset
        sums += off.sum(), np.square(off, out=off).sum()  # @ would wake threads
        few = block[:: STILL // 2]
        if (few[1:] == few[:-1]).any():  # as in any run that long
            runs = np.diff(np.r_[-1, np.flatnonzero(np.diff(block)), block.size - 1])
            still += int(runs[runs >= STILL].sum())
    mean, square = sums / signal.size
    rms = float(np.sqrt(max(square - mean**2, 0.0)))
    if (reason := _silent(few_values(signal), rms, channel.unit)) is not None:
        return Quality(reason, (), rms)
    findings = list[Finding]()
    if (share := share_at_limits(signal)) > CLIPPED:
        findings.append(Finding("clipped", "check", {"share": share}))
    if still > STUCK * signal.size:
        findings.append(Finding("dropouts", "check", {"share": still / signal.size}))
    if channel.gaps:
        many = channel.gaps > STUCK * signal.size
        findings.append(Finding("gaps", "check" if many else "remark", {"samples": channel.gaps, "of": signal.size}))
    return Quality(None, (*findings, *_spectrum_findings(channel)), rms)


def clipped_share(findings: Iterable[Finding]) -> float:
    """The share of clipped samples, of the worst channel."""
    return max((finding.values["share"] for finding in findings if finding.kind == "clipped"), default=0.0)


def _silent(values: NDArray[Any] | None, rms: float, unit: str | None) -> Finding | None:
    """Why there is no signal: it does not change, or it is noise of the converter or of the sensor alone. `values` are
    the different ones, where they are few.
    """
    if values is not None and values.size == 1:
        return Finding("constant", "check", {"value": float(values[0])})
    step = 0.0 if values is None else float(np.diff(values).min())
    if values is not None and rms <= STEPS * step and values[-1] - values[0] <= REACH * step:
        return Finding("few values", "check", {"values": int(values.size)})
    least = LEAST_RMS.get((unit or "").lower())
    if least is not None and rms < least:
        return Finding("sensor noise", "check", {"rms": rms, "unit": unit})
    return None


def _spectrum_findings(channel: Channel) -> Iterator[Finding]:
    """Findings on signals that are no vibration, a rate that was raised, and mains hum."""
    rate, power = channel.rate, power_density(channel.beginning)
    if unlike := unlike_vibration(channel.beginning, power):
        yield Finding("no vibration", "check", {"like": unlike})
    if rate is None or power.size <= SEGMENT // 2:
        return
    beyond = np.maximum.accumulate(power[::-1])[::-1]  # the highest from each frequency on
    places = np.arange(SEGMENT // 64, int(EDGE * SEGMENT / 2), SEGMENT // 256)
    places = places[beyond[places] < EMPTY * beyond[places // 2]]  # no median is above the highest
    if edge := next((bin for bin in places if beyond[bin] < EMPTY * np.median(power[bin // 2 : bin])), 0):
        yield Finding("band limited", "check", {"hertz": float(edge * rate / SEGMENT), "rate": rate})
    for mains in MAINS:
        hertz = np.arange(power.size) * rate / SEGMENT
        near = np.abs(hertz - mains * np.maximum(np.round(hertz / mains), 1)) <= 1.5 * rate / SEGMENT
        hums = rate / SEGMENT < mains / 8 and power[near].sum() >= HUM * power.sum()
        if hums and not (channel.rpm is not None and _is_of_shaft(mains, channel.beginning, rate, channel.rpm)):
            yield Finding("mains hum", "check", {"hertz": mains})


def _is_of_shaft(mains: float, signal: Floats, rate: float, rpm: float) -> bool:
    """Whether the line near the mains' frequency is nearer to twice the stated speed."""
    amplitudes = np.abs(np.fft.rfft(signal * np.hanning(signal.size)))
    hertz = np.fft.rfftfreq(signal.size, 1 / rate)
    amplitudes[abs(hertz - mains) > mains / 10] = 0.0
    line = float(hertz[amplitudes.argmax()])
    return abs(line - rpm / 30) < abs(line - mains)


def stopped(rms: float, others: Sequence[float]) -> Finding | None:
    """Why a recording is of a machine that stands still, by the other recordings of its point; None: it may run."""
    usual = float(np.median(others)) if len(others) >= FEWEST_BESIDE else 0.0
    if usual <= 0 or rms * 10 ** (STOPPED / 20) > usual:
        return None
    below = 20 * float(np.log10(usual / rms)) if rms > 0 else None
    return Finding("standing still", "check", {"below": below, "recordings": len(others)})


def level_values(signal: NDArray[np.float64], rate: float | None, unit: str | None) -> dict[str, float]:
    """Levels of a signal (time,) by name: rms, kurtosis, band_1 to band_8; velocity in mm/s where it can be."""
    centred = signal - signal.mean()
    square = float(np.mean(centred**2))
    levels = {"rms": square**0.5, "kurtosis": float(np.mean(centred**4)) / max(square**2, 1e-300)}
    if rate is None:
        return levels
    power, hertz = power_spectrum(centred, rate)
    inside = np.minimum((hertz / (rate / 2) * BANDS).astype(np.int64), BANDS - 1)
    sums = np.bincount(inside, weights=power, minlength=BANDS)
    levels |= {f"band_{number}": float(value) ** 0.5 for number, value in enumerate(sums, start=1)}
    with suppress(InputError):  # not known, or not to be had of this recording
        levels["velocity"] = velocity_rms(signal, rate, unit)
    return levels


def velocity_rms(signal: NDArray[np.float64], rate: float | None, unit: str | None, low: float = VELOCITY[0]) -> float:
    """The root mean square of the velocity (mm/s) between `low` and 1000 Hz, of accelerations integrated bin by bin;
    InputError where the recording cannot tell it.
    """
    checked_unit, high = check_unit(unit), VELOCITY[1]
    if rate is None or rate < 2 * high:
        reason = "is not known" if rate is None else f"is {rate:g} Hz"
        raise InputError(f"velocities up to {high:g} Hz need a rate of {2 * high:g} Hz, and it {reason}", "rate")
    if signal.size < PERIODS * rate / low:
        short = f"{signal.size / rate:.2g} s are too short for velocities from {low:g} Hz on"
        raise InputError(f"{short}, {PERIODS / low:g} s are needed; record for longer")
    power, hertz = power_spectrum(signal - signal.mean(), rate, max(WINDOW, int(RESOLVED * rate / low)))
    inside = (hertz >= low) & (hertz <= high)
    if checked_unit in SPEEDS:
        return SPEEDS[checked_unit] * math.sqrt(power[inside].sum())
    return 1000 * ACCELERATION[checked_unit] * math.sqrt(np.sum(power[inside] / (2 * np.pi * hertz[inside]) ** 2))


@dataclass(frozen=True)
class VibrationSeverity:
    """The velocity of a machine's housing and its zone of ISO 20816-3; `missing` says why there is none."""

    velocity: float | None = None  # mm/s, root mean square
    zone: str | None = None  # A to D
    missing: str | None = None
    low: float = VELOCITY[0]  # Hz
    declared: Declared = field(default_factory=Declared)

    @property
    def finding(self) -> Finding | None:
        """The zone, or what is missing for it; None where nobody asks for one."""
        if self.zone is None:
            missing = Finding("no zone", "remark", {"missing": self.missing})
            return missing if self.declared.group or self.declared.mounting else None
        values = {
            "velocity": self.velocity, "low": self.low, "high": VELOCITY[1], "zone": self.zone,
            "group": self.declared.group, "mounting": self.declared.mounting,
        }  # fmt: skip
        return Finding("zone", ZONE_SEVERITIES[self.zone], values)


def vibration_severity(
    signal: NDArray[Any], rate: float | None, declared: Declared, rpm: float | None = None
) -> VibrationSeverity:
    """The zone of a signal (time,); what is not declared, or cannot be measured, is named."""
    if absent := [name for name, value in vars(declared).items() if value is None]:
        missing = f"{' and '.join(absent)} not declared ({', '.join(f'--{name}' for name in absent)}, or a manifest)"
        return VibrationSeverity(missing=missing, declared=declared)
    low = SLOW_FROM if rpm is not None and rpm < SLOW else VELOCITY[0]
    try:
        velocity = velocity_rms(signal.astype(np.float64), rate, declared.unit, low)
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
