"""Physical inputs: they equal slow twins, and stay the same where physics says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.data.bearing import BEARINGS
from bearcat.data.inputs import PARTS, WITHOUT_SPEED, Physics, Preparation, find_input
from bearcat.data.recording import Recording, RecordingInfo
from bearcat.data.windows import prepare
from bearcat.errors import InputError
from tests.reference import inputs as twin

RATE, BEARING = 8000.0, BEARINGS["6203"]
ALL = f"physics:use={','.join(PARTS)}:last=20"


def impacts(length: int, rate: float, order: float, rpm: float, seed: int = 0) -> np.ndarray:
    """(length,) a resonance that rings whenever the shaft has turned by 1/order, and noise."""
    random = np.random.default_rng(seed)
    angle = order * np.arange(length) * rpm / 60 / rate
    strikes = np.diff(np.floor(angle), prepend=-1.0)
    seconds = np.arange(200) / rate
    ring = np.exp(-seconds * 800) * np.sin(2 * np.pi * 0.3 * rate * seconds)
    return np.convolve(strikes, ring)[:length] + 0.02 * random.standard_normal(length)


def some(length: int = 1200, number: int = 3, channels: int = 2) -> np.ndarray:
    """(window, channel, time) of unlike impacts."""
    made = [impacts(length, RATE, 3.05 + seed % 3, 900.0, seed) for seed in range(number * channels)]
    return np.array(made, dtype=np.float32).reshape(number, channels, length)


def part(name: str, last: int = 20) -> str:
    return f"physics:use={name}:last={last}"


def transformed(name: str, windows: np.ndarray, rate: float = RATE, rpm: float = 900.0) -> np.ndarray:
    return find_input(name).transform(windows, rate, rpm, BEARING)


@pytest.mark.parametrize("length", [640, 517])
def test_each_part_of_the_physical_input_is_its_slow_twin(length):
    windows = some(length, 2, 1)
    twins = {
        "log-spectrum": lambda x: twin.log_spectrum(x, 128),
        "octave-spectrum": lambda x: twin.octave_spectrum(x, 96, 9),
        "band-kurtosis": lambda x: twin.band_kurtosis(x, 16),
        "envelope-orders": lambda x: twin.envelope_orders(x, RATE, 900.0, 4, 0.5, 12, 160),
    }
    for name, slow in twins.items():
        fast = transformed(part(name, 12), windows)
        assert fast.shape == (2, 1, find_input(part(name)).points(length))
        assert transformed(part(name, 12), windows[:0]).shape == (0, *fast.shape[1:])
        exact = np.array([[slow(x) for x in window] for window in windows])
        # Levels close to 0 have large logarithms; the envelope itself, a root, is sampled, so not exact.
        assert np.quantile(abs(fast - exact), 0.95) < (0.1 if "envelope" in name else 5e-3), name
        assert np.corrcoef(fast.ravel(), exact.ravel())[0, 1] > 0.998, name


def test_bearing_orders_is_its_slow_twin():
    length = 3300  # six turns at 900 rpm
    windows = some(length, 1, 1)
    fast = transformed("bearing-orders:multiples=2", windows)[0, 0]
    exact = twin.bearing_orders(windows[0, 0], RATE, 900.0, BEARING.orders(), 4, 2)
    assert fast.shape == exact.shape == (find_input("bearing-orders:multiples=2").points(length),)
    assert np.quantile(abs(fast - exact), 0.95) < 0.1
    assert np.corrcoef(fast, exact)[0, 1] > 0.999


@settings(max_examples=15, deadline=None)
@given(gain=st.floats(1e-4, 1e4), sign=st.sampled_from([-1.0, 1.0]), offset=st.floats(-30, 30))
def test_gain_and_offset_change_nothing(gain, sign, offset):
    windows = some(600, 1).astype(np.float64)
    changed = sign * gain * (windows + offset * windows.std())
    for name in PARTS:
        same = transformed(part(name), changed), transformed(part(name), windows)
        np.testing.assert_allclose(*same, atol=5e-3, err_msg=name)


def test_a_window_without_vibration_gives_zeros_beside_good_neighbours():
    windows = some()
    windows[1] = 7.0
    values = transformed(ALL, windows)
    assert np.abs(values[1]).max() < 1e-4
    np.testing.assert_allclose(values[0], transformed(ALL, windows[:1])[0], atol=1e-4)


def known(**metadata: object) -> RecordingInfo:
    return RecordingInfo(domain="a", origin="a/1.wav", **metadata)  # type: ignore[arg-type]


def test_physics_uses_what_the_metadata_allow():
    both = known(rate=51200.0, rpm=900.0)
    assert Physics().suited([both, both]) == Physics(tuple(PARTS))
    for lacking in (replace(both, rpm=None), known(rpm=900.0), known(rate=2000.0, rpm=6000.0)):
        assert Physics().suited([both, lacking]) == Physics(WITHOUT_SPEED)
    fast = Physics().suited([known(rate=12000.0, rpm=3000.0)])
    assert fast == Physics(tuple(PARTS), last=30.0)
    fast.check(4096, 12000.0, 3000.0)
    recording = Recording(domain="a", origin="a", signal=some()[0, 0], rate=RATE, rpm=900.0)
    assert prepare([recording], Preparation("physics:last=20", 600)).values.shape == (2, 1, 128 + 96 + 16 + 4 * 160)
    asked = Physics(("log-spectrum",))
    assert asked.suited([both]) == asked


@pytest.mark.parametrize(
    ("name", "length", "metadata", "field", "word"),
    [
        (ALL, 1024, (None, 900.0), "rate", "not known"),
        (ALL, 1024, (RATE, None), "rpm", "not known"),
        (ALL, 1024, (RATE, 0.0), "rpm", "speed"),
        (ALL, 1024, (RATE, float("nan")), "rpm", "speed"),
        (ALL, 1024, (RATE, 6000.0), "rpm", "order 20"),
        ("bearing-orders", 1024, (RATE, 900.0), "bearing", "not known"),
        ("bearing-orders", 1024, (RATE, 60000.0, BEARING), "rpm", "BPFI"),
        ("bearing-orders", 1024, (RATE, 900.0, BEARING), "rpm", "turns"),
        ("physics:use=band-kurtosis", 100, (), "window", "128"),
        (ALL, 256, (RATE, 900.0, BEARING), "window", "516"),
        ("bearing-orders:bands=0", 256, (), None, "bands"),
        ("bearing-orders:multiples=0", 256, (), None, "multiples"),
        ("physics:last=0.2", 256, (), None, "last"),
        ("physics:use=envelope-order", 256, (), None, "envelope-orders"),
        ("fault-orders", 1024, (RATE, 900.0, BEARING), None, "bearing-orders"),
    ],
)  # fmt: skip
def test_what_an_input_cannot_be_made_of_is_refused_by_name(name, length, metadata, field, word):
    with pytest.raises(InputError, match=word) as caught:
        find_input(name).transform(some(length), *metadata)
    assert caught.value.field == field
