"""Strikes at exactly equal distances: their lines are tones, which whitening takes away with all other tones.

Rollers slip, so strikes of a real fault smear into noise that only envelopes show. Those of a fault that hardly slips,
or of one drawn by a formula, are tones at equal distances around a resonance instead. So the magnitudes that whitening
divides by are kept, and correlated with themselves: at a shift of so many bins, how many tones meet tones? Shifts are
orders, as the bins of envelope spectra are, and the lines of a fault are read in both in the same way.

>>> finish_with_tones(PhysicsAnalysis("drawn.wav", rate=51_200, rpm=900, orders=orders)).state
'outer race'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bearcat.data.recording import Floats, squared_magnitude
from bearcat.diagnosis.decision import HEALTHY
from bearcat.diagnosis.physics import (
    FAULTS,
    MULTIPLES,
    SCALES,
    FaultEvidence,
    PhysicsAnalysis,
    PhysicsEvidence,
    bins_below,
    higher,
    levels_over_background,
    physics_evidence,
    read,
)
from bearcat.diagnosis.spectra import FLOOR, Doubles, Spectra, halved
from bearcat.findings import Finding

AROUND = 2.0  # orders whose mean level is the background of a tone
# A bin counts by its logarithm over background in units of the band's spread, between these: most of noise not at all,
# and no tone for many. Bounds without that unit leave so little of long noise that what is left meets by chance.
LEAST, MOST = 0.6, 4.0
CHANCE = 2.5  # of the log level of a shift, which noise reaches at some fault, band and speed
PLAIN = 1.0  # above chance, of the least line, with less of which tones are hardly ever SURE
# Families of tones that are nobody's strikes, by their distance. The shaft's lie at its multiples and their halves, to
# within what is unknown of its speed, measured or stated. A motor's lie twice its supply apart: 2, 4, 6 or 8 × shaft
# and a few percent by which the rotor lags. The mains have theirs in Hz.
MEASURED, STATED = 0.005, 0.015
LAGS, POLES = 0.045, (2, 4, 6, 8)
SUPPLY, STEADY = (50.0, 60.0, 100.0, 120.0), 0.004
ROOT = 0.5  # of the least line, from which on lines at parts of the distance are those of a closer family
SURE, SURER = 0.9, 0.99  # probability of a fault by tones alone, to be believed; where they may be the shaft's


def finish_with_tones(
    analysis: PhysicsAnalysis, axes: Sequence[PhysicsAnalysis] = (), measured: bool = False
) -> PhysicsEvidence:
    """What physics says of a recording; where envelopes show no clear fault, by its tones if these show one. `measured`
    says that the speed is that of a shaft line or a tacho.
    """
    found = analysis.finish(axes)
    named = found.state in FAULTS
    if named and found.confidence >= SURE:
        return found
    spectra, rpm, orders = analysis.average(axes), analysis.rpm, analysis.orders
    levels = tone_levels(spectra, orders)
    if levels is None:
        return found
    tonal = physics_evidence(spectra, analysis.rate, rpm, orders, analysis.clipped(axes), levels)
    if tonal.evidence is None or tonal.state not in FAULTS or tonal.confidence < SURE or tonal.at_edge:
        return found
    own = tonal.evidence.faults[tonal.state]
    order = own.order * own.scale
    doubtful = not measured and abs(order / round(order) - 1) < STATED
    parts = [3] if tonal.state == "ball" else [2, 3]  # a ball that strikes one race has lines at half the distance
    parts += [] if measured else [round(order), round(2 * order)]
    if of_machine(order, rpm, measured) or not is_root(levels, own, spectra.turns, parts):
        return found
    if named and (doubtful or tonal.state != found.state):
        return found
    if doubtful and (found.state != HEALTHY or tonal.confidence < SURER):
        return found
    tones = Finding("tones of shaft" if doubtful else "tones", "check")
    return replace(tonal, findings=(tones, *tonal.findings), doubtful=doubtful)


def meeting_tones(magnitude: Floats, turns: float, bins: int, axes: int = 1) -> Doubles:
    """Magnitudes (narrowest band, bin) → (band, bin): squares of how well tones meet those so many bins above."""
    from scipy import fft

    rows, width = magnitude.shape
    block = min(max(8, int(AROUND * turns)), width)
    parts = magnitude[:, : width - width % block].reshape(rows, -1, block)
    tones = np.log(np.maximum(parts, np.float32(FLOOR) * parts.max()))
    tones = (tones - tones.mean(axis=2, keepdims=True)).reshape(rows, -1)
    spread = np.sqrt(np.vecdot(tones, tones) / np.float32(tones.shape[1]))[:, None]  # their mean is 0
    tones /= np.maximum(spread, np.float32(FLOOR))
    np.clip(tones, LEAST, MOST, out=tones)
    tones -= tones.mean(axis=1, keepdims=True)
    size = int(fft.next_fast_len(tones.shape[1] + bins, real=True))  # what comes round meets nothing
    meeting = fft.irfft(squared_magnitude(fft.rfft(tones, size)), size)[:, :bins].reshape(axes, -1, bins)
    found: Doubles = np.square(np.concatenate([row for axis in meeting for row in halved(axis)]), dtype=np.float64)
    return found


def tone_levels(spectra: Spectra, orders: Mapping[str, float]) -> Doubles | None:
    """(band, bin) log levels above chance; None where no fault of the bearing has all its lines there, PLAIN of it."""
    if spectra.magnitude is None:  # spectra that a store kept
        return None
    strikes = np.array([times * orders[name] for name, times, _ in FAULTS.values()])
    meeting = meeting_tones(spectra.magnitude, spectra.turns, spectra.power.shape[1], spectra.axes)
    below = bins_below(meeting, strikes[:, None, None] * np.array(MULTIPLES)[:, None] * SCALES * spectra.turns)

    def least(heights: Doubles) -> Doubles:
        """(band,) the least line of the fault and speed that have most."""
        return np.asarray(higher(heights)[:, below].min(axis=2).max(axis=(1, 2)))

    plain = np.exp(CHANCE + PLAIN) * np.median(meeting, axis=1)  # of the band, which takes less time
    if not (least(meeting) > plain).any():
        return None
    levels = levels_over_background(replace(spectra, power=meeting)) - CHANCE
    return levels if least(levels).max() > PLAIN else None


def of_machine(order: float, rpm: float, measured: bool) -> bool:
    """Whether tones so many orders apart are those of the mains, of the motor, or of a shaft of known speed."""
    mains = any(abs(order * rpm / 60 / hertz - 1) < STEADY for hertz in SUPPLY)
    near = MEASURED if measured else STATED
    motor = any(poles * (1 - near) < order < poles * (1 + LAGS + near) for poles in POLES)
    return mains or motor or (measured and abs(2 * order / round(2 * order) - 1) < MEASURED)


def is_root(levels: Doubles, own: FaultEvidence, turns: float, parts: Sequence[int]) -> bool:
    """Whether a fault's tones are no closer to each other than its strikes: a family at a half or a third of their
    distance has lines there, around that distance and at the first.
    """
    row, first = levels[own.row : own.row + 1], own.order * own.scale * turns
    places = [first * np.array([1, part - 1, part + 1]) / part for part in parts if part > 1]
    return all(read(row, place).min() < ROOT * min(own.lines) for place in places)
