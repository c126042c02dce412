"""Clients that take what they can get of a server on this machine: what honest requests wait beside each of them.

python benchmarks/impolite.py small-chunks PORT --seconds 5 --source 127.0.0.2
"""

from __future__ import annotations

import argparse
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

BINARY = "Content-Type: application/octet-stream\r\n"


def head(address: str, *lines: str) -> bytes:
    return f"POST {address} HTTP/1.1\r\nHost: localhost\r\n{''.join(lines)}\r\n".encode()


def whole(address: str, body: bytes, kind: str = BINARY) -> bytes:
    return head(address, kind, f"Content-Length: {len(body)}\r\n") + body


def large_hdf5() -> bytes:
    """1400 bytes that announce 2²⁷ samples, all of them zero."""
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as tree:
        tree.create_dataset("a", shape=(2**27,), dtype="i1", chunks=(2**20,), compression="gzip")
    return file.getvalue()


def long_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.random.default_rng(0).integers(-99, 99, 7 * 2**20, dtype=np.int8))
    return file.getvalue()


def repeated(request: bytes) -> Callable[[socket.socket], Iterator[bytes]]:
    """The request again and again, each after the answer to the one before."""

    def send(connection: socket.socket) -> Iterator[bytes]:
        while True:
            yield request
            connection.recv(2**16)

    return send


def slow_body(_: socket.socket) -> Iterator[bytes]:
    yield head("/predict?filename=a.wav", BINARY, "Content-Length: 100000\r\n")
    while True:
        time.sleep(1)
        yield b"1"


def small_chunks(_: socket.socket) -> Iterator[bytes]:
    yield head("/predict?filename=a.wav", BINARY, "Transfer-Encoding: chunked\r\n")
    while True:
        yield b"1\r\nx\r\n" * 10_000


def silent(_: socket.socket) -> Iterator[bytes]:
    while True:
        time.sleep(1)
        yield b""


def many_windows() -> bytes:
    return json.dumps({"windows": [[0] * 256] * 15_000}, separators=(",", ":")).encode()


# How many of each kind there are, and what makes each one's requests.
CLIENTS: dict[str, tuple[int, Callable[[], Callable[[socket.socket], Iterator[bytes]]]]] = {
    "query-fields": (8, lambda: repeated(whole("/predict?" + "a&" * 6000, b""))),
    "header-fields": (8, lambda: repeated(head("/predict", "a:\r\n" * 3500))),
    "slow-bodies": (96, lambda: slow_body),
    "small-chunks": (12, lambda: small_chunks),
    "large-hdf5": (4, lambda: repeated(whole("/predict?filename=a.h5&rate=12000", large_hdf5()))),
    "long-npy": (4, lambda: repeated(whole("/predict?filename=a.npy&rate=12000&picture=true", long_npy()))),
    "many-windows": (4, lambda: repeated(whole("/predict", many_windows(), "Content-Type: application/json\r\n"))),
    "silent": (300, lambda: silent),
}


def play(kind: str, port: int, source: str, seconds: float) -> None:
    """All clients of a kind, each connecting again where it is closed."""
    count, make = CLIENTS[kind]
    send = make()
    end = time.monotonic() + seconds

    def one() -> None:
        while time.monotonic() < end:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 5, source_address=(source, 0)) as connection,
            ):
                for part in send(connection):
                    connection.sendall(part)
                    if time.monotonic() > end:
                        break

    threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    print("playing", flush=True)
    time.sleep(max(end - time.monotonic(), 0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(CLIENTS))
    parser.add_argument("port", type=int)
    parser.add_argument("--source", default="127.0.0.2", help="the address on this machine that they come from")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    play(given.kind, given.port, given.source, given.seconds)
