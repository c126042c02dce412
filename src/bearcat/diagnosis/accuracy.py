"""How many predictions on the target are right, estimated without its labels.

Check models are cheap classifiers that share neither training nor representation with the network. Where unlike models
agree with it, it is probably right; errors that all share go undetected. Some never adapt, and cannot follow a change
that the network has followed; others move the source's classes to the target's recordings, and fail where the target
lacks classes. What such agreement was worth is read from past runs: past_runs.json holds, by kind of shift and group of
runs (dataset, input, mix of classes), their evidence and the share of windows that were right
(`python benchmarks/past_runs.py`).

>>> past_accuracy({"consensus": 1.0, "votes": 0.9, "agreement": 0.85, "window_agreement": 0.99}, past_runs("condition"))
Estimate(value=1.0, low=0.97, high=1.0)
>>> check_predictions(source, labels, target, recording, windows)["linear"]
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.inputs import Physics, Spectrum, Waveform, find_input
from bearcat.data.recording import spectrum
from bearcat.diagnosis.decision import LEVEL, Estimate, ModelEvidence, binomial_interval
from bearcat.diagnosis.pooling import Booleans, Floats, Integers, softmax
from bearcat.errors import without_nan

STEADY = ("linear", "neighbours")  # check models that never adapt, by the end of their names
UNCERTAIN = 5  # recordings to be checked first, at most
PAST_RUNS = Path(__file__).parent / "past_runs.json"
# Three estimators and the agreement of windows. Chosen by leaving groups and datasets out (docs/results.md).
EVIDENCE = ("consensus", "votes", "agreement", "window_agreement")
Past = Mapping[str, Sequence[Sequence[float]]]  # group → its runs: the EVIDENCE in this order, and the truth
# Kinds of past runs (data/tasks.py, `trust_shift`), and by which of them a run of a kind is judged: what another
# bearing costs is not known from runs on other loads. Chosen by leaving datasets out (docs/results.md).
SHIFTS = ("condition", "specimen", "machine", "one bearing")
COMPARED = {
    "condition": SHIFTS[:1], "specimen": SHIFTS[1:], "machine": SHIFTS[1:], "one bearing": SHIFTS[1:],
    "unknown": SHIFTS,
}  # fmt: skip
# The expected accuracy is so far above the lower end of its interval at most. All chosen by leaving datasets out.
MOST_ABOVE = {"condition": 1.0, "specimen": 0.03, "machine": 0.03, "one bearing": 0.03, "unknown": 0.1}
NEAR = 0.05  # distance of evidence at which a past run counts e^(−1/2) of one with the same evidence
FEWEST = 30  # runs that are nearer than 1.5 times that distance; where there are fewer, it grows

# Two that do not adapt; discriminants with the target's mean put where the source's is, or every point of the target
# standardised by the target; and moved to the target's recordings, all classes together or each apart, from where they
# are or from the target's mean.
MODELS = (
    "linear", "neighbours", "centred", "standardised", "moved together", "moved together from the mean", "moved apart",
    "moved apart from the mean",
)  # fmt: skip
NEIGHBOURS = 5
MOST_WINDOWS = 2000  # of the source
MOST_POINTS = 256  # of a representation: a check model is a simple one, and its space costs the cube of them
ROUNDS = 30  # of EM at most
LEAST_SHARE = 1e-6  # of a class in EM


@dataclass(frozen=True, eq=False)
class Target:
    """Target windows without labels: calibrated log-probabilities (window, class), recording (window,)."""

    log_probabilities: Floats
    recording: Integers
    checks: Mapping[str, Integers] = field(default_factory=dict)  # what check models say of the windows

    @property
    def predicted(self) -> Integers:
        return np.asarray(self.log_probabilities.argmax(axis=1))


def recording_votes(target: Target) -> Floats:
    """The share of check models that say each class of a window's recording, (window, class), mean over its windows."""
    classes = 1 + max(int(codes.max()) for codes in (*target.checks.values(), target.predicted))
    votes = np.mean([np.eye(classes)[codes] for codes in target.checks.values()], axis=0)
    number = np.unique(target.recording, return_inverse=True)[1]
    sums = np.zeros((int(number.max()) + 1, classes))
    np.add.at(sums, number, votes)
    return np.asarray((sums / np.bincount(number)[:, None])[number])


def by_votes(target: Target) -> Floats:
    """The share of check models that say, of a window's recording, the class predicted for the window, (window,)."""
    return np.asarray(recording_votes(target)[np.arange(len(target.predicted)), target.predicted])


def expected_accuracy(target: Target) -> dict[str, float]:
    """The expected share of right predictions on the target by all estimators with evidence: mean confidence; how many
    check models that never adapt agree with a prediction, how many of all say its class of the recording, and whether
    most of them do.
    """
    shares = {"confidence": np.exp(target.log_probabilities.max(axis=1)).mean()}
    if target.checks:
        steady = [codes for name, codes in target.checks.items() if name.endswith(STEADY)]
        shares["agreement"] = np.mean([codes == target.predicted for codes in steady])
        shares["votes"] = by_votes(target).mean()
        shares["consensus"] = (recording_votes(target).argmax(axis=1) == target.predicted).mean()
    return {name: float(share) for name, share in shares.items()}


def window_agreement(target: Target) -> float:
    """The share of windows whose class is that of most windows of their recording: no more can be right."""
    _, number = np.unique(target.recording, return_inverse=True)
    counts = np.zeros((number.max() + 1, target.predicted.max() + 1))
    np.add.at(counts, (number, target.predicted), 1)
    return float(counts.max(axis=1).sum() / len(number))


def estimates(
    right: Booleans, labels: Integers, target: Target, finite: bool,
    one_class: str | None, calibrated: bool, names: Sequence[str], shown: Floats, shift: str,
) -> tuple[dict[str, Any], ModelEvidence]:  # fmt: skip
    """A record's `estimates`, and the evidence for the decision.

    `right` and `labels` are of the source's test windows, `names` of the recordings that `target.recording` points
    into; `shown` are the log-probabilities that users see; `shift` is what differs between source and target
    (data/tasks.py); the others are entries of ModelEvidence.
    """
    accuracy, united = expected_accuracy(target), window_agreement(target)
    usual = expected_range(accuracy, united, shift)
    expected = careful(usual, shift) if usual is not None and target.checks else usual
    plain: dict[str, Any] = without_nan({
        "mean_confidence": float(np.exp(shown.max(axis=1)).mean()), "accuracy": accuracy, "window_agreement": united,
        "expected": expected and asdict(expected),
    })  # fmt: skip
    classes = np.unique(labels)
    share = float(np.mean([right[labels == code].mean() for code in classes]))  # classes count alike
    source = Estimate(share, *binomial_interval(round(share * len(labels)), len(labels)))
    evidence = ModelEvidence(
        expected, finite, source, len(labels), len(classes), one_class,
        calibrated, tuple(names[number] for number in uncertain_recordings(target)),
        median=usual.value if usual is not None and expected != usual else None,
        shift=shift if target.checks else None,
    )  # fmt: skip
    return plain, evidence


def uncertain_recordings(target: Target) -> list[int]:
    """Up to UNCERTAIN recordings whose labels would tell most: those on whose windows check models agree least."""
    if not target.checks:
        return []
    agreed, numbers = by_votes(target), np.unique(target.recording)
    shares = np.array([agreed[target.recording == number].mean() for number in numbers])
    return [int(number) for number in numbers[np.argsort(shares, kind="stable")][:UNCERTAIN]]


def expected_range(accuracy: Mapping[str, float], united: float, shift: str) -> Estimate | None:
    """The accuracy to expect: what past runs of such a shift had with such check models and agreement of windows. None
    where confidences are no numbers. Without check models it is the mean confidence, which nothing bounds.
    """
    if not math.isfinite(accuracy["confidence"]):
        return None
    if "consensus" in accuracy:
        return past_accuracy(dict(accuracy) | {"window_agreement": united}, past_runs(shift))
    return Estimate(accuracy["confidence"], 0.0, 1.0)


def expected_value(target: Target) -> float:
    """The value of `expected_range`; nan where confidences are no numbers.

    For calibrators, by past runs of other conditions, whatever differs: medians of the others are no nearer
    (docs/LOG.md).
    """
    expected = expected_range(expected_accuracy(target), window_agreement(target), "condition")
    return math.nan if expected is None else expected.value


@cache
def past_runs(shift: str) -> Past:
    """Those by which a run of this kind of shift is judged, of the runs that ship with the package."""
    shifts = json.loads(PAST_RUNS.read_text(encoding="utf-8"))["shifts"]
    return {f"{group}, {kind}": runs for kind in COMPARED[shift] for group, runs in shifts[kind].items()}


def careful(expected: Estimate, shift: str) -> Estimate:
    """The estimate with a value MOST_ABOVE its lower end at most, so that values far too high are rare."""
    return replace(expected, value=min(expected.value, expected.low + MOST_ABOVE[shift]))


def past_accuracy(evidence: Mapping[str, float], past: Past) -> Estimate:
    """Median and interval of the accuracy of past runs with such evidence; a group counts as much as any other."""
    runs = np.array([run for group in past.values() for run in group], dtype=np.float64)  # (run, evidence and truth)
    weight = np.array([1 / len(group) for group in past.values() for _ in group])
    evidence_here = np.array([evidence[name] for name in EVIDENCE])
    distance = np.sqrt(((runs[:, :-1] - evidence_here) ** 2).sum(axis=1))
    near = max(NEAR, float(np.sort(distance)[min(FEWEST, len(runs)) - 1]) / 1.5)
    weight = weight * np.where(distance <= 3 * near, np.exp(-((distance / near) ** 2) / 2), 0)
    # The lowest of the accuracies up to which at least these shares of the weight lie.
    order = np.argsort(runs[:, -1], kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    ranks = np.searchsorted(reached, np.array([(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2]) - 1e-9)
    low, middle, high = runs[order[np.minimum(ranks, len(runs) - 1)], -1].tolist()
    return Estimate(middle, low, high)


def check_predictions(
    source: NDArray[Any], labels: Integers, target: NDArray[Any], recording: Integers, windows: NDArray[Any]
) -> dict[str, Integers]:
    """The classes that all of MODELS give the `windows`; nothing where the source's windows are all alike.

    All windows (window, …) are in one representation: the labelled source, the target with its recordings, `windows`.
    """
    from sklearn.neighbors import KNeighborsClassifier

    step = -(-len(labels) // MOST_WINDOWS)
    fitted = _fewer(source[::step])
    classes, codes = np.unique(labels[::step], return_inverse=True)
    mean, deviation = fitted.mean(axis=0), fitted.std(axis=0)
    varies = deviation > 1e-6 * np.abs(mean)
    if not varies.any() or len(classes) < 2:
        return {}

    def scale(points: Floats) -> Floats:
        return np.asarray((points[:, varies] - mean[varies]) / deviation[varies])

    scaled, unlabelled, judged = scale(fitted), scale(_fewer(target)), scale(_fewer(windows))
    of_class = np.array([scaled[codes == code].mean(axis=0) for code in range(len(classes))])
    axes, middle = discriminant_axes(scaled, codes, of_class), of_class.mean(axis=0)
    standardised = (judged - unlabelled.mean(axis=0)) / np.maximum(unlabelled.std(axis=0), 1e-6)
    rows = (of_class, judged, unlabelled, standardised)
    centres, points, target_points, standardised = ((points - middle) @ axes for points in rows)
    offset = target_points.mean(axis=0) - centres.mean(axis=0)
    nearest = KNeighborsClassifier(min(NEIGHBOURS, len(scaled))).fit(scaled, codes)
    moved = [
        nearest_centre(points, moved_centres(target_points, recording, centres, start, apart))
        for apart in (False, True)
        for start in (np.zeros_like(offset), offset)
    ]
    codes_of = (
        nearest_centre(points, centres), nearest.predict(judged), nearest_centre(points, centres + offset),
        nearest_centre(standardised, centres), *moved,
    )  # fmt: skip
    return {name: classes[code] for name, code in zip(MODELS, codes_of, strict=True)}


def moved_centres(points: Floats, recording: Integers, centres: Floats, start: Floats, by_class: bool) -> Floats:
    """The classes' centres (class, axis) where the target's recordings, points (window, axis), have them, by EM.

    A recording is of one class; its centre scatters around the class's centre plus an offset as its windows do around
    their own. The offset, first `start`, is one for all classes and, with `by_class`, another for each, shrunk by one
    recording that has none.
    """
    _, number = np.unique(recording, return_inverse=True)
    means = np.array([points[number == index].mean(axis=0) for index in range(number.max() + 1)])
    variance = max(float(((points - means[number]) ** 2).mean()), 1e-6)
    classes = len(centres)
    offset, apart, shares = start, np.zeros_like(centres), np.full(classes, 1 / classes)
    for _ in range(ROUNDS):
        distance = ((means[:, None] - centres - offset - apart) ** 2).sum(axis=2)
        likely = softmax(np.log(np.maximum(shares, LEAST_SHARE)) - distance / (2 * variance))  # (recording, class)
        counts = likely.sum(axis=0)
        shares = (counts + 0.1) / (counts + 0.1).sum()
        earlier, offset = offset, (means.sum(axis=0) - counts @ (centres + apart)) / len(means)
        if by_class:
            apart = (likely.T @ (means - offset) - counts[:, None] * centres) / (counts + 1)[:, None]
        if not by_class and np.allclose(earlier, offset):
            break
    return np.asarray(centres + offset + apart)


def representations(values: NDArray[Any], shapes: NDArray[Any], kind: str) -> dict[str, NDArray[Any]]:
    """The representations check models use, from a network's inputs (window, channel, point) of this kind; `shapes`
    are the windows' spectral shapes.
    """
    input_kind, made = find_input(kind), {"spectral shape": shapes}
    if isinstance(input_kind, Waveform | Spectrum):
        plain = spectrum(values) if isinstance(input_kind, Waveform) else values - values.min(axis=-1, keepdims=True)
        level = plain.mean(axis=-1, keepdims=True)
        return made | {"spectrum": plain, "log-spectrum": np.log(plain + 0.01 * level + 1e-12)}
    made["input"] = values
    if isinstance(input_kind, Physics):
        ends = np.cumsum(list(input_kind.parts.values()))
        parts = zip(input_kind.parts, np.split(values, ends[:-1], axis=2), strict=True)
        made |= {name: values for name, values in parts if name != "octave-spectrum"}
    return made


def _fewer(values: NDArray[Any]) -> Floats:
    """At most MOST_POINTS points of each window, sums of neighbours where there are more."""
    flat = values.reshape(len(values), -1)
    starts = np.arange(0, flat.shape[1], -(-flat.shape[1] // MOST_POINTS))
    return np.add.reduceat(flat.astype(np.float64), starts, axis=1)


def principal(rows: Floats) -> tuple[Floats, Floats]:
    """The variances (axis,) of rows (row, point) with mean 0, times their number, and the axes (axis, point); largest
    first. By eigenvalues of the smaller product: LAPACK's singular values fail to converge on some recordings.
    """
    wide = rows.shape[0] < rows.shape[1]
    values, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    largest = np.flatnonzero(values >= 1e-12 * values.max())[::-1]
    values, axes = values[largest], vectors[:, largest].T
    return values, axes @ rows / np.sqrt(np.maximum(values, np.finfo(np.float64).tiny))[:, None] if wide else axes


def discriminant_axes(points: Floats, codes: Integers, centres: Floats) -> Floats:
    """Axes (point, axis), one fewer than classes, in whose units classes have unit spread (Ledoit and Wolf's estimate):
    of points (window, point) with the codes (window,) of their classes in centres (class, point).
    """
    from sklearn.covariance import ledoit_wolf

    spread, axes = np.linalg.eigh(ledoit_wolf(points - centres[codes], assume_centered=True)[0])
    whiten = axes / np.sqrt(np.maximum(spread, 1e-8))
    whitened = centres @ whiten
    return np.asarray(whiten @ principal(whitened - whitened.mean(axis=0))[1][: len(centres) - 1].T)


def nearest_centre(points: Floats, centres: Floats) -> Integers:
    """The place of the nearest of the centres, (window,)."""
    return np.asarray(((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1))
