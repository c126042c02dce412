"""Minimum class confusion (Jin et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import Ingredient, View, check_choice, per_run

if TYPE_CHECKING:
    from torch import Tensor

    from bearcat.methods.recipe import Schedule


@dataclass(frozen=True)
class Confusion(Ingredient):
    """Minimum class confusion on the target."""

    name = "confusion"
    weight: float = per_run(1.0)
    temperature: float = 2.0
    climbed: str = "on"  # SDAT climbs it whenever it is on; authors' code: only from T_PL on, "labels"

    def __post_init__(self) -> None:
        check_choice("confusion.climbed", self.climbed, ("on", "labels"))

    def climbed_from(self, schedule: Schedule) -> int:
        return schedule.label_from if self.climbed == "labels" else self.start(schedule)

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        shares = None if view.shares is None else view.shares[0]
        return self.weight * losses.class_confusion(view.target_logits, self.temperature, view.target_present, shares)
