"""What does each behaviour of the published code do? The table of grids/published.toml, from a store.

    bearcat bench run grids/published.toml --store STORE      # 120 runs; about 12 minutes on an H200
    python benchmarks/published.py --store STORE

For each task the target accuracy and ECE (15 bins, as the published code's own figures) in per cent, mean ± standard
deviation over seeds, and the p-value of a paired t test against the first method; then the exact signed-rank test over
all cells of both tasks. The second table asks whether the published code's one run could be a further seed of each
method. docs/results.md has what came out.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import t as student_t
from scipy.stats import ttest_rel

from bearcat.report.stats import signed_rank
from bearcat.runs.grid import plan, read_grid
from bearcat.runs.spec import Library
from bearcat.runs.store import identify, open_store, results

METRICS = ("accuracy", "ece15")
GRID = Path(__file__).parents[1] / "grids" / "published.toml"
AUTHORS = Path(__file__).parents[2] / "shared" / "reference" / "authors_code_hit_sm.csv"

Cells = dict[tuple[str, str, str], dict[int, float]]  # (metric, method, task) → seed → per cent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--grid", type=Path, default=GRID)
    parser.add_argument("--authors", type=Path, default=AUTHORS, help="the published code's own figures")
    chosen = parser.parse_args()
    store = open_store(chosen.store)
    library = Library(remembered=store.fingerprints())
    found, missing = results(identify(plan(read_grid(chosen.grid), library=library), store, library), store)
    cells: Cells = defaultdict(dict)
    for result in found:
        for metric in METRICS:
            score = result.score("target", metric)
            if score is not None:
                cells[metric, result.cell.method, result.cell.task][result.cell.seed] = 100 * score
    print(f"{len(found)} runs, {len(missing)} without a result", end="\n\n")
    print_table(cells)
    print_distances(cells, authors_figures(chosen.authors))


def print_table(cells: Cells) -> None:
    methods = list(dict.fromkeys(method for _, method, _ in cells))
    tasks = list(dict.fromkeys(task for _, _, task in cells))
    columns = [(metric, task) for task in tasks for metric in METRICS]
    titles = [f"{task} {'ECE' if metric == 'ece15' else metric}" for metric, task in columns]
    print(f"| method | {' | '.join(titles)} | signed rank: accuracy | ECE |")
    print("|---|" + "---|" * (len(columns) + 2))
    for method in methods:
        texts = [_cell(cells[metric, method, task], cells[metric, methods[0], task]) for metric, task in columns]
        tests = [_signed_rank(cells, metric, method, methods[0], tasks) for metric in METRICS]
        print(f"| {method} | {' | '.join([*texts, *tests])} |")


def print_distances(cells: Cells, authors: dict[tuple[str, str], float]) -> None:
    """For each method the p-value of the published code's run as one more seed of it."""
    print(f"\n| method | {' | '.join(f'{task} {metric}' for metric, task in authors)} |")
    print("|---|" + "---|" * len(authors))
    print(f"| published code, one run | {' | '.join(f'{value:.1f}' for value in authors.values())} |")
    for method in dict.fromkeys(method for _, method, _ in cells):
        tested = [_as_further_seed(cells[metric, method, task], value) for (metric, task), value in authors.items()]
        print(f"| {method} | {' | '.join(tested)} |")


def _as_further_seed(mine: dict[int, float], value: float) -> str:
    """Two-sided, by the t distribution: the spread of one more value about the mean of n is sd · √(1 + 1/n)."""
    values, count = list(mine.values()), len(mine)
    if count < 2:
        return "–"
    distance = abs(value - np.mean(values)) / (np.std(values, ddof=1) * np.sqrt(1 + 1 / count))
    return f"p = {2 * student_t.sf(distance, count - 1):.2g}"


def _cell(mine: dict[int, float], first: dict[int, float]) -> str:
    """mean ± sd (p)."""
    if not mine:
        return "–"
    values, seeds = list(mine.values()), sorted(mine.keys() & first.keys())
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    pairs = np.array([[mine[seed], first[seed]] for seed in seeds])
    tested = len(seeds) > 1 and bool((pairs[:, 0] != pairs[:, 1]).any())
    return f"{np.mean(values):.1f}{spread}" + (f" ({ttest_rel(*pairs.T).pvalue:.2g})" if tested else "")


def _signed_rank(cells: Cells, metric: str, method: str, first: str, tasks: list[str]) -> str:
    differences = [
        value - cells[metric, first, task][seed]
        for task in tasks
        for seed, value in cells[metric, method, task].items()
        if seed in cells[metric, first, task]
    ]
    if method == first or not differences:
        return "–"
    return f"{np.mean(differences):+.1f}, p = {signed_rank(np.array(differences))[0]:.2g}"


def authors_figures(path: Path) -> dict[tuple[str, str], float]:
    """(metric, task) → the published code's figure of its one run of CAT*-Temperature."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "CAT*-TempScaling"]
    columns = {"accuracy": "teacher_accuracy", "ece15": "ece15_target"}
    return {
        (metric, f"mfs-{row['source']}→mfs-{row['target']}"): float(row[column])
        for row in rows
        for metric, column in columns.items()
    }


if __name__ == "__main__":
    main()
