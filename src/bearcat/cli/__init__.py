"""The command line: parse, call, print. This module orders the commands and handles all errors.

Exit status: 0 all ok; 1 at least one alarm; 3 no alarm, but something to check; 2 bad input, nothing decided, in one
sentence on standard error; 70 a bug, with a traceback to report; 130 interrupted.
`predict` and `diagnose` decide on recordings, `watch` on points of machines; other commands end with 0 when
they are done.

Commands are functions, a module for each group of them. Nothing heavy is imported until a command needs it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer
from typer import Option

from bearcat.cli import bench, data, watch
from bearcat.cli.model import diagnose, export, predict, serve
from bearcat.cli.report import report
from bearcat.cli.train import adapt, check, recipes
from bearcat.errors import InputError
from bearcat.names import shown

INTERRUPTED, CLOSED_PIPE = 130, 141  # the exit status after Ctrl-C, and after SIGPIPE as shells have it
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
    _guard_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
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
    print(f"bearcat: {shown(sentence)}", file=sys.stderr)
    sys.exit(status)


class _Guarded(io.TextIOWrapper):
    """A standard stream whose failures decide nothing: typer would end with 1, which is an alarm.

    A closed pipe ends the command. A full disk is an error for standard output; standard error loses its lines.
    """

    def __init__(self, stream: TextIO, needed: bool) -> None:
        super().__init__(
            stream.buffer, stream.encoding, errors="backslashreplace", line_buffering=stream.isatty() or not needed
        )
        self.needed = needed

    def write(self, text: str) -> int:
        with self._failing():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._failing():
            super().flush()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for what is written later
            if self.needed and isinstance(error, BrokenPipeError):
                sys.exit(CLOSED_PIPE)
            if self.needed:
                raise


def _guard_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (until the end)
        elif stream is getattr(sys, f"__{name}__"):
            stream.flush()
            setattr(sys, name, _Guarded(stream, name == "stdout"))


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from bearcat import __version__

        print(f"bearcat {__version__}")
        raise typer.Exit
