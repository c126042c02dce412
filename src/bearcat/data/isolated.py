"""Untrusted files, read in a child process with limits of memory, time and file size.

A reader is started once. For every file of a risky format it forks a process, which sets its limits, reads the file and
ends, so that a file can neither harm the next nor take all memory; any failure becomes one sentence. Wav, npy and text
need no fork. A server has `Readers` with fixed limits; `open_stream`, `read_signals` and `read_arrays` are for files of
the user's own, of which a reader gets those of risky formats.

>>> with Readers(count=2, most=2**29, plain=2) as readers:
...     with readers.open_stream(Path("monday.mat"), None, "monday.mat", until=time.monotonic() + 30) as stream:
...         loudest = max(abs(block).max() for block in stream.blocks)
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import math
import os
import queue
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import bearcat.data.stream as streams
from bearcat.child import Child, limit_process
from bearcat.data.recording import Floats
from bearcat.data.signals import BLOCK, Rates, Samples, Signals, Speeds, TooLargeError, reading
from bearcat.data.stream import ChannelStreams, Stream
from bearcat.errors import InputError

Arrays = tuple[dict[str, Any], Mapping[str, Samples]]  # plain values for JSON, and arrays of numbers

# Formats whose parsers can be broken, and the libraries a reader loads for them; pyarrow uses pandas where it is.
RISKY = {
    ".npz": (), ".mat": ("scipy.io", "h5py"), ".parquet": ("pyarrow.parquet", "pandas"), ".h5": ("h5py",),
    ".hdf5": ("h5py",), ".flac": ("soundfile",), ".tdms": ("nptdms",), ".uff": ("pyuff",), ".unv": ("pyuff",),
    ".mf4": ("asammdf",), ".mdf": ("asammdf",),
}  # fmt: skip
MARGIN = 2**26  # bytes that reading may take beyond twice the samples
GRACE = 5.0  # seconds after its time in which a reader must have ended a process
DAY = 86_400.0  # seconds; the time for a file of the user's own, whose blocks may be used slowly
# For a file of the user's own: memory and samples in bytes and by the byte of the file, seconds of computing and by the
# mebibyte. Honest files need a tenth of it; packed zeros end here.
OWN_MEMORY, OWN_SAMPLES, OWN_SECONDS = (2**30, 8), (2**30, 1000), (60.0, 1.0)
CPU_SECONDS = 600.0  # of computing for one file, whoever asks
# What a message begins with: four bytes, so that the samples after them are aligned.
HEAD, DATA, DONE, FAIL, GONE, STOP = b"head", b"data", b"done", b"fail", b"gone", b"stop"


def is_risky(path: Path) -> bool:
    """Whether the file's format is one whose parser can be broken."""
    return path.suffix.lower() in RISKY


def open_stream(path: Path, channel: str | None = None, origin: str | None = None) -> Stream:
    """A file of the user's own as bearcat.data.stream opens it, by a reader where its format is risky."""
    origin = origin or str(path)
    if not is_risky(path) or path.is_dir() or sys.platform == "win32":
        return streams.open_stream(path, channel, origin)

    def read() -> Iterator[Any]:
        with _own_readers(os.getpid()).open_stream(path, channel, origin, time.monotonic() + DAY) as stream:
            yield stream
            yield from stream.blocks

    blocks = read()
    opened: Stream = next(blocks)
    return replace(opened, blocks=blocks)


def open_channels(path: Path, origin: str | None = None, preferred: str | None = None) -> ChannelStreams:
    """Likewise all channels to be diagnosed of a file of the user's own, which is decoded once."""
    origin = origin or str(path)
    if not is_risky(path) or path.is_dir() or sys.platform == "win32":
        return streams.open_channels(path, origin, preferred)

    def read() -> Generator[Any, None, None]:
        readers = _own_readers(os.getpid())
        with readers.channel_blocks(path, preferred, origin, time.monotonic() + DAY) as (*head, blocks):
            yield head
            yield from blocks

    blocks = read()
    rates, sizes, speeds = next(blocks)
    return ChannelStreams(origin, rates, sizes, speeds, blocks)


def read_signals(path: Path, origin: str | None = None) -> Signals:
    """All channels of a file of the user's own, by a reader where its format is risky."""
    origin = origin or str(path)
    if not is_risky(path):
        return streams.read_signals(path, origin)
    metadata, channels = read_arrays(_signals, path, origin)
    return Signals(origin, channels, metadata["rates"], speeds=metadata["speeds"])


def read_arrays(function: Callable[..., Arrays], path: Path, origin: str, *arguments: str) -> Arrays:
    """What a module's `function(path, origin, *arguments)` makes of a file of the user's own, called in a reader."""
    if sys.platform == "win32":  # neither fork nor limits of memory
        return function(str(path), origin, *arguments)
    readers = _own_readers(os.getpid())
    return readers.read_arrays(function, path, origin, *arguments, until=time.monotonic() + DAY)


@cache
def _own_readers(_: int) -> Readers:
    """For files of the user's own; a process forked from this one needs its own."""
    readers = Readers(None)
    atexit.register(readers.end)
    return readers


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


class Readers(AbstractContextManager["Readers"]):
    """Processes that read files: `count` for risky formats (None: as many as are used at once), `plain` for others.

    `plain` 0: those are read in this process. `most`: bytes of samples of a file (None: by its size).
    `folder` is removed by the readers should this process be killed.
    """

    def __init__(self, count: int | None, most: int | None = None, plain: int = 0, folder: Path | None = None) -> None:
        self.plain, self.grows, self.folder = plain, count is None, folder
        self.limits = None if most is None else FileLimits(2 * most + MARGIN, most)
        self._idle: dict[bool, queue.LifoQueue[_Reader]] = {True: queue.LifoQueue(), False: queue.LifoQueue()}
        for risky, number in ((True, count or 0), (False, plain)):
            for _ in range(number):
                self._idle[risky].put(reader := _Reader(self.limits, risky, self.folder))
            if number and sys.platform != "win32":
                reader.start()  # the one used first: loading the libraries takes a second

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        for idle in self._idle.values():
            while not idle.empty():
                idle.get_nowait().end()

    @contextmanager
    def open_stream(self, path: Path, channel: str | None, origin: str, until: float) -> Iterator[Stream]:
        """The file's channel as bearcat.data.stream opens it; TimeoutError where that lasts beyond `until`."""
        if not (self.plain or is_risky(path)):
            yield streams.open_stream(path, channel, origin)
            return
        with self._reader(is_risky(path), until) as reader:
            head = reader.open(path, {"channel": channel}, origin, until)
            reader.check_size(head["size"])
            yield Stream(origin, blocks=reader.blocks(), **head)

    @contextmanager
    def open_channels(self, path: Path, preferred: str | None, origin: str, until: float) -> Iterator[ChannelStreams]:
        """All channels to be diagnosed, as bearcat.data.stream opens them; TimeoutError beyond `until`."""
        if not (self.plain or is_risky(path)):
            with closing(streams.open_channels(path, origin, preferred)) as opened:
                yield opened
            return
        with (
            self.channel_blocks(path, preferred, origin, until) as head,
            closing(ChannelStreams(origin, *head)) as opened,
        ):
            yield opened

    @contextmanager
    def channel_blocks(
        self, path: Path, preferred: str | None, origin: str, until: float
    ) -> Iterator[tuple[Rates, dict[str, int], Speeds, Generator[tuple[str, Floats], None, None]]]:
        """Rates, sizes, stated speeds and blocks of the channels, by a reader."""
        with self._reader(is_risky(path), until) as reader:
            head = reader.open(path, {"channels": True, "preferred": preferred}, origin, until)
            reader.check_size(sum(head["sizes"].values()))
            names = list(head["rates"])

            def blocks() -> Generator[tuple[str, Floats], None, None]:
                for content in reader.blocks():
                    number = int(content[:1].view(np.uint32)[0]) if content.size else len(names)
                    if number >= len(names):
                        raise _broken(origin)
                    yield names[number], content[1:]

            yield head["rates"], head["sizes"], head["speeds"], blocks()

    def read_arrays(
        self, function: Callable[..., Arrays], path: Path, origin: str, *arguments: str, until: float
    ) -> Arrays:
        """What `function(path, origin, *arguments)` returns in a reader."""
        with self._reader(True, until) as reader:
            called = [function.__module__, function.__qualname__, *arguments]
            head = reader.open(path, {"call": called}, origin, until)
            arrays = {}
            for name, kind, shape in head["arrays"]:
                dtype = np.dtype(kind)
                if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize > reader.limits.memory:
                    raise _broken(origin)
                arrays[name] = np.empty(shape, dtype)
            for array in arrays.values():
                left = array.reshape(-1).view(np.uint8)
                while left.size:
                    part = np.frombuffer(reader.reply(), dtype=np.uint8, offset=4)[: left.size]
                    left[: part.size] = part
                    left = left[part.size :]
            return head["metadata"], arrays

    @contextmanager
    def _reader(self, risky: bool, until: float) -> Iterator[_Reader]:
        idle = self._idle[risky]
        try:
            reader = idle.get(block=not self.grows, timeout=max(until - time.monotonic(), 0.001))
        except queue.Empty:
            if not self.grows:
                raise TimeoutError("all readers of files are busy") from None
            reader = _Reader(self.limits, risky, self.folder)
        try:
            yield reader
        finally:
            reader.leave()
            idle.put(reader)


class _Reader:
    """A process that runs `work`, and the connection to it; started when it is needed, and again when it has died."""

    def __init__(self, limits: FileLimits | None, forks: bool, folder: Path | None) -> None:
        self.fixed, self.forks, self.folder = limits, forks, folder
        self.limits = limits or FileLimits(0, 0)  # of the file being read
        self.child: Child | None = None
        self.origin, self.until = "", 0.0  # of the file being read
        self.reading = self.ending = False  # a file; and its last message has come, but not yet that it is gone

    def start(self) -> None:
        if sys.platform == "win32":  # neither fork nor limits of memory
            raise InputError(f"{self.origin}: cannot be read safely on Windows; convert it to wav, or use WSL")
        self.end()
        memory = 0 if self.forks else self.limits.memory  # a process that is forked has that of its file
        self.child = Child(__name__, {"memory": memory, "folder": str(self.folder or "")})

    def open(self, path: Path, order: dict[str, Any], origin: str, until: float) -> Any:
        """The head of what is read: rate and size of a file's channel, or kinds and shapes of arrays."""
        self.origin, self.until, self.limits = origin, until, self.fixed or FileLimits.of_own(path)
        self._finish()
        # A stream that nobody finished may be collected as garbage, and its connection with it, before it puts us back.
        if self.child is None or self.child.stream.closed or self.child.process.poll() is not None:
            self.start()
        self.reading, left = True, until - time.monotonic()
        with suppress(OSError, EOFError):  # `reply` will say what happened
            order |= {"path": str(path.absolute()), "origin": origin, "seconds": max(left, 0.001)}
            order |= {"memory": self.limits.memory, "computing": self.limits.seconds}
            stream = self._stream(min(max(left + GRACE, 1), DAY))  # this covers a process that ends inside a message
            _send(stream, json.dumps(order).encode(), True)
        return json.loads(self.reply()[4:])

    def blocks(self) -> Iterator[Floats]:
        size = 0
        while (reply := self.reply()) != DONE:
            block = np.frombuffer(reply, dtype=np.float32, offset=4)
            size += block.nbytes
            self.check_size(size)
            yield block

    def check_size(self, size: int) -> None:
        if size > (most := self.limits.samples):
            raise TooLargeError(f"{self.origin}: unpacks to more than {most >> 20} MiB; cut it into shorter recordings")

    def reply(self) -> bytes:
        """The next one; InputError where the file is refused or its process died of it."""
        try:
            reply = _receive(self._stream())
        except (EOFError, OSError):
            self.end()
            reply = GONE
        self.ending = reply.startswith((DONE, FAIL))
        if reply.startswith(FAIL):
            problem = json.loads(reply[4:])
            raise (TooLargeError if problem["large"] else InputError)(problem["sentence"], problem["field"])
        if reply == GONE:
            self.reading = False
            if time.monotonic() >= self.until:  # the process has ended itself
                raise TimeoutError(f"reading {self.origin} took too long")
            raise _broken(self.origin)
        return reply

    def leave(self) -> None:
        """Stops reading; whoever opens the next file waits until this one's process has ended."""
        if self.reading and not self.ending:
            with suppress(OSError, EOFError, ValueError):  # the last of a connection that is closed already
                _send(self._stream(), STOP, True)
            self._finish()

    def _finish(self) -> None:
        if self.reading:
            try:
                stream = self._stream(GRACE)
                while _receive(stream) != GONE:
                    pass
                self.reading = False
            except (EOFError, OSError, ValueError):
                self.end()

    def _stream(self, seconds: float | None = None) -> io.BufferedRWPair:
        """The connection, on which nothing lasts longer than these seconds, or than those of before."""
        if self.child is None:
            raise EOFError("it has ended")
        if seconds is not None:
            self.child.socket.settimeout(seconds)
        return self.child.stream

    def end(self) -> None:
        self.reading = False
        if self.child is not None:
            self.child.end()
            self.child = None


def _broken(origin: str) -> InputError:
    return InputError(f"{origin}: cannot be read (its reader broke down); the file is damaged or hostile")


def _send(stream: io.BufferedRWPair, message: bytes, now: bool = False) -> None:
    """A message and its length; short ones wait for the next, as each that is sent wakes its receiver."""
    stream.write(len(message).to_bytes(4, "little") + message)
    if now or len(message) > BLOCK:
        stream.flush()


def _receive(stream: io.BufferedRWPair) -> bytes:
    head = stream.read(4)
    size = int.from_bytes(head, "little")
    message = stream.read(min(size, 8 * BLOCK))
    if len(head) < 4 or len(message) < size:
        raise EOFError("the other side is gone")
    return message


def work(descriptor: int, memory: int, folder: str) -> None:
    """What a reader does until its parent is gone: it reads files within its memory or, with 0, forks for each."""
    connection = socket.socket(fileno=descriptor)
    stream = connection.makefile("rwb")
    if not memory:
        gc.disable()  # a process ends with its file; searching for cycles would copy the memory that it shares
    else:
        limit_process(memory)
    with suppress(EOFError, OSError):
        while True:
            message = _receive(stream)
            if message == STOP:  # for a file that has just ended
                continue
            order = json.loads(message)
            if not memory:
                _fork(connection, stream, order)
            else:
                _read(connection, stream, order)
            _send(stream, GONE, True)
    if folder:  # the parent was killed, for one that ends as it should kills us
        shutil.rmtree(folder, ignore_errors=True)


def _fork(connection: socket.socket, stream: io.BufferedRWPair, order: dict[str, Any]) -> None:
    for library in RISKY.get(Path(order["path"]).suffix.lower(), ()):  # once, and not by each process
        with suppress(ImportError):
            importlib.import_module(library)
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            limit_process(order["memory"])
            _read(connection, stream, order)
        os._exit(0)
    os.waitpid(child, 0)


def _read(connection: socket.socket, stream: io.BufferedRWPair, order: dict[str, Any]) -> None:
    """Sends what is read until the parent says STOP or is gone."""
    signal.setitimer(signal.ITIMER_REAL, order["seconds"])  # SIGALRM ends the process
    signal.setitimer(signal.ITIMER_PROF, order["computing"])
    for reply in _replies(order):
        _send(stream, reply)
        if select.select([connection], [], [], 0)[0]:
            break
    stream.flush()
    signal.setitimer(signal.ITIMER_REAL, 0)


def _replies(order: dict[str, Any]) -> Iterator[bytes]:
    """What was asked for, and an end, with the sentence where the file is refused."""
    path, origin = order["path"], order["origin"]
    try:
        if "channels" in order:
            blocks = streams.read_channels(Path(path), origin, order["preferred"])
            rates, sizes, speeds = next(blocks)
            yield HEAD + json.dumps({"rates": rates, "sizes": sizes, "speeds": speeds}).encode()
            numbers = {name: np.uint32(number).tobytes() for number, name in enumerate(rates)}
            yield from (DATA + numbers[name] + block.tobytes() for name, block in blocks)
        elif "call" not in order:
            stream = streams.open_stream(Path(path), order["channel"], origin)
            head = {name: getattr(stream, name) for name in ("rate", "size", "channel", "rpm")}
            yield HEAD + json.dumps(head).encode()
            yield from (DATA + block.tobytes() for block in stream.blocks)
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
