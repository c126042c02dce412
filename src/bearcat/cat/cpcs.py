"""CPCS (Park et al., AISTATS 2020; Eq. 9): a temperature fitted on source windows, weighted by likeness to the target.

The weights are the odds of a logistic regression on features that separates the domains.

>>> calibration = CPCS().fit(evidence)                   # evidence with features, see Evidence
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bearcat.cat.calibration import AnyArray, Calibration, Evidence, Sample, as_tensor, read_features
from bearcat.cat.scaling import CheckedSettings, centred, from_temperature, minimise, says_nothing, searched
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
    resampling: str = "under"
    # Of the domain regression: to convergence, or scikit-learn's in float32, which may stop before it (authors' code).
    solver: str = "newton"
    choices: ClassVar[Mapping[str, Collection[str]]] = {
        "resampling": ("under", "over"), "solver": ("newton", "scikit-learn"),
    }  # fmt: skip
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

        def mean_brier(logits: Tensor, labels: Tensor, shares: Tensor) -> float:
            hit = torch.nn.functional.one_hot(labels, logits.shape[-1])
            return float((shares * (logits.softmax(-1) - hit).square().sum(-1)).sum())

        found = _least_brier(weighted, *self.bounds) if self.bounds else searched(weighted, mean_brier, size)
        return from_temperature(*found, classes=sample.scores.shape[2])

    def log_weights(self, evidence: Evidence) -> Tensor:
        """log p(target | x) − log p(source | x) of the source test windows, (run, window)."""
        inputs, _ = read_features(evidence.source_features, evidence.source_weight, "source_features")
        source = read_features(evidence.source_train_features, evidence.source_train_weight, "source_train_features")
        target = read_features(evidence.target_features, evidence.target_weight, "target_features")
        if not inputs.shape[::2] == source[0].shape[::2] == target[0].shape[::2]:
            raise InputError("source_features, source_train_features and target_features must agree in runs and width")
        draw = balanced if self.resampling == "under" else oversampled
        source_kept, target_kept = draw(source[1], target[1], read_seeds(evidence, inputs))
        regression = _domain_regression if self.solver == "newton" else _short_regression
        weights = regression(source[0], source_kept, target[0], target_kept, self.ridge)
        return (inputs * weights[:, None, :-1]).sum(-1) + weights[:, -1:]


def balanced(source_weight: Tensor, target_weight: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (run, window) after drawing from the larger domain as many windows as the smaller one has, each once.

    Draws depend on the run's seed and a window's index alone, not on the stack, padding or device; so do all below.
    """
    weights = source_weight, target_weight
    fewest = torch.minimum(*((weight > 0).sum(1, keepdim=True) for weight in weights))
    ranks = [shuffled(weight, 2 * seeds + stream).argsort(1) for stream, weight in enumerate(weights)]
    source, target = (torch.where(rank < fewest, weight, 0.0) for rank, weight in zip(ranks, weights, strict=True))
    return source, target


def oversampled(source_weight: Tensor, target_weight: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (run, window), times how often each is drawn, with replacement, until both domains are equally large."""
    counts = [(weight > 0).sum(1, keepdim=True) for weight in (source_weight, target_weight)]
    most, longest = torch.maximum(*counts), max(source_weight.shape[1], target_weight.shape[1])

    def draw(weight: Tensor, count: Tensor, stream: int) -> Tensor:
        drawn = random_integers(2 * seeds + stream, longest) % count.clamp(min=1)
        place = (weight == 0).long().argsort(stable=True, dim=1).gather(1, drawn)  # the drawn-th window that counts
        wanted = torch.arange(longest, device=weight.device) < most
        often = torch.zeros_like(weight).scatter_add_(1, place, wanted.to(weight))
        return torch.where(count < most, weight * often, weight)

    return draw(source_weight, counts[0], 0), draw(target_weight, counts[1], 1)


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


def _domain_regression(
    source: Tensor, source_weight: Tensor, target: Tensor, target_weight: Tensor, ridge: float
) -> Tensor:
    """Logistic regression, target against source: weights and, last and unpenalised, offset (run, feature + 1)."""
    features = torch.cat([source, target], dim=1)
    inputs = torch.cat([features, torch.ones_like(features[..., :1])], dim=-1)
    weight = torch.cat([source_weight, target_weight], dim=1)
    is_target = torch.cat([torch.zeros_like(source_weight), torch.ones_like(target_weight)], dim=1)
    width = features.shape[-1]
    penalty = torch.where(torch.arange(width + 1, device=inputs.device) < width, inputs.new_full((), ridge), 0.0)

    def odds(parameters: Tensor) -> Tensor:
        return (inputs @ parameters[..., None])[..., 0]

    def objective(parameters: Tensor) -> Tensor:
        logit = odds(parameters)
        loss = torch.nn.functional.softplus(torch.where(is_target > 0, -logit, logit), threshold=700.0)
        return (weight * loss).sum(1) + (penalty * parameters.square()).sum(1) / 2

    def derivatives(parameters: Tensor) -> tuple[Tensor, Tensor]:
        likely = odds(parameters).sigmoid()
        gradient = ((weight * (likely - is_target))[:, None] @ inputs)[:, 0] + penalty * parameters
        curvature = (weight * likely * (1 - likely))[..., None]
        return gradient, inputs.transpose(1, 2) @ (curvature * inputs) + torch.diag(penalty)

    return minimise(inputs.new_zeros(inputs.shape[0], inputs.shape[2]), objective, derivatives)


def _short_regression(
    source: Tensor, source_weight: Tensor, target: Tensor, target_weight: Tensor, ridge: float
) -> Tensor:
    """The same by scikit-learn's LogisticRegression in float32; weights say how often a window counts."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    found = []
    for parts in zip(source, source_weight, target, target_weight, strict=True):
        ours, often, theirs, seldom = (part.cpu().numpy() for part in parts)
        rows = [np.repeat(each, count.astype(int), axis=0) for each, count in ((ours, often), (theirs, seldom))]
        labels = np.repeat([1, 0], [len(each) for each in rows])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=1 / ridge).fit(np.concatenate(rows).astype(np.float32), labels)
        found.append(-np.append(model.coef_[0], model.intercept_).astype(np.float64))
    return torch.from_numpy(np.stack(found)).to(source.device)


def _least_brier(sample: Sample, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    """Scale 1/T (run,) of least Brier score for T in [lower, upper], and whether it is at a bound.

    The score is not convex. A softmax changes over a factor of T, not over a tenth of it, so a grid of 5 % finds every
    valley and knows its depth to about 3e-4; the lowest is followed to its bottom. (The bottoms of the two lowest were
    compared as well: in 9000 runs of six windows with margins from 1e-2 to 1e3 it never changed the answer.)
    """
    logits, shares = centred(sample), sample.shares()
    hit = (sample.labels[..., None] == torch.arange(logits.shape[-1], device=logits.device)).double()

    def score(place: Tensor) -> tuple[Tensor, Tensor]:
        """Brier score at log T (…, run), and a number of the sign of its derivative by T."""
        likely = ((-place).exp()[..., None, None] * logits).softmax(-1)
        error = likely - hit
        from_mean = logits - (likely * logits).sum(-1, keepdim=True)
        slope = -(shares * (error * likely * from_mean).sum(-1)).sum(-1)
        return (shares * error.square().sum(-1)).sum(-1), slope

    steps = min(max(math.ceil(math.log(upper / lower) / 0.05), 2), 1000)
    grid = torch.linspace(math.log(lower), math.log(upper), steps + 1, dtype=torch.float64, device=logits.device)
    width = max(1, 10_000_000 // max(1, logits.numel()))  # as many places at a time as make some ten million numbers
    places = grid[:, None].expand(-1, len(logits))
    parts = (score(places[start : start + width]) for start in range(0, len(grid), width))
    values, slopes = (torch.cat(column) for column in zip(*parts, strict=True))
    # Saturated softmaxes give plateaus, equal to rounding; at their far end slopes may still know which way is down.
    lowest = (values <= values.amin(0) + 1e-14).long()
    left, right = lowest.argmax(0), len(values) - 1 - lowest.flip(0).argmax(0)
    index = torch.where(slopes.gather(0, right[None])[0] < 0, right, left)
    low, high = grid[(index - 1).clamp(min=0)], grid[(index + 1).clamp(max=len(grid) - 1)]
    for _ in range(45):  # halvings of where the slope changes sign
        middle = (low + high) / 2
        falling = score(middle)[1] < 0
        low, high = torch.where(falling, middle, low), torch.where(falling, high, middle)
    place = (low + high) / 2
    least, most = torch.full_like(place, 1 / upper), torch.full_like(place, 1 / lower)
    scale = (-place).exp().clamp(least, most)
    # Halving approaches a bound without reaching it.
    scale = torch.where(place - grid[0] < 1e-12, most, torch.where(grid[-1] - place < 1e-12, least, scale))
    scale = torch.where(says_nothing(logits, shares), torch.ones_like(scale).clamp(least, most), scale)
    scale = torch.where(values.isnan().any(0), torch.nan, scale)
    return scale, (scale == least) | (scale == most)
