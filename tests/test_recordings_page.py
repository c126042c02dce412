"""The page of diagnosed recordings: what it says, in a real browser, on paper, and of results that were kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from bearcat.diagnosis.recording import Diagnoses, Diagnosis
from tests.reference.drawing import highest_of_parts
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
        assert "All recordings: rpm 1500, bearing 6203." in text, "speed and bearing that were used"
        assert text.count("data:image/svg+xml") == text.count('<figure class="picture"') == 2, "sharp at any size"
        assert "BPFO" in text


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.json", "{", "results"), ("a.json", "[]", "results"), ("a.json", '{"recordings": [{}]}', "results"),
        ("a.json", '{"recordings": []}', "no results"), ("a.csv", "recording,machine,decision\na,b,ok\n", "a.csv"),
        ("gone.json", None, "gone.json"), ("nowhere", None, "nowhere"),
    ],
)  # fmt: skip
def test_what_holds_no_results_is_one_sentence(command, tmp_path, monkeypatch, name, content, word):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    status, _, problem = command("report", name)
    assert (status, word in problem, name in problem, problem.count("\n")) == (2, True, True, 1)
    assert not Path("report.html").exists()


@pytest.mark.parametrize("words", [("--rpm", 1500), ("--machine", "pump")])
def test_options_that_mean_nothing_here_are_refused(command, tmp_path, words):
    (tmp_path / "a.json").write_text('{"recordings": []}')
    status, _, problem = command("report", tmp_path / "a.json", *words)
    assert (status, words[0] in problem) == (2, True)
