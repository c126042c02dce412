"""The plant bench in one table: every witness alone and the one diagnosis, by shift, over all cells of a grid.

    BEARCAT_DATA=../shared/data bearcat bench run grids/plant-shaped.toml --store STORE
    BEARCAT_DATA=../shared/data python benchmarks/one_diagnosis.py --store STORE

Cells are runs: a task, a target, a seed. Shares are of recordings in the mean over cells, with counts of all cells and
the worst cell; benches are left out of what judges them (docs/fusion.md). On other conditions `network` is the adapted
one; on other bearings and machines nothing is adapted. docs/plant.md says what counts as missed and as a false alarm.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bearcat.report.recordings import NETWORK, RecordingScores, witness_scores
from bearcat.report.results import Result
from bearcat.runs.grid import plan, read_grid
from bearcat.runs.spec import Library
from bearcat.runs.store import identify, open_store, results

GRID = Path(__file__).parents[1] / "grids" / "plant-shaped.toml"
UNADAPTED = "dense-source-only"
MEASURES = ("missed", "passed", "false_alarms", "type_right", "check", "ece")


def read(store: Path) -> list[Result]:
    opened = open_store(store)
    library = Library(remembered=opened.fingerprints())
    found, missing = results(identify(plan(read_grid(GRID), None, library), opened, library), opened)
    print(f"{len(found)} runs, {len(missing)} missing\n")
    return found


def row(name: str, scores: Sequence[RecordingScores]) -> str:
    """Means over cells, and the worst cell of each measure."""
    cells = []
    for measure in MEASURES:
        values = [value for each in scores if (value := getattr(each, measure)) is not None]
        worst = min(values, default=0) if measure == "type_right" else max(values, default=0)
        cells.append(f"{100 * np.mean(values):.1f} ({100 * worst:.0f})" if values else "–")
    return f"| {name} | {len(scores)} | {sum(each.recordings for each in scores)} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    chosen = parser.parse_args()
    table = defaultdict[str, dict[str, list[RecordingScores]]](lambda: defaultdict(list))
    sizes = defaultdict[str, list[int]](lambda: [0, 0])
    for result in read(chosen.store):
        shift = result.cell.dataset.rpartition(" ")[2].replace("machines", "machine")
        if shift == "condition" and result.cell.method == UNADAPTED:
            if (alone := witness_scores(result).get(NETWORK)) is not None:
                table[shift]["unadapted network alone"].append(alone)
            continue
        for witness, found in witness_scores(result).items():
            for group in (shift, "all", result.cell.dataset):
                table[group][witness].append(found)
            if result.cell.dataset.startswith("cwru") and "mix" not in result.record.settings.values:
                count = sizes[witness]
                count[0] += round(found.recordings * (found.right or 0))
                count[1] += found.recordings
    head = "| | cells | recordings | missed | passed as ok | false alarms | type right | check | ECE |"
    for group, witnesses in table.items():
        print(f"{group}\n\n{head}\n|---|---|---|---|---|---|---|---|---|")
        for witness, scores in witnesses.items():
            print(row(witness, scores))
        print()
    for witness, (right, total) in sizes.items():
        print(f"CWRU by size, all types, {witness}: {right} of {total} recordings right")


if __name__ == "__main__":
    main()
