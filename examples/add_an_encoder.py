"""An encoder in one file: dense layers. This file is the command `bearcat` with one more encoder.

python examples/add_an_encoder.py adapt --method-set encoder=my-dense:widths=64,32 --out dense
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from bearcat.cat import ENCODERS, Encoder
from bearcat.cli import main
from bearcat.fast import Randomness, StackedDense, dropout


class DenseLayers(nn.Module):
    def __init__(self, runs: int, sizes: list[int], probability: float) -> None:
        super().__init__()
        self.features, self.probability = sizes[-1], probability
        self.layers = nn.ModuleList(StackedDense(runs, inputs, outputs) for inputs, outputs in pairwise(sizes))

    def forward(self, windows: Tensor, batch_statistics: bool, randomness: Randomness | None, *_: object) -> Tensor:
        values = windows.flatten(2)
        for number, layer in enumerate(self.layers):
            values = dropout(layer(values).relu(), self.probability, randomness, number)
        return values


@dataclass(frozen=True)
class Dense(Encoder):
    widths: tuple[int, ...] = (256, 128)

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        return DenseLayers(runs, [channels * points, *self.widths], dropout)


ENCODERS["my-dense"] = Dense
if __name__ == "__main__":
    main()
