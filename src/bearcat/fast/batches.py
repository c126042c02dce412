"""A stack's data on the device once; a batch is an index.

The order of windows in an epoch is drawn from (run's seed, epoch, pass), so it does not depend on the other runs of the
stack nor on what was drawn before: a resumed run goes on exactly where it was. Data are padded to the longest run, and
the last, smaller batch of a pass to the full size: a mask says which places hold a window. A run alone is padded the
same way, so that a window has the same place in its batch, and the same dropout, whoever its neighbours are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bearcat.data.recording import Integers
from bearcat.data.tasks import UNKNOWN, TrainingData, Unlabelled
from bearcat.errors import InputError

if TYPE_CHECKING:
    from bearcat.cat.algorithm import Run

SOURCE, TARGET, COUNTED = 10, 11, 12  # streams of randomness, besides those of the split and of the networks
FEWEST = 2  # target windows to train with; a batch that is not full is padded


class EpochOrder(NamedTuple):
    """Which windows the steps of an epoch see: places (run, iteration, batch) and whether each holds a window."""

    source: np.ndarray
    source_present: np.ndarray
    target: np.ndarray
    target_present: np.ndarray


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
    """The training data of R runs: values (run, window, channel, time), labels (run, window).

    Behind a run's own windows values are 0 and labels UNKNOWN, except training labels, which are 0 there.
    """

    source_train: Tensor
    source_labels: Tensor
    source_test: Tensor
    source_test_labels: Tensor
    target_train: Tensor
    source_windows: tuple[int, ...]  # training windows of each run
    target_windows: tuple[int, ...]
    seeds: tuple[int, ...]
    size: int
    balanced: tuple[np.ndarray, ...] | None = None  # each run's training labels, where its classes are drawn alike

    @property
    def iterations(self) -> int:
        """Steps in an epoch; the last, smaller batch counts."""
        return iterations(max(self.source_windows), self.size)

    @property
    def source_present(self) -> Tensor:
        """(run, window) bool: where source_train holds a window."""
        return _present(self.source_windows, self.source_train)

    @property
    def target_present(self) -> Tensor:
        """(run, window) bool: where target_train holds a window."""
        return _present(self.target_windows, self.target_train)

    def order(self, epoch: int) -> EpochOrder:
        """The epoch's batches. Target batches are cycled and reshuffled."""
        source = self._drawn(SOURCE, epoch, self.source_windows, self.balanced)
        return EpochOrder(*source, *self._drawn(TARGET, epoch, self.target_windows))

    def target_pass(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """One pass over the target's training windows, in an order of its own; a run's batches behind it are empty."""
        return self._drawn(COUNTED, epoch, self.target_windows, once=True)

    def _drawn(
        self, stream: int, epoch: int, windows: tuple[int, ...], labels: tuple[np.ndarray, ...] | None = None,
        once: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        total = iterations(max(windows), self.size) if once else self.iterations
        places = np.zeros((len(windows), total, self.size), dtype=np.int64)
        present = np.zeros(places.shape, dtype=bool)
        for run, (seed, count) in enumerate(zip(self.seeds, windows, strict=True)):
            length = iterations(count, self.size)
            for turn in range(1 if once else iterations(total, length)):
                passed = np.zeros((length, self.size), dtype=np.int64)
                random = np.random.default_rng([seed, stream, epoch, turn])
                passed.flat[:count] = random.permutation(count) if labels is None else balanced(labels[run], random)
                steps = slice(turn * length, min((turn + 1) * length, total))
                places[run, steps] = passed[: steps.stop - steps.start]
                filled = np.arange(passed.size).reshape(passed.shape) < count
                present[run, steps] = filled[: steps.stop - steps.start]
        return places, present


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step sees: source windows and, behind them, target windows if any (run, batch, channel, point).

    Masks (run, batch) are None where every place holds a window.
    """

    both: Tensor
    size: int  # windows of the source
    labels: Tensor  # (run, size) of the source
    present: Tensor | None  # of both
    target_index: Tensor  # into the stack's target windows, the number behind the last where padded

    def doubled(self) -> Batch:
        """With the source windows twice."""
        present = None if self.present is None else torch.cat([self.present[:, : self.size], self.present], dim=1)
        both, labels = torch.cat([self.source, self.both], dim=1), torch.cat([self.labels, self.labels], dim=1)
        return replace(self, both=both, size=2 * self.size, labels=labels, present=present)

    @property
    def of_source(self) -> Batch:
        """The source windows alone."""
        return replace(self, both=self.source, present=self.source_present)

    @property
    def of_target(self) -> Batch:
        """The target windows alone; labels and size stay the source's."""
        return replace(self, both=self.target, present=self.target_present)

    @property
    def source(self) -> Tensor:
        return self.both[:, : self.size]

    @property
    def target(self) -> Tensor:
        return self.both[:, self.size :]

    @property
    def source_present(self) -> Tensor | None:
        return None if self.present is None else self.present[:, : self.size]

    @property
    def target_present(self) -> Tensor | None:
        return None if self.present is None else self.present[:, self.size :]


class Feed:
    """An epoch's batches from fixed memory on the device, counted there, so that a recorded step can be replayed."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        shape, device = (batches.iterations, len(batches.seeds), batches.size), batches.source_train.device
        self.number = torch.zeros(1, dtype=torch.int64, device=device)
        self.source_index, self.target_index = torch.zeros(2, *shape, dtype=torch.int64, device=device)
        self.source_present, self.target_present = torch.zeros(2, *shape, dtype=torch.bool, device=device)
        self.ramps: dict[str, Tensor] = {}
        self.padded: tuple[bool, ...] = ()  # for each step, whether any batch has a place without a window

    def fill(self, epoch: int, ramps: Mapping[str, Sequence[float]]) -> None:
        """Draws the epoch's order. `ramps` hold a number for each step, by the names of ingredients."""
        order = self.batches.order(epoch)
        target = np.where(order.target_present, order.target, self.batches.target_train.shape[1])
        memories = (self.source_index, self.source_present, self.target_index, self.target_present)
        for memory, drawn in zip(memories, order._replace(target=target), strict=True):
            memory.copy_(torch.from_numpy(np.ascontiguousarray(drawn.swapaxes(0, 1))))
        for name, values in ramps.items():
            ramp = self.ramps.setdefault(name, self.batches.source_train.new_zeros(self.batches.iterations))
            ramp.copy_(torch.tensor(values, dtype=ramp.dtype))
        full = order.source_present.all(axis=(0, 2)) & order.target_present.all(axis=(0, 2))
        self.padded = tuple(not step for step in np.atleast_1d(full))
        self.number.fill_(-1)

    def next(self, with_target: bool, padded: bool) -> Batch:
        """The next step's batch; `padded` says that this step's batches have places without a window."""
        self.number += 1
        batches = self.batches
        index, target_index = self._now(self.source_index), self._now(self.target_index)
        both, labels = gather(batches.source_train, index), gather(batches.source_labels, index)
        present = self._now(self.source_present) if padded else None
        if with_target:
            target = gather(batches.target_train, target_index.clamp(max=batches.target_train.shape[1] - 1))
            both = torch.cat([both, target], dim=1)
            present = None if present is None else torch.cat([present, self._now(self.target_present)], dim=1)
        return Batch(both, batches.size, labels, present, target_index)

    def ramp(self, name: str) -> Tensor:
        """The step's number of this ramp, (1,)."""
        return self.ramps[name].index_select(0, self.number)

    def _now(self, memory: Tensor) -> Tensor:
        return memory.index_select(0, self.number)[0]


def iterations(windows: int, size: int) -> int:
    """Batches in a pass over so many windows; the last, smaller one counts."""
    return -(-windows // size)


def balanced(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
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
    """Arrays of different lengths (window, …) as one tensor (run, longest, …)."""
    longest = max(len(array) for array in arrays)
    together = np.full((len(arrays), longest, *arrays[0].shape[1:]), filling, dtype=arrays[0].dtype)
    for place, array in zip(together, arrays, strict=True):
        place[: len(array)] = array
    return torch.from_numpy(together).to(device)


def data_key(data: TrainingData, size: int) -> tuple[object, ...]:
    """What runs of one stack must share of their data: the windows' shape, the classes' number, steps in an epoch."""
    values = data.source_train.values
    return values.shape[1:], values.dtype.str, len(data.classes), iterations(len(values), size)


def stack_key(run: Run) -> Hashable:
    """Runs of equal keys can be trained together: the same recipe, windows alike, as many steps."""
    size = run.recipe.schedule.batch
    steps = [iterations(each.source_windows(run.data), size) for each in run.recipe.preparations]
    return run.recipe, data_key(run.data, size), *steps


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
        if data_key(run, size) != data_key(data[0], size):
            raise InputError(
                "runs of a stack need windows of one shape, as many classes and steps; train these in other stacks"
            )
    return Batches(
        source_train=padded_stack([run.source_train.values for run in data], 0, device),
        source_labels=padded_stack([run.source_train.labels for run in data], 0, device),
        source_test=padded_stack([run.source_test.values for run in data], 0, device),
        source_test_labels=padded_stack([run.source_test.labels for run in data], UNKNOWN, device),
        target_train=padded_stack([run.target_train.values for run in data], 0, device),
        source_windows=tuple(len(run.source_train) for run in data),
        target_windows=tuple(len(run.target_train) for run in data),
        seeds=tuple(seeds),
        size=size,
        balanced=tuple(run.source_train.labels for run in data) if balance else None,
    )


def _present(windows: tuple[int, ...], values: Tensor) -> Tensor:
    count = torch.tensor(windows, device=values.device)
    return torch.arange(values.shape[1], device=values.device) < count[:, None]
