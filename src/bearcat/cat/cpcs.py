"""CPCS (Park et al., AISTATS 2020; Eq. 9): a temperature fitted on source windows, weighted by likeness to the target.

The weights are the odds of a logistic regression on features that separates the domains.

>>> calibration = CPCS().fit(evidence)                   # evidence with features, see Evidence
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bearcat.cat import published
from bearcat.cat.calibration import AnyArray, Calibration, Evidence, as_tensor, read_features
from bearcat.cat.ingredient import choice
from bearcat.cat.scaling import CheckedSettings, centred, from_temperature, least, minimise
from bearcat.errors import InputError


@dataclass(frozen=True)
class CPCS(CheckedSettings):
    """Covariate-shift-aware temperature. Features are not rescaled: Newton's method does not need it.

    >>> "source_train_features" in CPCS(ridge=0.1).needs
    True
    """

    bounds: tuple[float, float] | None = (1.0, 100.0)  # as for Temperature
    ridge: float = 1.0  # of the domain regression: ridge/2 · |w|² + Σ loss, scikit-learn's C = 1
    # How the domains become equally large: "under" leaves windows of the larger out, "over" draws from the smaller,
    # with replacement, as many as the larger has (authors' code).
    resampling: str = choice("under", "over")
    # Of the domain regression: to convergence, or scikit-learn's in float32, which may stop before it (authors' code).
    solver: str = choice("newton", "scikit-learn")
    needs: ClassVar[tuple[str, ...]] = (
        "source_features", "source_train_features", "source_train_weight", "target_features", "target_weight", "seeds",
    )  # fmt: skip

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        odds = self.log_weights(evidence)
        if odds.shape != sample.weight.shape:
            raise InputError("source_features and source_logits must be of the same windows")
        # Only ratios count; the largest becomes 1, so that nothing overflows where the domains are far apart.
        largest = odds.masked_fill(sample.weight == 0, -torch.inf).amax(1, keepdim=True)
        odds = torch.where(sample.weight > 0, odds - largest, -torch.inf)
        weighted = replace(sample, weight=sample.weight * odds.exp())
        size = largest[:, 0].exp() * weighted.weight.sum(1) / sample.weight.sum(1)  # the mean weight
        logits, shares = centred(weighted), weighted.shares()
        if self.bounds is None:
            found = published.searched(sample, logits, shares * size[:, None], mean_brier)
        else:
            found = least(lambda each: mean_brier(each, sample.labels, shares), logits, shares, *self.bounds)
        return from_temperature(*found, classes=sample.scores.shape[2])

    def log_weights(self, evidence: Evidence) -> Tensor:
        """log p(target | x) − log p(source | x) of the source test windows, (run, window)."""
        inputs, _ = read_features(evidence.source_features, evidence.source_weight, "source_features")
        source = read_features(evidence.source_train_features, evidence.source_train_weight, "source_train_features")
        target = read_features(evidence.target_features, evidence.target_weight, "target_features")
        if not inputs.shape[::2] == source[0].shape[::2] == target[0].shape[::2]:
            raise InputError("source_features, source_train_features and target_features must agree in runs and width")
        draw = balanced if self.resampling == "under" else published.oversampled
        weights = draw(source[1], target[1], read_seeds(evidence, inputs))
        features, weight = torch.cat([source[0], target[0]], dim=1), torch.cat(weights, dim=1)
        is_target = (torch.arange(features.shape[1], device=inputs.device) >= source[0].shape[1]).expand_as(weight)
        if self.solver == "newton":
            runs = zip(features, is_target, weight, strict=True)
            found = torch.stack([domain_regression(*run, self.ridge) for run in runs])
        else:
            found = published.domain_regression(features, is_target, weight, self.ridge)
        return (inputs * found[:, None, :-1]).sum(-1) + found[:, -1:]


def domain_regression(features: Tensor, is_target: Tensor, weight: Tensor, ridge: float) -> Tensor:
    """Logistic regression, target against source, of features (window, any): weights and, unpenalised, an offset."""
    inputs = functional.pad(features, (0, 1), value=1.0)
    penalty = torch.full_like(inputs[0], ridge).index_fill(0, torch.tensor([-1], device=inputs.device), 0.0)

    def objective(parameters: Tensor) -> Tensor:
        logits = inputs @ parameters
        losses = functional.softplus(torch.where(is_target, -logits, logits), threshold=700.0)
        return (weight * losses).sum() + (penalty * parameters.square()).sum() / 2

    def derivatives(parameters: Tensor) -> tuple[Tensor, Tensor]:
        likely = (inputs @ parameters).sigmoid()
        curvature = (weight * likely * (1 - likely))[:, None] * inputs
        gradient = (weight * (likely - is_target.double())) @ inputs + penalty * parameters
        return gradient, inputs.mT @ curvature + torch.diag(penalty)

    return minimise(torch.zeros_like(inputs[0]), objective, derivatives)


def mean_brier(logits: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Mean squared distance of probabilities to labels: logits (…, window, class), labels and shares (…, window)."""
    hit = functional.one_hot(labels, logits.shape[-1])
    return (shares * (logits.softmax(-1) - hit).square().sum(-1)).sum(-1)


def balanced(source_weight: Tensor, target_weight: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (run, window) after drawing from the larger domain as many windows as the smaller one has, each once.

    Draws depend on the run's seed and a window's index alone, not on the stack, padding or device; so do all below.
    """
    weights = source_weight, target_weight
    fewest = torch.minimum(*((weight > 0).sum(1, keepdim=True) for weight in weights))
    ranks = [shuffled(weight, 2 * seeds + stream).argsort(1) for stream, weight in enumerate(weights)]
    source, target = (torch.where(rank < fewest, weight, 0.0) for rank, weight in zip(ranks, weights, strict=True))
    return source, target


def shuffled(weight: Tensor, seeds: Tensor) -> Tensor:
    """Places of windows (run, window) in random order, those without weight last."""
    keys = random_integers(seeds, weight.shape[1]).masked_fill(weight == 0, torch.iinfo(torch.int64).max)
    return keys.argsort(stable=True, dim=1)


def read_seeds(evidence: Evidence, beside: Tensor) -> Tensor:
    """The seed of each run of a tensor (run, …), 0 where none is given."""
    seeds = torch.zeros(len(beside), dtype=torch.int64) if evidence.seeds is None else evidence.seeds
    return per_run(seeds, "seeds", beside).long()


def per_run(values: AnyArray, name: str, beside: Tensor) -> Tensor:
    """Values of which there must be one per run, (run,), on the device of a tensor (run, …)."""
    found = as_tensor(values).to(beside.device).reshape(-1)
    if len(found) != len(beside):
        raise InputError(f"{name} must hold one number per run, {len(beside)}, not {len(found)}")
    return found


def random_integers(seeds: Tensor, count: int) -> Tensor:
    """Random integers 0 … 2⁶³ − 1, (run, count), by hashing seed and index (SplitMix64, Steele et al., 2014)."""

    def mixed(state: Tensor) -> Tensor:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            # int64 products wrap as unsigned ones would; the shift must not copy the sign.
            shifted = (state >> shift) & ((1 << (64 - shift)) - 1)
            state = (state ^ shifted) * (factor - (1 << 64) if factor >> 63 else factor)
        return state

    golden = 0x9E3779B97F4A7C15 - (1 << 64)
    index = torch.arange(1, count + 1, device=seeds.device)
    return mixed(mixed(seeds * golden)[:, None] + index * golden) & torch.iinfo(torch.int64).max
