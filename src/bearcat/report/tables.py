"""Results as tables. typeset.py makes them Markdown, LaTeX and CSV.

The shapes are the paper's: a row per method, a column per task, then the average and the average rank; its two
ablation tables; and the UDTL benchmark's form, maximum and mean over seeds at the best and at the last epoch. Published
figures stand beside ours where there are any. Numbers are percent; a table's note says what bold means, over how many
runs its numbers go, and what is missing.

>>> write_tables(result_tables(results, missing), Path("tables"))
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bearcat.data.datasets.paderborn import CONDITIONS
from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES
from bearcat.report.published import Published, published_figures
from bearcat.report.results import Missing, Result
from bearcat.report.stats import (
    ALPHA,
    HIGHER_IS_BETTER,
    Comparison,
    Spread,
    common_tasks,
    compare,
    spreads,
    target_scores,
)
from bearcat.report.typeset import NOTHING, Entry, Table, csv_text, latex, markdown, write_tables
from bearcat.report.wording import count

__all__ = ["Entry", "Table", "csv_text", "latex", "markdown", "result_tables", "write_tables"]

TITLES = {
    "accuracy": "Accuracy on the target",
    "ece": "Expected calibration error on the target, 10 bins, lower is better",
    "ece15": "Expected calibration error on the target, 15 bins, lower is better",
}

SUMMARY = ("Average", "Average rank")  # the columns a reader looks for first


def result_tables(results: Sequence[Result], missing: Sequence[Missing]) -> list[Table]:
    """For every dataset and input: scores per task, rankings and tests, UDTL's form, ablations, published figures."""
    tables: list[Table] = []
    for place in sorted({(result.cell.dataset, result.cell.input) for result in results}):
        group = _Group(
            *place,
            tuple(one for one in results if (one.cell.dataset, one.cell.input) == place),
            tuple(one for one in missing if (one.cell.dataset, one.cell.input) == place),
        )
        tables += _group_tables(group)
    names: Counter[str] = Counter()
    unique = []
    for table in tables:  # two datasets' names may make the same slug
        names[table.name] += 1
        suffix = f"-{names[table.name]}" if names[table.name] > 1 else ""
        unique.append(replace(table, name=table.name + suffix))
    return unique


# What the tables of one dataset and input share


@dataclass(frozen=True, eq=False)
class _Group:
    dataset: str
    input: str
    results: tuple[Result, ...]
    missing: tuple[Missing, ...]

    def name(self, what: str) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.dataset}-{self.input}".lower()).strip("-")
        return f"{slug}-{what}" if slug else what

    def title(self, what: str) -> str:
        return f"{what}: {self.dataset}, {self.input} input"

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """In the order of the recipes, then the alphabet."""
        known = list(RECIPES)
        every = {one.cell.method for one in self.results}
        return tuple(sorted(every, key=lambda one: (known.index(one) if one in known else len(known), one)))

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        cells = [one.cell for one in self.results] + [one.cell for one in self.missing]
        return tuple(sorted({cell.task for cell in cells}, key=_task_order))

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        return {metric: compare(self.results, metric) for metric in HIGHER_IS_BETTER}

    def heading(self, task: str) -> str:
        """Paderborn's conditions by number, as the paper has them; other domains by name."""
        source, _, target = task.partition("→")
        domains = [*source.split("+"), target]
        if not set(domains) <= set(CONDITIONS):
            return task
        numbers = [str(CONDITIONS.index(one)) for one in domains]
        return f"{'+'.join(numbers[:-1])}→{numbers[-1]}"

    @cached_property
    def legend(self) -> str:
        """What the numbers in headings and the star in names mean, where there are such."""
        told = []
        if any(method in RECIPES and "*" in method for method in self.methods):
            told.append("* = with MCC and SDAT.")
        if any(self.heading(task) != task for task in self.tasks):
            told.append("Domains: " + ", ".join(f"{number} = {name}" for number, name in enumerate(CONDITIONS)) + ".")
        return " ".join(told)

    @cached_property
    def absences(self) -> str:
        """What is not there, or should not be trusted, in sentences."""
        told = []
        if self.missing:
            reasons = Counter(one.reason.partition(":")[0] for one in self.missing)
            counted = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
            planned = len(self.results) + len(self.missing)
            verb = "has" if len(self.missing) == 1 else "have"
            told.append(f"{len(self.missing)} of {count(planned, 'planned run')} {verb} no result ({counted}).")
        absent = {one.cell.method for one in self.missing} - set(self.methods)
        if absent:
            told.append(f"Left out, without any result: {', '.join(sorted(absent))}.")
        unlabelled = [one for one in self.results if one.record["scores"]["target"] is None]
        if unlabelled:
            names = sorted({f"{one.cell.method} on {one.cell.task}" for one in unlabelled})
            told.append(f"Left out, since the target has no labels: {', '.join(names)}.")
        for mark, meaning in (
            ("failed", "stopped with a loss that was not finite"),
            ("collapsed", "predicted one class alone"),
        ):
            names = sorted(_counted(one.cell.method for one in self.results if one.record.get(mark)))
            if names:
                told.append(f"Runs that {meaning}, counted with the numbers they have: {', '.join(names)}.")
        oracles = sorted({one.cell.method for one in self.results if _calibrator(one) == "Oracle"})
        if oracles:
            told.append(f"Calibrated with target labels, which one does not have in practice: {', '.join(oracles)}.")
        return " ".join(told)


def _counted(names: Iterable[str]) -> list[str]:
    return [f"{name} ({number})" for name, number in Counter(names).items()]


def _recipe(result: Result) -> Mapping[str, Any]:
    settings = result.record.get("settings") or {}
    return settings.get("recipe") or {}


def _calibrator(result: Result) -> str | None:
    return (_recipe(result).get("calibration") or {}).get("kind")


def _task_order(task: str) -> list[Any]:
    """Paderborn's conditions in their order, numbers by size, the rest by letter."""
    key: list[Any] = []
    for domain in re.split(r"[→+]", task):
        if domain in CONDITIONS:
            key.append((0, CONDITIONS.index(domain), ""))
        else:
            parts = re.split(r"(\d+)", domain)
            key += [(1, int(one), "") if one.isdecimal() else (2, 0, one) for one in parts if one]
        key.append((-1, 0, ""))
    return key


def _group_tables(group: _Group) -> list[Table]:
    tables = []
    for metric in HIGHER_IS_BETTER:
        comparison = group.comparisons[metric]
        if not comparison.methods and metric != "accuracy":
            continue
        tables.append(_scores(group, comparison))
        if comparison.pairs:
            tables += [_ranking(group, comparison), _tests(group, comparison)]
    tables += [*_thresholds(group), *_ingredients(group), *_udtl(group)]
    for metric in TITLES:
        tables += _beside(group, metric)
    return tables


# The tables


def _scores(group: _Group, comparison: Comparison) -> Table:
    methods = [one for one in group.methods if one in comparison.methods]
    rows = _task_rows(group, comparison.cells, methods, comparison.averaged_tasks, comparison.higher_is_better)
    ranks = dict(zip(comparison.methods, comparison.average_ranks, strict=True))
    alike = _alike(comparison)
    several = len(methods) > 1  # one alone is first of one
    full = tuple(
        (Entry(method), *row, *([_number(ranks[method], "{:.2f}", bold=method in alike)] if several else []))
        for method, row in zip(methods, rows, strict=True)
    )
    note = _joined(
        "Percent;",
        _seeds(comparison.cells),
        _bold_note(comparison) if several else "",
        _average_note(group, comparison.averaged_tasks),
        comparison.rule if several else "",
        comparison.warning if several else "",
        _empty_note(rows),
        group.legend,
        group.absences,
    )
    header = ("Method", *map(group.heading, group.tasks), *(SUMMARY if several else SUMMARY[:1]))
    return Table(group.name(comparison.metric), group.title(TITLES[comparison.metric]), note, header, full, SUMMARY)


def _ranking(group: _Group, comparison: Comparison) -> Table:
    rows = []
    for method, rank in zip(comparison.methods, comparison.average_ranks, strict=True):
        average = comparison.averages[method]
        bold = method in _alike(comparison)
        pair = comparison.pair(method, comparison.best) if comparison.best and method != comparison.best else None
        tested = (
            (
                _signed(-100 * pair.difference, "{:+.1f}"),
                _signed(-pair.effect, "{:+.2f}"),
                _chance(pair.p_holm),
            )
            if pair
            else (Entry(NOTHING),) * 3
        )
        ends = (_number(100 * one, "{:.1f}") for one in (average.mean, average.low, average.high))
        rows.append((Entry(method, bold=bold), *ends, _number(rank, "{:.2f}", bold=bold), *tested))
    note = _joined(
        "Best average rank first. Average over tasks in percent with its 95 % bootstrap interval (tasks drawn with "
        "replacement, then seeds within them); difference from the best method in percentage points; effect: "
        "rank-biserial correlation against the best, −1 where worse in every cell.",
        _bold_note(comparison, scores=False),
        _used(comparison),
        comparison.warning,
        group.absences,
    )
    header = ("Method", "Average", "95 % from", "to", "Average rank", "Difference", "Effect", "p (Holm)")
    title = group.title(f"Ranking by {comparison.metric.replace('ece', 'ECE')}")
    return Table(group.name(f"{comparison.metric}-ranking"), title, note, header, tuple(rows))


def _tests(group: _Group, comparison: Comparison) -> Table:
    by_task = compare(group.results, comparison.metric, over="tasks")
    rows = []
    for pair in comparison.pairs:
        stricter = by_task.pair(pair.first, pair.second)
        rows.append(
            (
                Entry(pair.first), Entry(pair.second), _signed(100 * pair.difference, "{:+.1f}"),
                _signed(100 * pair.low, "{:+.1f}"), _signed(100 * pair.high, "{:+.1f}"),
                _signed(pair.effect, "{:+.2f}"), _chance(pair.p), _chance(pair.p_holm, pair.significant),
                _chance(stricter.p_holm, stricter.significant) if stricter else Entry(NOTHING),
            )
        )  # fmt: skip
    header = ("First", "Second", "Difference", "95 % from", "to", "Effect", "p", "p (Holm)", "p (Holm), tasks")
    friedman, of_tasks = comparison.friedman, by_task.blocks_used
    note = _joined(
        f"Two-sided Wilcoxon signed-rank tests over {count(comparison.blocks_used, 'cell')} (task and seed), p "
        f"adjusted by Holm{f' over {len(rows)} pairs' if len(rows) > 1 else ' (one pair: unchanged)'}; bold: below "
        f"{ALPHA:g}. "
        f"“{header[-1]}” tests the {f'means of {of_tasks} tasks' if of_tasks != 1 else 'mean of one task'} in place of "
        "cells, since the seeds of one task share its data. Difference: first − second in percentage points, with its "
        "95 % bootstrap interval; effect: rank-biserial correlation, +1 where the first is better in every cell.",
        f"Friedman's test over all methods: chi-square {friedman.statistic:.2f}, p {_chance(friedman.p).text}."
        if friedman.statistic is not None and friedman.p is not None
        else f"{friedman.reason}.",
        _used(comparison),
        comparison.warning,
        f"Over tasks: {by_task.warning}" if by_task.warning and not comparison.warning else "",
        group.absences,
    )
    title = group.title(f"Pairwise tests of {comparison.metric.replace('ece', 'ECE')}")
    return Table(group.name(f"{comparison.metric}-tests"), title, note, header, tuple(rows), header[-2:])


def _as_named(result: Result) -> bool:
    """Whether the run is of the recipe its method is named after, unchanged but for the number of epochs."""
    told, name = result.record["settings"]["recipe"], result.cell.method
    if name not in RECIPES:
        return False
    recipe = RECIPES[name].for_input(result.cell.input).in_epochs(told["schedule"]["epochs"])
    return bool(told == json.loads(json.dumps({"name": name} | recipe.to_dict())))


def _named_methods(group: _Group) -> set[str]:
    """The methods of which every run is what its name says."""
    return {result.cell.method for result in group.results} - {
        result.cell.method for result in group.results if not _as_named(result)
    }


def _thresholds(group: _Group) -> list[Table]:
    """The paper's first ablation: a fixed threshold for pseudo-labels against one per class."""
    lead: dict[str, tuple[str, ...]] = {"AT-fixed": ("AT", "fixed"), "AT": ("AT", "adaptive")}
    cells = group.comparisons["accuracy"].cells
    if not {*lead} <= _named_methods(group) & {method for method, _ in cells}:
        return []
    title = group.title("Ablation: threshold of pseudo-labels, accuracy on the target")
    return [_ablation(group, "ablation-threshold", title, ("Method", "Threshold"), [lead])]


def _ingredients(group: _Group) -> list[Table]:
    """The paper's second ablation: with and without MCC and SDAT, a block per method."""
    cells = group.comparisons["accuracy"].cells
    there = {method for method, _ in cells} & _named_methods(group)
    marks = {"": ("", ""), "+MCC": ("✓", ""), "+SDAT": ("", "✓"), "*": ("✓", "✓")}
    families: list[dict[str, tuple[str, ...]]] = []
    for base, kind in (("AT", ""), *(("CAT", f"-{kind}") for kind in ("Temperature", "CPCS", "Vector", "Matrix"))):
        names = {sign: f"{base}{sign}{kind}" for sign in marks}
        lead: dict[str, tuple[str, ...]] = {
            name: (base + kind, *marks[sign]) for sign, name in names.items() if name in there
        }
        if there & {names["+MCC"], names["+SDAT"]} and len(lead) > 1:
            families.append(lead)
    title = group.title("Ablation: MCC and SDAT, accuracy on the target")
    return [_ablation(group, "ablation-mcc-sdat", title, ("Method", "MCC", "SDAT"), families)] if families else []


def _ablation(
    group: _Group, name: str, title: str, lead: tuple[str, ...], families: list[dict[str, tuple[str, ...]]]
) -> Table:
    cells = group.comparisons["accuracy"].cells
    methods = [method for family in families for method in family]
    averaged = common_tasks(cells, methods)
    rows = []
    for family in families:
        for words, row in zip(family.values(), _task_rows(group, cells, list(family), averaged, True), strict=True):
            rows.append((*map(Entry, words), *row))
    shown = {key: value for key, value in cells.items() if key[0] in methods}
    note = _joined(
        "Percent;",
        _seeds(shown),
        f"Bold: the best mean of a column{' within a method' if len(families) > 1 else ''}, as printed;",
        "no test is behind it.",
        _average_note(group, averaged),
        _empty_note(rows),
        group.legend,
        group.absences,
    )
    header = (*lead, *map(group.heading, group.tasks), "Average")
    return Table(group.name(name), title, note, header, tuple(rows), SUMMARY)


def _udtl(group: _Group) -> list[Table]:
    """Maximum and mean over seeds, at the best and at the last epoch."""
    last = target_scores(group.results, "accuracy")
    best, unread = {}, 0
    for result in group.results:
        cell = result.cell
        key = (cell.method, cell.task, cell.seed)
        if key in last:
            found = _best_epoch(result)
            if found is None:
                unread += 1
            else:
                best[key] = max(found, last[key])  # curves are written with six digits
    if not best:
        return []
    methods = [one for one in group.methods if any(one == method for method, _, _ in last)]
    kinds: list[tuple[str, str, Mapping[tuple[str, str, int], float], Callable[[list[float]], float]]] = [
        ("best", "max", best, max), ("best", "mean", best, lambda values: float(np.mean(values))),
        ("last", "max", last, max), ("last", "mean", last, lambda values: float(np.mean(values))),
    ]  # fmt: skip
    averaged = common_tasks(spreads(best), methods)
    rows = []
    for method in methods:
        for epoch, over, scores, reduce in kinds:
            by_task = {
                task: reduce([score for key, score in scores.items() if key[:2] == (method, task)])
                for task in group.tasks
                if any(key[:2] == (method, task) for key in scores)
            }
            entries = [_number(100 * by_task.get(task, math.nan), "{:.1f}") for task in group.tasks]
            average = 100 * float(np.mean([by_task[task] for task in averaged])) if averaged else math.nan
            rows.append((Entry(method), Entry(epoch), Entry(over), *entries, _number(average, "{:.1f}")))
    seeds = {spread.n for spread in spreads(last).values()}
    note = _joined(
        f"Percent; {_range(seeds)}, at the epoch of highest accuracy on the target and at the "
        "last. The best epoch is chosen with the target's labels, and so is the maximum over seeds: neither is a "
        "result one can have without labels. Only last, mean is.",
        _average_note(group, averaged),
        f"The curves of {count(unread, 'run')} could not be read; missing at the best epoch." if unread else "",
        _empty_note(rows),
        group.legend,
        group.absences,
    )
    header = ("Method", "Epoch", "Seeds", *map(group.heading, group.tasks), "Average")
    title = group.title("Accuracy on the target in the form of the UDTL benchmark")
    return [Table(group.name("udtl"), title, note, header, tuple(rows), SUMMARY)]


def _best_epoch(result: Result) -> float | None:
    """The highest accuracy on the target over epochs, of the network that predicts in the end."""
    try:
        curves = result.curves
    except InputError:
        return None
    values = curves.get("target_accuracy_teacher", curves.get("target_accuracy_student"))
    if values is None or np.isnan(values).all():
        return None
    return float(np.nanmax(values))


def _beside(group: _Group, metric: str) -> list[Table]:
    """Ours, the published figures and the difference, for the methods and tasks that both have."""
    everything = published_figures(group.dataset, group.input, metric)
    named = [result for result in group.results if _as_named(result)]
    cells = spreads(target_scores(named, metric)) if everything and named else {}
    shared = [(one, {key for key in one.scores if key in cells}) for one in everything]
    shared = [(one, keys) for one, keys in shared if keys]
    if not shared:
        return []
    tasks = [task for task in group.tasks if any(task == other for _, keys in shared for _, other in keys)]
    ranks = _comparable_ranks(group, metric, [one for one, _ in shared])
    seeds = max(spread.n for spread in cells.values())
    rows = []
    for method in group.methods:
        for number, (one, keys) in enumerate(
            (one, keys) for one, keys in shared if any(method == key[0] for key in keys)
        ):
            there = [task for task in tasks if (method, task) in keys]
            mine = [cells[method, task].mean for task in there]
            theirs = [one.scores[method, task] for task in there]
            extra: tuple[tuple[Entry, ...], ...] = ((), (), ())
            if ranks:
                theirs_rank = one.ranks.get(method)
                extra = (
                    (_number(ranks[method], "{:.2f}"),),
                    (_number(theirs_rank, "{:.2f}") if theirs_rank is not None else Entry(""),),
                    (_signed(ranks[method] - theirs_rank, "{:+.2f}") if theirs_rank is not None else Entry(""),),
                )
            ours = [_spread(cells.get((method, task)), seeds) for task in tasks]
            average = _number(100 * float(np.mean(mine)), "{:.1f}")
            if number == 0:
                rows.append((Entry(method), Entry("ours"), *ours, average, *extra[0]))
            figures = [_number(100 * one.scores.get((method, task), math.nan), "{:.1f}") for task in tasks]
            rows.append(
                (Entry(method), Entry(one.label), *figures, _number(100 * float(np.mean(theirs)), "{:.1f}"), *extra[1])
            )
            apart = {task: 100 * (left - right) for task, left, right in zip(there, mine, theirs, strict=True)}
            differences = [_signed(apart.get(task, math.nan), "{:+.1f}") for task in tasks]
            mean = _signed(float(np.mean(list(apart.values()))), "{:+.1f}")
            rows.append((Entry(method), Entry(f"ours − {one.label}"), *differences, mean, *extra[2]))
    note = _joined(
        "Percent; ours:",
        _seeds({key: spread for key, spread in cells.items() if any(key in keys for _, keys in shared)}),
        "; ".join(one.told for one, _ in shared) + ".",
        "Averages are over the tasks that both have. No test compares the two: single runs are not published.",
        _protocol(group, {method for _, keys in shared for method, _ in keys}),
        _empty_note(rows),
        group.legend,
        group.absences,
    )
    header = ("Method", "Figures", *map(group.heading, tasks), "Average", *(SUMMARY[1:] if ranks else ()))
    title = group.title(f"{TITLES[metric]}, beside the published")
    return [Table(group.name(f"{metric}-published"), title, note, header, tuple(rows), SUMMARY)]


def _comparable_ranks(group: _Group, metric: str, everything: Sequence[Published]) -> dict[str, float]:
    """Our average ranks, if they are among the same methods and tasks as published ones; ranks mean nothing else."""
    for one in everything:
        comparison = group.comparisons.get(metric)
        if one.ranks and comparison and set(one.ranks) == set(comparison.methods):
            theirs = {task for method, task in one.scores if method in one.ranks}
            if theirs == set(comparison.averaged_tasks) and not comparison.blocks_left_out:
                return dict(zip(comparison.methods, comparison.average_ranks, strict=True))
    return {}


def _protocol(group: _Group, methods: set[str]) -> str:
    """How ours were made, in the two things that most often differ from what is published."""
    compared = [one for one in group.results if one.cell.method in methods]
    splits = sorted({str(((one.record.get("settings") or {}).get("split") or {}).get("scheme")) for one in compared})
    epochs = sorted({int((_recipe(one).get("schedule") or {}).get("epochs", 0)) for one in compared})
    return (
        f"Ours were trained for {', '.join(map(str, epochs))} epochs with the split '{', '.join(splits)}'; published "
        "figures are of the split 'window' and 300 epochs."
    )


# Entries and sentences


def _task_rows(
    group: _Group, cells: Mapping[tuple[str, str], Spread], methods: Sequence[str], averaged: Sequence[str], up: bool
) -> list[tuple[Entry, ...]]:
    """A row per method: every task, and the average; the best of each column in bold."""
    seeds = max((spread.n for spread in cells.values()), default=0)
    columns = []
    for task in group.tasks:
        column = [_spread(cells.get((method, task)), seeds) for method in methods]
        columns.append(_with_best(column, up))
    averages = [
        100 * float(np.mean([cells[method, task].mean for task in averaged])) if averaged else math.nan
        for method in methods
    ]
    columns.append(_with_best([_number(average, "{:.1f}") for average in averages], up))
    return list(zip(*columns, strict=True))


def _with_best(column: list[Entry], up: bool) -> list[Entry]:
    values = [entry.value for entry in column if entry.value is not None]
    if len(values) < 2:
        return column
    best = f"{max(values) if up else min(values):.1f}"  # what prints alike is alike
    return [
        Entry(entry.text, entry.value, entry.value is not None and f"{entry.value:.1f}" == best, entry.spread)
        for entry in column
    ]


def _spread(spread: Spread | None, seeds: int) -> Entry:
    if spread is None:
        return Entry(NOTHING)
    deviation = f" ± {100 * spread.sd:.1f}" if spread.n > 1 else ""
    fewer = f" ({spread.n})" if spread.n < seeds else ""
    value = 100 * spread.mean
    return Entry(f"{value:.1f}{deviation}{fewer}", value, spread=100 * spread.sd if spread.n > 1 else None)


def _number(value: float, form: str, bold: bool = False) -> Entry:
    return Entry(form.format(value), value, bold) if math.isfinite(value) else Entry(NOTHING)


def _signed(value: float, form: str) -> Entry:
    if not math.isfinite(value):
        return Entry(NOTHING)
    text = form.format(value)
    if float(text) == 0:
        text = text.lstrip("+-")
    return Entry(text.replace("-", "−"), value)


def _chance(p: float, bold: bool = False) -> Entry:
    return Entry("<0.001" if p < 0.001 else f"{p:.3f}", p, bold)


def _joined(*sentences: str) -> str:
    return " ".join(one for one in sentences if one)


def _range(numbers: Iterable[int]) -> str:
    least, most = min(numbers, default=0), max(numbers, default=0)
    if most == 1:
        return "one seed, which is maximum and mean alike"
    return f"maximum and mean over {most if least == most else f'{least} to {most}'} seeds"


def _seeds(cells: Mapping[tuple[str, str], Spread]) -> str:
    numbers = {spread.n for spread in cells.values()}
    if not numbers:
        return "there is no result."
    if max(numbers) == 1:
        return "one seed per task."
    fewer = ", in brackets where fewer" if len(numbers) > 1 else ""
    return f"mean ± standard deviation over {max(numbers)} seeds{fewer}."


def _alike(comparison: Comparison) -> set[str]:
    """The best method and its equals; the best rank alone where no test could have told them apart."""
    if comparison.best is None or len(comparison.methods) < 2:
        return set()
    if not comparison.warning:
        return {comparison.best, *comparison.equivalent}
    ranks = dict(zip(comparison.methods, comparison.average_ranks, strict=True))
    return {method for method, rank in ranks.items() if math.isclose(rank, ranks[comparison.best])}


def _bold_note(comparison: Comparison, scores: bool = True) -> str:
    told = "Bold: the best mean of each column, as printed; in Average rank" if scores else "Bold:"
    if comparison.best is None:
        return "Bold: the best mean of each column, as printed." if scores else ""
    if comparison.warning:
        return f"{told} the best average rank alone, since there are too few runs for a test."
    return (
        f"{told} the best average rank and those not significantly different from it (pairwise two-sided Wilcoxon "
        f"signed-rank tests with Holm's adjustment, level {ALPHA:g})."
    )


def _used(comparison: Comparison) -> str:
    every = comparison.blocks_used + comparison.blocks_left_out
    alone = "; differences, effects and tests are over these alone" if comparison.blocks_left_out else ""
    return f"Cells (task and seed) with a result of every method: {comparison.blocks_used} of {every}{alone}."


def _average_note(group: _Group, averaged: Sequence[str]) -> str:
    if len(averaged) == len(group.tasks):
        return ""
    names = ", ".join(group.heading(task) for task in group.tasks if task in averaged)
    return f"Averages are over {len(averaged)} of {count(len(group.tasks), 'task')}{f': {names}' if names else ''}."


def _empty_note(rows: Sequence[Sequence[Entry]]) -> str:
    empty = sum(entry.text == NOTHING for row in rows for entry in row)
    return f"{count(empty, 'cell is', 'cells are')} empty ({NOTHING})." if empty else ""
