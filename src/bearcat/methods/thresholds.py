"""How sure the teacher must be for its label to be used (docs/method.md)."""

from __future__ import annotations

import torch
from torch import Tensor


def confident_counts(probabilities: Tensor, tau: Tensor, present: Tensor | None = None) -> Tensor:
    """Predictions at least `tau` (run,) sure, per class: (run, window, class) → (run, class).

    `present` (run, window) says which places hold a window; None means all.
    """
    confidence, label = probabilities.max(dim=-1)
    sure = confidence >= tau[:, None]
    sure = (sure if present is None else sure & present).to(torch.float32)
    counts = torch.zeros(probabilities.shape[0], probabilities.shape[2], device=probabilities.device)
    return counts.scatter_add_(1, label, sure)


def per_class(counts: Tensor, tau: Tensor, expected: Tensor | None = None) -> Tensor:
    """τ·β/(2−β) with β = count / largest count: (run, class). A class of count 0 gets threshold 0, as published.

    With `expected` shares (run, class) a class's count is compared with what its share leads to expect, and one of
    which less than a window in a hundred is expected keeps the threshold τ.
    """
    if expected is not None:
        counts = counts / expected.clamp(min=0.01)
        counts = torch.where(expected < 0.01, counts.max(dim=1, keepdim=True).values, counts)
    largest = counts.max(dim=1, keepdim=True).values
    share = counts / largest.clamp(min=1)
    return tau[:, None] * share / (2 - share)


def fixed(tau: Tensor, classes: int) -> Tensor:
    """The same threshold for every class: (run, class)."""
    return tau[:, None].expand(-1, classes)


def select(probabilities: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and whether each is sure enough: (run, batch, class), (run, class) → (run, batch) int64 and bool."""
    confidence, label = probabilities.max(dim=-1)
    return label, confidence >= thresholds.gather(1, label)
