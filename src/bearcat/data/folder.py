"""A user's own recordings: a tree of folders, or a manifest; docs/own-data.md has examples.

    ROOT/<domain>/<label>/file      labelled
    ROOT/<domain>/file              unlabelled
    ROOT/manifest.csv               a table of recordings; files it does not list are left out

>>> Folder(root=Path("my-recordings")).catalogue()
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from bearcat.data.bearing import find_bearing
from bearcat.data.datasets import MANIFEST, Catalogue, Dataset, Entry, Problem, checked_root, content_digest, inside
from bearcat.data.formats import FORMATS, STATING, read_signals
from bearcat.data.manifest import ManifestRow, manifest_in, read_manifest
from bearcat.data.recording import Recording, RecordingInfo, stated_speed, stretch
from bearcat.data.signals import Signals, chosen_channel, reading
from bearcat.errors import RANGES, InputError, check_range, shown, suggest
from bearcat.storage import real_path

KEPT_BYTES = 2**29  # of decoded files that are kept to be read again


class FileReader:
    """Decodes files, and keeps them as far as there is room."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Path, int], Signals] = {}  # by the path and the time of its last change
        self._room = KEPT_BYTES

    def signals(self, row: ManifestRow) -> Signals:
        """All channels of the whole file."""
        with reading(row.origin, "a file"):
            key = row.path, row.path.stat().st_mtime_ns
        if key not in self._kept:
            signals = read_signals(row.path, row.origin)
            size = sum(samples.nbytes for samples in signals.channels.values())
            if size > self._room:
                self._kept, self._room = {}, KEPT_BYTES
            self._kept[key], self._room = signals, self._room - size
        return self._kept[key]


@dataclass(frozen=True)
class FolderEntry(Entry):
    """A recording of a folder, whose channel may still be chosen."""

    row: ManifestRow
    reader: FileReader

    def channels(self) -> list[str]:
        """The channels that the recording may be read as."""
        names = [name for name in self.reader.signals(self.row).channels if name != self.row.rpm_channel]
        return names if self.row.channel is None else [chosen_channel(self.origin, names, self.row.channel)]

    def recording(self) -> Recording:
        """The recording of its channel; without a name, of the only one there is."""
        row, signals = self.row, self.reader.signals(self.row)
        channels = dict(signals.channels)
        speed = None if row.rpm_channel is None else channels.pop(row.rpm_channel, None)
        if row.rpm_channel is not None and speed is None:
            wrong = f"the speed '{row.rpm_channel}' is neither a number nor a channel"
            raise InputError(f"{row.origin}: {wrong}{suggest(row.rpm_channel, channels)}", "rpm")
        name = chosen_channel(row.origin, channels, row.channel)
        if speed is not None:
            speed = row.part(stretch(speed, len(channels[name])))
        listed, usual = (None, row.rpm) if row.rpm_given else (row.rpm, None)
        rpm, _ = (None, None) if speed is not None else stated_speed(row.origin, signals.rpm, listed, usual)
        info = replace(row.info(), rate=row.rate or signals.rate, channel=name, rpm=rpm)
        signal = row.part(channels[name])
        return Recording(signal=signal, speed=speed, own_rpm=signals.rpm, declared=row.declared, **vars(info))

    def with_channel(self, channel: str | None) -> FolderEntry:
        """The same recording, of this channel unless it has one already."""
        return entry_of(replace(self.row, channel=self.row.channel or channel), self.reader)


def entry_of(row: ManifestRow, reader: FileReader) -> FolderEntry:
    """A recording of a folder that can be read."""
    version = 4 if row.path.suffix.lower() in STATING else 2
    identity = f"folder-{version} {row.info()} {row.start} {row.stop}" + (f" × {row.gain}" if row.gain != 1 else "")
    known = row.domain, row.label, row.origin, row.path, identity
    entry = FolderEntry(*known, lambda: entry.recording(), row, reader)
    return entry


def folder_entries(catalogue: Catalogue) -> list[FolderEntry]:
    """The entries of a folder's catalogue, by their type."""
    return [entry for entry in catalogue.entries if isinstance(entry, FolderEntry)]


def at_speeds(catalogue: Catalogue, speeds: Mapping[str, float]) -> Catalogue:
    """The catalogue whose recordings, by origin, turn at these speeds in rpm, whatever they state. The speed is in the
    identity of each.
    """

    def at(entry: Entry, rpm: float) -> Entry:
        if isinstance(entry, FolderEntry):
            return entry_of(replace(entry.row, rpm=rpm, rpm_given=False), entry.reader)
        identity = f"{entry.identity} at {rpm!r} rpm"
        return replace(entry, identity=identity, read=lambda: replace(entry.read(), rpm=rpm))

    entries = [at(entry, speeds[entry.origin]) if entry.origin in speeds else entry for entry in catalogue.entries]
    return replace(catalogue, entries=tuple(entries))


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

    title: ClassVar[str] = "your own recordings: ROOT/<domain>/<label>/file, or ROOT/manifest.csv"

    def __post_init__(self) -> None:
        check_range("rpm", None if isinstance(self.rpm, str) else self.rpm, field="rpm")
        if self.bearing is not None:
            find_bearing(self.bearing)

    def catalogue(self, only: Collection[Path] | None = None) -> Catalogue:
        """What the folder holds; `only`: of a manifest, the recordings in these files (resolved paths) alone."""
        root, notes, problems = checked_root(self.root), list[str](), list[Problem]()
        if (manifest := manifest_in(root)) is not None and not self.folders:
            rows = read_manifest(manifest, problems, only)
        else:
            rows = _read_tree(root, problems, notes, self.folders)
        if not rows and not problems and only is None:
            empty = f"holds no recordings; put some into <domain>/<label>/ or list them in {MANIFEST}"
            raise InputError(f"{root}: {empty}")
        usable = [self._complete(row) for row in _without_duplicates(rows, problems)]
        if sentence := _two_classes(usable):
            problems.append(Problem("specimen", sentence))
        reader = FileReader()
        domains = tuple(sorted({row.domain for row in rows}, key=_natural))
        classes = tuple(sorted({row.label for row in rows if row.label is not None}, key=_natural))
        entries = tuple(entry_of(row, reader) for row in usable)
        return Catalogue(domains, classes, entries, tuple(problems), tuple(notes))

    def _complete(self, row: ManifestRow) -> ManifestRow:
        """The row, with missing values filled from the folders' names and these settings."""
        bearing = row.bearing or (None if self.bearing is None else find_bearing(self.bearing))
        row = with_folder_speed(replace(row, channel=row.channel or self.channel, bearing=bearing))
        if row.rpm or row.rpm_channel:
            return row
        if isinstance(self.rpm, str):
            return replace(row, rpm_channel=self.rpm)
        return replace(row, rpm=self.rpm, rpm_given=True)


def speed_in_name(domain: str) -> float | None:
    """The speed of a domain that is called after it: 600rpm, mill 1200.5 RPM, fast_900_rpm."""
    match = re.search(r"(\d+(?:\.\d+)?)\s*_?rpm", domain, re.IGNORECASE)
    return float(match[1]) if match and RANGES["rpm"].holds(float(match[1])) else None


def speed_in_folders(file: Path) -> float | None:
    """The speed that the nearest folder above a file is called after."""
    speeds = (speed_in_name(folder.name) for folder in real_path(file).parents)
    return next((rpm for rpm in speeds if rpm is not None), None)


def with_folder_speed(row: ManifestRow) -> ManifestRow:
    """The row with the speed that its domain or the nearest folder is called after, unless it states one."""
    if row.rpm or row.rpm_channel:
        return row
    return replace(row, rpm=speed_in_name(row.domain) or speed_in_folders(row.path))


def _natural(name: str) -> tuple[int, float, str]:
    """Sorts numbers as numbers: 600rpm before 1200rpm."""
    digits = name[: len(name) - len(name.lstrip("0123456789"))]
    return (0, float(digits), name) if digits else (1, 0.0, name)


def _read_tree(root: Path, problems: list[Problem], notes: list[str], folders: Sequence[str]) -> list[ManifestRow]:
    """A row for each file of a known format at ROOT/<domain>/[<label>/]; other files are problems or notes.

    A domain is called after its folder, wherever that lies below the root.
    """
    rows = list[ManifestRow]()
    tops = {root / folder: Path(Path(folder).name) for folder in folders} or {root: Path()}
    for path, top in sorted((path, folder) for folder in tops for path in folder.rglob("*")):
        below = tops[top] / path.relative_to(top)
        if path.is_dir() or any(part.startswith((".", "__")) for part in below.parts):
            continue
        origin = shown(below.as_posix())
        domain, label, *_ = (*map(shown, below.parts[:-1]), None, None)
        problem = None
        if not inside(root, path):
            problem = f"leads outside {root}; copy the file into the folder"
        elif path.suffix.lower() not in FORMATS:
            notes.append(f"{origin}: left out, '{path.suffix}' is none of {', '.join(FORMATS)}")
            continue
        elif len(below.parts) not in (2, 3):
            problem = "expected at <domain>/<label>/ or <domain>/; move it there"
        if problem is not None:
            problems.append(Problem(origin, f"{origin}: {problem}", domain or "", label))
        else:
            rows.append(ManifestRow(path=path, origin=origin, domain=str(domain), label=label))
    return rows


def _without_duplicates(rows: Sequence[ManifestRow], problems: list[Problem]) -> list[ManifestRow]:
    """The rows that share no samples with an earlier one: the same file, content, or parts that overlap."""
    earlier, unique = defaultdict[tuple[str, str | None], list[ManifestRow]](list), list[ManifestRow]()
    sizes = Counter(path.stat().st_size for path in {row.path for row in rows} if path.is_file())
    for row in rows:
        key = str(row.path)
        with suppress(OSError, InputError):  # a file that cannot be read is reported by its reader
            if sizes[row.path.stat().st_size] > 1:  # no other file can have the same content
                key = content_digest(row.path)
        for other in earlier[key, row.channel]:
            if row.start < (other.stop or math.inf) and other.start < (row.stop or math.inf):
                sentence = f"{row.origin}: holds the same samples as {other.origin}; keep one of them"
                problems.append(Problem(row.origin, sentence, row.domain, row.label))
                break
        else:
            earlier[key, row.channel].append(row)
            unique.append(row)
    return unique


def _two_classes(recordings: Iterable[RecordingInfo]) -> str | None:
    """The sentence for a specimen that has two classes."""
    first: dict[str, RecordingInfo] = {}
    for info in recordings:
        if info.specimen and info.label is not None:
            other = first.setdefault(info.specimen, info)
            if other.label != info.label:
                both = f"'{other.label}' in {other.origin} and '{info.label}' in {info.origin}"
                return f"specimen '{info.specimen}' is {both}; correct one, or name the two states apart"
    return None
