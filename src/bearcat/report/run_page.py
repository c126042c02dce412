"""The page of one run: scores, how far to trust them, figures, and what was run.

>>> write_run_page(Path("bearcat-out"))
PosixPath('bearcat-out/report.html')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bearcat.report import curves, figures
from bearcat.report.caveats import Caveat, different_versions, estimates_off, negative_transfer
from bearcat.report.choices import agreements
from bearcat.report.page import ReportPage, Section, in_page, templates, write_page
from bearcat.report.results import Result, read_result
from bearcat.report.typeset import NOTHING, Table, TableEntry, number_entry, percent_entry
from bearcat.report.wording import data_sentence, epochs_words, settings_table
from bearcat.trust.accuracy import ESTIMATORS
from bearcat.trust.shares import shares_sentences

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
    first = _first_sections(result, saved)
    scores, trust = _score_section(result, together), _trust_section(result, others, saved)
    trust = replace(trust, verdict="") if first else trust  # it stands above
    labelled = result.record["scores"]["target"] is not None
    run_sentence = (
        f"{data_sentence([result])}; identity of settings, seed and data {result.record['data']['identity'][:12]}…;"
        f" {result.record['seconds']:.0f} s on {result.record['device']}."
    )
    settings = tuple(settings_table(run.cell.method, [run]) for run in reversed(together))
    page = ReportPage(
        title=f"{cell.method} on {cell.task}{'' if saved is result else f'; saved: {saved.cell.method}'}",
        subtitle=f"{cell.dataset}, {cell.input.partition(':')[0]} input, seed {cell.seed}, {epochs_words([result])}",
        numbers=_headline(saved),
        sections=(
            *first,
            *((scores, trust) if labelled else (trust, scores)),  # the verdict first where it is all there is
            Section("Figures", figures=tuple(in_page(figure) for figure in drawn if figure is not None)),
            Section("What was run", (run_sentence,), tables=_chosen_tables(result), folded=settings),
        ),
    )
    return write_page(folder / "report.html", page, environment)


def _first_sections(result: Result, saved: Result) -> list[Section]:
    """The target's recordings with their diagnoses by the saved model, then what to do; first on the page."""
    found = result.record.get("recordings")
    if not found:
        return []
    rows = []
    for row in found:
        line = (row.get("line") or NOTHING).removesuffix(" background")
        *shares, unfamiliar = (percent_entry(row[name]) for name in ("confidence", "agreement", "unfamiliar"))
        if row["familiar"] is False:
            unfamiliar = replace(unfamiliar, text=f"{unfamiliar.text}, most like {row.get('nearest', '?')}", bold=True)
        rows.append((*map(TableEntry, (row["recording"], row["class"], line)), *shares, unfamiliar))
    header = ("recording", "diagnosis", "line over background", "confidence", "agreement", "unfamiliar windows")
    note = (
        "In percent. Line: the strongest line of the diagnosed fault in the envelope spectrum and its power over the"
        " background, if speed and bearing are known. Confidence is the recording's, pooled from its windows; agreement"
        " the share of windows of the same class; an unfamiliar recording looks like nothing the model was adapted to,"
        " so it is unknown."
    )
    counts = Counter(row["class"] for row in found)
    totals = f"Diagnoses: {', '.join(f'{name} {count}' for name, count in counts.most_common())}."
    shares_said = shares_sentences(saved.estimates["shares"]) if saved.estimates.get("shares") else []
    table = Table("recordings", f"Recordings of {result.record['settings']['target']}", note, header, tuple(rows))
    second, chosen = result.estimates.get("second_opinion"), result.estimates.get("saved")
    advice = _advice(found) + ([second["sentence"]] if second and second["contradicted"] else [])
    advice += [chosen["sentence"]] if chosen else []
    return [
        Section("Diagnoses of the target", (totals, *shares_said), tables=(table,)),
        Section("What to do", tuple(advice), verdict=saved.estimates["verdict"]),
    ]


def _advice(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to do with these diagnoses, where they ask for anything."""
    sentences = []
    if odd := [row["recording"] for row in found if row["familiar"] is False]:
        sentences.append(f"Look at these first, they are unlike the others: {', '.join(odd[:5])}.")
    if split := [row["recording"] for row in found if row["agreement"] < 0.7]:
        sentences.append(f"Windows disagree in {', '.join(split[:5])}: record them again for longer.")
    if len(found) > 1 and len({row["class"] for row in found}) == 1:
        sentences.append("All recordings have one diagnosis: right if the machine is in one state, else a warning.")
    return sentences


def _headline(result: Result) -> tuple[tuple[str, str, str], ...]:
    source, target = result.record["scores"]["source"], result.record["scores"]["target"]
    confidence = _percent(result.estimates["mean_confidence"])
    if target is None:
        numbers = [("Mean confidence on the target", confidence, "no labels there")]
    else:
        before = f"{_percent(target['ece_uncalibrated'])} before calibration"
        numbers = [("Target accuracy", _percent(target["accuracy"]), f"mean confidence {confidence}")]
        calibrated = result.record["calibration"] is not None
        numbers.append(("Target ECE", _percent(target["ece"]), before if calibrated else "not calibrated"))
    numbers.append(("Source accuracy", _percent(source["accuracy"]), f"ECE {_percent(source['ece'])}"))
    if result.temperature is not None:
        bound = "at its bound" if result.at_bound else "within its bounds"
        numbers.append(("Temperature", f"{result.temperature:.2f}", bound))
    return tuple(numbers)


def _score_section(result: Result, together: Sequence[Result]) -> Section:
    data, settings = result.record["data"], result.record["settings"]
    sentences = [
        f"{result.cell.method} learned from {data['source_train']} labelled windows of"
        f" {' and '.join(settings['source'])} and {data['target_train']} windows of {settings['target']} without their"
        f" labels; scores are of {data['source_test']} and {data['target_test']} windows kept apart, at the last epoch."
    ]
    if result.record["scores"]["target"] is None:
        sentences.append(
            "The target has no labels, so nothing here says how often the predictions are right; the mean confidence"
            " is an estimate only as far as the confidence can be trusted there."
        )
    warned = [Caveat(run.cell.method, text) for run in reversed(together) for text in run.record["warnings"]]
    warned += [*negative_transfer(together), *different_versions(together)]
    domains = ("target", "source") if any(run.record["scores"]["target"] for run in together) else ("source",)
    rows = []
    for run in together:
        row = [TableEntry(run.cell.method)]
        for domain in domains:
            scores = run.record["scores"][domain] or {}
            row += [(number_entry if name in ("brier", "nll") else percent_entry)(scores.get(name)) for name in SCORES]
        row += [percent_entry(run.estimates["mean_confidence"]), number_entry(run.temperature, "{:.2f}")]
        rows.append((*row, number_entry(run.seconds, "{:.1f}")))
    headings = [f"{domain} {name}" for domain in domains for name in SCORES.values()]
    note = (
        "Accuracy, ECE (ten bins) and mean confidence in percent; before and after calibration; NLL and Brier after it."
        " T: temperature."
    )
    table = Table("scores", "Scores", note, ("method", *headings, "mean confidence", "T", "seconds"), tuple(rows))
    return Section("Scores", tuple(sentences), tuple(warned), (table,))


def _trust_section(result: Result, others: Sequence[Result], saved: Result) -> Section:
    """What can be said of the saved model without target labels, beside the truth where there is one."""
    estimates, checked = saved.estimates, saved.record["estimates_checked"]
    sentences = [
        "The target has no labels, so none of this could be checked."
        if checked is None
        else "All numbers here but those called measured were found without labels of the target.",
        "Estimates rest on confidence that was calibrated on the source: where the target differs, they are often too"
        " high, and nothing in the data says by how much (docs/trust.md).",
    ]
    if (shares := estimates.get("shares")) and not saved.record["failed"]:
        sentences = [*filter(None, [shares.get("adaptation")]), *sentences]
    for name, share in agreements(result, others).items():
        sentences.append(
            f"{result.cell.method} and {name} agree on {_percent(share)} of the windows. Adaptation can have improved,"
            f" or spoilt, no more than the other {_percent(1 - share)}."
        )
    familiarity = estimates["familiarity"]
    sentences.append(
        "Windows that do not resemble those the model was adapted to are called unfamiliar. The limits are set for"
        f" {_percent(familiarity['rate'])} of the target's windows; {_percent(familiarity['false_alarms'])} of held-out"
        f" ones were beyond them, and {_percent(familiarity['source_unfamiliar'])} of the source's."
    )
    if "second_opinion" in result.estimates:
        sentences.append(result.estimates["second_opinion"]["sentence"] + " Either may be wrong (docs/diagnose.md).")
    together = [*others, result]
    return Section(
        "How far to trust this",
        tuple(sentences),
        tuple(estimates_off([result])),
        (_accuracy_table(together), _abstention_table(estimates, checked)),
        verdict=estimates["verdict"],
    )


def _accuracy_table(results: Sequence[Result]) -> Table:
    """Expected accuracy by every estimator: a row for each run."""
    measured = any(result.record["scores"]["target"] is not None for result in results)
    rows = []
    for result in results:
        accuracy = result.estimates["accuracy"]
        row = [TableEntry(result.cell.method), *(_interval_entry(accuracy.get(name)) for name in ESTIMATORS)]
        rows.append((*row, *([percent_entry(result.score("target", "accuracy"))] if measured else [])))
    note = "In percent, with 90 % intervals that allow for chance but not for bias; what each is: docs/trust.md."
    header = ("method", *ESTIMATORS.values(), *(("measured",) if measured else ()))
    return Table("expected", "Expected accuracy on the target", note, header, tuple(rows))


def _abstention_table(estimates: Mapping[str, Any], checked: Mapping[str, Any] | None) -> Table:
    kept = estimates["abstention"]["kept"]
    columns = [
        [percent_entry(each["kept"], "{:.0f}") for each in kept],
        [percent_entry(each["confidence"], "{:.2f}") for each in kept],
        [percent_entry(each["accuracy"]) for each in kept],
    ]
    header = ["windows kept", "confidence at least", "expected right"]
    if checked:
        header.append("measured right")
        columns.append([percent_entry(each["accuracy"]) for each in checked["abstention"]["kept"]])
    note = "What is gained by leaving the least confident windows to a person. In percent."
    rows = tuple(zip(*columns, strict=True))
    return Table("abstention", "Passing over unsure windows", note, tuple(header), rows)


def _interval_entry(estimate: Mapping[str, Any] | None) -> TableEntry:
    if estimate is None or None in estimate.values():
        return TableEntry(NOTHING)
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    return TableEntry(f"{100 * value:.1f} ({100 * low:.0f}–{100 * high:.0f})", 100 * value)


def _chosen_tables(result: Result) -> tuple[Table, ...]:
    """What was chosen from the recordings, and why; records whose settings were all given have none."""
    header = ("setting", "value", "reason")
    rows = tuple(tuple(TableEntry(choice[name]) for name in header) for choice in result.record.get("chosen", ()))
    note = "Each can be given instead (docs/add-your-data.md)."
    return (Table("chosen", "Chosen from the recordings", note, header, rows),) if rows else ()


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"
