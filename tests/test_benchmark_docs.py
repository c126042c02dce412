"""docs/benchmark.md as it is written: its grid is a grid and its commands have these options; tests/test_bench.py runs its
script for SLURM.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from bearcat.cli import app
from bearcat.runs.grid import read_grid

TEXT = (Path(__file__).parent.parent / "docs" / "benchmark.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def commands(text: str, program: str) -> list[list[str]]:
    """The words of each call of a program, lines that go on joined."""
    joined = text.replace("\\\n", " ")
    lines = [
        line.split(" > ")[0].rstrip(" &").partition("    #")[0] for line in joined.splitlines() if "#SBATCH" not in line
    ]
    found = [shlex.split(line[line.index(program + " ") :], comments=True) for line in lines if program + " " in line]
    return [words for words in found if words[0] in program]


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")}


def test_the_grid_of_the_page_is_one(tmp_path):
    (example,) = blocks("toml")
    (tmp_path / "grid.toml").write_text(example, encoding="utf-8")
    grid = read_grid(tmp_path / "grid.toml")
    assert grid.title == "CWRU, two thresholds"
    assert [method.name for method in grid.methods[:3]] == ["source-only", "DANN", "AT, τ=0.95"]
    assert len(grid.methods) == 3 + 2 * 2  # two settings with two values each


def test_scripts_are_shell_and_know_their_commands():
    ray_commands = pytest.importorskip("ray.scripts.scripts")
    (script,) = blocks("bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "SLURM_JOB_NODELIST" in script
    for name in ("start", "status"):
        known = options(ray_commands.cli.commands[name])
        calls = commands(script, f"ray {name}")
        assert calls, name
        for words in calls:
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, words
    known = options(typer.main.get_command(app).commands["bench"].commands["run"])
    for text in (script, *blocks("yaml")):
        (call,) = commands(text, "bearcat bench run")
        assert {word for word in call if word.startswith("--")} <= known, call


def test_the_job_of_kubernetes_has_the_fields_of_one():
    yaml = pytest.importorskip("yaml")
    (text,) = blocks("yaml")
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"].keys() <= {"entrypoint", "shutdownAfterJobFinishes", "rayClusterSpec", "ttlSecondsAfterFinished"}
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster.keys() == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert {"rayStartParams", "template"} <= group.keys()
        assert group.keys() <= {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "they are text"
        (container,) = group["template"]["spec"]["containers"]
        mounted = {volume["name"] for volume in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    entry = shlex.split(job["spec"]["entrypoint"])
    assert all(word.startswith("/data") for word in entry if word.startswith("/")), "what is mounted"
