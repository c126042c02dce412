"""Alignment by matching moments: MK-MMD (Long et al. 2015), JMMD (Long et al. 2017) and CORAL (Sun and Saenko 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bearcat.methods.alignment import reversal_coefficient
from bearcat.methods.ingredient import Ingredient, View, check_choice, per_run

if TYPE_CHECKING:
    from torch import Tensor

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # bandwidths of the five kernels, in mean squared distances
PROBABILITY_BANDWIDTH = 1.68  # of JMMD's kernel on probabilities, the original's


@dataclass(frozen=True)
class Matching(Ingredient):
    """A distance of the domains that is added to the loss, with a weight that rises like DANN's coefficient."""

    aligns = True
    weight: float = per_run(1.0)
    slope: float = 10.0

    def ramp(self, progress: float) -> float:
        return reversal_coefficient(progress, self.slope)

    def loss(self, view: View) -> Tensor:
        return self.weight * view.ramp * self.distance(view)

    def distance(self, view: View) -> Tensor:
        """Of source and target, (run,)."""
        raise NotImplementedError(f"{type(self).__name__} has no distance")


@dataclass(frozen=True)
class KernelMatching(Matching):
    """MK-MMD: the mean discrepancy of features under five Gaussian kernels."""

    name = "mk-mmd"

    def distance(self, view: View) -> Tensor:
        from bearcat.methods import distances

        kernel = distances.gaussian_kernels(view.features, view.present, FACTORS)
        return distances.mean_discrepancy(kernel, view.size, view.present)


@dataclass(frozen=True)
class JointMatching(Matching):
    """JMMD: the same with the product of the kernels on features and a kernel on probabilities."""

    name = "jmmd"

    def distance(self, view: View) -> Tensor:
        from bearcat.methods import distances

        kernel = distances.gaussian_kernels(view.features, view.present, FACTORS)
        probabilities = view.logits.softmax(dim=-1)
        kernel = kernel * distances.gaussian_kernels(probabilities, view.present, (1.0,), PROBABILITY_BANDWIDTH)
        return distances.mean_discrepancy(kernel, view.size, view.present)


@dataclass(frozen=True)
class CovarianceMatching(Matching):
    """CORAL: ‖C_s − C_t‖² / 4d², C the covariance of d features; or of logits, as the UDTL benchmark's code does it."""

    name = "coral"
    layer: str = "features"

    def __post_init__(self) -> None:
        check_choice("coral.layer", self.layer, ("features", "logits"))

    def distance(self, view: View) -> Tensor:
        from bearcat.methods import distances

        values = view.features if self.layer == "features" else view.logits
        source = distances.covariance(values[:, : view.size], view.source_present)
        gap = source - distances.covariance(values[:, view.size :], view.target_present)
        return gap.square().sum(dim=(1, 2)) / (4 * gap.shape[1] ** 2)
