"""Any torch module as encoder: the same numbers as torch's, alone, stacked, resumed, taught, saved and exported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bearcat.cat.algorithm import Run, train
from bearcat.cat.networks import ENCODERS, Encoder, PlainModule, build_network, initialise, run_seed, select_run
from bearcat.cat.recipes import RECIPES, Recipe
from bearcat.deploy.model import export_onnx, load_model
from bearcat.deploy.opened import load_onnx
from bearcat.errors import InputError
from bearcat.fast.stacked import Randomness
from tests.test_artefact import made_model, raw_windows, save_model
from tests.test_train import CPU, SHORT, interrupted, same_weights, toy


class Residual(nn.Module):
    """A small ResNet with what real ones have: batch normalisation, dropout, weights that are frozen, shared or unused,
    a weight without axes, buffers that are saved and others that are not.
    """

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Conv1d(channels, 6, 7, stride=2)
        self.block = nn.Sequential(nn.Conv1d(6, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout))
        self.again = nn.Conv1d(6, 6, 3, padding=1)
        self.again.weight = self.block[0].weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Linear(6, 1000)
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("offset", torch.linspace(-0.1, 0.1, 6), persistent=False)

    def forward(self, windows: Tensor) -> Tensor:
        values = self.stem(windows)
        values = self.gain * values + self.again(self.block(values))
        if self.training:
            self.passes = self.passes + 1  # assigned, not changed in place
        return torch.as_tensor(self.frozen(values.amax(dim=-1)) + self.offset)


@dataclass(frozen=True)
class ResNet(Encoder):
    dropout: ClassVar[float] = 0.3

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        return Residual(channels, dropout)


class CountedPatches(nn.Module):
    """Counts its batch in a way that a graph takes for a constant."""

    def forward(self, windows: Tensor) -> Tensor:
        return torch.cat([torch.ones(1, 1).expand(len(windows), -1), windows.flatten(1)], dim=1)


@dataclass(frozen=True)
class Counted(Encoder):
    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
        return CountedPatches()


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, row in {"resnet": ResNet, "counted": Counted}.items():
        monkeypatch.setitem(ENCODERS, name, row)


def recipe_of(encoder: str, name: str = "CAT*-Temperature", **settings: Any) -> Recipe:
    schedule = replace(SHORT, epochs=5, align_from=1, label_from=2, calibrate_from=3, drops=(4,))
    return replace(RECIPES[name], schedule=schedule, encoder=encoder, **settings)


def test_it_is_the_module_itself():
    network = build_network("resnet", runs=1, channels=1, points=48, classes=3)
    initialise(network, [5], stream=20)
    windows = torch.randn(1, 9, 1, 48, generator=torch.Generator().manual_seed(0))
    before = torch.random.get_rng_state()
    _, features = network(windows)
    draws = Randomness(torch.tensor([1]))
    draws.next()
    _, noisy = network(windows, True, draws)
    _, again = network(windows, True, draws)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.testing.assert_close(noisy, again)
    assert not torch.allclose(noisy, features)
    plain, alone = ResNet().build(1, 1, 48, 0.5), select_run(network, 0, "resnet", 1, 48)
    state = {key.removeprefix("encoder.module."): value[0] for key, value in alone.state_dict().items()}
    plain.load_state_dict({key: value for key, value in state.items() if not key.startswith("head")})
    torch.testing.assert_close(alone(windows)[1][0], plain.eval()(windows[0]))
    with pytest.raises(InputError, match="'resnet' is a plain module, which trains alone"):
        build_network("resnet", runs=2, channels=1, points=48, classes=3)


def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    run, before = Run(recipe_of("resnet"), toy(1, dtype=np.float64), 1), torch.random.get_rng_state()
    same_weights(interrupted([run], 2, tmp_path / "checkpoint.safetensors")[0], train([run], CPU))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_is_frozen_stays_and_what_is_unused_does_not_disturb():
    fresh = build_network("resnet", 1, 1, 48, 3, seed=run_seed(3, 20))
    trained = train([Run(recipe_of("resnet", "DANN"), toy(), 3)], CPU).student.encoder.module
    for name, before in fresh.encoder.module.named_parameters():
        same = torch.equal(before, trained.get_parameter(name))
        assert same == name.startswith("frozen") or name.startswith("unused"), name  # those decay
    assert trained.again.weight is trained.block[0].weight


def test_it_is_saved_loaded_and_exported(tmp_path):
    model = made_model(length=64, encoder="resnet")
    windows = raw_windows(model)
    save_model(tmp_path / "model", model)
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.outputs(windows).log_probabilities, model.outputs(windows).log_probabilities)
    graph = load_onnx(export_onnx(again, tmp_path / "model.onnx"))
    for number in (1, len(windows)):
        expected = model.outputs(windows[:number]).log_probabilities
        assert (
            np.abs(graph.outputs(windows[:number]).log_probabilities - expected).max() <= 1e-4 * np.abs(expected).max()
        )


def test_a_graph_that_takes_one_number_of_windows_alone_is_not_written(tmp_path):
    with pytest.raises(InputError, match="encoder 'counted'.*number of windows"):
        export_onnx(made_model(length=64, encoder="counted"), tmp_path / "fixed.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.LSTM(48, 4, batch_first=True), "returned tuple"), (nn.Linear(7, 3), "cannot take windows"), (nn.Flatten(0), r"made \(96,\) .*for a batch of 2"),
    ],
)  # fmt: skip
def test_a_module_that_makes_no_features_is_told_what_it_made(module, named):
    with pytest.raises(InputError, match=f"encoder 'mine': its module {named}"):
        PlainModule(module, (1, 48), "mine")
