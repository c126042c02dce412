"""Diagnoses over HTTP: the server as `bearcat serve` starts it, in its own process."""

from __future__ import annotations

import base64
import inspect
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import onnx
import pytest
from scipy.io import wavfile

from bearcat.data.simulate import Simulated
from bearcat.deploy.model import export_onnx
from bearcat.deploy.serve import is_loopback, page_policy, serve
from bearcat.errors import InputError
from bearcat.requests import ServeRequest
from tests import commands
from tests.test_artefact import REFUSED, familiar_with, made_model, raw_windows, save_model

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
BINARY = {"Content-Type": "application/octet-stream"}


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

    def slow_request(self, size: int, sent: bytes = b"") -> socket.socket:
        """A connection whose request has a head, but not all of its body."""
        connection = socket.create_connection((self.place.hostname, self.place.port), timeout=60)
        head = (
            "POST /predict?filename=a.wav HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n"
        )
        connection.sendall(head.encode() + sent)
        return connection

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
    """Of the same file, with little patience."""
    limits = ("--max-bytes", 2**23, "--timeout", 2, "--concurrency", 2)
    running = Server(tmp_path_factory.mktemp("tight"), models / "model.onnx", *limits)
    yield running
    assert running.stop() == 0
    assert set(running.logged().splitlines()) <= {"WARNING:  Exceeded concurrency limit."}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Iterator[Server]:
    """Without a model."""
    running = Server(tmp_path_factory.mktemp("alone"))
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


def machine(label: str, seconds: float = 2.0) -> bytes:
    """A recording of a simulated machine at 1500 rpm with a 6203."""
    return as_wav(Simulated(seconds=seconds, rate=RATE, severities=(2.0,)).recording("N15_M07_F10", label).signal)


def refused(answer: httpx.Response, status: int, field: str | None) -> str:
    found = answer.json()
    assert (answer.status_code, found["field"]) == (status, field), found
    assert found["reason"]
    assert "/" not in found["reason"].replace("application/", ""), "no path is shown"
    return found["reason"]


# Answers.


def test_a_model_folder_gives_the_same_answers_and_sigterm_finishes_what_was_accepted(models, server, tmp_path):
    running = Server(tmp_path, models / "model")
    described, other = (each.client.get("/model").json() for each in (running, server))
    assert described == other
    content = as_wav(noise(10 * LENGTH))
    slow = running.slow_request(len(content), content[:100])
    time.sleep(0.5)
    running.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    slow.sendall(content[100:])
    with slow, slow.makefile("rb") as file:
        head, body = file.readline(), file.read().rpartition(b"\r\n")[2]
    assert head.startswith(b"HTTP/1.1 200")
    expected = server.upload("a.wav", content).json()
    assert json.loads(body)["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    assert running.stop(ask=False) == 0
    assert running.logged() == ""
    assert list(running.temporary.iterdir()) == []


def test_without_a_model_fault_lines_and_the_general_model_answer(alone, tmp_path, command):
    (tmp_path / "a.wav").write_bytes(machine("outer-1"))
    words = ("diagnose", tmp_path / "a.wav", "--rpm", 1500, "--bearing", "6203", "--format", "json")
    (expected,) = json.loads(command(*words)[1])["recordings"]
    found = alone.upload("a.wav", machine("outer-1"), rpm=1500, bearing="6203", picture=True).json()
    assert found["state"] == "outer race"
    kind, content = found["picture"].split(",")
    assert (kind, base64.b64decode(content)[:4]) == ("data:image/png;base64", b"\x89PNG")
    for name in ("decision", "state", "class", "reasons", "line", "windows", "familiar", "network"):
        assert found[name] == expected[name], name
    assert found["confidence"] == pytest.approx(expected["confidence"], abs=1e-6)
    described = alone.client.get("/model").json()
    assert (described["decision"], described["classes"][0]) == (None, "healthy")
    unknown = alone.upload("a.wav", machine("outer-1"), rpm=1500).json()
    assert unknown["decision"] == "alarm", "never ok where the bearing is not known"
    assert unknown["findings"][0]["kind"] == "lines of unknown bearing"
    for answer, field, status in (
        (alone.upload("a.wav", machine("outer-1"), by="window"), "by", 422),
        (alone.upload("a.npy", as_npy(noise(9000)), bearing="6203"), "rate", 422),
    ):
        assert (answer.status_code, answer.json()["field"]) == (status, field)


def test_a_model_not_to_be_used_says_so_and_calls_nothing_ok(models, tmp_path):
    graph = onnx.load(models / "model.onnx")
    texts = {field.key: field.value for field in graph.metadata_props}
    onnx.helper.set_model_props(graph, texts | {"decision": json.dumps(REFUSED)})
    onnx.save(graph, tmp_path / "model.onnx")
    running = Server(tmp_path, tmp_path / "model.onnx")
    assert running.client.get("/model").json()["decision"]["sentence"] in running.logged()
    assert running.upload("a.wav", as_wav(noise(3000))).json()["decision"] != "ok"
    assert running.stop() == 0


def test_many_requests_at_once_get_the_answers_they_get_alone(server):
    asked = [(f"{seed}.wav", as_wav(noise(4 * LENGTH, seed))) for seed in range(4)]
    expected = [server.upload(*each).json() for each in asked]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: server.upload(*asked[number % 4]).json(), range(48)))
    assert answers == expected * 12


# What is refused, and how.


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"rate": -1}, "rate"), ({"rate": "nan"}, "rate"), ({"by": "day"}, "by"), ({"colour": "red"}, "colour"),
        ({"picture": "big"}, "picture"), ({"channel": "left"}, "channel"), ({"bearing": "balls=8"}, "bearing"),
        ({"view": "kurtogram"}, "view"), ({"rpm": 0}, "rpm"), ({"rpm": 1e-300, "bearing": "6205"}, "rpm"),
        ({"bearing": "6" * 200}, "bearing"), ({"bearing": "balls=8,ball=nan,pitch=30", "rpm": 1}, "bearing"),
        ({"filename": "a.exe"}, "filename"), ({"filename": ""}, "filename"), ({"filename": "../../etc/passwd.wav"}, "filename"),
        ({"filename": "a\r\nb.wav"}, "filename"), ({"filename": "a" * 300 + ".wav"}, "filename"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit_are_refused_by_their_name(server, parameters, field):
    found = server.upload(**{"name": "a.wav", "content": as_wav(noise(4 * LENGTH))} | parameters)
    assert (found.status_code, found.json()["field"]) == (422, field)


def test_missing_fields_wrong_types_and_unreadable_files_are_named(server):
    content = as_wav(noise(4 * LENGTH))
    refused(server.client.post("/predict", content=content, headers=BINARY), 422, "filename")
    refused(server.client.post("/predict?filename=a.wav", content=content), 415, "content-type")
    refused(server.client.post("/predict?filename=a.wav", files={"file": ("a.wav", content)}), 415, "content-type")
    assert "rate" in refused(server.upload("a.npy", as_npy(noise(999))), 422, "rate")
    two = as_npy(noise(2000).reshape(2, 1000))
    refused(server.upload("a.npy", two, rate=RATE), 422, "channel")
    assert server.upload("a.npy", two, rate=RATE, channel="2").status_code == 200
    assert server.client.get("/nothing").status_code == 404
    assert server.client.get("/predict").status_code == 405
    for kind in ("csv", "npy", "npz", "mat", "wav"):
        for damaged in (b"", b"\x00" * 50, as_npy(noise(500))[:300], content[:300]):
            reason = refused(server.upload(f"Monday.{kind}", damaged, rate=RATE), 422, "file")
            assert reason.startswith(f"Monday.{kind}: ")
    bad = noise(4 * LENGTH)
    bad[7] = np.nan
    assert "the first at sample 7" in refused(server.upload("a.npy", as_npy(bad), rate=RATE), 422, "file")
    assert "shorter than one window" in refused(server.upload("a.npy", as_npy(noise(99)), rate=RATE), 422, "file")


def test_too_much_too_slow_and_too_many_are_refused_with_a_reason(tight):
    """413 before and while a body comes, 408 for one that does not, 503 while such bodies hold all places."""
    declared = tight.client.post("/predict?filename=a.npy", content=b"1" * (2**23 + 1), headers=BINARY)
    assert "8388608 bytes" in refused(declared, 413, "body")
    chunked = tight.client.post("/predict?filename=a.npy", content=iter([b"1" * 2**20] * 9), headers=BINARY)
    refused(chunked, 413, "body")
    packed = io.BytesIO()
    np.savez_compressed(packed, a=np.zeros(9 * 2**20))
    assert "unpacks" in refused(tight.upload("a.npz", packed.getvalue(), rate=RATE), 413, "file")
    tight.client.close()  # its connection counts too
    for _ in range(10):  # a loaded machine may give these up before it sees the next
        slow = [tight.slow_request(100_000) for _ in range(2)]
        time.sleep(0.2)
        if httpx.get(f"{tight.url}/health").status_code == 503:
            break
    else:
        raise AssertionError("connections are not counted")
    for connection in slow:
        with connection, connection.makefile("rb") as file:
            answer = file.read()
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"longer than 2 s" in answer
    assert httpx.get(f"{tight.url}/model").json()["limits"] == {"max_bytes": 2**23, "timeout": 2, "concurrency": 2}
    assert list(tight.temporary.iterdir()) == [], "uploads are gone"


def test_loopback_is_the_default_and_other_names_and_careless_browsers_are_kept_out(server):
    assert server.place.hostname == ServeRequest().host == "127.0.0.1"
    for host, status in (("elsewhere.example", 403), ("localhost:80", 200), ("[::1]:80", 200), ("10.0.0.1", 200)):
        assert server.client.get("/model", headers={"Host": host}).status_code == status
    names = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.1.2.3", "plant.example")
    assert list(map(is_loopback, names)) == [True] * 3 + [False] * 3
    for path in ("/", "/health", "/nothing", "/openapi.json"):
        headers = server.client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "server" not in headers


def test_commands_that_cannot_work_get_a_sentence(models, tmp_path, command, monkeypatch):
    for limits in ({"max_bytes": 1}, {"timeout": 0.0}, {"timeout": float("nan")}, {"concurrency": 0}, {"port": 70_000}):
        with pytest.raises(InputError) as refused:
            ServeRequest.of(**limits)
        assert refused.value.field == next(iter(limits))
    for path, words, sentence in (
        (tmp_path / "no.onnx", {}, "there is no such file"), (None, {"alarm": ["inner"]}, "--alarm"),
        (models / "model.onnx", {"alarm": ["iner"]}, "no class 'iner'; did you mean 'inner'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=sentence):
            serve(path, ServeRequest.of(port=0, alarm=words.get("alarm")))
    monkeypatch.setenv("BEARCAT_TOKEN", "of an earlier version")
    with pytest.raises(InputError, match="BEARCAT_TOKEN"):
        serve(None, ServeRequest())
    monkeypatch.delenv("BEARCAT_TOKEN")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, _, said = command("serve", models / "model.onnx", "--port", taken.getsockname()[1])
    assert status == 2
    assert "cannot be listened on (Address already in use)" in said
    monkeypatch.delitem(sys.modules, "bearcat.deploy.serve")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    status, _, said = command("serve", models / "model.onnx", "--port", 0)
    assert status == 2
    assert "pip install 'bearcat[serve]'" in said


def test_the_page_is_one_file_that_asks_nobody_and_only_its_own_script_runs():
    text = (Path(inspect.getfile(page_policy)).parent / "serve.html").read_text(encoding="utf-8")
    policy = page_policy(text)
    assert not re.search(r"""(src|href)=["'](?!/|data:|#)""", text)
    assert not re.search("https?://|@import|innerHTML", text)
    assert re.search(r"script-src 'sha256-[^' ]+'$", policy)
    assert re.search(r"style-src 'sha256-[^' ]+';", policy)
