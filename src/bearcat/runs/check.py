"""What labels of some target recordings say of a finished run: `bearcat check RUN --labels FILE`.

>>> check_run(Path("bearcat-out"), {"pump-B/07.wav": "healthy"})["verdict"]
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.deploy.model import load_model, save_model
from bearcat.errors import InputError, suggest
from bearcat.report.results import read_result
from bearcat.runs.record import add_estimate, drawable, read_record
from bearcat.trust.accuracy import Estimate
from bearcat.trust.shares import LEVEL, binomial_interval
from bearcat.trust.verdict import GOOD, SAFE, recorded_range

ENOUGH = 3  # recordings, all of them right, that confirm an estimate


def read_labels(path: Path) -> dict[str, str]:
    """A table with the columns recording and label."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    if not rows or not {"recording", "label"} <= set(rows[0]):
        raise InputError(f"{path}: must have the columns recording and label, and a row for each recording")
    return {str(row["recording"]): str(row["label"]) for row in rows}


def check_run(folder: Path, labels: Mapping[str, str]) -> dict[str, Any]:
    """Compares the run with these labels, writes estimate, decision and verdict into its record; returns the entry.

    The recordings need not be drawn at random: those named by the verdict are the doubtful ones, so the interval is
    a cautious one for the others.
    """
    record, result = read_record(folder), read_result(folder)
    classes, predictions = record["data"]["classes"], result.predictions
    diagnosed: dict[str, Counter[str]] = {}
    for name, predicted in zip(predictions.recording, predictions.predicted, strict=True):
        diagnosed.setdefault(name, Counter())[predicted] += 1
    truth = {}
    for name, label in labels.items():
        if label not in classes:
            raise InputError(f"{name}: label '{label}' is no class of the model{suggest(label, classes)}")
        found = [known for known in diagnosed if known == name or known.endswith(f"/{name}")]
        if len(found) != 1:
            problem = "has no windows in the run's predictions" if not found else "names several recordings"
            raise InputError(f"{name}: {problem}{suggest(name, list(diagnosed))}")
        truth[found[0]] = label
    right = [name for name, label in truth.items() if diagnosed[name].most_common(1)[0][0] == label]
    low, high = binomial_interval(len(right), len(truth))
    windows = [
        (predicted == truth[name], confidence)
        for name, predicted, confidence in zip(
            predictions.recording, predictions.predicted, predictions.confidence, strict=True
        )
        if name in truth
    ]
    share, confidence = (float(np.mean(column)) for column in zip(*windows, strict=True))
    left = [name for name in record["estimates"].get("doubtful_recordings", []) if name not in truth]
    choice = _decision(Estimate(len(right) / len(truth), low, high), len(truth), recorded_range(record))
    entry = {
        "recordings": len(truth), "right": len(right), "low": low, "high": high, "windows_right": share,
        "mean_confidence": confidence, "decision": choice,
    }  # fmt: skip
    entry["verdict"] = _verdict(entry, left)
    for name, value in (("labelled", entry), ("decision", choice), ("verdict", entry["verdict"])):
        add_estimate(folder, name, value)
    _update_model(folder / "model", choice, str(entry["verdict"]))
    if drawable():
        from bearcat.report.run_page import write_run_page

        write_run_page(folder, sorted(folder.glob("beside-*")))
    return entry


def _update_model(folder: Path, choice: str, verdict: str) -> None:
    """What the saved model says of itself."""
    if folder.is_dir():
        model = load_model(folder)
        estimates = {**model.metadata.get("estimates", {}), "verdict": verdict}
        refusal = verdict if choice == "do not use" else None
        save_model(folder, replace(model, metadata={**model.metadata, "refusal": refusal, "estimates": estimates}))


def _decision(found: Estimate, recordings: int, earlier: Estimate | None) -> str:
    if found.high < SAFE:
        return "do not use"
    confirmed = found.value == 1 and recordings >= ENOUGH and earlier is not None and earlier.value >= GOOD
    return "use" if found.low >= SAFE or confirmed else "check"


def _verdict(entry: Mapping[str, Any], left: list[str]) -> str:
    first = {
        "use": "Use it.",
        "check": f"Label more recordings{', such as ' + ', '.join(left) if left else ''}.",
        "do not use": "Do not use it.",
    }[entry["decision"]]
    return (
        f"{first} {entry['right']} of {entry['recordings']} labelled recordings are diagnosed rightly"
        f" ({100 * entry['low']:.0f} to {100 * entry['high']:.0f} % of such recordings, exact {100 * LEVEL:.0f} %"
        f" interval); {100 * entry['windows_right']:.0f} % of their windows are right, with a mean confidence of"
        f" {100 * entry['mean_confidence']:.0f} %."
    )
