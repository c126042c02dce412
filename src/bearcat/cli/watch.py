"""Machines over time: `bearcat watch FOLDER`, and `acknowledge`, `baseline`, `forget` and `export` of its store."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from bearcat.cli import options
from bearcat.cli.options import FORMATS, check_choice, print_lines, print_note, print_table
from bearcat.errors import InputError
from bearcat.names import csv_cell, to_json
from bearcat.ranges import check_range

if TYPE_CHECKING:
    from bearcat.watch.snapshot import PointStatus
    from bearcat.watch.status import Fleet
    from bearcat.watch.store import Store

INTERRUPTED = 130
A_YEAR = {"year": 1.0, "month": 12.0, "week": 365.25 / 7, "day": 365.25}
SECONDS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
FOLDER = "FOLDER"


class FolderOrCommand(TyperGroup):
    """`bearcat watch FOLDER` beside `bearcat watch acknowledge`: what is no command is a folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands and args[0] != FOLDER:
            return super().resolve_command(ctx, args)
        return "", self.commands[FOLDER], args


commands = typer.Typer(
    cls=FolderOrCommand, add_help_option=False, context_settings={"ignore_unknown_options": True},
    help="Watch machines over time: recordings as they arrive, baselines, and alarms at a stated rate.",
)  # fmt: skip

StorePlace = Annotated[str, Argument(metavar="STORE", help="The store: a file, or postgresql://user@host/database.")]
Whose = Annotated[str, Argument(metavar="MACHINE[/POINT]", help="A machine, or a point of it.")]
Note = Annotated[str, Option(help="A sentence to keep with it.")]


@commands.command(FOLDER, hidden=True)
def watch(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="MACHINE/POINT/TIME.ext lie below it, or a manifest.csv.")],
    store: Annotated[str, Option(metavar="FILE", help="Keeps all; a file, or postgresql://user@host/database.")],
    once: Annotated[bool, Option("--once", help="Stop when all files are read, instead of waiting for more.")] = False,
    form: options.Format = "table",
    false_alarms: Annotated[
        str | None,
        Option(metavar="1/year", help="How many false alarms of each point are accepted.  \\[default: 1/year]"),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(metavar="30|7d", help="Recordings, or days, from which a baseline is learnt.  \\[default: 30]"),
    ] = None,
    healthy: Annotated[
        str | None,
        Option(metavar="PATH|TIME", help="Recordings below this path, or until this time, are known to be healthy."),
    ] = None,
    speeds: Annotated[
        str | None, Option(metavar="990,1480", help="Operating states by their rpm.  \\[default: found]")
    ] = None,
    loads: Annotated[
        str | None, Option(metavar="0,50,100", help="Operating states by their load.  \\[default: found]")
    ] = None,
    rpm: Annotated[
        float | None, Option(help="Speed of the shaft in rpm; it is checked, and measured where it is not given.")
    ] = None,
    bearing: options.Bearing = None,
    rate: options.OwnRate = None,
    channel: options.Channel = None,
    channels: options.Channels = None,
    trust_speed: options.TrustSpeed = False,
    timezone: Annotated[
        str | None, Option(metavar="Europe/Berlin", help="Of times that do not say theirs.  \\[default: UTC]")
    ] = None,
    jobs: Annotated[int, Option(min=1, help="Processes that measure.")] = 1,
    notify: Annotated[
        list[str] | None,
        Option(
            metavar="URL",
            envvar="BEARCAT_NOTIFY",
            help="Send events to this address of apprise: mailto://…, json://…, mqtt://…; repeat for more.",
        ),
    ] = None,
) -> None:
    """Watch the recordings below a folder and print its machines, worst first; go on as files arrive.

    Exit status: 0 all ok or learning, 1 an alarm, 3 something to check or without signal, 2 bad input.
    Other commands: bearcat watch acknowledge, baseline, forget, export.
    """
    from bearcat.data.catalogue import checked_root
    from bearcat.watch.notify import Notifier
    from bearcat.watch.store import Store
    from bearcat.watch.watching import choose_rule, ending_cleanly, open_watching

    check_choice("--format", form, FORMATS)
    for name, value in (("rpm", rpm), ("rate", rate)):
        check_range(name, value, field=name)
    rule = parsed_rule(false_alarms, baseline, speeds, loads)
    checked_root(folder)  # before there is a store
    notifier = Notifier(notify, print_note) if notify else None
    with Store.open(store, create=True) as opened:
        if sentence := choose_rule(opened, rule):
            print_note(sentence)
        watching = open_watching(
            folder, opened, rpm=rpm, bearing=bearing, rate=rate, channel=channel, channels=channels,
            trust_speed=trust_speed, healthy=healthy, timezone=timezone, jobs=jobs,
        )  # fmt: skip
        watching.say, watching.notifier = print_note, notifier
        if sys.stderr.isatty():
            watching.progress = options.reading_bar()
        with ending_cleanly(watching.stop):
            watching.once()
            print_fleet(fleet := opened.fleet(), form)
            if not once and not watching.stop.is_set():
                watching.show, watching.progress = partial(print_change, form=form), iter
                watching.on()
                fleet = opened.fleet()
        if notifier is not None and not notifier.send(opened, hurry=True):
            print_note("some events are not sent yet; the next bearcat watch with the same options sends them")
        raise typer.Exit(exit_status(fleet, watching.problems, once and watching.stop.is_set()))


def exit_status(fleet: Fleet, problems: int, interrupted: bool) -> int:
    """A file that could not be used is to be checked; where there is nothing else, nothing was decided."""
    if interrupted:
        return INTERRUPTED
    if not fleet:
        print_note("no recording was read; put them into MACHINE/POINT/TIME.wav below the folder", "problem")
        return 2
    return fleet.exit_status or (3 if problems else 0)


def parsed_rule(
    false_alarms: str | None, baseline: str | None, speeds: str | None = None, loads: str | None = None
) -> dict[str, Any]:
    """What is wished of the rule: false alarms such as 1/year, a baseline of 30 recordings or 7d, speeds 990,1480."""
    from bearcat.watch.usual import WatchRule

    rule = dict[str, Any]()
    if false_alarms is not None:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*/\s*(year|month|week|day)", false_alarms.strip())
        if found is None:
            raise InputError(f"--false-alarms: '{false_alarms}' is no rate; write it as 1/year, 0.2/year or 1/month")
        rule["false_alarms"] = float(found[1]) * A_YEAR[found[2]]
    if baseline is not None:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw]?)", baseline.strip())
        if found is None or float(found[1]) == 0 or (not found[2] and not float(found[1]).is_integer()):
            raise InputError(f"--baseline: '{baseline}' is neither a number of recordings nor days; write 30 or 7d")
        if found[2]:
            rule["period"] = float(found[1]) * SECONDS[found[2]]
        else:
            rule["baseline"] = int(found[1])
    for name, text in (("speeds", speeds), ("loads", loads)):
        if text is not None:
            numbers = re.fullmatch(r"\d+(\.\d+)?(,\d+(\.\d+)?)*", text)
            if numbers is None:
                raise InputError(f"--{name}: '{text}' is no list of numbers; write it as 990,1480")
            rule[name] = tuple(map(float, text.split(",")))
    WatchRule(**rule)  # checks their ranges, before there is a store
    return rule


def print_fleet(fleet: Fleet, form: str) -> None:
    """Machines, worst first; the first line of a table is the answer."""
    import csv

    if form == "json":
        print(to_json({"points": fleet.rows()}, indent=1), flush=True)
    elif form == "csv":
        rows = [row | {"reasons": "; ".join(row["reasons"])} for row in fleet.rows()]
        writer = csv.DictWriter(sys.stdout, fleet.columns)
        writer.writeheader()
        writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
        sys.stdout.flush()
    else:
        print_lines(fleet.summary, flush=True)
        if rows := fleet.table():
            print_table(rows, set(rows[0]) - {"confidence"}, ("status", "since", "confidence"))
    if form != "table":
        print_note(fleet.summary)


def print_change(status: PointStatus, form: str) -> None:
    """One line for a point whose status has changed."""
    from bearcat.watch.status import Fleet, written_time

    if form == "json":
        print(to_json(Fleet([status]).rows()[0]), flush=True)
        return
    reasons = f": {'; '.join(status.reasons)}" if status.reasons else ""
    print_lines(f"{written_time(status.time)} {status.machine}/{status.point} {status.status}{reasons}", flush=True)


def _whose(store: Store, name: str) -> tuple[str, str | None]:
    """Machine and point that a name is of; names of machines may hold slashes themselves."""
    machine, slash, point = name.rpartition("/")
    return (machine, point) if slash and not store.fleet(name) else (name, None)


@commands.command()
def acknowledge(store: StorePlace, name: Whose, note: Note = "") -> None:
    """Take notice of a machine's alarms: they are kept, but notify nobody again unless they grow."""
    from bearcat.watch.store import Store

    with Store.open(store, write=True) as opened:
        machine, point = _whose(opened, name)
        number = opened.acknowledge(machine, point, note)
    print_lines(f"{name}: {number} {'point' if number == 1 else 'points'} acknowledged.")


@commands.command()
def baseline(
    store: StorePlace,
    name: Annotated[str, Argument(metavar="MACHINE/POINT", help="A point.")],
    since: Annotated[
        str | None,
        Option("--from", metavar="TIME", help="When the repair was, such as 2024-05-01T10:30.  \\[default: now]"),
    ] = None,
    note: Note = "",
) -> None:
    """Learn the baseline of a point anew from the next recordings on, after a repair or with another sensor."""
    from bearcat.data.times import time_in
    from bearcat.watch.store import Store

    when = None if since is None else time_in(since)
    if since is not None and when is None:
        raise InputError(f"--from: '{since}' is no time; write it as 2024-05-01T10:30")
    with Store.open(store, write=True) as opened:
        machine, point = _whose(opened, name)
        if point is None:
            raise InputError(f"{name}: name a point of the machine too, as MACHINE/POINT")
        print_lines(f"{name}: {opened.relearn(machine, point, note, when).sentence}")


@commands.command()
def forget(
    store: StorePlace, name: Whose, yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False
) -> None:  # fmt: skip
    """Remove a machine, or a point of it, with its history; recordings that are still in the folder are read again."""
    from bearcat.watch.store import Store

    with Store.open(store, write=True) as opened:
        machine, point = _whose(opened, name)
        if not yes and not typer.confirm(f"Remove {name} and its history from {opened.name}?"):
            raise InputError("nothing was removed")
        number = opened.forget(machine, point)
    print_lines(f"{name}: {number} {'point' if number == 1 else 'points'} removed.")


@commands.command()
def export(
    store: StorePlace,
    out: Annotated[Path, Option(metavar="FILE", help="The file to write; its name ends in .parquet or .csv.")],
) -> None:
    """Write every measurement of a store as a table, a row for each point and time."""
    from bearcat.watch.export import write_table
    from bearcat.watch.store import Store

    with Store.open(store) as opened:
        rows = write_table(opened, out)
    print(f"{out}: {rows} rows")
