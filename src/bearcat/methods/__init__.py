"""What others propose and what bearcat adds: alignments, Table 1's systems, views, preparations, calibrators.

>>> Recipe((Adversarial(), Triplet(weight=0.5)), calibration="Temperature").in_epochs(40).schedule.align_from
7
"""

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
from bearcat.methods.matching import MatchClusters
from bearcat.methods.target_calibration import PseudoCal, RecordingConfidence, TargetConfidence, TransCal
from bearcat.methods.transforms import KnownStates, Standardise, StrongView, WeakView

__all__ = [
    "ClassifierDiscrepancy", "ConditionalAdversarial", "CovarianceMatching", "JointMatching", "KernelMatching",
    "KnownStates", "MatchClusters", "PseudoCal", "RecordingConfidence", "Standardise", "StrongView",
    "TargetConfidence", "TargetStatistics", "TransCal", "Transport", "Triplet", "Uniformity", "Wasserstein",
    "WeakView",
]  # fmt: skip
