"""Every recording that is asked for is answered or named, and no name acts on whoever reads it (docs/security.md)."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from bearcat.api import diagnose
from bearcat.data.datasets.folder import Folder
from bearcat.data.datasets.simulate import Simulated
from bearcat.data.stream import open_signals, open_stream
from bearcat.deploy.find import find_measurements
from bearcat.deploy.predict import Given
from bearcat.errors import InputError
from bearcat.names import csv_cell, from_csv_cell, shown, to_json
from bearcat.ranges import RANGES, check_range
from bearcat.report.typeset import Table, TableEntry, csv_text
from bearcat.storage import write_atomically
from tests.commands import PYTHON, bearcat
from tests.conftest import make_recording
from tests.test_artefact import made_model, save_model
from tests.test_formats import write_instrument
from tests.test_serve import as_npy, as_wav, noise

RED = "\x1b[31mred\x07.wav"
NO_UTF8 = os.fsdecode(b"\xff.wav")


@pytest.fixture
def odd_folder(tmp_path):
    """A folder with a recording of a fault among all that once stopped a command."""
    place = tmp_path / "odd" / "pump"
    place.mkdir(parents=True)
    (place / "faulty.wav").write_bytes(faulty())
    for number, rate in enumerate((1e300, 1.7e308, 1e-300)):
        np.savez(place / f"rate{number}.npz", a=noise(5000), fs=rate)
    (place / "self.wav").symlink_to("self.wav")
    for name in ("a.wav", "b.wav", "c.npz"):
        os.mkfifo(place / f"pipe-{name}")
    for number, name in enumerate((RED, NO_UTF8, "=1+1.wav", "two\nlines.wav"), start=1):
        (place / name).write_bytes(as_wav(noise(40_000, number)))
    return place.parent


GOOD, BAD = 5, 7  # recordings in the folder
KNOWN = ("--rpm", 1500, "--bearing", "balls=8,ball=6.75,pitch=28.5")


def faulty() -> bytes:
    """A recording of an outer race fault at the speed and of the bearing above."""
    simulated = Simulated(seconds=2.0, rate=12_000.0, severities=(2.0,))
    return as_wav(simulated.recording("N15_M07_F10", "outer-1").signal.astype(np.float32))


def test_no_recording_of_an_odd_folder_is_lost_and_none_stops_the_others(odd_folder):
    for command in (("diagnose",), ("predict", "general")):
        found = bearcat(*command, odd_folder, *KNOWN, "--format", "csv", timeout=60)
        rows = list(csv.DictReader(found.stdout.splitlines()))
        assert found.returncode == 1, "the alarm is not lost either"
        assert [row["decision"] for row in rows if row["recording"].endswith("faulty.wav")] == ["alarm"]
        assert len(rows) == GOOD + BAD
        assert sum(row["state"] == "unreadable" for row in rows) == BAD
        assert found.stderr.count("problem: ") == BAD
        assert "\x1b" not in found.stdout + found.stderr
    found = bearcat("data", "check", odd_folder, timeout=60)
    assert (found.returncode, found.stderr.count("problem: ")) == (2, BAD)
    assert "\x1b" not in found.stdout + found.stderr


def test_odd_names_of_files_can_be_written_and_are_told_apart(odd_folder):
    origins = [entry.origin for entry in Folder(odd_folder).catalogue().entries]
    assert len(set(origins)) == GOOD + BAD
    assert all(origin.isprintable() for origin in origins)
    assert "pump/\\x1b[31mred\\x07.wav" in origins


@pytest.mark.parametrize(
    "row", ["pump/good.wav,pump,1500,one cell more", "pump/go\0od.wav,pump,1500", "pump/missing.wav,pump,1500",
            "pump/good.wav,pump,1e-300", "../pump/good.wav,pump,1500", "pump,pump,1500"],
)  # fmt: skip
def test_a_wrong_row_of_a_manifest_is_named_and_the_others_are_read(tmp_path, command, row):
    (tmp_path / "pump").mkdir()
    for number, name in enumerate(("good", "other")):
        (tmp_path / "pump" / f"{name}.wav").write_bytes(as_wav(noise(20_000, number)))
    (tmp_path / "manifest.csv").write_text(f"path,domain,rpm\npump/other.wav,pump,1500\n{row}\n")
    for words in (("diagnose",), ("predict", "general")):
        status, printed, said = command(*words, tmp_path, "--bearing", "6205", "--format", "json")
        rows = json.loads(printed)["recordings"]
        assert (status, len(rows)) == (3, 2)
        assert rows[0]["recording"] == str(tmp_path / "pump" / "other.wav")
        assert "row 3" in said
    catalogue = Folder(tmp_path).catalogue()
    assert ([entry.origin for entry in catalogue.entries], len(catalogue.problems)) == (["pump/other.wav"], 1)


def test_a_wrong_row_about_a_file_is_named_where_the_file_alone_is_asked_for(tmp_path):
    (tmp_path / "a.wav").write_bytes(as_wav(noise(20_000)))
    (tmp_path / "manifest.csv").write_text("path,domain,rpm\na.wav,pump,-5\n")
    problems = [found for found in find_measurements([tmp_path / "a.wav"]) if "row 2" in found.name]
    assert len(problems) == 1


def test_a_manifest_of_files_that_are_missing_is_bad_input(tmp_path, command):
    (tmp_path / "manifest.csv").write_text("path,domain\ngone.wav,pump\n")
    for words in (("diagnose", tmp_path), ("predict", "general", tmp_path), ("data", "check", tmp_path)):
        status, _, said = command(*words)
        assert (status, "gone.wav" in said) == (2, True)


def test_a_manifest_that_is_a_pipe_is_named_and_other_folders_are_read(tmp_path, odd_folder):
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / "manifest.csv")
    words = ("diagnose", tmp_path / "piped", odd_folder / "pump" / "faulty.wav", *KNOWN, "--format", "csv")
    found = bearcat(*words, timeout=60)
    assert found.returncode == 1
    assert "faulty.wav" in found.stdout
    assert "manifest.csv" in found.stderr
    assert bearcat("data", "check", tmp_path / "piped", timeout=60).returncode == 2


@pytest.mark.parametrize("name", ["a.wav", "a.npy"])
def test_a_file_that_shrinks_while_it_is_read_is_a_sentence(tmp_path, name):
    """A map of it would be SIGBUS, which ends the process."""
    path, samples = tmp_path / name, noise(2**20)
    path.write_bytes(as_wav(samples) if name.endswith("wav") else as_npy(samples))
    stream = open_stream(path)
    assert np.array_equal(next(stream.blocks), samples[: 2**18])
    os.truncate(path, 2**16)
    with pytest.raises(InputError, match=name):
        list(stream.blocks)


@pytest.mark.parametrize("shape", [(1000, 3), (3, 1000), (1000, 1), (1, 1000)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_tables_are_read_as_numpy_reads_them(tmp_path, monkeypatch, shape, order):
    monkeypatch.setattr("bearcat.data.signals.PART", 700)
    table = np.asarray(noise(shape[0] * shape[1]).reshape(shape), order=order)
    np.save(tmp_path / "a.npy", table)
    columns = table if shape[0] > shape[1] else table.T
    with open_signals(tmp_path / "a.npy", "a.npy") as opened:
        for number, name in enumerate(opened.channels):
            found = np.concatenate([part[name] for part in opened.read([name])])
            assert np.array_equal(found, columns[:, number])


def test_names_of_channels_can_be_printed(tmp_path):
    path = write_instrument(tmp_path / "a.tdms", {"vib\x1b[2J": noise(3000), "rest": noise(3000, 1)}, 12_000)
    with open_signals(path, "a.tdms") as opened:
        assert list(opened.channels) == ["vib\\x1b[2J", "rest"]
        found = np.concatenate([part["vib\\x1b[2J"] for part in opened.read(["vib\\x1b[2J"])])
    assert np.allclose(found, noise(3000))


# Numbers.


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 1e300, float("inf"), float("nan")])
def test_numbers_outside_their_ranges_are_refused_wherever_they_come_from(command, tmp_path, value):
    for name in ("rate", "rpm"):
        with pytest.raises(InputError, match="between"):
            check_range(name, value)
        with pytest.raises(InputError, match="between") as raised:
            Given(**{name: value})
        assert raised.value.field == name
        with pytest.raises(InputError, match="between"):
            replace(make_recording(), **{name: value})
        status, _, said = command("diagnose", tmp_path, f"--{name}", value)
        assert (status, f"--{name}" in said) == (2, True)
    for option in ("--bpfo", "--bearing"):
        words = {"--bpfo": [value, "--bpfi", 5.4], "--bearing": [f"balls=9,ball={value},pitch=39.04"]}[option]
        assert command("diagnose", tmp_path, option, *words)[0] == 2


def test_every_range_has_two_ends_and_words():
    assert all(each.lowest < each.highest and each.title in f"{each.title} {each.words}" for each in RANGES.values())
    assert not any(each.holds(wrong) for each in RANGES.values() for wrong in (True, "5", None, float("nan")))


# Names on their way out.


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@a", "plain", "'=1"])
def test_a_table_for_spreadsheets_holds_no_formula_and_reads_back(name):
    written = csv_cell(name)
    assert not written.startswith(("=", "+", "-", "@"))
    assert from_csv_cell(written) == name
    assert csv_cell(-1.5) == -1.5
    assert csv_cell("\t=1\x1b[2J") == "'\\t=1\\x1b[2J"
    table = Table("t", "", "", ("recording", "value"), ((TableEntry(name), TableEntry("1", 1.0)),))
    assert not csv_text(table).splitlines()[1].startswith(("=", "+", "-", "@", "\t"))


def test_what_is_shown_has_no_control_characters_and_json_no_nan():
    assert shown("pump 10 kHz µ² – ü") == "pump 10 kHz µ² – ü"
    assert shown("a\x1b]0;x\x07\r\n\u202e\udcff\x9b").isprintable()
    hostile = "a\x9b\x7f\u202e\u2028\udcff ü µ² 🐻"
    written = to_json({"name": hostile}, indent=1)
    assert json.loads(written) == {"name": hostile}
    assert all(line.isprintable() for line in written.split("\n"))
    assert "ü µ² 🐻" in written
    assert json.loads(to_json({"a": [float("nan"), 1.5], "b": float("inf")}), parse_constant=pytest.fail) == {
        "a": [None, 1.5],
        "b": None,
    }


def test_names_act_on_nobody_from_a_folder_to_terminal_table_and_json(tmp_path, command, monkeypatch):
    """A recording, a domain and a label that a terminal or a spreadsheet would act upon; silence, which has no level."""
    monkeypatch.chdir(tmp_path)
    names = ("=1+1.wav", "@sum\x1b[2J.wav", "-silent.wav")
    for name, samples in zip(names, (noise(20_000), noise(20_000, 1), np.zeros(20_000, np.float32)), strict=True):
        (tmp_path / name).write_bytes(as_wav(samples))
    for words in (("diagnose",), ("predict", "general")):
        for form in ("table", "csv", "json"):
            status, printed, said = command(*words, "--rpm", 1500, "--bearing", "6205", "--format", form, "--", *names)
            assert status in (1, 3)
            assert "\x1b" not in printed + said
            if form == "csv":
                cells = [row["recording"] for row in csv.DictReader(printed.splitlines())]
                assert sorted(cells) == ["'-silent.wav", "'=1+1.wav", "'@sum\\x1b[2J.wav"]
            elif form == "json":
                assert len(json.loads(printed, parse_constant=pytest.fail)["recordings"]) == len(names)
    (tmp_path / "manifest.csv").write_text("path,domain,label\n=1+1.wav,=pump\x1b[2J,@inner\x07\n-silent.wav,-b,a\n")
    for form in ("table", "csv", "json"):
        status, printed, said = command("data", "check", tmp_path, "--format", form)
        assert "\x1b" not in printed + said
        assert "\x07" not in printed + said
        assert not any(line.startswith(("=", "@", "-")) for line in printed.splitlines() if form == "csv")


def test_texts_of_a_model_are_shown_and_not_obeyed(tmp_path, command):
    (tmp_path / "a.wav").write_bytes(as_wav(noise(20_000)))
    reasons = ["\x1b]0;taken\x07", "=1+1"]
    decision = {"action": "check", "expected": 0.5, "interval": None, "reasons": reasons}
    classes = ("healthy", "in\x1b[2Jner", "@outer", "ball\r\nok")
    save_model(tmp_path / "model", made_model(classes=classes, decision=decision))
    for form in ("table", "csv", "json"):
        status, printed, said = command("predict", tmp_path / "model", tmp_path / "a.wav", "--format", form)
        assert status in (1, 2, 3), said
        assert not set("\x1b\x07\r") & set(printed.replace("\r\n", "\n") + said)


def test_what_a_killed_process_left_half_written_is_removed_later(tmp_path):
    """Not at once, since another process may be writing it."""
    code = "import os, pathlib, signal, bearcat.storage as storage\n"
    code += "storage.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
    code += "storage.write_atomically(pathlib.Path('a.json'), b'new')"
    (tmp_path / "a.json").write_bytes(b"old")
    assert subprocess.run([PYTHON[0], "-c", code], cwd=tmp_path, timeout=60).returncode == -9
    (draft,) = set(tmp_path.iterdir()) - {tmp_path / "a.json"}
    write_atomically(tmp_path / "a.json", b"newer")
    assert draft.exists()
    os.utime(draft, (1e9, 1e9))
    write_atomically(tmp_path / "a.json", b"newest")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"newest"]


# Exit status.


@pytest.mark.parametrize(
    ("words", "status"), [(("methods",), 0), (("diagnose", "good.wav"), 0), (("diagnose", "."), 1)]
)
@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", "| head -c 1 >/dev/null"])
def test_streams_that_are_closed_or_full_are_no_alarm_and_hide_none(tmp_path, words, status, redirect):
    """The folder holds a file that cannot be read, which standard error names, and one of a fault."""
    (tmp_path / "good.wav").write_bytes(as_wav(noise(20_000)))
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    (tmp_path / "faulty.wav").write_bytes(faulty())
    given = map(str, KNOWN if words[0] == "diagnose" else ())
    quoted = " ".join([PYTHON[0], "-c", f"'{PYTHON[2]}'", *words, *given])
    call = f"{quoted} {redirect}; exit ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", call], cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=60)
    assert found.returncode in ((status, 141) if redirect.startswith("|") else (status,))


def test_a_list_of_files_in_python_is_accounted_for_too(odd_folder):
    files = [odd_folder / "pump" / name for name in ("rate0.npz", "faulty.wav", "missing.wav")]
    found = diagnose(files, rpm=1500, bearing="6205")
    assert [each.state == "unreadable" for each in found] == [True, False, True]
    assert list(diagnose(files[:1]).problems) == [str(files[0])]
    with pytest.raises(InputError, match=r"rate0\.npz"):
        diagnose(files[0])
