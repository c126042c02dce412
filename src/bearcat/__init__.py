"""Bearing fault diagnosis under domain shift.

The names below are loaded on first use, so that `import bearcat` stays light.

>>> import numpy as np
>>> noise = np.random.default_rng(0).normal(size=48_000)
>>> bearcat.diagnose(noise, rate=12_000, rpm=1480, bearing="6205").counts
{'ok': 1, 'check': 0, 'alarm': 0}
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bearcat.adaptation.run import Adaptation
    from bearcat.api import adapt, diagnose, load
    from bearcat.diagnosis.recording import Diagnoses, Diagnosis
    from bearcat.errors import InputError
    from bearcat.estimator import CATClassifier
    from bearcat.watch.snapshot import Fleet, PointStatus
    from bearcat.watch.watching import watch

# OpenMP's threads sleep while they wait for each other, if torch is imported after this line. On a machine with other
# work two threads that spin take 2.6 times as long as one, two that sleep 1.2 times (two cores, six epochs of CAT*).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.4.0"
__all__ = [
    "Adaptation", "CATClassifier", "Diagnoses", "Diagnosis", "Fleet", "InputError", "PointStatus",
    "__version__", "adapt", "diagnose", "load", "watch",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(("adapt", "diagnose", "load"), "bearcat.api"),
    "CATClassifier": "bearcat.estimator",
    **dict.fromkeys(("Diagnoses", "Diagnosis"), "bearcat.diagnosis.recording"),
    "Adaptation": "bearcat.adaptation.run", "Fleet": "bearcat.watch.snapshot", "InputError": "bearcat.errors",
    "PointStatus": "bearcat.watch.snapshot", "watch": "bearcat.watch.watching",
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker knows the names above and no others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'bearcat' has no attribute '{name}'")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
