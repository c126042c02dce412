"""Physical inputs: what carries a fault across speeds, loads and machines, of a window of vibration.

Bearing faults are trains of impacts that ring a resonance. How often they come is a multiple of the shaft's speed that
the bearing's geometry fixes; where they ring belongs to the machine. So these inputs measure the energy in frequency
bands without the gain, how impulsive each band is, and the spectra of the bands' envelopes on an axis of shaft orders,
that is, multiples of the shaft's frequency. docs/inputs.md has the formulas and what each is for.

All of them are made of one FFT of the window by torch, here and in exported graphs.

>>> find_input("envelope-orders").transform(windows, rate=51_200, rpm=900)     # (window, channel, band · order)
>>> find_input("physics").suited(recordings)                                   # what their metadata allow, and why
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bearcat.data.bearing import FAULT_LINES

FLOOR = 1e-12  # of a share of power, below which float32 recordings hold nothing but rounding
LEVEL_FLOOR = 1e-6  # of a level in an envelope spectrum, in units of the envelope's mean
TOLERANCE = 0.02  # by which a fault's order may differ from the kinematic one: slip, and a speed that is a little off


class Part(nn.Module):
    """One physical measurement of windows that have mean 0 and deviation 1."""

    def forward(self, lines: Tensor, rpm: Tensor, orders: Tensor) -> Tensor:
        """`lines` (window, channel, bin, 2) is the FFT, real and imaginary; (window, channel, point) comes out.

        `rpm` is (1,), or (window, time) where the speed is a signal; `orders` (4,) are those of bearing.KINEMATIC;
        both are empty where no part needs them.
        """
        raise NotImplementedError


class PhysicalForm(nn.Module):
    """Some parts of windows (window, channel, time) as recorded, one behind the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, windows: Tensor, rpm: Tensor | None = None, orders: Tensor | None = None) -> Tensor:
        exact = windows.double()  # an offset may be far above the vibration
        exact = exact - exact.mean(dim=-1, keepdim=True)
        deviation = exact.square().mean(dim=-1, keepdim=True).sqrt()
        lines = torch.view_as_real(torch.fft.rfft(_over(exact, deviation).float()))
        given = [windows.new_empty(0) if tensor is None else tensor for tensor in (rpm, orders)]
        return torch.cat([part(lines, *given) for part in self.parts], dim=-1)


class LogBands(Part):
    """Logarithms of the mean power in equal bands up to half the rate, without their mean: the gain does not count."""

    def __init__(self, length: int, bands: int, lowest: float) -> None:
        """`lowest` is where the first band begins, as a share of half the rate."""
        super().__init__()
        self.average: Tensor
        self.first, self.last = max(1, math.ceil(lowest * length / 2)), length // 2 - 1  # bins
        number = self.last - self.first + 1
        member = nn.functional.one_hot(torch.arange(number) * bands // number, bands).float()
        self.register_buffer("average", member / member.sum(dim=0))  # (bin, band)

    def forward(self, lines: Tensor, rpm: Tensor, orders: Tensor) -> Tensor:
        del rpm, orders
        # The Hann window in the frequency domain: a bin less half of its neighbours.
        before, after = lines[..., self.first - 1 : self.last, :], lines[..., self.first + 1 : self.last + 2, :]
        tapered = lines[..., self.first : self.last + 1, :] / 2 - (before + after) / 4
        power = tapered.square().sum(dim=-1) @ self.average
        level = (_over(power, power.mean(dim=-1, keepdim=True)) + FLOOR).log()
        return level - level.mean(dim=-1, keepdim=True)


def squared_envelopes(lines: Tensor, bands: int) -> Tensor:
    """Squared magnitudes of the analytic signals of equal bands: (…, bin, 2) → (…, band, time).

    Bin 0 is empty, as the window's mean is 0. A band of b bins is sampled at 2b times, which is all its squared
    magnitude has, a signal of twice the bandwidth.
    """
    width = (lines.shape[-2] - 1) // bands
    parts = lines[..., : width * bands, :].reshape(*lines.shape[:-2], bands, width, 2)
    padded = nn.functional.pad(parts, (0, 0, 0, width)).contiguous()
    signal = torch.view_as_real(torch.fft.ifft(torch.view_as_complex(padded)))
    return signal.square().sum(dim=-1)


class BandKurtosis(Part):
    """log(mean e⁴ / (mean e²)²) of the envelope e of equal bands: 0 for a sine, log 2 for noise, more for impacts."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.bands = bands

    def forward(self, lines: Tensor, rpm: Tensor, orders: Tensor) -> Tensor:
        del rpm, orders
        power = squared_envelopes(lines, self.bands)
        return _over(power, power.mean(dim=-1, keepdim=True)).square().mean(dim=-1).clamp(min=1.0).log()


class OrderSpectrum(nn.Module):
    """Amplitudes of band signals (window, channel, band, time) at multiples of the shaft's frequency.

    The Fourier integral is taken over the angle of the shaft, so a speed that varies inside a window smears no line.
    """

    def __init__(self, length: int, points: int, rate: float) -> None:
        super().__init__()
        self.seconds: Tensor
        self.taper: Tensor
        self.place: Tensor
        self.beyond: Tensor
        time = torch.arange(points, dtype=torch.float64) * (length / points)  # in samples of the window
        self.register_buffer("seconds", time / rate)
        self.register_buffer("place", time.long())
        self.register_buffer("beyond", time - time.floor())
        self.register_buffer("taper", torch.hann_window(points, dtype=torch.float64))
        self.rate = rate

    def forward(self, values: Tensor, rpm: Tensor, orders: Tensor) -> Tensor:
        """Values and orders, (order,) or (window, 1, order) → (window, channel, band, order)."""
        if rpm.ndim == 1:
            turns, weight = rpm.double() / 60 * self.seconds, self.taper
        else:  # (window, time): turns and weights have axes (window, 1, time), for all channels
            speed = rpm.double()
            angle = (speed.cumsum(dim=-1) - speed)[:, None, self.place]  # up to the sample at or before each time
            turns = (angle + speed[:, None, self.place] * self.beyond) / (60 * self.rate)
            weight = self.taper * speed[:, None, self.place]  # the integral is over the angle
        weight = weight * (2 / weight.sum(dim=-1, keepdim=True))
        phase = turns[..., None] * orders[..., None, :].double()
        phase = ((phase - phase.floor()) * (2 * math.pi)).float()
        tapered = values * weight[..., None, :].float()
        real, imaginary = tapered @ phase.cos(), tapered @ phase.sin()
        return (real.square() + imaginary.square()).sqrt()


class EnvelopeOrders(Part):
    """Spectra of the envelopes of equal bands at equally spaced orders, in log, standardised in each window."""

    def __init__(self, length: int, rate: float, bands: int, first: float, last: float, number: int) -> None:
        super().__init__()
        self.orders: Tensor
        self.bands = bands
        self.register_buffer("orders", torch.linspace(first, last, number, dtype=torch.float64))
        self.spectrum = OrderSpectrum(length, 2 * (length // 2 // bands), rate)

    def forward(self, lines: Tensor, rpm: Tensor, orders: Tensor) -> Tensor:
        del orders
        level: Tensor = self.spectrum(_relative(squared_envelopes(lines, self.bands).sqrt()), rpm, self.orders)
        level = (level + LEVEL_FLOOR).log().flatten(-2)
        level = level - level.mean(dim=-1, keepdim=True)
        return _over(level, level.square().mean(dim=-1, keepdim=True).sqrt())


class FaultOrders(Part):
    """Levels of the squared envelopes' spectra at FAULT_LINES over the (geometric) mean of levels around, in log.

    The window's spectrum is divided by its own smoothed magnitude first, so that the quiet bands count like the loud.
    """

    NEAR, AROUND = 17, 8  # orders tried within the tolerance, and on either side for the background
    REACH = 1.5  # orders, of the background on either side

    def __init__(self, length: int, rate: float, bands: int, smoothing: float) -> None:
        super().__init__()
        self.bands, self.width = bands, 2 * round(smoothing * length / rate / 2) + 1
        self.spectrum = OrderSpectrum(length, 2 * (length // 2 // bands), rate)
        self.lines: Tensor
        self.spread: Tensor
        self.away: Tensor
        self.register_buffer("lines", torch.tensor(list(FAULT_LINES.values()), dtype=torch.float64))
        self.register_buffer("spread", torch.linspace(-TOLERANCE, TOLERANCE, self.NEAR, dtype=torch.float64))
        self.register_buffer("away", torch.linspace(0, self.REACH, self.AROUND, dtype=torch.float64))
        self.seconds = length / rate

    def forward(self, lines: Tensor, rpm: Tensor, orders: Tensor) -> Tensor:
        magnitude = lines.square().sum(dim=-1).sqrt()
        smooth = nn.functional.avg_pool1d(
            magnitude.flatten(0, 1)[:, None], self.width, 1, self.width // 2, count_include_pad=False
        ).view(magnitude.shape)
        power = squared_envelopes(_over(lines, smooth[..., None]), self.bands)
        tried = self.places(rpm, orders)
        level: Tensor = self.spectrum(_relative(power), rpm, tried.flatten(-2))
        level = (level.reshape(*level.shape[:-1], *tried.shape[-2:]) + LEVEL_FLOOR).log()
        return (level[..., : self.NEAR].amax(dim=-1) - level[..., self.NEAR :].mean(dim=-1)).flatten(-2)

    def places(self, rpm: Tensor, orders: Tensor) -> Tensor:
        """(line, NEAR + 2 · AROUND) orders: those tried near each line, then those of its background.

        A line is four bins of a Hann window wide, and so is what the mean leaves at order 0; background that would
        lie there lies above the line instead. A speed that is a signal gives each window its own, (window, 1, line, …).
        """
        line = (self.lines @ torch.cat([orders.double(), orders.new_ones(1, dtype=torch.float64)]))[:, None]
        turns = rpm.double().mean(dim=-1)[..., None, None] / 60 * self.seconds
        if rpm.ndim == 2:
            turns = turns[:, None]
        gap = 2.5 / turns
        away = TOLERANCE * line + gap + self.away
        below = torch.where(line - away > gap, line - away, line + away + self.REACH)
        near = (line * (1 + self.spread)).expand(*away.shape[:-1], self.NEAR)
        return torch.cat([near, below, line + away], dim=-1)


def _over(values: Tensor, scale: Tensor) -> Tensor:
    """Values over a scale; where that is 0, as in a window without vibration, as they are."""
    return values / torch.where(scale == 0, 1.0, scale)


def _relative(values: Tensor) -> Tensor:
    """How far values are from their mean over time, in units of it."""
    mean = values.mean(dim=-1, keepdim=True)
    return _over(values - mean, mean)
