"""Algorithm 1 of the paper: the training of the Calibrated Adaptive Teacher, and of every other method.

Symbols are the paper's. Its three phases begin at epochs 0, T_DA and T_PL; calibration begins within the third
(Section 3.5). Methods with an asterisk add L_MCC from T_DA on, and SAM from the first epoch.

    epoch < T_DA    the student learns the source:       L_C
    from T_DA on    the domains are aligned:             L_C + L_DC, and L_MCC with the asterisk
    from T_PL on    the teacher labels target windows:   L_C + L_PL + L_DC, and L_MCC  (Eq. 18)
    from T_cal on   its confidence is calibrated on the source before labels are selected (Section 3.2)

The paper subtracts L_DC; here the gradient reversal layer supplies the minus (Eq. 19).

Equations, and where they are:

    2 to 4, ECE              calibration.py, `ece`            17, L_DC           losses.py, `Adversarial`
    5, 13, 14, labels        teacher.py, `pseudo_labels`      L_MCC              losses.py, `class_confusion`
    6 to 9, calibrators      scaling.py; teacher.py fits      18, 19, L_CAT      `objective`
    10 to 12, thresholds     teacher.py, `set_thresholds`     20, the average    teacher.py, `ema_update`
    15, L_C                  losses.py, `supervised`          SAM                losses.py, `climb`
    16, L_PL                 teacher.py, `SelfTraining`       the schedule       ingredient.py, `Schedule`

Where this differs from the paper's text (docs/method.md has what it costs):

- Eq. 11 counts uncalibrated confidence. Eq. 16 divides by the whole batch. L_DC is the mean over the windows of both
  domains, half of Eq. 17.
- L_MCC is on from T_DA, and only with the asterisk. The reversal's coefficient is 2/(1+exp(−10p)) − 1, p from T_DA.
- SAM climbs L_PL and L_MCC too. T is at least 1.
- Eq. 20 begins a step instead of ending it, so the reported teacher lacks the last step. Labels come from a teacher in
  training mode, counts and calibration from evaluation mode.

A loss is a function of one run (`View`). Elsewhere the first axis of every tensor is the run: one training, or a stack
of them (fast/). A run gives the same result alone, in any stack, and after a resume. Training data hold no target
labels; `watch` may know them, for curves alone: training reads nothing that it returns.

>>> trained = train([Run(RECIPES["CAT*-Temperature"], split.training, seed=0)], torch.device("cpu"))
>>> logits, features = predict(trained.network, windows)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bearcat.cat import losses, published, teacher
from bearcat.cat.ingredient import AfterEpoch, Augmentation, Loss, View
from bearcat.cat.losses import Adversarial, Confusion, Sharpness, climb
from bearcat.cat.networks import predict
from bearcat.cat.published import StudentInputs
from bearcat.cat.recipes import Recipe
from bearcat.cat.state import Checkpoint, TrainingState, begin
from bearcat.cat.teacher import PseudoLabels, SelfTraining
from bearcat.data.recording import Integers
from bearcat.data.tasks import TrainingData
from bearcat.fast.device import Batch, Feed, Recorder, torch_settings
from bearcat.fast.stacked import ModuleOfRun

OFF = 0.0  # a loss that is not active or not part of the method


@dataclass(frozen=True, eq=False)
class Run:
    """One training: a recipe, its data, a seed."""

    recipe: Recipe
    data: TrainingData
    seed: int
    # Classes that simple models of the source predict for the target's training windows, (window,) by model, for
    # calibrators that ask.
    checks: Mapping[str, Integers] | None = None


Trained = TrainingState  # what training leaves behind is its state at the end


def train(
    runs: Sequence[Run],
    device: torch.device,
    watch: Callable[[TrainingState], dict[str, Tensor]] | None = None,
    progress: Callable[[TrainingState], None] | None = None,
    checkpoint: Path | None = None,
    identity: str = "",
) -> Trained:
    """Trains all runs to the last epoch; `watch` gives numbers (run,) for the history after each.

    With a checkpoint, an interrupted training goes on from its last one to the same result; `identity` names the data,
    recipe and seeds that determine it, so that no other training continues it.
    """
    state = begin(runs, device)
    saved = Checkpoint(state, checkpoint, identity)
    recipe, schedule = state.recipe, state.recipe.schedule
    T_PL, T_cal = schedule.label_from, schedule.calibrate_from
    self_training, calibrator = recipe.find(SelfTraining), recipe.calibration
    feed, recorder = Feed(state.batches), Recorder(device, state.recordable)
    with torch_settings(state.precision, device, state.small):
        for epoch in range(state.epoch, schedule.epochs):
            state.start_epoch(epoch)  # ×0.1 at epochs 150 and 250 (Schedule)
            if recipe.published:
                published.start_epoch(state)
            else:
                if calibrator and epoch >= T_cal:
                    # The teacher (the student while there is none) is calibrated on the source's test split (Eqs. 6
                    # to 9). Algorithm 1 prints epoch ≤ T_cal, the text says from T_cal on.
                    teacher.update_calibration(state, calibrator)
                if self_training and epoch >= T_PL:
                    # θ_teacher ← θ at T_PL, then class-wise thresholds of this epoch (Eqs. 10 to 12).
                    state.teacher = state.teacher or teacher.copy_of(state.student)
                    logits, _ = predict(state.teacher, state.batches.target_train)
                    teacher.set_thresholds(self_training, state, logits)

            feed.fill(epoch, state.ramps(epoch))
            state.start_totals(epoch)
            for sizes in feed.sizes:  # on a GPU a step of a kind is captured once and then replayed
                recorder.run(partial(train_step, state, feed, epoch, sizes), kind=(state.phase, sizes))

            for ingredient in recipe.on(AfterEpoch, epoch):
                ingredient.end_epoch(state)
            state.finish_epoch()
            if recipe.published and calibrator and epoch >= T_cal:
                teacher.update_calibration(state, calibrator)
            for name, value in (watch(state) if watch is not None else {}).items():
                state.remember(name, value)
            saved.save_if_due()
            if progress is not None:
                progress(state)
        state.epoch = schedule.epochs
        # Fitted once more to the final network; `final`, if there is one, replaces it in what is reported.
        if calibrator and schedule.epochs > T_cal:
            state.source_calibration = state.calibration = teacher.fit_calibration(state, calibrator)
        if recipe.final:
            state.calibration = teacher.fit_calibration(state, recipe.final)
    return state


def train_step(state: TrainingState, feed: Feed, epoch: int, sizes: tuple[int, int]) -> None:
    """One iteration: the teacher follows and labels, SAM climbs, the student and the domain classifier learn."""
    recipe, schedule = state.recipe, state.recipe.schedule
    T_PL = schedule.label_from
    self_training, sharpness = recipe.find(SelfTraining), recipe.find(Sharpness)
    augmentations = recipe.on(Augmentation, epoch)
    batch = feed.next(state.with_target(epoch), sizes)

    # θ_teacher ← α·θ_teacher + (1 − α)·θ (Eq. 20). Algorithm 1 ends a step with it; here it begins the next one, so
    # thresholds and calibration see a teacher that is one step behind.
    if self_training and epoch >= (published.follows_from(recipe) if recipe.published else T_PL):
        teacher.ema_update(state.teacher, state.student, self_training.teacher.momentum)

    # Pseudo-labels, for both passes of SAM: of calibrated confidence at or above the threshold of the class (Eqs. 5, 13
    # and 14).
    for_teacher = augmented(state, batch, [view for view in augmentations if view.of_teacher])
    labels = None
    if self_training and epoch >= T_PL:
        labels = teacher.pseudo_labels(self_training, state, for_teacher)
    batch = augmented(state, for_teacher, [view for view in augmentations if not view.of_teacher])

    # SAM's first pass: uphill to where the task loss L_C + L_PL + L_MCC is highest nearby (SDAT, Section 3.4.1; the
    # paper's text names L_C alone, the published code climbs all three).
    weights = [weight for weight in state.student.parameters() if weight.requires_grad]
    if sharpness:
        L_task, _ = objective(state, feed, batch, labels, epoch, first_pass=True)
        gradients = torch.autograd.grad(L_task.sum(), weights, materialize_grads=True)
        before = climb(weights, gradients, sharpness.radius)
        if recipe.published and labels is not None:
            labels = teacher.pseudo_labels(self_training, state, for_teacher)
    if labels is not None:
        state.add("pseudo_label_share", labels.selected.float().mean(dim=1))

    # The gradient of L_CAT at the climbed weights (without SAM, at the weights themselves); then the
    # weights go back, and Adam takes its step. The domain classifier is not climbed, but sees the climbed student.
    L_CAT, terms = objective(state, feed, batch, labels, epoch)
    modules = [state.student, *(state.modules[name] for name in terms if name in state.modules)]
    parameters = [weight for module in modules for weight in module.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(L_CAT.sum(), parameters, materialize_grads=True)
    if sharpness:
        torch._foreach_copy_([weight.detach() for weight in weights], before)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.contiguous()  # fused Adam wants the parameter's own strides
    state.adam.step()  # modules of losses that have not begun have no gradient, and stay
    for name, value in terms.items():
        state.add(f"loss_{name}", value)


def objective(
    state: TrainingState, feed: Feed, batch: Batch, labels: PseudoLabels | None, epoch: int, first_pass: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """L_CAT (Eq. 18) of each run, (run,), and its terms by name; SAM's first pass leaves out what aligns domains."""
    recipe, schedule = state.recipe, state.recipe.schedule
    T_DA, T_PL = schedule.align_from, schedule.label_from
    active = [loss for loss in recipe.on(Loss, epoch) if not (first_pass and loss.aligns)]
    if first_pass and recipe.published:
        active = [loss for loss in active if published.climbs(recipe, loss, epoch)]
    inputs = published.student_inputs(recipe, batch, active) if recipe.published else [student_inputs(batch, active)]
    # One view serves all losses. The published code has a second one, the last, for losses that compare the domains.
    views = [student_view(state, batch, labels, *each) for each in inputs]
    ramps = {loss.name: feed.ramp(loss.name) for loss in active}
    modules = {name: ModuleOfRun(module, state.randomness) for name, module in state.modules.items()}

    def of_one_run(tensors: list[dict[str, Any]], ramps: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        first, last = (replace(views[place], **tensors[place]) for place in (0, -1))
        L_C = losses.supervised(first)  # Eq. 15
        terms = {"supervised": L_C}

        def term(loss: Loss | None) -> Tensor | float:
            if loss is None or loss not in active:
                return OFF
            view, module = last if loss.aligns else first, modules.get(loss.name)
            terms[loss.name] = loss.loss(replace(view, ramp=ramps[loss.name], module=module))  # type: ignore[arg-type]
            return terms[loss.name]

        # `active` implies these epochs already; they repeat Algorithm 1.
        L_PL = term(recipe.find(SelfTraining)) if epoch >= T_PL else OFF  # Eq. 16
        L_MCC = term(recipe.find(Confusion)) if epoch >= T_DA else OFF
        L_DC = term(recipe.find(Adversarial)) if epoch >= T_DA else OFF  # Eq. 17
        L_more = [term(loss) for loss in active if loss.name not in terms]  # of other methods
        return L_C + L_PL + L_MCC + L_DC + sum(L_more), terms

    # The run axis comes and goes here.
    stacked = [{name: value for name, value in vars(view).items() if isinstance(value, Tensor)} for view in views]
    result: tuple[Tensor, dict[str, Tensor]] = torch.vmap(of_one_run)(stacked, ramps)
    return result


def student_inputs(batch: Batch, active: Sequence[Loss]) -> StudentInputs:
    """What goes through the student: both domains at once, each with its own batch statistics, or the source alone."""
    if not any(loss.uses_target for loss in active):
        return batch.labels, [(batch.source, ())]
    sizes = batch.source.shape[1], batch.target.shape[1]
    return batch.labels, [(torch.cat([batch.source, batch.target], dim=1), sizes)]


def student_view(
    state: TrainingState,
    batch: Batch,
    pseudo: PseudoLabels | None,
    labels: Tensor,
    parts: list[tuple[Tensor, tuple[int, ...]]],
) -> View:
    """What the student offers to losses, of all runs, in training mode: batch statistics of each part, fresh dropout.

    After a pass of the source alone the target's part of the view is empty.
    """
    source_windows, outputs = batch.source.shape[1], []
    for windows, sizes in parts:
        # A smaller last batch leaves a gap, so that dropout draws the same for each place.
        state.randomness.next(source_windows, state.batches.size - source_windows)
        outputs.append(state.student(windows, batch_statistics=True, randomness=state.randomness, parts=sizes))
    logits, features = (torch.cat(values, dim=1) for values in zip(*outputs, strict=True))
    head, draw = state.student.head, state.randomness.now
    label, selected, probabilities = pseudo or (None, None, None)
    return View(
        labels.shape[1], logits, features, labels, label, selected, probabilities, head.weight, head.bias, draw,
        ramp=torch.zeros_like(logits[:, 0, 0]),
    )  # fmt: skip


def augmented(state: TrainingState, batch: Batch, views: Sequence[Augmentation]) -> Batch:
    """The batch with these views of its target windows."""
    for view in views:
        state.randomness.next()
        with torch.no_grad():
            batch = replace(batch, target=torch.vmap(view.change)(batch.target, state.randomness.now))
    return batch
