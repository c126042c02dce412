"""Bearings: their geometry, and how often their parts meet in a turn of the shaft.

>>> find_bearing("6205-2RS JEM").orders()["BPFO"]
3.584784836065574
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bearcat.errors import InputError, check_range
from bearcat.settings import pairs

KINEMATIC = ("FTF", "BPFO", "BPFI", "BSF")
TABLE = Path(__file__).parent / "bearings.csv"
ESTIMATE = "estimate"  # how the source of a row begins whose balls are not published, or not in one voice
INSTEAD = "give a designation, balls=9,ball=7.94,pitch=39.04 (in mm; and angle), or bpfo=…,bpfi=… of its data sheet"
NEAR = 0.25  # by which the orders of a data sheet may miss a whole number of balls
UNKNOWN = "unknown"  # in place of a designation: look for lines of any bearing
_MAKERS = r"\b(?:SKF|FAG|INA|NSK|NTN|SNR|KOYO|JTEKT|NACHI|TIMKEN|FAFNIR|RHP|ZKL|URB|FBJ|LDK|MRC|STEYR|MB|NMB)(?![A-Z])"
_PREFIXES = "R?N[A-Z]{0,2}|U[A-Z]{1,2}|ER|ZA|[HB]?K|RLS|RMS|[RQ]"  # that belong to a designation
# Letters, digits (or bore after a stroke) and the suffix's letters of a designation.
_NAMED = re.compile(r"(?<![A-Z0-9=.])([A-Z]{0,4}[\s-]?)(\d{2,5}(?:/\d{2,3}(?![\d.]))?)(?![\d.])([A-Z]*)")
BETWEEN = 0.37  # of the way from one multiple to the next, where nothing of that fault is expected


def bearing_lines(multiples: int) -> dict[str, tuple[float, float, float, float, float]]:
    """Places on the bearing's own axis, as multiples of KINEMATIC and of the shaft, so that geometry does not matter:
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
    """Geometry of a rolling bearing whose outer ring stands still; rollers count as balls.

    >>> round(Bearing(balls=9, ball_diameter=7.94, pitch_diameter=39.04).orders()["BPFO"], 3)
    3.585
    """

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

    @property
    def estimated(self) -> bool:
        """Whether the table's numbers are an estimate: there may be a ball more or less."""
        return ROWS.get(self.designation or "", {}).get("source", "").startswith(ESTIMATE)

    def frequencies(self, rpm: float) -> dict[str, float]:
        """The kinematic frequencies in Hz at a speed of the shaft."""
        return {name: order * rpm / 60 for name, order in self.orders().items()}

    def rolled_length(self) -> float:
        """Millimetres that a contact moves along either race in a turn of the shaft: a circumference per spin."""
        return math.pi * self.ball_diameter * self.orders()["BSF"]


# By designation: type, bore, outer (mm), …, source.
ROWS = {row["designation"]: row for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())}
BEARINGS = {
    name: Bearing(int(row["balls"]), float(row["ball"]), float(row["pitch"]), float(row["angle"]), name)
    for name, row in ROWS.items()
}
"""Bearings by designation.

>>> BEARINGS["6205"].balls
9
"""


def _designations(text: str) -> Iterator[str]:
    """What a text may mean: NU205E and NU205 of `NU 205 ECP`, 6205 of `SKF 6205-2RS/C3` and of `62052RS`."""
    for match in _NAMED.finditer(re.sub(_MAKERS, " ", text.upper())):
        letters, digits, suffix = match.groups()
        apart, letters = letters[-1:] in (" ", "-"), re.sub(r"[\s-]", "", letters)
        if (apart and not re.fullmatch(_PREFIXES, letters)) or letters in ("S", "HC"):  # another word; steel, hybrid
            letters = ""
        if re.fullmatch(r"61[89]\d\d", digits):  # 61904 is called 6904 elsewhere
            digits = f"6{digits[2:]}"
        code = letters + digits
        yield from (code + suffix[:1], code) if suffix[:1] == "E" else (code, f"{code}E", code + suffix)
        if digits.endswith("2") and re.match("RS|Z", suffix):
            yield code[:-1]


def find_bearing(text: str) -> Bearing:
    """The bearing with this designation (maker, suffixes and case do not matter), of balls=9,ball=7.94,pitch=39.04, or
    of the orders of a data sheet, bpfo=3.585,bpfi=5.415.

    >>> find_bearing("SKF 6205-2RS").designation
    '6205'
    """
    if "=" not in text:
        if (name := next((name for name in _designations(text) if name in BEARINGS), None)) is not None:
            return BEARINGS[name]
        raise InputError(f"bearing '{text}': is not in the table (docs/diagnose.md); {INSTEAD}", "bearing")
    try:
        numbers = {name: float(value) for name, value in pairs(re.split("[,;]", text)).items()}
        if {"bpfo", "bpfi"} & numbers.keys() and numbers.keys() <= {name.lower() for name in KINEMATIC}:
            named = ",".join(f"{name}={value:g}" for name, value in numbers.items())
            return _of_orders({name.upper(): value for name, value in numbers.items()}, named)
        if numbers.keys() | {"angle"} != {"balls", "ball", "pitch", "angle"} or numbers["balls"] % 1:
            raise InputError(f"does not hold the numbers of a bearing; {INSTEAD}")
        return Bearing(int(numbers["balls"]), numbers["ball"], numbers["pitch"], numbers.get("angle", 0.0))
    except ValueError as error:
        raise InputError(f"bearing '{text}': {error}", "bearing") from error


def _of_orders(orders: Mapping[str, float], text: str) -> Bearing:
    """A bearing with these orders: BPFO and BPFI say how many balls and the ratio of the diameters, BSF the angle."""
    outer, inner = orders.get("BPFO", 0.0), orders.get("BPFI", 0.0)
    if not 0 < outer < inner < 100:
        raise InputError("must have BPFO and BPFI, as multiples of the shaft's speed, BPFI the larger")
    balls = round(total := outer + inner)
    if abs(total - balls) > NEAR:
        raise InputError(f"BPFO + BPFI is {total:g} and must be the number of balls; check both")
    ratio = (inner - outer) / total
    cosine = 2 * ratio * orders["BSF"] / (1 - ratio**2) if "BSF" in orders else 1.0
    if cosine > 1 + NEAR:
        raise InputError("bsf is too high; give the turns of a ball, not its strikes, which are twice")
    angle = math.degrees(math.acos(min(cosine, 1.0)))
    return Bearing(balls, 100 * ratio / math.cos(math.radians(angle)), 100.0, angle, text)


def asked_bearing(bearing: str | Bearing | None) -> tuple[Bearing | None, bool]:
    """The bearing that a user names, and whether it is UNKNOWN, so that lines of any are looked for."""
    if isinstance(bearing, str):
        return (None, True) if bearing.strip().lower() == UNKNOWN else (find_bearing(bearing), False)
    return bearing, False
