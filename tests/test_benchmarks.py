"""Scripts of benchmarks/ can be started. What they measure is in the documents."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = [path for path in sorted(FOLDER.glob("*.py")) if "argparse" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_says_how_it_is_called(script, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script), run_name="__main__")
    assert stop.value.code == 0
    assert script.name in capsys.readouterr().out
