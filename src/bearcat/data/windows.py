"""Recordings → the windows a network is given; kept on disk, memory-mapped, so that a dataset is prepared once.

A cache entry is named by a hash of its files' content, of every setting that shapes the windows and of the code of an
input or reader that is a user's own. Its files appear whole, so processes can share a cache; an entry that cannot be
read is built again.

>>> windows = prepare(recordings, Preparation(input="frequency"))
>>> windows = cached_windows(catalogue.only(["load0"]), Preparation(), cache_folder())
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bearcat.data.datasets import Catalogue, content_digest, load
from bearcat.data.inputs import Preparation, find_input
from bearcat.data.recording import (
    Floats,
    Recording,
    RecordingInfo,
    Windows,
    cut,
    parts_of,
    resample,
    spectral_shape,
)
from bearcat.data.signals import reading
from bearcat.errors import InputError
from bearcat.plugins import row_identity, source_hash
from bearcat.settings import from_plain, to_plain
from bearcat.storage import digest_json, drafted, write_atomically

# Windows worked on at once: about a recording of the paper; smaller chunks make the threads wait for each other. And
# samples, which bound the memory where windows are long.
CHUNK, CHUNK_SAMPLES = 256, 1 << 20
VERSION = 8  # of the cache's layout and of what `prepare` computes: raise it when either changes
ARRAYS = ("windows", "shapes")  # prepared values, and the spectral shapes of the samples


def prepare(recordings: Sequence[Recording], preparation: Preparation) -> Windows:
    """Cut, transform and standardise all windows of these recordings, in order, into one float32 array.

    >>> recordings = load(Simulated(seconds=1.0, faults=("outer",)).catalogue(), ["0"])
    >>> prepare(recordings, Preparation(length=1000)).values.shape
    (64, 1, 1000)
    """
    if preparation.cut is not None:
        recordings = [part for recording in recordings for part in parts_of(recording, preparation.cut)]
    if preparation.rate is not None:
        recordings = [resample(recording, preparation.rate) for recording in recordings]
    if sentence := different_rates({recording.rate: recording.origin for recording in reversed(recordings)}):
        raise InputError(sentence)
    kind, length = find_input(preparation.input).suited(recordings), preparation.length
    for recording in recordings:
        try:
            kind.check(length, recording.rate, recording.rpm, recording.bearing)
        except InputError as error:
            raise InputError(f"{recording.origin}: {error}", error.field) from error
    parts = [cut(recording, length, preparation.step) for recording in recordings]
    counts = [len(part) for part in parts]
    values = np.empty((sum(counts), 1, kind.points(length)), dtype=np.float32)
    bands = spectral_shape(np.zeros((1, 1, length), dtype=np.float32)).shape[1]
    shapes = np.empty((sum(counts), bands), dtype=np.float32)
    ends, workers = np.cumsum(counts), min(8, os.cpu_count() or 1)
    size = max(1, min(CHUNK, CHUNK_SAMPLES // length))

    def work(first: int) -> None:  # numpy lets go of the interpreter, so threads help
        for number in range(first, len(parts), workers):
            recording, part, first_row = recordings[number], parts[number], ends[number] - counts[number]
            for start in range(0, len(part), size):
                chunk = part[start : start + size]
                rows = slice(first_row + start, first_row + start + len(chunk))
                values[rows] = kind.transform(chunk, recording.rate, recording.rpm, recording.bearing)
                shapes[rows] = spectral_shape(chunk)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return _assemble(values, shapes, counts, preparation, [recording.info() for recording in recordings])


def _assemble(
    values: Floats, shapes: Floats, counts: Sequence[int], preparation: Preparation, recordings: Sequence[RecordingInfo]
) -> Windows:
    """Windows out of prepared values that stand in the order of their recordings, so many of each."""
    counted = np.asarray(counts, dtype=np.int64)
    first = np.repeat(np.cumsum(counted) - counted, counted)
    recording = np.repeat(np.arange(len(counted), dtype=np.int64), counted)
    start = (np.arange(len(values), dtype=np.int64) - first) * preparation.step
    return Windows(values, recording, start, preparation.length, tuple(recordings), shapes)


def different_rates(rates: Mapping[float | None, str]) -> str | None:
    """The sentence for several rates, each with an example of who has it; None where there is but one."""
    if len(rates) < 2:
        return None
    listed = ", ".join(f"{who}: {'unknown' if rate is None else f'{rate:g} Hz'}" for rate, who in rates.items())
    lowest = min(rate for rate in rates if rate is not None)
    return f"the recordings have different sampling rates ({listed}); bring them to one with --rate {lowest:g}"


def cached_windows(catalogue: Catalogue, preparation: Preparation, cache: Path) -> Windows:
    """The prepared windows of everything in this catalogue; stored where there is room, if they are not there yet.

    >>> catalogue = Simulated(seconds=1.0, faults=("outer",)).catalogue().only(["0"])
    >>> len(cached_windows(catalogue, Preparation(length=1000), Path("cache")))
    64
    """
    catalogue.check()
    code = row_identity(find_input(preparation.input))
    folder = cache / "windows" / digest_json([VERSION, code, asdict(preparation), fingerprint(catalogue)])
    if (cached := _open(folder, preparation)) is not None:
        return cached
    windows = prepare(load(catalogue), preparation)
    with suppress(OSError):
        _store(folder, windows)
    return _open(folder, preparation) or windows


def metadata(catalogue: Catalogue, cache: Path) -> list[tuple[RecordingInfo, int]]:
    """What is known of every recording in this catalogue, with the number of its samples; kept, so it is read once."""
    file = cache / "metadata" / digest_json([VERSION, fingerprint(catalogue)])
    with suppress(OSError, ValueError, KeyError, TypeError):
        return [(from_plain(RecordingInfo, info), int(samples)) for info, samples in json.loads(file.read_bytes())]
    infos = [(recording.info(), recording.signal.size) for recording in load(catalogue)]
    with suppress(OSError):
        write_atomically(file, json.dumps([[to_plain(info), samples] for info, samples in infos]).encode())
    return infos


def fingerprint(catalogue: Catalogue) -> str:
    """SHA-256 of everything that determines the recordings: labels, readers, files' content, and what is missing."""
    content: dict[Path | None, str] = {}
    entries = []
    for entry in catalogue.entries:
        if entry.file is not None and entry.file not in content:
            with reading(entry.origin, "a file"):
                content[entry.file] = content_digest(entry.file)
        code = filter(None, [source_hash(entry.read)])  # of a user's own reader
        entries.append([entry.domain, entry.label, entry.origin, entry.identity, content.get(entry.file), *code])
    missing = (*catalogue.problems, *catalogue.left_out)
    return digest_json([entries, sorted(problem.origin for problem in missing)])


def _open(folder: Path, preparation: Preparation) -> Windows | None:
    """The entry at this place, or None if there is none that can be read."""
    try:
        index = json.loads((folder / "index.json").read_bytes())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}
        recordings = [from_plain(RecordingInfo, recording) for recording in index["recordings"]]
        return _assemble(arrays["windows"], arrays["shapes"], index["counts"], preparation, recordings)
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None


def _store(folder: Path, windows: Windows) -> None:
    """Writes an entry, or writes a damaged one anew; it counts from its index on, which is written last."""
    for name, array in zip(ARRAYS, (windows.values, windows.shapes), strict=True):
        with drafted(folder / f"{name}.npy") as draft, draft.open("wb") as file:
            np.save(file, np.asarray(array), allow_pickle=False)
    counts = np.bincount(windows.recording, minlength=len(windows.recordings)).tolist()
    recordings = [to_plain(recording) for recording in windows.recordings]
    write_atomically(folder / "index.json", json.dumps({"counts": counts, "recordings": recordings}).encode())
