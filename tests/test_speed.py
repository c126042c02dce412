"""The speed of the shaft: found, checked, followed; and what must not be taken for it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.signal import lfilter

from bearcat.data.bearing import BEARINGS
from bearcat.data.recording import Recording
from bearcat.data.simulate import Simulated
from bearcat.deploy.find import FoundRecording, Given, alone, found_recording
from bearcat.diagnosis.combs import GRID, follow_speed, shaft_lines, shaft_scores
from bearcat.diagnosis.speed import measure_speed
from tests import pooled
from tests.reference import speed as slow

RATE = 8192.0
ORDERS = BEARINGS["6203"].orders()


def array_recording(signal: np.ndarray, rate: float | None, name: str) -> FoundRecording:
    return found_recording(Recording(signal=signal, rate=rate, domain="", origin=name))


def turning(
    hertz: float, seconds: float = 5.0, teeth=(1.0, 0.4, 0.3, 0.2, 0.2), supply: float = 0.0, noise: float = 1.0
) -> np.ndarray:
    """Lines of a shaft in noise, and of the mains."""
    drawn, time = np.random.default_rng(0), np.arange(int(seconds * RATE)) / RATE
    signal = noise * drawn.standard_normal(time.size)
    for number, height in enumerate(teeth, 1):
        signal += height * np.sin(2 * np.pi * number * hertz * time + drawn.uniform(0, 6))
    for number in range(1, 6):
        signal += supply * np.sin(2 * np.pi * number * 50 * time + drawn.uniform(0, 6))
    return signal.astype(np.float32)


@cache
def varying(state: str) -> tuple[Recording, np.ndarray]:
    """A simulated bearing whose speed swings by a tenth, and that speed in rpm."""
    speeds: list[np.ndarray] = []

    def turns(physics, condition, rate, samples, generator):
        time = np.arange(samples) / rate
        speeds.append(60 * condition.shaft * (1 + 0.1 * np.sin(2 * np.pi * time / 3.1)))
        return np.cumsum(speeds[-1]) / 60 / rate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bearcat.data.vibration._shaft_turns", turns)
        machine = Simulated(seconds=4.0, severities=(2.0,), faults=("inner", "outer"))
        recording = machine.recording("N15_M07_F10", f"{state.removesuffix(' race')}-1")
    return recording, speeds[0][-recording.signal.size :]


@pytest.mark.parametrize("hertz", [9.7, 16.61, 24.87, 27.3, 49.2])
def test_an_unknown_speed_is_found_beside_lines_of_the_mains(hertz):
    for supply in (0.0, 1.0):
        found = measure_speed(turning(hertz, supply=supply), RATE)
        assert found.rpm == pytest.approx(60 * hertz, rel=0.002)
        assert found.by == "shaft line"
        assert found.level > 20


def test_a_shaft_at_1207_rpm_stated_as_900_is_said_and_corrected_unless_trusted():
    signal = turning(1207 / 60, teeth=(20.0, 3.0, 2.0, 1.0, 1.0))
    found = measure_speed(signal, RATE, stated=900.0)
    assert found.corrected
    assert found.rpm == pytest.approx(1207, rel=0.002)
    (wrong,) = found.findings
    assert (wrong.kind, wrong.values["stated"]) == ("wrong speed", 900.0)
    assert wrong.values["corrected"] == wrong.values["rpm"] == pytest.approx(1207, abs=1)
    trusted = measure_speed(signal, RATE, stated=900.0, trust=True)
    assert (trusted.rpm, trusted.corrected, trusted.by) == (900.0, False, "stated")
    assert "corrected" not in trusted.findings[0].values


@pytest.mark.parametrize("multiple", [2, 3, 4, 1 / 2, 1 / 3])
def test_a_stated_speed_is_never_replaced_by_a_multiple_or_a_fraction_of_itself(multiple):
    signal = turning(1200 / 60, teeth=(20.0, 3.0, 2.0, 1.0, 1.0))
    for off in (0.99, 1.0, 1.01):
        found = measure_speed(signal, RATE, stated=off * 1200 / multiple)
        assert not found.corrected
        assert found.rpm == off * 1200 / multiple
        for finding in found.findings:
            assert (finding.kind, finding.values["multiple"]) == ("multiple of speed", pytest.approx(multiple))


def test_strikes_are_no_shaft_where_the_bearing_fits_a_slower_one():
    """Outer-race strikes whose comb is far clearer than the line of the shaft at 602 rpm."""
    shaft, drawn = 10.03, np.random.default_rng(4)
    rate_of_strikes = shaft * ORDERS["BPFO"]
    signal = turning(rate_of_strikes, teeth=(8.0, 6.0, 5.0, 4.0, 3.0)) + turning(shaft, teeth=(0.3,), noise=0.0)
    struck = np.cumsum((1 + 0.005 * drawn.standard_normal(int(4.9 * rate_of_strikes))) / rate_of_strikes)
    forces = np.bincount((struck * RATE).astype(int), minlength=signal.size)[: signal.size]
    signal = signal + lfilter(30 * np.exp(-np.arange(80) / 15) * np.sin(2 * np.arange(80)), 1, forces)
    found = measure_speed(signal.astype(np.float32), RATE, ORDERS, stated=500.0)
    assert found.rpm == pytest.approx(60 * shaft, rel=0.02)
    assert (found.by, found.corrected) == ("fault lines", True)
    assert measure_speed(signal.astype(np.float32), RATE, ORDERS).rpm is None


def test_the_scores_of_shafts_agree_with_the_slow_twin():
    lines = shaft_lines(turning(16.61, seconds=2.0), RATE)
    scores, first = shaft_scores(lines)
    for number in (*range(0, GRID.size, 40), int(scores.argmax())):
        expected = slow.score(lines.levels, lines.spacing, lines.seconds, float(GRID[number]))
        np.testing.assert_allclose((scores[number], first[number]), expected, atol=1e-9)


@pytest.mark.parametrize("state", ["inner race", "outer race"])
def test_a_speed_that_varies_by_ten_percent_is_followed(state):
    recording, speed = varying(state)
    track = follow_speed(recording.signal, recording.rate, 1500.0, ORDERS)
    assert np.median(abs(track / speed - 1)) < 0.01
    found = measure_speed(recording.signal, recording.rate, ORDERS, stated=1500.0)
    assert found.by == "followed"
    assert found.varies == pytest.approx(0.1, abs=0.02)


def pulses_of(speed: np.ndarray, rate: float, count: int) -> np.ndarray:
    """A tacho: so many short pulses a turn."""
    turns = np.cumsum(speed) / 60 / rate * count
    return ((turns % 1) < 0.1).astype(np.float32) * 5


@pytest.mark.parametrize(
    ("tacho", "state"),
    [("rpm", "inner race"), ("pulses", "outer race"), ("six pulses", "inner race"), (None, "outer race")],
)
def test_a_varying_speed_is_followed_before_a_recording_is_diagnosed(state, tacho):
    recording, speed = varying(state)
    rate = float(recording.rate or 0)
    made = {"rpm": speed, "pulses": pulses_of(speed, rate, 1), "six pulses": pulses_of(speed, rate, 6)}.get(str(tacho))
    channel = None if made is None else array_recording(np.asarray(made, dtype=np.float32), rate, "tacho")
    found = alone(array_recording(recording.signal, rate, "x"), channel)
    (diagnosis,) = pooled.diagnosed(found, Given(rpm=1500.0, bearing=BEARINGS["6203"]))
    assert (diagnosis.state, diagnosis.decision.action) == (state, "alarm")
    assert diagnosis.speed.by == ("followed" if tacho is None else "tacho")
    assert diagnosis.speed.varies == pytest.approx(0.1, abs=0.03)
