"""Minimum class confusion (Jin et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import Ingredient, View, per_run

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Confusion(Ingredient):
    """Minimum class confusion on the target."""

    name = "confusion"
    weight: float = per_run(1.0)
    temperature: float = 2.0

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        return self.weight * losses.class_confusion(view.target_logits, self.temperature, view.target_present)
