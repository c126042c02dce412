"""What a file of signals holds: channels by name, their samples, rate and speed; files of arrays; and clipped samples.

Numeric arrays of npy, npz, MATLAB and HDF5 files are channels, or tables of channels. Nothing here executes what it
reads, and a file cannot point at another one.

>>> name, samples = read_signals(Path("monday.wav")).pick(None)
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError, library, shown, suggest

Samples = NDArray[Any]

STRETCH = 2**14  # times whose spacing is checked together
SOME_NAMES = 30  # of channels, listed in a sentence
MOST_CHANNELS = 1000  # of a file; more are windows that were cut already, or a table that lies on its side


@contextmanager
def reading(origin: str, kind: str) -> Iterator[None]:
    """Turns any failure while reading a file (readers raise nearly all kinds) into one sentence that names it."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{origin}: there is no such file") from error
    except PermissionError as error:
        raise InputError(f"{origin}: permission denied; make the file readable for your user") from error
    except MemoryError as error:
        raise InputError(f"{origin}: needs more memory than there is; cut it into shorter recordings") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{origin}: is not UTF-8 text; save it again with the encoding UTF-8") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200].rstrip(".") or type(error).__name__
        damaged = f"cannot be read as {kind} ({reason}); it is damaged or of another format"
        raise InputError(f"{origin}: {damaged}") from error


@dataclass(frozen=True, eq=False)
class Signals:
    """The channels of one file, by name, their sampling rate, and the speed (rpm) that it states."""

    origin: str
    channels: Mapping[str, Samples]
    rate: float | None
    rpm: float | None = None

    def pick(self, channel: str | None) -> tuple[str, Samples]:
        """The channel of this name; without a name, the only one there is."""
        name = chosen_channel(self.origin, self.channels, channel)
        return name, self.channels[name]


def chosen_channel(origin: str, channels: Collection[str], channel: str | None) -> str:
    """The channel of this name; without a name, the only one there is."""
    if channel is None and len(channels) == 1:
        return next(iter(channels))
    if channel is None:
        raise InputError(f"{origin}: holds {len(channels)} channels ({some_names(channels)}); choose one", "channel")
    if channel not in channels:
        names = list(islice(channels, SOME_NAMES))
        raise InputError(f"{origin}: has no channel '{channel}'{suggest(channel, names)}", "channel")
    return channel


def some_names(names: Iterable[str]) -> str:
    listed = list(islice(names, SOME_NAMES + 1))
    return ", ".join(listed[:SOME_NAMES] + ["…"] * (len(listed) > SOME_NAMES))[:400] or "nothing"


def rate_of(origin: str, name: str, times: Samples) -> float:
    """The rate of evenly spaced times, which are checked a stretch at a time, as clocks drift."""
    rates = list[float]()
    for first in range(0, times.size - 1, STRETCH):
        part = times[first : first + STRETCH + 1]
        step = (part[-1] - part[0]) / (part.size - 1)
        off = np.abs(part - part[0] - step * np.arange(part.size))
        if not (step > 0 and off.max() <= 1.5 * step):
            uneven = f"the times in '{name}' do not rise evenly (near {part[off.argmax()]:g} s)"
            raise InputError(f"{origin}: {uneven}; resample the signal, or remove the column and give the rate")
        rates.append(float(1 / step))
        if part.size > 100 and abs(rates[-1] / rates[0] - 1) > 0.01:
            changes = f"its rate changes from {rates[0]:g} to {rates[-1]:g} Hz"
            raise InputError(f"{origin}: {changes}; cut the file there")
    whole = round(rates[0])
    return float(whole) if abs(rates[0] - whole) < 1e-4 * rates[0] else rates[0]  # whole but for the file's rounding


RATE_NAMES = {  # in lower case, without signs between words and without Hz at the end
    "rate", "fs", "sr", "srate", "fsamp", "sampfreq", "samplerate", "samplefreq", "samplefrequency", "samplingrate",
    "samplingfreq", "samplingfrequency",
}  # fmt: skip
SPEED_NAMES = {"rpm", "speedrpm", "rpmspeed", "shaftrpm", "shaftspeedrpm"}  # likewise
HDF5 = (b"MATLAB 7.3", b"\x89HDF")  # how MATLAB v7.3 files begin
TIME_NAMES = {"time", "t", "zeit", "seconds", "sec", "timestamp", "times"}
TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}


def from_arrays(origin: str, arrays: Mapping[str, Any], rate: float | None = None) -> Signals:
    """Channels of named arrays of one or two axes, of which the longer one is time: a table gives one per column.

    The rate, where the format has none, is a number called fs, sr or the like, or that of an array of times. A number
    called `rate` is the rate where nothing else is: beside `sr` it is the shaft's. The speed is a number called `rpm`,
    or X097RPM where the names of channels begin with X097. Names are `a.b` inside a struct.
    """
    channels, numbers = dict[str, Samples](), dict[str, float]()
    for name, array in ((shown(name), np.squeeze(array)) for name, array in arrays.items()):
        if array.dtype.kind not in "fiu" or array.size == 0:
            continue
        if array.ndim > 2:
            raise InputError(f"{origin}: '{name}' has {array.ndim} axes; a signal has one, a table of channels two")
        if array.ndim == 0:
            numbers[name] = float(array)
        elif array.ndim == 1:
            channels[name or "1"] = array
        else:
            table = array.T if array.shape[0] >= array.shape[1] else array
            columns = enumerate(table[: MOST_CHANNELS + 1], start=1)
            channels |= {f"{name}.{number}".lstrip("."): column for number, column in columns}

    rates = {name: value for name, value in numbers.items() if plain_name(name).removesuffix("hz") in RATE_NAMES}
    rates = {name: value for name, value in rates.items() if plain_name(name) != "rate"} or rates
    timed = set[str]()  # structs whose clock was found: what else is called t may be a temperature
    for name, times in list(channels.items()):
        struct, _, last = name.rpartition(".")
        plain, unit = clock(last)
        if plain not in TIME_NAMES or times.size < 3 or struct in timed:
            continue
        if sum(samples.size == times.size for samples in channels.values()) > 1:
            timed.add(struct)
            rates[name] = rate_of(origin, name, times.astype(np.float64) * unit)
            del channels[name]
    speeds = dict[str, float]()
    for name, value in numbers.items():
        stem = re.sub(r"_?rpm$", "_", name, flags=re.IGNORECASE)
        if plain_name(name) in SPEED_NAMES or (stem != name and any(channel.startswith(stem) for channel in channels)):
            speeds[name] = value
    stated = rate or _agreed(origin, rates, "sampling rates", "Hz")
    return Signals(origin, channels, stated, _agreed(origin, speeds, "speeds", "rpm"))


def plain_name(name: str) -> str:
    """Of a variable, without the structs around it, in lower case and without signs."""
    return re.sub(r"[\W_]", "", name.rpartition(".")[2].lower())


def clock(name: str) -> tuple[str, float]:
    """The name of a column without its unit, in lower case, and the seconds of that unit of time."""
    plain, _, unit = re.sub(r"[\[\]()/,;]|_(?=[mµμu]?s(ec)?$)", " ", name.lower()).strip().partition(" ")
    return plain, TIME_UNITS.get(unit.strip(), 1.0)


def _agreed(origin: str, numbers: Mapping[str, float], what: str, unit: str) -> float | None:
    """The one value that the numbers have; None where there are none."""
    if not numbers:
        return None
    (first, value), *others = numbers.items()
    for other, different in others:
        if abs(different - value) > 0.01 * abs(value):
            two = f"'{first}' says {value:g} {unit} and '{other}' {different:g} {unit}"
            raise InputError(f"{origin}: has two {what}, {two}; keep the right one")
    return value


def read_numpy(file: BinaryIO, origin: str) -> Signals:
    stored = np.load(file, allow_pickle=False)
    return from_arrays(origin, {"": stored} if isinstance(stored, np.ndarray) else dict(stored))


def read_flac(file: BinaryIO, origin: str) -> Signals:
    """Channels go by their numbers, and full scale is 1, as in wav files."""
    soundfile = library("soundfile", "formats", origin)
    if file.read(4) != b"fLaC":  # it would read twenty other formats too
        raise ValueError("no FLAC header")
    file.seek(0)
    samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    return from_arrays(origin, {str(number): column for number, column in enumerate(samples.T, start=1)}, float(rate))


def read_mat(file: BinaryIO, origin: str) -> Signals:
    """Variables, fields of structs as `struct.field`, cells as `cell.1`, or by the `Name` of structs in them."""
    head = file.read(516)
    file.seek(0)
    if head.startswith(HDF5) or head.endswith(HDF5[1]):  # behind the 512 bytes that MATLAB leaves for a text
        return read_tree(file, origin)
    from scipy.io import loadmat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as a variable stored twice, of which the last one counts
        variables: dict[str, Any] = loadmat(file, struct_as_record=False, squeeze_me=True)  # type: ignore[arg-type]
    variables = {name: value for name, value in variables.items() if not name.startswith("__")}
    return from_arrays(origin, dict(_flat("", variables)))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Samples]]:
    """The arrays in structs and cells, as `a.b`."""
    inner: Any = None
    if isinstance(value, Mapping):
        inner = value.items()
    elif type(value).__name__ == "mat_struct":
        inner = vars(value).items()
    elif isinstance(value, np.ndarray) and value.dtype == object:
        cells = value.ravel().tolist()[: MOST_CHANNELS + 1]
        names = [getattr(cell, "Name", None) for cell in cells]
        if not all(isinstance(title, str) for title in names) or len(set(names)) < len(names):
            names = [str(number + 1) for number in range(len(cells))]
        inner = [("", cells[0])] if len(cells) == 1 else zip(names, cells, strict=True)
    if inner is None:
        yield name, np.asarray(value)
        return
    for key, item in inner:
        yield from _flat(".".join(filter(None, (name, key))), item)


def read_tree(file: BinaryIO, origin: str) -> Signals:
    """The arrays of an HDF5 file, as `group.array`; an attribute called fs or rate is the rate."""
    h5py, arrays = library("h5py", "formats", origin), dict[str, Any]()

    def visit(name: str, node: Any) -> None:
        if name.startswith("#") or "MATLAB_object_decode" in node.attrs:  # MATLAB's bookkeeping, tables and objects
            return
        for key, value in node.attrs.items():
            if isinstance(value, np.number | np.ndarray) and value.size == 1:
                arrays[f"@{key}"] = np.asarray(value)
        if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiu" and node.shape:
            if node.is_virtual or node.external:
                raise InputError(f"{origin}: '{name}' is kept in another file; save the samples in this one")
            arrays[name.replace("/", ".")] = node[()]

    with h5py.File(file, "r") as tree:
        visit("", tree)
        tree.visititems(visit)
    return from_arrays(origin, arrays)


LONGEST_HEADER = 500  # rows above the numbers; asking each takes as long as reading a hundred of numbers
UNIT = re.compile(  # of a row of units below the header, brackets taken off
    r"|-|%|[mµμunk]?s|sec|min|h|[mµμk]?g|([mµμkc]?m|in)(/s(\^?2|²)?)?|[mk]?[vawn]|n\.?m|[k]?hz|rpm|1/min|min-1|u/min|°?[cfk]|bar|[kmh]?pa|db",
    re.IGNORECASE,
)  # fmt: skip
INDEX_NAMES = {"", "index", "sample", "samples", "n", "no", "unnamed: 0"}


def read_text(file: BinaryIO, origin: str) -> Signals:
    """Columns of numbers: any of , ; tab or blanks between them, decimal point or comma, header and units."""
    text = decoded(file.read())

    def rows() -> Iterator[str]:
        return (line.rstrip("\n") for line in io.StringIO(text, newline=None) if line.strip() and line[0] not in "#%")

    lines = list(islice(rows(), LONGEST_HEADER))
    if not lines:
        raise InputError(f"{origin}: holds no rows; record or export it again")
    probe = lines[min(len(lines) - 1, 50)]  # far enough below any header
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
        values = parse(delimiter.join(cell.strip(' "') or "nan" for cell in row) for row in split)
    above = [row.split(delimiter) if columns > 1 else [row] for row in lines[max(start - 2, 0) : start]]
    head = dict(zip(_header(above, values.shape[1]), values.T, strict=True))
    if len(head) > 1 and len(values) > 2:
        head = {name: column for name, column in head.items() if not _counts_samples(name, column)}
        steps = np.diff(head.get("1", np.zeros(3))[:STRETCH])
        if steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-3, atol=0):  # times without a name
            head["time"] = head.pop("1")
    return from_arrays(origin, head)


def decoded(content: bytes) -> str:
    """A text in UTF-8 or, as Windows writes it, cp1252."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content:  # UTF-16
            raise
        return content.decode("cp1252")


def _counts_samples(name: str, column: Samples) -> bool:
    """Whether a column holds the numbers of the samples."""
    return clock(name)[0] in INDEX_NAMES | {"1"} and bool((np.diff(column) == 1).all())


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
