"""Types of faults with several unlike recordings."""

from __future__ import annotations

import numpy as np
import pytest

from bearcat.data.tasks import UNKNOWN, Labelled, TrainingData, Unlabelled
from bearcat.methods.matching import likelihood_gain, match, source_states
from tests.reference import plant as twin
from tests.test_plant import matched

TYPES = ("Normal", "inner", "outer")
OWNER = np.array([0, 1, 1, 1, 2, 2, 2])  # the type of each state


def types_of(present, offset=1.0, windows=30, seed=0, anchors=()) -> TrainingData:
    """Seven states of three types in twelve points, two recordings of each in the source; the target, shifted by an
    offset, has one of each state that is present. `anchors` are states of which physics is certain.
    """
    random = np.random.default_rng(seed)
    centres = 3 * random.normal(size=(7, 12))

    def make(states, moved):
        return (centres[states] + 0.5 * random.normal(size=(len(states), 12)) + moved)[:, None].astype(np.float32)

    states, target = np.repeat(np.arange(7), 40), np.repeat(present, windows)
    recording = 2 * states + np.arange(len(states)) % 2
    source = Labelled(make(states, 0), OWNER[states], recording, np.zeros_like(recording))
    anchor = np.where(np.isin(target, anchors), OWNER[target], UNKNOWN)
    return TrainingData(TYPES, source, source, Unlabelled(make(target, offset), target.copy(), anchor=anchor))


@pytest.mark.parametrize("seed", range(6))
def test_the_gain_of_a_shift_is_the_twins(seed):
    random = np.random.default_rng(seed)
    centres = 2 * random.normal(size=(5, 3))
    clusters = centres[[0, 1, 1, 3, 4, 2]] + random.normal(size=3) + 0.3 * random.normal(size=(6, 3))
    possible = random.random((6, 5)) < 0.8
    possible[np.arange(6), [0, 1, 1, 3, 4, 2]] = True
    given = clusters, centres, random.normal(size=3), random.random(6) / 20, possible
    assert likelihood_gain(*given) == pytest.approx(twin.likelihood_gain(*given), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("present", [range(7), [0, 4, 5, 6], [0, 1, 2, 4]])
def test_a_type_owns_several_clusters_and_each_state_is_shifted_to_its_own(present):
    data = types_of(list(present), offset=2.0)
    assert len(source_states(data).owner) == 14  # every recording is a state
    shifted, found = matched(data)
    assert found.adapted, found
    assert set(found.shares) == set(TYPES)
    assert (found.shares["inner"] > 0) == bool({1, 2, 3} & set(present))
    move = shifted.source_train.values - data.source_train.values
    np.testing.assert_allclose(move, 2.0, atol=0.6)  # also of states and types that the target lacks


def test_a_recording_that_physics_is_certain_of_is_matched_with_its_class_and_lets_two_clusters_be_matched():
    assert not matched(types_of([0, 5]))[1].comparable
    found = matched(types_of([0, 5], offset=2.0, anchors=(5,)))[1]
    assert found.anchors == 1
    assert found.adapted
    assert found.shares["outer"] == pytest.approx(0.5)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    clusters, owner = centres[[0, 1]] + 0.1, np.array([0, 1, 2])
    assert match(clusters, centres, np.array([UNKNOWN, UNKNOWN]), owner).states.tolist() == [0, 1]
    assert match(clusters, centres, np.array([UNKNOWN, 2]), owner).states[1] == 2
