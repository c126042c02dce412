"""Training a model: `adapt`, the `methods` there are for it, and `check` with labels afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from bearcat.cli.options import print_lines, print_note, print_recordings, print_table, reading_bar, takes
from bearcat.requests import AdaptRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bearcat.adaptation.adapt import Adaptation
    from bearcat.record import Record

MOST_PRINTED = 20  # recordings


@takes(AdaptRequest)
def adapt(
    request: AdaptRequest,
    out: Annotated[Path, Option(metavar="FOLDER", help="The folder for the results.")] = Path("bearcat-out"),
) -> None:
    """Learn from labelled recordings, adapt to unlabelled ones, and say how far to trust the result.

    With no option at all: a small, easy task between two simulated operating conditions, in a minute or two.
    """
    from bearcat.adaptation.adapt import adapt as run
    from bearcat.adaptation.plan import make_plan
    from bearcat.cat.progress import training_progress

    plan = make_plan(request, reading_bar())
    for note in plan.notes:
        print_note(note)
    if plan.choices:  # each can be given as an option instead
        chosen = "; ".join(f"{choice.setting} {choice.value}" for choice in plan.choices)
        print_note(f"chosen from the recordings, with reasons in record.json and on the page: {chosen}")
    for problem in plan.problems:
        print_note(problem.sentence, "problem")
    for warning in plan.warnings:
        print_note(warning, "warning")
    found = run(plan, out, training_progress)
    _print_adaptation(found, plan.warnings)
    if found.problems:
        raise Exit(2)


def _print_adaptation(found: Adaptation, printed: Sequence[str]) -> None:
    """The answer first: decisions, recordings, recommendation; then scores, and where everything is."""
    diagnoses, record, out = found.recordings, found.record, found.folder
    print_lines(diagnoses.summary)
    if left_out := len(found.problems):
        print_lines(f"{left_out} unusable recording{'s' * (left_out > 1)} left out, named above.")
    print_recordings(diagnoses.worst_first[:MOST_PRINTED])
    if len(diagnoses) > MOST_PRINTED:
        print(f"… and {len(diagnoses) - MOST_PRINTED} more recordings, in record.json and on the page")
    print_lines(found.decision.sentence)
    print_lines(*found.sentences)
    print()
    _print_scores(record.settings.task.replace("→", " → "), found.runs)
    warned = dict[str, list[str]]()
    for name, run in found.runs:
        for warning in run.warnings:
            warned.setdefault(warning, []).append(name)
    for warning, names in warned.items():
        if warning not in printed:
            print_note(warning if len(names) == len(found.runs) else f"{', '.join(names)}: {warning}", "warning")
    print(f"Results are in {out}: record.json, predictions.csv, curves.csv, model/")
    if (out / "report.html").exists():
        print(f"All of it on one page: {out / 'report.html'}")
    else:
        print_note("pictures and the page need an extra; pip install 'bearcat[report]'")


def _print_scores(title: str, runs: Sequence[tuple[str, Record]]) -> None:
    """Scores of the runs, for researchers."""
    from bearcat.diagnosis.recording import percent

    rows = []
    for name, record in runs:
        target, origin, temperature = record.scores.target, record.scores.source, record.temperature
        cells = dict.fromkeys(("target accuracy", "test recordings", "target ECE", "uncalibrated"), "no labels")
        if target is not None:
            total, share = target.recordings, target.recording_accuracy
            right = "–" if not total or share is None else f"{round(total * share)} of {total}"
            scores = percent(target.accuracy), right, percent(target.ece), percent(target.ece_uncalibrated)
            cells = dict(zip(cells, scores, strict=True))
        cells["source accuracy"] = percent(None if origin is None else origin.accuracy)
        cells["T"] = "–" if temperature is None else f"{temperature:.2f}"
        rows.append({"method": name, "input": record.settings.input.partition(":")[0]} | cells)
    print_table(rows, left=("method", "input"), title=title)


def check(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of a finished run.")],
    labels: Annotated[Path, Option(metavar="FILE", help="A csv with the columns recording and label.")],
) -> None:
    """Compare a run with labels of some recordings; update its expected accuracy, recommendation and calibration."""
    from bearcat.adaptation.adapt import check_run, read_labels

    found = check_run(run, read_labels(labels))
    print_lines(found.decision.sentence)
    print(f"Written to {run}: record.json, report.html")


def methods(
    name: Annotated[str | None, Argument(metavar="NAME", help="A method, to see its settings.")] = None,
) -> None:
    """The methods bearcat can run, by where they come from; or the settings of one."""
    from bearcat.cat.about import about, settings_of
    from bearcat.cat.recipes import GROUPS, RECIPES, find_recipe

    if name is not None:
        found = find_recipe(name)
        recipe = RECIPES[found]
        sentence, place = about(found)
        print_lines(f"{found}: {sentence} Input: {recipe.input}.{f' Paper: {place}.' if place else ''}")
        columns = ("--method-set", "value", "accepted")
        rows = [dict(zip(columns, row, strict=True)) for row in settings_of(recipe)]
        print_table(rows, left=columns, fixed=columns)
        return
    known = {method for group in GROUPS.values() for method in group}
    added = {method: recipe for method, recipe in RECIPES.items() if method not in known}
    columns = ("method", "what it does", "paper")
    for title, group in (GROUPS | {"added": added}).items():
        rows = [dict(zip(columns, (method, *about(method)), strict=True)) for method in group]
        if rows:
            print_table(rows, left=columns, fixed=columns, title=title)
