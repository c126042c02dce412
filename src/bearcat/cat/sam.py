"""Sharpness-aware minimisation (Foret et al. 2021) of the task loss: SDAT (Rangwani et al. 2022), the paper's asterisk.

The gradient of a step is taken at w + radius · g/‖g‖, where g is the gradient of the task loss at w.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bearcat.cat.ingredient import Ingredient, Tensor, torch


@dataclass(frozen=True)
class Sharpness(Ingredient):
    """SDAT: the student's gradient is taken where the task loss is highest nearby; the domain classifier's too.

    >>> RECIPES["DANN*"].find(Sharpness).radius
    0.05
    """

    name = "sharpness"
    reads_target = False
    radius: float = 0.05


def ascend(weights: Sequence[Tensor], gradients: Sequence[Tensor], radius: float) -> list[Tensor]:
    """Moves every run's weights uphill by the radius, and returns what they were; the norm is over all of a run's."""
    with torch.no_grad():
        before = [weight.detach().clone() for weight in weights]
        norms = [torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1) for gradient in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        scale = torch.full_like(norm, radius) / (norm + 1e-12)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight += gradient * scale.view(-1, *[1] * (gradient.dim() - 1))
    return before


def descend(weights: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Puts the weights back to what they were before the ascent."""
    with torch.no_grad():
        torch._foreach_copy_(list(weights), list(before))
