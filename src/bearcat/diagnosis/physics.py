"""Physics as a witness: a recording, its speed and its bearing → healthy, inner race, outer race, ball or cannot tell.

For each fault the first multiples of its order are read together in the envelope spectra, in every band and at every
speed within SEARCH of the stated one, and the best combination counts: its lines move together when the speed is off.
What they say alone is the score of a fault, a weighted sum of its evidence, against zero for "healthy"; all faults
share the coefficients, which `benchmarks/fusion.py` makes. Nothing is trained here.

>>> analysis = PhysicsAnalysis("monday.wav", rate=51_200, rpm=900, orders=BEARINGS["6205"].orders())
>>> for block in stream.blocks: analysis.spectra.add(block)
>>> analysis.finish().line("outer race")
'BPFO 53.8 Hz, 24 dB'
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.recording import Integers
from bearcat.data.signals import SignalLimits
from bearcat.diagnosis.decision import CANNOT_TELL, HEALTHY
from bearcat.diagnosis.spectra import FEWEST_TURNS, Doubles, EnvelopeSpectra, Spectra, bands, stacked
from bearcat.errors import InputError
from bearcat.findings import CLEAR, CLIPPED, CLIPPED_MUCH, IMPULSIVE, PRIOR, SURE, VERY_CLEAR, Finding
from bearcat.sentences import line_words
from bearcat.settings import to_plain

MULTIPLES = (1, 2, 3)
SEARCH, SLIP = 0.03, 0.01
SCALES = 1 + np.linspace(-SEARCH, SEARCH, 61)
REACH = 1.5  # orders on either side of a bin whose median is its background
LOWEST = 0.25  # order below which nothing is read: what the mean leaves
HIGHEST = 4.0  # that counts of a line's log level over the background: one huge line does not stand for three
TIE = 1e-2  # weight of the levels at the very places
OTHERS = 32  # orders tried that are those of no fault
# What lines say of each fault: by how much their mean level exceeds what orders of no fault reach, the least of them,
# sidebands, and how impulsive the recording is.
FEATURES = ("excess", "least", "sidebands", "impulsive")
ONE = "one"  # of every fault: what the lines of healthy bearings say
EVEN = -math.log(3)  # of each of three faults: the coefficients are made where a fault is as likely as health
LINELESS = 0.2  # share of faults that show no line; test benches have from none to a third (docs/trust.md)
# A fault's name, the kinematic order it strikes at and how many times in each of its periods, and what modulates it.
FAULTS = {"inner race": ("BPFI", 1, "shaft"), "outer race": ("BPFO", 1, None), "ball": ("BSF", 2, "FTF")}
DECIBELS = 4.342944819  # of a natural logarithm of power
STATES = (HEALTHY, *FAULTS)
COEFFICIENTS = Path(__file__).parent / "fusion.json"
RATES, SPEEDS = (12_000.0, 64_000.0), (300.0, 3600.0)  # Hz and rpm, of the recordings the coefficients were made from
SHOWN = 4  # times the highest line that half the rate must hold, so that there is something for it to modulate
# How people name the states of a bearing, in words and in lower case; shorter codes may mean anything.
_NAMES = {
    HEALTHY: r"healthy|normal|ok|good|baseline|undamaged",
    "inner race": r"inner.*|ir\d*|bpfi|ki\d+",
    "outer race": r"outer.*|or\d*|bpfo|ka\d+",
    "ball": r"ball.*|roller.*|b\d{3}|bsf",
}


@lru_cache(maxsize=4096)
def state_of(label: str) -> str | None:
    """The state that a class's name stands for; None where it says nothing of healthy, inner race, outer race, ball."""
    words = re.split(r"[\s_@+&/,.-]+", label.strip().lower())
    found = {state for word in words for state, names in _NAMES.items() if re.fullmatch(names, word)}
    return found.pop() if len(found) == 1 else None


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
    amplitude: float  # of the lines of all bands together, in units of the signal: who owns a line (points.py)


@dataclass(frozen=True)
class LineEvidence:
    """Of one recording, or of a part of it."""

    faults: dict[str, FaultEvidence]
    usual: float  # mean level that orders of no fault reach, searched like those of faults
    windows: int
    kurtosis: float  # of the most impulsive band's envelope; 2 is noise
    cage: float  # its order


def last_order(orders: Mapping[str, float]) -> float:
    """The highest order that is read, with its background."""
    highest = max(times * orders[name] for name, times, _ in FAULTS.values())
    return MULTIPLES[-1] * 1.1 * highest * (1 + SEARCH) + REACH


def levels_over_background(spectra: Spectra) -> Doubles:
    """(band, bin) log of the power over the running median around it."""
    from scipy.ndimage import median_filter

    reach, bins = round(REACH * spectra.turns), spectra.power.shape[1]
    # All rows behind each other, mirrored at their ends: one call, and none of the bands mixes with another.
    mirrored = spectra.power[:, ::-1]
    rows = np.concatenate([mirrored[:, bins - reach :], spectra.power, mirrored[:, :reach]], axis=1)
    background = median_filter(rows.ravel(), size=2 * reach + 1).reshape(rows.shape)[:, reach : reach + bins]
    levels: Doubles = np.log(np.maximum(spectra.power, 1e-30) / np.maximum(background, 1e-30))
    levels[:, : int(np.ceil(LOWEST * spectra.turns)) + 1] = 0
    return levels


def read(levels: Doubles, places: Doubles) -> Doubles:
    """The higher of the two bins around each place (…,), 0 where there are none: (band, …)."""
    return higher(levels)[:, bins_below(levels, places)]


def higher(levels: Doubles) -> Doubles:
    """(band, bin) the higher of each bin and the next; 0 in the first and the last, where nothing is read."""
    found = np.zeros_like(levels)
    np.maximum(levels[:, 1:-1], levels[:, 2:], out=found[:, 1:-1])
    return found


def bins_below(levels: Doubles, places: Doubles) -> Integers:
    """The bins of `higher` in which to look for places (…,)."""
    return np.asarray(np.clip(places, 0, levels.shape[1] - 1).astype(np.int64))


def bounded(levels: Doubles) -> Doubles:
    """Levels between 0 and HIGHEST."""
    return np.clip(levels, 0.0, HIGHEST)


def find_evidence(spectra: Spectra, orders: Mapping[str, float], levels: Doubles | None = None) -> LineEvidence:
    """The evidence for each of FAULTS; `orders` are the bearing's kinematic ones, `levels` those over background."""
    levels, known = levels_over_background(spectra) if levels is None else levels, {**orders, "shaft": 1.0}
    multiples, strikes = np.array(MULTIPLES)[:, None], [times * known[name] for name, times, _ in FAULTS.values()]
    exact = np.array(strikes)[:, None, None] * multiples * SCALES * spectra.turns
    pairs, rise, below = higher(levels), np.diff(levels, append=levels[:, -1:]), bins_below(levels, exact)
    heights, lines = bounded(pairs), pairs.take(below, axis=1)  # lines: (band, fault, multiple, scale)
    # A line is as high at neighbouring speeds; the one at whose very places the levels are highest is taken.
    between = levels.take(below, axis=1) + rise.take(below, axis=1) * (exact - below)
    combined = (bounded(lines).mean(axis=2) + TIE * between.mean(axis=2)).swapaxes(0, 1)  # (fault, band, scale)
    scale = float(SCALES[combined.argmax() % len(SCALES)])
    near = np.where(abs(SCALES - scale) <= SLIP + 1e-9, combined, -np.inf).reshape(len(FAULTS), -1)
    chosen = [divmod(int(row.argmax()), len(SCALES)) for row in near]  # band and scale of each fault
    amplitudes = line_amplitudes(spectra, levels, np.stack([exact[n, :, place] for n, (_, place) in enumerate(chosen)]))
    faults, ends = {}, bands(len(levels), spectra.axes)
    for number, (fault, (_, _, modulator)) in enumerate(FAULTS.items()):
        (band, place), order, sidebands = chosen[number], strikes[number], 0.0
        own = lines[band, number, :, place].tolist()
        if modulator is not None:
            sides = np.array([times * order + side * known[modulator] for times in (1, 2) for side in (-1, 1)])
            sidebands = float(heights[band, bins_below(levels, sides * SCALES[place] * spectra.turns)].mean())
        level = sum(min(max(line, 0.0), HIGHEST) for line in own) / len(own)
        faults[fault] = FaultEvidence(
            order, level, tuple(own), sidebands, band, ends[band], float(SCALES[place]), amplitudes[number]
        )
    others = other_orders(strikes)
    tried = multiples[:, None] * others[:, None] * SCALES * spectra.turns
    # (multiple, order, scale, band): rows of bands are taken at once.
    reached = np.take(np.ascontiguousarray(heights.T), bins_below(levels, tried), axis=0)
    usual = float(reached.sum(axis=0).max(axis=(1, 2)).mean()) / len(MULTIPLES)
    return LineEvidence(faults, usual, spectra.windows, float(spectra.kurtosis.max()), known["FTF"])


def line_amplitudes(spectra: Spectra, levels: Doubles, places: Doubles) -> list[float]:
    """How loud lines at bins (fault, line) are in units of the signal: what of the squared envelopes of the narrowest
    bands exceeds the background, times the mean square that whitening took off, to the fourth root.
    """
    below = bins_below(levels, places)
    beside = np.stack([below, np.minimum(below + 1, levels.shape[1] - 1)])
    beyond = spectra.power[:, beside] * -np.expm1(-np.maximum(levels[:, beside], 0))  # of a power P: P − background
    highest = np.where((below > 0) & (below + 1 < levels.shape[1]), beyond.max(axis=1), 0.0)
    lines = (highest * spectra.loudness[:, None, None] ** 2).reshape(spectra.axes, -1, *places.shape)
    found: list[float] = (lines[:, lines.shape[1] // 2 :].sum(axis=(0, 1, 3)) ** 0.25).tolist()
    return found


def other_orders(strikes: Sequence[float]) -> Doubles:
    """Orders between those of faults, further from each than the search reaches: what they show is no evidence."""
    faults = np.array(strikes)
    tried = np.geomspace(0.7 * faults.min(), 1.1 * faults.max(), OTHERS)
    return np.asarray(tried[(abs(tried[:, None] / faults - 1) > 2 * SEARCH + SLIP).all(axis=1)])


@dataclass(frozen=True)
class FaultLines:
    """The lines of one fault in the envelope spectrum; levels in dB above the background."""

    hertz: float  # of the fault's order at the speed that fits
    level: float  # mean over the first multiples, not bounded
    lines: tuple[float, ...]
    sidebands: float | None
    band: tuple[float, float]  # in Hz, that shows it best


@dataclass(frozen=True, eq=False)
class PhysicsEvidence:
    """What physics reads in one recording, and what its lines say alone. `state` is one of STATES or CANNOT_TELL."""

    findings: tuple[Finding, ...]  # what is unlike all the coefficients were made from, or wrong with the recording
    rate: float
    rpm: float  # as stated
    fitted_rpm: float  # at which the lines of the likeliest fault stand out best
    faults: Mapping[str, FaultLines]
    reference_level: float  # dB that orders of no fault reach
    kurtosis: float
    windows: int
    evidence: LineEvidence | None = None  # for drawing, with the levels (band, bin) over background, in natural
    levels: Doubles | None = None  # logarithms, and how many bins an order has; none of them is kept in a record
    turns: float = 0.0

    def features(self, state: str) -> list[float]:
        """What its lines say for a fault against healthy, in the order of FEATURES."""
        impulsive = math.log(max(self.kurtosis, 2.0) / 2.0)
        if (lines := self.faults.get(state)) is None:  # a fault that makes no line of this bearing
            return [0.0, 0.0, 0.0, impulsive]
        own = [min(max(line / DECIBELS, 0.0), HIGHEST) for line in lines.lines]
        excess = sum(own) / len(own) - self.reference_level / DECIBELS
        return [excess, min(own), (lines.sidebands or 0.0) / DECIBELS, impulsive]

    @cached_property
    def probabilities(self) -> Mapping[str, float]:
        """Of each state, by its lines alone."""
        chosen, names = shipped()["physics"], (*FEATURES, ONE)
        rows = np.array([[*self.features(fault), 1.0] for fault in FAULTS])
        scores = score(rows, np.array([chosen[name] for name in names]), len(names)) + math.log(PRIOR / (1 - PRIOR))
        shares = np.exp(np.concatenate([[0.0], scores]) - np.logaddexp.reduce([0.0, *scores]))
        return dict(zip(STATES, shares.tolist(), strict=True))

    @property
    def confidence(self) -> float:
        return max(self.probabilities.values())

    @property
    def state(self) -> str:
        """The likeliest state; CANNOT_TELL below the threshold, or where something strikes at no order."""
        likeliest = max(STATES, key=lambda state: self.probabilities[state])
        unsure = self.confidence < SURE or (likeliest == HEALTHY and self.strikes)
        return CANNOT_TELL if unsure else likeliest

    @property
    def likeliest_fault(self) -> str:
        return max(FAULTS, key=lambda fault: self.probabilities[fault])

    @property
    def strikes(self) -> bool:
        """Whether something strikes, at a line of this bearing or at none."""
        return self.kurtosis > IMPULSIVE

    def without_lines(self, fault: str) -> PhysicsEvidence:
        """The same as if this fault's lines were not there: they belong to a neighbour."""
        silent = replace(self.faults[fault], level=0.0, lines=(0.0,) * len(MULTIPLES), sidebands=0.0)
        return replace(self, fitted_rpm=self.rpm, faults={**self.faults, fault: silent})

    def clarity(self, fault: str) -> str:
        """How clear the strongest line of a fault is."""
        strongest = round(max(self.faults[fault].lines))  # as it is printed
        return "faint" if strongest < CLEAR else "clear" if strongest < VERY_CLEAR else "strong"

    @property
    def band(self) -> tuple[float, float]:
        """The band in Hz that shows the likeliest fault best."""
        return self.faults[self.likeliest_fault].band

    def strongest_line(self, label: str) -> dict[str, Any]:
        """The strongest line of the fault a class stands for; where it stands for none, of the strongest fault."""
        state = state_of(label)
        strongest = max(self.faults, key=lambda fault: self.faults[fault].level)
        fault = state if state in FAULTS else self.likeliest_fault if state is None else strongest
        (name, times, _), found = FAULTS[str(fault)], self.faults[str(fault)]
        level, number = max(zip(found.lines, MULTIPLES, strict=True))
        return {"line": name, "multiple": number * times, "hertz": number * found.hertz, "level": level}

    def line(self, label: str) -> str:
        """The same in words."""
        return f"{'strongest: ' * (state_of(label) == HEALTHY)}{line_words(self.strongest_line(label))}"

    @property
    def at_edge(self) -> bool:
        """Whether the lines fit best at the edge of the search, as they do where the speed is wrong."""
        return abs(self.fitted_rpm / self.rpm - 1) > SEARCH - 1e-9

    def contradicts(self, label: str) -> bool:
        """Whether a model's class stands for another state than the one found here."""
        return self.state != CANNOT_TELL and state_of(label) not in (None, self.state)

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps: all but what a drawing needs."""
        kept = to_plain(replace(self, evidence=None, levels=None))
        alone = {"state": self.state, "confidence": self.confidence, "probabilities": dict(self.probabilities)}
        return alone | {name: value for name, value in kept.items() if name not in ("evidence", "levels", "turns")}


class PhysicsAnalysis:
    """Collects what physics needs of one recording. `orders` are those of bearing.KINEMATIC."""

    def __init__(
        self, recording: str, rate: float | None, rpm: float | None, orders: Mapping[str, float] | None,
        fewest: float = FEWEST_TURNS, limits: SignalLimits | None = None,
    ) -> None:  # fmt: skip
        if rate is None or rpm is None or orders is None:
            name = "rate" if rate is None else "rpm" if rpm is None else "bearing"
            what = {"rate": "sampling rate", "rpm": "shaft's speed"}.get(name, name)
            raise InputError(f"{recording}: its {what} is not known, and faults show only with it; give it", name)
        fastest = 60 * rate / 2 / SHOWN / last_order(orders)
        if not 0 < rpm <= fastest:
            raise InputError(
                f"{recording}: at {rate:g} Hz the lines of this bearing can be read up to {fastest:.0f} rpm, not at"
                f" {rpm:g}; check the speed, or record at a higher rate", "rpm"
            )  # fmt: skip
        self.recording, self.rate, self.rpm, self.orders = recording, rate, rpm, orders
        with self._named():
            self.spectra = EnvelopeSpectra(rate, rpm, last_order(orders), fewest, limits)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Names the recording in an error."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{self.recording}: {error}", error.field) from error

    def finish(self, axes: Sequence[PhysicsAnalysis] = ()) -> PhysicsEvidence:
        """What all blocks so far say; with those of further axes of the same point, if there are any."""
        with self._named():
            spectra = self.average(axes)
        clipped = max(each.spectra.clipped for each in (self, *axes))  # of the worst axis
        if clipped > CLIPPED_MUCH:
            much = f"{100 * clipped:.1f} % of its samples lie at the limits"
            raise InputError(f"{self.recording}: is clipped, {much}; record it with less gain")
        return physics_evidence(spectra, self.rate, self.rpm, self.orders, clipped)

    def average(self, axes: Sequence[PhysicsAnalysis] = ()) -> Spectra:
        """The spectra of all blocks so far, and of further axes."""
        return stacked([each.spectra.average() for each in (self, *axes)])


def physics_evidence(
    spectra: Spectra, rate: float, rpm: float, orders: Mapping[str, float], clipped: float = 0.0
) -> PhysicsEvidence:
    """What physics reads in the envelope spectra of one recording, or of several together."""
    levels = levels_over_background(spectra)
    evidence = find_evidence(spectra, orders, levels)
    lines = {
        fault: FaultLines(
            own.order * own.scale * rpm / 60, DECIBELS * sum(max(line, 0.0) for line in own.lines) / len(own.lines),
            tuple(DECIBELS * line for line in own.lines),
            DECIBELS * own.sidebands if FAULTS[fault][2] else None,
            (own.band[0] * rate / 2, own.band[1] * rate / 2),
        )
        for fault, own in evidence.faults.items()
    }  # fmt: skip
    found = PhysicsEvidence(
        (), rate, rpm, rpm, lines, DECIBELS * evidence.usual, evidence.kurtosis, evidence.windows, evidence, levels,
        spectra.turns,
    )  # fmt: skip
    findings, speed = list(_outside(rate, rpm)), evidence.faults[found.likeliest_fault].scale * rpm
    if clipped > CLIPPED:
        findings.append(Finding("lines by clipping", "check", {"share": clipped}))
    fitted = replace(found, fitted_rpm=speed)
    if found.state in FAULTS and fitted.at_edge:
        findings.append(Finding("speed at edge", "check", {"rpm": speed}))
    return replace(fitted, findings=tuple(findings))


def _outside(rate: float, rpm: float) -> Iterator[Finding]:
    """Where the recording is outside all that the coefficients were made from."""
    for value, unit, (low, high) in ((rate, "Hz", RATES), (rpm, "rpm", SPEEDS)):
        if not low <= value <= high:
            values = {"value": value, "unit": unit, "low": low, "high": high}
            yield Finding("value outside range", "check", values)


def score(features: Doubles, weights: Doubles, lines: int) -> Doubles:
    """Features (…, feature), of which the first `lines` are of lines, and their weights → scores (…,)."""
    others = features[..., lines:] @ weights[lines:] + EVEN
    if not lines:
        return np.asarray(others)
    heard = features[..., :lines] @ weights[:lines] + math.log(1 - LINELESS)
    return np.asarray(np.logaddexp(heard, math.log(LINELESS)) + others)


@cache
def shipped(without: str | None = None) -> Mapping[str, Mapping[str, float]]:
    """The coefficients by set of witnesses (`physics+general`); `without` names a dataset whose bench is left out."""
    content: dict[str, Any] = json.loads(COEFFICIENTS.read_text(encoding="utf-8"))
    left_out: dict[str, Any] = content["left_out"]
    found: Mapping[str, Mapping[str, float]] = left_out.get(str(without), content["coefficients"])
    return found
