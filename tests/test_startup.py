"""Commands that need no network start at once: torch stays where it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKED = """
import sys, time
from bearcat.cli import main
sys.argv = ["bearcat", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
loaded = {"torch", "scipy", "sklearn", "matplotlib", "pandas"} & set(sys.modules)
print(f"\\n{time.process_time()} {sorted(loaded)}")
"""


@pytest.mark.parametrize(("command", "limit"), [("--help", 0.5), ("recipes", 1.0)])
def test_help_and_recipes_come_at_once_and_without_torch(command, limit):
    """Processor time since the interpreter began, the better of two: the goals are wall times of a machine at rest."""
    took = []
    for _ in range(2):
        result = subprocess.run([sys.executable, "-c", ASKED, command], capture_output=True, text=True, check=True)
        seconds, loaded = result.stdout.splitlines()[-1].split(" ", 1)
        assert loaded == "[]"
        took.append(float(seconds))
    assert min(took) < limit
