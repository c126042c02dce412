"""Downloads that can be interrupted and are verified by their checksum.

A file arrives as `NAME.part`, with `NAME.part.json` saying which version of it that is, and gets its name only when
whole and verified: by the published checksum, or by that of the first download, recorded in `downloads.json`. pooch,
the usual choice, can neither resume a download nor bound its size.

>>> require_licence(Paderborn.about, accepted=True, root=Path("data/pu"))
>>> fetch(downloads, Path("data/pu"))
"""

from __future__ import annotations

import http.client
import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import bearcat.data.archives as archives
from bearcat.data.catalogue import About, Download
from bearcat.errors import InputError
from bearcat.storage import digest_file, read_json, write_json

RECORDS = "downloads.json"
RECORDS_LIMIT = 64 * 2**20  # bytes
LIMIT_BYTES = 16 * 2**30  # of one file; the largest of the known datasets are a few GB
CHUNK = 2**18
ATTEMPTS = 3
TIMEOUT = 30.0  # seconds for a connection, and without a byte
WAIT = 0.5  # seconds before the second attempt, doubled before each further one

Progress = Callable[[str, int, int | None], None]


class _TryAgainError(Exception):
    """Something that may pass; the message is the sentence to show if it does not."""


class _Transfer:
    """One file on its way: from where, under which name, to where, and the checksum it must have if one is known."""

    def __init__(self, download: Download, target: Path, known: str | None, progress: Progress) -> None:
        self.address, self.name, self.pinned = download.address, download.name, download.sha256 is not None
        self.target, self.known, self.progress = target, known, progress
        ends = (".part", ".part.json", ".bad")
        self.part, self.state_file, self.bad = (target.with_name(target.name + end) for end in ends)
        self.by_hand = f"look for it in a browser, and save it as {target}"


def require_licence(about: About, accepted: bool, root: Path) -> None:
    """Stops unless the licence is accepted, now or earlier for this folder; an acceptance is recorded there."""
    recorded = _read_records(root)["licence"]
    if recorded is not None and recorded.get("name") == about.licence:
        return
    if not accepted:
        licence = f"{about.licence} ({about.licence_address})"
        raise InputError(f"{about.title} is published under {licence}: read it, and accept with --accept-licence")
    with _locked(root):
        records = _read_records(root)
        records["licence"] = {"name": about.licence, "address": about.licence_address, "accepted": _now()}
        write_json(root / RECORDS, records)


def fetch(downloads: Sequence[Download], root: Path, *, progress: Progress | None = None) -> list[Path]:
    """Downloads what is not there yet, verifies all of it, unpacks archives beside themselves; the files, in order.

    `progress` is called with the name, the bytes there are and the total (None if the server does not say).
    """
    targets = []
    for download in downloads:
        address = urlsplit(download.address)
        plain = download.address.isascii() and download.address.isprintable() and " " not in download.address
        if not (plain and address.scheme in {"http", "https"} and address.hostname):
            raise InputError(f"{download.address!r} is not an http or https address: correct that of {download.name!r}")
        if download.name == RECORDS:
            raise InputError(f"a download cannot be called {RECORDS}, the list of downloads: give it another name")
        targets.append(archives.path_inside(root, download.name))
    if len(set(targets)) < len(targets):
        raise InputError("two of the downloads have the same name: give each file its own")
    if any(target.suffix.lower() == ".rar" for target in targets):
        archives.rar_reader()  # better missed now than after the download
    with _locked(root):
        records = _read_records(root)
        transfers = []
        for download, target in zip(downloads, targets, strict=True):
            known = (download.sha256 or records["files"].get(download.name, {}).get("sha256") or "").lower() or None
            transfers.append(_Transfer(download, target, known, progress or (lambda *_: None)))
            _fetch_file(transfers[-1], root, records)
        for transfer in transfers:
            if archives.is_archive(transfer.target):
                _unpack_once(transfer, root, records)
    return targets


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One fetch per folder at a time, where the system has locks: two would forget each other's records."""
    with archives.disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        descriptor = os.open(root, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise InputError(f"another process is fetching into {root}: wait until it is done") from error
        finally:
            os.close(descriptor)


def _fetch_file(transfer: _Transfer, root: Path, records: dict[str, Any]) -> None:
    """Makes the file be there, verified and recorded; a part that fails is set aside as NAME.bad."""
    target, record = transfer.target, records["files"].get(transfer.name)
    present = target.exists()
    if not present:
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive(transfer)
    file = target if present else transfer.part
    digest = digest_file(file)
    if transfer.known and digest != transfer.known:
        sums = f"the SHA-256 {digest[:12]}… and not the expected {transfer.known[:12]}…"
        if present:
            raise InputError(f"{target} has {sums}: move it away and run the command again")
        file.replace(transfer.bad)
        transfer.state_file.unlink(missing_ok=True)
        entry = "" if transfer.pinned else f", or remove its entry from {RECORDS} if the publisher replaced it"
        raise InputError(f"{transfer.address} gave {sums}, set aside as {transfer.bad}: run the command again{entry}")
    if not (present and record and record["sha256"] == digest):
        arrived = {"address": transfer.address, "retrieved": _now()}
        found = {"address": None, "retrieved": None, "found": _now()} if present else arrived
        # Recorded before it is named: killed in between, the whole part is found, verified and named by the next run.
        records["files"][transfer.name] = {"sha256": digest, "bytes": file.stat().st_size, **found}
        write_json(root / RECORDS, records)
    if not present:
        file.replace(target)
        transfer.state_file.unlink(missing_ok=True)


def _unpack_once(transfer: _Transfer, root: Path, records: dict[str, Any]) -> None:
    """Unpacks the archive beside itself, unless all its files are still there with the sizes they had."""
    record, folder = records["files"][transfer.name], transfer.target.parent
    before = record.get("unpacked")
    there = [path.stat().st_size for path in map(folder.joinpath, before or ()) if path.is_file()]
    if before is not None and there == list(before.values()):
        return
    try:
        paths = archives.unpack(transfer.target, folder)
    except archives.DamagedArchiveError as error:
        transfer.target.replace(transfer.bad)
        del records["files"][transfer.name]  # with its checksum, which would refuse a good one
        write_json(root / RECORDS, records)
        raise InputError(f"{error}; it was set aside as {transfer.bad}, run the command again to fetch it") from error
    record["unpacked"] = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    write_json(root / RECORDS, records)


def _receive(transfer: _Transfer) -> None:
    """Brings the part to its full length, in a few attempts, each continuing where the one before stopped."""
    for number in range(ATTEMPTS):
        if number:
            time.sleep(WAIT * 2 ** (number - 1))
        try:
            return _attempt(transfer)
        except _TryAgainError as error:
            trouble = error
    kept = transfer.part.stat().st_size if transfer.part.exists() else 0
    raise InputError(f"{trouble}: {kept} bytes are kept, run the command again later to resume") from trouble


def _attempt(transfer: _Transfer) -> None:
    """One request, for the rest of the part where it can be continued, else for the whole file."""
    state, have = _read_state(transfer)
    if have and state["total"] == have:
        return
    headers = {"User-Agent": "bearcat", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        headers |= {"If-Range": state["version"]} if state["version"] else {}
    request = Request(transfer.address, headers=headers)  # noqa: S310 (http only, see `fetch`)
    try:
        response = build_opener(_Redirects(transfer.address)).open(request, timeout=TIMEOUT)
    except (OSError, http.client.HTTPException) as error:
        raise _network_error(transfer, error, have) from error
    with closing(response):
        etag = response.headers.get("ETag")  # If-Range may hold a strong one, else the date of the last change
        version = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
        if have and response.status == 206:  # the rest, if it is of the same file
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
            total = int(found[2]) if found and found[2] != "*" else state["total"]
            same = state["version"] in {None, version} and state["total"] in {None, total}
            if not found or int(found[1]) != have or not same:
                raise _changed(transfer)
            state |= {"total": total}
        elif response.status != 200 or response.headers.get_content_type() == "text/html":
            kind = "a web page" if response.status == 200 else f"the status {response.status}"
            raise InputError(f"{transfer.address} answered with {kind} instead of the file: {transfer.by_hand}")
        else:  # the whole file, with its length if the server says
            have, state = 0, {"address": transfer.address, "version": version, "total": response.length}
        _copy(transfer, response, have, state)


def _read_state(transfer: _Transfer) -> tuple[dict[str, Any], int]:
    """Which version of the file the part is of, and how many of its bytes can be kept."""
    try:
        state = read_json(transfer.state_file)
        have, total = transfer.part.stat().st_size, state["total"]
        whole = total is None or have <= total
        # Without a version the file may have changed in between, and only a known checksum would tell.
        usable = state["address"] == transfer.address and whole and (state["version"] or transfer.known)
    except (OSError, ValueError, TypeError, KeyError):
        usable = False
    return (state, have) if usable else ({}, 0)


def _changed(transfer: _Transfer) -> _TryAgainError:
    """Drops the part: it cannot be continued, and the next attempt starts from nothing."""
    transfer.part.unlink(missing_ok=True)
    return _TryAgainError(f"{transfer.address} changed while it was being downloaded")


def _copy(transfer: _Transfer, response: Any, have: int, state: dict[str, Any]) -> None:
    """Appends what arrives to the part; short of the total it is tried again, beyond it or the limit it is refused."""
    address, total = transfer.address, state["total"]
    most = LIMIT_BYTES if total is None else total
    if most > LIMIT_BYTES:
        raise InputError(f"{address} has {total} bytes, past the limit of {LIMIT_BYTES}: check that it is right")
    if not have:
        transfer.part.unlink(missing_ok=True)  # first, so that the state never speaks of other bytes
        write_json(transfer.state_file, state)
    with transfer.part.open("ab" if have else "wb") as stream, closing(_arriving(transfer, response)) as chunks:
        transfer.progress(transfer.name, have, total)
        for chunk in chunks:
            if have + len(chunk) > most:
                raise InputError(f"{address} sends more than {most} bytes: check that it is the right file")
            have += stream.write(chunk)
            transfer.progress(transfer.name, have, total)
        stream.flush()
        os.fsync(stream.fileno())
    if total is not None and have < total:
        raise _TryAgainError(f"only {have} of {total} bytes of {address} arrived")
    write_json(transfer.state_file, state | {"total": have})


def _arriving(transfer: _Transfer, response: Any) -> Generator[bytes, None, None]:
    """What arrives, as it arrives; apart from the writing, so that a broken line is not taken for a broken disk."""
    try:
        while chunk := response.read1(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _network_error(transfer, error) from error


class _Redirects(HTTPRedirectHandler):
    """Follows redirects within the web, and never from https down to http."""

    def __init__(self, address: str) -> None:
        self.allowed = {"https"} if address.lower().startswith("https:") else {"http", "https"}

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if urlsplit(newurl).scheme not in self.allowed:
            raise HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _network_error(transfer: _Transfer, error: Exception, have: int = 0) -> Exception:
    """What an error status, or a failed or broken connection, means for the user."""
    address = transfer.address
    if isinstance(error, HTTPError):
        error.close()
        if error.code == 416 and have:  # nothing left to send: this is the part of another file
            return _changed(transfer)
        if error.code in {408, 429} or error.code >= 500:
            return _TryAgainError(f"the server of {address} has trouble ({error.code})")
        refusal = "is not there" if error.code in {404, 410} else "refuses the download"
        if 300 <= error.code < 400:
            refusal = f"redirects to {error.headers.get('Location', 'nowhere')!r}, which is not followed"
        return InputError(f"{address} {refusal} ({error.code}): {transfer.by_hand}")
    reason = error.reason if isinstance(error, URLError) else error
    return _TryAgainError(f"the connection for {address} failed ({reason or type(reason).__name__})")


def _read_records(root: Path) -> dict[str, Any]:
    path = root / RECORDS
    if not path.exists():
        return {"licence": None, "files": {}}
    try:
        if path.stat().st_size > RECORDS_LIMIT:
            raise ValueError("too long")
        content = read_json(path)
        records = {"licence": content["licence"] and dict(content["licence"]), "files": dict(content["files"])}
        if any(not isinstance(record["sha256"], str) for record in records["files"].values()):
            raise ValueError("a checksum is no text")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged: restore it, or delete it to record the files there anew") from error
    return records


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
