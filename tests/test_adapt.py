"""`bearcat adapt` as people use it: what it writes, what it refuses, and that it goes on after being killed."""

from __future__ import annotations

import csv
import html
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bearcat.adaptation.run import COLUMNS
from bearcat.cat.evaluate import predict
from bearcat.data import Preparation, load, open_dataset, prepare
from bearcat.deploy.model import load_model
from bearcat.diagnosis.decision import choose_model
from bearcat.diagnosis.recording import Diagnoses
from bearcat.record import Record
from tests.commands import bearcat, start

TINY = (
    "adapt", "--method", "CAT*-Temperature", "--input", "frequency", "--window", "256", "--set", "severities=4",
    "--set", "faults=inner,outer", "--set", "seconds=1", "--device", "cpu", "--epochs", "6",
)  # fmt: skip


def page_of(folder: Path) -> str:
    """The text of a run's page, with plain blanks."""
    return html.unescape((folder / "report.html").read_text(encoding="utf-8")).replace("\N{NO-BREAK SPACE}", " ")


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapt") / "out"
    result = bearcat(*TINY, "--beside", "source-only", "--out", out)
    assert result.returncode == 0, result.stderr
    record, lines = Record.read(out), result.stdout.splitlines()
    assert lines[0] == Diagnoses(record.recordings).summary  # the answer first
    assert result.stdout.count(record.decision.sentence) == 1
    for words in ("target accuracy", "source-only", "CAT*-Temperature", str(out), str(out / "report.html")):
        assert words in result.stdout
    return out


def test_out_holds_everything_promised(finished):
    assert {path.name for path in finished.iterdir()} - {"model-adapted"} == {
        "record.json", "predictions.csv", "curves.csv", "model", "run.json", "report.html",
        "beside-source-only",
    }  # fmt: skip
    record = json.loads((finished / "record.json").read_text())
    for name in ("accuracy", "ece", "ece_uncalibrated"):
        assert 0 <= record["scores"]["target"][name] <= 1
        assert 0 <= record["scores"]["source"][name] <= 1
    assert record["settings"]["recipe"]["name"] == "CAT*-Temperature"
    assert record["settings"]["recipe"]["ingredients"]["labels"]["tau"] == 0.9
    assert record["settings"]["data"]["severities"] == [4.0]
    assert {"seed", "data", "versions", "seconds", "settings", "warnings", "estimates"} <= record.keys()


def test_both_runs_have_a_sealed_record_and_the_better_model_is_saved(finished):
    record, beside = Record.read(finished), Record.read(finished / "beside-source-only")
    assert beside.saved is None
    assert beside.data.classes == record.data.classes
    assert beside.recordings == ()  # predict diagnoses with its model, beside-source-only/model
    adapted, reason = choose_model(
        "CAT*-Temperature", replace(record.evidence, **own_evidence(finished, record)), beside.evidence,
        agreement=(record.agreement, beside.agreement),
    )  # fmt: skip
    assert record.saved.adapted == adapted
    assert record.saved.folder == ("." if adapted else "beside-source-only")
    assert record.saved.reason == reason


def own_evidence(folder: Path, record: Record) -> dict[str, object]:
    """What is known of the adapted model itself, where the record's evidence is of the unadapted one."""
    return {"finite": not record.failed, "one_class": None if record.saved.adapted else record.evidence.one_class}


def test_predictions_and_record_agree(finished):
    record = json.loads((finished / "record.json").read_text())
    rows = rows_of(finished / "predictions.csv")
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == record["data"]["target_test"]
    right = np.mean([row["label"] == row["predicted"] for row in rows])
    assert right == pytest.approx(record["scores"]["target"]["accuracy"], abs=1e-6)


def test_the_saved_model_is_of_the_run_the_record_names_and_predicts_what_that_predicted(finished):
    model, saved = load_model(finished / "model"), Record.read(finished).saved
    assert model.metadata["recipe"] == saved.recipe
    assert (finished / "model-adapted").exists() == (saved.folder != ".")
    texts = {"severities": "4", "faults": "inner,outer", "seconds": "1"}
    catalogue = open_dataset("simulated", None, texts).catalogue()
    windows = prepare(load(catalogue, ["N09_M07_F10"]), model.preparation)
    places = {
        (windows.recordings[r].origin, int(s)): n
        for n, (r, s) in enumerate(zip(windows.recording, windows.start, strict=True))
    }
    logits, _ = predict(model.network, torch.from_numpy(np.ascontiguousarray(windows.values))[None])
    probabilities = model.calibration.probabilities(logits)[0].numpy()
    for row in rows_of(finished / saved.folder / "predictions.csv"):
        row_probabilities = probabilities[places[row["recording"], int(row["start"])]]
        assert model.classes[int(row_probabilities.argmax())] == row["predicted"]
        assert row_probabilities.max() == pytest.approx(float(row["confidence"]), abs=1e-4)


def test_a_finished_run_is_not_run_again_and_another_is_refused(finished):
    before = (finished / "record.json").stat().st_mtime_ns
    again = bearcat(*TINY, "--out", finished, pictures=False)
    assert again.returncode == 0
    assert again.stdout.splitlines()[0] == Diagnoses(Record.read(finished).recordings).summary
    assert (finished / "record.json").stat().st_mtime_ns == before
    other = bearcat(*TINY, "--seed", "1", "--out", finished)
    assert other.returncode == 2
    assert "holds another run" in other.stderr


def test_killed_and_started_again_it_ends_with_the_same_result(finished, tmp_path):
    killed = tmp_path / "killed"
    process = start(*TINY, "--out", killed, pictures=False)
    deadline = time.monotonic() + 90
    while not (killed / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.join()
    assert (killed / "checkpoint.safetensors").exists()
    assert not (killed / "record.json").exists()
    assert bearcat(*TINY, "--out", killed, pictures=False).returncode == 0
    records = [json.loads((out / "record.json").read_text()) for out in (finished, killed)]
    assert records[0]["scores"] == records[1]["scores"]
    assert (finished / "predictions.csv").read_text() == (killed / "predictions.csv").read_text()
    (killed / "record.json").unlink()
    (killed / "checkpoint.safetensors").write_bytes(b"junk")
    result = bearcat(*TINY, "--out", killed)
    assert result.returncode == 2
    assert "checkpoint.safetensors: is damaged" in result.stderr


def test_an_unlabelled_target_has_no_scores(tmp_path):
    """Its names are no UTF-8, and formulas."""
    folders = {"N15_M07_F10": "N15_M07_F10", "N09_M07_F10": "=N09"}
    catalogue = open_dataset(
        "simulated", None, {"severities": "4", "faults": "inner,outer", "seconds": "1"}
    ).catalogue()
    for entry in catalogue.only(["0", "1"]).entries:
        place = tmp_path / "mine" / folders[entry.domain]
        place = place / entry.label if entry.domain == "N15_M07_F10" and entry.label else place
        place.mkdir(parents=True, exist_ok=True)
        signal = entry.read().signal
        name = os.fsdecode(b"\xff.npy") if entry.label == "healthy" else f"{entry.label}.npy"
        np.save(place / name, np.stack([signal[::-1], signal]))
    words = ("adapt", "--data", tmp_path / "mine", "--source", "N15_M07_F10", "--target", "=N09", "--input",
             "frequency", "--window", "256", "--epochs", "3", "--method", "dense-MCC", "--rpm", "1500", "--bearing", "6205",
             "--channel", "2", "--rate", "16000", "--out", tmp_path / "out")  # fmt: skip
    result = bearcat(*words, pictures=False)
    assert result.returncode == 0, result.stderr
    assert "no labels" in result.stdout
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert (record["settings"]["data"]["rpm"], record["settings"]["data"]["bearing"]) == (1500, "6205")
    assert record["scores"]["target"] is None
    assert record["reliability"]["target"] is None
    assert 0 < record["estimates"]["mean_confidence"] <= 1
    rows = rows_of(tmp_path / "out" / "predictions.csv")
    assert {row["label"] for row in rows} == {""}
    assert "'=N09/\\xff.npy" in {row["recording"].partition("#")[0] for row in rows}
    assert all(row["recording"].startswith("'=N09/") for row in rows), "no formula"


def test_two_sources_adapt_to_a_third_machine_and_every_choice_is_recorded(tmp_path):
    """Uneven classes, two sources, no label in the target, nothing asked for but what keeps it short."""
    catalogue = open_dataset("simulated", None, {"severities": "4", "faults": "inner", "seconds": "1"}).catalogue()
    names = dict(zip(catalogue.domains, ("mill-1500rpm", "mill-900rpm", "fan-1500rpm", "fan-low"), strict=True))
    for entry in catalogue.only(["0", "2", "3"]).entries:
        signal, place = entry.read().signal, tmp_path / "mine" / names[entry.domain] / str(entry.label)
        place = place.parent if names[entry.domain] == "fan-low" else place
        place.mkdir(parents=True, exist_ok=True)
        signal = signal[:6000] if entry.label == "inner-1" and "mill" in names[entry.domain] else signal
        if entry.label == "healthy" or names[entry.domain] != "fan-1500rpm":
            np.savez(place / f"{entry.label}.npz", x=signal, fs=16_000.0)
    words = ["adapt", "--data", tmp_path / "mine", "--source", "mill-1500rpm", "--source", "fan-1500rpm", "--target",
             "fan-low", "--input", "frequency", "--window", "256", "--epochs", "2", "--method", "dense-MCC", "--out",
             tmp_path / "out"]  # fmt: skip
    result = bearcat(*words)
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    choices = {choice["setting"]: choice for choice in record["chosen"]}
    assert list(choices) == ["channel", "rate", "stride", "split", "balance"]
    for choice in choices.values():
        assert f"{choice['setting']} {choice['value']}" in result.stderr
    assert choices["balance"]["value"] == "on"
    assert record["settings"]["recipe"]["balance"] is True
    assert record["settings"]["source"] == ["mill-1500rpm", "fan-1500rpm"]
    assert record["data"]["classes"] == ["healthy", "inner-1"]
    assert record["settings"]["split"]["scheme"] == "block"
    assert any("inner-1" in warning for warning in record["warnings"])
    written = (tmp_path / "out" / "record.json").stat().st_mtime_ns
    asked = ("--split", "block", "--method-set", "balance=true")  # the same run
    again = bearcat(*words, *asked, pictures=False)
    assert again.returncode == 0, again.stderr
    assert "balance on" not in again.stderr
    assert (tmp_path / "out" / "record.json").stat().st_mtime_ns == written
    other = bearcat(*words, "--method-set", "balance=false")
    assert other.returncode == 2
    assert "holds another run" in other.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "dense-moved"], "'match-clusters'"),
        (["--method", "CAT-Temprature"], "did you mean 'CAT-Temperature'"),
        (["--source", "N15"], "unknown domain 'N15'"),
        (["--target", "N15_M07_F10"], "two different domains"),
        (["--input", "tyme"], "did you mean 'time'"),
        (["--split", "blok"], "did you mean 'block'"),
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
    import torch

    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "thesis.txt").write_text("precious")
    monkeypatch.chdir(tmp_path)
    usual = [*zip(TINY[1::2], TINY[2::2], strict=True), ("--out", "fresh")]
    kept = [part for pair in usual if pair[0] == "--set" or pair[0] not in words for part in pair]
    status, _, errors = command(TINY[0], *kept, *words)
    assert status == 2
    sentences = [line for line in errors.splitlines() if line.startswith("bearcat: ")]
    assert len(sentences) == 1, errors
    assert sentence in sentences[0]
    assert (tmp_path / "occupied" / "thesis.txt").read_text() == "precious"


def test_scrambled_target_labels_change_no_weight(tmp_path):
    """The whole way from labels on disk to trained weights, with evaluation looking on."""
    from bearcat.cat.algorithm import Run, train
    from bearcat.cat.evaluate import watcher
    from bearcat.cat.recipes import RECIPES
    from bearcat.data import Split, Task, split_task

    catalogue = open_dataset(
        "simulated", None, {"severities": "4", "faults": "inner,outer", "seconds": "1"}
    ).catalogue()
    source, target = (prepare(load(catalogue, [domain]), Preparation("frequency", 256)) for domain in ("0", "1"))
    labels = [recording.label for recording in target.recordings]
    scrambled = replace(
        target, recordings=tuple(replace(o, label=n) for o, n in zip(target.recordings, labels[::-1], strict=True))
    )
    found = []
    for windows in (target, scrambled):
        split = split_task(Task("N15_M07_F10", "N09_M07_F10"), source, windows, Split(), seed=0)
        watch = watcher([split.held_back], torch.device("cpu"))
        found.append(
            train([Run(RECIPES["CAT*-Temperature"].in_epochs(4), split.training, 0)], torch.device("cpu"), watch)
        )
    for (name, first), second in zip(
        found[0].network.state_dict().items(), found[1].network.state_dict().values(), strict=True
    ):
        assert torch.equal(first, second), name
    assert not torch.equal(found[0].history["target_accuracy_teacher"], found[1].history["target_accuracy_teacher"])


def test_methods_are_listed_with_a_sentence_each_and_their_settings():
    from bearcat.cat.recipes import GROUPS, RECIPES, about, settings_of

    printed = bearcat("methods").stdout
    assert all(name in printed and about(name)[0] in printed for name in RECIPES)
    assert printed.count("\n") == len(RECIPES) + 2 * len(GROUPS)  # each group has a title and a heading
    assert all(about(name)[0].endswith(".") and about(name)[1] for name in (*GROUPS["paper"], *GROUPS["Table 1"]))
    for recipe in RECIPES.values():
        given = {name: value for name, value, _ in settings_of(recipe)}
        assert recipe.with_settings(given) == recipe
    one = bearcat("methods", "cat*-temperature").stdout
    assert "labels.threshold" in one
    assert "per-class, fixed" in one


@pytest.mark.parametrize("trouble", ["inner-1", "healthy", "nan"])
def test_a_collapsed_or_failed_run_is_marked_in_its_record(tmp_path, monkeypatch, trouble):
    from bearcat.adaptation import RunSpec
    from bearcat.adaptation import run as work
    from bearcat.cat.recipes import RECIPES
    from bearcat.data import Task

    honest = work.train

    def spoilt(*words, **more):
        trained = honest(*words, **more)
        with torch.no_grad():
            if trouble == "nan":
                trained.finite[:] = False
            else:
                trained.network.head.weight.zero_()
                bias = [float(name == trouble) for name in ("healthy", "inner-1", "outer-1")]
                trained.network.head.bias.copy_(torch.tensor([bias]))
        return trained

    monkeypatch.setattr(work, "train", spoilt)
    dataset = open_dataset("simulated", None, {"severities": "4", "faults": "inner,outer", "seconds": "1"})
    spec = RunSpec(
        "simulated", dataset, Task("N15_M07_F10", "N09_M07_F10"), "DANN", RECIPES["DANN"].in_epochs(1),
        Preparation("frequency", 256),
    )  # fmt: skip
    (run,) = work.run_stack([spec], [tmp_path / "out"], torch.device("cpu"), keep_model=True)
    record = run.record
    assert (record.collapsed, record.failed) == (trouble != "nan", trouble == "nan")
    assert record.decision.action == "do not use"
    assert load_model(tmp_path / "out" / "model").decision == record.decision
    if trouble == "inner-1":
        assert record.never_predicted == ("healthy", "outer-1")
        assert record.evidence.one_class == "inner-1"
        assert "'inner-1'" in record.decision.sentence
    elif trouble == "nan":
        assert not record.evidence.finite
        assert "NaN" in record.decision.sentence
        assert any("NaN" in warning for warning in record.warnings)
