"""Measures of calibration: against plain loops, at their edges, and in every form of input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import f1_score, log_loss, recall_score

from bearcat.cat import accuracy, brier, ece, nll, reliability_bins
from bearcat.cat.calibration import scores
from bearcat.data.tasks import UNKNOWN
from bearcat.errors import InputError
from tests.reference import calibration as reference

every_measure = pytest.mark.parametrize("measure", [ece, nll, brier, accuracy])


def make(seed: int = 0, runs: int = 3, windows: int = 57, classes: int = 4, spread: float = 2.0):
    """Random logits, labels that follow them somewhat, and weights of which some are zero."""
    random = np.random.default_rng(seed)
    logits = spread * random.standard_normal((runs, windows, classes))
    labels = np.where(
        random.random((runs, windows)) < 0.6, logits.argmax(-1), random.integers(0, classes, (runs, windows))
    )
    weight = random.integers(0, 3, (runs, windows)) * 0.5
    return logits, labels, weight


def two_classes(confidences: list[float], dtype=np.float64) -> np.ndarray:
    """Rows whose first class has this probability (the rest is shared out so that it is the largest)."""
    rows = [[confidence] + [(1 - confidence) / 30] * 30 for confidence in confidences]
    return np.array(rows, dtype=dtype)


@pytest.mark.parametrize("bins", [1, 7, 10, 15])
def test_every_measure_is_scikit_learns_or_that_of_the_plain_loop(bins):
    logits, labels, weight = make()
    likely = softmax(logits, axis=-1)
    found = ece(likely, labels, weight, bins), *(measure(likely, labels, weight) for measure in (nll, brier, accuracy))
    for run, (p, y, w) in enumerate(zip(likely, labels, weight, strict=True)):
        errors, right = ((p - np.eye(4)[y]) ** 2).sum(axis=1), p.argmax(axis=1) == y
        expected = [reference.ece(p.max(axis=1), right, w, bins), log_loss(y, p, sample_weight=w)]
        expected += [np.average(values, weights=w) for values in (errors, right)]
        assert [each[run] for each in found] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bins", [10, 15])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(dtype, bins):
    edges = [number / bins for number in range(1, bins + 1)]
    probabilities = two_classes(edges, dtype)
    found = reliability_bins(probabilities, np.zeros(bins, dtype=int), bins=bins)
    np.testing.assert_allclose(found.mass, np.full(bins, 1 / bins))
    np.testing.assert_allclose(found.confidence, edges, rtol=1e-6)
    above = np.nextafter(probabilities[:-1], dtype(2))
    moved = reliability_bins(above, np.zeros(bins - 1, dtype=int), bins=bins)
    assert moved.mass[0] == 0
    np.testing.assert_allclose(moved.mass[1:], np.full(bins - 1, 1 / (bins - 1)))
    assert reliability_bins(np.zeros((1, 2), dtype), np.array([1]), bins=bins).mass[0] == 1


@every_measure
def test_what_has_no_weight_does_not_matter_and_a_run_of_nothing_else_is_nan(measure):
    logits, labels, weight = make()
    weight[1] = 0
    probabilities, kept = softmax(logits, axis=-1), weight[0] > 0
    spoilt, unlabelled = probabilities.copy(), labels.copy()
    spoilt[weight == 0], unlabelled[weight == 0] = np.nan, -1
    scores = measure(spoilt, unlabelled, weight)
    np.testing.assert_array_equal(scores, measure(probabilities, labels, weight))
    assert np.isnan(scores).tolist() == [False, True, False]
    shorter = measure(probabilities[0, kept], labels[0, kept], weight[0, kept])
    assert scores[0] == pytest.approx(shorter, abs=1e-12)
    assert np.isnan(measure(np.empty((0, 4)), np.empty(0, dtype=int)))


@every_measure
def test_numpy_torch_stacked_and_single_give_the_same(measure):
    logits, labels, weight = make()
    probabilities = softmax(logits, axis=-1)
    stacked = measure(probabilities, labels, weight)
    assert isinstance(stacked, np.ndarray)
    assert stacked.shape == (3,)
    tensors = measure(*(torch.from_numpy(array) for array in (probabilities, labels, weight)))
    assert isinstance(tensors, torch.Tensor)
    np.testing.assert_array_equal(tensors.numpy(), stacked)
    single = measure(probabilities[2], labels[2], weight[2])
    assert isinstance(single, float)
    assert single == pytest.approx(stacked[2], abs=1e-14)
    np.testing.assert_allclose(measure(probabilities.astype(np.float32), labels, weight), stacked, rtol=2e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probabilities": np.ones(3)}, "probabilities must have the axes"),
        ({"labels": np.zeros(4, dtype=int)}, r"labels must have the shape \(1, 3\), not \(1, 4\)"),
        ({"labels": np.zeros(3)}, "labels must be whole numbers"),
        ({"labels": np.array([0, 1, 2])}, "labels must lie in 0 … 1"),
        ({"labels": np.array([0, 1, -1])}, "labels must lie in 0 … 1"),
        ({"weight": np.ones((2, 3))}, "weight must have the shape"),
        ({"weight": np.array([1, -1, 1])}, "weight must be finite and not negative"),
        ({"bins": 0}, "bins must be at least 1"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"probabilities": np.full((3, 2), 0.5), "labels": np.zeros(3, dtype=int)} | change
    with pytest.raises(InputError, match=message):
        ece(**given)


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
