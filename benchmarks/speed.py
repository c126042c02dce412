"""Measures a step of CAT* in stacks of several sizes.

    PYTHONPATH=src python benchmarks/speed.py                          # 1 and 4 runs on a CPU; 1, 12 and 60 on a GPU
    PYTHONPATH=src python benchmarks/speed.py --runs 60                # the 60-run step of a GPU

A step is one iteration of CAT*-Temperature in its last phase (the teacher follows and labels, the student climbs and
descends, the domain classifier learns): 64 source and 64 target windows of 1 × 1024 of noise, 13 classes. Steps are
timed one by one when they are warm (with CUDA events on a GPU); printed are medians with quartiles. Another version is
measured with PYTHONPATH at its source.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from bearcat.cat.algorithm import Run, train_step
from bearcat.cat.ingredient import Schedule
from bearcat.cat.networks import predict
from bearcat.cat.recipes import RECIPES, Recipe
from bearcat.cat.state import begin
from bearcat.cat.teacher import SelfTraining, calibrate, copy_of, set_thresholds
from bearcat.data.tasks import Labelled, TrainingData, Unlabelled
from bearcat.fast.device import Feed, Recorder, torch_settings
from bearcat.fast.stacked import path_of

CLASSES, LENGTH, BATCH, NAME = 13, 1024, 64, "CAT*-Temperature"
WARM = 6  # on a GPU the third step of a kind is recorded


def device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_gpu() -> bool:
    return device().type == "cuda"


def noise(windows: int, tested: int) -> TrainingData:
    """Noise, and classes in turn."""
    drawn = np.random.default_rng(0)

    def labelled(count: int) -> Labelled:
        return Labelled(drawn.standard_normal((count, 1, LENGTH), dtype=np.float32), np.arange(count) % CLASSES)

    names = tuple(str(number) for number in range(CLASSES))
    return TrainingData(names, labelled(windows), labelled(tested), Unlabelled(labelled(windows).values))


def recipe() -> Recipe:
    """Everything on from the first epoch."""
    schedule = Schedule(epochs=10, batch=BATCH, align_from=0, label_from=0, calibrate_from=0)
    return replace(RECIPES[NAME], schedule=schedule)


@contextmanager
def ready(runs: int) -> Iterator[Callable[[], None]]:
    """A warm step, which may be called any number of times. The losses must be numbers afterwards."""
    trained, data = recipe(), noise(3 * BATCH, BATCH)
    assert trained.calibration is not None
    state = begin([Run(trained, data, seed) for seed in range(runs)], device())
    path = path_of(state.student)
    with torch_settings(state.precision, device()):
        state.epoch = trained.schedule.epochs
        calibrate(state, trained.calibration)
        state.teacher = copy_of(state.student)
        set_thresholds(trained.find(SelfTraining), state, predict(state.teacher, state.batches.target_train)[0])
        feed, recorder = Feed(state.batches), Recorder(device(), True)
        step = partial(train_step, state, feed, state.epoch, (BATCH, BATCH))
        feed.fill(0, {ingredient.name: [0.5] * 3 for ingredient in trained.ingredients})

        def next_step() -> None:
            feed.number.fill_(0)
            recorder.run(step, "step")

        for _ in range(WARM if on_gpu() else 1):
            next_step()
        print(f"{runs} run(s), path {path}, {state.precision}: ", end="", flush=True)
        yield next_step
        if not all(bool(value.isfinite().all()) for value in state.totals.values()):
            raise RuntimeError("a loss is not finite, so what was timed is not a training")


def time_steps(runs: int, steps: int) -> list[float]:
    """Milliseconds of each step."""
    with ready(runs) as step:
        if not on_gpu():
            marks = [time.perf_counter()]
            for _ in range(steps):
                step()
                marks.append(time.perf_counter())
            return [1e3 * (after - before) for before, after in itertools.pairwise(marks)]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in itertools.pairwise(events)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 12, 60] if on_gpu() else [1, 4])
    parser.add_argument("--steps", type=int, default=30 if on_gpu() else 9)
    chosen = parser.parse_args()
    processor = torch.cuda.get_device_name() if on_gpu() else f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(f"{processor}, torch {torch.__version__}, {NAME}, medians of {chosen.steps} steps")
    for runs in chosen.runs:
        low, middle, high = statistics.quantiles(time_steps(runs, chosen.steps), n=4)
        print(f"{middle:.2f} ms a step ({low:.2f} to {high:.2f}), {middle / runs:.3f} ms a run", flush=True)


if __name__ == "__main__":
    main()
