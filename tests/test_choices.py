"""What a report recommends without labels, and what a record says of the runs beside it."""

from __future__ import annotations

from dataclasses import replace

from bearcat.report.choices import compared, favoured, recipe_sentences
from bearcat.report.results import Cell
from tests.made_records import made_result

CELL = Cell("rig", "time", "a→b", "DANN", 0)


def made(folder, name, seed, accuracy, validator, **changes):
    """A run of this method with this value of the validator that chooses."""
    cell = replace(CELL, method=name, seed=seed)
    return made_result(folder / f"{name}-{seed}", cell, accuracy, expected=validator, **changes)


def test_the_recipe_with_the_highest_validator_is_recommended_and_labels_are_named_apart(tmp_path):
    first, other = made(tmp_path, "DANN", 0, 0.8, 0.9), made(tmp_path, "AT", 0, 0.9, 0.7)
    (text,) = recipe_sentences([first, other])
    assert "labels: DANN, by BNM" in text
    assert text.endswith("labels is AT.")
    assert favoured([first, other]) == [first]


def test_without_labels_nothing_is_said_of_the_best_and_a_tie_recommends_nothing(tmp_path):
    first, other = (made(tmp_path, name, 0, 0.8, value, labelled=False) for name, value in (("DANN", 0.9), ("AT", 0.7)))
    (text,) = recipe_sentences([first, other])
    assert "labels is" not in text
    assert list(recipe_sentences([first, made(tmp_path, "CAT", 0, 0.8, 0.9)])) == []
    assert list(recipe_sentences([first])) == []


def test_a_record_compares_the_runs_beside_it_without_labels(tmp_path):
    for labelled in (True, False):
        folder = tmp_path / str(labelled)
        run = made(folder, "DANN", 0, 0.8, 0.7, labelled=labelled)
        alone = made(folder, "source-only", 0, 0.8, 0.9, labelled=labelled)
        found = compared(run, [alone])
        assert found["runs"] == ["source-only"]
        assert found["negative_transfer"] is True  # DEV puts the other first
        assert found["recommended"] == ["source-only"]
        assert compared(alone, [run])["negative_transfer"] is None
    assert compared(run, [run])["recommended"] == ["DANN", "DANN"]
