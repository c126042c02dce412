"""What other recordings say about one: what is usual for its measuring point, and who owns a line that several show.

A line that was always there is no fault: bearings swell, and machines have lines of their own. So levels are compared
with those of recordings that are known to be healthy, or, where most recordings of the same machine at the same speed
are quiet, with the median of those.

>>> baseline = Baseline.of(physics_of_healthy_recordings, "healthy recordings")
>>> baseline.compare(physics).change["outer race"]       # in dB
11.4

Impacts of one bearing reach the sensors of its neighbours on the same shaft. The sensor where a line is loudest, in the
signals' own units, is the one next to the bearing that strikes; on the others the line is cross-talk. Levels above
background do not tell this: they are bounded, and a quiet neighbour shows a leaked line well.

>>> cross_talk([loudness(bearing_1), loudness(bearing_2)])[1]["outer race"]
CrossTalk(owner=0, fault='outer race', decibels=15.3)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bearcat.diagnosis.physics import FAULTS, SLIP, PhysicsEvidence
from bearcat.findings import LOUDER, SHOWN_LINE, USUAL_LINE, Finding

KNOWN, QUIET = "healthy recordings", "quiet majority"
FEWEST = 3  # other quiet recordings that make a baseline
MAJORITY = 0.6  # of the other recordings that must be quiet
SAME_SPEED = 0.03  # by which speeds of recordings that are compared may differ
MOST_CHANGE = 17.4  # dB of change that count: one huge line is not more than a clear one
BOUND = 2.0  # of the change of the logarithm of the kurtosis


@dataclass(frozen=True)
class BaselineEvidence:
    """How a recording differs from what is usual: dB by fault, and the logarithm of the kurtosis."""

    change: Mapping[str, float]  # of the mean level of a fault's lines
    usual: Mapping[str, float]  # dB, the level that is usual
    impulsive: float
    recordings: int  # that the baseline was made of
    by: str  # KNOWN or QUIET


@dataclass(frozen=True)
class Baseline:
    """Medians over recordings."""

    levels: Mapping[str, float]  # dB by fault
    kurtosis: float
    recordings: int
    by: str

    @staticmethod
    def of(recordings: Sequence[PhysicsEvidence], by: str) -> Baseline:
        levels = {fault: float(np.median([each.faults[fault].level for each in recordings])) for fault in FAULTS}
        return Baseline(levels, float(np.median([each.kurtosis for each in recordings])), len(recordings), by)

    def compare(self, physics: PhysicsEvidence) -> BaselineEvidence:
        change = {
            fault: min(max(physics.faults[fault].level - self.levels[fault], -MOST_CHANGE), MOST_CHANGE)
            for fault in FAULTS
        }
        impulsive = math.log(max(physics.kurtosis, 2.0) / max(self.kurtosis, 2.0))
        return BaselineEvidence(change, self.levels, min(max(impulsive, -BOUND), BOUND), self.recordings, self.by)

    @property
    def finding(self) -> Finding | None:
        """Lines that these recordings show already."""
        shown = {fault: level for fault, level in self.levels.items() if level >= USUAL_LINE}
        return Finding("lines of baseline", "remark", {"levels": shown, "of": f"the {self.by}"}) if shown else None


def known_baseline(healthy: Sequence[PhysicsEvidence], physics: PhysicsEvidence) -> BaselineEvidence | None:
    """A recording against known good ones at its own speed; None where there are none."""
    same = [each for each in healthy if abs(each.rpm / physics.rpm - 1) <= SAME_SPEED]
    return Baseline.of(same, KNOWN).compare(physics) if same else None


def quiet_baselines(
    physics: Sequence[PhysicsEvidence | None], quiet: Sequence[bool], points: Sequence[Hashable]
) -> list[BaselineEvidence | None]:
    """Each recording against the quiet ones among the others of the same point at the same speed; None where they are
    few or no majority.
    """
    found: list[BaselineEvidence | None] = [None] * len(physics)
    members = defaultdict[Hashable, list[tuple[int, PhysicsEvidence]]](list)
    for number, (each, point) in enumerate(zip(physics, points, strict=True)):
        if each is not None:
            members[point].append((number, each))
    for same in members.values():
        speeds = np.array([each.rpm for _, each in same])
        calm = np.array([quiet[number] for number, _ in same])
        for place, (number, own) in enumerate(same):
            near = np.abs(speeds / own.rpm - 1) <= SAME_SPEED
            near[place] = False
            kept = near & calm
            if kept.sum() >= FEWEST and kept.sum() >= MAJORITY * near.sum():
                found[number] = Baseline.of([same[each][1] for each in np.flatnonzero(kept)], QUIET).compare(own)
    return found


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
