"""The command line: parse, call, print. Bad input is one sentence on standard error and exit status 2.

Commands are functions, a module for each group of them. This module orders them and handles all errors.
Nothing heavy is imported until a command needs it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bearcat.cli import bench, data
from bearcat.cli.model import export, predict, serve
from bearcat.cli.train import adapt, recipes
from bearcat.errors import InputError

INTERRUPTED = 130  # the exit status after Ctrl-C

app = typer.Typer(
    name="bearcat", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Bearing fault diagnosis under domain shift, with confidence one can act on.",
)  # fmt: skip
for command in (adapt, predict, export, serve, recipes):  # in the order of the help
    app.command()(command)
app.add_typer(data.commands, name="data")
app.add_typer(bench.commands, name="bench")


def main() -> None:
    """Runs the command line; an error the user can correct is printed as one sentence, without a traceback."""
    try:
        app()
    except InputError as error:
        print(f"bearcat: {error.for_command_line}", file=sys.stderr)
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
