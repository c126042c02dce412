"""The pages of diagnosed recordings, and of one run: for the engineer, and then for researchers.

>>> write_recordings_page(bearcat.diagnose("plant"), Path("page.html"), "Plant")
>>> write_run_page(Path("bearcat-out"))
PosixPath('bearcat-out/report.html')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from bearcat.diagnosis.decision import ACTIONS
from bearcat.diagnosis.recording import Diagnoses, Diagnosis
from bearcat.errors import InputError
from bearcat.record import Record
from bearcat.report import figures
from bearcat.report.results import Result, caveats, data_sentences, read_result
from bearcat.report.typeset import (
    Caveat,
    Section,
    Table,
    TableEntry,
    count,
    number_entry,
    percent_entry,
    templates,
    write_page,
)
from bearcat.storage import check_regular, read_json

SCORES = {
    "accuracy": "accuracy", "false_alarms": "false alarms", "missed_faults": "missed faults",
    "ece_uncalibrated": "ECE before", "ece": "ECE after",
}  # fmt: skip
USED = ("machine", "rpm", "bearing")  # columns of the list, where they are known
CARD, MOST_DRAWN = 2.8, 60  # inches, of a recording's evidence; recordings drawn on a page
SHOWN = ("Collapsed", "Classes never predicted", "No labels")  # caveats on a run's page; its warnings say the others


def read_results(path: Path) -> Diagnoses:
    """The diagnoses that `diagnose --format json` wrote."""
    try:
        check_regular(path)
        found = [Diagnosis.from_dict(each) for each in read_json(path)["recordings"]]
        if other := [each.decision.action for each in found if each.decision.action not in ACTIONS]:
            raise ValueError(f"'{other[0]}' is no decision on a recording")
        return Diagnoses(found)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wrong = f"holds no results of bearcat ({type(error).__name__}: {error!s:.80})"
        raise InputError(f"{path}: {wrong}; write it again with diagnose or predict, --format json") from error


def write_recordings_page(found: Diagnoses, path: Path, title: str) -> Path:
    """One page of diagnosed recordings: the list, worst first, then the evidence of each alarm or check."""
    made = f"{count(len(found), 'recording')}, {datetime.now().astimezone():%d %B %Y, %H:%M}"
    return write_page(path, templates(), title, made, _counted(found), _recording_sections(found, "Recordings"))


def _counted(found: Diagnoses) -> list[tuple[str, str, str]]:
    """The parts of the summary: what, and how many."""
    parts = found.summary.partition(": ")[2].rstrip(".").split(", ") if found else []
    return [(what, number, "") for number, _, what in (part.partition(" ") for part in parts)]


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
    pictures = tuple(figures.draw_evidence(each, CARD) for each in drawn[:MOST_DRAWN])
    if not pictures:
        return sections
    left_out = len(drawn) - len(pictures)
    more = (f"The {len(pictures)} worst are drawn; {left_out} more are in the list.",) if left_out else ()
    return [*sections, Section("Evidence", more, figures=pictures, cards=True)]


def write_run_page(folder: Path, path: Path | None = None) -> Path:
    """The page of the run in this folder (report.html), with the runs beside it for comparison; its path."""
    environment = templates()
    result = read_result(folder)
    together = [*result.beside, result]
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
    path, title = path or folder / "report.html", f"Diagnosis of {record.settings.target}"
    return write_page(path, environment, title, subtitle, numbers, sections)


def _first_sections(record: Record) -> list[Section]:
    """What to do with the model, the target's recordings, worst first, and their evidence: what an engineer reads."""
    sentences = tuple(text for text in (record.adaptation_sentence, record.saved_sentence) if text)
    said = replace(record.decision, expected=None).sentence  # the accuracy to expect is for researchers
    problems = tuple(record.problems.values())
    left_out = Caveat("Left out", f"{count(len(problems), 'recording')} could not be used.", problems)
    sections = [Section("Recommendation", sentences, (left_out,) if problems else (), decision=said)]
    found = Diagnoses(record.recordings)
    return [*sections, *(_recording_sections(found, f"Recordings of {record.settings.target}") if found else ())]


def _research_section(result: Result, together: Sequence[Result]) -> Section:
    """Scores, estimates, temperatures and figures."""
    sentences = (
        result.record.decision.sentence,
        "Estimates were found without target labels and rest on confidence that was calibrated on the source: where the"
        " target differs, they are often too high (docs/trust.md). Scores are those of the last epoch.",
    )
    warned = [Caveat(run.cell.method, text) for run in reversed(together) for text in run.record.warnings]
    warned += [caveat for caveat in caveats(together, []) if caveat.kind in SHOWN]
    drawn = [figures.reliability([result])]
    drawn += [figures.reliability_by_method(together)] if len(together) > 1 else []
    drawn += [figures.confusions(together), figures.curves(together)]
    shown = tuple(figure for figure in drawn if figure is not None)
    return Section("For researchers", sentences, tuple(warned), (_score_table(together),), shown, research=True)


def _score_table(results: Sequence[Result]) -> Table:
    domains = ("target", "source") if any(run.record.scores.target for run in results) else ("source",)
    rows = []
    for run in results:
        expected = run.record.estimates.expected
        row = [TableEntry(run.cell.method), percent_entry(expected.value if expected else None)]
        for domain in domains:
            for name in SCORES:
                row.append(percent_entry(run.score(domain, name)))
        row += [percent_entry(run.record.estimates.mean_confidence), percent_entry(run.record.pseudo_label_share)]
        rows.append((*row, number_entry(run.record.temperature, "{:.2f}")))
    headings = [f"{domain} {name}" for domain in domains for name in SCORES.values()]
    note = (
        "Percent; ECE of 10 bins, before and after calibration; record.json has more scores."
        " Expected: the target's accuracy, estimated without labels. Labelled: target windows with a pseudo-label in"
        " the last epoch. T: temperature."
    )
    header = ("method", "expected", *headings, "mean confidence", "labelled", "T")
    return Table("scores", "Scores", note, header, tuple(rows))
