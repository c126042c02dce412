"""Downloads from a real server on this machine, one that cuts off, changes its mind, lies and breaks down."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from bearcat.data import archives
from bearcat.data import fetch as module
from bearcat.data.catalogue import About, Download
from bearcat.data.fetch import fetch, require_licence
from bearcat.errors import InputError

BODY = os.urandom(700_000)
ABOUT = About("Bearings", "CC BY-NC 4.0", "https://example.org/licence")


@dataclass
class Behaviour:
    """What the server does, and what it was asked: one entry of `seen` for each request."""

    body: bytes = BODY
    etag: str | None = '"one"'
    ranges: bool = True
    stubborn: bool = False  # continues a file even where If-Range names another version
    length: bool = True
    statuses: list[int] = field(default_factory=list)  # answered first, one each
    cut: list[int] = field(default_factory=list)  # bytes after which the connection closes, one for each answer
    location: str = ""
    kind: str = "application/octet-stream"
    pause: float = 0.0
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
        if now.pause:
            threading.Event().wait(now.pause)
        if now.statuses:
            return self.answer(now.statuses.pop(0), 0, b"", {"Location": now.location} if now.location else {})
        requested = self.headers.get("Range")
        same = now.stubborn or self.headers.get("If-Range", now.etag) == now.etag
        if not (requested and now.ranges and same):
            return self.answer(200, 0, now.body, {})
        start = int(requested.removeprefix("bytes=").removesuffix("-"))
        if start >= len(now.body):
            return self.answer(416, 0, b"", {"Content-Range": f"bytes */{len(now.body)}"})
        where = f"bytes {start}-{len(now.body) - 1}/{len(now.body)}"
        return self.answer(206, start, now.body, {"Content-Range": where})

    def answer(self, status: int, start: int, body: bytes, headers: dict[str, str]) -> None:
        now = self.behaviour
        self.send_response(status)
        if now.length or status != 200:
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

    def download(self, name: str = "a.mat", sha256: str | None = None) -> Download:
        return Download(f"{self.address}/{name}", name, sha256)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "WAIT", 0.01)
    behaviour = Behaviour()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, behaviour))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield Site(behaviour, f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    server.server_close()
    thread.join(10)


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def ledger(root: Path) -> dict[str, Any]:
    return json.loads((root / "downloads.json").read_text())  # type: ignore[no-any-return]


def names(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_a_file_is_downloaded_recorded_and_shown_growing(site: Site, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int | None]] = []
    download = site.download("sub/a.mat")
    assert fetch([download], tmp_path, progress=lambda *news: reports.append(news)) == [tmp_path / "sub" / "a.mat"]
    assert (tmp_path / "sub" / "a.mat").read_bytes() == BODY
    assert names(tmp_path) == {"downloads.json", "sub/a.mat"}
    record = ledger(tmp_path)["files"]["sub/a.mat"]
    assert record["retrieved"].endswith("+00:00")
    assert record == {
        "address": download.address,
        "sha256": sha(BODY),
        "bytes": len(BODY),
        "retrieved": record["retrieved"],
    }
    assert reports[0] == ("sub/a.mat", 0, len(BODY))
    assert reports[-1] == ("sub/a.mat", len(BODY), len(BODY))
    assert [have for _, have, _ in reports] == sorted(have for _, have, _ in reports)


def test_a_body_cut_short_is_resumed_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.behaviour.cut = [300_000, 200_000]
    (path,) = fetch([site.download()], tmp_path)
    assert path.read_bytes() == BODY
    assert [request.get("Range") for request in site.behaviour.requests] == [None, "bytes=300000-", "bytes=500000-"]
    assert [request.get("If-Range") for request in site.behaviour.requests] == [None, '"one"', '"one"']


def test_a_body_cut_short_every_time_says_how_much_arrived_and_the_next_run_resumes(
    site: Site, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    site.behaviour.cut = [100_000, 100_000]
    with pytest.raises(InputError, match=r"200000 of 700000 bytes .*200000 bytes are kept") as caught:
        fetch([site.download()], tmp_path)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == {"a.mat.part", "a.mat.part.json"}
    assert json.loads((tmp_path / "a.mat.part.json").read_text())["total"] == len(BODY)
    (path,) = fetch([site.download()], tmp_path)
    assert path.read_bytes() == BODY
    assert site.behaviour.requests[-1]["Range"] == "bytes=200000-"
    assert names(tmp_path) == {"a.mat", "downloads.json"}


def interrupt(name: str, have: int, total: int | None) -> None:
    if have > 250_000:
        raise KeyboardInterrupt


def test_an_interrupted_download_is_resumed(site: Site, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch([site.download()], tmp_path, progress=interrupt)
    have = (tmp_path / "a.mat.part").stat().st_size
    assert 250_000 < have < len(BODY)
    (path,) = fetch([site.download()], tmp_path)
    assert path.read_bytes() == BODY
    assert site.behaviour.requests[-1]["Range"] == f"bytes={have}-"


def test_a_server_that_ignores_ranges_makes_it_start_over(site: Site, tmp_path: Path) -> None:
    site.behaviour.ranges = False
    site.behaviour.cut = [300_000]
    (path,) = fetch([site.download()], tmp_path)
    assert "Range" in site.behaviour.requests[1]
    assert path.read_bytes() == BODY


def test_a_file_that_changed_between_the_halves_is_not_mixed(site: Site, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch([site.download()], tmp_path, progress=interrupt)
    site.behaviour.body, site.behaviour.etag = os.urandom(800_000), '"two"'
    (path,) = fetch([site.download()], tmp_path)
    assert path.read_bytes() == site.behaviour.body


@pytest.mark.parametrize(("size", "etag"), [(700_000, '"two"'), (800_000, '"one"')])
def test_a_server_that_continues_with_another_file_is_not_believed(
    site: Site, tmp_path: Path, size: int, etag: str, monkeypatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch([site.download()], tmp_path, progress=interrupt)
    site.behaviour.body, site.behaviour.etag, site.behaviour.stubborn = os.urandom(size), etag, True
    with monkeypatch.context() as patch:
        patch.setattr(module, "ATTEMPTS", 1)
        with pytest.raises(InputError, match="changed while .*: 0 bytes are kept"):
            fetch([site.download()], tmp_path)
    (path,) = fetch([site.download()], tmp_path)
    assert path.read_bytes() == site.behaviour.body


def test_an_empty_file_is_a_file(site: Site, tmp_path: Path) -> None:
    site.behaviour.body = b""
    assert fetch([site.download()], tmp_path)[0].read_bytes() == b""
    assert ledger(tmp_path)["files"]["a.mat"]["sha256"] == sha(b"")


@pytest.mark.parametrize("lost", ["state", "address", "validator"])
def test_a_part_of_unknown_origin_is_not_continued(site: Site, tmp_path: Path, lost: str) -> None:
    site.behaviour.etag = None if lost == "validator" else '"one"'
    with pytest.raises(KeyboardInterrupt):
        fetch([site.download()], tmp_path, progress=interrupt)
    if lost == "state":
        (tmp_path / "a.mat.part.json").write_text("{")
    download = Download(f"{site.address}/elsewhere", "a.mat") if lost == "address" else site.download()
    (path,) = fetch([download], tmp_path)
    assert path.read_bytes() == BODY
    assert "Range" not in site.behaviour.requests[-1]


def test_without_a_validator_a_known_checksum_allows_to_continue(site: Site, tmp_path: Path) -> None:
    site.behaviour.etag, site.behaviour.cut = None, [300_000]
    (path,) = fetch([site.download(sha256=sha(BODY).upper())], tmp_path)
    assert path.read_bytes() == BODY
    assert site.behaviour.requests[-1]["Range"] == "bytes=300000-"


def test_a_whole_part_is_recognised_by_its_stated_length(site: Site, tmp_path: Path) -> None:
    state = {"address": site.download().address, "version": '"one"', "total": len(BODY)}
    for total, requests in ((len(BODY), 0), (None, 2)):  # None: the server answers 416, and all is fetched anew
        root = tmp_path / str(total)
        root.mkdir()
        (root / "a.mat.part").write_bytes(BODY)
        (root / "a.mat.part.json").write_text(json.dumps(state | {"total": total}))
        site.behaviour.requests.clear()
        assert fetch([site.download()], root)[0].read_bytes() == BODY
        assert len(site.behaviour.requests) == requests


def test_a_part_longer_than_the_file_is_dropped(site: Site, tmp_path: Path) -> None:
    state = {"address": site.download().address, "version": '"one"', "total": None}
    (tmp_path / "a.mat.part").write_bytes(BODY + b"more")
    (tmp_path / "a.mat.part.json").write_text(json.dumps(state))
    assert fetch([site.download()], tmp_path)[0].read_bytes() == BODY


def test_a_body_of_unstated_length_is_taken_as_it_comes(site: Site, tmp_path: Path, monkeypatch) -> None:
    site.behaviour.length = False
    assert fetch([site.download()], tmp_path)[0].read_bytes() == BODY
    monkeypatch.setattr(module, "LIMIT_BYTES", 1000)
    with pytest.raises(InputError, match="sends more than 1000 bytes"):
        fetch([site.download("b.mat")], tmp_path)


def test_a_wrong_pinned_checksum_sets_the_file_aside(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"gave the SHA-256 {sha(BODY)[:12]}… and not the expected 000000000000…"):
        fetch([site.download(sha256="0" * 64)], tmp_path)
    assert names(tmp_path) == {"a.mat.bad"}
    assert (tmp_path / "a.mat.bad").read_bytes() == BODY
    assert fetch([site.download(sha256=sha(BODY))], tmp_path) == [tmp_path / "a.mat"]


def test_a_second_download_must_equal_the_recorded_one(site: Site, tmp_path: Path) -> None:
    (path,) = fetch([site.download()], tmp_path)
    path.unlink()
    assert fetch([site.download()], tmp_path)[0].read_bytes() == BODY
    path.unlink()
    site.behaviour.body = b"another"
    with pytest.raises(InputError, match=r"a\.mat\.bad: .*downloads.json"):
        fetch([site.download()], tmp_path)
    assert not path.exists()
    assert ledger(tmp_path)["files"]["a.mat"]["sha256"] == sha(BODY)


def test_a_file_that_is_there_is_verified_and_not_downloaded_again(site: Site, tmp_path: Path) -> None:
    (path,) = fetch([site.download()], tmp_path)
    before = (tmp_path / "downloads.json").read_bytes()
    assert fetch([site.download()], tmp_path) == [path]
    assert len(site.behaviour.requests) == 1
    assert (tmp_path / "downloads.json").read_bytes() == before
    path.write_bytes(b"changed")
    with pytest.raises(InputError, match=r"a\.mat .*SHA-256 .*move"):
        fetch([site.download()], tmp_path)
    assert path.read_bytes() == b"changed"


def test_a_file_put_there_by_hand_is_recorded_without_an_address(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(BODY)
    with pytest.raises(InputError, match="not the expected 0000"):
        fetch([site.download(sha256="0" * 64)], tmp_path)
    fetch([site.download()], tmp_path)
    record = ledger(tmp_path)["files"]["a.mat"]
    assert (record["address"], record["retrieved"], record["sha256"]) == (None, None, sha(BODY))
    assert not site.behaviour.requests


@pytest.mark.parametrize(
    ("status", "words"), [(404, "is not there"), (410, "is not there"), (403, "refuses"), (206, "answered")]
)
def test_permanent_errors_are_reported_without_another_attempt(
    site: Site, tmp_path: Path, status: int, words: str
) -> None:
    site.behaviour.statuses = [status]
    with pytest.raises(InputError, match=rf"{site.address}/a.mat {words}.*save it as .*a\.mat$"):
        fetch([site.download()], tmp_path)
    assert len(site.behaviour.requests) == 1


def test_trouble_of_the_server_is_waited_out(site: Site, tmp_path: Path) -> None:
    site.behaviour.statuses = [500, 503]
    assert fetch([site.download()], tmp_path)[0].read_bytes() == BODY
    site.behaviour.statuses = [500] * 3
    with pytest.raises(InputError, match=r"b.mat .*\(500\).*again"):
        fetch([site.download("b.mat")], tmp_path)
    assert not site.behaviour.statuses


def test_trouble_halfway_costs_nothing_that_arrived(site: Site, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch([site.download()], tmp_path, progress=interrupt)
    have = (tmp_path / "a.mat.part").stat().st_size
    site.behaviour.statuses = [500, 404]
    with pytest.raises(InputError, match="404"):
        fetch([site.download()], tmp_path)
    assert (tmp_path / "a.mat.part").stat().st_size == have


def test_a_web_page_instead_of_the_file_is_refused(site: Site, tmp_path: Path) -> None:
    site.behaviour.kind = "text/html; charset=utf-8"
    with pytest.raises(InputError, match="answered with a web page"):
        fetch([site.download()], tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_a_redirect_out_of_the_web_is_refused(site: Site, tmp_path: Path, place: str) -> None:
    site.behaviour.statuses, site.behaviour.location = [302], place
    with pytest.raises(InputError, match=f"redirects to '{place}', which is not followed"):
        fetch([site.download()], tmp_path)
    assert names(tmp_path) == set()


def test_a_redirect_within_the_web_is_followed_but_not_from_https_to_http(site: Site, tmp_path: Path) -> None:
    site.behaviour.statuses, site.behaviour.location = [302], f"{site.address}/moved"
    assert fetch([site.download()], tmp_path)[0].read_bytes() == BODY
    assert module._Redirects("https://example.org/a").allowed == {"https"}
    assert module._Redirects("http://example.org/a").allowed == {"http", "https"}


def test_an_endless_redirect_ends(site: Site, tmp_path: Path) -> None:
    site.behaviour.statuses, site.behaviour.location = [302] * 30, "/a.mat"
    with pytest.raises(InputError, match="not followed"):
        fetch([site.download()], tmp_path)


def test_a_refused_connection_a_silent_server_and_an_unknown_host_are_named(
    site: Site, tmp_path: Path, monkeypatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(InputError, match=rf"the connection for http://127.0.0.1:{port}/a failed"):
        fetch([Download(f"http://127.0.0.1:{port}/a", "a")], tmp_path)
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    site.behaviour.pause = 0.5
    with pytest.raises(InputError, match=r"a.mat failed .*timed out"):
        fetch([site.download()], tmp_path)

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(InputError, match=r"http://nowhere.invalid/a failed .*not known"):
        fetch([Download("http://nowhere.invalid/a", "a")], tmp_path)


def test_a_file_past_the_limit_is_refused_before_it_is_written(site: Site, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "LIMIT_BYTES", 699_999)
    with pytest.raises(InputError, match="700000 bytes, .*limit of 699999"):
        fetch([site.download()], tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "C:\\a", "", "a/", "downloads.json"])
def test_a_name_outside_the_folder_is_refused_before_any_request(site: Site, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        fetch([site.download(), Download(f"{site.address}/a", name)], tmp_path / "root")
    assert not site.behaviour.requests
    assert names(tmp_path) == set()


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://example.org/a", "http:///a", "http://a/ b", "a.mat"])
def test_an_address_outside_the_web_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, match="not an http"):
        fetch([Download(address, "a")], tmp_path)


def test_two_fetches_into_one_folder_do_not_meet(site: Site, tmp_path: Path) -> None:
    def second(*_: object) -> None:
        fetch([site.download()], tmp_path)

    with pytest.raises(InputError, match="another process is fetching into"):
        fetch([site.download()], tmp_path, progress=second)
    assert fetch([site.download()], tmp_path)[0].read_bytes() == BODY


def test_a_full_disk_keeps_what_is_there(site: Site, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch([site.download()], tmp_path, progress=interrupt)
    have = (tmp_path / "a.mat.part").stat().st_size

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"the disk of .* is full"):
            fetch([site.download()], tmp_path)
    assert (tmp_path / "a.mat.part").stat().st_size >= have
    assert fetch([site.download()], tmp_path)[0].read_bytes() == BODY


def test_a_folder_that_cannot_be_made_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*file"):
        fetch([site.download()], tmp_path / "file" / "root")


@pytest.mark.parametrize("content", ["{", "[]", '{"files": {"a": 1}, "licence": null}', '{"files": {}}'])
def test_a_damaged_ledger_is_named(site: Site, tmp_path: Path, content: str) -> None:
    (tmp_path / "downloads.json").write_text(content)
    with pytest.raises(InputError, match=r"downloads\.json is damaged"):
        fetch([site.download()], tmp_path)


def zipped(files: dict[str, bytes]) -> bytes:
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_an_archive_is_unpacked_beside_itself_once(site: Site, tmp_path: Path, monkeypatch) -> None:
    site.behaviour.body = zipped({"KA04/1.mat": b"one", "KA04/2.mat": b"two"})
    download = site.download("KA04.zip")
    fetch([download], tmp_path)
    assert names(tmp_path) == {"KA04.zip", "downloads.json", "KA04/1.mat", "KA04/2.mat"}
    assert ledger(tmp_path)["files"]["KA04.zip"]["unpacked"] == {"KA04/1.mat": 3, "KA04/2.mat": 3}
    (tmp_path / "KA04" / "2.mat").unlink()
    fetch([download], tmp_path)
    assert (tmp_path / "KA04" / "2.mat").read_bytes() == b"two"
    monkeypatch.setattr(archives, "unpack", None)  # not called when all is there
    fetch([download], tmp_path)


def test_an_archive_that_arrives_torn_is_set_aside_and_not_recorded(site: Site, tmp_path: Path) -> None:
    whole = zipped({"1.mat": b"one" * 1000})
    site.behaviour.body = whole[:2000]
    with pytest.raises(InputError, match=r"cannot be read .*KA04\.zip\.bad"):
        fetch([site.download("KA04.zip")], tmp_path)
    site.behaviour.body, site.behaviour.etag = whole, '"two"'
    fetch([site.download("KA04.zip")], tmp_path)
    assert (tmp_path / "1.mat").read_bytes() == b"one" * 1000


def test_a_checksum_recorded_of_a_damaged_archive_does_not_refuse_a_good_one(site: Site, tmp_path: Path) -> None:
    whole = zipped({"1.mat": b"one" * 1000})
    site.behaviour.body = whole.replace(b"oneone", b"onetwo", 1)  # it can be listed, but not unpacked
    with pytest.raises(InputError, match=r"KA04\.zip: cannot be read"):
        fetch([site.download("KA04.zip")], tmp_path)
    assert names(tmp_path) == {"KA04.zip.bad", "downloads.json"}
    site.behaviour.body = whole
    assert fetch([site.download("KA04.zip")], tmp_path)[0].read_bytes() == whole


def test_a_missing_rar_reader_is_reported_before_the_download(site: Site, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "rarfile", None)
    with pytest.raises(InputError, match="pip install"):
        fetch([site.download("KA04.rar")], tmp_path)
    assert not site.behaviour.requests


def test_the_licence_is_named_until_it_is_accepted_and_then_remembered(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "pu"
    with pytest.raises(InputError, match=r"CC BY-NC 4.0 \(https://example.org/licence\).*--accept-licence"):
        require_licence(ABOUT, False, root)
    assert not root.exists()
    require_licence(ABOUT, True, root)
    fetch([site.download()], root)
    require_licence(ABOUT, False, root)
    assert ledger(root)["licence"]["name"] == "CC BY-NC 4.0"
    assert set(ledger(root)["files"]) == {"a.mat"}
    with pytest.raises(InputError, match="other terms"):
        require_licence(About("Bearings", "other terms", "x"), False, root)
