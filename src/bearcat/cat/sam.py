"""Sharpness-aware minimisation (SAM, Foret et al. 2021), as SDAT asks for it (Section 3.4.1): the paper's asterisk.

A step takes two gradients: one at the weights, along which `climb` moves them uphill, and one there, with which they
are updated from where they were (train_step in algorithm.py).

>>> before = climb(weights, gradients, radius=0.05)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bearcat.cat.ingredient import Ingredient


@dataclass(frozen=True)
class Sharpness(Ingredient):
    """Sharpness-aware minimisation of L_C + L_PL + L_MCC: SDAT (Rangwani et al. 2022), the paper's asterisk beside MCC.

    >>> RECIPES["DANN*"].find(Sharpness).radius
    0.05
    """

    name = "sharpness"
    adapts = False
    radius: float = 0.05


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
