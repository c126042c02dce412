"""A loss in one file: CORAL (Sun and Saenko 2016). This file is the command `bearcat` with one more recipe.

python examples/add_an_ingredient.py adapt --recipe my-CORAL --out coral
"""

from dataclasses import dataclass

from torch import Tensor

from bearcat.cat import RECIPES, Loss, Recipe, View
from bearcat.cli import main


def covariance(features: Tensor, present: Tensor | None) -> Tensor:
    """(run, batch, feature) → (run, feature, feature), of the windows that are there."""
    weight = features.new_ones(features.shape[:2]) if present is None else present.to(features.dtype)
    weight = weight[..., None] / weight.sum(dim=1)[:, None, None]
    centred = features - (weight * features).sum(dim=1, keepdim=True)
    return (weight * centred).mT @ centred


@dataclass(frozen=True)
class Coral(Loss):
    """‖C_s − C_t‖² / 4d²: the covariances of source and target features become alike."""

    name = "coral"
    aligns = True
    weight: float = 1.0

    def loss(self, view: View) -> Tensor:
        source = covariance(view.source_features, view.source_present)
        gap = source - covariance(view.target_features, view.target_present)
        return self.weight * view.ramp * gap.square().sum(dim=(1, 2)) / (4 * gap.shape[1] ** 2)


RECIPES["my-CORAL"] = Recipe((Coral(),))
if __name__ == "__main__":
    main()
