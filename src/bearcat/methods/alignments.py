"""Ways to make source and target features alike, and other losses on the target's predictions.

CDAN (Long et al. 2018), MCD (Saito et al. 2018) and Wasserstein alignment (Shen et al. 2018) have a module that the
encoder works against, through a gradient reversal layer; MK-MMD (Long et al. 2015), JMMD (Long et al. 2017), CORAL (Sun
and Saenko 2016) and DeepJDOT (Damodaran et al. 2018) lower a distance; AdaBN (Li et al. 2016) replaces statistics.
Class balance and triplets are of the systems in the paper's Table 1. DANN is the paper's own (cat/losses.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from bearcat.cat import losses, networks, teacher
from bearcat.cat.ingredient import AfterEpoch, Loss, View
from bearcat.cat.losses import Alignment
from bearcat.fast.stacked import StackedDense

if TYPE_CHECKING:
    from bearcat.cat.state import TrainingState

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # bandwidths of the five kernels, in mean squared distances
PROBABILITY_BANDWIDTH = 1.68  # of JMMD's kernel on probabilities, the original's


@dataclass(frozen=True)
class ConditionalAdversarial(Alignment):
    """CDAN: the classifier reads the outer product of probabilities and features; CDAN+E counts sure windows more."""

    name = "cdan"
    entropy: bool = False  # weights 1 + exp(−entropy), normalised in each domain

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:
        return networks.DomainClassifier(runs, features * classes, dropout)

    def loss(self, view: View) -> Tensor:
        probabilities = view.logits.detach().softmax(dim=1)  # the gradient goes by the features alone
        features = losses.reverse_gradient(view.features, self.weight * view.ramp)
        answers = view.module((probabilities[:, :, None] * features[:, None]).flatten(1))  # of (batch, class × feature)
        if not self.entropy:
            return losses.domain(answers, view.size).mean()
        # As in the original, the reversed gradient goes by the weights too, but not by their sums.
        entropy = torch.special.entr(view.logits.softmax(dim=1)).sum(dim=1)
        sure = 1 + torch.exp(-losses.reverse_gradient(entropy, self.weight * view.ramp))
        weighted = sure * losses.domain(answers, view.size)
        (source, target), (of_source, of_target) = (part.tensor_split([view.size]) for part in (weighted, sure))
        return (source.sum() / of_source.sum().detach() + target.sum() / of_target.sum().detach()) / 2


@dataclass(frozen=True)
class ClassifierDiscrepancy(Alignment):
    """MCD: a second head learns the source too; both disagree on the target as far as they can, the encoder undoes it
    (in one step, by a gradient reversal layer; the original takes turns: heads, then encoder four times).
    """

    name = "mcd"

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return StackedDense(runs, features, classes)

    def loss(self, view: View) -> Tensor:
        features = losses.reverse_gradient(view.target_features, self.weight * view.ramp)
        gap = (view.head(features).softmax(dim=1) - view.module(features).softmax(dim=1)).abs().mean()
        return losses.cross_entropy(view.module(view.source_features), view.labels).mean() - gap


@dataclass(frozen=True)
class Wasserstein(Alignment):
    """A critic whose mean answers on both domains differ as much as its slope of about 1 allows. It takes one step with
    each of the encoder's, through a gradient reversal layer, instead of five before it.
    """

    name = "wasserstein"
    # Of the reversed gradient. The critic's answers are unbounded: 1 is too much (LOG.md).
    weight: float = 0.1
    penalty: float = 10.0

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return networks.DomainClassifier(runs, features, 0.0)  # dropout would change the slope between two passes

    def loss(self, view: View) -> Tensor:
        answers = view.module(losses.reverse_gradient(view.features, self.weight * view.ramp))
        pairs = min(view.size, len(answers) - view.size)
        with torch.no_grad():  # a random point between each source window and the target window of its place
            share = view.uniform(4, pairs).to(answers.dtype)[:, None]
            between = share * view.source_features[:pairs] + (1 - share) * view.target_features[:pairs]
        slope = (view.module.gradient(between).square().sum(dim=1) + 1e-12).sqrt()
        return answers[view.size :].mean() - answers[: view.size].mean() + self.penalty * (slope - 1).square().mean()


@dataclass(frozen=True)
class KernelMatching(Alignment):
    """MK-MMD: the squared mean discrepancy of features under five Gaussian kernels, which is the mean of the kernel
    within both domains less twice that across.
    """

    name = "mk-mmd"

    def loss(self, view: View) -> Tensor:
        kernel, size = self.kernel(view), view.size
        gap = kernel[:size, :size].mean() + kernel[size:, size:].mean() - 2 * kernel[:size, size:].mean()
        return self.weight * view.ramp * gap

    def kernel(self, view: View) -> Tensor:
        """Of all pairs of windows, (batch, batch)."""
        squared, count = squared_distances(view.features, view.features), len(view.features)
        width = squared.detach().sum().clamp(min=1e-12) / (count * (count - 1))  # the mean of pairs of two windows
        return torch.stack([torch.exp(-squared / (factor * width)) for factor in FACTORS]).sum(dim=0)


@dataclass(frozen=True)
class JointMatching(KernelMatching):
    """JMMD: the same with the product of the kernels on features and a kernel on probabilities."""

    name = "jmmd"

    def kernel(self, view: View) -> Tensor:
        probabilities = view.logits.softmax(dim=1)
        gap = squared_distances(probabilities, probabilities)
        return super().kernel(view) * torch.exp(-gap / PROBABILITY_BANDWIDTH)


@dataclass(frozen=True)
class CovarianceMatching(Alignment):
    """CORAL: ‖C_s − C_t‖² / 4d², C the covariance of d logits, as in the original."""

    name = "coral"

    def loss(self, view: View) -> Tensor:
        gap = covariance(view.source_logits) - covariance(view.target_logits)
        return self.weight * view.ramp * gap.square().sum() / (4 * len(gap) ** 2)


@dataclass(frozen=True)
class Transport(Alignment):
    """DeepJDOT: the cost of moving source windows with their labels to target windows with their predictions, by a
    fixed number of Sinkhorn's iterations; the original solves the problem without entropy.
    """

    name = "transport"
    features: float = 0.001  # of the squared distance of features; 0.001 is the original's for digits
    labels: float = 1.0  # of the cross-entropy of the source's label and the target's prediction
    smoothing: float = 0.05  # of the entropy, in mean costs
    rounds: int = 30

    def loss(self, view: View) -> Tensor:
        gap = squared_distances(view.source_features, view.target_features)
        surprise = -view.target_logits.log_softmax(dim=1).T[view.labels]  # (source window, target window)
        cost = self.features * gap + self.labels * surprise
        plan = transport_plan(cost.detach(), self.smoothing, self.rounds)
        return self.weight * view.ramp * (plan * cost).sum()


@dataclass(frozen=True)
class Uniformity(Loss):
    """Class balance (French et al. 2018), of PCG-CNN (Wu et al. 2020): binary cross-entropy of the batch's mean
    probabilities of the target and the uniform distribution.
    """

    name = "uniformity"
    weight: float = 0.005
    scaled: bool = False  # by the share of the batch whose pseudo-labels are used (French et al. 2018)

    def loss(self, view: View) -> Tensor:
        mean = view.target_logits.softmax(dim=1).mean(dim=0).clamp(1e-6, 1 - 1e-6)
        uniform = 1 / len(mean)
        loss = -self.weight * (uniform * mean.log() + (1 - uniform) * (-mean).log1p()).mean()
        if self.scaled and view.selected is not None:
            return loss * view.selected.to(loss.dtype).mean()
        return 0 * loss if self.scaled else loss  # before T_PL no label is used


@dataclass(frozen=True)
class Triplet(Loss):
    """Batch-hard triplets (Hermans et al. 2017) of source windows and of target windows whose pseudo-label is used
    (Wang et al. 2022): the farthest window of the same label should be nearer than the nearest one of another, by the
    margin. Features are brought to length 1: with their own lengths the loss was lowered by shrinking them, until all
    were 0 and nothing was learnt (LOG.md).
    """

    name = "triplet"
    phase = "labels"
    weight: float = 1.0
    margin: float = 1.0

    def loss(self, view: View) -> Tensor:
        if view.pseudo_labels is None or view.selected is None:
            raise RuntimeError("the triplet loss needs pseudo-labels; put it behind self-training")
        labels = torch.cat([view.labels, view.pseudo_labels])
        counts = torch.cat([torch.ones_like(view.labels, dtype=torch.bool), view.selected])
        features = functional.normalize(view.features, dim=1)
        distance = (squared_distances(features, features) + 1e-12).sqrt()
        pairs, same = counts[:, None] & counts, labels[:, None] == labels
        itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        alike, different = pairs & same & ~itself, pairs & ~same
        farthest = distance.masked_fill(~alike, 0).amax(dim=1)
        nearest = distance.masked_fill(~different, torch.inf).amin(dim=1)
        anchors = alike.any(dim=1) & different.any(dim=1)
        gaps = torch.where(anchors, (farthest - nearest + self.margin).clamp(min=0), 0)
        return self.weight * (gaps.sum() / anchors.sum().clamp(min=1))


@dataclass(frozen=True)
class TargetStatistics(AfterEpoch):
    """AdaBN: the reported network is the student with running statistics of target windows."""

    name = "adabn"

    def end_epoch(self, state: TrainingState) -> None:
        """Copies the student's weights and passes the target through the copy, as many batches as an epoch has."""
        state.teacher = state.teacher or teacher.copy_of(state.student)
        teacher.ema_update(state.teacher, state.student, 0.0)
        windows, size, steps = state.batches.target_train, state.batches.size, state.batches.iterations
        positions = torch.arange(size, device=windows.device)
        with torch.no_grad():
            for step in range(state.epoch * steps, (state.epoch + 1) * steps):
                # Full batches: where the windows end, they begin again.
                state.teacher(windows[:, (positions + step * size) % windows.shape[1]], True)


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Of all pairs: (n, feature), (m, feature) → (n, m)."""
    middle = torch.cat([first, second]).mean(dim=0).detach()  # small numbers keep their digits
    first, second = first - middle, second - middle
    squares = first.square().sum(dim=1)[:, None] + second.square().sum(dim=1)
    return (squares - 2 * first @ second.T).clamp(min=0)


def covariance(features: Tensor) -> Tensor:
    """Unbiased: (batch, feature) → (feature, feature)."""
    centred = features - features.mean(dim=0)
    return centred.T @ centred / max(len(features) - 1, 1)


def transport_plan(cost: Tensor, smoothing: float, rounds: int) -> Tensor:
    """The plan (n, m) that moves n windows to m windows at least cost plus entropy, which counts `smoothing` times the
    mean cost: Sinkhorn's iterations on logarithms.
    """
    kernel = -cost / (smoothing * cost.mean().clamp(min=1e-12))
    row, column = -math.log(cost.shape[0]), -math.log(cost.shape[1])
    left = torch.zeros_like(cost[:, 0])
    for _ in range(rounds):
        right = column - (kernel + left[:, None]).logsumexp(dim=0)
        left = row - (kernel + right).logsumexp(dim=1)
    return (kernel + left[:, None] + right).exp()
