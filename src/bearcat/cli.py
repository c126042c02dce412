"""The command line: parse, call, print. Bad input is one sentence on standard error and exit status 2.

Nothing heavy is imported until a command needs it.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bearcat.errors import InputError
from bearcat.recipe import DEFAULT_RECIPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from rich.console import Console

    from bearcat.bench.execute import Executor, Talk
    from bearcat.bench.store import Job, State, Store
    from bearcat.data import Catalogue, Dataset, Preparation
    from bearcat.data.choose import Chosen
    from bearcat.data.survey import Row, Survey
    from bearcat.evaluate import EpochEnd
    from bearcat.predict import Seen

app = typer.Typer(
    name="bearcat", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Bearing fault diagnosis under domain shift, with confidence one can act on.",
)  # fmt: skip
data = typer.Typer(no_args_is_help=True, help="Find, fetch, check and look at recordings.")
app.add_typer(data, name="data")
bench = typer.Typer(no_args_is_help=True, help="Run, resume and report grids of runs (docs/benchmark.md).")
app.add_typer(bench, name="bench")

Name = Annotated[str, typer.Argument(help="A dataset (see `bearcat data list`), or the path of your own folder.")]
Root = Annotated[
    Path | None, typer.Option(help="The dataset's folder.  \\[default: $BEARCAT_DATA/NAME, or your data folder]")
]
Domains = Annotated[
    list[str] | None, typer.Option("--domain", help="Only this domain, by name or index; repeat for more.")
]
Channel = Annotated[str | None, typer.Option(help="The channel to read, by name.")]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Resample everything to this rate in Hz; files that do not say their rate are taken to be at it."
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the dataset; repeat for more.")
]

GridFile = Annotated[Path, typer.Argument(metavar="GRID", help="A grid's TOML file, such as grids/smoke.toml.")]
StoreFolder = Annotated[Path, typer.Option("--store", help="The folder that keeps the runs.")]

INTERRUPTED = 130  # the exit status after Ctrl-C
Track = Annotated[str | None, typer.Option(help="Write every epoch's numbers for this tool too: tensorboard.")]

OWN = "; chosen from the recordings of your own folder"
LOSSES = ("supervised", "pseudo_label", "confusion", "domain")


def main() -> None:
    """Runs the command line; what the user can mend is told in one sentence, without a traceback."""
    try:
        app()
    except InputError as error:
        print(f"bearcat: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:  # what typer makes of Ctrl-C inside a command
            raise
        print("bearcat: interrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(INTERRUPTED)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from bearcat import __version__

        print(f"bearcat {__version__}")
        raise typer.Exit


@app.command()
def adapt(
    data_name: Annotated[str, typer.Option("--data", help="A dataset, or the path of your own folder.")] = "simulated",
    root: Root = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Labelled domain, by name or index; repeat for more.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The domain to adapt to.")] = None,
    kind: Annotated[str | None, typer.Option("--input", help=f"time or frequency.  \\[default: time{OWN}]")] = None,
    recipe: Annotated[str, typer.Option(help="The method; see `bearcat recipes`.")] = DEFAULT_RECIPE,
    beside: Annotated[str | None, typer.Option(help="Train this recipe too, and show both.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Every phase is scaled to fit.  \\[default: the paper's 300; 40 for simulated data]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split, the weights, the order of windows and dropout.")] = 0,
    split: Annotated[
        str | None, typer.Option(help=f"window, block or recording.  \\[default: window, the paper's{OWN}]")
    ] = None,
    balance: Annotated[
        bool | None,
        typer.Option(
            "--balance/--no-balance",
            help=f"Draw the classes of the source equally often.  \\[default: no{OWN}]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="On a GPU: float32, tf32 or bfloat16 (docs/speed.md).  \\[default: the fastest]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the results.  \\[default: bearcat-out]")] = None,
    channel: Channel = None,
    rate: Rate = None,
    window: Annotated[int | None, typer.Option(help=f"Samples a window.  \\[default: 1024{OWN}]")] = None,
    stride: Annotated[
        int | None, typer.Option(help=f"Samples from one window to the next.  \\[default: no overlap{OWN}]")
    ] = None,
    settings: Set = None,
    recipe_settings: Annotated[
        list[str] | None,
        typer.Option("--recipe-set", metavar="PART.NAME=VALUE", help="A setting of the recipe, e.g. labels.tau=0.95."),
    ] = None,
    track: Track = None,
) -> None:
    """Learn from labelled recordings, adapt to unlabelled ones, and say how far to trust the result.

    With no option at all: a small, easy task between two simulated operating conditions, in a minute or two.
    """
    from dataclasses import replace
    from functools import partial

    from rich.progress import track as reading

    from bearcat import adapt as work
    from bearcat.data import Folder, dataset_label
    from bearcat.data.choose import Asked, as_asked
    from bearcat.recipe import QUICK_EPOCHS, RECIPES, recipe_named
    from bearcat.runs import Order
    from bearcat.settings import pairs
    from bearcat.track import require_tracker
    from bearcat.train import checked_precision

    if data_name == "simulated" and (kind, window, settings) == (None, None, None):
        print(work.DEMONSTRATION_SENTENCE, file=sys.stderr)
        kind, window, settings = work.DEMONSTRATION
    if track is not None:
        require_tracker(track)
    proper = [recipe_named(name) for name in (beside, recipe) if name is not None]
    changes = pairs(recipe_settings or ())
    changed = work.with_settings(RECIPES[proper[-1]], changes)
    balance = changed.balance if "balance" in changes else balance
    asked = Asked(channel, rate, window, stride, split, kind, balance)
    as_asked(asked)  # which refuses what nobody can do, before anything is read
    place, precision = _device(device), checked_precision(precision)
    dataset = _dataset(data_name, root, channel, settings)
    sources, to = work.choose_domains(dataset.catalogue(), source or (), target)
    bar = partial(reading, description="reading", console=_console(to_error=True), transient=True)
    dataset, chosen = work.settle(dataset, sources, to, asked, bar)
    if isinstance(dataset, Folder):
        _print_choices(chosen)
    if epochs is None:
        epochs = QUICK_EPOCHS if data_name == "simulated" else RECIPES[proper[-1]].schedule.epochs
    out = out or Path("bearcat-out")
    records: list[tuple[str, dict[str, Any]]] = []
    for name in proper:
        folder = out / f"beside-{name}" if name != proper[-1] else out
        prepared = replace(RECIPES[name].for_input(chosen.preparation.input), balance=chosen.balance)
        scheduled = work.with_settings(prepared, changes if name == proper[-1] else {}).in_epochs(epochs)
        order = Order(
            dataset_label(data_name), dataset, sources, to, name, scheduled, chosen.preparation, chosen.split, seed,
            precision, chosen.choices, chosen.warnings,
        )  # fmt: skip
        with _training_bar(name, epochs) as progress:
            others = [out / f"beside-{other}" for other, _ in records]
            records.append((name, work.adapt(order, folder, place, progress, others, folder == out, track)))
    _print_scores(f"{'+'.join(sources)} → {to}", records, chosen.warnings)
    _print_trust(*records[-1])
    print(f"Results are in {out}: record.json, predictions.csv, curves.csv, reliability.png, model/")
    print(f"All of it on one page: {out / 'report.html'}")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder, or a file that ends in .onnx.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Recordings, or folders of them.")],
    by: Annotated[str, typer.Option(help="A line for each recording or each window.")] = "recording",
    form: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
    rate: Annotated[float | None, typer.Option(min=1e-9, help="In Hz, of files that do not say their rate.")] = None,
    channel: Channel = None,
    alarm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS", help="This class is an alarm; repeat for more.  \\[default: all but healthy or normal]"
        ),
    ] = None,
    min_confidence: Annotated[
        float, typer.Option(min=0, max=1, help="A class diagnosed with less confidence is no alarm.")
    ] = 0.0,
    unfamiliar_alarm: Annotated[
        bool, typer.Option(help="Whether a recording that looks like nothing the model was adapted to is an alarm.")
    ] = True,
    batch: Annotated[int, typer.Option(min=1, help="Windows handed to the model at once.")] = 256,
) -> None:
    """Diagnose new recordings. Exit status: 0 nothing found, 1 an alarm, 2 no alarm but a file could not be used.

    Alarms are of recordings, whatever is printed. A file that cannot be used is told of, and the others go on.
    """
    from bearcat.errors import suggest
    from bearcat.predict import alarm_classes, at_rate_of, diagnose_stream, find_files, open_model, open_stream

    for option, value, known in (("--by", by, ("recording", "window")), ("--format", form, tuple(_PRINTERS))):
        if value not in known:
            raise InputError(f"{option}: unknown choice '{value}'{suggest(value, known)}")
    opened = open_model(model)
    names = opened.classes
    alarms = alarm_classes(names, alarm)
    if not alarm and len(alarms) == len(names):
        print("note: no class is called healthy or normal, so each is an alarm; choose with --alarm", file=sys.stderr)
    if opened.calibrated is False:
        print(
            "note: the model's confidence is not calibrated (its card says why), so do not take it at its word",
            file=sys.stderr,
        )
    if opened.familiarity is None:
        print(
            "note: the model does not know what is familiar, so an unfamiliar recording is no alarm; one trained (and"
            " exported) anew does",
            file=sys.stderr,
        )
    alarmed, failed = 0, 0
    with _PRINTERS[form](by) as put:

        def put_windows(seen: Seen) -> None:
            for number, start in enumerate(seen.starts.tolist()):
                best = int(seen.log_probabilities[number].argmax())
                put({
                    "recording": stream.origin, "start": start,
                    "seconds": None if stream.rate is None else start / stream.rate,
                    "class": names[best], "confidence": min(exp(seen.log_probabilities[number, best]), 1.0),
                    "familiar": None if seen.unfamiliar is None else not bool(seen.unfamiliar[number]),
                })  # fmt: skip

        for path in find_files(files):
            try:
                stream, note = at_rate_of(opened, open_stream(path, channel), rate)
                if note:
                    print(f"note: {note}", file=sys.stderr)
                diagnosis = diagnose_stream(opened, stream, batch, put_windows if by == "window" else None)
            except InputError as error:
                failed += 1
                print(f"problem: {error}", file=sys.stderr)
                continue
            name = names[diagnosis.index]
            is_alarm = name in alarms and diagnosis.confidence >= min_confidence
            is_alarm |= unfamiliar_alarm and diagnosis.familiar is False
            alarmed += is_alarm
            if by == "recording":
                put({
                    "recording": stream.origin, "class": name, "confidence": diagnosis.confidence,
                    "agreement": diagnosis.agreement, "windows": diagnosis.windows,
                    "unfamiliar": diagnosis.unfamiliar, "familiar": diagnosis.familiar, "alarm": is_alarm,
                    "probabilities": dict(zip(names, diagnosis.probabilities.tolist(), strict=True)),
                })  # fmt: skip
    if alarmed or failed:
        raise typer.Exit(1 if alarmed else 2)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="The file to write; its name ends in .onnx.")],
) -> None:
    """Write a model as one ONNX file, from recorded windows to calibrated probabilities (docs/deploy.md)."""
    from bearcat.artefact import load_model
    from bearcat.export import export_onnx

    written = export_onnx(load_model(model), onnx)
    print(f"{written}: {written.stat().st_size / 1e6:.1f} MB; use it with: bearcat predict {written} FILES")


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder, or a file that ends in .onnx.")],
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes one that is free, and prints it.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="BEARCAT_TOKEN", help="Requests must carry it: Authorization: Bearer TOKEN.")
    ] = None,
    max_bytes: Annotated[int, typer.Option(help="The longest body of a request.")] = 64 * 2**20,
    timeout: Annotated[float, typer.Option(help="Seconds for a request, from its first byte to its answer.")] = 30.0,
    concurrency: Annotated[int, typer.Option(help="Requests taken in at once; others are told to come back.")] = 64,
    alarm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS", help="This class is an alarm; repeat for more.  \\[default: all but healthy or normal]"
        ),
    ] = None,
) -> None:
    """Answer to HTTP on this machine, and show a page to drop recordings on (docs/serve.md). Stop it with Ctrl-C."""
    from bearcat.serve.limits import Address, Limits
    from bearcat.serve.run import serve as run

    address = Address(host, port)
    if token is None and not address.loopback:
        print(f"note: whoever reaches {host} may ask; set BEARCAT_TOKEN to let only some", file=sys.stderr)

    def say(where: str) -> None:
        print(f"{model} is served on {where} (open it in a browser; Ctrl-C stops it)", flush=True)

    run(model, address, Limits(max_bytes, timeout, concurrency), token, alarm, say)


@contextmanager
def _put_table(by: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Recordings as one table at the end, whose columns then fit; windows, which may be millions, line by line."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("recording", "class", "confidence", "agreement", "windows", "unfamiliar", ""):
        table.add_column(column, justify="left" if column in ("recording", "class", "") else "right", overflow="fold")
    last = [""]

    def put(row: dict[str, Any]) -> None:
        if by == "recording":
            sure, agree, strange = (
                "?" if row[name] is None else f"{100 * row[name]:.1f} %"
                for name in ("confidence", "agreement", "unfamiliar")
            )
            said = ["ALARM"] * row["alarm"] + ["unfamiliar"] * (row["familiar"] is False)
            table.add_row(row["recording"], row["class"], sure, agree, str(row["windows"]), strange, ", ".join(said))
            return
        if last[0] != row["recording"]:
            last[0] = row["recording"]
            print(f"{row['recording']}\n{'start':>12} {'seconds':>12} {'confidence':>10}  class")
        seconds = "?" if row["seconds"] is None else f"{row['seconds']:.3f}"
        strange = "  unfamiliar" if row["familiar"] is False else ""
        print(f"{row['start']:>12} {seconds:>12} {100 * row['confidence']:>8.1f} %  {row['class']}{strange}")

    yield put
    if table.row_count:
        _console().print(table)


@contextmanager
def _put_csv(by: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    import csv

    columns = {
        "recording": ["recording", "class", "confidence", "agreement", "windows", "unfamiliar", "familiar", "alarm"],
        "window": ["recording", "start", "seconds", "class", "confidence", "familiar"],
    }[by]
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore")
    writer.writeheader()
    yield lambda row: writer.writerow(
        {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}
    )


@contextmanager
def _put_json(by: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """An object with one list, written as it grows."""
    import json

    separator = ["\n"]
    print(f'{{"{by}s": [', end="")

    def put(row: dict[str, Any]) -> None:
        print(separator[0] + json.dumps(row, ensure_ascii=False), end="")
        separator[0] = ",\n"

    yield put
    print("\n]}")


_PRINTERS = {"table": _put_table, "csv": _put_csv, "json": _put_json}


@app.command()
def recipes() -> None:
    """The methods bearcat can run, by their ingredients."""
    from rich.table import Table

    from bearcat.recipe import RECIPES

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("recipe", "alignment", "MCC", "SDAT", "self-training", "threshold", "calibration"):
        table.add_column(column)
    for name, recipe in RECIPES.items():
        table.add_row(
            name,
            "adversarial" if recipe.alignment else "–",
            "✓" if recipe.confusion else "–",
            "✓" if recipe.sharpness else "–",
            "teacher" if recipe.teacher else "–",
            recipe.labels.threshold if recipe.labels else "–",
            recipe.calibration.kind if recipe.calibration else "–",
        )
    _console().print(table)


def _device(name: str) -> torch.device:
    from bearcat.train import chosen_device

    return chosen_device(name)


@contextmanager
def _training_bar(name: str, epochs: int) -> Iterator[Callable[[EpochEnd], None]]:
    """A bar with epoch, losses (in the order of LOSSES), share of target windows labelled, temperature, time left."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=5), MofNCompleteColumn(),
        TextColumn("{task.fields[told]}", markup=False), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=_console(to_error=True)) as bar:
        task = bar.add_task(name, total=epochs, told="")

        def show(end: EpochEnd) -> None:
            last = {key: float(values[-1][0]) for key, values in end.history.items() if len(values) == end.epoch + 1}
            parts = [f"{last[f'loss_{part}']:.2f}" for part in LOSSES if f"loss_{part}" in last]
            told = "loss " + "+".join(parts)
            if "pseudo_label_share" in last:
                told += f" {last['pseudo_label_share']:.0%} labelled"
            if "temperature" in last:
                told += f" T {last['temperature']:.1f}"
            bar.update(task, completed=end.epoch + 1, told=told)

        yield show


def _print_choices(chosen: Chosen) -> None:
    """What was chosen from the recordings and why; each can be asked for instead."""
    for one in chosen.choices:
        print(f"{one.setting}: {one.value}; {one.reason}")
    for warning in chosen.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _print_scores(title: str, records: Sequence[tuple[str, dict[str, Any]]], told: Sequence[str] = ()) -> None:
    """Scores and warnings of the runs, but for the warnings that were told already."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("recipe", "target accuracy", "target ECE", "uncalibrated", "source accuracy", "T"):
        table.add_column(column, justify="left" if column == "recipe" else "right")

    def percent(scores: dict[str, float] | None, name: str) -> str:
        return "no labels" if scores is None else f"{100 * scores[name]:.1f} %"

    for name, record in records:
        target, origin, fitted = record["scores"]["target"], record["scores"]["source"], record["calibration"]
        temperature = fitted["temperature"] if fitted else None
        table.add_row(
            name, percent(target, "accuracy"), percent(target, "ece"), percent(target, "ece_uncalibrated"),
            percent(origin, "accuracy"), "–" if temperature is None else f"{temperature:.2f}",
        )  # fmt: skip
    _console().print(table)
    for name, record in records:
        for warning in record["warnings"]:
            if warning not in told:
                print(f"warning: {name}: {warning}", file=sys.stderr)


def _print_trust(name: str, record: Mapping[str, Any]) -> None:
    """What to expect of the model on the target, found without its labels; and what those say, where there are any."""
    from bearcat.trust import expected_of

    told, scores = record["estimates"], record["scores"]["target"]
    found = expected_of(told)
    if found is not None:
        value, low, high = (100 * one for one in (found.value, found.low, found.high))
        print(f"Without target labels, {name} expects {value:.1f} % right on the target ({low:.1f} to {high:.1f} %).")
        if scores is not None and scores["accuracy"] is not None:
            inside = "inside" if low <= 100 * scores["accuracy"] <= high else "outside"
            print(f"Its labels, which it did not see, say {100 * scores['accuracy']:.1f} %, {inside} that interval.")
    if "verdict" in told:
        print(f"Verdict: {told['verdict']}")


@bench.command("run")
def bench_run(
    grid: GridFile,
    store: StoreFolder = Path("bench-store"),
    root: Root = None,
    executor: Annotated[
        str, typer.Option(help="stack (runs trained together), local (processes) or ray (a cluster).")
    ] = "stack",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at once, for local and ray.  \\[default: one a core]")
    ] = None,
    stack: Annotated[
        int | None, typer.Option(min=1, help="Runs trained together.  \\[default: what the memory allows]")
    ] = None,
    address: Annotated[str | None, typer.Option(help="An existing Ray cluster.  \\[default: a local one]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try runs that failed once more.")] = False,
    only_method: Annotated[
        list[str] | None, typer.Option("--only-method", metavar="NAME", help="Only this method; repeat for more.")
    ] = None,
    limit_seconds: Annotated[
        float | None, typer.Option(min=0, help="After this time stop at the next checkpoint; for time-limited queues.")
    ] = None,
    track: Track = None,
) -> None:
    """Run what a grid asks for and has no result yet; interrupted at any moment, the same command goes on.

    Exit status 1 says that some runs failed.
    """
    from bearcat.bench.execute import execute

    placed, jobs_of_grid = _opened(grid, store, root, only_method, create=True)
    chosen = _executor(executor, jobs, stack, address, device, track)
    trained: set[str] = set()
    with _bench_bar(jobs_of_grid, trained) as talk:
        complete = execute(jobs_of_grid, placed, chosen, talk, retry_failed, limit_seconds, track=track)
    states = {job.run: placed.state(job.run) for job in jobs_of_grid}
    _print_states(jobs_of_grid, states)
    if not complete:
        print("the time limit was reached; run the same command again to go on", file=sys.stderr)
    print(f"{len(trained)} trained by this process; the report: bearcat bench report {grid} --store {store}")
    if any(state.kind == "failed" for state in states.values()):
        print("some runs failed; --retry-failed tries them again", file=sys.stderr)
        raise typer.Exit(1)


@bench.command("status")
def bench_status(grid: GridFile, store: StoreFolder = Path("bench-store"), root: Root = None) -> None:
    """What of a grid is done, running, failed and missing, and how long the rest may take."""
    placed, jobs = _opened(grid, store, root, None, create=False)
    _print_states(jobs, {job.run: placed.state(job.run) for job in jobs})


@bench.command("report")
def bench_report(
    grid: GridFile,
    store: StoreFolder = Path("bench-store"),
    root: Root = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for tables, figures and the page.  \\[default: bench-report/GRID]")
    ] = None,
) -> None:
    """Tables, statistics and figures of what is done, on one page."""
    from bearcat.bench.plan import read_grid
    from bearcat.bench.store import results
    from bearcat.report.page import write_bench_report

    placed, jobs = _opened(grid, store, root, None, create=False)
    found, missing = results(jobs, placed)
    if not found:
        raise InputError(f"{store}: holds no finished run of {grid}; start with bearcat bench run {grid}")
    page = write_bench_report(read_grid(grid).title, found, missing, out or Path("bench-report") / grid.stem)
    print(f"{len(found)} runs, {len(missing)} without a result: {page}")


def _opened(
    grid: Path, store: Path, root: Path | None, methods: Sequence[str] | None, create: bool
) -> tuple[Store, list[Job]]:
    """The store, and the grid's runs by the names they have in it."""
    from bearcat.bench.plan import only_methods, plan, read_grid
    from bearcat.bench.store import identify, open_store

    asked = read_grid(grid)
    try:
        planned = plan(only_methods(asked, methods) if methods else asked, root)
    except InputError as error:
        raise InputError(f"{grid}: {error}") from error
    placed = open_store(store, create)
    return placed, identify(planned, placed, from_memory=not create)


def _executor(
    name: str, jobs: int | None, stack: int | None, address: str | None, device: str, track: str | None
) -> Executor:
    import os

    from bearcat.bench.cluster import Cluster
    from bearcat.bench.execute import Local, Stack
    from bearcat.errors import suggest
    from bearcat.track import require_tracker

    known = ("stack", "local", "ray")
    if name not in known:
        raise InputError(f"unknown executor '{name}'{suggest(name, known)}")
    for option, value, fits in (
        ("jobs", jobs, ("local", "ray")),
        ("stack", stack, ("stack",)),
        ("address", address, ("ray",)),
        ("track", track, ("stack", "local")),
    ):
        if value is not None and name not in fits:
            raise InputError(f"--{option} is for the executor {' and '.join(fits)}, not for {name}; leave it out")
    if track is not None:
        require_tracker(track)
    if name == "stack":
        return Stack(_device(device), stack)
    if name == "local":
        return Local(_device(device), jobs or os.cpu_count() or 1)
    return Cluster(device, jobs, address)


@contextmanager
def _bench_bar(jobs: Sequence[Job], trained: set[str]) -> Iterator[Talk]:
    """A bar that counts runs, and shares of those being trained; notes are printed above it.

    Runs that were trained here are added to `trained`.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from bearcat.bench.execute import Talk

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
        TextColumn("{task.fields[told]}", markup=False), TimeElapsedColumn(), TextColumn("ETA"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )  # fmt: skip
    runs, settled, shares = {job.run: job for job in jobs}, set[str](), dict[str, float]()
    with Progress(*columns, console=_console(to_error=True)) as bar:
        task = bar.add_task("runs", total=len(runs), told=f"0/{len(runs)}")

        def show(now: str = "") -> None:
            done = len(settled) + sum(shares.values())
            bar.update(task, completed=done, told=f"{len(settled)}/{len(runs)} {now}")

        def finish(run: str, here: bool) -> None:
            settled.add(run)
            trained.update([run] if here else [])
            shares.pop(run, None)
            show()

        def epoch(members: Sequence[str], done: int, epochs: int) -> None:
            shares.update({run: done / epochs for run in members if run not in settled})
            many = f" × {len(members)}" if len(members) > 1 else ""
            show(f"{runs[members[0]].cell.method}{many}: epoch {done}/{epochs}")

        yield Talk(settled=finish, epoch=epoch, note=lambda sentence: print(f"note: {sentence}", file=sys.stderr))


def _print_states(jobs: Sequence[Job], states: Mapping[str, State]) -> None:
    """A row for each method, the failed runs with their sentences, and an estimate of the time that is left."""
    from collections import Counter

    from rich.table import Table
    from rich.text import Text

    kinds = ("done", "running", "failed", "missing")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("method", *kinds):
        table.add_column(column, justify="left" if column == "method" else "right")
    seconds: dict[str, list[float]] = {}
    left: Counter[str] = Counter()
    for name in dict.fromkeys(job.cell.method for job in jobs):
        counts: Counter[str] = Counter()
        for job in jobs:
            if job.cell.method == name:
                state = states[job.run]
                counts["missing" if state.kind == "damaged" else state.kind] += 1
                if state.record is not None:
                    seconds.setdefault(name, []).append(state.record["seconds"] / state.record["stack"])
        left[name] = counts["running"] + counts["missing"]
        table.add_row(Text(name), *(str(counts[kind]) for kind in kinds))  # a name may have brackets
    _console().print(table)
    counts = Counter(states[job.run].kind for job in jobs)
    print(f"{len(jobs)} cells: " + ", ".join(f"{counts[kind]} {kind}" for kind in (*kinds, "damaged") if counts[kind]))
    if sum(left.values()) and seconds:
        every = [one for values in seconds.values() for one in values]
        means = {name: sum(values) / len(values) for name, values in seconds.items()}
        rest = sum(count * means.get(name, sum(every) / len(every)) for name, count in left.items())
        print(f"ETA: about {_duration(rest)} of computing by one process, as the finished runs went")
    for job in jobs:
        state, cell = states[job.run], job.cell
        where = f"{cell.method}, {cell.task}, {cell.input}, seed {cell.seed}"
        if state.kind in ("failed", "damaged"):
            print(f"{state.kind}: {where}: {state.told}", file=sys.stderr)
        elif state.kind == "running":
            print(f"running: {where}: {state.told}", file=sys.stderr)


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} seconds"


@data.command("list")
def list_datasets() -> None:
    """The datasets bearcat knows, their licences, and whether they are on this machine."""
    from bearcat.data import DATASETS, default_root

    for name, kind in DATASETS.items():
        place = default_root(name)
        there = {"simulated": "computed when asked for", "folder": "wherever you keep them"}.get(
            name, f"in {place}" if place.is_dir() else f"not in {place}; bearcat data fetch {name}"
        )
        print(f"{name:<10}  {kind.about.title}\n{'':<10}  licence: {kind.about.licence}\n{'':<10}  {there}")


@data.command()
def fetch(
    name: Name,
    root: Root = None,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You have read the licence and accept it.")
    ] = False,
    settings: Set = None,
) -> None:
    """Download a dataset from its official address; an interrupted download goes on where it stopped."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from bearcat.data import default_root
    from bearcat.data.fetch import fetch as fetch_files
    from bearcat.data.fetch import require_licence

    dataset = _dataset(name, root, None, settings)
    downloads = dataset.downloads()
    if not downloads:
        raise InputError(f"there is nothing to fetch for '{name}'")
    place = root or default_root(name)
    require_licence(dataset.about, accept_licence, place)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=_console(to_error=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        files = fetch_files(downloads, place, progress=show)
    print(f"{len(files)} files are in {place}; look at them with: bearcat data check {name} --root {place}")


@data.command()
def check(
    name: Name,
    root: Root = None,
    domains: Domains = None,
    channel: Channel = None,
    rate: Rate = None,
    window: Annotated[int, typer.Option(help="Samples a window.")] = 1024,
    stride: Annotated[
        int | None, typer.Option(help="Samples from one window to the next.  \\[default: no overlap]")
    ] = None,
    settings: Set = None,
    form: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
) -> None:
    """Read every recording once and tell what is there, what is missing and what cannot be used."""
    from functools import partial

    from rich.progress import track

    from bearcat.data import Preparation
    from bearcat.data.survey import survey
    from bearcat.errors import suggest

    if form not in ("table", "csv", "json"):
        raise InputError(f"unknown format '{form}'{suggest(form, ('table', 'csv', 'json'))}")
    preparation = Preparation(length=window, stride=stride, rate=rate)
    catalogue = _catalogue(_dataset(name, root, channel, settings), domains)
    bar = partial(track, description="reading", console=_console(to_error=True), transient=True)
    found = survey(catalogue, preparation, progress=bar)
    if form == "table":
        _print_table(found, preparation)
    elif form == "csv":
        _print_csv(found)
    else:
        _print_json(found)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    for problem in found.problems:
        print(f"problem: {problem.sentence}", file=sys.stderr)
    if found.problems:
        raise InputError(f"{name}: not ready, {len(found.problems)} problem(s) named above")
    if len({row.domain for row in found.rows}) < 2:
        print("note: one domain alone makes no task; adapting needs a source and a target", file=sys.stderr)


@data.command()
def show(
    name: Name,
    root: Root = None,
    domains: Domains = None,
    channel: Channel = None,
    rate: Rate = None,
    settings: Set = None,
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("shift.png"),
) -> None:
    """Draw waveform, spectrum and envelope spectrum per class for two domains side by side, to see the shift."""
    from bearcat.data import Recording, resample
    from bearcat.data.survey import UNLABELLED
    from bearcat.report.plots import draw_shift

    catalogue = _catalogue(_dataset(name, root, channel, settings), domains)
    if len(catalogue.domains) < 2 or (domains and len(catalogue.domains) != 2):
        raise InputError(
            f"a picture compares two domains, not {len(catalogue.domains)}; name them with --domain A --domain B"
        )
    left, right = catalogue.domains[0], catalogue.domains[1]
    first: dict[tuple[str, str], Recording] = {}
    for entry in catalogue.entries:
        key = (entry.domain, entry.label or UNLABELLED)
        if entry.domain in (left, right) and key not in first:
            first[key] = entry.read() if rate is None else resample(entry.read(), rate)
    labels = [label for label in (*catalogue.classes, UNLABELLED) if {(left, label), (right, label)} & first.keys()]
    if not labels:
        raise InputError(f"{name}: neither '{left}' nor '{right}' has a recording; see bearcat data check")
    rows = [(label, first.get((left, label)), first.get((right, label))) for label in labels]
    draw_shift(rows, (left, right), out)
    print(f"{left} and {right}, {len(rows)} classes: {out}")


def _console(to_error: bool = False) -> Console:
    """Where tables and bars go; a pipe gets the width a table wants."""
    from rich.console import Console

    return Console(stderr=to_error, width=None if sys.stdout.isatty() or to_error else 110)


def _dataset(name: str, root: Path | None, channel: str | None, settings: Sequence[str] | None) -> Dataset:
    from bearcat.data import open_dataset
    from bearcat.settings import pairs

    told = pairs(settings or ())
    if channel is not None:
        told["channel"] = channel
    return open_dataset(name, root, told)


def _catalogue(dataset: Dataset, domains: Sequence[str] | None) -> Catalogue:
    catalogue = dataset.catalogue()
    return catalogue.only(domains) if domains else catalogue


def _rate_text(row: Row) -> str:
    return ", ".join("unknown" if rate is None else f"{rate:g}" for rate in row.rates)


def _print_table(found: Survey, preparation: Preparation) -> None:
    from rich.table import Table

    from bearcat.data.survey import UNLABELLED

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("domain", "class"):
        table.add_column(column)
    for column in ("recordings", "seconds", "rate (Hz)", "windows"):
        table.add_column(column, justify="right")
    previous = None
    for row in found.rows:
        if previous not in (None, row.domain):
            table.add_section()
        table.add_row(
            row.domain if row.domain != previous else "", row.label, str(row.recordings),
            "?" if row.seconds is None else f"{row.seconds:.2f}", _rate_text(row), str(row.windows),
        )  # fmt: skip
        previous = row.domain
    _console().print(table)
    domains = len({row.domain for row in found.rows})
    classes = len({row.label for row in found.rows} - {UNLABELLED})
    windows = sum(row.windows for row in found.rows)
    print(
        f"{found.recordings} recordings in {domains} domains, {classes} classes;"
        f" {windows} windows of {preparation.length} samples every {preparation.step}"
    )


def _print_csv(found: Survey) -> None:
    import csv

    writer = csv.writer(sys.stdout)
    writer.writerow(["domain", "class", "recordings", "seconds", "rate", "windows"])
    for row in found.rows:
        writer.writerow([row.domain, row.label, row.recordings, row.seconds, _rate_text(row), row.windows])


def _print_json(found: Survey) -> None:
    import json
    from dataclasses import asdict

    problems = [asdict(problem) for problem in found.problems]
    rows = [asdict(row) for row in found.rows]
    print(json.dumps({"rows": rows, "problems": problems, "notes": list(found.notes)}, indent=1))
