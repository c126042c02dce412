"""Losses on the predictions of the target: minimum class confusion (Jin et al. 2020) and class balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import Ingredient, View, choice, per_run

if TYPE_CHECKING:
    from torch import Tensor

    from bearcat.methods.recipe import Schedule


@dataclass(frozen=True)
class Confusion(Ingredient):
    """Minimum class confusion on the target."""

    name = "confusion"
    weight: float = per_run(1.0)
    temperature: float = 2.0
    climbed: str = choice("on", "labels")  # SDAT climbs it whenever it is on; authors' code: only from T_PL on

    def climbed_from(self, schedule: Schedule) -> int:
        return schedule.label_from if self.climbed == "labels" else self.start(schedule)

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        shares = None if view.shares is None else view.shares[0]
        return self.weight * losses.class_confusion(view.target_logits, self.temperature, view.target_present, shares)


@dataclass(frozen=True)
class Uniformity(Ingredient):
    """Class balance (French et al. 2018), of PCG-CNN (Wu et al. 2020).

    Binary cross-entropy of the batch's mean probabilities of the target and the uniform distribution.
    """

    name = "uniformity"
    weight: float = per_run(0.005)

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        each = losses.weights(view.target_logits, view.target_present)[..., None]
        mean = (each * view.target_logits.softmax(dim=-1)).sum(dim=1).clamp(1e-6, 1 - 1e-6)
        uniform = 1 / mean.shape[-1]
        return -self.weight * (uniform * mean.log() + (1 - uniform) * (-mean).log1p()).mean(dim=-1)
