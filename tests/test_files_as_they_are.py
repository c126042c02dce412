"""Files as plants have them: MATLAB's structs, cells and tables, what options say of them, and each bad input."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy.io import savemat, wavfile

import bearcat
from bearcat.data.isolated import read_signals
from bearcat.data.recording import stated_speed
from bearcat.errors import InputError
from tests.test_diagnosis import simulated

RATE = 16_000
KNOWN = {"rpm": 1500, "bearing": "6203"}
WORDS = ("--rpm", 1500, "--bearing", "6203")
SHORT = np.random.default_rng(0).standard_normal(600)
TIMES = np.arange(600) / RATE


@pytest.fixture(scope="module")
def outer() -> np.ndarray:
    return np.asarray(simulated("outer race").signal)


@pytest.mark.parametrize(
    ("variables", "channels", "rate"),
    [
        ({"bearing": {"gs": SHORT[:, None], "sr": 97_656.0, "rate": 25.0, "load": 270.0}}, "bearing.gs", 97_656.0),
        ({"a": {"x": SHORT, "fs": 100.0}, "b": {"x": SHORT, "fs": 100.0}}, "a.x b.x", 100.0),
        ({"info": {"fs": 100.0}, "data": {"de": SHORT, "fe": SHORT}}, "data.de data.fe", 100.0),
        ({"t": TIMES, "acc": SHORT}, "acc", RATE),
        ({"time_ms": 1000 * TIMES, "acc": SHORT}, "acc", RATE),
        ({"data": np.c_[SHORT, SHORT], "rate": 50.0}, "data.1 data.2", 50.0),
        ({"runs": np.array([SHORT, SHORT[:300]], dtype=object), "fs": 50.0}, "runs.1 runs.2", 50.0),
        ({"x": SHORT}, "x", None),
        ({"a": {"x": SHORT, "Fs_Hz": 100.0}}, "a.x", 100.0),
        ({"x": SHORT, "SampleFreq": 100.0}, "x", 100.0),
        ({"x": SHORT, "fs_kHz": 100.0}, "x", None),
    ],
)  # fmt: skip
def test_structs_cells_and_times_of_matlab_give_channels_and_their_rate(tmp_path, variables, channels, rate):
    savemat(tmp_path / "a.mat", variables)
    found = read_signals(tmp_path / "a.mat")
    assert (list(found.channels), found.rate) == (channels.split(), pytest.approx(rate))


def test_a_rate_that_the_file_contradicts_is_refused_and_used_where_it_overrides(tmp_path, outer, command):
    wavfile.write(tmp_path / "a.wav", RATE, outer)
    status, _, problem = command("diagnose", tmp_path / "a.wav", *WORDS, "--rate", 2 * RATE)
    assert status == 2
    for word in ("a.wav", "16000 Hz", "32000 Hz", "--rate", "override"):
        assert word in problem
    (kept,) = bearcat.diagnose(tmp_path / "a.wav", rate=RATE, **KNOWN)
    assert kept.state == "outer race"
    (other,) = bearcat.diagnose(tmp_path / "a.wav", rate=2 * RATE, override=True, trust_speed=True, **KNOWN)
    assert other.physics.rate == 2 * RATE
    assert {finding.kind: finding.values for finding in other.findings}["other rate"] == {
        "own": RATE,
        "given": 2 * RATE,
    }
    (changed,) = bearcat.diagnose(tmp_path / "a.wav", rate=0.8 * RATE, override=True, trust_speed=True, **KNOWN)
    assert changed.state != kept.state


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"X097_DE_time": SHORT, "X097_FE_time": SHORT, "X097RPM": 1796.0}, {"X097_DE_time": 1796, "X097_FE_time": 1796}),
        ({"X098_DE_time": SHORT, "X099_DE_time": SHORT, "X099RPM": 1750.0}, {"X099_DE_time": 1750}),
        ({"X09_DE_time": SHORT, "X098RPM": 1772.0, "X099RPM": 1750.0}, {}),
        ({"bearing": {"gs": SHORT, "sr": 50.0, "rate": 25.0, "rpm": 1500.0}}, {"bearing.gs": 1500}),
        ({"a": {"x": SHORT, "rpm": 900.0}, "b": {"x": SHORT}, "rpm": 600.0}, {"a.x": 900, "b.x": 600}),
        ({"a": {"rpm": 900.0}, "x": SHORT}, {}),
        ({"x": SHORT, "max_rpm": 3000.0, "speed": 1500.0}, {}),
        ({"x": SHORT, "rpm": np.full(600, 1500.0)}, {}),
    ],
)  # fmt: skip
def test_a_number_states_the_speed_of_the_channels_it_is_about(tmp_path, variables, expected):
    savemat(tmp_path / "a.mat", variables)
    assert read_signals(tmp_path / "a.mat").speeds == expected


@pytest.mark.parametrize(
    ("own", "said", "given", "override", "expected"),
    [
        (None, None, 1480, None, 1480), (1500, None, None, None, 1500), (1500, None, 1500.5, None, 1500),
        (1500, 1480, None, None, "1480 with a note"), (1500, 1480, 900, None, "1480 with a note"),
        (1500, None, 1480, None, "1500 with a note"), (1500, None, 1440, None, "refused"),
        (1500, None, 1440, False, "refused, or --override"), (1500, None, 1440, True, "1440 with a note"),
        (1500, 900, None, True, "900 with a note"), (1500, None, None, True, 1500),
        (0.0, None, None, None, "None with a note"), (-5.0, None, 1480, None, "1480 with a note"),
        (float("nan"), 1480, None, None, "1480 with a note"), (1e9, None, None, False, "None with a note"),
    ],
)  # fmt: skip
def test_which_speed_counts(own, said, given, override, expected):
    """`own` the file's, `said` a manifest's, `given` an option's."""
    if str(expected).startswith("refused"):
        with pytest.raises(InputError, match="a.mat.*1500 rpm.*1440 rpm") as refused:
            stated_speed("a.mat", own, said, given, override)
        assert refused.value.field == "rpm"
        assert ("--override" in str(refused.value)) == ("--override" in expected)
        return
    rpm, finding = stated_speed("a.mat", own, said, given, override)
    assert f"{rpm} with a note" == expected if finding is not None else rpm == expected


def test_a_file_that_states_its_speed_needs_no_option_and_is_not_contradicted(tmp_path, outer, command):
    savemat(tmp_path / "a.mat", {"bearing": {"gs": outer, "sr": float(RATE), "rpm": 1500.0}})
    words = ("diagnose", tmp_path / "a.mat", "--bearing", "6203", "--trust-speed", "--format", "json")
    status, output, _ = command(*words)
    (found,) = json.loads(output)["recordings"]
    assert (status, found["state"], found["speed"]["stated"]) == (1, "outer race", 1500)
    status, _, problem = command(*words, "--rpm", 1965)
    assert status == 2
    for word in ("a.mat", "1500 rpm", "1965 rpm", "--rpm", "--override"):
        assert word in problem
    _, output, notes = command(*words, "--rpm", 1965, "--override")
    assert json.loads(output)["recordings"][0]["physics"]["rpm"] == 1965
    assert "1965 rpm" in notes
    assert "1510 rpm" in command(*words, "--rpm", 1510)[2]
    (tmp_path / "manifest.csv").write_text("path,domain,rpm,bearing\na.mat,pump,1510,6203\n")
    (listed,) = bearcat.diagnose(tmp_path)
    assert (listed.speed.stated, listed.state) == (1510, "outer race")
    assert {finding.kind: finding.values for finding in listed.findings}["other speed"] == {"own": 1500, "given": 1510}


def test_speed_and_bearing_fill_what_a_manifest_leaves_empty_and_override_it_with_a_note(tmp_path, outer, command):
    for name in ("said.wav", "silent.wav"):
        wavfile.write(tmp_path / name, RATE, outer + np.float32(1e-6 * len(name)))
    (tmp_path / "manifest.csv").write_text("path,domain,rpm,bearing\nsaid.wav,a,1965,6203\nsilent.wav,a,,\n")
    words = ("diagnose", tmp_path, *WORDS, "--trust-speed", "--format", "json")
    _, output, notes = command(*words)
    said, silent = json.loads(output)["recordings"]
    assert (said["physics"]["rpm"], silent["physics"]["rpm"]) == (1965, 1500)
    assert silent["state"] == "outer race" != said["state"]
    assert re.search(r"said\.wav.*1965 rpm.*1500 rpm.*overrid", notes)
    assert said["recording"] == str(tmp_path / "said.wav"), "a path that leads there"
    _, output, notes = command(*words, "--override")
    said, silent = json.loads(output)["recordings"]
    assert said["physics"]["rpm"] == silent["physics"]["rpm"] == 1500
    assert said["state"] == "outer race"
    assert "silent.wav" not in notes


def test_speed_may_be_the_name_of_a_channel(tmp_path, outer, command):
    speed = np.full(len(outer), 1500.0)
    np.savez(tmp_path / "a.npz", de=outer, turns=speed, fs=RATE, flat=np.full(len(outer), 0.5))
    words = ("diagnose", tmp_path / "a.npz", "--channel", "de", "--bearing", "6203", "--format", "json", "--rpm")
    status, output, _ = command(*words, "turns")
    (found,) = json.loads(output)["recordings"]
    assert (status, found["state"], found["speed"]["by"]) == (1, "outer race", "tacho")
    assert found["speed"]["rpm"] == pytest.approx(1500)
    for name, word in (("tunrs", "neither a number nor a channel"), ("flat", "neither a speed")):
        status, _, problem = command(*words, name)
        assert status == 2
        assert word in problem
        assert name in problem
        assert "--rpm" in problem
    np.savez(tmp_path / "b.npz", turns=speed, fs=RATE)
    assert "beside" in command("diagnose", tmp_path / "b.npz", "--bearing", "6203", "--rpm", "turns")[2]


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "x", "--rpm", 1, "--rpm", 2), ("data", "show", "x", "--out", "a", "--out", "b"),
        ("diagnose", "x", "--override", "--override"),
    ],
)  # fmt: skip
def test_an_option_given_twice_is_an_error_that_names_it(command, words):
    status, _, problem = command(*words)
    assert status == 2
    assert re.search(r"--\w+: is given 2 times", problem)
    assert problem.count("\n") == 1
