"""Predictions of a stack → calibrations, scores and estimates, run by run; and all calibrators by name.

A calibrator is fitted to the reported network once an epoch, on the labelled source test windows; it names the evidence
it needs beyond logits and labels (`needs`), and only that is computed. Target labels are read by `watcher` alone;
training does not depend on it.

>>> logits, features = predict(trained.network, windows)   # (run, window, class), (run, window, feature)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bearcat.cat.calibration import Calibration, Calibrator, Evidence, accuracy, brier, ece, nll
from bearcat.cat.networks import Network
from bearcat.cat.recipes import RECIPES, Recipe
from bearcat.cat.teacher import SelfTraining
from bearcat.data.tasks import UNKNOWN, HeldBack
from bearcat.diagnosis.accuracy import Target, expected_value
from bearcat.fast.device import padded_stack

if TYPE_CHECKING:
    from bearcat.cat.state import TrainingState

CHUNK = {"cpu": 1024, "cuda": 8192}  # windows of all runs together that go through a network at once


@torch.no_grad()
def predict(network: Network, values: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (run, window, class) and features (run, window, 256) in evaluation mode, a chunk at a time."""
    size = max(1, CHUNK.get(values.device.type, 1024) // values.shape[0])
    parts = [network(values[:, start : start + size]) for start in range(0, values.shape[1], size)]
    return torch.cat([logits for logits, _ in parts], dim=1), torch.cat([features for _, features in parts], dim=1)


def scores(logits: Tensor, calibration: Calibration | None, labels: Tensor) -> dict[str, Tensor]:
    """Accuracy and calibration of each run (run,), NaN for a run without a known class; other windows do not count.

    Balanced accuracy is the mean of the classes' own; macro-F1 that of 2·hits / (windows of the class + called so),
    without classes that neither are there nor are called.
    """
    known, plain = (labels != UNKNOWN).double(), logits.softmax(dim=-1)
    calibrated = plain if calibration is None else calibration.probabilities(logits)
    found = {"nll": nll(calibrated, labels, known), "brier": brier(calibrated, labels, known)}
    for suffix, likely in {"": calibrated, "_uncalibrated": plain}.items():
        found[f"accuracy{suffix}"] = accuracy(likely, labels, known)
        found |= {f"{name}{suffix}": ece(likely, labels, known, bins) for name, bins in (("ece", 10), ("ece15", 15))}
    classes = torch.arange(logits.shape[-1], device=logits.device)
    member, called = ((codes[..., None] == classes).double() for codes in (labels, calibrated.argmax(dim=-1)))
    confusion = member.mT @ called  # (run, class, called): windows
    hits, windows = confusion.diagonal(dim1=1, dim2=2), confusion.sum(dim=2)
    found["balanced_accuracy"] = (hits / windows).nanmean(dim=1)  # 0/0, a class without windows, is NaN
    found["macro_f1"] = (2 * hits / (windows + confusion.sum(dim=1))).nanmean(dim=1)
    return found


def watcher(held_back: Sequence[HeldBack], device: torch.device) -> Callable[[TrainingState], dict[str, Tensor]]:
    """Evaluates the networks after every epoch: scores of student and teacher, and the accuracy of pseudo-labels."""
    target = padded_stack([np.asarray(held.target_test.values) for held in held_back], 0, device)
    target_labels = padded_stack([held.target_test_labels for held in held_back], UNKNOWN, device)
    train_labels = padded_stack([held.target_train_labels for held in held_back], UNKNOWN, device)

    def watch(state: TrainingState) -> dict[str, Tensor]:
        measured: dict[str, Tensor] = {}
        source = state.batches.source_test, state.batches.source_test_labels
        for name, network in {"student": state.student, "teacher": state.teacher}.items():
            for domain, (values, labels) in {"source": source, "target": (target, target_labels)}.items():
                if network is not None:
                    calibration = state.calibration if network is state.network else None
                    found = scores(predict(network, values)[0], calibration, labels)
                    for score in ("accuracy", "ece", "ece_uncalibrated"):
                        measured[f"{domain}_{score}_{name}"] = found[score]
        if state.pseudo_labels is not None:
            selected = (state.pseudo_labels >= 0) & (train_labels != UNKNOWN)
            right = (state.pseudo_labels == train_labels) & selected
            measured["pseudo_label_accuracy"] = right.sum(dim=1) / selected.sum(dim=1)  # 0/0 is nan: none was selected
        return measured

    return watch


@torch.no_grad()
def fit_calibration(state: TrainingState, calibrator: Calibrator) -> Calibration:
    """The calibration of the reported network by a calibrator."""
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
            expected_value(Target(windows, checked.recording, checked.said))
            for windows, checked in zip(likely, state.checks, strict=True)
        ]
    if "target_recording" in needed:
        given["target_recording"] = np.stack([checked.recording for checked in state.checks])
    labels = batches.source_test_labels
    weight = equal_classes(labels, logits.shape[-1]) if state.recipe.balance else None
    return calibrator.fit(Evidence(source_logits=logits, source_labels=labels, source_weight=weight, **given))


def unchanged(name: str, recipe: Recipe, history: Mapping[str, Tensor], run: int) -> tuple[str, ...]:
    """That T was 1 in all epochs, if so: the calibrator changed nothing, and the method is the one without it."""
    if recipe.find(SelfTraining) is None or "temperature" not in history:
        return ()
    temperature = history["temperature"][:, run]  # NaN before T_cal, and where it is more than a temperature
    if bool(temperature.isnan().all() | (temperature.nan_to_num(1.0) != 1).any()):
        return ()
    plain = replace(RECIPES[name], calibration=None, final=None) if name in RECIPES else None
    twin = next((other for other, row in RECIPES.items() if row == plain), "the same method without a calibrator")
    return (f"{name} equals {twin} here: T = 1 in all epochs",)


def calibrate(state: TrainingState) -> None:
    """Fits the recipe's calibrator anew, into the memory of the calibration before, which recorded steps read."""
    if state.recipe.calibration is None:
        return
    fitted = fit_calibration(state, state.recipe.calibration)
    if state.calibration is None:
        state.calibration = fitted.changed(Tensor.clone)
    for name, value in fitted.state().items():
        vars(state.calibration)[name].copy_(value)


def equal_classes(labels: Tensor, classes: int) -> Tensor:
    """Weights (run, window) under which every class there is counts the same and windows count 1 on average."""
    member = functional.one_hot(labels, classes)
    counts = member.sum(dim=1, keepdim=True).double()
    share = labels.shape[1] / (counts > 0).sum(dim=2, keepdim=True)
    return (member * (share / counts.clamp(min=1))).sum(dim=2)
