"""Files of signals, of any kind people keep them in: one function, `read_signals`.

Text (csv, tsv, txt), numpy (npy, npz), MATLAB (v5 and v7.3), wav and parquet. A file holds named channels, never
positions: where the format has no names, channels are called "1", "2", … Nothing here executes what it reads.

>>> signals = read_signals(Path("pump/inner/monday.csv"))
>>> name, samples = signals.pick(None)
"""

from __future__ import annotations

import io
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError, suggest

Samples = NDArray[Any]

RATE_NAMES = {"rate", "fs", "sr", "samplerate", "samplingrate", "samplingfrequency", "samplefrequency", "fsamp"}
TIME_NAMES = {"time", "t", "zeit", "seconds", "sec", "timestamp", "times"}
TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
IN_MANIFEST = ", or in the manifest's column 'channel'"
INDEX_NAMES = {"", "index", "sample", "samples", "n", "no", "unnamed: 0"}
# What readers raise on bytes that are not what the file's name says.
DAMAGE = (
    ValueError, TypeError, KeyError, IndexError, EOFError, OSError, OverflowError, MemoryError,
    RuntimeError, AttributeError, NameError, UserWarning, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
HDF5 = (b"MATLAB 7.3", b"\x89HDF")  # how MATLAB v7.3 files begin


@dataclass(frozen=True, eq=False)
class Signals:
    """The channels of one file, by name, with its sampling rate if the file says it."""

    origin: str
    channels: Mapping[str, Samples]
    rate: float | None

    def pick(self, channel: str | None, elsewhere: str = IN_MANIFEST) -> tuple[str, Samples]:
        """The channel called so; without a name, the only one there is. `elsewhere`: where else one may name it."""
        if channel is not None:
            if channel not in self.channels:
                raise InputError(f"{self.origin}: has no channel '{channel}'{suggest(channel, self.channels)}")
            return channel, self.channels[channel]
        if len(self.channels) != 1:
            raise InputError(
                f"{self.origin}: holds {len(self.channels)} channels ({', '.join(self.channels)});"
                f" say which one with --channel{elsewhere}"
            )
        return next(iter(self.channels.items()))


@contextmanager
def reading(origin: str, kind: str) -> Iterator[None]:
    """Turns whatever goes wrong while reading a file into one sentence that names it."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{origin}: there is no such file") from error
    except PermissionError as error:
        raise InputError(f"{origin}: permission denied; make the file readable for your user") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{origin}: is not UTF-8 text (byte 0x{error.object[error.start]:02x} at position {error.start});"
            " save it again with the encoding UTF-8"
        ) from error
    except DAMAGE as error:
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise InputError(
            f"{origin}: cannot be read as {kind} ({reason}); the file is damaged, cut short or of another format"
        ) from error


def read_signals(path: Path, origin: str | None = None) -> Signals:
    """All channels of a file, by its suffix; `origin` is the name used in error messages."""
    origin = str(path) if origin is None else origin
    reader = FORMATS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
    with reading(origin, f"a {path.suffix.lower()} file"):
        if path.stat().st_size == 0:
            raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
        with path.open("rb") as file:
            return reader(file, origin)


def columns(origin: str, named: Mapping[str, Samples], rate: float | None) -> Signals:
    """Signals out of named arrays of one or two axes: a rate is taken out, a table gives one channel per column."""
    channels: dict[str, Samples] = {}
    for name, value in named.items():
        if value.size == 1 and value.dtype.kind in "fiu" and re.sub(r"[\W_]", "", name.lower()) in RATE_NAMES:
            rate = float(value.reshape(()))
        channels |= channels_in(origin, name, value)
    if not channels:
        raise InputError(f"{origin}: holds no numeric signal; it has {', '.join(named) or 'nothing'}")
    return Signals(origin, channels, rate)


def channels_in(origin: str, name: str, value: Samples) -> dict[str, Samples]:
    """The channels of one array, in order: none where it holds no signal, one for each column of a table."""
    if value.dtype.kind not in "fiu" or value.size < 2:
        return {}
    squeezed = value.squeeze()
    if squeezed.ndim == 1:
        return {name: squeezed}
    if squeezed.ndim != 2:
        raise InputError(f"{origin}: '{name}' has {squeezed.ndim} axes; a signal has one, a table of channels two")
    rows = squeezed if squeezed.shape[0] < squeezed.shape[1] else squeezed.T  # the longer axis is time
    return {f"{name}.{number}".lstrip("."): row for number, row in enumerate(rows, start=1)}


def table(origin: str, named: dict[str, Samples]) -> Signals:
    """Signals out of a table: a column of times gives the rate, a column of sample numbers is left out."""
    rate = None
    for name, value in list(named.items()):
        if len(named) == 1 or value.size < 3 or value.dtype.kind not in "fiu":
            continue
        plain, _, unit = re.sub(r"[\[\]()/,;]", " ", name.lower()).strip().partition(" ")
        steps = np.diff(value.astype(np.float64))
        even = bool(steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-3, atol=0))
        if plain in INDEX_NAMES | {"1"} and even and steps[0] == 1:
            del named[name]
        elif plain in TIME_NAMES or (plain == "1" and even):
            rate = _rate_of(origin, name, value.astype(np.float64) * TIME_UNITS.get(unit.strip(), 1.0))
            del named[name]
    return columns(origin, named, rate)


def _rate_of(origin: str, name: str, times: Samples) -> float:
    """The rate of evenly spaced times, rounded to a whole number where it is one but for the rounding of the file."""
    span = times[-1] - times[0]
    if not np.isfinite(span) or span <= 0:
        raise InputError(f"{origin}: the times in column '{name}' do not rise; sort them, or remove the column")
    step = span / (times.size - 1)
    off = np.abs(times - times[0] - step * np.arange(times.size))
    if off.max() > 1.5 * step:
        raise InputError(
            f"{origin}: the times in column '{name}' are not evenly spaced (see row {int(off.argmax()) + 1});"
            " resample the signal, or remove the column and give the rate as a number"
        )
    rate = 1 / step
    return float(round(rate)) if abs(rate - round(rate)) < 1e-4 * rate else float(rate)


def _read_text(file: BinaryIO, origin: str) -> Signals:
    """Columns of numbers: any of , ; tab or blanks between them, decimal point or comma, an optional header."""
    lines = [line for line in file.read().decode("utf-8-sig").splitlines() if line.strip() and line[0] not in "#%"]
    if not lines:
        raise InputError(f"{origin}: holds no rows; record or export it again")
    probe = lines[min(len(lines) - 1, 50)]  # far enough below any header
    delimiter = next((sign for sign in ("\t", ";") if sign in probe), None)
    decimal_comma = delimiter is not None and "," in probe and "." not in probe
    if delimiter is None and "," in probe:
        delimiter = ","
    start = next((row for row, line in enumerate(lines) if _numbers(line, delimiter, decimal_comma)), None)
    if start is None:
        raise InputError(f"{origin}: no row holds numbers only; export the signal as plain columns of numbers")
    body = "\n".join(lines[start:])
    values = np.loadtxt(
        io.StringIO(body.replace(",", ".") if decimal_comma else body), delimiter=delimiter, ndmin=2, comments=None
    )
    header = [field.strip().strip('"') for field in lines[start - 1].split(delimiter)] if start else []
    if len(header) != values.shape[1] or len(set(header)) != len(header):
        header = [str(number) for number in range(1, values.shape[1] + 1)]
    return table(origin, dict(zip(header, values.T, strict=True)))


def _numbers(line: str, delimiter: str | None, decimal_comma: bool) -> bool:
    """Whether a row of text holds numbers only."""
    try:
        [float(field) for field in (line.replace(",", ".") if decimal_comma else line).split(delimiter)]
    except ValueError:
        return False
    return True


def _read_npy(file: BinaryIO, origin: str) -> Signals:
    signals = columns(origin, {"": np.load(file, allow_pickle=False)}, None)
    return replace(signals, channels={name or "1": samples for name, samples in signals.channels.items()})


def _read_npz(file: BinaryIO, origin: str) -> Signals:
    with np.load(file, allow_pickle=False) as arrays:
        return columns(origin, {name: np.asarray(value) for name, value in arrays.items()}, None)


def _read_matlab(file: BinaryIO, origin: str) -> Signals:
    return columns(origin, {k: np.asarray(v) for k, v in read_mat(file, origin).items()}, None)


def _read_wav(file: BinaryIO, origin: str) -> Signals:
    from scipy.io import wavfile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks of notes that recorders add
        warnings.filterwarnings("error", "Reached EOF")  # cut short
        rate, samples = wavfile.read(file)
    if samples.dtype.kind in "iu":  # full scale is 1, as for wav files of floats
        full = np.iinfo(samples.dtype).max + 1
        samples = samples / np.float32(full) if samples.dtype.kind == "i" else samples / np.float32(full / 2) - 1
    columns = samples.reshape(len(samples), -1).T
    return Signals(origin, {str(number): row for number, row in enumerate(columns, start=1)}, float(rate))


def _read_parquet(file: BinaryIO, origin: str) -> Signals:
    found = parquet_reader(origin).read_table(file)
    return table(origin, {name: found[name].to_numpy() for name in found.column_names})


def parquet_reader(origin: str) -> Any:
    """pyarrow.parquet, which is an extra."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(f"{origin}: parquet needs an extra; pip install 'bearcat[formats]'") from error
    return parquet


def npy_header(file: Any, origin: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first axis is the fastest, and type, as the head of a .npy file announces them."""
    version = np.lib.format.read_magic(file)
    read: Callable[..., tuple[Any, ...]] = (
        np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise InputError(f"{origin}: holds Python objects, which are not read; save plain numbers")
    return shape, fortran, dtype


def read_mat(file: BinaryIO, origin: str) -> dict[str, Any]:
    """The variables of a MATLAB file, v5 or v7.3; structs of v5 as objects with fields, groups of v7.3 as `a.b`."""
    head = file.read(20)
    file.seek(0)
    if head.startswith(HDF5):
        return _read_mat73(file, origin)
    from scipy import io as scipy_io

    with reading(origin, "a MATLAB file"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a variable stored twice, and the like: the last one counts
        try:
            variables: dict[str, Any] = scipy_io.loadmat(file, struct_as_record=False, squeeze_me=True)  # type: ignore[arg-type]
        except scipy_io.matlab.MatReadError as error:
            raise ValueError(str(error)) from error
    return {name: value for name, value in variables.items() if not name.startswith("__")}


def _read_mat73(file: BinaryIO, origin: str) -> dict[str, Any]:
    with reading(origin, "a MATLAB v7.3 file"), opened_hdf5(file, origin) as tree:
        return {name: np.asarray(node[()]).squeeze() for name, node in numeric_nodes(tree).items()}


def opened_hdf5(file: BinaryIO, origin: str) -> Any:
    """h5py's view of a file; h5py is an extra."""
    try:
        import h5py
    except ImportError as error:
        raise InputError(f"{origin}: MATLAB v7.3 files need an extra; pip install 'bearcat[formats]'") from error
    return h5py.File(file, "r")


def numeric_nodes(tree: Any) -> dict[str, Any]:
    """The arrays of numbers in an HDF5 tree, as `a.b`, not yet read; what MATLAB keeps for itself is left out."""
    import h5py

    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiu" and not name.startswith("#"):
            found[name.replace("/", ".")] = node

    tree.visititems(visit)
    return found


FORMATS: dict[str, Callable[[BinaryIO, str], Signals]] = {
    ".csv": _read_text,
    ".tsv": _read_text,
    ".txt": _read_text,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".mat": _read_matlab,
    ".wav": _read_wav,
    ".parquet": _read_parquet,
}
