"""An ONNX graph in processes of its own: one that loops without end or grows without bound ends there, and not here.

A process loads the graph once and then answers calls; as many are started as calls are made at the same time. The first
that dies is started again, but a graph that kills several is refused from then on.

>>> graph = Graph(Path("bearing.onnx").read_bytes(), "bearing.onnx")
>>> (logits,) = graph.run(["logits"], {"windows": windows})
"""

from __future__ import annotations

import io
import json
import math
import os
import queue
import signal
import socket
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.child import Child, limit_process
from bearcat.errors import InputError

Array = NDArray[Any]
BATCH = 16  # windows at once: what lies between two layers stays in a core's cache (benchmarks/recording_speed.py)
SECONDS = 30.0  # for a batch, and for loading the graph
MEMORY = (2**30, 8)  # bytes that a graph may take, and by the byte of its file
LARGEST = 2**31  # bytes of one message: ONNX files are no larger
MOST_DEATHS = 2
PREPARED = "prepared"  # the output of a graph's input, behind which its network begins


class Graph:
    """What a file's graph takes, gives and says of itself, and a call of it. Several threads may call at once."""

    def __init__(self, content: bytes, place: str, threads: int | None = None, seconds: float = SECONDS) -> None:
        self.place, self.deaths = place, 0
        self._content = content
        memory = MEMORY[0] + MEMORY[1] * len(content)
        self._arguments = {"threads": threads or 0, "seconds": seconds, "memory": memory}
        self._idle: queue.LifoQueue[_Session] = queue.LifoQueue()
        self._process = os.getpid()
        self.close = weakref.finalize(self, _end_all, self._idle)
        first = self._session()
        self.metadata: dict[str, str] = first.head["metadata"]
        self.inputs: dict[str, list[Any]] = first.head["inputs"]  # their axes but the first
        self.outputs: dict[str, list[Any]] = first.head["outputs"]
        self._idle.put(first)

    def run(self, outputs: Sequence[str], arrays: Mapping[str, Array]) -> list[Array]:
        """These outputs of `windows` and of what else the graph takes, whose first axis is 1; or of PREPARED alone,
        what the graph's input makes of windows, for graphs that give it.
        """
        count, session = len(next(iter(arrays.values()))), self._session()
        most = 8 * count * max(math.prod(self.outputs[name]) for name in outputs)  # bytes, of doubles
        try:
            found = session.run(outputs, arrays, most)
            for name in outputs:
                if found[name].shape != (count, *self.outputs[name]):
                    raise ValueError("an output has another shape than the graph says")
        except BaseException as error:  # a message may be half read, also where someone has pressed Ctrl-C
            session.end()
            if isinstance(error, EOFError | OSError | ValueError):
                self.deaths += 1
                raise self._broken() from error
            raise
        self._idle.put(session)
        return [found[name] for name in outputs]

    def _session(self) -> _Session:
        if self._process != os.getpid():  # forked: the sessions so far are the parent's
            self._process, self._idle = os.getpid(), queue.LifoQueue()
            self.close.detach()
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        if self.deaths >= MOST_DEATHS:
            raise self._broken()
        try:
            return _Session(self._content, self._arguments)
        except InputError:  # it says itself what is wrong
            raise
        except (EOFError, OSError, ValueError) as error:
            self.deaths += 1
            raise self._broken() from error

    def _broken(self) -> InputError:
        problem = "its graph fails, or takes more memory or time than it may"
        return InputError(f"{self.place}: cannot be run ({problem}); export the model again")


class _Session:
    """A process that has loaded the graph, and the connection to it; on Windows, the graph in this process."""

    def __init__(self, content: bytes, arguments: Mapping[str, Any]) -> None:
        self.child = None if sys.platform == "win32" else Child(__name__, arguments)
        if self.child is None:
            self.loaded = Loaded(content, arguments["threads"])
            self.head = self.loaded.describe()
            return
        try:
            _send(self.child.stream, {}, {"content": np.frombuffer(content, dtype=np.uint8)})
            from scipy import fft, ndimage  # noqa: F401 (a diagnosis needs them; the process loads the graph meanwhile)

            self.head, _ = _receive(self.child.stream)
            if "sentence" in self.head:
                raise InputError(self.head["sentence"])
        except BaseException:
            self.end()
            raise

    def run(self, outputs: Sequence[str], arrays: Mapping[str, Array], most: int) -> dict[str, Array]:
        """The outputs, each of so many bytes at most."""
        if self.child is None:
            return self.loaded.run(outputs, arrays)
        _send(self.child.stream, {"outputs": list(outputs)}, arrays)
        return _receive(self.child.stream, most)[1]

    def end(self) -> None:
        if self.child is not None:
            self.child.end()


def _end_all(idle: queue.LifoQueue[_Session]) -> None:
    while not idle.empty():
        idle.get_nowait().end()


def work(descriptor: int, threads: int, seconds: float, memory: int) -> None:
    """What a process does until its parent is gone."""
    stream = socket.socket(fileno=descriptor).makefile("rwb")
    with suppress(EOFError, OSError):
        content = _receive(stream)[1]["content"].tobytes()
        limit_process(memory)
        signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM ends the process
        try:
            loaded = Loaded(content, threads)
        except InputError as error:
            return _send(stream, {"sentence": str(error)}, {})
        _send(stream, loaded.describe(), {})
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0)
            order, arrays = _receive(stream)
            _send(stream, {}, loaded.run(order["outputs"], arrays, seconds))


class Loaded:
    """The graph in onnxruntime."""

    def __init__(self, content: bytes, threads: int) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # newer versions report home
        try:
            import onnxruntime
        except ImportError as error:
            raise InputError("running ONNX needs an extra; pip install 'bearcat[runtime]'") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait leave the core
        opened = partial(onnxruntime.InferenceSession, sess_options=options, providers=["CPUExecutionProvider"])
        try:
            self.sessions = {"windows": opened(content)}  # by what they take
        except Exception as error:  # onnxruntime raises a class for every kind of damage, all children of Exception
            raise InputError("is no ONNX file that onnxruntime can read; export the model again") from error
        with suppress(Exception):  # then the whole graph is used
            self.sessions[PREPARED] = opened(without_input(content))

    def describe(self) -> dict[str, Any]:
        session = self.sessions["windows"]
        inputs, outputs = (
            {node.name: list(node.shape[1:]) for node in nodes}
            for nodes in (session.get_inputs(), session.get_outputs())
        )
        if PREPARED not in self.sessions:
            outputs.pop(PREPARED, None)
        return {"metadata": session.get_modelmeta().custom_metadata_map, "inputs": inputs, "outputs": outputs}

    def run(self, outputs: Sequence[str], arrays: Mapping[str, Array], seconds: float = 0.0) -> dict[str, Array]:
        """By batches, each of which has so many seconds; 0: any number."""
        name = PREPARED if PREPARED in arrays else "windows"
        session, windows, parts = self.sessions[name], arrays[name], []
        for first in range(0, max(len(windows), 1), BATCH):
            if seconds:
                signal.setitimer(signal.ITIMER_REAL, seconds)
            parts.append(session.run(list(outputs), {**arrays, name: windows[first : first + BATCH]}))
        joined = [np.concatenate(part) for part in zip(*parts, strict=True)]
        return dict(zip(outputs, joined, strict=True))


def without_input(content: bytes) -> bytes:
    """An ONNX file whose graph begins where its input ends: it takes PREPARED, and keeps what is behind that.

    Read field by field as protocol buffers are (onnx.proto), so that no package but onnxruntime is needed.
    """
    model = _fields(content)
    graph = _fields(next(value for number, value, _ in model if number == 7))
    nodes = [(_fields(value), whole) for number, value, whole in graph if number == 1]
    needed = {_name(value, 1) for number, value, _ in graph if number == 12} - {PREPARED.encode()}
    kept = list[bytes]()
    for fields, whole in reversed(nodes):  # a node stands behind those whose values it takes
        if needed & {value for number, value, _ in fields if number == 2}:
            kept.insert(0, whole)
            needed |= {value for number, value, _ in fields if number == 1}
        needed.discard(PREPARED.encode())
    out, taken = bytearray(b"".join(kept)), {_name(value, 1) for number, value, _ in graph if number == 11}
    if taken & needed:
        raise ValueError("the network takes more than what its input makes")
    for number, value, whole in graph:
        name = _name(value, {5: 8, 11: 1, 12: 1}[number]) if number in (5, 11, 12) else None
        if number == 12 and name == PREPARED.encode():
            out += _field(11, value)
        elif number not in (1, 11, 13) and (number != 5 or name in needed):
            out += whole
    return b"".join(_field(7, bytes(out)) if number == 7 else whole for number, _, whole in model)


def _name(message: bytes, field: int) -> bytes:
    return next(value for number, value, _ in _fields(message) if number == field)


def _fields(message: bytes) -> list[tuple[int, bytes, bytes]]:
    """Number, value and all bytes of each field of a protocol buffer."""
    found, place = [], 0
    while place < len(message):
        start = place
        key, place = _varint(message, place)
        kind, first = key & 7, place
        if kind == 2:
            size, first = _varint(message, place)
            place = first + size
        elif kind == 0:
            _, place = _varint(message, place)
        else:
            place += {1: 8, 5: 4}[kind]
        found.append((key >> 3, message[first:place], message[start:place]))
    return found


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the place behind it."""
    value, shift = 0, 0
    while True:
        byte = message[place]
        value, place, shift = value | (byte & 127) << shift, place + 1, shift + 7
        if byte < 128:
            return value, place


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes."""
    size, length = bytearray(), len(value)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + value


def _send(stream: io.BufferedRWPair, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """A table of plain values, and arrays behind it."""
    kinds = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    text = json.dumps({"head": head, "arrays": kinds}).encode()
    stream.write(len(text).to_bytes(4, "little") + text)
    for array in arrays.values():
        stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    stream.flush()


def _receive(stream: io.BufferedRWPair, most: int = LARGEST) -> tuple[dict[str, Any], dict[str, Array]]:
    """What `_send` sent, in arrays of so many bytes at most; EOFError where the other side is gone, ValueError where it
    sends anything else.
    """
    size = int.from_bytes(_read(stream, 4), "little")
    message, arrays = json.loads(_read(stream, min(size, LARGEST))), {}
    for name, kind, shape in message["arrays"]:
        dtype = np.dtype(kind)
        if dtype.kind not in "fu" or math.prod(shape) * dtype.itemsize > most:
            raise ValueError(f"'{name}' is too large")
        content = _read(stream, math.prod(shape) * dtype.itemsize)
        arrays[name] = np.frombuffer(content, dtype=dtype).reshape(shape)
    return message["head"], arrays


def _read(stream: io.BufferedRWPair, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("the other side is gone")
    return content
