"""Every recipe learns: on an easy simulated shift each adaptation recipe ends clearly above source-only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bearcat.data import Preparation, Simulated, Split, SplitTask, Task, load, prepare, split_task
from bearcat.evaluate import predict, scores
from bearcat.recipe import RECIPES, Schedule
from bearcat.train import Run, train

SCHEDULE = Schedule(epochs=12, batch=32, align_from=3, label_from=6, calibrate_from=8, drops=(9,))


@pytest.fixture(scope="module")
def task() -> SplitTask:
    """Three states of a bearing at 1500 rpm, to be known again at 900 rpm, in short spectra."""
    catalogue = Simulated(seconds=2.0, severities=(4.0,), faults=("inner", "outer")).catalogue()
    domains = ("N15_M07_F10", "N09_M07_F10")
    source, target = (prepare(load(catalogue, [one]), Preparation("frequency", 256)) for one in domains)
    return split_task(Task(*domains), source, target, Split(), seed=0)


def target_accuracy(name: str, task: SplitTask) -> float:
    recipe = replace(RECIPES[name], schedule=SCHEDULE)
    if recipe.teacher is not None:  # a memory of ten steps, for a course of 120
        recipe = replace(recipe, teacher=replace(recipe.teacher, momentum=0.9))
    trained = train([Run(recipe, task.training, 0)], torch.device("cpu"))
    values = torch.from_numpy(np.asarray(task.held_back.target_test.values))[None]
    labels = torch.from_numpy(task.held_back.target_test_labels)[None]
    source = scores(predict(trained.network, trained.batches.source_test)[0], None, trained.batches.source_test_labels)
    assert float(source["accuracy"][0]) > 0.9, "the source was not learnt"
    return float(scores(predict(trained.network, values)[0], trained.calibration, labels)["accuracy"][0])


@pytest.fixture(scope="module")
def source_only(task: SplitTask) -> float:
    return target_accuracy("source-only", task)


def test_source_only_meets_a_real_shift(source_only):
    assert 0.4 < source_only < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "source-only"])
def test_every_adaptation_recipe_ends_clearly_above_source_only(name, task, source_only):
    assert target_accuracy(name, task) > source_only + 0.05
