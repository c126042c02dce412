"""What records say of data, settings and versions, in the words and tables that both pages have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bearcat.report.results import Result
from bearcat.report.typeset import NOTHING, Entry, Table
from bearcat.report.wording import count, listed


def data_told(results: Sequence[Result]) -> str:
    """What the windows are; where runs differ, all there is."""

    def every(of: Callable[[Mapping[str, Any]], object]) -> str:
        return listed(list(dict.fromkeys(str(of(one.record["settings"])) for one in results)))

    classes = list(dict.fromkeys(name for one in results for name in one.record["data"]["classes"]))
    return (
        f"Data: {results[0].cell.dataset}, {count(len(classes), 'class', 'classes')} ({', '.join(classes)}); windows of"
        f" {every(lambda one: one['preparation']['length'])} samples as {results[0].cell.input} input, split by"
        f" {every(lambda one: one['split']['scheme'])} with a test share of"
        f" {every(lambda one: format(one['split']['test'], 'g'))}"
    )


def windows_told(results: Sequence[Result]) -> str:
    def many(name: str) -> str:
        numbers = [one.record["data"][name] for one in results]
        return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"

    return (
        f"{many('source_train')} windows of the source and {many('target_train')} of the target to learn from,"
        f" {many('source_test')} and {many('target_test')} to be tested on"
    )


def epochs_told(results: Sequence[Result]) -> str:
    epochs = sorted({int(one.record["settings"]["recipe"]["schedule"]["epochs"]) for one in results})
    return f"{listed(list(map(str, epochs)))} {'epoch' if epochs == [1] else 'epochs'}"


def settings_table(result: Result) -> Table:
    rows = tuple((Entry(name), Entry(value)) for name, value in flattened(result.record["settings"]).items())
    return Table("settings", f"Settings of {result.cell.method}", "", ("setting", "value"), rows)


def versions_table(results: Sequence[Result]) -> Table:
    """One row for each combination of versions and device there is."""
    names = sorted({name for one in results for name in one.record["versions"]})
    places = ("device", "precision", "path")
    kinds = Counter(
        (
            *(str(one.record["versions"].get(name, NOTHING)) for name in names),
            *(str(one.record.get(name, NOTHING)) for name in places),
        )
        for one in results
    )
    rows = tuple((*map(Entry, values), Entry(str(number), number)) for values, number in kinds.most_common())
    header = (*(f"{name} version" if name == "result" else name for name in names), *places, "runs")
    return Table("versions", "Software and hardware", "", header, rows)


def seconds_of(result: Result) -> float:
    """What a run took: its share of the time of the runs that were trained together with it."""
    return float(result.record["seconds"]) / int(result.record.get("stack", 1))


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


def percent_entry(value: float | None) -> Entry:
    return Entry(NOTHING) if value is None else Entry(f"{100 * value:.1f}", 100 * value)


def number_entry(value: float | None, digits: int = 3) -> Entry:
    return Entry(NOTHING) if value is None else Entry(f"{value:.{digits}f}", value)
