"""The command line: parse, call, print. This module orders the commands and handles all errors.

Exit status: 0 all ok; 1 at least one alarm; 3 no alarm, but something to check; 2 bad input, nothing decided, in one
sentence on standard error; 70 a bug, with a traceback to report; 130 interrupted.
`predict` and `diagnose` decide on recordings, `watch` on points of machines; other commands end with 0 when
they are done.

Commands are functions, a module for each group of them. Nothing heavy is imported until a command needs it.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer import Option

from bearcat.cli import bench, data, watch
from bearcat.cli.model import diagnose, export, predict, serve
from bearcat.cli.report import report
from bearcat.cli.train import adapt, check, recipes
from bearcat.errors import InputError

INTERRUPTED = 130  # the exit status after Ctrl-C
BUG = 70  # after an error in bearcat itself; EX_SOFTWARE of sysexits.h

app = typer.Typer(
    name="bearcat", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Bearing fault diagnosis under domain shift, with confidence one can act on.",
)  # fmt: skip
for command in (diagnose, adapt, check, predict, report, export, serve, recipes):  # in the order of the help
    app.command()(command)
app.add_typer(watch.commands, name="watch")
app.add_typer(data.commands, name="data")
app.add_typer(bench.commands, name="bench")


def main() -> None:
    """Runs the command line; an error the user can correct is printed as one sentence, without a traceback."""
    try:
        app()
        return
    except InputError as error:
        status, sentence = 2, error.for_command_line
    except OSError as error:  # such as a full disk
        reason = os.strerror(error.errno) if error.errno else str(error)
        status, sentence = 2, f"{error.filename or 'a file'}: {reason}; put that right and run it again"
    except MemoryError:
        status, sentence = 2, "this needs more memory than there is; use fewer or shorter recordings"
    except Exception:
        import traceback

        traceback.print_exc()
        status, sentence = BUG, "this is a bug in bearcat; please report it with the lines above"
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:  # what typer makes of Ctrl-C inside a command
            raise
        status, sentence = INTERRUPTED, "interrupted; run the same command again to go on"
    print(f"bearcat: {sentence}", file=sys.stderr)
    sys.exit(status)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from bearcat import __version__

        print(f"bearcat {__version__}")
        raise typer.Exit
