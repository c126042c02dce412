"""AdaBN: adaptive batch normalisation (Li et al. 2016)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.ingredient import Ingredient
from bearcat.methods.selftraining import follow

if TYPE_CHECKING:
    from bearcat.training.state import TrainingState


@dataclass(frozen=True)
class TargetStatistics(Ingredient):
    """No loss: the reported network is the student with running statistics of target windows."""

    name = "adabn"
    uses_target = False  # not in a step

    def end_epoch(self, state: TrainingState) -> None:
        """Copies the student's weights and passes the target through the copy, as many batches as an epoch has."""
        import torch

        from bearcat.training.batches import gather

        if state.teacher is None:
            state.teacher = copy.deepcopy(state.student).requires_grad_(False)
        follow(state.teacher, state.student, momentum=0.0, statistics=False)
        batches = state.batches
        count = torch.tensor(batches.target_windows, device=batches.target_train.device)[:, None]
        place = torch.arange(batches.size, device=count.device)
        with torch.no_grad():
            for step in range(batches.iterations):  # full batches: where the windows end, they begin again
                first = (state.epoch * batches.iterations + step) * batches.size
                state.teacher(gather(batches.target_train, (place + first) % count), True)
