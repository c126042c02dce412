"""Untrusted files, read in child processes with limits of memory, time and file size.

A process is started once and loads the libraries. For each file of a risky format it forks a child that sets its
limits, reads the file, answers through a socket and ends, so that a file can neither harm the next nor take all
memory. Any failure is one sentence. Wav and text need no child.

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
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.formats import ALL, MOST_BYTES, read_channels
from bearcat.data.signals import Signals, TooLargeError
from bearcat.errors import InputError

# Formats whose parsers can be broken, and the libraries that are loaded for them.
RISKY = {
    ".npy": (), ".npz": (), ".mat": ("scipy.io", "h5py"), ".h5": ("h5py",), ".hdf5": ("h5py",),
    ".flac": ("soundfile",),
}  # fmt: skip
DAY = 86_400.0  # seconds; the time for a file of the user's own
GRACE = 5.0  # seconds after its time in which a child must have ended
LEAST_BYTES, UNPACKED = 2**30, 100  # of memory and of samples: for a file, and for each byte of it
CPU_SECONDS = 600.0  # of computing for one file

START = (
    "import sys; descriptor, *sys.path = sys.argv[1:]; from bearcat.data.isolated import work; work(int(descriptor))"
)
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


def read_signals(
    path: Path, origin: str | None = None, channel: str | None = None, which: str = ALL, seconds: float = DAY
) -> Signals:
    """Channels of a file: all, or those that `read_channels` (formats.py) gives for `channel` and `which`.

    A child reads risky formats, and ends after these seconds.
    """
    origin = origin or str(path)
    if is_risky(path) and sys.platform != "win32":
        return _by_child(path, origin, channel, which, seconds)
    return read_channels(path, origin, channel, which, MOST_BYTES)


def _limit(path: Path) -> int:
    """Bytes of memory and of samples for a file; packed zeros end here."""
    size = 0
    with suppress(OSError):  # reading says that it is not there
        size = path.stat().st_size
    return min(LEAST_BYTES + UNPACKED * size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def _by_child(path: Path, origin: str, channel: str | None, which: str, seconds: float) -> Signals:
    """What a child reads. InputError where it refuses the file or died of it."""
    order: dict[str, Any] = {"path": str(path.absolute()), "origin": origin, "channel": channel, "which": which}
    order |= {"memory": _limit(path), "most": min(MOST_BYTES, _limit(path)), "seconds": max(seconds, 0.001)}
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
        said = json.loads(answer())
        if "problem" in said:
            raise (TooLargeError if said["large"] else InputError)(said["problem"], said["field"])
        channels = {name: np.frombuffer(answer(), dtype=np.float32) for name in said["names"]}
        return Signals(origin, channels, said["rate"], said["rpm"])


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
        signals = read_channels(*(order[name] for name in ("path", "origin", "channel", "which", "most")))
        yield json.dumps({"rate": signals.rate, "rpm": signals.rpm, "names": list(signals.channels)}).encode()
        yield from (samples.tobytes() for samples in signals.channels.values())
    except InputError as error:
        large = isinstance(error, TooLargeError)
        yield json.dumps({"problem": str(error), "field": error.field, "large": large}).encode()
