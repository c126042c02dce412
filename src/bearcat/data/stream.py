"""Files of signals in all formats: those of bearcat.data.formats, and here those of measuring instruments.

`open_stream` reads one channel a block of samples at a time, so that a day needs no more memory than a minute. Where a
format has no names, channels are called "1", "2", … LabVIEW TDMS, UFF 58 and 58b, MDF and FLAC each need a library.

>>> loudest = max(abs(block).max() for block in open_stream(Path("pump/monday.wav")).blocks)
"""

from __future__ import annotations

import importlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import bearcat.data.formats as formats
from bearcat.data.recording import Floats
from bearcat.data.signals import BLOCK, Part, Samples, SignalFile, Signals, library, one_by_one, rate_of, reading, whole
from bearcat.errors import InputError

TIME_RESPONSES, TIME_AXES = (0, 1), (0, 1, 17)  # of UFF 58: kinds of function, and of abscissa (unknown, general, time)
FORMULAS = {"3": 10, "4": 3}  # the conversion by a formula, by the version of MDF


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
    names = _named(f"{channel.group_name}/{channel.name}" if len(groups) > 1 else channel.name for channel in found)
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


def open_uff(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """Time responses of a universal file; bytes behind the announced samples and behind the last block are ignored."""
    opened = library("pyuff", "uff", origin).UFF(str(file.name))
    places = [place for place, kind in enumerate(opened.get_set_types()) if kind == 58]
    headers = {place: opened.read_sets(place, header_only=True) for place in places}
    headers = {
        place: head for place, head in headers.items()
        if head["func_type"] in TIME_RESPONSES and head["abscissa_spec_data_type"] in TIME_AXES
    }  # fmt: skip
    if not headers:
        raise InputError(f"{origin}: holds no time response (data set 58); export the signal itself, not its spectrum")
    channels = dict(zip(_named(map(_response, headers.values())), headers, strict=True))
    rates: dict[str, float | None] = {}
    for name, place in channels.items():
        head = headers[place]
        if head["ord_data_type"] not in (2, 4):
            raise InputError(f"{origin}: '{name}' is complex, which no time signal is; export the signal itself")
        if head["abscissa_spacing"] == 1 and head["abscissa_inc"] > 0:
            rates[name] = whole(1 / head["abscissa_inc"])
        else:  # a time stands beside each sample
            rates[name] = rate_of(origin, name, np.asarray(opened.read_sets(place)["x"])[: head["num_pts"]])

    def blocks(name: str) -> Iterator[Samples]:
        points = int(headers[channels[name]]["num_pts"])
        samples = np.asarray(opened.read_sets(channels[name])["data"])
        if samples.size < points:
            raise EOFError(f"'{name}' has {samples.size} of {points} samples")
        yield samples[:points]

    sizes = {name: 8 * int(headers[place]["num_pts"]) for name, place in channels.items()}
    return one_by_one(origin, sizes, rates, blocks)


def _response(head: Mapping[str, Any]) -> str:
    """What a person calls the channel: its first line of text, or its node and direction."""
    text = str(head["id1"]).strip()
    direction = int(head["rsp_dir"])
    axis = "" if not 1 <= abs(direction) <= 3 else ("-" if direction < 0 else "+") + "XYZ"[abs(direction) - 1]
    return text if text and text.upper() != "NONE" else f"{int(head['rsp_node'])}{axis}"


def open_mdf(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Numeric channels of all groups, with the rate of their group's times."""
    asammdf = library("asammdf", "mdf", origin)
    for version in ("3", "4"):  # a reader may write no file, and this one is for channels that are appended
        module = importlib.import_module(f"asammdf.blocks.mdf_v{version}")
        stack.callback(module.__dict__.update, NamedTemporaryFile=module.__dict__["NamedTemporaryFile"])
        module.__dict__.update(NamedTemporaryFile=lambda **_: io.BytesIO())
    mdf = stack.enter_context(asammdf.MDF(file))
    formula = FORMULAS.get(str(mdf.version)[:1])
    found: dict[str, tuple[int, int]] = {}
    rates: dict[str, float | None] = {}
    sizes: dict[str, int] = {}
    for number, group in enumerate(mdf.groups):
        count, clock = int(group.channel_group.cycles_nr), mdf.masters_db.get(number)
        if count < 2:
            continue
        times = None if clock is None else np.asarray(mdf.get_master(number), dtype=np.float64)
        rate = None if times is None or times.size < 2 else rate_of(origin, "time", times)
        for place, channel in enumerate(group.channels):
            kind = channel.dtype_fmt.base if channel.dtype_fmt is not None else np.dtype(object)
            if place == clock or kind.kind not in "fiu":
                continue
            conversion = channel.conversion
            if conversion is not None and conversion.conversion_type == formula:
                raise InputError(f"{origin}: '{channel.name}' is kept as a formula; save it again with physical values")
            name = _named([*found, channel.name])[-1]
            found[name], rates[name], sizes[name] = (number, place), rate, 8 * count

    def blocks(name: str) -> Iterator[Samples]:
        group, place = found[name]
        samples = np.asarray(mdf.get(group=group, index=place, samples_only=True)[0])
        if samples.dtype.kind not in "fiu":
            raise InputError(f"{origin}: the channel '{name}' holds texts, not numbers")
        yield samples

    return one_by_one(origin, sizes, rates, blocks)


def open_flac(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Channels go by their numbers, and full scale is 1, as in wav files."""
    sound = stack.enter_context(library("soundfile", "audio", origin).SoundFile(file))
    channels = [str(number + 1) for number in range(sound.channels)]

    def read(names: Sequence[str]) -> Iterator[Part]:
        for block in sound.blocks(blocksize=BLOCK // len(channels) + 1, dtype="float32", always_2d=True):
            yield {name: np.ascontiguousarray(block[:, int(name) - 1]) for name in names}

    rates = dict.fromkeys(channels, float(sound.samplerate))
    return SignalFile(origin, dict.fromkeys(channels, 4 * sound.frames), rates, read)


OPENERS: dict[str, Callable[[BinaryIO, str, ExitStack], SignalFile]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), formats.open_text),
    ".npy": formats.open_npy,
    ".npz": formats.open_npz,
    ".mat": formats.open_mat,
    ".wav": formats.open_wav,
    ".parquet": formats.open_parquet,
    **dict.fromkeys((".h5", ".hdf5"), formats.open_tree),
    ".flac": open_flac,
    ".tdms": open_tdms,
    **dict.fromkeys((".uff", ".unv"), open_uff),
    **dict.fromkeys((".mf4", ".mdf"), open_mdf),
}
FORMATS = tuple(OPENERS)
UPLOADS = tuple(suffix for suffix in FORMATS if suffix not in (".mf4", ".mdf"))  # to a server; see docs/security.md


@contextmanager
def open_signals(path: Path, origin: str) -> Iterator[SignalFile]:
    """A file of any format, by its suffix; `origin` is the name used in error messages."""
    suffix = path.suffix.lower()
    if suffix not in OPENERS:
        raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
    with reading(origin, f"a {suffix} file"), ExitStack() as stack:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise InputError(f"{origin}: is no regular file; copy its content into one")
        file = stack.enter_context(path.open("rb"))
        if path.stat().st_size == 0:
            raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
        yield OPENERS[suffix](file, origin, stack)


def read_signals(path: Path, origin: str | None = None) -> Signals:
    """All channels of a file, by its suffix."""
    with open_signals(path, origin or str(path)) as opened:
        found: dict[str, list[Samples]] = {name: [] for name in opened.channels}
        for part in opened.read(list(found)):
            for name, samples in part.items():
                found[name].append(samples)
        channels = {name: np.concatenate(samples) for name, samples in found.items()}
        return Signals(opened.origin, channels, opened.rates)


@dataclass(frozen=True, eq=False)
class Stream:
    """One channel of a file as blocks of samples (time,), float32 and finite, which can be read once."""

    origin: str
    rate: float | None
    blocks: Iterator[Floats]
    size: int = 0  # bytes of samples, where the file announces them


def open_stream(path: Path, channel: str | None = None, origin: str | None = None) -> Stream:
    """The file's channel of this name, or the only one."""
    origin = origin or str(path)
    if path.is_dir():
        raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(FORMATS)}")
    reader = _read(path, channel, origin)
    rate, size = next(reader)
    return Stream(origin, rate, reader, size)


def _read(path: Path, channel: str | None, origin: str) -> Iterator[Any]:
    """Rate and size, then the blocks. The file is open until the last block, or until the generator is closed."""
    with open_signals(path, origin) as opened:
        name = opened.chosen(channel)
        yield opened.rates[name], opened.channels[name]
        count = 0
        for part in opened.read([name]):
            for start in range(0, part[name].size, BLOCK):
                with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf and is named below
                    block = np.ascontiguousarray(part[name][start : start + BLOCK], dtype=np.float32)
                if not (finite := np.isfinite(block)).all():
                    bad = count + int(finite.argmin())
                    raise InputError(f"{origin}: sample {bad} is NaN or infinite; cut such out or interpolate them")
                yield block
                count += block.size
