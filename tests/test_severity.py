"""Velocity and zones of ISO 20816-3, and what is missing for them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from bearcat.data.channels import Declared
from bearcat.diagnosis.decision import ALARM
from bearcat.diagnosis.quality import velocity_rms, vibration_severity
from bearcat.diagnosis.recording import Diagnosis
from bearcat.findings import ZONES
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
def test_what_is_missing_is_said_where_a_zone_is_asked_for(signal, rate, declared, rpm, word):
    found = vibration_severity(signal, rate, declared, rpm)
    assert (found.zone, found.velocity) == (None, None)
    assert word in found.missing
    assert (found.finding is not None) == declared.wanted
    assert found.finding is None or found.finding.severity == "remark"


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
