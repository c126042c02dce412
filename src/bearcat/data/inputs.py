"""What the network is given of a window. `INPUTS` is the table; a row is a class whose fields are its settings.

The same object serves training, prediction and the estimator; docs/inputs.md and extend.md say what and how to add.

>>> inputs = find_input("bearing-orders").transform(windows, rate=51_200, rpm=900, bearing=BEARINGS["6205"])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import bearcat.data.physical as physical
from bearcat.data.bearing import KINEMATIC, Bearing, bearing_lines
from bearcat.data.physical import WindowSpectra
from bearcat.data.recording import Floats, RecordingInfo, spectrum, standardise
from bearcat.errors import InputError, check_range
from bearcat.settings import find_name, from_text, to_text

Rate = float | None  # of a recording, in Hz; None: it is not known
WHAT = {"rate": "the sampling rate", "rpm": "the speed", "bearing": "the bearing"}
FEWEST_ORDERS = 10.0  # up to which a spectrum of orders must reach to be of use: BPFO and BPFI of most bearings


@dataclass(frozen=True)
class Input:
    """A transform of windows. Rate, speed and bearing are None where they are not known.

    >>> find_input("bearing-orders").needs
    ('rate', 'rpm', 'bearing')
    """

    version: ClassVar[int] = 1  # raise it when the transform changes: runs are made again
    label_from: ClassVar[int] = 100  # T_PL of the paper, which lets self-training wait for all but the waveform

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

    def check(self, length: int, rate: Rate = None, rpm: float | None = None, bearing: Bearing | None = None) -> None:
        """Refuses, in one sentence, recordings and windows that it cannot be made of."""
        metadata = {"rate": rate, "rpm": rpm, "bearing": bearing}
        for name in self.needs:
            if metadata[name] is None:
                raise InputError(f"this input needs {WHAT[name]}, which is not known; give {name}", name)
        if "rpm" in self.needs:
            check_range("rpm", rpm, field="rpm")
        if length < self.shortest:
            raise InputError(f"this input needs {self.shortest} samples a window, more than {length}", "window")

    def transform(
        self, windows: Floats, rate: Rate = None, rpm: float | None = None, bearing: Bearing | None = None
    ) -> Floats:
        """Windows as recorded (window, channel, time) → float32 (window, channel, point)."""
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

    def measure(self, spectra: WindowSpectra, turns: float, orders: np.ndarray) -> Floats:
        """(window, channel, point) of windows of so many turns, of a bearing with these orders (4,); NaN: not known."""
        raise NotImplementedError(f"{type(self).__name__} measures nothing")

    def transform(
        self, windows: Floats, rate: Rate = None, rpm: float | None = None, bearing: Bearing | None = None
    ) -> Floats:
        length, size = windows.shape[-1], max(1, physical.BLOCK // math.prod(windows.shape[1:]))
        self.check(length, rate, rpm, bearing)
        turns = (math.nan if rpm is None else rpm) / 60 * length / (rate or math.nan)
        bearing_orders = bearing.orders() if bearing else dict.fromkeys(KINEMATIC, math.nan)
        orders = np.array([bearing_orders[name] for name in KINEMATIC])
        blocks = (windows[first : first + size] for first in range(0, max(len(windows), 1), size))
        return np.concatenate([self.measure(WindowSpectra.of(block), turns, orders) for block in blocks])


def check_order(name: str, order: float, bands: int, rate: Rate, rpm: float | None) -> None:
    """Refuses a speed at which the envelope of a band does not show an order of the shaft."""
    highest, limit = order * (rpm or 0.0) / 60, (rate or math.inf) / 2 / bands
    if highest > limit:
        beyond = f"{name} at {rpm:g} rpm is {highest:.0f} Hz, beyond the {limit:.0f} Hz that a band shows"
        raise InputError(f"{beyond}; check the speed, or set a lower last order", "rpm")


@dataclass(frozen=True)
class BearingOrders(PhysicalInput):
    """Spectra of bands' envelopes on an axis of the bearing's own orders, whatever its geometry: for other bearings."""

    bands: int = 4
    multiples: int = 6  # of each strike that are read, with their sidebands
    needs: ClassVar[tuple[str, ...]] = ("rate", "rpm", "bearing")
    turns: ClassVar[float] = 12.0  # so that lines an order apart are apart
    fewest: ClassVar[float] = 6.0  # turns, below which they are not

    def __post_init__(self) -> None:
        check_range("count", self.bands, "bands")
        check_range("count", self.multiples, "multiples")

    @property
    def shortest(self) -> int:
        return 16 * self.bands

    def points(self, length: int) -> int:
        return self.bands * len(bearing_lines(self.multiples))

    def check(self, length: int, rate: Rate = None, rpm: float | None = None, bearing: Bearing | None = None) -> None:
        super().check(length, rate, rpm, bearing)
        orders = bearing.orders() if bearing else {"BPFI": 0.0, "BSF": 0.0}
        highest, name = max((orders["BPFI"], "BPFI"), (2 * orders["BSF"], "2×BSF"))
        check_order(f"{self.multiples}×{name}+1", self.multiples * highest + 1, self.bands, rate, rpm)
        turns = length / (rate or math.inf) * (rpm or 0.0) / 60
        if turns < self.fewest:
            few = f"a window of {length} samples holds {turns:.1f} turns of the shaft, and {self.fewest:g} are needed"
            raise InputError(f"{few}; check the speed, or use longer windows", "rpm")

    def measure(self, spectra: WindowSpectra, turns: float, orders: np.ndarray) -> Floats:
        return physical.bearing_orders(spectra, turns, self.bands, self.multiples, orders)


ORDERS, BANDS = "envelope-orders", 4  # the part that needs a speed, and the bands whose envelopes it reads
Measure = Callable[[WindowSpectra, float, float], Floats]  # of windows of so many turns, up to the last order
PARTS: dict[str, tuple[int, int, Measure]] = {  # points, samples that a window must have, and how they are measured
    "log-spectrum": (128, 516, lambda spectra, *_: physical.log_spectrum(spectra, 128)),
    "octave-spectrum": (96, 512, lambda spectra, *_: physical.octave_spectrum(spectra, 96, 9)),
    "band-kurtosis": (16, 128, lambda spectra, *_: physical.band_kurtosis(spectra, 16)),
    ORDERS: (160 * BANDS, 64, lambda spectra, turns, last: physical.envelope_orders(spectra, turns, BANDS, last, 160)),
}
WITHOUT_SPEED = tuple(PARTS)[:3]


@dataclass(frozen=True)
class Physics(PhysicalInput):
    """What the recordings' metadata allow of PARTS, in one vector."""

    use: tuple[str, ...] = ()  # of PARTS; none: as `suited` chooses by the metadata of the recordings, or the first 3
    last: float = 40.0  # order up to which envelopes are read

    def __post_init__(self) -> None:
        names = tuple(find_name(name, PARTS, "part of the physical input") for name in self.use)
        object.__setattr__(self, "use", names)  # as PARTS spells them
        if not physical.FIRST_ORDER < self.last < math.inf:
            raise InputError(f"last must be an order above {physical.FIRST_ORDER:g}, not {self.last:g}")

    @property
    def parts(self) -> dict[str, int]:
        """How many points each part has, in their order."""
        return {name: PARTS[name][0] for name in self.use or WITHOUT_SPEED}

    @property
    def needs(self) -> tuple[str, ...]:
        return ("rate", "rpm") if ORDERS in self.use else ()

    @property
    def shortest(self) -> int:
        return max(PARTS[name][1] for name in self.parts)

    def points(self, length: int) -> int:
        return sum(self.parts.values())

    def check(self, length: int, rate: Rate = None, rpm: float | None = None, bearing: Bearing | None = None) -> None:
        super().check(length, rate, rpm, bearing)
        if ORDERS in self.use:
            check_order(f"order {self.last:g}", self.last, BANDS, rate, rpm)

    def measure(self, spectra: WindowSpectra, turns: float, orders: np.ndarray) -> Floats:
        return np.concatenate([PARTS[name][2](spectra, turns, self.last) for name in self.parts], axis=-1)

    def suited(self, recordings: Sequence[RecordingInfo]) -> Physics:
        """With shaft orders where rate and speed of all are known, up to the highest that all show in a band."""
        if self.use:
            return self
        speeds = [(recording.rate, recording.rpm / 60) for recording in recordings if recording.rate and recording.rpm]
        highest = min((rate / 2 / BANDS / shaft for rate, shaft in speeds), default=0.0)
        if len(speeds) < len(recordings) or highest < FEWEST_ORDERS:
            return Physics(WITHOUT_SPEED)
        return Physics(tuple(PARTS), self.last if highest >= self.last else float(int(highest)))


INPUTS: dict[str, type[Input]] = {
    "time": Waveform,
    "frequency": Spectrum,
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
    >>> find_input("physics:use=log-spectrum").transform(windows).shape
    (3, 1, 128)
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
        object.__setattr__(self, "input", to_text(find_input(self.input), INPUTS))
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
