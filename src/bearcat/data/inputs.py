"""What the network is given of a window. `INPUTS` is the table; a row is a class whose fields are its settings.

An input is a value that acts: the same object serves training, prediction, the estimator and, by its torch form, the
exported graph. docs/inputs.md says what each row is for; docs/add-an-input.md adds one in a file of its own.

>>> inputs = find_input("frequency").transform(windows)        # (window, channel, time) → (window, channel, point)
>>> inputs = find_input("envelope-orders").transform(windows, rate=51_200, rpm=900)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bearcat.data.bearing import KINEMATIC, Bearing
from bearcat.data.recording import Floats, RecordingInfo, Speed, spectrum, standardise
from bearcat.errors import InputError
from bearcat.settings import find_name, from_text

if TYPE_CHECKING:
    from torch import nn

    from bearcat.data.physics import Part


@dataclass(frozen=True)
class Input:
    """A transform of windows. Rate, speed and bearing are None where they are not known."""

    version: ClassVar[int] = 1  # raise it when the transform changes, so that cached windows are made again
    label_from: ClassVar[int] = 100  # T_PL of the paper, which lets self-training wait for all but the waveform
    turns: ClassVar[float] = 0  # of the shaft that a window should hold for this input

    @property
    def needs(self) -> tuple[str, ...]:
        """What of "rate", "rpm" and "bearing" a recording must say."""
        return ()

    def suited(self, recordings: Sequence[RecordingInfo]) -> tuple[Input, str]:  # noqa: ARG002
        """The input for recordings with these metadata, and the reason where there was a choice."""
        return self, ""

    def points(self, length: int) -> int:
        """How many points a window of so many samples becomes."""
        raise NotImplementedError(f"{type(self).__name__} does not say its points")

    def transform(
        self, windows: Floats, rate: float | None = None, rpm: Speed | None = None, bearing: Bearing | None = None
    ) -> Floats:
        """Windows as recorded (window, channel, time) → (window, channel, point) float32.

        A speed that is a signal is (window, time).
        """
        raise NotImplementedError(f"{type(self).__name__} has no transform")

    def torch_form(self, length: int, rate: float | None = None) -> nn.Module | None:  # noqa: ARG002
        """The same transform as a module, for windows of one length, so that it can be exported; None: there is none.

        It takes float32 windows (window, channel, time) and, where `needs` lists them, the speed in rpm, a tensor (1,),
        and the bearing's orders, (4,) in the sequence of bearing.KINEMATIC.
        """
        return None


@dataclass(frozen=True)
class TorchInput(Input):
    """An input that is written once, as its torch form, which also transforms windows here."""

    def transform(
        self, windows: Floats, rate: float | None = None, rpm: Speed | None = None, bearing: Bearing | None = None
    ) -> Floats:
        import torch

        given = {"rate": rate, "rpm": rpm, "bearing": bearing}
        for name in self.needs:
            if given[name] is None:
                raise InputError(f"{WHAT[name]} is not known, and this input needs it; give it with --{name}", name)
        length = windows.shape[-1]
        form = _form(self, length, rate)
        if form is None:
            raise NotImplementedError(f"{type(self).__name__} has no torch form")
        metadata = []
        if "rpm" in self.needs:
            self.check(length, rate or 0.0, float(np.mean(np.asarray(rpm))))
            metadata.append(torch.as_tensor(np.atleast_1d(np.asarray(rpm, dtype=np.float64))))
        if "bearing" in self.needs and bearing is not None:
            metadata.append(torch.tensor([bearing.orders()[name] for name in KINEMATIC], dtype=torch.float64))
        with torch.no_grad():
            given = torch.from_numpy(np.array(windows, dtype=np.float32, order="C"))
            transformed: Floats = form(given, *metadata).numpy()
        return transformed

    def check(self, length: int, rate: float, rpm: float) -> None:
        """Refuses windows that are too short for this speed, and speeds whose orders the rate cannot show."""


@dataclass(frozen=True)
class Waveform(Input):
    """The samples, standardised by the window's mean and standard deviation."""

    label_from = 50

    def points(self, length: int) -> int:
        return length

    def transform(
        self, windows: Floats, rate: float | None = None, rpm: Speed | None = None, bearing: Bearing | None = None
    ) -> Floats:
        del rate, rpm, bearing
        return standardise(windows)

    def torch_form(self, length: int, rate: float | None = None) -> nn.Module:
        from bearcat.data.torch_forms import StandardisedWaveform

        del length, rate
        return StandardisedWaveform()


@dataclass(frozen=True)
class Spectrum(Input):
    """The magnitude spectrum, first half of the bins, standardised (docs/protocol.md)."""

    def points(self, length: int) -> int:
        return length // 2

    def transform(
        self, windows: Floats, rate: float | None = None, rpm: Speed | None = None, bearing: Bearing | None = None
    ) -> Floats:
        del rate, rpm, bearing
        return standardise(spectrum(windows))

    def torch_form(self, length: int, rate: float | None = None) -> nn.Module:
        from bearcat.data.torch_forms import StandardisedSpectrum

        del rate
        return StandardisedSpectrum(length)


@dataclass(frozen=True)
class PhysicalInput(TorchInput):
    """An input that is a part of the physical vector (data.physics); `shortest`: samples that a window must have."""

    label_from = 50  # the classes are apart from the start

    @property
    def shortest(self) -> int:
        return 2

    def parts(self, length: int, rate: float | None) -> list[Part]:
        raise NotImplementedError(f"{type(self).__name__} has no parts")

    def torch_form(self, length: int, rate: float | None = None) -> nn.Module:
        from bearcat.data.physics import PhysicalForm

        if length < self.shortest:
            raise InputError(
                f"a window of {length} samples is too short for this input, which needs {self.shortest}", "window"
            )
        return PhysicalForm(self.parts(length, rate))


@dataclass(frozen=True)
class LogSpectrum(PhysicalInput):
    """Logarithms of the power in equal bands, without their mean: the shape of the spectrum, whatever the gain."""

    bands: int = 128
    lowest: float = 0.0  # Hz, where the first band begins

    @property
    def needs(self) -> tuple[str, ...]:
        return ("rate",) if self.lowest else ()

    @property
    def shortest(self) -> int:
        return 4 * self.bands + 4

    def points(self, length: int) -> int:  # noqa: ARG002
        return self.bands

    def parts(self, length: int, rate: float | None) -> list[Part]:
        from bearcat.data.physics import LogBands

        share = self.lowest / (rate / 2) if self.lowest and rate else 0.0
        if not 0 <= share < 1 or (1 - share) * (length // 2 - 2) < self.bands:
            raise InputError(
                f"{self.bands} bands above {self.lowest:g} Hz do not fit below half the rate; take fewer", "input"
            )
        return [LogBands(length, self.bands, share)]


@dataclass(frozen=True)
class BandKurtosis(PhysicalInput):
    """How impulsive each of some equal bands is."""

    bands: int = 16

    @property
    def shortest(self) -> int:
        return 8 * self.bands

    def points(self, length: int) -> int:  # noqa: ARG002
        return self.bands

    def parts(self, length: int, rate: float | None) -> list[Part]:
        from bearcat.data import physics

        del length, rate
        return [physics.BandKurtosis(self.bands)]


@dataclass(frozen=True)
class EnvelopeOrders(PhysicalInput):
    """Spectra of bands' envelopes on an axis of shaft orders."""

    turns = 2.0
    bands: int = 4
    first: float = 0.5  # order
    last: float = 40.0
    number: int = 160  # orders read in each band

    @property
    def needs(self) -> tuple[str, ...]:
        return "rate", "rpm"

    @property
    def shortest(self) -> int:
        return 16 * self.bands

    def points(self, length: int) -> int:  # noqa: ARG002
        return self.bands * self.number

    def check(self, length: int, rate: float, rpm: float) -> None:
        del length
        check_orders(self.last, self.bands, rate, rpm)

    def parts(self, length: int, rate: float | None) -> list[Part]:
        from bearcat.data import physics

        return [physics.EnvelopeOrders(length, float(rate or 1), self.bands, self.first, self.last, self.number)]


@dataclass(frozen=True)
class FaultOrders(PhysicalInput):
    """Levels of the envelopes' spectra where faults of the bearing would show, over the levels around."""

    turns = 4.0
    bands: int = 3
    smoothing: float = 400.0  # Hz, of the spectrum by which the window is whitened

    @property
    def needs(self) -> tuple[str, ...]:
        return "rate", "rpm", "bearing"

    @property
    def shortest(self) -> int:
        return 16 * self.bands

    def points(self, length: int) -> int:  # noqa: ARG002
        from bearcat.data.bearing import FAULT_LINES

        return self.bands * len(FAULT_LINES)

    def parts(self, length: int, rate: float | None) -> list[Part]:
        from bearcat.data import physics

        return [physics.FaultOrders(length, float(rate or 1), self.bands, self.smoothing)]


PARTS = ("log-spectrum", "band-kurtosis", "envelope-orders", "fault-orders")


@dataclass(frozen=True)
class Physics(PhysicalInput):
    """What the recordings' metadata allow of PARTS, in one vector."""

    use: tuple[str, ...] = ()  # of PARTS; none: chosen by the metadata of the recordings (`suited`)

    def __post_init__(self) -> None:
        for name in self.use:
            find_name(name, PARTS, "part of the physical input")

    @property
    def members(self) -> list[PhysicalInput]:
        chosen = [from_text(name, INPUTS, "input") for name in self.use or PARTS[:2]]
        return [member for member in chosen if isinstance(member, PhysicalInput)]

    @property
    def turns(self) -> float:  # type: ignore[override]
        return max(member.turns for member in self.members)

    @property
    def needs(self) -> tuple[str, ...]:
        wanted = {name for member in self.members for name in member.needs}
        return tuple(name for name in WHAT if name in wanted)

    @property
    def shortest(self) -> int:
        return max(member.shortest for member in self.members)

    def points(self, length: int) -> int:
        return sum(member.points(length) for member in self.members)

    def check(self, length: int, rate: float, rpm: float) -> None:
        for member in self.members:
            if "rpm" in member.needs:
                member.check(length, rate, rpm)

    def parts(self, length: int, rate: float | None) -> list[Part]:
        return [part for member in self.members for part in member.parts(length, rate)]

    def suited(self, recordings: Sequence[RecordingInfo]) -> tuple[Input, str]:
        if self.use:
            return self, ""
        for name in ("rate", "rpm"):
            missing = [recording.origin for recording in recordings if getattr(recording, name) is None]
            if missing:
                why = f"{WHAT[name]} of {missing[0]} is not known, so shaft orders are left out"
                return Physics(PARTS[:2]), why
        return Physics(PARTS[:3]), "rate and speed of all recordings are known"


@lru_cache(maxsize=16)
def _form(chosen: Input, length: int, rate: float | None) -> nn.Module | None:
    """An input's torch form, made once for all windows of one length and rate."""
    return chosen.torch_form(length, rate)


def check_orders(last: float, bands: int, rate: float, rpm: float) -> None:
    """Refuses orders beyond what the envelope of a band can show."""
    highest = rate / 2 / bands
    if last * rpm / 60 > highest:
        raise InputError(
            f"order {last:g} at {rpm:g} rpm is {last * rpm / 60:.0f} Hz, beyond the {highest:.0f} Hz that the envelope"
            f" of a band shows at {rate:g} Hz; check the speed, or set a lower last order or fewer bands", "rpm"
        )  # fmt: skip


WHAT = {"rate": "the sampling rate", "rpm": "the speed", "bearing": "the bearing"}
INPUTS: dict[str, type[Input]] = {
    "time": Waveform,
    "frequency": Spectrum,
    "log-spectrum": LogSpectrum,
    "band-kurtosis": BandKurtosis,
    "envelope-orders": EnvelopeOrders,
    "fault-orders": FaultOrders,
    "physics": Physics,
}


def find_input(text: str) -> Input:
    """The input that `NAME` or `NAME:SETTING=VALUE` describes."""
    return from_text(text, INPUTS, "input")
