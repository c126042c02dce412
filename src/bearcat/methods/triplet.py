"""Triplet loss on source labels and target pseudo-labels, of the system of Wang et al. (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import Ingredient, View, per_run

if TYPE_CHECKING:
    from torch import Tensor

    from bearcat.methods.recipe import Schedule


@dataclass(frozen=True)
class Triplet(Ingredient):
    """Batch-hard, on the features of source windows and of target windows whose pseudo-label is used.

    Features are brought to length 1: with their own lengths the loss was lowered by shrinking them, until all features
    were 0 and nothing was learnt (LOG.md).
    """

    name = "triplet"
    weight: float = per_run(1.0)
    margin: float = 1.0

    def start(self, schedule: Schedule) -> int:
        return schedule.label_from

    def loss(self, view: View) -> Tensor:
        import torch

        from bearcat.methods import distances

        if view.pseudo_labels is None or view.selected is None:
            raise RuntimeError("the triplet loss needs pseudo-labels; put it behind self-training")
        labels = torch.cat([view.labels, view.pseudo_labels], dim=1)
        counts = torch.cat([torch.ones_like(view.labels, dtype=torch.bool), view.selected], dim=1)
        counts = counts if view.present is None else counts & view.present
        features = torch.nn.functional.normalize(view.features, dim=-1)
        return self.weight * distances.hardest_triplets(features, labels, counts, self.margin)
