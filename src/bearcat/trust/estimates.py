"""Estimates of a run without target labels, and a comparison with the labels where there are any.

`estimates` is the record's entry of that name, with the evidence for the decision on the model (trust/decision.py); it
depends on no target label. `check_estimates` compares it with the labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bearcat.trust import past
from bearcat.trust.accuracy import (
    Booleans,
    Estimate,
    Floats,
    Integers,
    Source,
    Target,
    binomial_interval,
    by_votes,
    confidence,
    expected_accuracy,
    expected_hits,
    window_agreement,
)
from bearcat.trust.decision import ModelEvidence

KEPT_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the target's windows, the surest first
UNCERTAIN = 5  # recordings to be checked first, at most
FAR = 0.1  # an estimate this far from the truth deserves a sentence


def estimates(
    source: Source,
    target: Target,
    familiarity: Mapping[str, Any],
    finite: bool = True,
    one_class: str | None = None,
    calibrated: bool = True,
    names: Sequence[str] = (),
    shown: Target | None = None,
) -> tuple[dict[str, Any], ModelEvidence]:
    """A record's `estimates`, and the evidence for the decision. `calibrated`: a calibration did not end at its bound.

    `names` are of the recordings that `target.recording` points into; `shown` are the same windows with the
    probabilities that users see, where they are others. `one_class`: see ModelEvidence.
    """
    accuracy, united = expected_accuracy(source, target), window_agreement(target)
    expected = expected_range(accuracy, united)
    uncertain = [names[number] for number in uncertain_recordings(target)] if names else []
    confidences = np.sort(confidence((shown or target).log_probabilities))[::-1]
    kept = [confidences[:windows] for windows in _kept_windows(len(confidences))]
    found: dict[str, Any] = _without_nan(
        {
            "mean_confidence": float(confidences.mean()),
            "accuracy": {name: _finite(estimate) for name, estimate in accuracy.items()},
            "window_agreement": united,
            "expected": _finite(expected),
            "abstention": {
                "kept": [
                    {"kept": share, "confidence": float(surest[-1]), "accuracy": float(surest.mean())}
                    for share, surest in zip(KEPT_SHARES, kept, strict=True)
                ]
            },
            "familiarity": dict(familiarity),
            "uncertain_recordings": uncertain,
        }
    )
    evidence = ModelEvidence(
        expected if math.isfinite(expected.value) else None, finite, source_accuracy(source), len(source.labels),
        len(np.unique(source.labels)), one_class, bool(target.checks), calibrated, tuple(uncertain),
    )  # fmt: skip
    return found, evidence


def source_accuracy(source: Source) -> Estimate:
    """The share of right source test windows with classes counted equally, and its exact binomial interval."""
    codes = np.unique(source.labels)
    share = float(np.mean([source.right[source.labels == code].mean() for code in codes]))
    return Estimate(share, *binomial_interval(round(share * len(source.labels)), len(source.labels)))


def uncertain_recordings(target: Target) -> list[int]:
    """Up to UNCERTAIN recordings whose labels would tell most: those on whose windows check models agree least."""
    if not target.checks:
        return []
    agreed = by_votes(target)
    numbers = np.unique(target.recording)
    shares = np.array([agreed[target.recording == number].mean() for number in numbers])
    return [int(number) for number in numbers[np.argsort(shares, kind="stable")][:UNCERTAIN]]


def expected_range(accuracy: Mapping[str, Estimate], united: float = 1.0) -> Estimate:
    """The accuracy to expect: what past runs had with such check models and such agreement of windows (trust/past.py).

    Without check models: the lower of confidence and ATC, with an interval that covers both intervals. On labelled
    public recordings (docs/LOG.md) both were far more often too high than too low, and the lower one was nearer.
    """
    if not math.isfinite(accuracy["confidence"].value):
        return Estimate(math.nan, math.nan, math.nan)
    if "consensus" in accuracy:
        values = {name: found.value for name, found in accuracy.items()}
        return past.expected_accuracy(values | {"window_agreement": united})
    both = [accuracy[name] for name in ("confidence", "atc_confidence") if name in accuracy]
    lower = min(both, key=lambda estimate: estimate.value)
    return Estimate(lower.value, min(each.low for each in both), max(each.high for each in both))


def expected_value(source: Source, target: Target) -> float:
    """The value of `expected_range` alone, without the bootstrap of its estimates; nan where they are no numbers."""
    found = {name: float(hits.mean()) for name, hits in expected_hits(source, target).items()}
    if not np.isfinite(list(found.values())).all():
        return math.nan
    exact = {name: Estimate(value, value, value) for name, value in found.items()}
    return expected_range(exact, window_agreement(target)).value


def check_estimates(
    record: Mapping[str, Any], target: Target, labels: Integers, unknown: Booleans, unfamiliar: Booleans
) -> dict[str, Any] | None:
    """Estimates against target labels (window,), −1 where a window has none; None where no window has one.

    unknown (window,) marks windows of a class that the source does not have.
    """
    known = labels >= 0
    if not known.any():
        return None
    right = (target.log_probabilities.argmax(axis=1) == labels)[known]
    order = np.argsort(-confidence(target.log_probabilities)[known], kind="stable")
    truth = float(right.mean())
    finite = {name: values for name, values in record["accuracy"].items() if values is not None}
    found: dict[str, Any] = _without_nan(
        {
            "accuracy": truth,
            "too_high_by": {name: values["value"] - truth for name, values in finite.items()},
            "inside": {name: values["low"] <= truth <= values["high"] for name, values in finite.items()},
            "abstention": {
                "kept": [
                    {"kept": share, "accuracy": float(right[order[:windows]].mean())}
                    for share, windows in zip(KEPT_SHARES, _kept_windows(len(right)), strict=True)
                ]
            },
            "familiarity": {
                "known_unfamiliar": _mean(unfamiliar[known]),
                "unknown_unfamiliar": _mean(unfamiliar[unknown]),
                "wrong_unfamiliar": _mean(unfamiliar[known][~right]),
            },
        }
    )
    return found


def _finite(estimate: Estimate) -> dict[str, float] | None:
    return asdict(estimate) if math.isfinite(estimate.value) else None


def _kept_windows(windows: int) -> list[int]:
    return [max(1, round(share * windows)) for share in KEPT_SHARES]


def _mean(chosen: Booleans | Floats) -> float | None:
    return float(np.mean(chosen)) if len(chosen) else None


def _without_nan(value: Any) -> Any:
    """The same with None for nan and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
