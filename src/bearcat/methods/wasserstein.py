"""Wasserstein adversarial alignment (Shen et al. 2018), of the system of Wang et al. (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bearcat.methods.alignment import reversal_coefficient
from bearcat.methods.ingredient import Ingredient, View, per_run

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Wasserstein(Ingredient):
    """A critic whose mean answers on both domains differ as much as its slope of about 1 allows.

    The critic takes one step with each of the encoder's, through a gradient reversal layer, instead of five before it.
    """

    name = "wasserstein"
    aligns = True
    # Of the reversed gradient. The critic's answers are unbounded: 1 is too much (LOG.md).
    weight: float = per_run(0.1)
    slope: float = 10.0
    penalty: float = per_run(10.0)

    def ramp(self, progress: float) -> float:
        return reversal_coefficient(progress, self.slope)

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        from bearcat.models import DomainClassifier

        return DomainClassifier(runs, features, 0.0)  # dropout would change the slope between two passes

    def loss(self, view: View) -> Tensor:
        import torch

        from bearcat.methods import distances, losses

        critic: Any = view.module
        answers = critic(losses.reverse_gradient(view.features, self.weight * view.ramp), None)
        source, target = (
            losses.masked_mean(answers[:, part], None if view.present is None else view.present[:, part])
            for part in view.domains
        )
        with torch.no_grad():  # a random point between each source window and the target window of its place
            share = view.randomness.uniform(4, view.size).to(answers.dtype)[..., None]
            between = share * view.source_features + (1 - share) * view.target_features
        between.requires_grad_()
        both = None if view.present is None else view.present[:, : view.size] & view.present[:, view.size :]
        return target - source + self.penalty * distances.gradient_penalty(between, critic(between, None), both)
