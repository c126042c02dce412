"""The report page, read by a real browser where there is one (`make browser`), and as text."""

from __future__ import annotations

import csv
import errno
import html
import os
import re
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from bearcat.errors import InputError
from bearcat.report.pages import write_bench_report, write_run_page
from bearcat.report.results import Cell, Missing, caveats, different_versions, read_result
from bearcat.report.tables import result_tables
from bearcat.report.typeset import ReportFigure, Section, Table, TableEntry, templates, write_page
from tests import opened
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
                            Missing(cell, "failed: InputError: no recordings" if kind == "time" else "not run")
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
    folder = tmp_path_factory.mktemp("bench")
    results, missing = ([run for run in found if run.cell.input == "time"] for found in made_grid(folder / "runs"))
    return write_bench_report("A rig, four methods", results, missing, folder / "out")


@pytest.fixture(scope="module")
def text_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with blank figures, which a browser opens in a fraction of the time."""
    folder = tmp_path_factory.mktemp("text")
    results, missing = made_grid(folder / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReportFigure, "render", lambda _, kind: BLANK[kind])
        return write_bench_report("A rig, four methods", results, missing, folder / "out")


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """The tables of twelve tasks on a page; figures are drawn elsewhere."""
    domains = ("600rpm", "900rpm", "1200rpm", "1500rpm")
    cells = [
        Cell("rig", "time", f"{source}→{target}", method, 0)
        for method in ("source-only", "DANN")
        for source, target in permutations(domains, 2)
    ]
    tables = result_tables([made_result(tmp_path / str(number), cell) for number, cell in enumerate(cells)], [])
    narrow = Table("narrow", "Narrow", "", ("setting", "value"), ((TableEntry("a"), TableEntry("b")),))
    section = Section("Tables", tables=(*tables, narrow))
    return write_page(tmp_path / "report.html", templates(), "Wide", "", (), (section,))


class Opened(opened.Opened):
    """A report, which is given nothing from outside."""

    def __init__(self, browser, path: Path, **options) -> None:
        super().__init__(browser, path.as_uri(), re.compile("^(?!file:|data:)"), **options)


def plain(text: str) -> str:
    """With breaking spaces; the page has others before its percent signs."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def column(page, table: int, number: int) -> list[str]:
    return page.locator("table").nth(table).locator(f"tbody tr td:nth-child({number})").all_inner_texts()


def test_the_page_is_quiet_asks_nobody_and_shows_every_figure(browser, report: Path):
    with Opened(browser, report) as opened:
        sizes = opened.page.eval_on_selector_all(
            "img", "all => all.map(image => [image.complete, image.naturalWidth, image.alt])"
        )
        assert opened.errors == []
        assert [request for request in opened.requests if not request.startswith(("file:", "data:"))] == []
        assert len([request for request in opened.requests if request.startswith("file:")]) == 1
        files = {path.stem for path in (report.parent / "figures").glob("*.svg")}
        assert len(sizes) == len(files) > 8
        assert all(complete and width > 100 and alt for complete, width, alt in sizes)
        assert opened.page.title() == "A rig, four methods"


def test_names_from_data_are_text_and_never_run(browser, text_report: Path):
    with Opened(browser, text_report) as opened:
        assert opened.page.title() == "A rig, four methods"
        assert opened.page.locator("script").count() == 1
        assert ATTACK in opened.page.locator("body").inner_text(), "the class's name is shown as it is"


def test_tables_sort_both_ways_by_number_and_by_word_with_mouse_and_keyboard(browser, text_report: Path):
    with Opened(browser, text_report) as opened:
        page = opened.page
        page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
        titles = page.locator(".scroll").evaluate_all("all => all.map(box => box.getAttribute('aria-label'))")
        runs = next(number for number, title in enumerate(titles) if title.startswith("All "))
        heads = page.locator("table").nth(runs).locator("thead th")
        names = [text.split()[0] + " " + " ".join(text.split()[1:]) for text in heads.all_inner_texts()]
        accuracy, method = (
            next(i for i, text in enumerate(names) if text.strip() == name) for name in ("target accuracy", "method")
        )
        before = column(page, runs, method + 1)
        heads.nth(accuracy).locator("button").click()
        values = [float(text) for text in column(page, runs, accuracy + 1)]
        assert values == sorted(values)
        assert len(set(values)) > 3
        assert heads.nth(accuracy).get_attribute("aria-sort") == "ascending"
        heads.nth(accuracy).locator("button").press("Enter")
        values = [float(text) for text in column(page, runs, accuracy + 1)]
        assert values == sorted(values, reverse=True)
        assert heads.nth(accuracy).get_attribute("aria-sort") == "descending"
        heads.nth(method).locator("button").press("Space")
        words = column(page, runs, method + 1)
        assert words == page.evaluate(
            "all => [...all].sort((a, b) => a.localeCompare(b, undefined, {numeric: true}))", words
        )
        assert sorted(words) == sorted(before)
        assert heads.nth(accuracy).get_attribute("aria-sort") is None
        temperature = next(i for i, text in enumerate(names) if text.strip() == "T")
        for _ in range(2):  # no temperature is neither small nor large
            heads.nth(temperature).locator("button").click()
            values = column(page, runs, temperature + 1)
            filled = [text for text in values if text != "–"]
            assert 0 < len(filled) < len(values)
            assert values[: len(filled)] == filled


def test_the_page_never_scrolls_sideways(browser, report: Path):
    with Opened(browser, report) as opened:
        opened.page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
        boxes = opened.page.locator(".scroll")
        for width in (1280, 768, 375):
            opened.page.set_viewport_size({"width": width, "height": 800})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = boxes.evaluate_all("all => all.map(box => [box.scrollWidth, box.clientWidth])")
        assert any(inner > outer for inner, outer in sizes), "tables scroll in their own boxes"


def test_averages_and_ranks_stand_first_and_what_is_hidden_is_hinted_at(browser, wide: Path):
    with Opened(browser, wide, viewport={"width": 1200, "height": 800}) as opened:
        page = opened.page
        titles = page.locator(".scroll").evaluate_all("all => all.map(box => box.getAttribute('aria-label'))")
        place = next(number for number, title in enumerate(titles) if title.startswith("Accuracy on the target: "))
        box = page.locator(".scroll").nth(place)
        heads = [" ".join(text.split()) for text in box.locator("th").all_inner_texts()]
        assert heads[:3] == ["Method", "Average", "Average rank"]
        assert len(heads) == 3 + 12
        inside = box.evaluate(
            "box => [...box.querySelectorAll('th')].map("
            "heading => heading.getBoundingClientRect().right <= box.getBoundingClientRect().right)"
        )
        assert inside[:3] == [True] * 3
        assert not all(inside), "twelve tasks do not fit"
        hints = page.locator(".scroll + .hint")
        assert hints.nth(place).is_visible()
        assert not hints.last.is_visible(), "where all fits, nothing is said"
        box.evaluate("box => box.scrollLeft = 300")
        page.wait_for_function("box => box.classList.contains('scrolled')", arg=box.element_handle())
        first, left = box.evaluate(
            "box => [box.querySelector('td').getBoundingClientRect().left, box.getBoundingClientRect().left]"
        )
        assert first - left < 3, "the method's name stays"


def test_it_is_dark_where_people_want_it_dark_and_figures_stay_on_white(browser, report: Path):
    colours = {}
    with Opened(browser, report) as opened:
        for scheme in ("light", "dark"):
            opened.page.emulate_media(color_scheme=scheme)
            colours[scheme] = opened.page.evaluate(
                "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
                " getComputedStyle(document.querySelector('.frame')).backgroundColor]"
            )
    light, dark = (
        [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours[scheme]] for scheme in ("light", "dark")
    )
    assert light[0] > 700
    assert light[1] < 150
    assert dark[0] < 100
    assert dark[1] > 600
    assert light[2] == dark[2] == 3 * 255


def test_it_can_be_read_without_its_script(browser, text_report: Path):
    with Opened(browser, text_report, java_script_enabled=False) as opened:
        assert opened.page.locator("table").first.is_visible()
        assert opened.page.locator("th button").count() == 0
        assert opened.page.locator("nav a").count() > 10


def test_links_of_the_contents_lead_somewhere(browser, text_report: Path):
    with Opened(browser, text_report) as opened:
        lost = opened.page.evaluate(
            "[...document.querySelectorAll('nav a')].filter(a => !document.getElementById(a.hash.slice(1))).length"
        )
        doubled = opened.page.evaluate(
            "(ids => ids.length - new Set(ids).size)([...document.querySelectorAll('[id]')].map(element => element.id))"
        )
        assert (lost, doubled) == (0, 0)


def test_the_report_warns_of_everything_that_is_wrong(browser, text_report: Path):
    with Opened(browser, text_report) as opened:
        opened.page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
        warnings = plain("\n".join(opened.page.locator(".warnings").all_inner_texts()))
    assert "2 of 36" in warnings
    assert "(1 failed, 1 not run)" in warnings
    assert "DANN*, 900rpm→600rpm, time, seed 2: failed: InputError: no recordings" in warnings
    assert "DANN on 600rpm→900rpm: 56.7 against 61.7 % (3 seeds)" in warnings
    assert "CAT*-Temperature on" not in warnings, "no negative transfer where there is none"
    assert "Temperature at its bound" in warnings
    assert "CAT*-Temperature, 600rpm→900rpm, time, seed 0" in warnings
    assert "Collapsed" in warnings
    assert "Mixed versions" not in warnings


@pytest.mark.usefixtures("blank_figures")
def test_a_comparison_says_on_what_data_it_rests(tmp_path: Path):
    results = [made_result(tmp_path / str(seed), Cell("rig", "time", "a→b", "DANN", seed)) for seed in range(2)]
    more = {"source_train": 20, "source_test": 10, "target_train": 20, "target_test": 10}
    results[1] = replace(results[1], record=replace(results[1].record, data=replace(results[1].record.data, **more)))
    before = results[0].record.data
    page = write_bench_report("Data", results, [], tmp_path / "out").read_text(encoding="utf-8")
    for words in ("3 classes (healthy, inner, outer)", "1024 samples", f"20 to {before.source_train} windows",
                  f"10 to {before.source_test} and 10 to {before.target_test}", "Epochs: 6."):  # fmt: skip
        assert words in page


def test_the_rule_of_incomplete_grids_is_printed_once_in_a_section_and_in_every_file_that_needs_it(text_report: Path):
    rule = "5 of 6, 1 left out"
    assert text_report.read_text(encoding="utf-8").count(rule) == 2, "the sections of time and of frequency"
    for name in ("accuracy", "ece"):
        text = (text_report.parent / "tables" / f"rig-time-{name}.md").read_text(encoding="utf-8")
        assert rule in text


def test_no_line_begins_with_a_percent_sign_and_dashes_stand_under_numbers(browser, text_report: Path):
    with Opened(browser, text_report) as opened:
        captions = opened.page.locator("figcaption, .warnings, section > p").all_text_contents()
        assert not [caption for caption in captions if " %" in caption]
        sides = opened.page.eval_on_selector_all(
            "td", "all => all.filter(cell => cell.textContent === '–').map(cell => getComputedStyle(cell).textAlign)"
        )
        numeric = opened.page.locator("td.number", has_text=re.compile("^–$")).count()
        assert numeric == sides.count("right") > 0


def test_tables_and_figures_are_files_too(text_report: Path):
    tables = {path.stem for path in (text_report.parent / "tables").iterdir()}
    for stem in tables:
        assert {path.suffix for path in (text_report.parent / "tables").glob(f"{stem}.*")} == {".md", ".tex", ".csv"}
    figures = {path.stem for path in (text_report.parent / "figures").iterdir()}
    for stem in figures:
        assert (text_report.parent / "figures" / f"{stem}.png").exists()
        assert (text_report.parent / "figures" / f"{stem}.svg").exists()
    for kind in ("time", "frequency"):
        for name in (
            "ranks-accuracy",
            "ranks-ECE",
            "curves",
            "pseudo-labels",
            "confusion",
            "reliability-CATstar-Temperature",
        ):
            teaching = name == "pseudo-labels" or "CAT" in name
            assert (f"rig-{kind}-{name}" in figures) == (kind == "time" or not teaching), name


def test_a_page_of_figures_stays_small(report: Path):
    assert report.stat().st_size < 3_000_000


def test_versions_that_differ_are_named(tmp_path: Path):
    versions = {"bearcat": "1", "result": "9", "python": "3", "torch": "2", "numpy": "2"}
    first = made_result(tmp_path / "a", Cell("rig", "time", "a→b", "DANN", 0))
    other = made_result(tmp_path / "b", Cell("rig", "time", "a→b", "AT*", 0), versions=versions, device="NVIDIA H200")
    third = made_result(tmp_path / "c", Cell("rig", "time", "a→b", "CAT*-Temperature", 0))
    found = {caveat.kind: caveat for caveat in caveats([first, other, third])}
    assert "versions.result: 1 (2 runs), 9 (1 run)" in found["Mixed versions"].items
    assert "device: cpu (2 runs), NVIDIA H200 (1 run)" in found["Mixed versions"].items
    assert "One seed" in found


def test_failed_runs_are_named(tmp_path: Path):
    failed = made_result(tmp_path / "a", Cell("rig", "time", "a→b", "DANN", 3), failed=True)
    found = {caveat.kind: caveat for caveat in caveats([failed])}
    assert found["Failed"].items == ("DANN, a→b, time, seed 3",)


def test_the_page_of_a_run_shows_its_settings_and_the_run_beside_it(browser, tmp_path: Path):
    made_result(tmp_path / "run", Cell("simulated", "frequency", "N15→N09", "CAT*-Temperature", 4), 0.9)
    made_result(
        tmp_path / "run" / "beside-source-only", Cell("simulated", "frequency", "N15→N09", "source-only", 4), 0.95
    )
    path = write_run_page(tmp_path / "run")
    assert path == tmp_path / "run" / "report.html"
    with Opened(browser, path) as opened:
        assert opened.errors == []
        assert opened.page.locator("h1").inner_text() == "Diagnosis of N09"
        assert "Negative transfer" not in opened.page.locator("body").inner_text(), "research is behind a click"
        for name in ("For researchers", "What was run"):
            opened.page.locator("summary", has_text=name).click()
        text = plain(opened.page.locator("body").inner_text())
        for part in ("90.0", "simulated, frequency input, seed 4", "healthy, inner, outer",
                     "Negative transfer", "CAT*-Temperature on N15→N09: 90.0 against 95.0 % (1 seed)"):  # fmt: skip
            assert part in text, part
        opened.page.eval_on_selector_all("details", "all => all.forEach(details => details.open = true)")
        text = opened.page.locator("body").inner_text()
        assert "recipe.ingredients.labels.teacher.momentum" in text
        assert "Settings of source-only" in text
        widths = opened.page.eval_on_selector_all("img", "all => all.map(image => image.naturalWidth)")
        assert len(widths) == 5
        assert min(widths) > 100


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


@pytest.mark.usefixtures("blank_figures")
def test_a_warning_of_the_record_is_on_the_page_escaped(tmp_path: Path):
    made_result(
        tmp_path / "run", Cell("folder", "time", "a→b", "DANN", 0), warnings=[f"class '{ATTACK}' is never predicted"]
    )
    text = write_run_page(tmp_path / "run").read_text()
    assert "&lt;script&gt;document.title" in text
    assert ATTACK not in text


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


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "out").write_text("a file, where a folder should be")
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "out"))):
        write_bench_report("Nowhere", [], [Missing(Cell("rig", "time", "a→b", "DANN", 0), "not run")], tmp_path / "out")


def test_a_disk_that_is_full_or_closed_is_one_sentence_and_leaves_no_draft(tmp_path: Path, monkeypatch):
    missing = [Missing(Cell("rig", "time", "a→b", "DANN", 0), "not run")]
    earlier = write_bench_report("Earlier", [], missing, tmp_path).read_bytes()

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("bearcat.storage.os.fsync", no_space)
        with pytest.raises(InputError, match=r"report.html: cannot be written .*No space left"):
            write_bench_report("Full", [], missing, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == earlier
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "files.txt"}, "no draft is left"
    (tmp_path / "files.txt").write_text("tables/old.md")
    (tmp_path / "tables" / "old.md").mkdir(parents=True)  # which cannot be removed as a file can
    with pytest.raises(InputError, match="cannot be written .*choose another folder"):
        write_bench_report("Closed", [], missing, tmp_path)


@pytest.mark.usefixtures("blank_figures")
def test_datasets_whose_names_make_the_same_file_name_get_files_of_their_own(tmp_path: Path):
    cells = [Cell(name, "time", "a→b", "DANN", seed) for name in ("My Data", "my-data") for seed in range(2)]
    results = [made_result(tmp_path / f"{number}", cell) for number, cell in enumerate(cells)]
    write_bench_report("Twice", results, [], tmp_path / "out")
    tables = {path.name for path in (tmp_path / "out" / "tables").iterdir()}
    assert {"my-data-time-accuracy.md", "my-data-time-accuracy-2.md"} <= tables


@pytest.mark.usefixtures("blank_figures")
def test_a_run_is_charged_its_share_of_its_stack_and_the_precision_is_shown(tmp_path: Path):
    results = [
        made_result(
            tmp_path / f"{seed}", Cell("rig", "time", "a→b", "DANN", seed), seconds=600.0, stack=2,
            precision=("tf32", "bfloat16")[seed], kernels={"encoder": "triton"},
        )
        for seed in range(2)
    ]  # fmt: skip
    page = write_bench_report("Two", results, [], tmp_path / "out").read_text(encoding="utf-8")
    assert "10.0 minutes" in page
    mixed = next(caveat for caveat in caveats(results, []) if caveat.kind == "Mixed versions")
    assert mixed.items == ("precision: tf32 (1 run), bfloat16 (1 run)",)


@pytest.mark.parametrize("methods", [1, 2])
@pytest.mark.usefixtures("blank_figures")
def test_a_small_report_speaks_of_one_thing_as_of_one(tmp_path: Path, methods: int):
    cells = [Cell("rig", "time", "a→b", method, 0) for method in ("CAT*-Temperature", "source-only")[:methods]]
    results = [made_result(tmp_path / str(number), cell) for number, cell in enumerate(cells)]
    missing = [Missing(Cell("rig", "time", "a→b", "DANN", 0), "not run")] if methods == 2 else []
    page = write_bench_report("Small", results, missing, tmp_path / "out").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r'src="[^"]*"', "", page.partition("<body>")[2])))
    assert not re.findall(r"\b1 (?:runs|tasks|seeds|methods|cells|pairs|blocks|rows)\b(?! planned)", text)
    assert not re.findall(r"(?:over|of) 1 seed\b", text)
    assert ("Average rank" in text) == ("Friedman" in text) == (methods > 1)
    assert "standard deviation" not in text


@pytest.mark.usefixtures("blank_figures")
def test_a_second_report_leaves_nothing_of_the_first(tmp_path: Path):
    results = [
        made_result(tmp_path / f"{method}{seed}", Cell("rig", "time", "a→b", method, seed))
        for method in ("source-only", "DANN")
        for seed in range(2)
    ]
    out = tmp_path / "out"
    write_bench_report("Two methods", results, [], out)
    (out / "tables" / "mine.md").write_text("kept")
    before = {path for path in out.rglob("*") if path.is_file()}
    write_bench_report("One method", results[:2], [], out)
    after = {path for path in out.rglob("*") if path.is_file()}
    assert out / "tables" / "rig-time-accuracy-tests.md" in before - after
    assert not any("DANN" in path.name for path in after)
    assert (out / "tables" / "mine.md").read_text() == "kept"


@pytest.mark.usefixtures("blank_figures")
def test_a_report_by_other_scores_has_their_tables_tests_and_figures_and_no_others(tmp_path):
    cells = [Cell("rig", "time", task, method, 0) for task in ("a→b", "b→a") for method in ("source-only", "DANN")]
    results = [made_result(tmp_path / str(place), cell, 0.5 + 0.1 * place) for place, cell in enumerate(cells)]
    write_bench_report("By NLL", results, [], tmp_path / "out", metrics=("nll", "brier"), formats=("svg",))
    tables = {path.name for path in (tmp_path / "out" / "tables").iterdir()}
    for metric in ("nll", "brier"):
        assert {f"rig-time-{metric}{end}.tex" for end in ("", "-ranking", "-tests")} <= tables
    assert "rig-time-runtime.md" in tables
    assert not any("accuracy" in name or "ece" in name for name in tables)
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"rig-time-ranks-NLL.svg", "rig-time-bars-Brier-score.svg"} <= figures
    assert {path.rpartition(".")[2] for path in figures} == {"svg"}
    caption = re.search(r"\\caption\{(.*)\}", (tmp_path / "out" / "tables" / "rig-time-nll.tex").read_text())
    assert caption is not None
    assert caption[1].count(". ") == 0
    with pytest.raises(InputError, match="--metric"):
        write_bench_report("By F1", results, [], tmp_path / "f1", metrics=("macro-f1",))


def test_kernels_of_a_part_that_a_recipe_lacks_are_no_difference(tmp_path):
    ran = {"source-only": {"encoder": "native"}, "DANN": {"encoder": "native", "alignment": "plain"}}
    cells = [Cell("rig", "time", "a→b", method, 0) for method in ran]
    results = [made_result(tmp_path / cell.method, cell, kernels=ran[cell.method]) for cell in cells]
    assert different_versions(results) == []
    other = made_result(tmp_path / "other", cells[1], kernels={"encoder": "plain"})
    (caveat,) = different_versions([*results, other])
    assert "kernels.encoder" in caveat.items[0]


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
