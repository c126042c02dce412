"""Predictions → scores, per run. The only place that looks at target labels; training does not depend on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bearcat.batches import Batches, padded_stack
from bearcat.calibration import Calibration, accuracy, brier, ece, nll
from bearcat.data.tasks import UNKNOWN, HeldBack
from bearcat.models.networks import Student

CHUNK = {"cpu": 1024, "cuda": 8192}  # windows of all runs together that go through a network at once


@dataclass(frozen=True, eq=False)
class EpochEnd:
    """What a watcher is shown after an epoch. It returns numbers (run,) for the history."""

    epoch: int
    batches: Batches
    student: Student
    teacher: Student | None
    calibration: Calibration | None
    thresholds: Tensor | None  # (run, class)
    pseudo_labels: Tensor | None  # (run, target window), −1 where none was used in this epoch
    history: dict[str, list[Tensor]]


@torch.no_grad()
def predict(network: Student, values: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (run, window, class) and features (run, window, 256) in evaluation mode, a chunk at a time."""
    size = max(1, CHUNK.get(values.device.type, 1024) // values.shape[0])
    parts = [network(values[:, start : start + size]) for start in range(0, values.shape[1], size)]
    return torch.cat([logits for logits, _ in parts], dim=1), torch.cat([features for _, features in parts], dim=1)


def scores(logits: Tensor, calibration: Calibration | None, labels: Tensor) -> dict[str, Tensor]:
    """Accuracy and calibration of each run (run,); windows without a known class do not count."""
    weight = (labels != UNKNOWN).to(logits.dtype)
    known = labels.clamp(min=0)
    plain = logits.softmax(dim=-1)
    calibrated = plain if calibration is None else calibration.apply(logits).softmax(dim=-1)
    return {
        "accuracy": accuracy(calibrated, known, weight),
        "ece": ece(calibrated, known, weight),
        "ece_uncalibrated": ece(plain, known, weight),
        "ece15": ece(calibrated, known, weight, bins=15),
        "ece15_uncalibrated": ece(plain, known, weight, bins=15),
        "nll": nll(calibrated, known, weight),
        "brier": brier(calibrated, known, weight),
    }


def watcher(held_back: Sequence[HeldBack], device: torch.device) -> Callable[[EpochEnd], dict[str, Tensor]]:
    """Looks at the end of every epoch: source and target scores of student and teacher, accuracy of pseudo-labels."""
    target = padded_stack([np.asarray(one.target_test.values) for one in held_back], 0, device)
    target_labels = padded_stack([one.target_test_labels for one in held_back], UNKNOWN, device)
    train_labels = padded_stack([one.target_train_labels for one in held_back], UNKNOWN, device)

    def watch(end: EpochEnd) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        networks = {"student": end.student} | ({"teacher": end.teacher} if end.teacher is not None else {})
        for name, network in networks.items():
            calibration = end.calibration if name == "teacher" else None
            for where, values, labels in (
                ("source", end.batches.source_test, end.batches.source_test_labels),
                ("target", target, target_labels),
            ):
                found = scores(predict(network, values)[0], calibration, labels)
                for score in ("accuracy", "ece", "ece_uncalibrated"):
                    seen[f"{where}_{score}_{name}"] = found[score]
        if end.pseudo_labels is not None:
            chosen = (end.pseudo_labels >= 0) & (train_labels != UNKNOWN)
            right = (end.pseudo_labels == train_labels) & chosen
            seen["pseudo_label_accuracy"] = right.sum(dim=1) / chosen.sum(dim=1)  # 0/0 is nan: nothing was selected
        return seen

    return watch
