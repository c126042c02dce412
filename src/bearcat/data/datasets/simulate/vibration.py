"""What the sensor hears: strikes on defects, ringing through the structure, tones and noise.

Functions of the settings, an operating condition and a generator; docs/simulator.md has their formulas.

>>> signal = simulate(Settings(), REFERENCE, (Defect("outer", 1.5),), Streams(seed=0, origin="one recording"))
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy import signal as processing

from bearcat.data.datasets.simulate.bearing import REFERENCE, Condition
from bearcat.data.datasets.simulate.settings import Settings

Doubles = NDArray[np.float64]


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


def simulate(settings: Settings, condition: Condition, defects: tuple[Defect, ...], streams: Streams) -> Doubles:
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


def shaft_turns(settings: Settings, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
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


def zone_extent(settings: Settings, force: float) -> float:
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
    settings: Settings, condition: Condition, defect: Defect, turns: Doubles, generator: np.random.Generator
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


def strike_strength(settings: Settings, condition: Condition, length: float) -> float:
    """Momentum of an exit at the most loaded ball, by the power laws in length (mm), speed and force."""
    return float(
        settings.impact
        * length**settings.size_exponent
        * (condition.speed / REFERENCE.speed) ** settings.speed_exponent
        * (condition.force / REFERENCE.force) ** settings.load_exponent
    )


def _train(
    settings: Settings, turns: Doubles, entries: Doubles, exits: Doubles, strength: Doubles, crossing: float
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


def modes(settings: Settings, force: float) -> Doubles:
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


def outer_path(settings: Settings, force: float) -> Doubles:
    """What the sensor hears of a unit strike at the outer race, (time,)."""
    return ringing(modes(settings, force), settings.rate)


def inner_path(settings: Settings, force: float) -> Doubles:
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


def lines(settings: Settings, condition: Condition) -> list[tuple[float, float]]:
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


def tones(settings: Settings, condition: Condition, turns: Doubles, generator: np.random.Generator) -> Doubles:
    """The sum of all tones, (time,), locked to the shaft's angle; those near or above half the rate are left out."""
    total = np.zeros(turns.size)
    for order, amplitude in lines(settings, condition):
        phase = generator.uniform(0, 2 * np.pi)
        if order * condition.shaft < 0.475 * settings.rate:
            total += amplitude * np.cos(2 * np.pi * order * turns + phase)
    return total


# Noise.


def noise_growth(settings: Settings, condition: Condition) -> float:
    """How loud background and roughness are at a condition, over the reference."""
    return float(
        (condition.speed / REFERENCE.speed) ** settings.noise_speed_exponent
        * (condition.force / REFERENCE.force) ** settings.noise_force_exponent
    )


def roughness(settings: Settings, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
    """A white force on the modes, (time,): many small asperities instead of one defect."""
    return settings.roughness * noise_growth(settings, condition) * generator.standard_normal(samples)


def background(settings: Settings, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
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
