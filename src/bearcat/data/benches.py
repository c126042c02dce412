"""Public test benches: Paderborn (the paper's), CWRU and HIT-SM, and the last two as machines of one dataset.

Of Paderborn the paper takes measurement 1 of the 13 really damaged bearings, one class each. The four normal recordings
of CWRU are published at 48 kHz; they are recognised by their length and resampled to 12 kHz, so that no class can be
recognised by its rate. Of HIT-SM a whole rig may be missing; a missing file of a rig that exists is a problem. Each
`_read` reads the samples of what is known of a recording.

>>> CWRU(root=Path("data/cwru")).catalogue().domains
('load0', 'load1', 'load2', 'load3')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote

from bearcat.data.bearing import BEARINGS
from bearcat.data.datasets import CONDITIONS, Catalogue, Dataset, Entry, Problem, checked_root
from bearcat.data.formats import read_signals
from bearcat.data.recording import Recording, RecordingInfo, resample
from bearcat.data.signals import some_names
from bearcat.errors import InputError

PADERBORN_RATE = 64_000.0  # of the vibration
PADERBORN_CHANNEL = "vibration_1"  # the published numbers come from it (docs/protocol.md)
PAPER = (
    "KA04", "KA15", "KA16", "KA22", "KA30", "KB23", "KB24", "KB27", "KI14", "KI16", "KI17", "KI18", "KI21",
)  # fmt: skip

BEARING = BEARINGS["6205"]  # of HIT-SM, and of CWRU at the drive end, where all its faults are

CWRU_RATE = 12_000.0
CWRU_SIZES = ("007", "014", "021")  # of a fault, in thousandths of an inch
# A size and place is one physical bearing, at all loads; so is the normal one.
CWRU_CLASSES = ("normal", *(f"{part}-{size}" for size in CWRU_SIZES for part in ("inner", "ball", "outer")))
# The centre's file numbers, a row per load, in the order of CWRU_CLASSES; outer-race faults at six o'clock.
FILES = {
    "load0": (97, 105, 118, 130, 169, 185, 197, 209, 222, 234),
    "load1": (98, 106, 119, 131, 170, 186, 198, 210, 223, 235),
    "load2": (99, 107, 120, 132, 171, 187, 199, 211, 224, 236),
    "load3": (100, 108, 121, 133, 172, 188, 200, 212, 225, 237),
}
LOAD_SPEEDS = {"load0": 1797.0, "load1": 1772.0, "load2": 1750.0, "load3": 1730.0}  # rpm, as the centre lists the loads
# A normal recording of more samples than this is a 48 kHz original (243 938 samples and more), of fewer at 12 kHz.
LONGEST_AT_12_KHZ = 200_000

HIT_SM_RATE, HIT_SM_SPEEDS = 51_200.0, (600, 900, 1200)
# Normal, then inner and outer race; the number is the angle the defect spans, in degrees.
HIT_SM_CLASSES = ("Normal", "IR2", "IR5", "IR8", "OR2", "OR5", "OR8")
HIT_SM_TYPES = {"No": "normal", "IR": "inner", "OR": "outer"}  # by the beginning of a class
RIGS = {"mfs": "SpectraQuest MFS dataset", "self": "Self-built dataset"}  # as they are published

SHARED = {"normal": "healthy", "inner": "inner", "outer": "outer"}  # classes of both benches, by their labels by type


def _files_in(root: Path, pattern: str) -> dict[str, Path]:
    """The files below a folder that match, by name."""
    paths = sorted(root.rglob(pattern), reverse=True)  # of two with one name, the first
    return {path.name: path for path in paths if path.is_file() and not path.name.startswith(".")}


def _entry(
    path: Path, identity: str, info: RecordingInfo, read: Callable[[Path, RecordingInfo], Recording]
) -> Entry | Problem:
    """The entry of a file, or the problem that it is missing."""
    if path.is_file():
        return Entry(info.domain, info.label, info.origin, path, identity, partial(read, path, info))
    missing = f"{info.origin}: missing in {path.parent} ({info.domain}, {info.label}); fetch or copy it there"
    return Problem(info.origin, missing, info.domain, info.label)


def _catalogue(found: Iterable[Entry | Problem], classes: tuple[str, ...], notes: tuple[str, ...] = ()) -> Catalogue:
    """The domains are those of entries and problems, in their order."""
    listed = list(found)
    entries = tuple(each for each in listed if isinstance(each, Entry))
    problems = tuple(each for each in listed if isinstance(each, Problem))
    return Catalogue(tuple(dict.fromkeys(str(each.domain) for each in listed)), classes, entries, problems, notes)


@dataclass(frozen=True)
class Paderborn:
    """`root` holds the files anywhere below it: in `KA04/` or in one flat folder; the archives are unpacked by hand."""

    root: Path
    bearings: tuple[str, ...] = PAPER  # by their codes, a class each
    measurements: tuple[int, ...] = (1,)  # of 1–20; the paper uses the first

    title: ClassVar[str] = "Paderborn University: 4 conditions × 13 damaged bearings (of 32), 64 kHz"
    licence: ClassVar[str] = "CC BY-NC 4.0 (no commercial use), https://creativecommons.org/licenses/by-nc/4.0/"
    # Lessmeier et al., PHM Society European Conference 2016

    def downloads(self) -> dict[str, str]:
        base = "https://groups.uni-paderborn.de/kat/BearingDataCenter"
        return {f"{bearing}.rar": f"{base}/{bearing}.rar" for bearing in self.bearings}

    def catalogue(self) -> Catalogue:
        root = checked_root(self.root, "paderborn")
        files, found = _files_in(root, "*.mat"), list[Entry | Problem]()
        for condition, bearing, number in product(CONDITIONS, self.bearings, self.measurements):
            name = f"{condition}_{bearing}_{number}.mat"
            path = files.get(name, root / name)
            info = RecordingInfo(
                domain=condition, label=bearing, origin=path.relative_to(root).as_posix(), rate=PADERBORN_RATE,
                channel=PADERBORN_CHANNEL, bearing=BEARINGS["6203"], machine="Paderborn test rig", specimen=bearing,
                rpm=100.0 * int(condition[1:3]),  # N15: 1500 rpm
            )  # fmt: skip
            found.append(_entry(path, f"paderborn-1 {PADERBORN_CHANNEL}", info, self._read))
        packed = f"some archives may still be packed; unpack each in {root} with: unrar x NAME.rar"
        return _catalogue(found, self.bearings, (packed,) if _files_in(root, "K*.rar") else ())

    def _read(self, path: Path, info: RecordingInfo) -> Recording:
        channels = read_signals(path, info.origin).channels
        # A struct called as the file was first, whose Y lists structs with Name and Data.
        names = [name for name in channels if name.endswith(f".Y.{PADERBORN_CHANNEL}.Data")]
        if len(names) != 1:
            listed = some_names(channels)
            raise InputError(f"{info.origin}: has no '{PADERBORN_CHANNEL}', only {listed}; is it a file of this set?")
        return Recording(signal=channels[names[0]], **vars(info))


@dataclass(frozen=True)
class CWRU:
    """The settings of the dataset; `root` holds the files 97.mat … 237.mat, in any subfolder."""

    root: Path
    label_by: Literal["size", "type"] = "size"  # ten classes, or normal, inner, ball, outer
    # By size of the fault with labels by type: size007, … each with the four normal recordings.
    domain_by: Literal["load", "size"] = "load"

    title: ClassVar[str] = "Case Western Reserve University: 4 motor loads × 10 classes, 12 kHz"
    licence: ClassVar[str] = (
        "free for research; cite the Bearing Data Center, https://engineering.case.edu/bearingdatacenter"
    )

    def downloads(self) -> dict[str, str]:
        base = "https://engineering.case.edu/sites/default/files"
        return {f"{number}.mat": f"{base}/{number}.mat" for number in chain(*FILES.values())}

    def catalogue(self) -> Catalogue:
        root = checked_root(self.root, "cwru")
        files, found = _files_in(root, "*.mat"), list[Entry | Problem]()
        recordings = [(load, load, state) for load, state in product(FILES, CWRU_CLASSES)]  # domain, load, state
        if self.domain_by == "size":
            recordings = [
                (f"size{size}", load, state)
                for size, state, load in product(CWRU_SIZES, CWRU_CLASSES, FILES)
                if state == "normal" or state.endswith(size)
            ]
        for domain, load, state in recordings:
            number = FILES[load][CWRU_CLASSES.index(state)]
            path = files.get(f"{number}.mat", root / f"{number}.mat")
            info = RecordingInfo(
                domain=domain, label=self._label(state), origin=path.relative_to(root).as_posix(), channel="DE",
                rpm=LOAD_SPEEDS[load], bearing=BEARING, machine="CWRU test rig", specimen=f"cwru {state}",
            )  # fmt: skip
            found.append(_entry(path, f"cwru-1 {number} DE", info, partial(self._read, number, state)))
        return _catalogue(found, tuple(dict.fromkeys(map(self._label, CWRU_CLASSES))))

    def _label(self, state: str) -> str:
        return state if (self.label_by, self.domain_by) == ("size", "load") else state.partition("-")[0]

    @staticmethod
    def _read(number: int, state: str, path: Path, info: RecordingInfo) -> Recording:
        variable, signals = f"X{number:03d}_DE_time", read_signals(path, info.origin)
        if variable not in signals.channels:
            listed = some_names(signals.channels)
            raise InputError(f"{info.origin}: has no variable '{variable}', only {listed}; fetch file {number} again")
        signal = signals.channels[variable]
        published = 4 * CWRU_RATE if state == "normal" and signal.size > LONGEST_AT_12_KHZ else CWRU_RATE
        info = replace(info, rate=published, rpm=signals.rpm or info.rpm)
        return resample(Recording(signal=signal, **vars(info)), CWRU_RATE)


@dataclass(frozen=True)
class HITSM:
    """The settings of the dataset; `root` holds a folder per rig, `mfs/` or `self/`."""

    root: Path
    label_by: Literal["state", "type"] = "state"  # seven classes, or normal, inner, outer

    title: ClassVar[str] = "HIT-SM: two rigs × 3 speeds × 7 states, 51.2 kHz"
    licence: ClassVar[str] = "public, for classifying bearing faults: https://github.com/hitwzc/Bearing-datasets"
    # Sensing and Measurement laboratory, Harbin Institute of Technology, doi:10.1088/1361-6501/ac7941

    def downloads(self) -> dict[str, str]:
        base = "https://raw.githubusercontent.com/hitwzc/Bearing-datasets/main"
        return {
            f"{rig}/{state}_{speed}.mat": f"{base}/{quote(published)}/{state}_{speed}.mat"
            for (rig, published), speed, state in product(RIGS.items(), HIT_SM_SPEEDS, HIT_SM_CLASSES)
        }

    def catalogue(self) -> Catalogue:
        root, found = checked_root(self.root, "hit-sm"), list[Entry | Problem]()
        rigs = [rig for rig in RIGS if (root / rig).is_dir()]
        if not rigs:
            raise InputError(f"{root}: holds none of the folders {', '.join(RIGS)}; check the path")
        for rig, speed, state in product(rigs, HIT_SM_SPEEDS, HIT_SM_CLASSES):
            name = f"{rig}/{state}_{speed}.mat"
            info = RecordingInfo(
                domain=f"{rig}-{speed}", label=self._label(state), origin=name, rate=HIT_SM_RATE, rpm=float(speed),
                bearing=BEARING, machine=rig, specimen=f"{rig} {state}",
            )  # fmt: skip
            found.append(_entry(root / name, "hit-sm-1", info, self._read))
        return _catalogue(found, tuple(dict.fromkeys(map(self._label, HIT_SM_CLASSES))))

    def _label(self, state: str) -> str:
        return state if self.label_by == "state" else HIT_SM_TYPES[state[:2]]

    def _read(self, path: Path, info: RecordingInfo) -> Recording:
        name, signal = read_signals(path, info.origin).pick(None)  # the only variable, called as in no other file
        return Recording(signal=signal, **vars(replace(info, channel=name)))


# A bench's domain, the dataset with the folder it lies in, and the beginning of its domains' names.
BENCHES: dict[str, tuple[type[CWRU | HITSM], str, str]] = {
    "cwru": (CWRU, "cwru", "load"),
    "hit-sm-mfs": (HITSM, "hit-sm", "mfs-"),
    "hit-sm-self": (HITSM, "hit-sm", "self-"),
}


@dataclass(frozen=True)
class AcrossMachines(Dataset):
    """The settings of the dataset; `root` holds the folders cwru and hit-sm, of which one may be missing."""

    root: Path

    title: ClassVar[str] = "CWRU and HIT-SM as machines of one task: healthy, inner race, outer race"
    licence: ClassVar[str] = "those of the two datasets"

    def catalogue(self) -> Catalogue:
        root, found = checked_root(self.root), list[Entry | Problem]()
        for machine, (kind, folder, prefix) in BENCHES.items():
            if (root / folder).is_dir():
                bench = kind(root=root / folder, label_by="type").catalogue()
                part = bench.only([domain for domain in bench.domains if domain.startswith(prefix)])
                found += [_mapped(entry, machine, folder) for entry in part.entries if entry.label in SHARED]
                found += [replace(problem, domain=machine) for problem in part.problems]
        return _catalogue(found, tuple(SHARED.values()))


def _mapped(entry: Entry, machine: str, folder: str) -> Entry:
    """A recording of a bench, whose domain is the machine and whose label is a shared class."""
    new: dict[str, Any] = {"domain": machine, "label": SHARED[str(entry.label)], "origin": f"{folder}/{entry.origin}"}
    identity = f"across-1 {entry.domain} {entry.identity}"
    return replace(entry, **new, identity=identity, read=lambda: replace(entry.read(), **new))
