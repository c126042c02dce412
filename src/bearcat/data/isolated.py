"""Untrusted files, read in child processes with limits of memory, time and file size.

A process is started once and loads the libraries. For every file of a risky format it forks a child, which sets its
limits, reads the file, answers through a socket of its own and ends, so that a file can neither harm the next nor take
all memory; any failure becomes one sentence. Wav, npy and text need no child. A server has `Readers` with fixed limits;
`open_stream`, `read_signals` and `read_arrays` are for files of the user's own.

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
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bearcat.data.stream as streams
from bearcat.child import Child, limit_process
from bearcat.data.signals import BLOCK, Samples, Signals, TooLargeError, reading
from bearcat.data.stream import ChannelStreams, Stream
from bearcat.errors import InputError

Arrays = tuple[dict[str, Any], Mapping[str, Samples]]  # plain values for JSON, and arrays of numbers

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
    """A file of the user's own as bearcat.data.stream opens it, by a child where its format is risky."""
    opened = _own_channels(path, channel, origin or str(path), exact=True)
    return opened.stream(*opened.rates)


def open_channels(path: Path, origin: str | None = None, preferred: str | None = None) -> ChannelStreams:
    """Likewise all channels to be diagnosed of a file of the user's own, which is decoded once."""
    return _own_channels(path, preferred, origin or str(path))


def _own_channels(path: Path, channel: str | None, origin: str, exact: bool = False) -> ChannelStreams:
    until = time.monotonic() + DAY
    here = path.is_dir() or sys.platform == "win32"  # there is neither fork nor a limit of memory
    read = streams.read_channels if here else lambda *order: OWN.read_channels(*order, until=until)
    return ChannelStreams(origin, read(path, origin, channel, exact))


def read_signals(path: Path, origin: str | None = None) -> Signals:
    """All channels of a file of the user's own, by a child where its format is risky."""
    origin = origin or str(path)
    if not is_risky(path):
        return streams.read_signals(path, origin)
    metadata, channels = read_arrays(_signals, path, origin)
    return Signals(origin, channels, metadata["rates"], speeds=metadata["speeds"])


def read_arrays(function: Callable[..., Arrays], path: Path, origin: str, *arguments: str) -> Arrays:
    """What a module's `function(path, origin, *arguments)` makes of a file of the user's own, called in a child."""
    if sys.platform == "win32":
        return function(str(path), origin, *arguments)
    called = [function.__module__, function.__qualname__, *arguments]
    limits = FileLimits.of_own(path)
    with closing(_Child(path, {"call": called}, origin, time.monotonic() + DAY, limits)) as child:
        arrays = {}
        for name, kind, shape in child.head["arrays"]:
            dtype = np.dtype(kind)
            if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize > limits.memory:
                raise _broken(origin)
            arrays[name] = np.empty(shape, dtype)
        for array in arrays.values():
            left = array.reshape(-1).view(np.uint8)
            while left.size:
                part = np.frombuffer(child.reply(), dtype=np.uint8, offset=4)[: left.size]
                left[: part.size] = part
                left = left[part.size :]
        return child.head["metadata"], arrays


def _signals(path: str, origin: str) -> Arrays:
    found = streams.read_signals(Path(path), origin)
    return {"rates": dict(found.rates), "speeds": dict(found.speeds)}, found.channels


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
            return cls(min(memory, _machine_memory() // 2), samples, min(seconds, CPU_SECONDS))
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
        with closing(ChannelStreams(origin, self.read_channels(path, origin, channel, True, until=until))) as opened:
            yield opened.stream(*opened.rates)

    def read_channels(
        self, path: Path, origin: str, channel: str | None, exact: bool = False, *, until: float
    ) -> Generator[Any, None, None]:
        """What bearcat.data.stream.read_channels yields, by a child where the format is risky."""
        if not is_risky(path):
            yield from streams.read_channels(path, origin, channel, exact)
            return
        if sys.platform == "win32":
            raise InputError(f"{origin}: cannot be read safely on Windows; convert it to wav, or use WSL")
        if self._turns is not None and not self._turns.acquire(timeout=max(until - time.monotonic(), 0.001)):
            raise TimeoutError("all readers of files are busy")
        order, limits = {"channel": channel, "exact": exact}, self.limits or FileLimits.of_own(path)
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
        if "call" not in order:
            blocks = streams.read_channels(Path(path), origin, order["channel"], order["exact"])
            rates, sizes, speeds = next(blocks)
            yield HEAD + json.dumps({"rates": rates, "sizes": sizes, "speeds": speeds}).encode()
            numbers = {name: np.uint32(number).tobytes() for number, name in enumerate(rates)}
            yield from (DATA + numbers[name] + block.tobytes() for name, block in blocks)
        else:
            module, function, *arguments = order["call"]
            with reading(origin, "a file"):
                metadata, arrays = getattr(importlib.import_module(module), function)(path, origin, *arguments)
            kinds = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
            yield HEAD + json.dumps({"metadata": metadata, "arrays": kinds}).encode()
            for array in arrays.values():
                content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                for start in range(0, content.size, 4 * BLOCK):
                    yield DATA + content[start : start + 4 * BLOCK].tobytes()
        yield DONE
    except InputError as error:
        problem = {"sentence": str(error), "field": error.field, "large": isinstance(error, TooLargeError)}
        yield FAIL + json.dumps(problem).encode()


def _machine_memory() -> int:
    """Bytes; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**33
