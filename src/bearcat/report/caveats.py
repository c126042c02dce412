"""Sentences about results, found in the records: warnings, what the data are, settings and versions.

>>> for caveat in caveats(results, missing):
...     print(caveat.text)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bearcat.record import RunSettings
from bearcat.report.results import Missing, Result
from bearcat.report.typeset import NOTHING, Caveat, Table, TableEntry, count, file_name, listed
from bearcat.trust.estimates import FAR

# Kinds of trouble that one record shows: what it is called, whether a run has it, and what to say of those that do.
TROUBLES: tuple[tuple[str, Callable[[Result], Any], str], ...] = (
    ("Failed", lambda run: run.record.failed,
     "the loss turned NaN or infinite and training was stopped; the numbers mean nothing."),
    ("Collapsed", lambda run: run.record.collapsed, "every target window is given the same class."),
    ("Temperature at its bound", lambda run: run.record.at_bound,
     "the temperature ended at its bound: the source gives calibration too little to go by, and the confidence on the"
     " target is not to be trusted."),
    ("Classes never predicted", lambda run: not run.record.collapsed and run.record.never_predicted,
     "some class is never predicted on the target."),
)  # fmt: skip


def caveats(results: Sequence[Result], missing: Sequence[Missing] = ()) -> list[Caveat]:
    """Everything below, worst first."""
    found = [*incomplete(results, missing), *troubles(results), *negative_transfer(results), *estimates_off(results)]
    found += different_versions(results)
    if len(results) > 1 and len({result.cell.seed for result in results}) == 1:
        found.append(Caveat("One seed", "Every run has the same seed: differences between methods may be chance."))
    return found


def incomplete(results: Sequence[Result], missing: Sequence[Missing]) -> list[Caveat]:
    """Planned runs without a result, counted by why."""
    if not missing:
        return []
    kinds = Counter(run.reason.partition(":")[0] for run in missing)
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    planned, verb = count(len(results) + len(missing), "planned run"), "has" if len(missing) == 1 else "have"
    text = f"{len(missing)} of {planned} {verb} no result ({counted})."
    return [Caveat("Incomplete", text, tuple(f"{run.cell}: {run.reason}" for run in missing))]


def troubles(results: Sequence[Result]) -> list[Caveat]:
    """Runs that broke down, collapsed, ended at a bound or never predict a class."""
    found = []
    for kind, concerns, text in TROUBLES:
        runs = [result for result in results if concerns(result)]
        details = [", ".join(run.record.never_predicted) if "predicted" in kind else "" for run in runs]
        names = [f"{run.cell}{detail and ': '}{detail}" for run, detail in zip(runs, details, strict=True)]
        if runs:
            found.append(Caveat(kind, f"In {count(len(runs), 'run')} {text}", tuple(names)))
    return found


def negative_transfer(results: Sequence[Result]) -> list[Caveat]:
    """Methods below training on the source alone, by the mean over the seeds both have."""
    plain: dict[tuple[Any, ...], float] = {}
    adapted: dict[tuple[str, ...], dict[int, float]] = {}
    for result in results:
        accuracy, cell = result.score("target", "accuracy"), result.cell
        if accuracy is not None and result.adapts:
            adapted.setdefault((cell.dataset, cell.input, cell.task, cell.method), {})[cell.seed] = accuracy
        elif accuracy is not None:
            plain[cell.dataset, cell.input, cell.task, cell.seed] = accuracy
    items = []
    for (*place, method), seeds in adapted.items():
        both = [(value, plain[*place, seed]) for seed, value in seeds.items() if (*place, seed) in plain]
        mine, alone = np.mean(both, axis=0) if both else (0.0, 0.0)
        if mine < alone:
            scores = f"{100 * mine:.1f} against {100 * alone:.1f} % ({count(len(both), 'seed')})"
            items.append(f"{method} on {place[2]}: {scores}")
    text = (
        f"In {count(len(items), 'case')} a method is less accurate on the target than training on the source alone"
        " (means over the seeds both have; not tested)."
    )
    return [Caveat("Negative transfer", text, tuple(items))] if items else []


def estimates_off(results: Sequence[Result]) -> list[Caveat]:
    """Runs whose accuracy is far from the one that was expected without labels."""
    items = []
    for result in results:
        truth, expected = result.score("target", "accuracy"), result.record.estimates.expected
        if truth is not None and expected is not None and abs(expected.value - truth) > FAR:
            items.append(f"{result.cell}: {100 * expected.value:.1f} expected, {100 * truth:.1f} % measured")
    text = (
        f"In {count(len(items), 'run')} the accuracy expected without labels is more than {100 * FAR:.0f} points from"
        " the measured one."
    )
    return [Caveat("Estimate off", text, tuple(items))] if items else []


def different_versions(results: Sequence[Result]) -> list[Caveat]:
    """Runs of one comparison made by different software or on different hardware."""
    items = []
    made = [flattened(made_with(result)) for result in results]
    for name in dict.fromkeys(name for versions in made for name in versions):
        unknown = [] if name.startswith("kernels.") else ["unknown"]  # a recipe may lack the part that ran them
        values = Counter(value for versions in made for value in ([versions[name]] if name in versions else unknown))
        if len(values) > 1:
            items.append(f"{name}: " + ", ".join(f"{value} ({count(n, 'run')})" for value, n in values.most_common()))
    text = "The runs were not all made with the same software and hardware; small differences may come from that."
    return [Caveat("Mixed versions", text, tuple(items))] if items else []


def data_sentence(results: Sequence[Result]) -> str:
    """What the windows are; where runs differ, all there is."""

    def every(value: Callable[[RunSettings], object]) -> str:
        return listed(list(dict.fromkeys(str(value(result.record.settings)) for result in results)))

    classes = list(dict.fromkeys(name for result in results for name in result.record.data.classes))
    return (
        f"Data: {results[0].cell.dataset}, {count(len(classes), 'class', 'classes')} ({', '.join(classes)}); windows of"
        f" {every(lambda settings: settings.length)} samples as {results[0].cell.input} input, split"
        f" by {every(lambda settings: settings.split)} with a test share of"
        f" {every(lambda settings: format(settings.test_share, 'g'))}"
    )


def windows_sentence(results: Sequence[Result]) -> str:
    def number(name: str) -> str:
        numbers = [getattr(result.record.data, name) for result in results]
        return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"

    return (
        f"{number('source_train')} windows of the source and {number('target_train')} of the target to learn from,"
        f" {number('source_test')} and {number('target_test')} to be tested on"
    )


def epochs_words(results: Sequence[Result]) -> str:
    epochs = sorted({result.record.settings.epochs for result in results})
    return f"{listed(list(map(str, epochs)))} {'epoch' if epochs == [1] else 'epochs'}"


def settings_table(method: str, results: Sequence[Result]) -> Table:
    """Every setting of a method's runs, and what they were made with; where they differ, all the values."""
    mine = [result for result in results if result.cell.method == method]
    settings = [flattened(dict(result.record.settings.values) | made_with(result)) for result in mine]
    rows = []
    for name in dict.fromkeys(name for values in settings for name in values):
        values = dict.fromkeys(each.get(name, NOTHING) for each in settings)
        rows.append((TableEntry(name), TableEntry("; ".join(values))))
    return Table(f"settings-{file_name(method)}", f"Settings of {method}", "", ("setting", "value"), tuple(rows))


def made_with(result: Result) -> dict[str, Any]:
    """Versions, device, precision and kernels of a run."""
    record = result.record
    hardware = {"device": record.device, "precision": record.precision, "kernels": record.kernels}
    return {"versions": record.versions} | {name: value for name, value in hardware.items() if value is not None}


def flattened(settings: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """{"recipe": {"teacher": {"momentum": 0.9}}} → {"recipe.teacher.momentum": "0.9"}."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{before}{name}.")
        else:
            several = isinstance(value, list | tuple)
            flat[before + name] = ", ".join(map(str, value)) if several else NOTHING if value is None else str(value)
    return flat
