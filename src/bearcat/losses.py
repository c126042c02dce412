"""Losses as pure functions, (run, …) → (run,): one number for each run (docs/method.md)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def supervised(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy: logits (run, batch, class), labels (run, batch)."""
    return _cross_entropy(logits, labels).mean(dim=1)


def pseudo_label(logits: Tensor, labels: Tensor, selected: Tensor, average: str) -> Tensor:
    """Cross-entropy of the selected windows (run, batch) over the batch size, as the authors do, or their number."""
    losses = torch.where(selected, _cross_entropy(logits, labels), 0)
    if average == "batch":
        return losses.mean(dim=1)
    return losses.sum(dim=1) / selected.sum(dim=1).clamp(min=1)


def class_confusion(logits: Tensor, temperature: float) -> Tensor:
    """Minimum class confusion (Jin et al. 2020): how much mass pairs of classes share in the batch's predictions."""
    classes = logits.shape[-1]
    logarithms = functional.log_softmax(logits / temperature, dim=-1)
    probabilities = logarithms.exp()
    with torch.no_grad():  # sure windows count more; the weights sum to the batch size
        entropy = -(probabilities * logarithms).sum(dim=-1)
        weight = 1 + torch.exp(-entropy)
        weight = weight * (logits.shape[1] / weight.sum(dim=1, keepdim=True))
    correlation = (probabilities * weight[..., None]).mT @ probabilities  # (run, class, class)
    confusion = correlation / correlation.sum(dim=2, keepdim=True)
    diagonal = confusion.diagonal(dim1=1, dim2=2).sum(dim=1)
    return (confusion.sum(dim=(1, 2)) - diagonal) / classes


def domain(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Binary cross-entropy of the domain classifier, source 1 and target 0, over all windows of both (run, batch)."""
    losses = torch.cat([functional.softplus(-source_logits), functional.softplus(target_logits)], dim=1)
    return losses.mean(dim=1)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape)
