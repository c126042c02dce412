"""Diagnosing recordings, with a trained model or without: `predict`, `export`, `serve` and `diagnose`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from bearcat.cli import options
from bearcat.cli.options import FORMATS, Names, check_choice, print_lines, print_note, print_recordings
from bearcat.errors import InputError
from bearcat.names import csv_cell, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bearcat.data.stream import Stream
    from bearcat.deploy.find import FoundMeasurement
    from bearcat.deploy.predict import WindowPredictions
    from bearcat.deploy.predictor import Predictor
    from bearcat.diagnosis.recording import AlarmRule, Diagnosis

    Put = Callable[[dict[str, Any]], None]

INTERRUPTED = 130  # 128 + SIGINT
WINDOW_COLUMNS = ("recording", "start", "seconds", "class", "confidence", "familiar")

Model = Annotated[Path, Argument(metavar="MODEL", help="A model's folder, a file that ends in .onnx, or general.")]
Alarm = Annotated[
    Names,
    Option(metavar="CLASS", help="This class is an alarm; repeat for more.  \\[default: all but healthy or normal]"),
]
Order = Annotated[
    float | None, Option(help="In place of a bearing: the order of this fault, a multiple of the shaft's speed.")
]


def predict(
    model: Model,
    files: Annotated[list[Path], Argument(metavar="FILES", help="Recordings, folders of them, or a manifest.")],
    by: Annotated[str, Option(help="Print a line for each recording or for each window.")] = "recording",
    form: options.Format = "table",
    rate: options.OwnRate = None,
    rpm: Annotated[
        float | None, Option(help="Speed of the shaft, where no file says its own: a number, as files are streamed.")
    ] = None,
    bearing: options.Bearing = None,
    channel: options.Channel = None,
    channels: options.Channels = None,
    trust_speed: options.TrustSpeed = False,
    alarm: Alarm = None,
    min_confidence: Annotated[
        float, Option(min=0, max=1, help="A fault diagnosed with less confidence is to be checked and no alarm.")
    ] = 0.0,
    unfamiliar_alarm: Annotated[
        bool, Option(help="Whether a recording unlike those the model was adapted to is an alarm, or to be checked.")
    ] = True,
    batch: Annotated[int, Option(min=1, help="Windows handed to the model at once.")] = 256,
) -> None:
    """Diagnose new recordings. Exit status: 0 all ok, 1 an alarm, 3 no alarm but something to check, 2 bad input.

    Decisions are of recordings, whatever is printed. A file that cannot be used is to be checked, and the others go on.
    """
    from bearcat.data.bearing import find_bearing
    from bearcat.data.survey import Portrait, odd_recordings
    from bearcat.deploy.find import find_measurements
    from bearcat.deploy.predict import Given, diagnose_measurement, open_model
    from bearcat.diagnosis.recording import AlarmRule

    check_choice("--by", by, ("recording", "window"))
    check_choice("--format", form, FORMATS)
    geometry = None if bearing is None else find_bearing(bearing)
    given = Given(rate, rpm, geometry, batch=batch, trust_speed=trust_speed)
    opened = open_model(model)
    _print_decision(opened)
    names = opened.classes
    rule = AlarmRule.of(names, alarm, min_confidence=min_confidence, unfamiliar=unfamiliar_alarm)
    if not alarm and len(rule.classes) == len(names):
        print_note("no class is called healthy or normal, so each is an alarm; choose with --alarm")
    if opened.calibrated is False:
        print_note("the model's confidence is not calibrated (its card says why), so do not rely on it")
    if opened.familiarity is None:
        print_note("the model cannot notice unfamiliar recordings; one made by bearcat adapt can")
    for name, said, own in (("rpm", rpm, opened.rpm and f"{opened.rpm:g} rpm"), ("bearing", bearing, opened.bearing)):
        if said is None and own and name in opened.needs:
            print_note(f"where a file does not say otherwise, {own} is assumed, as in adaptation; --{name} changes it")
    portraits = list[Portrait]()

    def diagnosed(found: FoundMeasurement, put: Put) -> list[Diagnosis]:
        def put_windows(stream: Stream, windows: WindowPredictions) -> None:
            for row in windows.rows(names, stream.rate):
                put({"recording": stream.origin} | row)

        return diagnose_measurement(found, opened, given, portraits, put_windows if by == "window" else None)

    given = replace(given, rule=rule)
    status = _print_all(form, by, find_measurements(files, opened, channel, channels), diagnosed, rule)
    for sentence in odd_recordings(portraits):
        print_note(sentence)
    raise typer.Exit(status)


def _print_all(
    form: str, by: str, found: Iterable[FoundMeasurement],
    diagnosed: Callable[[FoundMeasurement, Put], list[Diagnosis]], rule: AlarmRule | None = None,
) -> int:  # fmt: skip
    """Diagnoses recordings, then each beside the others of its machine, and prints them, a table worst first; the exit
    status. A file that cannot be used is named, and the others go on. By window, `diagnosed` prints the windows itself.
    """
    import traceback

    from bearcat.diagnosis.recording import COLUMNS, Diagnoses, Diagnosis
    from bearcat.trust.decision import UNREADABLE

    single, readable, rows = list[Diagnosis](), False, form != "table" and by == "recording"
    interrupted = False
    with _printer(form, by, COLUMNS if by == "recording" else WINDOW_COLUMNS) as put:
        for measurement in found:
            try:
                several = diagnosed(measurement, put)
                readable = readable or any(each.state != UNREADABLE for each in several)
                for note in measurement.notes if len(several) > 1 else ():
                    print_note(f"{measurement.name}: {note}")
                single += several
            except InputError as error:
                print_note(error.for_command_line, "problem")
                single.append(Diagnosis.unreadable(measurement.name, error.for_command_line))
            except Exception as error:  # a bug, of which the other recordings know nothing
                traceback.print_exc()
                sentence = f"{measurement.name}: {type(error).__name__}; please report this bug with the lines above"
                print_note(sentence, "problem")
                single.append(Diagnosis.unreadable(measurement.name, sentence))
            except KeyboardInterrupt:  # what was computed is not lost
                print_note(f"interrupted; {len(single)} recordings were diagnosed", "problem")
                interrupted = True
                break
        diagnoses = Diagnoses(single).beside_each_other(rule=rule)
        for diagnosis in diagnoses:
            for note in diagnosis.notes:
                print_note(note if note.startswith(diagnosis.recording) else f"{diagnosis.recording}: {note}")
            if rows:
                put(diagnosis.row() if form == "csv" else diagnosis.to_dict())
        if by == "recording" and not rows and diagnoses:
            print_lines(diagnoses.summary)
            print_recordings(diagnoses.worst_first)
    if rows:
        print_note(diagnoses.summary)
    if interrupted:
        return INTERRUPTED
    return diagnoses.exit_status if readable or not diagnoses else 2  # 2: nothing could be decided


def _print_decision(model: Predictor) -> None:
    """What the run that made a model decided about it, unless it is simply to be used."""
    decision = model.decision
    if decision.action != "use" or decision.reasons:
        print_note(f"of the run that made this model: {decision.sentence}")


@contextmanager
def _printer(form: str, by: str, columns: Sequence[str]) -> Iterator[Put]:
    """What prints rows as csv or as one list in JSON; as a table, windows, which may be millions, line by line."""
    import csv

    writer, last = csv.DictWriter(sys.stdout, columns, extrasaction="ignore"), ""

    def put(row: dict[str, Any]) -> None:
        nonlocal last
        before, last = last, row["recording"]
        if form == "csv":
            writer.writerow({name: csv_cell(value) for name, value in row.items()})
        elif form == "json":
            print((",\n" if before else "\n") + to_json(row), end="")
        else:
            if before != last:
                print_lines(last, f"{'start':>12} {'seconds':>12} {'confidence':>10}  class")
            seconds = "?" if row["seconds"] is None else f"{row['seconds']:.3f}"
            mark = "  unfamiliar" if row["familiar"] is False else ""
            print_lines(f"{row['start']:>12} {seconds:>12} {100 * row['confidence']:>8.1f} %  {row['class']}{mark}")

    if form == "csv":
        writer.writeheader()
    elif form == "json":
        print(f'{{"{by}s": [', end="")
    yield put
    if form == "json":
        print("\n]}")


def export(
    model: Annotated[Path, Argument(metavar="MODEL", help="A model's folder.")],
    onnx: Annotated[Path, Option("--onnx", help="The file to write; its name ends in .onnx.")],
) -> None:
    """Write a model as one ONNX file, from recorded windows to calibrated probabilities (docs/deploy.md)."""
    from bearcat.deploy.model import export_onnx, load_model

    opened = load_model(model)
    _print_decision(opened)
    written = export_onnx(opened, onnx)
    print(f"{written}: {written.stat().st_size / 1e6:.1f} MB; use it with: bearcat predict {written} FILES")


def serve(
    model: Annotated[
        Path | None,
        Argument(metavar="MODEL", help="A model's folder, a file that ends in .onnx, or general; or --store."),
    ] = None,
    store: Annotated[
        str | None, Option(help="Show the machines of this store of bearcat watch at /fleet; MODEL may be left out.")
    ] = None,
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
    from bearcat.deploy.serve import Address, Limits
    from bearcat.deploy.serve import serve as run

    if token is None and "BEARCAT_TOKEN" in os.environ:  # empty, as a secret that was not found often is
        raise InputError("BEARCAT_TOKEN: is set, but empty; give it a token, or unset it to serve without")
    address = Address(host, port)
    if token is None and not address.loopback:
        print_note(f"everyone who can reach {host} may send requests; set BEARCAT_TOKEN to restrict that")

    if model is None and store is None:
        raise InputError("give a MODEL to serve, a --store of watched machines to show, or both")
    fleet = None
    if store is not None:
        from bearcat.report.fleet import FleetPages

        fleet = FleetPages(store)

    def started(place: str) -> None:
        served = [] if model is None else [f"{model} is served on {place}"]
        served += [] if store is None else [f"Watched machines are shown on {place}/fleet"]
        print(f"{'; '.join(served)} (open it in a browser; Ctrl-C stops it)", flush=True)

    run(model, address, Limits(max_bytes, timeout, concurrency), token, alarm, started, _print_decision, fleet)


def diagnose(
    files: Annotated[list[Path], Argument(metavar="FILES", help="Recordings, or folders of them.")],
    rpm: Annotated[
        float | None, Option(help="Speed of the shaft in rpm; it is checked, and measured where it is not given.")
    ] = None,
    bearing: Annotated[
        str | None, Option(metavar="6205", help="A designation, or balls=9,ball=7.94,pitch=39.04 (mm).")
    ] = None,
    bpfo: Order = None,
    bpfi: Order = None,
    bsf: Order = None,
    ftf: Order = None,
    channel: options.Channel = None,
    channels: options.Channels = None,
    rate: options.OwnRate = None,
    form: options.Format = "table",
    trust_speed: options.TrustSpeed = False,
    healthy: Annotated[
        Names | None,
        Option(metavar="FILE", help="A known good recording of the same point, or a folder; repeat for more."),
    ] = None,
    png: Annotated[
        Path | None, Option(metavar="FOLDER", help="Draw the evidence of each recording into this folder.")
    ] = None,
) -> None:
    """Diagnose recordings from speed and bearing alone: healthy, inner race, outer race, ball, or cannot tell.

    Nothing is trained. Exit status: 0 all ok, 1 an alarm, 3 no alarm but something to check, 2 bad input.
    """
    from bearcat.data.bearing import known_orders
    from bearcat.deploy.find import find_measurements
    from bearcat.deploy.predict import Given, diagnose_measurement, healthy_physics
    from bearcat.diagnosis.baseline import KNOWN, Baseline

    check_choice("--format", form, FORMATS)
    orders = known_orders(bearing, {"BPFO": bpfo, "BPFI": bpfi, "BSF": bsf, "FTF": ftf})
    drawn: Counter[str] = Counter()
    given = Given(rate, rpm, orders=orders, threads=2, trust_speed=trust_speed, drawn=png is not None)
    if healthy:
        places = [Path(name) for name in healthy]
        given = replace(given, healthy=healthy_physics(find_measurements(places, None, channel, channels), given))
        for usual in given.healthy.values():
            for note in Baseline.of(usual, KNOWN).notes:
                print_note(note)

    def diagnosed(found: FoundMeasurement, _: Put) -> list[Diagnosis]:
        diagnoses = diagnose_measurement(found, None, given)
        if png is not None:
            for diagnosis in diagnoses:
                _draw(diagnosis, png, drawn)
        return diagnoses

    found = find_measurements(files, None, channel, channels)
    raise typer.Exit(_print_all(form, "recording", found, diagnosed))


def _draw(diagnosis: Diagnosis, folder: Path, drawn: Counter[str]) -> None:
    """A picture called after the file; later ones of the same name get a number."""
    from bearcat.report.plots import draw_evidence
    from bearcat.report.typeset import file_name
    from bearcat.storage import write_atomically

    name = file_name(Path(diagnosis.recording).stem)
    drawn[name] += 1
    number = f"-{drawn[name]}" if drawn[name] > 1 else ""
    write_atomically(folder / f"{name}{number}.png", draw_evidence(diagnosis).render("png"))
