"""Several sensors at once: who owns a line that all of them show.

Impacts of one bearing reach the sensors of its neighbours on the same shaft. The sensor where a line is loudest, in the
signals' own units, is the one next to the bearing that strikes; on the others the line is cross-talk. Levels above
background do not tell this: they are bounded, and a quiet neighbour shows a leaked line well.

>>> cross_talk([loudness(bearing_1), loudness(bearing_2)])[1]["outer race"]
CrossTalk(owner=0, fault='outer race', decibels=15.3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bearcat.diagnosis.physics import SLIP, PhysicsEvidence
from bearcat.thresholds import LOUDER, SHOWN_LINE


@dataclass(frozen=True)
class Loudness:
    """Of one fault's lines."""

    hertz: float
    excess: float  # dB above what reference lines reach
    amplitude: float  # in units of the signal


@dataclass(frozen=True)
class CrossTalk:
    """A fault's line that is louder elsewhere."""

    owner: int  # the place of the channel where it is loudest
    fault: str  # that it is there; another than here where the bearings differ
    decibels: float  # by which it is louder there


def loudness(physics: PhysicsEvidence | None) -> dict[str, Loudness]:
    """Of each fault's lines; nothing where physics could not look."""
    if physics is None or physics.evidence is None:
        return {}
    own = physics.evidence.faults
    return {
        fault: Loudness(lines.hertz, lines.level - physics.reference_level, own[fault].amplitude)
        for fault, lines in physics.faults.items()
    }


def cross_talk(channels: Sequence[Mapping[str, Loudness]]) -> list[dict[str, CrossTalk]]:
    """For each channel of one measurement the faults whose lines a neighbour owns."""
    return [
        {fault: louder for fault, own in lines.items() if (louder := _loudest(channels, place, own))}
        for place, lines in enumerate(channels)
    ]


def _loudest(channels: Sequence[Mapping[str, Loudness]], place: int, own: Loudness) -> CrossTalk | None:
    """The neighbour that shows a line at the same frequency loudest, if it is louder by LOUDER."""
    found = []
    for number, others in enumerate(channels):
        for name, lines in others.items() if number != place else ():
            if abs(lines.hertz / own.hertz - 1) <= SLIP and lines.excess >= SHOWN_LINE:
                ratio = lines.amplitude / max(own.amplitude, 1e-30)
                found.append(CrossTalk(number, name, 20 * float(np.log10(max(ratio, 1e-30)))))
    loudest = max(found, key=lambda line: line.decibels, default=None)
    return loudest if loudest is not None and loudest.decibels >= LOUDER else None
