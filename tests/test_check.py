"""Check models, intervals from past runs, the three recommendations, and labels that come afterwards."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bearcat.adaptation.evaluation import check_run
from bearcat.deploy.model import load_model, save_model
from bearcat.diagnosis.accuracy import (
    EVIDENCE,
    FEWEST,
    NEAR,
    SHIFTS,
    Target,
    careful,
    expected_accuracy,
    moved_centres,
    past_accuracy,
    past_runs,
    recording_votes,
    uncertain_recordings,
)
from bearcat.diagnosis.decision import Estimate, LabelCheck
from bearcat.diagnosis.pooling import pool, tally
from bearcat.errors import InputError
from bearcat.record import Record
from bearcat.report import Cell, read_result
from tests.made_records import made_result, sealed
from tests.pooled import by_model
from tests.reference import trust as reference
from tests.test_adapt import page_of
from tests.test_artefact import made_model

pytestmark = pytest.mark.usefixtures("blank_figures")


def test_classes_move_to_where_the_target_s_recordings_have_them():
    random = np.random.default_rng(5)
    centres, recording = 3 * random.normal(size=(4, 3)), np.repeat(np.arange(5), 6)
    windows = centres[[0, 1, 1, 3, 2]][recording] + 0.3 * random.normal(size=(30, 3)) + 0.7
    for own in (False, True):
        found = moved_centres(windows, recording, centres, np.full(3, 0.2), own)
        assert found == pytest.approx(centres + 0.7, abs=0.3)


def test_votes_are_counted_by_recording_and_name_the_doubtful_ones():
    logits = np.log(np.tile([0.9, 0.05, 0.05], (40, 1)))
    recording = np.repeat(np.arange(8), 5)
    checks = {"a, linear": np.where(recording == 3, 1, 0), "b, centred": np.where(np.isin(recording, (3, 6)), 2, 0)}
    checks["b, centred"][0] = 2  # a window of recording 0
    target = Target(logits, recording, checks)
    assert recording_votes(target)[15] == pytest.approx([0, 0.5, 0.5])  # of recording 3 each says another class
    found = expected_accuracy(target)
    assert found["agreement"] == pytest.approx(35 / 40)  # only the first never adapts
    assert found["votes"] == pytest.approx(1 - (5 + 10 + 1) / 80)
    assert found["consensus"] == pytest.approx(35 / 40)  # of recording 6 the two say different things: the first
    assert uncertain_recordings(target)[:3] == [3, 6, 0]
    assert len(uncertain_recordings(target)) == 5
    assert set(expected_accuracy(Target(logits, recording))) == {"confidence"}


def evidence(*values: float) -> dict[str, float]:
    return dict(zip(EVIDENCE, values, strict=True))


def test_intervals_are_those_of_the_slow_twin():
    random = np.random.default_rng(2)
    table = {name: random.random((runs, 5)).round(2).tolist() for name, runs in (("a", 30), ("b", 7), ("c", 60))}
    for place in random.random((20, 4)):
        found = past_accuracy(evidence(*place), table)
        low, middle, high = reference.interval(place.tolist(), table, NEAR, FEWEST, (0.05, 0.5, 0.95))
        assert found == Estimate(middle, low, high)


def test_the_runs_that_ship_hold_when_their_group_is_left_out():
    assert len(past_runs("condition")) >= 20
    for shift in SHIFTS:
        compared, found = past_runs(shift), []
        for group in (name for name in compared if name.endswith(f", {shift}")):
            rest = {name: other for name, other in compared.items() if name != group}
            for *place, truth in compared[group][:: -(-len(compared[group]) // 4)]:
                expected = past_accuracy(evidence(*place), rest)
                too_high = careful(expected, shift).value > truth + 0.15
                found.append((expected.low <= truth <= expected.high, truth < expected.low - 0.1, too_high))
        inside, below, too_high = np.mean(found, axis=0)
        assert inside > 0.85, shift
        assert below < 0.06, shift
        assert too_high <= (0.1 if shift == "condition" else 0.05), shift


@pytest.fixture
def run(tmp_path):
    """A finished run, nine in ten of whose windows are right, with diagnoses of its target and a model beside it.

    Its target's recordings are called after their classes: healthy.mat, inner.mat, outer.mat.
    """
    found = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "DANN", 0), 0.9, labelled=False)
    windows, classes = found.predictions, found.record.data.classes
    names = np.array(windows.recording)
    diagnoses = tuple(
        by_model(name, pool(tally(windows.log_probabilities[names == name])), classes, "use")
        for name in sorted(set(windows.recording))
    )
    replace(found.record, recordings=diagnoses).write(found.folder)
    save_model(found.folder / "model", made_model(calibration=None, classes=tuple(classes)))
    return read_result(found.folder)


TRUTH = {"healthy.mat": "healthy", "inner.mat": "inner", "outer.mat": "outer"}
WRONG = {"healthy.mat": "inner", "inner.mat": "outer", "outer.mat": "healthy"}  # contradicts every diagnosis


def temperature_of(folder: Path) -> float:
    return float(load_model(folder / "model").calibration.temperature[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_labels_update_the_decision_in_record_model_page_and_terminal(run, tmp_path, command):
    file = tmp_path / "labels.csv"
    file.write_text("recording,label\n" + "".join(f"{name},{label}\n" for name, label in TRUTH.items()))
    status, shown, _ = command("check", run.folder, "--labels", file)
    assert status == 0
    record = Record.read(run.folder)
    assert (record.evidence.labels, record.labelled.right) == (LabelCheck(3, 3, 3), 3)
    assert record.decision.expected == 1
    assert record.decision.interval[0] == pytest.approx(0.05 ** (1 / 3))  # exact
    assert shown.splitlines()[0] == record.decision.sentence
    assert load_model(run.folder / "model").decision == record.decision
    assert page_of(run.folder).count(record.decision.sentence) == 1


def test_right_labels_make_the_model_surer_and_wrong_ones_refuse_it_and_every_recording(run):
    def network_confidence(record: Record) -> list[float]:
        return [max(each.witnesses.network.probabilities.values()) for each in record.recordings]

    before = network_confidence(run.record)
    for labels, above in ((TRUTH, 1), (WRONG, -1)):
        record = check_run(run.folder, labels)
        factor = record.labelled.temperature_factor
        assert np.sign(1 - factor) == above
        assert temperature_of(run.folder) == pytest.approx(factor)
        assert all(above * np.subtract(network_confidence(record), before) > 0)
    assert (record.decision.action, record.evidence.labels.right) == ("do not use", 0)
    assert {each.decision.action for each in record.recordings} == {"check"}
    assert load_model(run.folder / "model").decision == Record.read(run.folder).decision == record.decision


def test_one_labelled_fault_never_makes_healthy_surer(run):
    """One label of an outer race once raised the confidence of a "healthy" from 56.8 to 60.3 %."""
    record = check_run(run.folder, {"outer.mat": "outer"})
    assert (record.labelled.right, record.labelled.temperature_factor >= 1) == (1, True)
    (after,), (before,) = (
        [each.probabilities["healthy"] for each in made.recordings if each.recording == "healthy.mat"]
        for made in (record, run.record)
    )
    assert after <= before
    assert temperature_of(run.folder) >= 1


@pytest.mark.parametrize("done", [False, True])
def test_a_check_killed_at_any_moment_leaves_a_model_and_a_record_and_can_be_repeated(run, tmp_path, monkeypatch, done):
    """Before and after each file that takes the place of another."""
    monkeypatch.setattr("bearcat.adaptation.evaluation.write_page", lambda _: None)
    whole, moments = tmp_path / "whole", 0
    shutil.copytree(run.folder, whole)
    check_run(whole, TRUTH)
    put = Path.replace
    for moment in range(20):
        folder, left = tmp_path / f"killed-{moment}", [moment]
        shutil.copytree(run.folder, folder)

        def killed(draft: Path, place: Path, left: list[int] = left) -> Path:
            left[0] -= 1
            if done or left[0] >= 0:
                put(draft, place)
            if left[0] < 0:
                raise KeyboardInterrupt
            return place

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed)
            try:
                check_run(folder, TRUTH)
                break
            except KeyboardInterrupt:
                moments += 1
        load_model(folder / "model")
        Record.read(folder)
        check_run(folder, TRUTH)
        assert contents(folder) == contents(whole)
    assert moments >= 3, "weights, metadata and record"


@pytest.mark.parametrize("place", ["../victim", "/victim", "beside-x/../../victim", ".."])
def test_a_record_that_names_a_folder_outside_its_own_is_refused(run, place):
    sealed(run.folder, {"saved": {"recipe": "DANN", "adapted": True, "folder": place, "reason": ""}})
    with pytest.raises(InputError, match="folder"):
        check_run(run.folder, TRUTH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,label\na,b\n", "recording"), ("recording,label\n", "row"), ("", "recording"),
        ("recording,label\nnowhere.wav,inner\n", "nowhere.wav"), ("recording,label\ninner.mat,helthy\n", "healthy"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_used_are_refused_and_change_nothing(run, tmp_path, command, text, words):
    (tmp_path / "labels.csv").write_text(text)
    before = contents(run.folder)
    status, _, problem = command("check", run.folder, "--labels", tmp_path / "labels.csv")
    assert (status, problem.count("\n")) == (2, 1)
    assert words in problem
    assert contents(run.folder) == before
