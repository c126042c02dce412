"""Recordings: `diagnose`, `predict` and `report`, and `data list`, `fetch`, `check` and `show`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from bearcat import cli
from bearcat.cli import print_data, print_lines, print_note, print_table, takes
from bearcat.errors import InputError
from bearcat.settings import DataRequest, DiagnoseRequest, pairs

if TYPE_CHECKING:
    from bearcat.data import Recording
    from bearcat.data.choose import Survey
    from bearcat.diagnosis.recording import Diagnoses

REPORTED = "Recordings; results of diagnose or predict (json); a folder of adapt; or a store of watch."
Files = Annotated[list[Path], Argument(metavar="FILES", help="Recordings, folders of them, or a manifest.")]


@takes(DiagnoseRequest)
def diagnose(files: Files, request: DiagnoseRequest, form: cli.Format = "table", healthy: cli.Healthy = None) -> None:
    """Diagnose recordings by the fault lines of their bearing. No model and no training is needed.

    Exit status: 0 all ok, 1 an alarm, 3 no alarm but something to check, 2 bad input.
    """
    cli.use_one_core()
    from bearcat.deploy import diagnose as run

    raise typer.Exit(_print_diagnoses(run(files, None, healthy or [], request), form))


@takes(DiagnoseRequest)
def predict(
    model: Annotated[Path, Argument(metavar="MODEL", help="A model's folder, a file that ends in .onnx, or general.")],
    files: Files,
    request: DiagnoseRequest,
    form: cli.Format = "table",
    healthy: cli.Healthy = None,
) -> None:
    """Diagnose recordings with a model and by their fault lines.

    Exit status: 0 all ok, 1 an alarm, 3 no alarm but something to check, 2 bad input. A file that cannot be read is
    one to check; the others are diagnosed.
    """
    cli.use_one_core()
    from bearcat.deploy import diagnose as run
    from bearcat.deploy.opened import open_model
    from bearcat.diagnosis.recording import AlarmRule

    opened = open_model(model)
    cli.print_decision(opened)
    if not request.alarm and all(map(AlarmRule().includes, opened.classes)):
        print_note("no class is called healthy or normal, so each is an alarm; choose with --alarm")
    raise typer.Exit(_print_diagnoses(run(files, opened, healthy or [], request), form))


def _print_diagnoses(diagnoses: Diagnoses, form: str) -> int:
    """Prints diagnoses, a table worst first, with notes on standard error; the exit status."""
    from bearcat.diagnosis.recording import COLUMNS, UNDECIDED

    recordings_by_note = defaultdict[str, list[str]](list)
    for diagnosis in diagnoses:
        for note in diagnosis.notes:
            recordings_by_note[note].append(diagnosis.recording)
    for note, (first, *others) in recordings_by_note.items():
        print_note(f"{first}{f' and {len(others)} more' if others else ''}: {note}")
    decided = any(diagnosis.state not in UNDECIDED for diagnosis in diagnoses)
    for diagnosis in diagnoses if form != "table" or not decided else ():  # otherwise the table has them
        if (problem := diagnosis.problem) is not None:
            name = diagnosis.recording
            print_note(f"{name}: {problem.for_command_line.removeprefix(f'{name}: ')}", "problem")
    if form != "table":
        rows = [diagnosis.row() if form == "csv" else diagnosis.to_dict() for diagnosis in diagnoses]
        print_data(form, "recordings", rows, COLUMNS)
        print_note(diagnoses.summary)
    else:
        cli.print_recordings(diagnoses.worst_first if decided else diagnoses[:0])
        print_lines(diagnoses.summary)
    return diagnoses.exit_status if decided or not diagnoses else 2  # 2: nothing could be decided


@takes(DiagnoseRequest)
def report(
    path: Annotated[str, Argument(metavar="PATH", help=REPORTED)],
    request: DiagnoseRequest,
    out: Annotated[Path, Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    machine: Annotated[str | None, Option(metavar="NAME", help="Of a store: this machine alone.")] = None,
) -> None:
    """Write one page of recordings, a run or watched machines.

    Recordings are listed worst first, with the evidence of each alarm or check (docs/diagnose.md), machines with their
    trends (docs/watch.md).
    """
    place = Path(path)
    finished, stored, written = (place / "record.json").exists(), _is_store(path), place.suffix.lower() == ".json"
    if machine is not None and not stored:
        raise InputError(f"{path} is no store of bearcat watch; leave it out", "machine")
    if (finished or stored or written) and request != DiagnoseRequest():
        raise InputError(f"{path} holds results, which are not diagnosed again; leave out what is stated of recordings")
    if stored:
        from bearcat.report.fleet import write_fleet_page
        from bearcat.watch.store import Store

        with Store.open(path) as store:
            summary = write_fleet_page(store, out, machine).summary
    elif finished:
        from bearcat.diagnosis.recording import Diagnoses
        from bearcat.report import read_result
        from bearcat.report.pages import write_run_page

        summary = Diagnoses(read_result(place).record.recordings).summary
        write_run_page(place, out)
    else:
        from bearcat.deploy import diagnose as run
        from bearcat.report.pages import read_results, write_recordings_page

        diagnoses = (read_results(place) if written else run([place], request=request)).usable()
        if not diagnoses:
            raise InputError(f"{path}: holds no results; diagnose some recordings first")
        for name, problem in diagnoses.problems.items():
            print_note(f"{name}: {problem}", "problem")
        write_recordings_page(diagnoses, out, place.resolve().name if place.is_dir() else place.stem)
        summary = diagnoses.summary
    print_lines(summary, f"All of it on one page: {out}")


def _is_store(path: str) -> bool:
    if "://" in path or not Path(path).is_file():
        return "://" in path
    with Path(path).open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


data = cli.group("Find, fetch, check and draw recordings.")

Name = Annotated[str, Argument(metavar="NAME", help="A dataset of `bearcat data list`, or your own folder.")]


@data.command("list")
def list_datasets() -> None:
    """List the datasets, their licences and where they are."""
    from bearcat.data.datasets import DATASETS, dataset_class, default_root

    for name in DATASETS:
        dataset = dataset_class(name)
        place = {"simulated": "computed when used", "folder": "wherever you keep them"}.get(name)
        print(f"{name}: {dataset.title}\n  licence: {dataset.licence}\n  {place or default_root(name)}")


@data.command()
def fetch(
    name: Name,
    root: cli.Root = None,
    accept_licence: Annotated[
        bool, Option("--accept-licence", help="You have read the licence and accept it.")
    ] = False,
    settings: cli.Set = None,
) -> None:
    """Download the files of a dataset that are not there yet."""
    from bearcat.data.datasets import default_root, open_dataset
    from bearcat.data.datasets import fetch as fetch_files

    dataset = open_dataset(name, root, pairs(settings or ()))
    folder = root or default_root(name)
    downloads = dataset.downloads()
    if not downloads:
        raise InputError(f"there is nothing to fetch for '{name}'; see what is there with: bearcat data check {name}")
    if not accept_licence:
        raise InputError(f"the licence of {dataset.title} is: {dataset.licence}; accept it with --accept-licence")
    for file, address in cli.reading_bar("downloading")(downloads.items()):
        fetch_files({file: address}, folder)
    print(f"{len(downloads)} files are in {folder}; check them with: bearcat data check {name} --root {folder}")


@data.command()
@takes(DataRequest)
def check(name: Name, request: DataRequest, domains: cli.Domains = None) -> None:
    """Read every recording; list what is there, missing or unusable."""
    from bearcat.data import open_dataset
    from bearcat.data.choose import survey

    catalogue = open_dataset(name, request.root, request.dataset_settings).catalogue().only(domains or None)
    surveyed = survey(catalogue, request.rate, request.channel, cli.reading_bar())
    _print_survey(surveyed)
    for note in surveyed.notes:
        print_note(note)
    for problem in surveyed.problems:
        print_note(problem.sentence, "problem")
    if surveyed.problems:
        raise InputError(f"{name}: {len(surveyed.problems)} problem(s) named above")


@data.command()
@takes(DataRequest)
def show(
    name: Name,
    request: DataRequest,
    domains: cli.Domains = None,
    out: Annotated[Path, Option(metavar="FILE", help="The picture: .png, .svg or .pdf.")] = Path("shift.png"),
) -> None:
    """Draw the waveform and spectra of each class in two domains."""
    from bearcat.data import open_dataset, resample
    from bearcat.report.figures import draw_shift

    catalogue = open_dataset(name, request.root, request.dataset_settings).catalogue().only(domains or None)
    if len(catalogue.domains) != 2:
        number = len(catalogue.domains)
        raise InputError(f"a picture compares two domains, not {number}; name them with --domain A --domain B")
    if not catalogue.entries:
        raise InputError(f"{name}: neither domain has a recording; see bearcat data check")
    first = {(entry.domain, entry.label): entry for entry in reversed(catalogue.entries)}  # of each class

    labelled = {domain for domain, label in first if label is not None}

    def read(domain: str, label: str | None) -> Recording | None:
        entry = first.get((domain, label if domain in labelled else None))
        recording = None if entry is None else entry.read()
        return resample(recording, request.rate) if recording and request.rate else recording

    one, other = catalogue.domains
    rows = [(label or "unlabelled", read(one, label), read(other, label)) for label in catalogue.classes or (None,)]
    titles = [domain if domain in labelled else f"{domain}, unlabelled" for domain in catalogue.domains]
    saved = draw_shift(rows, (titles[0], titles[1])).save(out)
    print_lines(f"{one} and {other}, {len(rows)} classes: {saved}")


def _print_survey(surveyed: Survey) -> None:
    """A row for each class of each domain, and the sums."""
    rows = list[dict[str, str]]()
    for (domain, label), recordings in surveyed.classes.items():
        rates = dict.fromkeys(recording.rate for recording in recordings)
        speeds = sorted({recording.rpm for recording in recordings if recording.rpm})
        bearings = dict.fromkeys(str(recording.bearing) for recording in recordings if recording.bearing)
        seconds = sum(recording.samples / (recording.rate or 1) for recording in recordings)
        rows.append({
            "domain": domain,
            "class": label,
            "recordings": str(len(recordings)),
            "seconds": "" if None in rates else f"{seconds:.2f}",
            "rate (Hz)": ", ".join("unknown" if rate is None else f"{rate:g}" for rate in rates),
            "rpm": "–".join(f"{rpm:g}" for rpm in sorted({*speeds[:1], *speeds[-1:]})),
            "bearing": ", ".join(bearings),
        })  # fmt: skip
    print_table(rows, right=("recordings", "seconds", "rate (Hz)", "rpm"))
    domains = {domain for domain, _ in surveyed.classes}
    print(f"{sum(map(len, surveyed.classes.values()))} recordings in {len(domains)} domains")
