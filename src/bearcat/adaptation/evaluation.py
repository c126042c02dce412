"""What finished runs say of their test windows, what is known of them without target labels, and their records.

Estimates are numpy and know one run (bearcat.diagnosis); here every run of a stack gets its own rows. Target labels are
read for scores alone.

>>> (evaluation,) = evaluate(trained, [split], [run_evidence(split, "physics")])
>>> make_record(spec, split, evaluation, trained, 0, seconds=12.5).write(folder)
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import bearcat
from bearcat.cat import Calibration, reliability_bins
from bearcat.cat.algorithm import Trained
from bearcat.cat.evaluate import predict, scores, unchanged
from bearcat.cat.ingredient import TargetFinding
from bearcat.cat.state import RESULT_VERSION
from bearcat.data.recording import Windows, healthy_class
from bearcat.data.splits import specimen_counts
from bearcat.data.tasks import UNKNOWN, HeldBack, SplitTask
from bearcat.diagnosis.accuracy import MOST_WINDOWS, Target, check_predictions, estimates, representations
from bearcat.diagnosis.decision import ModelEvidence, decide
from bearcat.diagnosis.pooling import KEPT_WINDOWS, Familiarity, fit_familiarity, pool, pooled_temperature, tally
from bearcat.errors import InputError
from bearcat.fast.device import padded_stack
from bearcat.record import DataSizes, Estimates, FittedCalibration, Record, Reliability, RunSettings, Scores
from bearcat.settings import from_plain

if TYPE_CHECKING:
    from bearcat.adaptation import RunSpec


@dataclass(frozen=True, eq=False)
class RunEvidence:
    """What is known of a run's windows without the network: spectral shapes (window, channel · band), check models."""

    target_train: NDArray[np.float32]  # KEPT_WINDOWS at most
    train_recording: NDArray[np.int64]  # of those windows, an index into the target's recordings
    target_test: NDArray[np.float32]
    checks: dict[str, NDArray[np.int64]]  # what check models say of the target's test windows (diagnosis/accuracy.py)
    train_checks: dict[str, NDArray[np.int64]]  # and of its training windows
    healthy: int  # the code of the healthy class; UNKNOWN where no class is called so


def run_evidence(split: SplitTask, kind: str) -> RunEvidence:
    """The evidence of the windows of a split; `kind` is their input."""
    if split.source.shapes is None or split.target.shapes is None:
        raise InputError("the windows have no spectral shapes; make them with bearcat.data.windows")
    both, tested = np.concatenate([split.target_test, split.target_train]), len(split.target_test)
    healthy, unlabelled = healthy_class(split.classes), split.target_train[:MOST_WINDOWS]  # in random order

    def represented(windows: Windows, indices: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        part = windows[indices]
        return representations(np.asarray(part.values), np.asarray(part.shapes), kind, part.span)

    source, labels = represented(split.source, split.source_train), split.training.source_train.labels
    target, all_windows = (represented(split.target, part) for part in (unlabelled, both))
    recording = split.target.recording[unlabelled]
    checks = {
        f"{name}, {model}": predicted
        for name in source
        for model, predicted in check_predictions(
            source[name], labels, target[name], recording, all_windows[name]
        ).items()
    }
    sample, shapes = split.target_train[:KEPT_WINDOWS], split.target.shapes
    return RunEvidence(
        shapes[sample], split.target.recording[sample], shapes[split.target_test],
        {name: predicted[:tested] for name, predicted in checks.items()},
        {name: predicted[tested:] for name, predicted in checks.items()},
        UNKNOWN if healthy is None else split.classes.index(healthy),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class RunEstimates:
    """Estimates for a run without target labels."""

    estimates: dict[str, Any]
    evidence: ModelEvidence  # for the decision on the model
    familiarity: Familiarity
    unfamiliar: NDArray[np.bool_]  # (window,) of the target's test windows


def unknown_recordings(finding: TargetFinding | None, split: SplitTask) -> list[int]:
    """The target's recordings that were found to show a class the source lacks: a model is not familiar with them."""
    return sorted(split.target_order[list(finding.unknown) if finding else []].tolist())


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The predictions of a run for its target test windows, and what follows from them and from those of the source."""

    target: NDArray[np.float32]  # (window, class) calibrated probabilities
    target_uncalibrated: NDArray[np.float32]
    calibration: Calibration | None  # of this run alone, on the CPU
    trust: RunEstimates
    pooled_temperature: float
    unknown: tuple[str, ...]  # recordings that were found to show a class the source lacks
    scores: dict[str, dict[str, Any] | None] = field(default_factory=lambda: {"source": None, "target": None})
    reliability: dict[str, dict[str, Any] | None] = field(default_factory=lambda: {"source": None, "target": None})

    @property
    def familiarity(self) -> Familiarity | None:
        return self.trust.familiarity if self.trust.familiarity.usable else None


def evaluate(trained: Trained, splits: Sequence[SplitTask], evidence: Sequence[RunEvidence]) -> list[Evaluation]:
    """What the final networks say of the test windows, for each run of the stack."""
    device = trained.finite.device
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    labels = {
        "source": trained.batches.source_test_labels,
        "target": padded_stack([split.held_back.target_test_labels for split in splits], UNKNOWN, device),
    }
    source, target = (predict(trained.network, windows) for windows in (trained.batches.source_test, values))
    stack, plain = trained.calibration, {"source": source[0], "target": target[0]}
    calibrated = plain if stack is None else {domain: stack.apply(logits) for domain, logits in plain.items()}
    estimates = estimate_runs(trained, splits, evidence, source, target)
    scored = {domain: scores(plain[domain], stack, labels[domain]) for domain in labels}
    probabilities, uncalibrated = (logits["target"].softmax(dim=-1).cpu().numpy() for logits in (calibrated, plain))
    evaluations = []
    for number, split in enumerate(splits):
        tested, calibration = split.held_back.target_test, None
        if stack is not None:
            state = {name: value[number : number + 1].cpu() for name, value in stack.state().items()}
            calibration = Calibration.from_state(state)
        likely = probabilities[number, : len(tested)]
        temperature = pooled_temperature(log_of(likely), tested.recording, float(likely.max(axis=1).mean()))
        numbers = unknown_recordings(trained.findings[number], split)
        unknown = tuple(split.target.recordings[place].origin for place in numbers)
        evaluation = Evaluation(
            likely, uncalibrated[number, : len(tested)], calibration, estimates[number], temperature, unknown
        )
        evaluations.append(evaluation)
        for domain, stacked in labels.items():
            truth = stacked[number]
            if bool((truth != UNKNOWN).any()):
                evaluation.scores[domain] = {name: _plain(score[number]) for name, score in scored[domain].items()}
                before, after = (_bins(logits[domain][number], truth) for logits in (plain, calibrated))
                diagram = {"uncalibrated": before, "calibrated": None if stack is None else after}
                evaluation.reliability[domain] = diagram
        if (target_scores := evaluation.scores["target"]) is not None:
            target_scores |= alarm_scores(evaluation.target, split.held_back, split.classes)
    return evaluations


def alarm_scores(probabilities: np.ndarray, held_back: HeldBack, classes: Sequence[str]) -> dict[str, Any]:
    """Recordings with labels and the share diagnosed rightly; rates of errors, None where there is none to count."""
    windows, truth = held_back.target_test.recording, held_back.target_test_labels
    labelled = truth != UNKNOWN
    diagnosed, right = [], []
    for number in np.unique(windows[labelled]):
        members = windows == number
        diagnosed.append(pool(tally(log_of(probabilities[members]))).probabilities.argmax())
        right.append(truth[members][0])
    hits = np.equal(diagnosed, right)
    rates: dict[str, Any] = {"recordings": len(right), "recording_accuracy": float(hits.mean()) if right else None}
    healthy = healthy_class(classes)
    code = UNKNOWN if healthy is None else list(classes).index(healthy)
    alarms, sound = probabilities.argmax(axis=1)[labelled] != code, truth[labelled] == code
    for name, wrong in (("false_alarms", alarms[sound]), ("missed_faults", ~alarms[~sound])):
        rates[name] = float(wrong.mean()) if healthy and len(wrong) else None
    return rates


def _bins(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """What a reliability diagram draws of one run; `mass` counts windows, None stands where a bin has none."""
    labelled = labels != UNKNOWN
    bins = reliability_bins(logits.softmax(dim=-1), labels.clamp(min=0), labelled.to(logits.dtype))
    return {
        "edges": bins.edges.tolist(),
        "mass": [round(share) for share in (bins.mass.nan_to_num() * labelled.sum()).tolist()],
        "confidence": [_plain(value) for value in bins.confidence],
        "accuracy": [_plain(value) for value in bins.accuracy],
    }


def log_of(probabilities: np.ndarray) -> np.ndarray:
    """Log-probabilities, finite where float32 has rounded to 0."""
    return np.asarray(np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)))


def _plain(value: Tensor) -> float | None:
    """A plain number; None for nan, which JSON does not know."""
    number = float(value)
    return number if math.isfinite(number) else None


def estimate_runs(
    trained: Trained, splits: Sequence[SplitTask], shapes: Sequence[RunEvidence], source: tuple[Tensor, Tensor],
    target: tuple[Tensor, Tensor],
) -> list[RunEstimates]:  # fmt: skip
    """The estimates of every run of a stack. `source` and `target`: what `predict` says of their test windows.

    Estimators read probabilities by the source's calibration; confidences that users see are by that of the finished
    network. Of the training windows at most KEPT_WINDOWS are used, so that the end of a run stays short.
    """
    final, finite = trained.calibration, trained.finite

    def log_probabilities(logits: Tensor, calibration: Calibration | None = trained.source_calibration) -> Tensor:
        return (logits if calibration is None else calibration.apply(logits)).double().log_softmax(dim=-1)

    on_device = {
        "finite": finite,
        "calibrated": torch.zeros_like(finite) if final is None else ~final.at_bound,
        "shown": log_probabilities(target[0], final),
        "source_labels": trained.batches.source_test_labels,
        "source": log_probabilities(source[0]),
        "target": log_probabilities(target[0]),
        "target_features": target[1],
        "train_features": predict(trained.network, trained.batches.target_train[:, :KEPT_WINDOWS])[1],
    }
    on_host = {name: value.cpu().numpy() for name, value in on_device.items()}
    return [
        _estimate_run({name: rows[run] for name, rows in on_host.items()}, split, shapes[run], finding)
        for run, (split, finding) in enumerate(zip(splits, trained.findings, strict=True))
    ]


def _estimate_run(
    rows: dict[str, np.ndarray], split: SplitTask, shapes: RunEvidence, finding: TargetFinding | None
) -> RunEstimates:
    """The estimates of one run from its own rows of the stack, which end in padding where other runs have more."""
    held, unknown = split.held_back, unknown_recordings(finding, split)
    windows, of_source = len(held.target_test), rows["source_labels"] != UNKNOWN
    labels = rows["source_labels"][of_source]
    right = rows["source"][of_source].argmax(axis=1) == labels
    target = Target(rows["target"][:windows], held.target_test.recording, shapes.checks)
    features = rows["target_features"][:windows]
    train_features = rows["train_features"][: len(shapes.target_train)]
    kept, tested = (~np.isin(recordings, unknown) for recordings in (shapes.train_recording, target.recording))
    familiarity = fit_familiarity(
        train_features[kept], shapes.target_train[kept], shapes.train_recording[kept], features[tested],
        shapes.target_test[tested], target.recording[tested],
    )  # fmt: skip
    unfamiliar = familiarity.unfamiliar(features, shapes.target_test)
    strange = np.concatenate([familiarity.unfamiliar(train_features, shapes.target_train)[kept], unfamiliar[tested]])
    recording = np.concatenate([shapes.train_recording[kept], target.recording[tested]])
    familiarity = familiarity.covering([strange[recording == number].mean() for number in np.unique(recording)])
    predicted = np.unique(target.log_probabilities.argmax(axis=1))
    alone = len(predicted) == 1 and predicted[0] != shapes.healthy and len(np.unique(target.recording)) > 1
    found, evidence = estimates(
        right, labels, target, familiarity.limits, bool(rows["finite"]),
        split.classes[int(predicted[0])] if alone else None, bool(rows["calibrated"]),
        [info.origin for info in held.target_test.recordings], rows["shown"][:windows], split.trust_shift,
    )  # fmt: skip
    return RunEstimates(found, evidence, familiarity, unfamiliar)


def make_record(
    spec: RunSpec, split: SplitTask, evaluation: Evaluation, trained: Trained, number: int, seconds: float
) -> Record:
    """Everything that is known of this run of a stack, but its diagnoses. `seconds` are those of the whole stack."""
    calibration, estimated, finding = evaluation.calibration, evaluation.trust, trained.findings[number]
    predicted = np.bincount(evaluation.target.argmax(axis=1), minlength=len(split.classes))
    never = [name for name, windows in zip(split.classes, predicted.tolist(), strict=True) if windows == 0]
    labels = split.held_back.target_test_labels
    several = len(np.unique(labels[labels != UNKNOWN])) > 1  # in the target, as far as labels say
    collapsed = estimated.evidence.one_class is not None or (several and len(never) == len(split.classes) - 1)
    finite, warnings = bool(trained.finite[number]), [*spec.warnings, *split.warnings]
    if not finite:
        warnings.append("the loss turned NaN or infinite; the run was stopped there and its numbers mean nothing")
    warnings += unchanged(spec.recipe_name, spec.recipe, trained.history, number)
    fitted = None
    if calibration is not None:
        temperature, at_bound = float(calibration.temperature[0]), bool(calibration.at_bound[0])
        known = temperature if np.isfinite(temperature) else None
        fitted = FittedCalibration(known, at_bound)
        if at_bound:
            warnings.append(
                f"the temperature ended at its bound, {temperature:g}: the source's test windows do not fix it"
            )
    device, labelled = trained.finite.device, trained.history.get("pseudo_label_share")
    parts = {"source_train": split.source_train, "source_test": split.source_test}
    parts |= {"target_train": split.target_train, "target_test": split.target_test}
    versions = {"bearcat": bearcat.__version__, "result": str(RESULT_VERSION), "python": platform.python_version()}
    return Record(
        scores=from_plain(Scores, evaluation.scores),
        estimates=from_plain(Estimates, estimated.estimates),
        evidence=estimated.evidence,
        decision=decide(estimated.evidence),
        calibration=fitted,
        reliability=from_plain(Reliability, evaluation.reliability),
        failed=not finite,
        collapsed=collapsed,
        never_predicted=tuple(never),
        warnings=tuple(warnings),
        settings=RunSettings.from_dict(spec.to_dict()),
        seed=spec.seed,
        data=DataSizes(split.classes, **{name: len(part) for name, part in parts.items()}, identity=spec.identity),
        device=str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        versions=versions | {"torch": torch.__version__, "numpy": np.__version__},
        seconds=round(seconds, 2),
        stack=len(trained.finite),
        pseudo_label_share=None if labelled is None or not finite else round(float(labelled[-1, number]), 4),
        parameters=trained.parameters,
        kernels=trained.kernels,
        precision=trained.precision,
        chosen=spec.chosen,
        shift=split.shift,
        specimens=specimen_counts((*split.source.recordings, *split.target.recordings)),
        adaptation=None if finding is None else finding.to_dict() | {"sentence": finding.sentence},
    )
