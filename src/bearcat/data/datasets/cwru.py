"""Case Western Reserve University: 4 motor loads × 10 classes, by the data centre's own file numbers.

Drive-end bearing faults at 12 kHz. The four normal recordings are published at 48 kHz; they are recognised by their
length and resampled to 12 kHz after an anti-alias filter, so that no class can be recognised by its rate.

>>> CWRU(root=Path("data/cwru")).catalogue().domains
('load0', 'load1', 'load2', 'load3')
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import ClassVar

import numpy as np

from bearcat.data.arrays import mat_arrays
from bearcat.data.bearing import BEARINGS
from bearcat.data.catalogue import About, Catalogue, Download, Entry, Problem
from bearcat.data.files import found_files
from bearcat.data.isolated import read_arrays
from bearcat.data.recording import Recording, resample
from bearcat.errors import InputError, suggest

RATE = 12_000.0
CLASSES = ("normal", *(f"{part}-{size}" for size in ("007", "014", "021") for part in ("inner", "ball", "outer")))
# The centre's file numbers, a row per load, in the order of CLASSES; outer-race faults at six o'clock.
FILES = {
    "load0": (97, 105, 118, 130, 169, 185, 197, 209, 222, 234),
    "load1": (98, 106, 119, 131, 170, 186, 198, 210, 223, 235),
    "load2": (99, 107, 120, 132, 171, 187, 199, 211, 224, 236),
    "load3": (100, 108, 121, 133, 172, 188, 200, 212, 225, 237),
}
CHANNELS = {"DE": "drive end", "FE": "fan end", "BA": "base plate"}
SPEEDS = {"load0": 1797.0, "load1": 1772.0, "load2": 1750.0, "load3": 1730.0}  # rpm, as the centre lists the loads
BEARING = BEARINGS["6205"]  # at the drive end, where all these faults are, whichever sensor hears them
# A normal recording of more samples than this is a 48 kHz original (243 938 samples and more), of fewer at 12 kHz.
LONGEST_AT_12_KHZ = 200_000


@dataclass(frozen=True)
class CWRU:
    """The settings of the dataset; `root` holds the files 97.mat … 237.mat, in any subfolder."""

    root: Path
    channel: str = "DE"
    # The normal recordings are cut at this rate, which is then called 12 kHz like the others'. At 48 000 the normal
    # class is recognised by its rate, as in published comparisons that cut all files as they are.
    normal_rate: float = RATE

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
        if not RATE <= self.normal_rate <= 4 * RATE:
            raise InputError(f"normal_rate must lie between {RATE:g} and {4 * RATE:g} Hz, not {self.normal_rate:g}")
        files = found_files(self.root, "*.mat", "cwru")
        entries, problems = [], []
        for domain, label in product(FILES, CLASSES):
            number = FILES[domain][CLASSES.index(label)]
            places = files.get(f"{number}.mat", [])
            if len(places) == 1:
                entries.append(self._entry(domain, label, number, places[0]))
            else:
                problems.append(Problem.about_file(f"{number}.mat", places, self.root, f"{domain}, {label}", domain))
        return Catalogue(tuple(FILES), CLASSES, tuple(entries), tuple(problems))

    def _entry(self, domain: str, label: str, number: int, path: Path) -> Entry:
        origin = path.relative_to(self.root).as_posix()

        def read() -> Recording:
            variable = f"X{number:03d}_{self.channel}_time"
            _, variables = read_arrays(mat_arrays, path, origin)
            if variable not in variables:
                raise InputError(
                    f"{origin}: has no variable '{variable}', only {', '.join(variables) or 'nothing'};"
                    " is it the centre's file of that number?"
                )
            signal = np.atleast_1d(variables[variable])
            published = 4 * RATE if label == "normal" and signal.size > LONGEST_AT_12_KHZ else RATE
            rpm = float(np.ravel(variables.get(f"X{number:03d}RPM", SPEEDS[domain]))[0])
            recording = Recording(
                signal=signal, rate=published, label=label, domain=domain, channel=self.channel, origin=origin, rpm=rpm,
                bearing=BEARING, machine="CWRU test rig", sensor=CHANNELS[self.channel],
            )  # fmt: skip
            return replace(resample(recording, rate), rate=RATE)

        rate = self.normal_rate if label == "normal" else RATE
        identity = f"cwru-1 {number} {self.channel}" + (f" {rate:g}" if rate != RATE else "")
        return Entry(domain, label, origin, path, identity, read)
