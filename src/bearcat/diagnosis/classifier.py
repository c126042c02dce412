"""From evidence to a state of the bearing, with a confidence: four coefficients, the same for every fault.

The score of a fault is a weighted sum of its own evidence, that of "healthy" is zero, and the probabilities are the
softmax of the scores. Inner race, outer race and ball share the coefficients, so what is learnt of one fault on one
machine holds for the others. `benchmarks/diagnose.py` makes the coefficients.

>>> Classifier.shipped().probabilities(evidence)       # of healthy, inner, outer, ball
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.evidence import FAULTS, FEATURES, Evidence
from bearcat.diagnosis.spectra import Doubles

STATES = ("healthy", *FAULTS)
COEFFICIENTS = Path(__file__).parent / "coefficients.json"
THRESHOLD = 0.6  # of confidence, below which the answer is that one cannot tell
IMPULSIVE = 4.0  # kurtosis of an envelope; noise has 2, healthy machines up to 2.9 (simulated) and 3.4 (HIT-SM)
PENALTY = 1e-3  # on squared coefficients
CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, eq=False)
class Classifier:
    """The coefficients (feature,) and between which values of what they were made."""

    coefficients: Doubles
    ranges: dict[str, Any] = field(default_factory=dict)
    threshold: float = THRESHOLD

    @staticmethod
    def shipped() -> Classifier:
        content = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
        return Classifier(np.array([content["coefficients"][name] for name in FEATURES]), content["ranges"])

    def probabilities(self, evidence: Evidence) -> Doubles:
        """(state,) of STATES."""
        scores = evidence.features() @ self.coefficients
        exponentials = np.exp(scores - scores.max())
        found: Doubles = exponentials / exponentials.sum()
        return found

    def state(self, evidence: Evidence) -> str | None:
        """The likeliest state; None where it is not clear: by the threshold, or as something strikes at no order."""
        found = self.probabilities(evidence)
        likeliest = STATES[int(found.argmax())]
        return None if found.max() < self.threshold or self.aimless(evidence) else likeliest

    def aimless(self, evidence: Evidence) -> bool:
        """Whether no fault is likely, and yet something strikes."""
        return bool(self.probabilities(evidence).argmax() == 0 and evidence.kurtosis > IMPULSIVE)


def fit(features: Doubles, states: NDArray[np.int64], weights: Doubles, penalty: float = PENALTY) -> Doubles:
    """Coefficients of largest likelihood: features (example, state, feature), states and weights (example,)."""
    from scipy.optimize import minimize

    weights = weights / weights.sum()
    truth = np.eye(features.shape[1])[states]

    def loss(coefficients: Doubles) -> tuple[float, Doubles]:
        scores = features @ coefficients
        scores = scores - scores.max(axis=1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        value = -(weights[:, None] * truth * logs).sum() + penalty / 2 * (coefficients**2).sum()
        slope = np.einsum("e,es,esf->f", weights, np.exp(logs) - truth, features) + penalty * coefficients
        return float(value), slope

    found: Doubles = minimize(loss, np.zeros(features.shape[2]), jac=True, method="L-BFGS-B").x
    return found


# How people name the states of a bearing, in words and in lower case; shorter codes may mean anything.
_NAMES = {
    "healthy": r"healthy|normal|ok|good|baseline|undamaged",
    "inner": r"inner.*|ir\d*|bpfi|ki\d+",
    "outer": r"outer.*|or\d*|bpfo|ka\d+",
    "ball": r"ball.*|roller.*|b\d{3}|bsf",
}


def state_of(label: str) -> str | None:
    """The state that a class's name stands for; None where it says nothing of healthy, inner, outer or ball."""
    words = re.split(r"[\s_@+&/,.-]+", label.strip().lower())
    found = {state for word in words for state, names in _NAMES.items() if re.fullmatch(names, word)}
    return found.pop() if len(found) == 1 else None
