"""Ranges of the numbers that people, files, manifests and clients give; every one of them is checked here.

They are wider than any machine, and narrow enough that nothing computed from them overflows.

>>> check_range("rpm", 1e-300, "monday.wav")
bearcat.errors.InputError: monday.wav: the speed of the shaft must be between 0.01 and 1e+06 rpm, not 1e-300
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bearcat.errors import InputError


@dataclass(frozen=True)
class Range:
    """What a number is, and from where to where it may go."""

    title: str
    lowest: float
    highest: float
    unit: str = ""

    def holds(self, value: Any) -> bool:
        """Whether a value is a number in the range; NaN, True and False are not."""
        return bool(type(value) in (int, float) and self.lowest <= value <= self.highest)

    @property
    def words(self) -> str:
        return f"between {self.lowest:g} and {self.highest:g}{f' {self.unit}' if self.unit else ''}"


RANGES = {
    "rate": Range("the sampling rate", 1e-3, 1e9, "Hz"),
    "rpm": Range("the speed of the shaft", 1e-2, 1e6, "rpm"),
    "load": Range("the load", -1e12, 1e12),
    "group": Range("the group of machines of ISO 20816-3", 1, 2),
    "sensitivity": Range("the sensitivity", 1e-3, 1e6, "mV/g"),
    "temperature": Range("the temperature", -1e4, 1e4),
    "balls": Range("the number of balls", 1, 500),
    "ball_diameter": Range("the diameter of a ball", 1e-3, 1e5, "mm"),
    "pitch_diameter": Range("the pitch diameter", 1e-3, 1e5, "mm"),
    "contact_angle": Range("the contact angle", -89.9, 89.9, "degrees"),
    "order": Range("an order", 1e-3, 500, "times the speed of the shaft"),
    "length": Range("the length of a window", 2, 2**24, "samples"),
    "stride": Range("the step between windows", 1, 2**24, "samples"),
    "sample": Range("a place in a recording", 0, 2**48, "samples"),
    "count": Range("a number of bands, orders or layers", 1, 1000),
    "width": Range("the width of a layer", 1, 2**14),
    "seconds": Range("a time", 1e-6, 1e9, "s"),
    "false_alarms": Range("the rate of false alarms", 1e-6, 366, "a year"),
    "baseline": Range("the length of a baseline", 8, 200, "recordings"),
}


def check_range(name: str, value: float | None, place: str = "", field: str | None = None) -> None:
    """InputError where a number is outside its range; None is no number and passes.

    `place` is the file or the row that holds the number, `field` the option or query field that gives it.
    """
    known = RANGES[name]
    if value is not None and not known.holds(float(value)):
        where = f"{place}: " if place else ""
        raise InputError(f"{where}{known.title} must be {known.words}, not {value:g}", field)
