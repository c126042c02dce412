"""Calibrators that know the target is elsewhere: source windows that look like the target's count for more.

CPCS (Park et al., AISTATS 2020; METHOD §5): a logistic regression on features tells the domains apart, its odds weigh
the labelled source windows, and the temperature of least weighted Brier score is taken.

>>> calibration = CPCS().fit(evidence)                   # evidence with features, see Evidence
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bearcat.calibration.arrays import Sample, as_tensor, read_features
from bearcat.calibration.evidence import Calibration, Evidence
from bearcat.calibration.newton import minimise
from bearcat.calibration.scaling import centred, check_bounds, check_positive, from_temperature, says_nothing
from bearcat.errors import InputError


@dataclass(frozen=True)
class CPCS:
    """Covariate-shift-aware temperature. Features are taken as they are: Newton's method does not mind their scale."""

    bounds: tuple[float, float] = (1.0, 100.0)  # as for Temperature
    ridge: float = 1.0  # of the domain regression: ridge/2 · |w|² + Σ loss, scikit-learn's C = 1
    needs_features: ClassVar[bool] = True
    uses_target_labels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_bounds(self.bounds)
        check_positive("ridge", self.ridge)

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        odds = self.log_weights(evidence)
        if odds.shape != sample.weight.shape:
            raise InputError("source_features and source_logits must be of the same windows")
        # Only ratios count; the largest becomes 1, so that nothing overflows where the domains are far apart.
        odds = odds - odds.masked_fill(sample.weight == 0, -torch.inf).amax(1, keepdim=True)
        odds = torch.where(sample.weight > 0, odds, -torch.inf)
        weighted = replace(sample, weight=sample.weight * odds.exp())
        return from_temperature(*_least_brier(weighted, *self.bounds), classes=sample.scores.shape[2])

    def log_weights(self, evidence: Evidence) -> Tensor:
        """log p(target | x) − log p(source | x) of the source test windows, (run, window)."""
        inputs, _ = read_features(evidence.source_features, evidence.source_weight, "source_features")
        source = read_features(evidence.source_train_features, evidence.source_train_weight, "source_train_features")
        target = read_features(evidence.target_train_features, evidence.target_train_weight, "target_train_features")
        if not inputs.shape[::2] == source[0].shape[::2] == target[0].shape[::2]:
            raise InputError(
                "source_features, source_train_features and target_train_features must agree in runs and width"
            )
        source_kept, target_kept = balanced(source[1], target[1], _seeds(evidence, len(inputs), inputs.device))
        weights = _domain_regression(source[0], source_kept, target[0], target_kept, self.ridge)
        return (inputs * weights[:, None, :-1]).sum(-1) + weights[:, -1:]


def balanced(source_weight: Tensor, target_weight: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (run, window) after drawing from the larger domain as many windows as the smaller one has, each once.

    A window's place in the draw depends on its run's seed and its index alone: neither on the neighbours in a stack,
    nor on padding behind it, nor on the device.
    """
    fewest = torch.minimum((source_weight > 0).sum(1), (target_weight > 0).sum(1))[:, None]

    def draw(weight: Tensor, stream: int) -> Tensor:
        keys = _random_integers(2 * seeds + stream, weight.shape[1])
        rank = keys.masked_fill(weight == 0, torch.iinfo(torch.int64).max).argsort(stable=True, dim=1).argsort(1)
        return torch.where(rank < fewest, weight, 0.0)

    return draw(source_weight, 0), draw(target_weight, 1)


def _seeds(evidence: Evidence, runs: int, device: torch.device) -> Tensor:
    if evidence.seeds is None:
        return torch.zeros(runs, dtype=torch.int64, device=device)
    seeds = as_tensor(evidence.seeds).to(device).long().reshape(-1)
    if len(seeds) != runs:
        raise InputError(f"seeds must hold one whole number per run, {runs}, not {len(seeds)}")
    return seeds


def _random_integers(seeds: Tensor, count: int) -> Tensor:
    """Random integers 0 … 2⁶³ − 1, (run, count), by hashing seed and index (SplitMix64, Steele et al., 2014)."""

    def mixed(state: Tensor) -> Tensor:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            # int64 products wrap as unsigned ones would; the shift must not copy the sign.
            state = (state ^ ((state >> shift) & ((1 << (64 - shift)) - 1))) * (
                factor - (1 << 64) if factor >> 63 else factor
            )
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
    penalty = inputs.new_full(inputs.shape[2:], ridge)
    penalty[-1] = 0

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


def _least_brier(sample: Sample, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    """Scale 1/T (run,) of least Brier score for T in [lower, upper], and whether it is at a bound.

    The score is not convex. A softmax changes over a factor of T, not over a tenth of it, so a grid of 5 % sees every
    valley; the two lowest are followed to the bottom, since the grid cannot tell two of nearly the same depth apart.
    """
    logits, shares = centred(sample), sample.shares()
    hit = sample.labels[..., None] == torch.arange(logits.shape[-1], device=logits.device)

    def score(scale: Tensor) -> tuple[Tensor, Tensor]:
        """Brier score (run,), and a number of the sign of its derivative by T."""
        likely = (scale[:, None, None] * logits).softmax(-1)
        error = likely - hit.double()
        from_mean = logits - (likely * logits).sum(-1, keepdim=True)
        return (shares * error.square().sum(-1)).sum(1), -(shares * (error * likely * from_mean).sum(-1)).sum(1)

    steps = min(max(math.ceil(math.log(upper / lower) / 0.05), 2), 1000)
    runs = len(logits)
    grid = torch.linspace(math.log(lower), math.log(upper), steps + 1, dtype=torch.float64, device=logits.device)
    values, slopes = (
        torch.stack(column, dim=1)
        for column in zip(*(score((-place).exp().expand(runs)) for place in grid), strict=True)
    )
    first, second = _valleys(values, slopes)
    one, other = _bottom(score, grid, first), _bottom(score, grid, second)
    place = torch.where(score((-other).exp())[0] < score((-one).exp())[0], other, one)
    least, most = torch.full_like(place, 1 / upper), torch.full_like(place, 1 / lower)
    scale = (-place).exp().clamp(least, most)
    # Halving approaches a bound without reaching it.
    scale = torch.where(place - grid[0] < 1e-12, most, torch.where(grid[-1] - place < 1e-12, least, scale))
    scale = torch.where(says_nothing(logits, shares), torch.ones_like(scale).clamp(least, most), scale)
    return scale, (scale == least) | (scale == most)


def _valleys(values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (run,) of the two lowest local minima of values (run, grid); the same one twice where there is one.

    Saturated softmaxes give plateaus of exactly equal values; the slopes still know which way is down.
    """
    outside = torch.full_like(values[:, :1], torch.inf)
    padded = torch.cat([outside, values, outside], dim=1)
    local = (values <= padded[:, :-2]) & (values <= padded[:, 2:])
    # On a plateau: its left end if the score rises to the right of it, else its right end.
    level = values.amin(1, keepdim=True)
    leftmost = (values == level).long().argmax(1)
    rightmost = values.shape[1] - 1 - (values == level).long().flip(1).argmax(1)
    lowest = torch.where(slopes.gather(1, leftmost[:, None])[:, 0] < 0, rightmost, leftmost)
    index = torch.arange(values.shape[1], device=values.device)
    others = local & ((index - lowest[:, None]).abs() > 1) & (values > level)
    runner_up = torch.where(others, values, torch.inf).argmin(1)
    return lowest, torch.where(others.any(1), runner_up, lowest)


def _bottom(score: Callable[[Tensor], tuple[Tensor, Tensor]], grid: Tensor, index: Tensor) -> Tensor:
    """log T (run,) where the slope changes sign between the grid's neighbours of index, by 45 halvings."""
    low, high = grid[(index - 1).clamp(min=0)], grid[(index + 1).clamp(max=len(grid) - 1)]
    for _ in range(45):
        middle = (low + high) / 2
        falling = score((-middle).exp())[1] < 0
        low, high = torch.where(falling, middle, low), torch.where(falling, high, middle)
    return (low + high) / 2
