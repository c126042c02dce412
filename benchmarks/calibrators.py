"""Every calibrator after training, on the target's held-out windows, beside ceilings that need its labels.

    BEARCAT_DATA=data python benchmarks/calibrators.py --device cuda --out calibrators.jsonl     # trains and prints
    python benchmarks/calibrators.py --read calibrators.jsonl                                    # prints again

Trains the cells of a grid (grids/calibration.toml) in large stacks and writes a line for each run: target accuracy,
what check models expect it to be, and for every row of CALIBRATORS that is a temperature its T and the target's ECE
(15 bins). Ceilings are fitted with labels of the target's training windows: `true accuracy` is the temperature at
which mean confidence is the share that is right, `labels` the one of least NLL. They show what a temperature could do.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bearcat.calibration import CALIBRATORS, Calibration, Evidence, PseudoCal, Temperature, accuracy, ece
from bearcat.calibration.evidence import Sample
from bearcat.calibration.scaling import from_temperature, matching_temperature
from bearcat.data.tasks import UNKNOWN, SplitTask
from bearcat.runs.grid import only_methods, plan, read_grid
from bearcat.runs.spec import Library, RunSpec
from bearcat.training.batches import padded_stack
from bearcat.training.evaluate import Fitting, RunEvidence, predict, run_evidence
from bearcat.training.loop import Run, Trained, stack_key, train

GRID = Path(__file__).parents[1] / "grids" / "calibration.toml"
WIDE = (0.05, 100.0)
CEILINGS = ("true accuracy", "labels")
LEFT_OUT = ("Vector", "Matrix")  # no temperatures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=Path, default=GRID)
    parser.add_argument("--data", action="append", help="only this dataset; repeat for more")
    parser.add_argument("--only-method", action="append")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--seeds", type=int, default=100, help="so many at most")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stack", type=int, default=120, help="runs that are trained together at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop beginning stacks after so long")
    parser.add_argument("--out", type=Path, default=Path("calibrators.jsonl"), help="lines are appended")
    parser.add_argument("--logits", type=Path, help="a folder for what networks say, to try other calibrators on")
    parser.add_argument("--read", type=Path)
    chosen = parser.parse_args()
    if chosen.read is None:
        grid = read_grid(chosen.grid)
        measure(only_methods(grid, chosen.only_method) if chosen.only_method else grid, chosen)
    print_table(chosen.read or chosen.out)


def measure(grid: Any, chosen: argparse.Namespace) -> None:
    start, library, device = time.monotonic(), Library(), torch.device(chosen.device)
    evidence: dict[Any, RunEvidence] = {}  # of methods on the same windows
    groups: dict[Any, list[RunSpec]] = defaultdict(list)
    for part in grid.parts or (grid,):
        for spec in plan(part, None, library) if not chosen.data or part.data in chosen.data else ():
            if spec.seed < chosen.seeds:
                spec = library.identified(spec)
                key = stack_key(Run(spec.recipe, library.split(spec).outline(), spec.seed))
                groups[spec.data, spec.method, key].append(spec)
    for number, group in enumerate(groups.values()):
        for first in range(0, len(group), chosen.stack):
            if time.monotonic() - start > chosen.seconds:
                return
            specs = group[first : first + chosen.stack]
            splits = [library.split(spec) for spec in specs]
            cells = [(spec.data, spec.task, spec.preparation, spec.split, spec.seed, spec.mix) for spec in specs]
            missing = {cell: split for cell, split in zip(cells, splits, strict=True) if cell not in evidence}
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                inputs = [preparation.input for _, _, preparation, *_ in missing]
                evidence |= zip(missing, pool.map(run_evidence, missing.values(), inputs), strict=True)
            rows, said = scored(specs, splits, [evidence[cell] for cell in cells], device, chosen.epochs)
            with chosen.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            if chosen.logits:
                chosen.logits.mkdir(parents=True, exist_ok=True)
                name = f"{specs[0].data}-{number}-{first}.npz"
                np.savez_compressed(chosen.logits / name, allow_pickle=False, cells=np.array(json.dumps(rows)), **said)
            print(f"{time.monotonic() - start:.0f} s", specs[0].data, specs[0].method, len(specs), flush=True)


def scored(
    specs: list[RunSpec], splits: list[SplitTask], known: list[RunEvidence], device: torch.device, epochs: int | None
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    runs = [
        Run(spec.recipe.in_epochs(epochs) if epochs else spec.recipe, split.training, spec.seed, evidence.train_checks)
        for spec, split, evidence in zip(specs, splits, known, strict=True)
    ]
    found, expected, right, said = compare_calibrators(train(runs, device), splits, device)
    rows = []
    for number, spec in enumerate(specs):
        values = {name: [round(float(column[number]), 5) for column in pair] for name, pair in found.items()}
        rows.append({
            "data": spec.data, "input": spec.preparation.input, "mix": str(spec.mix) or "full",
            "method": spec.method or spec.recipe_name, "task": str(spec.task), "seed": spec.seed,
            "accuracy": round(float(right[number]), 5), "expected": round(float(expected[number]), 5),
            "calibrators": {name: {"temperature": t, "ece15": error} for name, (t, error) in values.items()},
        })  # fmt: skip
    return rows, said


@torch.no_grad()
def compare_calibrators(
    trained: Trained, splits: list[SplitTask], device: torch.device
) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor, Tensor, dict[str, np.ndarray]]:
    """Temperature and target ECE (run,) of every calibrator and ceiling; the expected accuracy, the true one (run,);
    and logits of all windows.
    """
    fitting = Fitting(trained.network, trained.batches, trained.checks)
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    logits = predict(trained.network, values)[0]
    labels = padded_stack([split.held_back.target_test_labels for split in splits], UNKNOWN, device)
    weight, truth = (labels != UNKNOWN).double(), labels.clamp(min=0)
    fitted = {name: fitting.fit(name) for name in CALIBRATORS if name not in LEFT_OUT}
    taught = padded_stack([split.held_back.target_train_labels for split in splits], UNKNOWN, device)
    fitted |= ceilings(fitting.target[0], taught)
    found = {
        name: (each.temperature.cpu(), ece(each.probabilities(logits), truth, weight, bins=15).cpu())
        for name, each in fitted.items()
    }
    mixed = PseudoCal().mixtures(fitting.evidence(PseudoCal.needs))
    said = {
        "source_test": fitting.source_test[0], "target_train": fitting.target[0], "target_test": logits,
        "mixed": mixed.scores.float(), "mixed_labels": torch.where(mixed.weight > 0, mixed.labels, UNKNOWN).to(torch.int8),
    }  # fmt: skip
    right = accuracy(logits, truth, weight)
    return found, fitting.expected_accuracy(), right, {name: tensor.cpu().numpy() for name, tensor in said.items()}


def ceilings(logits: Tensor, labels: Tensor) -> dict[str, Calibration]:
    """What only labels of the target can give, (run, window, class) and (run, window)."""
    weight, known = (labels != UNKNOWN).double(), labels.clamp(min=0)
    sample = Sample(logits.double(), known, weight)
    share = accuracy(logits.double(), known, weight)
    matched = matching_temperature(sample, share[:, None], WIDE)[0][:, 0]
    by_labels = Temperature(WIDE).fit(Evidence(source_logits=logits, source_labels=known, source_weight=weight))
    free = torch.zeros_like(matched, dtype=torch.bool)
    return {"true accuracy": from_temperature(1 / matched, free, logits.shape[2]), "labels": by_labels}


def print_table(path: Path) -> None:
    """Mean target ECE by dataset, input and method, in points; the last columns are ceilings."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = list(rows[0]["calibrators"])
    print(f"| data, input | method | runs | accuracy | expected | {' | '.join(names)} |")
    print("|---|---|---|---|---|" + "---|" * len(names))
    groups: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for row in rows:
        groups[f"{row['data']}, {row['input']}", row["method"]].append(row)
    for key, found in groups.items():
        errors = [np.mean([row["calibrators"][name]["ece15"] for row in found]) for name in names]
        shares = [np.mean([row[name] for row in found]) for name in ("accuracy", "expected")]
        print(
            f"| {' | '.join(key)} | {len(found)} | {' | '.join(f'{100 * each:.1f}' for each in (*shares, *errors))} |"
        )


if __name__ == "__main__":
    main()
