"""A calibrator in one file: no surer of the target than it was right on the source. It is the command `bearcat`.

python examples/add_a_calibrator.py adapt --method CAT-MeanConfidence --out mean
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from bearcat.cat import CALIBRATORS, RECIPES, Calibration, Evidence
from bearcat.cli import main


@dataclass(frozen=True)
class MeanConfidence:
    """The temperature between 1 and `upper` at which the network is as sure of the target as it was right before."""

    upper: float = 100.0
    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_weight")

    def fit(self, evidence: Evidence) -> Calibration:
        right = evidence.source().accuracy()
        logits, weight = evidence.target_logits.double(), evidence.target_weight.double()
        low = torch.ones(len(logits), dtype=torch.float64, device=logits.device)
        high = self.upper * low
        for _ in range(40):  # confidence falls as the temperature rises
            middle = (low * high).sqrt()
            sure = (logits / middle[:, None, None]).softmax(dim=-1).amax(dim=-1)
            too_sure = (sure * weight).sum(dim=1) / weight.sum(dim=1) > right
            low, high = torch.where(too_sure, middle, low), torch.where(too_sure, high, middle)
        scale = (1 / high)[:, None].repeat(1, logits.shape[-1])
        return Calibration(scale, torch.zeros_like(scale), at_bound=low == 1)


CALIBRATORS["MeanConfidence"] = MeanConfidence
RECIPES["CAT-MeanConfidence"] = RECIPES["CAT-Temperature"].with_settings({"calibration": "MeanConfidence"})
if __name__ == "__main__":
    main()
