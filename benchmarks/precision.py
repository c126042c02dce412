"""Do float32, TF32 and bfloat16 give the same accuracy? Two tasks of HIT-SM, all seeds in one stack, on a GPU.

    python benchmarks/precision.py --root data/hit-sm --epochs 60 --seeds 10
    python benchmarks/precision.py --root data/hit-sm --epochs 300 --seeds 5 --tasks mfs-600:mfs-1200 mfs-1200:mfs-600

Prints mean and standard deviation of target accuracy and ECE for each task and precision, and a paired t test over seeds
against the first precision. docs/speed.md has what came out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import ttest_rel

from bearcat.data import Preparation, Split, Task, load, open_dataset, prepare, split_task
from bearcat.data.tasks import UNKNOWN
from bearcat.methods.recipe import RECIPES
from bearcat.training.batches import padded_stack
from bearcat.training.evaluate import predict, scores
from bearcat.training.loop import Run, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="hit-sm")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--recipe", default="CAT*-Temperature")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--precision", nargs="+", default=["float32", "tf32", "bfloat16"])
    parser.add_argument("--tasks", nargs="+", help="A:B …; by default there and back between the first two domains")
    chosen = parser.parse_args()
    device = torch.device("cuda")
    catalogue = open_dataset(chosen.data, chosen.root).catalogue()
    first_domain, second_domain = catalogue.domains[:2]
    tasks = [
        Task(*text.split(":"))
        for text in chosen.tasks or (f"{first_domain}:{second_domain}", f"{second_domain}:{first_domain}")
    ]
    named = {name for task in tasks for name in (*task.sources, task.target)}
    windows = {name: prepare(load(catalogue, [name]), Preparation(input="time")) for name in sorted(named)}
    cells = [(task, seed) for task in tasks for seed in range(chosen.seeds)]
    splits = [split_task(t, windows[t.sources[0]], windows[t.target], Split(), seed) for t, seed in cells]
    recipe = RECIPES[chosen.recipe].for_input("time").in_epochs(chosen.epochs)
    runs = [Run(recipe, split.training, seed) for split, (_, seed) in zip(splits, cells, strict=True)]
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    labels = padded_stack([split.held_back.target_test_labels for split in splits], UNKNOWN, device)
    found: dict[str, dict[str, np.ndarray]] = {}
    for precision in chosen.precision:
        start = time.perf_counter()
        trained = train(runs, device, precision=precision)
        of_target = scores(predict(trained.network, values)[0], trained.calibration, labels)
        found[precision] = {name: of_target[name].cpu().numpy() for name in ("accuracy", "ece")}
        print(f"{trained.kernels['encoder']} {precision}: {time.perf_counter() - start:.1f} s", flush=True)
        for number, task in enumerate(tasks):
            part = slice(number * chosen.seeds, (number + 1) * chosen.seeds)
            for name, all_of_them in found[precision].items():
                mine, first = all_of_them[part], found[chosen.precision[0]][name][part]
                line = f"  {task} {name} {mine.mean():.4f} sd {mine.std(ddof=1):.4f}"
                if precision != chosen.precision[0]:
                    line += f", {(mine - first).mean():+.4f} from {chosen.precision[0]}, p = {ttest_rel(mine, first).pvalue:.2f}"
                print(line, flush=True)


if __name__ == "__main__":
    main()
