"""Channels of a file, read a block of samples at a time.

Wav and text are read here, arrays in signals.py, by a child process that reads them whole. Channels without a name are
called "1", "2", … In a text, a column of times gives the rate, and a column of sample numbers is left out.

>>> (rate, rpm, names), *blocks = read_channels(Path("pump/monday.wav"), "monday.wav", "1", ONE)
>>> loudest = max(abs(block).max() for _, block in blocks)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bearcat.data.channels import is_speed, vibrations
from bearcat.data.signals import (
    BLOCK,
    TIME_NAMES,
    TIME_UNITS,
    Samples,
    SignalFile,
    TooLargeError,
    chosen_channel,
    clock,
    open_flac,
    open_mat,
    open_npy,
    open_npz,
    open_tree,
    rate_of,
    reading,
)
from bearcat.errors import InputError, shown
from bearcat.storage import check_regular

MOST_CHUNKS = 10_000  # of a wav file, before its samples
# Of wav files: what samples are, by the code (1 integers, 3 floats) and the bytes of a sample.
WAV_SAMPLES = {(1, 1): "u1", (1, 2): "<i2", (1, 3): "u1", (1, 4): "<i4", (3, 4): "<f4", (3, 8): "<f8"}
TEXT_LINES = 2**14  # of text, read at once
LONGEST_LINE = 2**16  # bytes; a row of text with more columns than that is no recording
LONGEST_HEADER = 500  # rows above the numbers; asking each takes as long as reading a hundred of numbers
UNIT = re.compile(  # of a row of units below the header, brackets taken off
    r"|-|%|[mµμunk]?s|sec|min|h|[mµμk]?g|([mµμkc]?m|in)(/s(\^?2|²)?)?|[mk]?[vawn]|n\.?m|[k]?hz|rpm|1/min|min-1|u/min|°?[cfk]|bar|[kmh]?pa|db",
    re.IGNORECASE,
)  # fmt: skip
INDEX_NAMES = {"", "index", "sample", "samples", "n", "no", "unnamed: 0"}


def open_wav(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """Integers or floats. scipy's reader cannot read 24 bits in blocks; soundfile is an extra.

    Not by a map of the file, which would end the process if the file shrinks.
    """
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
    count = size // width
    if start + count * width > file.seek(0, 2):
        raise EOFError("it ends before its samples do")

    def read(names: Sequence[str]) -> Iterator[tuple[str, Samples]]:
        file.seek(start)
        for first in range(0, count, BLOCK):
            frames = min(BLOCK, count - first)
            content = file.read(frames * width)
            if len(content) < frames * width:
                raise EOFError("it became shorter while it was read")
            samples = np.frombuffer(content, stored).reshape(frames, channels, -1)
            yield from ((name, _full_scale(samples[:, int(name) - 1])) for name in names)

    names = [str(number + 1) for number in range(channels if count > 1 else 0)]
    return SignalFile(origin, names, float(rate), read)


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


def open_text(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """Columns of numbers: any of , ; tab or blanks between them, decimal point or comma, header and units."""
    blocks = _line_blocks(file, origin)
    lines = next(blocks, None)
    if lines is None:
        raise InputError(f"{origin}: holds no rows; record or export it again")
    probe = lines[min(len(lines) - 1, 50)]  # far enough below any header
    delimiter = next((sign for sign in ("\t", ";", ",") if sign in probe), None)
    decimal_comma = delimiter in ("\t", ";") and "," in probe and "." not in probe
    cells = probe.split(delimiter)
    columns = len(cells) - 1 if len(cells) > 1 and not cells[-1].strip() else len(cells)
    used = range(columns) if columns < len(cells) else None  # where a delimiter ends each row

    def parse(rows: list[str]) -> Samples:
        rows = [row.replace(",", ".") for row in rows] if decimal_comma else rows
        return np.loadtxt(rows, delimiter=delimiter, usecols=used, ndmin=2, comments=None)

    def parse_with_gaps(rows: list[str]) -> Samples:
        """A cell that is empty is a gap, as pandas writes them."""
        try:
            return parse(rows)
        except ValueError:
            if delimiter is None:
                raise
            return parse([delimiter.join(cell.strip(' "') or "nan" for cell in row.split(delimiter)) for row in rows])

    def is_numeric(row: str) -> bool:
        with suppress(ValueError):
            return parse([row]).size > 0
        return False

    start = next((number for number, row in enumerate(lines[:LONGEST_HEADER]) if is_numeric(row)), None)
    if start is None:
        raise InputError(f"{origin}: no row holds numbers only; export plain columns of numbers, times in seconds")
    values = parse_with_gaps(lines[start:])
    above = [row.split(delimiter) if columns > 1 else [row] for row in lines[max(start - 2, 0) : start]]
    head = dict(zip(_header(above, values.shape[1]), values.T, strict=True))
    times_name, unit, rate = _clock_of(origin, head)
    left_out = {name for name, column in head.items() if len(head) > 1 and _counts_samples(name, column)}
    channels = [name for name in head if name not in left_out | {times_name} and len(values) > 1]

    def read(names: Sequence[str]) -> Iterator[tuple[str, Samples]]:
        before = np.empty(0)
        for part in chain([head], (dict(zip(head, parse_with_gaps(rows).T, strict=True)) for rows in blocks)):
            if rate is not None:
                times = np.concatenate([before, part[times_name] * unit])
                rate_here = rate_of(origin, times_name, times)
                if times.size > 100 and abs(rate_here / rate - 1) > 0.01:
                    changes = f"its rate changes from {rate:g} to {rate_here:g} Hz"
                    raise InputError(f"{origin}: {changes}; cut the file there")
                before = times[-1:]
            yield from ((name, part[name]) for name in names)

    return SignalFile(origin, channels, rate, read, head)


def _counts_samples(name: str, column: Samples) -> bool:
    """Whether a column holds the numbers of the samples."""
    return clock(name)[0] in INDEX_NAMES | {"1"} and column.size > 2 and bool((np.diff(column) == 1).all())


def _clock_of(origin: str, head: Mapping[str, Samples]) -> tuple[str, float, float | None]:
    """The column of times, the seconds of its unit, and the rate; times without a name are in the first column."""
    for name, column in head.items():
        (plain, unit), steps = clock(name), np.diff(column)
        if len(head) == 1 or column.size < 3 or _counts_samples(name, column):
            continue
        even = plain == "1" and steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-3, atol=0)
        if plain in TIME_NAMES or even:
            return name, unit, rate_of(origin, name, column * unit)
    return "", 1.0, None


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


def _line_blocks(file: BinaryIO, origin: str) -> Iterator[list[str]]:
    """Some lines at a time, without empty ones and comments, as UTF-8 or, as Windows writes them, cp1252."""
    next_line, encoding = partial(file.readline, LONGEST_LINE + 1), "utf-8-sig"
    while lines := list(islice(iter(next_line, b""), TEXT_LINES)):
        if max(map(len, lines)) > LONGEST_LINE:
            raise TooLargeError(f"{origin}: has a line of more than {LONGEST_LINE} bytes; write a row for each sample")
        content = b"".join(lines)
        try:
            text = content.decode(encoding)
            encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        except UnicodeDecodeError:
            if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content:  # UTF-16
                raise
            encoding = "cp1252"
            text = content.decode(encoding)
        if rows := [line for line in text.splitlines() if line.strip() and line[0] not in "#%"]:
            yield rows


OPENERS: dict[str, Callable[[BinaryIO, str, ExitStack], SignalFile]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), open_text),
    ".npy": open_npy,
    ".npz": open_npz,
    ".mat": open_mat,
    ".wav": open_wav,
    **dict.fromkeys((".h5", ".hdf5"), open_tree),
    ".flac": open_flac,
}

ONE, TO_DIAGNOSE, ALL = "one", "to diagnose", "all"  # which channels of a file are read
FORMATS = tuple(OPENERS)
STATING = (".npz", ".mat", ".h5", ".hdf5")  # in which a number may state the speed


def read_channels(
    path: Path, origin: str, channel: str | None = None, which: str = TO_DIAGNOSE
) -> Generator[Any, None, None]:
    """The rate, the stated speed and the channels' names; then (channel, samples) in the file's order.

    The suffix says the format; `origin` is the file's name in errors. Which channels: ONE, of this name or the only
    one; TO_DIAGNOSE, that one if it is there, or all that may be vibrations, and the speed; or ALL.
    """
    suffix = path.suffix.lower()
    if not suffix.lstrip(".") or suffix[1:].isdigit():  # a name without one, or that ends with a time: plain text
        suffix = ".txt"
    with reading(origin, f"a {suffix} file"), ExitStack() as stack:
        if path.is_dir():
            raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(FORMATS)}")
        if suffix not in OPENERS:
            raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
        check_regular(path, origin)
        file = stack.enter_context(path.open("rb"))
        if path.stat().st_size == 0:
            raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
        opened = OPENERS[suffix](file, origin, stack)
        if which == ONE or (which == TO_DIAGNOSE and channel in opened.channels):
            names = [chosen_channel(origin, opened.channels, channel)]
        else:
            names = list(opened.channels)
            vibrating = names if which == ALL else vibrations(names)
            names = vibrating + [name for name in names if is_speed(name) and name not in vibrating][:1]
        yield opened.rate, opened.rpm, names
        for name, samples in opened.read(names):
            with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf, and is named where it is used
                yield name, np.ascontiguousarray(samples, dtype=np.float32)
