"""What the sensor hears: strikes on defects, ringing through the structure, tones and noise.

docs/simulator.md has the formulas.

>>> signal = simulate(Settings(), REFERENCE, (Defect("outer", 1.5),), "the name of the recording")
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy  # its parts are loaded when they are first used, which takes a second
from numpy.typing import NDArray

from bearcat.data.datasets.simulate.settings import REFERENCE, Condition, Settings

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Defect:
    """One spall: on which part, and its length in mm in the rolling direction."""

    part: str  # "inner", "outer" or "ball"
    length: float


def random_stream(seed: int, origin: str, part: str) -> np.random.Generator:
    """A generator for one part of one recording, independent of the others: more noise draws move no strike."""
    digest = hashlib.sha256(f"{origin}/{part}".encode()).digest()
    return np.random.default_rng(np.random.SeedSequence([seed, int.from_bytes(digest[:16])]))


def simulate(settings: Settings, condition: Condition, defects: tuple[Defect, ...], origin: str) -> Doubles:
    """The acceleration at the sensor, (time,): defects and roughness through the structure, then tones and noise."""
    stream = partial(random_stream, settings.seed, origin)
    near, far = outer_path(settings, condition.force), inner_path(settings, condition.force)
    lead = near.size  # simulated and thrown away, so that the recording does not begin at rest
    total = lead + settings.samples
    turns = shaft_turns(settings, condition, total, stream("speed"))
    growth = float(
        (condition.speed / REFERENCE.speed) ** settings.noise_speed_exponent
        * (condition.force / REFERENCE.force) ** settings.noise_force_exponent
    )  # of background and roughness, over the reference

    rough = settings.roughness * growth * stream("roughness").standard_normal(total)  # many small asperities
    signal = scipy.signal.fftconvolve(rough, near)[:total]
    for defect in defects:
        forces = strikes(settings, condition, defect, turns, stream(defect.part))
        for force, path in zip(forces, (near, far), strict=True):
            if force.any():
                signal += scipy.signal.fftconvolve(force, path)[:total]
    signal += tones(settings, condition, turns, stream("tones"))
    noise = coloured_noise(total, settings.rate, settings.noise_colour, settings.noise_corner, stream("noise"))
    signal += settings.noise * growth * noise
    signal *= np.exp(settings.gain_spread * stream("mounting").standard_normal())
    signal += settings.sensor_noise * stream("sensor").standard_normal(total)
    if settings.quantum > 0:
        signal = np.round(signal / settings.quantum) * settings.quantum
    return signal[lead:]


def shaft_turns(settings: Settings, condition: Condition, samples: int, generator: np.random.Generator) -> Doubles:
    """The shaft's angle in turns at each sample, (time,): its speed wanders as an Ornstein-Uhlenbeck process."""
    offset = settings.speed_spread * generator.standard_normal()
    kept = math.exp(-2 * math.pi * settings.speed_bandwidth / settings.rate)
    steps = generator.standard_normal(samples)
    steps[1:] *= math.sqrt(1 - kept**2)
    wander = settings.speed_fluctuation * scipy.signal.lfilter([1.0], [1.0, -kept], steps)
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


def zone_extent(settings: Settings, force: float) -> float:
    """Stribeck's ε, the share of the diameter under load: half without clearance, and less the lighter the force."""
    greatest = 5 * force / settings.balls  # on one ball, which yields by Hertz's law (Harris, Rolling Bearing Analysis)
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
    orders, rolled_length = settings.bearing.orders(), settings.bearing.rolled_length()
    cage = orders["FTF"] * (1 - settings.slip)  # turns per turn of the shaft
    order, carrier = {
        "outer": (settings.balls * cage, 0.0),
        "inner": (settings.balls * (1 - cage), 1.0),
        "ball": (2 * orders["BSF"] * (1 - settings.slip), cage),
    }[defect.part]
    start = settings.outer_position / 360 if defect.part == "outer" else generator.uniform()
    entries = passages(order, turns[-1], settings.slip_jitter, generator)
    exits = entries + defect.length / rolled_length
    share = load_zone(2 * np.pi * (start + carrier * entries), zone_extent(settings, condition.force))
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
    settings: Settings, turns: Doubles, entries: Doubles, exits: Doubles, strength: Doubles, crossing: float
) -> Doubles:
    """Sharp exits less soft entries, both at angles in turns, as a force over time (time,)."""
    clock = np.arange(turns.size, dtype=np.float64)
    inside = exits < turns[-1]
    force = place(np.interp(exits[inside], turns, clock), strength[inside], turns.size)
    soft = place(np.interp(entries, turns, clock), strength, turns.size)
    width = max(3, round(settings.entry_width * crossing) | 1)  # odd, so that the bump has a middle sample
    bump = np.hanning(width + 2)[1:-1]
    return force - settings.entry * scipy.signal.fftconvolve(soft, bump / bump.sum(), mode="same")


def place(positions: Doubles, strengths: Doubles, samples: int, reach: int = 8) -> Doubles:
    """Impulses at fractional sample positions, (event,) → (time,), as Hann-windowed sincs of ±`reach` samples."""
    first = np.floor(positions).astype(np.int64)
    taps = np.arange(1 - reach, reach + 1)
    distance = taps - (positions - first)[:, None]
    kernels = np.sinc(distance) * np.cos(np.pi * distance / (2 * reach)) ** 2
    padded = np.zeros(samples + 2 * reach)
    np.add.at(padded, first[:, None] + taps + reach, strengths[:, None] * kernels)
    return padded[reach : reach + samples]


def modes(settings: Settings, force: float) -> Doubles:
    """Frequency in Hz, damping and gain of each mode, (mode, 3); the last is the contact's, stiffer under force."""
    contact = settings.contact_frequency(force)
    rows = list(zip(settings.resonances, settings.dampings, settings.resonance_gains, strict=True))
    return np.array([*rows, (contact, settings.contact_damping, settings.contact_gain)])


def ringing(table: Doubles, rate: float) -> Doubles:
    """Acceleration after a unit strike, (mode, 3) → (time,): damped modes, until the slowest is down by 60 dB."""
    frequency, damping, gain = table.T[:, :, None]
    decay = 2 * np.pi * frequency * damping
    seconds = min(np.log(1000) / decay.min(), 1.0)
    time = np.arange(max(2, math.ceil(seconds * rate))) / rate
    waves = np.sin(2 * np.pi * frequency * np.sqrt(1 - damping**2) * time)
    return np.asarray(np.sum(gain * np.exp(-decay * time) * waves, axis=0))


def outer_path(settings: Settings, force: float) -> Doubles:
    """What the sensor hears of a unit strike at the outer race, (time,)."""
    return ringing(modes(settings, force), settings.rate)


def inner_path(settings: Settings, force: float) -> Doubles:
    """The same for the inner race, whose strikes drive the modes in other proportions and arrive weaker and duller."""
    table = modes(settings, force)
    table[:-1, 2] *= settings.inner_participation
    kept = math.exp(-2 * math.pi * settings.inner_cutoff / settings.rate)
    gain = settings.inner_gain * (1 - kept)
    return np.asarray(scipy.signal.lfilter([gain], [1.0, -kept], ringing(table, settings.rate)))


def lines(settings: Settings, condition: Condition) -> list[tuple[float, float]]:
    """Order (per turn) and amplitude (m/s²) of every tone at a condition; docs/simulator.md says why."""
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


def coloured_noise(samples: int, rate: float, colour: float, corner: float, generator: np.random.Generator) -> Doubles:
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
