"""SDAT: sharpness-aware minimisation of the task loss (Rangwani et al. 2022, after Foret et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import Ingredient, choice, per_run

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sharpness(Ingredient):
    """The step's gradient is taken at w + radius·g/‖g‖, g the gradient of the losses in scope.

    Modules of ingredients (the domain classifier) take plain steps.
    """

    name = "sharpness"
    uses_target = False
    begins = "training"
    radius: float = per_run(0.05)
    scope: str = choice("task", "supervised")  # authors' code: every loss that does not align domains; or the text's

    def perturb(self, weights: Sequence[Tensor], gradients: Callable[[str], Sequence[Tensor]]) -> list[Tensor]:
        """Moves every run's weights uphill; the norm is over all weights of a run."""
        import torch

        found = gradients(self.scope)
        with torch.no_grad():
            before = [weight.detach().clone() for weight in weights]
            norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in found]
            scale = self.radius / (torch.linalg.vector_norm(torch.stack(norms), dim=0) + 1e-12)
            for weight, gradient in zip(weights, found, strict=True):
                weight += gradient * scale.view(-1, *[1] * (gradient.dim() - 1))
        return before
