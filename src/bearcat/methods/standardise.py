"""Standardising the points of an input: per window, by the source, or each domain by itself.

Levels of a physical input differ between speeds, loads and machines by an offset and a factor in each point. Where the
target holds the source's classes in the source's shares, standardising each domain by itself removes both, and is the
simplest adaptation there is. Where it does not (a target that is all healthy), it moves the healthy windows to where
the source has its faults: then `by="source"`, which adapts nothing, is the safe choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bearcat.errors import InputError
from bearcat.methods.ingredient import Ingredient, check_choice

if TYPE_CHECKING:
    from torch import nn

    from bearcat.data.recording import Floats
    from bearcat.data.tasks import Labelled, TrainingData
    from bearcat.methods.recipe import Schedule

QUARTILES = 1.349  # the distance between a normal distribution's quartiles, in deviations


@dataclass(frozen=True)
class Standardise(Ingredient):
    """Shifts and scales the points of prepared windows; the model keeps how."""

    name = "standardise"
    uses_target = False
    by: str = "domain"  # or "source", or "window"
    robust: bool = False  # by median and quartiles instead of mean and deviation

    def __post_init__(self) -> None:
        check_choice("standardise.by", self.by, ("window", "source", "domain"))
        if self.by == "window" and self.robust:
            raise InputError("standardise.robust is for statistics over windows; leave it out with by=window")

    def start(self, schedule: Schedule) -> int:  # noqa: ARG002
        return 0

    def fit_scaling(self, data: TrainingData) -> tuple[TrainingData, nn.Module]:
        """The model scales by the target's statistics; the source is moved so that this scales it by its own."""
        import numpy as np
        import torch

        from bearcat.models.networks import InputScaling, WindowScaling

        if self.by == "window":
            return data, WindowScaling(torch.full((1, 1), 1e-12))
        if self.by == "source":
            mean, deviation = self._statistics(data.source_train.values)
        else:
            mean, deviation = self._statistics(data.target_train.values)
            domains = np.unique(data.source_train.domain) if len(data.source_train.domain) else [None]
            for domain in domains:
                own = self._statistics(data.source_train.values[_members(data.source_train, domain)])
                train, test = (
                    _moved(part, domain, own, (mean, deviation)) for part in (data.source_train, data.source_test)
                )
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


def _members(part: Labelled, domain: int | None) -> Any:
    """Which windows are of this domain; None: all."""
    return slice(None) if domain is None else part.domain == domain


def _moved(part: Labelled, domain: int | None, own: tuple[Floats, Floats], wanted: tuple[Floats, Floats]) -> Labelled:
    """The windows of one domain, with these statistics instead of their own."""
    values, members = part.values.copy(), _members(part, domain)
    values[members] = (values[members] - own[0]) / own[1] * wanted[1] + wanted[0]
    return replace(part, values=values)
