"""Every table and figure of the paper: the grids and the commands of docs/benchmark.md, on files in Paderborn's format."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from scipy import io as scipy_io
from typer.testing import CliRunner

from bearcat.cli import application
from bearcat.data.benches import PAPER
from bearcat.data.datasets import CONDITIONS

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "benchmark.md").read_text(encoding="utf-8").partition("## The paper's tables")[2]
GRIDS = re.findall(r"bearcat bench run grids/([\w-]+)\.toml", PAGE)
LENGTH, WINDOWS = 68, 7
FREQUENCY = ("source-only", "CAT*-Temperature", "CAT*-Vector")  # with frequency input too, the others with time alone
pytestmark = pytest.mark.usefixtures("narrow_classifier")


def measurement(name: str, pitch: float, random: np.random.Generator) -> bytes:
    """A tone in noise, as Paderborn stores channels: a struct named like the file, whose Y lists Name and Data."""
    time = np.arange(LENGTH * WINDOWS)
    signal = np.sin(2 * np.pi * pitch * time) + 0.5 * random.standard_normal(len(time))
    channels = np.zeros((1, 2), dtype=[("Name", object), ("Data", object)])
    channels[0, 0] = ("force", np.zeros((1, 4)))
    channels[0, 1] = ("vibration_1", signal[None])
    buffer = io.BytesIO()
    scipy_io.savemat(buffer, {name: {"Y": channels}})
    return buffer.getvalue()


def shorten(grid: str, folder: Path, name: str = "", **changes: str) -> Path:
    """The grid with one task, one seed, two epochs, short windows and other `changes`, in a file of this name."""
    text = (REPOSITORY / "grids" / f"{grid}.toml").read_text(encoding="utf-8")
    task = f'tasks = ["{CONDITIONS[0]}:{CONDITIONS[1]}"]\nepochs = 2\npreparation = {{ length = {LENGTH} }}'
    for before, after in (('tasks = "all"', task), ("seeds = 5", "seeds = 1")):
        assert text.count(before) == 1, grid
        text = text.replace(before, after)
    for key, value in changes.items():
        text = re.sub(rf"^{key} = \[[^]]*\]", f"{key} = {value}", text, flags=re.MULTILINE)
    path = folder / f"{name or grid}.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files, the shortened grids and a store of all their runs."""
    folder, random = tmp_path_factory.mktemp("reproduce"), np.random.default_rng(0)
    (folder / "files").mkdir()
    for number, bearing in enumerate(PAPER):
        for condition in CONDITIONS[:2]:
            name, pitch = f"{condition}_{bearing}_1", 0.02 + 0.03 * number + 0.005 * (condition == CONDITIONS[1])
            (folder / "files" / f"{name}.mat").write_bytes(measurement(name, pitch, random))
    where = ("--root", folder / "files", "--store", folder / "store", "--device", "cpu")
    for grid in GRIDS:
        shorten(grid, folder)
        command("run", shorten(grid, folder, f"time-{grid}", inputs='["time"]'), *where)
    command("run", shorten("paper", folder, "frequency", inputs='["frequency"]', methods=json.dumps(FREQUENCY)), *where)
    return folder


def command(*words: object) -> None:
    result = CliRunner().invoke(application(), ["bench", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def rows() -> list[tuple[str, str, list[str]]]:
    """What of the paper, its command and its files, from the page's table."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")
    ]
    return [(what, words, re.findall(r"`([^`]+)`", files)) for what, words, files in cells if what != "of the paper"]


@pytest.mark.usefixtures("blank_figures")
def test_every_table_and_figure_of_the_paper_is_made_by_its_command(place):
    made: dict[str, Path] = {}
    numbers = {"Table": set[int](), "Figure": set[int]()}
    for what, words, files in rows():
        options, _, grid = words.replace("`", "").partition(" of grids/")
        if words not in made:
            made[words] = place / f"report-{len(made)}"
            grid_file = place / f"{grid or 'paper.toml'}"
            options = options.removeprefix("REPORT").partition(" of ")[0]
            where = ("--root", place / "files", "--store", place / "store", "--out", made[words])
            command("report", grid_file, *where, *shlex.split(options))
        for name in files:
            assert list(made[words].glob(f"{name}.*")), (what, name)
        kind = what.split()[0].rstrip("s")
        numbers[kind] |= {int(number) for number in re.findall(r"\d+(?=,| )", what.partition("→")[0].rstrip("0"))}
    assert numbers == {"Table": {1, *range(5, 11)}, "Figure": set(range(2, 13))}
