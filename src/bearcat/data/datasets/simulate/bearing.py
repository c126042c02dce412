"""A bearing and what it is run at: geometry, kinematics, operating conditions.

>>> fault_frequencies(Bearing(), 1500)["BPFO"]
76.31578947368422
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Bearing:
    """Geometry of a ball bearing whose outer ring stands still; the default is a 6203 as catalogues list it."""

    balls: int = 8
    ball_diameter: float = 6.75  # mm
    pitch_diameter: float = 28.5  # mm
    contact_angle: float = 0.0  # degrees; 0: purely radial load

    @property
    def ratio(self) -> float:
        return self.ball_diameter / self.pitch_diameter * math.cos(math.radians(self.contact_angle))

    def cage(self, shaft: float) -> float:
        """FTF: turns of the cage per second for `shaft` turns per second (rolling without slip, as are the next)."""
        return shaft / 2 * (1 - self.ratio)

    def outer(self, shaft: float) -> float:
        """BPFO: balls that pass a point of the outer race per second."""
        return self.balls * self.cage(shaft)

    def inner(self, shaft: float) -> float:
        """BPFI: balls that pass a point of the inner race per second."""
        return self.balls * (shaft - self.cage(shaft))

    def spin(self, shaft: float) -> float:
        """BSF: turns of a ball about its own axis per second, seen from the cage."""
        return shaft * self.pitch_diameter / (2 * self.ball_diameter) * (1 - self.ratio**2)

    def rolling(self, shaft: float) -> float:
        """Speed of the contact along either race in mm/s: a ball lays its circumference down once per spin."""
        return math.pi * self.ball_diameter * self.spin(shaft)


def fault_frequencies(bearing: Bearing, speed_rpm: float) -> dict[str, float]:
    """The four kinematic frequencies in Hz at a speed in rpm."""
    shaft = speed_rpm / 60
    return {
        "FTF": bearing.cage(shaft),
        "BPFO": bearing.outer(shaft),
        "BPFI": bearing.inner(shaft),
        "BSF": bearing.spin(shaft),
    }


@dataclass(frozen=True)
class Condition:
    """An operating condition: shaft speed in rpm, load torque in N m, radial force on the bearing in N."""

    speed: float
    torque: float
    force: float

    @property
    def shaft(self) -> float:
        return self.speed / 60  # Hz


# The four conditions of the Paderborn measurements (Lessmeier et al. 2016), in their order.
CONDITIONS = {
    "N15_M07_F10": Condition(1500, 0.7, 1000),
    "N09_M07_F10": Condition(900, 0.7, 1000),
    "N15_M01_F10": Condition(1500, 0.1, 1000),
    "N15_M07_F04": Condition(1500, 0.7, 400),
}
REFERENCE = CONDITIONS["N15_M07_F10"]  # every amplitude and the contact resonance are given at this condition
