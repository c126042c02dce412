"""Layers that hold the parameters of R models and apply each to its own run's input.

The first axis of every parameter and buffer is the run; one model is a stack of one. Convolutions and batch
normalisation are applied run by run (or by the kernels of this folder to all runs at once); dense layers see (run,
batch, feature) and are one batched matrix product.

Dropout draws from a hash of (run's key, step, layer, position), not from a generator: a run drops the same units
alone, in any stack, and after a resume, and nothing has to be saved or synchronised.

There are three paths to the same numbers: "plain", torch's own layers, which run everywhere; "triton", kernels for
NVIDIA GPUs (fused.py); and "native", C code for CPUs (native.py). `Accelerated` modules have them; others run plainly.
`fast_path` (device.py) says which one a device can take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

MASK = 0xFFFFFFFF
DEVICES = {"plain": "", "native": "cpu", "triton": "cuda"}  # of each path's kernels
RESERVED = 4  # dropout layers of this package: 0 and 1 of the convolutional encoder, 2 and 3 of the domain classifier


class Accelerated(nn.Module):
    """A module with kernels of its own; `use_path` says which of them it runs, and in which precision."""

    path = "plain"
    precision = "float32"
    narrow = False  # whether it can keep its activations in bfloat16


class StackedConvolution(nn.Module):
    """Convolution over time without padding."""

    def __init__(self, runs: int, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(runs, outputs, inputs, width))
        self.bias = nn.Parameter(torch.empty(runs, outputs))

    def of_run(self, run: int, values: Tensor) -> Tensor:
        """One run's: (batch, inputs, 1, time) → (batch, outputs, 1, time − width + 1), the channel last in memory."""
        weight = self.weight[run, :, :, None].contiguous(memory_format=torch.channels_last)
        return functional.conv2d(values, weight, self.bias[run])


class StackedNorm(nn.Module):
    """Batch normalisation with statistics for each run and channel."""

    momentum = 0.1
    epsilon = 1e-5

    def __init__(self, runs: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(runs, channels))
        self.bias = nn.Parameter(torch.zeros(runs, channels))
        self.running_mean = nn.Buffer(torch.zeros(runs, channels))
        self.running_var = nn.Buffer(torch.ones(runs, channels))

    def of_run(self, run: int, values: Tensor, batch_statistics: bool) -> Tensor:
        """One run's, of (batch, channel, 1, time); with batch statistics the running ones are updated."""
        return functional.batch_norm(
            values, self.running_mean[run], self.running_var[run], self.weight[run], self.bias[run],
            training=batch_statistics, momentum=self.momentum, eps=self.epsilon,
        )  # fmt: skip


class StackedDense(nn.Module):
    """A dense layer: (run, batch, inputs) → (run, batch, outputs).

    >>> StackedDense(runs=2, inputs=16, outputs=3)(torch.zeros(2, 8, 16)).shape
    torch.Size([2, 8, 3])
    """

    def __init__(self, runs: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(runs, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(runs, outputs))

    def forward(self, values: Tensor, randomness: Randomness | None = None) -> Tensor:
        del randomness  # nothing is dropped here
        if torch.is_grad_enabled() and self.weight.requires_grad:
            result: Tensor = _Dense.apply(values, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return result
        return torch.baddbmm(self.bias[:, None], values, self.weight.mT)


class _Dense(torch.autograd.Function):
    """As torch does it, but the weight's gradient comes out with the weight's own strides, which saves Adam a copy."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        return torch.baddbmm(bias[:, None], values, weight.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        values, weight = ctx.saved_tensors
        (gradient,) = gradients
        of_values = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        return of_values, torch.bmm(gradient.mT, values), gradient.sum(dim=1)


class Randomness:
    """Where dropout comes from: a key for each run, (run,) int64, and a count of the forward passes so far.

    A window draws by its place in a full batch: the second part of a pass whose first part is smaller comes after a
    gap of `missing` places behind the `first` windows.

    >>> randomness = Randomness(torch.tensor([7, 8]))
    >>> randomness.next()  # a forward pass
    >>> randomness.now.shape
    torch.Size([2])
    """

    def __init__(self, key: Tensor) -> None:
        self.key = key
        self.draw = torch.zeros((), dtype=torch.int64, device=key.device)

    def next(self, first: int = 0, missing: int = 0) -> None:
        """The next forward pass."""
        self.first, self.missing = first, missing
        self.draw += 1
        self.now = mixed(self.key + self.draw * 0x9E3779B1)


def random_words(draw: Tensor, layer: int, count: int) -> Tensor:
    """(…, count) random 32-bit words, the same for the same draw (…), layer and position."""
    positions = mixed(torch.arange(count, device=draw.device) * 0x9E3779B1 + 0x165667B1)
    return mixed(positions ^ (draw ^ (layer + 1) * 0x05EBCA77)[..., None])


def uniform(draw: Tensor, layer: int, count: int) -> Tensor:
    """(…, count) numbers from 0 to below 1, in float64: the same for the same draw (…), layer and position.

    >>> uniform(torch.tensor([7, 8]), layer=0, count=5).shape
    torch.Size([2, 5])
    """
    return random_words(draw, layer, count).double() / 2**32


def mixed(value: Tensor) -> Tensor:
    """A 32-bit finaliser on int64 tensors (xor-shift and multiply, twice): every input bit moves every output bit."""
    value = value & MASK
    value = value ^ (value >> 16)
    value = (value * 0x7FEB352D) & MASK
    value = value ^ (value >> 15)
    value = (value * 0x846CA68B) & MASK
    return value ^ (value >> 16)


def dropped(values: Tensor, probability: float, randomness: Randomness | None, layer: int) -> Tensor:
    """Zeroes units of (run, batch, feature) and scales the rest; without randomness, or at probability 0, nothing."""
    if randomness is None or probability == 0:
        return values
    runs, batch, features = values.shape
    missing = randomness.missing if batch > randomness.first else 0
    words = random_words(randomness.now, layer, (batch + missing) * features).view(runs, -1, features)
    if missing:
        words = torch.cat([words[:, : randomness.first], words[:, randomness.first + missing :]], dim=1)
    return values * ((words >= round(probability * 2**32)) * (1 / (1 - probability)))


class ModuleOfRun:
    """A module of a stack, to be called inside torch.vmap: what it is given and what it returns are of one run."""

    def __init__(self, module: nn.Module, randomness: Randomness) -> None:
        self.module, self.randomness = module, randomness

    def __call__(self, values: Tensor) -> Tensor:
        return of_all_runs(lambda every: self.module(every, self.randomness), values)

    def gradient(self, values: Tensor) -> Tensor:
        """That of the sum of its answers, at these values; it can be differentiated in the module's weights."""

        def gradient(every: Tensor) -> Tensor:
            every = every.detach().requires_grad_()
            answers = self.module(every, self.randomness)
            return torch.autograd.grad(answers.sum(), every, create_graph=True)[0]

        return of_all_runs(gradient, values)


def of_all_runs(function: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """Calls a function of all runs' values (run, …) from inside torch.vmap, where each value is that of one run."""
    result: Tensor = _OutsideVmap.apply(function, *values)  # type: ignore[no-untyped-call]
    return result


class _OutsideVmap(torch.autograd.Function):
    """What `vmap` does here is followed by ordinary autograd, so there is nothing else to define."""

    @staticmethod
    def forward(*_: Any) -> Tensor:
        raise RuntimeError("a function of all runs is called inside torch.vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps nothing."""

    @staticmethod
    def vmap(_info: Any, axes: Any, function: Callable[..., Tensor], *values: Tensor) -> tuple[Tensor, int]:
        return function(*(value.movedim(axis, 0) for value, axis in zip(values, axes[1:], strict=True))), 0


class RectifiedDropout(torch.autograd.Function):
    """ReLU and dropout in one go by `kernel(values, out, now, layer, limit, scale)`; the units `dropped` would zero."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, kernel: Callable[..., None], now: Tensor, layer: int, probability: float
    ) -> Tensor:
        out = torch.empty_like(values)
        ctx.scale = 1 / (1 - probability)
        kernel(values, out, now, (layer + 1) * 0x05EBCA77, round(probability * 2**32), ctx.scale)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        return torch.where(out > 0, gradients[0] * ctx.scale, 0), None, None, None, None


def on_path(path: str, values: Tensor) -> bool:
    """Whether the path has kernels for these values: the network may have moved to another device since."""
    return values.device.type == DEVICES[path]


def kernels_of(path: str) -> Any:
    """The module of a path's kernels; Triton's can be imported only where Triton is."""
    return import_module("bearcat.fast.native" if path == "native" else "bearcat.fast.fused")


def use_path(networks: Iterable[nn.Module], path: str, precision: str) -> None:
    """Sets the path of the modules that have kernels of their own, and of copies made later."""
    for module in (module for network in networks for module in network.modules()):
        if isinstance(module, Accelerated):
            module.path, module.precision = path, precision


def path_of(module: nn.Module) -> str:
    """Which kernels a module and its parts run."""
    return next((part.path for part in module.modules() if isinstance(part, Accelerated)), "plain")


def rectified_dropout(
    values: Tensor, probability: float, randomness: Randomness | None, layer: int, path: str
) -> Tensor:
    """ReLU, then dropout."""
    if on_path(path, values) and randomness is not None and probability > 0 and not randomness.missing:
        kernel = kernels_of(path).rectified_dropout
        result: Tensor = RectifiedDropout.apply(values.contiguous(), kernel, randomness.now, layer, probability)  # type: ignore[no-untyped-call]
        return result
    return dropped(functional.relu(values), probability, randomness, layer)


def convolved(
    path: str, setting: Any, windows: Tensor, parts: Sequence[int], convolutions: Sequence[StackedConvolution],
    norms: Sequence[StackedNorm], batch_statistics: bool,
) -> Tensor:  # fmt: skip
    """Four blocks and a pooling by the kernels of a path: (run, window, channel, time) → (run, window, 128 × 4).

    `setting` is a precision for fast.fused, and memory for fast.native. `parts` of the batch of these sizes have
    statistics of their own. With batch statistics it is differentiable in weights, biases and norms, once; the input is
    data.
    """
    if len(set(parts)) > 1:  # the kernels want parts of one size
        pieces = windows.split_with_sizes(list(parts), dim=1)
        outputs = [convolved(path, setting, piece, (), convolutions, norms, batch_statistics) for piece in pieces]
        return torch.cat(outputs, dim=1)
    # What the way back needs is kept where there will be one; running statistics are never learnt with.
    call = kernels_of(path), setting, max(len(parts), 1), norms, batch_statistics, torch.is_grad_enabled()
    weights = [weight for layer in (*convolutions, *norms) for weight in (layer.weight, layer.bias)]
    values: Tensor = _Blocks.apply(windows, call, *weights)  # type: ignore[no-untyped-call]
    return values


class _Blocks(torch.autograd.Function):
    """Weights and biases alternate, of the four convolutions and then of the four norms."""

    @staticmethod
    def forward(ctx: Any, windows: Tensor, call: Any, *weights: Tensor) -> Tensor:
        ctx.kernels, setting, domains, norms, batch_statistics, learning = call
        ctx.biases, keep = weights[1:8:2], batch_statistics and learning
        pooled: Tensor
        pooled, ctx.kept = ctx.kernels.forward(
            windows, domains, weights[:8:2], ctx.biases, norms, batch_statistics, keep, setting
        )
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kept, ctx.kept = ctx.kept, None
        if kept is None:
            raise RuntimeError("the encoder's kernels can be differentiated once only: their memory is used again")
        of_weights, of_norms = ctx.kernels.backward(gradients[0].contiguous(), kept)
        of_biases = [torch.zeros_like(bias) for bias in ctx.biases]  # the norms remove biases
        of_convolutions = [gradient for pair in zip(of_weights, of_biases, strict=True) for gradient in pair]
        return (None, None, *of_convolutions, *of_norms)
