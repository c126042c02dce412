"""The pages: of recordings; of one run, for the engineer and then for researchers; and of a whole benchmark, with its
files beside it.

>>> write_recordings_page(bearcat.diagnose("plant"), Path("page.html"), "Plant")
>>> write_run_page(Path("bearcat-out"))
PosixPath('bearcat-out/report.html')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bearcat.diagnosis.recording import Diagnoses
from bearcat.errors import InputError
from bearcat.names import csv_cell
from bearcat.record import DomainScores, Record
from bearcat.report import figures, typeset
from bearcat.report.plots import draw_evidence
from bearcat.report.recordings import DIAGNOSIS, NETWORK, PHYSICS, RecordingScores, witness_scores
from bearcat.report.results import (
    Missing,
    Result,
    caveats,
    incomplete,
    ordered_methods,
    read_result,
    specimens_sentences,
)
from bearcat.report.stats import METRICS, USUAL, Comparison, comparisons
from bearcat.report.tables import result_tables
from bearcat.report.typeset import Section, Table, TableEntry, count, listed, number_entry, percent_entry
from bearcat.storage import write_atomically

SCORES = {
    "accuracy": "accuracy", "false_alarms": "false alarms", "missed_faults": "missed faults",
    "ece_uncalibrated": "ECE before", "ece": "ECE after", "brier": "Brier", "nll": "NLL",
}  # fmt: skip
FILE_LIST = "files.txt"  # the tables and figures that a report wrote
USED = ("machine", "rpm", "bearing")  # columns of the list, where they are known
CARD, MOST_DRAWN = 2.8, 60  # inches, of a recording's evidence; recordings drawn on a page
SUFFIXES = {"tables": ("tex", "csv"), "figures": tuple(typeset.FORMATS)}  # of the files in each folder


def write_recordings_page(found: Diagnoses, path: Path, title: str) -> Path:
    """One page of diagnosed recordings: the list, worst first, then the evidence of each alarm or check."""
    made = f"{count(len(found), 'recording')}, {datetime.now().astimezone():%d %B %Y, %H:%M}"
    numbers = tuple((what, number, "") for what, number in _counted(found))
    return typeset.write_page(path, typeset.templates(), title, made, numbers, _recording_sections(found, "Recordings"))


def _counted(found: Diagnoses) -> list[tuple[str, str]]:
    """The parts of the summary: what, and how many."""
    parts = found.summary.partition(": ")[2].rstrip(".").split(", ") if found else []
    return [(what, number) for number, _, what in (part.partition(" ") for part in parts)]


def _recording_sections(found: Diagnoses, title: str) -> list[Section]:
    """The recordings, worst first, and the evidence of those that somebody has to look at."""
    rows = found.worst_first.table()
    for row, each in zip(rows, found.worst_first, strict=True):
        row["why"] = each.sentence
        folder = each.machine == str(Path(each.recording.partition("#")[0]).parent)  # which the path says already
        row |= {"machine": "" if folder else each.machine or "", "bearing": each.bearing or ""}
        row["rpm"] = "" if each.rpm is None else f"{each.rpm:.0f}"
    used = [name for name in USED if any(row[name] for row in rows)]
    others = [name for name in (rows[0] if rows else ()) if name not in ("recording", "fault line", "reason", *USED)]
    names = ["recording", *used, *others]
    note = "Lines are of the envelope spectrum, in dB above its background."
    if "agreement" in names:
        note += (
            " Agreement: the share of windows with the recording's diagnosis. Unfamiliar: the share of windows that"
            " resemble nothing the model was adapted to."
        )
    cells = tuple(tuple(TableEntry(row[name], status=name == "decision") for name in names) for row in rows)
    table = Table("recordings", title, note, tuple(names), cells)
    sections = [Section("Recordings", tables=(table,) if rows else (), decision=found.summary, cards=True)]
    drawn = [each for each in found.urgent if each.drawing is not None]
    pictures = tuple(typeset.in_page(draw_evidence(each, CARD)) for each in drawn[:MOST_DRAWN])
    if not pictures:
        return sections
    left_out = len(drawn) - len(pictures)
    more = (f"The {len(pictures)} worst are drawn; {left_out} more are in the list.",) if left_out else ()
    return [*sections, Section("Evidence", more, figures=pictures, cards=True)]


def write_run_page(folder: Path, path: Path | None = None) -> Path:
    """The page of the run in this folder (report.html), with the runs beside it for comparison; its path."""
    environment = typeset.templates()
    result = read_result(folder)
    together = [*result.beside, result]
    record, cell = result.record, result.cell
    run_sentence = (
        f"{_data_sentence([result])} Identity of settings, seed and data: {record.data.identity[:12]}…;"
        f" {record.seconds:.0f} s on {record.device}."
    )
    run_sentences = (run_sentence, *specimens_sentences([result]))
    kind = cell.input.partition(":")[0]
    subtitle = f"{cell.method} on {cell.task}; {cell.dataset}, {kind} input, seed {cell.seed}"
    sections = (
        *_first_sections(record),
        _research_section(result, together),
        Section("What was run", run_sentences, tables=_chosen_tables(record), research=True),
    )
    title = f"Diagnosis of {record.settings.target}"
    path = path or folder / "report.html"
    return typeset.write_page(path, environment, title, subtitle, _headline(record), sections)


def _headline(record: Record) -> tuple[tuple[str, str, str], ...]:
    """What an engineer needs first: what to do with the model, and how many recordings are what."""
    found = [("Recommendation", record.decision.action), *_counted(Diagnoses(record.recordings))]
    return tuple((what, value, "") for what, value in found)


def _first_sections(record: Record) -> list[Section]:
    """What to do with the model, the target's recordings, worst first, and their evidence: what an engineer reads."""
    sentences = tuple(text for text in (record.adaptation_sentence, record.saved_sentence) if text)
    said = replace(record.decision, expected=None).sentence  # the accuracy to expect is for researchers
    problems = tuple(record.problems.values())
    left_out = typeset.Caveat("Left out", f"{count(len(problems), 'recording')} could not be used.", problems)
    sections = [Section("Recommendation", sentences, (left_out,) if problems else (), decision=said)]
    found = Diagnoses(record.recordings)
    return [*sections, *(_recording_sections(found, f"Recordings of {record.settings.target}") if found else ())]


def _research_section(result: Result, together: Sequence[Result]) -> Section:
    """Scores, estimates, temperatures and figures."""
    record, data, settings = result.record, result.record.data, result.record.settings
    sentences = [
        record.decision.sentence,
        f"{result.cell.method} learned from {data.source_train} labelled windows of {' and '.join(settings.sources)}"
        f" and {data.target_train} windows of {settings.target} without their labels; scores are of other windows, at"
        " the last epoch.",
        "Estimates were found without target labels and rest on confidence that was calibrated on the source: where the"
        " target differs, they are often too high (docs/trust.md).",
    ]
    if record.scores.target is None:
        sentences.append("The target has no labels, so nothing here could be checked.")
    warned = [typeset.Caveat(run.cell.method, text) for run in reversed(together) for text in run.record.warnings]
    warned += [caveat for caveat in caveats(together) if caveat.kind == "Negative transfer"]
    drawn = [figures.reliability([run]) for run in reversed(together)]
    drawn += [figures.confusions(together), figures.score_curves(together), figures.pseudo_label_curves(together)]
    return Section(
        "For researchers",
        tuple(sentences),
        tuple(warned),
        (_score_table(together),),
        tuple(typeset.in_page(figure) for figure in drawn if figure is not None),
        research=True,
    )


def _score_table(results: Sequence[Result]) -> Table:
    domains = ("target", "source") if any(run.record.scores.target for run in results) else ("source",)
    rows = []
    for run in results:
        expected = run.record.estimates.expected
        row = [TableEntry(run.cell.method), percent_entry(expected.value if expected else None)]
        for domain in domains:
            for name in SCORES:
                row.append((number_entry if name in ("brier", "nll") else percent_entry)(run.score(domain, name)))
        row += [percent_entry(run.record.estimates.mean_confidence), number_entry(run.record.temperature, "{:.2f}")]
        rows.append((*row, number_entry(run.record.run_seconds, "{:.1f}")))
    headings = [f"{domain} {name}" for domain in domains for name in SCORES.values()]
    note = (
        "Accuracy, ECE (10 bins) and mean confidence in percent; before and after calibration; NLL and Brier after it."
        " Expected: the target's accuracy, estimated without labels; every estimate is in record.json. T: temperature."
    )
    header = ("method", "expected", *headings, "mean confidence", "T", "seconds")
    return Table("scores", "Scores", note, header, tuple(rows))


def _chosen_tables(record: Record) -> tuple[Table, ...]:
    """What was chosen from the recordings, and why; records whose settings were all given have none."""
    header = ("setting", "value", "reason")
    rows = tuple(tuple(TableEntry(getattr(choice, name)) for name in header) for choice in record.chosen)
    note = "Each can be given instead (docs/add-your-data.md)."
    return (Table("chosen", "Chosen from the recordings", note, header, rows),) if rows else ()


def write_bench_report(
    title: str, results: Sequence[Result], missing: Sequence[Missing], out: Path, decimals: int = 1,
    metrics: Sequence[str] = USUAL,
) -> Path:  # fmt: skip
    """OUT/report.html, runs.csv, tables/ (tex, csv) and figures/ (png, svg, pdf); the page's path."""
    for metric in metrics:
        if results and all(result.score("target", METRICS[metric].score) is None for result in results):
            raise InputError(f"no run has the score '{metric}'; choose another --metric, or train the runs again")
    environment, pandas = typeset.templates(), typeset.bench_library("pandas")
    typeset.bench_library("scikit_posthocs")  # before anything is written
    written: list[str] = []
    results, methods = sorted(results, key=lambda result: result.cell), ordered_methods(results)
    groups = sorted({(cell.dataset, cell.input) for cell in (run.cell for runs in (results, missing) for run in runs)})
    try:
        _remove_earlier(out)
        sections = [Section("Overview", (_overview(results, missing),), tuple(incomplete(results, missing)))]
        for group in groups:
            mine = [run for run in results if (run.cell.dataset, run.cell.input) == group]
            absent = [run for run in missing if (run.cell.dataset, run.cell.input) == group]
            sections.append(_group_section(group, mine, absent, out, written, decimals, metrics))
        alone = "".join(methods) or "No results yet"
        subtitle = f"A comparison of {len(methods)} methods" if len(methods) > 1 else alone
        numbers = (
            ("Runs", str(len(results)), f"of {len(results) + len(missing)} planned"),
            ("Methods", str(len(methods)), ""),
            ("Tasks", str(len({(run.cell.dataset, run.cell.task) for run in results})), ""),
            ("Seeds", str(len({run.cell.seed for run in results})), ""),
        )
        page = typeset.write_page(out / "report.html", environment, title, subtitle, numbers, sections)
        if results:
            rows = pandas.DataFrame([_tidy(result) for result in results], dtype=object).map(csv_cell)
            write_atomically(out / "runs.csv", rows.to_csv(index=False).encode())
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
    group: tuple[str, str], results: Sequence[Result], missing: Sequence[Missing], out: Path, written: list[str],
    decimals: int, metrics: Sequence[str],
) -> Section:  # fmt: skip
    """The tables and figures of one dataset and input, written to files whose names are added to `written`."""
    title, compared = f"{group[0]}, {group[1]} input", comparisons(results, metrics)
    if not results:
        sentences: tuple[str, ...] = (f"None of {count(len(missing), 'planned run')} is finished.",)
    else:
        rules = dict.fromkeys(each.rule for each in compared.values())
        if len(ordered_methods(results)) == 1:
            rules = {"With one method there is nothing to rank or to test.": None}
        sentences = (_data_sentence(results), *specimens_sentences(results), *rules)
    warned = caveats(results)
    too_few = dict.fromkeys(each.warning for each in compared.values() if each.warning)
    warned += [typeset.Caveat("Too few runs", text) for text in too_few]
    said = (*sentences, *(caveat.text for caveat in (*incomplete(results, missing), *warned)))
    tables = []
    for table in result_tables(results, missing, decimals, compared):
        named = replace(table, name=_free_name(table.name, "tables", written))
        typeset.write_table(named, out / "tables")
        for sentence in said:  # on the page, which has said it already; a file stands alone
            named = replace(named, note=" ".join(named.note.replace(sentence, "").split()))
        tables.append(named)
    shown = []
    for figure in _figures(results, compared) if results else ():
        name = _free_name(typeset.file_name("-".join((*group, figure.name))), "figures", written)
        shown.append(typeset.in_page(replace(figure, name=name), out / "figures"))
    return Section(title, sentences, tuple(warned), tuple(tables), tuple(shown))


def _free_name(name: str, folder: str, written: list[str]) -> str:
    """The name, with a number appended where two datasets' or methods' names make the same file name."""
    taken, suffixes = {file.lower() for file in written}, SUFFIXES[folder]
    while f"{folder}/{name}.{suffixes[0]}".lower() in taken:
        name += "-2"
    written += [f"{folder}/{name}.{suffix}" for suffix in suffixes]
    return name


def _figures(results: Sequence[Result], compared: Mapping[str, Comparison]) -> list[typeset.ReportFigure]:
    """All figures of one dataset and input that these runs have the numbers for."""
    made: list[typeset.ReportFigure | None] = []
    for found in compared.values():
        if found.blocks_used and len(found.methods) > 1:
            made.append(figures.critical_difference(found, METRICS[found.metric].label))
        made.append(figures.task_bars(results, found, METRICS[found.metric].label))
    made += [figures.score_curves(results), figures.pseudo_label_curves(results)]
    for method in ordered_methods(results):
        made.append(figures.reliability([run for run in results if run.cell.method == method]))
    made.append(figures.confusions(results))
    return [figure for figure in made if figure is not None]


def _overview(results: Sequence[Result], missing: Sequence[Missing]) -> str:
    if not results:
        return f"No run is finished yet; {len(missing)} {'is' if len(missing) == 1 else 'are'} planned."
    seconds = sum(result.record.run_seconds for result in results)
    took = f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{seconds / 60:.1f} minutes"
    devices = listed(sorted({result.record.device for result in results}))
    return (
        f"{listed(ordered_methods(results))}; {took} of training in all on {devices}. Scores are those of the last"
        " epoch; no choice is made with target labels unless a caveat says so."
    )


def _tidy(result: Result) -> dict[str, Any]:
    """One run as a row; shares are fractions, and what is not known is empty."""
    cell, record = result.cell, result.record
    source, _, target = cell.task.partition("→")
    row: dict[str, Any] = {"dataset": cell.dataset, "input": cell.input, "source": source, "target": target}
    row |= {"method": cell.method, "seed": cell.seed}
    for domain in ("target", "source"):
        row |= {f"{domain}_{score.name}": result.score(domain, score.name) for score in fields(DomainScores)}
    found = witness_scores(result)
    for name in (PHYSICS, NETWORK, DIAGNOSIS):  # as missed_network or ece_diagnosis
        own = found.get(name)
        row |= {f"{score.name}_{name.split()[0]}": getattr(own, score.name, None) for score in fields(RecordingScores)}
    row |= {"temperature": record.temperature, "failed": record.failed, "collapsed": record.collapsed}
    row |= {"seconds": record.run_seconds, "together": record.stack, "parameters": record.parameters}
    row |= {"memory": record.memory, "device": record.device, "identity": record.data.identity}
    return row


def _data_sentence(results: Sequence[Result]) -> str:
    """What the windows are, how many, and the epochs; where runs differ, all there is."""

    def every(name: str) -> str:
        values = [getattr(result.record.settings, name) for result in results]
        return listed(list(dict.fromkeys(format(value, "g" if isinstance(value, float) else "") for value in values)))

    classes = list(dict.fromkeys(name for result in results for name in result.record.data.classes))
    sizes = []
    for name in ("source_train", "target_train", "source_test", "target_test"):
        numbers = sorted(getattr(result.record.data, name) for result in results)
        sizes.append(" to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1])))))
    return (
        f"Data: {results[0].cell.dataset}, {count(len(classes), 'class', 'classes')} ({', '.join(classes)}); windows of"
        f" {every('length')} samples as {results[0].cell.input} input, split by {every('split')};"
        f" {sizes[0]} windows of the source and {sizes[1]} of the target to learn from,"
        f" {sizes[2]} and {sizes[3]} to be tested on. Epochs: {every('epochs')}."
    )
