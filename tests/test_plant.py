"""Targets as plants have them: mixes of classes, and matching clusters of recordings with classes and their states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.cat.algorithm import Run, train
from bearcat.cat.ingredient import TargetFinding
from bearcat.cat.networks import predict
from bearcat.cat.recipes import Recipe, Schedule
from bearcat.data import Task
from bearcat.data.tasks import UNKNOWN, Labelled, Mix, TrainingData, Unlabelled, mixed_task
from bearcat.errors import InputError
from bearcat.methods import unadapted
from bearcat.methods.matching import MatchClusters, likelihood_gain, match, source_states
from bearcat.methods.transforms import Standardise
from tests.reference import plant as twin
from tests.test_tasks import windows_of

CPU = torch.device("cpu")
TASK = Task("a", "b")
CLASSES = ("Normal", "inner", "outer")
SHORT = Schedule(epochs=6, batch=16, align_from=1, label_from=2, calibrate_from=4, drops=())


@pytest.fixture(scope="module")
def sides():
    return windows_of("a", 2, 64 * 40, classes=CLASSES), windows_of("b", 2, 64 * 40, classes=CLASSES)


def labels_of(split, index):
    return split.target.labels[index]


def test_only_the_classes_kept_are_in_the_target(sides):
    split = mixed_task(TASK, *sides, "block", 0, Mix(keep=("healthy", "outer")))
    assert split.classes == CLASSES
    assert set(labels_of(split, split.target_train)) == set(labels_of(split, split.target_test)) == {"Normal", "outer"}
    assert {info.label for info in split.target.recordings} == {"Normal", "outer"}
    without = mixed_task(TASK, *sides, "block", 0, Mix(without=("inner",)))
    assert np.array_equal(without.target_train, split.target_train)


def test_reference_recordings_are_known_while_training_and_leave_the_evaluation(sides):
    split = mixed_task(TASK, *sides, "block", 0, Mix(reference="healthy"))
    known = split.training.target_train.reference
    assert np.array_equal(known == 0, labels_of(split, split.target_train) == "Normal")
    assert set(known.tolist()) == {0, UNKNOWN}
    assert "Normal" not in set(labels_of(split, split.target_test))
    by_name = mixed_task(TASK, *sides, "block", 0, Mix(reference="Normal/1.npy"))
    named = [info.origin == "b/Normal/1.npy" for info in by_name.target.recordings]
    inside = np.isin(by_name.target.recording[by_name.target_train], np.flatnonzero(named))
    assert np.array_equal(by_name.training.target_train.reference == 0, inside)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda sides: mixed_task(TASK, *sides, "window", 0, Mix(reference="1.npy")), "name of one healthy recording"),
        (lambda sides: mixed_task(TASK, *sides, "window", 0, Mix(reference="inner/1.npy")), "one healthy"),
        (lambda sides: mixed_task(TASK, *sides, "window", 0, Mix(keep=("innr",))), "unknown class 'innr'"),
        (lambda sides: mixed_task(TASK, *sides, "window", 0, Mix(reference="ball")), "--reference: 'ball'"),
        (lambda sides: mixed_task(TASK, *sides, "window", 0, Mix(without=CLASSES)), "holds nothing"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(sides, make, said):
    with pytest.raises(InputError, match=said):
        make(sides)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_groups_are_matched_as_trying_every_order_does(seed):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(4, 3))
    order = random.permutation(4)
    groups = centres[order] + random.normal(size=3) + 0.2 * random.normal(size=(4, 3))
    classes, fit = twin.best_matching(groups, centres)
    found = match(groups, centres, np.full(4, UNKNOWN), np.arange(4))
    assert found.fit == pytest.approx(fit, abs=1e-9)
    assert tuple(found.states) == classes
    known = np.full(4, UNKNOWN)
    known[0] = (classes[0] + 1) % 4  # what is known is not overruled
    assert match(groups, centres, known, np.arange(4)).states[0] == known[0]


def matched(data: TrainingData) -> tuple[TrainingData, TargetFinding]:
    prepared = MatchClusters().prepare(data)
    return prepared.data, prepared.finding


def data_of(shares: dict[str, int], offset: float, seed: int = 0, reference: bool = False) -> TrainingData:
    """Three classes in ten points; the target, moved by an offset, has one recording of so many windows per class."""
    random = np.random.default_rng(seed)
    centres = 3 * random.normal(size=(3, 10))
    codes = np.repeat(np.arange(3), 40)

    def make(labels, moved):
        return (centres[labels] + 0.5 * random.normal(size=(len(labels), 10)) + moved)[:, None].astype(np.float32)

    target = np.repeat([CLASSES.index(name) for name in shares], list(shares.values()))
    known = np.where(target == 0, 0, UNKNOWN) if reference else np.empty(0, dtype=np.int64)
    return TrainingData(
        CLASSES, Labelled(make(codes, 0), codes), Labelled(make(codes, 0), codes),
        Unlabelled(make(target, offset), target.copy(), known),
    )  # fmt: skip


def accuracy(recipe: Recipe, data: TrainingData, truth: np.ndarray) -> float:
    trained = train([Run(recipe, data, 0)], CPU)
    logits, _ = predict(trained.network, torch.from_numpy(data.target_train.values)[None])
    return float((logits[0].argmax(dim=-1).numpy() == truth).mean())


def matching_recipe() -> Recipe:
    return Recipe(
        (MatchClusters(), Standardise("source")), encoder="dense:widths=16", schedule=SHORT, dropout=0.0,
        calibration="Temperature",
    )  # fmt: skip


def test_all_classes_are_moved_whatever_their_shares():
    data = data_of({"Normal": 90, "inner": 12, "outer": 12}, offset=4.0)
    truth = data.target_train.recording
    shifted, found = matched(data)
    assert found.adapted
    for code in range(3):
        own = shifted.source_train.values[shifted.source_train.labels == code].mean(axis=0)
        np.testing.assert_allclose(own, data.target_train.values[truth == code].mean(axis=0), atol=1e-4)
    plain = replace(matching_recipe(), ingredients=(Standardise("source"),))
    assert accuracy(matching_recipe(), data, truth) > 0.98 > 0.8 > accuracy(plain, data, truth)


@pytest.mark.parametrize("shares", [{"Normal": 60}, {"Normal": 60, "outer": 60}])
def test_nothing_to_adapt_by_leaves_the_unadapted_network_to_the_bit(shares):
    data = data_of(shares, offset=1.0)
    recipes = matching_recipe(), unadapted(matching_recipe())[1]
    kept, plain = (train([Run(recipe, data, 3)], CPU) for recipe in recipes)
    for own, other in zip(kept.network.parameters(), plain.network.parameters(), strict=True):
        assert torch.equal(own, other)
    (found,) = kept.findings
    assert not found.adapted
    assert f"{len(shares)} target cluster" in found.sentence


def test_a_reference_says_where_healthy_is():
    data = data_of({"Normal": 60}, offset=6.0, reference=True)
    shifted, found = matched(data)
    healthy = shifted.source_train.values[shifted.source_train.labels == 0].mean(axis=0)
    np.testing.assert_allclose(healthy, data.target_train.values.mean(axis=0), atol=1e-4)
    assert "reference recordings" in found.sentence
    assert accuracy(matching_recipe(), data, np.zeros(60, dtype=int)) == 1
    both = data_of({"Normal": 60, "outer": 60}, offset=6.0, reference=True)  # the other cluster lies on a moved class
    assert accuracy(matching_recipe(), both, both.target_train.recording) > 0.95


def test_a_stack_does_as_single_runs():
    both = [data_of({"Normal": 40, "inner": 12, "outer": 30}, 3.0), data_of({"Normal": 82}, 0.5, seed=1)]
    runs = [Run(matching_recipe(), data, seed) for seed, data in enumerate(both)]
    stack = train(runs, CPU)
    for number, run in enumerate(runs):
        alone = train([run], CPU)
        assert alone.findings[0] == stack.findings[number]
        for own, other in zip(alone.network.parameters(), stack.network.parameters(), strict=True):
            torch.testing.assert_close(own[0], other[number], rtol=1e-3, atol=1e-4)


# Types of faults with several unlike recordings.

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
    return TrainingData(CLASSES, source, source, Unlabelled(make(target, offset), target.copy(), anchor=anchor))


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
    move = shifted.source_train.values - data.source_train.values
    np.testing.assert_allclose(move, 2.0, atol=0.6)  # also of states and types that the target lacks


def test_a_recording_that_physics_is_certain_of_is_matched_with_its_class_and_lets_two_clusters_be_matched():
    assert "cannot distinguish" in matched(types_of([0, 5]))[1].sentence
    data = types_of([0, 5], offset=2.0, anchors=(5,))
    shifted, found = matched(data)
    assert found.adapted
    move = shifted.source_train.values - data.source_train.values
    np.testing.assert_allclose(move.mean(axis=(0, 1)), 2.0, atol=0.6)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    clusters, owner = centres[[0, 1]] + 0.1, np.array([0, 1, 2])
    assert match(clusters, centres, np.array([UNKNOWN, UNKNOWN]), owner).states.tolist() == [0, 1]
    assert match(clusters, centres, np.array([UNKNOWN, 2]), owner).states[1] == 2
