"""How close label-free estimates come to the truth, goal by goal; Markdown tables.

    python benchmarks/trust.py runs*.jsonl.gz calibrators.jsonl alarm*.csv bench-store … > trust.md
    python benchmarks/trust.py            # the past runs that ship with the package

Takes lines of benchmarks/past_runs.py (intervals and decisions by kind of shift, leaving out a group or a dataset at a
time; kinds that no line has are those of the package), lines of
benchmarks/calibrators.py (ECE), rows of benchmarks/alarm.py, and folders of stores (bearcat bench) or any folders whose
subfolders are runs. Only runs with target labels count. docs/trust.md says what the estimates are.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from alarm import rows_of
from past_runs import by_group, read_lines
from scipy.stats import spearmanr

from bearcat.record import CheckedEstimates
from bearcat.report.results import Cell, Result, read_result
from bearcat.trust.decision import ModelEvidence, decide
from bearcat.trust.estimates import COMPARED, EVIDENCE, FAR, SHIFTS, Past, careful, past_accuracy, past_runs, table_of

Rows = list[list[str]]


def finished(folder: Path) -> list[Result]:
    """All runs in this folder whose estimates could be checked, in order."""
    runs = folder / "runs" if (folder / "runs").is_dir() else folder
    found = [read_result(path.parent) for path in sorted(runs.glob("*/record.json"))]
    return sorted((run for run in found if run.record.estimates_checked), key=lambda run: run.cell)


def truth(run: Result) -> float:
    return checked(run).accuracy


def checked(run: Result) -> CheckedEstimates:
    assert run.record.estimates_checked is not None, "`finished` leaves out the others"
    return run.record.estimates_checked


def accuracy_rows(results: Sequence[Result]) -> Rows:
    """Expected accuracy: its error, how often the interval holds the truth, and whether it ranks runs rightly."""
    found: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)  # value, low, high, truth
    for run in results:
        for name, estimate in {**run.record.estimates.accuracy, "expected": run.record.estimates.expected}.items():
            if estimate is not None:
                found[name].append((estimate.value, estimate.low, estimate.high, truth(run)))
    rows = []
    for name, numbers in found.items():
        value, low, high, real = np.array(numbers).T
        off, inside = value - real, (low <= real) & (real <= high)
        shares = [off.mean(), np.abs(off).mean(), np.quantile(np.abs(off), 0.9), inside.mean()]
        below = str(int((real < low - FAR).sum()))
        rows.append([name, str(len(off)), *map(points, shares), below, ratio(correlation(value, real))])
    return rows


def familiarity_rows(results: Sequence[Result]) -> Rows:
    """Unfamiliar windows, means over runs, beside the rate they were set for."""
    estimated = [asdict(run.record.estimates.familiarity) for run in results]
    measured = [checked(run).familiarity for run in results]
    rate = points(mean([each["rate"] for each in estimated]))
    rows = []
    for words, records, name in (
        ("held-out windows of the target", estimated, "false_alarms"),
        ("windows of the source", estimated, "source_unfamiliar"),
        ("windows of classes the source lacks", measured, "unknown_unfamiliar"),
        ("windows given a wrong class", measured, "wrong_unfamiliar"),
    ):
        promised = rate if name == "false_alarms" else ""
        rows.append([words, promised, points(mean([record[name] for record in records]))])
    return rows


def groups_of(results: Sequence[Result], key: Callable[[Cell], Any]) -> list[list[Result]]:
    found: dict[Any, list[Result]] = defaultdict(list)
    for run in results:
        found[key(run.cell)].append(run)
    return list(found.values())


def correlation(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return float("nan")
    return float(spearmanr(first, second).statistic)


def mean(values: Sequence[float | None]) -> float:
    """Of those that are numbers; nan where none is."""
    kept = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(kept)) if kept else float("nan")


def points(value: float) -> str:
    return f"{100 * value:.1f}" if np.isfinite(value) else "–"


def ratio(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "–"


Shown = tuple[str, tuple[str, ...], Callable[[Sequence[Result]], Rows]]
ACCURACY: Shown = (
    "Expected accuracy, in points",
    ("estimate", "runs", "too high by", "off by", "90 % off by at most", "truth in 90 % interval",
     f"runs more than {100 * FAR:.0f} below it", "rank correlation"),
    accuracy_rows,
)  # fmt: skip
FAMILIARITY: Shown = ("Unfamiliar windows", ("of", "set for", "measured"), familiarity_rows)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return f"### {title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in lines)


# Past runs: how intervals and decisions hold in groups, or datasets, that take no part in making them.

POOR, RIGHT = 0.8, 0.97  # truth below and from which on a run must not, and must, be advised for use
HIGH = 0.15  # an expected accuracy that is more above the truth is far too high
BY_SHIFT = (
    "shift", "judged as", "runs", "mean accuracy", f"more than {100 * HIGH:.0f} points too high", "off by", "inside", "width",
    "truth below 80, advised to use", "truth of 97 or more, advised to use",
)  # fmt: skip
INTERVALS = (
    "left out", "runs", "mean accuracy", "off by", "inside", f"more than {100 * FAR:.0f} points below", "width",
)  # fmt: skip


BENCHES = {"across-machines": {"cwru", "hit-sm"}}  # a dataset holds the bench of its own name, but for these


def benches_of(group: str) -> set[str]:
    dataset = group.partition(",")[0]
    return BENCHES.get(dataset, {dataset})


def left_out(past: Mapping[str, Past], shift: str, whole: bool, judged: str | None = None) -> dict[str, np.ndarray]:
    """For each group of this kind of shift (run, 5): truth, value, low, high, and whether it is advised for use.

    `whole`: all groups that share a bench with it are left out; `judged`: as if the shift were of this other kind. A
    group is skipped where nothing else is left.
    """
    judged, found = judged or shift, {}
    every = [(kind, group, rows) for kind in COMPARED[judged] for group, rows in past.get(kind, {}).items()]
    for group, runs in past[shift].items():
        others = {
            f"{other}, {kind}": rows
            for kind, other, rows in every
            if (kind, other) != (shift, group) and not (whole and benches_of(other) & benches_of(group))
        }
        if not others:
            continue
        rest, rows = table_of(others), []
        for *place, real in runs:
            middle = past_accuracy(dict(zip(EVIDENCE, place, strict=True)), judged, rest)
            expected = careful(middle, judged)
            use = decide(ModelEvidence(expected, median=middle.value, shift=judged)).action == "use"
            rows.append((real, expected.value, expected.low, expected.high, use))
        found[group] = np.array(rows, dtype=float)
    return found


def shift_table(past: Mapping[str, Past]) -> None:
    """How estimates hold by kind of shift, a bench left out; also as if the kind were another, or not known."""
    rows = []
    for shift in (kind for kind in SHIFTS if past.get(kind)):
        for judged in dict.fromkeys((shift, "condition", "unknown")):
            groups = left_out(past, shift, True, judged)
            if not groups:
                continue
            found = np.concatenate(list(groups.values()))
            real, value, low, high, use = found.T
            inside = (low - 1e-9 <= real) & (real <= high + 1e-9)
            shares = (real, value - real > HIGH, np.abs(value - real), inside, high - low)
            poor, right = use[real < POOR], use[real >= RIGHT]
            counts = [f"{int(each.sum())} of {len(each)}" for each in (poor, right)]
            rows.append([shift, judged, str(len(found)), *(points(float(np.mean(each))) for each in shares), *counts])
    print(table("By kind of shift, a dataset at a time left out, percent", BY_SHIFT, rows))


def interval_row(title: str, rows: np.ndarray) -> list[str]:
    real, value, low, high, _ = rows.T
    inside, below = (low - 1e-9 <= real) & (real <= high + 1e-9), real < low - FAR
    shares = (real, np.abs(value - real), inside, below, high - low)
    return [title, str(len(rows)), *(points(float(np.mean(each))) for each in shares)]


def interval_tables(past: Mapping[str, Past], shift: str) -> None:
    """What was to be reached by runs of a kind of shift and what was, then every group."""
    for whole in (False, True):
        if not (found := left_out(past, shift, whole)):
            continue
        rows = np.concatenate(list(found.values()))
        real, _, low, high, use = rows.T
        by_group = [[float(number) for number in interval_row("", each)[4:6]] for each in found.values()]
        poor, right = use[real < POOR], use[real >= RIGHT]
        reached = [
            ["truth more than 10 points below the lower end", "≤ 3", points(float(np.mean(real < low - FAR)))],
            ["… in the worst group", "≤ 10", f"{max(below for _, below in by_group):.1f}"],
            ["truth in the 90 % interval, worst group", "≥ 85", f"{min(inside for inside, _ in by_group):.1f}"],
            ["… groups below 85", "0", f"{sum(inside < 85 for inside, _ in by_group)} of {len(by_group)}"],
            ["mean width", "≤ 25", points(float(np.mean(high - low)))],
            [f"truth below 80, advised to use ({int(poor.sum())} of {len(poor)})", "≤ 5", points(mean(poor))],
            [f"truth of 97 or more, advised to use ({int(right.sum())} of {len(right)})", "≥ 80", points(mean(right))],
        ]
        words = f"{shift}, a {'dataset' if whole else 'group'} at a time left out"
        print(table(f"Intervals and decisions, {words}, percent", ("goal", "to reach", "reached"), reached))
        if not whole:
            every = [interval_row(group, each) for group, each in sorted(found.items())]
            print(table("… by group", INTERVALS, [*every, interval_row("all", rows)]))


def ece_table(runs: Sequence[dict[str, Any]]) -> None:
    """Target ECE of CAT*-Temperature on HIT-SM's time input, by calibrator; all tasks, and the four hardest."""
    mine = [run for run in runs if (run["data"], run["input"], run["method"]) == ("hit-sm", "time", "CAT*-Temperature")]
    tasks = sorted(
        {run["task"] for run in mine}, key=lambda task: mean([run["accuracy"] for run in mine if run["task"] == task])
    )
    rows = []
    for name in mine[0]["calibrators"] if mine else ():
        errors = {
            task: mean([run["calibrators"][name]["ece15"] for run in mine if run["task"] == task]) for task in tasks
        }
        rows.append([name, points(mean(list(errors.values()))), points(mean([errors[task] for task in tasks[:4]]))])
    goal = [["(goal)", "≤ 6", "≤ 10"]]
    print(
        table(
            f"Target ECE of CAT*-Temperature, HIT-SM, time input, {len(mine)} runs",
            ("calibrator", "all tasks", "four hardest"),
            goal + rows,
        )
    )


def alarm_table(rows: Sequence[dict[str, Any]]) -> None:
    """Recordings alarmed, of each dataset and input; means over runs."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if int(row["finite"]):
            found[row["data"], f"{row['input']}, {row['recipe']}, windows of {row['length']}"].append(row)
    lines = []
    for (data, kind), runs in found.items():
        counts = [
            [sum(int(run[f"{part}_{what}"]) for run in runs) for what in ("alarmed", "recordings")]
            for part in ("unknown", "third", "later")
        ]
        seeds, tasks = (len({run[name] for run in runs}) for name in ("seed", "task"))
        shares = [f"{points(alarmed / max(of, 1))} ({alarmed} of {of})" for alarmed, of in counts]
        lines.append([f"{data}, {kind}", f"{len(runs)} ({tasks} tasks, {seeds} seeds)", *shares])
    print(
        table(
            "Recordings alarmed, percent",
            ("data, input, recipe", "runs", "unknown fault", "another condition", "false alarms"),
            lines,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="*")
    paths = parser.parse_args().paths
    of_kind = {end: [path for path in paths if path.name.endswith(end)] for end in (".jsonl.gz", ".jsonl", ".csv")}
    if not paths or of_kind[".jsonl.gz"]:
        past: Mapping[str, Past] = past_runs() | by_group(read_lines(of_kind[".jsonl.gz"]))
        for shift in (kind for kind in SHIFTS if past.get(kind)):
            interval_tables(past, shift)
        shift_table(past)
    if of_kind[".jsonl"]:
        lines = [line for path in of_kind[".jsonl"] for line in path.read_text(encoding="utf-8").splitlines()]
        ece_table([json.loads(line) for line in lines])
    if of_kind[".csv"]:
        alarm_table([row for path in of_kind[".csv"] for row in rows_of(path)])
    folders = [path for path in paths if not any(path in found for found in of_kind.values())]
    results = [run for folder in folders for run in finished(folder)]
    if folders and not results:
        parser.error("no finished run there has target labels")
    for runs in groups_of(results, lambda cell: (cell.dataset, cell.input)):
        print(f"## {runs[0].cell.dataset}, {runs[0].cell.input} input: {len(runs)} runs\n")
        for title, header, rows in (ACCURACY, FAMILIARITY):
            print(table(title, header, rows(runs)))
    if results:
        print(f"## All {len(results)} runs\n")
        print(table(ACCURACY[0], ACCURACY[1], accuracy_rows(results)))


if __name__ == "__main__":
    main()
