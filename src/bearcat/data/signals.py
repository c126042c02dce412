"""What a file of signals holds: channels by name, their samples and rate; files of arrays; and clipped samples.

Numeric arrays of npy, npz, MATLAB and HDF5 files are channels, or tables of channels. Nothing here executes what it
reads, and a file cannot point at another one.

>>> name, samples = read_signals(Path("monday.wav")).pick(None)
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError, check_range, library, shown, suggest

Samples = NDArray[Any]
Speeds = Mapping[str, float]  # of channels whose speed (rpm) the file states as a number

BLOCK = 2**18  # samples read at once
SOME_NAMES = 30  # of channels, listed in a sentence
KEPT_BYTES = 2**29  # of decoded files that are kept to be read again
MOST_CHANNELS = 1000  # of a file; more are windows that were cut already, or a table that lies on its side


class TooLargeError(InputError):
    """The file may be readable, but there is too much in it."""


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
        raise TooLargeError(f"{origin}: needs more memory than there is; cut it into shorter recordings") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{origin}: is not UTF-8 text; save it again with the encoding UTF-8") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200].rstrip(".") or type(error).__name__
        damaged = f"cannot be read as {kind} ({reason}); it is damaged or of another format"
        raise InputError(f"{origin}: {damaged}") from error


def too_many(origin: str, count: int) -> InputError:
    most = f"has {count} columns, more than {MOST_CHANNELS}"
    return InputError(f"{origin}: {most}; transpose the table, or cut it into files")


@dataclass(frozen=True, eq=False)
class SignalFile:
    """An open file: its channels with the bytes their samples take (0 where it does not say), and their rate.

    `read` may be called once, with the names of the channels wanted; it gives blocks of them in the file's order.
    """

    origin: str
    channels: Mapping[str, int]
    rate: float | None  # None: the file does not say
    read: Callable[[Sequence[str]], Iterator[tuple[str, Samples]]]
    names: Collection[str] = ()  # of everything in the file, for the sentence that there is no signal
    speeds: Speeds = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (count := max(len(self.channels), len(self.names))) > MOST_CHANNELS:
            raise too_many(self.origin, count)
        if not self.channels:
            raise InputError(f"{self.origin}: holds no numeric signal; it has {some_names(map(shown, self.names))}")
        check_range("rate", self.rate, self.origin)


@dataclass(frozen=True, eq=False)
class Signals:
    """The channels of one file, by name, and their sampling rate."""

    origin: str
    channels: Mapping[str, Samples]
    rate: float | None
    speed: Samples | None = None  # in rpm, where a channel holds it
    speeds: Speeds = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all channels."""
        return sum(samples.nbytes for samples in self.channels.values())

    def pick(self, channel: str | None) -> tuple[str, Samples]:
        """The channel of this name; without a name, the only one there is."""
        name = chosen_channel(self.origin, self.channels, channel)
        return name, self.channels[name]


def chosen_channel(origin: str, channels: Mapping[str, Any], channel: str | None) -> str:
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
    """The rate of evenly spaced times."""
    span = times[-1] - times[0]
    if not np.isfinite(span) or span <= 0:
        raise InputError(f"{origin}: the times in column '{name}' do not rise; sort them, or remove the column")
    step = span / (times.size - 1)
    off = np.abs(times - times[0] - step * np.arange(times.size))
    if not off.max() <= 1.5 * step:
        uneven = f"the times in '{name}' are not evenly spaced (near {times[off.argmax()]:g} s)"
        raise InputError(f"{origin}: {uneven}; resample the signal, or remove the column and give the rate")
    rate = float(1 / step)
    return float(round(rate)) if abs(rate - round(rate)) < 1e-4 * rate else rate  # whole but for the file's rounding


DEEPEST = 8  # structs and cells inside each other
RATE_NAMES = {  # in lower case, without signs between words and without Hz at the end
    "rate", "fs", "sr", "srate", "fsamp", "sampfreq", "samplerate", "samplefreq", "samplefrequency", "samplingrate",
    "samplingfreq", "samplingfrequency",
}  # fmt: skip
SPEED_NAMES = {"rpm", "speedrpm", "rpmspeed", "shaftrpm", "shaftspeedrpm"}  # likewise
HDF5 = (b"MATLAB 7.3", b"\x89HDF")  # how MATLAB v7.3 files begin
TIME_NAMES = {"time", "t", "zeit", "seconds", "sec", "timestamp", "times"}
TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}


def from_arrays(origin: str, arrays: Mapping[str, Any]) -> SignalFile:
    """Channels of named arrays of one or two axes; a table gives a channel per column. Names are `a.b` inside a struct.

    The rate is a number called fs, sr or the like, or that of an array of times. A number called `rate` is the rate
    where nothing else is: beside `sr` it is the shaft's. A number called `rpm` is the speed, of the same struct or of
    one around it; X097RPM is that of the channels whose names begin with X097.
    """
    places: dict[str, tuple[Any, int, list[int]]] = {}  # channel → array, axis of time, the other indices
    numbers: dict[str, float] = {}
    for stored, array in arrays.items():
        name = shown(stored)
        size = prod(array.shape) if array.dtype.kind in "fiu" else 0
        if size == 1:
            numbers[name] = float(np.asarray(array[...]).reshape(()))
        if size < 2:
            continue
        axes = [axis for axis, side in enumerate(array.shape) if side != 1]
        if len(axes) > 2:
            raise InputError(f"{origin}: '{name}' has {len(axes)} axes; a signal has one, a table of channels two")
        time = axes[-1] if array.shape[axes[0]] < array.shape[axes[-1]] else axes[0]  # the longer one
        if len(axes) == 1:
            places[name or "1"] = array, time, [0] * len(array.shape)
            continue
        for number in range(min(min(array.shape[axis] for axis in axes), MOST_CHANNELS + 1)):
            index = [number if axis in axes else 0 for axis in range(len(array.shape))]
            places[f"{name}.{number + 1}".lstrip(".")] = array, time, index

    if max(len(places), len(arrays)) > MOST_CHANNELS:
        raise too_many(origin, max(len(places), len(arrays)))

    def part(name: str, start: int = 0) -> Samples:
        array, time, index = places[name]
        return np.asarray(array[(*index[:time], slice(start, start + BLOCK), *index[time + 1 :])])

    def read(names: Sequence[str]) -> Iterator[tuple[str, Samples]]:
        for name in names:
            array, time, _ = places[name]
            for start in range(0, array.shape[time], BLOCK):
                yield name, part(name, start)

    rates = {name: value for name, value in numbers.items() if plain_name(name).removesuffix("hz") in RATE_NAMES}
    rates = {name: rate for name, rate in rates.items() if plain_name(name) != "rate"} or rates
    lengths = {name: array.shape[time] for name, (array, time, _) in places.items()}
    for name in [name for name in places if clock(name.rpartition(".")[2])[0] in TIME_NAMES]:
        beside = (other for other in places if other != name and other.rpartition(".")[0] == name.rpartition(".")[0])
        if lengths[name] > 2 and any(lengths[other] == lengths[name] for other in beside):
            unit = clock(name.rpartition(".")[2])[1]
            rates[name] = rate_of(origin, name, part(name).astype(np.float64) * unit)
            del places[name]
    sizes = {name: lengths[name] * array.dtype.itemsize for name, (array, _, _) in places.items()}
    speeds = {name: _stated_speed(origin, name, numbers) for name in sizes}
    stated = {name: speed for name, speed in speeds.items() if speed is not None}
    return SignalFile(origin, sizes, _agreed(origin, rates, "sampling rates", "Hz"), read, arrays, stated)


def plain_name(name: str) -> str:
    """Of a variable, without the structs around it, in lower case and without signs."""
    return re.sub(r"[\W_]", "", name.rpartition(".")[2].lower())


def clock(name: str) -> tuple[str, float]:
    """The name of a column without its unit, in lower case, and the seconds of that unit of time."""
    plain, _, unit = re.sub(r"[\[\]()/,;]|_(?=[mµμu]?s(ec)?$)", " ", name.lower()).strip().partition(" ")
    return plain, TIME_UNITS.get(unit.strip(), 1.0)


def _states_speed(number: str, channel: str) -> bool:
    """Whether a number states the speed, of this channel at least where it is called after some channels."""
    stem, rpm, _ = re.sub(r"[\W_]*rpm$", "\0", number.rpartition(".")[2], flags=re.IGNORECASE).partition("\0")
    parts = channel.split(".")
    named = any(part.startswith(stem) and not part[len(stem) : len(stem) + 1].isalnum() for part in parts)
    return plain_name(number) in SPEED_NAMES or bool(stem and rpm and named)


def _stated_speed(origin: str, channel: str, numbers: Mapping[str, float]) -> float | None:
    """The speed that the nearest struct around a channel states."""
    stated = {name: value for name, value in numbers.items() if _states_speed(name, channel)}
    around = channel
    while around and stated:
        around = around.rpartition(".")[0]
        if near := {name: value for name, value in stated.items() if name.rpartition(".")[0] == around}:
            return _agreed(origin, near, "speeds", "rpm")
    return None


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


def open_npy(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    return from_arrays(origin, {"": np.load(file.name, mmap_mode="r", allow_pickle=False)})


def open_npz(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    archive = stack.enter_context(np.load(file, allow_pickle=False))
    return from_arrays(origin, {name: np.asarray(array) for name, array in archive.items()})


def open_mat(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Variables, fields of structs as `struct.field`, cells as `cell.1`, or by the `Name` of structs in them."""
    head = file.read(516)
    file.seek(0)
    if head.startswith(HDF5) or head.endswith(HDF5[1]):  # behind the 512 bytes that MATLAB leaves for a text
        return open_tree(file, origin, stack)
    from scipy.io import loadmat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as a variable stored twice, of which the last one counts
        variables: dict[str, Any] = loadmat(file, struct_as_record=False, squeeze_me=True)  # type: ignore[arg-type]
    variables = {name: value for name, value in variables.items() if not name.startswith("__")}
    plain = {name: value for name, value in variables.items() if type(value).__name__ != "MatlabOpaque"}
    if variables and not plain:
        raise InputError(f"{origin}: holds a table or an object of MATLAB alone; save its columns as variables")
    return from_arrays(origin, dict(_flat(origin, "", plain)))


def _flat(origin: str, name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Samples]]:
    """The arrays in structs and cells, as `a.b`."""
    if depth > DEEPEST:
        raise InputError(f"{origin}: '{name}' is nested too deeply; save the signal as a variable of its own")
    inner: Any = None
    if isinstance(value, Mapping):
        inner = value.items()
    elif type(value).__name__ == "mat_struct":
        inner = ((key, getattr(value, key)) for key in value._fieldnames)
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
        yield from _flat(origin, ".".join(filter(None, (name, key))), item, depth + 1)


def open_tree(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """The arrays of an HDF5 file, as `group.array`, not yet read; an attribute called fs or rate is the rate."""
    h5py = library("h5py", "formats", origin)
    # A chunk is unpacked whole for any part of it, and kept if it fits.
    tree = stack.enter_context(h5py.File(file, "r", rdcc_nbytes=2**25))
    arrays: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        if name.startswith("#") or "MATLAB_object_decode" in node.attrs:  # MATLAB's bookkeeping, tables and objects
            return
        for key, value in node.attrs.items():
            if isinstance(value, np.number | np.ndarray) and value.size == 1:
                arrays[f"@{key}"] = np.asarray(value)
        if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiu" and node.shape:
            if node.is_virtual or node.external:
                raise InputError(f"{origin}: '{name}' is kept in another file; save the samples in this one")
            arrays[name.replace("/", ".")] = node

    visit("", tree)
    tree.visititems(visit)
    return from_arrays(origin, arrays)


# Samples at the limits of a converter. A clipped signal stands at its highest or lowest value far more often than just
# short of it.
MEASURED = 1 << 17  # samples from the beginning of a recording, where not all of it is looked at
NEAR = 0.01  # of the range so far: what lies so close below a limit is just short of it
TIMES, LEAST = 3, 4  # at a limit: so many times as many samples as just short of it, and at least so many
COARSE = 16  # values; a converter that gives no more repeats them without being clipped
MOST_VALUES = 256  # that are counted; a signal with more is not coarse
PROBED = 1024  # samples that show whether there are more


class SignalLimits:
    """How many samples of a signal stand at its limits, and how many different values it has, block by block.

    >>> limits = SignalLimits()
    >>> limits.add(np.clip(np.sin(np.arange(1000.0)), -0.5, 0.5))
    >>> limits.clipped > 0.5
    True
    """

    def __init__(self) -> None:
        self.samples = 0
        self.low, self.high = np.inf, -np.inf
        self.values: NDArray[Any] | None = np.empty(0, dtype=np.float32)  # sorted; None: more than MOST_VALUES
        self._counts = {-1: (0, 0), 1: (0, 0)}  # samples at the lowest and the highest value so far, and just short

    def add(self, block: NDArray[Any]) -> None:
        if block.size == 0:
            return
        self.samples += block.size
        before = {-1: -self.low, 1: self.high}
        self.low, self.high = min(self.low, float(block.min())), max(self.high, float(block.max()))
        near = NEAR * (self.high - self.low)
        with np.errstate(over="ignore"):  # of values near the ends of float32
            distances = block - self.low, self.high - block
        for (sign, limit), below in zip(((-1, -self.low), (1, self.high)), distances, strict=True):
            at, close = self._counts[sign]
            if limit > before[sign]:  # what stood at the last limit is short of this one
                at, close = 0, at + close if limit - before[sign] < near else 0
            here = int(np.count_nonzero(below == 0))
            self._counts[sign] = at + here, close + int(np.count_nonzero(below < near)) - here
        if self.values is not None:
            probed = np.sort(block[:PROBED])
            many = np.count_nonzero(probed[1:] != probed[:-1]) >= MOST_VALUES  # as in any vibration
            values = None if many else np.union1d(self.values, block)
            self.values = None if values is None or values.size > MOST_VALUES else values

    @property
    def clipped(self) -> float:
        """The share of samples at the limits; 0 where no more stand there than chance explains."""
        if self.values is not None and self.values.size <= COARSE:
            return 0.0
        at_limits = sum(at for at, close in self._counts.values() if at >= LEAST and at > TIMES * close)
        return at_limits / max(self.samples, 1)
