"""Views: the teacher labels a weak view of a target window, the student learns a strong one.

Changes of windows (batch, channel, point) have random numbers for every window, which `draw` determines; each function
has a layer of its own, so that they are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bearcat.cat.ingredient import Augmentation
from bearcat.data.inputs import Input, Waveform
from bearcat.errors import InputError
from bearcat.fast.stacked import uniform


@dataclass(frozen=True)
class StrongView(Augmentation):
    """A composition of changes, each drawn for each window; 0 leaves one out.

    >>> Recipe((SelfTraining(), StrongView(snr=10.0))).for_input("frequency").find(StrongView).shift
    0.0
    """

    name = "strong"
    resample: float = 0.02  # the speed is drawn within ± this share
    shift: float = 1.0  # the start is drawn within this share of the window, which is taken as a circle
    stop: float = 0.1  # share of the band that is taken out, at a place that is drawn
    scale: float = 0.2  # the amplitude is drawn within ± this share
    snr: float = 15.0  # dB, of the noise that is added
    mask: float = 0.1  # share of the window that is set to 0, at a place that is drawn

    def __post_init__(self) -> None:
        for name in ("resample", "shift", "stop", "scale", "mask"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"setting '{self.name}.{name}' must lie between 0 and 1, not {getattr(self, name):g}")

    def for_input(self, kind: Input) -> StrongView:
        """Shift and band-stop are for samples in time; where points are lines of a spectrum, masking stops bands."""
        return self if isinstance(kind, Waveform) else replace(self, shift=0.0, stop=0.0)

    def change(self, windows: Tensor, draw: Tensor) -> Tensor:
        if self.resample or self.shift:
            windows = resampled(windows, draw, self.resample, self.shift)
        for share, changed in ((self.stop, band_stopped), (self.scale, scaled), (self.snr, noisy), (self.mask, masked)):
            windows = changed(windows, draw, share) if share else windows
        return windows


@dataclass(frozen=True)
class WeakView(StrongView):
    """A little noise.

    >>> [each.name for each in RECIPES["AT-views"].ingredients]
    ['weak', 'labels', 'strong', 'alignment']
    """

    name = "weak"
    of_teacher = True
    resample: float = 0.0
    shift: float = 0.0
    stop: float = 0.0
    scale: float = 0.0
    snr: float = 30.0
    mask: float = 0.0


def _drawn(draw: Tensor, layer: int, windows: Tensor) -> Tensor:
    """A number between 0 and 1 for each window, (batch, 1, 1)."""
    return uniform(draw, layer, len(windows)).to(windows.dtype)[:, None, None]


def resampled(windows: Tensor, draw: Tensor, resample: float, shift: float) -> Tensor:
    """Read from another start and at another speed, by linear interpolation on the window as a circle."""
    length = windows.shape[-1]
    start = torch.floor(_drawn(draw, 0, windows) * shift * length)
    speed = 1 + resample * (2 * _drawn(draw, 1, windows) - 1)
    place = (start + speed * torch.arange(length, device=windows.device, dtype=windows.dtype)) % length
    before = place.floor()
    part = place - before
    index = before.long().clamp(max=length - 1).expand_as(windows)
    return (1 - part) * windows.gather(2, index) + part * windows.gather(2, (index + 1) % length)


def band_stopped(windows: Tensor, draw: Tensor, share: float) -> Tensor:
    """Without the lines of a band of this share of the spectrum."""
    lines = torch.fft.rfft(windows)
    inside = _interval(_drawn(draw, 2, windows), lines.shape[-1], share)
    stopped: Tensor = torch.fft.irfft(lines * ~inside, n=windows.shape[-1])
    return stopped


def scaled(windows: Tensor, draw: Tensor, share: float) -> Tensor:
    """Louder or quieter."""
    return windows * (1 + share * (2 * _drawn(draw, 3, windows) - 1))


def noisy(windows: Tensor, draw: Tensor, snr: float) -> Tensor:
    """With white Gaussian noise, so many dB below the window's own power (Box and Muller 1958)."""
    first, second = (uniform(draw, layer, windows.numel()).view(windows.shape) for layer in (4, 5))
    normal = (-2 * (1 - first).log()).sqrt() * torch.cos(2 * math.pi * second)
    level = windows.square().mean(dim=(1, 2), keepdim=True).sqrt() * 10 ** (-snr / 20)
    return windows + level * normal.to(windows.dtype)


def masked(windows: Tensor, draw: Tensor, share: float) -> Tensor:
    """With an interval of this share of the window set to 0."""
    return windows * ~_interval(_drawn(draw, 6, windows), windows.shape[-1], share)


def _interval(drawn: Tensor, length: int, share: float) -> Tensor:
    """Whether a point lies in an interval of round(share · length) points, whose start is drawn, bool."""
    width = round(share * length)
    start = torch.floor(drawn * (length - width + 1))
    place = torch.arange(length, device=drawn.device)
    return (place >= start) & (place < start + width)
