"""What models say of recordings they should not know, and of those they should: alarms, and confidence of recordings.

    python benchmarks/alarm.py --data cwru --root data/cwru --tasks all --without all --out alarm.csv
    python benchmarks/alarm.py --read alarm.csv

For every task, class and seed: the class is left out of source and target altogether, and the last quarter of every
target recording; the model is adapted to the rest. Then it diagnoses that quarter (false alarms), the left-out
class in the target's condition (an unknown fault) and the known classes in all other conditions of the same rig pooled
(drift; `--third` names others). A recording here is `--piece` windows in a row. Columns of windows say which score was
beyond its limit; each has half of the rate. The last table is about the confidence of recordings: mean confidence,
share right and ECE of the same recordings, pooled at temperature 1, at the one a model is given, and by the product of
their windows' probabilities.

Runs of equal shape are trained together. With `--out` each has a row in that file as soon as its stack is done, and
runs that have a row are not repeated. docs/results.md has the results.
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
from bearcat.diagnosis.recording import AlarmRule
from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES, Recipe, find_recipe
from bearcat.report.typeset import count
from bearcat.runs.execute import stack_size
from bearcat.training.batches import padded_stack
from bearcat.training.evaluate import predict
from bearcat.training.loop import Run, Trained, chosen_device, stack_key, train
from bearcat.trust.pooling import Familiarity, fit_familiarity, pool, pooled_temperature, tally

Array = NDArray[np.float64]
Row = dict[str, Any]
Cut = Callable[..., Windows]  # (domains, class left out, unknown, first, last) → windows

SCORES = ("distance", "shape")
POOLED = ("plain", "saved", "product")
NAMED = (
    "data",
    "task",
    "without",
    "seed",
    "input",
    "recipe",
    "epochs",
    "length",
    "windows",
    "piece",
    "third",
)  # a row's run
PARTS = {"later": "target, later", "unknown": "unknown fault", "third": "third condition", "source": "source, held out"}


@dataclass(frozen=True)
class Case:
    """A run to be made: the task, the class left out, the seed, and the other conditions to diagnose."""

    source: str
    target: str
    without: str
    seed: int
    third: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CaseWindows:
    """A case's windows: what is trained on, and the two parts of it that are evaluated as windows."""

    case: Case
    run: Run
    split: SplitTask
    target_train: Windows
    source_test: Windows


@dataclass(frozen=True, eq=False)
class Diagnosed:
    """Some windows, in the order of time, and what the model says of them."""

    windows: Windows
    features: NDArray[np.float32]
    log_probabilities: Array

    @property
    def shapes(self) -> Any:
        return self.windows.shapes

    def scores(self, known: Familiarity) -> Array:
        return known.scores(self.features, self.shapes)

    def codes(self, classes: Sequence[str]) -> NDArray[np.int64]:
        """The true class of each window, by its place."""
        return np.array([classes.index(str(label)) for label in self.windows.labels])

    def recordings(self, size: int) -> list[NDArray[np.int64]]:
        """Places of `size` windows in a row of one recording."""
        found = []
        for number in range(len(self.windows.recordings)):
            mine = np.flatnonzero(self.windows.recording == number)
            mine = mine[np.argsort(self.windows.start[mine])]
            found += [mine[at : at + size] for at in range(0, len(mine) - size + 1, size)]
        return found


def parse_options() -> argparse.Namespace:
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
    options.add_argument("--length", type=int, default=1024, help="samples of a window")
    options.add_argument("--windows", type=int, default=80, help="of each recording at most")
    options.add_argument("--piece", type=int, default=10, help="windows that make a recording")
    options.add_argument("--device", default="auto")
    options.add_argument("--stack", type=int, default=30, help="runs trained together at most")
    options.add_argument("--limit-seconds", type=float, default=math.inf, help="begin no stack that would end later")
    options.add_argument("--out", type=Path, help="rows are added to this CSV file")
    options.add_argument("--read", type=Path, nargs="+", help="only print the tables of these CSV files")
    given = options.parse_args()
    if (given.data is None) == (given.read is None):
        options.error("give either --data or --read")
    return given


def rig(domain: str) -> str:
    """mfs of mfs-600; nothing where a dataset has one rig."""
    return domain.rpartition("-")[0]


def planned_cases(options: argparse.Namespace, domains: Sequence[str], classes: Sequence[str]) -> Iterator[Case]:
    """All runs that the options name; those of one task follow each other."""
    tasks = [tuple(task.split(":")) for task in options.tasks]
    if options.tasks == ["all"]:
        tasks = [(source, target) for source, target in permutations(domains, 2) if rig(source) == rig(target)]
    faults = AlarmRule.of(classes, None if options.without == ["all"] else options.without).classes
    for (source, target), seed, without in product(tasks, options.seeds, classes):
        same_rig = [domain for domain in domains if rig(domain) == rig(target)]
        third = options.third or [domain for domain in same_rig if domain not in (source, target)]
        if not third:
            raise InputError(f"there is no third condition beside {source} and {target}; name one with --third")
        if without in faults:
            yield Case(source, target, without, seed, tuple(third))


def cutter(options: argparse.Namespace) -> tuple[Sequence[str], Sequence[str], Cut]:
    """The domains and classes of the data, and a function that cuts windows of them."""
    catalogue = open_dataset(options.data, options.root).catalogue()
    preparation = Preparation(input=options.input, length=options.length)
    read = cache(lambda name: load(catalogue, [name]))

    def cut(
        domains: Sequence[str], without: str, unknown: bool = False, first: float = 0.0, last: float = 1.0
    ) -> Windows:
        """A part of every recording of the classes that are kept, or of the class that is not."""

        def part(recording: Recording) -> Recording:
            windows = min(options.windows, recording.signal.shape[-1] // preparation.length)
            start, stop = (preparation.length * round(share * windows) for share in (first, last))
            return replace(recording, signal=recording.signal[..., start:stop])

        recordings = [recording for name in domains for recording in read(name)]
        kept = [recording for recording in recordings if (recording.label == without) == unknown]
        return prepare([part(recording) for recording in kept], preparation)

    return catalogue.domains, catalogue.classes, cut


def case_windows(case: Case, recipe: Recipe, cut: Cut) -> CaseWindows:
    task, block = Task(case.source, case.target), Split("block")
    source, target = cut([case.source], case.without), cut([case.target], case.without, last=0.75)
    split = split_task(task, source, target, block, case.seed)
    run = Run(recipe, split.training, case.seed)
    return CaseWindows(case, run, split, target[split.target_train], source[split.source_test])


def stacks(cases: Sequence[CaseWindows], most: int, device: torch.device) -> Iterator[list[CaseWindows]]:
    """Runs of equal shape, as many as fit into the memory, in stacks of about equal size."""
    groups: dict[Hashable, list[CaseWindows]] = defaultdict(list)
    for case in cases:
        groups[stack_key(case.run)].append(case)
    for group in groups.values():
        first = group[0].run
        parts = math.ceil(len(group) / min(most, stack_size(first.recipe, first.data, device)))
        for members in np.array_split(np.arange(len(group)), parts):
            yield [group[number] for number in members]


def diagnose_windows(trained: Trained, parts: Sequence[Windows], device: torch.device) -> list[Diagnosed]:
    """What each run of a stack says of its own windows."""
    logits, features = predict(trained.network, padded_stack([np.asarray(part.values) for part in parts], 0, device))
    final = logits if trained.calibration is None else trained.calibration.apply(logits)
    host_features, likely = features.float().cpu().numpy(), final.double().log_softmax(-1).cpu().numpy()
    return [
        Diagnosed(part, host_features[run, : len(part)], likely[run, : len(part)]) for run, part in enumerate(parts)
    ]


def measured(stack: Sequence[CaseWindows], cut: Cut, size: int, device: torch.device) -> Iterator[Row]:
    """Trains a stack and diagnoses; the numbers of each run."""
    trained = train([case.run for case in stack], device)

    def diagnosed(windows: Callable[[CaseWindows], Windows]) -> list[Diagnosed]:
        return diagnose_windows(trained, [windows(case) for case in stack], device)

    learnt, held = diagnosed(lambda part: part.target_train), diagnosed(lambda part: part.split.held_back.target_test)
    parts = {
        "later": diagnosed(lambda part: cut([part.case.target], part.case.without, first=0.75)),
        "unknown": diagnosed(lambda part: cut([part.case.target], part.case.without, unknown=True)),
        "third": diagnosed(lambda part: cut(part.case.third, part.case.without)),
        "source": diagnosed(lambda part: part.source_test),
    }
    for run, case in enumerate(stack):
        mine = {name: each[run] for name, each in parts.items()}
        yield {"finite": int(trained.finite[run])} | numbers(case, learnt[run], held[run], mine, size)


def numbers(case: CaseWindows, learnt: Diagnosed, held: Diagnosed, parts: dict[str, Diagnosed], size: int) -> Row:
    """What a row says of a run but for its name."""
    recording = held.windows.recording
    known = fit_familiarity(
        learnt.features, learnt.shapes, learnt.windows.recording, held.features, held.shapes, recording
    )
    classes, sure = case.split.training.classes, np.exp(held.log_probabilities.max(axis=1)).mean()
    temperature = pooled_temperature(held.log_probabilities, recording, float(sure))
    later, unknown = parts["later"], parts["unknown"]
    right = later.log_probabilities.argmax(axis=1) == later.codes(classes)
    row: Row = {"rate": known.rate, "recording_limit": known.recording_limit, "temperature": temperature}
    row |= {"accuracy": float(right.mean())}
    for name, part in parts.items():
        row |= {f"{name}_{what}": value for what, value in alarms(part, known, size).items()}
    for score, strange, usual in zip(SCORES, unknown.scores(known), later.scores(known), strict=True):
        row[f"auroc_{score}"] = float(mannwhitneyu(strange, usual).statistic) / (len(strange) * len(usual))
    called = np.bincount(unknown.log_probabilities.argmax(axis=1), minlength=len(classes))
    row |= {"called": classes[int(called.argmax())], "called_share": float(called.max() / called.sum())}
    for name in ("later", "third"):
        for kind, value in zip(POOLED, (1.0, temperature, 1 / size), strict=True):
            found = pooled(parts[name], parts[name].codes(classes), value, size)
            row |= {f"{name}_{kind}_{what}": number for what, number in found.items()}
    return row


def alarms(part: Diagnosed, known: Familiarity, size: int) -> Row:
    """Shares of windows beyond any limit and beyond each, and how many recordings of how many are unfamiliar."""
    scores = part.scores(known)
    limits = (known.distance_limit, known.shape_limit)
    strange, recordings = known.beyond_limits(scores), part.recordings(size)
    unfamiliar = [known.recording_is_unfamiliar(int(strange[places].sum()), len(places)) for places in recordings]
    return {
        "windows": float(strange.mean()),
        **{name: float(np.mean(row > limit)) for name, row, limit in zip(SCORES, scores, limits, strict=True)},
        "alarmed": sum(unfamiliar),
        "recordings": len(recordings),
    }


def pooled(part: Diagnosed, labels: NDArray[np.int64], temperature: float, size: int) -> Row:
    """Mean confidence, share right and ECE of recordings."""
    recordings = part.recordings(size)
    truth = np.array([labels[places[0]] for places in recordings])
    log_probabilities = [part.log_probabilities[places] for places in recordings]
    found = np.stack([pool(tally(values), temperature).probabilities for values in log_probabilities])
    return {
        "confidence": float(found.max(axis=1).mean()),
        "right": float(np.mean(found.argmax(axis=1) == truth)),
        "ece": float(ece(found, truth)),
    }


def name_of(case: Case, options: argparse.Namespace) -> Row:
    """The columns that say which run a row is of."""
    task = f"{case.source}:{case.target}"
    of_case = {"task": task, "without": case.without, "seed": case.seed, "third": "+".join(case.third)}
    every = vars(options) | of_case | {"recipe": find_recipe(options.recipe)}
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


def run_all(options: argparse.Namespace) -> list[Row]:
    """Trains what has no row yet, until the time is up; all rows, those of before too."""
    started, device = time.monotonic(), chosen_device(options.device)
    rows = rows_of(options.out) if options.out is not None and options.out.exists() else []
    done = {tuple(str(row[name]) for name in NAMED) for row in rows}
    domains, classes, cut = cutter(options)
    cases = list(planned_cases(options, domains, classes))
    wanted = [case for case in cases if tuple(map(str, name_of(case, options).values())) not in done]
    recipe = RECIPES[find_recipe(options.recipe)].for_input(options.input).in_epochs(options.epochs)
    print(f"{count(len(cases), 'run')}, {len(cases) - len(wanted)} done before; on {device}", flush=True)
    slowest = 0.0  # seconds a run
    parts = [case_windows(case, recipe, cut) for case in wanted]
    for stack in stacks(parts, options.stack, device):
        begun = time.monotonic()
        if begun - started + slowest * len(stack) > options.limit_seconds:
            print("the time is up; the same command goes on", flush=True)
            break
        for part, found in zip(stack, measured(stack, cut, options.piece, device), strict=True):
            row = name_of(part.case, options) | found
            rows.append({name: str(value) for name, value in row.items()})
            if options.out is not None:
                add_row(options.out, row)
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
    return " / ".join(f"{100 * value:.0f}" for value in np.quantile(values, [0.25, 0.5, 0.75]))


def print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    print(*(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)), "", sep="\n")


def print_all(rows: Sequence[Row]) -> None:
    """The tables of each dataset, input and recipe; numbers are percent, means over runs unless a heading differs."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in ("data", "input", "recipe", "epochs", "length", "windows", "piece"))].append(
            row
        )
    for (data, kind, recipe, epochs, length, windows, piece), every in groups.items():
        group = [row for row in every if int(row["finite"])]
        broken = f", {len(every) - len(group)} more broke down" if len(group) < len(every) else ""
        tasks, classes, seeds = (len({row[name] for row in group}) for name in ("task", "without", "seed"))
        left_out = count(classes, "class left out", "classes left out in turn")
        right = column(group, "accuracy")
        print(
            f"**{data}, {kind} input**: {count(len(group), 'run')} ({count(tasks, 'task')}, {left_out},"
            f" {count(seeds, 'seed')}{broken}), {recipe}, {epochs} epochs, at most {windows} windows of {length} samples a recording;"
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
    for name, title in PARTS.items():
        windows, recordings = column(rows, f"{name}_windows"), rung(rows, name)
        by_score = [percent(column(rows, f"{name}_{score}")) for score in SCORES]
        alarmed, of = (int(column(rows, f"{name}_{what}").sum()) for what in ("alarmed", "recordings"))
        shares = [mean_and_spread(recordings), quartiles(recordings)] if of else ["–", "–"]
        lines.append(
            [title, mean_and_spread(windows), quartiles(windows), *by_score, f"{alarmed} of {of}", *shares]
        )  # fmt: skip
    head = ["diagnosed", "unfamiliar windows, mean ± sd", "quartiles", *SCORES, "recordings alarmed", "mean ± sd", "quartiles"]  # fmt: skip
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
    lines = [[PARTS[name], *(cell(name, kind) for kind in POOLED)] for name in ("later", "third")]
    print_table(["confidence / right / ECE", "temperature 1", saved, "product"], lines)


def main() -> None:
    options = parse_options()
    rows = [row for path in options.read for row in rows_of(path)] if options.read else run_all(options)
    print()
    print_all(rows)


if __name__ == "__main__":
    main()
