"""Recordings, windows, and what is made of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import signal as processing

from bearcat.data.bearing import BEARINGS
from bearcat.data.inputs import Preparation
from bearcat.data.recording import (
    RecordingInfo,
    change_rate,
    count_windows,
    cut,
    standardise,
)
from bearcat.data.windows import prepare
from bearcat.errors import InputError
from bearcat.settings import from_plain, to_plain
from tests.conftest import make_recording
from tests.reference import inputs as reference


@given(samples=st.integers(1, 500), length=st.integers(2, 60), stride=st.integers(1, 80))
def test_cut_makes_as_many_windows_as_fit(samples, length, stride):
    expected = len([start for start in range(0, samples, stride) if start + length <= samples])
    assert count_windows(samples, length, stride) == expected
    if expected:
        windows = cut(make_recording(np.arange(samples)), length, stride)
        slow = [list(range(start, start + length)) for start in range(0, expected * stride, stride)]
        np.testing.assert_array_equal(windows[:, 0], slow)


@pytest.mark.parametrize("kind", ["time", "frequency"])
@pytest.mark.parametrize(("length", "stride"), [(64, 64), (64, 10), (33, 40)])
def test_prepared_windows_are_those_of_the_plain_loop(kind, length, stride):
    recordings = [make_recording(seed=seed, samples=1000 + 37 * seed) for seed in range(3)]
    windows = prepare(recordings, Preparation(input=kind, length=length, stride=stride))
    expected = np.concatenate([reference.prepared(recording.signal, length, stride, kind) for recording in recordings])
    assert windows.values.dtype == np.float32
    np.testing.assert_allclose(windows.values[:, 0], expected, atol=2e-5)
    for number, recording in enumerate(recordings):
        mine = windows.recording == number
        np.testing.assert_array_equal(windows.start[mine], np.arange(mine.sum()) * stride)
        assert windows.recordings[number].origin == recording.origin


@given(
    arrays(np.float32, 64, elements=st.floats(-1, 1, width=32)),
    st.sampled_from([1e-18, 1e-6, 1.0, 1e6, 1e15]),
    st.sampled_from([0.0, 1.0, 1e3]),
)
def test_standardise_agrees_with_its_twin_at_every_scale_and_offset(window, scale, offset):
    window = (window * np.float32(scale) + np.float32(offset * scale)).astype(np.float32)
    np.testing.assert_allclose(standardise(window[None])[0], reference.unit(window), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_samples_that_are_no_numbers_are_named_with_their_place(bad):
    signal = np.zeros(100)
    signal[[7, 9]] = bad
    signal = signal.astype(np.float64)
    with np.errstate(over="ignore"), pytest.raises(InputError, match=r"x\.csv: 2 of 100 .*the first at sample 7;"):
        make_recording(signal, origin="x.csv")


def test_gaps_are_filled_by_straight_lines_and_named():
    signal = np.arange(1000, dtype=np.float32)
    gaps = [0, 50, 51, 52, 999]
    signal[gaps] = np.nan
    found = make_recording(signal)
    assert found.gaps == len(gaps)
    assert (found.signal[0], found.signal[999]) == (1, 998)
    np.testing.assert_array_equal(found.signal[1:999], np.arange(1, 999))


def test_a_signal_needs_one_axis_and_a_positive_rate_and_samples():
    with pytest.raises(InputError, match=r"0\.npy: the speed"):
        replace(make_recording(), rpm=0.0)
    with pytest.raises(InputError, match=r"a/inner/0\.npy: 100 samples .*1024"):
        cut(make_recording(samples=100), 1024)
    wrong = [(np.zeros((2, 3)), 1.0, "one axis"), (np.zeros(0), 1.0, "no samples"), (np.zeros(3), -1.0, "Hz")]
    for signal, rate, sentence in wrong:
        with pytest.raises(InputError, match=sentence):
            make_recording(signal, rate=rate)


def test_different_rates_are_an_error_that_offers_to_resample():
    recordings = [make_recording(seed=0, rate=12_000), make_recording(seed=1, rate=48_000, domain="b")]
    with pytest.raises(InputError, match=r"48000 Hz.*--rate 12000"):
        prepare(recordings, Preparation(length=64))
    windows = prepare(recordings, Preparation(length=64, rate=12_000))
    assert {recording.rate for recording in windows.recordings} == {12_000}
    assert np.bincount(windows.recording).tolist() == [64, 16]


def test_what_is_known_of_a_recording_survives_json():
    full = replace(make_recording(), rpm=1200.0, bearing=BEARINGS["6205"], machine="pump A")
    for recording in (make_recording(), full):
        assert from_plain(RecordingInfo, json.loads(json.dumps(to_plain(recording.info())))) == recording.info()
    assert prepare([full], Preparation(length=64)).recordings == (full.info(),)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [("input", "frequenzy", "did you mean 'frequency'"), ("length", 1, "length"), ("stride", 0, "step"), ("rate", -5.0, "rate")],
)  # fmt: skip
def test_a_wrong_preparation_is_refused(name, value, word):
    with pytest.raises(InputError, match=word):
        Preparation(**{name: value})


@pytest.mark.parametrize(
    ("up", "down", "samples"),
    [(15, 64, 5120), (1, 4, 999), (147, 160, 4001), (999, 1000, 3000), (1, 1000, 3001), (100, 1, 50), (2, 1, 1)],
)
def test_changing_the_rate_is_scipys_polyphase_filter(up, down, samples):
    signal = np.random.default_rng(0).standard_normal(samples).astype(np.float32)
    expected = processing.resample_poly(signal, up, down)
    found = change_rate(signal, up, down)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-5
