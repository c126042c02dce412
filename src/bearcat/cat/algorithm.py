"""THE loop. Every method, for one run or a stack of them (docs/method.md).

A run gives the same result alone, in any stack, and after a resume: its initial weights, the order of its windows and
its dropout come from its own seed, by counting rather than by drawing on. Nothing here has, or could reach, a target
label.

>>> trained = train([Run(RECIPES["CAT*-Temperature"], split.training, seed=0)], torch.device("cpu"))
>>> logits, features = predict(trained.network, windows)
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bearcat.cat import networks
from bearcat.cat.calibration import Calibration
from bearcat.cat.checkpoint import identify
from bearcat.cat.evaluate import EpochEnd, check_calibrator, fit_calibration, refill
from bearcat.cat.ingredient import BeforeTraining, Finding, Loss, Perturbation, Teaching, View
from bearcat.cat.networks import Network, build_network, fast_path, initialise, path_of, use_path
from bearcat.cat.plain import PlainModules
from bearcat.cat.recipes import Recipe
from bearcat.cat.state import TrainingState, put_back
from bearcat.data.recording import Integers
from bearcat.data.tasks import TrainingData
from bearcat.errors import InputError
from bearcat.fast.batches import Batch, Batches, Checked, Feed, stack_data
from bearcat.fast.device import Recorder, choose_precision, set_rate, torch_settings
from bearcat.fast.stacked import Randomness
from bearcat.methods import formulas
from bearcat.storage import digest_json

FEW_RUNS = 4  # of a dense network, whose products are too small to share
# Weights of a plain module that one thread trains: a transformer of 18 000 took 1.6 and 6 s with one thread, 16 and 17
# with two, while other programs kept both cores busy.
SMALL_MODULE = 100_000
STUDENT, DROPOUT = 20, 22  # streams of randomness; modules of losses have their own (Loss.stream)


@dataclass(frozen=True, eq=False)
class Run:
    """One training: a recipe, its data, a seed."""

    recipe: Recipe
    data: TrainingData
    seed: int
    # What check models say of the target's training windows, each (window,), for calibrators that ask (trust/checks).
    checks: Mapping[str, Integers] | None = None


@dataclass(eq=False)
class Trained:
    """What training leaves behind: networks, calibrations, and a history of (epoch, run) numbers."""

    student: Network
    teacher: Network | None
    calibration: Calibration | None  # of the finished network: the recipe's `final`, or what training used
    source_calibration: Calibration | None  # what training used
    batches: Batches
    history: dict[str, Tensor]
    finite: Tensor  # (run,) bool: the loss never turned NaN or infinite
    kernels: dict[str, str]  # of each part ("encoder", losses with a module): "plain", "triton" or "native"
    precision: str  # "float32", "tf32" or "bfloat16": of products on a GPU, and of the activations Triton stores
    checks: Sequence[Checked]  # as in TrainingState
    findings: list[Finding | None]  # of each run: what was found in its windows before training
    parameters: int  # numbers that were trained in each run, with those of losses' modules

    @property
    def network(self) -> Network:
        """The one whose predictions are reported: the teacher, or the student of methods without one."""
        return self.student if self.teacher is None else self.teacher


@dataclass(frozen=True, eq=False)
class Phase:
    """What is on in an epoch, by kind."""

    losses: list[Loss]
    climbed: list[Loss]  # those that SDAT climbs
    teaching: list[Teaching]  # also those that begin before their losses do
    perturbing: list[Perturbation]
    with_target: bool  # whether a batch has target windows
    aligned: bool  # from T_DA on

    @property
    def kind(self) -> Hashable:
        """Steps of a kind do the same."""
        parts = (self.losses, self.climbed, self.teaching, self.perturbing)
        return tuple(tuple(each.name for each in part) for part in parts), self.with_target, self.aligned


def phase_of(recipe: Recipe, epoch: int) -> Phase:
    """Which of the recipe's ingredients are on in this epoch."""
    schedule, ingredients = recipe.schedule, recipe.ingredients
    active = [each for each in ingredients if epoch >= each.start(schedule)]
    losses = [each for each in active if isinstance(each, Loss)]
    climbed = [each for each in losses if (begin := each.climbed_from(schedule)) is not None and epoch >= begin]
    teaching = [each for each in ingredients if isinstance(each, Teaching) and epoch >= each.teaches_from(schedule)]
    perturbing = [each for each in active if isinstance(each, Perturbation)]
    aligned = epoch >= schedule.align_from
    with_target = (recipe.passes == "joint" and aligned) or any(each.uses_target for each in active)
    return Phase(losses, climbed, teaching, perturbing, with_target, aligned)


def train(
    runs: Sequence[Run],
    device: torch.device,
    watch: Callable[[EpochEnd], dict[str, Tensor]] | None = None,
    progress: Callable[[EpochEnd], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    precision: str | None = None,
    path: str | None = None,
    identity: str | None = None,
) -> Trained:
    """Trains all runs to the last epoch.

    With a checkpoint, an interrupted training goes on from its last one to the same result; `identity` names what
    determines the result, so that no other training continues it (by default a hash of everything). `precision` and
    `path` are by default the best there is (networks.py), which the result tells.
    """
    recipe, schedule = runs[0].recipe, runs[0].recipe.schedule
    for text in (recipe.calibration, recipe.final):
        check_calibrator(text)
    if any(run.recipe != recipe for run in runs):
        raise InputError("runs of a stack need the same recipe; train these in stacks of their own")
    data, scaling, findings = prepare(runs)
    batches = stack_data(data, [run.seed for run in runs], schedule.batch, device, recipe.balance)
    state = new_state(recipe, batches, len(runs[0].data.classes))
    state.checks = [Checked.of(run.checks, run.data.target_train) for run in runs]
    state.student.scaling = None if scaling is None else scaling.to(device, batches.source_train.dtype)
    if path is None:
        single = batches.source_train.dtype == torch.float32  # Triton's kernels are for nothing else
        path = fast_path(device) if single or device.type == "cpu" else "plain"
    encoder_path = path if getattr(state.student.encoder, "narrow", False) else "plain"
    precision = choose_precision(precision or recipe.precision, encoder_path, device)
    use_path([state.student, *state.modules.values()], path, precision)
    if checkpoint is not None:
        identity = digest_json([identity or identify(runs), precision])
        if checkpoint.exists():
            state.resume(checkpoint, identity)

    def calibrate() -> None:
        state.calibration = refill(state.calibration, fit_calibration(recipe, state))

    late = recipe.calibrate == "end"
    calibrate_from = schedule.epochs if recipe.calibration is None else schedule.calibrate_from
    encoder, few = state.student.encoder, len(runs) <= FEW_RUNS
    size = sum(weight.numel() for weight in encoder.parameters()) // len(runs)
    small = (few and isinstance(encoder, networks.DenseEncoder)) or (
        isinstance(encoder, PlainModules) and size <= SMALL_MODULE
    )
    with torch_settings(precision, device, small):
        saved_at = time.monotonic()
        # A plain module may do in a pass what no recording allows, such as ask the device.
        recorded = not isinstance(state.student.encoder, PlainModules)
        feed, recorder, kind = Feed(batches), Recorder(device, recorded), None
        for epoch in range(state.epoch, schedule.epochs):
            for optimiser in state.optimisers.values():
                set_rate(optimiser, schedule.learning_rate(epoch))
            if epoch >= calibrate_from + late and not (late and state.calibration):  # late: after a resume
                calibrate()
            phase = phase_of(recipe, epoch)
            if recipe.target_pass:
                state.predict_in_training(state.student, epoch, live=True)
            for teaching in phase.teaching:
                teaching.start_epoch(state)
            feed.fill(epoch, {loss.name: loss.ramps(schedule, epoch, batches.iterations) for loss in phase.losses})
            # Steps of a kind are recorded once: the same phase, with or without a calibration.
            before, kind = kind, (phase.kind, state.calibration is not None)
            if kind != before:
                state.totals.clear()  # a loss may have ended
            for total in state.totals.values():
                total.zero_()
            for padded in feed.padded:
                recorder.run(partial(train_step, recipe, state, feed, phase, padded), kind=(kind, padded))

            for teaching in phase.teaching:
                teaching.end_epoch(state)
            state.finish_epoch()
            if late and epoch >= calibrate_from:
                calibrate()
            end = EpochEnd(
                epoch, batches, state.student, state.teacher, state.calibration,
                None if state.pseudo_labels is None else state.pseudo_labels[:, :-1], state.history,
            )  # fmt: skip
            for name, value in (watch(end) if watch is not None else {}).items():
                state.remember(name, value)
            state.epoch = epoch + 1
            due = time.monotonic() - saved_at > checkpoint_seconds or state.epoch in (1, schedule.epochs)
            if checkpoint is not None and identity is not None and due:
                state.save(checkpoint, identity)
                saved_at = time.monotonic()
            if progress is not None:
                progress(end)

        calibration = fit_calibration(recipe, state) if schedule.epochs > calibrate_from else None
        final = calibration if recipe.final is None else fit_calibration(recipe, state, recipe.final)
    state.pad_history()
    history = {name: torch.stack(values) for name, values in state.history.items()}
    kernels = {name: path_of(module) for name, module in {"encoder": state.student.encoder, **state.modules}.items()}
    weights = [each for module in (state.student, *state.modules.values()) for each in module.parameters()]
    return Trained(
        state.student, state.teacher, final, calibration, batches, history, state.finite, kernels, precision,
        state.checks, findings, sum(each.numel() for each in weights) // len(runs),
    )  # fmt: skip


def train_step(recipe: Recipe, state: TrainingState, feed: Feed, phase: Phase, padded: bool) -> None:
    """One iteration of every run: teachers label, weights are perturbed, losses are summed, the student descends."""
    batch = feed.next(phase.with_target, padded)
    state.batch_labels = None
    earlier = []  # the batch that each was given: one of them may hand on another
    for teaching in phase.teaching:
        earlier.append(batch)
        batch = teaching.start_step(state, batch) or batch
    weights = [weight for weight in state.student.parameters() if weight.requires_grad]

    def task_losses(losses: Sequence[Loss]) -> dict[str, Tensor]:
        """The supervised loss and these, (run,) each, of one pass."""
        view = _task_pass(recipe, state, batch, any(loss.uses_target for loss in losses))
        supervised = formulas.supervised(view.source_logits, view.labels, view.source_present)
        return {"loss_supervised": supervised} | _losses(losses, view, state, feed)

    def climbed_gradients(scope: str) -> tuple[Tensor, ...]:
        total = _total(task_losses(phase.climbed if scope == "task" else []))
        return torch.autograd.grad(total, weights, materialize_grads=True)

    before = [perturbation.perturb(weights, climbed_gradients) for perturbation in phase.perturbing]
    if before:
        for teaching, given in zip(phase.teaching, earlier, strict=True):
            teaching.after_climb(state, given)
    if state.batch_labels is not None:
        selected = state.batch_labels[1].float()
        state.add("pseudo_label_share", formulas.masked_mean(selected, batch.target_present))
    aligning = [loss for loss in phase.losses if loss.aligns]
    others = [loss for loss in phase.losses if not loss.aligns]
    terms = task_losses(others if recipe.passes == "separate" else [*others, *aligning])
    if aligning and recipe.passes == "separate":
        joint = _passed(state, batch, [(batch.both, batch.present)], batch.present)
        terms |= _losses(aligning, joint, state, feed)
    names = ["student", *(loss.name for loss in phase.losses if loss.name in state.optimisers)]
    optimisers = [state.optimisers[name] for name in names]
    parameters = [each for optimiser in optimisers for group in optimiser.param_groups for each in group["params"]]
    gradients = torch.autograd.grad(_total(terms), parameters, materialize_grads=True)  # a module may have unused ones
    for unperturbed in reversed(before):
        put_back(weights, unperturbed)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.contiguous()  # fused Adam wants the parameter's own strides
    for optimiser in optimisers:
        optimiser.step()
    for name, value in terms.items():
        state.add(name, value)


def _task_pass(recipe: Recipe, state: TrainingState, batch: Batch, with_target: bool) -> View:
    """What losses other than of alignment read (docs/method.md, Passes)."""
    if recipe.passes == "joint":
        return _passed(state, batch, [(batch.both, batch.present)], batch.present)
    if with_target and not recipe.doubled:
        return _passed(state, batch, [(batch.both, batch.present)], batch.present, domains=2)
    batch = batch.doubled() if recipe.doubled else batch
    source = batch.source, batch.source_present
    if not with_target:
        return _passed(state, batch, [source], batch.source_present)
    return _passed(state, batch, [source, (batch.target, batch.target_present)], batch.present)


def _passed(
    state: TrainingState, batch: Batch, parts: Sequence[tuple[Tensor, Tensor | None]], present: Tensor | None,
    domains: int = 1,
) -> View:  # fmt: skip
    """What passes of the student offer to losses, in training mode: batch statistics of each part, fresh dropout.

    After a pass of the source alone the target's part of the view is empty.
    """
    outputs = []
    for windows, mask in parts:
        state.randomness.next()
        outputs.append(state.student(windows, True, state.randomness, mask, domains))
    logits, features = outputs[0]
    if len(outputs) > 1:
        logits, features = (torch.cat(each, dim=1) for each in zip(*outputs, strict=True))
    labels, selected, probabilities = state.batch_labels or (None, None, None)
    return View(
        batch.size, logits, features, present, batch.labels, labels, selected, probabilities, state.student.head,
        state.randomness, ramp=features.new_zeros(1),
    )  # fmt: skip


def _losses(losses: Sequence[Loss], view: View, state: TrainingState, feed: Feed) -> dict[str, Tensor]:
    return {
        f"loss_{loss.name}": loss.loss(replace(view, ramp=feed.ramp(loss.name), module=state.modules.get(loss.name)))
        for loss in losses
    }


def _total(parts: dict[str, Tensor]) -> Tensor:
    """The sum over losses and runs; a run's gradient is that of its own losses."""
    return torch.stack(list(parts.values())).sum()


def prepare(runs: Sequence[Run]) -> tuple[list[TrainingData], Any, list[Finding | None]]:
    """The data of a stack as its preparations leave them, the module the network begins with, and what was found."""
    data, modules, findings = [], [], []
    for run in runs:
        own, finding = run.data, None
        for ingredient in (each for each in run.recipe.ingredients if isinstance(each, BeforeTraining)):
            prepared = ingredient.prepare(own)
            own, finding = prepared.data, prepared.finding or finding
            modules += [] if prepared.module is None else [prepared.module]
        data.append(own)
        findings.append(finding)
    if len(modules) not in (0, len(runs)):
        raise InputError("a recipe scales its input by one ingredient; leave the others out")
    buffers = zip(*(module.buffers() for module in modules), strict=True)
    together = type(modules[0])(*(torch.cat(list(each)) for each in buffers)) if modules else None
    return data, together, findings


def new_state(recipe: Recipe, batches: Batches, classes: int) -> TrainingState:
    """Networks, modules and optimisers before the first step, each run's from its own seed."""
    seeds, device, dtype = list(batches.seeds), batches.source_train.device, batches.source_train.dtype
    _, _, channels, points = batches.source_train.shape
    student = build_network(recipe.encoder, len(seeds), channels, points, classes, recipe.dropout)
    initialise(student, seeds, STUDENT)
    modules: dict[str, nn.Module] = {}
    for loss in (each for each in recipe.ingredients if isinstance(each, Loss)):
        module = loss.build(len(seeds), student.head.weight.shape[2], classes, recipe.dropout)
        if module is not None:
            initialise(module, seeds, loss.stream or zlib.crc32(loss.name.encode()))
            modules[loss.name] = module

    def adam(network: nn.Module) -> torch.optim.Adam:
        schedule = recipe.schedule
        rate = torch.tensor(schedule.rate, device=device) if device.type == "cuda" else schedule.rate
        learning = [weight for weight in network.parameters() if weight.requires_grad]
        return torch.optim.Adam(
            learning, lr=rate, weight_decay=schedule.weight_decay, fused=True, capturable=device.type == "cuda"
        )

    for network in (student, *modules.values()):
        network.to(device, dtype)
    keys = [int(np.random.SeedSequence([seed, DROPOUT]).generate_state(1)[0]) for seed in seeds]
    optimisers = {"student": adam(student)} | {name: adam(module) for name, module in modules.items()}
    randomness = Randomness(torch.tensor(keys, dtype=torch.int64, device=device))
    finite = torch.ones(len(seeds), dtype=torch.bool, device=device)
    return TrainingState(student, modules, optimisers, batches, recipe.schedule, classes, randomness, finite)
