"""Every recording that is asked for is answered or named in one sentence, and no file or name acts on its reader.

Hostile files are refused in bounded memory and time, and the next file is read as ever; tests/acceptance mutates files
of every format.
"""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import subprocess
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from bearcat.api import diagnose
from bearcat.data import Folder, formats, load
from bearcat.data.formats import FORMATS, read_signals
from bearcat.data.recording import Recording
from bearcat.data.simulate import Simulated
from bearcat.deploy.find import Given
from bearcat.diagnosis.decision import Decision
from bearcat.errors import InputError, check_range, csv_cell, from_csv_cell, shown, to_json
from tests.test_artefact import made_model, save_model
from tests.test_serve import as_npy, as_wav, noise

LONG = noise(600_000)
CUT = as_wav(LONG[:999])[:999]
TIMES = np.arange(len(LONG)) / 12_000


# Files: each is written by its content, or by a function of its path.


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def matlab(**variables) -> bytes:
    file = io.BytesIO()
    savemat(file, variables)
    return file.getvalue()


def npy_of(shape: str) -> bytes:
    """A header that announces more samples than there are."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(4000)


def archive(content: bytes, how: int = zipfile.ZIP_STORED, members: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as stored:
        for number in range(members):
            stored.writestr(f"{number}.npy", content)
    return file.getvalue()


def tree(shape: tuple[int, ...], **options) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("a", shape=shape, dtype="f8", chunks=(2**16,), **options)

    return write


def external(path: Path) -> None:
    """A file whose samples are in another one."""
    with h5py.File(path, "w") as file:
        file.create_dataset("a", shape=(500,), dtype="f4", external=[(str(path), 0, h5py.h5f.UNLIMITED)])


MAT_HEAD = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"


def part(kind: int, content: bytes) -> bytes:
    """Of a MATLAB v5 matrix."""
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(flags: int, axes: tuple[int, ...], *parts: bytes) -> bytes:
    head = part(6, struct.pack("<II", flags, 0)) + part(5, struct.pack(f"<{len(axes)}i", *axes)) + part(1, b"a")
    return part(14, head + b"".join(parts))


CRASH = MAT_HEAD + matrix(6, (1, 1), part(99, bytes(8)))  # a data type that there is not: 479 bytes were enough


def rows(*columns: np.ndarray, header: str = "time,a\n") -> bytes:
    return header.encode() + b"".join(b"%.6f,%.6f\n" % row for row in zip(*columns, strict=True))


def packed(content: bytes) -> bytes:
    content = zlib.compress(content)
    return struct.pack("<II", 15, len(content)) + content


FASTER = np.concatenate([np.arange(1200) / 12_000, 0.1 + np.arange(40_000) / 3_000])
BAD = {  # by file, its content and words of the sentence
    "utf16.csv": (b"\xff\xfe1\x00\n\x00", "is not UTF-8 text"),
    "side.csv": (b"\n".join([b",".join([b"1"] * 2000)] * 2), "has 2000 columns.*transpose"),
    "ragged.csv": (b"1,2\n3\n4,5\n", "cannot be read"), "word.csv": (b"1\nabc\n3\n", "cannot be read"),
    "words.csv": (b"hello\nworld\n", "no row holds numbers only"), "clock.csv": (b"12:00:00.1,1\n12:00:00.2,2\n", "times in seconds"),
    "nothing.csv": (b"# nothing\n\n", "holds no rows"),
    "uneven.csv": (b"time,x\n" + b"".join(b"%d,1\n" % t for t in (0, 1, 9, 10, 11, 12, 13, 14, 15)), "rise evenly"),
    "falls.csv": (b"time,x\n3,1\n2,2\n1,3\n", "rise evenly"), "line.csv": (b"\n".join([b"1," * 50_000] * 2), "has 50000 columns"),
    "faster.csv": (rows(FASTER, LONG[: FASTER.size]), "rate changes|rise evenly"),
    "late.csv": (b"1.000000\n" * 60_000 + b"broken\n", "cannot be read"), "nan.csv": (b"1\n2\nnan\n", "the first at sample 2"),
    "pickle.npy": (as_npy(LONG[:4]).replace(b"<f4", b"|O "), "cannot be read"), "lie.npy": (npy_of("(1000000000000,)"), "more memory"),
    "axes.npy": (as_npy(np.zeros((3, 4, 5))), "3 axes"), "damaged.npz": (npz(a=LONG)[:2_000_000] + b"\1\1\1" + npz(a=LONG)[2_000_003:], "CRC-32"),
    "lie.npz": (archive(npy_of("(1000000000000,)")), "more memory|cannot be read"),
    "nan.npz": (npz(a=np.where(np.arange(LONG.size) >= 500_000, np.nan, LONG)), "the first at sample 500000"),
    "rate.npz": (npz(a=LONG[:99], fs=np.array(1e300)), "must be between"),
    "rates.mat": (matlab(fs=100.0, sr=200.0, x=LONG[:99]), "two sampling rates"),
    "speeds.mat": (matlab(rpm=1500.0, shaft_rpm=300.0, x=LONG[:99]), "two speeds"), "note.mat": (matlab(note="none"), "no numeric"),
    "back.mat": (matlab(t=TIMES[99::-1], x=LONG[:100]), "rise"), "old.parquet": (b"PAR1", "unknown format"),
    "letter.docx": (b"hello", "unknown format"), "wav.flac": (as_wav(LONG[:999]), "FLAC"), "end.h5": (tree((2**36,)), "more memory"),
    "external.mat": (external, "in another file"), "crash.mat": (CRASH, "cannot be read"), "cut.wav": (CUT, "cannot be read"),
    "lies.wav": (CUT[:4] + struct.pack("<I", len(CUT) - 8) + CUT[8:], "ends before its samples"),
} | {f"empty{suffix}": (b"", r"is empty \(0 bytes\)") for suffix in FORMATS}  # fmt: skip


HOSTILE = {  # files of some kilobytes that would become 8 MB or more, or say so
    "zeros.npz": archive(as_npy(np.zeros(2**21, np.float32)), zipfile.ZIP_DEFLATED),
    "zeros73.mat": tree((2**21,), compression="gzip"),
    "zeros.mat": MAT_HEAD + packed(matrix(6, (2**21, 1), part(9, bytes(2**24)))),
    "line.csv": b"1," * 50_000, "many.npz": archive(b"", members=4000),
    "objects.mat": MAT_HEAD + matrix(3, (2**31 - 1, 2**31 - 1), part(1, b"a"), part(1, b"")),
}  # fmt: skip


def written(path: Path, content: bytes | Callable[[Path], None]) -> Path:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    return path


def recorded(path: Path) -> Recording:
    """The only channel of a file, whose gaps are few."""
    return Recording(signal=samples_of(path), domain="", origin=path.name)


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, name):
    content, words = BAD[name]
    with pytest.raises(InputError, match=rf"^{name}: .*({words})") as raised:
        recorded(written(tmp_path / name, content))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_hostile_files_are_one_sentence_each_and_the_next_file_is_read(honest, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST_BYTES", 2**22)
    for name, content in HOSTILE.items():
        with pytest.raises(InputError, match=f"^{name}: ") as raised:
            samples_of(written(tmp_path / name, content))
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 500
        assert "cut it into shorter" in str(raised.value) or not name.startswith("zeros"), name
    assert np.array_equal(samples_of(honest), np.arange(400_000, dtype=np.float32))


# The workers that read risky formats.


def samples_of(path: Path) -> np.ndarray:
    return read_signals(path, path.name).pick(None)[1]


def read_after(action: Callable[[], None], path: Path) -> np.ndarray:
    """The samples, where something happens while a worker waits to send them."""

    def loads(text: bytes) -> object:
        action()
        return json.loads(text)

    with patch.object(formats, "json", SimpleNamespace(loads=loads, dumps=json.dumps)):
        return samples_of(path)


@pytest.fixture
def honest(tmp_path) -> Path:
    savemat(tmp_path / "honest.mat", {"a": np.arange(400_000.0), "fs": 12_000})
    return tmp_path / "honest.mat"


@pytest.fixture
def workers(monkeypatch) -> Iterator[list[subprocess.Popen]]:
    """Those that a test starts."""
    started, start = [], formats._start
    monkeypatch.setattr(formats, "_waiting", defaultdict(list))
    monkeypatch.setattr(formats, "_start", lambda: started.append(start()) or started[-1])
    yield started
    for worker in started:
        formats._end(worker)


def test_a_relative_path_is_of_the_folder_one_is_in(tmp_path, monkeypatch):
    for name in ("here", "there"):  # the worker was started in the first
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        np.savez(f"{name}.npz", x=np.arange(8.0))
        assert np.array_equal(samples_of(Path(f"{name}.npz")), np.arange(8.0))


def test_a_worker_that_is_late_or_killed_is_a_sentence_and_another_one_reads_the_next_file(honest, workers):
    with pytest.raises(InputError, match=r"honest\.mat"):
        read_signals(honest, honest.name, seconds=1e-6)
    with pytest.raises(InputError, match=r"honest\.mat"):
        read_after(lambda: workers[-1].kill(), honest)
    for _ in range(2):
        assert samples_of(honest).size == 400_000
    workers[-1].kill()  # while it waits
    workers[-1].wait()
    assert samples_of(honest).size == 400_000
    assert len(workers) == 4


def test_a_worker_writes_nothing_has_limits_and_no_secrets(honest, workers, monkeypatch):
    monkeypatch.setenv("BEARCAT_TOKEN", "secret-of-the-server")
    files = {}

    def look() -> None:
        place = Path("/proc", str(workers[-1].pid))
        files.update({name: (place / name).read_text() for name in ("limits", "status", "environ")})

    assert read_after(look, honest).size == 400_000
    assert "secret" not in files["environ"]
    size = 1024 * int(files["status"].split("VmSize:")[1].split()[0])
    rows = {line[:26].strip(): line[26:].split()[0] for line in files["limits"].splitlines()}
    assert (rows["Max file size"], rows["Max core file size"]) == ("0", "0")
    assert int(rows["Max address space"]) < size + 2**30 + 200 * honest.stat().st_size


# Folders and manifests.

RED, NO_UTF8 = "\x1b[31mred\x07.wav", os.fsdecode(b"\xff.wav")
KNOWN = ("--rpm", 1500, "--bearing", "balls=8,ball=6.75,pitch=28.5")


@pytest.fixture
def odd_folder(tmp_path) -> Path:
    """A folder with a recording of a fault among files that once stopped a command."""
    place = tmp_path / "odd" / "pump"
    place.mkdir(parents=True)
    simulated = Simulated(seconds=2.0, rate=12_000.0, severities=(2.0,)).recording("N15_M07_F10", "outer-1")
    (place / "faulty.wav").write_bytes(as_wav(simulated.signal.astype(np.float32)))
    np.savez(place / "rate.npz", a=noise(5000), fs=1e300)
    (place / "self.wav").symlink_to("self.wav")
    for name in ("a.wav", "b.npz"):
        os.mkfifo(place / f"pipe-{name}")
    for number, name in enumerate((RED, NO_UTF8, "=1+1.wav"), start=1):
        (place / name).write_bytes(as_wav(noise(40_000, number)))
    return place.parent


GOOD, WRONG = 4, 4  # recordings in the folder


def test_no_recording_of_an_odd_folder_is_lost_and_none_stops_the_others(odd_folder, command):
    for words in (("diagnose",), ("predict", "general")):
        status, printed, errors = command(*words, odd_folder, *KNOWN, "--format", "csv")
        answers = list(csv.DictReader(printed.splitlines()))
        assert status == 1, "the alarm is not lost either"
        assert [row["decision"] for row in answers if row["recording"].endswith("faulty.wav")] == ["alarm"]
        assert len(answers) == GOOD + WRONG
        assert sum(row["state"] == "unreadable" for row in answers) == errors.count("problem: ") == WRONG
        assert "\x1b" not in printed + errors
    files = [odd_folder / "pump" / name for name in ("rate.npz", "faulty.wav", "missing.wav")]
    diagnoses = diagnose(files, rpm=1500, bearing="6205")
    assert [diagnosis.state == "unreadable" for diagnosis in diagnoses] == [True, False, True]
    with pytest.raises(InputError, match=r"rate\.npz"):
        diagnose(files[0])


HEADER = "path,domain,label,rate,channel,start,stop,rpm,bearing,unit,sensitivity"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("../secret.wav,a", "row 2: '../secret.wav' leads outside"), ("/etc/hostname,a", "row 2: .* leads outside"),
        ("link.wav,a", "row 2: 'link.wav' leads outside"), ("gone.wav,a", "row 2: .*'gone.wav'"), (",a", "row 2: path"),
        ("x.wav,", "row 2: path and domain"), ("x.wav,a,,fast", "row 2: 'rate' .*'fast'"),
        ("x.wav,a,,-5", "row 2: column 'rate'.*between"), ("x.wav,a,,,,7.5", "row 2: 'start' .*whole"),
        ("x.wav,a,,,,10,5", r"row 2: column 'stop': 5 .*'start' \(10\)"), ("x.wav,a,,,,,,0", "row 2: column 'rpm'"),
        ("x.wav,a,,,,,,,nonsense", "row 2: column 'bearing': .*'nonsense'"),
        ("x.wav,a" + "," * 8 + "V,0", "row 2: column 'sensitivity'.*between"),
        ("x.wav,a" + "," * 9 + "hundred", "row 2: 'sensitivity' .*'hundred'"),
        ("x.wav,a" + "," * 8 + "g,100", "row 2: column 'sensitivity'.*'g'"),
        ("x.wav,a" + "," * 10 + "7", "row 2: has 12 cells"), ("x\0.wav,a", "row 2: there is no file"),
        ("x.wav,a\nx.wav,b", r"x\.wav: .*same samples as x\.wav;"), ("x.wav,a\ny.wav,b", r"y\.wav: .*same samples as x\.wav"),
        ("x.wav,a,l,,,0,10000\nx.wav,a,m,,,5000,15000", r"x\.wav\[5000:15000\]: .*same samples as x\.wav\[0:10000\]"),
    ],
)  # fmt: skip
def test_a_wrong_row_of_a_manifest_is_one_problem_and_the_others_are_read(tmp_path, command, row, sentence):
    root = tmp_path / "plant"
    root.mkdir()
    for name in ("x.wav", "y.wav", "../secret.wav"):
        (root / name).write_bytes(as_wav(noise(20_000)))
    (root / "good.wav").write_bytes(as_wav(noise(20_000, 1)))
    (root / "link.wav").symlink_to(tmp_path / "secret.wav")
    (root / "manifest.csv").write_text(f"{HEADER}\n{row}\ngood.wav,a\n")
    catalogue = Folder(root=root).catalogue()
    assert len(catalogue.problems) == 1
    assert "good.wav" in [entry.origin for entry in catalogue.entries]
    with pytest.raises(InputError, match=sentence):
        load(catalogue)
    status, printed, errors = command("diagnose", root, "--rpm", 1500, "--bearing", "6205", "--format", "json")
    assert (status, str(root / "good.wav") in printed, "problem: " in errors) == (3, True, True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"path,domain,lable\nx.csv,a,b\n", ".*'lable'; .*'label'"), (b"", ".*must name path and domain"),
        (b"Datei,Maschine\n1.csv,pump\n", ".*must name path .*, and has: datei"),
        (b"path,label\nx.csv,a\n", ".*domain or machine"), (b"path,domain\n\x81.csv,a\n", "is not UTF-8 text"),
        (None, "is no regular file"),
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_read_stops_at_once_and_other_paths_are_read(tmp_path, command, content, sentence):
    (tmp_path / "good.wav").write_bytes(as_wav(noise(20_000)))
    (tmp_path / "bad").mkdir()
    if content is None:
        os.mkfifo(tmp_path / "bad" / "manifest.csv")
    else:
        (tmp_path / "bad" / "manifest.csv").write_bytes(content)
    with pytest.raises(InputError, match=rf"manifest\.csv: {sentence}"):
        Folder(root=tmp_path / "bad").catalogue()
    status, printed, errors = command("diagnose", tmp_path / "bad", tmp_path / "good.wav", *KNOWN, "--format", "csv")
    assert (status, "good.wav" in printed, "manifest.csv" in errors) == (3, True, True)
    assert command("data", "check", tmp_path / "bad")[0] == 2


# Numbers, and names on their way out.


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 1e300, float("inf"), float("nan")])
def test_numbers_outside_their_ranges_are_refused_wherever_they_come_from(command, tmp_path, value):
    for name in ("rate", "rpm"):
        with pytest.raises(InputError, match="between"):
            check_range(name, value)
        with pytest.raises(InputError, match="between") as raised:
            Given(**{name: value})
        assert raised.value.field == name
        status, _, errors = command("diagnose", tmp_path, f"--{name}", value)
        assert (status, f"--{name}" in errors) == (2, True)


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@a", "plain", "'=1"])
def test_a_cell_for_spreadsheets_is_no_formula_and_reads_back(name):
    written = csv_cell(name)
    assert not written.startswith(("=", "+", "-", "@"))
    assert from_csv_cell(written) == name
    assert csv_cell(-1.5) == -1.5


def test_what_is_shown_has_no_control_characters_and_json_no_nan(tmp_path):
    np.savez(tmp_path / "a.npz", **{"vib\x1b[2J": noise(3000), "rest": noise(3000, 1)})
    assert list(read_signals(tmp_path / "a.npz").channels) == ["vib\\x1b[2J", "rest"]
    assert shown("pump 10 kHz µ² – ü") == "pump 10 kHz µ² – ü"
    assert shown("a\x1b]0;x\x07\r\n\u202e\udcff\x9b").isprintable()
    hostile = "a\x9b\x7f\u202e\u2028\udcff ü µ² 🐻"
    written = to_json({"name": hostile, "a": [float("nan"), 1.5]})
    assert json.loads(written, parse_constant=pytest.fail) == {"name": hostile, "a": [None, 1.5]}
    assert written.isprintable()


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_names_and_texts_of_a_model_act_on_nobody(tmp_path, command, monkeypatch, form):
    """A recording, a domain, a label and classes that a terminal or a spreadsheet would act upon."""
    monkeypatch.chdir(tmp_path)
    names = ("=1+1.wav", "@sum\x1b[2J.wav", "-silent.wav")
    for name, samples in zip(names, (noise(20_000), noise(20_000, 1), np.zeros(20_000, np.float32)), strict=True):
        (tmp_path / name).write_bytes(as_wav(samples))
    decision = Decision("check", 0.5, None, ("\x1b]0;taken\x07", "=1+1"))
    classes = ("healthy", "in\x1b[2Jner", "@outer", "ball\r\nok")
    save_model(tmp_path / "model", made_model(classes=classes, decision=decision))
    for words in (("diagnose", "--rpm", 1500, "--bearing", "6205"), ("predict", "--", "model")):
        options = (*words[:1], "--format", form, *words[1:], *(() if "--" in words else ("--",)))
        status, printed, errors = command(*options, *names)
        assert status in (1, 2, 3)
        assert not set("\x1b\x07\r") & set(printed.replace("\r\n", "\n") + errors)
        if form == "csv":
            assert not any(line.startswith(("=", "@", "-")) for line in printed.splitlines())
    (tmp_path / "manifest.csv").write_text("path,domain,label\n=1+1.wav,=pump\x1b[2J,@inner\x07\n-silent.wav,-b,a\n")
    _, printed, errors = command("data", "check", tmp_path)
    assert not set("\x1b\x07") & set(printed + errors)
