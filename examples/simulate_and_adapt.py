"""Simulate a bearing under two conditions, adapt from one to the other, and see what adapting gained.

The target's labels are known here, because the signals are simulated; training never sees them. Three runs that differ
in their seed are trained together, as one stack: a single run says little about a method.

    python examples/simulate_and_adapt.py [--epochs 40]
"""

import argparse
import tempfile
from pathlib import Path
from statistics import mean

import torch

from bearcat.data import Preparation, Simulated, Split
from bearcat.methods.recipe import RECIPES
from bearcat.runs.run import Order, adapt_all

SEEDS = (0, 1, 2)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=12, help="few, to see it work; 300 are the paper's")
    told = options.parse_args()

    bearing = Simulated(seconds=1.2, severities=(4.0,), faults=("inner", "outer"))
    spectra, split = Preparation(input="frequency", length=256), Split("block")
    for name in ("source-only", "CAT*-Temperature"):
        recipe = RECIPES[name].for_input("frequency").in_epochs(told.epochs)
        orders = [
            Order("simulated", bearing, ("N15_M07_F10",), "N09_M07_F10", name, recipe, spectra, split, seed)
            for seed in SEEDS
        ]
        with tempfile.TemporaryDirectory() as out:
            records = adapt_all(orders, [Path(out) / str(seed) for seed in SEEDS], torch.device("cpu"))
        source, target = (mean(one["scores"][where]["accuracy"] for one in records) for where in ("source", "target"))
        confidence = mean(one["estimates"]["mean_confidence"] for one in records)
        print(f"{name:<18} source {source:.1%}, target {target:.1%}, mean confidence there {confidence:.1%}")


if __name__ == "__main__":
    main()
