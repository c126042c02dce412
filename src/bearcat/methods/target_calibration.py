"""Calibrators that look at the unlabelled target (docs/method.md, docs/trust.md).

CPCS (Park et al., AISTATS 2020) weights labelled source windows by the odds of a logistic regression on features that
separates the domains. TransCal (Wang et al., NeurIPS 2020) makes the mean target confidence an estimate of the target
accuracy. The others need one number for that accuracy (`Evidence.estimates["accuracy"]`, or how far windows of one
recording agree), or make labelled windows out of unlabelled ones.

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
from scipy.optimize import minimize
from torch import Tensor

from bearcat.cat import scaling
from bearcat.cat.calibration import AnyArray, Calibration, Evidence, Sample, as_tensor, read_features
from bearcat.cat.scaling import CheckedSettings, Temperature, centred, from_temperature, matching_temperature
from bearcat.errors import InputError
from bearcat.trust.accuracy import majority_weight

POWERS = 41  # of TransCal's weights, from 0 to 1
START_POWER = 0.5  # where TransCal's search begins
LARGEST_ODDS = 40.0  # of a weight's logarithm, so that the square of the largest weight is a number


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

        found = _least_brier(weighted, *self.bounds) if self.bounds else scaling.searched(weighted, mean_brier, size)
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


@dataclass(frozen=True)
class TransCal(CheckedSettings):
    """The temperature of least |mean target confidence − estimated accuracy|.

    Whole curves of temperature and power make that 0. This is the point nearest to `start` and START_POWER; the
    published search (`solver="slsqp"`) goes from there and stops somewhere. From T = 100, where every window is as
    unsure as another, it does not move: `at_bound` says so.

    >>> find_calibrator("TransCal").needs[-1]
    'target_logits'
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    ridge: float = 1.0  # as in CPCS
    solver: str = "exact"
    start: float = 2.0  # the original's; authors' code: 100
    choices: ClassVar[Mapping[str, Collection[str]]] = {"solver": ("exact", "slsqp")}
    needs: ClassVar[tuple[str, ...]] = (*CPCS.needs, "target_logits")

    def fit(self, evidence: Evidence) -> Calibration:
        sample, exact = evidence.source(), self.solver == "exact"
        weights = CPCS(ridge=self.ridge) if exact else CPCS(resampling="over", solver="scikit-learn")
        odds = weights.log_weights(evidence).clamp(-LARGEST_ODDS, LARGEST_ODDS)
        powers = torch.linspace(0, 1, POWERS, dtype=torch.float64, device=odds.device)
        alone = Temperature((0.05, 100.0) if exact else None).fit(evidence)
        source = (sample.shares() * alone.probabilities(sample.scores.double()).amax(dim=-1)).sum(dim=1)
        target = evidence.target()
        if not exact:
            return self._searched(sample, odds, source, target)
        accuracy = estimated_accuracy(sample, odds, source, powers)
        temperature, gap = matching_temperature(target, accuracy, self.bounds)
        distance = (temperature - self.start).square() + (powers - START_POWER).square()
        best = torch.where(gap <= gap.amin(dim=1, keepdim=True) + 1e-6, distance, torch.inf).argmin(dim=1)
        found = temperature.gather(1, best[:, None])[:, 0]
        at_bound = (found == self.bounds[0]) | (found == self.bounds[1])
        return from_temperature(1 / found, at_bound, classes=target.scores.shape[2])

    def _searched(self, sample: Sample, odds: Tensor, source: Tensor, target: Sample) -> Calibration:
        """By sequential least squares from the start, run by run, with T at least 1 and the power between 0 and 1."""
        logits, shares, found = centred(target), target.shares(), []
        for run in range(len(odds)):
            own = slice(run, run + 1)
            one = Sample(sample.scores[own], sample.labels[own], sample.weight[own])

            def gap(place: np.ndarray, one: Sample = one, own: slice = own) -> float:
                powers = torch.tensor(place[1:], dtype=torch.float64, device=odds.device)
                sure = 1 / (logits[own] / float(place[0])).exp().sum(dim=-1)
                accuracy = estimated_accuracy(one, odds[own], source[own], powers)
                return float(((shares[own] * sure).sum() - accuracy[0, 0]).abs())

            best = minimize(gap, [self.start, START_POWER], method="SLSQP", bounds=((1.0, None), (0.0, 1.0)))
            found.append(float(best.x[0]))
        temperature = torch.tensor(found, dtype=torch.float64, device=odds.device)
        stuck = (temperature <= 1) | ((temperature - self.start).abs() < 1e-3 * self.start)
        return from_temperature(1 / temperature, stuck, classes=target.scores.shape[2])


@dataclass(frozen=True)
class TargetConfidence(CheckedSettings):
    """The temperature at which mean confidence on the target is the accuracy expected there; at least the source's.

    >>> logits, labels, expected = 9 * np.eye(2), np.arange(2), {"accuracy": 0.8}
    >>> evidence = Evidence(source_logits=logits, source_labels=labels, target_logits=logits, estimates=expected)
    >>> TargetConfidence().fit(evidence).probabilities(logits).max(axis=1).round(2)
    array([0.8, 0.8])
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_weight", "estimates")

    def fit(self, evidence: Evidence) -> Calibration:
        source, target = Temperature(self.bounds).fit(evidence), evidence.target()
        if evidence.estimates is None or "accuracy" not in evidence.estimates:
            raise InputError("estimates['accuracy'] is missing from the evidence; give the accuracy to expect")
        wanted = per_run(evidence.estimates["accuracy"], "estimates['accuracy']", target.scores).double()
        found = matching_temperature(target, wanted[:, None], self.bounds)[0][:, 0]
        # Of runs without a target window or an estimate nothing is known but the source.
        unknown = wanted.isnan() | scaling.says_nothing(centred(target), target.shares())
        kept = unknown | (found <= source.temperature)
        scale = torch.where(kept, source.scale[:, 0], 1 / found)
        at_bound = torch.where(unknown, source.at_bound, found >= self.bounds[1])  # what is kept is modest enough
        return from_temperature(scale, at_bound, classes=target.scores.shape[2])


@dataclass(frozen=True)
class PseudoCal(CheckedSettings):
    """The temperature of least NLL on mixtures of target windows, whose label is that of the larger part.

    Hu et al. (ICML 2024) mix pairs of inputs with unlike pseudo-labels; here their features are mixed, since a mixture
    of two waveforms is no waveform of a bearing (mixed waveforms had an ECE of 23.5 %, mixed features 6.2).

    >>> PseudoCal().needs
    ('target_logits', 'target_features', 'target_weight', 'head', 'seeds')
    """

    share: float = 0.65  # of the larger part
    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = ("target_logits", "target_features", "target_weight", "head", "seeds")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.5 < self.share < 1:
            raise InputError(f"share must be above 0.5 and below 1, not {self.share:g}")

    def fit(self, evidence: Evidence) -> Calibration:
        mixed = self.mixtures(evidence)
        return from_temperature(*scaling.least_nll(mixed, *self.bounds), classes=mixed.scores.shape[2])

    def mixtures(self, evidence: Evidence) -> Sample:
        """Logits of mixed features with their labels; pairs that were predicted alike have no weight."""
        target = evidence.target()
        features, weight = read_features(evidence.target_features, evidence.target_weight, "target_features")
        if evidence.head is None:
            raise InputError("head is missing from the evidence; PseudoCal mixes features and classifies them anew")
        other = partners(weight, read_seeds(evidence, weight))
        mixed = self.share * features + (1 - self.share) * features.gather(1, other[..., None].expand_as(features))
        labels = target.scores.argmax(dim=-1)
        logits = torch.where((weight > 0)[..., None], evidence.head(mixed).double(), 0.0)
        return Sample(logits, labels, weight * (labels != labels.gather(1, other)))


@dataclass(frozen=True)
class RecordingConfidence(CheckedSettings):
    """The temperature, at least the source's, at which mean confidence on the target is the share of windows that have
    the class of most windows of their recording, since no more can be right. Its geometric mean with PseudoCal's is
    taken, which knows nothing of recordings and errs otherwise.

    >>> RecordingConfidence().needs[-1]
    'target_recording'
    """

    bounds: tuple[float, float] = (1.0, 100.0)
    needs: ClassVar[tuple[str, ...]] = (*PseudoCal.needs, "target_recording")

    def fit(self, evidence: Evidence) -> Calibration:
        target = evidence.target()
        agreement = {"accuracy": window_agreement(target, evidence.target_recording)}
        fitted = TargetConfidence(self.bounds).fit(replace(evidence, estimates=agreement))
        other = PseudoCal(bounds=self.bounds).fit(evidence).temperature
        least = Temperature(self.bounds).fit(evidence).temperature
        temperature = (fitted.temperature * torch.maximum(other, least)).sqrt()
        return from_temperature(1 / temperature, fitted.at_bound, classes=target.scores.shape[2])


def balanced(source_weight: Tensor, target_weight: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (run, window) after drawing from the larger domain as many windows as the smaller one has, each once.

    Draws depend on the run's seed and a window's index alone, not on the stack, padding or device; so do all below.
    """
    weights = source_weight, target_weight
    fewest = torch.minimum(*((weight > 0).sum(1, keepdim=True) for weight in weights))
    ranks = [_shuffled(weight, 2 * seeds + stream).argsort(1) for stream, weight in enumerate(weights)]
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


def per_run(values: AnyArray, name: str, beside: Tensor) -> Tensor:
    """Values of which there must be one per run, (run,), on the device of a tensor (run, …)."""
    found = as_tensor(values).to(beside.device).reshape(-1)
    if len(found) != len(beside):
        raise InputError(f"{name} must hold one number per run, {len(beside)}, not {len(found)}")
    return found


def window_agreement(target: Sample, recording: AnyArray | None) -> Tensor:
    """The share of windows whose class is that of most windows of their recording, (run,)."""
    if recording is None:
        raise InputError("target_recording is missing from the evidence; give the number of each window's recording")
    shares, classes = target.shares(), target.scores.shape[2]
    number = as_tensor(recording).to(shares.device).long().reshape(shares.shape).clamp(min=0)
    rows = [array.cpu().numpy() for array in (target.scores.argmax(dim=-1), number, shares)]
    found = [majority_weight(said, own, classes, share) for said, own, share in zip(*rows, strict=True)]
    return torch.stack([torch.from_numpy(each).sum() for each in found]).to(shares.device)


def partners(weight: Tensor, seeds: Tensor) -> Tensor:
    """For each window another one, (run, window): the next in a random circle of all that count."""
    order = _shuffled(weight, seeds)
    count = (weight > 0).sum(dim=1, keepdim=True).clamp(min=1)
    return order.gather(1, (order.argsort(dim=1) + 1) % count)


def _shuffled(weight: Tensor, seeds: Tensor) -> Tensor:
    """Places of windows (run, window) in random order, those without weight last."""
    keys = random_integers(seeds, weight.shape[1]).masked_fill(weight == 0, torch.iinfo(torch.int64).max)
    return keys.argsort(stable=True, dim=1)


def read_seeds(evidence: Evidence, beside: Tensor) -> Tensor:
    """The seed of each run of a tensor (run, …), 0 where none is given."""
    seeds = torch.zeros(len(beside), dtype=torch.int64) if evidence.seeds is None else evidence.seeds
    return per_run(seeds, "seeds", beside).long()


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


def estimated_accuracy(sample: Sample, odds: Tensor, source_confidence: Tensor, powers: Tensor) -> Tensor:
    """The target accuracy that labelled source windows suggest, (run, power), by importance weighting with two control
    variates: the mean weight, which should be 1, and the share of right predictions, which should be their calibrated
    source_confidence (run,). Powers of the weights reduce bias; odds (run, window) are their logarithms.
    """
    share = sample.shares()[:, None]  # (run, 1, window)
    error = (sample.scores.argmax(dim=-1) != sample.labels).double()[:, None]
    weight = (powers[:, None] * odds[:, None]).exp()  # (run, power, window)

    def mean(values: Tensor) -> Tensor:
        return (share * values).sum(dim=-1, keepdim=True)

    def slope(values: Tensor, control: Tensor) -> Tensor:
        """Minus covariance over variance: how much of the control's deviation is to be taken off."""
        deviation = control - mean(control)
        variance = mean(deviation.square())
        return torch.where(variance > 0, -mean((values - mean(values)) * deviation) / variance, 0.0)

    weighted, right = weight * error, (1 - error).expand_as(weight)
    by_weight = slope(weighted, weight)
    by_right = slope(weighted + by_weight * (weight - 1), right)
    risk = mean(weighted) + by_weight * (mean(weight) - 1) + by_right * (mean(right) - source_confidence[:, None, None])
    return 1 - risk[..., 0]


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

    return scaling.minimise(inputs.new_zeros(inputs.shape[0], inputs.shape[2]), objective, derivatives)


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
    scale = torch.where(scaling.says_nothing(logits, shares), torch.ones_like(scale).clamp(least, most), scale)
    scale = torch.where(values.isnan().any(0), torch.nan, scale)
    return scale, (scale == least) | (scale == most)
