"""Files of signals by their suffix, and the child processes that read those of risky formats.

Channels without a name are called "1", "2", … A format whose parser can be broken is read with limits of memory, time
and file size: a process is started once and loads the libraries; for each file it forks a child that sets its limits,
reads the file, answers through a socket and ends, so that a file can neither harm the next nor take all memory. Any
failure is one sentence. Wav and text need no child.

>>> name, samples = read_signals(Path("monday.mat")).pick(None)
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bearcat.data.signals import (
    MOST_CHANNELS,
    Samples,
    Signals,
    TooLargeError,
    read_flac,
    read_mat,
    read_npy,
    read_npz,
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
    """Integers or floats of a RIFF file. scipy's reader takes a while to load; soundfile is an extra."""
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
    ".npy": read_npy,
    ".npz": read_npz,
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
                raise TooLargeError(too_large)
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
        raise TooLargeError(too_large)
    return replace(signals, channels=channels)


# Formats whose parsers can be broken, and the libraries that are loaded for them.
RISKY = {
    ".npy": (), ".npz": (), ".mat": ("scipy.io", "h5py"), ".h5": ("h5py",), ".hdf5": ("h5py",),
    ".flac": ("soundfile",),
}  # fmt: skip
DAY = 86_400.0  # seconds; the time for a file of the user's own
GRACE = 5.0  # seconds after its time in which a child must have ended
LEAST_BYTES, UNPACKED = 2**30, 100  # of memory and of samples: for a file, and for each byte of it
CPU_SECONDS = 600.0  # of computing for one file

START = "import sys; descriptor, *sys.path = sys.argv[1:]; from bearcat.data.formats import work; work(int(descriptor))"
# One thread and one pool of memory: each further one reserves address space, which is what is limited.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
# What a process gets of our environment: no token of a server, nor any other secret.
INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")

# The process that forks and the connection to it, by the process that started it: a forked one needs its own.
_forking: dict[int, tuple[subprocess.Popen[bytes], socket.socket]] = {}
_starting = threading.Lock()


def is_risky(path: Path) -> bool:
    """Whether the file's format is one whose parser can be broken."""
    return path.suffix.lower() in RISKY


def read_signals(path: Path, origin: str | None = None, seconds: float = DAY) -> Signals:
    """The channels of a file; a child reads risky formats, and ends after these seconds."""
    origin = origin or str(path)
    if is_risky(path) and sys.platform != "win32":
        return _by_child(path, origin, seconds)
    return read_channels(path, origin, MOST_BYTES)


def _limit(path: Path) -> int:
    """Bytes of memory and of samples for a file; packed zeros end here."""
    size = 0
    with suppress(OSError):  # reading says that it is not there
        size = path.stat().st_size
    return min(LEAST_BYTES + UNPACKED * size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def _by_child(path: Path, origin: str, seconds: float) -> Signals:
    """What a child reads. InputError where it refuses the file or died of it."""
    order = {
        "path": str(path.absolute()), "origin": origin, "memory": _limit(path), "most": min(MOST_BYTES, _limit(path)),
        "seconds": max(seconds, 0.001),
    }  # fmt: skip
    until = time.monotonic() + seconds
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as connection:  # closing it ends the child

        def answer() -> bytes:
            try:
                if not connection.poll(max(until - time.monotonic(), 0) + GRACE):
                    raise EOFError
                return connection.recv_bytes(MOST_BYTES)
            except (EOFError, OSError) as error:
                damaged = "cannot be read (its reader broke down); the file is damaged or hostile"
                raise InputError(f"{origin}: {damaged}") from error

        with theirs, suppress(OSError):  # receiving will say what happened
            socket.send_fds(_forking_process(), [b"."], [theirs.fileno()])
            connection.send_bytes(json.dumps(order).encode())
        head = json.loads(answer())
        if "problem" in head:
            raise (TooLargeError if head["large"] else InputError)(head["problem"])
        channels = {name: np.frombuffer(answer(), dtype=np.float32) for name in head["names"]}
        return Signals(origin, channels, head["rate"], head["rpm"])


def _forking_process() -> socket.socket:
    """The connection to the process that forks a child for each file, started where there is none."""
    with _starting:
        process, ours = _forking.get(os.getpid(), (None, None))
        if ours is None or process is None or process.poll() is not None:
            ours, theirs = socket.socketpair()
            inherited = {name: value for name, value in os.environ.items() if name in INHERITED}
            with theirs:
                process = subprocess.Popen(  # noqa: S603 (our own interpreter, code and path)
                    [sys.executable, "-I", "-c", START, str(theirs.fileno()), *sys.path],
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL, start_new_session=True, env=inherited | ENVIRONMENT,
                )  # fmt: skip
            _forking[os.getpid()] = process, ours
            atexit.register(_end, process, ours)
        return ours


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """Ends a process with what it has forked."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    connection.close()


# The process that forks, and its children.


def work(descriptor: int) -> None:
    """Forks a child for each connection that it is handed, until its parent is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    gc.disable()  # a child ends with its file; searching for cycles would copy the memory that it shares
    parent = socket.socket(fileno=descriptor)
    while True:
        _, descriptors, _, _ = socket.recv_fds(parent, 1, 1)
        if not descriptors:
            return
        with suppress(EOFError, OSError), Connection(descriptors[0]) as connection:
            order = json.loads(connection.recv_bytes())
            for module in RISKY.get(Path(order["path"]).suffix.lower(), ()):  # once, and not by each child
                with suppress(ImportError):
                    importlib.import_module(module)
            if os.fork() == 0:
                with suppress(BaseException):
                    _limit_process(order["memory"], order["seconds"])
                    for message in _answers(order):
                        connection.send_bytes(message)
                os._exit(0)


def _limit_process(memory: int, seconds: float) -> None:
    """No more than so many bytes beyond what is in use, no longer than so, no file written, no core dumped."""
    import resource

    signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM ends the process
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))
    usage = Path("/proc/self/statm")
    if usage.exists():  # other systems than Linux do not limit address space
        size = int(usage.read_text().split()[0]) * resource.getpagesize() + memory
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        size = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _answers(order: dict[str, Any]) -> Iterator[bytes]:
    """What is known of the file, then the samples of each channel; or why it is refused."""
    try:
        signals = read_channels(order["path"], order["origin"], order["most"])
        yield json.dumps({"rate": signals.rate, "rpm": signals.rpm, "names": list(signals.channels)}).encode()
        yield from (samples.tobytes() for samples in signals.channels.values())
    except InputError as error:
        yield json.dumps({"problem": str(error), "large": isinstance(error, TooLargeError)}).encode()
