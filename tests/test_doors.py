"""One recording gets one diagnosis, by whichever door: command line, model, `adapt`, `watch`, Python and HTTP.

tests/acceptance/test_doors.py has cuts of public benches beside the drawn recordings.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bearcat
from bearcat.data import Simulated, windows
from bearcat.data.folder import Folder, at_speeds
from bearcat.data.recording import Recording, Windows
from bearcat.data.windows import fingerprint
from bearcat.deploy.opened import open_model
from bearcat.deploy.serve import answer
from bearcat.diagnosis.fusion import FOLDER as GENERAL
from bearcat.diagnosis.quality import Channel, Quality, check_quality
from bearcat.errors import InputError
from bearcat.report import read_result
from bearcat.settings import ServeRequest
from bearcat.watch.folder import WatchedFolder
from tests.commands import bearcat as run
from tests.golden.compare import differing
from tests.golden.recordings import ORDERS, RPM, _wav, draw

BEARING = "6205"
SAME = (
    "decision", "findings", "state", "class", "nearest", "confidence", "severity", "agreement", "windows", "unfamiliar",
    "familiar", "line", "probabilities", "physics", "general", "network", "rms", "speed", "family", "vibration", "bearing",
)  # fmt: skip
CLOSE = 1e-9
PLANT = 0.95  # share of faulty recordings, with which some decisions are others than with the default


def assert_same(one: dict[str, Any], other: dict[str, Any], about: str) -> None:
    first, second = ({name: row[name] for name in SAME} for row in (one, other))
    assert list(differing(first, second, CLOSE)) == [], about


def by_command(*words: object) -> dict[str, dict[str, Any]]:
    """What a command prints, by the name of the file, its channel too."""
    rows = json.loads(run(*words).stdout)["recordings"]
    return {Path(row["recording"]).name: row for row in rows}


def by_http(path: Path, model: Path | None, **query: Any) -> dict[str, Any] | None:
    """The server's answer; None where it refuses the file."""
    opened, texts = None if model is None else open_model(model), {name: str(value) for name, value in query.items()}
    try:
        return json.loads(json.dumps(answer(opened, path, texts | {"filename": path.name}, ServeRequest())))
    except InputError:
        return None


def compare(folder: Path, model: Path, **query: Any) -> int:
    """Every file of a folder through the doors that take one file; how many were compared."""
    words = [word for name, value in query.items() for word in (f"--{name}", value)]
    for command, by in ((("diagnose",), None), (("predict", model), model)):
        for path in sorted(folder.iterdir()):
            printed = by_command(*command, path, *words, "--format", "json")
            found = bearcat.diagnose([path], model=by, **query)
            called = {Path(each.recording).name: json.loads(json.dumps(each.to_dict())) for each in found}
            assert printed.keys() == called.keys()
            for name, row in printed.items():
                assert_same(row, called[name], f"{command[0]} and Python: {name}")
            answered = by_http(path, by, **query)
            (only, *more) = printed.values()
            if answered is not None and not more:
                assert_same(only, answered, f"{command[0]} and HTTP: {path.name}")
            assert answered is not None or more or only["state"] in ("unreadable", "not diagnosed"), path.name
    return len(list(folder.iterdir()))


def adapt_and_predict(root: Path, out: Path, source: str, target: str, *words: object) -> None:
    """The target as `adapt` has it and as `predict` with its model."""
    run("adapt", "--data", root, "--source", source, "--target", target, "--epochs", 4, "--out", out, *words)
    assert_predicted(out, root / target, *words)


def assert_predicted(out: Path, target: Path, *words: object) -> None:
    """The diagnoses of a finished adaptation are those of `predict` with its model."""
    adapted = {Path(row["recording"]).name: row for row in json.loads((out / "record.json").read_text())["recordings"]}
    predicted = by_command("predict", out / "model", target, *words, "--format", "json")
    assert adapted.keys() <= predicted.keys(), "what adapt leaves out, predict may name"
    assert adapted
    for name, row in adapted.items():
        assert_same(row, predicted[name], f"adapt and predict: {name}")


def watched(folder: Path, files: Sequence[Path], **query: Any) -> bearcat.Fleet:
    """`watch` with one recording a point says what `diagnose` says of it."""
    for number, path in enumerate(files):
        (folder / f"{number}" / "DE").mkdir(parents=True)
        shutil.copy(path, folder / f"{number}" / "DE" / f"2024-05-01T10-00-00{path.suffix}")
    fleet = bearcat.watch(folder, folder.with_suffix(".db"), **query)
    status = {point.machine: point.status for point in fleet}
    for number, path in enumerate(files):
        (found,) = bearcat.diagnose([path], **query)
        assert status[str(number)] == ("no signal" if found.state == "no signal" else found.decision.action), path.name
    return fleet


def drawn(folder: Path) -> Path:
    """A recording of each state, a faint, a silent, a clipped and a broken one, and one that lost a hundred samples."""
    for seed, state in enumerate(("healthy", *ORDERS)):
        _wav(folder / f"{state}.wav", draw(state, seed, seconds=1.0))
    _wav(folder / "faint.wav", draw("outer", 7, seconds=1.0, strength=0.25))
    _wav(folder / "silent.wav", 0 * draw("outer", 8, seconds=1.0))
    _wav(folder / "slow.wav", draw("inner", 9, rpm=1200, seconds=1.0))
    _wav(folder / "clipped.wav", draw("outer", 3, seconds=5.0).clip(-0.2, 0.2))
    _wav(folder / "lost.wav", lost())
    (folder / "broken.wav").write_bytes(b"RIFF\x00\x00")
    return folder


def lost() -> np.ndarray:
    signal = draw("outer", 3, seconds=10.0)
    signal[50_000:50_100] = np.nan
    return signal


def domains(root: Path, target: str, rpm: float, make: Callable[[str, int, float], np.ndarray]) -> Path:
    """A labelled domain, and one without labels."""
    for place, state in enumerate(("healthy", "inner", "outer")):
        for number in range(2):
            seed = 100 + 10 * place + number
            _wav(root / "900rpm" / state / f"{number}.wav", make(state, seed, 900.0))
            _wav(root / target / f"{state}-{number}.wav", make(state, seed + 50, rpm))
    return root


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    root = domains(tmp_path_factory.mktemp("doors") / "own", "1480rpm", RPM, partial(draw, seconds=1.0))
    _wav(root / "1480rpm" / "outer-lost.wav", lost())
    return root


def test_the_same_recordings_through_six_doors(tmp_path, own):
    adapt_and_predict(own, tmp_path / "out", "900rpm", "1480rpm", "--bearing", BEARING, "--prior", PLANT)
    record, model = read_result(tmp_path / "out").record, tmp_path / "out" / "model"
    assert record.settings.prior == PLANT  # for `check`, which decides anew
    assert len(record.recordings) == 7, "lost samples cost no recording"
    folder, known = drawn(tmp_path / "drawn"), {"rpm": RPM, "bearing": BEARING}
    assert compare(folder, model, **known, prior=PLANT) == 10
    files = [path for path in sorted(folder.iterdir()) if path.name != "broken.wav"]
    watched(tmp_path / "plant", files, **known, prior=PLANT)
    assert bearcat.diagnose(files, **known).counts != bearcat.diagnose(files, **known, prior=PLANT).counts
    for by in (None, model, GENERAL):
        clipped, gaps = bearcat.diagnose([folder / "clipped.wav", folder / "lost.wav"], model=by, **known)
        assert (clipped.state, clipped.decision.action) == ("not diagnosed", "check")
        assert (gaps.state, gaps.decision.action) == ("outer race", "alarm")
        (finding,) = (finding for finding in gaps.findings if finding.kind == "gaps")
        assert (finding.severity, finding.values["samples"]) == ("remark", 100)


def turning(state: str, seed: int, rpm: float) -> np.ndarray:
    """A recording whose shaft shows several multiples of its speed, so that the speed is beyond doubt."""
    signal = draw(state, seed, rpm, seconds=1.5)
    turns = np.arange(signal.size) / 12_000 * rpm / 60
    return signal + sum(0.2 * np.sin(2 * np.pi * times * turns + times) for times in range(2, 7))


def test_recordings_whose_stated_speed_is_wrong_are_read_at_the_measured_one_in_adapt_too(tmp_path, monkeypatch):
    """A machine at 1440 rpm in a folder called 1200rpm; its signals are measured once."""
    domains(tmp_path / "own", "1200rpm", 1440.0, turning)
    measured, prepared, preparing = Counter[str](), dict[str, float](), windows.prepare

    def checked(channel: Channel) -> Quality:
        measured[channel.name] += 1
        return check_quality(channel)

    def prepare(recordings: Sequence[Recording], *words: Any) -> Windows:
        prepared.update({recording.origin: recording.rpm for recording in recordings})
        return preparing(recordings, *words)

    monkeypatch.setattr("bearcat.diagnosis.signal.check_quality", checked)
    monkeypatch.setattr("bearcat.adaptation.prepare", prepare)
    wishes = {"data": tmp_path / "own", "bearing": BEARING, "epochs": 4, "out": tmp_path / "out"}
    with pytest.warns(UserWarning, match="wrong speed"):
        adapted = bearcat.adapt("900rpm", "1200rpm", **wishes)
    assert_predicted(tmp_path / "out", tmp_path / "own" / "1200rpm", "--bearing", BEARING)
    for name, rpm in prepared.items():
        assert rpm == pytest.approx(1440 if name.startswith("1200rpm") else 900, rel=0.01)
    assert measured == dict.fromkeys(prepared, 1)
    assert adapted.record.adaptation["adapted"]
    for diagnosis in adapted.recordings:
        assert diagnosis.decision.action == ("check" if "healthy" in diagnosis.recording else "alarm")
        assert diagnosis.state.startswith(Path(diagnosis.recording).name.partition("-")[0])


def test_the_speed_at_which_recordings_are_read_is_part_of_what_names_their_windows(own):
    for catalogue in (Folder(own).catalogue(), Simulated(seconds=0.2, faults=("outer",)).catalogue()):
        origin = catalogue.entries[0].origin
        at = [at_speeds(catalogue, {origin: rpm}) for rpm in (1440.0, 1440.5)]
        assert len({fingerprint(each) for each in (catalogue, *at)}) == 3
        assert [each.entries[0].read().rpm for each in at] == [1440.0, 1440.5]
        assert fingerprint(at_speeds(catalogue, {})) == fingerprint(catalogue)


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("600rpm/inner/a.wav", "600rpm/inner"),  # the layout of `adapt`
        ("600rpm/inner/a.wav", "600rpm/inner/a.wav"),
        ("900rpm/600_rpm/inner/a.wav", "900rpm"),  # the nearest
        ("600rpm/1/2/3/a.wav", "600rpm"),  # all of the folder that is named
    ],
)
def test_a_folder_called_after_a_speed_counts_by_every_door(tmp_path, place, named):
    rig = tmp_path / "rig"
    _wav(rig / place, draw("inner", 3, 600.0, seconds=4.0))
    for model in (None, GENERAL):
        (found,) = bearcat.diagnose([rig / named], model=model, bearing=BEARING)
        assert (found.speed.stated, found.state) == (600, "inner race"), model
    assert [arrival.rpm for arrival in WatchedFolder(rig).scan()] == [600]
    (rig / "manifest.csv").write_text(f"path,machine\n{place},mill\n")
    assert [listed.rows[0].rpm for listed in WatchedFolder(rig).scan()] == [600]
    assert [entry.read().rpm for entry in Folder(rig).catalogue().entries] == [600]


def test_many_lost_samples_refuse_the_recording_by_every_door(tmp_path):
    signal, file = draw("outer", 3, seconds=1.0), tmp_path / "lost" / "a.wav"
    signal[5000:5121] = np.nan
    _wav(file, signal)
    (found,) = bearcat.diagnose([file], rpm=RPM, bearing=BEARING)
    assert (found.state, found.decision.action, "121 of 12000" in str(found.problem)) == ("unreadable", "check", True)
    with pytest.warns(UserWarning, match="121 of 12000"):
        watched(tmp_path / "plant", [file])
    assert run("data", "check", tmp_path / "lost").returncode == 2


def test_a_first_alarm_says_its_line_once_and_lists_name_machine_and_point(tmp_path):
    for machine, point, state in (("pump-3", "DE", "outer"), ("pump-3", "NDE", "healthy"), ("fan", "", "healthy")):
        _wav(tmp_path / "plant" / machine / point / "2024-05-01T10-30-00.wav", draw(state, 1))
    fleet = bearcat.watch(tmp_path / "plant", tmp_path / "plant.db", rpm=RPM, bearing=BEARING)
    assert (fleet[0].status, fleet[0].severity, fleet[0].fault) == ("alarm", "strong", "outer race")
    assert fleet[0].level == pytest.approx(float(np.std(draw("outer", 1))), rel=1e-3)
    assert fleet.table()[0]["reason"].count(fleet[0].reasons[0]) == 1
    rows = bearcat.diagnose(tmp_path / "plant", rpm=RPM, bearing=BEARING).table()
    places = sorted((Path(row["machine"]).name, row["point"]) for row in rows)
    assert places == [("fan", ""), ("pump-3", "DE"), ("pump-3", "NDE")]


def test_watch_looks_for_lines_of_a_bearing_that_nobody_names(tmp_path):
    for state in ("outer", "healthy"):
        _wav(tmp_path / f"{state}.wav", draw(state, 1, seconds=4.0))
    fleet = watched(tmp_path / "plant", [tmp_path / "outer.wav", tmp_path / "healthy.wav"], rpm=RPM)
    assert [(point.status, point.fault) for point in fleet] == [("alarm", "fault, type unclear"), ("check", None)]
