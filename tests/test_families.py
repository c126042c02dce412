"""Lines of a bearing that nobody names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from bearcat.data.bearing import BEARINGS
from bearcat.diagnosis.decision import (
    ALARM,
    CHECK,
    UNCLEAR,
)
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.lines import explained, find_family, last_family_order
from bearcat.diagnosis.recording import Diagnosis
from bearcat.diagnosis.spectra import EnvelopeSpectra
from bearcat.errors import InputError
from bearcat.findings import FAMILY
from tests.pooled import decided

RATE, RPM, SHARED = 12_800, 1500.0, Path(__file__).parents[2] / "shared" / "data"


def strikes(order: float, seed: int = 0, seconds: float = 4.0) -> np.ndarray:
    """Noise, a tone of the shaft, and a resonance struck so many times a turn; 0: not struck."""
    drawn, time = np.random.default_rng(seed), np.arange(round(seconds * RATE)) / RATE
    signal = 0.3 * drawn.standard_normal(time.size) + np.sin(2 * np.pi * RPM / 60 * time)
    if order:
        ring = np.exp(-800 * time[:256]) * np.sin(2 * np.pi * 3100 * time[:256])
        hits = np.zeros(time.size)
        hits[(np.arange(0, seconds, 60 / RPM / order) * RATE).astype(int)] = 3.0
        signal += np.convolve(hits, ring)[: time.size]
    return signal.astype(np.float32)


def family_of(signal: np.ndarray):
    spectra = EnvelopeSpectra(RATE, RPM, last_family_order(RATE, RPM))
    spectra.add(signal)
    return find_family(spectra.average(), RATE, RPM)


@pytest.mark.parametrize(("name", "part", "line"), [("6205", "outer race", "BPFO"), ("NU216E", "inner race", "BPFI")])
def test_the_order_that_strikes_is_found_with_the_bearing_among_those_that_explain_it(name, part, line):
    order = BEARINGS[name].orders()[line]
    found = family_of(strikes(order))
    assert found.order == pytest.approx(order, rel=0.01)
    assert found.hertz == pytest.approx(order * RPM / 60, rel=0.01)
    assert found.level >= FAMILY
    assert name in found.bearings[part]


def test_noise_and_the_shaft_are_no_family():
    assert family_of(strikes(0)).level < FAMILY / 2
    shaft = family_of(strikes(6.06))
    assert shaft.shaft_multiple == 6  # of a speed that is 1 % off, or of a bearing: nobody can tell
    assert decided("a", Witnesses(), family=shaft).decision.action == CHECK


def test_what_explains_an_order_has_it():
    for order in (3.58, 5.4, 7.7):
        bearings = explained(order)
        for part, name, times in (("outer race", "BPFO", 1), ("inner race", "BPFI", 1), ("ball", "BSF", 2)):
            known = [times * BEARINGS[each].orders()[name] for each in bearings[part]]
            assert known == pytest.approx([order] * len(known), rel=0.0101)


def test_the_command_looks_for_lines_of_an_unknown_bearing(tmp_path, command):
    wavfile.write(tmp_path / "struck.wav", RATE, strikes(3.572))
    wavfile.write(tmp_path / "quiet.wav", RATE, strikes(0))
    words = ("--rpm", RPM, "--bearing", "unknown", "--format", "json")
    status, shown, _ = command("diagnose", tmp_path / "struck.wav", *words)
    (row,) = json.loads(shown)["recordings"]
    assert (status, row["decision"], row["state"]) == (1, ALARM, UNCLEAR)
    assert {"6205", "ER16K"} <= set(row["family"]["bearings"]["outer race"])
    assert Diagnosis.from_dict(row).family.order == row["family"]["order"]
    status, shown, _ = command("diagnose", tmp_path / "quiet.wav", *words)
    assert (status, json.loads(shown)["recordings"][0]["decision"]) == (3, CHECK)
    (found,) = bearcat.diagnose(tmp_path / "struck.wav", rpm=RPM, bearing="unknown")
    assert found.decision.action == ALARM
    with pytest.raises(InputError, match="rate"):
        bearcat.diagnose(tmp_path / "struck.wav", rpm=60_000, bearing="unknown", trust_speed=True)


def test_an_estimated_bearing_is_never_ok(tmp_path):
    wavfile.write(tmp_path / "quiet.wav", RATE, strikes(0))
    for bearing, said in (("6005", True), ("6205", False)):
        (found,) = bearcat.diagnose(tmp_path / "quiet.wav", rpm=RPM, bearing=bearing)
        assert ("estimated geometry" in {finding.kind for finding in found.findings}) == said
        assert not said or found.decision.action == CHECK
