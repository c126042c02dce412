"""Bearings: their geometry, and how often their parts meet in a turn of the shaft.

>>> find_bearing("6205-2RS JEM").orders()["BPFO"]
3.584784836065574
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bearcat.errors import InputError, suggest
from bearcat.ranges import check_range
from bearcat.settings import override, pairs

KINEMATIC = ("FTF", "BPFO", "BPFI", "BSF")
# Lines in an envelope spectrum that faults make: multiples of the KINEMATIC orders, and of the shaft's.
FAULT_LINES: dict[str, tuple[int, int, int, int, int]] = {
    **{f"{number}×BPFO": (0, number, 0, 0, 0) for number in range(1, 5)},
    **{f"{number}×BPFI": (0, 0, number, 0, 0) for number in range(1, 5)},
    **{f"{number}×BSF": (0, 0, 0, number, 0) for number in range(1, 5)},
    "BPFI−1": (0, 0, 1, 0, -1),
    "BPFI+1": (0, 0, 1, 0, 1),
    "shaft": (0, 0, 0, 0, 1),
    "2×shaft": (0, 0, 0, 0, 2),
    "FTF": (1, 0, 0, 0, 0),
}
BETWEEN = 0.37  # of the way from one multiple to the next, where nothing of that fault is expected


def bearing_lines(multiples: int) -> dict[str, tuple[float, float, float, float, float]]:
    """Places on the bearing's own axis, as multiples like those of FAULT_LINES, so that geometry does not matter:
    strikes at either race and of a ball with their sidebands, places between them where no fault shows, cage, shaft.
    """
    lines: dict[str, tuple[float, float, float, float, float]] = {}
    for name, outer, inner, spin in (("BPFO", 1, 0, 0), ("BPFI", 0, 1, 0), ("2×BSF", 0, 0, 2)):
        for number in range(1, multiples + 1):
            for side, cage, shaft in (("", 0, 0), ("−1", 0, -1), ("+1", 0, 1), ("−FTF", -1, 0), ("+FTF", 1, 0)):
                lines[f"{number}×{name}{side}"] = (cage, number * outer, number * inner, number * spin, shaft)
        for number in range(multiples):
            part = number + BETWEEN
            lines[f"{part:g}×{name}"] = (0, part * outer, part * inner, part * spin, 0)
    lines |= {f"{number}×BSF": (0, 0, 0, number, 0) for number in (1, 3)}
    lines |= {f"{number}×shaft": (0, 0, 0, 0, number) for number in range(1, 9)}
    return lines | {f"{number}×FTF": (number, 0, 0, 0, 0) for number in range(1, 5)}


@dataclass(frozen=True)
class Bearing:
    """Geometry of a rolling bearing whose outer ring stands still; rollers count as balls."""

    balls: int
    ball_diameter: float  # mm
    pitch_diameter: float  # mm
    contact_angle: float = 0.0  # degrees; 0: purely radial load
    designation: str | None = None

    def __post_init__(self) -> None:
        for name in ("balls", "ball_diameter", "pitch_diameter", "contact_angle"):
            check_range(name, getattr(self, name), name)
        if self.balls * self.ball_diameter >= math.pi * self.pitch_diameter:
            balls = f"{self.balls} balls of {self.ball_diameter:g} mm"
            raise InputError(f"ball_diameter: {balls} do not fit on a pitch of {self.pitch_diameter:g} mm; use fewer")
        for name, order in self.orders().items():
            check_range("order", order, name)

    def __str__(self) -> str:
        """The designation, or the numbers as `find_bearing` reads them."""
        angle = f",angle={self.contact_angle:g}" if self.contact_angle else ""
        numbers = f"balls={self.balls},ball={self.ball_diameter:g},pitch={self.pitch_diameter:g}{angle}"
        return self.designation or numbers

    def orders(self) -> dict[str, float]:
        """In one shaft turn: turns of the cage (FTF), balls past either race (BPFO, BPFI), turns of a ball (BSF)."""
        ratio = self.ball_diameter / self.pitch_diameter * math.cos(math.radians(self.contact_angle))
        cage = (1 - ratio) / 2
        spin = self.pitch_diameter / (2 * self.ball_diameter) * (1 - ratio**2)
        return {"FTF": cage, "BPFO": self.balls * cage, "BPFI": self.balls * (1 - cage), "BSF": spin}

    def frequencies(self, rpm: float) -> dict[str, float]:
        """The kinematic frequencies in Hz at a speed of the shaft."""
        return {name: order * rpm / 60 for name, order in self.orders().items()}

    def rolled_length(self) -> float:
        """Millimetres that a contact moves along either race in a turn of the shaft: a circumference per spin."""
        return math.pi * self.ball_diameter * self.orders()["BSF"]


# Balls, ball diameter and pitch diameter in mm, contact angle in degrees.
_GEOMETRY = {
    # The rig of Case Western Reserve University, as its Bearing Data Center lists it: fan end and drive end.
    "6203": (8, 6.75, 28.5, 0.0),
    "6205": (9, 7.94, 39.04, 0.0),
    # Publications of run-to-failure tests: PRONOSTIA (Nectoux et al. 2012), XJTU-SY (Wang et al. 2018), IMS (Qiu et
    # al. 2006).
    "6804": (13, 3.5, 25.6, 0.0),
    "UER204": (8, 7.92, 34.55, 0.0),
    "ZA2115": (16, 8.407, 71.501, 15.17),
    # Deep-groove types of the series 60, 62 and 63 (Timken's 9100K, 200K and 300K). Timken's catalogue of ball bearing
    # housed units lists their FTF, BPFO and BPFI (page A-13), which give the number of balls and the ratio of the
    # diameters; the pitch is the mean of bore and outer diameter (ISO 15), and the ball that follows is an inch size to
    # 0.1 %. Types for which it is not (6005, 6006, 6202, 6205, 6305, 6306) are left out. Other makers' bearings of the
    # same type may have other balls: their data sheet counts, and balls=…,ball=…,pitch=… takes it.
    "6004": (9, 6.35, 31.0, 0.0),
    "6204": (8, 7.938, 33.5, 0.0),
    "6206": (9, 9.525, 46.0, 0.0),
    "6207": (9, 11.112, 53.5, 0.0),
    "6208": (9, 12.7, 60.0, 0.0),
    "6209": (9, 12.7, 65.0, 0.0),
    "6210": (10, 12.7, 70.0, 0.0),
    "6211": (10, 14.288, 77.5, 0.0),
    "6212": (10, 15.875, 85.0, 0.0),
    "6303": (7, 8.731, 32.0, 0.0),
    "6304": (7, 9.525, 36.0, 0.0),
    "6307": (8, 14.288, 57.5, 0.0),
    "6308": (8, 15.875, 65.0, 0.0),
    "6309": (8, 17.462, 72.5, 0.0),
    "6310": (8, 19.05, 80.0, 0.0),
    "6311": (8, 20.638, 87.5, 0.0),
    "6312": (8, 22.225, 95.0, 0.0),
    "6314": (8, 25.4, 110.0, 0.0),
    "6315": (8, 26.988, 117.5, 0.0),
    "6316": (8, 28.575, 125.0, 0.0),
}
BEARINGS = {name: Bearing(*numbers, designation=name) for name, numbers in _GEOMETRY.items()}


def find_bearing(text: str) -> Bearing:
    """The bearing with this designation (suffixes and case do not matter), or of balls=9,ball=7.94,pitch=39.04."""
    for name, bearing in BEARINGS.items():
        spelt = r"[\s-]?".join(re.findall(r"\D+|\d+", name))  # NU205, NU 205 or NU-205
        if re.search(rf"(?<![A-Z0-9=.]){spelt}(?![\d.])", text.upper()):
            return bearing
    if "=" not in text:
        known = suggest(text.upper(), BEARINGS)
        raise InputError(f"bearing '{text}': give balls=9,ball=7.94,pitch=39.04 (in mm), or a designation{known}")
    fields = {"balls": "balls", "ball": "ball_diameter", "pitch": "pitch_diameter", "angle": "contact_angle"}
    given = pairs(re.split("[,;]", text))
    for name in (*given, "balls", "ball", "pitch"):
        if name not in fields or name not in given:
            what = "is missing" if name in fields else "is no number of a bearing"
            raise InputError(f"bearing '{text}': {name} {what}; give balls, ball and pitch (in mm), and angle if not 0")
    try:
        return override(Bearing(1, 1.0, 2.0), {fields[name]: number for name, number in given.items()})
    except InputError as error:
        raise InputError(f"bearing '{text}': {error}") from error


def known_orders(
    bearing: str | Bearing | None, orders: Mapping[str, float | None] | None = None
) -> dict[str, float] | None:
    """Kinematic orders of a bearing, or those given, BPFO and BPFI giving the others; None where neither is."""
    given = {name: float(value) for name, value in (orders or {}).items() if value is not None}
    if not given:
        return None if bearing is None else (find_bearing(bearing) if isinstance(bearing, str) else bearing).orders()
    if bearing is not None:
        raise InputError("give the bearing or its orders, not both", "bearing")
    for name in ("BPFO", "BPFI"):
        if name not in given:
            raise InputError(f"{name}: is missing; give BPFO and BPFI, as multiples of the shaft's speed", name.lower())
    outer, inner = given["BPFO"], given["BPFI"]
    if not 0 < outer < inner < 100:
        wrong = f"BPFO {outer:g} and BPFI {inner:g}: must be multiples of the shaft's speed, BPFI the larger"
        raise InputError(f"{wrong}; divide frequencies by that of the shaft", "bpfo")
    ratio = (inner - outer) / (inner + outer)  # ball over pitch diameter
    made = {"FTF": (1 - ratio) / 2, "BSF": (1 - ratio**2) / (2 * ratio)} | given
    for name, value in made.items():
        check_range("order", value, name, name.lower())
    return made
