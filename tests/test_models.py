"""Stacked layers: each run as if alone, the same numbers as torch's own layers, randomness that belongs to the run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from bearcat.cat import networks
from bearcat.cat.networks import SHORTEST, Network, build_network, initialise
from bearcat.fast.stacked import Randomness, dropped, uniform
from tests.reference import loop as reference


def plain_twin(student: Network, run: int, channels: int, classes: int) -> nn.ModuleDict:
    """Torch's own layers with the parameters and statistics of one run."""
    twin = reference.make_student(classes, channels)
    state = {name: value[run].clone() for name, value in student.state_dict().items()}
    assert not twin.load_state_dict(state, strict=False).unexpected_keys
    return twin


@pytest.mark.parametrize(("channels", "length"), [(1, 1024), (1, 512), (3, 100), (2, SHORTEST)])
def test_every_run_of_a_stack_computes_what_torchs_layers_compute(channels, length):
    torch.manual_seed(0)
    student = build_network("cnn", 3, channels, length, classes=5, dropout=0.0)
    initialise(student, [4, 5, 6], 0)
    windows = torch.randn(3, 8, channels, length)
    twins = [plain_twin(student, run, channels, 5) for run in range(3)]
    for batch_statistics in (True, True, False):  # training, its effect on the statistics, evaluation
        logits, features = student(windows, batch_statistics, None)
        for run, twin in enumerate(twins):
            twin.train(batch_statistics)
            expected = twin["encoder"](windows[run])
            torch.testing.assert_close(features[run], expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(logits[run], twin["head"](expected), rtol=1e-4, atol=1e-5)
    for name, value in student.named_buffers():
        for run, twin in enumerate(twins):
            torch.testing.assert_close(value[run], twin.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_a_window_drops_the_units_of_its_place_in_a_full_batch():
    values, full, smaller = torch.ones(2, 12, 64), Randomness(torch.tensor([3, 4])), Randomness(torch.tensor([3, 4]))
    full.next()
    smaller.next(5, 3)  # five windows of eight, then four of another part
    expected, found = dropped(values, 0.5, full, 0), dropped(values[:, :9], 0.5, smaller, 0)
    assert torch.equal(found, torch.cat([expected[:, :5], expected[:, 8:]], dim=1))
    assert torch.equal(dropped(values[:, :5], 0.5, smaller, 0), expected[:, :5])


def test_initial_weights_belong_to_the_run_and_are_spread_as_torchs():
    alone, stacked = build_network("cnn", 1, 1, 128, 4), build_network("cnn", 3, 1, 128, 4)
    initialise(alone, [7], 20)
    initialise(stacked, [3, 7, 9], 20)
    for name, value in alone.state_dict().items():
        assert torch.equal(value[0], stacked.state_dict()[name][1])
    assert not torch.equal(stacked.head.weight[0], stacked.head.weight[1])
    convolution, dense = nn.Conv1d(64, 128, 3), nn.Linear(512, 256)
    for layer, plain in ((alone.encoder.dense[0], dense), (alone.encoder.convolutions[3], convolution)):
        assert layer.weight.std().item() == pytest.approx(plain.weight.std().item(), rel=0.03)
        assert layer.weight.abs().max().item() == pytest.approx(plain.weight.abs().max().item(), rel=0.01)


def test_dropout_is_fair_and_independent_between_draws_layers_runs_and_positions():
    draws, drawn = Randomness(torch.tensor([1, 2, 3, 4])), []
    for _ in range(4):
        draws.next()
        drawn += [uniform(draws.now, layer, 20_000) for layer in range(3)]
    numbers = torch.cat(drawn)  # (draw × layer × run, position)
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.002)
    correlation = torch.corrcoef(numbers) - torch.eye(len(numbers), dtype=torch.float64)
    neighbours = ((numbers[:, 1:] - 0.5) * (numbers[:, :-1] - 0.5)).mean(dim=1) * 12
    assert max(correlation.abs().max(), neighbours.abs().max()) < 0.035  # five standard deviations of 1/√20000
    histogram = torch.histc(numbers.float(), 64, 0, 1) / numbers.numel() * 64
    assert (histogram - 1).abs().max() < 0.03


@pytest.mark.parametrize("length", [8, 10, 13])
def test_an_exported_graph_pools_without_an_operation_that_onnx_lacks(length, monkeypatch):
    """torch 2.11 cannot write adaptive pooling; newer ones can, so this asks for the operations themselves."""
    values = torch.randn(3, 5, 1, length)
    expected = networks._pooled(values)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    monkeypatch.setattr(networks.functional, "adaptive_max_pool2d", None)
    assert torch.equal(networks._pooled(values), expected)


@pytest.mark.parametrize(
    ("encoder", "widths"), [("linear", [22]), ("dense", [22, 256, 128]), ("dense:widths=7,5,3", [22, 7, 5, 3])]
)
def test_an_encoder_is_torchs_own_layers_run_by_run(encoder, widths):
    network = build_network(encoder, runs=3, channels=2, points=11, classes=4, dropout=0.5)
    initialise(network, [5, 6, 7], stream=20)
    windows = torch.randn(3, 9, 2, 11)
    logits, features = network(windows, batch_statistics=True)
    layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())]
    plain = nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], 4))
    for run in range(3):
        for parameter, value in zip(plain.parameters(), network.state_dict().values(), strict=True):
            parameter.data.copy_(value[run])
        torch.testing.assert_close(logits[run], plain(windows[run]), rtol=1e-4, atol=1e-5)
    assert features.shape == (3, 9, widths[-1])
