"""Whether a stated speed can be right: lines of the shaft and of the bearing should stand where it says.

Shafts shake once, twice and three times a turn, and damaged bearings modulate what rings at their own orders. Machines
have many other lines too, so the levels at these orders are compared with those that other speeds would read: a right
speed beats nearly all of them, a wrong one is any of them. A speed that is wrong by a simple factor may pass, for its
lines may be multiples of the right ones.

>>> doubtful_speeds(recordings)
["mill/inner/3.wav and 6 more: no lines of the shaft or of a fault stand out at 9000 rpm; check the speed"]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.recording import Floats, Recording, envelope_spectrum, spectrum

SAMPLES, MOST = 1 << 16, 4  # of a recording, and recordings of a speed in a domain, that are used
SHORTEST = 8.0  # turns of the shaft, below which its lines are not apart
SLIP = 0.02  # by which a line may differ from its place
AROUND, FEWEST = 0.2, 8  # of its frequency, but at least so many bins, on either side of a line: the background
# Speeds to compare with, over the stated one; neither near it nor near simple fractions and multiples of it.
SIMPLE = np.array([1 / 3, 1 / 2, 2 / 3, 1, 3 / 2, 2, 3])
OTHERS = np.geomspace(0.3, 3.3, 97)
OTHERS = OTHERS[(abs(np.log(OTHERS[:, None] / SIMPLE)) > 0.04).all(axis=1)]
# Share of other speeds that a right one leaves behind. Measured on HIT-SM, CWRU and simulated bearings, eight domains:
# all of them at the right speed, in 87 of 96 cases fewer than this at one that is wrong by 0.41 to 10 times.
BEATEN = 0.8


def doubtful_speeds(recordings: Iterable[Recording]) -> list[str]:
    """A sentence for each speed of a domain whose lines do not stand out in its recordings, taken together.

    Recordings whose rate or speed is not known, or is a signal, or that are too short, say nothing.
    """
    scores: dict[tuple[str, float], list[Floats]] = defaultdict(list)
    names: dict[tuple[str, float], list[str]] = defaultdict(list)
    for recording in recordings:
        rate, rpm, signal = recording.rate, recording.rpm, recording.signal[:SAMPLES]
        if rate is None or rpm is None or recording.speed is not None or signal.size / rate * rpm / 60 < SHORTEST:
            continue
        names[recording.domain, rpm].append(recording.origin)
        if len(scores[recording.domain, rpm]) == MOST:
            continue
        scores[recording.domain, rpm].append(line_levels(signal, rate, rpm * np.r_[1.0, OTHERS], recording.bearing))
    sentences = []
    for key, found in scores.items():
        mean = np.mean(found, axis=0)
        others = mean[1:][np.isfinite(mean[1:])]
        if others.size and not (mean[0] > others).mean() >= BEATEN:
            more = f" and {len(names[key]) - 1} more" if len(names[key]) > 1 else ""
            what = f"no lines of the shaft or of a fault stand out at {key[1]:g} rpm; check the speed"
            sentences.append(f"{names[key][0]}{more}: {what}")
    return sentences


def line_levels(signal: Floats, rate: float, speeds: np.ndarray, bearing: Bearing | None = None) -> Floats:
    """(speed,) the mean log ratio of lines at expected orders to the median around them, at each speed in rpm."""
    centred = signal - signal.mean()
    shaft = [1.0, 2.0, 3.0]
    faults = [] if bearing is None else [bearing.orders()[name] for name in ("BPFO", "BPFI")]
    tapered = spectrum(centred * np.hanning(signal.size).astype(np.float32))
    wanted = [(tapered, order) for order in shaft]
    wanted += [(envelope_spectrum(centred), order) for order in shaft + faults]
    turns = speeds / 60 * signal.size / rate
    found = np.array([[_log_ratio(levels, order * number) for levels, order in wanted] for number in turns])
    known = np.isfinite(found)
    sums, counts = np.where(known, found, 0).sum(axis=1), known.sum(axis=1)
    means: Floats = np.divide(sums, counts, out=np.full(len(speeds), np.nan), where=counts > 0)
    return means


def _log_ratio(levels: Floats, place: float) -> float:
    """How far the highest level near a place, in bins, is above the median around it; NaN beyond the spectrum."""
    slip, reach = max(1.0, SLIP * place), max(SLIP * place + FEWEST, AROUND * place)
    low, high = round(place - slip), round(place + slip) + 1
    start, stop = max(1, round(place - reach)), round(place + reach) + 1
    if low < 1 or stop > levels.size:
        return np.nan
    background = np.median(np.concatenate([levels[start:low], levels[high:stop]]))
    highest = levels[low:high].max()
    return float(np.log(highest / background)) if highest > 0 and background > 0 else np.nan
