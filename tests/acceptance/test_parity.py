"""Every method and phase against the slow twins; tests/test_train.py and test_alignments.py have a slice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bearcat.cat import published
from bearcat.cat.recipes import GROUPS, RECIPES
from tests.test_learning import LEARNING, source_only, split
from tests.test_learning import test_an_adaptation_method_ends_clearly_above_source_only as learns
from tests.test_train import RAGGED, assert_equal_to_twin, assert_published, assert_stacked, toy

pytestmark = pytest.mark.usefixtures("narrow_classifier")
__all__ = ["source_only", "split"]  # fixtures
PUBLISHED = ["source-only", "DANN", "DANN*", "AT-fixed", "AT", "AT*"]
PUBLISHED += [f"CAT{sign}-{kind}" for sign in ("", "*") for kind in ("Temperature", "Vector", "Matrix", "CPCS")]


# CAT+MCC and CAT+SDAT differ from their AT by a calibrator alone, and CAT and CAT* have every one.
@pytest.mark.parametrize("name", [name for name in GROUPS["paper"] if RECIPES[name].calibration is None or "*" in name])
def test_epochs_with_smaller_last_batches_are_the_twins(name):
    assert_equal_to_twin(name, RAGGED, toy(windows=25, target=23, dtype="float64"))


@pytest.mark.parametrize("label_from", [1, 2])  # with the alignment, and after it
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_code_is_the_twins(name, label_from, monkeypatch):
    monkeypatch.setattr(published, "SGD_STEPS", 50)
    assert_published(name, label_from=label_from, windows=15, batch=4)


@pytest.mark.parametrize("name", [*GROUPS["Table 1"], *GROUPS["alignments"], "CAT*-views", "CAT*-TransCal"])
def test_each_run_of_a_stack_equals_itself_alone(name):
    assert_stacked(replace(RECIPES[name], schedule=RAGGED), 1e-5)


@pytest.mark.parametrize("name", LEARNING)
def test_every_adaptation_method_ends_clearly_above_source_only(name, split, source_only):
    learns(name, split, source_only)
