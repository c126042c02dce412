"""CAT on arrays: it learns, target labels change nothing, and what is no CAT is refused or says so."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import bearcat
from bearcat.cat import CAT, ENCODERS, Recipe, ece, loss_of
from bearcat.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow_classifier")
LENGTH = 80
NAMES = np.array(["healthy", "inner", "outer"])
QUICK = {"epochs": 2, "batch": 16, "input": "frequency", "encoder": "dense:widths=32", "progress": False}
SAME = "ignore:.* T = 1 in all epochs"  # of trainings too short to be too confident


def tones(codes, bins, noise, random):
    """Tones in noise: the class is the frequency."""
    phase = random.uniform(0, 2 * np.pi, (len(codes), 1))
    angle = 2 * np.pi * np.array(bins)[codes][:, None] / LENGTH * np.arange(LENGTH)
    return np.sin(angle + phase) + noise * random.standard_normal(angle.shape)


@pytest.fixture(scope="module")
def shift():
    """Source and target windows, the target's tones higher and noisier: X_source, y_source, X_target, y_target."""
    random = np.random.default_rng(7)
    source, target = np.arange(90) % 3, random.permutation(np.arange(60) % 3)
    windows = tones(source, (6, 16, 28), 0.3, random), tones(target, (9, 20, 33), 0.6, random)
    return windows[0], NAMES[source], windows[1], NAMES[target]


@pytest.mark.filterwarnings(SAME)
def test_cat_learns_the_shift_and_its_curves_say_so(shift):
    source, labels, target, truth = shift
    papers = QUICK | {"epochs": 15, "encoder": None}
    model = CAT(**papers).fit(source, labels, target, truth)
    right = (model.predict(target) == truth).mean()
    assert right > 0.9
    plain = CAT("source-only", **papers).fit(source, labels)
    assert (plain.predict(target) == truth).mean() < 0.8
    assert {len(curve) for curve in model.curves.values()} == {15}
    assert {"loss_labels", "temperature", "pseudo_label_share", "pseudo_label_accuracy"} < set(model.curves)
    assert model.curves["target_accuracy"][-1] == pytest.approx(right)
    bins = model.reliability(target, truth)
    gap = np.nansum(bins.mass * np.abs(bins.accuracy - bins.confidence))
    codes = np.searchsorted(model.classes, truth)
    assert gap == pytest.approx(ece(model.predict_proba(target), codes), abs=1e-9)
    assert model.features(target).shape == (60, 256)


@pytest.mark.filterwarnings(SAME)
def test_labels_of_the_target_change_nothing(shift):
    source, labels, target, truth = shift
    given = None, truth, np.random.default_rng(0).permutation(truth)
    found = [CAT(**QUICK).fit(source, labels, target, each).predict_proba(target) for each in given]
    assert np.array_equal(found[1], found[0])
    assert np.array_equal(found[2], found[0])


def test_domains_by_name_are_the_two_arrays(shift):
    source, labels, target, _ = shift
    X, y = np.concatenate([target, source]), np.array([""] * len(target) + list(labels))
    domain, groups = np.repeat(["load3", "load0", "load1"], [60, 40, 50]), np.arange(150) // 2
    model = CAT("DANN", **QUICK).fit(X, y, groups=groups, domain=domain, target="load3")
    alike = CAT("DANN", **QUICK).fit(source, labels, target, groups=groups[60:])
    assert np.array_equal(model.predict_proba(target), alike.predict_proba(target))


@pytest.mark.filterwarnings(SAME)
def test_names_of_classes_and_axes_of_one_channel_change_nothing(shift):
    source, labels, target, _ = shift
    codes = np.searchsorted(NAMES, labels)
    named = CAT(**QUICK).fit(source, labels, target).predict_proba(target)
    for given in (codes, codes.astype(float), codes.astype(object), labels.astype(object), labels.tolist()):
        model = CAT(**QUICK).fit(source[:, None], given, target[:, None])
        assert np.array_equal(model.predict_proba(target), named)
        assert set(model.predict(target)) <= set(np.asarray(given))


def small_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv1d(1, 4, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten())


def test_any_module_is_an_encoder_and_a_copy_of_it_is_trained(shift):
    source, labels, target, _ = shift
    module = small_network()
    before, rows = {name: value.clone() for name, value in module.state_dict().items()}, dict(ENCODERS)
    model = CAT("DANN", **QUICK | {"encoder": module}).fit(source, labels, target)
    assert model.features(target).shape == (60, 16)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert rows == ENCODERS
    again = CAT("DANN", **QUICK | {"encoder": small_network()}).fit(source, labels, target)
    assert np.array_equal(again.predict_proba(target), model.predict_proba(target))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(target), model.predict_proba(target))


def test_a_calibrator_that_changed_nothing_is_a_warning_and_a_note(shift):
    source, labels, target, _ = shift
    with pytest.warns(UserWarning, match=r"CAT\*-Temperature equals AT\* here: T = 1 in all epochs"):
        model = CAT(**QUICK).fit(source, labels, target)
    assert len(model.notes) == 1
    plain = CAT("AT*", **QUICK).fit(source, labels, target)
    assert plain.notes == ()
    assert torch.equal(model.outputs(target)[0], plain.outputs(target)[0])
    random = np.random.default_rng(0)
    noise = CAT(**QUICK | {"epochs": 60}).fit(source, random.permutation(labels), target)
    assert noise.notes == ()
    assert np.nanmax(noise.curves["temperature"]) > 1


@pytest.mark.parametrize(
    ("settings", "given", "sentence"),
    [
        ({}, {"X_source": [[1.0, 2.0], [1.0]]}, "windows of X_source have different lengths"),
        ({}, {"X_target": np.ones((60, 70))}, r"X_target has windows of shape \(1, 70\).* X_source"),
        ({}, {"X_target": None}, "X_target: .*is not CAT.*; give its windows, or use method='source-only'"),
        ({}, {"X_target": np.ones((3, LENGTH))}, "X_target holds 3 windows; .* at least 10"),
        ({}, {"X_source": np.full((90, LENGTH), np.nan)}, "X_source holds NaN or infinite numbers, first in window 0"),
        ({}, {"X_source": np.ones((90, 70, 1))}, r"X_source has the shape \(90, 70, 1\), .*transpose\(0, 2, 1\)"),
        ({}, {"X_source": np.full((90, LENGTH), "a")}, "X_source is an array .* give numbers"),
        ({}, {"y_source": ["healthy"] * 90}, "one class only, 'healthy'"),
        ({}, {"y_source": np.linspace(0, 1, 90)}, r"y_source: 0.01.* \(window 1\) is no string and no whole number"),
        ({}, {"y_source": np.arange(89)}, r"y_source has the shape \(89,\), but there are 90 windows"),
        ({}, {"y_target": ["cage"] * 60}, r"y_target: 'cage' \(window 0\) is no class of the source"),
        (
            {}, {"X_target": None, "domain": ["load0", "load3"] * 45, "target": "laod3"},
            "target: unknown domain 'laod3'; did you mean 'load3'",
        ),
        ({}, {"X_target": None, "domain": ["load3"] * 90, "target": "load3"}, "every window is of the target 'load3'"),
        ({}, {"X_target": None, "target": "load3"}, "domain and target belong together"),
        ({}, {"domain": ["load0", "load3"] * 45, "target": "load3"}, "the target is given twice"),
        ({"encoder": nn.Conv1d(1, 4, 5)}, {}, r"encoder 'Conv1d.*made \(2, 4, 36\).* \(batch, feature\)"),
        ({"encoder": nn.Linear}, {}, "encoder: give the name of an encoder or a torch module"),
        ({"method": "CATT*-Temperature"}, {}, r"method: unknown .*; did you mean 'CAT\*-Temperature'"),
        ({"epochs": 1.5}, {}, "epochs must be a whole number from 1 on, not 1.5"),
        ({"seed": -1}, {}, "seed must be"),
        ({"held_out": 1.0}, {}, "held_out must lie between 0 and 1"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_sentence(shift, settings, given, sentence):
    source, labels, target, _ = shift
    arrays = {"X_source": source, "y_source": labels, "X_target": target} | given
    settings = QUICK | settings | {name: arrays.pop(name) for name in ("method",) if name in arrays}
    with pytest.raises(InputError, match=sentence):
        CAT(**settings).fit(**arrays)


def test_a_model_that_is_not_trained_or_is_given_other_windows_says_so(shift):
    with pytest.raises(InputError, match="call fit first"):
        CAT().predict(np.ones((2, LENGTH)))
    model = CAT("source-only", **QUICK).fit(shift[0], shift[1])
    with pytest.raises(InputError, match=r"X has windows of shape \(1, 70\), but those of X_source have \(1, 80\)"):
        model.predict(np.ones((2, 70)))


def test_named_data_are_arrays_of_prepared_windows():
    small = {"seconds": 1, "faults": "inner", "severities": 4}
    windows, labels, domain = bearcat.load("simulated", window=500, settings=small)
    assert windows.shape == (len(labels), 1, 500)
    assert len(domain) == len(labels)
    assert "healthy" in labels
    part = bearcat.load("simulated", domains=[str(domain[0])], window=500, settings=small)
    assert np.array_equal(part[0], windows[domain == domain[0]])
    with pytest.raises(InputError, match="unknown dataset 'cwr'.*did you mean 'cwru'"):
        bearcat.load("cwr")


def test_a_step_has_the_methods_batch_and_a_loss_that_is_no_number_is_named(shift):
    source, labels, target, _ = shift
    sizes = set()

    def counted(view):
        sizes.add(view.size)
        return view.features.square().mean()

    recipe = Recipe((loss_of(counted),)).in_epochs(2).with_settings({"schedule.batch": "16"})
    CAT(recipe, **QUICK | {"epochs": None, "batch": None}).fit(source, labels, target)
    assert max(sizes) == 16
    for function, what in ((lambda view: view.features, "a tensor"), (lambda view: float(view.size), "float")):
        wrong = loss_of(function, name="wrong", phase=None)
        with pytest.raises(InputError, match=f"'wrong' must return a tensor with one number, not {what}"):
            CAT(Recipe((wrong,)).in_epochs(2), **QUICK).fit(source, labels, target)
    with pytest.raises(InputError, match="no phase 'label'"):
        loss_of(counted, phase="label")
