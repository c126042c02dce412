"""What the accuracy of past runs says of a new one: an interval that has held on recordings with labels.

past_runs.json holds, for groups of runs (dataset, input, mix of classes), what the evidence was and how many windows
were right. A new run's interval is that of the past runs whose evidence was nearest; a group counts as much as any
other, however many runs it has. `python benchmarks/past_runs.py` makes the file anew, and `python benchmarks/trust.py`
says how often intervals held in groups that were left out.

>>> expected_accuracy({"consensus": 1.0, "votes": 0.9, "agreement": 0.85, "window_agreement": 0.99})
Estimate(value=1.0, low=0.97, high=1.0)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import numpy as np

from bearcat.trust.accuracy import LEVEL, Estimate, Floats

# Three rows of ESTIMATORS and the agreement of windows. Chosen by leaving groups and datasets out (docs/results.md).
EVIDENCE = ("consensus", "votes", "agreement", "window_agreement")
Past = Mapping[str, Sequence[Sequence[float]]]  # group → its runs: the EVIDENCE in this order, and the truth
NEAR = 0.05  # distance of evidence at which a past run counts e^(−1/2) of one with the same evidence
FEWEST = 30  # runs that are nearer than 1.5 times that distance; where there are fewer, it grows


def past_runs() -> Past:
    """Those that ship with the package."""
    text = files("bearcat.trust").joinpath("past_runs.json").read_text(encoding="utf-8")
    found: Past = json.loads(text)["groups"]
    return found


def table_of(past: Past) -> tuple[Floats, Floats]:
    """Evidence and truth of all runs (run, evidence and truth), and their weights (run,)."""
    rows = np.array([row for runs in past.values() for row in runs], dtype=np.float64)
    return rows, np.array([1 / len(runs) for runs in past.values() for _ in runs])


@cache
def shipped() -> tuple[Floats, Floats]:
    """The table of the runs that ship with the package."""
    return table_of(past_runs())


def expected_accuracy(evidence: Mapping[str, float], table: tuple[Floats, Floats] | None = None) -> Estimate:
    """Median and interval of the accuracy of past runs with such evidence."""
    runs, weight = shipped() if table is None else table
    place = np.array([evidence[name] for name in EVIDENCE])
    distance = np.sqrt(((runs[:, :-1] - place) ** 2).sum(axis=1))
    near = max(NEAR, float(np.sort(distance)[min(FEWEST, len(runs)) - 1]) / 1.5)
    weight = weight * np.where(distance <= 3 * near, np.exp(-((distance / near) ** 2) / 2), 0)
    low, middle, high = weighted_quantiles(runs[:, -1], weight, ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2))
    return Estimate(middle, low, high)


def weighted_quantiles(values: Floats, weight: Floats, shares: Sequence[float]) -> list[float]:
    """For each share the lowest of the values up to which at least that share of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    places = np.minimum(np.searchsorted(reached, np.array(shares) - 1e-9), len(values) - 1)
    return [float(value) for value in values[order][places]]
