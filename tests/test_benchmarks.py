"""The speed benchmarks run, small, and print what they promise."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bearcat.trust.estimates import EVIDENCE
from tests.reference import loop as reference

FOLDER = Path(__file__).parents[1] / "benchmarks"
SMALL = ["--threads", "1", "--seconds", "600", "--length", "128"]


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a benchmark on the CPU as its command would, and returns what it printed."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(importlib.import_module("workload"), "the_device", lambda: torch.device("cpu"))

    def main(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *SMALL, *words])
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        return capsys.readouterr().out

    return main


def test_stack_speed_ends_with_the_ratio_of_twin_and_loop(run):
    out = run("stack_speed.py", "--runs", "1", "2", "--windows", "64", "--repeats", "1")
    rows = re.findall(r"^ +(loop|twin|published) +(\w+) +float32 +(\d+) +([\d.]+) ", out, re.MULTILINE)
    assert [(name, runs) for name, _, runs, _ in rows] == [
        ("twin", "1"),
        ("published", "1"),
        ("loop", "1"),
        ("loop", "2"),
    ]
    last = out.strip().splitlines()[-1]
    found = re.match(r"ratio: 2 run\(s\), (\w+), float32: the twin takes ([\d.]+) times as long", last)
    assert found is not None, last
    times = {(name, runs): float(milliseconds) for name, _, runs, milliseconds in rows}
    assert float(found[2]) == pytest.approx(2 * times["twin", "1"] / times["loop", "2"], rel=0.05)


def test_scaling_prints_a_line_for_every_size_and_an_epoch_over_its_steps(run):
    out = run(
        "scaling.py", "--runs", "1", "2", "--batches", "16", "--lengths", "100", "200", "--epochs", "2", "--windows", "64",
        "--steps", "2", "--path", "plain",
    )  # fmt: skip
    assert len(re.findall(r"^ +\d+ +plain +float32 +[\d.]+ ", out, re.MULTILINE)) == 5
    assert re.search(r"an epoch of 1 steps [\d.]+ s, once .* s, its pure steps [\d.]+ s: [\d.]+ × them", out)


def test_profile_step_prints_time_by_kernel_and_both_floors(run, tmp_path):
    out = run(
        "profile_step.py",
        "--length",
        "200",
        "--steps",
        "2",
        "--path",
        "plain",
        "--rows",
        "3",
        "--out",
        str(tmp_path / "p"),
    )
    assert re.search(r"GFLOP at +\d+ GFLOP/s: at least +[\d.]+ ms, the step is [\d.]+ × that", out)
    assert re.search(r"GB    at +[\d.]+ GB/s:    at least", out)
    assert len(re.findall(r" ms +[\d.]+ % ", out)) == 3
    assert "convolution_backward" in (tmp_path / "p-plain-float32-1.txt").read_text()


def test_the_arithmetic_of_a_step_is_what_the_twin_does(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    script = runpy.run_path(str(FOLDER / "profile_step.py"))
    count, length = 8, 300
    values, labels = torch.randn(count, 1, length), torch.arange(count) % script["CLASSES"]
    settings = reference.Settings(
        align_from=0, label_from=0, calibrate_from=0, alignment=True, mcc=True, radius=0.05, teacher=True, batch=count
    )
    data = reference.Data((values, labels), (values, labels), values, classes=script["CLASSES"])
    twin = reference.Twin(settings, data)
    twin.start_epoch(0)
    with FlopCounterMode(display=False) as counter:
        twin.step(torch.arange(count), torch.arange(count))
    expected = script["arithmetic"](script["Size"](runs=1, batch=count, length=length))
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def test_recording_speed_ends_with_multiples_of_real_time_and_of_the_version_beside(monkeypatch, capsys):
    source = str(FOLDER.parent / "src")
    words = ["--repeats", "1", "--starts", "1", "--ways", "diagnose", "--beside", source]
    monkeypatch.setattr(sys, "argv", ["recording_speed.py", *words])
    runpy.run_path(str(FOLDER / "recording_speed.py"), run_name="__main__")
    out = capsys.readouterr().out
    ((real_time, floor),) = re.findall(r"^diagnose: ([\d.]+) × real time, ([\d.]+) × the FFT floor", out, re.M)
    assert float(real_time) > 1
    assert float(floor) > 1
    assert len(re.findall(r"before / now +[\d.]+ +[\d.]+", out)) == 2  # of a recording, and of starting


def test_the_alarm_benchmark_lists_every_run_once_and_in_tables(monkeypatch, capsys, tmp_path):
    def printed(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["alarm.py", *words])
        runpy.run_path(str(FOLDER / "alarm.py"), run_name="__main__")
        return capsys.readouterr().out

    out = tmp_path / "runs.csv"
    words = ["--data", "simulated", "--tasks", "N15_M07_F10:N09_M07_F10", "--third", "N15_M01_F10", "--epochs", "1"]
    words += ["--windows", "20", "--piece", "5", "--device", "cpu", "--out", str(out), "--without", "inner-2"]
    assert "1 run, 0 done before" in printed(*words)
    alone = out.read_text().splitlines()
    first = printed(*words, "outer-3")
    assert "2 runs, 1 done before" in first
    assert out.read_text().splitlines()[:2] == alone, "a run that has a row is not repeated"
    rows = {
        line.split(" |")[0][2:]: line.split(" | ")
        for line in printed("--read", str(out)).splitlines()
        if line[:1] == "|"
    }
    assert {"inner-2", "outer-3", "third condition"} <= rows.keys()
    alarmed = [re.search(r"of (\d+) \|", line) for line in first.splitlines() if " of " in line and line[:1] == "|"]
    assert [int(row[1]) for row in alarmed if row] == [2 * 9 * 1, 2 * 1 * 4, 2 * 9 * 4, 0], "pieces of five windows"


def test_prepare_speed_prints_the_ratio_to_the_loop_and_to_real_time(monkeypatch, capsys):
    words = ["--lengths", "1024", "--windows", "16", "--repeats", "1", "--seconds", "2"]
    monkeypatch.setattr(sys, "argv", ["prepare_speed.py", *words])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(FOLDER / "prepare_speed.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert re.search(r"ratio +\d", printed)
    assert "correlate 1.0000" in printed, "the loop computes the same"
    assert re.search(r"predict.* \d+ times real time", printed)


def test_past_runs_become_lines_then_the_file_of_the_package_and_the_table_of_goals(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    grid, lines, shipped = tmp_path / "grid.toml", tmp_path / "runs.jsonl.gz", tmp_path / "past_runs.json"
    grid.write_text(
        'title = "small"\ndata = { name = "simulated", settings = { seconds = 1.0 } }\nepochs = 1\nseeds = 1\n'
        'tasks = ["N15_M07_F10:N15_M07_F04"]\ninputs = ["log-spectrum"]\nsplit = { scheme = "block" }\n'
        'methods = ["dense-source-only"]\npreparation = { length = 1024 }\ntarget = [{}, { keep = ["healthy"] }]\n'
    )

    def main(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(FOLDER / name), run_name="__main__", init_globals={})
        return capsys.readouterr().out

    main("past_runs.py", "--grid", str(grid), "--out", str(lines))
    import past_runs

    runs = past_runs.read_lines([lines])
    assert [run["mix"] for run in runs] == ["all classes", "healthy only"]
    for run in runs:
        right = [said == label for said, label in zip(run["predicted"], run["labels"], strict=True)]
        assert run["truth"] == pytest.approx(sum(right) / len(right))
        found = past_runs.evidence_of(run)
        assert found["votes"] == pytest.approx(run["accuracy"]["votes"], abs=1e-4), "from letters as from arrays"
        assert found["consensus"] == pytest.approx(run["accuracy"]["consensus"], abs=1e-4)
    monkeypatch.setattr(past_runs, "SHIPPED", shipped)
    past_runs.write(runs)
    past_runs.write([run | {"shift": "machine"} for run in runs])  # kinds of shift that are not read stay
    kinds = json.loads(shipped.read_text())["shifts"]
    assert {kind for kind, groups in kinds.items() if groups} == {"condition", "machine"}
    assert kinds["condition"] == kinds["machine"]
    groups = kinds["condition"]
    assert set(groups) == {"simulated, log-spectrum, all classes", "simulated, log-spectrum, healthy only"}
    assert all(len(row) == len(EVIDENCE) + 1 for rows in groups.values() for row in rows)
    shown = main("trust.py", str(lines))
    assert "| mean width | ≤ 25 |" in shown
    assert "simulated, log-spectrum, healthy only | 1 |" in shown
