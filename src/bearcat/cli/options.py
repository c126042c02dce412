"""Options that several commands share, the dataset they name, and what they print with."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from bearcat.errors import InputError, suggest
from bearcat.names import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from rich.console import Console, JustifyMethod
    from rich.progress import Progress, ProgressColumn

    from bearcat.data import Dataset
    from bearcat.diagnosis.recording import Diagnoses

Names = list[str] | None  # of an option that may be repeated
Root = Annotated[
    Path | None, Option(help="The dataset's folder.  \\[default: $BEARCAT_DATA/NAME, or your data folder]")
]
Channel = Annotated[str | None, Option(help="The channel to read, by name.")]
Channels = Annotated[
    str | None, Option(help="Channels of a file are axes of one bearing (together) or bearings of their own (apart).")
]
TrustSpeed = Annotated[
    bool, Option("--trust-speed", help="Keep a stated speed even if a clear shaft line lies at another.")
]
Unit = Annotated[
    str | None, Option(help="Unit of the samples, where a channel's name does not say it: g, m/s², mm/s, …")
]
Group = Annotated[int | None, Option(help="Group of machines of ISO 20816-3: 1 above 300 kW, 2 from 15 to 300 kW.")]
Mounting = Annotated[str | None, Option(help="Mounting of the machine, for ISO 20816-3: rigid or flexible.")]
Rate = Annotated[
    float | None,
    Option(help="Resample to this rate in Hz; also the rate of files that do not say theirs."),
]
Jobs = Annotated[int, Option(min=0, help="Processes that share the recordings; 0: one for each core.")]
Rpm = Annotated[
    str | None,
    Option(
        "--rpm",  # by name: typer 0.27 takes a metavar that is the name in capitals for the option's own name
        metavar="RPM",
        help="Speed of the shaft where a recording does not say it: a number, or a channel.",
    ),
]
Bearing = Annotated[
    str | None,
    Option(
        metavar="6205",
        help="Bearing where a recording does not say it; or balls=9,ball=7.94,pitch=39.04.",
    ),
]
Specimen = Annotated[
    str | None,
    Option(
        metavar="file",
        help="Part of the path that names the bearing: label, folder, file, 'bearing-(.+)_'.",
    ),
]
Machine = Annotated[
    str | None, Option(metavar="domain", help="Part of the path that names the machine: domain, or as for --specimen.")
]
Order = Annotated[float | None, Option(help="In place of a bearing: this fault's multiple of the shaft's speed.")]
Healthy = Annotated[
    Names, Option(metavar="FILE", help="A known good recording of the same point, or a folder; repeat for more.")
]
FORMATS = ("table", "csv", "json")
Format = Annotated[str, Option("--format", help="table, csv or json.")]
OwnRate = Annotated[
    float | None,
    Option(help="Sampling rate in Hz of files that do not say it; refused where one says another."),
]
Override = Annotated[bool, Option("--override", help="--rate, --rpm, --bearing override files.")]
Set = Annotated[Names, Option("--set", metavar="NAME=VALUE", help="A setting of the dataset; repeat for more.")]
Device = Annotated[str, Option(help="auto, cpu or cuda.")]


def data_folder(name: str, root: Path | None) -> Path | None:
    """The folder of a user's own recordings, as it was named; None of a dataset that bearcat knows."""
    return root or (Path(name) if Path(name).is_dir() else None)


def from_here(sentence: str, folder: Path | None) -> str:
    """The sentence about a recording, whose path leads there from where the user stands and not from its folder."""
    place = sentence.partition(": ")[0].partition("#")[0].partition("[")[0]
    with suppress(OSError):  # it may be no name of a file at all
        if folder is not None and place and (folder / place).exists():
            return f"{folder / place}{sentence[len(place) :]}"
    return sentence


def program() -> str:
    """How to call this program again: a script that adds rows to the tables is the only one that knows them."""
    script = Path(sys.argv[0])
    return f"python {script}" if script.suffix == ".py" and script.name != "__main__.py" else "bearcat"


def console(to_error: bool = False) -> Console:
    """Where tables and bars go; a pipe gets the width a table wants. Names of files are text, not markup."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or to_error else 10_000
    return Console(stderr=to_error, width=width, markup=False, emoji=False)


def print_note(sentence: str, kind: str = "note") -> None:
    print(f"{kind}: {shown(sentence)}", file=sys.stderr)


def print_lines(*texts: str, flush: bool = False) -> None:
    """Texts with names of others in them, which a terminal is to show and not to obey."""
    print("\n".join(shown(line) for text in texts for line in text.split("\n")), flush=flush)


def check_choice(option: str, value: str, known: Collection[str]) -> None:
    """Refuses a value that is not one of those known."""
    if value not in known:
        raise InputError(f"{option}: unknown choice '{value}'{suggest(value, known)}")


def print_table(
    rows: Sequence[Mapping[str, str]], left: Collection[str], fixed: Collection[str] = (), title: str | None = None
) -> None:
    """A table without lines; columns stand to the right but for those to the `left`, and wrap but for `fixed` ones."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in rows[0] if rows else ():
        side: JustifyMethod = "left" if column in left else "right"
        table.add_column(column, justify=side, overflow="fold", no_wrap=column in fixed)
    for row in rows:
        table.add_row(*map(shown, row.values()))
    screen = console()
    if fixed == left:
        screen.width = max(screen.width, 120)  # nothing is cut off
    screen.print(table)


def print_recordings(found: Diagnoses, folder: Path | None = None) -> None:
    """Diagnosed recordings as a table; those of a folder by the path that leads there."""
    if rows := [row | {"recording": from_here(row["recording"], folder)} for row in found.table()]:
        right = ("confidence", "agreement", "unfamiliar")
        print_table(rows, set(rows[0]) - set(right), (*right, "decision"))


def bars(*columns: str | ProgressColumn) -> Progress:
    """Bars on standard error, each with its description before these columns."""
    from rich.progress import Progress, TextColumn

    texts = [TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns]
    return Progress(TextColumn("{task.description}", markup=False), *texts, console=console(to_error=True))


def reading_bar() -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Passes recordings on and shows how far it is."""
    from functools import partial

    from rich.progress import track

    return partial(track, description="reading", console=console(to_error=True), transient=True)


def dataset_named(
    name: str, root: Path | None, settings: Names, channel: str | None, rpm: str | None, bearing: str | None,
    specimen: str | None = None, machine: str | None = None,
) -> Dataset:  # fmt: skip
    """The dataset, with the settings that were given as NAME=VALUE or as options of their own."""
    from bearcat.data import open_dataset
    from bearcat.settings import pairs

    options = {"channel": channel, "rpm": rpm, "bearing": bearing, "specimen": specimen, "machine": machine}
    return open_dataset(name, root, pairs(settings or ()) | {k: v for k, v in options.items() if v is not None})


_OF_DIAGNOSE = (
    "bpfo", "bpfi", "bsf", "ftf", "override", "channels", "trust-speed", "healthy", "unit", "group", "mounting", "jobs",
)  # fmt: skip
# Options and commands of earlier versions, and what to use instead; by command too where others have the option.
REMOVED = {
    "recipes": "use `bearcat methods`",
    "--figures": "every figure is written as png, svg and pdf; make EPS of these with pdftops -eps",
    "--pdf": "open the page in a browser and print it",
    "bearings": "bearcat.data.BEARINGS has the table, and docs/bearings.md says what is in it",
    "predict --batch": "windows are handed to the model 256 at once, which no answer depends on",
    "mcp --max-bytes": "`bearcat mcp` limits a file by its size (docs/security.md)",
    "mcp --timeout": "`bearcat mcp` limits a file by its size (docs/security.md)",
    "serve --token": "set BEARCAT_TOKEN instead, which other users of the machine cannot see",
    "--track": "curves.csv in the folder of a run has the numbers of every epoch",
    "--recipe": "write --method",
    "--recipe-set": "write --method-set",
    "--balance": "write --method-set balance=true",
    "--no-balance": "write --method-set balance=false",
    "--precision": "write --method-set precision=bfloat16",
    "--channels": "write --set channels=together, or channels=apart",
    "--target-keep": 'write a grid with target = { keep = ["healthy"] } and train it by bearcat bench run',
    "--target-share": "write a grid with target = { share = { rest = 0.05 } } and train it by bearcat bench run",
    "--why": "failure.json in the folder of a failed run, which bench status names, has the traceback",
    "--webhook": "write --notify json://host/path, or jsons:// for https",
    "--mail": "write --notify 'mailto://user:password@host?to=me@example.com'",
    "--mqtt": "write --notify mqtt://host/topic for events, and let a bridge write recordings into the folder",
    "--metrics": "bearcat watch export and --format json have the numbers",
    "--executor": "write --jobs 2, for processes of this machine",
    "--address": "write --jobs 2, for processes of this machine",
    "check --format": "bearcat.data.survey.survey has the numbers",
    **dict.fromkeys(
        [f"report --{name}" for name in _OF_DIAGNOSE], "diagnose with --format json, and report the file it wrote"
    ),
    "--speeds": "leave it out: recordings whose speeds are within 5 % are one operating state",
    "--loads": "leave it out: recordings whose loads are within 20 % of the highest are one operating state",
    "FOLDER --rate": "list files that do not say their rate in a manifest.csv with the column rate",
    "show --view": "bearcat diagnose FILE --png FOLDER draws the evidence of a recording",
    "show --input": "bearcat.data.prepare gives the values that a network reads, to draw with matplotlib",
    "show --window": "bearcat.data.prepare gives the windows that a network reads, to draw with matplotlib",
}


def refuse_removed(command: str | None, words: Iterable[str], known: Collection[str]) -> None:
    """Raises InputError for the first removed option of a command, or, where it is None, for a removed command; `known`
    are the names it has today.
    """
    for word in words:
        name = word.partition("=")[0]
        instead = REMOVED.get(f"{command} {name}") or REMOVED.get(name)
        if instead is not None and name not in known and name.startswith("--") == (command is not None):
            raise InputError(f"{name}: was removed; {instead}")
