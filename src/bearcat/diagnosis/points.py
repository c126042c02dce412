"""Several sensors at once: who owns a line that all of them show.

Impacts of one bearing reach the sensors of its neighbours on the same shaft. The sensor where a line is loudest, in the
signals' own units, is the one next to the bearing that strikes; on the others the line is cross-talk. Levels above
background do not tell this: they are bounded, and a quiet neighbour shows a leaked line well.

>>> cross_talk([bearing_1, bearing_2])[1]["outer race"]
CrossTalk(owner=0, fault='outer race', decibels=15.3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bearcat.diagnosis.physics import SLIP, PhysicsEvidence

MARGIN = 3.0  # dB by which a neighbour must be louder: sensors and their mounting differ by less
SHOWN = 3.0  # dB above what reference lines reach, from which on a neighbour shows a line


@dataclass(frozen=True)
class CrossTalk:
    """A fault's line that is louder elsewhere."""

    owner: int  # the place of the channel where it is loudest
    fault: str  # that it is there; another than here where the bearings differ
    decibels: float  # by which it is louder there


def cross_talk(channels: Sequence[PhysicsEvidence | None]) -> list[dict[str, CrossTalk]]:
    """For each channel of one measurement the faults whose lines a neighbour owns; None: physics could not look."""
    return [
        {fault: louder for fault in evidence.faults if (louder := _loudest(channels, place, evidence, fault))}
        if evidence is not None and evidence.evidence is not None else {}
        for place, evidence in enumerate(channels)
    ]  # fmt: skip


def _loudest(
    channels: Sequence[PhysicsEvidence | None], place: int, own: PhysicsEvidence, fault: str
) -> CrossTalk | None:
    """The neighbour that shows a line at the same frequency loudest, if it is louder by MARGIN."""
    if own.evidence is None:
        return None
    found = []
    for number, other in enumerate(channels):
        if number == place or other is None or other.evidence is None:
            continue
        for name, lines in other.faults.items():
            same = abs(lines.hertz / own.faults[fault].hertz - 1) <= SLIP
            if same and lines.level - other.reference_level >= SHOWN:
                ratio = other.evidence.faults[name].amplitude / max(own.evidence.faults[fault].amplitude, 1e-30)
                found.append(CrossTalk(number, name, 20 * float(np.log10(max(ratio, 1e-30)))))
    loudest = max(found, key=lambda line: line.decibels, default=None)
    return loudest if loudest is not None and loudest.decibels >= MARGIN else None
