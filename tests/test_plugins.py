"""Code that a user adds: it is part of a run's name, and its errors are called by its file and line."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bearcat import cli
from bearcat.adaptation import RunSpec
from bearcat.cat.recipes import RECIPES
from bearcat.data import DATASETS, Simulated, Task
from bearcat.data.datasets import dataset_class
from bearcat.data.inputs import INPUTS, Waveform
from bearcat.storage import row_identity, source_hash
from tests.commands import python

LOSS = """from bearcat.cat import Loss, loss_of

import gaps


def distance(view):
    return gaps.gap(view.source_features, view.target_features)


class Gap(Loss):
    name = "gap"

    def loss(self, view):
        return 0.1 * gaps.gap(view.source_features, view.target_features)
"""
HELPER = """def gap(source, target):
    return (source.mean(dim=1) - target.mean(dim=1)).square().sum(dim=1)
"""
COMMAND = """from bearcat.cat import RECIPES, Recipe, loss_of
from bearcat.cli import main
from bearcat.storage import row_identity

from losses import Gap, distance

RECIPES["gap"] = Recipe((Gap(),))
if __name__ == "__main__":
    print(row_identity(Gap()), row_identity(loss_of(distance)))
    main()
"""
GRID = """
data = { name = "simulated", settings = { seconds = 1, severities = [4], faults = ["inner"] } }
tasks = ["N15_M07_F10:N09_M07_F10"]
epochs = 2
seeds = 1
preparation = { length = 64 }
method = [
    { method = "source-only", set = { encoder = "dense:widths=8" } },
    { method = "gap", set = { encoder = "dense:widths=8" } },
]
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A user's folder: the command with a loss of its own, which imports a helper."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in {"losses.py": LOSS, "gaps.py": HELPER, "command.py": COMMAND, "grid.toml": GRID}.items():
        (folder / name).write_text(text)
    return folder


def test_a_plug_in_is_named_by_its_source_and_by_what_it_imports(code, tmp_path):
    def identity(folder: Path = code) -> tuple[str, str]:
        """Of a class, and of a loss made of a function."""
        of_class, of_function = python(folder / "command.py", "--version", folder=tmp_path).split()[:2]
        assert of_class != of_function
        return of_class, of_function

    def edit(name: str, before: str, after: str) -> None:
        text = (code / name).read_text()
        assert before in text
        (code / name).write_text(text.replace(before, after))

    first = identity()
    edit("losses.py", "0.1", "0.2")
    second = identity()
    edit("gaps.py", "square()", "abs()")  # what the loss imports
    assert len({*first, *second, *identity()}) == 6
    edit("command.py", "import main\n", "import main  # no row is written here\n")
    edit("losses.py", "0.2", "0.1")
    edit("gaps.py", "abs()", "square()")
    assert identity() == first
    # Another machine: another folder, other times, other ends of lines.
    shutil.copytree(code, tmp_path / "elsewhere" / "theirs")
    for path in (tmp_path / "elsewhere" / "theirs").glob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        os.utime(path, (1e9, 1e9))
    assert identity(tmp_path / "elsewhere" / "theirs") == first


def test_rows_of_the_package_name_no_code():
    rows = [kind() for kind in INPUTS.values()] + [part for recipe in RECIPES.values() for part in recipe.ingredients]
    assert {row_identity(row) for row in rows} == {None}
    assert {source_hash(dataset_class(name)) for name in DATASETS} == {None}
    assert {source_hash(entry.read) for entry in Simulated().catalogue().entries} == {None}
    spec = RunSpec("simulated", Simulated(), Task("N15_M07_F10", "N09_M07_F10"), "DANN", RECIPES["DANN"])
    assert spec.to_dict()["code"] == {}


def test_a_version_names_what_the_code_cannot_say(monkeypatch):
    spec = RunSpec("simulated", Simulated(), Task("N15_M07_F10", "N09_M07_F10"), "x", RECIPES["DANN"])
    before = replace(spec, fingerprints=("a", "b")).identity
    monkeypatch.setattr(Waveform, "version", 2)
    assert spec.to_dict()["code"] == {"input": "version 2"}
    assert replace(spec, fingerprints=("a", "b")).identity != before


def test_code_in_no_file_is_said_once_and_new_each_time_it_is_defined():
    def defined() -> Any:
        names: dict[str, Any] = {}
        exec(LOSS.replace("import gaps", ""), names | {"__name__": "__main__"}, names)
        return names["Gap"]

    kind = defined()
    with pytest.warns(UserWarning, match="'Gap' is in no file"):
        first = row_identity(kind())
    assert row_identity(kind()) == first  # and nothing is said again: warnings are errors
    with pytest.warns(UserWarning, match="no file"):
        assert row_identity(defined()()) != first


def test_a_failed_run_keeps_the_line_of_the_user_s_file_and_the_traceback(code, tmp_path):
    """Raised by torch, below the user's own line."""
    broken = "return source @ target"
    (code / "gaps.py").write_text(f"def gap(source, target):\n    {broken}\n")
    words = ("bench", "run", code / "grid.toml", "--store", tmp_path / "store", "--device", "cpu")
    printed = python(code / "command.py", *words, folder=tmp_path, status=(2,))
    assert "1 done, 1 failed" in printed
    assert "mine/gaps.py, line 2: " in printed
    assert "Traceback" not in printed
    (failure,) = (json.loads(path.read_text()) for path in (tmp_path / "store" / "runs").glob("*/failure.json"))
    assert failure["sentence"].startswith("mine/gaps.py, line 2: ")
    assert failure["traceback"].startswith("Traceback")
    assert broken in failure["traceback"]
    assert "failure.json" in printed


def test_a_bug_of_the_package_is_called_one(monkeypatch, capsys):
    def broken(words: list[str]) -> int:
        raise KeyError(f"a bug {words}")

    broken.__code__ = broken.__code__.replace(co_filename=str(Path(cli.__file__).with_name("data.py")))
    monkeypatch.setattr(cli, "run", broken)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == cli.BUG
    assert "bug in bearcat" in capsys.readouterr().err
