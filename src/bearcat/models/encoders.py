"""Encoders are values: a row of ENCODERS says how a network for features is built. Nothing here imports torch.

An encoder's module takes windows (run, batch, channel, point) and gives features (run, batch, feature); it has the
attribute `features`, their number. docs/add-an-encoder.md adds one in a file of its own.

>>> module = find_encoder("cnn").build(runs=1, channels=1, points=1024, dropout=0.5)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bearcat.errors import InputError
from bearcat.settings import from_text

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Encoder:
    """How a network is built; its fields are its settings."""

    shortest: ClassVar[int] = 1  # points of a window it can take

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        """The module for a stack of runs, called as module(windows, batch_statistics, randomness, present, domains).

        `batch_statistics` is True while training; `randomness` (None: no dropout), `present` (run, batch; None: all)
        and `domains` are as in models.networks.ConvolutionalEncoder.
        """
        raise NotImplementedError(f"{type(self).__name__} does not build a module")

    def activations(self, channels: int, points: int) -> int:
        """About how many numbers a training step keeps for one window, so that stacks fit the memory."""
        return 4 * channels * points


@dataclass(frozen=True)
class CNN(Encoder):
    """The paper's network (its Table 2): four convolutions and two dense layers."""

    shortest = 33  # so that adaptive pooling has four points to choose from

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        from bearcat.models.networks import ConvolutionalEncoder

        del points  # adaptive pooling takes any number
        return ConvolutionalEncoder(runs, channels, dropout)

    def activations(self, channels: int, points: int) -> int:  # noqa: ARG002
        return 3 * (16 + 32 + 32 + 64) * points  # three tensors for each convolution's output, at its length


@dataclass(frozen=True)
class Dense(Encoder):
    """Dense layers with ReLU and dropout, for inputs whose every point has a meaning of its own."""

    widths: tuple[int, ...] = (256, 128)

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        from bearcat.models.networks import DenseEncoder

        if not self.widths or min(self.widths) < 1:
            raise InputError("setting 'widths' of the encoder 'dense' needs whole numbers above 0, such as 256,128")
        return DenseEncoder(runs, (channels * points, *self.widths), dropout)

    def activations(self, channels: int, points: int) -> int:
        return 2 * channels * points + 4 * sum(self.widths)


@dataclass(frozen=True)
class Linear(Encoder):
    """Nothing but the input, so that the head makes a linear classifier of it."""

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        from bearcat.models.networks import DenseEncoder

        return DenseEncoder(runs, (channels * points,), dropout)

    def activations(self, channels: int, points: int) -> int:
        return 2 * channels * points


ENCODERS: dict[str, type[Encoder]] = {"cnn": CNN, "dense": Dense, "linear": Linear}


def find_encoder(text: str) -> Encoder:
    """The encoder that `NAME` or `NAME:SETTING=VALUE` describes."""
    return from_text(text, ENCODERS, "encoder")
