"""Classes of the source of very different size: drawn alike, calibrated alike, and the rare one is found again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from bearcat.data import Preparation, Simulated, Split, Task, load, prepare, split_task
from bearcat.data.tasks import UNKNOWN, Labelled, TrainingData
from bearcat.methods.recipe import RECIPES
from bearcat.training.batches import balanced, stack_data
from bearcat.training.evaluate import _equal_classes, balanced_accuracy, macro_f1, predict, scores
from bearcat.training.loop import Run, stack_key, train
from tests.reference.balance import balanced_pass, repeated
from tests.reference.loop import best_temperature
from tests.test_train import CPU, RAGGED, SHORT, assert_equal_to_twin, still, toy

pytestmark = pytest.mark.usefixtures("narrow_classifier")


def uneven(windows: int = 41, seed: int = 0, keep: int = 3) -> TrainingData:
    """The toy task with few windows of its last class, in training and in test."""
    data = toy(seed, windows=3 * windows, target=25, dtype=np.float64)

    def thinned(part: Labelled, rare: int, count: int) -> Labelled:
        kept = [n for n, label in enumerate(part.labels) if label != 2] + np.flatnonzero(part.labels == 2)[
            :rare
        ].tolist()
        kept = sorted(kept[-count:])
        return Labelled(part.values[kept], part.labels[kept])

    return replace(
        data, source_train=thinned(data.source_train, keep, windows), source_test=thinned(data.source_test, 2, 10)
    )


def test_a_balanced_pass_is_the_twins():
    for seed in range(20):
        labels = np.random.default_rng(seed).choice(4, size=30 + seed, p=(0.7, 0.2, 0.07, 0.03))
        found = balanced(labels, np.random.default_rng([seed, 1]))
        assert found.tolist() == balanced_pass(labels.tolist(), np.random.default_rng([seed, 1]))


def test_every_class_comes_equally_often_and_none_of_its_windows_before_all_have_come():
    labels = np.repeat([0, 1, 2], [90, 8, 3])
    drawn = balanced(labels, np.random.default_rng(0))
    assert len(drawn) == len(labels)
    counts = Counter(labels[drawn].tolist())
    assert max(counts.values()) - min(counts.values()) <= 1
    for name in range(3):
        times = Counter(drawn[labels[drawn] == name].tolist())
        assert max(times.values()) - min(times.get(place, 0) for place in np.flatnonzero(labels == name)) <= 1


def test_a_pass_over_equal_classes_sees_every_window_once():
    drawn = balanced(np.tile([0, 1, 2], 10), np.random.default_rng(0))
    assert sorted(drawn.tolist()) == list(range(30))


def test_the_order_without_balance_is_what_it_was():
    """The permutation of (seed, stream, epoch, turn), as in all results before there was a choice."""
    data = uneven()
    order = stack_data([data], [7], 16, CPU).order(3)
    pass_ = np.random.default_rng([7, 10, 3, 0]).permutation(len(data.source_train))
    assert order.source[0][order.source_present[0]].tolist() == pass_.tolist()
    assert (stack_data([data], [7], 16, CPU, balance=True).order(3).target == order.target).all()


def test_weights_of_equal_classes_are_the_repetition_of_windows():
    labels = torch.tensor([[0, 0, 0, 0, 1, 1, UNKNOWN, UNKNOWN], [2, 2, 2, 0, 1, 1, 1, 1]])
    weight = _equal_classes(labels, 3)
    for run, count in ((0, 6), (1, 8)):
        times = np.bincount(repeated(labels[run, :count].tolist()), minlength=8)
        assert weight[run].tolist() == pytest.approx((times / times.sum() * count).tolist())


@pytest.mark.parametrize("name", ["source-only", "CAT*-Temperature", "CAT-Vector"])
def test_balanced_training_is_the_twins(name):
    """Float64, small last batches; the twin repeats calibration windows where the loop weighs them."""
    assert_equal_to_twin(still(replace(RECIPES[name], balance=True), RAGGED), uneven())


def test_the_final_temperature_is_that_of_repeated_windows():
    data, recipe, bounds = uneven(), RECIPES["CAT*-Temperature"], (0.01, 100.0)
    recipe = still(replace(recipe, balance=True, calibration="Temperature:bounds=0.01,100"), RAGGED)
    data.source_test.labels[2] = 1  # a mistake to be unsure about, so that no temperature is at a bound
    trained = train([Run(recipe, data, 3)], CPU)
    logits, labels = predict(trained.network, trained.batches.source_test)[0][0], data.source_test.labels
    often = repeated(labels.tolist())
    expected = best_temperature(logits[often], torch.from_numpy(labels)[often], bounds)
    assert trained.calibration is not None
    assert float(trained.calibration.temperature[0]) == pytest.approx(expected, rel=1e-4)
    assert expected != pytest.approx(best_temperature(logits, torch.from_numpy(labels), bounds), rel=1e-2)


def test_balanced_runs_of_unequal_sizes_stack_and_each_equals_itself_alone():
    recipe = replace(RECIPES["CAT*-Temperature"], schedule=RAGGED, balance=True)
    runs = [
        Run(recipe, uneven(windows, number, keep=2 + number), 10 + number) for number, windows in enumerate((33, 41))
    ]
    assert len({stack_key(run) for run in runs}) == 1
    together = train(runs, CPU)
    for number, run in enumerate(runs):
        alone = train([run], CPU)
        for key, value in alone.history.items():
            torch.testing.assert_close(
                together.history[key][:, number], value[:, 0], rtol=1e-5, atol=1e-7, equal_nan=True
            )
        for key, value in alone.network.state_dict().items():
            torch.testing.assert_close(together.network.state_dict()[key][number], value[0], rtol=1e-6, atol=1e-9)


def test_balanced_and_plain_runs_do_not_share_a_stack():
    plain = Run(still(RECIPES["DANN"]), uneven(), 0)
    assert stack_key(plain) != stack_key(replace(plain, recipe=replace(plain.recipe, balance=True)))


def test_balanced_accuracy_is_the_mean_of_the_classes_own():
    likely = torch.eye(3)[torch.tensor([[0, 0, 0, 1, 2, 0], [1, 1, 1, 1, 1, 1]])]
    labels = torch.tensor([[0, 0, 0, 0, 1, UNKNOWN], [1, 1, 2, UNKNOWN, 2, 1]])
    assert balanced_accuracy(likely, labels).tolist() == pytest.approx([(0.75 + 0) / 2, (1 + 0) / 2])
    assert balanced_accuracy(likely, torch.full((2, 6), UNKNOWN)).isnan().all()


def test_macro_f1_is_scikit_learns():
    random = np.random.default_rng(0)
    labels, likely = random.integers(-1, 4, size=(6, 30)), random.random((6, 30, 5))
    labels[0] = np.where(labels[0] == 3, 0, labels[0])  # a class that is not there
    known = labels != UNKNOWN
    expected = [
        f1_score(truth[there], said[there], average="macro")
        for truth, said, there in zip(labels, likely.argmax(axis=-1), known, strict=True)
    ]
    assert macro_f1(torch.from_numpy(likely), torch.from_numpy(labels)).tolist() == pytest.approx(expected)
    assert macro_f1(torch.from_numpy(likely), torch.full((6, 30), UNKNOWN)).isnan().all()


def test_balance_finds_a_rare_class_again():
    """Three states of a simulated bearing, one of them with a twentieth of the others' windows; mean of three seeds."""
    catalogue = Simulated(seconds=1.2, severities=(4.0,), faults=("inner", "outer")).catalogue()
    domains = ("N15_M07_F10", "N09_M07_F10")
    source, target = (prepare(load(catalogue, [domain]), Preparation("frequency", 256)) for domain in domains)
    rare = np.flatnonzero(source.labels == "outer-1")
    source = source[np.sort(np.concatenate([np.flatnonzero(source.labels != "outer-1"), rare[::20]]))]
    splits = [split_task(Task(*domains), source, target, Split(), seed) for seed in range(3)]
    labels = torch.from_numpy(np.stack([split.held_back.target_test_labels for split in splits]))
    values = torch.from_numpy(np.stack([split.held_back.target_test.values for split in splits]))
    found = {}
    for balance in (False, True):
        schedule = replace(SHORT, epochs=6, batch=32, drops=(5,))
        recipe = replace(RECIPES["source-only"], schedule=schedule, balance=balance)
        trained = train([Run(recipe, split.training, seed) for seed, split in enumerate(splits)], CPU)
        found[balance] = scores(predict(trained.network, values)[0], None, labels)["balanced_accuracy"].mean()
    print(found)
    assert found[True] > found[False] + 0.1
