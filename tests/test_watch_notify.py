"""Events of watched machines go through apprise, to services of its own kind here, and wait where one fails."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apprise.decorators import notify as notified

from bearcat.errors import InputError
from bearcat.watch import notify
from bearcat.watch.notify import Notifier
from bearcat.watch.snapshot import Event
from bearcat.watch.store import Store

SECRET = "secret-token"
GOOD, BROKEN = f"good://me:{SECRET}@host", f"broken://me:{SECRET}@host"
RECEIVED: dict[str, list[dict[str, Any]]] = {"good": [], "broken": []}
DOWN = {"broken"}


def receive(body: str, title: str, notify_type: str, meta: dict[str, Any], **_: Any) -> bool:
    """A service of apprise that keeps what it is sent, unless it is down."""
    if meta["schema"] in DOWN:
        return False
    RECEIVED[meta["schema"]].append({"lines": body.split("\n"), "title": title, "type": notify_type})
    return True


with warnings.catch_warnings(action="ignore"):  # about modules that apprise imports
    for schema in RECEIVED:
        notified(on=schema)(receive)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    for messages in RECEIVED.values():
        messages.clear()
    DOWN.add("broken")
    with Store.open(tmp_path / "plant.db", create=True) as opened:
        yield opened


def happen(store: Store, *kinds: str, machine: str = "pump 3") -> None:
    """Adds events as the loop does."""
    numbered = enumerate(kinds)
    store.keep([], [Event(machine, "DE", 1.7e9 + number, kind, note=f"{kind} {number}") for number, kind in numbered])


def test_an_event_waits_until_every_address_has_it(store, capfd):
    notes = list[str]()
    happen(store, "alarm", "over")
    notifier = Notifier([GOOD, BROKEN])
    for _ in range(3):
        notifier.send(store, notes.append)
    assert [row.event.kind for row in store.unsent()] == ["alarm", "over"], "a process that ends here has lost nothing"
    assert len(RECEIVED["good"]) == 1, "what one address has received is not sent again because another fails"
    assert len(notes) == 3
    DOWN.clear()
    notifier.send(store, notes.append)
    assert RECEIVED["broken"] == RECEIVED["good"]
    assert store.unsent() == []
    (message,) = RECEIVED["good"]
    assert "alarm 0" in message["title"], "the most urgent comes first"
    assert (message["type"], len(message["lines"])) == ("failure", 2)
    assert SECRET not in "".join(notes) + "".join(capfd.readouterr())


def test_a_flood_is_few_messages_and_names_stay_in_their_line(store):
    happen(store, *["problem"] * (notify.LINES + 1), machine="pump\r\nBcc: thief\x1b[31m" + 2000 * "p")
    happen(store, "baseline", "acknowledged")
    Notifier([GOOD]).send(store, print)
    assert [len(message["lines"]) for message in RECEIVED["good"]] == [notify.LINES, 1], "each event is named"
    assert RECEIVED["good"][0]["title"].isprintable()
    assert [len(RECEIVED["good"][0]["title"]), len(RECEIVED["good"][0]["lines"][0])] == [150, notify.LONGEST]
    assert store.unsent() == [], "nobody wants a message about a baseline, and nothing waits for ever"
    happen(store, "alarm")
    Notifier().send(store, print)
    assert store.unsent() == [], "nobody is flooded when notifications are switched on later"


def test_a_problem_reaches_people_and_the_address_is_nowhere_else(tmp_path, command, monkeypatch, store):
    broken = tmp_path / "plant" / "pump" / "DE" / "2024-05-01T10-00-00.wav"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"RIFF, but no more")
    os.utime(broken, (1.7e9, 1.7e9))
    monkeypatch.setenv("BEARCAT_NOTIFY", GOOD)
    _, out, said = command("watch", tmp_path / "plant", "--store", store.path, "--once")
    assert [str(broken) in message["title"] for message in RECEIVED["good"]] == [True]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("plant.db*"))
    assert SECRET.encode() not in stored + (out + said).encode()


@pytest.mark.parametrize("address", ["logger --tag bearcat", f"nonsense://{SECRET}", f"smtp://me:{SECRET}@host", ""])
def test_wrong_addresses_are_refused_without_being_repeated(address):
    with pytest.raises(InputError, match="number 2") as refusal:
        Notifier(["json://127.0.0.1", address])
    assert SECRET not in str(refusal.value)
