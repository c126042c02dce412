"""Mutated recordings and odd fields of a query: none may end what reads it, nor be its fault."""

from __future__ import annotations

import io
import random
import struct
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import savemat, wavfile

from tests.commands import bearcat
from tests.test_formats import write
from tests.test_serve import RATE, Server

SEEDS = (0, 1, 2)
KNOWN = ("--rpm", "1500", "--bearing", "6205", "--format", "csv")
READING = {  # command → its words before and behind the folder
    "diagnose": ((), KNOWN), "predict": (("general",), KNOWN), "data check": ((), KNOWN),
    "watch": ((), (*KNOWN, "--once", "--store", "store.db")),
}  # fmt: skip
NUMBERS = ("0", "-1", "1e300", "5e-324", "nan", "inf", "9" * 400)
TEXTS = ("", " ", "x" * 300, "\x1b[2J", "=1+1", "../..", "\u202e", '"')
BEARINGS = ("balls=1,ball=5e-324,pitch=1", "balls=9,ball=nan,pitch=1", "balls=3,ball=3,pitch=1", "=", *TEXTS)

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
        files["one.flac"] = write(Path(folder) / "x.flac", values, 12_000).read_bytes()
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


def mutations(count: int, seed: int) -> dict[str, bytes]:
    """Mutated files, the formats in turn, by name."""
    chance, files = random.Random(seed), honest_files()
    names = list(files) * (1 + count // len(files))
    return {
        f"{number}-{name}": mutated(files[name], chance, list(files.values()))
        for number, name in enumerate(names[:count])
    }


def harmless(status: int, said: str, statuses: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    """A decision or a sentence, which a terminal shows and does not obey."""
    assert status in statuses, said
    assert "\x1b" not in said


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("command", READING)
def test_every_mutated_recording_is_answered_or_named(tmp_path, command, seed):
    files = mutations(60, seed)
    (tmp_path / "all" / "pump").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "all" / "pump" / name).write_bytes(content)
    before, behind = READING[command]
    words = (*command.split(), *before, tmp_path / "all", *behind)
    fresh = command == "data check"  # whose warnings of numbers that are none are no errors there
    found = bearcat(*words, folder=tmp_path, fresh=fresh)
    harmless(found.returncode, found.stdout + found.stderr)
    if command in ("diagnose", "predict"):
        assert [name for name in files if name not in found.stdout] == []
    rows = [f"pump/{name},pump,,{number}" for number, name in zip(NUMBERS * 9, files, strict=False)]
    listed = "\n".join(["path,domain,label,rpm", *rows]).encode()
    (tmp_path / "all" / "manifest.csv").write_bytes(mutated(listed, random.Random(seed), [listed]))
    found = bearcat(*words, folder=tmp_path, fresh=fresh)
    harmless(found.returncode, found.stdout + found.stderr)


def test_the_server_answers_or_refuses_every_mutated_recording_and_goes_on(tmp_path):
    server, chance = Server(tmp_path, "general"), random.Random(0)
    fields = {"rate": NUMBERS, "rpm": NUMBERS, "bearing": BEARINGS, "channel": TEXTS, "picture": ("true", *TEXTS)}
    for number, (name, content) in enumerate(mutations(400, 0).items()):
        odd = {field: chance.choice(fields[field]) for field in chance.sample(list(fields), 2)} if number % 2 else {}
        answer = server.upload(name, content, **{"rate": RATE, "rpm": 1500, "bearing": "6205"} | odd)
        assert answer.status_code in (200, 408, 413, 422), (name, odd, answer.text)
    assert not any("Traceback" in line for line in server.stop())


def test_files_that_once_broke_something_are_named():
    found = Path(__file__).parents[1] / "found"
    names = [path.name for path in found.iterdir() if path.is_file() and path.suffix != ".db"]
    printed = bearcat("diagnose", found, *KNOWN)
    assert len(names) >= 4
    assert [name for name in names if name not in printed.stdout] == []
