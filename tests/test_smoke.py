"""The smoke grid as a newcomer runs it: run, status, report, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import bearcat

GRID = Path(__file__).parent.parent / "grids" / "smoke.toml"


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_the_smoke_grid_runs_and_makes_its_report(tmp_path, command):
    """With a task, windows and epochs fewer than the file asks for: tests/test_learning.py sees whether recipes learn."""
    text = GRID.read_text(encoding="utf-8")
    for asked, enough in (
        ("epochs = 9", "epochs = 4"), ("seconds = 1.2", "seconds = 0.6"), ("= 256", "= 128"),
        (', "N09_M07_F10:N15_M07_F10"]', "]"),
    ):  # fmt: skip
        assert asked in text
        text = text.replace(asked, enough)
    (tmp_path / "smoke.toml").write_text(text, encoding="utf-8")
    run = bearcat("bench", "run", "smoke.toml", "--store", "store", "--device", "cpu", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "6 cells: 6 done" in run.stdout
    assert "6 trained by this process" in run.stdout
    status = bearcat("bench", "status", "smoke.toml", "--store", "store", folder=tmp_path)
    assert "6 cells: 6 done" in status.stdout

    records = [json.loads(path.read_text()) for path in (tmp_path / "store" / "runs").glob("*/record.json")]
    assert len(records) == 6
    assert not any(record["failed"] for record in records)

    places = (tmp_path / "smoke.toml", "--store", tmp_path / "store", "--out", tmp_path / "report")
    status, _, errors = command("bench", "report", *places)  # tests/test_page.py draws one
    assert status == 0, errors
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    for method in ("source-only", "DANN", "CAT*-Temperature"):
        assert method in page
    for suffix in ("tex", "csv"):
        assert (tmp_path / "report" / "tables" / f"simulated-frequency-accuracy.{suffix}").exists()
    for suffix in ("png", "svg"):
        assert len(list((tmp_path / "report" / "figures").glob(f"*.{suffix}"))) >= 5
