"""The pages of a benchmark and of a run, read as text; tests/acceptance reads them in a browser."""

from __future__ import annotations

import csv
import html
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bearcat.errors import InputError
from bearcat.report.pages import write_bench_report, write_run_page
from bearcat.report.results import Cell, Missing, read_result
from bearcat.report.typeset import ReportFigure
from tests.conftest import BLANK
from tests.made_records import made_diagnosis, made_result

ATTACK = "<script>document.title='taken'</script>"
METHODS = ("source-only", "DANN", "CAT*-Temperature", "DANN*")


def made_grid(folder: Path):
    """Four methods × two tasks × three seeds, two of the methods with the other input too: some trouble, two gaps."""
    results, missing = [], []
    for kind in ("time", "frequency"):
        for m, method in enumerate(METHODS):
            for t, task in enumerate(("600rpm→900rpm", "900rpm→600rpm")):
                for seed in range(3) if kind == "time" or m in (0, 3) else ():
                    cell = Cell("rig", kind, task, method, seed)
                    if (method, t, seed) == ("DANN*", 1, 2):
                        missing.append(
                            Missing(cell, "failed", "InputError: no recordings")
                            if kind == "time"
                            else Missing(cell, "not run")
                        )
                        continue
                    accuracy = (0.6, 0.55, 0.9, 0.7)[m] + 0.02 * seed  # DANN below source-only everywhere
                    changes = {}
                    if (method, t, seed) == ("CAT*-Temperature", 0, 0):
                        changes["calibration"] = {"temperature": 100.0, "at_bound": True}
                    if (method, t, seed) == ("DANN", 0, 1):
                        changes["collapsed"] = True
                    classes = ("healthy", "inner", ATTACK)
                    results.append(made_result(folder / f"{kind}{m}{t}{seed}", cell, accuracy, classes, **changes))
    return results, missing


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With blank figures."""
    folder = tmp_path_factory.mktemp("text")
    results, missing = made_grid(folder / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReportFigure, "render", lambda _, kind: BLANK[kind])
        return write_bench_report("A rig, four methods", results, missing, folder / "out")


def plain(text: str) -> str:
    """With breaking spaces; the page has others before its percent signs."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_report_warns_of_everything_that_is_wrong_and_escapes_names_from_data(report: Path):
    page = report.read_text(encoding="utf-8")
    text = plain(html.unescape(re.sub("<[^>]+>", "", page)))
    for words in (
        "2 of 36", "(1 failed, 1 not run)", "DANN*, 900rpm→600rpm, time, seed 2: failed: InputError: no recordings",
        "DANN on 600rpm→900rpm: 56.7 against 61.7 % (3 seeds)", "Temperature at its bound", "Collapsed",
        "CAT*-Temperature, 600rpm→900rpm, time, seed 0",
    ):  # fmt: skip
        assert words in text, words
    assert "CAT*-Temperature on" not in text, "no negative transfer where there is none"
    assert "Mixed versions" not in text
    assert "&lt;script&gt;document.title" in page
    assert ATTACK not in page
    assert page.count("5 of 6, 1 left out") == 2, "the rule of incomplete grids, for time and for frequency"


@pytest.mark.usefixtures("blank_figures")
def test_a_run_s_page_has_the_decision_then_recordings_and_research_last(tmp_path: Path):
    names = ["b/0.wav", "b/1.wav"]
    rows = [made_diagnosis(name).to_dict() for name in names]
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "CAT*-Temperature", 0), 0.9, recordings=rows)
    page = plain(html.unescape(write_run_page(result.folder).read_text(encoding="utf-8")))
    places = [page.index(part) for part in (
        "<h2>Recommendation</h2>", replace(result.record.decision, expected=None).sentence,
        "2 recordings: 2 alarm.", *(f"<td>{name}</td>" for name in names),
        "<h2>For researchers</h2>", result.record.decision.sentence, "<h2>What was run</h2>",
    )]  # fmt: skip
    assert places == sorted(places)
    header, body = page[page.index("<header>") : page.index("<nav")], page[page.index("<main>") : places[-3]]
    first, research = header + body, page[places[-3] :]
    assert "Expected accuracy" not in first
    assert f">{100 * result.record.estimates.expected.value:.1f}<" in research
    for word in ("Temperature</t", "ECE", "verdict"):
        assert word not in first.replace("CAT*-Temperature", "")


@pytest.mark.usefixtures("blank_figures")
def test_the_page_of_a_run_without_target_labels_says_so_and_shows_the_confidence(tmp_path: Path):
    cell = Cell("folder", "time", "old→new", "CAT*-Temperature", 0)
    result = made_result(tmp_path / "run", cell, labelled=False)
    header, *rows = (tmp_path / "run" / "curves.csv").read_text().splitlines()
    known = [i for i, name in enumerate(header.split(",")) if not name.startswith("target_")]
    lines = [",".join(line.split(",")[i] for i in known) for line in (header, *rows)]
    (tmp_path / "run" / "curves.csv").write_text("\n".join(lines))
    result.record.write(tmp_path / "run")
    text = plain(write_run_page(tmp_path / "run").read_text())
    assert "The target has no labels" in text
    assert f">{100 * result.record.estimates.mean_confidence:.1f}<" in text
    assert "target accuracy</th>" not in text
    assert "Confusion matrices" not in text
    decision = text.index(html.escape(replace(result.record.decision, expected=None).sentence, quote=False))
    assert decision < text.index("<h2>For researchers</h2>"), "the decision first"


@pytest.mark.parametrize("name", ["curves.csv", "predictions.csv", "record.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str):
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "DANN", 0))
    text = (result.folder / name).read_text()
    (result.folder / name).write_text(text.replace("0.", "1.", 1))
    with pytest.raises(InputError, match=f"{name}: is damaged"):
        read_result(result.folder)


def test_a_benchmark_of_which_nothing_is_finished_has_a_page_that_says_so(tmp_path: Path):
    cells = [Cell("rig", "time", "a→b", "DANN", seed) for seed in range(2)]
    text = write_bench_report("Soon", [], [Missing(cell, "not run") for cell in cells], tmp_path).read_text()
    assert "No run is finished yet" in text
    assert "(2 not run)" in text


def test_without_jinja_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made_result(tmp_path / "run", Cell("rig", "time", "a→b", "source-only", 0))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[report\]'"):
        write_run_page(tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.usefixtures("blank_figures")
def test_a_second_report_leaves_nothing_of_the_first(tmp_path: Path):
    results = [
        made_result(tmp_path / f"{method}{seed}", Cell("rig", "time", "a→b", method, seed))
        for method in ("source-only", "DANN")
        for seed in range(2)
    ]
    out = tmp_path / "out"
    write_bench_report("Two methods", results, [], out)
    (out / "tables" / "mine.csv").write_text("kept")
    before = {path for path in out.rglob("*") if path.is_file()}
    write_bench_report("One method", results[:2], [], out)
    after = {path for path in out.rglob("*") if path.is_file()}
    assert out / "tables" / "rig-time-accuracy-tests.csv" in before - after
    assert not any("DANN" in path.name for path in after)
    assert (out / "tables" / "mine.csv").read_text() == "kept"


@pytest.mark.usefixtures("blank_figures")
def test_the_runs_are_a_tidy_table_for_other_programs(tmp_path):
    cells = [Cell("rig", "time", "a→b", method, seed) for method in ("DANN", "CAT*-Temperature") for seed in (0, 1)]
    results = [made_result(tmp_path / str(place), cell, 0.5 + 0.1 * place) for place, cell in enumerate(cells)]
    write_bench_report("Tidy", results, [], tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / "runs.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["method"], row["source"], row["target"]) for row in rows[:1]] == [("CAT*-Temperature", "a", "b")]
    for row, result in zip(rows, sorted(results, key=lambda result: result.cell), strict=True):
        assert float(row["target_accuracy"]) == pytest.approx(result.score("target", "accuracy"))
        assert int(row["seed"]) == result.cell.seed
    assert {row["identity"] for row in rows} == {result.record.data.identity for result in results}
