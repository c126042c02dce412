"""Notifications of events through apprise: mail, webhook, MQTT, Teams, Slack and a hundred others, each by an address.

An event waits in the store until every address has received it. So a process that is killed, or a mail server that is
down, loses nothing; an event may arrive twice. Addresses hold passwords, and are neither printed nor stored.

>>> notifier = Notifier(["mailto://user:password@example.com", "json://localhost:8080/alarms"], note=print)
>>> notifier.send(store)                  # whether nothing waits any more
True
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bearcat.errors import InputError, shown
from bearcat.findings import count
from bearcat.watch.snapshot import Event, written_time
from bearcat.watch.store import Store

BUNDLE = 50  # events in a message, at most
PAUSE, RETRY = 30.0, 60.0  # seconds from one message to the next, and after one that failed
LONGEST_TITLE, LONGEST_LINE = 150, 1000  # characters
# Events that people want to hear of, the most urgent first, and how apprise calls them.
NOTIFIED = {"alarm": "failure", "grown": "failure", "problem": "warning", "over": "success"}


@dataclass
class Route:
    """A service, and how many of the events it has received, by their numbers, which grow."""

    name: str  # for notes, without the address
    service: Any
    received: int = 0
    failed: bool = False
    next: float = 0.0  # when it is used again


class Notifier:
    """Sends events to addresses of apprise; `note` says, once, that one fails."""

    def __init__(self, addresses: Sequence[str] = (), note: Callable[[str], None] = print) -> None:
        self._note = note
        self._routes = [_route(number, address) for number, address in enumerate(addresses, start=1)]

    def send(self, store: Store, hurry: bool = False) -> bool:
        """Sends what waits in the store; whether nothing waits any more. `hurry`: without pauses between messages.
        Without addresses nobody waits for it, and all counts as sent.
        """
        while waiting := store.unsent():
            sent = [self._send(route, waiting, hurry) for route in self._routes]
            everywhere = min((route.received for route in self._routes), default=waiting[-1].number)
            store.mark_sent([event.number for event in waiting if event.number <= everywhere])
            if self._routes and not any(sent):
                return False
        return True

    def _send(self, route: Route, waiting: Sequence[Event], hurry: bool) -> bool:
        """Sends a message about the oldest events that the service has not received; whether it has them now."""
        events = [event for event in waiting if event.number > route.received][:BUNDLE]
        if not events or (time.monotonic() < route.next and (route.failed or not hurry)):
            return False
        received = _notify(route.service, [event for event in events if event.kind in NOTIFIED])
        if not received and not route.failed:
            self._note(f"{route.name}: events could not be sent; they are kept, and sent as soon as it works")
        route.failed, route.next = not received, time.monotonic() + (PAUSE if received else RETRY)
        route.received = events[-1].number if received else route.received
        return received


def _notify(service: Any, events: Sequence[Event]) -> bool:
    """Sends one message about these events; whether it was received."""
    if not events:
        return True
    first = min(events, key=lambda event: list(NOTIFIED).index(event.kind))
    more = f"{count(len(events), 'event')}; " if len(events) > 1 else ""
    lines = [f"{written_time(event.time)}  {shown(event.sentence)}"[:LONGEST_LINE] for event in events]
    title = f"bearcat: {more}{shown(first.sentence)}"[:LONGEST_TITLE]
    try:
        return bool(service.notify("\n".join(lines), title=title, notify_type=NOTIFIED[first.kind], body_format="text"))
    except Exception:  # of any of a hundred services: watching goes on
        return False


def _route(number: int, address: str) -> Route:
    """The service at an address; InputError, without the address, where apprise does not know it."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # about modules that apprise imports
        try:
            import apprise
        except ImportError as error:
            raise InputError("--notify: needs an extra; pip install 'bearcat[watch]'") from error
        logging.getLogger("apprise").disabled = True  # it would print addresses
        service = apprise.Apprise()
        accepted = service.add(address)
    if not accepted:
        instead = "write one such as json://host/path or mailto://user:password@example.com (docs/watch.md)"
        raise InputError(f"--notify: number {number} is no address that apprise can use; {instead}")
    return Route(f"--notify {number} ({service[0].service_name})", service)
