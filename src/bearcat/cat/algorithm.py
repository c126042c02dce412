"""Algorithm 1 of the paper: the training of the Calibrated Adaptive Teacher, and of every other method.

Symbols are the paper's. Three phases begin at T_DA, T_PL and, for calibration, T_cal (Section 3.5):

    epoch < T_DA    the student learns the source:       L_C
    from T_DA on    both domains are aligned:            L_C + L_MCC + L_DC
    from T_PL on    the teacher labels target windows:   L_C + L_PL + L_MCC + L_DC  (Eq. 18)
    from T_cal on   its confidence is calibrated on the source before labels are selected (Section 3.2)

Settings and their values are in recipes.py (`Schedule`, `Recipe`), each loss in losses.py, the teacher in teacher.py,
SAM in sam.py, calibrators in scaling.py, the networks of Table 2 in networks.py. What the published code does otherwise
is in published.py. The first axis of every tensor is the run: one training, or a stack of them (fast/). A run gives the
same result alone, in any stack, and after a resume. Nothing here has, or could reach, a target label.

>>> trained = train([Run(RECIPES["CAT*-Temperature"], split.training, seed=0)], torch.device("cpu"))
>>> logits, features = predict(trained.network, windows)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bearcat.cat import evaluate, losses, published, teacher
from bearcat.cat.ingredient import AfterEpoch, Augmentation, Loss, View
from bearcat.cat.losses import Adversarial, Confusion
from bearcat.cat.recipes import Recipe
from bearcat.cat.sam import Sharpness, climb
from bearcat.cat.state import Checkpoint, TrainingState, begin, set_rate
from bearcat.cat.teacher import SelfTraining
from bearcat.data.recording import Integers
from bearcat.data.tasks import TrainingData
from bearcat.fast.device import Batch, Feed, Recorder, torch_settings

OFF = 0.0  # a loss that has not begun, or that the method has not


@dataclass(frozen=True, eq=False)
class Run:
    """One training: a recipe, its data, a seed."""

    recipe: Recipe
    data: TrainingData
    seed: int
    # What check models say of the target's training windows, each (window,), for calibrators that ask.
    checks: Mapping[str, Integers] | None = None


Trained = TrainingState  # what training leaves behind is its state at the end


def train(
    runs: Sequence[Run],
    device: torch.device,
    watch: Callable[[TrainingState], dict[str, Tensor]] | None = None,
    progress: Callable[[TrainingState], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    precision: str | None = None,
    path: str | None = None,
    identity: str = "",
) -> Trained:
    """Trains all runs to the last epoch; `watch` gives numbers (run,) for the history after each.

    With a checkpoint, an interrupted training goes on from its last one to the same result; `identity` names the data,
    recipe and seeds that determine it, so that no other training continues it. `precision` and `path` are by default
    the best there is (networks.py), which the result tells.
    """
    state = begin(runs, device, precision, path)
    saved = Checkpoint(state, checkpoint, checkpoint_seconds, identity)
    recipe, schedule = state.recipe, state.recipe.schedule
    T_PL = schedule.label_from
    T_cal = schedule.calibrate_from if recipe.calibration else schedule.epochs
    self_training = recipe.find(SelfTraining)
    feed, recorder = Feed(state.batches), Recorder(device, state.recordable)
    with torch_settings(state.precision, device, state.small):
        for epoch in range(state.epoch, schedule.epochs):
            state.epoch = epoch
            for optimiser in state.optimisers.values():
                set_rate(optimiser, schedule.learning_rate(epoch))
            if recipe.target_pass:
                published.predict_in_training(state, state.student, live=True)

            # The teacher is calibrated on the source's test split (Eqs. 6 to 9). The published code does so at the end
            # of an epoch; a run that begins in a later one has to catch up here.
            at_end = recipe.calibrate == "end"
            if epoch >= T_cal and (not at_end or (epoch > T_cal and state.calibration is None)):
                evaluate.calibrate(state)

            # θ_teacher ← θ at T_PL, then class-wise thresholds of this epoch (Eq. 12). A teacher that exists earlier
            # and whose first counts differ is the published code's.
            if self_training and epoch >= (0 if self_training.teacher.early else T_PL):
                if state.teacher is None:
                    state.teacher = copy.deepcopy(state.student).requires_grad_(False)
                if epoch == T_PL and self_training.first_counts == "student":
                    teacher.ema_update(state.teacher, state.student, 0.0)
                counted = None
                if self_training.counts_mode == "training":
                    counted = published.predict_in_training(state, state.teacher, self_training.teacher.dropout)
                if epoch >= T_PL:
                    teacher.set_thresholds(self_training, state, counted)
                if epoch == T_PL and self_training.first_counts == "early":
                    teacher.ema_update(state.teacher, state.student, 0.0)

            feed.fill(epoch, state.ramps(epoch))
            state.start_totals(epoch)
            for sizes in feed.sizes:
                recorder.run(partial(train_step, state, feed, epoch, sizes), kind=(state.phase, sizes))

            for ingredient in recipe.on(AfterEpoch, epoch):
                ingredient.end_epoch(state)
            state.finish_epoch()
            if at_end and epoch >= T_cal:
                evaluate.calibrate(state)
            for name, value in (watch(state) if watch is not None else {}).items():
                state.remember(name, value)
            saved.save_if_due()
            if progress is not None:
                progress(state)
        state.epoch = schedule.epochs
        if schedule.epochs > T_cal:
            state.source_calibration = state.calibration = evaluate.fit_calibration(state)
        if recipe.final is not None:
            state.calibration = evaluate.fit_calibration(state, recipe.final)
    return state


def train_step(state: TrainingState, feed: Feed, epoch: int, sizes: tuple[int, int]) -> None:
    """One iteration: the teacher follows and labels, SAM climbs, the student and the domain classifier learn."""
    recipe, schedule = state.recipe, state.recipe.schedule
    T_PL = schedule.label_from
    self_training, sharpness = recipe.find(SelfTraining), recipe.find(Sharpness)
    views = recipe.on(Augmentation, epoch)
    batch = feed.next(state.with_target(epoch), sizes)

    # θ_teacher ← α·θ_teacher + (1 − α)·θ (Eq. 20). Algorithm 1 ends a step with it; here it begins the next one.
    if self_training and epoch >= self_training.follows_from(schedule):
        teacher.ema_update(state.teacher, state.student, self_training.teacher.momentum)

    # Pseudo-labels: calibrated confidence above the threshold of the class (Eqs. 5, 13 and 14).
    labelled = _augmented(state, batch, [view for view in views if view.of_teacher])
    state.batch_labels = None
    if self_training and epoch >= T_PL:
        state.batch_labels = teacher.pseudo_labels(self_training, state, labelled)
    batch = _augmented(state, labelled, [view for view in views if not view.of_teacher])

    # SAM's first pass: uphill to where the task loss L_C + L_PL + L_MCC is highest nearby (SDAT, Section 3.4.1; the
    # paper's text names L_C alone, the published code climbs all three).
    weights = [weight for weight in state.student.parameters() if weight.requires_grad]
    if sharpness:
        L_task, _ = objective(state, feed, batch, epoch, climbed=True)
        gradients = torch.autograd.grad(L_task.sum(), weights, materialize_grads=True)
        before = climb(weights, gradients, sharpness.radius)
        if self_training and self_training.relabel and epoch >= T_PL:
            state.batch_labels = teacher.pseudo_labels(self_training, state, labelled)
    if state.batch_labels is not None:
        state.add("pseudo_label_share", state.batch_labels[1].float().mean(dim=1))

    # The gradient of L_CAT, there or here; then back, and Adam.
    L_CAT, terms = objective(state, feed, batch, epoch)
    optimisers = [state.optimisers[name] for name in ("student", *terms) if name in state.optimisers]
    groups = [group for optimiser in optimisers for group in optimiser.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    gradients = torch.autograd.grad(L_CAT.sum(), parameters, materialize_grads=True)
    if sharpness:
        torch._foreach_copy_([weight.detach() for weight in weights], before)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.contiguous()  # fused Adam wants the parameter's own strides
    for optimiser in optimisers:
        optimiser.step()
    for name, value in terms.items():
        state.add(f"loss_{name}", value)


def objective(
    state: TrainingState, feed: Feed, batch: Batch, epoch: int, climbed: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """L_CAT (Eq. 18), (run,), and its terms by name; the gradient reversal layer supplies the minus of L_DC (Eq. 19).

    What is `climbed` in SAM's first pass is everything but losses that compare the domains.
    """
    recipe, schedule = state.recipe, state.recipe.schedule
    T_DA, T_PL = schedule.align_from, schedule.label_from
    on = [loss for loss in recipe.on(Loss, epoch) if not climbed or loss.climbs(schedule, epoch)]
    separate = recipe.passes == "separate"
    view = student_pass(state, batch, any(loss.uses_target for loss in on if not (separate and loss.aligns)))

    def term(loss: Loss | None) -> Tensor | float:
        if loss not in on:
            return OFF
        return loss.loss(replace(view, ramp=feed.ramp(loss.name), module=state.modules.get(loss.name)))

    self_training, mcc, dc = (recipe.find(kind) for kind in (SelfTraining, Confusion, Adversarial))
    more = [loss for loss in on if loss not in (self_training, mcc, dc)]  # of other methods

    L_C = losses.supervised(view.source_logits, view.labels)  # Eq. 15
    L_PL = term(self_training) if epoch >= T_PL else OFF  # Eq. 16
    L_MCC = term(mcc) if epoch >= T_DA else OFF
    L_more = {loss.name: term(loss) for loss in more if not loss.aligns}
    if separate and any(loss.aligns for loss in on):
        view = student_pass(state, batch, with_target=True, joint=True)
    L_DC = term(dc) if epoch >= T_DA else OFF  # Eq. 17
    L_more |= {loss.name: term(loss) for loss in more if loss.aligns}

    L_CAT = L_C + L_PL + L_MCC + L_DC + sum(L_more.values())
    named = {loss.name: value for loss, value in ((self_training, L_PL), (mcc, L_MCC), (dc, L_DC)) if loss in on}
    terms = {"supervised": L_C} | named | L_more
    return L_CAT, {name: value for name, value in terms.items() if isinstance(value, Tensor)}


def student_pass(state: TrainingState, batch: Batch, with_target: bool, joint: bool = False) -> View:
    """What the student offers to losses, in training mode: batch statistics of each domain, fresh dropout.

    After a pass of the source alone the target's part of the view is empty.
    """
    source, labels, first = batch.source, batch.labels, batch.source.shape[1]
    joint = joint or state.recipe.passes == "joint"
    if state.recipe.doubled and not joint:
        source, labels = torch.cat([source, source], dim=1), torch.cat([labels, labels], dim=1)
    target = batch.target if with_target or joint else batch.target[:, :0]
    outputs = []
    for windows, parts in published.passes(state.recipe, source, target, joint):
        state.randomness.next(*() if windows is target else (first, batch.size - first))
        outputs.append(state.student(windows, True, state.randomness, parts))
    logits, features = (torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True))
    pseudo, selected, probabilities = state.batch_labels or (None, None, None)
    return View(
        source.shape[1], logits, features, labels, pseudo, selected, probabilities, state.student.head,
        state.randomness, ramp=features.new_zeros(1),
    )  # fmt: skip


def _augmented(state: TrainingState, batch: Batch, views: Sequence[Augmentation]) -> Batch:
    """The batch with these views of its target windows."""
    for view in views:
        state.randomness.next()
        with torch.no_grad():
            batch = replace(batch, target=view.change(batch.target, state.randomness))
    return batch
