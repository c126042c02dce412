"""Recordings as plants have them: cut short, so many of each class in a target, and scored one by one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bearcat.adaptation import RunSpec
from bearcat.bench.grid import plan, read_grid
from bearcat.cat.recipes import RECIPES
from bearcat.data import Simulated, Split, Task
from bearcat.data.inputs import Preparation
from bearcat.data.tasks import Mix, mixed_task
from bearcat.data.windows import prepare
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError
from bearcat.report.results import read_result
from tests.conftest import make_recording
from tests.reference import plant as twin

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # scripts that import each other
from recording_scores import score_recordings, witness_scores

TASK = Task("a", "b")
STATES = ("healthy", "inner race", "outer race", "ball", "unknown", "cannot tell")


# Targets of so many recordings.


@pytest.fixture(scope="module")
def sides():
    def windows(domain: str, shift: int):
        labels = [("healthy", 6), ("inner", 4), ("outer", 4)]
        made = [
            make_recording(seed=20 * code + copy + shift, samples=64 * 20, label=label, domain=domain,
                           origin=f"{domain}/{label}/{copy}.npy")
            for code, (label, copies) in enumerate(labels)
            for copy in range(copies)
        ]  # fmt: skip
        return prepare(made, Preparation(length=64))

    return windows("a", 0), windows("b", 500)


def counted(split) -> dict[str, int]:
    labels = [info.label for info in split.target.recordings]
    return {label: labels.count(label) for label in dict.fromkeys(labels)}


def test_a_target_holds_so_many_recordings_of_each_class_drawn_from_the_seed(sides):
    mix = Mix(recordings=(("healthy", 5), ("rest", 2)))
    splits = [mixed_task(TASK, *sides, Split("block"), seed, mix) for seed in (0, 0, 1, 2)]
    for split in splits:
        found = counted(split)
        assert found.pop("healthy") == 5
        assert sum(found.values()) == 2
    names = [[info.origin for info in split.target.recordings] for split in splits]
    assert names[0] == names[1]
    assert len({tuple(each) for each in names}) > 1
    assert len(splits[0].source.recordings) == 14  # the source stays whole
    many = mixed_task(TASK, *sides, Split("block"), 0, Mix(recordings=(("healthy", 99),)))
    assert counted(many) == {"healthy": 6, "inner": 4, "outer": 4}  # at most so many; the others all


def test_mixes_cuts_and_labels_are_read_from_a_grid_and_old_runs_keep_their_settings(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("""
    methods = ["source-only"]
    seeds = 1
    tasks = ["N15_M07_F10:N09_M07_F10"]
    data = { name = "simulated", label = "mine" }
    preparation = { cut = 1.5 }
    target = [{}, { recordings = { healthy = 3, rest = 1 } }]
    """)
    plain, mixed = plan(read_grid(path))
    assert plain.cell.dataset == "mine"
    assert plain.to_dict()["preparation"]["cut"] == 1.5
    assert mixed.mix == Mix(recordings=(("healthy", 3), ("rest", 1)))
    assert dict(mixed.to_dict()["mix"]["recordings"]) == {"healthy": 3, "rest": 1}
    assert mixed.cell.task != plain.cell.task
    for wrong in (
        '{ recordings = { rest = "two" } }',
        "{ recordings = { rest = 0 } }",
        "{ recordings = { rset = 1 } }",
    ):
        path.write_text(f'methods = ["source-only"]\ndata = "simulated"\ntarget = [{wrong}]\n')
        with pytest.raises(InputError):
            plan(read_grid(path))
    old = RunSpec("simulated", Simulated(), TASK, "DANN", RECIPES["DANN"], mix=Mix(keep=("healthy",))).to_dict()
    assert "cut" not in old["preparation"]
    assert "recordings" not in old["mix"]


# Scores.


def diagnosed(name: str, state: str, action: str, confidence: float) -> Diagnosis:
    return Diagnosis(name, decision=Decision(action), state=state, confidence=confidence)


def test_recordings_are_scored_as_a_plain_loop_scores_them():
    random = np.random.default_rng(0)
    truths = {"healthy": "healthy", "IR5": "inner race", "outer-2": "outer race", "ball": "ball"}
    for size in (1, 2, 7, 60):
        labels = random.choice(list(truths), size).tolist()
        states, actions = random.choice(STATES, size).tolist(), random.choice(["ok", "check", "alarm"], size).tolist()
        confidence = random.uniform(0.01, 1, size).tolist()
        diagnoses = [diagnosed(str(n), states[n], actions[n], confidence[n]) for n in range(size)]
        named = {str(n): labels[n] for n in range(size)}
        found = score_recordings(diagnoses, named, ("healthy", "IR5", "outer-2"))
        rows = [(truths[labels[n]], states[n], actions[n], confidence[n], labels[n] == "ball") for n in range(size)]
        assert found.recordings == size
        for name, value in twin.recording_scores(rows).items():
            assert getattr(found, name) == (None if value is None else pytest.approx(value)), name


# A grid from its file to its table.

GRID = """
title = "Specimens"
seeds = 1
epochs = 2
inputs = ["physics"]
methods = ["dense-source-only", "match-clusters"]
tasks = [["group 1", "group 2"]]
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
    assert command("bench", "run", path, "--store", store, "--device", "cpu")[0] == 0
    results = [read_result(record.parent) for record in store.rglob("record.json")]
    scores = {(result.cell.method, result.record.settings.mix): witness_scores(result) for result in results}
    for (_, target), found in scores.items():
        assert {"physics alone", "network alone", "diagnosis"} <= found.keys()
        if target == "3 healthy; 1 rest":
            assert {each.recordings for each in found.values()} == {3}  # there are two healthy ones
        if target == "healthy only":
            assert {each.missed for each in found.values()} == {None}
    for result in results:
        recordings = result.record.recordings
        assert {each.recording for each in recordings} == set(result.predictions.recording)
        assert all(each.physics is not None for each in recordings)
        assert result.record.evidence.recordings == len(recordings)  # the model's decision knows of them, as in `adapt`
