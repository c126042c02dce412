"""ONNX files where torch is not installed, and the examples of docs/deploy.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from bearcat.deploy.model import export_onnx
from bearcat.diagnosis.pooling import pool, tally
from tests.commands import python
from tests.test_artefact import familiar_with, made_model, raw_windows, save_model
from tests.test_export import PARITY
from tests.test_serve import noise

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model that knows what it has seen, and its file."""
    model = familiar_with(made_model(), raw_windows(made_model(), 1800))
    return model, export_onnx(model, tmp_path_factory.mktemp("exported") / "model.onnx")


ELSEWHERE = """
import sys

class Without:
    def find_spec(self, name, *_):
        if name in ("torch", "onnx", "safetensors", "sklearn", "pandas", "h5py", "joblib", "matplotlib", "fastapi"):
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Without())
from bearcat.cli import main
main()
"""


def test_it_runs_where_torch_is_not_installed(tmp_path, exported):
    model, path = exported
    windows = raw_windows(model)
    np.save(tmp_path / "recording.npy", windows.reshape(-1))
    save_model(tmp_path / "model", model)
    result, refused = (
        subprocess.run(
            [sys.executable, "-c", ELSEWHERE, "predict", place, tmp_path / "recording.npy", "--rate", "12000", "--format", "json"],
            capture_output=True, text=True,
        )
        for place in (path, tmp_path / "model")
    )  # fmt: skip
    assert result.returncode in (0, 1, 3), result.stderr
    (row,) = json.loads(result.stdout)["recordings"]
    expected = pool(tally(model.outputs(windows).log_probabilities), model.pooled_temperature)
    assert np.abs(np.array(list(row["network"]["probabilities"].values())) - expected.probabilities).max() <= PARITY
    assert refused.returncode == 2
    assert "model folder needs safetensors" in refused.stderr


def test_the_examples_of_the_documentation_run(tmp_path, exported):
    model, path = exported
    shutil.copy(path, tmp_path / "model.onnx")
    save_model(tmp_path / "model", model)
    signal = noise(256 * 20 + 5)
    wavfile.write(tmp_path / "recording.wav", 12_000, signal)
    examples = re.findall(r"```python\n(.*?)```", DEPLOY.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 2
    diagnosis = pool(tally(model.outputs(signal[: 256 * 20].reshape(20, 1, 256)).log_probabilities))
    for example in examples:
        (tmp_path / "example.py").write_text(example, encoding="utf-8")
        name, confidence = python(tmp_path / "example.py", folder=tmp_path).split()[:2]
        assert name == model.classes[diagnosis.probabilities.argmax()]
        assert float(confidence) == pytest.approx(diagnosis.probabilities.max(), abs=1e-5)
