"""What the network is given of a window. `INPUTS` is the table; a row is a class whose fields are its settings.

The same object serves training, prediction and the estimator; docs/inputs.md and extend.md say what and how to add.

>>> inputs = find_input("envelope-orders").transform(windows, rate=51_200, rpm=900)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

import bearcat.data.physical as physical
from bearcat.data.bearing import KINEMATIC, Bearing, bearing_lines
from bearcat.data.physical import WindowSpectra
from bearcat.data.recording import Floats, RecordingInfo, Speed, spectrum, standardise
from bearcat.errors import InputError, check_range
from bearcat.settings import find_name, from_text, spell_out, to_text

Rate = float | None  # of a recording, in Hz; None: it is not known
WHAT = {"rate": "the sampling rate", "rpm": "the speed", "bearing": "the bearing"}
FEWEST_ORDERS = 10.0  # up to which a spectrum of orders must reach to be of use: BPFO and BPFI of most bearings


@dataclass(frozen=True)
class Input:
    """A transform of windows. Rate, speed and bearing are None where they are not known.

    >>> find_input("envelope-orders").needs
    ('rate', 'rpm')
    """

    version: ClassVar[int] = 1  # raise it when the transform changes: cached windows and runs are made again
    label_from: ClassVar[int] = 100  # T_PL of the paper, which lets self-training wait for all but the waveform

    @property
    def depends(self) -> bool:
        """Whether what it is depends on the metadata of the recordings (`suited`)."""
        return False

    @property
    def needs(self) -> tuple[str, ...]:
        """What of WHAT a recording must say."""
        return ()

    def suited(self, recordings: Sequence[RecordingInfo]) -> Input:
        """The input for recordings with these metadata."""
        return self

    def points(self, length: int) -> int:
        """How many points a window of so many samples becomes."""
        raise NotImplementedError(f"{type(self).__name__} does not say its points")

    @property
    def shortest(self) -> int:
        """Samples that a window must have."""
        return 2

    def check(self, length: int, rate: Rate = None, rpm: Speed | None = None, bearing: Bearing | None = None) -> None:
        """Refuses, in one sentence, recordings and windows that it cannot be made of."""
        metadata = {"rate": rate, "rpm": rpm, "bearing": bearing}
        for name in self.needs:
            if metadata[name] is None:
                raise InputError(f"this input needs {WHAT[name]}, which is not known; give {name}", name)
        for speed in np.unique(np.asarray(rpm, dtype=np.float64)) if "rpm" in self.needs else ():
            check_range("rpm", float(speed), field="rpm")
        if length < self.shortest:
            raise InputError(f"this input needs {self.shortest} samples a window, more than {length}", "window")

    def transform(
        self, windows: Floats, rate: Rate = None, rpm: Speed | None = None, bearing: Bearing | None = None
    ) -> Floats:
        """Windows as recorded (window, channel, time) → float32 (window, channel, point); a speed may be (window,)."""
        raise NotImplementedError(f"{type(self).__name__} transforms nothing")


class Waveform(Input):
    """The samples, standardised by the window's mean and standard deviation."""

    label_from = 50

    def points(self, length: int) -> int:
        return length

    def transform(self, windows: Floats, *_: Any, **__: Any) -> Floats:
        return standardise(windows)


class Spectrum(Input):
    """The magnitude spectrum, first half of the bins, standardised (docs/protocol.md)."""

    def points(self, length: int) -> int:
        return length // 2

    def transform(self, windows: Floats, *_: Any, **__: Any) -> Floats:
        return standardise(spectrum(windows))


@dataclass(frozen=True)
class PhysicalInput(Input):
    """An input that measures the spectra of windows (data/physical.py)."""

    label_from = 50  # the classes are apart from the start
    turns: ClassVar[float] = 2.0  # of the shaft that a window should hold

    def __post_init__(self) -> None:
        for name in ("bands", "number", "multiples"):
            check_range("count", getattr(self, name, 1), name)

    def measure(self, spectra: WindowSpectra, rate: Rate, turns: float, orders: np.ndarray) -> Floats:
        """(window, channel, point) of windows of so many turns, of a bearing with these orders (4,); NaN: not known."""
        raise NotImplementedError(f"{type(self).__name__} measures nothing")

    def transform(
        self, windows: Floats, rate: Rate = None, rpm: Speed | None = None, bearing: Bearing | None = None
    ) -> Floats:
        if rpm is not None and np.ndim(rpm):  # each window by its own speed
            pairs = zip(np.split(windows, len(windows)), np.asarray(rpm), strict=True)
            return np.concatenate([self.transform(window, rate, float(speed), bearing) for window, speed in pairs])
        length, size = windows.shape[-1], max(1, physical.BLOCK // math.prod(windows.shape[1:]))
        self.check(length, rate, rpm, bearing)
        speed = math.nan if rpm is None else float(rpm)
        turns = speed / 60 * length / (rate or math.nan)
        bearing_orders = bearing.orders() if bearing else dict.fromkeys(KINEMATIC, math.nan)
        orders = np.array([bearing_orders[name] for name in KINEMATIC])
        blocks = (windows[first : first + size] for first in range(0, max(len(windows), 1), size))
        return np.concatenate([self.measure(WindowSpectra.of(block), rate, turns, orders) for block in blocks])


@dataclass(frozen=True)
class BandInput(PhysicalInput):
    """An input of a number for each band."""

    bands: int = 16

    def points(self, length: int) -> int:
        return self.bands


@dataclass(frozen=True)
class LogSpectrum(BandInput):
    """Logarithms of the power in equal bands, without their mean: the shape of the spectrum, whatever the gain."""

    bands: int = 128
    lowest: float = 0.0  # Hz, where the first band begins

    @property
    def needs(self) -> tuple[str, ...]:
        return ("rate",) if self.lowest else ()

    @property
    def shortest(self) -> int:
        return 4 * self.bands + 4

    def measure(self, spectra: WindowSpectra, rate: Rate, turns: float, orders: np.ndarray) -> Floats:
        share = self.lowest / (rate / 2) if self.lowest and rate else 0.0
        if not 0 <= share < 1 or (1 - share) * (spectra.length // 2 - 2) < self.bands:
            raise InputError(f"{self.bands} bands above {self.lowest:g} Hz do not fit; take fewer", "input")
        return physical.band_levels(spectra, physical.equal_edges(spectra.length, self.bands, share))


@dataclass(frozen=True)
class OctaveSpectrum(BandInput):
    """The same in bands that grow geometrically, for what differs at low frequencies."""

    bands: int = 96
    octaves: float = 9.0  # below half the rate

    @property
    def shortest(self) -> int:
        return math.ceil(2**self.octaves)  # so that the lowest band has a bin

    def measure(self, spectra: WindowSpectra, rate: Rate, turns: float, orders: np.ndarray) -> Floats:
        return physical.band_levels(spectra, physical.octave_edges(spectra.length, self.bands, self.octaves))


@dataclass(frozen=True)
class BandKurtosis(BandInput):
    """How impulsive each of some equal bands is."""

    @property
    def shortest(self) -> int:
        return 8 * self.bands

    def measure(self, spectra: WindowSpectra, rate: Rate, turns: float, orders: np.ndarray) -> Floats:
        return physical.band_kurtosis(spectra, self.bands)


@dataclass(frozen=True)
class OrderInput(PhysicalInput):
    """An input that reads the envelopes of some equal bands at orders of the shaft."""

    bands: int = 4
    needs: ClassVar[tuple[str, ...]] = ("rate", "rpm")
    fewest: ClassVar[float] = 0.0  # turns that a window must hold

    @property
    def shortest(self) -> int:
        return 16 * self.bands

    def last_order(self, bearing: Bearing | None) -> tuple[str, float]:
        """The highest order that it reads, in words and as a number."""
        raise NotImplementedError(f"{type(self).__name__} does not say its last order")

    def check(self, length: int, rate: Rate = None, rpm: Speed | None = None, bearing: Bearing | None = None) -> None:
        super().check(length, rate, rpm, bearing)
        fastest = float(np.mean(np.asarray(rpm)))  # of a speed signal the mean, by which `suited` chose
        what, order = self.last_order(bearing)
        highest, limit = order * fastest / 60, (rate or math.inf) / 2 / self.bands
        if highest > limit:
            beyond = f"{what} at {fastest:g} rpm is {highest:.0f} Hz, beyond the {limit:.0f} Hz that a band shows"
            raise InputError(f"{beyond}; check the speed, or set fewer bands or a lower last order (multiples)", "rpm")
        turns = length / (rate or math.inf) * fastest / 60
        if turns < self.fewest:
            few = f"a window of {length} samples holds {turns:.1f} turns of the shaft, and {self.fewest:g} are needed"
            raise InputError(f"{few}; check the speed, or use longer windows", "rpm")


@dataclass(frozen=True)
class EnvelopeOrders(OrderInput):
    """Spectra of bands' envelopes on an axis of shaft orders."""

    first: float = 0.5  # order
    last: float = 40.0
    number: int = 160  # orders read in each band

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.first < self.last:
            raise InputError(f"orders go from first to last, not from {self.first:g} to {self.last:g}")

    def last_order(self, bearing: Bearing | None) -> tuple[str, float]:
        return f"order {self.last:g}", self.last

    def points(self, length: int) -> int:
        return self.bands * self.number

    def measure(self, spectra: WindowSpectra, rate: Rate, turns: float, orders: np.ndarray) -> Floats:
        return physical.envelope_orders(spectra, turns, self.bands, np.linspace(self.first, self.last, self.number))


@dataclass(frozen=True)
class BearingOrders(OrderInput):
    """Spectra of bands' envelopes on an axis of the bearing's own orders, whatever its geometry: for other bearings."""

    multiples: int = 6  # of each strike that are read, with their sidebands
    needs: ClassVar[tuple[str, ...]] = ("rate", "rpm", "bearing")
    turns: ClassVar[float] = 12.0  # so that lines an order apart are apart
    fewest: ClassVar[float] = 6.0  # below which they are not

    def last_order(self, bearing: Bearing | None) -> tuple[str, float]:
        orders = bearing.orders() if bearing else {"BPFI": 0.0, "BSF": 0.0}
        highest, name = max((orders["BPFI"], "BPFI"), (2 * orders["BSF"], "2×BSF"))
        return f"{self.multiples}×{name}+1", self.multiples * highest + 1

    def points(self, length: int) -> int:
        return self.bands * len(bearing_lines(self.multiples))

    def measure(self, spectra: WindowSpectra, rate: Rate, turns: float, orders: np.ndarray) -> Floats:
        return physical.bearing_orders(spectra, turns, self.bands, self.multiples, orders)


PARTS = ("log-spectrum", "octave-spectrum", "band-kurtosis", "envelope-orders")


@dataclass(frozen=True)
class Physics(PhysicalInput):
    """What the recordings' metadata allow of PARTS, in one vector."""

    use: tuple[str, ...] = ()  # of PARTS; none: as `suited` chooses by the metadata of the recordings, or the first 3
    last: float = 40.0  # order up to which envelope-orders reads

    def __post_init__(self) -> None:
        names = tuple(find_name(name, PARTS, "part of the physical input") for name in self.use)
        object.__setattr__(self, "use", names)  # as PARTS spells them

    @property
    def depends(self) -> bool:
        return not self.use

    @cached_property
    def members(self) -> list[PhysicalInput]:
        made = LogSpectrum(), OctaveSpectrum(), BandKurtosis(), EnvelopeOrders(last=self.last)
        return [made[PARTS.index(name)] for name in self.use or PARTS[:3]]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in WHAT if any(name in member.needs for member in self.members))

    @property
    def shortest(self) -> int:
        return max(member.shortest for member in self.members)

    def points(self, length: int) -> int:
        return sum(member.points(length) for member in self.members)

    def check(self, length: int, rate: Rate = None, rpm: Speed | None = None, bearing: Bearing | None = None) -> None:
        for member in self.members:
            member.check(length, rate, rpm, bearing)

    def measure(self, spectra: WindowSpectra, rate: Rate, turns: float, orders: np.ndarray) -> Floats:
        return np.concatenate([member.measure(spectra, rate, turns, orders) for member in self.members], axis=-1)

    def suited(self, recordings: Sequence[RecordingInfo]) -> Physics:
        """With shaft orders where rate and speed of all are known, up to the highest that all show in a band."""
        if self.use:
            return self
        speeds = [(recording.rate, recording.rpm / 60) for recording in recordings if recording.rate and recording.rpm]
        highest = min((rate / 2 / EnvelopeOrders.bands / shaft for rate, shaft in speeds), default=0.0)
        if len(speeds) < len(recordings) or highest < FEWEST_ORDERS:
            return Physics(PARTS[:3])
        return Physics(PARTS[:4], self.last if highest >= self.last else float(int(highest)))


INPUTS: dict[str, type[Input]] = {
    "time": Waveform,
    "frequency": Spectrum,
    "log-spectrum": LogSpectrum,
    "octave-spectrum": OctaveSpectrum,
    "band-kurtosis": BandKurtosis,
    "envelope-orders": EnvelopeOrders,
    "bearing-orders": BearingOrders,
    "physics": Physics,
}
"""All inputs by name; a row more is an input more (docs/inputs.md).

>>> [name for name, kind in INPUTS.items() if "bearing" in kind().needs]
['bearing-orders']
"""


def find_input(text: str) -> Input:
    """The input that `NAME` or `NAME:SETTING=VALUE` describes.

    >>> windows = np.random.default_rng(0).normal(size=(3, 1, 4096))
    >>> find_input("log-spectrum:bands=64").transform(windows).shape
    (3, 1, 64)
    """
    return from_text(text, INPUTS, "input")


def suited_input(text: str, recordings: Sequence[RecordingInfo]) -> str:
    """The input that these recordings allow, as text."""
    suited = find_input(text).suited(recordings)
    return text if suited == find_input(text) else to_text(suited, INPUTS)


@dataclass(frozen=True)
class Preparation:
    """How windows are made of recordings. The defaults are the paper's (docs/protocol.md).

    >>> Preparation(input="frequency", length=1024).points
    512
    """

    input: str = "time"  # a row of INPUTS, as NAME or NAME:SETTING=VALUE; kept with every setting spelt out
    length: int = 1024  # samples a window
    stride: int | None = None  # samples from one window to the next; None: the length, no overlap
    rate: float | None = None  # resample everything to this rate; None: as recorded
    cut: float | None = None  # seconds: a recording counts as several of so long; None: as one

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", spell_out(self.input, INPUTS, "input"))
        for name in ("length", "stride", "rate"):
            check_range(name, getattr(self, name))
        check_range("seconds", self.cut, "cut")

    @property
    def step(self) -> int:
        return self.length if self.stride is None else self.stride

    @property
    def points(self) -> int:
        """The length of a prepared window."""
        return find_input(self.input).points(self.length)
