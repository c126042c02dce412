"""An input in one file: log band energies of the spectrum. This file is the command `bearcat` with one more input.

python examples/add_an_input.py adapt --input my-log-spectrum:bands=48 --out bands"""

from dataclasses import dataclass

import torch
from torch import nn

from bearcat.cli import main
from bearcat.data import INPUTS, Input


class LogBands(nn.Module):
    def __init__(self, length: int, bands: int) -> None:
        super().__init__()
        member = nn.functional.one_hot(torch.arange(length // 2) * bands // (length // 2), bands).float()
        self.register_buffer("average", member / member.sum(dim=0))  # (bin, band)
        self.register_buffer("taper", torch.hann_window(length, periodic=False))

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        power = torch.view_as_real(torch.fft.rfft(windows * self.taper)).square().sum(dim=-1)
        level = (power[..., 1 : len(self.average) + 1] @ self.average + 1e-30).log()
        return level - level.mean(dim=-1, keepdim=True)  # the gain does not count


@dataclass(frozen=True)
class LogSpectrum(Input):
    bands: int = 64

    def points(self, length: int) -> int:
        return self.bands

    def torch_form(self, length: int, rate: float | None = None) -> nn.Module:
        return LogBands(length, self.bands)


INPUTS["my-log-spectrum"] = LogSpectrum
if __name__ == "__main__":
    main()
