"""Which model is saved without labels, and what a record says of the runs beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bearcat.report.choices import SLACK, choose_saved, compared
from bearcat.report.results import Cell
from bearcat.trust.accuracy import Estimate
from tests.made_records import made_result

CELL = Cell("rig", "time", "a→b", "DANN", 0)


def made(folder, name, seed, accuracy, validator, **changes):
    """A run of this method with this value of the validator that chooses."""
    cell = replace(CELL, method=name, seed=seed)
    return made_result(folder / f"{name}-{seed}", cell, accuracy, expected=validator, **changes)


def test_a_record_compares_the_runs_beside_it_without_labels(tmp_path):
    for labelled in (True, False):
        folder = tmp_path / str(labelled)
        run = made(folder, "DANN", 0, 0.8, 0.7, labelled=labelled)
        alone = made(folder, "source-only", 0, 0.8, 0.9, labelled=labelled)
        found = compared(run, [alone])
        assert found["runs"] == ["source-only"]
        assert found["negative_transfer"] is True  # DEV puts the other first
        assert compared(alone, [run])["negative_transfer"] is None


def run_with(folder, name, agreement=None, moving=None, **changes):
    """A run whose check models agree so far, and that found this before training."""
    found = made(folder, name, 0, 0.8, 0.8, **changes)
    estimates = replace(found.record.estimates, shares={} if moving is None else {"moving": moving})
    if agreement is not None:
        estimates = replace(estimates, accuracy={**estimates.accuracy, "agreement": Estimate(agreement, 0.0, 1.0)})
    return replace(found, record=replace(found.record, estimates=estimates))


@pytest.mark.parametrize(("gap", "adapted"), [(0.3, True), (0.0, True), (-SLACK / 2, True), (-2 * SLACK, False)])
def test_of_a_recipe_that_always_adapts_check_models_choose(tmp_path, gap, adapted):
    run, alone = run_with(tmp_path, "DANN", 0.6 + gap), run_with(tmp_path, "source-only", 0.6)
    saved = choose_saved(run, alone)
    assert saved["adapted"] is adapted
    assert saved["recipe"] == ("DANN" if adapted else "source-only")
    assert tmp_path / "DANN-0" / saved["folder"] == (run.folder if adapted else tmp_path / "DANN-0" / alone.folder.name)
    assert saved["sentence"].startswith("Adapted model saved" if adapted else "Unadapted model saved: adapting was not")
    assert f"{100 * (0.6 + gap):.0f} %" in saved["sentence"]


def test_a_recipe_that_decides_itself_is_believed_and_one_that_broke_down_is_not(tmp_path):
    alone = run_with(tmp_path, "dense-source-only", 0.9)
    for number, (moving, word) in enumerate((({"adapted": True}, "groups"), ({"adapted": True, "reference": True}, "reference"))):  # fmt: skip
        saved = choose_saved(run_with(tmp_path / str(number), "dense-moved", 0.2, moving), alone)
        assert saved["adapted"]
        assert word in saved["sentence"]
    kept = choose_saved(run_with(tmp_path / "kept", "dense-moved", 0.9, {"adapted": False}), None)
    assert (kept["adapted"], kept["folder"]) == (False, ".")
    assert not choose_saved(alone, None)["adapted"]
    for trouble in ("failed", "collapsed"):
        broken = run_with(tmp_path / trouble, "dense-moved", 1.0, {"adapted": True}, **{trouble: True})
        assert choose_saved(broken, alone)["recipe"] == "dense-source-only"
