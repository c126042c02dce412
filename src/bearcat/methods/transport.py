"""DeepJDOT: joint distribution optimal transport (Damodaran et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import View, per_run
from bearcat.methods.matching import Matching

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Transport(Matching):
    """The cost of moving source windows with their labels to target windows with their predictions.

    The plan is that of Sinkhorn's iterations, fixed in number; the original solves the problem without entropy.
    """

    name = "transport"
    features: float = per_run(0.001)  # of the squared distance of features; 0.001 is the original's for digits
    labels: float = per_run(1.0)  # of the cross-entropy of the source's label and the target's prediction
    smoothing: float = 0.05  # of the entropy, in mean costs
    rounds: int = 30

    def distance(self, view: View) -> Tensor:
        from bearcat.methods import distances

        gap = distances.squared_distances(view.source_features, view.target_features)
        surprise = -view.target_logits.log_softmax(dim=-1).mT  # (run, class, target window)
        surprise = surprise.gather(1, view.labels[..., None].expand_as(gap))
        cost = (self.features * gap.movedim(0, -1) + self.labels * surprise.movedim(0, -1)).movedim(-1, 0)
        source = distances.weights(view.source_logits, view.source_present)
        target = distances.weights(view.target_logits, view.target_present)
        plan = distances.transport_plan(cost.detach(), source, target, self.smoothing, self.rounds)
        return (plan * cost).sum(dim=(1, 2))
