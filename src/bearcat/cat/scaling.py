"""Calibrators that rescale logits, fitted on labelled source windows (Guo et al., 2017; docs/method.md).

A calibrator is a frozen dataclass of settings; `fit` returns a Calibration of all runs of the Evidence, each as if it
were fitted alone. Fits are in float64 on the device of the logits.

>>> Temperature().fit(Evidence(source_logits=logits, source_labels=labels)).probabilities(target_logits)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from scipy.optimize import minimize
from torch import Tensor

from bearcat.cat.calibration import Calibration, Evidence, Sample
from bearcat.errors import InputError, suggest

Loss = Callable[[Tensor, Tensor, Tensor], float]  # of logits (window, class), labels and shares (window,)
SGD_STEPS, SGD_RATE, SGD_MOMENTUM = 5000, 0.01, 0.9  # of the published code's vector and matrix scaling
ROUNDS = 60  # ordinary logits take 5 to 10, separable or extreme ones (±1e4) up to about 40
SHRINK = 0.3
TRIALS = 14  # step lengths down to 0.3^13 ≈ 2e-7


class CheckedSettings:
    """Checks the bounds of a temperature, the ridge of a regression and the settings that are one of a few names."""

    choices: ClassVar[Mapping[str, Collection[str]]] = {}

    def __post_init__(self) -> None:
        settings = vars(self)
        bounds, ridge = settings.get("bounds"), settings.get("ridge", 1.0)
        if bounds is not None and (len(bounds) != 2 or not 0 < bounds[0] < bounds[1] < math.inf):
            raise InputError(f"bounds must be two positive temperatures, the lower first, or none, not {bounds}")
        if not 0 < ridge < math.inf:
            raise InputError(f"ridge must be a positive number, not {ridge}")
        for name, known in self.choices.items():
            if settings[name] not in known:
                raise InputError(f"{name} is '{settings[name]}'{suggest(settings[name], known)}")


@dataclass(frozen=True)
class Temperature(CheckedSettings):
    """One temperature per run, of least NLL within the bounds; T is 1, or the nearest bound, where logits say nothing.

    A perfectly classified source has no best temperature: the NLL falls as T goes to 0, and the fit ends at the lower
    bound, which `at_bound` records. Without bounds it is the published code's search by Nelder and Mead from T = 2,
    which then stops somewhere on the way.

    >>> too_sure = Evidence(source_logits=9 * np.eye(2)[[0, 0, 1, 1]], source_labels=np.array([0, 0, 1, 0]))
    >>> round(Temperature().fit(too_sure).temperature.item(), 2)
    8.19
    """

    bounds: tuple[float, float] | None = (1.0, 100.0)  # docs/method.md, for use inside self-training
    needs: ClassVar[tuple[str, ...]] = ()

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        found = least_nll(sample, *self.bounds) if self.bounds else searched(sample, _mean_nll)
        return from_temperature(*found, classes=sample.scores.shape[2])


@dataclass(frozen=True)
class _Regression(CheckedSettings):
    """Settings of calibrators with many parameters."""

    # The ridge keeps separable classes (infinite factors) and the offsets' common shift finite, and should decide
    # nothing else. Against the mean NLL of n windows it is a Gaussian prior of variance 1 / (ridge · n) around "no
    # change": with 1e-4 and 1000 windows a standard deviation of 3.2. On 1000 windows of 13 classes it moved factors by
    # 4e-4 and offsets by 3e-3, a hundredth of what drawing the labels anew does (0.05 and 0.3; for Matrix 1e-4 of 0.03
    # and 7e-3 of 0.4). Separable logits of margin m stop where m · exp(−m · factor) ≈ ridge · (factor − 1).
    ridge: float = 1e-4
    solver: str = "newton"  # or "sgd": 5000 steps of gradient descent without a ridge, as the published code does
    choices: ClassVar[Mapping[str, Collection[str]]] = {"solver": ("newton", "sgd")}
    needs: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Vector(_Regression):
    """A factor and an offset per class, of least mean NLL + ridge/2 · (|factor − 1|² + |offset|²).

    >>> Vector().fit(Evidence(source_logits=9 * np.eye(2), source_labels=np.arange(2))).scale.shape
    torch.Size([1, 2])
    """

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        logits = sample.scores.double()
        inputs = torch.stack([logits, torch.ones_like(logits)], dim=-1)  # (run, window, class, 2)
        offset = torch.arange(2, dtype=inputs.dtype, device=inputs.device)  # 0, 1 made there: copies make a GPU wait
        anchor = (1 - offset).expand(logits.shape[0], logits.shape[2], 2)
        solution = _softmax_regression(inputs, sample, anchor, self.ridge, common=offset, solver=self.solver)
        return replace(_identity(sample), scale=solution[..., 0], bias=solution[..., 1])


@dataclass(frozen=True)
class Matrix(_Regression):
    """A full matrix and an offset per class, of least mean NLL + ridge/2 · (|matrix − identity|² + |offset|²).

    >>> Matrix().fit(Evidence(source_logits=9 * np.eye(2), source_labels=np.arange(2))).matrix.shape
    torch.Size([1, 2, 2])
    """

    def fit(self, evidence: Evidence) -> Calibration:
        sample = evidence.source()
        logits = sample.scores.double()
        runs, _, classes = logits.shape
        inputs = torch.cat([logits, torch.ones_like(logits[..., :1])], dim=-1)[:, :, None]  # for every class the same
        anchor = torch.eye(classes, classes + 1, dtype=logits.dtype, device=logits.device).repeat(runs, 1, 1)
        common = torch.ones_like(anchor[0, 0])
        solution = _softmax_regression(inputs, sample, anchor, self.ridge, common, self.solver)
        return replace(_identity(sample), matrix=solution[..., :-1], bias=solution[..., -1])


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


def searched(sample: Sample, loss: Loss, size: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scale 1/T (run,) by Nelder and Mead's search for T from 2, run by run, and whether there is no best T, since
    every window that counts is right (the loss falls as T goes to 0), or none counts. `size` (run,) multiplies the
    loss: the search ends when that changes little.
    """
    found, degenerate = [], []
    shares = sample.shares()
    weights = shares if size is None else shares * size[:, None]
    for logits, labels, shares in zip(centred(sample).cpu(), sample.labels.cpu(), weights.cpu(), strict=True):
        counting = shares > 0
        logits, labels, shares = logits[counting], labels[counting], shares[counting]
        best = minimize(
            lambda place, logits, *rest: loss(logits / float(place[0]), *rest), [2.0], (logits, labels, shares),
            method="Nelder-Mead",
        )  # fmt: skip
        found.append(1 / float(best.x[0]))
        degenerate.append(bool((logits.gather(-1, labels[:, None]) == 0).all()))
    device = sample.scores.device
    return torch.tensor(found, dtype=torch.float64, device=device), torch.tensor(degenerate, device=device)


def _mean_nll(logits: Tensor, labels: Tensor, shares: Tensor) -> float:
    return float(-(shares * logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]).sum())


def _identity(sample: Sample) -> Calibration:
    return Calibration.identity(sample.scores.shape[0], sample.scores.shape[2], sample.scores.device)


def least_nll(sample: Sample, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    """Scale 1/T (run,) of least NLL for T in [lower, upper], and whether it is at a bound. The NLL is convex in 1/T."""
    logits, shares = centred(sample), sample.shares()
    of_label = (shares * logits.gather(-1, sample.labels[..., None])[..., 0]).sum(1)

    def derivatives(scale: Tensor) -> tuple[Tensor, Tensor]:
        likely = (scale[:, None, None] * logits).softmax(-1)
        mean = (likely * logits).sum(-1, keepdim=True)
        first = (shares * mean[..., 0]).sum(1) - of_label
        return first, (shares * (likely * (logits - mean).square()).sum(-1)).sum(1)

    least, most = torch.full_like(of_label, 1 / upper), torch.full_like(of_label, 1 / lower)
    low, high = least.log(), most.log()
    for _ in range(20):  # to a bracket of about 1e-5 on log T, inside the reach of Newton's method
        middle = (low + high) / 2
        rising = derivatives(middle.exp())[0] > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    place = (low + high) / 2
    for _ in range(5):
        first, second = derivatives(place.exp())
        step = first / (second * place.exp())
        place = torch.where(second > 0, place - step, place).clamp(low, high)
    scale = place.exp().clamp(least, most)
    scale = torch.where(derivatives(least)[0] >= 0, least, scale)
    scale = torch.where(derivatives(most)[0] <= 0, most, scale)  # also where all derivatives have underflowed to 0
    scale = torch.where(says_nothing(logits, shares), torch.ones_like(scale).clamp(least, most), scale)
    return scale, (scale == least) | (scale == most)


def matching_temperature(target: Sample, accuracy: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Temperatures (run, any) at which the mean confidence is the accuracy, or the nearest bound; and the gap."""
    logits, share = centred(target)[:, None], target.shares()[:, None]  # (run, 1, window, class), (run, 1, window)

    def too_sure(temperature: Tensor) -> Tensor:
        confidence = 1 / (logits / temperature[..., None, None]).exp().sum(dim=-1)
        return (share * confidence).sum(dim=-1) - accuracy

    low, high = (torch.full_like(accuracy, bound) for bound in bounds)
    for _ in range(50):
        middle = (low * high).sqrt()
        falls_short = too_sure(middle) > 0
        low, high = torch.where(falls_short, middle, low), torch.where(falls_short, high, middle)
    # What never moved stands at its bound.
    found = torch.where(low == bounds[0], torch.where(too_sure(low) <= 0, low, high), high)
    return found, too_sure(found).abs()


def updated_temperature(sample: Sample, spread: float) -> Tensor:
    """Temperature (run,) of least Σ weight · NLL + (log T)² / (2 spread²): labels move it away from 1, their number
    and `spread`, a standard deviation of log T before there were any, say how far.
    """
    logits = centred(sample)
    of_label = logits.gather(-1, sample.labels[..., None])[..., 0]
    grid = torch.linspace(math.log(0.05), math.log(100.0), 2000, dtype=torch.float64, device=logits.device)
    losses = [
        (sample.weight * ((logits * (-place).exp()).logsumexp(-1) - of_label * (-place).exp())).sum(1)
        + place.square() / (2 * spread**2)
        for place in grid
    ]
    return grid[torch.stack(losses).argmin(dim=0)].exp()


def _softmax_regression(
    inputs: Tensor, sample: Sample, anchor: Tensor, ridge: float, common: Tensor, solver: str
) -> Tensor:
    """Parameters (run, class, input) of least mean NLL of softmax(Σ parameters · inputs) + ridge/2 · |… − anchor|².

    inputs (run, window, class, input), or with a class axis of 1 where all classes have the same; anchor (run, class,
    input); common (input,): 1 where an input is the same for all classes, so that adding a number to its parameters in
    all classes changes no probability.
    """
    (runs, _, _, width), classes = inputs.shape, anchor.shape[1]
    shares = sample.shares()
    hit = (sample.labels[..., None] == torch.arange(classes, device=inputs.device)).double()
    shared = inputs.shape[2] == 1

    def logits(parameters: Tensor) -> Tensor:
        parameters = parameters - common * parameters.mean(1, keepdim=True)  # what is in all classes only costs digits
        return inputs[:, :, 0] @ parameters.mT if shared else (parameters[:, None] * inputs).sum(-1)

    def objective(flat: Tensor) -> Tensor:
        parameters = flat.view(runs, classes, width)
        scores = logits(parameters)
        loss = scores.logsumexp(-1) - (hit * scores).sum(-1)
        return (shares * loss).sum(1) + ridge / 2 * (parameters - anchor).square().sum((1, 2))

    def derivatives(flat: Tensor) -> tuple[Tensor, Tensor]:
        parameters = flat.view(runs, classes, width)
        likely = logits(parameters).softmax(-1)
        error = (shares[..., None] * (likely - hit)).mT  # (run, class, window)
        gradient = error @ inputs[:, :, 0] if shared else (error.mT[..., None] * inputs).sum(1)
        # Hessian: Σ share · (diag(p) − p pᵀ) ⊗ inputs inputsᵀ + ridge
        each = likely[..., None] * inputs
        spread = (shares.sqrt()[..., None, None] * each).flatten(2)
        hessian = -(spread.mT @ spread)
        blocks = hessian.view(runs, classes, width, classes, width)
        each = shares[..., None, None] * each
        if shared:
            own = (each.flatten(2).mT @ inputs[:, :, 0]).view(runs, classes, width, width)
        else:
            own = (each[..., :, None] * inputs[..., None, :]).sum(1)
        blocks.diagonal(dim1=1, dim2=3).add_(own.permute(0, 2, 3, 1))
        hessian.diagonal(dim1=1, dim2=2).add_(ridge)
        # Start and steps leave the sum over classes of a common input's parameters where the anchor has it, which is
        # where the minimum has it. Curvature across is then free to choose, and with that of the other directions
        # logits of 1e4 do not meet a bare ridge of 1e-4.
        curvature = blocks.diagonal(dim1=1, dim2=3).diagonal(dim1=1, dim2=2).mean(1)  # (run, input)
        blocks.diagonal(dim1=2, dim2=4).add_((common * curvature)[:, None, None])
        return (gradient + ridge * (parameters - anchor)).flatten(1), hessian

    if solver == "sgd":  # from the anchor, without the ridge
        parameters, velocity = anchor.clone(), torch.zeros_like(anchor)
        for _ in range(SGD_STEPS):
            scores = inputs[:, :, 0] @ parameters.mT if shared else (parameters[:, None] * inputs).sum(-1)
            error = shares[..., None] * (scores.softmax(-1) - hit)
            velocity = SGD_MOMENTUM * velocity
            velocity += error.mT @ inputs[:, :, 0] if shared else (error[..., None] * inputs).sum(1)
            parameters = parameters - SGD_RATE * velocity
        return parameters
    # From the anchor over the best T ≥ 1: where windows are wrong by huge margins the anchor itself has no curvature.
    scale = least_nll(sample, 1.0, 1e6)[0][:, None, None]
    start = scale * anchor + (1 - scale) * common * anchor.mean(1, keepdim=True)
    return minimise(start.flatten(1), objective, derivatives).view(runs, classes, width)


def minimise(
    start: Tensor, objective: Callable[[Tensor], Tensor], derivatives: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """The minimum (run, parameter) of objective: (run, parameter) → (run,), convex in every run, by Newton's method.

    derivatives: (run, parameter) → gradient (run, parameter), Hessian (run, parameter, parameter). Each round takes the
    Newton direction and the first of the step lengths 1, 0.3, 0.09 … that lowers the objective enough (Armijo). The
    check waits for a GPU after each trial: 5 to 10 short waits cost less than 60 rounds of 14 trials without effect.
    """
    point, value = start, objective(start)
    finished = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(ROUNDS):
        gradient, hessian = derivatives(point)
        direction = _direction(gradient, hessian)
        slope = (gradient * direction).sum(-1)  # minus the squared Newton decrement
        noise = 1e-14 * (1 + value.abs())  # what rounding makes of two equal objectives
        moved, lowered = point, value
        accepted = torch.zeros_like(finished)
        for trial in range(TRIALS):
            length = SHRINK**trial
            candidate = point + length * direction
            reached = objective(candidate)
            take = ~accepted & (reached <= value + 1e-4 * length * slope + noise)
            moved = torch.where(take[:, None], candidate, moved)
            lowered = torch.where(take, reached, lowered)
            accepted |= take
            if bool((accepted | finished).all()):
                break
        point = torch.where(finished[:, None], point, moved)
        value = torch.where(finished, value, lowered)
        # A decrement of 1e-10 before a step is its square after it.
        finished = finished | ~accepted | (slope.abs() <= 1e-20 * (1 + value.abs()))
        if bool(finished.all()):
            break
    return point


def _direction(gradient: Tensor, hessian: Tensor) -> Tensor:
    """−H⁻¹g by Cholesky of H brought to a unit diagonal; −g over that diagonal where H is singular to rounding."""
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    jitter = 1e-14 * torch.eye(gradient.shape[-1], dtype=gradient.dtype, device=gradient.device)
    factor, failed = torch.linalg.cholesky_ex(hessian * scale[:, :, None] * scale[:, None, :] + jitter)
    newton = scale * torch.cholesky_solve((scale * gradient)[..., None], factor)[..., 0]
    return -torch.where((failed > 0)[:, None], scale * scale * gradient, newton)
