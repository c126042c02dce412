"""The command line as a stranger meets it: by exit status and words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.commands import PYTHON, bearcat
from tests.test_folder import put


def test_a_stranger_with_csv_files_sees_them_with_speed_and_bearing(tmp_path, command):
    put(tmp_path / "600rpm" / "healthy" / "a.csv", 1, rate=12_000)
    put(tmp_path / "600rpm" / "inner" / "b.csv", 2, rate=12_000)
    put(tmp_path / "pump" / "c.csv", 3, rate=12_000)
    known = ("--rpm", 980, "--bearing", "6205-2RS")
    status, output, _ = command("data", "check", tmp_path, *known)
    assert (status, "3 recordings in 2 domains" in output) == (0, True)
    for domain, speed in (("600rpm", 600), ("pump", 980)):
        assert re.search(rf"^{domain} .* {speed}  +6205 *$", output, re.MULTILINE)
    picture = tmp_path.parent / "pictures" / "shift.png"
    assert command("data", "show", tmp_path, *known, "--out", picture)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("data check cwro", "did you mean 'cwru'"),
        ("data check ./nowhere", "there is no such folder"),
        ("data check simulated --domain N15", "unknown domain 'N15'"),
        ("data check simulated --set second=1", "did you mean 'seconds'"),
        ("data check simulated --set seconds", "write NAME=VALUE"),
        ("data check simulated --set seconds=-1", "seconds"),
        ("data check simulated --window 1", "--window"),
        ("diagnose", "FILES"),
        ("dignose", "dignose"),
        ("diagnose . --rmp 1", "--rmp"),
        ("data check simulated --channel x", "unknown setting 'channel'"),
        ("data check . --bearing nonsense", "bearing 'nonsense'"),
        ("data show simulated --domain 0", "two domains"),
        ("data show simulated --domain 0 --domain 1 --out x.abc", "x.abc: cannot be written"),
        ("data fetch folder --root .", "nothing to fetch"),
        ("data fetch paderborn --root pu", "CC BY-NC 4.0"),
    ],
)
def test_bad_words_get_one_sentence_and_status_2(tmp_path, monkeypatch, command, words, sentence):
    monkeypatch.chdir(tmp_path)
    status, _, errors = command(*words.split())
    (line,) = [line for line in errors.splitlines() if line.startswith("bearcat: ")]
    assert (status, sentence in line) == (2, True), line


@pytest.mark.parametrize(("words", "status"), [(("methods",), 141), (("data", "list"), 141), (("methods", "DANNN"), 2)])
def test_a_reader_that_has_gone_a_full_disk_and_a_closed_output_are_no_alarm(words, status):
    with subprocess.Popen([*PYTHON, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.close()
        assert process.wait() == status
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([*PYTHON, *words], stdout=full, stderr=full, check=False).returncode == 2
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *PYTHON, *words], capture_output=True, check=False)
    assert (closed.returncode, b"Traceback" in closed.stderr) == (status % 141, False)


def test_list_version_and_help(command):
    listed = command("data", "list")[1]
    assert all(name in listed for name in ("simulated", "paderborn", "cwru", "hit-sm", "folder", "CC BY-NC 4.0"))
    assert command("--version")[1].startswith("bearcat 0.")
    for words in ((), ("data",), ("bench",), ("watch",)):
        result = bearcat(*words)
        assert (result.returncode, result.stderr) == (0, "")
        assert "Usage: bearcat" in result.stdout
