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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import bearcat
from bearcat.cat import Calibration, reliability_bins
from bearcat.cat.algorithm import Trained
from bearcat.cat.evaluate import predict, scores, unchanged
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
        return representations(np.asarray(part.values), np.asarray(part.shapes), kind)

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
class Evaluation:
    """What the final network of a run says of its test windows, and what follows without target labels."""

    target: NDArray[np.float32]  # (window, class) calibrated probabilities
    target_uncalibrated: NDArray[np.float32]
    calibration: Calibration | None  # of this run alone, on the CPU
    estimates: dict[str, Any]
    evidence: ModelEvidence  # for the decision on the model
    limits: Familiarity
    unfamiliar: NDArray[np.bool_]  # (window,) of the target's test windows
    pooled_temperature: float
    unknown: tuple[str, ...]  # recordings that were found to show a class the source lacks
    scores: dict[str, dict[str, Any] | None]
    reliability: dict[str, dict[str, Any] | None]

    @property
    def familiarity(self) -> Familiarity | None:
        return self.limits if self.limits.usable else None


def evaluate(trained: Trained, splits: Sequence[SplitTask], evidence: Sequence[RunEvidence]) -> list[Evaluation]:
    """What the final networks say of the test windows, for each run of the stack.

    Estimators read probabilities by the source's calibration; confidences that users see are by that of the finished
    network. Of the training windows at most KEPT_WINDOWS are used, so that the end of a run stays short.
    """
    device, final = trained.finite.device, trained.calibration
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    labels = {
        "source": trained.batches.source_test_labels,
        "target": padded_stack([split.held_back.target_test_labels for split in splits], UNKNOWN, device),
    }
    source, target = (predict(trained.network, windows) for windows in (trained.batches.source_test, values))
    plain = {"source": source[0], "target": target[0]}
    calibrated = plain if final is None else {domain: final.apply(logits) for domain, logits in plain.items()}
    scored = {domain: scores(plain[domain], final, labels[domain]) for domain in labels}

    def log_probabilities(logits: Tensor, calibration: Calibration | None = trained.source_calibration) -> Tensor:
        return (logits if calibration is None else calibration.apply(logits)).double().log_softmax(dim=-1)

    on_device = {
        "finite": trained.finite,
        "calibrated": torch.zeros_like(trained.finite) if final is None else ~final.at_bound,
        "probabilities": calibrated["target"].softmax(dim=-1),
        "uncalibrated": plain["target"].softmax(dim=-1),
        "shown": log_probabilities(target[0], final),
        "source_labels": trained.batches.source_test_labels,
        "source": log_probabilities(source[0]),
        "target": log_probabilities(target[0]),
        "target_features": target[1],
        "train_features": predict(trained.network, trained.batches.target_train[:, :KEPT_WINDOWS])[1],
    }
    on_host = {name: value.cpu().numpy() for name, value in on_device.items()}
    evaluations = []
    for run, split in enumerate(splits):
        rows, held = {name: values[run] for name, values in on_host.items()}, split.held_back
        finding, windows, calibration = trained.findings[run], len(held.target_test), None
        unknown = sorted(split.target_order[list(finding.unknown) if finding else []].tolist())
        likely = rows["probabilities"][:windows]
        if final is not None:
            state = {name: value[run : run + 1].cpu() for name, value in final.state().items()}
            calibration = Calibration.from_state(state)
        of_domain: dict[str, dict[str, Any] | None] = {"source": None, "target": None}
        diagrams = of_domain.copy()
        for domain, stacked in labels.items():
            if bool((stacked[run] != UNKNOWN).any()):
                of_domain[domain] = {name: _plain(score[run]) for name, score in scored[domain].items()}
                before, after = (_bins(logits[domain][run], stacked[run]) for logits in (plain, calibrated))
                diagrams[domain] = {"uncalibrated": before, "calibrated": None if final is None else after}
        if (of_target := of_domain["target"]) is not None:
            of_target |= alarm_scores(likely, held, split.classes)
        evaluations.append(Evaluation(
            likely, rows["uncalibrated"][:windows], calibration, *_estimates(rows, split, evidence[run], unknown),
            pooled_temperature(log_of(likely), held.target_test.recording, float(likely.max(axis=1).mean())),
            tuple(split.target.recordings[number].origin for number in unknown), of_domain, diagrams,
        ))  # fmt: skip
    return evaluations


def _estimates(
    rows: dict[str, np.ndarray], split: SplitTask, known: RunEvidence, unknown: Sequence[int]
) -> tuple[dict[str, Any], ModelEvidence, Familiarity, NDArray[np.bool_]]:
    """Estimates of one run, its evidence, limits of familiar windows, and which test windows are beyond them.

    `rows` are the run's own of the stack, which end in padding where other runs have more; `unknown` recordings show a
    class that the source lacks, and a model is not familiar with them.
    """
    held, of_source = split.held_back, rows["source_labels"] != UNKNOWN
    windows, tested_in = len(held.target_test), held.target_test.recording
    labels = rows["source_labels"][of_source]
    right = rows["source"][of_source].argmax(axis=1) == labels
    target = Target(rows["target"][:windows], tested_in, known.checks)
    features = rows["target_features"][:windows]
    train_features = rows["train_features"][: len(known.target_train)]
    kept, tested = (~np.isin(recordings, unknown) for recordings in (known.train_recording, tested_in))
    familiarity = fit_familiarity(
        train_features[kept], known.target_train[kept], known.train_recording[kept], features[tested],
        known.target_test[tested], tested_in[tested],
    )  # fmt: skip
    unfamiliar = familiarity.unfamiliar(features, known.target_test)
    strange = np.concatenate([familiarity.unfamiliar(train_features, known.target_train)[kept], unfamiliar[tested]])
    recording = np.concatenate([known.train_recording[kept], tested_in[tested]])
    familiarity = familiarity.covering([strange[recording == number].mean() for number in np.unique(recording)])
    predicted = np.unique(target.log_probabilities.argmax(axis=1))
    alone = len(predicted) == 1 and predicted[0] != known.healthy and len(np.unique(tested_in)) > 1
    values, evidence = estimates(
        right, labels, target, familiarity.limits, bool(rows["finite"]),
        split.classes[int(predicted[0])] if alone else None, bool(rows["calibrated"]),
        [info.origin for info in held.target_test.recordings], rows["shown"][:windows], split.trust_shift,
    )  # fmt: skip
    return values, evidence, familiarity, unfamiliar


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


def make_record(
    spec: RunSpec, split: SplitTask, evaluation: Evaluation, trained: Trained, number: int, seconds: float
) -> Record:
    """Everything that is known of this run of a stack, but its diagnoses. `seconds` are those of the whole stack."""
    calibration, evidence, finding = evaluation.calibration, evaluation.evidence, trained.findings[number]
    predicted = np.bincount(evaluation.target.argmax(axis=1), minlength=len(split.classes))
    never = [name for name, windows in zip(split.classes, predicted.tolist(), strict=True) if windows == 0]
    labels = split.held_back.target_test_labels
    several = len(np.unique(labels[labels != UNKNOWN])) > 1  # in the target, as far as labels say
    collapsed = evidence.one_class is not None or (several and len(never) == len(split.classes) - 1)
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
        estimates=from_plain(Estimates, evaluation.estimates),
        evidence=evidence,
        decision=decide(evidence),
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
