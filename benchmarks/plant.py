"""Targets as plants have them: every cell of grids/plant.toml in large stacks, scores only, and the table of them.

    BEARCAT_DATA=data python benchmarks/plant.py --device cuda --out plant.csv     # trains and prints
    python benchmarks/plant.py --read plant.csv                                    # prints again
    BEARCAT_DATA=data python benchmarks/plant.py --only-target "healthy only" --seeds 1 --stack 24 --out healthy.csv

`bearcat bench run grids/plant.toml` trains the same cells and writes whole records, which takes far longer. A cell of
the table is a mean over tasks and seeds; `worst` is the largest loss, in points of balanced accuracy, against the same
network without adaptation on the same task and seed.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bearcat.calibration import ece
from bearcat.methods import before_training
from bearcat.runs.grid import only_methods, plan, read_grid
from bearcat.runs.run import alarm_scores
from bearcat.runs.spec import Library, RunSpec
from bearcat.storage import digest
from bearcat.training.batches import padded_stack
from bearcat.training.evaluate import balanced_accuracy, predict
from bearcat.training.loop import Run, stack_key, train

GRID = Path(__file__).parents[1] / "grids" / "plant.toml"
UNADAPTED = "dense-source-only"
COLUMNS = ("dataset", "mix", "method", "task", "seed", "balanced_accuracy", "ece15", "recording_accuracy",
           "false_alarms", "recording_false_alarms", "missed_faults", "adapted")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=Path, default=GRID)
    parser.add_argument("--only-method", action="append")
    parser.add_argument("--only-target", help="the target as the table calls it, such as 'healthy only'")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stack", type=int, default=256, help="runs that are trained together at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop beginning stacks after so long")
    parser.add_argument("--out", type=Path, default=Path("plant.csv"), help="rows are appended; cells in it are kept")
    parser.add_argument("--read", type=Path)
    chosen = parser.parse_args()
    if chosen.read is None:
        grid = read_grid(chosen.grid)
        grid = only_methods(grid, chosen.only_method) if chosen.only_method else grid
        measure(grid, chosen)
    print_table(chosen.read or chosen.out)


def measure(grid: Any, chosen: argparse.Namespace) -> None:
    """Trains what the file does not hold yet, seed by seed, so that an interrupted file is balanced."""
    start, library, device = time.monotonic(), Library(), torch.device(chosen.device)
    done = {tuple(row[name] for name in COLUMNS[:5]) for row in read(chosen.out)}
    remember_spaces()
    for seed in range(chosen.seeds):
        groups: dict[Any, list[RunSpec]] = defaultdict(list)
        for spec in plan(grid, None, library):
            other = chosen.only_target not in (None, cell(spec)[1])
            if spec.seed != seed or other or cell(spec) in done:
                continue
            spec = library.identified(spec)
            outline = library.split(spec).outline()
            groups[stack_key(Run(spec.recipe, outline, seed))].append(spec)
        for group in groups.values():
            for first in range(0, len(group), chosen.stack):
                if time.monotonic() - start > chosen.seconds:
                    return
                append(chosen.out, scored(group[first : first + chosen.stack], library, device))
        library = Library()  # prepared windows are read again from the cache; splits of one seed are let go


def cell(spec: RunSpec) -> tuple[str, ...]:
    return spec.data, str(spec.mix) or "full", spec.recipe_name, str(spec.task), str(spec.seed)


def scored(specs: list[RunSpec], library: Library, device: torch.device) -> list[dict[str, Any]]:
    splits = [library.split(spec) for spec in specs]
    data = [library.training(spec, split) for spec, split in zip(specs, splits, strict=True)]
    trained = train([Run(spec.recipe, each, spec.seed) for spec, each in zip(specs, data, strict=True)], device)
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    logits = predict(trained.network, values)[0]
    together = (
        (logits if trained.source_calibration is None else trained.source_calibration.apply(logits))
        .softmax(dim=-1)
        .cpu()
    )
    rows = []
    for number, (spec, split) in enumerate(zip(specs, splits, strict=True)):
        probabilities = together[number : number + 1, : len(split.held_back.target_test)]
        labels = torch.from_numpy(split.held_back.target_test_labels)[None]
        weight = (labels >= 0).to(probabilities.dtype)
        finding = trained.findings[number]
        rows.append(dict(zip(COLUMNS[:5], cell(spec), strict=True)) | {
            "balanced_accuracy": float(balanced_accuracy(probabilities, labels)),
            "ece15": float(ece(probabilities, labels.clamp(min=0), weight, bins=15)),
            "adapted": int(finding is None or finding.adapted),
        } | alarm_scores(probabilities[0].numpy(), split.held_back, split.classes))  # fmt: skip
    return rows


def remember_spaces() -> None:
    """Cells with the same source windows share their discriminant space."""
    found, make = {}, before_training.discriminant_space

    def remembered(values: Any, labels: Any, classes: int) -> before_training.Space:
        key = digest(np.ascontiguousarray(values).tobytes() + labels.tobytes())
        if key not in found:
            found[key] = make(values, labels, classes)
        return found[key]

    before_training.discriminant_space = remembered


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        if new:
            writer.writeheader()
        writer.writerows(rows)


@cache
def kind_of(mix: str) -> str:
    """What the table calls a mix: those with one fault each are one row."""
    return "healthy + one fault" if mix.startswith("healthy+") else mix


def print_table(path: Path) -> None:
    rows = read(path)
    plain = {(row["dataset"], row["mix"], row["task"], row["seed"]): row for row in rows if row["method"] == UNADAPTED}
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["dataset"], kind_of(row["mix"]), row["method"]].append(row)
    print("| dataset | target | method | cells | balanced | ECE | recordings | false alarms | recordings alarmed |"
          " missed | adapted | worst |\n|---|---|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for (dataset, kind, method), found in groups.items():
        losses = [
            float(row["balanced_accuracy"]) - float(other["balanced_accuracy"])
            for row in found
            if (other := plain.get((dataset, row["mix"], row["task"], row["seed"])))
        ]
        numbers = [percent(found, name) for name in COLUMNS[5:]]
        worst = f"{100 * min(losses):.1f}" if losses else "–"
        print(f"| {dataset} | {kind} | {method} | {len(found)} | {' | '.join(numbers)} | {worst} |")


def percent(rows: list[dict[str, str]], name: str) -> str:
    values = [float(row[name]) for row in rows if row[name] not in ("", "nan")]
    return f"{100 * np.mean(values):.1f}" if values else "–"


if __name__ == "__main__":
    main()
