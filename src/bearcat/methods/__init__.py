"""What others propose and what bearcat adds: alignments, Table 1's systems, views, preparations, calibrators.

>>> Recipe((Adversarial(), Triplet(weight=0.5)), calibration="Temperature").in_epochs(40).schedule.align_from
7
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from bearcat.methods.before_training import IgnoreOrders, MatchClusters, Standardise
    from bearcat.methods.known_states import KnownStates
    from bearcat.methods.target_calibration import PseudoCal, RecordingConfidence, TargetConfidence, TransCal
    from bearcat.methods.views import StrongView, WeakView

__all__ = [
    "ClassifierDiscrepancy", "ConditionalAdversarial", "CovarianceMatching", "IgnoreOrders", "JointMatching",
    "KernelMatching", "KnownStates", "MatchClusters", "PseudoCal", "RecordingConfidence", "Standardise", "StrongView",
    "TargetConfidence", "TargetStatistics", "TransCal", "Transport", "Triplet", "Uniformity", "Wasserstein",
    "WeakView",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(("ClassifierDiscrepancy", "ConditionalAdversarial", "CovarianceMatching", "JointMatching",
        "KernelMatching", "TargetStatistics", "Transport", "Triplet", "Uniformity", "Wasserstein"),
        "bearcat.methods.alignments"),
    **dict.fromkeys(("IgnoreOrders", "MatchClusters", "Standardise"), "bearcat.methods.before_training"),
    **dict.fromkeys(("KnownStates",), "bearcat.methods.known_states"),
    **dict.fromkeys(("PseudoCal", "RecordingConfidence", "TargetConfidence", "TransCal"),
        "bearcat.methods.target_calibration"),
    **dict.fromkeys(("StrongView", "WeakView"), "bearcat.methods.views"),
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker knows the names above and no others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
