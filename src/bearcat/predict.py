"""Files of new recordings → diagnoses, a block of samples at a time.

A file of any supported format (bearcat.data.formats) becomes a stream of blocks, which are brought to the model's rate,
cut into windows and handed to the model in batches. npy, wav and text files are read block by block, so that a day of
vibration needs no more memory than a minute; npz, mat, parquet and 24-bit wav files are read whole first.
The model is a folder (torch) or an ONNX file (onnxruntime; torch is not imported then).

>>> model = open_model(Path("out/model"))
>>> diagnosis = diagnose_stream(model, open_stream(Path("pump/monday.wav")))
>>> model.classes[diagnosis.index], diagnosis.confidence, diagnosis.familiar
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bearcat.data.formats import DAMAGE, FORMATS, Signals, read_signals, reading
from bearcat.data.prepare import Preparation
from bearcat.data.recording import Floats, Integers, spectrum, standardise
from bearcat.diagnose import Diagnosis, Outputs, Tally, diagnose, tally
from bearcat.errors import InputError, suggest
from bearcat.trust import Booleans, Familiarity

BLOCK = 2**18  # samples read at once
LINES = 2**16  # lines of text read at once
SMALL_TEXT = 2**22  # bytes; text files up to this size are read whole
TEXT = {".csv", ".tsv", ".txt"}
BATCH = 256  # windows handed to the model at once
HEALTHY_NAMES = {"healthy", "normal"}  # a class called so, in any case, is no alarm


class Predictor(Protocol):
    """What Model and OnnxModel have in common."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def preparation(self) -> Preparation: ...
    @property
    def rate(self) -> float | None: ...
    @property
    def channels(self) -> int: ...
    @property
    def pooled_temperature(self) -> float: ...
    @property
    def calibrated(self) -> bool | None: ...  # and not at its bound; None: a file of before does not say

    @property
    def familiarity(self) -> Familiarity | None: ...

    def outputs(self, windows: NDArray[Any]) -> Outputs:
        """(window, channel, sample) windows as recorded → log-probabilities, logits, features."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Some windows of a recording as a model sees them."""

    starts: Integers  # (window,) the sample at which each begins
    log_probabilities: NDArray[Any]  # (window, class) calibrated
    unfamiliar: Booleans | None  # (window,) whether it looks like nothing the model was adapted to; None: cannot tell


@dataclass(frozen=True, eq=False)
class Stream:
    """One channel of a file as blocks of samples (time,), float32 and finite, to be gone through once."""

    origin: str
    rate: float | None
    blocks: Iterator[Floats]


def open_model(path: Path) -> Predictor:
    """The model in a folder, or in a file that ends in .onnx."""
    path = Path(path)
    if path.suffix.lower() == ".onnx":
        from bearcat.export import load_onnx

        return load_onnx(path)
    try:
        from bearcat.artefact import load_model
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise InputError(
            f"{path}: a model folder needs {error.name}; pip install {error.name}, or export the model elsewhere with"
            " bearcat export and use the .onnx file"
        ) from error
    return load_model(path)


def find_files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files named, and those of supported formats in folders named, in order of name; hidden ones are left out."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        named = (one for one in sorted(path.rglob("*")) if one.suffix.lower() in FORMATS)
        inside = (one for one in named if one.is_file() or not one.exists())  # a link to nothing cannot be read either
        found = [one for one in inside if not any(part.startswith(".") for part in one.relative_to(path).parts)]
        yield from found or [path]  # an empty folder is told of where the files are read


def open_stream(path: Path, channel: str | None = None) -> Stream:
    """The file's channel of this name (or the only one) as a stream; one sentence if that cannot be."""
    origin = str(path)
    blocks: Iterator[NDArray[Any]]
    if path.is_dir():
        raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(FORMATS)}")
    signals = _mapped(path)
    if path.suffix.lower() in TEXT and path.is_file() and path.stat().st_size > SMALL_TEXT:
        rate, blocks = _open_text(path, channel)
    elif signals is None:
        whole = read_signals(path)
        rate, (_, samples) = whole.rate, whole.pick(channel)
        blocks = (samples[at : at + BLOCK] for at in range(0, samples.size, BLOCK))
    else:
        rate, (name, samples) = signals.rate, signals.pick(channel)
        blocks = _read_again(path, name, samples.size)
    if rate is not None and not (np.isfinite(rate) and rate > 0):
        raise InputError(f"{origin}: the sampling rate must be a positive number of hertz, not {rate:g}")
    return Stream(origin, rate, _finite(origin, blocks))


def at_rate_of(model: Predictor, stream: Stream, rate: float | None = None) -> tuple[Stream, str | None]:
    """The stream at the model's rate, and what a reader should be told; `rate` is of files that do not say theirs."""
    wanted, own = model.preparation.rate or model.rate, stream.rate or rate
    note = None
    if rate is not None and stream.rate is not None and stream.rate != rate:
        note = f"{stream.origin}: says it is at {stream.rate:g} Hz, which counts, and not --rate {rate:g}"
    if wanted is None and own is not None:
        told = f"{stream.origin}: the model does not know the rate it was trained at, so {own:g} Hz may not be that"
        return replace(stream, rate=own), f"{told}; {note}" if note else told
    if wanted is None or own == wanted:
        return replace(stream, rate=own), note
    if own is None:
        raise InputError(
            f"{stream.origin}: does not say its sampling rate, and the model is for {wanted:g} Hz; give it with --rate"
        )
    ratio = Fraction(wanted / own).limit_denominator(1000)  # as bearcat.data.resample
    if ratio == 0:
        raise InputError(f"{stream.origin}: {own:g} Hz cannot be brought to the model's {wanted:g} Hz; check the rate")
    told = f"{stream.origin}: resampled from {own:g} Hz to the model's {wanted:g} Hz"
    if own < wanted:
        told += f"; the model was trained on frequencies above {own / 2:g} Hz, which this recording has not"
    blocks = resampled(stream.blocks, ratio.numerator, ratio.denominator)
    return Stream(stream.origin, wanted, blocks), f"{told}; {note}" if note else told


def look_at(model: Predictor, windows: NDArray[Any], starts: Integers | None = None) -> Seen:
    """Windows as recorded (window, channel, sample), at once; without `starts` they lie a step of the model's apart."""
    if starts is None:
        starts = model.preparation.step * np.arange(len(windows), dtype=np.int64)
    said, strange = model.outputs(windows), None
    if model.familiarity is not None:
        strange = model.familiarity.unfamiliar(said.logits, said.features, spectrum(standardise(windows)))
    return Seen(starts, said.log_probabilities, strange)


def look(model: Predictor, stream: Stream, batch: int = BATCH) -> Iterator[Seen]:
    """A stream at the model's rate → its windows as the model sees them, by batches."""
    if model.channels != 1:
        raise InputError(
            f"{stream.origin}: the model takes {model.channels} channels at once, and a file is read one channel at a"
            " time; send it windows as JSON (bearcat serve)"
        )
    length, step = model.preparation.length, model.preparation.step
    seen = False
    for start, windows in cut_stream(stream.blocks, length, step, batch):
        seen = True
        starts = start + step * np.arange(len(windows), dtype=np.int64)
        yield look_at(model, windows[:, None], starts)
    if not seen:
        raise InputError(f"{stream.origin}: is shorter than one window of {length} samples; record for longer")


def diagnose_stream(
    model: Predictor, stream: Stream, batch: int = BATCH, show: Callable[[Seen], None] | None = None
) -> Diagnosis:
    """The diagnosis of a whole recording, at the model's rate. `show` is called with every batch of windows.

    Of the windows sums and counts are kept alone, so that a recording may be of any length.
    """
    nothing = None if model.familiarity is None else 0
    counted = Tally(np.zeros(len(model.classes)), np.zeros(len(model.classes), dtype=np.int64), nothing)
    for seen in look(model, stream, batch):
        counted += tally(seen.log_probabilities, seen.unfamiliar)
        if show is not None:
            show(seen)
    return diagnose(counted, model.pooled_temperature, model.familiarity)


def alarm_classes(classes: Sequence[str], named: Sequence[str] | None) -> set[str]:
    """The classes that are an alarm: those named, else all but the healthy ones."""
    for one in named or ():
        if one not in classes:
            raise InputError(f"--alarm: the model has no class '{one}'{suggest(one, classes)}")
    return set(named) if named else {one for one in classes if one.lower() not in HEALTHY_NAMES}


def cut_stream(blocks: Iterable[Floats], length: int, step: int, batch: int) -> Iterator[tuple[int, Floats]]:
    """Blocks (time,) → (first window's start, windows (≤ batch, length)), as cutting the whole signal would give."""
    held, base = np.empty(0, dtype=np.float32), 0  # base: the sample at which `held` begins; a window's start, or ahead
    skip = 0  # samples still to come that no window wants, where the step is longer than a window
    for block in blocks:
        dropped = min(skip, block.size)
        skip -= dropped
        held = np.concatenate([held, block[dropped:]])
        while held.size >= length:
            count = min((held.size - length) // step + 1, batch)
            yield base, np.lib.stride_tricks.sliding_window_view(held, length)[::step][:count]
            base += count * step
            skip = max(count * step - held.size, 0)
            held = held[count * step :]


def resampled(blocks: Iterable[Floats], up: int, down: int) -> Iterator[Floats]:
    """Blocks at up/down times the rate, as scipy's resample_poly would make them of the whole signal.

    The filter reaches `reach` samples to both sides. Each piece is computed with so many neighbours; pieces begin at
    multiples of `down`, where a sample before falls on one after.
    """
    from scipy import signal as processing

    reach = ceil(10 * max(up, down) / up) + 1
    held, base, done = np.empty(0, dtype=np.float32), 0, 0  # base: of the input; done: of the output

    def made(until: int) -> Floats:
        first = base // down * up
        piece = processing.resample_poly(held, up, down)[done - first : until - first]
        return np.asarray(piece, dtype=np.float32)

    for block in blocks:
        held = np.concatenate([held, block])
        until = (base + held.size - reach) * up // down
        if until > done:
            yield made(until)
            done = until
            start = max(done * down // up - reach, 0) // down * down
            held, base = held[max(start - base, 0) :], max(start, base)
    if held.size:
        yield made(ceil((base + held.size) * up / down))


def _mapped(path: Path) -> Signals | None:
    """A file's channels without reading them; None where it is to be read whole, or to be refused by who does that."""
    from scipy.io import wavfile

    origin, kind = str(path), path.suffix.lower()
    try:
        if kind == ".npy":
            values = np.load(path, mmap_mode="r", allow_pickle=False).squeeze()
            if values.dtype.kind not in "fiu" or values.ndim not in (1, 2) or values.size < 2:
                return None
            rows = values[None] if values.ndim == 1 else values if values.shape[0] < values.shape[1] else values.T
            return Signals(origin, {str(number): row for number, row in enumerate(rows, start=1)}, None)
        if kind == ".wav":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", wavfile.WavFileWarning)
                warnings.filterwarnings("error", "Reached EOF")
                rate, samples = wavfile.read(path, mmap=True)
            columns = samples.reshape(len(samples), -1).T
            return Signals(origin, {str(number): row for number, row in enumerate(columns, start=1)}, float(rate))
    except DAMAGE:
        return None  # damaged, cut short, 24 bits: the reader of whole files says it in its own words
    return None


def _read_again(path: Path, name: str, samples: int) -> Iterator[NDArray[Any]]:
    """A mapped channel block by block; each is mapped anew, for pages that were read stay in memory with their map."""
    for start in range(0, samples, BLOCK):
        with reading(str(path), f"a {path.suffix.lower()} file"):
            signals = _mapped(path)
            if signals is None or signals.pick(name)[1].size != samples:
                raise InputError(f"{path}: was changed while it was read; try again")
            block = np.array(signals.pick(name)[1][start : start + BLOCK])
            del signals
        if path.suffix.lower() == ".wav" and block.dtype.kind in "iu":  # full scale is 1, as in bearcat.data.formats
            full = np.float32(np.iinfo(block.dtype).max + 1)
            block = block / full if block.dtype.kind == "i" else block / (full / 2) - 1
        yield block


def _open_text(path: Path, channel: str | None) -> tuple[float | None, Iterator[NDArray[Any]]]:
    """Rate and blocks of a long text file: the reader of whole files is given the header and some lines at a time."""
    origin, reader, parts = str(path), FORMATS[path.suffix.lower()], _line_parts(path)

    def read(content: bytes) -> Signals:
        with reading(origin, "text"):
            return reader(io.BytesIO(content), origin)

    first = next(parts)
    signals = read(first)
    name, samples = signals.pick(channel)
    rows = _rows(first)
    header = b"".join(rows[: len(rows) - samples.size])

    def blocks() -> Iterator[NDArray[Any]]:
        yield samples
        for part in parts:
            found = read(header + part)
            if signals.rate and found.rate and abs(found.rate / signals.rate - 1) > 0.01:
                raise InputError(
                    f"{origin}: its rate changes from {signals.rate:g} to {found.rate:g} Hz; cut the file there"
                )
            if next(iter(found.channels.values())).size != len(_rows(part)):  # words at its head pass for a header
                raise InputError(f"{origin}: a row further down does not hold numbers only; cut the file there")
            yield found.pick(name)[1]

    return signals.rate, blocks()


def _rows(content: bytes) -> list[bytes]:
    """The lines that are neither empty nor comments."""
    return [line for line in content.splitlines(keepends=True) if line.strip() and line[:1] not in (b"#", b"%")]


def _line_parts(path: Path) -> Iterator[bytes]:
    """A file's lines, LINES at a time; a short rest goes with the part before, for a column is known by its values."""
    with reading(str(path), "text"), path.open("rb") as file:
        part = list(islice(file, LINES))
        while part:
            following = list(islice(file, LINES))
            if len(following) < LINES // 2:
                part, following = part + following, []
            yield b"".join(part)
            part = following


def _finite(origin: str, blocks: Iterator[NDArray[Any]]) -> Iterator[Floats]:
    """The blocks as float32; a sentence with the place of the first sample that is no number."""
    before = 0
    for block in blocks:
        with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf and is named below
            values = np.ascontiguousarray(block, dtype=np.float32)
        if not np.isfinite(values).all():
            first = before + int(np.flatnonzero(~np.isfinite(values))[0])
            raise InputError(f"{origin}: sample {first} is NaN or infinite; cut such samples out or interpolate them")
        before += values.size
        yield values
