"""Files of several channels: which are vibrations, which are one point, each decoded once, and who owns a line."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import savemat, wavfile

import bearcat
from bearcat.data import formats
from bearcat.data.bearing import BEARINGS
from bearcat.data.channels import is_speed, points_of, vibrations
from bearcat.data.folder import Folder
from bearcat.deploy.find import FoundMeasurement, FoundRecording, Given, find_units
from bearcat.diagnosis.lines import envelope_spectra, last_order, levels_over_background
from bearcat.diagnosis.physics import PhysicsEvidence, cross_talk, loudness, physics_evidence
from bearcat.errors import InputError
from tests.test_diagnosis import simulated

ORDERS = BEARINGS["6203"].orders()


def find_measurements(paths, **options) -> list[FoundMeasurement]:
    units = [unit for path in paths for unit in find_units(path, Given(**options))]
    return [measurement for unit in units for measurement in unit.open()]


def noise(channels: int, samples: int = 30_000, seed: int = 0) -> np.ndarray:
    """(sample, channel)"""
    return np.random.default_rng(seed).standard_normal((samples, channels)).astype(np.float32)


def write_csv(path, names, values):
    np.savetxt(path, values, delimiter=",", header=",".join(names), comments="", fmt="%.6g")
    return path


def shapes(paths, **options):
    """Names of the points' channels, of the only measurement."""
    (measurement,) = find_measurements(paths, **options)
    return [tuple(recording.channel for recording in axes) for axes in measurement.points.values()]


@pytest.mark.parametrize(
    ("names", "points"),
    [
        ("x y z", ["x y z"]), ("Horizontal_accel Vertical_accel", ["Horizontal_accel Vertical_accel"]),
        ("1 2 3 4", ["1", "2", "3", "4"]), ("b1 b2", ["b1", "b2"]), ("DE FE", ["DE", "FE"]), ("a b c", ["a", "b", "c"]),
        ("1H 1V 1A 2H 2V", ["1H 1V 1A", "2H 2V"]), ("DE_x NDE_x DE_y", ["DE_x DE_y", "NDE_x"]),
        ("radial axial", ["radial axial"]), ("3+Z 3-X 4+Z", ["3+Z 3-X", "4+Z"]), ("x x.2", ["x", "x.2"]),
        ("accX accY", ["accX accY"]), ("X097_DE_time X097_FE_time", ["X097_DE_time", "X097_FE_time"]),
    ],
)  # fmt: skip
def test_channels_that_differ_by_an_axis_alone_are_one_point(names, points):
    grouped = points_of(names.split())
    assert [" ".join(channels) for channels in grouped.values()] == points
    assert list(points_of(names.split(), "together").values()) == [tuple(names.split())]
    assert list(points_of(names.split(), "apart").values()) == [(name,) for name in names.split()]


def test_what_is_no_vibration_by_name_or_unit_is_left_out_unless_nothing_else_is_there():
    names = ["DE [g]", "Temp 1", "I [A]", "tacho", "n [1/min]", "High speed shaft", "torque", "phase_current_1"]
    assert vibrations(names) == ["DE [g]", "High speed shaft"]
    assert [name for name in names if is_speed(name)] == ["tacho", "n [1/min]"]
    assert vibrations(["phase_current_1", "phase_current_2"]) == ["phase_current_1", "phase_current_2"]


def write_wav(path, values):
    wavfile.write(path, 12_800, values)


@pytest.mark.parametrize("write", [write_wav, savemat])
def test_channels_are_what_the_file_holds_and_too_many_samples_are_refused(tmp_path, monkeypatch, write):
    values, path = noise(2, 400_000), tmp_path / ("a.wav" if write is write_wav else "a.mat")
    write(path, values if write is write_wav else {"c1": values[:, 0], "c2": values[:, 1]})
    for recording, column in zip(find_recordings(path), values.T, strict=True):
        np.testing.assert_array_equal(recording.read().signal, column)
    monkeypatch.setattr(formats, "MOST_BYTES", 2**20)
    with pytest.raises(InputError, match="1 MiB; cut it"):
        find_recordings(path)


def find_recordings(path) -> list[FoundRecording]:
    points = [axes for measurement in find_measurements([path]) for axes in measurement.points.values()]
    return [recording for axes in points for recording in axes]


def test_many_lost_samples_spoil_their_own_channel_alone(tmp_path):
    values = noise(2)
    values[777:1078, 0] = np.inf
    write_wav(tmp_path / "a.wav", values)
    many, good = find_recordings(tmp_path / "a.wav")
    with pytest.raises(InputError, match="301 of 30000 .*777"):
        many.read()
    assert good.read().signal.size == len(values)


def test_the_speed_is_offered_and_not_diagnosed(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["x [g]", "y [g]", "rpm", "Temp [°C]"], noise(4, 3000))
    (measurement,) = find_measurements([path])
    assert [recording.channel for axes in measurement.points.values() for recording in axes] == ["x [g]", "y [g]"]
    assert measurement.speed is not None
    assert measurement.speed.channel == "rpm"
    assert measurement.speed.read().signal.size == 3000


def test_a_channel_cannot_be_the_speed_and_the_vibration(tmp_path):
    noise = np.random.default_rng(0).standard_normal((2, 30_000))
    np.savez(tmp_path / "a.npz", acc=noise[0], rpm_speed=1500 + 10 * noise[1], fs=12_000.0)
    given = {"channel": "rpm_speed", "rpm": "rpm_speed", "bearing": "6205"}
    with pytest.raises(InputError, match="beside the speed"):
        bearcat.diagnose(tmp_path / "a.npz", **given)


def test_names_or_the_caller_say_what_is_one_point(tmp_path):
    axes, bearings = tmp_path / "axes.csv", tmp_path / "bearings.csv"
    write_csv(axes, ["x", "y"], noise(2, 2000))
    write_csv(bearings, ["b1", "b2"], noise(2, 2000))
    assert shapes([axes]) == [("x", "y")]
    assert shapes([bearings]) == [("b1",), ("b2",)]
    assert shapes([axes], channels="apart") == [("x",), ("y",)]
    assert shapes([bearings], channels="together") == [("b1", "b2")]
    assert shapes([bearings], channel="b2") == [("b2",)]
    (one,) = find_measurements([axes])
    assert [*one.points] == [str(axes)]


def test_a_model_reads_the_channel_it_was_adapted_to_where_it_is_there(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["b1", "b2"], noise(2, 2000))
    for channel, points in (("b2", [("b2",)]), ("DE", [("b1",), ("b2",)])):
        assert shapes([path], assumed_channel=channel) == points


def test_a_manifest_says_what_is_one_point(tmp_path):
    write_wav(tmp_path / "a.wav", noise(4))
    rows = "path,domain,channel,point,channels,machine\n"
    (tmp_path / "manifest.csv").write_text(rows + "a.wav,d,,,together,pump\n")
    assert shapes([tmp_path]) == [("1", "2", "3", "4")]
    (tmp_path / "manifest.csv").write_text(rows + "a.wav,d,1,DE,,pump\na.wav,d,3,DE,,pump\na.wav,d,4,,,pump\n")
    assert shapes([tmp_path / "a.wav"]) == [("1", "3"), ("4",)]
    (measurement,) = find_measurements([tmp_path])
    assert [*measurement.points] == [f"{tmp_path / 'a.wav'}#{name}" for name in ("DE", "4")]
    assert {recording.machine for axes in measurement.points.values() for recording in axes} == {"pump"}
    (tmp_path / "manifest.csv").write_text(rows + "a.wav,d,,,sideways,pump\n")
    assert "sideways" in Folder(tmp_path).catalogue().problems[0].sentence


def read(signal: np.ndarray) -> PhysicsEvidence:
    spectra = envelope_spectra(np.asarray(signal, dtype=np.float32), 16_000.0, 1500.0, last_order(ORDERS))
    return physics_evidence(spectra, levels_over_background(spectra), 16_000.0, 1500.0, ORDERS)


def test_a_line_that_leaks_to_a_neighbour_is_the_loudest_ones():
    fault, healthy = simulated("outer race").signal, simulated("healthy").signal
    evidence = [read(signal) for signal in (0.1 * fault + 0.002 * healthy[::-1], fault, healthy)]
    owners = cross_talk([loudness(item) for item in evidence])
    assert owners[0]["outer race"] == (pytest.approx(20, abs=3), 1)
    assert "outer race" not in owners[1]
    assert cross_talk([loudness(evidence[0]), loudness(None)]) == [{}, {}]  # nobody is louder
