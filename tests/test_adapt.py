"""`bearcat adapt`: what it writes and refuses; each step is done once, a killed command goes on to the same bytes."""

from __future__ import annotations

import csv
import html
import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bearcat.adaptation import AdaptationPlan, make_plan
from bearcat.adaptation import run as running
from bearcat.adaptation.run import COLUMNS
from bearcat.cat.algorithm import Run, train
from bearcat.cat.recipes import RECIPES
from bearcat.cat.state import watcher
from bearcat.cli.train import settings_of
from bearcat.data import Preparation, Task, load, open_dataset, prepare, split_task
from bearcat.deploy.model import load_model
from bearcat.diagnosis.recording import Diagnoses
from bearcat.record import CHECKPOINT, RECORD, Record
from bearcat.settings import AdaptRequest
from tests.commands import bearcat

SIMPLE = {"severities": "4", "faults": "inner,outer", "seconds": "1"}
TINY = (
    "adapt", "--method", "CAT*-Temperature", "--input", "frequency", "--window", "256", "--set", "severities=4",
    "--set", "faults=inner,outer", "--set", "seconds=1", "--device", "cpu", "--epochs", "6",
)  # fmt: skip
FASTEST = {"input": "frequency", "window": 256, "epochs": 2, "method": "dense-MCC", "device": "cpu"}
CPU = torch.device("cpu")
CLASSES = ("healthy", "inner-1", "outer-1")


def page_of(folder: Path) -> str:
    """The text of a run's page, with plain blanks."""
    return html.unescape((folder / "report.html").read_text(encoding="utf-8")).replace("\N{NO-BREAK SPACE}", " ")


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_adapt_prints_the_answer_first_and_writes_what_it_promises_once(tmp_path):
    out = tmp_path / "out"
    result = bearcat(*TINY, "--out", out)
    assert result.returncode == 0, result.stderr
    record, lines = Record.read(out), result.stdout.splitlines()
    assert lines[0].startswith("CAT*-Temperature")  # the method that was asked for, and then the answer
    assert f"{100 * record.scores.target.accuracy:.1f} %" in lines[0]
    assert lines[1] == Diagnoses(record.recordings).summary
    assert result.stdout.count(record.decision.sentence) == page_of(out).count(record.decision.sentence) == 1
    assert all(words in result.stdout for words in ("source-only", str(out / "report.html")))
    assert {path.name for path in out.iterdir()} == {
        "record.json", "predictions.csv", "curves.csv", "model", "run.json", "report.html", "beside-source-only",
    }  # fmt: skip
    beside = Record.read(out / "beside-source-only")
    assert (beside.saved, beside.recordings) == (None, ())  # predict diagnoses with its model, beside-source-only/model
    # The saved model says of each window what the table has.
    model, rows = load_model(out / "model"), rows_of(out / "predictions.csv")
    assert (tuple(rows[0]), len(rows)) == (COLUMNS, record.data.target_test)
    assert np.mean([row["label"] == row["predicted"] for row in rows]) == pytest.approx(record.scores.target.accuracy)
    windows = prepare(load(open_dataset("simulated", None, SIMPLE).catalogue(), ["N09_M07_F10"]), model.preparation)
    likely = np.exp(model.run(windows.values).log_probabilities)
    origins = [windows.recordings[number].origin for number in windows.recording]
    said = dict(zip(zip(origins, map(str, windows.start), strict=True), likely, strict=True))
    for row in rows:
        assert model.classes[said[row["recording"], row["start"]].argmax()] == row["predicted"]
        assert said[row["recording"], row["start"]].max() == pytest.approx(float(row["confidence"]), abs=1e-4)
    written = (out / "record.json").stat().st_mtime_ns
    again = bearcat(*TINY, "--out", out, pictures=False)
    assert (again.returncode, again.stdout.splitlines()[1]) == (0, lines[1])
    assert (out / "record.json").stat().st_mtime_ns == written
    other = bearcat(*TINY, "--seed", "1", "--out", out)
    assert other.returncode == 2
    assert "holds another run" in other.stderr


def test_two_sources_adapt_to_a_third_machine_without_labels_and_every_choice_is_recorded(tmp_path):
    """Uneven classes, two sources, nothing asked for but what keeps it short; a name of the target is no UTF-8, one is
    a formula.
    """
    catalogue = open_dataset("simulated", None, {"severities": "4", "faults": "inner", "seconds": "1"}).catalogue()
    names = dict(zip(catalogue.domains, ("mill-1500rpm", "mill-900rpm", "fan-1500rpm", "=fan"), strict=True))
    for entry in catalogue.only(["0", "2", "3"]).entries:
        domain, name = names[entry.domain], str(entry.label)
        place = tmp_path / "mine" / domain / ("" if domain == "=fan" else name)
        place.mkdir(parents=True, exist_ok=True)
        signal = entry.read().signal[: 6000 if name == "inner-1" and "mill" in domain else None]
        if name == "healthy" or domain != "fan-1500rpm":
            file = os.fsdecode(b"\xff.npz") if (name, domain) == ("healthy", "=fan") else f"{name}.npz"
            np.savez(place / file, x=signal, fs=16_000.0)
    out = tmp_path / "out"
    shortest = ["--input", "frequency", "--window", "256", "--epochs", "2", "--method", "dense-MCC"]
    words = ["adapt", "--data", tmp_path / "mine", "--source", "mill-1500rpm", "--source", "fan-1500rpm", *shortest]
    words += ["--target", "=fan", "--out", out]
    result = bearcat(*words, pictures=False)
    assert result.returncode == 0, result.stderr
    assert "no target labels" in result.stdout
    record = json.loads((out / "record.json").read_text())
    assert record["scores"]["target"] is record["reliability"]["target"] is None
    rows = {(row["label"], row["recording"].partition("#")[0]) for row in rows_of(out / "predictions.csv")}
    assert rows == {("", "'=fan/\\xff.npz"), ("", "'=fan/inner-1.npz")}, "no formula"
    choices = {choice["setting"]: choice["value"] for choice in record["chosen"]}
    assert list(choices) == ["channel", "rate", "stride", "split", "balance"]
    assert all(f"{name} {value}" in result.stderr for name, value in choices.items())
    assert (choices["balance"], record["settings"]["recipe"]["balance"]) == ("on", True)
    assert record["settings"]["source"] == ["mill-1500rpm", "fan-1500rpm"]
    assert record["data"]["classes"] == ["healthy", "inner-1"]
    written = (out / "record.json").stat().st_mtime_ns
    again = bearcat(*words, "--split", "block", "--method-set", "balance=true", pictures=False)  # the same run
    assert again.returncode == 0, again.stderr
    assert "balance on" not in again.stderr
    assert (out / "record.json").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "dense-moved"], "'dense-MCC'"),
        (["--target", "N15_M07_F10"], "two different domains"),
        (["--device", "cuda"], "CUDA"),
        (["--seed", "-1"], "seed"),
        (["--window", "20"], "too short for the encoder"),
        (["--window", "20", "--method", "dense-MCC", "--input", "physics"], "516 samples"),
        (["--rpm", "900"], "unknown setting 'rpm'"),
        (["--set", "seconds=0.3"], "fewer than a batch"),
        (["--set", "faults="], "only the class 'healthy'"),
        (["--method", "AT", "--method-set", "labels.threshold=fixd"], "did you mean 'fixed'"),
        (["--out", "occupied"], "is not empty"),
    ],
)
def test_bad_words_get_one_sentence_and_status_2(tmp_path, words, sentence, command, monkeypatch):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "thesis.txt").write_text("precious")
    monkeypatch.chdir(tmp_path)
    usual = [*zip(TINY[1::2], TINY[2::2], strict=True), ("--out", "fresh")]
    kept = [part for pair in usual if pair[0] == "--set" or pair[0] not in words for part in pair]
    status, _, errors = command(TINY[0], *kept, *words)
    (line,) = [line for line in errors.splitlines() if line.startswith("bearcat: ")]
    assert (status, sentence in line) == (2, True), line
    assert (tmp_path / "occupied" / "thesis.txt").read_text() == "precious"


def test_scrambled_target_labels_change_no_weight():
    """The whole way from labels on disk to trained weights, with evaluation looking on."""
    catalogue = open_dataset("simulated", None, SIMPLE).catalogue()
    source, target = (prepare(load(catalogue, [domain]), Preparation("frequency", 256)) for domain in ("0", "1"))
    labels = [recording.label for recording in target.recordings]
    pairs = zip(target.recordings, labels[::-1], strict=True)
    scrambled = replace(target, recordings=tuple(replace(recording, label=label) for recording, label in pairs))
    found = []
    for windows in (target, scrambled):
        split = split_task(Task("N15_M07_F10", "N09_M07_F10"), source, windows, "window", seed=0)
        watch = watcher([split.held_back], CPU)
        found.append(train([Run(RECIPES["CAT*-Temperature"].in_epochs(4), split.training, 0)], CPU, watch))
    first, second = (trained.network.state_dict() for trained in found)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    assert not torch.equal(found[0].history["target_accuracy_teacher"], found[1].history["target_accuracy_teacher"])


def test_methods_are_listed_with_their_parts_and_settings():
    printed = bearcat("methods").stdout
    assert printed.count("\n") == len(RECIPES) + 1
    for name, recipe in RECIPES.items():
        (line,) = [line for line in printed.splitlines() if line.split()[:1] == [name]]
        assert all(part.name in line for part in recipe.ingredients)
        given = {row["--method-set"]: row["value"] for row in settings_of(recipe)}
        assert recipe.with_settings(given) == recipe
    one = bearcat("methods", "cat*-temperature").stdout
    assert "labels.threshold" in one
    assert "per-class, fixed" in one


# The same after an interruption.


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    """A folder of one's own: two pumps with labels."""
    root = tmp_path_factory.mktemp("mine")
    for entry in open_dataset("simulated", None, SIMPLE).catalogue().only(["0", "1"]).entries:
        pump = "pump-A-1500rpm" if entry.domain == "N15_M07_F10" else "pump-B-900rpm"
        place = root / pump / str(entry.label)
        place.mkdir(parents=True, exist_ok=True)
        np.savetxt(place / f"{entry.label}.csv", entry.read().signal, fmt="%.6g")
    return root


@pytest.fixture
def no_pages(monkeypatch) -> None:
    monkeypatch.setattr("bearcat.adaptation.evaluation.find_spec", lambda _: None)


def planned(mine: Path, **changes: Any) -> AdaptationPlan:
    return make_plan(AdaptRequest(**{"data": str(mine), "rate": 16_000.0, "bearing": "6203"} | FASTEST | changes))


def contents(folder: Path) -> dict[str, object]:
    """What a run's folder holds, without what it took."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        if path.name == RECORD:
            record = json.loads(path.read_text())
            found[str(path)] = {key: value for key, value in record.items() if key not in ("seconds", "checksums")}
        elif path.is_file():
            found[str(path)] = path.read_bytes()
    return {name.removeprefix(str(folder)): content for name, content in found.items()}


def test_an_interrupted_adaptation_goes_on_to_the_same_bytes(mine, tmp_path, monkeypatch, no_pages):
    """Killed while it trains, and before each of these steps: the run beside it, the choice of a model, saving it, the
    run's own record.
    """
    whole, out = tmp_path / "whole", tmp_path / "out"
    running.adapt(planned(mine), whole)

    def stop(_: object) -> None:
        if (out / CHECKPOINT).exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        running.adapt(planned(mine), out, lambda *_: nullcontext(stop))
    steps = (
        (running, "run_stack", lambda *_, write, **__: write),
        (running, "choose_model", lambda *_: True),
        (running, "save_model", lambda folder, _: folder == out / "model"),
        (Record, "write", lambda _, folder: folder == out),
    )
    for owner, name, reached in steps:
        honest = getattr(owner, name)

        def killed(*words: Any, honest=honest, reached=reached, **more: Any) -> Any:
            if reached(*words, **more):
                raise KeyboardInterrupt
            return honest(*words, **more)

        with monkeypatch.context() as changed:
            changed.setattr(owner, name, killed)
            with pytest.raises(KeyboardInterrupt):
                running.adapt(planned(mine), out)
        assert not (out / RECORD).exists()
    for _ in range(2):  # the second time nothing is left to do
        again = running.adapt(planned(mine), out)
        assert contents(out) == contents(whole)
    assert again.record.to_dict() == Record.read(out).to_dict()


TROUBLES = ("inner-1", "healthy", "failed", "disagrees", "disagrees by default")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_method_asked_for_by_name_is_the_saved_model_whatever_is_recommended(
    mine, tmp_path, monkeypatch, no_pages, trouble
):
    """Where it names one class alone or broke down, its record and decision say so, and every recording is looked at
    all the same.
    """
    honest = running.train

    def spoilt(runs: Any, *words: Any, **more: Any) -> Any:
        trained = honest(runs, *words, **more)
        if runs[0].recipe.adapts and trouble in CLASSES:
            trained.network.head.weight.data.zero_()
            trained.network.head.bias.data.copy_(torch.tensor([[float(name == trouble) for name in CLASSES]]))
        if runs[0].recipe.adapts and trouble == "failed":
            trained.finite[:] = False
        return trained

    monkeypatch.setattr(running, "train", spoilt)
    if "disagrees" in trouble:
        monkeypatch.setattr(running, "choose_model", lambda *_: (False, "a reason"))
    plan, by_name = planned(mine), "default" not in trouble
    assert (plan.requested, planned(mine, method=None).requested) == (True, False), "whether the request names a method"
    adapted = running.adapt(replace(plan, requested=by_name), tmp_path / "out")
    model, record, saved = load_model(adapted.model), adapted.record, adapted.record.saved
    assert list(adapted.runs) == ["dense-MCC", "dense-source-only"]
    assert model.metadata["recipe"] == saved.recipe == ("dense-MCC" if by_name else "dense-source-only")
    assert model.decision == adapted.decision
    assert len(adapted.recordings) == 3
    assert (record.collapsed, record.failed) == (trouble in CLASSES, trouble == "failed")
    if trouble in CLASSES:
        assert record.never_predicted == tuple(name for name in record.data.classes if name != trouble)
        assert record.evidence.one_class == (None if trouble == "healthy" else trouble)
    if "disagrees" in trouble:
        assert saved.reason.startswith("requested; dense-source-only is recommended" if by_name else "a reason")
    else:
        assert "ok" not in {diagnosis.decision.action for diagnosis in adapted.recordings}
        assert adapted.decision.action == "do not use"
