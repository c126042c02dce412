"""The dense and the linear encoder: as torch's own layers compute them, alone and stacked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bearcat.errors import InputError
from bearcat.models.networks import build_network, initialise, path_of


@pytest.mark.parametrize(
    ("encoder", "widths"), [("linear", []), ("dense", [256, 128]), ("dense:widths=7,5,3", [7, 5, 3])]
)
def test_an_encoder_is_torchs_own_layers_run_by_run(encoder, widths):
    network = build_network(encoder, runs=3, channels=2, points=11, classes=4, dropout=0.5)
    initialise(network, [5, 6, 7], stream=20)
    windows = torch.randn(3, 9, 2, 11)
    logits, features = network(windows, batch_statistics=True)
    for run in range(3):
        layers: list[nn.Module] = [nn.Flatten()]
        for size, before in zip(widths, [22, *widths], strict=False):
            layers += [nn.Linear(before, size), nn.ReLU()]
        plain = nn.Sequential(*layers, nn.Linear([22, *widths][-1], 4))
        state = [tensor[run] for name, tensor in network.state_dict().items()]
        for parameter, value in zip(plain.parameters(), state, strict=True):
            parameter.data.copy_(value)
        torch.testing.assert_close(logits[run], plain(windows[run]), rtol=1e-4, atol=1e-5)
    assert features.shape == (3, 9, [22, *widths][-1])


def test_an_encoder_without_widths_is_refused():
    with pytest.raises(InputError, match="widths"):
        build_network("dense:widths=", runs=1, channels=1, points=8, classes=2)


def test_the_record_can_say_which_kernels_a_dense_encoder_runs():
    assert path_of(build_network("dense", 1, 1, 8, 2).encoder) == "plain"
