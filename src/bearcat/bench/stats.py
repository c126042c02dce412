"""Which method is better, and whether the runs support saying so (docs/benchmark.md has formulas and caveats).

Methods are compared over tasks, by the mean over the seeds that all of them finished: the seeds of one task share its
data. Ranks within tasks, and Wilcoxon's signed-rank test of every pair with Holm's adjustment, follow Demšar,
"Statistical comparisons of classifiers over multiple data sets", JMLR 2006. The signed-rank test counts all assignments
of signs, ties and zeros included, which scipy does not.

>>> comparison = compare(results, "accuracy")
>>> comparison.leaders
('CAT*-Temperature', 'CAT*-CPCS')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import stats

from bearcat.errors import library
from bearcat.findings import count
from bearcat.report import Floats, Result

ALPHA = 0.05
# Of scores, which are fractions computed in float32: without rounding 0.85 − 0.80 and 0.75 − 0.70 would not tie.
DECIMALS = 6


@dataclass(frozen=True)
class Metric:
    """A score of the target by which methods are compared; tables print it in percent."""

    name: str
    score: str  # a field of DomainScores
    title: str
    higher_is_better: bool = True


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", "accuracy"),
        Metric("accuracy-uncalibrated", "accuracy_uncalibrated", "accuracy before calibration"),
        Metric("balanced", "balanced_accuracy", "balanced accuracy"),
        Metric("macro-f1", "macro_f1", "macro-F1"),
        Metric("ece", "ece", "ECE of 10 bins", False),
        Metric("ece15", "ece15", "ECE of 15 bins", False),
    )
}
USUAL = ("accuracy", "ece")  # where none is asked for


class Spread(NamedTuple):
    """Of the seeds of one task; `sd` (ddof 1) is nan for a single seed."""

    mean: float
    sd: float
    n: int


@dataclass(frozen=True)
class Pair:
    """Two methods; `first` has the better average rank."""

    first: str
    second: str
    difference: float  # first − second, averaged over tasks, in the score's units: below zero is better for ece
    p: float
    p_holm: float


@dataclass(frozen=True)
class Comparison:
    """Methods on the tasks of one dataset and input, by one score on the target."""

    metric: Metric
    cells: Mapping[tuple[str, str], Spread]  # (method, task), where there is a result
    ranks: Mapping[str, float]  # average rank of each method, the best first; nan without common tasks
    averages: Mapping[str, float]  # of each method, over the common tasks
    tasks: tuple[str, ...]  # the common ones: every method has a result of the same seed
    rule: str  # what averages, ranks and tests are made of
    warning: str  # "" or why the tests cannot say anything
    pairs: tuple[Pair, ...]

    @property
    def leaders(self) -> tuple[str, ...]:
        """The method of the best rank, and those that do not differ significantly from it if tests can tell."""
        if not self.tasks:
            return ()
        best = next(iter(self.ranks))
        close = [pair.second for pair in self.pairs if pair.first == best and pair.p_holm >= ALPHA]
        return (best,) if self.warning else (best, *close)


def compare(results: Sequence[Result], metric: str) -> Comparison:
    """Results of one dataset and input, each cell once, by one of METRICS."""
    pandas, score = library("pandas", "bench"), METRICS[metric].score
    rows = [(run.cell.method, run.cell.task, run.cell.seed, run.score("target", score)) for run in results]
    scores = pandas.DataFrame(rows, columns=["method", "task", "seed", "score"]).astype({"score": float}).dropna()
    blocks = scores.pivot(index=["task", "seed"], columns="method", values="score")
    complete = blocks.dropna()
    means = complete.groupby(level="task").mean()  # (task, method) over the seeds
    sign = 1 if METRICS[metric].higher_is_better else -1
    average = means.mean()
    rank = means.mul(-sign).round(DECIMALS).rank(axis=1).mean()  # ties averaged
    # Ties in rank: the better average first, then the alphabet, so that the order of results never matters.
    methods = sorted(means.columns, key=lambda name: (*np.nan_to_num([rank[name], -sign * average[name]]), name))
    pairs = _pairs({name: means[name].to_numpy() for name in methods}) if len(means) else ()
    left_out = f", {len(blocks) - len(complete)} left out" if len(complete) < len(blocks) else ""
    spreads = scores.groupby(["method", "task"])["score"].agg(["mean", "std", "count"])
    return Comparison(
        METRICS[metric],
        {cell: Spread(*spread) for cell, *spread in spreads.itertuples(name=None)},
        {name: float(rank[name]) for name in methods},
        {name: float(average[name]) for name in methods},
        tuple(means.index),
        "Averages, ranks and tests use only the cells (task and seed) in which every compared method has a result:"
        f" {len(complete)} of {len(blocks)}{left_out}. The mean of a task uses all its seeds.",
        _warning(len(means), len(pairs)),
        pairs,
    )


def signed_rank(differences: Floats) -> float:
    """Two-sided p of Wilcoxon's signed-rank test, zeros ranked and left out (Pratt)."""
    sizes = np.abs(differences).round(DECIMALS)
    ranked = stats.rankdata(sizes)[sizes > 0]
    positive = float(ranked[differences[sizes > 0] > 0].sum())
    total = float(ranked.sum())
    if total == 0:
        return 1.0
    # Given the ranks, each sign is a fair coin under the hypothesis: the distribution of the positive ranks' sum.
    doubled = np.rint(2 * ranked).astype(int)  # averaged ranks are whole or half
    chance = np.zeros(doubled.sum() + 1)
    chance[0] = 1
    for rank in doubled:
        chance /= 2
        chance[rank:] += chance[:-rank].copy()
    lesser = round(2 * min(positive, total - positive))  # the distribution is symmetric
    return min(1.0, 2 * float(chance[: lesser + 1].sum()))


def holm(p: Sequence[float]) -> list[float]:
    """The p of several tests adjusted by Holm's step-down procedure."""
    adjust = library("statsmodels.stats.multitest", "bench").multipletests
    return [float(value) for value in adjust(p, method="holm")[1]] if p else []


def _pairs(means: Mapping[str, Floats]) -> tuple[Pair, ...]:
    """Tests of all pairs of methods, each with its means of the tasks."""
    pairs = list(combinations(means, 2))
    gaps = [means[first] - means[second] for first, second in pairs]
    p = [signed_rank(gap) for gap in gaps]
    return tuple(
        Pair(*names, float(gap.mean()), chance, adjusted)
        for names, gap, chance, adjusted in zip(pairs, gaps, p, holm(p), strict=True)
    )


def _warning(tasks: int, pairs: int) -> str:
    if tasks == 0:
        return "No cell has a result of every method, so there are no ranks and no tests."
    smallest = min(1.0, pairs * 2.0 ** (1 - tasks))
    if not pairs or smallest < ALPHA:
        return ""
    return (
        f"With {count(tasks, 'task')} and {count(pairs, 'pair')} of methods nothing can be significant: the smallest"
        f" adjusted p there can be is {smallest:.2g}. Equal standing here means too few tasks, not equal methods."
    )
