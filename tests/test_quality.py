"""What is wrong with a recording, and how loud it is: quality, velocity, and zones of ISO 20816-3."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from bearcat.data.channels import Declared, share_at_limits
from bearcat.data.manifest import Columns
from bearcat.diagnosis.quality import ZONES, Channel, check_quality, stopped, velocity_rms, vibration_severity
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError
from bearcat.settings import DiagnoseRequest

RATE = 12_800.0
NOISE = np.random.default_rng(0).standard_normal(40_000)
TIME = np.arange(NOISE.size) / RATE
GROUP_2 = Declared("m/s²", 2, "rigid")


def quality(samples, unit=None, rpm=None):
    return check_quality(Channel("a", np.asarray(samples, np.float32), RATE, unit, rpm=rpm))


@pytest.mark.parametrize(
    "signal", [NOISE, 1e-6 * NOISE, NOISE + 1000, np.round(8 * NOISE) / 1000, np.sin(2 * np.pi * 317 * TIME) + NOISE]
)
def test_nothing_is_wrong_with_a_good_recording(signal):
    found = quality(signal)
    assert (found.no_signal, found.findings) == (None, ())
    assert found.rms == pytest.approx(np.std(signal.astype(np.float32), dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize(
    ("signal", "unit", "kind"),
    [
        (np.full(5000, 0.25), None, "constant"), (1e-3 * NOISE, "g", "sensor noise"),
        (1e-2 * NOISE, "m/s²", "sensor noise"), (np.round(NOISE), None, "few values"),
    ],
)  # fmt: skip
def test_what_does_not_change_or_is_too_quiet_for_its_unit_is_no_signal(signal, unit, kind):
    assert quality(signal, unit).no_signal.kind == kind


@pytest.mark.parametrize(
    ("signal", "kind"),
    [
        (np.clip(NOISE, -2, 2), "clipped"),
        (np.where((TIME > 1) & (TIME < 1.1), 0.0, NOISE), "dropouts"),
        (np.fft.irfft(np.r_[np.fft.rfft(NOISE)[:8000], np.zeros(12_001)]), "band limited"),
        (np.sin(2 * np.pi * 50 * TIME) + 0.3 * np.sin(2 * np.pi * 150 * TIME) + 1e-3 * NOISE, "mains hum"),
        (np.cumsum(np.cumsum(NOISE)) + NOISE, "no vibration"),
        ((TIME % 0.05 < 0.002) * 5.0 + 0.01 * NOISE, "no vibration"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_finding_and_is_no_reason_to_stay_silent(signal, kind):
    found = quality(signal)
    assert found.no_signal is None
    assert [finding.kind for finding in found.findings].count(kind) == 1


@pytest.mark.parametrize(("hertz", "hums"), [(1480 / 30, False), (50.0, True)])
def test_twice_the_stated_speed_is_no_mains_hum(hertz, hums):
    found = quality(np.sin(2 * np.pi * hertz * TIME) + 1e-3 * NOISE, rpm=1480.0)
    assert ("mains hum" in {finding.kind for finding in found.findings}) == hums


def test_samples_at_the_limits_are_counted_where_they_are_far_more_than_those_beside_them():
    clipped = np.clip(NOISE, -9, 2).astype(np.float32)
    assert share_at_limits(clipped) == pytest.approx(np.mean(NOISE >= 2))
    assert share_at_limits(np.round(100 * NOISE).astype(np.float32)) == 0


def test_a_machine_stands_still_far_below_its_other_recordings():
    assert stopped(1.0, [70.0, 80.0, 90.0]).kind == "standing still"
    assert stopped(0.0, [70.0, 80.0, 90.0])
    assert stopped(8.0, [70.0, 80.0, 90.0]) is None  # 20 dB: a slower shaft
    assert stopped(1.0, [80.0, 90.0]) is None  # too few to compare with


def tone(velocity: float, hertz: float = 50.0, seconds: float = 2.0) -> np.ndarray:
    """An acceleration in m/s² whose velocity has this root mean square in mm/s."""
    time = np.arange(round(seconds * RATE)) / RATE
    return np.sqrt(2) * velocity / 1000 * 2 * np.pi * hertz * np.sin(2 * np.pi * hertz * time)


def test_the_velocity_of_tones_is_known():
    both = tone(3.0) + tone(4.0, 400.0)
    outside = tone(3.0) + tone(5.0, 4.0) + tone(5.0, 1500.0)
    speed = 2.0 * np.sqrt(2) * np.sin(2 * np.pi * 50 * np.arange(2 * RATE) / RATE)
    for signal, unit, expected, tolerance in (
        (both, "m/s²", 5.0, 1e-3), (both / 9.80665, "g", 5.0, 1e-3), (tone(3.0), "mm/s²", 0.003, 1e-3),
        (outside, "m/s²", 3.0, 1e-2), (speed, "mm/s", 2.0, 1e-3),
    ):  # fmt: skip
        assert velocity_rms(signal, RATE, unit) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("group", "mounting"), ZONES)
def test_zones_begin_at_the_standards_velocities(group, mounting):
    ends, declared = ZONES[group, mounting], Declared("m/s²", group, mounting)
    found = [vibration_severity(tone(factor * end), RATE, declared).zone for end in ends for factor in (0.98, 1.02)]
    assert found == ["A", "B", "B", "C", "C", "D"]


@pytest.mark.parametrize(
    ("seconds", "rate", "declared", "rpm", "word"),
    [
        (2.0, RATE, Declared(), None, "unit and group and mounting"), (2.0, RATE, Declared("g", 2), None, "--mounting"),
        (0.2, RATE, GROUP_2, None, "too short"), (1.0, RATE, GROUP_2, 300.0, "2 Hz"),  # slow shafts: lower frequencies
        (2.0, 1000.0, GROUP_2, None, "rate"), (2.0, None, GROUP_2, None, "rate"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_where_a_zone_is_asked_for(seconds, rate, declared, rpm, word):
    found = vibration_severity(tone(1.0, seconds=seconds), rate, declared, rpm)
    assert (found.zone, found.velocity) == (None, None)
    assert word in found.missing
    assert (found.finding is not None) == bool(declared.group or declared.mounting)
    assert found.finding is None or found.finding.severity == "remark"


@pytest.mark.parametrize("declared", [{"group": 0}, {"mounting": "sof"}])
def test_what_the_standard_does_not_know_is_refused_wherever_it_is_declared(declared):
    with pytest.raises(InputError, match=next(iter(declared))):
        DiagnoseRequest.of(**declared)
    with pytest.raises(InputError, match=next(iter(declared))):
        Columns.of(**declared)


def test_a_manifest_declares_it(tmp_path):
    wavfile.write(tmp_path / "a.wav", int(RATE), (tone(6.0) + 0.1 * NOISE[: int(2 * RATE)]).astype(np.float32))
    manifest, known = "path,domain,unit,group,mounting\na.wav,pump,mm/s²,2,rigid\n", {"rpm": 1500, "bearing": "6205"}
    for text, zone in ((manifest, "A"), (manifest.replace("mm", "m"), "D")):
        (tmp_path / "manifest.csv").write_text(text, encoding="utf-8")
        (found,) = bearcat.diagnose(tmp_path, **known)
        assert (found.vibration.zone, found.row()["zone"]) == (zone, zone)
        assert Diagnosis.from_dict(json.loads(json.dumps(found.to_dict()))).vibration == found.vibration
    assert (found.decision.action, found.vibration.velocity) == ("alarm", pytest.approx(6.0, rel=0.05))
    (tmp_path / "manifest.csv").write_text(manifest.replace(",2,", ",4,"), encoding="utf-8")
    assert "group" in str(bearcat.diagnose(tmp_path, **known).problems)
