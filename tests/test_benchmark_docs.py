"""docs/benchmark.md as it is written: its grid is a grid and its commands have these options."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import typer

from bearcat.bench.grid import read_grid
from bearcat.cli import application

TEXT = (Path(__file__).parent.parent / "docs" / "benchmark.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")}


def test_the_grid_of_the_page_is_one(tmp_path):
    (example,) = blocks("toml")
    (tmp_path / "grid.toml").write_text(example, encoding="utf-8")
    grid = read_grid(tmp_path / "grid.toml")
    assert grid.title == "CWRU, two thresholds"
    assert [method.name for method in grid.methods] == ["source-only", "DANN", "AT, τ=0.95"]


def test_commands_for_clusters_have_options_that_exist():
    (script,) = blocks("bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    known = options(typer.main.get_command(application()).commands["bench"].commands["run"])
    for text in (script, *blocks("yaml")):
        (call,) = re.findall(r"bearcat bench run (.*)", text.replace("\\\n", " "))
        assert set(re.findall(r"--[\w-]+", call)) <= known, call
