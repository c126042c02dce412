"""Files of signals in all formats: those of bearcat.data.arrays, .tables and .instruments.

`open_signals` opens a file and says which channels it holds; their samples are read on demand, a block
at a time. `read_signals` reads them all. Channels go by name, never by position; where the format has no names, they
are called "1", "2", …

>>> signals = read_signals(Path("pump/inner/monday.csv"))
>>> name, samples = signals.pick(None)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bearcat.data.arrays import open_mat, open_npy, open_npz, open_wav
from bearcat.data.instruments import open_flac, open_mdf, open_tdms, open_tree, open_uff
from bearcat.data.signals import Samples, SignalFile, Signals, check_count, reading
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
