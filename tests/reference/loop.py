"""The whole training loop for one model, the plain way: `nn.Module`s, Python loops, nothing stacked, nothing compiled.

Each iteration moves the teacher, asks it for pseudo-labels, and takes one (or, climbing, two) gradients of
supervised + pseudo-label + MCC + domain loss. The method is the Calibrated Adaptive Teacher and its parts:
domain-adversarial training (Ganin et al. 2016), minimum class confusion (Jin et al. 2020), smooth domain-adversarial
training (Rangwani et al. 2022), mean teacher (Tarvainen and Valpola 2017), FlexMatch thresholds (Zhang et al. 2021),
temperature scaling (Guo et al. 2017).

    twin = Twin(Settings(teacher=True, alignment=True), data)
    twin.start_epoch(0)
    losses = twin.step(source_index, target_index)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from scipy.optimize import fmin
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

Calibration = Callable[[Tensor], Tensor]  # logits (n, classes) -> logits (n, classes)
Fit = Callable[[Tensor, Tensor], Calibration]  # logits (n, classes), labels (n,) -> the fitted calibration
State = dict[str, Tensor]
LOSSES = ("supervised", "pseudo", "mcc", "domain")
WIDTH = 1024  # of the domain classifier's layers


# --- settings and data ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """Every number of the loop. Epochs count from 0; "from" means from the start of that epoch on."""

    epochs: int = 300
    batch: int = 64
    rate: float = 1e-3
    weight_decay: float = 1e-5  # ℓ2 in the gradient
    drops: tuple[int, ...] = (150, 250)
    drop_factor: float = 0.1
    align_from: int = 50  # T_DA
    label_from: int = 50  # T_PL; 100 for frequency input
    calibrate_from: int = 150  # T_cal
    alignment: bool = False
    mcc: bool = False
    mcc_temperature: float = 2.0
    radius: float | None = None  # of SAM; the paper's is 0.05; 0 and None both mean one plain step
    teacher: bool = False
    momentum: float = 0.999
    threshold: Literal["fixed", "per class"] = "per class"
    tau: float = 0.9
    counts: Literal["uncalibrated", "calibrated"] = "uncalibrated"
    calibration: str | Fit | None = None  # the published Temperature, Vector, Matrix or CPCS, or our own
    teacher_dropout: bool = True
    dropout: float = 0.5
    passes: Literal["shared", "separate", "joint"] = "shared"
    # What the published code does where the default is something else (docs/method.md).
    doubled: bool = False  # the source batch, concatenated with itself, for the supervised loss
    counts_mode: Literal["evaluation", "training"] = "evaluation"  # of the teacher that counts for the thresholds
    relabel: bool = False  # pseudo-labels are made anew for the second pass of SAM
    mcc_climbed_from_labels: bool = False  # MCC is in SAM's first pass only from T_PL on
    # A copy of the untrained student counts from epoch 0 on, follows the student from T_DA on, and has its parameters
    # overwritten with the student's at T_PL.
    early_teacher: bool = False
    first_counts: Literal["student", "early"] = "student"  # "early": at T_PL it counts before it is overwritten
    target_pass: bool = False  # an epoch begins with a pass of the target through the student in training mode
    reversal_counts_from: int = 0  # p of the first aligned iteration, in iterations
    calibrate_at: Literal["start", "end"] = "start"  # "end": fitted when an epoch ends, used in the next


def published(method: str, **numbers: Any) -> Settings:
    """What the published code does for a method of the paper, by its name.

    There are two loops. The one without a teacher joins both domains from T_DA on, and begins every epoch, also those
    before T_DA, with a pass of the target through the student in training mode. The one with a teacher keeps the
    passes apart, and begins every epoch with a pass of the target through the teacher, which counts.
    """
    name, _, calibrator = method.partition("-") if method.startswith("CAT") else (method, "", "")
    common: dict[str, Any] = {
        "alignment": method != "source-only",
        "mcc": "*" in name or "MCC" in name,
        "radius": 0.05 if "*" in name or "SDAT" in name else None,
        "calibration": calibrator or None,
        "calibrate_at": "end",
        "reversal_counts_from": 1,
    }
    if "AT" not in name:
        return Settings(**common, passes="joint", target_pass=True, **numbers)
    return Settings(
        **common, teacher=True, threshold="fixed" if name == "AT-fixed" else "per class", passes="separate",
        doubled=True, counts_mode="training", early_teacher=True, first_counts="early", relabel=True,
        mcc_climbed_from_labels=True, **numbers,
    )  # fmt: skip


@dataclass
class Data:
    """One task: windows (n, channels, length), labels (n,)."""

    source_train: tuple[Tensor, Tensor]
    source_test: tuple[Tensor, Tensor]
    target_train: Tensor
    classes: int


# --- networks ---------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """Windows (n, channels, length) to features (n, 256)."""

    def __init__(self, channels: int = 1, length: int = 1024, dropout: float = 0.5) -> None:
        super().__init__()
        last = (length - 14 - 2) // 2 - 2 - 2
        if last < 4:
            raise ValueError(f"windows of {length} leave {last} positions before the last pooling; 32 is the shortest")
        self.convolutions = nn.ModuleList(
            [nn.Conv1d(channels, 16, 15), nn.Conv1d(16, 32, 3), nn.Conv1d(32, 64, 3), nn.Conv1d(64, 128, 3)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm1d(16), nn.BatchNorm1d(32), nn.BatchNorm1d(64), nn.BatchNorm1d(128)])
        self.dense = nn.ModuleList([nn.Linear(512, 256), nn.Linear(256, 256)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, windows: Tensor) -> Tensor:
        values = windows
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            values = functional.relu(norm(convolution(values)))
            if number == 1:
                values = functional.max_pool1d(values, kernel_size=2, stride=2)
        values = functional.adaptive_max_pool1d(values, 4)
        values = values.flatten(start_dim=1)  # channel by channel: 128 × 4
        for dense in self.dense:
            values = self.dropout(functional.relu(dense(values)))
        return values


def Head(classes: int) -> nn.Linear:
    """Features (n, 256) to logits (n, classes)."""
    return nn.Linear(256, classes)


class DomainClassifier(nn.Module):
    """Features (n, 256) to one logit each (n,): positive for source."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.dense = nn.ModuleList([nn.Linear(256, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        values = self.dropout(functional.relu(self.dense[0](features)))
        values = self.dropout(functional.relu(self.dense[1](values)))
        logits: Tensor = self.dense[2](values)
        return logits.squeeze(1)


class Reversal(torch.autograd.Function):
    """The identity forwards; −coefficient times the gradient backwards."""

    @staticmethod
    def forward(context: Any, values: Tensor, coefficient: float) -> Tensor:
        context.coefficient = coefficient
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return -context.coefficient * gradients[0], None


def make_student(classes: int, channels: int = 1, length: int = 1024, dropout: float = 0.5) -> nn.ModuleDict:
    return nn.ModuleDict({"encoder": Encoder(channels, length, dropout), "head": Head(classes)})


# --- losses -----------------------------------------------------------------------------------------------------------


def mcc_loss(logits: Tensor, temperature: float = 2.0) -> Tensor:
    """Minimum class confusion of a target batch, logits (n, classes)."""
    count, classes = logits.shape
    probabilities = functional.softmax(logits / temperature, dim=1)
    entropy = -(probabilities * functional.log_softmax(logits / temperature, dim=1)).sum(dim=1)
    weights = (1 + torch.exp(-entropy)).detach()
    weights = weights * count / weights.sum()
    confusion = probabilities.T @ torch.diag(weights) @ probabilities  # (classes, classes)
    confusion = confusion / confusion.sum(dim=1, keepdim=True)
    return (confusion.sum() - confusion.trace()) / classes


def pseudo_label_loss(logits: Tensor, labels: Tensor, selected: Tensor) -> Tensor:
    """Cross-entropy over the selected windows, divided by the batch size."""
    each = functional.cross_entropy(logits, labels, reduction="none")
    return torch.where(selected, each, torch.zeros_like(each)).sum() / len(logits)


def domain_loss(domain: nn.Module, features: Tensor, is_source: Tensor, coefficient: float) -> Tensor:
    """Binary cross-entropy through gradient reversal; features (n, 256), is_source (n,) of 1 and 0."""
    return functional.binary_cross_entropy_with_logits(domain(Reversal.apply(features, coefficient)), is_source)


def reversal_coefficient(progress: float) -> float:
    return 2 / (1 + math.exp(-10 * progress)) - 1


def textbook_sam_step(
    parameters: Iterable[Tensor],
    task_loss: Callable[[], Tensor],
    total_loss: Callable[[], Tensor],
    optimisers: Iterable[torch.optim.Optimizer],
    radius: float,
) -> None:
    """Climb along the gradient of `task_loss`, take the gradient of `total_loss` there, come back, step.

    Only `parameters` climb. Both losses are functions that run a forward pass of their own.
    """
    parameters, optimisers = list(parameters), list(optimisers)
    for optimiser in optimisers:
        optimiser.zero_grad()
    task_loss().backward()
    with torch.no_grad():
        squares = [(parameter.grad**2).sum() for parameter in parameters if parameter.grad is not None]
        norm = torch.sqrt(torch.stack(squares).sum())
        kept = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.add_(radius * parameter.grad / (norm + 1e-12))
    for optimiser in optimisers:
        optimiser.zero_grad()
    total_loss().backward()
    with torch.no_grad():
        for parameter, before in zip(parameters, kept, strict=True):
            parameter.copy_(before)
    for optimiser in optimisers:
        optimiser.step()


# --- thresholds, calibration, scores ----------------------------------------------------------------------------------


def class_thresholds(probabilities: Tensor, tau: float) -> Tensor:
    """One threshold per class (classes,) from the teacher's probabilities (n, classes) of the target training split."""
    classes = probabilities.shape[1]
    counts = [0] * classes
    confidences, labels = probabilities.max(dim=1)
    confident = (confidences >= tau).tolist()
    for is_confident, label in zip(confident, labels.tolist(), strict=True):
        if is_confident:
            counts[label] += 1
    thresholds = []
    for count in counts:
        beta = count / max(counts) if max(counts) > 0 else 0.0
        thresholds.append(tau * beta / (2 - beta))
    return torch.tensor(thresholds, dtype=probabilities.dtype, device=probabilities.device)


def published_temperature(logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> float:
    """Nelder and Mead's search from T = 2: of the NLL, or of the Brier score times each window's weight."""
    hit = functional.one_hot(labels, logits.shape[1])

    def loss(place: Any) -> float:
        scaled = logits / float(place[0])
        if weight is None:
            return functional.cross_entropy(scaled, labels).item()
        return (weight * (functional.softmax(scaled, dim=1) - hit).square().sum(dim=1)).mean().item()

    return float(fmin(loss, 2.0, disp=False)[0])


def published_scaling(kind: str, logits: Tensor, labels: Tensor, steps: int) -> Calibration:
    """Vector or matrix scaling by gradient descent from the identity, rate 0.01, momentum 0.9."""
    classes = logits.shape[1]
    start = torch.ones(classes) if kind == "Vector" else torch.eye(classes)
    factor, offset = (nn.Parameter(value.to(logits)) for value in (start, torch.zeros(classes)))
    optimiser = torch.optim.SGD([factor, offset], lr=0.01, momentum=0.9)

    def apply(values: Tensor) -> Tensor:
        return (values * factor if kind == "Vector" else values @ factor) + offset

    for _ in range(steps):
        optimiser.zero_grad()
        functional.cross_entropy(apply(logits), labels).backward()
        optimiser.step()
    return lambda values: apply(values).detach()


def density_ratio(source: Tensor, target: Tensor, asked: Tensor) -> Tensor:
    """p(target)/p(source) of the features asked for, by scikit-learn's logistic regression of as many of each."""
    if len(source) != len(target):
        raise ValueError("the published code draws the smaller domain up at random; give equally many of each")
    features = torch.cat([source, target]).float().numpy()
    model = LogisticRegression().fit(features, [1] * len(source) + [0] * len(target))
    likely = model.predict_proba(asked.float().numpy())
    return torch.from_numpy(likely[:, 0] / likely[:, 1]).to(asked)


# --- the loop ---------------------------------------------------------------------------------------------------------


class Twin:
    """One run: student, domain classifier, teacher, and their optimisers, driven an epoch and a step at a time.

    `iterations_per_epoch` fixes the length of the gradient reversal's ramp.
    """

    def __init__(
        self, settings: Settings, data: Data, student_state: State, domain_state: State | None,
        iterations_per_epoch: int,
    ) -> None:  # fmt: skip
        self.settings, self.data, values = settings, data, data.source_train[0]
        self.student = make_student(data.classes, values.shape[1], values.shape[2], settings.dropout)
        self.student.load_state_dict(student_state)
        self.domain = DomainClassifier(settings.dropout)
        if domain_state is not None:
            self.domain.load_state_dict(domain_state)
        self.optimisers = [
            torch.optim.Adam(network.to(values.dtype).parameters(), settings.rate, weight_decay=settings.weight_decay)
            for network in (self.student, self.domain)
        ]
        early = settings.teacher and settings.early_teacher
        self.teacher: nn.ModuleDict | None = copy.deepcopy(self.student).requires_grad_(False) if early else None
        self.thresholds = torch.full((data.classes,), settings.tau, dtype=values.dtype)
        self.calibrate: Calibration | None = None
        self.pseudo_labels: tuple[Tensor, Tensor] | None = None  # of the last step: labels (n,), selected (n,)
        self.iterations_per_epoch, self.sgd_steps = iterations_per_epoch, 5000
        self.epoch, self.aligned_iterations = -1, 0  # iterations taken in epochs from align_from on

    # Which phase is it?

    @property
    def aligning(self) -> bool:
        return self.settings.alignment and self.epoch >= self.settings.align_from

    @property
    def confusing(self) -> bool:
        return self.settings.mcc and self.epoch >= self.settings.align_from

    @property
    def labelling(self) -> bool:
        return self.settings.teacher and self.epoch >= self.settings.label_from

    # Once per epoch.

    def start_epoch(self, epoch: int, counted: Iterable[Tensor]) -> None:
        """Learning rate, a teacher if its time has come, its calibration, then its thresholds, in this order.

        `counted` are the target batches, as indices, on which a teacher in training mode counts, and which pass the
        student where there is none. The teacher's pass is made with fixed thresholds too.
        """
        settings, self.epoch = self.settings, epoch
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * settings.drop_factor ** sum(epoch >= drop for drop in settings.drops)
        batches = [self.data.target_train[index] for index in counted]
        if settings.target_pass:
            self.pass_target(self.student.train(), batches)
        overwritten = settings.teacher and epoch == settings.label_from and self.teacher is not None
        if overwritten and settings.first_counts == "student":
            self.overwrite_teacher()
        if self.labelling and self.teacher is None:
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        if self.teacher is None:
            return
        if settings.calibrate_at == "start":
            self.fit_calibration()
        if settings.counts_mode == "training":
            self.set_training_mode(self.teacher)
            logits = self.pass_target(self.teacher, batches)
        else:
            logits = self.predict(self.teacher, self.data.target_train)
        if settings.counts == "calibrated" and self.calibrate is not None:
            logits = self.calibrate(logits)
        if settings.threshold == "per class":
            self.thresholds = class_thresholds(functional.softmax(logits, dim=1), settings.tau)
        if overwritten and settings.first_counts == "early":
            self.overwrite_teacher()

    @torch.no_grad()
    def pass_target(self, network: nn.ModuleDict, batches: Iterable[Tensor]) -> Tensor:
        return torch.cat([network["head"](network["encoder"](batch)) for batch in batches])

    @torch.no_grad()
    def overwrite_teacher(self) -> None:
        """With the student's parameters; an early teacher keeps its own statistics."""
        assert self.teacher is not None
        for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.copy_(theirs)

    def end_epoch(self) -> None:
        """With calibrate_at="end" the calibration is fitted now, and used from the next epoch on."""
        if self.settings.calibrate_at == "end":
            self.fit_calibration()

    def fit_calibration(self) -> None:
        """Fit the calibration to the teacher on the source test split, if calibration is on in this epoch."""
        chosen, (values, labels) = self.settings.calibration, self.data.source_test
        if chosen is None or not self.labelling or self.epoch < self.settings.calibrate_from:
            return
        assert self.teacher is not None
        logits = self.predict(self.teacher, values)
        if chosen in ("Vector", "Matrix"):
            self.calibrate = published_scaling(str(chosen), logits, labels, self.sgd_steps)
        elif chosen in ("Temperature", "CPCS"):
            weight = None
            if chosen == "CPCS":
                wanted = (self.data.source_train[0], self.data.target_train, values)
                weight = density_ratio(*(self.predict(self.teacher, part, features=True) for part in wanted))
            temperature = published_temperature(logits, labels, weight)
            self.calibrate = lambda values: values / temperature
        else:
            assert not isinstance(chosen, str)
            self.calibrate = chosen(logits, labels)

    @torch.no_grad()
    def predict(self, network: nn.ModuleDict, values: Tensor, features: bool = False) -> Tensor:
        """Logits (n, classes), or features (n, 256), in evaluation mode."""
        network.eval()
        found = network["encoder"](values)
        return found if features else network["head"](found)

    # Once per iteration.

    def step(self, source_index: Tensor, target_index: Tensor) -> dict[str, Tensor]:
        """One iteration on the windows of these numbers; the losses (detached, 0 where off) and the share of
        pseudo-labels selected. With SAM they are the losses at the climbed weights, whose gradient the step uses.
        """
        settings, (values, labels) = self.settings, self.data.source_train
        source, labels, target = values[source_index], labels[source_index], self.data.target_train[target_index]
        self.pseudo_labels = None
        if self.teacher is not None and (self.labelling or self.epoch >= settings.align_from):
            self.move_teacher()  # an early one follows from T_DA on, but labels nothing yet
        if self.labelling:
            self.pseudo_labels = self.label(target)
        self.student.train()
        self.domain.train()
        found: dict[str, Tensor] = {}

        def task_loss() -> Tensor:
            return total(self.losses(source, labels, target, first=True))

        def total_loss() -> Tensor:
            if settings.radius and settings.relabel and self.labelling:
                self.pseudo_labels = self.label(target)
            found.update(self.losses(source, labels, target, first=False))
            return total(found)

        optimisers = self.optimisers if self.aligning else self.optimisers[:1]
        if settings.radius:
            textbook_sam_step(self.student.parameters(), task_loss, total_loss, optimisers, settings.radius)
        else:
            for optimiser in optimisers:
                optimiser.zero_grad()
            total_loss().backward()
            for optimiser in optimisers:
                optimiser.step()
        self.aligned_iterations += self.epoch >= settings.align_from
        zero = torch.zeros((), dtype=source.dtype)
        report = {name: found[name].detach() if name in found else zero for name in LOSSES}
        report["share"] = zero if self.pseudo_labels is None else self.pseudo_labels[1].to(source.dtype).mean()
        return report

    @torch.no_grad()
    def move_teacher(self) -> None:
        """Teacher ← momentum · teacher + (1 − momentum) · student."""
        assert self.teacher is not None
        momentum = self.settings.momentum
        for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.copy_(momentum * mine + (1 - momentum) * theirs)

    @torch.no_grad()
    def label(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's label for each target window (n,) and whether it is confident enough (n,)."""
        assert self.teacher is not None
        self.set_training_mode(self.teacher)
        logits = self.teacher["head"](self.teacher["encoder"](target))
        if self.calibrate is not None:
            logits = self.calibrate(logits)
        confidences, labels = functional.softmax(logits, dim=1).max(dim=1)
        return labels, confidences >= self.thresholds[labels]

    def set_training_mode(self, teacher: nn.ModuleDict) -> None:
        """Statistics of the batch, which also enter the teacher's own running statistics, and live dropout."""
        teacher.train()
        for module in teacher.modules():
            if isinstance(module, nn.Dropout) and not self.settings.teacher_dropout:
                module.eval()

    def losses(self, source: Tensor, labels: Tensor, target: Tensor, first: bool) -> dict[str, Tensor]:
        """The losses of this phase, by name, from fresh forward passes of the student in training mode.

        `first` means SAM's first pass, whose loss is climbed: it has no domain loss, and MCC perhaps only from T_PL on.

        passes="shared": source, then target; the domain loss reads the features of those two passes. The target goes
        through only if a loss asked for reads it.
        passes="separate": source, for the supervised loss; target, for pseudo-labels and MCC, if one of them is on;
        source and target joined, source first, for the domain loss, if it is on and asked for. Each updates the
        running statistics in this order. With `doubled` the first of them is of the source batch twice.
        passes="joint": from T_DA on source and target joined, once, and every loss reads that.
        """
        settings, encoder, head = self.settings, self.student["encoder"], self.student["head"]
        found: dict[str, Tensor] = {}
        early = first and settings.mcc_climbed_from_labels and self.epoch < settings.label_from
        with_pseudo, with_mcc = self.pseudo_labels is not None, self.confusing and not early
        with_domain, shared = self.aligning and not first, settings.passes == "shared"
        joined = target_features = None
        if settings.passes == "joint" and self.epoch >= settings.align_from:
            joined = encoder(torch.cat([source, target]))
            source_features, target_features = joined[: len(source)], joined[len(source) :]
        elif settings.doubled:
            source_features, labels = encoder(torch.cat([source, source])), torch.cat([labels, labels])
        else:
            source_features = encoder(source)
        found["supervised"] = functional.cross_entropy(head(source_features), labels)
        if target_features is None and (with_pseudo or with_mcc or (shared and with_domain)):
            target_features = encoder(target)
        if with_pseudo:
            assert self.pseudo_labels is not None
            found["pseudo"] = pseudo_label_loss(head(target_features), *self.pseudo_labels)
        if with_mcc:
            found["mcc"] = mcc_loss(head(target_features), settings.mcc_temperature)
        if with_domain:
            if shared:
                joined = torch.cat([source_features, target_features])
            if settings.passes == "separate":
                joined = encoder(torch.cat([source, target]))
            is_source = torch.cat([source.new_ones(len(source)), target.new_zeros(len(target))])
            # p of the reversal coefficient: counted from 0 or 1 at the first aligned iteration, up to 1 at the end
            steps = (settings.epochs - settings.align_from) * self.iterations_per_epoch
            progress = (self.aligned_iterations + settings.reversal_counts_from) / steps
            found["domain"] = domain_loss(self.domain, joined, is_source, reversal_coefficient(progress))
        return found


def total(losses: dict[str, Tensor]) -> Tensor:
    """supervised + pseudo-label + MCC + domain, added in this order, of those that are on."""
    values = [losses[name] for name in LOSSES if name in losses]
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result
