"""Diagnosis without any training: `diagnose`."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bearcat.cli.model import print_note, put_csv, put_json, to_pipe
from bearcat.cli.options import Channel, console
from bearcat.errors import InputError, suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bearcat.diagnosis.physical import PhysicalDiagnosis

Order = Annotated[float | None, typer.Option(help="In place of a bearing: its order, a multiple of the shaft's speed.")]


def diagnose(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Recordings, or folders of them.")],
    rpm: Annotated[float | None, typer.Option(help="Speed of the shaft; it may be off by 3 %.")] = None,
    bearing: Annotated[
        str | None,
        typer.Option(metavar="6205", help="A designation, or balls=9,ball=7.94,pitch=39.04 (mm)."),
    ] = None,
    bpfo: Order = None,
    bpfi: Order = None,
    bsf: Order = None,
    ftf: Order = None,
    channel: Channel = None,
    rate: Annotated[float | None, typer.Option(min=1e-9, help="In Hz, of files that do not say their rate.")] = None,
    form: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
    png: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Draw the evidence of each recording here.")
    ] = None,
) -> None:
    """Diagnose recordings from speed and bearing alone: healthy, inner race, outer race, ball, or cannot tell.

    Nothing is trained. Exit status: 0 no fault found, 1 a fault, 2 no fault but a file could not be used.
    """
    from bearcat.deploy.diagnose import COLUMNS, diagnose_recording, known_orders, row
    from bearcat.deploy.predict import find_recordings

    if form not in ("table", "csv", "json"):
        raise InputError(f"--format: unknown choice '{form}'{suggest(form, ('table', 'csv', 'json'))}")
    if rpm is not None and not 0 < rpm < inf:
        raise InputError(f"--rpm: must be a positive number, not {rpm:g}")
    orders = known_orders(bearing, {"BPFO": bpfo, "BPFI": bpfi, "BSF": bsf, "FTF": ftf})
    found = failed = 0
    drawn: Counter[str] = Counter()
    printer = {"csv": put_csv(COLUMNS), "json": put_json("recording")}.get(form) or _put_table()
    with to_pipe(), printer as put:
        for recording in find_recordings(files, channel=channel):
            try:
                diagnosis = diagnose_recording(recording, rpm, orders, rate)
                if png is not None:
                    _draw(diagnosis, png, drawn)
            except InputError as error:
                failed += 1
                print(f"problem: {error.for_command_line}", file=sys.stderr)
                continue
            for note in diagnosis.notes:
                print_note(f"{diagnosis.recording}: {note}")
            found += diagnosis.state not in (None, "healthy")
            put(row(diagnosis) if form == "csv" else diagnosis.to_dict())
    if found or failed:
        raise typer.Exit(1 if found else 2)


@contextmanager
def _put_table() -> Iterator[Callable[[dict[str, Any]], None]]:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("recording", "state", "confidence", "evidence"):
        table.add_column(column, justify="right" if column == "confidence" else "left", overflow="fold")
    yield lambda row: table.add_row(
        row["recording"], row["state"], f"{100 * row['confidence']:.0f} %",
        row["reason"] + ("" if row["familiar"] else " (unlike what this was made from)"),
    )  # fmt: skip
    if table.row_count:
        console().print(table)


def _draw(diagnosis: PhysicalDiagnosis, folder: Path, drawn: Counter[str]) -> None:
    """A picture called after the file; later ones of the same name get a number."""
    from bearcat.report.drawing import file_name
    from bearcat.report.evidence_figure import draw_evidence
    from bearcat.storage import write_atomically

    name = file_name(Path(diagnosis.recording).stem)
    drawn[name] += 1
    number = f"-{drawn[name]}" if drawn[name] > 1 else ""
    write_atomically(folder / f"{name}{number}.png", draw_evidence(diagnosis).render("png"))
