"""Words for numbers, and sentences and tables on the data, settings and versions of records, which both pages share.

>>> count(1, "run"), count(3, "class", "classes"), listed(["a", "b", "c"])
('1 run', '3 classes', 'a, b and c')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bearcat.record import RunSettings
from bearcat.report.drawing import file_name
from bearcat.report.results import Result
from bearcat.report.typeset import NOTHING, Table, TableEntry


def count(number: int, what: str, several: str | None = None) -> str:
    """ "1 run", "2 runs"."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


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
