"""Paderborn University (PU): 4 operating conditions × 32 bearings × 20 measurements, 64 kHz; the paper's benchmark.

The paper takes measurement 1 of the 13 really damaged bearings, one class each. Files are found wherever they lie
below the root: in `KA04/`, in `N15_M07_F10/`, in one flat folder, or still inside `KA04.rar`. Channels go by name.

>>> Paderborn(root=Path("data/paderborn")).catalogue().domains
('N15_M07_F10', 'N09_M07_F10', 'N15_M01_F10', 'N15_M07_F04')
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from bearcat.data.archives import is_archive, members, read_member
from bearcat.data.bearing import BEARINGS
from bearcat.data.catalogue import About, Catalogue, Download, Entry, Problem, checked_root, found_files, grouped
from bearcat.data.formats import read_mat
from bearcat.data.isolated import Arrays, read_arrays
from bearcat.data.recording import Recording
from bearcat.data.signals import reading
from bearcat.errors import InputError, suggest

RATE = 64_000.0  # of each of CHANNELS
CONDITIONS = ("N15_M07_F10", "N09_M07_F10", "N15_M01_F10", "N15_M07_F04")
CHANNELS = ("vibration_1", "phase_current_1", "phase_current_2")
HEALTHY = ("K001", "K002", "K003", "K004", "K005", "K006")
ARTIFICIAL = (
    "KA01", "KA03", "KA05", "KA06", "KA07", "KA08", "KA09", "KI01", "KI03", "KI05", "KI07", "KI08",
)  # fmt: skip
PAPER = (
    "KA04", "KA15", "KA16", "KA22", "KA30", "KB23", "KB24", "KB27", "KI14", "KI16", "KI17", "KI18", "KI21",
)  # fmt: skip
SETS = {
    "paper": PAPER,
    "healthy": HEALTHY,
    "artificial": ARTIFICIAL,
    "real": (*PAPER[:8], "KI04", *PAPER[8:]),  # KI04 is really damaged too, but not in the paper
}
DAMAGE = {"K0": "healthy", "KA": "outer", "KI": "inner", "KB": "both"}
MEMBER_LIMIT = 512 * 2**20  # bytes of one file unpacked from an archive; real ones have about 9 MB


@dataclass(frozen=True)
class Paderborn:
    """The settings of the dataset; `root` holds the files or their archives."""

    root: Path
    bearings: tuple[str, ...] = ("paper",)  # names of SETS, or bearing codes
    measurements: tuple[int, ...] = (1,)  # of 1–20; the paper uses the first
    channel: str = "vibration_1"  # the published numbers come from it (docs/protocol.md)
    label_by: str = "bearing"  # "bearing": a class per bearing, as the paper; "damage": healthy, outer, inner, both

    about: ClassVar[About] = About(
        title="Paderborn University: 4 conditions × 13 damaged bearings (of 32), 64 kHz",
        licence="CC BY-NC 4.0 (no commercial use)",
        licence_address="https://creativecommons.org/licenses/by-nc/4.0/",
        reference="Lessmeier et al., PHM Society European Conference 2016",
        homepage="https://mb.uni-paderborn.de/kat/forschung/bearing-datacenter",
    )

    def downloads(self) -> tuple[Download, ...]:
        base = "https://groups.uni-paderborn.de/kat/BearingDataCenter"
        return tuple(Download(f"{base}/{bearing}.rar", f"{bearing}.rar") for bearing in self._chosen())

    def catalogue(self) -> Catalogue:
        if self.channel not in CHANNELS:
            raise InputError(f"unknown channel '{self.channel}'{suggest(self.channel, CHANNELS)}")
        if self.label_by not in ("bearing", "damage"):
            raise InputError(f"label_by is 'bearing' or 'damage', not '{self.label_by}'")
        wrong = [number for number in self.measurements if not 1 <= number <= 20]
        if wrong or not self.measurements:
            raise InputError(f"measurements are numbers from 1 to 20, not {', '.join(map(str, wrong)) or 'none'}")
        root, bearings = checked_root(self.root, "paderborn"), self._chosen()
        loose, archives = found_files(root, "*.mat"), filter(is_archive, chain(*found_files(root, "K*.*").values()))
        packed = grouped(archives, lambda path: path.name.split(".")[0])  # by the bearing in their name
        contents: dict[str, dict[str, list[tuple[Path, str]]]] = {}  # of archives, where files do not lie loose
        entries, problems = [], []
        for condition, bearing, measurement in product(CONDITIONS, bearings, self.measurements):
            name = f"{condition}_{bearing}_{measurement}.mat"
            places: list[tuple[Path, str | None]] = [(path, None) for path in loose.get(name, [])]
            if not places and bearing in packed:
                if bearing not in contents:
                    inside = ((path, member) for path in packed[bearing] for member in members(path))
                    contents[bearing] = grouped(inside, lambda item: PurePosixPath(item[1]).name)
                places = [*contents[bearing].get(name, [])]
            if len(places) == 1:
                entries.append(self._entry(condition, bearing, name, *places[0]))
            else:
                paths = [path for path, _ in places]
                problems.append(Problem.about_file(name, paths, root, f"{condition}, {bearing}", condition))
        classes = tuple(dict.fromkeys(self._label(bearing) for bearing in bearings))
        return Catalogue(CONDITIONS, classes, tuple(entries), tuple(problems))

    def _chosen(self) -> tuple[str, ...]:
        known = [*SETS, *HEALTHY, *ARTIFICIAL, *SETS["real"]]
        for name in self.bearings:
            if name not in known:
                raise InputError(f"unknown bearing '{name}'{suggest(name, known)}")
        return tuple(dict.fromkeys(bearing for name in self.bearings for bearing in SETS.get(name, (name,))))

    def _label(self, bearing: str) -> str:
        return bearing if self.label_by == "bearing" else DAMAGE[bearing[:2]]

    def _entry(self, condition: str, bearing: str, name: str, path: Path, member: str | None) -> Entry:
        label, origin = self._label(bearing), path.relative_to(self.root).as_posix() + (f"/{member}" if member else "")

        def read() -> Recording:
            wanted = name.removesuffix(".mat"), self.channel
            if member is None:
                _, arrays = read_arrays(_read_channel, path, origin, *wanted)
            else:
                with reading(origin, "a MATLAB file"), tempfile.NamedTemporaryFile(suffix=".mat") as file:
                    file.write(read_member(path, member, limit=MEMBER_LIMIT))
                    file.flush()
                    _, arrays = read_arrays(_read_channel, Path(file.name), origin, *wanted)
            return Recording(
                signal=arrays["signal"], rate=RATE, label=label, domain=condition, channel=self.channel, origin=origin,
                rpm=100.0 * int(condition[1:3]),  # N15: 1500 rpm
                bearing=BEARINGS["6203"], machine="Paderborn test rig",
            )  # fmt: skip

        return Entry(condition, label, origin, path, f"paderborn-1 {member} {self.channel}", read)


def _read_channel(path: str, origin: str, stem: str, channel: str) -> Arrays:
    """The data of a named channel: a struct named like the file, whose `Y` lists structs with `Name` and `Data`."""
    with Path(path).open("rb") as file:
        variables = read_mat(file, origin)
    structs = {name: value for name, value in variables.items() if hasattr(value, "_fieldnames")}
    measurement = structs.get(stem) or next(iter(structs.values()), None)
    if measurement is None or "Y" not in measurement._fieldnames:
        there = ", ".join(variables) or "nothing"
        raise InputError(f"{origin}: has no struct '{stem}' with a field 'Y', only {there}; is it a file of this set?")
    listed = [struct for struct in np.atleast_1d(measurement.Y) if {"Name", "Data"} <= {*dir(struct)}]
    found = {str(struct.Name): struct.Data for struct in listed}
    if channel not in found:
        raise InputError(f"{origin}: has no channel '{channel}'{suggest(channel, found)}")
    return {}, {"signal": np.atleast_1d(found[channel])}
