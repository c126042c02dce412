"""How far to trust predictions on a target without labels: numbers a run can tell of itself (docs/trust.md).

Expected accuracy, a risk weighted towards the target, when to abstain, and whether a window looks like anything seen
before. Numpy in, numbers out, for one run; no torch, so that a served model can ask too. No function here takes target
labels but those of the last part, which hold the estimates against the truth where there is one.

>>> expected_accuracy(source, target)["confidence"]
Estimate(value=0.84, low=0.78, high=0.9)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

LEVEL = 0.9  # of intervals
DRAWS = 500  # of the bootstrap
FEWEST_RECORDINGS = 5  # with fewer, windows are drawn instead: their interval is narrow, and it is said so
KEPT_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the target's windows, the surest first
ERROR_RATES = (0.01, 0.05, 0.1)  # that a confidence threshold is to reach
MISS_RATES = (0.05, 0.1, 0.2)  # how often a conformal set may miss the class
CERTAINTY = 0.9  # that a threshold's error rate holds, for windows like the source's
FALSE_ALARMS = 0.05
NEIGHBOURS = 10
KEPT_FEATURES = 1024  # windows that stand for the target in a Familiarity
BANDS = 32  # of a spectrum, for its shape: wide enough for one window to say how much is in each
LEAST_SHARE = 1e-6  # of a window's energy; what is less in a band is taken for nothing
# Of 1440 runs on HIT-SM and CWRU the truth was so far below the range in 379 (docs/results.md).
MEASURED = "On public recordings one model in four was more than 10 points worse than such a range says."
CHOOSER = "bnm"  # the validator that recommends epochs and recipes
FAR = 0.1  # estimates this far from each other, or from the truth, deserve a word


@dataclass(frozen=True)
class Estimate:
    """A share of windows, with the interval it is expected in."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Source:
    """The labelled source test windows: calibrated log-probabilities (window, class) and labels (window,)."""

    log_probabilities: Floats
    labels: Integers

    @property
    def right(self) -> Booleans:
        found: Booleans = self.log_probabilities.argmax(axis=1) == self.labels
        return found


@dataclass(frozen=True, eq=False)
class Target:
    """Target windows without labels: calibrated log-probabilities (window, class), recording (window,)."""

    log_probabilities: Floats
    recording: Integers


# How many windows are right.


def confidence(log_probabilities: Floats) -> Floats:
    """Probability of the predicted class, (window,)."""
    found: Floats = np.exp(log_probabilities.max(axis=1))
    return found


def negative_entropy(log_probabilities: Floats) -> Floats:
    """Σ p log p, (window,): 0 for a sure prediction, −log(classes) for none at all."""
    terms = np.exp(log_probabilities) * np.where(np.isneginf(log_probabilities), 0.0, log_probabilities)
    found: Floats = terms.sum(axis=1)
    return found


def atc_threshold(scores: Floats, right: Booleans) -> float:
    """The score that as many of these windows lie below as are wrong (average thresholded confidence)."""
    wrong = int((~right).sum())
    return math.inf if wrong == len(scores) else float(np.sort(scores)[wrong])


def expected_accuracy(source: Source, target: Target, seed: int = 0) -> dict[str, Estimate]:
    """The share of right predictions on the target by four means, each with a bootstrap interval."""
    of_source, of_target = confidence(source.log_probabilities), confidence(target.log_probabilities)
    columns = {"confidence": of_target}
    for name, score in (("atc_confidence", confidence), ("atc_entropy", negative_entropy)):
        threshold = atc_threshold(score(source.log_probabilities), source.right)
        columns[name] = (score(target.log_probabilities) >= threshold).astype(np.float64)
    found = dict(zip(columns, bootstrap(np.stack(list(columns.values())), target.recording, seed), strict=True))
    # What the source is surer than right by, the target is taken to be too.
    shift = float(source.right.mean() - of_source.mean())
    doc = np.clip([one + shift for one in asdict(found["confidence"]).values()], 0, 1)
    return found | {"doc": Estimate(*doc.tolist())}


def bootstrap(expected: Floats, recording: Integers, seed: int = 0, draws: int = DRAWS) -> list[Estimate]:
    """Means of rows (estimate, window) of expected hits in 0 … 1, with percentile intervals.

    Windows of one recording resemble each other, so whole recordings are drawn; where there are fewer than
    FEWEST_RECORDINGS, windows are. A draw then errs as that many coins would: a confidence of 0.7 leaves open which.
    """
    random = np.random.default_rng(seed)
    _, group = np.unique(recording, return_inverse=True)
    if group.max(initial=0) + 1 < FEWEST_RECORDINGS:
        group = np.arange(len(recording))
    groups = int(group.max()) + 1
    windows = np.bincount(group, minlength=groups)
    sums = np.stack([np.bincount(group, one, groups) for one in expected])
    doubt = np.stack([np.bincount(group, one * (1 - one), groups) for one in expected])
    picked = random.integers(groups, size=(draws, groups))
    times = np.bincount((picked + groups * np.arange(draws)[:, None]).ravel(), minlength=draws * groups)
    times = times.reshape(draws, groups).astype(np.float64)
    counted = times @ windows
    means = times @ sums.T / counted[:, None]
    means += random.standard_normal(means.shape) * np.sqrt(times @ doubt.T) / counted[:, None]
    low, high = np.quantile(means.clip(0, 1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    values = expected.mean(axis=1)
    columns = values, np.minimum(low, values), np.maximum(high, values)
    return [Estimate(*row) for row in np.stack(columns, axis=1).tolist()]


def dev_risk(errors: Floats, log_weights: Floats) -> float:
    """Risk on the target from source errors (window,), by density ratios with a control variate (DEV).

    mean(w·e) + η (mean(w) − 1) with η = −cov(w·e, w) / var(w): the weights' mean must be 1, and how far it is not says
    how far the risk is off.
    """
    weights = np.exp(np.clip(log_weights, -30.0, 30.0))
    weighted = weights * errors
    spread = weights.var()
    eta = -((weighted - weighted.mean()) * (weights - weights.mean())).mean() / spread if spread > 0 else 0.0
    return float(weighted.mean() + eta * (weights.mean() - 1))


def agreement(one: Sequence[Any] | NDArray[Any], other: Sequence[Any] | NDArray[Any]) -> float:
    """The share of windows of which two runs predict the same."""
    return float(np.mean(np.asarray(one) == np.asarray(other))) if len(one) else math.nan


# When to abstain.


def lac_scores(probabilities: Floats) -> Floats:
    """1 − p of every class, (window, class): sets of least size on average."""
    return 1 - probabilities


def aps_scores(probabilities: Floats) -> Floats:
    """The probability of this class and all likelier ones, (window, class): sets that are larger where it is harder."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    summed = np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1)
    found = np.empty_like(summed)
    np.put_along_axis(found, order, summed, axis=1)
    return found


SET_SCORES = {"lac": lac_scores, "aps": aps_scores}


def conformal_limit(scores: Floats, rate: float) -> float:
    """The limit that a new score, exchangeable with these, exceeds with at most this probability; perhaps infinite."""
    rank = math.ceil((len(scores) + 1) * (1 - rate) - 1e-9)
    return math.inf if rank > len(scores) else float(np.sort(scores)[rank - 1])


def conformal_sets(probabilities: Floats, kind: str, limit: float) -> Booleans:
    """Which classes are in the set, (window, class). "aps" always holds the likeliest; "lac" may hold none."""
    # Sums of probabilities end at 1 give or take a rounding, which must not decide who is in.
    inside: Booleans = SET_SCORES[kind](probabilities) <= limit + 1e-9
    if kind == "aps":
        inside[np.arange(len(inside)), probabilities.argmax(axis=1)] = True
    return inside


def error_threshold(sure: Floats, right: Booleans, rate: float, certainty: float = CERTAINTY) -> float | None:
    """The lowest confidence from which on at most `rate` of predictions are wrong, with this certainty; or None.

    Ten thresholds are tried, those which keep the surest 10, 20 … 100 %; each is held to a tenth of the doubt
    (Bonferroni), by Clopper's and Pearson's bound, so that the best of them can be taken.
    """
    best, ordered = None, np.sort(sure)[::-1]
    for step in range(1, 11):
        limit = ordered[max(1, round(len(sure) * step / 10)) - 1]
        kept = sure >= limit
        if error_bound(int((kept & ~right).sum()), int(kept.sum()), 1 - (1 - certainty) / 10) <= rate:
            best = float(limit)
    return best


def error_bound(wrong: int, windows: int, certainty: float) -> float:
    """What the error rate is below, with this certainty, when so many of so many windows are wrong."""
    from scipy.special import betaincinv

    return 1.0 if wrong >= windows else float(betaincinv(wrong + 1, windows - wrong, certainty))


def abstention(source: Source, target: Target) -> dict[str, Any]:
    """What is gained by leaving out unsure windows of the target, and thresholds for chosen error rates."""
    sure, of_source = confidence(target.log_probabilities), confidence(source.log_probabilities)
    ordered = np.sort(sure)[::-1]
    kept = []
    for share in KEPT_SHARES:
        surest = ordered[: max(1, round(share * len(sure)))]
        kept.append({"kept": share, "confidence": float(surest[-1]), "accuracy": float(surest.mean())})
    thresholds = []
    for rate in ERROR_RATES:
        limit = error_threshold(of_source, source.right, rate)
        above = sure[sure >= limit] if limit is not None else sure[:0]
        thresholds.append(
            {
                "error": rate, "confidence": limit, "kept_source": _share(of_source >= limit) if limit else 0.0,
                "kept": len(above) / len(sure), "accuracy": float(above.mean()) if len(above) else None,
            }
        )  # fmt: skip
    return {"certainty": CERTAINTY, "kept": kept, "thresholds": thresholds}


def conformal(source: Source, target: Target) -> dict[str, Any]:
    """Split-conformal sets fitted on the source test windows, and how large they are on the target."""
    of_source, of_target = np.exp(source.log_probabilities), np.exp(target.log_probabilities)
    found: dict[str, Any] = {}
    for kind, scores in SET_SCORES.items():
        of_label = scores(of_source)[np.arange(len(of_source)), source.labels]
        found[kind] = []
        for rate in MISS_RATES:
            limit = conformal_limit(of_label, rate)
            sizes = conformal_sets(of_target, kind, limit).sum(axis=1)
            found[kind].append(
                {
                    "miss": rate, "limit": limit if math.isfinite(limit) else None, "size": float(sizes.mean()),
                    "single": _share(sizes == 1), "none": _share(sizes == 0),
                }
            )  # fmt: skip
    return found


# Whether a window looks like anything seen before.


@dataclass(frozen=True, eq=False)
class Familiarity:
    """What the adapted target looks like, to the network and as such, and the limits of windows of its kind.

    Three scores, higher is stranger. Energy: −log Σ exp(logits) of uncalibrated logits. Distance: to the NEIGHBOURS-th
    nearest feature vector of the target's training windows, all of length 1. Shape: the same distance between spectra,
    in bands, over the one those neighbours have themselves. The first two see what the network sees, which is trained
    to overlook much; the third sees the signal. Each has a third of the rate.
    """

    features: NDArray[Any]  # (kept window, feature) of length 1; float32 in steps of float16, which half the bytes keep
    shapes: NDArray[Any]  # (kept window, channel · band), likewise: `spectral_shape`
    spreads: NDArray[Any]  # (kept window,) the distance of each shape to its own neighbours
    neighbours: int
    rate: float  # of false alarms among windows; more than asked for where few windows were held out
    energy_limit: float
    distance_limit: float
    shape_limit: float
    recording_limit: float  # the share of unfamiliar windows that recordings of the target stay within

    def scores(self, logits: NDArray[Any], features: NDArray[Any], magnitudes: NDArray[Any]) -> Floats:
        """Energy, distance and shape (score, window) of windows, by uncalibrated logits, features and their spectra."""
        return _strangeness(self, logits, features, magnitudes)

    def unfamiliar(self, logits: NDArray[Any], features: NDArray[Any], magnitudes: NDArray[Any]) -> Booleans:
        """Which windows are beyond any limit, (window,). magnitudes (window, channel, bin), times any factor."""
        return self.beyond(self.scores(logits, features, magnitudes))

    def beyond(self, scores: Floats) -> Booleans:
        """The same by their scores (score, window), where those are known already."""
        limits = np.array([self.energy_limit, self.distance_limit, self.shape_limit])
        found: Booleans = np.any(scores > limits[:, None], axis=0)
        return found

    def alarm(self, unfamiliar: int, windows: int) -> bool:
        """Whether a recording of so many windows, so many of them unfamiliar, is none of the target's kind.

        Its share of unfamiliar windows must exceed what recordings of the target have shown, and their number what
        chance makes of the false-alarm rate: two windows, one of them strange, are no alarm.
        """
        from scipy.special import bdtrc

        if unfamiliar == 0 or unfamiliar / windows <= self.recording_limit:
            return False
        return bool(bdtrc(unfamiliar - 1, windows, self.rate) <= self.rate)

    @property
    def usable(self) -> bool:
        """Whether the limits are numbers; those of a run whose training broke down are not."""
        return all(math.isfinite(one) for one in vars(self).values() if isinstance(one, float))

    def state(self) -> dict[str, NDArray[Any]]:
        """Plain arrays by name, for saving: KEPT_FEATURES rows of float16 at most, and numbers."""
        arrays = {name: np.asarray(value) for name, value in vars(self).items()}
        return arrays | {name: arrays[name].astype(np.float16) for name in ("features", "shapes")}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Familiarity:
        """Back from `state`; InputError where these cannot be one's."""
        names = set(Familiarity.__dataclass_fields__)
        if set(state) != names:
            raise InputError(f"a familiarity is made of {', '.join(sorted(names))}, not {', '.join(sorted(state))}")
        features, shapes, spreads = arrays = [
            np.asarray(state[name], dtype=np.float32) for name in ("features", "shapes", "spreads")
        ]
        limits = [float(state[f"{name}_limit"]) for name in ("energy", "distance", "shape", "recording")]
        found = Familiarity(features, shapes, spreads, int(state["neighbours"]), float(state["rate"]), *limits)
        sound = [one.ndim for one in arrays] == [2, 2, 1] and len({len(one) for one in arrays}) == 1
        if not sound or not 1 <= found.neighbours <= len(arrays[0]) or not found.usable:
            raise InputError("a familiarity has rows of numbers, at least as many as neighbours, and finite limits")
        return found


def fit_familiarity(
    train_features: NDArray[Any], train_magnitudes: NDArray[Any], logits: NDArray[Any], features: NDArray[Any],
    magnitudes: NDArray[Any], recording: Integers, rate: float = FALSE_ALARMS,
) -> Familiarity:  # fmt: skip
    """From the target's training windows, and held-out ones that set the limits; magnitudes are of their spectra."""
    if not 0 < rate < 1:
        raise InputError(f"the rate of false alarms must lie between 0 and 1, not {rate:g}")
    kept, shapes = (  # training windows stand in random order; rounded as they will be read back, so that limits fit
        one.astype(np.float16).astype(np.float32)
        for one in (unit(train_features[:KEPT_FEATURES]), spectral_shape(train_magnitudes[:KEPT_FEATURES]))
    )
    neighbours = min(NEIGHBOURS, len(kept))
    spreads = nearest(shapes, shapes, min(neighbours + 1, len(kept)))[0].astype(np.float32)  # each is its own nearest
    open_ = Familiarity(kept, shapes, spreads, neighbours, rate, math.nan, math.nan, math.nan, math.nan)
    return _with_limits(open_, _strangeness(open_, logits, features, magnitudes), recording)


def familiarity_told(fitted: Familiarity, scores: Floats, recording: Integers, source: Booleans) -> dict[str, Any]:
    """What a record says: the limits, false alarms where every second window sets them for the others, and the source.

    scores (score, window): of the held-out target windows; source (window,): which of the *source's* windows look
    unfamiliar. Their share says whether a change as large as that between the two domains would be noticed; no label
    is needed for either.
    """
    order = np.argsort(recording, kind="stable")  # every recording on both sides
    wrong, windows = 0, 0
    for setting, asked in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        if len(setting) and len(asked):
            half = _with_limits(fitted, scores[:, setting], recording[setting])
            wrong, windows = wrong + int(half.beyond(scores[:, asked]).sum()), windows + len(asked)
    return {
        "rate": fitted.rate,
        "false_alarms": wrong / windows if windows else None,
        "source_unfamiliar": _share(source),
        "energy_limit": fitted.energy_limit,
        "distance_limit": fitted.distance_limit,
        "shape_limit": fitted.shape_limit,
        "recording_limit": fitted.recording_limit,
        "recordings": len(np.unique(recording)),
    }


def energy(logits: NDArray[Any]) -> Floats:
    """−log Σ exp(logits), (window,): high where no class calls."""
    wide = logits.astype(np.float64)
    most = wide.max(axis=1, keepdims=True)
    found: Floats = -(most[:, 0] + np.log(np.exp(wide - most).sum(axis=1)))
    return found


def unit(features: NDArray[Any]) -> Floats:
    """Rows of length 1, float32; rows of zeros stay so."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    found: Floats = (features / np.where(length > 0, length, 1)).astype(np.float32)
    return found


def spectral_shape(magnitudes: NDArray[Any]) -> Floats:
    """Logarithms of the shares of a window's energy in BANDS bands: (window, channel, bin) → (window, channel · band).

    Magnitudes may be times any factor and plus any number, as standardisation leaves them: the least counts as none.
    The first bin, a sensor's offset, is left out. A band below LEAST_SHARE counts as holding that.
    """
    wide = np.asarray(magnitudes[..., 1:], dtype=np.float64)
    wide = wide - wide.min(axis=-1, keepdims=True)
    most = wide.max(axis=-1, keepdims=True)
    power = (wide / np.where(most > 0, most, 1)) ** 2
    starts = np.arange(BANDS) * power.shape[-1] // BANDS
    sums = np.add.reduceat(power, np.unique(starts), axis=-1)
    total = sums.sum(axis=-1, keepdims=True)
    found: Floats = np.log(np.maximum(sums / np.where(total > 0, total, 1), LEAST_SHARE))
    return found.reshape(len(found), -1)


def nearest(known: NDArray[Any], asked: NDArray[Any], neighbours: int) -> tuple[Floats, Integers]:
    """Distance (window,) from each of `asked` to its neighbours-th nearest of `known`; and which are so near."""
    squared = (known**2).sum(axis=1) - 2 * (asked @ known.T) + (asked**2).sum(axis=1)[:, None]
    who = np.argpartition(squared, neighbours - 1, axis=1)[:, :neighbours]
    farthest = np.take_along_axis(squared, who[:, -1:], axis=1)[:, 0]
    return np.sqrt(np.maximum(farthest, 0)).astype(np.float64), who  # (window,), (window, neighbour)


def _strangeness(known: Familiarity, logits: NDArray[Any], features: NDArray[Any], magnitudes: NDArray[Any]) -> Floats:
    """The three scores (score, window), for which no limit is needed yet."""
    far, _ = nearest(known.features, unit(features), known.neighbours)
    # The bands' numbers are few and large: float64 keeps small differences of large squares.
    odd, who = nearest(known.shapes.astype(np.float64), spectral_shape(magnitudes), known.neighbours)
    usual = np.maximum(known.spreads[who].mean(axis=1), 1e-3)  # windows that are all alike have no spread
    return np.stack([energy(logits), far, odd / usual])


def _with_limits(known: Familiarity, scores: Floats, recording: Integers) -> Familiarity:
    """The same with limits from the scores (score, window) of held-out target windows."""
    # Few windows cannot hold a small rate; the largest score of n is exceeded by one in n + 1, and so the rate is told.
    rate = max(known.rate, len(scores) / (scores.shape[1] + 1))
    limits = [min(conformal_limit(one, rate / len(scores)), float(one.max())) for one in scores]
    beyond = (scores > np.array(limits)[:, None]).any(axis=0)
    _, group = np.unique(recording, return_inverse=True)
    shares = np.bincount(group, beyond) / np.bincount(group)
    # With few recordings no limit holds at this rate; the largest share seen is then the best there is.
    return replace(
        known, rate=rate, energy_limit=limits[0], distance_limit=limits[1], shape_limit=limits[2],
        recording_limit=min(conformal_limit(shares, rate), float(shares.max())),
    )  # fmt: skip


# What a record says.


def expected(accuracy: Mapping[str, Estimate]) -> Estimate:
    """What to expect: the lower of confidence and ATC, with all that either interval holds.

    On labelled public recordings (docs/results.md) both were far more often too high than too low, and the lower one
    was the nearer.
    """
    both = [accuracy[name] for name in ("confidence", "atc_confidence") if name in accuracy]
    lower = min(both, key=lambda one: one.value)
    return Estimate(lower.value, min(one.low for one in both), max(one.high for one in both))


def expected_of(told: Mapping[str, Any]) -> Estimate | None:
    """The same of a record's `estimates`; None where they have no such numbers."""
    found = {name: Estimate(**one) for name, one in (told.get("accuracy") or {}).items() if None not in one.values()}
    return expected(found) if "confidence" in found else None


def verdict(
    accuracy: Mapping[str, Estimate], failed: bool = False, collapsed: bool = False, calibrated: bool = True
) -> str:
    """Two or three sentences for somebody who has to decide."""
    if failed:
        return "Do not use this model: its training broke down."
    if collapsed:
        return "Do not use this model: it gives every window of the target the same class."
    values = [one.value for one in accuracy.values()]
    if not np.isfinite(values).all():
        return "Nothing can be said about how often this model is right: its confidences are no numbers."
    best = expected(accuracy)
    said = f"Expect about {100 * best.value:.0f} % ({100 * best.low:.0f}–{100 * best.high:.0f}) of windows right"
    if max(values) - min(values) > FAR:
        said += f"; but estimates range from {100 * min(values):.0f} to {100 * max(values):.0f} %"
    said += f". {MEASURED} Check some windows by hand before relying on it."
    return said if calibrated else f"{said} The confidence behind this is not calibrated."


def estimates(
    source: Source, target: Target, validators: Mapping[str, float], familiarity: Mapping[str, Any],
    failed: bool = False, collapsed: bool = False, calibrated: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """All that a record's `estimates` hold. Nothing of it depends on a target label.

    calibrated: there is a calibration, and it did not end at its bound.
    """
    accuracy = expected_accuracy(source, target)
    return plain(
        {
            "mean_confidence": accuracy["confidence"].value,
            "accuracy": {name: asdict(one) for name, one in accuracy.items()},
            "validators": dict(validators),
            "abstention": abstention(source, target),
            "conformal": conformal(source, target),
            "familiarity": dict(familiarity),
            "verdict": verdict(accuracy, failed, collapsed, calibrated),
        }
    )


def checked(
    told: Mapping[str, Any], target: Target, labels: Integers, unknown: Booleans, unfamiliar: Booleans
) -> dict[str, Any] | None:
    """The estimates against the truth, from target labels (window,), −1 where there is none; None without any.

    unknown (window,): windows of a class that the source does not have.
    """
    known = labels >= 0
    if not known.any():
        return None
    right = (target.log_probabilities.argmax(axis=1) == labels)[known]
    sure = confidence(target.log_probabilities)[known]
    truth = float(right.mean())
    order = np.argsort(-sure, kind="stable")
    guessed = {name: one for name, one in told["accuracy"].items() if None not in one.values()}

    def above(limit: float | None) -> dict[str, Any]:
        kept = sure >= limit if limit is not None else np.zeros(len(sure), dtype=bool)
        return {"kept": _share(kept), "accuracy": float(right[kept].mean()) if kept.any() else None}

    sets: dict[str, Any] = {}
    probabilities = np.exp(target.log_probabilities[known])
    for kind, fitted in told["conformal"].items():
        sets[kind] = []
        for one in fitted:
            limit = math.inf if one["limit"] is None else one["limit"]
            inside = conformal_sets(probabilities, kind, limit)
            hit = inside[np.arange(len(inside)), labels[known]]
            sets[kind].append({"miss": one["miss"], "coverage": _share(hit)})
    return plain(
        {
            "accuracy": truth,
            "too_high_by": {name: one["value"] - truth for name, one in guessed.items()},
            "inside": {name: one["low"] <= truth <= one["high"] for name, one in guessed.items()},
            "abstention": {
                "kept": [
                    {"kept": share, "accuracy": float(right[order[: max(1, round(share * len(sure)))]].mean())}
                    for share in KEPT_SHARES
                ],
                "thresholds": [
                    {"error": one["error"], **above(one["confidence"])} for one in told["abstention"]["thresholds"]
                ],
            },
            "conformal": sets,
            "familiarity": {
                "known_unfamiliar": _share(unfamiliar[known]),
                "unknown_unfamiliar": _share(unfamiliar[unknown]) if unknown.any() else None,
                "wrong_unfamiliar": _share(unfamiliar[known][~right]) if (~right).any() else None,
            },
        }
    )  # fmt: skip


def favoured_epoch(validator: NDArray[Any]) -> dict[str, Any] | None:
    """The epoch that CHOOSER likes best, by its values (epoch,); nan where there was no network to judge yet.

    It is told, not acted upon: the last epoch was as good for methods that adapt (docs/results.md).
    """
    if not np.isfinite(validator).any():
        return None
    best = int(np.nanargmax(validator))
    return plain({"validator": CHOOSER, "epoch": best, "value": float(validator[best]), "last": float(validator[-1])})


def favoured_checked(told: Mapping[str, Any], accuracy: NDArray[Any]) -> dict[str, Any] | None:
    """What the labels say of that choice: accuracy (epoch,) at it, at the last and at the best epoch."""
    if not np.isfinite(accuracy).any():
        return None
    found = {"chosen": accuracy[told["epoch"]], "last": accuracy[-1], "best": np.nanmax(accuracy)}
    return plain({name: float(one) for name, one in found.items()})


def plain(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same without what JSON does not know: None for nan and infinity."""

    def of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return plain(value)
        if isinstance(value, list):
            return [of(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: of(value) for name, value in told.items()}


def _share(chosen: NDArray[Any]) -> float:
    return float(np.mean(chosen)) if len(chosen) else math.nan
