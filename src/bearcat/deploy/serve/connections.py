"""Connections that cannot be used to keep others out: how many there are, and how long they may stay silent.

uvicorn gives a client any time for the head of a request, reads what is left of a refused body for ever, and accepts
connections until the process has no file left to open. Here a connection without a request is closed after a while,
the one that has waited longest goes when there are too many, and a refused body is read for two seconds more, so that
its sender can see why.

>>> config = uvicorn.Config(app, http=bounded_protocol(most_connections(64), seconds=10.0), backlog=BACKLOG)
"""

from __future__ import annotations

import asyncio
import logging
import time

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 128  # connections accepted at once, before any is counted
MOST = 1000  # connections; each takes a descriptor
OTHER_FILES = 64  # descriptors for everything but connections and uploads
HEAD_SECONDS = 10.0  # for the head of a request, also of the second on a connection
LINGER = 2.0  # seconds in which the rest of a refused body is still read


def most_connections(uploads: int) -> int:
    """How many connections leave enough descriptors for so many uploads; the limit is raised where that is allowed."""
    try:
        import resource
    except ImportError:  # Windows, whose limit is higher
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = OTHER_FILES + 2 * uploads + 3 * BACKLOG
    wanted = MOST + others
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST if soft == resource.RLIM_INFINITY else max(min(MOST, soft - others), 16)


def bounded_protocol(most: int, seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with at most so many connections, each with so many seconds for the head of a request."""
    waiting: dict[H11Protocol, None] = {}  # connections without a request, the oldest first

    class BoundedProtocol(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait(seconds)
            if len(self.connections) > most:
                next(iter(waiting)).transport.abort()  # a new one may be honest

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete:  # else the next request has begun
                self._wait(seconds if self.conn.their_state is not h11.SEND_BODY else LINGER)

        def _wait(self, seconds: float) -> None:
            self._stop_waiting()
            waiting[self] = None
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
