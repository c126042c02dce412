"""The loop against its slow twin: the same batches and the same recipe, stacks of several sizes, the ratio last.

    PYTHONPATH=src:. python benchmarks/stack_speed.py                                    # CPU: R = 1 … while time lasts
    PYTHONPATH=src:. python benchmarks/stack_speed.py --precision bfloat16 tf32 float32  # GPU: R = 1, 12, 60

What is timed is an epoch of CAT* with everything on, windows of 1 × 1024, 13 classes, batches of 64 + 64: calibration,
thresholds, steps. The loop trains R runs as one stack; the twin (tests/reference/loop.py: one model, torch's own layers,
nothing stacked) trains one, and R of them take R times as long. "published" is the twin with the three passes of the
published code instead of the recipe's two. On a CPU the ways take turns in random order in one process; the figures are
medians of wall times, with the smallest and largest, and of processor time, which a busy machine disturbs less.
`--alone` also trains the runs of a stack one after the other: small runs with `--windows 128 --length 256 --runs 4`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from tests.reference import loop as twins
from workload import (
    CLASSES,
    Clock,
    Size,
    add_options,
    machine,
    made_up,
    on_gpu,
    recipe_of,
    sizes_of,
    the_device,
)

from bearcat.data.tasks import TrainingData
from bearcat.methods.losses import Adversarial, Confusion, Sharpness
from bearcat.methods.recipe import Recipe
from bearcat.methods.selftraining import SelfTraining
from bearcat.training.batches import stack_data
from bearcat.training.loop import Run, train

Seconds = tuple[float, float]  # of an epoch: wall, processor
# Epochs of a training before those that are timed on a GPU: the padded last step is recorded in the third.
WARM = 3


def now() -> Seconds:
    if on_gpu():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def loop_epochs(size: Size, data: TrainingData, warm: int, timed: int) -> list[Seconds]:
    """Epochs of a stack, as train() runs them."""
    marks: list[Seconds] = []
    runs = [Run(recipe_of(size.recipe, warm + timed), data, seed) for seed in range(size.runs)]
    train(runs, the_device(), progress=lambda _: marks.append(now()), path=size.path, precision=size.precision)
    pairs = zip(marks[warm - 1 :], marks[warm:], strict=False)
    return [(after[0] - before[0], after[1] - before[1]) for before, after in pairs]


def one_by_one(size: Size, data: TrainingData) -> Seconds:
    """An epoch of each run of a stack, alone."""
    each = [loop_epochs(replace(size, runs=1), data, 1, 1)[0] for _ in range(size.runs)]
    return sum(seconds[0] for seconds in each), sum(seconds[1] for seconds in each)


class TwinEpochs:
    """The twin of a recipe, an epoch at a time, on the batches the loop's first run has."""

    def __init__(self, recipe: Recipe, data: TrainingData, passes: str) -> None:
        train_part, test_part = (
            (torch.from_numpy(part.values), torch.from_numpy(part.labels))
            for part in (data.source_train, data.source_test)
        )
        given = twins.Data(train_part, test_part, torch.from_numpy(data.target_train.values), classes=CLASSES)
        settings = twins.Settings(
            epochs=recipe.schedule.epochs, align_from=0, label_from=0, calibrate_from=0,
            alignment=recipe.find(Adversarial) is not None, mcc=recipe.find(Confusion) is not None,
            radius=recipe.find(Sharpness) and recipe.find(Sharpness).radius,
            teacher=recipe.find(SelfTraining) is not None,
            calibration=None if recipe.calibration is None else "temperature",
            passes="separate" if passes == "separate" else "shared",
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.twin = twins.Twin(settings, given, device=the_device())
        self.batches = stack_data([data], [0], recipe.schedule.batch, torch.device("cpu"))
        self.epoch = 0

    def __call__(self) -> Seconds:
        order = self.batches.order(self.epoch)
        pairs = [
            (order.source[0, step][order.source_present[0, step]], order.target[0, step][order.target_present[0, step]])
            for step in range(self.batches.iterations)
        ]
        start = now()
        self.twin.start_epoch(self.epoch)
        for source, target in pairs:
            self.twin.step(torch.from_numpy(source), torch.from_numpy(target))
        self.twin.end_epoch()
        end = now()
        self.epoch += 1
        return end[0] - start[0], end[1] - start[1]


def take_turns(ways: dict[str, Callable[[], list[Seconds]]], repeats: int, clock: Clock) -> dict[str, list[Seconds]]:
    """Each way `repeats` times, in an order drawn anew for each round; no new round when time is up."""
    times: dict[str, list[Seconds]] = {name: [] for name in ways}
    for turn in range(repeats):
        if turn and clock.left() < 0:
            break
        for name in random.sample(sorted(ways), len(ways)):
            times[name] += ways[name]()
    return times


def middle(times: list[Seconds], which: int = 0) -> float:
    return statistics.median(seconds[which] for seconds in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, seconds=240)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 12, 60])
    parser.add_argument(
        "--windows", type=int, help="training windows of each domain; by default 256 on a CPU, 2600 on a GPU"
    )
    parser.add_argument("--alone", action="store_true", help="CPU: the loop also trains the runs one after the other")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    clock, sizes = Clock(chosen.seconds), sizes_of(chosen)
    windows = chosen.windows or (2600 if on_gpu() else 256)
    data = made_up(windows, 65, 0, chosen.length)
    epochs = 2 * chosen.repeats + WARM
    recipe = recipe_of(chosen.recipe, epochs)
    slow = {"twin": TwinEpochs(recipe, data, recipe.passes), "published": TwinEpochs(recipe, data, "separate")}
    print(f"{machine()}, {chosen.recipe}, an epoch of {-(-windows // 64)} steps, {windows} windows of each domain")
    for way in slow.values():
        way()  # warm
    print(f"{'way':>10} {'path':>7} {'precision':>9} {'runs':>5} {'s/epoch':>8} {'range':>13} {'cpu s':>7} {'s/run':>8} {'twin/way':>9}",
          flush=True)  # fmt: skip

    def show(name: str, size: Size | None, runs: int, times: list[Seconds], ratio: str) -> None:
        spread = f"{min(times)[0]:.2f}–{max(times)[0]:.2f}"
        path, precision = ("torch", "float32") if size is None else (size.path, size.precision)
        print(f"{name:>10} {path:>7} {precision:>9} {runs:5} {middle(times):8.3f} {spread:>13} {middle(times, 1):7.2f} "
              f"{middle(times) / runs:8.4f} {ratio:>9}", flush=True)  # fmt: skip

    alone: dict[str, list[Seconds]] = {}
    last, an_epoch = "nothing was timed", 0.0
    for runs in chosen.runs:
        for size in (replace(base, runs=runs) for base in sizes):
            rounds = 1 if runs > 1 and not on_gpu() and not chosen.alone else chosen.repeats
            needed = 2 * an_epoch * runs * rounds
            if alone and clock.left() < needed:
                print(f"{'loop':>10} {size.path:>7} {size.precision:>9} {runs:5}  left out: wants about {needed:.0f} s more than it has",
                      flush=True)  # fmt: skip
                continue
            warm, timed = (WARM, chosen.repeats) if on_gpu() else (1, 1)

            def ours(size: Size = size, warm: int = warm, timed: int = timed) -> list[Seconds]:
                return loop_epochs(size, data, warm, timed)

            if on_gpu():
                measured = {"loop": ours()}
                if not alone:
                    alone = {name: [way() for _ in range(chosen.repeats)] for name, way in slow.items()}
            else:
                if not alone:
                    ours()  # warm
                ways: dict[str, Callable[[], list[Seconds]]] = {"loop": ours}
                if not alone or runs == 1:
                    ways |= {name: lambda way=way: [way()] for name, way in slow.items()}  # type: ignore[misc]
                if chosen.alone and runs > 1:
                    ways["alone"] = lambda size=size: [one_by_one(size, data)]  # type: ignore[misc]
                measured = take_turns(ways, rounds, clock)
                alone = alone or {name: measured[name] for name in slow}
            theirs = {name: measured.get(name, alone[name]) for name in slow}
            if runs == chosen.runs[0]:
                for name in slow:
                    show(name, None, 1, theirs[name], "")
                an_epoch = middle(measured["loop"]) / runs
            ratios = {name: runs * middle(times) / middle(measured["loop"]) for name, times in theirs.items()}
            show("loop", size, runs, measured["loop"], f"{ratios['twin']:.2f}")
            work = runs * middle(theirs["twin"], 1) / middle(measured["loop"], 1)
            best = runs * min(theirs["twin"])[0] / min(measured["loop"])[0]
            last = (f"{runs} run(s), {size.path}, {size.precision}: the twin takes {ratios['twin']:.2f} times as long (fastest "
                    f"to fastest {best:.2f}, processor time {work:.2f}), with the published code's passes {ratios['published']:.2f}")  # fmt: skip
            print(f"  {last}", flush=True)
            if "alone" in measured:
                ratio = middle(measured["alone"]) / middle(measured["loop"])
                show("alone", size, runs, measured["alone"], "")
                print(f"  one after the other they take {ratio:.2f} times as long as stacked", flush=True)
    print(f"ratio: {last}")


if __name__ == "__main__":
    main()
