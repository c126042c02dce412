"""The model folder: what is saved comes back, what is damaged is refused in one sentence, nothing is executed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bearcat.cat import Calibration
from bearcat.cat.networks import InputScaling, build_network, initialise
from bearcat.data import Preparation
from bearcat.data.inputs import find_input
from bearcat.data.recording import spectral_shape
from bearcat.deploy.model import Model, load_model, run_network, save_model
from bearcat.deploy.opened import open_model
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.pooling import fit_familiarity
from bearcat.errors import InputError

CLASSES = ("healthy", "inner", "outer")
USE = Decision("use", 0.97, (0.9, 1.0))
REFUSED = Decision("do not use", 0.4, (0.2, 0.6), ("training broke down",))


def calibration_of(kind: str | None, classes: int, seed: int = 0) -> Calibration | None:
    """A fitted map of each form that calibrators make."""
    drawn, made = torch.Generator().manual_seed(seed), Calibration.identity(1, classes)
    if kind is None:
        return None
    if kind == "temperature":
        return replace(made, scale=made.scale / 2.5)
    scale = torch.rand(1, classes, generator=drawn).double() + 0.5
    bias = torch.randn(1, classes, generator=drawn).double()
    if kind == "vector":
        return replace(made, scale=scale, bias=bias)
    matrix = torch.eye(classes).double() + 0.3 * torch.randn(1, classes, classes, generator=drawn).double()
    return replace(made, matrix=matrix, bias=bias)


def made_model(
    kind: str = "time", length: int = 256, calibration: str | None = "temperature", channels: int = 1,
    classes: tuple[str, ...] = CLASSES, seed: int = 0, rate: float | None = 12_000.0, sharp: float = 8.0,
    encoder: str = "cnn", **known,
) -> Model:  # fmt: skip
    """An untrained network that has seen a batch, with a head sharp enough for its opinions to differ."""
    preparation = Preparation(input=kind, length=length)
    network = build_network(encoder, 1, channels, preparation.points, len(classes))
    initialise(network, [seed], 0)
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _ in range(20):
            network(torch.randn(1, 32, channels, preparation.points, generator=drawn), batch_statistics=True)
        network.head.weight.mul_(sharp)
    fitted = calibration_of(calibration, len(classes), seed)
    known = {"rpm": None, "channel": None, "bearing": None, "decision": USE} | known
    card = {name: known.pop(name) for name in ("recipe", "task") if name in known}
    return Model(
        classes=classes, channels=channels, preparation=preparation, rate=rate, pooled_temperature=1.0, metadata=card,
        network=network, calibration=fitted, encoder=encoder, **known,
    )  # fmt: skip


def raw_windows(model: Model, count: int = 40, seed: int = 3) -> np.ndarray:
    drawn = np.random.default_rng(seed)
    shape = (count, model.channels, model.preparation.length)
    return (drawn.standard_normal(shape) * 10 ** drawn.uniform(-3, 3, (count, 1, 1)) + 0.5).astype(np.float32)


def familiar_with(model: Model, windows: np.ndarray) -> Model:
    """The model, familiar with such windows: the first two thirds as in training, the others held out."""
    features, shapes, place = model.outputs(windows).features, spectral_shape(windows), 2 * len(windows) // 3
    recording = np.arange(len(windows) - place) // 20
    known = fit_familiarity(
        features[:place], shapes[:place], np.zeros(place), features[place:], shapes[place:], recording
    )
    return replace(model, familiarity=known)


@pytest.mark.parametrize("calibration", [None, "temperature", "vector", "matrix"])
def test_a_saved_model_comes_back_and_predicts_the_same(tmp_path, calibration):
    model = replace(made_model("frequency", calibration=calibration), pooled_temperature=0.4)
    save_model(tmp_path / "model", model)
    again = load_model(tmp_path / "model")
    windows = raw_windows(model)
    assert np.array_equal(again.outputs(windows).log_probabilities, model.outputs(windows).log_probabilities)
    assert again.to_dict() == model.to_dict()
    assert again.familiarity is None
    save_model(tmp_path / "copy", again)
    assert (tmp_path / "copy" / "model.json").read_text() == (tmp_path / "model" / "model.json").read_text()


def test_what_a_model_is_familiar_with_is_saved_in_few_bytes_and_comes_back(tmp_path):
    plain = made_model()
    model = familiar_with(plain, raw_windows(plain, 1800))
    save_model(tmp_path / "plain", plain)
    save_model(tmp_path / "model", model)
    windows = raw_windows(plain, 300, seed=8)
    windows[::2] += np.cumsum(windows[::2], axis=-1)
    features, shapes = model.outputs(windows).features, spectral_shape(windows)
    expected = model.familiarity.unfamiliar(features, shapes)
    assert 0 < expected.mean() < 1
    assert np.array_equal(load_model(tmp_path / "model").familiarity.unfamiliar(features, shapes), expected)
    plain_size, size = ((tmp_path / name / "weights.safetensors").stat().st_size for name in ("plain", "model"))
    assert size - plain_size < 600_000, "1024 windows of 256 + 32 numbers at two bytes, however many there were"


def test_a_folder_that_was_changed_or_is_none_is_refused(tmp_path):
    folder, other = tmp_path / "model", tmp_path / "other"
    save_model(folder, made_model())
    save_model(other, made_model(seed=1))
    metadata, weights = json.loads((folder / "model.json").read_text()), folder / "weights.safetensors"

    def refused(sentence: str, place: str = "model", **changed: object) -> None:
        (folder / "model.json").write_text(json.dumps(metadata | changed))
        with pytest.raises(InputError, match=sentence):
            load_model(tmp_path / place)

    refused("model.json was changed", classes=["inner", "healthy", "outer"])
    refused("a newer bearcat", format=99)
    refused("an older bearcat", format=1)
    weights.write_bytes((other / "weights.safetensors").read_bytes())
    refused("weights.safetensors does not match")
    weights.unlink()
    refused("damaged model folder")
    for place in (".", "nothing", "other/model.json"):
        refused("is no model folder", place)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"classes": ("healthy", "inner")}, "its network does not fit its classes"),
        ({"pooled_temperature": 0.0}, "a number is impossible"),
        ({"channels": 2}, "several channels"),
    ],
)
@pytest.mark.parametrize("encoder", ["cnn", "linear"])
def test_a_model_that_cannot_answer_is_refused_when_it_is_opened(tmp_path, encoder, changed, sentence):
    model = made_model(encoder=encoder, channels=changed.get("channels", 1))
    save_model(tmp_path / "model", replace(model, **changed))
    with pytest.raises(InputError, match=sentence) as raised:
        open_model(tmp_path / "model")
    assert str(raised.value).startswith(f"{tmp_path / 'model'}: ")


@pytest.mark.parametrize("calibration", [None, "temperature", "vector", "matrix"])
@pytest.mark.parametrize("encoder", ["dense:widths=24,16", "linear"])
def test_numpy_runs_dense_layers_as_torch_does(tmp_path, encoder, calibration):
    kind = "physics:use=band-kurtosis"
    made = made_model(kind, 301, calibration, encoder=encoder)
    mean = torch.randn(1, 1, made.preparation.points)
    made.network.scaling = InputScaling(mean, mean.abs() + 0.5)
    save_model(tmp_path, made)
    opened, windows = open_model(tmp_path), raw_windows(made)
    assert opened.to_dict() == made.to_dict()
    values = find_input(kind).transform(windows, made.rate)
    outputs, expected = opened.outputs(windows), run_network(made.network, made.calibration, values)
    scale = max(1.0, float(np.abs(expected.log_probabilities).max()))
    for name in ("log_probabilities", "features"):
        np.testing.assert_allclose(getattr(outputs, name), getattr(expected, name), atol=1e-5 * scale)
    assert opened.outputs(windows[:0]).log_probabilities.shape == (0, 3)
