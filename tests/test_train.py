"""The loop: equal to its slow twin, and to itself in every way a run can be trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bearcat.cat import Evidence, published, state
from bearcat.cat.algorithm import Run, Trained, train
from bearcat.cat.networks import predict
from bearcat.cat.recipes import RECIPES, Recipe, Schedule
from bearcat.cat.state import begin, watcher
from bearcat.cat.teacher import SelfTraining
from bearcat.data.recording import Windows
from bearcat.data.tasks import HeldBack, Labelled, TrainingData, Unlabelled
from bearcat.errors import InputError
from bearcat.fast.device import Batches, balanced, stack_key
from bearcat.storage import load_tensors, tensor_bytes, write_atomically
from tests.reference import loop as reference

pytestmark = pytest.mark.usefixtures("narrow_classifier")
CPU, TAU = torch.device("cpu"), 0.36
SHORT = Schedule(epochs=12, batch=16, align_from=2, label_from=4, calibrate_from=7, drops=(6, 10))


def toy(
    seed: int = 0, windows: int = 16, target: int = 16, classes: int = 3, length: int = 48, dtype: Any = np.float32
) -> TrainingData:
    """Sines of a pitch per class in noise; the target is shifted in pitch."""
    random = np.random.default_rng(seed)

    def make(count: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % classes
        time = np.arange(length)
        pitch = (0.05 + 0.06 * labels + shift)[:, None]
        waves = np.sin(2 * np.pi * (pitch * time + random.random((count, 1))))
        waves = waves + 0.3 * random.standard_normal((count, length))
        return waves[:, None].astype(dtype), labels.astype(np.int64)

    train_, test, unlabelled = make(windows, 0.0), make(13, 0.0), make(target, 0.01)
    return TrainingData(tuple("abcdefgh"[:classes]), Labelled(*train_), Labelled(*test), Unlabelled(unlabelled[0]))


def still(recipe: Recipe, schedule: Schedule = SHORT, **changes: Any) -> Recipe:
    """Without dropout, on a short schedule, with a threshold that its networks reach for some windows."""
    if recipe.find(SelfTraining) is not None:
        recipe = recipe.change("labels", tau=TAU)
    return replace(recipe, schedule=schedule, dropout=0.0, **changes)


def repeated(labels: list[int]) -> list[int]:
    """Windows, each so many times that all classes come to the same number: weights without weighting."""
    whole = math.lcm(*(labels.count(label) for label in labels))
    return [window for window, label in enumerate(labels) for _ in range(whole // labels.count(label))]


def our_calibrator(recipe: Recipe, seed: int) -> Callable[[reference.Twin], reference.Calibration]:
    """The recipe's calibrator, fitted to the twin's teacher."""

    def fit(twin: reference.Twin) -> reference.Calibration:
        assert twin.teacher is not None
        (values, labels), teacher = twin.source_test, twin.teacher
        parts = {"source": values, "source_train": twin.source_train[0], "target": twin.target_train}
        features = {f"{name}_features": twin.predict(teacher, part, True)[None] for name, part in parts.items()}
        often = repeated(labels.tolist()) if recipe.balance else list(range(len(labels)))
        features["source_features"] = features["source_features"][:, often]
        logits = twin.predict(teacher, values)[None, often]
        seeds = torch.tensor([seed])
        evidence = Evidence(source_logits=logits, source_labels=labels[None, often], seeds=seeds, **features)
        fitted = recipe.calibration.fit(evidence)
        return lambda values: fitted.apply(values[None])[0]

    return fit


def twin_of(name: str, run: Run, **settings: Any) -> tuple[reference.Twin, Batches]:
    """The slow twin of a method, with the loop's initial weights, and the batches of the run."""
    begun, recipe = begin([run], CPU), run.recipe
    names = ("epochs", "drops", "align_from", "label_from", "calibrate_from")
    numbers = {name: getattr(recipe.schedule, name) for name in names}
    module = begun.modules.get("alignment")
    twin = reference.Twin(
        reference.Settings(name, tau=TAU, **numbers, **settings), run.data,
        student_state={name: value[0].clone() for name, value in begun.student.state_dict().items()},
        domain_state=None if module is None else {name: value[0] for name, value in module.state_dict().items()},
        iterations_per_epoch=begun.batches.iterations,
    )  # fmt: skip
    return twin, begun.batches


def run_epoch(twin: reference.Twin, batches: Batches, epoch: int) -> list[dict[str, torch.Tensor]]:
    """The twin's steps of an epoch, on the batches that the loop gives a run alone."""
    twin.start_epoch(epoch, [torch.from_numpy(places[0]) for places in batches.target_pass(epoch)])
    pairs = zip(*batches.order(epoch), strict=True)
    steps = [twin.step(torch.from_numpy(source[0]), torch.from_numpy(target[0])) for source, target in pairs]
    twin.end_epoch()
    return steps


def assert_equal_to_twin(name: str, schedule: Schedule, data: TrainingData, balance: bool = False) -> None:
    """Every loss of every epoch, then all weights and statistics."""
    run = Run(still(RECIPES[name], schedule, balance=balance), data, seed=3)
    trained, (twin, batches) = train([run], CPU), twin_of(name, run, fit=our_calibrator(run.recipe, run.seed))
    names = {"supervised": "loss_supervised", "pseudo": "loss_labels", "mcc": "loss_confusion", "domain": "loss_alignment",
             "share": "pseudo_label_share"}  # fmt: skip
    for epoch in range(schedule.epochs):
        steps = run_epoch(twin, batches, epoch)
        for theirs, ours in names.items():
            expected = float(sum(step[theirs] for step in steps)) / len(steps)
            found = float(trained.history[ours][epoch, 0]) if ours in trained.history else 0.0
            assert np.nan_to_num(found) == pytest.approx(expected, rel=1e-4, abs=1e-6), (epoch, ours)
    for ours, theirs in ((trained.student, twin.student), (trained.teacher, twin.teacher)):
        assert (ours is None) == (theirs is None)
        for name, value in ({} if ours is None else ours.state_dict()).items():
            torch.testing.assert_close(value[0], theirs.state_dict()[name], rtol=1e-4, atol=1e-7, msg=name)


@pytest.mark.parametrize("name", ["AT-fixed", "CAT*-Temperature"])
def test_every_step_is_the_twins(name):
    """In float64, one step an epoch, so that every loss of every step is compared."""
    assert_equal_to_twin(name, SHORT, toy(dtype=np.float64))


RAGGED = replace(SHORT, epochs=4, align_from=1, label_from=2, calibrate_from=3, drops=(2, 3))


# tests/acceptance/test_parity.py has every method and phase; here one of each kind.
@pytest.mark.parametrize("name", ["source-only", "DANN*", "AT-fixed", "CAT-CPCS", "CAT*-Vector"])
def test_epochs_of_several_batches_with_smaller_last_ones_are_the_twins(name):
    assert_equal_to_twin(name, RAGGED, toy(windows=25, target=23, dtype=np.float64))


def assert_published(name: str, label_from: int, windows: int, batch: int) -> None:
    """The loop with `published=true` gives the logits of the twin that knows the method's name alone."""
    schedule = replace(
        RAGGED, epochs=label_from + 2, batch=batch, label_from=label_from, calibrate_from=label_from, drops=(label_from,)
    )  # fmt: skip
    data = toy(windows=windows, target=windows, length=33, dtype=np.float64)
    run = Run(still(RECIPES[name], schedule).with_settings({"published": "true"}), data, seed=3)
    trained, (twin, batches) = train([run], CPU), twin_of(name, run, published=True, sgd_steps=published.SGD_STEPS)
    for epoch in range(schedule.epochs):
        run_epoch(twin, batches, epoch)
    network = twin.teacher or twin.student
    assert (trained.teacher is None) == (twin.teacher is None)
    for values in (data.source_test.values, data.target_train.values):
        expected = twin.predict(network, torch.from_numpy(values))
        found = predict(trained.network, torch.from_numpy(values)[None])[0]
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-9)
        if trained.calibration is not None:
            calibrated = trained.calibration.apply(found)[0]
            torch.testing.assert_close(calibrated, twin.calibrate(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["DANN*", "AT-fixed", "CAT*-Temperature", "CAT-CPCS"])
def test_the_published_code_is_the_twins_to_the_last_digit(name):
    """Where T_DA < T_PL, and four steps make an epoch."""
    assert_published(name, label_from=2, windows=15, batch=4)


def uneven() -> TrainingData:
    """The toy task with few windows of its last class, in training and in test."""
    data = toy(windows=60, target=25, dtype=np.float64)

    def thinned(part: Labelled, rare: int) -> Labelled:
        left_out = np.flatnonzero(part.labels == 2)[rare:]
        return Labelled(*(np.delete(values, left_out, axis=0) for values in (part.values, part.labels)))

    return replace(data, source_train=thinned(data.source_train, 3), source_test=thinned(data.source_test, 2))


def test_in_a_balanced_pass_classes_come_equally_often_and_so_do_the_windows_of_each():
    for seed in range(20):
        random = np.random.default_rng(seed)
        labels = random.choice(4, size=30 + seed, p=(0.7, 0.2, 0.07, 0.03))
        found = balanced(labels, random)
        assert len(found) == len(labels)
        classes, counts = np.unique(labels[found], return_counts=True)
        times = np.bincount(found, minlength=len(labels))
        assert all(np.ptp(numbers) <= 1 for numbers in (counts, *(times[labels == name] for name in classes)))
        assert (np.diff(labels[found]) < 0).any(), "in random order"


@pytest.mark.parametrize("name", ["source-only", "CAT-Vector"])
def test_balanced_training_is_the_twins(name):
    """Float64, small last batches; the twin repeats calibration windows where the loop weighs them."""
    assert_equal_to_twin(name, RAGGED, uneven(), balance=True)


def same_weights(first: Trained, second: Trained) -> None:
    for ours, theirs in ((first.student, second.student), (first.network, second.network)):
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value), name


def live(recipe: Recipe, **changes: Any) -> Recipe:
    """With dropout, on a short schedule."""
    return replace(recipe, schedule=SHORT, **changes)


def test_cat_is_at_until_calibration_begins_and_without_a_calibrator():
    at, cat, without = (
        train([Run(live(RECIPES[name], **changes), toy(), 0)], CPU)
        for name, changes in (("AT*", {}), ("CAT*-CPCS", {}), ("CAT*-CPCS", {"calibration": None}))
    )
    same_weights(without, at)
    for name, values in at.history.items():
        assert torch.equal(
            cat.history[name][: SHORT.calibrate_from].nan_to_num(), values[: SHORT.calibrate_from].nan_to_num()
        )


def test_a_final_calibrator_alone_is_fitted_once_to_the_finished_network():
    plain, alone, both = (
        train([Run(live(RECIPES["source-only"], **settings), toy(), 0)], CPU)
        for settings in ({}, {"final": "Temperature"}, {"calibration": "Temperature"})
    )
    same_weights(alone, plain)
    assert torch.equal(alone.calibration.scale, both.calibration.scale)
    assert alone.source_calibration is None
    assert "temperature" not in alone.history  # training did not see it


def test_sam_of_radius_zero_is_adam():
    sharp = train([Run(still(RECIPES["AT*"].change("sharpness", radius=0.0)), toy(dtype=np.float64), 0)], CPU)
    plain = train([Run(still(RECIPES["AT+MCC"]), toy(dtype=np.float64), 0)], CPU)
    for found, expected in zip(sharp.student.parameters(), plain.student.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def assert_stacked(recipe: Recipe, rtol: float = 1e-6) -> None:
    """Each run of a stack equals itself alone, with dropout, last batches that are smaller, and a watcher."""
    sizes = {"windows": 25, "target": 30}
    runs = [Run(recipe, toy(number, **sizes, dtype=np.float64), 10 + number) for number in range(2)]
    held = [kept_back(toy(9, 16, test, dtype=np.float64).target_train.values, 30) for test in (13, 21)]
    assert len({stack_key(run) for run in runs}) == 1
    together = train(runs, CPU, watch=watcher(held, CPU))
    assert together.finite.all()
    for number, run in enumerate(runs):
        alone = train([run], CPU, watch=watcher([held[number]], CPU))
        assert alone.history.keys() == together.history.keys()
        for key, value in alone.history.items():
            found = together.history[key][:, number]
            torch.testing.assert_close(found, value[:, 0], rtol=10 * rtol, atol=1e-6, equal_nan=True, msg=key)
        for key, value in alone.network.state_dict().items():
            found = together.network.state_dict()[key][number]
            torch.testing.assert_close(found, value[0], rtol=rtol, atol=1e-8, msg=key)


@pytest.mark.parametrize("name", ["CAT*-Temperature", "CAT-CPCS", "Wang", "CDAN+E"])
def test_each_run_of_a_stack_equals_itself_alone(name):
    assert_stacked(replace(RECIPES[name], schedule=RAGGED), 1e-5)


def kept_back(values: np.ndarray, target: int) -> HeldBack:
    """Target windows with labels; of the training windows some have none."""
    labels = np.arange(len(values)) % 3
    place = np.zeros(len(values), np.int64)
    windows = Windows(values=values, recording=place, start=place, span=values.shape[-1], recordings=())
    return HeldBack(windows, labels, np.arange(target) % 4 - 1)


def test_recipes_of_other_ingredients_or_data_of_other_shape_do_not_stack():
    with pytest.raises(InputError, match="same method"):
        train([Run(live(RECIPES["AT"]), toy(), 0), Run(live(RECIPES["DANN"]), toy(), 0)], CPU)
    for other in (toy(windows=17), toy(target=17), toy(length=100), toy(classes=4), toy(dtype=np.float64)):
        runs = [Run(live(RECIPES["AT"]), toy(), 0), Run(live(RECIPES["AT"]), other, 0)]
        assert stack_key(runs[0]) != stack_key(runs[1])
        with pytest.raises(InputError, match="windows of one shape"):
            train(runs, CPU)
    with pytest.raises(InputError, match="10 .* batch of 16"):
        train([Run(live(RECIPES["AT"]), toy(windows=10), 0)], CPU)


def test_a_run_that_turns_nan_is_marked_and_its_neighbours_go_on():
    recipe = still(RECIPES["AT*"], RAGGED)
    runs = [Run(recipe, toy(seed=seed, dtype=np.float64), seed) for seed in range(3)]
    runs[1].data.source_train.values[3] = np.nan
    together = train(runs, CPU)
    assert together.finite.tolist() == [True, False, True]
    alone = train([runs[2]], CPU)
    for key, value in alone.network.state_dict().items():
        torch.testing.assert_close(together.network.state_dict()[key][2], value[0], rtol=1e-6, atol=1e-9, msg=key)
    logits, _ = predict(together.network, together.batches.source_test)
    assert logits.isfinite().all()


class Interrupted(Exception):
    """Stands for Ctrl-C at the end of an epoch."""


def interrupted(runs: list[Run], stop: int, path: Path, device: torch.device = CPU) -> tuple[Trained, int]:
    """A training that is interrupted at the end of an epoch and goes on from its checkpoint, and from which epoch."""

    def interrupt(end: Trained) -> None:
        if end.epoch == stop:
            raise Interrupted

    epochs: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "SAVE_EVERY", 0)
        with pytest.raises(Interrupted):
            train(runs, device, progress=interrupt, checkpoint=path, identity="a")
    again = train(runs, device, progress=lambda end: epochs.append(end.epoch), checkpoint=path, identity="a")
    return again, epochs[0]


def test_an_interrupted_training_goes_on_to_the_same_result(tmp_path):
    run = Run(live(RECIPES["CAT*-Temperature"]), toy(), 5)
    whole, (resumed, began) = train([run], CPU), interrupted([run], 9, tmp_path / "checkpoint.safetensors")
    assert began == 10
    same_weights(resumed, whole)
    assert resumed.history.keys() == whole.history.keys()
    for name, value in whole.history.items():
        torch.testing.assert_close(resumed.history[name], value, rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    short = replace(SHORT, epochs=2)
    run = Run(replace(RECIPES["DANN"], schedule=short), toy(), 0)
    train([run], CPU, checkpoint=path, identity="a")
    for identity, word in (("b", "belongs to another training"), ("", "needs an identity")):
        with pytest.raises(InputError, match=word):
            train([run], CPU, checkpoint=path, identity=identity)
    whole = path.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", b"x" * 100, whole[:-4]):
        path.write_bytes(damage)
        with pytest.raises(InputError, match=r"checkpoint\.safetensors: is damaged"):
            train([run], CPU, checkpoint=path, identity="a")


def test_checkpoints_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    write_atomically(path, tensor_bytes({"a": torch.ones(3)}, {"epoch": 1}))
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, tensor_bytes({"a": torch.zeros(3)}, {"epoch": 2}))
    tensors, metadata = load_tensors(path)
    assert torch.equal(tensors["a"], torch.ones(3))
    assert metadata == {"epoch": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
