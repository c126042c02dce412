"""The teacher (Section 3.4.2), its calibration (Section 3.2), its pseudo-labels with class-wise thresholds (Section
3.3), and L_PL (Section 3.4.1).

The order of an iteration is in algorithm.py; here are the settings and what each of its calls computes.

>>> SelfTraining(teacher=Teacher(momentum=0.99)).tau
0.9
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bearcat.cat import losses
from bearcat.cat.calibration import Calibration, Calibrator, Evidence, equal_classes
from bearcat.cat.ingredient import Loss, View, check_settings, choice, within
from bearcat.cat.networks import Network, predict
from bearcat.diagnosis.accuracy import Target, expected_value

if TYPE_CHECKING:
    from bearcat.cat.state import TrainingState
    from bearcat.fast.device import Batch


@dataclass(frozen=True)
class Teacher:
    """An average of the student that makes pseudo-labels and, at the end, the predictions.

    Its parameters are averages; its normalisation statistics are its own, of target batches (published code).
    """

    momentum: float = within(0.999, 0, 1)  # α
    dropout: bool = True  # live while labelling, which is in training mode; the paper does not say

    def __post_init__(self) -> None:
        check_settings(self, "teacher.")


@dataclass(frozen=True)
class SelfTraining(Loss):
    """How pseudo-labels are made and selected, and the student's loss on them."""

    name = "labels"
    phase = "labels"
    weight: float = 1.0
    threshold: str = choice("per-class", "fixed")
    tau: float = within(0.9, 0, 1)  # τ
    # The confidence that Eq. 11 counts. The paper's text says calibrated, its published code is as here.
    counts: str = choice("uncalibrated", "calibrated")
    # "cross-entropy" with the labels, or "squared": difference of the student's and the teacher's probabilities.
    objective: str = choice("cross-entropy", "squared")
    # Passes of the teacher, each with dropout of its own, whose probabilities are averaged.
    samples: int = within(1, 1, 1000)
    agree: bool = False  # a label counts only if all of these passes give it
    teacher: Teacher = field(default_factory=Teacher)

    def in_epochs(self, before: int, after: int) -> SelfTraining:
        """The teacher's memory keeps its share of the training, or in a tenth of the steps it would hardly move."""
        return replace(self, teacher=replace(self.teacher, momentum=self.teacher.momentum ** (before / after)))

    def loss(self, view: View) -> Tensor:
        """L_PL (Eq. 16): cross-entropy of the student's predictions and the selected pseudo-labels."""
        if view.pseudo_labels is None or view.selected is None or view.probabilities is None:
            raise RuntimeError("the loss of pseudo-labels needs a teacher that has labelled the batch")
        if self.objective == "squared":
            values = (view.target_logits.softmax(dim=1) - view.probabilities).square().mean(dim=1)
        else:
            values = losses.cross_entropy(view.target_logits, view.pseudo_labels)
        # Eq. 16 divides by the selected windows; this divides by the whole batch, as the published code does.
        return self.weight * torch.where(view.selected, values, 0).mean()


class PseudoLabels(NamedTuple):
    """Of a target batch, of all runs."""

    label: Tensor  # (run, batch)
    selected: Tensor  # (run, batch) whether it is used
    probabilities: Tensor  # (run, batch, class) which it was made of


def copy_of(student: Network) -> Network:
    """θ_teacher ← θ: a network that learns by `ema_update` alone."""
    return copy.deepcopy(student).requires_grad_(False)


@torch.no_grad()
def ema_update(teacher: Any, student: Any, alpha: float) -> None:
    """θ_teacher ← α·θ_teacher + (1 − α)·θ (Eq. 20)."""
    followers, leaders = list(teacher.parameters()), list(student.parameters())
    torch._foreach_mul_(followers, alpha)
    torch._foreach_add_(followers, leaders, alpha=1 - alpha)


def set_thresholds(settings: SelfTraining, state: TrainingState, logits: Tensor) -> None:
    """The class-wise thresholds T_t(k) of this epoch, (run, class), from the teacher's logits of all target windows.

    They stay where they are in memory, from which captured steps of a GPU read.
    """
    limits = torch.full_like(logits[:, 0], settings.tau)
    if settings.threshold == "per-class":
        if settings.counts == "calibrated" and state.calibration is not None:
            logits = state.calibration.apply(logits)
        limits = per_class(confident_counts(logits.softmax(dim=-1), settings.tau), settings.tau)
    if state.thresholds is None or state.pseudo_labels is None:
        state.thresholds = torch.empty_like(limits, memory_format=torch.contiguous_format)
        state.pseudo_labels = torch.empty(logits.shape[:2], dtype=torch.int64, device=limits.device)
    state.thresholds.copy_(limits)
    state.pseudo_labels.fill_(-1)


@torch.no_grad()
def pseudo_labels(settings: SelfTraining, state: TrainingState, batch: Batch) -> PseudoLabels:
    """Labels a target batch (Eq. 5), and selects (Eqs. 13, 14)."""
    if state.teacher is None or state.thresholds is None or state.pseudo_labels is None:
        raise RuntimeError("a teacher labels from T_PL on")
    randomness = state.randomness if settings.teacher.dropout else None
    samples = []
    for _ in range(settings.samples):
        state.randomness.next()
        logits, _ = state.teacher(batch.target, True, randomness)
        logits = logits if state.calibration is None else state.calibration.apply(logits)
        samples.append(logits.softmax(dim=-1))
    probabilities = torch.stack(samples).mean(dim=0)
    label, selected = select(probabilities, state.thresholds)
    for likely in samples if settings.agree else ():
        selected = selected & (label == likely.argmax(dim=-1))
    state.pseudo_labels.scatter_(1, batch.target_index, torch.where(selected, label, -1))
    return PseudoLabels(label, selected, probabilities)


def confident_counts(probabilities: Tensor, tau: float) -> Tensor:
    """σ_t(k) (Eq. 11): predictions of confidence `tau` or more, per class: (run, window, class) → (run, class)."""
    confidence, label = probabilities.max(dim=-1)
    confident = (confidence >= tau).to(torch.float32)
    counts = torch.zeros(probabilities.shape[0], probabilities.shape[2], device=probabilities.device)
    return counts.scatter_add_(1, label, confident)


def per_class(counts: Tensor, tau: float) -> Tensor:
    """T_t(k) = τ·β/(2−β), β = count / largest count (Eqs. 10, 12): (run, class). Of count 0 it is 0, as published."""
    largest = counts.max(dim=1, keepdim=True).values
    beta = counts / largest.clamp(min=1)
    return tau * beta / (2 - beta)


def select(probabilities: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and whether each is confident enough: (run, batch, class), (run, class) → (run, batch) int64 and bool."""
    confidence, label = probabilities.max(dim=-1)
    return label, confidence >= thresholds.gather(1, label)


def update_calibration(state: TrainingState, calibrator: Calibrator) -> None:
    """Fits the calibration of this epoch, into the memory of the one before, from which captured steps read."""
    fitted = fit_calibration(state, calibrator)
    if state.calibration is None:
        state.calibration = fitted.changed(Tensor.clone)
    for name, value in fitted.state().items():
        vars(state.calibration)[name].copy_(value)


@torch.no_grad()
def fit_calibration(state: TrainingState, calibrator: Calibrator) -> Calibration:
    """The calibration of the reported network (the teacher, if there is one) on the labelled source test windows.
    Computes only the further evidence that the calibrator `needs`.
    """
    needed, network, batches = set(getattr(calibrator, "needs", ())), state.network, state.batches
    logits, features = predict(network, batches.source_test)
    given: dict[str, Any] = {
        "source_features": features,
        "head": lambda features: network.head(features.to(logits.dtype)),
        "seeds": torch.tensor(batches.seeds),
    }
    if "source_train_features" in needed:
        given["source_train_features"] = predict(network, batches.source_train)[1]
    if needed & {"target_logits", "target_features", "target_accuracy"}:
        given["target_logits"], given["target_features"] = predict(network, batches.target_train)
    if "target_accuracy" in needed:
        likely = given["target_logits"].double().log_softmax(dim=-1).cpu().numpy()
        given["target_accuracy"] = [
            expected_value(Target(*of_run)) for of_run in zip(likely, state.recordings, state.checks, strict=True)
        ]
    if "target_recording" in needed:
        given["target_recording"] = np.stack(state.recordings)
    labels = batches.source_test_labels
    weight = equal_classes(labels, logits.shape[-1]) if state.recipe.balance else None
    return calibrator.fit(Evidence(source_logits=logits, source_labels=labels, source_weight=weight, **given))
