"""Changes of windows (run, batch, channel, point) for views, each with a draw for every window of every run.

`draws` gives numbers for (layer, count): each function has a layer of its own, so that they are independent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bearcat.models.stacked import Randomness


def _drawn(draws: Randomness, layer: int, windows: Tensor) -> Tensor:
    """A number between 0 and 1 for each window, (run, batch, 1, 1)."""
    return draws.uniform(layer, windows.shape[1]).to(windows.dtype)[..., None, None]


def moved(windows: Tensor, draws: Randomness, resample: float, shift: float) -> Tensor:
    """Read from another start and at another speed, by linear interpolation on the window as a circle."""
    length = windows.shape[-1]
    start = torch.floor(_drawn(draws, 0, windows) * shift * length)
    speed = 1 + resample * (2 * _drawn(draws, 1, windows) - 1)
    place = (start + speed * torch.arange(length, device=windows.device, dtype=windows.dtype)) % length
    before = place.floor()
    part = place - before
    index = before.long().clamp(max=length - 1).expand_as(windows)
    return (1 - part) * windows.gather(3, index) + part * windows.gather(3, (index + 1) % length)


def band_stopped(windows: Tensor, draws: Randomness, share: float) -> Tensor:
    """Without the lines of a band of this share of the spectrum."""
    lines = torch.fft.rfft(windows)
    inside = _interval(_drawn(draws, 2, windows), lines.shape[-1], share)
    stopped: Tensor = torch.fft.irfft(lines * ~inside, n=windows.shape[-1])
    return stopped


def scaled(windows: Tensor, draws: Randomness, share: float) -> Tensor:
    """Louder or quieter."""
    return windows * (1 + share * (2 * _drawn(draws, 3, windows) - 1))


def noisy(windows: Tensor, draws: Randomness, snr: float) -> Tensor:
    """With white Gaussian noise, so many dB below the window's own power (Box and Muller 1958)."""
    count = windows[0].numel()
    first, second = (draws.uniform(layer, count).view(windows.shape) for layer in (4, 5))
    normal = (-2 * (1 - first).log()).sqrt() * torch.cos(2 * math.pi * second)
    level = windows.square().mean(dim=(2, 3), keepdim=True).sqrt() * 10 ** (-snr / 20)
    return windows + level * normal.to(windows.dtype)


def masked(windows: Tensor, draws: Randomness, share: float) -> Tensor:
    """With an interval of this share of the window set to 0."""
    return windows * ~_interval(_drawn(draws, 6, windows), windows.shape[-1], share)


def _interval(drawn: Tensor, length: int, share: float) -> Tensor:
    """Whether a point lies in an interval of round(share · length) points, whose start is drawn, bool."""
    width = round(share * length)
    start = torch.floor(drawn * (length - width + 1))
    place = torch.arange(length, device=drawn.device)
    return (place >= start) & (place < start + width)
