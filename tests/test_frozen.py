"""Frozen encoders: pretrained weights that no training moves, in the model folder and the exported graph."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bearcat.deploy.model import export_onnx, load_model
from bearcat.deploy.predictor import load_onnx
from bearcat.errors import InputError
from bearcat.estimator import AdaptedClassifier
from bearcat.methods import RECIPES
from bearcat.models import ENCODERS, Encoder, Frozen, build_network
from bearcat.models.networks import DenseEncoder, initialise
from bearcat.models.plain import SileroLayers, silero_weights
from bearcat.training.loop import Run, train
from tests.test_train import CPU, SHORT, toy

PAGE = Path(__file__).parents[1] / "docs" / "foundation-encoder.md"
installed = pytest.mark.skipif(find_spec("silero_vad") is None, reason="silero-vad is not installed")


class Backbone(nn.Module):
    """A stand-in with what pretrained networks have: normalisation with statistics, dropout, a count without axes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(channels, 6, 9, stride=2), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        return self.layers(windows).amax(dim=-1)


def pretrained(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of a stand-in, in a file."""
    generator = torch.Generator().manual_seed(5)
    state = {name: torch.rand(tensor.shape, generator=generator) for name, tensor in Backbone(1).state_dict().items()}
    save_file(state, folder / "foundation.safetensors")
    return state


@pytest.fixture
def row(tmp_path, monkeypatch):
    """The name of an encoder whose weights are in a file, which can be taken away."""
    state, path = pretrained(tmp_path), tmp_path / "foundation.safetensors"

    @dataclass(frozen=True)
    class Foundation(Encoder):
        def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:
            behind = lambda features: DenseEncoder(runs, (features, 12), dropout)  # noqa: E731
            return Frozen(Backbone(channels), runs, channels, points, partial(load_file, path), behind)

    monkeypatch.setitem(ENCODERS, "foundation", Foundation)
    return state, path


@pytest.mark.parametrize("recipe", ["source-only", "CAT*-Temperature", "AdaBN"])
def test_training_moves_what_stands_behind_and_nothing_else(row, recipe):
    state, _ = row
    recipe = replace(RECIPES[recipe], encoder="foundation", schedule=SHORT)
    trained = train([Run(recipe, toy(0), 0), Run(recipe, toy(1), 1)], CPU)
    for network in (trained.student, trained.network):
        assert not network.encoder.module.training
        for name, tensor in network.encoder.module.state_dict().items():
            for run in range(2):
                assert torch.equal(tensor[run], state[name].to(tensor.dtype)), name
        first, second = network.encoder.behind.dense[0].weight
        assert not torch.equal(first, second)
    assert not [name for name, _ in trained.student.encoder.named_parameters() if "behind" not in name]


def test_runs_of_a_stack_are_the_module_itself(row):
    state, _ = row
    network = build_network("foundation", 3, 1, 64, 2)
    initialise(network, [0, 1, 2], 20)
    alone = Backbone(1).eval()
    alone.load_state_dict(state)
    windows = torch.randn(3, 5, 1, 64, generator=torch.Generator().manual_seed(0))
    network.encoder.behind = None
    features = network.train().encoder(windows, True, None)
    for run in range(3):
        torch.testing.assert_close(features[run], alone(windows[run]))


def arrays() -> tuple[np.ndarray, np.ndarray]:
    labels = np.array(["inner", "outer"] * 12)
    random = np.random.default_rng(0)
    return np.array([np.sin((0.5 if label == "inner" else 1.5) * np.arange(300)) for label in labels]) + 0.1 * (
        random.standard_normal((24, 300))
    ), labels


@pytest.mark.parametrize("encoder", ["foundation", pytest.param("silero:widths=16", marks=installed)])
def test_the_model_folder_and_the_graph_hold_the_weights(row, encoder, tmp_path, monkeypatch):
    X, y = arrays()
    recipe = replace(RECIPES["CAT*-Temperature"], encoder=encoder)
    model = AdaptedClassifier(recipe, input="time", epochs=2, batch_size=8).fit(X, y, X_target=X)
    model.save(tmp_path / "model", rate=12_000)
    export_onnx(load_model(tmp_path / "model"), tmp_path / "model.onnx")
    row[1].unlink()  # neither the file nor the package is needed from here on
    monkeypatch.setattr("bearcat.models.plain.find_spec", lambda _: None)
    expected = model.predict_proba(X)
    windows = X[:, None].astype(np.float32)
    for loaded in (load_model(tmp_path / "model"), load_onnx(tmp_path / "model.onnx")):
        found = np.exp(loaded.outputs(windows).log_probabilities)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_weights_that_do_not_fit_or_are_missing_are_named(row, monkeypatch):
    state, path = row
    save_file({name: tensor for name, tensor in state.items() if name != "layers.0.weight"}, path)
    with pytest.raises(InputError, match=r"layers\.0\.weight"):
        initialise(build_network("foundation", 1, 1, 64, 2), [0], 20)
    monkeypatch.setattr("bearcat.models.plain.find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install"):
        initialise(build_network("silero", 1, 1, 512, 2), [0], 20)


@installed
def test_the_layers_are_those_of_the_published_detector():
    """With the weights of its graph, which is of a later training than the file, they give what its last one gives."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model = onnx.load(Path(str(find_spec("silero_vad").origin)).parent / "data" / "silero_vad_16k_op15.onnx")
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"][:5]
    (activation,) = [node for node in model.graph.node if convolutions[-1].output[0] in node.input]
    model.graph.output.append(onnx.ValueInfoProto(name=activation.output[0]))
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    chunk = np.random.default_rng(0).normal(size=(1, 576)).astype(np.float32)
    inputs = {"input": chunk, "state": np.zeros((2, 1, 128), dtype=np.float32), "sr": np.array(16_000)}
    expected = session.run([activation.output[0]], inputs)[0].reshape(128)
    layers = SileroLayers(level=1.0)
    tensors = [torch.tensor(known[name]) for node in convolutions for name in node.input[1:]]
    layers.load_state_dict(dict(zip(layers.state_dict(), tensors, strict=True)))
    with torch.no_grad():
        (found,) = layers(torch.from_numpy(chunk)[:, None])
    np.testing.assert_allclose(found[:128], np.log1p(expected), rtol=1e-3, atol=1e-4)
    assert torch.equal(found[:128], found[128:])  # of one frame, mean and maximum are the same
    assert set(layers.state_dict()) < set(silero_weights())


def test_the_page_plugs_one_in(tmp_path, monkeypatch):
    pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = dict(ENCODERS)
    try:
        code = "\n".join(
            re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        )
        names: dict[str, object] = {}
        exec(code, names)
    finally:
        ENCODERS.clear()
        ENCODERS.update(before)
