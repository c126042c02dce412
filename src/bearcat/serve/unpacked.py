"""What an uploaded file would become in memory, found out before it is read.

A few kilobytes of npz, mat or parquet can unpack to gigabytes, a header can announce samples that are not there, and a
MATLAB v7.3 file can point at other files of this machine. `check_unpacked` reads headers (and counts compressed
bytes as they come out, keeping none) and refuses such files in a sentence. Formats that hold their samples as they
are (npy, wav) are bounded by their own size once their header is known not to lie.

>>> check_unpacked(Path("monday.npz"), "monday.npz", most=2**29)
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bearcat.data.formats import reading
from bearcat.errors import InputError

CHUNK = 2**16
LONGEST_LINE = 2**16  # bytes; a row of text with more columns than that is no recording
LONGEST_LIST = 2**18  # bytes of the list of members in an npz file: thousands of arrays
LONGEST_TAIL = 2**16 + 64  # where the end of an archive is looked for: behind it a comment of 64 KiB at most
COMPRESSED = 15  # miCOMPRESSED, the element of a MATLAB v5 file that is a zlib stream


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
    version = np.lib.format.read_magic(file)
    read: Callable[..., tuple[Any, ...]] = (
        np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise InputError(f"{origin}: holds Python objects, which are not read; save plain numbers")
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
    if head.startswith((b"MATLAB 7.3", b"\x89HDF")):
        return _check_mat73(file, origin, most)
    order = "<" if head[126:128] == b"IM" else ">"
    total = 0
    while len(tag := file.read(8)) == 8:
        kind, size = struct.unpack(f"{order}II", tag)
        if kind == COMPRESSED:
            total += _inflated(file, size, most - total)
        else:
            file.seek(size, 1)  # as it is: bounded by the file
        _bounded(origin, total, most)
    return None


def _inflated(file: BinaryIO, size: int, most: int) -> int:
    """How many bytes a zlib stream of `size` bytes gives, counted up to a little over `most`."""
    stream, found = zlib.decompressobj(), 0
    while size > 0 and found <= most and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        while chunk and found <= most:
            found += len(stream.decompress(chunk, 2**20))
            chunk = stream.unconsumed_tail
    return found


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
