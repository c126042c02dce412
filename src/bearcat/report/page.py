"""One HTML file that tells what was run and what came out: for one run, or for a whole benchmark.

The file needs nothing else: style, script and figures are inside, and it can be read without its script. Whatever comes
from users' data (names of classes, domains, methods) goes through the template's escaping.

>>> write_run_page(Path("bearcat-out"))
PosixPath('bearcat-out/report.html')
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from bearcat.errors import InputError
from bearcat.report.caveats import (
    VALIDATORS,
    Caveat,
    adapts,
    caveats,
    different_versions,
    doubtful_transfer,
    estimates_off,
    incomplete,
    negative_transfer,
    oracles,
)
from bearcat.report.choices import comparison_sentences, epoch_sentences, recipe_sentences
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
from bearcat.report.results import Missing, Result, read_result
from bearcat.report.stats import compare
from bearcat.report.tables import Entry, Table, result_tables, write_tables
from bearcat.report.typeset import for_screen
from bearcat.report.wording import count, listed
from bearcat.trust import agreement

DRAWN_AS_VECTORS = 60_000  # bytes of SVG; a larger figure goes into the page as a PNG of few colours, which is smaller
COLOURS_KEPT = 96
NOTHING = "–"
LIST = "files.txt"  # what a report wrote besides its page


@dataclass(frozen=True)
class Shown:
    """A figure in the page."""

    title: str
    caption: str
    source: str  # a data: address
    width: int  # CSS pixels


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it, in this order."""

    title: str
    sentences: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Shown, ...] = ()
    folded: tuple[Table, ...] = ()  # tables behind a click
    level: int = 2
    verdict: str = ""  # stands first, in larger letters

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    numbers: tuple[tuple[str, str, str], ...]  # what, how much, and a remark
    sections: tuple[Section, ...] = field(default=())


def write_run_page(folder: Path, beside: Sequence[Path] = ()) -> Path:
    """report.html of the run in this folder, with the runs `beside` it for comparison; its path."""
    environment = _environment()
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
        subtitle=f"{cell.dataset}, {cell.input} input, seed {cell.seed}, {_schedules([result])}",
        numbers=_headline(result),
        sections=(
            *((scores, *trust) if measured else (*trust, scores)),  # the verdict first where it is all there is
            Section("Figures", figures=tuple(_shown(picture) for picture in pictures)),
            Section(
                "What was run", (_what_was_run(result),),
                tables=(*_chosen_table(result), _versions_table(together)),
                folded=tuple(_settings_table(one) for one in reversed(together)),
            ),
        ),
    )  # fmt: skip
    return _write(folder / "report.html", page, environment)


def write_bench_report(title: str, results: Sequence[Result], missing: Sequence[Missing], out: Path) -> Path:
    """OUT/report.html, OUT/tables/ (md, tex, csv) and OUT/figures/ (png, svg) of a comparison; the page's path."""
    environment = _environment()
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
            figures.append(_shown(picture, out / "figures"))
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
    path = _write(out / "report.html", page, environment)
    files = [f"tables/{name}.{suffix}" for name in sorted(written) for suffix in ("md", "tex", "csv")]
    files += [f"figures/{name}.{suffix}" for name in sorted(names) for suffix in ("png", "svg")]
    with _writing(out):
        (out / LIST).write_text("\n".join(files), encoding="utf-8")
    return path


def _forget_earlier(out: Path) -> None:
    """Removes the tables and figures of an earlier report, by its own list, so that nothing old looks current."""
    with _writing(out):
        if not (out / LIST).is_file():
            return
        for line in (out / LIST).read_text(encoding="utf-8", errors="replace").splitlines():
            folder, _, name = line.partition("/")
            if folder in ("tables", "figures") and name and Path(name).name == name:
                (out / folder / name).unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Makes a disk's trouble one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another folder") from error


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


# What the page says.


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
                cells.append(_fraction(value) if name not in ("brier", "nll") else _plain(value))
        cells += [_fraction(one.record["estimates"]["mean_confidence"])]
        cells += [_plain((one.record["calibration"] or {}).get("temperature"), 2), _plain(_seconds(one), 1)]
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
        cells += [_fraction(one.score("target", "accuracy"))] if known else []
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
            *(_plain((one.record["estimates"].get("validators") or {}).get(name)) for name in VALIDATORS),
        )
        for one in results
    )
    note = "To compare runs of one task with each other: higher is better. A number alone says little."
    return Table("validators", "Label-free validators", note, ("method", *VALIDATORS.values()), rows)


def _abstention_table(told: Mapping[str, Any], truth: Mapping[str, Any] | None) -> Table:
    measured = truth["abstention"]["kept"] if truth else None
    rows = []
    for number, one in enumerate(told["abstention"]["kept"]):
        cells = [Entry(f"{100 * one['kept']:.0f}", 100 * one["kept"]), _plain(100 * one["confidence"], 2)]
        cells += [_fraction(one["accuracy"])] + ([_fraction(measured[number]["accuracy"])] if measured else [])
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
        cells += [Entry("none found")] if one["confidence"] is None else [_plain(100 * one["confidence"], 2)]
        cells += [_fraction(one["kept_source"]), _fraction(one["kept"])]
        rows.append((*cells, *([_fraction(None if right is None else 1 - right)] if measured else [])))
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
            cells += [_plain(one["size"], 2), _fraction(one["single"]), _fraction(one["none"])]
            cells += [_fraction(truth["conformal"][kind][number]["coverage"])] if truth else []
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
        f"{_data_told([result])}; identity of settings, seed and data {record['data']['identity'][:12]}…;"
        f" {record['seconds']:.0f} s on {record['device']}."
    )


def _data_told(results: Sequence[Result]) -> str:
    """What the windows are; where runs differ, all there is."""

    def every(of: Callable[[Mapping[str, Any]], object]) -> str:
        return listed(list(dict.fromkeys(str(of(one.record["settings"])) for one in results)))

    classes = list(dict.fromkeys(name for one in results for name in one.record["data"]["classes"]))
    return (
        f"Data: {results[0].cell.dataset}, {count(len(classes), 'class', 'classes')} ({', '.join(classes)}); windows of"
        f" {every(lambda one: one['preparation']['length'])} samples as {results[0].cell.input} input, split by"
        f" {every(lambda one: one['split']['scheme'])} with a test share of"
        f" {every(lambda one: format(one['split']['test'], 'g'))}"
    )


def _windows_told(results: Sequence[Result]) -> str:
    def many(name: str) -> str:
        numbers = [one.record["data"][name] for one in results]
        return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"

    return (
        f"{many('source_train')} windows of the source and {many('target_train')} of the target to learn from,"
        f" {many('source_test')} and {many('target_test')} to be tested on"
    )


def _chosen_table(result: Result) -> tuple[Table, ...]:
    """What was chosen from the recordings, and why; records of settings that somebody asked for have none."""
    rows = tuple(
        tuple(Entry(one[name]) for name in ("setting", "value", "reason")) for one in result.record.get("chosen", ())
    )
    note = "Each can be asked for instead (docs/add-your-data.md)."
    return (Table("chosen", "Chosen from the recordings", note, ("setting", "value", "because"), rows),) if rows else ()


def _schedules(results: Sequence[Result]) -> str:
    epochs = sorted({int(one.record["settings"]["recipe"]["schedule"]["epochs"]) for one in results})
    return f"{listed(list(map(str, epochs)))} {'epoch' if epochs == [1] else 'epochs'}"


def _sources(result: Result) -> list[str]:
    sources: list[str] = result.record["settings"]["source"]
    return sources


def _overview(results: Sequence[Result], missing: Sequence[Missing]) -> str:
    if not results:
        return f"No run is finished yet; {len(missing)} {'is' if len(missing) == 1 else 'are'} planned."
    took = _duration(sum(map(_seconds, results)))
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
    data = f"{_data_told(results)}; {_windows_told(results)}. Trained for {_schedules(results)}."
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
                _fraction(one.score("target", "accuracy")), _fraction(one.score("target", "ece")),
                _fraction(one.score("target", "ece_uncalibrated")), _fraction(one.score("source", "accuracy")),
                _plain((one.record["calibration"] or {}).get("temperature"), 2), _plain(_seconds(one), 1),
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
        several = [_flat(one.record["settings"]) for one in results if one.cell.method == method]
        names = dict.fromkeys(name for one in several for name in one if name not in ("source", "target"))
        rows = tuple(
            (Entry(name), Entry("; ".join(dict.fromkeys(one.get(name, NOTHING) for one in several)))) for name in names
        )
        tables.append(Table(f"settings-{file_name(method)}", f"Settings of {method}", "", ("setting", "value"), rows))
    sentence = "A method's settings as its records have them; where its runs differ, all values are listed."
    return Section(
        "Settings and versions", (sentence,) if tables else (), tables=(_versions_table(results),) if results else (),
        folded=tuple(tables),
    )  # fmt: skip


def _settings_table(result: Result) -> Table:
    rows = tuple((Entry(name), Entry(value)) for name, value in _flat(result.record["settings"]).items())
    return Table("settings", f"Settings of {result.cell.method}", "", ("setting", "value"), rows)


def _versions_table(results: Sequence[Result]) -> Table:
    """One row for each combination of versions and device there is."""
    names = sorted({name for one in results for name in one.record["versions"]})
    places = ("device", "precision", "path")
    kinds = Counter(
        (
            *(str(one.record["versions"].get(name, NOTHING)) for name in names),
            *(str(one.record.get(name, NOTHING)) for name in places),
        )
        for one in results
    )
    rows = tuple((*map(Entry, values), Entry(str(number), number)) for values, number in kinds.most_common())
    header = (*(f"{name} version" if name == "result" else name for name in names), *places, "runs")
    return Table("versions", "Software and hardware", "", header, rows)


def _seconds(result: Result) -> float:
    """What a run took: its share of the time of the runs that were trained together with it."""
    return float(result.record["seconds"]) / int(result.record.get("stack", 1))


def _duration(seconds: float) -> str:
    unit, length = next(
        (unit, length)
        for unit, length in (("hours", 3600), ("minutes", 60), ("seconds", 1))
        if seconds >= 2 * length or length == 1
    )
    return f"{seconds / length:.1f} {unit}" if length > 1 else f"{seconds:.0f} {unit}"


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """{"recipe": {"teacher": {"momentum": 0.9}}} → {"recipe.teacher.momentum": "0.9"}."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{name}.")
        else:
            several = isinstance(value, list | tuple)
            flat[before + name] = ", ".join(map(str, value)) if several else NOTHING if value is None else str(value)
    return flat


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _fraction(value: float | None) -> Entry:
    return Entry(NOTHING) if value is None else Entry(f"{100 * value:.1f}", 100 * value)


def _plain(value: float | None, digits: int = 3) -> Entry:
    return Entry(NOTHING) if value is None else Entry(f"{value:.{digits}f}", value)


# How it becomes a file.


def _shown(picture: Picture, folder: Path | None = None) -> Shown:
    """A figure for the page; its files too, where a folder is given."""
    if folder is None:
        png, svg = picture.render()
    else:
        png, svg = (path.read_bytes() for path in picture.write(folder))
    kind, content = ("svg+xml", svg) if len(svg) <= DRAWN_AS_VECTORS else ("png", _fewer_colours(png))
    address = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
    return Shown(picture.title, picture.caption, address, round(picture.drawing.get_figwidth() * 118))


def _fewer_colours(png: bytes) -> bytes:
    """A third of the size; matplotlib brings Pillow along."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(COLOURS_KEPT, dither=Image.Dither.NONE)
    smaller = io.BytesIO()
    few.save(smaller, "PNG", optimize=True)
    return smaller.getvalue()


def _environment() -> Any:
    """The templates' machinery, with escaping on; a sentence where it is missing, before anything is drawn."""
    try:
        import jinja2
    except ImportError as error:
        raise InputError("reports need an extra; pip install 'bearcat[report]'") from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    environment.filters["tied"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with a sign
    return environment


def _write(path: Path, page: Page, environment: Any) -> Path:
    """Whole or not at all."""
    files = resources.files("bearcat.report")
    parts = {name: (files / f"page.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    text = environment.from_string(parts["html"]).render(page=page, style=parts["css"], script=parts["js"])
    draft = path.with_name(f".{path.name}.draft")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, path)  # noqa: PTH105
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    return path
