"""A stack's data on its device, and what runs there: batches by index, recorded steps, paths and precisions.

The order of windows in an epoch is drawn from (run's seed, epoch, pass), so it does not depend on the other runs of the
stack nor on what was drawn before: a resumed run goes on exactly where it was. Runs of a stack have as many windows, so
that the last, smaller batch of a pass is as small in all of them. On a GPU steps are recorded and replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bearcat.data.recording import Integers
from bearcat.data.tasks import TrainingData
from bearcat.errors import InputError, suggest
from bearcat.fast import stacked
from bearcat.fast.stacked import Randomness

if TYPE_CHECKING:
    from bearcat.cat.algorithm import Run

PRECISIONS = ("float32", "tf32", "bfloat16")
SOURCE, TARGET, COUNTED = 10, 11, 12  # streams of randomness, apart from those of the split and of the networks
FEWEST = 2  # target windows to train with


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
        places: list[Integers] = []
        for turn in range(-(-steps // iterations(windows, self.size))):
            generators = [np.random.default_rng([seed, stream, epoch, turn]) for seed in self.seeds]
            if labels is None:
                orders = np.stack([generator.permutation(windows) for generator in generators])
            else:
                orders = np.stack([balanced(*pair) for pair in zip(labels, generators, strict=True)])
            places += [orders[:, start : start + self.size] for start in range(0, windows, self.size)]
        return places[:steps]


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step sees: windows of the source and of the target (run, batch, channel, point), none where not asked."""

    source: Tensor
    target: Tensor
    labels: Tensor  # (run, batch) of the source
    target_index: Tensor  # (run, batch) into the stack's target windows


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
            gather(batches.source_labels, index), target_index,
        )  # fmt: skip

    def ramp(self, name: str) -> Tensor:
        """The step's number of this ramp, the same in every run, (run,)."""
        return self.ramps[name].index_select(0, self.number).expand(len(self.batches.seeds))

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
    return pad_sequence([torch.tensor(array) for array in arrays], batch_first=True, padding_value=filling).to(device)


def stack_key(run: Run) -> Hashable:
    """Runs of equal keys can be trained together: the same recipe and classes, windows alike and as many."""
    data = run.data
    sizes = (len(part) for part in (data.source_train, data.source_test, data.target_train))
    return run.recipe, data.source_train.values.shape[1:], data.source_train.values.dtype.str, data.classes, *sizes


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

    def together(arrays: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    return Batches(
        source_train=together([run.source_train.values for run in data]),
        source_labels=together([run.source_train.labels for run in data]),
        source_test=together([run.source_test.values for run in data]),
        source_test_labels=together([run.source_test.labels for run in data]),
        target_train=together([run.target_train.values for run in data]),
        seeds=tuple(seeds), size=size,
        balanced=tuple(run.source_train.labels for run in data) if balance else None,
    )  # fmt: skip


@cache
def fast_path(device: torch.device) -> str:
    """ "triton" or "native" where the device and the installed packages allow it, otherwise "plain"."""
    if device.type == "cpu":
        path = "native"
    elif torch.cuda.get_device_capability(device) >= (8, 0) and find_spec("triton"):
        path = "triton"
    else:
        return "plain"
    try:  # whether the kernels can be compiled and loaded, and are right
        return path if _agrees(path, device) else "plain"
    except Exception:  # whatever it is, there is the plain path, and a run's record says so
        return "plain"


def _agrees(path: str, device: torch.device) -> bool:
    """Whether this path's dropout, and on a CPU a small encoder forward and back, compute what the plain one does."""
    from bearcat.cat.networks import SHORTEST, ConvolutionalEncoder, initialise

    draws, ones = Randomness(torch.zeros(1, dtype=torch.int64, device=device)), torch.ones(1, 1, 64, device=device)
    draws.next()
    same = torch.equal(stacked.rectified_dropout(ones, 0.5, draws, 0, path), stacked.dropped(ones, 0.5, draws, 0))
    if device.type != "cpu" or not same:
        return same
    windows = torch.randn(2, 10, 1, SHORTEST + 20, generator=torch.Generator().manual_seed(0))
    results: list[list[Tensor]] = []
    for encoder_path in ("plain", path):
        encoder = ConvolutionalEncoder(2, 1, probability=0.0)
        initialise(encoder, [0, 1], 0)
        encoder.path = encoder_path
        features = encoder(windows, True, None)
        weights = [*encoder.norms.parameters(), *(layer.weight for layer, _ in encoder.layers)]
        results.append([features, *torch.autograd.grad(features.square().sum(), weights)])
    return all(torch.dist(expected, got) <= 1e-3 * expected.norm() for expected, got in zip(*results, strict=True))


def chosen_device(name: str) -> torch.device:
    """The device of this name; auto is a GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device '{name}'; choose from auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch sees no CUDA device; use the device 'cpu'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_precision(wanted: str | None, encoder_path: str, device: torch.device) -> str:
    """What is wanted, or more where the device has nothing less; without a wish the fastest (docs/design.md)."""
    if wanted is not None and wanted not in PRECISIONS:
        raise InputError(f"setting 'precision' is '{wanted}'{suggest(wanted, PRECISIONS)}")
    if wanted == "bfloat16" and encoder_path != "triton":
        raise InputError("precision 'bfloat16' needs the encoder 'cnn' on a GPU with Triton; leave it out")
    if device.type == "cpu":
        return "float32"
    return wanted or ("bfloat16" if encoder_path == "triton" else "tf32")


@contextmanager
def torch_settings(precision: str, device: torch.device, small: bool = False) -> Iterator[None]:
    """Sets how torch computes, for a while: on a GPU with products of float32 as they are, or rounded to TF32 first
    ("bfloat16" too: outside the convolutions there is little to gain); on a CPU with one thread for small networks (a
    second gains little there, and waiting for a busy core costs a lot).
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.get_num_threads()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "float32"
    elif small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        torch.set_num_threads(before[2])


class Recorder:
    """Runs steps. On a GPU the third step of a kind is recorded as a CUDA graph, and replayed from then on.

    A step is some thousand small kernels; starting them one by one took longer than running them (41 ms for one run on
    an H200). Steps of a kind must do the same things to the same memory, and may ask the device for nothing. The first
    two are real steps too: they make what is made once (moments, handles, compiled kernels).
    """

    def __init__(self, device: torch.device, record: bool = True) -> None:
        self.recording = record and device.type == "cuda"
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.calls: Counter[Hashable] = Counter()
        if self.recording:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def run(self, step: Callable[[], None], kind: Hashable) -> None:
        """One step of this kind."""
        if not self.recording:
            step()
        elif self.calls[kind] < 2:
            self.calls[kind] += 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                step()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if kind not in self.graphs:
                graph = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                torch.cuda.empty_cache()  # what the first steps used, the graph wants
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                    step()
                self.graphs[kind] = graph
            self.graphs[kind].replay()
