"""Hostile files: each is refused in a sentence, in bounded memory and time, and the next file is read as ever."""

from __future__ import annotations

import os
import signal
import struct
import time
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import savemat, wavfile

from bearcat.data import isolated
from bearcat.data.isolated import open_stream, open_upload
from bearcat.data.signals import TooLargeError
from bearcat.errors import InputError

MOST = 2**22
MAT_HEAD = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"


def part(kind: int, content: bytes) -> bytes:
    """Of a MATLAB v5 matrix."""
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(flags: int, axes: tuple[int, ...], *parts: bytes) -> bytes:
    head = part(6, struct.pack("<II", flags, 0)) + part(5, struct.pack(f"<{len(axes)}i", *axes)) + part(1, b"a")
    return part(14, head + b"".join(parts))


CRASH = MAT_HEAD + matrix(6, (1, 1), part(99, bytes(8)))  # a data type that there is not: 479 bytes were enough


def npy_of(shape: str) -> bytes:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + b"\0" * 64


def hostile_files(folder: Path) -> dict[str, Path]:
    """Files of some kilobytes that would become 8 MB or more, or say so, or that break a parser."""
    zeros = np.zeros(2**20)
    np.savez_compressed(folder / "zeros.npz", a=zeros)
    savemat(folder / "zeros.mat", {"a": zeros}, do_compression=True)
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


def samples_of(path: Path, channel: str | None = None, seconds: float = 60) -> np.ndarray:
    with opened(path, channel, seconds) as stream:
        return np.concatenate(list(stream.blocks))


def opened(path: Path, channel: str | None = None, seconds: float = 60):
    return open_upload(path, channel, path.name, time.monotonic() + seconds, MOST)


@pytest.fixture
def honest(tmp_path) -> Path:
    savemat(tmp_path / "honest.mat", {"a": np.arange(400_000.0), "fs": 12_000})
    return tmp_path / "honest.mat"


@contextmanager
def own(path: Path):
    yield open_stream(path, "a")


def forking() -> int:
    """The process that forks a child for each file."""
    return isolated._forking[os.getpid()][0].pid


def child() -> str:
    """The number of the latest child."""
    return Path(f"/proc/{forking()}/task/{forking()}/children").read_text().split()[-1]


def test_hostile_files_are_one_sentence_each_and_the_next_file_is_read(honest, tmp_path):
    (tmp_path / "hostile").mkdir()
    pids = set()
    for name, path in hostile_files(tmp_path / "hostile").items():
        with pytest.raises(InputError, match=f"^{name}: ") as raised:
            samples_of(path)
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 500
        if name.startswith("zeros") or name == "line.csv":
            assert isinstance(raised.value, TooLargeError), name
        pids |= {forking()} if isolated.is_risky(path) else set()
    assert len(pids) == 1, "no file ends the process that forks"
    assert np.array_equal(samples_of(honest, "a"), np.arange(400_000, dtype=np.float32))


def test_a_relative_path_is_of_the_folder_one_is_in(tmp_path, monkeypatch):
    for name in ("here", "there"):  # the process that forks was started in the first
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        np.savez(f"{name}.npz", x=np.arange(8.0))
        assert np.array_equal(samples_of(Path(f"{name}.npz")), np.arange(8.0))


def test_refusals_keep_their_field(honest):
    savemat(honest, {"a": np.arange(9.0), "b": np.arange(9.0)})
    for channel in (None, "c"):
        with pytest.raises(InputError) as raised:
            samples_of(honest, channel)
        assert raised.value.field == "channel"


def test_a_stream_can_be_left_and_a_late_one_ends(honest):
    with opened(honest) as stream:
        assert next(stream.blocks)[1] == 1
    with pytest.raises(TimeoutError):
        samples_of(honest, seconds=0)
    assert samples_of(honest).size == 400_000


def test_a_process_that_was_killed_is_a_sentence_and_started_again(honest):
    for group in (False, True):
        with opened(honest) as stream:
            if group:
                os.killpg(forking(), signal.SIGKILL)
                isolated._forking[os.getpid()][0].wait()
            else:
                os.kill(int(child()), signal.SIGKILL)
            with pytest.raises(InputError, match=r"honest\.mat"):
                list(stream.blocks)
        assert samples_of(honest).size == 400_000


def test_a_child_writes_nothing_has_limits_and_no_secrets(honest, monkeypatch):
    isolated._forking_process()
    isolated._end(*isolated._forking[os.getpid()])
    monkeypatch.setenv("BEARCAT_TOKEN", "secret-of-the-server")
    for open_file, most in ((opened, 3 * MOST + 2**26), (own, 2**30 + 16 * honest.stat().st_size)):
        with open_file(honest):
            limits = Path(f"/proc/{child()}/limits").read_text()
            size = 1024 * int(Path(f"/proc/{child()}/status").read_text().split("VmSize:")[1].split()[0])
            for process in (forking(), child()):
                assert b"secret" not in Path(f"/proc/{process}/environ").read_bytes()
        rows = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()}
        assert (rows["Max file size"], rows["Max core file size"]) == ("0", "0")
        assert int(rows["Max address space"]) < size + most


def test_a_small_file_of_ones_own_that_unpacks_without_end_is_refused(tmp_path):
    with h5py.File(tmp_path / "zeros.h5", "w") as tree:
        tree.create_dataset("a", shape=(2**36,), dtype="f4", chunks=(2**16,))
    with pytest.raises(InputError, match=r"zeros\.h5"):
        open_stream(tmp_path / "zeros.h5")


def test_flac_is_flac_alone(tmp_path):
    wavfile.write(tmp_path / "a.flac", 12_000, np.zeros(1000, dtype=np.int16))
    with pytest.raises(InputError, match="FLAC"):
        open_stream(tmp_path / "a.flac")


def test_every_dataset_reads_risky_files_in_a_child(tmp_path):
    """As the published ones lie on disk: a file that crashes is named."""
    from bearcat.data.benches import CWRU, HITSM, Paderborn

    (tmp_path / "mfs").mkdir()
    for name in ("97.mat", "N15_M07_F10_KA04_1.mat", "mfs/IR2_600.mat"):
        (tmp_path / name).write_bytes(CRASH)
    for dataset in (CWRU(tmp_path), Paderborn(tmp_path), HITSM(tmp_path)):
        (entry,) = dataset.catalogue().entries
        with pytest.raises(InputError, match=r"\.mat: cannot be read"):
            entry.read()
