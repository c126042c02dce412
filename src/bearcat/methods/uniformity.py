"""Class balance of the predictions (French et al. 2018), of PCG-CNN (Wu et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import Ingredient, View, per_run

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Uniformity(Ingredient):
    """Binary cross-entropy of the batch's mean probabilities of the target and the uniform distribution."""

    name = "uniformity"
    weight: float = per_run(0.005)

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import distances

        each = distances.weights(view.target_logits, view.target_present)[..., None]
        mean = (each * view.target_logits.softmax(dim=-1)).sum(dim=1).clamp(1e-6, 1 - 1e-6)
        uniform = 1 / mean.shape[-1]
        return -self.weight * (uniform * mean.log() + (1 - uniform) * (-mean).log1p()).mean(dim=-1)
