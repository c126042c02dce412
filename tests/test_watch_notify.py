"""Events of watched machines reach a real web server through apprise, and wait where one fails."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bearcat.errors import InputError
from bearcat.watch import notify
from bearcat.watch.folder import WatchedFolder
from bearcat.watch.notify import Notifier
from bearcat.watch.snapshot import Event, RecordingFile
from bearcat.watch.store import Store
from bearcat.watch.watching import Watching

SECRET = "secret-token"


def happen(store: Store, *kinds: str, machine: str = "pump 3") -> list[int]:
    """Adds events as the loop does: their numbers."""
    name = f"{store.unsent()!r}{kinds}"
    events = [
        Event(machine, "drive end", 1.7e9 + place, kind, f"{machine}, drive end: {kind} {place}")
        for place, kind in enumerate(kinds)
    ]
    return [int(event.number) for event in store.add(RecordingFile(name, "", name, 1, 1), events=events)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plant.db", create=True) as opened:
        yield opened


class Answering(ThreadingHTTPServer):
    """Keeps what is posted, and answers with a status that a test may change."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Posted)
        self.status, self.received = 200, list[dict[str, Any]]()
        self.address = f"json://user:{SECRET}@127.0.0.1:{self.server_port}/{SECRET}"


class Posted(BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status == 200:
            self.server.received.append(body)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Answering]:
    with Answering() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_an_event_waits_until_every_address_has_it(store, capfd, monkeypatch):
    monkeypatch.setattr(notify, "RETRY", 0.0)
    notes = list[str]()
    numbers = happen(store, "alarm", "over")
    with serving() as good, serving() as broken:
        broken.status = 500
        notifier = Notifier([good.address, broken.address], notes.append)
        for _ in range(3):
            assert not notifier.send(store, hurry=True)
        assert [event.number for event in store.unsent()] == numbers, "a process that ends here has lost nothing"
        assert len(good.received) == 1, "what one address has received is not sent again because another fails"
        assert len(notes) == 1, "it is said once"
        broken.status = 200
        assert notifier.send(store, hurry=True)
        assert broken.received == good.received
        assert store.unsent() == []
    (message,) = good.received
    assert "alarm 0" in message["title"], "the most urgent comes first"
    assert message["type"] == "failure"
    assert len(message["message"].splitlines()) == 2
    assert SECRET not in "".join(notes) + "".join(capfd.readouterr())


def test_a_flood_goes_out_in_bundles_and_names_stay_in_their_line(store):
    happen(store, *["problem"] * (notify.BUNDLE + 1), machine="pump\r\nBcc: thief\x1b[31m")
    happen(store, "baseline", "acknowledged")
    with serving() as server:
        notifier = Notifier([server.address], print)
        notifier.send(store)
        assert len(server.received) == 1, "the next message has to wait"
        assert notifier.send(store, hurry=True)
    assert [len(message["message"].split("\n")) for message in server.received] == [notify.BUNDLE, 1]
    assert all(message["title"].isprintable() for message in server.received)
    assert store.unsent() == [], "nobody wants a message about a baseline, and nothing waits for ever"


def test_events_wait_for_addresses_unless_there_are_none(store, tmp_path):
    happen(store, "alarm")
    (tmp_path / "plant").mkdir()
    folder = WatchedFolder(tmp_path / "plant")
    with serving() as broken:
        broken.status = 500
        Watching(folder, store, notifier=Notifier([broken.address], lambda _: None)).once()
    assert len(store.unsent()) == 1
    Watching(folder, store).once()
    assert store.unsent() == [], "nobody is flooded when notifications are switched on later"


def test_a_problem_reaches_people_and_the_address_is_nowhere_else(tmp_path, command, monkeypatch):
    broken = tmp_path / "plant" / "pump" / "DE" / "2024-05-01T10-00-00.wav"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"RIFF, but no more")
    os.utime(broken, (1.7e9, 1.7e9))
    with serving() as server:
        monkeypatch.setenv("BEARCAT_NOTIFY", server.address)
        _, out, said = command("watch", tmp_path / "plant", "--store", tmp_path / "plant.db", "--once")
    assert [str(broken) in message["message"] for message in server.received] == [True]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("plant.db*"))
    assert SECRET not in out + said
    assert SECRET.encode() not in stored


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("logger --tag bearcat", "apprise"), (f"nonsense://{SECRET}", "apprise"), (f"slack://{SECRET}", "apprise"),
        (f"smtp://me:{SECRET}@host?from=a@b&to=c@d", "mailto://"), ("", "apprise"),
    ],
)  # fmt: skip
def test_wrong_addresses_are_refused_without_being_repeated(address, named):
    with pytest.raises(InputError, match="number 2") as refusal:
        Notifier(["json://127.0.0.1", address], print)
    assert named in str(refusal.value)
    assert SECRET not in str(refusal.value)
