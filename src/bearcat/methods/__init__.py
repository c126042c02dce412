"""What others propose and what bearcat adds: alignments, Table 1's systems, views, preparations, calibrators.

>>> Recipe((Adversarial(), Triplet(weight=0.5)), calibration="Temperature").in_epochs(40).schedule.align_from
7
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bearcat.methods.alignments import (
    ClassifierDiscrepancy,
    ConditionalAdversarial,
    CovarianceMatching,
    JointMatching,
    KernelMatching,
    TargetStatistics,
    Transport,
    Triplet,
    Uniformity,
    Wasserstein,
)
from bearcat.methods.before_training import KnownStates, Standardise
from bearcat.methods.matching import MatchClusters
from bearcat.methods.views import StrongView, WeakView

if TYPE_CHECKING:
    from bearcat.methods.target_calibration import PseudoCal, RecordingConfidence, TargetConfidence, TransCal

__all__ = [
    "ClassifierDiscrepancy", "ConditionalAdversarial", "CovarianceMatching", "JointMatching",
    "KernelMatching", "KnownStates", "MatchClusters", "PseudoCal", "RecordingConfidence", "Standardise", "StrongView",
    "TargetConfidence", "TargetStatistics", "TransCal", "Transport", "Triplet", "Uniformity", "Wasserstein",
    "WeakView",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module("bearcat.methods.target_calibration"), name)  # which loads torch


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
