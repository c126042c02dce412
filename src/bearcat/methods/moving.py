"""Moving the source's classes to where the target has them, where the target's recordings say where that is.

Standardising each domain by itself, alignment and class confusion give the target the source's class shares: a target
that is all healthy is spread over the faults. Here the classes are moved one by one, so the shares do not matter; and
where the recordings do not tell an offset of the machine from a fault, nothing is moved and the model is the unadapted
one (docs/plant.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.errors import InputError
from bearcat.methods.ingredient import Ingredient

if TYPE_CHECKING:
    from bearcat.data.tasks import TrainingData


@dataclass(frozen=True)
class MoveClasses(Ingredient):
    """Compares hypotheses about the target's recordings (methods/hypotheses.py) and moves the source accordingly."""

    name = "moving"
    uses_target = False  # its loss: it has none
    begins = "training"
    apart: float = 0.6  # recordings nearer than this, in windows' distances from their centre, are one group
    fit: float = 1 / 3  # of the groups to the classes, from which on they are moved
    windows: int = 10  # of each group at least: the centre of fewer is not known well enough to move a class there

    def __post_init__(self) -> None:
        if self.apart < 0 or not 0 <= self.fit <= 1 or self.windows < 1:
            raise InputError(
                "moving.apart must not be negative, moving.fit must lie between 0 and 1, moving.windows be positive"
            )

    def fit_scaling(self, data: TrainingData) -> tuple[TrainingData, None]:
        """The data with the source's windows moved, and what was found."""
        from bearcat.methods.hypotheses import move_classes

        return move_classes(data, self.apart, self.fit, self.windows), None
