"""The published defaults are what RECIPES holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES, Calibration, PseudoLabels, Recipe, Schedule, Teacher, recipe_named
from bearcat.runs.adapt import with_settings


def test_the_table_of_methods_is_the_papers():
    calibrators = ("Temperature", "Vector", "Matrix", "CPCS")
    expected = {
        "source-only": (False, False, False, None, None),
        "DANN": (True, False, False, None, None),
        "DANN*": (True, True, True, None, None),
        "AT-fixed": (True, False, False, "fixed", None),
        "AT": (True, False, False, "per-class", None),
        "AT+MCC": (True, True, False, "per-class", None),
        "AT+SDAT": (True, False, True, "per-class", None),
        "AT*": (True, True, True, "per-class", None),
    }
    for sign, mcc, sdat in (("", False, False), ("+MCC", True, False), ("+SDAT", False, True), ("*", True, True)):
        expected |= {f"CAT{sign}-{kind}": (True, mcc, sdat, "per-class", kind) for kind in calibrators}
    found = {
        name: (
            recipe.alignment is not None, recipe.confusion is not None, recipe.sharpness is not None,
            recipe.labels.threshold if recipe.labels else None, recipe.calibration.kind if recipe.calibration else None,
        )
        for name, recipe in RECIPES.items()
    }  # fmt: skip
    assert found == expected
    assert all((recipe.teacher is None) == (recipe.labels is None) for recipe in RECIPES.values())


def test_every_number_is_the_papers():
    recipe = RECIPES["CAT*-Temperature"]
    assert recipe.schedule == Schedule(300, 64, 1e-3, 0.9, 0.999, 1e-5, (150, 250), 0.1, 50, 50, 150)
    assert recipe.for_input("frequency").schedule.label_from == 100
    assert recipe.teacher == Teacher(momentum=0.999, statistics="target", dropout=True)
    assert recipe.labels == PseudoLabels(
        weight=1, threshold="per-class", tau=0.9, counts="uncalibrated", average="batch"
    )
    assert recipe.calibration == Calibration("Temperature", lower=1, upper=100)
    assert recipe.sharpness is not None
    assert recipe.sharpness.radius == 0.05
    assert recipe.confusion is not None
    assert (recipe.confusion.temperature, recipe.confusion.weight) == (2, 1)
    assert recipe.alignment is not None
    assert (recipe.alignment.slope, recipe.alignment.weight) == (10, 1)
    assert recipe.dropout == 0.5


def test_a_shorter_course_keeps_every_phases_share_and_the_teachers_memory():
    quick = RECIPES["CAT*-Temperature"].in_epochs(30)
    assert quick.schedule == replace(
        Schedule(), epochs=30, drops=(15, 25), align_from=5, label_from=5, calibrate_from=15
    )
    assert quick.teacher is not None
    assert quick.teacher.momentum == pytest.approx(0.999**10)
    assert RECIPES["AT"].in_epochs(300) == RECIPES["AT"]
    with pytest.raises(InputError, match="epochs must be at least 1"):
        RECIPES["DANN"].in_epochs(0)


def test_recipes_go_by_name_in_any_case_and_suggest_the_nearest():
    assert recipe_named("cat*-temperature") == "CAT*-Temperature"
    with pytest.raises(InputError, match=r"unknown recipe 'CAT-Temprature'; did you mean 'CAT-Temperature'\?"):
        recipe_named("CAT-Temprature")


def test_settings_of_ingredients_can_be_changed_by_text():
    recipe = with_settings(RECIPES["AT"], {"teacher.statistics": "averaged", "labels.tau": "0.8", "passes": "separate"})
    assert recipe.teacher == Teacher(statistics="averaged")
    assert recipe.labels == PseudoLabels(tau=0.8)
    assert recipe.passes == "separate"
    for texts, sentence in [
        ({"techer.statistics": "averaged"}, "unknown ingredient 'techer'; did you mean 'teacher'"),
        ({"teacher.statistic": "averaged"}, "unknown setting 'statistic'; did you mean 'statistics'"),
        ({"teacher.statistics": "avraged"}, "did you mean 'averaged'"),
        ({"confusion.weight": "2"}, "the recipe has no 'confusion'"),
        ({"passes": "both"}, "setting 'passes' is 'both'"),
    ]:
        with pytest.raises(InputError, match=sentence):
            with_settings(RECIPES["AT"], texts)


def test_what_cannot_be_a_recipe_is_refused():
    with pytest.raises(InputError, match="need a teacher"):
        Recipe(labels=PseudoLabels())
    with pytest.raises(InputError, match="dropout"):
        Recipe(dropout=1.0)
    with pytest.raises(InputError, match="calibration.kind"):
        Recipe(teacher=Teacher(), calibration=Calibration(kind="Temprature"))


def test_shapes_differ_by_ingredient_and_not_by_number():
    at = RECIPES["AT*"]
    assert at.labels is not None
    assert replace(at, labels=replace(at.labels, tau=0.5)).shape() == at.shape()
    assert RECIPES["AT"].shape() != at.shape()
    assert at.told()["schedule"]["drops"] == [150, 250]


def test_what_recipes_tell_of_themselves_stays_for_runs_are_named_by_it():
    """A new setting is left out of what is told while it is at its default; else every finished run would be lost."""
    told = json.dumps({name: recipe.told() for name, recipe in RECIPES.items()}, sort_keys=True)
    assert hashlib.sha256(told.encode()).hexdigest().startswith("c3efc92072223872bab0b70a76ba4daa")
