"""Manifests: a table that lists recordings, with what is known of each.

`manifest.csv` has the columns path and domain (or machine), and any of the others in COLUMNS; docs/own-data.md has
examples. It may be as Excel saves it: with semicolons or tabs, capitals in the first row, in Windows' cp1252; or it is
Excel's own `manifest.xlsx`, whose first sheet counts.

>>> rows, problems = [], []
>>> rows = read_manifest(Path("my-recordings/manifest.csv"), problems, None)
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.bearing import UNKNOWN, find_bearing
from bearcat.data.catalogue import Problem, inside
from bearcat.data.channels import CHANNELS, Declared
from bearcat.data.isolated import read_table
from bearcat.data.recording import Recording, RecordingInfo, stated_speed, stretch
from bearcat.data.signals import Samples, Signals, reading
from bearcat.errors import InputError, check_range, shown, suggest
from bearcat.storage import read_regular, real_path

MANIFESTS = "manifest.csv", "manifest.xlsx"
COLUMNS = (
    "path", "domain", "label", "rate", "channel", "start", "stop", "rpm", "bearing", "machine", "specimen", "sensor",
    "point", "channels", "time", "load", "temperature", "bpfo", "bpfi", "bsf", "ftf",
    "unit", "sensitivity", "group", "mounting",
)  # fmt: skip


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
        part = _part_name(self.start, self.stop)
        origin = f"{self.origin.removesuffix(part)}#{channel}{part}"
        return replace(self, channel=channel, origin=origin)

    def called(self, path: str) -> str:
        """The origin of the same recording in a file of this name."""
        return f"{path}{'' if self.channel is None else f'#{self.channel}'}{_part_name(self.start, self.stop)}"

    def part(self, samples: Samples) -> Samples:
        """The samples from `start` to `stop`."""
        if self.start >= len(samples) or (self.stop or 0) > len(samples):
            wrong = f"start {self.start} and stop {self.stop} in the manifest do not fit its {len(samples)} samples"
            raise InputError(f"{self.origin}: {wrong}; correct them")
        return samples[self.start : self.stop]

    def metadata(self, signals: Signals) -> RecordingInfo:
        """What is known once the file was read: its rate, and its speed, which is the mean of a recorded one."""
        if signals.speed is not None:
            return replace(self.info(), rate=signals.rate, rpm=float(np.mean(signals.speed, dtype=np.float64)))
        stated = set(signals.speeds.values()) if signals.speeds.keys() == signals.channels.keys() else set()
        listed, usual = (None, self.rpm) if self.rpm_given else (self.rpm, None)
        rpm, _ = stated_speed(self.origin, stated.pop() if len(stated) == 1 else None, listed, usual)
        return replace(self.info(), rate=signals.rate, rpm=rpm)

    def recording(self, signals: Signals, channel: str | None) -> Recording:
        """The recording of this channel of what was read; without a name, of the only one there is."""
        channel, samples = signals.pick(channel)
        speed = None if signals.speed is None else stretch(signals.speed, samples.size)
        info = self.metadata(signals) if speed is None else self.info()  # of a recorded one, its mean
        info, own_rpm = replace(info, rate=signals.rate, channel=channel), signals.speeds.get(channel)
        return Recording(signal=samples, speed=speed, own_rpm=own_rpm, declared=self.declared, **vars(info))


def manifest_in(folder: Path) -> Path | None:
    """The manifest of a folder; with both, manifest.csv counts."""
    return next((path for name in MANIFESTS if (path := folder / name).exists()), None)


def read_manifest(file: Path, problems: list[Problem], only: Collection[Path] | None) -> list[ManifestRow]:
    """A row for each row of the manifest; a wrong header is an error, a wrong row becomes a problem."""
    root, manifest = file.parent, file.name
    header, *table = (read_table(file, manifest) if file.suffix == ".xlsx" else _read_text(file)) or [[]]
    header = [column.strip().lower() for column in header]
    for column, other in (("path", "path"), ("domain", "machine")):
        if column not in header and other not in header:
            names = ", ".join(shown(name) for name in header) or "no column"
            needed = f"the first row must name path and domain or machine, and has: {names:.200}"
            raise InputError(f"{manifest}: the column '{column}' is missing; {needed}")
    for column in header:
        if column and column not in COLUMNS:
            raise InputError(f"{manifest}: unknown column '{shown(column)}'{suggest(column, COLUMNS)}")
    rows = []
    for number, cells in enumerate(table, start=2):
        if not any(cells):
            continue
        name, texts = f"{manifest} row {number}", dict(zip(header, map(str.strip, cells), strict=False))
        path = _path_below(root, texts.get("path", "").replace("\0", "\ufffd"))
        if only is not None and real_path(path) not in only:
            continue
        cleaned = {column: shown(text) or None for column, text in texts.items()}
        shifted = any(cells[len(header) :])  # then no cell is known to be what its column says
        try:
            if shifted:
                many = f"has {len(cells)} cells, but the first row names {len(header)}"
                raise InputError(f"{many}; put quotes around a text with a comma")
            rows.append(_read_row(root, path, cleaned))
        except InputError as error:
            domain = "" if shifted else cleaned.get("domain") or cleaned.get("machine") or ""
            stated = {} if shifted else cleaned
            problems.append(Problem(name, f"{name}: {error}", domain, cleaned.get("label"), stated))
    return rows


def _read_text(file: Path) -> list[list[str]]:
    """The cells of a csv file, as it is or as Excel saves it."""
    with reading(file.name, "a table"):
        content = read_regular(file)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("cp1252")
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        return list(csv.reader(text.splitlines(), delimiter=delimiter))


def _path_below(root: Path, text: str) -> Path:
    """The file that a manifest names, whose folders Windows separates by backslashes."""
    path = root / text
    return root / text.replace("\\", "/") if "\\" in text and not path.exists() else path


def _read_row(root: Path, path: Path, texts: dict[str, str | None]) -> ManifestRow:
    """One row of a manifest. Its path stays inside the manifest's folder."""
    name, domain, speed, bearing = (texts.get(column) for column in ("path", "domain", "rpm", "bearing"))
    domain = domain or texts.get("machine")
    orders = [f"{order}={texts[order]}" for order in ("bpfo", "bpfi", "bsf", "ftf") if texts.get(order)]
    if orders and bearing is not None:
        raise InputError("'bearing' and 'bpfo', … are both given; leave one of them empty")
    bearing = bearing or ",".join(orders) or None  # as find_bearing reads them
    if name is None or domain is None:
        raise InputError("path and domain must not be empty")
    if not inside(root, path):
        raise InputError(f"'{name}' leads outside {root}; keep the recordings inside the manifest's folder")
    if not path.is_file():
        raise InputError(f"there is no file '{name}' in {root}")
    if path.is_relative_to(root):
        name = shown(path.relative_to(root).as_posix())  # a.wav, where it is written as .\a.wav
    start, stop = _whole(texts, "start", "sample") or 0, _whole(texts, "stop", "sample")
    if stop is not None and stop <= start:
        raise InputError(f"'stop' ({stop:g}) must be greater than 'start' ({start:g})")
    rpm = None if number_in(speed) is None else _number(texts, "rpm")  # else it is the name of a channel
    fields: dict[str, Any] = {
        column: texts.get(column) for column in ("channel", "label", "machine", "specimen", "sensor")
    }
    origin = f"{name}#{fields['channel']}" if fields["channel"] else name
    origin += _part_name(start, stop)
    channels = texts.get("channels")
    if channels not in (None, *CHANNELS):
        raise InputError(f"'channels' must be {' or '.join(CHANNELS)}, but is '{channels}'")
    unit, gain = _calibration(texts)
    declared = Declared(unit, _whole(texts, "group"), texts.get("mounting"))
    if bearing is not None and bearing.lower() == UNKNOWN:
        bearing = None  # as an empty cell
    return ManifestRow(
        path=path, origin=origin, domain=domain, start=start, stop=stop, rpm=rpm,
        point=texts.get("point"), channels=channels, time=texts.get("time"),
        load=_number(texts, "load"), temperature=_number(texts, "temperature"), rate=_number(texts, "rate"),
        rpm_channel=speed if rpm is None else None,
        bearing=None if bearing is None else find_bearing(bearing), declared=declared, gain=gain, **fields,
    )  # fmt: skip


def _calibration(texts: dict[str, str | None]) -> tuple[str | None, float]:
    """The unit of the signal, and what brings samples there: volts or millivolts by a sensitivity in mV/g become g."""
    unit, sensitivity = texts.get("unit"), _number(texts, "sensitivity")
    if sensitivity is None:
        return unit, 1.0
    volts = {"v": 1000.0, "mv": 1.0}.get((unit or "V").lower())
    if volts is None:
        raise InputError(f"'sensitivity' is for samples in V or mV, and 'unit' is '{unit}'; leave one of them empty")
    return "g", volts / sensitivity


def _part_name(start: int, stop: int | None) -> str:
    return f"[{start}:{'' if stop is None else stop}]" if start or stop else ""


def number_in(text: str | float | None) -> float | None:
    """The number that a text is, with a decimal point or comma; None where it is none."""
    with suppress(ValueError):
        return None if text is None else float(text.replace(",", ".") if isinstance(text, str) else text)
    return None


def _number(texts: dict[str, str | None], column: str, kind: str | None = None) -> float | None:
    """The number in a column, in the range of its kind, which may be called as the column is."""
    text = texts.get(column)
    value = number_in(text)
    if text is not None and value is None:
        raise InputError(f"'{column}' must be a number, but is '{text}'")
    check_range(kind or column, value, f"'{column}'")
    return value


def _whole(texts: dict[str, str | None], column: str, kind: str | None = None) -> int | None:
    """The whole number in a column."""
    value = _number(texts, column, kind)
    if value is not None and not value.is_integer():
        raise InputError(f"'{column}' must be a whole number, but is '{texts[column]}'")
    return None if value is None else int(value)


DATE = r"(?P<year>(?:19|20)\d\d)(?P<mark>[-._/]?)(?P<month>0[1-9]|1[0-2])(?P=mark)(?P<day>0[1-9]|[12]\d|3[01])"
CLOCK = (
    r"(?:[T /_.-]{0,3}(?P<hour>[01]\d|2[0-3])(?:[-:._hH]?(?P<minute>[0-5]\d)"
    r"(?:[-:._mM]?(?P<second>[0-5]\d)(?:[.,_](?P<part>\d{1,9}))?s?)?)?)?"
)
ZONE = r"(?P<zone>Z|(?P<sign>[+-])(?P<hours>0\d|1[0-4]):?(?P<minutes>00|15|30|45))?"
STAMP = re.compile(rf"(?<!\d){DATE}{CLOCK}{ZONE}(?!\d)")
EPOCH = re.compile(r"(?<!\d)(\d{10})(\d{3})?(?:[.,](\d{1,6}))?(?!\d)")  # seconds or milliseconds since 1970


def time_in(text: str, zone: tzinfo = UTC) -> float | None:
    """The time that a text holds, in seconds since 1970; None where it holds none."""
    for match in STAMP.finditer(text):
        groups = match.groupdict()
        year, month, day, hour, minute, second = (
            int(groups[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")
        )
        offset = zone
        if groups["sign"]:
            away = timedelta(hours=int(groups["hours"]), minutes=int(groups["minutes"]))
            offset = timezone(away if groups["sign"] == "+" else -away)
        elif groups["zone"]:
            offset = UTC
        try:
            whole = datetime(year, month, day, hour, minute, second, tzinfo=offset)
        except ValueError:  # 31 February
            continue
        return whole.timestamp() + float(f"0.{groups['part'] or 0}")
    if number := EPOCH.search(text):
        return int(number[1]) + int(number[2] or 0) / 1000 + float(f"0.{number[3] or 0}")
    return None


def is_time(text: str) -> bool:
    """Whether a text is a time and nothing else."""
    return bool(STAMP.fullmatch(text) or EPOCH.fullmatch(text))
