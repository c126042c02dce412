"""Files of signals by their suffix, and the worker processes that read those of risky formats.

Channels without a name are called "1", "2", … A format whose parser can be broken is read by a worker with limits of
memory, time and file size: a file can end its worker, but not us. Any failure is one sentence. Wav and text need none.

>>> name, samples = read_signals(Path("monday.mat")).pick(None)
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from bearcat.data.signals import (
    MOST_CHANNELS,
    Samples,
    Signals,
    read_flac,
    read_mat,
    read_numpy,
    read_text,
    read_tree,
    reading,
)
from bearcat.errors import InputError, check_range
from bearcat.storage import check_regular

MOST_BYTES = 2**31  # of a file, and of its samples, which are held in memory
MOST_CHUNKS = 10_000  # of a wav file, before its samples
# Of wav files: what samples are, by the code (1 integers, 3 floats) and the bytes of a sample.
WAV_SAMPLES = {(1, 1): "u1", (1, 2): "<i2", (1, 3): "u1", (1, 4): "<i4", (3, 4): "<f4", (3, 8): "<f8"}


def read_wav(file: BinaryIO, origin: str) -> Signals:
    """Integers or floats of a RIFF file. scipy's reader takes what is there of samples that were cut off."""
    kind, form = struct.unpack("<4s4x4s", file.read(12))
    if kind != b"RIFF" or form != b"WAVE":
        raise ValueError("no RIFF header")
    code, channels, rate, width = 0, 0, 0, 0
    for _chunk in range(MOST_CHUNKS):
        name, size = struct.unpack("<4sI", file.read(8))
        start = file.tell()
        if name == b"data":
            break
        if name == b"fmt ":
            code, channels, rate, width = struct.unpack("<HHI4xH2x", file.read(16))
            if code == 0xFFFE:  # the kind of sample is given further on
                (code,) = struct.unpack("<8xH", file.read(10))
        file.seek(start + size + size % 2)
    else:
        raise ValueError("too many chunks before its samples")
    stored = WAV_SAMPLES.get((code, width // channels)) if channels else None
    if stored is None or width % channels:
        raise ValueError(f"{channels} channels in {width} bytes, of the kind {code}, are not supported")
    content = file.read(size // width * width)
    if len(content) < size // width * width:
        raise EOFError("it ends before its samples do")
    samples = np.frombuffer(content, stored).reshape(size // width, channels, -1)
    columns = {str(number + 1): _full_scale(samples[:, number]) for number in range(channels)}
    return Signals(origin, columns if len(samples) > 1 else {}, float(rate))


def _full_scale(samples: Samples) -> Samples:
    """Samples (frame, 1), or (frame, byte) of 24 bits, as floats whose full scale is 1 (frame,)."""
    if samples.shape[1] == 3:  # the lowest byte first
        wide = np.zeros((len(samples), 4), dtype=np.uint8)
        wide[:, 1:] = samples
        samples = wide.view("<i4")
    elif samples.dtype.kind == "u":
        return samples[:, 0] / np.float32(128) - 1
    if samples.dtype.kind == "i":
        return samples[:, 0].astype(np.float32) / np.float32(2.0 ** (8 * samples.itemsize - 1))
    return samples[:, 0]


READERS: dict[str, Callable[[BinaryIO, str], Signals]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), read_text),
    **dict.fromkeys((".npy", ".npz"), read_numpy),
    ".mat": read_mat,
    ".wav": read_wav,
    **dict.fromkeys((".h5", ".hdf5"), read_tree),
    ".flac": read_flac,
}

FORMATS = tuple(READERS)
STATING = (".npz", ".mat", ".h5", ".hdf5")  # in which a number may state the speed


def read_channels(path: Path | str, origin: str, most: int = MOST_BYTES) -> Signals:
    """The channels of a file of at most so many bytes; its suffix says the format, `origin` is its name in errors."""
    path, too_large = Path(path), f"{origin}: has more than {most >> 20} MiB; cut it into shorter recordings"
    suffix = path.suffix.lower()
    if not suffix.lstrip(".") or suffix[1:].isdigit():  # a name without one, or that ends with a time: plain text
        suffix = ".txt"
    with reading(origin, f"a {suffix} file"):
        if path.is_dir():
            raise InputError(f"{origin}: holds no file of a supported format; those are {', '.join(FORMATS)}")
        if suffix not in READERS:
            raise InputError(f"{origin}: unknown format '{path.suffix}'; use one of {', '.join(FORMATS)}")
        check_regular(path, origin)
        with path.open("rb") as file:
            if (size := path.stat().st_size) == 0:
                raise InputError(f"{origin}: is empty (0 bytes); record or copy it again")
            if size > most:
                raise InputError(too_large)
            signals = READERS[suffix](file, origin)
    if not signals.channels:
        raise InputError(f"{origin}: holds no numeric signal")
    if len(signals.channels) > MOST_CHANNELS:
        many = f"has {len(signals.channels)} columns, more than {MOST_CHANNELS}"
        raise InputError(f"{origin}: {many}; transpose the table, or cut it into files")
    check_range("rate", signals.rate, origin)
    with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf, and is named where it is used
        channels = {name: np.ascontiguousarray(samples, dtype=np.float32) for name, samples in signals.channels.items()}
    if sum(samples.nbytes for samples in channels.values()) > most:
        raise InputError(too_large)
    return replace(signals, channels=channels)


# Formats whose parsers can be broken.
RISKY = (".npy", ".npz", ".mat", ".h5", ".hdf5", ".flac")
SECONDS, GRACE = 600.0, 5.0  # for one file; after which its worker, whose own alarm failed, is ended
LEAST_BYTES, UNPACKED = 2**30, 100  # of memory and of samples: for a file, and for each byte of it

START = "import sys; sys.path = sys.argv[1:]; from bearcat.data.formats import work; work()"
# One thread and one pool of memory: each further one reserves address space, which is what is limited.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
# What a worker gets of our environment: no token of a server, nor any other secret.
INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")

# Workers that wait for a file, by the process that started them: a forked one needs its own.
_waiting = defaultdict[int, list[subprocess.Popen[bytes]]](list)


def is_risky(path: Path) -> bool:
    """Whether the file's format is one whose parser can be broken."""
    return path.suffix.lower() in RISKY


def read_signals(path: Path, origin: str | None = None, seconds: float = SECONDS) -> Signals:
    """The channels of a file; a worker reads risky formats, and ends after these seconds."""
    origin = origin or str(path)
    if is_risky(path) and sys.platform != "win32":
        return _by_worker(path, origin, seconds)
    return read_channels(path, origin, MOST_BYTES)


def _limit(path: Path) -> int:
    """Bytes of memory and of samples for a file; packed zeros end here."""
    size = 0
    with suppress(OSError):  # reading says that it is not there
        size = path.stat().st_size
    return min(LEAST_BYTES + UNPACKED * size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def _by_worker(path: Path, origin: str, seconds: float) -> Signals:
    """What a worker reads. InputError where it refuses the file or ended because of it."""
    memory, waiting = _limit(path), _waiting[os.getpid()]
    order = {"path": str(path.absolute()), "origin": origin, "memory": memory, "seconds": max(seconds, 0.001)}
    try:
        worker = waiting.pop()
    except IndexError:  # all are reading
        worker = _start()
    if worker.poll() is not None:
        _end(worker)
        worker = _start()
    orders, answers = cast("tuple[BinaryIO, BinaryIO]", (worker.stdin, worker.stdout))
    try:
        orders.write(json.dumps(order | {"most": min(MOST_BYTES, memory)}).encode() + b"\n")
        orders.flush()
        if not select.select([answers], [], [], seconds + GRACE)[0]:
            raise EOFError
        head = json.loads(answers.readline())
        contents = {name: answers.read(size) for name, size in head["channels"].items()}
        if head["channels"] != {name: len(content) for name, content in contents.items()}:
            raise EOFError
    except BaseException as error:
        _end(worker)
        if not isinstance(error, EOFError | OSError | ValueError):
            raise
        damaged = "cannot be read (its reader broke down); the file is damaged or hostile"
        raise InputError(f"{origin}: {damaged}") from error
    waiting.append(worker)
    if "problem" in head:
        raise InputError(head["problem"])
    channels = {name: np.frombuffer(content, dtype=np.float32) for name, content in contents.items()}
    return Signals(origin, channels, head["rate"], head["rpm"])


def _start() -> subprocess.Popen[bytes]:
    """A worker, which ends with us."""
    inherited = {name: value for name, value in os.environ.items() if name in INHERITED}
    worker = subprocess.Popen(  # noqa: S603 (our own interpreter, code and path)
        [sys.executable, "-I", "-c", START, *sys.path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True, env=inherited | ENVIRONMENT,
    )  # fmt: skip
    return worker


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Ends a worker and closes its pipes."""
    worker.kill()
    with suppress(OSError):  # it has not taken all of what was written
        worker.communicate()


@atexit.register
def _end_all() -> None:
    for worker in _waiting[os.getpid()]:
        _end(worker)


def work() -> None:
    """Answers orders until our parent is gone."""
    for line in sys.stdin.buffer:
        _answer(json.loads(line), sys.stdout.buffer)


def _answer(order: dict[str, Any], output: BinaryIO) -> None:
    """What is known of a file, then the samples of its channels; or why it is refused."""
    samples, answer = list[Samples](), dict[str, Any](channels={})
    _limit_process(order["memory"], order["seconds"])
    try:
        signals = read_channels(order["path"], order["origin"], order["most"])
        samples = list(signals.channels.values())
        sizes = {name: channel.nbytes for name, channel in signals.channels.items()}
        answer = {"rate": signals.rate, "rpm": signals.rpm, "channels": sizes}
    except InputError as error:
        answer["problem"] = str(error)
    signal.setitimer(signal.ITIMER_REAL, 0)
    output.write(json.dumps(answer).encode() + b"\n")
    for channel in samples:
        output.write(channel.data)
    output.flush()


def _limit_process(memory: int, seconds: float) -> None:
    """No more than so many bytes beyond what is in use, no longer than so, no file written, no core dumped."""
    import resource

    signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM ends the process
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))
    usage = Path("/proc/self/statm")
    if usage.exists():  # other systems than Linux do not limit address space
        size = int(usage.read_text().split()[0]) * resource.getpagesize() + memory
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        size = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (size, hard))
