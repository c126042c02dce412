"""`adapt` leaves out recordings that cannot be used and names them, as the other commands do; or says what is lacking."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bearcat.data import Task, open_dataset
from bearcat.data.choose import Requested, choose_settings
from tests.commands import bearcat
from tests.test_folder import manifest, put

GOOD = ("a/healthy/1.csv", "a/healthy/2.csv", "a/inner/1.csv", "a/inner/2.csv", "b/1.csv", "b/2.csv", "b/3.csv")
SETTINGS = {"method": "DANN", "epochs": 1, "window": 256, "device": "cpu"}
RED = "\x1b[31m<b>.mat"


def good_folder(root: Path) -> Path:
    for number, name in enumerate(GOOD):
        put(root / name, number, samples=12_000, rate=12_000)
    return root


def bad_files(root: Path) -> set[str]:
    """Writes a file of each kind that cannot be used; their names as they are shown."""
    (root / "a/inner" / RED).write_bytes(b"MATLAB 5.0 junk" * 20)
    (root / "a/healthy/empty.csv").write_text("")
    (root / "a/healthy/self.wav").symlink_to("self.wav")
    (root / "b/same.csv").write_bytes((root / "b/1.csv").read_bytes())
    values = np.random.default_rng(9).standard_normal((2, 5000))
    np.savez(root / "b/rate.npz", x=values[0], fs=1e300)
    np.savez(root / "b/far.npz", x=values[0], fs=1e9)
    np.savez(root / "b/two.npz", left=values[0], right=values[1], fs=12_000.0)
    np.savez(root / "b/none.npz", x=np.where(np.arange(5000) > 4000, np.nan, values[0]), fs=12_000.0)
    put(root / "b/short.csv", 20, samples=90, rate=12_000)
    os.mkfifo(root / "b/pipe.wav")
    put(root / "loose.csv", 21)
    put(root / "a/inner/deep/1.csv", 22)
    (root / "b/link.wav").symlink_to("/etc/hostname")
    target = ("same.csv", "rate.npz", "far.npz", "two.npz", "none.npz", "short.csv", "pipe.wav", "link.wav")
    source = ("inner/\\x1b[31m<b>.mat", "healthy/empty.csv", "healthy/self.wav", "inner/deep/1.csv")
    return {"loose.csv", *(f"a/{name}" for name in source), *(f"b/{name}" for name in target)}


def test_adapt_leaves_out_what_cannot_be_used_names_it_everywhere_and_is_another_run(tmp_path):
    root, out = good_folder(tmp_path / "mine"), tmp_path / "out"
    words = ("adapt", "--data", root, "--source", "a", "--target", "b", "--out", out)
    words += tuple(word for name, value in SETTINGS.items() for word in (f"--{name}", value))
    assert bearcat(*words, pictures=False).returncode == 0
    before = json.loads((out / "record.json").read_text())
    bad = bad_files(root)
    other = bearcat(*words, pictures=False)
    assert other.returncode == 2
    assert "holds another run" in other.stderr, "the bad files are part of what a run is"
    words = (*words[:-9], out.with_name("second"), *words[-8:])
    found = bearcat(*words)
    assert found.returncode == 2, found.stderr
    assert found.stderr.count("problem: ") == len(bad)
    assert "\x1b" not in found.stdout + found.stderr
    record = json.loads((tmp_path / "second/record.json").read_text())
    assert set(record["problems"]) == bad
    assert {each["recording"] for each in record["recordings"]} == {"b/1.csv", "b/2.csv", "b/3.csv"}
    sizes = ("classes", "source_train", "target_train", "target_test")
    assert [record["data"][name] for name in sizes] == [before["data"][name] for name in sizes]
    assert record["data"]["identity"] != before["data"]["identity"]
    page = (tmp_path / "second/report.html").read_text()
    assert "b/none.npz" in page
    assert "&lt;b&gt;.mat" in page
    assert "<b>.mat" not in page
    checked = bearcat("data", "check", root)
    assert checked.returncode == 2
    named, left_out = (
        [line.split(": ")[1] for line in each.stderr.splitlines() if line.startswith("problem: ")]
        for each in (checked, found)
    )
    assert sorted(named) == sorted(left_out)


@pytest.mark.parametrize(
    ("lost", "words"), [(GOOD[2:4], "class 'inner' of the source"), (GOOD[4:], "domain 'b'"), (GOOD, "domain 'a'")]
)
def test_where_too_little_is_left_nothing_is_trained(tmp_path, lost, words, command):
    root = good_folder(tmp_path / "mine")
    for number, name in enumerate(lost):
        (root / name).write_text("nan\n" * (2000 + number))
    task = ("--source", "a", "--target", "b", "--out", tmp_path / "out")
    status, _, errors = command("adapt", "--data", root, *task)
    assert (status, (tmp_path / "out").exists()) == (2, False)
    assert words in errors.replace("\n", " ")
    assert lost[0] in errors


def test_a_recording_that_is_listed_twice_is_used_once(tmp_path):
    root = good_folder(tmp_path)
    rows = [f"{name},{name[0]},{name.split('/')[1] if name[0] == 'a' else ''}" for name in GOOD]
    folder = open_dataset(str(manifest(root, "\n".join(["path,domain,label", *rows, rows[-1]]))))
    _, catalogue, _ = choose_settings(folder, folder.catalogue(), Task("a", "b"), Requested(window=256))
    assert [entry.origin for entry in catalogue.entries] == list(GOOD)
    assert [problem.origin for problem in catalogue.left_out] == [GOOD[-1]]
