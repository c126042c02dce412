"""Several test benches as the domains of one dataset: does what was learnt on one machine hold on another?

The classes of the benches are mapped to those they share by CLASSES; what it does not list is left out. Rates differ,
so windows need a common one (`preparation.rate`).

>>> AcrossMachines(root=Path("data")).catalogue().domains
('cwru', 'hit-sm-mfs')
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from bearcat.data.catalogue import About, Catalogue, Dataset, Entry, Problem
from bearcat.data.datasets.cwru import CWRU
from bearcat.data.datasets.hit_sm import HITSM
from bearcat.data.files import checked_root
from bearcat.data.recording import Recording

SHARED = ("healthy", "inner", "outer")
# A bench's domain, the dataset with the folder it lies in, the beginning of its domains' names, and its classes.
BENCHES: dict[str, tuple[type[CWRU | HITSM], str, str]] = {
    "cwru": (CWRU, "cwru", "load"),
    "hit-sm-mfs": (HITSM, "hit-sm", "mfs-"),
    "hit-sm-self": (HITSM, "hit-sm", "self-"),
}
CLASSES = {
    "normal": "healthy", "inner-007": "inner", "inner-014": "inner", "inner-021": "inner",
    "outer-007": "outer", "outer-014": "outer", "outer-021": "outer",
    "Normal": "healthy", "IR2": "inner", "IR5": "inner", "IR8": "inner",
    "OR2": "outer", "OR5": "outer", "OR8": "outer",
}  # fmt: skip


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
            found = kind(root=root / folder).catalogue()
            own = [entry for entry in found.entries if entry.domain.startswith(prefix) and entry.label in CLASSES]
            entries += [_mapped(entry, machine, folder) for entry in own]
            missing = [problem for problem in found.problems if (problem.domain or "").startswith(prefix)]
            problems += [replace(problem, domain=machine) for problem in missing]
        there = {entry.domain for entry in entries} | {problem.domain for problem in problems}
        absent = [f"bench '{name}' is not there; its tasks are left out" for name in BENCHES if name not in there]
        domains = tuple(machine for machine in BENCHES if machine in there)
        return Catalogue(domains, SHARED, tuple(entries), tuple(problems), tuple(absent))


def _mapped(entry: Entry, machine: str, folder: str) -> Entry:
    """A recording of a bench, whose domain is the machine and whose label is a shared class."""
    label, origin = CLASSES[str(entry.label)], f"{folder}/{entry.origin}"

    def read() -> Recording:
        return replace(entry.read(), domain=machine, label=label, origin=origin)

    return Entry(machine, label, origin, entry.file, f"across-1 {entry.domain} {entry.identity}", read)
