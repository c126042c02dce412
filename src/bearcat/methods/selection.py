"""Which pseudo-labels are used: by a threshold on confidence (docs/method.md), or by another rule.

A rule looks at the whole target at the start of an epoch, by the teacher in evaluation mode, and says for each target
training window which label it supports, (run, window), −1 where none. In the epoch's steps the teacher's label of a
window is used where it is that one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from bearcat.training.state import TrainingState


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


def select(probabilities: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and whether each is sure enough: (run, batch, class), (run, class) → (run, batch) int64 and bool."""
    confidence, label = probabilities.max(dim=-1)
    return label, confidence >= thresholds.gather(1, label)


def surest(state: TrainingState, share: float) -> Tensor:
    """The predicted label of the surest windows, a share of each class (Zou et al. 2018)."""
    logits, _ = state.predict(state.reported, state.batches.target_train)
    confidence, labels = logits.softmax(dim=-1).max(dim=-1)
    return best_of_each_class(confidence, labels, share, state.classes, state.batches.target_present)


def nearest_to_centre(state: TrainingState, share: float) -> Tensor:
    """The predicted label of the windows nearest to the mean feature of their class, a share of each class.

    Nearness is the cosine of features, whose length says little.
    """
    logits, features = state.predict(state.reported, state.batches.target_train)
    labels, present = logits.argmax(dim=-1), state.batches.target_present
    features = normalize(features, dim=-1)
    member = one_hot(labels, state.classes).to(features.dtype) * present[..., None]
    centres = normalize(member.mT @ features, dim=-1)  # (run, class, feature)
    nearness = (features * centres.gather(1, labels[..., None].expand_as(features))).sum(dim=-1)
    return best_of_each_class(nearness, labels, share, state.classes, present)


def of_nearest_neighbour(state: TrainingState, share: float) -> Tensor:  # noqa: ARG001
    """The true label of the source training window whose feature is the nearest by cosine."""
    batches = state.batches
    source, target = (
        normalize(state.predict(state.reported, windows)[1], dim=-1)
        for windows in (batches.source_train, batches.target_train)
    )
    nearness = (target @ source.mT).masked_fill(~batches.source_present[:, None], -torch.inf)
    return batches.source_labels.gather(1, nearness.argmax(dim=-1))


def best_of_each_class(scores: Tensor, labels: Tensor, share: float, classes: int, present: Tensor) -> Tensor:
    """The labels (run, window) of those of the highest scores in each class, a share rounded up; −1 elsewhere."""
    found = torch.full_like(labels, -1)
    for label in range(classes):
        member = (labels == label) & present
        rank = scores.masked_fill(~member, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        wanted = (member.sum(dim=1, keepdim=True) * share).ceil()
        found = torch.where(member & (rank < wanted), label, found)
    return found


RULES: dict[str, Callable[[TrainingState, float], Tensor]] = {
    "share": surest,
    "cluster": nearest_to_centre,
    "neighbour": of_nearest_neighbour,
}
