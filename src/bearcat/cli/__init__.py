"""The command line: parse, call, print. This module orders the commands and handles all errors.

Exit status: 0 all ok; 1 at least one alarm; 3 no alarm, but something to check; 2 bad input, nothing decided, in one
sentence on standard error (below a traceback where a user's own code raised an error); 70 a bug, with a traceback to
report; 130 interrupted.
`predict` and `diagnose` decide on recordings, `watch` on points of machines; other commands end with 0 when
they are done.

Commands are functions in three modules; the module of a command is imported when the command is called, and anything
heavy when it needs that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from bearcat.cli.options import Commands
from bearcat.errors import InputError, shown

INTERRUPTED, CLOSED_PIPE = 130, 141  # the exit status after Ctrl-C, and after SIGPIPE as shells have it
BUG = 70  # after an error in bearcat itself; EX_SOFTWARE of sysexits.h

HOMES = {  # the module of each command, in the order of the help
    "diagnose": "recordings", "adapt": "train", "check": "train", "predict": "recordings", "report": "recordings",
    "export": "train", "serve": "watch", "mcp": "watch", "methods": "train", "watch": "watch", "data": "recordings",
    "bench": "train",
}  # fmt: skip


def application(words: Sequence[str] = ()) -> Commands:
    """The command line; where the first word is a command, with that command alone."""
    app = Commands(name="bearcat", help="Bearing fault diagnosis under domain shift, with confidence one can act on.")
    app.callback(invoke_without_command=True)(_top)
    for name in [word for word in words[:1] if word in HOMES] or HOMES:
        command = getattr(import_module(f"bearcat.cli.{HOMES[name]}"), name)
        if isinstance(command, Commands):
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
        sys.stdout.flush()
    except Exception as error:
        status, sentence = _explain(error)
    except KeyboardInterrupt:
        status, sentence = INTERRUPTED, "interrupted; run the same command again to go on"
    with suppress(OSError):  # a full disk may hold standard error too
        if sentence:
            print(f"bearcat: {shown(sentence)}", file=sys.stderr)
    sys.exit(status)


def run(words: list[str]) -> int:
    """Runs one command; its exit status."""
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
    from bearcat.plugins import error_sentence, raised_in, traceback_text

    plugin = raised_in(error) is not None
    if isinstance(error, OSError) and not plugin:  # such as a full disk
        reason = os.strerror(error.errno) if error.errno else str(error)
        return 2, f"{error.filename or 'a file'}: {reason}; put that right and run it again"
    with suppress(OSError):
        print(traceback_text(error), end="", file=sys.stderr)
    if plugin:
        return 2, f"{error_sentence(error)}; correct it there, the lines above say how it was reached"
    return BUG, "this is a bug in bearcat; please report it with the lines above"


def _top(version: Annotated[bool, Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from bearcat import __version__

        print(f"bearcat {__version__}")
        raise typer.Exit
