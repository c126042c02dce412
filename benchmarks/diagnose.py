"""Recordings of test benches and simulated machines, from which benchmarks/fusion.py fits coefficients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from bearcat.data.bearing import BEARINGS
from bearcat.data.benches import BENCHES
from bearcat.data.recording import Recording
from bearcat.data.vibration import CONDITIONS, Defect, MachinePhysics, contact_frequency, simulate
from bearcat.diagnosis.physics import STATES, state_of

RATES = (12_000, 16_000, 20_000, 25_600, 48_000, 51_200, 64_000)
SPEEDS = (300.0, 3600.0)  # rpm
DRAWN = 25  # bearings, the first of the table: so many it had when the coefficients were made


def between(drawn: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(np.exp(drawn.uniform(np.log(low), np.log(high))))


def simulated(seed: int) -> Recording:
    """One machine nobody has built: bearing, speed, rate, resonances, noise and the defect's length are drawn.

    Its stated speed is off by up to 2 %, its bearing slips by up to 1 %, and the whole of it is modulated by the shaft and by
    something else that turns at an order of its own, as neighbours and gears do.
    The simulator has two speeds; others come from running its clock faster or slower.
    """
    drawn = np.random.default_rng([17, seed])
    state = STATES[seed % len(STATES)]
    for _ in range(1000):
        rate, rpm, turns = float(drawn.choice(RATES)), between(drawn, *SPEEDS), drawn.uniform(30, 150)
        condition, bearing = str(drawn.choice(list(CONDITIONS))), BEARINGS[str(drawn.choice(list(BEARINGS)[:DRAWN]))]
        speed = CONDITIONS[condition].speed
        own_rate, seconds = rate * speed / rpm, turns * 60 / speed
        if not (6_000 < own_rate < 80_000 and own_rate * seconds < 1.5e6):
            continue
        modes = sorted(between(drawn, 500, min(0.42 * own_rate, 12_000)) for _ in range(4))
        severity, position = between(drawn, 0.2, 3), drawn.uniform(-40, 40)
        fluctuation, slip, jitter = drawn.uniform(0.0005, 0.004), drawn.uniform(0, 0.01), drawn.uniform(0.003, 0.03)
        dampings, noise = tuple(drawn.uniform(0.01, 0.06, 3).tolist()), between(drawn, 0.03, 0.5)
        physics = MachinePhysics(
            outer_position=position, resonances=tuple(modes[:3]), contact_resonance=modes[3], dampings=dampings,
            noise_colour=drawn.uniform(0, 1.5), roughness=between(drawn, 0.01, 0.1),
            inner_cutoff=min(drawn.uniform(2000, 8000), 0.45 * own_rate), balls=bearing.balls,
            ball_diameter=bearing.ball_diameter, pitch_diameter=bearing.pitch_diameter,
            contact_angle=bearing.contact_angle, speed_fluctuation=fluctuation, slip=slip, slip_jitter=jitter,
            noise=noise,
        )  # fmt: skip
        contacts = [contact_frequency(each, CONDITIONS[condition].force) for each in (physics, MachinePhysics())]
        if max(contacts) >= own_rate / 2 or severity >= physics.spacing:  # the defect is longer than balls are apart
            continue
        part = state.removesuffix(" race")
        label = state if state == "healthy" else f"{part}-1"
        origin = f"simulated/{condition}/{label}/1"
        defects = () if state == "healthy" else (Defect(part, severity),)
        signal = simulate(physics, CONDITIONS[condition], defects, own_rate, seconds, seed, origin)
        angle = 2 * np.pi * np.arange(signal.size) / own_rate * speed / 60
        modulation = np.ones_like(angle)
        for order, depth in ((1, 0.3), (2, 0.2), (drawn.uniform(0.3, 15), 0.3), (drawn.uniform(0.3, 15), 0.3)):
            if drawn.random() < 0.5:
                strength, phase = drawn.uniform(0, depth), drawn.uniform(0, 2 * np.pi)
                modulation += sum(strength / number * np.cos(number * order * angle + phase) for number in (1, 2, 3))
        return Recording(
            signal=(signal.astype(np.float32) * modulation).astype(np.float32), rate=rate, bearing=bearing,
            label=state, rpm=rpm * (1 + drawn.uniform(-0.02, 0.02)), domain="simulated", origin=f"simulated {seed}",
        )  # fmt: skip
    raise AssertionError("no machine could be drawn")


def recordings(folder: Path) -> Iterator[Recording]:
    """The recordings of the benches in this folder, whose domains are the benches and whose labels are states."""
    for bench, (kind, name, prefix) in BENCHES.items():
        if (folder / name).is_dir():
            for entry in kind(root=folder / name).catalogue().entries:
                state = state_of(str(entry.label))
                if entry.domain.startswith(prefix) and state is not None:
                    yield replace(entry.read(), domain=bench, label=state, origin=f"{entry.domain} {entry.label}")
