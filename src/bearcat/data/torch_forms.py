"""The paper's two inputs as torch modules, for exported graphs; sums that need the precision are in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class StandardisedWaveform(nn.Module):
    """Windows (window, channel, time) float32, each by its own mean and standard deviation; a constant one: zeros."""

    def forward(self, windows: Tensor) -> Tensor:
        centred, _, divisor = _centred(windows.double())
        return (centred / divisor).float()


class StandardisedSpectrum(nn.Module):
    """The standardised magnitude spectrum by two matrix products.

    Cosines and sines are gathered from one turn, so that a graph stays small. The window is standardised first to
    keep precision; the last standardisation cancels that. The mean is bin 0 and is put back.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.cosine: Tensor
        self.sine: Tensor
        self.samples: Tensor
        self.bins: Tensor
        turn = 2 * math.pi * torch.arange(length, dtype=torch.float64) / length
        self.register_buffer("cosine", turn.cos().float())
        self.register_buffer("sine", turn.sin().float())
        self.register_buffer("samples", torch.arange(length)[:, None])
        self.register_buffer("bins", torch.arange(1, length // 2)[None])

    def forward(self, windows: Tensor) -> Tensor:
        centred, mean, divisor = _centred(windows.double())
        signal = (centred / divisor).float()
        place = (self.samples * self.bins) % self.length
        parts = [(signal @ table[place]).double().square() for table in (self.cosine, self.sine)]
        magnitude = (parts[0] + parts[1]).sqrt() / self.length
        values = torch.cat([(mean / divisor).abs(), magnitude], dim=-1)
        centred, _, divisor = _centred(values)
        return (centred / divisor).float()


def _centred(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values without their mean, the mean, and the deviation (1 where it is 0) over the last axis."""
    mean = values.mean(dim=-1, keepdim=True)
    centred = values - mean
    deviation = centred.square().mean(dim=-1, keepdim=True).sqrt()
    return centred, mean, torch.where(deviation == 0, 1.0, deviation)
