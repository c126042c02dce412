"""The page of a whole benchmark, with its tables and figures as files beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bearcat.errors import InputError
from bearcat.report import curves, figures
from bearcat.report.caveats import Caveat, caveats, different_versions, incomplete
from bearcat.report.drawing import ReportFigure, file_name
from bearcat.report.page import ReportPage, Section, in_page, templates, write_page
from bearcat.report.results import Missing, Result, ordered_methods, ordered_tasks
from bearcat.report.stats import Comparison, compare
from bearcat.report.tables import result_tables
from bearcat.report.typeset import Table, TableEntry, number_entry, percent_entry, write_tables
from bearcat.report.wording import count, data_sentence, epochs_words, listed, settings_table, windows_sentence
from bearcat.storage import write_atomically

FILE_LIST = "files.txt"  # the tables and figures that a report wrote
SUFFIXES = {"tables": ("md", "tex", "csv"), "figures": ("png", "svg")}  # of the files in each folder


def write_bench_report(
    title: str, results: Sequence[Result], missing: Sequence[Missing], out: Path, decimals: int = 1
) -> Path:
    """OUT/report.html, runs.csv, runs.parquet, tables/ (md, tex, csv) and figures/ (png, svg); the page's path."""
    environment = templates()
    written: list[str] = []
    try:
        _remove_earlier(out)
        results = sorted(results, key=lambda result: result.cell)
        readable, damaged = _readable(results)
        cells = [*(run.cell for run in results), *(run.cell for run in missing)]
        groups = sorted({(cell.dataset, cell.input) for cell in cells})
        general = [*incomplete(results, missing), *damaged, *different_versions(results)]
        sections = [Section("Overview", (_overview(results, missing),), tuple(general))]
        for group in groups:
            mine = [run for run in results if (run.cell.dataset, run.cell.input) == group]
            absent = [run for run in missing if (run.cell.dataset, run.cell.input) == group]
            drawable = [run for run in mine if run in readable]
            sections.append(_group_section(group, mine, absent, drawable, len(groups) == 1, out, written, decimals))
        sentence = "A method's settings as its records have them; where its runs differ, all values are listed."
        settings = tuple(settings_table(method, results) for method in ordered_methods(results))
        sections.append(_runs_section(results))
        sections.append(Section("Settings and versions", (sentence,) if results else (), folded=settings))
        methods = ordered_methods(results)
        alone = "".join(methods) or "No results yet"
        subtitle = f"A comparison of {len(methods)} methods" if len(methods) > 1 else alone
        numbers = (
            ("Runs", str(len(results)), f"of {len(results) + len(missing)} planned"),
            ("Methods", str(len(methods)), ""),
            ("Tasks", str(len({(run.cell.dataset, run.cell.task) for run in results})), ""),
            ("Seeds", str(len({run.cell.seed for run in results})), ""),
        )
        page = write_page(out / "report.html", ReportPage(title, subtitle, numbers, tuple(sections)), environment)
        if results:
            write_runs(out, results)
        write_atomically(out / FILE_LIST, "\n".join(sorted(written)).encode())
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error}); choose another folder") from error
    return page


def _remove_earlier(out: Path) -> None:
    """Removes the tables and figures of an earlier report, by its own list, so that nothing old looks current."""
    if (out / FILE_LIST).is_file():
        for line in (out / FILE_LIST).read_text(encoding="utf-8", errors="replace").splitlines():
            folder, _, name = line.partition("/")
            if folder in SUFFIXES and name and Path(name).name == name:
                (out / folder / name).unlink(missing_ok=True)


def _group_section(
    group: tuple[str, str],
    results: Sequence[Result],
    missing: Sequence[Missing],
    drawable: Sequence[Result],
    alone: bool,
    out: Path,
    written: list[str],
    decimals: int,
) -> Section:
    """The tables and figures of one dataset and input, written to files whose names are added to `written`."""
    comparisons = [compare(results, metric) for metric in ("accuracy", "ece")] if results else []
    tables = [
        replace(table, name=_free_name(table.name, "tables", written))
        for table in result_tables(results, missing, decimals)
    ]
    write_tables(tables, out / "tables")
    shown = []
    for figure in _figures(drawable):
        name = _free_name(file_name("-".join((*group, figure.name))), "figures", written)
        shown.append(in_page(replace(figure, name=name), out / "figures"))
    in_overview = ("Mixed versions", "Incomplete") if alone else ("Mixed versions",)
    every = caveats(results, missing)
    warned = [caveat for caveat in every if caveat.kind not in in_overview]
    warned += [Caveat("Too few runs", text) for text in dict.fromkeys(each.warning for each in comparisons) if text]
    sentences = _group_sentences(results, missing, comparisons)
    said = (*sentences, *(caveat.text for caveat in (*every, *warned)))
    screen = [_without(table, said) for table in tables]
    return Section(f"{group[0]}, {group[1]} input", sentences, tuple(warned), tuple(screen), tuple(shown))


def _free_name(name: str, folder: str, written: list[str]) -> str:
    """The name, with a number appended where two datasets' or methods' names make the same file name."""
    taken = {file.lower() for file in written}
    while f"{folder}/{name}.{SUFFIXES[folder][0]}".lower() in taken:
        name += "-2"
    written += [f"{folder}/{name}.{suffix}" for suffix in SUFFIXES[folder]]
    return name


def _figures(results: Sequence[Result]) -> list[ReportFigure]:
    """All figures of one dataset and input that these runs have the numbers for."""
    if not results:
        return []
    made: list[ReportFigure | None] = []
    for metric, score in (("accuracy", "accuracy"), ("ece", "ECE")):
        found = compare(results, metric)
        if found.blocks_used and len(found.methods) > 1:
            ranked = (found.ranks, found.cliques, score, found.blocks_used, found.warning)
            made.append(figures.critical_difference(*ranked))
        made.append(figures.task_bars(results, found, score))
    made.append(figures.calibration_gain(results))
    made += [curves.score_curves(results), *(curves.task_curves(results, score) for score in ("accuracy", "ece"))]
    made += [curves.pseudo_label_curves(results), curves.temperature_curves(results), curves.threshold_curves(results)]
    for method in ordered_methods(results):
        made.append(figures.reliability([run for run in results if run.cell.method == method]))
    made += [figures.confusions(results), curves.coverage_curves(results)]
    return [figure for figure in made if figure is not None]


def _without(table: Table, said: Sequence[str]) -> Table:
    """Without what its section says already; a file, which stands alone, keeps it."""
    note = table.note
    for sentence in said:
        note = note.replace(sentence, "")
    return replace(table, note=" ".join(note.split()))


def _readable(results: Sequence[Result]) -> tuple[list[Result], list[Caveat]]:
    """The runs whose curves and predictions can be read, and a caveat that names the files that cannot."""
    good, bad = [], []
    for result in results:
        try:
            _ = result.curves, result.predictions
            good.append(result)
        except InputError as error:
            bad.append(str(error))
    text = f"{count(len(bad), 'run')} cannot be drawn, because a file is missing or damaged; tables still count them."
    return good, [Caveat("Unreadable files", text, tuple(bad))] if bad else []


def _overview(results: Sequence[Result], missing: Sequence[Missing]) -> str:
    if not results:
        return f"No run is finished yet; {len(missing)} {'is' if len(missing) == 1 else 'are'} planned."
    seconds = sum(result.record.run_seconds for result in results)
    took = f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{seconds / 60:.1f} minutes"
    devices = listed(sorted({result.record.device for result in results}))
    return (
        f"{count(len(results), 'run')} of {len(results) + len(missing)} planned: {listed(ordered_methods(results))} on"
        f" {count(len(ordered_tasks(results)), 'task')} with"
        f" {count(len({result.cell.seed for result in results}), 'seed')}; {took} of training in all on {devices}."
        " Scores are those of the last epoch; no choice is made with target labels unless a caveat says so."
    )


def _group_sentences(
    results: Sequence[Result], missing: Sequence[Missing], comparisons: Sequence[Comparison]
) -> tuple[str, ...]:
    if not results:
        return (f"None of {count(len(missing), 'planned run')} is finished.",)
    data = f"{data_sentence(results)}; {windows_sentence(results)}. Trained for {epochs_words(results)}."
    if len(ordered_methods(results)) == 1:
        return (data, "With one method there is nothing to rank or to test.")
    return (data, *dict.fromkeys(each.rule for each in comparisons))


def write_runs(out: Path, results: Sequence[Result]) -> None:
    """OUT/runs.csv, a row for each run and a column for each number; OUT/runs.parquet too where pyarrow is there."""
    rows = [_tidy(result) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(out / "runs.csv", text.getvalue().encode())
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:  # the extra `formats`
        (out / "runs.parquet").unlink(missing_ok=True)
        return
    parquet.write_table(pyarrow.Table.from_pylist(rows), out / "runs.parquet")


def _tidy(result: Result) -> dict[str, Any]:
    """One run as a row; shares are fractions, and what is not known is empty."""
    cell, record = result.cell, result.record
    source, _, target = cell.task.partition("→")
    row: dict[str, Any] = {"dataset": cell.dataset, "input": cell.input, "source": source, "target": target}
    row |= {"method": cell.method, "seed": cell.seed}
    for domain in ("target", "source"):
        for name in ("accuracy", "balanced_accuracy", "ece", "ece_uncalibrated", "recording_accuracy"):
            value = result.score(domain, name)
            row[f"{domain}_{name}"] = None if value is None else float(value)
    row |= {"temperature": record.temperature, "failed": record.failed, "collapsed": record.collapsed}
    row |= {"seconds": record.run_seconds, "device": record.device, "identity": record.data.identity}
    return row


def _runs_section(results: Sequence[Result]) -> Section:
    rows = []
    for result in results:
        cell = result.cell
        row = [*map(TableEntry, (cell.dataset, cell.input, cell.task, cell.method)), number_entry(cell.seed, "{}")]
        scores = [("target", "accuracy"), ("target", "ece"), ("target", "ece_uncalibrated"), ("source", "accuracy")]
        record = result.record
        troubles = {"failed": record.failed, "collapsed": record.collapsed, "T at bound": record.at_bound}
        notes = [word for word, present in troubles.items() if present]
        row += [percent_entry(result.score(*score)) for score in scores]
        row += [number_entry(record.temperature, "{:.2f}"), number_entry(record.run_seconds, "{:.1f}")]
        rows.append((*row, TableEntry(", ".join(notes))))
    header = ["dataset", "input", "task", "method", "seed"]
    header += ["target accuracy", "target ECE", "uncalibrated", "source accuracy", "T", "seconds", "notes"]
    title = f"All {len(results)} finished runs" if len(results) != 1 else "The finished run"
    table = Table("runs", title, "Scores in percent.", tuple(header), tuple(rows))
    return Section("Runs", ("Finished runs as their records have them; a click on a heading sorts.",), folded=(table,))
