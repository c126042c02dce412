"""The command line as a stranger meets it: in its own process, by exit status and words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.commands import PYTHON, bearcat
from tests.test_folder import put


def test_hit_sm_is_checked_completely(real_data):
    result = bearcat("data", "check", "hit-sm", "--root", real_data("hit-sm"))
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r" 256 ", result.stdout)) == 21
    assert "rig 'self' is not there" in result.stderr


def test_a_stranger_with_three_csv_files_sees_them(tmp_path):
    put(tmp_path / "mine" / "600rpm" / "healthy" / "a.csv", 1, rate=12_000)
    put(tmp_path / "mine" / "600rpm" / "inner" / "b.csv", 2, rate=12_000)
    put(tmp_path / "mine" / "900rpm" / "c.csv", 3, rate=12_000)
    result = bearcat("data", "check", "mine", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "3 recordings in 2 domains" in result.stdout
    result = bearcat("data", "show", "mine", "--out", "pictures/shift.png", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "pictures" / "shift.png").read_bytes().startswith(b"\x89PNG")


def test_speed_and_bearing_are_shown_where_they_are_known(tmp_path):
    put(tmp_path / "600rpm" / "healthy" / "a.csv", 1, rate=12_000)
    put(tmp_path / "pump" / "b.csv", 2, rate=12_000)
    result = bearcat("data", "check", tmp_path, "--rpm", 980, "--bearing", "6205-2RS")
    assert result.returncode == 0, result.stderr
    for domain, speed in (("600rpm", 600), ("pump", 980)):
        assert re.search(rf"^{domain} .* {speed}  +6205 *$", result.stdout, re.MULTILINE)
    table = bearcat("data", "check", tmp_path).stdout
    assert "rpm" in table
    picture = tmp_path.parent / "marked.png"
    assert bearcat("data", "show", tmp_path, "--bearing", "6205", "--out", picture).returncode == 0
    assert picture.exists()


def test_missing_files_are_named_and_the_status_is_2(tmp_path):
    result = bearcat("data", "check", "cwru", "--root", tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("missing in") == 40
    assert re.search(r"^bearcat: cwru: .*\b40\b", result.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data", "check", "cwro"], "did you mean 'cwru'"),
        (["data", "check", "./nowhere"], "there is no such folder"),
        (["data", "check", "simulated", "--domain", "N15"], "unknown domain 'N15'"),
        (["data", "check", "simulated", "--set", "second=1"], "did you mean 'seconds'"),
        (["data", "check", "simulated", "--set", "seconds"], "write NAME=VALUE"),
        (["data", "check", "simulated", "--set", "seconds=-1"], "seconds"),
        (["data", "check", "simulated", "--window", "1"], "--window"),
        (["diagnose"], "FILES"),
        (["dignose"], "dignose"),
        (["diagnose", ".", "--rmp", "1"], "--rmp"),
        (["diagnose", ".", "--rpm", "1", "--rpm", "2"], "give it once"),
        (["data", "check", "simulated", "--channel", "x"], "unknown setting 'channel'"),
        (["data", "check", ".", "--bearing", "nonsense"], "bearing 'nonsense'"),
        (["data", "check", ".", "--rpm", "-5"], "rpm"),
        (["data", "show", "simulated", "--domain", "0"], "two domains"),
        (["data", "show", "simulated", "--domain", "0", "--domain", "1", "--out", "x.abc"], "x.abc: cannot be written"),
        (["data", "fetch", "folder", "--root", "."], "nothing to fetch"),
        (["data", "fetch", "paderborn", "--root", "pu"], "CC BY-NC 4.0"),
    ],
)
def test_bad_words_get_one_sentence_and_status_2(tmp_path, words, sentence):
    result = bearcat(*words, folder=tmp_path)
    assert result.returncode == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("bearcat: ")]
    assert len(errors) == 1
    assert sentence in errors[0]


@pytest.mark.parametrize(("words", "status"), [(("methods",), 141), (("data", "list"), 141), (("methods", "DANNN"), 2)])
def test_a_reader_that_has_gone_and_a_full_disk_are_no_alarm(words, status):
    with subprocess.Popen([*PYTHON, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.close()
        assert process.wait() == status
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([*PYTHON, *words], stdout=full, stderr=full, check=False).returncode == 2


def test_list_version_and_help():
    listed = bearcat("data", "list").stdout
    for name in ("simulated", "paderborn", "cwru", "hit-sm", "folder", "CC BY-NC 4.0"):
        assert name in listed
    assert bearcat("--version").stdout.startswith("bearcat 0.")
    for words in ((), ("data",), ("bench",), ("watch",)):
        shown = bearcat(*words)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "Usage: bearcat" in shown.stdout
