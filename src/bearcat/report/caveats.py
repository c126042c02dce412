"""What a reader of results must be told before believing them, found in the records themselves.

>>> for caveat in caveats(results, missing):
...     print(caveat.text)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bearcat.report.drawing import ordered_methods
from bearcat.report.results import Cell, Missing, Result
from bearcat.report.wording import count, listed
from bearcat.trust.estimates import FAR, expected_of

VALIDATORS = {"entropy": "entropy", "bnm": "BNM", "snd": "SND", "dev": "DEV", "mixval": "MixVal"}  # docs/trust.md


@dataclass(frozen=True)
class Caveat:
    """A sentence, and the runs, tasks or settings it is about."""

    kind: str  # one word or two, for the eye
    text: str
    items: tuple[str, ...] = ()


def caveats(results: Sequence[Result], missing: Sequence[Missing] = ()) -> list[Caveat]:
    """Everything below, worst first."""
    found = [
        *incomplete(results, missing), *_stopped(results), *_collapsed(results), *oracles(results),
        *negative_transfer(results), *estimates_off(results), *_at_bound(results), *_never_predicted(results),
        *different_versions(results), *_one_seed(results),
    ]  # fmt: skip
    return found


def named(cell: Cell) -> str:
    return f"{cell.method}, {cell.task}, {cell.input}, seed {cell.seed}"


def incomplete(results: Sequence[Result], missing: Sequence[Missing]) -> list[Caveat]:
    """Planned runs without a result, counted by why."""
    if not missing:
        return []
    why = Counter(one.reason.partition(":")[0] for one in missing)
    reasons = ", ".join(f"{number} {reason}" for reason, number in why.most_common())
    planned = len(results) + len(missing)
    verb = "has" if len(missing) == 1 else "have"
    text = f"{len(missing)} of {count(planned, 'planned run')} {verb} no result ({reasons})."
    text += " What is shown rests on the others." if results else ""
    return [Caveat("Incomplete", text, tuple(f"{named(one.cell)}: {one.reason}" for one in missing))]


def _stopped(results: Sequence[Result]) -> list[Caveat]:
    failed = [one for one in results if one.record["failed"]]
    text = f"In {_runs(failed)} the loss turned NaN or infinite and training was stopped; their numbers mean nothing."
    return [Caveat("Failed", text, _names(failed))] if failed else []


def _collapsed(results: Sequence[Result]) -> list[Caveat]:
    collapsed = [one for one in results if one.record["collapsed"]]
    text = f"{_runs(collapsed)} predict{_s(collapsed)} one class for every target window."
    return [Caveat("Collapsed", text, _names(collapsed))] if collapsed else []


def oracles(results: Sequence[Result]) -> list[Caveat]:
    """Methods that were calibrated with labels nobody has in practice."""
    using = [one for one in results if (_recipe(one)["calibration"] or {}).get("kind") == "Oracle"]
    text = (
        f"{listed(ordered_methods(using))} {'was' if len(ordered_methods(using)) == 1 else 'were'} calibrated with"
        " target labels: what calibration could reach at best, and no method one can use."
        if using
        else ""
    )
    return [Caveat("Oracle used", text)] if using else []


def negative_transfer(results: Sequence[Result]) -> list[Caveat]:
    """Methods below training on the source alone, by the mean over the seeds both have; told by ingredients."""
    plain: dict[tuple[Any, ...], float] = {}
    adapted: dict[tuple[str, ...], dict[int, float]] = {}
    for one in results:
        accuracy, cell = one.score("target", "accuracy"), one.cell
        if accuracy is None:
            continue
        if not adapts(one):
            plain[cell.dataset, cell.input, cell.task, cell.seed] = accuracy
        else:
            adapted.setdefault((cell.dataset, cell.input, cell.method, cell.task), {})[cell.seed] = accuracy
    items = []
    for (dataset, kind, method, task), seeds in adapted.items():
        both = [(value, plain[key]) for seed, value in seeds.items() if (key := (dataset, kind, task, seed)) in plain]
        if both:
            mine, alone = np.mean(both, axis=0)
            if mine < alone:
                items.append(
                    f"{method} on {task}: {100 * mine:.1f} against {100 * alone:.1f} % ({count(len(both), 'seed')})"
                )
    text = (
        f"In {count(len(items), 'case')} a method is less accurate on the target than training on the source alone"
        " (means over the seeds both have; no test is behind this)."
    )
    return [Caveat("Negative transfer", text, tuple(items))] if items else []


def estimates_off(results: Sequence[Result]) -> list[Caveat]:
    """Runs whose confidence promised another accuracy than their labels show."""
    items = []
    for one in results:
        truth = one.score("target", "accuracy")
        guess = expected_of(one.record["estimates"])
        if truth is not None and guess is not None and abs(guess.value - truth) > FAR:
            items.append(f"{named(one.cell)}: {100 * guess.value:.1f} expected, {100 * truth:.1f} % measured")
    text = (
        f"In {count(len(items), 'run')} the accuracy expected without labels is more than {100 * FAR:.0f} points from"
        " the measured one: without labels one would have been misled."
    )
    return [Caveat("Estimate off", text, tuple(items))] if items else []


def doubtful_transfer(result: Result, others: Sequence[Result]) -> list[Caveat]:
    """A run that looks worse than training on the source alone, by what can be told without labels.

    DEV has the say: of the validators that do not warn of most runs it is the only one that noticed most of the serious
    harm (docs/results.md).
    """
    mine = (result.record["estimates"].get("validators") or {}).get("dev")
    for plain in others:
        if adapts(plain) or not adapts(result) or plain.cell.task != result.cell.task:
            continue
        alone = (plain.record["estimates"].get("validators") or {}).get("dev")
        if mine is not None and alone is not None and mine < alone:
            text = (
                f"By DEV, the error rate of source windows weighted towards the target, {result.cell.method} looks"
                f" worse than {plain.cell.method} ({-100 * mine:.1f} against {-100 * alone:.1f} %): adaptation may have"
                " done harm. On public recordings one in seven of such runs was harmed, of the others one in eighteen."
                " Compare the two on some windows by hand."
            )
            return [Caveat("Negative transfer possible", text)]
    return []


def adapts(one: Result) -> bool:
    """Whether a run's recipe looks at the target at all; told by ingredients."""
    return any(_recipe(one)[part] for part in ("alignment", "confusion", "sharpness", "teacher"))


def _at_bound(results: Sequence[Result]) -> list[Caveat]:
    bound = [one for one in results if (one.record["calibration"] or {}).get("at_bound")]
    text = (
        f"In {_runs(bound)} the temperature ended at its bound: the source gives calibration too little to go by,"
        " and the confidence on the target is not to be trusted."
    )
    return [Caveat("Temperature at its bound", text, _names(bound))] if bound else []


def _never_predicted(results: Sequence[Result]) -> list[Caveat]:
    lacking = [one for one in results if one.record["never_predicted"] and not one.record["collapsed"]]
    text = f"{_runs(lacking)} never predict{_s(lacking)} some class on the target."
    items = tuple(f"{named(one.cell)}: {', '.join(one.record['never_predicted'])}" for one in lacking)
    return [Caveat("Classes never predicted", text, items)] if lacking else []


def different_versions(results: Sequence[Result]) -> list[Caveat]:
    """Runs of one comparison made by different software or on different hardware."""
    kinds: dict[str, Callable[[Result], str]] = {
        name: lambda one, name=name: str(one.record["versions"].get(name, "unknown"))  # type: ignore[misc]
        for name in sorted({name for one in results for name in one.record["versions"]})
    }
    for name in ("device", "precision", "path"):
        kinds[name] = lambda one, name=name: str(one.record.get(name, "unknown"))  # type: ignore[misc]
    items = []
    for name, of in kinds.items():
        values = Counter(of(one) for one in results)
        if len(values) > 1:
            items.append(f"{name}: " + ", ".join(f"{value} ({count(n, 'run')})" for value, n in values.most_common()))
    text = "The runs were not all made with the same software and hardware; small differences may come from that."
    return [Caveat("Mixed versions", text, tuple(items))] if items else []


def _one_seed(results: Sequence[Result]) -> list[Caveat]:
    if len(results) < 2 or len({one.cell.seed for one in results}) > 1:
        return []
    return [Caveat("One seed", "Every run has the same seed: differences between methods may be chance.")]


def _recipe(one: Result) -> dict[str, Any]:
    recipe: dict[str, Any] = one.record["settings"]["recipe"]
    return recipe


def _runs(results: Sequence[Result]) -> str:
    return count(len(results), "run")


def _s(results: Sequence[Result]) -> str:
    return "s" if len(results) == 1 else ""


def _names(results: Sequence[Result]) -> tuple[str, ...]:
    return tuple(named(one.cell) for one in results)
