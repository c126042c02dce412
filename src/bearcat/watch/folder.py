"""Recordings below a folder: whose they are, when they were made, and which of them are complete.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from bearcat.data.catalogue import Problem, checked_root, file_state, grouped, inside
from bearcat.data.datasets.folder import MANIFEST, ManifestRow, read_manifest, speed_in_name
from bearcat.data.stream import FORMATS
from bearcat.data.times import time_in
from bearcat.errors import InputError
from bearcat.names import shown
from bearcat.report.typeset import listed

AHEAD = 86400.0  # seconds by which a clock may be fast: what comes after such a file would be late
SETTLED = 2.0  # seconds without a change after which a file counts as complete
LONGEST_NAME = 200  # characters of a machine or a point
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

    @property
    def place(self) -> str:
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


def zone_called(name: str | None) -> tzinfo:
    """A time zone by its name, such as Europe/Berlin; UTC without one."""
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:  # a name that is no path inside the zones, or is not there
        raise InputError(f"--timezone: there is no time zone '{name}'; write it as Europe/Berlin or UTC") from error


class WatchedFolder:
    """A folder that is read again and again. What cannot be used, is left out or assumed is named by `sentences`."""

    def __init__(self, root: Path, zone: tzinfo = UTC) -> None:
        self.root, self.zone = checked_root(root).resolve(), zone
        self.name = self.root.name or "machine"
        self._sentences: dict[str, str] = {}
        self._manifests: dict[str, tuple[list[int], list[Arrival]]] = {}
        self._unsettled: dict[str, tuple[int, int, float]] = {}  # size, change, and when that was first found

    def sentences(self) -> dict[str, str]:
        """What is to be said since the last call, and the kind of each sentence: "problem" or "note"."""
        found, self._sentences = self._sentences, {}
        return found

    def _say(self, sentence: str, kind: str = "problem") -> None:
        self._sentences[sentence] = kind

    def scan(self) -> Iterator[Arrival]:
        """Every recording below the folder, in no order."""
        unknown = set[str]()
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError as error:
                if folder == self.root:
                    raise
                self._say(f"{shown(str(folder))}: cannot be read ({os.strerror(error.errno or 0)})")
                continue
            if any(entry.name == MANIFEST and entry.is_file() for entry in entries):
                yield from self._listed(folder)
                continue
            for entry in entries:
                path = Path(entry.path)
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif path.suffix.lower() not in FORMATS:
                    if not entry.is_symlink() or not entry.is_dir():
                        unknown.add(path.suffix)
                    elif not inside(self.root, path):
                        self._say(f"{shown(str(path))}: is a link to a folder elsewhere, and is left out", "note")
                elif (arrival := self.arrival(path)) is not None:
                    yield arrival
        if unknown:
            kinds = listed(sorted(shown(suffix) or "none" for suffix in unknown))
            self._say(f"files of other formats are left out; their suffixes are: {kinds}", "note")

    def arrival(self, path: Path) -> Arrival | None:
        """A file by its place below the folder; None where it cannot be used, which is named."""
        try:
            if not path.is_file():
                if path.exists() and not path.is_dir():
                    self._say(f"{shown(str(path))}: is no regular file, and is left out", "note")
                return None
            if path.is_symlink() and not inside(self.root, path):
                self._say(f"{shown(str(path))}: leads outside {self.root}; copy the file into the folder")
                return None
            state = path.stat()
        except OSError:  # it is gone again
            return None
        *folders, _ = path.relative_to(self.root).parts
        cut = next((
            place for place in range(1, len(folders))
            if YEAR.fullmatch(folders[place]) and all(map(DIGITS.fullmatch, folders[place:]))
        ), len(folders))  # fmt: skip
        machine = "/".join(folders[: max(1, cut - 1)]) or self.name
        point = folders[cut - 1] if cut > 1 else None
        when = time_in(path.stem, self.zone)
        if when is None:
            when = time_in("/".join([*folders[cut:], path.stem]), self.zone)
        if when is None:
            when = self._last_change(machine, path, state)
        speed = speed_in_name(point or "") or speed_in_name(machine)
        return self._checked(Arrival(str(path), machine, point, when, state.st_size, state.st_mtime_ns, (), speed))

    def _checked(self, arrival: Arrival) -> Arrival | None:
        """The arrival; None where names cannot be kept or printed."""
        for text in (arrival.path, arrival.machine, arrival.point or ""):
            if not text.isprintable() or len(text) > 4096:
                self._say(f"{shown(arrival.path)}: the name cannot be printed; rename it")
                return None
        if arrival.time > time.time() + AHEAD:
            self._say(f"{arrival.path}: its time has not come yet; set the clock, and name it anew")
            return None
        for text in (arrival.machine, arrival.point or ""):
            if len(text) > LONGEST_NAME:
                self._say(f"{arrival.path}: the name of the machine or point is too long; shorten it")
                return None
        return arrival

    def _listed(self, folder: Path) -> list[Arrival]:
        """The recordings that a manifest lists. It is read again when it has changed."""
        state = file_state(folder / MANIFEST)
        before, found = self._manifests.get(str(folder), ([], []))
        if state == before:
            return found
        problems, found = list[Problem](), []
        try:
            rows = read_manifest(folder, problems, None)
        except InputError as error:
            self._say(f"{folder}: {error}")
            return []
        groups = grouped(rows, lambda row: (row.path, row.start, row.stop, row.machine or row.domain, row.time))
        for (path, _, _, machine, text), same in groups.items():
            try:
                status = path.stat()
                when = time_in(path.stem if text is None else text, self.zone)
                if when is None and text is not None:
                    raise InputError(f"'{text}' is no time; write it as 2024-05-01T10:32:39")
            except (InputError, OSError) as error:
                problems.append(Problem(str(path), str(error)))
                continue
            points = {row.point for row in same}
            point = same[0].point if len(points) == 1 and len(same) == 1 else None
            when = self._last_change(machine, path, status) if when is None else when
            arrival = Arrival(str(path), machine, point, when, status.st_size, status.st_mtime_ns, tuple(same))
            found += [arrival] if self._checked(arrival) is not None else []
        for problem in problems:
            self._say(f"{folder}: {problem.sentence}")
        if not problems:  # files that are missing may still come
            self._manifests[str(folder)] = state, found
        return found

    def _last_change(self, machine: str, path: Path, status: os.stat_result) -> float:
        sentence = f"{shown(machine)}: {shown(path.name)} has no time in its name, so its last change counts"
        self._say(sentence, "note")
        return status.st_mtime

    def complete(self, arrivals: Sequence[Arrival]) -> tuple[list[Arrival], list[Arrival]]:
        """Those whose files have not changed for some seconds, and the others, which may still be written."""
        done, fresh, now = [], [], time.time()
        for each in arrivals:
            state = each.size, each.changed
            if 0 <= now - each.changed / 1e9 < SETTLED or each.changed / 1e9 > now:
                size, changed, since = self._unsettled.get(each.path, (-1, -1, now))
                if (size, changed) != state:
                    since = now
                    self._unsettled[each.path] = *state, now
                if now - since < SETTLED:
                    fresh.append(each)
                    continue
            self._unsettled.pop(each.path, None)
            done.append(each)
        return done, fresh
