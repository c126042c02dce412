"""Public test benches: Paderborn (the paper's), CWRU and HIT-SM, and the last two as machines of one dataset.

Of Paderborn the paper takes measurement 1 of the 13 really damaged bearings, one class each. The four normal recordings
of CWRU are published at 48 kHz; they are recognised by their length and resampled to 12 kHz, so that no class can be
recognised by its rate. Of HIT-SM a whole rig may be missing; a missing file of a rig that exists is a problem.

>>> CWRU(root=Path("data/cwru")).catalogue().domains
('load0', 'load1', 'load2', 'load3')
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import quote

from bearcat.data.bearing import BEARINGS
from bearcat.data.datasets import (
    CONDITIONS,
    About,
    Catalogue,
    Dataset,
    Download,
    Entry,
    Problem,
    checked_root,
)
from bearcat.data.formats import read_signals
from bearcat.data.recording import Recording, resample
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
# The rig's short name, and the folders it may be in: as it is published, or called so.
RIGS = {"mfs": ("SpectraQuest MFS dataset", "mfs"), "self": ("Self-built dataset", "self")}

SHARED = {"normal": "healthy", "inner": "inner", "outer": "outer"}  # classes of both benches, by their labels by type


def _files_in(root: Path, pattern: str) -> dict[str, Path]:
    """The files below a folder that match, by name."""
    paths = sorted(root.rglob(pattern), reverse=True)  # of two with one name, the first
    return {path.name: path for path in paths if path.is_file() and not path.name.startswith(".")}


def _present(root: Path, wanted: Iterable[Entry]) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
    """The entries whose files are there, and a problem for each of the others."""
    entries, problems = list[Entry](), list[Problem]()
    for entry in wanted:
        if entry.file is not None and entry.file.is_file():
            entries.append(entry)
        else:
            missing = f"{entry.origin}: missing in {root} ({entry.domain}, {entry.label}); fetch or copy it there"
            problems.append(Problem(entry.origin, missing, entry.domain, entry.label))
    return tuple(entries), tuple(problems)


@dataclass(frozen=True)
class Paderborn:
    """`root` holds the files anywhere below it: in `KA04/` or in one flat folder; the archives are unpacked by hand.

    >>> Paderborn(Path("data/paderborn")).about.licence
    'CC BY-NC 4.0 (no commercial use), https://creativecommons.org/licenses/by-nc/4.0/'
    """

    root: Path
    bearings: tuple[str, ...] = PAPER  # by their codes, a class each
    measurements: tuple[int, ...] = (1,)  # of 1–20; the paper uses the first

    about: ClassVar[About] = About(
        title="Paderborn University: 4 conditions × 13 damaged bearings (of 32), 64 kHz",
        licence="CC BY-NC 4.0 (no commercial use), https://creativecommons.org/licenses/by-nc/4.0/",
    )  # Lessmeier et al., PHM Society European Conference 2016

    def downloads(self) -> tuple[Download, ...]:
        base = "https://groups.uni-paderborn.de/kat/BearingDataCenter"
        return tuple(Download(f"{base}/{bearing}.rar", f"{bearing}.rar") for bearing in self.bearings)

    def catalogue(self) -> Catalogue:
        if not self.bearings or not self.measurements:
            raise InputError("bearings and measurements must not be empty; leave them out for the paper's")
        root = checked_root(self.root, "paderborn")
        files, wanted = _files_in(root, "*.mat"), list[Entry]()
        for condition, bearing, number in product(CONDITIONS, self.bearings, self.measurements):
            name = f"{condition}_{bearing}_{number}.mat"
            path = files.get(name, root / name)
            origin = path.relative_to(root).as_posix()
            read = partial(self._read, path, condition, bearing, origin)
            wanted.append(Entry(condition, bearing, origin, path, f"paderborn-1 {PADERBORN_CHANNEL}", read))
        packed = f"some archives may still be packed; unpack each in {root} with: unrar x NAME.rar"
        notes = (packed,) if _files_in(root, "K*.rar") else ()
        return Catalogue(CONDITIONS, self.bearings, *_present(root, wanted), notes)

    def _read(self, path: Path, condition: str, bearing: str, origin: str) -> Recording:
        channels = read_signals(path, origin).channels
        # A struct called as the file was first, whose Y lists structs with Name and Data.
        names = [name for name in channels if name.endswith(f".Y.{PADERBORN_CHANNEL}.Data")]
        if len(names) != 1:
            listed = some_names(channels)
            raise InputError(f"{origin}: has no '{PADERBORN_CHANNEL}', only {listed}; is it a file of this set?")
        return Recording(
            signal=channels[names[0]], rate=PADERBORN_RATE, label=bearing, domain=condition, origin=origin,
            channel=PADERBORN_CHANNEL, bearing=BEARINGS["6203"], machine="Paderborn test rig", specimen=bearing,
            rpm=100.0 * int(condition[1:3]),  # N15: 1500 rpm
        )  # fmt: skip


@dataclass(frozen=True)
class CWRU:
    """The settings of the dataset; `root` holds the files 97.mat … 237.mat, in any subfolder.

    >>> CWRU(Path("data/cwru"), label_by="type").downloads()[0].name
    '97.mat'
    """

    root: Path
    label_by: Literal["size", "type"] = "size"  # ten classes, or normal, inner, ball, outer
    # By size of the fault with labels by type: size007, … each with the four normal recordings.
    domain_by: Literal["load", "size"] = "load"

    about: ClassVar[About] = About(
        title="Case Western Reserve University: 4 motor loads × 10 classes, 12 kHz",
        licence="free for research; cite the Bearing Data Center, https://engineering.case.edu/bearingdatacenter",
    )

    def downloads(self) -> tuple[Download, ...]:
        base = "https://engineering.case.edu/sites/default/files"
        return tuple(Download(f"{base}/{number}.mat", f"{number}.mat") for number in chain(*FILES.values()))

    def catalogue(self) -> Catalogue:
        root = checked_root(self.root, "cwru")
        files, wanted = _files_in(root, "*.mat"), list[Entry]()
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
            label, origin = self._label(state), path.relative_to(root).as_posix()
            read = partial(self._read, path, number, domain, load, state, origin)
            wanted.append(Entry(domain, label, origin, path, f"cwru-1 {number} DE", read))
        domains = tuple(dict.fromkeys(domain for domain, _, _ in recordings))
        return Catalogue(domains, tuple(dict.fromkeys(map(self._label, CWRU_CLASSES))), *_present(root, wanted))

    def _label(self, state: str) -> str:
        return state if (self.label_by, self.domain_by) == ("size", "load") else state.partition("-")[0]

    def _read(self, path: Path, number: int, domain: str, load: str, state: str, origin: str) -> Recording:
        variable, signals = f"X{number:03d}_DE_time", read_signals(path, origin)
        if variable not in signals.channels:
            listed = some_names(signals.channels)
            raise InputError(f"{origin}: has no variable '{variable}', only {listed}; fetch file {number} again")
        signal = signals.channels[variable]
        published = 4 * CWRU_RATE if state == "normal" and signal.size > LONGEST_AT_12_KHZ else CWRU_RATE
        recording = Recording(
            signal=signal, rate=published, label=self._label(state), domain=domain, channel="DE", origin=origin,
            rpm=signals.rpm or LOAD_SPEEDS[load], bearing=BEARING, machine="CWRU test rig", specimen=f"cwru {state}",
        )  # fmt: skip
        return resample(recording, CWRU_RATE)


@dataclass(frozen=True)
class HITSM:
    """The settings of the dataset; `root` holds a folder per rig, `mfs/` or `self/` or with the published names.

    >>> HITSM(Path("data/hit-sm"), label_by="type").downloads()[0].name
    'mfs/Normal_600.mat'
    """

    root: Path
    label_by: Literal["state", "type"] = "state"  # seven classes, or normal, inner, outer

    about: ClassVar[About] = About(
        title="HIT-SM: two rigs × 3 speeds × 7 states, 51.2 kHz",
        licence="public, for classifying bearing faults: https://github.com/hitwzc/Bearing-datasets",
    )  # Sensing and Measurement laboratory, Harbin Institute of Technology, doi:10.1088/1361-6501/ac7941

    def downloads(self) -> tuple[Download, ...]:
        base = "https://raw.githubusercontent.com/hitwzc/Bearing-datasets/main"
        return tuple(
            Download(f"{base}/{quote(folder)}/{state}_{speed}.mat", f"{rig}/{state}_{speed}.mat")
            for (rig, (folder, _)), speed, state in product(RIGS.items(), HIT_SM_SPEEDS, HIT_SM_CLASSES)
        )

    def catalogue(self) -> Catalogue:
        root, wanted = checked_root(self.root, "hit-sm"), list[Entry]()
        folders = {rig: root / name for rig, names in RIGS.items() for name in names if (root / name).is_dir()}
        if not folders:
            names = ", ".join(name for names in RIGS.values() for name in names)
            raise InputError(f"{root}: holds none of the folders {names}; check the path")
        for (rig, folder), speed, state in product(folders.items(), HIT_SM_SPEEDS, HIT_SM_CLASSES):
            path, domain, label = folder / f"{state}_{speed}.mat", f"{rig}-{speed}", self._label(state)
            origin = path.relative_to(root).as_posix()
            read = partial(self._read, path, rig, speed, state, origin)
            wanted.append(Entry(domain, label, origin, path, "hit-sm-1", read))
        domains = tuple(f"{rig}-{speed}" for rig, speed in product(folders, HIT_SM_SPEEDS))
        absent = tuple(f"rig '{rig}' is not there; its tasks are left out" for rig in RIGS if rig not in folders)
        classes = tuple(dict.fromkeys(map(self._label, HIT_SM_CLASSES)))
        return Catalogue(domains, classes, *_present(root, wanted), absent)

    def _label(self, state: str) -> str:
        return state if self.label_by == "state" else HIT_SM_TYPES[state[:2]]

    def _read(self, path: Path, rig: str, speed: int, state: str, origin: str) -> Recording:
        name, signal = read_signals(path, origin).pick(None)  # the only variable, called as in no other file
        return Recording(
            signal=signal, rate=HIT_SM_RATE, label=self._label(state), domain=f"{rig}-{speed}", channel=name,
            origin=origin, rpm=float(speed), bearing=BEARING, machine=rig, specimen=f"{rig} {state}",
        )  # fmt: skip


# A bench's domain, the dataset with the folder it lies in, and the beginning of its domains' names.
BENCHES: dict[str, tuple[type[CWRU | HITSM], str, str]] = {
    "cwru": (CWRU, "cwru", "load"),
    "hit-sm-mfs": (HITSM, "hit-sm", "mfs-"),
    "hit-sm-self": (HITSM, "hit-sm", "self-"),
}


@dataclass(frozen=True)
class AcrossMachines(Dataset):
    """The settings of the dataset; `root` holds the folders cwru and hit-sm.

    >>> AcrossMachines(Path("data")).about.licence
    'those of the two datasets'
    """

    root: Path

    about: ClassVar[About] = About(
        title="CWRU and HIT-SM as machines of one task: healthy, inner race, outer race",
        licence="those of the two datasets",
    )

    def catalogue(self) -> Catalogue:
        root = checked_root(self.root)
        entries: list[Entry] = []
        problems: list[Problem] = []
        for machine, (kind, folder, prefix) in BENCHES.items():
            if not (root / folder).is_dir():
                continue
            bench = kind(root=root / folder, label_by="type").catalogue()
            part = bench.only([domain for domain in bench.domains if domain.startswith(prefix)])
            entries += [_mapped(entry, machine, folder) for entry in part.entries if entry.label in SHARED]
            problems += [replace(problem, domain=machine) for problem in part.problems]
        present = {entry.domain for entry in entries} | {problem.domain for problem in problems}
        absent = [f"bench '{name}' is not there; its tasks are left out" for name in BENCHES if name not in present]
        domains = tuple(machine for machine in BENCHES if machine in present)
        return Catalogue(domains, tuple(SHARED.values()), tuple(entries), tuple(problems), tuple(absent))


def _mapped(entry: Entry, machine: str, folder: str) -> Entry:
    """A recording of a bench, whose domain is the machine and whose label is a shared class."""
    label, origin = SHARED[str(entry.label)], f"{folder}/{entry.origin}"

    def read() -> Recording:
        return replace(entry.read(), domain=machine, label=label, origin=origin)

    return Entry(machine, label, origin, entry.file, f"across-1 {entry.domain} {entry.identity}", read)
