"""The command line: parse, call, print. This module orders the commands and handles all errors.

Exit status: 0 all ok; 1 at least one alarm; 3 no alarm, but something to check; 2 bad input, nothing decided, in one
sentence on standard error (below a traceback where a user's own code raised an error); 70 a bug, with a traceback to
report; 130 interrupted.
`predict` and `diagnose` decide on recordings, `watch` on points of machines; other commands end with 0 when
they are done.

Commands are functions, a module for each group of them. Nothing heavy is imported until a command needs it.
"""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer import Option
from typer.core import TyperGroup

from bearcat.cli import bench, data, watch
from bearcat.cli.model import diagnose, export, mcp, predict, serve
from bearcat.cli.options import refuse_removed
from bearcat.cli.report import report
from bearcat.cli.train import adapt, check, methods
from bearcat.errors import InputError
from bearcat.names import shown

INTERRUPTED, CLOSED_PIPE = 130, 141  # the exit status after Ctrl-C, and after SIGPIPE as shells have it
BUG = 70  # after an error in bearcat itself; EX_SOFTWARE of sysexits.h

app = typer.Typer(
    name="bearcat", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Bearing fault diagnosis under domain shift, with confidence one can act on.",
)  # fmt: skip
for command in (diagnose, adapt, check, predict, report, export, serve, mcp, methods):  # in the order of the help
    app.command()(command)
app.add_typer(watch.commands, name="watch")
app.add_typer(data.commands, name="data")
app.add_typer(bench.commands, name="bench")


def _once(command: Any) -> Any:
    """The command, and those below it, with an error for an option that was removed, or is given twice and takes one
    value.
    """
    parse = command.parse_args

    def parse_args(context: Any, words: list[str]) -> list[str]:
        if isinstance(command, TyperGroup):
            refuse_removed(None, words[:1], command.commands)
        else:
            refuse_removed(command.name, words, {name for option in command.params for name in option.opts})
        order = command.make_parser(context).parse_args(args=list(words))[2]
        for option, times in Counter(order).items():
            if times > 1 and option.param_type_name == "option" and not option.multiple:
                raise InputError(f"{option.opts[0]}: is given {times} times; give it once")
        return list(parse(context, words))

    command.parse_args = parse_args
    for each in command.commands.values() if isinstance(command, TyperGroup) else ():
        _once(each)
    return command


@cache
def _command_line(name: str = "") -> Any:
    """The command of this name alone, else all of them, whose making takes most of the time of a small one; a process
    that runs several makes them once.
    """
    named = [each for each in app.registered_commands if each.callback is not None and each.callback.__name__ == name]
    if not named:
        return _once(typer.main.get_command(app))
    alone = copy(app)
    alone.registered_commands, alone.registered_groups = named, []
    return _once(typer.main.get_group(alone))


def main() -> None:
    """Runs the command line; an error the user can correct is printed as one sentence, without a traceback."""
    _guard_streams()
    try:
        try:
            _command_line(*sys.argv[1:2])()
        finally:
            sys.stdout.flush()
        return
    except InputError as error:
        status, sentence = 2, error.for_command_line
    except MemoryError:
        status, sentence = 2, "this needs more memory than there is; use fewer or shorter recordings"
    except Exception as error:
        status, sentence = _explain(error)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:  # what typer makes of Ctrl-C inside a command
            raise
        status, sentence = INTERRUPTED, "interrupted; run the same command again to go on"
    print(f"bearcat: {shown(sentence)}", file=sys.stderr)
    sys.exit(status)


def _explain(error: Exception) -> tuple[int, str]:
    """Exit status and sentence of an error that nobody expected; where code is at fault the traceback is printed."""
    from bearcat.plugins import error_sentence, raised_in, traceback_text

    own = raised_in(error) is not None
    if isinstance(error, OSError) and not own:  # such as a full disk
        reason = os.strerror(error.errno) if error.errno else str(error)
        return 2, f"{error.filename or 'a file'}: {reason}; put that right and run it again"
    print(traceback_text(error), end="", file=sys.stderr)
    if own:
        return 2, f"{error_sentence(error)}; correct it there, the lines above say how it was reached"
    return BUG, "this is a bug in bearcat; please report it with the lines above"


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
