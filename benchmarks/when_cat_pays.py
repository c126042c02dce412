"""When does CAT pay? Plots its gain over DANN* and AT* on each task against source-only accuracy and ECE.

    python benchmarks/when_cat_pays.py --out docs/when-cat-pays.svg         # docs/replication.csv
    python benchmarks/when_cat_pays.py bench-report/*/runs.csv              # tasks of your own

A point is a task of one dataset and input, the mean over the seeds that all four methods finished; the paper's twelve
published tasks are drawn beside ours. Gains are percentage points of accuracy, and points by which ECE falls. Tasks in
which every run of CAT* collapsed are left out and counted. Prints Spearman's rank correlation of each panel with its p,
which is too small, because tasks of one bench share recordings.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from bearcat.bench.report import paper_figures
from bearcat.report.figures import PALETTE, WIDE, ReportFigure, empty_figure, house_style

PLAIN, CAT, OTHERS = "source-only", "CAT*-Temperature", ("DANN*", "AT*")
METHODS = (PLAIN, CAT, *OTHERS)
SCORES = ("accuracy", "ece")
Tasks = Mapping[str, Mapping[str, tuple[float, float]]]  # task → method → accuracy and ECE in percent
PAPER = "Paderborn (the paper)"
OURS = Path(__file__).resolve().parents[1] / "docs" / "replication.csv"


def read_runs(paths: Sequence[Path]) -> dict[str, dict[str, dict[str, tuple[float, float]]]]:
    """Bench → task → method → accuracy and ECE, means over the seeds that all methods have."""
    cells: dict[tuple[str, str], dict[tuple[str, str], tuple[float, float]]] = defaultdict(dict)
    sound: set[tuple[str, str]] = set()
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["method"] in METHODS and row["target_accuracy"]:
                    place = row["dataset"], f"{row['input']} {row['source']}→{row['target']}"
                    pair = 100 * float(row["target_accuracy"]), 100 * float(row["target_ece"])
                    cells[place][row["method"], row["seed"]] = pair
                    if row["method"] == CAT and row["collapsed"] in ("0", "False"):
                        sound.add(place)
    found: dict[str, dict[str, dict[str, tuple[float, float]]]] = defaultdict(dict)
    if left_out := len(cells.keys() - sound):
        print(f"{left_out} tasks are left out: every run of {CAT} collapsed")
    for (dataset, task), scores in cells.items():
        if (dataset, task) not in sound:
            continue
        seeds = set.intersection(*({seed for name, seed in scores if name == method} for method in METHODS))
        if seeds:
            means = {
                method: np.mean([scores[method, seed] for seed in sorted(seeds)], axis=0).tolist() for method in METHODS
            }
            found[dataset][task] = {method: (mean[0], mean[1]) for method, mean in means.items()}
    return found


def published() -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's tasks with both inputs."""
    found: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for kind in ("time", "frequency"):
        accuracy, ece = (paper_figures(kind, score) for score in SCORES)
        for (method, task), value in accuracy.items():
            if method in METHODS:
                found[f"{kind} {task}"][method] = 100 * value, 100 * ece[method, task]
    return found


def points(tasks: Tasks, other: str, score: int, against: int) -> list[tuple[float, float]]:
    """What source-only reaches, and CAT*'s gain over the other method: of ECE what it falls by."""
    sign = 1 if score == 0 else -1
    return [(of[PLAIN][against], sign * (of[CAT][score] - of[other][score])) for of in tasks.values()]


@house_style()
def pays(benches: Mapping[str, Tasks], other: str) -> tuple[ReportFigure, list[str]]:
    """The gains over one other method, in four panels; and their rank correlations in words."""
    drawing, lines = empty_figure(WIDE, 5.2), []
    axes = drawing.subplots(2, 2)
    for score, gain in enumerate(("accuracy gained", "ECE lowered by")):
        for against, what in enumerate(("accuracy", "ECE")):
            axis, every = axes[score][against], list[tuple[float, float]]()
            for place, (name, tasks) in enumerate(benches.items()):
                mine = points(tasks, other, score, against)
                every += mine
                colour, marker = PALETTE[place % len(PALETTE)], "x" if name == PAPER else "o"
                axis.scatter(*zip(*mine, strict=True), s=14, color=colour, marker=marker, linewidth=0.8, label=name)
            rank = spearmanr([x for x, _ in every], [y for _, y in every])
            lines.append(
                f"{gain} over {other} against source-only {what}: ρ = {rank.statistic:+.2f}, p = {rank.pvalue:.1g}"
                f" ({len(every)} tasks)"
            )
            axis.axhline(0, color="#777777", linewidth=0.8, zorder=0)
            axis.set(xlabel=f"source-only {what}, %", ylabel=f"{gain}, points")
            axis.set_title(f"ρ = {rank.statistic:+.2f}, p = {rank.pvalue:.1g}")
    drawing.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return ReportFigure("when-cat-pays", f"{CAT} against {other}", "", drawing), lines


def main(words: Iterable[Any] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", default=[OURS], help="runs.csv of bearcat bench report")
    parser.add_argument("--out", type=Path, default=Path("when-cat-pays.svg"), help="the figure for DANN*; AT* beside")
    chosen = parser.parse_args(None if words is None else [str(word) for word in words])
    benches = {PAPER: published(), **read_runs(chosen.runs)}
    for other in OTHERS:
        figure, lines = pays(benches, other)
        suffix = "" if other == OTHERS[0] else f"-{other.strip('*').lower()}"
        print(figure.save(chosen.out.with_stem(chosen.out.stem + suffix)), *lines, sep="\n")


if __name__ == "__main__":
    main()
