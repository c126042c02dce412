"""Collects past runs, their estimates without labels and their true accuracy, for bearcat/diagnosis/accuracy.py.

    BEARCAT_DATA=data python benchmarks/past_runs.py --grid grids/plant.toml --seeds 0 1 --device cuda --out runs.jsonl.gz
    python benchmarks/past_runs.py --read runs*.jsonl.gz --write      # replaces the kinds of shift in past_runs.json

grids/plant.toml has shifts of conditions, grids/specimen-trust.toml those of specimens and machines.

A line is a run: its cell, the truth, and what the network and each check model say of every target test window (a letter
each).
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bearcat.adaptation import Library, RunSpec
from bearcat.adaptation.evaluation import run_checks
from bearcat.bench.grid import plan, read_grid
from bearcat.cat.algorithm import Run, train
from bearcat.cat.networks import predict
from bearcat.data.tasks import UNKNOWN, Mix
from bearcat.diagnosis.accuracy import (
    EVIDENCE,
    MODELS,
    PAST_RUNS,
    SHIFTS,
    Target,
    expected_accuracy,
    window_agreement,
)
from bearcat.errors import InputError
from bearcat.fast.device import padded_stack

CELL = ("dataset", "input", "mix", "target", "task", "seed", "method")
MOST = 80  # runs of a group that ship
STACK = 256  # runs that are trained together at most
SHIPPED = PAST_RUNS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=Path, action="append", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl.gz"), help="lines are appended")
    parser.add_argument("--read", type=Path, nargs="*", default=[])
    parser.add_argument("--write", action="store_true", help="replace the runs that ship by those read")
    chosen = parser.parse_args()
    for grid in chosen.grid:
        collect(read_grid(grid), chosen.seeds, torch.device(chosen.device), chosen.out)
    if chosen.write:
        write(read_lines(chosen.read))


def collect(grids: Any, seeds: Iterable[int], device: torch.device, out: Path) -> None:
    """Trains the cells of the grid, seed by seed, and appends a line for each."""
    library = Library()
    specs = plan(grids, None, library)
    for seed in seeds:
        groups: dict[Any, list[RunSpec]] = defaultdict(list)
        for spec in specs:
            if spec.seed == seed:
                spec = library.identified(spec)
                split = library.split(spec)
                groups[spec.recipe, split.classes, split.sizes].append(spec)
        for group in groups.values():
            for first in range(0, len(group), STACK):
                lines = [json.dumps(line) for line in scored_runs(group[first : first + STACK], library, device)]
                with gzip.open(out, "at", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for line in lines)
                print(group[0].data, group[0].recipe_name, len(group), flush=True)
        library = Library()


def scored_runs(specs: list[RunSpec], library: Library, device: torch.device) -> list[dict[str, Any]]:
    """Those of a stack; one by one where what joins the source before training makes their numbers of steps differ."""
    try:
        return list(scored(specs, library, device))
    except InputError:
        if len(specs) == 1:
            raise
        return [line for spec in specs for line in scored([spec], library, device)]


def scored(specs: list[RunSpec], library: Library, device: torch.device) -> Iterator[dict[str, Any]]:
    splits = [library.split(spec) for spec in specs]
    runs = [Run(spec.recipe, split.training, spec.seed) for spec, split in zip(specs, splits, strict=True)]
    trained = train(runs, device)
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    checks = [run_checks(split, spec.preparation.input)[0] for spec, split in zip(specs, splits, strict=True)]
    logits, calibration = predict(trained.network, values)[0], trained.source_calibration
    logits = logits if calibration is None else calibration.apply(logits)
    predicted = logits.argmax(dim=-1).cpu().numpy()
    for number, (spec, split) in enumerate(zip(specs, splits, strict=True)):
        tested, labels = split.held_back.target_test, split.held_back.target_test_labels
        of_run = predicted[number, : len(tested)]
        if (labels >= 0).any():
            yield {
                "dataset": spec.data, "input": spec.preparation.input.partition(":")[0], "mix": kind_of(spec.mix),
                "target": str(spec.mix), "task": str(spec.task), "seed": spec.seed, "method": spec.cell.method,
                "shift": split.trust_shift, "truth": float((of_run == labels)[labels >= 0].mean()),
                "recording": letters(tested.recording), "predicted": letters(of_run),
                "checks": {name: letters(codes) for name, codes in checks[number].items()},
            }  # fmt: skip


def kind_of(mix: Mix) -> str:
    """What a group calls a mix: those with one fault each are one kind."""
    if mix.without or mix.unknown:
        return "a class missing" if mix.without else "a class unknown"
    kept = {0: "all classes", 1: "healthy only", 2: "healthy + one fault"}[len(mix.keep)]
    return f"{kept}, reference" if mix.reference else kept


def letters(codes: Iterable[int]) -> str:
    """A letter for each code from 0 on; "-" where there is none."""
    return "".join("-" if code == UNKNOWN else chr(ord("A") + code) for code in codes)


def read_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The runs of these files, each cell once."""
    found = {}
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                run = json.loads(line)
                found[tuple(run[name] for name in CELL)] = run
    return list(found.values())


def write(runs: list[dict[str, Any]]) -> None:
    """past_runs.json of the package: evidence and truth by kind of shift and group, of MOST runs of a group at most,
    evenly spaced. Kinds of shift of which no run was read stay as they are.
    """
    shifts = json.loads(SHIPPED.read_text(encoding="utf-8"))["shifts"] if SHIPPED.exists() else {}
    for kind, groups in by_group(sorted(runs, key=lambda run: [str(run[name]) for name in (*CELL, "truth")])).items():
        shifts[kind] = {
            group: [
                [round(value, 3) for value in rows[place]]
                for place in np.linspace(0, len(rows) - 1, min(MOST, len(rows))).astype(int)
            ]
            for group, rows in groups.items()
        }
    kinds = []
    for kind in SHIFTS:
        lines = ",\n".join(
            f"   {json.dumps(group)}: {json.dumps(rows)}" for group, rows in shifts.get(kind, {}).items()
        )
        kinds.append(f"  {json.dumps(kind)}: {{\n{lines}\n  }}")
    text = ",\n".join(kinds)
    SHIPPED.write_text(f'{{\n "shifts": {{\n{text}\n }}\n}}\n', encoding="utf-8")


def by_group(runs: Iterable[dict[str, Any]]) -> dict[str, dict[str, list[list[float]]]]:
    """Evidence and truth of runs by kind of shift and group; files from before there were kinds hold conditions."""
    found: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        found[run.get("shift", "condition")][group_of(run)].append([*evidence_of(run).values(), run["truth"]])
    return found


def group_of(run: dict[str, Any]) -> str:
    """Dataset (to its label's comma), input and mix of classes; with a reference the mix is the same."""
    dataset = run["dataset"].partition(",")[0]
    return f"{dataset}, {run['input']}, {run['mix'].removesuffix(', reference')}"


def evidence_of(run: dict[str, Any]) -> dict[str, float]:
    """What is compared with past runs, from what network and check models said of the windows."""
    predicted = np.array(codes(run["predicted"]))
    likely = np.log(np.eye(predicted.max() + 1)[predicted] + 1e-9)
    checks = {name: np.array(codes(said)) for name, said in run["checks"].items() if name.partition(", ")[2] in MODELS}
    target = Target(likely, np.array(codes(run["recording"])), checks)
    found = expected_accuracy(target)
    return {name: (found | {"window_agreement": window_agreement(target)})[name] for name in EVIDENCE}


def codes(letters: str) -> list[int]:
    return [UNKNOWN if letter == "-" else ord(letter) - ord("A") for letter in letters]


if __name__ == "__main__":
    main()
