"""What is public: documented places whose names have types, and a docstring with an example that runs."""

from __future__ import annotations

import ast
import doctest
import inspect
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import bearcat
from bearcat.cat import CALIBRATORS, RECIPES, Ingredient, Teacher
from bearcat.data import DATASETS, Problem
from bearcat.data.datasets import dataset_class

ROOT = Path(__file__).parents[1]
PLACES = ("bearcat", "bearcat.cat", "bearcat.data", "bearcat.fast")
NAMES = [(place, name) for place in PLACES for name in import_module(place).__all__ if name != "__version__"]
# What an example may use without importing it, as the page says.
READY = {"bearcat": bearcat, "np": np, "torch": torch, "Path": Path, "dataclass": dataclass, "Tensor": torch.Tensor}


def constant_docstring(place: str, name: str) -> str:
    """The text below an assignment, where it is written."""
    tree = ast.parse(inspect.getsource(import_module(place)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return constant_docstring(str(node.module), name)
    for node, after in pairwise(tree.body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if name in {getattr(target, "id", None) for target in targets}:
            value = getattr(getattr(after, "value", None), "value", None)
            return value if isinstance(value, str) else ""
    return ""


def docstring(place: str, name: str) -> str:
    value = getattr(import_module(place), name)
    value = value.__call__ if isinstance(value, ModuleType) else value  # bearcat.watch
    return str(value.__doc__) if inspect.isroutine(value) or inspect.isclass(value) else constant_docstring(place, name)


DOCSTRINGS = {place: str(import_module(place).__doc__) for place in PLACES}
DOCSTRINGS |= {f"{place}.{name}": docstring(place, name) for place, name in NAMES}


def is_part(place: str, name: str) -> bool:
    """Whether it is a table, or a part of a method or a dataset, whose examples are the rows of tables."""
    value = getattr(import_module(place), name)
    parts = inspect.isclass(value) and (issubclass(value, Ingredient | Teacher | Problem) or hasattr(value, "fit"))
    return parts or isinstance(value, dict) or hasattr(value, "catalogue")


def test_every_public_name_is_there_and_has_an_example():
    for place, name in NAMES:
        assert name in dir(import_module(place))
    needed = set(DOCSTRINGS) - {f"{place}.{name}" for place, name in NAMES if is_part(place, name)}
    assert [name for name in needed if ">>> " not in DOCSTRINGS[name]] == []


@pytest.mark.filterwarnings("ignore:known from a single recording")
def test_every_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "bearcat.adaptation.evaluation.find_spec", lambda _: None
    )  # pages of runs are drawn by other tests
    ready = {name: getattr(import_module(place), name) for place, name in NAMES} | READY
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL, verbose=False)
    for name, text in DOCSTRINGS.items():
        runner.run(doctest.DocTestParser().get_doctest(text, dict(ready), name, name, 0))
    assert runner.tries >= len(DOCSTRINGS)
    assert runner.failures == 0


def test_rows_of_tables_and_ingredients_of_recipes_are_public():
    public = {name for _, name in NAMES} | set(vars(import_module("bearcat.methods")))
    rows = {kind.__name__ for kind in (*map(dataset_class, DATASETS), *CALIBRATORS.values())}
    rows |= {type(each).__name__ for recipe in RECIPES.values() for each in recipe.ingredients}
    assert rows - public == set()
