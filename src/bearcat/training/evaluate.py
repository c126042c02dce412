"""Predictions → scores, per run. Training does not depend on them.

Besides training/estimates.py this is the only module that reads target labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bearcat.calibration import Calibration, accuracy, brier, ece, nll
from bearcat.data.tasks import UNKNOWN, HeldBack
from bearcat.models.networks import Network
from bearcat.training.batches import Batches, padded_stack

CHUNK = {"cpu": 1024, "cuda": 8192}  # windows of all runs together that go through a network at once


@dataclass(frozen=True, eq=False)
class EpochEnd:
    """What a watcher is shown after an epoch. It returns numbers (run,) for the history."""

    epoch: int
    batches: Batches
    student: Network
    teacher: Network | None
    calibration: Calibration | None
    pseudo_labels: Tensor | None  # (run, target window), −1 where none was used in this epoch
    history: dict[str, list[Tensor]]


@torch.no_grad()
def predict(network: Network, values: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (run, window, class) and features (run, window, 256) in evaluation mode, a chunk at a time."""
    size = max(1, CHUNK.get(values.device.type, 1024) // values.shape[0])
    parts = [network(values[:, start : start + size]) for start in range(0, values.shape[1], size)]
    return torch.cat([logits for logits, _ in parts], dim=1), torch.cat([features for _, features in parts], dim=1)


def scores(logits: Tensor, calibration: Calibration | None, labels: Tensor, edges: str = "upper") -> dict[str, Tensor]:
    """Accuracy and calibration of each run (run,); windows without a known class do not count. `edges` as in `ece`."""
    weight = (labels != UNKNOWN).to(logits.dtype)
    known = labels.clamp(min=0)
    plain = logits.softmax(dim=-1)
    calibrated = plain if calibration is None else calibration.apply(logits).softmax(dim=-1)
    return {
        "accuracy": accuracy(calibrated, known, weight),
        "balanced_accuracy": balanced_accuracy(calibrated, labels),
        "ece": ece(calibrated, known, weight, edges=edges),
        "ece_uncalibrated": ece(plain, known, weight, edges=edges),
        "ece15": ece(calibrated, known, weight, bins=15, edges=edges),
        "ece15_uncalibrated": ece(plain, known, weight, bins=15, edges=edges),
        "nll": nll(calibrated, known, weight),
        "brier": brier(calibrated, known, weight),
    }


def balanced_accuracy(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The mean over classes of the share of their windows that are recognised, (run,); nan where no label is known."""
    classes = probabilities.shape[-1]
    member = functional.one_hot(torch.where(labels == UNKNOWN, classes, labels), classes + 1)[..., :classes]
    right = (probabilities.argmax(dim=-1) == labels)[..., None]
    return ((member * right).sum(dim=1) / member.sum(dim=1)).nanmean(dim=1)  # 0/0, a class without windows, is nan


def watcher(
    held_back: Sequence[HeldBack], device: torch.device, edges: str = "upper"
) -> Callable[[EpochEnd], dict[str, Tensor]]:
    """Returns what evaluates the networks after every epoch: source and target scores of student and teacher, and the
    accuracy of pseudo-labels.
    """
    target = padded_stack([np.asarray(held.target_test.values) for held in held_back], 0, device)
    target_labels = padded_stack([held.target_test_labels for held in held_back], UNKNOWN, device)
    train_labels = padded_stack([held.target_train_labels for held in held_back], UNKNOWN, device)

    def watch(end: EpochEnd) -> dict[str, Tensor]:
        measured: dict[str, Tensor] = {}
        networks = {"student": end.student} | ({"teacher": end.teacher} if end.teacher is not None else {})
        for name, network in networks.items():
            calibration = end.calibration if network is (end.teacher or end.student) else None
            source = end.batches.source_test, end.batches.source_test_labels
            for domain, (values, labels) in {"source": source, "target": (target, target_labels)}.items():
                found = scores(predict(network, values)[0], calibration, labels, edges)
                for score in ("accuracy", "ece", "ece_uncalibrated"):
                    measured[f"{domain}_{score}_{name}"] = found[score]
        if end.pseudo_labels is not None:
            chosen = (end.pseudo_labels >= 0) & (train_labels != UNKNOWN)
            right = (end.pseudo_labels == train_labels) & chosen
            measured["pseudo_label_accuracy"] = right.sum(dim=1) / chosen.sum(dim=1)  # 0/0 is nan: none was selected
        return measured

    return watch
