"""The target's class shares, estimated without its labels, and sentences about them.

EM (Saerens et al., 2002) finds the shares of windows under which the calibrated probabilities, which carry the source's
shares, are most likely. Recordings are counted by their diagnosis, with exact binomial intervals: windows of one
recording are no independent evidence.

>>> em_shares(probabilities, prior=np.full(3, 1 / 3))
array([0.93, 0.05, 0.02])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bearcat.data.recording import healthy_class
from bearcat.trust.accuracy import LEVEL, Floats, Integers

ROUNDS = 200  # of EM at most


def em_shares(probabilities: Floats, prior: Floats) -> Floats:
    """Class shares (class,) from probabilities (window, class) that were made under the shares `prior`."""
    shares = np.asarray(prior, dtype=np.float64)
    ratio = probabilities / np.maximum(prior, 1e-12)
    for _ in range(ROUNDS):
        weighted = ratio * shares
        found = (weighted / np.maximum(weighted.sum(axis=1, keepdims=True), 1e-300)).mean(axis=0)
        done = np.abs(found - shares).max() < 1e-9
        shares = found / found.sum()
        if done:
            break
    return shares


def binomial_interval(count: int, total: int) -> tuple[float, float]:
    """The exact LEVEL interval (Clopper and Pearson) of a share of which `count` of `total` were seen."""
    from scipy.stats import beta

    rest = (1 - LEVEL) / 2
    low = 0.0 if count == 0 else float(beta.ppf(rest, count, total - count + 1))
    high = 1.0 if count == total else float(beta.ppf(1 - rest, count + 1, total - count))
    return low, high


def shares_record(
    probabilities: Floats, recording: Integers, prior: Floats, classes: Sequence[str], source_recall: Floats
) -> dict[str, Any]:
    """The record's entry: per class the share of windows, the recordings with that diagnosis and their interval.

    source_recall (class,) is how many of a class's source test windows are not taken for the healthy one.
    """
    shares = em_shares(probabilities, prior)
    numbers, found = np.unique(recording), {}
    diagnosed = np.array([probabilities[recording == number].mean(axis=0).argmax() for number in numbers], dtype=int)
    counts = np.bincount(diagnosed, minlength=len(classes))
    for code, name in enumerate(classes):
        low, high = binomial_interval(int(counts[code]), len(numbers)) if len(numbers) else (0.0, 1.0)
        found[name] = {
            "windows": float(shares[code]), "recordings": int(counts[code]), "low": low, "high": high,
            "noticed_on_source": float(source_recall[code]),
        }  # fmt: skip
    return {"recordings": len(numbers), "classes": found}


def adaptation_sentence(moving: Mapping[str, Any] | None, classes: int) -> str | None:
    """Whether adaptation was used and why, for recipes that decide it."""
    if moving is None:
        return None
    groups, fit = moving["groups"], moving.get("fit")
    clusters = f"{groups} target cluster{'s' if groups > 1 else ''}"
    if moving.get("reference"):
        return "Adapted: the reference recordings show where their class lies on the target."
    if moving["adapted"]:
        text = (
            f"Adapted: {clusters} match {'the' if groups >= classes else f'{groups} of the'} {classes} source classes"
        )
        names = ", ".join(map(str, moving.get("unknown", ())))
        return f"{text} (fit {fit:.2f})." + (f" Like no source class, so unknown: {names}." if names else "")
    if fit is not None:
        free = f"fit {fit:.2f}; {moving['free']:.2f} if classes may be missing"
        return f"Not adapted: {clusters} do not clearly match the source classes ({free})."
    if moving.get("enough") and moving["fewest"] < moving["wanted"]:
        return f"Not adapted: a target cluster has {moving['fewest']} windows and needs {moving['wanted']}."
    return (
        f"Not adapted: {clusters} for {classes} source classes cannot distinguish a machine change from a fault."
        " Give target recordings known to be healthy (--reference)."
    )


def shares_sentences(shares: Mapping[str, Any]) -> list[str]:
    """What the estimated shares mean for a user."""
    classes, total = shares["classes"], shares["recordings"]
    healthy = healthy_class(list(classes))
    listed = sorted(classes.items(), key=lambda item: -item[1]["windows"])
    text = ", ".join(f"{name} {100 * found['windows']:.0f} %" for name, found in listed if found["windows"] >= 0.005)
    sentences = [f"Estimated shares of the target's windows: {text}."]
    if healthy is None or not total:
        return sentences
    if (sentence := all_healthy(shares)) is not None:
        return [*sentences, sentence]
    faulty = total - classes[healthy]["recordings"]
    low, high = binomial_interval(faulty, total)
    interval = f"{100 * LEVEL:.0f} % interval {100 * low:.0f} to {100 * high:.0f} % of such recordings"
    return [*sentences, f"{faulty} of {total} recordings diagnosed as faulty ({interval})."]


def all_healthy(shares: Mapping[str, Any]) -> str | None:
    """A sentence where no recording of the target is diagnosed as faulty; else None."""
    classes, total = shares["classes"], shares["recordings"]
    healthy = healthy_class(list(classes))
    if healthy is None or not total or len(classes) < 2 or classes[healthy]["recordings"] < total:
        return None
    _, high = binomial_interval(0, total)
    weakest = min((name for name in classes if name != healthy), key=lambda name: classes[name]["noticed_on_source"])
    return (
        f"The target may be all healthy: no fault found in {total} recording{'s' if total > 1 else ''}, so up to"
        f" {100 * high:.0f} % of such recordings may be faulty ({100 * LEVEL:.0f} % interval). Hardest to detect on the"
        f" source: {weakest}, {100 * classes[weakest]['noticed_on_source']:.0f} % of windows."
    )
