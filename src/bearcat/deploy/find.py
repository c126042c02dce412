"""Files, folders and manifests → measurements to diagnose, with what the user states about them.

A measurement was recorded at one time. It has one point or several neighbours; a point is one channel, or several axes
of one bearing.

>>> for unit in find_units(Path("pump"), Given()):
...     print([name for measurement in unit.open() for name in measurement.points])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bearcat.data.bearing import Bearing, asked_bearing
from bearcat.data.channels import Declared, is_speed, points_of, vibrations
from bearcat.data.datasets import MANIFEST, Catalogue, Entry, grouped
from bearcat.data.folder import FileReader, Folder, FolderEntry, entry_of, folder_entries, speed_in_folders
from bearcat.data.formats import FORMATS
from bearcat.data.manifest import ManifestRow, is_time, manifest_in
from bearcat.data.recording import Recording, parts_of
from bearcat.diagnosis.recording import AlarmRule
from bearcat.errors import InputError, check_range, shown
from bearcat.findings import Finding
from bearcat.settings import DiagnoseRequest
from bearcat.storage import real_path

if TYPE_CHECKING:
    from bearcat.deploy.opened import Predictor

MANIFEST_ABOVE = 3  # folders above a recording in which its manifest may lie
SAME_RATE = 1e-4  # by which two statements of one rate may differ


@dataclass(frozen=True, eq=False, kw_only=True)
class FoundRecording(ManifestRow):
    """One channel to diagnose: how to read it, and what a manifest, its folder or the recording itself states about it.

    Its domain stands for a machine without a name; without either, the file's folder does.
    """

    read: Callable[[], Recording]


@dataclass(frozen=True, eq=False)
class FoundMeasurement:
    """Neighbouring points recorded at one time, with the speed's channel if there is one.

    A point is a channel, or several axes of one bearing, which get one diagnosis.
    """

    points: Mapping[str, Sequence[FoundRecording]]  # by name
    speed: FoundRecording | None = None


@dataclass(frozen=True, eq=False)
class FoundUnit:
    """A file, or a part of one, that is not opened yet; opening raises InputError if it cannot be read."""

    name: str
    open: Callable[[], Sequence[FoundMeasurement]]  # one, or several where a recording is cut

    @staticmethod
    def of(recording: Recording) -> FoundUnit:
        """A recording that was read, such as an array."""
        return FoundUnit(recording.origin, lambda: [alone(found_recording(recording))])


@dataclass(frozen=True, eq=False)
class Given:
    """What a user states about all recordings, for those that do not state it themselves, and what a model assumes
    where nobody states it.
    """

    rate: float | None = None
    rpm: float | None = None
    speed: str | None = None  # the channel that holds it
    bearing: Bearing | None = None
    search: bool | None = None  # look for lines of any bearing if a recording's is unknown; None: without a model
    channel: str | None = None
    channels: str | None = None  # of a file: axes of one bearing (together) or of several bearings (apart)
    rule: AlarmRule = field(default_factory=AlarmRule)
    trust_speed: bool = False  # a stated speed is not checked
    declared: Declared = field(default_factory=Declared)  # unit, group and mounting, for the zone of ISO 20816-3
    measured: bool = False  # keep levels and spectra, also of recordings that are too short to be diagnosed
    without: str | None = None  # the dataset under test: what was learnt from its bench is left out
    assumed_channel: str | None = None
    assumed_rate: float | None = None
    assumed_rpm: float | None = None
    assumed_bearing: Bearing | None = None

    def __post_init__(self) -> None:
        check_range("rate", self.rate, field="rate")
        check_range("rpm", self.rpm, field="rpm")

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
            AlarmRule(request.alarm, request.prior).checked(classes), request.trust_speed,
            Declared(request.unit, request.group, request.mounting),
        )  # fmt: skip

    def with_model(self, model: Predictor) -> Given:
        """The same with what the model assumes; lines of any bearing are looked for only where the user asks."""
        # The only channel of a file without names is "1", which identifies no channel in a file with several.
        channel = None if self.channels is not None or model.channel == "1" else model.channel
        return replace(
            self, search=bool(self.search), assumed_channel=channel, assumed_rate=model.preparation.rate,
            assumed_rpm=model.rpm, assumed_bearing=model.bearing,
        )  # fmt: skip

    def rate_of(self, recording: Recording) -> float | None:
        """The rate of the file, otherwise the given one; InputError if they differ."""
        if self.rate is None or recording.rate is None or abs(recording.rate / self.rate - 1) < SAME_RATE:
            return recording.rate or self.rate or self.assumed_rate
        differ = f"says that it is at {recording.rate:g} Hz, and {self.rate:g} Hz is given"
        raise InputError(f"{recording.origin}: {differ}; leave the rate out, or correct it in a manifest", "rate")

    def bearing_of(self, recording: FoundRecording) -> Bearing | None:
        """The recording's, otherwise the given or the assumed one; None if the user calls it unknown."""
        return recording.bearing or self.bearing or (None if self.search else self.assumed_bearing)

    def differences(self, recording: FoundRecording) -> list[Finding]:
        """Remarks where the recording's statements and the user's differ."""
        stated, given = (rpm and f"{rpm:g} rpm" for rpm in (recording.rpm, self.rpm))
        both = {"rpm": (stated, given), "bearing": (recording.bearing, self.bearing)}
        return [
            Finding("statements differ", "remark", {"about": about, "stated": str(stated), "given": str(given)})
            for about, (stated, given) in both.items()
            if stated and given and stated != given
        ]


def find_files(path: Path) -> list[Path]:
    """The file itself, or those of supported formats in a folder, in order of name; hidden ones are left out."""
    if not path.is_dir():
        return [path]
    readable = (file for file in sorted(path.rglob("*")) if file.suffix.lower() in FORMATS)
    files = (file for file in readable if file.name != MANIFEST and not file.is_dir())  # reading names a pipe
    visible = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    return visible or [path]  # reading names an empty folder


def find_units(path: Path, given: Given) -> Iterator[FoundUnit]:
    """The recordings of a file or a folder, or those that a manifest lists, in the folder or above it.

    Only manifests are opened; an unusable recording raises its error when it is opened. Of several channels, the one
    that the user names is read, or the one to which the model was adapted, or all that may be vibrations: as points, as
    axes of one point, or as a manifest and their names say.
    """
    try:
        yield from _units_in(path, given)
    except (InputError, OSError) as error:  # such as an unreadable manifest; other paths go on
        yield _unusable(shown(str(path)), error)


def _units_in(path: Path, given: Given) -> Iterator[FoundUnit]:
    root = path.parent if path.name == MANIFEST else path
    if manifest_in(root):
        whole = Folder(root, rpm=given.speed).catalogue()
        yield from _listed_units(folder_entries(whole), given)
        for problem in whole.problems:  # no requested recording is dropped
            name = shown(str(root / problem.origin))  # as seen from the current folder
            reason = InputError(problem.sentence).beside(problem.origin)
            yield _unusable(name, InputError(f"{name}: {reason}", readable=True))
        return
    files = {file: real_path(file) for file in find_files(path)}
    above = {folder for real in files.values() for folder in real.parents[:MANIFEST_ABOVE] if manifest_in(folder)}
    catalogues = [Folder(folder, rpm=given.speed).catalogue({*files.values()}) for folder in sorted(above)]
    entries = [entry for catalogue in catalogues for entry in folder_entries(catalogue)]
    listed = grouped(entries, lambda entry: real_path(entry.row.path))
    for file, real in files.items():
        if real in listed:
            yield from _listed_units(listed[real], given, file)
        else:  # a folder may be named after its speed
            rpm, place = speed_in_folders(real), _point_folder(file, path)
            yield FoundUnit(shown(str(file)), partial(_file_measurement, file, given, rpm, place))
    for problem in (problem for catalogue in catalogues for problem in catalogue.problems):
        if problem.origin.startswith(MANIFEST):  # a row about one of these files
            yield _unusable(problem.origin, InputError(problem.sentence, readable=True))


def _listed_units(entries: Sequence[FolderEntry], given: Given, path: Path | None = None) -> Iterator[FoundUnit]:
    """The rows of a manifest, called by the path of their file, as the user writes it."""
    for same in _by_part(entries):
        names = [entry.row.called(shown(str(path or entry.row.path))) for entry in same]
        rows = [replace(entry.row, origin=name, domain="") for name, entry in zip(names, same, strict=True)]
        renamed = [entry_of(row, entry.reader) for row, entry in zip(rows, same, strict=True)]
        yield FoundUnit(names[0], partial(_listed_measurement, renamed, given))


def measurements_of_file(
    file: Path, given: Given, rows: Sequence[ManifestRow] = (), rpm: float | None = None
) -> list[FoundMeasurement]:
    """The one measurement of a file, or of a part of it; `rows` are its rows in a manifest."""
    reader = FileReader()
    entries = [entry_of(replace(row, domain=""), reader) for row in rows]
    return _listed_measurement(entries, given) if rows else _file_measurement(file, given, rpm)


def _point_folder(file: Path, root: Path) -> tuple[str, str] | None:
    """Machine and point of ROOT/MACHINE/POINT/TIME.ext, as for `bearcat watch`."""
    deep = len(file.parent.parts) > len(root.parts) + 1
    return (str(file.parent.parent), shown(file.parent.name)) if deep and is_time(file.stem) else None


def _file_measurement(
    file: Path, given: Given, rpm: float | None, place: tuple[str, str] | None = None
) -> list[FoundMeasurement]:
    """The one measurement of a file that no manifest lists; `place` is the machine and point of its only channel."""
    entry = entry_of(ManifestRow(path=file, origin=shown(str(file)), domain="", rpm=rpm), FileReader())
    names, parts, speed = entry.channels(), _divided(entry, given), given.speed
    if speed is not None and speed not in names:
        raise InputError(f"{entry.origin}: the speed '{speed}' is neither a number nor a channel of it", "rpm")
    if speed is None and given.channel is None and given.assumed_channel not in names:
        speed = next((name for name in names if is_speed(name) and name not in vibrations(names)), None)
    recordings = list(map(_found, parts))
    if place is not None and len(recordings) == 1:
        recordings = [replace(recordings[0], domain=place[0], point=place[1])]
    of_speed = None if speed is None else _found(entry_of(entry.row.of_channel(speed), entry.reader))
    return [_grouped(entry.origin, recordings, given.channels, of_speed)]


def _listed_measurement(entries: Sequence[FolderEntry], given: Given) -> list[FoundMeasurement]:
    """The measurement of those rows of a manifest that belong to one file, or one part of it."""
    recordings, channels = list[FoundRecording](), given.channels
    for entry in entries:
        try:
            recordings += map(_found, _divided(entry, given))
        except InputError as error:  # raised again when it is read, so that others go on
            recordings.append(FoundRecording(read=partial(_refuse, error), **vars(entry.row)))
        channels = channels or entry.row.channels
    name = entries[0].origin if len(entries) == 1 else "".join(split_name(entries[0].origin, entries[0].row.path)[:2])
    return [_grouped(name, recordings, channels)]


def _divided(entry: FolderEntry, given: Given) -> list[FolderEntry]:
    """The channels to read: the one that its row, the user or the model names, or all that may be vibrations."""
    names = [name for name in entry.channels() if name != given.speed]
    if not names or (given.channel is not None and given.channel == given.speed):
        raise InputError(f"{entry.origin}: has no channel beside the speed's; name another one", "rpm")
    channel = given.channel or (given.assumed_channel if given.assumed_channel in names else None)
    if channel is not None:
        return [entry.with_channel(channel)]
    several = vibrations(names)
    if len(several) == 1:
        return [entry.with_channel(several[0])]
    return [entry_of(entry.row.of_channel(name), entry.reader) for name in several]


def _found(entry: FolderEntry) -> FoundRecording:
    """A row as a recording that is read once; a speed that is given for all recordings is not its own."""
    stated = vars(entry.row) | ({"rpm": None} if entry.row.rpm_given else {})
    return FoundRecording(read=cache(entry.read), **stated)


def _grouped(
    name: str, recordings: Sequence[FoundRecording], channels: str | None, speed: FoundRecording | None = None
) -> FoundMeasurement:
    """Groups the recordings of a measurement into points: as a manifest names them, or by the channels' names."""
    if len(recordings) == 1:
        return alone(recordings[0], speed)
    by_name = {recording.channel or recording.origin: recording for recording in recordings}
    axes_of: Mapping[str, Sequence[str]] = points_of(list(by_name), channels)
    if channels is None and any(recording.point for recording in recordings):
        axes_of = grouped(by_name, lambda channel: by_name[channel].point or channel)
    points = {}
    for point, axes in axes_of.items():
        origin = by_name[axes[0]].origin if len(axes) == 1 else f"{name}#{point}" if point else name
        points[origin] = [by_name[axis] for axis in axes]
    return FoundMeasurement(points, speed)


def split_name(name: str, file: Path) -> tuple[str, str, str]:
    """The folder, the file and the channel or point of a name like `folder/file#channel`, where folder and file may be
    called by a # too.

    >>> split_name("Pump #1/a.wav#drive", Path("Pump #1/a.wav"))
    ('Pump #1/', 'a.wav', 'drive')
    """
    folder, called, rest = name.rpartition(shown(file.name))
    return folder, called, rest.partition("#")[2]


def alone(recording: FoundRecording, speed: FoundRecording | None = None) -> FoundMeasurement:
    """A measurement of one channel."""
    return FoundMeasurement({recording.origin: [recording]}, speed)


def _refuse(error: InputError | OSError) -> Any:
    raise error


def _unusable(name: str, error: InputError | OSError) -> FoundUnit:
    return FoundUnit(name, partial(_refuse, error))


def units_of(catalogue: Catalogue, cut: float | None = None) -> Iterator[FoundUnit]:
    """The recordings of a catalogue; those of one file are a measurement. With `cut`, a recording is divided into parts
    of this many seconds.
    """
    rows = folder_entries(catalogue) if cut is None else []
    for entries in _by_part(rows):
        yield FoundUnit(entries[0].origin, partial(_listed_measurement, entries, Given()))
    for entry in () if rows else catalogue.entries:
        yield FoundUnit(entry.origin, partial(_parts_of, entry, cut))


def _by_part(entries: Sequence[FolderEntry]) -> Iterable[list[FolderEntry]]:
    """Groups the rows of one file, or of one part of it."""
    return grouped(entries, lambda entry: (entry.row.path, entry.row.start, entry.row.stop)).values()


def _parts_of(entry: Entry, cut: float | None) -> list[FoundMeasurement]:
    """The measurement of a recording, or of its parts of `cut` seconds."""
    whole = entry.read()
    return [alone(found_recording(part)) for part in ([whole] if cut is None else parts_of(whole, cut))]


def found_recording(recording: Recording) -> FoundRecording:
    """A recording that was read, such as an array."""
    stated = vars(recording.info()) | {"path": Path(recording.origin.partition("#")[0]), "declared": recording.declared}
    return FoundRecording(read=lambda: recording, **stated)
