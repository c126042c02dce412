"""Fits a recipe's calibrator to the reported network, once an epoch, on the labelled source test windows.

A calibrator names the evidence it needs beyond logits and labels (`Calibrator.needs`); only that is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from bearcat.calibration import Calibration, Evidence, find_calibrator
from bearcat.data.tasks import UNKNOWN
from bearcat.errors import InputError, suggest
from bearcat.methods.recipe import Recipe
from bearcat.models.networks import Network
from bearcat.training.batches import Batches, padded_stack
from bearcat.training.evaluate import predict
from bearcat.training.state import Checked, TrainingState
from bearcat.trust.accuracy import Source, Target
from bearcat.trust.estimates import expected_value


def check_calibrator(text: str | None) -> None:
    """Refuses a calibrator that there is not, or one that needs evidence there is not, before training."""
    if text is not None:
        known = [field.name for field in fields(Evidence)]
        for name in find_calibrator(text).needs:
            if name not in known:
                raise InputError(f"the calibrator '{text}' needs '{name}', which is no evidence{suggest(name, known)}")


@dataclass(frozen=True, eq=False)
class Fitting:
    """Fits calibrators to a network, with what is known without target labels; a part is computed when one needs it."""

    network: Network
    batches: Batches
    checks: Sequence[Checked]  # as in TrainingState
    balance: bool = False  # classes of the source count the same, however many windows each has

    @cached_property
    def source_test(self) -> tuple[Tensor, Tensor]:
        return predict(self.network, self.batches.source_test)

    @cached_property
    def source_train(self) -> tuple[Tensor, Tensor]:
        return predict(self.network, self.batches.source_train)

    @cached_property
    def target(self) -> tuple[Tensor, Tensor]:
        return predict(self.network, self.batches.target_train)

    @torch.no_grad()
    def fit(self, text: str) -> Calibration:
        """The calibration by a row of CALIBRATORS."""
        calibrator = find_calibrator(text)
        return calibrator.fit(self.evidence(calibrator.needs))

    def evidence(self, needs: Sequence[str]) -> Evidence:
        """The source test windows, and of the rest what is needed."""
        network, batches = self.network, self.batches
        logits, labels = self.source_test[0], batches.source_test_labels
        available: dict[str, Callable[[], Any]] = {
            "source_features": lambda: self.source_test[1],
            "source_train_features": lambda: self.source_train[1],
            "source_train_weight": lambda: batches.source_present,
            "target_logits": lambda: self.target[0],
            "target_features": lambda: self.target[1],
            "target_weight": lambda: batches.target_present,
            "target_recording": lambda: padded_stack([each.recording for each in self.checks], UNKNOWN, logits.device),
            "target_windows": lambda: batches.target_train,
            "network": lambda: partial(predict, network),
            "head": lambda: lambda features: network.head(features.to(logits.dtype)),
            "estimates": lambda: {"accuracy": self.expected_accuracy()},
            "seeds": lambda: torch.tensor(batches.seeds, device=logits.device),
        }
        weight = _equal_classes(labels, logits.shape[-1]) if self.balance else labels != UNKNOWN
        found = {name: available[name]() for name in needs}
        return Evidence(source_logits=logits, source_labels=labels, source_weight=weight, **found)

    def expected_accuracy(self) -> Tensor:
        """The share of right predictions to expect on the target's training windows, (run,): that of the verdict."""
        logits, labels = self.source_test[0], self.batches.source_test_labels
        source, target = (each.double().log_softmax(dim=-1).cpu().numpy() for each in (logits, self.target[0]))
        found = []
        for run, (codes, windows) in enumerate(zip(labels.cpu().numpy(), self.batches.target_windows, strict=True)):
            checked = self.checks[run]
            tested = Source(source[run][codes != UNKNOWN], codes[codes != UNKNOWN])
            found.append(expected_value(tested, Target(target[run, :windows], checked.recording, checked.said)))
        return torch.tensor(found, dtype=torch.float64, device=logits.device)


def fit_calibration(recipe: Recipe, state: TrainingState, text: str | None = None) -> Calibration:
    """The calibration of the reported network by the recipe's calibrator, or by another."""
    text = text or recipe.calibration
    if text is None:
        raise ValueError("the recipe has no calibrator")
    return Fitting(state.reported, state.batches, state.checks, recipe.balance).fit(text)


def refill(earlier: Calibration | None, fitted: Calibration) -> Calibration:
    """The fitted calibration in the memory of the one before, which recorded steps read."""
    if earlier is None:
        return Calibration.from_state({name: value.clone() for name, value in fitted.state().items()})
    for name, value in fitted.state().items():
        earlier.state()[name].copy_(value)
    return earlier


def _equal_classes(labels: Tensor, classes: int) -> Tensor:
    """Weights (run, window) under which every class there is counts the same and windows count 1 on average."""
    member = torch.nn.functional.one_hot(torch.where(labels == UNKNOWN, classes, labels), classes + 1)[..., :classes]
    counts = member.sum(dim=1, keepdim=True).double()
    share = counts.sum(dim=2, keepdim=True) / (counts > 0).sum(dim=2, keepdim=True)
    return (member * (share / counts.clamp(min=1))).sum(dim=2)
