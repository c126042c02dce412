"""Which method is better, and whether the runs support saying so (docs/statistics.md has formulas and caveats).

Methods are compared over blocks: a block is one task with one seed, where all methods had the same data. Ranks within
blocks, Friedman's test over all methods, and Wilcoxon's signed-rank test for every pair with Holm's adjustment follow
Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006, without his normal
approximations: the signed-rank test counts all assignments of signs, ties and zeros included, which scipy does not.

>>> comparison = compare(results, "accuracy")
>>> comparison.best, comparison.equivalent
('CAT*-Temperature', ('CAT*-CPCS',))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from bearcat.errors import InputError, suggest
from bearcat.report.results import Floats, Result
from bearcat.report.typeset import count

ALPHA = 0.05
# Scores are fractions computed in float32; two that differ by less than this differ by rounding alone. Without it
# 0.85 − 0.80 and 0.75 − 0.70 would not tie.
SAME = 1e-6
EXACT_UP_TO = 200  # non-zero differences; counting signs beyond takes seconds, and the normal distribution is as good
RESAMPLES = 2000


@dataclass(frozen=True)
class Metric:
    """A score of the target by which methods are compared; tables print it in hundredths."""

    score: str  # a field of DomainScores
    title: str
    short: str
    higher_is_better: bool = True
    unit: str = "Percent"

    @property
    def label(self) -> str:
        """In figures."""
        return self.short.partition(" (")[0]


METRICS = {
    "accuracy": Metric("accuracy", "Accuracy on the target", "accuracy"),
    "accuracy-uncalibrated": Metric(
        "accuracy_uncalibrated", "Accuracy on the target, before calibration", "uncalibrated accuracy"
    ),
    "balanced": Metric("balanced_accuracy", "Balanced accuracy on the target", "balanced accuracy"),
    "macro-f1": Metric("macro_f1", "Macro-F1 on the target", "macro-F1"),
    "nll": Metric("nll", "Negative log-likelihood on the target, lower is better", "NLL", False, "Hundredths of a nat"),
    "brier": Metric("brier", "Brier score on the target, lower is better", "Brier score", False, "Hundredths"),
    "ece": Metric(
        "ece", "Expected calibration error on the target, 10 bins, lower is better", "ECE (10 bins)", False
    ),
    "missed-faults": Metric(
        "missed_faults", "Missed faults on the target (faulty windows called healthy), lower is better",
        "missed faults", False,
    ),
}  # fmt: skip
USUAL = ("accuracy", "ece")  # where none is asked for

Scores = Mapping[tuple[str, str, int], float]  # (method, task, seed) → score on the target


@dataclass(frozen=True)
class Spread:
    """Of the seeds of one task; `sd` (ddof 1) is nan for a single seed."""

    mean: float
    sd: float
    n: int


@dataclass(frozen=True)
class Average:
    """The mean of task means over tasks that every method has, and its bootstrap interval (nan if there is none)."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Friedman:
    """Whether the methods differ at all; both numbers are None where the test does not exist, and `reason` says why."""

    statistic: float | None
    p: float | None
    reason: str = ""


@dataclass(frozen=True)
class Pair:
    """Two methods; `first` has the better average rank."""

    first: str
    second: str
    difference: float  # first − second, averaged over tasks, in the score's units: below zero is better for ece
    effect: float  # rank-biserial correlation, above zero where `first` is better: 1 is better in every block
    p: float
    p_holm: float
    low: float  # bootstrap interval of the difference
    high: float

    @property
    def significant(self) -> bool:
        return self.p_holm < ALPHA


@dataclass(frozen=True)
class Comparison:
    """Methods on the tasks of one dataset and input, by one score on the target."""

    metric: str
    ranks: Mapping[str, float]  # average rank of each method, the best first; nan without blocks
    cells: Mapping[tuple[str, str], Spread]  # (method, task), where there is a result
    averages: Mapping[str, Average]  # method
    averaged_tasks: tuple[str, ...]
    blocks_used: int
    rule: str
    warning: str  # "" or why the tests cannot say anything
    friedman: Friedman
    pairs: tuple[Pair, ...]
    cliques: tuple[tuple[str, ...], ...]
    best: str | None
    equivalent: tuple[str, ...]  # not significantly different from `best`, which is not among them

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.metric].higher_is_better

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.ranks)

    def pair(self, first: str, second: str) -> Pair | None:
        """The test of these two, whichever is better."""
        return next((pair for pair in self.pairs if {pair.first, pair.second} == {first, second}), None)


def compare(results: Sequence[Result], metric: str, over: str = "cells") -> Comparison:
    """Results of ONE dataset and input by one of METRICS; `over` "tasks" tests means of tasks."""
    for name, value, known in (("metric", metric, tuple(METRICS)), ("over", over, ("cells", "tasks"))):
        if value not in known:
            raise InputError(f"{name} is '{value}'{suggest(value, known)}")
    scores = target_scores(results, metric)
    methods = sorted({method for method, _, _ in scores})
    every = sorted({(task, seed) for _, task, seed in scores})
    complete = [block for block in every if all((method, *block) in scores for method in methods)]
    tasks = [task for task, _ in complete]
    values = np.array([[scores[method, *block] for method in methods] for block in complete])
    tested = values = values.reshape(len(complete), len(methods))
    if over == "tasks":
        tested = np.array([group.mean(axis=0) for group in _grouped(values, tasks)]).reshape(-1, len(methods))
    sign = 1 if METRICS[metric].higher_is_better else -1
    ranked = ranks(-sign * tested)
    average_ranks = ranked.mean(axis=0) if len(tested) else np.full(len(methods), math.nan)
    cells = spreads(scores)
    averaged = common_tasks(cells, methods)
    averages = {method: _average([_of_seeds(scores, method, task) for task in averaged]) for method in methods}

    def place(number: int) -> tuple[float, float, str]:
        """Ties in rank: the better average first, then the alphabet, so that the order of results never matters."""
        mean = averages[methods[number]].mean
        return np.nan_to_num(average_ranks[number]), -sign * np.nan_to_num(mean), methods[number]

    order = sorted(range(len(methods)), key=place)
    ordered = tuple(methods[number] for number in order)
    pairs = _pairs(values[:, order], tested[:, order], tasks, ordered, sign) if complete else ()
    different = {frozenset((pair.first, pair.second)) for pair in pairs if pair.significant}
    best = ordered[0] if complete else None
    left_out = f", {len(every) - len(complete)} left out" if len(complete) < len(every) else ""
    return Comparison(
        metric=metric,
        ranks={methods[number]: float(average_ranks[number]) for number in order},
        cells=cells,
        averages=averages,
        averaged_tasks=averaged,
        blocks_used=len(tested),
        rule="Ranks and tests use only the cells (task and seed) in which every compared method has a result: "
        f"{len(complete)} of {len(every)}{left_out}. The mean of a task uses all seeds there are; an average over"
        " tasks uses only the tasks in which every method has a result.",
        warning=_warning(len(tested), len(pairs), over.removesuffix("s")),
        friedman=friedman(ranked),
        pairs=pairs,
        cliques=cliques(ordered, different) if complete else (),
        best=best,
        equivalent=tuple(name for name in ordered[1:] if best and frozenset((best, name)) not in different),
    )


def comparisons(results: Sequence[Result], metrics: Sequence[str] = USUAL) -> dict[str, Comparison]:
    """By each of these scores; nothing where there are no results."""
    return {metric: compare(results, metric) for metric in metrics} if results else {}


def target_scores(results: Sequence[Result], metric: str) -> dict[tuple[str, str, int], float]:
    """(method, task, seed) → score on the target, where there is one; two datasets or a double cell are errors.

    The score is one of METRICS or any field of DomainScores.
    """
    name = METRICS[metric].score if metric in METRICS else metric
    groups = sorted({f"{result.cell.dataset} ({result.cell.input})" for result in results})
    if len(groups) > 1:
        raise InputError(f"results of {', '.join(groups)} cannot be compared; give one dataset and input at a time")
    scores: dict[tuple[str, str, int], float | None] = {}
    for result in results:
        cell = result.cell
        if (cell.method, cell.task, cell.seed) in scores:
            raise InputError(
                f"{result.folder}: there are two results of {cell.method} on {cell.task} with seed {cell.seed}; "
                "give each run a name of its own"
            )
        scores[cell.method, cell.task, cell.seed] = result.score("target", name)
    return {key: float(score) for key, score in scores.items() if score is not None and math.isfinite(score)}


def spreads(scores: Scores) -> dict[tuple[str, str], Spread]:
    """(method, task) → mean, standard deviation (ddof 1) and number of its seeds."""
    found = {}
    for method, task in sorted({(method, task) for method, task, _ in scores}):
        values = _of_seeds(scores, method, task)
        sd = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        found[method, task] = Spread(float(values.mean()), sd, len(values))
    return found


def common_tasks(cells: Mapping[tuple[str, str], Spread], methods: Sequence[str]) -> tuple[str, ...]:
    """Tasks in which every method has a result: an average over others would compare different tasks."""
    tasks = sorted({task for _, task in cells})
    return tuple(task for task in tasks if all((method, task) in cells for method in methods))


def ranks(values: Floats) -> Floats:
    """1 for the lowest of each row, ties averaged: (block, method) → (block, method)."""
    return np.array([stats.rankdata(_snapped(row)) for row in values]).reshape(values.shape)


def friedman(ranked: Floats) -> Friedman:
    """Friedman's chi-square over ranks (block, method), corrected for ties."""
    blocks, methods = ranked.shape
    if methods < 3:
        return Friedman(None, None, f"Friedman's test needs three methods; there are {methods}")
    if blocks < 2:
        return Friedman(None, None, f"Friedman's test needs two blocks; there is {('none', 'one')[blocks]}")
    if np.ptp(ranked) == 0:
        return Friedman(0.0, 1.0, "all methods tie in every block")
    found = stats.friedmanchisquare(*ranked.T)
    return Friedman(float(found.statistic), float(found.pvalue))


def signed_rank(differences: Floats) -> tuple[float, float]:
    """Two-sided p of Wilcoxon's signed-rank test, zeros ranked and left out (Pratt); rank-biserial correlation."""
    sizes = _snapped(np.abs(differences))
    ranked = stats.rankdata(sizes)[sizes > 0]
    positive = float(ranked[differences[sizes > 0] > 0].sum())
    total = float(ranked.sum())
    if total == 0:
        return 1.0, 0.0
    effect = (2 * positive - total) / total
    if len(ranked) > EXACT_UP_TO:
        return float(2 * stats.norm.sf(abs(positive - total / 2) / math.sqrt(float((ranked**2).sum()) / 4))), effect
    # Given the ranks, each sign is a fair coin under the hypothesis: the distribution of the positive ranks' sum.
    doubled = np.rint(2 * ranked).astype(int)  # averaged ranks are whole or half
    chance = np.zeros(doubled.sum() + 1)
    chance[0] = 1
    for rank in doubled:
        chance /= 2
        chance[rank:] += chance[:-rank].copy()
    lesser = round(2 * min(positive, total - positive))  # the distribution is symmetric
    return min(1.0, 2 * float(chance[: lesser + 1].sum())), effect


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the smallest times m, the next times m − 1, …, never falling, at most 1."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)).clip(max=1)
    return [float(value) for value in adjusted]


def cliques(ordered: Sequence[str], different: set[frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """Bars of the critical-difference diagram: the longest runs of neighbours in which no two methods differ."""
    found: list[tuple[str, ...]] = []
    reached = 0
    for start in range(len(ordered)):
        end = start + 1
        while end < len(ordered) and not different & {frozenset((name, ordered[end])) for name in ordered[start:end]}:
            end += 1
        if end > reached and end - start > 1:
            found.append(tuple(ordered[start:end]))
        reached = max(reached, end)
    return tuple(found)


def bootstrap(groups: Sequence[Floats]) -> tuple[float, float]:
    """A 95 % percentile interval for the mean of group means: tasks are drawn, then seeds; nan for a single value."""
    if sum(map(len, groups)) < 2:
        return math.nan, math.nan
    random = np.random.default_rng(0)
    counts = np.array([len(group) for group in groups])
    values = np.zeros((len(groups), counts.max()))
    for row, group in zip(values, groups, strict=True):
        row[: len(group)] = group
    drawn = random.integers(len(groups), size=(RESAMPLES, len(groups)))
    seeds = (random.random((*drawn.shape, counts.max())) * counts[drawn][..., None]).astype(int)
    present = np.arange(counts.max()) < counts[drawn][..., None]
    means = np.where(present, values[drawn[..., None], seeds], 0).sum(axis=-1) / counts[drawn]
    low, high = np.quantile(means.mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _pairs(values: Floats, tested: Floats, tasks: Sequence[str], methods: Sequence[str], sign: int) -> tuple[Pair, ...]:
    places = list(combinations(range(len(methods)), 2))
    tests = [signed_rank(sign * (tested[:, first] - tested[:, second])) for first, second in places]
    pairs = []
    for (first, second), (p, effect), adjusted in zip(places, tests, holm([p for p, _ in tests]), strict=True):
        apart = _average(_grouped(values[:, first] - values[:, second], tasks))
        pairs.append(Pair(methods[first], methods[second], apart.mean, effect, p, adjusted, apart.low, apart.high))
    return tuple(pairs)


def _average(groups: Sequence[Floats]) -> Average:
    """Of group means; nan without groups."""
    return Average(float(np.mean([group.mean() for group in groups])) if groups else math.nan, *bootstrap(groups))


def _of_seeds(scores: Scores, method: str, task: str) -> Floats:
    """In the order of seeds, so that the order of results never matters."""
    return np.array([scores[key] for key in sorted(scores) if key[:2] == (method, task)])


def _grouped(values: Floats, groups: Sequence[str]) -> list[Floats]:
    names = np.array(groups)
    return [values[names == name] for name in sorted(set(groups))]


def _snapped(values: Floats) -> Floats:
    """Values that differ by rounding alone made equal, and zero where they are next to it."""
    values = np.where(np.abs(values) < SAME, 0.0, values)
    order = np.argsort(values, kind="stable")
    steps = np.diff(values[order], prepend=-np.inf) > SAME
    snapped = np.empty_like(values)
    snapped[order] = values[order][steps][np.cumsum(steps) - 1] if len(values) else values
    return snapped


def _warning(blocks: int, pairs: int, over: str) -> str:
    if blocks == 0:
        return "No cell has a result of every method, so there are no ranks and no tests."
    smallest = min(1.0, pairs * 2.0 ** (1 - blocks))
    if not pairs or smallest < ALPHA:
        return ""
    return (
        f"With {count(blocks, over)} and {count(pairs, 'pair')} of methods nothing can be significant: the smallest"
        f" adjusted p there can be is {smallest:.2g}. Equal standing here means too few {over}s, not equal methods."
    )
