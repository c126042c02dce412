"""The encoder's convolution blocks, by the kernels of fast/kernels.py, and dropout on a GPU.

`forward` and `backward` compute what the plain layers compute, for all runs and both domains in a dozen launches:
values and gradients agree to rounding, which tests/test_fused.py checks. Imported only where Triton is there
(device.fast_path).

Precision is that of the stored activations and of the matrix products: "float32", "tf32" (float32 rounded to 19 bits in
products) or "bfloat16". Weights, statistics, sums and gradients of weights are float32 always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bearcat.fast import kernels
from bearcat.fast.stacked import StackedNorm

STORED = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
# What Triton calls it; bfloat16 goes by its type. "float32" is three TF32 products that make up for each other's
# rounding: Triton's own float32 product uses no matrix units, and took minutes to compile.
PRODUCTS = {"float32": "tf32x3", "tf32": "tf32", "bfloat16": "ieee"}
PARTS = 4  # of time that are left
WIDTH = 16  # the first layer's 15 taps and a zero: products want multiples of 16

# By layer: tile of time, tile of channels, warps of a program, stages of prefetching; by trial (docs/design.md).
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


class Applied(NamedTuple):
    """A normalisation as it was applied: y ↦ scale·y + shift, with ŷ = (y − mean)·deviation; (run, domain, channel)."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    deviation: Tensor


@dataclass(eq=False)
class Kept:
    """The sizes of a pass, and what its way back needs."""

    windows: Tensor
    weights: Sequence[Tensor]
    precision: str
    runs: int
    sizes: tuple[int, int, int]  # windows of a run, of each domain; domains
    times: tuple[int, int, int, int, int]  # of the input and after each convolution
    raw: list[Tensor] = field(default_factory=list)  # y of each layer
    applied: list[Applied] = field(default_factory=list)
    pooled: tuple[Tensor, ...] = ()  # the maxima, where they were, and y there

    @property
    def grid(self) -> tuple[int, int]:
        return self.sizes[0], self.runs


def forward(
    windows: Tensor, domains: int, weights: Sequence[Tensor], biases: Sequence[Tensor], norms: Sequence[StackedNorm],
    batch_statistics: bool, keep: bool, precision: str,
) -> tuple[Tensor, Kept | None]:  # fmt: skip
    """As fast.stacked.convolved says; with `keep`, also what `backward` needs."""
    windows = windows.contiguous()
    runs, number, channels, length = windows.shape
    first = length - 14
    pairs = (first - 2) // 2
    times = (length, first, first - 2, pairs - 2, pairs - 4)
    kept = Kept(windows, weights, precision, runs, (number, number // domains, domains), times)
    stored, device, raw, applied = STORED[precision], windows.device, kept.raw, kept.applied
    for layer, weight in enumerate(weights, start=1):
        outputs, inputs, taps = weight.shape[1:]
        y = torch.empty(runs, number, times[layer], outputs, dtype=stored, device=device)
        partial = torch.empty(runs, number, 2, outputs, device=device)
        tiles = _tiles(FORWARD, layer, precision)
        common = {"OUTPUTS": outputs, "PRECISION": PRODUCTS[precision], **tiles}
        if layer == 1:
            padded = torch.zeros(runs, inputs, WIDTH, outputs, dtype=stored, device=device)
            padded[:, :, :taps] = weight.permute(0, 2, 3, 1)
            del common["BLOCK_N"]
            kernels.convolve_first[kept.grid](
                windows, padded, y, partial, number, channels, length, times[1], WIDTH=WIDTH, **common
            )
        else:
            turned = weight.permute(0, 3, 2, 1).to(stored, memory_format=torch.contiguous_format).contiguous()
            kernels.convolve[(*kept.grid, outputs // tiles["BLOCK_N"])](
                raw[-1], applied[-1].scale, applied[-1].shift, turned, y, partial, *kept.sizes,
                times[layer - 1], times[layer], INPUTS=inputs, POOL=layer == 3, **common,
            )  # fmt: skip
        raw.append(y)
        norm, bias = norms[layer - 1], biases[layer - 1]
        if batch_statistics:
            applied.append(_statistics(partial, kept, norm, bias, times[layer]))
        else:
            applied.append(_running(norm, bias, domains))
    pooled = torch.empty(runs, number, 128 * PARTS, device=device)
    place = torch.empty(runs, number, 128 * PARTS, dtype=torch.int32, device=device)
    peak = torch.empty_like(pooled)
    kernels.pool[kept.grid](
        raw[-1], applied[-1].scale, applied[-1].shift, pooled, place, peak, *kept.sizes, times[4],
        CHANNELS=128, PARTS=PARTS, BLOCK=32, num_warps=4,
    )  # fmt: skip
    kept.pooled = pooled, place, peak
    return pooled, kept if keep else None


def _statistics(partial: Tensor, kept: Kept, norm: StackedNorm, bias: Tensor, time: int) -> Applied:
    (windows, batch, domains), channels = kept.sizes, norm.weight.shape[1]
    made = [torch.empty(kept.runs, domains, channels, device=partial.device) for _ in range(4)]
    kernels.statistics[(kept.runs,)](
        partial, norm.weight, norm.bias, bias, norm.running_mean, norm.running_var, *made, windows, batch,
        time, norm.momentum, norm.epsilon, DOMAINS=domains, CHANNELS=channels, BLOCK=32,
    )  # fmt: skip
    return Applied(*made)


def _running(norm: StackedNorm, bias: Tensor, domains: int) -> Applied:
    """By the running statistics; y lacks the convolution's bias, so the shift has it."""
    deviation = torch.rsqrt(norm.running_var + norm.epsilon)
    scale = norm.weight * deviation
    mean = norm.running_mean - bias
    parts = (scale, norm.bias - mean * scale, mean, deviation)
    return Applied(*(part[:, None].expand(-1, domains, -1).contiguous() for part in parts))


def backward(gradient: Tensor, kept: Kept) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of the four weights, and of gamma and beta of the four norms, alternating."""
    weights, precision = kept.weights, kept.precision
    (pooled, place, peak), last = kept.pooled, kept.applied[-1]
    partial = torch.empty(kept.runs, kept.sizes[0], 2, 128, device=gradient.device)
    kernels.pool_backward_sums[kept.grid](
        gradient, pooled, peak, last.mean, last.deviation, partial, *kept.sizes, CHANNELS=128, PARTS=PARTS
    )
    coefficient, *of_norm = _statistics_backward(partial, kept, 4)
    change = kept.raw[3]
    kernels.pool_backward[kept.grid](
        change, gradient, pooled, place, coefficient, *kept.sizes, kept.times[4], CHANNELS=128, PARTS=PARTS,
        BLOCK=32, num_warps=4,
    )  # fmt: skip
    of_norms, of_weights = [of_norm], [_of_weight(4, change, coefficient, kept)]
    for layer in (4, 3, 2):
        outputs, inputs, _ = weights[layer - 1].shape[1:]
        before = kept.applied[layer - 2]
        turned = weights[layer - 1].permute(0, 3, 1, 2)
        turned = turned.to(STORED[precision], memory_format=torch.contiguous_format).contiguous()
        found = torch.empty_like(kept.raw[layer - 2])
        partial = torch.empty(kept.runs, kept.sizes[0], 2, inputs, device=gradient.device)
        tiles = _tiles(BACKWARD_INPUT, layer, precision)
        kernels.backward_input[(*kept.grid, inputs // tiles["BLOCK_N"])](
            change, kept.raw[layer - 1], coefficient, turned, kept.raw[layer - 2], *before, found, partial, *kept.sizes,
            kept.times[layer - 1], kept.times[layer], INPUTS=inputs, OUTPUTS=outputs, POOL=layer == 3,
            READY=layer == 4, PRECISION=PRODUCTS[precision], **tiles,
        )  # fmt: skip
        change = found
        coefficient, *of_norm = _statistics_backward(partial, kept, layer - 1)
        of_norms.insert(0, of_norm)
        of_weights.insert(0, _of_weight(layer - 1, change, coefficient, kept))
    return of_weights, [gradient for pair in of_norms for gradient in pair]


def _statistics_backward(partial: Tensor, kept: Kept, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients of dy = c₀·dz + c₁ + c₂·y, and the gradients of gamma and beta."""
    (windows, batch, domains), applied, channels = kept.sizes, kept.applied[layer - 1], partial.shape[-1]
    coefficient = torch.empty(kept.runs, domains, 3, channels, device=partial.device)
    of_gamma = torch.empty(kept.runs, channels, device=partial.device)
    of_beta = torch.empty_like(of_gamma)
    kernels.statistics_backward[(kept.runs,)](
        partial, applied.scale, applied.mean, applied.deviation, coefficient, of_gamma, of_beta, windows,
        batch, kept.times[layer], DOMAINS=domains, CHANNELS=channels, BLOCK=32,
    )  # fmt: skip
    return coefficient, of_gamma, of_beta


def _of_weight(layer: int, change: Tensor, coefficient: Tensor, kept: Kept) -> Tensor:
    """The gradient of a layer's weight."""
    weight, runs, windows = kept.weights[layer - 1], kept.runs, kept.sizes[0]
    outputs, inputs, taps = weight.shape[1:]
    each = max(1, min(16, windows * runs // 1024))  # windows a program adds up
    splits = -(-windows // each)
    tiles = _tiles(BACKWARD_WEIGHT, layer, kept.precision)
    common = {"OUTPUTS": outputs, "PRECISION": PRODUCTS[kept.precision], **tiles}
    raw = kept.raw[layer - 1]
    if layer == 1:
        partial = torch.empty(runs, splits, inputs, WIDTH, outputs, device=weight.device)
        del common["BLOCK_N"]
        kernels.backward_weight_first[(splits, runs, inputs)](
            kept.windows, change, raw, coefficient, partial, *kept.sizes, each, inputs, kept.times[0],
            kept.times[1], WIDTH=WIDTH, **common,
        )  # fmt: skip
        return partial.sum(dim=1)[:, :, :taps].permute(0, 3, 1, 2).contiguous()
    before = kept.applied[layer - 2]
    partial = torch.empty(runs, splits, taps, inputs, outputs, device=weight.device)
    kernels.backward_weight[(splits, runs, outputs // tiles["BLOCK_N"])](
        kept.raw[layer - 2], before.scale, before.shift, change, raw, coefficient, partial, *kept.sizes,
        each, kept.times[layer - 1], kept.times[layer], INPUTS=inputs, POOL=layer == 3, READY=layer == 4, **common,
    )  # fmt: skip
    return partial.sum(dim=1).permute(0, 3, 2, 1).contiguous()


def _tiles(table: dict[str, Tiles], layer: int, precision: str) -> dict[str, int]:
    return dict(zip(("BLOCK", "BLOCK_N", "num_warps", "num_stages"), table[precision][layer], strict=True))


def rectified_dropout(values: Tensor, out: Tensor, now: Tensor, layer: int, limit: int, scale: float) -> None:
    """ReLU and dropout of (run, batch, feature) in one launch (fast.stacked.RectifiedDropout)."""
    size = values[0].numel()
    grid = (-(-size // 1024), len(values))
    _rectified_dropout[grid](values, out, now, layer, limit, scale, size, BLOCK=1024)


@triton.jit
def _mixed(value):  # type: ignore[no-untyped-def]
    """As fast.stacked.mixed, on 32-bit words."""
    value ^= value >> 16
    value *= 0x7FEB352D
    value ^= value >> 15
    value *= 0x846CA68B
    return value ^ (value >> 16)


@kernels.kernel  # type: ignore[untyped-decorator]
def _rectified_dropout(values, out, now, salt, least, scale, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """max(values, 0), some of them zeroed and the rest scaled; the same draw as fast.stacked.dropped."""
    run = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    key = tl.load(now + run).to(tl.uint32) ^ salt.to(tl.uint32)
    bits = _mixed(_mixed(place.to(tl.uint32) * 0x9E3779B1 + 0x165667B1) ^ key)
    at = run.to(tl.int64) * size + place
    value = tl.load(values + at, mask=inside, other=0.0)
    kept = (bits.to(tl.int64) >= least) & (value > 0)
    tl.store(out + at, tl.where(kept, value * scale, 0.0), mask=inside)
