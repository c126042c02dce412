"""Files of signals in all formats: arrays (npy, npz, MATLAB, HDF5, wav), tables (text, parquet), instruments' files.

`read_channels` reads channels a block of samples at a time, so that a day needs no more memory than a minute (npz and
older MATLAB files are read whole). Channels without a name are called "1", "2", … In a table, a column of times gives
the rate, and a column of sample numbers is left out. Nothing here executes what it reads.

>>> opened = ChannelStreams("monday.wav", read_channels(Path("pump/monday.wav"), "monday.wav"))
>>> loudest = max(abs(block).max() for block in opened.stream("1").blocks)
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

import bearcat.data.signals as signals
from bearcat.data.channels import is_speed, unit_of, vibrations
from bearcat.data.recording import Floats
from bearcat.data.signals import BLOCK, Part, Samples, SignalFile, TooLargeError, library, one_by_one, rate_of, reading
from bearcat.errors import InputError
from bearcat.names import shown
from bearcat.storage import check_regular

ONE, TO_DIAGNOSE, ALL = "one", "to diagnose", "all"  # which channels of a file are read
DEEPEST = 8  # structs and cells inside each other
RATE_NAMES = {  # in lower case, without signs between words and without Hz at the end
    "rate", "fs", "sr", "srate", "fsamp", "sampfreq", "samplerate", "samplefreq", "samplefrequency", "samplingrate",
    "samplingfreq", "samplingfrequency",
}  # fmt: skip
SPEED_NAMES = {"rpm", "speedrpm", "rpmspeed", "shaftrpm", "shaftspeedrpm"}  # likewise
HDF5 = (b"MATLAB 7.3", b"\x89HDF")  # how MATLAB v7.3 files begin

TEXT_BLOCK = 2**18  # bytes of text read at once
LONGEST_LINE = 2**16  # bytes; a row of text with more columns than that is no recording
LONGEST_HEADER = 500  # rows above the numbers; asking each takes as long as reading a hundred of numbers
PROBED = 2**12  # rows of a parquet file that show which of its columns are times or sample numbers
TIME_NAMES = {"time", "t", "zeit", "seconds", "sec", "timestamp", "times"}
TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}
UNIT = re.compile(  # of a row of units below the header, brackets taken off
    r"|-|%|[mµμunk]?s|sec|min|h|[mµμk]?g|([mµμkc]?m|in)(/s(\^?2|²)?)?|[mk]?[vawn]|n\.?m|[k]?hz|rpm|1/min|min-1|u/min|°?[cfk]|bar|[kmh]?pa|db",
    re.IGNORECASE,
)  # fmt: skip
INDEX_NAMES = {"", "index", "sample", "samples", "n", "no", "unnamed: 0"}


class _Array(Protocol):
    """What numpy, h5py and `StoredArray` have in common: slices are read on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __getitem__(self, index: Any, /) -> Any: ...


def from_arrays(origin: str, arrays: Mapping[str, _Array]) -> SignalFile:
    """Channels of named arrays of one or two axes; a table gives a channel per column. Names are `a.b` inside a struct.

    The rate is a number called fs, sr or the like, or that of evenly rising times: of the same struct, else of one
    around it, else the only one of the file. A number called `rate` is the rate where nothing else is: beside `sr` it
    is the shaft's. A number called `rpm` is the speed, of the same struct or of one around it; X097RPM is that of the
    channels whose names begin with X097.
    """
    places: dict[str, tuple[_Array, int, list[int]]] = {}  # channel → array, axis of time, the other indices
    rates: dict[str, dict[str, float]] = {}  # by struct, or by table; then by the name of what says it
    speeds: dict[str, dict[str, float]] = {}  # likewise
    for stored, array in arrays.items():
        name = shown(stored)
        size = prod(array.shape) if array.dtype.kind in "fiu" else 0
        parent, _, own = name.rpartition(".")
        if size == 1 and _plain(own).removesuffix("hz") in RATE_NAMES:
            rates.setdefault(parent, {})[own] = float(np.asarray(array[...]).reshape(()))
        elif size == 1 and (_plain(own) in SPEED_NAMES or _plain(own).endswith("rpm")):
            speeds.setdefault(parent, {})[own] = float(np.asarray(array[...]).reshape(()))
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

    def part(name: str, start: int = 0) -> Samples:
        array, time, index = places[name]
        return np.asarray(array[(*index[:time], slice(start, start + BLOCK), *index[time + 1 :])])

    def blocks(name: str) -> Iterator[Samples]:
        array, time, _ = places[name]
        return (part(name, start) for start in range(0, array.shape[time], BLOCK))

    for name, (array, time, _) in list(places.items()) if len(places) <= signals.MOST_CHANNELS else ():
        parent, _, own = name.rpartition(".")
        (plain, unit), count = _clock(own), array.shape[time]
        others = [each for each in places if each != name and each.rpartition(".")[0] == parent]
        alike = [each for each in others if places[each][0].shape[places[each][1]] == count]
        named, first = plain in TIME_NAMES, own == "1" and any(places[each][0] is array for each in alike)
        if count < 3 or not alike or not (named or first):
            continue
        times = part(name).astype(np.float64) * unit
        if named or _even(times):
            del places[name]
            if named or times[1] - times[0] != 1:  # else it counts samples
                rates.setdefault(parent, {})[own] = rate_of(origin, name, times)
    sizes = {name: array.shape[time] * array.dtype.itemsize for name, (array, time, _) in places.items()}
    own_rates = {name: _rate_for(origin, name, rates) for name in sizes}
    own_speeds = {name: speed for name in sizes if (speed := _speed_for(origin, name, speeds)) is not None}
    return one_by_one(origin, sizes, own_rates, blocks, arrays, own_speeds)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _rate_for(origin: str, channel: str, rates: Mapping[str, Mapping[str, float]]) -> float | None:
    """Of a channel, by what the structs around it say; None where nothing does."""
    said = next(filter(None, _around(channel, rates)), {})
    said = {name: rate for name, rate in said.items() if name.lower() != "rate"} or said
    if not said:
        every = {rate for each in rates.values() for rate in each.values()}
        return every.pop() if len(every) == 1 else None
    return _agreed(origin, said, "sampling rates", "Hz")


def _speed_for(origin: str, channel: str, speeds: Mapping[str, Mapping[str, float]]) -> float | None:
    """Likewise the speed in rpm; a number that is called after some channels is of those alone."""
    for said in filter(None, _around(channel, speeds)):
        stems = {name: re.sub(r"[\W_]*rpm$", "", name, flags=re.IGNORECASE) for name in said}
        own = [name for name, stem in stems.items() if stem and any(
            part.startswith(stem) and not part[len(stem) : len(stem) + 1].isalnum() for part in channel.split(".")
        )]  # fmt: skip
        if chosen := own or [name for name in said if _plain(name) in SPEED_NAMES]:
            return _agreed(origin, {name: said[name] for name in chosen}, "speeds", "rpm")
    return None


def _around(channel: str, said: Mapping[str, Mapping[str, float]]) -> Iterator[Mapping[str, float] | None]:
    """What the structs around a channel say, the nearest first."""
    around = channel.split(".")[:-1]
    return (said.get(".".join(around[:depth])) for depth in range(len(around), -1, -1))


def _agreed(origin: str, said: Mapping[str, float], what: str, unit: str) -> float:
    (first, value), *others = said.items()
    for other, different in others:
        if abs(different - value) > 0.01 * abs(value):
            two = f"'{first}' says {value:g} {unit} and '{other}' {different:g} {unit}"
            raise InputError(f"{origin}: has two {what}, {two}; keep the right one")
    return value


def _clock(name: str) -> tuple[str, float]:
    """The name of a column without its unit, in lower case, and the seconds of that unit of time."""
    plain, _, unit = re.sub(r"[\[\]()/,;]|_(?=[mµμu]?s(ec)?$)", " ", name.lower()).strip().partition(" ")
    return plain, TIME_UNITS.get(unit.strip(), 1.0)


def _even(values: Samples) -> bool:
    steps = np.diff(values)
    return bool(steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-3, atol=0))


def open_npy(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    lib = np.lib.format
    read = lib.read_array_header_1_0 if lib.read_magic(file) == (1, 0) else lib.read_array_header_2_0
    shape, columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds objects, which are not read")
    return from_arrays(origin, {"": signals.StoredArray(file, dtype, file.tell(), shape, columns)})


def open_npz(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    archive = stack.enter_context(np.load(file, allow_pickle=False))
    return from_arrays(origin, {name: np.asarray(array) for name, array in archive.items()})


def open_mat(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Variables, fields of structs as `struct.field`, cells as `cell.1`, or by the `Name` of structs in them."""
    if _is_hdf5(file):
        return from_arrays(origin, numeric_nodes(stack.enter_context(_open_hdf5(file, origin)), origin))
    from scipy.io import loadmat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as a variable stored twice, of which the last one counts
        variables: dict[str, Any] = loadmat(file, struct_as_record=False, squeeze_me=True)  # type: ignore[arg-type]
    variables = {name: value for name, value in variables.items() if not name.startswith("__")}
    plain = {name: value for name, value in variables.items() if type(value).__name__ != "MatlabOpaque"}
    if variables and not plain:
        raise InputError(f"{origin}: holds a table or an object of MATLAB alone; save its columns as variables")
    return from_arrays(origin, dict(_flat(origin, "", plain)))


def _flat(origin: str, name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, _Array]]:
    """The arrays in structs and cells, as `a.b`."""
    if depth > DEEPEST:
        raise InputError(f"{origin}: '{name}' is nested too deeply; save the signal as a variable of its own")
    inner: Any = None
    if isinstance(value, Mapping):
        inner = value.items()
    elif type(value).__name__ == "mat_struct":
        inner = ((field, getattr(value, field)) for field in value._fieldnames)
    elif isinstance(value, np.ndarray) and value.dtype.names:
        inner = ((field, value[field]) for field in value.dtype.names)
    elif isinstance(value, np.ndarray) and value.dtype == object:
        cells = value.ravel().tolist()[: signals.MOST_CHANNELS + 1]
        names = [getattr(cell, "Name", None) for cell in cells]
        if not all(isinstance(each, str) for each in names) or len(set(names)) < len(names):
            names = [str(number + 1) for number in range(len(cells))]
        inner = [("", cells[0])] if len(cells) == 1 else zip(names, cells, strict=True)
    if inner is None:
        yield name, np.asarray(value)
        return
    for field, item in inner:
        yield from _flat(origin, ".".join(filter(None, (name, field))), item, depth + 1)


def _is_hdf5(file: BinaryIO) -> bool:
    head = file.read(516)
    file.seek(0)
    return head.startswith(HDF5) or head.endswith(HDF5[1])  # behind the 512 bytes that MATLAB leaves for a text


def _open_hdf5(file: BinaryIO, origin: str) -> Any:
    h5py = library("h5py", "formats", origin)
    return h5py.File(file, "r", rdcc_nbytes=2**25)  # a chunk is unpacked whole for any part of it, and kept if it fits


def numeric_nodes(tree: Any, origin: str) -> dict[str, Any]:
    """The arrays of numbers in an HDF5 tree, as `a.b`, not yet read, and those in cells of MATLAB, as `a.1`.

    MATLAB's own bookkeeping, tables and objects are left out.
    """
    import h5py

    found: dict[str, Any] = {}

    def add(name: str, node: Any) -> None:
        if not isinstance(node, h5py.Dataset) or node.dtype.kind not in "fiu" or not node.shape:
            return
        if node.is_virtual or node.external:
            raise InputError(f"{origin}: '{name}' is kept in another file; save the samples in this one")
        found[name.replace("/", ".")] = node

    def visit(name: str, node: Any) -> None:
        if name.startswith("#") or "MATLAB_object_decode" in node.attrs:
            return
        if isinstance(node, h5py.Dataset) and h5py.check_ref_dtype(node.dtype) is h5py.Reference:
            for number, cell in enumerate(node[()].ravel()[: signals.MOST_CHANNELS + 1], start=1):
                add(f"{name}/{number}", tree[cell])
            return
        add(name, node)

    tree.visititems(visit)
    return found


def open_tree(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """The arrays of an HDF5 file, as `group.array`; a number or an attribute called fs or rate is the rate."""
    tree = stack.enter_context(_open_hdf5(file, origin))
    nodes = numeric_nodes(tree, origin)
    owners = (tree, *(tree[name.replace(".", "/")] for name in nodes if name.replace(".", "/") in tree))
    said = [(f"@{name}", np.asarray(value)) for owner in owners for name, value in owner.attrs.items()]
    numbers = {name: value for name, value in said if value.dtype.kind in "fiu" and value.size == 1}
    return from_arrays(origin, nodes | numbers)


def _from_table(origin: str, head: Part, parts: Callable[[Sequence[str]], Iterator[Part]], size: int = 0) -> SignalFile:
    """Channels of a table's columns. `head`: all columns of the first rows, empty where they hold no numbers."""
    clock, unit, rate = "", 1.0, None
    left_out: set[str] = set()
    for name, values in head.items():
        if len(head) - len(left_out) == 1 or values.size < 3 or values.dtype.kind not in "fiu":
            continue
        (plain, seconds), times = _clock(name), values.astype(np.float64)
        even = _even(times)
        if plain in INDEX_NAMES | {"1"} and even and times[1] - times[0] == 1:
            left_out.add(name)
        elif plain in TIME_NAMES or (plain == "1" and even):
            clock, unit = name, seconds
            rate = rate_of(origin, name, times * unit)
            left_out.add(name)
    numeric = {name for name, values in head.items() if values.dtype.kind in "fiu" and values.size > 1} - left_out

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

    sizes = {name: size for name in head if name in numeric}
    return SignalFile(origin, sizes, dict.fromkeys(sizes, rate), read, head)


def open_text(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """Columns of numbers: any of , ; tab or blanks between them, decimal point or comma, header and units."""
    blocks = _line_blocks(file, origin)
    lines = next(blocks, None)
    if lines is None:
        raise InputError(f"{origin}: holds no rows; record or export it again")
    probe = lines[min(len(lines) - 1, 50)]  # far enough below any header
    delimiter = next((sign for sign in ("\t", ";", ",") if sign in probe), None)
    decimal_comma = delimiter in ("\t", ";") and "," in probe and "." not in probe
    trailing = delimiter is not None and probe.rstrip(" ").endswith(delimiter)

    def trimmed(row: str) -> str:
        return row.rstrip(" ").removesuffix(delimiter or "") if trailing else row

    def fields(row: str) -> list[str]:
        return [shown(text.strip().strip('"')) for text in trimmed(row).split(delimiter)]

    def parse(rows: list[str]) -> Samples:
        rows = [trimmed(row) for row in rows] if trailing else rows
        rows = [row.replace(",", ".") for row in rows] if decimal_comma else rows
        return np.loadtxt(rows, delimiter=delimiter, ndmin=2, comments=None)

    def is_numeric(row: str) -> bool:
        with suppress(ValueError):
            return parse([row]).size > 0
        return False

    start = next((number for number, row in enumerate(lines[:LONGEST_HEADER]) if is_numeric(row)), None)
    if start is None:
        raise InputError(f"{origin}: no row holds numbers only; export plain columns of numbers, times in seconds")
    values = parse(lines[start:])
    head = dict(zip(_header(lines[:start], fields, values.shape[1]), values.T, strict=True))

    def parts(_: Sequence[str]) -> Iterator[Part]:
        yield head
        for rows in blocks:
            yield dict(zip(head, parse(rows).T, strict=True))

    return _from_table(origin, head, parts)


def _header(above: Sequence[str], fields: Callable[[str], list[str]], columns: int) -> list[str]:
    """The names of the columns: the row above the numbers, or the one above that where it is a row of units."""
    rows = [fields(row) for row in above[-2:]]
    rows = [row[:columns] if len(row) == columns + 1 and not row[-1] else row for row in rows]
    names, units = rows[-1] if rows else [], [""] * columns
    if len(rows) == 2 and [len(row) for row in rows] == [columns] * 2 and any(names):
        bare = [text.strip("[]() ") for text in names]
        if all(UNIT.fullmatch(text) for text in bare) and not any(UNIT.fullmatch(text) for text in rows[0] if text):
            names, units = rows[0], bare
    if columns == 1 < len(names) and unit_of(" ".join(names)):
        names = [" ".join(names)]  # one column whose name has blanks, which are between columns elsewhere
    if len(names) != columns or len(set(names)) != len(names):
        return [str(number) for number in range(1, columns + 1)]
    return [f"{name} [{unit}]" if name.lower() in TIME_NAMES and unit.lower() in TIME_UNITS else name
            for name, unit in zip(names, units, strict=True)]  # fmt: skip


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


def open_parquet(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    pyarrow, parquet = (library(name, "formats", origin) for name in ("pyarrow", "pyarrow.parquet"))
    types = pyarrow.types

    def is_numeric(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_integer(kind) or types.is_floating(kind))

    opened = parquet.ParquetFile(file, buffer_size=2**16, pre_buffer=False)  # pages are read as they are needed
    schema = opened.schema_arrow
    stored = {shown(name): name for name in schema.names}
    if len(stored) != len(schema.names):
        raise ValueError("two of its columns have the same name")

    def batches(names: Sequence[str], rows: int) -> Iterator[Any]:
        """At most so many rows at a time; a batch ends where a group of rows does."""
        columns = [stored[name] for name in names]
        return opened.iter_batches(rows, columns=columns, use_threads=False) if names else iter(())

    def columns(rows: Sequence[Any]) -> Part:
        table = pyarrow.Table.from_batches(rows)
        return {shown(name): table[name].to_numpy() for name in table.column_names}

    first = list(islice(batches([shown(field.name) for field in schema if is_numeric(field.type)], PROBED), 4))
    head = dict.fromkeys(stored, np.empty(0)) | (columns(first) if first else {})
    size = 8 * opened.metadata.num_rows
    return _from_table(origin, head, lambda names: (columns([rows]) for rows in batches(names, BLOCK // 4)), size)


OPENERS: dict[str, Callable[[BinaryIO, str, ExitStack], SignalFile]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), open_text),
    ".npy": open_npy,
    ".npz": open_npz,
    ".mat": open_mat,
    ".wav": signals.open_wav,
    ".parquet": open_parquet,
    **dict.fromkeys((".h5", ".hdf5"), open_tree),
    ".flac": signals.open_flac,
    ".tdms": signals.open_tdms,
}
FORMATS = tuple(OPENERS)
REMOVED = {".mf4": "MDF files", ".mdf": "MDF files", ".uff": "universal files", ".unv": "universal files"}
STATING = (".npz", ".mat", ".h5", ".hdf5")  # in which a number may state the speed


@contextmanager
def open_signals(path: Path, origin: str) -> Iterator[SignalFile]:
    """A file of any format, by its suffix; `origin` is the name used in error messages."""
    suffix = path.suffix.lower()
    if not suffix.lstrip(".") or suffix[1:].isdigit():  # a name without one, or that ends with a time: plain text
        suffix = ".txt"
    with reading(origin, f"a {suffix} file"), ExitStack() as stack:
        if path.is_dir():
            raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(FORMATS)}")
        if suffix in REMOVED:
            raise InputError(f"{origin}: {REMOVED[suffix]} are not read any more; save it as .parquet, .mat or .csv")
        if suffix not in OPENERS:
            raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
        check_regular(path, origin)
        file = stack.enter_context(path.open("rb"))
        if path.stat().st_size == 0:
            raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
        yield OPENERS[suffix](file, origin, stack)


@dataclass(frozen=True, eq=False)
class Stream:
    """One channel of a file as blocks of samples (time,), float32 and finite, which can be read once."""

    origin: str
    rate: float | None
    blocks: Iterator[Floats]
    size: int = 0  # bytes of samples, where the file announces them
    channel: str | None = None  # its name in the file
    rpm: float | None = None  # as the file states it, whatever it is


def _blocks(samples: Samples) -> Iterator[Floats]:
    for start in range(0, samples.size, BLOCK):
        with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf, and is named where it is used
            yield np.ascontiguousarray(samples[start : start + BLOCK], dtype=np.float32)


def _finite(origin: str, blocks: Iterable[Floats]) -> Iterator[Floats]:
    count = 0
    for block in blocks:
        if not (finite := np.isfinite(block)).all():
            bad = count + int(finite.argmin())
            raise InputError(f"{origin}: sample {bad} is NaN or infinite; cut such out or interpolate them")
        yield block
        count += block.size


class ChannelStreams:
    """The channels of one file that are to be diagnosed, and one that holds a speed; the file is decoded once.

    Each channel can be read once, in any order or in turns. Blocks of other channels that pass meanwhile are kept in
    memory; where there are too many, a channel that nobody has opened cannot be opened any more. `blocks` is what
    `read_channels` yields.
    """

    def __init__(self, origin: str, blocks: Generator[Any, None, None]) -> None:
        rates, self.sizes, self.speeds = next(blocks)
        self.origin, self.rates = origin, rates
        self.names = vibrations(rates)
        self.speed = next((name for name in rates if is_speed(name) and name not in self.names), None)
        self._blocks, self._ended = blocks, set[str]()
        self._unopened = set(rates)
        self._waiting: dict[str, deque[Floats]] = {name: deque() for name in rates}

    def stream(self, name: str, origin: str | None = None) -> Stream:
        """One of the channels; KeyError where it was opened already, was too long to wait, or the file is closed."""
        self._unopened.remove(name)
        origin = origin or self.origin
        blocks = _finite(origin, self._read(name))
        return Stream(origin, self.rates[name], blocks, self.sizes[name], name, self.speeds.get(name))

    def close(self) -> None:
        """Closes the file; channels that are being read end."""
        self._unopened.clear()
        self._blocks.close()
        self._waiting.clear()

    def _read(self, name: str) -> Iterator[Floats]:
        while True:
            if waiting := self._waiting.get(name):
                yield waiting.popleft()
                continue
            following = None if name in self._ended else next(self._blocks, None)
            if following is None:
                return
            other, block = following
            if block.size == 0:
                self._ended.add(other)
            elif other == name:
                yield block
            elif other in self._waiting:
                self._waiting[other].append(block)
                kept = sum(each.nbytes for blocks in self._waiting.values() for each in blocks)
                if kept > signals.KEPT_BYTES and other in self._unopened:
                    self._unopened.remove(other)
                    del self._waiting[other]


def read_channels(
    path: Path, origin: str, channel: str | None = None, which: str = TO_DIAGNOSE
) -> Generator[Any, None, None]:
    """Rates, sizes and stated speeds by channel; then (channel, samples) in the file's order, an empty block where a
    channel ends before the file does.

    Which channels: ONE, of this name or the only one; TO_DIAGNOSE, that one if it is there, or all that may be
    vibrations, at the rate of the longest, and the speed; or ALL.
    """
    with open_signals(path, origin) as opened:
        if which == ONE or (which == TO_DIAGNOSE and channel in opened.channels):
            names = [signals.chosen_channel(origin, opened.channels, channel)]
        else:
            names = list(opened.channels) if which == ALL else _to_diagnose(opened)
        rates, sizes = ({name: values[name] for name in names} for values in (opened.rates, opened.channels))
        yield rates, sizes, {name: opened.speeds[name] for name in names if name in opened.speeds}
        before = set[str]()
        for part in opened.read(names):
            yield from ((name, np.empty(0, dtype=np.float32)) for name in before - part.keys())
            yield from ((name, block) for name, samples in part.items() for block in _blocks(samples))
            before = set(part)


def _to_diagnose(opened: SignalFile) -> list[str]:
    longest = max(opened.channels, key=lambda name: opened.channels[name])
    same = [name for name in opened.channels if opened.rates[name] == opened.rates[longest]]
    found = vibrations(same)
    return found + [name for name in opened.channels if is_speed(name) and name not in found][:1]
