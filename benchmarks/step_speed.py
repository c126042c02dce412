"""How long a step of CAT* takes at the size of the Paderborn data, by number of runs, path and precision.

    python benchmarks/step_speed.py                        # CPU: an epoch of the loop beside its slow twin's, and the ratio
    python benchmarks/step_speed.py --runs 1 12 60 --path triton plain --precision bfloat16 tf32 float32    # GPU

On a GPU: random windows of 1 × 1024, 64 source and 64 target ones a batch, 13 classes; the median of warm steps of the
self-training phase, timed one by one with CUDA events in one process. `--epoch` adds a whole epoch as train() runs it,
with evaluation, thresholds and calibration, over its steps alone. `--profile FILE` writes time by kernel.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import platform
import random
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bearcat import train as loop
from bearcat.batches import Feed, stack_data
from bearcat.data.recording import Windows
from bearcat.data.tasks import HeldBack, Labelled, TrainingData, Unlabelled
from bearcat.evaluate import EpochEnd, watcher
from bearcat.models import fast_path, use_path
from bearcat.recipe import RECIPES, Recipe, Schedule
from bearcat.stepping import Recorder, matrix_products
from bearcat.train import Run, train

CLASSES, LENGTH = 13, 1024


def made_up(windows: int, test: int, seed: int) -> TrainingData:
    drawn = np.random.default_rng(seed)

    def values(count: int) -> np.ndarray:
        return drawn.standard_normal((count, 1, LENGTH), dtype=np.float32)

    def labels(count: int) -> np.ndarray:
        return np.arange(count) % CLASSES

    return TrainingData(
        tuple(str(one) for one in range(CLASSES)), Labelled(values(windows), labels(windows)),
        Labelled(values(test), labels(test)), Unlabelled(values(windows)),
    )  # fmt: skip


def recipe_of(name: str, epochs: int) -> Recipe:
    """Everything on from the first epoch."""
    return replace(RECIPES[name], schedule=Schedule(epochs=epochs, align_from=0, label_from=0, calibrate_from=0))


def time_steps(
    count: int, path: str, precision: str, steps: int, record: bool, name: str, profile: Path | None
) -> tuple[list[float], float]:
    """Milliseconds of each warm step, and the most memory in GB."""
    device = torch.device("cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    recipe, one = recipe_of(name, 10), made_up(192, 65, 0)
    runs = [Run(recipe, one, seed) for seed in range(count)]
    batches = stack_data([one] * count, list(range(count)), 64, device)
    number = loop._numbers(runs, device)
    with matrix_products(precision, device):
        state = loop._new_state(runs, batches, CLASSES)
        use_path([state.student, state.domain], path, precision)
        state.teacher = copy.deepcopy(state.student).requires_grad_(False)
        phase = loop._phase(recipe, 0)
        state.calibration = loop._in_place(None, loop._calibrate(recipe, state, batches, None))
        loop._prepare_labels(recipe, state, batches, number, CLASSES)
        feed, recorder = Feed(batches), Recorder(device, record)
        step = partial(loop._step, recipe, state, feed, number, phase, False)
        feed.fill(0, [0.5] * 3)

        def next_step() -> None:
            feed.number.fill_(0)
            recorder.run(step, "step")

        for _ in range(6):
            next_step()
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for mark in marks[1:]:
            next_step()
            mark.record()
        torch.cuda.synchronize()
        took = [one.elapsed_time(other) for one, other in itertools.pairwise(marks)]
        if profile is not None:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                for _ in range(3):
                    next_step()
                torch.cuda.synchronize()
            table = seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=70)
            profile.write_text(table)
        assert all(bool(value.isfinite().all()) for value in state.totals.values())
    return took, torch.cuda.max_memory_reserved() / 1e9


def time_epoch(count: int, path: str, precision: str, name: str) -> tuple[float, float]:
    """Seconds of an epoch as train() runs it, the median of warm ones, and its windows' steps."""
    device = torch.device("cuda")
    one = made_up(2600, 650, 0)
    held = HeldBack(
        Windows(made_up(650, 65, 1).source_train.values, np.zeros(650, np.int64), np.zeros(650, np.int64), LENGTH, ()),
        np.arange(650) % CLASSES, np.arange(2600) % CLASSES,
    )  # fmt: skip
    marks = []

    def note(_: EpochEnd) -> None:
        torch.cuda.synchronize()
        marks.append(time.perf_counter())

    runs = [Run(recipe_of(name, 6), one, seed) for seed in range(count)]
    train(runs, device, watcher([held] * count, device), note, precision=precision, path=path)
    return statistics.median(np.diff(marks)[1:]), -(-2600 // 64)


def on_gpu(chosen: argparse.Namespace) -> None:
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {chosen.recipe}, median of {chosen.steps} steps")
    print(f"{'path':8} {'precision':10} {'runs':>5} {'ms':>8} {'quartiles':>15} {'ms/run':>8} {'GB':>6}")
    for path in chosen.path or [fast_path(device)]:
        for precision in chosen.precision:
            if path == "plain" and precision == "bfloat16":
                continue
            for count in chosen.runs:
                profile = None if chosen.profile is None else Path(f"{chosen.profile}-{path}-{precision}-{count}.txt")
                took, memory = time_steps(
                    count, path, precision, chosen.steps, not chosen.eager, chosen.recipe, profile
                )
                low, middle, high = statistics.quantiles(took, n=4)
                spread = f"{low:.2f}–{high:.2f}"
                print(f"{path:8} {precision:10} {count:5} {middle:8.2f} {spread:>15} {middle / count:8.3f} {memory:6.1f}",
                      flush=True)  # fmt: skip
                if chosen.epoch:
                    seconds, steps = time_epoch(count, path, precision, chosen.recipe)
                    print(f"  an epoch of {steps:g} steps, all included: {seconds:.3f} s, "
                          f"{seconds / (steps * middle / 1000):.2f} × its steps", flush=True)  # fmt: skip


def on_cpu(chosen: argparse.Namespace) -> None:
    """An epoch of CAT* by the loop and by the twin, in random order."""
    from tests.reference import loop as twin_loop

    torch.set_num_threads(chosen.threads)
    data = made_up(chosen.windows, 65, 0)
    steps = -(-chosen.windows // 64)
    print(f"{platform.processor() or platform.machine()}, {chosen.threads} threads, torch {torch.__version__}, "
          f"an epoch of {steps} steps")  # fmt: skip
    given = twin_loop.Data(
        (torch.from_numpy(data.source_train.values), torch.from_numpy(data.source_train.labels)),
        (torch.from_numpy(data.source_test.values), torch.from_numpy(data.source_test.labels)),
        torch.from_numpy(data.target_train.values), classes=CLASSES,
    )  # fmt: skip

    def ours() -> float:
        marks: list[float] = []
        train([Run(recipe_of("CAT*-Temperature", 2), data, 0)], torch.device("cpu"),
              progress=lambda _: marks.append(time.perf_counter()))  # fmt: skip
        return marks[1] - marks[0]

    def theirs() -> float:
        settings = twin_loop.Settings(
            epochs=2, align_from=0, label_from=0, calibrate_from=0, alignment=True, mcc=True, radius=0.05, teacher=True,
            calibration="temperature", passes="separate",
        )  # fmt: skip
        marks: list[float] = []
        twin_loop.train(settings, given, 0, after_epoch=lambda *_: marks.append(time.perf_counter()))
        return marks[1] - marks[0]

    seen: dict[str, list[float]] = {"loop": [], "twin": []}
    for turn in range(2 * chosen.repeats):
        if turn % 2 == 0:
            order = random.sample(["loop", "twin"], 2)
        name = order[turn % 2]
        seen[name].append(ours() if name == "loop" else theirs())
        print(f"  {name}: {seen[name][-1]:.2f} s", flush=True)
    middle = {name: statistics.median(values) for name, values in seen.items()}
    print(f"loop {middle['loop']:.2f} s, twin {middle['twin']:.2f} s, ratio {middle['twin'] / middle['loop']:.2f}")


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--runs", type=int, nargs="+", default=[1, 12, 60])
    told.add_argument("--path", nargs="+", choices=["plain", "triton"])
    told.add_argument("--precision", nargs="+", default=["bfloat16", "tf32", "float32"])
    told.add_argument("--recipe", default="CAT*-Temperature")
    told.add_argument("--steps", type=int, default=30)
    told.add_argument("--eager", action="store_true", help="no CUDA graph")
    told.add_argument("--epoch", action="store_true")
    told.add_argument("--profile")
    told.add_argument("--windows", type=int, default=256, help="CPU: training windows of each domain")
    told.add_argument("--threads", type=int, default=2)
    told.add_argument("--repeats", type=int, default=3)
    chosen = told.parse_args()
    if torch.cuda.is_available():
        on_gpu(chosen)
    else:
        on_cpu(chosen)


if __name__ == "__main__":
    main()
