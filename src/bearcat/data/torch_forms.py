"""Inputs as torch modules, for exported graphs; physical.py has the same in numpy.

The physical inputs measure, by one FFT of the window, the energy in frequency bands without the gain, how impulsive
each band is, and the spectra of the bands' envelopes on an axis of shaft orders. docs/inputs.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from bearcat.data.bearing import FAULT_LINES, bearing_lines
from bearcat.data.physical import (
    FAULT_AROUND,
    FAULT_NEAR,
    FLOOR,
    LEVEL_FLOOR,
    NEAR,
    OVERSAMPLED,
    REACH,
    SLIP,
    TOLERANCE,
)


class StandardisedWaveform(nn.Module):
    """Windows (window, channel, time) float32, each by its own mean and standard deviation; a constant one: zeros."""

    def forward(self, windows: Tensor) -> Tensor:
        return _standardised(windows.double())[0]


class StandardisedSpectrum(nn.Module):
    """The standardised magnitude spectrum by two matrix products, whose tables are gathered to keep a graph small."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        turn = 2 * math.pi * torch.arange(length, dtype=torch.float64) / length
        self.cosine = nn.Buffer(turn.cos().float())
        self.sine = nn.Buffer(turn.sin().float())
        self.samples = nn.Buffer(torch.arange(length)[:, None])
        self.bins = nn.Buffer(torch.arange(1, length // 2)[None])

    def forward(self, windows: Tensor) -> Tensor:
        signal, mean = _standardised(windows.double())  # for precision; the last one cancels it, and bin 0 is the mean
        place = (self.samples * self.bins) % self.length
        parts = [(signal @ table[place]).double().square() for table in (self.cosine, self.sine)]
        magnitude = (parts[0] + parts[1]).sqrt() / self.length
        return _standardised(torch.cat([mean.abs(), magnitude], dim=-1))[0]


class Part(nn.Module):
    """One physical measurement of windows that have mean 0 and deviation 1."""

    def basis(self, rpm: Tensor, orders: Tensor) -> Tensor:
        """What depends on speed (1,) and orders (4,) alone; either is empty where not needed."""
        return rpm

    def forward(self, lines: Tensor, basis: Tensor) -> Tensor:
        """`lines` (window, channel, bin, 2) is the FFT, real and imaginary; (window, channel, point) comes out."""
        raise NotImplementedError


class PhysicalForm(nn.Module):
    """Some parts of windows (window, channel, time) as recorded, one behind the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, windows: Tensor, rpm: Tensor | None = None, orders: Tensor | None = None) -> Tensor:
        speed, bearing = (torch.empty(0) if tensor is None else tensor for tensor in (rpm, orders))
        return self.measure(windows, [cast("Part", part).basis(speed, bearing) for part in self.parts])

    def measure(self, windows: Tensor, bases: Sequence[Tensor]) -> Tensor:
        exact = windows.double()  # an offset may be far above the vibration
        lines = torch.view_as_real(torch.fft.rfft(_standardised(exact)[0]))
        return torch.cat([part(lines, basis) for part, basis in zip(self.parts, bases, strict=True)], dim=-1)


class BandLevels(Part):
    """Logarithms of the mean power in some bands, without their mean; a bin that an edge cuts counts by its shares."""

    def __init__(self, length: int, edges: np.ndarray) -> None:
        """`edges` (band + 1,) are counted in bins from the lower edge of bin 1."""
        super().__init__()
        self.last = length // 2 - 1
        clipped = torch.from_numpy(edges).clamp(0, self.last)
        self.place = nn.Buffer(clipped.floor().clamp(max=self.last - 1).long())
        self.beyond = nn.Buffer(clipped - self.place)
        self.width = nn.Buffer(clipped.diff())

    def forward(self, lines: Tensor, basis: Tensor) -> Tensor:
        # The Hann window in the frequency domain: a bin less half of its neighbours.
        before, after = lines[..., : self.last, :], lines[..., 2 : self.last + 2, :]
        tapered = lines[..., 1 : self.last + 1, :] / 2 - (before + after) / 4
        power = _squared(tapered).double()
        below = nn.functional.pad(power.cumsum(dim=-1), (1, 0))[..., self.place] + power[..., self.place] * self.beyond
        mean = (below[..., 1:] - below[..., :-1]) / self.width
        level = (_over(mean, mean.mean(dim=-1, keepdim=True)) + FLOOR).log().float()
        return level - level.mean(dim=-1, keepdim=True)


def squared_envelopes(lines: Tensor, bands: int, oversampled: int = 1) -> Tensor:
    """Squared magnitudes of the analytic signals of equal bands: (…, bin, 2) → (…, band, time).

    Bin 0 is empty. A band of b bins is sampled at 2b times: its squared magnitude has twice its bandwidth, a root more.
    """
    width = (lines.shape[-2] - 1) // bands
    parts = lines[..., : width * bands, :].reshape(*lines.shape[:-2], bands, width, 2)
    padded = nn.functional.pad(parts, (0, 0, 0, (2 * oversampled - 1) * width)).contiguous()
    return _squared(torch.view_as_real(torch.fft.ifft(torch.view_as_complex(padded))))


class BandKurtosisForm(Part):
    """log(mean e⁴ / (mean e²)²) of the envelope e of equal bands: 0 for a sine, log 2 for noise, more for impacts."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.bands = bands

    def forward(self, lines: Tensor, basis: Tensor) -> Tensor:
        power = squared_envelopes(lines, self.bands)
        return _over(power, power.mean(dim=-1, keepdim=True)).square().mean(dim=-1).clamp(min=1.0).log()


class OrderSpectrum(nn.Module):
    """Amplitudes of band signals at orders: Fourier sums over the shaft's angle at one speed."""

    def __init__(self, length: int, points: int, rate: float) -> None:
        super().__init__()
        self.length, self.points, self.rate = length, points, rate

    def basis(self, rpm: Tensor, orders: Tensor) -> Tensor:
        """Orders (order,) → cosines and sines (time, 2 · order), tapered by a Hann window whose sum is 2."""
        time = torch.arange(self.points, dtype=torch.float64) * (self.length / self.points)  # in samples of the window
        weight = torch.hann_window(self.points, dtype=torch.float64)
        angle = rpm.double() * time
        weight = (weight * (2 / weight.sum()))[..., None].float()
        phase = angle[..., None] / (60 * self.rate) * orders[None, :].double()
        phase = ((phase - phase.floor()) * (2 * math.pi)).float()
        return torch.cat([phase.cos() * weight, phase.sin() * weight], dim=-1)

    def forward(self, values: Tensor, basis: Tensor) -> Tensor:
        """(window, channel, band, time) → (window, channel, band, order)."""
        half = basis.shape[-1] // 2
        product = values @ basis
        return (product[..., :half].square() + product[..., half:].square()).sqrt()


class EnvelopeOrdersForm(Part):
    """Spectra of the envelopes of equal bands at equally spaced orders, in log, standardised in each window."""

    def __init__(self, length: int, rate: float, bands: int, first: float, last: float, number: int) -> None:
        super().__init__()
        self.bands = bands
        self.orders = nn.Buffer(torch.linspace(first, last, number, dtype=torch.float64))
        self.spectrum = OrderSpectrum(length, 2 * OVERSAMPLED * (length // 2 // bands), rate)

    def basis(self, rpm: Tensor, orders: Tensor) -> Tensor:
        return self.spectrum.basis(rpm, self.orders)

    def forward(self, lines: Tensor, basis: Tensor) -> Tensor:
        envelope = squared_envelopes(lines, self.bands, OVERSAMPLED).sqrt()
        return _unit((self.spectrum(_relative(envelope), basis) + LEVEL_FLOOR).log().flatten(-2))


class BearingOrdersForm(Part):
    """The same at the places of `bearing_lines`: the highest level within SLIP of each, standardised in each window."""

    def __init__(self, length: int, rate: float, bands: int, multiples: int) -> None:
        super().__init__()
        self.bands = bands
        self.lines = nn.Buffer(torch.tensor(list(bearing_lines(multiples).values()), dtype=torch.float64))
        self.spread = nn.Buffer(torch.linspace(-SLIP, SLIP, NEAR, dtype=torch.float64))
        self.spectrum = OrderSpectrum(length, 2 * OVERSAMPLED * (length // 2 // bands), rate)

    def basis(self, rpm: Tensor, orders: Tensor) -> Tensor:
        place = self.lines @ torch.cat([orders.double(), orders.new_ones(1, dtype=torch.float64)])
        return self.spectrum.basis(rpm, (place[:, None] * (1 + self.spread)).flatten())

    def forward(self, lines: Tensor, basis: Tensor) -> Tensor:
        envelope = squared_envelopes(lines, self.bands, OVERSAMPLED).sqrt()
        level: Tensor = (self.spectrum(_relative(envelope), basis) + LEVEL_FLOOR).log()
        return _unit(level.reshape(*level.shape[:-1], len(self.lines), NEAR).amax(dim=-1).flatten(-2))


class FaultOrdersForm(Part):
    """Levels of the whitened window's squared envelopes' spectra at FAULT_LINES over the mean around them, in log."""

    def __init__(self, length: int, rate: float, bands: int, smoothing: float) -> None:
        super().__init__()
        self.bands, self.width = bands, 2 * round(smoothing * length / rate / 2) + 1
        self.spectrum = OrderSpectrum(length, 2 * (length // 2 // bands), rate)
        self.lines = nn.Buffer(torch.tensor(list(FAULT_LINES.values()), dtype=torch.float64))
        self.spread = nn.Buffer(torch.linspace(-TOLERANCE, TOLERANCE, FAULT_NEAR, dtype=torch.float64))
        self.away = nn.Buffer(torch.linspace(0, REACH, FAULT_AROUND, dtype=torch.float64))
        self.seconds = length / rate

    def basis(self, rpm: Tensor, orders: Tensor) -> Tensor:
        """Of all orders that are tried: first those near the lines, then those of their backgrounds.

        A line is four bins of a Hann window wide, and so is what the mean leaves at order 0; background that would
        lie there lies above the line instead.
        """
        line = (self.lines @ torch.cat([orders.double(), orders.new_ones(1, dtype=torch.float64)]))[:, None]
        gap = 2.5 / (rpm.double() / 60 * self.seconds)
        away = TOLERANCE * line + gap + self.away
        below = torch.where(line - away > gap, line - away, line + away + REACH)
        near = line * (1 + self.spread)
        tried = torch.cat([near.flatten(-2), torch.cat([below, line + away], dim=-1).flatten(-2)], dim=-1)
        return self.spectrum.basis(rpm, tried)

    def forward(self, lines: Tensor, basis: Tensor) -> Tensor:
        magnitude = _squared(lines).sqrt()
        each = magnitude.flatten(0, 1)[:, None]
        smooth = nn.functional.avg_pool1d(each, self.width, 1, self.width // 2, count_include_pad=False)
        power = squared_envelopes(_over(lines, smooth.view(magnitude.shape)[..., None]), self.bands)
        level: Tensor = (self.spectrum(_relative(power), basis) + LEVEL_FLOOR).log()
        number = len(self.lines)
        near, around = level[..., : number * FAULT_NEAR], level[..., number * FAULT_NEAR :]
        highest = near.reshape(*near.shape[:-1], number, FAULT_NEAR).amax(dim=-1)
        background = around.reshape(*around.shape[:-1], number, 2 * FAULT_AROUND).mean(dim=-1)
        return (highest - background).flatten(-2)


def _standardised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values (…, time) float64 by their mean and deviation, zeros where they are constant; and the mean so scaled."""
    mean = values.mean(dim=-1, keepdim=True)
    centred = values - mean
    deviation = centred.square().mean(dim=-1, keepdim=True).sqrt()
    return _over(centred, deviation).float(), _over(mean, deviation)


def _unit(level: Tensor) -> Tensor:
    """Levels (…, point) by their mean and deviation."""
    level = level - level.double().mean(dim=-1, keepdim=True).float()  # exact, where all are the same
    return _over(level, level.square().mean(dim=-1, keepdim=True).sqrt())


def _squared(values: Tensor) -> Tensor:
    """Squared magnitudes of complex numbers (…, 2)."""
    squared: Tensor = values[..., 0].square() + values[..., 1].square()
    return squared


def _over(values: Tensor, scale: Tensor) -> Tensor:
    """Values over a scale; where that is 0, as in a window without vibration, as they are."""
    divided: Tensor = values / torch.where(scale == 0, 1.0, scale)
    return divided


def _relative(values: Tensor) -> Tensor:
    """How far values are from their mean over time, in units of it."""
    mean = values.mean(dim=-1, keepdim=True)
    return _over(values - mean, mean)
