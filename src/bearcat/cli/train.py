"""Training a model: `adapt`, the `recipes` there are for it, and `check` with labels afterwards."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from bearcat.cli import options
from bearcat.cli.options import Names, console, dataset_named, plain_table, print_note, print_recordings
from bearcat.methods.recipe import DEFAULT_RECIPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bearcat.data.choose import DataSettings
    from bearcat.data.tasks import Mix
    from bearcat.record import DomainScores, Record
    from bearcat.training.evaluate import EpochEnd

MOST_PRINTED = 20  # recordings
OWN = "; chosen from the recordings of your own folder"


def adapt(
    data_name: Annotated[str, Option("--data", help="A dataset, or the path of your own folder.")] = "simulated",
    root: options.Root = None,
    source: Annotated[Names, Option(help="Labelled domain, by name or index; repeat for more.")] = None,
    target: Annotated[str | None, Option(help="The domain to adapt to.")] = None,
    kind: Annotated[
        str | None, Option("--input", help="physics, time, frequency, … (docs/inputs.md).  \\[default: the recipe's]")
    ] = None,
    recipe: Annotated[str, Option(help="The method; see `bearcat recipes`.")] = DEFAULT_RECIPE,
    beside: Annotated[Names, Option(help="Train this recipe too, and show both; repeat for more.")] = None,
    epochs: Annotated[
        int | None,
        Option(help="Every phase is scaled to fit.  \\[default: the recipe's; at most 40 for simulated data]"),
    ] = None,
    seed: Annotated[int, Option(help="Of the split, the weights, the order of windows and dropout.")] = 0,
    split: Annotated[
        str | None, Option(help=f"window, block or recording.  \\[default: window, the paper's{OWN}]")
    ] = None,
    balance: Annotated[
        bool | None,
        Option(
            "--balance/--no-balance",
            help=f"Draw the classes of the source equally often.  \\[default: no{OWN}]",
            show_default=False,
        ),
    ] = None,
    device: options.Device = "auto",
    precision: Annotated[
        str | None, Option(help="On a GPU: float32, tf32 or bfloat16 (docs/speed.md).  \\[default: the fastest]")
    ] = None,
    out: Annotated[Path | None, Option(help="The folder for the results.  \\[default: bearcat-out]")] = None,
    channel: options.Channel = None,
    rate: options.Rate = None,
    rpm: options.Rpm = None,
    bearing: options.Bearing = None,
    window: Annotated[int | None, Option(help=f"Samples a window.  \\[default: 1024{OWN}]")] = None,
    stride: Annotated[
        int | None, Option(help=f"Samples from one window to the next.  \\[default: no overlap{OWN}]")
    ] = None,
    target_keep: Annotated[
        Names, Option(metavar="CLASS", help="Of a labelled target, only this class; repeat for more (docs/plant.md).")
    ] = None,
    target_share: Annotated[
        Names, Option(metavar="CLASS=SHARE", help="Of a labelled target, this share of a class, e.g. rest=0.05.")
    ] = None,
    reference: Annotated[
        str | None,
        Option(help="Target recordings known to be of this class, or one that is healthy, by its file's name."),
    ] = None,
    settings: options.Set = None,
    recipe_settings: Annotated[
        Names, Option("--recipe-set", metavar="PART.NAME=VALUE", help="A setting of the recipe, e.g. labels.tau=0.95.")
    ] = None,
    track: options.Track = None,
) -> None:
    """Learn from labelled recordings, adapt to unlabelled ones, and say how far to trust the result.

    With no option at all: a small, easy task between two simulated operating conditions, in a minute or two.
    """
    from dataclasses import replace
    from functools import partial

    from rich.progress import track as reading

    from bearcat.data import dataset_label
    from bearcat.data.choose import Requested, choose_settings, paper_settings
    from bearcat.methods.moving import MoveClasses
    from bearcat.methods.recipe import QUICK_EPOCHS, RECIPES, find_recipe
    from bearcat.report.results import read_result
    from bearcat.runs import adapt as adapting
    from bearcat.runs.record import require_tracker
    from bearcat.runs.spec import Library, RunSpec, make_recipe
    from bearcat.settings import pairs
    from bearcat.training.loop import checked_precision, chosen_device

    if data_name == "simulated" and settings is None:
        print(adapting.DEMONSTRATION_SENTENCE, file=sys.stderr)
        settings = adapting.DEMONSTRATION
    if track is not None:
        require_tracker(track)
    names = list(dict.fromkeys(find_recipe(name) for name in [*(beside or ()), recipe]))
    names.append(names.pop(names.index(find_recipe(recipe))))
    changes = pairs(recipe_settings or ())
    mix = _mix(target_keep or (), target_share or (), reference or "")
    changed = RECIPES[names[-1]].with_settings(changes)
    if reference and changed.find(MoveClasses) is None:
        print(f"warning: {names[-1]} does not use the reference recordings; dense-moved does", file=sys.stderr)
    balance = changed.balance if "balance" in changes else balance
    requested = Requested(channel, rate, window, stride, split, kind, balance, changed.input)
    paper_settings(requested)  # refuses impossible settings before anything is read
    where, precision = chosen_device(device), checked_precision(precision)
    dataset = dataset_named(data_name, root, channel, settings, rpm, bearing)
    catalogue = dataset.catalogue()
    task = adapting.choose_task(catalogue, source or (), target)
    bar = partial(reading, description="reading", console=console(to_error=True), transient=True)
    settings_of: dict[str, DataSettings] = {}  # by the input of recipes
    for default in dict.fromkeys([changed.input, *(RECIPES[name].input for name in names[:-1])]):
        first = settings_of.get(changed.input)  # whose split holds for the recipes beside it too
        scheme = requested.split or (first.split.scheme if first else None)
        wanted = replace(requested, default_input=default, split=scheme)
        opened, scanned, settings_of[default] = choose_settings(dataset, catalogue, task, wanted, bar)
    dataset, library = opened, Library({opened: scanned})
    for choice in settings_of[changed.input].choices:  # each can be given as an option instead
        print(f"{choice.setting}: {choice.value}; {choice.reason}")
    for warning in settings_of[changed.input].warnings:
        print(f"warning: {warning}", file=sys.stderr)
    out = out or Path("bearcat-out")
    specs = []
    for name in names:
        main = name == names[-1]
        chosen = settings_of[changed.input if main else RECIPES[name].input]
        own = {"balance": str(chosen.balance)} | (changes if main else {})
        usual = RECIPES[name].schedule.epochs
        own_epochs = min(usual, QUICK_EPOCHS) if data_name == "simulated" else usual
        length = own_epochs if epochs is None else epochs
        specs.append(RunSpec(
            dataset_label(data_name), dataset, task, name, make_recipe(name, chosen.preparation.input, length, own),
            chosen.preparation, chosen.split, seed, precision, mix, chosen=chosen.choices, warnings=chosen.warnings,
        ))  # fmt: skip
    record = adapting.adapt(specs[-1], out, where, _training_bar, specs[:-1], track, library)
    result = read_result(out)
    runs = [(run.cell.method, run.record) for run in (*result.beside, result)]
    _print_scores(str(task).replace("→", " → "), runs, settings_of[changed.input].warnings)
    recordings = record.recordings or ()
    print_recordings(recordings[:MOST_PRINTED])
    if len(recordings) > MOST_PRINTED:
        print(f"… and {len(recordings) - MOST_PRINTED} more recordings, in record.json and on the page")
    print_trust(result.saved.cell.method, result.saved.record)
    decision = record.decision
    print(*(found["sentence"] for found in (decision.second_opinion, decision.saved) if found), sep="\n")
    if (out / "report.html").exists():
        print(f"Results are in {out}: record.json, predictions.csv, curves.csv, reliability.png, model/")
        print(f"All of it on one page: {out / 'report.html'}")
    else:
        print(f"Results are in {out}: record.json, predictions.csv, curves.csv, model/")
        print_note("pictures and the page need an extra; pip install 'bearcat[report]'")


def _mix(keep: Sequence[str], shares: Sequence[str], reference: str) -> Mix:
    from bearcat.data.tasks import Mix
    from bearcat.errors import InputError
    from bearcat.settings import pairs

    found = []
    for name, text in pairs(shares).items():
        try:
            found.append((name, float(text)))
        except ValueError as error:
            raise InputError(f"--target-share: '{text}' is not a number; write CLASS=SHARE, e.g. rest=0.05") from error
    return Mix(keep=tuple(keep), share=tuple(found), reference=reference)


@contextmanager
def _training_bar(name: str, epochs: int) -> Iterator[Callable[[EpochEnd], None]]:
    """A bar with epoch, losses, share of target windows labelled, temperature, time left."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=5), MofNCompleteColumn(),
        TextColumn("{task.fields[losses]}", markup=False), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console(to_error=True)) as bar:
        task = bar.add_task(name, total=epochs, losses="")

        def show(end: EpochEnd) -> None:
            last = {key: float(values[-1][0]) for key, values in end.history.items() if len(values) == end.epoch + 1}
            parts = [f"{value:.2f}" for key, value in last.items() if key.startswith("loss_")]
            losses = "loss " + "+".join(parts)
            if "pseudo_label_share" in last:
                losses += f" {last['pseudo_label_share']:.0%} labelled"
            if "temperature" in last:
                losses += f" T {last['temperature']:.1f}"
            bar.update(task, completed=end.epoch + 1, losses=losses)

        yield show


def _print_scores(title: str, records: Sequence[tuple[str, Record]], printed: Sequence[str]) -> None:
    """Scores of the runs, and their warnings but for those that were printed already."""
    texts = ("recipe", "input")
    scores = ("target accuracy", "recordings", "target ECE", "uncalibrated", "source accuracy", "T")
    table = plain_table((*texts, *scores), texts, title=title)

    def percent(scores: DomainScores | None, name: str) -> str:
        return "no labels" if scores is None else f"{100 * getattr(scores, name):.1f} %"

    def recordings(scores: DomainScores | None) -> str:
        if scores is None or not scores.recordings:
            return "–"
        return f"{round(scores.recordings * (scores.recording_accuracy or 0))} of {scores.recordings}"

    for name, record in records:
        target, origin, temperature = record.scores.target, record.scores.source, record.temperature
        table.add_row(
            name, record.settings.input.partition(":")[0], percent(target, "accuracy"),
            recordings(target), percent(target, "ece"), percent(target, "ece_uncalibrated"),
            percent(origin, "accuracy"), "–" if temperature is None else f"{temperature:.2f}",
        )  # fmt: skip
    console().print(table)
    for name, record in records:
        for warning in record.warnings:
            if warning not in printed:
                print(f"warning: {name}: {warning}", file=sys.stderr)


def print_trust(name: str, record: Record) -> None:
    """What to expect of the model on the target, found without its labels; and what those say, where there are any."""
    from bearcat.trust.shares import shares_sentences

    shares = {} if record.failed else record.estimates.shares
    for sentence in [shares.get("adaptation"), *(shares_sentences(shares) if shares else ())]:
        if sentence:
            print(sentence)
    found, scores = record.decision.expected, record.scores.target
    if found is not None:
        value, low, high = (100 * share for share in (found.value, found.low, found.high))
        print(f"Without target labels, {name} expects {value:.1f} % right on the target ({low:.1f} to {high:.1f} %).")
        if scores is not None and scores.accuracy is not None:
            inside = "inside" if low <= 100 * scores.accuracy <= high else "outside"
            print(f"Its labels, which it did not see, say {100 * scores.accuracy:.1f} %, {inside} that interval.")
    print(f"Verdict: {record.decision.sentence}")


def check(
    run: Annotated[Path, Argument(help="The folder of a finished run.", show_default=False)],
    labels: Annotated[Path, Option(help="A csv with the columns recording and label, of recordings of the target.")],
) -> None:
    """Compare a run with labels of some recordings, and update what it expects and advises."""
    from bearcat.runs.check import check_run, read_labels

    entry = check_run(run, read_labels(labels))
    print(f"Verdict: {entry['verdict']}")
    print(f"Written to {run}: record.json, report.html")


def recipes() -> None:
    """The methods bearcat can run, by where they come from and by their ingredients."""
    from bearcat.methods.recipe import GROUPS, RECIPES
    from bearcat.methods.selftraining import SelfTraining

    known = {name for group in GROUPS.values() for name in group}
    added = {name: recipe for name, recipe in RECIPES.items() if name not in known}
    short = {"alignment": "adversarial", "confusion": "MCC", "sharpness": "SDAT", "labels": "self-training"}
    for title, group in (GROUPS | {"added": added}).items():
        if not group:
            continue
        columns = ("recipe", "ingredients", "threshold", "calibration")
        table = plain_table(columns, left=columns, fixed=columns, title=title)
        for name, recipe in group.items():
            names = [short.get(ingredient.name, ingredient.name) for ingredient in recipe.ingredients]
            labels = recipe.find(SelfTraining)
            table.add_row(name, ", ".join(names) or "–", labels.threshold if labels else "–", recipe.calibration or "–")
        wide = console()
        wide.width = max(wide.width, 120)  # a name is not cut off
        wide.print(table)
