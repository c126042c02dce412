"""A loss in one file: CORAL (Sun and Saenko 2016)."""

import torch
from torch import Tensor

from bearcat.cat import RECIPES, Recipe, View, loss_of
from bearcat.cli import main


def coral(view: View) -> Tensor:
    """‖C_s − C_t‖² / 4d², the distance between the covariances of source and target features."""
    source, target = view.source_features, view.target_features
    gap = torch.cov(source.T, correction=0) - torch.cov(target.T, correction=0)
    return view.ramp * gap.square().sum() / (4 * len(gap) ** 2)


RECIPES["my-CORAL"] = Recipe((loss_of(coral, aligns=True),))
if __name__ == "__main__":
    main()
