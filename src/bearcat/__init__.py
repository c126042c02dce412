"""Bearing fault diagnosis under domain shift.

The names below are loaded on first use, so that `import bearcat` stays light.

>>> from bearcat import CATClassifier
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"
__all__ = ["AdaptedClassifier", "CATClassifier", "__version__", "diagnose"]

_HOMES = {
    "AdaptedClassifier": "bearcat.estimator",
    "CATClassifier": "bearcat.estimator",
    "diagnose": "bearcat.deploy.diagnose",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bearcat' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
