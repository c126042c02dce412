"""What is done to the windows before training: standardising them, and shifting classes to the target's clusters.

Levels of a physical input differ between speeds, loads and machines by an offset and a factor in each point. Where the
target holds the source's classes in the source's shares, standardising each domain by itself removes both, and is the
simplest adaptation there is. Where it does not (a target that is all healthy), it shifts the healthy windows to where
the source has its faults: then `by="source"`, which adapts nothing, is the safe choice. Matching clusters shifts the
classes one by one, so the shares do not matter; and where the recordings cannot distinguish a machine change from a
fault, nothing is shifted and the model is the unadapted one (docs/plant.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bearcat.errors import InputError
from bearcat.methods.ingredient import BeforeTraining, Prepared, choice

if TYPE_CHECKING:
    from bearcat.data.recording import Floats
    from bearcat.data.tasks import TrainingData

QUARTILES = 1.349  # the distance between a normal distribution's quartiles, in deviations


@dataclass(frozen=True)
class Standardise(BeforeTraining):
    """Shifts and scales the points of prepared windows; the model keeps how."""

    name = "standardise"
    by: str = choice("window", "source", "domain", default="domain")
    robust: bool = False  # by median and quartiles instead of mean and deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by == "window" and self.robust:
            raise InputError("standardise.robust is for statistics over windows; leave it out with by=window")

    @property
    def adapts(self) -> bool:
        return self.by == "domain"

    def prepare(self, data: TrainingData) -> Prepared:
        """The model scales by the target's statistics; the source is shifted so that this scales it by its own."""
        import numpy as np
        import torch

        from bearcat.models.networks import InputScaling, WindowScaling

        if self.by == "window":
            return Prepared(data, WindowScaling(torch.full((1, 1), 1e-12)))
        parts = data.source_train, data.source_test
        mean, deviation = self._statistics(parts[0].values if self.by == "source" else data.target_train.values)
        if self.by == "domain":
            shifted = [part.values.copy() for part in parts]
            domains = [part.domain if len(part.domain) else np.zeros(len(part)) for part in parts]
            for domain in np.unique(domains[0]):
                own_mean, own_deviation = self._statistics(parts[0].values[domains[0] == domain])
                for values, of_window in zip(shifted, domains, strict=True):
                    members = of_window == domain
                    values[members] = (values[members] - own_mean) / own_deviation * deviation + mean
            train, test = (replace(part, values=values) for part, values in zip(parts, shifted, strict=True))
            data = replace(data, source_train=train, source_test=test)
        return Prepared(data, InputScaling(torch.from_numpy(mean)[None], torch.from_numpy(1 / deviation)[None]))

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


@dataclass(frozen=True)
class MatchClusters(BeforeTraining):
    """Matches clusters of the target's recordings with the source's classes, and shifts each class to its cluster.

    Where the matching is not clear, nothing is shifted (methods/matching.py).
    """

    name = "matching"
    apart: float = 0.6  # recordings nearer than this, in windows' distances from their centre, are one cluster
    fit: float = 1 / 3  # of the clusters to the classes, from which on they are matched
    windows: int = 10  # of each cluster at least: the centre of fewer is not known well enough to shift a class there

    def __post_init__(self) -> None:
        if self.apart < 0 or not 0 <= self.fit <= 1 or self.windows < 1:
            raise InputError(
                "matching.apart must not be negative, matching.fit between 0 and 1, matching.windows positive"
            )

    def prepare(self, data: TrainingData) -> Prepared:
        """The data with the source's windows shifted, and what was found."""
        from bearcat.methods.matching import match_clusters

        data, finding = match_clusters(data, self.apart, self.fit, self.windows)
        return Prepared(data, finding=finding)
