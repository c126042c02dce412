"""What a run says of itself without labels: equal to slow twins, of the promised coverage, blind to target labels."""

from __future__ import annotations

import html
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.cli.train import print_trust
from bearcat.data import Preparation, Split, Task, join, load, open_dataset, prepare, split_task
from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES, Schedule
from bearcat.report.caveats import caveats
from bearcat.report.results import Cell
from bearcat.report.run_page import write_run_page
from bearcat.runs.run import Library, Order, _look
from bearcat.training.evaluate import LOOKED, MIXED, SHARPNESS, validators, watcher
from bearcat.training.loop import Run, train
from bearcat.trust import estimates as trust
from tests.made_records import made_result
from tests.reference import trust as reference

CPU = torch.device("cpu")
RECIPE = replace(
    RECIPES["CAT*-Temperature"],
    schedule=Schedule(epochs=4, batch=16, align_from=0, label_from=1, calibrate_from=2, drops=(3,)),
)


def made_probabilities(seed: int, windows: int, classes: int, sharp: float = 2.0) -> np.ndarray:
    scores = sharp * np.random.default_rng(seed).standard_normal((windows, classes))
    return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)


def made_domain(seed: int, windows: int, sharp: float = 2.0, recordings: int = 8) -> tuple[trust.Target, np.ndarray]:
    """Windows of which each probability is exactly that of its class, and their labels."""
    probabilities = made_probabilities(seed, windows, 4, sharp)
    random = np.random.default_rng([seed, 1])
    labels = np.array([random.choice(4, p=row) for row in probabilities])
    return trust.Target(np.log(probabilities), np.arange(windows) % recordings), labels


def made_source(seed: int, windows: int, sharp: float = 2.0) -> trust.Source:
    target, labels = made_domain(seed, windows, sharp)
    return trust.Source(target.log_probabilities, labels)


shapes = st.tuples(st.integers(0, 10**6), st.integers(3, 30), st.integers(2, 6), st.floats(0.1, 8))


# Validators.


@settings(deadline=None, max_examples=25)
@given(shapes)
def test_validators_are_their_twins_and_padding_is_not_looked_at(shape):
    seed, windows, classes, sharp = shape
    rows = made_probabilities(seed, windows, classes, sharp)
    stack = torch.full((2, windows + 2, classes), math.nan, dtype=torch.float64)
    stack[0, :windows] = torch.from_numpy(rows)
    stack[1, : windows - 1] = torch.from_numpy(rows[1:])
    present = ~stack[..., 0].isnan()
    found = validators(stack, present)
    for run, mine in enumerate((rows, rows[1:])):
        assert found["entropy"][run] == pytest.approx(reference.entropy_validator(mine))
        assert found["bnm"][run] == pytest.approx(reference.bnm(mine), rel=1e-6)
        if len(mine) > 2:
            assert found["snd"][run] == pytest.approx(reference.snd(mine, SHARPNESS))


def test_validators_prefer_sure_predictions_and_only_bnm_sees_a_collapse():
    everyone = torch.ones(1, 30, dtype=torch.bool)
    sure = torch.eye(3, dtype=torch.float64).repeat(10, 1)[None]
    unsure = torch.full_like(sure, 1 / 3)
    one_class = sure[:, :1].expand(1, 30, 3)
    best, flat, collapsed = (validators(one, everyone) for one in (sure, unsure, one_class))
    assert best["entropy"] == pytest.approx(0)
    assert best["bnm"] == pytest.approx(1)
    assert flat["entropy"] == pytest.approx(-1)
    assert collapsed["entropy"] == best["entropy"], "entropy alone does not see a collapse"
    assert collapsed["bnm"] == pytest.approx(math.sqrt(1 / 3))
    assert flat["bnm"] == pytest.approx(1 / 3)
    assert best["snd"] == pytest.approx(math.log(9) / math.log(29), abs=1e-4), "each has the nine others of its class"
    assert collapsed["snd"] == pytest.approx(1), "nor does density see a collapse"


def test_a_run_of_no_numbers_has_no_validators_and_its_neighbour_keeps_its_own():
    rows = torch.from_numpy(made_probabilities(0, 10, 3))
    present = torch.ones(2, 10, dtype=torch.bool)
    found = validators(torch.stack([rows, rows * math.nan]), present)
    alone = validators(rows[None], present[:1])
    for name, value in found.items():
        assert value[1].isnan()
        assert value[0] == alone[name][0]


@given(st.integers(0, 10**6), st.integers(3, 40))
def test_dev_is_its_twin(seed, windows):
    random = np.random.default_rng(seed)
    errors, odds = random.integers(2, size=windows).astype(float), random.standard_normal(windows)
    assert trust.dev_risk(errors, odds) == pytest.approx(reference.dev(errors, odds))


def test_dev_of_equal_domains_is_the_source_risk_and_a_constant_risk_is_found_whatever_the_weights():
    random = np.random.default_rng(0)
    errors, odds = random.integers(2, size=50).astype(float), random.standard_normal(50)
    assert trust.dev_risk(errors, np.zeros(50)) == pytest.approx(errors.mean())
    assert trust.dev_risk(np.full(50, 0.3), 3 * odds) == pytest.approx(0.3)
    assert math.isfinite(trust.dev_risk(errors, 1e6 * odds))


def test_dev_weighs_source_errors_where_the_target_is():
    random = np.random.default_rng(1)
    place = random.standard_normal(4000)
    errors = (place > 0.5).astype(float)
    risk = trust.dev_risk(errors, place - 0.5)  # of a target N(1, 1) by the source N(0, 1)
    assert risk == pytest.approx(0.6915, abs=0.05)
    assert errors.mean() == pytest.approx(0.3085, abs=0.03)


# Expected accuracy.


@given(st.integers(0, 10**6), st.integers(1, 30))
def test_atc_is_its_twin_ties_included(seed, windows):
    random = np.random.default_rng(seed)
    source, target = random.integers(6, size=windows) / 5, random.integers(6, size=20) / 5
    right = random.random(windows) < 0.7
    found = np.mean(target >= trust.atc_threshold(source, right))
    assert found == pytest.approx(reference.atc(source, right, target))


def test_atc_returns_the_source_accuracy_on_the_source():
    source = made_source(0, 500)
    found = trust.expected_accuracy(source, trust.Target(source.log_probabilities, np.zeros(500, dtype=int)))
    for name in ("atc_confidence", "atc_entropy", "doc"):
        assert found[name].value == pytest.approx(source.right.mean(), abs=1e-9), name


def test_without_shift_every_estimate_is_near_the_truth_and_the_interval_holds_it_as_often_as_promised():
    inside, errors = [], []
    for seed in range(200):
        target, labels = made_domain(1000 + seed, 200, 1.0 + 2 * (seed % 2), recordings=40)
        truth = np.mean(target.log_probabilities.argmax(axis=1) == labels)
        found = trust.expected_accuracy(made_source(seed, 400, 1.0 + 2 * (seed % 2)), target, seed)
        inside.append(found["confidence"].low <= truth <= found["confidence"].high)
        errors.append([one.value - truth for one in found.values()])
    assert 0.85 <= np.mean(inside) <= 0.99
    assert np.abs(np.mean(errors, axis=0)).max() < 0.02
    assert np.abs(errors).mean() < 0.06


def test_the_bootstrap_is_its_twin_to_what_chance_leaves():
    random = np.random.default_rng(0)
    recording = np.repeat(np.arange(12), 10)
    values = np.clip(0.7 + 0.2 * random.standard_normal(12)[recording], 0, 1)
    mine = trust.bootstrap(values[None], recording, seed=1, draws=4000)[0]
    assert (mine.low, mine.high) == pytest.approx(
        reference.bootstrap(values, recording, 2, 4000, trust.LEVEL), abs=0.01
    )


def test_windows_of_one_recording_count_as_one_witness():
    recording = np.repeat(np.arange(10), 100)
    values = np.where(recording < 5, 0.5, 1.0)[None]
    together = trust.bootstrap(values, recording)[0]
    apart = trust.bootstrap(values, np.arange(1000))[0]
    assert together.high - together.low > 4 * (apart.high - apart.low)
    few = trust.bootstrap(values, np.arange(1000) % 2)[0]
    assert few == apart, "with two recordings there is nothing to draw but windows"


@given(shapes)
def test_estimates_lie_in_their_intervals_between_nothing_and_everything(shape):
    seed, windows, _, sharp = shape
    target, _ = made_domain(seed, windows, sharp)
    for one in trust.expected_accuracy(made_source(seed + 1, 20, sharp), target).values():
        assert 0 <= one.low <= one.value <= one.high <= 1


def test_agreement_is_the_share_of_equal_predictions():
    assert trust.agreement(("a", "b", "b", "c"), ("a", "b", "c", "c")) == 0.75
    assert math.isnan(trust.agreement((), ()))


# Abstention.


@given(shapes)
def test_scores_of_sets_are_their_twins(shape):
    rows = np.round(made_probabilities(*shape), 1)
    aps, lac = trust.aps_scores(rows), trust.lac_scores(rows)
    for number, row in enumerate(rows):
        for label in range(len(row)):
            assert aps[number, label] == pytest.approx(reference.aps(row, label))
            assert lac[number, label] == 1 - row[label]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.sampled_from([0.05, 0.1, 0.2, 0.5]))
def test_a_conformal_limit_is_its_twins(scores, rate):
    assert trust.conformal_limit(np.array(scores, dtype=float), rate) == reference.limit(scores, rate)


@pytest.mark.parametrize("kind", ["lac", "aps"])
def test_without_shift_sets_hold_the_class_as_often_as_promised(kind):
    covered = {rate: [] for rate in trust.MISS_RATES}
    for seed in range(150):
        target, labels = made_domain(2000 + seed, 100)
        for one in trust.conformal(made_source(seed, 99), target)[kind]:
            inside = trust.conformal_sets(np.exp(target.log_probabilities), kind, one["limit"])
            assert one["size"] == inside.sum(axis=1).mean()
            covered[one["miss"]].append(inside[np.arange(100), labels].mean())
    for rate, shares in covered.items():
        assert np.mean(shares) >= 1 - rate - 0.01
        assert kind == "aps" or np.mean(shares) <= 1 - rate + 0.02, "sets are no larger than they need be"


@given(st.integers(1, 60), st.data(), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_bound_on_errors_is_its_twins(windows, data, certainty):
    wrong = data.draw(st.integers(0, windows))
    assert trust.error_bound(wrong, windows, certainty) == pytest.approx(reference.bound(wrong, windows, certainty))


def test_a_threshold_keeps_its_error_rate_as_surely_as_promised_and_is_none_where_none_can():
    broken, found = 0, 0
    sure = trust.confidence(np.log(made_probabilities(9999, 20000, 4, 3.0)))
    for seed in range(200):
        source, rate = made_source(seed, 300, 3.0), 0.1
        limit = trust.error_threshold(trust.confidence(source.log_probabilities), source.right, rate)
        if limit is not None:
            found += 1
            broken += (1 - sure[sure >= limit]).mean() > rate  # here confidence is exact
    assert found > 100
    assert broken / found <= 1 - trust.CERTAINTY
    assert trust.error_threshold(np.full(20, 0.9), np.ones(20, dtype=bool), 0.01) is None, "20 windows cannot tell 1 %"
    all_right = trust.error_threshold(np.linspace(0.5, 1, 1000), np.ones(1000, dtype=bool), 0.01)
    assert all_right == 0.5, "where nothing is wrong everything is kept"


# Familiarity.


def made_features(seed: int, windows: int, shift: float = 0.0, tone: int = 0) -> tuple[np.ndarray, ...]:
    """Logits, features and spectra around three centres; tone: a line at this bin that the network does not hear."""
    random = np.random.default_rng(seed)
    centre = random.integers(3, size=windows)
    features = np.eye(16)[centre] * 4 + 0.5 * random.standard_normal((windows, 16))
    features[:, 8:] += shift
    magnitudes = np.abs(random.standard_normal((windows, 1, 128))) * (
        1 + 4 * (np.arange(128) // 43 == centre[:, None, None])
    )
    magnitudes[..., tone] += 60 * (tone > 0)
    return features[:, :3].astype(np.float32), np.abs(features).astype(np.float32), magnitudes


def made_familiarity(seed: int, held_out: int = 400, each: int = 20, **settings) -> trust.Familiarity:
    train, held = made_features(seed, 300), made_features(seed + 10_000, held_out)
    return trust.fit_familiarity(*train[1:], *held, np.arange(held_out) // each, **settings)


def test_the_favoured_epoch_is_that_of_the_highest_validator_and_labels_tell_what_it_is_worth():
    nothing = math.nan
    told = trust.favoured_epoch(np.array([nothing, 0.5, 0.9, 0.8]))
    assert told == {"validator": "bnm", "epoch": 2, "value": 0.9, "last": 0.8}
    accuracy = np.array([nothing, 0.7, 0.6, 0.65])
    assert trust.favoured_checked(told, accuracy) == {"chosen": 0.6, "last": 0.65, "best": 0.7}
    assert trust.favoured_checked(told, np.full(4, nothing)) is None
    assert trust.favoured_epoch(np.full(3, nothing)) is None


@pytest.fixture(scope="module")
def fitted() -> trust.Familiarity:
    return made_familiarity(0)


def test_scores_of_strangeness_are_their_twins(fitted):
    logits, features, magnitudes = made_features(5, 6, 1.0)
    energy, far, odd = fitted.scores(logits, features, magnitudes)
    known = [list(map(float, row)) for row in fitted.shapes]
    for number in range(6):
        assert far[number] == pytest.approx(reference.distance(fitted.features, features[number], 10), abs=1e-3)
        assert energy[number] == pytest.approx(-math.log(sum(math.exp(float(one)) for one in logits[number])), rel=1e-5)
        shape = reference.shape(magnitudes[number, 0].tolist(), trust.BANDS, trust.LEAST_SHARE)
        assert trust.spectral_shape(magnitudes[number : number + 1])[0] == pytest.approx(shape)
        assert odd[number] == pytest.approx(reference.oddness(known, shape, 10), rel=1e-4)


@given(st.floats(1e-20, 1e20), st.floats(-1e3, 1e3), st.floats(0, 1e6))
def test_the_shape_of_a_spectrum_does_not_depend_on_gain_standardisation_or_offset(gain, shift, offset):
    magnitudes = made_features(5, 4)[2]
    changed = gain * (magnitudes + shift)
    changed[..., 0] = offset
    assert trust.spectral_shape(changed) == pytest.approx(trust.spectral_shape(magnitudes), abs=1e-6)


def test_windows_of_nothing_or_of_few_bins_have_a_shape_too():
    assert np.isfinite(trust.spectral_shape(np.zeros((2, 1, 128)))).all()
    assert trust.spectral_shape(np.ones((2, 3, 9))).shape == (2, 24)


def test_windows_of_the_target_raise_no_more_alarms_than_allowed_and_others_do():
    shares, limits, heard = [], [], []
    for seed in range(40):
        one, held = made_familiarity(seed, 200, 10), made_features(seed + 10_000, 200)
        shares.append(one.unfamiliar(*made_features(500 + seed, 400)).mean())
        limits.append(one.unfamiliar(*made_features(700 + seed, 50, shift=2.0)).mean())
        heard.append(one.unfamiliar(*made_features(900 + seed, 50, tone=100)).mean())
        source = one.unfamiliar(*made_features(seed, 50, shift=2.0))
        told = trust.familiarity_told(one, one.scores(*held), np.arange(200) // 10, source)
        assert told["source_unfamiliar"] > 0.9
        assert 0 <= told["false_alarms"] < 0.15
    assert np.mean(shares) <= trust.FALSE_ALARMS + 0.005
    assert np.mean(limits) > 0.95
    assert np.mean(heard) > 0.95, "what the network overlooks is heard all the same"


def test_a_recording_is_an_alarm_when_many_of_its_windows_are_strange_and_one_of_two_is_not_enough(fitted):
    assert fitted.alarm(int(fitted.unfamiliar(*made_features(7, 40, shift=2.0)).sum()), 40)
    false = [fitted.alarm(int(fitted.unfamiliar(*made_features(100 + seed, 20)).sum()), 20) for seed in range(200)]
    assert np.mean(false) <= fitted.rate
    assert not fitted.alarm(1, 2)
    assert not fitted.alarm(0, 0)


def test_few_held_out_windows_give_a_limit_and_the_rate_it_has():
    train, held = made_features(0, 30), made_features(1, 9)
    one = trust.fit_familiarity(*train[1:], *held, np.zeros(9, dtype=int))
    assert one.rate == 0.3
    assert not one.unfamiliar(*held).any()
    single = trust.fit_familiarity(train[1][:1], train[2][:1], *held, np.zeros(9, dtype=int))
    assert single.usable
    with pytest.raises(InputError, match="between 0 and 1"):
        trust.fit_familiarity(*train[1:], *held, np.zeros(9, dtype=int), rate=0.0)


def test_a_familiarity_comes_back_from_its_arrays(fitted):
    again = trust.Familiarity.from_state({name: value.copy() for name, value in fitted.state().items()})
    new = made_features(3, 50, 0.4)
    assert np.array_equal(again.unfamiliar(*new), fitted.unfamiliar(*new))
    assert 0 < again.unfamiliar(*new).mean() < 1
    assert vars(again).keys() == vars(fitted).keys()
    assert (again.neighbours, again.rate, again.recording_limit) == (10, fitted.rate, fitted.recording_limit)
    assert np.array_equal(again.features, fitted.features), "half the bytes keep all of it"
    assert sum(one.nbytes for one in fitted.state().values()) < 2 * 300 * (16 + 32) + 4 * 300 + 64
    with pytest.raises(InputError, match="is made of"):
        trust.Familiarity.from_state({"features": fitted.features})
    for change in (
        {"neighbours": 301}, {"energy_limit": math.nan}, {"features": np.zeros(3)}, {"spreads": fitted.spreads[1:]},
    ):  # fmt: skip
        with pytest.raises(InputError, match="finite limits"):
            trust.Familiarity.from_state(fitted.state() | change)


# What is said, and what it may depend on.


def test_the_verdict_says_what_to_expect_and_when_not_to_believe_it():
    near, far = trust.Estimate(0.84, 0.78, 0.9), trust.Estimate(0.5, 0.4, 0.6)
    said = trust.verdict({"confidence": near, "doc": near})
    assert said.startswith("Expect about 84 % (78–90) of windows right. ")
    assert trust.MEASURED in said
    assert said.endswith("Check some windows by hand before relying on it.")
    assert "; but estimates range from 50 to 84 %" in trust.verdict({"confidence": near, "doc": far})
    assert "not calibrated" in trust.verdict({"confidence": near}, calibrated=False)
    assert "training broke down" in trust.verdict({"confidence": near}, failed=True)
    assert "the same class" in trust.verdict({"confidence": near}, collapsed=True)
    assert "no numbers" in trust.verdict({"confidence": trust.Estimate(math.nan, math.nan, math.nan)})


def test_what_to_expect_is_the_lower_estimate_with_all_that_either_interval_holds():
    near, far = trust.Estimate(0.84, 0.78, 0.9), trust.Estimate(0.5, 0.4, 0.6)
    assert trust.expected({"confidence": near, "atc_confidence": far, "doc": trust.Estimate(0.1, 0.0, 1.0)}) == (
        trust.Estimate(0.5, 0.4, 0.9)
    )
    assert trust.expected({"confidence": far, "atc_confidence": near}) == trust.Estimate(0.5, 0.4, 0.9)
    assert trust.expected({"confidence": near}) == near


@pytest.fixture(scope="module")
def trained():
    """Two short trainings of unequal size, as one stack."""
    dataset = open_dataset("simulated", None, {"severities": "4", "faults": "inner,outer", "seconds": "1"})
    catalogue = dataset.catalogue()
    source, target = (
        prepare(load(catalogue, [domain]), Preparation(input="frequency", length=256))
        for domain in ("N15_M07_F10", "N09_M07_F10")
    )
    task = Task("N15_M07_F10", "N09_M07_F10")
    rest = np.flatnonzero(np.arange(len(target)) % 8 > 0)
    splits = [
        split_task(task, source, part, Split(), seed, keep_unknown=True)
        for seed, part in enumerate((target, target[rest]))
    ]
    runs = [Run(RECIPE, one.training, seed) for seed, one in enumerate(splits)]
    return train(runs, CPU, watcher([one.held_back for one in splits], CPU)), splits


def scrambled(split):
    """The same task with every target label another one; one recording's class becomes one the source lacks."""
    held, classes = split.held_back, split.training.classes
    others = {name: classes[(number + 1) % len(classes)] for number, name in enumerate(classes)}
    recordings = tuple(
        replace(one, label="unheard of" if number == 0 else others[one.label])
        for number, one in enumerate(held.target_test.recordings)
    )
    test = replace(held.target_test, recordings=recordings)
    codes = np.array([classes.index(one) if one in classes else -1 for one in test.labels])
    return replace(
        split,
        held_back=replace(
            held, target_test=test, target_test_labels=codes, target_train_labels=held.target_train_labels[::-1]
        ),
    )


def test_no_estimate_depends_on_a_target_label(trained):
    outcome, splits = trained
    seen = _look(outcome, splits, CPU).trust
    other = _look(outcome, [scrambled(one) for one in splits], CPU).trust
    bare = [
        replace(one, held_back=replace(one.held_back, target_test_labels=np.full(len(one.held_back.target_test), -1)))
        for one in splits
    ]
    without = _look(outcome, bare, CPU).trust
    bounded = outcome.calibration.at_bound.tolist()
    assert ["not calibrated" in one.estimates["verdict"] for one in seen] == bounded
    for one, changed, unlabelled in zip(seen, other, without, strict=True):
        assert one.estimates == changed.estimates == unlabelled.estimates
        assert one.checked["accuracy"] != changed.checked["accuracy"]
        assert one.checked["familiarity"]["unknown_unfamiliar"] is None
        assert changed.checked["familiarity"]["unknown_unfamiliar"] is not None
        assert unlabelled.checked is None


def test_what_is_checked_is_what_the_labels_say(trained):
    outcome, splits = trained
    seen = _look(outcome, splits, CPU)
    for number, (one, split) in enumerate(zip(seen.trust, splits, strict=True)):
        told, truth = one.estimates, one.checked
        labels = split.held_back.target_test_labels
        likely = seen.target[number].double().numpy()[: len(labels)]
        right = likely.argmax(axis=1) == labels
        assert truth["accuracy"] == pytest.approx(right.mean())
        assert told["mean_confidence"] == pytest.approx(likely.max(axis=1).mean(), abs=1e-6)
        assert truth["too_high_by"]["doc"] == pytest.approx(told["accuracy"]["doc"]["value"] - right.mean())
        assert truth["abstention"]["kept"][0]["accuracy"] == pytest.approx(right.mean())
        half = likely.max(axis=1) >= told["abstention"]["kept"][-1]["confidence"] - 1e-6
        assert truth["abstention"]["kept"][-1]["accuracy"] == pytest.approx(right[half].mean(), abs=1e-6)
        for kind, score in trust.SET_SCORES.items():
            inside = score(likely) <= told["conformal"][kind][0]["limit"] + 1e-6
            inside[np.arange(len(labels)), likely.argmax(axis=1)] |= kind == "aps"
            hit = inside[np.arange(len(labels)), labels].mean()
            assert truth["conformal"][kind][0]["coverage"] == pytest.approx(hit)
        json.dumps([told, truth], allow_nan=False)


def test_a_run_tells_the_same_of_itself_alone_and_in_a_stack(trained):
    outcome, splits = trained
    together = _look(outcome, splits, CPU).trust[1].estimates
    alone = train([Run(RECIPE, splits[1].training, 1)], CPU, watcher([splits[1].held_back], CPU))
    mine = _look(alone, splits[1:], CPU).trust[0].estimates
    # Sums are taken in another order, and training carries that on: hence not to the last digit.
    assert mine["validators"] == pytest.approx(together["validators"], abs=2e-3)
    assert mine["accuracy"]["confidence"] == pytest.approx(together["accuracy"]["confidence"], abs=2e-3)
    for name in ("validator_entropy_student", "validator_bnm_student", "validator_snd_student"):
        assert alone.history[name][0, 0] == pytest.approx(float(outcome.history[name][0, 1]), abs=1e-4)


def test_mixval_is_its_twin_padding_left_out(trained):
    outcome, splits = trained
    for number, (one, split) in enumerate(zip(_look(outcome, splits, CPU).trust, splits, strict=True)):

        def predict(window, number=number):
            both = torch.from_numpy(window.astype(np.float32)).expand(2, 1, *window.shape)
            with torch.no_grad():
                return int(outcome.network(both, False, None)[0][number, 0].argmax())

        twin = reference.mixval(predict, split.training.target_train.values, MIXED)
        assert one.estimates["validators"]["mixval"] == pytest.approx(twin, abs=1e-6)


def test_curves_hold_the_validators_of_the_first_target_training_windows(trained):
    outcome, splits = trained
    values = torch.from_numpy(splits[0].training.target_train.values[:LOOKED])[None]
    student = outcome.student
    with torch.no_grad():
        logits = student(torch.cat([values, values]), False, None)[0][0]
    rows = logits.double().softmax(dim=-1).numpy()
    assert outcome.history["validator_entropy_student"][-1, 0] == pytest.approx(
        reference.entropy_validator(rows), abs=1e-4
    )
    assert outcome.history["validator_snd_student"][-1, 0] == pytest.approx(reference.snd(rows, SHARPNESS), abs=1e-4)
    assert outcome.history["validator_bnm_teacher"][:1, 0].isnan().all(), "no teacher yet"
    assert outcome.history["validator_bnm_teacher"][-1].isfinite().all()


def test_trust_needs_no_torch():
    subprocess.run(
        [sys.executable, "-c", "import sys, bearcat.trust.estimates; assert 'torch' not in sys.modules"], check=True
    )


@pytest.mark.parametrize("scheme", ["window", "block"])
def test_the_recordings_of_source_test_windows_are_found_again(scheme):
    dataset = open_dataset("simulated", None, {"severities": "4", "faults": "inner,outer", "seconds": "1"})
    preparation = Preparation(input="frequency", length=256)
    sources = ("N15_M07_F10", "N15_M01_F10")
    order = Order("simulated", dataset, sources, "N09_M07_F10", "DANN", RECIPE, preparation, Split(scheme), seed=3)
    library = Library()
    test = library.split(order).training.source_test
    recording = test.recording
    everything = join([library.windows(dataset, one, preparation) for one in sources])
    assert len(set(recording.tolist())) == len(everything.recordings) > 3
    for values, one in zip(test.values, recording, strict=True):
        mine = everything.values[everything.recording == one]
        assert (mine == values).all(axis=(1, 2)).any()


# On a run's page.


def made_page(folder, alone: float = 0.5, **changes) -> str:
    """The page of a made run beside one of training on the source alone."""
    cell = Cell("rig", "time", "a→b", "CAT*-Temperature", 0)
    made_result(folder / "run", cell, 0.9, trusted=True, **changes)
    labelled = changes.get("labelled", True)
    made_result(
        folder / "alone", replace(cell, method="source-only"), 0.6, trusted=True, expected=alone, labelled=labelled
    )
    # The windows are the same; of every third the other run says another class.
    header, *rows = (folder / "run" / "predictions.csv").read_text(encoding="utf-8").splitlines()
    cells = [row.split(",") for row in rows]
    for one in cells[::3]:
        one[3] = "inner" if one[3] == "healthy" else "healthy"
    (folder / "alone" / "predictions.csv").write_text("\n".join([header, *(",".join(one) for one in cells)]))
    text = html.unescape(write_run_page(folder / "run", [folder / "alone"]).read_text(encoding="utf-8"))
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_a_page_tells_the_verdict_the_estimates_and_what_was_measured(tmp_path):
    text = made_page(tmp_path)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert f'<p class="verdict">{record["estimates"]["verdict"]}</p>' in text
    one = record["estimates"]["accuracy"]["confidence"]
    assert f"{100 * one['value']:.1f} ({100 * one['low']:.0f}–{100 * one['high']:.0f})" in text
    for words in ("How far to trust this", "measured coverage", "measured right", "measured errors", "often too high",
                  "Passing over unsure windows", "Thresholds for an error rate", "like the source's"):  # fmt: skip
        assert words in text, words
    assert "CAT*-Temperature and source-only agree on 66.7 % of the windows" in text
    assert "Negative transfer possible" not in text
    assert "Estimate off" not in text


def test_a_page_without_target_labels_measures_nothing_and_says_so(tmp_path):
    text = made_page(tmp_path, labelled=False)
    assert "none of this could be checked" in text
    assert "Passing over unsure windows" in text
    for words in ("measured coverage", "measured right", "measured errors", ">measured<"):
        assert words not in text


def test_a_page_warns_of_negative_transfer_without_labels(tmp_path):
    text = made_page(tmp_path, alone=0.95, labelled=False)
    assert "Negative transfer possible" in text
    assert "By DEV, the error rate of source windows" in text


def test_an_estimate_far_from_the_truth_is_a_caveat(tmp_path):
    text = made_page(tmp_path, expected=0.75)
    assert "CAT*-Temperature, a→b, time, seed 0: 7" in text
    result = made_result(tmp_path / "far", Cell("rig", "time", "a→b", "DANN", 0), 0.5, trusted=True, expected=0.9)
    near = made_result(tmp_path / "near", Cell("rig", "time", "a→b", "DANN", 1), 0.85, trusted=True, expected=0.9)
    old = made_result(tmp_path / "old", Cell("rig", "time", "a→b", "DANN", 2), 0.1)
    found = {one.kind: one for one in caveats([result, near, old])}["Estimate off"]
    assert len(found.items) == 1
    assert found.items[0].endswith("expected, 50.0 % measured")


def test_a_record_from_before_has_its_page_without_the_section(tmp_path):
    made_result(tmp_path / "run", Cell("rig", "time", "a→b", "DANN", 0))
    assert "How far to trust this" not in write_run_page(tmp_path / "run").read_text(encoding="utf-8")


def test_a_verdict_is_escaped(tmp_path):
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "DANN", 0), trusted=True)
    told = result.record["estimates"] | {"verdict": "<script>no</script>"}
    (tmp_path / "run" / "record.json").write_text(json.dumps(result.record | {"estimates": told}))
    assert "<script>no" not in write_run_page(tmp_path / "run").read_text(encoding="utf-8")


def test_the_command_ends_with_what_to_expect_and_what_the_labels_say(tmp_path, capsys):
    cell = Cell("rig", "time", "a→b", "CAT*-Temperature", 0)
    for name, accuracy, labelled, words in (
        ("near", 0.8, True, "Its labels, which it did not see, say 80.0 %, inside that interval."),
        ("far", 0.3, True, "say 30.0 %, outside that interval."),
        ("bare", 0.8, False, ""),
    ):
        record = made_result(tmp_path / name, cell, accuracy, labelled=labelled, trusted=True, expected=0.8).record
        print_trust("CAT", record)
        shown = capsys.readouterr().out
        assert "Without target labels, CAT expects 80." in shown
        assert f"Verdict: {record['estimates']['verdict']}\n" in shown
        assert words in shown
        assert ("Its labels" in shown) is labelled
    print_trust("CAT", made_result(tmp_path / "old", cell).record)
    assert capsys.readouterr().out == "", "a record from before there were estimates"


def test_the_benchmark_tells_how_far_estimates_are_from_the_truth(tmp_path):
    for number, (method, accuracy) in enumerate((("source-only", 0.6), ("DANN", 0.5), ("CAT*-Temperature", 0.9))):
        for seed in range(2):
            cell = Cell("rig", "time", "a→b", method, seed)
            made_result(tmp_path / "runs" / f"{number}{seed}", cell, accuracy, trusted=True, expected=accuracy + 0.05)
    made_result(tmp_path / "runs" / "old", Cell("rig", "time", "a→b", "AT*", 0))
    made_result(tmp_path / "runs" / "bare", Cell("rig", "time", "a→b", "AT*", 1), trusted=True, labelled=False)
    script = Path(__file__).parent.parent / "benchmarks" / "trust.py"
    told = subprocess.run([sys.executable, script, tmp_path], check=True, capture_output=True, text=True).stdout
    rows = {line.split("|")[1].strip(): [one.strip() for one in line.split("|")[2:-1]] for line in told.splitlines() if "|" in line}  # fmt: skip
    assert "6 runs" in told
    parts = told.split("###")
    assert float(rows["confidence"][1]) == pytest.approx(5, abs=1)
    assert "| DEV | 1.00 | 90.0 |" in parts[2], "rank correlation, and the accuracy of its choice"
    assert rows["(any, at random)"][1] == "66.7"
    assert "| (all) | 6 | 66.7 |" in parts[3]
    assert "| (all) | 2 | 2 | 2 |" in parts[-1], "DANN is ten points below source-only in both seeds, CAT* above"
    assert "| DEV | 2 | 2 | 0 | 1.00 | 1.00 |" in parts[-1]
