"""A stack's data on the device once; a batch is an index.

The order of windows in an epoch is drawn from (run's seed, epoch, pass), so it does not depend on the other runs of the
stack nor on what was drawn before: a resumed run goes on exactly where it was. Runs of a stack have as many windows, so
that the last, smaller batch of a pass is as small in all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bearcat.data.recording import Integers
from bearcat.data.tasks import TrainingData, Unlabelled
from bearcat.errors import InputError

if TYPE_CHECKING:
    from bearcat.cat.algorithm import Run

SOURCE, TARGET, COUNTED = 10, 11, 12  # streams of randomness, besides those of the split and of the networks
FEWEST = 2  # target windows to train with


class Checked(NamedTuple):
    """What check models say of a run's target training windows (diagnosis/accuracy.py), and the windows' recordings."""

    said: Mapping[str, Integers]  # (window,) each; empty where there are no check models
    recording: Integers  # each window its own where recordings are not known

    @staticmethod
    def of(said: Mapping[str, Integers] | None, windows: Unlabelled) -> Checked:
        known = len(windows.recording) == len(windows)
        return Checked(said or {}, windows.recording if known else np.arange(len(windows)))


@dataclass(frozen=True, eq=False)
class Batches:
    """The training data of R runs: values (run, window, channel, time), labels (run, window)."""

    source_train: Tensor
    source_labels: Tensor
    source_test: Tensor
    source_test_labels: Tensor
    target_train: Tensor
    seeds: tuple[int, ...]
    size: int
    balanced: tuple[Integers, ...] | None = None  # each run's training labels, where its classes are drawn alike

    @property
    def iterations(self) -> int:
        """Steps in an epoch; the last, smaller batch counts."""
        return iterations(self.source_train.shape[1], self.size)

    def order(self, epoch: int) -> tuple[list[Integers], list[Integers]]:
        """Places (run, batch) in the source and in the target of each step. The target is cycled and reshuffled."""
        steps = self.iterations
        source = self._drawn(SOURCE, epoch, self.source_train.shape[1], steps, self.balanced)
        return source, self._drawn(TARGET, epoch, self.target_train.shape[1], steps)

    def target_pass(self, epoch: int) -> list[Integers]:
        """One pass over the target's training windows, in an order of its own, (run, batch) each."""
        windows = self.target_train.shape[1]
        return self._drawn(COUNTED, epoch, windows, iterations(windows, self.size))

    def _drawn(
        self, stream: int, epoch: int, windows: int, steps: int, labels: tuple[Integers, ...] | None = None
    ) -> list[Integers]:
        found: list[Integers] = []
        while len(found) < steps:
            turn = len(found) // iterations(windows, self.size)
            random = [np.random.default_rng([seed, stream, epoch, turn]) for seed in self.seeds]
            if labels is None:
                passed = np.stack([each.permutation(windows) for each in random])
            else:
                passed = np.stack([balanced(own, each) for own, each in zip(labels, random, strict=True)])
            found += [passed[:, start : start + self.size] for start in range(0, windows, self.size)]
        return found[:steps]


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step sees: windows of the source and of the target (run, batch, channel, point), none where not asked."""

    source: Tensor
    target: Tensor
    labels: Tensor  # (run, batch) of the source
    target_index: Tensor  # (run, batch) into the stack's target windows
    size: int  # of a full batch


class Feed:
    """An epoch's batches from fixed memory on the device, counted there, so that a recorded step can be replayed."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        shape, device = (batches.iterations, len(batches.seeds), batches.size), batches.source_train.device
        self.number = torch.zeros(1, dtype=torch.int64, device=device)
        self.source_index, self.target_index = torch.zeros(2, *shape, dtype=torch.int64, device=device)
        self.ramps: dict[str, Tensor] = {}
        self.sizes: list[tuple[int, int]] = []  # of each step's batch: windows of the source and of the target

    def fill(self, epoch: int, ramps: Mapping[str, Sequence[float]]) -> None:
        """Draws the epoch's order. `ramps` hold a number for each step, by the names of ingredients."""
        orders = self.batches.order(epoch)
        self.sizes = [(source.shape[1], target.shape[1]) for source, target in zip(*orders, strict=True)]
        for memory, order in zip((self.source_index, self.target_index), orders, strict=True):
            places = np.zeros(memory.shape, dtype=np.int64)
            for step, drawn in enumerate(order):
                places[step, :, : drawn.shape[1]] = drawn
            memory.copy_(torch.from_numpy(places))
        for name, values in ramps.items():
            ramp = self.ramps.setdefault(name, self.batches.source_train.new_zeros(self.batches.iterations))
            ramp.copy_(torch.tensor(values, dtype=ramp.dtype))
        self.number.fill_(-1)

    def next(self, with_target: bool, sizes: tuple[int, int]) -> Batch:
        """The next step's batch, of these sizes."""
        self.number += 1
        batches = self.batches
        index, target_index = self._now(self.source_index, sizes[0]), self._now(self.target_index, sizes[1])
        return Batch(
            gather(batches.source_train, index),
            gather(batches.target_train, target_index if with_target else target_index[:, :0]),
            gather(batches.source_labels, index), target_index, batches.size,
        )  # fmt: skip

    def ramp(self, name: str) -> Tensor:
        """The step's number of this ramp, (1,)."""
        return self.ramps[name].index_select(0, self.number)

    def _now(self, memory: Tensor, size: int) -> Tensor:
        return memory.index_select(0, self.number)[0, :, :size]


def iterations(windows: int, size: int) -> int:
    """Batches in a pass over so many windows; the last, smaller one counts."""
    return -(-windows // size)


def balanced(labels: Integers, random: np.random.Generator) -> Integers:
    """A pass of as many windows as there are labels, in random order, in which every class comes equally often and no
    window again before all of its class have come. What does not divide goes to classes drawn at random.
    """
    classes = np.unique(labels)
    wanted = np.full(len(classes), len(labels) // len(classes))
    wanted[random.permutation(len(classes))[: len(labels) % len(classes)]] += 1
    drawn = []
    for name, count in zip(classes, wanted, strict=True):
        members = np.flatnonzero(labels == name)
        rounds = [random.permutation(members) for _ in range(iterations(int(count), len(members)))]
        drawn.append(np.concatenate([*rounds, members[:0]])[:count])
    return random.permutation(np.concatenate(drawn))


def gather(values: Tensor, index: Tensor) -> Tensor:
    """Each run's own rows: (run, window, …), (run, batch) → (run, batch, …)."""
    runs, windows = values.shape[:2]
    first = torch.arange(0, runs * windows, windows, device=values.device)
    rows = values.flatten(0, 1).index_select(0, (index + first[:, None]).flatten())
    return rows.view(*index.shape, *values.shape[2:])


def padded_stack(arrays: Sequence[np.ndarray], filling: float, device: torch.device) -> Tensor:
    """Arrays (window, …) as one tensor (run, longest, …); what is held back from training may differ in length."""
    longest = max(len(array) for array in arrays)
    together = np.full((len(arrays), longest, *arrays[0].shape[1:]), filling, dtype=arrays[0].dtype)
    for place, array in zip(together, arrays, strict=True):
        place[: len(array)] = array
    return torch.from_numpy(together).to(device)


def data_key(data: TrainingData) -> tuple[object, ...]:
    """What runs of one stack must share of their data."""
    sizes = (len(part) for part in (data.source_train, data.source_test, data.target_train))
    return data.source_train.values.shape[1:], data.source_train.values.dtype.str, data.classes, *sizes


def stack_key(run: Run) -> Hashable:
    """Runs of equal keys can be trained together: the same recipe, windows alike and as many."""
    return run.recipe, data_key(run.data)


def stack_data(
    data: Sequence[TrainingData], seeds: Sequence[int], size: int, device: torch.device, balance: bool = False
) -> Batches:
    """Puts the data of several runs on the device; `balance` draws the classes of the source equally often."""
    for run in data:
        if len(run.source_train) < size:
            raise InputError(
                f"{len(run.source_train)} training windows are fewer than a batch of {size}; add recordings or use a"
                " smaller batch (schedule.batch)"
            )
        if len(run.target_train) < FEWEST:
            raise InputError(f"the target has fewer than {FEWEST} training windows; add recordings or shorten windows")
        if data_key(run) != data_key(data[0]):
            raise InputError(
                "runs of a stack need windows of one shape, as many of them, and the same classes; train these in"
                " other stacks"
            )

    def stacked(arrays: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    return Batches(
        source_train=stacked([run.source_train.values for run in data]),
        source_labels=stacked([run.source_train.labels for run in data]),
        source_test=stacked([run.source_test.values for run in data]),
        source_test_labels=stacked([run.source_test.labels for run in data]),
        target_train=stacked([run.target_train.values for run in data]),
        seeds=tuple(seeds), size=size,
        balanced=tuple(run.source_train.labels for run in data) if balance else None,
    )  # fmt: skip
