"""Standardising the points of an input: per window, by the source, or each domain by itself.

Levels of a physical input differ between speeds, loads and machines by an offset and a factor in each point. Where the
target holds the source's classes in the source's shares, standardising each domain by itself removes both, and is the
simplest adaptation there is. Where it does not (a target that is all healthy), it moves the healthy windows to where
the source has its faults: then `by="source"`, which adapts nothing, is the safe choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bearcat.errors import InputError
from bearcat.methods.ingredient import Ingredient, choice

if TYPE_CHECKING:
    from torch import nn

    from bearcat.data.recording import Floats
    from bearcat.data.tasks import TrainingData

QUARTILES = 1.349  # the distance between a normal distribution's quartiles, in deviations


@dataclass(frozen=True)
class Standardise(Ingredient):
    """Shifts and scales the points of prepared windows; the model keeps how."""

    name = "standardise"
    uses_target = False
    begins = "training"
    by: str = choice("window", "source", "domain", default="domain")
    robust: bool = False  # by median and quartiles instead of mean and deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by == "window" and self.robust:
            raise InputError("standardise.robust is for statistics over windows; leave it out with by=window")

    def fit_scaling(self, data: TrainingData) -> tuple[TrainingData, nn.Module]:
        """The model scales by the target's statistics; the source is moved so that this scales it by its own."""
        import numpy as np
        import torch

        from bearcat.models.networks import InputScaling, WindowScaling

        if self.by == "window":
            return data, WindowScaling(torch.full((1, 1), 1e-12))
        parts = data.source_train, data.source_test
        mean, deviation = self._statistics(parts[0].values if self.by == "source" else data.target_train.values)
        if self.by == "domain":
            moved = [part.values.copy() for part in parts]
            domains = [part.domain if len(part.domain) else np.zeros(len(part)) for part in parts]
            for domain in np.unique(domains[0]):
                own_mean, own_deviation = self._statistics(parts[0].values[domains[0] == domain])
                for values, of_window in zip(moved, domains, strict=True):
                    members = of_window == domain
                    values[members] = (values[members] - own_mean) / own_deviation * deviation + mean
            train, test = (replace(part, values=values) for part, values in zip(parts, moved, strict=True))
            data = replace(data, source_train=train, source_test=test)
        return data, InputScaling(torch.from_numpy(mean)[None], torch.from_numpy(1 / deviation)[None])

    def _statistics(self, values: Floats) -> tuple[Floats, Floats]:
        """Centre and spread of each point, (channel, point); a point that never changes keeps its scale."""
        import numpy as np

        if self.robust:
            low, mean, high = np.percentile(values, [25, 50, 75], axis=0)
            deviation = (high - low) / QUARTILES
        else:
            mean, deviation = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
        constant = deviation <= 1e-6 * np.abs(mean)
        return mean.astype(np.float32), np.where(constant, 1, deviation).astype(np.float32)
