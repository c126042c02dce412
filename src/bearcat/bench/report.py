"""The report of a benchmark: tables, tests and figures on one page, with their files beside it.

Tables have the paper's shapes: a row for each method, its average, its average rank and a column for each task; and a
test of every pair. For Paderborn the paper's own averages stand beside ours, from `paper.csv`.

>>> write_bench_report("A rig", results, missing, Path("bench-report/rig"))
PosixPath('bench-report/rig/report.html')
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from bearcat.bench.stats import ALPHA, METRICS, USUAL, Comparison, Spread, compare
from bearcat.data.datasets import CONDITIONS
from bearcat.errors import InputError, csv_bytes, csv_cell, library
from bearcat.findings import count
from bearcat.record import DomainScores
from bearcat.report import Caveat, Cell, Result, RunState, caveats, data_sentences, figures, numbered, ordered_names
from bearcat.report.figures import WIDE, ReportFigure, empty_figure, house_style
from bearcat.report.pages import NOTHING, Section, Table, TableEntry, number_entry, percent_entry, write_page
from bearcat.storage import write_atomically


def write_bench_report(
    title: str, results: Sequence[Result], missing: Mapping[Cell, RunState], out: Path, metrics: Sequence[str] = USUAL
) -> Path:
    """OUT/report.html, runs.csv, tables/ (tex) and figures/ (svg, pdf); the page's path."""
    for metric in metrics:
        if all(result.score("target", METRICS[metric].score) is None for result in results):
            raise InputError(f"no run has the score '{metric}'; choose another --metric, or train the runs again")
    library("scikit_posthocs", "bench")  # before anything is written
    library("jinja2", "report")
    results, methods = sorted(results, key=lambda run: run.cell), ordered_names(run.cell.method for run in results)
    numbers = [("Runs", f"{len(results)} of {len(results) + len(missing)}")]
    if (out / "runs.csv").exists():  # an earlier report, of which nothing must look current
        for folder in ("tables", "figures"):
            rmtree(out / folder, ignore_errors=True)
    groups = sorted({(cell.dataset, cell.input) for cell in (*(run.cell for run in results), *missing)})
    sections = [_section(*group, results, missing, metrics, out) for group in groups]
    subtitle = f"A comparison of {len(methods)} methods" if len(methods) > 1 else "".join(methods)
    page = write_page(out / "report.html", title, subtitle, numbers, sections)
    rows = [_tidy(result) for result in results]
    write_atomically(out / "runs.csv", csv_bytes([list(rows[0]), *(map(csv_cell, row.values()) for row in rows)]))
    return page


def _section(
    data: str, kind: str, results: Sequence[Result], missing: Mapping[Cell, RunState], metrics: Sequence[str], out: Path
) -> Section:
    """Caveats, tables and figures of a dataset and an input, which are also written to files."""
    title, group = f"{data}, {kind} input", (data, kind)
    results = [run for run in results if (run.cell.dataset, run.cell.input) == group]
    missing = {cell: state for cell, state in missing.items() if (cell.dataset, cell.input) == group}
    notes, tables, pictures = caveats(results, missing), list[Table](), list[ReportFigure | None]()
    for metric in metrics if results else ():  # a group may have no finished run
        comparison = compare(results, metric)
        tables.append(score_table(results, comparison))
        if comparison.pairs:
            tables.append(pair_table(comparison))
            pictures.append(critical_difference(comparison))
        if comparison.warning and comparison.warning not in [caveat.text for caveat in notes]:
            notes.append(Caveat("Too few tasks", comparison.warning))
    sentences = data_sentences(results) if results else ()
    if results:
        methods = ordered_names(run.cell.method for run in results)
        by_method = [[run for run in results if run.cell.method == method] for method in methods]
        pictures.append(figures.curves(results))
        pictures += [*map(figures.reliability, by_method), *map(figures.confusion, by_method)]
    slug = file_name(title.removesuffix(" input").lower())
    tables = [replace(table, name=f"{slug}-{table.name}", title=f"{table.title}: {title}") for table in tables]
    named = [replace(figure, name=file_name(f"{slug}-{figure.name}")) for figure in pictures if figure is not None]
    for table in tables:
        write_atomically(out / "tables" / f"{table.name}.tex", latex(table).encode())
    for figure in named:
        for kind in ("svg", "pdf"):
            write_atomically(out / "figures" / f"{figure.name}.{kind}", figure.render(kind))
    return Section(title, sentences, tuple(notes), tuple(tables), tuple(named))


def latex(table: Table) -> str:
    """A tabular with booktabs' rules, for \\input; title and note are a comment."""
    pandas = library("pandas", "bench")
    frame = pandas.DataFrame([[entry.text for entry in row] for row in table.rows], columns=list(table.header))
    styler = frame.style.hide(axis="index").format("{{}}{}", escape="latex").format_index(escape="latex", axis=1)
    about = " ".join(f"{table.title}. {table.note}".split())
    return f"% \\usepackage{{booktabs}}\n% {about}\n{styler.to_latex(hrules=True)}"


def file_name(text: str) -> str:
    """Letters, digits and a few signs that every file system takes; an asterisk is spelt out."""
    return re.sub(r"[^\w.+=-]+", "-", text.replace("*", "star")).strip("-.") or "unnamed"


def ordered_tasks(runs: Sequence[Result]) -> tuple[str, ...]:
    """The tasks of these runs: Paderborn's conditions in their order, others with numbers sorted by size."""

    def key(task: str) -> str:
        return re.sub(r"\d+", lambda digits: digits[0].zfill(9), numbered(task))

    return tuple(sorted({run.cell.task for run in runs}, key=key))


def score_table(results: Sequence[Result], comparison: Comparison) -> Table:
    """Average, average rank and the mean of every task."""
    cell, metric, methods = results[0].cell, comparison.metric, ordered_names(comparison.ranks)
    tasks = ordered_tasks(results)
    ranks = [number_entry(comparison.ranks[method], "{:.2f}", method in comparison.leaders) for method in methods]
    columns: dict[str, list[TableEntry]] = {
        "Method": [TableEntry(method) for method in methods],
        "Average": [percent_entry(comparison.averages[method]) for method in methods],
        "Average rank": ranks,
    }
    paper = paper_figures(cell.input, metric.score) if cell.dataset == "paderborn" else {}
    if published := {method for method, _ in paper} & {*methods}:
        means = [np.mean([paper.get((method, task), math.nan) for task in comparison.tasks]) for method in methods]
        columns["Paper"] = [percent_entry(float(mean)) for mean in means]
    seeds = max((spread.n for spread in comparison.cells.values()), default=0)
    for task in tasks:
        columns[numbered(task)] = [_spread_entry(comparison.cells.get((method, task)), seeds) for method in methods]
    over = f"mean ± standard deviation over {seeds} seeds, in brackets where fewer" if seeds > 1 else "one seed"
    equals = "" if comparison.warning else f", and those not significantly different from it (level {ALPHA:g})"
    note = [
        f"Percent, {'higher' if metric.higher_is_better else 'lower'} is better; {over}.",
        comparison.rule,
        f"Bold: the best rank{equals}.",
    ]
    if any("*" in method for method in methods):
        note.append("* = with MCC and SDAT.")
    if any(numbered(task) != task for task in tasks):
        note.append("Domains: " + ", ".join(f"{number} = {name}" for number, name in enumerate(CONDITIONS)) + ".")
    if published:
        note.append("Paper: Forest and Fink 2024, mean of five seeds over the same tasks.")
    rows = tuple(zip(*columns.values(), strict=True))
    return Table(metric.name, f"Target {metric.title}", " ".join(note), tuple(columns), rows)


def pair_table(comparison: Comparison) -> Table:
    """The test of every pair of methods."""
    metric = comparison.metric
    rows = tuple(
        (
            TableEntry(pair.first), TableEntry(pair.second),
            percent_entry(pair.difference, "{:+.1f}"), _p_entry(pair.p), _p_entry(pair.p_holm, pair.p_holm < ALPHA),
        )
        for pair in comparison.pairs
    )  # fmt: skip
    note = (
        f"Two-sided Wilcoxon signed-rank tests over {count(len(comparison.tasks), 'task')} (means of seeds), p adjusted"
        f" by Holm over {count(len(rows), 'pair')}; bold: below {ALPHA:g}. Difference: first − second in percentage"
        " points."
    )
    header = ("First", "Second", "Difference", "p", "p (Holm)")
    return Table(f"{metric.name}-tests", f"Pairwise tests of {metric.title}", note, header, rows)


def paper_figures(kind: str, score: str) -> dict[tuple[str, str], float]:
    """(Our method, task) → the paper's accuracy or ECE on Paderborn with this input, as a fraction.

    The paper counts the arg max of uncalibrated logits; its text says 10 bins of ECE and its code computes 15.
    """
    score = score.removesuffix("_uncalibrated").removesuffix("15")
    text = (files("bearcat.bench") / "paper.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if (row["input"], row["metric"]) == (kind, score)]
    return {(row["method"], f"{row['source']}→{row['target']}"): float(row["value"]) / 100 for row in rows}


def _spread_entry(spread: Spread | None, seeds: int) -> TableEntry:
    if spread is None:
        return TableEntry(NOTHING)
    text = f"{100 * spread.mean:.1f}" + (f" ± {100 * spread.sd:.1f}" if spread.n > 1 else "")
    return TableEntry(f"{text} ({spread.n})" if spread.n < seeds else text, 100 * spread.mean)


def _p_entry(p: float, bold: bool = False) -> TableEntry:
    return TableEntry("<0.001", p, bold) if p < 0.001 else number_entry(p, "{:.3f}", bold)


@house_style()
def critical_difference(comparison: Comparison) -> ReportFigure:
    """Average ranks on a line, best on the left; dots on a bar join methods that the tests cannot separate."""
    posthocs, pandas = library("scikit_posthocs", "bench"), library("pandas", "bench")
    rank, score = comparison.ranks, comparison.metric.title
    p = pandas.DataFrame(1.0, index=list(rank), columns=list(rank))
    for pair in comparison.pairs:
        p.loc[pair.first, pair.second] = p.loc[pair.second, pair.first] = pair.p_holm
    drawing = empty_figure(WIDE, 0.8 + 0.28 * math.ceil(len(rank) / 2))
    axis = drawing.subplots()
    posthocs.critical_difference_diagram(
        dict(rank), p, ax=axis, alpha=ALPHA, label_fmt_left="{label:.26} ({rank:.2f})",
        label_fmt_right="({rank:.2f}) {label:.26}", label_props={"fontsize": 8}, marker_props={"s": 14},
        elbow_props={"linewidth": 0.9, "color": "black"}, text_h_margin=0.02 * len(rank),
        crossbar_props={"linewidth": 2, "marker": "o", "markersize": 4, "color": figures.PALETTE[0]},
    )  # fmt: skip
    axis.set_xlabel("average rank (1 is best)")
    axis.xaxis.set_label_position("top")
    axis.spines["top"].set_visible(True)
    caption = (
        f"Average ranks of {score} over {count(len(comparison.tasks), 'task')}. Of methods with a dot on the same bar"
        f" no two differ significantly (Wilcoxon signed-rank, Holm, level {ALPHA:g}), which does not prove them equal."
    )
    return ReportFigure(f"ranks-{comparison.metric.name}", f"Critical differences: {score}", caption, drawing)


def _tidy(result: Result) -> dict[str, Any]:
    """One run as a row; shares are fractions, and what is not known is empty."""
    cell, record = result.cell, result.record
    source, _, target = cell.task.partition("→")
    row: dict[str, Any] = {"dataset": cell.dataset, "input": cell.input, "source": source, "target": target}
    row |= {"method": cell.method, "seed": cell.seed}
    for domain in ("target", "source"):
        row |= {f"{domain}_{score.name}": result.score(domain, score.name) for score in fields(DomainScores)}
    of_record = ("pseudo_label_share", "temperature", "at_bound", "failed", "collapsed", "parameters", "device")
    row |= {name: getattr(record, name) for name in of_record}
    return row | {"seconds": record.seconds / record.stack, "identity": record.data.identity}
