"""Recordings below a folder: whose they are, and when they were made.

    FOLDER/MACHINE/POINT/TIME.ext   deeper folders belong to the machine's name, or to the time (2024/05/01/)
    FOLDER/MACHINE/TIME.ext         the channels of the file are the points
    FOLDER/TIME.ext                 likewise; the machine is called after the folder
    FOLDER/manifest.csv             columns path and machine, and any of point, time, rpm, bearing, load, temperature, …

A manifest, in whichever folder, speaks for all that lies below it. Times without a zone are UTC; a file whose name has
no time has that of its last change.

>>> folder = WatchedFolder(Path("plant"))
>>> [arrival.machine for arrival in folder.scan()]
['pump 3']
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bearcat.data.datasets import Problem, checked_root, grouped, inside
from bearcat.data.folder import speed_in_folders, with_folder_speed
from bearcat.data.formats import FORMATS
from bearcat.data.manifest import ManifestRow, manifest_in, read_manifest, time_in
from bearcat.errors import InputError, shown

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
        """Machine, point and part of the file: what a file is read once for."""
        parts = {f"{row.point or ''}#{row.channel or ''}[{row.start}:{row.stop or ''}]" for row in self.rows}
        return f"{self.machine}/{','.join(sorted(parts)) or self.point or ''}"

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """What the store knows a file by."""
        return self.path, self.part, self.size, self.changed

    def unchanged(self) -> bool:
        """Whether the file is still as it was found."""
        try:
            status = Path(self.path).stat()
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size, self.changed)


class WatchedFolder:
    """A folder that is read again and again. What cannot be used, is left out or assumed is passed to `say`, with the
    kind of the sentence: "problem" or "note".
    """

    def __init__(self, root: Path) -> None:
        self.root = checked_root(root).resolve()
        self.say: Callable[[str, str], None] = lambda *_: None

    def scan(self, known: Container[tuple[str, str, int, int]] = ()) -> Iterator[Arrival]:
        """Every recording below the folder whose identity is not known, in no order."""
        return (each for each in self._found() if each.identity not in known and self._usable(each))

    def _found(self) -> Iterator[Arrival]:
        for parent, folders, names in os.walk(self.root, onerror=self._unreadable):
            if manifest := manifest_in(Path(parent)):
                folders.clear()
                yield from self._listed(manifest)
                continue
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for path in (Path(parent, name) for name in sorted(names) if not name.startswith(".")):
                if path.suffix.lower() in FORMATS and os.path.isfile(path):  # noqa: PTH113 (never raises)
                    yield from self._placed(path)

    def _unreadable(self, error: OSError) -> None:
        self.say(f"{shown(str(error.filename))}: cannot be read ({os.strerror(error.errno or 0)})", "problem")

    def _usable(self, arrival: Arrival) -> bool:
        """Whether a file can be read, its names printed, and its time has come; otherwise says why not."""
        problem = None
        if not all(text.isprintable() for text in (arrival.path, arrival.machine, arrival.point or "")):
            problem = "the name cannot be printed; rename it"
        elif arrival.problem is None and not os.access(arrival.path, os.R_OK):
            problem = "cannot be read; make it readable"
        elif arrival.problem is None and not inside(self.root, Path(arrival.path)):
            problem = "is a link that leads outside the folder; copy the file into it"
        elif arrival.time > time.time() + AHEAD:
            problem = "its time has not come yet; set the clock, and name it anew"
        if problem is not None:
            self.say(f"{shown(arrival.path)}: {problem}", "problem")
        return problem is None

    def _arrivals(
        self, path: Path, machine: str, point: str | None, texts: Sequence[str], **stated: Any
    ) -> Iterator[Arrival]:
        """A file, at the time in the first of these texts that has one, or that of its last change."""
        try:
            status = path.stat()
        except OSError:  # it is gone again
            return
        if (when := self._stated(texts)) is None:
            when = status.st_mtime_ns / 1e9
            last = f"{shown(path.name)} has no time in its name, so its last change counts"
            self.say(f"{shown(machine)}: {last}", "note")
        yield Arrival(str(path), machine, point, when, status.st_size, status.st_mtime_ns, **stated)

    def _stated(self, texts: Sequence[str]) -> float | None:
        return next((when for text in texts if (when := time_in(text)) is not None), None)

    def _placed(self, path: Path) -> Iterator[Arrival]:
        """A file by its place below the folder."""
        *folders, _ = path.relative_to(self.root).parts
        cut = next((
            depth for depth in range(1, len(folders))
            if YEAR.fullmatch(folders[depth]) and all(map(DIGITS.fullmatch, folders[depth:]))
        ), len(folders))  # fmt: skip
        machine = "/".join(folders[: max(1, cut - 1)]) or self.root.name or "machine"
        point, texts = folders[cut - 1] if cut > 1 else None, (path.stem, "/".join([*folders[cut:], path.stem]))
        return self._arrivals(path, machine, point, texts, rpm=speed_in_folders(path))

    def _listed(self, manifest: Path) -> Iterator[Arrival]:
        """The recordings that a manifest lists; a row that cannot be read is one with a problem, so that its point is
        to be checked.
        """
        folder, problems = manifest.parent, list[Problem]()
        try:
            rows = [with_folder_speed(row) for row in read_manifest(manifest, problems, None)]
        except InputError as error:
            self.say(f"{folder}: {error}", "problem")
            return
        groups = grouped(rows, lambda row: (row.path, row.start, row.stop, row.machine or row.domain, row.time))
        for (path, _, _, machine, text), same in groups.items():
            if text is not None and self._stated([text]) is None:
                problems.append(Problem(str(path), f"'{text}' is no time; write it as 2024-05-01T10:32:39"))
                continue
            point = same[0].point if len(same) == 1 else None
            yield from self._arrivals(path, machine, point, [text or path.stem], rows=tuple(same))
        for problem in problems:
            sentence, stated = f"{folder}: {problem.sentence}", problem.stated
            name, owner = stated.get("path") or problem.origin, stated.get("machine") or stated.get("domain")
            if owner is None:
                self.say(sentence, "problem")
                continue
            when = self._stated([stated.get("time") or "", Path(name).stem]) or time.time()
            yield Arrival(str(folder / name), owner, stated.get("point"), when, 0, 0, problem=sentence)
