"""Downloads from a real server on this machine, one that cuts off, changes its mind and breaks down."""

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

from bearcat.data.catalogue import About, Download
from bearcat.data.datasets import fetch, require_licence
from bearcat.errors import InputError

BODY = os.urandom(700_000)
ABOUT = About("Bearings", "CC BY-NC 4.0, https://example.org/licence")


@dataclass
class Behaviour:
    """What the server does, and the headers of each request."""

    body: bytes = BODY
    etag: str | None = '"one"'
    compares: bool = True  # continues the same version alone
    statuses: list[int] = field(default_factory=list)  # answered first, one each
    cut: list[int] = field(default_factory=list)  # bytes after which the connection closes, one for each answer
    location: str = ""
    kind: str = "application/octet-stream"
    requests: list[dict[str, str]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    def __init__(self, behaviour: Behaviour, *args: Any) -> None:
        self.behaviour = behaviour
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        now = self.behaviour
        now.requests.append(dict(self.headers))
        if now.statuses:
            return self.answer(now.statuses.pop(0), 0, b"", {"Location": now.location} if now.location else {})
        requested, version = self.headers.get("Range"), self.headers.get("If-Range")
        if not requested or (now.compares and version != now.etag):
            return self.answer(200, 0, now.body, {})
        start = int(requested.removeprefix("bytes=").removesuffix("-"))
        if start >= len(now.body):
            return self.answer(416, 0, b"", {"Content-Range": f"bytes */{len(now.body)}"})
        where = f"bytes {start}-{len(now.body) - 1}/{len(now.body)}"
        return self.answer(206, start, now.body, {"Content-Range": where})

    def answer(self, status: int, start: int, body: bytes, headers: dict[str, str]) -> None:
        now = self.behaviour
        self.send_response(status)
        headers["Content-Length"] = str(len(body) - start)
        if now.etag:
            headers["ETag"] = now.etag
        for name, value in {"Content-Type": now.kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        stop = start + now.cut.pop(0) if body and now.cut else len(body)
        self.wfile.write(body[start:stop])


@dataclass
class Site:
    behaviour: Behaviour
    address: str

    def download(self, name: str = "a.mat") -> Download:
        return Download(f"{self.address}/{name}", name)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    behaviour = Behaviour()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, behaviour))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield Site(behaviour, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def cut_off(site: Site, root: Path) -> None:
    """A download that stops after 300 000 bytes."""
    site.behaviour.cut = [300_000]
    with pytest.raises(InputError, match="300000 of 700000 bytes .*again"):
        fetch([site.download()], root)


def test_a_file_arrives_whole_and_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    (path,) = fetch([site.download("mfs/a.mat")], tmp_path, progress=lambda *each: seen.append(each))
    assert path.read_bytes() == BODY
    assert (seen[0], seen[-1]) == (("mfs/a.mat", 0, len(BODY)), ("mfs/a.mat", len(BODY), len(BODY)))
    assert fetch([site.download("mfs/a.mat")], tmp_path) == [path]
    assert len(site.behaviour.requests) == 1
    assert names(tmp_path) == {"mfs/a.mat"}


@pytest.mark.parametrize(("etag", "requested"), [('"one"', "bytes=300000-"), (None, None)])
def test_a_download_goes_on_where_it_stopped_if_its_version_is_known(
    site: Site, tmp_path: Path, etag: str | None, requested: str | None
) -> None:
    site.behaviour.etag = etag
    cut_off(site, tmp_path)
    assert fetch([site.download()], tmp_path)[0].read_bytes() == BODY
    assert site.behaviour.requests[-1].get("Range") == requested
    assert names(tmp_path) == {"a.mat"}


def test_a_file_that_was_replaced_meanwhile_is_fetched_from_the_beginning(site: Site, tmp_path: Path) -> None:
    cut_off(site, tmp_path)
    site.behaviour.body, site.behaviour.etag = os.urandom(200_000), '"two"'
    assert fetch([site.download()], tmp_path)[0].read_bytes() == site.behaviour.body
    assert names(tmp_path) == {"a.mat"}


@pytest.mark.parametrize(("size", "etag"), [(700_000, '"two"'), (200_000, '"one"')])
def test_a_server_that_continues_with_another_file_is_not_believed(
    site: Site, tmp_path: Path, size: int, etag: str
) -> None:
    cut_off(site, tmp_path)
    site.behaviour.body, site.behaviour.etag, site.behaviour.compares = os.urandom(size), etag, False
    with pytest.raises(InputError, match="changed while"):
        fetch([site.download()], tmp_path)
    assert fetch([site.download()], tmp_path)[0].read_bytes() == site.behaviour.body


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"statuses": [404]}, r"refuses the download \(404\)"), ({"statuses": [500]}, r"\(500\)"),
        ({"kind": "text/html; charset=utf-8"}, "answered with a web page"),
        ({"statuses": [302], "location": "file:///etc/passwd"}, "refuses|failed"),
    ],
)  # fmt: skip
def test_what_is_no_file_is_a_sentence(site: Site, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    for name, value in changes.items():
        setattr(site.behaviour, name, value)
    with pytest.raises(InputError, match=rf"{site.address}/a.mat .*{words}"):
        fetch([site.download()], tmp_path)
    assert "a.mat" not in names(tmp_path)


def test_the_licence_is_named_until_it_is_accepted() -> None:
    with pytest.raises(InputError, match=r"CC BY-NC 4.0, https://example.org/licence; .*--accept-licence"):
        require_licence(ABOUT, False)
    require_licence(ABOUT, True)
