"""What there is to diagnose, and what a user says of it: files, folders and manifests → measurements.

A measurement is what was recorded at once: points that are neighbours, each one channel or several axes of one bearing.

>>> for unit in find_units([Path("pump")]):
...     print([point.name for measurement in unit.open() for point in measurement.points])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing, asked_bearing
from bearcat.data.catalogue import Catalogue, Entry, grouped
from bearcat.data.channels import Declared, described, points_of, vibrations
from bearcat.data.folder import FileReader, Folder, FolderEntry, entry_of, folder_entries, speed_in_name
from bearcat.data.isolated import open_channels, open_stream
from bearcat.data.manifest import MANIFEST, ManifestRow
from bearcat.data.recording import Floats, Recording, parts_of, stated_speed
from bearcat.data.stream import FORMATS, Stream
from bearcat.diagnosis.recording import AlarmRule
from bearcat.errors import InputError, check_range, shown
from bearcat.findings import PRIOR, Finding
from bearcat.requests import DiagnoseRequest
from bearcat.storage import real_path

MANIFEST_ABOVE = 3  # folders above a recording in which its manifest may lie
SAME_RATE = 1e-4  # by which two statements of one rate may differ


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
        points = tuple(
            replace(point, recordings=tuple(replace(each, open=closed) for each in point.recordings))
            for point in self.points
        )
        return replace(self, points=points, speed=None)


@dataclass(frozen=True, eq=False)
class FoundUnit:
    """A file, or a part of one, that nothing was opened of yet; InputError where it cannot be opened."""

    name: str
    open: Callable[[], Sequence[FoundMeasurement]]  # one, or several where a recording is cut


@dataclass(frozen=True, eq=False)
class Given:
    """What a user says of all recordings, where they do not say it themselves; what is None is the model's.

    With `override`, what the user says replaces what files, manifests and folders say.
    """

    rate: float | None = None
    rpm: float | None = None
    speed: str | None = None  # the channel that holds it
    bearing: Bearing | None = None
    search: bool = False  # look for lines of any bearing where a recording's is not known
    channel: str | None = None
    channels: str | None = None  # of a file: axes of one bearing (together) or bearings of their own (apart)
    rule: AlarmRule | None = None
    trust_speed: bool = False  # a stated speed is not checked
    declared: Declared = field(default_factory=Declared)  # unit, group and mounting, for the zone of ISO 20816-3
    override: bool = False
    measured: bool = False  # whether levels and spectra are kept, of recordings too that are too short to be diagnosed
    without: str | None = None  # the dataset that is tested: what was learnt from its bench does not count

    def __post_init__(self) -> None:
        check_range("rate", self.rate, field="rate")
        check_range("rpm", self.rpm, field="rpm")
        points_of((), self.channels)  # refuses other words

    @staticmethod
    def of(request: DiagnoseRequest, classes: Sequence[str] = ()) -> Given:
        """From what was asked for; `classes` are a model's."""
        rpm, speed = number_or_channel(request.rpm)
        bearing, search = asked_bearing(request.bearing)
        return Given(
            request.rate, rpm, speed, bearing, search, request.channel, request.channels,
            AlarmRule.of(classes, request.alarm or None, request.prior or PRIOR), request.trust_speed,
            Declared(request.unit, request.group, request.mounting), request.override,
        )  # fmt: skip

    def rate_of(self, stream: Stream) -> float | None:
        """The stream's own, else the given one; InputError where they differ and nothing is to be overridden."""
        if self.rate is None or stream.rate is None or self.override or abs(stream.rate / self.rate - 1) < SAME_RATE:
            return (self.rate or stream.rate) if self.override else (stream.rate or self.rate)
        differ = f"says that it is at {stream.rate:g} Hz, and {self.rate:g} Hz is given"
        raise InputError(f"{stream.origin}: {differ}; leave the rate out, or override", "rate")

    def rpm_of(self, found: FoundRecording, stream: Stream) -> tuple[float | None, Finding | None]:
        """The stated speed, and what a person should know where the file says otherwise."""
        return stated_speed(stream.origin, stream.rpm, found.rpm, self.rpm, self.override)

    def bearing_of(self, found: FoundRecording, assumed: Bearing | None = None) -> Bearing | None:
        """The recording's or the given one, else the `assumed` one; None where it is said to be unknown."""
        said = self.search or self.bearing is not None
        if found.bearing is not None and not (said and self.override):
            return found.bearing
        return self.bearing if said else assumed

    def declared_of(self, found: FoundRecording) -> Declared:
        """What a user or a manifest says of the measurement, and the unit that a channel's name says."""
        return self.declared.completed(found.declared, found.channel or "")

    def differences(self, found: FoundRecording) -> list[Finding]:
        """Where a recording says otherwise than the user."""
        said, own = (None if each is None else each.orders() for each in (self.bearing, found.bearing))
        differing = list[dict[str, Any]]()
        if self.rpm is not None and found.rpm is not None and self.rpm != found.rpm:
            differing.append({"about": "rpm", "stated": found.rpm, "given": self.rpm})
        if said is not None and own is not None and any(abs(said[name] / own[name] - 1) > 1e-3 for name in said):
            differing.append({"about": "bearing", "stated": str(found.bearing)})
        if self.search and self.override and own is not None:
            differing.append({"about": "unknown bearing", "stated": str(found.bearing)})
        counts = {"overridden": self.override}
        return [Finding("statements differ", "remark", values | counts) for values in differing]


def number_or_channel(rpm: str | float | None) -> tuple[float | None, str | None]:
    """A speed as a number, or the name of the channel that holds it."""
    try:
        return None if rpm is None else float(rpm), None
    except ValueError:
        return None, str(rpm)


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


def find_units(paths: Sequence[Path], given: Given | None = None, usual: str | None = None) -> Iterator[FoundUnit]:
    """The recordings of files and folders, or those a manifest lists, with what a manifest in a folder above says.

    Nothing is opened but manifests, and what cannot be used is a unit that says so when it is opened. Of several
    channels, the one that the user names is read, or the `usual` one, which the model was adapted to, or all that may
    be vibrations: each is a point, all are one, or a manifest and their names say which.
    """
    given = given or Given()
    override = given.override and given.speed is not None
    # The only channel of a file without names is "1", which says nothing of a file with several.
    usual = None if given.channels is not None or usual == "1" else usual

    @cache
    def listed(root: Path, only: frozenset[Path] | None = None) -> Catalogue | None:
        return Folder(root, rpm=given.speed).catalogue(only) if (root / MANIFEST).exists() else None

    def as_listed(entries: Sequence[FolderEntry], called: Callable[[ManifestRow], str]) -> Iterator[FoundUnit]:
        replaced: dict[str, Any] = {"rpm": None, "rpm_channel": given.speed} if override else {}
        for same in _by_part(entries):
            rows = [replace(entry.row, origin=called(entry.row), **replaced) for entry in same]
            renamed = [entry_of(row, entry.reader) for entry, row in zip(same, rows, strict=True)]
            opening = partial(_listed_measurement, renamed, given.channel, usual, given.channels)
            yield FoundUnit(renamed[0].origin, opening)

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
                rpm = None if override else speed_in_name(place.parent.name)
                yield FoundUnit(shown(str(file)), partial(_file_measurement, file, given, usual, rpm))
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
) -> list[FoundMeasurement]:  # fmt: skip
    """The one measurement of a file, or of a part of it, by those `rows` of a manifest that speak of it."""
    if rows:
        reader = FileReader()
        return _listed_measurement([entry_of(row, reader) for row in rows], channel, None, channels)
    return _file_measurement(file, Given(channel=channel, channels=channels), None, rpm)


def _file_measurement(file: Path, given: Given, usual: str | None, rpm: float | None) -> list[FoundMeasurement]:
    """The one measurement of a file."""
    name, channel, stated = shown(str(file)), given.channel, None
    if given.speed is not None:
        opening = partial(_open_speed, file, given.speed, name)
        stated = FoundRecording(opening, f"{name}#{given.speed}", channel=given.speed, said_speed=True)
    if channel is not None:
        return [alone(FoundRecording(partial(open_stream, file, channel, name), name, rpm, channel=channel), stated)]
    opened = open_channels(file, name, usual)
    vibrating = vibrations(opened)
    names = [each for each in vibrating if each != given.speed]
    if not names:
        raise InputError(f"{name}: has no channel beside the speed's; name another one", "rpm")

    def found(channel: str) -> FoundRecording:
        origin = name if names == [channel] else f"{name}#{channel}"
        return FoundRecording(partial(opened[channel], origin), origin, rpm, channel=channel)

    if stated is None:
        stated = next((found(each) for each in opened if each not in vibrating), None)
    return [_grouped(name, [found(each) for each in names], given.channels, stated)]


def _open_speed(file: Path, channel: str, name: str) -> Stream:
    try:
        return open_stream(file, channel, name)
    except InputError as error:
        raise InputError(f"{name}: the speed '{channel}' is neither a number nor a channel of it", "rpm") from error


def _listed_measurement(
    entries: Sequence[FolderEntry], channel: str | None, usual: str | None, channels: str | None,
    folder: str | None = None, rate: float | None = None,
) -> list[FoundMeasurement]:  # fmt: skip
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
    first, speed = entries[0], None
    if (channel := first.row.rpm_channel) is not None:
        opening = partial(_read_speed, first)
        speed = FoundRecording(opening, f"{first.origin}#{channel}", channel=channel, said_speed=True)
    name = first.origin if len(entries) == 1 else first.origin.partition("#")[0]
    return [_grouped(name, recordings, channels, speed)]


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
    """What cannot be used."""
    return FoundUnit(name, partial(_refuse, error))


def _refuse(error: InputError | OSError, _: object = None) -> Any:
    raise error


def closed() -> Stream:
    raise ValueError("what is measured is not read again")


def _read(entry: FolderEntry, rate: float | None = None) -> Stream:
    recording = entry.read()
    return _stream_of(recording, recording.signal, rate)


def _read_speed(entry: FolderEntry) -> Stream:
    """The speed over a recording, from the channel that its row names."""
    found = entry.signals()
    speed = np.empty(0, dtype=np.float32) if found.speed is None else found.speed
    return Stream(entry.origin, found.rate, iter([speed]))


def units_of(catalogue: Catalogue, rate: float | None = None, cut: float | None = None) -> Iterator[FoundUnit]:
    """The recordings of a catalogue; those of one file are a measurement. `rate` is of files that do not say theirs;
    with `cut`, a recording counts as several of so many seconds.
    """
    rows = folder_entries(catalogue) if cut is None else []
    for entries in _by_part(rows):
        opening = partial(_listed_measurement, entries, None, None, None, entries[0].domain, rate)
        yield FoundUnit(entries[0].origin, opening)
    for entry in () if rows else catalogue.entries:
        yield FoundUnit(entry.origin, partial(_read_measurements, entry, rate, cut))


def _by_part(entries: Sequence[FolderEntry]) -> Iterable[list[FolderEntry]]:
    """Rows of one file, or of one part of it, together."""
    return grouped(entries, lambda entry: (entry.row.path, entry.row.start, entry.row.stop)).values()


def _read_measurements(entry: Entry, rate: float | None, cut: float | None) -> list[FoundMeasurement]:
    """A recording that is read at once, or its parts of so many seconds."""
    whole, measurements = entry.read(), list[FoundMeasurement]()
    for part in [whole] if cut is None else parts_of(whole, cut):
        recording = FoundRecording(
            partial(_stream_of, part, part.signal, rate), part.origin, part.rpm, part.bearing, part.machine,
            part.domain, None, part.channel, part.declared,
        )  # fmt: skip
        speed = part.speed
        opening = None if speed is None else FoundRecording(partial(_stream_of, part, speed, rate), part.origin)
        measurements.append(alone(recording, opening))
    return measurements


def _stream_of(recording: Recording, samples: Floats, rate: float | None = None) -> Stream:
    origin, own = recording.origin, recording.own_rpm
    return Stream(origin, recording.rate or rate, iter([samples]), recording.channel, own)


def array_recording(signal: NDArray[Any], rate: float | None, origin: str) -> FoundRecording:
    """A signal (time,) as a recording to diagnose."""
    recording = Recording(signal=signal, rate=rate, domain="", origin=origin)
    return FoundRecording(partial(Stream, origin, rate, iter([recording.signal])), origin)
