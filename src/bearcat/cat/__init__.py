"""The Calibrated Adaptive Teacher: algorithm, losses, teacher, networks, calibrators, and the methods by name.

>>> windows, labels = np.random.default_rng(0).standard_normal((60, 64)), np.arange(60) % 2
>>> model = CAT("DANN", epochs=1, batch=16, progress=False).fit(windows, labels, windows + 0.1)
>>> model.predict_proba(windows).shape
(60, 2)

Calibrators and measures can be used alone:

>>> logits, labels = 9 * np.eye(2)[[0, 0, 1, 1]], np.array([0, 0, 1, 0])
>>> calibration = Temperature().fit(Evidence(source_logits=logits, source_labels=labels))
>>> [round(float(ece(calibration.probabilities(logits), labels)), 3), bool(calibration.at_bound)]
[0.0, False]
"""

from typing import TYPE_CHECKING, Any

from bearcat.cat.calibration import Calibration, Calibrator, Evidence, accuracy, brier, ece, nll, reliability_bins
from bearcat.cat.ingredient import (
    AfterEpoch,
    Augmentation,
    BeforeTraining,
    Ingredient,
    Loss,
    Schedule,
    View,
    choice,
    loss_of,
)
from bearcat.cat.losses import Adversarial, Confusion, Sharpness
from bearcat.cat.networks import ENCODERS, Encoder, Network, build_network, find_encoder
from bearcat.cat.recipes import CALIBRATORS, RECIPES, Recipe, find_calibrator, find_recipe
from bearcat.cat.scaling import CPCS, Matrix, Temperature, Vector
from bearcat.cat.teacher import SelfTraining, Teacher

if TYPE_CHECKING:
    from bearcat.cat.arrays import CAT

__all__ = [
    "CALIBRATORS", "CAT", "CPCS", "ENCODERS", "RECIPES", "Adversarial", "AfterEpoch", "Augmentation", "BeforeTraining",
    "Calibration", "Calibrator", "Confusion", "Encoder", "Evidence", "Ingredient", "Loss", "Matrix", "Network",
    "Recipe", "Schedule", "SelfTraining", "Sharpness", "Teacher", "Temperature", "Vector", "View", "accuracy", "brier",
    "build_network", "choice", "ece", "find_calibrator", "find_encoder", "find_recipe", "loss_of", "nll",
    "reliability_bins",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """CAT on arrays, which training itself does not need."""
    if name != "CAT":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from bearcat.cat.arrays import CAT

    return CAT


def __dir__() -> list[str]:
    return sorted({*globals(), "CAT"})
