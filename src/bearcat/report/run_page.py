"""The page of one run: scores, how far to trust them, figures, and what was run.

>>> write_run_page(Path("bearcat-out"))
PosixPath('bearcat-out/report.html')
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bearcat.diagnosis.recording import Diagnoses
from bearcat.record import CheckedEstimates, Estimates
from bearcat.report import curves, figures
from bearcat.report.caveats import Caveat, different_versions, estimates_off, negative_transfer
from bearcat.report.page import ReportPage, Section, in_page, templates, write_page
from bearcat.report.results import Result, read_result
from bearcat.report.typeset import NOTHING, Table, TableEntry, number_entry, percent_entry
from bearcat.report.wording import data_sentence, epochs_words, settings_table
from bearcat.trust.accuracy import ESTIMATORS, Estimate, agreement

SCORES = {
    "accuracy": "accuracy", "false_alarms": "false alarms", "missed_faults": "missed faults",
    "ece_uncalibrated": "ECE before", "ece": "ECE after", "brier": "Brier", "nll": "NLL",
}  # fmt: skip


def write_run_page(folder: Path) -> Path:
    """report.html of the run in this folder, with the runs beside it for comparison; its path."""
    environment = templates()
    result = read_result(folder)
    others, saved = result.beside, result.saved
    together = [*others, result]
    cell = result.cell
    drawn = [figures.reliability([run]) for run in reversed(together)]
    drawn += [figures.confusions(together), curves.score_curves(together), curves.pseudo_label_curves(together)]
    drawn += [curves.temperature_curves(together), curves.threshold_curves(together), curves.coverage_curves(together)]
    scores, trust = _score_section(result, together), _trust_section(result, others, saved)
    run_sentence = (
        f"{data_sentence([result])}; identity of settings, seed and data {result.record.data.identity[:12]}…;"
        f" {result.record.seconds:.0f} s on {result.record.device}."
    )
    settings = tuple(settings_table(run.cell.method, [run]) for run in reversed(together))
    page = ReportPage(
        title=f"{cell.method} on {cell.task}{'' if saved is result else f'; saved: {saved.cell.method}'}",
        subtitle=f"{cell.dataset}, {cell.input.partition(':')[0]} input, seed {cell.seed}, {epochs_words([result])}",
        numbers=_headline(saved),
        sections=(
            *_first_sections(result),
            scores,
            trust,
            Section("Figures", figures=tuple(in_page(figure) for figure in drawn if figure is not None)),
            Section("What was run", (run_sentence,), tables=_chosen_tables(result), folded=settings),
        ),
    )
    return write_page(folder / "report.html", page, environment)


def _first_sections(result: Result) -> list[Section]:
    """What to do and the target's recordings, worst first: what an engineer reads."""
    record, found = result.record, Diagnoses(result.record.recordings)
    sentences = [text for text in (record.adaptation_sentence, record.saved_sentence) if text]
    sections = [Section("Recommendation", tuple(sentences), verdict=record.decision.sentence)]
    if found:
        rows = found.worst_first.table()
        note = (
            "Confidence is the recording's, pooled from its windows; agreement: the share of windows with that"
            " diagnosis; fault line: the strongest in the envelope spectrum, in dB above its background, where speed"
            " and bearing are known."
        )
        cells = tuple(tuple(map(TableEntry, row.values())) for row in rows)
        table = Table("recordings", f"Recordings of {record.settings.target}", note, tuple(rows[0]), cells)
        sections.insert(0, Section("Recordings", tables=(table,), verdict=found.summary))
    return sections


def _headline(result: Result) -> tuple[tuple[str, str, str], ...]:
    record = result.record
    source, target = record.scores.source, record.scores.target
    confidence = _percent(record.estimates.mean_confidence)
    if target is None:
        numbers = [("Mean confidence on the target", confidence, "no labels there")]
    else:
        before = f"{_percent(target.ece_uncalibrated)} before calibration"
        numbers = [("Target accuracy", _percent(target.accuracy), f"mean confidence {confidence}")]
        calibrated = record.calibration is not None
        numbers.append(("Target ECE", _percent(target.ece), before if calibrated else "not calibrated"))
    if source is not None:
        numbers.append(("Source accuracy", _percent(source.accuracy), f"ECE {_percent(source.ece)}"))
    if record.temperature is not None:
        bound = "at its bound" if record.at_bound else "within its bounds"
        numbers.append(("Temperature", f"{record.temperature:.2f}", bound))
    return tuple(numbers)


def _score_section(result: Result, together: Sequence[Result]) -> Section:
    data, settings = result.record.data, result.record.settings
    sentences = [
        f"{result.cell.method} learned from {data.source_train} labelled windows of"
        f" {' and '.join(settings.sources)} and {data.target_train} windows of {settings.target} without their"
        f" labels; scores are of {data.source_test} and {data.target_test} windows kept apart, at the last epoch."
    ]
    if result.record.scores.target is None:
        sentences.append(
            "The target has no labels, so nothing here says how often the predictions are right; the mean confidence"
            " is an estimate only as far as the confidence can be trusted there."
        )
    warned = [Caveat(run.cell.method, text) for run in reversed(together) for text in run.record.warnings]
    warned += [*negative_transfer(together), *different_versions(together)]
    domains = ("target", "source") if any(run.record.scores.target for run in together) else ("source",)
    rows = []
    for run in together:
        row = [TableEntry(run.cell.method)]
        for domain in domains:
            entries = {name: number_entry if name in ("brier", "nll") else percent_entry for name in SCORES}
            row += [entry(run.score(domain, name)) for name, entry in entries.items()]
        row += [percent_entry(run.record.estimates.mean_confidence), number_entry(run.record.temperature, "{:.2f}")]
        rows.append((*row, number_entry(run.record.run_seconds, "{:.1f}")))
    headings = [f"{domain} {name}" for domain in domains for name in SCORES.values()]
    note = (
        "Accuracy, ECE (ten bins) and mean confidence in percent; before and after calibration; NLL and Brier after it."
        " T: temperature."
    )
    table = Table("scores", "Scores", note, ("method", *headings, "mean confidence", "T", "seconds"), tuple(rows))
    return Section("For researchers: scores", tuple(sentences), tuple(warned), (table,))


def _trust_section(result: Result, others: Sequence[Result], saved: Result) -> Section:
    """What is estimated of the saved model without target labels, beside the truth where there is one."""
    estimates, checked = saved.record.estimates, saved.record.estimates_checked
    sentences = [
        "The target has no labels, so none of this could be checked."
        if checked is None
        else "All numbers here but those called measured were found without labels of the target.",
    ]
    mine = result.predictions
    for run in others:
        if result.adapts and not run.adapts and run.predictions.recording == mine.recording:
            share = agreement(mine.predicted, run.predictions.predicted)
            sentences.append(
                f"{result.cell.method} and {run.cell.method} agree on {_percent(share)} of the windows, so adaptation"
                f" helped or harmed {_percent(1 - share)} at most."
            )
    familiarity = estimates.familiarity
    sentences.append(
        "Windows that do not resemble those the model was adapted to are called unfamiliar. The limits are set for"
        f" {_percent(familiarity.rate)} of the target's windows; {_percent(familiarity.false_alarms)} of held-out"
        f" ones were beyond them, and {_percent(familiarity.source_unfamiliar)} of the source's."
    )
    tables = (_accuracy_table([*others, result]), _abstention_table(estimates, checked))
    return Section("For researchers: estimates", tuple(sentences), tuple(estimates_off([result])), tables)


def _accuracy_table(results: Sequence[Result]) -> Table:
    """Expected accuracy by every estimator: a row for each run."""
    measured = any(result.record.scores.target is not None for result in results)
    rows = []
    for result in results:
        accuracy = result.record.estimates.accuracy
        row = [TableEntry(result.cell.method), *(_interval_entry(accuracy.get(name)) for name in ESTIMATORS)]
        rows.append((*row, *([percent_entry(result.score("target", "accuracy"))] if measured else [])))
    note = "In percent, with 90 % intervals that allow for chance but not for bias; what each is: docs/trust.md."
    header = ("method", *ESTIMATORS.values(), *(("measured",) if measured else ()))
    return Table("expected", "Expected accuracy on the target", note, header, tuple(rows))


def _abstention_table(estimates: Estimates, checked: CheckedEstimates | None) -> Table:
    kept = estimates.abstention["kept"]
    columns = [
        [percent_entry(each["kept"], "{:.0f}") for each in kept],
        [percent_entry(each["confidence"], "{:.2f}") for each in kept],
        [percent_entry(each["accuracy"]) for each in kept],
    ]
    header = ["windows kept", "confidence at least", "expected right"]
    if checked:
        header.append("measured right")
        columns.append([percent_entry(each["accuracy"]) for each in checked.abstention["kept"]])
    note = "What is gained by leaving the least confident windows to a person. In percent."
    rows = tuple(zip(*columns, strict=True))
    return Table("abstention", "Accuracy if uncertain windows are rejected", note, tuple(header), rows)


def _interval_entry(estimate: Estimate | None) -> TableEntry:
    if estimate is None:
        return TableEntry(NOTHING)
    value, low, high = estimate.value, estimate.low, estimate.high
    return TableEntry(f"{100 * value:.1f} ({100 * low:.0f}–{100 * high:.0f})", 100 * value)


def _chosen_tables(result: Result) -> tuple[Table, ...]:
    """What was chosen from the recordings, and why; records whose settings were all given have none."""
    header = ("setting", "value", "reason")
    rows = tuple(tuple(TableEntry(getattr(choice, name)) for name in header) for choice in result.record.chosen)
    note = "Each can be given instead (docs/add-your-data.md)."
    return (Table("chosen", "Chosen from the recordings", note, header, rows),) if rows else ()


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"
