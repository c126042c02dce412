"""The published defaults are what RECIPES holds, and recipes can be changed by text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from bearcat.errors import InputError
from bearcat.methods.ingredient import Ingredient, Loss
from bearcat.methods.losses import Adversarial, Confusion, CovarianceMatching, Sharpness
from bearcat.methods.recipe import (
    GROUPS,
    RECIPES,
    REMOVED,
    UNSEEN_RECIPE,
    Recipe,
    Schedule,
    find_recipe,
)
from bearcat.methods.selftraining import SelfTraining, Teacher
from bearcat.runs.spec import make_recipe
from bearcat.settings import from_text, spell_out


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
    found = {}
    for name, recipe in GROUPS["paper"].items():
        parts = (recipe.find(kind) is not None for kind in (Adversarial, Confusion, Sharpness))
        labels = recipe.find(SelfTraining)
        found[name] = (*parts, labels and labels.threshold, recipe.calibration)
    assert found == expected


def test_every_number_is_the_papers():
    recipe = RECIPES["CAT*-Temperature"]
    assert recipe.schedule == Schedule(300, 64, 1e-3, 1e-5, (150, 250), 0.1, 50, 50, 150)
    assert recipe.for_input("frequency").schedule.label_from == 100
    assert recipe.for_input("time").schedule.label_from == 50
    teacher = Teacher(momentum=0.999, statistics="target", dropout=True)
    assert recipe.find(SelfTraining) == SelfTraining(
        1, "per-class", 0.9, "uncalibrated", "batch", teacher=teacher, objective="cross-entropy", select="confidence"
    )
    assert recipe.find(Sharpness) == Sharpness(radius=0.05)
    assert recipe.find(Confusion) == Confusion(weight=1, temperature=2)
    assert recipe.find(Adversarial) == Adversarial(weight=1, slope=10)
    assert (recipe.dropout, recipe.encoder, recipe.passes, recipe.balance) == (0.5, "cnn", "shared", False)


def test_a_shorter_course_keeps_every_phases_share_and_the_teachers_memory():
    quick = RECIPES["CAT*-Temperature"].in_epochs(30)
    assert quick.schedule == replace(
        Schedule(), epochs=30, drops=(15, 25), align_from=5, label_from=5, calibrate_from=15
    )
    assert quick.find(SelfTraining).teacher.momentum == pytest.approx(0.999**10)
    assert RECIPES["AT"].in_epochs(300) == RECIPES["AT"]
    with pytest.raises(InputError, match="epochs.*1"):
        RECIPES["DANN"].in_epochs(0)


def test_settings_can_be_changed_by_text():
    texts = {
        "teacher.statistics": "averaged", "labels.tau": "0.8", "passes": "separate", "schedule.batch": "32",
        "encoder": "cnn", "calibration": "Temperature", "calibration.bounds": "0.5,10",
    }  # fmt: skip
    recipe = RECIPES["AT"].with_settings(texts)
    assert recipe.find(SelfTraining) == SelfTraining(tau=0.8, teacher=Teacher(statistics="averaged"))
    assert (recipe.passes, recipe.schedule.batch, recipe.calibration) == ("separate", 32, "Temperature:bounds=0.5,10")


def test_published_stands_for_every_option_of_the_published_code_and_other_settings_win():
    cat = RECIPES["CAT*-CPCS"].with_settings({"published": "true", "labels.relabel": "false", "labels.tau": "0.8"})
    labels = cat.find(SelfTraining)
    assert (cat.passes, cat.doubled, cat.target_pass, cat.calibrate, cat.precision) == (
        "separate", True, False, "end", "float32",
    )  # fmt: skip
    assert (labels.counts_mode, labels.relabel, labels.tau, labels.teacher.early) == ("training", False, 0.8, True)
    assert labels.first_counts == "early"
    assert cat.find(Confusion).climbed == "labels"
    assert cat.calibration == "CPCS:bounds=none:resampling=over:solver=scikit-learn"
    dann = RECIPES["DANN*"].with_settings({"published": "true"})
    assert (dann.passes, dann.doubled, dann.target_pass) == ("joint", False, True)
    assert dann.find(Confusion).climbed == "on"
    coral = RECIPES["CORAL"].with_settings({"published": "true"}).find(CovarianceMatching)
    assert coral.progress == "epochs"
    vector = RECIPES["AT"].with_settings({"published": "true", "calibration": "Vector"})
    assert vector.calibration == "Vector:solver=sgd"
    for name, recipe in RECIPES.items():
        assert recipe.with_settings({"published": "false"}) == recipe
        make_recipe(name, "bearing-orders" if name == UNSEEN_RECIPE else "frequency", 30, {"published": "true"})
    with pytest.raises(InputError, match="published"):
        RECIPES["AT"].with_settings({"published": "yes"})
    with pytest.raises(InputError, match="doubled"):
        Recipe(doubled=True)
    with pytest.raises(InputError, match=r"teacher\.early"):
        SelfTraining(first_counts="early")


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("techer.statistics", "averaged", "did you mean 'teacher'"),
        ("teacher.statistic", "averaged", "did you mean 'statistics'"),
        ("teacher.statistics", "avraged", "did you mean 'averaged'"),
        ("confusion.weight", "2", "no 'confusion'"),
        ("calibration.bounds", "1,2", "no 'calibration'"),
        ("calibration.lower", "2", "no 'calibration'"),
        ("passes", "both", "'passes'"),
        ("labels.tau", "much", "'tau'"),
    ],
)
def test_a_wrong_setting_is_named(name, text, word):
    with pytest.raises(InputError, match=word):
        RECIPES["AT"].with_settings({name: text})


def test_what_cannot_be_a_recipe_is_refused():
    with pytest.raises(InputError, match="dropout"):
        Recipe(dropout=1.0)
    with pytest.raises(InputError, match="'confusion' twice"):
        Recipe((Confusion(), Confusion(weight=2.0)))
    with pytest.raises(InputError, match="'fixd'"):
        SelfTraining(threshold="fixd")


def test_rows_of_tables_are_read_from_text_and_written_back():
    table = {"teacher": Teacher}
    assert from_text("Teacher", table, "row") == Teacher()
    other = from_text("teacher:momentum=0.5:dropout=false", table, "row")
    assert other == Teacher(momentum=0.5, dropout=False)
    spelt = spell_out("TEACHER:momentum=0.5:dropout=false", table, "row")
    assert spelt == "teacher:momentum=0.5:statistics=target:dropout=False:early=False"
    assert from_text(spelt, table, "row") == other
    for text, word in (("techer", "did you mean 'teacher'"), ("teacher:momentm=1", "momentum"), ("teacher:1", "'1'")):
        with pytest.raises(InputError, match=word):
            from_text(text, table, "row")


def test_encoders_and_calibrators_that_there_are_not_are_refused_before_training():
    for settings, word in (({"encoder": "cnm"}, "did you mean 'cnn'"), ({"calibration": "Vektor"}, "'Vector'")):
        with pytest.raises(InputError, match=word):
            make_recipe("AT", "time", 3, settings)
    assert make_recipe("CAT-Temperature", "time", 3, {"calibration.kind": "Vector"}).calibration == "Vector"
    with pytest.raises(InputError, match="'lower'"):
        make_recipe("CAT-Temperature", "time", 3, {"calibration.lower": "2"})


@pytest.mark.parametrize("name", RECIPES)
def test_the_unadapted_counterpart_is_the_recipe_of_that_name_with_the_own_calibration(name):
    recipe = RECIPES[name].with_settings({"published": "true"}) if name == "AT*" else RECIPES[name]
    counterpart, plain = recipe.unadapted()
    assert not plain.adapts
    assert plain == replace(RECIPES[counterpart], calibration=recipe.calibration, final=recipe.final,
                            calibrate=recipe.calibrate, precision=recipe.precision,
                            input=recipe.input)  # fmt: skip
    assert recipe.adapts == (not name.endswith("source-only") and name != UNSEEN_RECIPE)


def test_a_record_says_when_each_ingredient_begins_and_nothing_of_those_without_a_phase():
    recipe = RECIPES["CAT*-views"].for_input("frequency").in_epochs(30)
    parts = recipe.to_dict()["ingredients"]
    phases = {name: (part.get("phase"), part.get("begins")) for name, part in parts.items()}
    assert phases == {
        "weak": ("labels", 10), "labels": ("labels", 10), "strong": ("labels", 10), "alignment": ("alignment", 5),
        "confusion": ("alignment", 5), "sharpness": (None, None),
    }  # fmt: skip
    assert not any("phase" in part for part in RECIPES["match-clusters"].to_dict()["ingredients"].values())

    @dataclass(frozen=True)
    class Late(Loss):
        name = "late"

        def start(self, schedule: Schedule) -> int:
            return schedule.epochs - 1

    assert Recipe((Late(),)).to_dict()["ingredients"]["late"]["begins"] == 299


@pytest.mark.parametrize("name", REMOVED)
def test_a_method_that_is_gone_is_refused_with_what_to_use_instead(name):
    with pytest.raises(InputError, match="any more; use '") as refused:
        find_recipe(name)
    assert any(f"'{instead}'" in str(refused.value) for instead in RECIPES)


@pytest.mark.parametrize(
    "name", ["labels.grow", "labels.ramp_up", "coral.layer", "temperature_momentum", "schedule.beta1"]
)
def test_a_setting_that_is_gone_is_refused(name):
    recipe = RECIPES["CORAL" if name.startswith("coral") else "AT"]
    with pytest.raises(InputError, match=f"'{name.rpartition('.')[2]}' is gone"):
        recipe.with_settings({name: "1"})


def test_an_ingredient_of_no_kind_is_refused():
    @dataclass(frozen=True)
    class Idle(Ingredient):
        name = "idle"

    with pytest.raises(InputError, match=r"'idle'.*Loss"):
        Recipe((Idle(),))


def test_a_record_says_whether_the_recipe_adapts():
    plain = [name for name, recipe in RECIPES.items() if not recipe.to_dict()["adapts"]]
    assert plain == ["source-only", "dense-source-only", UNSEEN_RECIPE, "linear-source-only"]
    assert not Recipe((Sharpness(),)).adapts
