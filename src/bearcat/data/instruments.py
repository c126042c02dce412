"""Files as measuring instruments write them: LabVIEW TDMS, universal files (UFF 58 and 58b), MDF, HDF5 and FLAC.

Each needs a library of its own, and says which pip command installs it. They are read in a child process
(bearcat.data.isolated), as every format whose parser can be broken. Formulas inside MDF files are not evaluated.

>>> read_signals(Path("pump/monday.tdms")).channels
"""

from __future__ import annotations

import importlib
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any, BinaryIO

import numpy as np

from bearcat.data.arrays import from_arrays, numeric_nodes, open_hdf5
from bearcat.data.signals import BLOCK, Part, Samples, SignalFile, rate_of, whole
from bearcat.errors import InputError

TIME_RESPONSES, TIME_AXES = (0, 1), (0, 1, 17)  # of UFF 58: kinds of function, and of abscissa (unknown, general, time)
FORMULAS = {"3": 10, "4": 3}  # the conversion by a formula, by the version of MDF


def _library(name: str, extra: str, origin: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        kind = origin.rpartition(".")[2]
        raise InputError(f"{origin}: .{kind} files need {name}; pip install 'bearcat[{extra}]'") from error


def _named(names: Sequence[str]) -> list[str]:
    """The names, with numbers behind those that stand more than once: a, a.2."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return unique


def _from_channels(
    origin: str, sizes: Mapping[str, int], rates: Mapping[str, float | None], blocks: Callable[[str], Iterator[Samples]]
) -> SignalFile:
    """Channels that are read one after the other and may have rates of their own."""
    if not sizes:
        raise InputError(f"{origin}: holds no numeric signal")

    def read(names: Sequence[str]) -> Iterator[Part]:
        for name in names:
            for block in blocks(name):
                yield {name: block}

    longest = max(sizes, key=sizes.__getitem__)
    return SignalFile(origin, sizes, rates[longest], read, rates)


def open_tdms(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Channels go by their name, after their group's where there are several groups."""
    tdms = stack.enter_context(_library("nptdms", "tdms", origin).TdmsFile.open(file))
    if tdms.file_status.incomplete_final_segment:
        raise EOFError("it ends before its samples do")
    groups = [group for group in tdms.groups() if group.channels()]
    found = [channel for group in groups for channel in group.channels() if len(channel) > 1]
    found = [channel for channel in found if channel.dtype.kind in "fiu"]
    names = _named([f"{channel.group_name}/{channel.name}" if len(groups) > 1 else channel.name for channel in found])
    channels = dict(zip(names, found, strict=True))
    rates: dict[str, float | None] = {}
    for name, channel in channels.items():
        places = (channel.properties, tdms[channel.group_name].properties, tdms.properties)
        scales = any(int(properties.get("NI_Number_Of_Scales", 0)) > 0 for properties in places)
        unscaled = str(channel.properties.get("NI_Scaling_Status", "")).lower() == "unscaled"
        if (unscaled and not scales) or "DaqMx" in type(channel.data_type).__name__ + str(channel.data_type):
            raise InputError(
                f"{origin}: the channel '{name}' holds raw numbers of the converter without the scale that turns them"
                " into a unit; save it again as scaled data"
            )
        step = float(channel.properties.get("wf_increment", 0) or 0)
        rates[name] = whole(1 / step) if step > 0 else None
    sizes = {name: len(channel) * max(channel.dtype.itemsize, 8) for name, channel in channels.items()}

    def blocks(name: str) -> Iterator[Samples]:
        for start in range(0, len(channels[name]), BLOCK):
            yield np.asarray(channels[name][start : start + BLOCK])

    return _from_channels(origin, sizes, rates, blocks)


def open_uff(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """Time responses of a universal file; bytes behind the announced samples and behind the last block are ignored."""
    pyuff = _library("pyuff", "uff", origin)
    opened = pyuff.UFF(str(file.name))
    places = [place for place, kind in enumerate(opened.get_set_types()) if kind == 58]
    headers = {place: opened.read_sets(place, header_only=True) for place in places}
    headers = {
        place: head for place, head in headers.items()
        if head["func_type"] in TIME_RESPONSES and head["abscissa_spec_data_type"] in TIME_AXES
    }  # fmt: skip
    if not headers:
        raise InputError(f"{origin}: holds no time response (data set 58); export the signal itself, not its spectrum")
    if bad := [head for head in headers.values() if head["ord_data_type"] not in (2, 4)]:
        raise InputError(
            f"{origin}: '{_response(bad[0])}' is complex, which no time signal is; export the signal itself"
        )
    channels = dict(zip(_named([_response(head) for head in headers.values()]), headers, strict=True))
    rates: dict[str, float | None] = {}
    for name, place in channels.items():
        step = headers[place]["abscissa_inc"]
        if headers[place]["abscissa_spacing"] == 1 and step > 0:
            rates[name] = whole(1 / step)
        else:  # a time stands beside each sample
            rates[name] = rate_of(origin, name, np.asarray(opened.read_sets(place)["x"])[: headers[place]["num_pts"]])

    def blocks(name: str) -> Iterator[Samples]:
        place, points = channels[name], int(headers[channels[name]]["num_pts"])
        samples = np.asarray(opened.read_sets(place)["data"])
        if samples.size < points:
            raise EOFError(f"'{name}' has {samples.size} of {points} samples")
        yield samples[:points]

    sizes = {name: 8 * int(headers[place]["num_pts"]) for name, place in channels.items()}
    return _from_channels(origin, sizes, rates, blocks)


def _response(head: Mapping[str, Any]) -> str:
    """What a person calls the channel: its first line of text, or its node and direction."""
    text = str(head["id1"]).strip()
    direction = int(head["rsp_dir"])
    axis = "" if not 1 <= abs(direction) <= 3 else ("-" if direction < 0 else "+") + "XYZ"[abs(direction) - 1]
    return text if text and text.upper() != "NONE" else f"{int(head['rsp_node'])}{axis}"


def open_mdf(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Numeric channels of all groups, with the rate of their group's times."""
    asammdf = _library("asammdf", "mdf", origin)
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
                raise InputError(
                    f"{origin}: the channel '{channel.name}' is kept as a formula, which bearcat does not evaluate;"
                    " save it again with physical values"
                )
            name = _named([*found, channel.name])[-1]
            found[name], rates[name], sizes[name] = (number, place), rate, 8 * count

    def blocks(name: str) -> Iterator[Samples]:
        group, place = found[name]
        samples = np.asarray(mdf.get(group=group, index=place, samples_only=True)[0])
        if samples.dtype.kind not in "fiu":
            raise InputError(f"{origin}: the channel '{name}' holds texts, not numbers")
        yield samples

    return _from_channels(origin, sizes, rates, blocks)


def open_tree(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """The arrays of an HDF5 file, as `group.array`; a number or an attribute called fs or rate is the rate."""
    tree = stack.enter_context(open_hdf5(file, origin, "HDF5"))
    nodes = numeric_nodes(tree, origin)
    attributes = {}
    for owner in (tree, *(tree[name.replace(".", "/")] for name in nodes if name.replace(".", "/") in tree)):
        for name, value in owner.attrs.items():
            array = np.asarray(value)
            if array.dtype.kind in "fiu" and prod(array.shape) == 1:
                attributes[name] = array.reshape(1)
    return from_arrays(origin, nodes | {f"@{name}": value for name, value in attributes.items()})


def open_flac(file: BinaryIO, origin: str, stack: ExitStack) -> SignalFile:
    """Channels go by their numbers, and full scale is 1, as in wav files."""
    sound = stack.enter_context(_library("soundfile", "audio", origin).SoundFile(file))
    channels = [str(number + 1) for number in range(sound.channels)]

    def read(names: Sequence[str]) -> Iterator[Part]:
        for block in sound.blocks(blocksize=BLOCK // len(channels) + 1, dtype="float32", always_2d=True):
            yield {name: np.ascontiguousarray(block[:, int(name) - 1]) for name in names}

    return SignalFile(origin, dict.fromkeys(channels, 4 * sound.frames), float(sound.samplerate), read)
