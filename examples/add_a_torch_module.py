"""Any torch module as encoder: a transformer of torch's own layers. This file is the command `bearcat` with it.

python examples/add_a_torch_module.py adapt --method-set encoder=my-transformer:width=32 --out transformer
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bearcat.cat import ENCODERS, Encoder
from bearcat.cli import main


class Transformer(nn.Module):
    def __init__(self, channels: int, points: int, patch: int, width: int, dropout: float) -> None:
        super().__init__()
        self.patches = nn.Conv1d(channels, width, patch, stride=patch)
        self.place = nn.Parameter(0.02 * torch.randn(points // patch, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2)

    def forward(self, windows: Tensor) -> Tensor:  # (batch, channel, point)
        return self.layers(self.patches(windows).mT + self.place).mean(dim=1)  # (batch, feature)


@dataclass(frozen=True)
class MyTransformer(Encoder):
    patch: int = 16
    width: int = 64

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        return Transformer(channels, points, self.patch, self.width, dropout)


ENCODERS["my-transformer"] = MyTransformer
if __name__ == "__main__":
    main()
