"""Honest requests beside clients that take what they can get (deploy/serve/fair.py, benchmarks/impolite.py)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bearcat.deploy import turns as module
from bearcat.deploy.model import export_onnx
from bearcat.deploy.serve.fair import Clients, LoopShare, Places, client_of
from bearcat.deploy.turns import Turn, Turns
from tests.test_artefact import made_model
from tests.test_serve import BINARY, LENGTH, RATE, Server, as_npy, as_wav, noise, refused

pytestmark = pytest.mark.usefixtures("traced_once")

IMPOLITE = Path(__file__).parents[1] / "benchmarks" / "impolite.py"
HONEST = as_wav(noise(4 * LENGTH))
PLACES = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return export_onnx(made_model(), tmp_path_factory.mktemp("models") / "model.onnx")


@pytest.fixture(scope="module")
def server(model, tmp_path_factory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), model, "--concurrency", PLACES)
    for name, content in (("a.wav", HONEST), ("a.npy", as_npy(noise(4 * LENGTH)))):
        assert running.upload(name, content, rate=RATE).status_code == 200  # the readers have started
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize(
    "kind", ["query-fields", "header-fields", "slow-bodies", "small-chunks", "large-hdf5", "long-npy"]
)
def test_an_honest_recording_is_answered_soon_beside_impolite_clients(server, kind):
    """benchmarks/serve_load.py --impolite measures it; seconds here, since a busy machine has other reasons to wait."""
    words = [sys.executable, IMPOLITE, kind, str(server.place.port), "--seconds", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as impolite:
        try:
            assert impolite.stdout.readline() == "playing\n"
            time.sleep(0.5)
            waits = []
            for _ in range(5):
                start = time.monotonic()
                answer = httpx.post(f"{server.url}/predict?filename=a.wav", content=HONEST, headers=BINARY, timeout=30)
                assert answer.status_code == 200, answer.text
                waits.append(time.monotonic() - start)
            assert sorted(waits)[2] < 4, waits
        finally:
            impolite.kill()
    server.until(0)


def test_more_query_fields_than_any_address_has_are_refused_before_they_are_parsed(server):
    refused(server.client.post("/predict?" + "a&" * 6000), 422, "query")
    refused(server.client.post("/predict?" + "rate=1&" * 20, headers=BINARY), 422, "filename")
    assert server.client.get("/model", headers={f"x-{number}": "1" * 100 for number in range(200)}).status_code == 400


def test_a_body_of_one_byte_chunks_is_refused(server):
    with socket.create_connection((server.place.hostname, server.place.port), timeout=60) as connection:
        head = "POST /predict?filename=a.wav HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        connection.sendall(f"{head}Content-Type: application/octet-stream\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                connection.sendall(b"1\r\nx\r\n" * 10_000)
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(100)
            assert answer[:12] in (b"", b"HTTP/1.1 400")
    server.until(0)
    assert server.client.post(
        "/predict?filename=a.wav", content=iter([HONEST[:999], HONEST[999:]]), headers=BINARY
    ).is_success


def test_a_body_that_comes_slower_than_a_kilobyte_a_second_loses_its_place(model, tmp_path, monkeypatch):
    from bearcat.deploy.serve import app

    async def body():
        for _ in range(100):
            yield b"1"
            await asyncio.sleep(0.02)

    class SlowRequest:
        headers: dict[str, str] = {}  # noqa: RUF012

        def stream(self):
            return body()

    async def receive(patience: float) -> int:
        monkeypatch.setattr(app, "PATIENCE", patience)
        return sum([len(chunk) async for chunk in app.PredictionService._bounded(None, SlowRequest(), 2**20)])

    with pytest.raises(app.SlowBodyError):
        asyncio.run(receive(0.1))
    assert asyncio.run(receive(60.0)) == 100


def test_a_place_goes_from_the_client_with_most_to_one_with_fewer():
    async def play() -> None:
        places, ended = Places(4), []

        async def request(client: str) -> None:
            timer = asyncio.timeout(60)
            place = places.take(client, timer)
            if place is None:
                ended.append((client, "refused"))
                return
            try:
                async with timer:
                    await asyncio.sleep(60)
            except TimeoutError:
                ended.append((client, "lost"))
            finally:
                places.leave(place)

        tasks = []
        for client in ("greedy", "greedy", "greedy", "greedy", "greedy", "honest", "honest", "honest"):
            tasks.append(asyncio.create_task(request(client)))
            await asyncio.sleep(0.01)
        assert {client: len(held) for client, held in places.held.items()} == {"greedy": 2, "honest": 2}
        assert sorted(ended) == [("greedy", "lost")] * 2 + [("greedy", "refused"), ("honest", "refused")]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(places) == 0

    asyncio.run(play())


def test_the_client_that_has_computed_least_goes_on_first(monkeypatch):
    """One turn: a long request gives way between its blocks, and a client's own requests go in order."""
    monkeypatch.setattr(module, "QUANTUM", 0.0)
    turns, order = Turns(1), []

    def work(client: str, blocks: int) -> None:
        turn = Turn(time.monotonic() + 60, turns, client)
        for _ in range(blocks):
            turn.check()
            time.sleep(0.03)
        order.append(client)
        turn.give()

    long = threading.Thread(target=work, args=("long", 30))
    long.start()
    time.sleep(0.1)
    others = [threading.Thread(target=work, args=(client, 1)) for client in ("short", "shorter", "long")]
    for thread in others:
        thread.start()
        time.sleep(0.01)
    for thread in (long, *others):
        thread.join()
    assert order[-1] == "long"
    assert set(order[:2]) == {"short", "shorter"}
    assert (turns.free, len(turns.waiting), len(turns.held)) == (1, 0, 0)


def test_a_client_that_has_drawn_much_does_not_hold_up_the_drawing_of_another():
    """Whoever waits to draw has given up the right to compute, and is next by what the client has drawn."""
    computing, drawing, order = Turns(1), Turns(1), []
    begun = threading.Event()

    def draw(client: str) -> None:
        turn = Turn(time.monotonic() + 60, computing, client)
        turn.check()
        with turn.instead(drawing):
            begun.set()
            time.sleep(0.05)
            order.append(client)
        turn.check()
        turn.give()

    many = [threading.Thread(target=draw, args=("many",)) for _ in range(6)]
    for thread in many:
        thread.start()
    begun.wait()
    while len(drawing.waiting) < 5:  # all of them wait, none with the turn to compute
        time.sleep(0.001)
    other = threading.Thread(target=draw, args=("other",))
    other.start()
    for thread in (*many, other):
        thread.join()
    assert "other" in order[:3], order
    assert (computing.free, drawing.free) == (1, 1)
    first, late = Turn(time.monotonic() + 60, computing, "a"), Turn(time.monotonic() + 0.1, computing, "b")
    with pytest.raises(TimeoutError), first.instead(drawing), late.instead(drawing):
        pass
    assert drawing.free == 1


def test_one_client_never_has_all_turns_and_whoever_waits_too_long_leaves_the_queue():
    turns = Turns(2, each=1)
    first = Turn(time.monotonic() + 60, turns, "a")
    first.check()
    with pytest.raises(TimeoutError):
        Turn(time.monotonic() + 0.1, turns, "a").check()
    other = Turn(time.monotonic() + 60, turns, "b")
    other.check()
    with pytest.raises(TimeoutError):
        Turn(time.monotonic() + 0.1, turns, "c").check()
    first.give()
    other.give()
    assert (turns.free, len(turns.waiting)) == (2, 0)


def test_bytes_that_are_dear_to_parse_are_read_later_and_others_are_not():
    share = LoopShare()
    assert share.charge("dear", 1.0) <= 0, "as long as nobody else is there"
    assert share.charge("cheap", 1e-4) < 0
    assert share.charge("dear", 0.1) > 0.2
    assert share.charge("dear", 0.1) > 0.5, "also on another connection"
    assert share.charge("cheap", 1e-4) < 0


def test_a_network_of_ipv6_is_one_client():
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:1") != client_of("2001:db8:0:1::1")
    assert client_of("127.0.0.1") != client_of("127.0.0.2")


def test_of_several_tokens_each_is_a_client_and_of_one_each_address():
    def client(clients: Clients, token: str, address: str = "10.0.0.1") -> str:
        return clients.of(address, [(b"host", b"x"), (b"authorization", f"bearer  {token}".encode())])

    several, one = Clients(["a", "b", "a"]), Clients(["a"])
    assert client(several, "a") == client(several, "a", "10.0.0.2") != client(several, "b")
    assert client(several, "wrong") == several.of("10.0.0.1", []) == "10.0.0.1"
    assert (client(one, "a"), client(one, "a", "10.0.0.2")) == ("10.0.0.1", "10.0.0.2")
    assert [several.knows(token) for token in ("a", "b", "", "A", "token 1")] == [True, True, False, False, False]


def test_behind_a_proxy_a_token_that_holds_all_places_gives_one_to_another_token(model, tmp_path):
    """All requests have one address here, as behind a proxy."""
    running = Server(tmp_path, model, "--concurrency", 2, BEARCAT_TOKEN="greedy\n\n honest \n")
    try:
        running.client.headers["Authorization"] = "Bearer honest"
        assert running.client.get("/model", headers={"Authorization": "Bearer other"}).status_code == 401
        head = "POST /predict?filename=a.wav HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer greedy\r\n"
        head += "Content-Type: application/octet-stream\r\nContent-Length: 100000\r\n\r\n"
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                held = stack.enter_context(socket.create_connection((running.place.hostname, running.place.port)))
                held.sendall(head.encode())
            running.until(2)
            assert running.upload("a.wav", HONEST).status_code == 200
    finally:
        assert running.stop() == 0
