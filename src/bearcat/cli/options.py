"""Options that several commands share, the dataset they name, and the console."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rich.console import Console, JustifyMethod
    from rich.table import Table

    from bearcat.data import Dataset
    from bearcat.diagnosis.recording import Diagnoses

Names = list[str] | None  # of an option that may be repeated
Root = Annotated[
    Path | None, Option(help="The dataset's folder.  \\[default: $BEARCAT_DATA/NAME, or your data folder]")
]
Channel = Annotated[str | None, Option(help="The channel to read, by name.")]
Rate = Annotated[
    float | None,
    Option(help="Resample everything to this rate in Hz; files that do not say their rate are taken to be at it."),
]
Rpm = Annotated[
    str | None,
    Option(
        "--rpm",  # by name: typer 0.27 takes a metavar that is the name in capitals for the option's own name
        metavar="RPM",
        help="Speed of the shaft, of recordings that do not say their own: a number, or the channel that holds it.",
    ),
]
Bearing = Annotated[
    str | None,
    Option(
        metavar="6205",
        help="Bearing of recordings that do not say their own: a designation, or balls=9,ball=7.94,pitch=39.04 (mm).",
    ),
]
Format = Annotated[str, Option("--format", help="table, csv or json.")]
OwnRate = Annotated[float | None, Option(min=1e-9, help="Sampling rate in Hz, of files that do not say their own.")]
Set = Annotated[Names, Option("--set", metavar="NAME=VALUE", help="A setting of the dataset; repeat for more.")]
Device = Annotated[str, Option(help="auto, cpu or cuda.")]
Track = Annotated[str | None, Option(help="Write every epoch's numbers for this tool too: tensorboard.")]


def program() -> str:
    """How to call this program again: a script that adds rows to the tables is the only one that knows them."""
    script = Path(sys.argv[0])
    return f"python {script}" if script.suffix == ".py" and script.name != "__main__.py" else "bearcat"


def console(to_error: bool = False) -> Console:
    """Where tables and bars go; a pipe gets the width a table wants. Names of files are text, not markup."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or to_error else 200
    return Console(stderr=to_error, width=width, markup=False, emoji=False)


def print_note(sentence: str) -> None:
    print(f"note: {sentence}", file=sys.stderr)


def plain_table(
    columns: Iterable[str],
    left: Collection[str],
    fixed: Collection[str] = (),
    title: str | None = None,
    fold: bool = False,
) -> Table:
    """A table without lines; columns stand to the right but for those to the `left`, and wrap but for `fixed` ones."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        side: JustifyMethod = "left" if column in left else "right"
        table.add_column(column, justify=side, overflow="fold" if fold else "ellipsis", no_wrap=column in fixed)
    return table


def print_recordings(found: Diagnoses) -> None:
    """Diagnosed recordings as a table."""
    rows = found.table()
    if rows:
        right = ("confidence", "agreement", "unfamiliar")
        table = plain_table(rows[0], set(rows[0]) - set(right), (*right, "decision"), fold=True)
        for row in rows:
            table.add_row(*row.values())
        console().print(table)


def dataset_named(
    name: str,
    root: Path | None,
    channel: str | None,
    settings: Names,
    rpm: str | None = None,
    bearing: str | None = None,
) -> Dataset:
    """The dataset, with the settings that were given as NAME=VALUE or as options of their own."""
    from bearcat.data import open_dataset
    from bearcat.settings import pairs

    options = {"channel": channel, "rpm": rpm, "bearing": bearing}
    return open_dataset(name, root, pairs(settings or ()) | {k: v for k, v in options.items() if v is not None})
