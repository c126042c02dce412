"""New recordings: streaming equals reading whole, memory stays flat, and the exit status says what was found."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import wave
import zipfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from scipy import io as scipy_io
from scipy import signal as processing
from scipy.io import wavfile

from bearcat.calibration import Calibration
from bearcat.cli import main
from bearcat.data import stream as module
from bearcat.data.formats import read_signals
from bearcat.deploy.export import export_onnx
from bearcat.deploy.predict import (
    alarm_classes,
    at_rate_of,
    cut_stream,
    diagnose_stream,
    find_files,
    look_at,
    open_model,
    open_stream,
    resampled,
)
from bearcat.errors import InputError
from bearcat.trust.pooling import diagnose, tally
from tests.test_artefact import familiar_with, made_model, save_model
from tests.test_cli import bearcat

quick = settings(max_examples=40, deadline=None)


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: words → exit status, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bearcat", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return call


def write_24_bits(path: Path, values: np.ndarray, rate: int) -> None:
    """Whole numbers (time,) or (time, channel) as a wav file of three bytes a sample."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if values.ndim == 1 else values.shape[1]), file.setsampwidth(3), file.setframerate(rate)
        file.writeframes(values.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :3].tobytes())


def in_blocks(signal: np.ndarray, sizes: list[int]):
    """The signal in blocks of these sizes, again and again, to its end."""
    start, turn = 0, 0
    while start < signal.size:
        yield signal[start : start + sizes[turn % len(sizes)]]
        start, turn = start + sizes[turn % len(sizes)], turn + 1


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "model", made_model())
    export_onnx(made_model(), folder / "model.onnx")
    return folder


@quick
@given(
    samples=st.integers(0, 400), length=st.integers(2, 50), step=st.integers(1, 80), batch=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=4),
)  # fmt: skip
def test_cutting_blocks_is_cutting_the_whole(samples, length, step, batch, sizes):
    signal = np.arange(samples, dtype=np.float32)
    expected = [signal[at : at + length].tolist() for at in range(0, samples - length + 1, step)]
    found = list(cut_stream(in_blocks(signal, sizes), length, step, batch))
    assert [row for _, rows in found for row in rows.tolist()] == expected
    assert [int(rows[0, 0]) for _, rows in found] == [start for start, _ in found]
    assert all(len(rows) <= batch for _, rows in found)


@quick
@given(
    samples=st.integers(1, 3000), up=st.integers(1, 9), down=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=4),
)  # fmt: skip
def test_resampling_blocks_is_resampling_the_whole(samples, up, down, sizes):
    ratio = Fraction(up, down)
    signal = noise(samples)
    expected = processing.resample_poly(signal, ratio.numerator, ratio.denominator)
    found = np.concatenate(list(resampled(in_blocks(signal, sizes), ratio.numerator, ratio.denominator)))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("name", ["a.npy", "b.npy", "c.npy", "d.wav", "e.wav", "f.wav", "g.wav", "h.csv", "i.npz"])
def test_every_format_streams_what_it_holds(tmp_path, monkeypatch, name):
    monkeypatch.setattr(module, "BLOCK", 700)  # so that there are several blocks
    values, path, channel = noise(3000), tmp_path / name, None
    integers = (values * 3000).astype(np.int16)
    if name == "a.npy":
        np.save(path, values)
    elif name == "b.npy":
        np.save(path, integers[:, None])
    elif name == "c.npy":
        np.save(path, np.asfortranarray(np.stack([values, -values], axis=1)))
        channel = "2"
    elif name == "d.wav":
        wavfile.write(path, 12_000, integers)
    elif name == "e.wav":
        wavfile.write(path, 12_000, (integers // 256 + 128).astype(np.uint8))
    elif name == "f.wav":
        wavfile.write(path, 12_000, np.stack([values, -values], axis=1))
        channel = "1"
    elif name == "g.wav":  # 24 bits, which cannot be mapped
        write_24_bits(path, integers.astype(np.int32) * 100, 12_000)
    elif name == "h.csv":
        np.savetxt(path, values)
    else:
        np.savez(path, vibration=values, fs=12_000)
    stream, whole = open_stream(path, channel), read_signals(path)
    assert stream.rate == whole.rate
    blocks = list(stream.blocks)
    assert len(blocks) == 5
    assert np.concatenate(blocks) == pytest.approx(whole.pick(channel)[1].astype(np.float32))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " "])
@pytest.mark.parametrize("header", ["", "\ufeff# by hand\nmeasured on Monday\ntime [s]{0}a{0}b"])
def test_long_text_streams_what_it_holds(tmp_path, monkeypatch, delimiter, header):
    monkeypatch.setattr(module, "LINES", 400)
    monkeypatch.setattr(module, "SMALL_TEXT", 0)
    if header and delimiter == " ":
        header = header.replace("time [s]", "time")
    columns = np.stack([np.arange(2101) / 12_000, noise(2101, 1), noise(2101, 2)], axis=1)
    path = tmp_path / "a.txt"
    np.savetxt(
        path, columns, delimiter=delimiter, header=header.format(delimiter), comments="", encoding="utf-8", fmt="%.9f"
    )
    if not header:
        path.write_text(path.read_text().lstrip("\n"))
    channel = "b" if header else "3"
    stream, whole = open_stream(path, channel), read_signals(path)
    assert stream.rate == whole.rate == 12_000
    blocks = list(stream.blocks)
    assert len(blocks) == 5
    assert np.concatenate(blocks) == pytest.approx(whole.pick(channel)[1].astype(np.float32))


def same_as_whole(path: Path, channel: str | None = None) -> int:
    """How many blocks a file's stream has, which are what reading it whole gives."""
    stream, whole = open_stream(path, channel), read_signals(path)
    blocks = list(stream.blocks)
    assert stream.rate == whole.rate
    assert np.array_equal(np.concatenate(blocks), whole.pick(channel)[1].astype(np.float32))
    return len(blocks)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f8", "<i2"])
def test_arrays_of_npz_and_matlab_files_stream_however_they_lie(tmp_path, monkeypatch, save, order, kind):
    monkeypatch.setattr(module, "BLOCK", 700)
    values = (1000 * np.stack([noise(3000, seed) for seed in range(3)])).astype(kind)
    arrays = {
        "by_row": np.array(values, order=order), "by_column": np.array(values.T, order=order), "one": values[0],
        "flat": np.array(values[1][None, :, None], order=order), "square": np.array(values[:, :3], order=order),
        "fs": np.array([[12_000]]), "words": np.array(["a", "b"]), "nothing": np.empty(0), "number": np.array(3.5),
    }  # fmt: skip
    save(tmp_path / "a.npz", **arrays)
    with h5py.File(tmp_path / "b.mat", "w") as file:
        for name, value in arrays.items():
            if value.dtype.kind != "U":
                file[f"struct/{name}"] = value
    scipy_io.savemat(tmp_path / "c.mat", {"x": arrays["by_column"]})
    names = ["one", "flat", "by_row.1", "by_row.3", "by_column.1", "by_column.3", "square.2"]
    for path, before in ((tmp_path / "a.npz", ""), (tmp_path / "b.mat", "struct.")):
        found = [same_as_whole(path, before + name) for name in names]
        assert found[:2] == [5, 5]
        with pytest.raises(InputError, match=r"holds 11 channels \(.*\); say which one with --channel$"):
            open_stream(path)
    same_as_whole(tmp_path / "c.mat", "x.2")
    with h5py.File(tmp_path / "d.mat", "w") as file:  # in chunks shorter and longer than a block
        file.create_dataset("x", data=arrays["by_column"], chunks=(64, 2), compression="gzip")
        file.create_dataset("y", data=arrays["by_row"], chunks=(3, 1000), compression="gzip")
    assert (same_as_whole(tmp_path / "d.mat", "x.2"), same_as_whole(tmp_path / "d.mat", "y.3")) == (5, 6)


def test_parquet_streams_by_rows_whatever_else_is_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 700)
    monkeypatch.setattr(module, "PROBED", 60)
    path, times = tmp_path / "a.parquet", np.arange(3000) / 12_000
    with_times = {
        "time [ms]": 1000 * times, "index": np.arange(3000), "a": noise(3000), "b": (noise(3000, 1) * 99).astype(np.int16),
        "note": ["x"] * 3000, "on": [True] * 3000, "coded": pa.array([7, 8] * 1500).dictionary_encode(),
    }  # fmt: skip
    for columns, names in (
        ({"a.b": noise(3000)}, [None]), ({"time": times, "note": ["x"] * 3000, "a": noise(3000)}, [None]),
        (with_times, ["a", "b", "coded"]), ({"1": times, "2": noise(3000)}, [None]), ({"time": times}, [None]),
    ):  # fmt: skip
        for group in (50, 500, 3000):
            parquet.write_table(pa.table(columns), path, row_group_size=group)
            assert [same_as_whole(path, name) for name in names] == [4] * len(names)


def test_24_bits_stream_from_every_kind_of_wav_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 700)
    path = tmp_path / "a.wav"
    write_24_bits(path, np.stack([noise(3000), noise(3000, 1)], axis=1) * 2**21, 12_000)
    plain = path.read_bytes()
    head, data = plain[12:36], plain[36:]
    tag = (0xFFFE).to_bytes(2, "little")
    told = tag + head[10:] + b"\x16\0\x18\0\3\0\0\0" + b"\1\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    extensible = b"WAVEfmt \x28\0\0\0" + told + b"LIST\3\0\0\0abc\0" + data
    long = 8 * b"\xff"
    ds64 = (
        b"ds64\x1c\0\0\0" + (len(plain) + 28).to_bytes(8, "little") + (len(data) - 8).to_bytes(8, "little") + bytes(12)
    )
    kinds = {
        "plain": plain,
        "extensible": b"RIFF" + len(extensible).to_bytes(4, "little") + extensible,
        "beyond 4 GB": b"RF64" + long[:4] + b"WAVE" + ds64 + head + b"data" + long[:4] + data[8:],
    }
    for name, content in kinds.items():
        path.write_bytes(content)
        assert module._packed(path) is not None, name
        assert same_as_whole(path, "2") == 9
        path.write_bytes(content[:-1000])
        with pytest.raises(
            InputError, match=r"a\.wav: cannot be read as a \.wav file \(it ends before its samples do\)"
        ):
            open_stream(path, "2")
    for content in (plain.replace(b"RIFF", b"RIFX"), plain.replace(b"fmt ", b"fnt "), plain[:30]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.wav: cannot be read as a \.wav file"):
            open_stream(path, "2")


def test_streams_of_bad_files_are_one_sentence(tmp_path):
    """Some of it shows when the file is opened, some only far within it."""
    values, archive = noise(600_000), io.BytesIO()
    np.savez(archive, a=values)
    damaged = bytearray(archive.getvalue())
    damaged[2_000_000] ^= 1  # its checksum knows
    (tmp_path / "damaged.npz").write_bytes(damaged)
    (tmp_path / "cut.npz").write_bytes(archive.getvalue()[:2_000_000])
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})
    for name, content, how in (("lie", head.getvalue() + bytes(4000), 0), ("lzma", b"x" * 99, zipfile.ZIP_LZMA)):
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", how) as file:
            file.writestr("a.npy", content)
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    np.savez(tmp_path / "deep.npz", a=np.zeros((3, 4, 5)))
    np.savez(tmp_path / "words.npz", a=np.array(["b", "c"]))
    np.savez(tmp_path / "nan.npz", a=np.where(np.arange(600_000) == 500_000, np.nan, values))
    parquet.write_table(pa.table({"a": values}), tmp_path / "good.parquet", compression="gzip", use_dictionary=False)
    content = bytearray((tmp_path / "good.parquet").read_bytes())
    (tmp_path / "cut.parquet").write_bytes(content[:-20])
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    (tmp_path / "damaged.parquet").write_bytes(content)
    (tmp_path / "empty.parquet").write_bytes(b"")
    parquet.write_table(pa.table({"a": ["b", "c"]}), tmp_path / "words.parquet")
    parquet.write_table(pa.table({"a": pa.array([], pa.float32())}), tmp_path / "no-rows.parquet")
    parquet.write_table(pa.table([[1.0], [2.0]], names=["a", "a"]), tmp_path / "twice.parquet")
    parquet.write_table(pa.table({"a": pa.array([1, None, 2])}), tmp_path / "gap.parquet")
    times = np.arange(600_000) / 12_000
    for name, after in (("stands", 0), ("jumps", 1)):  # exactly where one part ends and the next begins
        late = np.where(np.arange(600_000) < module.BLOCK, times, times + after)
        parquet.write_table(pa.table({"time": late, "a": values}), tmp_path / f"{name}.parquet")
    list(open_stream(tmp_path / "stands.parquet").blocks)
    for name, sentence in {
        "damaged.npz": "Bad CRC-32", "cut.npz": "not a zip file", "lie.npz": "'a.npy' announces more samples than there are",
        "lzma.npz": "in a way that numpy does not write", "objects.npz": "holds Python objects", "deep.npz": "has 3 axes",
        "words.npz": "holds no numeric signal; it has a", "nan.npz": "sample 500000 is NaN",
        "cut.parquet": "cannot be read as a .parquet file", "damaged.parquet": "cannot be read as a .parquet file",
        "empty.parquet": "is empty", "words.parquet": "holds no numeric signal; it has a",
        "no-rows.parquet": "holds no numeric signal; it has a", "twice.parquet": "have the same name",
        "gap.parquet": "sample 1 is NaN", "jumps.parquet": "times in column 'time' are not evenly spaced",
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=sentence) as found:
            list(open_stream(tmp_path / name).blocks)
        assert str(found.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(found.value)


def test_a_long_text_file_that_goes_wrong_further_down_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LINES", 400)
    monkeypatch.setattr(module, "SMALL_TEXT", 0)
    times = np.concatenate([np.arange(1200) / 12_000, 0.1 + np.arange(800) / 3_000])
    np.savetxt(
        tmp_path / "faster.csv", np.stack([times, noise(2000)], axis=1), delimiter=",", header="time,a", comments=""
    )
    lines = [f"{one}\n" for one in noise(2000)]
    (tmp_path / "word.csv").write_text("".join([*lines[:1500], "broken\n", *lines[1500:]]))
    (tmp_path / "at-a-seam.csv").write_text("".join([*lines[:800], "broken\n", *lines[800:]]))
    for name, sentence in (
        ("faster.csv", "rate changes from 12000 to 300"),
        ("word.csv", "cannot be read as text"),
        ("at-a-seam.csv", "a row further down does not hold numbers only"),
    ):
        with pytest.raises(InputError, match=sentence):
            list(open_stream(tmp_path / name).blocks)


def test_a_recording_is_diagnosed_as_its_windows_pooled_and_by_folder_as_by_onnx(tmp_path, model_folder):
    signal = noise(256 * 31 + 17)
    np.save(tmp_path / "a.npy", signal)
    model = made_model()
    expected = diagnose(tally(model.log_probabilities(signal[: 256 * 31].reshape(31, 1, 256))))
    for place in ("model", "model.onnx"):
        opened = open_model(model_folder / place)
        stream, note = at_rate_of(opened, open_stream(tmp_path / "a.npy"), 12_000)
        assert note is None
        found = diagnose_stream(opened, stream, batch=7)
        assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
        assert (found.windows, found.agreement) == (31, expected.agreement)


def test_rates_are_brought_to_the_models_and_asked_for_where_nobody_knows(tmp_path, model_folder):
    model = open_model(model_folder / "model.onnx")
    signal = noise(48_000)
    wavfile.write(tmp_path / "fast.wav", 48_000, signal)
    np.save(tmp_path / "unknown.npy", processing.resample_poly(signal, 1, 4))
    stream, note = at_rate_of(model, open_stream(tmp_path / "fast.wav"))
    assert "resampled from 48000 Hz to the model's 12000 Hz" in note
    fast = diagnose_stream(model, stream)
    slow = diagnose_stream(model, at_rate_of(model, open_stream(tmp_path / "unknown.npy"), 12_000)[0])
    assert fast.probabilities == pytest.approx(slow.probabilities, abs=1e-4)
    assert fast.windows == slow.windows == 12_000 // 256
    with pytest.raises(InputError, match="does not say its sampling rate.* --rate"):
        at_rate_of(model, open_stream(tmp_path / "unknown.npy"))
    assert "frequencies above 2500 Hz" in at_rate_of(model, open_stream(tmp_path / "unknown.npy"), 5_000)[1]
    assert "says it is at 48000 Hz" in at_rate_of(model, open_stream(tmp_path / "fast.wav"), 12_000)[1]


def test_a_model_that_knows_no_rate_resamples_nothing_and_says_that_it_cannot_tell(tmp_path):
    wavfile.write(tmp_path / "fast.wav", 48_000, noise(4000))
    np.save(tmp_path / "unknown.npy", noise(4000))
    model = made_model(rate=None)
    stream, note = at_rate_of(model, open_stream(tmp_path / "fast.wav"))
    assert "fast.wav: the model does not know the rate it was trained at, so 48000 Hz may not be that" in note
    assert stream.rate == 48_000
    assert diagnose_stream(model, stream).windows == 4000 // 256
    assert at_rate_of(model, open_stream(tmp_path / "unknown.npy"))[1] is None


def test_what_cannot_be_used_is_one_sentence(tmp_path, model_folder):
    model = open_model(model_folder / "model.onnx")
    bad = noise(600_000)
    bad[500_000] = np.nan
    np.save(tmp_path / "nan.npy", bad)
    np.save(tmp_path / "short.npy", noise(100))
    (tmp_path / "cut.wav").write_bytes(b"RIFF")
    wavfile.write(tmp_path / "two.wav", 12_000, np.stack([bad[:999], bad[:999]], axis=1))
    (tmp_path / "empty").mkdir()
    for name, sentence in (
        ("nan.npy", "sample 500000 is NaN"), ("short.npy", "shorter than one window of 256"), ("cut.wav", "cannot be read"),
        ("two.wav", "holds 2 channels"), ("empty", "holds no file"), ("nothing.npy", "no such file"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=sentence):
            diagnose_stream(model, at_rate_of(model, open_stream(tmp_path / name), 12_000)[0])


def test_a_model_of_several_channels_says_how_it_can_be_asked(tmp_path):
    np.save(tmp_path / "one.npy", noise(1000))
    stream, _ = at_rate_of(made_model(channels=2), open_stream(tmp_path / "one.npy"), 12_000)
    with pytest.raises(InputError, match=r"one\.npy: the model takes 2 channels at once, .* send it windows as JSON"):
        diagnose_stream(made_model(channels=2), stream)


def test_folders_are_walked_hidden_files_are_not(tmp_path):
    for name in ("b.csv", "a/c.WAV", ".git/x.csv", "a/.hidden.npy", "notes.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "d.wav").symlink_to(tmp_path / "gone.wav")  # it is told of when it is opened
    (tmp_path / "e.npy").mkdir()
    found = list(find_files([tmp_path, tmp_path / "notes.pdf"]))
    assert [one.relative_to(tmp_path).as_posix() for one in found] == ["a/c.WAV", "b.csv", "d.wav", "notes.pdf"]
    with pytest.raises(InputError, match="d.wav: there is no such file"):
        open_stream(tmp_path / "d.wav")


def test_alarms_are_all_but_the_healthy_classes_or_those_named():
    assert alarm_classes(["Normal", "inner", "outer"], None) == {"inner", "outer"}
    assert alarm_classes(["healthy", "inner", "outer"], ["inner"]) == {"inner"}
    with pytest.raises(InputError, match="no class 'iner'; did you mean 'inner'"):
        alarm_classes(["healthy", "inner"], ["iner"])


def test_the_command_tells_alarms_by_its_exit_status_and_goes_on_after_a_bad_file(tmp_path, model_folder, command):
    np.save(tmp_path / "a.npy", noise(3000, 1))
    np.save(tmp_path / "b.npy", noise(3000, 2))
    (tmp_path / "c.wav").write_bytes(b"junk")
    onnx, rate = model_folder / "model.onnx", ("--rate", 12_000)
    result = bearcat("predict", onnx, tmp_path, *rate, "--format", "json")
    rows = json.loads(result.stdout)["recordings"]
    assert [row["recording"].rsplit("/", 1)[1] for row in rows] == ["a.npy", "b.npy"]
    assert "problem:" in result.stderr
    assert "c.wav" in result.stderr
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["confidence"] == row["probabilities"][row["class"]]
        assert (row["windows"], row["alarm"]) == (11, row["class"] != "healthy")
    assert result.returncode == (1 if any(row["alarm"] for row in rows) else 2)
    found = rows[0]["class"]
    other = next(name for name in ("healthy", "inner", "outer") if name not in {row["class"] for row in rows})
    status, shown, _ = command("predict", onnx, tmp_path / "a.npy", *rate, "--alarm", found)
    assert status == 1
    assert "ALARM" in shown
    assert command("predict", onnx, tmp_path / "a.npy", *rate, "--alarm", other)[0] == 0
    assert command("predict", onnx, tmp_path, *rate, "--alarm", other)[0] == 2
    unsure = ("--alarm", found, "--min-confidence", 1)
    assert command("predict", onnx, tmp_path / "a.npy", *rate, *unsure)[0] == 0


@pytest.fixture(scope="module")
def knowing_folder(tmp_path_factory):
    """A model that has heard white noise and nothing else, as a folder and as ONNX; and recordings of it and of a hum."""
    folder = tmp_path_factory.mktemp("knowing")
    heard = np.stack([noise(256, 100 + seed) for seed in range(600)])[:, None]
    model = familiar_with(made_model(), heard)
    save_model(folder / "model", model)
    export_onnx(model, folder / "model.onnx")
    np.save(folder / "noise.npy", noise(256 * 50, 6))  # of ten seeds one has too many windows by chance
    np.save(folder / "hum.npy", np.sin(np.arange(256 * 50) / 7).astype(np.float32) + 0.05 * noise(256 * 50, 2))
    return folder


def test_windows_are_counted_as_unfamiliar_as_they_stream_and_by_folder_as_by_onnx(knowing_folder):
    for place in ("model", "model.onnx"):
        opened = open_model(knowing_folder / place)
        for name, familiar in (("noise", True), ("hum", False)):
            whole = np.load(knowing_folder / f"{name}.npy").reshape(-1, 1, 256)
            expected = look_at(opened, whole).unfamiliar
            parts = []
            stream, _ = at_rate_of(opened, open_stream(knowing_folder / f"{name}.npy"), 12_000)
            found = diagnose_stream(opened, stream, 7, parts.append)
            assert np.array_equal(np.concatenate([one.unfamiliar for one in parts]), expected)
            assert found.unfamiliar == pytest.approx(expected.mean())
            assert found.familiar is familiar


def test_an_unfamiliar_recording_is_an_alarm_unless_that_is_turned_off(knowing_folder, command):
    onnx, words = knowing_folder / "model.onnx", ("--rate", 12_000)
    strange, usual = knowing_folder / "hum.npy", knowing_folder / "noise.npy"
    status, shown, told = command("predict", onnx, strange, usual, *words, "--format", "json", "--min-confidence", 1)
    assert status == 1
    assert "familiar" not in told
    rows = json.loads(shown)["recordings"]
    assert [(row["familiar"], row["alarm"]) for row in rows] == [(False, True), (True, False)]
    assert rows[0]["unfamiliar"] > 0.9 > 0.3 > rows[1]["unfamiliar"]
    quiet = ("--min-confidence", 1, "--no-unfamiliar-alarm")
    assert command("predict", onnx, strange, *words, *quiet)[0] == 0
    assert command("predict", onnx, usual, *words, "--min-confidence", 1)[0] == 0
    shown = command("predict", onnx, strange, *words)[1]
    assert "ALARM, unfamiliar" in shown
    shown = command("predict", onnx, strange, usual, *words, "--format", "csv")[1]
    assert [row["familiar"] for row in csv.DictReader(io.StringIO(shown))] == ["false", "true"]
    shown = command("predict", onnx, strange, *words, "--by", "window", "--format", "csv")[1]
    assert [row["familiar"] for row in csv.DictReader(io.StringIO(shown))].count("false") > 45
    assert "unfamiliar" in command("predict", onnx, strange, *words, "--by", "window")[1]


def test_a_model_whose_calibration_ended_at_its_bound_says_so(tmp_path, model_folder, command):
    np.save(tmp_path / "a.npy", noise(3000, 1))
    words = (tmp_path / "a.npy", "--rate", 12_000)
    whole = made_model(calibration="temperature")
    state = whole.calibration.state()
    ended = replace(whole, calibration=Calibration.from_state(state | {"at_bound": torch.ones_like(state["at_bound"])}))
    for number, model in enumerate((whole, ended)):
        save_model(tmp_path / f"{number}", model)
        export_onnx(model, tmp_path / f"{number}.onnx")
        for path in (tmp_path / f"{number}", tmp_path / f"{number}.onnx"):
            assert ("not calibrated" in command("predict", path, *words)[2]) == (model is ended)


def test_a_model_that_its_run_refused_is_used_and_exported_with_one_note(tmp_path, model_folder, command):
    np.save(tmp_path / "a.npy", noise(3000, 1))
    sentence = "Do not use this model: it gives every window of the target the same class."
    save_model(tmp_path / "model", made_model(refusal=sentence))
    words, note = (
        ("--rate", 12_000, "--format", "json"),
        f"note: the verdict of the run that made this model: {sentence}\n",
    )
    status, shown, told = command("export", tmp_path / "model", "--onnx", tmp_path / "model.onnx")
    assert (status, told) == (0, note)
    for name in ("model", "model.onnx"):
        _, shown, told = command("predict", tmp_path / name, tmp_path / "a.npy", *words)
        assert told.count(note) == 1
        assert len(json.loads(shown)["recordings"]) == 1
        assert "Do not use" not in command("predict", model_folder / name, tmp_path / "a.npy", *words)[2]


def test_a_model_that_does_not_know_what_is_familiar_says_so(tmp_path, model_folder, command):
    np.save(tmp_path / "a.npy", noise(3000, 1))
    words = ("predict", model_folder / "model.onnx", tmp_path / "a.npy", "--rate", 12_000)
    _, shown, told = command(*words, "--format", "json")
    assert (
        "does not know what is familiar, so an unfamiliar recording is no alarm; one made by bearcat adapt does" in told
    )
    row = json.loads(shown)["recordings"][0]
    assert (row["familiar"], row["unfamiliar"]) == (None, None)
    shown = command(*words, "--format", "csv")[1]
    assert next(csv.DictReader(io.StringIO(shown)))["familiar"] == ""


def test_windows_as_csv_or_table_from_a_model_folder(tmp_path, model_folder, command):
    np.save(tmp_path / "a.npy", noise(3000, 1))
    words = ("predict", model_folder / "model", tmp_path / "a.npy", "--rate", 12_000, "--by", "window", "--format")
    rows = list(csv.DictReader(io.StringIO(command(*words, "csv")[1])))
    assert len(command(*words, "table")[1].splitlines()) == 2 + len(rows)
    assert [int(row["start"]) for row in rows] == list(range(0, 11 * 256, 256))
    assert float(rows[1]["seconds"]) == pytest.approx(256 / 12_000)
    expected = made_model().log_probabilities(noise(3000, 1)[: 11 * 256].reshape(11, 1, 256))
    assert [float(row["confidence"]) for row in rows] == pytest.approx(np.exp(expected.max(axis=1)).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--by", "file"), "--by: unknown choice 'file'"),
        (("--format", "xml"), "--format: unknown choice 'xml'"),
        (("--alarm", "gear"), "no class 'gear'"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path, model_folder, command, words, sentence):
    status, _, told = command("predict", model_folder / "model.onnx", tmp_path, *words)
    assert status == 2
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of one program's memory is asked of /proc")
@pytest.mark.parametrize("kind", ["npy", "wav", "24.wav", "csv", "npz", "parquet", "mat"])
def test_a_file_far_larger_than_the_memory_it_needs(tmp_path, model_folder, kind):
    """16 MB (of text 9, of 24 bits 12) at another rate than the model's: the peak grows by a few blocks over that of a short file.

    getrusage will not do: the peak it tells begins with that of the process which started this one.
    """
    code = """
import re, sys
from pathlib import Path
from bearcat.deploy.predict import at_rate_of, diagnose_stream, open_model, open_stream
model = open_model(Path(sys.argv[1]))
peaks = []
for path in sys.argv[2:]:
    channel = "vibration.2" if path.endswith("npz") else None
    found = diagnose_stream(model, at_rate_of(model, open_stream(Path(path), channel), 24000)[0])
    peaks.append(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]))
print(found.windows, peaks[1] - peaks[0])
"""
    paths = []
    sizes = (2**18, 2**20) if kind == "csv" else (2**19, 2**22)
    for name, samples in zip(("short", "long"), sizes, strict=True):
        paths.append(tmp_path / f"{name}.{kind}")
        signal = np.resize(noise(2**16), samples)
        if kind == "npy":
            np.save(paths[-1], signal)
        elif kind == "csv":
            paths[-1].write_text("\n".join(f"{one:.5f}" for one in signal[: 2**16].tolist() * (samples >> 16)))
        elif kind == "npz":
            np.savez_compressed(paths[-1], other=signal[:100_000], vibration=np.stack([signal, -signal]))
        elif kind == "parquet":  # one group of rows, which is not to be read at once either
            table = pa.table(
                {"time": np.arange(samples) / 24_000, "vibration": signal, "note": ["no number"] * samples}
            )
            parquet.write_table(table, paths[-1], row_group_size=samples, compression="none")
        elif kind == "mat":
            with h5py.File(paths[-1], "w") as file:
                file["vibration"] = signal[None]
        elif kind == "24.wav":
            write_24_bits(paths[-1], (signal * 1e5).astype(np.int32), 24_000)
        else:
            wavfile.write(paths[-1], 24_000, signal)
    call = [sys.executable, "-c", code, str(model_folder / "model.onnx"), *map(str, paths)]
    result = subprocess.run(call, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    windows, grown = map(int, result.stdout.split())
    assert paths[1].stat().st_size > 2**23
    assert windows == sizes[1] // 2 // 256
    assert grown < 8 * 1024  # kB
    for path in paths:
        path.unlink()
