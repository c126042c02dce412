"""Recordings: `data list`, `data fetch`, `data check` and `data show`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bearcat.cli.options import Channel, Rate, Root, Set, console, dataset_named
from bearcat.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bearcat.data import Catalogue, Dataset, Preparation
    from bearcat.data.survey import Row, Survey

commands = typer.Typer(no_args_is_help=True, help="Find, fetch, check and look at recordings.")

Name = Annotated[str, typer.Argument(help="A dataset (see `bearcat data list`), or the path of your own folder.")]
Domains = Annotated[
    list[str] | None, typer.Option("--domain", help="Only this domain, by name or index; repeat for more.")
]


@commands.command("list")
def list_datasets() -> None:
    """The datasets bearcat knows, their licences, and whether they are on this machine."""
    from bearcat.data import DATASETS, default_root

    for name, kind in DATASETS.items():
        place = default_root(name)
        there = {"simulated": "computed when asked for", "folder": "wherever you keep them"}.get(
            name, f"in {place}" if place.is_dir() else f"not in {place}; bearcat data fetch {name}"
        )
        print(f"{name:<10}  {kind.about.title}\n{'':<10}  licence: {kind.about.licence}\n{'':<10}  {there}")


@commands.command()
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

    dataset = dataset_named(name, root, None, settings)
    downloads = dataset.downloads()
    if not downloads:
        raise InputError(f"there is nothing to fetch for '{name}'")
    place = root or default_root(name)
    require_licence(dataset.about, accept_licence, place)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console(to_error=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        files = fetch_files(downloads, place, progress=show)
    print(f"{len(files)} files are in {place}; look at them with: bearcat data check {name} --root {place}")


@commands.command()
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
    catalogue = _catalogue(dataset_named(name, root, channel, settings), domains)
    bar = partial(track, description="reading", console=console(to_error=True), transient=True)
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


@commands.command()
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

    catalogue = _catalogue(dataset_named(name, root, channel, settings), domains)
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
    console().print(table)
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
