"""The page of a whole benchmark, with its tables and figures as files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bearcat.errors import InputError
from bearcat.report.caveats import (
    Caveat,
    caveats,
    different_versions,
    incomplete,
)
from bearcat.report.choices import comparison_sentences
from bearcat.report.curves import (
    coverage_curves,
    pseudo_label_curves,
    score_curves,
    task_curves,
    temperature_curves,
    threshold_curves,
)
from bearcat.report.drawing import Picture, file_name, ordered_methods, tasks_of
from bearcat.report.figures import confusions, critical_difference, reliability, task_bars
from bearcat.report.page import Page, Section, in_page, templates, write_page, writing
from bearcat.report.records import (
    data_told,
    epochs_told,
    flattened,
    number_entry,
    percent_entry,
    seconds_of,
    versions_table,
    windows_told,
)
from bearcat.report.results import Missing, Result
from bearcat.report.stats import compare
from bearcat.report.tables import Entry, Table, result_tables, write_tables
from bearcat.report.typeset import NOTHING, for_screen
from bearcat.report.wording import count, listed

LIST = "files.txt"  # what a report wrote besides its page


def write_bench_report(title: str, results: Sequence[Result], missing: Sequence[Missing], out: Path) -> Path:
    """OUT/report.html, OUT/tables/ (md, tex, csv) and OUT/figures/ (png, svg) of a comparison; the page's path."""
    environment = templates()
    _forget_earlier(out)
    results = sorted(results, key=lambda one: one.cell)
    cells = [*(one.cell for one in results), *(one.cell for one in missing)]
    places = sorted({(cell.dataset, cell.input) for cell in cells})
    readable, damaged = _readable(results)
    sections: list[Section] = []
    written: set[str] = set()
    drawn: set[str] = set()
    names: list[str] = []
    general = [*incomplete(results, missing), *damaged, *different_versions(results)]
    for dataset, kind in places:
        mine, drawable = (
            [one for one in some if (one.cell.dataset, one.cell.input) == (dataset, kind)]
            for some in (results, readable)
        )
        absent = [one for one in missing if (one.cell.dataset, one.cell.input) == (dataset, kind)]
        tables = []
        for table in result_tables(mine, absent) if mine else ():
            while table.name in written:
                table = replace(table, name=f"{table.name}-2")
            written.add(table.name)
            tables.append(table)
        write_tables(tables, out / "tables")
        told = ("Mixed versions", "Incomplete") if len(places) == 1 else ("Mixed versions",)  # in the overview
        warned = [one for one in caveats(mine, absent) if one.kind not in told] + _chosen_with_labels(tables)
        warned += _too_few(mine)
        figures = []
        for picture in _pictures(drawable):
            name = file_name(f"{dataset}-{kind}-{picture.name}")
            while name.lower() in drawn:  # two methods' names may make the same file's
                name += "-2"
            drawn.add(name.lower())
            names.append(name)
            picture = replace(picture, name=name)
            figures.append(in_page(picture, out / "figures"))
        sentences = _place_sentences(mine, absent)
        told_already = (*sentences, *(one.text for one in warned))
        shown = tuple(_said_once(for_screen(table), told_already) for table in tables)
        sections.append(Section(f"{dataset}, {kind} input", sentences, tuple(warned), shown, tuple(figures)))
    overview = Section("Overview", (_overview(results, missing),), tuple(general))
    runs = Section(
        "Runs",
        ("Finished runs as their records have them; a click on a heading sorts.",),
        folded=(_run_table(results),),
    )
    if missing:
        runs = replace(runs, folded=(*runs.folded, _missing_table(missing)))
    sections += [runs, _settings_section(results)]
    compared = ordered_methods(results)
    one = "".join(compared) or "No results yet"
    subtitle = f"A comparison of {len(compared)} methods" if len(compared) > 1 else one
    page = Page(title, subtitle, _bench_numbers(results, missing), (overview, *sections))
    path = write_page(out / "report.html", page, environment)
    files = [f"tables/{name}.{suffix}" for name in sorted(written) for suffix in ("md", "tex", "csv")]
    files += [f"figures/{name}.{suffix}" for name in sorted(names) for suffix in ("png", "svg")]
    with writing(out):
        (out / LIST).write_text("\n".join(files), encoding="utf-8")
    return path


def _forget_earlier(out: Path) -> None:
    """Removes the tables and figures of an earlier report, by its own list, so that nothing old looks current."""
    with writing(out):
        if not (out / LIST).is_file():
            return
        for line in (out / LIST).read_text(encoding="utf-8", errors="replace").splitlines():
            folder, _, name = line.partition("/")
            if folder in ("tables", "figures") and name and Path(name).name == name:
                (out / folder / name).unlink(missing_ok=True)


def _pictures(results: Sequence[Result]) -> Iterator[Picture]:
    """All figures of one dataset and input that these runs have the numbers for."""
    if not results:
        return
    made = [task_bars(results, "accuracy"), task_bars(results, "ece")]
    for metric, what in (("accuracy", "accuracy"), ("ece", "ECE")):
        comparison = compare(results, metric)
        if comparison.blocks_used and len(comparison.methods) > 1:
            ranked = (comparison.methods, comparison.average_ranks, comparison.cliques, what, comparison.blocks_used)
            alike = (comparison.methods[0], *comparison.equivalent)
            made.append(critical_difference(*ranked, alike=alike, warning=comparison.warning))
    made += [score_curves(results), task_curves(results, "accuracy"), task_curves(results, "ece")]
    made += [pseudo_label_curves(results), temperature_curves(results), threshold_curves(results)]
    made += [reliability([one for one in results if one.cell.method == name]) for name in ordered_methods(results)]
    made += [confusions(results), coverage_curves(results)]
    yield from (picture for picture in made if picture is not None)


def _said_once(table: Table, told: Sequence[str]) -> Table:
    """Without what its section says already; a file, which stands alone, keeps it."""
    note = table.note
    for sentence in told:
        note = note.replace(sentence, "")
    return replace(table, note=" ".join(note.split()))


def _readable(results: Sequence[Result]) -> tuple[list[Result], list[Caveat]]:
    """The runs whose curves and predictions can be read, and a caveat that names the files that cannot."""
    good, bad = [], []
    for one in results:
        try:
            _ = one.curves, one.predictions
            good.append(one)
        except InputError as error:
            bad.append(str(error))
    text = f"{count(len(bad), 'run')} cannot be drawn, because a file is missing or damaged; tables still count them."
    return good, [Caveat("Unreadable files", text, tuple(bad))] if bad else []


def _overview(results: Sequence[Result], missing: Sequence[Missing]) -> str:
    if not results:
        return f"No run is finished yet; {len(missing)} {'is' if len(missing) == 1 else 'are'} planned."
    took = _duration(sum(map(seconds_of, results)))
    devices = listed(sorted({str(one.record["device"]) for one in results}))
    return (
        f"{count(len(results), 'run')} of {len(results) + len(missing)} planned: {listed(ordered_methods(results))} on"
        f" {count(len(tasks_of(results)), 'task')} with {count(len({one.cell.seed for one in results}), 'seed')};"
        f" {took} of training in all on {devices}. Scores are those of the last epoch; no choice is made"
        " with target labels unless a caveat says so."
    )


def _bench_numbers(results: Sequence[Result], missing: Sequence[Missing]) -> tuple[tuple[str, str, str], ...]:
    return (
        ("Runs", str(len(results)), f"of {len(results) + len(missing)} planned"),
        ("Methods", str(len(ordered_methods(results))), ""),
        ("Tasks", str(len({(one.cell.dataset, one.cell.task) for one in results})), ""),
        ("Seeds", str(len({one.cell.seed for one in results})), ""),
    )


def _place_sentences(results: Sequence[Result], missing: Sequence[Missing]) -> tuple[str, ...]:
    if not results:
        return (f"None of {count(len(missing), 'planned run')} is finished.",)
    data = f"{data_told(results)}; {windows_told(results)}. Trained for {epochs_told(results)}."
    if len(ordered_methods(results)) == 1:
        return (data, "With one method there is nothing to rank or to test.")
    rules = dict.fromkeys(compare(results, metric).rule for metric in ("accuracy", "ece"))
    return (data, *rules, *comparison_sentences(results))


def _too_few(results: Sequence[Result]) -> list[Caveat]:
    """Where there are not enough cells for any test to find anything."""
    told = dict.fromkeys(compare(results, metric).warning for metric in ("accuracy", "ece"))
    return [Caveat("Too few runs", text) for text in told if text]


def _chosen_with_labels(tables: Sequence[Table]) -> list[Caveat]:
    """Tables with rows of the best epoch, which somebody with target labels picked."""
    picked = [table.title for table in tables if any(entry.text == "best" for row in table.rows for entry in row[1:])]
    text = "Rows called “best” take the epoch with the highest target accuracy: chosen with target labels, which"
    return [Caveat("Best epoch", f"{text} nobody has in practice.", tuple(picked))] if picked else []


def _run_table(results: Sequence[Result]) -> Table:
    rows = []
    for one in results:
        notes = [word for word in ("failed", "collapsed") if one.record[word]]
        notes += ["T at bound"] if (one.record["calibration"] or {}).get("at_bound") else []
        cell = one.cell
        rows.append(
            (
                Entry(cell.dataset), Entry(cell.input), Entry(cell.task), Entry(cell.method),
                Entry(str(cell.seed), cell.seed),
                percent_entry(one.score("target", "accuracy")), percent_entry(one.score("target", "ece")),
                percent_entry(one.score("target", "ece_uncalibrated")), percent_entry(one.score("source", "accuracy")),
                number_entry((one.record["calibration"] or {}).get("temperature"), 2), number_entry(seconds_of(one), 1),
                Entry(", ".join(notes)),
            )
        )  # fmt: skip
    header = ("dataset", "input", "task", "method", "seed", "target accuracy", "target ECE", "uncalibrated",
              "source accuracy", "T", "seconds", "notes")  # fmt: skip
    title = f"All {len(results)} finished runs" if len(results) != 1 else "The finished run"
    return Table("runs", title, "Scores in percent.", header, tuple(rows))


def _missing_table(missing: Sequence[Missing]) -> Table:
    rows = tuple(
        (
            *map(Entry, (one.cell.dataset, one.cell.input, one.cell.task, one.cell.method)),
            Entry(str(one.cell.seed), one.cell.seed), Entry(one.reason),
        )
        for one in sorted(missing, key=lambda one: one.cell)
    )  # fmt: skip
    header = ("dataset", "input", "task", "method", "seed", "why")
    return Table("missing", f"{count(len(missing), 'run')} without a result", "", header, rows)


def _settings_section(results: Sequence[Result]) -> Section:
    """Versions, and for each method its settings; where its runs differ, all the values."""
    tables = []
    for method in ordered_methods(results):
        several = [flattened(one.record["settings"]) for one in results if one.cell.method == method]
        names = dict.fromkeys(name for one in several for name in one if name not in ("source", "target"))
        rows = tuple(
            (Entry(name), Entry("; ".join(dict.fromkeys(one.get(name, NOTHING) for one in several)))) for name in names
        )
        tables.append(Table(f"settings-{file_name(method)}", f"Settings of {method}", "", ("setting", "value"), rows))
    sentence = "A method's settings as its records have them; where its runs differ, all values are listed."
    return Section(
        "Settings and versions", (sentence,) if tables else (), tables=(versions_table(results),) if results else (),
        folded=tuple(tables),
    )  # fmt: skip


def _duration(seconds: float) -> str:
    unit, length = next(
        (unit, length)
        for unit, length in (("hours", 3600), ("minutes", 60), ("seconds", 1))
        if seconds >= 2 * length or length == 1
    )
    return f"{seconds / length:.1f} {unit}" if length > 1 else f"{seconds:.0f} {unit}"
