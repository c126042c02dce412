"""Accuracy and calibration of recipes on real data, over tasks and seeds; a row per run, written as stacks finish.

    python benchmarks/accuracy.py --data hit-sm --root data/hit-sm --tasks mfs-600:mfs-1200,mfs-1200:mfs-600 \\
        --recipes 'CAT*-Temperature' --seeds 5 --device cuda --out results.csv

Runs whose data have one shape are trained as one stack. `--set` changes a recipe's setting (teacher.statistics=averaged)
and is written into the row. The mean of each task is printed at the end. docs/results.md has what came out.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from bearcat.adapt import with_settings
from bearcat.data import (
    Preparation,
    Recording,
    Split,
    SplitTask,
    Task,
    load,
    open_dataset,
    prepare,
    resample,
    split_task,
)
from bearcat.evaluate import EpochEnd, predict, scores
from bearcat.recipe import RECIPES, recipe_named
from bearcat.settings import pairs
from bearcat.train import Run, train


def parsed() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True)
    options.add_argument("--root", type=Path)
    options.add_argument("--tasks", default="all", help="A:B,C:D or all")
    options.add_argument("--recipes", default="source-only,DANN")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--input", default="time")
    options.add_argument("--epochs", type=int, default=300)
    options.add_argument("--set", action="append", default=[])
    options.add_argument(
        "--windows", type=int, help="use this many windows of each recording; equal shapes stack better"
    )
    options.add_argument(
        "--normal-rate",
        type=float,
        help="cut the class 'normal' at this rate in Hz, the others at theirs (docs/results.md)",
    )
    options.add_argument("--device", default="cpu")
    options.add_argument("--stack", type=int, default=60, help="runs in a stack at most")
    options.add_argument("--out", type=Path, default=Path("results.csv"))
    return options.parse_args()


def as_cut(recording: Recording, windows: int | None, normal_rate: float | None) -> Recording:
    """The first so many windows; "normal", if asked, resampled and then called by the others' rate, as published."""
    if normal_rate is not None and recording.label == "normal" and recording.rate is not None:
        windows = None if windows is None else round(windows * normal_rate / recording.rate)
        recording = replace(resample(recording, normal_rate), rate=recording.rate)
    return recording if windows is None else replace(recording, signal=recording.signal[: 1024 * windows])


def splits_of(told: argparse.Namespace) -> dict[tuple[str, int], SplitTask]:
    """The split of every task and seed, each domain read and prepared once."""
    catalogue = open_dataset(told.data, told.root).catalogue()
    preparation = Preparation(input=told.input)
    pairs_ = (
        permutations(catalogue.domains, 2) if told.tasks == "all" else [t.split(":") for t in told.tasks.split(",")]
    )
    tasks = [Task(source, target) for source, target in pairs_]
    names = {one for task in tasks for one in (*task.sources, task.target)}
    windows = {
        name: prepare([as_cut(one, told.windows, told.normal_rate) for one in load(catalogue, [name])], preparation)
        for name in names
    }
    return {
        (str(task), seed): split_task(task, windows[task.sources[0]], windows[task.target], Split(), seed)
        for task in tasks
        for seed in range(told.first_seed, told.first_seed + told.seeds)
    }


def main() -> None:
    told = parsed()
    device = torch.device(told.device)
    splits = splits_of(told)
    groups = defaultdict(list)
    for key, split in splits.items():
        groups[
            len(split.training.source_train), len(split.training.target_train), len(split.held_back.target_test)
        ].append(key)
    stacks = [keys[at : at + told.stack] for keys in groups.values() for at in range(0, len(keys), told.stack)]
    found = defaultdict(list)
    for name in map(recipe_named, told.recipes.split(",")):
        recipe = with_settings(RECIPES[name], pairs(told.set)).for_input(told.input).in_epochs(told.epochs)
        for keys in stacks:
            start = time.perf_counter()

            def progress(
                end: EpochEnd, start: float = start, name: str = name, keys: list[tuple[str, int]] = keys
            ) -> None:
                if end.epoch % 20 == 19:
                    seconds = time.perf_counter() - start
                    steps = (end.epoch + 1) * end.batches.iterations
                    print(
                        f"{name} × {len(keys)}: epoch {end.epoch + 1}, {1e3 * seconds / steps:.1f} ms a step",
                        flush=True,
                    )

            trained = train([Run(recipe, splits[key].training, key[1]) for key in keys], device, progress=progress)
            target = torch.from_numpy(np.stack([splits[key].held_back.target_test.values for key in keys])).to(device)
            labels = torch.from_numpy(np.stack([splits[key].held_back.target_test_labels for key in keys])).to(device)
            of_target = scores(predict(trained.network, target)[0], trained.calibration, labels)
            of_student = scores(predict(trained.student, target)[0], None, labels)
            of_source = scores(
                predict(trained.network, trained.batches.source_test)[0],
                trained.calibration,
                trained.batches.source_test_labels,
            )
            seconds = time.perf_counter() - start
            write_header = not told.out.exists()
            with told.out.open("a", newline="") as file:
                writer = csv.writer(file)
                if write_header:
                    writer.writerow(
                        ["data", "input", "task", "recipe", "set", "seed", "epochs", "accuracy", "student_accuracy",
                         "source_accuracy", "ece", "ece_uncalibrated", "ece15", "ece15_uncalibrated", "temperature",
                         "finite", "stack", "seconds", "device", "torch"]
                    )  # fmt: skip
                for number, (task, seed) in enumerate(keys):
                    temperature = (
                        "" if trained.calibration is None else f"{float(trained.calibration.temperature[number]):.4f}"
                    )
                    cells = [
                        of_target["accuracy"], of_student["accuracy"], of_source["accuracy"], of_target["ece"],
                        of_target["ece_uncalibrated"], of_target["ece15"], of_target["ece15_uncalibrated"],
                    ]  # fmt: skip
                    device_name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
                    writer.writerow(
                        [told.data, told.input, task, name, " ".join(told.set), seed, told.epochs,
                         *(f"{100 * float(cell[number]):.2f}" for cell in cells), temperature, bool(trained.finite[number]),
                         len(keys), f"{seconds:.1f}", device_name, torch.__version__]
                    )  # fmt: skip
                    found[name, task].append(
                        (100 * float(of_target["accuracy"][number]), 100 * float(of_target["ece15"][number]))
                    )
            del trained
    for (name, task), values in found.items():
        accuracy, error = (mean(column) for column in zip(*values, strict=True))
        print(f"{name:<20} {task:<22} accuracy {accuracy:5.1f}  ECE(15) {error:5.1f}  n = {len(values)}")
    for name in dict.fromkeys(name for name, _ in found):
        print(
            f"{name:<20} average over tasks: {mean(v[0] for key, vs in found.items() if key[0] == name for v in vs):.1f}"
        )


if __name__ == "__main__":
    main()
