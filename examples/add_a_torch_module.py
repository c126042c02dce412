"""Any torch module as encoder, here a convolution and a mean."""

from dataclasses import dataclass

from torch import nn

from bearcat.cat import ENCODERS, Encoder
from bearcat.cli import main


@dataclass(frozen=True)
class MyNetwork(Encoder):
    width: int = 64

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        convolution = nn.Conv1d(channels, self.width, kernel_size=16, stride=4)
        mean = nn.AdaptiveAvgPool1d(1)
        return nn.Sequential(
            convolution, nn.BatchNorm1d(self.width), nn.ReLU(), nn.Dropout(dropout), mean, nn.Flatten()
        )


ENCODERS["my-network"] = MyNetwork
if __name__ == "__main__":
    main()
