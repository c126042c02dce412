"""Losses as pure functions, (run, …) → (run,): one number for each run (docs/method.md).

`present` (run, batch) says which places of a padded batch hold a window; None means all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def supervised(logits: Tensor, labels: Tensor, present: Tensor | None = None) -> Tensor:
    """Mean cross-entropy: logits (run, batch, class), labels (run, batch)."""
    return masked_mean(cross_entropy(logits, labels), present)


def of_selected(losses: Tensor, selected: Tensor, average: str, present: Tensor | None = None) -> Tensor:
    """The mean loss (run, batch) of the selected windows: over the batch size, as the authors do, or their number."""
    losses = torch.where(selected, losses, 0)
    if average == "batch":
        return masked_mean(losses, present)
    selected = selected if present is None else selected & present
    losses = torch.where(selected, losses, 0)
    return losses.sum(dim=1) / selected.sum(dim=1).clamp(min=1)


def class_confusion(
    logits: Tensor, temperature: float, present: Tensor | None = None, shares: Tensor | None = None
) -> Tensor:
    """Minimum class confusion (Jin et al. 2020): how much mass pairs of classes share in the batch's predictions.

    A row of the matrix of shared mass Σ weight·p·p', divided by its sum, is a mean of the windows' predictions in which
    a window counts by what it gives the row's class: a softmax over windows. All but its diagonal is confusion. Written
    as a quotient it is 0/0 where a sure network gives a class nothing that float32 can hold in all windows of a batch.
    Rows count the same, or by the `shares` (run, class) of their classes.
    """
    logarithms = functional.log_softmax(logits / temperature, dim=-1)
    probabilities = logarithms.exp()
    with torch.no_grad():  # sure windows count more
        entropy = -(probabilities * logarithms).sum(dim=-1)
        weight = 1 + torch.exp(-entropy)
        if present is not None:
            weight = torch.where(present, weight, 0)
    share = functional.softmax(logarithms + weight.log()[..., None], dim=1)  # (run, batch, class), 1 over a batch
    rows = (share * probabilities).sum(dim=1)  # (run, class): what is no confusion
    return 1 - (rows.mean(dim=1) if shares is None else (shares * rows).sum(dim=1))


def domain(
    source_logits: Tensor, target_logits: Tensor, present: Tensor | None = None, reduction: str = "mean",
    source_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Binary cross-entropy of the domain classifier, source 1 and target 0, (run, batch) each.

    The mean over all windows of both, or the "sum of means" of each. `source_weight` (run, batch) counts the source's
    windows; its mean should be 1.
    """
    parts = functional.softplus(-source_logits), functional.softplus(target_logits)
    if source_weight is not None:
        parts = source_weight * parts[0], parts[1]
    if reduction == "mean":
        return masked_mean(torch.cat(parts, dim=1), present)
    size = source_logits.shape[1]
    masks = (None, None) if present is None else (present[:, :size], present[:, size:])
    return masked_mean(parts[0], masks[0]) + masked_mean(parts[1], masks[1])


def masked_mean(values: Tensor, present: Tensor | None) -> Tensor:
    """Of the windows that are there: (run, batch) → (run,)."""
    if present is None:
        return values.mean(dim=1)
    return torch.where(present, values, 0).sum(dim=1) / present.sum(dim=1)


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, coefficient: Tensor) -> Tensor:
        ctx.save_for_backward(coefficient)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (coefficient,) = ctx.saved_tensors
        return -coefficient * gradients[0], None


def reverse_gradient(values: Tensor, coefficient: Tensor) -> Tensor:
    """The values as they are; on the way back their gradient times −coefficient (run,)."""
    reversed_: Tensor = _Reversal.apply(values, coefficient[:, None, None])  # type: ignore[no-untyped-call]
    return reversed_


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each window: logits (run, batch, class), labels (run, batch) → (run, batch)."""
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape)
