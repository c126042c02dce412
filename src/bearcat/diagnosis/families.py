"""Lines of a bearing that nobody can name: the family of lines that stands out, and which bearings would explain it.

Whatever its geometry, a damaged race or ball makes lines at the first multiples of one order that is no multiple of the
shaft's. So every order is tried as `physics` tries those of a known bearing, lines at multiples of the shaft left out,
and the best is compared with what the others reach. Bearings of the table with a fault order close to it explain it.

>>> find_family(spectra, rate=12_000, rpm=1797).finding.kind
'lines of unknown bearing'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from bearcat.data.bearing import BEARINGS
from bearcat.diagnosis.physics import (
    DECIBELS,
    FAULTS,
    MULTIPLES,
    REACH,
    SHOWN,
    TIE,
    bounded,
    levels_over_background,
    read,
)
from bearcat.diagnosis.spectra import Spectra, bands
from bearcat.errors import InputError
from bearcat.findings import FAMILY, Finding

LOWEST, HIGHEST = 1.8, 13.0  # orders that are tried: BPFO of five balls, BPFI of twenty rollers
STEP = 1.5e-3  # from one order to the next, relative
ROOT = 0.8  # of the level of an order, from which on a half or a third of it is the order of the family
NEAR_SHAFT = 0.015  # relative distance from a whole number, at which a wrong speed makes a family of the shaft's lines
MATCH = 0.01  # relative, by which slip and speed move an order
NAMED, COMMONEST = 4, "deep groove"  # designations of a finding, and the type that comes first in it


@dataclass(frozen=True)
class LineFamily:
    """The family of lines that stands out most. Levels are dB; parts are those of FAULTS."""

    order: float
    hertz: float
    level: float  # mean of the first multiples, each bounded, above what other orders reach
    band: tuple[float, float]  # in Hz, that shows it best
    shaft_multiple: int | None  # of the shaft, which it may be at a speed that is a little off
    bearings: Mapping[str, tuple[str, ...]]  # by part: designations of the table with this order, the nearest first

    @property
    def finding(self) -> Finding:
        """What strikes, how clearly, and what would explain it. Lines of the shaft at a speed that is a little off are
        to be checked, and no alarm.
        """
        if self.level < FAMILY:
            return Finding("no lines of unknown bearing", "check", {"order": self.order, "level": self.level})
        names = {
            part: sorted(self.bearings[part], key=lambda name: BEARINGS.rows.get(name, {}).get("type") != COMMONEST)
            for part in self.bearings
        }
        values = {
            "order": self.order, "hertz": self.hertz, "level": self.level, "shaft_multiple": self.shaft_multiple,
            "bearings": {part: found[:NAMED] for part, found in names.items()},
        }  # fmt: skip
        return Finding("lines of unknown bearing", "alarm" if self.shaft_multiple is None else "check", values)


def last_family_order(rate: float, rpm: float) -> float:
    """The highest order that is read, with its background; InputError where the rate does not allow any."""
    highest = min(HIGHEST, (60 * rate / 2 / SHOWN / rpm - REACH) / MULTIPLES[-1])
    if highest < 2 * LOWEST:
        raise InputError(f"at {rate:g} Hz and {rpm:g} rpm no lines of a bearing can be read; record at a higher rate")
    return MULTIPLES[-1] * highest + REACH


def find_family(spectra: Spectra, rate: float, rpm: float) -> LineFamily:
    """The family of lines that stands out most in these envelope spectra."""
    levels, turns = levels_over_background(spectra), spectra.turns
    for number in range(int(levels.shape[1] / turns) + 1):
        levels[:, max(0, round(number * turns) - 1) : round(number * turns) + 2] = 0  # of the shaft
    highest = (levels.shape[1] / turns - REACH) / MULTIPLES[-1]
    orders = np.exp(np.arange(np.log(LOWEST), np.log(highest), STEP))
    lines = read(levels, np.array(MULTIPLES)[:, None] * orders * turns)  # (band, multiple, order)
    scores = bounded(lines).mean(axis=1) + TIE * lines.mean(axis=1)
    best = scores.max(axis=0)
    place = int(best.argmax())
    for part in (3, 2):
        near = np.flatnonzero(abs(orders * part / orders[place] - 1) < 5 * STEP)
        if near.size and best[near].max() > ROOT * best[place]:
            place = int(near[best[near].argmax()])
            break
    band, order = int(scores[:, place].argmax()), float(orders[place])
    own, (start, stop) = lines[band, :, place], bands(len(levels), spectra.axes)[band]
    whole = round(order)
    return LineFamily(
        order, order * rpm / 60, DECIBELS * float(bounded(own).mean() - best.mean()),
        (start * rate / 2, stop * rate / 2),
        whole if abs(order / whole - 1) < NEAR_SHAFT else None, explained(order),
    )  # fmt: skip


@cache
def _known() -> list[tuple[str, bool, dict[str, float]]]:
    """Designation, whether its geometry is an estimate, and orders of each bearing of the table."""
    return [(name, bearing.estimated, bearing.orders()) for name, bearing in BEARINGS.items()]


def explained(order: float) -> dict[str, tuple[str, ...]]:
    """For each part of FAULTS: bearings of the table with lines at this order, published geometry before estimates."""
    bearings = {}
    for part, (name, times, _) in FAULTS.items():
        off = [(estimated, abs(order / (times * orders[name]) - 1), each) for each, estimated, orders in _known()]
        bearings[part] = tuple(each for _, distance, each in sorted(off) if distance <= MATCH)
    return bearings
