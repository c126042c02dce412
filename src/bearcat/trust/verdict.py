"""Estimates of a run without target labels, a verdict in words, and a comparison with the labels where there are any.

`estimates` is the record's entry of that name and depends on no target label; `check_estimates` compares it with the
labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bearcat.trust import past
from bearcat.trust.accuracy import (
    FROM_CHECKS,
    Booleans,
    Estimate,
    Floats,
    Integers,
    Source,
    Target,
    by_votes,
    confidence,
    expected_accuracy,
    expected_hits,
    window_agreement,
)
from bearcat.trust.shares import binomial_interval

KEPT_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the target's windows, the surest first
# Expected accuracy and its lower end to use a model; below POOR it is not to be used (docs/results.md says how chosen).
GOOD, SAFE, POOR = 0.95, 0.75, 0.6
CHECKED = 5  # recordings to be checked first, at most
LEARNT = 0.2  # of the way from chance to certainty on the source, below which a model is called useless
FEWEST_WINDOWS = 20  # of the source: fewer, all right, are no sign that nothing was learnt
FAR = 0.1  # estimates this far from each other, or from the truth, deserve a sentence
# Of 1440 runs on HIT-SM and CWRU the truth was so far below the lower of confidence and ATC in 379 (docs/results.md).
MEASURED = "On public recordings one model in four was more than 10 points worse than such a range says."


def estimates(
    source: Source,
    target: Target,
    familiarity: Mapping[str, Any],
    failed: bool = False,
    collapsed: bool = False,
    calibrated: bool = True,
    names: Sequence[str] = (),
    shown: Target | None = None,
) -> dict[str, Any]:
    """A record's `estimates`. `calibrated`: there is a calibration, and it did not end at its bound.

    `names` are of the recordings that `target.recording` points into; `shown` are the same windows with the
    probabilities that users see, where they are others.
    """
    accuracy, nothing, united = expected_accuracy(source, target), learnt_nothing(source), window_agreement(target)
    expected = expected_range(accuracy, united)
    doubtful = [names[number] for number in doubtful_recordings(target)] if names else []
    confidences = np.sort(confidence((shown or target).log_probabilities))[::-1]
    kept = [confidences[:windows] for windows in _kept_windows(len(confidences))]
    found: dict[str, Any] = _without_nan(
        {
            "mean_confidence": float(confidences.mean()),
            "accuracy": {name: asdict(estimate) for name, estimate in accuracy.items()},
            "window_agreement": united,
            "expected": asdict(expected),
            "abstention": {
                "kept": [
                    {"kept": share, "confidence": float(surest[-1]), "accuracy": float(surest.mean())}
                    for share, surest in zip(KEPT_SHARES, kept, strict=True)
                ]
            },
            "familiarity": dict(familiarity),
            "decision": decision(expected, failed, collapsed or nothing is not None),
            "doubtful_recordings": doubtful,
            "verdict": verdict(accuracy, failed, collapsed, calibrated, doubtful, nothing, united),
        }
    )
    return found


def decision(expected: Estimate, failed: bool = False, collapsed: bool = False) -> str:
    """ "use", "check" or "do not use": what an engineer should do with the model."""
    if failed or collapsed or not expected.value >= POOR:
        return "do not use"
    return "use" if expected.value >= GOOD and expected.low >= SAFE else "check"


def verdict(
    accuracy: Mapping[str, Estimate],
    failed: bool = False,
    collapsed: bool = False,
    calibrated: bool = True,
    doubtful: Sequence[str] = (),
    nothing: str | None = None,
    united: float = 1.0,
) -> str:
    """Some sentences for a user who has to decide. `doubtful` recordings are those whose labels would tell most.

    `nothing` is what `learnt_nothing` says.
    """
    if failed:
        return "Do not use this model: its training broke down."
    if nothing is not None:
        return f"Do not use this model: {nothing}"
    if collapsed:
        return "Do not use this model: it gives every window of the target the same class."
    values = [estimate.value for name, estimate in accuracy.items() if name not in FROM_CHECKS]
    if not np.isfinite(values).all():
        return "Nothing can be said about how often this model is right: its confidences are not numbers."
    expected = expected_range(accuracy, united)
    text = f"about {100 * expected.value:.0f} % ({100 * expected.low:.0f}–{100 * expected.high:.0f}) of windows right"
    vote = accuracy.get("consensus")
    if vote is None:
        text = f"Expect {text}"
        if max(values) - min(values) > FAR:
            text += f"; but estimates range from {100 * min(values):.0f} to {100 * max(values):.0f} %"
        text += f". {MEASURED} Check some windows by hand before relying on it."
        return text if calibrated else f"{text} The confidence behind this is not calibrated."
    first = {
        "use": "Use it.",
        "check": f"Check {', '.join(doubtful) or 'some recordings'} first.",
        "do not use": "Do not use it without checking its diagnoses.",
    }[decision(expected)]
    text = (
        f"{first} Expect {text}: in {100 * vote.value:.0f} % of windows the vote of simple models on other"
        " representations says the same of the recording, and past runs with such votes were right that often. A"
        " mistake that most of them make too is not noticed."
    )
    return text if calibrated else f"{text} Its confidences are not calibrated."


def learnt_nothing(source: Source) -> str | None:
    """A sentence where a model is hardly better than chance on the labelled windows it was not trained on; else None.

    Classes count equally, so that naming the commonest is chance. Nothing was learnt where chance lies in the exact
    binomial interval (of FEWEST_WINDOWS or more), or less than LEARNT of the way from chance to certainty was gone.
    """
    codes = np.unique(source.labels)
    if len(codes) < 2:
        return None
    share, chance = float(np.mean([source.right[source.labels == code].mean() for code in codes])), 1 / len(codes)
    low, _ = binomial_interval(round(share * len(source.labels)), len(source.labels))
    if share >= chance + LEARNT * (1 - chance) and (low > chance or len(source.labels) < FEWEST_WINDOWS):
        return None
    return (
        f"it learnt nothing of use: {100 * share:.0f} % of the source's test windows are right, with classes counted"
        f" equally, and chance alone reaches {100 * chance:.0f} %. Check labels, channel and rate of the source, or"
        " train for longer."
    )


def doubtful_recordings(target: Target) -> list[int]:
    """Up to CHECKED recordings whose labels would tell most: those on whose windows check models agree least."""
    if not target.checks:
        return []
    agreed = by_votes(target)
    numbers = np.unique(target.recording)
    shares = np.array([agreed[target.recording == number].mean() for number in numbers])
    return [int(number) for number in numbers[np.argsort(shares, kind="stable")][:CHECKED]]


def expected_range(accuracy: Mapping[str, Estimate], united: float = 1.0) -> Estimate:
    """The accuracy to expect: what past runs had with such check models and such agreement of windows (trust/past.py).

    Without check models: the lower of confidence and ATC, with an interval that covers both intervals. On labelled
    public recordings (docs/results.md) both were far more often too high than too low, and the lower one was nearer.
    """
    if not math.isfinite(accuracy["confidence"].value):
        return Estimate(math.nan, math.nan, math.nan)
    if "consensus" in accuracy:
        return past.expected_accuracy(
            {name: found.value for name, found in accuracy.items()} | {"window_agreement": united}
        )
    both = [accuracy[name] for name in ("confidence", "atc_confidence") if name in accuracy]
    lower = min(both, key=lambda estimate: estimate.value)
    return Estimate(lower.value, min(each.low for each in both), max(each.high for each in both))


def expected_value(source: Source, target: Target) -> float:
    """The value of `expected_range` alone, without the bootstrap of its estimates; nan where they are no numbers."""
    found = {name: float(hits.mean()) for name, hits in expected_hits(source, target).items()}
    if not np.isfinite(list(found.values())).all():
        return math.nan
    return expected_range(
        {name: Estimate(value, value, value) for name, value in found.items()}, window_agreement(target)
    ).value


def recorded_range(record: Mapping[str, Any]) -> Estimate | None:
    """The accuracy to expect by a run's record; None where its estimates are not numbers."""
    expected = record["estimates"]["expected"]
    return None if None in expected.values() else Estimate(**expected)


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
    finite = {name: values for name, values in record["accuracy"].items() if None not in values.values()}
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
