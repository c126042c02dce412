"""The ONNX graph: the same probabilities as torch, on its own, wherever onnxruntime runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import venv
from dataclasses import asdict, replace
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

import bearcat
from bearcat.calibration import Evidence, Vector
from bearcat.data import Simulated, load
from bearcat.data.bearing import BEARINGS
from bearcat.data.recording import cut, spectral_shape, spectrum, standardise
from bearcat.deploy.model import export_onnx
from bearcat.deploy.predict import predict_windows
from bearcat.deploy.predictor import load_onnx
from bearcat.errors import InputError
from bearcat.trust.pooling import pool, tally
from tests.commands import python
from tests.reference.windows import prepared
from tests.test_artefact import REFUSED, USE, familiar_with, made_model, raw_windows, save_model

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


def assert_same(model, path, windows):
    exported = load_onnx(export_onnx(model, path), threads=1)
    expected = model.log_probabilities(windows)
    for graph in both_ways(exported):
        assert np.abs(graph.predict(windows) - np.exp(expected)).max() <= PARITY
        assert np.abs(graph.log_probabilities(windows) - expected).max() <= PARITY * max(np.abs(expected).max(), 1)
    return exported


def both_ways(graph):
    """As bearcat runs it, with its own input beside the network's part, and the whole of it, as others do."""
    assert graph.own_input
    return graph, replace(graph, own_input=False)


@pytest.mark.parametrize(
    ("kind", "length", "channels", "calibration"), [("time", 250, 2, None), ("frequency", 301, 1, "matrix")]
)
def test_the_graph_says_what_torch_says_of_windows_of_any_length_and_channels(
    tmp_path, kind, length, channels, calibration
):
    model = made_model(kind, length, calibration, channels=channels)
    assert_same(model, tmp_path / "model.onnx", raw_windows(model))


def test_on_simulated_windows_with_a_fitted_calibration(tmp_path):
    model, windows, labels = trained(Simulated(seconds=0.5), ["N09_M07_F10"], "time", 512)
    fitted = Vector().fit(Evidence(source_logits=model.outputs(windows).logits, source_labels=labels))
    exported = assert_same(replace(model, calibration=fitted), tmp_path / "model.onnx", windows)
    assert (exported.predict(windows).argmax(axis=1) == labels).mean() > 0.25  # far above chance


def trained(dataset, domains, kind, length):
    """A network after a few steps of training on a dataset's windows, the windows as recorded, and their labels."""
    catalogue = dataset.catalogue()
    recordings = load(catalogue, domains)
    most = 200 // len(recordings) + 1
    parts = [cut(recording, length)[:most] for recording in recordings]
    windows = np.concatenate(parts)
    names = [recording.label for recording, part in zip(recordings, parts, strict=True) for _ in part]
    labels = np.array([catalogue.classes.index(name) for name in names])
    model = made_model(kind, length, None, classes=tuple(catalogue.classes), sharp=1.0)
    values = torch.from_numpy(standardise(windows if kind == "time" else spectrum(windows)))[None]
    optimiser, drawn = torch.optim.Adam(model.network.parameters(), lr=2e-3), np.random.default_rng(0)
    for _ in range(16):
        chosen = drawn.permutation(len(labels))[:48]
        logits, _ = model.network(values[:, chosen], batch_statistics=True)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits[0], torch.from_numpy(labels[chosen])).backward()
        optimiser.step()
    with torch.no_grad():
        for _ in range(8):
            model.network(values[:, drawn.permutation(len(labels))[:48]], batch_statistics=True)
    model.network.requires_grad_(False)
    return model, windows, labels


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
    for graph in both_ways(load_onnx(path, threads=1)):
        assert np.abs(graph.predict(windows) - probabilities).max() <= PARITY


def test_one_window_or_many_at_once_or_none_are_the_same(exported):
    model, path = exported("time")
    graph, windows = load_onnx(path), raw_windows(model, 70)
    single = np.concatenate([graph.predict(windows[at : at + 1]) for at in range(70)])
    assert np.abs(graph.predict(windows) - single).max() < 1e-6
    assert graph.predict(windows[:0]).shape == (0, 3)
    features, logits = graph.run(windows, ["features", "logits"])
    assert features.shape == (70, 256)
    assert model.calibration.probabilities(logits) == pytest.approx(graph.predict(windows), abs=1e-5)


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
    assert graph.own_input
    np.testing.assert_array_equal(theirs.shapes, shapes)
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


def environment(folder: Path, packages: list[str]) -> Path:
    """A new Python environment that holds these packages, what they need, and bearcat; returns its interpreter.

    Packages are links to those installed here, so that nothing is downloaded; of what is not linked there is nothing.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    inside = next((folder / "lib").glob("python*/site-packages"))
    wanted, done = list(packages), set()
    while wanted:
        requirement = Requirement(wanted.pop())
        if requirement.name in done or not (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            continue
        done.add(requirement.name)
        installed = metadata.distribution(requirement.name)
        wanted += installed.requires or []
        for top in {path.parts[0] for path in installed.files} - {"..", "__pycache__"}:
            if not (inside / top).exists():
                (inside / top).symlink_to(installed.locate_file(top))
    (inside / "bearcat.pth").write_text(str(Path(bearcat.__file__).parents[1]))
    return folder / "bin" / "python"


def test_it_runs_where_torch_is_not_installed(tmp_path, exported):
    """In an environment of the packages that docs/deploy.md names for such a machine, and of no other."""
    page = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text(encoding="utf-8")
    named = re.search(r"^pip install (numpy .*)$", page, flags=re.MULTILINE)[1].split()
    python = environment(tmp_path / "plant", named)
    model, path = exported("time")
    windows = raw_windows(model)
    shutil.copy(path, tmp_path / "model.onnx")
    np.save(tmp_path / "recording.npy", windows.reshape(-1))

    code = """
import importlib.util, json, sys
from bearcat.cli import main
print(json.dumps([importlib.util.find_spec(name) for name in ("torch", "onnx", "safetensors", "sklearn")]))
for words in (["model.onnx", "recording.npy", "--rate", "12000", "--by", "window", "--format", "json"], ["model", "x"]):
    sys.argv = ["bearcat", "predict", *words]
    try:
        main()
    except SystemExit as stop:
        print(f"status {stop.code}", file=sys.stderr)
"""
    result = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    modules, printed = result.stdout.split("\n", 1)
    assert json.loads(modules) == [None] * 4
    rows, expected = json.loads(printed)["windows"], predict_windows(model, windows)
    assert [row["familiar"] for row in rows] == (~expected.unfamiliar).tolist()
    found = np.array([row["confidence"] for row in rows])
    assert np.abs(found - np.exp(expected.log_probabilities.max(axis=1))).max() <= PARITY
    *_, first, sentence, last = result.stderr.splitlines()
    assert first in ("status 0", "status 1", "status 3")
    assert "model folder needs safetensors" in sentence
    assert last == "status 2"


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
        load_onnx(path).predict(np.zeros((3, 1, 255)))
    graph = onnx.load(path)
    for props, sentence in (
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


def test_the_examples_of_the_documentation_run(tmp_path, exported):
    from scipy.io import wavfile

    model, path = exported("time")
    shutil.copy(path, tmp_path / "model.onnx")
    save_model(tmp_path / "model", model)
    signal = np.random.default_rng(0).standard_normal(256 * 20 + 5).astype(np.float32)
    wavfile.write(tmp_path / "recording.wav", 12_000, signal)
    page = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(examples) == 2
    diagnosis = pool(tally(model.log_probabilities(signal[: 256 * 20].reshape(20, 1, 256))))
    for example in examples:
        (tmp_path / "example.py").write_text(example, encoding="utf-8")
        name, confidence = python(tmp_path / "example.py", folder=tmp_path).split()[:2]
        assert name == model.classes[diagnosis.index]
        assert float(confidence) == pytest.approx(diagnosis.confidence, abs=1e-5)


def test_a_graph_takes_the_speed_and_the_orders_that_its_input_needs(tmp_path):
    use = "log-spectrum,band-kurtosis,envelope-orders,fault-orders"
    model = made_model(f"physics:use={use}:last=20", 1000, None, sharp=1.0, encoder="dense:widths=64")
    exported = load_onnx(export_onnx(model, tmp_path / "model.onnx"), threads=1)
    assert list(exported.graph.inputs) == ["windows", "rpm", "orders"]
    windows = raw_windows(model, 5)
    for rpm, bearing in ((900.0, BEARINGS["6205"]), (1500.0, BEARINGS["6203"])):
        expected = model.outputs(windows, rpm, bearing)
        for graph, digits in zip(both_ways(exported), (1e-5, 5e-3), strict=True):
            found = graph.outputs(windows, rpm, bearing)
            np.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, atol=digits)
            assert np.median(abs(found.features - expected.features)) < 1e-3
    for given, word in (((), "speed"), ((60000.0, BEARINGS["6205"]), "rpm"), ((900.0,), "bearing")):
        with pytest.raises(InputError, match=word):
            exported.predict(windows, *given)


def test_an_input_of_another_version_or_of_nobody_here_is_left_to_the_graph(tmp_path, exported):
    import onnx

    model, path = exported("time")
    changed = onnx.load(path)
    (version,) = [each for each in changed.metadata_props if each.key == "input_version"]
    version.value = "77"
    onnx.save(changed, tmp_path / "other.onnx")
    other, windows = load_onnx(tmp_path / "other.onnx", threads=1), raw_windows(model, 5)
    assert not other.own_input
    assert np.abs(other.predict(windows) - load_onnx(path, threads=1).predict(windows)).max() <= PARITY
