"""Starting a server and stopping it: the model, the socket, the signals.

>>> serve(Path("out/model"), Address(port=8000), Limits())         # until SIGTERM or Ctrl-C
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bearcat.deploy.export import OnnxModel, export_onnx, load_onnx
from bearcat.deploy.metadata import Predictor
from bearcat.deploy.predict import alarm_classes
from bearcat.deploy.serve.limits import Address, Limits
from bearcat.errors import InputError

try:
    import uvicorn

    from bearcat.deploy.serve.answer import Served
    from bearcat.deploy.serve.app import make_app
    from bearcat.deploy.serve.connections import (
        BACKLOG,
        HEAD_SECONDS,
        OncePerMinute,
        bounded_protocol,
        most_connections,
    )
except ImportError as error:
    raise InputError("serving needs an extra; pip install 'bearcat[serve]'") from error

GRACE = 5  # seconds beyond a request's own time, after which a shutdown no longer waits for it


def serve(
    path: Path, address: Address, limits: Limits, token: str | None = None, alarms: Sequence[str] | None = None,
    say: Callable[[str], None] = print, warn: Callable[[Predictor], None] = lambda _: None,
) -> None:  # fmt: skip
    """Serves the model until SIGTERM or SIGINT; then finishes what was accepted, and returns.

    `say` is called with the address once the server listens, `warn` with the model before that.
    """
    if token is not None and (not token or not token.isascii() or not token.isprintable() or token != token.strip()):
        raise InputError("--token: must be printable ASCII letters and signs, without blanks at its ends")
    model = open_served(path)
    warn(model)
    app = make_app(Served(model, alarm_classes(model.classes, alarms)), limits, token, address.loopback)
    protocol = bounded_protocol(most_connections(limits.concurrency), min(HEAD_SECONDS, limits.timeout))
    config = uvicorn.Config(
        app, http=protocol, ws="none", loop="asyncio", lifespan="on", log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, timeout_graceful_shutdown=int(limits.timeout) + GRACE,
        backlog=BACKLOG,
    )  # fmt: skip
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(OncePerMinute())
    with listening(address) as listener:
        host, port = listener.getsockname()[:2]
        server = _Announced(config)
        server.announce = partial(say, f"http://{f'[{host}]' if ':' in host else host}:{port}")

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


class _Announced(uvicorn.Server):
    """Says where it listens once a signal would stop it in order."""

    announce: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.announce()


def open_served(path: Path) -> OnnxModel:
    """The model in onnxruntime, one core a call, for several calls run at once; a folder is exported first."""
    if path.suffix.lower() == ".onnx":
        return load_onnx(path, threads=1)
    from bearcat.deploy.model import load_model

    with tempfile.TemporaryDirectory(prefix="bearcat-") as folder:
        return load_onnx(export_onnx(load_model(path), Path(folder) / "model.onnx"), threads=1)


def listening(address: Address) -> socket.socket:
    """A socket that listens; one sentence where it cannot be had."""
    if not 0 <= address.port <= 65535:
        raise InputError(f"--port: must lie between 0 and 65535, not at {address.port}")
    try:
        family, *_, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(place[:2], family=family, backlog=2048)
        # asyncio does this only for sockets it knows to be TCP; without it, answers wait 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise InputError(
            f"--host {address.host} --port {address.port}: cannot be listened on ({reason}); choose another"
        ) from error
