"""Folders of runs as bearcat writes them, with invented numbers: for tests of what reads them."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas

from bearcat.adaptation.run import COLUMNS
from bearcat.cat.recipes import RECIPES
from bearcat.cat.teacher import SelfTraining
from bearcat.diagnosis.accuracy import Source, Target, estimates
from bearcat.diagnosis.decision import decide
from bearcat.diagnosis.pooling import Pooled
from bearcat.diagnosis.recording import Diagnosis
from bearcat.record import Record
from bearcat.report.results import Cell, Result
from bearcat.storage import digest
from tests.pooled import by_model

CLASSES = ("healthy", "inner", "outer")


def made_diagnosis(recording: str, label: str = "inner", confidence: float = 0.9, agreement: float = 0.6) -> Diagnosis:
    """By a model whose classes are CLASSES."""
    rest = (1 - confidence) / (len(CLASSES) - 1)
    shares = np.array([confidence if name == label else rest for name in CLASSES])
    return by_model(recording, Pooled(shares, agreement, 10, 0.2, True), CLASSES, "use")


def made_result(
    folder: Path, cell: Cell, accuracy: float = 0.8, classes: tuple[str, ...] = CLASSES, windows: int = 60,
    epochs: int = 6, recipe: str | None = None, labelled: bool = True, expected: float | None = None, **changes: Any,
) -> Result:  # fmt: skip
    """A finished run whose target accuracy is about `accuracy`; `changes` replace fields of its record.

    Its estimates expect the accuracy `expected`, or the true one.
    """
    folder.mkdir(parents=True)
    recipe = recipe or (cell.method if cell.method in RECIPES else "CAT*-Temperature")
    settings = RECIPES[recipe].for_input(cell.input).in_epochs(epochs)
    random = np.random.default_rng([cell.seed, sum(map(ord, cell.task + cell.method))])
    label = random.integers(len(classes), size=windows)
    right = np.arange(windows) < round(accuracy * windows)
    predicted = np.where(right, label, (label + 1 + random.integers(len(classes) - 1, size=windows)) % len(classes))
    confidence = random.uniform(1 / len(classes), 1, size=windows)
    spread = np.log(np.repeat((1 - confidence[:, None]) / (len(classes) - 1), len(classes), axis=1))
    spread[np.arange(windows), predicted] = np.log(confidence)
    names = np.array(classes)
    predictions = {
        "recording": [f"{name}.mat" for name in names[label]], "start": 1024 * np.arange(windows),
        "label": names[label] if labelled else "", "predicted": names[predicted], "confidence": confidence,
        "confidence_uncalibrated": np.minimum(1, confidence + 0.1),
        "log_probabilities": [" ".join(f"{value:.5g}" for value in row) for row in spread],
    }  # fmt: skip
    columns = list(COLUMNS)
    pandas.DataFrame(predictions, columns=columns).to_csv(folder / "predictions.csv", index=False, float_format="%.6f")
    calibrated = settings.calibration is not None
    curves: dict[str, np.ndarray] = {"loss_supervised": np.linspace(1, 0.1, epochs)}
    teaching = settings.find(SelfTraining) is not None
    for network in ("student", *(["teacher"] if teaching else [])):
        for where in ("source", "target"):
            curves[f"{where}_accuracy_{network}"] = np.linspace(0.3, accuracy, epochs)
            curves[f"{where}_ece_{network}"] = np.linspace(0.3, 0.05, epochs)
            curves[f"{where}_ece_uncalibrated_{network}"] = np.linspace(0.3, 0.1, epochs)
    if teaching:
        late = np.arange(epochs) >= settings.schedule.label_from
        curves["pseudo_label_accuracy"] = np.where(late, accuracy, np.nan)
        curves["pseudo_label_share"] = np.where(late, 0.6, np.nan)
        curves |= {
            f"threshold:{name}": np.where(late, 0.9 - 0.1 * number, np.nan) for number, name in enumerate(classes)
        }
    if calibrated:
        curves["temperature"] = np.where(np.arange(epochs) >= settings.schedule.calibrate_from, 2.0, np.nan)
        curves["temperature_at_bound"] = curves["temperature"] * 0
    pandas.DataFrame(curves).to_csv(folder / "curves.csv", index_label="epoch", float_format="%.6g")
    found = float(np.mean(right))
    scores = {
        "accuracy": found, "accuracy_uncalibrated": found, "ece": 0.05, "ece_uncalibrated": 0.1, "ece15": 0.06,
        "ece15_uncalibrated": 0.11, "nll": 0.7, "brier": 0.3,
    }  # fmt: skip
    source, _, target = cell.task.partition("→")
    record = {
        "scores": {"source": scores | {"accuracy": 0.98}, "target": scores if labelled else None},
        "calibration": {"temperature": 2.0, "at_bound": False} if calibrated else None,
        "reliability": {
            "source": _reliability(found, calibrated), "target": _reliability(found, calibrated) if labelled else None,
        },
        "failed": False, "collapsed": False, "never_predicted": [], "warnings": [],
        "settings": {
            "data": {"name": cell.dataset}, "source": source.split("+"), "target": target,
            "preparation": {"input": cell.input, "length": 1024, "stride": None, "rate": None},
            "split": {"scheme": "window", "test": 0.2, "gap": 1}, "recipe": {"name": recipe} | settings.to_dict(),
        },
        "seed": cell.seed,
        "data": {
            "classes": list(classes), "source_train": 240, "source_test": 60, "target_train": 240,
            "target_test": windows, "identity": "0" * 64,
        },
        "device": "cpu",
        "versions": {"bearcat": "0", "result": "1", "python": "3", "torch": "2", "numpy": "2"},
        "seconds": 12.5, "recordings": [],
    }  # fmt: skip
    record |= made_estimates(found if expected is None else expected) | changes
    made = Record.from_dict(json.loads(json.dumps(record)))
    made.write(folder)
    return Result(cell, made, folder)


def sealed(folder: Path, changes: dict[str, Any]) -> None:
    """Changes entries of a record as a foreign program could, with checksums that fit."""
    found = json.loads((folder / "record.json").read_text())
    sums = found.pop("checksums")
    plain = json.dumps(found | changes, sort_keys=True).encode()
    (folder / "record.json").write_text(
        json.dumps(found | changes | {"checksums": sums | {"record.json": digest(plain)}})
    )


@cache
def bare_record() -> Record:
    """A record whose folder is gone."""
    with TemporaryDirectory() as place:
        return made_result(Path(place) / "run", Cell("paderborn", "time", "a→b", "DANN", 0)).record


def made_estimates(expected: float) -> dict[str, Any]:
    """What a record says without labels where about `expected` is expected."""
    random = np.random.default_rng(0)

    def domain(windows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
        probabilities = np.full((windows, 3), (1 - expected) / 2)
        confidence = np.clip(expected + 0.03 * random.standard_normal(windows), 0.34, 0.999)
        probabilities[:, 0], probabilities[:, 1:] = confidence, ((1 - confidence) / 2)[:, None]
        labels = np.arange(windows) % classes
        predicted = np.where(random.random(windows) < expected, labels, (labels + 1) % classes)
        return np.log(probabilities[np.arange(windows)[:, None], (np.arange(3) - predicted[:, None]) % 3]), labels

    source, target = Source(*domain(200, 3)), Target(domain(60, 1)[0], np.arange(60) % 6)
    familiarity = {
        "rate": 0.05, "distance_limit": 1.0, "shape_limit": 1.0, "recording_limit": 0.1,
    }  # fmt: skip
    found, evidence = estimates(source, target, familiarity)
    decided = {"evidence": asdict(evidence), "decision": asdict(decide(evidence))}
    return {"estimates": found} | decided


def _reliability(accuracy: float, calibrated: bool) -> dict[str, Any]:
    edges = np.linspace(0, 1, 11)
    mass = [0, 0, 0, 0, 5, 5, 10, 10, 10, 20]  # windows in each bin
    confidence = [None, None, None, None, *((edges[4:-1] + edges[5:]) / 2)]
    right = [None, None, None, None, *np.clip((edges[4:-1] + edges[5:]) / 2 - 0.2 + 0.2 * accuracy, 0, 1)]
    bins = {"edges": list(edges), "mass": mass, "confidence": confidence, "accuracy": right}
    return {"uncalibrated": bins, "calibrated": bins if calibrated else None}
