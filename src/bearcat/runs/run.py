"""Trains a stack of runs and writes a folder for each.

    FOLDER/
      record.json        scores, estimates, settings, seed, data, versions, seconds; written last: it says "finished"
      predictions.csv    one row per target test window
      curves.csv         one row per epoch
      run.json           which run this folder is for
      model/             the trained model, if wanted
      reliability.png    source and target, before and after calibration, if wanted
      track/             what a tracker wrote, if wanted

Only this module writes such a folder: `bearcat adapt` trains stacks of one, a benchmark many stacks.

>>> (record,) = run_stack([spec], [Path("out")], torch.device("cpu"))
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bearcat.calibration import Calibration, reliability_bins
from bearcat.data import SplitTask, Windows
from bearcat.data.recording import healthy_class
from bearcat.data.tasks import UNKNOWN, HeldBack
from bearcat.deploy.model import Model, save_model
from bearcat.diagnosis.recording import Diagnosis
from bearcat.models.networks import select_run
from bearcat.record import CURVES, PREDICTIONS, RECORD, Record
from bearcat.report.figures import write_reliability
from bearcat.runs.record import Evaluation, claim, log_probabilities_text, make_record, tracked, write_predictions
from bearcat.runs.spec import Library, RunSpec
from bearcat.storage import digest_json, write_atomically
from bearcat.training.batches import padded_stack
from bearcat.training.evaluate import EpochEnd, RunEvidence, estimate_runs, predict, scores, unknown_recordings, watcher
from bearcat.training.loop import Run, Trained, train
from bearcat.trust.pooling import Tally, pool, pooled_temperature, tally

EXTRAS = ("model", "picture")  # what a folder may also hold
MOST_RECORDINGS, MOST_WINDOWS = 200, 200  # of the target, and of each, that a record diagnoses


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A trained and evaluated run, as its folder holds it."""

    record: Record
    model: Model | None  # if wanted
    predictions: Sequence[Mapping[str, Any]]  # a row for each target test window
    curves: Mapping[str, Sequence[float]]  # columns over epochs; nan where a number did not exist


def run_stack(
    specs: Sequence[RunSpec],
    folders: Sequence[Path],
    device: torch.device,
    progress: Callable[[EpochEnd], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    keep: Sequence[str] = (),
    library: Library | None = None,
    track: str | None = None,
) -> list[Record]:
    """Trains these runs, whose stack keys must agree, together and writes a folder for each; returns their records.

    Folders that hold their record already are left alone, and where all do, nothing is trained. `keep` is a part of
    EXTRAS, `track` a name of track.TRACKERS, which then writes into FOLDER/track.
    """
    found = train_stack(
        specs, folders, device, progress, checkpoint, checkpoint_seconds, keep, library, track, finished=True
    )
    for folder, run in zip(folders, found, strict=True):
        if not (folder / RECORD).exists():
            write_run(folder, run, keep)
    return [run.record for run in found]


def train_stack(
    specs: Sequence[RunSpec],
    folders: Sequence[Path],
    device: torch.device,
    progress: Callable[[EpochEnd], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    keep: Sequence[str] = (),
    library: Library | None = None,
    track: str | None = None,
    finished: bool = False,
) -> list[FinishedRun]:
    """The same without writing; the folders are claimed for the runs. `finished`: those with a record are read."""
    library = library or Library()
    specs = [library.identified(spec) for spec in specs]
    done = [finished and (folder / RECORD).exists() for folder in folders]
    splits = [] if all(done) else [library.split(spec) for spec in specs]  # data that do not do leave no folder
    for folder, spec in zip(folders, specs, strict=True):
        claim(folder, spec)
    read = {place: FinishedRun(Record.read(folders[place]), None, (), {}) for place in range(len(specs)) if done[place]}
    if all(done):
        return [read[place] for place in range(len(specs))]
    started = time.monotonic()
    known = [library.evidence(spec, split) for spec, split in zip(specs, splits, strict=True)]
    runs = [
        Run(spec.recipe, split.training, spec.seed, evidence.train_checks)
        for spec, split, evidence in zip(specs, splits, known, strict=True)
    ]
    edges = specs[0].recipe.ece_edges
    watch = watcher([split.held_back for split in splits], device, edges)
    tracks = {place: folders[place] / "track" for place in range(len(specs)) if not done[place]}
    with tracked(track, tracks, progress) as show:
        identity = digest_json([spec.identity for spec in specs])
        trained = train(
            runs, device, watch, show, checkpoint, checkpoint_seconds, specs[0].precision, identity=identity
        )  # fmt: skip
    evaluations = evaluate(trained, splits, device, known, edges)
    seconds, found = time.monotonic() - started, []
    for place, (spec, split, evaluation) in enumerate(zip(specs, splits, evaluations, strict=True)):
        if done[place]:
            found.append(read[place])
            continue
        record = make_record(spec, split, evaluation, trained, device, seconds)
        model = None
        if "model" in keep:
            model = _model(trained, place, spec, split, evaluation, record)
            if evaluation.finite:
                unknown = [split.target.recordings[number].origin for number in evaluation.unknown]
                model, diagnoses = diagnose_target(model, split.target, unknown)
                record = replace(record, recordings=tuple(diagnoses))
                if (total := len(split.target.recordings)) > MOST_RECORDINGS:
                    only = f"only the first {MOST_RECORDINGS} of {total} target recordings are diagnosed here"
                    record = replace(record, warnings=(*record.warnings, f"{only}; use bearcat predict for the others"))
        columns = _curves(trained, place, split.training.classes)
        found.append(FinishedRun(record, model, _predictions(split, evaluation), columns))
    return found


def write_run(folder: Path, run: FinishedRun, keep: Sequence[str] = ()) -> None:
    """Writes the folder of a run, its record last."""
    write_predictions(folder / PREDICTIONS, run.predictions)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["epoch", *run.curves])
    for epoch, cells in enumerate(zip_longest(*run.curves.values(), fillvalue=math.nan)):
        writer.writerow([epoch, *("" if math.isnan(cell) else f"{cell:.6g}" for cell in cells)])
    write_atomically(folder / CURVES, text.getvalue().encode())
    if run.model is not None:
        save_model(folder / "model", run.model)
    if "picture" in keep:
        write_reliability(run.record.reliability, folder / "reliability.png")
    run.record.write(folder)


def evaluate(
    trained: Trained,
    splits: Sequence[SplitTask],
    device: torch.device,
    evidence: Sequence[RunEvidence],
    edges: str = "upper",
) -> list[Evaluation]:
    """What the final networks say of the test windows, for each run of the stack; `edges` are those of ECE's bins."""
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    labels = {
        "source": trained.batches.source_test_labels,
        "target": padded_stack([split.held_back.target_test_labels for split in splits], UNKNOWN, device),
    }
    outputs = {
        "source": predict(trained.network, trained.batches.source_test),
        "target": predict(trained.network, values),
    }
    stack = trained.calibration
    plain = {domain: logits for domain, (logits, _) in outputs.items()}
    calibrated = plain if stack is None else {domain: stack.apply(logits) for domain, logits in plain.items()}
    estimates = estimate_runs(trained, splits, evidence, outputs["source"], outputs["target"])
    scored = {domain: scores(plain[domain], stack, labels[domain], edges) for domain in labels}
    other = trained.source_calibration if trained.source_calibration is not stack else None
    for domain, found in scored.items() if other is not None else ():
        by_source = scores(plain[domain], other, labels[domain], edges)
        found |= {f"{name}_source_calibrated": by_source[name] for name in ("ece", "ece15")}
    source = calibrated["source"].double().log_softmax(dim=-1).cpu().numpy()
    target, uncalibrated = (each["target"].softmax(dim=-1).cpu().numpy() for each in (calibrated, plain))

    def of_run(number: int, split: SplitTask) -> Evaluation:
        windows = len(split.held_back.target_test)
        found: dict[str, dict[str, Any] | None] = {"source": None, "target": None}
        diagrams = dict(found)
        for domain in labels:
            truth = labels[domain][number]
            if bool((truth != UNKNOWN).any()):
                own: dict[str, Any] = {name: _number(score[number]) for name, score in scored[domain].items()}
                if domain == "target":
                    own |= alarm_scores(target[number, :windows], split.held_back, split.classes)
                found[domain] = own
                after = None if stack is None else _bins(calibrated[domain][number], truth)
                diagrams[domain] = {"uncalibrated": _bins(plain[domain][number], truth), "calibrated": after}
        return Evaluation(
            source=source[number, : len(split.training.source_test)],
            target=target[number, :windows],
            target_uncalibrated=uncalibrated[number, :windows],
            finite=bool(trained.finite[number]),
            calibration=stack
            and Calibration.from_state(
                {name: value[number : number + 1].cpu() for name, value in stack.state().items()}
            ),
            source_temperature=None if other is None else _number(other.temperature[number]),
            scores=found,
            reliability=diagrams,
            trust=estimates[number],
            finding=trained.findings[number],
            unknown=unknown_recordings(trained.findings[number], split),
        )

    return [of_run(number, split) for number, split in enumerate(splits)]


def alarm_scores(probabilities: np.ndarray, held_back: HeldBack, classes: Sequence[str]) -> dict[str, Any]:
    """Recordings with known labels and the share diagnosed rightly; false alarms and missed faults.

    The rates, of windows and of recordings, are None where no class is called healthy or normal, or where the target
    has none to count.
    """
    windows, truth = held_back.target_test.recording, held_back.target_test_labels
    diagnosed, right = [], []
    for number in np.unique(windows[truth != UNKNOWN]):
        members = windows == number
        counted = tally(_log(probabilities[members]))
        diagnosed.append(pool(counted).index)
        right.append(truth[members][0])
    hits = np.equal(diagnosed, right)
    found: dict[str, Any] = {
        "recordings": len(right), "recording_accuracy": float(hits.mean()) if right else None,
    }  # fmt: skip
    healthy = healthy_class(classes)
    code = UNKNOWN if healthy is None else list(classes).index(healthy)
    for prefix, predicted, labels in (
        ("", probabilities.argmax(axis=1)[truth != UNKNOWN], truth[truth != UNKNOWN]),
        ("recording_", np.array(diagnosed), np.array(right)),
    ):
        sound, faulty = (labels == code, labels != code) if healthy else (labels < 0, labels < 0)
        alarms = predicted != code
        found[f"{prefix}false_alarms"] = float(alarms[sound].mean()) if sound.any() else None
        found[f"{prefix}missed_faults"] = float((~alarms[faulty]).mean()) if faulty.any() else None
    return found


def _bins(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """What a reliability diagram draws of one run; `mass` counts windows, None stands where a bin has none."""
    known = labels != UNKNOWN
    found = reliability_bins(logits.softmax(dim=-1), labels.clamp(min=0), known.to(logits.dtype))
    return {
        "edges": found.edges.tolist(),
        "mass": [round(share) for share in (found.mass.nan_to_num() * known.sum()).tolist()],
        "confidence": [_number(value) for value in found.confidence],
        "accuracy": [_number(value) for value in found.accuracy],
    }


def _log(probabilities: np.ndarray) -> np.ndarray:
    """Log-probabilities, finite where float32 has rounded to 0."""
    return np.asarray(np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)))


def _number(value: Tensor) -> float | None:
    """A plain number; None for nan, which JSON does not know."""
    number = float(value)
    return number if math.isfinite(number) else None


def diagnose_target(model: Model, windows: Windows, unknown: Sequence[str] = ()) -> tuple[Model, list[Diagnosis]]:
    """The diagnosis of each recording of the target, of windows that are evenly spaced where there are many.

    The model that is returned with them is familiar with these recordings, but for those of an `unknown` class.
    """
    tallies: dict[str, Tally] = {}
    for number, info in enumerate(windows.recordings[:MOST_RECORDINGS]):
        members = np.flatnonzero(windows.recording == number)
        members = members[:: math.ceil(len(members) / MOST_WINDOWS) or 1]
        if not len(members):
            continue
        part = windows[members]
        outputs, unfamiliar = model.classify(part.values), None
        if model.familiarity is not None and part.shapes is not None:
            unfamiliar = model.familiarity.unfamiliar(outputs.features, part.shapes)
        tallies[info.origin] = tally(outputs.log_probabilities, unfamiliar)
    if model.familiarity is not None:
        known = [counted for origin, counted in tallies.items() if origin not in unknown]
        shares = [(counted.unfamiliar or 0) / counted.windows for counted in known]
        model = replace(model, familiarity=model.familiarity.covering(shares))
    found = []
    for origin, counted in tallies.items():
        pooled = pool(counted, model.pooled_temperature, model.familiarity)
        pooled = replace(pooled, familiar=False) if origin in unknown else pooled
        found.append(Diagnosis.by_model(origin, pooled, model.classes, model.decision.action))
    return model, found


def _model(
    trained: Trained, number: int, spec: RunSpec, split: SplitTask, evaluation: Evaluation, record: Record
) -> Model:
    """One run of the stack as a model of its own, with what its card says of the run."""
    training, rate = split.training, split.target.recordings[0].rate
    channels, points = split.target.values.shape[1:]
    network = select_run(trained.network, number, spec.recipe.encoder, channels, points)
    recordings = split.held_back.target_test.recording
    speeds = {None if recording.rpm_channel else recording.rpm for recording in split.target.recordings}
    names = {recording.channel for recording in split.target.recordings}
    bearings = {recording.bearing for recording in split.target.recordings}
    bearing = next(iter(bearings)) if len(bearings) == 1 else None
    sizes = ("source_train", "source_test", "target_train", "target_test")
    card = {
        "channel": next(iter(names)) if len(names) == 1 else None, "bearing": bearing and asdict(bearing),
        "rpm": next(iter(speeds)) if len(speeds) == 1 else None,
        "recipe": spec.recipe_name, "task": str(spec.task), "seed": spec.seed, "versions": dict(record.versions),
        "data": {"name": spec.data} | {name: getattr(record.data, name) for name in sizes},
        "scores": {domain: found for domain, found in evaluation.scores.items() if found is not None},
        "limits": list(record.warnings), "decision": asdict(record.decision),
        "pooled_recordings": len(set(recordings.tolist())),
    }  # fmt: skip
    spread = _log(evaluation.target)
    pooled = pooled_temperature(spread, recordings, float(evaluation.target.max(axis=1).mean()))
    familiarity = evaluation.trust.familiarity
    return Model(
        training.classes, spec.preparation, rate, card, channels, pooled, familiarity if familiarity.usable else None,
        network=network, calibration=evaluation.calibration, encoder=spec.recipe.encoder,
        calibrator=spec.recipe.final or spec.recipe.calibration,
    )  # fmt: skip


def _predictions(split: SplitTask, evaluation: Evaluation) -> list[dict[str, Any]]:
    """The rows of predictions.csv."""
    calibrated, plain, test = evaluation.target, evaluation.target_uncalibrated, split.held_back.target_test
    spread = _log(calibrated)
    rows = []
    for row in np.lexsort((test.start, test.recording)):
        recording = test.recordings[int(test.recording[row])]
        predicted = split.training.classes[int(calibrated[row].argmax())]
        rows.append({
            "recording": recording.origin, "start": int(test.start[row]), "label": recording.label or "",
            "predicted": predicted, "confidence": f"{calibrated[row].max():.6f}",
            "confidence_uncalibrated": f"{plain[row].max():.6f}",
            "log_probabilities": log_probabilities_text(spread[row]),
        })  # fmt: skip
    return rows


def _curves(trained: Trained, number: int, classes: Sequence[str]) -> dict[str, list[float]]:
    """The columns of curves.csv but the epochs; thresholds by the names of classes."""
    names = {f"threshold_{code}": f"threshold:{label}" for code, label in enumerate(classes)}
    return {names.get(name, name): values[:, number].tolist() for name, values in trained.history.items()}
