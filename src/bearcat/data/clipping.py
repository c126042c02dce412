"""Samples at the limits of a converter, and how many different values it gave; counted a block at a time.

A clipped signal stands at its highest or lowest value far more often than just short of it.

>>> limits = SignalLimits()
>>> for block in stream.blocks: limits.add(block)
>>> limits.clipped
0.012
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MEASURED = 1 << 17  # samples from the beginning of a recording, where not all of it is looked at
NEAR = 0.01  # of the range so far: what lies so close below a limit is just short of it
TIMES, LEAST = 3, 4  # at a limit: so many times as many samples as just short of it, and at least so many
COARSE = 16  # values; a converter that gives no more repeats them without being clipped
MOST_VALUES = 256  # that are counted; a signal with more is not coarse
PROBED = 1024  # samples that show whether there are more


class SignalLimits:
    """Of one signal."""

    def __init__(self) -> None:
        self.samples = 0
        self.low, self.high = np.inf, -np.inf
        self.values: NDArray[Any] | None = np.empty(0, dtype=np.float32)  # sorted; None: more than MOST_VALUES
        self._counts = {-1: (0, 0), 1: (0, 0)}  # samples at the lowest and the highest value so far, and just short

    def add(self, block: NDArray[Any]) -> None:
        if block.size == 0:
            return
        self.samples += block.size
        before = {-1: -self.low, 1: self.high}
        self.low, self.high = min(self.low, float(block.min())), max(self.high, float(block.max()))
        near = NEAR * (self.high - self.low)
        with np.errstate(over="ignore"):  # of values near the ends of float32
            distances = block - self.low, self.high - block
        for (sign, limit), below in zip(((-1, -self.low), (1, self.high)), distances, strict=True):
            at, close = self._counts[sign]
            if limit > before[sign]:  # what stood at the last limit is short of this one
                at, close = 0, at + close if limit - before[sign] < near else 0
            here = int(np.count_nonzero(below == 0))
            self._counts[sign] = at + here, close + int(np.count_nonzero(below < near)) - here
        if self.values is not None:
            probed = np.sort(block[:PROBED])
            many = np.count_nonzero(probed[1:] != probed[:-1]) >= MOST_VALUES  # as in any vibration
            found = None if many else np.union1d(self.values, block)
            self.values = None if found is None or found.size > MOST_VALUES else found

    @property
    def clipped(self) -> float:
        """The share of samples at the limits; 0 where no more stand there than chance explains."""
        if self.values is not None and self.values.size <= COARSE:
            return 0.0
        found = sum(at for at, close in self._counts.values() if at >= LEAST and at > TIMES * close)
        return found / max(self.samples, 1)
