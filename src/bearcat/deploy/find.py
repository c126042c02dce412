"""Files, folders and manifests → measurements to diagnose, with what the user states about them.

A measurement was recorded at one time. It has one point or several neighbours; a point is one channel, or several axes
of one bearing.

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
from bearcat.data.folder import FileReader, Folder, FolderEntry, entry_of, folder_entries, speed_in_folders
from bearcat.data.isolated import open_channels, open_stream
from bearcat.data.manifest import MANIFEST, ManifestRow, is_time, manifest_in
from bearcat.data.recording import Floats, Gaps, Recording, parts_of, stated_speed
from bearcat.data.stream import FORMATS, Stream
from bearcat.diagnosis.recording import AlarmRule
from bearcat.errors import InputError, check_range, shown
from bearcat.findings import Finding
from bearcat.settings import DiagnoseRequest
from bearcat.storage import real_path

MANIFEST_ABOVE = 3  # folders above a recording in which its manifest may lie
SAME_RATE = 1e-4  # by which two statements of one rate may differ


@dataclass(frozen=True, eq=False)
class FoundRecording:
    """One channel to diagnose: how to open it, and what a manifest or the folder's name states about it."""

    open: Callable[[], Stream]
    name: str
    rpm: float | None = None
    bearing: Bearing | None = None
    machine: str | None = None
    folder: str | None = None  # stands for a machine without a name; None: the file's folder
    point: str | None = None
    channel: str | None = None  # its name may say the unit; None: an array
    declared: Declared = field(default_factory=Declared)  # by a manifest, for the zone of ISO 20816-3
    states_speed: bool = False  # the user or a manifest says that this channel holds the speed


@dataclass(frozen=True, eq=False)
class FoundPoint:
    """A channel, or several axes of one bearing, which get one diagnosis."""

    name: str
    recordings: tuple[FoundRecording, ...]


@dataclass(frozen=True, eq=False)
class FoundMeasurement:
    """Neighbouring points recorded at one time, with the speed's channel if there is one, and notes."""

    name: str
    points: tuple[FoundPoint, ...]
    speed: FoundRecording | None = None
    notes: tuple[str, ...] = ()

    def closed(self) -> FoundMeasurement:
        """The same names without the samples."""

        def without_samples(point: FoundPoint) -> FoundPoint:
            return replace(point, recordings=tuple(replace(axis, open=closed) for axis in point.recordings))

        return replace(self, points=tuple(map(without_samples, self.points)), speed=None)


@dataclass(frozen=True, eq=False)
class FoundUnit:
    """A file, or a part of one, that is not opened yet; opening raises InputError if it cannot be read."""

    name: str
    open: Callable[[], Sequence[FoundMeasurement]]  # one, or several where a recording is cut


@dataclass(frozen=True, eq=False)
class Given:
    """What a user states about all recordings, for those that do not state it themselves; a model fills in None."""

    rate: float | None = None
    rpm: float | None = None
    speed: str | None = None  # the channel that holds it
    bearing: Bearing | None = None
    search: bool | None = None  # look for lines of any bearing if a recording's is unknown; None: without a model
    channel: str | None = None
    channels: str | None = None  # of a file: axes of one bearing (together) or of several bearings (apart)
    rule: AlarmRule | None = None
    trust_speed: bool = False  # a stated speed is not checked
    declared: Declared = field(default_factory=Declared)  # unit, group and mounting, for the zone of ISO 20816-3
    measured: bool = False  # keep levels and spectra, also of recordings that are too short to be diagnosed
    without: str | None = None  # the dataset under test: what was learnt from its bench is left out

    def __post_init__(self) -> None:
        check_range("rate", self.rate, field="rate")
        check_range("rpm", self.rpm, field="rpm")
        points_of((), self.channels)  # refuses other words

    @staticmethod
    def of(request: DiagnoseRequest, classes: Sequence[str] = ()) -> Given:
        """From a request; `classes` are the model's."""
        rpm, speed = None, None
        try:
            rpm = None if request.rpm is None else float(request.rpm)
        except ValueError:
            speed = str(request.rpm)
        bearing, search = asked_bearing(request.bearing)
        return Given(
            request.rate, rpm, speed, bearing, search or None, request.channel, request.channels,
            AlarmRule.of(classes, request.alarm or None, request.prior), request.trust_speed,
            Declared(request.unit, request.group, request.mounting),
        )  # fmt: skip

    def rate_of(self, stream: Stream) -> float | None:
        """The rate of the file, otherwise the given one; InputError if they differ."""
        if self.rate is None or stream.rate is None or abs(stream.rate / self.rate - 1) < SAME_RATE:
            return stream.rate or self.rate
        differ = f"says that it is at {stream.rate:g} Hz, and {self.rate:g} Hz is given"
        raise InputError(f"{stream.origin}: {differ}; leave the rate out, or correct it in a manifest", "rate")

    def rpm_of(self, recording: FoundRecording, stream: Stream) -> tuple[float | None, Finding | None]:
        """The stated speed, and a remark if the file contradicts it."""
        return stated_speed(stream.origin, stream.rpm, recording.rpm, self.rpm)

    def bearing_of(self, recording: FoundRecording, assumed: Bearing | None = None) -> Bearing | None:
        """The recording's, otherwise the given or the `assumed` one; None if the user calls it unknown."""
        return recording.bearing or self.bearing or (None if self.search else assumed)

    def declared_of(self, recording: FoundRecording) -> Declared:
        """What the user or a manifest declares, and the unit in the channel's name."""
        return self.declared.completed(recording.declared, recording.channel or "")

    def differences(self, recording: FoundRecording) -> list[Finding]:
        """Remarks where the recording's statements and the user's differ."""
        differing = list[dict[str, Any]]()
        if self.rpm is not None and recording.rpm is not None and self.rpm != recording.rpm:
            differing.append({"about": "rpm", "stated": recording.rpm, "given": self.rpm})
        if self.bearing is not None and recording.bearing is not None:
            stated = recording.bearing.orders()
            if any(abs(order / stated[line] - 1) > 1e-3 for line, order in self.bearing.orders().items()):
                differing.append({"about": "bearing", "stated": str(recording.bearing)})
        return [Finding("statements differ", "remark", values) for values in differing]


def find_files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files named, and those of supported formats in folders named, in order of name; hidden ones are left out."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        readable = (file for file in sorted(path.rglob("*")) if file.suffix.lower() in FORMATS)
        files = (file for file in readable if file.name != MANIFEST and not file.is_dir())  # reading names a pipe
        visible = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        yield from visible or [path]  # reading names an empty folder


def find_units(paths: Sequence[Path], given: Given | None = None, usual: str | None = None) -> Iterator[FoundUnit]:
    """The recordings of files and folders, or those that a manifest lists, in the folder or above it.

    Only manifests are opened; an unusable recording raises its error when it is opened. Of several channels, the one
    that the user names is read, or the `usual` one, to which the model was adapted, or all that may be vibrations: as
    points, as axes of one point, or as a manifest and their names say.
    """
    given = given or Given()
    # The only channel of a file without names is "1", which identifies no channel in a file with several.
    usual = None if given.channels is not None or usual == "1" else usual

    @cache
    def listed(root: Path, only: frozenset[Path] | None = None) -> Catalogue | None:
        return Folder(root, rpm=given.speed).catalogue(only) if manifest_in(root) else None

    def as_listed(entries: Sequence[FolderEntry], called: Callable[[ManifestRow], str]) -> Iterator[FoundUnit]:
        for same in _by_part(entries):
            rows = [replace(entry.row, origin=called(entry.row)) for entry in same]
            renamed = [entry_of(row, entry.reader) for entry, row in zip(same, rows, strict=True)]
            opening = partial(_listed_measurement, renamed, given.channel, usual, given.channels)
            yield FoundUnit(renamed[0].origin, opening)

    def units_in(path: Path) -> Iterator[FoundUnit]:
        root = path.parent if path.name == MANIFEST else path
        if (whole := listed(root)) is not None:
            yield from as_listed(folder_entries(whole), lambda row: shown(str(root / row.origin)))
            for problem in whole.problems:  # no requested recording is dropped
                name = shown(str(root / problem.origin))  # as seen from the current folder
                reason = InputError(problem.sentence).beside(problem.origin)
                yield FoundUnit(name, partial(_refuse, InputError(f"{name}: {reason}", readable=True)))
            return
        files, wrong = {file: real_path(file) for file in find_files([path])}, dict[str, str]()
        for file, real in files.items():
            only = frozenset(files.values())
            manifests = [manifest for folder in real.parents[:MANIFEST_ABOVE] if (manifest := listed(folder, only))]
            wrong |= {problem.sentence: problem.origin for manifest in manifests for problem in manifest.problems}
            above = [entry for manifest in manifests for entry in folder_entries(manifest)]
            if entries := [entry for entry in above if real_path(entry.row.path) == real]:
                yield from as_listed(entries, partial(ManifestRow.called, path=shown(str(file))))
            else:  # a folder may be named after its speed
                rpm, point = speed_in_folders(real, root), _point_folder(file, path)
                yield FoundUnit(shown(str(file)), partial(_file_measurement, file, given, usual, rpm, point))
        for sentence, origin in wrong.items():
            if origin.startswith(MANIFEST):  # a row about one of these files
                yield FoundUnit(origin, partial(_refuse, InputError(sentence, readable=True)))

    for path in paths:
        try:
            yield from units_in(path)
        except (InputError, OSError) as error:  # such as an unreadable manifest; other paths go on
            yield FoundUnit(shown(str(path)), partial(_refuse, error))


def measurements_of_file(
    file: Path, rows: Sequence[ManifestRow] = (), channel: str | None = None, channels: str | None = None,
    rpm: float | None = None,
) -> list[FoundMeasurement]:  # fmt: skip
    """The one measurement of a file, or of a part of it; `rows` are its rows in a manifest."""
    if rows:
        reader = FileReader()
        return _listed_measurement([entry_of(row, reader) for row in rows], channel, None, channels)
    return _file_measurement(file, Given(channel=channel, channels=channels), None, rpm)


def _point_folder(file: Path, root: Path) -> tuple[str, str] | None:
    """Machine and point of ROOT/MACHINE/POINT/TIME.ext, as for `bearcat watch`."""
    deep = len(file.parent.parts) > len(root.parts) + 1
    return (str(file.parent.parent), shown(file.parent.name)) if deep and is_time(file.stem) else None


def _file_measurement(
    file: Path, given: Given, usual: str | None, rpm: float | None, place: tuple[str, str] | None = None
) -> list[FoundMeasurement]:
    """The one measurement of a file; `place` is the machine and the point of a file of one channel."""
    origin, channel, speed = shown(str(file)), given.channel, None
    folder, point = place or (None, None)
    if given.speed is not None:
        opening = partial(_open_speed, file, given.speed, origin)
        speed = FoundRecording(opening, f"{origin}#{given.speed}", channel=given.speed, states_speed=True)
    if channel is not None:
        opening = partial(open_stream, file, channel, origin)
        return [alone(FoundRecording(opening, origin, rpm, folder=folder, point=point, channel=channel), speed)]
    opened = open_channels(file, origin, usual)
    vibrating = vibrations(opened)
    names = [name for name in vibrating if name != given.speed]
    if not names:
        raise InputError(f"{origin}: has no channel beside the speed's; name another one", "rpm")

    def recording(name: str) -> FoundRecording:
        if names == [name]:
            return FoundRecording(partial(opened[name], origin), origin, rpm, folder=folder, point=point, channel=name)
        full = f"{origin}#{name}"
        return FoundRecording(partial(opened[name], full), full, rpm, channel=name)

    if speed is None:
        speed = next((recording(name) for name in opened if name not in vibrating), None)
    return [_grouped(origin, [recording(name) for name in names], given.channels, speed)]


def _open_speed(file: Path, channel: str, name: str) -> Stream:
    try:
        return open_stream(file, channel, name)
    except InputError as error:
        raise InputError(f"{name}: the speed '{channel}' is neither a number nor a channel of it", "rpm") from error


def _listed_measurement(
    entries: Sequence[FolderEntry], channel: str | None, usual: str | None, channels: str | None,
    folder: str | None = None, rate: float | None = None,
) -> list[FoundMeasurement]:  # fmt: skip
    """The measurement of those rows of a manifest that belong to one file, or one part of it."""
    recordings = []
    for entry in entries:
        read: Callable[[FolderEntry], Stream] = partial(_read, rate=rate)
        try:
            divided = _divided(entry, channel, usual)
        except InputError as error:  # raised again when it is opened, so that others go on
            divided, read = [entry], partial(_refuse, error)
        channels = channels or entry.row.channels
        for part in divided:
            row = part.row
            recordings.append(FoundRecording(
                partial(read, part), part.origin, None if row.rpm_given else row.rpm, row.bearing, row.machine, folder,
                row.point, row.channel, row.declared,
            ))  # fmt: skip
    first, speed = entries[0], None
    if (channel := first.row.rpm_channel) is not None:
        opening = partial(_read_speed, first)
        speed = FoundRecording(opening, f"{first.origin}#{channel}", channel=channel, states_speed=True)
    name = first.origin if len(entries) == 1 else first.origin.partition("#")[0]
    return [_grouped(name, recordings, channels, speed)]


def _divided(entry: FolderEntry, channel: str | None, usual: str | None) -> list[FolderEntry]:
    """Divides a row of a manifest by the channels to read."""
    channels = entry.channels()
    if len(channels) == 1:
        return [entry.with_channel(*channels)]  # its name may say the unit
    return entry.by_channel() if channel is None and usual not in channels else [entry.with_channel(channel or usual)]


def _grouped(
    name: str, recordings: Sequence[FoundRecording], channels: str | None, speed: FoundRecording | None = None
) -> FoundMeasurement:
    """Groups the recordings of a measurement into points: as a manifest names them, or by the channels' names."""
    if len(recordings) == 1:
        return alone(recordings[0], speed)
    by_name = {recording.channel or recording.name: recording for recording in recordings}
    stated = bool(channels or any(recording.point for recording in recordings))
    if channels is None and stated:
        groups = grouped(by_name, lambda channel: by_name[channel].point or channel)
        axes_of = {point: tuple(axes) for point, axes in groups.items()}
    else:
        axes_of = points_of(list(by_name), channels)
    points = []
    for point, axes in axes_of.items():
        origin = by_name[axes[0]].name if len(axes) == 1 else f"{name}#{point}" if point else name
        points.append(FoundPoint(origin, tuple(by_name[axis] for axis in axes)))
    return FoundMeasurement(name, tuple(points), speed, () if stated else (described(axes_of),))


def alone(recording: FoundRecording, speed: FoundRecording | None = None) -> FoundMeasurement:
    """A measurement of one channel."""
    return FoundMeasurement(recording.name, (FoundPoint(recording.name, (recording,)),), speed)


def _refuse(error: InputError | OSError, _: object = None) -> Any:
    raise error


def closed() -> Stream:
    raise ValueError("a measured recording is not read again")


def _read(entry: FolderEntry, rate: float | None = None) -> Stream:
    recording = entry.read()
    return _stream_of(recording, recording.signal, rate)


def _read_speed(entry: FolderEntry) -> Stream:
    """The speed over a recording, from the channel that its row names."""
    recording = entry.recording(entry.channels()[0])
    speed = np.empty(0, dtype=np.float32) if recording.speed is None else recording.speed
    return Stream(entry.origin, recording.rate, iter([speed]))


def units_of(catalogue: Catalogue, rate: float | None = None, cut: float | None = None) -> Iterator[FoundUnit]:
    """The recordings of a catalogue; those of one file are a measurement.

    `rate` is for files that state none; with `cut`, a recording is divided into parts of this many seconds.
    """
    rows = folder_entries(catalogue) if cut is None else []
    for entries in _by_part(rows):
        opening = partial(_listed_measurement, entries, None, None, None, entries[0].domain, rate)
        yield FoundUnit(entries[0].origin, opening)
    for entry in () if rows else catalogue.entries:
        yield FoundUnit(entry.origin, partial(_read_measurements, entry, rate, cut))


def _by_part(entries: Sequence[FolderEntry]) -> Iterable[list[FolderEntry]]:
    """Groups the rows of one file, or of one part of it."""
    return grouped(entries, lambda entry: (entry.row.path, entry.row.start, entry.row.stop)).values()


def _read_measurements(entry: Entry, rate: float | None, cut: float | None) -> list[FoundMeasurement]:
    """The measurement of a recording, or of its parts of `cut` seconds."""
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
    gaps = Gaps(recording.origin, samples.size, recording.gaps.size)
    stated = recording.rate or rate, iter([samples]), recording.channel, recording.own_rpm
    return Stream(recording.origin, *stated, gaps)


def array_recording(signal: NDArray[Any], rate: float | None, origin: str) -> FoundRecording:
    """A signal (time,) as a recording to diagnose."""
    recording = Recording(signal=signal, rate=rate, domain="", origin=origin)
    return FoundRecording(partial(_stream_of, recording, recording.signal), origin)
