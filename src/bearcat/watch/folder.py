"""Recordings below a folder: whose they are, and when they were made.

    FOLDER/MACHINE/POINT/TIME.ext   deeper folders belong to the machine's name, or to the time (2024/05/01/)
    FOLDER/MACHINE/TIME.ext         the channels of the file are the points
    FOLDER/TIME.ext                 likewise; the machine is called after the folder
    FOLDER/manifest.csv             columns path and machine, and any of point, time, rpm, bearing, load, temperature, …

A manifest, in whichever folder, speaks for all that lies below it. Times without a zone are UTC unless one is given;
a file whose name has no time has that of its last change.

>>> folder = WatchedFolder(Path("plant"))
>>> [arrival.machine for arrival in folder.scan()]
['pump 3']
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from bearcat.data.datasets import Problem, checked_root, grouped, inside
from bearcat.data.folder import speed_in_folders, with_folder_speed
from bearcat.data.formats import FORMATS
from bearcat.data.manifest import ManifestRow, manifest_in, read_manifest, time_in
from bearcat.errors import InputError, shown
from bearcat.findings import listed

AHEAD = 86400.0  # seconds by which a clock may be fast: what comes after such a file would be late
YEAR = re.compile(r"(19|20)\d\d([-._]?\d\d){0,2}")  # a folder with which a time begins
DIGITS = re.compile(r"[\d._-]+")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A file to be measured, or a part of one: whose it is, when it was recorded, and what a manifest says of it."""

    path: str
    machine: str
    point: str | None  # None: its channels are points
    time: float  # seconds since 1970
    size: int
    changed: int  # nanoseconds since 1970
    rows: tuple[ManifestRow, ...] = ()
    rpm: float | None = None
    problem: str | None = None  # why there is no such file

    @property
    def part(self) -> str:
        """Machine, point and part of the file: what the same content is read once for."""
        parts = {f"{row.point or ''}#{row.channel or ''}[{row.start}:{row.stop or ''}]" for row in self.rows}
        return f"{self.machine}/{','.join(sorted(parts)) or self.point or ''}"

    def unchanged(self) -> bool:
        """Whether the file is still as it was found."""
        try:
            status = Path(self.path).stat()
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size, self.changed)


class WatchedFolder:
    """A folder that is read again and again; times without a zone are in this one, or UTC. What cannot be used, is left
    out or assumed is passed to `say`, with the kind of the sentence: "problem" or "note".
    """

    def __init__(self, root: Path, zone: str | None = None) -> None:
        self.root = checked_root(root).resolve()
        try:
            self.zone = ZoneInfo(zone or "UTC")
        except (OSError, ValueError, KeyError) as error:  # a name that is no path inside the zones, or is not there
            raise InputError(f"there is no time zone '{zone}'; write it as Europe/Berlin or UTC", "timezone") from error
        self.say: Callable[[str, str], None] = lambda *_: None

    def scan(self) -> Iterator[Arrival]:
        """Every recording below the folder, in no order."""
        unknown = set[str]()
        for parent, folders, names in os.walk(self.root, onerror=self._unreadable):
            if manifest := manifest_in(Path(parent)):
                folders.clear()
                yield from filter(self._usable, self._listed(manifest))
                continue
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for path in (Path(parent, name) for name in sorted(names) if not name.startswith(".")):
                if path.suffix.lower() not in FORMATS:
                    unknown.add(path.suffix)
                elif (arrival := self._placed(path)) is not None and self._usable(arrival):
                    yield arrival
        if unknown:
            kinds = listed(sorted(shown(suffix) or "none" for suffix in unknown))
            self.say(f"files of other formats are left out; their suffixes are: {kinds}", "note")

    def _unreadable(self, error: OSError) -> None:
        if error.filename == str(self.root):
            raise error
        self.say(f"{shown(str(error.filename))}: cannot be read ({os.strerror(error.errno or 0)})", "problem")

    def _usable(self, arrival: Arrival) -> bool:
        """Whether names can be kept and printed, and the time has come; otherwise says why not."""
        problem = None
        if not all(text.isprintable() for text in (arrival.path, arrival.machine, arrival.point or "")):
            problem = "the name cannot be printed; rename it"
        elif arrival.time > time.time() + AHEAD:
            problem = "its time has not come yet; set the clock, and name it anew"
        if problem is not None:
            self.say(f"{shown(arrival.path)}: {problem}", "problem")
        return problem is None

    def _arrival(
        self, path: Path, status: os.stat_result, machine: str, point: str | None, texts: Sequence[str], **stated: Any
    ) -> Arrival:
        """A file, at the time in the first of these texts that has one, or that of its last change."""
        if (when := self._stated(texts)) is None:
            when = status.st_mtime
            last = f"{shown(path.name)} has no time in its name, so its last change counts"
            self.say(f"{shown(machine)}: {last}", "note")
        return Arrival(str(path), machine, point, when, status.st_size, status.st_mtime_ns, **stated)

    def _stated(self, texts: Sequence[str]) -> float | None:
        return next((when for text in texts if (when := time_in(text, self.zone)) is not None), None)

    def _placed(self, path: Path) -> Arrival | None:
        """A file by its place below the folder; None where it is no file, or leads outside, which is named."""
        try:
            if not path.is_file():
                return None
            if path.is_symlink() and not inside(self.root, path):
                self.say(f"{shown(str(path))}: leads outside {self.root}; copy the file into the folder", "problem")
                return None
            status = path.stat()
        except OSError:  # it is gone again
            return None
        *folders, _ = path.relative_to(self.root).parts
        cut = next((
            depth for depth in range(1, len(folders))
            if YEAR.fullmatch(folders[depth]) and all(map(DIGITS.fullmatch, folders[depth:]))
        ), len(folders))  # fmt: skip
        machine = "/".join(folders[: max(1, cut - 1)]) or self.root.name or "machine"
        point, texts = folders[cut - 1] if cut > 1 else None, (path.stem, "/".join([*folders[cut:], path.stem]))
        return self._arrival(path, status, machine, point, texts, rpm=speed_in_folders(path, self.root))

    def _listed(self, manifest: Path) -> Iterator[Arrival]:
        """The recordings that a manifest lists; a row that cannot be read is one with a problem, so that its point is
        to be checked.
        """
        folder, problems = manifest.parent, list[Problem]()
        try:
            rows = [with_folder_speed(row, self.root) for row in read_manifest(manifest, problems, None)]
        except InputError as error:
            self.say(f"{folder}: {error}", "problem")
            return
        groups = grouped(rows, lambda row: (row.path, row.start, row.stop, row.machine or row.domain, row.time))
        for (path, _, _, machine, text), same in groups.items():
            try:
                status = path.stat()
                if text is not None and self._stated([text]) is None:
                    raise InputError(f"'{text}' is no time; write it as 2024-05-01T10:32:39")
            except (InputError, OSError) as error:
                problems.append(Problem(str(path), str(error)))
                continue
            point = same[0].point if len(same) == 1 else None
            yield self._arrival(path, status, machine, point, [text or path.stem], rows=tuple(same))
        for problem in problems:
            sentence, stated = f"{folder}: {problem.sentence}", problem.stated
            name, owner = stated.get("path") or problem.origin, stated.get("machine") or stated.get("domain")
            if owner is None:
                self.say(sentence, "problem")
                continue
            when = self._stated([stated.get("time") or "", Path(name).stem]) or time.time()
            yield Arrival(str(folder / name), owner, stated.get("point"), when, 0, 0, problem=sentence)
