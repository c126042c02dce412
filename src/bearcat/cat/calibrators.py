"""All calibrators by name: the paper's, and those that look at the target (methods/target_calibration.py)."""

from __future__ import annotations

from bearcat.cat.calibration import Calibrator
from bearcat.cat.cpcs import CPCS
from bearcat.cat.scaling import Matrix, Temperature, Vector
from bearcat.methods.target_calibration import PseudoCal, RecordingConfidence, TargetConfidence, TransCal
from bearcat.settings import from_text

CALIBRATORS: dict[str, type[Calibrator]] = {
    "Temperature": Temperature, "Vector": Vector, "Matrix": Matrix, "CPCS": CPCS,
    "TransCal": TransCal, "TargetConfidence": TargetConfidence, "PseudoCal": PseudoCal,
    "RecordingConfidence": RecordingConfidence,
}  # fmt: skip
"""All calibrators by name; a row more is a calibrator more.

>>> [name for name, kind in CALIBRATORS.items() if not kind.needs]
['Temperature', 'Vector', 'Matrix']
"""


def find_calibrator(text: str) -> Calibrator:
    """The calibrator that `NAME` or `NAME:SETTING=VALUE` describes.

    >>> find_calibrator("Temperature:bounds=0.5,100").bounds
    (0.5, 100.0)
    """
    return from_text(text, CALIBRATORS, "calibrator")
