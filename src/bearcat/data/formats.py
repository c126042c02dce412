"""Files of signals by their suffix; wav and text are read here, arrays in signals.py.

Channels without a name are called "1", "2", … In a text, a column of times gives the rate, and a column of sample
numbers is left out.

>>> name, samples = read_channels(Path("pump/monday.wav"), "monday.wav").pick("1")
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bearcat.data.channels import is_speed, vibrations
from bearcat.data.signals import (
    MOST_CHANNELS,
    STRETCH,
    TIME_NAMES,
    TIME_UNITS,
    Samples,
    Signals,
    TooLargeError,
    chosen_channel,
    clock,
    rate_of,
    read_flac,
    read_mat,
    read_npy,
    read_npz,
    read_tree,
    reading,
)
from bearcat.errors import InputError, check_range, shown
from bearcat.storage import check_regular

MOST_BYTES = 2**31  # of a file, and of its samples, which are held in memory
MOST_CHUNKS = 10_000  # of a wav file, before its samples
# Of wav files: what samples are, by the code (1 integers, 3 floats) and the bytes of a sample.
WAV_SAMPLES = {(1, 1): "u1", (1, 2): "<i2", (1, 3): "u1", (1, 4): "<i4", (3, 4): "<f4", (3, 8): "<f8"}
LONGEST_HEADER = 500  # rows above the numbers; asking each takes as long as reading a hundred of numbers
UNIT = re.compile(  # of a row of units below the header, brackets taken off
    r"|-|%|[mµμunk]?s|sec|min|h|[mµμk]?g|([mµμkc]?m|in)(/s(\^?2|²)?)?|[mk]?[vawn]|n\.?m|[k]?hz|rpm|1/min|min-1|u/min|°?[cfk]|bar|[kmh]?pa|db",
    re.IGNORECASE,
)  # fmt: skip
INDEX_NAMES = {"", "index", "sample", "samples", "n", "no", "unnamed: 0"}


def read_wav(file: BinaryIO, origin: str) -> Signals:
    """Integers or floats of a RIFF file. scipy's reader takes a while to load; soundfile is an extra."""
    kind, form = struct.unpack("<4s4x4s", file.read(12))
    if kind != b"RIFF" or form != b"WAVE":
        raise ValueError("no RIFF header")
    code, channels, rate, width = 0, 0, 0, 0
    for _chunk in range(MOST_CHUNKS):
        name, size = struct.unpack("<4sI", file.read(8))
        start = file.tell()
        if name == b"data":
            break
        if name == b"fmt ":
            code, channels, rate, width = struct.unpack("<HHI4xH2x", file.read(16))
            if code == 0xFFFE:  # the kind of sample is given further on
                (code,) = struct.unpack("<8xH", file.read(10))
        file.seek(start + size + size % 2)
    else:
        raise ValueError("too many chunks before its samples")
    stored = WAV_SAMPLES.get((code, width // channels)) if channels else None
    if stored is None or width % channels:
        raise ValueError(f"{channels} channels in {width} bytes, of the kind {code}, are not supported")
    content = file.read(size // width * width)
    if len(content) < size // width * width:
        raise EOFError("it ends before its samples do")
    samples = np.frombuffer(content, stored).reshape(size // width, channels, -1)
    columns = {str(number + 1): _full_scale(samples[:, number]) for number in range(channels)}
    return Signals(origin, columns if len(samples) > 1 else {}, float(rate))


def _full_scale(samples: Samples) -> Samples:
    """Samples (frame, 1), or (frame, byte) of 24 bits, as floats whose full scale is 1 (frame,)."""
    if samples.shape[1] == 3:  # the lowest byte first
        wide = np.zeros((len(samples), 4), dtype=np.uint8)
        wide[:, 1:] = samples
        samples = wide.view("<i4")
    elif samples.dtype.kind == "u":
        return samples[:, 0] / np.float32(128) - 1
    if samples.dtype.kind == "i":
        return samples[:, 0].astype(np.float32) / np.float32(2.0 ** (8 * samples.itemsize - 1))
    return samples[:, 0]


def read_text(file: BinaryIO, origin: str) -> Signals:
    """Columns of numbers: any of , ; tab or blanks between them, decimal point or comma, header and units."""
    text = _decoded(file.read())

    def rows() -> Iterator[str]:
        return (line for line in io.StringIO(text, newline=None) if line.strip() and line[0] not in "#%")

    lines = list(islice(rows(), LONGEST_HEADER))
    if not lines:
        raise InputError(f"{origin}: holds no rows; record or export it again")
    probe = lines[min(len(lines) - 1, 50)].rstrip("\n")  # far enough below any header
    delimiter = next((sign for sign in ("\t", ";", ",") if sign in probe), None)
    decimal_comma = delimiter in ("\t", ";") and "," in probe and "." not in probe
    cells = probe.split(delimiter)
    columns = len(cells) - 1 if len(cells) > 1 and not cells[-1].strip() else len(cells)
    used = range(columns) if columns < len(cells) else None  # where a delimiter ends each row

    def parse(rows: Iterable[str]) -> Samples:
        rows = (row.replace(",", ".") for row in rows) if decimal_comma else rows
        return np.loadtxt(rows, delimiter=delimiter, usecols=used, ndmin=2, comments=None)

    def is_numeric(row: str) -> bool:
        with suppress(ValueError):
            return parse([row]).size > 0
        return False

    start = next((number for number, row in enumerate(lines) if is_numeric(row)), None)
    if start is None:
        raise InputError(f"{origin}: no row holds numbers only; export plain columns of numbers, times in seconds")
    try:
        values = parse(islice(rows(), start, None))
    except ValueError:  # an empty cell is a gap, as pandas writes them
        if delimiter is None:
            raise
        split = (row.split(delimiter) for row in islice(rows(), start, None))
        values = parse(delimiter.join(cell.strip(' "\n') or "nan" for cell in row) for row in split)
    above = [row.split(delimiter) if columns > 1 else [row] for row in lines[max(start - 2, 0) : start]]
    head = dict(zip(_header(above, values.shape[1]), values.T, strict=True))
    times_name, rate = _clock_of(origin, head)
    left_out = {name for name, column in head.items() if len(head) > 1 and _counts_samples(name, column)}
    names = [name for name in head if name not in left_out | {times_name} and len(values) > 1]
    return Signals(origin, {name: head[name] for name in names}, rate)


def _decoded(content: bytes) -> str:
    """A text in UTF-8 or, as Windows writes it, cp1252."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content:  # UTF-16
            raise
        return content.decode("cp1252")


def _counts_samples(name: str, column: Samples) -> bool:
    """Whether a column holds the numbers of the samples."""
    return clock(name)[0] in INDEX_NAMES | {"1"} and column.size > 2 and bool((np.diff(column) == 1).all())


def _clock_of(origin: str, head: Mapping[str, Samples]) -> tuple[str, float | None]:
    """The column of times and the rate; times without a name are in the first column."""
    for name, column in head.items():
        (plain, unit), steps = clock(name), np.diff(column[:STRETCH])
        if len(head) == 1 or column.size < 3 or _counts_samples(name, column):
            continue
        even = plain == "1" and steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-3, atol=0)
        if plain in TIME_NAMES or even:
            return name, rate_of(origin, name, column * unit)
    return "", None


def _header(rows: list[list[str]], columns: int) -> list[str]:
    """The names of the columns: the row above the numbers, or the one above that where it is a row of units."""
    rows = [[shown(text.strip().strip('"')) for text in row] for row in rows]
    rows = [row[:columns] if len(row) == columns + 1 and not row[-1] else row for row in rows]
    names, units = rows[-1] if rows else [], [""] * columns
    if [len(row) for row in rows] == [columns] * 2 and any(names):
        bare = [text.strip("[]() ") for text in names]
        if all(UNIT.fullmatch(text) for text in bare) and not any(UNIT.fullmatch(text) for text in rows[0] if text):
            names, units = rows[0], bare
    if len(names) != columns or len(set(names)) != len(names):
        return [str(number) for number in range(1, columns + 1)]
    return [f"{name} [{unit}]" if name.lower() in TIME_NAMES and unit.lower() in TIME_UNITS else name
            for name, unit in zip(names, units, strict=True)]  # fmt: skip


READERS: dict[str, Callable[[BinaryIO, str], Signals]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), read_text),
    ".npy": read_npy,
    ".npz": read_npz,
    ".mat": read_mat,
    ".wav": read_wav,
    **dict.fromkeys((".h5", ".hdf5"), read_tree),
    ".flac": read_flac,
}

ONE, TO_DIAGNOSE, ALL = "one", "to diagnose", "all"  # which channels of a file are read
FORMATS = tuple(READERS)
STATING = (".npz", ".mat", ".h5", ".hdf5")  # in which a number may state the speed


def read_channels(
    path: Path | str, origin: str, channel: str | None = None, which: str = ALL, most: int = MOST_BYTES
) -> Signals:
    """Channels of a file, of at most so many bytes, whose suffix says the format; `origin` is its name in errors.

    Which channels: ONE, of this name or the only one; TO_DIAGNOSE, that one if it is there, or all that may be
    vibrations, and the speed; or ALL.
    """
    path, too_large = Path(path), f"{origin}: has more than {most >> 20} MiB; cut it into shorter recordings"
    suffix = path.suffix.lower()
    if not suffix.lstrip(".") or suffix[1:].isdigit():  # a name without one, or that ends with a time: plain text
        suffix = ".txt"
    with reading(origin, f"a {suffix} file"):
        if path.is_dir():
            raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(FORMATS)}")
        if suffix not in READERS:
            raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
        check_regular(path, origin)
        with path.open("rb") as file:
            if (size := path.stat().st_size) == 0:
                raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
            if size > most:
                raise TooLargeError(too_large)
            signals = READERS[suffix](file, origin)
    names = list(signals.channels)
    if not names:
        raise InputError(f"{origin}: holds no numeric signal")
    if len(names) > MOST_CHANNELS:
        many = f"has {len(names)} columns, more than {MOST_CHANNELS}"
        raise InputError(f"{origin}: {many}; transpose the table, or cut it into files")
    check_range("rate", signals.rate, origin)
    if which == ONE or (which == TO_DIAGNOSE and channel in names):
        names = [chosen_channel(origin, names, channel)]
    elif which == TO_DIAGNOSE:
        vibrating = vibrations(names)
        names = vibrating + [name for name in names if is_speed(name) and name not in vibrating][:1]
    with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf, and is named where it is used
        channels = {name: np.ascontiguousarray(signals.channels[name], dtype=np.float32) for name in names}
    if sum(samples.nbytes for samples in channels.values()) > most:
        raise TooLargeError(too_large)
    return replace(signals, channels=channels)
