"""Predictions → scores and label-free validators, per run. Training does not depend on either.

With trust.checked this is the only place that looks at target labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bearcat.calibration import CPCS, Calibration, Evidence, accuracy, brier, ece, nll
from bearcat.data.recording import Windows, spectrum
from bearcat.data.tasks import UNKNOWN, HeldBack
from bearcat.models import Network
from bearcat.training.batches import Batches, gather, padded_stack
from bearcat.trust.estimates import (
    KEPT_FEATURES,
    Familiarity,
    Source,
    Target,
    checked,
    dev_risk,
    estimates,
    familiarity_told,
    fit_familiarity,
)

CHUNK = {"cpu": 1024, "cuda": 8192}  # windows of all runs together that go through a network at once
LOOKED = 256  # target training windows that validators look at after an epoch
MIXED = 0.55  # of the window that a mixture is to be taken for (MixVal; Hu et al., 2023)
SHARPNESS = 0.05  # temperature of the neighbourhoods in SND (Saito et al., 2021)


@dataclass(frozen=True, eq=False)
class EpochEnd:
    """What a watcher is shown after an epoch. It returns numbers (run,) for the history."""

    epoch: int
    batches: Batches
    student: Network
    teacher: Network | None
    calibration: Calibration | None
    thresholds: Tensor | None  # (run, class)
    pseudo_labels: Tensor | None  # (run, target window), −1 where none was used in this epoch
    history: dict[str, list[Tensor]]


@torch.no_grad()
def predict(network: Network, values: Tensor) -> tuple[Tensor, Tensor]:
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
        "balanced_accuracy": balanced_accuracy(calibrated, labels),
        "ece": ece(calibrated, known, weight),
        "ece_uncalibrated": ece(plain, known, weight),
        "ece15": ece(calibrated, known, weight, bins=15),
        "ece15_uncalibrated": ece(plain, known, weight, bins=15),
        "nll": nll(calibrated, known, weight),
        "brier": brier(calibrated, known, weight),
    }


def balanced_accuracy(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The mean over classes of the share of their windows that are recognised, (run,); nan where no label is known."""
    classes = probabilities.shape[-1]
    member = functional.one_hot(torch.where(labels == UNKNOWN, classes, labels), classes + 1)[..., :classes]
    right = (probabilities.argmax(dim=-1) == labels)[..., None]
    return ((member * right).sum(dim=1) / member.sum(dim=1)).nanmean(dim=1)  # 0/0, a class without windows, is nan


def validators(probabilities: Tensor, present: Tensor) -> dict[str, Tensor]:
    """How good predictions (run, window, class) look without labels, (run,) each; higher is better (docs/trust.md).

    present (run, window) says where there is a window. All lie in 0 … 1 but for entropy, in −1 … 0; nan where there is
    no window, or no number.
    """
    likely = torch.where(present[..., None], probabilities.double(), 0.0)
    windows, classes = present.sum(dim=1).double(), probabilities.shape[-1]
    sound = likely.isfinite().flatten(1).all(dim=1) & (windows > 0)
    likely = torch.where(sound[:, None, None], likely, 0.0)
    entropy = torch.special.entr(likely).sum(dim=(1, 2)) / windows / math.log(classes)
    # Singular values of a tall matrix from its small square: a nuclear norm needs no more digits than that leaves.
    singular = torch.linalg.eigvalsh(likely.mT @ likely).clamp(min=0).sqrt().sum(dim=1)
    bnm = singular / (windows * windows.clamp(max=classes)).sqrt()
    found = {"entropy": -entropy, "bnm": bnm, "snd": _neighbourhood_density(likely, present)}
    return {name: torch.where(sound, value, math.nan) for name, value in found.items()}


def _neighbourhood_density(likely: Tensor, present: Tensor) -> Tensor:
    """Entropy of each window's soft neighbours among the others, mean over windows, over that of all being as near."""
    direction = likely / likely.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    near = direction @ direction.mT / SHARPNESS
    alone = torch.eye(near.shape[1], dtype=torch.bool, device=near.device)
    other = present[:, None] & present[..., None] & ~alone
    share = near.masked_fill(~other, -torch.inf).softmax(dim=-1).nan_to_num()  # a row of no others is nan
    windows = present.sum(dim=1).double()
    density: Tensor = torch.special.entr(share).sum(dim=(1, 2)) / windows / (windows - 1).log()
    return density


def mixval(network: Network, values: Tensor, predicted: Tensor, present: Tensor) -> Tensor:
    """How often a mixture of two windows is still given the class `predicted` of the larger part, (run,) in 0 … 1.

    Each window of values (run, window, channel, time) is mixed with the next, the last with the first; pairs that were
    predicted alike and pairs that were not weigh the same. A simple form of MixVal: one mixture, hard labels.
    """
    count = present.sum(dim=1, keepdim=True)
    following = (torch.arange(values.shape[1], device=values.device) + 1) % count.clamp(min=1)
    mixture = MIXED * values + (1 - MIXED) * gather(values, following)
    kept = predict(network, mixture)[0].argmax(dim=-1) == predicted
    alike = predicted == predicted.gather(1, following)
    shares = [(kept & pair).sum(dim=1) / pair.sum(dim=1) for pair in (alike & present, ~alike & present)]
    return torch.stack(shares).nanmean(dim=0)  # of one kind there may be none


def watcher(held_back: Sequence[HeldBack], device: torch.device) -> Callable[[EpochEnd], dict[str, Tensor]]:
    """Looks at the end of every epoch: source and target scores of student and teacher, validators of both on target
    training windows, accuracy of pseudo-labels.
    """
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
            unlabelled = end.batches.target_train[:, :LOOKED]  # in random order, so the first are any
            logits = predict(network, unlabelled)[0]
            logits = logits if calibration is None else calibration.apply(logits)
            found = validators(logits.softmax(dim=-1), end.batches.target_present[:, :LOOKED])
            seen |= {f"validator_{validator}_{name}": value for validator, value in found.items()}
        if end.pseudo_labels is not None:
            chosen = (end.pseudo_labels >= 0) & (train_labels != UNKNOWN)
            right = (end.pseudo_labels == train_labels) & chosen
            seen["pseudo_label_accuracy"] = right.sum(dim=1) / chosen.sum(dim=1)  # 0/0 is nan: nothing was selected
        return seen

    return watch


@dataclass(frozen=True, eq=False)
class Trust:
    """What a run tells of itself without target labels, and how true that is where there are some."""

    estimates: dict[str, Any]
    checked: dict[str, Any] | None
    familiarity: Familiarity


def trust(
    network: Network, calibration: Calibration | None, batches: Batches, held_back: Sequence[HeldBack], finite: Tensor,
    source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor],
) -> list[Trust]:  # fmt: skip
    """Of every run of a stack. `source` and `target`: what `predict` says of the source and target test windows.

    Of the training windows at most KEPT_FEATURES are looked at, so that a run's end stays short however long it was.
    """
    train_logits, train_features = predict(network, batches.target_train[:, :KEPT_FEATURES])
    present = batches.target_present[:, :KEPT_FEATURES]
    odds = CPCS().log_weights(
        Evidence(
            source_logits=source[0], source_labels=batches.source_test_labels,
            source_weight=batches.source_test_labels != UNKNOWN, source_features=source[1],
            source_train_features=predict(network, batches.source_train[:, :KEPT_FEATURES])[1],
            source_train_weight=batches.source_present[:, :KEPT_FEATURES],
            target_features=train_features, target_weight=present,
            seeds=torch.tensor(batches.seeds, device=present.device),
        )
    )  # fmt: skip

    def likely(logits: Tensor) -> Tensor:
        return (logits if calibration is None else calibration.apply(logits)).double().log_softmax(dim=-1)

    looked = validators(likely(train_logits).exp(), present)
    unlabelled, predicted = batches.target_train[:, :KEPT_FEATURES], train_logits.argmax(dim=-1)
    looked["mixval"] = mixval(network, unlabelled, predicted, present).double()
    at_hand = {
        "validators": torch.stack(list(looked.values()), dim=1), "finite": finite,
        "calibrated": torch.zeros_like(finite) if calibration is None else ~calibration.at_bound,
        "odds": odds, "present": present, "labels": batches.source_test_labels, "train": train_features,
        "source": likely(source[0]), "source_logits": source[0], "source_features": source[1],
        "target": likely(target[0]), "target_logits": target[0], "target_features": target[1],
    }  # fmt: skip
    on_host = {name: value.cpu().numpy() for name, value in at_hand.items()}

    def of(number: int) -> dict[str, np.ndarray]:
        """One run's rows; its windows are fetched for it alone, for those of a stack are many."""
        windows = {
            "train_windows": batches.target_train[number, :KEPT_FEATURES],
            "source_windows": batches.source_test[number],
        }
        return {name: value[number] for name, value in on_host.items()} | {
            name: value.cpu().numpy() for name, value in windows.items()
        }

    return [_trust_of(of(number), tuple(looked), held) for number, held in enumerate(held_back)]


def _trust_of(seen: dict[str, np.ndarray], names: tuple[str, ...], held: HeldBack) -> Trust:
    """Of one run, from its own rows of what the stack saw."""
    windows, there = len(held.target_test), seen["labels"] != UNKNOWN
    of_source = ("source", "source_logits", "source_features", "source_windows", "odds")
    seen = seen | {name: seen[name][there] for name in of_source}
    seen |= {name: seen[name][:windows] for name in ("target", "target_logits", "target_features")}
    source, target = Source(seen["source"], seen["labels"][there]), Target(seen["target"], held.target_test.recording)
    train = seen["train"][seen["present"]], _magnitudes(seen["train_windows"][seen["present"]], held.target_test)
    whole = seen["target_logits"], seen["target_features"], _magnitudes(held.target_test.values, held.target_test)
    familiarity = fit_familiarity(*train, *whole, target.recording)
    strangeness = familiarity.scores(*whole)
    found = dict(zip(names, seen["validators"].tolist(), strict=True))
    found["dev"] = 0.0 - dev_risk((~source.right).astype(np.float64), seen["odds"])
    told = estimates(
        source, target, found,
        familiarity_told(
            familiarity, strangeness, target.recording,
            familiarity.unfamiliar(
                seen["source_logits"], seen["source_features"], _magnitudes(seen["source_windows"], held.target_test)
            ),
        ),
        failed=not bool(seen["finite"]), collapsed=len(set(seen["target"].argmax(axis=1).tolist())) == 1,
        calibrated=bool(seen["calibrated"]),
    )  # fmt: skip
    labels = held.target_test_labels
    alien = (labels == UNKNOWN) & np.array([one is not None for one in held.target_test.labels], dtype=bool)
    truth = checked(told, target, labels, alien, familiarity.beyond(strangeness))
    return Trust(told, truth, familiarity)


def _magnitudes(values: np.ndarray, like: Windows) -> np.ndarray:
    """Spectra of prepared windows (window, channel, point), which are such already where they are prepared so."""
    return spectrum(values) if values.shape[-1] == like.span else values
