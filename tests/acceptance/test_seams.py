"""Each examples/add_*.py trains, is evaluated, saved, predicts and is exported, as docs/extend.md says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.commands import ROOT, python

SMALL = "--set seconds=0.8 --set severities=4 --set faults=inner,outer --window 256 --epochs 4 --out out"
PREDICT = "machine.npy --rate 16000 --format json"
SEAMS = {
    "add_an_ingredient.py": "--method my-CORAL --input frequency",
    "add_a_calibrator.py": "--method CAT-MeanConfidence --input frequency",
    "add_an_input.py": "--method DANN --input my-log-spectrum:floor=1e-5",
    "add_a_torch_module.py": "--method DANN --input frequency --method-set encoder=my-network:width=16",
}


@pytest.mark.parametrize("name", SEAMS)
def test_one_short_file_trains_evaluates_saves_predicts_and_exports(name: str, tmp_path: Path):
    script, drawn = ROOT / "examples" / name, name == "add_an_ingredient.py"  # a page is drawn whatever the row
    python(script, "adapt", *SMALL.split(), *SEAMS[name].split(), folder=tmp_path, pictures=drawn)
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert 0 <= record["scores"]["target"]["accuracy"] <= 1
    assert (tmp_path / "out" / "report.html").exists() == drawn
    np.save(tmp_path / "machine.npy", np.random.default_rng(0).standard_normal(4096).astype(np.float32))
    python(script, "export", "out/model", "--onnx", "model.onnx", folder=tmp_path)
    answers = []
    for model in ("out/model", "model.onnx"):
        printed = python(script, "predict", model, *PREDICT.split(), folder=tmp_path, status=(0, 1, 3))
        answer, _ = json.JSONDecoder().raw_decode(printed, printed.index("{"))
        answers.append(answer["recordings"][0])
    assert answers[0]["class"] == answers[1]["class"]
    assert answers[0]["confidence"] == pytest.approx(answers[1]["confidence"], abs=1e-3)
    rows = {"add_an_input.py": "my-log-spectrum", "add_a_torch_module.py": "my-network"}
    if name in rows:  # who predicts without the script lacks the row and is told so; a graph needs no row of an encoder
        assert rows[name] in python("bearcat", "predict", "out/model", "machine.npy", folder=tmp_path, status=(2,))
        status = (2,) if "input" in name else (0, 1, 3)
        printed = python("bearcat", "predict", "model.onnx", *PREDICT.split(), folder=tmp_path, status=status)
        assert rows[name] in printed if "input" in name else '"recordings"' in printed
