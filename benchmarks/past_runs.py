"""Past runs for intervals of expected accuracy (bearcat/trust/past.py): makes them, and says how intervals hold.

    BEARCAT_DATA=data python benchmarks/past_runs.py --every 3 --write     # some minutes on a CPU
    python benchmarks/past_runs.py                                         # the runs that ship, left out group by group

Cells are those of grids/plant.toml without references, seed 0, every so-manieth task, the first and the last single
fault; recipes dense-source-only, dense-moved (where it may adapt) and dense-MCC. A group is a dataset and a mix of
classes. --write replaces past_runs.json of the package.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bearcat.data.tasks import UNKNOWN, Mix
from bearcat.runs.grid import plan, read_grid
from bearcat.runs.spec import Library, RunSpec
from bearcat.training.estimates import run_evidence
from bearcat.training.evaluate import predict
from bearcat.training.loop import Run, train
from bearcat.trust import past
from bearcat.trust.verdict import FAR, decision

GRID = Path(__file__).parents[1] / "grids" / "plant.toml"
SHIPPED = Path(past.__file__).with_name("past_runs.json")
RECIPES = ("dense-source-only", "dense-moved", "dense-MCC")
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="train, and replace the runs that ship")
    parser.add_argument("--every", type=int, default=3, help="of the tasks of each dataset")
    parser.add_argument("--data", action="append", help="only this dataset; repeat for more")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    chosen = parser.parse_args()
    if chosen.write:
        groups = measured(chosen.every, chosen.data)
        lines = ",\n".join(f"  {json.dumps(group)}: {json.dumps(runs)}" for group, runs in groups.items())
        chosen.out.write_text(f'{{\n "groups": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
    print_left_out(json.loads(chosen.out.read_text(encoding="utf-8"))["groups"])


def kind_of(mix: Mix) -> str:
    if mix.share:
        return "faults at 5 %"
    if mix.without or mix.unknown:
        return "a class missing" if mix.without else "a class unknown"
    return {0: "all classes", 1: "healthy only", 2: "healthy + one fault"}[len(mix.keep)]


def measured(every: int, data: list[str] | None) -> dict[str, list[list[float]]]:
    """(agreement, truth) of every run, by group."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for part in read_grid(GRID).parts:
        if data and part.data not in data:
            continue
        library = Library()
        specs = [spec for spec in plan(replace(part, seeds=(0,)), None, library) if spec.recipe_name in RECIPES]
        tasks = sorted({str(spec.task) for spec in specs})[::every]
        faults = [spec.mix.keep[1] for spec in specs if len(spec.mix.keep) == 2]
        unadapted: dict[Any, Any] = {}
        for spec in specs:
            skipped = spec.mix.reference or str(spec.task) not in tasks
            single = len(spec.mix.keep) == 2 and spec.mix.keep[1] not in (faults[0], faults[-1])
            if not (skipped or single or (spec.recipe_name == "dense-moved" and spec.mix != Mix())):
                group = f"{spec.data}, physics, {kind_of(spec.mix)}"
                found[group].append(scored(library.identified(spec), library, unadapted))
                print(group, spec.recipe_name, spec.task, *found[group][-1], flush=True)
    return found


def scored(spec: RunSpec, library: Library, unadapted: dict[Any, Any]) -> list[float]:
    split = library.split(spec)
    key = spec.recipe_name, str(spec.task), spec.mix.unknown  # the unadapted network is the same for all mixes
    if key not in unadapted or spec.recipe_name != "dense-source-only":
        unadapted[key] = train([Run(spec.recipe, split.training, spec.seed)], CPU)
    trained, test = unadapted[key], split.held_back.target_test
    logits = predict(trained.network, torch.from_numpy(np.array(test.values))[None])[0]
    predicted = logits[0].argmax(dim=-1).numpy()
    agreed = np.mean([checked == predicted for checked in run_evidence(split).checks.values()])
    labels = split.held_back.target_test_labels
    return [round(float(agreed), 4), round(float((predicted == labels)[labels != UNKNOWN].mean()), 4)]


def print_left_out(groups: dict[str, list[list[float]]]) -> None:
    """How intervals hold in each group when it, or its whole dataset, takes no part in making them."""
    print("| left out | runs | inside | more than 10 points below | width |\n|---|---|---|---|---|")
    for whole in (False, True):
        found: dict[str, Any] = {}
        truths: list[float] = []
        used: list[bool] = []
        for group, runs in groups.items():
            dataset = group.partition(",")[0]
            rest = {
                other: [(agreement, truth) for agreement, truth in past_runs]
                for other, past_runs in groups.items()
                if other != group and not (whole and other.startswith(dataset))
            }
            own = []
            for agreement, truth in runs:
                expected = past.expected_accuracy(agreement, rest)
                inside = expected.low - 1e-9 <= truth <= expected.high + 1e-9
                own.append((inside, truth < expected.low - FAR, expected.high - expected.low))
                truths.append(truth)
                used.append(decision(expected) == "use")
            found[group] = np.array(own, dtype=float)
        for group, numbers in found.items() if not whole else ():
            print(f"| {group} | {len(numbers)} | {' | '.join(f'{100 * each:.0f}' for each in numbers.mean(axis=0))} |")
        every = np.concatenate(list(found.values()))
        title = "all, by dataset" if whole else "all, by group"
        print(f"| {title} | {len(every)} | {' | '.join(f'{100 * each:.1f}' for each in every.mean(axis=0))} |")
        use, poor, good = np.array(used), np.array(truths) < 0.8, np.array(truths) >= 0.97
        print(f"| … advised to use: {use[poor].sum()} of {poor.sum()} with less than 80 % right,"
              f" {use[good].sum()} of {good.sum()} with 97 % or more | | | | |")  # fmt: skip


if __name__ == "__main__":
    main()
