"""HTML pages with tables and figures, of diagnosed recordings and of one run; what engineers need comes first.

A page is one file with style, script and figures inside. It can be read without its script, and the template escapes
all names that come from users' data.

>>> write_recordings_page(bearcat.diagnose("plant"), Path("page.html"), "Plant")
>>> write_run_page(Path("bearcat-out"))
PosixPath('bearcat-out/report.html')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from bearcat.diagnosis.decision import OK
from bearcat.diagnosis.recording import Diagnoses, Diagnosis
from bearcat.errors import InputError, library
from bearcat.findings import count, percent
from bearcat.report import Caveat, Result, caveats, data_sentences, figures, read_result
from bearcat.report.figures import ReportFigure
from bearcat.storage import read_json, write_atomically

NOTHING = "–"
SIGNS = {"alarm": "▲", "check": "◆", "no signal": "⊘", "ok": "✓"}  # beside the colour of a status
SCORES = {"accuracy": "accuracy", "ece_uncalibrated": "ECE before", "ece": "ECE after"}
LISTED = (
    "decision", "recording", "diagnosis", "confidence", "why", "machine", "point", "vibration", "agreement",
    "unfamiliar", "rpm", "bearing",
)  # fmt: skip
MOST_DRAWN = 60  # recordings drawn on a page
SHOWN = ("Collapsed", "Classes never predicted", "No labels")  # caveats on a run's page; its warnings cover the others


@dataclass(frozen=True)
class TableEntry:
    """One cell of a table: the text, and the number behind it (percent where the text is)."""

    text: str
    value: float | None = None
    bold: bool = False


def number_entry(value: float | None, form: str = "{:.3f}", bold: bool = False) -> TableEntry:
    """A number in this format, with a true minus and no sign before zero; a dash for None, NaN and infinities."""
    if value is None or not math.isfinite(value):
        return TableEntry(NOTHING)
    text = form.format(value)
    text = text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")
    return TableEntry(text, value, bold)


def percent_entry(fraction: float | None, form: str = "{:.1f}") -> TableEntry:
    return number_entry(None if fraction is None else 100 * fraction, form)


@dataclass(frozen=True)
class Table:
    """A table; `name` is that of its file, `note` explains the numbers, how many runs they cover and bold."""

    name: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableEntry, ...], ...]


@dataclass(frozen=True)
class Section:
    """A heading and what follows it, in this order."""

    title: str
    sentences: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[ReportFigure, ...] = ()
    decision: str = ""  # comes first, in larger letters
    cards: bool = False  # figures side by side, and the list of recordings
    research: bool = False  # collapsed until it is clicked


def templates() -> Any:
    """The template engine, with escaping; InputError says what to install."""
    jinja2 = library("jinja2", "report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.globals["signs"] = SIGNS
    environment.filters["tied"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with a sign
    return environment


def write_page(
    path: Path, title: str, subtitle: str, numbers: Sequence[tuple[str, Any]], sections: Sequence[Section]
) -> Path:
    """Writes a page atomically; `numbers` come first: what, and how much."""
    files = resources.files("bearcat.report")
    html, style, script = ((files / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    values = {"title": title, "subtitle": subtitle, "numbers": numbers, "sections": sections}
    text = templates().from_string(html).render(**values, style=style, script=script)
    write_atomically(path, text.encode(errors="backslashreplace"))
    return path


def read_results(path: Path) -> Diagnoses:
    """The diagnoses that `diagnose --format json` wrote."""
    try:
        return Diagnoses(Diagnosis.from_dict(values) for values in read_json(path)["recordings"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wrong = f"holds no results of bearcat ({type(error).__name__}: {error!s:.80})"
        raise InputError(f"{path}: {wrong}; write it again with diagnose or predict, --format json") from error


def write_recordings_page(diagnoses: Diagnoses, path: Path, title: str) -> Path:
    """One page of diagnosed recordings: the list, worst first, then the evidence of each alarm or check."""
    made = f"{count(len(diagnoses), 'recording')}, {datetime.now().astimezone():%d %B %Y, %H:%M}"
    return write_page(path, title, made, list(diagnoses.outcomes.items()), _recording_sections(diagnoses))


def _recording_sections(diagnoses: Diagnoses) -> list[Section]:
    """The recordings, worst first, and the evidence of alarms and checks."""
    worst, rows = diagnoses.worst_first, list[dict[str, str]]()
    for diagnosis in worst:
        rpm, bearing = "" if diagnosis.rpm is None else f"{diagnosis.rpm:.0f}", diagnosis.bearing or ""
        rows.append(diagnosis.cells() | {"why": diagnosis.sentence, "rpm": rpm, "bearing": bearing})
    values = {name: sorted({row[name] for row in rows} - {""}) for name in LISTED}
    common = [name for name in ("rpm", "bearing") if len(values[name]) == 1]
    names = [name for name in LISTED if values[name] and name not in common]
    parts = [f"all with {name} {values[name][0]}" for name in common]
    note = "; ".join(["Lines are of the envelope spectrum, in dB above its background", *parts]) + "."
    cells = tuple(tuple(TableEntry(row[name]) for name in names) for row in rows)
    table = Table("recordings", "Recordings", note, tuple(names), cells)
    sections = [Section("Recordings", tables=(table,) if rows else (), cards=True)]
    drawn = [each for each in worst if each.decision.action != OK and each.drawing is not None]
    pictures = tuple(figures.draw_evidence(diagnosis) for diagnosis in drawn[:MOST_DRAWN])
    if pictures:
        title = f"Evidence of the {MOST_DRAWN} worst" if len(drawn) > MOST_DRAWN else "Evidence"
        sections.append(Section(title, figures=pictures, cards=True))
    return sections


def write_run_page(folder: Path, path: Path | None = None) -> Path:
    """The page of the run in this folder (report.html), with the runs beside it for comparison; its path."""
    result = read_result(folder)
    record, cell, diagnoses = result.record, result.cell, Diagnoses(result.record.recordings)
    subtitle = f"{cell.method} on {cell.task}; {cell.dataset}, {cell.input.partition(':')[0]} input, seed {cell.seed}"
    numbers = [("Recommendation", record.decision.action), *diagnoses.outcomes.items()]
    if (scores := record.requested_scores) is not None:
        numbers.insert(0, ("Target accuracy", percent(scores.accuracy) or NOTHING))
    problems = tuple(record.problems.values())
    left_out = Caveat("Left out", f"{count(len(problems), 'recording')} could not be used.", problems)
    sections = [
        Section("Recommendation", record.sentences, (left_out,) if problems else (), decision=record.decision.sentence),
        *(_recording_sections(diagnoses) if diagnoses else ()),
        _research_section(result, [result, *result.beside]),
    ]
    path, title = path or folder / "report.html", f"Diagnosis of {record.settings.target}"
    return write_page(path, title, subtitle, numbers, sections)


def _research_section(result: Result, together: Sequence[Result]) -> Section:
    """What was run, its scores, estimates, temperatures and figures."""
    sentences = (
        *data_sentences([result]),
        "Estimates were found without target labels and rest on confidence that was calibrated on the source: where the"
        " target differs, they are often too high (docs/trust.md). Scores are those of the last epoch.",
    )
    warned = [Caveat(run.cell.method, text) for run in together for text in run.record.warnings]
    warned += [caveat for caveat in caveats(together, {}) if caveat.kind in SHOWN]
    drawn = figures.reliability([result]), figures.curves(together), *(figures.confusion([run]) for run in together)
    pictures = tuple(figure for figure in drawn if figure is not None)
    return Section("For researchers", sentences, tuple(warned), (_score_table(together),), pictures, research=True)


def _score_table(results: Sequence[Result]) -> Table:
    columns = [("target", name) for name in SCORES if any(run.record.scores.target for run in results)]
    columns += [("source", name) for name in ("accuracy", "ece")]
    rows, cells = list[tuple[TableEntry, ...]](), dict[str, float | None]()
    for run in results:
        record, expected = run.record, run.record.estimates.expected
        cells = {"expected": None if expected is None else expected.value}
        cells |= {f"{domain} {SCORES[name]}": run.score(domain, name) for domain, name in columns}
        cells |= {"confidence": record.estimates.mean_confidence, "labelled": record.pseudo_label_share}
        shares = map(percent_entry, cells.values())
        rows.append((TableEntry(run.cell.method), *shares, number_entry(record.temperature, "{:.2f}")))
    note = (
        "Percent; ECE of 10 bins, before and after calibration; record.json has more scores."
        " Expected: the target's accuracy, estimated without labels. Labelled: target windows with a pseudo-label in"
        " the last epoch. T: temperature."
    )
    return Table("scores", "Scores", note, ("method", *cells, "T"), tuple(rows))
