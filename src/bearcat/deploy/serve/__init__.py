"""`bearcat serve`: a model behind HTTP, and a page to drop recordings on (docs/serve.md).

uvicorn gives a client any time for the head of a request, reads the rest of a refused body for ever, and accepts
connections until no file can be opened. Here a connection without a request is closed after a while, the one that has
waited longest goes when there are too many, and a refused body is read for two seconds, so that its sender sees why.

>>> serve(Path("out/model"), Address(port=8000), Limits())         # until SIGTERM or Ctrl-C; None: without a model
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bearcat.deploy.predictor import OnnxModel, Predictor, load_onnx
from bearcat.diagnosis.recording import AlarmRule
from bearcat.errors import InputError

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from bearcat.deploy.serve.answer import Served
    from bearcat.deploy.serve.app import Limits as Limits  # so that all one needs to serve comes from here
    from bearcat.deploy.serve.app import Pages, make_app
    from bearcat.deploy.serve.fair import Clients, LoopShare
except ImportError as error:
    raise InputError("serving needs an extra; pip install 'bearcat[serve]'") from error

GRACE = 5  # seconds beyond a request's own time, after which a shutdown no longer waits for it
BACKLOG = 128  # connections accepted at once, before any is counted
MOST = 1000  # connections; each takes a descriptor
OTHER_FILES = 64  # descriptors for everything but connections and uploads
HEAD_SECONDS = 10.0  # for the head of a request, also of the second on a connection
LINGER = 2.0  # seconds in which the rest of a refused body is still read
HEAD_BYTES = 2**14  # of the head of a request, with its address
PIECE, BLOCK = 2**11, 2**16  # bytes that are taken from a connection at once: to be parsed by lines, and others
SMALL_CHUNKS = 2**16  # bytes of a request, after which more than half must be its body and not what frames it


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any that is free

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


def serve(
    path: Path | None, address: Address, limits: Limits, tokens: Sequence[str] = (),
    alarms: Sequence[str] | None = None, say: Callable[[str], None] = print,
    warn: Callable[[Predictor], None] = lambda _: None, fleet: Pages | None = None,
) -> None:  # fmt: skip
    """Serves the model, pages of watched machines, or both, until SIGTERM or SIGINT; then finishes what was accepted.

    With neither, recordings are diagnosed by fault lines and the general model. `say` is called with the address once
    the server listens, `warn` with the model before that. Requests must carry one of the `tokens`, where there are any.
    """
    for token in tokens:
        if not token or not token.isascii() or not token.isprintable() or token != token.strip():
            raise InputError("--token: must be printable ASCII letters and signs, without blanks at its ends")
    clients = Clients(tokens)
    served = None
    if path is not None:
        model = open_served(path, limits.timeout)
        warn(model)
        served = Served(model, AlarmRule.of(model.classes, alarms))
    elif fleet is None:
        served = Served(None, AlarmRule.of((), alarms))
    app = make_app(served, limits, clients, address.loopback, fleet)
    protocol = bounded_protocol(most_connections(limits.concurrency), min(HEAD_SECONDS, limits.timeout), clients)
    config = uvicorn.Config(
        app, http=protocol, ws="none", loop="asyncio", lifespan="on", log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, timeout_graceful_shutdown=int(limits.timeout) + GRACE,
        backlog=BACKLOG, h11_max_incomplete_event_size=HEAD_BYTES,
    )  # fmt: skip
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(OncePerMinute())
    with listening(address) as listener:
        host, port = listener.getsockname()[:2]

        class Server(uvicorn.Server):
            """Says where it listens once a signal would stop it in order."""

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    say(f"http://{f'[{host}]' if ':' in host else host}:{port}")

        server = Server(config)

        def asked_to_stop(*_: object) -> None:
            """Before uvicorn has its own handlers, and after its shutdown, when it raises the signal again."""
            if not server.started:
                raise SystemExit(0)

        signals = (signal.SIGTERM, signal.SIGINT)
        handlers = [signal.signal(number, asked_to_stop) for number in signals]
        try:
            server.run(sockets=[listener])
        finally:
            for number, handler in zip(signals, handlers, strict=True):
                signal.signal(number, handler)


def open_served(path: Path, seconds: float) -> OnnxModel:
    """The model in onnxruntime, one core a call, for several calls run at once; a folder is exported first."""
    if path.suffix.lower() == ".onnx":
        return load_onnx(path, 1, seconds)
    from bearcat.deploy.model import export_onnx, load_model

    with tempfile.TemporaryDirectory(prefix="bearcat-") as folder:
        return load_onnx(export_onnx(load_model(path), Path(folder) / "model.onnx"), 1, seconds)


def listening(address: Address) -> socket.socket:
    """A socket that listens; one sentence where it cannot be had."""
    if not 0 <= address.port <= 65535:
        raise InputError(f"--port: must lie between 0 and 65535, not at {address.port}")
    try:
        family, *_, found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(found[:2], family=family, backlog=2048)
        # asyncio does this only for sockets it knows to be TCP; without it, answers wait 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        place = f"--host {address.host} --port {address.port}"
        raise InputError(f"{place}: cannot be listened on ({reason}); choose another") from error


def most_connections(uploads: int) -> int:
    """How many connections leave enough descriptors for so many uploads; the limit is raised where that is allowed."""
    try:
        import resource
    except ImportError:  # Windows, whose limit is higher
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = OTHER_FILES + 2 * uploads + 3 * BACKLOG
    wanted = MOST + others
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(soft - others, 16)


def bounded_protocol(most: int, seconds: float, clients: Clients) -> type[H11Protocol]:
    """uvicorn's protocol with at most so many connections, each with so many seconds for the head of a request."""
    waiting: dict[BoundedProtocol, str] = {}  # clients of connections without a request, the oldest first
    share = LoopShare()

    class BoundedProtocol(H11Protocol):
        timer: asyncio.TimerHandle | None = None
        address = ""
        size, payload = 0, 0  # bytes of this request, and of them those of its body

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.address = clients.of(self.client[0] if self.client else "", ())
            if not clients.by_token:
                share.charge(self.address, 0.0)  # others are read more slowly from now on
            self._wait(seconds)
            self._read_less()
            if len(self.connections) > most:
                ((client, _),) = Counter(waiting.values()).most_common(1)
                next(each for each in waiting if each.address == client).transport.abort()  # a new one may be honest

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            start, cycle, before = time.perf_counter(), self.cycle, len(self.cycle.body) if self.cycle else 0
            super().data_received(data)
            new = 0
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
                if self.cycle is cycle:
                    new = len(self.cycle.body) - before
                    self.size, self.payload = self.size + len(data), self.payload + new
                else:  # the bytes before it were of another request
                    new = self.size = self.payload = len(self.cycle.body)
            chunked = self._read_less(2 * new < len(data))
            pause = share.charge(clients.of(self.address, self.headers or ()), time.perf_counter() - start)
            framed = chunked and self.size > max(2 * self.payload, SMALL_CHUNKS)
            if framed and self.conn.our_state is h11.SEND_RESPONSE:
                self.send_400_response("The body comes in chunks of a few bytes; send larger ones.")
            elif pause > 0 and not self.transport.is_closing():
                self.transport.pause_reading()
                self.loop.call_later(pause, self._read_on)

        def _read_on(self) -> None:
            if not (self.flow.read_paused or self.transport.is_closing()):
                self.transport.resume_reading()

        def _read_less(self, framed: bool = True) -> bool:
            """What is parsed by lines comes in small pieces, so that others come between; whether those are chunks.

            Chunks are read as other bodies are unless the last bytes were `framed`, more of them than the body.
            """
            body = self.conn.their_state is h11.SEND_BODY
            chunked = body and (b"transfer-encoding", b"chunked") in self.headers
            large = body and not (chunked and framed)
            self.transport.max_size = BLOCK if large else PIECE  # type: ignore[attr-defined]
            return chunked

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete:  # else the next request has begun
                self._wait(seconds if self.conn.their_state is not h11.SEND_BODY else LINGER)

        def _wait(self, seconds: float) -> None:
            self._stop_waiting()
            waiting[self] = self.address
            self.size, self.payload = 0, 0
            self.timer = self.loop.call_later(seconds, self.transport.close)

        def _stop_waiting(self) -> None:
            waiting.pop(self, None)
            if self.timer is not None:
                self.timer.cancel()

    return BoundedProtocol


class OncePerMinute(logging.Filter):
    """Lets one line of a kind through each minute: a log that anyone can fill is as bad as none."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[tuple[str, str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.name, record.getMessage().partition("\n")[0][:60], str(record.exc_info and record.exc_info[0]))
        now = time.monotonic()
        if now - self.last.get(kind, -60.0) < 60:
            return False
        if len(self.last) > 1000:
            self.last.clear()
        self.last[kind] = now
        return True
