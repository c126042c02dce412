"""Networks for R runs: encoders (a row of ENCODERS says how one is built), the head and the domain classifier.

Layers hold the parameters of all runs, and `Accelerated` modules have kernels that give the same numbers sooner
(fast/stacked.py). Any torch module that takes windows (batch, channel, point) is an encoder too: `PlainModule` gives
its weights and buffers a run axis of one. Such runs train alone.

>>> network = build_network("cnn", runs=1, channels=1, points=1024, classes=13)
>>> logits, features = network(windows, batch_statistics=True, randomness=None)   # windows (run, batch, channel, point)
>>> encoder = PlainModule(resnet, (1, 1024), "resnet")
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from bearcat.errors import InputError, check_range, error_sentence
from bearcat.fast import native, stacked
from bearcat.fast.stacked import Accelerated, Randomness, StackedConvolution, StackedDense, StackedNorm
from bearcat.settings import from_text, to_text

FEATURES = 256
DOMAIN_WIDTH = 1024  # of the domain classifier's layers
POOLED = 4  # points left of the time axis
TRIED = 2  # windows of the pass of a plain module that finds out how many features there are
CHUNK = {"cpu": 1024, "cuda": 8192}  # windows of all runs together that go through a network at once
SHORTEST = 33  # points of a window, so that adaptive pooling has four to choose from


class ConvolutionalEncoder(Accelerated):
    """Four convolutions and two dense layers: windows (run, batch, channel, time) → features (run, batch, 256)."""

    narrow = True

    def __init__(self, runs: int, channels: int, probability: float = 0.5) -> None:
        super().__init__()
        self.runs, self.features, self.probability = runs, FEATURES, probability
        sizes = [(channels, 16, 15), (16, 32, 3), (32, 64, 3), (64, 128, 3)]
        convolutions = [StackedConvolution(runs, *size) for size in sizes]
        norms = [StackedNorm(runs, outputs) for _, outputs, _ in sizes]
        self.convolutions, self.norms = nn.ModuleList(convolutions), nn.ModuleList(norms)
        self.layers = list(zip(convolutions, norms, strict=True))
        self.dense = nn.ModuleList([StackedDense(runs, 128 * POOLED, 256), StackedDense(runs, 256, FEATURES)])
        self.memory = native.Memory()

    def forward(
        self, windows: Tensor, batch_statistics: bool, randomness: Randomness | None, parts: Sequence[int] = ()
    ) -> Tensor:
        """`parts` are the sizes of parts of the batch that are normalised by statistics of their own, such as the two
        domains; without them the batch is one part.
        """
        # With running statistics the kernels go forward only; training with them takes the plain path.
        learning = torch.is_grad_enabled() and not batch_statistics and self.convolutions[0].weight.requires_grad
        if stacked.on_path(self.path, windows) and not learning:
            setting = self.memory if self.path == "native" else self.precision
            convolutions, norms = zip(*self.layers, strict=True)
            values = stacked.convolved(self.path, setting, windows, list(parts), convolutions, norms, batch_statistics)
        elif len(parts) > 1:
            pieces = windows.split_with_sizes(list(parts), dim=1)
            values = torch.cat([self._plain(piece, batch_statistics) for piece in pieces], dim=1)
        else:
            values = self._plain(windows, batch_statistics)
        for number, dense in enumerate(self.dense):
            values = stacked.rectified_dropout(dense(values), self.probability, randomness, number, self.path)
        return values

    def _plain(self, windows: Tensor, batch_statistics: bool) -> Tensor:
        """Run by run, with the channel as last axis in memory."""
        outputs = []
        for run in range(self.runs):
            values = windows[run, :, :, None].contiguous(memory_format=torch.channels_last)
            for number, (convolution, norm) in enumerate(self.layers):
                values = norm.of_run(run, convolution.of_run(run, values), batch_statistics)
                values = functional.relu(values, inplace=True)
                if number == 1:
                    values = functional.max_pool2d(values, (1, 2))
            outputs.append(_pooled(values).flatten(1))
        return torch.stack(outputs)


def _pooled(values: Tensor) -> Tensor:
    """(batch, channel, 1, time) → POOLED points: the largest of each part. ONNX has no adaptive max pooling."""
    if not torch.compiler.is_exporting():
        return functional.adaptive_max_pool2d(values, (1, POOLED))
    time = values.shape[-1]
    edges = [(part * time // POOLED, -(-(part + 1) * time // POOLED)) for part in range(POOLED)]
    return torch.cat([values[..., start:stop].amax(dim=-1, keepdim=True) for start, stop in edges], dim=-1)


class DenseEncoder(Accelerated):
    """Dense layers, or none: windows (run, batch, channel, point) → features (run, batch, last size)."""

    def __init__(self, runs: int, sizes: Sequence[int], probability: float = 0.5) -> None:
        super().__init__()
        self.features, self.probability = sizes[-1], probability
        self.dense = nn.ModuleList(StackedDense(runs, inputs, outputs) for inputs, outputs in pairwise(sizes))

    def forward(
        self, windows: Tensor, batch_statistics: bool, randomness: Randomness | None, parts: Sequence[int] = ()
    ) -> Tensor:
        del batch_statistics, parts  # there is nothing to normalise
        values = windows.flatten(2)
        for number, dense in enumerate(self.dense):
            layer = number if number < 2 else stacked.RESERVED + number  # 2 and 3 are the domain classifier's
            values = stacked.rectified_dropout(dense(values), self.probability, randomness, layer, self.path)
        return values


class InputScaling(nn.Module):
    """(window − mean) · factor, point by point: by methods.transforms, (run, channel, point) each."""

    def __init__(self, mean: Tensor, factor: Tensor) -> None:
        super().__init__()
        self.mean, self.factor = nn.Buffer(mean), nn.Buffer(factor)

    def forward(self, windows: Tensor) -> Tensor:
        return (windows - self.mean[:, None]) * self.factor[:, None]


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Torch's global generators, from which plain modules draw, start from this seed; put back at the end."""
    on_gpu = device is not None and device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield


class PlainModule(nn.Module):
    """A module with a run axis of one: windows (1, batch, channel, point) → features (1, batch, feature)."""

    def __init__(self, module: nn.Module, shape: tuple[int, int], encoder: str) -> None:
        """`shape` is (channel, point), and errors name the encoder. Lazy modules get their weights here."""
        super().__init__()
        self.features = count_features(module, shape, encoder)
        copies: dict[Tensor, Tensor] = {}  # by what it was made of: modules may share weights
        for part in module.modules():
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                other = tensor.detach()[None].clone()
                other = nn.Parameter(other, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else other
                setattr(part, name, copies.setdefault(tensor, other))
        self.module = module

    def forward(
        self, windows: Tensor, batch_statistics: bool, randomness: Randomness | None, parts: Sequence[int] = ()
    ) -> Tensor:
        """Normalisation follows `batch_statistics`; all else is in training where there is `randomness`."""
        self.module.train(randomness is not None)
        for part in self.module.modules():
            if isinstance(part, _NormBase):
                part.train(batch_statistics)
        with nullcontext() if randomness is None else seeded(int(randomness.now[0]), windows.device):
            if len(parts) < 2:  # `split` would fix the number of windows in an exported graph
                return self._called(windows[0])[None]
            return torch.cat([self._called(piece) for piece in windows[0].split_with_sizes(list(parts))])[None]

    def _called(self, windows: Tensor) -> Tensor:
        before = {name: tensor[0] for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers())}
        after = dict(before)
        features: Tensor = functional_call(self.module, after, (windows,))
        for name, tensor in after.items():
            if tensor is not before[name]:  # a buffer that was assigned, and not changed in place
                before[name].copy_(tensor.detach())
        return features


@torch.no_grad()
def count_features(module: nn.Module, shape: tuple[int, int], encoder: str) -> int:
    """How many features a module makes of windows of this shape (channel, point); InputError where it makes none."""
    subject = f"the encoder '{encoder}': its module"
    try:
        features = module.eval()(torch.zeros(TRIED, *shape))
    except Exception as error:
        cannot = f"cannot take windows of the shape (batch, {shape[0]}, {shape[1]}): {error_sentence(error)}"
        raise InputError(f"{subject} {cannot}; a plain module takes windows alone (docs/extend.md)") from error
    if not isinstance(features, Tensor):
        raise InputError(f"{subject} returned {type(features).__name__}; return one tensor")
    if features.ndim != 2 or len(features) != TRIED or features.shape[1] == 0 or not features.is_floating_point():
        got = f"{tuple(features.shape)} of {features.dtype} for a batch of {TRIED}"
        raise InputError(f"{subject} made {got}; return features as numbers with a decimal point, (batch, feature)")
    return features.shape[1]


@dataclass(frozen=True)
class Encoder:
    """How a network is built; its fields are its settings.

    >>> find_encoder("dense:widths=32,16").build(runs=2, channels=1, points=64, dropout=0.5).features
    16
    """

    shortest: ClassVar[int] = 1  # points of a window it can take
    stacks: ClassVar[bool] = False  # whether it builds one module for all runs of a stack; others train alone

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        """Any torch module that makes features (batch, feature) of windows (batch, channel, point); or an `Accelerated`
        one, as ConvolutionalEncoder, for a stack of runs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not build a module")

    def __str__(self) -> str:
        """`NAME:SETTING=VALUE` with every setting, from which `find_encoder` makes it again."""
        return to_text(self, ENCODERS)


@dataclass(frozen=True)
class CNN(Encoder):
    """The paper's network (its Table 2): four convolutions and two dense layers."""

    shortest, stacks = SHORTEST, True

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return ConvolutionalEncoder(runs, channels, dropout)


@dataclass(frozen=True)
class Dense(Encoder):
    """Dense layers with ReLU and dropout, for inputs whose every point has a meaning of its own."""

    widths: tuple[int, ...] = (256, 128)
    stacks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("count", len(self.widths), "widths")
        for width in self.widths:
            check_range("width", width, "widths")

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        return DenseEncoder(runs, (channels * points, *self.widths), dropout)


@dataclass(frozen=True)
class Linear(Encoder):
    """Nothing but the input, so that the head makes a linear classifier of it."""

    stacks: ClassVar[bool] = True

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        return DenseEncoder(runs, (channels * points,), dropout)


ENCODERS: dict[str, type[Encoder]] = {"cnn": CNN, "dense": Dense, "linear": Linear}
"""All encoders by name; a row more is an encoder more."""


@dataclass(frozen=True, eq=False)
class GivenModule(Encoder):
    """A user's module as encoder; each training has a copy of it."""

    module: nn.Module

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return copy.deepcopy(self.module)

    def __str__(self) -> str:
        return type(self.module).__name__


def find_encoder(encoder: Encoder | str | nn.Module) -> Encoder:
    """The encoder that `NAME` or `NAME:SETTING=VALUE` describes, or that a module is; one that is given is itself.

    >>> find_encoder("dense:widths=64,32").widths
    (64, 32)
    """
    if isinstance(encoder, str):
        return from_text(encoder, ENCODERS, "encoder")
    if not isinstance(encoder, Encoder | nn.Module):
        raise InputError("encoder: give the name of an encoder or a torch module, not a class", "encoder")
    return GivenModule(encoder) if isinstance(encoder, nn.Module) else encoder


class Network(nn.Module):
    """Optional input scaling, encoder, head: windows (run, batch, channel, point) → logits (run, batch,
    class) and features.

    >>> network = build_network("linear", runs=1, channels=1, points=64, classes=3)
    >>> [part.shape for part in network(torch.zeros(1, 5, 1, 64))]
    [torch.Size([1, 5, 3]), torch.Size([1, 5, 64])]
    """

    def __init__(self, encoder: nn.Module, runs: int, classes: int) -> None:
        super().__init__()
        self.scaling: InputScaling | None = None
        self.encoder = encoder
        self.head = StackedDense(runs, cast("int", encoder.features), classes)

    def forward(
        self, windows: Tensor, batch_statistics: bool = False, randomness: Randomness | None = None,
        parts: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if self.scaling is not None:
            windows = self.scaling(windows)
        features = self.encoder(windows, batch_statistics, randomness, parts)
        return self.head(features), features


@torch.no_grad()
def predict(network: Network, values: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (run, window, class) and features (run, window, 256) in evaluation mode, a chunk at a time."""
    size = max(1, CHUNK.get(values.device.type, 1024) // values.shape[0])
    parts = [network(values[:, start : start + size]) for start in range(0, values.shape[1], size)]
    return torch.cat([logits for logits, _ in parts], dim=1), torch.cat([features for _, features in parts], dim=1)


def build_network(
    encoder: Encoder | str, runs: int, channels: int, points: int, classes: int, dropout: float = 0.5, seed: int = 0
) -> Network:  # fmt: skip
    """A network with this encoder. A plain module draws its weights from the seed; `initialise` draws all others.

    >>> build_network("cnn", runs=4, channels=2, points=1024, classes=3).head.weight.shape
    torch.Size([4, 3, 256])
    """
    row = find_encoder(encoder)
    if points < row.shortest:
        short = f"windows of {points} points are too short for the encoder '{encoder}'"
        raise InputError(f"{short}; use at least {row.shortest}")
    with seeded(seed):
        module = row.build(runs, channels, points, dropout)
        if not isinstance(module, Accelerated):
            if runs > 1:
                raise InputError(f"the encoder '{encoder}' is a plain module, which trains alone, not in a stack")
            module = PlainModule(module, (channels, points), str(encoder))
    return Network(module, runs, classes)


def select_run(network: Network, run: int, encoder: Encoder | str, channels: int, points: int) -> Network:
    """One run of a stack as `restore` makes it, on the CPU."""
    state = {name: value[run : run + 1].cpu() for name, value in network.state_dict().items()}
    return restore(encoder, state, channels, points)


def restore(encoder: Encoder | str, state: Mapping[str, Tensor], channels: int, points: int) -> Network:
    """The network of one run with these weights and buffers, which predicts and is not trained further."""
    network = build_network(encoder, 1, channels, points, state["head.bias"].shape[1])
    if "scaling.mean" in state:
        empty = torch.zeros(1, channels, points)
        network.scaling = InputScaling(empty, empty.clone())
    network.load_state_dict(state)
    return network.requires_grad_(False)


class DomainClassifier(Accelerated):
    """Distinguishes source from target by their features: (run, batch, 256) → logits (run, batch)."""

    def __init__(self, runs: int, features: int = FEATURES, probability: float = 0.5) -> None:
        super().__init__()
        self.probability = probability
        sizes = [(features, DOMAIN_WIDTH), (DOMAIN_WIDTH, DOMAIN_WIDTH), (DOMAIN_WIDTH, 1)]
        self.dense = nn.ModuleList(StackedDense(runs, *size) for size in sizes)

    def forward(self, features: Tensor, randomness: Randomness | None) -> Tensor:
        *hidden, last = self.dense
        for number, dense in enumerate(hidden, start=2):
            features = stacked.rectified_dropout(dense(features), self.probability, randomness, number, self.path)
        logits: Tensor = last(features)
        return logits[..., 0]


def run_seed(seed: int, stream: int) -> int:
    """The seed of one stream of a run's randomness."""
    return int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]) & 0x7FFF_FFFF_FFFF_FFFF


def initialise(network: nn.Module, seeds: list[int], stream: int) -> None:
    """PyTorch's default initialisation, each run's from a generator of its own: uniform within 1/√inputs."""
    drawn = [module for module in network.modules() if isinstance(module, StackedConvolution | StackedDense)]
    for run, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(run_seed(seed, stream))
        for layer in drawn:
            bound = 1 / math.sqrt(layer.weight[0, 0].numel())
            for parameter in (layer.weight, layer.bias):
                numbers = torch.rand(parameter.shape[1:], generator=generator) * (2 * bound) - bound
                with torch.no_grad():
                    parameter[run].copy_(numbers)
