"""One page of what a path holds: `report`. Recordings, results of bearcat, or the store of `bearcat watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from bearcat.cli import options
from bearcat.cli.options import print_lines, print_note
from bearcat.errors import InputError


def report(
    path: Annotated[
        str,
        Argument(
            metavar="PATH",
            help="Recordings; what diagnose or predict wrote (json); adapt's folder; or the store of watch.",
        ),
    ],
    out: Annotated[Path, Option(help="The page to write.")] = Path("report.html"),
    model: Annotated[Path | None, Option(help="Of recordings: diagnose with this model, as predict does.")] = None,
    rpm: options.Rpm = None,
    bearing: options.Bearing = None,
    rate: options.OwnRate = None,
    channel: options.Channel = None,
    machine: Annotated[str | None, Option(help="Of a store: this machine alone, with all of its points.")] = None,
) -> None:
    """Write one page: the list, worst first, then the evidence of each alarm or check (docs/diagnose.md).

    Recordings are diagnosed as `diagnose` does; for its other options give the file of `diagnose --format json`. Of a
    store: watched machines and their trends (docs/watch.md).
    """
    from bearcat.report.pages import is_results, read_results, write_recordings_page, write_run_page

    if out.suffix.lower() == ".pdf":
        raise InputError(f"{out}: a page is HTML; write it as .html and print it from a browser", "out")
    place = Path(path)
    if place.suffix.lower() == ".csv" and place.is_file() and place.read_bytes()[:10] == b"recording,":
        raise InputError(f"{path}: is a table of results; write them with diagnose or predict, --format json")
    asked = {"model": model, "rpm": rpm, "bearing": bearing, "rate": rate, "channel": channel}
    given = [name for name, value in asked.items() if value is not None]
    finished = place.is_dir() and (place / "record.json").exists()
    stored = not finished and ("://" in path or _is_store(place))
    if given and (finished or stored or is_results(place)):
        raise InputError(f"--{given[0]}: is of recordings, and {path} holds results; leave it out")
    if machine is not None and not stored:
        raise InputError(f"--machine: is of a store, and {path} is none; leave it out")
    if stored:
        from bearcat.report.fleet import write_fleet_page
        from bearcat.watch.store import Store

        with Store.open(path) as opened:
            summary = write_fleet_page(opened, out, machine).summary
    elif finished:
        from bearcat.diagnosis.recording import Diagnoses
        from bearcat.report.results import read_result

        summary = Diagnoses(read_result(place).record.recordings).summary
        write_run_page(place, out)
    else:
        if is_results(place):
            found = read_results(place)
        else:
            from bearcat.api import diagnose

            found = diagnose([place], model=model, rpm=rpm, bearing=bearing, rate=rate, channel=channel)
        problems = [f"{name}: {problem}" for name, problem in found.problems.items()]
        if len(problems) == len(found):
            raise InputError(problems[0] if problems else f"{path}: holds no results; diagnose some recordings first")
        for problem in problems:
            print_note(problem, "problem")
        write_recordings_page(found, out, place.resolve().name if place.is_dir() else place.stem)
        summary = found.summary
    print_lines(summary)
    print(f"All of it on one page: {out}")


def _is_store(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
