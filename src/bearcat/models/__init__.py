"""Encoders and networks, for a stack of runs at once. `ENCODERS` is the table of all.

>>> network = build_network("dense:widths=32,16", runs=2, channels=1, points=64, classes=3)
>>> logits, features = network(torch.zeros(2, 5, 1, 64))
>>> logits.shape, features.shape
(torch.Size([2, 5, 3]), torch.Size([2, 5, 16]))
"""

from bearcat.models.networks import ENCODERS, Encoder, Network, build_network, find_encoder
from bearcat.models.stacked import Randomness, StackedConvolution, StackedDense, StackedNorm, dropout

__all__ = [
    "ENCODERS", "Encoder", "Network", "Randomness", "StackedConvolution", "StackedDense", "StackedNorm",
    "build_network", "dropout", "find_encoder",
]  # fmt: skip
