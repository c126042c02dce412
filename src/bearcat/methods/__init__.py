"""Methods: recipes and the ingredients they are made of; nothing here loads torch.

>>> RECIPES["mine"] = Recipe((Adversarial(), Confusion(weight=0.5)), calibration="Temperature")
>>> RECIPES.pop("mine").in_epochs(40).schedule.align_from
7
"""

from __future__ import annotations

from bearcat.methods.before_training import IgnoreOrders, MatchClusters, Standardise
from bearcat.methods.ingredient import (
    BeforeTraining,
    Finding,
    Ingredient,
    Loss,
    Perturbation,
    Prepared,
    SourceLoss,
    Teaching,
    View,
    choice,
    per_run,
)
from bearcat.methods.known_states import KnownStates
from bearcat.methods.losses import (
    Adversarial,
    ClassifierDiscrepancy,
    ConditionalAdversarial,
    Confusion,
    CovarianceMatching,
    JointMatching,
    KernelMatching,
    Sharpness,
    Transport,
    Triplet,
    Uniformity,
    Wasserstein,
)
from bearcat.methods.recipe import RECIPES, Recipe, Schedule, find_recipe
from bearcat.methods.selftraining import (
    ClassMeans,
    Focal,
    SelfTraining,
    SmoothedLabels,
    SourceFree,
    StrongView,
    TargetStatistics,
    Teacher,
    WeakView,
)
from bearcat.methods.specimens import BalanceSpecimens, GroupDRO, InvariantRisk, SpecimenMatching

__all__ = [
    "RECIPES", "Adversarial", "BalanceSpecimens", "BeforeTraining", "ClassMeans", "ClassifierDiscrepancy",
    "ConditionalAdversarial", "Confusion", "CovarianceMatching", "Finding", "Focal", "GroupDRO", "IgnoreOrders",
    "Ingredient", "InvariantRisk", "JointMatching", "KernelMatching", "KnownStates", "Loss", "MatchClusters",
    "Perturbation", "Prepared", "Recipe", "Schedule", "SelfTraining", "Sharpness", "SmoothedLabels", "SourceFree",
    "SourceLoss", "SpecimenMatching", "Standardise", "StrongView", "TargetStatistics", "Teacher", "Teaching",
    "Transport", "Triplet", "Uniformity", "View", "Wasserstein", "WeakView", "choice", "find_recipe", "per_run",
]  # fmt: skip
