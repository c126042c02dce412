"""What goes on until it is stopped: `watch FOLDER`, with the commands for its store, `serve` and `mcp`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from bearcat import cli
from bearcat.cli import print_data, print_lines, print_note, print_table, takes, write_csv
from bearcat.errors import InputError
from bearcat.settings import ServeRequest, WatchRequest

if TYPE_CHECKING:
    from bearcat.watch.snapshot import Fleet, PointStatus

FOLDER = "FOLDER"


class FolderOrCommand(TyperGroup):
    """`bearcat watch FOLDER` beside `bearcat watch acknowledge`: what is no command is a folder."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands and args[0] != FOLDER:
            return super().resolve_command(ctx, args)
        return "", self.commands[FOLDER], args


watch = cli.group(
    "Watch machines over time and alarm at a stated rate.",
    cls=FolderOrCommand, add_help_option=False, context_settings={"ignore_unknown_options": True},
)  # fmt: skip

StorePlace = Annotated[str, Argument(metavar="STORE", help="The store: a file, or postgresql://user@host/database.")]
Whose = Annotated[str, Argument(metavar="MACHINE[/POINT]", help="A machine, or a point of it.")]
Note = Annotated[str, Option(metavar="TEXT", help="A sentence to keep with it.")]
Address = "Send events to this address (apprise: mailto://…); repeat for more."


@watch.command(FOLDER, hidden=True)
@takes(WatchRequest)
def watch_folder(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Holds MACHINE/POINT/TIME.ext, or a manifest.csv.")],
    store: Annotated[str, Option(metavar="FILE", help="A file, or postgresql://user@host/database.")],
    request: WatchRequest,
    once: Annotated[bool, Option("--once", help="Stop when all files are read.")] = False,
    form: cli.Format = "table",
    notify: Annotated[list[str] | None, Option(metavar="URL", envvar="BEARCAT_NOTIFY", help=Address)] = None,
) -> None:
    """Watch the recordings below a folder and print its machines, worst first; read files as they arrive.

    Exit status: 0 all ok, 1 an alarm, 3 something to check or without signal, 2 bad input.
    Other commands: bearcat watch acknowledge, baseline, forget, export.
    """
    from bearcat.watch.watching import POLL, watching_into

    with watching_into(store, folder, request, print_note, notify or ()) as watching:
        if sys.stderr.isatty():
            watching.progress = cli.reading_bar()
        watching.look()
        print_fleet(fleet := watching.store.fleet(), form)
        if not once:
            watching.progress = iter
            with suppress(KeyboardInterrupt):
                while True:
                    time.sleep(POLL)
                    for status in watching.look():
                        print_change(status)
            fleet = watching.store.fleet()
        if not fleet:
            raise InputError("no recording was read; put them into MACHINE/POINT/TIME.wav below the folder")
        # A file that could not be used is to be checked.
        raise typer.Exit(fleet.exit_status or (3 if watching.problems else 0))


def print_fleet(fleet: Fleet, form: str) -> None:
    """Machines, worst first; the first line of a table is the answer."""
    if form == "table":
        print_lines(fleet.summary, flush=True)
        print_table(fleet.table(), right=("confidence", "level"))
        return
    print_data(form, "points", fleet.cells() if form == "csv" else fleet.rows(), fleet.columns)
    print_note(fleet.summary)


def print_change(status: PointStatus) -> None:
    """One line for a point whose status has changed."""
    from bearcat.watch.snapshot import written_time

    reasons = f": {'; '.join(status.reasons)}" if status.reasons else ""
    print_lines(f"{written_time(status.time)} {status.machine}/{status.point} {status.status}{reasons}", flush=True)


@watch.command()
def acknowledge(store: StorePlace, name: Whose, note: Note = "") -> None:
    """Acknowledge a machine's alarms. They notify again only if they grow."""
    from bearcat.watch.store import Store

    with Store.open(store, write=True) as opened:
        print_lines(f"{name}: points acknowledged: {opened.acknowledge(name, note)}")


@watch.command()
def baseline(store: StorePlace, name: Whose, note: Note = "") -> None:
    """Learn baselines anew from the next recordings, after a repair or with another sensor."""
    from bearcat.watch.store import Store

    with Store.open(store, write=True) as opened:
        print_lines(f"{name}: points that are learnt anew: {opened.relearn(name, note)}")


@watch.command()
def forget(store: StorePlace, name: Whose, yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False) -> None:
    """Remove a machine or a point with its history. Recordings that are still in the folder are read again."""
    from bearcat.watch.store import Store

    with Store.open(store, write=True) as opened:
        if not yes and not typer.confirm(f"Remove {name} and its history from {opened.name}?"):
            raise InputError("nothing was removed")
        print_lines(f"{name}: points removed: {opened.forget(name)}")


@watch.command()
def export(store: StorePlace) -> None:
    """Print all measurements of a store as csv."""
    from bearcat.watch.snapshot import MEASUREMENTS, Fleet
    from bearcat.watch.store import Store

    with Store.open(store) as opened:
        write_csv(sys.stdout, dict.fromkeys((*Fleet.columns, "recording", *MEASUREMENTS)), opened.rows())


@takes(ServeRequest)
def serve(
    request: ServeRequest,
    model: Annotated[Path | None, Argument(metavar="MODEL", help="A model; without it, as diagnose.")] = None,
) -> None:
    """Diagnose over HTTP, with a page to drop recordings on. Ctrl-C stops it (docs/deploy.md)."""
    cli.use_one_core()
    from bearcat.deploy.opened import open_model
    from bearcat.deploy.serve import is_loopback
    from bearcat.deploy.serve import serve as run

    if not is_loopback(request.host):
        print_note(f"everyone who can reach {request.host} may send requests; a reverse proxy can restrict that")
    fleet = None
    if request.store is not None:
        from bearcat.report.fleet import served_page

        fleet = partial(served_page, request.store)
        fleet()  # what is wrong with the store is said at once

    def started(address: str) -> None:
        machines = "" if fleet is None else f" and watched machines at {address}/fleet"
        print(f"Serving {model or 'bearcat diagnose'} at {address}{machines} (Ctrl-C stops it)", flush=True)

    opened = None
    if model is not None:
        opened = open_model(model)
        cli.print_decision(opened)
    run(opened, request, started, fleet)


def mcp(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Recordings that the assistant may ask about.")],
    store: Annotated[str | None, Option(metavar="STORE", help="A store of watched machines.")] = None,
) -> None:
    """Let an assistant ask about recordings and machines (MCP)."""
    from bearcat.deploy.assistant import make_assistant

    make_assistant(folder, store).run("stdio")
