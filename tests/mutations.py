"""Honest recordings of every format, and mutations of any content."""

from __future__ import annotations

import io
import random
import struct
import tempfile
from pathlib import Path

import h5py
import numpy as np
from scipy.io import savemat, wavfile

from tests.test_formats import write_instrument

WORDS = [struct.pack(form, value) for form in ("<i", ">i", "<q") for value in (-1, 2**31 - 1, -(2**31), 0, 1, 2**30)]


def honest_files(samples: int = 1024) -> dict[str, bytes]:
    """A small recording of each format and of each way of writing it, by a name whose ending says the format."""
    values = np.random.default_rng(0).standard_normal(samples).astype(np.float32)
    files: dict[str, bytes] = {}

    def keep(name: str, write) -> None:
        file = io.BytesIO()
        write(file)
        files[name] = file.getvalue()

    keep("float.wav", lambda file: wavfile.write(file, 12_000, values))
    keep("stereo.wav", lambda file: wavfile.write(file, 12_000, (values[:, None] * [[9000, 900]]).astype(np.int16)))
    keep("one.npy", lambda file: np.save(file, values))
    keep("packed.npz", lambda file: np.savez_compressed(file, a=values, fs=12_000))
    keep("stored.npz", lambda file: np.savez(file, a=values))
    channels = np.array([("force", values), ("vibration_1", values)], dtype=[("Name", object), ("Data", object)])
    keep("plain.mat", lambda file: savemat(file, {"a": values, "fs": 12_000.0}))
    keep("struct.mat", lambda file: savemat(file, {"N": {"Y": channels, "note": ["a", "b"]}, "a": values}))
    keep("packed.mat", lambda file: savemat(file, {"a": values}, do_compression=True))
    keep("old.mat", lambda file: savemat(file, {"a": values}, format="4"))
    keep("seven.mat", lambda file: _hdf5(file, values))
    keep("tree.h5", lambda file: _hdf5(file, values))
    with tempfile.TemporaryDirectory() as folder:
        files["one.flac"] = write_instrument(Path(folder) / "x.flac", {"a": values}, 12_000).read_bytes()
    rows = [f"{number / 12_000:.6f},{value:.5g}" for number, value in enumerate(values)]
    files["table.csv"] = "\n".join(["time,a", *rows]).encode()
    files["german.txt"] = (
        "\n".join(f"{number};{value:.5f}" for number, value in enumerate(values)).replace(".", ",").encode()
    )
    files["bare.tsv"] = "\n".join(f"{value:.5g}" for value in values).encode()
    return files


def _hdf5(file: io.BytesIO, values: np.ndarray) -> None:
    with h5py.File(file, "w") as tree:
        tree.create_dataset("a", data=values, compression="gzip", chunks=(256,))
        tree["group/text"] = "a note"


def mutated(content: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """The content with one to eight changes; heads and tails, where formats keep their structure, are hit more often."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        size = len(data)
        if size < 2:
            break
        near = min(size, 300)
        place = chance.choice((chance.randrange(size), chance.randrange(near), size - 1 - chance.randrange(near)))
        kind = chance.randrange(5)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            word = chance.choice(WORDS)
            data[place : place + len(word)] = word
        elif kind == 2:
            del data[place : place + chance.randrange(1, 64)]
        elif kind == 3:
            del data[chance.randrange(1, size) :]
        else:
            other = chance.choice(others)
            start = chance.randrange(len(other))
            data[place:place] = other[start : start + chance.randrange(1, 64)]
    return bytes(data)
