"""Downloads that can be interrupted, and are trusted only once their checksum is known.

A file arrives as `NAME.part`, with `NAME.part.json` saying which version of it that is, and gets its name only when
whole and verified. What a publisher pins is compared with the pin; for the rest the first download is recorded in
`downloads.json` and every later one must equal it. A file that somebody put there by hand is recorded too, but with
no address and no date of retrieval, because nobody knows those.

>>> require_licence(Paderborn.about, accepted=True, root=Path("data/pu"))
>>> fetch(downloads, Path("data/pu"))

The standard library does all of it. pooch, the usual choice, can neither resume a partial download nor bound its size.
A server that states no length and just closes the connection cannot be caught cutting a file short, except where the
checksum is known or the file is an archive.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import bearcat.data.archives as archives
from bearcat.data.catalogue import About, Download
from bearcat.errors import InputError

LEDGER = "downloads.json"
LEDGER_LIMIT = 64 * 2**20
LIMIT_BYTES = 16 * 2**30  # of one file; the largest of the datasets we know are a few GB
CHUNK = 2**18
WAIT = 0.5  # seconds before the second attempt, doubled before each further one

Progress = Callable[[str, int, int | None], None]


class _TryAgainError(Exception):
    """Something that may pass; the message is the sentence to show if it does not."""


@dataclass(frozen=True)
class _Job:
    """One file on its way: from where, to where, the checksum it must have if one is known, and how to go about it."""

    one: Download
    target: Path
    known: str | None
    progress: Progress
    attempts: int
    timeout: float
    limit_bytes: int

    @property
    def part(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def state_file(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")


def licence_sentence(about: About) -> str:
    """Under which licence a dataset is published, and where to read it."""
    return f"{about.title} is published under {about.licence} ({about.licence_address})"


def require_licence(about: About, accepted: bool, root: Path) -> None:
    """Stop unless the licence is accepted, now or earlier for this folder; an acceptance is recorded there."""
    recorded = _read_ledger(root)["licence"]
    if recorded is not None and recorded.get("name") == about.licence:
        return
    if not accepted:
        raise InputError(f"{licence_sentence(about)}: read it, and give --accept-licence if you accept it")
    with _one_fetch(root):
        ledger = _read_ledger(root)
        ledger["licence"] = {"name": about.licence, "address": about.licence_address, "accepted": _now()}
        _write_json(root / LEDGER, ledger)


def fetch(
    downloads: Sequence[Download],
    root: Path,
    *,
    progress: Progress | None = None,
    unpack_archives: bool = True,
    attempts: int = 3,
    timeout: float = 30.0,
    limit_bytes: int = LIMIT_BYTES,
) -> list[Path]:
    """Download what is not there yet, verify all of it, then unpack the archives beside themselves.

    Returns the downloaded files, in the order asked for. `progress` is told the name, the bytes there are and the
    total (None if the server does not say).
    """
    targets = [_target(one, root) for one in downloads]
    if len(set(targets)) < len(targets):
        raise InputError("two of the downloads have the same name: give each file its own")
    if unpack_archives and any(target.suffix.lower() == ".rar" for target in targets):
        archives.rar_reader()  # better missed now than after the download
    report = progress or (lambda *_: None)
    with _one_fetch(root):
        ledger = _read_ledger(root)
        for one, target in zip(downloads, targets, strict=True):
            known = one.sha256.lower() if one.sha256 else ledger["files"].get(one.name, {}).get("sha256")
            _fetch_one(_Job(one, target, known, report, attempts, timeout, limit_bytes), root, ledger)
        for one, target in zip(downloads, targets, strict=True):
            if unpack_archives and archives.is_archive(target):
                _unpack_once(one, target, root, ledger)
    return targets


def _target(one: Download, root: Path) -> Path:
    """Where the file goes, after a look at its name and address."""
    address = urlsplit(one.address)
    plain = one.address.isascii() and one.address.isprintable() and " " not in one.address
    if not (plain and address.scheme in {"http", "https"} and address.hostname):
        raise InputError(f"{one.address!r} is not an http or https address: correct the download of {one.name!r}")
    if one.name == LEDGER:
        raise InputError(f"a download cannot be called {LEDGER}, the list of downloads: give it another name")
    return archives.inside(root, one.name)


@contextmanager
def _one_fetch(root: Path) -> Iterator[None]:
    """One fetch per folder at a time: two would write the same part, and forget each other's records."""
    with archives.disk_words(root):
        root.mkdir(parents=True, exist_ok=True)
        with archives.alone(root / ".fetch.lock", f"fetching into {root}"):
            yield


def _fetch_one(job: _Job, root: Path, ledger: dict[str, Any]) -> None:
    """Make the file be there, verified and recorded."""
    name, target = job.one.name, job.target
    record = ledger["files"].get(name)
    if target.exists():
        found = _verify_present(job, record)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive(job)
        found = _verify_arrived(job)
    if found != record:
        # Recorded before it is named: killed in between, the whole part is found, verified and named by the next run.
        ledger["files"][name] = found
        _write_json(root / LEDGER, ledger)
    if not target.exists():
        job.part.replace(target)
        job.state_file.unlink(missing_ok=True)


def _verify_present(job: _Job, record: dict[str, Any] | None) -> dict[str, Any]:
    """Check a file that is there already; one that is new to us is recorded as found, without an address."""
    digest = _sha256(job.target)
    if job.known and digest != job.known:
        sums = f"the SHA-256 {digest[:12]}… and not the expected {job.known[:12]}…"
        raise InputError(f"{job.target} has {sums}: move it away and run the command again to download it anew")
    if record and record["sha256"] == digest:
        return record
    return {"address": None, "sha256": digest, "bytes": job.target.stat().st_size, "retrieved": None, "found": _now()}


def _verify_arrived(job: _Job) -> dict[str, Any]:
    """Check a finished part; what fails is set aside as NAME.bad, neither used nor deleted."""
    digest = _sha256(job.part)
    bad = job.target.with_name(f"{job.target.name}.bad")
    trouble = None
    if job.known and digest != job.known:
        trouble = f"the SHA-256 {digest[:12]}… and not the expected {job.known[:12]}…"
    elif not job.known and archives.is_archive(job.target):
        try:
            archives.members(job.part)
        except archives.DamagedArchiveError:
            trouble = "no whole archive"
        except InputError:
            pass  # no RAR reader here, which says nothing about the file
    if trouble:
        job.part.replace(bad)
        job.state_file.unlink(missing_ok=True)
        replaced = f", or remove its entry from {LEDGER} if the publisher replaced it"
        other = replaced if job.known and not job.one.sha256 else ""
        raise InputError(f"{job.one.address} gave {trouble}, set aside as {bad}: run the command again{other}")
    return {"address": job.one.address, "sha256": digest, "bytes": job.part.stat().st_size, "retrieved": _now()}


def _unpack_once(one: Download, target: Path, root: Path, ledger: dict[str, Any]) -> None:
    """Unpack the archive beside itself, unless all its files are still there with the sizes they had."""
    record = ledger["files"][one.name]
    before = record.get("unpacked")
    there = [target.parent / name for name in before or ()]
    if before is not None and [path.stat().st_size for path in there if path.is_file()] == list(before.values()):
        return
    try:
        paths = archives.unpack(target, target.parent)
    except archives.DamagedArchiveError:
        if not one.sha256:  # then the checksum recorded is that of a bad file, and must not refuse a good one
            del ledger["files"][one.name]
            _write_json(root / LEDGER, ledger)
        raise
    record["unpacked"] = {path.relative_to(target.parent).as_posix(): path.stat().st_size for path in paths}
    _write_json(root / LEDGER, ledger)


def _receive(job: _Job) -> None:
    """Bring the part to its full length, in a few attempts, each going on where the one before stopped."""
    trouble: Exception | None = None
    for number in range(max(1, job.attempts)):
        if number:
            time.sleep(WAIT * 2 ** (number - 1))
        try:
            return _attempt(job)
        except _TryAgainError as error:
            trouble = error
    kept = job.part.stat().st_size if job.part.exists() else 0
    raise InputError(f"{trouble}: {kept} bytes are kept, run the command again later to resume") from trouble


def _attempt(job: _Job) -> None:
    """One request, for the rest of the part where it can be continued, else for the whole file."""
    state = _read_state(job)
    have = _usable(job, state)
    if have and state["total"] == have:
        return
    request = Request(job.one.address, headers=_headers(state, have))  # noqa: S310 (http only, see _target)
    try:
        response = build_opener(_Redirects(job.one.address)).open(request, timeout=job.timeout)
    except HTTPError as error:
        with closing(error):
            if error.code == 416 and have:
                return _after_416(job, state, have, error)
            raise _status_words(job, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _network_words(job, error) from error
    with closing(response):
        if response.status == 206:
            state = _continued(job, state, have, response)
        else:
            have, state = 0, _begun(job, response)
        _copy(job, response, have, state)


def _usable(job: _Job, state: dict[str, Any]) -> int:
    """How many bytes of the part can be kept.

    Without a validator the file may have changed in between, and only a known checksum would tell.
    """
    if not job.part.exists() or not state or not (_validator(state) or job.known):
        return 0
    have = job.part.stat().st_size
    return 0 if state["total"] is not None and have > state["total"] else have


def _validator(state: dict[str, Any]) -> str | None:
    """What If-Range may hold: a strong ETag, else the date of the last change."""
    etag = state["etag"]
    return str(etag) if etag and not etag.startswith("W/") else state["modified"]


def _headers(state: dict[str, Any], have: int) -> dict[str, str]:
    headers = {"User-Agent": "bearcat", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if validator := _validator(state):
            headers["If-Range"] = validator
    return headers


def _begun(job: _Job, response: Any) -> dict[str, Any]:
    """The server sends the whole file: which version that is, and its length if the server says."""
    page = response.headers.get_content_type() == "text/html" and not job.one.name.lower().endswith((".html", ".htm"))
    if response.status != 200 or page:
        what = "a web page" if page else f"the status {response.status}"
        raise InputError(f"{job.one.address} answered with {what} instead of the file: {_by_hand(job)}")
    etag, modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
    return {"address": job.one.address, "etag": etag, "modified": modified, "total": response.length}


def _continued(job: _Job, state: dict[str, Any], have: int, response: Any) -> dict[str, Any]:
    """The server sends the rest: check that it is the rest of the same file."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    total = int(found[2]) if found and found[2] != "*" else state["total"]
    etags = {etag for etag in (state.get("etag"), response.headers.get("ETag")) if etag}
    if not found or int(found[1]) != have or len(etags) > 1 or state["total"] not in {None, total}:
        raise _changed(job)
    return state | {"total": total}


def _after_416(job: _Job, state: dict[str, Any], have: int, error: HTTPError) -> None:
    """Nothing left to send: either the part was whole already, or it is the part of another file."""
    if error.headers.get("Content-Range", "").strip() != f"bytes */{have}":
        raise _changed(job)
    _write_json(job.state_file, state | {"total": have})


def _changed(job: _Job) -> _TryAgainError:
    """Drop the part: it cannot be continued, and the next attempt starts from nothing."""
    job.part.unlink(missing_ok=True)
    return _TryAgainError(f"{job.one.address} changed while it was being downloaded")


def _copy(job: _Job, response: Any, have: int, state: dict[str, Any]) -> None:
    """Append what arrives to the part; short of the total it is tried again, beyond it or the limit it is refused."""
    address, total = job.one.address, state["total"]
    if (total or 0) > job.limit_bytes:
        raise InputError(f"{address} has {total} bytes, past the limit of {job.limit_bytes}: check that it is right")
    most = job.limit_bytes if total is None else total
    if not have:
        job.part.unlink(missing_ok=True)  # first, so that the note never speaks of other bytes
        _write_json(job.state_file, state)
    with job.part.open("ab" if have else "wb") as stream, closing(_pieces(job, response)) as pieces:
        job.progress(job.one.name, have, total)
        for piece in pieces:
            if have + len(piece) > most:
                raise InputError(f"{address} sends more than {most} bytes: check that it is the right file")
            have += stream.write(piece)
            job.progress(job.one.name, have, total)
        stream.flush()
        os.fsync(stream.fileno())
    if total is not None and have < total:
        raise _TryAgainError(f"only {have} of {total} bytes of {address} arrived")
    _write_json(job.state_file, state | {"total": have})


def _pieces(job: _Job, response: Any) -> Generator[bytes, None, None]:
    """What arrives, as it arrives; apart from the writing, so that a broken line is not taken for a broken disk."""
    try:
        while piece := response.read1(CHUNK):
            yield piece
    except (OSError, http.client.HTTPException) as error:
        raise _network_words(job, error) from error


class _Redirects(HTTPRedirectHandler):
    """Follows redirects within the web, and never from https down to http."""

    def __init__(self, address: str) -> None:
        self.allowed = {"https"} if address.lower().startswith("https:") else {"http", "https"}

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        if urlsplit(newurl).scheme not in self.allowed:
            raise HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _by_hand(job: _Job) -> str:
    return f"look for it in a browser, and save it as {job.target}"


def _status_words(job: _Job, error: HTTPError) -> Exception:
    """What an error status means for the user."""
    if 300 <= error.code < 400:
        place = error.headers.get("Location", "nowhere")
        return InputError(f"{job.one.address} redirects to {place!r}, which is not followed: {_by_hand(job)}")
    if error.code in {404, 410}:
        return InputError(f"{job.one.address} is not there ({error.code}), it may have moved: {_by_hand(job)}")
    if error.code in {408, 429} or error.code >= 500:
        return _TryAgainError(f"the server of {job.one.address} has trouble ({error.code})")
    return InputError(f"{job.one.address} refuses the download ({error.code}): {_by_hand(job)}")


def _network_words(job: _Job, error: Exception) -> Exception:
    """What a failed or broken connection means for the user."""
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return InputError(f"the certificate for {job.one.address} is not valid ({reason}): {_by_hand(job)}")
    if isinstance(reason, TimeoutError):
        return _TryAgainError(f"{job.one.address} did not answer within {job.timeout:g} s")
    if isinstance(reason, socket.gaierror):
        return _TryAgainError(f"the host of {job.one.address} is not found, check the connection to the network")
    return _TryAgainError(f"the connection for {job.one.address} failed ({reason})")


def _read_state(job: _Job) -> dict[str, Any]:
    """What is known of the part, or nothing if that is unreadable or of another address."""
    try:
        state = json.loads(job.state_file.read_text(encoding="utf-8"))
        good = {key: state[key] for key in ("address", "etag", "modified", "total")}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return good if good["address"] == job.one.address else {}


def _read_ledger(root: Path) -> dict[str, Any]:
    path = root / LEDGER
    if not path.exists():
        return {"licence": None, "files": {}}
    try:
        if path.stat().st_size > LEDGER_LIMIT:
            raise ValueError("too long")
        ledger = json.loads(path.read_text(encoding="utf-8"))
        good = {"licence": ledger["licence"] and dict(ledger["licence"]), "files": dict(ledger["files"])}
        if any(not isinstance(record["sha256"], str) for record in good["files"].values()):
            raise ValueError("a checksum is no text")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} is damaged: restore it, or delete it to record anew the files that are there"
        ) from error
    return good


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace the file in one step, so that a kill leaves the old or the new one."""
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as stream:
        stream.write(json.dumps(content, indent=1, sort_keys=True).encode())
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
