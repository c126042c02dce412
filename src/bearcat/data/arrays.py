"""Files of arrays: npy, npz, MATLAB and wav. Nothing here executes what it reads.

npy and wav files are mapped, MATLAB v7.3 files are read by slices; npz files and older MATLAB files are read whole.
"""

from __future__ import annotations

import re
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, BinaryIO, ClassVar, Literal, Protocol, cast

import numpy as np

from bearcat.data.signals import BLOCK, Part, Samples, SignalFile, TooLargeError, reading, some_of
from bearcat.errors import InputError

LARGEST_CHUNK = 2**24  # bytes; one of an HDF5 dataset is unpacked whole, and may be longer than a short dataset
MOST_CHUNKS = 10_000  # of a wav file, before its samples
RATE_NAMES = {"rate", "fs", "sr", "samplerate", "samplingrate", "samplingfrequency", "samplefrequency", "fsamp"}
HDF5 = (b"MATLAB 7.3", b"\x89HDF")  # how MATLAB v7.3 files begin
# Of wav files: what samples are, by the code (1 integers, 3 floats) and the bytes of a sample.
WAV_SAMPLES = {(1, 1): "u1", (1, 2): "<i2", (1, 3): "u1", (1, 4): "<i4", (1, 8): "<i8", (3, 4): "<f4", (3, 8): "<f8"}


class _Array(Protocol):
    """What numpy, h5py and `_MappedArray` have in common: slices are read on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __getitem__(self, index: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class _MappedArray:
    """An array in a file, mapped anew for every slice: pages that were read stay in memory as long as their map."""

    file: BinaryIO
    stored: Any  # the type of its numbers in the file
    start: int
    shape: tuple[int, ...]
    order: Literal["C", "F"] = "C"

    @property
    def dtype(self) -> np.dtype[Any]:
        return cast(np.dtype[Any], np.dtype(self.stored))

    def __getitem__(self, index: Any) -> Samples:
        return np.array(np.memmap(cast(Any, self.file), self.stored, "r", self.start, self.shape, self.order)[index])


def from_arrays(origin: str, arrays: Mapping[str, _Array], rate: float | None = None) -> SignalFile:
    """Channels of named arrays of one or two axes: a table gives a channel per column, a number may be the rate."""
    places: dict[str, tuple[_Array, int, list[int]]] = {}  # channel → array, axis of time, the other indices
    for name, array in arrays.items():
        size = prod(array.shape) if array.dtype.kind in "fiu" else 0
        if size == 1 and re.sub(r"[\W_]", "", name.lower().rpartition(".")[2]) in RATE_NAMES:
            rate = float(np.asarray(array[...]).reshape(()))
        if size < 2:
            continue
        axes = [axis for axis, side in enumerate(array.shape) if side != 1]
        if len(axes) > 2:
            raise InputError(f"{origin}: '{name}' has {len(axes)} axes; a signal has one, a table of channels two")
        time = axes[-1] if array.shape[axes[0]] < array.shape[axes[-1]] else axes[0]  # the longer one
        if len(axes) == 1:
            places[name or "1"] = array, time, [0] * len(array.shape)
            continue
        for number in range(min(array.shape[axis] for axis in axes)):
            index = [number if axis in axes else 0 for axis in range(len(array.shape))]
            places[f"{name}.{number + 1}".lstrip(".")] = array, time, index
    if not places:
        raise InputError(f"{origin}: holds no numeric signal; it has {some_of(arrays)}")

    def read(names: Sequence[str]) -> Iterator[Part]:
        for name in names:
            array, time, index = places[name]
            for start in range(0, array.shape[time], BLOCK):
                yield {name: array[(*index[:time], slice(start, start + BLOCK), *index[time + 1 :])]}

    sizes = {name: array.shape[time] * array.dtype.itemsize for name, (array, time, _) in places.items()}
    return SignalFile(origin, sizes, rate, read)


def open_npy(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    mapped = np.lib.format.open_memmap(file.name, mode="r")
    order: Literal["C", "F"] = "C" if mapped.flags.c_contiguous else "F"
    return from_arrays(origin, {"": _MappedArray(file, mapped.dtype, mapped.offset, mapped.shape, order)})


def open_npz(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    archive = stack.enter_context(np.load(file, allow_pickle=False))
    for member in archive.zip.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack far more at once
            raise ValueError(f"'{member.filename}' is compressed in a way that numpy does not write")
        with archive.zip.open(member) as content:
            _check_announced(content, member)
    return from_arrays(origin, {name: np.asarray(array) for name, array in archive.items()})


def _check_announced(content: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Refuses an array that announces more than its member holds, before memory is taken for it."""
    lib = np.lib.format
    with suppress(ValueError):  # a text, or an array of objects, which numpy refuses to read
        version = lib.read_magic(content)
        shape, _, dtype = (lib.read_array_header_1_0 if version == (1, 0) else lib.read_array_header_2_0)(content)
        if prod(shape) * dtype.itemsize > member.file_size:
            raise EOFError(f"'{member.filename}' announces more samples than it holds")


def open_mat(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    if _is_hdf5(file):
        return from_arrays(origin, numeric_nodes(stack.enter_context(open_hdf5(file, origin)), origin))
    return from_arrays(origin, {name: np.asarray(value) for name, value in read_mat(file, origin).items()})


def read_mat(file: BinaryIO, origin: str) -> dict[str, Any]:
    """The variables of a MATLAB file, v5 or v7.3; structs of v5 as objects with fields, groups of v7.3 as `a.b`."""
    with reading(origin, "a MATLAB file"):
        if _is_hdf5(file):
            with open_hdf5(file, origin) as tree:
                return {name: np.asarray(node[()]).squeeze() for name, node in numeric_nodes(tree, origin).items()}
        from scipy.io import loadmat

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a variable stored twice, of which the last one counts
            variables: dict[str, Any] = loadmat(file, struct_as_record=False, squeeze_me=True)  # type: ignore[arg-type]
        return {name: value for name, value in variables.items() if not name.startswith("__")}


def mat_arrays(path: str, origin: str) -> tuple[dict[str, Any], dict[str, Samples]]:
    """The numeric variables of a MATLAB file as arrays (the form that bearcat.data.isolated.read_arrays wants)."""
    with reading(origin, "a MATLAB file"), Path(path).open("rb") as file:
        variables = {name: np.asarray(value) for name, value in read_mat(file, origin).items()}
    return {}, {name: value for name, value in variables.items() if value.dtype.kind in "fiub"}


def _is_hdf5(file: BinaryIO) -> bool:
    head = file.read(20)
    file.seek(0)
    return head.startswith(HDF5)


def open_hdf5(file: BinaryIO, origin: str, kind: str = "MATLAB v7.3") -> Any:
    try:
        import h5py
    except ImportError as error:
        raise InputError(f"{origin}: {kind} files need an extra; pip install 'bearcat[formats]'") from error
    return h5py.File(file, "r", rdcc_nbytes=2**25)  # a chunk is unpacked whole for any part of it, and kept if it fits


def numeric_nodes(tree: Any, origin: str) -> dict[str, Any]:
    """The arrays of numbers in an HDF5 tree, as `a.b`, not yet read; MATLAB's own bookkeeping is left out."""
    import h5py

    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiu" and node.shape and not name.startswith("#"):
            if node.is_virtual or node.external:
                raise InputError(f"{origin}: '{name}' is kept in another file; save the samples in this one")
            if node.chunks and prod(node.chunks) > max(prod(node.shape), LARGEST_CHUNK // node.dtype.itemsize):
                raise TooLargeError(f"{origin}: '{name}' has chunks larger than itself; save it again without chunks")
            found[name.replace("/", ".")] = node

    tree.visititems(visit)
    return found


@dataclass(frozen=True, eq=False)
class _WavChannel:
    """A channel of the frames of a wav file (frame, channel, or byte of 24 bits), as floats whose full scale is 1."""

    frames: _MappedArray
    number: int
    dtype: ClassVar[Any] = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.frames.shape[:1]

    def __getitem__(self, index: Any) -> Samples:
        samples = self.frames[(*index, self.number)]
        if samples.ndim == 2:  # 24 bits, the lowest byte first
            wide = np.zeros((len(samples), 4), dtype=np.uint8)
            wide[:, 1:] = samples
            samples = wide.view("<i4")[:, 0]
        elif samples.dtype.kind == "u":
            return samples / np.float32(128) - 1
        if samples.dtype.kind == "i":
            return samples.astype(np.float32) / np.float32(2.0 ** (8 * samples.itemsize - 1))
        return samples


def open_wav(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """RIFF and RF64 files of integers or floats; scipy's reader cannot map 24 bits."""
    kind, form = struct.unpack("<4s4x4s", file.read(12))
    if kind not in (b"RIFF", b"RF64") or form != b"WAVE":
        raise ValueError("no RIFF header")
    code, channels, rate, width, long_size = 0, 0, 0, 0, 0
    for _chunk in range(MOST_CHUNKS):
        name, size = struct.unpack("<4sI", file.read(8))
        start = file.tell()
        if name == b"data":
            break
        if name == b"ds64":  # of files beyond 4 GB, whose other sizes say nothing
            (long_size,) = struct.unpack("<8xQ", file.read(16))
        elif name == b"fmt ":
            code, channels, rate, width = struct.unpack("<HHI4xH2x", file.read(16))
            if code == 0xFFFE:  # the kind of sample is given further on
                (code,) = struct.unpack("<8xH", file.read(10))
        file.seek(start + size + size % 2)
    else:
        raise ValueError("too many chunks before its samples")
    stored = WAV_SAMPLES.get((code, width // channels)) if channels else None
    if stored is None or width % channels:
        raise ValueError(f"{channels} channels in {width} bytes, of the kind {code}, are not supported")
    count = (long_size if kind == b"RF64" else size) // width
    frames = _MappedArray(file, stored, start, (count, channels, 3) if width == 3 * channels else (count, channels))
    if start + count * width > file.seek(0, 2):
        raise EOFError("it ends before its samples do")
    return from_arrays(origin, {str(n + 1): _WavChannel(frames, n) for n in range(channels)}, float(rate))
