"""Losses on groups of source windows and training without the source, by plain twins and by what must hold of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bearcat.data.tasks import UNKNOWN, Labelled, TrainingData
from bearcat.errors import InputError
from bearcat.methods import formulas
from bearcat.methods.ingredient import View, stacked
from bearcat.methods.recipe import RECIPES
from bearcat.methods.selftraining import SmoothedLabels, SourceFree
from bearcat.methods.specimens import (
    BalanceSpecimens,
    GroupDRO,
    InvariantRisk,
    SpecimenMatching,
    balanced_places,
)
from bearcat.models.stacked import GroupScores, StackedDense
from bearcat.training.batches import group_numbers, stack_data
from bearcat.training.evaluate import predict
from bearcat.training.loop import Run, identify, train
from tests.reference import specimens as reference
from tests.test_alignments import draws
from tests.test_train import CPU, RAGGED, same_weights, toy

RANDOM = np.random.default_rng(3)
SIZE, THERE, GROUPS = 24, 20, 4
NAMES = ["SHOT", "dense-SHOT", "dense-GroupDRO", "dense-IRM", "dense-specimen-CORAL", "dense-specimen-MMD",
         "dense-specimen-balance"]  # fmt: skip


@pytest.fixture
def view() -> View:
    """Two runs of source windows alone, of which the last four places hold none; padding is far away."""
    features, logits = (torch.from_numpy(RANDOM.standard_normal((2, SIZE, width))) for width in (5, 3))
    present = (torch.arange(SIZE) < THERE).expand(2, -1)
    features, logits = (torch.where(present[..., None], values, 9.0) for values in (features, 2 * logits))
    labels = torch.from_numpy(RANDOM.integers(0, 3, (2, SIZE)))
    groups = torch.from_numpy(RANDOM.integers(0, GROUPS, (2, SIZE)))
    head, ramp = StackedDense(2, 5, 3), torch.tensor([0.5], dtype=torch.float64)
    return View(
        SIZE, logits, features, present, labels, None, None, None, head, draws(), ramp, groups={"specimen": groups}
    )


def there(view: View, run: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A run's features, logits, labels and groups of the windows that are there."""
    parts = view.features, view.logits, view.labels, view.groups["specimen"]
    features, logits, labels, groups = (part[run, :THERE].numpy() for part in parts)
    return features, logits, labels, groups


def test_group_dro_is_the_twins_over_several_steps_and_groups_a_run_lacks_weigh_nothing(view):
    loss = stacked([GroupDRO(step=0.5), GroupDRO(step=2.0)], CPU)
    scores = GroupScores(torch.tensor([GROUPS, GROUPS + 3])).double()
    view = replace(view, module=scores)
    views = [view, replace(view, logits=view.logits.flip(2)), view]
    found = torch.stack([loss.loss(each) for each in views])
    for run, (step, count) in enumerate([(0.5, GROUPS), (2.0, GROUPS + 3)]):
        batches = [there(each, run)[1:] for each in views]
        assert found[:, run].tolist() == pytest.approx(reference.group_dro(batches, count, step))


def test_group_dro_of_step_zero_and_groups_of_one_size_is_the_mean_of_all(view):
    groups = {"specimen": torch.arange(SIZE).expand(2, -1) % GROUPS}
    view = replace(view, groups=groups, present=None, module=GroupScores(torch.tensor([GROUPS] * 2)).double())
    torch.testing.assert_close(GroupDRO(step=0.0).loss(view), formulas.supervised(view.source_logits, view.labels))


def test_the_invariance_penalty_is_the_twins(view):
    found = InvariantRisk(weight=3.0).loss(view)
    for run in range(2):
        assert found[run].item() == pytest.approx(3 * reference.invariance_penalty(*there(view, run)[1:]), rel=1e-5)


@pytest.mark.parametrize(("statistic", "twin"), [("moments", "moments_apart"), ("kernels", "kernels_apart")])
def test_matching_is_the_twins_and_nothing_where_a_class_has_one_specimen(view, statistic, twin):
    loss = SpecimenMatching(weight=2.0, statistic=statistic)
    found = loss.loss(view)
    for run in range(2):
        features, _, labels, groups = there(view, run)
        expected = getattr(reference, twin)(features, labels, groups)
        assert found[run].item() == pytest.approx(2 * 0.5 * expected, rel=1e-9)
    assert loss.loss(replace(view, groups={"specimen": view.labels})).tolist() == [0, 0]


def test_information_and_smoothed_labels_are_the_twins(view):
    found = formulas.information(view.logits, view.present)
    smoothed = SmoothedLabels(share=0.2).loss(view)
    for run in range(2):
        _, logits, labels, _ = there(view, run)
        assert found[run].item() == pytest.approx(reference.information(logits))
        expected = torch.nn.functional.cross_entropy(
            torch.from_numpy(logits), torch.from_numpy(labels), label_smoothing=0.2
        )
        assert smoothed[run].item() == pytest.approx(expected.item())


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_pseudo_labels_by_centres_are_the_twins_and_leave_out_what_nobody_predicts(rounds):
    features = torch.from_numpy(RANDOM.standard_normal((2, SIZE, 5)))
    probabilities = torch.from_numpy(RANDOM.dirichlet((1, 1, 1, 0.02), (2, SIZE)))
    probabilities[0, :, 1] = 0.0  # in the first run no window is predicted as class 1
    present = (torch.arange(SIZE) < THERE).expand(2, -1)
    found = formulas.centroid_labels(features, probabilities, present, rounds)
    for run in range(2):
        own = features[run, :THERE].numpy(), probabilities[run, :THERE].numpy()
        assert found[run, :THERE].tolist() == reference.centroid_labels(*own, rounds)
    assert 1 not in found[0, :THERE]


def grouped(windows: int = 48, target: int = 20, seed: int = 0, groups: int = 4) -> TrainingData:
    """The toy task with specimens, of which the last is not said, in two domains."""
    data = toy(seed, windows, target, dtype=np.float64)
    number = np.arange(windows) // 3 % groups
    specimen = np.where(number == groups - 1, UNKNOWN, number)
    return replace(
        data, source_train=replace(data.source_train, specimen=specimen, recording=number, domain=number % 2)
    )


def test_a_window_whose_specimen_is_not_said_goes_by_its_recording():
    values = np.zeros((6, 1, 4), dtype=np.float32)
    windows = Labelled(values, np.zeros(6, dtype=np.int64))
    assert set(group_numbers(windows, "specimen")) == set(group_numbers(windows, "domain")) == {0}
    said = replace(windows, specimen=np.array([2, 2, -1, -1, -1, 0]), recording=np.array([0, 1, 2, 2, 3, 4]))
    numbers = group_numbers(said, "specimen")
    assert len(set(numbers)) == 4
    assert numbers[0] == numbers[1]
    assert numbers[2] == numbers[3] != numbers[4]


@pytest.mark.parametrize("name", NAMES)
def test_runs_of_unequal_sizes_and_groups_stack_and_each_equals_itself_alone(name):
    recipe = replace(RECIPES[name], schedule=RAGGED)
    sizes = [(36, 20, 3), (36, 25, 4)] if "balance" in name else [(17, 20, 3), (32, 25, 4)]
    runs = [Run(recipe, grouped(windows, target, number, groups), 10 + number)
            for number, (windows, target, groups) in enumerate(sizes)]  # fmt: skip
    together = train(runs, CPU)
    assert together.finite.all()
    for number, run in enumerate(runs):
        alone = train([run], CPU)
        for key, value in alone.history.items():
            torch.testing.assert_close(
                together.history[key][:, number], value[:, 0], rtol=1e-4, atol=1e-6, equal_nan=True, msg=key
            )
        for key, value in alone.network.state_dict().items():
            torch.testing.assert_close(together.network.state_dict()[key][number], value[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["dense-GroupDRO", "SHOT"])
def test_an_interrupted_training_goes_on_to_the_same_result(name, tmp_path):
    class Enough(Exception):
        pass

    def stop(end):
        if end.epoch == RAGGED.epochs - 2:
            raise Enough

    run, path = Run(replace(RECIPES[name], schedule=RAGGED), grouped(), 5), tmp_path / "checkpoint.safetensors"
    with pytest.raises(Enough):
        train([run], CPU, progress=stop, checkpoint=path, checkpoint_seconds=0)
    resumed, whole = train([run], CPU, checkpoint=path), train([run], CPU)
    same_weights(resumed, whole)
    for key, value in whole.history.items():
        torch.testing.assert_close(resumed.history[key], value, rtol=0, atol=0, equal_nan=True, msg=key)


@pytest.mark.parametrize("name", ["SHOT", "dense-SHOT"])
def test_from_the_alignment_on_shot_reads_no_source_window_and_leaves_the_classifier(name):
    """Other source windows from then on change nothing; the classifier is what it was, the encoder is not."""
    recipe, data, heads = replace(RECIPES[name], schedule=RAGGED), grouped(), {}

    def spoil(end):
        heads[end.epoch] = (
            end.student.head.weight.detach().clone(),
            end.student.encoder.dense[0].weight.detach().clone(),
        )
        if end.epoch == RAGGED.align_from - 1:
            end.batches.source_train.fill_(1e6)
            end.batches.source_labels.fill_(0)

    spoilt, whole = train([Run(recipe, data, 5)], CPU, progress=spoil), train([Run(recipe, data, 5)], CPU)
    same_weights(spoilt, whole)
    before, after = heads[RAGGED.align_from - 1], heads[RAGGED.epochs - 1]
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])
    first, last = (whole.history["loss_smoothing"][epoch, 0] for epoch in (0, -1))
    assert torch.isfinite(first)
    assert torch.isnan(last)


def test_methods_on_source_specimens_never_read_the_target():
    for name in NAMES[2:]:
        recipe, data = replace(RECIPES[name], schedule=RAGGED, final=None), grouped()
        other = replace(data, target_train=replace(data.target_train, values=data.target_train.values + 5))
        assert not recipe.adapts
        same_weights(*(train([Run(recipe, each, 0)], CPU) for each in (data, other)))


def test_a_checkpoint_knows_its_groups():
    run = Run(RECIPES["dense-IRM"], grouped(), 0)
    source = run.data.source_train
    other = replace(run.data, source_train=replace(source, specimen=source.specimen[::-1]))
    assert identify([run]) != identify([replace(run, data=other)])
    plain = RECIPES["dense-source-only"]
    assert identify([Run(plain, run.data, 0)]) == identify([Run(plain, other, 0)])


def test_balanced_specimens_come_equally_often_in_their_class_and_every_window_comes():
    labels, groups = np.repeat([0, 0, 1, 1, 1], [9, 2, 4, 3, 1]), np.repeat([0, 1, 2, 3, 0], [9, 2, 4, 3, 1])
    drawn = balanced_places(labels, groups)
    assert set(drawn) == set(range(len(labels)))
    for label, count in ((0, 2), (1, 3)):
        own = np.bincount(groups[drawn[labels[drawn] == label]])
        assert own[own > 0].tolist() == [18 // count] * count
    data = BalanceSpecimens().prepare(grouped(windows=30)).data.source_train
    assert len(data.values) == len(data.labels) == len(data.specimen) == len(data.recording)
    assert BalanceSpecimens().prepare(toy()).data.source_train.specimen.size == 0


def test_groups_reach_a_step_with_their_windows():
    data = grouped(windows=30)
    batches = stack_data([data], [0], 16, CPU, groupings=["domain", "specimen"])
    assert batches.groups["domain"][0].tolist() == data.source_train.domain.tolist()
    with pytest.raises(InputError, match="by"):
        GroupDRO(by="size")
    with pytest.raises(InputError, match="rounds"):
        SourceFree(rounds=0)
    logits, _ = predict(train([Run(replace(RECIPES["SHOT"], schedule=RAGGED), data, 0)], CPU).network,
                        torch.from_numpy(data.target_train.values)[None])  # fmt: skip
    assert torch.isfinite(logits).all()
