"""Velocity and zones of ISO 20816-3, and what is missing for them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from bearcat.data import Folder, Task
from bearcat.data.channels import Declared
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.levels import ZONES, VibrationSeverity, level_values, velocity_rms, vibration_severity
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES
from bearcat.runs.run import heard
from bearcat.runs.spec import Library, RunSpec
from bearcat.trust.decision import ALARM, CHECK, HEALTHY, OK, RecordingEvidence, decide
from tests.reference import levels as twin

RATE, GROUP_2 = 4096.0, Declared("m/s²", 2, "rigid")


def tone(velocity: float, hertz: float = 50.0, seconds: float = 2.0, rate: float = RATE) -> np.ndarray:
    """An acceleration in m/s² whose velocity has this root mean square in mm/s."""
    time = np.arange(round(seconds * rate)) / rate
    return np.sqrt(2) * velocity / 1000 * 2 * np.pi * hertz * np.sin(2 * np.pi * hertz * time)


def test_the_velocity_of_tones_is_known():
    assert velocity_rms(tone(3.0), RATE, "m/s²") == pytest.approx(3.0, rel=1e-3)
    both = tone(3.0) + tone(4.0, 400.0)
    assert velocity_rms(both, RATE, "m/s²") == pytest.approx(5.0, rel=1e-3)
    assert velocity_rms(both / 9.80665, RATE, "g") == pytest.approx(5.0, rel=1e-3)
    assert velocity_rms(tone(3.0), RATE, "mm/s²") == pytest.approx(0.003, rel=1e-3)
    outside = tone(3.0) + tone(5.0, 4.0, rate=RATE) + tone(5.0, 1500.0)
    assert velocity_rms(outside, RATE, "m/s²") == pytest.approx(3.0, rel=1e-2)
    speed = 2.0 * np.sqrt(2) * np.sin(2 * np.pi * 50 * np.arange(8192) / RATE)
    assert velocity_rms(speed, RATE, "mm/s") == pytest.approx(2.0, rel=1e-3)


def test_the_velocity_agrees_with_its_slow_twin():
    rate, low = 2048.0, 10.0
    signal = np.random.default_rng(0).standard_normal(1100)
    expected = twin.velocity_rms(signal.tolist(), rate, signal.size, low, 1000.0)
    assert velocity_rms(signal, rate, "m/s²", low) == pytest.approx(expected, rel=1e-9)


def test_a_trend_has_the_same_velocity():
    assert level_values(tone(3.0), RATE, "m/s²")["velocity"] == velocity_rms(tone(3.0), RATE, "m/s²")
    assert "velocity" not in level_values(tone(3.0), RATE, "V")


@pytest.mark.parametrize(("group", "mounting"), ZONES)
def test_zones_begin_at_the_standards_velocities(group, mounting):
    ends = ZONES[group, mounting]
    declared = Declared("m/s²", group, mounting)
    found = [vibration_severity(tone(factor * end), RATE, declared).zone for end in ends for factor in (0.98, 1.02)]
    assert found == ["A", "B", "B", "C", "C", "D"]


@pytest.mark.parametrize(
    ("signal", "rate", "declared", "rpm", "word"),
    [
        (tone(1), RATE, Declared(), None, "unit and group and mounting"),
        (tone(1), RATE, Declared("g", 2), None, "--mounting"),
        (tone(1, seconds=0.2), RATE, GROUP_2, None, "too short"),
        (tone(1, seconds=1.0), RATE, GROUP_2, 300.0, "2 Hz"),  # slow shafts need lower frequencies
        (tone(1), 1000.0, GROUP_2, None, "rate"), (tone(1), None, GROUP_2, None, "rate"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(signal, rate, declared, rpm, word):
    found = vibration_severity(signal, rate, declared, rpm)
    assert (found.zone, found.velocity) == (None, None)
    assert word in found.sentence


@pytest.mark.parametrize(
    ("given", "word"), [({"unit": "V"}, "unit"), ({"group": 3}, "group"), ({"mounting": "soft"}, "mounting")]
)
def test_what_cannot_be_declared_is_refused(given, word):
    with pytest.raises(InputError, match=word):
        Declared(**given)


def test_a_zone_never_makes_a_recording_better():
    for zone, action in (("A", OK), ("B", OK), ("C", CHECK), ("D", ALARM)):
        healthy = RecordingEvidence(HEALTHY, 0.9, 0.1, False, zone=zone, vibration="5 mm/s")
        assert decide(healthy).action == action
        faulty = RecordingEvidence("outer race", 0.9, 0.9, True, zone=zone, vibration="5 mm/s")
        assert decide(faulty).action == ALARM
        assert ("5 mm/s" in decide(healthy).reasons) == (zone in "CD")


def test_options_and_manifest_declare_it_and_json_has_it(tmp_path, command):
    noise = np.random.default_rng(1).standard_normal(2 * 12_800).astype(np.float32)
    loud = tone(6.0, rate=12_800) + 0.1 * noise
    (tmp_path / "pump").mkdir()
    wavfile.write(tmp_path / "pump" / "a.wav", 12_800, loud.astype(np.float32))
    words = ("diagnose", tmp_path / "pump", "--rpm", 1500, "--bearing", "6205", "--format", "json")
    status, shown, _ = command(*words, "--unit", "m/s²", "--group", 2, "--mounting", "rigid")
    (row,) = json.loads(shown)["recordings"]
    assert (status, row["decision"], row["vibration"]["zone"]) == (1, ALARM, "D")
    assert row["vibration"]["velocity"] == pytest.approx(6.0, rel=0.05)
    assert Diagnosis.from_dict(row).vibration.zone == "D"
    _, shown, errors = command(*words, "--group", 2)
    assert "--unit" in errors
    assert "--mounting" in json.loads(shown)["recordings"][0]["vibration"]["missing"]
    assert command(*words, "--mounting", "soft")[0] == 2
    manifest = "path,domain,unit,group,mounting\npump/a.wav,pump,mm/s²,1,flexible\n"
    (tmp_path / "manifest.csv").write_text(manifest, encoding="utf-8")
    (found,) = bearcat.diagnose(tmp_path, rpm=1500, bearing="6205")
    assert (found.vibration.zone, found.row()["zone"]) == ("A", "A")  # a thousandth of it
    (tmp_path / "manifest.csv").write_text(manifest.replace(",1,", ",4,"), encoding="utf-8")
    assert "group" in str(bearcat.diagnose(tmp_path, rpm=1500, bearing="6205").problems)


def test_adapt_finds_the_zones_that_diagnose_finds(tmp_path):
    """By what a manifest declares; in files whose bearing is not known too."""
    noise = np.random.default_rng(1).standard_normal(2 * 12_800)
    rows = ["path,domain,label,unit,group,mounting"]
    for name, velocity, words in (("loud", 6.0, "m/s²,2,rigid"), ("calm", 0.5, "m/s²,2,rigid"), ("bare", 5.9, ",2,")):
        wavfile.write(tmp_path / f"{name}.wav", 12_800, (tone(velocity, rate=12_800) + 0.1 * noise).astype(np.float32))
        rows.append(f"{name}.wav,b,healthy,{words}")
    (tmp_path / "manifest.csv").write_text("\n".join(rows), encoding="utf-8")
    library = Library()
    spec = RunSpec("folder", Folder(tmp_path), Task("a", "b"), "source-only", RECIPES["source-only"])
    origins = [entry.origin for entry in library.catalogue(spec.dataset).entries]
    silent = [Diagnosis.of(origin, Witnesses()) for origin in origins]
    adapted = [each.decided() for each in heard(library, spec, silent)]
    diagnosed = bearcat.diagnose([tmp_path], rpm=1500, bearing="6205")
    assert [each.vibration.zone for each in adapted] == [each.vibration.zone for each in diagnosed] == ["D", "A", None]
    for each, other in zip(adapted[:2], diagnosed, strict=False):
        assert each.vibration.velocity == pytest.approx(other.vibration.velocity)
    assert adapted[0].decision.action == ALARM
    assert "unit" in adapted[2].notes[0], "what is missing is said"


@pytest.mark.parametrize(("velocity", "text"), [(1.4, "1.4"), (1.3961, "1.396"), (1.4004, "1.4004"), (1.2345, "1.2")])
def test_a_velocity_is_shown_on_its_own_side_of_the_end_of_a_zone(velocity, text):
    assert VibrationSeverity(velocity, "A", declared=GROUP_2).shown == f"{text} mm/s"
