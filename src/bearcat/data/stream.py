"""Channels of a file, read a block of samples at a time, so that a day needs no more memory than a minute.

Arrays are described in arrays.py, files of samples and tables in formats.py; npz and older MATLAB files are read whole.

>>> stream = only_stream("monday.wav", read_channels(Path("pump/monday.wav"), "monday.wav", "1", ONE))
>>> loudest = max(abs(block).max() for block in stream.blocks)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.channels import is_speed, vibrations
from bearcat.data.formats import OPENERS
from bearcat.data.recording import Floats
from bearcat.data.signals import SignalFile, chosen_channel, reading
from bearcat.errors import InputError
from bearcat.storage import check_regular

ONE, TO_DIAGNOSE, ALL = "one", "to diagnose", "all"  # which channels of a file are read
FORMATS = tuple(OPENERS)
REMOVED = {
    **dict.fromkeys((".mf4", ".mdf"), "MDF files"),
    **dict.fromkeys((".uff", ".unv"), "universal files"),
    ".tdms": "LabVIEW's files",
    ".parquet": "parquet files",
}
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
            raise InputError(f"{origin}: {REMOVED[suffix]} are not read any more; save it as .npz, .mat or .csv")
        if suffix not in OPENERS:
            raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
        check_regular(path, origin)
        file = stack.enter_context(path.open("rb"))
        if path.stat().st_size == 0:
            raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
        yield OPENERS[suffix](file, origin, stack)


def read_channels(
    path: Path, origin: str, channel: str | None = None, which: str = TO_DIAGNOSE
) -> Generator[Any, None, None]:
    """The rate, sizes and stated speeds by channel; then (channel, samples) in the file's order.

    Which channels: ONE, of this name or the only one; TO_DIAGNOSE, that one if it is there, or all that may be
    vibrations, and the speed; or ALL.
    """
    with open_signals(path, origin) as opened:
        if which == ONE or (which == TO_DIAGNOSE and channel in opened.channels):
            names = [chosen_channel(origin, opened.channels, channel)]
        else:
            names = list(opened.channels)
            found = names if which == ALL else vibrations(names)
            names = found + [name for name in names if is_speed(name) and name not in found][:1]
        sizes, speeds = ({name: values[name] for name in names if name in values}
                         for values in (opened.channels, opened.speeds))  # fmt: skip
        yield opened.rate, sizes, speeds
        for name, samples in opened.read(names):
            with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf, and is named where it is used
                yield name, np.ascontiguousarray(samples, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Stream:
    """One channel of a file as blocks of samples (time,), float32 and finite, which can be read once."""

    origin: str
    rate: float | None
    blocks: Iterator[Floats]
    size: int = 0  # bytes of samples, where the file announces them
    channel: str | None = None  # its name in the file
    rpm: float | None = None  # as the file states it, whatever it is


def only_stream(origin: str, content: Iterator[Any]) -> Stream:
    """The only channel of what `read_channels` yields."""
    rate, sizes, speeds = next(content)
    ((name, size),) = sizes.items()
    return Stream(origin, rate, finite(origin, (block for _, block in content)), size, name, speeds.get(name))


def finite(origin: str, blocks: Iterable[Floats]) -> Iterator[Floats]:
    count = 0
    for block in blocks:
        if not (finite := np.isfinite(block)).all():
            bad = count + int(finite.argmin())
            raise InputError(f"{origin}: sample {bad} is NaN or infinite; cut such out or interpolate them")
        yield block
        count += block.size
