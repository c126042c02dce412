"""What labels of some target recordings say of a finished run: `bearcat check RUN --labels FILE`.

>>> check_run(Path("bearcat-out"), {"pump-B/07.wav": "healthy"})["verdict"]
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bearcat.calibration import Calibration
from bearcat.calibration.arrays import read
from bearcat.calibration.scaling import updated_temperature
from bearcat.deploy.model import Model, load_model, save_model
from bearcat.errors import InputError, suggest
from bearcat.record import PREDICTIONS, FittedCalibration, Record
from bearcat.report.results import Predictions, read_result
from bearcat.runs.record import drawable, log_probabilities_text, write_predictions
from bearcat.trust.accuracy import LEVEL, Estimate
from bearcat.trust.pooling import diagnose, tally
from bearcat.trust.shares import binomial_interval
from bearcat.trust.verdict import GOOD, SAFE

PRIOR_SPREAD = math.log(2)  # of the logarithm of the temperature, before there are labels
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
    """Compares the run with these labels, writes estimate, calibration, decision and verdict into its record and
    model; returns the entry. `labels` are all that are known: those of an earlier check are forgotten.

    Of the two runs of `bearcat adapt` it is the one whose model was saved. The recordings need not be drawn at random:
    those named by the verdict are the doubtful ones, so the interval is a cautious one for the others.
    """
    run, result = folder, read_result(folder).saved
    folder, record = result.folder, result.record
    classes, predictions = record.data.classes, result.predictions
    if not predictions.log_probabilities.shape[1]:
        raise InputError(f"{folder / PREDICTIONS}: has no log_probabilities to calibrate with; train the run again")
    checked = record.estimates.labelled or {"temperature_factor": 1.0, "before": record.decision.action}
    earlier, before = checked["temperature_factor"], checked["before"]
    if earlier != 1:  # labels of an earlier check are to be counted once: back to what the run itself said
        spread = _scaled(predictions.log_probabilities, 1 / earlier)
        predictions = replace(predictions, log_probabilities=spread, confidence=np.exp(spread.max(axis=1)))
    diagnosed: dict[str, Counter[str]] = {}
    for name, predicted in zip(predictions.recording, predictions.predicted, strict=True):
        diagnosed.setdefault(name, Counter())[predicted] += 1
    truth = {}
    for name, label in labels.items():
        if label not in classes:
            raise InputError(f"{name}: label '{label}' is no class of the model{suggest(label, classes)}")
        found = [recording for recording in diagnosed if recording == name or recording.endswith(f"/{name}")]
        if len(found) != 1:
            problem = "has no windows in the run's predictions" if not found else "names several recordings"
            raise InputError(f"{name}: {problem}{suggest(name, list(diagnosed))}")
        truth[found[0]] = label
    right = [name for name, label in truth.items() if diagnosed[name].most_common(1)[0][0] == label]
    low, high = binomial_interval(len(right), len(truth))
    known = [number for number, name in enumerate(predictions.recording) if name in truth]
    hits = [predictions.predicted[number] == truth[predictions.recording[number]] for number in known]
    share, confidence = float(np.mean(hits)), float(np.mean(predictions.confidence[known]))
    left = [name for name in record.decision.doubtful_recordings if name not in truth]
    found_rate = Estimate(len(right) / len(truth), low, high)
    choice = _decision(found_rate, list(truth.values()), record.decision.expected, before)
    factor = _temperature_factor(predictions, truth, classes)
    rows_written, updated = _cooled(folder, predictions, factor, truth)
    entry = {
        "recordings": len(truth), "right": len(right), "low": low, "high": high, "windows_right": share,
        "mean_confidence": confidence, "decision": choice, "temperature_factor": factor, "before": before,
        "mean_confidence_updated": updated,
    }  # fmt: skip
    entry["verdict"] = _verdict(entry, left)
    advised = {"action": choice, "sentence": entry["verdict"]}
    was = record.calibration or FittedCalibration(1.0, False)
    temperature = None if was.temperature is None else factor / earlier * was.temperature
    record = replace(
        record,
        calibration=replace(was, temperature=temperature, at_bound=False, labelled=len(truth)),
        estimates=replace(record.estimates, labelled=entry),
        decision=replace(record.decision, **advised),
    )
    model, record = _updated_model(run / "model", record, predictions, factor)
    write_predictions(folder / PREDICTIONS, rows_written)
    record.write(folder)
    if folder != run:  # whose record has the same diagnoses, with the lines that support them
        sure = {row["recording"]: {"confidence": row["confidence"]} for row in record.recordings or ()}
        main = Record.read(run)
        rows = tuple({**row, **sure[row["recording"]]} for row in main.recordings or ())
        main.amend(run, decision=replace(main.decision, **advised), recordings=rows)
    if model is not None:
        save_model(run / "model", model)
    if drawable():
        from bearcat.report.pages import write_run_page

        write_run_page(run)
    return entry


def _temperature_factor(predictions: Predictions, truth: Mapping[str, str], classes: Sequence[str]) -> float:
    """What the temperature is multiplied by, so that confidences on the labelled recordings are as good as they can be.

    The run's own calibration is the prior: a factor of two either way is as likely as not to be exceeded once in three
    times. A recording counts once, however many windows it has: they are no independent evidence.
    """
    windows = Counter(predictions.recording)
    labels = [classes.index(truth[name]) if name in truth else 0 for name in predictions.recording]
    weight = [1 / windows[name] if name in truth else 0.0 for name in predictions.recording]
    sample = read(predictions.log_probabilities, np.array(labels), np.array(weight))
    return float(updated_temperature(sample, PRIOR_SPREAD)[0])


def _cooled(
    folder: Path, predictions: Predictions, factor: float, truth: Mapping[str, str]
) -> tuple[list[dict[str, str]], float]:
    """The rows of the predictions with another temperature, and the labelled windows' confidence with it."""
    spread = _scaled(predictions.log_probabilities, factor)
    confidence = np.exp(spread.max(axis=1))
    with (folder / PREDICTIONS).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, sure, values in zip(rows, confidence, spread, strict=True):
        row |= {"confidence": f"{sure:.6f}", "log_probabilities": log_probabilities_text(values)}
    return rows, float(confidence[[name in truth for name in predictions.recording]].mean())


def _scaled(log_probabilities: NDArray[Any], factor: float) -> NDArray[Any]:
    values = log_probabilities / factor
    return np.asarray(values - np.logaddexp.reduce(values, axis=1, keepdims=True))


def _updated_model(
    folder: Path, record: Record, predictions: Predictions, factor: float
) -> tuple[Model | None, Record]:
    """The saved model with what it now says of itself and its calibration, and the record whose diagnoses follow it.

    The factor that its temperature has is kept in it, so that a check that was interrupted can be repeated.
    """
    if not folder.is_dir():
        return None, record
    model, decision = load_model(folder), record.decision
    said = model.metadata.get("estimates", {})
    metadata = {
        **model.metadata,
        "refusal": decision.sentence if decision.action == "do not use" else None,
        "estimates": {**said, "verdict": decision.sentence, "temperature_factor": factor},
    }
    before = model.calibration or Calibration.identity(1, len(model.classes))
    change = factor / said.get("temperature_factor", 1.0)
    after = replace(
        before, scale=before.scale / change, bias=before.bias / change, at_bound=torch.zeros_like(before.at_bound)
    )
    spread, of = _scaled(predictions.log_probabilities, factor), np.array(predictions.recording)
    rows = []
    for row in record.recordings or ():
        members = of == row["recording"]  # by its test windows: the others are not kept
        sure = diagnose(tally(spread[members]), model.pooled_temperature).confidence if members.any() else None
        rows.append(row if sure is None else {**row, "confidence": sure})
    updated = replace(model, calibration=after, calibrator=model.calibrator or "Temperature", metadata=metadata)
    return updated, replace(record, recordings=None if record.recordings is None else tuple(rows))


def _decision(found: Estimate, labels: Sequence[str], earlier: Estimate | None, before: str) -> str:
    """`before` is what the run itself said: a model that it forbids is not cleared by labels of one class."""
    if found.high < SAFE or (before == "do not use" and (found.low < SAFE or len(set(labels)) < 2)):
        return "do not use"
    confirmed = found.value == 1 and len(labels) >= ENOUGH and earlier is not None and earlier.value >= GOOD
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
        f" {100 * entry['mean_confidence']:.0f} % ({100 * entry['mean_confidence_updated']:.0f} % after the calibration"
        " was updated with these labels)."
    )
