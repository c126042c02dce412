"""Untrusted files, read in a child process with limits of memory, time and file size.

The parsers of compressed formats can be made to crash, or to unpack a few kilobytes to many gigabytes. Here each file
is read by a process that may crash: any failure becomes one sentence about the file. A reader is started
once; for every file it forks a process that sets its limits, reads the file and ends, so that no file can harm the
next. Messages are JSON and raw samples, nothing that could be executed. Formats that hold their samples as they are
(wav, npy, text) are read in this process, where they cannot do harm and cost less.

>>> with Readers(count=2, most=2**29) as readers:
...     with readers.open_stream(Path("monday.mat"), None, "monday.mat", until=time.monotonic() + 30) as stream:
...         loudest = max(abs(block).max() for block in stream.blocks)
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.formats import BLOCK, TooLargeError
from bearcat.data.recording import Floats
from bearcat.data.stream import Stream, open_stream
from bearcat.errors import InputError

# What is not read in this process, and the libraries a reader loads for it; pyarrow uses pandas where it is installed.
RISKY = {".npz": (), ".mat": ("scipy.io", "h5py"), ".parquet": ("pyarrow.parquet", "pandas")}
MARGIN = 2**26  # bytes that reading may take beyond twice the samples
GRACE = 5.0  # seconds after its time in which a reader must have ended a process
START = "import sys; sys.path[:] = sys.argv[3:]; from bearcat.data.isolated import work; work(*map(int, sys.argv[1:3]))"
# One thread and one pool of memory: each further one reserves address space, which is what is limited.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system",
}  # fmt: skip
# What a message begins with: four bytes, so that the samples after them are aligned.
HEAD, DATA, DONE, FAIL, GONE, NEXT, STOP = b"head", b"data", b"done", b"fail", b"gone", b"next", b"stop"


class Readers:
    """A few processes that read files, each file with at most `most` bytes of samples."""

    def __init__(self, count: int, most: int) -> None:
        self.most = most
        self._idle: queue.LifoQueue[_Reader] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(reader := _Reader(2 * most + MARGIN))
        if sys.platform != "win32":
            reader.start()  # the one used first: loading the libraries takes a second

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        while not self._idle.empty():
            self._idle.get_nowait().end()

    @contextmanager
    def open_stream(self, path: Path, channel: str | None, origin: str, until: float) -> Iterator[Stream]:
        """The file's channel as bearcat.data.stream opens it; TimeoutError where that lasts beyond `until`."""
        if path.suffix.lower() not in RISKY:
            yield open_stream(path, channel, origin)
            return
        try:
            reader = self._idle.get(timeout=max(until - time.monotonic(), 0.001))
        except queue.Empty:
            raise TimeoutError("all readers of files are busy") from None
        try:
            head = reader.open(path, channel, origin, until)
            self._check_size(head["size"], origin)
            yield Stream(origin, head["rate"], self._blocks(reader, origin), head["size"])
        finally:
            reader.leave()
            self._idle.put(reader)

    def _blocks(self, reader: _Reader, origin: str) -> Iterator[Floats]:
        size = 0
        while (reply := reader.ask(NEXT)) != DONE:
            block = np.frombuffer(reply, dtype=np.float32, offset=4)
            size += block.nbytes
            self._check_size(size, origin)
            yield block

    def _check_size(self, size: int, origin: str) -> None:
        if size > self.most:
            raise TooLargeError(
                f"{origin}: unpacks to more than {self.most / 2**20:.0f} MiB; cut it into shorter recordings"
            )


class _Reader:
    """A process that runs `work`, and the connection to it; started when it is needed, and again when it has died."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.process: subprocess.Popen[bytes] | None = None
        self.origin, self.until, self.reading = "", 0.0, False  # of the file being read

    def start(self) -> None:
        if sys.platform == "win32":  # neither fork nor limits of memory
            raise InputError(f"{self.origin}: cannot be read safely on Windows; convert it to wav, or use WSL")
        self.end()
        self.connection, theirs = Pipe()
        words = [str(theirs.fileno()), str(self.memory), *sys.path]
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 (our own interpreter, code and path)
                [sys.executable, "-I", "-c", START, *words], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, env=os.environ | ENVIRONMENT,
            )  # fmt: skip

    def open(self, path: Path, channel: str | None, origin: str, until: float) -> Any:
        """Rate and size of the file's channel."""
        self.origin, self.until = origin, until
        if self.process is None or self.process.poll() is not None:
            self.start()
        self.reading = True
        seconds = max(until - time.monotonic(), 0.001)
        order = {"path": str(path), "channel": channel, "origin": origin, "seconds": seconds}
        return json.loads(self.ask(json.dumps(order).encode())[4:])

    def ask(self, message: bytes) -> bytes:
        """The reply to a message; InputError where the file is refused or its process died of it."""
        try:
            self.connection.send_bytes(message)
            reply = self._receive(self.until - time.monotonic() + GRACE)
        except (EOFError, OSError):
            self.end()
            reply = GONE
        if reply.startswith(FAIL):
            problem = json.loads(reply[4:])
            raise (TooLargeError if problem["large"] else InputError)(problem["sentence"], problem["field"])
        if reply == GONE:
            self.reading = False
            if time.monotonic() >= self.until:  # the process has ended itself
                raise TimeoutError(f"reading {self.origin} took too long")
            raise InputError(f"{self.origin}: cannot be read (its reader broke down); the file is damaged or hostile")
        return reply

    def leave(self) -> None:
        """Waits until the file's process has ended."""
        if self.reading:
            try:
                self.connection.send_bytes(STOP)
                while self._receive(GRACE) != GONE:
                    pass
                self.reading = False
            except (EOFError, OSError):
                self.end()

    def end(self) -> None:
        self.reading = False
        if self.process is not None:
            self._kill()
            self.process.wait()
            self.connection.close()
            self.process = None

    def _receive(self, seconds: float) -> bytes:
        if not self.connection.poll(max(seconds, 0)):
            raise EOFError
        watchdog = threading.Timer(max(seconds, 0) + GRACE, self._kill)  # for a process that ends inside a message
        watchdog.start()
        try:
            return self.connection.recv_bytes(4 * BLOCK + 4)
        finally:
            watchdog.cancel()

    def _kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # with the process of a file


def work(descriptor: int, memory: int) -> None:
    """What a reader does: it forks a process for every file until its parent is gone."""
    gc.disable()  # a process ends with its file; searching for cycles would copy the memory that it shares
    connection = Connection(descriptor)
    while True:
        message = connection.recv_bytes()  # EOFError ends the reader when its parent is gone
        if message in (NEXT, STOP):  # for a process that has just ended
            continue
        order = json.loads(message)
        for library in RISKY[Path(order["path"]).suffix.lower()]:  # once, and not by each process
            with suppress(ImportError):
                importlib.import_module(library)
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                _read(connection, order, memory)
            os._exit(0)
        os.waitpid(child, 0)
        connection.send_bytes(GONE)


def _read(connection: Connection[Any, Any], order: dict[str, Any], memory: int) -> None:
    _limit(memory)
    signal.setitimer(signal.ITIMER_REAL, order["seconds"])  # SIGALRM ends the process
    for reply in _replies(order):
        connection.send_bytes(reply)
        if reply.startswith((DONE, FAIL)) or connection.recv_bytes() == STOP:
            return


def _replies(order: dict[str, Any]) -> Iterator[bytes]:
    try:
        stream = open_stream(Path(order["path"]), order["channel"], order["origin"])
        yield HEAD + json.dumps({"rate": stream.rate, "size": stream.size}).encode()
        for block in stream.blocks:
            yield DATA + block.tobytes()
        yield DONE
    except InputError as error:
        problem = {"sentence": str(error), "field": error.field, "large": isinstance(error, TooLargeError)}
        yield FAIL + json.dumps(problem).encode()


def _limit(memory: int) -> None:
    """No more than so many bytes beyond what is in use, no file written, no core dumped."""
    import resource

    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))
    usage = Path("/proc/self/statm")
    if usage.exists():  # other systems than Linux do not limit address space
        size = int(usage.read_text().split()[0]) * resource.getpagesize() + memory
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        size = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
