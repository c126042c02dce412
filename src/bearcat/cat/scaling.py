"""Calibrators that rescale logits, fitted on labelled source windows (Guo et al. 2017; Section 3.2, Eqs. 6 to 9).

A calibrator is a frozen dataclass of settings; `fit` returns a Calibration of all runs of the Evidence, each as if it
were fitted alone. Fits are in float64 on the device of the logits.

>>> Temperature().fit(Evidence(source_logits=logits, source_labels=labels)).probabilities(target_logits)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import vjp
from torch.nn import functional

from bearcat.cat import published
from bearcat.cat.calibration import AnyArray, Calibration, CheckedSettings, Evidence, Sample, as_tensor, read_features
from bearcat.cat.ingredient import choice
from bearcat.errors import InputError

Mapped = Callable[[Tensor, Tensor], Tensor]  # scores and parameters → logits, linear in the parameters
ROUNDS = 60  # ordinary logits take 5 to 10, separable or extreme ones (±1e4) up to about 40
SHRINK = 0.3
TRIALS = 14  # step lengths down to 0.3^13 ≈ 2e-7
# Keeps separable classes (infinite factors) and the offsets' common shift finite, and decides nothing else: on 1000
# windows of 13 classes it moved factors by 4e-4 and offsets by 3e-3, a hundredth of what drawing the labels anew does.
RIDGE = 1e-4
DOMAIN_RIDGE = 1.0  # of CPCS's domain regression: ridge/2 · |w|² + Σ loss, scikit-learn's C = 1


@dataclass(frozen=True)
class Temperature(CheckedSettings):
    """One temperature per run, of least NLL within the bounds; T is 1, or the nearest bound, where logits say nothing.

    A perfectly classified source has no best temperature: the NLL falls as T goes to 0, and the fit ends at the lower
    bound, which `at_bound` records. Without bounds it is the published code's search (cat/published.py).

    >>> too_sure = Evidence(source_logits=9 * np.eye(2)[[0, 0, 1, 1]], source_labels=np.array([0, 0, 1, 0]))
    >>> round(Temperature().fit(too_sure).temperature.item(), 2)
    8.19
    """

    bounds: tuple[float, float] | None = (1.0, 100.0)  # docs/method.md, for use inside self-training
    needs: ClassVar[tuple[str, ...]] = ()

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        if self.bounds is None:
            fitted = published.searched(sample, centred(sample), sample.shares(), mean_nll)
        else:
            fitted = least_nll(sample, *self.bounds)
        return from_temperature(*fitted, classes=sample.scores.shape[2])


@dataclass(frozen=True)
class _Regression(CheckedSettings):
    """A map of many parameters, of least mean NLL + ridge/2 · |parameters − "no change"|²."""

    solver: str = choice("newton", "sgd")  # "sgd" is the published code's (cat/published.py)
    needs: ClassVar[tuple[str, ...]] = ()
    full: ClassVar[bool] = False

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        scores, shares, classes = sample.scores.double(), sample.shares(), sample.scores.shape[2]
        anchor, mapped = torch.eye(classes, classes + 1, dtype=torch.float64, device=scores.device), _turned
        if not self.full:
            anchor, mapped = torch.stack([anchor.sum(dim=1), anchor[:, -1]], dim=1), _scaled
        if self.solver == "sgd":
            parameters = published.descended(mapped, scores, sample.labels, shares, anchor)
        else:  # from the anchor over the best T ≥ 1: the anchor has no curvature where margins are huge
            starts = least_nll(sample, 1.0, 1e6)[0][:, None, None] * anchor
            runs = zip(starts, scores, sample.labels, shares, strict=True)
            parameters = torch.stack([softmax_regression(*run, anchor, mapped) for run in runs])
        offset = parameters[..., -1]
        if self.full:
            return Calibration(torch.ones_like(offset), offset, matrix=parameters[..., :-1])
        return Calibration(parameters[..., 0], offset)


@dataclass(frozen=True)
class Vector(_Regression):
    """A factor and an offset for each class.

    >>> Vector().fit(Evidence(source_logits=9 * np.eye(2), source_labels=np.arange(2))).scale.shape
    torch.Size([1, 2])
    """


@dataclass(frozen=True)
class Matrix(_Regression):
    """A full matrix, and an offset for each class.

    >>> Matrix().fit(Evidence(source_logits=9 * np.eye(2), source_labels=np.arange(2))).matrix.shape
    torch.Size([1, 2, 2])
    """

    full = True


@dataclass(frozen=True)
class CPCS(CheckedSettings):
    """Covariate-shift-aware temperature (Park et al. 2020): of least Brier score on source windows that are weighted by
    their likeness to the target, the odds of a logistic regression on features that separates the domains.

    >>> "source_train_features" in CPCS.needs
    True
    """

    bounds: tuple[float, float] | None = (1.0, 100.0)  # as for Temperature
    # Of the domain regression: to convergence, on as many windows of the larger domain as the smaller has; authors'
    # code: scikit-learn's, in float32, with windows of the smaller domain drawn again until it has as many.
    solver: str = choice("newton", "scikit-learn")
    needs: ClassVar[tuple[str, ...]] = ("source_features", "source_train_features", "target_features", "seeds")

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        odds = self.log_weights(evidence)
        if odds.shape != sample.weight.shape:
            raise InputError("source_features and source_logits must be of the same windows")
        # Only ratios count; the largest becomes 1, so that nothing overflows where the domains are far apart.
        largest = odds.amax(1, keepdim=True)
        weighted = replace(sample, weight=sample.weight * (odds - largest).exp())
        size = largest[:, 0].exp() * weighted.weight.sum(1) / sample.weight.sum(1)  # the mean weight
        logits, shares = centred(weighted), weighted.shares()
        if self.bounds is None:
            fitted = published.searched(sample, logits, shares * size[:, None], mean_brier)
        else:
            fitted = least(lambda scaled: mean_brier(scaled, sample.labels, shares), logits, shares, *self.bounds)
        return from_temperature(*fitted, classes=sample.scores.shape[2])

    def log_weights(self, evidence: Evidence) -> Tensor:
        """log p(target | x) − log p(source | x) of the source test windows, (run, window)."""
        names = ("source_features", "source_train_features", "target_features")
        inputs, source, target = (read_features(getattr(evidence, name), name) for name in names)
        if not inputs.shape[::2] == source.shape[::2] == target.shape[::2]:
            raise InputError(f"{', '.join(names)} must agree in runs and width")
        draw = undersampled if self.solver == "newton" else published.oversampled
        weight = torch.cat(draw((source.shape[1], target.shape[1]), read_seeds(evidence, inputs)), dim=1)
        features = torch.cat([source, target], dim=1)
        is_target = (torch.arange(features.shape[1], device=inputs.device) >= source.shape[1]).expand_as(weight)
        if self.solver == "newton":
            runs = zip(features, is_target, weight, strict=True)
            regression = torch.stack([domain_regression(*run) for run in runs])
        else:
            regression = published.domain_regression(features, is_target, weight)
        return (inputs * regression[:, None, :-1]).sum(-1) + regression[:, -1:]


def from_temperature(scale: Tensor, at_bound: Tensor, classes: int) -> Calibration:
    """One scale (run,) for all classes."""
    scales = scale[:, None].repeat(1, classes)
    return Calibration(scales, torch.zeros_like(scales), at_bound)


def centred(sample: Sample) -> Tensor:
    """Logits in float64 with their largest at 0, (run, window, class); −inf becomes finite, and so is its square."""
    logits = sample.scores.double()
    return (logits - logits.amax(-1, keepdim=True)).clamp(min=-1e150)


def says_nothing(logits: Tensor, shares: Tensor) -> Tensor:
    """Runs (run,) whose centred logits have all classes alike in every window that counts, if any does."""
    return ((logits.amin(-1) == 0) | (shares == 0)).all(1)


def mean_nll(logits: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Mean −log of the labels' probabilities: logits (…, window, class), labels and shares (…, window) → (…)."""
    of_label = logits.gather(-1, labels.expand(logits.shape[:-1])[..., None])[..., 0]
    return (shares * (logits.logsumexp(-1) - of_label)).sum(-1)


def softmax_regression(
    start: Tensor, scores: Tensor, labels: Tensor, shares: Tensor, anchor: Tensor, mapped: Mapped
) -> Tensor:
    """One run's parameters (class, any) of least mean NLL and ridge: scores (window, class), shares (window,)."""
    hit = functional.one_hot(labels, scores.shape[-1])
    basis = torch.eye(anchor.numel(), dtype=scores.dtype, device=scores.device)
    slopes = mapped(scores, basis.view(-1, *anchor.shape))  # of each logit, (parameter, window, class)

    def objective(flat: Tensor) -> Tensor:
        loss = mean_nll(mapped(scores, flat.view(anchor.shape)), labels, shares)
        return loss + RIDGE / 2 * (flat - anchor.flatten()).square().sum()

    def derivatives(flat: Tensor) -> tuple[Tensor, Tensor]:
        likely = mapped(scores, flat.view(anchor.shape)).softmax(-1)
        gradient = (slopes * (shares[:, None] * (likely - hit))).sum((1, 2)) + RIDGE * (flat - anchor.flatten())
        mean = (slopes * likely).sum(2)
        hessian = (slopes * (shares[:, None] * likely)).flatten(1) @ slopes.flatten(1).mT - (shares * mean) @ mean.mT
        return gradient, hessian + RIDGE * basis

    return minimise(start.flatten(), objective, derivatives).view(anchor.shape)


def _scaled(scores: Tensor, parameters: Tensor) -> Tensor:
    """Scores (…, window, class) times factors plus offsets, parameters (…, class, 2)."""
    return scores * parameters[..., None, :, 0] + parameters[..., None, :, 1]


def _turned(scores: Tensor, parameters: Tensor) -> Tensor:
    """A matrix times scores (…, window, class) plus offsets, parameters (…, class, class + 1)."""
    return scores @ parameters[..., :-1].mT + parameters[..., None, :, -1]


def least_nll(sample: Sample, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    """Scale 1/T (run,) of least NLL for T in [lower, upper], and whether it is at a bound."""
    logits, shares = centred(sample), sample.shares()
    return least(lambda scaled: mean_nll(scaled, sample.labels, shares), logits, shares, lower, upper)


def least(
    loss: Callable[[Tensor], Tensor], logits: Tensor, shares: Tensor, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    """Scale 1/T (run,) of least loss of the centred logits over T, for T in [lower, upper], and whether it is at a
    bound. It is 1, or the nearest bound, where logits say nothing.

    The loss need not be convex. A softmax changes over a factor of T, not over a tenth of it, so a grid of 5 % finds
    every valley and knows its depth to about 3e-4; the lowest is followed to its bottom.
    """

    def score(place: Tensor) -> tuple[Tensor, Tensor]:
        """The loss at log T (…, run), and its derivative."""
        result: Any = vjp(lambda logarithm: loss(logits * (-logarithm).exp()[..., None, None]), place)
        return result[0], result[1](torch.ones_like(place))[0]

    steps = min(max(math.ceil(math.log(upper / lower) / 0.05), 2), 1000)
    grid = torch.linspace(math.log(lower), math.log(upper), steps + 1, dtype=torch.float64, device=logits.device)
    size = max(1, 10_000_000 // max(1, logits.numel()))  # as many places at a time as make some ten million numbers
    scores = [score(places[:, None].repeat(1, len(logits))) for places in torch.split(grid, size)]
    values, slopes = (torch.cat(column) for column in zip(*scores, strict=True))
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
    bottom, top = torch.full_like(place, 1 / upper), torch.full_like(place, 1 / lower)
    scale = (-place).exp().clamp(bottom, top)
    # Halving approaches a bound without reaching it.
    scale = torch.where(place - grid[0] < 1e-12, top, torch.where(grid[-1] - place < 1e-12, bottom, scale))
    scale = torch.where(says_nothing(logits, shares), torch.ones_like(scale).clamp(bottom, top), scale)
    scale = torch.where(values.isnan().any(0), torch.nan, scale)
    return scale, (scale == bottom) | (scale == top)


def minimise(
    start: Tensor, objective: Callable[[Tensor], Tensor], derivatives: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """Where a convex objective of parameters (any,) is least, by Newton's method; derivatives: gradient and Hessian.

    Each round takes the Newton direction and the first of the step lengths 1, 0.3, 0.09 … that lowers the objective
    enough (Armijo).
    """
    point, value = start, float(objective(start))
    for _ in range(ROUNDS):
        gradient, hessian = derivatives(point)
        direction = _direction(gradient, hessian)
        slope = float(gradient @ direction)  # minus the squared Newton decrement
        noise = 1e-14 * (1 + abs(value))  # what rounding makes of two equal objectives
        for length in (SHRINK**trial for trial in range(TRIALS)):
            reached = float(objective(point + length * direction))
            if reached <= value + 1e-4 * length * slope + noise:
                break
        else:
            break
        point, value = point + length * direction, reached
        if abs(slope) <= 1e-20 * (1 + abs(value)):  # a decrement of 1e-10 before a step is its square after it
            break
    return point


def _direction(gradient: Tensor, hessian: Tensor) -> Tensor:
    """−H⁻¹g by Cholesky of H brought to a unit diagonal; −g over that diagonal where H is singular to rounding."""
    diagonal = hessian.diagonal()
    scale = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    jitter = 1e-14 * torch.eye(len(gradient), dtype=gradient.dtype, device=gradient.device)
    factor, failed = torch.linalg.cholesky_ex(hessian * scale[:, None] * scale + jitter)
    if failed:
        return -scale * scale * gradient
    return -scale * torch.cholesky_solve((scale * gradient)[:, None], factor)[:, 0]


def domain_regression(features: Tensor, is_target: Tensor, weight: Tensor) -> Tensor:
    """Logistic regression, target against source, of features (window, any): weights and, unpenalised, an offset."""
    inputs = functional.pad(features, (0, 1), value=1.0)
    penalty = torch.full_like(inputs[0], DOMAIN_RIDGE).index_fill(0, torch.tensor([-1], device=inputs.device), 0.0)

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


def undersampled(windows: tuple[int, int], seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (run, window) of both domains after drawing as many from the larger as the smaller has, each once.

    Draws depend on the run's seed and a window's index alone, not on the stack or the device; so do all below.
    """
    ranks = [shuffled(count, 2 * seeds + stream).argsort(1) for stream, count in enumerate(windows)]
    source, target = ((rank < min(windows)).double() for rank in ranks)
    return source, target


def shuffled(windows: int, seeds: Tensor) -> Tensor:
    """Places of windows (run, window) in random order."""
    return random_integers(seeds, windows).argsort(stable=True, dim=1)


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
