"""What goes on until it is stopped: `watch FOLDER`, with the commands for its store, `serve` and `mcp`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from bearcat import cli
from bearcat.cli import Commands, print_data, print_lines, print_note, print_table, takes, write_csv
from bearcat.errors import InputError, to_json
from bearcat.settings import ServeRequest, WatchRequest

if TYPE_CHECKING:
    from bearcat.watch.snapshot import Fleet, PointStatus
    from bearcat.watch.store import Store

FOLDER = "FOLDER"


class FolderOrCommand(cli.Group):
    """`bearcat watch FOLDER` beside `bearcat watch acknowledge`: what is no command is a folder."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands and args[0] != FOLDER:
            return super().resolve_command(ctx, args)
        return "", self.commands[FOLDER], args


watch = Commands(
    cls=FolderOrCommand, add_help_option=False, context_settings={"ignore_unknown_options": True},
    help="Watch machines over time and alarm at a stated rate.",
)  # fmt: skip

StorePlace = Annotated[str, Argument(metavar="STORE", help="The store: a file, or postgresql://user@host/database.")]
Whose = Annotated[str, Argument(metavar="MACHINE[/POINT]", help="A machine, or a point of it.")]
Note = Annotated[str, Option(metavar="TEXT", help="A sentence to keep with it.")]
Folder = Annotated[Path, Argument(metavar="FOLDER", help="Holds MACHINE/POINT/TIME.ext, or a manifest.csv.")]
StoreFile = Annotated[str, Option(metavar="FILE", help="A file, or postgresql://user@host/database.")]
Once = Annotated[bool, Option("--once", help="Stop when all files are read.")]
Address = "Send events to this address (apprise: mailto://…); repeat for more."


@watch.command(FOLDER, hidden=True)
@takes(WatchRequest)
def watch_folder(
    folder: Folder,
    store: StoreFile,
    request: WatchRequest,
    once: Once = False,
    form: cli.Format = "table",
    notify: Annotated[list[str] | None, Option(metavar="URL", envvar="BEARCAT_NOTIFY", help=Address)] = None,
) -> None:
    """Watch the recordings below a folder and print its machines, worst first; read files as they arrive.

    Exit status: 0 all ok, 1 an alarm, 3 something to check or without signal, 2 bad input.
    Other commands: bearcat watch acknowledge, baseline, forget, export.
    """
    from bearcat.watch.notify import Notifier
    from bearcat.watch.watching import watching_into

    notifier = Notifier(notify or (), print_note)
    with watching_into(store, folder, request, notifier, print_note) as watching:
        if sys.stderr.isatty():
            watching.progress = cli.reading_bar()
        watching.look()
        print_fleet(fleet := watching.store.fleet(), form)
        if not once:
            watching.show, watching.progress = partial(print_change, form=form), iter
            with suppress(KeyboardInterrupt):
                watching.go_on()
            fleet = watching.store.fleet()
        if not notifier.send(watching.store, hurry=True):
            print_note("some events are not sent yet; the next bearcat watch with the same options sends them")
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


def print_change(status: PointStatus, form: str) -> None:
    """One line for a point whose status has changed."""
    from bearcat.watch.snapshot import Fleet, written_time

    if form == "json":
        print(to_json(Fleet([status]).rows()[0]), flush=True)
        return
    reasons = f": {'; '.join(status.reasons)}" if status.reasons else ""
    print_lines(f"{written_time(status.time)} {status.machine}/{status.point} {status.status}{reasons}", flush=True)


@contextmanager
def _writing(store: str, name: str) -> Iterator[tuple[Store, str, str | None]]:
    """The store, and the machine and point that a name is of; names of machines may hold slashes themselves."""
    from bearcat.watch.store import Store

    with Store.open(store, write=True) as opened:
        machine, slash, point = name.rpartition("/")
        yield (opened, machine, point) if slash and not opened.fleet(name) else (opened, name, None)


@watch.command()
def acknowledge(store: StorePlace, name: Whose, note: Note = "") -> None:
    """Acknowledge a machine's alarms. They notify again only if they grow."""
    with _writing(store, name) as (opened, machine, point):
        number = opened.acknowledge(machine, point, note)
    print_lines(f"{name}: points acknowledged: {number}")


@watch.command()
def baseline(
    store: StorePlace, name: Annotated[str, Argument(metavar="MACHINE/POINT", help="A point.")], note: Note = ""
) -> None:
    """Learn a baseline anew from the next recordings, after a repair or with another sensor."""
    with _writing(store, name) as (opened, machine, point):
        if point is None:
            raise InputError(f"{name}: name a point of the machine too, as MACHINE/POINT")
        print_lines(f"{name}: {opened.relearn(machine, point, note).sentence}")


@watch.command()
def forget(
    store: StorePlace, name: Whose, yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False
) -> None:  # fmt: skip
    """Remove a machine or a point with its history. Recordings that are still in the folder are read again."""
    with _writing(store, name) as (opened, machine, point):
        if not yes and not typer.confirm(f"Remove {name} and its history from {opened.name}?"):
            raise InputError("nothing was removed")
        number = opened.forget(machine, point)
    print_lines(f"{name}: points removed: {number}")


@watch.command()
def export(
    store: StorePlace,
    out: Annotated[Path, Option(metavar="FILE", help="The file to write; its name ends in .csv.")],
) -> None:
    """Write all measurements of a store as csv."""
    from bearcat.storage import drafted
    from bearcat.watch.snapshot import MEASUREMENTS, Fleet
    from bearcat.watch.store import Store

    if out.suffix.lower() != ".csv":
        raise InputError(f"--out: {out}: the name must end in .csv")
    columns = dict.fromkeys((*Fleet.columns, "recording", "late", *MEASUREMENTS))
    with Store.open(store) as opened, drafted(out) as draft, draft.open("x", newline="", encoding="utf-8") as file:
        write_csv(file, columns, opened.rows())
    print_lines(f"All measurements: {out}")


@takes(ServeRequest)
def serve(
    request: ServeRequest,
    model: Annotated[Path | None, Argument(metavar="MODEL", help="A model; without it, as diagnose.")] = None,
) -> None:
    """Diagnose over HTTP, with a page to drop recordings on. Ctrl-C stops it (docs/deploy.md)."""
    cli.use_one_core()
    from bearcat.deploy.opened import open_model
    from bearcat.deploy.serve import LOCAL
    from bearcat.deploy.serve import serve as run

    if request.host not in LOCAL:
        print_note(f"everyone who can reach {request.host} may send requests; a reverse proxy can restrict that")
    fleet = None
    if request.store is not None:
        from bearcat.report.fleet import fleet_pages

        fleet = fleet_pages(request.store)

    def started(address: str) -> None:
        models = [] if fleet is not None and model is None else [f"{model or 'bearcat diagnose'} at {address}"]
        machines = [] if fleet is None else [f"watched machines at {address}/fleet"]
        print(f"Serving {' and '.join(models + machines)} (Ctrl-C stops it)", flush=True)

    opened = None
    if model is not None:
        opened = open_model(model)
        cli.print_decision(opened)
    run(opened, request, started, fleet)


def mcp(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Recordings that the assistant may ask about.")],
    store: Annotated[
        str | None, Option(metavar="STORE", help="The store of bearcat watch, to ask about its machines too.")
    ] = None,
) -> None:
    """Let an assistant ask about recordings and machines (MCP)."""
    from bearcat.deploy.assistant import make_assistant

    make_assistant(folder, store).run("stdio")
