"""Check models, intervals from past runs, the three recommendations, and labels that come afterwards."""

from __future__ import annotations

import html
import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from bearcat.data.inputs import find_input
from bearcat.data.recording import spectral_shape
from bearcat.deploy.model import load_model, save_model
from bearcat.diagnosis.recording import Diagnoses
from bearcat.errors import InputError
from bearcat.models.networks import find_encoder
from bearcat.record import Record
from bearcat.report.results import Cell, Result, read_result
from bearcat.runs.adapt import check_run, read_labels
from bearcat.storage import digest
from bearcat.trust.accuracy import (
    STEADY,
    Estimate,
    Source,
    Target,
    expected_accuracy,
    recording_votes,
    window_agreement,
)
from bearcat.trust.checks import MODELS, check_predictions, moved_centres, representations
from bearcat.trust.decision import TESTED, LabelCheck, ModelEvidence, decide
from bearcat.trust.estimates import (
    COMPARED,
    EVIDENCE,
    FEWEST,
    MOST_ABOVE,
    NEAR,
    SHIFTS,
    careful,
    compared_runs,
    judged_by,
    past_accuracy,
    past_runs,
    table_of,
    uncertain_recordings,
)
from bearcat.trust.pooling import pool, tally
from tests.made_records import made_result
from tests.pooled import by_model
from tests.reference import checks as reference
from tests.test_artefact import made_model

pytestmark = pytest.mark.usefixtures("blank_figures")


def points(offset: float, seed: int, windows: int = 60):
    random = np.random.default_rng(seed)
    labels = np.arange(windows) % 3
    return (4 * np.eye(3)[labels] + random.normal(size=(windows, 3)) + offset)[:, None], labels


def test_check_models_are_what_they_are_called():
    (source, labels), (target, truth) = points(0.0, 0), points(0.2, 1)
    assert check_predictions(np.ones((60, 1)), labels, np.ones((60, 1)), truth, np.ones((60, 1))) == {}
    found = check_predictions(source, labels, target, truth, target)
    assert set(found) == set(MODELS)
    flat, asked = source[:, 0], target[:, 0]
    mean, deviation = flat.mean(axis=0), flat.std(axis=0)
    flat, asked = (flat - mean) / deviation, (asked - mean) / deviation
    for window, said in zip(asked, found["neighbours"], strict=True):
        nearest = np.argsort(((flat - window) ** 2).sum(axis=1))[:5]
        assert np.bincount(labels[nearest], minlength=3)[said] == np.bincount(labels[nearest], minlength=3).max()
    assert (found["linear"] == truth).mean() > 0.9


def test_classes_move_as_the_slow_twin_moves_them():
    random = np.random.default_rng(5)
    centres, recording = 3 * random.normal(size=(4, 3)), np.repeat(np.arange(5), 6)
    windows = centres[[0, 1, 1, 3, 2]][recording] + random.normal(size=(30, 3)) + 0.7
    for own in (False, True):
        found = moved_centres(windows, recording, centres, np.full(3, 0.2), own)
        expected = reference.moved_centres(windows.tolist(), recording.tolist(), centres.tolist(), [0.2] * 3, own)
        assert found == pytest.approx(np.array(expected), abs=1e-5)


def test_a_shift_of_all_windows_is_followed_by_check_models_that_adapt_and_by_no_other():
    (source, labels), (target, truth) = points(0.0, 0), points(0.0, 1)
    target = target + np.array([6.0, 0.0, 0.0])
    found = check_predictions(source, labels, target, truth, target)
    right = {name: (said == truth).mean() for name, said in found.items()}
    assert all(right[name] < 0.5 for name in STEADY)
    assert right["centred"] > 0.9
    assert right["standardised"] > 0.9


def test_a_target_of_one_class_is_spread_over_the_others_by_centring_and_not_by_moving():
    (source, labels), (target, truth) = points(0.0, 0, 240), points(0.3, 1, 240)
    target = target[truth == 1]
    found = check_predictions(source, labels, target, np.zeros(len(target)), target)
    right = {name: (said == 1).mean() for name, said in found.items()}
    assert right["centred"] < 0.6 < 0.9 < min(right["linear"], right["moved together"], right["moved apart"])


def test_an_input_is_what_its_network_gets_and_parts_of_it():
    windows = np.random.default_rng(0).normal(size=(3, 2, 1024)).astype(np.float32)
    shapes = spectral_shape(windows)
    for kind, names in (
        ("time", {"spectrum", "log-spectrum"}),
        ("frequency", {"spectrum", "log-spectrum"}),
        ("log-spectrum", {"input"}),
        ("physics:use=log-spectrum,band-kurtosis", {"input", "LogSpectrum", "BandKurtosis"}),
    ):
        values = find_input(kind).transform(windows, rate=10_000.0)
        found = representations(values, shapes, kind, 1024)
        assert set(found) == {"spectral shape"} | names
        assert all(np.isfinite(part).all() and len(part) == 3 for part in found.values())
        if "LogSpectrum" in found:
            together = np.concatenate([found["LogSpectrum"], found["BandKurtosis"]], axis=2)
            assert (together == found["input"]).all()


def test_votes_are_counted_by_recording_and_name_the_doubtful_ones():
    logits = np.log(np.tile([0.9, 0.05, 0.05], (40, 1)))
    recording = np.repeat(np.arange(8), 5)
    checks = {"a, linear": np.where(recording == 3, 1, 0), "b, centred": np.where(np.isin(recording, (3, 6)), 2, 0)}
    checks["b, centred"][0] = 2  # a window of recording 0
    target = Target(logits, recording, checks)
    assert recording_votes(target) == pytest.approx(np.array(reference.votes(
        {name: said.tolist() for name, said in checks.items()}, recording.tolist(), 3)))  # fmt: skip
    source = Source(logits[:6], np.zeros(6, dtype=int))
    found = expected_accuracy(source, target)
    assert found["agreement"].value == pytest.approx(35 / 40)  # only the first never adapts
    assert found["votes"].value == pytest.approx(1 - (5 + 10 + 1) / 80)
    assert found["consensus"].value == pytest.approx(35 / 40)  # of recording 6 the two say different things: the first
    assert uncertain_recordings(target)[:3] == [3, 6, 0]
    assert len(uncertain_recordings(target)) == 5
    assert set(expected_accuracy(source, Target(logits, recording))) == {"confidence", "atc_confidence"}


def test_no_more_windows_can_be_right_than_are_of_one_mind_with_their_recording():
    random = np.random.default_rng(3)
    for _ in range(20):
        recording = random.integers(4, size=60)
        target = Target(np.log(random.dirichlet(np.ones(3), size=60)), recording)
        best = max((target.predicted == np.array(labels)[recording]).mean() for labels in product(range(3), repeat=4))
        assert window_agreement(target) == pytest.approx(best)


def evidence(*values: float) -> dict[str, float]:
    return dict(zip(EVIDENCE, values, strict=True))


def test_intervals_are_those_of_past_runs_with_such_evidence_a_group_counting_once():
    place = [0.9, 0.9, 0.8, 1.0]
    many, few = [[*place, 0.99]] * 300, [[*place, 0.5], [*place, 0.6]] * 10
    mixed = past_accuracy(evidence(*place), table=table_of({"many": many, "few": few}))
    assert (mixed.low, mixed.high) == (0.5, 0.99)  # although only one run in sixteen had so little
    table = table_of({"many": many, "other": [[0.2, 0.3, 0.2, 1.0, 0.1]] * 100})
    far = past_accuracy(evidence(*place), table=table)
    assert far == Estimate(0.99, 0.99, 0.99)


def test_intervals_are_those_of_the_slow_twin():
    random = np.random.default_rng(2)
    table = {name: random.random((runs, 5)).round(2).tolist() for name, runs in (("a", 30), ("b", 7), ("c", 60))}
    for place in random.random((20, 4)):
        found = past_accuracy(evidence(*place), table=table_of(table))
        low, middle, high = reference.interval(place.tolist(), table, NEAR, FEWEST, (0.05, 0.5, 0.95))
        assert found == Estimate(middle, low, high)


def test_intervals_hold_in_a_new_group_that_is_like_the_others():
    """Groups whose truth depends on evidence in the same way, with an offset of their own: nine in ten are inside."""
    random = np.random.default_rng(4)

    def group(runs: int) -> np.ndarray:
        place = random.random((runs, 4))
        truth = place.mean(axis=1) + 0.1 * random.normal() + 0.1 * random.normal(size=runs)
        return np.column_stack([place, truth.clip(0, 1)])

    table = table_of({str(number): group(20).tolist() for number in range(60)})
    inside = [
        found.low <= truth <= found.high
        for _ in range(200)
        for *place, truth in group(2)
        for found in [past_accuracy(evidence(*place), table=table)]
    ]
    assert 0.85 < np.mean(inside) < 0.97


def test_the_runs_that_ship_hold_when_their_group_is_left_out():
    shipped = past_runs()
    assert set(shipped) == set(SHIFTS)
    assert len(shipped["condition"]) >= 20
    for shift, groups in shipped.items():
        assert all(len(row) == len(EVIDENCE) + 1 for rows in groups.values() for row in rows)
        compared, found = compared_runs(shipped, shift), []
        for group, rows in groups.items():
            rest = table_of({name: other for name, other in compared.items() if name != f"{group}, {shift}"})
            for *place, truth in rows[:: -(-len(rows) // 4)]:
                expected = past_accuracy(evidence(*place), shift, rest)
                too_high = careful(expected, shift).value > truth + 0.15
                found.append((expected.low <= truth <= expected.high, truth < expected.low - 0.1, too_high))
        inside, below, too_high = np.mean(found, axis=0)
        assert inside > 0.85, shift
        assert below < 0.06, shift
        assert too_high <= (0.1 if shift == "condition" else 0.05), shift
    for shift in COMPARED:
        places = (1.0, 0.95, 0.95, 1.0), (0.3, 0.3, 0.3, 0.9)
        sure, unsure = (past_accuracy(evidence(*place), shift) for place in places)
        assert sure.value > unsure.value
        assert sure.high - sure.low < unsure.high - unsure.low


def test_the_same_bearings_are_judged_by_no_run_on_others_and_other_machines_by_none_on_the_same():
    """Every kind has a truth of its own here, so the interval says which kinds were asked."""
    place, truths = [0.9, 0.9, 0.8, 1.0], dict(zip(SHIFTS, (0.9, 0.7, 0.5, 0.3), strict=True))
    past = {kind: {"rig, physics, all classes": [[*place, truth]] * 40} for kind, truth in truths.items()}
    ends = {"condition": (0.9, 0.9), "specimen": (0.3, 0.7), "machine": (0.3, 0.7), "unknown": (0.3, 0.9)}
    for kind, interval in ends.items():
        found = past_accuracy(evidence(*place), kind, table_of(compared_runs(past, kind)))
        assert (found.low, found.high) == interval
        assert judged_by(kind).shifts == tuple(COMPARED[kind])
        assert careful(found, kind).value == min(found.value, found.low + MOST_ABOVE[kind])
    assert careful(Estimate(0.9, 0.5, 1.0), "condition").value == 0.9, "the same bearings: as it always was"
    shipped = past_runs()
    runs = [sum(len(rows) for rows in shipped[kind].values()) for kind in SHIFTS]
    assert (judged_by("condition").runs, judged_by("machine").runs) == (runs[0], sum(runs[1:]))
    assert "unimore" not in judged_by("machine").datasets


def test_the_recommendation_says_which_shifts_its_estimate_was_tested_on():
    expected = Estimate(0.99, 0.95, 1.0)
    sentences = {shift: decide(ModelEvidence(expected, shift=shift)) for shift in COMPARED}
    assert set(TESTED) == set(COMPARED)
    assert all(TESTED[shift] in decision.reasons for shift, decision in sentences.items())
    assert {shift: decision.action for shift, decision in sentences.items() if decision.action != "use"} == {
        "one bearing": "check"
    }
    assert "not on other bearings" in TESTED["condition"]
    low = Estimate(0.5, 0.45, 1.0)  # held down; past runs had 0.9 in the middle
    assert decide(ModelEvidence(low, shift="specimen", median=0.9)).action == "check"
    assert decide(ModelEvidence(low, shift="specimen", median=0.5)).action == "do not use"
    labelled = decide(ModelEvidence(expected, shift="one bearing", labels=LabelCheck(20, 20, 3)))
    assert labelled.action == "use", "labels of the target are a test"


def test_three_recommendations():
    def action(expected: Estimate | None, **more) -> str:
        return decide(ModelEvidence(expected, **more)).action

    assert action(Estimate(0.99, 0.8, 1.0)) == "use"
    assert action(Estimate(0.99, 0.7, 1.0)) == "check"
    assert action(Estimate(0.5, 0.2, 0.9)) == "do not use"
    assert action(Estimate(float("nan"), 0, 1)) == action(None) == "do not use"
    assert action(Estimate(0.99, 0.9, 1.0), one_class="inner") == "do not use"
    assert action(Estimate(0.99, 0.9, 1.0), finite=False) == "do not use"
    decision = decide(ModelEvidence(Estimate(0.9, 0.7, 0.95), uncertain=("b/1.npy", "b/2.npy")))
    assert "b/1.npy, b/2.npy" in decision.sentence


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


def truth_of(run: Result) -> dict[str, str]:
    return {each.recording: each.recording.removesuffix(".mat") for each in run.record.recordings}


def wrong_for(run: Result) -> dict[str, str]:
    """Labels that contradict every diagnosis."""
    classes = run.record.data.classes
    return {each.recording: next(other for other in classes if other != each.nearest) for each in run.record.recordings}


def healthy_confidence(record: Record) -> float:
    return {each.recording: each.probabilities["healthy"] for each in record.recordings}["healthy.mat"]


def temperature_of(folder: Path) -> float:
    return float(load_model(folder / "model").calibration.temperature[0])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_labels_update_the_decision_in_record_model_page_and_terminal(run, tmp_path, command):
    file = tmp_path / "labels.csv"
    file.write_text("recording,label\n" + "".join(f"{name},{label}\n" for name, label in truth_of(run).items()))
    status, shown, _ = command("check", run.folder, "--labels", file)
    assert status == 0
    record = Record.read(run.folder)
    assert record.evidence.labels == LabelCheck(3, 3, 3)
    assert record.labelled.recordings == record.labelled.right == 3
    assert record.decision.expected == 1
    assert record.decision.interval[0] == pytest.approx(0.05 ** (1 / 3))  # exact
    assert shown.splitlines()[0] == record.decision.sentence
    assert load_model(run.folder / "model").decision == record.decision
    page = html.unescape((run.folder / "report.html").read_text(encoding="utf-8")).replace("\N{NO-BREAK SPACE}", " ")
    assert page.count(record.decision.sentence) == 1
    assert Diagnoses(record.recordings).summary in page


def test_wrong_diagnoses_refuse_the_model_and_every_recording_is_decided_anew(run):
    record = check_run(run.folder, wrong_for(run))
    assert record.decision.action == "do not use"
    assert record.evidence.labels.right == 0
    assert all(each.decision.action == "check" for each in record.recordings)
    assert load_model(run.folder / "model").decision.action == "do not use"
    assert Record.read(run.folder).decision == record.decision


def network_confidence(record) -> list[float]:
    return [max(each.witnesses.network.probabilities.values()) for each in record.recordings]


def test_right_labels_make_the_model_surer_and_wrong_ones_less_sure(run):
    before = network_confidence(run.record)
    surer = check_run(run.folder, truth_of(run))
    factor = surer.labelled.temperature_factor
    assert factor < 1
    assert temperature_of(run.folder) == pytest.approx(factor)
    assert all(np.greater(network_confidence(surer), before))
    logits = np.random.default_rng(0).standard_normal((1, 5, 3)).astype(np.float32)
    fitted = load_model(run.folder / "model").calibration
    np.testing.assert_allclose(fitted.apply(logits), logits / factor, rtol=1e-5)
    humbler = check_run(run.folder, wrong_for(run))
    assert humbler.labelled.temperature_factor > 1
    assert temperature_of(run.folder) == pytest.approx(humbler.labelled.temperature_factor)
    assert all(np.less(network_confidence(humbler), before))


@pytest.mark.parametrize("name", ["inner", "outer"])
def test_one_labelled_fault_never_makes_healthy_surer(run, name):
    """One label of an outer race once raised the confidence of a "healthy" from 56.8 to 60.3 %."""
    before = healthy_confidence(run.record)
    record = check_run(run.folder, {f"{name}.mat": name})
    assert record.labelled.right == 1
    assert record.labelled.temperature_factor >= 1
    assert healthy_confidence(record) <= before
    assert temperature_of(run.folder) >= 1


def test_a_check_repeated_with_the_same_labels_changes_nothing(run):
    for labels in (truth_of(run), wrong_for(run)):
        check_run(run.folder, labels)
        before = contents(run.folder)
        check_run(run.folder, labels)
        assert contents(run.folder) == before


def test_a_check_with_other_labels_forgets_the_earlier_ones(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run.folder, other)
    check_run(run.folder, truth_of(run))
    after, fresh = (check_run(folder, wrong_for(run)) for folder in (run.folder, other))
    assert after.decision == fresh.decision
    assert after.labelled == fresh.labelled
    assert after.evidence == fresh.evidence
    for one, two in zip(after.recordings, fresh.recordings, strict=True):
        assert one.probabilities == pytest.approx(two.probabilities, abs=1e-9)
        assert one.decision.action == two.decision.action
    assert temperature_of(run.folder) == pytest.approx(temperature_of(other), rel=1e-6)


@pytest.mark.parametrize("labels", [truth_of, wrong_for])
def test_a_check_killed_between_model_and_record_can_be_repeated(run, tmp_path, monkeypatch, labels):
    whole = tmp_path / "whole"
    shutil.copytree(run.folder, whole)
    check_run(whole, labels(run))

    def killed(*_) -> None:
        raise KeyboardInterrupt

    before = contents(run.folder)
    with monkeypatch.context() as patch:
        patch.setattr(Record, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            check_run(run.folder, labels(run))
    assert contents(run.folder)["record.json"] == before["record.json"]
    assert contents(run.folder)["model/model.json"] != before["model/model.json"]
    check_run(run.folder, labels(run))
    assert contents(run.folder) == contents(whole)


@pytest.mark.parametrize("done", [False, True])
def test_a_check_killed_at_any_moment_leaves_a_model_and_a_record_and_can_be_repeated(run, tmp_path, monkeypatch, done):
    """Before and after each file that takes the place of another."""
    monkeypatch.setattr("bearcat.runs.adapt._write_page", lambda _: None)
    whole, moments = tmp_path / "whole", 0
    shutil.copytree(run.folder, whole)
    check_run(whole, truth_of(run))
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
                check_run(folder, truth_of(run))
                break
            except KeyboardInterrupt:
                moments += 1
        load_model(folder / "model")
        Record.read(folder)
        check_run(folder, truth_of(run))
        assert contents(folder) == contents(whole)
    assert moments >= 4, "weights, metadata, card and record"


@pytest.mark.parametrize("place", ["../victim", "/victim", "beside-x/../../victim", "..", "beside-"])
def test_a_record_that_names_a_folder_outside_its_own_is_refused(run, place):
    shutil.copytree(run.folder, run.folder.parent / "victim")
    sealed(run.folder, {"saved": {"recipe": "DANN", "adapted": True, "folder": place, "reason": ""}})
    with pytest.raises(InputError, match="folder"):
        check_run(run.folder, truth_of(run))


def test_a_model_that_is_a_link_is_not_written_to(run, tmp_path):
    (run.folder / "model").rename(tmp_path / "victim")
    (run.folder / "model").symlink_to(tmp_path / "victim")
    before = contents(tmp_path / "victim")
    with pytest.raises(InputError, match="outside"):
        check_run(run.folder, truth_of(run))
    assert contents(tmp_path / "victim") == before


def sealed(folder: Path, changes: dict) -> None:
    """Changes a record as an attacker would, checksum included."""
    found = json.loads((folder / "record.json").read_text())
    sums = found.pop("checksums")
    found |= changes
    plain = json.dumps(found, sort_keys=True).encode()
    (folder / "record.json").write_text(json.dumps(found | {"checksums": sums | {"record.json": digest(plain)}}))


def places(value, above=()):
    """Every place in nested values, as the keys that lead there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*above, key)
        yield from places(item, (*above, key))


def test_a_record_with_any_value_changed_and_sealed_again_is_used_or_refused(run, monkeypatch):
    monkeypatch.setattr("bearcat.runs.adapt._write_page", lambda _: None)
    original = json.loads((run.folder / "record.json").read_text())
    wrong = (None, True, -1, 1e308, 2**70, "", "\ud800", [], {}, [[1]], "../victim")
    chance, every = random.Random(20_775), list(places(original))  # a day on which a text was a list
    outcomes = Counter()
    for _ in range(40):
        changed, (*above, last) = json.loads(json.dumps(original)), chance.choice(every)
        value = changed
        for key in above:
            value = value[key]
        value[last] = chance.choice(wrong)
        sealed(run.folder, {name: value for name, value in changed.items() if name != "checksums"})
        try:
            check_run(run.folder, truth_of(run))
            outcomes["used"] += 1
        except InputError:
            outcomes["refused"] += 1
    assert outcomes.total() == 40


@pytest.mark.parametrize("encoder", ["dense:widths=1-99999999999", "dense:widths=99999999", "dense:widths=0"])
def test_settings_of_a_network_have_ranges(encoder):
    with pytest.raises(InputError, match="widths"):
        find_encoder(encoder)
    with pytest.raises(InputError, match="bands"):
        find_input("log-spectrum:bands=99999999")


@pytest.mark.parametrize(
    ("text", "field"),
    [("name,label\na,b\n", "recording"), ("recording,label\n", "row"), ("", "recording")],
)
def test_a_table_of_labels_that_cannot_be_read_is_refused(tmp_path, text, field):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"labels.csv.*{field}"):
        read_labels(path)


def test_labels_of_nothing_are_refused(run):
    known = run.predictions.recording[0]
    before = contents(run.folder)
    with pytest.raises(InputError, match="nowhere.wav"):
        check_run(run.folder, {"nowhere.wav": run.record.data.classes[0]})
    with pytest.raises(InputError, match="'helthy'.*'healthy'"):
        check_run(run.folder, {known: "helthy"})
    assert contents(run.folder) == before
