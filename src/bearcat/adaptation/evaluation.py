"""What finished runs say of their test windows, what is known of them without target labels, and their records.

Estimates are numpy and know one run (bearcat.diagnosis); here every run of a stack gets its own rows. Target labels are
read for scores alone, and by `check_run`: what labels of some recordings say later.

>>> (evaluation,) = evaluate(trained, [split], [run_checks(split, "physics")[0]])
>>> make_record(spec, split, evaluation, trained, 0, seconds=12.5).write(folder)
>>> check_run(Path("out"), {"pump-B/07.wav": "healthy"}).decision.sentence
"""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import bearcat
from bearcat.cat import Calibration, reliability_bins
from bearcat.cat.algorithm import Trained
from bearcat.cat.calibration import read, scores
from bearcat.cat.networks import predict
from bearcat.cat.state import RESULT_VERSION, unchanged
from bearcat.data.datasets import inside
from bearcat.data.manifest import read_cells
from bearcat.data.recording import Windows, healthy_class
from bearcat.data.tasks import UNKNOWN, SplitTask
from bearcat.deploy.model import load_model, save_model
from bearcat.diagnosis.accuracy import MOST_WINDOWS, Target, check_predictions, estimates, representations
from bearcat.diagnosis.decision import ENOUGH, LabelCheck, ModelEvidence, decide
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.pooling import KEPT_WINDOWS, Familiarity, fit_familiarity, pooled_temperature
from bearcat.diagnosis.recording import AlarmRule
from bearcat.errors import InputError, suggest
from bearcat.fast.device import padded_stack
from bearcat.methods.target_calibration import updated_temperature
from bearcat.record import (
    DataSizes,
    DomainScores,
    Estimates,
    FittedCalibration,
    LabelledRecordings,
    Record,
    RecordedBins,
    Reliability,
    RunSettings,
    Scores,
)
from bearcat.report import Predictions, read_result
from bearcat.settings import from_plain, to_plain

if TYPE_CHECKING:
    from bearcat.adaptation import RunSpec

PRIOR_SPREAD = math.log(2)  # of the logarithm of the temperature, before there are labels


Checks = dict[str, NDArray[np.int64]]  # what each check model says of some windows (diagnosis/accuracy.py)


def run_checks(split: SplitTask, kind: str) -> tuple[Checks, Checks]:
    """What is known without the network of the target's test windows, and of its training windows; `kind` is their
    input.
    """
    unlabelled, recording = split.target_train[:MOST_WINDOWS], split.target.recording  # in random order
    judged, tested = np.concatenate([split.target_test, split.target_train]), len(split.target_test)

    def represented(windows: Windows, indices: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        part = windows[indices]
        return representations(np.asarray(part.values), np.asarray(part.shapes), kind)

    source, labels = represented(split.source, split.source_train), split.training.source_train.labels
    target, windows = represented(split.target, unlabelled), represented(split.target, judged)
    checks = {
        f"{name}, {model}": predicted
        for name in source
        for model, predicted in check_predictions(
            source[name], labels, target[name], recording[unlabelled], windows[name]
        ).items()
    }
    of_test = {name: predicted[:tested] for name, predicted in checks.items()}
    return of_test, {name: predicted[tested:] for name, predicted in checks.items()}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the final network of a run says of its test windows, and what follows without target labels."""

    target: NDArray[np.float32]  # (window, class) calibrated probabilities
    calibration: Calibration | None  # of this run alone, on the CPU
    estimates: Estimates
    evidence: ModelEvidence  # for the decision on the model
    familiarity: Familiarity | None  # None where training broke down
    unfamiliar: NDArray[np.bool_]  # (window,) of the target's test windows
    pooled_temperature: float
    unknown: tuple[str, ...]  # recordings that were found to show a class the source lacks
    scores: Scores
    reliability: Reliability


def evaluate(trained: Trained, splits: Sequence[SplitTask], checks: Sequence[Checks]) -> list[Evaluation]:
    """What the final networks say of the test windows, for each run of the stack.

    Estimators read probabilities by the source's calibration; confidences that users see are by that of the finished
    network. Of the training windows at most KEPT_WINDOWS are used, so that the end of a run stays short.
    """
    device, final, batches = trained.finite.device, trained.calibration, trained.batches
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    labels = {
        "source": batches.source_test_labels,
        "target": padded_stack([split.held_back.target_test_labels for split in splits], UNKNOWN, device),
    }
    (source, _), (target, features) = (predict(trained.network, windows) for windows in (batches.source_test, values))
    plain = {"source": source, "target": target}
    calibrated = plain if final is None else {domain: final.apply(logits) for domain, logits in plain.items()}
    scored = {domain: scores(plain[domain], final, labels[domain]) for domain in labels}

    def log_probabilities(logits: Tensor, calibration: Calibration | None = trained.source_calibration) -> Tensor:
        return (logits if calibration is None else calibration.apply(logits)).double().log_softmax(dim=-1)

    on_device = {
        "probabilities": calibrated["target"].softmax(dim=-1),
        "shown": log_probabilities(target, final),
        "source_labels": batches.source_test_labels,
        "source": log_probabilities(source),
        "target": log_probabilities(target),
        "features": features,
        "train_features": predict(trained.network, batches.target_train[:, :KEPT_WINDOWS])[1],
    }
    on_host = {name: value.cpu().numpy() for name, value in on_device.items()}
    evaluations = []
    for run, (split, known) in enumerate(zip(splits, checks, strict=True)):
        rows, held = {name: values[run] for name, values in on_host.items()}, split.held_back
        windows, finding, calibration = len(held.target_test), trained.findings[run], None
        unknown = sorted(split.target_order[list(finding.unknown) if finding else []].tolist())
        likely = rows["probabilities"][:windows]
        if final is not None:
            calibration = final.changed(lambda value, run=run: value[run : run + 1].cpu())  # type: ignore[misc]
        of_domain, diagrams = dict[str, DomainScores | None](), dict[str, dict[str, RecordedBins | None] | None]()
        for domain, codes in labels.items():
            of_domain[domain] = diagrams[domain] = None
            if bool((codes[run] != UNKNOWN).any()):
                of_domain[domain] = DomainScores(**{name: _plain(score[run]) for name, score in scored[domain].items()})
                before, after = (_bins(logits[domain][run], codes[run]) for logits in (plain, calibrated))
                diagrams[domain] = {"uncalibrated": before, "calibrated": None if final is None else after}
        usable = bool(trained.finite[run]), calibration is not None and not bool(calibration.at_bound.any())
        evaluations.append(Evaluation(
            likely, calibration, *_estimates(rows, split, known, unknown, *usable),
            pooled_temperature(log_of(likely), held.target_test.recording, float(likely.max(axis=1).mean())),
            tuple(split.target.recordings[number].origin for number in unknown), Scores(**of_domain), diagrams,
        ))  # fmt: skip
    return evaluations


def _estimates(
    rows: dict[str, np.ndarray], split: SplitTask, known: Checks, unknown: Sequence[int], finite: bool,
    calibrated: bool,
) -> tuple[Estimates, ModelEvidence, Familiarity | None, NDArray[np.bool_]]:  # fmt: skip
    """Estimates of one run, its evidence, limits of familiar windows, and which test windows are beyond them.

    `rows` are the run's own of the stack, which end in padding where other runs have more; `unknown` recordings show a
    class that the source lacks, and a model is not familiar with them.
    """
    held, of_source = split.held_back, rows["source_labels"] != UNKNOWN
    windows, tested_in, labels = len(held.target_test), held.target_test.recording, rows["source_labels"][of_source]
    right = rows["source"][of_source].argmax(axis=1) == labels
    target = Target(rows["target"][:windows], tested_in, known)
    learnt, shapes = split.target_train[:KEPT_WINDOWS], np.asarray(held.target_test.shapes)
    train_shapes, train_recording = np.asarray(split.target.shapes)[learnt], split.target.recording[learnt]
    features, train_features = rows["features"][:windows], rows["train_features"][: len(learnt)]
    kept, tested = (~np.isin(recordings, unknown) for recordings in (train_recording, tested_in))
    familiarity = fit_familiarity(
        train_features[kept], train_shapes[kept], train_recording[kept], features[tested], shapes[tested],
        tested_in[tested],
    )  # fmt: skip
    unfamiliar = familiarity.unfamiliar(features, shapes)
    called = {split.classes[code] for code in np.unique(target.predicted).tolist()}
    alone = len(called) == 1 and healthy_class(split.classes) not in called and len(np.unique(tested_in)) > 1
    values, evidence = estimates(
        right, labels, target, finite, called.pop() if alone else None,
        calibrated, [info.origin for info in held.target_test.recordings], rows["shown"][:windows], split.trust_shift,
    )  # fmt: skip
    return from_plain(Estimates, values), evidence, familiarity if familiarity.usable else None, unfamiliar


def _bins(logits: Tensor, labels: Tensor) -> RecordedBins:
    """What a reliability diagram draws of one run."""
    labelled = labels != UNKNOWN
    bins = reliability_bins(logits.softmax(dim=-1), labels.clamp(min=0), labelled.to(logits.dtype))
    windows = (bins.mass.nan_to_num() * labelled.sum()).round().tolist()
    confidence, accuracy = (tuple(map(_plain, values)) for values in (bins.confidence, bins.accuracy))
    return RecordedBins(tuple(bins.edges.tolist()), tuple(windows), confidence, accuracy)


def log_of(probabilities: np.ndarray) -> np.ndarray:
    """Log-probabilities, finite where float32 has rounded to 0."""
    return np.asarray(np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)))


def _plain(value: Tensor) -> float | None:
    """A plain number; None for nan, which JSON does not know."""
    number = float(value)
    return number if math.isfinite(number) else None


def make_record(
    spec: RunSpec, split: SplitTask, evaluation: Evaluation, trained: Trained, number: int, seconds: float
) -> Record:
    """Everything that is known of this run of a stack, but its diagnoses. `seconds` are those of the whole stack."""
    calibration, evidence, finding = evaluation.calibration, evaluation.evidence, trained.findings[number]
    predicted, labels = set(evaluation.target.argmax(axis=1).tolist()), split.held_back.target_test_labels
    several = len(np.unique(labels[labels != UNKNOWN])) > 1  # classes in the target, as far as labels say
    finite, warnings, fitted = bool(trained.finite[number]), [*spec.warnings, *split.warnings], None
    if not finite:
        warnings.append("the loss turned NaN or infinite; the run was stopped there and its numbers mean nothing")
    warnings += unchanged(spec.recipe_name, spec.recipe, trained.history, number)
    if calibration is not None:
        fitted = FittedCalibration(_plain(calibration.temperature[0]), bool(calibration.at_bound[0]))
        if fitted.at_bound:
            bound = f"the temperature ended at its bound, {fitted.temperature:g}"
            warnings.append(f"{bound}: the source's test windows do not fix it")
    device, labelled = trained.finite.device, trained.history.get("pseudo_label_share")
    return Record(
        scores=evaluation.scores,
        estimates=evaluation.estimates,
        evidence=evidence,
        decision=decide(evidence),
        calibration=fitted,
        reliability=evaluation.reliability,
        failed=not finite,
        collapsed=evidence.one_class is not None or (several and len(predicted) == 1),
        never_predicted=tuple(name for code, name in enumerate(split.classes) if code not in predicted),
        warnings=tuple(warnings),
        settings=RunSettings.from_dict(spec.to_dict()),
        seed=spec.seed,
        data=DataSizes(
            split.classes, len(split.source_train), len(split.source_test), len(split.target_train),
            len(split.target_test), spec.identity,
        ),
        device=str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        versions={
            "bearcat": bearcat.__version__, "result": str(RESULT_VERSION), "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__,
        },
        seconds=round(seconds, 2),
        stack=len(trained.finite),
        pseudo_label_share=None if labelled is None or not finite else round(float(labelled[-1, number]), 4),
        parameters=trained.parameters,
        kernels=trained.kernels,
        precision=trained.precision,
        chosen=spec.chosen,
        shift=split.shift,
        adaptation=None if finding is None else to_plain(finding),
    )  # fmt: skip


def write_page(folder: Path) -> None:
    if all(find_spec(name) is not None for name in ("matplotlib", "jinja2")):  # the extra `report`
        from bearcat.report.pages import write_run_page

        write_run_page(folder)


def read_labels(path: Path) -> dict[str, str]:
    """A table with the columns recording and label."""
    header, *cells = read_cells(path) or [[]]
    rows = [dict(zip(header, row, strict=False)) for row in cells if any(row)]
    if not rows or not all({"recording", "label"} <= set(row) for row in rows):
        raise InputError(f"{path}: must have the columns recording and label, and a row for each recording")
    return {row["recording"]: row["label"] for row in rows}


def check_run(folder: Path, labels: Mapping[str, str]) -> Record:
    """Compares the saved model with these labels; decides anew, and recalibrates the model and its diagnoses.

    Labels of an earlier check are forgotten. The recordings need not be drawn at random: those that the decision asks
    for are the uncertain ones, so the interval is a cautious one for the others.
    """
    result = read_result(folder)
    record = result.record
    trained = result if record.saved is None else read_result(folder / record.saved.folder)  # the saved model
    nearest = {diagnosis.recording: diagnosis.nearest for diagnosis in record.recordings}
    truth = _named(labels, list(nearest), record.data.classes)
    right = sum(nearest[name] == label for name, label in truth.items())
    evidence = replace(record.evidence, labels=LabelCheck(len(truth), right, len(set(truth.values()))))
    unlabelled = tuple(name for name in evidence.uncertain if name not in truth)
    decision = decide(replace(evidence, uncertain=unlabelled))
    earlier = 1.0 if record.labelled is None else record.labelled.temperature_factor
    factor = _temperature_factor(trained.predictions, truth, record.data.classes)
    rule = AlarmRule(prior=record.settings.prior)
    tempered = [replace(diagnosis.tempered(factor / earlier), rule=rule) for diagnosis in record.recordings]
    recordings = tuple(decide_together(tempered, decision.action))
    labelled = LabelledRecordings(len(truth), right, factor)
    if (folder / "model").is_dir():
        if not inside(folder, folder / "model"):
            raise InputError(f"{folder / 'model'}: leads outside the run's folder; copy the model into it")
        model = load_model(folder / "model")
        change = factor / float(model.metadata.get("temperature_factor", 1.0))  # a check may have been interrupted here
        before = model.calibration or Calibration.identity(1, len(model.classes))
        after = replace(
            before, scale=before.scale / change, bias=before.bias / change, at_bound=torch.zeros_like(before.at_bound)
        )
        metadata = {**model.metadata, "temperature_factor": factor}
        model = replace(model, calibration=after, calibrator=model.calibrator or "Temperature", metadata=metadata)
        save_model(folder / "model", replace(model, decision=decision))
    record = replace(record, evidence=evidence, decision=decision, recordings=recordings, labelled=labelled)
    record.write(folder)
    write_page(folder)
    return record


def _named(labels: Mapping[str, str], recordings: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    """The labels by the recordings' full names."""
    truth = {}
    for name, label in labels.items():
        if label not in classes:
            raise InputError(f"{name}: label '{label}' is no class of the model{suggest(label, classes)}")
        called = [full for full in recordings if f"/{full}".endswith(f"/{name}") or name.endswith(f"/{full}")]
        if len(called) != 1:
            problem = "is no recording of the run" if not called else "names several recordings"
            raise InputError(f"{name}: {problem}{suggest(name, recordings)}")
        truth[called[0]] = label
    return truth


def _temperature_factor(predictions: Predictions, truth: Mapping[str, str], classes: Sequence[str]) -> float:
    """What the temperature is multiplied by, so that confidences on the labelled recordings are as good as they can be.

    The run's own calibration is the prior: a factor of two either way is exceeded once in three times. A recording
    counts once, however many windows it has: they are no independent evidence. A few labels, or labels of one class,
    make nothing surer: that a fault was recognised says nothing of how sure "healthy" is.
    """
    windows = Counter(predictions.recording)
    labels = [classes.index(truth[name]) if name in truth else 0 for name in predictions.recording]
    weight = [1 / windows[name] if name in truth else 0.0 for name in predictions.recording]
    if not any(weight):
        return 1.0
    sample = read(predictions.log_probabilities, np.array(labels), np.array(weight))
    factor = float(updated_temperature(sample, PRIOR_SPREAD)[0])
    return factor if len(truth) >= ENOUGH and len(set(truth.values())) > 1 else max(factor, 1.0)
