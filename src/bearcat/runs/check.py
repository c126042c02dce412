"""What labels of some target recordings say of a finished run: `bearcat check RUN --labels FILE`.

>>> check_run(Path("bearcat-out"), {"pump-B/07.wav": "healthy"}).decision.sentence
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bearcat.calibration import Calibration
from bearcat.calibration.evidence import read
from bearcat.calibration.scaling import updated_temperature
from bearcat.deploy.model import load_model, save_model
from bearcat.errors import InputError, suggest
from bearcat.record import PREDICTIONS, LabelledRecordings, Record
from bearcat.report.results import Predictions, read_result
from bearcat.runs.adapt import decided_model
from bearcat.runs.record import drawable
from bearcat.trust.decision import ENOUGH, LabelCheck, decide

PRIOR_SPREAD = math.log(2)  # of the logarithm of the temperature, before there are labels


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


def check_run(folder: Path, labels: Mapping[str, str]) -> Record:
    """Compares the recommended model with these labels; decides anew, and recalibrates the model and its diagnoses.

    `labels` are all that are known: those of an earlier check are forgotten. The recordings need not be drawn at
    random: those that the decision asks for are the uncertain ones, so the interval is a cautious one for the others.
    Tables of the training run stay as they are.
    """
    result = read_result(folder)
    record, predictions = result.record, result.saved.predictions
    if not predictions.log_probabilities.shape[1]:
        raise InputError(f"{folder / PREDICTIONS}: has no log_probabilities to calibrate with; train the run again")
    found = {each.recording: each for each in record.recordings}
    truth = _named(labels, list(found), record.data.classes)
    right = sum(found[name].nearest == label for name, label in truth.items())
    counted = LabelCheck(len(truth), right, len(set(truth.values())))
    evidence = replace(record.evidence, labels=counted)
    left = tuple(name for name in evidence.uncertain if name not in truth)
    decision = decide(replace(evidence, uncertain=left))
    earlier = 1.0 if record.labelled is None else record.labelled.temperature_factor
    factor = _temperature_factor(predictions, truth, record.data.classes)
    recordings = tuple(each.tempered(factor / earlier).decided(decision.action) for each in record.recordings)
    labelled = LabelledRecordings(len(truth), right, factor)
    if (folder / "model").is_dir():
        model = load_model(folder / "model")
        change = factor / float(model.metadata.get("temperature_factor", 1.0))  # a check may have been interrupted here
        before = model.calibration or Calibration.identity(1, len(model.classes))
        after = replace(
            before, scale=before.scale / change, bias=before.bias / change, at_bound=torch.zeros_like(before.at_bound)
        )
        metadata = {**model.metadata, "temperature_factor": factor}
        model = replace(model, calibration=after, calibrator=model.calibrator or "Temperature", metadata=metadata)
        save_model(folder / "model", decided_model(model, decision))
    record = replace(record, evidence=evidence, decision=decision, recordings=recordings, labelled=labelled)
    record.write(folder)
    if drawable():
        from bearcat.report.pages import write_run_page

        write_run_page(folder)
    return record


def _named(labels: Mapping[str, str], recordings: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    """The labels by the recordings' full names."""
    truth = {}
    for name, label in labels.items():
        if label not in classes:
            raise InputError(f"{name}: label '{label}' is no class of the model{suggest(label, classes)}")
        found = [recording for recording in recordings if recording == name or recording.endswith(f"/{name}")]
        if len(found) != 1:
            problem = "is no recording of the run" if not found else "names several recordings"
            raise InputError(f"{name}: {problem}{suggest(name, recordings)}")
        truth[found[0]] = label
    return truth


def _temperature_factor(predictions: Predictions, truth: Mapping[str, str], classes: Sequence[str]) -> float:
    """What the temperature is multiplied by, so that confidences on the labelled recordings are as good as they can be.

    The run's own calibration is the prior: a factor of two either way is as likely as not to be exceeded once in three
    times. A recording counts once, however many windows it has: they are no independent evidence. A few labels, or
    labels of one class, make nothing surer: that a fault was recognised says nothing of how sure "healthy" is.
    """
    windows = Counter(predictions.recording)
    labels = [classes.index(truth[name]) if name in truth else 0 for name in predictions.recording]
    weight = [1 / windows[name] if name in truth else 0.0 for name in predictions.recording]
    if not any(weight):
        return 1.0
    sample = read(predictions.log_probabilities, np.array(labels), np.array(weight))
    factor = float(updated_temperature(sample, PRIOR_SPREAD)[0])
    return factor if len(truth) >= ENOUGH and len(set(truth.values())) > 1 else max(factor, 1.0)
