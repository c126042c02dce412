"""Results of one dataset and input as tables; typeset.py writes them as LaTeX and CSV.

The shapes are the paper's: a row per method, its average, its average rank and a column per task; rankings and tests.
Numbers are percent; a table's note says what bold means, over how many runs its numbers go, and what is missing.
Published figures stand beside ours where `published/*.csv` has them, in percent; `method` is our name there, empty
where no recipe of ours is the same thing, and `published_name` is theirs.

>>> for table in result_tables(results, missing):
...     write_table(table, Path("tables"))
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files

import numpy as np

from bearcat.cat.recipes import RECIPES
from bearcat.data.datasets.benches import CONDITIONS
from bearcat.report import stats
from bearcat.report.results import (
    Missing,
    Result,
    incomplete,
    numbered,
    ordered_methods,
    ordered_tasks,
    troubles,
    untested_bearings,
)
from bearcat.report.stats import ALPHA, METRICS, USUAL, Comparison, Spread
from bearcat.report.typeset import NOTHING, Table, TableEntry, count, number_entry, percent_entry

# What published figures are compared by.
TITLES = {name: METRICS[name].title for name in USUAL} | {"ece15": METRICS["ece"].title.replace("10", "15")}
UNCALIBRATED = "The arg max of uncalibrated logits, as the published code counts; vector and matrix scaling change it."
Cells = Mapping[tuple[str, str], Spread]  # (method, task)
# Whose figures, the file, its rows of task scores, and what they are. The paper's averages are not used: three are a
# tenth below the mean of their tasks. An ablation's rows that repeat another table are kept once. UDTL's "Basis" is our
# source-only; all its methods are kept, though only two are ours.
SOURCES: dict[str, tuple[str, Mapping[str, str], str]] = {
    "paper": (
        "paper.csv",
        {"quantity": "task"},
        "Forest and Fink 2024, mean of five seeds at the last epoch (ECE of 10 bins by its text, 15 by its code)",
    ),
    "UDTL": ("udtl.csv", {"epoch": "last", "over_seeds": "mean"}, "Zhao et al. 2021, mean of seeds at the last epoch"),
    "authors' code": ("authors-code.csv", {}, "the paper's published code, seed 42 alone"),
}


def result_tables(
    results: Sequence[Result], missing: Sequence[Missing], decimals: int = 1,
    compared: Mapping[str, Comparison] | None = None,
) -> list[Table]:  # fmt: skip
    """Scores per task, rankings and tests, and published figures; `compared` are statistics known already."""
    if not results:
        return []
    group = _Group(tuple(results), tuple(missing), compared or stats.comparisons(results), decimals)
    tables = []
    for metric, comparison in group.comparisons.items():
        if comparison.methods or metric == USUAL[0]:
            tables.append(_score_table(group, comparison))
        if comparison.pairs:
            tables += [_ranking_table(group, comparison), _test_table(group, comparison)]
    for metric in TITLES if compared is None or set(USUAL) <= compared.keys() else ():
        tables += _published_tables(group, metric)
    return tables


@dataclass(frozen=True, eq=False)
class _Group:
    """What the tables of one dataset and input share."""

    results: tuple[Result, ...]
    missing: tuple[Missing, ...]
    comparisons: Mapping[str, Comparison]
    decimals: int

    def percent(self, fraction: float | None, sign: str = "") -> TableEntry:
        return percent_entry(fraction, f"{{:{sign}.{self.decimals}f}}")

    def table(
        self, name: str, title: str, note: Sequence[str], header: Sequence[str], rows: Sequence[Sequence[TableEntry]]
    ) -> Table:
        """A table with the group's name in its own, and its note with what all tables of the group must say."""
        cell = self.results[0].cell
        slug = re.sub(r"[^a-z0-9]+", "-", f"{cell.dataset}-{cell.input}".lower()).strip("-")
        title = f"{title}: {cell.dataset}, {cell.input} input"
        text = " ".join(sentence for sentence in (*note, *self.notes) if sentence)
        return Table(f"{slug}-{name}".strip("-"), title, text, tuple(header), tuple(map(tuple, rows)))

    @cached_property
    def headings(self) -> dict[str, str]:
        """Of the tasks, in their order."""
        return {task: numbered(task) for task in ordered_tasks((*self.results, *self.missing))}

    @cached_property
    def notes(self) -> list[str]:
        """What headings and names mean, and what is missing or should not be trusted."""
        notes = []
        if any(method in RECIPES and "*" in method for method in ordered_methods(self.results)):
            notes.append("* = with MCC and SDAT.")
        if any(heading != task for task, heading in self.headings.items()):
            notes.append("Domains: " + ", ".join(f"{number} = {name}" for number, name in enumerate(CONDITIONS)) + ".")
        broken = [caveat for caveat in troubles(self.results) if caveat.kind in ("Failed", "Collapsed")]
        notes += [caveat.text for caveat in (*incomplete(self.results, self.missing), *broken)]
        notes += [caveat.text for caveat in untested_bearings(self.results)]
        unlabelled = {run.cell for run in self.results if run.record.scores.target is None}
        if unlabelled:
            names = sorted({f"{cell.method} on {cell.task}" for cell in unlabelled})
            notes.append(f"Left out, since the target has no labels: {', '.join(names)}.")
        return notes


def _score_table(group: _Group, comparison: Comparison) -> Table:
    methods = [method for method in ordered_methods(group.results) if method in comparison.methods]
    averaged = comparison.averaged_tasks
    rows = _task_rows(group, comparison.cells, methods, averaged, comparison.higher_is_better)
    unit = METRICS[comparison.metric].unit
    header = ["Method", "Average", *group.headings.values()]
    note = [_seeds_note(group, comparison.cells, averaged, unit)]
    note += [UNCALIBRATED] if comparison.metric == "accuracy-uncalibrated" else []
    if len(methods) > 1:
        bold, sentence = _bold_ranks(comparison)
        header.insert(2, "Average rank")
        for method, row in zip(methods, rows, strict=True):
            row.insert(1, number_entry(comparison.ranks[method], "{:.2f}", method in bold))
        note += ["Bold: the best mean of each column, as printed.", sentence, comparison.rule, comparison.warning]
    full = [[TableEntry(method), *row] for method, row in zip(methods, rows, strict=True)]
    return group.table(comparison.metric, METRICS[comparison.metric].title, note, header, full)


def _ranking_table(group: _Group, comparison: Comparison) -> Table:
    rows, (bold, sentence) = [], _bold_ranks(comparison)
    choose, unit = max if comparison.higher_is_better else min, METRICS[comparison.metric].unit.lower()
    best_of = {
        task: choose(comparison.cells[name, task].mean for name in comparison.methods)
        for task in comparison.averaged_tasks
    }
    for method, rank in comparison.ranks.items():
        average, pair = comparison.averages[method], comparison.pair(method, comparison.best or "")
        row = [TableEntry(method, bold=method in bold)]
        row += [group.percent(value) for value in (average.mean, average.low, average.high)]
        row.append(number_entry(rank, "{:.2f}", method in bold))
        behind = [best - comparison.cells[method, task].mean for task, best in best_of.items()]
        row.append(number_entry(sum(math.isclose(by, 0, abs_tol=stats.SAME) for by in behind), "{}"))
        row.append(group.percent(-pair.difference if pair else None, "+"))
        row.append(number_entry(-pair.effect if pair else None, "{:+.2f}"))
        rows.append([*row, _p_entry(pair.p_holm if pair else None)])
    note = (
        f"Best average rank first. Average over tasks in {unit} with its 95 % bootstrap interval (tasks drawn with "
        "replacement, then seeds within them); difference from the best method in percentage points; effect: "
        "rank-biserial correlation against the best, −1 where worse in every cell. Wins: of "
        f"{count(len(comparison.averaged_tasks), 'task')}, those with the best mean, equals included.",
        sentence,
        comparison.rule,
        comparison.warning,
    )
    header = ("Method", "Average", "95 % from", "to", "Average rank", "Wins", "Difference", "Effect", "p (Holm)")
    title = f"Ranking by {METRICS[comparison.metric].short}"
    return group.table(f"{comparison.metric}-ranking", title, note, header, rows)


def _test_table(group: _Group, comparison: Comparison) -> Table:
    by_task, friedman = stats.compare(group.results, comparison.metric, over="tasks"), comparison.friedman
    rows = []
    for pair in comparison.pairs:
        stricter = by_task.pair(pair.first, pair.second)
        row = [TableEntry(pair.first), TableEntry(pair.second), _p_entry(pair.p_holm, pair.significant)]
        row.append(_p_entry(stricter.p_holm if stricter else None, bool(stricter and stricter.significant)))
        row += [group.percent(value, "+") for value in (pair.difference, pair.low, pair.high)]
        rows.append([*row, number_entry(pair.effect, "{:+.2f}"), _p_entry(pair.p)])
    header = ("First", "Second", "p (Holm)", "p (Holm), tasks", "Difference", "95 % from", "to", "Effect", "p")
    note = (
        f"Two-sided Wilcoxon signed-rank tests over {count(comparison.blocks_used, 'cell')} (task and seed), p adjusted"
        f" by Holm over {count(len(rows), 'pair')}; bold: below {ALPHA:g}. “{header[3]}” tests the mean of each task"
        f" ({count(by_task.blocks_used, 'task')}) in place of cells, since the seeds of one task share its data."
        " Difference: first − second in percentage points, with its 95 % bootstrap interval; effect: rank-biserial"
        " correlation, +1 where the first is better in every cell.",
        f"{friedman.reason}."
        if friedman.statistic is None or friedman.p is None
        else f"Friedman's test over all methods: chi-square {friedman.statistic:.2f}, p {_p_entry(friedman.p).text}.",
        comparison.rule,
        comparison.warning or (f"Over tasks: {by_task.warning}" if by_task.warning else ""),
    )
    title = f"Pairwise tests of {METRICS[comparison.metric].short}"
    return group.table(f"{comparison.metric}-tests", title, note, header, rows)


def published_figures(dataset: str, kind: str, metric: str) -> dict[str, dict[tuple[str, str], float]]:
    """(Our method, our task) → score of a dataset and input, by whose figures they are; often nothing.

    The paper's ECE stands beside ours of 10 bins, which its text names, and of 15, which its code computes.
    """
    found = {}
    for label, (name, wanted, _) in SOURCES.items():
        text = (files("bearcat.report") / "published" / name).read_text(encoding="utf-8")
        metric_there = "ece" if (label, metric) == ("paper", "ece15") else metric
        place = {"dataset": dataset, "input": kind, "metric": metric_there, **wanted}
        rows = [row for row in csv.DictReader(text.splitlines()) if row["method"] and place.items() <= row.items()]
        if rows:
            tasks = [(row["method"], f"{row['source']}→{row['target']}") for row in rows]
            found[label] = dict(zip(tasks, (float(row["value"]) / 100 for row in rows), strict=True))
    return found


def _published_tables(group: _Group, metric: str) -> list[Table]:
    """Ours, the published figures and the difference, for the methods and tasks that both have."""
    runs = [result for result in group.results if result.is_named_recipe]
    counted = "accuracy_uncalibrated" if metric == "accuracy" else metric
    cells, cell = stats.spreads(stats.target_scores(runs, counted)), group.results[0].cell
    published = published_figures(cell.dataset, cell.input, metric)
    compared = {key for scores in published.values() for key in scores} & cells.keys()
    tasks = [task for task in group.headings if task in {other for _, other in compared}]
    seeds = max((spread.n for spread in cells.values()), default=0)
    rows: list[list[TableEntry]] = []
    for method in ordered_methods(group.results):
        ours: list[list[TableEntry]] = []
        for label, scores in published.items():
            theirs = {task: scores[key] for task in tasks if (key := (method, task)) in scores and key in cells}
            if not theirs:
                continue
            mine = {task: cells[method, task].mean for task in theirs}
            apart = {task: mine[task] - theirs[task] for task in theirs}
            spread = [_spread_entry(cells.get((method, task)), seeds, group.decimals) for task in tasks]
            ours = ours or [[TableEntry("ours"), group.percent(_mean(mine)), *spread]]
            ours.append([TableEntry(label), *map(group.percent, (_mean(theirs), *map(theirs.get, tasks)))])
            differences = [group.percent(value, "+") for value in (_mean(apart), *map(apart.get, tasks))]
            ours.append([TableEntry(f"ours − {label}"), *differences])
        rows += [[TableEntry(method), *row] for row in ours]
    cited = [f"{label}: {SOURCES[label][2]}" for label, scores in published.items() if scores.keys() & compared]
    runs = [run for run in runs if any(run.cell.method == method for method, _ in compared)]
    splits, epochs = (sorted({getattr(run.record.settings, name) for run in runs}) for name in ("split", "epochs"))
    note = (
        f"Ours: {_seeds_note(group, {key: cells[key] for key in compared}, list(group.headings))} {'; '.join(cited)}.",
        "Averages are over the tasks that both have. No test compares the two: single runs are not published.",
        f"Ours were trained for {', '.join(map(str, epochs))} epochs with the split"
        f" '{', '.join(splits)}'; published figures are of the split 'window' and 300 epochs.",
        UNCALIBRATED if metric == "accuracy" else "",
    )
    header = ("Method", "Figures", "Average", *(group.headings[task] for task in tasks))
    title = f"{TITLES[metric]}, beside the published"
    return [group.table(f"{metric}-published", title, note, header, rows)] if rows else []


def _task_rows(
    group: _Group, cells: Cells, methods: Sequence[str], averaged: Sequence[str], higher_is_better: bool
) -> list[list[TableEntry]]:
    """A row per method: the average, and every task; the best of each column in bold."""
    seeds = max((spread.n for spread in cells.values()), default=0)
    means = [{task: cells[method, task].mean for task in averaged} for method in methods]
    columns = [[group.percent(_mean(values)) for values in means]]
    for task in group.headings:
        columns.append([_spread_entry(cells.get((method, task)), seeds, group.decimals) for method in methods])
    for place, column in enumerate(columns):
        values = [entry.value for entry in column if entry.value is not None]
        if len(values) > 1:
            best = f"{(max if higher_is_better else min)(values):.{group.decimals}f}"  # what prints alike is alike
            columns[place] = [replace(entry, bold=entry.text.partition(" ")[0] == best) for entry in column]
    return [list(row) for row in zip(*columns, strict=True)]


def _mean(values: Mapping[str, float]) -> float | None:
    return float(np.mean(list(values.values()))) if values else None


def _spread_entry(spread: Spread | None, seeds: int, decimals: int) -> TableEntry:
    if spread is None:
        return TableEntry(NOTHING)
    value, sd = 100 * spread.mean, 100 * spread.sd if spread.n > 1 else None
    text = f"{value:.{decimals}f}" + ("" if sd is None else f" ± {sd:.{decimals}f}")
    text += f" ({spread.n})" if spread.n < seeds else ""
    return TableEntry(text, value, spread=sd)


def _p_entry(p: float | None, bold: bool = False) -> TableEntry:
    return TableEntry("<0.001", p, bold) if p is not None and p < 0.001 else number_entry(p, "{:.3f}", bold)


def _bold_ranks(comparison: Comparison) -> tuple[set[str], str]:
    """The best method and its equals, or the best rank alone where no test could separate them; a sentence on it."""
    if comparison.best is None or len(comparison.methods) < 2:
        return set(), ""
    if comparison.warning:
        best = comparison.ranks[comparison.best]
        alone = {method for method, rank in comparison.ranks.items() if math.isclose(rank, best)}
        return alone, "Bold average rank: the best alone, since there are too few runs for a test."
    return {comparison.best, *comparison.equivalent}, (
        "Bold average rank: the best and those not significantly different from it (pairwise two-sided Wilcoxon"
        f" signed-rank tests with Holm's adjustment, level {ALPHA:g})."
    )


def _seeds_note(group: _Group, cells: Cells, averaged: Sequence[str], unit: str = "Percent") -> str:
    """Over how many seeds means go, and over which tasks averages do where those are not all."""
    numbers = {spread.n for spread in cells.values()} or {0}
    fewer = ", in brackets where fewer" if len(numbers) > 1 else ""
    note = f"{unit}; mean ± standard deviation over {max(numbers)} seeds{fewer}."
    if max(numbers) < 2:
        note = f"{unit}; one seed per task." if max(numbers) else "There is no result."
    if len(averaged) == len(group.headings):
        return note
    note += f" Averages are over {len(averaged)} of {count(len(group.headings), 'task')}"
    names = ", ".join(heading for task, heading in group.headings.items() if task in averaged)
    return f"{note}: {names}." if names else f"{note}."
