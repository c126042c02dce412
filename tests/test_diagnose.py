"""Windows into recordings: identities of pooling, agreement with a slow twin, and a temperature that is honest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bearcat.diagnosis.pooling import Tally, pool, pooled_temperature, tally
from bearcat.errors import InputError
from tests.reference import diagnose as reference

quick = settings(max_examples=60, deadline=None)


@st.composite
def windows(draw, least: int = 1):
    """Log-probabilities (window, class) of a recording."""
    shape = (draw(st.integers(least, 12)), draw(st.integers(2, 5)))
    logits = draw(arrays(np.float64, shape, elements=st.floats(-20, 20, width=32)))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def made(seed: int, recordings: int, count: int = 5, classes: int = 4) -> list[np.ndarray]:
    """Recordings whose windows share most of their error."""
    drawn, found = np.random.default_rng(seed), []
    for label in drawn.integers(classes, size=recordings):
        shared = 2.0 * np.eye(classes)[label] + 1.3 * drawn.standard_normal(classes)
        logits = shared + 0.6 * drawn.standard_normal((count, classes))
        found.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    return found


@quick
@given(windows(), st.floats(0.1, 10))
def test_pooling_agrees_with_its_slow_twin(values, temperature):
    found = pool(tally(values), temperature)
    probabilities, agreement = reference.pooled(values, temperature)
    assert found.probabilities == pytest.approx(probabilities, abs=1e-9)
    assert found.probabilities.sum() == pytest.approx(1)
    if np.ptp(np.sort(probabilities)[-2:]) > 1e-9 and (np.ptp(np.sort(values, axis=1)[:, -2:], axis=1) > 0).all():
        assert found.agreement == pytest.approx(agreement)
    assert found.windows == len(values)


@quick
@given(windows(least=2), st.data())
def test_a_recording_may_come_in_parts(values, data):
    place = data.draw(st.integers(0, len(values)))
    parts, whole = tally(values[:place]) + tally(values[place:]), tally(values)
    assert parts.sums == pytest.approx(whole.sums)
    assert (parts.votes == whole.votes).all()


def together(recordings):
    """Windows and the numbers of their recordings, in no order."""
    place = np.repeat(np.arange(len(recordings)), [len(each) for each in recordings])
    order = np.random.default_rng(0).permutation(len(place))
    return np.concatenate(recordings)[order], place[order]


@pytest.mark.parametrize(("seed", "accuracy"), [(0, 0.6), (1, 0.5), (2, 0.99)])
def test_the_pooled_temperature_agrees_with_its_slow_twin(seed, accuracy):
    recordings = made(seed, 12)
    assert pooled_temperature(*together(recordings), accuracy) == pytest.approx(
        reference.temperature(recordings, accuracy), rel=0.02
    )


def test_without_windows_that_say_anything_or_an_estimate_the_pooled_temperature_is_one():
    assert pooled_temperature(np.zeros((0, 3)), np.zeros(0, dtype=np.int64), 0.9) == 1.0
    assert pooled_temperature(np.log(np.full((3, 4), 0.25)), np.zeros(3, dtype=np.int64), 0.9) == 1.0
    assert pooled_temperature(np.log([[0.9, 0.1]]), np.zeros(1, dtype=np.int64), np.nan) == 1.0


def test_bad_input_is_one_sentence():
    with pytest.raises(InputError, match=r"axes \(window, class\)"):
        tally(np.zeros(3))
    with pytest.raises(InputError, match="NaN"):
        tally(np.array([[0.0, np.nan]]))
    with pytest.raises(InputError, match="without a window"):
        pool(Tally(np.zeros(2), np.zeros(2, dtype=np.int64)))
    with pytest.raises(InputError, match="positive"):
        pool(tally(np.zeros((1, 2))), 0.0)
