"""Splits, and that no target label can be reached from what the training loop is given."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bearcat.data.inputs import Preparation
from bearcat.data.recording import RecordingInfo, Windows
from bearcat.data.tasks import UNKNOWN, Split, Task, split_task
from bearcat.data.windows import prepare
from bearcat.errors import InputError
from bearcat.settings import override
from tests.conftest import make_recording

TASK = Task("a", "b")


def windows_of(domain: str, recordings: int = 1, samples: int = 6400, stride: int | None = None, **labels) -> Windows:
    """Noise of three classes, so many recordings of each."""
    made = [
        make_recording(seed=100 * number + copy + (domain == "b") * 7, samples=samples, label=label, domain=domain,
                       origin=f"{domain}/{label}/{copy}.npy")
        for number, label in enumerate(labels.get("classes", ("inner", "outer", "ball")))
        for copy in range(recordings)
    ]  # fmt: skip
    return prepare(made, Preparation(length=64, stride=stride))


def place_of(values: np.ndarray, windows: Windows) -> list[int]:
    """Which windows these are, by their content."""
    known = {row.tobytes(): number for number, row in enumerate(windows.values)}
    return [known[row.tobytes()] for row in values]


@pytest.mark.parametrize("scheme", ["window", "block", "recording"])
def test_a_split_parts_every_domain_and_never_shares_a_window(scheme):
    source, target = windows_of("a", 5), windows_of("b", 5)
    split = split_task(TASK, source, target, Split(scheme), seed=3)
    train, test = (place_of(part.values, source) for part in (split.training.source_train, split.training.source_test))
    assert not set(train) & set(test)
    held_out = place_of(split.held_back.target_test.values, target)
    open_ = place_of(split.training.target_train.values, target)
    assert not set(held_out) & set(open_)
    if scheme != "block":
        assert len(train) + len(test) == len(source)
        assert len(held_out) + len(open_) == len(target)
    assert len(test) == pytest.approx(0.2 * len(source), rel=0.01)
    assert len(held_out) == pytest.approx(0.2 * len(target), rel=0.01)
    assert split.training.source_train.labels.dtype == np.int64
    expected = [split.training.classes.index(source.labels[number]) for number in train]
    assert split.training.source_train.labels.tolist() == expected
    expected = [split.training.classes.index(target.labels[number]) for number in open_]
    assert split.held_back.target_train_labels.tolist() == expected


def test_the_same_seed_gives_the_same_split_and_another_seed_another():
    source, target = windows_of("a"), windows_of("b")
    first, again, other = (split_task(TASK, source, target, Split(), seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.training.target_train.values, again.training.target_train.values)
    assert not np.array_equal(first.training.target_train.values, other.training.target_train.values)
    assert not np.array_equal(first.training.source_test.labels, other.training.source_test.labels)


@pytest.mark.parametrize("stride", [64, 16, 40])
def test_a_block_split_keeps_train_and_test_apart_in_time(stride):
    source, target = windows_of("a", 2, stride=stride), windows_of("b", 2, stride=stride)
    for seed in range(5):
        split = split_task(TASK, source, target, Split("block"), seed=seed)
        test = place_of(split.training.source_test.values, source)
        train = place_of(split.training.source_train.values, source)
        for number in range(len(source.recordings)):
            held = sorted(source.start[window] for window in test if source.recording[window] == number)
            assert np.diff(held).max() == stride  # window stretch
            for window in train:
                if source.recording[window] == number:
                    distance = min(abs(source.start[window] - start) for start in held)
                    assert distance - 64 >= stride  # at least the gap lies between the samples


@pytest.mark.parametrize("scheme", ["window", "block", "recording"])
def test_scrambled_target_labels_change_nothing_the_training_loop_sees(scheme):
    source, target = windows_of("a", 4), windows_of("b", 4)
    honest = split_task(TASK, source, target, Split(scheme), seed=0)
    labels = np.random.default_rng(5).permutation([str(recording.label) for recording in target.recordings])
    for shown in (labels, [None] * len(labels)):
        recordings = (replace(info, label=label) for info, label in zip(target.recordings, shown, strict=True))
        other = replace(target, recordings=tuple(recordings))
        split = split_task(TASK, source, other, Split(scheme), seed=0)
        for name in ("source_train", "source_test", "target_train"):
            mine, theirs = getattr(split.training, name), getattr(honest.training, name)
            np.testing.assert_array_equal(mine.values, theirs.values)
            np.testing.assert_array_equal(mine.recording, theirs.recording)
        np.testing.assert_array_equal(split.training.source_train.labels, honest.training.source_train.labels)
    assert (split.held_back.target_test_labels == UNKNOWN).all()


def test_nothing_reachable_from_the_training_data_knows_a_target_label():
    source, target = windows_of("a", 2), windows_of("b", 2)
    split = split_task(TASK, source, target, Split(), seed=0)
    reached_by_id: dict[int, object] = {}
    waiting: list[object] = [split.training]
    while waiting:
        thing = waiting.pop()
        if id(thing) in reached_by_id or isinstance(thing, type) or type(thing).__name__ == "module":
            continue
        reached_by_id[id(thing)] = thing
        waiting += gc.get_referents(thing)
        if isinstance(thing, np.ndarray) and thing.base is not None:
            waiting.append(thing.base)
    reached = list(reached_by_id.values())
    assert any(thing is split.training.target_train.values for thing in reached)  # the walk does walk
    assert not any(isinstance(thing, Windows | RecordingInfo) for thing in reached)
    assert not any(isinstance(thing, str) and "b/" in thing for thing in reached)
    hidden = (split.held_back.target_train_labels, split.held_back.target_test_labels)
    assert not any(thing is label for thing in reached for label in hidden)
    arrays = [thing for thing in reached if isinstance(thing, np.ndarray)]
    # 3 of values, 3 of recordings; of the source 2 of labels and 2 of domains; no references, no anchors
    assert len(arrays) == 12
    assert all(thing.base is None for thing in arrays)


def test_the_numbers_of_target_recordings_do_not_reveal_their_classes():
    """Recordings are listed by class, so a number in that order would be a label."""
    target = windows_of("b", 20, samples=640)
    origins = [recording.origin for recording in target.recordings]
    orders = [split_task(TASK, windows_of("a"), target, Split(), seed).target_order for seed in range(3)]
    numbering = [[origins[number] for number in order] for order in orders]
    assert all(sorted(order) == sorted(origins) for order in numbering)
    assert len({tuple(order) for order in [origins, *numbering]}) == 4
    for order in numbering:
        labels = [origin.split("/")[1] for origin in order]
        assert np.mean([first == second for first, second in pairwise(labels)]) < 0.6


def test_a_class_the_source_lacks_is_unknown():
    source, target = windows_of("a"), windows_of("b", classes=("inner", "outer", "cage"))
    split = split_task(TASK, source, target, Split(), seed=0)
    assert split.training.classes == ("inner", "outer", "ball")
    assert np.count_nonzero(split.held_back.target_test_labels == UNKNOWN) == 20


def test_what_cannot_be_a_task_is_refused():
    labelled, target = windows_of("a"), windows_of("b")
    unlabelled = replace(labelled, recordings=(*labelled.recordings[:2], replace(labelled.recordings[2], label=None)))
    fast = replace(target, recordings=tuple(replace(recording, rate=5000.0) for recording in target.recordings))
    cases = [
        (lambda: Task("a", "a"), "two different domains"),
        (lambda: Task((), "a"), "at least one source"),
        (lambda: split_task(TASK, unlabelled, target, Split(), 0), r"a/ball/0\.npy: a source recording needs a label"),
        (lambda: split_task(TASK, windows_of("a", classes=("inner",)), target, Split(), 0), "only the class 'inner'"),
        (lambda: split_task(TASK, labelled, fast, Split(), 0), "different sampling rates"),
        (lambda: split_task(TASK, labelled, replace(target, values=target.values[..., :32]), Split(), 0), "shape"),
        (lambda: split_task(TASK, labelled, target, Split(), -1), "seed"),
        (lambda: split_task(TASK, windows_of("a", 1), target, Split("recording"), 0), r"\(a/inner/0\.npy\)"),
        (lambda: split_task(TASK, windows_of("a", samples=128), target, Split("block"), 0), "2 windows are too few"),
        (lambda: Split("windwo"), "did you mean 'window'"),
        (lambda: override(Split(), {"test": "0.3"}), "unknown setting 'test'"),
    ]
    for call, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            call()


@pytest.mark.parametrize("scheme", ["block", "recording"])
def test_channels_recorded_at_once_stay_on_one_side(scheme):
    recordings = [
        replace(make_recording(samples=6400, label=label, origin=f"{label}{copy}.wav#{channel}"), channel=channel)
        for label in ("inner", "outer", "ball") for copy in range(4) for channel in ("x", "y")
    ]  # fmt: skip
    windows = prepare(recordings, Preparation(length=64))
    split = split_task(TASK, windows, windows_of("b", 5), Split(scheme), seed=1)
    for index in (split.source_train, split.source_test):
        places = [(windows.recordings[windows.recording[each]], int(windows.start[each])) for each in index]
        of = {axis: {(info.origin[:-1], start) for info, start in places if info.channel == axis} for axis in "xy"}
        assert of["x"] == of["y"] != set()
