"""Reads finished runs from their folders, and lists their caveats for a report.

A run's folder holds record.json, predictions.csv and curves.csv (docs/record.md); a report covers one such folder or
many. Nothing here needs torch, so reports can be made on a machine that cannot train.

>>> result = read_result(Path("bearcat-out"))
>>> result.score("target", "accuracy"), caveats([result], {})
(0.913, [])
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.datasets import CONDITIONS
from bearcat.data.tasks import SENTENCES
from bearcat.errors import InputError, from_csv_cell
from bearcat.findings import count
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
    """Predictions for the target's test windows; an unknown label is ""."""

    recording: tuple[str, ...]
    label: tuple[str, ...]
    predicted: tuple[str, ...]
    log_probabilities: Floats  # (window, class) calibrated


@dataclass(frozen=True, eq=False)
class Result:
    """One finished run."""

    cell: Cell
    record: Record
    folder: Path

    def score(self, domain: str, name: str) -> float | None:
        """A score of "source" or "target" as a fraction; None without labels or a number."""
        value: float | None = getattr(getattr(self.record.scores, domain), name, None)
        return value

    @cached_property
    def beside(self) -> list[Result]:
        """Finished runs for comparison in this run's folder."""
        return [read_result(path.parent) for path in sorted(self.folder.glob(f"{BESIDE}*/{RECORD}"))]

    @cached_property
    def predictions(self) -> Predictions:
        rows = _rows(self.folder / PREDICTIONS)
        recording, label, predicted = (
            tuple(from_csv_cell(row[name]) for row in rows) for name in ("recording", "label", "predicted")
        )
        spread = np.array([row["log_probabilities"].split() for row in rows], dtype=np.float64)
        return Predictions(recording, label, predicted, spread)

    @cached_property
    def curves(self) -> dict[str, Floats]:
        """Columns of curves.csv over epochs; nan where a number did not exist."""
        rows = _rows(self.folder / CURVES)
        return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else ())}


@dataclass(frozen=True)
class RunState:
    """Of a planned run: "done" (with its record), "running", "failed", "damaged" or "missing"; `detail` says why."""

    kind: str
    detail: str = ""
    record: Record | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


@dataclass(frozen=True)
class Caveat:
    """A sentence, and the runs, tasks or settings it is about."""

    kind: str  # a word or two, for the eye
    text: str
    items: tuple[str, ...] = ()


def read_result(folder: Path) -> Result:
    """The run in this folder."""
    try:
        record = Record.read(folder)
    except FileNotFoundError as error:
        raise InputError(f"{folder / RECORD}: does not exist; give the folder of a finished run") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{error}; train the run again") from error
    settings = record.settings
    cell = Cell(settings.dataset, settings.input, settings.task, settings.recipe_name, record.seed)
    return Result(cell, record, folder)


def ordered_names(methods: Iterable[str]) -> tuple[str, ...]:
    """Methods in the order of RECIPES, then others alphabetically."""
    from bearcat.cat.recipes import RECIPES

    order = list(RECIPES)
    return tuple(sorted(set(methods), key=lambda name: (order.index(name) if name in RECIPES else len(order), name)))


def numbered(task: str) -> str:
    """The task with Paderborn's conditions by number, as the paper has them; other domains keep their names."""
    for number, name in enumerate(CONDITIONS):
        task = task.replace(name, str(number))
    return task


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table; reading the record has compared its checksum."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Caveats of a single run: name, test of the record, and sentence.
TROUBLES: tuple[tuple[str, Callable[[Record], Any], str], ...] = (
    ("Failed", lambda record: record.failed,
     "the loss turned NaN or infinite and training was stopped; the numbers are meaningless"),
    ("Collapsed", lambda record: record.collapsed,
     "every target window is given the same class: an ECE near zero is no merit there"),
    ("Classes never predicted", lambda record: not record.collapsed and record.never_predicted,
     "some class is never predicted on the target"),
    ("Temperature at its bound", lambda record: record.at_bound,
     "the temperature ended at its bound: the source gives calibration too little to go by"),
    ("Bearings", lambda record: record.shift in SENTENCES,
     "bearings of the target are those of the source, or nobody named them: other bearings are not tested"),
    ("No labels", lambda record: record.scores.target is None, "the target has no labels, so nothing could be scored"),
)  # fmt: skip


def caveats(results: Sequence[Result], missing: Mapping[Cell, RunState]) -> list[Caveat]:
    """Warnings about these runs, worst first, each with the runs it is about."""
    warnings = []
    if missing:
        kinds = Counter(state.kind for state in missing.values())
        counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        text = f"{len(missing)} of {count(len(results) + len(missing), 'planned run')} without a result ({counted})."
        warnings.append(Caveat("Incomplete", text, tuple(f"{cell}: {state}" for cell, state in missing.items())))
    for kind, concerns, text in TROUBLES:
        runs = [run for run in results if concerns(run.record)]
        by_method = Counter(run.cell.method for run in runs)
        counted = ", ".join(f"{name} {by_method[name]}" for name in ordered_names(by_method))
        if runs:
            warnings.append(
                Caveat(kind, f"In {len(runs)} of {count(len(results), 'run')} {text} ({counted}).",
                       tuple(str(run.cell) for run in runs) if len(runs) < len(results) else ())
            )  # fmt: skip
    return warnings


def data_sentences(results: Sequence[Result]) -> tuple[str, ...]:
    """What was learnt from, as ranges where runs differ."""

    def span(numbers: Sequence[int]) -> str:
        return " to ".join(map(str, sorted({min(numbers), max(numbers)})))

    records = [result.record for result in results]
    classes = list(dict.fromkeys(name for record in records for name in record.data.classes))
    named = f"{count(len(classes), 'class', 'classes')} ({', '.join(classes)})"
    source, target = ([getattr(record.data, f"{side}_train") for record in records] for side in ("source", "target"))
    return (
        f"Data: {results[0].cell.dataset}, {named}; {results[0].cell.input} input; {span(source)} windows of the source"
        f" and {span(target)} of the target to learn from."
        f" Epochs: {span([record.settings.epochs for record in records])}.",
    )
