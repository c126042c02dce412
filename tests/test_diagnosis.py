"""Diagnosis from physics alone: identities of gain, clock, speed and streaming, a slow twin, and one sentence for bad input."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.io import wavfile

from bearcat.data.bearing import BEARINGS
from bearcat.data.recording import Recording
from bearcat.data.simulate import Simulated
from bearcat.deploy.find import Given, alone, array_recording
from bearcat.diagnosis.lines import DECIBELS, FAULTS, SCALES, find_lines, levels_over_background, other_orders
from bearcat.diagnosis.physics import STATES, PhysicsEvidence, state_of
from bearcat.diagnosis.recording import Diagnosis
from bearcat.diagnosis.spectra import Plan, Spectra, bands
from bearcat.errors import InputError
from tests import pooled
from tests.reference import diagnosis as slow

ORDERS = BEARINGS["6203"].orders()


@cache
def simulated(state: str, seconds: float = 3.0) -> Recording:
    machine = Simulated(seconds=seconds, severities=(2.0,), faults=("inner", "outer", "ball"))
    return machine.recording("N15_M07_F10", state if state == "healthy" else f"{state.removesuffix(' race')}-1")


def diagnosis_of(recording: Recording, rpm: float | None = None) -> Diagnosis:
    found = array_recording(recording.signal, recording.rate, recording.origin)
    given = Given(rpm=rpm or recording.rpm, bearing=BEARINGS["6203"])
    return pooled.diagnosed(alone(found), given).usable()[0]


def diagnosed(recording: Recording, rpm: float | None = None) -> PhysicsEvidence:
    physics = diagnosis_of(recording, rpm).physics
    assert physics is not None
    return physics


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
    plan = Plan(600, rate=600.0, rpm=600.0, last=3.0)
    found = plan.measure(window)
    assert found is not None
    assert len(found.power) == 7  # the whole, two halves and four quarters hold twice the highest order
    lines = slow.whitened(window)
    narrow = [slow.squared_envelope(lines, 1 + band * plan.width, plan.width, plan.size) for band in range(4)]
    envelopes = [sum(narrow), narrow[0] + narrow[1], narrow[2] + narrow[3], *narrow]
    for row, envelope in enumerate(envelopes):
        power, kurtosis = slow.power(np.asarray(envelope), plan.bins)
        np.testing.assert_allclose(found.power[row], power, rtol=2e-3, atol=2e-3 * power.max())
        assert found.kurtosis[row] == pytest.approx(kurtosis, rel=1e-3)
    assert bands(7)[1:4] == [(0.0, 0.5), (0.5, 1.0), (0.0, 0.25)]


def test_evidence_agrees_with_the_slow_twin():
    drawn = np.random.default_rng(1)
    turns, last = 10.0, 21.0
    power = drawn.exponential(size=(3, int(last * turns)))
    for multiple in (1, 2, 3):
        power[1, round(multiple * 1.01 * ORDERS["BPFO"] * turns)] *= 40
    spectra = Spectra(power, turns, 1, np.full(3, 2.0))
    levels = np.array([[slow.level(row, k, 15, 4) for k in range(row.size)] for row in power])
    np.testing.assert_allclose(levels_over_background(spectra), levels, atol=1e-9)
    faults, reached = find_lines(levels, spectra, ORDERS, 12_000.0, 1500.0)
    best = max(
        (sum(min(max(line, 0), 4) for line in slow.comb(levels[band], ORDERS["BPFO"], scale, turns)) / 3, band, scale)
        for band in range(3)
        for scale in SCALES
    )
    outer = faults["outer race"]
    assert sum(min(max(line / DECIBELS, 0), 4) for line in outer.lines) / 3 == pytest.approx(best[0])
    assert (outer.row, outer.band) == (1, (0.0, 3000.0))
    assert outer.scale == pytest.approx(1.01, abs=0.006)
    assert outer.hertz == pytest.approx(outer.scale * ORDERS["BPFO"] * 25)
    assert np.array(outer.lines) / DECIBELS == pytest.approx(slow.comb(levels[1], ORDERS["BPFO"], outer.scale, turns))
    usual = [
        max(
            sum(min(max(line, 0), 4) for line in slow.comb(levels[band], order, scale, turns)) / 3
            for band in range(3)
            for scale in SCALES
        )
        for order in other_orders([times * ORDERS[name] for name, times, _ in FAULTS.values()])
    ]
    assert reached / DECIBELS == pytest.approx(np.mean(usual))


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
        diagnosed(recording, rpm)
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two recordings as wav, of a healthy bearing and of one with a damaged outer race."""
    place = tmp_path_factory.mktemp("plant")
    for state in ("healthy", "outer"):
        wavfile.write(place / f"{state}.wav", 16_000, simulated(state if state == "healthy" else "outer race").signal)
    return place


def test_the_command_prints_and_exits(folder, command):
    words = ("--rpm", 1500, "--bearing", "6203")
    status, output, _ = command("diagnose", folder, *words, "--format", "csv")
    assert status == 1
    rows = list(csv.DictReader(io.StringIO(output)))
    assert [(row["state"], row["decision"]) for row in rows] == [("healthy", "ok"), ("outer race", "alarm")]
    status, output, _ = command("diagnose", folder / "healthy.wav", *words, "--format", "json")
    assert status == 0
    (found,) = json.loads(output)["recordings"]
    assert set(found["physics"]["faults"]) == {"inner race", "outer race", "ball"}
    assert Diagnosis.from_dict(found).to_dict() == found
    data_sheet = ("--rpm", 1500, "--bearing", "bpfo=3.05,bpfi=4.95")
    status, output, errors = command("diagnose", folder, folder / "none.wav", *data_sheet)
    assert status == 1
    assert output.splitlines()[-1] == "3 recordings: 1 alarm, 1 unreadable, 1 ok."
    assert "BPFO" in output
    assert "none.wav" in output
    assert errors == "", "the table says it once"
    assert command("diagnose", folder / "healthy.wav", folder / "none.wav", *words)[0] == 3
    assert command("diagnose", folder / "none.wav", *words)[0] == 2
    aimless = command("diagnose", folder / "outer.wav", "--rpm", 1500 * 1.31, "--bearing", "6203")
    assert aimless[0] == 3
    assert "cannot tell" in aimless[1]


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("--bearing", "6023", "--rpm", 1500), "6023"),
        (("--rpm", 0, "--bearing", "6203"), "--rpm"), (("--rpm", 1500, "--bearing", "6203", "--format", "jsn"), "json"),
    ],
)  # fmt: skip
def test_the_command_refuses_with_one_sentence(folder, words, word, command):
    status, _, errors = command("diagnose", folder / "outer.wav", *words)
    assert status == 2
    assert word in errors
    assert len(errors.strip().splitlines()) == 1
