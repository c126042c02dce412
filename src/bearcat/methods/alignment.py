"""Alignment: what makes source and target features alike, by an adversary, by a distance, or by statistics alone.

DANN (Ganin et al. 2016), CDAN (Long et al. 2018), MCD (Saito et al. 2018) and Wasserstein alignment (Shen et al. 2018)
have a module that the encoder works against, through a gradient reversal layer. MK-MMD (Long et al. 2015), JMMD (Long
et al. 2017), CORAL (Sun and Saenko 2016) and DeepJDOT (Damodaran et al. 2018) lower a distance. AdaBN (Li et al. 2016)
has no loss.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bearcat.methods.ingredient import Ingredient, View, choice, per_run
from bearcat.methods.selftraining import follow

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bearcat.training.state import TrainingState

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # bandwidths of the five kernels, in mean squared distances
PROBABILITY_BANDWIDTH = 1.68  # of JMMD's kernel on probabilities, the original's


@dataclass(frozen=True)
class Alignment(Ingredient):
    """A loss that compares the domains, with a coefficient that rises from 0 at p = 0 towards 1."""

    aligns = True
    weight: float = per_run(1.0)  # of the reversed gradient, or of the distance
    slope: float = 10.0

    def ramp(self, progress: float) -> float:
        """2/(1+exp(−slope·p)) − 1. (The paper's formula lacks the −1; docs/method.md.)"""
        return 2 / (1 + math.exp(-self.slope * progress)) - 1


@dataclass(frozen=True)
class Adversarial(Alignment):
    """DANN: a domain classifier behind a gradient reversal layer."""

    name = "alignment"
    stream = 21
    reduction: str = choice("mean", "sum of means")  # authors' code: over all windows of both domains; text: twice that

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        from bearcat.models.networks import DomainClassifier

        return DomainClassifier(runs, features, dropout)

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        classifier: Any = view.module
        features = losses.reverse_gradient(view.features, self.weight * view.ramp)
        logits = classifier(features, view.randomness)
        weight = None if view.shares is None else view.shares[1].gather(1, view.labels)
        return losses.domain(logits[:, : view.size], logits[:, view.size :], view.present, self.reduction, weight)


@dataclass(frozen=True)
class ConditionalAdversarial(Alignment):
    """CDAN: the classifier reads the outer product of probabilities and features; CDAN+E counts sure windows more."""

    name = "cdan"
    entropy: bool = False  # weights 1 + exp(−entropy), normalised in each domain

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:
        from bearcat.models.networks import DomainClassifier

        return DomainClassifier(runs, features * classes, dropout)

    def loss(self, view: View) -> Tensor:
        import torch

        from bearcat.methods import losses

        classifier: Any = view.module
        probabilities = view.logits.detach().softmax(dim=-1)  # the gradient goes by the features alone
        features = losses.reverse_gradient(view.features, self.weight * view.ramp)
        joint = (probabilities[..., None] * features[:, :, None]).flatten(2)  # (run, batch, class × feature)
        answers = classifier(joint, view.randomness)
        source, target = answers[:, : view.size], answers[:, view.size :]
        if not self.entropy:
            return losses.domain(source, target, view.present)
        each = torch.cat([torch.nn.functional.softplus(-source), torch.nn.functional.softplus(target)], dim=1)
        sure = 1 + torch.exp(-torch.special.entr(probabilities).sum(dim=-1))
        sure = sure if view.present is None else sure * view.present
        domains = slice(view.size), slice(view.size, None)
        parts = ((sure * each)[:, part].sum(dim=1) / sure[:, part].sum(dim=1) for part in domains)
        return sum(parts, torch.zeros_like(each[:, 0])) / 2


@dataclass(frozen=True)
class ClassifierDiscrepancy(Alignment):
    """MCD: a second head learns the source too; both disagree on the target as far as they can, the encoder undoes it.

    The original takes turns: heads, then encoder four times. Here one step does both, by a gradient reversal layer.
    """

    name = "mcd"

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        from bearcat.models.stacked import StackedDense

        return StackedDense(runs, features, classes)

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        second: Any = view.module
        features = losses.reverse_gradient(view.target_features, self.weight * view.ramp)
        gap = (view.head(features).softmax(dim=-1) - second(features).softmax(dim=-1)).abs().mean(dim=-1)
        supervised = losses.supervised(second(view.source_features), view.labels, view.source_present)
        return supervised - losses.masked_mean(gap, view.target_present)


@dataclass(frozen=True)
class Wasserstein(Alignment):
    """A critic whose mean answers on both domains differ as much as its slope of about 1 allows.

    The critic takes one step with each of the encoder's, through a gradient reversal layer, instead of five before it.
    """

    name = "wasserstein"
    # Of the reversed gradient. The critic's answers are unbounded: 1 is too much (LOG.md).
    weight: float = per_run(0.1)
    penalty: float = per_run(10.0)

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        from bearcat.models.networks import DomainClassifier

        return DomainClassifier(runs, features, 0.0)  # dropout would change the slope between two passes

    def loss(self, view: View) -> Tensor:
        import torch

        from bearcat.methods import losses

        critic: Any = view.module
        answers = critic(losses.reverse_gradient(view.features, self.weight * view.ramp), None)
        source = losses.masked_mean(answers[:, : view.size], view.source_present)
        target = losses.masked_mean(answers[:, view.size :], view.target_present)
        with torch.no_grad():  # a random point between each source window and the target window of its place
            share = view.randomness.uniform(4, view.size).to(answers.dtype)[..., None]
            between = share * view.source_features + (1 - share) * view.target_features
        between.requires_grad_()
        both = None if view.present is None else view.present[:, : view.size] & view.present[:, view.size :]
        return target - source + self.penalty * losses.gradient_penalty(between, critic(between, None), both)


@dataclass(frozen=True)
class KernelMatching(Alignment):
    """MK-MMD: the mean discrepancy of features under five Gaussian kernels."""

    name = "mk-mmd"

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        kernel = self.kernel(view)
        return self.weight * view.ramp * losses.mean_discrepancy(kernel, view.size, view.present)

    def kernel(self, view: View) -> Tensor:
        """Of all pairs of windows, (run, batch, batch)."""
        from bearcat.methods import losses

        return losses.gaussian_kernels(view.features, view.present, FACTORS)


@dataclass(frozen=True)
class JointMatching(KernelMatching):
    """JMMD: the same with the product of the kernels on features and a kernel on probabilities."""

    name = "jmmd"

    def kernel(self, view: View) -> Tensor:
        from bearcat.methods import losses

        probabilities = view.logits.softmax(dim=-1)
        of_probabilities = losses.gaussian_kernels(probabilities, view.present, (1.0,), PROBABILITY_BANDWIDTH)
        return super().kernel(view) * of_probabilities


@dataclass(frozen=True)
class CovarianceMatching(Alignment):
    """CORAL: ‖C_s − C_t‖² / 4d², C the covariance of d features; or of logits, as the UDTL benchmark's code does it."""

    name = "coral"
    layer: str = choice("features", "logits")

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        values = view.features if self.layer == "features" else view.logits
        source = losses.covariance(values[:, : view.size], view.source_present)
        gap = source - losses.covariance(values[:, view.size :], view.target_present)
        return self.weight * view.ramp * (gap.square().sum(dim=(1, 2)) / (4 * gap.shape[1] ** 2))


@dataclass(frozen=True)
class Transport(Alignment):
    """DeepJDOT: the cost of moving source windows with their labels to target windows with their predictions.

    The plan is that of Sinkhorn's iterations, fixed in number; the original solves the problem without entropy.
    """

    name = "transport"
    features: float = per_run(0.001)  # of the squared distance of features; 0.001 is the original's for digits
    labels: float = per_run(1.0)  # of the cross-entropy of the source's label and the target's prediction
    smoothing: float = 0.05  # of the entropy, in mean costs
    rounds: int = 30

    def loss(self, view: View) -> Tensor:
        from bearcat.methods import losses

        gap = losses.squared_distances(view.source_features, view.target_features)
        surprise = -view.target_logits.log_softmax(dim=-1).mT  # (run, class, target window)
        surprise = surprise.gather(1, view.labels[..., None].expand_as(gap))
        cost = (self.features * gap.movedim(0, -1) + self.labels * surprise.movedim(0, -1)).movedim(-1, 0)
        source = losses.weights(view.source_logits, view.source_present)
        target = losses.weights(view.target_logits, view.target_present)
        plan = losses.transport_plan(cost.detach(), source, target, self.smoothing, self.rounds)
        return self.weight * view.ramp * (plan * cost).sum(dim=(1, 2))


@dataclass(frozen=True)
class TargetStatistics(Ingredient):
    """AdaBN: no loss; the reported network is the student with running statistics of target windows."""

    name = "adabn"
    uses_target = False  # not in a step

    def end_epoch(self, state: TrainingState) -> None:
        """Copies the student's weights and passes the target through the copy, as many batches as an epoch has."""
        import torch

        from bearcat.training.batches import gather

        if state.teacher is None:
            state.teacher = copy.deepcopy(state.student).requires_grad_(False)
        follow(state.teacher, state.student, momentum=0.0, statistics=False)
        batches = state.batches
        count = torch.tensor(batches.target_windows, device=batches.target_train.device)[:, None]
        place = torch.arange(batches.size, device=count.device)
        with torch.no_grad():
            for step in range(batches.iterations):  # full batches: where the windows end, they begin again
                first = (state.epoch * batches.iterations + step) * batches.size
                state.teacher(gather(batches.target_train, (place + first) % count), True)
