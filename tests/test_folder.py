"""Anybody's own recordings, and what can be wrong with them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bearcat.data import Bearing, Folder, Preparation, load, open_dataset, prepare, resample
from bearcat.data import folder as folder_module
from bearcat.data.folder import folder_entries
from bearcat.data.inputs import find_input
from bearcat.data.recording import cut
from bearcat.data.survey import UNLABELLED, measure, survey
from bearcat.errors import InputError
from tests.test_adapt import openings


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
    found = survey(catalogue, Preparation())
    assert not found.problems
    assert list(found.classes) == [("600rpm", "healthy"), ("600rpm", "inner"), ("1200rpm", UNLABELLED)]
    assert [[samples for _, samples in recordings] for recordings in found.classes.values()] == [[3000]] * 3
    assert any("'1200rpm' has no labels" in note for note in found.notes)
    assert any("sampling rate" in note for note in found.notes)
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
    found = load(Folder(root=tmp_path).catalogue())
    assert [(each.origin, each.domain, each.label, each.rate, each.signal.size) for each in found] == [
        ("long.csv[0:2000]", "600rpm", "healthy", 1000, 2000), ("long.csv[2000:]", "600rpm", "worn", 1000, 2000),
        ("two.npy#2[0:1500]", "b", None, 1000, 1500),
    ]  # fmt: skip
    np.testing.assert_allclose(found[2].signal, np.load(tmp_path / "two.npy")[1, :1500].astype(np.float32))
    first, second, third = found
    assert (first.rpm, str(first.bearing), first.machine, first.sensor) == (750, "6205", "pump A", "drive end")
    assert (second.rpm, second.bearing) == (600, Bearing(8, 6.75, 28.5)), "the domain's name says the speed"
    assert (third.rpm, third.bearing, third.machine, third.sensor) == (None, None, None, None)


def test_a_manifest_may_be_as_excel_saves_it(tmp_path):
    put(tmp_path / "müll" / "1.csv")
    text = "Path;Domain;RPM;Bearing;;\nmüll\\1.csv;pump;1480,5;6205;;\n;;;;;\n"
    (tmp_path / "manifest.csv").write_bytes(text.encode("cp1252"))
    (recording,) = load(Folder(root=tmp_path).catalogue())
    assert (recording.domain, recording.rpm, str(recording.bearing)) == ("pump", 1480.5, "6205")


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


@pytest.mark.parametrize(("unit", "sensitivity"), [("V", "0"), ("", "-1"), ("g", "100"), ("", "hundred")])
def test_a_wrong_sensitivity_is_a_problem(tmp_path, unit, sensitivity):
    put(tmp_path / "1.csv")
    manifest(tmp_path, f"path,domain,unit,sensitivity\n1.csv,pump,{unit},{sensitivity}\n")
    (problem,) = Folder(root=tmp_path).catalogue().problems
    assert "sensitivity" in problem.sentence


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
    first, second, slow = load(catalogue)
    assert (first.channel, first.rpm_channel, first.signal.size) == ("vibration", "n", 400)
    np.testing.assert_allclose(np.concatenate([first.speed, second.speed]), speed)
    np.testing.assert_allclose(slow.speed, speed, atol=6)
    assert first.rpm == pytest.approx(speed[:400].mean())
    measured = measure(folder_entries(catalogue)[0])
    assert (measured.rpm, list(measured.channels)) == (pytest.approx(first.rpm), ["vibration"])
    again = resample(replace(first, rate=1000.0), 2000.0)
    np.testing.assert_allclose(again.speed[::2], first.speed, atol=1e-2)
    chosen = Preparation("envelope-orders:last=5:number=8:bands=1", 100, 50, None)
    windows = prepare([replace(first, rate=1000.0)], chosen)
    speeds = np.lib.stride_tricks.sliding_window_view(first.speed, 100)[::50]
    expected = find_input(chosen.input).transform(cut(first, 100, 50), 1000.0, speeds.mean(axis=1))
    np.testing.assert_allclose(windows.values, expected, atol=1e-5)
    assert windows.recordings[0].rpm_channel == "n"
    assert abs(windows.values - prepare([replace(first, rate=1000.0, speed=None)], chosen).values).max() > 0.01
    named = load(Folder(root=tmp_path, rpm="n").catalogue())
    assert named[0].rpm == first.rpm
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
    with openings(tmp_path) as opened:
        assert [recording.signal.size for recording in load(catalogue)] == [1000, 1000, 3000, 2000]
    assert opened == {"long.csv": 1, "other.csv": 1}


def test_a_file_that_changed_since_it_was_measured_is_decoded_again(tmp_path):
    path = put(tmp_path / "a" / "1.csv", 1)
    (entry,) = folder_module.folder_entries(Folder(root=tmp_path).catalogue())
    entry.signals()
    before = path.stat()
    put(path, 2)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    np.testing.assert_allclose(entry.read().signal, np.loadtxt(path), rtol=1e-6)


def test_start_and_stop_beyond_the_end_are_named(tmp_path):
    put(tmp_path / "x.csv", samples=100)
    with pytest.raises(InputError, match=r"x\.csv\[0:500\]: .*stop 500 .*100 samples"):
        load(Folder(root=manifest(tmp_path, "path,domain,stop\nx.csv,a,500\n")).catalogue())
