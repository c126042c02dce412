"""The losses of the paper (Section 3.4.1), of one run: L_C, L_MCC and L_DC; L_PL is in teacher.py. Then SAM's climb.

A loss reads a view of the step (ingredient.View) and returns a scalar; `objective` in algorithm.py takes them of all
runs and adds them up. SAM takes two gradients in a step: one at the weights, along which `climb` moves them uphill, and
one there, with which they are updated from where they were (`train_step`).

>>> L_C = supervised(view)
>>> before = climb(weights, gradients, radius=0.05)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bearcat.cat import networks
from bearcat.cat.ingredient import Ingredient, Loss, View, within


def supervised(view: View) -> Tensor:
    """L_C (Eq. 15): the mean cross-entropy of the source's windows."""
    return cross_entropy(view.source_logits, view.labels).mean()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log of the probability of each window's label: (batch, class), (batch,) → (batch,)."""
    return -logits.log_softmax(dim=1).gather(1, labels[:, None])[:, 0]


@dataclass(frozen=True)
class Alignment(Loss):
    """A loss that compares the domains, with a coefficient that rises from 0 at p = 0 towards 1."""

    aligns = True
    weight: float = 1.0  # of the reversed gradient, or of the distance
    slope: float = 10.0

    def ramp(self, progress: float) -> float:
        """2/(1+exp(−slope·p)) − 1, p from T_DA (0) to the end (1). The paper's formula lacks the −1, and its p rises
        "during training"; its published code is as here.
        """
        return 2 / (1 + math.exp(-self.slope * progress)) - 1


@dataclass(frozen=True)
class Adversarial(Alignment):
    """DANN: a domain classifier behind a gradient reversal layer."""

    name = "alignment"
    stream = 21

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return networks.DomainClassifier(runs, features, dropout)

    def loss(self, view: View) -> Tensor:
        """L_DC (Eq. 17)."""
        logits = view.module(reverse_gradient(view.features, self.weight * view.ramp))
        # The mean over the windows of both domains, as in the published code: half of the text's sum of two means.
        return domain(logits, view.size).mean()


def domain(logits: Tensor, size: int) -> Tensor:
    """Binary cross-entropy of the domain classifier's logits (batch,) and 1 for the `size` source windows, then 0."""
    return torch.cat([functional.softplus(-logits[:size]), functional.softplus(logits[size:])])


def reverse_gradient(values: Tensor, coefficient: Tensor) -> Tensor:
    """The values as they are; on the way back their gradient times −coefficient."""
    constant = values.detach()
    return constant - coefficient * (values - constant)


@dataclass(frozen=True)
class Confusion(Loss):
    """Minimum class confusion on the target."""

    name = "confusion"
    weight: float = 1.0
    temperature: float = within(2.0, 1e-3, 1e6)

    def loss(self, view: View) -> Tensor:
        return self.weight * class_confusion(view.target_logits, self.temperature)


def class_confusion(logits: Tensor, temperature: float) -> Tensor:
    """Minimum class confusion (Jin et al. 2020): how much mass pairs of classes share in the batch's predictions.

    A row of the matrix of shared mass Σ weight·p·p', divided by its sum, is a mean of the windows' predictions in which
    a window counts by what it gives the row's class: a softmax over windows. Mass off its diagonal is confusion. The
    direct quotient is 0/0 where a class's probability underflows in all windows of a batch; the softmax is not.
    """
    logarithms = functional.log_softmax(logits / temperature, dim=1)
    probabilities = logarithms.exp()
    with torch.no_grad():  # sure windows count more
        weight = 1 + torch.exp((probabilities * logarithms).sum(dim=1))
    share = functional.softmax(logarithms + weight.log()[:, None], dim=0)  # (batch, class), 1 over a batch
    rows = (share * probabilities).sum(dim=0)  # (class,): the diagonal
    return 1 - rows.mean()


@dataclass(frozen=True)
class Sharpness(Ingredient):
    """Sharpness-aware minimisation (SAM, Foret et al. 2021) of L_C + L_PL + L_MCC: SDAT (Rangwani et al. 2022), which
    is the paper's asterisk together with MCC (Section 3.4.1). It climbs in every step, from the first epoch on.
    """

    name = "sharpness"
    adapts = False
    radius: float = within(0.05, 0, 1e3)


@torch.no_grad()
def climb(weights: Sequence[Tensor], gradients: Sequence[Tensor], radius: float) -> list[Tensor]:
    """Moves every run's weights uphill by the radius: w + radius · g/‖g‖, the norm over all of a run's weights. Returns
    what they were.
    """
    before = [weight.detach().clone() for weight in weights]
    norms = [torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1) for gradient in gradients]
    norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    scale = torch.full_like(norm, radius) / (norm + 1e-12)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight += gradient * scale.view(-1, *[1] * (gradient.dim() - 1))
    return before
