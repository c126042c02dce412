"""Alignment: losses that make source and target features alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bearcat.methods.ingredient import Ingredient, View, check_choice, per_run

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Adversarial(Ingredient):
    """A domain classifier behind a gradient reversal layer whose coefficient rises as 2/(1+exp(−slope·p)) − 1."""

    name = "alignment"
    aligns = True
    stream = 21
    weight: float = per_run(1.0)  # of the reversed gradient
    slope: float = 10.0
    reduction: str = "mean"  # authors' code: over all windows of both domains; text: "sum of means", twice as much

    def __post_init__(self) -> None:
        check_choice("alignment.reduction", self.reduction, ("mean", "sum of means"))

    def ramp(self, progress: float) -> float:
        return reversal_coefficient(progress, self.slope)

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        from bearcat.models import DomainClassifier

        return DomainClassifier(runs, features, dropout)

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        classifier: Any = view.module
        features = losses.reverse_gradient(view.features, self.weight * view.ramp)
        logits = classifier(features, view.randomness)
        weight = None if view.shares is None else view.shares[1].gather(1, view.labels)
        return losses.domain(logits[:, : view.size], logits[:, view.size :], view.present, self.reduction, weight)


def reversal_coefficient(progress: float, slope: float) -> float:
    """2/(1+exp(−slope·p)) − 1: from 0 at p = 0 towards 1. (The paper's formula lacks the −1; docs/method.md.)"""
    return 2 / (1 + math.exp(-slope * progress)) - 1
