"""What speaks for each fault in the envelope spectra of a recording: levels at its orders over the background.

For each fault the first multiples of its order are read together, in every band and at every speed within SEARCH of
the stated one, and the best combination counts: its lines move together when the speed is off. The fault with the
highest level fixes the speed; the others are read within SLIP of that.

>>> evidence = find_evidence(spectra.average(), bearing.orders())
>>> evidence.faults["outer race"].level, evidence.faults["outer race"].scale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.spectra import Doubles, Spectra, bands

MULTIPLES = (1, 2, 3)
SEARCH, SLIP = 0.03, 0.01
SCALES = 1 + np.linspace(-SEARCH, SEARCH, 61)
REACH = 1.5  # orders on either side of a bin whose median is its background
LOWEST = 0.25  # order below which nothing is read: what the mean leaves
STRONG = 2.0  # log level of a line that counts as one
HIGHEST = 4.0  # that counts of a line's log level over the background: one huge line does not stand for three
TIE = 1e-2  # weight of the levels at the very places
OTHERS = 32  # orders tried that are those of no fault
# What the classifier is given of each fault: by how much the mean level of its lines exceeds what orders of no fault
# reach, the least of its lines, its sidebands, and 1.
FEATURES = ("excess", "least", "sidebands", "one")
# A fault's name, the kinematic order it strikes at and how many times in each of its periods, and what modulates it.
FAULTS = {"inner race": ("BPFI", 1, "shaft"), "outer race": ("BPFO", 1, None), "ball": ("BSF", 2, "FTF")}
DECIBELS = 4.342944819  # of a natural logarithm of power


@dataclass(frozen=True)
class FaultEvidence:
    """How well one fault's lines stand out, in the band that shows it best. Levels are natural logarithms of power."""

    order: float
    level: float  # mean over the multiples, each bounded
    lines: tuple[float, ...]  # of each multiple
    sidebands: float  # mean around the first two multiples, at the order that modulates this fault; 0: none does
    row: int  # of the spectra: the band
    band: tuple[float, float]  # its ends as shares of half the rate
    scale: float  # the speed that fits, over the stated one


@dataclass(frozen=True)
class LineEvidence:
    """Of one recording, or of a part of it."""

    faults: dict[str, FaultEvidence]
    usual: float  # mean level that orders of no fault reach, searched like those of faults
    windows: int
    kurtosis: float  # of the most impulsive band's envelope; 2 is noise
    clutter: float  # share of strong lines that neither shaft nor bearing explains
    cage: float  # its order

    def features(self) -> Doubles:
        """(state, feature) of FEATURES; healthy, which comes first, has none."""
        rows = [
            [fault.level - self.usual, bounded(np.array(fault.lines)).min(), fault.sidebands, 1.0]
            for fault in self.faults.values()
        ]
        return np.array([[0.0] * len(FEATURES), *rows])


def last_order(orders: Mapping[str, float]) -> float:
    """The highest order that is read, with its background."""
    highest = max(times * orders[name] for name, times, _ in FAULTS.values())
    return MULTIPLES[-1] * 1.1 * highest * (1 + SEARCH) + REACH


def levels_over_background(spectra: Spectra) -> Doubles:
    """(band, bin) log of the power over the running median around it."""
    from scipy.ndimage import median_filter

    background = median_filter(spectra.power, size=(1, 2 * round(REACH * spectra.turns) + 1), mode="reflect")
    levels: Doubles = np.log(np.maximum(spectra.power, 1e-30) / np.maximum(background, 1e-30))
    levels[:, : int(np.ceil(LOWEST * spectra.turns)) + 1] = 0
    return levels


def read(levels: Doubles, places: NDArray[np.float64]) -> Doubles:
    """The higher of the two bins around each place (…,), 0 where there are none: (band, …)."""
    below = np.floor(places).astype(np.int64)
    inside = (below > 0) & (below + 1 < levels.shape[1])
    below = np.where(inside, below, 0)
    return np.where(inside, np.maximum(levels[:, below], levels[:, below + 1]), 0.0)


def between(levels: Doubles, places: NDArray[np.float64]) -> Doubles:
    """Levels at each place (…,) by straight lines between bins: (band, …)."""
    bins = np.arange(levels.shape[1])
    return np.array([np.interp(places, bins, row) for row in levels])


def bounded(levels: Doubles) -> Doubles:
    """Levels between 0 and HIGHEST."""
    return np.clip(levels, 0.0, HIGHEST)


def find_evidence(spectra: Spectra, orders: Mapping[str, float]) -> LineEvidence:
    """The evidence for each of FAULTS; `orders` are the bearing's kinematic ones."""
    levels, known = levels_over_background(spectra), {**orders, "shaft": 1.0}
    multiples = np.array(MULTIPLES)[:, None]
    places = {
        fault: times * known[name] * multiples * SCALES * spectra.turns for fault, (name, times, _) in FAULTS.items()
    }
    lines = {fault: read(levels, place) for fault, place in places.items()}  # (band, multiple, scale)
    # A line is as high at neighbouring speeds; the one at whose very places the levels are highest is taken.
    combined = {
        fault: bounded(found).mean(axis=1) + TIE * between(levels, places[fault]).mean(axis=1)
        for fault, found in lines.items()
    }
    strongest = max(combined, key=lambda fault: combined[fault].max())
    scale = float(SCALES[np.unravel_index(combined[strongest].argmax(), combined[strongest].shape)[1]])
    near = abs(SCALES - scale) <= SLIP + 1e-9
    found = {}
    for fault, (name, times, modulator) in FAULTS.items():
        level = np.where(near, combined[fault], -np.inf)
        band, place = (int(index) for index in np.unravel_index(level.argmax(), level.shape))
        own = lines[fault][band, :, place]
        order, sidebands = times * known[name], 0.0
        if modulator is not None:
            sides = np.array([number * order + side * known[modulator] for number in (1, 2) for side in (-1, 1)])
            sidebands = float(bounded(read(levels[band : band + 1], sides * SCALES[place] * spectra.turns)).mean())
        found[fault] = FaultEvidence(
            order, float(bounded(own).mean()), tuple(own.tolist()), sidebands, band, bands(len(levels))[band],
            float(SCALES[place]),
        )  # fmt: skip
    tried = other_orders(orders)[:, None, None] * multiples * SCALES * spectra.turns
    usual = float(np.mean([bounded(read(levels, place)).mean(axis=1).max() for place in tried]))
    clutter = _clutter(levels[0], known, scale, spectra.turns)
    return LineEvidence(found, usual, spectra.windows, float(spectra.kurtosis.max()), clutter, known["FTF"])


def other_orders(orders: Mapping[str, float]) -> Doubles:
    """Orders between those of faults, further from each than the search for both reaches.

    What they show is noise, and lines that belong to no fault; so much is no evidence.
    """
    faults = np.array([times * orders[name] for name, times, _ in FAULTS.values()])
    tried = np.geomspace(0.7 * faults.min(), 1.1 * faults.max(), OTHERS)
    return np.asarray(tried[(abs(tried[:, None] / faults - 1) > 2 * SEARCH + SLIP).all(axis=1)])


def _clutter(levels: Doubles, orders: Mapping[str, float], scale: float, turns: float) -> float:
    """The share of bins of the whole range with a strong line that neither the shaft nor the bearing explains."""
    explained = np.zeros(levels.size, dtype=bool)
    roots = [0.0] + [number * times * orders[name] for name, times, _ in FAULTS.values() for number in MULTIPLES]
    for root in roots:
        for side in (*range(-3, 4), *(sign * number * orders["FTF"] for sign in (-1, 1) for number in (1, 2))):
            reach = 2 + SLIP * root * turns
            place = (root + side) * scale * turns
            explained[max(0, int(place - reach)) : max(0, int(place + reach) + 1)] = True
    for number in range(int(levels.size / turns) + 1):
        explained[max(0, int(number * scale * turns) - 2) : int(number * scale * turns) + 3] = True
    return float((levels > STRONG)[~explained].mean()) if not explained.all() else 0.0
