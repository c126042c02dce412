"""Pages of diagnosed recordings and of runs, read as text; tests/acceptance reads pages in a browser."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from bearcat.diagnosis.recording import Diagnoses, Diagnosis
from bearcat.report import Cell
from bearcat.report.pages import write_run_page
from tests.made_records import made_diagnosis, made_result
from tests.test_diagnosis import simulated

RATE = 16_000
WORDS = ("--rpm", 1500, "--bearing", "6203")


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four: an alarm, a dead sensor, an unreadable file, and a healthy bearing."""
    place = tmp_path_factory.mktemp("plant")
    for name, state in (("outer", "outer race"), ("healthy", "healthy")):
        wavfile.write(place / f"{name}.wav", RATE, simulated(state).signal)
    wavfile.write(place / "dead.wav", RATE, np.zeros(2 * RATE, dtype=np.float32))
    (place / "broken.mat").write_bytes(b"no MATLAB file")
    return place


@pytest.fixture(scope="module")
def found(plant: Path) -> Diagnoses:
    return bearcat.diagnose(plant, rpm=1500, bearing="6203")


def test_a_recording_s_drawing_is_small_and_keeps_its_lines(found: Diagnoses):
    (alarm,) = [each for each in found if each.state == "outer race"]
    level = max(alarm.physics.faults["outer race"].lines)
    assert max(alarm.drawing.levels) >= level - 0.1, "the strongest line"
    assert len(json.dumps(alarm.to_dict()["drawing"])) < 4000
    assert Diagnosis.from_dict(json.loads(json.dumps(alarm.to_dict()))).drawing == alarm.drawing


def test_the_page_of_a_folder_and_of_json_has_the_list_and_the_evidence(command, plant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("report", plant, *WORDS, "--out", "folder.html")[0] == 0
    _, output, _ = command("diagnose", plant, *WORDS, "--format", "json")
    Path("results.json").write_text(output)
    status, said, problems = command("report", "results.json", "--out", "json.html")
    assert status == 0
    assert said.splitlines()[0] == "4 recordings: 1 alarm, 1 check, 1 unreadable, 1 ok."
    assert "broken.mat" in problems
    for name in ("folder", "json"):
        text = Path(f"{name}.html").read_text(encoding="utf-8")
        assert re.findall(r'class="badge (\w+)">', text) == ["alarm", "check", "check", "ok"]
        assert "all with rpm 1500; all with bearing 6203." in text, "speed and bearing that were used"
        assert text.count("data:image/svg+xml") == text.count('<figure class="picture"') == 1, "sharp at any size"
        assert "BPFO" in text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "{", ()), ("a.json", "[]", ()), ("a.json", '{"recordings": [{}]}', ()), ("gone.json", None, ()),
        ("a.json", '{"recordings": []}', ()), ("a.csv", "recording,machine,decision\na,b,ok\n", ()), ("nowhere", None, ()),
        ("a.json", '{"recordings": []}', ("--rpm", 1500)), ("a.json", '{"recordings": []}', ("--machine", "pump")),
    ],
)  # fmt: skip
def test_what_holds_no_results_and_options_that_mean_nothing_are_one_sentence(
    command, tmp_path, monkeypatch, name, content, words
):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    status, _, problem = command("report", name, *words)
    named = "--machine" if "--machine" in words else name
    assert (status, named in problem, problem.count("\n")) == (2, True, 1)
    assert not Path("report.html").exists()


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
        "<main>", "<h2>Recommendation</h2>", result.record.decision.sentence, "<h2>Recordings</h2>",
        *(f">{name}</td>" for name in names), "<h2>For researchers</h2>",
        f">{100 * result.record.estimates.expected.value:.1f}<",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "ECE" not in page[places[0] : places[-2]]


@pytest.mark.usefixtures("blank_figures")
def test_the_page_of_a_run_without_target_labels_says_so_and_shows_the_confidence(tmp_path: Path):
    cell = Cell("folder", "time", "old→new", "CAT*-Temperature", 0)
    result = made_result(tmp_path / "run", cell, labelled=False)
    text = plain(write_run_page(tmp_path / "run").read_text())
    assert "the target has no labels" in text
    assert f">{100 * result.record.estimates.mean_confidence:.1f}<" in text
    assert "target accuracy</th>" not in text
    assert "Confusion matrices" not in text
