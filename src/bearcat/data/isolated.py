"""Untrusted files, read in child processes with limits of memory, time and file size.

A process is started once and loads the libraries. For every file of a risky format it forks a child, which sets its
limits, reads the file, answers through a socket of its own and ends, so that a file can neither harm the next nor take
all memory; any failure becomes one sentence. Wav, npy and text need no child. A server has `Readers` with fixed limits;
`open_stream`, `open_channels` and `read_signals` are for files of the user's own.

>>> readers = Readers(count=2, most=2**29)
>>> with readers.open_stream(Path("monday.mat"), None, "monday.mat", until=time.monotonic() + 30) as stream:
...     loudest = max(abs(block).max() for block in stream.blocks)
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bearcat.data.stream as streams
from bearcat.child import Child, limit_process
from bearcat.data.signals import BLOCK, Samples, Signals, TooLargeError
from bearcat.data.stream import ALL, ONE, TO_DIAGNOSE, ChannelStreams, Stream
from bearcat.errors import InputError

# Formats whose parsers can be broken, and the libraries that are loaded for them; pyarrow uses pandas where it is.
RISKY = {
    ".npz": (), ".mat": ("scipy.io", "h5py"), ".parquet": ("pyarrow.parquet", "pandas"), ".h5": ("h5py",),
    ".hdf5": ("h5py",), ".flac": ("soundfile",), ".tdms": ("nptdms",),
}  # fmt: skip
MARGIN = 2**26  # bytes that reading may take beyond twice the samples
GRACE = 5.0  # seconds after its time in which a child must have ended
DAY = 86_400.0  # seconds; the time for a file of the user's own, whose blocks may be used slowly
# For a file of the user's own: memory and samples in bytes and by the byte of the file, seconds of computing and by the
# mebibyte. Honest files need a tenth of it; packed zeros end here.
OWN_MEMORY, OWN_SAMPLES, OWN_SECONDS = (2**30, 8), (2**30, 1000), (60.0, 1.0)
CPU_SECONDS = 600.0  # of computing for one file, whoever asks
# What a message begins with: four bytes, so that the samples after them are aligned.
HEAD, DATA, DONE, FAIL = b"head", b"data", b"done", b"fail"

_forking: dict[int, Child] = {}  # the process that forks, by the process that started it
_starting = threading.Lock()


def is_risky(path: Path) -> bool:
    """Whether the file's format is one whose parser can be broken."""
    return path.suffix.lower() in RISKY


def open_stream(path: Path, channel: str | None = None, origin: str | None = None) -> Stream:
    """A channel of a file of the user's own by its name, or the only one, by a child where its format is risky."""
    opened = ChannelStreams(origin or str(path), _own_channels(path, origin, channel, ONE))
    return opened.stream(*opened.rates)


def open_channels(path: Path, origin: str | None = None, preferred: str | None = None) -> ChannelStreams:
    """Likewise all channels to be diagnosed of a file of the user's own, which is decoded once."""
    return ChannelStreams(origin or str(path), _own_channels(path, origin, preferred, TO_DIAGNOSE))


def read_signals(path: Path, origin: str | None = None) -> Signals:
    """Likewise all channels of a file of the user's own."""
    blocks = _own_channels(path, origin, None, ALL)
    rates, _, speeds = next(blocks)
    parts: dict[str, list[Samples]] = {name: [] for name in rates}
    for name, block in blocks:
        parts[name].append(block)
    channels = {name: np.concatenate(several) for name, several in parts.items()}
    return Signals(origin or str(path), channels, rates, speeds=speeds)


def _own_channels(path: Path, origin: str | None, channel: str | None, which: str) -> Generator[Any, None, None]:
    if sys.platform == "win32":  # where there is neither fork nor a limit of memory
        return streams.read_channels(path, origin or str(path), channel, which)
    return OWN.read_channels(path, origin or str(path), channel, which, until=time.monotonic() + DAY)


@dataclass(frozen=True)
class FileLimits:
    """Of one file: bytes of memory, bytes of samples, seconds of computing."""

    memory: int
    samples: int
    seconds: float = CPU_SECONDS

    @classmethod
    def of_own(cls, path: Path) -> FileLimits:
        """Of a file of the user's own, by its size."""
        with suppress(OSError):
            size = path.stat().st_size
            memory, samples = (least + each * size for least, each in (OWN_MEMORY, OWN_SAMPLES))
            seconds = OWN_SECONDS[0] + OWN_SECONDS[1] * size / 2**20
            machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return cls(min(memory, machine // 2), samples, min(seconds, CPU_SECONDS))
        return cls(OWN_MEMORY[0], OWN_SAMPLES[0])  # reading says that it is not there


class Readers:
    """Reads files, `count` of risky formats at a time (None: as many as are asked for).

    `most`: bytes of samples of a file (None: by its size).
    """

    def __init__(self, count: int | None, most: int | None = None) -> None:
        self.limits = None if most is None else FileLimits(2 * most + MARGIN, most)
        self._turns = None if count is None else threading.BoundedSemaphore(count)

    @contextmanager
    def open_stream(self, path: Path, channel: str | None, origin: str, until: float) -> Iterator[Stream]:
        """The file's channel as bearcat.data.stream opens it; TimeoutError where that lasts beyond `until`."""
        with closing(ChannelStreams(origin, self.read_channels(path, origin, channel, ONE, until=until))) as opened:
            yield opened.stream(*opened.rates)

    def read_channels(
        self, path: Path, origin: str, channel: str | None, which: str = TO_DIAGNOSE, *, until: float
    ) -> Generator[Any, None, None]:
        """What bearcat.data.stream.read_channels yields, by a child where the format is risky."""
        if not is_risky(path):
            yield from streams.read_channels(path, origin, channel, which)
            return
        if sys.platform == "win32":
            raise InputError(f"{origin}: cannot be read safely on Windows; convert it to wav, or use WSL")
        if self._turns is not None and not self._turns.acquire(timeout=max(until - time.monotonic(), 0.001)):
            raise TimeoutError("all readers of files are busy")
        order, limits = {"channel": channel, "which": which}, self.limits or FileLimits.of_own(path)
        try:
            with closing(_Child(path, order, origin, until, limits)) as child:
                yield from child.channels()
        finally:
            if self._turns is not None:
                self._turns.release()


OWN = Readers(None)


class _Child:
    """A child process that reads one file, and the connection to it; closing that ends the child."""

    def __init__(self, path: Path, order: dict[str, Any], origin: str, until: float, limits: FileLimits) -> None:
        self.origin, self.until, self.limits = origin, until, limits
        left = until - time.monotonic()
        order |= {"path": str(path.absolute()), "origin": origin, "seconds": max(left, 0.001)}
        order |= {"memory": limits.memory, "computing": limits.seconds}
        ours, theirs = socket.socketpair()
        ours.settimeout(min(max(left + GRACE, 1), DAY))
        with ours:
            self.stream = ours.makefile("rwb")
        with theirs, suppress(OSError):  # `reply` will say what happened
            socket.send_fds(_forking_process().socket, [b"."], [theirs.fileno()])
            _send(self.stream, json.dumps(order).encode())
            self.stream.flush()
        try:
            self.head = json.loads(self.reply()[4:])
        except BaseException:
            self.close()
            raise

    def channels(self) -> Generator[Any, None, None]:
        """Rates, sizes and stated speeds by channel, then the blocks."""
        rates, sizes, speeds = (self.head[name] for name in ("rates", "sizes", "speeds"))
        self._check_size(sum(sizes.values()))
        yield rates, sizes, speeds
        names, size = list(rates), 0
        while (reply := self.reply()) != DONE:
            content = np.frombuffer(reply, dtype=np.float32, offset=4)
            size += content.nbytes
            self._check_size(size)
            number = int(content[:1].view(np.uint32)[0]) if content.size else len(names)
            if number >= len(names):
                raise _broken(self.origin)
            yield names[number], content[1:]

    def reply(self) -> bytes:
        """The next one; InputError where the file is refused or the child died of it."""
        try:
            reply = _receive(self.stream)
        except (EOFError, OSError) as error:
            if time.monotonic() >= self.until:  # the child has ended itself
                raise TimeoutError(f"reading {self.origin} took too long") from error
            raise _broken(self.origin) from error
        if reply.startswith(FAIL):
            problem = json.loads(reply[4:])
            raise (TooLargeError if problem["large"] else InputError)(problem["sentence"], problem["field"])
        return reply

    def close(self) -> None:
        with suppress(OSError):  # what was not sent
            self.stream.close()

    def _check_size(self, size: int) -> None:
        if size > (most := self.limits.samples):
            raise TooLargeError(f"{self.origin}: unpacks to more than {most >> 20} MiB; cut it into shorter recordings")


def _forking_process() -> Child:
    """The process that forks a child for each file, started where there is none; a forked process needs its own."""
    with _starting:
        child = _forking.get(os.getpid())
        if child is None or child.process.poll() is not None:
            child = _forking[os.getpid()] = Child(__name__)
            atexit.register(child.end)
        return child


def _broken(origin: str) -> InputError:
    return InputError(f"{origin}: cannot be read (its reader broke down); the file is damaged or hostile")


def _send(stream: io.BufferedRWPair, message: bytes) -> None:
    """A message and its length; short ones wait for the next, as each that is sent wakes its receiver."""
    stream.write(len(message).to_bytes(4, "little") + message)
    if len(message) > BLOCK:
        stream.flush()


def _receive(stream: io.BufferedRWPair) -> bytes:
    head = stream.read(4)
    size = int.from_bytes(head, "little")
    message = stream.read(min(size, 8 * BLOCK))
    if len(head) < 4 or len(message) < size:
        raise EOFError("the other side is gone")
    return message


def work(descriptor: int) -> None:
    """Forks a child for each connection that it is handed, until its parent is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    gc.disable()  # a child ends with its file; searching for cycles would copy the memory that it shares
    parent = socket.socket(fileno=descriptor)
    while True:
        _, descriptors, _, _ = socket.recv_fds(parent, 1, 1)
        if not descriptors:
            return
        with (
            suppress(EOFError, OSError),
            socket.socket(fileno=descriptors[0]) as connection,
            connection.makefile("rwb") as stream,
        ):
            order = json.loads(_receive(stream))
            for library in RISKY.get(Path(order["path"]).suffix.lower(), ()):  # once, and not by each child
                with suppress(ImportError):
                    importlib.import_module(library)
            if os.fork() == 0:
                with suppress(BaseException):
                    limit_process(order["memory"])
                    _answer(stream, order)
                os._exit(0)


def _answer(stream: io.BufferedRWPair, order: dict[str, Any]) -> None:
    """Sends what is read; a parent that has closed the connection, or a limit, ends it."""
    signal.setitimer(signal.ITIMER_REAL, order["seconds"])  # SIGALRM ends the process
    signal.setitimer(signal.ITIMER_PROF, order["computing"])
    for reply in _replies(order):
        _send(stream, reply)
    stream.flush()


def _replies(order: dict[str, Any]) -> Iterator[bytes]:
    """What was asked for, and an end, with the sentence where the file is refused."""
    path, origin = order["path"], order["origin"]
    try:
        blocks = streams.read_channels(Path(path), origin, order["channel"], order["which"])
        rates, sizes, speeds = next(blocks)
        yield HEAD + json.dumps({"rates": rates, "sizes": sizes, "speeds": speeds}).encode()
        numbers = {name: np.uint32(number).tobytes() for number, name in enumerate(rates)}
        yield from (DATA + numbers[name] + block.tobytes() for name, block in blocks)
        yield DONE
    except InputError as error:
        problem = {"sentence": str(error), "field": error.field, "large": isinstance(error, TooLargeError)}
        yield FAIL + json.dumps(problem).encode()
