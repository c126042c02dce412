"""Whether a recording can be diagnosed at all: dead sensors, stopped machines, clipping, dropouts, odd rates.

A quality check looks at blocks as they pass. `no_signal` says why there is nothing to diagnose, and then neither lines
nor a model count; `findings` are what is wrong with a recording that can be diagnosed. Both ask for a person to check.

>>> check = QualityCheck(rate=20_480)
>>> for block in check.observe(stream.blocks): ...
>>> check.finish().no_signal
Finding(kind='few values', severity='check', values={'values': 4})
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bearcat.data.clipping import MEASURED, SignalLimits
from bearcat.data.recording import SEGMENT, Floats, power_density, unlike_vibration
from bearcat.findings import Finding
from bearcat.thresholds import CLIPPED, EDGE, EMPTY, FEWEST_BESIDE, HUM, LEAST_RMS, REACH, STEPS, STILL, STOPPED, STUCK

MAINS = (50.0, 60.0)  # Hz


@dataclass(frozen=True)
class Quality:
    """Of one recording of one channel."""

    no_signal: Finding | None  # why nothing can be diagnosed; None where something can
    findings: tuple[Finding, ...]
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
        count = self.limits.samples
        if count == 0:
            return Quality(Finding("empty", "check"), (), 0.0)
        mean, square = self._sums / count
        rms = float(np.sqrt(max(square - mean**2, 0.0)))
        reason = self._silent(rms)
        if reason is not None:
            return Quality(reason, (), rms)
        power = power_density(self.beginning)
        return Quality(None, (*self._sample_findings(count), *self._spectrum_findings(power)), rms)

    def _sample_findings(self, count: int) -> Iterator[Finding]:
        """On clipped samples and dropouts."""
        if self.limits.clipped > CLIPPED:
            yield Finding("clipped", "check", {"share": self.limits.clipped})
        if self._still > STUCK * count:
            yield Finding("dropouts", "check", {"share": self._still / count})

    def _silent(self, rms: float) -> Finding | None:
        """Why there is no signal: it does not change, or it is noise of the converter or of the sensor alone."""
        values = self.limits.values
        if values is not None and values.size == 1:
            return Finding("constant", "check", {"value": float(values[0])})
        step = 0.0 if values is None else float(np.diff(values).min())
        if values is not None and rms <= STEPS * step and values[-1] - values[0] <= REACH * step:
            return Finding("few values", "check", {"values": int(values.size)})
        least = LEAST_RMS.get((self.unit or "").lower())
        if least is not None and rms < least:
            return Finding("sensor noise", "check", {"rms": rms, "unit": self.unit})
        return None

    def _spectrum_findings(self, power: NDArray[np.float64]) -> Iterator[Finding]:
        """On signals that are no vibration, a rate that was raised, and mains hum."""
        if unlike := unlike_vibration(self.beginning, power):
            yield Finding("no vibration", "check", {"like": unlike})
        if self.rate is None or power.size <= SEGMENT // 2:
            return
        beyond = np.maximum.accumulate(power[::-1])[::-1]  # the highest from each frequency on
        places = np.arange(SEGMENT // 64, int(EDGE * SEGMENT / 2), SEGMENT // 256)
        places = places[beyond[places] < EMPTY * beyond[places // 2]]  # no median is above the highest
        if edge := next((place for place in places if beyond[place] < EMPTY * np.median(power[place // 2 : place])), 0):
            yield Finding("band limited", "check", {"hertz": float(edge * self.rate / SEGMENT), "rate": self.rate})
        for mains in MAINS:
            near = _near(mains, self.rate, power.size)
            if self.rate / SEGMENT < mains / 8 and power[near].sum() >= HUM * power.sum():
                yield Finding("mains hum", "check", {"hertz": mains})


@lru_cache(maxsize=16)
def _near(mains: float, rate: float, size: int) -> NDArray[np.bool_]:
    """(bin,) whether a multiple of a frequency is within a bin and a half; the same for all recordings of one rate."""
    hertz = np.arange(size) * rate / SEGMENT
    return np.asarray(np.abs(hertz - mains * np.maximum(np.round(hertz / mains), 1)) <= 1.5 * rate / SEGMENT)


def stopped(rms: float, others: Sequence[float]) -> Finding | None:
    """Why a recording is of a machine that stands still, by the other recordings of its point; None: it may run."""
    usual = float(np.median(others)) if len(others) >= FEWEST_BESIDE else 0.0
    if usual <= 0 or rms * 10 ** (STOPPED / 20) > usual:
        return None
    below = 20 * float(np.log10(usual / rms)) if rms > 0 else None
    return Finding("standing still", "check", {"below": below, "recordings": len(others)})
