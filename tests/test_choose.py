"""What is chosen from one's own recordings, with which reason, and what is refused in one sentence."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bearcat.data import Folder, Problem, Task, load, open_dataset
from bearcat.data.choose import (
    DataSettings,
    Measurement,
    Requested,
    choose,
    choose_settings,
    paper_settings,
    usual_channel,
)
from bearcat.data.inputs import Preparation, find_input
from bearcat.errors import InputError
from tests.commands import bearcat
from tests.test_folder import put

TASK = Task("a", "b")
PLENTY = 300_000


def made(
    domain: str, label: str | None, samples: int = PLENTY, rate: float | None = 12_000.0, rpm: float | None = None,
    name: str = "1",
) -> Measurement:  # fmt: skip
    """The measurement of a recording that does not exist."""
    origin = f"{domain}/{label}/{name}.csv"
    return Measurement(domain=domain, label=label, origin=origin, rate=rate, rpm=rpm, samples=samples)


def ordinary(**changes: Any) -> list[Measurement]:
    """Two classes of the source, and an unlabelled recording of the target."""
    return [made("a", "healthy", **changes), made("a", "inner", **changes), made("b", None, **changes)]


def test_ordinary_recordings_are_prepared_as_in_the_paper_but_for_the_split():
    chosen = choose(ordinary(), TASK, Requested(), [])
    assert chosen.preparation == Preparation()
    assert (chosen.balance, chosen.split) == (False, "block")
    settings = ["channel", "rate", "window", "stride", "split", "balance"]
    assert [choice.setting for choice in chosen.choices] == settings


@pytest.mark.parametrize(
    ("rate", "rpm", "window", "parts"),
    [
        (51_200.0, 600.0, 16_384, "envelope-orders"),  # 3.2 turns
        (51_200.0, 1200.0, 8_192, "envelope-orders"),
        (12_000.0, 1730.0, 1_024, "envelope-orders"),  # 2.5 turns
        (12_000.0, 3000.0, 1_024, "envelope-orders"),  # two turns are too short for the bands
        (25_600.0, None, 16_384, "band-kurtosis"),  # 0.64 s
        (None, None, 4_096, "band-kurtosis"),
    ],
)
def test_a_physical_input_gets_windows_of_enough_turns_and_the_parts_its_metadata_allow(rate, rpm, window, parts):
    chosen = choose(ordinary(rate=rate, rpm=rpm, samples=1_000_000), TASK, Requested(input="physics"), [])
    assert chosen.preparation.length == window
    assert find_input(chosen.preparation.input).use[-1] == parts
    find_input(chosen.preparation.input).check(window, rate, rpm)
    assert ("rpm" in find_input(chosen.preparation.input).needs) == (rpm is not None)
    assert [choice.setting for choice in chosen.choices if choice.setting == "input"] == ["input"]


def test_the_lowest_rate_counts_and_is_named():
    chosen = choose([*ordinary()[:2], made("b", None, rate=4000.0)], TASK, Requested(), [])
    assert chosen.preparation.rate == 4000
    assert "4000 Hz" in [choice.value for choice in chosen.choices]


def test_what_is_requested_is_not_chosen():
    requested = Requested("x", 6_000.0, 512, 128, "window", "frequency", True)
    chosen = choose(ordinary(), TASK, requested, [], "x")
    assert chosen.choices == ()
    assert chosen.preparation == Preparation("frequency", 512, 128, 6_000.0)
    assert (chosen.split, chosen.balance) == ("window", True)


def test_named_datasets_keep_the_papers_preparation():
    assert paper_settings(Requested()) == DataSettings(Preparation(), "window", False)
    dataset = open_dataset("simulated")
    catalogue = dataset.catalogue()
    assert choose_settings(dataset, catalogue, Task("N15_M07_F10", "N09_M07_F10"), Requested(window=256)) == (
        dataset, catalogue, DataSettings(Preparation(length=256), "window", False),
    )  # fmt: skip


def test_nothing_is_chosen_by_the_targets_labels():
    plain = [*ordinary()[:2], *(made("b", None, name=str(n), rate=10_000.0 + n) for n in range(4))]
    labelled = [*plain[:2], *(replace(recording, label="inner") for recording in plain[2:])]
    assert choose(plain, TASK, Requested(), []) == choose(labelled, TASK, Requested(), [])


def write(folder: Path, **more: np.ndarray) -> Folder:
    """Three files of a vibration and other channels."""
    for number, place in enumerate(("a/healthy", "a/inner", "b")):
        (folder / place).mkdir(parents=True)
        housing = np.random.default_rng(number).standard_normal(32_768)
        np.savez(folder / place / "1.npz", fs=12_000.0, housing=housing, **more)
    return Folder(root=folder)


def test_the_only_vibration_is_chosen_and_is_the_one_that_is_read(tmp_path):
    dataset = write(tmp_path, tacho=np.zeros(32_768), oil_temperature=np.arange(32_768))
    dataset, catalogue, chosen = choose_settings(dataset, dataset.catalogue(), TASK, Requested())
    assert chosen.choices[0].value == "housing"
    recordings, scanned_again = load(catalogue), dataset.catalogue()
    assert {recording.channel for recording in recordings} == {"housing"}
    assert [entry.identity for entry in catalogue.entries] == [entry.identity for entry in scanned_again.entries]
    assert [recording.info() for recording in load(scanned_again)] == [recording.info() for recording in recordings]


def test_the_vibration_that_most_files_have_is_read():
    assert usual_channel([["x", "y"], ["x"], ["z", "x"]], None) == "x"
    assert usual_channel([["x"], ["y"]], None) is None


def test_of_several_vibrations_none_is_chosen(tmp_path):
    dataset = write(tmp_path, base=np.random.default_rng(9).standard_normal(32_768))
    with pytest.raises(InputError, match=r"housing, base.*--channel"):
        choose_settings(dataset, dataset.catalogue(), TASK, Requested())
    assert choose_settings(dataset, dataset.catalogue(), TASK, Requested(channel="base"))[0].channel == "base"


def test_uneven_classes_are_balanced_and_even_ones_are_not():
    measured = [made("a", "healthy", 1_000_000), made("a", "inner", 250_000), made("b", None)]
    chosen = choose(measured, TASK, Requested(), [])
    assert chosen.balance
    assert not choose(measured, TASK, Requested(balance=False), []).balance
    assert not choose([measured[0], made("a", "inner", 400_000), measured[2]], TASK, Requested(), []).balance


@pytest.mark.parametrize(
    ("measured", "requested", "sentence"),
    [
        ([made("a", "healthy"), made("b", None)], Requested(), "only the class 'healthy'"),
        ([made("a", None), made("b", None)], Requested(), r"a/None/1\.csv: .*label"),
        ([*ordinary()[:1], made("a", "inner", 700), made("b", None)], Requested(), "'inner' .*7 windows"),
        ([*ordinary()[:2], made("b", None, 100)], Requested(), r"100 samples .*256"),
        ([*ordinary()[:2], made("b", None, 700)], Requested(window=1024), r"700 samples .*1024"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_task_is_refused(measured, requested, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        choose(measured, TASK, requested, [])
    assert "\n" not in str(caught.value)


def test_a_domain_is_lost_to_the_check_that_refused_its_last_recordings():
    earlier = Problem("b/empty.csv", "b/empty.csv: is empty", "b")
    with pytest.raises(InputError, match=r"domain 'b' .*100 samples"):
        choose([*ordinary()[:2], made("b", None, 100)], TASK, Requested(), [earlier])


# `adapt` leaves out recordings that cannot be used and names them, as the other commands do; or says what is lacking.

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
    finished = bearcat(*words)
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.count("problem: ") == len(bad)
    assert "\x1b" not in finished.stdout + finished.stderr
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
        for each in (checked, finished)
    )
    assert sorted(named) == sorted(left_out)


@pytest.mark.parametrize(
    ("lost", "words"), [(GOOD[2:4], "class 'inner' of the source"), (GOOD[4:], "domain 'b'"), (GOOD, "domain 'b'")]
)
def test_where_too_little_is_left_nothing_is_trained(tmp_path, lost, words, command):
    root = good_folder(tmp_path / "mine")
    for number, name in enumerate(lost):
        (root / name).write_text("nan\n" * (2000 + number))
    task = ("--source", "a", "--target", "b", "--out", tmp_path / "out")
    status, _, errors = command("adapt", "--data", root, *task)
    assert (status, (tmp_path / "out").exists()) == (2, False)
    assert words in errors.replace("\n", " ")
    assert any(name in errors for name in lost)
