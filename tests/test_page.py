"""The page of a run, read as text; tests/acceptance reads pages in a browser."""

from __future__ import annotations

import html
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bearcat.errors import InputError
from bearcat.report import Cell
from bearcat.report.pages import write_run_page
from tests.made_records import made_diagnosis, made_result


def plain(text: str) -> str:
    """With breaking spaces; the page has others before its percent signs."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.usefixtures("blank_figures")
def test_a_run_s_page_has_the_decision_then_recordings_and_research_last(tmp_path: Path):
    names = ["b/0.wav", "b/1.wav"]
    rows = [made_diagnosis(name).to_dict() for name in names]
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "CAT*-Temperature", 0), 0.9, recordings=rows)
    page = plain(html.unescape(write_run_page(result.folder).read_text(encoding="utf-8")).replace("<wbr>", ""))
    places = [page.index(part) for part in (
        "<h2>Recommendation</h2>", replace(result.record.decision, expected=None).sentence,
        "<h2>Recordings</h2>", *(f">{name}</td>" for name in names),
        "<h2>For researchers</h2>", result.record.decision.sentence, "<h2>What was run</h2>",
    )]  # fmt: skip
    assert places == sorted(places)
    header, body = page[page.index("<header>") : page.index("</header>")], page[page.index("<main>") : places[-3]]
    first, research = header + body, page[places[-3] :]
    assert "Expected accuracy" not in first
    assert f">{100 * result.record.estimates.expected.value:.1f}<" in research
    for word in ("Temperature</t", "ECE", "verdict"):
        assert word not in first.replace("CAT*-Temperature", "")


@pytest.mark.usefixtures("blank_figures")
def test_the_page_of_a_run_without_target_labels_says_so_and_shows_the_confidence(tmp_path: Path):
    cell = Cell("folder", "time", "old→new", "CAT*-Temperature", 0)
    result = made_result(tmp_path / "run", cell, labelled=False)
    text = plain(write_run_page(tmp_path / "run").read_text())
    assert "the target has no labels" in text
    assert f">{100 * result.record.estimates.mean_confidence:.1f}<" in text
    assert "target accuracy</th>" not in text
    assert "Confusion matrices" not in text


def test_without_jinja_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made_result(tmp_path / "run", Cell("rig", "time", "a→b", "source-only", 0))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[report\]'"):
        write_run_page(tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()
