"""Files of signals in all formats: those of bearcat.data.arrays, .tables and .instruments.

`open_signals` opens a file and says which channels it holds; `read_signals` reads them all. `open_stream` reads one
channel a block of samples at a time, so that a day needs no more memory than a minute. Channels go by name, never by
position; where the format has no names, they are called "1", "2", …

>>> name, samples = read_signals(Path("pump/inner/monday.csv")).pick(None)
>>> loudest = max(abs(block).max() for block in open_stream(Path("pump/monday.wav")).blocks)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bearcat.data.arrays import open_mat, open_npy, open_npz, open_wav
from bearcat.data.instruments import open_flac, open_mdf, open_tdms, open_tree, open_uff
from bearcat.data.recording import Floats
from bearcat.data.signals import BLOCK, Samples, SignalFile, Signals, check_count, chosen_channel, reading
from bearcat.data.tables import open_parquet, open_text
from bearcat.errors import InputError

OPENERS: dict[str, Callable[[BinaryIO, str, ExitStack], SignalFile]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), open_text),
    ".npy": open_npy,
    ".npz": open_npz,
    ".mat": open_mat,
    ".wav": open_wav,
    ".parquet": open_parquet,
    **dict.fromkeys((".h5", ".hdf5"), open_tree),
    ".flac": open_flac,
    ".tdms": open_tdms,
    **dict.fromkeys((".uff", ".unv"), open_uff),
    **dict.fromkeys((".mf4", ".mdf"), open_mdf),
}
FORMATS = tuple(OPENERS)
UPLOADS = tuple(suffix for suffix in FORMATS if suffix not in (".mf4", ".mdf"))  # to a server; see docs/security.md


@contextmanager
def open_signals(path: Path, origin: str | None = None) -> Iterator[SignalFile]:
    """A file of any format, by its suffix; `origin` is the name used in error messages."""
    origin, suffix = str(path) if origin is None else origin, path.suffix.lower()
    if suffix not in OPENERS:
        raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
    with reading(origin, f"a {suffix} file"), ExitStack() as stack:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise InputError(f"{origin}: is no regular file; copy its content into one")
        file = stack.enter_context(path.open("rb"))
        if path.stat().st_size == 0:
            raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
        opened = OPENERS[suffix](file, origin, stack)
        if opened.rate is not None and not (np.isfinite(opened.rate) and opened.rate > 0):
            raise InputError(f"{origin}: the sampling rate must be a positive number of hertz, not {opened.rate:g}")
        check_count(origin, len(opened.channels))
        yield opened


def read_signals(path: Path, origin: str | None = None) -> Signals:
    """All channels of a file, by its suffix; `origin` is the name used in error messages."""
    with open_signals(path, origin) as opened:
        found: dict[str, list[Samples]] = {name: [] for name in opened.channels}
        for part in opened.read(list(found)):
            for name, samples in part.items():
                found[name].append(samples)
        channels = {name: np.concatenate(samples) for name, samples in found.items()}
        return Signals(opened.origin, channels, opened.rate, rates=opened.rates)


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
        raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(FORMATS)}")
    reader = _read(path, channel, origin)
    rate, size = next(reader)
    return Stream(origin, rate, reader, size)


def _read(path: Path, channel: str | None, origin: str) -> Iterator[Any]:
    """Rate and size, then the blocks. The file is open until the last block, or until the generator is closed."""
    with open_signals(path, origin) as opened:
        name = chosen_channel(origin, opened.channels, channel)
        yield opened.rate_of(name), opened.channels[name]
        count = 0
        for part in opened.read([name]):
            for start in range(0, part[name].size, BLOCK):
                with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf and is named below
                    block = np.ascontiguousarray(part[name][start : start + BLOCK], dtype=np.float32)
                if not (finite := np.isfinite(block)).all():
                    bad = f"sample {count + int(finite.argmin())} is NaN or infinite"
                    raise InputError(f"{origin}: {bad}; cut such samples out or interpolate them")
                yield block
                count += block.size
