"""A model behind HTTP: the server as `bearcat serve` starts it, in its own process, and its page in a real browser."""

from __future__ import annotations

import base64
import contextlib
import gc
import http.client
import inspect
import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import onnx
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from scipy.io import savemat, wavfile

from bearcat import cli
from bearcat.data.bearing import BEARINGS, marks_of
from bearcat.data.datasets.simulate import Simulated
from bearcat.deploy.model import export_onnx
from bearcat.deploy.serve import Address, Limits, serve
from bearcat.deploy.serve.answer import Deadline, PredictQuery, Served
from bearcat.deploy.serve.app import page_policy
from bearcat.deploy.serve.picture import Folded, RecordingPicture
from bearcat.diagnosis.recording import AlarmRule
from bearcat.errors import InputError
from bearcat.report.views import VIEWS
from tests import commands, opened
from tests.test_artefact import REFUSED, familiar_with, made_model, raw_windows, save_model
from tests.test_isolated import hostile_files

pytestmark = pytest.mark.usefixtures("traced_once")

RATE, LENGTH = 12_000, 256
START = "from bearcat.cli import main; main()"
TORCHLESS = f"""
import sys

class Without:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch must not be imported")

sys.meta_path.insert(0, Without())
{START}
"""
BINARY, JSON = {"Content-Type": "application/octet-stream"}, {"Content-Type": "application/json"}
TOKEN = "a-token-for-tests"


class Forked:
    """A command that runs in a process forked from one with torch in it, with the names that Popen has."""

    def __init__(self, *words: object, output: Path, errors: Path, environment: dict[str, str]) -> None:
        self.process = commands.start(*words, output=output, errors=errors, environment=environment)
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        self.process.join(seconds)
        return self.process.exitcode


class Server:
    """`bearcat serve` in a process of its own, with a temporary folder of its own; started anew where `code` is given."""

    def __init__(self, folder: Path, *words: object, code: str | None = None, **environment: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.log, output = folder / "log", folder / "output"
        words, environment = ("serve", *words, "--port", 0), {"TMPDIR": str(self.temporary)} | environment
        output.touch()
        if code is None:
            self.process: Any = Forked(*words, output=output, errors=self.log, environment=environment)
        else:
            call = [sys.executable, "-c", code, *map(str, words)]
            with output.open("w") as out, self.log.open("w") as log:
                self.process = subprocess.Popen(call, stdout=out, stderr=log, env=os.environ | environment)
        end = time.monotonic() + 120
        while "\n" not in output.read_text() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        self.said = output.read_text()
        assert "http://" in self.said, self.logged()
        self.url = re.search(r"http://\S+", self.said).group()
        self.place = urlsplit(self.url)
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def logged(self) -> str:
        return self.log.read_text()

    def upload(self, name: str, content: bytes, **parameters: object) -> httpx.Response:
        return self.client.post("/predict", params={"filename": name, **parameters}, content=content, headers=BINARY)

    def windows(self, body: object, **parameters: object) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post("/predict", params=parameters, content=content, headers=JSON)

    def gauge(self, name: str = "bearcat_predictions_in_flight") -> int:
        return int(float(re.search(rf"^{name} (\S+)$", self.client.get("/metrics").text, re.MULTILINE).group(1)))

    def until(self, accepted: int) -> None:
        end = time.monotonic() + 30
        while self.gauge() != accepted:
            assert time.monotonic() < end, f"never {accepted} requests at once"
            time.sleep(0.01)

    def memory(self) -> int:
        """Bytes in use that are the process's own."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"RssAnon:\s+(\d+)", text).group(1))

    def stop(self, ask: bool = True) -> int:
        if ask:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        self.client.close()
        return status


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    model = made_model(recipe="CAT*-Temperature", task="a → b")
    model = familiar_with(model, raw_windows(model, 600))
    save_model(folder / "model", model)
    export_onnx(model, folder / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def server(models, tmp_path_factory) -> Iterator[Server]:
    """Of an ONNX file, with torch out of reach."""
    running = Server(tmp_path_factory.mktemp("server"), models / "model.onnx", code=TORCHLESS)
    yield running
    assert running.stop() == 0
    assert running.logged() == "", "nothing went wrong inside"
    assert list(running.temporary.iterdir()) == [], "nothing is left behind"


@pytest.fixture(scope="module")
def tight(models, tmp_path_factory) -> Iterator[Server]:
    """Of the same file, with a token, and little patience."""
    limits = ("--max-bytes", 2**23, "--timeout", 1.5, "--concurrency", 2)
    running = Server(tmp_path_factory.mktemp("tight"), models / "model.onnx", *limits, BEARCAT_TOKEN=TOKEN)
    running.client.headers["Authorization"] = f"Bearer {TOKEN}"
    yield running
    assert running.stop() == 0
    assert running.logged() == ""


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


def as_wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    wavfile.write(file, rate, samples)
    return file.getvalue()


def as_npy(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, samples)
    return file.getvalue()


def as_text(samples: np.ndarray) -> bytes:
    return "\n".join(f"{sample:.6g}" for sample in samples).encode()


# Answers.


def test_an_uploaded_recording_gets_the_diagnosis_that_predict_gives(server, models, tmp_path, command):
    (tmp_path / "monday.wav").write_bytes(as_wav(noise(40 * LENGTH), 16_000))
    words = ("predict", models / "model.onnx", tmp_path / "monday.wav", "--format", "json")
    (expected,) = json.loads(command(*words)[1])["recordings"]
    found = server.upload("monday.wav", (tmp_path / "monday.wav").read_bytes()).json()
    assert found["recording"] == "monday.wav"
    for name in ("decision", "reasons", "state", "class", "nearest", "windows", "familiar", "line", "physics"):
        assert found[name] == expected[name], name
    for name in ("confidence", "agreement", "unfamiliar"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6), name
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
    (note,) = found["notes"]
    assert "resampled" in note
    assert note.replace("monday.wav", str(tmp_path / "monday.wav")) in expected["notes"]
    lines = json.loads(command(*words, "--by", "window")[1])["windows"]
    found = server.upload("monday.wav", (tmp_path / "monday.wav").read_bytes(), by="window").json()["by_window"]
    assert len(found) == len(lines) == 30
    for row, other in zip(found, lines, strict=True):
        assert row | {"confidence": 0, "recording": other["recording"]} == other | {"confidence": 0}
        assert row["confidence"] == pytest.approx(other["confidence"], abs=1e-6)


def test_windows_as_json_get_what_the_recording_they_were_cut_from_gets(server):
    signal_ = noise(12 * LENGTH, seed=4)
    uploaded = server.upload("a.npy", as_npy(signal_), rate=RATE, by="window").json()
    flat = server.windows({"windows": signal_.reshape(12, LENGTH).tolist(), "rate": RATE}, by="window").json()
    deep = server.windows({"windows": signal_.reshape(12, 1, LENGTH).tolist()}, by="window").json()
    assert flat == deep
    assert flat | {"recording": "a.npy"} == uploaded
    assert server.windows({"windows": signal_.reshape(12, LENGTH).tolist()}).json()["by_window"] is None


def test_an_unknown_kind_of_recording_is_answered_as_unfamiliar(server):
    known = server.upload("a.npy", as_npy(noise(100 * LENGTH)), rate=RATE).json()
    tone = np.sin(np.arange(100 * LENGTH) / 7).astype(np.float32)
    strange = server.upload("a.npy", as_npy(tone), rate=RATE).json()
    assert known["familiar"] is True
    assert known["unfamiliar"] < 0.3
    assert strange["familiar"] is False
    assert strange["unfamiliar"] > 0.9
    assert (strange["decision"], strange["class"], strange["state"]) == ("alarm", "unknown", "unknown")
    assert strange["reasons"]


@pytest.mark.parametrize("kind", ["csv", "txt", "npy", "npz", "mat", "wav", "parquet"])
def test_every_format_can_be_uploaded_in_the_spelling_of_any_machine(server, tmp_path, kind):
    samples = noise(4 * LENGTH)
    path = tmp_path / f"a.{kind}"
    {
        "csv": lambda: path.write_bytes(b"acceleration\n" + as_text(samples)), "txt": lambda: path.write_bytes(as_text(samples)),
        "npy": lambda: path.write_bytes(as_npy(samples)), "npz": lambda: np.savez_compressed(path, a=samples),
        "mat": lambda: savemat(path, {"a": samples}, do_compression=True), "wav": lambda: path.write_bytes(as_wav(samples)),
        "parquet": lambda: parquet.write_table(pa.table({"a": samples}), path),
    }[kind]()  # fmt: skip
    answer = server.upload(f"Überlast №1.{kind.upper()}", path.read_bytes(), rate=RATE)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["windows"], answer.json()["recording"]) == (4, f"Überlast №1.{kind.upper()}")


def test_the_model_folder_is_served_with_the_same_answers_and_sigterm_finishes_what_was_accepted(
    models, server, tmp_path
):
    """Requests that are computed, that wait for a worker, and one whose body is still coming."""
    running = Server(tmp_path, models / "model")
    described = running.client.get("/model").json()
    assert described == server.client.get("/model").json()
    assert described["calibrated"] is True
    recording = as_npy((30 * noise(3 * 2**17)).astype(np.int8))  # some time's work
    waiting = 3
    with ThreadPoolExecutor(waiting) as pool:
        slow = socket.create_connection((running.place.hostname, running.place.port))
        content = as_wav(noise(10 * LENGTH))
        slow.sendall(
            f"POST /predict?filename=a.wav HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
            "Content-Type: application/octet-stream\r\n\r\n".encode() + content[:100]
        )  # fmt: skip
        answers = [pool.submit(running.upload, "a.npy", recording, rate=RATE) for _ in range(waiting)]
        running.until(waiting + 1)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        slow.sendall(content[100:])
        statuses = [answer.result(60).status_code for answer in answers]
        file = slow.makefile("rb")
        head, body = file.readline(), file.read().rpartition(b"\r\n")[2]
        slow.close()
    assert statuses == [200] * waiting
    assert head.startswith(b"HTTP/1.1 200")
    expected = server.upload("a.wav", content).json()
    assert json.loads(body)["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    assert running.stop(ask=False) == 0
    assert running.logged() == ""
    assert list(running.temporary.iterdir()) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/health")


# The picture.


def test_the_picture_has_a_bounded_number_of_points_whatever_the_length(server):
    for seconds in (1, 20):
        samples = noise(seconds * RATE)
        samples[5000] = 40.0
        answer = server.upload("a.wav", as_wav(samples), picture=True, rpm=1797)
        picture = answer.json()["picture"]
        assert len(answer.content) < 90_000
        assert picture["samples"] == samples.size
        assert max(picture["waveform"]["high"]) == 40.0, "no peak is lost"
        assert min(picture["waveform"]["low"]) == pytest.approx(samples.min(), rel=1e-3)
        assert len(picture["waveform"]["low"]) <= 1600
        assert len(picture["spectrum"]["values"]) <= 800
        shown = picture["timeline"]
        assert len(shown["class"]) * shown["step"] == pytest.approx(seconds, rel=0.05)
        (shaft,) = picture["marks"]
        assert (shaft["name"], shaft["hertz"]) == ("shaft", pytest.approx(1797 / 60))


def test_speed_and_bearing_add_the_physics_check_and_a_fault_it_finds_is_never_ok(server):
    signal = Simulated(seconds=2.0, rate=RATE, severities=(2.0,)).recording("N15_M07_F10", "outer-1").signal
    asked = {"rpm": 1500, "bearing": "balls=8,ball=6.75,pitch=28.5"}
    answer = server.upload("a.wav", as_wav(signal), **asked).json()
    assert answer["physics"]["state"] == "outer race"
    assert answer["decision"] != "ok"
    assert "BPF" in answer["line"]
    assert answer["line"].endswith("dB")
    assert answer["physics"]["faults"]["outer race"]["level"] > 10, "dB"
    assert server.upload("a.wav", as_wav(signal), rpm=1500).json()["physics"] is None
    short = server.upload("a.wav", as_wav(signal[:2000]), **asked).json()
    assert short["physics"] is None
    assert any("turns" in note for note in short["notes"])


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30), most=st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_folding_keeps_highest_values_and_sums_however_the_rows_come(sizes, most):
    rows = np.random.default_rng(sum(sizes)).standard_normal((sum(sizes), 2))
    highest, total, at = Folded(2, np.maximum, most), Folded(2, np.add, most), 0
    for size in sizes:
        highest.add(rows[at : at + size])
        total.add(rows[at : at + size])
        at += size
    groups = [rows[at : at + highest.each] for at in range(0, len(rows), highest.each)]
    assert len(groups) <= 2 * most
    assert np.array_equal(highest.rows(), [group.max(axis=0) for group in groups])
    assert np.allclose(total.rows(), [rows[at : at + total.each].sum(axis=0) for at in range(0, len(rows), total.each)])


def test_spectra_are_those_of_the_signal_in_any_blocks():
    """A sine has its amplitude at its frequency; modulated, its modulation in the envelope's."""
    time_ = np.arange(6 * RATE) / RATE
    signal_ = (3 * (1 + 0.8 * np.sin(2 * np.pi * 80 * time_)) * np.sin(2 * np.pi * 3000 * time_)).astype(np.float32)
    drawn = []
    for size in (1000, 10**6):
        picture = RecordingPicture(float(RATE))
        assert sum(
            block.size for block in picture.observe(signal_[at : at + size] for at in range(0, signal_.size, size))
        )
        drawn.append(picture.to_dict())
    assert drawn[0] == drawn[1]
    lines, envelope = drawn[0]["spectrum"], drawn[0]["envelope"]
    assert max(lines["values"]) == pytest.approx(3, rel=0.05)
    assert lines["start"] + np.argmax(lines["values"]) * lines["step"] == pytest.approx(3000, abs=lines["step"])
    assert envelope["start"] + np.argmax(envelope["values"]) * envelope["step"] == pytest.approx(
        80, abs=envelope["step"]
    )


def test_the_marks_of_a_simulated_fault_stand_out_and_those_of_noise_do_not():
    recording = Simulated(seconds=3.0).recording("N09_M07_F10", "outer-3")
    picture = RecordingPicture(recording.rate)
    list(picture.observe([recording.signal]))
    marks = {
        (mark["name"], mark["multiple"]): mark for mark in picture.to_dict(marks_of(BEARINGS["6203"], 900))["marks"]
    }
    assert marks["BPFO", 1]["hertz"] == BEARINGS["6203"].frequencies(900)["BPFO"]
    assert min(marks["BPFO", multiple]["level"] for multiple in (1, 2, 3)) > 20, "dB"
    assert marks["BPFI", 1]["level"] < 12
    found = []
    for seed in range(10):
        picture = RecordingPicture(float(RATE))
        list(picture.observe([noise(3 * RATE, seed)]))
        found += [mark["level"] for mark in picture.to_dict(marks_of(BEARINGS["6205"], 1797))["marks"]]
    assert len(found) == 100
    assert np.mean(np.array(found) < 12) > 0.98, "what the page says of chance"


def test_a_mark_level_is_dB_of_power_above_the_median_around_it():
    """A line of ten times the amplitude of its flat surroundings is at 20 dB."""
    picture = RecordingPicture(1000.0)
    picture._squares, picture._segments = np.ones((2, 1000)), 1
    picture._squares[1, 200] = 100.0  # 100 Hz
    (shaft,) = picture.to_dict(marks_of(None, 6000.0))["marks"]
    assert shaft == {"name": "shaft", "multiple": 1, "hertz": 100.0, "level": 20.0}


# What is refused, and how.


def refused(answer: httpx.Response, status: int, field: str | None) -> str:
    found = answer.json()
    assert (answer.status_code, found["field"]) == (status, field), found
    assert found["reason"]
    assert "/" not in found["reason"].replace("application/", "").replace("ASCII/", ""), "no path is told"
    return found["reason"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"), (b"{", "body"), (b"[1]", "body"), (b"\xff\xfe", "body"), (b"[" * 10_000, "body"),
        (b'{"windows": NaN}', "body"), ({}, "windows"), ({"windows": []}, "windows"), ({"windows": 3}, "windows"),
        ({"windows": [[1.0] * (LENGTH - 1) + ["2"]]}, f"windows.0.{LENGTH - 1}"), ({"windows": [[]]}, "windows.0"),
        ({"windows": [[1.0] * LENGTH, [True] * LENGTH]}, "windows.1.0"), ({"windows": [[[None] * LENGTH]]}, "windows.0.0.0"),
        ({"windows": [[1.0, 2.0]]}, "windows.0"), ({"windows": [[[0.0] * LENGTH] * 2]}, "windows.0"),
        ({"windows": [[0.0] * LENGTH, [0.0] * (LENGTH - 1)]}, "windows.1"), ({"windows": [[10**400] * LENGTH]}, "windows.0.0"),
        ({"windows": [[0.0] * LENGTH, [1e300] * LENGTH]}, "windows.1"), ({"windows": [[0.0] * LENGTH], "rate": 48_000}, "rate"),
        ({"windows": [[0.0] * LENGTH], "rate": "fast"}, "rate"), ({"windows": [[0.0] * LENGTH], "sample_rate": 1}, "sample_rate"),
        ({"windows": [[[[0.0]]]]}, "windows.0"), ({"windows": [{"a": 1}]}, "windows.0"), ({"windows": [[[0.0]], 3]}, "windows.0"),
        ({"windows": [[[0.0] * LENGTH], [0.0] * LENGTH]}, "windows.1"),
    ],
)  # fmt: skip
def test_windows_that_do_not_fit_are_refused_by_the_field(server, body, field):
    refused(server.windows(body), 422, field)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"rate": -1}, "rate"), ({"rate": "nan"}, "rate"), ({"rate": "fast"}, "rate"), ({"by": "day"}, "by"), ({"colour": "red"}, "colour"),
        ({"picture": "perhaps"}, "picture"), ({"channel": "left"}, "channel"), ({"bearing": "balls=8"}, "bearing"),
        ({"view": "kurtogam"}, "view"), ({"rpm": 0}, "rpm"), ({"rpm": 1, "bearing": "no such"}, "bearing"), ({"bearing": "6" * 200}, "bearing"),
        ({"bearing": "balls=20,ball=20,pitch=30", "rpm": 1}, "bearing"), ({"bearing": "balls=8,ball=6,pitch=30,angle=90"}, "bearing"),
        ({"bearing": "balls=900,ball=6,pitch=9000", "rpm": 1}, "bearing"), ({"bearing": "balls=8,ball=1e-300,pitch=30", "rpm": 1}, "bearing"),
        ({"bearing": "balls=8,ball=nan,pitch=30", "rpm": 1}, "bearing"), ({"bearing": "balls=8,ball=6,pitch=inf", "rpm": 1}, "bearing"),
        ({"rpm": 1e-300, "bearing": "6205"}, "rpm"), ({"bearing": "balls=8,ball=5e-324,pitch=30", "rpm": 1500, "picture": True}, "bearing"),
        ({"filename": "a.exe"}, "filename"), ({"filename": ""}, "filename"), ({"filename": "../../etc/passwd.wav"}, "filename"),
        ({"filename": "a\r\nb.wav"}, "filename"), ({"filename": "a" * 300 + ".wav"}, "filename"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit_are_refused_by_their_name(server, parameters, field):
    content = as_wav(noise(4 * LENGTH))
    found = server.client.post(
        "/predict", params={"filename": "a.wav"} | parameters, content=content, headers=BINARY
    ).json()
    assert found["field"] == field, found
    assert any(word in found["reason"] for word in (field, "ball", "channel", "angle")), found


def test_a_name_with_a_folder_is_refused_in_words(server):
    for name in ("a/b.wav", "a\\b.wav", "a\nb.wav", "\x7f.wav", ""):
        answer = server.upload(name, as_wav(noise(4 * LENGTH))).json()
        assert answer["field"] == "filename"
        assert "plain file name" in answer["reason"]


def test_missing_fields_and_wrong_types_are_named(server):
    content = as_wav(noise(4 * LENGTH))
    assert "?filename=NAME" in refused(server.client.post("/predict", content=content, headers=BINARY), 422, "filename")
    refused(server.client.post("/predict?filename=a.wav", content=content), 415, "content-type")
    refused(server.client.post("/predict", files={"file": ("a.wav", content)}), 415, "content-type")
    refused(server.windows({"windows": []}, picture=True), 422, "picture")
    assert "rate" in refused(server.upload("a.npy", as_npy(noise(999))), 422, "rate")
    two = as_npy(noise(2000).reshape(2, 1000))
    refused(server.upload("a.npy", two, rate=RATE), 422, "channel")
    assert server.upload("a.npy", two, rate=RATE, channel="2").status_code == 200
    assert "/openapi.json" in server.client.get("/nothing").json()["reason"]
    assert server.client.get("/predict").status_code == 405
    assert server.client.get("/model", headers={"Host": "elsewhere.example"}).status_code == 403, (
        "a page that found us by name"
    )


@pytest.mark.parametrize("kind", ["csv", "txt", "npy", "npz", "mat", "wav", "parquet"])
def test_files_that_cannot_be_read_are_refused_in_a_sentence_without_a_path(server, kind):
    for content in (b"", b"\x00" * 50, noise(500, seed=1).tobytes(), b"one two three", as_npy(noise(500))[:300],
                    as_wav(noise(500))[:300], b"PK\3\4" + noise(99).tobytes()):  # fmt: skip
        reason = refused(server.upload(f"Monday.{kind}", content, rate=RATE), 422, "file")
        assert reason.startswith(f"Monday.{kind}: ")
    for rate in (1e300, 1.7e308, 5e-324, -1.0):
        file = io.BytesIO()
        np.savez(file, a=noise(4 * LENGTH), fs=rate)
        assert "rate" in refused(server.upload("a.npz", file.getvalue(), picture=True), 422, "file")
    bad = noise(4 * LENGTH)
    bad[7] = np.nan
    assert "sample 7 is NaN" in refused(server.upload("a.npy", as_npy(bad), rate=RATE), 422, "file")
    assert "shorter than one window" in refused(server.upload("a.npy", as_npy(noise(99)), rate=RATE), 422, "file")


@st.composite
def damaged(draw) -> tuple[str, bytes]:
    """The kind and content of a real file with some bytes changed, or cut short."""
    kind = draw(st.sampled_from(["csv", "npy", "npz", "mat", "wav", "parquet"]))
    file, samples = io.BytesIO(), noise(3 * LENGTH)
    {
        "csv": lambda: file.write(as_text(samples)), "npy": lambda: np.save(file, samples), "npz": lambda: np.savez_compressed(file, a=samples),
        "mat": lambda: savemat(file, {"a": samples, "fs": 12_000}, do_compression=True), "wav": lambda: wavfile.write(file, RATE, samples),
        "parquet": lambda: parquet.write_table(pa.table({"a": samples}), file),
    }[kind]()  # fmt: skip
    whole = file.getvalue()
    content = bytearray(whole[: draw(st.integers(1, len(whole)))])
    for _ in range(draw(st.integers(0, 5))):
        content[draw(st.integers(0, min(len(content), 400) - 1))] = draw(st.integers(0, 255))
    return kind, bytes(content)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(("wav", b"RIFF2\x0c\x00\x00WAVE\x00mt \x12\x00\x01\x00"))  # on which scipy's reader uses what it has not set
@given(damaged())
def test_damaged_files_are_never_the_servers_fault(server, given_file):
    kind, content = given_file
    assert server.upload(f"a.{kind}", content, rate=RATE, picture=True).status_code in (200, 413, 422)


def test_the_schema_promises_calibration_only_where_the_model_does(server):
    schema = server.client.get("/openapi.json").json()
    confidence = schema["components"]["schemas"]["Answer"]["properties"]["confidence"]
    assert "calibrated" not in confidence["description"]
    assert "calibrated" not in schema["info"]["description"]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # schemathesis leaves sockets of refused bodies open
def test_the_schema_says_what_the_server_does(server):
    """Requests made of the schema, right ones and wrong ones: no 500, and only what the schema announces."""
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    schema.config.update(base_url=server.url)
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    requests = 0
    for path, method, count in (
        ("/predict", "POST", 20),
        ("/model", "GET", 2),
        ("/health", "GET", 2),
        ("/metrics", "GET", 2),
    ):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                cases = schema[path][method].as_strategy(generation_mode=mode)

                @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
                @given(case=cases)
                def ask(case):
                    nonlocal requests
                    requests += 1
                    case.validate_response(case.call(), checks=checks)

                ask()
            except Exception as error:
                if type(error).__name__ != "Unsatisfiable":  # a GET without parameters cannot be asked wrongly
                    raise
    gc.collect()  # those sockets, while nobody minds
    assert requests > 35


def dribbled(connections: list[socket.socket]) -> list[bytes]:
    """A byte now and then on each of them until it is answered; the answers."""
    waiting = list(connections)
    while waiting:
        answered, _, _ = select.select(waiting, [], [], 0.1)
        waiting = [connection for connection in waiting if connection not in answered]
        for connection in waiting:
            connection.sendall(b"1")
    return [b"".join(received(connection)) for connection in connections]


def received(connection: socket.socket) -> Iterator[bytes]:
    """All that comes; a byte that met a closed door ends it with a reset."""
    with connection, contextlib.suppress(ConnectionResetError):
        while part := connection.recv(4096):
            yield part


def test_too_much_too_slow_and_too_many_are_refused_with_a_reason(tight):
    """413 before and while a body comes, 408 for one that dribbles, 429 while they hold their places."""
    declared = tight.client.post("/predict?filename=a.npy", content=b"1" * (2**23 + 1), headers=BINARY)
    assert "8388608 bytes" in refused(declared, 413, "body")
    chunked = tight.client.post("/predict?filename=a.npy", content=iter([b"1" * 2**20] * 9), headers=BINARY)
    refused(chunked, 413, "body")
    slow = []
    for _ in range(2):
        connection = socket.create_connection((tight.place.hostname, tight.place.port), timeout=20)
        connection.sendall(
            f"POST /predict?filename=a.npy HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: application/octet-stream\r\nContent-Length: 100000\r\n\r\n".encode()
        )
        slow.append(connection)
    tight.until(2)
    started = time.monotonic()
    busy = tight.upload("a.npy", as_npy(noise(1000)), rate=RATE)
    assert "busy" in refused(busy, 429, None)
    assert int(busy.headers["Retry-After"]) >= 1
    assert tight.client.get("/health").status_code == 200, "who only asks how it goes is answered"
    for answer in dribbled(slow):
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"the request's body took longer than 1.5 s" in answer
    assert time.monotonic() - started < 15
    tight.until(0)
    assert tight.upload("a.npy", as_npy(noise(1000)), rate=RATE).status_code == 200


def test_a_recording_that_takes_too_long_is_given_up_and_its_place_is_free_again(tight):
    started = time.monotonic()
    answer = tight.upload("a.npy", as_npy((40 * noise(2**23 - 200)).astype(np.int8)), rate=RATE, picture=True)
    assert "the answer took longer than 1.5 s" in refused(answer, 408, None)
    assert time.monotonic() - started < 10
    tight.until(0)
    (private,) = tight.temporary.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    assert list(private.iterdir()) == [], "uploads are gone"


def test_a_client_that_goes_away_leaves_nothing(tight):
    connection = socket.create_connection((tight.place.hostname, tight.place.port))
    connection.sendall(
        f"POST /predict?filename=a.npy HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Type: application/octet-stream\r\nContent-Length: 100000\r\n\r\n1111".encode()
    )
    tight.until(1)
    connection.close()
    tight.until(0)
    assert [list(folder.iterdir()) for folder in tight.temporary.iterdir()] == [[]]


def test_a_token_is_asked_for_everywhere_but_on_health_and_the_empty_page(tight):
    with httpx.Client(base_url=tight.url) as stranger:
        assert {path: stranger.get(path).status_code for path in ("/health", "/", "/model", "/metrics", "/openapi.json", "/x")} == {
            "/health": 200, "/": 200, "/model": 401, "/metrics": 401, "/openapi.json": 401, "/x": 401,
        }  # fmt: skip
        answer = stranger.post("/predict?filename=a.npy", content=as_npy(noise(1000)), headers=BINARY)
        assert "Authorization: Bearer TOKEN" in refused(answer, 401, "authorization")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        for wrong in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer \xe9"):
            assert stranger.get("/model", headers={"Authorization": wrong.encode("latin-1")}).status_code == 401
    assert tight.client.get("/model").json()["limits"] == {"max_bytes": 2**23, "timeout": 1.5, "concurrency": 2}
    assert TOKEN not in tight.said


def test_hostile_files_are_refused_and_leave_the_server_as_it_was(tight, tmp_path):
    """More of them in test_isolated."""
    files = hostile_files(tmp_path)
    np.savez_compressed(files["zeros.npz"], a=np.zeros(9 * 2**20))
    honest, before = savemat_bytes({"a": noise(4 * LENGTH)}), tight.memory()

    def in_time(name: str, content: bytes) -> httpx.Response:
        """The answer; a reader that starts, or a loaded machine, may take longer than a request has."""
        answers = (tight.upload(name, content, rate=RATE) for _ in range(20))
        return next(answer for answer in answers if answer.status_code != 408)

    assert in_time("a.mat", honest).status_code == 200
    for name, status in (("zeros.npz", 413), ("cells.mat", 413), ("crash.mat", 422), ("cut.parquet", 422)):
        refused(in_time(name, files[name].read_bytes()), status, "file")
    assert in_time("a.mat", honest).status_code == 200
    assert tight.memory() - before < 20 * 2**20


def savemat_bytes(variables: dict[str, object], **options: object) -> bytes:
    file = io.BytesIO()
    savemat(file, variables, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", [{}, {"do_compression": True}, {"format": "4"}])
def test_matlab_files_of_the_benchmarks_forms_are_let_through(server, kind):
    """Plain arrays as CWRU has them; a struct with structs and cells as Paderborn has them."""
    samples = noise(4 * LENGTH)
    cells = np.array([samples, "a text", np.zeros(0)], dtype=object)
    channels = np.array([("force", samples), ("vibration_1", samples)], dtype=[("Name", object), ("Data", object)])
    tree = {"Info": {"Date": "2013-07-25"}, "X": cells, "Y": channels, "Description": {}}
    deeper = {} if "format" in kind else {"N09_M07_F10_K001_1": tree, "empty": {}, "complex": samples[:9] * 1j}
    plain = {"X097_DE_time": samples[:, None], "X097RPM": 1797, "note": ["a", "note"]}
    answer = server.upload("a.mat", savemat_bytes(plain | deeper, **kind), rate=RATE, channel="X097_DE_time")
    assert (answer.status_code, answer.json().get("windows")) == (200, 4), answer.text


# Under load.


def test_many_requests_32_at_a_time_are_all_answered_and_memory_stays_flat(server):
    bodies = []
    for seed in range(4):
        samples = noise(4 * LENGTH, seed)
        bodies.append(("/predict", JSON, json.dumps({"windows": samples[:LENGTH][None].round(3).tolist()}).encode()))
        bodies.append((f"/predict?filename=a.wav&picture={not seed}", BINARY, as_wav(samples)))
    found: list[dict[tuple[int, str], int]] = [{} for _ in bodies]
    left, lock = iter(range(480)), threading.Lock()

    def ask_on(count: int) -> int:
        connection, done = http.client.HTTPConnection(server.place.hostname, server.place.port, timeout=60), 0
        while done < count:
            with lock:
                number = next(left, None)
            if number is None:
                break
            place = number % len(bodies)
            path, headers, body = bodies[place]
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            key = (answer.status, re.search(rb'"confidence":([^,]+)', content).group(1).decode())
            with lock:
                found[place][key] = found[place].get(key, 0) + 1
            done += 1
        connection.close()
        return done

    def ask_many(count: int) -> int:
        with ThreadPoolExecutor(32) as pool:
            return sum(pool.map(lambda _: ask_on(count), range(32)))

    assert ask_many(5) == 160
    before = server.memory()
    assert ask_many(480) == 320
    assert server.memory() - before < 10 * 2**20
    assert [sum(answers.values()) for answers in found] == [60] * 8
    assert all(next(iter(answers))[0] == 200 and len(answers) == 1 for answers in found), (
        "the same question, the same answer"
    )
    server.until(0)
    assert server.gauge("bearcat_requests_in_flight") == 1


def test_metrics_count_what_happened(server):
    def counts() -> dict[str, float]:
        lines = server.client.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    before = counts()
    found = server.upload("a.npy", as_npy(noise(10 * LENGTH)), rate=RATE).json()
    server.upload("a.npy", b"", rate=RATE)
    server.client.get("/no/such/path")
    after = counts()

    def more(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert more("bearcat_windows_total") == 10
    assert more(f'bearcat_recordings_total{{class="{found["class"]}"}}') == 1
    assert more(f'bearcat_decisions_total{{decision="{found["decision"]}"}}') == 1
    assert more('bearcat_requests_total{path="/predict",status="200"}') == 1
    assert more('bearcat_requests_total{path="/predict",status="422"}') == 1
    assert more('bearcat_requests_total{path="other",status="404"}') == 1, "paths that strangers make up are one"
    assert more('bearcat_request_seconds_count{path="/predict"}') == 2
    assert (
        after['bearcat_request_seconds_bucket{le="+Inf",path="/predict"}']
        == after['bearcat_request_seconds_count{path="/predict"}']
    )


# Starting.


def test_loopback_is_the_default_and_the_model_is_described(server):
    assert server.place.hostname == Address().host == "127.0.0.1"
    for line in Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        if state == "0A" and int(address.split(":")[1], 16) == server.place.port:
            assert address.startswith("0100007F:"), "listens on 127.0.0.1 alone"
            break
    else:
        pytest.fail("listens nowhere")
    described = server.client.get("/model").json()
    assert described["classes"] == ["healthy", "inner", "outer"]
    assert described["alarms"] == ["inner", "outer"]
    assert (described["length"], described["rate"], described["knows_familiar"]) == (LENGTH, RATE, True)
    assert described["made_by"]["recipe"] == "CAT*-Temperature"


def test_a_model_not_to_be_used_is_served_with_its_decision_in_sight_and_calls_nothing_ok(
    browser, models, server, tmp_path
):
    graph = onnx.load(models / "model.onnx")
    texts = {field.key: field.value for field in graph.metadata_props}
    changed = {"decision": REFUSED, "rpm": 1500.0, "preparation": json.loads(texts["preparation"]) | {"rate": RATE}}
    changed["bearing"] = {"balls": 8, "ball_diameter": 6.75, "pitch_diameter": 28.5, "contact_angle": 0.0}
    onnx.helper.set_model_props(graph, texts | {name: json.dumps(value) for name, value in changed.items()})
    onnx.save(graph, tmp_path / "model.onnx")
    assert server.client.get("/model").json()["decision"]["action"] == "use"
    with Opened(browser, server) as opened:
        opened.page.get_by_text("healthy, inner, outer").wait_for()
        assert not opened.page.is_visible("#recommendation")
    running = Server(tmp_path, tmp_path / "model.onnx")
    try:
        described = running.client.get("/model").json()["decision"]
        assert {name: described[name] for name in REFUSED} == json.loads(json.dumps(REFUSED))
        assert "do not use" in described["sentence"]
        assert described["sentence"] in running.logged()
        window = running.windows({"windows": noise(LENGTH)[None].tolist()}).json()
        for answer in (running.upload("a.wav", as_wav(noise(3000))).json(), window):
            assert answer["decision"] != "ok"
            assert any("model" in reason for reason in answer["reasons"])
        signal = Simulated(seconds=2.0, rate=RATE, severities=(2.0,)).recording("N15_M07_F10", "outer-1").signal
        answer = running.upload("a.wav", as_wav(signal)).json()
        assert answer["physics"]["state"] == "outer race", "by the speed and the bearing of the model"
        assert running.upload("a.npy", as_npy(signal)).json()["physics"]["state"] == "outer race", "and by its rate"
        with Opened(browser, running) as opened:
            opened.page.wait_for_selector("#recommendation", state="visible")
            assert described["sentence"] in opened.text("#recommendation")
            opened.drop("a.wav", as_wav(noise(3000)))
            opened.page.wait_for_selector("#decision")
            assert opened.page.get_attribute("#decision", "class") in ("decision check", "decision alarm")
            assert opened.errors == []
    finally:
        assert running.stop() == 0


def test_the_command_line_and_the_docs_say_the_limits_there_are():
    given_ = {name: parameter.default for name, parameter in inspect.signature(cli.serve).parameters.items()}
    assert Limits() == Limits(given_["max_bytes"], given_["timeout"], given_["concurrency"])
    assert Address() == Address(given_["host"], given_["port"])
    docs = (Path(__file__).parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")
    limits = Limits()
    for line in (
        f"| `--max-bytes` | {limits.max_bytes // 2**20} MiB |",
        f"| `--timeout` | {limits.timeout:g} s |",
        f"| `--concurrency` | {limits.concurrency} |",
    ):
        assert line in docs
    for name in PredictQuery.model_fields:
        assert name in docs


def test_every_answer_carries_the_headers_that_keep_browsers_careful(server):
    for path in ("/", "/health", "/nothing", "/openapi.json"):
        headers = server.client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "server" not in headers
        assert headers["Cache-Control"] == "no-store"


def test_commands_that_cannot_work_get_a_sentence(models, tmp_path, command):
    for limits in ({"max_bytes": 1}, {"timeout": 0.0}, {"timeout": float("nan")}, {"concurrency": 0}):
        with pytest.raises(InputError, match=next(iter(limits)).replace("_", "-")):
            Limits(**limits)
    with pytest.raises(InputError, match="there is no such file"):
        serve(tmp_path / "no.onnx", Address(), Limits())
    with pytest.raises(InputError, match="--token"):
        serve(models / "model.onnx", Address(), Limits(), tokens=["good", " "])
    with pytest.raises(InputError, match="--port"):
        serve(models / "model.onnx", Address(port=70_000), Limits())
    with pytest.raises(InputError, match="no class 'iner'; did you mean 'inner'"):
        serve(models / "model.onnx", Address(port=0), Limits(), alarms=["iner"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, _, said = command("serve", models / "model.onnx", "--port", taken.getsockname()[1])
    assert status == 2
    assert "cannot be listened on (Address already in use)" in said
    assert [
        Address(host).loopback for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.1.2.3", "plant.example")
    ] == [True] * 3 + [False] * 3


def test_without_fastapi_a_sentence_says_what_to_install(models, command, monkeypatch):
    for name in ("bearcat.deploy.serve.app", "bearcat.deploy.serve"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    status, _, said = command("serve", models / "model.onnx", "--port", 0)
    assert status == 2
    assert "pip install 'bearcat[serve]'" in said


# The page.


class Opened(opened.Opened):
    """The server's page."""

    def __init__(self, browser, server: Server, path: str = "/", **options) -> None:
        super().__init__(browser, f"{server.url}{path}", **options)

    def drop(self, name: str, content: bytes, **others: bytes) -> None:
        """As a file manager would."""
        self.page.evaluate(
            """(files) => {
                const carried = new DataTransfer();
                for (const [name, bytes] of files) carried.items.add(new File([new Uint8Array(bytes)], name));
                for (const kind of ["dragenter", "dragover", "drop"])
                    document.getElementById("drop").dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
            }""",
            [[each, list(bytes_)] for each, bytes_ in {name: content, **others}.items()],
        )

    def __exit__(self, *_) -> None:
        self.page.evaluate("localStorage.clear()")  # pages share a window
        super().__exit__()

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()


def simulated(label: str = "outer-3") -> bytes:
    recording = Simulated(seconds=1.5).recording("N15_M07_F10", label)
    return as_wav(recording.signal, int(recording.rate))


def test_a_recording_dropped_on_the_page_is_diagnosed_and_drawn(browser, server):
    content = simulated()
    expected = server.upload("pump 3.wav", content, rpm=1500, bearing="6203").json()
    with Opened(browser, server) as opened:
        page = opened.page
        page.wait_for_selector('#bearings option[value="6203"]', state="attached")
        page.fill('[name="rpm"]', "1500")
        page.fill('[name="bearing"]', "6203")
        opened.drop("pump 3.wav", content)
        page.wait_for_selector("#class")
        assert opened.text("#decision strong") == expected["decision"]
        assert page.locator("#reasons li").count() == len(expected["reasons"])
        assert opened.text("#class") == expected["class"]
        sure = expected["confidence"]
        assert ("> 99.9 %" if 0.9995 < sure < 1 else f"{100 * sure:.1f} %") in opened.text("#sure")
        assert str(expected["windows"]) in opened.text("#sure")
        assert opened.text("#familiar").startswith("Familiar" if expected["familiar"] else "Unfamiliar")
        assert page.locator("#alternatives li").count() == len(expected["probabilities"])
        names = page.locator("#alternatives .label").all_inner_texts()
        assert names == sorted(expected["probabilities"], key=expected["probabilities"].get, reverse=True)
        assert expected["physics"]["state"] in opened.text("#physics")
        assert expected["line"] in opened.text("#line")
        places = [
            page.locator(name).bounding_box()["y"] for name in ("#decision", "#class", ".plot >> nth=0", "#physics")
        ]
        assert places == sorted(places), "the decision comes first"
        assert page.locator(".plot svg").count() == 5
        assert page.locator(".plot path.curve").count() == 3
        bars = page.locator(".plot").nth(2).locator("rect.fill").count()
        assert bars == expected["windows"], "a bar for each window"
        rows = page.locator("table tbody tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == ["shaft", "FTF,", "BPFO,", "BPFI,", "BSF,"]
        assert "76.3" in rows[2]
        assert page.locator(".plot .rule").count() == 10
        assert "resampled" in opened.text(".notes")
        assert "pump 3.wav" in opened.text("#status")
        page.fill('[name="bearing"]', "")  # asked again without it, once the field is left
        page.press('[name="bearing"]', "Tab")
        page.locator(".plot .rule").nth(1).wait_for(state="detached")
        assert page.locator(".plot .rule").count() == 1
        assert opened.errors == []
        assert {urlsplit(address).netloc for address in opened.requests if not address.startswith("data:")} == {
            server.place.netloc
        }


def test_a_plot_is_read_by_the_arrow_keys_while_a_field_still_has_its_change_to_report(browser, server):
    """The field filled before the drop reports it when the plot takes the focus; the plot must outlive that."""
    with Opened(browser, server) as opened:
        page = opened.page
        page.fill('[name="rpm"]', "1500")
        opened.drop("a.wav", as_wav(noise(20 * LENGTH)))
        page.wait_for_selector("#class")
        assert page.evaluate("document.activeElement.name") == "rpm"
        asked = sum("/predict" in address for address in opened.requests)
        box = page.locator(".plot").nth(4)  # the spectrum
        before = box.element_handle()
        box.press("ArrowRight")
        box.locator(".readout", has_text="dB").wait_for(timeout=10_000)
        assert page.evaluate("shown => shown.isConnected && shown === document.activeElement", before)
        page.fill('[name="rpm"]', "1600")  # this is another question
        page.press('[name="rpm"]', "Tab")
        page.locator(".for-programs pre", has_text="rpm=1600").first.wait_for(state="attached")
        assert sum("/predict" in address for address in opened.requests) == asked + 1, "the same was not asked twice"


def test_errors_are_shown_on_the_page_beside_the_field(browser, server):
    with Opened(browser, server) as opened:
        page = opened.page
        opened.drop("a.npy", as_npy(noise(10 * LENGTH)))
        page.wait_for_selector('[name="rate"][aria-invalid="true"]')
        assert "sampling rate" in opened.text("#status")
        page.fill('[name="rate"]', str(RATE))
        page.press('[name="rate"]', "Tab")
        page.wait_for_selector("#class")
        assert page.locator('[aria-invalid="true"]').count() == 0
        opened.drop("a.exe", b"MZ")
        page.get_by_text("unknown format").wait_for()
        assert len(opened.errors) == 2, "the two answers of 422 that the browser itself tells of"


def test_names_of_files_are_text_and_never_run(browser, server):
    attack = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'<!--script>.wav"
    with Opened(browser, server) as opened:
        opened.drop(attack, as_wav(noise(4 * LENGTH)))
        opened.page.wait_for_selector("#class")
        assert attack in opened.text("main")
        assert "taken" not in opened.page.title()
        assert opened.page.locator("img").count() == 0
        assert opened.errors == []


def test_the_command_to_copy_is_one_command_whatever_the_file_is_called(browser, server, tmp_path):
    with Opened(browser, server) as opened:
        for name, read in {
            "';touch taken;'$(touch taken)`touch taken`.wav": None,
            "-K it's.wav": "./-K it's.wav",
            "pump 3.wav": None,
        }.items():
            opened.drop(name, as_wav(noise(4 * LENGTH)))
            opened.page.locator("#status", has_text=f"{name}: ").wait_for()
            command_ = opened.page.locator(".for-programs pre").first.text_content()
            shell = subprocess.run(
                ["sh", "-c", f"curl() {{ printf '%s\\0' \"$@\"; }}\n{command_}"], cwd=tmp_path, capture_output=True, text=True
            )  # fmt: skip
            words = shell.stdout.split("\0")
            assert words[:4] == ["--data-binary", f"@{read or name}", "-H", "Content-Type: application/octet-stream"]
            assert parse_qs(urlsplit(words[4]).query)["filename"] == [name]
            assert words[5:] == [""]
            assert shell.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_page_fits_any_screen_light_and_dark(browser, server):
    with Opened(browser, server) as opened:
        page = opened.page
        page.fill('[name="rpm"]', "1500")
        page.fill('[name="bearing"]', "6203")
        opened.drop("a.wav", simulated())
        page.wait_for_selector("#class")
        for width, scheme in ((1280, "light"), (768, "dark"), (360, "light"), (360, "dark")):
            page.set_viewport_size({"width": width, "height": 780})
            page.emulate_media(color_scheme=scheme)
            deadline = time.monotonic() + 30  # wait_for_function polls by eval, which the page forbids
            while float(page.locator(".plot svg").first.get_attribute("viewBox").split(" ")[2]) >= width:
                assert time.monotonic() < deadline, "the pictures keep their width"
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 150) == (scheme == "dark")
            if folder := os.environ.get("BEARCAT_SCREENSHOTS"):  # to look at
                page.screenshot(path=Path(folder) / f"serve-{width}-{scheme}.png", full_page=True)
        nameless = page.evaluate(
            "[...document.querySelectorAll('input, select, button')].filter(element => !element.labels.length && !element.ariaLabel).length"
        )
        doubled = page.evaluate(
            "(ids => ids.length - new Set(ids).size)([...document.querySelectorAll('[id]')].map(element => element.id))"
        )
        unnamed = page.evaluate(
            "[...document.querySelectorAll('[role=img]')].filter(element => !element.ariaLabel).length"
        )
        assert (nameless, doubled, unnamed) == (0, 0, 0), "who cannot see it can use it too"
        assert opened.errors == []


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Iterator[Server]:
    """Without a model."""
    running = Server(tmp_path_factory.mktemp("alone"))
    yield running
    assert running.stop() == 0
    assert running.logged() == ""


def machine(label: str, seconds: float = 2.0) -> bytes:
    """A recording of a simulated machine at 1500 rpm with a 6203."""
    return as_wav(Simulated(seconds=seconds, rate=RATE, severities=(2.0,)).recording("N15_M07_F10", label).signal)


def test_without_a_model_fault_lines_and_the_general_model_answer(alone, tmp_path, command):
    (tmp_path / "a.wav").write_bytes(machine("outer-1"))
    words = ("diagnose", tmp_path / "a.wav", "--rpm", 1500, "--bearing", "6203", "--format", "json")
    (expected,) = json.loads(command(*words)[1])["recordings"]
    found = alone.upload("a.wav", machine("outer-1"), rpm=1500, bearing="6203").json()
    assert found["state"] == "outer race"
    for name in ("decision", "state", "class", "reasons", "line", "windows", "familiar", "network"):
        assert found[name] == expected[name], name
    assert found["confidence"] == pytest.approx(expected["confidence"], abs=1e-6)
    assert found["general"] is not None
    described = alone.client.get("/model").json()
    assert described["decision"] is None
    assert described["classes"][0] == "healthy"
    unknown = alone.upload("a.wav", machine("outer-1"), rpm=1500, picture=True).json()
    assert unknown["decision"] == "check", "never ok where the bearing is not known"
    assert "bearing" in unknown["reasons"][0]
    assert unknown["picture"]["spectrum"]["values"]
    assert unknown["picture"]["timeline"] is None
    for answer, field, status in (
        (alone.windows({"windows": [[0.0] * LENGTH]}), "content-type", 415),
        (alone.upload("a.wav", machine("outer-1"), by="window"), "by", 422),
        (alone.upload("a.npy", as_npy(noise(9000)), bearing="6203"), "rate", 422),
        (alone.upload("a.wav", machine("outer-1"), view="no"), "view", 422),
    ):
        assert (answer.status_code, answer.json()["field"]) == (status, field)
    with pytest.raises(InputError, match="--alarm"):
        serve(None, Address(port=0), Limits(), alarms=["inner"])


def test_a_view_is_drawn_by_the_server(alone, server):
    for each in (alone, server):
        found = each.upload("a.wav", machine("outer-1"), rpm=1500, bearing="6203", view="kurtogram").json()["view"]
        assert "a.wav" in found["title"]
        assert "kHz" in found["caption"]
        kind, content = found["image"].split(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(content)[:4] == b"\x89PNG"
    assert get_args(get_args(PredictQuery.model_fields["view"].annotation)[0]) == tuple(VIEWS)
    assert alone.upload("a.wav", as_wav(np.zeros(9000, np.float32)), view="spectrum").status_code == 422


def test_several_recordings_are_listed_worst_first_and_each_opens_its_evidence(browser, alone):
    with Opened(browser, alone) as opened:
        page = opened.page
        page.fill('[name="rpm"]', "1500")
        page.fill('[name="bearing"]', "6203")
        opened.drop("good.wav", machine("healthy"), **{"bad.wav": machine("outer-1"), "no.wav": b"RIFF"})
        page.wait_for_selector("#class")
        rows = page.locator("#list button")
        assert [row.split("\n")[:2] for row in rows.all_inner_texts()] == [
            ["alarm", "bad.wav"],
            ["check", "no.wav"],
            ["ok", "good.wav"],
        ]
        assert "1 alarm, 1 check, 1 ok" in opened.text("#status")
        assert opened.text("#class") == "outer race", "the worst is open"
        assert rows.nth(0).get_attribute("aria-current") is not None
        rows.nth(2).focus()
        page.keyboard.press("Enter")
        assert opened.text("#class") == "healthy"
        assert page.locator(".plot svg").count() == 4, "there are no windows of a model"
        assert page.evaluate("document.activeElement.textContent").startswith("ok")
        rows.nth(1).click()
        assert opened.text("#decision strong") == "check"
        assert "no.wav" in opened.text("#decision")
        rows.nth(0).click()
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 780})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.fill('[name="bearing"]', "")
        page.press('[name="bearing"]', "Tab")
        page.locator("#status", has_text="3 check").wait_for()
        assert len(opened.errors) == 2, "the two answers of 422 that the browser itself tells of"


def test_speed_and_bearing_are_remembered_and_forgotten(browser, alone):
    with Opened(browser, alone) as opened:
        page = opened.page
        page.fill('[name="rpm"]', "1480")
        page.fill('[name="bearing"]', "6205")
        page.fill('[name="rate"]', "1000")
        page.press('[name="rate"]', "Tab")
        page.reload()
        fields = [page.input_value(f'[name="{name}"]') for name in ("rpm", "bearing", "rate")]
        assert fields == ["1480", "6205", ""], "a rate is a file's own"
        page.fill('[name="rpm"]', "")
        page.press('[name="rpm"]', "Tab")
        page.reload()
        assert page.input_value('[name="rpm"]') == ""


def test_the_page_of_a_recording_is_saved_as_one_file_that_runs_nothing(browser, alone, tmp_path):
    attack = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'<!--.wav"
    with Opened(browser, alone, viewport={"width": 1280, "height": 900}) as dropped:
        page = dropped.page
        page.fill('[name="rpm"]', "1500")
        page.fill('[name="bearing"]', "6203")
        dropped.drop(attack, machine("outer-1"))
        page.wait_for_selector("#class")
        page.select_option("#view", "envelope")
        page.wait_for_selector("#drawn img")
        with page.expect_download() as download:
            page.focus("#save")
            page.keyboard.press("Enter")
        download.value.save_as(tmp_path / "saved.html")
        assert dropped.errors == []
    text = (tmp_path / "saved.html").read_text(encoding="utf-8")
    assert "<script" not in text
    with opened.Opened(browser, (tmp_path / "saved.html").as_uri()) as saved:
        page = saved.page
        assert page.title() != "taken"
        assert attack in page.locator("h1").inner_text()
        assert page.locator("#decision strong").inner_text() == "alarm"
        assert "rpm 1500" in page.locator("header").inner_text()
        assert page.locator(".plot svg").count() == 4
        assert page.evaluate("document.querySelector('#drawn img').naturalWidth") > 500
        assert page.locator("button, select, input").count() == 0
        assert [address for address in saved.requests if not address.startswith(("file:", "data:"))] == []
        assert saved.errors == []


def test_the_token_is_given_on_the_page(browser, tight):
    with Opened(browser, tight) as opened:
        page = opened.page
        page.wait_for_selector("#token")
        assert "wants a token" in opened.text("#status")
        page.fill("#token", "wrong")
        page.press("#token", "Tab")
        page.get_by_text("Authorization: Bearer").wait_for()
        page.fill("#token", TOKEN)
        page.press("#token", "Tab")
        page.get_by_text("healthy, inner, outer").wait_for()
        assert opened.text("#status") == ""


def test_the_page_is_one_file_that_asks_nobody_and_only_its_own_script_runs():
    text = (Path(inspect.getfile(page_policy)).parent / "page.html").read_text(encoding="utf-8")
    policy = page_policy(text)
    assert not re.search(r"""(src|href)=["'](?!/|data:|#)""", text)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "@import" not in text
    assert len(text) < 60_000
    assert re.search(r"script-src 'sha256-[^' ]+'$", policy)
    assert re.search(r"style-src 'sha256-[^' ]+';", policy)


def test_a_model_that_needs_a_speed_takes_it_from_the_address():
    model = made_model("envelope-orders:last=20:number=80", 512, rate=8000.0)
    served = Served(model, AlarmRule.of(model.classes))
    body = json.dumps({"windows": np.random.default_rng(0).standard_normal((3, 512)).tolist()}).encode()
    with pytest.raises(InputError, match="speed"):
        served.answer_windows(body, PredictQuery(), Deadline(float("inf")))
    first, second = (served.answer_windows(body, PredictQuery(rpm=rpm), Deadline(float("inf"))) for rpm in (900, 1300))
    assert first.probabilities != second.probabilities
