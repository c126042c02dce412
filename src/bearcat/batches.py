"""A stack's data on the device once; a batch is an index.

The order of windows in an epoch is drawn from (run's seed, epoch, pass), so it does not depend on the other runs of the
stack nor on what was drawn before: a resumed run goes on exactly where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bearcat.data.tasks import TrainingData
from bearcat.errors import InputError

SOURCE, TARGET = 10, 11  # streams of randomness, besides those of the split and of the networks


@dataclass(frozen=True, eq=False)
class Batches:
    """The training data of R runs of equal shape: values (run, window, channel, time), labels (run, window)."""

    source_train: Tensor
    source_labels: Tensor
    source_test: Tensor
    source_test_labels: Tensor
    target_train: Tensor
    seeds: tuple[int, ...]
    size: int

    @property
    def iterations(self) -> int:
        """Steps in an epoch; the last, smaller batch counts."""
        return -(-self.source_train.shape[1] // self.size)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of source and target indices (run, batch). Target batches are cycled and reshuffled."""
        source = self._order(SOURCE, epoch, 0, self.source_train.shape[1])
        windows = self.target_train.shape[1]
        per_pass = -(-windows // self.size)
        for number in range(self.iterations):
            turn, place = divmod(number, per_pass)
            if place == 0:
                target = self._order(TARGET, epoch, turn, windows)
            part = slice(number * self.size, (number + 1) * self.size)
            yield source[:, part], target[:, place * self.size : (place + 1) * self.size]

    def _order(self, stream: int, epoch: int, turn: int, windows: int) -> Tensor:
        orders = [np.random.default_rng([seed, stream, epoch, turn]).permutation(windows) for seed in self.seeds]
        return torch.from_numpy(np.stack(orders)).to(self.source_train.device, non_blocking=True)


def gather(values: Tensor, index: Tensor) -> Tensor:
    """Each run's own rows: (run, window, …), (run, batch) → (run, batch, …)."""
    return values[torch.arange(len(values), device=values.device)[:, None], index]


def stack_data(data: Sequence[TrainingData], seeds: Sequence[int], size: int, device: torch.device) -> Batches:
    """Puts the data of runs of equal shape on the device."""
    first = data[0]
    for one in data:
        if len(one.source_train) < size or len(one.target_train) < size:
            few = min(len(one.source_train), len(one.target_train))
            raise InputError(
                f"{few} training windows are fewer than a batch of {size}; add recordings or use a smaller batch"
            )
        for name in ("source_train", "source_test", "target_train"):
            if getattr(one, name).values.shape != getattr(first, name).values.shape or len(one.classes) != len(
                first.classes
            ):
                raise InputError("runs of one stack need data of one shape; train these runs in stacks of their own")

    def tensor(arrays: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    return Batches(
        source_train=tensor([one.source_train.values for one in data]),
        source_labels=tensor([one.source_train.labels for one in data]),
        source_test=tensor([one.source_test.values for one in data]),
        source_test_labels=tensor([one.source_test.labels for one in data]),
        target_train=tensor([one.target_train.values for one in data]),
        seeds=tuple(seeds),
        size=size,
    )
