"""New recordings: streaming equals reading whole, memory stays flat, and the exit status says what was found."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from scipy import signal as processing
from scipy.io import wavfile

from bearcat.api import diagnose
from bearcat.data.bearing import find_bearing
from bearcat.data.formats import read_signals
from bearcat.data.recording import Recording
from bearcat.deploy import diagnose as diagnose_units
from bearcat.deploy.find import FoundUnit, Given, find_files
from bearcat.deploy.model import export_onnx
from bearcat.deploy.opened import at_rate_of, open_model
from bearcat.diagnosis.decision import UNREADABLE
from bearcat.diagnosis.pooling import pool, tally
from bearcat.diagnosis.recording import COLUMNS, Diagnosis
from bearcat.errors import InputError
from bearcat.settings import DiagnoseRequest
from tests.pooled import pool_windows
from tests.test_artefact import REFUSED, familiar_with, made_model, save_model
from tests.test_cli import bearcat
from tests.test_serve import noise


def recorded(samples: np.ndarray, rate: float | None = None) -> Recording:
    return Recording(signal=samples, rate=rate, domain="", origin="a.npy")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "model", made_model())
    export_onnx(made_model(), folder / "model.onnx")
    return folder


def test_windows_are_pooled_at_the_models_rate_by_folder_as_by_onnx(model_folder, monkeypatch):
    monkeypatch.setattr("bearcat.deploy.opened.BATCH", 7)
    fast, unknown = recorded(noise(48_000), 48_000.0), recorded(processing.resample_poly(noise(48_000), 1, 4))
    windows = unknown.signal[: 256 * 46].reshape(46, 1, 256)
    expected = pool(tally(made_model().outputs(windows).log_probabilities))
    for place in ("model", "model.onnx"):
        model = open_model(model_folder / place)
        brought, (finding,) = at_rate_of(model, fast)
        assert (finding.kind, finding.values) == ("resampled", {"rate": 48_000, "to": 12_000})
        for recording in (brought, at_rate_of(model, unknown, 12_000)[0]):
            found = pool_windows(model, recording)
            assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-4)
            assert (found.windows, found.agreement) == (46, expected.agreement)
        with pytest.raises(InputError, match="sampling rate"):
            at_rate_of(model, unknown)
    with pytest.raises(InputError, match="48000 Hz"):
        Given(rate=12_000.0).rate_of(fast)
    assert Given(rate=48_000.5).rate_of(fast) == 48_000


def test_folders_are_walked_hidden_files_are_not(tmp_path):
    for name in ("b.csv", "a/c.WAV", ".git/x.csv", "a/.hidden.npy", "notes.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "d.wav").symlink_to(tmp_path / "gone.wav")  # is reported when it is opened
    (tmp_path / "e.npy").mkdir()
    found = [*find_files(tmp_path), *find_files(tmp_path / "notes.pdf")]
    assert [path.relative_to(tmp_path).as_posix() for path in found] == ["a/c.WAV", "b.csv", "d.wav", "notes.pdf"]
    with pytest.raises(InputError, match="d.wav: there is no such file"):
        read_signals(tmp_path / "d.wav")


def test_rows_are_diagnoses_the_status_is_the_worst_and_a_file_that_cannot_be_used_is_to_be_checked(tmp_path, command):
    np.save(tmp_path / "a.npy", noise(3000, 1))
    (tmp_path / "c.wav").write_bytes(b"junk")
    sure = made_model()
    sure.network.state_dict()["head.bias"][:, 1] += 9.0  # shares memory with the network
    onnx = export_onnx(sure, tmp_path / "model.onnx")
    words = ("--rate", 12_000, "--format", "json")
    status, shown, said = command("predict", onnx, tmp_path, *words)
    good, bad = json.loads(shown)["recordings"]
    assert Diagnosis.from_dict(good).to_dict() == good
    assert sum(good["probabilities"].values()) == pytest.approx(1)
    assert good["confidence"] == max(good["probabilities"].values())
    assert good["windows"] == good["network"]["windows"] == 11
    assert (good["class"], good["state"], good["decision"]) == ("inner", "inner race", "alarm")
    assert (bad["decision"], bad["state"], bad["class"], kinds(bad)) == ("check", "unreadable", None, {"unreadable"})
    assert (status, "c.wav" in said, "problem:" in said, "2 recordings" in said) == (1, True, True, True)
    assert command("predict", onnx, tmp_path / "a.npy", *words, "--alarm", "outer")[0] == 3
    assert command("predict", onnx, tmp_path / "c.wav", *words)[0] == 2, "nothing was decided"
    shown = command("predict", onnx, tmp_path, *words[:2], "--format", "csv")[1]
    assert tuple(next(csv.reader(io.StringIO(shown)))) == COLUMNS


def test_an_unfamiliar_recording_is_an_alarm(tmp_path, command):
    """By a model that knows white noise and nothing else; a folder and ONNX say the same."""
    model = familiar_with(made_model(), np.stack([noise(256, 100 + seed) for seed in range(600)])[:, None])
    export_onnx(model, tmp_path / "model.onnx")
    usual = noise(256 * 50, 6)  # of ten seeds one has too many windows by chance
    hum = np.sin(np.arange(256 * 50) / 7).astype(np.float32) + 0.05 * noise(256 * 50, 2)
    for name, samples in (("a", usual), ("b", hum)):
        np.save(tmp_path / f"{name}.npy", samples)
    status, shown, _ = command("predict", tmp_path / "model.onnx", tmp_path, "--rate", 12_000, "--format", "json")
    rows = json.loads(shown)["recordings"]
    assert (status, [(row["familiar"], row["decision"]) for row in rows]) == (1, [(True, "check"), (False, "alarm")])
    assert rows[0]["unfamiliar"] < 0.3 < 0.9 < rows[1]["unfamiliar"]
    assert rows[1]["class"] == "unknown"


def kinds(row):
    return {finding["kind"] for finding in row["findings"]}


def test_a_model_not_to_be_used_says_so_and_calls_no_recording_ok(tmp_path, model_folder, command):
    words = (tmp_path / "a.npy", "--rate", 12_000, "--format", "json")
    np.save(words[0], noise(3000, 1))
    save_model(tmp_path / "model", made_model(decision=REFUSED))
    status, _, warned = command("export", tmp_path / "model", "--onnx", tmp_path / "model.onnx")
    assert (status, "do not use." in warned) == (0, True)
    for name in ("model", "model.onnx"):
        status, shown, warned = command("predict", tmp_path / name, *words)
        (row,) = json.loads(shown)["recordings"]
        assert (status, row["decision"]) == (3, "check"), "what it says is no reason for an alarm either"
        assert ("refused model" in kinds(row), warned.count("do not use.")) == (True, 1)
        assert "do not use." not in command("predict", model_folder / name, *words)[2]


@pytest.mark.parametrize("kind", ["model", "model.onnx"])
def test_channel_rate_and_bearing_are_the_models_or_the_manifests(tmp_path, kind, command):
    """What adapt was given is not asked for again."""
    made = made_model(channel="b", bearing=find_bearing("6205"), rpm=900.0)
    model = replace(made, preparation=replace(made.preparation, rate=12_000.0))
    if kind == "model":
        save_model(tmp_path / kind, model)
    else:
        export_onnx(model, tmp_path / kind)
    (tmp_path / "plant" / "pump").mkdir(parents=True)
    path, manifest = tmp_path / "plant" / "pump" / "a.npz", tmp_path / "plant" / "manifest.csv"
    np.savez(path, a=noise(3000), b=noise(3000, 1))

    def found(*words: object) -> list[dict]:
        _, output, _ = command("predict", tmp_path / kind, *words, "--format", "json", "--alarm", "inner")
        return [row | {"notes": [], "findings": []} for row in json.loads(output)["recordings"]]

    bare = found(path)
    assert bare == found(path, "--channel", "b", "--rate", 12_000, "--bearing", "6205")
    manifest.write_text("path,domain,channel,rate,stop\npump/a.npz,pump,a,12000,1024\n")
    listed = found(path)
    assert listed == found(tmp_path / "plant") == found(manifest)
    assert listed[0]["windows"] == 4
    assert listed[0]["probabilities"] != bare[0]["probabilities"]


def test_a_model_that_needs_a_speed_takes_it_from_the_option_or_the_folder_and_says_when_it_is_missing(
    tmp_path, command
):
    model = made_model("physics:use=envelope-orders:last=20", 512, rate=8000.0)
    save_model(tmp_path / "model", model)
    save_model(tmp_path / "kept", replace(model, rpm=900.0))
    for folder in ("900rpm", "unknown"):
        (tmp_path / folder).mkdir()
        wavfile.write(tmp_path / folder / "a.wav", 8000, noise(4096))

    def shares(model: str, *words: object) -> dict[str, float]:
        status, shown, said = command("predict", tmp_path / model, *words, "--format", "json")
        assert status != 2, said
        return json.loads(shown)["recordings"][0]["probabilities"]

    unknown = tmp_path / "unknown"
    named, given = shares("model", tmp_path / "900rpm"), shares("model", unknown, "--rpm", 900)
    assert named == given == shares("kept", unknown) != shares("model", unknown, "--rpm", 1300)
    for words in ((), ("--rpm", 90000)):
        status, _, said = command("predict", tmp_path / "model", unknown, *words)
        assert (status, "--rpm" in said, "speed" in said) == (2, True, True)


def test_a_model_that_needs_a_speed_that_nobody_says_is_given_the_measured_one(tmp_path):
    model, time = made_model("physics:use=envelope-orders:last=20", 512, rate=8000.0), np.arange(5 * 8000) / 8000
    shaft = sum(np.sin(2 * np.pi * 23 * order * time + order) / order for order in range(1, 6))
    signal = (shaft + 0.01 * np.random.default_rng(0).standard_normal(time.size)).astype(np.float32)
    wavfile.write(tmp_path / "a.wav", 8000, signal)
    save_model(tmp_path / "model", model)
    ((found,), (stated,)) = (diagnose([tmp_path / "a.wav"], model=tmp_path / "model", rpm=rpm) for rpm in (None, 1380))
    assert found.speed.rpm == pytest.approx(1380, rel=0.01)
    assert found.network.nearest == stated.network.nearest
    assert found.network.probabilities == pytest.approx(stated.network.probabilities, abs=0.2)
    measured = [[finding.kind for finding in each.findings].count("measured speed") for each in (found, stated)]
    assert measured == [1, 0]


def test_several_processes_give_the_same_answers_in_the_same_order(tmp_path, model_folder):
    for number in range(3):
        wavfile.write(tmp_path / f"{number}.wav", 12_000, noise(6000, number))
    (tmp_path / "2.csv").write_text("no numbers\n")
    words = ["predict", model_folder / "model.onnx", tmp_path, tmp_path / "gone.wav", "--format", "json"]
    one, two = (bearcat(*words, "--jobs", jobs, fresh=jobs > 1) for jobs in (1, 2))
    assert (one.returncode, one.stdout) == (two.returncode, two.stdout)
    assert sorted(one.stderr.splitlines()) == sorted(two.stderr.splitlines())
    assert len(json.loads(two.stdout)["recordings"]) == 5


def test_several_processes_read_in_the_current_folder_which_may_change(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        wavfile.write(tmp_path / name / f"{name}.wav", 12_000, noise(24_000))
        monkeypatch.chdir(tmp_path / name)
        found = diagnose([f"{name}.wav"] * 2, rpm=1480, bearing="6205", jobs=2)
        assert all(diagnosis.state != UNREADABLE for diagnosis in found)


def ending() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_a_sentence():
    with pytest.raises(InputError, match="--jobs"):
        diagnose_units([FoundUnit("1.wav", ending)] * 2, request=DiagnoseRequest(jobs=2))


@pytest.mark.parametrize("manifest", ["path,domain\na.npz,d\n", None])
def test_a_file_that_holds_the_speed_alone_is_named(tmp_path, manifest):
    np.savez(tmp_path / "a.npz", tacho=noise(3000))
    if manifest is not None:
        (tmp_path / "manifest.csv").write_text(manifest)
    (found,) = diagnose(tmp_path, rate=12_000, rpm="tacho", bearing="6205")
    assert (found.decision.action, found.problem.field) == ("check", "rpm")
