"""The published defaults are what RECIPES holds, and recipes can be changed by text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from bearcat.adaptation import make_recipe
from bearcat.cat import CPCS, ENCODERS, Sharpness, Temperature, find_encoder
from bearcat.cat.ingredient import Ingredient
from bearcat.cat.losses import Adversarial, Confusion
from bearcat.cat.recipes import GROUPS, RECIPES, Recipe, Schedule, find_recipe
from bearcat.cat.teacher import SelfTraining, Teacher
from bearcat.errors import InputError
from bearcat.methods import unadapted


def test_the_name_of_a_method_says_its_parts():
    assert len(GROUPS["paper"]) == 8 + 4 * 4
    for name, recipe in GROUPS["paper"].items():
        method, _, kind = name.partition("-")
        labels = recipe.find(SelfTraining)
        assert (recipe.find(Adversarial) is None) == (name == "source-only")
        assert (recipe.find(Confusion) is not None) == ("MCC" in method or "*" in method)
        assert (recipe.find(Sharpness) is not None) == ("SDAT" in method or "*" in method)
        assert (labels and labels.threshold) == ({"fixed": "fixed"}.get(kind, "per-class") if "AT" in method else None)
        assert (recipe.calibration and type(recipe.calibration).__name__) == (kind if "CAT" in method else None)


def test_every_number_is_the_papers():
    recipe = RECIPES["CAT*-Temperature"]
    assert recipe.calibration == Temperature(bounds=(1, 100))
    assert RECIPES["CAT*-CPCS"].calibration == CPCS(bounds=(1, 100))
    assert recipe.schedule == Schedule(300, 64, 1e-3, 1e-5, (150, 250), 0.1, 50, 50, 150)
    assert recipe.for_input("frequency").schedule.label_from == 100
    assert recipe.for_input("time").schedule.label_from == 50
    teacher = Teacher(momentum=0.999, dropout=True)
    assert recipe.find(SelfTraining) == SelfTraining(1, "per-class", 0.9, "uncalibrated", teacher=teacher)
    assert recipe.find(Sharpness) == Sharpness(radius=0.05)
    assert recipe.find(Confusion) == Confusion(weight=1, temperature=2)
    assert recipe.find(Adversarial) == Adversarial(weight=1, slope=10)
    assert (recipe.dropout, recipe.encoder, recipe.published, recipe.balance) == (0.5, ENCODERS["cnn"](), False, False)


def test_a_shorter_course_keeps_every_phases_share_and_the_teachers_memory():
    quick = RECIPES["CAT*-Temperature"].in_epochs(30)
    assert quick.schedule == Schedule(30, drops=(15, 25), align_from=5, label_from=5, calibrate_from=15)
    assert quick.find(SelfTraining).teacher.momentum == pytest.approx(0.999**10)
    assert RECIPES["AT"].in_epochs(300) == RECIPES["AT"]
    with pytest.raises(InputError, match="epochs.*1"):
        RECIPES["DANN"].in_epochs(0)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("DANN*", {}), ("CAT-Vector", {"calibration.solver": "sgd"}), ("PCG-CNN", {"uniformity.scaled": "true"}),
        ("CAT*-CPCS", {"calibration.bounds": "none", "calibration.solver": "scikit-learn"}),
    ],
)  # fmt: skip
def test_published_brings_settings_along_and_others_that_are_given_win(name, more):
    recipe, chosen = RECIPES[name], {"published": "true"}
    expected = replace(recipe.with_settings({"precision": "float32"} | more), published=True)
    assert recipe.with_settings(chosen) == expected
    assert recipe.with_settings(chosen | {"precision": "tf32"}) == replace(expected, precision="tf32")
    assert recipe.with_settings({"published": "false"}) == recipe


@pytest.mark.parametrize(
    ("name", "texts", "encoder", "calibration"),
    [
        ("CAT-Vector", {}, "cnn", "Vector"), ("AT", {"calibration": "none"}, "cnn", None),
        ("match-clusters", {"encoder.widths": "64"}, "dense:widths=64", "Temperature"),
        ("CAT-Vector", {"calibration": "CPCS:bounds=2,9:solver=scikit-learn"}, "cnn", "CPCS:bounds=2.0,9.0:solver=scikit-learn"),
        ("CAT-CPCS", {"calibration.bounds": "none", "encoder": "dense"}, "dense:widths=256,128", "CPCS:bounds=none"),
    ],
)  # fmt: skip
def test_texts_become_values_that_are_written_as_texts(name, texts, encoder, calibration):
    recipe = RECIPES[name].with_settings(texts)
    for written in (recipe.texts(), recipe.to_dict()):
        assert (written["encoder"], written["calibration"]) == (encoder, calibration)
    assert replace(recipe, **recipe.texts()) == recipe
    assert find_encoder(encoder) == recipe.encoder


@pytest.mark.parametrize("name", RECIPES)
def test_every_method_can_be_as_published(name):
    make_recipe(name, "bearing-orders" if name == "unseen-bearings" else "frequency", 30, {"published": "true"})


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("MCC.weight", "2", r"use confusion\.weight"),
        ("techer.dropout", "false", "did you mean 'teacher'"), ("passes", "both", "unknown setting 'passes'"),
        ("teacher.dropuot", "false", "did you mean 'dropout'"), ("confusion.weight", "2", "no 'confusion'"),
        ("teacher.statistics", "averaged", "unknown setting"), ("calibration.bounds", "1,2", "no 'calibration'"),
        ("labels.tau", "much", "'tau'"), ("labels.threshold", "fixd", "'fixd'"), ("labels.samples", "0", "samples"),
        ("published", "yes", "published"), ("schedule.label_from", "300", "never"),
        ("schedule.batch", "0", "schedule.batch"), ("schedule.rate", "-1", "schedule.rate"),
        ("teacher.momentum", "2", "teacher.momentum"), ("labels.tau", "nan", "labels.tau"),
        ("alignment.weight", "nan", "alignment.weight"),
        ("dropout", "1", "dropout"), ("encoder", "cnm", "did you mean 'cnn'"), ("calibration", "Vektor", "'Vector'"),
        ("encoder.width", "3", "encoder: unknown setting 'width'"), ("encoder", "dense:widths=0", "widths"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_before_training(name, text, word):
    with pytest.raises(InputError, match=word):
        make_recipe("AT", "time", 3, {name: text})


def test_what_cannot_be_a_recipe_is_refused():
    @dataclass(frozen=True)
    class Idle(Ingredient):
        name = "idle"

    with pytest.raises(InputError, match=r"part of methods; did you mean 'AT\+MCC'"):
        find_recipe("mcc")

    def free(view):
        return view.logits.sum()

    wrong = [
        ((Confusion(), Confusion(weight=2.0)), "'confusion' twice"), ((Idle(),), "'idle'.*Loss"),
        ((free,), "'free'.*loss_of"), (Confusion(), "tuple"),
    ]  # fmt: skip
    for ingredients, word in wrong:
        with pytest.raises(InputError, match=word):
            Recipe(ingredients)


@pytest.mark.parametrize("name", RECIPES)
def test_the_unadapted_counterpart_is_the_recipe_of_that_name_with_the_own_calibration(name):
    recipe = RECIPES[name].with_settings({"published": "true"}) if name == "AT*" else RECIPES[name]
    counterpart, plain = unadapted(recipe)
    assert not plain.adapts
    assert plain == replace(RECIPES[counterpart], calibration=recipe.calibration, final=recipe.final,
                            precision=recipe.precision, input=recipe.input)  # fmt: skip
    assert recipe.adapts == (not name.endswith("source-only") and name != "unseen-bearings")
