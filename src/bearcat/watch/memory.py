"""What is remembered of a point between recordings: its operating states, what is usual in each, and open alarms.

>>> memory = PointMemory("pump 3", "drive end", WatchRule())
>>> memory.observe(snapshot)
>>> memory.assess(beside=[other_points_of_the_machine], sisters=[same_point_of_other_machines]).status.status
'learning'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bearcat.watch.snapshot import Assessment, Event, PointStatus, Snapshot


@dataclass(frozen=True)
class WatchRule:
    """When a change is an alarm. One rule is kept with a store."""

    false_alarms: float = 1.0  # a year, of each point
    baseline: int = 30  # recordings of an operating state from which its baseline is learnt
    period: float | None = None  # seconds from the first recording on, in place of a number
    speed_bin: float = 0.05  # relative width of an operating state in speed
    load_bin: float = 0.2  # width in load, relative to the highest


class PointMemory:
    """Of one point. Kept in the store as bytes; a snapshot changes it, and what it says depends on nothing else."""

    def __init__(self, machine: str, point: str, rule: WatchRule) -> None:
        self.machine, self.point, self.rule = machine, point, rule

    def observe(self, snapshot: Snapshot, healthy: bool | None = None) -> None:
        """Takes one recording in, which must be later than all before; `healthy`: a person says so."""
        raise NotImplementedError

    def assess(self, beside: Sequence[PointMemory] = (), sisters: Sequence[PointMemory] = ()) -> Assessment:
        """What the last recording means, beside the other points of its machine and the same point of others."""
        raise NotImplementedError

    def acknowledge(self, time: float, note: str = "") -> Event:
        """A person has seen the alarm."""
        raise NotImplementedError

    def relearn(self, time: float, note: str = "") -> Event:
        """The baseline is learnt anew from the next recordings on: after a repair, or with another sensor."""
        raise NotImplementedError

    @property
    def status(self) -> PointStatus:
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        raise NotImplementedError

    @staticmethod
    def from_bytes(content: bytes) -> PointMemory:
        raise NotImplementedError
