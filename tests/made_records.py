"""Folders of runs as bearcat writes them, with invented numbers: for tests of what reads them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas

from bearcat.adaptation.run import COLUMNS
from bearcat.cat.recipes import RECIPES, Recipe
from bearcat.cat.teacher import SelfTraining
from bearcat.diagnosis.decision import Estimate, ModelEvidence, decide
from bearcat.diagnosis.pooling import Pooled
from bearcat.diagnosis.recording import Diagnosis
from bearcat.record import DomainScores, Record, Scores
from bearcat.report import Cell, Result
from bearcat.storage import digest
from tests.pooled import by_model

CLASSES = ("healthy", "inner", "outer")
WINDOWS, EPOCHS = 60, 6


def made_diagnosis(recording: str, label: str = "inner", confidence: float = 0.9, agreement: float = 0.6) -> Diagnosis:
    """By a model whose classes are CLASSES."""
    rest = (1 - confidence) / (len(CLASSES) - 1)
    shares = np.array([confidence if name == label else rest for name in CLASSES])
    return by_model(recording, Pooled(shares, agreement, 10, 0.2, True), CLASSES, "use")


def made_result(
    folder: Path, cell: Cell, accuracy: float = 0.8, classes: tuple[str, ...] = CLASSES, labelled: bool = True, **changes: Any
) -> Result:  # fmt: skip
    """A finished run of six epochs whose accuracy on 60 target windows is about `accuracy`, as its estimates expect;
    `changes` replace fields of its record."""
    folder.mkdir(parents=True)
    method = cell.method if cell.method in RECIPES else "CAT*-Temperature"
    settings = RECIPES[method].for_input(cell.input).in_epochs(EPOCHS)
    random = np.random.default_rng([cell.seed, sum(map(ord, cell.task + cell.method))])
    label, rows = random.integers(len(classes), size=WINDOWS), np.arange(WINDOWS)
    right = rows < round(accuracy * WINDOWS)
    predicted = np.where(right, label, (label + 1 + random.integers(len(classes) - 1, size=WINDOWS)) % len(classes))
    confidence = random.uniform(1 / len(classes), 1, size=WINDOWS)
    spread = np.log(np.repeat((1 - confidence[:, None]) / (len(classes) - 1), len(classes), axis=1))
    spread[rows, predicted] = np.log(confidence)
    names = np.array(classes)
    predictions = {
        "recording": [f"{name}.mat" for name in names[label]], "start": 1024 * rows,
        "label": names[label] if labelled else "", "predicted": names[predicted], "confidence": confidence,
        "log_probabilities": [" ".join(f"{value:.5g}" for value in row) for row in spread],
    }  # fmt: skip
    columns = list(COLUMNS)
    pandas.DataFrame(predictions, columns=columns).to_csv(folder / "predictions.csv", index=False, float_format="%.6f")
    _write_curves(folder / "curves.csv", settings, accuracy, classes)
    share, source = float(np.mean(right)), cell.task.partition("→")[0]
    scores = {
        "accuracy": share, "accuracy_uncalibrated": share, "ece": 0.05, "ece_uncalibrated": 0.1, "ece15": 0.06,
        "ece15_uncalibrated": 0.11, "nll": 0.7, "brier": 0.3,
    }  # fmt: skip
    calibrated, bins = settings.calibration is not None, _bins(share)
    reliability = {"uncalibrated": bins, "calibrated": bins if calibrated else None}
    record = {
        "scores": {"source": scores | {"accuracy": 0.98}, "target": scores if labelled else None},
        "calibration": {"temperature": 2.0, "at_bound": False} if calibrated else None,
        "reliability": {"source": reliability, "target": reliability if labelled else None},
        "failed": False, "collapsed": False, "never_predicted": [], "warnings": [],
        "settings": {
            "data": {"name": cell.dataset}, "source": source.split("+"), "target": cell.task.partition("→")[2],
            "preparation": {"input": cell.input, "length": 1024, "stride": None, "rate": None},
            "split": "window", "recipe": {"name": method} | settings.to_dict(),
        },
        "seed": cell.seed,
        "data": {
            "classes": list(classes), "source_train": 240, "source_test": 60, "target_train": 240,
            "target_test": WINDOWS, "identity": "0" * 64,
        },
        "device": "cpu",
        "versions": {"bearcat": "0", "result": "1", "python": "3", "torch": "2", "numpy": "2"},
        "seconds": 12.5, "recordings": [],
    }  # fmt: skip
    made = Record.from_dict(json.loads(json.dumps(record | _estimates(share) | changes)))
    made.write(folder)
    return Result(cell, made, folder)


def _write_curves(path: Path, settings: Recipe, accuracy: float, classes: tuple[str, ...]) -> None:
    teaching, epochs = settings.find(SelfTraining) is not None, np.arange(EPOCHS)
    curves = {"loss_supervised": np.linspace(1, 0.1, EPOCHS)}
    for network in ("student", "teacher")[: 1 + teaching]:
        for domain in ("source", "target"):
            for score, last in (("accuracy", accuracy), ("ece", 0.05), ("ece_uncalibrated", 0.1)):
                curves[f"{domain}_{score}_{network}"] = np.linspace(0.3, last, EPOCHS)
    if teaching:
        late = {"pseudo_label_accuracy": accuracy, "pseudo_label_share": 0.6}
        late |= {f"threshold:{name}": 0.9 - 0.1 * number for number, name in enumerate(classes)}
        curves |= {name: np.where(epochs >= settings.schedule.label_from, last, np.nan) for name, last in late.items()}
    if settings.calibration is not None:
        curves["temperature"] = np.where(epochs >= settings.schedule.calibrate_from, 2.0, np.nan)
        curves["temperature_at_bound"] = curves["temperature"] * 0
    pandas.DataFrame(curves).to_csv(path, index_label="epoch", float_format="%.6g")


def sealed(folder: Path, changes: dict[str, Any]) -> None:
    """Changes entries of a record as a foreign program could, with checksums that fit."""
    record = json.loads((folder / "record.json").read_text())
    sums = record.pop("checksums")
    record |= changes
    sums["record.json"] = digest(json.dumps(record, sort_keys=True).encode())
    (folder / "record.json").write_text(json.dumps(record | {"checksums": sums}))


@cache
def bare_record() -> Record:
    """A record whose folder is gone."""
    with TemporaryDirectory() as place:
        return made_result(Path(place) / "run", Cell("paderborn", "time", "a→b", "DANN", 0)).record


def scored(method: str, task: str, seed: int, accuracy: float | None, ece: float | None = 0.1) -> Result:
    """A run with these scores on the target, or without labels; it has no folder, so no curves."""
    scores = None if accuracy is None else DomainScores(accuracy, ece, ece)
    made = replace(bare_record(), scores=Scores(None, scores))
    return Result(Cell("paderborn", "time", task, method, seed), made, Path("nowhere"))


def _estimates(expected: float) -> dict[str, Any]:
    """What a record says without labels where this accuracy is expected, and no check models could be fitted."""
    values = {
        "mean_confidence": expected, "accuracy": {"confidence": expected}, "window_agreement": 1.0,
        "expected": {"value": expected, "low": 0.0, "high": 1.0},
    }  # fmt: skip
    source = Estimate(0.9, 0.85, 0.94)
    evidence = ModelEvidence(Estimate(expected, 0.0, 1.0), True, source, 200, len(CLASSES))
    return {"estimates": values, "evidence": asdict(evidence), "decision": asdict(decide(evidence))}


def _bins(accuracy: float) -> dict[str, Any]:
    """Reliability in three bins, the first of which is empty."""
    edges = [0.0, 0.3, 0.6, 1.0]
    return {"edges": edges, "mass": [0, 20, 40], "confidence": [None, 0.5, 0.8], "accuracy": [None, 0.4, accuracy]}
