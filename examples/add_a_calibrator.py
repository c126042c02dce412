"""A calibrator in one file: mean confidence on the target equals accuracy on the source."""

from dataclasses import dataclass

from bearcat.cat import CALIBRATORS, RECIPES, Calibration, Evidence
from bearcat.cli import main
from bearcat.methods.target_calibration import matching_temperature


@dataclass(frozen=True)
class MeanConfidence:
    needs = ("target_logits",)  # of Evidence, beyond logits and labels of the source

    def fit(self, evidence: Evidence) -> Calibration:
        accuracy, target = evidence.source().accuracy(), evidence.target()
        temperature, _ = matching_temperature(target, accuracy[:, None])
        scale = (1 / temperature).repeat(1, target.scores.shape[-1])
        return Calibration(scale, bias=0 * scale)


CALIBRATORS["MeanConfidence"] = MeanConfidence
RECIPES["CAT-MeanConfidence"] = RECIPES["CAT-Temperature"].with_settings({"calibration": "MeanConfidence"})
if __name__ == "__main__":
    main()
