"""Simulated bearings: a physical model of a 6203 under four operating conditions, for demos and tests.

It is no evidence about real machines. Balls that cross a defect strike the structure, whose damped modes ring, over
tones of shaft, motor and gear and coloured noise, in m/s². docs/simulator.md has the formulas and their sources.

>>> recording = Simulated(seconds=2.0).recording("N15_M07_F10", "outer-3")
>>> recording.bearing.frequencies(recording.rpm)["BPFO"]
76.31578947368422
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import ClassVar

import numpy as np
import scipy  # its parts are loaded when they are first used, which takes a second

from bearcat.data.bearing import Bearing
from bearcat.data.catalogue import About, Catalogue, Dataset, Entry, find_domain
from bearcat.data.datasets.simulate import signals
from bearcat.data.datasets.simulate.signals import Doubles
from bearcat.data.datasets.simulate.specimens import FAULTS, MACHINE, Defect, MachinePhysics, Specimen, make_specimen
from bearcat.data.recording import Recording
from bearcat.errors import InputError, suggest

RESULT_VERSION = 1  # raise it whenever the same settings give other samples; it is part of every entry's identity
HEALTHY = "healthy"


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

LEAST = 1e-9  # of what must be above zero
BOUNDS = {  # the lowest and the highest value of each number; those that are not named are zero or above
    "rate": (LEAST, math.inf), "seconds": (LEAST, math.inf), "measurements": (1, math.inf),
    "severities": (LEAST, math.inf), "balls": (1, math.inf), "ball_diameter": (LEAST, math.inf),
    "pitch_diameter": (LEAST, math.inf), "contact_angle": (-90, 90), "speed_fluctuation": (0.0, 0.1),
    "slip": (0.0, 0.2), "slip_jitter": (0.0, 0.2), "swell": (0.0, 1.0),
}  # fmt: skip
NAMES = {"conditions": tuple(CONDITIONS), "faults": tuple(FAULTS)}

# The physics that is the same for every bearing and machine.
CONTACT_CONSTANT = 3.2e5  # N/mm^1.5, ball between both races; usual size for balls of 7 mm (Harris)
SPEED_BANDWIDTH = 1.0  # Hz, below which the speed wanders; chosen
SPEED_SPREAD = 0.001  # standard deviation of a recording's mean speed over the nominal one; chosen
LOAD_EXPONENT = 0.5  # of the load at the contact; below 1, for the ball's own inertia does not grow; chosen
UNLOADED = 0.15  # least load at a contact over the greatest: axial preload, centrifugal force; chosen
CONTACT_EXPONENT = 1 / 6  # of the force: Hertzian stiffness grows as force^(1/3), a frequency as its root
GAIN_SPREAD = 0.05  # standard deviation of a recording's log gain: mounting of the sensor; chosen
MOTOR_ORDERS = (8.0, 24.0, 48.0)  # per turn: twice 4 pole pairs, 24 slots and twice that
IDLE = 0.2  # share of motor, gear and misalignment lines left without torque: cogging, preload; chosen
NOISE_FORCE_EXPONENT = 0.3  # of force, for background and roughness; chosen


@dataclass(frozen=True)
class Simulated(Dataset):
    """The simulated dataset; values marked "chosen" come from no machine and are only of a plausible size.

    >>> Simulated(seconds=1.0).recording("N15_M07_F10", "inner-1").signal.shape
    (16000,)
    """

    # What is generated.
    seed: int = 0
    rate: float = 16000.0  # Hz; a quarter of the Paderborn rate, wide enough for the modes of the structure
    seconds: float = 4.0  # s, as the Paderborn recordings
    measurements: int = 1  # recordings per class and condition
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    faults: tuple[str, ...] = ("inner", "outer", "both")  # also "ball"; "both" is an inner and an outer defect
    severities: tuple[float, ...] = (0.5, 1.5, 4.0)  # mm, length of the defect in rolling direction; chosen

    # The bearing: a 6203.
    balls: int = 8
    ball_diameter: float = 6.75  # mm
    pitch_diameter: float = 28.5  # mm
    contact_angle: float = 0.0  # degrees

    # Motion and noise.
    speed_fluctuation: float = 0.002  # standard deviation of the speed over its mean; chosen: a controlled drive
    slip: float = 0.0  # share by which the cage lags on average; real ones 0.01 to 0.02, here lines are as computed
    slip_jitter: float = 0.01  # standard deviation of the spacing of strikes over its mean; usually 0.01 to 0.02
    noise: float = 0.1  # m/s² at the reference condition, root mean square of the background; chosen
    swell: float = 0.0  # share by which the hiss of rough races swells with each ball

    # Bearings that differ (specimens.py).
    specimens: int = 0  # bearings of each type, labelled by type; 0: one for each severity
    specimen_spread: float = 1.0  # how much they differ, over the usual spread
    machines: int = 0  # on which the specimens are mounted in turn; 0: each on its own
    groups: int = 0  # domains that take the specimens in turn; 0: a domain is a condition

    about: ClassVar[About] = About(
        title="Simulated 6203 bearings (for demos and tests; no evidence about real machines)", licence="MIT"
    )  # the model is after Antoni and Randall (2003) and McFadden and Smith (1984)

    def __post_init__(self) -> None:
        """Refuses settings that cannot work, naming the field."""
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            for element in value if isinstance(value, tuple) else (value,):
                lowest, highest = BOUNDS.get(name, (0.0, math.inf))
                if name not in NAMES and not (lowest <= element <= highest and element < math.inf):  # as NaN is not
                    raise InputError(f"{name}: must lie between {lowest:g} and {highest:g}, not {element!r}")
                if name in NAMES and element not in NAMES[name]:
                    raise InputError(f"{name}: unknown name '{element}'{suggest(str(element), NAMES[name])}")
                if name in NAMES and value.count(element) > 1:
                    raise InputError(f"{name}: '{element}' is there twice; name each once")
        longest, bearing = max(self.severities, default=0.0), self.bearing  # which refuses balls that do not fit
        spacing = math.pi * (bearing.pitch_diameter - bearing.ball_diameter) / bearing.balls
        contact = max(
            (contact_frequency(MachinePhysics(), CONDITIONS[name].force) for name in self.conditions), default=0.0
        )
        refusals = {
            f"conditions: name at least one of {', '.join(CONDITIONS)}": not self.conditions,
            "severities: give at least one defect length in mm, or leave faults empty": self.faults and not longest,
            f"seconds: {self.seconds:g} s at {self.rate:g} Hz is less than two samples": self.samples < 2,
            f"severities: {longest:g} mm is not shorter than the balls are apart, {spacing:.3g} mm": longest >= spacing,
            f"rate: the contact rings at {contact:g} Hz, which needs more than twice that": contact >= self.rate / 2,
            f"groups: {self.groups} need as many specimens of each type": 0 < self.specimens < self.groups,
            "groups: they are of specimens; set specimens too": self.groups and not self.specimens,
        }
        for sentence in (sentence for sentence, refused in refusals.items() if refused):
            raise InputError(sentence)

    @property
    def bearing(self) -> Bearing:
        return Bearing(self.balls, self.ball_diameter, self.pitch_diameter, self.contact_angle)

    @property
    def samples(self) -> int:
        return round(self.rate * self.seconds)

    @property
    def cage(self) -> float:
        """Turns of the cage per turn of the shaft."""
        return self.bearing.orders()["FTF"] * (1 - self.slip)

    def classes(self) -> dict[str, tuple[Defect, ...]]:
        """Each label in order, and the defects it stands for, which of types differ from specimen to specimen."""
        if self.specimens:
            return dict.fromkeys((HEALTHY, *self.faults), ())
        table: dict[str, tuple[Defect, ...]] = {HEALTHY: ()}
        for fault in self.faults:
            for number, length in enumerate(self.severities, start=1):
                table[f"{fault}-{number}"] = tuple(Defect(race, length) for race in FAULTS[fault])
        return table

    def specimen(self, name: str) -> Specimen:
        """A bearing by its name: a label, or a type and the specimen's number as in inner-s03."""
        classes = self.classes()
        if not self.specimens and name in classes:
            return Specimen(name, name, MACHINE, self, MachinePhysics(), classes[name])
        label, _, number = name.rpartition("-s")
        if not self.specimens or label not in classes or not number.isdecimal() or not int(number):
            raise InputError(f"unknown class '{name}'{suggest(name, self._bearings())}")
        return make_specimen(self, label, int(number))

    def _bearings(self) -> list[str]:
        numbers = range(1, self.specimens + 1)
        return [f"{label}-s{number:02d}" for label in self.classes() for number in numbers] or list(self.classes())

    def recording(self, condition: str, bearing: str, measurement: int = 1) -> Recording:
        """One recording; it depends on the settings and these three names, never on what else is generated."""
        return self._recording(find_domain(condition, self.conditions), self.specimen(bearing), measurement)

    def _recording(self, condition: str, specimen: Specimen, measurement: int) -> Recording:
        origin = f"simulated/{condition}/{specimen.name}/{measurement}"
        own, physics = specimen.settings, specimen.physics
        samples = simulate(own, CONDITIONS[condition], specimen.defects, origin, physics).astype(np.float32)
        return Recording(
            signal=samples, rate=float(self.rate), label=specimen.label, domain=self._domain(condition, specimen.name),
            origin=origin, machine=specimen.machine, specimen=f"{MACHINE} {specimen.name}", channel="acceleration",
            rpm=CONDITIONS[condition].speed, bearing=self.bearing,
        )  # fmt: skip

    def _domain(self, condition: str, bearing: str) -> str:
        """The condition, or the group of the bearing's number."""
        return f"group {(int(bearing.rpartition('-s')[2]) - 1) % self.groups + 1}" if self.groups else condition

    def catalogue(self) -> Catalogue:
        specimens = [self.specimen(name) for name in self._bearings()]
        every = product(self.conditions, specimens, range(1, self.measurements + 1))
        note = "simulated: for demos and tests, no evidence about real machines"
        domains = tuple(f"group {number + 1}" for number in range(self.groups)) or self.conditions
        entries = tuple(self._entry(*names) for names in every)
        return Catalogue(domains, tuple(self.classes()), entries, notes=(note,))

    def _entry(self, condition: str, specimen: Specimen, measurement: int) -> Entry:
        origin, label = f"simulated/{condition}/{specimen.name}/{measurement}", specimen.label
        domain = self._domain(condition, specimen.name)
        # What else is generated is left out of the identity: it does not change these samples.
        fault = () if label == HEALTHY else (label,) if self.specimens else (label.rpartition("-")[0],)
        own = replace(specimen.settings, measurements=1, conditions=(condition,), faults=fault, machines=0)
        described = (RESULT_VERSION, own, specimen.physics, specimen.defects, specimen.machine, self.bearing)
        identity = f"{described!r}, {CONDITIONS[condition]!r}, {domain}, {origin}"
        return Entry(domain, label, origin, None, identity, partial(self._recording, condition, specimen, measurement))


def simulate(
    settings: Simulated,
    condition: Condition,
    defects: tuple[Defect, ...],
    origin: str,
    physics: MachinePhysics | None = None,
) -> Doubles:
    """The acceleration at the sensor, (time,): defects and roughness through the structure, then tones and noise."""
    physics = MachinePhysics() if physics is None else physics
    stream = partial(signals.random_stream, settings.seed, origin)
    near, far = outer_path(physics, settings.rate, condition.force), inner_path(physics, settings.rate, condition.force)
    lead = near.size  # simulated and thrown away, so that the recording does not begin at rest
    total = lead + settings.samples
    turns = shaft_turns(settings, condition, total, stream("speed"))
    growth = condition.speed / REFERENCE.speed  # of background and roughness
    growth *= float((condition.force / REFERENCE.force) ** NOISE_FORCE_EXPONENT)
    rough = physics.roughness * growth * stream("roughness").standard_normal(total)  # many small asperities
    if settings.swell:
        passing = settings.balls * settings.cage * turns + stream("swell").uniform()
        rough *= 1 + settings.swell * np.cos(2 * np.pi * passing)
    signal = scipy.signal.fftconvolve(rough, near)[:total]
    for defect in defects:
        forces = strikes(settings, physics, condition, defect, turns, stream(defect.part))
        for force, path in zip(forces, (near, far), strict=True):
            if force.any():
                signal += scipy.signal.fftconvolve(force, path)[:total]
    signal += tones(settings, physics, condition, turns, stream("tones"))
    noise = signals.coloured_noise(total, settings.rate, physics.noise_colour, physics.noise_corner, stream("noise"))
    signal += settings.noise * growth * noise
    signal *= np.exp(GAIN_SPREAD * stream("mounting").standard_normal())
    signal += physics.sensor_noise * stream("sensor").standard_normal(total)
    return signal[lead:]


def shaft_turns(settings: Simulated, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
    """The shaft's angle in turns at each sample, (time,): its speed wanders as an Ornstein-Uhlenbeck process."""
    offset = SPEED_SPREAD * generator.standard_normal()
    kept = math.exp(-2 * math.pi * SPEED_BANDWIDTH / settings.rate)
    steps = generator.standard_normal(samples)
    steps[1:] *= math.sqrt(1 - kept**2)
    wander = settings.speed_fluctuation * scipy.signal.lfilter([1.0], [1.0, -kept], steps)
    return np.cumsum(condition.shaft * np.maximum(1 + offset + wander, 0.1)) / settings.rate


def zone_extent(settings: Simulated, physics: MachinePhysics, force: float) -> float:
    """Stribeck's ε, the share of the diameter under load: half without clearance, and less the lighter the force."""
    greatest = 5 * force / settings.balls  # on one ball, which yields by Hertz's law (Harris, Rolling Bearing Analysis)
    deflection = (greatest / CONTACT_CONSTANT) ** (2 / 3)
    return float(0.5 * deflection / (deflection + physics.clearance / 2))


def strikes(
    settings: Simulated,
    physics: MachinePhysics,
    condition: Condition,
    defect: Defect,
    turns: Doubles,
    generator: np.random.Generator,
) -> tuple[Doubles, Doubles]:
    """Force of the strikes on a defect, (time,): those that start at the outer race and those at the inner one.

    An outer defect stays in the load zone, an inner one turns with the shaft, a ball with the cage, twice per spin.
    """
    orders, rolled_length, cage = settings.bearing.orders(), settings.bearing.rolled_length(), settings.cage
    order, carrier = {
        "outer": (settings.balls * cage, 0.0),
        "inner": (settings.balls * (1 - cage), 1.0),
        "ball": (2 * orders["BSF"] * (1 - settings.slip), cage),
    }[defect.part]
    start = physics.outer_position / 360 if defect.part == "outer" else generator.uniform()
    start += defect.lag / settings.balls
    entries = signals.passages(order, turns[-1], settings.slip_jitter, generator) + defect.lag / order
    entries = entries[entries < turns[-1]]
    exits = entries + defect.length / rolled_length
    share = signals.load_zone(2 * np.pi * (start + carrier * entries), zone_extent(settings, physics, condition.force))
    strength = np.maximum(share, UNLOADED) ** LOAD_EXPONENT
    # The momentum of an exit at the most loaded ball, by length (mm), speed and force.
    strength *= float(
        physics.impact
        * defect.length  # the ball turns by about length / diameter at the edge: so does its velocity
        * (condition.speed / REFERENCE.speed)  # momentum is proportional to the rolling speed
        * (condition.force / REFERENCE.force) ** LOAD_EXPONENT
    )
    strength *= np.maximum(1 + physics.impact_spread * generator.standard_normal(strength.size), 0.0)

    crossing = defect.length / (rolled_length * condition.shaft) * settings.rate  # samples
    at_inner = np.full(entries.size, defect.part == "inner")
    if defect.part == "ball":
        at_inner[1::2] = True
    sides = (~at_inner, at_inner)
    forces = [_train(physics, turns, entries[side], exits[side], strength[side], crossing) for side in sides]
    return forces[0], forces[1]


def _train(
    physics: MachinePhysics, turns: Doubles, entries: Doubles, exits: Doubles, strength: Doubles, crossing: float
) -> Doubles:
    """Sharp exits less soft entries, both at angles in turns, as a force over time (time,)."""
    clock = np.arange(turns.size, dtype=np.float64)
    inside = exits < turns[-1]
    force = signals.place(np.interp(exits[inside], turns, clock), strength[inside], turns.size)
    soft = signals.place(np.interp(entries, turns, clock), strength, turns.size)
    width = max(3, round(physics.entry_width * crossing) | 1)  # odd, so that the bump has a middle sample
    bump = np.hanning(width + 2)[1:-1]
    return force - physics.entry * scipy.signal.fftconvolve(soft, bump / bump.sum(), mode="same")


def contact_frequency(physics: MachinePhysics, force: float) -> float:
    """Of the contact's mode, in Hz, which is stiffer under force."""
    return float(physics.contact_resonance * (force / REFERENCE.force) ** CONTACT_EXPONENT)


def modes(physics: MachinePhysics, force: float) -> Doubles:
    """Frequency in Hz, damping and gain of each mode, (mode, 3); the last is the contact's, stiffer under force."""
    contact = contact_frequency(physics, force)
    rows = list(zip(physics.resonances, physics.dampings, physics.resonance_gains, strict=True))
    return np.array([*rows, (contact, physics.contact_damping, physics.contact_gain)])


def outer_path(physics: MachinePhysics, rate: float, force: float) -> Doubles:
    """What the sensor hears of a unit strike at the outer race, (time,)."""
    return signals.ringing(modes(physics, force), rate)


def inner_path(physics: MachinePhysics, rate: float, force: float) -> Doubles:
    """The same for the inner race, whose strikes drive the modes in other proportions and arrive weaker and duller."""
    table = modes(physics, force)
    table[:-1, 2] *= physics.inner_participation
    kept = math.exp(-2 * math.pi * physics.inner_cutoff / rate)
    gain = physics.inner_gain * (1 - kept)
    return np.asarray(scipy.signal.lfilter([gain], [1.0, -kept], signals.ringing(table, rate)))


def lines(physics: MachinePhysics, condition: Condition) -> list[tuple[float, float]]:
    """Order (per turn) and amplitude (m/s²) of every tone at a condition; docs/simulator.md says why."""
    squared = (condition.speed / REFERENCE.speed) ** 2
    torque = IDLE + (1 - IDLE) * condition.torque / REFERENCE.torque
    driven = torque * condition.speed / REFERENCE.speed  # motor and gear
    table = [(1.0, physics.unbalance * squared)]
    table += [(float(order), size * torque * squared) for order, size in enumerate(physics.misalignment, start=1)]
    motor = zip(MOTOR_ORDERS, physics.motor_amplitudes, strict=True)
    table += [(order, size * driven) for order, size in motor]
    for multiple, size in enumerate(physics.gear_amplitudes, start=1):
        mesh = float(physics.gear_teeth * multiple)
        side = physics.gear_sideband * size
        table += [(mesh - 1, side * driven), (mesh, size * driven), (mesh + 1, side * driven)]
    return table


def tones(
    settings: Simulated, physics: MachinePhysics, condition: Condition, turns: Doubles, generator: np.random.Generator
) -> Doubles:
    """The sum of all tones, (time,), locked to the shaft's angle; those near or above half the rate are left out."""
    total = np.zeros(turns.size)
    for order, amplitude in lines(physics, condition):
        phase = generator.uniform(0, 2 * np.pi)
        if order * condition.shaft < 0.475 * settings.rate:
            total += amplitude * np.cos(2 * np.pi * order * turns + phase)
    return total
