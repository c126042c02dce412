"""Simulated bearings: a physical model of a 6203 under four operating conditions, for demos and tests.

It is no evidence about real machines. Balls that cross a defect strike the structure, whose damped modes ring, over
tones of shaft, motor and gear and coloured noise, in m/s². docs/simulator.md has the formulas and their sources.

>>> recording = Simulated(seconds=2.0).recording("N15_M07_F10", "outer-3")
>>> recording.bearing.frequencies(recording.rpm)["BPFO"]
76.31578947368422
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import ClassVar

import numpy as np
import scipy  # its parts are loaded when they are first used, which takes a second

from bearcat.data.bearing import Bearing
from bearcat.data.catalogue import About, Catalogue, Dataset, Entry, find_domain, later
from bearcat.data.datasets.simulate import signals
from bearcat.data.datasets.simulate.signals import Doubles
from bearcat.data.datasets.simulate.specimens import FAULTS, MACHINE, Defect, Specimen, make_specimen
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

LEAST, MOST = math.ulp(0.0), sys.float_info.max
# The lowest and the highest value of each number, alone or in a list. Numbers that are not named are zero or above.
LIMITS = (
    (LEAST, MOST, "measurements rate seconds severities balls ball_diameter pitch_diameter contact_constant"),
    (LEAST, MOST, "speed_bandwidth entry_width resonances contact_resonance inner_cutoff motor_orders gear_teeth"),
    (LEAST, MOST, "noise_corner"),
    (-MOST, MOST, "contact_angle outer_position size_exponent speed_exponent load_exponent contact_exponent"),
    (-MOST, MOST, "tone_exponent noise_colour noise_speed_exponent noise_force_exponent"),
    (0.0, 0.1, "speed_fluctuation speed_spread"),
    (0.0, 0.2, "slip slip_jitter"),
    (0.0, 0.5, "impact_spread"),
    (0.0, 1.0, "unloaded idle swell"),
    (1e-4, 0.9, "dampings contact_damping"),
)
BOUNDS = {name: (lowest, highest) for lowest, highest, names in LIMITS for name in names.split()}
NAMES = {"conditions": tuple(CONDITIONS), "faults": tuple(FAULTS)}
# Lists that have a value for each one of another list.
SAME_LENGTH = {
    "dampings": "resonances", "resonance_gains": "resonances", "inner_participation": "resonances",
    "motor_amplitudes": "motor_orders",
}  # fmt: skip


@dataclass(frozen=True)
class Simulated(Dataset):
    """The simulated dataset; values marked "chosen" come from no machine and are only of a plausible size.

    The fields in this order are in each entry's identity, so that moving one has everything computed anew.

    >>> Simulated(seconds=1.0).recording("N15_M07_F10", "inner-1").signal.shape
    (16000,)
    """

    # What is generated.
    seed: int = 0
    rate: float = 16000.0  # Hz; a quarter of the Paderborn rate, wide enough for the modes below
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
    clearance: float = 0.008  # mm, diametral; the middle of the normal (CN) class for a 17 mm bore
    contact_constant: float = 3.2e5  # N/mm^1.5, ball between both races; usual size for balls of 7 mm (Harris)

    # Motion.
    speed_fluctuation: float = 0.002  # standard deviation of the speed over its mean; chosen: a controlled drive
    speed_bandwidth: float = 1.0  # Hz, below which the speed wanders; chosen
    speed_spread: float = 0.001  # standard deviation of a recording's mean speed over the nominal one; chosen
    slip: float = 0.0  # share by which the cage lags on average; real ones 0.01 to 0.02, here lines are as computed
    slip_jitter: float = 0.01  # standard deviation of the spacing of strikes over its mean; usually 0.01 to 0.02

    # Strikes on the defect.
    impact: float = 3.0  # m/s², an exit over 1 mm at full load, before the modes' gains; chosen
    impact_spread: float = 0.1  # standard deviation of single strikes over their mean; chosen
    size_exponent: float = 1.0  # the ball turns by about length / diameter at the edge: so does its velocity
    speed_exponent: float = 1.0  # momentum is proportional to the rolling speed
    load_exponent: float = 0.5  # of the load at the contact; below 1, for the ball's own inertia does not grow; chosen
    entry: float = 0.4  # momentum of the entry over that of the exit; weaker, as Sawalhi and Randall observed
    entry_width: float = 0.6  # duration of the entry over the time to cross the defect; chosen
    outer_position: float = 0.0  # degrees from the direction of the force; 0: where spalls usually start
    unloaded: float = 0.15  # least load at a contact over the greatest: axial preload, centrifugal force; chosen

    # Structure and transfer path.
    resonances: tuple[float, ...] = (870.0, 2250.0, 3600.0)  # Hz, modes of ring, housing and plate; chosen
    dampings: tuple[float, ...] = (0.04, 0.03, 0.025)  # of critical; bolted steel has 0.01 to 0.05
    resonance_gains: tuple[float, ...] = (0.4, 0.9, 0.7)  # chosen
    contact_resonance: float = 5200.0  # Hz at 1000 N, the housing on its loaded contacts; chosen
    contact_exponent: float = 1 / 6  # of the force: Hertzian stiffness grows as force^(1/3), a frequency as its root
    contact_damping: float = 0.03  # of critical; chosen
    contact_gain: float = 0.7  # chosen
    inner_participation: tuple[float, ...] = (1.2, 0.6, 1.3)  # gain for inner-race strikes over outer ones; chosen
    inner_gain: float = 0.9  # inner-race strikes cross one more contact on their way; chosen
    inner_cutoff: float = 3500.0  # Hz, first-order low-pass on that way; chosen
    gain_spread: float = 0.05  # standard deviation of a recording's log gain: mounting of the sensor; chosen

    # Shaft, motor and gear; m/s² at the reference condition.
    unbalance: float = 0.08  # at once per turn, grows as speed²; chosen
    misalignment: tuple[float, ...] = (0.03, 0.06, 0.03)  # at 1, 2, 3… per turn, as torque and speed²; chosen
    motor_orders: tuple[float, ...] = (8.0, 24.0, 48.0)  # per turn: twice 4 pole pairs, 24 slots and twice that
    motor_amplitudes: tuple[float, ...] = (0.05, 0.06, 0.03)  # chosen
    gear_teeth: int = 31  # mesh order; chosen
    gear_amplitudes: tuple[float, ...] = (0.06, 0.03)  # at the mesh order and its multiples; chosen
    gear_sideband: float = 0.25  # of the mesh line, at one turn to either side: run-out; chosen
    tone_exponent: float = 1.0  # of speed, for motor and gear: 2 if stiffness resists the force, 0 if mass does; chosen
    idle: float = 0.2  # share of motor, gear and misalignment lines left without torque: cogging, preload; chosen

    # Noise; m/s² at the reference condition.
    noise: float = 0.1  # root mean square of the background; chosen
    noise_colour: float = 1.0  # power falls as frequency^-colour: 0 white, 1 pink, 2 brown
    noise_corner: float = 20.0  # Hz, below which the background is flat
    roughness: float = 0.03  # root mean square force of rough races on the modes: the hiss of a healthy bearing; chosen
    noise_speed_exponent: float = 1.0  # of speed, for background and roughness; chosen
    noise_force_exponent: float = 0.3  # of force, likewise; chosen
    sensor_noise: float = 0.01  # root mean square, white, whatever the condition; chosen
    quantum: float = 0.0  # m/s², step of the converter; 0: none

    # Bearings that differ (specimens.py). Not in the identity of recordings without specimens, hence not shown.
    specimens: int = later(0)  # bearings of each type, labelled by type; 0: one for each severity
    specimen_spread: float = later(1.0)  # how much they differ, over the usual spread
    machines: int = later(0)  # on which the specimens are mounted in turn; 0: each on its own
    swell: float = later(0.0)  # share by which the hiss of rough races swells with each ball
    groups: int = later(0)  # domains that take the specimens in turn; 0: a domain is a condition

    about: ClassVar[About] = About(
        title="Simulated 6203 bearings (for demos and tests; no evidence about real machines)", licence="MIT"
    )  # the model is after Antoni and Randall (2003) and McFadden and Smith (1984)

    def __post_init__(self) -> None:
        """Refuses settings that cannot work, naming the field."""
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            for element in value if isinstance(value, tuple) else (value,):
                if name not in NAMES:
                    _check_number(name, element, whole=isinstance(setting.default, int))
                elif element not in NAMES[name]:
                    raise InputError(f"{name}: unknown name '{element}'{suggest(str(element), NAMES[name])}")
                elif value.count(element) > 1:
                    raise InputError(f"{name}: '{element}' is there twice; name each once")
        for name, other in SAME_LENGTH.items():
            found, wanted = len(getattr(self, name)), len(getattr(self, other))
            if found != wanted:
                raise InputError(f"{name}: has {found} values where {other} has {wanted}; give one for each")
        longest, bearing = max(self.severities, default=0.0), self.bearing  # which refuses balls that do not fit
        spacing = math.pi * (bearing.pitch_diameter - bearing.ball_diameter) / bearing.balls
        highest = max(self.resonances, default=0.0)
        contact = max((self.contact_frequency(CONDITIONS[name].force) for name in self.conditions), default=0.0)
        refusals = {
            f"conditions: name at least one of {', '.join(CONDITIONS)}": not self.conditions,
            "severities: give at least one defect length in mm, or leave faults empty": self.faults and not longest,
            f"seconds: {self.seconds:g} s at {self.rate:g} Hz is less than two samples": self.samples < 2,
            f"severities: {longest:g} mm is not shorter than the balls are apart, {spacing:.3g} mm": longest >= spacing,
            f"resonances: {highest:g} Hz is not below half the rate; raise it": highest >= self.rate / 2,
            f"contact_resonance: {contact:g} Hz is not below half the rate; raise it": contact >= self.rate / 2,
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

    def contact_frequency(self, force: float) -> float:
        """Of the contact's mode, in Hz, which is stiffer under force."""
        return float(self.contact_resonance * (force / REFERENCE.force) ** self.contact_exponent)

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
            return Specimen(name, name, MACHINE, self, classes[name])
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
        samples = simulate(specimen.settings, CONDITIONS[condition], specimen.defects, origin).astype(np.float32)
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
        settings = replace(specimen.settings, measurements=1, conditions=(condition,), faults=fault, groups=0)
        identity = f"version {RESULT_VERSION}, {settings!r}, {CONDITIONS[condition]!r}, {origin}"
        if self.swell:
            identity += f", {self.swell}"
        if self.specimens:
            identity += f", {settings.swell}, {specimen.defects!r}, {specimen.machine}, {domain}, {self.bearing!r}"
        return Entry(domain, label, origin, None, identity, partial(self._recording, condition, specimen, measurement))


def _check_number(name: str, value: object, whole: bool) -> None:
    lowest, highest = BOUNDS.get(name, (0.0, MOST))
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise InputError(f"{name}: must be a {'whole ' if whole else ''}number, not {value!r}")
    if not lowest <= value <= highest:  # as NaN is not
        open_end = {LEAST: "above zero", 0.0: "zero or above"}.get(lowest, "finite")
        words = open_end if highest == MOST else f"between {lowest:g} and {highest:g}"
        raise InputError(f"{name}: must be {words}, not {value!r}")


def simulate(settings: Simulated, condition: Condition, defects: tuple[Defect, ...], origin: str) -> Doubles:
    """The acceleration at the sensor, (time,): defects and roughness through the structure, then tones and noise."""
    stream = partial(signals.random_stream, settings.seed, origin)
    near, far = outer_path(settings, condition.force), inner_path(settings, condition.force)
    lead = near.size  # simulated and thrown away, so that the recording does not begin at rest
    total = lead + settings.samples
    turns = shaft_turns(settings, condition, total, stream("speed"))
    growth = float((condition.speed / REFERENCE.speed) ** settings.noise_speed_exponent)  # of background and roughness
    growth *= float((condition.force / REFERENCE.force) ** settings.noise_force_exponent)
    rough = settings.roughness * growth * stream("roughness").standard_normal(total)  # many small asperities
    if settings.swell:
        passing = settings.balls * settings.cage * turns + stream("swell").uniform()
        rough *= 1 + settings.swell * np.cos(2 * np.pi * passing)
    signal = scipy.signal.fftconvolve(rough, near)[:total]
    for defect in defects:
        forces = strikes(settings, condition, defect, turns, stream(defect.part))
        for force, path in zip(forces, (near, far), strict=True):
            if force.any():
                signal += scipy.signal.fftconvolve(force, path)[:total]
    signal += tones(settings, condition, turns, stream("tones"))
    noise = signals.coloured_noise(total, settings.rate, settings.noise_colour, settings.noise_corner, stream("noise"))
    signal += settings.noise * growth * noise
    signal *= np.exp(settings.gain_spread * stream("mounting").standard_normal())
    signal += settings.sensor_noise * stream("sensor").standard_normal(total)
    if settings.quantum > 0:
        signal = np.round(signal / settings.quantum) * settings.quantum
    return signal[lead:]


def shaft_turns(settings: Simulated, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
    """The shaft's angle in turns at each sample, (time,): its speed wanders as an Ornstein-Uhlenbeck process."""
    offset = settings.speed_spread * generator.standard_normal()
    kept = math.exp(-2 * math.pi * settings.speed_bandwidth / settings.rate)
    steps = generator.standard_normal(samples)
    steps[1:] *= math.sqrt(1 - kept**2)
    wander = settings.speed_fluctuation * scipy.signal.lfilter([1.0], [1.0, -kept], steps)
    return np.cumsum(condition.shaft * np.maximum(1 + offset + wander, 0.1)) / settings.rate


def zone_extent(settings: Simulated, force: float) -> float:
    """Stribeck's ε, the share of the diameter under load: half without clearance, and less the lighter the force."""
    greatest = 5 * force / settings.balls  # on one ball, which yields by Hertz's law (Harris, Rolling Bearing Analysis)
    deflection = (greatest / settings.contact_constant) ** (2 / 3)
    return float(0.5 * deflection / (deflection + settings.clearance / 2))


def strikes(
    settings: Simulated, condition: Condition, defect: Defect, turns: Doubles, generator: np.random.Generator
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
    start = settings.outer_position / 360 if defect.part == "outer" else generator.uniform()
    start += defect.lag / settings.balls
    entries = signals.passages(order, turns[-1], settings.slip_jitter, generator) + defect.lag / order
    entries = entries[entries < turns[-1]]
    exits = entries + defect.length / rolled_length
    share = signals.load_zone(2 * np.pi * (start + carrier * entries), zone_extent(settings, condition.force))
    strength = np.maximum(share, settings.unloaded) ** settings.load_exponent
    # The momentum of an exit at the most loaded ball, by power laws in length (mm), speed and force.
    strength *= float(
        settings.impact
        * defect.length**settings.size_exponent
        * (condition.speed / REFERENCE.speed) ** settings.speed_exponent
        * (condition.force / REFERENCE.force) ** settings.load_exponent
    )
    strength *= np.maximum(1 + settings.impact_spread * generator.standard_normal(strength.size), 0.0)

    crossing = defect.length / (rolled_length * condition.shaft) * settings.rate  # samples
    at_inner = np.full(entries.size, defect.part == "inner")
    if defect.part == "ball":
        at_inner[1::2] = True
    sides = (~at_inner, at_inner)
    forces = [_train(settings, turns, entries[side], exits[side], strength[side], crossing) for side in sides]
    return forces[0], forces[1]


def _train(
    settings: Simulated, turns: Doubles, entries: Doubles, exits: Doubles, strength: Doubles, crossing: float
) -> Doubles:
    """Sharp exits less soft entries, both at angles in turns, as a force over time (time,)."""
    clock = np.arange(turns.size, dtype=np.float64)
    inside = exits < turns[-1]
    force = signals.place(np.interp(exits[inside], turns, clock), strength[inside], turns.size)
    soft = signals.place(np.interp(entries, turns, clock), strength, turns.size)
    width = max(3, round(settings.entry_width * crossing) | 1)  # odd, so that the bump has a middle sample
    bump = np.hanning(width + 2)[1:-1]
    return force - settings.entry * scipy.signal.fftconvolve(soft, bump / bump.sum(), mode="same")


def modes(settings: Simulated, force: float) -> Doubles:
    """Frequency in Hz, damping and gain of each mode, (mode, 3); the last is the contact's, stiffer under force."""
    contact = settings.contact_frequency(force)
    rows = list(zip(settings.resonances, settings.dampings, settings.resonance_gains, strict=True))
    return np.array([*rows, (contact, settings.contact_damping, settings.contact_gain)])


def outer_path(settings: Simulated, force: float) -> Doubles:
    """What the sensor hears of a unit strike at the outer race, (time,)."""
    return signals.ringing(modes(settings, force), settings.rate)


def inner_path(settings: Simulated, force: float) -> Doubles:
    """The same for the inner race, whose strikes drive the modes in other proportions and arrive weaker and duller."""
    table = modes(settings, force)
    table[:-1, 2] *= settings.inner_participation
    kept = math.exp(-2 * math.pi * settings.inner_cutoff / settings.rate)
    gain = settings.inner_gain * (1 - kept)
    return np.asarray(scipy.signal.lfilter([gain], [1.0, -kept], signals.ringing(table, settings.rate)))


def lines(settings: Simulated, condition: Condition) -> list[tuple[float, float]]:
    """Order (per turn) and amplitude (m/s²) of every tone at a condition; docs/simulator.md says why."""
    squared = (condition.speed / REFERENCE.speed) ** 2
    torque = settings.idle + (1 - settings.idle) * condition.torque / REFERENCE.torque
    driven = torque * (condition.speed / REFERENCE.speed) ** settings.tone_exponent
    table = [(1.0, settings.unbalance * squared)]
    table += [(float(order), size * torque * squared) for order, size in enumerate(settings.misalignment, start=1)]
    motor = zip(settings.motor_orders, settings.motor_amplitudes, strict=True)
    table += [(order, size * driven) for order, size in motor]
    for multiple, size in enumerate(settings.gear_amplitudes, start=1):
        mesh = float(settings.gear_teeth * multiple)
        side = settings.gear_sideband * size
        table += [(mesh - 1, side * driven), (mesh, size * driven), (mesh + 1, side * driven)]
    return table


def tones(settings: Simulated, condition: Condition, turns: Doubles, generator: np.random.Generator) -> Doubles:
    """The sum of all tones, (time,), locked to the shaft's angle; those near or above half the rate are left out."""
    total = np.zeros(turns.size)
    for order, amplitude in lines(settings, condition):
        phase = generator.uniform(0, 2 * np.pi)
        if order * condition.shaft < 0.475 * settings.rate:
            total += amplitude * np.cos(2 * np.pi * order * turns + phase)
    return total
