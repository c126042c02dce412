"""Calibrators that rescale logits, fitted on labelled source windows (Guo et al. 2017; Section 3.2, Eqs. 6 to 9).

A calibrator is a frozen dataclass of settings; `fit` returns a Calibration of all runs of the Evidence, each as if it
were fitted alone. Fits are in float64 on the device of the logits, of all runs together.

>>> Temperature().fit(Evidence(source_logits=logits, source_labels=labels)).probabilities(target_logits)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bearcat.cat import published
from bearcat.cat.calibration import Calibration, Evidence, Sample, beside, with_runs
from bearcat.cat.ingredient import check_settings, choice
from bearcat.errors import InputError
from bearcat.fast.device import gather

# Of temperatures: calibration never sharpens. The paper sets no bounds (docs/results.md, Calibration in the loop).
BOUNDS = (1.0, 100.0)
ROUNDS = 60  # ordinary logits take 5 to 10, separable or extreme ones (±1e4) up to about 40
SHRINK = 0.3
TRIALS = 14  # step lengths down to 0.3^13 ≈ 2e-7
# Not in the paper. Keeps separable classes (infinite factors) and the offsets' common shift finite, and decides nothing
# else: on 1000 windows of 13 classes it moved factors by 4e-4 and offsets by 3e-3, a hundredth of what drawing the
# labels anew does.
RIDGE = 1e-4
DOMAIN_RIDGE = 1.0  # of CPCS's domain regression: ridge/2 · |w|² + Σ loss, scikit-learn's C = 1
WindowLoss = Callable[[Tensor, Tensor, Tensor], Tensor]  # logits (…, window, class), labels, weights (…, window) → (…)


def mean_nll(logits: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Mean −log of the labels' probabilities."""
    of_label = logits.gather(-1, labels[..., None])[..., 0]
    return (shares * (logits.logsumexp(-1) - of_label)).sum(-1)


def mean_brier(logits: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Mean squared distance of probabilities to labels."""
    hit = functional.one_hot(labels, logits.shape[-1])
    return (shares * (logits.softmax(-1) - hit).square().sum(-1)).sum(-1)


@dataclass(frozen=True)
class Temperature:
    """One temperature per run, of least NLL within the bounds (Eq. 6).

    A perfectly classified source has no best temperature: the NLL falls as T goes to 0, and the fit ends at the lower
    bound, which `at_bound` records. Without bounds it is the published code's search (cat/published.py).

    >>> too_sure = Evidence(source_logits=9 * np.eye(2)[[0, 0, 1, 1]], source_labels=np.array([0, 0, 1, 0]))
    >>> round(Temperature().fit(too_sure).temperature.item(), 2)
    8.19
    """

    bounds: tuple[float, float] | None = BOUNDS

    def __post_init__(self) -> None:
        check_settings(self, "")
        if self.bounds is not None and not 0 < self.bounds[0] < self.bounds[1] < math.inf:
            raise InputError(f"bounds must be two positive temperatures, the lower first, or none, not {self.bounds}")

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        return self.of_least(mean_nll, sample, sample.shares())

    def of_least(self, loss: WindowLoss, sample: Sample, shares: Tensor) -> Calibration:
        """The calibration of least loss, windows weighted by shares (run, window)."""
        logits = centred(sample)
        if self.bounds is None:
            return from_temperature(*published.searched(sample, logits, shares, loss), classes=logits.shape[2])
        temperature = least(lambda scale: loss(scale * logits, sample.labels, shares), logits, self.bounds)
        return from_temperature(temperature, at(self.bounds, temperature), classes=logits.shape[2])


@dataclass(frozen=True)
class Vector:
    """A factor and an offset for each class, of least mean NLL + ridge/2 · |parameters − "no change"|² (Eq. 7)."""

    solver: str = choice("newton", "sgd")  # "sgd" is the published code's (cat/published.py)

    def __post_init__(self) -> None:
        check_settings(self, "")

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        inputs = torch.stack([sample.scores.double(), torch.ones_like(sample.scores)], dim=-1)
        unchanged = torch.tensor([1.0, 0.0]).repeat(inputs.shape[2], 1)
        factor, offset = self.solve(inputs, "rwcf", sample, unchanged.to(inputs)).unbind(-1)
        return Calibration(factor, offset)

    @property
    def solve(self) -> Callable[[Tensor, str, Sample, Tensor], Tensor]:
        return softmax_regression if self.solver == "newton" else published.descended


@dataclass(frozen=True)
class Matrix(Vector):
    """A full matrix, and an offset for each class, fitted as Vector is (Eq. 8)."""

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        inputs, classes = with_one(sample.scores.double()), sample.scores.shape[2]
        parameters = self.solve(inputs, "rwf", sample, torch.eye(classes, classes + 1).to(inputs))
        offset = parameters[..., -1]
        return Calibration(torch.ones_like(offset), offset, matrix=parameters[..., :-1])


@dataclass(frozen=True)
class CPCS(Temperature):
    """Covariate-shift-aware temperature (Park et al. 2020): of least Brier score on source windows that are weighted by
    their likeness to the target, the odds of a logistic regression on features that separates the domains (Eq. 9).
    """

    # Of the domain regression: to convergence, on as many windows of the larger domain as the smaller has; published
    # code: scikit-learn's, in float32, with windows of the smaller domain drawn again until it has as many.
    solver: str = choice("newton", "scikit-learn")
    needs: ClassVar[tuple[str, ...]] = ("source_features", "source_train_features", "target_features", "seeds")

    def fit(self, evidence: Evidence) -> Calibration:
        sample, odds = evidence.source(), self.log_weights(evidence)
        if odds.shape != sample.weight.shape:
            raise InputError("source_features and source_logits must be of the same windows")
        if self.bounds is not None:  # only ratios count; nothing overflows where the domains are far apart
            odds = odds - odds.amax(1, keepdim=True)
        return self.of_least(mean_brier, sample, sample.shares() * odds.exp())

    def log_weights(self, evidence: Evidence) -> Tensor:
        """log p(target | x) − log p(source | x) of the source test windows, (run, window)."""
        names = ("source_features", "source_train_features", "target_features")
        inputs, source, target = (with_runs(getattr(evidence, name), name, "feature").double() for name in names)
        if not inputs.shape[::2] == source.shape[::2] == target.shape[::2]:
            raise InputError(f"{', '.join(names)} must agree in runs and width")
        draw, regression = undersampled, domain_regression
        if self.solver != "newton":
            draw, regression = published.oversampled, published.domain_regression
        drawn = draw((source.shape[1], target.shape[1]), read_seeds(evidence, inputs))
        coefficients = regression(gather(source, drawn[0]), gather(target, drawn[1]))
        return (with_one(inputs) @ coefficients[..., None])[..., 0]


def from_temperature(temperature: Tensor, at_bound: Tensor, classes: int) -> Calibration:
    """One temperature (run,) for all classes."""
    scales = (1 / temperature)[:, None].repeat(1, classes)
    return Calibration(scales, torch.zeros_like(scales), at_bound)


def at(bounds: tuple[float, float], temperature: Tensor) -> Tensor:
    """Whether a temperature is at one of the bounds."""
    return (temperature == bounds[0]) | (temperature == bounds[1])


def with_one(values: Tensor) -> Tensor:
    """A 1 behind the values of the last axis, whose parameter is the offset."""
    return functional.pad(values, (0, 1), value=1.0)


def centred(sample: Sample) -> Tensor:
    """Logits in float64 with their largest at 0, (run, window, class); −inf becomes finite, and so is its square."""
    logits = sample.scores.double()
    return (logits - logits.amax(-1, keepdim=True)).clamp(min=-1e150)


def least(loss: Callable[[Tensor], Tensor], logits: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Temperature (run,) of least loss within the bounds; the loss (run,) is a function of the scale 1/T (run, 1, 1) of
    these logits. Where all T are as good it is the lower bound.

    The loss need not be convex. A softmax changes over a factor of T, not over a tenth of it, so a grid of 5 % finds
    every valley and knows its depth to about 3e-4; the lowest is followed to its bottom.
    """

    def of_place(place: Tensor) -> Tensor:
        return loss((-place).exp()[:, None, None])

    low, high = map(math.log, bounds)
    steps = max(math.ceil((high - low) / 0.05), 2)
    grid = torch.linspace(low, high, steps + 1, dtype=torch.float64, device=logits.device)
    values = torch.vmap(of_place, chunk_size=16)(grid[:, None].expand(-1, len(logits)))
    lowest = (values <= values.amin(0) + 1e-14).long().argmax(0)  # of several that are equal to rounding the first
    slope = torch.func.grad(lambda place: of_place(place).sum())
    found = halved(slope, grid[(lowest - 1).clamp(min=0)], grid[(lowest + 1).clamp(max=steps)], bounds)
    return torch.where(values.isnan().any(0), torch.nan, found)


def halved(rising: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The temperature between log T of low and high at which a function of log T is no longer negative."""
    for _ in range(50):
        middle = (low + high) / 2
        negative = rising(middle) < 0
        low, high = torch.where(negative, middle, low), torch.where(negative, high, middle)
    temperature = ((low + high) / 2).exp()
    for bound in bounds:  # which halving approaches without reaching it
        temperature = torch.where((temperature / bound - 1).abs() < 1e-12, bound, temperature)
    return temperature


def softmax_regression(inputs: Tensor, axes: str, sample: Sample, unchanged: Tensor) -> Tensor:
    """Parameters (run, class, factor) of least mean NLL and ridge. A logit is the product of its class's parameters and
    of inputs with these axes: r for the run, w the window, c the class, f the factor.
    """
    labels, shares, (classes, factors) = sample.labels, sample.shares(), unchanged.shape
    hit, ridge = functional.one_hot(labels, classes), RIDGE * torch.eye(unchanged.numel()).to(inputs)
    other = axes.replace("f", "g")

    def logits(flat: Tensor) -> Tensor:
        return torch.einsum(f"{axes},rcf->rwc", inputs, flat.view(-1, classes, factors))

    def objective(flat: Tensor) -> Tensor:
        return mean_nll(logits(flat), labels, shares) + RIDGE / 2 * (flat - unchanged.flatten()).square().sum(1)

    def derivatives(flat: Tensor) -> tuple[Tensor, Tensor]:
        likely = logits(flat).softmax(-1)
        gradient = torch.einsum(f"rwc,{axes}->rcf", shares[..., None] * (likely - hit), inputs).flatten(1)
        mean = torch.einsum(f"rwc,{axes}->rwcf", likely, inputs).flatten(2)
        hessian = ridge - (shares[..., None] * mean).mT @ mean
        of_class = torch.einsum(f"rwc,{axes},{other}->rfgc", shares[..., None] * likely, inputs, inputs)
        hessian.view(-1, classes, factors, classes, factors).diagonal(dim1=1, dim2=3).add_(of_class)
        return gradient + RIDGE * (flat - unchanged.flatten()), hessian

    # Where margins are huge there is no curvature: begin with logits of 1 at most.
    largest = inputs.abs().flatten(1).amax(1).clamp(min=1.0)
    start = unchanged.flatten() / largest[:, None]
    return minimise(start, objective, derivatives).view(-1, classes, factors)


def domain_regression(source: Tensor, target: Tensor) -> Tensor:
    """Logistic regression, target against source, of features (run, window, any): weights and, unpenalised, an offset,
    (run, any + 1).
    """
    signed = torch.cat([-with_one(source), with_one(target)], dim=1)  # whose product with the weights should be large
    penalty = DOMAIN_RIDGE * (torch.arange(signed.shape[2], device=signed.device) < source.shape[2])

    def objective(weights: Tensor) -> Tensor:
        margins = (signed @ weights[..., None])[..., 0]
        return -functional.logsigmoid(margins).sum(1) + (penalty * weights.square()).sum(1) / 2

    def derivatives(weights: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.sigmoid(-(signed @ weights[..., None]))
        gradient = penalty * weights - (signed.mT @ wrong)[..., 0]
        return gradient, signed.mT @ (wrong * (1 - wrong) * signed) + torch.diag(penalty)

    return minimise(torch.zeros_like(signed[:, 0]), objective, derivatives)


def minimise(
    start: Tensor, objective: Callable[[Tensor], Tensor], derivatives: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """Where a convex objective (run,) of parameters (run, any) is least, by Newton's method; derivatives: gradient and
    Hessian.

    Each round takes the Newton direction and, of the step lengths 1, 0.3, 0.09 …, the first that lowers the objective
    enough (Armijo). A run that has arrived stays where it is until all have, so it does not depend on the others.
    """
    point, value = start, objective(start)
    moving = torch.ones_like(value, dtype=torch.bool)
    for _ in range(ROUNDS):
        gradient, hessian = derivatives(point)
        factor, _ = torch.linalg.cholesky_ex(hessian)  # which a ridge keeps from being singular
        direction = -torch.cholesky_solve(gradient[..., None], factor)[..., 0]
        slope = (gradient * direction).sum(1)  # minus the squared Newton decrement
        noise = 1e-14 * (1 + value.abs())  # what rounding makes of two equal objectives
        length = torch.ones_like(value)
        for _ in range(TRIALS):
            step = torch.where(moving[:, None], length[:, None] * direction, 0.0)
            reached = objective(point + step)
            too_high = moving & ~(reached <= value + 1e-4 * length * slope + noise)
            if not too_high.any():
                break
            length = torch.where(too_high, SHRINK * length, length)
        moving = moving & ~too_high
        point = torch.where(moving[:, None], point + step, point)
        value = torch.where(moving, reached, value)
        # A decrement of 1e-7 before a step is its square after it.
        moving = moving & (slope < -1e-14 * (1 + value.abs()))
        if not moving.any():
            break
    return point


def undersampled(windows: tuple[int, int], seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Windows of both domains (run, windows of the smaller), each once.

    Draws depend on the run's seed and a window's index alone, not on the stack or the device; so do all below.
    """
    source, target = (shuffled(count, 2 * seeds + stream)[:, : min(windows)] for stream, count in enumerate(windows))
    return source, target


def shuffled(windows: int, seeds: Tensor) -> Tensor:
    """Places of windows (run, window) in random order."""
    return random_integers(seeds, windows).argsort(stable=True, dim=1)


def read_seeds(evidence: Evidence, tensor: Tensor) -> Tensor:
    """The seed of each run of a tensor (run, …), 0 where none is given."""
    zeros = torch.zeros(len(tensor), dtype=torch.int64)
    return beside(tensor, 1, zeros if evidence.seeds is None else evidence.seeds, "seeds").long()


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
