"""Which of several runs to take when there are no target labels (`bearcat adapt --beside`).

The validator is CHOOSER, chosen by measurement (docs/results.md). Where there are labels, the sentence also
says which run they would have chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bearcat.report.caveats import doubtful_transfer
from bearcat.report.results import Result
from bearcat.report.wording import listed
from bearcat.trust.accuracy import agreement
from bearcat.trust.verdict import CHOOSER

NAME = CHOOSER.upper()


def validator(result: Result) -> Any:
    """The chooser's value of a run, or None; higher is better."""
    return result.estimates["validators"][CHOOSER]


def favoured(results: Sequence[Result]) -> list[Result]:
    """The runs with the highest validator; several where they are equal, none where no run has a number."""
    highest = max((value for result in results if (value := validator(result)) is not None), default=None)
    return [result for result in results if highest is not None and validator(result) == highest]


def recipe_sentences(results: Sequence[Result]) -> Iterator[str]:
    """Which of several runs of one task to take."""
    best = favoured(results)
    if len(results) < 2 or not best or len(best) == len(results):
        return
    values = [f"{run.cell.method} {value:.3f}" for run in results if (value := validator(run)) is not None]
    names = listed([run.cell.method for run in best])
    text = f"Recommended of these, without labels: {names}, by {NAME} ({', '.join(values)})."
    truths = {run.cell.method: truth for run in results if (truth := run.score("target", "accuracy")) is not None}
    if len(truths) == len(results):
        text += f" The best by its labels is {max(truths, key=lambda name: truths[name])}."
    yield text


def agreements(result: Result, others: Sequence[Result]) -> dict[str, float]:
    """How far an adapted run predicts what training on the source alone predicts, by the name of the latter."""
    mine = result.predictions
    plain = [run for run in others if result.adapts and not run.adapts and run.predictions.recording == mine.recording]
    return {run.cell.method: agreement(mine.predicted, run.predictions.predicted) for run in plain}


def compared(result: Result, others: Sequence[Result]) -> dict[str, Any]:
    """What a run's record says of the runs beside it, found without labels: `estimates.beside`."""
    same_task = [run for run in others if run.cell.task == result.cell.task]
    alone = result.adapts and any(not run.adapts for run in same_task)
    together = [result, *same_task]
    return {
        "runs": [run.cell.method for run in others],
        "agreement": agreements(result, same_task),
        "negative_transfer": bool(doubtful_transfer(result, others)) if alone else None,
        "recommended": [run.cell.method for run in favoured(together)] if len(together) > 1 else None,
    }
