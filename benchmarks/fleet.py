"""A simulated fleet: machines over years, some of whose bearings fail, for trying what watches machines over time.

Every machine has points on one shaft, which hear each other. What varies without harm: load (weekdays, and wandering),
temperature (seasons; a warm bearing is quieter), levels and modes that drift, new bearings that run in, a sensor that
is replaced and mounted a little otherwise, single recordings beside a knock of the process. A failing bearing has a
spall that grows exponentially, from nothing that can be heard to the end of its life. docs/simulator.md has the ranges.

>>> machine = SimulatedFleet(machines=3, days=60).machine(0)
>>> machine.signals(day=12)[0].shape        # of the first point
(16000,)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bearcat.data.datasets.simulate import REFERENCE, Condition, Simulated, simulate
from bearcat.data.datasets.simulate.signals import random_stream
from bearcat.data.datasets.simulate.specimens import Defect, Physics, make_specimen

DAY = 86400.0
START = 1_704_067_200.0  # 1 January 2024
FAULTS = ("inner", "outer", "ball")
NEIGHBOUR = 0.15  # of a point's signal that the next one on the shaft hears
LOAD_WEEKEND, LOAD_WANDER = 0.6, 0.12  # load at the weekend over that of a weekday, and how far it wanders (log)
WARMTH, SEASON = 0.06, 12.0  # dB a kelvin by which background and roughness fall, and amplitude of the year in K
LEVEL_DRIFT, LEVEL_DAYS = 0.07, 20.0  # of log levels of background and roughness, around their means: 0.6 dB
MODE_DRIFT, MODE_DAYS = 0.05, 60.0  # of log gains of the modes, likewise
GAIN_WALK = 0.03  # of the log gain of the sensor in a year
RUN_IN, RUN_IN_DAYS, NEW = 0.4, 5.0, 0.2  # log roughness of a new bearing, days until it falls by e, share of such
SWAPS, SWAP_GAIN, SWAP_MODE = 0.1, 0.2, 0.3  # a year of each point; log of gain and of the contact's mode
KNOCKS = 0.005  # share of recordings beside a knock
MISSING = 0.03  # share of days without a recording
GROWTH = (45.0, 240.0)  # days from the first sign to the end, log-uniform
FIRST, LAST = 0.02, 3.0  # mm of a spall at its first sign and at the end
SPEEDS = (900.0, 1500.0)
SOUND = 100.0  # days in which no spall begins: a bearing that is damaged at the start is no matter of change


@dataclass(frozen=True)
class Failure:
    """Of a point: what, from which day on, and when it ends."""

    part: str
    begin: float
    end: float

    def length(self, day: float) -> float:
        """mm of the spall; 0 before it begins."""
        if day < self.begin:
            return 0.0
        share = min((day - self.begin) / (self.end - self.begin), 1.0)
        return float(FIRST * (LAST / FIRST) ** share)


@dataclass(frozen=True)
class SimulatedFleet:
    """`failing` is the share of points that fail within the days."""

    machines: int = 50
    points: int = 4
    days: int = 730
    failing: float = 0.05
    every: int = 1  # days from one recording to the next
    seconds: float = 1.0
    rate: float = 16_000.0
    seed: int = 0

    def machine(self, number: int) -> FleetMachine:
        return FleetMachine(self, number)


class FleetMachine:
    """One machine: `recorded` are the days it was recorded on."""

    def __init__(self, fleet: SimulatedFleet, number: int) -> None:
        self.fleet, self.number, self.name = fleet, number, f"machine-{number + 1:03d}"
        random = self._random("machine")
        self.speed = float(random.choice(SPEEDS))
        self.two_speeds = bool(random.uniform() < 0.1)
        self.load_known = bool(random.uniform() < 0.5)
        days = np.arange(fleet.days)
        wander = _wandering(fleet.days, LOAD_WANDER, 10.0, random)
        self.load = np.where(days % 7 >= 5, LOAD_WEEKEND, 1.0) * np.exp(wander)
        season = SEASON * np.sin(2 * math.pi * (days - 100) / 365.25)
        self.temperature = 20.0 + season + 3.0 * random.standard_normal(fleet.days)
        self.speeds = np.where(self.two_speeds & (random.uniform(size=fleet.days) < 0.3), 1200.0, self.speed)
        self.recorded = [int(day) for day in days[:: fleet.every] if random.uniform() >= MISSING]
        self.points = [f"bearing-{place + 1}" for place in range(fleet.points)]
        self._histories = [self._history(place) for place in range(fleet.points)]

    def _random(self, part: str) -> np.random.Generator:
        return random_stream(self.fleet.seed, f"fleet/{self.number}", part)

    def _history(self, place: int) -> dict[str, NDArray[np.float64]]:
        """How a point's levels, modes and gain go over the days, as factors (day,)."""
        days, random = self.fleet.days, self._random(f"history {place}")
        walk = np.cumsum(GAIN_WALK / math.sqrt(365.25) * random.standard_normal(days))
        swaps = random.uniform(size=days) < SWAPS / 365.25
        new = RUN_IN * np.exp(-np.arange(days) / RUN_IN_DAYS) * (random.uniform() < NEW)
        modes = [_wandering(days, MODE_DRIFT, MODE_DAYS, random) for _ in range(4)]
        return {
            "noise": np.exp(_wandering(days, LEVEL_DRIFT, LEVEL_DAYS, random)),
            "roughness": np.exp(_wandering(days, LEVEL_DRIFT, LEVEL_DAYS, random) + new),
            "gain": np.exp(walk + np.cumsum(swaps * SWAP_GAIN * random.standard_normal(days))),
            "contact": np.exp(np.cumsum(swaps * SWAP_MODE * random.standard_normal(days)) + modes[3]),
            **{f"mode {number}": np.exp(modes[number]) for number in range(3)},
            "knock": (random.uniform(size=days) < KNOCKS) * random.uniform(0.5, 3.0, size=days),
            "swap": swaps.astype(np.float64),
        }

    def swapped(self, place: int) -> list[int]:
        """Days on which a point's sensor is replaced."""
        return [int(day) for day in np.flatnonzero(self._histories[place]["swap"])]

    @cached_property
    def failures(self) -> list[Failure | None]:
        """Of each point."""
        found: list[Failure | None] = []
        for place in range(self.fleet.points):
            random = self._random(f"failure {place}")
            fails, part = random.uniform() < self.fleet.failing, str(random.choice(FAULTS))
            length = math.exp(random.uniform(*np.log(GROWTH)))
            begin = float(random.uniform(SOUND, max(self.fleet.days - length, SOUND + 1)))
            found.append(Failure(part, begin, begin + length) if fails else None)
        return found

    @cached_property
    def _own(self) -> list[tuple[Simulated, Physics]]:
        fleet = self.fleet
        base = Simulated(seconds=fleet.seconds, rate=fleet.rate, specimens=4, seed=fleet.seed)
        first = 1 + fleet.points * self.number
        specimens = [make_specimen(base, "healthy", first + place) for place in range(fleet.points)]
        return [(specimen.settings, specimen.physics) for specimen in specimens]

    def time(self, day: int) -> float:
        return START + DAY * day + 6 * 3600.0

    def condition(self, day: int) -> Condition:
        load = float(self.load[day])
        return Condition(float(self.speeds[day]), REFERENCE.torque * load, REFERENCE.force * load)

    def settings(self, place: int) -> Simulated:
        """Of a point: its machine's and its bearing's own."""
        return self._own[place][0]

    def varied(self, place: int, day: int) -> tuple[Simulated, Physics]:
        """The settings and physics of a point on a day, with what varies."""
        settings, own = self._own[place]
        varied = self._histories[place]
        warm = 10 ** (-WARMTH * (float(self.temperature[day]) - 20.0) / 20)
        gain = varied["gain"][day]
        modes = tuple(value * varied[f"mode {number}"][day] for number, value in enumerate(own.resonance_gains))
        return replace(settings, noise=settings.noise * warm * varied["noise"][day] * gain), replace(
            own, impact=own.impact * gain,
            roughness=own.roughness * warm * varied["roughness"][day] * gain, unbalance=own.unbalance * gain,
            resonance_gains=modes, contact_gain=own.contact_gain * varied["contact"][day],
            misalignment=tuple(gain * size for size in own.misalignment),
            gear_amplitudes=tuple(gain * size for size in own.gear_amplitudes),
            motor_amplitudes=tuple(gain * size for size in own.motor_amplitudes),
        )  # fmt: skip

    def signals(self, day: int) -> list[NDArray[np.float32]]:
        """What each point's sensor hears on a day, (time,)."""
        condition, own = self.condition(day), []
        for place, failure in enumerate(self.failures):
            length = failure.length(day) if failure is not None and day <= failure.end else 0.0
            defects = (Defect(failure.part, length),) if failure is not None and length else ()
            origin = f"fleet/{self.number}/{place}/{day}"
            settings, physics = self.varied(place, day)
            signal = simulate(settings, condition, defects, origin, physics)
            if knock := self._histories[place]["knock"][day]:
                random = random_stream(self.fleet.seed, origin, "knock")
                at = random.integers(0, signal.size, size=3)
                signal[at] += knock * 20 * signal.std()
            own.append(signal)
        heard = [own[place] + NEIGHBOUR * sum(own[other] for other in (place - 1, place + 1) if 0 <= other < len(own))
                 for place in range(len(own))]  # fmt: skip
        return [signal.astype(np.float32) for signal in heard]


def _wandering(days: int, deviation: float, correlation: float, random: np.random.Generator) -> NDArray[np.float64]:
    """An Ornstein-Uhlenbeck process (day,) with this standard deviation and time of correlation in days."""
    kept = math.exp(-1 / correlation)
    steps = random.standard_normal(days) * deviation
    steps[1:] *= math.sqrt(1 - kept**2)
    found = np.empty(days)
    value = 0.0
    for day, step in enumerate(steps):
        value = kept * value + step
        found[day] = value
    return found
