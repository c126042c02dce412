"""The loop: equal to its slow twin, and to itself in every way a run can be trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bearcat.cat import (
    CALIBRATORS,
    Adversarial,
    Calibration,
    Confusion,
    Evidence,
    Sharpness,
    find_calibrator,
    published,
)
from bearcat.cat.algorithm import Run, Trained, train
from bearcat.cat.evaluate import predict, watcher
from bearcat.cat.recipes import RECIPES, Recipe, Schedule
from bearcat.cat.state import TrainingState, new_state
from bearcat.cat.teacher import SelfTraining
from bearcat.data.recording import Windows
from bearcat.data.tasks import HeldBack, Labelled, TrainingData, Unlabelled
from bearcat.errors import InputError
from bearcat.fast.device import Batches, stack_data, stack_key
from tests.reference import loop as reference
from tests.reference.balance import repeated

pytestmark = pytest.mark.usefixtures("narrow_classifier")
CPU = torch.device("cpu")
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
        waves = np.sin(2 * np.pi * (pitch * time + random.random((count, 1)))) + 0.3 * random.standard_normal(
            (count, length)
        )
        return waves[:, None].astype(dtype), labels.astype(np.int64)

    train_, test, unlabelled = make(windows, 0.0), make(13, 0.0), make(target, 0.01)
    return TrainingData(tuple("abcdefgh"[:classes]), Labelled(*train_), Labelled(*test), Unlabelled(unlabelled[0]))


def still(recipe: Recipe, schedule: Schedule = SHORT, **changes: Any) -> Recipe:
    """Without dropout, on a short schedule."""
    return replace(recipe, schedule=schedule, dropout=0.0, **changes)


def changed(recipe: Recipe, change: dict[str, Any]) -> Recipe:
    """With other options; a dict holds those of an ingredient, or of the teacher."""
    for part, value in change.items():
        if part == "teacher":
            recipe = recipe.change("labels", teacher=replace(recipe.find(SelfTraining).teacher, **value))
        else:
            recipe = recipe.change(part, **value) if isinstance(value, dict) else replace(recipe, **{part: value})
    return recipe


def twin_of(recipe: Recipe, data: TrainingData, seed: int, run: Run) -> reference.Twin:
    """The slow twin with the same settings and initial weights."""
    schedule = recipe.schedule
    batches = stack_data([data], [seed], schedule.batch, CPU)
    state = new_state(run.recipe, batches, len(data.classes))
    holder: dict[str, reference.Twin] = {}

    def calibrate(logits: torch.Tensor, labels: torch.Tensor) -> Any:
        assert recipe.calibration is not None
        calibrator = find_calibrator(recipe.calibration)
        twin, target = holder["twin"], {}
        if calibrator.needs:
            assert twin.teacher is not None
            encoder = twin.teacher["encoder"].eval()
            with torch.no_grad():
                target = {
                    "source_features": encoder(torch.from_numpy(data.source_test.values))[None],
                    "source_train_features": encoder(torch.from_numpy(data.source_train.values))[None],
                    "target_features": encoder(torch.from_numpy(data.target_train.values))[None],
                    "seeds": torch.tensor([seed]),
                }
        if recipe.balance:
            often = repeated(labels.tolist())
            logits, labels = logits[often], labels[often]
        fitted = calibrator.fit(Evidence(source_logits=logits[None], source_labels=labels[None], **target))
        return lambda values: fitted.apply(values[None])[0]

    labels, sharpness, confusion, alignment = (
        recipe.find(kind) for kind in (SelfTraining, Sharpness, Confusion, Adversarial)
    )
    settings = reference.Settings(
        epochs=schedule.epochs, batch=schedule.batch, rate=schedule.rate, weight_decay=schedule.weight_decay,
        drops=schedule.drops, align_from=schedule.align_from, label_from=schedule.label_from,
        calibrate_from=schedule.calibrate_from, alignment=recipe.find(Adversarial) is not None,
        mcc=recipe.find(Confusion) is not None, radius=sharpness.radius if sharpness else 0.0, teacher=labels is not None,
        threshold="fixed" if labels and labels.threshold == "fixed" else "per class",
        counts=labels.counts if labels else "uncalibrated",
        calibration=calibrate if recipe.calibration else None,
        tau=labels.tau if labels else 0.9, dropout=0.0, passes=recipe.passes, doubled=recipe.doubled, calibrate_at=recipe.calibrate,
        counts_mode=labels.counts_mode if labels else "evaluation", relabel=labels.relabel if labels else False,
        early_teacher=labels.teacher.early if labels else False,
        mcc_climbed_from_labels=confusion.climbed == "labels" if confusion else False,
        first_counts=labels.first_counts if labels else "student", target_pass=recipe.target_pass,
        reversal_counts_from=int(alignment.progress == "iterations from 1") if alignment else 0,
    )  # fmt: skip
    holder["twin"] = make_twin(settings, data, state)
    return holder["twin"]


def make_twin(settings: reference.Settings, data: TrainingData, state: TrainingState) -> reference.Twin:
    """The slow twin on these data, with the initial weights of a stack's first run."""
    given = reference.Data(
        (torch.from_numpy(data.source_train.values), torch.from_numpy(data.source_train.labels)),
        (torch.from_numpy(data.source_test.values), torch.from_numpy(data.source_test.labels)),
        torch.from_numpy(data.target_train.values),
        classes=len(data.classes),
    )
    return reference.Twin(
        settings, given,
        student_state={name: value[0].clone() for name, value in state.student.state_dict().items()},
        domain_state=domain_state(state),
        iterations_per_epoch=state.batches.iterations,
    )  # fmt: skip


def domain_state(state: TrainingState) -> dict[str, torch.Tensor] | None:
    """The first run's domain classifier; None where the recipe has none."""
    module = state.modules.get("alignment")
    return None if module is None else {name: value[0].clone() for name, value in module.state_dict().items()}


def assert_equal_to_twin(recipe: Recipe, data: TrainingData, seed: int = 3) -> Trained:
    run = Run(recipe, data, seed)
    trained = train([run], CPU)
    twin = twin_of(recipe, data, seed, run)
    batches = stack_data([data], [seed], recipe.schedule.batch, CPU, recipe.balance)
    names = {"supervised": "loss_supervised", "pseudo": "loss_labels", "mcc": "loss_confusion", "domain": "loss_alignment",
             "share": "pseudo_label_share"}  # fmt: skip
    for epoch in range(recipe.schedule.epochs):
        steps = run_epoch(twin, batches, epoch)
        for theirs, ours in names.items():
            expected = float(sum(step[theirs] for step in steps)) / len(steps)
            found = float(trained.history[ours][epoch, 0]) if ours in trained.history else 0.0
            assert np.nan_to_num(found) == pytest.approx(expected, rel=1e-4, abs=1e-6), (epoch, ours)
    pairs = [(trained.student, twin.student)] + (
        [(trained.teacher, twin.teacher)] if trained.teacher is not None else []
    )
    for ours, theirs in pairs:
        expected_state = theirs.state_dict()
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(
                value[0], expected_state[name], rtol=1e-4, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
            )
    if trained.teacher is not None:
        assert (trained.teacher.head.weight != trained.student.head.weight).any()
    return trained


def run_epoch(twin: reference.Twin, batches: Batches, epoch: int) -> list[dict[str, torch.Tensor]]:
    """The twin's steps of an epoch, on the batches that the loop gives a run alone."""
    twin.start_epoch(epoch, [torch.from_numpy(places[0]) for places in batches.target_pass(epoch)])
    pairs = zip(*batches.order(epoch), strict=True)
    steps = [twin.step(torch.from_numpy(source[0]), torch.from_numpy(target[0])) for source, target in pairs]
    twin.end_epoch()
    return steps


@pytest.mark.parametrize("name", ["AT-fixed", "CAT*-Temperature"])
def test_every_step_is_the_twins(name):
    """In float64, one step an epoch, so that every loss of every step is compared; then all weights and statistics."""
    assert_equal_to_twin(still(RECIPES[name]), toy(dtype=np.float64))


RAGGED = replace(SHORT, epochs=4, align_from=1, label_from=2, calibrate_from=3, drops=(2, 3))


# tests/acceptance/test_parity.py has every method, option and phase; here one of each kind.
@pytest.mark.parametrize("name", ["source-only", "DANN*", "AT-fixed", "CAT-CPCS", "CAT*-Vector"])
def test_epochs_of_several_batches_with_smaller_last_ones_are_the_twins(name):
    """In float64, eight steps of all phases."""
    assert_equal_to_twin(still(RECIPES[name], RAGGED), toy(windows=25, target=23, dtype=np.float64))


# T_DA and T_PL apart, so that every phase differs.
PHASES = replace(RAGGED, epochs=5, calibrate_from=3)
OPTIONS: list[dict[str, Any]] = [
    {"passes": "separate"},
    {"labels": {"counts": "calibrated"}},
    {"labels": {"threshold": "fixed", "tau": 0.9}},
    {"passes": "joint"},
    {"passes": "separate", "doubled": True},
    {"labels": {"counts_mode": "training"}},
    {"labels": {"relabel": True}},
    {"confusion": {"climbed": "labels"}},
    {"teacher": {"early": True}},
    {"teacher": {"early": True}, "labels": {"counts_mode": "training"}},
    {"teacher": {"early": True}, "labels": {"first_counts": "early"}},
    {"labels": {"threshold": "fixed", "counts_mode": "training"}},
    {"target_pass": True},
    {"alignment": {"progress": "iterations from 1"}},
    {"calibrate": "end"},
]


@cache
def without_options(threshold: str, windows: int) -> tuple[Recipe, TrainingData, Trained]:
    data = toy(windows=windows, target=windows, dtype=np.float64)
    recipe = still(RECIPES["CAT*-Temperature"], PHASES, calibration="Temperature:bounds=0.05,100")
    recipe = recipe.change("labels", tau=0.5, threshold=threshold)
    return recipe, data, train([Run(recipe, data, 3)], CPU)


def assert_option_is_the_twins(change: dict[str, Any]) -> None:
    """And that it does something."""
    # Some labels are sure, and a calibration makes others so; at this age per-class thresholds let all pass.
    some_pass = "calibrate" in change
    windows = 25 if "counts" in change.get("labels", {}) else 16  # thresholds differ only where counts do
    plain, data, theirs = without_options("fixed" if some_pass else "per-class", windows)
    ours = assert_equal_to_twin(changed(plain, change), data)
    pairs = [(value, theirs.network.state_dict()[name]) for name, value in ours.network.state_dict().items()]
    pairs += [(value, theirs.history[name]) for name, value in ours.history.items() if name.startswith("threshold")]
    assert any(not torch.allclose(mine, other, equal_nan=True) for mine, other in pairs), "the option changed nothing"


@pytest.mark.parametrize("change", [OPTIONS[place] for place in (0, 1, 6, 10)], ids=str)
def test_an_option_is_the_twins_and_does_something(change):
    assert_option_is_the_twins(change)


def assert_published(name: str, label_from: int, windows: int, batch: int) -> None:
    """The loop with `published=true` gives the logits of the twin that knows the method's name alone."""
    schedule = replace(
        RAGGED, epochs=label_from + 2, batch=batch, label_from=label_from, calibrate_from=label_from, drops=(label_from,)
    )  # fmt: skip
    data, seed = toy(windows=windows, target=windows, length=33, dtype=np.float64), 3
    recipe = still(RECIPES[name], schedule).with_settings({"published": "true"})
    trained = train([Run(recipe, data, seed)], CPU)
    batches = stack_data([data], [seed], batch, CPU)
    numbers = {
        each: getattr(schedule, each)
        for each in ("epochs", "batch", "drops", "align_from", "label_from", "calibrate_from")
    }
    twin = make_twin(reference.published(name, dropout=0.0, **numbers), data, new_state(recipe, batches, 3))
    twin.sgd_steps = published.SGD_STEPS
    for epoch in range(schedule.epochs):
        run_epoch(twin, batches, epoch)
    network = twin.student if twin.teacher is None else twin.teacher
    assert (trained.teacher is None) == (twin.teacher is None)
    for values in (data.source_test.values, data.target_train.values):
        expected = twin.predict(network, torch.from_numpy(values))
        found = predict(trained.network, torch.from_numpy(values)[None])[0]
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-9)
        if trained.calibration is not None:
            torch.testing.assert_close(
                trained.calibration.apply(found)[0], twin.calibrate(expected), rtol=1e-6, atol=1e-6
            )


@pytest.mark.parametrize("name", ["DANN*", "AT-fixed", "CAT*-Temperature", "CAT-CPCS"])
def test_the_published_code_is_the_twins_to_the_last_digit(name):
    """Where T_DA < T_PL, and four steps make an epoch."""
    assert_published(name, label_from=2, windows=15, batch=4)


# --- identities -------------------------------------------------------------------------------------------------------


def weights(trained: Trained) -> dict[str, torch.Tensor]:
    return {
        f"{part}.{name}": value
        for part, net in (("s", trained.student), ("n", trained.network))
        for name, value in net.state_dict().items()
    }


def same_weights(first: Trained, second: Trained, **tolerance: float) -> None:
    for name, value in weights(first).items():
        if tolerance:
            torch.testing.assert_close(value, weights(second)[name], **tolerance)
        else:
            assert torch.equal(value, weights(second)[name]), name


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


@dataclass(frozen=True)
class Twice:
    """The least a calibrator can be: no `needs`, no `at_bound`."""

    def fit(self, evidence: Evidence) -> Calibration:
        half = torch.full(evidence.source().scores.shape[::2], 0.5, dtype=torch.float64)
        return Calibration(half, torch.zeros_like(half))


def test_a_calibrator_says_what_it_needs_and_its_bound_only_if_it_likes(monkeypatch):
    monkeypatch.setitem(CALIBRATORS, "Twice", Twice)
    trained = train([Run(live(RECIPES["CAT*-Temperature"], calibration="Twice"), toy(), 0)], CPU)
    assert trained.calibration.temperature.tolist() == [2.0]
    assert trained.calibration.at_bound.tolist() == [False]


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
    for (name, found), (_, expected) in zip(
        sharp.student.named_parameters(), plain.student.named_parameters(), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9, msg=name)


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


@pytest.fixture(scope="module")
def whole() -> tuple[Run, Trained]:
    run = Run(live(RECIPES["CAT*-Temperature"]), toy(), 5)
    return run, train([run], CPU)


def test_alone_and_alone_again_are_the_same_to_the_bit(whole):
    run, trained = whole
    same_weights(train([run], CPU), trained)
    other = train([Run(run.recipe, run.data, 6)], CPU)
    assert not torch.equal(other.student.head.weight, trained.student.head.weight)


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
    bad = toy(seed=1, dtype=np.float64)
    bad.source_train.values[3] = np.nan
    runs = [
        Run(recipe, toy(seed=seed, dtype=np.float64), seed) if seed != 1 else Run(recipe, bad, 1) for seed in range(3)
    ]
    together = train(runs, CPU)
    assert together.finite.tolist() == [True, False, True]
    alone = train([runs[2]], CPU)
    for key, value in alone.network.state_dict().items():
        torch.testing.assert_close(together.network.state_dict()[key][2], value[0], rtol=1e-6, atol=1e-9, msg=key)
    logits, _ = predict(together.network, together.batches.source_test)
    assert logits.isfinite().all()


class Interrupted(Exception):
    """Stands for Ctrl-C at the end of an epoch."""


def test_an_interrupted_training_goes_on_to_the_same_result(tmp_path, whole):
    run, whole = whole
    stop, path = 9, tmp_path / "checkpoint.safetensors"

    def interrupt(end):
        if end.epoch == stop:
            raise Interrupted

    with pytest.raises(Interrupted):
        train([run], CPU, progress=interrupt, checkpoint=path, checkpoint_seconds=0, identity="a")
    epochs = []
    resumed = train([run], CPU, progress=lambda end: epochs.append(end.epoch), checkpoint=path, identity="a")
    assert epochs[0] == stop + 1
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
    from bearcat.storage import load_tensors, save_tensors

    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.ones(3)}, {"epoch": 1})
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_tensors(path, {"a": torch.zeros(3)}, {"epoch": 2})
    tensors, metadata = load_tensors(path)
    assert torch.equal(tensors["a"], torch.ones(3))
    assert metadata == {"epoch": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
