"""Finished runs for a report, read from their folders alone, and what must be said of them.

A run's folder holds record.json, predictions.csv and curves.csv (docs/design.md); a report is made of many such
folders, or of one. Nothing here needs torch: reports are made where nothing can be trained.

>>> result = read_result(Path("bearcat-out"))
>>> result.score("target", "accuracy"), caveats([result])
(0.913, [])
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.cat.recipes import RECIPES, Recipe
from bearcat.data.datasets.benches import CONDITIONS
from bearcat.data.inputs import INPUTS
from bearcat.data.specimens import SENTENCES, specimens_sentence
from bearcat.errors import InputError
from bearcat.names import from_csv_cell
from bearcat.record import CURVES, PREDICTIONS, RECORD, Record
from bearcat.report.typeset import Caveat, count

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
    log_probabilities: Floats  # (window, class) calibrated


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
        name, kind, settings = self.cell.method, self.cell.input, self.record.settings
        if name not in RECIPES or kind not in INPUTS:
            return False
        return settings.recipe in _recorded(name, RECIPES[name], kind, settings.epochs)

    @cached_property
    def predictions(self) -> Predictions:
        with _rows(self.folder / PREDICTIONS) as rows:
            recording, label, predicted = (
                tuple(from_csv_cell(row[name]) for row in rows) for name in ("recording", "label", "predicted")
            )
            confidence = np.array([float(row["confidence"]) for row in rows])
            spread = np.array([row["log_probabilities"].split() for row in rows], dtype=np.float64)
            return Predictions(recording, label, predicted, confidence, spread)

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
    """A planned run without a result, and why: `kind` is "not run", "running", "failed" or "damaged"."""

    cell: Cell
    kind: str
    detail: str = ""

    @property
    def reason(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


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

    def key(task: str) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", numbered(task))  # without int(), which refuses some thousand digits
        digits = [part.lstrip("0") if place % 2 else part for place, part in enumerate(parts)]
        return [(len(part) if place % 2 else 0, part) for place, part in enumerate(digits)]

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


# Kinds of trouble that one record shows: what it is called, whether a run has it, and what to say of those that do.
TROUBLES: tuple[tuple[str, Callable[[Record], Any], str], ...] = (
    ("Failed", lambda record: record.failed,
     "the loss turned NaN or infinite and training was stopped; the numbers mean nothing."),
    ("Collapsed", lambda record: record.collapsed, "every target window is given the same class."),
    ("Temperature at its bound", lambda record: record.at_bound,
     "the temperature ended at its bound: the source gives calibration too little to go by, and the confidence on the"
     " target is not to be trusted."),
    ("Classes never predicted", lambda record: not record.collapsed and record.never_predicted,
     "some class is never predicted on the target."),
)  # fmt: skip


def caveats(results: Sequence[Result]) -> list[Caveat]:
    """Everything below, worst first."""
    found = [*troubles(results), *negative_transfer(results)]
    found += untested_bearings(results)
    if len(results) > 1 and len({result.cell.seed for result in results}) == 1:
        found.append(Caveat("One seed", "Every run has the same seed: differences between methods may be chance."))
    return found


def incomplete(results: Sequence[Result], missing: Sequence[Missing]) -> list[Caveat]:
    """Planned runs without a result, counted by why."""
    if not missing:
        return []
    kinds = Counter(run.kind for run in missing)
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    planned, verb = count(len(results) + len(missing), "planned run"), "has" if len(missing) == 1 else "have"
    text = f"{len(missing)} of {planned} {verb} no result ({counted})."
    return [Caveat("Incomplete", text, tuple(f"{run.cell}: {run.reason}" for run in missing))]


def troubles(results: Sequence[Result]) -> list[Caveat]:
    """Runs that broke down, collapsed, ended at a bound or never predict a class."""
    found = []
    for kind, concerns, text in TROUBLES:
        runs = [result for result in results if concerns(result.record)]
        classes = [f": {', '.join(run.record.never_predicted)}" if "predicted" in kind else "" for run in runs]
        names = tuple(f"{run.cell}{never}" for run, never in zip(runs, classes, strict=True))
        if runs:
            found.append(Caveat(kind, f"In {count(len(runs), 'run')} {text}", names))
    return found


def negative_transfer(results: Sequence[Result]) -> list[Caveat]:
    """Methods below training on the source alone, by the mean over the seeds both have."""
    known = [(run, score) for run in results if (score := run.score("target", "accuracy")) is not None]
    plain = {replace(run.cell, method=""): score for run, score in known if not run.adapts}
    both: dict[Cell, list[tuple[float, float]]] = {}
    for run, score in known:
        alone = plain.get(replace(run.cell, method=""))
        if run.adapts and alone is not None:
            both.setdefault(replace(run.cell, seed=0), []).append((score, alone))
    items = []
    for cell, pairs in both.items():
        mine, alone = 100 * np.mean(pairs, axis=0)
        if mine < alone:
            scores = f"{mine:.1f} against {alone:.1f} % ({count(len(pairs), 'seed')})"
            items.append(f"{cell.method} on {cell.task}: {scores}")
    text = (
        f"In {count(len(items), 'case')} a method is less accurate on the target than training on the source alone"
        " (means over the seeds both have; not tested)."
    )
    return [Caveat("Negative transfer", text, tuple(items))] if items else []


def untested_bearings(results: Sequence[Result]) -> list[Caveat]:
    """Runs whose target holds bearings of the source, or bearings that nobody named."""
    found = []
    for kind, sentence in SENTENCES.items():
        runs = [run for run in results if run.record.specimens and run.record.shift == kind]
        if runs:
            where = "" if len(runs) == len(results) else f" (in {count(len(runs), 'run')} of {len(results)})"
            names = tuple(dict.fromkeys(run.cell.task for run in runs))
            found.append(Caveat("Bearings", f"{sentence[0].upper()}{sentence[1:]}{where}.", names))
    return found


def specimens_sentences(results: Sequence[Result]) -> list[str]:
    """How many specimens there are of each class, by the first run that counts them."""
    return [specimens_sentence(run.record.specimens) for run in results if run.record.specimens][:1]
