"""`bearcat serve`: diagnoses over HTTP, and a page to drop recordings on (docs/serve.md).

FastAPI and uvicorn as they are, for one machine or a trusted network; a reverse proxy keeps strangers out.

>>> serve(Path("out/model"), Address(port=8000), Limits())         # until SIGTERM or Ctrl-C; None: without a model
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bearcat.deploy.predict import open_model
from bearcat.deploy.predictor import Predictor
from bearcat.diagnosis.recording import AlarmRule
from bearcat.errors import InputError

try:
    import uvicorn

    from bearcat.deploy.serve.answer import Served
    from bearcat.deploy.serve.app import Limits as Limits  # so that all one needs to serve comes from here
    from bearcat.deploy.serve.app import Pages, make_app
except ImportError as error:
    raise InputError("serving needs an extra; pip install 'bearcat[serve]'") from error

GRACE = 5  # seconds beyond a request's time, after which a shutdown no longer waits for it
CONNECTIONS = 256  # beyond the requests that are answered; uvicorn answers 503 to others
HEAD_BYTES = 2**14  # of the head of a request, with its address


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
    path: Path | None, address: Address, limits: Limits, token: str | None = None,
    alarms: Sequence[str] | None = None, say: Callable[[str], None] = print,
    warn: Callable[[Predictor], None] = lambda _: None, fleet: Pages | None = None,
) -> None:  # fmt: skip
    """Serves the model, pages of watched machines, or both, until SIGTERM or SIGINT; then finishes what was accepted.

    With neither, recordings are diagnosed by fault lines and the general model. `say` is called with the address once
    the server listens, `warn` with the model before that. Requests must carry the `token`, where there is one.
    """
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        one = "must be one token of printable ASCII, without blanks at its ends; a reverse proxy can accept several"
        raise InputError(f"BEARCAT_TOKEN: {one}")
    served = None
    if path is not None:
        warn(model := open_model(path))
        served = Served(model, AlarmRule.of(model.classes, alarms))
    elif fleet is None:
        served = Served(None, AlarmRule.of((), alarms))
    config = uvicorn.Config(
        make_app(served, limits, token, address.loopback, fleet), http="h11", ws="none", log_level="warning",
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=limits.concurrency + CONNECTIONS,
        timeout_graceful_shutdown=int(limits.timeout) + GRACE, h11_max_incomplete_event_size=HEAD_BYTES,
    )  # fmt: skip
    with listening(address) as listener:
        host, port = listener.getsockname()[:2]

        class Server(uvicorn.Server):
            """Says where it listens once a signal would stop it in order."""

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    say(f"http://{f'[{host}]' if ':' in host else host}:{port}")

        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again when it has shut down
            signal.signal(number, lambda *_: sys.exit(0))
        Server(config).run(sockets=[listener])


def listening(address: Address) -> socket.socket:
    """A socket that listens; one sentence where it cannot be had, for which uvicorn would end with status 1."""
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
        where = f"--host {address.host} --port {address.port}"
        raise InputError(f"{where}: cannot be listened on ({reason}); choose another") from error
