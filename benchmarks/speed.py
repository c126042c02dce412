"""Measures a step of CAT* in stacks of several sizes, and one run against another version of this package.

    PYTHONPATH=src python benchmarks/speed.py                          # 1 and 4 runs on a CPU; 1, 12 and 60 on a GPU
    PYTHONPATH=src python benchmarks/speed.py --runs 60                # the 60-run step of a GPU
    PYTHONPATH=src python benchmarks/speed.py --runs 1 --beside ../older/src

A step is one iteration of CAT*-Temperature in its last phase (the teacher follows and labels, the student climbs and
descends, the domain classifier learns): 64 source and 64 target windows of 1 × 1024 of noise, 13 classes. Steps are
timed one by one when they are warm (with CUDA events on a GPU); printed are medians with quartiles. With --beside each
version trains one run in a process of its own, and both take turns, an epoch of eight steps each; the last line is the
ratio of their medians, of wall and of processor time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bearcat.data.tasks import Labelled, TrainingData, Unlabelled

# The version that is compared with may be 0.3, whose modules have other names.
NOW = find_spec("bearcat.cat") is not None
methods = import_module("bearcat.cat.recipes" if NOW else "bearcat.methods.recipe")
loop = import_module("bearcat.cat.algorithm" if NOW else "bearcat.training.loop")

CLASSES, LENGTH, BATCH, NAME = 13, 1024, 64, "CAT*-Temperature"
STEPS = 8  # of an epoch that is timed beside another version
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


def recipe(epochs: int) -> Any:
    """Everything on from the first epoch."""
    schedule = methods.Schedule(epochs=epochs, batch=BATCH, align_from=0, label_from=0, calibrate_from=0)
    return replace(methods.RECIPES[NAME], schedule=schedule)


@contextmanager
def ready(runs: int) -> Iterator[Callable[[], None]]:
    """A warm step, which may be called any number of times. The losses must be numbers afterwards."""
    from bearcat.cat.algorithm import train_step
    from bearcat.cat.networks import predict
    from bearcat.cat.state import begin
    from bearcat.cat.teacher import SelfTraining, copy_of, set_thresholds, update_calibration
    from bearcat.fast.device import Feed, Recorder, torch_settings
    from bearcat.fast.stacked import path_of

    trained, data = recipe(10), noise(3 * BATCH, BATCH)
    state = begin([loop.Run(trained, data, seed) for seed in range(runs)], device())
    path = path_of(state.student)
    with torch_settings(state.precision, device()):
        state.epoch = trained.schedule.epochs
        update_calibration(state, trained.calibration)
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


def work() -> None:
    """Trains one run; an epoch for each line that is read, answered with its wall and processor time in seconds."""
    epochs, started = 10**6, (0.0, 0.0)

    def answer(_: object) -> None:
        if on_gpu():
            torch.cuda.synchronize()
        print(json.dumps([time.perf_counter() - started[0], time.process_time() - started[1]]), flush=True)
        wait()

    def wait() -> None:
        nonlocal started
        if not sys.stdin.readline():
            sys.exit()
        started = time.perf_counter(), time.process_time()

    wait()
    loop.train([loop.Run(recipe(epochs), noise(STEPS * BATCH, BATCH), 0)], device(), progress=answer)


def compare(older: Path, rounds: int) -> None:
    """Epochs of one run, now and by another version in turn, and the ratios."""
    sources = {"now": Path(__file__).parents[1] / "src", "before": older}
    workers, took = {}, {name: list[list[float]]() for name in sources}
    for name, source in sources.items():
        environment = os.environ | {"PYTHONPATH": str(source.resolve()), "OMP_WAIT_POLICY": "passive"}
        workers[name] = subprocess.Popen(
            [sys.executable, __file__, "--worker"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    for turn in range(-2, rounds):  # the first two warm
        for name in random.sample(sorted(sources), len(sources)):
            worker = workers[name]
            assert worker.stdin is not None
            assert worker.stdout is not None
            print(file=worker.stdin, flush=True)
            answer = worker.stdout.readline()
            if turn >= 0:
                took[name].append(json.loads(answer))
    for worker in workers.values():
        worker.communicate()  # which closes what it reads
    middle = {name: [statistics.median(column) for column in zip(*times, strict=True)] for name, times in took.items()}
    for name, (wall, processor) in middle.items():
        print(f"{name:>7}: {1e3 * wall / STEPS:.1f} ms a step, processor time {1e3 * processor / STEPS:.1f} ms")
    ratios = [now / before for now, before in zip(middle["now"], middle["before"], strict=True)]
    print(f"now / before: {ratios[0]:.2f}, processor time {ratios[1]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 12, 60] if on_gpu() else [1, 4])
    parser.add_argument("--steps", type=int, default=30 if on_gpu() else 9)
    parser.add_argument("--beside", type=Path, metavar="SRC", help="the source folder of another version")
    parser.add_argument("--rounds", type=int, default=12, help="epochs of each version")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        work()
        return
    processor = torch.cuda.get_device_name() if on_gpu() else f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(f"{processor}, torch {torch.__version__}, {NAME}, medians of {chosen.steps} steps")
    for runs in chosen.runs:
        low, middle, high = statistics.quantiles(time_steps(runs, chosen.steps), n=4)
        print(f"{middle:.2f} ms a step ({low:.2f} to {high:.2f}), {middle / runs:.3f} ms a run", flush=True)
    if chosen.beside is not None:
        compare(chosen.beside, chosen.rounds)


if __name__ == "__main__":
    main()
