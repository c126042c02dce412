"""Splits, and that no target label can be reached from what the training loop is given."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bearcat.bench.grid import plan, read_grid
from bearcat.data.inputs import Preparation
from bearcat.data.recording import RecordingInfo, Windows
from bearcat.data.tasks import UNKNOWN, Mix, Task, mixed_task, split_task
from bearcat.data.windows import prepare
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError
from bearcat.report import read_result
from tests.conftest import make_recording

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # scripts that import each other
from recording_scores import score_recordings, witness_scores

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
    split = split_task(TASK, source, target, scheme, seed=3)
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
    first, again, other = (split_task(TASK, source, target, "window", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.training.target_train.values, again.training.target_train.values)
    assert not np.array_equal(first.training.target_train.values, other.training.target_train.values)
    assert not np.array_equal(first.training.source_test.labels, other.training.source_test.labels)


@pytest.mark.parametrize("stride", [64, 16, 40])
def test_a_block_split_keeps_train_and_test_apart_in_time(stride):
    source, target = windows_of("a", 2, stride=stride), windows_of("b", 2, stride=stride)
    for seed in range(5):
        split = split_task(TASK, source, target, "block", seed=seed)
        test = place_of(split.training.source_test.values, source)
        train = place_of(split.training.source_train.values, source)
        for number in range(len(source.recordings)):
            held = sorted(source.start[window] for window in test if source.recording[window] == number)
            assert np.diff(held).max() == stride  # window stretch
            for window in train:
                if source.recording[window] == number:
                    distance = min(abs(source.start[window] - start) for start in held)
                    assert distance - 64 >= stride  # at least the gap lies between the samples


def test_nothing_reachable_from_the_training_data_knows_a_target_label():
    source, target = windows_of("a", 2), windows_of("b", 2)
    split = split_task(TASK, source, target, "window", seed=0)
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
    orders = [split_task(TASK, windows_of("a"), target, "window", seed).target_order for seed in range(3)]
    numbering = [[origins[number] for number in order] for order in orders]
    assert all(sorted(order) == sorted(origins) for order in numbering)
    assert len({tuple(order) for order in [origins, *numbering]}) == 4
    for order in numbering:
        labels = [origin.split("/")[1] for origin in order]
        assert np.mean([first == second for first, second in pairwise(labels)]) < 0.6


def test_a_class_the_source_lacks_is_unknown():
    source, target = windows_of("a"), windows_of("b", classes=("inner", "outer", "cage"))
    split = split_task(TASK, source, target, "window", seed=0)
    assert split.training.classes == ("inner", "outer", "ball")
    assert np.count_nonzero(split.held_back.target_test_labels == UNKNOWN) == 20


def test_what_cannot_be_a_task_is_refused():
    labelled, target = windows_of("a"), windows_of("b")
    unlabelled = replace(labelled, recordings=(*labelled.recordings[:2], replace(labelled.recordings[2], label=None)))
    fast = replace(target, recordings=tuple(replace(recording, rate=5000.0) for recording in target.recordings))
    cases = [
        (lambda: Task("a", "a"), "two different domains"),
        (lambda: split_task(TASK, unlabelled, target, "window", 0), r"a/ball/0\.npy: a source recording needs a label"),
        (lambda: split_task(TASK, windows_of("a", classes=("inner",)), target, "window", 0), "only the class 'inner'"),
        (lambda: split_task(TASK, labelled, fast, "window", 0), "different sampling rates"),
        (lambda: split_task(TASK, labelled, replace(target, values=target.values[..., :32]), "window", 0), "shape"),
        (lambda: split_task(TASK, windows_of("a", 1), target, "recording", 0), r"\(a/inner/0\.npy\)"),
        (lambda: split_task(TASK, windows_of("a", samples=128), target, "block", 0), "2 windows are too few"),
        (lambda: split_task(TASK, labelled, target, "windwo", 0), "did you mean 'window'"),
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
    split = split_task(TASK, windows, windows_of("b", 5), scheme, seed=1)
    for index in (split.source_train, split.source_test):
        places = [(windows.recordings[windows.recording[window]], int(windows.start[window])) for window in index]
        by_axis = {axis: {(info.origin[:-1], start) for info, start in places if info.channel == axis} for axis in "xy"}
        assert by_axis["x"] == by_axis["y"] != set()


# Targets as plants have them: so many recordings of each class, which are scored one by one.


def test_a_target_holds_so_many_recordings_of_each_class_drawn_from_the_seed():
    sides = [windows_of(domain, 6, 1280, classes=("healthy", "inner", "outer")) for domain in "ab"]

    def drawn(seed: int, **numbers: int) -> list[str]:
        split = mixed_task(TASK, *sides, "block", seed, Mix(recordings=tuple(numbers.items())))
        assert len(split.source.recordings) == 18  # the source stays whole
        return [info.origin for info in split.target.recordings]

    for seed in range(3):
        healthy = ["healthy" in origin for origin in drawn(seed, healthy=5, rest=2)]
        assert (sum(healthy), len(healthy)) == (5, 7)
    assert drawn(0, healthy=5, rest=2) == drawn(0, healthy=5, rest=2) != drawn(1, healthy=5, rest=2)
    assert len(drawn(0, healthy=99)) == 18  # at most so many; the others all


# Scores, and a grid from its file to them.


def test_recordings_are_scored_by_what_is_called_and_decided():
    rows = (  # label, state called, decision, confidence
        ("healthy", "healthy", "ok", 1.0), ("healthy", "inner race", "alarm", 0.75), ("ball", "unknown", "ok", 0.5),
        ("healthy", "cannot tell", "check", 0.5), ("IR5", "inner race", "alarm", 0.75), ("outer-2", "healthy", "check", 1.0),
    )  # fmt: skip
    diagnoses = [
        Diagnosis(str(number), decision=Decision(action), state=state, confidence=confidence)
        for number, (_, state, action, confidence) in enumerate(rows)
    ]
    labels = {str(number): label for number, (label, *_) in enumerate(rows)}
    found = score_recordings(diagnoses, labels, ("healthy", "IR5", "outer-2"))  # a ball is rightly unknown
    shares = (found.right, found.missed, found.passed, found.false_alarms, found.type_right, found.check)
    assert shares == pytest.approx((1 / 2, 2 / 3, 1 / 3, 1 / 3, 2 / 3, 1 / 3))
    assert found.ece == pytest.approx(2 / 4 * (0.75 - 0.5) + 2 / 4 * (1 - 0.5))  # of the four that claim a state


GRID = """
title = "Specimens"
seeds = 1
epochs = 2
inputs = ["physics"]
methods = ["dense-source-only", "match-clusters"]
tasks = ["group 1:group 2"]
split = "block"
preparation = { length = 2048, stride = 256, cut = 1.0 }
target = [{}, { keep = ["healthy"] }, { recordings = { healthy = 3, rest = 1 } }, { unknown = ["inner"] }]
[data]
name = "simulated"
label = "specimens"
settings = { specimens = 2, groups = 2, seconds = 2, faults = ["inner", "outer"], conditions = ["N15_M07_F10"] }
"""


def test_runs_of_a_grid_are_scored_by_recordings_witnesses_and_targets(tmp_path: Path, command):
    path, store = tmp_path / "tiny.toml", tmp_path / "store"
    path.write_text(GRID)
    assert {spec.cell.dataset for spec in plan(read_grid(path))} == {"specimens"}
    assert command("bench", "run", path, "--store", store, "--device", "cpu")[0] == 0
    results = [read_result(record.parent) for record in store.rglob("record.json")]
    assert {result.record.settings.values["preparation"]["cut"] for result in results} == {1.0}
    scores = {(result.cell.method, result.record.settings.mix): witness_scores(result) for result in results}
    for (_, target), witnesses in scores.items():
        assert {"physics alone", "network alone", "diagnosis"} <= witnesses.keys()
        if target == "3 healthy; 1 rest":
            assert {score.recordings for score in witnesses.values()} == {3}  # there are two healthy ones
        if target == "healthy only":
            assert {score.missed for score in witnesses.values()} == {None}
    for result in results:
        recordings = result.record.recordings
        assert {recording.recording for recording in recordings} == set(result.predictions.recording)
        assert all(recording.physics is not None for recording in recordings)
        assert result.record.evidence.physics is not None  # the model's decision knows of them, as in `adapt`
