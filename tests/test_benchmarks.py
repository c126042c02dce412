"""Scripts of benchmarks/ can be started. What they measure is in the documents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = [path for path in sorted(FOLDER.glob("*.py")) if "argparse" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_says_how_it_is_called(script):
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent / "src")}
    done = subprocess.run([sys.executable, script, "--help"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert script.name in done.stdout
