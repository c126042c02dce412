"""Every method learns: on an easy simulated shift it ends clearly above source-only.

The claim is about one seed, over all target windows, for which the shift is a large one: source-only moves by ten points
with the draw of its split and dropout, and a mean of several seeds costs as many times the time.

Until calibration begins, CAT is AT, to the bit (which is tested here). So each variant of AT is trained once, and CAT
goes on from its checkpoint of that epoch. The domain classifier is narrower than the paper's, which takes less time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from bearcat.cat.algorithm import Run, Trained, train
from bearcat.cat.evaluate import predict, scores
from bearcat.cat.recipes import GROUPS, RECIPES, Recipe, Schedule
from bearcat.cat.teacher import SelfTraining, Teacher
from bearcat.data import Preparation, Simulated, Split, SplitTask, Task, load, prepare, split_task
from bearcat.storage import load_tensors

pytestmark = pytest.mark.usefixtures("narrow_classifier")
CPU = torch.device("cpu")
SCHEDULE = Schedule(epochs=9, batch=32, align_from=2, label_from=4, calibrate_from=7, drops=(7,))
SEED = 1
PHYSICAL = GROUPS["ours, on physical inputs"]
Trainer = Callable[[str], tuple[Trained, Path]]


@pytest.fixture(scope="module")
def split() -> SplitTask:
    """Three states of a bearing at 1500 rpm, to be known again at 900 rpm, in short spectra."""
    catalogue = Simulated(seconds=1.2, severities=(4.0,), faults=("inner", "outer")).catalogue()
    domains = ("N15_M07_F10", "N09_M07_F10")
    source, target = (prepare(load(catalogue, [domain]), Preparation("frequency", 256)) for domain in domains)
    return split_task(Task(*domains), source, target, Split(), SEED)


def run_of(recipe: Recipe, split: SplitTask) -> Run:
    recipe = replace(recipe.for_input("frequency"), schedule=SCHEDULE)
    labels = recipe.find(SelfTraining)
    if labels is not None and labels.teacher.momentum > 0:  # a memory of ten steps, for a course of 54
        recipe = recipe.change("labels", teacher=Teacher(momentum=0.9))
    return Run(recipe, split.training, SEED)


def without_calibration(name: str) -> str:
    """The recipe that is this one but for its calibration: AT+MCC of CAT+MCC-Vector."""
    return next(other for other in RECIPES if RECIPES[other] == replace(RECIPES[name], calibration=None, final=None))


CONTINUED = {without_calibration(name) for name in RECIPES if RECIPES[name].calibration and name not in PHYSICAL}


@pytest.fixture(scope="module")
def trainer(split: SplitTask, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Trains a recipe without calibration, once; with it, its checkpoint of the epoch at which calibration begins."""

    @cache
    def trained(name: str) -> tuple[Trained, Path]:
        folder = tmp_path_factory.mktemp("learning")
        newest, kept = folder / "newest.safetensors", folder / "kept.safetensors"

        def keep(end):
            if end.epoch + 1 == SCHEDULE.calibrate_from:
                shutil.copy(newest, kept)

        run = run_of(RECIPES[name], split)
        if name not in CONTINUED:
            return train([run], CPU), kept
        return train([run], CPU, progress=keep, checkpoint=newest, checkpoint_seconds=0, identity="toy"), kept

    return trained


def trained_as(name: str, split: SplitTask, trainer: Trainer, folder: Path) -> Trained:
    if RECIPES[name].calibration is None:
        return trainer(name)[0]
    runs, path = [run_of(RECIPES[name], split)], folder / "checkpoint.safetensors"
    shutil.copy(trainer(without_calibration(name))[1], path)
    return train(runs, CPU, checkpoint=path, identity="toy")


def target_accuracy(trained: Trained, split: SplitTask) -> float:
    batches, held_back = trained.batches, split.held_back
    source = scores(predict(trained.network, batches.source_test)[0], None, batches.source_test_labels)
    assert float(source["accuracy"]) > 0.9, "the source was not learnt"
    values = np.concatenate([split.training.target_train.values, held_back.target_test.values])
    labels = np.concatenate([held_back.target_train_labels, held_back.target_test_labels])
    logits, _ = predict(trained.network, torch.from_numpy(values)[None])
    return float(scores(logits, trained.calibration, torch.from_numpy(labels)[None])["accuracy"])


@pytest.fixture(scope="module")
def source_only(split: SplitTask, trainer: Trainer) -> float:
    return target_accuracy(trainer("source-only")[0], split)


def test_source_only_meets_a_real_shift(source_only):
    assert 0.4 < source_only < 0.85


# Of the calibrators one is enough: tests of the loop and its twin compare the others.
LEFT_OUT = {
    f"CAT{sign}-{kind}" for sign in ("", "*", "+MCC", "+SDAT") for kind in ("Vector", "Matrix", "CPCS", "TransCal")
} & RECIPES.keys()
LEARNING = [name for name in RECIPES if name not in {"source-only", *PHYSICAL, *LEFT_OUT}]


# tests/acceptance/test_parity.py has them all.
@pytest.mark.parametrize("name", ["DANN*", "AT*", "CAT*-Temperature", "Wang", "DeepJDOT", "AdaBN"])
def test_an_adaptation_method_ends_clearly_above_source_only(name, split, source_only, trainer, tmp_path):
    trained = trained_as(name, split, trainer, tmp_path)
    assert (trained.calibration is None) == (RECIPES[name].calibration is None)
    assert target_accuracy(trained, split) > source_only + 0.05


def test_until_calibration_begins_cat_is_at_to_the_bit(split, trainer, tmp_path):
    class Enough(Exception):
        pass

    def stop(end):
        if end.epoch + 1 == SCHEDULE.calibrate_from:
            raise Enough

    path, run = tmp_path / "checkpoint.safetensors", run_of(RECIPES["CAT-CPCS"], split)
    with pytest.raises(Enough):
        train([run], CPU, progress=stop, checkpoint=path, checkpoint_seconds=0, identity="toy")
    (mine, metadata), (theirs, other) = load_tensors(path), load_tensors(trainer("AT")[1])
    assert (
        (metadata["epoch"], metadata["teacher"])
        == (other["epoch"], other["teacher"])
        == (SCHEDULE.calibrate_from, True)
    )
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert np.array_equal(tensor, theirs[name], equal_nan=tensor.is_floating_point()), name
