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
    Teaching,
    View,
    choice,
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
    SelfTraining,
    StrongView,
    TargetStatistics,
    Teacher,
    WeakView,
)

__all__ = [
    "RECIPES", "Adversarial", "BeforeTraining", "ClassifierDiscrepancy", "ConditionalAdversarial", "Confusion",
    "CovarianceMatching", "Finding", "IgnoreOrders", "Ingredient", "JointMatching", "KernelMatching", "KnownStates",
    "Loss", "MatchClusters", "Perturbation", "Prepared", "Recipe", "Schedule", "SelfTraining", "Sharpness",
    "Standardise", "StrongView", "TargetStatistics", "Teacher", "Teaching", "Transport", "Triplet", "Uniformity",
    "View", "Wasserstein", "WeakView", "choice", "find_recipe",
]  # fmt: skip
