"""Commands made from requests, the help they print, and what several of them print with."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import Counter
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from typer import Option, Typer
from typer.core import TyperCommand, TyperGroup

from bearcat.errors import InputError, suggest
from bearcat.names import csv_cell, shown, to_json
from bearcat.requests import ADVANCED, DataRequest, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from rich.console import Console, JustifyMethod
    from rich.progress import Progress, ProgressColumn

    from bearcat.data import Dataset
    from bearcat.diagnosis.recording import Diagnoses

Function = TypeVar("Function", bound="Callable[..., Any]")
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
Names = list[str] | None  # of an option that may be repeated
Root = Annotated[Path | None, Option(metavar="FOLDER", help="The dataset's folder.  [default: $BEARCAT_DATA/NAME]")]
Domains = Annotated[
    Names, Option("--domain", metavar="NAME", help="Only this domain, by name or index; repeat for more.")
]
Healthy = Annotated[
    Names, Option(metavar="FILE", help="A known good recording of the point, or a folder; repeat for more.")
]
Set = Annotated[Names, Option("--set", metavar="NAME=VALUE", help="A setting of the dataset; repeat for more.")]
FORMATS = ("table", "csv", "json")
Format = Annotated[str, Option("--format", metavar="table|csv|json", help="How results are printed.")]
Device = Annotated[str, Option(metavar="auto|cpu|cuda", help="Where training runs.", rich_help_panel=ADVANCED)]


class Command(TyperCommand):
    """A command whose help is short, and which refuses options that were removed or are given twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        refuse_removed(self.name, args, {name for option in self.params for name in option.opts})
        for option, times in Counter(self.make_parser(ctx).parse_args(args=list(args))[2]).items():
            if times > 1 and option.param_type_name == "option" and not getattr(option, "multiple", False):
                raise InputError(f"{option.opts[0]}: is given {times} times; give it once")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """A line for each option, the rare ones last."""
        rows = dict[str, list[tuple[str, str]]]()
        for option in self.get_params(ctx):
            record = None if option.name == "help" else option.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if option.param_type_name == "argument" else "Options"
                rows.setdefault(getattr(option, "rich_help_panel", None) or usual, []).append(record)
        for group in sorted(rows, key=(*rows, ADVANCED).index):
            with formatter.section(group):
                formatter.write_dl(rows[group])


class Group(TyperGroup):
    """A group of commands that names what replaces one that was removed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        refuse_removed(None, args[:1], self.commands)
        return super().parse_args(ctx, args)


class Commands(Typer):
    """Commands of this kind, with plain help."""

    def __init__(self, **given: Any) -> None:
        super().__init__(
            cls=given.pop("cls", Group), no_args_is_help=True, add_completion=False, rich_markup_mode=None, **given
        )

    def command(self, name: str | None = None, **given: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=Command, **given)


def takes(kind: type[Request]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of its `request`."""
    made, hints = list[inspect.Parameter](), get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in (name for part in kind.__mro__ for name in vars(part).get("__annotations__", ())):  # its own first
        field = fields[name]
        hint, words, text = hints[name], field.metadata, field.metadata["help"]
        value: Any = bool if hint is bool else Names if hint == tuple[str, ...] else str | None
        if value == str | None and field.default is not None:
            text += f"  [default: {field.default}]"
        flag, metavar = words["flag"] or f"--{name.replace('_', '-')}", words["metavar"] or None
        option = Option(flag, metavar=metavar, help=text, rich_help_panel=words["group"] or None)
        default = False if hint is bool else None
        made.append(inspect.Parameter(name, KEYWORD_ONLY, default=default, annotation=Annotated[value, option]))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            command(request=kind.of(**{each.name: given.pop(each.name) for each in made}), **given)

        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [each.replace(kind=KEYWORD_ONLY) for each in own if each.name != "request"]
        run.__signature__ = inspect.Signature([*kept, *made])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*kept, *made)}
        return run

    return decorate


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


def print_data(form: str, name: str, rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Rows as csv, or as a list of this name in JSON."""
    import csv

    check_choice("--format", form, FORMATS)
    if form == "json":
        print(to_json({name: rows}, indent=1), flush=True)
        return
    writer = csv.DictWriter(sys.stdout, list(columns), extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    sys.stdout.flush()


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


def dataset_named(name: str, request: DataRequest) -> Dataset:
    """The dataset, with the settings that were given as NAME=VALUE or as options of their own."""
    from bearcat.data import open_dataset

    return open_dataset(name, request.folder, request.dataset_settings)


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
    "--channels": "list the channels in a manifest, a row each",
    "--target-keep": 'write a grid with target = { keep = ["healthy"] } and train it by bearcat bench run',
    "--target-share": "write a grid with target = { share = { rest = 0.05 } } and train it by bearcat bench run",
    "--why": "failure.json in the folder of a failed run, which bench status names, has the traceback",
    "--webhook": "write --notify json://host/path, or jsons:// for https",
    "--mail": "write --notify 'mailto://user:password@host?to=me@example.com'",
    "--mqtt": "write --notify mqtt://host/topic for events, and let a bridge write recordings into the folder",
    "--metrics": "bearcat watch export and --format json have the numbers",
    "--bpfo": "write --bearing bpfo=3.585,bpfi=5.415",
    "--bpfi": "write --bearing bpfo=3.585,bpfi=5.415",
    "--by": "bearcat.deploy.predictor has the windows' probabilities",
    "--min-confidence": "take the confidence from --format json",
    "--no-unfamiliar-alarm": "take the findings from --format json",
    "--fail-on": "bearcat predict with the model of adapt ends with 1 and 3",
    "--executor": "write --jobs 2, for processes of this machine",
    "--address": "write --jobs 2, for processes of this machine",
    "--stride": "leave it out: adapt says how windows are cut",
    "check --format": "bearcat.data.survey.survey has the numbers",
    "--speeds": "leave it out: recordings whose speeds are within 5 % are one operating state",
    "--loads": "leave it out: recordings whose loads are within 20 % of the highest are one operating state",
    "FOLDER --rate": "list files that do not say their rate in a manifest.csv with the column rate",
    "show --view": "bearcat diagnose FILE --png FOLDER draws the evidence of a recording",
    "show --input": "bearcat.data.prepare gives the values that a network reads, to draw with matplotlib",
    "--window": "bearcat.data.prepare gives the windows that a network reads, to draw with matplotlib",
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
