"""One channel of a file as a stream: a block of samples at a time, so that a day needs no more memory than a minute.

>>> stream = open_stream(Path("pump/monday.wav"))
>>> loudest = max(abs(block).max() for block in stream.blocks)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bearcat.data.formats as formats
from bearcat.data.recording import Floats
from bearcat.data.signals import BLOCK, Samples, chosen_channel
from bearcat.errors import InputError


@dataclass(frozen=True, eq=False)
class Stream:
    """One channel of a file as blocks of samples (time,), float32 and finite, which can be read once."""

    origin: str
    rate: float | None
    blocks: Iterator[Floats]
    size: int = 0  # bytes of samples, where the file announces them


def open_stream(path: Path, channel: str | None = None, origin: str | None = None) -> Stream:
    """The file's channel of this name, or the only one; `origin` is the name used in error messages."""
    origin = str(path) if origin is None else origin
    if path.is_dir():
        raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(formats.FORMATS)}")
    reader = _read(path, channel, origin)
    rate, size = next(reader)
    return Stream(origin, rate, reader, size)


def _read(path: Path, channel: str | None, origin: str) -> Iterator[Any]:
    """Rate and size, then the blocks. The file is open until the last block, or until the generator is closed."""
    with formats.open_signals(path, origin) as opened:
        name = chosen_channel(origin, opened.channels, channel)
        yield opened.rate_of(name), opened.channels[name]
        count = 0
        for part in opened.read([name]):
            for start in range(0, part[name].size, BLOCK):
                block = part[name][start : start + BLOCK]
                yield _finite(origin, block, count)
                count += block.size


def _finite(origin: str, block: Samples, before: int) -> Floats:
    with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf and is named below
        values = np.ascontiguousarray(block, dtype=np.float32)
    if not np.isfinite(values).all():
        first = before + int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(f"{origin}: sample {first} is NaN or infinite; cut such samples out or interpolate them")
    return values
