"""What the network is given of a window. `INPUTS` is the table; a row is a class whose fields are its settings.

An input is a value that acts: the same object serves training, prediction, the estimator and, by its torch form, the
exported graph. docs/add-an-input.md adds one in a file of its own.

>>> inputs = find_input("frequency").transform(windows)        # (window, channel, time) → (window, channel, point)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bearcat.data.recording import Floats, spectrum, standardise
from bearcat.settings import from_text

if TYPE_CHECKING:
    from torch import nn

    from bearcat.data.bearing import Bearing


@dataclass(frozen=True)
class Input:
    """A transform of windows. Rate, speed and bearing are None where they are not known."""

    version: ClassVar[int] = 1  # raise it when the transform changes, so that cached windows are made again
    label_from: ClassVar[int] = 100  # T_PL of the paper, which lets self-training wait for all but the waveform

    def points(self, length: int) -> int:
        """How many points a window of so many samples becomes."""
        raise NotImplementedError(f"{type(self).__name__} does not say its points")

    def transform(
        self, windows: Floats, rate: float | None = None, rpm: float | None = None, bearing: Bearing | None = None
    ) -> Floats:
        """Windows as recorded (window, channel, time) → (window, channel, point) float32."""
        raise NotImplementedError(f"{type(self).__name__} has no transform")

    def torch_form(self, length: int) -> nn.Module | None:  # noqa: ARG002
        """The same transform as a module, for windows of one length, so that it can be exported; None: there is none.

        It takes float32 windows (window, channel, time), and no rate, speed or bearing.
        """
        return None


@dataclass(frozen=True)
class TorchInput(Input):
    """An input that is written once, as its torch form, which also transforms windows here."""

    def transform(
        self, windows: Floats, rate: float | None = None, rpm: float | None = None, bearing: Bearing | None = None
    ) -> Floats:
        import numpy as np
        import torch

        del rate, rpm, bearing
        form = self.torch_form(windows.shape[-1])
        if form is None:
            raise NotImplementedError(f"{type(self).__name__} has no torch form")
        with torch.no_grad():
            transformed: Floats = form(torch.from_numpy(np.array(windows, dtype=np.float32, order="C"))).numpy()
        return transformed


@dataclass(frozen=True)
class Waveform(Input):
    """The samples, standardised by the window's mean and standard deviation."""

    label_from = 50

    def points(self, length: int) -> int:
        return length

    def transform(
        self, windows: Floats, rate: float | None = None, rpm: float | None = None, bearing: Bearing | None = None
    ) -> Floats:
        del rate, rpm, bearing
        return standardise(windows)

    def torch_form(self, length: int) -> nn.Module:
        from bearcat.data.torch_forms import StandardisedWaveform

        del length
        return StandardisedWaveform()


@dataclass(frozen=True)
class Spectrum(Input):
    """The magnitude spectrum, first half of the bins, standardised (docs/protocol.md)."""

    def points(self, length: int) -> int:
        return length // 2

    def transform(
        self, windows: Floats, rate: float | None = None, rpm: float | None = None, bearing: Bearing | None = None
    ) -> Floats:
        del rate, rpm, bearing
        return standardise(spectrum(windows))

    def torch_form(self, length: int) -> nn.Module:
        from bearcat.data.torch_forms import StandardisedSpectrum

        return StandardisedSpectrum(length)


INPUTS: dict[str, type[Input]] = {"time": Waveform, "frequency": Spectrum}


def find_input(text: str) -> Input:
    """The input that `NAME` or `NAME:SETTING=VALUE` describes."""
    return from_text(text, INPUTS, "input")
