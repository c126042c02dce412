"""Who computes next: requests of several clients take turns, and long ones give way between their blocks.

>>> turn = Turn(time.monotonic() + 30, Turns(count=2), "127.0.0.1")
>>> turn.check()  # before each block: waits until it may go on; TimeoutError beyond its time
>>> turn.give()
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

QUANTUM = 0.02  # seconds of computing before a request gives way
MOST_CLIENTS = 10_000  # remembered at a time


@dataclass
class Deadline:
    """Until when a request's work may go on, by time.monotonic(); moved to the past when its client has gone."""

    until: float
    client = ""

    def check(self) -> None:
        if time.monotonic() > self.until:
            raise TimeoutError

    @contextmanager
    def instead(self, turns: Turns) -> Iterator[None]:
        """Waits for one of these turns, for work that few can do at a time; the right to compute is given up."""
        self.give()
        since = turns.take(self.client, partial(Deadline.check, self))
        try:
            yield
        finally:
            turns.give(self.client, since)

    def give(self) -> None:
        """Gives up the right to compute, if there is one."""


class Turns:
    """So many at a time (`each`: of one client); the client that has used least time is next."""

    def __init__(self, count: int, each: int | None = None) -> None:
        self.free, self.each = count, each or count
        self.lock = threading.Lock()
        self.waiting: dict[threading.Condition, str] = {}  # clients, in the order in which their requests came
        self.held: Counter[str] = Counter()
        self.used: dict[str, float] = {}  # seconds by client; a new one begins with the least of those here

    def take(self, client: str, check: Callable[[], None]) -> float:
        """Waits for a turn, and says when it began; `check` raises TimeoutError where the request has no time left."""
        ticket = threading.Condition(self.lock)
        with self.lock:
            here = {*self.held, *self.waiting.values()}
            if len(self.used) > MOST_CLIENTS:
                self.used = {name: self.used[name] for name in here}
            self.used[client] = max(self.used.get(client, 0.0), min((self.used[name] for name in here), default=0.0))
            self.waiting[ticket] = client
            try:
                while not self.free or self._next() is not ticket:
                    ticket.wait(0.25)  # a client that has gone is noticed in this time
                    check()
                self.free -= 1
                self.held[client] += 1
            finally:
                del self.waiting[ticket]
                self._wake()
        return time.monotonic()

    def _next(self) -> threading.Condition | None:
        allowed = (ticket for ticket, client in self.waiting.items() if self.held[client] < self.each)
        return min(allowed, key=lambda ticket: self.used[self.waiting[ticket]], default=None)

    def _wake(self) -> None:
        if self.free and (ticket := self._next()) is not None:
            ticket.notify()

    def give(self, client: str, since: float) -> None:
        with self.lock:
            self.used[client] += time.monotonic() - since
            self.held -= Counter([client])  # which forgets those that hold none
            self.free += 1
            self._wake()

    def wanted(self, client: str, since: float) -> bool:
        """Whether another request should go on before this one, which has computed since then."""
        with self.lock:
            used = time.monotonic() - since
            others = self.waiting.values()
            return used > QUANTUM and any(self.used[name] < self.used[client] + used for name in others)


@dataclass(eq=False)
class Turn(Deadline):
    """A request's right to compute: taken by `check`, given up at its end and for whoever is next."""

    turns: Turns
    client: str = ""
    since: float | None = None

    def check(self) -> None:
        """Before each block: waits until this request may go on; TimeoutError beyond its time."""
        super().check()
        if self.since is not None and self.turns.wanted(self.client, self.since):
            self.give()
        if self.since is None:
            self.since = self.turns.take(self.client, super().check)

    def give(self) -> None:
        if self.since is not None:
            self.turns.give(self.client, self.since)
            self.since = None
