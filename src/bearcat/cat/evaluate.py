"""Predictions of a stack → calibrations, scores and estimates, run by run; and all calibrators by name.

A calibrator is fitted to the reported network once an epoch, on the labelled source test windows; it names the evidence
it needs beyond logits and labels (`needs`), and only that is computed. Target labels are read by `watcher` alone;
training does not depend on it.

>>> logits, features = predict(trained.network, windows)   # (run, window, class), (run, window, feature)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bearcat.cat.calibration import Calibration, Calibrator, Evidence, accuracy, brier, ece, nll
from bearcat.cat.networks import Network
from bearcat.cat.recipes import RECIPES, Recipe
from bearcat.cat.scaling import CPCS, Matrix, Temperature, Vector
from bearcat.cat.teacher import SelfTraining
from bearcat.data.tasks import UNKNOWN, HeldBack
from bearcat.diagnosis.accuracy import Target, expected_value
from bearcat.errors import InputError, suggest
from bearcat.fast.device import Checked, padded_stack
from bearcat.methods.target_calibration import PseudoCal, RecordingConfidence, TargetConfidence, TransCal
from bearcat.settings import from_text

if TYPE_CHECKING:
    from bearcat.cat.state import TrainingState

CHUNK = {"cpu": 1024, "cuda": 8192}  # windows of all runs together that go through a network at once
CALIBRATORS: dict[str, type[Calibrator]] = {
    "Temperature": Temperature, "Vector": Vector, "Matrix": Matrix, "CPCS": CPCS, "TransCal": TransCal,
    "TargetConfidence": TargetConfidence, "PseudoCal": PseudoCal, "RecordingConfidence": RecordingConfidence,
}  # fmt: skip
"""All calibrators by name, the paper's and those that look at the target; a row more is a calibrator more.

>>> CALIBRATORS["Temperature"]().bounds
(1.0, 100.0)
"""


def find_calibrator(text: str) -> Calibrator:
    """The calibrator that `NAME` or `NAME:SETTING=VALUE` describes.

    >>> find_calibrator("Temperature:bounds=0.5,100").bounds
    (0.5, 100.0)
    """
    return from_text(text, CALIBRATORS, "calibrator")


def needs_of(calibrator: Calibrator) -> tuple[str, ...]:
    """The fields of Evidence that it reads beyond the source's logits, labels and weights."""
    return getattr(calibrator, "needs", ())


@torch.no_grad()
def predict(network: Network, values: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (run, window, class) and features (run, window, 256) in evaluation mode, a chunk at a time."""
    size = max(1, CHUNK.get(values.device.type, 1024) // values.shape[0])
    parts = [network(values[:, start : start + size]) for start in range(0, values.shape[1], size)]
    return torch.cat([logits for logits, _ in parts], dim=1), torch.cat([features for _, features in parts], dim=1)


def scores(
    logits: Tensor, calibration: Calibration | None, labels: Tensor, names: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Accuracy and calibration of each run (run,), all or by name; windows without a known class do not count."""
    weight = (labels != UNKNOWN).to(logits.dtype)
    codes = labels.clamp(min=0)
    plain = logits.softmax(dim=-1)
    calibrated = plain if calibration is None else calibration.apply(logits).softmax(dim=-1)
    measures: dict[str, Callable[..., Tensor]] = {"accuracy": accuracy, "ece": ece, "ece15": partial(ece, bins=15)}
    every = {name: partial(measure, calibrated, codes, weight) for name, measure in measures.items()}
    every |= {f"{name}_uncalibrated": partial(measure, plain, codes, weight) for name, measure in measures.items()}
    every |= {"nll": partial(nll, calibrated, codes, weight), "brier": partial(brier, calibrated, codes, weight)}
    every["balanced_accuracy"] = partial(balanced_accuracy, calibrated, labels)
    every["macro_f1"] = partial(macro_f1, calibrated, labels)
    return {name: every[name]() for name in names or every}


def balanced_accuracy(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The mean over classes of the share of their windows that are recognised, (run,); nan where no label is known."""
    member, called = _by_class(probabilities, labels)
    return ((member * called).sum(dim=1) / member.sum(dim=1)).nanmean(dim=1)  # 0/0, a class without windows, is nan


def macro_f1(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The mean over classes of 2·hits / (windows of the class + windows called so), (run,): precision and recall in one
    number. A class that neither has windows nor is called does not count; nan where no label is known.
    """
    member, called = _by_class(probabilities, labels)
    return (2 * (member * called).sum(dim=1) / (member + called).sum(dim=1)).nanmean(dim=1)


def _by_class(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of windows with a known label: whether each is of a class, and is called so; (run, window, class), 0 or 1."""
    classes = probabilities.shape[-1]
    member = functional.one_hot(torch.where(labels == UNKNOWN, classes, labels), classes + 1)[..., :classes]
    called = functional.one_hot(probabilities.argmax(dim=-1), classes) * (labels != UNKNOWN)[..., None]
    return member, called


def watcher(held_back: Sequence[HeldBack], device: torch.device) -> Callable[[TrainingState], dict[str, Tensor]]:
    """Evaluates the networks after every epoch: scores of student and teacher, and the accuracy of pseudo-labels."""
    target = padded_stack([np.asarray(held.target_test.values) for held in held_back], 0, device)
    target_labels = padded_stack([held.target_test_labels for held in held_back], UNKNOWN, device)
    train_labels = padded_stack([held.target_train_labels for held in held_back], UNKNOWN, device)

    def watch(state: TrainingState) -> dict[str, Tensor]:
        measured: dict[str, Tensor] = {}
        networks = {"student": state.student} | ({"teacher": state.teacher} if state.teacher is not None else {})
        for name, network in networks.items():
            calibration = state.calibration if network is state.network else None
            source = state.batches.source_test, state.batches.source_test_labels
            for domain, (values, labels) in {"source": source, "target": (target, target_labels)}.items():
                names = ("accuracy", "ece", "ece_uncalibrated")
                for score, value in scores(predict(network, values)[0], calibration, labels, names).items():
                    measured[f"{domain}_{score}_{name}"] = value
        if state.pseudo_labels is not None:
            selected = (state.pseudo_labels >= 0) & (train_labels != UNKNOWN)
            right = (state.pseudo_labels == train_labels) & selected
            measured["pseudo_label_accuracy"] = right.sum(dim=1) / selected.sum(dim=1)  # 0/0 is nan: none was selected
        return measured

    return watch


def check_calibrator(text: str | None) -> None:
    """Refuses a calibrator that there is not, or one that needs evidence there is not, before training."""
    if text is not None:
        known = [field.name for field in fields(Evidence)]
        for name in needs_of(find_calibrator(text)):
            if name not in known:
                raise InputError(f"the calibrator '{text}' needs '{name}', which is no evidence{suggest(name, known)}")


@torch.no_grad()
def fit_calibration(state: TrainingState, text: str | None = None) -> Calibration:
    """The calibration of the reported network by the recipe's calibrator, or by another. What it needs beyond logits
    and labels of the source test windows is computed when it does.
    """
    calibrator = find_calibrator(text or state.recipe.calibration or "")
    network, batches = state.network, state.batches
    source_train, target = (
        cache(partial(predict, network, windows)) for windows in (batches.source_train, batches.target_train)
    )
    logits, features = predict(network, batches.source_test)
    labels, device = batches.source_test_labels, logits.device
    available: dict[str, Callable[[], Any]] = {
        "source_features": lambda: features,
        "source_train_features": lambda: source_train()[1],
        "target_logits": lambda: target()[0],
        "target_features": lambda: target()[1],
        "target_recording": lambda: torch.from_numpy(np.stack([each.recording for each in state.checks])),
        "head": lambda: lambda features: network.head(features.to(logits.dtype)),
        "target_accuracy": lambda: expected_accuracy(target()[0], state.checks),
        "seeds": lambda: torch.tensor(batches.seeds, device=device),
    }
    weight = equal_classes(labels, logits.shape[-1]) if state.recipe.balance else None
    needed = {name: available[name]() for name in needs_of(calibrator)}
    return calibrator.fit(Evidence(source_logits=logits, source_labels=labels, source_weight=weight, **needed))


def expected_accuracy(target: Tensor, checks: Sequence[Checked]) -> Tensor:
    """The share of right predictions to expect on the target's training windows, (run,)."""
    likely = target.double().log_softmax(dim=-1).cpu().numpy()
    expected = [
        expected_value(Target(windows, checked.recording, checked.said))
        for windows, checked in zip(likely, checks, strict=True)
    ]
    return torch.tensor(expected, dtype=torch.float64, device=target.device)


def unchanged(name: str, recipe: Recipe, history: Mapping[str, Tensor], run: int) -> tuple[str, ...]:
    """That T was 1 in all epochs, if so: the calibrator changed nothing, and the method is the one without it."""
    if recipe.find(SelfTraining) is None or recipe.calibration is None or "temperature" not in history:
        return ()
    temperature = history["temperature"][:, run]
    temperature = temperature[~temperature.isnan()]  # NaN before T_cal, and where it is more than a temperature
    if not len(temperature) or bool((temperature != 1).any()):
        return ()
    plain = replace(RECIPES[name], calibration=None, final=None) if name in RECIPES else None
    twin = next((other for other, row in RECIPES.items() if row == plain), "the same method without a calibrator")
    return (f"{name} equals {twin} here: T = 1 in all epochs",)


def calibrate(state: TrainingState) -> None:
    """Fits the recipe's calibrator anew, into the memory of the calibration before, which recorded steps read."""
    fitted = fit_calibration(state).state()
    if state.calibration is None:
        state.calibration = Calibration.from_state({name: value.clone() for name, value in fitted.items()})
    for name, value in fitted.items():
        state.calibration.state()[name].copy_(value)


def equal_classes(labels: Tensor, classes: int) -> Tensor:
    """Weights (run, window) under which every class there is counts the same and windows count 1 on average."""
    member = functional.one_hot(labels, classes)
    counts = member.sum(dim=1, keepdim=True).double()
    share = labels.shape[1] / (counts > 0).sum(dim=2, keepdim=True)
    return (member * (share / counts.clamp(min=1))).sum(dim=2)
