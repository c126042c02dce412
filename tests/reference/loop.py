"""The whole training for one model, the plain way: `nn.Module`s and Python loops, nothing stacked, nothing compiled.

Written from the paper and from a description of the published code, not from ours: domain-adversarial training (Ganin
et al. 2016), minimum class confusion (Jin et al. 2020), smooth domain-adversarial training (Rangwani et al. 2022), mean
teacher (Tarvainen and Valpola 2017), FlexMatch thresholds (Zhang et al. 2021), temperature scaling (Guo et al. 2017).

    twin = Twin(Settings(teacher=True, alignment=True), data, student_state, domain_state, iterations_per_epoch=8)
    twin.start_epoch(0, counted)
    losses = twin.step(source_index, target_index)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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
    radius: float | None = None  # of SAM; the paper's is 0.05; 0 and None both mean one plain step
    teacher: bool = False
    momentum: float = 0.999
    threshold: str = "per class"  # or "fixed"
    tau: float = 0.9
    counts: str = "uncalibrated"  # or "calibrated"
    calibration: str | Fit | None = None  # the published Temperature, Vector, Matrix or CPCS, or our own
    dropout: float = 0.5
    passes: str = "shared"  # or "separate", "joint"
    # What the published code does where the default is something else (docs/method.md).
    doubled: bool = False  # the source batch, concatenated with itself, for the supervised loss
    counts_mode: str = "evaluation"  # or "training": of the teacher that counts for the thresholds
    relabel: bool = False  # pseudo-labels are made anew for the second pass of SAM
    mcc_climbed_from_labels: bool = False  # MCC is in SAM's first pass only from T_PL on
    # A copy of the untrained student counts from epoch 0 on, follows the student from T_DA on, and has its parameters
    # overwritten with the student's at T_PL.
    early_teacher: bool = False
    first_counts: str = "student"  # "early": at T_PL it counts before it is overwritten
    target_pass: bool = False  # an epoch begins with a pass of the target through the student in training mode
    reversal_counts_from: int = 0  # p of the first aligned iteration, in iterations
    calibrate_at: str = "start"  # "end": fitted when an epoch ends, used in the next


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

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [nn.Conv1d(channels, 16, 15), nn.Conv1d(16, 32, 3), nn.Conv1d(32, 64, 3), nn.Conv1d(64, 128, 3)]
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in (16, 32, 64, 128))
        self.dense = nn.ModuleList([nn.Linear(512, 256), nn.Linear(256, 256)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            values = functional.relu(norm(convolution(values)))
            if number == 1:
                values = functional.max_pool1d(values, kernel_size=2, stride=2)
        values = functional.adaptive_max_pool1d(values, 4).flatten(start_dim=1)  # channel by channel: 128 × 4
        for dense in self.dense:
            values = self.dropout(functional.relu(dense(values)))
        return values


class DomainClassifier(nn.Module):
    """Features (n, 256) to one logit each (n,): positive for source."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dense = nn.ModuleList([nn.Linear(256, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        for dense in self.dense[:2]:
            values = self.dropout(functional.relu(dense(values)))
        return self.dense[2](values).squeeze(1)


class Reversal(torch.autograd.Function):
    """The identity forwards; −coefficient times the gradient backwards."""

    @staticmethod
    def forward(context: Any, values: Tensor, coefficient: float) -> Tensor:
        context.coefficient = coefficient
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return -context.coefficient * gradients[0], None


def make_student(classes: int, channels: int = 1, dropout: float = 0.5) -> nn.ModuleDict:
    return nn.ModuleDict({"encoder": Encoder(channels, dropout), "head": nn.Linear(256, classes)})


# --- formulas ---------------------------------------------------------------------------------------------------------


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


def class_thresholds(probabilities: Tensor, tau: float) -> Tensor:
    """One threshold per class (classes,) from the teacher's probabilities (n, classes) of the target training split."""
    counts = [0] * probabilities.shape[1]
    confidences, labels = probabilities.max(dim=1)
    for is_confident, label in zip((confidences >= tau).tolist(), labels.tolist(), strict=True):
        counts[label] += is_confident
    shares = [count / max(counts) if max(counts) > 0 else 0.0 for count in counts]
    return torch.tensor([tau * beta / (2 - beta) for beta in shares], dtype=probabilities.dtype)


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
    assert len(source) == len(target), "the published code draws the smaller domain up at random; give as many of each"
    features = torch.cat([source, target]).float().numpy()
    model = LogisticRegression().fit(features, [1] * len(source) + [0] * len(target))
    likely = model.predict_proba(asked.float().numpy())
    return torch.from_numpy(likely[:, 0] / likely[:, 1]).to(asked)


# --- the loop ---------------------------------------------------------------------------------------------------------


class Twin:
    """One run: student, domain classifier, teacher, and their optimisers, driven an epoch and a step at a time."""

    def __init__(
        self, settings: Settings, data: Data, student_state: State, domain_state: State | None,
        iterations_per_epoch: int,
    ) -> None:  # fmt: skip
        self.settings, self.data, values = settings, data, data.source_train[0]
        self.student = make_student(data.classes, values.shape[1], settings.dropout)
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
        self.aligned_iterations = 0  # taken in epochs from align_from on

    def start_epoch(self, epoch: int, counted: Iterable[Tensor]) -> None:
        """Learning rate, a teacher if its time has come, its calibration, then its thresholds, in this order.

        `counted` are the target batches, as indices, on which a teacher in training mode counts, and which pass the
        student where there is none. The teacher's pass is made with fixed thresholds too.
        """
        settings, self.epoch = self.settings, epoch
        self.aligning = epoch >= settings.align_from
        self.labelling = settings.teacher and epoch >= settings.label_from
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * settings.drop_factor ** sum(epoch >= drop for drop in settings.drops)
        batches = [self.data.target_train[index] for index in counted]
        if settings.target_pass:
            self.pass_target(self.student, batches)
        overwritten = epoch == settings.label_from and self.teacher is not None
        if overwritten and settings.first_counts == "student":
            self.move_teacher(0.0)
        if self.labelling and self.teacher is None:
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        if self.teacher is None:
            return
        if settings.calibrate_at == "start":
            self.fit_calibration()
        if settings.counts_mode == "training":
            logits = self.pass_target(self.teacher, batches)
        else:
            logits = self.predict(self.teacher, self.data.target_train)
        if settings.counts == "calibrated" and self.calibrate is not None:
            logits = self.calibrate(logits)
        if settings.threshold == "per class":
            self.thresholds = class_thresholds(functional.softmax(logits, dim=1), settings.tau)
        if overwritten and settings.first_counts == "early":
            self.move_teacher(0.0)  # its statistics stay its own

    def end_epoch(self) -> None:
        """With calibrate_at="end" the calibration is fitted now, and used from the next epoch on."""
        if self.settings.calibrate_at == "end":
            self.fit_calibration()

    @torch.no_grad()
    def pass_target(self, network: nn.ModuleDict, batches: Iterable[Tensor]) -> Tensor:
        network.train()
        return torch.cat([network["head"](network["encoder"](batch)) for batch in batches])

    @torch.no_grad()
    def predict(self, network: nn.ModuleDict, values: Tensor, features: bool = False) -> Tensor:
        """Logits (n, classes), or features (n, 256), in evaluation mode."""
        network.eval()
        found = network["encoder"](values)
        return found if features else network["head"](found)

    @torch.no_grad()
    def move_teacher(self, momentum: float) -> None:
        for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.copy_(momentum * mine + (1 - momentum) * theirs)

    def fit_calibration(self) -> None:
        """Fits the calibration to the teacher on the source test split, if calibration is on in this epoch."""
        chosen, (values, labels) = self.settings.calibration, self.data.source_test
        if chosen is None or not self.labelling or self.epoch < self.settings.calibrate_from:
            return
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
            self.calibrate = chosen(logits, labels)

    def step(self, source_index: Tensor, target_index: Tensor) -> dict[str, Tensor]:
        """One iteration on the windows of these numbers; the losses (detached, 0 where off) and the share of
        pseudo-labels selected. With SAM they are the losses at the climbed weights, whose gradient the step uses.
        """
        settings, (values, labels) = self.settings, self.data.source_train
        batch = values[source_index], labels[source_index], self.data.target_train[target_index]
        if self.teacher is not None and (self.labelling or self.aligning):
            self.move_teacher(settings.momentum)  # an early one follows from T_DA on, but labels nothing yet
        self.pseudo_labels = self.label(batch[2]) if self.labelling else None
        self.student.train()
        optimisers = self.optimisers if self.aligning and settings.alignment else self.optimisers[:1]

        def gradient(first: bool) -> dict[str, Tensor]:
            for optimiser in optimisers:
                optimiser.zero_grad()
            losses = self.losses(*batch, first)
            sum(losses[name] for name in LOSSES if name in losses).backward()
            return losses

        weights = list(self.student.parameters())
        before = [weight.detach().clone() for weight in weights]
        if settings.radius:  # SAM: the gradient is taken where the task loss is higher
            gradient(first=True)
            with torch.no_grad():
                norm = torch.sqrt(torch.stack([(weight.grad**2).sum() for weight in weights]).sum())
                for weight in weights:
                    weight.add_(settings.radius * weight.grad / (norm + 1e-12))
            if settings.relabel and self.labelling:
                self.pseudo_labels = self.label(batch[2])
        found = gradient(first=False)
        with torch.no_grad():
            for weight, earlier in zip(weights, before, strict=True):
                weight.copy_(earlier)
        for optimiser in optimisers:
            optimiser.step()
        self.aligned_iterations += self.aligning
        zero = torch.zeros((), dtype=values.dtype)
        report = {name: found[name].detach() if name in found else zero for name in LOSSES}
        report["share"] = zero if self.pseudo_labels is None else self.pseudo_labels[1].to(values.dtype).mean()
        return report

    @torch.no_grad()
    def label(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's label for each target window (n,) and whether it is confident enough (n,)."""
        logits = self.pass_target(self.teacher, [target])
        if self.calibrate is not None:
            logits = self.calibrate(logits)
        confidences, labels = functional.softmax(logits, dim=1).max(dim=1)
        return labels, confidences >= self.thresholds[labels]

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
        early = first and settings.mcc_climbed_from_labels and self.epoch < settings.label_from
        with_mcc = settings.mcc and self.aligning and not early
        with_domain = settings.alignment and self.aligning and not first
        joined = target_features = None
        if settings.passes == "joint" and self.aligning:
            joined = encoder(torch.cat([source, target]))
            source_features, target_features = joined[: len(source)], joined[len(source) :]
        elif settings.doubled:
            source_features, labels = encoder(torch.cat([source, source])), torch.cat([labels, labels])
        else:
            source_features = encoder(source)
        found = {"supervised": functional.cross_entropy(head(source_features), labels)}
        asked = self.pseudo_labels is not None or with_mcc or (settings.passes == "shared" and with_domain)
        if target_features is None and asked:
            target_features = encoder(target)
        if self.pseudo_labels is not None:
            found["pseudo"] = pseudo_label_loss(head(target_features), *self.pseudo_labels)
        if with_mcc:
            found["mcc"] = mcc_loss(head(target_features))
        if with_domain:
            if settings.passes == "shared":
                joined = torch.cat([source_features, target_features])
            elif settings.passes == "separate":
                joined = encoder(torch.cat([source, target]))
            is_source = torch.cat([source.new_ones(len(source)), target.new_zeros(len(target))])
            # p of the reversal coefficient: counted from 0 or 1 at the first aligned iteration, up to 1 at the end
            steps = (settings.epochs - settings.align_from) * self.iterations_per_epoch
            progress = (self.aligned_iterations + settings.reversal_counts_from) / steps
            reversed_ = Reversal.apply(joined, 2 / (1 + math.exp(-10 * progress)) - 1)
            found["domain"] = functional.binary_cross_entropy_with_logits(self.domain(reversed_), is_source)
        return found
