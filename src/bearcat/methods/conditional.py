"""CDAN: a domain classifier that also reads the predictions (Long et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bearcat.methods.alignment import reversal_coefficient
from bearcat.methods.ingredient import Ingredient, View, per_run

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class ConditionalAdversarial(Ingredient):
    """The classifier reads the outer product of probabilities and features; CDAN+E counts sure windows more."""

    name = "cdan"
    aligns = True
    weight: float = per_run(1.0)  # of the reversed gradient
    slope: float = 10.0
    entropy: bool = False  # weights 1 + exp(−entropy), normalised in each domain

    def ramp(self, progress: float) -> float:
        return reversal_coefficient(progress, self.slope)

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:
        from bearcat.models import DomainClassifier

        return DomainClassifier(runs, features * classes, dropout)

    def loss(self, view: View) -> Tensor:
        import torch

        from bearcat.methods import losses

        classifier: Any = view.module
        probabilities = view.logits.detach().softmax(dim=-1)  # the gradient goes by the features alone
        features = losses.reverse_gradient(view.features, self.weight * view.ramp)
        joint = (probabilities[..., None] * features[:, :, None]).flatten(2)  # (run, batch, class × feature)
        answers = classifier(joint, view.randomness)
        source, target = answers[:, : view.size], answers[:, view.size :]
        if not self.entropy:
            return losses.domain(source, target, view.present)
        each = torch.cat([torch.nn.functional.softplus(-source), torch.nn.functional.softplus(target)], dim=1)
        sure = 1 + torch.exp(-torch.special.entr(probabilities).sum(dim=-1))
        sure = sure if view.present is None else sure * view.present
        parts = ((sure * each)[:, part].sum(dim=1) / sure[:, part].sum(dim=1) for part in view.domains)
        return sum(parts, torch.zeros_like(each[:, 0])) / 2
