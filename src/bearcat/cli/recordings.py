"""Recordings and what was learnt from them: `diagnose`, `predict`, `report`, `export`, `serve` and `mcp`."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from bearcat.cli import options
from bearcat.cli.options import Names, print_data, print_lines, print_note, print_recordings, takes
from bearcat.errors import InputError
from bearcat.requests import DiagnoseRequest, ServeRequest

if TYPE_CHECKING:
    from bearcat.deploy.predictor import Predictor
    from bearcat.diagnosis.recording import Diagnoses

KEPT_MEMORY = {-1: 1 << 27, -3: 1 << 25}  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, bytes
Files = Annotated[list[Path], Argument(metavar="FILES", help="Recordings, folders of them, or a manifest.")]
Pictures = Annotated[Path | None, Option(metavar="FOLDER", help="Draw the evidence of each recording into it.")]


def use_one_core() -> None:
    """One thread for numpy and torch, unless the user says otherwise, and memory that stays with this process: clearing
    new pages takes longer than filling them. To be called before numpy is loaded.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another library of C than the usual one
            library = ctypes.CDLL(None)
            for option, size in KEPT_MEMORY.items():
                library.mallopt(option, size)


@takes(DiagnoseRequest)
def diagnose(
    files: Files,
    request: DiagnoseRequest,
    form: options.Format = "table",
    healthy: options.Healthy = None,
    png: Pictures = None,
) -> None:
    """Diagnose recordings from speed and bearing alone: healthy, inner race, outer race, ball, or cannot tell.

    Nothing is trained. Exit status: 0 all ok, 1 an alarm, 3 no alarm but something to check, 2 bad input.
    """
    use_one_core()
    raise typer.Exit(_diagnose(files, request, None, form, healthy, png))


@takes(DiagnoseRequest)
def predict(
    model: Annotated[Path, Argument(metavar="MODEL", help="A model's folder, a file that ends in .onnx, or general.")],
    files: Files,
    request: DiagnoseRequest,
    form: options.Format = "table",
    healthy: options.Healthy = None,
    png: Pictures = None,
) -> None:
    """Diagnose new recordings. Exit status: 0 all ok, 1 an alarm, 3 no alarm but something to check, 2 bad input.

    A file that cannot be used is to be checked, and the others go on.
    """
    use_one_core()
    from bearcat.deploy.opened import open_model
    from bearcat.diagnosis.recording import AlarmRule

    opened = open_model(model)
    _print_decision(opened)
    names = opened.classes
    if not request.alarm and len(AlarmRule.of(names).classes) == len(names):
        print_note("no class is called healthy or normal, so each is an alarm; choose with --alarm")
    if opened.calibrated is False:
        print_note("the model's confidence is not calibrated (its card says why), so do not rely on it")
    if opened.familiarity is None:
        print_note("the model cannot notice unfamiliar recordings; one made by bearcat adapt can")
    usual = {"rpm": opened.rpm and f"{opened.rpm:g} rpm", "bearing": opened.bearing}
    for name, value in usual.items():
        if getattr(request, name) is None and value and name in opened.needs:
            print_note(
                f"where a file does not say otherwise, {value} is assumed, as in adaptation; --{name} changes it"
            )
    raise typer.Exit(_diagnose(files, request, opened, form, healthy, png))


def _diagnose(
    files: list[Path], request: DiagnoseRequest, model: Predictor | None, form: str, healthy: Names, png: Path | None
) -> int:
    """Prints the diagnoses of recordings, a table worst first; the exit status."""
    from bearcat.api import diagnosed
    from bearcat.diagnosis.recording import COLUMNS, UNDECIDED

    found = diagnosed(files, request, model, healthy or ())
    for note in found.notes:
        print_note(note)
    if png is not None:
        _draw(found, png)
    notes = dict[str, list[str]]()
    for diagnosis in found:
        for note in diagnosis.notes:
            notes.setdefault(note, []).append(diagnosis.recording)
    for note, (first, *others) in notes.items():
        print_note(f"{first}{f' and {len(others)} more' if others else ''}: {note}")
    decided = any(each.state not in UNDECIDED for each in found)
    if form != "table" or not decided:  # the table says them otherwise
        for each in found:
            if (problem := each.problem) is not None:
                option = "" if problem.field is None else f" (--{problem.field.replace('_', '-')})"
                print_note(f"{each.recording}: {problem.beside(each.recording)}{option}", "problem")
    if form != "table":
        rows = [each.row() if form == "csv" else each.to_dict() for each in found]
        print_data(form, "recordings", rows, COLUMNS)
        print_note(found.summary)
    elif decided:
        print_recordings(found.worst_first)
    if form == "table" and found:
        print_lines(found.summary)
    return found.exit_status if decided or not found else 2  # 2: nothing could be decided


def _print_decision(model: Predictor) -> None:
    """What the run that made a model decided about it, unless it is simply to be used."""
    decision = model.decision
    if decision.action != "use" or decision.reasons:
        print_note(f"of the run that made this model: {decision.sentence}")


@takes(DiagnoseRequest)
def report(
    path: Annotated[
        str,
        Argument(
            metavar="PATH",
            help="Recordings; what diagnose or predict wrote (json); adapt's folder; or the store of watch.",
        ),
    ],
    request: DiagnoseRequest,
    out: Annotated[Path, Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    model: Annotated[Path | None, Option(metavar="MODEL", help="Diagnose with this model, as predict does.")] = None,
    machine: Annotated[str | None, Option(metavar="NAME", help="Of a store: this machine alone.")] = None,
) -> None:
    """Write one page: the list, worst first, then the evidence of each alarm or check (docs/diagnose.md).

    Recordings are diagnosed as `diagnose` does. Of a store: watched machines and their trends (docs/watch.md).
    """
    from bearcat.report.pages import read_results, write_recordings_page, write_run_page

    if out.suffix.lower() == ".pdf":
        raise InputError(f"{out}: a page is HTML; write it as .html and print it from a browser", "out")
    place = Path(path)
    usual = DiagnoseRequest().values() | {"model": None}
    asked = request.values() | {"model": model}
    given = [name.replace("_", "-") for name, value in asked.items() if value != usual[name]]
    finished = place.is_dir() and (place / "record.json").exists()
    stored = not finished and ("://" in path or _is_store(place))
    if given and (finished or stored or place.suffix.lower() == ".json"):
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
        if place.suffix.lower() == ".json":
            found = read_results(place)
        else:
            from bearcat.api import diagnosed
            from bearcat.deploy.opened import open_model

            found = diagnosed([place], request, None if model is None else open_model(model))
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


def _draw(found: Diagnoses, folder: Path) -> None:
    """A picture of each recording, called after its file; later ones of the same name get a number."""
    from bearcat.report.figures import draw_evidence
    from bearcat.report.typeset import file_name
    from bearcat.storage import write_atomically

    drawn = Counter[str]()
    for diagnosis in found:
        if diagnosis.drawing is not None:
            name = file_name(Path(diagnosis.recording).stem)
            drawn[name] += 1
            number = f"-{drawn[name]}" if drawn[name] > 1 else ""
            write_atomically(folder / f"{name}{number}.png", draw_evidence(diagnosis).render("png"))


def export(
    model: Annotated[Path, Argument(metavar="MODEL", help="A model's folder.")],
    onnx: Annotated[Path, Option("--onnx", metavar="FILE", help="The file to write; its name ends in .onnx.")],
) -> None:
    """Write a model as one ONNX file, from recorded windows to calibrated probabilities (docs/deploy.md)."""
    from bearcat.deploy.model import export_onnx, load_model

    opened = load_model(model)
    _print_decision(opened)
    written = export_onnx(opened, onnx)
    print(f"{written}: {written.stat().st_size / 1e6:.1f} MB; use it with: bearcat predict {written} FILES")


@takes(ServeRequest)
def serve(
    request: ServeRequest,
    model: Annotated[Path | None, Argument(metavar="MODEL", help="A model; without it, as diagnose.")] = None,
) -> None:
    """Answer to HTTP on this machine, and show a page to drop recordings on (docs/deploy.md). Stop it with Ctrl-C.

    With $BEARCAT_TOKEN, requests must carry it: Authorization: Bearer TOKEN, or as a password.
    """
    use_one_core()
    from bearcat.deploy.serve import is_loopback
    from bearcat.deploy.serve import serve as run

    token, store = os.environ.get("BEARCAT_TOKEN"), request.store
    if token == "":  # as a secret that is missing often is
        raise InputError("BEARCAT_TOKEN: is set, but empty; give it a token, or unset it to serve without")
    if token is None and not is_loopback(request.host):
        print_note(f"everyone who can reach {request.host} may send requests; set BEARCAT_TOKEN to restrict that")
    fleet = None
    if store is not None:
        from bearcat.report.fleet import fleet_pages

        fleet = fleet_pages(store)

    def started(place: str) -> None:
        alone = [] if store else [f"Recordings are diagnosed without a model on {place}"]
        served = alone if model is None else [f"{model} is served on {place}"]
        served += [] if store is None else [f"Watched machines are shown on {place}/fleet"]
        print(f"{'; '.join(served)} (open it in a browser; Ctrl-C stops it)", flush=True)

    run(model, request, token, started, _print_decision, fleet)


def mcp(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The assistant may ask about recordings below it alone.")],
    store: Annotated[
        str | None, Option(metavar="STORE", help="Answer about the machines of this store of bearcat watch too.")
    ] = None,
) -> None:
    """Let an assistant ask about recordings and machines: the Model Context Protocol on stdio (docs/deploy.md)."""
    from bearcat.deploy.assistant import make_assistant

    make_assistant(folder, store).run("stdio")
