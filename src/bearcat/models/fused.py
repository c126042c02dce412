"""The encoder's convolution blocks and dropout on a GPU, by the kernels of models/kernels.py.

`convolved` computes what the plain layers compute, for all runs and both domains in a dozen launches: values and
gradients agree to rounding, which tests/test_fused.py checks. Imported only where Triton is there (networks.fast_path).

Precision is that of the stored activations and of the matrix products: "float32", "tf32" (float32 rounded to 19 bits in
products) or "bfloat16". Weights, statistics, sums and gradients of weights are float32 always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bearcat.models import kernels
from bearcat.models.stacked import StackedConvolution, StackedNorm

STORED = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
# What Triton calls it; bfloat16 goes by its type. "float32" is three TF32 products that make up for each other's
# rounding: Triton's own float32 product uses no matrix units, and took minutes to compile.
PRODUCTS = {"float32": "tf32x3", "tf32": "tf32", "bfloat16": "ieee"}
PARTS = 4  # of time that are left
WIDTH = 16  # the first layer's 15 taps and a zero: products want multiples of 16

# By layer: tile of time, tile of channels, warps of a program, stages of prefetching; found by trying (docs/speed.md).
Tiles = dict[int, tuple[int, int, int, int]]
FORWARD: dict[str, Tiles] = {
    "bfloat16": {1: (64, 16, 1, 1), 2: (64, 32, 2, 2), 3: (32, 64, 2, 1), 4: (64, 128, 2, 1)},
    "tf32": {1: (128, 16, 4, 1), 2: (64, 32, 4, 1), 3: (64, 64, 4, 1), 4: (64, 64, 4, 1)},
    "float32": {1: (128, 16, 4, 1), 2: (64, 32, 4, 1), 3: (64, 32, 4, 1), 4: (64, 32, 4, 1)},
}
BACKWARD_INPUT: dict[str, Tiles] = {
    "bfloat16": {2: (64, 16, 2, 1), 3: (64, 32, 2, 1), 4: (128, 64, 4, 1)},
    "tf32": {2: (64, 16, 4, 1), 3: (64, 32, 4, 1), 4: (64, 64, 4, 1)},
    "float32": {2: (64, 16, 4, 1), 3: (64, 32, 4, 1), 4: (64, 32, 4, 1)},
}
BACKWARD_WEIGHT: dict[str, Tiles] = {
    "bfloat16": {1: (128, 16, 2, 1), 2: (64, 32, 4, 3), 3: (64, 64, 4, 1), 4: (64, 64, 4, 1)},
    "tf32": {1: (32, 16, 4, 1), 2: (64, 32, 4, 1), 3: (64, 64, 4, 1), 4: (64, 64, 4, 1)},
    "float32": {1: (32, 16, 4, 1), 2: (64, 32, 4, 1), 3: (64, 32, 4, 1), 4: (32, 64, 4, 1)},
}


@dataclass(frozen=True)
class Shape:
    """Sizes of one call: windows of `domains` parts of `batch` each, and what the four layers make of the time."""

    runs: int
    domains: int
    batch: int
    channels: int
    times: tuple[int, int, int, int, int]  # of the input and after each convolution

    @property
    def windows(self) -> int:
        return self.domains * self.batch


@dataclass(eq=False)
class Applied:
    """A normalisation as it was applied: y ↦ scale·y + shift, with ŷ = (y − mean)·deviation; (run, domain, channel)."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    deviation: Tensor


def convolved(
    windows: Tensor, count: Tensor, convolutions: Sequence[StackedConvolution], norms: Sequence[StackedNorm],
    precision: str, batch_statistics: bool,
) -> Tensor:  # fmt: skip
    """(run, window, channel, time) → (run, window, 128 × 4). count (run, domain): windows present.

    With batch statistics it is differentiable in weights, biases and norms, once; the input is data.
    """
    weights, biases = [layer.weight for layer in convolutions], [layer.bias for layer in convolutions]
    flat = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
    if batch_statistics:
        result: Tensor = _FusedBlocks.apply(windows, count, precision, norms, *weights, *biases, *flat)  # type: ignore[no-untyped-call]
        return result
    with torch.no_grad():
        return _forward(windows, count, list(weights), list(biases), norms, precision, False)[0]


class _FusedBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, windows: Tensor, count: Tensor, precision: str, norms: Sequence[StackedNorm], *flat: Tensor
    ) -> Tensor:
        pooled, kept = _forward(windows, count, list(flat[:4]), list(flat[4:8]), norms, precision, True)
        ctx.kept, ctx.precision, ctx.weights = kept, precision, flat[:4]
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kept, ctx.kept = ctx.kept, None
        if kept is None:
            raise RuntimeError(
                "the fused encoder can be differentiated once only: its memory is reused in the backward pass"
            )
        of_weights, of_norms = _backward(gradients[0].contiguous(), kept, ctx.weights, ctx.precision)
        of_biases = [torch.zeros_like(weight[..., 0, 0]) for weight in ctx.weights]  # the norms remove biases
        return (None, None, None, None, *of_weights, *of_biases, *of_norms)


@dataclass(eq=False)
class Kept:
    """What the backward pass needs."""

    shape: Shape
    windows: Tensor
    count: Tensor
    raw: list[Tensor]  # y of each layer
    applied: list[Applied]
    pooled: Tensor
    place: Tensor
    peak: Tensor  # y where the maximum was


def _forward(
    windows: Tensor, count: Tensor, weights: list[Tensor], biases: list[Tensor], norms: Sequence[StackedNorm],
    precision: str, batch_statistics: bool,
) -> tuple[Tensor, Kept]:  # fmt: skip
    runs, number, channels, length = windows.shape
    domains = count.shape[1]
    first = length - 14
    pairs = (first - 2) // 2
    shape = Shape(runs, domains, number // domains, channels, (length, first, first - 2, pairs - 2, pairs - 4))
    stored, device = STORED[precision], windows.device
    grid = (number, runs)
    raw: list[Tensor] = []
    applied: list[Applied] = []
    for layer, weight in enumerate(weights, start=1):
        outputs, inputs, taps = weight.shape[1:]
        y = torch.empty(runs, number, shape.times[layer], outputs, dtype=stored, device=device)
        partial = torch.empty(runs, number, 2, outputs, device=device)
        tiles = _tiles(FORWARD, layer, precision)
        common = {"OUTPUTS": outputs, "PRECISION": PRODUCTS[precision], **tiles}
        if layer == 1:
            padded = torch.zeros(runs, inputs, WIDTH, outputs, dtype=stored, device=device)
            padded[:, :, :taps] = weight.permute(0, 2, 3, 1)
            del common["BLOCK_N"]
            kernels.convolve_first[grid](
                windows, padded, y, partial, count, number, shape.batch, domains, channels, length, shape.times[1],
                WIDTH=WIDTH, **common,
            )  # fmt: skip
        else:
            turned = weight.permute(0, 3, 2, 1).to(stored, memory_format=torch.contiguous_format).contiguous()
            kernels.convolve[(*grid, outputs // tiles["BLOCK_N"])](
                raw[-1], applied[-1].scale, applied[-1].shift, turned, y, partial, count, number, shape.batch, domains,
                shape.times[layer - 1], shape.times[layer], INPUTS=inputs, POOL=layer == 3, **common,
            )  # fmt: skip
        raw.append(y)
        norm, bias = norms[layer - 1], biases[layer - 1]
        if batch_statistics:
            applied.append(_statistics(partial, count, norm, bias, shape, shape.times[layer]))
        else:
            applied.append(_running(norm, bias, domains))
    pooled = torch.empty(runs, number, 128 * PARTS, device=device)
    place = torch.empty(runs, number, 128 * PARTS, dtype=torch.int32, device=device)
    peak = torch.empty_like(pooled)
    kernels.pool[grid](
        raw[-1], applied[-1].scale, applied[-1].shift, pooled, place, peak, count, number, shape.batch, domains,
        shape.times[4], CHANNELS=128, PARTS=PARTS, BLOCK=32, num_warps=4,
    )  # fmt: skip
    return pooled, Kept(shape, windows, count, raw, applied, pooled, place, peak)


def _statistics(partial: Tensor, count: Tensor, norm: StackedNorm, bias: Tensor, shape: Shape, time: int) -> Applied:
    channels = norm.weight.shape[1]
    made = [torch.empty(shape.runs, shape.domains, channels, device=partial.device) for _ in range(4)]
    kernels.statistics[(shape.runs,)](
        partial, count, norm.weight, norm.bias, bias, norm.running_mean, norm.running_var, *made, shape.windows,
        shape.batch, time, norm.momentum, norm.epsilon, DOMAINS=shape.domains, CHANNELS=channels, BLOCK=32,
    )  # fmt: skip
    return Applied(*made)


def _running(norm: StackedNorm, bias: Tensor, domains: int) -> Applied:
    """By the running statistics; y lacks the convolution's bias, so the shift has it."""
    deviation = torch.rsqrt(norm.running_var + norm.epsilon)
    scale = norm.weight * deviation
    mean = norm.running_mean - bias
    parts = (scale, norm.bias - mean * scale, mean, deviation)
    return Applied(*(part[:, None].expand(-1, domains, -1).contiguous() for part in parts))


def _backward(
    gradient: Tensor, kept: Kept, weights: Sequence[Tensor], precision: str
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of the four weights, and of gamma and beta of the four norms, alternating."""
    shape, count, device = kept.shape, kept.count, gradient.device
    stored, number = STORED[precision], shape.windows
    grid = (number, shape.runs)
    sizes = (number, shape.batch, shape.domains)
    partial = torch.empty(shape.runs, number, 2, 128, device=device)
    last = kept.applied[-1]
    kernels.pool_backward_sums[grid](
        gradient, kept.pooled, kept.peak, last.mean, last.deviation, partial, *sizes, CHANNELS=128, PARTS=PARTS
    )
    coefficient, *of_norm = _statistics_backward(partial, kept, 4)
    change = kept.raw[3]
    kernels.pool_backward[grid](
        change, gradient, kept.pooled, kept.place, coefficient, count, *sizes, shape.times[4], CHANNELS=128,
        PARTS=PARTS, BLOCK=32, num_warps=4,
    )  # fmt: skip
    of_norms, of_weights = [of_norm], [_of_weight(4, change, coefficient, kept, weights[3], precision)]
    for layer in (4, 3, 2):
        outputs, inputs, _ = weights[layer - 1].shape[1:]
        before = kept.applied[layer - 2]
        turned = weights[layer - 1].permute(0, 3, 1, 2).to(stored, memory_format=torch.contiguous_format).contiguous()
        found = torch.empty_like(kept.raw[layer - 2])
        partial = torch.empty(shape.runs, number, 2, inputs, device=device)
        tiles = _tiles(BACKWARD_INPUT, layer, precision)
        kernels.backward_input[(*grid, inputs // tiles["BLOCK_N"])](
            change, kept.raw[layer - 1], coefficient, turned, kept.raw[layer - 2], before.scale, before.shift,
            before.mean, before.deviation, found, partial, count, *sizes, shape.times[layer - 1], shape.times[layer],
            INPUTS=inputs, OUTPUTS=outputs, POOL=layer == 3, READY=layer == 4,
            PRECISION=PRODUCTS[precision], **tiles,
        )  # fmt: skip
        change = found
        coefficient, *of_norm = _statistics_backward(partial, kept, layer - 1)
        of_norms.insert(0, of_norm)
        of_weights.insert(0, _of_weight(layer - 1, change, coefficient, kept, weights[layer - 2], precision))
    return of_weights, [gradient for pair in of_norms for gradient in pair]


def _statistics_backward(partial: Tensor, kept: Kept, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of dy = c₀·dz + c₁ + c₂·y, and the gradients of gamma and beta."""
    shape, applied, channels = kept.shape, kept.applied[layer - 1], partial.shape[-1]
    coefficient = torch.empty(shape.runs, shape.domains, 3, channels, device=partial.device)
    of_gamma = torch.empty(shape.runs, channels, device=partial.device)
    of_beta = torch.empty_like(of_gamma)
    kernels.statistics_backward[(shape.runs,)](
        partial, kept.count, applied.scale, applied.mean, applied.deviation, coefficient, of_gamma, of_beta,
        shape.windows, shape.batch, shape.times[layer], DOMAINS=shape.domains, CHANNELS=channels, BLOCK=32,
    )  # fmt: skip
    return coefficient, of_gamma, of_beta


def _of_weight(layer: int, change: Tensor, coefficient: Tensor, kept: Kept, weight: Tensor, precision: str) -> Tensor:
    shape = kept.shape
    outputs, inputs, taps = weight.shape[1:]
    each = max(1, min(16, shape.windows * shape.runs // 1024))  # windows a program adds up
    splits = -(-shape.windows // each)
    tiles = _tiles(BACKWARD_WEIGHT, layer, precision)
    common = {"OUTPUTS": outputs, "PRECISION": PRODUCTS[precision], **tiles}
    sizes = (shape.windows, shape.batch, shape.domains, each)
    raw = kept.raw[layer - 1]
    if layer == 1:
        partial = torch.empty(shape.runs, splits, inputs, WIDTH, outputs, device=weight.device)
        del common["BLOCK_N"]
        kernels.backward_weight_first[(splits, shape.runs, inputs)](
            kept.windows, change, raw, coefficient, partial, kept.count, *sizes, inputs, shape.times[0], shape.times[1],
            WIDTH=WIDTH, **common,
        )  # fmt: skip
        return partial.sum(dim=1)[:, :, :taps].permute(0, 3, 1, 2).contiguous()
    before = kept.applied[layer - 2]
    partial = torch.empty(shape.runs, splits, taps, inputs, outputs, device=weight.device)
    kernels.backward_weight[(splits, shape.runs, outputs // tiles["BLOCK_N"])](
        kept.raw[layer - 2], before.scale, before.shift, change, raw, coefficient, partial, kept.count, *sizes,
        shape.times[layer - 1], shape.times[layer], INPUTS=inputs, POOL=layer == 3, READY=layer == 4,
        **common,
    )  # fmt: skip
    return partial.sum(dim=1).permute(0, 3, 2, 1).contiguous()


def _tiles(table: dict[str, Tiles], layer: int, precision: str) -> dict[str, int]:
    return dict(zip(("BLOCK", "BLOCK_N", "num_warps", "num_stages"), table[precision][layer], strict=True))


def rectified_dropout(values: Tensor, out: Tensor, now: Tensor, layer: int, limit: int, scale: float) -> None:
    """ReLU and dropout of (run, batch, feature) in one launch (models.stacked.RectifiedDropout)."""
    size = values[0].numel()
    kernels.rectified_dropout[(-(-size // 1024), len(values))](
        values, out, now, layer, limit, scale, size, BLOCK=1024
    )  # fmt: skip
