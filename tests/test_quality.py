"""Recordings of which nothing can be diagnosed, and recordings with something wrong; a good one has neither."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.data.signals import SignalLimits
from bearcat.diagnosis.quality import QualityCheck, stopped
from tests.reference import quality as slow

RATE = 12_800.0
NOISE = np.random.default_rng(0).standard_normal(40_000)
TIME = np.arange(NOISE.size) / RATE


def quality(samples, rate=RATE, unit=None, block=10_000):
    check = QualityCheck(rate, unit)
    blocks = (np.asarray(samples[first : first + block], np.float32) for first in range(0, len(samples), block))
    assert sum(part.size for part in check.observe(blocks)) == len(samples)
    return check.finish()


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
        (np.full(5000, 0.25), None, "constant"), (np.zeros(0), None, "empty"), (1e-3 * NOISE, "g", "sensor noise"),
        (1e-2 * NOISE, "m/s²", "sensor noise"), (np.round(NOISE), None, "few values"),
    ],
)  # fmt: skip
def test_what_does_not_change_or_is_too_quiet_for_its_unit_is_no_signal(signal, unit, kind):
    assert quality(signal, unit=unit).no_signal.kind == kind


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


@given(st.lists(st.integers(-12, 12), min_size=20, max_size=300), st.integers(-8, 12))
@settings(max_examples=40, deadline=None)
def test_clipping_agrees_with_its_slow_twin(values, limit):
    samples = [float(min(value, limit)) for value in values]
    limits = SignalLimits()
    limits.add(np.array(samples, dtype=np.float32))
    assert limits.clipped == pytest.approx(slow.clipped(samples))


def test_a_machine_stands_still_far_below_its_other_recordings():
    assert stopped(1.0, [70.0, 80.0, 90.0]).kind == "standing still"
    assert stopped(0.0, [70.0, 80.0, 90.0])
    assert stopped(8.0, [70.0, 80.0, 90.0]) is None  # 20 dB: a slower shaft
    assert stopped(1.0, [80.0, 90.0]) is None  # too few to compare with
