"""Simulate a bearing under two conditions, adapt from one to the other, and see what adapting gained.

The target's labels are known here, because the signals are simulated; training never sees them.

    python examples/simulate_and_adapt.py [--epochs 40]
"""

import argparse
import tempfile
from pathlib import Path

import torch

from bearcat.data import Preparation, Simulated, Split
from bearcat.recipe import RECIPES
from bearcat.runs import Order, adapt_all


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=12, help="few, to see it work; 300 are the paper's")
    told = options.parse_args()

    bearing = Simulated(seconds=1.2, severities=(4.0,), faults=("inner", "outer"))
    spectra = Preparation(input="frequency", length=256)
    for name in ("source-only", "CAT*-Temperature"):
        recipe = RECIPES[name].for_input("frequency").in_epochs(told.epochs)
        order = Order(
            "simulated", bearing, ("N15_M07_F10",), "N09_M07_F10", name, recipe, spectra, Split("block"), seed=0
        )
        with tempfile.TemporaryDirectory() as out:
            (record,) = adapt_all([order], [Path(out) / "run"], torch.device("cpu"))
        scores = record["scores"]
        print(
            f"{name:<18} source {scores['source']['accuracy']:.1%}, target {scores['target']['accuracy']:.1%},"
            f" mean confidence there {record['estimates']['mean_confidence']:.1%}"
        )


if __name__ == "__main__":
    main()
