"""The page of diagnosed recordings: what it says, in a real browser, on paper, and of results that were kept."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from bearcat.diagnosis.drawing import EvidenceDrawing
from bearcat.diagnosis.recording import Diagnoses, Diagnosis
from bearcat.names import to_json
from bearcat.report.pages import write_recordings_page
from bearcat.report.plots import draw_evidence
from bearcat.report.recordings import read_results
from tests import opened
from tests.reference.drawing import highest_of_parts
from tests.test_diagnosis import simulated

RATE = 16_000
ATTACK = "<script>document.title='taken'</script>.wav"
WORDS = ("--rpm", 1500, "--bearing", "6203")


class Opened(opened.Opened):
    """A page in a file, which is given nothing from outside."""

    def __init__(self, browser, path: Path, **options) -> None:
        super().__init__(browser, path.as_uri(), re.compile("^(?!file:|data:)"), **options)


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


@pytest.fixture(scope="module")
def thirty(found: Diagnoses) -> Diagnoses:
    """Thirty recordings of which 22 are alarms, three to check and one unreadable."""
    by_name = {Path(each.recording).stem: each for each in found}
    names = ["outer"] * 22 + ["dead"] * 3 + ["broken"] + ["healthy"] * 4
    return Diagnoses(replace(by_name[name], recording=f"pump-{n:02d}/{name}.wav") for n, name in enumerate(names))


def test_a_recording_s_drawing_is_small_and_shows_what_a_slow_twin_shows(found: Diagnoses):
    recording = simulated("outer race")
    (drawing,) = [each.drawing for each in found if each.state == "outer race"]
    shown = recording.signal[: int(drawing.seconds * RATE)]
    low, high = drawing.extremes
    step = drawing.peak / 127.5
    np.testing.assert_allclose(high, highest_of_parts(shown, len(high)), atol=step)
    np.testing.assert_allclose(low, [-each for each in highest_of_parts(-shown, len(low))], atol=step)
    assert drawing.decibels.max() > 20, "the lines stand out in what is kept"
    assert len(json.dumps(found[0].to_dict()["drawing"])) < 4000
    assert Diagnosis.from_dict(json.loads(json.dumps(found[0].to_dict()))).drawing == found[0].drawing


@pytest.mark.parametrize(("text", "word"), [("not base64!", "base64|padding"), ("A" * 10_000, "longer")])
def test_a_drawing_of_a_stranger_is_refused(text, word):
    with pytest.raises(ValueError, match=word):
        EvidenceDrawing(text, 1.0, 1.0)


def test_results_come_back_as_they_were(found: Diagnoses, tmp_path: Path):
    (tmp_path / "a.json").write_text(to_json({"recordings": [each.to_dict() for each in found]}))
    again = read_results(tmp_path / "a.json")
    assert [each.to_dict() for each in again] == [each.to_dict() for each in found]


def test_the_page_of_a_folder_of_json_and_of_csv_has_the_list_and_the_evidence(command, plant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("report", plant, *WORDS, "--out", "folder.html")[0] == 0
    for form in ("json", "csv"):
        _, output, _ = command("diagnose", plant, *WORDS, "--format", form)
        Path(f"results.{form}").write_text(output)
        status, said, problems = command("report", f"results.{form}", "--out", f"{form}.html")
        assert status == 0
        assert said.splitlines()[0] == "4 recordings: 1 alarm, 1 check, 1 unreadable, 1 ok."
        assert "broken.mat" in problems
    for name, pictures in (("folder", 2), ("json", 2), ("csv", 0)):
        text = Path(f"{name}.html").read_text(encoding="utf-8")
        assert re.findall(r'class="badge (\w+)">', text) == ["alarm", "check", "check", "ok"]
        assert "<td>1500</td><td>6203</td>" in text, "speed and bearing that were used"
        assert text.count("data:image/svg+xml") == pictures, "sharp at any size"
        assert text.count('<figure class="picture"') == pictures
        assert "BPFO" in text


def test_a_page_takes_the_options_of_diagnose(command, plant, tmp_path):
    out = tmp_path / "a.html"
    words = ("--rpm", 1500, "--bpfo", 3.05, "--bpfi", 4.95, "--unit", "g", "--group", 2, "--mounting", "rigid")
    status, said, problem = command("report", plant, *words, "--jobs", 2, "--out", out)
    assert status == 0, problem
    assert said.startswith("4 recordings: ")
    assert "mm/s" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.json", "{", "results"), ("a.json", "[]", "results"), ("a.json", '{"recordings": [{}]}', "results"),
        ("a.json", '{"recordings": []}', "no results"), ("a.json", "null", "results"),
        ("a.csv", "recording,decision,reasons,state,confidence\na,use,,healthy,1\n", "results"),
        ("a.csv", "recording,decision,reasons,state,confidence\na,ok,,healthy,sure\n", "results"),
        ("a.csv", "recording,decision,reasons,state,confidence,speed\na,ok,,healthy,1,nan\n", "results"),
        ("gone.json", None, "gone.json"), ("nowhere", None, "nowhere"),
    ],
)  # fmt: skip
def test_what_holds_no_results_is_one_sentence(command, tmp_path, monkeypatch, name, content, word):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    status, _, problem = command("report", name)
    assert status == 2
    assert word in problem
    assert name in problem
    assert problem.count("\n") == 1
    assert not Path("report.html").exists()


def test_options_of_recordings_are_refused_with_results(command, tmp_path):
    (tmp_path / "a.json").write_text('{"recordings": []}')
    for words in (("--rpm", 1500), ("--override",), ("--machine", "pump"), ("--jobs", 2), ("--bpfo", 3.05)):
        status, _, problem = command("report", tmp_path / "a.json", *words)
        assert status == 2
        assert words[0] in problem


def test_the_page_is_quiet_asks_nobody_and_shows_every_picture(browser, thirty: Diagnoses, tmp_path: Path):
    hostile = Diagnoses([*thirty[:3], replace(thirty[0], recording=ATTACK)])
    with Opened(browser, write_recordings_page(hostile, tmp_path / "a.html", "Plant")) as page:
        assert page.errors == []
        assert page.page.title() == "Plant"
        widths = page.page.eval_on_selector_all("img", "all => all.map(image => image.naturalWidth)")
        assert len(widths) == 4
        assert min(widths) > 100
        assert page.page.locator("td", has_text=ATTACK).count() == 1
        captions = page.page.locator("figcaption").all_inner_texts()
        assert any("outer race" in text and "BPFO" in text for text in captions)


def test_thirty_recordings_are_printed_on_two_pages(browser, thirty: Diagnoses, command, tmp_path: Path):
    (tmp_path / "a.json").write_text(to_json({"recordings": [each.to_dict() for each in thirty]}))
    status, said, problem = command("report", tmp_path / "a.json", "--out", tmp_path / "a.pdf")
    assert status == 0, problem
    assert "a.pdf" in said
    content = (tmp_path / "a.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) == 2
    width, height = map(float, re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", content)[0])
    assert (round(width / 72 * 25.4), round(height / 72 * 25.4)) == (210, 297), "A4"


def test_the_list_names_machines_that_a_manifest_names(found: Diagnoses, tmp_path: Path):
    text = write_recordings_page(found, tmp_path / "a.html", "Plant").read_text(encoding="utf-8")
    assert "machine</th>" not in text, "folders are in the names of recordings"
    named = Diagnoses(replace(each, machine="Pump 7") for each in found)
    assert write_recordings_page(named, tmp_path / "b.html", "Plant").read_text(encoding="utf-8").count("Pump 7") == 4


def test_a_picture_has_its_resolution_whatever_was_drawn_before(found: Diagnoses):
    drawn = next(each for each in found if each.drawing is not None)
    first, second = draw_evidence(drawn), draw_evidence(drawn)
    second.render("svg")
    assert first.render("png") == second.render("png")
