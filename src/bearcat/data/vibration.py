"""What a sensor hears of a rolling bearing with spalls: a physical model of strikes, structure, tones and noise.

Balls that cross a defect strike the structure, whose damped modes ring, over tones of shaft, motor and gear and
coloured noise, in m/s². The model is after Antoni and Randall (2003), McFadden and Smith (1984), Sawalhi and Randall
(2011) and Harris, Rolling Bearing Analysis. Values marked "chosen" come from no machine and are of a plausible size.

>>> simulate(MachinePhysics(), CONDITIONS["N15_M07_F10"], (Defect("outer", 2.0),), 16000.0, 1.0, 0, "a").shape
(16000,)
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy  # its parts are loaded when they are first used, which takes a second
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing

Doubles = NDArray[np.float64]


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
REACH = 8  # samples to either side over which a strike between samples is spread


@dataclass(frozen=True)
class MachinePhysics:
    """What differs between machines and bearings. Amplitudes are in m/s² at the reference condition."""

    # The bearing: a 6203.
    balls: int = 8
    ball_diameter: float = 6.75  # mm
    pitch_diameter: float = 28.5  # mm
    contact_angle: float = 0.0  # degrees
    clearance: float = 0.008  # mm, diametral; the middle of the normal (CN) class for a 17 mm bore

    # Motion.
    speed_fluctuation: float = 0.002  # standard deviation of the speed over its mean; chosen: a controlled drive
    slip: float = 0.0  # share by which the cage lags on average; real ones 0.01 to 0.02, here lines are as computed
    slip_jitter: float = 0.01  # standard deviation of the spacing of strikes over its mean; usually 0.01 to 0.02

    # Strikes on a defect, and the rough races.
    impact: float = 3.0  # an exit over 1 mm at full load, before the modes' gains; chosen
    impact_spread: float = 0.1  # standard deviation of single strikes over their mean; chosen
    entry: float = 0.4  # momentum of the entry over that of the exit; weaker, as Sawalhi and Randall observed
    entry_width: float = 0.6  # duration of the entry over the time to cross the defect; chosen
    outer_position: float = 0.0  # degrees from the direction of the force; 0: where spalls usually start
    roughness: float = 0.03  # root mean square force of rough races on the modes: the hiss of a healthy bearing; chosen
    swell: float = 0.0  # share by which that hiss swells with each ball that passes the load

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
    noise: float = 0.1  # root mean square of the background; chosen
    noise_colour: float = 1.0  # power falls as frequency^-colour: 0 white, 1 pink, 2 brown
    noise_corner: float = 20.0  # Hz, below which the background is flat
    sensor_noise: float = 0.01  # root mean square, white, whatever the condition; chosen

    @property
    def bearing(self) -> Bearing:
        return Bearing(self.balls, self.ball_diameter, self.pitch_diameter, self.contact_angle)

    @property
    def cage(self) -> float:
        """Turns of the cage per turn of the shaft."""
        return self.bearing.orders()["FTF"] * (1 - self.slip)

    @property
    def spacing(self) -> float:
        """Millimetres between two balls on the inner race, which are more than a defect is long."""
        return math.pi * (self.pitch_diameter - self.ball_diameter) / self.balls


@dataclass(frozen=True)
class Defect:
    """One spall: on which part, its length in mm in the rolling direction, and by how many balls it lies further on."""

    part: str  # "inner", "outer" or "ball"
    length: float
    lag: float = 0.0  # of the distance between two balls, behind the first spall of the same part


def random_stream(seed: int, origin: str, part: str) -> np.random.Generator:
    """A generator for one part of one recording, independent of the others: more noise draws move no strike."""
    digest = hashlib.sha256(f"{origin}/{part}".encode()).digest()
    return np.random.default_rng(np.random.SeedSequence([seed, int.from_bytes(digest[:16])]))


def simulate(
    physics: MachinePhysics, condition: Condition, defects: tuple[Defect, ...], rate: float, seconds: float,
    seed: int, origin: str,
) -> Doubles:  # fmt: skip
    """The acceleration at the sensor, (time,): defects and roughness through the structure, then tones and noise."""
    stream = partial(random_stream, seed, origin)
    near, far = _paths(physics, rate, condition.force)
    lead = near.size  # simulated and thrown away, so that the recording does not begin at rest
    total = lead + round(rate * seconds)
    turns = _shaft_turns(physics, condition, rate, total, stream("speed"))
    growth = condition.speed / REFERENCE.speed  # of background and roughness
    growth *= float((condition.force / REFERENCE.force) ** NOISE_FORCE_EXPONENT)
    rough = physics.roughness * growth * stream("roughness").standard_normal(total)  # many small asperities
    if physics.swell:
        passing = physics.balls * physics.cage * turns + stream("swell").uniform()
        rough *= 1 + physics.swell * np.cos(2 * np.pi * passing)
    signal = scipy.signal.fftconvolve(rough, near)[:total]
    for defect in defects:
        forces = _strikes(physics, condition, defect, rate, turns, stream(defect.part))
        for force, path in zip(forces, (near, far), strict=True):
            if force.any():
                signal += scipy.signal.fftconvolve(force, path)[:total]
    signal += _tones(physics, condition, rate, turns, stream("tones"))
    noise = _coloured_noise(total, rate, physics.noise_colour, physics.noise_corner, stream("noise"))
    signal += physics.noise * growth * noise
    signal *= np.exp(GAIN_SPREAD * stream("mounting").standard_normal())
    signal += physics.sensor_noise * stream("sensor").standard_normal(total)
    return signal[lead:]


def _shaft_turns(
    physics: MachinePhysics, condition: Condition, rate: float, samples: int, generator: np.random.Generator
) -> Doubles:
    """The shaft's angle in turns at each sample, (time,): its speed wanders as an Ornstein-Uhlenbeck process."""
    offset = SPEED_SPREAD * generator.standard_normal()
    decay = math.exp(-2 * math.pi * SPEED_BANDWIDTH / rate)
    steps = generator.standard_normal(samples)
    steps[1:] *= math.sqrt(1 - decay**2)
    wander = physics.speed_fluctuation * scipy.signal.lfilter([1.0], [1.0, -decay], steps)
    return np.cumsum(condition.shaft * np.maximum(1 + offset + wander, 0.1)) / rate


def _strikes(
    physics: MachinePhysics, condition: Condition, defect: Defect, rate: float, turns: Doubles,
    generator: np.random.Generator,
) -> tuple[Doubles, Doubles]:  # fmt: skip
    """Force of the strikes on a defect, (time,): those that start at the outer race and those at the inner one.

    An outer defect stays in the load zone, an inner one turns with the shaft, a ball with the cage, twice per spin.
    """
    orders, rolled_length, cage = physics.bearing.orders(), physics.bearing.rolled_length(), physics.cage
    order, carrier = {
        "outer": (physics.balls * cage, 0.0),
        "inner": (physics.balls * (1 - cage), 1.0),
        "ball": (2 * orders["BSF"] * (1 - physics.slip), cage),
    }[defect.part]
    start = physics.outer_position / 360 if defect.part == "outer" else generator.uniform()
    start += defect.lag / physics.balls
    # Shaft angles at which balls reach the defect: spacings are random, so that slip accumulates.
    expected = order * turns[-1]
    count = math.ceil(expected + 6 * physics.slip_jitter * math.sqrt(expected)) + 10
    phase = generator.uniform()
    spacings = np.maximum(1 + physics.slip_jitter * generator.standard_normal(count), 0.1)
    entries = (phase + np.concatenate([[0.0], np.cumsum(spacings)])) / order + defect.lag / order
    entries = entries[entries < turns[-1]]
    exits = entries + defect.length / rolled_length
    share = _load_zone(2 * np.pi * (start + carrier * entries), physics, condition.force)
    strength = np.maximum(share, UNLOADED) ** LOAD_EXPONENT
    # The momentum of an exit at the most loaded ball, by length (mm), speed and force.
    strength *= float(
        physics.impact
        * defect.length  # the ball turns by about length / diameter at the edge: so does its velocity
        * (condition.speed / REFERENCE.speed)  # momentum is proportional to the rolling speed
        * (condition.force / REFERENCE.force) ** LOAD_EXPONENT
    )
    strength *= np.maximum(1 + physics.impact_spread * generator.standard_normal(strength.size), 0.0)

    crossing = defect.length / (rolled_length * condition.shaft) * rate  # samples
    at_inner = np.full(entries.size, defect.part == "inner")
    if defect.part == "ball":
        at_inner[1::2] = True
    sides = (~at_inner, at_inner)
    forces = [_train(physics, turns, entries[side], exits[side], strength[side], crossing) for side in sides]
    return forces[0], forces[1]


def _load_zone(angle: Doubles, physics: MachinePhysics, force: float) -> Doubles:
    """Stribeck's distribution: load at an angle (radians) from the force, over the greatest load.

    The share of the diameter under load is a half without clearance, and less the lighter the force.
    """
    greatest = 5 * force / physics.balls  # on one ball, which yields by Hertz's law (Harris, Rolling Bearing Analysis)
    deflection = (greatest / CONTACT_CONSTANT) ** (2 / 3)
    extent = float(0.5 * deflection / (deflection + physics.clearance / 2))
    inside = 1 - (1 - np.cos(angle)) / (2 * extent)
    return np.maximum(inside, 0.0) ** 1.5


def _train(
    physics: MachinePhysics, turns: Doubles, entries: Doubles, exits: Doubles, strength: Doubles, crossing: float
) -> Doubles:
    """Sharp exits less soft entries, both at angles in turns, as a force over time (time,)."""
    clock = np.arange(turns.size, dtype=np.float64)
    inside = exits < turns[-1]
    force = _place(np.interp(exits[inside], turns, clock), strength[inside], turns.size)
    soft = _place(np.interp(entries, turns, clock), strength, turns.size)
    width = max(3, round(physics.entry_width * crossing) | 1)  # odd, so that the bump has a middle sample
    bump = np.hanning(width + 2)[1:-1]
    return force - physics.entry * scipy.signal.fftconvolve(soft, bump / bump.sum(), mode="same")


def _place(positions: Doubles, strengths: Doubles, samples: int) -> Doubles:
    """Impulses at fractional sample positions, (event,) → (time,), as Hann-windowed sincs of ±REACH samples."""
    first = np.floor(positions).astype(np.int64)
    taps = np.arange(1 - REACH, REACH + 1)
    distance = taps - (positions - first)[:, None]
    kernels = np.sinc(distance) * np.cos(np.pi * distance / (2 * REACH)) ** 2
    padded = np.zeros(samples + 2 * REACH)
    np.add.at(padded, first[:, None] + taps + REACH, strengths[:, None] * kernels)
    return padded[REACH : REACH + samples]


def contact_frequency(physics: MachinePhysics, force: float) -> float:
    """Of the contact's mode, in Hz, which is stiffer under force."""
    return float(physics.contact_resonance * (force / REFERENCE.force) ** CONTACT_EXPONENT)


def _paths(physics: MachinePhysics, rate: float, force: float) -> tuple[Doubles, Doubles]:
    """What the sensor hears of a unit strike at the outer race, and of one at the inner race, (time,) each.

    Those at the inner race drive the modes in other proportions, and arrive weaker and duller.
    """
    modes = list(zip(physics.resonances, physics.dampings, physics.resonance_gains, strict=True))
    contact = contact_frequency(physics, force), physics.contact_damping, physics.contact_gain
    table = np.array([*modes, contact])
    outer = _ringing(table, rate)
    table[:-1, 2] *= physics.inner_participation
    decay = math.exp(-2 * math.pi * physics.inner_cutoff / rate)
    gain = physics.inner_gain * (1 - decay)
    return outer, np.asarray(scipy.signal.lfilter([gain], [1.0, -decay], _ringing(table, rate)))


def _ringing(table: Doubles, rate: float) -> Doubles:
    """Acceleration after a unit strike, (time,): modes with a frequency in Hz, damping and gain, (mode, 3), until the
    slowest is down by 60 dB.
    """
    frequency, damping, gain = table.T[:, :, None]
    decay = 2 * np.pi * frequency * damping
    seconds = min(np.log(1000) / decay.min(), 1.0)
    time = np.arange(max(2, math.ceil(seconds * rate))) / rate
    waves = np.sin(2 * np.pi * frequency * np.sqrt(1 - damping**2) * time)
    return np.asarray(np.sum(gain * np.exp(-decay * time) * waves, axis=0))


def _tones(
    physics: MachinePhysics, condition: Condition, rate: float, turns: Doubles, generator: np.random.Generator
) -> Doubles:
    """The sum of all tones, (time,), locked to the shaft's angle; those near or above half the rate are left out."""
    squared = (condition.speed / REFERENCE.speed) ** 2
    torque = IDLE + (1 - IDLE) * condition.torque / REFERENCE.torque
    driven = torque * condition.speed / REFERENCE.speed  # motor and gear
    lines = [(1.0, physics.unbalance * squared)]  # order (per turn) and amplitude (m/s²)
    lines += [(float(order), size * torque * squared) for order, size in enumerate(physics.misalignment, start=1)]
    motor = zip(MOTOR_ORDERS, physics.motor_amplitudes, strict=True)
    lines += [(order, size * driven) for order, size in motor]
    for multiple, size in enumerate(physics.gear_amplitudes, start=1):
        mesh, side = float(physics.gear_teeth * multiple), physics.gear_sideband * size
        lines += [(mesh - 1, side * driven), (mesh, size * driven), (mesh + 1, side * driven)]
    total = np.zeros(turns.size)
    for order, amplitude in lines:
        phase = generator.uniform(0, 2 * np.pi)
        if order * condition.shaft < 0.475 * rate:
            total += amplitude * np.cos(2 * np.pi * order * turns + phase)
    return total


def _coloured_noise(samples: int, rate: float, colour: float, corner: float, generator: np.random.Generator) -> Doubles:
    """Gaussian noise, power ~ frequency^-colour above `corner` and flat below, of unit expected variance, (time,)."""
    length = int(scipy.fft.next_fast_len(samples, real=True))
    frequencies = scipy.fft.rfftfreq(length, 1 / rate)
    shape = np.maximum(frequencies, corner) ** (-colour / 2)
    shape[0] = 0.0
    twice = np.full(shape.size, 2.0)  # a bin stands for itself and its mirror image, but the one at half the rate
    if length % 2 == 0:
        twice[-1] = 1.0
    shape *= np.sqrt(length / np.sum(twice * shape**2))
    noise: Doubles = scipy.fft.irfft(scipy.fft.rfft(generator.standard_normal(length)) * shape, n=length)
    return noise[:samples]
