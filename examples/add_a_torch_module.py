"""Any torch module as encoder, here two convolutions and a mean. Run this file as the command `bearcat`.

python examples/add_a_torch_module.py adapt --method-set encoder=my-network:width=32 --out network
"""

from dataclasses import dataclass

from torch import nn

from bearcat.cat import ENCODERS, Encoder
from bearcat.cli import main


@dataclass(frozen=True)
class MyNetwork(Encoder):
    width: int = 64

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        first, second = nn.Conv1d(channels, self.width, 16, stride=4), nn.Conv1d(self.width, self.width, 3)
        norm, pool = nn.BatchNorm1d(self.width), nn.AdaptiveAvgPool1d(1)
        return nn.Sequential(first, norm, nn.ReLU(), second, nn.ReLU(), nn.Dropout(dropout), pool, nn.Flatten())


ENCODERS["my-network"] = MyNetwork
if __name__ == "__main__":
    main()
