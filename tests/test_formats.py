"""Every file format gives back what an ordinary program wrote, whole and a block at a time."""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy import io as scipy_io
from scipy.io import wavfile

from bearcat.data.formats import FORMATS, read_channels, read_signals
from bearcat.errors import InputError

SIGNAL = np.random.default_rng(0).standard_normal(500).astype(np.float32)


def write(path: Path, signal: np.ndarray = SIGNAL, rate: int = 8000) -> Path:
    """The signal in the format of the path's suffix, as an ordinary program would write it."""
    kind = path.suffix
    if kind in (".csv", ".tsv", ".txt"):
        np.savetxt(path, signal)
    elif kind == ".npy":
        np.save(path, signal)
    elif kind == ".npz":
        np.savez(path, acceleration=signal)
    elif kind == ".mat":
        scipy_io.savemat(path, {"acceleration": signal[:, None]})
    elif kind == ".wav":
        wavfile.write(path, rate, signal)
    elif kind == ".flac":
        soundfile = pytest.importorskip("soundfile")
        soundfile.write(path, signal / 8, rate, subtype="PCM_24")
    else:
        with h5py.File(path, "w") as tree:
            tree.attrs["fs"], tree["acceleration"] = rate, signal
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_back_the_signal_written(tmp_path, suffix):
    signals = read_signals(write(tmp_path / f"one{suffix}"))
    name, samples = signals.pick(None)
    samples = samples * 8 if suffix == ".flac" else samples  # whose full scale is 1
    np.testing.assert_allclose(samples, SIGNAL, rtol=1e-6, atol=1e-6)
    assert name
    assert signals.rate == (8000 if suffix in (".h5", ".hdf5", ".flac", ".wav") else None)


def test_matlab_7_3_is_read_like_matlab_5(tmp_path):
    path = tmp_path / "new.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["acceleration"] = SIGNAL[None]
        file["fs"] = np.array([[25_600.0]])
        file["#refs#/a"] = SIGNAL
        file["table"] = np.arange(6, dtype=np.uint32)
        file["table"].attrs["MATLAB_object_decode"] = np.int32(3)
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    signals = read_signals(path)
    assert (list(signals.channels), signals.rate) == (["acceleration"], 25_600)
    np.testing.assert_array_equal(signals.channels["acceleration"], SIGNAL)


@pytest.mark.parametrize(
    ("text", "channels", "rate"),
    [
        ("1\n2\n4\n", ["1"], None),
        ("acceleration\n1\n2\n4\n", ["acceleration"], None),
        ("time,x\n0,1\n0.001,2\n0.002,4\n", ["x"], 1000.0),
        ("time [ms];x [g]\n0,0;1,5\n0,5;2,5\n1,0;4,5\n", ["x [g]"], 2000.0),
        ("0.0\t1\n0.1\t2\n0.2\t4\n", ["2"], 10.0),
        ("0,1\n1,2\n2,4\n", ["2"], None),
        (",x,y\n0,1,5\n1,2,6\n2,4,8\n", ["x", "y"], None),
        ("# made by a logger\n% on Monday\nx\ty\n1\t5\n2\t6\n4\t8\n", ["x", "y"], None),
        ("\ufeffx\r\n1\r\n2\r\n4\r\n", ["x"], None),
        ("Logger 5\nserial;77\n\nx;y\n1,5;2\n2,5;2\n4,5;3\n", ["x", "y"], None),
        ("1 5\n2 6\n4 8\n", ["1", "2"], None),
        ("1e-3,nan\n2e-3,1\n4e-3,1\n", ["1", "2"], None),
        ("Time;x;y\nms;m/s²;\n0,0;1;5\n0,5;2;6\n1,0;4;8\n", ["x", "y"], 2000.0),
        ("Time,x\n[ms],(g)\n0.0,1\n0.5,2\n1.0,4\n", ["x"], 2000.0),
        ("x,s\n1,5\n2,6\n4,8\n", ["x", "s"], None),
        ("x;y;\n1,5;2;\n2,5;3;\n4,5;4;\n", ["x", "y"], None),
        ("x;y\n1,5;2;\n2,5;3;\n4,5;4;\n", ["x", "y"], None),
        ("\ufeff# by hand\nmeasured on Monday\ntime a b\r0 1 5\r0.1 2 6\r0.2 4 8\r", ["a", "b"], 10.0),
        ("time_ms,x\n0,1\n1,2\n2,4\n", ["x"], 1000.0),
        ("Time,Acc.X,T\n0,1,5\n0.1,2,5\n0.2,4,8\n", ["Acc.X", "T"], 10.0),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_text_files_as_people_export_them(tmp_path, text, channels, rate, encoding):
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode(encoding) if encoding == "utf-8" or "\ufeff" not in text else text.encode())
    signals = read_signals(path)
    assert (list(signals.channels), signals.rate) == (channels, rate)
    assert all(len(samples) == 3 for samples in signals.channels.values())


def test_an_absent_or_unreadable_file_is_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"gone\.csv: .*no such file"):
        read_signals(tmp_path / "gone.csv", "gone.csv")
    path = write(tmp_path / "x.csv")

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"x\.csv: permission denied"):
        read_signals(path)


@pytest.mark.parametrize(("suffix", "module"), [(".mat", "h5py"), (".flac", "soundfile")])
def test_a_missing_extra_prints_its_command(tmp_path, monkeypatch, suffix, module):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"MATLAB 7.3 MAT-file" + bytes(600))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[formats\]'"):
        read_channels(path, path.name)


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


def check_samples(path: Path, channel: str | None, expected: np.ndarray, rate: float | None) -> None:
    signals = read_signals(path)
    assert signals.rate == rate
    assert signals.pick(channel)[1].dtype == np.float32
    np.testing.assert_array_equal(signals.pick(channel)[1], expected.astype(np.float32))


@pytest.mark.parametrize("stored", ["u1", "<i2", "24 bits", "<i4", "<f4", "<f8"])
def test_wav_files_have_full_scale_one(tmp_path, stored):
    path, values = tmp_path / "a.wav", np.stack([noise(3000), noise(3000, 1)], axis=1).clip(-4, 4) / 5
    if stored == "24 bits":
        with wave.open(str(path), "wb") as file:
            file.setparams((2, 3, 12_000, 0, "NONE", ""))
            file.writeframes((values * 2**23).astype("<i4").reshape(-1, 1).view(np.uint8)[:, :3].tobytes())
    else:
        kind = np.dtype(stored)
        scale = {"f": 1.0, "i": 2.0 ** (8 * kind.itemsize - 1), "u": 128.0}[kind.kind]
        wavfile.write(path, 12_000, (scale * values + (kind.kind == "u") * 128).astype(kind))
    signals = read_signals(path)
    assert signals.rate == 12_000
    np.testing.assert_allclose(signals.channels["2"], values[:, 1], atol=0.01 if stored == "u1" else 1e-4)


def test_arrays_are_read_however_they_lie(tmp_path):
    values = np.stack([noise(3000, seed) for seed in range(3)])
    stored = {
        "by_row": values, "by_column": np.asfortranarray(values.T), "flat": values[1][None, :, None].astype(">f8"),
        "fs": np.array([[12_000]]), "words": np.array(["a", "b"]), "nothing": np.empty(0), "number": np.array(3.5),
    }  # fmt: skip
    np.savez_compressed(tmp_path / "a.npz", **stored)
    scipy_io.savemat(tmp_path / "a.mat", stored)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, value in stored.items():
            if value.dtype.kind != "U":
                file[name] = value
    expected = {"by_row.1": values[0], "by_row.3": values[2], "by_column.3": values[2], "flat": values[1]}
    for suffix in ("npz", "mat", "h5"):
        for channel, samples in expected.items():
            check_samples(tmp_path / f"a.{suffix}", channel, samples, 12_000)
    np.save(tmp_path / "a.npy", stored["by_column"])
    check_samples(tmp_path / "a.npy", "2", values[1], None)
