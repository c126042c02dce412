"""Losses and final logits of twelve methods on a task of a few tones, in float64 on one core.

Bit for bit on one processor, and to 1e-6 on any.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bearcat.cat.algorithm import Run, train
from bearcat.cat.networks import predict
from bearcat.cat.recipes import RECIPES, Schedule
from bearcat.cat.teacher import SelfTraining
from bearcat.data.tasks import Labelled, TrainingData, Unlabelled

METHODS = (
    "source-only", "DANN", "DANN*", "AT-fixed", "AT", "AT*", "CAT*-Temperature", "CAT*-Vector", "CAT*-Matrix",
    "CAT*-CPCS", "match-clusters", "unseen-bearings",
)  # fmt: skip
PHYSICAL = ("match-clusters", "unseen-bearings")
CLASSES = ("healthy", "inner", "outer")
SHORT, ORDERS = 64, 488  # samples of a window; points of the input of which states of other benches are known
SCHEDULE = Schedule(epochs=10, batch=16, align_from=1, label_from=3, calibrate_from=5, drops=(8,))
Arrays = tuple[NDArray[np.float64], NDArray[np.int64]]


def tones(each: int, length: int, seed: int, noise: float, stretch: float = 1.0) -> Arrays:
    """One tone for each class in noise; the domains differ in noise and pitch."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(CLASSES)), each)
    pitch = stretch * np.array([4.0, 9.0, 20.0])[labels, None]
    phase = 0.2 * math.pi * generator.random((len(labels), 1))
    values = np.sin(2 * math.pi * pitch * np.arange(length) / length + phase)
    values = values + noise * generator.standard_normal(values.shape)
    values = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)
    return values[:, None], labels


def data(length: int) -> TrainingData:
    """Forty-eight source windows, twenty-four held out, forty-two target windows of three recordings."""
    train_values, train_labels = tones(16, length, 0, 0.8)
    test_values, test_labels = tones(8, length, 1, 1.5)
    target, recording = tones(14, length, 2, 1.5, 1.02)
    order = np.random.default_rng(3).permutation(len(target))
    return TrainingData(
        CLASSES, Labelled(train_values, train_labels), Labelled(test_values, test_labels),
        Unlabelled(target[order], recording[order]),
    )  # fmt: skip


def result(name: str) -> dict[str, Any]:
    """Every loss of every epoch, and the logits of the first target windows."""
    task = data(ORDERS if name in PHYSICAL else SHORT)
    recipe = replace(RECIPES[name], schedule=SCHEDULE)
    if recipe.find(SelfTraining) is not None:  # a memory of ten steps, for a course of thirty
        recipe = recipe.with_settings({"teacher.momentum": "0.9"})
    trained = train([Run(recipe, task, seed=5)], torch.device("cpu"))
    logits, _ = predict(trained.network, torch.from_numpy(task.target_train.values[None, :6]))
    calibrated = logits if trained.calibration is None else trained.calibration.apply(logits)
    losses = {
        key: [None if math.isnan(value) else value for value in values[:, 0].tolist()]  # NaN: not yet on
        for key, values in trained.history.items()
        if key.startswith("loss")
    }
    return {"losses": losses, "logits": logits[0].tolist(), "probabilities": calibrated.softmax(-1)[0].tolist()}


def results() -> dict[str, Any]:
    """Of all methods, trained on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: result(name) for name in METHODS}
    finally:
        torch.set_num_threads(threads)
