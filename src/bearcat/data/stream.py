"""Files of any supported format as streams: one channel, a block of samples at a time.

npy and wav files are mapped (24-bit ones, which cannot be, are read), text goes by lines, parquet by rows, arrays of
npz files as they unpack, those of MATLAB v7.3 by slices. So a day of vibration needs no more memory than a minute.
Small text files are read whole, and older MATLAB files, for scipy hands their arrays out whole or not at all.

Which channels a file has, and what they are called, bearcat.data.formats says of a stream as of a whole file. Where
only an array's name and shape are known, it is shown a stand-in of that shape.

>>> stream = open_stream(Path("pump/monday.wav"))
>>> loudest = max(abs(block).max() for block in stream.blocks)
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from bearcat.data.formats import (
    DAMAGE,
    FORMATS,
    HDF5,
    Samples,
    Signals,
    channels_in,
    columns,
    npy_header,
    numeric_nodes,
    opened_hdf5,
    parquet_reader,
    read_signals,
    reading,
    table,
)
from bearcat.data.recording import Floats
from bearcat.errors import InputError

BLOCK = 2**18  # samples read at once
LINES = 2**16  # lines of text read at once
SMALL_TEXT = 2**22  # bytes; text files up to this size are read whole
PROBED = 2**12  # rows of a parquet file that say which of its columns are times or numbers of samples
PIECE = 2**16  # bytes that are read to be passed over, or of a parquet file at once
PCM, EXTENSIBLE = 1, 0xFFFE  # of wav files: plain integers; the kind of sample is told further on

Opened = tuple[float | None, Iterator[Samples]]  # the rate, and one channel's blocks


@dataclass(frozen=True, eq=False)
class Stream:
    """One channel of a file as blocks of samples (time,), float32 and finite, to be gone through once."""

    origin: str
    rate: float | None
    blocks: Iterator[Floats]


def open_stream(path: Path, channel: str | None = None) -> Stream:
    """The file's channel of this name (or the only one) as a stream; one sentence if that cannot be."""
    origin, kind = str(path), path.suffix.lower()
    if path.is_dir():
        raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(FORMATS)}")
    opened = None
    with reading(origin, f"a {kind} file"):
        if kind in OPENERS and path.is_file() and path.stat().st_size:
            opened = OPENERS[kind](path, channel)
    if opened is None:  # it is to be read whole, or to be refused by who does that
        whole = read_signals(path)
        samples = whole.pick(channel, "")[1]
        opened = whole.rate, (samples[at : at + BLOCK] for at in range(0, samples.size, BLOCK))
    rate, blocks = opened
    if rate is not None and not (np.isfinite(rate) and rate > 0):
        raise InputError(f"{origin}: the sampling rate must be a positive number of hertz, not {rate:g}")
    return Stream(origin, rate, _finite(origin, kind, blocks))


def _finite(origin: str, kind: str, blocks: Iterable[Samples]) -> Iterator[Floats]:
    """The blocks as float32; a sentence with the place of the first sample that is no number."""
    before = 0
    with reading(origin, f"a {kind} file"):
        for block in blocks:
            with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf and is named below
                values = np.ascontiguousarray(block, dtype=np.float32)
            if not np.isfinite(values).all():
                first = before + int(np.flatnonzero(~np.isfinite(values))[0])
                raise InputError(
                    f"{origin}: sample {first} is NaN or infinite; cut such samples out or interpolate them"
                )
            before += values.size
            yield values


# Samples as they lie in the file: npy and wav.


def _open_mapped(path: Path, channel: str | None) -> Opened | None:
    signals = _mapped(path)
    if signals is None:
        return None
    name, samples = signals.pick(channel, "")
    return signals.rate, _read_again(path, name, samples.size)


def _mapped(path: Path) -> Signals | None:
    """A file's channels without reading them; None where it is to be read whole, or to be refused by who does that."""
    from scipy.io import wavfile

    origin, kind = str(path), path.suffix.lower()
    try:
        if kind == ".npy":
            values = np.load(path, mmap_mode="r", allow_pickle=False).squeeze()
            if values.dtype.kind not in "fiu" or values.ndim not in (1, 2) or values.size < 2:
                return None
            rows = values[None] if values.ndim == 1 else values if values.shape[0] < values.shape[1] else values.T
            return Signals(origin, {str(number): row for number, row in enumerate(rows, start=1)}, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)
            warnings.filterwarnings("error", "Reached EOF")
            rate, samples = wavfile.read(path, mmap=True)
        rows = samples.reshape(len(samples), -1).T
        return Signals(origin, {str(number): row for number, row in enumerate(rows, start=1)}, float(rate))
    except DAMAGE:
        return None  # damaged, cut short, 24 bits: the reader of whole files says it in its own words


def _read_again(path: Path, name: str, samples: int) -> Iterator[Samples]:
    """A mapped channel block by block; each is mapped anew, for pages that were read stay in memory with their map."""
    for start in range(0, samples, BLOCK):
        signals = _mapped(path)
        if signals is None or signals.pick(name)[1].size != samples:
            raise InputError(f"{path}: was changed while it was read; try again")
        block = np.array(signals.pick(name)[1][start : start + BLOCK])
        del signals
        if path.suffix.lower() == ".wav" and block.dtype.kind in "iu":  # full scale is 1, as in bearcat.data.formats
            full = np.float32(np.iinfo(block.dtype).max + 1)
            block = block / full if block.dtype.kind == "i" else block / (full / 2) - 1
        yield block


def _open_wav(path: Path, channel: str | None) -> Opened | None:
    mapped = _open_mapped(path, channel)
    packed = _packed(path) if mapped is None else None
    if packed is None:
        return mapped
    names = {str(number): np.empty(0) for number in range(1, packed.channels + 1)}
    name, _ = Signals(str(path), names, packed.rate).pick(channel, "")
    return packed.rate, _packed_blocks(path, packed, int(name) - 1)


@dataclass(frozen=True)
class _Packed:
    """Where a wav file keeps its samples of three bytes."""

    rate: float
    channels: int
    start: int
    frames: int


def _packed(path: Path) -> _Packed | None:
    """None where samples are of another size, or there is something that the reader of whole files will not take."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(0)
        try:
            kind, whole, form = struct.unpack("<4sI4s", file.read(12))
            if kind not in (b"RIFF", b"RF64") or form != b"WAVE":
                return None
            samples, width, channels, rate, speed, tag = 0, 0, 0, 0, 0, 0
            while True:
                name, size = struct.unpack("<4sI", file.read(8))
                after = file.tell() + size + size % 2
                if name == b"data":
                    break
                if name == b"ds64":  # of files beyond 4 GB, whose other sizes say nothing
                    whole, samples = struct.unpack("<QQ", file.read(16))
                elif name == b"fmt ":
                    tag, channels, rate, speed, width, _ = struct.unpack("<HHIIHH", file.read(16))
                    if tag == EXTENSIBLE:
                        tag = struct.unpack("<8xI", file.read(12))[0]
                file.seek(after)
        except struct.error:
            return None
        samples, start = samples if kind == b"RF64" else size, file.tell()
    if tag != PCM or not channels or width != 3 * channels or speed != rate * width or samples % width:
        return None
    if max(start + samples, whole + 8) > end:
        raise EOFError("it ends before its samples do")
    return _Packed(float(rate), channels, start, samples // width) if samples else None


def _packed_blocks(path: Path, packed: _Packed, number: int) -> Iterator[Samples]:
    with path.open("rb") as file:
        file.seek(packed.start)
        for values in _values(file, np.dtype((np.uint8, 3)), packed.frames, packed.channels):
            wide = np.zeros((len(values), 4), dtype=np.uint8)
            wide[:, 1:] = values[:, number]
            yield wide.view("<i4")[:, 0] / np.float32(2**31)  # full scale is 1


# Named arrays: npz and MATLAB v7.3.


def _open_npz(path: Path, channel: str | None) -> Opened:
    origin, stand_ins = str(path), {}
    with zipfile.ZipFile(path) as archive:
        members = {one.removesuffix(".npy"): one for one in archive.namelist()}
        for name, member in members.items():
            stand_ins[name] = _announced(archive, member, origin)
    rate, name, number = _placed(origin, stand_ins, channel)
    return rate, _unpacked(path, members[name], number)


def _announced(archive: zipfile.ZipFile, member: str, origin: str) -> Samples:
    """A stand-in for an array of an npz file, or the array itself where it is one number."""
    told = archive.getinfo(member)
    if told.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"'{member}' is compressed in a way that numpy does not write")
    with archive.open(member) as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return np.empty(0)  # no array
    with archive.open(member) as file:
        shape, _, dtype = npy_header(file, origin)
        if prod(shape) * dtype.itemsize > told.file_size:
            raise ValueError(f"'{member}' announces more samples than there are")
        if prod(shape) == 1 and dtype.kind in "fiu":
            return np.concatenate(list(_values(file, dtype, 1, 1)))
        return np.broadcast_to(np.zeros((), dtype), shape)


def _unpacked(path: Path, member: str, number: int) -> Iterator[Samples]:
    """One channel of an array in an npz file; all of the array is unpacked, for its checksum stands at the end."""
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        shape, fortran, dtype = npy_header(file, str(path))
        sides = [one for one in shape if one != 1]
        channels = min(sides) if len(sides) == 2 else 1
        time = prod(sides) // channels
        one_by_one = (sides[0] < sides[-1]) != fortran  # a channel's samples lie together
        if channels == 1 or one_by_one:
            _pass_over(file, number * time * dtype.itemsize)
            for values in _values(file, dtype, time, 1):
                yield values[:, 0]
        else:
            for values in _values(file, dtype, time, channels):
                yield values[:, number]
        _pass_over(file, None)


def _values(file: IO[bytes], dtype: np.dtype[Any], rows: int, width: int) -> Iterator[Samples]:
    """So many rows of so many values each, (row, value), about BLOCK values at once."""
    while rows:
        count = min(rows, max(BLOCK // width, 1))
        content = file.read(count * width * dtype.itemsize)
        if len(content) < count * width * dtype.itemsize:
            raise EOFError("it ends before its samples do")
        yield np.frombuffer(content, dtype=dtype.base).reshape(count, width, *dtype.shape)
        rows -= count


def _pass_over(file: IO[bytes], size: int | None) -> None:
    """Reads so many bytes, or all there are; seeking would do without the checksum."""
    while size is None or size > 0:
        content = file.read(PIECE if size is None else min(PIECE, size))
        if not content:
            return
        size = None if size is None else size - len(content)


def _open_mat(path: Path, channel: str | None) -> Opened | None:
    origin = str(path)
    with path.open("rb") as file:
        if not file.read(20).startswith(HDF5):
            return None
        with opened_hdf5(file, origin) as tree:
            nodes = numeric_nodes(tree)
            places = {name: node.name for name, node in nodes.items()}
            stand_ins = {name: _stand_in(node) for name, node in nodes.items()}
    rate, name, number = _placed(origin, stand_ins, channel)
    return rate, _sliced(path, places[name], number)


def _stand_in(node: Any) -> Samples:
    if node.shape is None:
        return np.empty(0)
    return np.asarray(node[()]) if node.size == 1 else np.broadcast_to(np.zeros((), node.dtype), node.shape)


def _sliced(path: Path, place: str, number: int) -> Iterator[Samples]:
    """One channel of an array in a MATLAB v7.3 file."""
    with path.open("rb") as file, opened_hdf5(file, str(path)) as tree:
        node = tree[place]
        sides = [axis for axis, side in enumerate(node.shape) if side != 1]
        time = sides[-1] if node.shape[sides[0]] < node.shape[sides[-1]] else sides[0]
        chosen: list[int | slice] = [number if axis in sides else 0 for axis in range(node.ndim)]
        chunk = node.chunks[time] if node.chunks else 1
        step = max(BLOCK // chunk, 1) * chunk  # whole chunks, as each is unpacked anew for any part of it
        for start in range(0, node.shape[time], step):
            chosen[time] = slice(start, start + step)
            samples = node[tuple(chosen)]
            yield from (samples[at : at + BLOCK] for at in range(0, len(samples), BLOCK))


def _placed(origin: str, arrays: Mapping[str, Samples], channel: str | None) -> tuple[float | None, str, int]:
    """The rate, and where the channel is: in which array, and which of that array's channels it is."""
    signals = columns(origin, arrays, None)
    name, _ = signals.pick(channel, "")
    places = {
        one: (array, number)
        for array, value in arrays.items()
        for number, one in enumerate(channels_in(origin, array, value))
    }
    return signals.rate, *places[name]


# Tables: parquet and text. Columns are known by their values, so that a part must not be too short to tell.


def _open_parquet(path: Path, channel: str | None) -> Opened:
    origin = str(path)
    with path.open("rb") as file, _parquet_file(file, origin) as opened:
        numeric, others = _numeric_columns(opened.schema_arrow)
        probe = dict.fromkeys([*numeric, *others], np.empty(0))
        probe |= next(_parts(_rows_of(opened, numeric, PROBED), PROBED), {})
    signals = table(origin, probe)
    name, _ = signals.pick(channel, "")
    wanted = [one for one in numeric if one == name or one not in signals.channels]  # with times, if there are any

    def parts() -> Iterator[Signals]:
        with path.open("rb") as file, _parquet_file(file, origin) as opened:
            for part in _parts(_rows_of(opened, wanted, BLOCK // 4), BLOCK):
                yield table(origin, part)

    return _in_parts(origin, name, parts(), overlap=1)


def _parquet_file(file: IO[bytes], origin: str) -> Any:
    """The file, of which pages are read as they are needed: pyarrow would fetch a whole group of rows ahead."""
    return parquet_reader(origin).ParquetFile(file, buffer_size=PIECE, pre_buffer=False)


def _numeric_columns(schema: Any) -> tuple[list[str], list[str]]:
    """The names of columns of numbers, and those of the others."""
    from pyarrow import types

    def is_numeric(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_integer(kind) or types.is_floating(kind))

    if len(set(schema.names)) != len(schema.names):
        raise ValueError("two of its columns have the same name")
    numeric = [one.name for one in schema if is_numeric(one.type)]
    return numeric, [name for name in schema.names if name not in numeric]


def _rows_of(opened: Any, names: Sequence[str], count: int) -> Iterator[dict[str, Samples]]:
    """These columns of a parquet file, at most so many rows at once, and perhaps few."""
    for batch in opened.iter_batches(count, columns=list(names), use_threads=False) if names else ():
        yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}


def _parts(batches: Iterable[dict[str, Samples]], size: int) -> Iterator[dict[str, Samples]]:
    """Rows as parts of this size, but the first begun with the last row before; a short rest goes with the last."""
    held: list[dict[str, Samples]] = []
    rows, overlap = 0, 0

    def joined() -> dict[str, Samples]:
        return {name: np.concatenate([one[name] for one in held]) for name in held[0]}

    for batch in batches:
        held.append(batch)
        rows += len(next(iter(batch.values())))
        while rows - overlap >= size + size // 2:
            whole, cut = joined(), overlap + size
            held = [{name: values[cut - 1 :].copy() for name, values in whole.items()}]
            rows, overlap = rows - cut + 1, 1
            yield {name: values[:cut] for name, values in whole.items()}
    if rows > overlap:
        yield joined()


def _in_parts(origin: str, name: str, parts: Iterator[Signals], overlap: int) -> Opened:
    """Rate and blocks of the channel called so; parts but the first begin with so many rows of the one before."""
    first = next(parts)

    def blocks() -> Iterator[Samples]:
        yield first.pick(name)[1]
        for found in parts:
            if first.rate and found.rate and abs(found.rate / first.rate - 1) > 0.01:
                raise InputError(
                    f"{origin}: its rate changes from {first.rate:g} to {found.rate:g} Hz; cut the file there"
                )
            yield found.pick(name)[1][overlap:]

    return first.rate, blocks()


def _open_text(path: Path, channel: str | None) -> Opened | None:
    """The reader of whole files is given the header and some lines at a time."""
    if path.stat().st_size <= SMALL_TEXT:
        return None
    origin, reader, lines = str(path), FORMATS[path.suffix.lower()], _line_parts(path)

    def read(content: bytes) -> Signals:
        with reading(origin, "text"):
            return reader(io.BytesIO(content), origin)

    first = next(lines)
    signals = read(first)
    name, samples = signals.pick(channel, "")
    rows = _rows(first)
    header = b"".join(rows[: len(rows) - samples.size])

    def parts() -> Iterator[Signals]:
        yield signals
        for part in lines:
            found = read(header + part)
            if next(iter(found.channels.values())).size != len(_rows(part)):  # words at its head pass for a header
                raise InputError(f"{origin}: a row further down does not hold numbers only; cut the file there")
            yield found

    return _in_parts(origin, name, parts(), overlap=0)


def _rows(content: bytes) -> list[bytes]:
    """The lines that are neither empty nor comments."""
    return [line for line in content.splitlines(keepends=True) if line.strip() and line[:1] not in (b"#", b"%")]


def _line_parts(path: Path) -> Iterator[bytes]:
    """A file's lines, LINES at a time; a short rest goes with the part before."""
    with path.open("rb") as file:
        part = list(islice(file, LINES))
        while part:
            following = list(islice(file, LINES))
            if len(following) < LINES // 2:
                part, following = part + following, []
            yield b"".join(part)
            part = following


OPENERS: dict[str, Callable[[Path, str | None], Opened | None]] = {
    ".csv": _open_text,
    ".tsv": _open_text,
    ".txt": _open_text,
    ".npy": _open_mapped,
    ".npz": _open_npz,
    ".mat": _open_mat,
    ".wav": _open_wav,
    ".parquet": _open_parquet,
}
