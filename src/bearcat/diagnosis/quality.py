"""Whether a recording can be diagnosed at all: dead sensors, stopped machines, clipping, dropouts, odd rates.

A quality check looks at blocks as they pass. `no_signal` says why there is nothing to diagnose, and then neither lines
nor a model count; `notes` say what is wrong with a recording that can be diagnosed. Both ask for a person to check.

>>> check = QualityCheck(rate=20_480)
>>> for block in check.observe(stream.blocks): ...
>>> check.finish().no_signal
'the sensor gives no signal: 4 different values only; check sensor and cable, and whether the machine runs'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bearcat.data.clipping import SignalLimits
from bearcat.data.recording import SEGMENT, Floats, power_density, unlike_vibration
from bearcat.data.survey import MEASURED  # samples from the beginning whose spectrum is taken, in windows of SEGMENT

STEPS, REACH = 3.0, 24  # of the converter: root mean square and range of its own noise are below
LEAST = {"g": 0.002, "m/s²": 0.02, "m/s^2": 0.02, "m/s2": 0.02, "mg": 2.0}  # root mean square of a machine that runs
CLIPPED = 1e-4  # share of samples at the limits that is worth a note
STILL, STUCK = 64, 0.001  # samples in a row of one value, and the share of all in such runs, that are dropouts
# What is nothing beside the power density of the octave below it, and the share of the range from which on it is usual.
EMPTY, EDGE = 1e-4, 0.7
HUM, MAINS = 0.99, (50.0, 60.0)  # share of the power at multiples of the mains' frequency
STOPPED, FEWEST = 30.0, 3  # dB below the median of so many other recordings of the point


@dataclass(frozen=True)
class Quality:
    """Of one recording of one channel."""

    no_signal: str | None  # why nothing can be diagnosed; None where something can
    notes: tuple[str, ...]
    rms: float  # about the mean, in units of the signal


class QualityCheck:
    """Collects what is needed of one channel; `unit` is that of its samples, where it is known."""

    def __init__(self, rate: float | None = None, unit: str | None = None) -> None:
        self.rate, self.unit, self.limits = rate, unit, SignalLimits()
        self._sums, self._offset = np.zeros(2), 0.0
        self._still = 0  # samples in runs of one value, of STILL or more inside a block
        self._beginning: list[Floats] = []

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged."""
        for block in blocks:
            self.add(block)
            yield block

    def add(self, block: Floats) -> None:
        if block.size == 0:
            return
        if self.limits.samples == 0:
            self._offset = float(block.mean(dtype=np.float64))  # a large offset would hide small deviations
        if self.limits.samples < MEASURED:
            self._beginning.append(block[: MEASURED - self.limits.samples].copy())
        self.limits.add(block)
        off = block.astype(np.float64) - self._offset
        self._sums += off.sum(), np.square(off, out=off).sum()  # @ would wake threads
        few = block[:: STILL // 2]
        if (few[1:] == few[:-1]).any():  # as in any run that long
            runs = np.diff(np.r_[-1, np.flatnonzero(np.diff(block)), block.size - 1])
            self._still += int(runs[runs >= STILL].sum())

    @property
    def beginning(self) -> Floats:
        """(time,) of MEASURED samples at most."""
        if len(self._beginning) > 1:
            self._beginning = [np.concatenate(self._beginning)]
        return self._beginning[0] if self._beginning else np.empty(0, dtype=np.float32)

    def finish(self) -> Quality:
        """What all blocks so far say."""
        count, limits = self.limits.samples, self.limits
        if count == 0:
            return Quality("the recording holds no samples; record it again", (), 0.0)
        mean, square = self._sums / count
        rms = float(np.sqrt(max(square - mean**2, 0.0)))
        reason = self._silent(rms)
        if reason is not None:
            return Quality(f"the sensor gives no signal: {reason}", (), rms)
        notes = [] if limits.clipped <= CLIPPED else [
            f"{100 * limits.clipped:.2g} % of the samples are clipped; record with less gain"
        ]  # fmt: skip
        if self._still > STUCK * count:
            notes.append(f"{100 * self._still / count:.2g} % of the samples stand still: dropouts; check the cable")
        power = power_density(self.beginning)
        if unlike := unlike_vibration(self.beginning, power):
            notes.append(f"the signal {unlike}; choose another channel if this is no vibration")
        return Quality(None, (*notes, *self._spectrum_notes(power)), rms)

    def _silent(self, rms: float) -> str | None:
        """Why there is no signal: it does not change, or it is noise of the converter or of the sensor alone."""
        values, running = self.limits.values, "check sensor and cable, and whether the machine runs"
        if values is not None and values.size == 1:
            return f"all samples are {values[0]:g}; check sensor and cable"
        step = 0.0 if values is None else float(np.diff(values).min())
        if values is not None and rms <= STEPS * step and values[-1] - values[0] <= REACH * step:
            return f"{values.size} different values only; {running}"
        least = LEAST.get((self.unit or "").lower())
        if least is not None and rms < least:
            return f"{rms:.2g} {self.unit} is noise of the sensor; {running}"
        return None

    def _spectrum_notes(self, power: NDArray[np.float64]) -> Iterator[str]:
        """On a rate that was raised, and on mains hum."""
        if self.rate is None or power.size <= SEGMENT // 2:
            return
        beyond = np.maximum.accumulate(power[::-1])[::-1]  # the highest from each frequency on
        places = np.arange(SEGMENT // 64, int(EDGE * SEGMENT / 2), SEGMENT // 256)
        places = places[beyond[places] < EMPTY * beyond[places // 2]]  # no median is above the highest
        if edge := next((place for place in places if beyond[place] < EMPTY * np.median(power[place // 2 : place])), 0):
            above = f"nothing is above {edge * self.rate / SEGMENT:.0f} Hz"
            yield f"{above}: filtered, or brought from a lower rate to {self.rate:g} Hz; check the rate"
        for mains in MAINS:
            near = _near(mains, self.rate, power.size)
            if self.rate / SEGMENT < mains / 8 and power[near].sum() >= HUM * power.sum():
                yield f"nearly all of the signal is mains hum ({mains:g} Hz and multiples); check cable and grounding"


@lru_cache(maxsize=16)
def _near(mains: float, rate: float, size: int) -> NDArray[np.bool_]:
    """(bin,) whether a multiple of a frequency is within a bin and a half; the same for all recordings of one rate."""
    hertz = np.arange(size) * rate / SEGMENT
    return np.asarray(np.abs(hertz - mains * np.maximum(np.round(hertz / mains), 1)) <= 1.5 * rate / SEGMENT)


def stopped(rms: float, others: Sequence[float]) -> str | None:
    """Why a recording is of a machine that stands still, by the other recordings of its point; None: it may run."""
    usual = float(np.median(others)) if len(others) >= FEWEST else 0.0
    if usual <= 0 or rms * 10 ** (STOPPED / 20) > usual:
        return None
    below = f"{20 * np.log10(usual / rms):.0f} dB below" if rms > 0 else "nothing beside"
    return f"the machine stands still: {below} its other {len(others)} recordings; check whether it runs"
