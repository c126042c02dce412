"""Downloads from a real server on this machine, one that cuts off and breaks down."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bearcat.data.datasets import fetch
from bearcat.errors import InputError

BODY = os.urandom(700_000)


@dataclass
class Behaviour:
    """What the server does, and how often it was asked."""

    status: int = 200
    sent: int = len(BODY)  # bytes after which the connection closes
    location: str = ""
    kind: str = "application/octet-stream"
    requests: list[str] = field(default_factory=list)
    address: str = ""

    def downloads(self, *names: str) -> dict[str, str]:
        return {name: f"{self.address}/{name}" for name in names}


class Handler(BaseHTTPRequestHandler):
    def __init__(self, behaviour: Behaviour, *args: Any) -> None:
        self.behaviour = behaviour
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        now = self.behaviour
        now.requests.append(self.path)
        self.send_response(now.status)
        headers = {"Content-Type": now.kind, "Content-Length": str(len(BODY)), "Location": now.location}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(BODY[: now.sent])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Behaviour]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    behaviour = Behaviour()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, behaviour))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    behaviour.address = f"http://127.0.0.1:{server.server_port}"
    yield behaviour
    server.shutdown()
    thread.join()
    server.server_close()


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_files_arrive_whole_and_are_not_fetched_again(site: Behaviour, tmp_path: Path) -> None:
    fetch(site.downloads("mfs/a.mat"), tmp_path)
    first, second = fetch(site.downloads("mfs/a.mat", "mfs/b.mat"), tmp_path)
    assert first.read_bytes() == second.read_bytes() == BODY
    assert site.requests == ["/mfs/a.mat", "/mfs/b.mat"]
    assert names(tmp_path) == {"mfs/a.mat", "mfs/b.mat"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sent": 300_000}, "only 300000 of 700000 bytes .*again"),
        ({"status": 404}, r"refuses the download \(404\)"), ({"status": 500}, r"\(500\)"),
        ({"kind": "text/html; charset=utf-8"}, "answered with a web page"),
        ({"status": 302, "location": "file:///etc/passwd"}, "refuses|failed"),
    ],
)  # fmt: skip
def test_what_is_no_whole_file_is_a_sentence_and_leaves_nothing(
    site: Behaviour, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    for name, value in changes.items():
        setattr(site, name, value)
    with pytest.raises(InputError, match=words) as raised:
        fetch(site.downloads("a.mat"), tmp_path)
    assert f"{site.address}/a.mat" in str(raised.value)
    assert names(tmp_path) == set()
