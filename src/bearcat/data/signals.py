"""What a file of signals holds (channels by name, their samples in parts, their rates), and files of instruments.

LabVIEW TDMS and FLAC each need a library of their own; wav does not.

>>> name, samples = signals.pick(None)
"""

from __future__ import annotations

import importlib
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError, suggest
from bearcat.names import shown
from bearcat.ranges import check_range

Samples = NDArray[Any]
Part = dict[str, Samples]  # the next samples of some channels, by name
Rates = Mapping[str, float | None]  # of each channel; None: the file does not say
Speeds = Mapping[str, float]  # of channels whose speed (rpm) the file states as a number

BLOCK = 2**18  # samples read at once
PART = 2**22  # numbers of a table that are read at once
SOME_NAMES = 30  # of channels, listed in a sentence
KEPT_BYTES = 2**29  # of decoded files or recordings that wait to be read again
MOST_CHANNELS = 1000  # of a file; more are windows that were cut already, or a table that lies on its side
MOST_CHUNKS = 10_000  # of a wav file, before its samples
# Of wav files: what samples are, by the code (1 integers, 3 floats) and the bytes of a sample.
WAV_SAMPLES = {(1, 1): "u1", (1, 2): "<i2", (1, 3): "u1", (1, 4): "<i4", (1, 8): "<i8", (3, 4): "<f4", (3, 8): "<f8"}


class TooLargeError(InputError):
    """The file may be readable, but there is too much in it."""


@contextmanager
def reading(origin: str, kind: str, damaged: type[InputError] = InputError) -> Iterator[None]:
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
        raise damaged(f"{origin}: cannot be read as {kind} ({reason}); it is damaged or of another format") from error


def library(name: str, extra: str, origin: str) -> Any:
    """A module that reads a format, or the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{origin}: reading it needs an extra; pip install 'bearcat[{extra}]'") from error


@dataclass(frozen=True, eq=False)
class SignalFile:
    """An open file: its channels with the bytes their samples take (0 where it does not say), and their rates.

    `read` may be called once, with the names of the channels wanted; each part holds the next samples of some of them.
    """

    origin: str
    channels: Mapping[str, int]
    rates: Rates
    read: Callable[[Sequence[str]], Iterator[Part]]
    names: Collection[str] = ()  # of everything in the file, for the sentence that there is no signal
    speeds: Speeds = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (count := max(len(self.channels), len(self.names))) > MOST_CHANNELS:
            most = f"has {count} columns, more than {MOST_CHANNELS}"
            raise InputError(f"{self.origin}: {most}; transpose the table, or cut it into files")
        if not self.channels:
            raise InputError(f"{self.origin}: holds no numeric signal; it has {some_names(map(shown, self.names))}")
        for rate in self.rates.values():
            check_range("rate", rate, self.origin)


def one_by_one(
    origin: str, sizes: Mapping[str, int], rates: Rates, blocks: Callable[[str], Iterator[Samples]],
    names: Collection[str] = (), speeds: Speeds | None = None,
) -> SignalFile:  # fmt: skip
    """A file whose channels are read one after the other."""

    def read(wanted: Sequence[str]) -> Iterator[Part]:
        return ({name: block} for name in wanted for block in blocks(name))

    return SignalFile(origin, sizes, rates, read, names, speeds or {})


@dataclass(frozen=True, eq=False)
class Signals:
    """The channels of one file, by name, and their sampling rates."""

    origin: str
    channels: Mapping[str, Samples]
    rates: Rates
    speed: Samples | None = None  # in rpm, where a channel holds it
    speeds: Speeds = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all channels."""
        return sum(samples.nbytes for samples in self.channels.values())

    @property
    def rate(self) -> float | None:
        """That of the longest channel."""
        longest = max(self.channels, key=lambda name: len(self.channels[name]), default="")
        return self.rates.get(longest)

    def of_one_rate(self, channel: str | None = None) -> Signals:
        """This channel alone; without a name, the channels at the rate of the longest one."""
        same = [name for name in self.channels if self.rates[name] == self.rate]
        chosen = same if channel is None else [self.pick(channel)[0]]
        return replace(self, channels={name: self.channels[name] for name in chosen})

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
        known = list(islice(channels, SOME_NAMES))
        raise InputError(f"{origin}: has no channel '{channel}'{suggest(channel, known)}", "channel")
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
    return whole(1 / step)


def whole(rate: float) -> float:
    """A rate that is a whole number but for the rounding of the file is that number."""
    return float(round(rate)) if abs(rate - round(rate)) < 1e-4 * rate else float(rate)


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array in a file, row by row, of which slices are read; a map would end the process if the file shrinks."""

    file: BinaryIO
    dtype: Any
    start: int
    shape: tuple[int, ...]
    columns: bool = False  # it is stored column by column (Fortran's order)

    def __post_init__(self) -> None:
        if self.start + prod(self.shape) * self.dtype.itemsize > self.file.seek(0, 2):
            raise EOFError("it ends before its samples do")

    def __getitem__(self, index: tuple[Any, ...]) -> Samples:
        """An index for each axis: numbers, then a slice, then anything."""
        shape, wanted = (self.shape[::-1], index[::-1]) if self.columns else (self.shape, index)
        at = next(axis for axis, each in enumerate(wanted) if isinstance(each, slice))
        first, last, _ = wanted[at].indices(shape[at])
        inner = shape[at + 1 :]
        before = int(np.ravel_multi_index((*wanted[:at], 0), shape[: at + 1])) + first
        rows, found = max(1, PART // prod(inner)), []
        self.file.seek(self.start + before * prod(inner) * self.dtype.itemsize)
        for row in range(first, last, rows):
            count = min(rows, last - row) * prod(inner)
            part = np.fromfile(self.file, self.dtype, count)
            if part.size < count:
                raise EOFError("it became shorter while it was read")
            found.append(part.reshape(-1, *inner)[(slice(None), *wanted[at + 1 :])])
        return np.concatenate(found) if found else np.empty(0, self.dtype)


def open_wav(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """RIFF and RF64 files of integers or floats. scipy's reader cannot map 24 bits, and soundfile is an extra."""
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
    shape = (count, channels, 3) if width == 3 * channels else (count, channels)
    frames = StoredArray(file, np.dtype(stored), start, shape)

    def read(names: Sequence[str]) -> Iterator[Part]:
        for first in range(0, count, BLOCK):
            samples = _full_scale(frames[first : first + BLOCK, [int(name) - 1 for name in names]])
            yield {name: samples[:, place] for place, name in enumerate(names)}

    sizes = {str(number + 1): 4 * count for number in range(channels if count > 1 else 0)}
    return SignalFile(origin, sizes, dict.fromkeys(sizes, float(rate)), read)


def _full_scale(samples: Samples) -> Samples:
    """Samples of a wav file (frame, channel, or byte of 24 bits) as floats whose full scale is 1 (frame, channel)."""
    if samples.ndim == 3:  # 24 bits, the lowest byte first
        wide = np.zeros((*samples.shape[:2], 4), dtype=np.uint8)
        wide[..., 1:] = samples
        samples = wide.view("<i4")[..., 0]
    elif samples.dtype.kind == "u":
        return samples / np.float32(128) - 1
    if samples.dtype.kind == "i":
        return samples.astype(np.float32) / np.float32(2.0 ** (8 * samples.itemsize - 1))
    return samples


def _named(names: Iterable[str]) -> list[str]:
    """The names, with numbers behind those that stand more than once: a, a.2."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return unique


def open_tdms(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Channels go by their name, after their group's where there are several groups."""
    tdms = stack.enter_context(library("nptdms", "tdms", origin).TdmsFile.open(file))
    if tdms.file_status.incomplete_final_segment:
        raise EOFError("it ends before its samples do")
    groups = [group for group in tdms.groups() if group.channels()]
    found = [channel for group in groups for channel in group.channels() if len(channel) > 1]
    found = [channel for channel in found if channel.dtype.kind in "fiu"]
    called = (f"{channel.group_name}/{channel.name}" if len(groups) > 1 else channel.name for channel in found)
    names = _named(map(shown, called))
    channels = dict(zip(names, found, strict=True))
    rates: dict[str, float | None] = {}
    for name, channel in channels.items():
        places = (channel.properties, tdms[channel.group_name].properties, tdms.properties)
        scales = any(int(properties.get("NI_Number_Of_Scales", 0)) > 0 for properties in places)
        unscaled = str(channel.properties.get("NI_Scaling_Status", "")).lower() == "unscaled"
        if (unscaled and not scales) or "DaqMx" in type(channel.data_type).__name__ + str(channel.data_type):
            raise InputError(f"{origin}: '{name}' holds raw numbers without their scale; save it again as scaled data")
        step = float(channel.properties.get("wf_increment", 0) or 0)
        rates[name] = whole(1 / step) if step > 0 else None

    def blocks(name: str) -> Iterator[Samples]:
        for start in range(0, len(channels[name]), BLOCK):
            yield np.asarray(channels[name][start : start + BLOCK])

    sizes = {name: len(channel) * max(channel.dtype.itemsize, 8) for name, channel in channels.items()}
    return one_by_one(origin, sizes, rates, blocks)


def open_flac(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Channels go by their numbers, and full scale is 1, as in wav files."""
    soundfile = library("soundfile", "audio", origin)
    if file.read(4) != b"fLaC":  # it would read twenty other formats too
        raise ValueError("no FLAC header")
    file.seek(0)
    sound = stack.enter_context(soundfile.SoundFile(file))
    channels = [str(number + 1) for number in range(sound.channels)]

    def read(names: Sequence[str]) -> Iterator[Part]:
        for block in sound.blocks(blocksize=BLOCK // len(channels) + 1, dtype="float32", always_2d=True):
            yield {name: np.ascontiguousarray(block[:, int(name) - 1]) for name in names}

    rates = dict.fromkeys(channels, float(sound.samplerate))
    return SignalFile(origin, dict.fromkeys(channels, 4 * sound.frames), rates, read)
