"""Files of signals in the usual formats: text, numpy, MATLAB, wav and parquet; those of bearcat.data.instruments too.

`open_signals` opens a file and says which channels it holds; their samples are read on demand, a block
at a time. `read_signals` reads them all. Channels go by name, never by position; where the format has no names, they
are called "1", "2", … Nothing here executes what it reads.

npy and wav files are mapped, text is read by lines, parquet by rows, MATLAB v7.3 by slices; npz files and older MATLAB
files are read whole.

>>> signals = read_signals(Path("pump/inner/monday.csv"))
>>> name, samples = signals.pick(None)
"""

from __future__ import annotations

import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import islice
from math import prod
from pathlib import Path
from typing import IO, Any, BinaryIO, ClassVar, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError, suggest

Samples = NDArray[Any]
Part = dict[str, Samples]  # the next samples of some channels, by name

BLOCK = 2**18  # samples read at once
TEXT_BLOCK = 2**18  # bytes of text read at once
LONGEST_LINE = 2**16  # bytes; a row of text with more columns than that is no recording
LONGEST_HEADER = 500  # rows above the numbers; asking each takes as long as reading a hundred of numbers
SOME_NAMES = 30  # of channels, listed in a sentence
MOST_CHANNELS = 1000  # of a file; more are windows that were cut already, or a table that lies on its side
LARGEST_CHUNK = 2**24  # bytes; one of an HDF5 dataset is unpacked whole, and may be longer than a short dataset
MOST_CHUNKS = 10_000  # of a wav file, before its samples
PROBED = 2**12  # rows of a parquet file that show which of its columns are times or sample numbers
RATE_NAMES = {"rate", "fs", "sr", "samplerate", "samplingrate", "samplingfrequency", "samplefrequency", "fsamp"}
TIME_NAMES = {"time", "t", "zeit", "seconds", "sec", "timestamp", "times"}
TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}
UNIT = re.compile(  # of a row of units below the header, brackets taken off
    r"|-|%|[mµμunk]?s|sec|min|h|[mµμk]?g|([mµμkc]?m|in)(/s(\^?2|²)?)?|[mk]?[vawn]|n\.?m|[k]?hz|rpm|1/min|min-1|u/min|°?[cfk]|bar|[kmh]?pa|db"
    r"|hh:mm:ss.*|dd.*|yyyy.*", re.IGNORECASE
)  # fmt: skip
FIRST_DAY = date(2000, 1, 1).toordinal()  # of seconds that are counted with dates, which keeps their digits
CLOCK = r"(?:(\d{1,4})[-./](\d{1,2})[-./](\d{1,4})[ T])?(\d{1,2}):(\d{2}):(\d{2}(?:[SIGNS]\d+)?)"  # a time of day
INDEX_NAMES = {"", "index", "sample", "samples", "n", "no", "unnamed: 0"}
HDF5 = (b"MATLAB 7.3", b"\x89HDF")  # how MATLAB v7.3 files begin
# Of wav files: what samples are, by the code (1 integers, 3 floats) and the bytes of a sample.
WAV_SAMPLES = {(1, 1): "u1", (1, 2): "<i2", (1, 3): "u1", (1, 4): "<i4", (1, 8): "<i8", (3, 4): "<f4", (3, 8): "<f8"}


class TooLargeError(InputError):
    """The file may be readable, but there is too much in it."""


@contextmanager
def reading(origin: str, kind: str, damaged: type[InputError] = InputError) -> Iterator[None]:
    """Turns any failure while reading a file into one sentence that names the file.

    Every exception counts as damage, because readers that meet unexpected bytes raise nearly all kinds of them.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{origin}: there is no such file") from error
    except PermissionError as error:
        raise InputError(f"{origin}: permission denied; make the file readable for your user") from error
    except MemoryError as error:
        raise TooLargeError(f"{origin}: needs more memory than there is; cut it into shorter recordings") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{origin}: is not UTF-8 text (byte 0x{error.object[error.start]:02x});"
            " save it again with the encoding UTF-8"
        ) from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200].rstrip(".") or type(error).__name__
        raise damaged(
            f"{origin}: cannot be read as {kind} ({reason}); the file is damaged, cut short or of another format"
        ) from error


@dataclass(frozen=True, eq=False)
class SignalFile:
    """An open file: its channels with the bytes their samples take (0 where it does not say), and its sampling rate.

    `read` may be called once, with the names of the channels wanted; each part holds the next samples of some of them.
    """

    origin: str
    channels: Mapping[str, int]
    rate: float | None
    read: Callable[[Sequence[str]], Iterator[Part]]
    rates: Mapping[str, float | None] = field(default_factory=dict)  # of channels with rates of their own

    def rate_of(self, channel: str) -> float | None:
        return self.rates.get(channel, self.rate)


@dataclass(frozen=True, eq=False)
class Signals:
    """The channels of one file, by name, with its sampling rate if the file says it."""

    origin: str
    channels: Mapping[str, Samples]
    rate: float | None
    speed: Samples | None = None  # in rpm, where a channel holds it
    rates: Mapping[str, float | None] = field(default_factory=dict)  # of channels with rates of their own

    def of_one_rate(self, channel: str | None = None) -> Signals:
        """This channel alone, with its rate; without a name, the channels at the rate of the longest one."""
        if channel is not None:
            name, samples = self.pick(channel)
            return replace(self, channels={name: samples}, rate=self.rates.get(name, self.rate), rates={})
        if not self.rates:
            return self
        longest = max(self.channels, key=lambda name: len(self.channels[name]))
        rate = self.rates.get(longest, self.rate)
        channels = {name: samples for name, samples in self.channels.items() if self.rates.get(name, self.rate) == rate}
        return replace(self, channels=channels, rate=rate, rates={})

    def pick(self, channel: str | None) -> tuple[str, Samples]:
        """The channel of this name; without a name, the only one there is."""
        name = chosen_channel(self.origin, self.channels, channel)
        return name, self.channels[name]


def chosen_channel(origin: str, channels: Mapping[str, Any], channel: str | None) -> str:
    """The channel of this name; without a name, the only one there is."""
    if channel is None and len(channels) == 1:
        return next(iter(channels))
    if channel is None:
        raise InputError(f"{origin}: holds {len(channels)} channels ({_some(channels)}); choose one", "channel")
    if channel not in channels:
        known = list(islice(channels, SOME_NAMES))
        raise InputError(f"{origin}: has no channel '{channel}'{suggest(channel, known)}", "channel")
    return channel


def _some(names: Iterable[str]) -> str:
    listed = list(islice(names, SOME_NAMES + 1))
    return ", ".join(listed[:SOME_NAMES] + ["…"] * (len(listed) > SOME_NAMES))[:400] or "nothing"


@contextmanager
def open_signals(path: Path, origin: str | None = None) -> Iterator[SignalFile]:
    """A file of any format, by its suffix; `origin` is the name used in error messages."""
    origin, suffix = str(path) if origin is None else origin, path.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
    with reading(origin, f"a {suffix} file"), ExitStack() as stack:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise InputError(f"{origin}: is no regular file; copy its content into one")
        file = stack.enter_context(path.open("rb"))
        if path.stat().st_size == 0:
            raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
        opened = _opener(suffix)(file, origin, stack)
        if opened.rate is not None and not (np.isfinite(opened.rate) and opened.rate > 0):
            raise InputError(f"{origin}: the sampling rate must be a positive number of hertz, not {opened.rate:g}")
        _check_count(origin, len(opened.channels))
        yield opened


def _check_count(origin: str, channels: int) -> None:
    if channels > MOST_CHANNELS:
        raise InputError(
            f"{origin}: has {channels} columns; a row for each sample and a column for each channel are wanted, at most"
            f" {MOST_CHANNELS}; transpose the table, or write each signal into a file of its own"
        )


def _opener(suffix: str) -> Callable[[BinaryIO, str, ExitStack], SignalFile]:
    if suffix in OPENERS:
        return OPENERS[suffix]
    from bearcat.data.instruments import OPENERS as LATER_OPENERS  # a module that imports this one

    return LATER_OPENERS[suffix]


def read_signals(path: Path, origin: str | None = None) -> Signals:
    """All channels of a file, by its suffix; `origin` is the name used in error messages."""
    with open_signals(path, origin) as opened:
        found: dict[str, list[Samples]] = {name: [] for name in opened.channels}
        for part in opened.read(list(found)):
            for name, samples in part.items():
                found[name].append(samples)
        channels = {name: np.concatenate(samples) for name, samples in found.items()}
        return Signals(opened.origin, channels, opened.rate, rates=opened.rates)


# Arrays: npy, npz, MATLAB and wav.


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
        raise InputError(f"{origin}: holds no numeric signal; it has {_some(arrays)}")

    def read(names: Sequence[str]) -> Iterator[Part]:
        for name in names:
            array, time, index = places[name]
            for start in range(0, array.shape[time], BLOCK):
                yield {name: array[(*index[:time], slice(start, start + BLOCK), *index[time + 1 :])]}

    sizes = {name: array.shape[time] * array.dtype.itemsize for name, (array, time, _) in places.items()}
    return SignalFile(origin, sizes, rate, read)


def _open_npy(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    mapped = np.lib.format.open_memmap(file.name, mode="r")
    order: Literal["C", "F"] = "C" if mapped.flags.c_contiguous else "F"
    return from_arrays(origin, {"": _MappedArray(file, mapped.dtype, mapped.offset, mapped.shape, order)})


def _open_npz(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
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


def _open_mat(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
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


def _open_wav(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
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


# Tables: text and parquet.


def _from_table(origin: str, head: Part, parts: Callable[[Sequence[str]], Iterator[Part]], size: int = 0) -> SignalFile:
    """Channels of a table's columns. `head`: all columns of the first rows, empty where they hold no numbers.

    A column of times gives the rate, a column of sample numbers is left out.
    """
    _check_count(origin, len(head))
    clock, unit, rate = "", 1.0, None
    left_out: set[str] = set()
    for name, values in head.items():
        if len(head) - len(left_out) == 1 or values.size < 3 or values.dtype.kind not in "fiu":
            continue
        plain, _, unit_name = re.sub(r"[\[\]()/,;]|_(?=[mµμu]?s(ec)?$)", " ", name.lower()).strip().partition(" ")
        steps = np.diff(values.astype(np.float64))
        even = bool(steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-3, atol=0))
        if plain in INDEX_NAMES | {"1"} and even and steps[0] == 1:
            left_out.add(name)
        elif plain in TIME_NAMES or (plain == "1" and even):
            clock, unit = name, TIME_UNITS.get(unit_name.strip(), 1.0)
            rate = rate_of(origin, name, values.astype(np.float64) * unit)
            left_out.add(name)
    numeric = {name for name, values in head.items() if values.dtype.kind in "fiu" and values.size > 1} - left_out
    if not numeric:
        raise InputError(f"{origin}: holds no numeric signal; it has {_some(head)}")

    def read(names: Sequence[str]) -> Iterator[Part]:
        before = np.empty(0)
        for part in parts([*names, clock] if rate else names):
            if rate:
                times = np.concatenate([before, part[clock] * unit])
                found = rate_of(origin, clock, times)
                if times.size > 100 and abs(found / rate - 1) > 0.01:
                    raise InputError(f"{origin}: its rate changes from {rate:g} to {found:g} Hz; cut the file there")
                before = times[-1:]
            yield {name: part[name] for name in names}

    return SignalFile(origin, {name: size for name in head if name in numeric}, rate, read)


def rate_of(origin: str, name: str, times: Samples) -> float:
    """The rate of evenly spaced times, rounded to a whole number where it is one but for the rounding of the file."""
    span = times[-1] - times[0]
    if not np.isfinite(span) or span <= 0:
        raise InputError(f"{origin}: the times in column '{name}' do not rise; sort them, or remove the column")
    step = span / (times.size - 1)
    off = np.abs(times - times[0] - step * np.arange(times.size))
    if not off.max() <= 1.5 * step:
        raise InputError(
            f"{origin}: the times in column '{name}' are not evenly spaced (near {times[off.argmax()]:g} s);"
            " resample the signal, or remove the column and give the rate as a number"
        )
    rate = 1 / step
    return float(round(rate)) if abs(rate - round(rate)) < 1e-4 * rate else float(rate)


def _open_text(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """Columns of numbers: any of , ; tab or blanks between them, decimal point or comma, an optional header.

    Below the header may be a row of units, behind each row a separator, and in a column the time of day.
    """
    blocks = _line_blocks(file, origin)
    lines = next(blocks, None)
    if lines is None:
        raise InputError(f"{origin}: holds no rows; record or export it again")
    probe = lines[min(len(lines) - 1, 50)]  # far enough below any header
    delimiter = next((sign for sign in ("\t", ";") if sign in probe), None)
    if delimiter is None and "," in probe:
        delimiter = ","
    clock = re.compile(CLOCK.replace("SIGNS", "." if delimiter == "," else ".,"))
    decimal_comma = delimiter in ("\t", ";") and "," in probe and "." not in clock.sub("", probe)
    trailing = delimiter is not None and probe.rstrip(" ").endswith(delimiter)
    clocks = clock.search(probe) is not None

    def fields(row: str) -> list[str]:
        row = row.rstrip(" ").removesuffix(delimiter or "") if trailing else row
        return [text.strip().strip('"') for text in row.split(delimiter)]

    def parse(rows: list[str]) -> Samples:
        if clocks:
            rows = [clock.sub(_seconds, row) for row in rows]
        if trailing:
            rows = [row.rstrip(" ").removesuffix(delimiter or "") for row in rows]
        rows = [row.replace(",", ".") for row in rows] if decimal_comma else rows
        return np.loadtxt(rows, delimiter=delimiter, ndmin=2, comments=None)

    def is_numeric(row: str) -> bool:
        with suppress(ValueError):
            return parse([row]).size > 0
        return False

    start = next((number for number, row in enumerate(lines[:LONGEST_HEADER]) if is_numeric(row)), None)
    if start is None:
        raise InputError(f"{origin}: no row holds numbers only; export the signal as plain columns of numbers")
    values = parse(lines[start:])
    head = dict(zip(_header(lines[:start], fields, values.shape[1]), values.T, strict=True))
    coarse = {name for name, column in head.items() if clocks and _is_coarse_clock(name, column)}

    def parts(_: Sequence[str]) -> Iterator[Part]:
        yield head
        for rows in blocks:
            yield dict(zip(head, parse(rows).T, strict=True))

    return _from_table(
        origin, {name: np.empty(0) if name in coarse else column for name, column in head.items()}, parts
    )


def _header(above: Sequence[str], fields: Callable[[str], list[str]], columns: int) -> list[str]:
    """The names of the columns: the row above the numbers, or the one above that where it is a row of units."""
    rows = [fields(row) for row in above[-2:]]
    rows = [row[:columns] if len(row) == columns + 1 and not row[-1] else row for row in rows]
    names, units = rows[-1] if rows else [], [""] * columns
    if len(rows) == 2 and [len(row) for row in rows] == [columns] * 2 and any(names):
        bare = [text.strip("[]() ") for text in names]
        if all(UNIT.fullmatch(text) for text in bare) and not any(UNIT.fullmatch(text) for text in rows[0] if text):
            names, units = rows[0], bare
    if len(names) != columns or len(set(names)) != len(names):
        return [str(number) for number in range(1, columns + 1)]
    return [f"{name} [{unit}]" if name.lower() in TIME_NAMES and unit.lower() in TIME_UNITS else name
            for name, unit in zip(names, units, strict=True)]  # fmt: skip


def _seconds(clock: re.Match[str]) -> str:
    """A time of day, with or without its date, in seconds."""
    first, month, last, hours, minutes, seconds = clock.groups()
    day = 0
    if first is not None:
        year, number = (first, last) if len(first) == 4 else (last, first)
        months, days = sorted((int(month), int(number))) if int(month) > 12 else (int(month), int(number))
        day = date(int(year), months, days).toordinal() - FIRST_DAY
    return f"{86400 * day + 3600 * int(hours) + 60 * int(minutes) + float(seconds.replace(',', '.')):.9f}"


def _is_coarse_clock(name: str, times: Samples) -> bool:
    """Whether a column of times of day repeats itself, so that it does not tell the rate."""
    return name.lower().split(" ")[0] in TIME_NAMES | {"date", "datetime"} and bool((np.diff(times) == 0).any())


def _line_blocks(file: BinaryIO, origin: str) -> Iterator[list[str]]:
    """Some lines at a time, without empty ones and comments, as UTF-8 or, as Windows writes them, cp1252."""
    rest, encoding = b"", "utf-8-sig"
    while rest or file.peek(1):  # type: ignore[attr-defined]
        chunk = file.read(TEXT_BLOCK)
        lines = (rest + chunk).splitlines(keepends=True)
        rest = lines.pop() if chunk and not lines[-1].endswith(b"\n") else b""
        if max(map(len, [*lines, rest])) > LONGEST_LINE:
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


def _open_parquet(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    try:
        from pyarrow import Table, parquet, types
    except ImportError as error:
        raise InputError(f"{origin}: parquet needs an extra; pip install 'bearcat[formats]'") from error

    def is_numeric(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_integer(kind) or types.is_floating(kind))

    opened = parquet.ParquetFile(file, buffer_size=2**16, pre_buffer=False)  # pages are read as they are needed
    schema = opened.schema_arrow
    if len(set(schema.names)) != len(schema.names):
        raise ValueError("two of its columns have the same name")

    def batches(names: Sequence[str], rows: int) -> Iterator[Any]:
        """At most so many rows at a time; a batch ends where a group of rows does."""
        return opened.iter_batches(rows, columns=list(names), use_threads=False) if names else iter(())

    def columns(rows: Sequence[Any]) -> Part:
        table = Table.from_batches(rows)
        return {name: table[name].to_numpy() for name in table.column_names}

    first = list(islice(batches([field.name for field in schema if is_numeric(field.type)], PROBED), 4))
    head = dict.fromkeys(schema.names, np.empty(0)) | (columns(first) if first else {})
    size = 8 * opened.metadata.num_rows
    return _from_table(origin, head, lambda names: (columns([rows]) for rows in batches(names, BLOCK // 4)), size)


OPENERS: dict[str, Callable[[BinaryIO, str, ExitStack], SignalFile]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), _open_text),
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".mat": _open_mat,
    ".wav": _open_wav,
    ".parquet": _open_parquet,
}
# The others are opened by bearcat.data.instruments.
FORMATS = (*OPENERS, ".h5", ".hdf5", ".flac", ".tdms", ".uff", ".unv", ".mf4", ".mdf")
UPLOADS = tuple(suffix for suffix in FORMATS if suffix not in (".mf4", ".mdf"))  # to a server; see docs/security.md
