"""ONNX files where torch is not installed, and the examples of docs/deploy.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import venv
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

import bearcat
from bearcat.deploy.model import export_onnx
from bearcat.diagnosis.pooling import pool, tally
from tests.commands import python
from tests.test_artefact import familiar_with, made_model, raw_windows, save_model
from tests.test_export import PARITY

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model that knows what it has seen, and its file."""
    model = familiar_with(made_model(), raw_windows(made_model(), 1800))
    return model, export_onnx(model, tmp_path_factory.mktemp("exported") / "model.onnx")


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
    page = (DOCS / "deploy.md").read_text(encoding="utf-8")
    named = re.search(r"^pip install (numpy .*)$", page, flags=re.MULTILINE)[1].split()
    python = environment(tmp_path / "plant", named)
    model, path = exported
    windows = raw_windows(model)
    shutil.copy(path, tmp_path / "model.onnx")
    np.save(tmp_path / "recording.npy", windows.reshape(-1))

    code = """
import importlib.util, json, sys
from bearcat.cli import main
print(json.dumps([importlib.util.find_spec(name) for name in ("torch", "onnx", "safetensors", "sklearn")]))
for words in (["model.onnx", "recording.npy", "--rate", "12000", "--format", "json"], ["model", "x"]):
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
    (row,) = json.loads(printed)["recordings"]
    expected = pool(tally(model.outputs(windows).log_probabilities), model.pooled_temperature)
    assert np.abs(np.array(list(row["network"]["probabilities"].values())) - expected.probabilities).max() <= PARITY
    *_, first, sentence, last = result.stderr.splitlines()
    assert first in ("status 0", "status 1", "status 3")
    assert "model folder needs safetensors" in sentence
    assert last == "status 2"


def test_the_examples_of_the_documentation_run(tmp_path, exported):
    from scipy.io import wavfile

    model, path = exported
    shutil.copy(path, tmp_path / "model.onnx")
    save_model(tmp_path / "model", model)
    signal = np.random.default_rng(0).standard_normal(256 * 20 + 5).astype(np.float32)
    wavfile.write(tmp_path / "recording.wav", 12_000, signal)
    page = (DOCS / "deploy.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(examples) == 2
    diagnosis = pool(tally(model.outputs(signal[: 256 * 20].reshape(20, 1, 256)).log_probabilities))
    for example in examples:
        (tmp_path / "example.py").write_text(example, encoding="utf-8")
        name, confidence = python(tmp_path / "example.py", folder=tmp_path).split()[:2]
        assert name == model.classes[diagnosis.probabilities.argmax()]
        assert float(confidence) == pytest.approx(diagnosis.probabilities.max(), abs=1e-5)
