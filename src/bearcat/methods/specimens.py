"""Source specimens as groups: what should hold for each bearing, so that it holds for bearings never seen.

Group DRO (Sagawa et al. 2020) lowers the loss of the worst group; IRM (Arjovsky et al. 2019) asks for a classifier that
is the best one for every group; matching makes the features of a class alike in all groups that have it, by means and
covariances (CORAL as in Gulrajani and Lopez-Paz 2021) or kernels (MMD). None of them uses the target. A group is a
specimen, or a source domain (`by=domain`); where the specimen is not known, a recording.

>>> RECIPES["dense-specimen-CORAL"].with_settings({"specimen-matching.by": "domain"})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bearcat.methods.ingredient import BeforeTraining, Deferred, Prepared, SourceLoss, View, choice, per_run
from bearcat.methods.losses import FACTORS, Alignment

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from bearcat.data.tasks import TrainingData
    from bearcat.methods import formulas
    from bearcat.models import stacked
    from bearcat.training import batches
else:
    torch, formulas = Deferred("torch"), Deferred("bearcat.methods.formulas")
    batches, stacked = Deferred("bearcat.training.batches"), Deferred("bearcat.models.stacked")


@dataclass(frozen=True)
class OfGroups(SourceLoss):
    """A loss on groups of the source's windows."""

    phase: ClassVar[str | None] = "alignment"
    by: str = choice("specimen", "domain")

    @property
    def reads_groups(self) -> str:
        return self.by


@dataclass(frozen=True)
class GroupDRO(OfGroups):
    """In place of the supervised loss: Σ q·(a group's mean cross-entropy), where q is multiplied by exp(step·loss) and
    normalised at each step.

    >>> Recipe((GroupDRO(by="domain", step=0.1),)).find(GroupDRO).reads_groups
    'domain'
    """

    name = "group-dro"
    phase = None
    supervises = True
    step: float = per_run(0.01)  # the original's

    def memory(self, groups: Mapping[str, Tensor]) -> nn.Module:
        return stacked.GroupScores(groups[self.by])

    def loss(self, view: View) -> Tensor:
        scores: Any = view.module
        each = formulas.cross_entropy(view.source_logits, view.labels)
        losses = formulas.group_means(each, view.groups[self.by], view.source_present, scores.scores.shape[1])
        with torch.no_grad():
            step = torch.as_tensor(self.step, device=losses.device).expand(len(losses))
            scores.scores += step[:, None].to(losses.dtype) * losses
            share: Tensor = scores.scores.softmax(dim=1)
        return (share * losses).sum(dim=1)


@dataclass(frozen=True)
class InvariantRisk(OfGroups):
    """IRMv1's penalty, from T_DA on. A group of one class can only ask for the right scale of its logits, so `domain`
    is the better grouping where each specimen has one class and each domain all of them.

    >>> InvariantRisk(weight=10.0).reads_groups
    'specimen'
    """

    name = "irm"
    weight: float = per_run(100.0)  # DomainBed's

    def loss(self, view: View) -> Tensor:
        groups = view.groups[self.by]
        return self.weight * formulas.invariance_penalty(view.source_logits, view.labels, groups, view.source_present)


@dataclass(frozen=True)
class SpecimenMatching(OfGroups, Alignment):
    """How far the features of a class differ between the groups that have it, the mean over pairs of groups.

    >>> RECIPES["dense-specimen-MMD"].find(SpecimenMatching).statistic
    'kernels'
    """

    name = "specimen-matching"
    statistic: str = choice("moments", "kernels")

    def loss(self, view: View) -> Tensor:
        features, present, groups = view.source_features, view.source_present, view.groups[self.by]
        alike = view.labels[:, :, None] == view.labels[:, None]
        pairs = alike & (groups[:, :, None] != groups[:, None])
        member = formulas.cell_weights(groups * view.logits.shape[-1] + view.labels, present, features.dtype)
        if self.statistic == "kernels":
            distance = formulas.between_groups(formulas.gaussian_kernels(features, present, FACTORS), member, pairs)
        else:
            distance = formulas.moments_between_groups(features, member, pairs)
        return self.weight * view.ramp * distance


@dataclass(frozen=True)
class BalanceSpecimens(BeforeTraining):
    """Windows of the source come again until every specimen of a class has as many as the class's largest, as every
    class has as many as the largest class: what a drawing in which each comes equally often sees in the mean.

    >>> Recipe((BalanceSpecimens(by="domain"),)).adapts
    False
    """

    name = "balance-specimens"
    reads_target = False
    by: str = choice("specimen", "domain")

    def prepare(self, data: TrainingData) -> Prepared:
        source, chosen = data.source_train, self._places(data)
        arrays = {
            name: array[chosen]
            for name in ("values", "labels", "recording", "domain", "specimen")
            if len(array := getattr(source, name))
        }
        return Prepared(replace(data, source_train=replace(source, **arrays)))

    def source_windows(self, data: TrainingData) -> int:
        return len(self._places(data))

    def _places(self, data: TrainingData) -> np.ndarray:
        return balanced_places(data.source_train.labels, batches.group_numbers(data.source_train, self.by))


def balanced_places(labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Places of windows, of which every group of a class has as many as any, and every class as many as any.

    A class of k groups, the largest of n windows, wants k·n; the class that wants most sets the number for all.
    """
    cells = {
        label: [np.flatnonzero((labels == label) & (groups == group)) for group in np.unique(groups[labels == label])]
        for label in np.unique(labels)
    }
    most = max(len(members) * max(map(len, members)) for members in cells.values())
    return np.concatenate(
        [np.resize(places, -(-most // len(members))) for members in cells.values() for places in members]
    )
