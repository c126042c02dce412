"""MCD: maximum classifier discrepancy (Saito et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bearcat.methods.alignment import reversal_coefficient
from bearcat.methods.ingredient import Ingredient, View, per_run

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class ClassifierDiscrepancy(Ingredient):
    """A second head learns the source too; both disagree on the target as far as they can, and the encoder undoes it.

    The original takes turns: heads, then encoder four times. Here one step does both, by a gradient reversal layer.
    """

    name = "mcd"
    aligns = True
    weight: float = per_run(1.0)  # of the reversed gradient
    slope: float = 10.0

    def ramp(self, progress: float) -> float:
        return reversal_coefficient(progress, self.slope)

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        from bearcat.models.stacked import StackedDense

        return StackedDense(runs, features, classes)

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        second: Any = view.module
        features = losses.reverse_gradient(view.target_features, self.weight * view.ramp)
        gap = (view.head(features).softmax(dim=-1) - second(features).softmax(dim=-1)).abs().mean(dim=-1)
        supervised = losses.supervised(second(view.source_features), view.labels, view.source_present)
        return supervised - losses.masked_mean(gap, view.target_present)
