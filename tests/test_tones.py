"""Strikes at exactly equal distances, which are tones: found by their distances, and distinguished from those of the machine."""

from __future__ import annotations

import numpy as np
import pytest

import bearcat
from bearcat.data.bearing import BEARINGS
from bearcat.diagnosis.tones import meeting_tones
from tests.reference import diagnosis as slow

RATE, SHAFT = 25_600.0, 24.3
ORDERS = BEARINGS["6205"].orders()
TIMES = np.arange(int(3 * RATE)) / RATE


def strikes(order: float, loudness: float = 0.5, slip: float = 0.0) -> np.ndarray:
    """Noise of unit power, and strikes that ring at 4 kHz."""
    drawn = np.random.default_rng(0)
    struck = np.cumsum((1 + slip * drawn.standard_normal(int(4 * order * SHAFT))) / (order * SHAFT)) - 0.5
    since = TIMES - struck[np.searchsorted(struck, TIMES, side="right") - 1]
    ringing = np.exp(-1000 * since) * np.sin(2 * np.pi * 4000 * since)
    return drawn.standard_normal(TIMES.size) + loudness * ringing / ringing.std()


def tones(orders: np.ndarray, loudness: float) -> np.ndarray:
    phases = np.random.default_rng(1).uniform(0, 2 * np.pi, len(orders))
    return loudness * sum(np.sin(2 * np.pi * o * SHAFT * TIMES + p) for o, p in zip(orders, phases, strict=True))


def diagnosed(signal: np.ndarray, rpm: float = 60 * SHAFT, bearing: str = "6205") -> tuple[str, str, dict]:
    found = bearcat.diagnose(signal, rate=RATE, rpm=rpm, bearing=bearing)[0]
    return found.decision.action, found.state, {finding.kind: finding.values for finding in found.findings}


def test_tones_that_meet_agree_with_the_slow_twin():
    magnitude = np.random.default_rng(2).rayleigh(size=(2, 300)).astype(np.float32)
    found, around = meeting_tones(magnitude, turns=10.0, bins=40), 20
    pairs = [slow.meeting(row.astype(np.float64), around, 40) for row in magnitude]
    np.testing.assert_allclose(found[1:], pairs, rtol=1e-3, atol=1e-3 * np.max(pairs))
    louder = meeting_tones(magnitude * np.float32(8), 10.0, 40)
    np.testing.assert_allclose(louder, found, rtol=1e-3, atol=1e-3 * np.max(pairs))


@pytest.mark.parametrize(("name", "times", "state"), [("BPFO", 1, "outer race"), ("BPFI", 1, "inner race"), ("BSF", 2, "ball")])  # fmt: skip
def test_strikes_without_slip_are_an_alarm_with_the_right_type(name, times, state):
    found = bearcat.diagnose(strikes(times * ORDERS[name]), rate=RATE, rpm=60 * SHAFT, bearing="6205")[0]
    assert (found.decision.action, found.state) == ("alarm", state)
    assert "tones" in {finding.kind for finding in found.findings}


def test_tones_of_shaft_gear_mains_motor_and_blades_are_ok():
    gear = np.concatenate([number * 23 + np.arange(-3, 4) for number in (1, 2, 3)])
    motor = np.concatenate([carrier / SHAFT + 4.08 * np.arange(-6, 7) for carrier in (4000, 8000)])
    mains = np.array([50, 100, 150, 200, 300, 600]) / SHAFT
    for family in (np.arange(1, 40), gear, mains, motor, 5.0 * np.arange(1, 60)):
        signal = strikes(1.0, 0.0) + tones(np.array([1.0, 2, 3, 4]), 0.5) + tones(np.asarray(family), 0.3)
        for bearing in ("6205", "6203"):  # the ball of a 6203 strikes 3.99 times a turn, its inner race 4.95 times
            assert diagnosed(signal, bearing=bearing)[:2] == ("ok", "healthy"), (family[:3], bearing)


def test_strikes_close_to_a_multiple_of_a_shaft_whose_speed_is_only_stated_are_to_be_checked():
    order = BEARINGS["6308"].orders()["BPFI"]  # 4.98
    action, _, findings = diagnosed(strikes(order), bearing="6308")
    assert action == "check"
    assert "tones of shaft" in findings


def test_a_fault_that_another_one_explains_at_another_speed_is_said_unless_a_shaft_line_confirms_the_speed():
    ratio, signal = ORDERS["BPFO"] / ORDERS["BPFI"], strikes(ORDERS["BPFO"], slip=0.005)
    action, state, findings = diagnosed(signal, 60 * SHAFT * ratio)
    assert (action, state) == ("alarm", "inner race")
    assert findings["another fault by speed"]["rpm"] == pytest.approx(60 * SHAFT, rel=0.01)
    assert findings["another fault by speed"]["fault"] == "outer race"
    assert "another fault by speed" not in diagnosed(signal)[2]
    shaft = tones(np.arange(1.0, 6.0), 0.5)
    assert diagnosed(signal + shaft, 60 * SHAFT)[:2] == ("alarm", "outer race")
