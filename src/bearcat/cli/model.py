"""Diagnosing recordings, with a trained model or without: `predict`, `export`, `serve`, `diagnose` and `mcp`."""

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

from bearcat.child import use_one_core
from bearcat.cli import options
from bearcat.cli.options import FORMATS, Names, check_choice, print_lines, print_note, print_recordings
from bearcat.errors import InputError
from bearcat.names import csv_cell, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bearcat.deploy.find import FoundUnit
    from bearcat.deploy.predict import Job, Put
    from bearcat.deploy.predictor import Predictor
    from bearcat.diagnosis.recording import Diagnosis

INTERRUPTED = 130  # 128 + SIGINT
WINDOW_COLUMNS = ("recording", "start", "seconds", "class", "confidence", "familiar")

Model = Annotated[Path, Argument(metavar="MODEL", help="A model's folder, a file that ends in .onnx, or general.")]
Alarm = Annotated[
    Names,
    Option(metavar="CLASS", help="This class is an alarm; repeat for more.  \\[default: all but healthy or normal]"),
]


def predict(
    model: Model,
    files: Annotated[list[Path], Argument(metavar="FILES", help="Recordings, folders of them, or a manifest.")],
    by: Annotated[str, Option(help="A line for each recording, or each window.")] = "recording",
    form: options.Format = "table",
    rate: options.OwnRate = None,
    rpm: options.Rpm = None,
    bearing: options.Bearing = None,
    override: options.Override = False,
    channel: options.Channel = None,
    channels: options.Channels = None,
    trust_speed: options.TrustSpeed = False,
    alarm: Alarm = None,
    min_confidence: Annotated[float, Option(min=0, max=1, help="Below it a fault is a check, not an alarm.")] = 0.0,
    unfamiliar_alarm: Annotated[bool, Option(help="Whether an unfamiliar recording is an alarm or a check.")] = True,
    jobs: options.Jobs = 1,
) -> None:
    """Diagnose new recordings. Exit status: 0 all ok, 1 an alarm, 3 no alarm but something to check, 2 bad input.

    Decisions are of recordings, whatever is printed. A file that cannot be used is to be checked, and the others go on.
    """
    use_one_core()
    from bearcat.data.bearing import asked_bearing
    from bearcat.deploy.find import find_units, number_or_channel
    from bearcat.deploy.predict import Given, Job, open_model
    from bearcat.diagnosis.recording import AlarmRule

    check_choice("--by", by, ("recording", "window"))
    check_choice("--format", form, FORMATS)
    geometry, search = asked_bearing(bearing)
    number, speed = number_or_channel(rpm)
    given = Given(rate, number, geometry, trust_speed=trust_speed, override=override, search=search)
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
    job = Job(replace(given, rule=rule), by == "window", opened, model)
    units = find_units(files, opened, channel, channels, speed, override)
    raise typer.Exit(_print_all(form, by, units, job, jobs))


def _print_all(form: str, by: str, units: Iterable[FoundUnit], job: Job, jobs: int, png: Path | None = None) -> int:
    """Prints diagnoses of recordings, each beside the others of its machine, a table worst first; the exit status. A
    file that cannot be used is named, and the others go on. By window, the windows themselves are printed.
    """
    from bearcat.deploy.predict import diagnose_units
    from bearcat.diagnosis.recording import COLUMNS, UNDECIDED, Diagnoses, Diagnosis

    single, rows = list[Diagnosis](), form != "table" and by == "recording"
    interrupted, drawn = False, Counter[str]()
    with _printer(form, by, COLUMNS if by == "recording" else WINDOW_COLUMNS) as put:
        try:
            for answer in diagnose_units(units, job, jobs, put):
                for note in answer.notes if len(answer.diagnoses) > 1 else ():
                    print_note(f"{answer.name}: {note}")
                for diagnosis in answer.diagnoses:
                    if png is not None and diagnosis.drawing is not None:
                        _draw(diagnosis, png, drawn)
                single += answer.diagnoses
                if (error := answer.problem) is not None:
                    single.append(Diagnosis.undecided(answer.name, error, command_line=True))
        except KeyboardInterrupt:  # what was computed is not lost
            print_note(f"interrupted; {len(single)} recordings were diagnosed", "problem")
            interrupted = True
        diagnoses, notes = Diagnoses(single).beside_each_other(), dict[str, list[str]]()
        for diagnosis in diagnoses:
            for note in diagnosis.notes:
                notes.setdefault(note, []).append(diagnosis.recording)
            if rows:
                put(diagnosis.row() if form == "csv" else diagnosis.to_dict())
        for note, (first, *others) in notes.items():
            print_note(f"{first}{f' and {len(others)} more' if others else ''}: {note}")
        table, decided = by == "recording" and not rows, any(each.state not in UNDECIDED for each in diagnoses)
        for name, problem in () if table and decided else diagnoses.problems.items():  # the table says them otherwise
            print_note(f"{name}: {problem}", "problem")
        if table and decided:
            print_recordings(diagnoses.worst_first)
        if table and diagnoses:
            print_lines(diagnoses.summary)
    if rows:
        print_note(diagnoses.summary)
    if interrupted:
        return INTERRUPTED
    return diagnoses.exit_status if decided or not diagnoses else 2  # 2: nothing could be decided


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
        Argument(metavar="MODEL", help="A model's folder, or a file that ends in .onnx; without it, as diagnose."),
    ] = None,
    store: Annotated[
        str | None, Option(help="Show the machines of this store of bearcat watch at /fleet; MODEL may be left out.")
    ] = None,
    host: Annotated[str, Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, Option(help="0 takes one that is free, and prints it.")] = 8000,
    max_bytes: Annotated[int, Option(help="The longest body of a request.")] = 64 * 2**20,
    timeout: Annotated[float, Option(help="Seconds for a request, from its first byte to its answer.")] = 30.0,
    concurrency: Annotated[int, Option(help="Requests taken in at once; others get status 429.")] = 64,
    alarm: Alarm = None,
) -> None:
    """Answer to HTTP on this machine, and show a page to drop recordings on (docs/serve.md). Stop it with Ctrl-C.

    With $BEARCAT_TOKEN, requests must carry it: Authorization: Bearer TOKEN, or as a password.
    """
    use_one_core()
    from bearcat.deploy.serve import Address, Limits
    from bearcat.deploy.serve import serve as run

    token = os.environ.get("BEARCAT_TOKEN")
    if token == "":  # as a secret that is missing often is
        raise InputError("BEARCAT_TOKEN: is set, but empty; give it a token, or unset it to serve without")
    address = Address(host, port)
    if token is None and not address.loopback:
        print_note(f"everyone who can reach {host} may send requests; set BEARCAT_TOKEN to restrict that")

    fleet = None
    if store is not None:
        from bearcat.report.fleet import fleet_pages

        fleet = fleet_pages(store)

    def started(place: str) -> None:
        alone = [] if store else [f"Recordings are diagnosed without a model on {place}"]
        served = alone if model is None else [f"{model} is served on {place}"]
        served += [] if store is None else [f"Watched machines are shown on {place}/fleet"]
        print(f"{'; '.join(served)} (open it in a browser; Ctrl-C stops it)", flush=True)

    run(model, address, Limits(max_bytes, timeout, concurrency), token, alarm, started, _print_decision, fleet)


def diagnose(
    files: Annotated[list[Path], Argument(metavar="FILES", help="Recordings, or folders of them.")],
    rpm: options.Rpm = None,
    bearing: options.Bearing = None,
    bpfo: options.Order = None,
    bpfi: options.Order = None,
    bsf: options.Order = None,
    ftf: options.Order = None,
    channel: options.Channel = None,
    channels: options.Channels = None,
    rate: options.OwnRate = None,
    override: options.Override = False,
    form: options.Format = "table",
    trust_speed: options.TrustSpeed = False,
    healthy: options.Healthy = None,
    png: Annotated[
        Path | None, Option(metavar="FOLDER", help="Draw the evidence of each recording into this folder.")
    ] = None,
    jobs: options.Jobs = 1,
    unit: options.Unit = None,
    group: options.Group = None,
    mounting: options.Mounting = None,
) -> None:
    """Diagnose recordings from speed and bearing alone: healthy, inner race, outer race, ball, or cannot tell.

    Nothing is trained. Exit status: 0 all ok, 1 an alarm, 3 no alarm but something to check, 2 bad input.
    """
    use_one_core()
    from bearcat.data.bearing import asked_bearing, known_orders
    from bearcat.data.channels import Declared
    from bearcat.deploy.find import find_measurements, find_units, number_or_channel
    from bearcat.deploy.predict import Given, Job, healthy_physics
    from bearcat.diagnosis.comparison import KNOWN, Baseline
    from bearcat.sentences import sentence

    check_choice("--format", form, FORMATS)
    orders = known_orders(bearing, {"BPFO": bpfo, "BPFI": bpfi, "BSF": bsf, "FTF": ftf})
    geometry, search = asked_bearing(bearing)
    number, speed = number_or_channel(rpm)
    given = Given(
        rate, number, geometry, orders if geometry is None else None, search=search,
        declared=Declared(unit, group, mounting), trust_speed=trust_speed, override=override,
    )  # fmt: skip
    if healthy:
        usual_ones = find_measurements([Path(name) for name in healthy], None, channel, channels, speed, override)
        given = replace(given, healthy=healthy_physics(usual_ones, given))
        for usual in given.healthy.values():
            if (lines := Baseline.of(usual, KNOWN).finding) is not None:
                print_note(sentence(lines))

    units = find_units(files, None, channel, channels, speed, override)
    raise typer.Exit(_print_all(form, "recording", units, Job(given), jobs, png))


def _draw(diagnosis: Diagnosis, folder: Path, drawn: Counter[str]) -> None:
    """A picture called after the file; later ones of the same name get a number."""
    from bearcat.report.figures import draw_evidence
    from bearcat.report.typeset import file_name
    from bearcat.storage import write_atomically

    name = file_name(Path(diagnosis.recording).stem)
    drawn[name] += 1
    number = f"-{drawn[name]}" if drawn[name] > 1 else ""
    write_atomically(folder / f"{name}{number}.png", draw_evidence(diagnosis).render("png"))


def mcp(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The assistant may ask about recordings below it alone.")],
    store: Annotated[
        str | None, Option(help="A store of `bearcat watch`, for status and history of its machines.")
    ] = None,
) -> None:
    """Let an assistant ask about recordings and machines: the Model Context Protocol on stdio (docs/serve.md)."""
    from bearcat.deploy.assistant import make_assistant

    make_assistant(folder, store).run("stdio")
