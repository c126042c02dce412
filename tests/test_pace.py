"""How long a grid still takes, and what is said of it where there is no terminal."""

from __future__ import annotations

import re

import pytest

from bearcat.cli import bench
from bearcat.cli.bench import Pace
from bearcat.runs.grid import plan, read_grid
from bearcat.runs.spec import Library
from tests.test_bench_plan import SMALL, written


def test_the_time_left_of_a_resumed_grid_is_that_of_a_fresh_one_at_its_speed():
    """Ten runs: four were done before, and a stack of two resumes behind epoch 50 of 100, an epoch every second."""
    now = [100.0]
    pace = Pace(10, lambda: now[0])
    for run in "abcd":
        pace.settle(run, by_us=False)
    assert pace.seconds_left is None  # nothing to judge by
    for epoch in range(51, 101):
        now[0] += 1
        pace.epoch("ef", epoch, 100)
        left = (100 - epoch) + 4 / 2 * 100  # this stack, and two more like it from the beginning
        assert pace.seconds_left == pytest.approx(left)
    pace.settle("e", by_us=True)
    pace.settle("f", by_us=True)
    assert pace.done == 6
    assert pace.seconds_left == pytest.approx(200)


def test_without_a_terminal_a_line_comes_when_it_is_due(tmp_path, monkeypatch, capsys):
    specs = [Library().identified(spec) for spec in plan(read_grid(written(tmp_path, SMALL)))]
    monkeypatch.setattr(bench, "LINE_SECONDS", 0.0)
    with bench._bench_bar(specs, set()) as listener:
        listener.settled(specs[0].identity, False)
        listener.epoch([specs[1].identity], 1, 2)
    lines = re.findall(r"^runs: (.*)$", capsys.readouterr().err, re.MULTILINE)
    assert lines[0].startswith(f"1/{len(specs)}")
    assert "epoch 1/2" in lines[1]
    assert "left" in lines[1]
    monkeypatch.setattr(bench, "LINE_SECONDS", 3600.0)
    with bench._bench_bar(specs, set()) as listener:
        listener.settled(specs[0].identity, False)
    assert "runs: 1/" not in capsys.readouterr().err
