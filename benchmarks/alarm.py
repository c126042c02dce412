"""What models say of recordings they should not know, and of those they should: alarms, and confidence of recordings.

    python benchmarks/alarm.py --data cwru --root data/cwru --tasks all --without all --out alarm.csv
    python benchmarks/alarm.py --read alarm.csv

For every task, class and seed: the class is left out of source and target altogether, and the last quarter of every
target recording; the model is adapted to the rest. Then it is asked about that quarter (false alarms), the left-out
class in the target's condition (an unknown fault) and the known classes in all other conditions of the same rig pooled
(drift; `--third` names others). A recording here is a piece of `--piece` windows in a row. Which score rang is told for
windows: each has a third of the rate. The last table is about the confidence of recordings: mean confidence, share
right and ECE of the same pieces, pooled at temperature 1, at the one a model is given, and by the product of its
windows' probabilities.

Runs of equal shape are trained together. With `--out` each has a row there as soon as its stack is done, and runs that
have one are not repeated. docs/results.md has what came out.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from bearcat.calibration import ece
from bearcat.data import (
    Preparation,
    Recording,
    Split,
    SplitTask,
    Task,
    Windows,
    load,
    open_dataset,
    prepare,
    split_task,
)
from bearcat.data.recording import spectrum
from bearcat.deploy.predict import alarm_classes
from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES, Recipe, find_recipe
from bearcat.report.wording import count
from bearcat.runs.execute import stack_size
from bearcat.runs.run import Shape
from bearcat.training.batches import padded_stack
from bearcat.training.evaluate import predict
from bearcat.training.loop import Run, Trained, chosen_device, stack_key, train
from bearcat.trust.estimates import Familiarity, fit_familiarity
from bearcat.trust.pooling import diagnose, pooled_temperature, tally

Array = NDArray[np.float64]
Row = dict[str, Any]
Cut = Callable[..., Windows]  # (domains, class left out, unknown, first, last) → windows

SCORES = ("energy", "distance", "shape")
POOLED = ("plain", "saved", "product")
NAMED = ("data", "task", "without", "seed", "input", "recipe", "epochs", "windows", "piece", "third")  # a row's run
ASKED = {"later": "target, later", "unknown": "unknown fault", "third": "third condition", "source": "source, held out"}


@dataclass(frozen=True)
class Case:
    """A run to be made: the task, the class left out, the seed, and what else is asked about."""

    source: str
    target: str
    without: str
    seed: int
    third: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Parted:
    """A case's windows: what is trained on, and the two parts of it that are looked at again as windows."""

    case: Case
    run: Run
    split: SplitTask
    learnt: Windows  # the target's training windows
    source: Windows  # the source's test windows

    @property
    def windows(self) -> int:
        return len(self.run.data.source_train) + len(self.learnt) + len(self.source)


@dataclass(frozen=True, eq=False)
class Asked:
    """Some windows, in the order of time, as the model sees them."""

    windows: Windows
    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    log_probabilities: Array

    @property
    def spectra(self) -> NDArray[np.float32]:
        values = np.asarray(self.windows.values)
        return spectrum(values) if values.shape[-1] == self.windows.span else values

    def scores(self, known: Familiarity) -> Array:
        return known.scores(self.logits, self.features, self.spectra)

    def codes(self, classes: Sequence[str]) -> NDArray[np.int64]:
        """The true class of each window, by its place."""
        return np.array([classes.index(str(label)) for label in self.windows.labels])

    def pieces(self, size: int) -> list[NDArray[np.int64]]:
        """Places of `size` windows in a row of one recording."""
        found = []
        for number in range(len(self.windows.recordings)):
            mine = np.flatnonzero(self.windows.recording == number)
            mine = mine[np.argsort(self.windows.start[mine])]
            found += [mine[at : at + size] for at in range(0, len(mine) - size + 1, size)]
        return found


def parsed() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data")
    options.add_argument("--root", type=Path)
    options.add_argument("--tasks", "--task", nargs="+", default=["all"], help="SOURCE:TARGET …, or all within a rig")
    options.add_argument("--third", nargs="+", help="domains that are neither [default: all others of the rig]")
    options.add_argument("--without", nargs="+", default=["all"], help="classes left out, or all but the healthy one")
    options.add_argument("--seeds", "--seed", nargs="+", type=int, default=[0])
    options.add_argument("--recipe", default="CAT*-Temperature")
    options.add_argument("--input", default="frequency")
    options.add_argument("--epochs", type=int, default=40)
    options.add_argument("--windows", type=int, default=80, help="of each recording at most")
    options.add_argument("--piece", type=int, default=10, help="windows that make a recording")
    options.add_argument("--device", default="auto")
    options.add_argument("--stack", type=int, default=30, help="runs trained together at most")
    options.add_argument("--limit-seconds", type=float, default=math.inf, help="begin no stack that would end later")
    options.add_argument("--out", type=Path, help="rows are added to this CSV file")
    options.add_argument("--read", type=Path, nargs="+", help="only print the tables of these CSV files")
    told = options.parse_args()
    if (told.data is None) == (told.read is None):
        options.error("give either --data or --read")
    return told


def rig(domain: str) -> str:
    """mfs of mfs-600; nothing where a dataset has one rig."""
    return domain.rpartition("-")[0]


def listed(told: argparse.Namespace, domains: Sequence[str], classes: Sequence[str]) -> Iterator[Case]:
    """All runs that are asked for; those of one task follow each other."""
    tasks = [tuple(one.split(":")) for one in told.tasks]
    if told.tasks == ["all"]:
        tasks = [(one, other) for one, other in permutations(domains, 2) if rig(one) == rig(other)]
    faults = alarm_classes(classes, None if told.without == ["all"] else told.without)
    for (source, target), seed, without in product(tasks, told.seeds, classes):
        third = told.third or [one for one in domains if rig(one) == rig(target) and one not in (source, target)]
        if not third:
            raise InputError(f"there is no third condition beside {source} and {target}; name one with --third")
        if without in faults:
            yield Case(source, target, without, seed, tuple(third))


def cutter(told: argparse.Namespace) -> tuple[Sequence[str], Sequence[str], Cut]:
    """The domains and classes of the data, and what cuts windows of them."""
    catalogue = open_dataset(told.data, told.root).catalogue()
    preparation = Preparation(input=told.input)
    read = cache(lambda name: load(catalogue, [name]))

    def cut(
        domains: Sequence[str], without: str, unknown: bool = False, first: float = 0.0, last: float = 1.0
    ) -> Windows:
        """A part of every recording of the classes that are kept, or of the one that is not."""

        def part(one: Recording) -> Recording:
            windows = min(told.windows, one.signal.shape[-1] // preparation.length)
            start, stop = (preparation.length * round(share * windows) for share in (first, last))
            return replace(one, signal=one.signal[..., start:stop])

        kept = [one for name in domains for one in read(name) if (one.label == without) == unknown]
        return prepare([part(one) for one in kept], preparation)

    return catalogue.domains, catalogue.classes, cut


def parted(case: Case, recipe: Recipe, cut: Cut) -> Parted:
    task, block = Task(case.source, case.target), Split("block")
    source, target = cut([case.source], case.without), cut([case.target], case.without, last=0.75)
    split = split_task(task, source, target, block, case.seed)
    run = Run(recipe, split.training, case.seed)
    return Parted(case, run, split, target[split.target_train], source[split.source_test])


def stacks(runs: Sequence[Parted], most: int, device: torch.device) -> Iterator[list[Parted]]:
    """Runs of equal shape, as many as fit into the memory, in stacks of about equal size."""
    groups: dict[Hashable, list[Parted]] = defaultdict(list)
    for one in runs:
        groups[stack_key(one.run)].append(one)
    for key, group in groups.items():
        first = group[0]
        shape = Shape(first.run.recipe.stack_key(), first.source.values.shape[1:], key, first.windows)
        parts = math.ceil(len(group) / min(most, stack_size(shape, device)))
        for members in np.array_split(np.arange(len(group)), parts):
            yield [group[number] for number in members]


def look(trained: Trained, parts: Sequence[Windows], device: torch.device) -> list[Asked]:
    """What each run of a stack says of its own windows."""
    logits, features = predict(trained.network, padded_stack([np.asarray(one.values) for one in parts], 0, device))
    final = logits if trained.calibration is None else trained.calibration.apply(logits)
    likely = final.double().log_softmax(-1)
    seen = [one.cpu().numpy() for one in (logits.float(), features.float(), likely)]
    return [Asked(one, *(values[run, : len(one)] for values in seen)) for run, one in enumerate(parts)]


def measured(stack: Sequence[Parted], cut: Cut, size: int, device: torch.device) -> Iterator[Row]:
    """Trains a stack and asks; the numbers of each run."""
    trained = train([one.run for one in stack], device)

    def ask(windows: Callable[[Parted], Windows]) -> list[Asked]:
        return look(trained, [windows(one) for one in stack], device)

    learnt, held = ask(lambda one: one.learnt), ask(lambda one: one.split.held_back.target_test)
    asked = {
        "later": ask(lambda one: cut([one.case.target], one.case.without, first=0.75)),
        "unknown": ask(lambda one: cut([one.case.target], one.case.without, unknown=True)),
        "third": ask(lambda one: cut(one.case.third, one.case.without)),
        "source": ask(lambda one: one.source),
    }
    for run, one in enumerate(stack):
        answers = {name: each[run] for name, each in asked.items()}
        yield {"finite": int(trained.finite[run])} | numbers(one, learnt[run], held[run], answers, size)


def numbers(one: Parted, learnt: Asked, held: Asked, asked: dict[str, Asked], size: int) -> Row:
    """What a row tells of a run but for its name."""
    known = fit_familiarity(
        learnt.features, learnt.spectra, held.logits, held.features, held.spectra, held.windows.recording
    )
    classes, tested = one.split.training.classes, asked["source"]
    labels = tested.codes(classes)
    temperature = pooled_temperature(tested.log_probabilities, labels, tested.windows.recording)
    later, unknown = asked["later"], asked["unknown"]
    right = later.log_probabilities.argmax(axis=1) == later.codes(classes)
    row: Row = {"rate": known.rate, "recording_limit": known.recording_limit, "temperature": temperature}
    row |= {"accuracy": float(right.mean())}
    for name, answer in asked.items():
        row |= {f"{name}_{what}": value for what, value in alarms(answer, known, size).items()}
    for score, strange, usual in zip(SCORES, unknown.scores(known), later.scores(known), strict=True):
        row[f"auroc_{score}"] = float(mannwhitneyu(strange, usual).statistic) / (len(strange) * len(usual))
    called = np.bincount(unknown.log_probabilities.argmax(axis=1), minlength=len(classes))
    row |= {"called": classes[int(called.argmax())], "called_share": float(called.max() / called.sum())}
    for name in ("later", "third"):
        for kind, value in zip(POOLED, (1.0, temperature, 1 / size), strict=True):
            told = pooled(asked[name], asked[name].codes(classes), value, size)
            row |= {f"{name}_{kind}_{what}": number for what, number in told.items()}
    return row


def alarms(asked: Asked, known: Familiarity, size: int) -> Row:
    """Shares of windows beyond any limit and beyond each, and how many recordings of how many rang."""
    scores = asked.scores(known)
    limits = (known.energy_limit, known.distance_limit, known.shape_limit)
    strange, pieces = known.beyond(scores), asked.pieces(size)
    return {
        "windows": float(strange.mean()),
        **{name: float(np.mean(one > limit)) for name, one, limit in zip(SCORES, scores, limits, strict=True)},
        "alarmed": sum(known.alarm(int(strange[one].sum()), len(one)) for one in pieces),
        "recordings": len(pieces),
    }


def pooled(asked: Asked, labels: NDArray[np.int64], temperature: float, size: int) -> Row:
    """Mean confidence, share right and ECE of recordings."""
    places = asked.pieces(size)
    truth = np.array([labels[place[0]] for place in places])
    sure = np.stack([diagnose(tally(asked.log_probabilities[place]), temperature).probabilities for place in places])
    return {
        "confidence": float(sure.max(axis=1).mean()),
        "right": float(np.mean(sure.argmax(axis=1) == truth)),
        "ece": float(ece(sure, truth)),
    }


def name_of(case: Case, told: argparse.Namespace) -> Row:
    """The columns that say which run a row is of."""
    task = f"{case.source}:{case.target}"
    of_case = {"task": task, "without": case.without, "seed": case.seed, "third": "+".join(case.third)}
    every = vars(told) | of_case | {"recipe": find_recipe(told.recipe)}
    return {name: every[name] for name in NAMED}


def rows_of(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add_row(path: Path, row: Row) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, row)
        if file.tell() == 0:
            table.writeheader()
        table.writerow(row)


def run_all(told: argparse.Namespace) -> list[Row]:
    """Trains what has no row yet, until the time is up; all rows, those of before too."""
    started, device = time.monotonic(), chosen_device(told.device)
    rows = rows_of(told.out) if told.out is not None and told.out.exists() else []
    there = {tuple(str(row[name]) for name in NAMED) for row in rows}
    domains, classes, cut = cutter(told)
    cases = list(listed(told, domains, classes))
    wanted = [one for one in cases if tuple(map(str, name_of(one, told).values())) not in there]
    recipe = RECIPES[find_recipe(told.recipe)].for_input(told.input).in_epochs(told.epochs)
    print(f"{count(len(cases), 'run')}, {len(cases) - len(wanted)} done before; on {device}", flush=True)
    slowest = 0.0  # seconds a run
    for stack in stacks([parted(one, recipe, cut) for one in wanted], told.stack, device):
        begun = time.monotonic()
        if begun - started + slowest * len(stack) > told.limit_seconds:
            print("the time is up; the same command goes on", flush=True)
            break
        for one, found in zip(stack, measured(stack, cut, told.piece, device), strict=True):
            row = name_of(one.case, told) | found
            rows.append({name: str(value) for name, value in row.items()})
            if told.out is not None:
                add_row(told.out, row)
        seconds = time.monotonic() - begun
        slowest = max(slowest, seconds / len(stack))
        print(f"{count(len(stack), 'run')} in {seconds:.0f} s", flush=True)
    return rows


# Rows → tables.


def column(rows: Sequence[Row], name: str) -> Array:
    return np.array([float(row[name]) for row in rows])


def percent(values: Array) -> str:
    return f"{100 * values.mean():.0f}"


def mean_and_spread(values: Array) -> str:
    """With the standard deviation over runs, where there are several."""
    return percent(values) + (f" ± {100 * values.std(ddof=1):.0f}" if len(values) > 1 else "")


def quartiles(values: Array) -> str:
    return " / ".join(f"{100 * one:.0f}" for one in np.quantile(values, [0.25, 0.5, 0.75]))


def print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    print(*(f"| {' | '.join(one)} |" for one in (head, ["---"] * len(head), *lines)), "", sep="\n")


def print_all(rows: Sequence[Row]) -> None:
    """The tables of each dataset, input and recipe; numbers are percent, means over runs unless told otherwise."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in ("data", "input", "recipe", "epochs", "windows", "piece"))].append(row)
    for (data, kind, recipe, epochs, windows, piece), every in groups.items():
        group = [row for row in every if int(row["finite"])]
        broken = f", {len(every) - len(group)} more broke down" if len(group) < len(every) else ""
        tasks, classes, seeds = (len({row[name] for row in group}) for name in ("task", "without", "seed"))
        left_out = count(classes, "class left out", "classes left out in turn")
        right = column(group, "accuracy")
        print(
            f"**{data}, {kind} input**: {count(len(group), 'run')} ({count(tasks, 'task')}, {left_out},"
            f" {count(seeds, 'seed')}{broken}), {recipe}, {epochs} epochs, at most {windows} windows a recording;"
            f" {mean_and_spread(right)} % of the target's later windows right. Percent; recordings are {piece} windows in a row.\n"
        )
        print_alarms(group)
        print_classes(group)
        print_pooled(group)


def rung(rows: Sequence[Row], name: str) -> Array:
    """The share of recordings alarmed, of each run that has any."""
    alarmed, recordings = column(rows, f"{name}_alarmed"), column(rows, f"{name}_recordings")
    return alarmed[recordings > 0] / recordings[recordings > 0]


def print_alarms(rows: Sequence[Row]) -> None:
    lines = []
    for name, title in ASKED.items():
        windows, recordings = column(rows, f"{name}_windows"), rung(rows, name)
        by_score = [percent(column(rows, f"{name}_{score}")) for score in SCORES]
        alarmed, of = (int(column(rows, f"{name}_{what}").sum()) for what in ("alarmed", "recordings"))
        shares = [mean_and_spread(recordings), quartiles(recordings)] if of else ["–", "–"]
        lines.append(
            [title, mean_and_spread(windows), quartiles(windows), *by_score, f"{alarmed} of {of}", *shares]
        )  # fmt: skip
    head = ["asked about", "unfamiliar windows, mean ± sd", "quartiles", *SCORES, "recordings alarmed", "mean ± sd", "quartiles"]  # fmt: skip
    print_table(head, lines)


def print_classes(rows: Sequence[Row]) -> None:
    lines = []
    for without in dict.fromkeys(row["without"] for row in rows):
        mine = [row for row in rows if row["without"] == without]
        shares = rung(mine, "unknown")
        called = Counter(row["called"] for row in mine).most_common(2)
        lines.append(
            [
                without, str(len(mine)), percent(column(mine, "unknown_windows")),
                percent(shares) if len(shares) else "–", f"{(shares == 0).sum()}",
                *(f"{column(mine, f'auroc_{score}').mean():.2f}" for score in SCORES),
                ", ".join(f"{name} ({runs})" for name, runs in called),
            ]
        )  # fmt: skip
    aurocs = [f"AUROC {score}" for score in SCORES]
    print_table(
        ["class left out", "runs", "unfamiliar windows", "recordings alarmed", "runs without alarm", *aurocs, "called (runs)"],
        lines,
    )  # fmt: skip


def print_pooled(rows: Sequence[Row]) -> None:
    def cell(name: str, kind: str) -> str:
        return " / ".join(percent(column(rows, f"{name}_{kind}_{what}")) for what in ("confidence", "right", "ece"))

    saved = f"as saved, {column(rows, 'temperature').mean():.2f} on average"
    lines = [[ASKED[name], *(cell(name, kind) for kind in POOLED)] for name in ("later", "third")]
    print_table(["confidence / right / ECE", "temperature 1", saved, "product"], lines)


def main() -> None:
    told = parsed()
    rows = [row for path in told.read for row in rows_of(path)] if told.read else run_all(told)
    print()
    print_all(rows)


if __name__ == "__main__":
    main()
