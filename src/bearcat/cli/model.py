"""Diagnosing recordings, with a trained model or without: `predict`, `export`, `serve` and `diagnose`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import contextmanager
from math import exp, inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from bearcat.cli import options
from bearcat.cli.options import Names, console, plain_table, print_note, print_recordings
from bearcat.errors import InputError, suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from bearcat.data.stream import Stream
    from bearcat.deploy.metadata import Predictor
    from bearcat.deploy.predict import WindowPredictions
    from bearcat.diagnosis.physical import PhysicalDiagnosis

    Put = Callable[[dict[str, Any]], None]

FORMATS = ("table", "csv", "json")
CLOSED_PIPE = 141  # 128 + SIGPIPE
CSV_COLUMNS = {
    "recording": ("recording", "class", "nearest", "confidence", "agreement", "windows", "unfamiliar", "familiar",
                  "alarm", "line", "physics"),
    "window": ("recording", "start", "seconds", "class", "confidence", "familiar"),
}  # fmt: skip

Model = Annotated[Path, Argument(metavar="MODEL", help="A model's folder, or a file that ends in .onnx.")]
Alarm = Annotated[
    Names,
    Option(metavar="CLASS", help="This class is an alarm; repeat for more.  \\[default: all but healthy or normal]"),
]
Order = Annotated[float | None, Option(help="In place of a bearing: its order, a multiple of the shaft's speed.")]


def predict(
    model: Model,
    files: Annotated[list[Path], Argument(metavar="FILES", help="Recordings, folders of them, or a manifest.")],
    by: Annotated[str, Option(help="A line for each recording or each window.")] = "recording",
    form: options.Format = "table",
    rate: options.OwnRate = None,
    rpm: Annotated[
        float | None, Option(help="Speed of the shaft, where no file says its own: a number, as files are streamed.")
    ] = None,
    bearing: options.Bearing = None,
    channel: options.Channel = None,
    alarm: Alarm = None,
    min_confidence: Annotated[
        float, Option(min=0, max=1, help="A class diagnosed with less confidence is no alarm.")
    ] = 0.0,
    unfamiliar_alarm: Annotated[
        bool, Option(help="Whether a recording that looks like nothing the model was adapted to is an alarm.")
    ] = True,
    batch: Annotated[int, Option(min=1, help="Windows handed to the model at once.")] = 256,
) -> None:
    """Diagnose new recordings. Exit status: 0 nothing found, 1 an alarm, 2 no alarm but a file could not be used.

    Alarms are of recordings, whatever is printed. A file that cannot be used is reported, and the others go on.
    """
    from bearcat.data.bearing import find_bearing
    from bearcat.data.neighbours import Portrait, odd_recordings
    from bearcat.deploy.predict import alarm_classes, diagnose_found, find_recordings, open_model

    _check_choice("--by", by, CSV_COLUMNS)
    _check_choice("--format", form, FORMATS)
    _check_speed(rpm)
    geometry = None if bearing is None else find_bearing(bearing)
    opened = open_model(model)
    _print_doubts(opened)
    names = opened.classes
    alarms = alarm_classes(names, alarm)
    if not alarm and len(alarms) == len(names):
        print_note("no class is called healthy or normal, so each is an alarm; choose with --alarm")
    if opened.calibrated is False:
        print_note("the model's confidence is not calibrated (its card says why), so do not rely on it")
    if opened.familiarity is None:
        nothing = "the model does not know what is familiar, so an unfamiliar recording is no alarm"
        print_note(f"{nothing}; one made by bearcat adapt does")
    alarmed, failed, portraits = 0, 0, list[Portrait]()
    with _printer(form, by, CSV_COLUMNS[by], _put_table(by)) as put:

        def put_windows(stream: Stream, windows: WindowPredictions) -> None:
            for number, start in enumerate(windows.starts.tolist()):
                best = int(windows.log_probabilities[number].argmax())
                put({
                    "recording": stream.origin, "start": start,
                    "seconds": None if stream.rate is None else start / stream.rate,
                    "class": names[best], "confidence": min(exp(windows.log_probabilities[number, best]), 1.0),
                    "familiar": None if windows.unfamiliar is None else not bool(windows.unfamiliar[number]),
                })  # fmt: skip

        if rpm is None and opened.rpm and "rpm" in opened.needs:
            print_note(f"recordings that say no speed are taken to be at {opened.rpm:g} rpm, as those the model was"
                        " adapted to; --rpm sets another")  # fmt: skip
        if bearing is None and opened.bearing and "bearing" in opened.needs:
            print_note(f"recordings that say no bearing are taken to have {opened.bearing}, as those the model was"
                        " adapted to; --bearing sets another")  # fmt: skip
        for found in find_recordings(files, opened, channel):
            try:
                show = put_windows if by == "window" else None
                diagnosed = diagnose_found(opened, found, rate, rpm, geometry, batch, portraits, show)
            except InputError as error:
                failed += 1
                print(f"problem: {error.for_command_line}", file=sys.stderr)
                continue
            for note in diagnosed.notes:
                print_note(note)
            diagnosis = diagnosed.diagnosis
            is_alarm = diagnosis.is_alarm(names, alarms, min_confidence, unfamiliar_alarm)
            alarmed += is_alarm
            if by == "recording":
                probabilities = dict(zip(names, diagnosis.probabilities.tolist(), strict=True))
                put(diagnosed.to_dict() | {"alarm": is_alarm, "probabilities": probabilities})
    for sentence in odd_recordings(portraits):
        print_note(sentence)
    if alarmed or failed:
        raise typer.Exit(1 if alarmed else 2)


def _check_choice(option: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise InputError(f"{option}: unknown choice '{value}'{suggest(value, known)}")


def _check_speed(rpm: float | None) -> None:
    if rpm is not None and not 0 < rpm < inf:
        raise InputError(f"--rpm: must be a positive number, not {rpm:g}")


def _print_doubts(model: Predictor) -> None:
    """What the run that made a model found against it: a verdict not to use it, and what to be careful with."""
    if model.refusal is not None:
        print_note(f"the verdict of the run that made this model: {model.refusal}")
    for sentence in model.cautions:
        print_note(f"the run that made this model says: {sentence}")


@contextmanager
def _printer(form: str, by: str, columns: Sequence[str], table: AbstractContextManager[Put]) -> Iterator[Put]:
    """What prints rows in this format, one of FORMATS.

    Ends with the shell's status of a closed pipe, where the program that reads us has ended; typer would say 1.
    """
    try:
        with {"table": table, "csv": _put_csv(columns), "json": _put_json(by)}[form] as put:
            yield put
        sys.stdout.flush()
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        raise typer.Exit(CLOSED_PIPE) from error


@contextmanager
def _put_table(by: str) -> Iterator[Put]:
    """Recordings as one table at the end, whose columns then fit; windows, which may be millions, line by line."""
    rows, last = list[dict[str, Any]](), ""

    def put(row: dict[str, Any]) -> None:
        nonlocal last
        if by == "recording":
            rows.append(row)
            return
        if last != row["recording"]:
            last = row["recording"]
            print(f"{last}\n{'start':>12} {'seconds':>12} {'confidence':>10}  class")
        seconds = "?" if row["seconds"] is None else f"{row['seconds']:.3f}"
        mark = "  unfamiliar" if row["familiar"] is False else ""
        print(f"{row['start']:>12} {seconds:>12} {100 * row['confidence']:>8.1f} %  {row['class']}{mark}")

    yield put
    print_recordings(rows)


@contextmanager
def _put_csv(columns: Sequence[str]) -> Iterator[Put]:
    """Rows with these columns; truth in lower case, as in JSON."""
    import csv

    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore")
    writer.writeheader()
    yield lambda row: writer.writerow(
        {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}
    )


@contextmanager
def _put_json(by: str) -> Iterator[Put]:
    """An object with one list, written as it grows."""
    import json
    from itertools import chain, repeat

    separators = chain(["\n"], repeat(",\n"))
    print(f'{{"{by}s": [', end="")
    yield lambda row: print(next(separators) + json.dumps(row, ensure_ascii=False), end="")
    print("\n]}")


def export(
    model: Annotated[Path, Argument(metavar="MODEL", help="A model's folder.")],
    onnx: Annotated[Path, Option("--onnx", help="The file to write; its name ends in .onnx.")],
) -> None:
    """Write a model as one ONNX file, from recorded windows to calibrated probabilities (docs/deploy.md)."""
    from bearcat.deploy.export import export_onnx
    from bearcat.deploy.model import load_model

    opened = load_model(model)
    _print_doubts(opened)
    written = export_onnx(opened, onnx)
    print(f"{written}: {written.stat().st_size / 1e6:.1f} MB; use it with: bearcat predict {written} FILES")


def serve(
    model: Model,
    host: Annotated[str, Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, Option(help="0 takes one that is free, and prints it.")] = 8000,
    token: Annotated[
        str | None, Option(envvar="BEARCAT_TOKEN", help="Requests must carry it: Authorization: Bearer TOKEN.")
    ] = None,
    max_bytes: Annotated[int, Option(help="The longest body of a request.")] = 64 * 2**20,
    timeout: Annotated[float, Option(help="Seconds for a request, from its first byte to its answer.")] = 30.0,
    concurrency: Annotated[int, Option(help="Requests taken in at once; others get status 429.")] = 64,
    alarm: Alarm = None,
) -> None:
    """Answer to HTTP on this machine, and show a page to drop recordings on (docs/serve.md). Stop it with Ctrl-C."""
    from bearcat.deploy.serve.run import Address, Limits
    from bearcat.deploy.serve.run import serve as run

    if token is None and "BEARCAT_TOKEN" in os.environ:  # empty, as a secret that was not found often is
        raise InputError("BEARCAT_TOKEN: is set, but empty; give it a token, or unset it to serve without")
    address = Address(host, port)
    if token is None and not address.loopback:
        print_note(f"everyone who can reach {host} may send requests; set BEARCAT_TOKEN to restrict that")

    def started(place: str) -> None:
        print(f"{model} is served on {place} (open it in a browser; Ctrl-C stops it)", flush=True)

    run(model, address, Limits(max_bytes, timeout, concurrency), token, alarm, started, _print_doubts)


def diagnose(
    files: Annotated[list[Path], Argument(metavar="FILES", help="Recordings, or folders of them.")],
    rpm: Annotated[float | None, Option(help="Speed of the shaft; it may be off by 3 %.")] = None,
    bearing: Annotated[
        str | None, Option(metavar="6205", help="A designation, or balls=9,ball=7.94,pitch=39.04 (mm).")
    ] = None,
    bpfo: Order = None,
    bpfi: Order = None,
    bsf: Order = None,
    ftf: Order = None,
    channel: options.Channel = None,
    rate: options.OwnRate = None,
    form: options.Format = "table",
    png: Annotated[Path | None, Option(metavar="FOLDER", help="Draw the evidence of each recording here.")] = None,
) -> None:
    """Diagnose recordings from speed and bearing alone: healthy, inner race, outer race, ball, or cannot tell.

    Nothing is trained. Exit status: 0 no fault found, 1 a fault, 2 no fault but a file could not be used.
    """
    from bearcat.deploy.diagnose import COLUMNS, diagnose_recording, known_orders, row
    from bearcat.deploy.predict import find_recordings

    _check_choice("--format", form, FORMATS)
    _check_speed(rpm)
    orders = known_orders(bearing, {"BPFO": bpfo, "BPFI": bpfi, "BSF": bsf, "FTF": ftf})
    found = failed = 0
    drawn: Counter[str] = Counter()
    with _printer(form, "recording", COLUMNS, _put_physical()) as put:
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
def _put_physical() -> Iterator[Put]:
    table = plain_table(("recording", "state", "confidence", "evidence"), ("recording", "state", "evidence"), fold=True)
    yield lambda row: table.add_row(
        row["recording"], row["state"], f"{100 * row['confidence']:.0f} %",
        row["reason"] + ("" if row["familiar"] else " (unlike what this was made from)"),
    )  # fmt: skip
    if table.row_count:
        console().print(table)


def _draw(diagnosis: PhysicalDiagnosis, folder: Path, drawn: Counter[str]) -> None:
    """A picture called after the file; later ones of the same name get a number."""
    from bearcat.report.plots import draw_evidence
    from bearcat.report.typeset import file_name
    from bearcat.storage import write_atomically

    name = file_name(Path(diagnosis.recording).stem)
    drawn[name] += 1
    number = f"-{drawn[name]}" if drawn[name] > 1 else ""
    write_atomically(folder / f"{name}{number}.png", draw_evidence(diagnosis).render("png"))
