"""Encoder, head and domain classifier of the paper (its Table 2; docs/method.md), for R runs.

>>> student = Student(runs=1, channels=1, length=1024, classes=13)
>>> logits, features = student(windows, batch_statistics=True, randomness=None)   # windows (run, batch, channel, time)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bearcat.errors import InputError
from bearcat.models.stacked import Randomness, StackedConvolution, StackedDense, StackedNorm, dropout

FEATURES = 256
POOLED = 4  # points left of the time axis
SHORTEST = 15 + 2 + 2 * (2 + 2 + POOLED)  # samples, so that adaptive pooling has POOLED points to choose from


class Encoder(nn.Module):
    """Four convolutions and two dense layers: windows (run, batch, channel, time) → features (run, batch, 256)."""

    def __init__(self, runs: int, channels: int, length: int, probability: float = 0.5) -> None:
        super().__init__()
        if length < SHORTEST:
            raise InputError(f"windows of {length} points are too short for the encoder; use at least {SHORTEST}")
        self.runs = runs
        self.probability = probability
        sizes = [(channels, 16, 15), (16, 32, 3), (32, 64, 3), (64, 128, 3)]
        self.convolutions = nn.ModuleList(StackedConvolution(runs, *size) for size in sizes)
        self.norms = nn.ModuleList(StackedNorm(runs, outputs) for _, outputs, _ in sizes)
        self.dense = nn.ModuleList([StackedDense(runs, 128 * POOLED, 256), StackedDense(runs, 256, FEATURES)])

    def forward(
        self, windows: Tensor, batch_statistics: bool, randomness: Randomness | None, present: Tensor | None = None,
        domains: int = 1,
    ) -> Tensor:  # fmt: skip
        """`present` (run, batch) says which places hold a window, None: all.

        With several `domains` the batch is that many parts of equal size, each normalised by statistics of its own.
        """
        parts = windows.chunk(domains, dim=1)
        presents = [None] * domains if present is None else present.chunk(domains, dim=1)
        values = torch.cat(
            [self._convolved(part, batch_statistics, here) for part, here in zip(parts, presents, strict=True)], dim=1
        )
        for number, dense in enumerate(self.dense):
            values = dropout(functional.relu(dense(values)), self.probability, randomness, layer=number)
        return values

    def _convolved(self, windows: Tensor, batch_statistics: bool, present: Tensor | None) -> Tensor:
        """(run, batch, channel, time) → (run, batch, 128 × POOLED)."""
        runs, batch, channels, length = windows.shape
        values = windows.transpose(0, 1).reshape(batch, runs * channels, length)
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            values = functional.relu(norm(convolution(values), batch_statistics, present))
            if number == 1:
                values = functional.max_pool1d(values, 2, 2)
        values = functional.adaptive_max_pool1d(values, POOLED)
        return values.view(batch, runs, -1).transpose(0, 1)


class Student(nn.Module):
    """Encoder and head; the teacher has the same shape. Logits (run, batch, class) and features (run, batch, 256)."""

    def __init__(self, runs: int, channels: int, length: int, classes: int, probability: float = 0.5) -> None:
        super().__init__()
        self.encoder = Encoder(runs, channels, length, probability)
        self.head = StackedDense(runs, FEATURES, classes)

    def forward(
        self, windows: Tensor, batch_statistics: bool = False, randomness: Randomness | None = None,
        present: Tensor | None = None, domains: int = 1,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        features = self.encoder(windows, batch_statistics, randomness, present, domains)
        return self.head(features), features


class DomainClassifier(nn.Module):
    """Tells source from target by their features: (run, batch, 256) → logits (run, batch)."""

    def __init__(self, runs: int, probability: float = 0.5) -> None:
        super().__init__()
        self.probability = probability
        sizes = [(FEATURES, 1024), (1024, 1024), (1024, 1)]
        self.dense = nn.ModuleList(StackedDense(runs, *size) for size in sizes)

    def forward(self, features: Tensor, randomness: Randomness | None) -> Tensor:
        first, second, last = self.dense
        values = dropout(functional.relu(first(features)), self.probability, randomness, layer=2)
        values = dropout(functional.relu(second(values)), self.probability, randomness, layer=3)
        logits: Tensor = last(values)
        return logits[..., 0]


def initialise(network: nn.Module, seeds: list[int], stream: int) -> None:
    """PyTorch's default initialisation, each run's from a generator of its own: uniform within 1/√inputs."""
    for run, seed in enumerate(seeds):
        word = int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(word & 0x7FFF_FFFF_FFFF_FFFF)
        for module in network.modules():
            if isinstance(module, StackedConvolution | StackedDense):
                bound = 1 / math.sqrt(module.weight[0, 0].numel())
                for parameter in (module.weight, module.bias):
                    drawn = torch.rand(parameter.shape[1:], generator=generator) * (2 * bound) - bound
                    with torch.no_grad():
                        parameter[run].copy_(drawn)
