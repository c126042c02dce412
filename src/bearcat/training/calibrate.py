"""Fits a recipe's calibrator to the reported network, once an epoch, on the labelled source test windows.

A calibrator names the evidence it needs beyond logits and labels (`Calibrator.needs`); only that is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bearcat.calibration import Calibration, Evidence, find_calibrator
from bearcat.data.tasks import UNKNOWN
from bearcat.errors import InputError, suggest
from bearcat.methods.recipe import Recipe
from bearcat.training.evaluate import predict
from bearcat.training.state import TrainingState
from bearcat.trust.accuracy import ESTIMATORS, Source, Target


def check_calibrator(text: str | None) -> None:
    """Refuses a calibrator that there is not, or one that needs evidence there is not, before training."""
    if text is not None:
        known = [field.name for field in fields(Evidence)]
        for name in find_calibrator(text).needs:
            if name not in known:
                raise InputError(f"the calibrator '{text}' needs '{name}', which is no evidence{suggest(name, known)}")


@torch.no_grad()
def fit_calibration(recipe: Recipe, state: TrainingState) -> Calibration:
    """The calibration of the reported network by the recipe's calibrator."""
    if recipe.calibration is None:
        raise ValueError("the recipe has no calibrator")
    calibrator, network, batches = find_calibrator(recipe.calibration), state.reported, state.batches
    logits, features = predict(network, batches.source_test)
    labels = batches.source_test_labels

    @cache
    def source() -> tuple[Tensor, Tensor]:
        return predict(network, batches.source_train)

    @cache
    def target() -> tuple[Tensor, Tensor]:
        return predict(network, batches.target_train)

    available: dict[str, Callable[[], Any]] = {
        "source_features": lambda: features,
        "source_train_features": lambda: source()[1],
        "source_train_weight": lambda: batches.source_present,
        "target_logits": lambda: target()[0],
        "target_features": lambda: target()[1],
        "target_weight": lambda: batches.target_present,
        "target_windows": lambda: batches.target_train,
        "network": lambda: lambda windows: predict(network, windows),
        "estimates": lambda: {
            "accuracy": _expected_accuracy(logits, labels, target()[0], batches.target_present),
            "class_shares": _class_shares(target()[0], batches.target_present),
        },
        "seeds": lambda: torch.tensor(batches.seeds, device=logits.device),
    }
    weight = _equal_classes(labels, logits.shape[-1]) if recipe.balance else labels != UNKNOWN
    evidence = {name: available[name]() for name in calibrator.needs}
    return calibrator.fit(Evidence(source_logits=logits, source_labels=labels, source_weight=weight, **evidence))


def refill(earlier: Calibration | None, fitted: Calibration) -> Calibration:
    """The fitted calibration in the memory of the one before, which recorded steps read."""
    if earlier is None:
        return Calibration.from_state({name: value.clone() for name, value in fitted.state().items()})
    for name, value in fitted.state().items():
        earlier.state()[name].copy_(value)
    return earlier


def _expected_accuracy(source: Tensor, labels: Tensor, target: Tensor, present: Tensor) -> Tensor:
    """The share of right predictions on the target that ATC expects (trust.accuracy), (run,)."""
    found = []
    arrays = [value.double().log_softmax(dim=-1).cpu().numpy() for value in (source, target)]
    known, unpadded = (labels != UNKNOWN).cpu().numpy(), present.cpu().numpy()
    for run, codes in enumerate(labels.cpu().numpy()):
        test = Source(arrays[0][run][known[run]], codes[known[run]])
        unlabelled = arrays[1][run][unpadded[run]]
        hits = ESTIMATORS["atc_confidence"].expected_hits(test, Target(unlabelled, np.arange(len(unlabelled))))
        found.append(float(hits.mean()))
    return torch.tensor(found, device=source.device)


def _class_shares(logits: Tensor, present: Tensor) -> Tensor:
    """The mean predicted probability of each class, (run, class)."""
    likely = torch.where(present[..., None], logits.softmax(dim=-1), 0)
    return likely.sum(dim=1) / present.sum(dim=1, keepdim=True)


def _equal_classes(labels: Tensor, classes: int) -> Tensor:
    """Weights (run, window) under which every class there is counts the same and windows count 1 on average."""
    member = torch.nn.functional.one_hot(torch.where(labels == UNKNOWN, classes, labels), classes + 1)[..., :classes]
    counts = member.sum(dim=1, keepdim=True).double()
    share = counts.sum(dim=2, keepdim=True) / (counts > 0).sum(dim=2, keepdim=True)
    return (member * (share / counts.clamp(min=1))).sum(dim=2)
