"""The scikit-learn face: scikit-learn's own checks, skada's conventions, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.utils.estimator_checks import parametrize_with_checks

from bearcat import CATClassifier
from bearcat.cat import CAT
from bearcat.data.windows import held_out
from tests.test_arrays import tones

# Of trainings without a target, and of those too short to be too confident.
SHORT = [pytest.mark.filterwarnings("ignore:no target was given"), pytest.mark.filterwarnings("ignore:.* T = 1 in all")]
pytestmark = [pytest.mark.usefixtures("narrow_classifier"), *SHORT]
QUICK = {"input": "frequency", "encoder": "dense:widths=32", "epochs": 2, "batch_size": 16}


@pytest.fixture(scope="module")
def shift():
    """Source and target windows of three classes, the target's tones higher and noisier: Xs, ys, Xt, yt."""
    random = np.random.default_rng(7)
    ys, yt = np.arange(90) % 3, random.permutation(np.arange(60) % 3)
    return tones(ys, (6, 16, 28), 0.3, random), ys, tones(yt, (9, 20, 33), 0.6, random), yt


@pytest.fixture(scope="module")
def packed(shift):
    """The same as skada has it: X, y, sample_domain, in mixed order."""
    Xs, ys, Xt, _ = shift
    order = np.random.default_rng(0).permutation(len(Xs) + len(Xt))
    y, domain = np.concatenate([ys, np.full(len(Xt), -1)]), np.repeat([1, -2], [len(Xs), len(Xt)])
    return np.concatenate([Xs, Xt])[order], y[order], domain[order]


# No check is exempt. A few epochs of small batches are enough for those that ask for a good score on blobs.
@parametrize_with_checks([CATClassifier(epochs=3, batch_size=16)])
def test_scikit_learns_estimator_checks_pass(estimator, check):
    check(estimator)


def test_probabilities_are_those_of_cat_on_the_same_arrays(shift):
    Xs, ys, Xt, _ = shift
    model = CATClassifier(**QUICK).fit(Xs, ys, X_target=Xt)
    likely = model.predict_proba(Xt)
    alike = CAT(input="frequency", encoder="dense:widths=32", epochs=2, batch=16, progress=False)
    assert np.array_equal(likely, alike.fit(Xs, ys, Xt).predict_proba(Xt))
    assert np.array_equal(model.classes_[likely.argmax(axis=1)], model.predict(Xt))
    assert model.method_ == "CAT*-Temperature"


def test_source_and_target_of_a_packed_array_are_those_of_two_arrays(packed):
    X, y, domain = packed
    model = CATClassifier(**QUICK).fit(X, y, sample_domain=domain)
    alike = CATClassifier(**QUICK).fit(X[domain >= 0], y[domain >= 0], X_target=X[domain < 0])
    for other in (alike.predict_proba(X), model.predict_proba(X, domain, allow_source=True)):
        assert np.array_equal(model.predict_proba(X), other)


def test_no_label_of_the_target_changes_anything(packed):
    X, y, domain = packed
    names = np.array(["healthy", "inner", "outer"])
    quick = CATClassifier("DANN", **QUICK | {"epochs": 1})
    expected = clone(quick).fit(X, y, sample_domain=domain)
    mixed = np.where(domain < 0, -1, names[y].astype(object))
    for labels in (np.where(domain < 0, "cage", names[y]), mixed, np.where(domain < 0, np.nan, y)):
        model = clone(quick).fit(X, labels, sample_domain=domain)
        assert list(model.classes_) == sorted(set(labels[domain >= 0]))
        assert np.array_equal(model.predict_proba(X), expected.predict_proba(X))


def test_without_a_target_the_source_alone_is_learnt_from(shift):
    Xs, ys, Xt, _ = shift
    with pytest.warns(UserWarning, match="no target was given"):
        plain = CATClassifier(**QUICK).fit(Xs, ys)
    assert plain.method_ == "dense-source-only"
    alike = CATClassifier("source-only", **QUICK).fit(Xs, ys, X_target=Xt)
    assert np.array_equal(plain.predict_proba(Xt), alike.predict_proba(Xt))


@pytest.mark.parametrize(
    ("settings", "given", "sentence"),
    [
        ({}, {"X_target": np.ones((5, 80)), "sample_domain": np.ones(90)}, "the target is given twice; use one"),
        ({}, {"sample_domain": np.ones(3)}, "inconsistent numbers of samples"),
        ({}, {"sample_domain": np.full(90, -1)}, "there is no source"),
        ({}, {"y": np.full(90, -1), "sample_domain": np.ones(90)}, "row 0 .* masked"),
        ({}, {"X": np.eye(12, 80), "y": np.arange(12)}, "leave none to calibrate"),
        ({}, {"sample_domain": np.ones((60, 80))}, "should be a 1d array"),
        ({}, {"groups": ["a"] * 89}, "groups"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_sentence(shift, settings, given, sentence):
    Xs, ys, _, _ = shift
    with pytest.raises(ValueError, match=sentence):
        CATClassifier(**({"method": "DANN", "epochs": 1} | settings)).fit(**({"X": Xs, "y": ys} | given))


def test_no_group_is_trained_on_and_calibrated_on_where_a_class_has_several():
    codes, groups = np.repeat([0, 0, 0, 1, 1, 2], 8), np.repeat(np.arange(6), 8)
    for seed in range(5):
        held = held_out(codes, 0.2, np.random.default_rng(seed), groups)
        assert not set(groups[held & (codes < 2)]) & set(groups[~held & (codes < 2)])
        assert [len(set(groups[held & (codes == code)])) for code in (0, 1, 2)] == [1, 1, 1]
        assert 0 < held[codes == 2].sum() < 8, "the only group of a class is divided by windows"


def test_groups_go_through_cross_validation():
    y, groups = np.repeat([0, 1], 24), np.tile(np.repeat(["a", "b", "c"], 8), 2)
    groups = np.char.add(groups, y.astype(str))
    X, model = tones(y, (5, 20), 0.3, np.random.default_rng(1)), CATClassifier("source-only", **QUICK)
    found = cross_validate(model, X, y, groups=groups, params={"groups": groups}, cv=GroupKFold(3), error_score="raise")
    assert found["test_score"].shape == (3,)
