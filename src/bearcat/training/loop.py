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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bearcat.calibration import Calibration
from bearcat.data.tasks import TrainingData
from bearcat.errors import InputError, suggest
from bearcat.methods import losses
from bearcat.methods.ingredient import Ingredient, View, stacked
from bearcat.methods.recipe import Recipe
from bearcat.models import PRECISIONS, Network, build_network, fast_path, initialise, path_of, use_path
from bearcat.models.stacked import Randomness
from bearcat.storage import digest, digest_json
from bearcat.training.batches import Batch, Batches, Feed, data_key, stack_data
from bearcat.training.calibrate import check_calibrator, fit_calibration, refill
from bearcat.training.evaluate import EpochEnd
from bearcat.training.state import TrainingState
from bearcat.training.stepping import Recorder, descend, matrix_products, parameters_of, put_back, set_rate

RESULT_VERSION = 6  # raise it whenever the same settings, seed and data give another result
STUDENT, DROPOUT = 20, 22  # streams of randomness; modules of ingredients have their own (Ingredient.stream)


@dataclass(frozen=True, eq=False)
class Run:
    """One training: a recipe, its data, a seed."""

    recipe: Recipe
    data: TrainingData
    seed: int


@dataclass(eq=False)
class Trained:
    """What training leaves behind: networks, the final calibration, and a history of (epoch, run) numbers."""

    student: Network
    teacher: Network | None
    calibration: Calibration | None
    batches: Batches
    history: dict[str, Tensor]
    finite: Tensor  # (run,) bool: the loss never turned NaN or infinite
    kernels: dict[str, str]  # of each part ("encoder", ingredients with a module): "plain", "triton" or "native"
    precision: str  # "float32", "tf32" or "bfloat16": of products on a GPU, and of the activations Triton stores

    @property
    def network(self) -> Network:
        """The one whose predictions are reported: the teacher, or the student of methods without one."""
        return self.student if self.teacher is None else self.teacher


def stack_key(run: Run) -> Hashable:
    """Runs of equal keys can be trained together: the same ingredients and schedule, windows alike, as many steps."""
    return run.recipe.stack_key(), data_key(run.data, run.recipe.schedule.batch)


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
    determines the result, so that no other training continues it (by default a hash of everything).

    `precision` is "float32", "tf32" or "bfloat16" (GPUs; weights and statistics are float32 always; by default bfloat16
    with Triton, TF32 without), `path` "plain", "triton" (GPU) or "native" (CPU); by default the best there is,
    which the result tells.
    """
    recipe, schedule = runs[0].recipe, runs[0].recipe.schedule
    check_calibrator(recipe.calibration)
    if any(run.recipe.stack_key() != recipe.stack_key() for run in runs):
        raise InputError(
            "runs of one stack need the same ingredients and schedule; train these runs in stacks of their own"
        )
    batches = stack_data([run.data for run in runs], [run.seed for run in runs], schedule.batch, device, recipe.balance)
    state = new_state(recipe, batches, len(runs[0].data.classes))
    if path is None:
        single = batches.source_train.dtype == torch.float32  # Triton's kernels are for nothing else
        path = fast_path(device) if single or device.type == "cpu" else "plain"
    use_path([state.student, *state.modules.values()], path, "float32")
    precision = choose_precision(precision, path_of(state.student.encoder), device)
    use_path([state.student, *state.modules.values()], path, precision)
    ingredients = stack_ingredients(runs, device)
    if checkpoint is not None:
        identity = identity or identify(runs)
        identity = digest_json([identity, precision])
        if checkpoint.exists():
            state.resume(checkpoint, identity)
    with matrix_products(precision, device):
        saved_at = time.monotonic()
        feed, recorder = Feed(batches), Recorder(device)
        for epoch in range(state.epoch, schedule.epochs):
            for optimiser in state.optimisers.values():
                set_rate(optimiser, schedule.learning_rate(epoch))
            if recipe.calibration is not None and epoch >= schedule.calibrate_from:
                state.calibration = refill(state.calibration, fit_calibration(recipe, state))
            active = [ingredient for ingredient in ingredients if epoch >= ingredient.start(schedule)]
            for ingredient in active:
                ingredient.start_epoch(state)
            names = {ingredient.name for ingredient in active}
            ramping = [ingredient for ingredient in recipe.ingredients if ingredient.name in names]
            feed.fill(epoch, {each.name: _ramp(each, recipe, epoch, batches.iterations) for each in ramping})
            for total in state.totals.values():
                total.zero_()

            # Steps of a kind are recorded once: the same ingredients, with or without a calibration.
            kind = (*(ingredient.name for ingredient in active), state.calibration is not None)
            for padded in feed.padded:
                recorder.run(partial(train_step, recipe, state, feed, active, padded), kind=(kind, padded))

            for ingredient in active:
                ingredient.end_epoch(state)
            state.finish_epoch()
            end = EpochEnd(
                epoch, batches, state.student, state.teacher, state.calibration, state.thresholds,
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

        final = recipe.calibration is not None and schedule.epochs > schedule.calibrate_from
        calibration = fit_calibration(recipe, state) if final else None
    history = {name: torch.stack(values) for name, values in state.history.items()}
    kernels = {name: path_of(module) for name, module in {"encoder": state.student.encoder, **state.modules}.items()}
    return Trained(
        state.student, state.teacher, calibration, batches, history, state.finite, kernels, precision
    )  # fmt: skip


def train_step(recipe: Recipe, state: TrainingState, feed: Feed, active: Sequence[Ingredient], padded: bool) -> None:
    """One iteration of every run: ingredients prepare, perturb the weights and add losses; the student descends."""
    batch = feed.next(any(ingredient.uses_target for ingredient in active), padded)
    state.batch_labels = None
    for ingredient in active:
        batch = ingredient.start_step(state, batch) or batch
    aligning = [ingredient for ingredient in active if ingredient.aligns]
    others = [ingredient for ingredient in active if not ingredient.aligns]

    def task_losses(with_alignment: bool) -> tuple[dict[str, Tensor], View]:
        """Losses that do not align domains, (run,) each, and what alignment reads."""
        wanted = [*others, *aligning] if with_alignment and recipe.passes == "shared" else others
        if any(ingredient.uses_target for ingredient in wanted):
            view = _view(state, batch, _pass(state, batch.both, batch.present, domains=2), batch.present)
        else:
            present = batch.source_present
            view = _view(state, batch, _pass(state, batch.source, present), present)
        found = {"loss_supervised": losses.supervised(view.source_logits, batch.labels, batch.source_present)}
        return found | _losses(others, view, state, feed), view

    weights = list(state.student.parameters())

    def task_gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(_total(task_losses(with_alignment=False)[0]), weights)

    before = [ingredient.perturb(weights, task_gradients) for ingredient in active]
    found, view = task_losses(with_alignment=True)
    if aligning and recipe.passes == "separate":
        view = _view(state, batch, _pass(state, batch.both, batch.present), batch.present)
    found |= _losses(aligning, view, state, feed)
    names = ["student", *(ingredient.name for ingredient in active if ingredient.name in state.modules)]
    optimisers = [state.optimisers[name] for name in names]
    gradients = torch.autograd.grad(_total(found), parameters_of(optimisers))
    for earlier in reversed(before):
        if earlier is not None:
            put_back(weights, earlier)
    descend(optimisers, gradients)
    for name, value in found.items():
        state.add(name, value)


def _losses(ingredients: Sequence[Ingredient], view: View, state: TrainingState, feed: Feed) -> dict[str, Tensor]:
    found = {}
    for ingredient in ingredients:
        own = replace(view, ramp=feed.ramp(ingredient.name), module=state.modules.get(ingredient.name))
        loss = ingredient.loss(own)
        if loss is not None:
            found[f"loss_{ingredient.name}"] = loss
    return found


def _pass(state: TrainingState, windows: Tensor, present: Tensor | None, domains: int = 1) -> tuple[Tensor, Tensor]:
    """The student in training mode: batch statistics, fresh dropout."""
    state.randomness.next()
    logits, features = state.student(windows, True, state.randomness, present, domains)
    return logits, features


def _view(state: TrainingState, batch: Batch, outputs: tuple[Tensor, Tensor], present: Tensor | None) -> View:
    """What a pass offers to losses; after a pass of the source alone the target's part is empty."""
    labels, selected, probabilities = state.batch_labels or (None, None, None)
    logits, features = outputs
    nothing = features.new_zeros(1)
    return View(
        batch.size, logits, features, present, batch.labels, labels, selected, probabilities, state.student.head,
        state.randomness, ramp=nothing,
    )  # fmt: skip


def _total(parts: dict[str, Tensor]) -> Tensor:
    """The sum over losses and runs; a run's gradient is that of its own losses."""
    return torch.stack(list(parts.values())).sum()


def _ramp(ingredient: Ingredient, recipe: Recipe, epoch: int, iterations: int) -> list[float]:
    """The ingredient's number for each step of an epoch."""
    start, end = ingredient.start(recipe.schedule), recipe.schedule.epochs
    done, steps = (epoch - start) * iterations, (end - start) * iterations
    return [ingredient.ramp((done + step) / steps) for step in range(iterations)]


def stack_ingredients(runs: Sequence[Run], device: torch.device) -> list[Ingredient]:
    """The ingredients of a stack of runs, with the numbers of all of them."""
    return [stacked(each, device) for each in zip(*(run.recipe.ingredients for run in runs), strict=True)]


def new_state(recipe: Recipe, batches: Batches, classes: int) -> TrainingState:
    """Networks, modules and optimisers before the first step, each run's from its own seed."""
    seeds, device, dtype = list(batches.seeds), batches.source_train.device, batches.source_train.dtype
    _, _, channels, points = batches.source_train.shape
    student = build_network(recipe.encoder, len(seeds), channels, points, classes, recipe.dropout)
    initialise(student, seeds, STUDENT)
    modules: dict[str, nn.Module] = {}
    width = student.head.weight.shape[2]
    for ingredient in recipe.ingredients:
        module = ingredient.build(len(seeds), width, classes, recipe.dropout)
        if module is not None:
            initialise(module, seeds, ingredient.stream or zlib.crc32(ingredient.name.encode()))
            modules[ingredient.name] = module
    schedule = recipe.schedule

    def adam(network: nn.Module) -> torch.optim.Adam:
        rate = torch.tensor(schedule.rate, device=device) if device.type == "cuda" else schedule.rate
        return torch.optim.Adam(
            network.parameters(), lr=rate, betas=(schedule.beta1, schedule.beta2),
            weight_decay=schedule.weight_decay, fused=True, capturable=device.type == "cuda",
        )  # fmt: skip

    for network in (student, *modules.values()):
        network.to(device, dtype)
    keys = [int(np.random.SeedSequence([seed, DROPOUT]).generate_state(1)[0]) for seed in seeds]
    return TrainingState(
        student=student,
        modules=modules,
        optimisers={"student": adam(student)} | {name: adam(module) for name, module in modules.items()},
        batches=batches,
        classes=classes,
        randomness=Randomness(torch.tensor(keys, dtype=torch.int64, device=device)),
        finite=torch.ones(len(seeds), dtype=torch.bool, device=device),
    )


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


def choose_precision(wanted: str | None, encoder_path: str, device: torch.device) -> str:
    """What is wanted, or more where the device has nothing less; without a wish the fastest (docs/speed.md)."""
    checked_precision(wanted)
    if wanted == "bfloat16" and encoder_path != "triton":
        raise InputError("precision 'bfloat16' needs the encoder 'cnn' on a GPU with Triton; leave it out")
    if device.type == "cpu":
        return "float32"
    return wanted or ("bfloat16" if encoder_path == "triton" else "tf32")


def identify(runs: Sequence[Run]) -> str:
    """A hash of everything that determines the result, so that a checkpoint is never continued by another training."""
    parts = []
    for run in runs:
        data = run.data
        arrays = [data.source_train.values, data.source_train.labels, data.source_test.values, data.source_test.labels,
                  data.target_train.values]  # fmt: skip
        content = digest(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
        parts.append([RESULT_VERSION, run.recipe.to_dict(), run.seed, list(data.classes), content])
    return digest_json(parts)
