"""Simulate bearings under two conditions, adapt from one to the other, and measure the gain.

The target's labels are known because the signals are simulated; training never sees them. Each method is trained with
three seeds, because a single run says little about a method.

    python examples/simulate_and_adapt.py [--epochs 40]
"""

import argparse
import tempfile
from pathlib import Path
from statistics import mean

import torch

from bearcat.adaptation import RunSpec, make_recipe
from bearcat.adaptation.run import run_stack
from bearcat.data import Preparation, Simulated, Split, Task

SEEDS = (0, 1, 2)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=12, help="few, to see it work; 300 are the paper's")
    epochs = options.parse_args().epochs

    bearing = Simulated(seconds=0.8, severities=(4.0,), faults=("inner", "outer"))
    task, spectra = Task("N15_M07_F10", "N09_M07_F10"), Preparation(input="frequency", length=256)
    for name in ("source-only", "CAT*-Temperature"):
        recipe = make_recipe(name, "frequency", epochs)
        specs = [RunSpec("simulated", bearing, task, name, recipe, spectra, Split("block"), seed) for seed in SEEDS]
        with tempfile.TemporaryDirectory() as out:
            runs = [run_stack([spec], [Path(out) / str(spec.seed)], torch.device("cpu")) for spec in specs]
        records = [run.record for (run,) in runs]
        source = mean(record.scores.source.accuracy for record in records)
        target = mean(record.scores.target.accuracy for record in records)
        confidence = mean(record.estimates.mean_confidence for record in records)
        print(f"{name:<18} source {source:.1%}, target {target:.1%}, mean confidence there {confidence:.1%}")


if __name__ == "__main__":
    main()
