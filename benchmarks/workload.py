"""What the speed benchmarks share: made-up data of the Paderborn size, a step ready to be timed, and a clock.

A step is one iteration of CAT* in its last phase (the teacher follows and labels, the student climbs and descends, the
domain classifier learns) for all runs of a stack at once: 64 source and 64 target windows of 1 × 1024, 13 classes.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from bearcat.data.recording import Windows
from bearcat.data.tasks import HeldBack, Labelled, TrainingData, Unlabelled
from bearcat.methods.recipe import RECIPES, Recipe, Schedule
from bearcat.models.networks import PRECISIONS, fast_path, use_path
from bearcat.training import loop as loop
from bearcat.training.batches import Feed, stack_data
from bearcat.training.evaluate import EpochEnd, fit_calibration, refill, watcher
from bearcat.training.loop import Run, train
from bearcat.training.state import Recorder, torch_settings

CLASSES, LENGTH, BATCH = 13, 1024, 64


@dataclass(frozen=True)
class Size:
    """How much a step has to do, and which way."""

    runs: int = 1
    batch: int = BATCH
    length: int = LENGTH
    recipe: str = "CAT*-Temperature"
    path: str = "plain"
    precision: str = "float32"
    record: bool = True  # as a CUDA graph, where there is a GPU


def made_up(windows: int, test: int, seed: int, length: int = LENGTH) -> TrainingData:
    """Noise, and classes in turn."""
    drawn = np.random.default_rng(seed)

    def values(count: int) -> np.ndarray:
        return drawn.standard_normal((count, 1, length), dtype=np.float32)

    def labels(count: int) -> np.ndarray:
        return np.arange(count) % CLASSES

    return TrainingData(
        tuple(str(number) for number in range(CLASSES)), Labelled(values(windows), labels(windows)),
        Labelled(values(test), labels(test)), Unlabelled(values(windows)),
    )  # fmt: skip


def held_back(windows: int, test: int, length: int) -> HeldBack:
    """Target test windows with labels, for the scores of an epoch."""
    place = np.zeros(test, np.int64)
    values = made_up(test, 1, 1, length).source_train.values
    return HeldBack(Windows(values, place, place, length, ()), np.arange(test) % CLASSES, np.arange(windows) % CLASSES)


def recipe_of(name: str, epochs: int, batch: int = BATCH) -> Recipe:
    """Everything on from the first epoch."""
    schedule = Schedule(epochs=epochs, batch=batch, align_from=0, label_from=0, calibrate_from=0)
    return replace(RECIPES[name], schedule=schedule)


@contextmanager
def ready(size: Size) -> Iterator[Callable[[], None]]:
    """A step, warm: call it as often as you like. The losses must be numbers afterwards."""
    device = the_device()
    recipe, data = recipe_of(size.recipe, 10, size.batch), made_up(3 * size.batch, 65, 0, size.length)
    batches = stack_data([data] * size.runs, list(range(size.runs)), size.batch, device)
    phase = loop.phase_of(recipe, recipe.schedule.epochs)
    with torch_settings(size.precision, device):
        state = loop.new_state(recipe, batches, CLASSES)
        state.epoch = recipe.schedule.epochs
        use_path([state.student, *state.modules.values()], size.path, size.precision)
        state.calibration = refill(None, fit_calibration(recipe, state))
        for teaching in phase.teaching:
            teaching.start_epoch(state)
        feed, recorder = Feed(batches), Recorder(device, size.record)
        step = partial(loop.train_step, recipe, state, feed, phase, False)
        feed.fill(0, {ingredient.name: [0.5] * 3 for ingredient in recipe.ingredients})

        def next_step() -> None:
            feed.number.fill_(0)
            recorder.run(step, "step")

        for _ in range(6 if device.type == "cuda" else 1):
            next_step()
        yield next_step
        if not all(bool(value.isfinite().all()) for value in state.totals.values()):
            raise RuntimeError("a loss is no number: what was timed is no training")


def time_steps(size: Size, steps: int, clock: Clock) -> tuple[list[float], float | None]:
    """Milliseconds of each warm step, fewer than asked for when time is up, and on a GPU the most memory in GB."""
    with ready(size) as step:
        if the_device().type == "cpu":
            took: list[float] = []
            while len(took) < steps and (len(took) < 3 or clock.left() > 0):
                start = time.perf_counter()
                step()
                took.append(1e3 * (time.perf_counter() - start))
            return took, None
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        torch.cuda.synchronize()
        took = [before.elapsed_time(after) for before, after in itertools.pairwise(marks)]
    memory = torch.cuda.max_memory_reserved() / 1e9
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return took, memory


def time_epochs(size: Size, windows: int, test: int, epochs: int) -> list[float]:
    """Seconds of each epoch of train(), scores, thresholds and calibration included; the first from the call on."""
    device = the_device()
    data, held = made_up(windows, test, 0, size.length), held_back(windows, test, size.length)
    marks = [time.perf_counter()]

    def note(_: EpochEnd) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    runs = [Run(recipe_of(size.recipe, epochs, size.batch), data, seed) for seed in range(size.runs)]
    train(runs, device, watcher([held] * size.runs, device), note, precision=size.precision, path=size.path)
    return [float(after - before) for before, after in itertools.pairwise(marks)]


def the_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_gpu() -> bool:
    return the_device().type == "cuda"


def machine() -> str:
    """What the times are from."""
    if on_gpu():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    name = platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"


class Clock:
    """Counts down from the seconds a benchmark may take."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        return self.end - time.monotonic()


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower, middle, upper."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return low, middle, high


def add_options(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Adds the options that every benchmark of a step has."""
    parser.add_argument("--path", choices=["plain", "triton", "native"], nargs="+", help="by default the device's best")
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", help="by default train()'s own choice")
    parser.add_argument("--recipe", default="CAT*-Temperature")
    parser.add_argument("--length", type=int, default=LENGTH, help="points of a window")
    parser.add_argument("--threads", type=int, help="CPU: by default torch's choice")
    parser.add_argument("--seconds", type=float, default=seconds, help="begin nothing new after so many")


def sizes_of(chosen: argparse.Namespace) -> list[Size]:
    """One for each path and precision that was chosen and exists together."""
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    paths = chosen.path or [fast_path(the_device())]
    pairs = [
        (path, precision)
        for path in paths
        for precision in chosen.precision or [loop.choose_precision(None, path, the_device())]
    ]
    return [
        Size(length=chosen.length, recipe=chosen.recipe, path=path, precision=precision)
        for path, precision in pairs
        if (on_gpu() or precision == "float32") and not (path == "plain" and precision == "bfloat16")
    ]
