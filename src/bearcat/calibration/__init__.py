"""Calibrators for logits, and measures of calibration. `CALIBRATORS` is the table of all.

The package can be used alone, on any logits, numpy or torch, for one model or a stack of them:

>>> from bearcat.calibration import Evidence, Temperature, ece
>>> logits, labels = 9 * np.eye(2)[[0, 0, 1, 1]], np.array([0, 0, 1, 0])
>>> calibration = Temperature().fit(Evidence(source_logits=logits, source_labels=labels))
>>> [round(float(ece(calibration.probabilities(logits), labels)), 3), bool(calibration.at_bound)]
[0.0, False]
"""

from __future__ import annotations

from bearcat.calibration.evidence import Calibration, Calibrator, Evidence, accuracy, brier, ece, nll, reliability_bins
from bearcat.calibration.scaling import Matrix, Temperature, Vector
from bearcat.calibration.target import CPCS, PseudoCal, RecordingConfidence, TargetConfidence, TransCal
from bearcat.settings import from_text

__all__ = [
    "CALIBRATORS", "CPCS", "Calibration", "Calibrator", "Evidence", "Matrix", "PseudoCal",
    "RecordingConfidence", "TargetConfidence", "Temperature", "TransCal", "Vector", "accuracy", "brier", "ece",
    "find_calibrator", "nll", "reliability_bins",
]  # fmt: skip

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
