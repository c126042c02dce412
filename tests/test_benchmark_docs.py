"""docs/benchmark.md as it is written: its grid is a grid, its commands have these options, its scripts run.

SLURM is played by two small scripts, `srun` and `scontrol`; Ray, its head, its worker and the grid are real.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from bearcat.cli import app
from bearcat.runs.grid import read_grid
from bearcat.runs.store import open_store
from tests.test_bench import GRID, recordings  # noqa: F401 (a fixture)

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
    assert [method.name for method in grid.methods] == ["source-only", "DANN", "AT, τ=0.95"]


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


SRUN = """#!/bin/bash
echo "$$ $*" >> "$FAKE/srun"
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""


@pytest.mark.slow
def test_the_script_for_slurm_starts_a_cluster_of_two_and_runs_a_grid(tmp_path, recordings):  # noqa: F811
    pytest.importorskip("ray")
    (script,) = blocks("bash")
    port = str(free_port())
    (tmp_path / "grid.toml").write_text(GRID.replace("= 4", "= 2").replace(', "CAT*-Temperature"', ""))
    for ours, theirs in (
        ("6379", port), ("grids/paper.toml", str(tmp_path / "grid.toml")), ("/shared/paderborn", str(recordings)),
        ("/shared/store", str(tmp_path / "store")), ("--limit-seconds 28000", "--limit-seconds 280 --device cpu"),
    ):  # fmt: skip
        assert ours in script
        script = script.replace(ours, theirs)
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\nhostname; echo another\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    tools = Path(sys.executable).parent
    own = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{tools}:{os.environ['PATH']}", "HOME": str(tmp_path), "FAKE": str(tmp_path),
        "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NODELIST": "vm[1-2]",
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    subprocess.run([tools / "ray", "get-auth-token", "--generate"], env=own, check=True, capture_output=True)
    try:
        with (tmp_path / "said").open("w") as said:
            done = subprocess.run(["bash", tmp_path / "job.sh"], env=own, stdout=said, stderr=said, timeout=180)
        printed = (tmp_path / "said").read_text()
        assert done.returncode == 0, printed[-3000:]
        assert "2 cells: 2 done" in printed
        calls = [line.split(maxsplit=1)[1] for line in (tmp_path / "srun").read_text().splitlines()]
        assert len(calls) == 2
        assert "--head" in calls[0]
        assert f"--exclude={socket.gethostname()} ray start --address={socket.gethostname()}:{port}" in calls[1]
        records = list((open_store(tmp_path / "store").path / "runs").glob("*/record.json"))
        assert len([json.loads(path.read_text())["scores"] for path in records]) == 2
    finally:
        end([int(line.split()[0]) for line in (tmp_path / "srun").read_text().splitlines()])


def free_port() -> int:
    """Below those Ray gives to its workers."""
    for port in range(6400, 9900):
        with socket.socket() as listener:
            try:
                listener.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def end(processes: list[int]) -> None:
    """As SLURM ends the steps of a job when its script is done."""
    for number in reversed(processes):
        try:
            os.kill(number, 15)
        except ProcessLookupError:
            continue
        deadline = time.monotonic() + 30
        while Path(f"/proc/{number}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
