"""The ONNX graph: the same probabilities as torch, on its own, wherever onnxruntime runs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

from bearcat.data.bearing import BEARINGS
from bearcat.data.recording import spectral_shape
from bearcat.deploy.model import export_onnx
from bearcat.deploy.opened import encoded, load_onnx, open_model
from bearcat.errors import InputError
from tests.test_artefact import REFUSED, familiar_with, made_model, raw_windows

PARITY = 1e-5


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model that knows what it has seen and was refused, with a matrix for calibration, and its file."""
    made = made_model("time", 256, "matrix", recipe="CAT", task="a→b", decision=REFUSED)
    model = replace(familiar_with(made, raw_windows(made, 1800)), pooled_temperature=0.7)
    return model, export_onnx(model, tmp_path_factory.mktemp("exported") / "deep" / "model.onnx")


def test_one_window_or_many_at_once_or_none_are_the_same_and_as_torch_has_them(exported):
    model, path = exported
    graph, windows = load_onnx(path), raw_windows(model, 70)
    found, expected = graph.outputs(windows), model.outputs(windows)
    for name in ("log_probabilities", "features"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-4)
    assert np.abs(np.exp(found.log_probabilities) - np.exp(expected.log_probabilities)).max() <= PARITY
    single = graph.outputs(windows[:1]).log_probabilities
    assert np.abs(np.exp(found.log_probabilities[:1]) - np.exp(single)).max() < 1e-6
    assert graph.outputs(windows[:0]).log_probabilities.shape == (0, 3)


def test_what_the_model_is_and_is_familiar_with_travels_in_the_file(exported):
    model, path = exported
    graph = load_onnx(path)
    assert graph.to_dict() == model.to_dict()
    assert (graph.metadata["recipe"], graph.metadata["task"]) == ("CAT", "a→b")
    windows = raw_windows(model, 200, seed=9)
    windows[::2] = np.cumsum(windows[::2], axis=-1)
    shapes = spectral_shape(windows)
    found, expected = (each.familiarity.scores(each.outputs(windows).features, shapes) for each in (graph, model))
    assert found == pytest.approx(expected, abs=1e-3)
    assert 0 < graph.familiarity.beyond_limits(found).mean() < 1


def test_bad_files_are_one_sentence(tmp_path, exported):
    model, path = exported
    with pytest.raises(InputError, match="must end in .onnx"):
        export_onnx(model, tmp_path / "model.bin")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    for name in ("nothing.onnx", "junk.onnx"):
        with pytest.raises(InputError, match=f"{name}: is no ONNX file, or a damaged one"):
            load_onnx(tmp_path / name)
    graph = onnx.load(path)
    words = {field.key: field.value for field in graph.metadata_props}
    for props, sentence in (
        (words | {"familiarity": json.dumps(encoded(model.familiarity)[:-900])}, "a damaged one"),
        (words | {"familiarity": json.dumps(encoded(replace(model.familiarity, neighbours=9999)))}, "familiarity"),
        (words | {"classes": '["healthy", "inner"]'}, r"other\.onnx: .* does not fit its classes"),
        (words | {"pooled_temperature": "Infinity"}, "impossible"), (words | {"pooled_temperature": "NaN"}, "impossible"),
        ({}, "did not write"), ({"bearcat_format": "99"}, "a newer bearcat"),
        ({"bearcat_format": "3"}, "an older bearcat"), ({"bearcat_format": "4"}, "'classes' is missing"),
    ):  # fmt: skip
        del graph.metadata_props[:]
        onnx.helper.set_model_props(graph, props)
        onnx.save(graph, tmp_path / "other.onnx")
        with pytest.raises(InputError, match=sentence):
            open_model(tmp_path / "other.onnx")
    with pytest.raises(InputError, match="this ONNX file fails"):
        load_onnx(path).run(np.zeros((1, 3, 256)))


def test_the_values_of_an_input_that_needs_the_speed_are_prepared_as_for_torch(tmp_path):
    kind = "physics:use=log-spectrum,band-kurtosis,envelope-orders:last=20"
    model = made_model(kind, 1000, None, sharp=1.0, encoder="dense:widths=64", channels=2)
    graph, windows = load_onnx(export_onnx(model, tmp_path / "model.onnx")), raw_windows(model, 5)
    for rpm, bearing in ((900.0, BEARINGS["6205"]), (1500.0, BEARINGS["6203"])):
        found, expected = (each.outputs(windows, rpm, bearing) for each in (graph, model))
        np.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, atol=1e-4)
    for given, word in (((), "speed"), ((60000.0, BEARINGS["6205"]), "rpm")):
        with pytest.raises(InputError, match=word):
            graph.outputs(windows, *given)
