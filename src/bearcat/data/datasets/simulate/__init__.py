"""Simulated bearings: a physical model of a 6203 under four operating conditions, for demos and tests.

It is no evidence about real machines: what works on it may fail on the first real bearing. Balls that cross a defect
strike the structure, whose damped modes ring, over tones of shaft, motor and gear and coloured noise. Samples are
accelerations in m/s². docs/simulator.md has the formulas and their sources.

>>> recording = Simulated(seconds=2.0).recording("N15_M07_F10", "outer-3")
>>> recording.bearing.frequencies(recording.rpm)["BPFO"]
76.31578947368422
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from bearcat.data.catalogue import About, Catalogue, Dataset, Entry, find_domain
from bearcat.data.datasets.simulate.settings import CONDITIONS, FAULTS, Settings, check
from bearcat.data.datasets.simulate.vibration import Defect, simulate
from bearcat.data.recording import Recording
from bearcat.errors import InputError, suggest

__all__ = ["CONDITIONS", "Simulated"]

RESULT_VERSION = 1  # raise it whenever the same settings give other samples; it is part of every entry's identity
HEALTHY = "healthy"


@dataclass(frozen=True)
class Simulated(Settings, Dataset):
    """The simulated dataset: its fields are the parameters of the model, all in `Settings`."""

    about: ClassVar[About] = About(
        title="Simulated 6203 bearings (for demos and tests; no evidence about real machines)",
        licence="MIT",
        licence_address="https://opensource.org/license/mit",
        reference="Model after Antoni and Randall (2003) and McFadden and Smith (1984); docs/simulator.md",
        homepage="docs/simulator.md",
    )

    def __post_init__(self) -> None:
        check(self)

    def classes(self) -> dict[str, tuple[Defect, ...]]:
        """Each label in order, and the defects it stands for."""
        table: dict[str, tuple[Defect, ...]] = {HEALTHY: ()}
        for fault in self.faults:
            for number, length in enumerate(self.severities, start=1):
                table[f"{fault}-{number}"] = tuple(Defect(race, length) for race in FAULTS[fault])
        return table

    def recording(self, condition: str, label: str, measurement: int = 1) -> Recording:
        """One recording; it depends on the settings and these three names, never on what else is generated."""
        classes = self.classes()
        if label not in classes:
            raise InputError(f"unknown class '{label}'{suggest(label, classes)}")
        condition = find_domain(condition, self.conditions)
        origin = f"simulated/{condition}/{label}/{measurement}"
        samples = simulate(self, CONDITIONS[condition], classes[label], origin).astype(np.float32)
        return Recording(
            signal=samples, rate=float(self.rate), label=label, domain=condition, origin=origin, machine="simulated",
            channel="acceleration", rpm=CONDITIONS[condition].speed, bearing=self.bearing,
        )  # fmt: skip

    def catalogue(self) -> Catalogue:
        classes = tuple(self.classes())
        entries = tuple(
            self._entry(condition, label, measurement)
            for condition in self.conditions
            for label in classes
            for measurement in range(1, self.measurements + 1)
        )
        note = "simulated: for demos and tests, no evidence about real machines"
        return Catalogue(self.conditions, classes, entries, notes=(note,))

    def _entry(self, condition: str, label: str, measurement: int) -> Entry:
        origin = f"simulated/{condition}/{label}/{measurement}"
        # What else is generated is left out of the identity: it does not change these samples.
        fault = () if label == HEALTHY else (label.rpartition("-")[0],)
        settings = replace(self, measurements=1, conditions=(condition,), faults=fault)
        identity = f"version {RESULT_VERSION}, {settings!r}, {CONDITIONS[condition]!r}, {origin}"
        return Entry(condition, label, origin, None, identity, partial(self.recording, condition, label, measurement))
