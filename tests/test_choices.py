"""What reports recommend without labels, and what they say that is worth."""

from __future__ import annotations

from dataclasses import replace

from bearcat.report.choices import compared, comparison_sentences, epoch_sentences, favoured, recipe_sentences
from bearcat.report.results import Cell
from tests.made_records import made_result

CELL = Cell("rig", "time", "a→b", "DANN", 0)


def made(folder, name, seed, accuracy, liked, **changes):
    """A run of this method; `liked` is what the chooser thinks of it."""
    cell = replace(CELL, method=name, seed=seed)
    return made_result(folder / f"{name}-{seed}", cell, accuracy, trusted=True, expected=liked, **changes)


def test_the_recipe_with_the_highest_validator_is_recommended_and_labels_are_named_apart(tmp_path):
    one, other = made(tmp_path, "DANN", 0, 0.8, 0.9), made(tmp_path, "AT", 0, 0.9, 0.7)
    (text,) = recipe_sentences([one, other])
    assert text.startswith("Recommended of these, without labels: DANN, by BNM (DANN 0.900, AT 0.700).")
    assert text.endswith("The best by its labels is AT.")
    assert favoured([one, other]) == [one]


def test_without_labels_nothing_is_said_of_the_best_and_a_tie_recommends_nothing(tmp_path):
    one, other = (made(tmp_path, name, 0, 0.8, liked, labelled=False) for name, liked in (("DANN", 0.9), ("AT", 0.7)))
    (text,) = recipe_sentences([one, other])
    assert "labels is" not in text
    assert list(recipe_sentences([one, made(tmp_path, "CAT", 0, 0.8, 0.9)])) == []
    assert list(recipe_sentences([one])) == []


def test_a_comparison_tells_the_mean_of_what_would_be_chosen(tmp_path):
    runs = [
        made(tmp_path, "DANN", 0, 0.8, 0.9), made(tmp_path, "AT", 0, 0.9, 0.7),
        made(tmp_path, "DANN", 1, 0.5, 0.6), made(tmp_path, "AT", 1, 0.7, 0.8),
    ]  # fmt: skip
    (text,) = comparison_sentences(runs)
    truth = {(one.cell.method, one.cell.seed): one.score("target", "accuracy") for one in runs}
    chosen = 50 * (truth["DANN", 0] + truth["AT", 1])
    best = 50 * (truth["AT", 0] + truth["AT", 1])
    anything = 25 * sum(truth.values())
    for number in (f"right in {chosen:.1f} %", f"at random in {anything:.1f} %", f"can tell, in {best:.1f} %"):
        assert number in text, (number, text)
    assert list(comparison_sentences(runs[:1])) == []


def test_an_epoch_is_named_with_what_the_labels_say_of_it(tmp_path):
    run = made(tmp_path, "DANN", 0, 0.8, 0.9)
    assert list(epoch_sentences(run)) == []  # a record of before
    told = {"validator": "bnm", "epoch": 41, "value": 0.97, "last": 0.95}
    estimates, checked = run.record["estimates"], run.record["estimates_checked"]
    unlabelled = replace(run, record={**run.record, "estimates": estimates | {"checkpoint": told}})
    (text,) = epoch_sentences(unlabelled)
    assert "after epoch 42 looks best (0.970; after the last 0.950)" in text
    assert "Measured" not in text
    truth = {"chosen": 0.81, "last": 0.8, "best": 0.9}
    whole = {**unlabelled.record, "estimates_checked": checked | {"checkpoint": truth}}
    (text,) = epoch_sentences(replace(run, record=whole))
    assert "Measured: 81.0 % right there, 80.0 % after the last epoch, 90.0 % after the best." in text


def test_a_record_tells_of_the_runs_beside_it_without_looking_at_labels(tmp_path):
    for labelled in (True, False):
        folder = tmp_path / str(labelled)
        run = made(folder, "DANN", 0, 0.8, 0.7, labelled=labelled)
        alone = made(folder, "source-only", 0, 0.8, 0.9, labelled=labelled)
        found = compared(run, [alone])
        assert found["runs"] == ["source-only"]
        assert found["negative_transfer"] is True  # DEV likes the other better
        assert found["recommended"] == ["source-only"]
        assert compared(alone, [run])["negative_transfer"] is None
    assert compared(run, [run])["recommended"] == ["DANN", "DANN"]
