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
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from bearcat.diagnosis.decision import ACTIONS, OK
from bearcat.diagnosis.recording import Diagnoses, Diagnosis
from bearcat.errors import InputError, library
from bearcat.findings import count, percent
from bearcat.record import Record
from bearcat.report import Caveat, Result, caveats, data_sentences, figures, read_result
from bearcat.report.figures import ReportFigure
from bearcat.storage import check_regular, read_json, write_atomically

NOTHING = "–"
SIGNS = {"alarm": "▲", "check": "◆", "no signal": "⊘", "ok": "✓"}  # beside the colour of a status
SCORES = {"accuracy": "accuracy", "ece_uncalibrated": "ECE before", "ece": "ECE after"}
FIRST = ("decision", "recording", "diagnosis", "confidence", "why")  # columns of the list
HIDDEN = ("fault line", "reason")  # `why` contains them
USED = ("machine", "rpm", "bearing")  # columns that are shown if they have values
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
    """The template engine, with escaping; InputError says what to install, before anything is drawn."""
    jinja2 = library("jinja2", "report")
    strict = jinja2.StrictUndefined
    environment = jinja2.Environment(autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True)
    environment.globals["signs"] = SIGNS
    environment.filters["tied"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with a sign
    return environment


def write_page(
    path: Path, environment: Any, title: str, subtitle: str, numbers: Sequence[tuple[str, str, str]],
    sections: Sequence[Section],
) -> Path:  # fmt: skip
    """Writes a page atomically; `numbers` come first: what, how much, and a remark."""
    files = resources.files("bearcat.report")
    html, style, script = ((files / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    values = {"title": title, "subtitle": subtitle, "numbers": numbers, "sections": sections}
    text = environment.from_string(html).render(**values, style=style, script=script)
    try:
        write_atomically(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another folder") from error
    return path


def read_results(path: Path) -> Diagnoses:
    """The diagnoses that `diagnose --format json` wrote."""
    try:
        check_regular(path)
        diagnoses = [Diagnosis.from_dict(values) for values in read_json(path)["recordings"]]
        actions = [diagnosis.decision.action for diagnosis in diagnoses]
        if other := [action for action in actions if action not in ACTIONS]:
            raise ValueError(f"'{other[0]}' is no decision on a recording")
        return Diagnoses(diagnoses)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wrong = f"holds no results of bearcat ({type(error).__name__}: {error!s:.80})"
        raise InputError(f"{path}: {wrong}; write it again with diagnose or predict, --format json") from error


def write_recordings_page(diagnoses: Diagnoses, path: Path, title: str) -> Path:
    """One page of diagnosed recordings: the list, worst first, then the evidence of each alarm or check."""
    made = f"{count(len(diagnoses), 'recording')}, {datetime.now().astimezone():%d %B %Y, %H:%M}"
    return write_page(path, templates(), title, made, _counted(diagnoses), _recording_sections(diagnoses))


def _counted(diagnoses: Diagnoses) -> list[tuple[str, str, str]]:
    """The number of recordings with each outcome."""
    return [(outcome, str(number), "") for outcome, number in diagnoses.outcomes.items()]


def _recording_sections(diagnoses: Diagnoses) -> list[Section]:
    """The recordings, worst first, and the evidence of alarms and checks."""
    rows = diagnoses.worst_first.table()
    for row, diagnosis in zip(rows, diagnoses.worst_first, strict=True):
        row["why"] = diagnosis.sentence
        folder = str(Path(diagnosis.recording.partition("#")[0]).parent)  # already in the recording's path
        row["machine"] = "" if diagnosis.machine in (folder, None) else str(diagnosis.machine)
        row |= {"bearing": diagnosis.bearing or "", "rpm": "" if diagnosis.rpm is None else f"{diagnosis.rpm:.0f}"}
    used = {name: sorted({row[name] for row in rows} - {""}) for name in USED}
    common = {name: values[0] for name, values in used.items() if len(values) == 1 and len(rows) > 1}
    others = [name for name in (rows[0] if rows else ()) if name not in (*FIRST, *HIDDEN, *USED)]
    names = [*FIRST, *others, *(name for name, values in used.items() if values and name not in common)]
    note = "Lines are of the envelope spectrum, in dB above its background."
    note += f" All recordings: {', '.join(f'{name} {value}' for name, value in common.items())}." if common else ""
    if "agreement" in names:
        note += (
            " Agreement: the share of windows with the recording's diagnosis. Unfamiliar: the share of windows that"
            " resemble nothing the model was adapted to."
        )
    cells = tuple(tuple(TableEntry(row.get(name, "")) for name in names) for row in rows)
    table = Table("recordings", "Recordings", note, tuple(names), cells)
    sections = [Section("Recordings", tables=(table,) if rows else (), cards=True)]
    worst = [diagnosis for diagnosis in diagnoses.worst_first if diagnosis.decision.action != OK]
    drawn = [diagnosis for diagnosis in worst if diagnosis.drawing is not None]
    pictures = tuple(figures.draw_evidence(diagnosis) for diagnosis in drawn[:MOST_DRAWN])
    if not pictures:
        return sections
    left_out = len(drawn) - len(pictures)
    more = (f"The {len(pictures)} worst are drawn; {left_out} more are in the list.",) if left_out else ()
    return [*sections, Section("Evidence", more, figures=pictures, cards=True)]


def write_run_page(folder: Path, path: Path | None = None) -> Path:
    """The page of the run in this folder (report.html), with the runs beside it for comparison; its path."""
    environment = templates()
    result = read_result(folder)
    together = [result, *result.beside]
    record, cell = result.record, result.cell
    identity = f"Identity of settings, seed and data: {record.data.identity[:12]}…."
    run_sentences = (*data_sentences([result]), f"{identity} {record.seconds:.0f} s on {record.device}.")
    kind = cell.input.partition(":")[0]
    subtitle = f"{cell.method} on {cell.task}; {cell.dataset}, {kind} input, seed {cell.seed}"
    sections = (
        *_first_sections(record),
        _research_section(result, together),
        Section("What was run", run_sentences, research=True),
    )
    numbers = [("Recommendation", record.decision.action, ""), *_counted(Diagnoses(record.recordings))]
    if (scores := record.requested_scores) is not None:
        accuracy, ece = percent(scores.accuracy) or NOTHING, percent(scores.ece) or NOTHING
        numbers.insert(0, ("Target accuracy", accuracy, f"{cell.method}, ECE {ece}"))
    path, title = path or folder / "report.html", f"Diagnosis of {record.settings.target}"
    return write_page(path, environment, title, subtitle, numbers, sections)


def _first_sections(record: Record) -> list[Section]:
    """For engineers: what to do with the model, the target's recordings, worst first, and their evidence."""
    sentences = record.sentences
    decision = replace(record.decision, expected=None).sentence  # the accuracy to expect is for researchers
    problems = tuple(record.problems.values())
    left_out = Caveat("Left out", f"{count(len(problems), 'recording')} could not be used.", problems)
    first = Section("Recommendation", sentences, (left_out,) if problems else (), decision=decision)
    return [first, *(_recording_sections(Diagnoses(record.recordings)) if record.recordings else ())]


def _research_section(result: Result, together: Sequence[Result]) -> Section:
    """Scores, estimates, temperatures and figures."""
    sentences = (
        result.record.decision.sentence,
        "Estimates were found without target labels and rest on confidence that was calibrated on the source: where the"
        " target differs, they are often too high (docs/trust.md). Scores are those of the last epoch.",
    )
    warned = [Caveat(run.cell.method, text) for run in together for text in run.record.warnings]
    warned += [caveat for caveat in caveats(together, []) if caveat.kind in SHOWN]
    drawn = figures.reliability([result]), figures.confusions(together), figures.curves(together)
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
