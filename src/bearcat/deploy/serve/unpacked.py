"""What an uploaded file would become in memory, found out before it is read.

A few kilobytes of npz, mat or parquet can unpack to gigabytes, a header can announce samples that are not there, and a
MATLAB v7.3 file can point at other files of this machine. `check_unpacked` reads headers (and counts compressed
bytes as they come out, keeping few) and refuses such files in a sentence. Formats that hold their samples as they
are (npy, wav) are bounded by their own size once their header is known not to lie.

>>> check_unpacked(Path("monday.npz"), "monday.npz", most=2**29)
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bearcat.data.formats import HDF5, npy_header, reading
from bearcat.errors import InputError

CHUNK = 2**16
LONGEST_LINE = 2**16  # bytes; a row of text with more columns than that is no recording
LONGEST_LIST = 2**18  # bytes of the list of members in an npz file: thousands of arrays
LONGEST_TAIL = 2**16 + 64  # where the end of an archive is looked for: behind it a comment of 64 KiB at most
MOST_ARRAYS = 2**16  # of a MATLAB file, cells and fields of structs included; each becomes an object or more
MOST_FIELDS = 2**12  # of a struct; scipy compares every name with all before it
MOST_AXES = 32
DEEPEST = 32  # cells within cells
# Of a MATLAB v5 file: its elements, the classes of its matrices, and how wide the types of their samples are.
MATRIX, COMPRESSED = 14, 15
CELLS, STRUCTS, OBJECTS, CHARACTERS, SPARSE, NUMERIC, FUNCTION, OPAQUE = 1, 2, 3, 4, 5, range(6, 16), 16, 17
WIDTHS = {3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8, 17: 2, 18: 4}


class TooLargeError(InputError):
    """The file is readable for all one knows, but there is too much in it."""


def check_unpacked(path: Path, origin: str, most: int) -> None:
    """Refuses a file that would need more than `most` bytes; `origin` is its name in the sentence."""
    kind = path.suffix.lower()
    check = _CHECKS.get(kind)
    if check is not None:
        with reading(origin, f"a {kind} file"), path.open("rb") as file:
            check(file, origin, most)


def _bounded(origin: str, size: int, most: int) -> None:
    if size > most:
        raise TooLargeError(
            f"{origin}: unpacks to more than {most / 2**20:.0f} MiB, which is more than this server takes; cut it"
        )


def _check_text(file: BinaryIO, origin: str, most: int) -> None:  # noqa: ARG001 (text does not unpack)
    length = 0
    while chunk := file.read(CHUNK):
        pieces = chunk.split(b"\n")
        lengths = [length + len(pieces[0]), *map(len, pieces[1:])]
        if max(lengths) > LONGEST_LINE:
            raise TooLargeError(f"{origin}: has a line of more than {LONGEST_LINE} bytes; write a row for each sample")
        length = lengths[-1]


def _announced(file: Any, origin: str) -> int:
    """The bytes of samples that the header of a .npy file announces."""
    shape, _, dtype = npy_header(file, origin)
    return int(math.prod(shape) * dtype.itemsize)


def _check_npy(file: BinaryIO, origin: str, most: int) -> None:
    size = _announced(file, origin)
    _bounded(origin, size, most)
    start = file.tell()
    if size > file.seek(0, 2) - start:
        raise ValueError(f"its header announces {size} bytes of samples, and they are not there")


def _check_npz(file: BinaryIO, origin: str, most: int) -> None:
    file.seek(max(file.seek(0, 2) - LONGEST_TAIL, 0))
    end = (tail := file.read()).rfind(b"PK\5\6")
    # zipfile makes an object of every entry of the list of members, however many there are.
    if 0 <= end <= len(tail) - 22 and struct.unpack_from("<I", tail, end + 12)[0] > LONGEST_LIST:
        raise TooLargeError(f"{origin}: holds too many arrays; save the samples in one")
    if tail[max(end - 20, 0) : end].startswith(b"PK\6\7"):
        raise TooLargeError(
            f"{origin}: is an archive of more than 4 GB, or pretends to be; save the samples in one array"
        )
    with zipfile.ZipFile(file) as members:
        _bounded(origin, sum(one.file_size for one in members.infolist()), most)
        for one in members.infolist():
            if one.filename.endswith(".npy"):
                with members.open(one) as member:
                    size = _announced(member, origin)
                if size > one.file_size:
                    raise ValueError(f"the header of '{one.filename}' announces more samples than there are")


def _check_mat(file: BinaryIO, origin: str, most: int) -> None:
    head = file.read(128)
    if head.startswith(HDF5):
        return _check_mat73(file, origin, most)
    tally = _Tally(origin, most)
    if 0 in head[:4]:
        return _check_mat4(file, tally)
    order = "<" if head[126:128] == b"IM" else ">"
    while len(tag := file.read(8)) == 8:
        kind, size = struct.unpack(f"{order}II", tag)
        after = file.tell() + size
        if kind == COMPRESSED:
            stream = _Stream(_inflated(file, size), order)
            kind, _ = stream.numbers("II")
        else:
            stream = _Stream(_as_it_is(file, size), order)
        if kind == MATRIX:
            tally.count(1)
            _walk(stream, tally)
        for chunk in stream.chunks:  # the reader inflates what lies behind the matrix, too
            tally.add(len(chunk))
        file.seek(after)
    return None


@dataclass
class _Tally:
    """What the variables of a file will take, refused as soon as it is too much."""

    origin: str
    most: int
    size: int = 0
    arrays: int = 0

    def add(self, size: int) -> None:
        self.size += size
        _bounded(self.origin, self.size, self.most)

    def count(self, arrays: int) -> None:
        self.arrays += arrays
        if self.arrays > MOST_ARRAYS:
            raise TooLargeError(f"{self.origin}: holds too many arrays, cells or structs; save the samples in one")


class _Stream:
    """Bytes as they come, of which few are ever held."""

    def __init__(self, chunks: Iterator[bytes], order: str) -> None:
        self.chunks, self.order, self.held, self.at = chunks, order, b"", 0

    def read(self, count: int) -> bytes:
        while len(self.held) - self.at < count:
            self.held, self.at = self.held[self.at :] + self._more(), 0
        self.at += count
        return self.held[self.at - count : self.at]

    def skip(self, count: int) -> None:
        while count > len(self.held) - self.at:
            count -= len(self.held) - self.at
            self.held, self.at = self._more(), 0
        self.at += count

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(f"{self.order}{form}", self.read(struct.calcsize(f"{self.order}{form}")))

    def part(self, keep: int = 0) -> tuple[int, int, bytes]:
        """The type and size of a part of a matrix, and its bytes where there are not more than `keep`."""
        kind, size = self.numbers("II")
        if kind >> 16:  # a small one: its bytes are within its tag
            return kind & 0xFFFF, kind >> 16, struct.pack(f"{self.order}I", size)[: kind >> 16]
        if size > keep:
            self.skip(size)
        content = self.read(size) if size <= keep else b""
        if size % 8:
            with suppress(EOFError):  # some writers leave the last padding out
                self.skip(8 - size % 8)
        return kind, size, content

    def _more(self) -> bytes:
        if not (chunk := next(self.chunks, b"")):
            raise EOFError("it ends within a variable")
        return chunk


def _walk(stream: _Stream, tally: _Tally, depth: int = 0) -> None:
    """Measures the matrix whose tag has just been read.

    It goes on from header to header just as scipy's reader does (which does not look at the sizes of inner matrices),
    so that nothing is met there that was not met here. scipy makes room for as many cells, structs and blanks as a
    header announces, whether they follow or not, and an object or more for each of them.
    """
    if depth > DEEPEST:  # its reader would run out of stack
        raise TooLargeError(f"{tally.origin}: holds cells or structs within each other, more than {DEEPEST} deep")
    stream.skip(8)
    flags, _ = stream.numbers("II")
    kind, is_complex = flags & 0xFF, bool(flags >> 11 & 1)
    if kind == OPAQUE:
        for _ in range(3):
            tally.add(stream.part()[1])
        return _walk_inner(stream, tally, depth)
    _, size, content = stream.part(keep=MOST_AXES * 4)
    axes: list[int] = np.frombuffer(content, f"{stream.order}i4").tolist()
    if size > MOST_AXES * 4 or min(axes, default=0) < 0:
        raise ValueError("a variable has impossible axes")
    length = math.prod(max(one, 1) for one in axes)  # an axis of 0 does not make the others harmless
    tally.add(4 * stream.part()[1])  # its name
    if kind in NUMERIC or kind in (SPARSE, CHARACTERS):
        each = 16 if is_complex or kind == CHARACTERS else 8
        _bounded(tally.origin, tally.size + length * each, tally.most)
        parts = (2 if kind == SPARSE else 0) + (2 if is_complex and kind != CHARACTERS else 1)
        found = [stream.part() for _ in range(parts)]
        told = sum(size // WIDTHS.get(one, 1) for one, size, _ in found)
        tally.add(max(sum(size for _, size, _ in found), max(told, length) * each))
    elif kind in (STRUCTS, OBJECTS):
        if kind == OBJECTS:
            tally.add(4 * stream.part()[1])  # the class
        _, _, content = stream.part(keep=4)
        (width,) = struct.unpack(f"{stream.order}i", content)
        if width < 1:
            raise ValueError("a struct's names have no width")
        fields = stream.part()[1] // width
        if fields > MOST_FIELDS:
            raise TooLargeError(
                f"{tally.origin}: has a struct of more than {MOST_FIELDS} fields; save the samples alone"
            )
        tally.count(length * max(fields, 1))
        for _ in range(math.prod(axes) * fields):
            _walk_inner(stream, tally, depth)
    elif kind == CELLS:
        tally.count(length)
        for _ in range(math.prod(axes)):
            _walk_inner(stream, tally, depth)
    elif kind == FUNCTION:
        _walk_inner(stream, tally, depth)
    else:
        raise ValueError(f"a variable is of the unknown class {kind}")
    return None


def _walk_inner(stream: _Stream, tally: _Tally, depth: int) -> None:
    kind, size = stream.numbers("II")
    if kind != MATRIX:
        raise ValueError("a cell or field holds no matrix")
    if size:  # else it is empty and has no header
        _walk(stream, tally, depth + 1)


def _check_mat4(file: BinaryIO, tally: _Tally) -> None:
    """MATLAB v4: plain arrays one after the other."""
    end = file.seek(0, 2)
    file.seek(0)
    order = "<" if 0 <= int.from_bytes(file.read(4), "little", signed=True) <= 5000 else ">"
    file.seek(0)
    while len(head := file.read(20)) == 20:
        kind, rows, columns, imaginary, name = struct.unpack(f"{order}5i", head)
        if not 0 <= kind <= 5000 or min(rows, columns, name) < 0:
            raise ValueError("a variable has impossible axes")
        tally.count(1)
        each = 16 if kind % 10 == 1 else 32 if imaginary == 1 else 8
        tally.add(max(rows, 1) * max(columns, 1) * each + 4 * name)
        size = rows * columns * (8, 4, 4, 2, 2, 1)[min(kind // 10 % 10, 5)]
        if file.seek(name + size * (2 if imaginary == 1 else 1), 1) > end:
            raise ValueError("it ends within a variable")


def _as_it_is(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk


def _inflated(file: BinaryIO, size: int) -> Iterator[bytes]:
    """What a zlib stream of `size` bytes gives, a megabyte at a time at most."""
    stream = zlib.decompressobj()
    for chunk in _as_it_is(file, size):
        while chunk:
            if found := stream.decompress(chunk, 2**20):
                yield found
            chunk = stream.unconsumed_tail


def _check_mat73(file: BinaryIO, origin: str, most: int) -> None:
    try:
        import h5py
    except ImportError:
        return  # who reads the file says what to install
    total = 0

    def visit(name: str, node: Any) -> None:
        nonlocal total
        if isinstance(node, h5py.Dataset):
            if node.is_virtual or node.external:
                raise InputError(f"{origin}: '{name}' is kept in another file; save the samples in this one")
            total += int(node.nbytes)

    file.seek(0)
    with h5py.File(file, "r") as tree:
        tree.visititems(visit)
    _bounded(origin, total, most)


def _check_parquet(file: BinaryIO, origin: str, most: int) -> None:
    try:
        from pyarrow import parquet
    except ImportError:
        return
    words, total = parquet.ParquetFile(file).metadata, 0
    for group in range(words.num_row_groups):
        for place in range(words.num_columns):
            column = words.row_group(group).column(place)
            # A dictionary may repeat one long text for every row: the chunk's size is all that bounds a value.
            each = 8 if column.physical_type != "BYTE_ARRAY" else max(column.total_uncompressed_size, 8)
            total += max(column.total_uncompressed_size, column.num_values * each)
    _bounded(origin, max(total, words.num_rows * words.num_columns * 8), most)


_CHECKS: dict[str, Callable[[BinaryIO, str, int], None]] = {
    ".csv": _check_text,
    ".tsv": _check_text,
    ".txt": _check_text,
    ".npy": _check_npy,
    ".npz": _check_npz,
    ".mat": _check_mat,
    ".parquet": _check_parquet,
}
