"""Notifications of events through apprise: mail, webhook, MQTT, Teams, Slack and a hundred others, each by an address.

An event waits in the store until every address has received it. So a process that is killed, or a mail server that is
down, loses nothing; an event may arrive twice. Addresses hold passwords, and are neither printed nor stored.

>>> notifier = Notifier(["mailto://user:password@example.com", "json://localhost:8080/alarms"])
>>> notifier.send(store, say=print)
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from bearcat.errors import InputError, shown
from bearcat.findings import count
from bearcat.watch.snapshot import Event, written_time
from bearcat.watch.store import Store

LINES, LONGEST = 50, 1000  # events in a message, and characters of one, at most: services refuse more
# Events that people want to hear of, the most urgent first, and how apprise calls them.
NOTIFIED = {"alarm": "failure", "grown": "failure", "problem": "warning", "over": "success"}


class Notifier:
    """Sends events to addresses of apprise."""

    def __init__(self, addresses: Sequence[str] = ()) -> None:
        self._services = dict(_service(number, address) for number, address in enumerate(addresses, start=1))
        self._received = dict.fromkeys(self._services, 0)  # the number of the last event; numbers grow

    def send(self, store: Store, say: Callable[[str], None]) -> None:
        """Sends what waits in the store, in messages to each address, and says which one fails. Without addresses
        nobody waits for it, and all counts as sent.
        """
        if not (waiting := store.unsent()):
            return
        last = waiting[-1].number
        for name, service in self._services.items():
            wanted = [row for row in waiting if row.number > self._received[name] and row.event.kind in NOTIFIED]
            for some in (wanted[start : start + LINES] for start in range(0, len(wanted), LINES)):
                if not _notify(service, [row.event for row in some]):
                    say(f"{name}: events could not be sent; they are kept, and sent when it works again")
                    break
                self._received[name] = some[-1].number
            else:
                self._received[name] = last
        store.mark_sent(min(self._received.values(), default=last))


def _notify(service: Any, events: Sequence[Event]) -> bool:
    """Sends one message about these events, the most urgent first; whether it was received."""
    events = sorted(events, key=lambda event: list(NOTIFIED).index(event.kind))
    more = f"{count(len(events), 'event')}; " if len(events) > 1 else ""
    lines = [f"{written_time(event.time)}  {shown(event.sentence)}"[:LONGEST] for event in events]
    title, kind = f"bearcat: {more}{shown(events[0].sentence)}"[:150], NOTIFIED[events[0].kind]
    try:
        return bool(service.notify("\n".join(lines), title=title, notify_type=kind, body_format="text"))
    except Exception:  # of any of a hundred services: watching goes on
        return False


def _service(number: int, address: str) -> tuple[str, Any]:
    """The service at an address, and its name for notes; InputError, without the address, where apprise knows none."""
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
    return f"--notify {number} ({service[0].service_name})", service
