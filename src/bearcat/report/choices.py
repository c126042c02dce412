"""Which of several runs of a task to take when there are no target labels: what `bearcat adapt` saves.

Of a recipe and its unadapted counterpart `choose_saved` takes one (docs/trust.md). Of further recipes (`--beside`) the
page says which has the highest validator, CHOOSER; where there are labels, also which run they would have chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bearcat.report.caveats import doubtful_transfer
from bearcat.report.results import Result
from bearcat.report.wording import listed
from bearcat.trust.accuracy import agreement
from bearcat.trust.verdict import CHOOSER

SLACK = 0.02  # a window in fifty, by which check models may agree less with an adapted model


def choose_saved(result: Result, plain: Result | None) -> dict[str, Any]:
    """Which model of a run's folder to save, the recipe's or that of its unadapted counterpart: `estimates.saved`.

    A recipe that decides itself whether to adapt is believed: on public and simulated recordings it never lost to the
    unadapted network. Any other recipe is saved where check models agree with it no less than with the unadapted
    network. `plain` is None where the recipe adapts nothing, or kept the unadapted network.
    """
    name, finding = result.cell.method, result.estimates.get("shares", {}).get("finding")
    kept = {"recipe": name, "adapted": result.adapts and (finding is None or bool(finding["adapted"])), "folder": "."}
    if plain is None and not result.adapts:
        return kept | {"sentence": f"Unadapted model saved: {name} adapts nothing."}
    if plain is None:
        return kept | {"sentence": f"Unadapted model saved: {name} found no support for adapting in the recordings."}
    other = {"recipe": plain.cell.method, "adapted": False, "folder": plain.folder.name}
    of_other = f"; the adapted one, by {name}, is in model-adapted/."
    broken = [bool(run.record["failed"] or run.record["collapsed"]) for run in (result, plain)]
    if broken == [True, False]:
        why = "broke down" if result.record["failed"] else "gives every recording of the target the same class"
        return other | {"sentence": f"Unadapted model saved: {name} {why}{of_other}"}
    if finding is not None:
        why = "reference recordings" if finding.get("reference") else "clusters that the target's recordings form"
        return kept | {"sentence": f"Adapted model saved: adapting was supported by the {why}."}
    mine, alone = ((run.estimates["accuracy"].get("agreement") or {}).get("value") for run in (result, plain))
    if mine is None or alone is None or broken[1]:
        return kept | {"sentence": f"Adapted model saved, by {name}: nothing speaks for the unadapted one."}
    agreed = f"agree with it in {100 * mine:.0f} % of windows and with the unadapted model in {100 * alone:.0f} %"
    if mine >= alone - SLACK:
        return kept | {"sentence": f"Adapted model saved, by {name}: check models {agreed}."}
    of_other = f" which {agreed.replace('with it', 'with the adapted model')}{of_other}"
    return other | {"sentence": f"Unadapted model saved: adapting was not supported by the check models,{of_other}"}


def validator(result: Result) -> Any:
    """The chooser's value of a run, or None; higher is better."""
    return result.estimates["validators"][CHOOSER]


def favoured(results: Sequence[Result]) -> list[Result]:
    """The runs with the highest validator; several where they are equal, none where no run has a number."""
    known = [result for result in results if validator(result) is not None]
    return [result for result in known if validator(result) == max(map(validator, known))]


def recipe_sentences(results: Sequence[Result]) -> Iterator[str]:
    """Which of several runs of one task to take."""
    best = favoured(results)
    if len(results) < 2 or not best or len(best) == len(results):
        return
    values = [f"{run.cell.method} {value:.3f}" for run in results if (value := validator(run)) is not None]
    names = listed([run.cell.method for run in best])
    text = f"Of these recipes {names} has the highest {CHOOSER.upper()}, found without labels ({', '.join(values)})."
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
        f"highest_{CHOOSER}": [run.cell.method for run in favoured(together)] if len(together) > 1 else None,
    }
