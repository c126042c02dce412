"""Prepared windows on disk, memory-mapped, so that a dataset is parsed once.

A cache entry is named by a hash of the content of its files and of every setting that shapes the windows: a changed
file or setting never meets an old entry. Entries appear by renaming a finished folder, so any number of processes can
share a cache; one that does not match its checksum is built again. The folder can be deleted at any time.

>>> windows = cached_windows(catalogue.only(["load0"]), Preparation(), cache_folder())
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.catalogue import Catalogue, Entry, load
from bearcat.data.files import grouped
from bearcat.data.inputs import find_input
from bearcat.data.prepare import Preparation, assemble, prepare
from bearcat.data.recording import Floats, RecordingInfo, Windows
from bearcat.data.signals import reading
from bearcat.storage import digest, digest_file, digest_json, write_atomically

VERSION = 3  # of the layout and of what `prepare` computes: raise it when either changes
ARRAYS = ("windows", "shapes")  # prepared values, and the spectral shapes of the samples


def cached_windows(catalogue: Catalogue, preparation: Preparation, cache: Path | None, observe: Any = None) -> Windows:
    """The prepared windows of everything in this catalogue; computed and stored if they are not there yet.

    Where the cache cannot be written (a full disk, a read-only folder) the windows are still returned.
    """
    if cache is None or catalogue.problems:
        return prepare(load(catalogue), preparation)  # which names the first problem
    version = find_input(preparation.input).version
    key = digest_json([VERSION, version, asdict(preparation), fingerprint(catalogue, cache)])
    place = cache / "windows" / key
    if (found := _open(place, preparation)) is not None:
        return found
    windows = prepare(load(catalogue), preparation)
    try:
        _store(place, windows, preparation)
    except OSError:
        return windows
    return _open(place, preparation) or windows


def metadata(catalogue: Catalogue, cache: Path) -> list[tuple[RecordingInfo, int]]:
    """What is known of every recording in this catalogue, with the number of its samples; kept, so it is read once."""
    place = cache / "metadata" / digest_json([VERSION, fingerprint(catalogue, cache)])
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return [(RecordingInfo.from_dict(info), int(samples)) for info, samples in json.loads(place.read_bytes())]
    found = [(recording.info(), recording.signal.size) for recording in load(catalogue)]
    with contextlib.suppress(OSError):
        write_atomically(place, json.dumps([[info.to_dict(), samples] for info, samples in found]).encode())
    return found


def fingerprint(catalogue: Catalogue, cache: Path) -> str:
    """SHA-256 of everything that determines the recordings: labels, how they are read, and the files' content.

    A file that is missing counts too: when it comes, the data are different.
    """
    content = _contents(catalogue.entries, cache)
    entries = [
        [entry.domain, entry.label, entry.origin, entry.identity, content.get(entry.file)]
        for entry in catalogue.entries
    ]
    return digest_json([entries, [problem.origin for problem in catalogue.problems]])


def _contents(entries: Sequence[Entry], cache: Path) -> dict[Path | None, str]:
    """SHA-256 of each entry's file. Remembered per folder, as long as a file's size, times and number stay the same."""
    found: dict[Path | None, str] = {}
    every = [(entry.file, entry.origin) for entry in entries if entry.file is not None]
    for folder, files in grouped(every, lambda item: os.path.realpath(item[0].parent)).items():
        memory = cache / "digests" / digest(folder.encode())
        known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            known = dict(json.loads(memory.read_bytes()))
        news = {}
        for path, origin in files:
            with reading(origin, "a file"):
                status = path.stat()
                state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
                remembered = known.get(path.name)
                if isinstance(remembered, list) and remembered[:-1] == state:
                    found[path] = str(remembered[-1])
                    continue
                found[path] = digest_file(path)
            # A file written a moment ago could change again within the clock's grain: look at it again next time.
            if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > 2_000_000_000:
                news[path.name] = [*state, found[path]]
        if news:
            with contextlib.suppress(OSError):
                write_atomically(memory, json.dumps(known | news).encode())
    return found


def _checksum(values: Floats) -> int:
    """Of every bit and of the order of windows: a CRC of the sums of each window's words. Runs at memory speed."""
    rows = np.asarray(values).reshape(len(values), -1)
    words = rows.view(np.uint64 if rows.shape[1] % 2 == 0 else np.uint32)
    return zlib.crc32(words.sum(axis=1, dtype=np.uint64).data)


def _open(place: Path, preparation: Preparation) -> Windows | None:
    """The entry at this place, or None if there is none that is whole."""
    try:
        index = json.loads((place / "index.json").read_bytes())
        content: dict[str, Any] = index["content"]
        if zlib.crc32(_text(content)) != index["checksum"]:
            return None
        arrays = {name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}
        if {name: _checksum(array) for name, array in arrays.items()} != content["checksums"]:
            return None
        recordings = [RecordingInfo.from_dict(recording) for recording in content["recordings"]]
        return assemble(arrays["windows"], arrays["shapes"], content["counts"], preparation, recordings)
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None


def _store(place: Path, windows: Windows, preparation: Preparation) -> None:
    """Writes an entry beside its place and renames it into it; an existing entry stays, unless it is damaged."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=place.parent))
    try:
        arrays = {"windows": np.ascontiguousarray(windows.values), "shapes": np.ascontiguousarray(windows.shapes)}
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array, allow_pickle=False)
        content = {
            "checksums": {name: _checksum(array) for name, array in arrays.items()},
            "counts": np.bincount(windows.recording, minlength=len(windows.recordings)).tolist(),
            "recordings": [recording.to_dict() for recording in windows.recordings],
        }
        (draft / "index.json").write_text(json.dumps({"checksum": zlib.crc32(_text(content)), "content": content}))
        if place.exists() and _open(place, preparation) is None:
            place.rename(tempfile.mkdtemp(prefix=".aside-", dir=place.parent) + "/old")
        with contextlib.suppress(OSError):  # another process was first
            draft.rename(place)
    finally:
        for leftover in (draft, *place.parent.glob(".aside-*")):
            shutil.rmtree(leftover, ignore_errors=True)


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
