"""How many predictions on the target are right, estimated without its labels.

`estimates` is the record's entry of that name, with the evidence for the decision on the model (decision.py). The
interval of the expected accuracy is that of past runs whose evidence was nearest: past_runs.json holds, for each kind
of shift and for groups of runs (dataset, input, mix of classes), what the evidence was and how many windows were right.
`python benchmarks/past_runs.py` makes it anew.

>>> past_accuracy({"consensus": 1.0, "votes": 0.9, "agreement": 0.85, "window_agreement": 0.99}, "condition")
Estimate(value=1.0, low=0.97, high=1.0)
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

from bearcat.diagnosis.decision import LEVEL, Estimate, ModelEvidence, binomial_interval
from bearcat.diagnosis.pooling import Booleans, Floats, Integers
from bearcat.names import without_nan

STEADY = ("linear", "neighbours")  # check models that never adapt, by the end of their names
UNCERTAIN = 5  # recordings to be checked first, at most
PAST_RUNS = Path(__file__).parent / "past_runs.json"
# Three estimators and the agreement of windows. Chosen by leaving groups and datasets out (docs/results.md).
EVIDENCE = ("consensus", "votes", "agreement", "window_agreement")
Past = Mapping[str, Sequence[Sequence[float]]]  # group → its runs: the EVIDENCE in this order, and the truth
# Kinds of past runs (data/specimens.py, `trust_shift`), and by which of them a run of a kind is judged: what another
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


@dataclass(frozen=True, eq=False)
class Source:
    """The labelled source test windows: calibrated log-probabilities (window, class) and labels (window,)."""

    log_probabilities: Floats
    labels: Integers

    @property
    def right(self) -> Booleans:
        return np.asarray(self.log_probabilities.argmax(axis=1) == self.labels)


@dataclass(frozen=True, eq=False)
class Target:
    """Target windows without labels: calibrated log-probabilities (window, class), recording (window,)."""

    log_probabilities: Floats
    recording: Integers
    checks: Mapping[str, Integers] = field(default_factory=dict)  # what check models say of the windows (checks.py)

    @property
    def predicted(self) -> Integers:
        return np.asarray(self.log_probabilities.argmax(axis=1))


def confidence(log_probabilities: Floats) -> Floats:
    """The probability of the predicted class, (window,)."""
    return np.asarray(np.exp(log_probabilities.max(axis=1)))


def atc_threshold(scores: Floats, right: Booleans) -> float:
    """The score that as many of these windows lie below as are wrong."""
    return float(np.append(np.sort(scores), math.inf)[(~right).sum()])


def recording_votes(target: Target) -> Floats:
    """The share of check models that say each class of a window's recording, (window, class), mean over its windows."""
    classes = 1 + max(int(said.max()) for said in (*target.checks.values(), target.predicted))
    votes = np.mean([np.eye(classes)[said] for said in target.checks.values()], axis=0)
    number = np.unique(target.recording, return_inverse=True)[1]
    sums = np.zeros((int(number.max()) + 1, classes))
    np.add.at(sums, number, votes)
    return np.asarray((sums / np.bincount(number)[:, None])[number])


def by_votes(target: Target) -> Floats:
    """The share of check models that say, of a window's recording, the class predicted for the window, (window,)."""
    return np.asarray(recording_votes(target)[np.arange(len(target.predicted)), target.predicted])


def expected_accuracy(source: Source, target: Target) -> dict[str, float]:
    """The expected share of right predictions on the target by all estimators with evidence: mean confidence; the share
    of confidences that reach a threshold (ATC; Garg et al., 2022); how many check models that never adapt agree with a
    prediction, how many check models say its class of the recording, and whether most of them do.
    """
    sure = confidence(target.log_probabilities)
    threshold = atc_threshold(confidence(source.log_probabilities), source.right)
    found = {"confidence": float(sure.mean()), "atc_confidence": float((sure >= threshold).mean())}
    if target.checks:
        steady = [said for name, said in target.checks.items() if name.endswith(STEADY)]
        most = recording_votes(target).argmax(axis=1)
        found["agreement"] = float(np.mean([said == target.predicted for said in steady]))
        found["votes"] = float(by_votes(target).mean())
        found["consensus"] = float((most == target.predicted).mean())
    return found


def majority_weight(predicted: Integers, recording: Integers, classes: int, weight: Floats | None = None) -> Floats:
    """For each recording (recording,) the weight, or the number, of its windows that have its commonest class."""
    counts = np.bincount(recording * classes + predicted, weight, minlength=classes * (int(recording.max()) + 1))
    return np.asarray(counts.reshape(-1, classes).max(axis=1))


def window_agreement(target: Target) -> float:
    """The share of windows whose class is that of most windows of their recording: no more can be right."""
    _, number = np.unique(target.recording, return_inverse=True)
    counts = majority_weight(target.predicted, number, int(target.predicted.max()) + 1)
    return float(counts.sum() / len(number))


def estimates(
    source: Source,
    target: Target,
    familiarity: Mapping[str, Any],
    finite: bool = True,
    one_class: str | None = None,
    calibrated: bool = True,
    names: Sequence[str] = (),
    shown: Target | None = None,
    shift: str = "unknown",
) -> tuple[dict[str, Any], ModelEvidence]:
    """A record's `estimates`, and the evidence for the decision.

    `names` are of the recordings that `target.recording` points into; `shown` are the same windows with the
    probabilities that users see, where they are others; `shift` is what differs between source and target
    (data/specimens.py); the others are entries of ModelEvidence.
    """
    accuracy, united = expected_accuracy(source, target), window_agreement(target)
    found_range = expected_range(accuracy, united, shift)
    expected = careful(found_range, shift) if target.checks else found_range
    uncertain = [names[number] for number in uncertain_recordings(target)] if names else []
    confidences = confidence((shown or target).log_probabilities)
    found: dict[str, Any] = without_nan({
        "mean_confidence": float(confidences.mean()),
        "accuracy": accuracy, "window_agreement": united,
        "expected": _finite(expected), "familiarity": dict(familiarity),
    })  # fmt: skip
    evidence = ModelEvidence(
        expected if math.isfinite(expected.value) else None, finite, source_accuracy(source), len(source.labels),
        len(np.unique(source.labels)), one_class, bool(target.checks), calibrated, tuple(uncertain),
        median=found_range.value if expected != found_range else None, shift=shift if target.checks else None,
    )  # fmt: skip
    return found, evidence


def source_accuracy(source: Source) -> Estimate:
    """The share of right source test windows with classes counted equally, and its exact binomial interval."""
    share = float(np.mean([source.right[source.labels == code].mean() for code in np.unique(source.labels)]))
    return Estimate(share, *binomial_interval(round(share * len(source.labels)), len(source.labels)))


def uncertain_recordings(target: Target) -> list[int]:
    """Up to UNCERTAIN recordings whose labels would tell most: those on whose windows check models agree least."""
    if not target.checks:
        return []
    agreed, numbers = by_votes(target), np.unique(target.recording)
    shares = np.array([agreed[target.recording == number].mean() for number in numbers])
    return [int(number) for number in numbers[np.argsort(shares, kind="stable")][:UNCERTAIN]]


def expected_range(accuracy: Mapping[str, float], united: float = 1.0, shift: str = "unknown") -> Estimate:
    """The accuracy to expect: what past runs of such a shift had with such check models and agreement of windows.

    Without check models: the lower of confidence and ATC, which were far more often too high than too low on labelled
    public recordings (docs/LOG.md), so that nothing bounds it.
    """
    if not math.isfinite(accuracy["confidence"]):
        return Estimate(math.nan, math.nan, math.nan)
    if "consensus" in accuracy:
        return past_accuracy(dict(accuracy) | {"window_agreement": united}, shift)
    return Estimate(min(accuracy["confidence"], accuracy["atc_confidence"]), 0.0, 1.0)


def expected_value(source: Source, target: Target) -> float:
    """The value of `expected_range`; nan where confidences are no numbers.

    For calibrators, by past runs of other conditions, whatever differs: medians of the others are no nearer
    (docs/LOG.md).
    """
    return expected_range(expected_accuracy(source, target), window_agreement(target), "condition").value


def past_runs() -> dict[str, Past]:
    """Those that ship with the package, by kind of shift."""
    found: dict[str, Past] = json.loads(PAST_RUNS.read_text(encoding="utf-8"))["shifts"]
    return found


def compared_runs(past: Mapping[str, Past], shift: str) -> Past:
    """The groups of past runs by which a run of this kind of shift is judged."""
    return {f"{group}, {kind}": runs for kind in COMPARED[shift] for group, runs in past.get(kind, {}).items()}


def table_of(past: Past) -> tuple[Floats, Floats]:
    """Evidence and truth of all runs (run, evidence and truth), and their weights (run,)."""
    rows = np.array([row for runs in past.values() for row in runs], dtype=np.float64)
    return rows, np.array([1 / len(runs) for runs in past.values() for _ in runs])


@cache
def shipped(shift: str) -> tuple[Floats, Floats]:
    """The table of the runs that ship with the package, for this kind of shift."""
    return table_of(compared_runs(past_runs(), shift))


def careful(expected: Estimate, shift: str) -> Estimate:
    """The estimate with a value MOST_ABOVE its lower end at most, so that values far too high are rare."""
    return replace(expected, value=min(expected.value, expected.low + MOST_ABOVE[shift]))


def past_accuracy(
    evidence: Mapping[str, float], shift: str = "unknown", table: tuple[Floats, Floats] | None = None
) -> Estimate:
    """Median and interval of the accuracy of past runs with such evidence; a group counts as much as any other."""
    runs, weight = shipped(shift) if table is None else table
    place = np.array([evidence[name] for name in EVIDENCE])
    distance = np.sqrt(((runs[:, :-1] - place) ** 2).sum(axis=1))
    near = max(NEAR, float(np.sort(distance)[min(FEWEST, len(runs)) - 1]) / 1.5)
    weight = weight * np.where(distance <= 3 * near, np.exp(-((distance / near) ** 2) / 2), 0)
    # The lowest of the accuracies up to which at least these shares of the weight lie.
    order = np.argsort(runs[:, -1], kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    places = np.searchsorted(reached, np.array([(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2]) - 1e-9)
    low, middle, high = runs[order[np.minimum(places, len(runs) - 1)], -1].tolist()
    return Estimate(middle, low, high)


def _finite(estimate: Estimate) -> dict[str, float] | None:
    return asdict(estimate) if math.isfinite(estimate.value) else None
