"""The page of watched machines: what it says; acceptance/test_fleet_page.py has it in a browser and from a server."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from bearcat.deploy.serve import make_app
from bearcat.diagnosis.recording import Observation
from bearcat.findings import Finding
from bearcat.report import fleet as fleet_module
from bearcat.report.fleet import fleet_page, served_page
from bearcat.settings import ServeRequest
from bearcat.watch.folder import Arrival
from bearcat.watch.memory import PointState
from bearcat.watch.snapshot import Event, PointStatus, Snapshot
from bearcat.watch.store import Store
from bearcat.watch.usual import OperatingState, row_of
from tests.test_artefact import made_model

DAY, END = 86_400.0, 1_780_000_000.0
# Names that would do something on a page, in an attribute, in a terminal or in a shell, if they could.
HOSTILE = ("<script>x</script>", "\"'><img src=x onerror=x>", "a\x1b[31m\u202eb\x00", "'; touch taken; '", "-rf")


def made_store(path: Path, points: list[PointStatus]) -> Path:
    """Each point has recordings a day apart; the outer race lines of those in alarm grow in the last days."""
    usual = OperatingState(1480.0, rows=np.array([row_of({"rms": rms, "outer_race": 3.0}) for rms in (0.9, 1.0, 1.1)]))
    with Store.open(path, create=True) as store, store.transaction():
        for point in points:
            days = 24 if point.status == "alarm" else 4
            for day in range(days):
                level, time = 1.5 * max(0, day - 15), END - (days - 1 - day) * DAY
                values = {"rms": 1 + level / 6, "outer_race": 3 + level, "rpm": 1480.0, "kurtosis": 3.1}
                snapshot = Snapshot(point.machine, point.point, time, Observation(f"{day}.wav"), values, "g")
                now = replace(point, time=time, recordings=day + 1, change=level / 12)
                events = [Event(point.machine, point.point, time, "alarm", point.findings)] if day == 20 else []
                store.add(Arrival(f"{day}.wav", point.machine, point.point, time, 1, 1), [(snapshot, now)])
                store.keep([PointState(now, (usual,))], events)
    return path


def made_point(machine: str, point: str, status: str = "ok", **changes) -> PointStatus:
    plain = PointStatus(machine, point, status, END - 5 * DAY)
    faulty = {"fault": "outer race", "confidence": 0.93, "severity": "clear", "level": 1.2345, "unit": "g"}
    values = {"title": "outer race lines", "band": None, "decibels": 11.0, "learnt": True}
    line = {"line": "BPFO", "multiple": 1, "hertz": 88.3, "level": 14.0, "clarity": "clear"}
    faulty["findings"] = (Finding("fault line", "remark", line), Finding("baseline change", status, values))
    return replace(plain, **(faulty if status in ("alarm", "check") else {}) | changes)


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty points: two alarms, one to check, one without signal."""
    statuses = {4: "alarm", 9: "alarm", 5: "check", 14: "no signal"}
    points = [made_point(f"pump {n // 2}", ("drive end", "far end")[n % 2], statuses.get(n, "ok")) for n in range(30)]
    return made_store(tmp_path_factory.mktemp("plant") / "plant.db", points)


def test_the_worst_stand_first_with_what_is_known_of_them(command, plant: Path, tmp_path: Path):
    status, said, _ = command("report", plant, "--out", tmp_path / "fleet.html")
    assert status == 0
    assert "2 alarm" in said.splitlines()[0]
    text = (tmp_path / "fleet.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr role=\"row\".*? data-status=\"(.*?)\"", text)
    assert rows == ["alarm", "alarm", "check", "no signal", *["ok"] * 26]
    words = ("outer race, clear, 93", "BPFO 88.3 Hz, 14 dB", "11 dB above what is usual", "What to do next", ">1.23 g<")
    assert all(word in text for word in words)
    labels = re.findall(r"<svg viewBox=.*?aria-label=\"(.*?)\"", text)
    for title in ("evidence of a change", "RMS", "outer race lines"):
        assert sum(label.startswith(title) for label in labels) >= 2, title
    assert len(text) < 1_000_000


def test_points_are_sorted_by_status_then_severity_then_confidence():
    ranked = [("alarm", "strong", 0.7), ("alarm", "clear", 0.9), ("alarm", None, None), ("check", None, 0.9)]
    points = [PointStatus("pump", "1", status, severity=clear, confidence=sure) for status, clear, sure in ranked]
    assert sorted([*points[2:], *points[:2]], key=lambda point: point.order) == points


def test_the_page_of_a_machine_has_all_of_its_points(command, plant: Path, tmp_path: Path):
    assert command("report", plant, "--out", tmp_path / "pump.html", "--machine", "pump 7")[0] == 0
    text = (tmp_path / "pump.html").read_text(encoding="utf-8")
    assert text.count('<section class="point') == 2
    assert "pump 2" not in text
    status, _, problem = command("report", plant, "--out", tmp_path / "no.html", "--machine", "pmup 7")
    assert (status, "did you mean" in problem, (tmp_path / "no.html").exists()) == (2, True, False)


def test_what_is_left_out_is_counted(plant: Path, monkeypatch: pytest.MonkeyPatch):
    for name, most in {"ROWS": 8, "DETAILED": 3}.items():
        monkeypatch.setattr(fleet_module, name, most)
    with Store.open(plant) as store:
        text, asked, states = fleet_page(store), list[str](), Store.states
        monkeypatch.setattr(Store, "states", lambda store, name: asked.append(name) or states(store, name))
        fleet_page(store, "pump 2")
    assert asked == ["pump 2"], "a machine is unpacked once"
    assert "22 points of the 30 are left out" in text
    assert "Trends of 27 points" in text
    assert text.count('<section class="point') == 3


def test_hostile_names_are_text(tmp_path: Path):
    hostile = {name: (Finding("unreadable", "alarm", {"problem": name}),) for name in HOSTILE}
    points = [made_point(name, name, "alarm", findings=hostile[name]) for name in HOSTILE]
    with Store.open(made_store(tmp_path / "hostile.db", points)) as store:
        text = fleet_page(store)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)
    assert text.count("<script") == 1
    assert "<img" not in text
    steps = [shlex.split(unescape(step)) for step in re.findall("<code>(.*?)</code>", text)]
    for name in (*HOSTILE[:2], *HOSTILE[3:]):
        words = ["bearcat", "watch", "baseline", *(["--"] if name == "-rf" else []), str(tmp_path / "hostile.db")]
        assert any(sorted(step) == sorted([*words, f"{name}/{name}"]) for step in steps), name


def test_a_point_of_which_nothing_was_learnt_is_shown(tmp_path: Path):
    with Store.open(tmp_path / "bare.db", create=True) as store:
        assert "No recordings yet" in fleet_page(store)
        status = made_point("pump", "drive end", "no signal", since=None, time=END)
        snapshot = Snapshot("pump", "drive end", END, Observation("a.wav"))
        store.add(Arrival("a.wav", "pump", "drive end", END, 1, 1), [(snapshot, status)])
        store.keep([PointState(status, (OperatingState(),))])
        text = fleet_page(store)
    assert "check the sensor" in text


def test_a_model_and_watched_machines_are_served_side_by_side(plant: Path):
    model = made_model("frequency", 256, rate=8000.0)
    app = make_app(model, ServeRequest(), fleet=partial(served_page, str(plant)))
    client = TestClient(app, base_url="http://localhost")
    described, page, machines, missing = map(client.get, ("/model", "/", "/fleet", "/fleet?machine=pump 99"))
    assert described.json()["classes"] == list(model.classes)
    assert "Diagnose recordings" in page.text
    assert "pump 2" in machines.text
    assert missing.status_code == 404
