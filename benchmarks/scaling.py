"""What a training costs against the number of runs, the batch, the windows' length and the epochs.

    PYTHONPATH=src:. python benchmarks/scaling.py                                              # all four tables
    PYTHONPATH=src:. python benchmarks/scaling.py --only runs --runs 24 60 120 240 --precision bfloat16 tf32
    PYTHONPATH=src:. python benchmarks/scaling.py --only epochs --size 60                      # whole epochs, GPU

One thing changes at a time; the others stay at the Paderborn size (64 + 64 windows of 1 × 1024, 13 classes) and `--size`
runs. Steps are warm, timed one by one (CUDA events on a GPU), and the figures medians with quartiles. The last table
times train() itself, scores of student and teacher included: what a training costs once and what each epoch costs, and an
epoch over its steps alone.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from dataclasses import replace

from workload import Clock, Size, add_options, machine, on_gpu, quartiles, sizes_of, time_epochs, time_steps

TABLES = ("runs", "batch", "length", "epochs")


def table(name: str, sizes: Iterable[tuple[int, Size]], steps: int, clock: Clock) -> None:
    """Prints a line for each size, as it is measured."""
    print(
        f"\n{name:>7} {'path':>7} {'precision':>9} {'ms/step':>9} {'quartiles':>17} {'ms/run':>9} {'ms/window':>10} {'GB':>6}"
    )
    for value, size in sizes:
        if clock.left() < 0:
            print(f"{value:7} {size.path:>7} {size.precision:>9}  left out: time is up", flush=True)
            continue
        took, memory = time_steps(size, steps, clock)
        low, middle, high = quartiles(took)
        kept = "" if memory is None else f"{memory:6.1f}"
        print(f"{value:7} {size.path:>7} {size.precision:>9} {middle:9.2f} {f'{low:.2f}–{high:.2f}':>17} {middle / size.runs:9.3f} "
              f"{middle / size.runs / (2 * size.batch):10.4f} {kept:>6}", flush=True)  # fmt: skip


def epochs(size: Size, windows: int, test: int, count: int, steps: int, clock: Clock) -> None:
    """Prints what a training costs once and per epoch, and an epoch over its pure steps."""
    took = time_epochs(size, windows, test, count)
    warm = 3 if on_gpu() else 1  # steps are recorded in the first epoch, and the padded last ones in the third
    middle = statistics.median(took[warm:])
    once = sum(took) - middle * len(took)
    number = -(-windows // size.batch)
    sentence = f"{size.runs} run(s), {size.path}, {size.precision}, {windows} windows: an epoch of {number} steps {middle:.3f} s, once {once:.3f} s"
    if clock.left() < 0:
        print(f"{sentence}; its pure steps were left out: time is up", flush=True)
        return
    step = statistics.median(time_steps(size, steps, clock)[0]) / 1e3
    print(f"{sentence}, its pure steps {number * step:.3f} s: {middle / (number * step):.2f} × them", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, seconds=300)
    parser.add_argument("--only", choices=TABLES, nargs="+", default=TABLES)
    parser.add_argument("--size", type=int, default=60 if on_gpu() else 1, help="runs in the tables of other things")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 12, 24, 60, 120, 240] if on_gpu() else [1, 2, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--epochs", type=int, nargs="+", default=[8] if on_gpu() else [4])
    parser.add_argument(
        "--windows", type=int, default=2600 if on_gpu() else 256, help="of each domain, for whole epochs"
    )
    parser.add_argument("--steps", type=int, default=30 if on_gpu() else 7)
    parser.add_argument("--eager", action="store_true", help="GPU: launch kernels one by one")
    chosen = parser.parse_args()
    clock = Clock(chosen.seconds)
    sizes = [replace(size, record=not chosen.eager) for size in sizes_of(chosen)]
    print(f"{machine()}, {chosen.recipe}, medians of {chosen.steps} steps")
    varied = {"runs": chosen.runs, "batch": chosen.batches, "length": chosen.lengths}
    for name in chosen.only:
        if name == "epochs":
            print(flush=True)
            for size in sizes:
                for count in chosen.epochs:
                    if clock.left() > 0:
                        epochs(
                            replace(size, runs=chosen.size),
                            chosen.windows,
                            chosen.windows // 4,
                            count,
                            chosen.steps,
                            clock,
                        )
            continue
        table(
            name,
            [
                (value, replace(replace(size, runs=chosen.size), **{name: value}))
                for size in sizes
                for value in varied[name]
            ],
            chosen.steps,
            clock,
        )


if __name__ == "__main__":
    main()
