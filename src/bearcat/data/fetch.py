"""Downloads that can be interrupted and are verified by their checksum.

A file arrives as `NAME.part`, with `NAME.part.json` saying which version of it that is, and gets its name only when
whole and verified: by the published checksum, or by that of the first download, recorded in `downloads.json`. Archives
stay packed, and are read as they are. pooch, the usual choice, can neither resume a download nor bound its size.

>>> require_licence(Paderborn.about, accepted=True, root=Path("data/pu"))
>>> fetch(downloads, Path("data/pu"))
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from bearcat.data.catalogue import About, Download, inside
from bearcat.errors import InputError
from bearcat.storage import digest_file, read_json, write_json

RECORDS = "downloads.json"
LIMIT_BYTES = 16 * 2**30  # of one file; the largest of the known datasets are a few GB
CHUNK = 2**18
TIMEOUT = 30.0  # seconds for a connection, and without a byte

Progress = Callable[[str, int, int | None], None]


def require_licence(about: About, accepted: bool, root: Path) -> None:
    """Stops unless the licence is accepted, now or earlier for this folder; an acceptance is recorded there."""
    records = _read_records(root)
    if records["licence"] is not None and records["licence"].get("name") == about.licence:
        return
    if not accepted:
        licence = f"{about.licence} ({about.licence_address})"
        raise InputError(f"{about.title} is published under {licence}: read it, and accept with --accept-licence")
    records["licence"] = {"name": about.licence, "address": about.licence_address, "accepted": _now()}
    write_json(root / RECORDS, records)


def fetch(downloads: Sequence[Download], root: Path, *, progress: Progress | None = None) -> list[Path]:
    """Downloads what is not there yet and verifies all of it; the files, in order.

    `progress` is called with the name, the bytes there are and the total (None if the server does not say).
    """
    targets = [root / download.name for download in downloads]
    for download, target in zip(downloads, targets, strict=True):
        if urlsplit(download.address).scheme not in ("http", "https"):
            raise InputError(f"{download.address!r} is not an http or https address: correct that of {download.name!r}")
        if target == root / RECORDS or not inside(root, target) or not download.name:
            raise InputError(f"{download.name!r} is not the name of a file below {root}: give it another name")
    records = _read_records(root)
    for download, target in zip(downloads, targets, strict=True):
        _fetch_file(download, target, records["files"], progress or (lambda *_: None))
        write_json(root / RECORDS, records)
    return targets


def _fetch_file(download: Download, target: Path, records: dict[str, Any], progress: Progress) -> None:
    """Makes the file be there, verified and recorded."""
    record = records.get(download.name, {})
    known = (download.sha256 or record.get("sha256") or "").lower()
    part, state = (target.with_name(target.name + end) for end in (".part", ".part.json"))
    present = target.exists()
    if not present:
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive(download, part, state, bool(known), progress)
    file = target if present else part
    digest = digest_file(file)
    if known and digest != known:
        sums = f"the SHA-256 {digest[:12]}… and not the expected {known[:12]}…"
        if present:
            raise InputError(f"{target} has {sums}: move it away and run the command again")
        part.unlink()
        entry = "" if download.sha256 else f", or remove its entry from {RECORDS} if the publisher replaced it"
        raise InputError(f"{download.address} gave {sums} and was not kept: run the command again{entry}")
    if not (present and record):
        when = {"found": _now()} if present else {"address": download.address, "retrieved": _now()}
        records[download.name] = {"sha256": digest, "bytes": file.stat().st_size, **when}
    if not present:
        part.replace(target)
        state.unlink(missing_ok=True)


def _receive(download: Download, part: Path, state_file: Path, known: bool, progress: Progress) -> None:
    """Brings the part to its full length, continuing where an earlier request stopped if it is of the same file."""
    address, by_hand = download.address, f"look for it in a browser, and save it as {part.with_suffix('')}"
    state, have = _part_so_far(address, part, state_file, known)
    headers = {"User-Agent": "bearcat", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        headers |= {"If-Range": state["version"]} if state["version"] else {}
    try:
        response = urlopen(Request(address, headers=headers), timeout=TIMEOUT)  # noqa: S310 (http only, see `fetch`)
        with closing(response):
            if urlsplit(address).scheme == "https" and urlsplit(response.url).scheme != "https":
                raise InputError(f"{address} leads to {response.url}, which is not encrypted: {by_hand}")
            etag = response.headers.get("ETag")  # If-Range may hold a strong one, else the date of the last change
            version = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
            if response.headers.get_content_type() == "text/html":
                raise InputError(f"{address} answered with a web page instead of the file: {by_hand}")
            if response.status != 206:
                have, state = 0, {"address": address, "version": version, "total": response.length}
                part.unlink(missing_ok=True)  # first, so that the state never speaks of other bytes
                write_json(state_file, state)
            elif not _continues(response, have, state, version):
                part.unlink()
                raise InputError(f"{address} changed while it was being downloaded: run the command again")
            total = state["total"]
            if (total or 0) > LIMIT_BYTES:
                raise InputError(f"{address} has {total} bytes, past the limit of {LIMIT_BYTES}: check the address")
            with part.open("ab") as stream:
                progress(download.name, have, total)
                while chunk := response.read1(CHUNK):
                    have += len(chunk)
                    if have > (LIMIT_BYTES if total is None else total):
                        raise InputError(f"{address} sends more bytes than it should: check that it is the right file")
                    stream.write(chunk)
                    progress(download.name, have, total)
    except HTTPError as error:
        error.close()
        if error.code == 416 and have:  # the part is all there is, or of another file
            part.unlink()
            raise InputError(f"{address} changed while it was being downloaded: run the command again") from error
        raise InputError(f"{address} refuses the download ({error.code}): try again later, or {by_hand}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = f"{getattr(error, 'reason', error) or type(error).__name__}"
        raise InputError(f"{address} failed ({reason}): run the command again, {have} bytes are kept") from error
    if total is not None and have < total:
        raise InputError(f"only {have} of {total} bytes of {address} arrived: run the command again to resume")


def _part_so_far(address: str, part: Path, state_file: Path, known: bool) -> tuple[dict[str, Any], int]:
    """Which version of the file the part is of, and how many of its bytes can be kept."""
    try:
        state, have = read_json(state_file), part.stat().st_size
        # Without a version the file may have changed in between, and only a known checksum would tell.
        usable = state["address"] == address and (state["version"] or known) and have < (state["total"] or LIMIT_BYTES)
    except (OSError, ValueError, TypeError, KeyError):
        usable = False
    return (state, have) if usable else ({}, 0)


def _continues(response: Any, have: int, state: dict[str, Any], version: str | None) -> bool:
    """Whether what comes is the rest of the file that the part is of."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    total = found[2] if found else ""
    return (
        found is not None and int(found[1]) == have
        and state["version"] in (None, version) and (total == "*" or state["total"] in (None, int(total)))
    )  # fmt: skip


def _read_records(root: Path) -> dict[str, Any]:
    path = root / RECORDS
    if not path.exists():
        return {"licence": None, "files": {}}
    try:
        content = read_json(path)
        records = {"licence": content["licence"] and dict(content["licence"]), "files": dict(content["files"])}
        if any(not isinstance(record["sha256"], str) for record in records["files"].values()):
            raise ValueError("a checksum is no text")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged: restore it, or delete it to record the files there anew") from error
    return records


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
