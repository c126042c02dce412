"""Slow, obvious twins of the vectorised parts of bearcat.data.datasets.simulate: one loop per index, no FFT."""

from __future__ import annotations

import math
from collections.abc import Sequence


def place(positions: Sequence[float], strengths: Sequence[float], samples: int, reach: int) -> list[float]:
    """Each strike adds a windowed sinc around itself; what falls outside the signal is lost."""
    signal = [0.0] * samples
    for position, strength in zip(positions, strengths, strict=True):
        for sample in range(samples):
            distance = sample - position
            if abs(distance) < reach:
                sinc = 1.0 if distance == 0 else math.sin(math.pi * distance) / (math.pi * distance)
                signal[sample] += strength * sinc * (0.5 + 0.5 * math.cos(math.pi * distance / reach))
    return signal


def convolve(force: Sequence[float], response: Sequence[float]) -> list[float]:
    """A causal response to every sample of the force, as long as the force."""
    return [
        sum(force[now - past] * response[past] for past in range(min(now + 1, len(response))))
        for now in range(len(force))
    ]


def ring(
    times: Sequence[float], strengths: Sequence[float], table: Sequence[Sequence[float]], rate: float, samples: int
) -> list[float]:
    """Damped modes after strikes at exact times in seconds, without any sampling of the strikes."""
    signal = [0.0] * samples
    for time, strength in zip(times, strengths, strict=True):
        for frequency, damping, gain in table:
            for sample in range(samples):
                since = sample / rate - time
                if since >= 0:
                    angle = 2 * math.pi * frequency * math.sqrt(1 - damping**2) * since
                    decay = math.exp(-2 * math.pi * frequency * damping * since)
                    signal[sample] += strength * gain * decay * math.sin(angle)
    return signal


def angle_in_turns(
    shaft: float, offset: float, steps: Sequence[float], spread: float, kept: float, rate: float
) -> list[float]:
    """The shaft's angle after each sample, its relative speed an autoregression of order one."""
    angles, wander, angle = [], 0.0, 0.0
    for number, step in enumerate(steps):
        wander = step if number == 0 else kept * wander + math.sqrt(1 - kept * kept) * step
        angle += shaft * (1 + offset + spread * wander) / rate
        angles.append(angle)
    return angles
