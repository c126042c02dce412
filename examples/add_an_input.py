"""An input in one file: log band energies of the spectrum. Run this file as the command `bearcat`.

python examples/add_an_input.py adapt --input my-log-spectrum:bands=48 --out bands"""

from dataclasses import dataclass

import numpy as np

from bearcat.cli import main
from bearcat.data import INPUTS, Input


@dataclass(frozen=True)
class LogSpectrum(Input):
    bands: int = 64

    def points(self, length: int) -> int:
        return self.bands

    def transform(self, windows, rate=None, rpm=None, bearing=None):
        length = windows.shape[-1]
        power = np.abs(np.fft.rfft(windows * np.hanning(length))[..., 1 : length // 2 + 1]) ** 2
        first = np.arange(self.bands) * (length // 2) // self.bands  # first bin of each band
        level = np.log(np.add.reduceat(power, first, axis=-1) / np.diff(first, append=length // 2) + 1e-30)
        return (level - level.mean(axis=-1, keepdims=True)).astype(np.float32)  # independent of gain


INPUTS["my-log-spectrum"] = LogSpectrum
if __name__ == "__main__":
    main()
