"""The target's class shares while training, so that nothing gives the target the source's shares.

Alignment, class confusion and per-class thresholds assume that the target holds the source's classes in the source's
shares. With this ingredient in a recipe they use the estimated shares instead: alignment counts a source window by how
frequent its class is in the target, class confusion counts a class by its share, and a class is expected to have as
many sure labels as its share says. With equal shares all three are what they are without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import Ingredient

if TYPE_CHECKING:
    from bearcat.training.state import TrainingState

LEAST = 1e-3  # a share of the source below it counts as this


@dataclass(frozen=True)
class ClassShares(Ingredient):
    """Estimates the shares anew at the start of every epoch, by EM on the calibrated probabilities (Saerens 2002)."""

    name = "shares"

    def start_epoch(self, state: TrainingState) -> None:
        import numpy as np
        import torch

        from bearcat.trust.shares import em_shares

        batches = state.batches
        logits, _ = state.predict(state.reported, batches.target_train)
        logits = logits if state.calibration is None else state.calibration.apply(logits)
        member = torch.nn.functional.one_hot(batches.source_labels.clamp(min=0), state.classes).to(logits.dtype)
        counts = (member * batches.source_present[..., None]).sum(dim=1)
        prior = counts / counts.sum(dim=1, keepdim=True)
        arrays = (each.double().cpu().numpy() for each in (logits.softmax(dim=-1), prior))
        present = batches.target_present.cpu().numpy()
        each_run = [em_shares(own[there], shares) for own, shares, there in zip(*arrays, present, strict=True)]
        found = torch.tensor(np.stack(each_run)).to(prior)
        relative = found / prior.clamp(min=LEAST)
        if state.shares is None:  # a recorded step keeps using this memory
            state.shares = torch.stack([found, relative])
        state.shares.copy_(torch.stack([found, relative]))
        for code in range(state.classes):
            state.remember(f"share_{code}", found[:, code])
