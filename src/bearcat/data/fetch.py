"""Downloads that can be interrupted and are verified by their checksum.

A file arrives as `NAME.part`, with `NAME.part.json` saying which version of it that is, and gets its name only when
whole and verified: by the checksum of the first download, recorded in `downloads.json`. pooch, the usual choice, can
neither resume a download nor bound its size.

>>> fetch(downloads, Path("data/pu"))
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
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


def require_licence(about: About, accepted: bool) -> None:
    """Stops unless the licence is accepted."""
    if not accepted:
        licence = f"{about.licence} ({about.licence_address})"
        raise InputError(f"{about.title} is published under {licence}: read it, and accept with --accept-licence")


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
        _fetch_file(download, target, records, progress or (lambda *_: None))
        write_json(root / RECORDS, {"files": records})
    return targets


def _fetch_file(download: Download, target: Path, records: dict[str, Any], progress: Progress) -> None:
    """Makes the file be there, verified and recorded."""
    known = records.get(download.name, {}).get("sha256")
    part, present = target.with_name(target.name + ".part"), target.exists()
    if not present:
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive(download, part, progress)
    digest = digest_file(target if present else part)
    if known and digest != known:
        sums = f"the SHA-256 {digest[:12]}… and not the expected {known[:12]}…"
        if present:
            raise InputError(f"{target} has {sums}: move it away and run the command again")
        part.unlink()
        entry = f"or remove its entry from {RECORDS} if the publisher replaced it"
        raise InputError(f"{download.address} gave {sums} and was not kept: run the command again, {entry}")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    records.setdefault(download.name, {"sha256": digest, "address": download.address, "retrieved": when})
    if not present:
        part.replace(target)
        _state_of(part).unlink(missing_ok=True)


def _state_of(part: Path) -> Path:
    """The file that says which version of a download a part is of."""
    return part.with_name(part.name + ".json")


def _receive(download: Download, part: Path, progress: Progress) -> None:
    """Brings the part to its full length, continuing where an earlier request stopped if it is of the same file."""
    address, by_hand = download.address, f"look for it in a browser, and save it as {part.with_suffix('')}"
    again = "changed while it was being downloaded: run the command again"
    headers, have, before = {"User-Agent": "bearcat", "Accept-Encoding": "identity"}, 0, None
    with suppress(OSError, ValueError, TypeError, KeyError):
        state = read_json(_state_of(part))
        if state["address"] == address and state["version"]:  # without one the file may have changed in between
            have, before = part.stat().st_size, state["version"]
            headers |= {"Range": f"bytes={have}-", "If-Range": before}
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
                have = 0
                part.unlink(missing_ok=True)  # first, so that the state never speaks of other bytes
                write_json(_state_of(part), {"address": address, "version": version})
            elif version != before or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                part.unlink()
                raise InputError(f"{address} {again}")
            total = None if response.length is None else have + response.length
            with part.open("ab") as stream:
                progress(download.name, have, total)
                while chunk := response.read1(CHUNK):
                    have += len(chunk)
                    if max(have, total or 0) > LIMIT_BYTES:
                        raise InputError(
                            f"{address} has more than {LIMIT_BYTES} bytes: check that it is the right file"
                        )
                    stream.write(chunk)
                    progress(download.name, have, total)
    except HTTPError as error:
        error.close()
        if error.code == 416 and have:  # the part is all there is, or of another file
            part.unlink()
            raise InputError(f"{address} {again}") from error
        raise InputError(f"{address} refuses the download ({error.code}): try again later, or {by_hand}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = f"{getattr(error, 'reason', error) or type(error).__name__}"
        raise InputError(f"{address} failed ({reason}): run the command again, {have} bytes are kept") from error
    if total is not None and have < total:
        raise InputError(f"only {have} of {total} bytes of {address} arrived: run the command again to resume")


def _read_records(root: Path) -> dict[str, Any]:
    """What is recorded of the files of a folder, by their names."""
    path = root / RECORDS
    if not path.exists():
        return {}
    try:
        return {name: {**record, "sha256": str(record["sha256"])} for name, record in read_json(path)["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged: restore it, or delete it to record the files there anew") from error
