"""HIT-SM (Harbin Institute of Technology): two rigs × 3 speeds × 7 states, 6205 bearings, 51.2 kHz.

A whole rig may be missing; a missing file of a rig that exists is a problem.

>>> HITSM(root=Path("data/hit-sm")).catalogue().domains
('mfs-600', 'mfs-900', 'mfs-1200')
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from bearcat.data.arrays import mat_arrays
from bearcat.data.bearing import BEARINGS
from bearcat.data.catalogue import About, Catalogue, Download, Entry, Problem
from bearcat.data.files import checked_root
from bearcat.data.isolated import read_arrays
from bearcat.data.recording import Recording
from bearcat.errors import InputError

RATE = 51_200.0
SPEEDS = (600, 900, 1200)
# Normal, then inner and outer race; the number is the angle the defect spans, in degrees.
CLASSES = ("Normal", "IR2", "IR5", "IR8", "OR2", "OR5", "OR8")
# The rig's short name, and the folder it is published in. Either names a folder here.
RIGS = {"mfs": "SpectraQuest MFS dataset", "self": "Self-built dataset"}


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
            for (rig, folder), speed, state in product(RIGS.items(), SPEEDS, CLASSES)
        )

    def catalogue(self) -> Catalogue:
        root = checked_root(self.root, "hit-sm")
        rigs = {rig: [root / name for name in (rig, folder) if (root / name).is_dir()] for rig, folder in RIGS.items()}
        if not any(rigs.values()):
            raise InputError(
                f"{root}: holds none of the folders {', '.join([*RIGS, *RIGS.values()])}; give the folder they are in"
            )
        conditions = [(rig, speed) for rig, folders in rigs.items() if folders for speed in SPEEDS]
        entries, problems = [], []
        for (rig, speed), state in product(conditions, CLASSES):
            domain, name = f"{rig}-{speed}", f"{state}_{speed}.mat"
            places = [folder / name for folder in rigs[rig] if (folder / name).is_file()]
            if len(places) == 1:
                entries.append(self._entry(rig, speed, state, places[0]))
            else:
                wanted = f"{rigs[rig][0].name}/{name}"
                problems.append(Problem.about_file(wanted, places, root, f"{domain}, {state}", domain))
        domains = tuple(f"{rig}-{speed}" for rig, speed in conditions)
        absent = [f"rig '{rig}' is not there; its tasks are left out" for rig in RIGS if not rigs[rig]]
        return Catalogue(domains, CLASSES, tuple(entries), tuple(problems), tuple(absent))

    def _entry(self, rig: str, speed: int, label: str, path: Path) -> Entry:
        domain, origin = f"{rig}-{speed}", path.relative_to(self.root).as_posix()

        def read() -> Recording:
            _, variables = read_arrays(mat_arrays, path, origin)
            # Each file has one variable, whose name differs from file to file.
            signals = {name: values for name, values in variables.items() if values.ndim == 1 and values.size > 1}
            if len(signals) != 1:
                raise InputError(
                    f"{origin}: should hold one signal, but holds {', '.join(signals) or 'none'}; fetch it again"
                )
            ((name, signal),) = signals.items()
            return Recording(
                signal=signal, rate=RATE, label=label, domain=domain, channel=name, origin=origin, rpm=float(speed),
                bearing=BEARINGS["6205"], machine=rig,
            )  # fmt: skip

        return Entry(domain, label, origin, path, "hit-sm-1", read)
