"""Tables: the right numbers in the right cells, bold where it is earned, notes that tell what is missing."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from bearcat.cat.recipes import RECIPES
from bearcat.data.datasets.benches import CONDITIONS
from bearcat.errors import InputError
from bearcat.record import DomainScores, RunSettings, Scores
from bearcat.report.results import Cell, Missing, Result
from bearcat.report.stats import compare
from bearcat.report.tables import published_figures, result_tables
from bearcat.report.typeset import Table, TableEntry, csv_text, latex
from tests.made_records import bare_record

PAIRS = list(permutations(range(4), 2))
PADERBORN = [f"{CONDITIONS[source]}→{CONDITIONS[target]}" for source, target in PAIRS]
EIGHT = ("source-only", "DANN", "DANN*", "AT*", "CAT*-Temperature", "CAT*-CPCS", "CAT*-Vector", "CAT*-Matrix")


def result(
    method: str, task: str, seed: int, accuracy: float | None, ece: float = 0.1, dataset: str = "paderborn", **record
) -> Result:
    """Without a folder: no curves."""
    scores = (
        None if accuracy is None else DomainScores(accuracy, ece, ece, ece15=ece + 0.01, accuracy_uncalibrated=accuracy)
    )
    recipe = made_recipe(method if method in RECIPES else "DANN")
    made = replace(
        bare_record(), scores=Scores(None, scores), settings=with_recipe(bare_record().settings, recipe), **record
    )
    return Result(Cell(dataset, "time", task, method, seed), made, Path("nowhere"))


@cache
def made_recipe(name: str) -> dict:
    return json.loads(json.dumps({"name": name} | RECIPES[name].for_input("time").to_dict()))


def with_recipe(settings: RunSettings, recipe: dict) -> RunSettings:
    return RunSettings({**settings.values, "recipe": recipe})


def grid(methods=EIGHT, tasks=PADERBORN, seeds=5, dataset="paderborn") -> list[Result]:
    """Each method two points above the one before, tasks of different difficulty, a little noise."""
    random = np.random.default_rng(0)
    return [
        result(
            method, task, seed, 0.3 + 0.02 * better + 0.03 * easier + random.normal(0, 0.003),
            0.5 - 0.02 * better + random.normal(0, 0.003), dataset,
        )
        for better, method in enumerate(methods)
        for easier, task in enumerate(tasks)
        for seed in range(seeds)
    ]  # fmt: skip


@cache
def whole() -> list[Table]:
    """The tables of the whole grid, which take a second."""
    return result_tables(grid(), [])


def named(tables: list[Table], name: str) -> Table:
    return next(table for table in tables if table.name == name)


def column(table: Table, heading: str) -> dict[str, TableEntry]:
    """By the words that begin the rows."""
    place = table.header.index(heading)
    return {" ".join(entry.text for entry in row if entry.value is None): row[place] for row in table.rows}


def test_the_main_table_has_the_papers_form_and_the_numbers_of_the_results():
    results = grid()
    table = named(whole(), "paderborn-time-accuracy")
    assert table.header == ("Method", "Average", "Average rank", *(f"{source}→{target}" for source, target in PAIRS))
    assert [row[0].text for row in table.rows] == [name for name in RECIPES if name in EIGHT]
    for method in EIGHT:
        scores = np.array([run.score("target", "accuracy") for run in results if run.cell.method == method])
        by_task = 100 * scores.reshape(12, 5)
        first = column(table, "0→1")[method]
        assert first.text == f"{by_task[0].mean():.1f} ± {by_task[0].std(ddof=1):.1f}"
        assert first.spread == pytest.approx(by_task[0].std(ddof=1))
        assert column(table, "Average")[method].value == pytest.approx(by_task.mean(axis=1).mean())
    assert "over 5 seeds" in table.note
    assert "60 of 60" in table.note
    assert "0 = N15_M07_F10, 1 = N09_M07_F10" in table.note


def test_bold_is_the_best_of_a_column_and_the_equals_of_the_best_rank():
    results = [run for run in grid(("DANN", "AT*")) if run.cell.method == "AT*"]
    results += [run for run in grid(("source-only", "CAT*-CPCS")) if run.cell.method == "source-only"]
    twin = np.random.default_rng(1)
    results += [
        result("CAT*-CPCS", run.cell.task, run.cell.seed, run.score("target", "accuracy") + twin.normal(0, 0.01))
        for run in results
        if run.cell.method == "AT*"
    ]
    comparison = compare(results, "accuracy")
    assert len(comparison.equivalent) == 1, "two alike, one behind"
    table = named(result_tables(results, []), "paderborn-time-accuracy")
    assert {name for name, entry in column(table, "Average rank").items() if entry.bold} == {"AT*", "CAT*-CPCS"}
    for heading in ("0→1", "Average"):
        entries = column(table, heading)
        best = f"{max(entry.value for entry in entries.values()):.1f}"
        assert {name for name, entry in entries.items() if entry.bold} == {
            name for name, entry in entries.items() if entry.text.partition(" ")[0] == best
        }


def test_an_incomplete_grid_shows_dashes_counts_them_and_averages_over_common_tasks():
    results = grid(("DANN", "AT*"), PADERBORN[:3], 3)
    kept = [
        run for run in results
        if not (run.cell.method == "AT*" and (run.cell.task == PADERBORN[0] or run.cell.seed == 2))
    ]  # fmt: skip
    missing = [
        Missing(run.cell, *("failed", "it did") if run.cell.seed else ("not run",))
        for run in results
        if run not in kept
    ]
    missing.append(Missing(Cell("paderborn", "time", PADERBORN[0], "DANN*", 0), "running"))
    table = named(result_tables(kept, missing), "paderborn-time-accuracy")
    assert column(table, "0→1")["AT* –"].text == "–"
    assert column(table, "0→2")["AT* –"].text.endswith(" (2)")
    expected = np.mean([column(table, heading)["DANN"].value for heading in ("0→2", "0→3")])
    assert column(table, "Average")["DANN"].value == pytest.approx(expected)
    assert "6 of 19" in table.note
    assert "(4 failed, 1 not run, 1 running)" in table.note
    assert "2 of 3 tasks: 0→2, 0→3" in table.note
    assert "4 of 9, 5 left out" in table.note


# Published figures


@pytest.mark.parametrize(
    ("dataset", "kind", "metric", "label", "method", "task", "percent"),
    [
        ("paderborn", "time", "accuracy", "paper", "CAT*-Temperature", PADERBORN[0], 52.67),
        ("paderborn", "frequency", "ece", "paper", "CAT*-CPCS", f"{CONDITIONS[1]}→{CONDITIONS[3]}", 15.61),
        ("cwru", "time", "accuracy", "UDTL", "source-only", "load3→load0", 81.1),
        ("hit-sm", "time", "ece15", "authors' code", "CAT*-Temperature", "mfs-600→mfs-1200", 8.46),
    ],
)
def test_published_figures_are_found_by_our_names(dataset, kind, metric, label, method, task, percent):
    assert published_figures(dataset, kind, metric)[label][method, task] == pytest.approx(percent / 100)


def test_published_figures_stand_beside_ours_with_the_difference():
    tables = whole()
    table = named(tables, "paderborn-time-accuracy-published")
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    ours, paper, apart = (rows["DANN", name] for name in ("ours", "paper", "ours − paper"))
    assert paper[3].value == pytest.approx(36.96)
    assert ours[3].value == column(named(tables, "paderborn-time-accuracy"), "0→1")["DANN"].value
    for left, right, difference in zip(ours[2:], paper[2:], apart[2:], strict=True):
        assert difference.value == pytest.approx(left.value - right.value)
    assert (table.header[2], paper[2].value) == ("Average", pytest.approx(46.53, abs=0.011))
    assert rows["DANN", "UDTL"][2].value == pytest.approx(46.82, abs=0.011)
    assert ("AT*", "UDTL") not in rows
    assert "window" in table.note
    assert named(tables, "paderborn-time-ece-published").rows


# Text

HOSTILE = Table(
    "hostile", "A_b & 50 % of #1", r"note with \ and ~ ^ { } $ | <x> → ± − – ✓", ("Method", "a_b→c", "p"),
    (
        (TableEntry("*star|pipe*"), TableEntry("−1.0", -1.0, True), TableEntry("<0.001", 0.0001)),
        (TableEntry("[bracket_\\"), TableEntry("–"), TableEntry("0.5", 0.5, spread=0.25)),
    ),
)  # fmt: skip


def test_latex_is_balanced_escaped_and_even():
    header, *rows = re.findall(r"^(?!%|\\\w+rule|\\begin|\\end)(.+) \\\\$", latex(HOSTILE), re.MULTILINE)
    assert header == r"Method & a\_b→c & p"
    assert rows == [r"{}*star|pipe* & \textbf{−1.0} & <0.001", r"{}[bracket\_\textbackslash  & – & 0.5"]
    for table in result_tables(grid(("AT", "AT*", "50 % of #1 {a} & $x$"), PADERBORN[:3], 2), []):
        text = latex(table)
        body = re.sub(r"^%.*\n|\\[&%$#_{}]", "", text, flags=re.MULTILINE)
        assert body.count("{") == body.count("}")
        assert not re.search("[%#$]", body)
        assert len(re.findall(r" \\\\$", text, re.MULTILINE)) == 1 + len(table.rows)
        assert {line.count("&") for line in body.splitlines() if line.endswith(r" \\")} == {len(table.header) - 1}


def test_csv_has_full_precision_and_deviations():
    rows = list(csv.reader(io.StringIO(csv_text(HOSTILE))))
    assert rows[0] == ["Method", "a_b→c", "p", "p sd"]
    assert rows[1] == ["*star|pipe*", "-1.0", "0.0001", ""]
    assert rows[2] == ["[bracket_\\", "", "0.5", "0.25"]
    table = result_tables(grid(("DANN", "AT*"), PADERBORN[:2], 2), [])[0]
    read = list(csv.DictReader(io.StringIO(csv_text(table))))
    assert float(read[0]["0→1"]) == table.rows[0][3].value
    assert float(read[0]["0→1 sd"]) == table.rows[0][3].spread


def test_without_pandas_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"bearcat\[bench\]"):
        csv_text(HOSTILE)


def test_a_method_is_held_against_published_figures_only_if_it_is_what_its_name_says():
    runs = grid(("DANN", "AT*"), PADERBORN[:2], 2)
    other = with_recipe(bare_record().settings, made_recipe("DANN*"))
    changed = [
        replace(run, record=replace(run.record, settings=other)) if run.cell.method == "AT*" else run for run in runs
    ]
    table = named(result_tables(changed, []), "paderborn-time-accuracy-published")
    assert {row[0].text for row in table.rows} == {"DANN"}
