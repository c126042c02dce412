"""A user's own recordings: a tree of folders, or a manifest.

    ROOT/<domain>/<label>/file      labelled
    ROOT/<domain>/file              unlabelled
    ROOT/<domain>/<label>/<folder>/file   with a setting `specimen` or `machine` that says what the folder names
    ROOT/manifest.csv               columns path and domain (or machine), and any of the others in COLUMNS

Where there is a manifest, files it does not name are left out. With `start` and `stop`, in samples, one long file gives
several recordings. docs/add-your-data.md has examples.

>>> Folder(root=Path("my-recordings")).catalogue()
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bearcat.data.bearing import UNKNOWN, find_bearing
from bearcat.data.catalogue import (
    About,
    Catalogue,
    Dataset,
    Entry,
    Problem,
    checked_root,
    content_digest,
    inside,
    later,
)
from bearcat.data.channels import CHANNELS, TOGETHER, Declared, points_of, vibrations
from bearcat.data.isolated import read_signals
from bearcat.data.recording import Floats, Recording, RecordingInfo, stated_speed, stretch
from bearcat.data.signals import KEPT_BYTES, Samples, Signals, reading
from bearcat.data.splits import GROUPS, two_classes
from bearcat.data.stream import FORMATS, STATING
from bearcat.errors import InputError, suggest
from bearcat.names import shown
from bearcat.ranges import RANGES, check_range
from bearcat.storage import read_regular, real_path

MANIFEST = "manifest.csv"
EMPTY = "a folder without recordings"
COLUMNS = (
    "path", "domain", "label", "rate", "channel", "start", "stop", "rpm", "bearing", "machine", "specimen", "sensor",
    "point", "channels", "time", "load", "temperature", "bpfo", "bpfi", "bsf", "ftf",
    "unit", "group", "mounting",
)  # fmt: skip
PLACES = ("domain", "label", "folder", "file")  # where a path may name a specimen or a machine


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
            wrong = f"start {self.start} and stop {self.stop} in {MANIFEST} do not fit its {len(samples)} samples"
            raise InputError(f"{self.origin}: {wrong}; correct them")
        return samples[self.start : self.stop]

    def metadata(self, found: Signals) -> RecordingInfo:
        """What is known once the file was read: its rate, and its speed, which is the mean of a recorded one."""
        if found.speed is not None:
            return replace(self.info(), rate=found.rate, rpm=float(np.mean(found.speed, dtype=np.float64)))
        own = set(found.speeds.values()) if found.speeds.keys() == found.channels.keys() else set()
        said, given = (None, self.rpm) if self.rpm_given else (self.rpm, None)
        rpm, _ = stated_speed(self.origin, own.pop() if len(own) == 1 else None, said, given)
        return replace(self.info(), rate=found.rate, rpm=rpm)

    def recording(self, found: Signals, channel: str | None) -> Recording:
        """The recording of this channel of what was read; without a name, of the only one there is."""
        channel, samples = found.pick(channel)
        speed = None if found.speed is None else stretch(found.speed, samples.size)
        info = self.metadata(found) if speed is None else self.info()  # of a recorded one, its mean
        info, own = replace(info, rate=found.rate, channel=channel), found.speeds.get(channel)
        return Recording(signal=samples, speed=speed, own_rpm=own, declared=self.declared, **vars(info))


class FileReader:
    """Decodes files, and keeps those that were read last, as far as there is room."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[int, Signals]] = {}  # with the time of the file's last change
        self._bytes = 0

    def signals(self, row: ManifestRow) -> Signals:
        """All channels of the whole file."""
        with reading(row.origin, "a file"):
            changed = row.path.stat().st_mtime_ns
        before, found = self._kept.pop(row.path, (0, None))
        if found is None or before != changed:
            self._bytes -= 0 if found is None else found.size
            found = read_signals(row.path, row.origin)
            self._bytes += found.size
        self._kept[row.path] = changed, found
        while self._bytes > KEPT_BYTES:
            _, oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= oldest.size
        return replace(found, origin=row.origin)


@dataclass(frozen=True)
class FolderEntry(Entry):
    """A recording of a folder, whose channel may still be chosen."""

    signals: Callable[[], Signals]  # every channel that the recording may be read as
    row: ManifestRow
    reader: FileReader

    def with_channel(self, channel: str | None) -> FolderEntry:
        """The same recording, of this channel unless it has one already."""
        return entry_of(replace(self.row, channel=self.row.channel or channel), self.reader)

    def by_channel(self) -> list[FolderEntry]:
        """A recording of each channel that may be a vibration; the recording itself, where it is of one channel."""
        names = vibrations(self.signals().channels)
        if self.row.channel is not None or len(names) == 1:
            return [self.with_channel(names[0])]
        return [entry_of(self.row.of_channel(name), self.reader) for name in names]


def entry_of(row: ManifestRow, reader: FileReader) -> FolderEntry:
    """A recording of a folder that can be read."""

    def signals() -> Signals:
        found = reader.signals(row)
        channels = dict(found.channels)
        speed = None if row.rpm_channel is None else _speed(row, channels)
        found = (found if row.channel else replace(found, channels=channels)).of_one_rate(row.channel)
        parts = {name: row.part(samples) for name, samples in found.channels.items()}
        speeds = {name: found.speeds[name] for name in parts if name in found.speeds}
        return Signals(row.origin, parts, dict.fromkeys(parts, row.rate or found.rate), speed, speeds)

    def read() -> Recording:
        return row.recording(signals(), None)

    version = 3 if row.path.suffix.lower() in STATING else 2
    identity = f"folder-{version} {row.info()} {row.start} {row.stop}"
    return FolderEntry(row.domain, row.label, row.origin, row.path, identity, read, signals, row, reader)


def _speed(row: ManifestRow, channels: dict[str, Samples]) -> Floats:
    """The speed's part of this recording, at the rate of the longest channel; it is taken out of the channels."""
    if row.rpm_channel not in channels:
        known = suggest(str(row.rpm_channel), channels)
        raise InputError(f"{row.origin}: the speed '{row.rpm_channel}' is neither a number nor a channel{known}", "rpm")
    samples = np.asarray(channels.pop(row.rpm_channel), dtype=np.float32)
    longest = max((len(other) for other in channels.values()), default=samples.size)
    return row.part(samples if samples.size == longest else stretch(samples, longest))


def folder_entries(catalogue: Catalogue) -> list[FolderEntry]:
    """The entries of a folder's catalogue, by their type."""
    return [entry for entry in catalogue.entries if isinstance(entry, FolderEntry)]


def with_channel(catalogue: Catalogue, channel: str | None) -> Catalogue:
    """A folder's catalogue, without another scan, whose recordings are of this channel unless they have one already."""
    return replace(catalogue, entries=tuple(entry.with_channel(channel) for entry in folder_entries(catalogue)))


@dataclass(frozen=True)
class Folder(Dataset):
    """`root` is a folder of domains or holds a manifest, which precedes these settings, as a domain's name does.

    >>> for domain in ("600rpm", "1200rpm"):
    ...     Path("recordings", domain, "healthy").mkdir(parents=True)
    ...     np.savetxt(Path("recordings", domain, "healthy", "monday.csv"), np.sin(np.arange(100.0)))
    >>> Folder(Path("recordings"), bearing="6205").catalogue().domains
    ('600rpm', '1200rpm')
    """

    root: Path
    channel: str | None = None  # for files with several channels
    rpm: str | float | None = None  # a number, or the name of a channel that holds the speed in rpm
    bearing: str | None = None  # as `find_bearing` reads it
    folders: tuple[str, ...] = ()  # the domains' folders below root; none: all of them
    # What of a path names the bearing and the machine: one of PLACES, or a pattern with one group, 'bearing-(\w+)'.
    specimen: str | None = later(None)
    machine: str | None = later(None)
    # Each channel that may be a vibration is a recording: of one bearing (TOGETHER), or of one each (APART).
    channels: str | None = later(None)

    about: ClassVar[About] = About("your own recordings: ROOT/<domain>/<label>/file, or ROOT/manifest.csv", "yours")

    def __post_init__(self) -> None:
        object.__setattr__(self, "rpm", self.rpm if _float(self.rpm) is None else _float(self.rpm))
        if isinstance(self.rpm, float):
            check_range("rpm", self.rpm, field="rpm")
        if self.bearing is not None:
            find_bearing(self.bearing)
        for setting in GROUPS:
            _check_place(setting, getattr(self, setting))
        points_of((), self.channels)  # which refuses other words

    def catalogue(self, only: Collection[Path] | None = None) -> Catalogue:
        """What the folder holds; `only`: of a manifest, the recordings in these files (resolved paths) alone."""
        root, notes, problems = checked_root(self.root), list[str](), list[Problem]()
        if (root / MANIFEST).exists() and not self.folders:
            rows = read_manifest(root, problems, only)
        else:
            rows = _read_tree(root, problems, notes, self.folders, bool(self.specimen or self.machine))
        duplicates = _find_duplicates(rows)
        problems += duplicates.values()
        if not rows and not problems and only is None:
            raise InputError(f"{root}: holds no recordings; put some into <domain>/<label>/ or list them in {MANIFEST}")
        usable = [self._complete(row) for number, row in enumerate(rows) if number not in duplicates]
        if sentence := two_classes(usable):
            problems.append(Problem("specimen", sentence))
        reader = FileReader()
        domains = tuple(sorted({row.domain for row in rows}, key=_natural))
        classes = tuple(sorted({row.label for row in rows if row.label is not None}, key=_natural))
        entries = [each for row in usable for each in self._divided(entry_of(row, reader), problems)]
        return Catalogue(domains, classes, tuple(entries), tuple(problems), tuple(notes))

    def _divided(self, entry: FolderEntry, problems: list[Problem]) -> list[FolderEntry]:
        """A recording for each channel where that is asked for; of bearings of their own, each is a specimen."""
        if entry.row.channel is not None or self.channels is None:
            return [entry]
        try:
            divided = entry.by_channel()
        except InputError as error:
            problems.append(Problem(entry.origin, str(error), entry.domain, entry.label))
            return []
        if (entry.row.channels or self.channels) == TOGETHER or entry.row.specimen is None or len(divided) == 1:
            return divided
        names = [f"{entry.row.specimen}#{each.row.channel}" for each in divided]
        return [
            entry_of(replace(each.row, specimen=name), each.reader) for each, name in zip(divided, names, strict=True)
        ]

    def _complete(self, row: ManifestRow) -> ManifestRow:
        """The row, with missing values filled from the domain's name and these settings."""
        bearing = None if self.bearing is None else find_bearing(self.bearing)
        row = replace(
            row,
            channel=row.channel or self.channel,
            bearing=row.bearing or bearing,
            specimen=row.specimen or self._named(self.specimen, row),
            machine=row.machine or self._named(self.machine, row),
        )
        if row.rpm or row.rpm_channel:
            return row
        rpm = speed_in_name(row.domain) or self.rpm
        if isinstance(rpm, str):
            return replace(row, rpm_channel=rpm)
        return replace(row, rpm=rpm, rpm_given=not speed_in_name(row.domain))

    def _named(self, place: str | None, row: ManifestRow) -> str | None:
        """What the path of a recording names at this place; None where nothing is there."""
        if place is None:
            return None
        path = real_path(row.path).relative_to(real_path(self.root))
        if place in PLACES:
            level = path.parent.name if len(path.parts) > 3 else None
            return {"domain": row.domain, "label": row.label, "folder": level, "file": shown(path.stem)}[place]
        found = re.search(place, shown(path.as_posix()))
        return found[1] or None if found else None


def _check_place(setting: str, place: str | None) -> None:
    if place is None or place in PLACES:
        return
    try:
        groups = re.compile(place).groups
    except re.error:
        groups = 0
    if groups != 1:
        known = f"{', '.join(PLACES)}, or a pattern with one group such as 'bearing-([0-9]+)'"
        raise InputError(f"{setting}: must be {known}, not '{place}'")


def speed_in_name(domain: str) -> float | None:
    """The speed of a domain that is called after it: 600rpm, mill 1200.5 RPM, fast_900_rpm."""
    found = re.search(r"(\d+(?:\.\d+)?)\s*_?rpm", domain, re.IGNORECASE)
    return float(found[1]) if found and RANGES["rpm"].holds(float(found[1])) else None


def _natural(name: str) -> tuple[int, float, str]:
    """Sorts numbers as numbers: 600rpm before 1200rpm."""
    digits = name[: len(name) - len(name.lstrip("0123456789"))]
    return (0, float(digits), name) if digits else (1, 0.0, name)


def _read_tree(
    root: Path, problems: list[Problem], notes: list[str], folders: Sequence[str] = (), deep: bool = False
) -> list[ManifestRow]:
    """A row for each file of a known format at ROOT/<domain>/[<label>/]; other files are problems or notes.

    `deep`: also at ROOT/<domain>/<label>/<folder>/.
    """
    rows = []
    for path in sorted(path for folder in folders or [""] for path in (root / folder).rglob("*")):
        place = path.relative_to(root)
        for folder in folders:
            if path.is_relative_to(root / folder):  # a domain is called after its folder, wherever that lies
                place = Path(Path(folder).name) / path.relative_to(root / folder)
        origin = shown(place.as_posix())
        if path.is_dir() or any(part.startswith((".", "__")) for part in place.parts):
            continue
        first, *below = (shown(part) for part in place.parts)
        domain, label = first if below else "", below[0] if len(below) > 1 else None
        if not inside(root, path):
            sentence = f"{origin}: leads outside {root}; copy the file into the folder"
            problems.append(Problem(origin, sentence, domain, label))
        elif path.suffix.lower() not in FORMATS:
            notes.append(f"{origin}: left out, '{path.suffix}' is none of {', '.join(FORMATS)}")
        elif len(place.parts) not in (2, 3, 4 if deep else 3):
            sentence = f"{origin}: expected at <domain>/<label>/ or <domain>/; move it there"
            problems.append(Problem(origin, sentence, domain, label))
        else:
            rows.append(ManifestRow(path=path, origin=origin, domain=domain, label=label))
    domains = {row.domain for row in rows}
    there = folders or [path.name for path in root.iterdir() if path.is_dir()]
    names = sorted(shown(Path(name).name) for name in there if not Path(name).name.startswith((".", "__")))
    notes += [f"{name}: {EMPTY}" for name in names if name not in domains]
    return rows


def read_manifest(root: Path, problems: list[Problem], only: Collection[Path] | None) -> list[ManifestRow]:
    """A row for each row of the manifest; a wrong header is an error, a wrong row becomes a problem."""
    with reading(MANIFEST, "a table"):
        text = read_regular(root / MANIFEST).decode("utf-8-sig")
        header, *table = list(csv.reader(text.splitlines())) or [[]]
    for column in header:
        if column not in COLUMNS:
            raise InputError(f"{MANIFEST}: unknown column '{shown(column)}'{suggest(column, COLUMNS)}")
    for column, other in (("path", "path"), ("domain", "machine")):
        if column not in header and other not in header:
            raise InputError(f"{MANIFEST}: the column '{column}' is missing; the first row must name path and domain")
    rows = []
    for number, cells in enumerate(table, start=2):
        name, texts = f"{MANIFEST} row {number}", dict(zip(header, map(str.strip, cells), strict=False))
        path = root / texts.get("path", "").replace("\0", "\ufffd")
        if not cells or (only is not None and real_path(path) not in only):
            continue
        cleaned = {column: shown(text) or None for column, text in texts.items()}
        try:
            if len(cells) > len(header):
                many = f"has {len(cells)} cells, but the first row names {len(header)}"
                raise InputError(f"{many}; put quotes around a text with a comma")
            rows.append(_read_row(root, path, cleaned))
        except InputError as error:
            shifted = len(cells) > len(header)  # then no cell is known to be what its column says
            domain = "" if shifted else cleaned.get("domain") or cleaned.get("machine") or ""
            problems.append(Problem(name, f"{name}: {error}", domain, cleaned.get("label")))
    return rows


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
    start, stop = _whole(texts, "start", "sample") or 0, _whole(texts, "stop", "sample")
    if stop is not None and stop <= start:
        raise InputError(f"'stop' ({stop:g}) must be greater than 'start' ({start:g})")
    rpm = None if _float(speed) is None else _number(texts, "rpm")  # else it is the name of a channel
    said: dict[str, Any] = {
        column: texts.get(column) for column in ("channel", "label", "machine", "specimen", "sensor")
    }
    origin = f"{name}#{said['channel']}" if said["channel"] else name
    origin += _part_name(start, stop)
    channels = texts.get("channels")
    if channels not in (None, *CHANNELS):
        raise InputError(f"'channels' must be {' or '.join(CHANNELS)}, but is '{channels}'")
    declared = Declared(texts.get("unit"), _whole(texts, "group"), texts.get("mounting"))
    if bearing is not None and bearing.lower() == UNKNOWN:
        bearing = None  # as an empty cell
    return ManifestRow(
        path=path, origin=origin, domain=domain, start=start, stop=stop, rpm=rpm,
        point=texts.get("point"), channels=channels, time=texts.get("time"),
        load=_number(texts, "load"), temperature=_number(texts, "temperature"), rate=_number(texts, "rate"),
        rpm_channel=speed if rpm is None else None,
        bearing=None if bearing is None else find_bearing(bearing), declared=declared, **said,
    )  # fmt: skip


def _part_name(start: int, stop: int | None) -> str:
    return f"[{start}:{'' if stop is None else stop}]" if start or stop else ""


def _float(text: str | float | None) -> float | None:
    with suppress(ValueError, TypeError):
        return float(text)  # type: ignore[arg-type]
    return None


def _number(texts: dict[str, str | None], column: str, kind: str | None = None) -> float | None:
    """The number in a column, in the range of its kind, which may be called as the column is."""
    text = texts.get(column)
    value = _float(text)
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


def _find_duplicates(rows: Sequence[ManifestRow]) -> dict[int, Problem]:
    """Recordings (by number) that share samples with an earlier one: the same file, content, or parts that overlap."""
    by_size: dict[int, list[Path]] = defaultdict(list)
    content: dict[Path, str] = {}
    for path in dict.fromkeys(row.path for row in rows):
        with suppress(OSError):  # a file that cannot be read is reported by its reader
            by_size[path.stat().st_size].append(path)
    for path in [path for paths in by_size.values() if len(paths) > 1 for path in paths]:
        with suppress(OSError, InputError):
            content[path] = content_digest(path)
    problems: dict[int, Problem] = {}
    earlier: dict[tuple[str, str | None], list[ManifestRow]] = defaultdict(list)
    for number, row in enumerate(rows):
        same_content = earlier[content.get(row.path, str(row.path)), row.channel]
        for other in same_content:
            if row.start < (other.stop or math.inf) and other.start < (row.stop or math.inf):
                sentence = f"{row.origin}: holds the same samples as {other.origin}; keep one of them"
                problems[number] = Problem(row.origin, sentence, row.domain, row.label)
                break
        same_content.append(row)
    return problems


def write_folder(catalogue: Catalogue, root: Path) -> int:
    """Writes recordings that are computed as wav files below the folder, with a manifest; how many."""
    from scipy.io import wavfile

    rows = []
    for entry in catalogue.entries:
        recording, path = entry.read(), Path(entry.domain) / f"{'-'.join(entry.origin.split('/')[2:])}.wav"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        wavfile.write(root / path, round(recording.rate or 1), recording.signal)
        bearing = "" if recording.bearing is None else str(recording.bearing)
        rows.append((path.as_posix(), entry.domain, entry.label, recording.rpm, bearing, recording.specimen))
    with (root / MANIFEST).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "domain", "label", "rpm", "bearing", "specimen"), *rows])
    return len(rows)
