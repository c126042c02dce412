"""The whole training for one model, the plain way: `nn.Module`s and Python loops, nothing stacked, no dropout.

Written from the paper and from a description of the published code, not from ours: domain-adversarial training (Ganin
et al. 2016), minimum class confusion (Jin et al. 2020), smooth domain-adversarial training (Rangwani et al. 2022), mean
teacher (Tarvainen and Valpola 2017), FlexMatch thresholds (Zhang et al. 2021), temperature scaling (Guo et al. 2017).

    twin = Twin(Settings("CAT*-Temperature", published=True), data, student_state, domain_state, iterations_per_epoch=8)
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

from bearcat.data.tasks import TrainingData

Calibration = Callable[[Tensor], Tensor]  # logits (n, classes) -> logits (n, classes)
State = dict[str, Tensor]
LOSSES = ("supervised", "pseudo", "mcc", "domain")
WIDTH = 1024  # of the domain classifier's layers
RADIUS, MOMENTUM = 0.05, 0.999  # of SAM, of the teacher
RATE, WEIGHT_DECAY = 1e-3, 1e-5  # ℓ2 in the gradient


@dataclass(frozen=True)
class Settings:
    """A method of the paper by its name, as we do it or to the letter of the published code (docs/method.md).

    Epochs count from 0; "from" means from the start of that epoch on.
    """

    method: str
    published: bool = False
    epochs: int = 300
    drops: tuple[int, ...] = (150, 250)
    tau: float = 0.9  # of confidence
    align_from: int = 50  # T_DA
    label_from: int = 50  # T_PL; 100 for frequency input
    calibrate_from: int = 150  # T_cal
    sgd_steps: int = 5000  # of the published vector and matrix scaling
    fit: Callable[[Twin], Calibration] | None = None  # our calibrator, where it is not the published one


class Encoder(nn.Module):
    """Windows (n, channels, length) to features (n, 256)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [nn.Conv1d(channels, 16, 15), nn.Conv1d(16, 32, 3), nn.Conv1d(32, 64, 3), nn.Conv1d(64, 128, 3)]
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in (16, 32, 64, 128))
        self.dense = nn.ModuleList([nn.Linear(512, 256), nn.Linear(256, 256)])

    def forward(self, values: Tensor) -> Tensor:
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            values = functional.relu(norm(convolution(values)))
            if number == 1:
                values = functional.max_pool1d(values, kernel_size=2, stride=2)
        values = functional.adaptive_max_pool1d(values, 4).flatten(start_dim=1)  # channel by channel: 128 × 4
        for dense in self.dense:
            values = functional.relu(dense(values))
        return values


class DomainClassifier(nn.Module):
    """Features (n, 256) to one logit each (n,): positive for source."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.ModuleList([nn.Linear(256, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)])

    def forward(self, values: Tensor) -> Tensor:
        for dense in self.dense[:2]:
            values = functional.relu(dense(values))
        return self.dense[2](values).squeeze(1)


def reverse_gradient(values: Tensor, coefficient: float) -> Tensor:
    """The identity forwards; −coefficient times the gradient backwards."""
    values = values.clone()
    values.register_hook(lambda gradient: -coefficient * gradient)
    return values


def make_student(classes: int, channels: int) -> nn.ModuleDict:
    return nn.ModuleDict({"encoder": Encoder(channels), "head": nn.Linear(256, classes)})


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
    confidences, labels = probabilities.max(dim=1)
    counts = torch.bincount(labels[confidences >= tau], minlength=probabilities.shape[1])
    beta = counts.to(probabilities) / counts.max().clamp(min=1)
    return tau * beta / (2 - beta)


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


class Twin:
    """One run: student, domain classifier, teacher, and their optimisers, driven an epoch and a step at a time.

    There are two published loops. The one without a teacher joins both domains from T_DA on, and begins every epoch,
    also those before T_DA, with a pass of the target through the student in training mode. The one with a teacher has
    it from the first epoch on, untrained, and begins every epoch with a pass of the target through it, which counts; it
    follows the student from T_DA on and is overwritten at T_PL, after it has counted.
    """

    def __init__(
        self, settings: Settings, data: TrainingData, student_state: State, domain_state: State | None,
        iterations_per_epoch: int,
    ) -> None:  # fmt: skip
        self.settings, classes = settings, len(data.classes)
        self.source_train, self.source_test = (
            (torch.from_numpy(part.values), torch.from_numpy(part.labels))
            for part in (data.source_train, data.source_test)
        )
        self.target_train = values = torch.from_numpy(data.target_train.values)
        name, _, calibrator = settings.method.partition("-")
        self.calibrator = calibrator if name.startswith("CAT") else ""
        self.mcc, self.sam = ("*" in name or part in name for part in ("MCC", "SDAT"))
        self.self_training, self.adversarial = "AT" in name, settings.method != "source-only"
        self.student = make_student(classes, values.shape[1])
        self.student.load_state_dict(student_state)
        self.domain = DomainClassifier()
        if domain_state is not None:
            self.domain.load_state_dict(domain_state)
        self.optimisers = [
            torch.optim.Adam(network.to(values.dtype).parameters(), RATE, weight_decay=WEIGHT_DECAY)
            for network in (self.student, self.domain)
        ]
        self.teacher: nn.ModuleDict | None = None
        if self.self_training and settings.published:
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.thresholds = torch.full((classes,), settings.tau, dtype=values.dtype)
        self.calibrate: Calibration | None = None
        self.pseudo_labels: tuple[Tensor, Tensor] | None = None  # of the last step: labels (n,), selected (n,)
        self.iterations_per_epoch = iterations_per_epoch
        self.aligned_iterations = 0  # taken in epochs from align_from on

    def start_epoch(self, epoch: int, counted: Iterable[Tensor]) -> None:
        """Learning rate, a teacher if its time has come, its calibration, then its thresholds, in this order.

        `counted` are the target batches, as indices, of the published code's passes.
        """
        settings, self.epoch = self.settings, epoch
        self.aligning = epoch >= settings.align_from
        self.labelling = self.self_training and epoch >= settings.label_from
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = RATE * 0.1 ** sum(epoch >= drop for drop in settings.drops)
        batches = [self.target_train[index] for index in counted]
        if settings.published:
            logits = self.pass_target(self.teacher or self.student, batches)
            if self.teacher is not None:
                self.count(logits)
            if self.teacher is not None and epoch == settings.label_from:
                self.move_teacher(0.0)  # its statistics stay its own
        elif self.labelling:
            self.teacher = self.teacher or copy.deepcopy(self.student).requires_grad_(False)
            self.fit_calibration()
            self.count(self.predict(self.teacher, self.target_train))

    def count(self, logits: Tensor) -> None:
        if self.settings.method != "AT-fixed":
            self.thresholds = class_thresholds(functional.softmax(logits, dim=1), self.settings.tau)

    def end_epoch(self) -> None:
        """The published code fits the calibration now, and uses it from the next epoch on."""
        if self.settings.published:
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
        settings, (values, labels) = self.settings, self.source_test
        if not self.calibrator or not self.labelling or self.epoch < settings.calibrate_from:
            return
        logits = self.predict(self.teacher, values)
        if settings.fit is not None:
            self.calibrate = settings.fit(self)
        elif self.calibrator in ("Vector", "Matrix"):
            self.calibrate = published_scaling(self.calibrator, logits, labels, settings.sgd_steps)
        else:
            weight = None
            if self.calibrator == "CPCS":
                parts = (self.source_train[0], self.target_train, values)
                weight = density_ratio(*(self.predict(self.teacher, part, features=True) for part in parts))
            temperature = published_temperature(logits, labels, weight)
            self.calibrate = lambda values: values / temperature

    def step(self, source_index: Tensor, target_index: Tensor) -> dict[str, Tensor]:
        """One iteration on the windows of these numbers; the losses (detached, 0 where off) and the share of
        pseudo-labels selected. With SAM they are the losses at the climbed weights, whose gradient the step uses.
        """
        settings, (values, labels) = self.settings, self.source_train
        batch = values[source_index], labels[source_index], self.target_train[target_index]
        if self.teacher is not None and (self.labelling or self.aligning):
            self.move_teacher(MOMENTUM)
        self.pseudo_labels = self.label(batch[2]) if self.labelling else None
        self.student.train()
        optimisers = self.optimisers if self.aligning and self.adversarial else self.optimisers[:1]

        def gradient(first: bool) -> dict[str, Tensor]:
            for optimiser in optimisers:
                optimiser.zero_grad()
            losses = self.losses(*batch, first)
            sum(losses.values()).backward()
            return losses

        weights = list(self.student.parameters())
        before = [weight.detach().clone() for weight in weights]
        if self.sam:  # the gradient is taken where the task loss is higher
            gradient(first=True)
            with torch.no_grad():
                norm = torch.sqrt(torch.stack([(weight.grad**2).sum() for weight in weights]).sum())
                for weight in weights:
                    weight.add_(RADIUS * weight.grad / (norm + 1e-12))
            if settings.published and self.labelling:
                self.pseudo_labels = self.label(batch[2])
        found = gradient(first=False)
        with torch.no_grad():
            for weight, earlier in zip(weights, before, strict=True):
                weight.copy_(earlier)
        for optimiser in optimisers:
            optimiser.step()
        self.aligned_iterations += self.aligning
        share = torch.zeros(()) if self.pseudo_labels is None else self.pseudo_labels[1].double().mean()
        return {name: found.get(name, torch.zeros(())).detach() for name in LOSSES} | {"share": share}

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

        `first` means SAM's first pass, whose loss is climbed: it has no domain loss, and with the published teacher MCC
        from T_PL on only.

        Ours: source, then target; the domain loss reads the features of those two passes. The target goes through only
        if a loss reads it. Published with a teacher: the source twice in one batch, for the supervised loss; target,
        for pseudo-labels and MCC; source and target joined, source first, for the domain loss. Without one: from T_DA
        on source and target joined, once, and every loss reads that.
        """
        settings, encoder, head = self.settings, self.student["encoder"], self.student["head"]
        separate = settings.published and self.self_training
        late = first and separate and self.epoch < settings.label_from
        with_mcc = self.mcc and self.aligning and not late
        with_domain = self.adversarial and self.aligning and not first
        joined = target_features = None
        if settings.published and not self.self_training and self.aligning:
            joined = encoder(torch.cat([source, target]))
            source_features, target_features = joined[: len(source)], joined[len(source) :]
        elif separate:
            source_features, labels = encoder(torch.cat([source, source])), torch.cat([labels, labels])
        else:
            source_features = encoder(source)
        found = {"supervised": functional.cross_entropy(head(source_features), labels)}
        asked = self.pseudo_labels is not None or with_mcc or (with_domain and not separate)
        if target_features is None and asked:
            target_features = encoder(target)
        if self.pseudo_labels is not None:
            found["pseudo"] = pseudo_label_loss(head(target_features), *self.pseudo_labels)
        if with_mcc:
            found["mcc"] = mcc_loss(head(target_features))
        if with_domain:
            if separate:
                joined = encoder(torch.cat([source, target]))
            elif joined is None:
                joined = torch.cat([source_features, target_features])
            is_source = torch.cat([source.new_ones(len(source)), target.new_zeros(len(target))])
            # p of the reversal coefficient rises to 1 at the end; the published code counts its iterations from 1
            steps = (settings.epochs - settings.align_from) * self.iterations_per_epoch
            progress = (self.aligned_iterations + settings.published) / steps
            reversed_ = reverse_gradient(joined, 2 / (1 + math.exp(-10 * progress)) - 1)
            found["domain"] = functional.binary_cross_entropy_with_logits(self.domain(reversed_), is_source)
        return found
