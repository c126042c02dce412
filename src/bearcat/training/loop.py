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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bearcat.calibration import CALIBRATORS, CPCS, Calibration, Calibrator, Evidence, Temperature
from bearcat.data.tasks import UNKNOWN, TrainingData
from bearcat.errors import InputError, suggest
from bearcat.methods import losses, thresholds
from bearcat.methods.recipe import Recipe
from bearcat.models import PRECISIONS, DomainClassifier, Student, fast_path, initialise, use_path
from bearcat.models.stacked import Randomness
from bearcat.storage import load_tensors, save_tensors
from bearcat.training.batches import Batch, Batches, Feed, data_key, stack_data
from bearcat.training.evaluate import EpochEnd, predict
from bearcat.training.stepping import (
    Recorder,
    climb,
    descend,
    follow,
    learning_rate,
    matrix_products,
    parameters_of,
    put_back,
    reversal_coefficient,
    reverse_gradient,
    set_rate,
)

RESULT_VERSION = 6  # raise it whenever the same settings, seed and data give another result
STUDENT, DOMAIN, DROPOUT = 20, 21, 22  # streams of randomness


@dataclass(frozen=True, eq=False)
class Run:
    """One training: a recipe, its data, a seed."""

    recipe: Recipe
    data: TrainingData
    seed: int


@dataclass(frozen=True)
class Phase:
    """Which ingredients are on in an epoch. Steps of one phase are alike."""

    aligning: bool
    confusing: bool
    labelling: bool
    calibrating: bool

    @property
    def target(self) -> bool:
        """Whether target windows are looked at."""
        return self.aligning or self.confusing or self.labelling


@dataclass(eq=False)
class Trained:
    """What training leaves behind: networks, the final calibration, and a history of (epoch, run) numbers."""

    student: Student
    teacher: Student | None
    calibration: Calibration | None
    batches: Batches
    history: dict[str, Tensor]
    finite: Tensor  # (run,) bool: the loss never turned NaN or infinite
    path: str  # "plain", "triton" or "native": which kernels did the work
    precision: str  # "float32", "tf32" or "bfloat16": of the convolutions' products and stored activations

    @property
    def network(self) -> Student:
        """The one whose predictions are reported: the teacher, or the student of methods without one."""
        return self.student if self.teacher is None else self.teacher


@dataclass(eq=False)
class State:
    """Everything that changes while training. What a step reads and writes stays in one place (stepping.Recorder)."""

    student: Student
    domain: DomainClassifier
    teacher: Student | None
    student_optimiser: torch.optim.Adam
    domain_optimiser: torch.optim.Adam
    randomness: Randomness
    finite: Tensor
    history: dict[str, list[Tensor]]
    epoch: int = 0
    calibration: Calibration | None = None  # of this epoch
    limits: Tensor | None = None  # (run, class), of this epoch
    noted: Tensor | None = None  # (run, target window + 1), this epoch's pseudo-labels, −1 where none; last: padding
    totals: dict[str, Tensor] = field(default_factory=dict)  # this epoch's sums over steps, (run,) each


def stack_key(run: Run) -> Hashable:
    """Runs of equal keys can be trained together: the same ingredients and schedule, windows alike, as many steps."""
    return run.recipe.shape(), data_key(run.data, run.recipe.schedule.batch)


def train(
    runs: Sequence[Run],
    device: torch.device,
    watch: Callable[[EpochEnd], dict[str, Tensor]] | None = None,
    progress: Callable[[EpochEnd], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    oracle: tuple[Tensor, Tensor] | None = None,
    precision: str | None = None,
    path: str | None = None,
) -> Trained:
    """Trains all runs to the last epoch. `oracle` (target windows and labels) is for the oracle calibrator alone.

    With a checkpoint, an interrupted training goes on from its last one to the same result.

    `precision` is "float32", "tf32" or "bfloat16" (GPUs; weights and statistics are float32 always; by default bfloat16
    with Triton, TF32 without), `path` "plain", "triton" (GPU) or "native" (CPU); by default the best there is,
    which the result tells.
    """
    if path is None:
        single = runs[0].data.source_train.values.dtype == np.float32  # Triton's kernels are for nothing else
        path = fast_path(device) if single or device.type == "cpu" else "plain"
    precision = _precision(precision, path, device)
    with matrix_products(precision, device):
        return _train(runs, device, watch, progress, checkpoint, checkpoint_seconds, oracle, precision, path)


def chosen_device(name: str) -> torch.device:
    """The device of this name; auto is a GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device '{name}'; choose from auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch sees no CUDA device; use the device 'cpu'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def checked_precision(wanted: str | None) -> str | None:
    """What was wanted, if there is such a thing; None leaves it to the device."""
    if wanted is not None and wanted not in PRECISIONS:
        raise InputError(f"setting 'precision' is '{wanted}'{suggest(wanted, PRECISIONS)}")
    return wanted


def _precision(wanted: str | None, path: str, device: torch.device) -> str:
    """What is wanted, or more where the device has nothing less; without a wish the fastest (docs/speed.md)."""
    checked_precision(wanted)
    if wanted == "bfloat16" and path != "triton":
        raise InputError("precision 'bfloat16' needs a GPU on which Triton runs; leave it out")
    if device.type == "cpu":
        return "float32"
    return wanted or ("bfloat16" if path == "triton" else "tf32")


def _train(
    runs: Sequence[Run], device: torch.device, watch: Callable[[EpochEnd], dict[str, Tensor]] | None,
    progress: Callable[[EpochEnd], None] | None, checkpoint: Path | None, checkpoint_seconds: float,
    oracle: tuple[Tensor, Tensor] | None, precision: str, path: str,
) -> Trained:  # fmt: skip
    """`train`, once path and precision are decided."""
    recipe, schedule = runs[0].recipe, runs[0].recipe.schedule
    if any(run.recipe.shape() != recipe.shape() for run in runs):
        raise InputError(
            "runs of one stack need the same ingredients and schedule; train these runs in stacks of their own"
        )
    batches = stack_data([run.data for run in runs], [run.seed for run in runs], schedule.batch, device, recipe.balance)
    classes = len(runs[0].data.classes)
    number = _numbers(runs, device)
    state = _new_state(runs, batches, classes)
    use_path([state.student, state.domain], path, precision)
    identity = _identity(runs, precision)
    if checkpoint is not None and checkpoint.exists():
        _resume(state, checkpoint, identity)
    saved_at = time.monotonic()
    feed, recorder = Feed(batches), Recorder(device)

    for epoch in range(state.epoch, schedule.epochs):
        for optimiser in (state.student_optimiser, state.domain_optimiser):
            set_rate(optimiser, learning_rate(schedule, epoch))
        if recipe.teacher is not None and epoch >= schedule.label_from and state.teacher is None:
            state.teacher = copy.deepcopy(state.student).requires_grad_(False)
        phase = _phase(recipe, epoch)
        if phase.calibrating:
            state.calibration = _in_place(state.calibration, _calibrate(recipe, state, batches, oracle))
        if phase.labelling:
            _prepare_labels(recipe, state, batches, number, classes)
        feed.fill(epoch, _reversal_ramp(recipe, epoch, batches.iterations))
        for total in state.totals.values():
            total.zero_()

        for padded in feed.padded:
            step = partial(_step, recipe, state, feed, number, phase, padded)
            recorder.run(step, kind=(phase, padded))

        _finish_epoch(state)
        end = EpochEnd(
            epoch, batches, state.student, state.teacher, state.calibration, state.limits,
            None if state.noted is None else state.noted[:, :-1], state.history,
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
        calibration = _calibrate(recipe, state, batches, oracle)
    history = {name: torch.stack(values) for name, values in state.history.items()}
    return Trained(state.student, state.teacher, calibration, batches, history, state.finite, path, precision)


def _step(recipe: Recipe, state: State, feed: Feed, number: dict[str, Tensor], phase: Phase, padded: bool) -> None:
    """One iteration of every run: the teacher follows and labels, SDAT climbs, the student descends."""
    batch, size = feed.next(phase.target, padded), feed.batches.size
    if state.teacher is not None and recipe.teacher is not None:
        follow(state.teacher, state.student, recipe.teacher.momentum, recipe.teacher.statistics == "averaged")
    pseudo = _pseudo_labels(recipe, state, batch) if phase.labelling else None

    def task(for_domain: bool) -> tuple[dict[str, Tensor], Tensor]:
        """Supervised, pseudo-label and confusion losses (run,), weighted, and the features of what was looked at."""
        wanted = pseudo is not None or phase.confusing or (for_domain and phase.target and recipe.passes == "shared")
        if batch.both is None or not wanted:
            logits, features = _pass(state, batch.source, batch.source_present)
            return {"supervised": losses.supervised(logits, batch.labels, batch.source_present)}, features
        logits, features = _pass(state, batch.both, batch.present, domains=2)
        source_logits, target_logits = logits[:, :size], logits[:, size:]
        parts = {"supervised": losses.supervised(source_logits, batch.labels, batch.source_present)}
        if pseudo is not None and recipe.labels is not None:
            loss = losses.pseudo_label(target_logits, *pseudo, recipe.labels.average, batch.target_present)
            parts["pseudo_label"] = number["label_weight"] * loss
        if phase.confusing and recipe.confusion is not None:
            loss = losses.class_confusion(target_logits, recipe.confusion.temperature, batch.target_present)
            parts["confusion"] = number["confusion_weight"] * loss
        return parts, features

    weights, before = list(state.student.parameters()), None
    if recipe.sharpness is not None:
        parts, _ = task(for_domain=False)
        before = climb(weights, torch.autograd.grad(_total(parts), weights), number["radius"])
    parts, features = task(for_domain=True)
    if phase.aligning and batch.both is not None:
        if recipe.passes == "separate":
            _, features = _pass(state, batch.both, batch.present)
        joint = reverse_gradient(features, number["alignment_weight"] * feed.ramp_now())
        logits = state.domain(joint, state.randomness)
        parts["domain"] = losses.domain(logits[:, :size], logits[:, size:], batch.present)
    optimisers = [state.student_optimiser] + ([state.domain_optimiser] if phase.aligning else [])
    gradients = torch.autograd.grad(_total(parts), parameters_of(optimisers))
    if before is not None:
        put_back(weights, before)
    descend(optimisers, gradients)
    if pseudo is not None:
        parts["share"] = losses.mean(pseudo[1].to(torch.float32), batch.target_present)
    for name, value in parts.items():
        total = state.totals.setdefault(name, torch.zeros_like(value))
        total += value.detach() / feed.batches.iterations


def _phase(recipe: Recipe, epoch: int) -> Phase:
    schedule = recipe.schedule
    taught = recipe.teacher is not None and epoch >= schedule.label_from
    return Phase(
        aligning=recipe.alignment is not None and epoch >= schedule.align_from,
        confusing=recipe.confusion is not None and epoch >= schedule.align_from,
        labelling=recipe.labels is not None and taught,
        calibrating=recipe.calibration is not None and taught and epoch >= schedule.calibrate_from,
    )


def _reversal_ramp(recipe: Recipe, epoch: int, iterations: int) -> list[float]:
    """The gradient reversal's coefficient in each step of an epoch."""
    schedule = recipe.schedule
    if recipe.alignment is None or epoch < schedule.align_from:
        return [0.0] * iterations
    done, all_of_them = (epoch - schedule.align_from) * iterations, (schedule.epochs - schedule.align_from) * iterations
    slope = recipe.alignment.slope
    return [reversal_coefficient((done + step) / all_of_them, slope) for step in range(iterations)]


def _total(parts: dict[str, Tensor]) -> Tensor:
    """The sum over losses and runs; a run's gradient is that of its own losses."""
    return torch.stack(list(parts.values())).sum()


def _pass(state: State, windows: Tensor, present: Tensor | None, domains: int = 1) -> tuple[Tensor, Tensor]:
    """The student in training mode: batch statistics, fresh dropout."""
    state.randomness.next()
    logits, features = state.student(windows, True, state.randomness, present, domains)
    return logits, features


@torch.no_grad()
def _pseudo_labels(recipe: Recipe, state: State, batch: Batch) -> tuple[Tensor, Tensor]:
    """The teacher's labels of the target batch and which of them are sure enough: (run, batch) each."""
    assert state.teacher is not None and recipe.teacher is not None and batch.both is not None  # noqa: S101, PT018
    assert state.limits is not None and state.noted is not None and batch.target_index is not None  # noqa: S101, PT018
    own = recipe.teacher.statistics == "target"
    state.randomness.next()
    draws = state.randomness if own and recipe.teacher.dropout else None
    target = batch.both[:, batch.source.shape[1] :]
    logits, _ = state.teacher(target, own, draws, batch.target_present)
    logits = logits if state.calibration is None else state.calibration.apply(logits)
    labels, selected = thresholds.select(logits.softmax(dim=-1), state.limits)
    state.noted.scatter_(1, batch.target_index, torch.where(selected, labels, -1))
    return labels, selected


def _prepare_labels(recipe: Recipe, state: State, batches: Batches, number: dict[str, Tensor], classes: int) -> None:
    """Per-class limits from what the teacher is sure of on the target's training windows, or the fixed one."""
    assert recipe.labels is not None and state.teacher is not None  # noqa: S101, PT018 (asked by the caller)
    if recipe.labels.threshold == "fixed":
        limits = thresholds.fixed(number["tau"], classes)
    else:
        logits, _ = predict(state.teacher, batches.target_train)
        if recipe.labels.counts == "calibrated" and state.calibration is not None:
            logits = state.calibration.apply(logits)
        counts = thresholds.confident_counts(logits.softmax(dim=-1), number["tau"], batches.target_present)
        limits = thresholds.per_class(counts, number["tau"])
    if state.limits is None or state.noted is None:
        runs, windows = batches.target_train.shape[:2]
        state.limits = torch.empty_like(limits, memory_format=torch.contiguous_format)
        state.noted = torch.empty(runs, windows + 1, dtype=torch.int64, device=limits.device)
    state.limits.copy_(limits)
    state.noted.fill_(-1)


@torch.no_grad()
def _calibrate(recipe: Recipe, state: State, batches: Batches, oracle: tuple[Tensor, Tensor] | None) -> Calibration:
    """Fits the recipe's calibrator on the teacher's predictions of the labelled source test windows."""
    assert recipe.calibration is not None and state.teacher is not None  # noqa: S101, PT018 (asked by the caller)
    teacher, kind = state.teacher, recipe.calibration.kind
    bounds = (recipe.calibration.lower, recipe.calibration.upper)
    bounded: dict[str, Calibrator] = {"Temperature": Temperature(bounds=bounds), "CPCS": CPCS(bounds=bounds)}
    calibrator = bounded.get(kind) or CALIBRATORS[kind]()
    logits, features = predict(teacher, batches.source_test)
    labels = batches.source_test_labels
    told: dict[str, Any] = {}
    if calibrator.needs_features:
        told = {
            "source_features": features,
            "source_train_features": predict(teacher, batches.source_train)[1],
            "source_train_weight": batches.source_present,
            "target_train_features": predict(teacher, batches.target_train)[1],
            "target_train_weight": batches.target_present,
            "seeds": torch.tensor(batches.seeds, device=logits.device),
        }
    if calibrator.uses_target_labels:
        if oracle is None:
            raise InputError("the oracle calibrator needs target labels; it is for studies with labelled targets only")
        told["oracle"] = (predict(teacher, oracle[0])[0], oracle[1], oracle[1] != UNKNOWN)
    weight = _equal_classes(labels, logits.shape[-1]) if recipe.balance else labels != UNKNOWN
    evidence = Evidence(source_logits=logits, source_labels=labels, source_weight=weight, **told)
    return calibrator.fit(evidence)


def _equal_classes(labels: Tensor, classes: int) -> Tensor:
    """Weights (run, window) under which every class there is counts the same and windows count 1 on average."""
    member = torch.nn.functional.one_hot(torch.where(labels == UNKNOWN, classes, labels), classes + 1)[..., :classes]
    counts = member.sum(dim=1, keepdim=True).double()
    share = counts.sum(dim=2, keepdim=True) / (counts > 0).sum(dim=2, keepdim=True)
    return (member * (share / counts.clamp(min=1))).sum(dim=2)


def _in_place(kept: Calibration | None, fitted: Calibration) -> Calibration:
    """The fitted calibration, in the memory of the one before."""
    if kept is None:
        return Calibration.from_state({name: value.clone() for name, value in fitted.state().items()})
    for name, value in fitted.state().items():
        kept.state()[name].copy_(value)
    return kept


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
        rate = torch.tensor(schedule.rate, device=device) if device.type == "cuda" else schedule.rate
        return torch.optim.Adam(
            network.parameters(), lr=rate, betas=(schedule.beta1, schedule.beta2),
            weight_decay=schedule.weight_decay, fused=True,
            capturable=device.type == "cuda",
        )  # fmt: skip

    student.to(device, batches.source_train.dtype)
    domain.to(device, batches.source_train.dtype)
    return State(
        student, domain, None, adam(student), adam(domain),
        Randomness(torch.tensor(keys, dtype=torch.int64, device=device)),
        torch.ones(len(runs), dtype=torch.bool, device=device), {},
    )  # fmt: skip


def _finish_epoch(state: State) -> None:
    """Writes the epoch's means into the history; a run whose loss is no number is marked and stopped, others go on."""
    for name, value in state.totals.items():
        _remember(state, f"loss_{name}" if name != "share" else "pseudo_label_share", value)
    broken = ~torch.stack([value.isfinite() for value in state.totals.values()]).all(dim=0)
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
    if state.calibration is not None:
        _remember(state, "temperature", state.calibration.temperature)
        _remember(state, "temperature_at_bound", state.calibration.at_bound.to(torch.float32))
    if state.limits is not None:
        for label in range(state.limits.shape[1]):
            _remember(state, f"threshold_{label}", state.limits[:, label])


def _remember(state: State, name: str, value: Tensor) -> None:
    """Appends to the history; epochs before a number first existed are nan."""
    kept = state.history.setdefault(name, [])
    missing = torch.full((len(state.finite),), math.nan)
    kept.extend(missing for _ in range(state.epoch - len(kept)))
    kept.append(value.detach().to("cpu", torch.float32, copy=True))  # the next epoch reuses the place


def _identity(runs: Sequence[Run], precision: str) -> str:
    """Of everything that determines the result, so that a checkpoint is never continued by another training."""
    words = []
    for run in runs:
        content = hashlib.sha256()
        for part in (run.data.source_train, run.data.source_test):
            content.update(np.ascontiguousarray(part.values).tobytes())
            content.update(np.ascontiguousarray(part.labels).tobytes())
        content.update(np.ascontiguousarray(run.data.target_train.values).tobytes())
        words.append([RESULT_VERSION, precision, run.recipe.told(), run.seed, run.data.classes, content.hexdigest()])
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
    save_tensors(path, tensors, {"identity": identity, "epoch": state.epoch, "teacher": state.teacher is not None})


def _resume(state: State, path: Path, identity: str) -> None:
    """Puts the state back to what it was when the checkpoint was written."""
    tensors, told = load_tensors(path)
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
