"""A published run to failure: IMS, three tests of four bearings.

Each test is a folder of snapshots with a time, a machine and a point, as `bearcat watch` reads them. The published
files say this by their names alone; `write_manifest` says it in a manifest.csv. What failed is known at the end of a
run only: its first quarter is called healthy, its last hours are of the class that was found afterwards, and what lies
between has no label.

>>> first = IMS(root=Path("data/ims")).catalogue().entries[0]
>>> first.row.machine, first.row.point, first.row.time
('ims-test-2', 'bearing 1', '2004-02-12T10:32:39')
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

from bearcat.data.bearing import BEARINGS
from bearcat.data.catalogue import About, Catalogue, Dataset, Problem, files_in, grouped
from bearcat.data.datasets.folder import MANIFEST, FileReader, Folder, ManifestRow, entry_of, folder_entries
from bearcat.errors import InputError
from bearcat.storage import write_atomically

HEALTHY_SHARE = 0.25  # of a run, from its beginning, in which the bearings count as healthy
FAILING_SHARE = 0.02  # of a run, before its end, in which a bearing that failed is of that class
COLUMNS = ("path", "time", "machine", "point", "channel", "rpm", "bearing", "rate")  # of the manifest that is written

IMS_RATE, IMS_SPEED = 20_480.0, 2000.0
IMS_FOLDER = re.compile(r"([1-4])(?:st|nd|rd|th)_test")  # the third test is published as 3rd_test or as 4th_test/txt
IMS_NAME = re.compile(r"(\d{4})\.(\d\d)\.(\d\d)\.(\d\d)\.(\d\d)\.(\d\d)")
IMS_AXES = {"1": 2, "2": 1, "3": 1}  # channels of each bearing, by test
# What was found at the end, by test and bearing: the publisher's readme.
IMS_FAULTS = {("1", 3): "inner", ("1", 4): "ball", ("2", 1): "outer", ("3", 3): "outer"}
IMS_STOPPED = {"2": "2004-02-19T06:12:39"}  # from here on the machine stands still


@dataclass(frozen=True)
class IMS(Dataset):
    """The settings of the dataset; `root` holds 1st_test, 2nd_test, 3rd_test unpacked, or files with a manifest.

    >>> open_dataset("ims", Path("data/ims")) == IMS(Path("data/ims"))
    True
    """

    root: Path

    about: ClassVar[About] = About(
        title="IMS, University of Cincinnati: three runs to failure of four bearings, 20.48 kHz",
        licence="public; cite Lee, Qiu, Yu, Lin and Rexnord Technical Services (2007), NASA prognostics repository",
        licence_address="https://data.nasa.gov/dataset/ims-bearings",
        by_hand="download IMS Bearings from NASA's prognostics data repository, unpack IMS.7z and the three .rar in it",
    )

    def catalogue(self) -> Catalogue:
        """Every channel of every snapshot, in order of machine and time."""
        if (self.root / MANIFEST).is_file():
            listed = Folder(self.root).catalogue()
            files, problems = [entry.row for entry in folder_entries(listed)], list(listed.problems)
        else:
            files, problems = self._published() if self.root.is_dir() else ([], [])
            if not files and not problems:
                raise InputError(
                    f"{self.root}: holds none of the published files; {self.about.by_hand} into this folder"
                )
        rows = [row for file in files for row in self._channels(file)]
        times = [_time(row) for row in rows]
        spans = {
            machine: (min(times[number] for number in numbers), max(times[number] for number in numbers))
            for machine, numbers in grouped(range(len(rows)), lambda number: rows[number].machine).items()
        }
        reader, entries = FileReader(), []
        for row, time in zip(rows, times, strict=True):
            first, last = spans[row.machine]
            share = (time - first) / max(last - first, timedelta(seconds=1))
            entries.append(entry_of(replace(row, label=_label(row, share)), reader))
        domains = tuple(sorted({row.domain for row in rows}))
        return Catalogue(domains, ("healthy", "inner", "outer", "ball"), tuple(entries), tuple(problems))

    def _published(self) -> tuple[list[ManifestRow], list[Problem]]:
        """A row for each file with a time as its name below the folder of a test."""
        files: dict[tuple[str, str], list[Path]] = {}
        for name, places in files_in(self.root, "[12]*").items():
            for path in places if IMS_NAME.fullmatch(name) else ():
                if found := IMS_FOLDER.findall(path.relative_to(self.root).as_posix()):
                    files.setdefault((found[-1].replace("4", "3"), name), []).append(path)
        rows, problems = [], []
        for (test, name), places in files.items():
            machine, origin = f"ims-test-{test}", places[0].relative_to(self.root).as_posix()
            if len(places) > 1:
                problems.append(Problem.about_file(name, places, self.root, machine, machine))
                continue
            *date, hour, minute, second = name.split(".")
            time = f"{'-'.join(date)}T{hour}:{minute}:{second}"
            rows.append(ManifestRow(path=places[0], origin=origin, domain=machine, machine=machine, time=time))
        return sorted(rows, key=lambda row: (row.machine or "", row.time or "")), problems

    def _channels(self, file: ManifestRow) -> Iterator[ManifestRow]:
        """A row for each channel of a file: one or two for each bearing."""
        test = (re.findall(r"\d", file.machine or "") or [""])[-1]
        if test not in IMS_AXES:
            raise InputError(f"{MANIFEST}: machine '{file.machine}' must end with the test: ims-test-1, -2 or -3")
        axes = IMS_AXES[test]
        for row in _divided(file, [str(number + 1) for number in range(4 * axes)]):
            bearing, axis = divmod(int(row.channel or 1) - 1, axes)
            domain = f"test{test}-bearing{bearing + 1}"
            yield replace(
                row, domain=domain, point=f"bearing {bearing + 1}", specimen=f"ims {domain}", rate=row.rate or IMS_RATE,
                rpm=row.rpm or IMS_SPEED, bearing=row.bearing or BEARINGS["ZA2115"],
                sensor="xy"[axis] if axes > 1 else None,
            )  # fmt: skip


def _label(row: ManifestRow, share: float) -> str | None:
    """The class of a snapshot at this share of its run."""
    test, bearing = row.domain[4], int(row.domain[-1])
    if share >= 1 - FAILING_SHARE and str(row.time) < IMS_STOPPED.get(test, "9"):
        return IMS_FAULTS.get((test, bearing))
    return "healthy" if share <= HEALTHY_SHARE else None


def _divided(file: ManifestRow, channels: Sequence[str]) -> list[ManifestRow]:
    """The rows of a file's channels; a row that names its channel stays."""
    if file.channel is None:
        return [file.of_channel(channel) for channel in channels]
    if file.channel not in channels:
        raise InputError(f"{MANIFEST}: {file.path.name} has channels 1 to {channels[-1]}, not '{file.channel}'")
    return [file]


def _time(row: ManifestRow) -> datetime:
    try:
        return datetime.fromisoformat(row.time or "").replace(tzinfo=None)
    except ValueError as error:
        raise InputError(f"{MANIFEST}: {row.path.name} needs a time such as 2004-02-12T10:32:39") from error


def write_manifest(catalogue: Catalogue, root: Path) -> int:
    """Writes what file names say into manifest.csv, unless there is one, so that other commands read the files too."""
    rows = [entry.row for entry in folder_entries(catalogue)]
    if not (root / MANIFEST).exists():
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for row in rows:
            values = row.time, row.machine, row.point, row.channel, f"{row.rpm:g}", row.bearing, f"{row.rate:g}"
            writer.writerow([row.path.relative_to(root).as_posix(), *values])
        write_atomically(root / MANIFEST, text.getvalue().encode())
    return len(rows)
