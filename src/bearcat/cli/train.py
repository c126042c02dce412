"""Training a model: `adapt`, the `methods` there are for it, and `check` with labels afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from bearcat.cli import options
from bearcat.cli.options import Names, print_lines, print_note, print_recordings, print_table, reading_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bearcat.adaptation.adapt import Adaptation
    from bearcat.record import Record

MOST_PRINTED = 20  # recordings
OWN = "; chosen for your own folder"


def adapt(
    data_name: Annotated[str, Option("--data", help="A dataset, or the path of your own folder.")] = "simulated",
    root: options.Root = None,
    source: Annotated[Names, Option(help="Labelled domain, by name or index; repeat for more.")] = None,
    target: Annotated[str | None, Option(help="The domain to adapt to.")] = None,
    kind: Annotated[
        str | None, Option("--input", help="physics, time, frequency, … (docs/inputs.md).  \\[default: the method's]")
    ] = None,
    method: Annotated[
        str | None, Option("--method", metavar="NAME", help="See `bearcat methods`.  \\[default: match-clusters]")
    ] = None,
    beside: Annotated[Names, Option(help="Train this method too, and show both; repeat for more.")] = None,
    epochs: Annotated[
        int | None,
        Option(help="Phases are scaled to fit.  \\[default: the method's; simulated: at most 40]"),
    ] = None,
    seed: Annotated[int, Option(help="Seed of the split, the weights, the order of windows and dropout.")] = 0,
    split: Annotated[
        str | None,
        Option(help=f"window, block, recording, specimen or machine.  \\[default: window, the paper's{OWN}]"),
    ] = None,
    device: options.Device = "auto",
    out: Annotated[Path | None, Option(help="The folder for the results.  \\[default: bearcat-out]")] = None,
    channel: options.Channel = None,
    rate: options.Rate = None,
    rpm: options.Rpm = None,
    bearing: options.Bearing = None,
    specimen: options.Specimen = None,
    machine: options.Machine = None,
    window: Annotated[int | None, Option(help=f"Samples of a window.  \\[default: 1024{OWN}]")] = None,
    stride: Annotated[
        int | None, Option(help=f"Samples from one window to the next.  \\[default: no overlap{OWN}]")
    ] = None,
    reference: Annotated[
        str | None,
        Option(help="Target recordings known to be of this class, or the file of a healthy one."),
    ] = None,
    settings: options.Set = None,
    method_settings: Annotated[
        Names, Option("--method-set", metavar="PART.NAME=VALUE", help="A setting of the method, e.g. labels.tau=0.95.")
    ] = None,
    fail_on: Annotated[
        str | None,
        Option(
            help="Exit status 1 after an alarm (`alarm`), and 3 after a check without one (`check`), also of one"
            " left out.  \\[default: 0]"
        ),
    ] = None,
) -> None:
    """Learn from labelled recordings, adapt to unlabelled ones, and say how far to trust the result.

    With no option at all: a small, easy task between two simulated operating conditions, in a minute or two.
    """
    from bearcat.adaptation.adapt import adapt as run
    from bearcat.adaptation.plan import Wishes, make_plan
    from bearcat.cat.progress import training_progress
    from bearcat.data.tasks import Mix
    from bearcat.settings import find_name, pairs

    limit = None if fail_on is None else find_name(fail_on, ("alarm", "check"), "decision")
    wishes = Wishes(
        data_name, root, source or (), target, kind, method, beside or (), epochs, seed, split,
        device, channel, rate, rpm, bearing, window, stride, Mix(reference=reference or ""),
        pairs(settings) if settings else None, pairs(method_settings or ()), specimen, machine,
    )  # fmt: skip
    plan = make_plan(wishes, reading_bar())
    for note in plan.notes:
        print_note(note)
    if plan.choices:  # each can be given as an option instead
        chosen = "; ".join(f"{choice.setting} {choice.value}" for choice in plan.choices)
        print_note(f"chosen from the recordings, with reasons in record.json and on the page: {chosen}")
    place = options.data_folder(data_name, root)
    for problem in plan.problems:
        print_note(options.from_here(problem.sentence, place), "problem")
    for warning in plan.warnings:
        print_note(options.from_here(warning, place), "warning")
    found = run(plan, out or Path("bearcat-out"), training_progress)
    _print_adaptation(found, plan.warnings, place)
    if status := exit_status(found.recordings.exit_status, bool(found.problems), limit):
        raise Exit(status)


def exit_status(decided: int, problems: bool, limit: str | None) -> int:
    """Decisions where they are asked for, as 1 and 3: what was left out is then to check. Else 2 after problems."""
    if limit is not None and decided == 1:
        return 1
    return 3 if limit == "check" and (decided or problems) else 2 if problems else 0


def _print_adaptation(found: Adaptation, printed: Sequence[str], folder: Path | None = None) -> None:
    """The answer first: decisions, recordings, recommendation; then scores, and where everything is."""
    diagnoses, record, out = found.recordings, found.record, found.folder
    print_lines(diagnoses.summary)
    if left_out := len(found.problems):
        print_lines(f"{left_out} unusable recording{'s' * (left_out > 1)} left out, named above.")
    print_recordings(diagnoses.worst_first[:MOST_PRINTED], folder)
    if len(diagnoses) > MOST_PRINTED:
        print(f"… and {len(diagnoses) - MOST_PRINTED} more recordings, in record.json and on the page")
    print_lines(found.decision.sentence)
    print_lines(*found.sentences)
    print()
    _print_scores(record.settings.task.replace("→", " → "), found.runs)
    shared = [text for text in record.warnings if all(text in run.warnings for _, run in found.runs)]
    for warning in shared:
        if warning not in printed:
            print_note(warning, "warning")
    for name, run in found.runs:
        for warning in run.warnings:
            if warning not in (*printed, *shared):
                print_note(f"{name}: {warning}", "warning")
    names = "record.json, predictions.csv, curves.csv, model/"
    if (out / "report.html").exists():
        print(f"Results are in {out}: {names}, reliability.png")
        print(f"All of it on one page: {out / 'report.html'}")
    else:
        print(f"Results are in {out}: {names}")
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
    run: Annotated[Path, Argument(help="The folder of a finished run.", show_default=False)],
    labels: Annotated[Path, Option(help="A csv with the columns recording and label, of recordings of the target.")],
) -> None:
    """Compare a run with labels of some recordings; update its expected accuracy, recommendation and calibration."""
    from bearcat.adaptation.adapt import check_run, read_labels

    found = check_run(run, read_labels(labels))
    print_lines(found.decision.sentence)
    print(f"Written to {run}: record.json, report.html")


def methods(
    name: Annotated[str | None, Argument(help="A method, to see its settings.", show_default=False)] = None,
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
