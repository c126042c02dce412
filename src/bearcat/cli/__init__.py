"""The command line: parse, call, print. This module orders the commands and handles all errors.

Exit status: 0 all ok; 1 at least one alarm; 3 no alarm, but something to check; 2 bad input, nothing decided, in one
sentence on standard error; 70 a bug, of a user's own code or to report, with a traceback; 130 interrupted.
`predict` and `diagnose` decide on recordings, `watch` on points of machines; other commands end with 0 when
they are done.

Commands are functions in three modules, and their options are the fields of their requests; the module of a command is
imported when the command is called, and anything heavy when it needs that.
"""

from __future__ import annotations

import csv
import ctypes
import dataclasses
import inspect
import os
import sys
import traceback
from contextlib import suppress
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from typer import Option, Typer

from bearcat.errors import InputError, csv_cell, error_sentence, shown, to_json
from bearcat.settings import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from bearcat.deploy.opened import Predictor
    from bearcat.diagnosis.recording import Diagnoses

INTERRUPTED, CLOSED_PIPE = 130, 141  # the exit status after Ctrl-C, and after SIGPIPE as shells have it
BUG = 70  # EX_SOFTWARE of sysexits.h

HOMES = {  # the module of each command, in the order of the help
    "diagnose": "recordings", "adapt": "train", "check": "train", "predict": "recordings", "report": "recordings",
    "export": "train", "serve": "watch", "mcp": "watch", "methods": "train", "watch": "watch", "data": "recordings",
    "bench": "train",
}  # fmt: skip
KEPT_MEMORY = {-1: 1 << 27, -3: 1 << 25}  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, bytes
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
Names = list[str] | None  # of an option that may be repeated
Root = Annotated[Path | None, Option(metavar="FOLDER", help="The dataset's folder.  [default: $BEARCAT_DATA/NAME]")]
Domains = Annotated[
    Names, Option("--domain", metavar="NAME", help="A domain to read (name or index); repeat for more.")
]
Healthy = Annotated[Names, Option(metavar="FILE", help="A good recording of the point, or a folder; repeat for more.")]
Set = Annotated[Names, Option("--set", metavar="NAME=VALUE", help="A setting of the dataset; repeat for more.")]
Form = Literal["table", "csv", "json"]
Format = Annotated[Form, Option("--format", metavar="table|csv|json", help="How results are printed.")]


def group(about: str, **settings: Any) -> Typer:
    """Commands below one word, with plain help."""
    return Typer(help=about, add_completion=False, rich_markup_mode=None, **settings)


def application(words: Sequence[str] = ()) -> Typer:
    """The command line; where the first word is a command, with that command alone."""
    app = group("Bearing fault diagnosis under domain shift, with confidence one can act on.", name="bearcat")
    app.callback(invoke_without_command=True)(_top)
    for name in [word for word in words[:1] if word in HOMES] or HOMES:
        command = getattr(import_module(f"bearcat.cli.{HOMES[name]}"), name)
        if isinstance(command, Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    return app


def main() -> None:
    """Runs the command line; an error the user can correct is printed as one sentence, without a traceback."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (until the end)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status, sentence = run(sys.argv[1:]), ""
        print(end="", flush=True)
    except Exception as error:
        status, sentence = _explain(error)
    except KeyboardInterrupt:
        status, sentence = INTERRUPTED, "interrupted; run the same command again to go on"
    with suppress(OSError):  # a full disk may hold standard error too
        if sentence:
            print(f"bearcat: {shown(sentence)}", file=sys.stderr)
    sys.exit(status)


def run(words: list[str]) -> int:
    """Runs one command, or prints the list of commands; its exit status."""
    if words in ([], ["bench"], ["data"], ["watch"]):
        words = [*words, "--help"]
    command = typer.main.get_command(application(words))
    try:
        with command.make_context("bearcat", words) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort as stop:  # a question was not answered
        raise KeyboardInterrupt from stop
    return 0


def _explain(error: Exception) -> tuple[int, str]:
    """Exit status and sentence of an error; where code is at fault the traceback is printed."""
    if isinstance(error, InputError):
        return 2, error.for_command_line
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be written
        return CLOSED_PIPE, ""
    if isinstance(error, MemoryError):
        return 2, "this needs more memory than there is; use fewer or shorter recordings"
    if hasattr(error, "format_message"):  # the words cannot be read as a command
        return 2, f"{error.format_message()} See --help, or docs/upgrade.md for what version 0.3 had."
    if isinstance(error, OSError):  # such as a full disk
        reason = os.strerror(error.errno) if error.errno else str(error)
        return 2, f"{error.filename or 'a file'}: {reason}; put that right and run it again"
    with suppress(OSError):
        traceback.print_exception(error)
    return BUG, f"{error_sentence(error)}; correct it if the lines above end in your own code, else please report a bug"


def _top(version: Annotated[bool, Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from bearcat import __version__

        print(f"bearcat {__version__}")
        raise typer.Exit


def takes(kind: type[Request]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of its `request`."""
    hints, options = get_type_hints(kind), list[inspect.Parameter]()
    for field in dataclasses.fields(kind):
        hint, about, text = hints[field.name], field.metadata, field.metadata["help"]
        value: Any = bool if hint is bool else Names if hint == tuple[str, ...] else str | None
        if value == str | None and field.default not in (None, ""):
            text += f"  [default: {field.default}]"
        flag = about["flag"] or f"--{field.name.replace('_', '-')}"
        option = Option(flag, metavar=about["metavar"] or None, help=text)
        default, typed = False if hint is bool else None, Annotated[value, option]
        options.append(inspect.Parameter(field.name, KEYWORD_ONLY, default=default, annotation=typed))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            command(request=kind.of(**{option.name: values.pop(option.name) for option in options}), **values)

        arguments = inspect.signature(command, eval_str=True).parameters.values()
        others = [argument.replace(kind=KEYWORD_ONLY) for argument in arguments if argument.name != "request"]
        parameters = [*others, *options]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def use_one_core() -> None:
    """One thread for numpy and torch, unless the environment says otherwise, and memory that stays with this process:
    clearing new pages takes a seventh of a diagnosis. Call it before numpy is loaded.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another library of C than the usual one
            library = ctypes.CDLL(None)
            for option, size in KEPT_MEMORY.items():
                library.mallopt(option, size)


def print_note(sentence: str, kind: str = "note") -> None:
    print(f"{kind}: {shown(sentence)}", file=sys.stderr)


def print_lines(*texts: str, flush: bool = False) -> None:
    """Texts with untrusted names in them, line by line, whose control characters are escaped."""
    print("\n".join(shown(line) for text in texts for line in text.split("\n")), flush=flush)


def print_table(rows: Sequence[Mapping[str, str]], right: Collection[str] = ()) -> None:
    """A table without lines, as wide as it wants in a pipe; columns of `right` are aligned there and do not wrap."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in rows[0] if rows else ():
        number = column in right
        table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        table.add_row(*map(shown, row.values()))
    screen = Console(width=None if sys.stdout.isatty() else 10_000, markup=False, emoji=False)
    with screen.capture() as text:  # rich itself would end with 1, an alarm, after a broken pipe
        screen.print(table)
    print(text.get() if rows else "", end="")


def print_data(form: str, name: str, rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Rows as csv, or as a list of this name in JSON."""
    if form == "json":
        print(to_json({name: rows}, indent=1), flush=True)
        return
    write_csv(sys.stdout, columns, rows)
    sys.stdout.flush()


def write_csv(file: IO[str], columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes these columns of the rows, with cells that no spreadsheet takes for formulas."""
    writer = csv.DictWriter(file, list(columns), extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)


def print_recordings(diagnoses: Diagnoses) -> None:
    print_table(diagnoses.table(), right=("confidence", "agreement", "unfamiliar"))


def print_decision(model: Predictor) -> None:
    """The recommendation for a model, unless it is simply to be used."""
    if model.decision.action != "use" or model.decision.reasons:
        print_note(f"of the run that made this model: {model.decision.sentence}")


def reading_bar(description: str = "reading") -> Callable[[Iterable[Any]], Iterable[Any]]:
    """A progress bar of recordings that are read, or files that are downloaded."""
    from rich.console import Console
    from rich.progress import track

    return partial(track, description=description, console=Console(stderr=True), transient=True)
