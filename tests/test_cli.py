"""The command line as a stranger meets it: in its own process, by exit status and words."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import get_type_hints

import numpy as np
import pytest
from typer.models import OptionInfo

from bearcat.cli import app
from tests.commands import bearcat
from tests.test_folder import put


def test_cwru_is_checked_completely(real_data):
    result = bearcat("data", "check", "cwru", "--root", real_data("cwru"))
    assert result.returncode == 0, result.stderr
    assert "40 recordings in 4 domains" in result.stdout
    assert result.stdout.count("outer-021") == 4


def test_hit_sm_is_checked_completely(real_data):
    result = bearcat("data", "check", "hit-sm", "--root", real_data("hit-sm"), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert result.returncode == 0, result.stderr
    assert len(rows) == 21
    assert {row["windows"] for row in rows} == {"256"}
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
    result = bearcat("data", "check", tmp_path, "--rpm", 980, "--bearing", "6205-2RS", "--format", "csv")
    rows = {row["domain"]: row for row in csv.DictReader(io.StringIO(result.stdout))}
    assert result.returncode == 0, result.stderr
    assert {domain: (row["rpm"], row["bearing"]) for domain, row in rows.items()} == {
        "600rpm": ("600", "6205"),
        "pump": ("980", "6205"),
    }
    table = bearcat("data", "check", tmp_path).stdout
    assert "rpm" in table
    assert "bearing" not in table, "nobody said it"
    picture = tmp_path.parent / "marked.png"
    assert bearcat("data", "show", tmp_path, "--bearing", "6205", "--out", picture).returncode == 0
    assert picture.exists()


def test_a_picture_of_files_without_a_rate_and_of_a_domain_without_a_class(tmp_path):
    put(tmp_path / "a" / "inner" / "1.csv", 1)
    put(tmp_path / "a" / "outer" / "1.csv", 2)
    put(tmp_path / "b" / "outer" / "1.csv", 3, samples=700)
    result = bearcat("data", "show", tmp_path, "--domain", "b", "--domain", "0", "--out", tmp_path / "x.png")
    assert result.returncode == 0, result.stderr
    assert "b and a, 2 classes" in result.stdout


def test_missing_files_are_named_and_the_status_is_2(tmp_path):
    result = bearcat("data", "check", "cwru", "--root", tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("missing in") == 40
    assert re.search(r"^bearcat: cwru: .*\b40\b", result.stderr, re.MULTILINE)


def test_one_domain_can_be_checked_alone(real_data, tmp_path):
    for number in (97, 105, 118, 130, 169, 185, 197, 209, 222, 234):
        (tmp_path / f"{number}.mat").symlink_to(real_data("cwru") / f"{number}.mat")
    assert bearcat("data", "check", "cwru", "--root", tmp_path).returncode == 2
    assert bearcat("data", "check", "cwru", "--root", tmp_path, "--domain", "load0").returncode == 0


def test_settings_reach_the_dataset_and_json_is_complete():
    result = bearcat(
        "data",
        "check",
        "simulated",
        "--set",
        "seconds=0.5",
        "--set",
        "severities=1",
        "--window",
        "512",
        "--format",
        "json",
    )
    found = json.loads(result.stdout)
    assert result.returncode == 0
    assert len(found["rows"]) == 16  # healthy, inner, outer, both × 4 conditions
    assert found["rows"][0]["windows"] == 15
    assert found["problems"] == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data", "check", "cwro"], "did you mean 'cwru'"),
        (["data", "check", "./nowhere"], "there is no such folder"),
        (["data", "check", "simulated", "--domain", "N15"], "unknown domain 'N15'"),
        (["data", "check", "simulated", "--set", "second=1"], "did you mean 'seconds'"),
        (["data", "check", "simulated", "--set", "seconds"], "write NAME=VALUE"),
        (["data", "check", "simulated", "--set", "seconds=-1"], "seconds"),
        (["data", "check", "simulated", "--window", "1"], "length"),
        (["data", "check", "simulated", "--format", "jsn"], "did you mean 'json'?"),
        (["data", "check", "simulated", "--channel", "x"], "unknown setting 'channel'"),
        (["data", "check", ".", "--bearing", "nonsense"], "bearing 'nonsense'"),
        (["data", "check", ".", "--rpm", "-5"], "rpm"),
        (["data", "show", "simulated", "--domain", "0"], "two domains"),
        (["data", "show", "simulated", "--set", "seconds=0.2", "--out", "x.abc"], "x.abc: cannot be written"),
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


def test_unreadable_files_do_not_stop_the_table(tmp_path):
    put(tmp_path / "a" / "inner" / "1.csv", 1)
    put(tmp_path / "b" / "inner" / "1.csv", 2)
    (tmp_path / "b" / "inner" / "2.npy").write_bytes(b"junk")
    result = bearcat("data", "check", tmp_path)
    assert result.returncode == 2
    assert "2 recordings in 2 domains" in result.stdout
    assert f"problem: {tmp_path}/b/inner/2.npy: " in result.stderr, "a path that leads there"


def test_list_version_and_help():
    listed = bearcat("data", "list").stdout
    for name in ("simulated", "paderborn", "cwru", "hit-sm", "folder", "CC BY-NC 4.0"):
        assert name in listed
    assert bearcat("--version").stdout.startswith("bearcat 0.")
    assert "check" in bearcat("data", "--help").stdout


@pytest.mark.parametrize("words", [["data", "list"], ["adapt", "--window", "20"]])
def test_a_python_that_starts_anew_answers_the_same(tmp_path, words):
    """Elsewhere commands are forks of a process that has imported everything."""
    anew, fork = (bearcat(*words, folder=tmp_path, fresh=fresh) for fresh in (True, False))
    assert (anew.returncode, anew.stdout, anew.stderr) == (fork.returncode, fork.stdout, fork.stderr)
    assert anew.stdout + anew.stderr


def test_the_picture_shows_what_the_recordings_hold(monkeypatch):
    """The axes, not the pixels: the envelope of an outer fault has its line at BPFO in both domains."""
    from bearcat.data.bearing import BEARINGS
    from bearcat.data.datasets.simulate import Simulated
    from bearcat.report import plots

    left, right = (Simulated().recording(domain, "outer-2") for domain in ("N15_M07_F10", "N09_M07_F10"))
    drawn = []
    original = plots._draw_recording

    def draw(axes, recording, colour):
        original(axes, recording, colour)
        drawn.append(axes)

    monkeypatch.setattr(plots, "_draw_recording", draw)
    plots.draw_shift([("outer-2", left, right)], ("a", "b"))
    for axes, speed in zip(drawn, (1500, 900), strict=True):
        line = axes[2].lines[0]
        peak = line.get_xdata()[np.argmax(line.get_ydata())]
        assert peak == pytest.approx(BEARINGS["6203"].frequencies(speed)["BPFO"], rel=0.02)


def test_an_unlabelled_target_stands_beside_every_class_on_axes_that_are_true(tmp_path, monkeypatch):
    from bearcat.cli.data import show
    from bearcat.data.datasets.simulate import Simulated
    from bearcat.report import plots

    for domain, label in (("N15_M07_F10", "healthy"), ("N15_M07_F10", "outer-2"), ("N09_M07_F10", "inner-1")):
        recording = Simulated(seconds=0.5).recording(domain, label)
        place = tmp_path / f"{recording.rpm:g}rpm" / ("" if domain == "N09_M07_F10" else label)
        place.mkdir(parents=True, exist_ok=True)
        np.savez(place / "a.npz", x=recording.signal, fs=recording.rate)
    drawn, draw_shift = [], plots.draw_shift

    def draw(*given):
        drawn.append((figure := draw_shift(*given)).drawing)
        return figure

    monkeypatch.setattr(plots, "draw_shift", draw)
    show(str(tmp_path), bearing="6203", out=tmp_path / "x.png")
    axes = np.array(drawn[0].axes).reshape(2, 6)
    assert all(axis.has_data() for axis in axes.flat)
    assert "unlabelled" in axes[0, 0].get_title(loc="left")
    for column in (4, 5):
        assert axes[1, column].get_xlabel() == "Hz"
        assert axes[1, column].get_xlim()[1] == pytest.approx(500, rel=0.1)
        assert {text.get_text().strip() for text in axes[0, column].texts} == {"BPFO", "BPFI", "2×BSF"}
    drawn[0].canvas.draw()  # nothing lies outside the picture
    width, height = drawn[0].canvas.get_width_height()
    for axis in axes.flat:
        box = axis.get_tightbbox()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height


def test_an_option_whose_metavar_is_its_name_in_capitals_is_declared_by_name():
    """typer 0.27 would call it by the metavar: --RPM."""
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    found = 0
    for command in (command for group in groups for command in group.registered_commands):
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            for option in getattr(hint, "__metadata__", ()):
                if isinstance(option, OptionInfo) and option.metavar == name.upper():
                    assert f"--{name}" in (option.default, *option.param_decls), command.callback.__name__
                    found += 1
    assert found >= 3
