"""Read the records of runs, their curves and predictions, without torch.

Give the folder of a run (from `bearcat adapt --out`) or any folder that contains runs, such as the store of a
benchmark. Without a folder, a tiny run is made first.

    python examples/read_the_records.py [FOLDER] [--picture curves.png]
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from bearcat.report import Result, read_result


def tiny_run(folder: Path) -> None:
    """A run to read, for those who have none yet."""
    import bearcat

    bearcat.adapt(
        "N15_M07_F10", "N15_M07_F04", data="simulated", method="CAT-Temperature", input="frequency", window=256,
        epochs=6, out=folder, settings={"seconds": 1, "severities": 4, "faults": "inner,outer"},
    )  # fmt: skip


def describe(result: Result) -> None:
    accuracy = result.score("target", "accuracy")
    print(f"{result.cell.method} on {result.cell.task}, seed {result.cell.seed} ({result.folder})")
    print(f"  target accuracy: {'no labels there' if accuracy is None else f'{accuracy:.1%}'}")
    print(f"  {result.record.decision.sentence}")
    for warning in result.record.warnings:
        print(f"  warning: {warning}")
    curve = result.curves["loss_supervised"]
    print(f"  supervised loss: {curve[0]:.2f} in the first epoch, {curve[-1]:.2f} in the last of {len(curve)}")
    predictions = result.predictions
    unsure = np.exp(predictions.log_probabilities).max(axis=1) < 0.7
    print(f"  predicted: {dict(Counter(predictions.predicted))}, {np.mean(unsure):.0%} of them below 70 % confidence")
    mixed_up = Counter(
        (right, guess) for right, guess in zip(predictions.label, predictions.predicted, strict=True) if right
    )
    for (right, guess), count in mixed_up.most_common():
        if right != guess:
            print(f"  mixed up: {count} windows of {right} taken for {guess}")


def draw(results: list[Result], picture: Path) -> None:
    """Losses and, where it is known, accuracy on the target, epoch by epoch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for result in results:
        epochs, name = result.curves["epoch"], result.cell.method
        left.plot(epochs, result.curves["loss_supervised"], label=name)
        for network in ("student", "teacher"):
            if f"target_accuracy_{network}" in result.curves:
                right.plot(epochs, result.curves[f"target_accuracy_{network}"], label=f"{name}, {network}")
    left.set(xlabel="epoch", ylabel="supervised loss")
    right.set(xlabel="epoch", ylabel="target accuracy")
    right.legend(frameon=False, fontsize=8)
    figure.savefig(picture, dpi=120)
    print(f"drawn: {picture}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, nargs="?")
    options.add_argument("--picture", type=Path, help="draw the curves into this file")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if chosen.folder is None:
            chosen.folder = Path(place) / "run"
            tiny_run(chosen.folder)
        results = [read_result(record.parent) for record in sorted(chosen.folder.rglob("record.json"))]
        for result in results:
            describe(result)
        if chosen.picture and results:
            draw(results, chosen.picture)
    if not results:
        print(f"{chosen.folder}: no finished run in it")


if __name__ == "__main__":
    main()
