"""Check models, intervals from past runs, the three verdicts, and labels that come afterwards."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bearcat.cli import main
from bearcat.deploy.model import load_model, save_model
from bearcat.errors import InputError
from bearcat.report.results import Cell, read_result
from bearcat.runs.check import check_run, read_labels
from bearcat.runs.record import read_record, write_record
from bearcat.trust import past, verdict
from bearcat.trust.accuracy import Estimate, Source, Target, by_agreement, expected_accuracy
from bearcat.trust.checks import MODELS, check_predictions, sample_of
from tests.made_records import made_result
from tests.test_artefact import made_model


def points(offset: float, seed: int, windows: int = 60):
    random = np.random.default_rng(seed)
    labels = np.arange(windows) % 3
    return (4 * np.eye(3)[labels] + random.normal(size=(windows, 3)) + offset)[:, None], labels


def test_check_models_are_what_they_are_called():
    (source, labels), (target, truth) = points(0.0, 0), points(0.2, 1)
    constant, recording = np.ones((60, 1)), truth
    samples = {
        name: sample_of(known, labels, asked, recording, asked)
        for name, known, asked in (("a", source, target), ("still", constant, constant))
    }
    found = check_predictions(samples)
    assert set(found) == {f"a, {name}" for name in MODELS}  # points that never change say nothing
    flat, asked = source[:, 0], target[:, 0]
    mean, deviation = flat.mean(axis=0), flat.std(axis=0)
    flat, asked = (flat - mean) / deviation, (asked - mean) / deviation
    for window, said in zip(asked, found["a, neighbours"], strict=True):
        nearest = np.argsort(((flat - window) ** 2).sum(axis=1))[:5]
        assert np.bincount(labels[nearest], minlength=3)[said] == np.bincount(labels[nearest], minlength=3).max()
    assert (found["a, linear"] == truth).mean() > 0.9


def test_agreement_is_an_estimate_and_names_the_doubtful_recordings():
    logits = np.log(np.tile([0.9, 0.05, 0.05], (40, 1)))
    recording = np.repeat(np.arange(8), 5)
    checks = {"a, linear": np.where(recording == 3, 1, 0), "b, linear": np.where(np.isin(recording, (3, 6)), 2, 0)}
    target = Target(logits, recording, checks)
    source = Source(logits[:6], np.zeros(6, dtype=int))
    assert by_agreement(source, target).mean() == pytest.approx(1 - (5 + 10) / 80)
    assert verdict.doubtful_recordings(target)[:2] == [3, 6]
    assert len(verdict.doubtful_recordings(target)) == 5
    assert expected_accuracy(source, target)["agreement"].value == pytest.approx(0.8125)
    assert "agreement" not in expected_accuracy(source, Target(logits, recording))


def test_intervals_are_those_of_past_runs_with_such_agreement_a_group_counting_once():
    many = [(0.9, 0.99)] * 300
    few = [(0.9, 0.5), (0.9, 0.6)] * 10
    mixed = past.expected_accuracy(0.9, {"many": many, "few": few})
    assert (mixed.low, mixed.high) == (0.5, 0.99)  # although only one run in sixteen had so little
    far = past.expected_accuracy(0.9, {"many": many, "other": [(0.2, 0.1)] * 100})
    assert far == Estimate(0.99, 0.99, 0.99)


def test_the_runs_that_ship_hold_when_their_group_is_left_out():
    groups = past.past_runs()
    assert len(groups) >= 20
    inside, below, runs = 0, 0, 0
    for group, rows in groups.items():
        rest = {name: other for name, other in groups.items() if name != group}
        for agreement, truth in rows:
            expected = past.expected_accuracy(agreement, rest)
            inside += expected.low <= truth <= expected.high
            below += truth < expected.low - 0.1
            runs += 1
    assert inside / runs > 0.85
    assert below / runs < 0.05
    assert past.expected_accuracy(0.99).value > past.expected_accuracy(0.3).value


def test_three_verdicts():
    assert verdict.decision(Estimate(0.99, 0.85, 1.0)) == "use"
    assert verdict.decision(Estimate(0.99, 0.7, 1.0)) == "check"
    assert verdict.decision(Estimate(0.5, 0.2, 0.9)) == "do not use"
    assert verdict.decision(Estimate(float("nan"), 0, 1)) == "do not use"
    assert verdict.decision(Estimate(0.99, 0.9, 1.0), collapsed=True) == "do not use"
    near = Estimate(0.9, 0.85, 0.95)
    said = verdict.verdict({"confidence": near, "agreement": Estimate(0.45, 0.4, 0.5)}, doubtful=["b/1.npy", "b/2.npy"])
    assert "agree with it in 45 % of windows" in said
    assert "A mistake that all of them make is not noticed." in said


@pytest.fixture
def run(tmp_path):
    """A finished run with six target recordings, r0 … r5, nine in ten of whose windows are right."""
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "DANN", 0), 0.9, labelled=False)
    write_record(result.folder, result.record)
    return result


def test_labels_update_estimate_verdict_and_page(run, tmp_path, capsys, monkeypatch):
    names = sorted(set(run.predictions.recording))
    most = {}
    for name in names:
        said = [p for r, p in zip(run.predictions.recording, run.predictions.predicted, strict=True) if r == name]
        most[name] = max(set(said), key=said.count)
    file = tmp_path / "labels.csv"
    file.write_text("recording,label\n" + "".join(f"{name},{most[name]}\n" for name in names))
    monkeypatch.setattr("sys.argv", ["bearcat", "check", str(run.folder), "--labels", str(file)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    shown = capsys.readouterr().out
    entry = read_record(run.folder)["estimates"]["labelled"]
    assert (entry["recordings"], entry["right"]) == (3, 3)
    assert entry["low"] == pytest.approx(0.05 ** (1 / 3))  # exact
    assert entry["verdict"] in shown
    assert "3 of 3 labelled recordings" in (run.folder / "report.html").read_text(encoding="utf-8")
    other = {name: next(c for c in run.record["data"]["classes"] if c != most[name]) for name in names}
    assert check_run(run.folder, other)["decision"] == "do not use"
    assert json.loads((run.folder / "record.json").read_text())["estimates"]["decision"] == "do not use"


def test_labels_update_calibration_model_and_predictions(run, tmp_path):
    """A model of the run's classes stands beside it; right labels make it surer, wrong ones less sure, each once."""
    classes = run.record["data"]["classes"]
    save_model(run.folder / "model", made_model(calibration=None, classes=tuple(classes)))
    right = {name: name.removesuffix(".mat") for name in set(run.predictions.recording)}
    wrong = {name: next(other for other in classes if other != label) for name, label in right.items()}
    logits = np.random.default_rng(0).standard_normal((1, 5, len(classes))).astype(np.float32)

    def temperatures() -> tuple[float, float, float]:
        fresh, record = load_model(run.folder / "model"), read_record(run.folder)
        said = read_result(run.folder).predictions
        np.testing.assert_allclose(said.confidence, np.exp(said.log_probabilities.max(axis=1)), atol=1e-4)
        return float(fresh.calibration.temperature[0]), record["calibration"]["temperature"], said.confidence.mean()

    before = run.predictions.confidence.mean()
    first = check_run(run.folder, right)
    surer = temperatures()
    assert first["temperature_factor"] < 1
    assert surer[:2] == pytest.approx([first["temperature_factor"]] * 2)
    assert surer[2] > before
    assert first["mean_confidence_updated"] > first["mean_confidence"] == pytest.approx(before)
    second = check_run(run.folder, wrong)
    humbler = temperatures()
    assert second["temperature_factor"] > 1
    assert second["mean_confidence"] == pytest.approx(before, abs=1e-4)  # what the first labels did is undone
    assert humbler[2] < before
    check_run(run.folder, right)
    assert temperatures() == pytest.approx(surer, rel=1e-3)
    fresh = load_model(run.folder / "model")
    np.testing.assert_allclose(
        fresh.calibration.apply(logits), logits / first["temperature_factor"], rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [("name,label\na,b\n", "columns recording and label"), ("recording,label\n", "a row for each recording")],
)
def test_a_table_of_labels_that_cannot_be_read_is_refused(tmp_path, text, said):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_labels(path)


def test_labels_of_nothing_are_refused(run):
    known = run.predictions.recording[0]
    with pytest.raises(InputError, match="has no windows"):
        check_run(run.folder, {"nowhere.wav": run.record["data"]["classes"][0]})
    with pytest.raises(InputError, match="is no class of the model"):
        check_run(run.folder, {known: "helthy"})
