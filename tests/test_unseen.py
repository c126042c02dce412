"""Bearings never seen: the recipe that knows other benches, when adapt takes it, and what it leaves out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bearcat.bench.grid import plan, read_grid
from bearcat.cat.recipes import RECIPES
from bearcat.data.tasks import Labelled, TrainingData, Unlabelled
from bearcat.errors import InputError
from bearcat.methods import DEFAULT_RECIPE
from bearcat.methods.transforms import KnownStates, StateShape, state_codes, without_own_benches

POINTS = 488  # of the input bearing-orders


def data_of(classes: tuple[str, ...], windows: int = 60) -> TrainingData:
    random = np.random.default_rng(5)
    labels = np.arange(windows) % len(classes)
    values = (3 + 2 * random.standard_normal((windows, 1, POINTS))).astype(np.float32)
    source = Labelled(values, labels, labels, labels % 2)
    return TrainingData(classes, source, source, Unlabelled(values[:10]))


def test_draws_have_the_mean_and_the_scatter_of_their_state():
    random = np.random.default_rng(0)
    axes, mean, rest = random.standard_normal((3, 40)), random.standard_normal(40), random.random(40)
    drawn = StateShape(mean, axes, rest).draw(20_000, np.random.default_rng(1))
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=0.1)
    exact, found = axes.T @ axes + np.diag(rest**2), np.cov(drawn.T)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_known_states_join_the_source_as_bearings_of_their_own_and_leave_the_rest_alone():
    data = data_of(("normal", "inner race", "OR8", "cage"), 80)
    prepared = KnownStates().prepare(data)
    source, own = prepared.data.source_train, data.source_train
    number = len(own)
    np.testing.assert_array_equal(source.values[:number], own.values)
    assert set(source.labels[number:].tolist()) == {0, 1, 2}  # nothing is known of cages
    added = np.bincount(source.labels[number:], minlength=4).tolist()
    assert all(abs(count - number / 4) <= 1 for count in added[:3])  # as many of a class as of any other
    for name in ("recording", "domain"):
        assert not set(getattr(source, name)[number:]) & set(getattr(own, name))
    assert prepared.data.source_test is data.source_test
    assert prepared.data.target_train is data.target_train
    # They lie where the source lies: its mean is 3, its deviation 2.
    assert source.values[number:].mean() == pytest.approx(3, abs=0.5)
    assert source.values[number:].std() == pytest.approx(2, abs=0.7)
    assert not prepared.finding.adapted


def test_states_join_where_benches_and_the_names_of_classes_allow_it():
    data, unnamed = data_of(("healthy", "ball")), data_of(("pump", "valve"))
    assert KnownStates(without=("hit-sm-mfs",)).prepare(data).finding.sentence.endswith("of cwru.")
    # HIT-SM knows no balls, and healthy windows alone would make everything healthy.
    assert KnownStates(without=("cwru",)).prepare(data).data is data
    prepared = KnownStates().prepare(unnamed)
    assert prepared.data is unnamed
    assert "names of two classes" in prepared.finding.sentence
    with pytest.raises(InputError, match="hit-sm-mfs"):
        KnownStates(without=("hit-sm",))
    # A class stands for a state where it alone does.
    assert state_codes(("healthy", "inner-007", "inner-014", "outer race")) == {"healthy": 0, "outer race": 3}


def test_a_named_dataset_is_not_tested_with_what_is_known_of_its_own_bench(real_data):
    """States of CWRU come from its labelled recordings, the target's too."""
    recipe = RECIPES["unseen-bearings"]
    for dataset, left_out in (
        ("cwru", ("cwru",)), ("hit-sm", ("hit-sm-mfs",)), ("across-machines", ("cwru", "hit-sm-mfs")), ("plant", ()),
    ):  # fmt: skip
        assert without_own_benches(recipe, dataset).find(KnownStates).without == left_out
    asked = recipe.with_settings({"known-states.without": "hit-sm-mfs"})
    assert without_own_benches(asked, "cwru") == asked
    assert without_own_benches(RECIPES[DEFAULT_RECIPE], "cwru") == RECIPES[DEFAULT_RECIPE]
    (part, *_) = read_grid(Path(__file__).parents[1] / "grids" / "specimen.toml")
    specs = [spec for spec in plan([part], real_data("cwru")) if spec.recipe_name == "unseen-bearings"]
    assert {spec.recipe.find(KnownStates).without for spec in specs} == {("cwru",)}
