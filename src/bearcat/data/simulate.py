"""Simulated bearings: a physical model of a 6203 under four operating conditions.

It is for demos and tests. It is no evidence about real machines: what works here may fail on the first real bearing.

The model is the usual one of the literature. Balls that cross a defect strike the structure at a rate fixed by
geometry and speed, with a slip that accumulates (Antoni and Randall, J. Vib. Acoust. 125, 2003); the strikes are
weighted by the load zone the defect is in (McFadden and Smith, J. Sound Vib. 96, 1984); each has a soft entry and a
sharp exit (Sawalhi and Randall, Mech. Syst. Signal Process. 25, 2011); and what the sensor hears is the ringing of a
few damped modes, over shaft harmonics, motor and gear tones and coloured noise. Samples are accelerations in m/s².
docs/simulator.md has the formulas.

>>> recording = Simulated(seconds=2.0).recording("N15_M07_F10", "outer-3")
>>> fault_frequencies(Bearing(), 1500)["BPFO"]
76.31578947368422
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy import signal as processing

from bearcat.data.catalogue import About, Catalogue, Download, Entry, domain_named
from bearcat.data.recording import Recording
from bearcat.errors import InputError, suggest

Doubles = NDArray[np.float64]

RESULT_VERSION = 1  # raise it whenever the same settings give other samples; it is part of every entry's identity


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

HEALTHY = "healthy"
FAULTS = {"inner": ("inner",), "outer": ("outer",), "both": ("inner", "outer"), "ball": ("ball",)}

# Settings by what they may be; checked in this order.
COUNTS = ("measurements", "balls")
POSITIVE = (
    *("rate", "seconds", "severities", "ball_diameter", "pitch_diameter", "contact_constant", "entry_width"),
    *("resonances", "contact_resonance", "inner_cutoff", "motor_orders", "gear_teeth", "noise_corner"),
    *("speed_bandwidth",),
)
NOT_NEGATIVE = (
    *("seed", "clearance", "impact", "entry", "resonance_gains", "contact_gain", "inner_participation", "inner_gain"),
    *(
        "unbalance",
        "misalignment",
        "motor_amplitudes",
        "gear_amplitudes",
        "gear_sideband",
        "noise",
        "roughness",
        "sensor_noise",
    ),
    *("quantum", "gain_spread"),
)
FINITE = (
    *("contact_angle", "outer_position", "size_exponent", "speed_exponent", "load_exponent", "contact_exponent"),
    *("tone_exponent",),
    *("noise_colour", "noise_speed_exponent", "noise_force_exponent"),
)
BETWEEN = {  # lowest and highest, both allowed
    "slip": (0.0, 0.2),
    "slip_jitter": (0.0, 0.2),
    "speed_fluctuation": (0.0, 0.1),
    "speed_spread": (0.0, 0.1),
    "impact_spread": (0.0, 0.5),
    "unloaded": (0.0, 1.0),
    "idle": (0.0, 1.0),
    "dampings": (1e-4, 0.9),
    "contact_damping": (1e-4, 0.9),
}
SAME_LENGTH = (
    ("resonances", "dampings"),
    ("resonances", "resonance_gains"),
    ("resonances", "inner_participation"),
    ("motor_orders", "motor_amplitudes"),
)


@dataclass(frozen=True)
class Simulated:
    """The simulated dataset; each field is one parameter of the model, with its unit.

    Values marked "chosen" come from no machine and are only of a plausible size.
    """

    # What is generated.
    seed: int = 0
    rate: float = 16000.0  # Hz; a quarter of the Paderborn rate, wide enough for the modes below
    seconds: float = 4.0  # s, as the Paderborn recordings
    measurements: int = 1  # recordings per class and condition
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    faults: tuple[str, ...] = ("inner", "outer", "both")  # also "ball"; "both" is an inner and an outer defect
    severities: tuple[float, ...] = (0.5, 1.5, 4.0)  # mm, length of the defect in rolling direction; chosen

    # The bearing: see Bearing.
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

    about: ClassVar[About] = About(
        title="Simulated 6203 bearings (for demos and tests; no evidence about real machines)",
        licence="MIT",
        licence_address="https://opensource.org/license/mit",
        reference="Model after Antoni and Randall, J. Vib. Acoust. 125 (2003), and McFadden and Smith, J. Sound Vib. 96"
        " (1984); conditions after Lessmeier et al., PHM Europe (2016)",
        homepage="docs/simulator.md",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def bearing(self) -> Bearing:
        return Bearing(self.balls, self.ball_diameter, self.pitch_diameter, self.contact_angle)

    @property
    def samples(self) -> int:
        return round(self.rate * self.seconds)

    def classes(self) -> dict[str, tuple[Defect, ...]]:
        """Each label in order, and the defects it stands for."""
        table: dict[str, tuple[Defect, ...]] = {HEALTHY: ()}
        for fault in self.faults:
            for number, length in enumerate(self.severities, start=1):
                table[f"{fault}-{number}"] = tuple(Defect(race, length) for race in FAULTS[fault])
        return table

    def recording(self, condition: str, label: str, measurement: int = 1) -> Recording:
        """One recording; it depends on the settings and these three names, never on what else is generated."""
        classes = self.classes()
        if label not in classes:
            raise InputError(f"unknown class '{label}'{suggest(label, classes)}")
        condition = domain_named(condition, self.conditions)
        origin = f"simulated/{condition}/{label}/{measurement}"
        samples = simulate(self, CONDITIONS[condition], classes[label], Streams(self.seed, origin))
        return Recording(
            domain=condition,
            label=label,
            rate=float(self.rate),
            channel="acceleration",
            origin=origin,
            signal=samples.astype(np.float32),
        )

    def downloads(self) -> tuple[Download, ...]:
        return ()

    def catalogue(self) -> Catalogue:
        classes = tuple(self.classes())
        entries = tuple(
            self._entry(condition, label, measurement)
            for condition in self.conditions
            for label in classes
            for measurement in range(1, self.measurements + 1)
        )
        note = "simulated: for demos and tests, no evidence about real machines"
        return Catalogue(self.conditions, classes, entries, notes=(note,))

    def _entry(self, condition: str, label: str, measurement: int) -> Entry:
        origin = f"simulated/{condition}/{label}/{measurement}"
        # What else is generated is left out of the identity: it does not change these samples.
        fault = () if label == HEALTHY else (label.rpartition("-")[0],)
        settings = replace(self, measurements=1, conditions=(condition,), faults=fault)
        return Entry(
            domain=condition,
            label=label,
            origin=origin,
            file=None,
            identity=f"version {RESULT_VERSION}, {settings!r}, {CONDITIONS[condition]!r}, {origin}",
            read=partial(self.recording, condition, label, measurement),
        )


@dataclass(frozen=True)
class Defect:
    """One spall: on which part, and its length in mm in the rolling direction."""

    part: str  # "inner", "outer" or "ball"
    length: float


@dataclass(frozen=True)
class Streams:
    """Independent generators for the parts of one recording, each named: more noise draws move no strike."""

    seed: int
    origin: str

    def generator(self, part: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.origin}/{part}".encode()).digest()
        return np.random.default_rng(np.random.SeedSequence([self.seed, int.from_bytes(digest[:16])]))


def simulate(settings: Simulated, condition: Condition, defects: tuple[Defect, ...], streams: Streams) -> Doubles:
    """The acceleration at the sensor, (time,): defects and roughness through the structure, then tones and noise."""
    near = outer_path(settings, condition.force)
    far = inner_path(settings, condition.force)
    lead = near.size  # simulated and thrown away, so that the recording begins in the middle of things
    total = lead + settings.samples
    turns = shaft_turns(settings, condition, total, streams.generator("speed"))

    rough = roughness(settings, condition, total, streams.generator("roughness"))
    signal = processing.fftconvolve(rough, near)[:total]
    for defect in defects:
        forces = strikes(settings, condition, defect, turns, streams.generator(defect.part))
        for force, path in zip(forces, (near, far), strict=True):
            if force.any():
                signal += processing.fftconvolve(force, path)[:total]
    signal += tones(settings, condition, turns, streams.generator("tones"))
    signal += background(settings, condition, total, streams.generator("noise"))
    signal *= np.exp(settings.gain_spread * streams.generator("mounting").standard_normal())
    signal += settings.sensor_noise * streams.generator("sensor").standard_normal(total)
    if settings.quantum > 0:
        signal = np.round(signal / settings.quantum) * settings.quantum
    return signal[lead:]


# Motion.


def shaft_turns(settings: Simulated, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
    """The shaft's angle in turns at each sample, (time,): a constant speed, a little off, and wandering slowly.

    The wander is an Ornstein-Uhlenbeck process, begun in its stationary state.
    """
    offset = settings.speed_spread * generator.standard_normal()
    kept = math.exp(-2 * math.pi * settings.speed_bandwidth / settings.rate)
    steps = generator.standard_normal(samples)
    steps[1:] *= math.sqrt(1 - kept**2)
    wander = settings.speed_fluctuation * processing.lfilter([1.0], [1.0, -kept], steps)
    return np.cumsum(condition.shaft * np.maximum(1 + offset + wander, 0.1)) / settings.rate


def passages(order: float, turns: float, jitter: float, generator: np.random.Generator) -> Doubles:
    """Shaft angles in turns, (event,), at which balls reach a defect, `order` of them per turn, up to `turns`.

    Spacings, not positions, are random: slip accumulates, so the train forgets its phase and high harmonics smear.
    """
    expected = order * turns
    count = math.ceil(expected + 6 * jitter * math.sqrt(expected)) + 10
    phase = generator.uniform()
    spacings = np.maximum(1 + jitter * generator.standard_normal(count), 0.1)
    angles = (phase + np.concatenate([[0.0], np.cumsum(spacings)])) / order
    return angles[angles < turns]


# Strikes.


def zone_extent(settings: Simulated, force: float) -> float:
    """Stribeck's ε, the share of the diameter under load: half without clearance, and less the lighter the force.

    The most loaded ball carries about 5 F / balls and yields by Hertz's law (Harris, Rolling Bearing Analysis).
    """
    greatest = 5 * force / settings.balls
    deflection = (greatest / settings.contact_constant) ** (2 / 3)
    return float(0.5 * deflection / (deflection + settings.clearance / 2))


def load_zone(angle: Doubles, extent: float) -> Doubles:
    """Stribeck's distribution: load at an angle (radians) from the force, over the greatest load."""
    inside = 1 - (1 - np.cos(angle)) / (2 * extent)
    return np.maximum(inside, 0.0) ** 1.5


def strikes(
    settings: Simulated, condition: Condition, defect: Defect, turns: Doubles, generator: np.random.Generator
) -> tuple[Doubles, Doubles]:
    """Force of the strikes on a defect, (time,): those that start at the outer race and those at the inner one.

    An outer defect stays in the load zone, an inner one turns through it with the shaft, a ball with the cage. A
    defect on a ball meets the two races in turn, twice per spin. Entry and exit are one crossing time apart.
    """
    bearing = settings.bearing
    cage = bearing.cage(1.0) * (1 - settings.slip)  # turns per turn of the shaft
    order, carrier = {
        "outer": (bearing.balls * cage, 0.0),
        "inner": (bearing.balls * (1 - cage), 1.0),
        "ball": (2 * bearing.spin(1.0) * (1 - settings.slip), cage),
    }[defect.part]
    start = settings.outer_position / 360 if defect.part == "outer" else generator.uniform()
    entries = passages(order, turns[-1], settings.slip_jitter, generator)
    exits = entries + defect.length / bearing.rolling(1.0)
    share = load_zone(2 * np.pi * (start + carrier * entries), zone_extent(settings, condition.force))
    strength = np.maximum(share, settings.unloaded) ** settings.load_exponent
    strength *= strike_strength(settings, condition, defect.length)
    strength *= np.maximum(1 + settings.impact_spread * generator.standard_normal(strength.size), 0.0)

    crossing = defect.length / bearing.rolling(condition.shaft) * settings.rate  # samples
    at_inner = np.full(entries.size, defect.part == "inner")
    if defect.part == "ball":
        at_inner[1::2] = True
    outer, inner = (
        _train(settings, turns, entries[chosen], exits[chosen], strength[chosen], crossing)
        for chosen in (~at_inner, at_inner)
    )
    return outer, inner


def strike_strength(settings: Simulated, condition: Condition, length: float) -> float:
    """Momentum of an exit at the most loaded ball, by the power laws in length (mm), speed and force."""
    return float(
        settings.impact
        * length**settings.size_exponent
        * (condition.speed / REFERENCE.speed) ** settings.speed_exponent
        * (condition.force / REFERENCE.force) ** settings.load_exponent
    )


def _train(
    settings: Simulated, turns: Doubles, entries: Doubles, exits: Doubles, strength: Doubles, crossing: float
) -> Doubles:
    """Sharp exits less soft entries, both at angles in turns, as a force over time (time,)."""
    clock = np.arange(turns.size, dtype=np.float64)
    inside = exits < turns[-1]
    force = place(np.interp(exits[inside], turns, clock), strength[inside], turns.size)
    soft = place(np.interp(entries, turns, clock), strength, turns.size)
    width = max(3, round(settings.entry_width * crossing) | 1)  # odd, so that the bump has a middle sample
    bump = np.hanning(width + 2)[1:-1]
    return force - settings.entry * processing.fftconvolve(soft, bump / bump.sum(), mode="same")


def place(positions: Doubles, strengths: Doubles, samples: int, reach: int = 8) -> Doubles:
    """Impulses at fractional sample positions, (event,) → (time,), as Hann-windowed sincs of ±`reach` samples.

    Rounding to whole samples would add a jitter of its own and make the timbre depend on the sampling grid.
    """
    first = np.floor(positions).astype(np.int64)
    taps = np.arange(1 - reach, reach + 1)
    distance = taps - (positions - first)[:, None]
    kernels = np.sinc(distance) * np.cos(np.pi * distance / (2 * reach)) ** 2
    padded = np.zeros(samples + 2 * reach)
    np.add.at(padded, first[:, None] + taps + reach, strengths[:, None] * kernels)
    return padded[reach : reach + samples]


# Structure and transfer path.


def modes(settings: Simulated, force: float) -> Doubles:
    """Frequency in Hz, damping and gain of each mode, (mode, 3); the last is the contact's, stiffer under force."""
    contact = settings.contact_resonance * (force / REFERENCE.force) ** settings.contact_exponent
    rows = list(zip(settings.resonances, settings.dampings, settings.resonance_gains, strict=True))
    return np.array([*rows, (contact, settings.contact_damping, settings.contact_gain)])


def ringing(table: Doubles, rate: float) -> Doubles:
    """Acceleration after a unit strike, (mode, 3) → (time,): damped modes, until the slowest is down by 60 dB."""
    frequency, damping, gain = table.T[:, :, None]
    decay = 2 * np.pi * frequency * damping
    seconds = min(np.log(1000) / decay.min(), 1.0)
    time = np.arange(max(2, math.ceil(seconds * rate))) / rate
    waves = np.sin(2 * np.pi * frequency * np.sqrt(1 - damping**2) * time)
    response: Doubles = np.sum(gain * np.exp(-decay * time) * waves, axis=0)
    return response


def outer_path(settings: Simulated, force: float) -> Doubles:
    """What the sensor hears of a unit strike at the outer race, (time,)."""
    return ringing(modes(settings, force), settings.rate)


def inner_path(settings: Simulated, force: float) -> Doubles:
    """The same for the inner race: a strike on the shaft's side drives the modes in other proportions, and crosses
    balls and oil film on its way, hence weaker and duller."""
    table = modes(settings, force)
    table[:-1, 2] *= settings.inner_participation
    kept = math.exp(-2 * math.pi * settings.inner_cutoff / settings.rate)
    dulled: Doubles = processing.lfilter(
        [settings.inner_gain * (1 - kept)], [1.0, -kept], ringing(table, settings.rate)
    )
    return dulled


# Tones.


def lines(settings: Simulated, condition: Condition) -> list[tuple[float, float]]:
    """Order (per turn) and amplitude (m/s²) of every tone at a condition.

    Unbalance is a force of mass × radius × speed². Misalignment bends the shaft in proportion to the torque, and
    acceleration is displacement × speed². Magnetic and tooth forces grow with the torque, and what a force does as
    an acceleration depends on whether stiffness or mass resists it.
    """
    squared = (condition.speed / REFERENCE.speed) ** 2
    torque = settings.idle + (1 - settings.idle) * condition.torque / REFERENCE.torque
    driven = torque * (condition.speed / REFERENCE.speed) ** settings.tone_exponent
    table = [(1.0, settings.unbalance * squared)]
    table += [(float(order), size * torque * squared) for order, size in enumerate(settings.misalignment, start=1)]
    table += [
        (order, size * driven) for order, size in zip(settings.motor_orders, settings.motor_amplitudes, strict=True)
    ]
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


# Noise.


def noise_growth(settings: Simulated, condition: Condition) -> float:
    """How loud background and roughness are at a condition, over the reference."""
    return float(
        (condition.speed / REFERENCE.speed) ** settings.noise_speed_exponent
        * (condition.force / REFERENCE.force) ** settings.noise_force_exponent
    )


def roughness(settings: Simulated, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
    """A white force on the modes, (time,): many small asperities instead of one defect."""
    return settings.roughness * noise_growth(settings, condition) * generator.standard_normal(samples)


def background(settings: Simulated, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
    """Coloured background noise, (time,), of the root mean square set for this condition."""
    unit = coloured_noise(samples, settings.rate, settings.noise_colour, settings.noise_corner, generator)
    return settings.noise * noise_growth(settings, condition) * unit


def coloured_noise(samples: int, rate: float, colour: float, corner: float, generator: np.random.Generator) -> Doubles:
    """Gaussian noise, power ~ frequency^-colour above `corner` and flat below, of unit expected variance, (time,)."""
    length = int(fft.next_fast_len(samples, real=True))
    frequencies = fft.rfftfreq(length, 1 / rate)
    shape = np.maximum(frequencies, corner) ** (-colour / 2)
    shape[0] = 0.0
    twice = np.full(shape.size, 2.0)  # a bin stands for itself and its mirror image, but the one at half the rate
    if length % 2 == 0:
        twice[-1] = 1.0
    shape *= np.sqrt(length / np.sum(twice * shape**2))
    noise: Doubles = fft.irfft(fft.rfft(generator.standard_normal(length)) * shape, n=length)
    return noise[:samples]


# Checking settings.


def check(settings: Simulated) -> None:
    """Refuse settings that cannot work, naming the field."""
    for name in (*COUNTS, *POSITIVE, *NOT_NEGATIVE, *FINITE, *BETWEEN):
        for value in _values(settings, name):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"{name}: every value must be a finite number, not {value!r}")
    for name in (*COUNTS, "seed", "gear_teeth"):
        (value,) = _values(settings, name)
        if not isinstance(value, int):
            raise InputError(f"{name}: must be a whole number, not {value!r}")
    for name in (*COUNTS, *POSITIVE):
        for value in _values(settings, name):
            if value <= 0:
                raise InputError(f"{name}: must be above zero, not {value!r}")
    for name in NOT_NEGATIVE:
        for value in _values(settings, name):
            if value < 0:
                raise InputError(f"{name}: must be zero or above, not {value!r}")
    for name, (lowest, highest) in BETWEEN.items():
        for value in _values(settings, name):
            if not lowest <= value <= highest:
                raise InputError(f"{name}: must lie between {lowest:g} and {highest:g}, not at {value!r}")
    for name, other in SAME_LENGTH:
        wanted, found = len(_values(settings, name)), len(_values(settings, other))
        if wanted != found:
            raise InputError(f"{other}: has {found} values where {name} has {wanted}; give one for each")
    _check_names("conditions", settings.conditions, tuple(CONDITIONS))
    _check_names("faults", settings.faults, tuple(FAULTS))
    if not settings.conditions:
        raise InputError(f"conditions: name at least one of {', '.join(CONDITIONS)}")
    if settings.faults and not settings.severities:
        raise InputError("severities: give at least one defect length in mm, or leave faults empty")
    if settings.samples < 2:
        raise InputError(
            f"seconds: {settings.seconds:g} s at {settings.rate:g} Hz is less than two samples; make it longer"
        )
    _check_geometry(settings)
    _check_band(settings)


def _values(settings: Simulated, name: str) -> tuple[float, ...]:
    value = getattr(settings, name)
    return value if isinstance(value, tuple) else (value,)


def _check_names(field: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{field}: unknown name '{name}'{suggest(name, known)}")
    if len(set(given)) < len(given):
        raise InputError(f"{field}: names one twice in {', '.join(given)}; name each once")


def _check_geometry(settings: Simulated) -> None:
    if settings.balls * settings.ball_diameter >= math.pi * settings.pitch_diameter:
        raise InputError(
            f"ball_diameter: {settings.balls} balls of {settings.ball_diameter:g} mm do not fit on a pitch diameter of"
            f" {settings.pitch_diameter:g} mm; use fewer or smaller ones"
        )
    if abs(settings.contact_angle) >= 90:
        raise InputError(f"contact_angle: must lie between -90 and 90 degrees, not at {settings.contact_angle:g}")
    spacing = math.pi * (settings.pitch_diameter - settings.ball_diameter) / settings.balls
    for length in settings.severities:
        if length >= spacing:
            raise InputError(
                f"severities: a defect of {length:g} mm is as long as the balls are apart ({spacing:.3g} mm);"
                " the model holds for shorter ones"
            )


def _check_band(settings: Simulated) -> None:
    half = settings.rate / 2
    for frequency in settings.resonances:
        if frequency >= half:
            raise InputError(
                f"resonances: {frequency:g} Hz is not below half the sampling rate, {half:g} Hz; lower it or raise rate"
            )
    for name in settings.conditions:
        frequency = modes(settings, CONDITIONS[name].force)[-1, 0]
        if frequency >= half:
            raise InputError(
                f"contact_resonance: {frequency:g} Hz in {name} is not below half the sampling rate, {half:g} Hz;"
                " lower it or raise rate"
            )
