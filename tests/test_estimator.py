"""The scikit-learn face: scikit-learn's own checks, skada's conventions, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from bearcat import AdaptedClassifier, CATClassifier
from bearcat.cat import CAT
from bearcat.cat.recipes import RECIPES
from bearcat.data.splits import held_out
from bearcat.deploy.model import load_model
from tests.commands import bearcat as bearcat_command

# Of trainings without a target, and of those too short to be too confident.
SHORT = [pytest.mark.filterwarnings("ignore:no target was given"), pytest.mark.filterwarnings("ignore:.* T = 1 in all")]
pytestmark = [pytest.mark.usefixtures("narrow_classifier"), *SHORT]
LENGTH = 80
QUICK = {"input": "frequency", "epochs": 2, "batch_size": 16}


def signals(labels, bins, noise, random, length=LENGTH):
    """Tones in noise: the class is the frequency."""
    frequency = np.array([bins[label] for label in labels])[:, None] / LENGTH
    phase = random.uniform(0, 2 * np.pi, (len(labels), 1))
    tone = np.sin(2 * np.pi * frequency * np.arange(length) + phase)
    return tone + noise * random.standard_normal((len(labels), length))


@pytest.fixture
def papers_network():
    """Recipes as they are."""


@pytest.fixture(autouse=True)
def small_networks(request, monkeypatch):
    """Otherwise recipes have a dense network: what is tested here is what surrounds it, in a third of the time."""
    papers = "papers_network" in request.fixturenames or "check_classifiers_train" in request.node.name
    for name, recipe in RECIPES.items():
        if recipe.encoder == "cnn" and not papers:
            monkeypatch.setitem(RECIPES, name, replace(recipe, encoder="dense:widths=32"))


@pytest.fixture(scope="module")
def shift():
    """Source and target windows of three classes, the target's tones higher and noisier: Xs, ys, Xt, yt."""
    random = np.random.default_rng(7)
    ys, yt = np.arange(90) % 3, random.permutation(np.arange(60) % 3)
    Xs = signals(ys, (6, 16, 28), 0.3, random)
    return Xs, ys, signals(yt, (9, 20, 33), 0.6, random), yt


@pytest.fixture(scope="module")
def packed(shift):
    """The same as skada has it: X, y, sample_domain, in mixed order."""
    Xs, ys, Xt, _ = shift
    order = np.random.default_rng(0).permutation(len(Xs) + len(Xt))
    X, y = np.concatenate([Xs, Xt]), np.concatenate([ys, np.full(len(Xt), -1)])
    return X[order], y[order], np.repeat([1, -2], [len(Xs), len(Xt)])[order]


# No check is exempt. A few epochs of small batches are enough for those that ask for a good score on blobs.
@parametrize_with_checks([CATClassifier(epochs=3, batch_size=16)])
def test_scikit_learns_estimator_checks_pass(estimator, check):
    check(estimator)


def test_probabilities_are_those_of_cat_on_the_same_arrays(shift):
    Xs, ys, Xt, _ = shift
    model = CATClassifier(**QUICK).fit(Xs, ys, X_target=Xt)
    likely = model.predict_proba(Xt)
    alike = CAT(input="frequency", epochs=2, batch=16, progress=False).fit(Xs, ys, Xt)
    assert np.allclose(likely, alike.predict_proba(Xt), rtol=0, atol=1e-12)
    assert np.array_equal(model.classes_[likely.argmax(axis=1)], model.predict(Xt))
    assert np.allclose(likely.sum(axis=1), 1)
    assert model.method_name_ == "CAT*-Temperature"


def test_source_and_target_of_a_packed_array_are_those_of_two_arrays(packed):
    X, y, domain = packed
    model = CATClassifier(**QUICK).fit(X, y, sample_domain=domain)
    alike = CATClassifier(**QUICK).fit(X[domain >= 0], y[domain >= 0], X_target=X[domain < 0])
    assert np.array_equal(model.predict_proba(X), alike.predict_proba(X))
    names = np.where(domain < 0, "load3", "load0")
    by_name = CATClassifier(**QUICK).fit(X, y, domain=names, target="load3")
    assert np.array_equal(model.predict_proba(X), by_name.predict_proba(X))
    assert np.array_equal(model.predict_proba(X), model.predict_proba(X, sample_domain=domain, allow_source=True))


def test_no_label_of_the_target_changes_anything(packed):
    X, y, domain = packed
    names = np.array(["healthy", "inner", "outer"])
    quick = AdaptedClassifier("DANN", **QUICK | {"epochs": 1})
    expected = clone(quick).fit(X, y, sample_domain=domain)
    mixed = names[y].astype(object)
    mixed[domain < 0] = -1
    for labels in (np.where(domain < 0, "cage", names[y]), mixed, np.where(domain < 0, np.nan, y.astype(float))):
        model = clone(quick).fit(X, labels, sample_domain=domain)
        assert list(model.classes_) == sorted(set(labels[domain >= 0]))
        assert np.array_equal(model.predict_proba(X), expected.predict_proba(X))


def test_without_a_target_the_source_alone_is_learnt_from(shift):
    Xs, ys, Xt, _ = shift
    with pytest.warns(UserWarning, match="no target was given"):
        plain = CATClassifier(**QUICK).fit(Xs, ys)
    assert plain.method_name_ == "source-only"
    alike = AdaptedClassifier("source-only", **QUICK).fit(Xs, ys, X_target=Xt)
    assert np.array_equal(plain.predict_proba(Xt), alike.predict_proba(Xt))


# Whole recordings


@pytest.fixture(scope="module")
def recordings():
    """Source recordings of different lengths with a label each, and target ones."""
    random = np.random.default_rng(3)
    labels = np.array(["inner", "outer"] * 4)
    bins = {"inner": 6, "outer": 20}
    source = [signals([label], bins, 0.3, random, 400 + 37 * number)[0] for number, label in enumerate(labels)]
    target = [signals([label], bins, 0.6, random, 300 + 53 * number)[0] for number, label in enumerate(labels[:5])]
    return source, labels, target, labels[:5]


def test_recordings_are_cut_and_each_gets_one_label(recordings):
    source, labels, target, truth = recordings
    model = CATClassifier(input="frequency", window=LENGTH, stride=40, epochs=8, batch_size=16)
    model.fit(source, labels, X_target=target)
    assert list(model.predict(target)) == list(truth)
    assert model.score(source, labels) == 1
    assert model.n_features_in_ == LENGTH


def test_a_recordings_probabilities_are_pooled_from_the_logarithms_of_its_windows(recordings):
    source, labels, target, _ = recordings
    model = AdaptedClassifier("DANN", window=LENGTH, **QUICK).fit(source, labels, X_target=target)
    for recording in target:
        windows = [recording[start : start + LENGTH] for start in range(0, len(recording) - LENGTH + 1, LENGTH)]
        # Each of these is a recording of one window, tempered like any other; so the mean of them is that of the whole.
        product = np.prod(model.predict_proba(windows), axis=0) ** (1 / len(windows))
        assert np.allclose(model.predict_proba([recording])[0], product / product.sum(), atol=1e-6)


def test_a_saved_model_says_what_it_is_and_predict_gives_the_same_probabilities(tmp_path, recordings):
    source, labels, target, _ = recordings
    model = CATClassifier(window=LENGTH, stride=40, **QUICK).fit(source, labels, X_target=target)
    model.pooled_temperature_ = 1.7  # so that it cannot be missed
    model.save(tmp_path / "model", rate=12_000)
    loaded = load_model(tmp_path / "model")
    assert loaded.classes == ("inner", "outer")
    assert loaded.rate == 12_000
    assert loaded.decision == model.decision_
    counted = loaded.metadata["data"]
    assert counted["target_train"] == sum((len(recording) - LENGTH) // 40 + 1 for recording in target)
    given = [recording.astype(np.float32) for recording in target]
    for number, recording in enumerate(given):
        np.save(tmp_path / f"{number}.npy", recording)
    files = sorted(tmp_path.glob("*.npy"))
    result = bearcat_command("predict", tmp_path / "model", *files, "--rate", 12_000, "--format", "json")
    found = [each["network"]["probabilities"] for each in json.loads(result.stdout)["recordings"]]
    assert [list(probabilities) for probabilities in found] == [list(model.classes_)] * len(target)
    given = [list(probabilities.values()) for probabilities in found]
    assert np.allclose(given, model.predict_proba(target), rtol=0, atol=1e-6)


# Refusals


@pytest.mark.parametrize(
    ("settings", "given", "sentence"),
    [
        ({}, {"X_target": np.ones((5, 70))}, r"X_target .*\(1, 70\).*\(1, 80\)"),
        ({}, {"X_target": np.ones((5, 80)), "sample_domain": np.ones(90)}, "the target is given twice; use one"),
        ({}, {"X": np.full((90, 80), 1e39)}, "infinity or a value too large"),
        ({}, {"sample_domain": np.ones(3)}, "sample_domain .* 90 rows"),
        ({}, {"domain": ["load0", "load1"] * 45}, "domain.* and target.* go together"),
        ({}, {"domain": ["load0", "load1"] * 45, "target": "laod1"}, "'laod1'; did you mean 'load1'"),
        ({}, {"sample_domain": np.full(90, 0.5)}, "whole numbers"),
        ({}, {"sample_domain": np.full(90, -1)}, "there is no source"),
        ({}, {"y": np.full(90, -1), "sample_domain": np.ones(90)}, r"row 0 .* masked \(-1\)"),
        ({}, {"X": np.eye(12, 80), "y": np.arange(12)}, "leave none to calibrate"),
        ({"method": "CAT"}, {}, r"unknown method 'CAT'; did you mean .*CAT\*-Temperature"),
        ({}, {"sample_domain": np.ones((60, 80))}, r"third argument is sample_domain, .*X_target=Xt"),
        ({"batch_size": 0}, {}, "batch_size must be a whole number from 1 on"),
        ({"stride": 10}, {}, "stride is for cutting recordings"),
        ({"random_state": -1}, {}, "whole number from 0 on"),
        ({"window": 100}, {}, "recording 0 of X: .* 100"),
        ({"window": 40}, {"X": [], "y": []}, "X holds no recordings"),
        ({"window": 40}, {"X_target": []}, "X_target holds no recordings"),
        ({"window": 40}, {"X_target": np.ones(80)}, "X_target is one signal"),
        ({}, {"y": np.arange(89)}, "inconsistent numbers of samples"),
        ({"window": 40}, {"X_target": [np.full(80, np.nan)]}, "recording 0 of X_target: .*NaN"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("papers_network")
def test_what_cannot_work_is_refused_in_a_sentence(shift, settings, given, sentence):
    Xs, ys, _, _ = shift
    with pytest.raises(ValueError, match=sentence):
        AdaptedClassifier(**({"method": "DANN", "epochs": 1} | settings)).fit(**({"X": Xs, "y": ys} | given))


def test_a_recipe_brings_its_own_input_and_a_decision(shift):
    Xs, ys, Xt, _ = (np.tile(values, 8) if values.ndim > 1 else values for values in shift)
    model = AdaptedClassifier("dense-MCC", epochs=12, batch_size=16, rate=8000.0).fit(Xs, ys, X_target=Xt)
    assert model.fitted_.windows.text.startswith("physics")
    assert model.decision_.action == "check"
    assert model.decision_.expected is None, "the accuracy on the target is not estimated here"
    assert repr(model).endswith(model.decision_.sentence)
    assert "not known" in model.decision_.sentence
    random = np.random.default_rng(0)
    nothing = AdaptedClassifier("DANN", epochs=1, batch_size=16).fit(random.normal(size=(60, 80)), np.arange(60) % 3)
    assert nothing.fitted_.windows.text == "time"
    assert nothing.decision_.action == "do not use"
    assert "learnt nothing" in nothing.decision_.reasons[0]


def test_no_group_is_trained_on_and_calibrated_on_where_a_class_has_several():
    random = np.random.default_rng(0)
    codes, groups = np.repeat([0, 0, 0, 1, 1, 2], 8), np.repeat(np.arange(6), 8)
    for seed in range(5):
        held = held_out(codes, np.arange(48), 0.2, np.random.default_rng(seed), groups)
        assert not set(groups[held & (codes < 2)]) & set(groups[~held & (codes < 2)])
        assert [len(set(groups[held & (codes == code)])) for code in (0, 1, 2)] == [1, 1, 1]
        assert {*codes[held], *codes[~held]} == {0, 1, 2}
        assert 0 < held[codes == 2].sum() < 8, "the only group of a class is divided by windows"
    crossed = held_out(np.arange(40) % 2, np.arange(40), 0.2, random, np.arange(40) // 10)
    assert sorted(set((np.arange(40) // 10)[crossed])) == sorted(set(range(4)) - set((np.arange(40) // 10)[~crossed]))
