"""Hostile files: each is refused in a sentence, in bounded memory and time, and the next file is read as ever."""

from __future__ import annotations

import os
import resource
import signal
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.io import savemat, wavfile

from bearcat.data.isolated import Readers, open_stream
from bearcat.data.signals import TooLargeError
from bearcat.errors import InputError
from tests.test_formats import write_instrument

MOST = 2**22
MAT_HEAD = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"


def part(kind: int, content: bytes) -> bytes:
    """Of a MATLAB v5 matrix."""
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(flags: int, axes: tuple[int, ...], *parts: bytes) -> bytes:
    head = part(6, struct.pack("<II", flags, 0)) + part(5, struct.pack(f"<{len(axes)}i", *axes)) + part(1, b"a")
    return part(14, head + b"".join(parts))


def npy_of(shape: str) -> bytes:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + b"\0" * 64


def hostile_files(folder: Path) -> dict[str, Path]:
    """Files of some kilobytes that would become 8 MB or more, or say so, or that break a parser."""
    zeros = np.zeros(2**20)
    np.savez_compressed(folder / "zeros.npz", a=zeros)
    savemat(folder / "zeros.mat", {"a": zeros}, do_compression=True)
    parquet.write_table(pa.table({"a": zeros}), folder / "zeros.parquet", compression="zstd")
    parquet.write_table(pa.table({"a": ["long" * 1000] * 4000}), folder / "words.parquet")
    whole = (folder / "zeros.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with h5py.File(folder / "zeros73.mat", "w") as tree:
        tree.create_dataset("a", data=zeros, compression="gzip")
    with h5py.File(folder / "empty73.mat", "w") as tree:
        tree.create_dataset("a", shape=(2**40,), dtype="f8", chunks=(2**16,))
    (folder / "lie.npy").write_bytes(npy_of("(1000000000000,)"))
    (folder / "line.csv").write_bytes(b"1," * 50_000)
    for name, how in (("lie", 0), ("bzip2", zipfile.ZIP_BZIP2), ("lzma", zipfile.ZIP_LZMA)):
        with zipfile.ZipFile(folder / f"{name}.npz", "w", how) as members:
            members.writestr("a.npy", npy_of("(10000000,)") + bytes(2**20 if how else 0))
    with zipfile.ZipFile(folder / "many.npz", "w") as members:
        for number in range(4000):
            members.writestr(f"{number}.npy", b"")
    nobody = part(5, struct.pack("<i", 32)) + part(1, b"")  # a struct's fields: none
    deep = b""
    for _ in range(3000):
        deep = matrix(1, (1, 1), deep or matrix(6, (1, 1), part(9, bytes(8))))
    for name, content in {
        "structs": matrix(2, (1, 2_000_000), nobody),
        "objects": matrix(3, (2**31 - 1, 2**31 - 1), part(1, b"a"), nobody),
        "cells": matrix(1, (1000, 1000, 1000)),
        "cells in cells": deep,
        "blanks": matrix(4, (1, 2**30), part(16, b"")),
        "texts": matrix(4, (2**30, 0), part(16, b"")),
        "sparse": matrix(5, (2**20, 2**20), part(5, b""), part(5, bytes(8)), part(9, b"")),
        "numbers": matrix(6, (2**30, 1), part(9, bytes(8))),
        "crash": matrix(6, (1, 1), part(99, bytes(8))),  # a type that there is not
    }.items():
        (folder / f"{name}.mat").write_bytes(MAT_HEAD + content)
        if "struct" not in name:
            packed = zlib.compress(content)
            (folder / f"{name}, packed.mat").write_bytes(MAT_HEAD + struct.pack("<II", 15, len(packed)) + packed)
    (folder / "texts of v4.mat").write_bytes(struct.pack("<5i", 51, 2**30, 0, 0, 2) + b"a\0")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    with Readers(1, MOST) as readers:
        yield readers


def samples_of(readers: Readers, path: Path, channel: str | None = None, seconds: float = 60) -> np.ndarray:
    with readers.open_stream(path, channel, path.name, time.monotonic() + seconds) as stream:
        return np.concatenate(list(stream.blocks))


@pytest.fixture
def honest(tmp_path) -> Path:
    savemat(tmp_path / "honest.mat", {"a": np.arange(400_000.0), "fs": 12_000})
    return tmp_path / "honest.mat"


def test_hostile_files_are_one_sentence_each_and_the_next_file_is_read(readers, honest, tmp_path):
    (tmp_path / "hostile").mkdir()
    pids = set()
    for name, path in hostile_files(tmp_path / "hostile").items():
        with pytest.raises(InputError, match=f"^{name}: ") as raised:
            samples_of(readers, path)
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 500
        if name.startswith("zeros") or name == "line.csv":
            assert isinstance(raised.value, TooLargeError), name
        pids.add(readers._idle[True].queue[0].child.process.pid)
    assert len(pids) == 1, "no file ends the reader itself"
    assert np.array_equal(samples_of(readers, honest, "a"), np.arange(400_000, dtype=np.float32))


def test_every_format_gives_the_same_samples_as_in_this_process(readers, tmp_path):
    values = np.random.default_rng(0).standard_normal(400_000).astype(np.float32)
    np.savez_compressed(tmp_path / "a.npz", a=values, fs=12_000)
    parquet.write_table(pa.table({"a": values}), tmp_path / "a.parquet")
    np.save(tmp_path / "a.npy", values)
    with h5py.File(tmp_path / "a.mat", "w") as tree:
        tree["a"] = values
    for name in ("a.npz", "a.parquet", "a.npy", "a.mat"):
        assert np.array_equal(samples_of(readers, tmp_path / name), values), name
    with readers.open_stream(tmp_path / "a.npz", None, "it", time.monotonic() + 60) as stream:
        assert (stream.origin, stream.rate) == ("it", 12_000)


def test_a_relative_path_is_of_the_folder_one_is_in(readers, tmp_path, monkeypatch):
    for name in ("here", "there"):  # the reader was started in the first
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        np.savez(f"{name}.npz", x=np.arange(8.0))
        with readers.open_stream(Path(f"{name}.npz"), None, name, until=time.monotonic() + 30) as stream:
            assert np.array_equal(np.concatenate(list(stream.blocks)), np.arange(8.0))


def test_refusals_keep_their_field(readers, honest):
    savemat(honest, {"a": np.arange(9.0), "b": np.arange(9.0)})
    for channel in (None, "c"):
        with pytest.raises(InputError) as raised:
            samples_of(readers, honest, channel)
        assert raised.value.field == "channel"


def test_a_stream_can_be_left_and_a_late_one_ends(readers, honest):
    with readers.open_stream(honest, None, "it", time.monotonic() + 60) as stream:
        assert next(stream.blocks)[1] == 1
    with pytest.raises(TimeoutError):
        samples_of(readers, honest, seconds=0)
    with readers.open_stream(honest, None, "it", time.monotonic() + 60), pytest.raises(TimeoutError):
        samples_of(readers, honest, seconds=0.1)  # the only reader is busy
    assert samples_of(readers, honest).size == 400_000


def test_a_reader_that_was_killed_is_started_again(readers, honest):
    with readers.open_stream(honest, None, honest.name, time.monotonic() + 60) as stream:
        os.killpg(stream.blocks.gi_frame.f_locals["self"].child.process.pid, signal.SIGKILL)
        with pytest.raises(InputError, match=r"honest\.mat"):
            list(stream.blocks)
    assert samples_of(readers, honest).size == 400_000


def test_a_reader_whose_connection_was_collected_as_garbage_is_started_again(readers, honest):
    with readers.open_stream(honest, None, honest.name, time.monotonic() + 60) as stream:
        next(stream.blocks)
    readers._idle[True].queue[0].child.stream.close()  # as the collector does, after the stream's own end or before
    assert samples_of(readers, honest).size == 400_000
    with readers.open_stream(honest, None, honest.name, time.monotonic() + 60) as stream:
        stream.blocks.gi_frame.f_locals["self"].child.stream.close()
    assert samples_of(readers, honest).size == 400_000


def test_a_reader_writes_nothing_and_has_limits(readers, honest):
    with readers.open_stream(honest, None, honest.name, time.monotonic() + 60) as stream:
        reader = stream.blocks.gi_frame.f_locals["self"].child.process.pid
        (child,) = Path(f"/proc/{reader}/task/{reader}/children").read_text().split()
        limits = Path(f"/proc/{child}/limits").read_text()
        size = 1024 * int(Path(f"/proc/{child}/status").read_text().split("VmSize:")[1].split()[0])
    found = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()}
    assert (found["Max file size"], found["Max core file size"]) == ("0", "0")
    assert int(found["Max address space"]) < size + 3 * MOST + 2**26


def test_a_file_of_ones_own_has_limits_by_its_size_and_its_reader_no_secrets(honest, monkeypatch):
    monkeypatch.setenv("BEARCAT_TOKEN", "secret-of-the-server")
    with Readers(None) as own, own.open_stream(honest, None, honest.name, time.monotonic() + 60) as stream:
        reader = stream.blocks.gi_frame.f_locals["self"].child.process.pid
        (child,) = Path(f"/proc/{reader}/task/{reader}/children").read_text().split()
        limits = Path(f"/proc/{child}/limits").read_text()
        size = 1024 * int(Path(f"/proc/{child}/status").read_text().split("VmSize:")[1].split()[0])
        assert b"secret" not in Path(f"/proc/{reader}/environ").read_bytes()
        assert b"secret" not in Path(f"/proc/{child}/environ").read_bytes()
    found = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()}
    assert int(found["Max address space"]) < size + 2**30 + 16 * honest.stat().st_size


def test_a_small_file_that_unpacks_without_end_is_refused_where_it_is_ones_own(tmp_path):
    with h5py.File(tmp_path / "zeros.h5", "w") as tree:
        tree.create_dataset("a", shape=(2**36,), dtype="f4", chunks=(2**16,))
    with pytest.raises(InputError, match=r"zeros\.h5"):
        open_stream(tmp_path / "zeros.h5")


def test_a_measurement_file_that_announces_more_than_it_holds_is_a_sentence_in_bounded_memory(tmp_path):
    """Also on the command line, where its library once took 4.3 GB."""
    path = write_instrument(tmp_path / "a.mf4", {"a": np.zeros(1000)}, 12_000)
    content = bytearray(path.read_bytes())
    place = content.index(b"##CG") + 24 + 6 * 8 + 8  # behind the head, six links and the number of its records' kind
    assert content[place : place + 8] == struct.pack("<Q", 1000)
    content[place : place + 8] = struct.pack("<Q", 2**33)
    path.write_bytes(content)
    with Readers(None) as own, pytest.raises(InputError, match=r"a\.mf4"):
        samples_of(own, path)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1.5e6  # kB


def test_flac_is_flac_alone(tmp_path):
    wavfile.write(tmp_path / "a.flac", 12_000, np.zeros(1000, dtype=np.int16))
    with pytest.raises(InputError, match="FLAC"):
        open_stream(tmp_path / "a.flac")
