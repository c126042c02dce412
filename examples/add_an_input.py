"""An input in one file: the log spectrum."""

from dataclasses import dataclass

import numpy as np

from bearcat.cli import main
from bearcat.data import INPUTS, Input


@dataclass(frozen=True)
class LogSpectrum(Input):
    floor: float = 1e-6

    def points(self, length: int) -> int:
        return length // 2

    def transform(self, windows, rate=None, rpm=None, bearing=None):
        level = np.log(np.abs(np.fft.rfft(windows)[..., 1:]) + self.floor)
        return (level - level.mean(axis=-1, keepdims=True)).astype(np.float32)


INPUTS["my-log-spectrum"] = LogSpectrum
if __name__ == "__main__":
    main()
