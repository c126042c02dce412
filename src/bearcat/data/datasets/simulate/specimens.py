"""Simulated bearings of which no two are alike: what differs from specimen to specimen, and by how much.

A specimen has settings and physics drawn around the usual ones; docs/simulator.md has the ranges and their reasons. A
draw depends on the seed and on the name of the specimen or of the machine, on nothing else.

>>> make_specimen(Simulated(specimens=4), "inner", 3).defects
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.data.datasets.simulate.signals import random_stream

if TYPE_CHECKING:
    from bearcat.data.datasets.simulate import Simulated

FAULTS = {"inner": ("inner",), "outer": ("outer",), "both": ("inner", "outer"), "ball": ("ball",)}
MACHINE = "simulated"
# Standard deviations of the logarithm of a setting at a spread of 1. Of the machine: structure, path, sensor, tones,
# background. Resonances differ by a fifth, gains by 4 dB, tones by a grade of balance (2.5 times).
MACHINE_SPREADS = {
    "resonances": 0.2, "dampings": 0.4, "resonance_gains": 0.5, "contact_resonance": 0.15, "contact_damping": 0.4,
    "contact_gain": 0.5, "inner_participation": 0.4, "inner_gain": 0.3, "inner_cutoff": 0.4, "unbalance": 0.9,
    "misalignment": 0.9, "motor_amplitudes": 0.7, "gear_teeth": 0.3, "gear_amplitudes": 0.7, "gear_sideband": 0.5,
    "noise": 0.7, "noise_corner": 0.5, "sensor_noise": 0.5,
}  # fmt: skip
# Of the bearing: geometry (makers fit other balls), clearance (classes C2 to C3), motion, surfaces, edges of the spall.
BEARING_SPREADS = {
    "ball_diameter": 0.01, "pitch_diameter": 0.005, "clearance": 0.5, "slip_jitter": 0.3, "impact": 0.4,
    "impact_spread": 0.3, "entry": 0.3, "entry_width": 0.3, "roughness": 0.5,
}  # fmt: skip
SENSOR_GAIN = 0.3  # likewise, of all that the sensor hears: its sensitivity and its place
HEARD = ("impact", "roughness", "noise", "unbalance", "misalignment", "motor_amplitudes", "gear_amplitudes")
COLOUR = 0.5  # the noise's colour is drawn so far to either side
SLIP = 0.02  # the cage's lag is drawn up to this above the setting: real bearings have 0.01 to 0.02
SWELL = 0.2  # the swell is drawn up to this above the setting: about 12 dB at BPFO, as healthy bearings on rigs have
ANGLE = 8.0  # degrees, standard deviation of the contact angle: axial load
PLACE = 30.0  # degrees, standard deviation of an outer defect's place: spalls start under the load, housings are turned
SECOND_SPOT = 0.25  # share of spalls with a second one beside them
HIGHEST = 0.45  # of the rate: no mode is drawn above
RANGES = {
    "dampings": (0.005, 0.2), "contact_damping": (0.005, 0.2), "slip_jitter": (0.0, 0.2), "impact_spread": (0.0, 0.5)
}  # fmt: skip


@dataclass(frozen=True)
class MachinePhysics:
    """What differs between machines and bearings and is not set by users; "chosen" values come from no machine.

    Amplitudes are in m/s² at the reference condition.
    """

    # The bearing, and strikes on its defect.
    clearance: float = 0.008  # mm, diametral; the middle of the normal (CN) class for a 17 mm bore
    impact: float = 3.0  # an exit over 1 mm at full load, before the modes' gains; chosen
    impact_spread: float = 0.1  # standard deviation of single strikes over their mean; chosen
    entry: float = 0.4  # momentum of the entry over that of the exit; weaker, as Sawalhi and Randall observed
    entry_width: float = 0.6  # duration of the entry over the time to cross the defect; chosen
    outer_position: float = 0.0  # degrees from the direction of the force; 0: where spalls usually start
    roughness: float = 0.03  # root mean square force of rough races on the modes: the hiss of a healthy bearing; chosen

    # Structure and transfer path.
    resonances: tuple[float, ...] = (870.0, 2250.0, 3600.0)  # Hz, modes of ring, housing and plate; chosen
    dampings: tuple[float, ...] = (0.04, 0.03, 0.025)  # of critical; bolted steel has 0.01 to 0.05
    resonance_gains: tuple[float, ...] = (0.4, 0.9, 0.7)  # chosen
    contact_resonance: float = 5200.0  # Hz at 1000 N, the housing on its loaded contacts; chosen
    contact_damping: float = 0.03  # of critical; chosen
    contact_gain: float = 0.7  # chosen
    inner_participation: tuple[float, ...] = (1.2, 0.6, 1.3)  # gain for inner-race strikes over outer ones; chosen
    inner_gain: float = 0.9  # inner-race strikes cross one more contact on their way; chosen
    inner_cutoff: float = 3500.0  # Hz, first-order low-pass on that way; chosen

    # Shaft, motor and gear.
    unbalance: float = 0.08  # at once per turn, grows as speed²; chosen
    misalignment: tuple[float, ...] = (0.03, 0.06, 0.03)  # at 1, 2, 3… per turn, as torque and speed²; chosen
    motor_amplitudes: tuple[float, ...] = (0.05, 0.06, 0.03)  # chosen
    gear_teeth: int = 31  # mesh order; chosen
    gear_amplitudes: tuple[float, ...] = (0.06, 0.03)  # at the mesh order and its multiples; chosen
    gear_sideband: float = 0.25  # of the mesh line, at one turn to either side: run-out; chosen

    # Noise.
    noise_colour: float = 1.0  # power falls as frequency^-colour: 0 white, 1 pink, 2 brown
    noise_corner: float = 20.0  # Hz, below which the background is flat
    sensor_noise: float = 0.01  # root mean square, white, whatever the condition; chosen


@dataclass(frozen=True)
class Defect:
    """One spall: on which part, its length in mm in the rolling direction, and by how many balls it lies further on."""

    part: str  # "inner", "outer" or "ball"
    length: float
    lag: float = 0.0  # of the distance between two balls, behind the first spall of the same part


@dataclass(frozen=True)
class Specimen:
    """A bearing in its machine: the settings and physics that describe both, and its defects."""

    name: str
    label: str
    machine: str
    settings: Simulated
    physics: MachinePhysics
    defects: tuple[Defect, ...]


def make_specimen(settings: Simulated, label: str, number: int) -> Specimen:
    """The specimen of this type and number; machines take the numbers in turn, or each specimen has its own."""
    name, spread = f"{label}-s{number:02d}", settings.specimen_spread
    machine = f"{MACHINE} {(number - 1) % settings.machines + 1}" if settings.machines else f"{MACHINE} {name}"
    drawn: dict[str, Any] = {}
    around = vars(settings) | vars(MachinePhysics())
    for owner, spreads in ((machine, MACHINE_SPREADS), (name, BEARING_SPREADS)):
        for setting, deviation in spreads.items():
            usual, random = around[setting], random_stream(settings.seed, owner, setting)
            drawn[setting] = _drawn(setting, usual, settings.rate, spread * deviation, random)
    sensor = random_stream(settings.seed, machine, "sensor")
    gain = math.exp(spread * SENSOR_GAIN * sensor.standard_normal())
    for setting in HEARD:
        value = drawn[setting]
        drawn[setting] = tuple(gain * each for each in value) if isinstance(value, tuple) else gain * value
    drawn["noise_colour"] = MachinePhysics.noise_colour + spread * COLOUR * sensor.uniform(-1, 1)
    random = random_stream(settings.seed, name, "bearing")
    drawn["contact_angle"] = min(abs(settings.contact_angle + spread * ANGLE * random.standard_normal()), 40.0)
    drawn["slip"] = min(settings.slip + spread * SLIP * random.uniform(), 0.2)
    drawn["swell"] = min(settings.swell + spread * SWELL * random.uniform(), 1.0)
    drawn["outer_position"] = spread * PLACE * random.standard_normal()
    physical = {field.name: drawn.pop(field.name) for field in fields(MachinePhysics)}
    own = replace(settings, specimens=0, groups=0, **drawn)
    defects = tuple(spot for part in FAULTS.get(label, ()) for spot in _spots(own, part, random))
    return Specimen(name, label, machine, own, MachinePhysics(**physical), defects)


def _drawn(setting: str, value: Any, rate: float, deviation: float, random: np.random.Generator) -> Any:
    """A value, or each value of a list, times a log-normal factor, within what the model can do."""
    lowest, highest = RANGES.get(setting, (0.0, math.inf))
    if setting in ("resonances", "contact_resonance"):
        highest = HIGHEST * rate
    factors = np.exp(deviation * random.standard_normal(len(value) if isinstance(value, tuple) else 1))
    found = np.clip(np.multiply(value, factors), lowest, highest).tolist()
    if isinstance(value, tuple):
        return tuple(found)
    return max(1, round(found[0])) if isinstance(value, int) else found[0]


def _spots(settings: Simulated, part: str, random: np.random.Generator) -> list[Defect]:
    """A spall, and now and then a smaller one beside it; lengths are log-uniform over the range of `severities`."""
    spread, ends = settings.specimen_spread, np.log([min(settings.severities), max(settings.severities)])
    length = math.exp(ends.mean() + spread * (ends[1] - ends[0]) / 2 * random.uniform(-1, 1))
    spacing = math.pi * (settings.pitch_diameter - settings.ball_diameter) / settings.balls
    first = Defect(part, min(length, 0.9 * spacing))
    second = Defect(part, first.length * random.uniform(0.3, 0.8), lag=random.uniform(0.1, 0.9))
    return [first, second] if random.uniform() < SECOND_SPOT * min(spread, 1.0) else [first]
