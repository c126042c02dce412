"""Classes of the source of very different size: drawn alike, calibrated alike, and the rare one is found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, recall_score

from bearcat.cat.calibration import scores
from bearcat.data.tasks import UNKNOWN, Labelled, TrainingData
from bearcat.fast.device import balanced
from tests.reference.balance import balanced_pass
from tests.test_train import RAGGED, assert_equal_to_twin, toy

pytestmark = pytest.mark.usefixtures("narrow_classifier")


def uneven(windows: int = 41, seed: int = 0, keep: int = 3) -> TrainingData:
    """The toy task with few windows of its last class, in training and in test."""
    data = toy(seed, windows=3 * windows, target=25, dtype=np.float64)

    def thinned(part: Labelled, rare: int, count: int) -> Labelled:
        kept = [*np.flatnonzero(part.labels != 2), *np.flatnonzero(part.labels == 2)[:rare]]
        kept = sorted(kept[-count:])
        return Labelled(part.values[kept], part.labels[kept])

    train, test = thinned(data.source_train, keep, windows), thinned(data.source_test, 2, 10)
    return replace(data, source_train=train, source_test=test)


def test_a_balanced_pass_is_the_twins():
    for seed in range(20):
        labels = np.random.default_rng(seed).choice(4, size=30 + seed, p=(0.7, 0.2, 0.07, 0.03))
        found = balanced(labels, np.random.default_rng([seed, 1]))
        assert found.tolist() == balanced_pass(labels.tolist(), np.random.default_rng([seed, 1]))


@pytest.mark.parametrize("name", ["source-only", "CAT-Vector"])
def test_balanced_training_is_the_twins(name):
    """Float64, small last batches; the twin repeats calibration windows where the loop weighs them."""
    assert_equal_to_twin(name, RAGGED, uneven(), balance=True)


def test_balanced_accuracy_and_macro_f1_are_scikit_learns():
    random = np.random.default_rng(0)
    labels, logits = random.integers(-1, 4, size=(7, 30)), random.random((7, 30, 5))
    labels[0] = np.where(labels[0] == 3, 0, labels[0])  # a class that is not there
    labels[6] = UNKNOWN
    found = scores(torch.from_numpy(logits), None, torch.from_numpy(labels))
    for run, (truth, said) in enumerate(zip(labels[:6], logits.argmax(axis=-1), strict=False)):
        known = truth != UNKNOWN
        truth, said = truth[known], said[known]
        recall = recall_score(truth, said, labels=np.unique(truth), average="macro")
        assert found["balanced_accuracy"][run].item() == pytest.approx(recall)
        assert found["macro_f1"][run].item() == pytest.approx(f1_score(truth, said, average="macro"))
    assert all(score[6].isnan() for score in found.values())
