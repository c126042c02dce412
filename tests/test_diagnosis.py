"""Diagnosis from physics alone, of a known bearing and of one that nobody names: every state, slow twins, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import bearcat
from bearcat.data.bearing import BEARINGS
from bearcat.data.recording import Recording
from bearcat.data.simulate import Simulated
from bearcat.deploy.find import Given, alone, found_recording
from bearcat.diagnosis import lines
from bearcat.diagnosis.decision import UNCLEAR
from bearcat.diagnosis.physics import STATES, state_of
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError
from tests import pooled
from tests.reference import diagnosis as slow

ORDERS = BEARINGS["6203"].orders()
RATE, RPM = 12_800, 1500.0


@cache
def simulated(state: str) -> Recording:
    machine = Simulated(seconds=3.0, severities=(2.0,), faults=("inner", "outer", "ball"))
    return machine.recording("N15_M07_F10", state if state == "healthy" else f"{state.removesuffix(' race')}-1")


def diagnosis_of(recording: Recording, rpm: float | None = None) -> Diagnosis:
    found = found_recording(replace(recording, rpm=rpm or recording.rpm, bearing=BEARINGS["6203"]))
    return pooled.diagnosed(alone(found), Given()).usable()[0]


@pytest.mark.parametrize("state", STATES)
def test_every_state_of_a_simulated_bearing_is_found_and_decided(state):
    diagnosis = diagnosis_of(simulated(state))
    found = diagnosis.physics
    assert found.state == diagnosis.state == state
    assert diagnosis.decision.action == ("ok" if state == "healthy" else "alarm")
    assert diagnosis.confidence == max(diagnosis.probabilities.values())
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert abs(found.fitted_rpm / found.rpm - 1) < 0.012 or state == "healthy"


def test_spectra_agree_with_the_slow_twin():
    window = np.random.default_rng(0).standard_normal(600).astype(np.float32)
    plan = lines.Plan(600, rate=600.0, rpm=600.0, last=3.0)
    found = plan.measure(window)
    assert found is not None
    assert len(found.power) == 7  # the whole, two halves and four quarters hold twice the highest order
    whitened = slow.whitened(window)
    narrow = [slow.squared_envelope(whitened, 1 + band * plan.width, plan.width, plan.size) for band in range(4)]
    envelopes = [sum(narrow), narrow[0] + narrow[1], narrow[2] + narrow[3], *narrow]
    for row, envelope in enumerate(envelopes):
        power, kurtosis = slow.power(np.asarray(envelope), plan.bins)
        np.testing.assert_allclose(found.power[row], power, rtol=2e-3, atol=2e-3 * power.max())
        assert found.kurtosis[row] == pytest.approx(kurtosis, rel=1e-3)
    assert lines.bands(7)[1:4] == [(0.0, 0.5), (0.5, 1.0), (0.0, 0.25)]


def test_evidence_agrees_with_the_slow_twin():
    drawn = np.random.default_rng(1)
    turns, last = 10.0, 21.0
    power = drawn.exponential(size=(3, int(last * turns)))
    for multiple in (1, 2, 3):
        power[1, round(multiple * 1.01 * ORDERS["BPFO"] * turns)] *= 40
    spectra = lines.Spectra(power, turns, 1, np.full(3, 2.0), np.ones(3))
    levels = np.array([[slow.level(row, k, 15, 4) for k in range(row.size)] for row in power])
    np.testing.assert_allclose(lines.levels_over_background(spectra), levels, atol=1e-9)
    faults, reached = lines.find_lines(levels, spectra, ORDERS, 12_000.0, 1500.0)

    def height(order: float, band: int, scale: float) -> float:
        return sum(min(max(line, 0), 4) for line in slow.comb(levels[band], order, scale, turns)) / 3

    best = max(height(ORDERS["BPFO"], band, scale) for band in range(3) for scale in lines.SCALES)
    outer = faults["outer race"]
    assert sum(min(max(line / lines.DECIBELS, 0), 4) for line in outer.lines) / 3 == pytest.approx(best)
    assert (outer.row, outer.band) == (1, (0.0, 3000.0))
    assert outer.scale == pytest.approx(1.01, abs=0.006)
    assert outer.hertz == pytest.approx(outer.scale * ORDERS["BPFO"] * 25)
    comb = slow.comb(levels[1], ORDERS["BPFO"], outer.scale, turns)
    assert np.array(outer.lines) / lines.DECIBELS == pytest.approx(comb)
    others = lines.other_orders([times * ORDERS[name] for name, times, _ in lines.FAULTS.values()])
    usual = [max(height(order, band, scale) for band in range(3) for scale in lines.SCALES) for order in others]
    assert reached / lines.DECIBELS == pytest.approx(np.mean(usual))


def test_strikes_at_no_order_cannot_be_told_and_a_rate_outside_the_range_is_said():
    recording = simulated("outer race")
    rate, rpm = recording.rate or 0, recording.rpm or 0
    aimless = diagnosis_of(recording, rpm * 1.31)
    assert aimless.physics.strikes
    assert aimless.decision.action != "ok"
    slow_machine = diagnosis_of(replace(recording, rate=rate / 8, rpm=rpm / 8))
    assert (slow_machine.state, slow_machine.decision.action) == ("outer race", "alarm")
    assert "value outside range" in {finding.kind for finding in slow_machine.findings}


@pytest.mark.parametrize(
    ("changes", "rpm", "field", "word"),
    [
        ({"rate": None}, 1500, "rate", "rate"),
        ({}, 90_000, "rpm", "up to"),
        ({}, 1.0, "rpm", "least"),
        ({"signal": np.random.default_rng(0).standard_normal(1000)}, 1500, None, "turns"),
        ({"signal": np.clip(np.sin(np.arange(50_000)), -0.3, 0.3)}, 1500, None, "clipped"),
    ],
)
def test_bad_input_is_one_sentence(changes, rpm, field, word):
    recording = replace(simulated("healthy"), rpm=None, **changes)
    with pytest.raises(InputError, match=word) as caught:
        diagnosis_of(recording, rpm)
    assert str(caught.value).startswith(recording.origin)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("Normal", "healthy"), ("healthy", "healthy"), ("IR5", "inner race"), ("inner-007", "inner race"), ("Inner race", "inner race"),
        ("OR8", "outer race"), ("outer_2mm", "outer race"), ("ball-014", "ball"), ("B007", "ball"), ("both-1", None), ("oil", None),
        ("imbalance", None), ("b", None), ("inner+outer", None), ("KA04", "outer race"), ("K001", None),
    ],
)  # fmt: skip
def test_names_of_classes_are_understood(name, state):
    assert state_of(name) == state


def strikes(order: float, seconds: float = 4.0) -> np.ndarray:
    """Noise, a tone of the shaft, and a resonance struck so many times a turn; 0: not struck."""
    drawn, time = np.random.default_rng(0), np.arange(round(seconds * RATE)) / RATE
    signal = 0.3 * drawn.standard_normal(time.size) + np.sin(2 * np.pi * RPM / 60 * time)
    if order:
        ring = np.exp(-800 * time[:256]) * np.sin(2 * np.pi * 3100 * time[:256])
        hits = np.zeros(time.size)
        hits[(np.arange(0, seconds, 60 / RPM / order) * RATE).astype(int)] = 3.0
        signal += np.convolve(hits, ring)[: time.size]
    return signal.astype(np.float32)


def family_of(order: float) -> lines.LineFamily:
    return lines.find_family(lines.envelope_spectra(strikes(order), RATE, RPM, lines.last_family_order(RATE, RPM)), RPM)


@pytest.mark.parametrize(("name", "part", "line"), [("6205", "outer race", "BPFO"), ("NU216E", "inner race", "BPFI")])
def test_the_order_that_strikes_is_found_with_the_bearing_among_those_that_explain_it(name, part, line):
    order = BEARINGS[name].orders()[line]
    found = family_of(order)
    assert (found.order, found.hertz) == pytest.approx((order, order * RPM / 60), rel=0.01)
    assert found.level >= lines.FAMILY
    assert name in found.bearings[part]


def test_noise_and_the_shaft_are_no_family():
    assert family_of(0).level < lines.FAMILY / 2
    shaft = family_of(6.06)
    assert shaft.shaft_multiple == 6  # of a speed that is 1 % off, or of a bearing: nobody can tell
    assert shaft.finding.severity == "check"


@pytest.mark.parametrize("order", [3.58, 5.4, 7.7])
def test_what_explains_an_order_has_it(order):
    for part, bearings in lines.explained(order).items():
        line, times, _ = lines.FAULTS[part]
        orders = [times * BEARINGS[name].orders()[line] for name in bearings]
        assert orders == pytest.approx([order] * len(orders), rel=0.0101)


def test_an_unknown_bearing_is_an_alarm_where_its_lines_stand_out_and_an_estimated_one_is_never_ok():
    words = {"rate": RATE, "rpm": RPM, "bearing": "unknown"}
    (struck,) = bearcat.diagnose(strikes(3.572), **words)
    assert (struck.decision.action, struck.state) == ("alarm", UNCLEAR)
    assert Diagnosis.from_dict(json.loads(json.dumps(struck.to_dict()))).family == struck.family
    with pytest.raises(InputError, match="rate"):
        bearcat.diagnose(strikes(3.572), **words | {"rpm": 60_000}, trust_speed=True)
    for bearing, estimated in (("6005", True), ("6205", False)):
        (found,) = bearcat.diagnose(strikes(0), **words | {"bearing": bearing})
        assert ("estimated geometry" in {finding.kind for finding in found.findings}) == estimated
        assert found.decision.action == "check" or not estimated
