"""Bearing fault diagnosis under domain shift.

The names below are loaded on first use, so that `import bearcat` stays light.

>>> bearcat.adapt("recordings/pump-A", "recordings/pump-B")
>>> bearcat.diagnose("monday.wav", rpm=1480, bearing="6205")
>>> bearcat.watch("plant", "plant.db")
"""

from importlib import import_module
from typing import Any

__version__ = "0.3.0"
__all__ = ["AdaptedClassifier", "CATClassifier", "__version__", "adapt", "diagnose", "watch"]

_HOMES = {
    "AdaptedClassifier": "bearcat.estimator",
    "CATClassifier": "bearcat.estimator",
    "adapt": "bearcat.api",
    "diagnose": "bearcat.api",
    "watch": "bearcat.watch.watching",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bearcat' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
