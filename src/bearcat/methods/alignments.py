"""Losses, and SDAT, which says where their gradient is taken.

Alignment makes source and target features alike. DANN (Ganin et al. 2016), CDAN (Long et al. 2018), MCD (Saito et al.
2018) and Wasserstein alignment (Shen et al. 2018) have a module that the encoder works against, through a gradient
reversal layer; MK-MMD (Long et al. 2015), JMMD (Long et al. 2017), CORAL (Sun and Saenko 2016) and DeepJDOT (Damodaran
et al. 2018) lower a distance. Other losses read the target's predictions: minimum class confusion (Jin et al. 2020),
class balance, triplets. Self-training, which also has a teacher, is in cat/teacher.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bearcat.cat.ingredient import Deferred, Loss, Perturbation, View, choice

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from bearcat.cat import networks
    from bearcat.cat.recipes import Schedule
    from bearcat.fast import stacked
    from bearcat.methods import formulas
else:
    torch, formulas = Deferred("torch"), Deferred("bearcat.methods.formulas")
    networks, stacked = Deferred("bearcat.cat.networks"), Deferred("bearcat.fast.stacked")

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # bandwidths of the five kernels, in mean squared distances
PROBABILITY_BANDWIDTH = 1.68  # of JMMD's kernel on probabilities, the original's


@dataclass(frozen=True)
class Alignment(Loss):
    """A loss that compares the domains, with a coefficient that rises from 0 at p = 0 towards 1."""

    aligns = True
    weight: float = 1.0  # of the reversed gradient, or of the distance
    slope: float = 10.0
    # Authors' code: domain classifiers count iterations from 1, distances count epochs.
    progress: str = choice("iterations", "iterations from 1", "epochs")

    def ramp(self, progress: float) -> float:
        """2/(1+exp(−slope·p)) − 1. (The paper's formula lacks the −1; docs/method.md.)"""
        return 2 / (1 + math.exp(-self.slope * progress)) - 1

    def ramps(self, schedule: Schedule, epoch: int, iterations: int) -> list[float]:
        """As `progress` counts."""
        if self.progress == "iterations":
            return super().ramps(schedule, epoch, iterations)
        start = self.start(schedule)
        done, each = epoch - start, int(self.progress == "iterations from 1") / iterations
        return [self.ramp((done + (step + 1) * each) / (schedule.epochs - start)) for step in range(iterations)]


@dataclass(frozen=True)
class Adversarial(Alignment):
    """DANN: a domain classifier behind a gradient reversal layer.

    >>> RECIPES["DANN"].ingredients == (Adversarial(weight=1.0),)
    True
    """

    name = "alignment"
    stream = 21
    reduction: str = choice("mean", "sum of means")  # authors' code: over all windows of both domains; text: twice that

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return networks.DomainClassifier(runs, features, dropout)

    def loss(self, view: View) -> Tensor:
        classifier: Any = view.module
        features = formulas.reverse_gradient(view.features, self.weight * view.ramp)
        logits = classifier(features, view.randomness)
        return formulas.domain(logits[:, : view.size], logits[:, view.size :], view.present, self.reduction)


@dataclass(frozen=True)
class ConditionalAdversarial(Alignment):
    """CDAN: the classifier reads the outer product of probabilities and features; CDAN+E counts sure windows more.

    >>> RECIPES["CDAN+E"].ingredients == (ConditionalAdversarial(entropy=True),)
    True
    """

    name = "cdan"
    entropy: bool = False  # weights 1 + exp(−entropy), normalised in each domain

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:
        return networks.DomainClassifier(runs, features * classes, dropout)

    def loss(self, view: View) -> Tensor:
        classifier: Any = view.module
        probabilities = view.logits.detach().softmax(dim=-1)  # the gradient goes by the features alone
        features = formulas.reverse_gradient(view.features, self.weight * view.ramp)
        joint = (probabilities[..., None] * features[:, :, None]).flatten(2)  # (run, batch, class × feature)
        answers = classifier(joint, view.randomness)
        source, target = answers[:, : view.size], answers[:, view.size :]
        if not self.entropy:
            return formulas.domain(source, target, view.present)
        each = torch.cat([torch.nn.functional.softplus(-source), torch.nn.functional.softplus(target)], dim=1)
        # As in the original, the reversed gradient goes by the weights too, but not by their sums.
        entropy = torch.special.entr(view.logits.softmax(dim=-1)).sum(dim=-1, keepdim=True)
        sure = 1 + torch.exp(-formulas.reverse_gradient(entropy, self.weight * view.ramp)[..., 0])
        sure = sure if view.present is None else sure * view.present
        domains = slice(view.size), slice(view.size, None)
        parts = ((sure * each)[:, part].sum(dim=1) / sure[:, part].sum(dim=1).detach() for part in domains)
        return sum(parts, torch.zeros_like(each[:, 0])) / 2


@dataclass(frozen=True)
class ClassifierDiscrepancy(Alignment):
    """MCD: a second head learns the source too; both disagree on the target as far as they can, the encoder undoes it
    (in one step, by a gradient reversal layer; the original takes turns: heads, then encoder four times).

    >>> Recipe((ClassifierDiscrepancy(weight=0.5),)).adapts
    True
    """

    name = "mcd"

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return stacked.StackedDense(runs, features, classes)

    def loss(self, view: View) -> Tensor:
        second: Any = view.module
        features = formulas.reverse_gradient(view.target_features, self.weight * view.ramp)
        gap = (view.head(features).softmax(dim=-1) - second(features).softmax(dim=-1)).abs().mean(dim=-1)
        supervised = formulas.supervised(second(view.source_features), view.labels, view.source_present)
        return supervised - formulas.masked_mean(gap, view.target_present)


@dataclass(frozen=True)
class Wasserstein(Alignment):
    """A critic whose mean answers on both domains differ as much as its slope of about 1 allows. It takes one step with
    each of the encoder's, through a gradient reversal layer, instead of five before it.

    >>> Wasserstein().weight, Wasserstein().penalty
    (0.1, 10.0)
    """

    name = "wasserstein"
    # Of the reversed gradient. The critic's answers are unbounded: 1 is too much (LOG.md).
    weight: float = 0.1
    penalty: float = 10.0

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return networks.DomainClassifier(runs, features, 0.0)  # dropout would change the slope between two passes

    def loss(self, view: View) -> Tensor:
        critic: Any = view.module
        answers = critic(formulas.reverse_gradient(view.features, self.weight * view.ramp), None)
        source = formulas.masked_mean(answers[:, : view.size], view.source_present)
        target = formulas.masked_mean(answers[:, view.size :], view.target_present)
        with torch.no_grad():  # a random point between each source window and the target window of its place
            share = view.randomness.uniform(4, view.size).to(answers.dtype)[..., None]
            between = share * view.source_features + (1 - share) * view.target_features
        between.requires_grad_()
        both = None if view.present is None else view.present[:, : view.size] & view.present[:, view.size :]
        return target - source + self.penalty * formulas.gradient_penalty(between, critic(between, None), both)


@dataclass(frozen=True)
class KernelMatching(Alignment):
    """MK-MMD: the mean discrepancy of features under five Gaussian kernels.

    >>> RECIPES["MK-MMD"].change("mk-mmd", weight=0.3).find(KernelMatching).weight
    0.3
    """

    name = "mk-mmd"

    def loss(self, view: View) -> Tensor:
        kernel = self.kernel(view)
        return self.weight * view.ramp * formulas.mean_discrepancy(kernel, view.size, view.present)

    def kernel(self, view: View) -> Tensor:
        """Of all pairs of windows, (run, batch, batch)."""
        return formulas.gaussian_kernels(view.features, view.present, FACTORS)


@dataclass(frozen=True)
class JointMatching(KernelMatching):
    """JMMD: the same with the product of the kernels on features and a kernel on probabilities.

    >>> RECIPES["JMMD"].ingredients == (JointMatching(),)
    True
    """

    name = "jmmd"

    def kernel(self, view: View) -> Tensor:
        probabilities = view.logits.softmax(dim=-1)
        of_probabilities = formulas.gaussian_kernels(probabilities, view.present, (1.0,), PROBABILITY_BANDWIDTH)
        return super().kernel(view) * of_probabilities


@dataclass(frozen=True)
class CovarianceMatching(Alignment):
    """CORAL: ‖C_s − C_t‖² / 4d², C the covariance of d logits, as in the original.

    >>> RECIPES["CORAL"].ingredients == (CovarianceMatching(),)
    True
    """

    name = "coral"

    def loss(self, view: View) -> Tensor:
        source = formulas.covariance(view.source_logits, view.source_present)
        gap = source - formulas.covariance(view.target_logits, view.target_present)
        return self.weight * view.ramp * (gap.square().sum(dim=(1, 2)) / (4 * gap.shape[1] ** 2))


@dataclass(frozen=True)
class Transport(Alignment):
    """DeepJDOT: the cost of moving source windows with their labels to target windows with their predictions, by a
    fixed number of Sinkhorn's iterations; the original solves the problem without entropy.

    >>> Recipe((Transport(features=0.01, rounds=50),)).adapts
    True
    """

    name = "transport"
    features: float = 0.001  # of the squared distance of features; 0.001 is the original's for digits
    labels: float = 1.0  # of the cross-entropy of the source's label and the target's prediction
    smoothing: float = 0.05  # of the entropy, in mean costs
    rounds: int = 30

    def loss(self, view: View) -> Tensor:
        gap = formulas.squared_distances(view.source_features, view.target_features)
        surprise = -view.target_logits.log_softmax(dim=-1).mT  # (run, class, target window)
        surprise = surprise.gather(1, view.labels[..., None].expand_as(gap))
        cost = self.features * gap + self.labels * surprise
        source = formulas.weights(view.source_logits, view.source_present)
        target = formulas.weights(view.target_logits, view.target_present)
        plan = formulas.transport_plan(cost.detach(), source, target, self.smoothing, self.rounds)
        return self.weight * view.ramp * (plan * cost).sum(dim=(1, 2))


@dataclass(frozen=True)
class Confusion(Loss):
    """Minimum class confusion on the target.

    >>> Recipe((Adversarial(), Confusion(temperature=2.5))).find(Confusion).temperature
    2.5
    """

    name = "confusion"
    weight: float = 1.0
    temperature: float = 2.0
    # SDAT climbs it whenever it is on; or from T_PL on (authors' code with a teacher).
    climbed: str = choice("on", "labels")

    def climbed_from(self, schedule: Schedule) -> int:
        return schedule.label_from if self.climbed == "labels" else self.start(schedule)

    def loss(self, view: View) -> Tensor:
        return self.weight * formulas.class_confusion(view.target_logits, self.temperature, view.target_present)


@dataclass(frozen=True)
class Uniformity(Loss):
    """Class balance (French et al. 2018), of PCG-CNN (Wu et al. 2020): binary cross-entropy of the batch's mean
    probabilities of the target and the uniform distribution.

    >>> RECIPES["PCG-CNN"].find(Uniformity).weight
    0.005
    """

    name = "uniformity"
    weight: float = 0.005
    scaled: bool = False  # by the share of the batch whose pseudo-labels are used (French et al. 2018)

    def loss(self, view: View) -> Tensor:
        each = formulas.weights(view.target_logits, view.target_present)[..., None]
        mean = (each * view.target_logits.softmax(dim=-1)).sum(dim=1).clamp(1e-6, 1 - 1e-6)
        uniform = 1 / mean.shape[-1]
        loss = -self.weight * (uniform * mean.log() + (1 - uniform) * (-mean).log1p()).mean(dim=-1)
        if self.scaled and view.selected is not None:
            return loss * formulas.masked_mean(view.selected.to(loss.dtype), view.target_present)
        return 0 * loss if self.scaled else loss  # before T_PL no label is used


@dataclass(frozen=True)
class Triplet(Loss):
    """Batch-hard triplets of the features of source windows and of target windows whose pseudo-label is used (Wang et
    al. 2022). Features are brought to length 1: with their own lengths the loss was lowered by shrinking them, until
    all were 0 and nothing was learnt (LOG.md).

    >>> Recipe((SelfTraining(), Triplet(margin=0.5))).find(Triplet).phase
    'labels'
    """

    name = "triplet"
    phase = "labels"
    weight: float = 1.0
    margin: float = 1.0

    def loss(self, view: View) -> Tensor:
        if view.pseudo_labels is None or view.selected is None:
            raise RuntimeError("the triplet loss needs pseudo-labels; put it behind self-training")
        labels = torch.cat([view.labels, view.pseudo_labels], dim=1)
        counts = torch.cat([torch.ones_like(view.labels, dtype=torch.bool), view.selected], dim=1)
        counts = counts if view.present is None else counts & view.present
        features = torch.nn.functional.normalize(view.features, dim=-1)
        return self.weight * formulas.hardest_triplets(features, labels, counts, self.margin)


@dataclass(frozen=True)
class Sharpness(Perturbation):
    """SDAT (Rangwani et al. 2022, after Foret et al. 2021): the step's gradient is taken at w + radius·g/‖g‖, g the
    gradient of the losses in scope. Modules of losses (the domain classifier) take plain steps.

    >>> RECIPES["DANN*"].find(Sharpness).radius
    0.05
    """

    name = "sharpness"
    radius: float = 0.05
    scope: str = choice("task", "supervised")  # authors' code: every loss that does not align domains; or the text's

    def perturb(self, weights: Sequence[Tensor], gradients: Callable[[str], Sequence[Tensor]]) -> list[Tensor]:
        """Moves every run's weights uphill; the norm is over all weights of a run."""
        found = gradients(self.scope)
        with torch.no_grad():
            before = [weight.detach().clone() for weight in weights]
            norms = [torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1) for gradient in found]
            norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
            scale = torch.full_like(norm, self.radius) / (norm + 1e-12)
            for weight, gradient in zip(weights, found, strict=True):
                weight += gradient * scale.view(-1, *[1] * (gradient.dim() - 1))
        return before
