"""Which of several runs of a task to take when there are no target labels: what `bearcat adapt` saves.

Of a recipe and its unadapted counterpart `choose_saved` takes one (docs/trust.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bearcat.report.caveats import doubtful_transfer
from bearcat.report.results import Result
from bearcat.trust.accuracy import agreement

SLACK = 0.02  # a window in fifty, by which check models may agree less with an adapted model


def choose_saved(result: Result, plain: Result | None) -> dict[str, Any]:
    """Which model of a run's folder to save, the recipe's or that of its unadapted counterpart: `estimates.saved`.

    A recipe that decides itself whether to adapt is believed: on public and simulated recordings it never lost to the
    unadapted network. Any other recipe is saved where check models agree with it no less than with the unadapted
    network. `plain` is None where the recipe adapts nothing, or kept the unadapted network.
    """
    name, moving = result.cell.method, result.record.estimates.shares.get("moving")
    kept = {"recipe": name, "adapted": result.adapts and (moving is None or bool(moving["adapted"])), "folder": "."}
    if plain is None and not result.adapts:
        return kept | {"sentence": f"Unadapted model saved: {name} adapts nothing."}
    if plain is None:
        return kept | {"sentence": f"Unadapted model saved: {name} found no support for adapting in the recordings."}
    other = {"recipe": plain.cell.method, "adapted": False, "folder": plain.folder.name}
    of_other = f"; the adapted one, by {name}, is in model-adapted/."
    broken = [run.record.failed or run.record.collapsed for run in (result, plain)]
    if broken == [True, False]:
        why = "broke down" if result.record.failed else "gives every recording of the target the same class"
        return other | {"sentence": f"Unadapted model saved: {name} {why}{of_other}"}
    if moving is not None:
        why = "reference recordings" if moving.get("reference") else "groups that the target's recordings form"
        return kept | {"sentence": f"Adapted model saved: adapting was supported by the {why}."}
    both = [run.record.estimates.accuracy.get("agreement") for run in (result, plain)]
    mine, alone = (None if found is None else found.value for found in both)
    if mine is None or alone is None or broken[1]:
        return kept | {"sentence": f"Adapted model saved, by {name}: nothing speaks for the unadapted one."}
    agreed = f"agree with it in {100 * mine:.0f} % of windows and with the unadapted model in {100 * alone:.0f} %"
    if mine >= alone - SLACK:
        return kept | {"sentence": f"Adapted model saved, by {name}: check models {agreed}."}
    of_other = f" which {agreed.replace('with it', 'with the adapted model')}{of_other}"
    return other | {"sentence": f"Unadapted model saved: adapting was not supported by the check models,{of_other}"}


def agreements(result: Result, others: Sequence[Result]) -> dict[str, float]:
    """How far an adapted run predicts what training on the source alone predicts, by the name of the latter."""
    mine = result.predictions
    plain = [run for run in others if result.adapts and not run.adapts and run.predictions.recording == mine.recording]
    return {run.cell.method: agreement(mine.predicted, run.predictions.predicted) for run in plain}


def compared(result: Result, others: Sequence[Result]) -> dict[str, Any]:
    """What a run's record says of the runs beside it, found without labels: `estimates.beside`."""
    same_task = [run for run in others if run.cell.task == result.cell.task]
    alone = result.adapts and any(not run.adapts for run in same_task)
    return {
        "runs": [run.cell.method for run in others],
        "agreement": agreements(result, same_task),
        "negative_transfer": bool(doubtful_transfer(result, others)) if alone else None,
    }
