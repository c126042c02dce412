"""The page of one run: scores, how far to trust them, figures, and what was run.

>>> write_run_page(Path("bearcat-out"))
PosixPath('bearcat-out/report.html')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bearcat.report.caveats import (
    VALIDATORS,
    Caveat,
    adapts,
    different_versions,
    doubtful_transfer,
    estimates_off,
    negative_transfer,
    oracles,
)
from bearcat.report.choices import epoch_sentences, recipe_sentences
from bearcat.report.curves import (
    coverage_curves,
    pseudo_label_curves,
    score_curves,
    temperature_curves,
    threshold_curves,
)
from bearcat.report.figures import confusions, reliability
from bearcat.report.page import Page, Section, in_page, templates, write_page
from bearcat.report.records import (
    data_told,
    epochs_told,
    number_entry,
    percent_entry,
    seconds_of,
    settings_table,
    versions_table,
)
from bearcat.report.results import Result, read_result
from bearcat.report.typeset import NOTHING, Entry, Table
from bearcat.trust.estimates import agreement


def write_run_page(folder: Path, beside: Sequence[Path] = ()) -> Path:
    """report.html of the run in this folder, with the runs `beside` it for comparison; its path."""
    environment = templates()
    result, *others = (read_result(one) for one in (folder, *beside))
    together = [*others, result]
    record, cell = result.record, result.cell
    pictures = [
        picture
        for picture in (
            *(reliability([one]) for one in reversed(together)), confusions(together), score_curves(together),
            pseudo_label_curves(together), temperature_curves(together), threshold_curves(together),
            coverage_curves(together),
        )
        if picture is not None
    ]  # fmt: skip
    warned = [Caveat(one.cell.method, warning) for one in reversed(together) for warning in one.record["warnings"]]
    warned += [*oracles(together), *negative_transfer(together), *different_versions(together)]
    sentences = [_scores_sentence(result)]
    measured = record["scores"]["target"] is not None
    if not measured:
        sentences.append(
            "The target has no labels, so nothing here says how often the predictions are right; the mean confidence"
            " is an estimate only as far as the confidence can be trusted there."
        )
    scores = Section("Scores", tuple(sentences), tuple(warned), (_score_table(together),))
    trust = _trust_section(result, others)
    page = Page(
        title=f"{cell.method} on {cell.task}",
        subtitle=f"{cell.dataset}, {cell.input} input, seed {cell.seed}, {epochs_told([result])}",
        numbers=_headline(result),
        sections=(
            *((scores, *trust) if measured else (*trust, scores)),  # the verdict first where it is all there is
            Section("Figures", figures=tuple(in_page(picture) for picture in pictures)),
            Section(
                "What was run", (_what_was_run(result),),
                tables=(*_chosen_table(result), versions_table(together)),
                folded=tuple(settings_table(one) for one in reversed(together)),
            ),
        ),
    )  # fmt: skip
    return write_page(folder / "report.html", page, environment)


def _headline(result: Result) -> tuple[tuple[str, str, str], ...]:
    source, target = result.record["scores"]["source"], result.record["scores"]["target"]
    confidence = result.record["estimates"]["mean_confidence"]
    numbers = [("Source accuracy", _percent(source["accuracy"]), f"ECE {_percent(source['ece'])}")]
    if target is None:
        numbers.insert(0, ("Mean confidence on the target", _percent(confidence), "no labels there"))
    else:
        before = f"{_percent(target['ece_uncalibrated'])} before calibration"
        calibrated = result.record["calibration"] is not None
        numbers.insert(0, ("Target ECE", _percent(target["ece"]), before if calibrated else "not calibrated"))
        numbers.insert(0, ("Target accuracy", _percent(target["accuracy"]), f"mean confidence {_percent(confidence)}"))
    temperature = (result.record["calibration"] or {}).get("temperature")
    if temperature is not None:
        bound = result.record["calibration"]["at_bound"]
        numbers.append(("Temperature", f"{temperature:.2f}", "at its bound" if bound else "within its bounds"))
    return tuple(numbers)


def _scores_sentence(result: Result) -> str:
    data, cell = result.record["data"], result.cell
    return (
        f"{cell.method} learned from {data['source_train']} labelled windows of {' and '.join(_sources(result))} and"
        f" {data['target_train']} windows of {result.record['settings']['target']} without their labels; scores are of"
        f" {data['source_test']} and {data['target_test']} windows kept apart, at the last epoch."
    )


def _score_table(results: Sequence[Result]) -> Table:
    scores = (("accuracy", "accuracy"), ("ece_uncalibrated", "ECE before"), ("ece", "ECE after"), ("brier", "Brier"),
              ("nll", "NLL"))  # fmt: skip
    places = ("target", "source") if any(one.record["scores"]["target"] for one in results) else ("source",)
    rows = []
    for one in results:
        cells = [Entry(one.cell.method)]
        for where in places:
            for name, _ in scores:
                value = (one.record["scores"][where] or {}).get(name)
                cells.append(percent_entry(value) if name not in ("brier", "nll") else number_entry(value))
        cells += [percent_entry(one.record["estimates"]["mean_confidence"])]
        cells += [
            number_entry((one.record["calibration"] or {}).get("temperature"), 2),
            number_entry(seconds_of(one), 1),
        ]
        rows.append(tuple(cells))
    header = ("method", *(f"{where} {name}" for where in places for _, name in scores))
    note = (
        "Accuracy, ECE (ten bins) and mean confidence in percent; before and after calibration; NLL and Brier after it."
        " T: temperature."
    )
    return Table("scores", "Scores", note, (*header, "mean confidence", "T", "seconds"), tuple(rows))


def _trust_section(result: Result, others: Sequence[Result]) -> list[Section]:
    """What can be said without target labels, beside the truth where there is one; records of old have nothing."""
    told = result.record["estimates"]
    if not told.get("accuracy"):
        return []
    truth = result.record.get("estimates_checked")
    warned = [*doubtful_transfer(result, others), *estimates_off([result])]
    sentences = [
        ("The target has no labels, so none of this could be checked." if truth is None else
         "All numbers here but those called measured were found without labels of the target.")
        + " Estimates rest on confidence that was calibrated on the source: where the target differs, they are often"
        " too high, and nothing in the data says by how much (docs/trust.md).",
        *_agreement_sentences(result, others),
        *recipe_sentences([one for one in (result, *others) if one.cell.task == result.cell.task]),
        *epoch_sentences(result),
    ]  # fmt: skip
    familiar = told["familiarity"]
    if familiar["source_unfamiliar"] is not None and familiar["false_alarms"] is not None:
        sentences.append(
            f"Windows that resemble nothing the model has learnt from set off an alarm. Set to ring falsely at"
            f" {_percent(familiar['rate'])} of the target's windows, it rang at {_percent(familiar['false_alarms'])} of"
            f" those it had not seen, and at {_percent(familiar['source_unfamiliar'])} of the source's."
        )
    together = [*others, result]
    tables = (_accuracy_table(together), _abstention_table(told, truth))
    details = (_threshold_table(told, truth), _set_table(told, truth), _validator_table(together))
    title = "How far to trust this"
    return [Section(title, tuple(sentences), tuple(warned), tables, folded=details, verdict=told["verdict"])]


def _agreement_sentences(result: Result, others: Sequence[Result]) -> Iterator[str]:
    """How far a run predicts what training on the source alone predicts, where such a run stands beside it."""
    for one in others:
        mine, alone = result.predictions, one.predictions
        if adapts(result) and not adapts(one) and mine.recording == alone.recording:
            share = agreement(mine.predicted, alone.predicted)
            yield (
                f"{result.cell.method} and {one.cell.method} agree on {_percent(share)} of the windows. Adaptation can"
                f" have mended, or spoilt, no more than the other {_percent(1 - share)}."
            )


def _accuracy_table(results: Sequence[Result]) -> Table:
    """Expected accuracy by all means: a row for each run."""
    means = {"confidence": "from confidence", "atc_confidence": "ATC, confidence", "atc_entropy": "ATC, entropy",
             "doc": "DoC"}  # fmt: skip
    known = any(one.record["scores"]["target"] is not None for one in results)
    rows = []
    for one in results:
        told = one.record["estimates"]
        cells = [Entry(one.cell.method)]
        cells += [_interval((told.get("accuracy") or {}).get(name)) for name in means]
        cells += [percent_entry(one.score("target", "accuracy"))] if known else []
        rows.append(tuple(cells))
    note = (
        "In percent, with 90 % intervals that know of chance but not of bias: the mean confidence, and three estimates"
        " from confidence on the source (ATC twice, DoC)."
    )
    header = ("method", *means.values(), *(("measured",) if known else ()))
    return Table("expected", "Expected accuracy on the target", note, header, tuple(rows))


def _validator_table(results: Sequence[Result]) -> Table:
    """What serves to choose between runs: a row for each."""
    rows = tuple(
        (
            Entry(one.cell.method),
            *(number_entry((one.record["estimates"].get("validators") or {}).get(name)) for name in VALIDATORS),
        )
        for one in results
    )
    note = "To compare runs of one task with each other: higher is better. A number alone says little."
    return Table("validators", "Label-free validators", note, ("method", *VALIDATORS.values()), rows)


def _abstention_table(told: Mapping[str, Any], truth: Mapping[str, Any] | None) -> Table:
    measured = truth["abstention"]["kept"] if truth else None
    rows = []
    for number, one in enumerate(told["abstention"]["kept"]):
        cells = [Entry(f"{100 * one['kept']:.0f}", 100 * one["kept"]), number_entry(100 * one["confidence"], 2)]
        cells += [percent_entry(one["accuracy"])] + ([percent_entry(measured[number]["accuracy"])] if measured else [])
        rows.append(tuple(cells))
    header = ("windows kept", "confidence at least", "expected right", *(("measured right",) if measured else ()))
    note = "What is gained by passing over the windows the model is least sure of. In percent."
    return Table("abstention", "Passing over unsure windows", note, header, tuple(rows))


def _threshold_table(told: Mapping[str, Any], truth: Mapping[str, Any] | None) -> Table:
    measured = truth["abstention"]["thresholds"] if truth else None
    rows = []
    for number, one in enumerate(told["abstention"]["thresholds"]):
        right = measured[number]["accuracy"] if measured else None
        cells = [Entry(f"{100 * one['error']:.0f}", 100 * one["error"])]
        cells += [Entry("none found")] if one["confidence"] is None else [number_entry(100 * one["confidence"], 2)]
        cells += [percent_entry(one["kept_source"]), percent_entry(one["kept"])]
        rows.append((*cells, *([percent_entry(None if right is None else 1 - right)] if measured else [])))
    header = ("errors wanted at most", "confidence at least", "source kept", "target kept",
              *(("measured errors",) if measured else ()))  # fmt: skip
    note = (
        f"Thresholds that keep to an error rate with {100 * told['abstention']['certainty']:.0f} % certainty, for"
        " windows like the source's; on another target the promise does not hold. In percent."
    )
    return Table("thresholds", "Thresholds for an error rate", note, header, tuple(rows))


def _set_table(told: Mapping[str, Any], truth: Mapping[str, Any] | None) -> Table:
    rows = []
    for kind, fitted in told["conformal"].items():
        for number, one in enumerate(fitted):
            cells = [Entry(kind.upper()), Entry(f"{100 * (1 - one['miss']):.0f}", 100 * (1 - one["miss"]))]
            cells += [number_entry(one["size"], 2), percent_entry(one["single"]), percent_entry(one["none"])]
            cells += [percent_entry(truth["conformal"][kind][number]["coverage"])] if truth else []
            rows.append(tuple(cells))
    header = ("sets", "promised", "classes in a set", "one class", "no class",
              *(("measured coverage",) if truth else ()))  # fmt: skip
    note = (
        "Split-conformal sets of classes: “promised” is how often (in percent) a set holds the right class for windows"
        " like the source's; under shift coverage falls short."
    )
    return Table("sets", "Sets instead of single classes", note, header, tuple(rows))


def _interval(told: Mapping[str, float | None] | None) -> Entry:
    value, low, high = (None if told is None else told[name] for name in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return Entry(NOTHING)
    return Entry(f"{100 * value:.1f} ({100 * low:.0f}–{100 * high:.0f})", 100 * value)


def _what_was_run(result: Result) -> str:
    record = result.record
    return (
        f"{data_told([result])}; identity of settings, seed and data {record['data']['identity'][:12]}…;"
        f" {record['seconds']:.0f} s on {record['device']}."
    )


def _chosen_table(result: Result) -> tuple[Table, ...]:
    """What was chosen from the recordings, and why; records of settings that somebody asked for have none."""
    rows = tuple(
        tuple(Entry(one[name]) for name in ("setting", "value", "reason")) for one in result.record.get("chosen", ())
    )
    note = "Each can be asked for instead (docs/add-your-data.md)."
    return (Table("chosen", "Chosen from the recordings", note, ("setting", "value", "because"), rows),) if rows else ()


def _sources(result: Result) -> list[str]:
    sources: list[str] = result.record["settings"]["source"]
    return sources


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"
