"""The losses of the paper: L_C, L_MCC and L_DC (Section 3.4); L_PL is in teacher.py.

The first axis is the run, and a loss is one number for each, (run,). Where both domains stand in one batch, the
source's windows come first.

>>> L_C = supervised(view.source_logits, view.labels)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bearcat.cat.ingredient import Loss, Tensor, View, choice, functional, networks, nn, torch

if TYPE_CHECKING:
    from bearcat.cat.recipes import Schedule


def supervised(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy: logits (run, batch, class), labels (run, batch)."""
    return cross_entropy(logits, labels).mean(dim=1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each window: logits (run, batch, class), labels (run, batch) → (run, batch)."""
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape)


@dataclass(frozen=True)
class Alignment(Loss):
    """A loss that compares the domains, with a coefficient that rises from 0 at p = 0 towards 1."""

    aligns = True
    weight: float = 1.0  # of the reversed gradient, or of the distance
    slope: float = 10.0
    # Authors' code: domain classifiers count iterations from 1, distances count epochs.
    progress: str = choice("iterations", "iterations from 1", "epochs")

    def ramp(self, progress: float) -> float:
        """2/(1+exp(−slope·p)) − 1. (The paper's formula lacks the −1; docs/method.md.)"""
        return 2 / (1 + math.exp(-self.slope * progress)) - 1

    def ramps(self, schedule: Schedule, epoch: int, iterations: int) -> list[float]:
        """As `progress` counts."""
        if self.progress == "iterations":
            return super().ramps(schedule, epoch, iterations)
        start = self.start(schedule)
        done, share = epoch - start, int(self.progress == "iterations from 1") / iterations
        return [self.ramp((done + (step + 1) * share) / (schedule.epochs - start)) for step in range(iterations)]


@dataclass(frozen=True)
class Adversarial(Alignment):
    """DANN: a domain classifier behind a gradient reversal layer.

    >>> RECIPES["DANN"].ingredients == (Adversarial(weight=1.0),)
    True
    """

    name = "alignment"
    stream = 21

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return networks.DomainClassifier(runs, features, dropout)

    def loss(self, view: View) -> Tensor:
        classifier: Any = view.module
        features = reverse_gradient(view.features, self.weight * view.ramp)
        logits = classifier(features, view.randomness)
        return domain(logits[:, : view.size], logits[:, view.size :])


def domain(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Binary cross-entropy of the domain classifier (Eq. 17), source 1, target 0, (run,).

    The mean over all windows of both domains, as in the published code: half of the text's sum of two means.
    """
    parts = functional.softplus(-source_logits), functional.softplus(target_logits)
    return torch.cat(parts, dim=1).mean(dim=1)


def reverse_gradient(values: Tensor, coefficient: Tensor) -> Tensor:
    """The values as they are; on the way back their gradient times −coefficient (run,)."""
    same = values.view_as(values)
    if same.requires_grad:
        same.register_hook(lambda gradient: -coefficient[:, None, None] * gradient)  # type: ignore[no-untyped-call]
    return same


@dataclass(frozen=True)
class Confusion(Loss):
    """Minimum class confusion on the target.

    >>> Recipe((Adversarial(), Confusion(temperature=2.5))).find(Confusion).temperature
    2.5
    """

    name = "confusion"
    weight: float = 1.0
    temperature: float = 2.0
    # SDAT climbs it whenever it is on; or from T_PL on (authors' code with a teacher).
    climbed: str = choice("on", "labels")

    def climbs(self, schedule: Schedule, epoch: int) -> bool:
        return self.climbed == "on" or epoch >= schedule.label_from

    def loss(self, view: View) -> Tensor:
        return self.weight * class_confusion(view.target_logits, self.temperature)


def class_confusion(logits: Tensor, temperature: float) -> Tensor:
    """Minimum class confusion (Jin et al. 2020): how much mass pairs of classes share in the batch's predictions.

    A row of the matrix of shared mass Σ weight·p·p', divided by its sum, is a mean of the windows' predictions in which
    a window counts by what it gives the row's class: a softmax over windows. All but its diagonal is confusion. Written
    as a quotient it is 0/0 where a sure network gives a class nothing that float32 can hold in all windows of a batch.
    """
    logarithms = functional.log_softmax(logits / temperature, dim=-1)
    probabilities = logarithms.exp()
    with torch.no_grad():  # sure windows count more
        weight = 1 + torch.exp((probabilities * logarithms).sum(dim=-1))
    share = functional.softmax(logarithms + weight.log()[..., None], dim=1)  # (run, batch, class), 1 over a batch
    rows = (share * probabilities).sum(dim=1)  # (run, class): what is no confusion
    return 1 - rows.mean(dim=1)
