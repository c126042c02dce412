"""How close label-free estimates come to the truth, over all finished runs of a store; Markdown tables.

    python benchmarks/trust.py bench-store … > trust.md

Takes folders of stores (bearcat bench), or any folders whose subfolders are runs. Only runs with target labels and with
estimates in their records count. docs/trust.md says what the estimates are.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu, spearmanr

from bearcat.report.caveats import VALIDATORS, adapts
from bearcat.report.results import Cell, Result, read_result
from bearcat.trust.estimates import FAR, agreement, expected_of


def finished(folder: Path) -> list[Result]:
    """All runs in this folder that have estimates and the truth beside them, in order."""
    runs = folder / "runs" if (folder / "runs").is_dir() else folder
    found = [read_result(path.parent) for path in sorted(runs.glob("*/record.json"))]
    return sorted((one for one in found if one.record.get("estimates_checked")), key=lambda one: one.cell)


def truth(one: Result) -> float:
    return float(one.record["estimates_checked"]["accuracy"])


def accuracy_rows(results: Sequence[Result]) -> list[list[str]]:
    """Expected accuracy: how far off, how often inside the interval, far below it, and whether it ranks runs rightly."""
    found: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)  # value, low, high, truth
    for one in results:
        for name, told in one.record["estimates"]["accuracy"].items():
            if None not in told.values():
                found[name].append((told["value"], told["low"], told["high"], truth(one)))
        verdict = expected_of(one.record["estimates"])
        if verdict is not None:
            found["the verdict's"].append((verdict.value, verdict.low, verdict.high, truth(one)))
    rows = []
    for name, numbers in found.items():
        value, low, high, real = np.array(numbers).T
        off, inside = value - real, (low <= real) & (real <= high)
        rows.append(
            [name, str(len(off)), points(off.mean()), points(np.abs(off).mean()),
             points(np.quantile(np.abs(off), 0.9)), points(inside.mean()), str(int((real < low - FAR).sum())),
             ratio(correlation(value, real))]
        )  # fmt: skip
    return rows


def validator_rows(results: Sequence[Result]) -> list[list[str]]:
    """Validators: rank correlation with accuracy inside a task, and the accuracy of the recipe each would choose."""
    by_task, by_cell = groups(results, lambda cell: cell.task), groups(results, lambda cell: (cell.task, cell.seed))
    choices = [runs for runs in by_cell if len(runs) > 1]
    rows = []
    for name in VALIDATORS:
        ranks = [correlation([number(one, name) for one in runs], [truth(one) for one in runs]) for runs in by_task]
        chosen = [choice(runs, name) for runs in choices]
        rows.append([VALIDATORS[name], ratio(mean(ranks)), points(mean(chosen))])
    for words, choose in (("(best, with labels)", max), ("(any, at random)", mean)):
        rows.append([words, "", points(mean([choose([truth(one) for one in runs]) for runs in choices]))])
    return rows


def choice(runs: Sequence[Result], name: str) -> float:
    """The accuracy of the run with the highest validator; of several, their mean, since their order says nothing."""
    most = max(number(one, name) for one in runs)
    return mean([truth(one) for one in runs if number(one, name) == most])


def harm_rows(results: Sequence[Result]) -> list[list[str]]:
    """Adapted runs less accurate than source-only of their task and seed: which of them each validator puts below it.

    The last columns: how well the difference from source-only ranks harmed runs before the others (area under the
    curve), by any harm and by harm of five points. Runs that broke down are left out; they need no validator.
    """
    gains, warnings = [], defaultdict(list)
    for runs in groups(results, lambda cell: (cell.dataset, cell.input, cell.task, cell.seed)):
        for alone in (one for one in runs if not adapts(one)):
            for one in (one for one in runs if adapts(one) and not one.record["failed"]):
                gains.append(truth(one) - truth(alone))
                for name in VALIDATORS:
                    warnings[VALIDATORS[name]].append(number(one, name) - number(alone, name))
                warnings["agreement"].append(agreement(one.predictions.predicted, alone.predictions.predicted))
    gained = np.array(gains)
    harmed, badly = gained < 0, gained < -0.05
    rows = []
    for name, values in warnings.items():
        below = np.array(values) < 0
        counts = [str(int((below & chosen).sum())) for chosen in (harmed, badly, ~harmed)]
        areas = [ratio(area(-np.array(values), chosen)) for chosen in (harmed, badly)]
        rows.append([name, *(counts if name in VALIDATORS.values() else [""] * 3), *areas])
    return [["(all)", *(str(int(one.sum())) for one in (harmed, badly, ~harmed)), "", ""], *rows]


def area(score: np.ndarray, chosen: np.ndarray) -> float:
    """The probability that one of the chosen has a higher score than one of the others."""
    among, others = int(chosen.sum()), int((~chosen).sum())
    if not among or not others:
        return float("nan")
    return float(mannwhitneyu(score[chosen], score[~chosen]).statistic) / (among * others)


def checkpoint_rows(results: Sequence[Result]) -> list[list[str]]:
    """Target accuracy of the reported network at the last epoch, where each validator likes it best, and at the best."""
    rows = []
    for runs in [results, *groups(results, lambda cell: cell.method)]:
        found: dict[str, list[float]] = defaultdict(list)
        for one in runs:
            network = "teacher" if "target_accuracy_teacher" in one.curves else "student"
            right = one.curves[f"target_accuracy_{network}"]
            there = np.flatnonzero(np.isfinite(right))
            if not len(there):
                continue
            found["last"].append(right[there[-1]])
            found["best"].append(right[there].max())
            for name in EPOCH_VALIDATORS:
                curve = one.curves.get(f"validator_{name}_{network}")
                if curve is not None and np.isfinite(curve[there]).any():
                    found[name].append(right[there[np.nanargmax(curve[there])]])
        values = [points(mean(found[name])) for name in ("last", *EPOCH_VALIDATORS, "best")]
        rows.append(["(all)" if runs is results else runs[0].cell.method, str(len(found["last"])), *values])
    return rows


def promise_rows(results: Sequence[Result]) -> list[list[str]]:
    """What thresholds, sets and alarms promise beside what they keep, means over runs."""
    rows = []
    told, checked = results[0].record["estimates"], [one.record["estimates_checked"] for one in results]
    for place, one in enumerate(told["abstention"]["thresholds"]):
        measured = [run["abstention"]["thresholds"][place] for run in checked]
        errors = [1 - run["accuracy"] for run in measured if run["accuracy"] is not None]
        kept = points(mean([run["kept"] for run in measured]))
        what = f"errors above the threshold ({len(errors)} runs have one); windows kept {kept}"
        rows.append([what, points(one["error"]), points(mean(errors))])
    for kind, fitted in told["conformal"].items():
        for place, one in enumerate(fitted):
            size = mean([run.record["estimates"]["conformal"][kind][place]["size"] for run in results])
            coverage = mean([run["conformal"][kind][place]["coverage"] for run in checked])
            what = f"coverage of {kind.upper()} sets, {size:.2f} classes each"
            rows.append([what, points(1 - one["miss"]), points(coverage)])
    alarms = [one.record["estimates"]["familiarity"] for one in results]
    for what, name in (
        ("false alarms, target windows", "false_alarms"),
        ("alarms, source windows", "source_unfamiliar"),
    ):
        rows.append([what, points(mean([one["rate"] for one in alarms])), points(mean([one[name] for one in alarms]))])
    for what, name in (
        ("of classes the source lacks", "unknown_unfamiliar"),
        ("given a wrong class", "wrong_unfamiliar"),
    ):
        rows.append([f"alarms, windows {what}", "", points(mean([run["familiarity"][name] for run in checked]))])
    return rows


def groups(results: Sequence[Result], key: Callable[[Cell], Any]) -> list[list[Result]]:
    found: dict[Any, list[Result]] = defaultdict(list)
    for one in results:
        found[key(one.cell)].append(one)
    return list(found.values())


def number(one: Result, validator: str) -> float:
    """A run's validator; what has none is chosen last."""
    value = one.record["estimates"]["validators"].get(validator)
    return -np.inf if value is None else float(value)


def correlation(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> float:
    if len(one) < 3 or len(set(one)) == 1 or len(set(other)) == 1:
        return float("nan")
    return float(spearmanr(one, other).statistic)


def mean(values: Sequence[float | None]) -> float:
    """Of those that are numbers; nan where none is."""
    kept = [one for one in values if one is not None and np.isfinite(one)]
    return float(np.mean(kept)) if kept else float("nan")


def points(value: float) -> str:
    return f"{100 * value:.1f}" if np.isfinite(value) else "–"


def ratio(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "–"


EPOCH_VALIDATORS = ("entropy", "bnm", "snd")  # known at every epoch
TABLES: list[tuple[str, tuple[str, ...], Callable[[Sequence[Result]], list[list[str]]]]] = [
    ("Expected accuracy, in points",
     ("estimate", "runs", "too high by", "off by", "90 % off by at most", "truth in 90 % interval",
      f"runs more than {100 * FAR:.0f} below it", "rank correlation"),
     accuracy_rows),
    ("Choosing a recipe", ("validator", "rank correlation in a task", "accuracy of its choice"), validator_rows),
    ("Target accuracy at the epoch chosen by",
     ("method", "runs", "(last epoch)", *(VALIDATORS[name] for name in EPOCH_VALIDATORS), "(best epoch, with labels)"),
     checkpoint_rows),
    ("Promises", ("what", "promised", "measured"), promise_rows),
]  # fmt: skip
HARM = (
    "Negative transfer: runs that a validator puts below source-only",
    ("validator", "harmed", "by five points", "not harmed", "area, harmed", "area, by five points"),
    harm_rows,
)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return f"### {title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    results = [one for folder in parser.parse_args().folders for one in finished(folder)]
    if not results:
        parser.error("no finished run there has estimates and target labels")
    for runs in groups(results, lambda cell: (cell.dataset, cell.input)):
        print(f"## {runs[0].cell.dataset}, {runs[0].cell.input} input: {len(runs)} runs\n")
        for title, header, rows in TABLES:
            print(table(title, header, rows(runs)))
    print(f"## All {len(results)} runs\n")
    for title, header, rows in (TABLES[0], HARM):
        print(table(title, header, rows(results)))


if __name__ == "__main__":
    main()
