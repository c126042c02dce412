"""Teachers, and what they and the student are shown.

Self-training: a teacher labels target windows, and the student learns from the labels that are sure enough. AdaBN (Li
et al. 2016): the reported network is the student with statistics of the target. Views: the teacher labels a weak view
of a window, the student learns a strong one. A view that stands before self-training changes what the teacher is shown,
one behind it what the student and all losses read. Draws belong to the run (models.stacked.Randomness).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bearcat.cat.ingredient import Deferred, Loss, Teaching, View, check_choices, choice
from bearcat.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bearcat.cat import evaluate
    from bearcat.cat.recipes import Schedule
    from bearcat.cat.state import TrainingState
    from bearcat.data.inputs import Input
    from bearcat.fast import batches
    from bearcat.fast.batches import Batch
    from bearcat.methods import formulas
else:
    torch, formulas = Deferred("torch"), Deferred("bearcat.methods.formulas")
    batches, evaluate = Deferred("bearcat.fast.batches"), Deferred("bearcat.cat.evaluate")


@dataclass(frozen=True)
class Teacher:
    """An average of the student that makes pseudo-labels and, at the end, the predictions.

    >>> SelfTraining(teacher=Teacher(momentum=0.99)).teacher.statistics
    'target'
    """

    momentum: float = 0.999
    # "target": parameters are averaged; normalisation statistics are its own, of target batches (authors' code).
    # "averaged": statistics are averaged too, and labels made with them, in evaluation mode.
    statistics: str = choice("target", "averaged")
    dropout: bool = True  # live while labelling; only with statistics "target"
    # It exists from the first epoch on, as an untrained copy of the student that follows it from T_DA on, and counts in
    # every epoch, which in training mode makes its statistics its own; at T_PL its parameters are overwritten.
    early: bool = False  # authors' code: yes

    def __post_init__(self) -> None:
        check_choices(self, "teacher.")


@dataclass(frozen=True)
class SelfTraining(Teaching, Loss):
    """Who labels, which labels are used, and how the student's loss on them is averaged.

    >>> Recipe((SelfTraining(tau=0.95), Adversarial())).with_settings({"labels.share": "0.3"}).find(SelfTraining).tau
    0.95
    """

    name = "labels"
    phase = "labels"
    weight: float = 1.0
    threshold: str = choice("per-class", "fixed")
    tau: float = 0.9
    counts: str = choice("uncalibrated", "calibrated")  # probabilities, for per-class thresholds; text: calibrated
    average: str = choice("batch", "selected")  # authors' code: unselected windows count zero; text: selected
    # "cross-entropy" with the labels, or "squared": difference of the student's and the teacher's probabilities.
    objective: str = choice("cross-entropy", "squared")
    # "confidence" above the threshold; or without one, "share": the surest of each predicted class.
    select: str = choice("confidence", "share")
    share: float = 0.5  # of each class, for "share"
    samples: int = 1  # passes of the teacher, each with dropout of its own, whose probabilities are averaged
    agree: bool = False  # a label counts only if all of these passes give it
    teacher: Teacher = field(default_factory=Teacher)
    # Of the teacher that counts; authors' code: target batch by target batch, with fixed thresholds too, which do not
    # need it, so that its statistics move.
    counts_mode: str = choice("evaluation", "training")
    # Whose the counts of the first epoch are: the student's, or those of the early teacher before it is overwritten.
    first_counts: str = choice("student", "early")
    relabel: bool = False  # under SDAT, labels are made anew for the second pass (authors' code)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1 or not 0 < self.share <= 1:
            raise InputError("labels.samples must be at least 1, labels.share above 0 and at most 1")
        if self.first_counts == "early" and not self.teacher.early:
            raise InputError("labels.first_counts=early needs a teacher from the start; add teacher.early=true")

    def in_epochs(self, before: int, after: int) -> SelfTraining:
        """The teacher's memory keeps its share of the training, or in a tenth of the steps it would hardly move."""
        return replace(self, teacher=replace(self.teacher, momentum=self.teacher.momentum ** (before / after)))

    def teaches_from(self, schedule: Schedule) -> int:
        return 0 if self.teacher.early else self.start(schedule)

    def start_epoch(self, state: TrainingState) -> None:
        """Makes the teacher where there is none yet, and the thresholds of this epoch."""
        begins, averaged = self.start(state.schedule), self.teacher.statistics == "averaged"
        if state.teacher is None:
            state.teacher = copy.deepcopy(state.student).requires_grad_(False)
        if state.epoch == begins and self.first_counts == "student":
            follow(state.teacher, state.student, 0.0, averaged)
        in_training = None
        if self.counts_mode == "training":
            in_training = state.predict_in_training(state.teacher, state.epoch, self.teacher.dropout)
        if state.epoch < begins:
            return
        limits = state.batches.target_train.new_full((state.runs, state.classes), self.tau)
        if self.select != "confidence":
            limits = torch.zeros_like(limits)
            padded = torch.nn.functional.pad(self._supported(state), (0, 1), value=-1)
            state.supported = padded if state.supported is None else state.supported.copy_(padded)
        elif self.threshold == "per-class":
            present = state.batches.target_present
            if in_training is None:
                logits, _ = evaluate.predict(state.reported, state.batches.target_train)
            else:
                logits, present = in_training
            if self.counts == "calibrated" and state.calibration is not None:
                logits = state.calibration.apply(logits)
            counts = formulas.confident_counts(logits.softmax(dim=-1), self.tau, present)
            limits = formulas.per_class(counts, self.tau)
        if state.thresholds is None or state.pseudo_labels is None:  # a recorded step keeps using this memory
            runs, windows = state.batches.target_train.shape[:2]
            state.thresholds = torch.empty_like(limits, memory_format=torch.contiguous_format)
            state.pseudo_labels = torch.empty(runs, windows + 1, dtype=torch.int64, device=limits.device)
        state.thresholds.copy_(limits)
        state.pseudo_labels.fill_(-1)
        if state.epoch == begins and self.first_counts == "early":
            follow(state.teacher, state.student, 0.0, averaged)

    def start_step(self, state: TrainingState, batch: Batch) -> None:
        """The teacher follows the student, from T_DA on at the earliest, then labels the target batch."""
        begins = self.start(state.schedule)
        if state.epoch >= min(begins, state.schedule.align_from):
            averaged = self.teacher.statistics == "averaged"
            follow(state.teacher, state.student, self.teacher.momentum, averaged)
        if state.epoch >= begins:
            self._label(state, batch)

    def after_climb(self, state: TrainingState, batch: Batch) -> None:
        if self.relabel and state.epoch >= self.start(state.schedule):
            self._label(state, batch)

    def _supported(self, state: TrainingState) -> Tensor:
        """The labels of the surest share of each predicted class, (run, window), −1 elsewhere."""
        logits, _ = evaluate.predict(state.reported, state.batches.target_train)
        scores, labels = logits.softmax(dim=-1).max(dim=-1)
        return formulas.best_of_each_class(scores, labels, self.share, state.classes, state.batches.target_present)

    def _label(self, state: TrainingState, batch: Batch) -> None:
        if state.teacher is None or state.thresholds is None or state.pseudo_labels is None:
            raise RuntimeError("an epoch of self-training begins with start_epoch")
        own = self.teacher.statistics == "target"
        with torch.no_grad():
            randomness = state.randomness if own and self.teacher.dropout else None
            passes = []
            for _ in range(self.samples):
                state.randomness.next()
                logits, _ = state.teacher(batch.target, own, randomness, batch.target_present)
                logits = logits if state.calibration is None else state.calibration.apply(logits)
                passes.append(logits.softmax(dim=-1))
            probabilities = torch.stack(passes).mean(dim=0)
            labels, selected = formulas.select(probabilities, state.thresholds)
            if state.supported is not None:
                selected = selected & (labels == state.supported.gather(1, batch.target_index))
            for each in passes if self.agree else ():
                selected = selected & (labels == each.argmax(dim=-1))
            state.pseudo_labels.scatter_(1, batch.target_index, torch.where(selected, labels, -1))
        state.batch_labels = labels, selected, probabilities

    def loss(self, view: View) -> Tensor:
        if view.pseudo_labels is None or view.selected is None or view.probabilities is None:
            raise RuntimeError("a step of self-training begins with start_step")
        if self.objective == "squared":
            each = (view.target_logits.softmax(dim=-1) - view.probabilities).square().mean(dim=-1)
        else:
            each = formulas.cross_entropy(view.target_logits, view.pseudo_labels)
        return self.weight * formulas.of_selected(each, view.selected, self.average, view.target_present)


@dataclass(frozen=True)
class TargetStatistics(Teaching):
    """AdaBN: the reported network is the student with running statistics of target windows.

    >>> RECIPES["AdaBN"].ingredients == (TargetStatistics(),)
    True
    """

    name = "adabn"
    phase = "alignment"

    def end_epoch(self, state: TrainingState) -> None:
        """Copies the student's weights and passes the target through the copy, as many batches as an epoch has."""
        if state.teacher is None:
            state.teacher = copy.deepcopy(state.student).requires_grad_(False)
        follow(state.teacher, state.student, momentum=0.0, statistics=False)
        windows, size, steps = state.batches.target_train, state.batches.size, state.batches.iterations
        count = torch.tensor(state.batches.target_windows, device=windows.device)[:, None]
        place = torch.arange(size, device=count.device)
        with torch.no_grad():
            for step in range(state.epoch * steps, (state.epoch + 1) * steps):
                # Full batches: where the windows end, they begin again.
                state.teacher(batches.gather(windows, (place + step * size) % count), True)


@dataclass(frozen=True)
class StrongView(Teaching):
    """A composition of changes, each drawn for each window; 0 leaves one out.

    >>> Recipe((SelfTraining(), StrongView(snr=10.0))).for_input("frequency").find(StrongView).shift
    0.0
    """

    name = "strong"
    phase = "labels"
    uses_target = True
    resample: float = 0.02  # the speed is drawn within ± this share
    shift: float = 1.0  # the start is drawn within this share of the window, which is taken as a circle
    stop: float = 0.1  # share of the band that is taken out, at a place that is drawn
    scale: float = 0.2  # the amplitude is drawn within ± this share
    snr: float = 15.0  # dB, of the noise that is added
    mask: float = 0.1  # share of the window that is set to 0, at a place that is drawn

    def __post_init__(self) -> None:
        for name in ("resample", "shift", "stop", "scale", "mask"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"setting '{self.name}.{name}' must lie between 0 and 1, not {getattr(self, name):g}")

    def for_input(self, kind: Input) -> StrongView:
        """Shift and band-stop are for samples in time; where points are lines of a spectrum, masking stops bands."""
        from bearcat.data.inputs import Waveform

        return self if isinstance(kind, Waveform) else replace(self, shift=0.0, stop=0.0)

    def start_step(self, state: TrainingState, batch: Batch) -> Batch:
        state.randomness.next()
        windows, draws = batch.target, state.randomness
        with torch.no_grad():
            if self.resample or self.shift:
                windows = formulas.resampled(windows, draws, self.resample, self.shift)
            for share, changed in (
                (self.stop, formulas.band_stopped), (self.scale, formulas.scaled), (self.snr, formulas.noisy),
                (self.mask, formulas.masked),
            ):  # fmt: skip
                windows = changed(windows, draws, share) if share else windows
            return replace(batch, both=torch.cat([batch.source, windows], dim=1))


@dataclass(frozen=True)
class WeakView(StrongView):
    """A little noise.

    >>> [each.name for each in RECIPES["AT-views"].ingredients]
    ['weak', 'labels', 'strong', 'alignment']
    """

    name = "weak"
    resample: float = 0.0
    shift: float = 0.0
    stop: float = 0.0
    scale: float = 0.0
    snr: float = 30.0
    mask: float = 0.0


def follow(teacher: Any, student: Any, momentum: float, statistics: bool) -> None:
    """teacher ← momentum·teacher + (1 − momentum)·student, for parameters and, if asked, normalisation statistics."""
    followers, leaders = list(teacher.parameters()), list(student.parameters())
    counts = []  # of batches, as torch's own normalisation keeps them: whole numbers have no average
    for own, other in zip(teacher.buffers(), student.buffers(), strict=True) if statistics else ():
        if own.is_floating_point():
            followers.append(own)
            leaders.append(other)
        else:
            counts.append((own, other))
    with torch.no_grad():
        for own, other in counts:
            own.copy_(other)
        torch._foreach_mul_(followers, momentum)
        torch._foreach_add_(followers, leaders, alpha=1 - momentum)
