"""Finished runs as a report sees them: what their folders say, and nothing else.

A run's folder holds record.json, predictions.csv and curves.csv (docs/design.md); a report is made of many such
folders, or of one. No torch here: reports are made where nothing can be trained.

>>> result = read_result(Path("bearcat-out"))
>>> result.score("target", "accuracy")
0.913
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, order=True)
class Cell:
    """Which run of a comparison: a method on a task of a dataset, seen as time or frequency, with a seed."""

    dataset: str
    input: str
    task: str  # source→target
    method: str  # as the grid calls it
    seed: int


@dataclass(frozen=True, eq=False)
class Predictions:
    """Of the target test windows: labels are "" where unknown."""

    recording: tuple[str, ...]
    label: tuple[str, ...]
    predicted: tuple[str, ...]
    confidence: Floats
    confidence_uncalibrated: Floats


@dataclass(frozen=True, eq=False)
class Result:
    """One finished run."""

    cell: Cell
    record: Mapping[str, Any]
    folder: Path

    def score(self, where: str, name: str) -> float | None:
        """A score of "source" or "target" as a fraction; None where there are no labels or no number."""
        scores = self.record["scores"][where]
        return None if scores is None else scores[name]

    @cached_property
    def predictions(self) -> Predictions:
        rows = _rows(self.folder / "predictions.csv")
        try:
            return Predictions(
                tuple(row["recording"] for row in rows), tuple(row["label"] for row in rows),
                tuple(row["predicted"] for row in rows), np.array([float(row["confidence"]) for row in rows]),
                np.array([float(row["confidence_uncalibrated"]) for row in rows]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.folder / 'predictions.csv'}: is damaged; delete the folder and run again"
            ) from error

    @cached_property
    def curves(self) -> dict[str, Floats]:
        """Columns of curves.csv over epochs; nan where a number did not exist."""
        rows = _rows(self.folder / "curves.csv")
        try:
            return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else ())}
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.folder / 'curves.csv'}: is damaged; delete the folder and run again") from error


@dataclass(frozen=True)
class Missing:
    """A planned run without a result, and why: "not run", "running", or "failed: …"."""

    cell: Cell
    reason: str


def read_result(folder: Path, method: str | None = None) -> Result:
    """The run in this folder; `method` is what the comparison calls it, else its recipe's name."""
    path = folder / "record.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        settings = record["settings"]
        cell = Cell(
            settings["data"]["name"], settings["preparation"]["input"],
            f"{'+'.join(settings['source'])}→{settings['target']}",
            method or settings["recipe"]["name"], record["seed"],
        )  # fmt: skip
    except FileNotFoundError as error:
        raise InputError(f"{path}: does not exist; give the folder of a finished run") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: cannot be read as the record of a run ({type(error).__name__})") from error
    return Result(cell, record, folder)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
