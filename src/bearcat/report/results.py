"""Finished runs for a report, read from their folders alone.

A run's folder holds record.json, predictions.csv and curves.csv (docs/design.md); a report is made of many such
folders, or of one. Nothing here needs torch: reports are made where nothing can be trained.

>>> result = read_result(Path("bearcat-out"))
>>> result.score("target", "accuracy")
0.913
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.datasets.benches import CONDITIONS
from bearcat.data.inputs import INPUTS
from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES, Recipe
from bearcat.record import CURVES, PREDICTIONS, RECORD, Record

Floats = NDArray[np.float64]
BESIDE = "beside-"  # and a recipe's name: the folder of a run that `bearcat adapt` compares with


@dataclass(frozen=True, order=True)
class Cell:
    """Which run of a comparison: a method on a task of a dataset, with an input and a seed."""

    dataset: str
    input: str
    task: str  # source→target
    method: str  # as the grid calls it
    seed: int

    def __str__(self) -> str:
        return f"{self.method}, {self.task}, {self.input}, seed {self.seed}"


@dataclass(frozen=True, eq=False)
class Predictions:
    """Of the target test windows: labels are "" where unknown."""

    recording: tuple[str, ...]
    label: tuple[str, ...]
    predicted: tuple[str, ...]
    confidence: Floats
    confidence_uncalibrated: Floats
    log_probabilities: Floats  # (window, class) calibrated; (window, 0) in folders of earlier versions


@dataclass(frozen=True, eq=False)
class Result:
    """One finished run."""

    cell: Cell
    record: Record
    folder: Path

    def score(self, domain: str, name: str) -> float | None:
        """A score of "source" or "target" as a fraction; None where there are no labels or no number."""
        found: float | None = getattr(getattr(self.record.scores, domain), name, None)
        return found

    @property
    def saved(self) -> Result:
        """The run whose model stands in this run's folder: itself, or the unadapted one beside it."""
        place = "." if self.record.saved is None else self.record.saved.folder
        return self if place == "." else read_result(self.folder / place)

    @cached_property
    def beside(self) -> list[Result]:
        """Finished runs in this run's folder that it is compared with, in the order of RECIPES."""
        places = [place.parent for place in self.folder.glob(f"{BESIDE}*/{RECORD}")]
        names = ordered_names(place.name.removeprefix(BESIDE) for place in places)
        return [read_result(self.folder / f"{BESIDE}{name}") for name in names]

    @property
    def adapts(self) -> bool:
        return self.record.settings.adapts

    @cached_property
    def is_named_recipe(self) -> bool:
        """Whether the run is of the recipe its method is named after, unchanged but for `published` and the epochs."""
        name = self.cell.method
        if name not in RECIPES or self.cell.input not in INPUTS:
            return False
        settings = self.record.settings
        return settings.recipe in _recorded(name, RECIPES[name], self.cell.input, settings.epochs)

    @cached_property
    def predictions(self) -> Predictions:
        with _rows(self.folder / PREDICTIONS) as rows:
            recording, label, predicted = (tuple(row[n] for row in rows) for n in ("recording", "label", "predicted"))
            names = ("confidence", "confidence_uncalibrated")
            sure, plain = (np.array([float(row[name]) for row in rows]) for name in names)
            spread = np.array([row.get("log_probabilities", "").split() for row in rows], dtype=np.float64)
            return Predictions(recording, label, predicted, sure, plain, spread)

    @cached_property
    def curves(self) -> dict[str, Floats]:
        """Columns of curves.csv over epochs; nan where a number did not exist."""
        with _rows(self.folder / CURVES) as rows:
            return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else ())}


@cache
def _recorded(name: str, recipe: Recipe, kind: str, epochs: int) -> tuple[dict[str, Any], ...]:
    """A recipe as records have it, with and without `published`; once, for a report has thousands of runs."""
    plain = recipe.for_input(kind).in_epochs(epochs)
    both = (plain, plain.with_settings({"published": "true"}))
    return tuple(json.loads(json.dumps({"name": name} | each.to_dict())) for each in both)


@dataclass(frozen=True)
class Missing:
    """A planned run without a result, and why: "not run", "running", or "failed: …"."""

    cell: Cell
    reason: str


def read_result(folder: Path, method: str | None = None) -> Result:
    """The run in this folder; `method` is what the comparison calls it, else its recipe's name."""
    try:
        record = Record.read(folder)
    except FileNotFoundError as error:
        raise InputError(f"{folder / RECORD}: does not exist; give the folder of a finished run") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{error}; train the run again") from error
    settings = record.settings
    cell = Cell(settings.dataset, settings.input, settings.task, method or settings.recipe_name, record.seed)
    return Result(cell, record, folder)


def ordered_methods(results: Sequence[Result]) -> tuple[str, ...]:
    """The methods of these runs, as RECIPES lists them, others after by the alphabet."""
    return ordered_names(result.cell.method for result in results)


def ordered_names(methods: Iterable[str]) -> tuple[str, ...]:
    known = list(RECIPES)
    return tuple(sorted(set(methods), key=lambda name: (known.index(name) if name in RECIPES else len(known), name)))


def ordered_tasks(runs: Iterable[Result | Missing]) -> tuple[str, ...]:
    """The tasks of these runs: Paderborn's conditions in their order, numbers in names by size, the rest by letter."""

    def key(task: str) -> list[int | str]:
        parts = re.split(r"(\d+)", numbered(task))
        return [int(part) if place % 2 else part for place, part in enumerate(parts)]

    return tuple(sorted({run.cell.task for run in runs}, key=key))


def numbered(task: str) -> str:
    """The task with Paderborn's conditions by number, as the paper has them; other domains keep their names."""
    for number, name in enumerate(CONDITIONS):
        task = task.replace(name, str(number))
    return task


@contextmanager
def _rows(path: Path) -> Iterator[list[dict[str, str]]]:
    """The rows of a csv file; a block that cannot use them finds it damaged."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield list(csv.DictReader(file))
    except (OSError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error}); train the run again") from error
