"""The ONNX graph: the same probabilities as torch, on its own, wherever onnxruntime runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest
import torch

from bearcat.data.bearing import BEARINGS
from bearcat.data.recording import spectral_shape
from bearcat.deploy.model import export_onnx
from bearcat.deploy.opened import load_onnx
from bearcat.errors import InputError
from tests.reference.windows import prepared
from tests.test_artefact import REFUSED, USE, familiar_with, made_model, raw_windows

pytestmark = pytest.mark.usefixtures("traced_once")

PARITY = 1e-5
MADE_BY = {"recipe": "CAT", "task": "a→b", "decision": REFUSED}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """By kind of input, a model and its file, exported once. That of time knows what it has seen; that of frequency is
    one its run refused, of odd windows and with a matrix for calibration."""

    @cache
    def made(kind):
        if kind == "time":
            model = familiar_with(made_model(), raw_windows(made_model(), 1800))
        else:
            model = replace(made_model(kind, 301, "matrix", **MADE_BY), pooled_temperature=0.7)
        return model, export_onnx(model, tmp_path_factory.mktemp("exported") / "deep" / "model.onnx")

    return made


@pytest.mark.parametrize("kind", ["time", "frequency"])
def test_preparation_inside_the_graph_is_that_of_the_slow_twin(exported, kind):
    """Windows with an offset a hundred thousand times the vibration, of all sizes, constant, and of zeros."""
    model, path = exported(kind)
    windows = raw_windows(model, 12)
    windows[0] += 1e3 * np.abs(windows[0]).max()
    windows[1] *= 1e-30 / np.abs(windows[1]).max()
    windows[2] *= 1e30 / np.abs(windows[2]).max()
    windows[3], windows[4] = 7.3, 0.0
    length = model.preparation.length
    expected = [prepared(window[0], length, length, kind) for window in windows]
    expected = np.concatenate(expected)[:, None].astype(np.float32)
    with torch.no_grad():
        logits = model.network(torch.from_numpy(expected)[None])[0]
    probabilities = model.calibration.probabilities(logits)[0].numpy()
    assert np.abs(np.exp(load_onnx(path, threads=1).log_probabilities(windows)) - probabilities).max() <= PARITY


def test_one_window_or_many_at_once_or_none_are_the_same(exported):
    model, path = exported("time")
    graph, windows = load_onnx(path), raw_windows(model, 70)
    single = np.concatenate([np.exp(graph.log_probabilities(windows[at : at + 1])) for at in range(70)])
    assert np.abs(np.exp(graph.log_probabilities(windows)) - single).max() < 1e-6
    assert np.exp(graph.log_probabilities(windows[:0])).shape == (0, 3)
    found = graph.outputs(windows)
    assert found.features.shape == (70, 256)
    assert model.calibration.probabilities(found.logits) == pytest.approx(np.exp(found.log_probabilities), abs=1e-5)


def test_what_the_model_is_travels_in_the_file(exported):
    model, path = exported("frequency")
    graph = load_onnx(path)
    assert graph.classes == model.classes
    assert (graph.input, graph.preparation.length, graph.preparation.stride) == ("frequency", 301, None)
    assert (graph.rate, graph.channels, graph.pooled_temperature) == (12_000.0, 1, 0.7)
    assert graph.metadata["made_by"]["recipe"] == "CAT"
    assert graph.metadata["made_by"]["task"] == "a→b"
    assert asdict(graph.decision) == REFUSED
    assert asdict(load_onnx(exported("time")[1]).decision) == USE
    assert path.stat().st_size < 1.5e6  # the tables of a spectrum are computed on loading


def test_what_the_model_is_familiar_with_travels_in_the_file(exported):
    model, path = exported("time")
    assert path.stat().st_size < exported("frequency")[1].stat().st_size + 800_000
    graph = load_onnx(path)
    windows = raw_windows(model, 200, seed=9)
    windows[::2] = np.cumsum(windows[::2], axis=-1)
    mine, theirs = model.outputs(windows), graph.outputs(windows)
    for name in ("log_probabilities", "logits", "features"):
        assert getattr(theirs, name) == pytest.approx(getattr(mine, name), abs=1e-4)
    shapes = spectral_shape(windows)
    found = graph.familiarity.scores(theirs.features, shapes)
    assert found == pytest.approx(model.familiarity.scores(mine.features, shapes), abs=1e-3)
    assert 0 < graph.familiarity.beyond_limits(found).mean() < 1
    assert "familiarity" not in graph.metadata, "it is kept once"


def test_a_familiarity_that_does_not_fit_the_graph_is_damage(tmp_path, exported):
    import onnx

    graph = onnx.load(exported("time")[1])
    words = {field.key: field.value for field in graph.metadata_props}
    known = json.loads(words["familiarity"])
    windows, width = known["features"]["shape"]
    cut, narrow = (
        {**known["features"], "base64": known["features"]["base64"][:-8]},
        {"shape": [2 * windows, width // 2]},
    )
    for change in (
        {"features": cut}, {"features": known["features"] | narrow}, {"shapes": None}, {"spreads": known["shapes"]},
        {"neighbours": windows + 1}, {"neighbours": None}, {"rate": "x"},
    ):  # fmt: skip
        onnx.helper.set_model_props(graph, words | {"familiarity": json.dumps(known | change)})
        onnx.save(graph, tmp_path / "other.onnx")
        with pytest.raises(InputError, match="damaged metadata|a familiarity"):
            load_onnx(tmp_path / "other.onnx")


def test_bad_files_and_windows_are_one_sentence(tmp_path, exported):
    import onnx

    model, path = exported("time")
    with pytest.raises(InputError, match="must end in .onnx"):
        export_onnx(model, tmp_path / "model.bin")
    with pytest.raises(InputError, match="no such file"):
        load_onnx(tmp_path / "nothing.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(InputError, match="no ONNX file"):
        load_onnx(tmp_path / "junk.onnx")
    with pytest.raises(InputError, match=r"shape \(window, 1, 256\), not \(3, 1, 255\)"):
        load_onnx(path).outputs(np.zeros((3, 1, 255)))
    graph = onnx.load(path)
    words = {field.key: field.value for field in graph.metadata_props}
    older = words | {"preparation": words["preparation"].replace('"time"', '"octave-spectrum"')}
    for props, sentence in (
        (older, "export it again"),
        ({}, "not one of bearcat's"),
        ({"bearcat_format": "99"}, "a newer bearcat"),
        ({"bearcat_format": "2"}, "an older bearcat"),
        ({"bearcat_format": "3"}, "damaged metadata"),
    ):
        del graph.metadata_props[:]
        onnx.helper.set_model_props(graph, props)
        onnx.save(graph, tmp_path / "other.onnx")
        with pytest.raises(InputError, match=sentence):
            load_onnx(tmp_path / "other.onnx")


def test_a_graph_takes_the_values_of_an_input_that_it_does_not_hold(tmp_path):
    use = "log-spectrum,band-kurtosis,envelope-orders,fault-orders"
    model = made_model(f"physics:use={use}:last=20", 1000, None, sharp=1.0, encoder="dense:widths=64", channels=2)
    exported = load_onnx(export_onnx(model, tmp_path / "model.onnx"), threads=1)
    assert [node.name for node in exported.session.get_inputs()] == ["values"]
    windows = raw_windows(model, 5)
    for rpm, bearing in ((900.0, BEARINGS["6205"]), (1500.0, BEARINGS["6203"])):
        expected = model.outputs(windows, rpm, bearing)
        found = exported.outputs(windows, rpm, bearing)
        np.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, atol=1e-4)
        np.testing.assert_allclose(found.features, expected.features, atol=1e-4)
    for given, word in (((), "speed"), ((60000.0, BEARINGS["6205"]), "rpm"), ((900.0,), "bearing")):
        with pytest.raises(InputError, match=word):
            exported.outputs(windows, *given)
