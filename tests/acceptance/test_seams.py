"""Each examples/add_*.py trains, is evaluated, saved, predicts and is exported, as docs/extend.md says."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bearcat.cat import CALIBRATORS
from bearcat.cat.networks import ENCODERS
from bearcat.cat.recipes import RECIPES
from bearcat.cli import main
from bearcat.data.inputs import INPUTS

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = (
    "--set", "seconds=0.8", "--set", "severities=4", "--set", "faults=inner,outer", "--window", "256", "--epochs", "4",
)  # fmt: skip
SEAMS = {
    "add_an_ingredient.py": ("--method", "my-CORAL", "--input", "frequency"),
    "add_a_calibrator.py": ("--method", "CAT-MeanConfidence", "--input", "frequency"),
    "add_an_input.py": ("--method", "DANN", "--input", "my-log-spectrum:bands=40"),
    "add_a_torch_module.py": (
        "--method",
        "DANN",
        "--input",
        "frequency",
        "--method-set",
        "encoder=my-network:width=16",
    ),
}


TABLES = (RECIPES, CALIBRATORS, INPUTS, ENCODERS)


@pytest.fixture
def tables() -> Iterator[Callable[[], None]]:
    """Takes the rows that an example added out of their tables, when called and when the test ends."""
    before = [dict(table) for table in TABLES]

    def put_back() -> None:
        for table, rows in zip(TABLES, before, strict=True):
            table.clear()
            table.update(rows)

    yield put_back
    put_back()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """What `python SCRIPT WORDS` prints, or `bearcat WORDS`; in this process, so that torch is not imported again."""
    monkeypatch.chdir(tmp_path)

    def call(script: str, *words: str, status: tuple[int, ...] = (0,)) -> str:
        monkeypatch.setattr(sys, "argv", [script, *words])
        with pytest.raises(SystemExit) as stop:
            main() if script == "bearcat" else runpy.run_path(script, run_name="__main__")
        printed = "".join(reversed(capsys.readouterr()))  # notes, then what was asked for
        assert (stop.value.code or 0) in status, printed
        return printed

    return call


@pytest.mark.parametrize("name", SEAMS)
def test_one_short_file_trains_evaluates_saves_predicts_and_exports(name, command, tables, tmp_path, monkeypatch):
    script, drawn = EXAMPLES / name, name == "add_an_ingredient.py"
    if not drawn:  # the page is drawn from the record, whatever the row
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert len(script.read_text().splitlines()) <= 40
    command(str(script), "adapt", *SMALL, *SEAMS[name], "--out", "out")
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert 0 <= record["scores"]["target"]["accuracy"] <= 1
    assert (tmp_path / "out" / "report.html").exists() == drawn
    np.save(tmp_path / "machine.npy", np.random.default_rng(0).standard_normal(4096).astype(np.float32))
    predict = ("--rate", "16000", "--format", "json")
    answers = []
    command(str(script), "export", "out/model", "--onnx", "model.onnx")
    for model in ("out/model", "model.onnx"):
        printed = command(str(script), "predict", model, "machine.npy", *predict, status=(0, 1, 3))
        answers.append(json.loads(printed[printed.index("{") :])["recordings"][0])
    assert answers[0]["class"] == answers[1]["class"]
    assert answers[0]["confidence"] == pytest.approx(answers[1]["confidence"], abs=1e-3)
    tables()
    rows = {"add_an_input.py": "my-log-spectrum", "add_a_torch_module.py": "my-network"}
    if name in rows:  # whoever predicts needs the row, and hears so; a graph needs no row of an encoder
        assert rows[name] in command("bearcat", "predict", "out/model", "machine.npy", status=(2,))
        plain = command("bearcat", "predict", "model.onnx", "machine.npy", *predict, status=(0, 1, 2, 3))
        assert rows[name] in plain if "input" in name else '"recordings"' in plain
