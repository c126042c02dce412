"""What the accuracy of past runs says of a new one: an interval that has held on recordings with labels.

past_runs.json holds, for groups of runs (dataset, input, mix of classes), how far check models agreed with the network
and how many windows were right. A new run's interval is made of the past runs whose check models agreed about as much;
a group counts as much as any other, however many runs it has. `python benchmarks/past_runs.py` makes the file
anew, and says how often intervals held in groups that were left out.

>>> expected_accuracy(0.93)
Estimate(value=0.9956, low=0.5, high=1.0)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import numpy as np

from bearcat.trust.accuracy import LEVEL, Estimate

Past = Mapping[str, Sequence[tuple[float, float]]]  # group → (agreement, truth) of its runs
NEAR = 0.05  # of agreement: runs this near count
FEWEST = 30  # runs, the nearest, if fewer are near


@cache
def past_runs() -> Past:
    """Those that ship with the package."""
    text = files("bearcat.trust").joinpath("past_runs.json").read_text(encoding="utf-8")
    return {group: [(float(a), float(t)) for a, t in runs] for group, runs in json.loads(text)["groups"].items()}


def expected_accuracy(agreement: float, past: Past | None = None) -> Estimate:
    """Median and interval of the accuracy of past runs whose check models agreed about as much."""
    past = past_runs() if past is None else past
    rows = np.array([(a, t, number) for number, runs in enumerate(past.values()) for a, t in runs])
    distance = np.abs(rows[:, 0] - agreement)
    chosen = rows[distance <= max(NEAR, np.sort(distance)[min(FEWEST, len(rows)) - 1])]
    sizes = np.bincount(chosen[:, 2].astype(int))
    weight = 1 / sizes[chosen[:, 2].astype(int)]
    order = np.argsort(chosen[:, 1], kind="stable")
    truth, reached = chosen[order, 1], np.cumsum(weight[order]) / weight.sum()
    low, middle, high = (
        float(truth[min(int(np.searchsorted(reached, share - 1e-9)), len(truth) - 1)])
        for share in ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2)
    )
    return Estimate(middle, low, high)
