"""Manifests: a table that lists recordings, with what is known of each.

`Columns` has each column once, with its type and a line of help; docs/own-data.md is made from it. The table is
`manifest.csv`, also as Excel saves it (semicolons or tabs, capitals in the first row, cp1252).

>>> rows, problems = [], []
>>> rows = read_manifest(Path("my-recordings/manifest.csv"), problems, None)
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bearcat.data.bearing import UNKNOWN, find_bearing
from bearcat.data.channels import Declared
from bearcat.data.datasets import MANIFEST, Problem, inside
from bearcat.data.recording import RecordingInfo
from bearcat.data.signals import Samples, decoded, reading
from bearcat.errors import InputError, shown, suggest
from bearcat.settings import Request, option
from bearcat.storage import read_regular, real_path


@dataclass(frozen=True, kw_only=True)
class Columns(Request):
    """The columns of a manifest; an empty cell says nothing. Ranges of numbers are in RANGES, by name."""

    path: str = option("", "The file, below the manifest's folder; any other file is left out.")
    domain: str = option("", "What is compared: a machine, speed, load or mounting. By default the machine.")
    machine: str = option("", "The machine. A manifest needs this column or `domain`.")
    label: str = option("", "The state, if it is known.")
    point: str = option("", "The measuring point; rows of a file with the same point are axes of one bearing.")
    channel: str = option("", "The channel to read; by default all that may be vibrations.")
    channels: Literal["", "together", "apart"] = option(
        "", "Without `channel`: `together` for axes of one bearing, `apart` for one bearing each."
    )
    start: int | None = option(None, "The first sample, to cut several recordings out of one file.")
    stop: int | None = option(None, "The sample behind the last one.")
    rate: float | None = option(None, "Sampling rate in Hz, whatever the file states.")
    rpm: str | float | None = option(None, "Speed of the shaft, or the channel that holds it.")
    bearing: str = option("", "Designation, dimensions or orders of the bearing; `unknown` is as an empty cell.")
    specimen: str = option("", "The physical bearing, by a name that no other bearing has.")
    sensor: str = option("", "Where the sensor is, for people.")
    time: str = option("", "When it was recorded, such as 2024-05-01T10:30:00; by default the time in the file's name.")
    load: float | None = option(None, "In any unit, for `watch`.")
    temperature: float | None = option(None, "In any unit, for `watch`.")
    unit: str = option("", "Unit of the samples: g, m/s², mm/s, …; or V or mV, with `sensitivity`.")
    sensitivity: float | None = option(None, "Sensitivity of the sensor in mV/g, which converts samples to g.")
    group: int | None = option(None, "ISO 20816-3: 1 above 300 kW, 2 from 15 to 300 kW.")
    mounting: Literal["", "rigid", "flexible"] = option("", "Mounting, for ISO 20816-3: `rigid` or `flexible`.")


COLUMNS = tuple(column.name for column in fields(Columns))
NUMBERS = {column.name for column in fields(Columns) if column.default is None}


@dataclass(frozen=True, kw_only=True)
class ManifestRow(RecordingInfo):
    """One recording: a file or a part of one, with what a manifest, or the file's place, says of it."""

    path: Path
    start: int = 0
    stop: int | None = None
    point: str | None = None  # the measuring point; rows of one file with the same are axes of one bearing
    channels: str | None = None  # TOGETHER or APART, of a row that names no channel
    time: str | None = None  # when it was recorded, as it is written
    load: float | None = None  # in any unit
    temperature: float | None = None  # °C
    declared: Declared = field(default_factory=Declared)  # for the zone of ISO 20816-3
    gain: float = 1.0  # what samples are multiplied by, where the sensor's sensitivity is known
    rpm_given: bool = False  # its speed is the one given for all recordings that do not state their own

    def of_channel(self, channel: str) -> ManifestRow:
        """The same of one channel of its file."""
        return replace(self, channel=channel, origin=_origin(self.origin, channel, self.start, self.stop))

    def called(self, path: str) -> str:
        """The origin of the same recording in a file of this name."""
        return _origin(path, self.channel, self.start, self.stop)

    def part(self, samples: Samples) -> Samples:
        """The samples from `start` to `stop`, in the row's unit."""
        if self.start >= len(samples) or (self.stop or 0) > len(samples):
            wrong = f"start {self.start} and stop {self.stop} in the manifest do not fit its {len(samples)} samples"
            raise InputError(f"{self.origin}: {wrong}; correct them")
        samples = samples[self.start : self.stop]
        return samples if self.gain == 1 else samples * np.float32(self.gain)  # no copy without need


def manifest_in(folder: Path) -> Path | None:
    """The manifest of a folder."""
    return path if (path := folder / MANIFEST).exists() else None


def read_manifest(file: Path, problems: list[Problem], only: Collection[Path] | None) -> list[ManifestRow]:
    """A row for each row of the manifest; a wrong header is an error, a wrong row becomes a problem."""
    root = file.parent
    header, *table = read_cells(file) or [[]]
    header = [column.strip().lower() for column in header]
    if "path" not in header or not {"domain", "machine"} & set(header):
        names = ", ".join(shown(name) for name in header) or "no column"
        raise InputError(f"{MANIFEST}: the first row must name path and domain or machine, and has: {names:.200}")
    for column in header:
        if column and column not in COLUMNS:
            raise InputError(f"{MANIFEST}: unknown column '{shown(column)}'{suggest(column, COLUMNS)}")
    rows = []
    for number, cells in enumerate(table, start=2):
        if not any(cells):
            continue
        name, texts = f"{MANIFEST} row {number}", dict(zip(header, map(str.strip, cells), strict=False))
        path = root / texts.get("path", "").replace("\0", "\ufffd").replace("\\", "/")  # as Windows has it
        if only is not None and real_path(path) not in only:
            continue
        stated = {column: shown(text) for column, text in texts.items() if column}
        shifted = any(cells[len(header) :])  # then no cell is known to be what its column says
        try:
            if shifted:
                many = f"has {len(cells)} cells, but the first row names {len(header)}"
                raise InputError(f"{many}; put quotes around a text with a comma")
            rows.append(_read_row(root, path, stated))
        except InputError as error:
            stated = {} if shifted else {column: text for column, text in stated.items() if text}
            domain = stated.get("domain") or stated.get("machine") or ""
            where = name if error.field is None else f"{name}: column '{error.field}'"
            problems.append(Problem(name, f"{where}: {error}", domain, stated.get("label"), stated))
    return rows


def read_cells(file: Path) -> list[list[str]]:
    """The cells of a csv file, as it is or as Excel saves it."""
    with reading(file.name, "a table"):
        text = decoded(read_regular(file))
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        return list(csv.reader(text.splitlines(), delimiter=delimiter))


def _read_row(root: Path, path: Path, texts: Mapping[str, str]) -> ManifestRow:
    """One recording; InputError names the column that is wrong."""
    given = {column: text for column, text in texts.items() if text}
    row = Columns.of(**{column: _plain_number(text) if column in NUMBERS else text for column, text in given.items()})
    domain, start = row.domain or row.machine, row.start or 0
    if not row.path or not domain:
        raise InputError("path and domain must not be empty")
    if not inside(root, path):
        raise InputError(f"'{row.path}' leads outside {root}; keep the recordings inside the manifest's folder")
    if not path.is_file():
        raise InputError(f"there is no file '{row.path}' in {root}")
    if row.stop is not None and row.stop <= start:
        raise InputError(f"{row.stop} must be greater than 'start' ({start})", "stop")
    # a.wav, where it is written as .\a.wav
    file = shown(path.relative_to(root).as_posix()) if path.is_relative_to(root) else row.path
    origin = _origin(file, row.channel, start, row.stop)
    unit, gain = _calibration(row)
    names = given.keys() & {field.name for field in fields(ManifestRow)}
    kept: dict[str, Any] = {name: getattr(row, name) for name in names}
    bearing = find_bearing(row.bearing) if row.bearing and row.bearing.lower() != UNKNOWN else None
    kept |= {"path": path, "domain": domain, "origin": origin, "bearing": bearing, "gain": gain}
    kept |= {"rpm": None, "rpm_channel": row.rpm} if isinstance(row.rpm, str) else {}
    return ManifestRow(**kept, declared=Declared(unit, row.group, row.mounting or None))


def _calibration(row: Columns) -> tuple[str | None, float]:
    """The unit of the signal, and what brings samples there: volts or millivolts by a sensitivity in mV/g become g."""
    if row.sensitivity is None:
        return row.unit or None, 1.0
    volts = {"v": 1000.0, "mv": 1.0}.get((row.unit or "V").lower())
    if volts is None:
        raise InputError(f"is for samples in V or mV, and 'unit' is '{row.unit}'; leave one empty", "sensitivity")
    return "g", volts / row.sensitivity


def _plain_number(text: str) -> str:
    """1480.5 of `1480,5`, and 2560000 of `2560000.0`, as pandas writes a whole number."""
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else repr(number)


def _origin(path: str, channel: str | None, start: int, stop: int | None) -> str:
    """What a channel of a part of a file is called; the path may end with the part already."""
    part = f"[{start}:{'' if stop is None else stop}]" if start or stop else ""
    return f"{path.removesuffix(part)}{f'#{channel}' if channel else ''}{part}"


DATE = r"(?P<year>(?:19|20)\d\d)(?P<mark>[-._/]?)(?P<month>0[1-9]|1[0-2])(?P=mark)(?P<day>0[1-9]|[12]\d|3[01])"
CLOCK = (
    r"(?:[T /_.-]{0,3}(?P<hour>[01]\d|2[0-3])(?:[-:._hH]?(?P<minute>[0-5]\d)"
    r"(?:[-:._mM]?(?P<second>[0-5]\d)(?:[.,_](?P<part>\d{1,9}))?s?)?)?)?"
)
ZONE = r"(?P<zone>Z|[+-](?:0\d|1[0-4]):?(?:00|15|30|45))?"
STAMP = re.compile(rf"(?<!\d){DATE}{CLOCK}{ZONE}(?!\d)")
EPOCH = re.compile(r"(?<!\d)(\d{10})(\d{3})?(?:[.,](\d{1,6}))?(?!\d)")  # seconds or milliseconds since 1970


def time_in(text: str) -> float | None:
    """The time that a text holds, in seconds since 1970; UTC without a zone; None where it holds none."""
    for match in STAMP.finditer(text):
        date = "-".join(match.group("year", "month", "day"))
        clock = ":".join(part or "00" for part in match.group("hour", "minute", "second"))
        with suppress(ValueError):  # 31 February
            moment = datetime.fromisoformat(f"{date}T{clock}{match['zone'] or ''}")
            whole = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return whole.timestamp() + float(f"0.{match['part'] or 0}")
    if number := EPOCH.search(text):
        return int(number[1]) + int(number[2] or 0) / 1000 + float(f"0.{number[3] or 0}")
    return None


def is_time(text: str) -> bool:
    """Whether a text is a time and nothing else."""
    return bool(STAMP.fullmatch(text) or EPOCH.fullmatch(text))
