"""Anybody's own recordings, and what can be wrong with them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from scipy.io import savemat, wavfile

import bearcat
from bearcat.data import Bearing, Folder, load, open_dataset
from bearcat.data import folder as folder_module
from bearcat.data.choose import UNLABELLED, measure, survey
from bearcat.data.datasets import grouped
from bearcat.data.formats import read_signals
from bearcat.data.manifest import Columns
from bearcat.data.recording import stated_speed
from bearcat.errors import InputError
from tests.test_diagnosis import simulated


def put(path: Path, seed: int = 0, samples: int = 3000, rate: float | None = None) -> Path:
    """A csv file of noise, with a column of times if a rate is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).standard_normal(samples)
    if rate is None:
        np.savetxt(path, noise, fmt="%.5f")
    else:
        table = np.column_stack([np.arange(samples) / rate, noise])
        np.savetxt(path, table, delimiter=",", header="time,x", comments="", fmt="%.9f")
    return path


def manifest(root: Path, text: str) -> Path:
    (root / "manifest.csv").write_text(text)
    return root


def test_three_csv_files_in_folders_are_a_dataset(tmp_path):
    put(tmp_path / "600rpm" / "healthy" / "monday.csv", 1)
    put(tmp_path / "600rpm" / "inner" / "tuesday.csv", 2)
    put(tmp_path / "1200rpm" / "friday.csv", 3)
    catalogue = open_dataset(str(tmp_path)).catalogue()
    assert catalogue.domains == ("600rpm", "1200rpm")
    assert catalogue.classes == ("healthy", "inner")
    surveyed = survey(catalogue)
    assert (surveyed.problems, len(surveyed.notes)) == ((), 2), "no labels of 1200rpm, and no rates"
    assert list(surveyed.classes) == [("600rpm", "healthy"), ("600rpm", "inner"), ("1200rpm", UNLABELLED)]
    assert [[recording.samples for recording in recordings] for recordings in surveyed.classes.values()] == [[3000]] * 3
    assert load(catalogue, ["1200rpm"])[0].label is None


def test_a_manifest_says_everything(tmp_path):
    put(tmp_path / "long.csv", 1, samples=4000)
    np.save(tmp_path / "two.npy", np.random.default_rng(0).standard_normal((2, 2000)))
    head = "path,domain,label,rate,channel,start,stop,rpm,bearing,machine,sensor"
    rows = (
        "long.csv,600rpm,healthy,1000,,0,2000,750,6205-2RS,pump A,drive end",
        'long.csv,600rpm,worn,1000,,2000,,,"balls=8,ball=6.75,pitch=28.5",,', "two.npy,b,,1000,2,,1500,,,,",
    )  # fmt: skip
    manifest(tmp_path, "\n".join([head, *rows]))
    first, second, third = recordings = load(Folder(root=tmp_path).catalogue())
    assert [(info.origin, info.domain, info.label, info.rate, info.signal.size) for info in recordings] == [
        ("long.csv[0:2000]", "600rpm", "healthy", 1000, 2000), ("long.csv[2000:]", "600rpm", "worn", 1000, 2000),
        ("two.npy#2[0:1500]", "b", None, 1000, 1500),
    ]  # fmt: skip
    np.testing.assert_allclose(third.signal, np.load(tmp_path / "two.npy")[1, :1500].astype(np.float32))
    assert (first.rpm, str(first.bearing), first.machine) == (750, "6205", "pump A")
    assert (second.rpm, second.bearing) == (600, Bearing(8, 6.75, 28.5)), "the domain's name says the speed"
    assert (third.rpm, third.bearing, third.machine) == (None, None, None)


def test_a_manifest_may_be_as_excel_saves_it(tmp_path):
    put(tmp_path / "müll" / "1.csv")
    text = "Path;Domain;RPM;Bearing;;\nmüll\\1.csv;pump;1480,5;6205;;\n;;;;;\n"
    (tmp_path / "manifest.csv").write_bytes(text.encode("cp1252"))
    (recording,) = load(Folder(root=tmp_path).catalogue())
    assert (recording.domain, recording.rpm, str(recording.bearing)) == ("pump", 1480.5, "6205")


PAGE = Path(__file__).parents[1] / "docs" / "own-data.md"


def test_the_columns_on_the_page_are_those_that_are_read():
    columns = grouped(dataclasses.fields(Columns), lambda column: column.metadata["help"])
    rows = [f"| {', '.join(f'`{column.name}`' for column in same)} | {text} |" for text, same in columns.items()]
    assert "\n".join(["| column | what it says |", "|---|---|", *rows, ""]) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("unit", "factor"), [("", 10.0), ("V", 10.0), ("mV", 0.01)])
def test_a_sensitivity_brings_volts_to_g(tmp_path, unit, factor):
    put(tmp_path / "1.csv")
    manifest(tmp_path, f"path,domain,unit,sensitivity\n1.csv,pump,{unit},100\n")
    (entry,) = Folder(root=tmp_path).catalogue().entries
    recording = entry.read()
    assert recording.declared.unit == "g"
    np.testing.assert_allclose(recording.signal, factor * np.loadtxt(tmp_path / "1.csv"), rtol=1e-5)
    manifest(tmp_path, "path,domain\n1.csv,pump\n")
    assert Folder(root=tmp_path).catalogue().entries[0].identity != entry.identity


@pytest.mark.parametrize(
    ("domain", "rpm"), [("600rpm", 600), ("600_rpm", 600), ("mill 1200.5 RPM", 1200.5), ("load3", 1480), ("0rpm", 1480)]
)
def test_settings_are_for_recordings_that_do_not_say_their_own(tmp_path, domain, rpm):
    put(tmp_path / domain / "1.csv")
    dataset = open_dataset(str(tmp_path), settings={"rpm": "1480", "bearing": "6205"})
    (recording,) = load(dataset.catalogue())
    assert (recording.rpm, str(recording.bearing)) == (rpm, "6205")


def test_the_speed_may_be_a_channel_of_the_same_file(tmp_path):
    signal, speed = np.arange(1000, dtype=np.float32), np.linspace(600, 1200, 1000, dtype=np.float32)
    np.savez(tmp_path / "run-up.npz", vibration=signal, n=speed)
    np.savez(tmp_path / "slow.npz", vibration=2 * signal, n=speed[::10])
    manifest(tmp_path, "path,domain,start,stop,rpm\nrun-up.npz,a,,400,n\nrun-up.npz,a,400,,n\nslow.npz,b,,,n\n")
    catalogue = Folder(root=tmp_path).catalogue()
    recordings = load(catalogue)
    assert {(recording.channel, recording.rpm_channel) for recording in recordings} == {("vibration", "n")}
    assert [recording.signal.size for recording in recordings] == [400, 600, 1000]
    means = [speed[:400].mean(), speed[400:].mean(), speed.mean()]
    assert [recording.rpm for recording in recordings] == pytest.approx(means, rel=0.01)
    measured, _ = measure(catalogue, None, [])
    assert [measurement.rpm for measurement in measured] == [recording.rpm for recording in recordings]
    assert load(Folder(root=tmp_path, rpm="n").catalogue())[0].rpm == recordings[0].rpm
    np.savez(tmp_path / "nothing-else.npz", n=speed)
    manifest(tmp_path, "path,domain,rpm\nnothing-else.npz,a,n\n")
    with pytest.raises(InputError, match=r"nothing-else\.npz"):
        load(Folder(root=tmp_path).catalogue())


@pytest.mark.parametrize(
    ("values", "rpm", "word"),
    [
        (np.zeros(50), "n", "rpm.*sample 0"), (np.r_[np.ones(49), -1], "n", "sample 49"),
        (np.r_[np.nan, np.ones(49)], "n", "rpm"), (np.ones(50), "m", "'m' .*vibration, n"),
    ],
)  # fmt: skip
def test_a_speed_signal_that_is_none_is_refused_by_name(tmp_path, values, rpm, word):
    np.savez(tmp_path / "x.npz", vibration=np.arange(50.0), n=values)
    manifest(tmp_path, f"path,domain,rpm\nx.npz,a,{rpm}\n")
    with pytest.raises(InputError, match=f"x.npz: .*{word}") as caught:
        load(Folder(root=tmp_path).catalogue())
    assert caught.value.field == "rpm"


def test_a_file_of_several_recordings_is_decoded_once(tmp_path):
    put(tmp_path / "long.csv", 1, samples=4000)
    put(tmp_path / "other.csv", 2)
    rows = "long.csv,a,x,0,1000\nlong.csv,a,y,1000,2000\nother.csv,a,x,,\nlong.csv,b,,2000,\n"
    catalogue = Folder(root=manifest(tmp_path, f"path,domain,label,start,stop\n{rows}")).catalogue()
    with patch.object(folder_module, "read_signals", wraps=folder_module.read_signals) as decoded:
        assert [recording.signal.size for recording in load(catalogue)] == [1000, 1000, 3000, 2000]
    assert [call.args[0].name for call in decoded.call_args_list] == ["long.csv", "other.csv"]


def test_a_file_that_changed_since_it_was_measured_is_decoded_again(tmp_path):
    path = put(tmp_path / "a" / "1.csv", 1)
    (entry,) = folder_module.folder_entries(Folder(root=tmp_path).catalogue())
    entry.read()
    before = path.stat()
    put(path, 2)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    np.testing.assert_allclose(entry.read().signal, np.loadtxt(path), rtol=1e-6)


def test_start_and_stop_beyond_the_end_are_named(tmp_path):
    put(tmp_path / "x.csv", samples=100)
    with pytest.raises(InputError, match=r"x\.csv\[0:500\]: .*stop 500 .*100 samples"):
        load(Folder(root=manifest(tmp_path, "path,domain,stop\nx.csv,a,500\n")).catalogue())


# Files as plants have them: MATLAB's structs, cells and tables, what options say of them, and each bad input.

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
    signals = read_signals(tmp_path / "a.mat")
    assert (list(signals.channels), signals.rate) == (channels.split(), pytest.approx(rate))


def test_a_rate_that_the_file_contradicts_is_refused_and_corrected_by_a_manifest(tmp_path, outer, command):
    wavfile.write(tmp_path / "a.wav", RATE, outer)
    status, _, problem = command("diagnose", tmp_path / "a.wav", *WORDS, "--rate", 2 * RATE)
    assert (status, "a.wav" in problem, "--rate" in problem) == (2, True, True)
    (right,) = bearcat.diagnose(tmp_path / "a.wav", rate=RATE, **KNOWN)
    assert right.state == "outer race"
    manifest(tmp_path, f"path,domain,rate\na.wav,pump,{0.8 * RATE}\n")
    (corrected,) = bearcat.diagnose(tmp_path / "a.wav", trust_speed=True, **KNOWN)
    assert corrected.physics.rate == 0.8 * RATE
    assert corrected.state != right.state


@pytest.mark.parametrize(
    ("variables", "rpm"),
    [
        ({"X097_DE_time": SHORT, "X097_FE_time": SHORT, "X097RPM": 1796.0}, 1796),
        ({"X098_DE_time": SHORT, "X099_DE_time": SHORT, "X099RPM": 1750.0}, 1750),
        ({"X09_DE_time": SHORT, "X098RPM": 1772.0, "X099RPM": 1750.0}, None),
        ({"bearing": {"gs": SHORT, "sr": 50.0, "rate": 25.0, "rpm": 1500.0}}, 1500),
        ({"x": SHORT, "max_rpm": 3000.0, "speed": 1500.0}, None),
        ({"x": SHORT, "rpm": np.full(600, 1500.0)}, None),
    ],
)  # fmt: skip
def test_a_number_states_the_speed(tmp_path, variables, rpm):
    savemat(tmp_path / "a.mat", variables)
    assert read_signals(tmp_path / "a.mat").rpm == rpm


@pytest.mark.parametrize(
    ("in_file", "listed", "usual", "expected"),
    [
        (None, None, 1480, 1480), (1500, None, None, 1500), (1500, None, 1500.5, 1500),
        (1500, 1480, None, "1480 with a note"), (1500, 1480, 900, "1480 with a note"),
        (1500, None, 1480, "1500 with a note"), (1500, None, 1440, "refused"), (1500, 900, None, "900 with a note"),
        (0.0, None, None, "None with a note"), (-5.0, None, 1480, "1480 with a note"),
        (float("nan"), 1480, None, "1480 with a note"), (1e9, None, None, "None with a note"),
    ],
)  # fmt: skip
def test_which_speed_counts(in_file, listed, usual, expected):
    if expected == "refused":
        with pytest.raises(InputError, match="a.mat.*1500 rpm.*1440 rpm") as refused:
            stated_speed("a.mat", in_file, listed, usual)
        assert refused.value.field == "rpm"
        return
    rpm, finding = stated_speed("a.mat", in_file, listed, usual)
    assert f"{rpm} with a note" == expected if finding is not None else rpm == expected


def test_a_file_that_states_its_speed_needs_no_option_and_is_not_contradicted(tmp_path, outer, command):
    savemat(tmp_path / "a.mat", {"bearing": {"gs": outer, "sr": float(RATE), "rpm": 1500.0}})
    words = ("diagnose", tmp_path / "a.mat", "--bearing", "6203", "--trust-speed", "--format", "json")
    status, output, _ = command(*words)
    (recording,) = json.loads(output)["recordings"]
    assert (status, recording["state"], recording["speed"]["stated"]) == (1, "outer race", 1500)
    status, _, problem = command(*words, "--rpm", 1965)
    assert (status, "a.mat" in problem, "--rpm" in problem) == (2, True, True)
    assert "1510 rpm" in command(*words, "--rpm", 1510)[2]
    (tmp_path / "manifest.csv").write_text("path,domain,rpm,bearing\na.mat,pump,1510,6203\n")
    (listed,) = bearcat.diagnose(tmp_path)
    assert (listed.speed.stated, listed.state) == (1510, "outer race")
    assert {finding.kind: finding.values for finding in listed.findings}["other speed"] == {"own": 1500, "given": 1510}


def test_speed_and_bearing_fill_what_a_manifest_leaves_empty(tmp_path, outer, command):
    for name in ("full.wav", "silent.wav"):
        wavfile.write(tmp_path / name, RATE, outer + np.float32(1e-6 * len(name)))
    (tmp_path / "manifest.csv").write_text("path,domain,rpm,bearing\nfull.wav,a,1965,6203\nsilent.wav,a,,\n")
    words = ("diagnose", tmp_path, *WORDS, "--trust-speed", "--format", "json")
    _, output, notes = command(*words)
    listed, silent = json.loads(output)["recordings"]
    assert (listed["physics"]["rpm"], silent["physics"]["rpm"]) == (1965, 1500)
    assert silent["state"] == "outer race" != listed["state"]
    assert re.search(r"full\.wav.*1965 rpm.*1500 rpm", notes)
    assert "silent.wav" not in notes
    assert listed["recording"] == str(tmp_path / "full.wav"), "a path that leads there"


def test_speed_may_be_the_name_of_a_channel(tmp_path, outer, command):
    speed = np.full(len(outer), 1500.0)
    np.savez(tmp_path / "a.npz", de=outer, turns=speed, fs=RATE, flat=np.full(len(outer), 0.5))
    words = ("diagnose", tmp_path / "a.npz", "--channel", "de", "--bearing", "6203", "--format", "json", "--rpm")
    status, output, _ = command(*words, "turns")
    (recording,) = json.loads(output)["recordings"]
    assert (status, recording["state"], recording["speed"]["by"]) == (1, "outer race", "tacho")
    assert recording["speed"]["rpm"] == pytest.approx(1500)
    for name in ("tunrs", "flat"):
        status, _, problem = command(*words, name)
        assert (status, name in problem, "--rpm" in problem) == (2, True, True)
    np.savez(tmp_path / "b.npz", turns=speed, fs=RATE)
    assert "beside" in command("diagnose", tmp_path / "b.npz", "--bearing", "6203", "--rpm", "turns")[2]


def test_an_option_given_twice_is_an_error_that_names_it(command):
    for words in (("--rpm", 1, "--rpm", 2), ("--trust-speed", "--trust-speed")):
        status, _, problem = command("diagnose", "x", *words)
        assert (status, words[0] in problem, problem.count("\n")) == (2, True, 1)
