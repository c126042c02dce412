"""What is known of trained runs without target labels: expected accuracy, familiarity, check models, run by run.

Estimates are numpy and know one run (bearcat.diagnosis); here every run of a stack gets its own rows. No target label
is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bearcat.cat.algorithm import Trained
from bearcat.cat.calibration import Calibration
from bearcat.cat.evaluate import predict
from bearcat.cat.ingredient import TargetFinding
from bearcat.data.recording import Windows, healthy_class
from bearcat.data.tasks import UNKNOWN, SplitTask
from bearcat.diagnosis.accuracy import MOST_WINDOWS, Source, Target, check_predictions, estimates, representations
from bearcat.diagnosis.decision import ModelEvidence
from bearcat.diagnosis.pooling import KEPT_WINDOWS, Familiarity, fit_familiarity
from bearcat.errors import InputError


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
    """Of the windows of a split, whose input is of this kind."""
    if split.source.shapes is None or split.target.shapes is None:
        raise InputError("the windows have no spectral shapes; make them with bearcat.data.prepare")
    both, tested = np.concatenate([split.target_test, split.target_train]), len(split.target_test)
    healthy, unlabelled = healthy_class(split.classes), split.target_train[:MOST_WINDOWS]  # in random order

    def represented(windows: Windows, chosen: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        part = windows[chosen]
        return representations(np.asarray(part.values), np.asarray(part.shapes), kind, part.span)

    source, labels = represented(split.source, split.source_train), split.training.source_train.labels
    target, asked = (represented(split.target, part) for part in (unlabelled, both))
    recording = split.target.recording[unlabelled]
    checks = {
        f"{name}, {model}": said
        for name in source
        for model, said in check_predictions(source[name], labels, target[name], recording, asked[name]).items()
    }
    kept, shapes = split.target_train[:KEPT_WINDOWS], split.target.shapes
    return RunEvidence(
        shapes[kept], split.target.recording[kept], shapes[split.target_test],
        {name: said[:tested] for name, said in checks.items()},
        {name: said[tested:] for name, said in checks.items()},
        UNKNOWN if healthy is None else split.classes.index(healthy),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class RunEstimates:
    """What is known of a run without target labels."""

    estimates: dict[str, Any]
    evidence: ModelEvidence  # for the decision on the model
    familiarity: Familiarity
    unfamiliar: NDArray[np.bool_]  # (window,) of the target's test windows


def unknown_recordings(finding: TargetFinding | None, split: SplitTask) -> list[int]:
    """The target's recordings that were found to show a class the source lacks: a model is not familiar with them."""
    return sorted(split.target_order[list(finding.unknown) if finding else []].tolist())


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
    source = Source(rows["source"][of_source], rows["source_labels"][of_source])
    target = Target(rows["target"][:windows], held.target_test.recording, shapes.checks)
    shown = replace(target, log_probabilities=rows["shown"][:windows])
    features = rows["target_features"][:windows]
    train_features = rows["train_features"][: len(shapes.target_train)]
    kept, tested = (~np.isin(each, unknown) for each in (shapes.train_recording, target.recording))
    familiarity = fit_familiarity(
        train_features[kept], shapes.target_train[kept], shapes.train_recording[kept], features[tested],
        shapes.target_test[tested], target.recording[tested],
    )  # fmt: skip
    predicted = np.unique(target.log_probabilities.argmax(axis=1))
    alone = len(predicted) == 1 and predicted[0] != shapes.healthy and len(np.unique(target.recording)) > 1
    found, evidence = estimates(
        source,
        target,
        familiarity.limits,
        finite=bool(rows["finite"]),
        one_class=split.classes[int(predicted[0])] if alone else None,
        calibrated=bool(rows["calibrated"]),
        names=[info.origin for info in held.target_test.recordings],
        shown=shown,
        shift=split.trust_shift,
    )
    return RunEstimates(found, evidence, familiarity, familiarity.unfamiliar(features, shapes.target_test))
