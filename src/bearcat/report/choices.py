"""What to choose when there are no target labels: the recipe of a task, the epoch of a run; and what that is worth.

The validator is trust.CHOOSER, chosen by measurement (docs/results.md). Sentences for the page; with labels, where
there are any, beside them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from bearcat.report.caveats import adapts, doubtful_transfer
from bearcat.report.results import Result
from bearcat.report.wording import listed
from bearcat.trust.estimates import CHOOSER, agreement

NAME = CHOOSER.upper()


def validated(result: Result) -> float | None:
    """What the chooser thinks of a run; higher is better."""
    value = (result.record["estimates"].get("validators") or {}).get(CHOOSER)
    return None if value is None else float(value)


def favoured(results: Sequence[Result]) -> list[Result]:
    """The runs that the chooser likes best; several where it cannot tell them apart, none where it knows none."""
    known = [(value, one) for one in results if (value := validated(one)) is not None]
    most = max((value for value, _ in known), default=None)
    return [one for value, one in known if value == most]


def recipe_sentences(results: Sequence[Result]) -> Iterator[str]:
    """Which of several runs of one task to take."""
    best = favoured(results)
    if len(results) < 2 or not best or len(best) == len(results):
        return
    values = ", ".join(f"{one.cell.method} {value:.3f}" for one in results if (value := validated(one)) is not None)
    text = f"Recommended of these, without labels: {listed([one.cell.method for one in best])}, by {NAME} ({values})."
    truths = {one.cell.method: truth for one in results if (truth := one.score("target", "accuracy")) is not None}
    if len(truths) == len(results):
        text += f" The best by its labels is {max(truths, key=lambda name: truths[name])}."
    yield text


def compared(result: Result, others: Sequence[Result]) -> dict[str, Any]:
    """What a run's record tells of the runs beside it, found without labels: `estimates.beside`."""
    together = [one for one in (result, *others) if one.cell.task == result.cell.task]
    alone = [one for one in together if not adapts(one) and one is not result and adapts(result)]
    same = [one for one in alone if one.predictions.recording == result.predictions.recording]
    return {
        "runs": [one.cell.method for one in others],
        "agreement": {
            one.cell.method: agreement(result.predictions.predicted, one.predictions.predicted) for one in same
        },
        "negative_transfer": bool(doubtful_transfer(result, others)) if alone else None,
        "recommended": [one.cell.method for one in favoured(together)] if len(together) > 1 else None,
    }


def epoch_sentences(result: Result) -> Iterator[str]:
    """Which epoch's network looks best, and why the last is kept all the same."""
    told = result.record["estimates"].get("checkpoint")
    if not told or told["last"] is None:
        return
    text = (
        f"By {NAME} the network after epoch {told['epoch'] + 1} looks best ({told['value']:.3f}; after the last"
        f" {told['last']:.3f}). The last is the one that is kept: on public recordings choosing gained nothing for"
        " methods that adapt."
    )
    truth = (result.record.get("estimates_checked") or {}).get("checkpoint")
    if truth:
        chosen, last, best = (f"{100 * truth[name]:.1f} %" for name in ("chosen", "last", "best"))
        text += f" Measured: {chosen} right there, {last} after the last epoch, {best} after the best."
    yield text


def comparison_sentences(results: Sequence[Result]) -> Iterator[str]:
    """What choosing a method for each task and seed would have come to, against labels and against chance."""
    cells: dict[tuple[str, int], list[Result]] = defaultdict(list)
    for one in results:
        if one.score("target", "accuracy") is not None and validated(one) is not None:
            cells[one.cell.task, one.cell.seed].append(one)
    choices = [runs for runs in cells.values() if len(runs) > 1]
    if not choices:
        return

    def mean(runs: Sequence[Result]) -> float:
        return sum(one.score("target", "accuracy") or 0.0 for one in runs) / len(runs)

    chosen, any_of_them, best = (
        100 * sum(pick(runs) for runs in choices) / len(choices)
        for pick in (lambda runs: mean(favoured(runs)), mean, lambda runs: max(mean([one]) for one in runs))
    )
    yield (
        f"Without labels: taking in every task and seed the method that {NAME} likes best is right in {chosen:.1f} % on"
        f" average; any method at random in {any_of_them:.1f} %, and the best each time, which only labels can tell, in"
        f" {best:.1f} %."
    )
