"""Code that a user adds is part of a run's name."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
COMMAND = """from bearcat.cat import loss_of
from bearcat.storage import row_identity

from losses import Gap, distance

print(row_identity(Gap()), row_identity(loss_of(distance)))
"""


def test_a_plug_in_is_named_by_its_source_and_by_what_it_imports(tmp_path):
    code = tmp_path / "mine"
    code.mkdir()
    for name, text in {"losses.py": LOSS, "gaps.py": HELPER, "command.py": COMMAND}.items():
        (code / name).write_text(text)

    def identity(folder: Path = code) -> tuple[str, str]:
        """Of a class, and of a loss made of a function."""
        of_class, of_function = python(folder / "command.py", folder=tmp_path).split()[:2]
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
    edit("command.py", "distance\n", "distance  # no row is written here\n")
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
