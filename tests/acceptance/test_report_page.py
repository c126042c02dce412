"""The pages of reports in a real browser, and printed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bearcat.bench.report import write_bench_report
from bearcat.diagnosis.recording import Diagnoses
from bearcat.report.pages import write_recordings_page
from tests.opened import Opened
from tests.test_bench_report import ATTACK, made_grid
from tests.test_page import found, plant  # noqa: F401 (fixtures)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    results, missing = made_grid(folder / "runs")
    results = [run for run in results if run.cell.input == "time"]
    missing = {cell: state for cell, state in missing.items() if cell.input == "time"}
    return write_bench_report("A rig, four methods", results, missing, folder / "out")


def test_the_page_is_quiet_asks_nobody_shows_every_figure_and_runs_no_name(browser, report: Path):
    with Opened(browser, report) as opened:
        sizes = opened.page.eval_on_selector_all(
            "img", "all => all.map(image => [image.complete, image.naturalWidth, image.alt])"
        )
        assert opened.errors == []
        assert [request for request in opened.requests if not request.startswith(("file:", "data:"))] == []
        assert len(sizes) == len(list((report.parent / "figures").glob("*.svg"))) > 5
        assert all(complete and width > 100 and alt for complete, width, alt in sizes)
        assert opened.page.title() == "A rig, four methods"
        assert opened.page.locator("script").count() == 1
        assert ATTACK in opened.page.locator("body").inner_text(), "the class's name is shown as it is"
        lost = "[...document.querySelectorAll('nav a')].filter(a => !document.getElementById(a.hash.slice(1))).length"
        assert opened.page.evaluate(lost) == 0


def test_thirty_recordings_are_shown_and_printed_on_two_pages(browser, found: Diagnoses, tmp_path: Path):  # noqa: F811
    by_name = {Path(each.recording).stem: each for each in found}
    names = ["outer"] * 22 + ["dead"] * 3 + ["broken"] + ["healthy"] * 4
    thirty = [
        replace(by_name[name], recording=f"pump-{number:02d}/{name}.wav", machine=f"pump-{number:02d}")
        for number, name in enumerate(names)
    ]
    thirty[0] = replace(thirty[0], recording=ATTACK)
    with Opened(browser, write_recordings_page(Diagnoses(thirty), tmp_path / "a.html", "Plant")) as page:
        assert page.errors == []
        assert page.page.title() == "Plant"
        assert page.page.locator("td", has_text=ATTACK).count() == 1
        assert min(page.page.eval_on_selector_all("img", "all => all.map(image => image.naturalWidth)")) > 100
        printed = page.page.pdf(prefer_css_page_size=True)
        for width in (1200, 390):
            page.page.set_viewport_size({"width": width, "height": 800})
            cut = "[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)"
            assert not page.page.evaluate(cut), "no table is cut"
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 2
