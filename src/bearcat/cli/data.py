"""Recordings: `data list`, `data fetch`, `data check` and `data show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from bearcat.cli import options
from bearcat.cli.options import Commands, print_lines, print_note, print_table, takes
from bearcat.errors import InputError
from bearcat.requests import DataRequest
from bearcat.settings import pairs

if TYPE_CHECKING:
    from bearcat.data import Preparation
    from bearcat.data.survey import Survey

commands = Commands(help="Find, fetch, check and draw recordings.")

Name = Annotated[str, Argument(metavar="NAME", help="A dataset of `bearcat data list`, or your own folder.")]


@commands.command("list")
def list_datasets() -> None:
    """The datasets bearcat knows, their licences, and whether they are on this machine."""
    from bearcat.data import DATASETS, default_root

    for name, kind in DATASETS.items():
        folder = default_root(name)
        place = f"in {folder}" if folder.is_dir() else f"not in {folder}; bearcat data fetch {name}"
        place = {"simulated": "computed when used", "folder": "wherever you keep them"}.get(name, place)
        print(f"{name:<10}  {kind.about.title}\n{'':<10}  licence: {kind.about.licence}\n{'':<10}  {place}")


@commands.command()
def fetch(
    name: Name,
    root: options.Root = None,
    accept_licence: Annotated[
        bool, Option("--accept-licence", help="You have read the licence and accept it.")
    ] = False,
    domains: options.Domains = None,
    settings: options.Set = None,
) -> None:
    """Download a dataset from its official address; an interrupted download goes on where it stopped.

    Simulated recordings are computed and written as wav files with a manifest.
    """
    from rich.progress import BarColumn, DownloadColumn, TaskID, TransferSpeedColumn

    from bearcat.data import default_root, open_dataset
    from bearcat.data.fetch import fetch as fetch_files
    from bearcat.data.fetch import require_licence

    dataset = open_dataset(name, root, pairs(settings or ()))
    if name == "simulated":
        from bearcat.data.datasets.folder import write_folder

        if root is None:
            raise InputError("--root: is missing; name the folder to write the simulated recordings into")
        found = write_folder(dataset.catalogue().only(domains or None), root)
        print(f"{found} recordings are in {root}; diagnose them with: bearcat diagnose {root}")
        return
    folder = root or default_root(name)
    downloads = dataset.downloads()
    if not downloads:
        raise InputError(f"there is nothing to fetch for '{name}'")
    require_licence(dataset.about, accept_licence)
    with options.bars(BarColumn(), DownloadColumn(), TransferSpeedColumn()) as shown:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(file, total=total)
            shown.update(tasks[file], completed=done, total=total)

        files = fetch_files(downloads, folder, progress=show)
    print(f"{len(files)} files are in {folder}; check them with: bearcat data check {name} --root {folder}")


@commands.command()
@takes(DataRequest)
def check(name: Name, request: DataRequest, domains: options.Domains = None) -> None:
    """Read every recording and report what is there, what is missing and what `adapt` could not use."""
    from bearcat.data import Preparation, open_dataset
    from bearcat.data.choose import as_adapt_reads
    from bearcat.data.survey import survey

    preparation = Preparation(rate=request.rate)
    dataset = open_dataset(name, request.folder, request.dataset_settings)
    catalogue = dataset.catalogue().only(domains or None)
    catalogue, preparation = as_adapt_reads(dataset, catalogue, preparation, request.channel)
    found = survey(catalogue, preparation, progress=options.reading_bar())
    _print_table(found, preparation)
    for note in found.notes:
        print_note(note)
    for problem in found.problems:
        print_note(problem.sentence, "problem")
    if found.problems:
        ready = all(problem.domain is not None for problem in found.problems)
        so = "adapt leaves these recordings out" if ready else "adapt cannot use it"
        raise InputError(f"{name}: {len(found.problems)} problem(s) named above; {so}")
    if len({row.domain for row in found.rows}) < 2:
        print_note("one domain alone makes no task; adapting needs a source and a target")


@commands.command()
@takes(DataRequest)
def show(
    name: Name,
    request: DataRequest,
    domains: options.Domains = None,
    out: Annotated[Path, Option(metavar="FILE", help="The picture: .png, .svg or .pdf.")] = Path("shift.png"),
) -> None:
    """Draw waveform, spectrum and envelope spectrum (with known fault frequencies) per class for two domains."""
    from bearcat.data import Recording, open_dataset, resample
    from bearcat.data.survey import UNLABELLED
    from bearcat.report.figures import draw_shift

    dataset = open_dataset(name, request.folder, request.dataset_settings)
    catalogue = dataset.catalogue().only(domains or None)
    if (count := len(catalogue.domains)) < 2 or (domains and count != 2):
        raise InputError(f"a picture compares two domains, not {count}; name them with --domain A --domain B")
    left, right = catalogue.domains[:2]
    if count > 2:
        print_note(f"drawn are {left} and {right}, the first of {count} domains; --domain names others")
    sides: dict[str, dict[str, Recording]] = {left: {}, right: {}}  # the first recording of each class
    for entry in catalogue.entries:
        label, side = entry.label or UNLABELLED, sides.get(entry.domain)
        if side is not None and label not in side:
            side[label] = entry.read() if request.rate is None else resample(entry.read(), request.rate)
    labels = [label for label in catalogue.classes if label in sides[left] or label in sides[right]]
    titles = {left: left, right: right}
    for domain, side in sides.items():  # one without labels stands beside every class of the other
        if labels and list(side) == [UNLABELLED]:
            alone = side.pop(UNLABELLED)
            titles[domain] = f"{domain}, unlabelled ({Path(alone.origin).name})"
            side |= dict.fromkeys(labels, alone)
    labels += [UNLABELLED] if any(UNLABELLED in side for side in sides.values()) else []
    if not labels:
        raise InputError(f"{name}: neither '{left}' nor '{right}' has a recording; see bearcat data check")
    rows = [(label, sides[left].get(label), sides[right].get(label)) for label in labels]
    pair = titles[left], titles[right]
    print_lines(f"{left} and {right}, {len(rows)} classes: {draw_shift(rows, pair).save(out)}")


def _print_table(found: Survey, preparation: Preparation) -> None:
    from bearcat.data.splits import specimens_sentence
    from bearcat.data.survey import UNLABELLED

    rows = [
        {
            "domain": row.domain,
            "class": row.label,
            "recordings": str(row.recordings),
            "seconds": "?" if row.seconds is None else f"{row.seconds:.2f}",
            "rate (Hz)": ", ".join("unknown" if rate is None else f"{rate:g}" for rate in row.rates),
            "windows": str(row.windows),
            "rpm": "–".join(f"{rpm:g}" for rpm in sorted({*row.speeds[:1], *row.speeds[-1:]})),
            "bearing": ", ".join(row.bearings),
        }
        for row in found.rows
    ]
    print_table(rows, left=("domain", "class", "bearing"))
    recordings, windows = (sum(getattr(row, name) for row in found.rows) for name in ("recordings", "windows"))
    domains, classes = {row.domain for row in found.rows}, {row.label for row in found.rows} - {UNLABELLED}
    print(
        f"{recordings} recordings in {len(domains)} domains, {len(classes)} classes;"
        f" {windows} windows of {preparation.length} samples every {preparation.step}"
    )
    if found.specimens:
        print_lines(specimens_sentence(found.specimens))
