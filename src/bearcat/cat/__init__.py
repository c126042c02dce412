"""The Calibrated Adaptive Teacher: algorithm, losses, teacher, networks, calibrators, and the methods by name.

>>> windows, labels = np.random.default_rng(0).standard_normal((60, 64)), np.arange(60) % 2
>>> model = CAT("DANN", epochs=1, batch=16, progress=False).fit(windows, labels, windows + 0.1)
>>> model.predict_proba(windows).shape
(60, 2)

Names are loaded on first use, so that methods are listed without torch. Calibrators and measures can be used alone:

>>> logits, labels = 9 * np.eye(2)[[0, 0, 1, 1]], np.array([0, 0, 1, 0])
>>> calibration = Temperature().fit(Evidence(source_logits=logits, source_labels=labels))
>>> [round(float(ece(calibration.probabilities(logits), labels)), 3), bool(calibration.at_bound)]
[0.0, False]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bearcat.cat.arrays import CAT
    from bearcat.cat.calibration import Calibration, Calibrator, Evidence, accuracy, brier, ece, nll, reliability_bins
    from bearcat.cat.calibrators import CALIBRATORS, find_calibrator
    from bearcat.cat.cpcs import CPCS
    from bearcat.cat.ingredient import (
        AfterEpoch,
        Augmentation,
        BeforeTraining,
        Ingredient,
        Loss,
        Prepared,
        TargetFinding,
        View,
        choice,
    )
    from bearcat.cat.losses import Adversarial, Confusion
    from bearcat.cat.networks import ENCODERS, Encoder, Network, build_network, find_encoder
    from bearcat.cat.one_run import RunView, loss_of
    from bearcat.cat.recipes import RECIPES, Recipe, Schedule, find_recipe
    from bearcat.cat.sam import Sharpness
    from bearcat.cat.scaling import Matrix, Temperature, Vector
    from bearcat.cat.teacher import SelfTraining, Teacher

__all__ = [
    "CALIBRATORS", "CAT", "CPCS", "ENCODERS", "RECIPES", "Adversarial", "AfterEpoch", "Augmentation", "BeforeTraining",
    "Calibration", "Calibrator", "Confusion", "Encoder", "Evidence", "Ingredient", "Loss", "Matrix", "Network",
    "Prepared", "Recipe", "RunView", "Schedule", "SelfTraining", "Sharpness", "TargetFinding", "Teacher", "Temperature",
    "Vector", "View", "accuracy", "brier", "build_network", "choice", "ece", "find_calibrator", "find_encoder",
    "find_recipe", "loss_of", "nll", "reliability_bins",
]  # fmt: skip

_HOMES = {
    "CAT": "bearcat.cat.arrays",
    **dict.fromkeys(("Calibration", "Calibrator", "Evidence", "accuracy", "brier", "ece", "nll",
        "reliability_bins"), "bearcat.cat.calibration"),
    **dict.fromkeys(("CPCS",), "bearcat.cat.cpcs"),
    **dict.fromkeys(("CALIBRATORS", "find_calibrator"), "bearcat.cat.calibrators"),
    **dict.fromkeys(("AfterEpoch", "Augmentation", "BeforeTraining", "Ingredient", "Loss", "Prepared",
        "TargetFinding", "View", "choice"), "bearcat.cat.ingredient"),
    **dict.fromkeys(("Adversarial", "Confusion"), "bearcat.cat.losses"),
    **dict.fromkeys(("ENCODERS", "Encoder", "Network", "build_network", "find_encoder"), "bearcat.cat.networks"),
    **dict.fromkeys(("RunView", "loss_of"), "bearcat.cat.one_run"),
    **dict.fromkeys(("RECIPES", "Recipe", "Schedule", "find_recipe"), "bearcat.cat.recipes"),
    **dict.fromkeys(("Sharpness",), "bearcat.cat.sam"),
    **dict.fromkeys(("Matrix", "Temperature", "Vector"), "bearcat.cat.scaling"),
    **dict.fromkeys(("SelfTraining", "Teacher"), "bearcat.cat.teacher"),
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker knows the names above and no others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
