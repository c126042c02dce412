"""Fairness between the clients of a server: none keeps another waiting, however much it sends or asks for.

A client is an address (of IPv6, its network of 64 bits), or a token where a server has several. Five things are shared:
- places for requests: where all are taken, a client with fewer gets one from the client with most (`Places`);
- the event loop: a client whose bytes take long to parse is read later (`LoopShare`);
- readers of files, some of which are kept for small files and for other clients (`ClientReaders`);
- computing: the client that has used least is next, and long work gives way between its blocks (deploy/turns.py);
- drawing, one picture at a time: likewise the client that has drawn least is next.

>>> places = Places(most=64)
>>> place = places.take("127.0.0.1", asyncio.timeout(30))
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from bearcat.data.isolated import Readers, is_risky
from bearcat.data.recording import Floats
from bearcat.data.stream import Stream
from bearcat.deploy.serve.uploads import storing
from bearcat.deploy.turns import MOST_CLIENTS, Turn, Turns

SHARE = 0.25  # of the event loop's time, which one client's bytes may take
BURST = 0.005  # seconds of it that are not shared out
ALONE = 30.0  # seconds without another client, after which nothing is shared
SMALL_FILE = 2**20  # bytes; has readers of its own
SMALL_SIGNAL = 2**21  # samples that are kept in memory, so that their reader is free while they are worked on
RISKY, RISKY_EACH = 3, 2  # readers of risky formats, and for one client; each may take 16 × --max-bytes
SMALL = 2  # readers of small files of other formats; for large ones there is one for each core


def client_of(address: str) -> str:
    """Whose limits a peer at this address shares."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(found) if found.version == 4 else str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


class Clients:
    """Whose request it is: of several tokens each is a client; otherwise each address is, for all share one token."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self.names = {_digest(token): f"token {number}" for number, token in enumerate(tokens, start=1)}
        self.by_token = len(self.names) > 1

    def knows(self, token: str) -> bool:
        """Whether it is one of the tokens; digests are compared, so that the time it takes says nothing of them."""
        return _digest(token) in self.names

    def of(self, address: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The client that sends these headers from this address."""
        if self.by_token:
            for name, value in headers:
                scheme, _, given = value.partition(b" ")
                if name == b"authorization" and scheme.lower() == b"bearer":
                    return self.names.get(_digest(given.decode("latin-1").strip())) or client_of(address)
        return client_of(address)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class LoopShare:
    """Seconds of the event loop by client."""

    def __init__(self) -> None:
        self.owed: dict[str, float] = {}  # until when each client has used up its share
        self.last: dict[str, float] = {}  # when each sent something, the latest at the end

    def charge(self, client: str, seconds: float) -> float:
        """For how many seconds nothing more of this client should be read."""
        now = time.monotonic()
        self.last.pop(client, None)
        other = next(reversed(self.last), None)
        if len(self.last) > MOST_CLIENTS:
            self.last, self.owed = {}, {name: until for name, until in self.owed.items() if until > now}
        self.last[client] = now
        if other is None or now - self.last.get(other, 0.0) > ALONE:  # nobody else waits
            self.owed.pop(client, None)
            return 0.0
        until = self.owed[client] = max(self.owed.get(client, now), now) + seconds / SHARE
        return until - now - BURST / SHARE


@dataclass(eq=False)
class Place:
    """Of one request; `timer` ends the request, also where its place goes to another client.

    None: it has ended, but its worker has not.
    """

    client: str
    timer: asyncio.Timeout | None
    lost: bool = False


class Places:
    """So many requests at a time."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, dict[str, list[Place]]()

    def __len__(self) -> int:
        return sum(map(len, self.held.values()))

    def take(self, client: str, timer: asyncio.Timeout) -> Place | None:
        """A place; where all are taken, the newest of the client with most. None where this client has as many."""
        if len(self) >= self.most:
            most = max(self.held.values(), key=len)
            newest = next((place for place in reversed(most) if place.timer is not None), None)
            if newest is None or newest.timer is None or len(most) <= len(self.held.get(client, ())) + 1:
                return None
            newest.lost = True
            newest.timer.reschedule(asyncio.get_running_loop().time())
            self.leave(newest)
        place = Place(client, timer)
        self.held.setdefault(client, []).append(place)
        return place

    def leave(self, place: Place) -> None:
        held = self.held.get(place.client, [])
        if place in held:
            held.remove(place)
            if not held:
                del self.held[place.client]


class ReaderPools:
    """The readers of a server, and how clients share them."""

    def __init__(self, readers: Readers, cores: int) -> None:
        self.readers = readers
        self.risky, self.large, self.small = Turns(RISKY, RISKY_EACH), Turns(cores), Turns(SMALL)


@dataclass(frozen=True)
class ClientReaders:
    """The readers for one request, whose turn to compute is given up while it waits for one."""

    pools: ReaderPools
    turn: Turn

    @contextmanager
    def open_stream(self, path: Path, channel: str | None, origin: str, until: float) -> Iterator[Stream]:
        """As `Readers` does; a short recording is read at once, so that its reader is free again."""
        with storing():  # a cleaner may have been faster
            small = path.stat().st_size <= SMALL_FILE
        turns = self.pools.risky if is_risky(path) else self.pools.small if small else self.pools.large
        with self.turn.instead(turns), self.pools.readers.open_stream(path, channel, origin, until) as stream:
            kept = list[Floats]()
            while sum(block.size for block in kept) <= SMALL_SIGNAL:
                if (block := next(stream.blocks, None)) is None:
                    break
                kept.append(block)
            else:
                yield replace(stream, blocks=chain(kept, stream.blocks))
                return
        yield replace(stream, blocks=iter(kept))
