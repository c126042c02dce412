"""Diagnoses over HTTP: the application in this process, and the server as `bearcat serve` starts it in its own."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from scipy.io import wavfile
from starlette.testclient import TestClient

from bearcat.data.simulate import Simulated
from bearcat.deploy.model import export_onnx
from bearcat.deploy.opened import open_model
from bearcat.deploy.serve import make_app
from bearcat.settings import ServeRequest
from tests.test_artefact import familiar_with, made_model, raw_windows, save_model

RATE, LENGTH = 12_000, 256
TORCHLESS = "import sys; sys.modules['torch'] = None; from bearcat.cli import main; main()"
BINARY = {"Content-Type": "application/octet-stream"}


class Server:
    """`bearcat serve` in a process of its own, with a temporary folder of its own and with torch out of reach."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.temporary, self.log = folder / "temporary", folder / "log"
        self.temporary.mkdir()
        call = [sys.executable, "-c", TORCHLESS, "serve", *map(str, words), "--port", "0"]
        environment = os.environ | {"TMPDIR": str(self.temporary)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        self.url = re.search(r"http://\S+", self.process.stdout.readline()).group()
        self.place = urlsplit(self.url)
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def upload(self, name: str, content: bytes, **parameters: object) -> httpx.Response:
        return upload(self.client, name, content, **parameters)

    def slow_request(self, size: int, sent: bytes = b"") -> socket.socket:
        """A connection whose request has a head, but not all of its body."""
        connection = socket.create_connection((self.place.hostname, self.place.port), timeout=60)
        head = (
            "POST /predict?filename=a.wav HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n"
        )
        connection.sendall(head.encode() + sent)
        return connection

    def stop(self, ask: bool = True) -> list[str]:
        """Ends it; what it logged."""
        if ask:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0
        self.client.close()
        self.process.stdout.close()
        assert list(self.temporary.iterdir()) == [], "nothing is left behind"
        return self.log.read_text().splitlines()


def upload(client: httpx.Client, name: str, content: bytes, **parameters: object) -> httpx.Response:
    return client.post("/predict", params={"filename": name, **parameters}, content=content, headers=BINARY)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    model = made_model(recipe="CAT*-Temperature", task="a → b")
    model = familiar_with(model, raw_windows(model, 600))
    save_model(folder / "model", model)
    export_onnx(model, folder / "model.onnx")
    return folder


def client_of(path: Path | None, **limits: float) -> TestClient:
    """Of the application of a model, or without one, in this process."""
    model = None if path is None else open_model(path)
    return TestClient(make_app(model, ServeRequest.of(**limits)), base_url="http://localhost")


@pytest.fixture(scope="module")
def client(models) -> Iterator[TestClient]:
    with client_of(models / "model.onnx") as opened:
        yield opened


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


def machine(label: str, seconds: float = 2.0) -> bytes:
    """A recording of a simulated machine at 1500 rpm with a 6203."""
    return as_wav(Simulated(seconds=seconds, rate=RATE, severities=(2.0,)).recording("N15_M07_F10", label).signal)


def refused(answer: httpx.Response, status: int, field: str | None) -> str:
    found = answer.json()
    assert (answer.status_code, found["field"]) == (status, field), found
    assert found["reason"]
    assert "/" not in found["reason"].replace("application/", ""), "no path is shown"
    return found["reason"]


def test_a_server_without_torch_answers_as_a_folder_does_and_finishes_what_it_accepted(models, tmp_path):
    content, running = as_wav(noise(10 * LENGTH)), Server(tmp_path, models / "model.onnx")
    with client_of(models / "model") as other:
        assert running.client.get("/model").json() == other.get("/model").json()
        expected = upload(other, "a.wav", content).json()
    slow = running.slow_request(len(content), content[:100])
    time.sleep(0.5)
    running.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    slow.sendall(content[100:])
    with slow, slow.makefile("rb") as file:
        head, body = file.readline(), file.read().rpartition(b"\r\n")[2]
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(body)["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    assert running.stop(ask=False) == []


def test_what_is_too_slow_or_too_many_is_refused(models, tmp_path):
    running = Server(tmp_path, models / "model.onnx", "--timeout", 2, "--concurrency", 2)
    for _ in range(10):  # a loaded machine may give these up before it sees the next
        slow = [running.slow_request(100_000) for _ in range(2)]
        time.sleep(0.2)
        if (status := httpx.get(f"{running.url}/model").status_code) == 503:
            break
    assert status == 503
    for connection in slow:
        with connection, connection.makefile("rb") as file:
            answer = file.read()
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"longer than 2 s" in answer
    assert set(running.stop()) <= {"WARNING:  Exceeded concurrency limit."}


def test_what_is_too_much_is_refused(models, monkeypatch):
    packed = io.BytesIO()
    np.savez_compressed(packed, a=np.zeros(2**20))
    monkeypatch.setattr("bearcat.data.formats.MOST_BYTES", 2**20)
    with client_of(models / "model.onnx", max_bytes=2**14) as opened:
        assert "16384 bytes" in refused(upload(opened, "a.npy", iter([b"1" * 2**10] * 17)), 413, "body")
        assert "MiB" in refused(upload(opened, "a.npz", packed.getvalue(), rate=RATE), 422, "file")


def test_where_uploads_cannot_be_kept_it_says_so(client, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert "(No such file or directory)" in refused(upload(client, "a.wav", as_wav(noise(999))), 507, None)


def test_without_a_model_fault_lines_and_the_general_model_answer():
    content = machine("outer-1")
    with client_of(None) as alone:
        found = upload(alone, "a.wav", content, rpm=1500, bearing="6203", picture=True).json()
        described = alone.get("/model").json()
        unknown = upload(alone, "a.wav", content, rpm=1500).json()
    assert found["picture"].startswith("data:image/png;base64,")
    assert (found["decision"], found["state"], found["network"]) == ("alarm", "outer race", None)
    assert (described["decision"], described["classes"][0]) == (None, "healthy")
    assert unknown["findings"][0]["kind"] == "lines of unknown bearing", "never ok where the bearing is not known"


def test_many_requests_at_once_get_the_answers_they_get_alone(client):
    asked = [(f"{seed}.wav", as_wav(noise(4 * LENGTH, seed))) for seed in range(4)] * 12
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda each: upload(client, *each).json(), asked))
    assert answers == [upload(client, *each).json() for each in asked[:4]] * 12


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"rate": -1}, "rate"), ({"rate": "nan"}, "rate"), ({"by": "day"}, "by"), ({"jobs": 9}, "jobs"),
        ({"picture": "big"}, "picture"), ({"channel": "left"}, "channel"), ({"bearing": "balls=8"}, "bearing"),
        ({"rpm": 0}, "rpm"), ({"rpm": 1e-300, "bearing": "6205"}, "rpm"), ({"trust_speed": "often"}, "trust_speed"),
        ({"bearing": "6" * 200}, "bearing"), ({"bearing": "balls=8,ball=nan,pitch=30", "rpm": 1}, "bearing"),
        *(({"filename": name}, "filename") for name in ("a.exe", "", "../../etc/passwd.wav", "a\r\nb.wav", "a" * 300 + ".wav")),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit_are_refused_by_their_name(client, parameters, field):
    found = upload(client, **{"name": "a.wav", "content": as_wav(noise(4 * LENGTH))} | parameters)
    assert (found.status_code, found.json()["field"]) == (422, field)


def test_missing_fields_wrong_types_and_unreadable_files_are_named(client):
    content, two = as_wav(noise(4 * LENGTH)), as_npy(noise(2000).reshape(2, 1000))
    refused(client.post("/predict", content=content, headers=BINARY), 422, "filename")
    refused(client.post("/predict?filename=a.wav", files={"file": ("a.wav", content)}), 415, "content-type")
    refused(upload(client, "a.npy", as_npy(noise(999))), 422, "rate")
    refused(upload(client, "a.npy", two, rate=RATE), 422, "channel")
    assert upload(client, "a.npy", two, rate=RATE, channel="2").status_code == 200
    for kind in ("csv", "npy", "npz", "mat", "wav"):
        for damaged in (b"", as_npy(noise(500))[:300]):
            reason = refused(upload(client, f"Monday.{kind}", damaged, rate=RATE), 422, "file")
            assert reason.startswith(f"Monday.{kind}: ")
    assert "shorter than one window" in refused(upload(client, "a.npy", as_npy(noise(99)), rate=RATE), 422, "file")


def test_loopback_is_the_default_and_foreign_names_are_kept_out(client):
    for host, status in (("elsewhere.example", 400), ("localhost:80", 200), ("[::1]:80", 200), ("127.0.0.1:8000", 200)):
        assert client.get("/model", headers={"Host": host}).status_code == status
    for address, status in (("127.0.0.2", 400), ("LOCALHOST", 400), ("0.0.0.0", 200)):
        opened = client_of(None, host=address)
        assert opened.get("/model", headers={"Host": "elsewhere.example"}).status_code == status
        assert opened.get("/model", headers={"Host": address}).status_code == 200


def test_commands_that_cannot_work_get_a_sentence(models, tmp_path, command, monkeypatch):
    def refused(sentence: str, *words: object) -> None:
        status, _, said = command("serve", *words)
        assert (status, sentence in said) == (2, True)

    refused("no.onnx", tmp_path / "no.onnx")
    refused("--alarm", "--alarm", "inner", "--port", 0)
    refused("no class 'iner'; did you mean 'inner'", models / "model.onnx", "--alarm", "iner", "--port", 0)
    for option, value in (("--max-bytes", 1), ("--timeout", "nan"), ("--concurrency", 0), ("--port", 70_000)):
        refused(option, option, value)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused("cannot listen (Address already in use", "--port", taken.getsockname()[1])
    with monkeypatch.context() as patch:
        patch.setenv("BEARCAT_TOKEN", "of an earlier version")
        refused("BEARCAT_TOKEN")
    monkeypatch.delitem(sys.modules, "bearcat.deploy.serve")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    refused("pip install 'bearcat[serve]'")


def test_the_page_is_one_file_that_asks_nobody(client):
    text = client.get("/").text
    assert "default-src 'none'" in text
    assert not re.search("""(src|href)=["'](?!/|data:|#)|https?://|@import|innerHTML""", text)
