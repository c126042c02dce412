"""A benchmark's report: the right numbers in the right cells, bold where it is earned, and what is wrong is said."""

from __future__ import annotations

import csv
import html
import re
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from bearcat.bench.report import latex, score_table, write_bench_report
from bearcat.bench.stats import compare
from bearcat.cat.recipes import RECIPES
from bearcat.data.datasets import CONDITIONS
from bearcat.report import Cell, Result, RunState, caveats
from bearcat.report.figures import ReportFigure
from bearcat.report.pages import Table, TableEntry
from tests.conftest import BLANK
from tests.made_records import made_result, scored

PAIRS = list(permutations(range(4), 2))
PADERBORN = [f"{CONDITIONS[source]}→{CONDITIONS[target]}" for source, target in PAIRS]
EIGHT = ("source-only", "DANN", "DANN*", "AT*", "CAT*-Temperature", "CAT*-CPCS", "CAT*-Vector", "CAT*-Matrix")
ATTACK = "<script>document.title='taken'</script>"


@cache
def grid(methods=EIGHT, tasks=tuple(PADERBORN), seeds=5) -> tuple[Result, ...]:
    """Each method two points above the one before, tasks of different difficulty, a little noise."""
    random = np.random.default_rng(0)
    return tuple(
        scored(
            method, task, seed, 0.3 + 0.02 * better + 0.03 * easier + random.normal(0, 0.003),
            0.5 - 0.02 * better + random.normal(0, 0.003),
        )
        for better, method in enumerate(methods)
        for easier, task in enumerate(tasks)
        for seed in range(seeds)
    )  # fmt: skip


def table_of(results, metric="accuracy") -> Table:
    return score_table(results, compare(results, metric))


def column(table: Table, heading: str) -> dict[str, TableEntry]:
    return {row[0].text: row[table.header.index(heading)] for row in table.rows}


def test_the_main_table_has_the_papers_form_and_figures_and_the_numbers_of_the_results():
    table = table_of(grid())
    assert table.header == ("Method", "Average", "Average rank", "Paper", *(f"{one}→{other}" for one, other in PAIRS))
    assert [row[0].text for row in table.rows] == [name for name in RECIPES if name in EIGHT]
    for method in EIGHT:
        scores = np.array([run.score("target", "accuracy") for run in grid() if run.cell.method == method])
        by_task = 100 * scores.reshape(12, 5)
        text = f"{by_task[0].mean():.1f} ± {by_task[0].std(ddof=1):.1f}"
        assert column(table, "0→1")[method].text == text
        assert column(table, "Average")[method].value == pytest.approx(by_task.mean(axis=1).mean())
    assert column(table, "Paper")["DANN"].value == pytest.approx(46.53, abs=0.011)
    assert all(words in table.note for words in ("over 5 seeds", "60 of 60", "0 = N15_M07_F10, 1 = N09_M07_F10"))


def test_bold_are_the_equals_of_the_best_rank():
    results = [run for run in grid() if run.cell.method in ("source-only", "CAT*-CPCS")]
    noise = np.random.default_rng(1)
    results += [
        scored("CAT*-Vector", run.cell.task, run.cell.seed, run.score("target", "accuracy") + noise.normal(0, 0.01))
        for run in results
        if run.cell.method == "CAT*-CPCS"
    ]
    table = table_of(results)
    assert {name for name, entry in column(table, "Average rank").items() if entry.bold} == {"CAT*-CPCS", "CAT*-Vector"}


def test_an_incomplete_grid_shows_dashes_counts_them_and_averages_over_common_cells():
    results = grid(("DANN", "AT*"), tuple(PADERBORN[:3]), 3)
    gone = [
        run for run in results if run.cell.method == "AT*" and (run.cell.task == PADERBORN[0] or run.cell.seed == 2)
    ]
    kept = [run for run in results if run not in gone]
    missing = {run.cell: RunState("failed", "it did") if run.cell.seed else RunState("missing") for run in gone}
    missing[Cell("paderborn", "time", PADERBORN[0], "DANN*", 0)] = RunState("running")
    table = table_of(kept)
    assert column(table, "0→1")["AT*"].text == "–"
    assert column(table, "0→2")["AT*"].text.endswith(" (2)")
    common = [run for run in kept if run.cell.method == "DANN" and run.cell.task != PADERBORN[0] and run.cell.seed < 2]
    expected = np.mean([100 * run.score("target", "accuracy") for run in common])
    assert column(table, "Average")["DANN"].value == pytest.approx(expected)
    assert "4 of 9, 5 left out" in table.note
    (incomplete,) = [caveat.text for caveat in caveats(kept, missing) if caveat.kind == "Incomplete"]
    assert all(words in incomplete for words in ("6 of 19", "(4 failed, 1 missing, 1 running)"))


def test_a_table_in_latex_is_escaped_and_no_cell_is_an_argument():
    rows = ((TableEntry("*a|b*"), TableEntry("−1.0", -1.0)), (TableEntry("[c_\\"), TableEntry("5 %")))
    lines = latex(Table("t", "A_b\nc", "a\nnote", ("Method", "a_b→c"), rows)).splitlines()
    assert lines[1] == "% A_b c. a note"
    assert [line.split(" \\\\")[0] for line in lines if "&" in line] == [
        r"Method & a\_b→c", r"{}*a|b* & {}−1.0", r"{}[c\_\textbackslash  & {}5 \%",
    ]  # fmt: skip


def made_grid(folder: Path):
    """Four methods × two tasks × three seeds, two of the methods with the other input too: some trouble, two gaps."""
    results, missing = list[Result](), dict[Cell, RunState]()
    for kind in ("time", "frequency"):
        for m, method in enumerate(("source-only", "DANN", "CAT*-Temperature", "DANN*")):
            for t, task in enumerate(("600rpm→900rpm", "900rpm→600rpm")):
                for seed in range(3) if kind == "time" or m in (0, 3) else ():
                    cell = Cell("rig", kind, task, method, seed)
                    if (method, t, seed) == ("DANN*", 1, 2):
                        failed = RunState("failed", "InputError: no recordings")
                        missing[cell] = failed if kind == "time" else RunState("missing")
                        continue
                    accuracy = (0.6, 0.55, 0.9, 0.7)[m] + 0.02 * seed
                    changes = {"collapsed": True} if (method, t, seed) == ("DANN", 0, 1) else {}
                    classes = ("healthy", "inner", ATTACK)
                    results.append(made_result(folder / f"{kind}{m}{t}{seed}", cell, accuracy, classes, **changes))
    return results, missing


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With blank figures."""
    folder = tmp_path_factory.mktemp("text")
    results, missing = made_grid(folder / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReportFigure, "render", lambda *_: BLANK)
        return write_bench_report("A rig, four methods", results, missing, folder / "out")


def test_the_page_warns_of_everything_that_is_wrong_and_escapes_names_from_data(report: Path):
    page = report.read_text(encoding="utf-8")
    text = html.unescape(re.sub("<[^>]+>", "", page)).replace("\N{NO-BREAK SPACE}", " ")
    for words in ("1 of 24", "InputError: no recordings", "In 1 of 23 runs", "DANN, 600rpm→900rpm, time, seed 1"):
        assert words in text, words
    assert ("&lt;script&gt;document.title" in page, ATTACK in page) == (True, False)


def test_the_runs_are_a_tidy_table_and_a_second_report_leaves_nothing_of_the_first(report: Path, blank_figures):
    out, results = report.parent, made_grid(report.parent / "again")[0]
    rows = list(csv.DictReader((out / "runs.csv").read_text(encoding="utf-8").splitlines()))
    for row, run in zip(rows, sorted(results, key=lambda run: run.cell), strict=True):
        assert float(row["target_accuracy"]) == pytest.approx(run.score("target", "accuracy"))
        assert (row["method"], int(row["seed"]), f"{row['source']}→{row['target']}") == (
            run.cell.method, run.cell.seed, run.cell.task,
        )  # fmt: skip
    before = {path.name for path in out.glob("[tf]*/*")}
    write_bench_report("One method", [run for run in results if run.cell.method == "source-only"], {}, out)
    after = {path.name for path in out.glob("[tf]*/*")}
    assert "rig-time-accuracy-tests.tex" in before - after
    assert not any("DANN" in name for name in after)
