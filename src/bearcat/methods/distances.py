"""How far two domains are apart: formulas of the alignments as pure functions, (run, …) → (run,).

Both domains stand in one batch, the source's `size` windows first. `present` (run, batch) says which places hold a
window; None means all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bearcat.methods.losses import masked_mean


def weights(values: Tensor, present: Tensor | None) -> Tensor:
    """Equal weights of the windows that are there, of sum 1: (run, batch, …) → (run, batch)."""
    here = values.new_ones(values.shape[:2]) if present is None else present.to(values.dtype)
    return here / here.sum(dim=1, keepdim=True)


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Of all pairs: (run, n, feature), (run, m, feature) → (run, n, m)."""
    middle = torch.cat([first, second], dim=1).mean(dim=1, keepdim=True).detach()  # small numbers keep their digits
    first, second = first - middle, second - middle
    squares = first.square().sum(dim=-1)[:, :, None] + second.square().sum(dim=-1)[:, None]
    return (squares - 2 * first @ second.mT).clamp(min=0)


def gaussian_kernels(
    values: Tensor, present: Tensor | None, factors: Sequence[float], bandwidth: float | None = None
) -> Tensor:
    """Σ exp(−‖x − y‖² / (factor · bandwidth)), (run, batch, batch); the bandwidth is the mean of ‖x − y‖² if None."""
    squared = squared_distances(values, values)
    if bandwidth is None:
        here = weights(values, present)
        count = 1 / here.amax(dim=1)
        pairs = here[:, :, None] * here[:, None] * (count / (count - 1))[:, None, None]  # of different windows
        width = (pairs * squared.detach()).sum(dim=(1, 2))[:, None, None].clamp(min=1e-12)
    else:
        width = values.new_full((1, 1, 1), bandwidth)
    return torch.stack([torch.exp(-squared / (factor * width)) for factor in factors]).sum(dim=0)


def mean_discrepancy(kernel: Tensor, size: int, present: Tensor | None) -> Tensor:
    """Maximum mean discrepancy, squared: the mean of the kernel in both domains less twice that across."""
    masks = (None, None) if present is None else (present[:, :size], present[:, size:])
    signed = torch.cat([weights(kernel[:, :size], masks[0]), -weights(kernel[:, size:], masks[1])], dim=1)
    return (signed[:, None] @ kernel @ signed[..., None])[:, 0, 0]


def covariance(features: Tensor, present: Tensor | None) -> Tensor:
    """Unbiased: (run, batch, feature) → (run, feature, feature)."""
    weight = weights(features, present)
    count = 1 / weight.amax(dim=1)
    weight = weight[..., None]
    centred = features - (weight * features).sum(dim=1, keepdim=True)
    return (weight * centred).mT @ centred * (count / (count - 1).clamp(min=1))[:, None, None]


def transport_plan(cost: Tensor, source: Tensor, target: Tensor, smoothing: float, rounds: int) -> Tensor:
    """The plan (run, n, m) that moves weights `source` (run, n) to `target` (run, m) at least cost plus entropy.

    Sinkhorn's iterations on logarithms; the entropy counts `smoothing` times the mean cost.
    """
    mean = (source[:, None] @ cost @ target[..., None]).clamp(min=1e-12)
    kernel = -cost / (smoothing * mean)
    rows, columns = source.log(), target.log()
    left = torch.zeros_like(rows)
    for _ in range(rounds):
        right = columns - (kernel + left[..., None]).logsumexp(dim=1)
        left = rows - (kernel + right[:, None]).logsumexp(dim=2)
    return (kernel + left[..., None] + right[:, None]).exp()


def hardest_triplets(features: Tensor, labels: Tensor, counts: Tensor, margin: float) -> Tensor:
    """Batch-hard triplet loss (Hermans et al. 2017) of the windows that count (run, batch).

    The farthest window of the same label should be nearer than the nearest one of another, by the margin.
    """
    distance = (squared_distances(features, features) + 1e-12).sqrt()
    pairs = counts[:, :, None] & counts[:, None]
    same = labels[:, :, None] == labels[:, None]
    itself = torch.eye(labels.shape[1], dtype=torch.bool, device=labels.device)
    alike, different = pairs & same & ~itself, pairs & ~same
    farthest = distance.masked_fill(~alike, 0).amax(dim=2)
    nearest = distance.masked_fill(~different, torch.inf).amin(dim=2)
    anchors = alike.any(dim=2) & different.any(dim=2)
    losses = torch.where(anchors, (farthest - nearest + margin).clamp(min=0), 0)
    return losses.sum(dim=1) / anchors.sum(dim=1).clamp(min=1)


def gradient_penalty(values: Tensor, critic_of: Tensor, present: Tensor | None) -> Tensor:
    """The mean of (‖∇‖ − 1)², ∇ the gradient of the critic's answers (run, batch) at values (run, batch, feature)."""
    (gradient,) = torch.autograd.grad(critic_of.sum(), values, create_graph=True)
    return masked_mean(((gradient.square().sum(dim=-1) + 1e-12).sqrt() - 1).square(), present)
