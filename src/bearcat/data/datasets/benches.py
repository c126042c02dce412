"""Two public test benches, CWRU and HIT-SM, and both as machines of one dataset.

CWRU: 4 motor loads × 10 classes, by the data centre's own file numbers. The four normal recordings are published at
48 kHz; they are recognised by their length and resampled to 12 kHz, so that no class can be recognised by its rate.
HIT-SM: two rigs × 3 speeds × 7 states. A whole rig may be missing; a missing file of a rig that exists is a problem.
AcrossMachines: does what was learnt on one machine hold on another? Rates differ, so windows need a common one.

>>> CWRU(root=Path("data/cwru")).catalogue().domains
('load0', 'load1', 'load2', 'load3')
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import numpy as np

from bearcat.data.bearing import BEARINGS
from bearcat.data.catalogue import About, Catalogue, Dataset, Download, Entry, Problem, checked_root, found_files
from bearcat.data.formats import mat_arrays
from bearcat.data.isolated import read_arrays
from bearcat.data.recording import Recording, resample
from bearcat.errors import InputError, suggest

BEARING = BEARINGS["6205"]  # of HIT-SM, and of CWRU at the drive end, where all faults are, whichever sensor hears them

CWRU_RATE = 12_000.0
CWRU_CLASSES = ("normal", *(f"{part}-{size}" for size in ("007", "014", "021") for part in ("inner", "ball", "outer")))
# The centre's file numbers, a row per load, in the order of CWRU_CLASSES; outer-race faults at six o'clock.
FILES = {
    "load0": (97, 105, 118, 130, 169, 185, 197, 209, 222, 234),
    "load1": (98, 106, 119, 131, 170, 186, 198, 210, 223, 235),
    "load2": (99, 107, 120, 132, 171, 187, 199, 211, 224, 236),
    "load3": (100, 108, 121, 133, 172, 188, 200, 212, 225, 237),
}
CHANNELS = {"DE": "drive end", "FE": "fan end", "BA": "base plate"}
LOAD_SPEEDS = {"load0": 1797.0, "load1": 1772.0, "load2": 1750.0, "load3": 1730.0}  # rpm, as the centre lists the loads
# A normal recording of more samples than this is a 48 kHz original (243 938 samples and more), of fewer at 12 kHz.
LONGEST_AT_12_KHZ = 200_000

HIT_SM_RATE, HIT_SM_SPEEDS = 51_200.0, (600, 900, 1200)
# Normal, then inner and outer race; the number is the angle the defect spans, in degrees.
HIT_SM_CLASSES = ("Normal", "IR2", "IR5", "IR8", "OR2", "OR5", "OR8")
# The rig's short name, and the folder it is published in. Either names a folder here.
RIGS = {"mfs": "SpectraQuest MFS dataset", "self": "Self-built dataset"}

SHARED = ("healthy", "inner", "outer")
SHARED_CLASSES = {
    "normal": "healthy", "inner-007": "inner", "inner-014": "inner", "inner-021": "inner",
    "outer-007": "outer", "outer-014": "outer", "outer-021": "outer",
    "Normal": "healthy", "IR2": "inner", "IR5": "inner", "IR8": "inner",
    "OR2": "outer", "OR5": "outer", "OR8": "outer",
}  # fmt: skip


@dataclass(frozen=True)
class CWRU:
    """The settings of the dataset; `root` holds the files 97.mat … 237.mat, in any subfolder."""

    root: Path
    channel: str = "DE"
    # The normal recordings are cut at this rate, which is then called 12 kHz like the others'. At 48 000 the normal
    # class is recognised by its rate, as in published comparisons that cut all files as they are.
    normal_rate: float = CWRU_RATE

    about: ClassVar[About] = About(
        title="Case Western Reserve University: 4 motor loads × 10 classes, 12 kHz",
        licence="free for research use; cite the Bearing Data Center",
        licence_address="https://engineering.case.edu/bearingdatacenter",
        reference="Case Western Reserve University Bearing Data Center",
        homepage="https://engineering.case.edu/bearingdatacenter",
    )

    def downloads(self) -> tuple[Download, ...]:
        base = "https://engineering.case.edu/sites/default/files"
        return tuple(Download(f"{base}/{number}.mat", f"{number}.mat") for number in chain(*FILES.values()))

    def catalogue(self) -> Catalogue:
        if self.channel not in CHANNELS:
            raise InputError(f"unknown channel '{self.channel}'{suggest(self.channel, CHANNELS)}")
        lowest, highest = CWRU_RATE, 4 * CWRU_RATE
        if not lowest <= self.normal_rate <= highest:
            raise InputError(f"normal_rate must lie between {lowest:g} and {highest:g} Hz, not {self.normal_rate:g}")
        files = found_files(self.root, "*.mat", "cwru")
        entries, problems = [], []
        for domain, label in product(FILES, CWRU_CLASSES):
            number = FILES[domain][CWRU_CLASSES.index(label)]
            places = files.get(f"{number}.mat", [])
            if len(places) == 1:
                entries.append(self._entry(domain, label, number, places[0]))
            else:
                problems.append(Problem.about_file(f"{number}.mat", places, self.root, f"{domain}, {label}", domain))
        return Catalogue(tuple(FILES), CWRU_CLASSES, tuple(entries), tuple(problems))

    def _entry(self, domain: str, label: str, number: int, path: Path) -> Entry:
        origin = path.relative_to(self.root).as_posix()
        rate = self.normal_rate if label == "normal" else CWRU_RATE

        def read() -> Recording:
            variable = f"X{number:03d}_{self.channel}_time"
            _, variables = read_arrays(mat_arrays, path, origin)
            if variable not in variables:
                there = ", ".join(variables) or "nothing"
                advice = "is it the centre's file of that number?"
                raise InputError(f"{origin}: has no variable '{variable}', only {there}; {advice}")
            signal = np.atleast_1d(variables[variable])
            published = 4 * CWRU_RATE if label == "normal" and signal.size > LONGEST_AT_12_KHZ else CWRU_RATE
            rpm = float(np.ravel(variables.get(f"X{number:03d}RPM", LOAD_SPEEDS[domain]))[0])
            recording = Recording(
                signal=signal, rate=published, label=label, domain=domain, channel=self.channel, origin=origin, rpm=rpm,
                bearing=BEARING, machine="CWRU test rig", sensor=CHANNELS[self.channel],
            )  # fmt: skip
            return replace(resample(recording, rate), rate=CWRU_RATE)

        identity = f"cwru-1 {number} {self.channel}" + (f" {rate:g}" if rate != CWRU_RATE else "")
        return Entry(domain, label, origin, path, identity, read)


@dataclass(frozen=True)
class HITSM:
    """The settings of the dataset; `root` holds a folder per rig, `mfs/` or `self/` or with the published names."""

    root: Path

    about: ClassVar[About] = About(
        title="HIT-SM: two rigs × 3 speeds × 7 states, 51.2 kHz",
        licence="public; free to use for classifying bearing faults",
        licence_address="https://github.com/hitwzc/Bearing-datasets",
        reference="Sensing and Measurement laboratory, Harbin Institute of Technology, doi:10.1088/1361-6501/ac7941",
        homepage="https://github.com/hitwzc/Bearing-datasets",
    )

    def downloads(self) -> tuple[Download, ...]:
        base = "https://raw.githubusercontent.com/hitwzc/Bearing-datasets/main"
        return tuple(
            Download(f"{base}/{quote(folder)}/{state}_{speed}.mat", f"{rig}/{state}_{speed}.mat")
            for (rig, folder), speed, state in product(RIGS.items(), HIT_SM_SPEEDS, HIT_SM_CLASSES)
        )

    def catalogue(self) -> Catalogue:
        root = checked_root(self.root, "hit-sm")
        rigs = {rig: [root / name for name in (rig, folder) if (root / name).is_dir()] for rig, folder in RIGS.items()}
        if not any(rigs.values()):
            wanted = ", ".join([*RIGS, *RIGS.values()])
            raise InputError(f"{root}: holds none of the folders {wanted}; give the folder they are in")
        conditions = [(rig, speed) for rig, folders in rigs.items() if folders for speed in HIT_SM_SPEEDS]
        entries, problems = [], []
        for (rig, speed), state in product(conditions, HIT_SM_CLASSES):
            domain, name = f"{rig}-{speed}", f"{state}_{speed}.mat"
            places = [folder / name for folder in rigs[rig] if (folder / name).is_file()]
            if len(places) == 1:
                entries.append(self._entry(rig, speed, state, places[0]))
            else:
                wanted = f"{rigs[rig][0].name}/{name}"
                problems.append(Problem.about_file(wanted, places, root, f"{domain}, {state}", domain))
        domains = tuple(f"{rig}-{speed}" for rig, speed in conditions)
        absent = [f"rig '{rig}' is not there; its tasks are left out" for rig in RIGS if not rigs[rig]]
        return Catalogue(domains, HIT_SM_CLASSES, tuple(entries), tuple(problems), tuple(absent))

    def _entry(self, rig: str, speed: int, label: str, path: Path) -> Entry:
        domain, origin = f"{rig}-{speed}", path.relative_to(self.root).as_posix()

        def read() -> Recording:
            _, variables = read_arrays(mat_arrays, path, origin)
            # Each file has one variable, whose name differs from file to file.
            signals = {name: values for name, values in variables.items() if values.ndim == 1 and values.size > 1}
            if len(signals) != 1:
                there = ", ".join(signals) or "none"
                raise InputError(f"{origin}: should hold one signal, but holds {there}; fetch it again")
            ((name, signal),) = signals.items()
            return Recording(
                signal=signal, rate=HIT_SM_RATE, label=label, domain=domain, channel=name, origin=origin,
                rpm=float(speed), bearing=BEARING, machine=rig,
            )  # fmt: skip

        return Entry(domain, label, origin, path, "hit-sm-1", read)


# A bench's domain, the dataset with the folder it lies in, and the beginning of its domains' names.
BENCHES: dict[str, tuple[type[CWRU | HITSM], str, str]] = {
    "cwru": (CWRU, "cwru", "load"),
    "hit-sm-mfs": (HITSM, "hit-sm", "mfs-"),
    "hit-sm-self": (HITSM, "hit-sm", "self-"),
}


@dataclass(frozen=True)
class AcrossMachines(Dataset):
    """The settings of the dataset; `root` holds the folders cwru and hit-sm."""

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
            bench = kind(root=root / folder).catalogue()
            own = [entry for entry in bench.entries if entry.domain.startswith(prefix)]
            entries += [_mapped(entry, machine, folder) for entry in own if entry.label in SHARED_CLASSES]
            missing = [problem for problem in bench.problems if (problem.domain or "").startswith(prefix)]
            problems += [replace(problem, domain=machine) for problem in missing]
        there = {entry.domain for entry in entries} | {problem.domain for problem in problems}
        absent = [f"bench '{name}' is not there; its tasks are left out" for name in BENCHES if name not in there]
        domains = tuple(machine for machine in BENCHES if machine in there)
        return Catalogue(domains, SHARED, tuple(entries), tuple(problems), tuple(absent))


def _mapped(entry: Entry, machine: str, folder: str) -> Entry:
    """A recording of a bench, whose domain is the machine and whose label is a shared class."""
    label, origin = SHARED_CLASSES[str(entry.label)], f"{folder}/{entry.origin}"

    def read() -> Recording:
        return replace(entry.read(), domain=machine, label=label, origin=origin)

    return Entry(machine, label, origin, entry.file, f"across-1 {entry.domain} {entry.identity}", read)
