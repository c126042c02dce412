"""THE loop. Every method of the paper, for one run or a stack of them (docs/method.md).

A run gives the same result alone, in any stack, and after a resume: its initial weights, the order of its windows and
its dropout come from its own seed, by counting rather than by drawing on. Nothing here has, or could reach, a target
label; the exception, the oracle calibrator, is handed them in an argument of that name.

>>> trained = train([Run(RECIPES["CAT*-Temperature"], split.training, seed=0)], torch.device("cpu"))
>>> logits, features = predict(trained.network, windows)
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bearcat import checkpoint as checkpoints
from bearcat import losses, thresholds
from bearcat.batches import Batches, gather, stack_data
from bearcat.calibration import CALIBRATORS, CPCS, Calibration, Calibrator, Evidence, Temperature
from bearcat.data.tasks import TrainingData
from bearcat.errors import InputError
from bearcat.evaluate import EpochEnd, predict
from bearcat.models import DomainClassifier, Student, initialise
from bearcat.models.stacked import Randomness
from bearcat.recipe import Recipe
from bearcat.stepping import climb, follow, learning_rate, put_back, reversal_coefficient, reverse_gradient

RESULT_VERSION = 2  # raise it whenever the same settings, seed and data give another result
STUDENT, DOMAIN, DROPOUT = 20, 21, 22  # streams of randomness


@dataclass(frozen=True, eq=False)
class Run:
    """One training: a recipe, its data, a seed."""

    recipe: Recipe
    data: TrainingData
    seed: int


@dataclass(eq=False)
class Trained:
    """What training leaves behind: networks, the final calibration, and a history of (epoch, run) numbers."""

    student: Student
    teacher: Student | None
    calibration: Calibration | None
    batches: Batches
    history: dict[str, Tensor]
    finite: Tensor  # (run,) bool: the loss never turned NaN or infinite

    @property
    def network(self) -> Student:
        """The one whose predictions are reported: the teacher, or the student of methods without one."""
        return self.student if self.teacher is None else self.teacher


@dataclass(eq=False)
class State:
    """Everything that changes while training."""

    student: Student
    domain: DomainClassifier
    teacher: Student | None
    student_optimiser: torch.optim.Adam
    domain_optimiser: torch.optim.Adam
    randomness: Randomness
    finite: Tensor
    history: dict[str, list[Tensor]]
    epoch: int = 0


def train(
    runs: Sequence[Run],
    device: torch.device,
    watch: Callable[[EpochEnd], dict[str, Tensor]] | None = None,
    progress: Callable[[EpochEnd], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    oracle: tuple[Tensor, Tensor] | None = None,
) -> Trained:
    """Trains all runs to the last epoch. `oracle` (target windows and labels) is for the oracle calibrator alone.

    With a checkpoint, an interrupted training goes on from its last one to the same result.
    """
    recipe, schedule = runs[0].recipe, runs[0].recipe.schedule
    if any(run.recipe.shape() != recipe.shape() for run in runs):
        raise InputError(
            "runs of one stack need the same ingredients and schedule; train these runs in stacks of their own"
        )
    batches = stack_data([run.data for run in runs], [run.seed for run in runs], schedule.batch, device)
    classes = len(runs[0].data.classes)
    number = _numbers(runs, device)
    state = _new_state(runs, batches, classes)
    identity = _identity(runs)
    if checkpoint is not None and checkpoint.exists():
        _resume(state, checkpoint, identity)
    saved_at = time.monotonic()
    iterations = batches.iterations
    labelled_until_now: Tensor | None = None
    calibration: Calibration | None = None

    for epoch in range(state.epoch, schedule.epochs):
        aligning = recipe.alignment is not None and epoch >= schedule.align_from
        confusing = recipe.confusion is not None and epoch >= schedule.align_from
        labelling = recipe.labels is not None and epoch >= schedule.label_from
        calibrating = recipe.calibration is not None and epoch >= schedule.calibrate_from
        for optimiser in (state.student_optimiser, state.domain_optimiser):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(schedule, epoch)

        if recipe.teacher is not None and epoch >= schedule.label_from and state.teacher is None:
            state.teacher = copy.deepcopy(state.student).requires_grad_(False)
        teacher = state.teacher
        calibration = _calibrate(recipe, teacher, batches, oracle) if calibrating and teacher is not None else None
        limits = _thresholds(recipe, teacher, calibration, batches, number, classes) if labelling else None
        if labelling:
            labelled_until_now = torch.full(batches.target_train.shape[:2], -1, dtype=torch.int64, device=device)
        totals: dict[str, Tensor] = {}

        for step, (source_index, target_index) in enumerate(batches.epoch(epoch)):
            source, labels = gather(batches.source_train, source_index), gather(batches.source_labels, source_index)
            target = gather(batches.target_train, target_index) if aligning or confusing or labelling else None
            if teacher is not None and recipe.teacher is not None:
                follow(teacher, state.student, recipe.teacher.momentum, recipe.teacher.statistics == "averaged")
            pseudo: tuple[Tensor, Tensor] | None = None
            if limits is not None and teacher is not None and target is not None:
                pseudo = _pseudo_labels(recipe, teacher, target, calibration, limits, state.randomness)
                _note_labels(labelled_until_now, target_index, *pseudo)

            def task(
                for_domain: bool, source: Tensor = source, labels: Tensor = labels, target: Tensor | None = target,
                pseudo: tuple[Tensor, Tensor] | None = pseudo, confusing: bool = confusing,
            ) -> tuple[dict[str, Tensor], list[Tensor]]:  # fmt: skip
                """Supervised, pseudo-label and confusion losses (run,), weighted, and the features of both domains."""
                logits, features = _pass(state, source)
                parts = {"supervised": losses.supervised(logits, labels)}
                wanted = pseudo is not None or confusing or (for_domain and recipe.passes == "shared")
                if target is None or not wanted:
                    return parts, [features]
                target_logits, target_features = _pass(state, target)
                if pseudo is not None and recipe.labels is not None:
                    loss = losses.pseudo_label(target_logits, *pseudo, recipe.labels.average)
                    parts["pseudo_label"] = number["label_weight"] * loss
                if confusing and recipe.confusion is not None:
                    loss = losses.class_confusion(target_logits, recipe.confusion.temperature)
                    parts["confusion"] = number["confusion_weight"] * loss
                return parts, [features, target_features]

            weights = list(state.student.parameters())
            before = None
            if recipe.sharpness is not None:
                parts, _ = task(for_domain=False)
                before = climb(weights, torch.autograd.grad(_total(parts), weights), number["radius"])
            parts, features = task(for_domain=True)
            if aligning and target is not None and recipe.alignment is not None:
                done = (epoch - schedule.align_from) * iterations + step
                share = done / ((schedule.epochs - schedule.align_from) * iterations)
                coefficient = number["alignment_weight"] * reversal_coefficient(share, recipe.alignment.slope)
                if recipe.passes == "separate":
                    joint = _pass(state, torch.cat([source, target], dim=1))[1]
                    features = [joint[:, : source.shape[1]], joint[:, source.shape[1] :]]
                parts["domain"] = _domain_loss(state, features, coefficient)
            state.student_optimiser.zero_grad(set_to_none=True)
            state.domain_optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(_total(parts))
            if before is not None:
                put_back(weights, before)
            state.student_optimiser.step()
            if "domain" in parts:
                state.domain_optimiser.step()
            if pseudo is not None:
                parts["share"] = pseudo[1].to(torch.float32).mean(dim=1)
            for name, value in parts.items():
                totals[name] = totals.get(name, 0) + value.detach() / iterations

        _finish_epoch(state, totals, calibration, limits)
        end = EpochEnd(
            epoch, batches, state.student, teacher, calibration, limits,
            labelled_until_now if labelling else None, state.history,
        )  # fmt: skip
        for name, value in (watch(end) if watch is not None else {}).items():
            _remember(state, name, value)
        state.epoch = epoch + 1
        if checkpoint is not None and (
            time.monotonic() - saved_at > checkpoint_seconds or state.epoch in (1, schedule.epochs)
        ):
            _save(state, checkpoint, identity)
            saved_at = time.monotonic()
        if progress is not None:
            progress(end)

    calibration = None
    if recipe.calibration is not None and state.teacher is not None and schedule.epochs > schedule.calibrate_from:
        calibration = _calibrate(recipe, state.teacher, batches, oracle)
    history = {name: torch.stack(values) for name, values in state.history.items()}
    return Trained(state.student, state.teacher, calibration, batches, history, state.finite)


def _total(parts: dict[str, Tensor]) -> Tensor:
    """The sum over losses and runs; a run's gradient is that of its own losses."""
    return torch.stack(list(parts.values())).sum()


def _pass(state: State, windows: Tensor) -> tuple[Tensor, Tensor]:
    """The student in training mode: batch statistics, fresh dropout."""
    state.randomness.next()
    logits, features = state.student(windows, batch_statistics=True, randomness=state.randomness)
    return logits, features


def _domain_loss(state: State, features: list[Tensor], coefficient: Tensor) -> Tensor:
    """Of both domains through the reversal layer and the domain classifier, in one call."""
    joint = reverse_gradient(torch.cat(features, dim=1), coefficient)
    logits = state.domain(joint, state.randomness)
    return losses.domain(logits[:, : features[0].shape[1]], logits[:, features[0].shape[1] :])


@torch.no_grad()
def _pseudo_labels(
    recipe: Recipe, teacher: Student, target: Tensor, calibration: Calibration | None, limits: Tensor, draws: Randomness
) -> tuple[Tensor, Tensor]:
    """The teacher's labels of a target batch and which of them are sure enough: (run, batch) each."""
    own = recipe.teacher is not None and recipe.teacher.statistics == "target"
    live = own and recipe.teacher is not None and recipe.teacher.dropout
    draws.next()
    logits, _ = teacher(target, batch_statistics=own, randomness=draws if live else None)
    probabilities = (logits if calibration is None else calibration.apply(logits)).softmax(dim=-1)
    return thresholds.select(probabilities, limits)


def _note_labels(noted: Tensor | None, index: Tensor, labels: Tensor, selected: Tensor) -> None:
    if noted is not None:
        noted.scatter_(1, index, torch.where(selected, labels, -1))


def _thresholds(
    recipe: Recipe, teacher: Student | None, calibration: Calibration | None, batches: Batches,
    number: dict[str, Tensor], classes: int,
) -> Tensor | None:  # fmt: skip
    """Per-class limits from what the teacher is sure of on the target's training windows, or the fixed one."""
    if recipe.labels is None or teacher is None:
        return None
    if recipe.labels.threshold == "fixed":
        return thresholds.fixed(number["tau"], classes)
    logits, _ = predict(teacher, batches.target_train)
    if recipe.labels.counts == "calibrated" and calibration is not None:
        logits = calibration.apply(logits)
    return thresholds.per_class(thresholds.confident_counts(logits.softmax(dim=-1), number["tau"]), number["tau"])


@torch.no_grad()
def _calibrate(recipe: Recipe, teacher: Student, batches: Batches, oracle: tuple[Tensor, Tensor] | None) -> Calibration:
    """Fits the recipe's calibrator on the teacher's predictions of the labelled source test windows."""
    assert recipe.calibration is not None  # noqa: S101 (asked by the caller)
    kind = recipe.calibration.kind
    bounds = (recipe.calibration.lower, recipe.calibration.upper)
    bounded: dict[str, Calibrator] = {"Temperature": Temperature(bounds=bounds), "CPCS": CPCS(bounds=bounds)}
    calibrator = bounded.get(kind) or CALIBRATORS[kind]()
    logits, features = predict(teacher, batches.source_test)
    told: dict[str, Any] = {}
    if calibrator.needs_features:
        told = {
            "source_features": features,
            "source_train_features": predict(teacher, batches.source_train)[1],
            "target_train_features": predict(teacher, batches.target_train)[1],
            "seeds": torch.tensor(batches.seeds, device=logits.device),
        }
    if calibrator.uses_target_labels:
        if oracle is None:
            raise InputError("the oracle calibrator needs target labels; it is for studies with labelled targets only")
        told["oracle"] = (predict(teacher, oracle[0])[0], oracle[1], None)
    return calibrator.fit(Evidence(source_logits=logits, source_labels=batches.source_test_labels, **told))


def _numbers(runs: Sequence[Run], device: torch.device) -> dict[str, Tensor]:
    """The settings that may differ between the runs of a stack, (run,) each."""

    def each(pick: Callable[[Recipe], float]) -> Tensor:
        return torch.tensor([pick(run.recipe) for run in runs], dtype=torch.float32, device=device)

    return {
        "radius": each(lambda recipe: recipe.sharpness.radius if recipe.sharpness else 0.0),
        "alignment_weight": each(lambda recipe: recipe.alignment.weight if recipe.alignment else 0.0),
        "confusion_weight": each(lambda recipe: recipe.confusion.weight if recipe.confusion else 0.0),
        "label_weight": each(lambda recipe: recipe.labels.weight if recipe.labels else 0.0),
        "tau": each(lambda recipe: recipe.labels.tau if recipe.labels else 1.0),
    }


def _new_state(runs: Sequence[Run], batches: Batches, classes: int) -> State:
    recipe, seeds, device = runs[0].recipe, list(batches.seeds), batches.source_train.device
    _, _, channels, length = batches.source_train.shape
    student = Student(len(runs), channels, length, classes, recipe.dropout)
    domain = DomainClassifier(len(runs), recipe.dropout)
    initialise(student, seeds, STUDENT)
    initialise(domain, seeds, DOMAIN)
    keys = [int(np.random.SeedSequence([seed, DROPOUT]).generate_state(1)[0]) for seed in seeds]
    schedule = recipe.schedule

    def adam(network: torch.nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(
            network.parameters(), lr=schedule.rate, betas=(schedule.beta1, schedule.beta2),
            weight_decay=schedule.weight_decay, foreach=device.type == "cpu", fused=device.type == "cuda",
        )  # fmt: skip

    student.to(device, batches.source_train.dtype)
    domain.to(device, batches.source_train.dtype)
    return State(
        student, domain, None, adam(student), adam(domain),
        Randomness(torch.tensor(keys, dtype=torch.int64, device=device)),
        torch.ones(len(runs), dtype=torch.bool, device=device), {},
    )  # fmt: skip


def _finish_epoch(
    state: State, totals: dict[str, Tensor], calibration: Calibration | None, limits: Tensor | None
) -> None:
    """Writes the epoch's means into the history; a run whose loss is no number is marked and stopped, others go on."""
    for name, value in totals.items():
        _remember(state, f"loss_{name}" if name != "share" else "pseudo_label_share", value)
    broken = ~torch.stack([value.isfinite() for value in totals.values()]).all(dim=0)
    for parameter in state.student.parameters():
        broken = broken | ~parameter.isfinite().flatten(1).all(dim=1)
    state.finite &= ~broken
    if not bool(state.finite.all()):  # zeros cannot spread: logits, and all that follows from them, stay finite
        with torch.no_grad():
            for network in (state.student, state.domain, *([state.teacher] if state.teacher is not None else [])):
                for tensor in (*network.parameters(), *network.buffers()):
                    tensor[~state.finite] = 0
            for optimiser in (state.student_optimiser, state.domain_optimiser):
                for kept in optimiser.state.values():
                    for name in ("exp_avg", "exp_avg_sq"):
                        kept[name][~state.finite] = 0
    if calibration is not None:
        _remember(state, "temperature", calibration.temperature)
        _remember(state, "temperature_at_bound", calibration.at_bound.to(torch.float32))
    if limits is not None:
        for label in range(limits.shape[1]):
            _remember(state, f"threshold_{label}", limits[:, label])


def _remember(state: State, name: str, value: Tensor) -> None:
    """Appends to the history; epochs before a number first existed are nan."""
    kept = state.history.setdefault(name, [])
    missing = torch.full((len(state.finite),), math.nan)
    kept.extend(missing for _ in range(state.epoch - len(kept)))
    kept.append(value.detach().to("cpu", torch.float32))


def _identity(runs: Sequence[Run]) -> str:
    """Of everything that determines the result, so that a checkpoint is never continued by another training."""
    words = []
    for run in runs:
        content = hashlib.sha256()
        for part in (run.data.source_train, run.data.source_test):
            content.update(np.ascontiguousarray(part.values).tobytes())
            content.update(np.ascontiguousarray(part.labels).tobytes())
        content.update(np.ascontiguousarray(run.data.target_train.values).tobytes())
        words.append([RESULT_VERSION, run.recipe.told(), run.seed, run.data.classes, content.hexdigest()])
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _parts(state: State) -> dict[str, torch.nn.Module]:
    networks: dict[str, torch.nn.Module] = {"student": state.student, "domain": state.domain}
    return networks | ({"teacher": state.teacher} if state.teacher is not None else {})


def _save(state: State, path: Path, identity: str) -> None:
    tensors = {
        f"{part}.{name}": value for part, net in _parts(state).items() for name, value in net.state_dict().items()
    }
    for part, optimiser in (("student", state.student_optimiser), ("domain", state.domain_optimiser)):
        for number, kept in optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{part}.{number}.{name}": value for name, value in kept.items()}
    tensors |= {f"history.{name}": torch.stack(values) for name, values in state.history.items()}
    tensors |= {"draw": state.randomness.draw, "finite": state.finite}
    checkpoints.save(path, tensors, {"identity": identity, "epoch": state.epoch, "teacher": state.teacher is not None})


def _resume(state: State, path: Path, identity: str) -> None:
    """Puts the state back to what it was when the checkpoint was written."""
    tensors, told = checkpoints.load(path)
    if told.get("identity") != identity:
        raise InputError(
            f"{path}: belongs to another training (other settings, seed or data); use another --out or delete it"
        )
    if told["teacher"]:
        state.teacher = copy.deepcopy(state.student).requires_grad_(False)
    try:
        for part, network in _parts(state).items():
            prefix = f"{part}."
            network.load_state_dict({k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)})
        for part, optimiser in (("student", state.student_optimiser), ("domain", state.domain_optimiser)):
            kept: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                if name.startswith(f"adam.{part}."):
                    _, _, number, field = name.split(".")
                    kept.setdefault(int(number), {})[field] = value
            optimiser.load_state_dict(optimiser.state_dict() | {"state": kept})
        state.randomness.draw.copy_(tensors["draw"])
        state.finite.copy_(tensors["finite"])
        history = {k.removeprefix("history."): v for k, v in tensors.items() if k.startswith("history.")}
        state.history.update({name: list(values.unbind(0)) for name, values in history.items()})
        state.epoch = int(told["epoch"])
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{path}: is damaged and cannot be continued; delete it to start from the beginning"
        ) from error
