"""Every file format, and every way a file can be bad: one sentence that names it."""

from __future__ import annotations

import io
import os
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import io as scipy_io
from scipy.io import wavfile

from bearcat.data.formats import FORMATS, read_signals
from bearcat.errors import InputError

SIGNAL = np.random.default_rng(0).standard_normal(500).astype(np.float32)
OTHER = SIGNAL[::-1].copy()


def write(path: Path, signal: np.ndarray = SIGNAL) -> Path:
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
        wavfile.write(path, 8000, signal)
    else:
        parquet.write_table(pa.table({"acceleration": signal}), path)
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_back_the_signal_written(tmp_path, suffix):
    name, samples = read_signals(write(tmp_path / f"one{suffix}")).pick(None)
    np.testing.assert_allclose(samples, SIGNAL, rtol=1e-6)
    assert name


def test_matlab_7_3_is_read_like_matlab_5(tmp_path):
    path = tmp_path / "new.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["acceleration"] = SIGNAL[None]
        file["fs"] = np.array([[25_600.0]])
        file["#refs#/a"] = SIGNAL
    head = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"
    with path.open("r+b") as file:
        file.write(head)
    signals = read_signals(path)
    assert list(signals.channels) == ["acceleration"]
    assert signals.rate == 25_600
    np.testing.assert_array_equal(signals.channels["acceleration"], SIGNAL)


@pytest.mark.parametrize("name", ["fs", "Fs", "sampling_rate", "SampleRate"])
def test_a_rate_stored_beside_the_signal_is_found(tmp_path, name):
    scipy_io.savemat(tmp_path / "a.mat", {"x": SIGNAL, name: 12_000})
    np.savez(tmp_path / "a.npz", **{"x": SIGNAL, name: np.array(12_000)})  # type: ignore[arg-type]
    assert read_signals(tmp_path / "a.mat").rate == 12_000
    assert read_signals(tmp_path / "a.npz").rate == 12_000


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
    ],
)
def test_text_files_as_people_export_them(tmp_path, text, channels, rate):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    signals = read_signals(path)
    assert list(signals.channels) == channels
    assert signals.rate == rate
    assert all(len(one) == 3 for one in signals.channels.values())


def test_times_rounded_in_the_file_still_give_the_rate(tmp_path):
    table = np.column_stack([np.round(np.arange(500) / 51_200, 6), SIGNAL])
    np.savetxt(tmp_path / "x.csv", table, delimiter=",", header="time,x", comments="", fmt="%.6f")
    assert read_signals(tmp_path / "x.csv").rate == pytest.approx(51_200, rel=1e-3)


@pytest.mark.parametrize("sample", [np.uint8, np.int16, np.int32, np.float32])
def test_wav_files_have_full_scale_one(tmp_path, sample):
    wanted = np.array([0.0, 0.5, -0.5, 0.25] * 10)
    if sample is np.float32:
        stored = wanted.astype(sample)
    else:
        full = np.iinfo(sample).max + 1
        stored = (wanted * full).astype(sample) if sample != np.uint8 else ((wanted + 1) * full / 2).astype(sample)
    wavfile.write(tmp_path / "x.wav", 8000, np.column_stack([stored, stored[::-1]]))
    signals = read_signals(tmp_path / "x.wav")
    assert list(signals.channels) == ["1", "2"]
    assert signals.rate == 8000
    np.testing.assert_allclose(signals.channels["1"], wanted, atol=0.01)


def test_wav_files_of_24_bits(tmp_path):
    with wave.open(str(tmp_path / "x.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(3)
        file.setframerate(8000)
        file.writeframes(b"".join(int(v * 2**23).to_bytes(3, "little", signed=True) for v in (0.5, -0.5, 0.25)))
    np.testing.assert_allclose(read_signals(tmp_path / "x.wav").channels["1"], [0.5, -0.5, 0.25], atol=1e-6)


def test_tables_of_channels_go_by_name_and_the_longer_axis_is_time(tmp_path):
    np.save(tmp_path / "x.npy", np.stack([SIGNAL, OTHER]))
    np.save(tmp_path / "y.npy", np.stack([SIGNAL, OTHER], axis=1))
    for name in ("x.npy", "y.npy"):
        signals = read_signals(tmp_path / name)
        np.testing.assert_array_equal(signals.pick("2")[1], OTHER)
        with pytest.raises(InputError, match=rf"{name}: holds 2 channels \(1, 2\); say which one with --channel"):
            signals.pick(None)
    scipy_io.savemat(tmp_path / "z.mat", {"DE": SIGNAL, "FE": OTHER})
    with pytest.raises(InputError, match=r"z\.mat: has no channel 'De_'; did you mean 'DE'\?"):
        read_signals(tmp_path / "z.mat").pick("De_")


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_empty_file_is_named(tmp_path, suffix):
    (tmp_path / f"x{suffix}").write_bytes(b"")
    with pytest.raises(InputError, match=rf"x\{suffix}: is empty \(0 bytes\)"):
        read_signals(tmp_path / f"x{suffix}")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".mat", ".wav", ".parquet"])
@pytest.mark.parametrize("damage", ["cut short", "other bytes", "one byte"])
def test_a_damaged_file_is_named_with_its_kind(tmp_path, suffix, damage):
    path = write(tmp_path / f"x{suffix}")
    whole = path.read_bytes()
    path.write_bytes({"cut short": whole[: len(whole) // 2], "other bytes": b"\x07" * 300, "one byte": b"M"}[damage])
    with pytest.raises(InputError, match=rf"x\{suffix}: .*(cannot be read as|no numeric signal)") as raised:
        read_signals(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff\xfe1\x00\n\x00", "is not UTF-8 text"),
        ("µm/s²\n1\n".encode("latin-1"), "is not UTF-8 text .byte 0xb5 at position 0."),
        (b"1,2\n3\n4,5\n", "cannot be read as a .csv file"),
        (b"1\nabc\n3\n", "cannot be read as a .csv file"),
        (b"hello\nworld\n", "no row holds numbers only"),
        (b"# nothing\n\n", "holds no rows"),
        (b"time,x\n0,1\n1,2\n9,3\n10,3\n11,3\n12,3\n13,3\n14,3\n15,3\n", "not evenly spaced"),
        (b"time,x\n3,1\n2,2\n1,3\n", "do not rise"),
    ],
)
def test_bad_text_is_named(tmp_path, content, sentence):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InputError, match=f"x.csv: .*{sentence}"):
        read_signals(tmp_path / "x.csv")


def test_pickled_arrays_are_never_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"x\.npy: cannot be read as a \.npy file"):
        read_signals(tmp_path / "x.npy")


def test_a_file_without_a_signal_is_named(tmp_path):
    scipy_io.savemat(tmp_path / "x.mat", {"note": "hello", "n": 5})
    with pytest.raises(InputError, match=r"x\.mat: holds no numeric signal"):
        read_signals(tmp_path / "x.mat")
    np.save(tmp_path / "x.npy", np.zeros((3, 4, 5)))
    with pytest.raises(InputError, match="3 axes"):
        read_signals(tmp_path / "x.npy")


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.csv: there is no such file"):
        read_signals(tmp_path / "gone.csv", "gone.csv")
    with pytest.raises(InputError, match=r"x\.docx: unknown format '\.docx'"):
        read_signals(tmp_path / "x.docx")


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Not root, for whom no file is unreadable."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs Unix permissions")
def test_an_unreadable_file_is_named(tmp_path):
    path = write(tmp_path / "x.csv")
    path.chmod(0)
    with ordinary_user(), pytest.raises(InputError, match=r"x\.csv: permission denied"):
        read_signals(path)


@pytest.mark.parametrize(("suffix", "module"), [(".parquet", "pyarrow"), (".mat", "h5py")])
def test_a_missing_extra_prints_its_command(tmp_path, monkeypatch, suffix, module):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"MATLAB 7.3 MAT-file" + bytes(600))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[formats\]'"):
        read_signals(path)


def test_a_stream_of_bytes_can_be_a_matlab_file():
    from bearcat.data.formats import read_mat

    buffer = io.BytesIO()
    scipy_io.savemat(buffer, {"x": SIGNAL})  # type: ignore[arg-type]
    buffer.seek(0)
    np.testing.assert_array_equal(read_mat(buffer, "x")["x"], SIGNAL)
