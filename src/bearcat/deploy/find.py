"""What there is to diagnose: files, folders and manifests → measurements, their points and channels.

A measurement is what was recorded at once: points that are neighbours, each one channel or several axes of one bearing.

>>> for measurement in find_measurements([Path("pump")]):
...     print([point.name for point in measurement.points])
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing
from bearcat.data.catalogue import Catalogue, Entry, grouped
from bearcat.data.channels import Declared, described, points_of, vibrations
from bearcat.data.folder import (
    FileReader,
    Folder,
    FolderEntry,
    entry_of,
    folder_entries,
    speed_in_name,
)
from bearcat.data.isolated import open_channels, open_stream
from bearcat.data.manifest import MANIFEST, ManifestRow
from bearcat.data.recording import Floats, Recording, parts_of
from bearcat.data.stream import FORMATS, Stream
from bearcat.deploy.predictor import Predictor
from bearcat.errors import InputError, shown
from bearcat.storage import real_path

MANIFEST_ABOVE = 3  # folders above a recording in which its manifest may lie


def find_files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files named, and those of supported formats in folders named, in order of name; hidden ones are left out."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        known = (file for file in sorted(path.rglob("*")) if file.suffix.lower() in FORMATS and file.name != MANIFEST)
        inside = (file for file in known if not file.is_dir())  # reading names a pipe and a link to nothing
        visible = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        yield from visible or [path]  # reading names an empty folder


@dataclass(frozen=True, eq=False)
class FoundRecording:
    """One channel to diagnose: how it is opened, and what a manifest or its folder's name say of it."""

    open: Callable[[], Stream]
    name: str
    rpm: float | None = None
    bearing: Bearing | None = None
    machine: str | None = None
    folder: str | None = None  # in place of the machine, where nobody names it; None: the file's folder
    point: str | None = None
    channel: str | None = None  # whose name may say the unit; None: an array
    declared: Declared = field(default_factory=Declared)  # by a manifest, for the zone of ISO 20816-3
    said_speed: bool = False  # somebody said that this channel holds the speed


@dataclass(frozen=True, eq=False)
class FoundPoint:
    """What gets one diagnosis: a channel, or several axes of one bearing."""

    name: str
    recordings: tuple[FoundRecording, ...]


@dataclass(frozen=True, eq=False)
class FoundMeasurement:
    """What was recorded at once: points that are neighbours, the speed's channel if there is one, and notes."""

    name: str
    points: tuple[FoundPoint, ...]
    speed: FoundRecording | None = None
    notes: tuple[str, ...] = ()

    def closed(self) -> FoundMeasurement:
        """The same by its names, without what is read."""
        shut = partial(_refuse, InputError(f"{self.name}: was closed"))
        points = tuple(
            replace(point, recordings=tuple(replace(each, open=shut) for each in point.recordings))
            for point in self.points
        )
        return replace(self, points=points, speed=None)


@dataclass(frozen=True, eq=False)
class FoundUnit:
    """A measurement that nothing was opened of yet."""

    name: str
    find: Callable[[], Iterator[FoundMeasurement]]

    def measurements(self) -> Generator[FoundMeasurement, None, None]:
        """The one measurement."""
        try:
            yield from self.find()
        except (InputError, OSError) as error:  # others go on
            yield from _refused(error, self.name).find()


def number_or_channel(rpm: str | float | None) -> tuple[float | None, str | None]:
    """A speed as a number, or the name of the channel that holds it."""
    try:
        return None if rpm is None else float(rpm), None
    except ValueError:
        return None, str(rpm)


def find_measurements(
    paths: Sequence[Path], model: Predictor | None = None, channel: str | None = None, channels: str | None = None,
    speed: str | None = None, override: bool = False,
) -> Iterator[FoundMeasurement]:  # fmt: skip
    """The recordings of files and folders, or those a manifest lists, with what a manifest in a folder above says.

    `speed` is the channel that holds the speed where no manifest says one, and with `override` everywhere.

    Files with several channels are read by `channel`, by the one that the model was adapted to, or else by all that may
    be vibrations: each is a point (`channels` "apart"), all are one ("together"), or a manifest and their names say
    which. A file is decoded once, if its samples fit into memory.
    """
    for unit in find_units(paths, model, channel, channels, speed, override):
        yield from unit.measurements()


def find_units(
    paths: Sequence[Path], model: Predictor | None = None, channel: str | None = None, channels: str | None = None,
    speed: str | None = None, override: bool = False,
) -> Iterator[FoundUnit]:  # fmt: skip
    """The same before anything is opened but manifests."""
    points_of((), channels)  # which refuses other words
    # The only channel of a file without names is "1", which says nothing of a file with several.
    usual = None if model is None or channels is not None or model.channel == "1" else model.channel

    @cache
    def listed(root: Path, only: frozenset[Path] | None = None) -> Catalogue | None:
        return Folder(root, rpm=speed).catalogue(only) if (root / MANIFEST).exists() else None

    def as_listed(entries: Sequence[FolderEntry], called: Callable[[ManifestRow], str]) -> Iterator[FoundUnit]:
        replaced: dict[str, Any] = {"rpm": None, "rpm_channel": speed} if override and speed else {}
        for same in grouped(entries, lambda entry: (entry.row.path, entry.row.start, entry.row.stop)).values():
            rows = [replace(entry.row, origin=called(entry.row), **replaced) for entry in same]
            renamed = [entry_of(row, entry.reader) for entry, row in zip(same, rows, strict=True)]
            yield FoundUnit(renamed[0].origin, partial(_listed_measurement, renamed, channel, usual, channels))

    def found_in(path: Path) -> Iterator[FoundUnit]:
        root = path.parent if path.name == MANIFEST else path
        if (whole := listed(root)) is not None:
            yield from as_listed(folder_entries(whole), lambda row: shown(str(root / row.origin)))
            for problem in whole.problems:  # every recording that is asked for is accounted for
                name = shown(str(root / problem.origin))  # as it is called from where the user stands
                said = InputError(problem.sentence).beside(problem.origin)
                yield _refused(InputError(f"{name}: {said}", readable=True), name)
            return
        places, wrong = {file: real_path(file) for file in find_files([path])}, dict[str, str]()
        for file, place in places.items():
            only = frozenset(places.values())
            manifests = [found for folder in place.parents[:MANIFEST_ABOVE] if (found := listed(folder, only))]
            wrong |= {each.sentence: each.origin for found in manifests for each in found.problems}
            above = [entry for found in manifests for entry in folder_entries(found)]
            if entries := [entry for entry in above if real_path(entry.row.path) == place]:
                yield from as_listed(entries, partial(ManifestRow.called, path=shown(str(file))))
            else:  # a domain may be called after its speed
                stated = None if override and speed else speed_in_name(place.parent.name)
                read = partial(_file_measurement, file, channel, usual, channels, stated, speed)
                yield FoundUnit(shown(str(file)), read)
        for sentence, origin in wrong.items():
            if origin.startswith(MANIFEST):  # a row about one of these files
                yield _refused(InputError(sentence, readable=True), origin)

    for path in paths:
        try:
            yield from found_in(path)
        except (InputError, OSError) as error:  # such as a manifest that cannot be read; other paths go on
            yield _refused(error, shown(str(path)))


def measurements_of_file(
    file: Path, rows: Sequence[ManifestRow] = (), channel: str | None = None, channels: str | None = None,
    rpm: float | None = None,
) -> Iterator[FoundMeasurement]:  # fmt: skip
    """The one measurement of a file, or of a part of it, by those `rows` of a manifest that speak of it."""
    if rows:
        reader = FileReader()
        yield from _listed_measurement([entry_of(row, reader) for row in rows], channel, None, channels)
    else:
        yield from _file_measurement(file, channel, None, channels, rpm)


def _file_measurement(
    file: Path, channel: str | None, usual: str | None, channels: str | None, rpm: float | None,
    speed: str | None = None,
) -> Iterator[FoundMeasurement]:  # fmt: skip
    """The one measurement of a file; `speed` is a channel."""
    name = shown(str(file))
    stated = None if speed is None else FoundRecording(
        partial(_open_speed, file, speed, name), f"{name}#{speed}", channel=speed, said_speed=True
    )  # fmt: skip
    if channel is not None:
        yield alone(FoundRecording(partial(open_stream, file, channel, name), name, rpm, channel=channel), stated)
        return
    opened = open_channels(file, name, usual)
    vibrating = vibrations(opened)
    names = [each for each in vibrating if each != speed]
    if not names:
        raise InputError(f"{name}: has no channel beside the speed's; name another one", "rpm")

    def found(channel: str) -> FoundRecording:
        origin = name if names == [channel] else f"{name}#{channel}"
        return FoundRecording(partial(opened[channel], origin), origin, rpm, channel=channel)

    if stated is None:
        stated = next((found(each) for each in opened if each not in vibrating), None)
    yield _grouped(name, [found(each) for each in names], channels, stated)


def _open_speed(file: Path, channel: str, name: str) -> Stream:
    try:
        return open_stream(file, channel, name)
    except InputError as error:
        raise InputError(f"{name}: the speed '{channel}' is neither a number nor a channel of it", "rpm") from error


def _listed_measurement(
    entries: Sequence[FolderEntry], channel: str | None, usual: str | None, channels: str | None,
    folder: str | None = None, rate: float | None = None,
) -> Iterator[FoundMeasurement]:  # fmt: skip
    """Rows of a manifest that are of one file, or of one part of it."""
    recordings = []
    for entry in entries:
        read: Callable[[FolderEntry], Stream] = partial(_read, rate=rate)
        try:
            divided = _divided(entry, channel, usual)
        except InputError as error:  # is raised again when it is opened, so that others go on
            divided, read = [entry], partial(_refuse, error)
        channels = channels or entry.row.channels
        for each in divided:
            row = each.row
            recordings.append(FoundRecording(
                partial(read, each), each.origin, None if row.rpm_given else row.rpm, row.bearing, row.machine, folder,
                row.point, row.channel, row.declared,
            ))  # fmt: skip
    first = entries[0]
    name, channel = first.origin, first.row.rpm_channel
    speed = None if channel is None else FoundRecording(
        partial(_read_speed, first), f"{name}#{channel}", channel=channel, said_speed=True
    )  # fmt: skip
    yield _grouped(name if len(entries) == 1 else name.partition("#")[0], recordings, channels, speed)


def _divided(entry: FolderEntry, channel: str | None, usual: str | None) -> list[FolderEntry]:
    """A row of a manifest by the channels it is read as."""
    there = entry.signals().channels
    if len(there) == 1:
        return [entry.with_channel(*there)]  # its name may say the unit
    return entry.by_channel() if channel is None and usual not in there else [entry.with_channel(channel or usual)]


def _grouped(
    name: str, recordings: Sequence[FoundRecording], channels: str | None, speed: FoundRecording | None = None
) -> FoundMeasurement:
    """Recordings of one measurement as points: by the points that a manifest names, else by the channels' names."""
    if len(recordings) == 1:
        return alone(recordings[0], speed)
    by_name = {recording.channel or recording.name: recording for recording in recordings}
    said = bool(channels or any(recording.point for recording in recordings))
    if channels is None and said:
        groups = grouped(by_name, lambda each: by_name[each].point or each)
        found = {point: tuple(axes) for point, axes in groups.items()}
    else:
        found = points_of(list(by_name), channels)
    points = []
    for point, axes in found.items():
        own = by_name[axes[0]].name if len(axes) == 1 else f"{name}#{point}" if point else name
        points.append(FoundPoint(own, tuple(by_name[axis] for axis in axes)))
    return FoundMeasurement(name, tuple(points), speed, () if said else (described(found),))


def alone(recording: FoundRecording, speed: FoundRecording | None = None) -> FoundMeasurement:
    """A measurement of one channel."""
    return FoundMeasurement(recording.name, (FoundPoint(recording.name, (recording,)),), speed)


def _refused(error: InputError | OSError, name: str) -> FoundUnit:
    """A recording that raises this error when it is opened."""
    problem = error if isinstance(error, InputError) else InputError(f"{name}: {error}")
    return FoundUnit(name, lambda: iter([alone(FoundRecording(partial(_refuse, problem), name))]))


def _refuse(error: InputError, _: object = None) -> Stream:
    raise error


def _read(entry: FolderEntry, rate: float | None = None) -> Stream:
    recording = entry.read()
    return _stream_of(recording, recording.signal, rate)


def _read_speed(entry: FolderEntry) -> Stream:
    """The speed over a recording, from the channel that its row names."""
    found = entry.signals()
    speed = np.empty(0, dtype=np.float32) if found.speed is None else found.speed
    return Stream(entry.origin, found.rate, iter([speed]), speed.nbytes)


def units_of(catalogue: Catalogue, rate: float | None = None, cut: float | None = None) -> Iterator[FoundUnit]:
    """The recordings of a catalogue; those of one file are a measurement. `rate` is of files that do not say theirs;
    with `cut`, a recording counts as several of so many seconds.
    """
    for entries in grouped(catalogue.entries, lambda entry: _same_measurement(entry, cut)).values():
        yield FoundUnit(entries[0].origin, partial(_of_catalogue, entries, rate, cut))


def _same_measurement(entry: Entry, cut: float | None) -> Hashable:
    if isinstance(entry, FolderEntry) and cut is None:
        return entry.row.path, entry.row.start, entry.row.stop
    return entry.origin


def _of_catalogue(entries: Sequence[Entry], rate: float | None, cut: float | None) -> Iterator[FoundMeasurement]:
    rows = [entry for entry in entries if isinstance(entry, FolderEntry)]
    if rows and cut is None:
        yield from _listed_measurement(rows, None, None, None, rows[0].domain, rate)
        return
    for whole in (entry.read() for entry in entries):
        for part in [whole] if cut is None else parts_of(whole, cut):
            found = FoundRecording(
                partial(_stream_of, part, part.signal, rate), part.origin, part.rpm, part.bearing, part.machine,
                part.domain, None, part.channel, part.declared,
            )  # fmt: skip
            speed = None if part.speed is None else FoundRecording(
                partial(_stream_of, part, part.speed, rate), part.origin
            )  # fmt: skip
            yield alone(found, speed)


def _stream_of(recording: Recording, samples: Floats, rate: float | None = None) -> Stream:
    origin, own = recording.origin, recording.own_rpm
    return Stream(origin, recording.rate or rate, iter([samples]), samples.nbytes, recording.channel, own)


def array_recording(signal: NDArray[Any], rate: float | None, origin: str) -> FoundRecording:
    """A signal (time,) as a recording to diagnose."""
    recording = Recording(signal=signal, rate=rate, domain="", origin=origin)
    return FoundRecording(partial(Stream, origin, rate, iter([recording.signal])), origin)
